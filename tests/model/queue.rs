//! A queue that all objects are in: what `queue::state` keeps, and what the keeper does with it.

use htc_operator::machine::Indices;
use htc_operator::machine::facts::JobStatus;
use htc_operator::machine::room::Room;
use htc_operator::queue::admit::{Claim, Order, Terms, admit};
use htc_operator::queue::{Amounts, Limits, Resource};

use crate::steps::Model;
use crate::story::Teller;
use crate::world::{Memory, Rows, World, name, uid};

/// What the operator remembers of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue {
    /// What each object has and asks for, as far as that is known.
    entries: Vec<Option<Entry>>,
    /// Which were looked at since the operator was started.
    looked: Vec<bool>,
    /// What is being made durable.
    granting: Vec<(u8, Indices)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Entry {
    granted: Indices,
    uses: Indices,
    asks: Indices,
}

impl Queue {
    /// As `Queues::new` does with what the ledger has.
    pub fn start(rows: &[Rows]) -> Self {
        let entry = |rows: &Rows| {
            let record = rows.load();
            let known = record.known.as_ref().is_some_and(|known| !known.released);
            known.then(|| Entry { uses: record.in_use(), granted: record.granted, asks: Indices::default() })
        };
        Self { entries: rows.iter().map(entry).collect(), looked: vec![false; rows.len()], granting: Vec::new() }
    }

    /// As `Queues::decided` does. `granted`: as the record had it before.
    pub fn decided(&mut self, place: usize, granted: &Indices, room: &Room) {
        let entry = self.entries[place].get_or_insert_with(|| Entry { granted: granted.clone(), ..Entry::default() });
        entry.granted = entry.granted.without(&room.gives_back);
        entry.uses = room.uses.clone();
        entry.asks = room.asks.without(&entry.granted);
        self.looked[place] = true;
    }

    /// What is gone has no room.
    pub fn forget(&mut self, place: usize) {
        (self.entries[place], self.looked[place]) = (None, false);
    }
}

impl Memory {
    /// What is gone has no room; what was never looked at may have any.
    fn queue_begun(&self) -> bool {
        self.cache.iter().zip(&self.queue.looked).all(|(seen, looked)| seen.is_none() || *looked)
    }
}

impl Model {
    fn claims(queue: &Queue) -> Vec<Claim> {
        let of = |(object, entry): (u8, &Entry)| Claim {
            uid: uid(object),
            namespace: "n".into(),
            priority: 0,
            created: i64::from(object),
            each: Amounts::of(&[(Resource::Jobs, 1)]),
            uses: Indices::union(&[entry.granted.clone(), entry.uses.clone()]).len() as u64,
            last: 0,
            asks: entry.asks.clone(),
        };
        let known = (0..).zip(&queue.entries).filter_map(|(object, entry)| Some((object, entry.as_ref()?)));
        known.map(of).collect()
    }

    /// What the keeper would grant now.
    fn admits(&self, world: &World, op: usize) -> Vec<(u8, Indices)> {
        let memory = &world.operators[op].memory;
        let Some(jobs) = self.scene.room.filter(|_| memory.queue_begun()) else { return Vec::new() };
        let terms = Terms {
            order: Order::StrictFifo,
            stopped: false,
            quota: Limits::of(&[(Resource::Jobs, jobs)]),
            per_namespace: Limits::default(),
        };
        let claims = Self::claims(&memory.queue);
        let grants = admit(&terms, &claims).grants.into_iter();
        grants.map(|(place, indices)| (crate::world::number(&claims[place].uid), indices)).collect()
    }

    /// Whether the keeper has something to do.
    pub fn can_grant(&self, world: &World, op: usize) -> bool {
        self.scene.room.is_some()
            && (!world.operators[op].memory.queue.granting.is_empty() || !self.admits(world, op).is_empty())
    }

    /// The keeper decides, and what it grants counts from then on; or makes durable what it has decided.
    pub fn grant(&self, world: &mut World, op: usize, tell: &mut Teller) {
        let granting = std::mem::take(&mut world.operators[op].memory.queue.granting);
        if granting.is_empty() {
            let grants = self.admits(world, op);
            let queue = &mut world.operators[op].memory.queue;
            for (object, indices) in &grants {
                if let Some(entry) = &mut queue.entries[usize::from(*object)] {
                    entry.granted = Indices::union(&[entry.granted.clone(), indices.clone()]);
                    entry.asks = entry.asks.without(indices);
                }
            }
            queue.granting = grants;
            return;
        }
        for (object, indices) in granting {
            let place = usize::from(object);
            let rows = &mut world.operators[op].ledger.rows[place];
            if rows.known.as_ref().is_some_and(|known| !known.released) {
                tell.say(|| format!("    jobs {indices} of {} have room", name(object)));
                rows.granted = Indices::union(&[rows.granted.clone(), indices]);
            } else if let Some(entry) = &mut world.operators[op].memory.queue.entries[place] {
                entry.granted = entry.granted.without(&indices);
            }
        }
    }

    /// HTCondor has no more jobs than there is room for, without those that are held for `spec.suspend`.
    pub fn keeps_to_room(&self, world: &World) -> bool {
        let Some(room) = self.scene.room else { return true };
        let open = world.queued().filter(|job| {
            let held = job.ad.status == JobStatus::Held && job.ad.hold.is_ours();
            !matches!(job.ad.status, JobStatus::Completed | JobStatus::Removed) && !held && !job.overdue && !job.late()
        });
        open.count() as u64 <= room
    }
}
