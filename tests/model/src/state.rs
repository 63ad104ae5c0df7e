//! A state as the checker handles it: a world, and the print that tells it from all others.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use crate::shared::print;
use crate::world::World;

/// A world with its print, which is computed once. Two worlds with the same print are one: so says the checker, too.
#[derive(Clone, Debug)]
pub struct State {
    world: Arc<World>,
    print: u64,
}

impl State {
    pub fn new(world: World) -> Self {
        Self { print: print(&world), world: Arc::new(world) }
    }

    pub fn print(&self) -> u64 {
        self.print
    }
}

impl Deref for State {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.print.hash(hasher);
    }
}
