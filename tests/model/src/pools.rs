//! Two pools side by side. Their schedds have the same name and the same birthdate, and give the same ids: objects are in the one
//! and the other in turn. What the operator remembers of a pool is that pool's, and so are its workers; the ledger is one.
//!
//! In the second pool the operator's own steps follow at once on whatever happens there: else each of its moments would be explored beside
//! each of the first pool's, of which there are a thousand. The two are alike, so what the first one goes through step by step is
//! explored beside all that HTCondor and users do in the second.

use crate::condor::{Elsewhere, Schedd};
use crate::shared::Shared;
use crate::steps::{Action, Model};
use crate::story::Teller;
use crate::world::{Memory, World};

/// Most steps to rest. What has not come to it goes on with the next step there.
const RESTLESS: usize = 50;

/// A pool with which the operator works as well.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OtherPool {
    pub memory: Shared<Memory>,
    /// The operator takes all objects for those of the first pool.
    pub forgotten: bool,
}

impl World {
    /// From now on there are two pools.
    pub fn add_pool(&mut self, foreign: bool) {
        let (schedd, memory) = (Schedd::new(foreign).into(), Memory::new(self.objects.len()).into());
        let pool = Some(OtherPool { memory, forgotten: false });
        self.elsewhere = Some(Elsewhere { schedd, submitters: Vec::new(), pool });
    }

    pub fn other_pool(&self) -> Option<&OtherPool> {
        self.elsewhere.as_ref()?.pool.as_ref()
    }

    pub fn other_pool_mut(&mut self) -> Option<&mut OtherPool> {
        self.elsewhere.as_mut()?.pool.as_mut()
    }

    /// Whether the operator looks for this object in the pool that it looks at now.
    pub fn is_here(&self, object: usize) -> bool {
        let knows = self.other_pool().is_some_and(|pool| !pool.forgotten);
        self.there == (knows && object % 2 == 1)
    }

    /// What is said of HTCondor and of the operator's memory is said of the other pool from now on.
    pub fn change_pool(&mut self) {
        let Self { elsewhere, schedd, submitters, operators, there, .. } = self;
        let Some(other) = elsewhere else { return };
        let Some(pool) = &mut other.pool else { return };
        std::mem::swap(schedd, &mut other.schedd);
        std::mem::swap(submitters, &mut other.submitters);
        std::mem::swap(&mut operators[0].memory, &mut pool.memory);
        *there = !*there;
    }

    /// Does this for each pool.
    pub fn in_each_pool(&mut self, work: impl Fn(&mut Self)) {
        work(self);
        if self.other_pool().is_some() {
            self.change_pool();
            work(self);
            self.change_pool();
        }
    }

    /// What the operators remember, of all pools.
    pub fn memories(&self) -> impl Iterator<Item = &Shared<Memory>> {
        let other = self.other_pool().map(|pool| &pool.memory);
        self.operators.iter().map(|operator| &operator.memory).chain(other)
    }
}

impl Model {
    /// What can happen in the other pool.
    pub fn there(world: &World, actions: &mut Vec<Action>, list: impl FnOnce(&World, &mut Vec<Action>)) {
        if world.other_pool().is_none() {
            return;
        }
        let (mut world, mut there) = (world.clone(), Vec::new());
        world.change_pool();
        list(&world, &mut there);
        actions.extend(there.into_iter().map(|action| Action::There(Box::new(action))));
    }
}

impl Model {
    /// What the operator does by itself in the pool that is looked at, until that changes nothing any more.
    pub fn come_to_rest(&self, world: &mut World) {
        let is_own = |action: &Action| {
            !matches!(
                action,
                Action::Submit(_)
                    | Action::Send(_)
                    | Action::Land(_)
                    | Action::Start(_)
                    | Action::End(_)
                    | Action::PauseOver(_)
                    | Action::Purge
            )
        };
        for _ in 0..RESTLESS {
            world.settle();
            let mut actions = Vec::new();
            self.progress_here(world, &mut actions);
            let step = actions.iter().filter(|action| is_own(action)).find_map(|action| {
                let next = self.apply(world, action, &mut Teller::silent());
                (next != *world).then_some(next)
            });
            match step {
                Some(next) => *world = next,
                None => return,
            }
        }
    }
}

impl Action {
    /// Without the pool in which it happens.
    pub fn anywhere(&self) -> &Self {
        match self {
            Self::There(action) => action.anywhere(),
            action => action,
        }
    }
}
