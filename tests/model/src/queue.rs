//! A queue that all objects are in: what `queue::state` keeps, and what the keeper does with it. Or Kueue, which admits whole objects and
//! takes that back at any time: its quota is free again when the operator gives it back.

use htc_machine::Indices;
use htc_machine::admission::{AdmissionOrder, QueuePolicy, QuotaCandidate, admit};
use htc_machine::amounts::{Amounts, QuotaLimits, Resource};
use htc_machine::condition::Reason;
use htc_machine::facts::{Job, JobState, JobStatus, QueueFacts, QueueWait, Record};
use htc_machine::phase::Phase;
use htc_machine::quota_usage::QuotaUsage;

use crate::bounds::Trouble;
use crate::shared::Shared;
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
    sight: Sight,
}

/// What an operator knows of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sight {
    #[default]
    NotYet,
    There,
    Gone,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Entry {
    granted: Indices,
    uses: Indices,
    asks: Indices,
    /// All of it may be there, and nothing of that is known.
    unknown: bool,
}

/// What Kueue says of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Workload {
    #[default]
    Waiting,
    Admitted,
    /// It is to give its quota back.
    Evicted,
    /// It has ended, and has given it back.
    Finished,
}

impl Entry {
    fn in_use(&self) -> Indices {
        Indices::union(&[self.granted.clone(), self.uses.clone()])
    }

    /// As `Entry::found` of `queue::state` does: it goes on, and counts as granted.
    fn found(&self) -> Indices {
        if self.unknown { Indices::default() } else { self.uses.without(&self.granted) }
    }
}

impl Queue {
    /// As `Queues::new` does with what the ledger has.
    pub fn start(rows: &[Shared<Rows>]) -> Self {
        let entry = |rows: &Shared<Rows>| {
            let record = rows.load();
            let known = record.row.as_ref().is_some_and(|known| !known.released);
            known.then(|| Entry { uses: record.in_use(), granted: record.granted, ..Entry::default() })
        };
        let entries = rows.iter().map(entry).collect();
        Self { entries, looked: vec![false; rows.len()], ..Self::default() }
    }

    /// As `Queues::decided` does. `granted`: as the record had it before.
    pub fn decided(&mut self, place: usize, granted: &Indices, room: &QuotaUsage) {
        let entry = self.entries[place].get_or_insert_with(|| Entry { granted: granted.clone(), ..Entry::default() });
        entry.granted = entry.granted.without(&room.returned);
        (entry.uses, entry.unknown) = (room.used.clone(), room.usage_unknown);
        entry.asks = room.requested.without(&entry.granted);
        self.looked[place] = true;
    }

    pub fn knows(&self, place: usize) -> bool {
        self.entries[place].is_some() || self.looked[place]
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
    fn claims(queue: &Queue) -> Vec<QuotaCandidate> {
        let of = |(object, entry): (u8, &Entry)| QuotaCandidate {
            uid: uid(object),
            namespace: "n".into(),
            priority: 0,
            created: i64::from(object),
            per_job: Amounts::of(&[(Resource::Jobs, 1)]),
            uses: entry.in_use().len() as u64,
            unknown: 0,
            last_grant: 0,
            times_skipped: 0,
            requested: entry.asks.clone(),
        };
        Self::entries(queue).map(of).collect()
    }

    fn entries(queue: &Queue) -> impl Iterator<Item = (u8, &Entry)> {
        (0..).zip(&queue.entries).filter_map(|(object, entry)| Some((object, entry.as_ref()?)))
    }

    /// What the keeper would grant now.
    fn admits(&self, world: &World, op: usize) -> Vec<(u8, Indices)> {
        let memory = &world.operators[op].memory;
        if self.scene.kueue {
            let given = |(object, entry): (u8, &Entry)| {
                let found = entry.found();
                if !found.is_empty() {
                    return (object, found);
                }
                let admitted = world.workloads[usize::from(object)] == Workload::Admitted;
                let room = if admitted { self.queues[0] as usize } else { 0 };
                (object, entry.asks.take(room.saturating_sub(entry.in_use().len())))
            };
            return Self::entries(&memory.queue).map(given).filter(|(_, indices)| !indices.is_empty()).collect();
        }
        let is_there = self.sight(world, op) == Sight::There;
        let Some(jobs) = self.scene.room.filter(|_| is_there && memory.queue_begun()) else { return Vec::new() };
        let terms = QueuePolicy {
            order: AdmissionOrder::StrictFifo,
            stopped: false,
            quota: QuotaLimits::of(&[(Resource::Jobs, jobs)]),
            per_namespace: QuotaLimits::default(),
        };
        let claims = Self::claims(&memory.queue);
        let grants = admit(&terms, &claims).grants.into_iter();
        let grants = grants.map(|(place, indices)| (crate::world::number(&claims[place].uid), indices));
        let found = Self::entries(&memory.queue).map(|(object, entry)| (object, entry.found()));
        found.filter(|(_, found)| !found.is_empty()).chain(grants).collect()
    }

    /// Where the queue cannot go, it is known to be there.
    pub fn sight(&self, world: &World, op: usize) -> Sight {
        let goes = self.scene.kinds.contains(&Trouble::QueueGoes);
        if goes { world.operators[op].memory.queue.sight } else { Sight::There }
    }

    pub fn truth(world: &World) -> Sight {
        if world.queue_is_gone { Sight::Gone } else { Sight::There }
    }

    pub fn see_queue(world: &mut World, op: usize) {
        let seen = Queue { sight: Self::truth(world), ..Queue::clone(&world.operators[op].memory.queue) };
        world.operators[op].memory.queue = seen.into();
    }

    /// As `queue::line` has it: what was in the queue is out of it while that is gone, and what is not known to be in none waits.
    pub fn queue_of(&self, world: &World, op: usize, record: &Record, drained: bool) -> Option<QueueFacts> {
        self.scene.room?;
        let there = QueueFacts { queue: "q".to_owned(), drained, ..QueueFacts::default() };
        let was_in = record.row.as_ref().is_some_and(|known| known.last_queue.is_some());
        match self.sight(world, op) {
            Sight::There => Some(there),
            Sight::NotYet if self.broken.takes_unknown_for_none => None,
            Sight::NotYet => Some(QueueFacts { closed: true, ..there }),
            Sight::Gone if !was_in => None,
            Sight::Gone => {
                let waits = QueueWait { reason: Reason::Misconfigured, message: String::new(), position: None };
                Some(QueueFacts { closed: true, wait: Some(waits), ..there })
            }
        }
    }

    /// Notes whether an object that is recorded now is in the queue.
    pub fn note_line(&self, world: &mut World, op: usize, object: u8) {
        let line = match self.sight(world, op) {
            Sight::There => true,
            Sight::Gone => false,
            Sight::NotYet => return,
        };
        let place = usize::from(object);
        if world.seen.lines[place].is_none() {
            world.seen.lines[place] = Some(line);
        }
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

    /// As `queue::kueue::plan` has it: what is not admitted any more is held, and what is held stays so.
    pub fn is_drained(&self, world: &World, op: usize, object: u8, record: &Record) -> bool {
        let place = usize::from(object);
        let entry = world.operators[op].memory.queue.entries[place].as_ref();
        let has = entry.is_some_and(|entry| !entry.in_use().is_empty());
        let holds = record.jobs.values().any(|job| matches!(&job.state, JobState::Held(hold) if hold.is_ours()));
        self.scene.kueue && world.workloads[place] != Workload::Admitted && (has || holds)
    }

    /// Without the rule, what a job reports of its end frees its room.
    pub fn heard(&self, room: QuotaUsage, record: &Record) -> QuotaUsage {
        if !self.broken.frees_by_report {
            return room;
        }
        let over = |job: &Job| record.reports.get(&job.id).is_some_and(|report| report.ended.is_some());
        let over: Indices = record.jobs.iter().filter(|(_, job)| over(job)).map(|(index, _)| *index).collect();
        let freed = record.granted.iter().filter(|index| over.contains(*index)).collect();
        QuotaUsage { used: room.used.without(&over), returned: Indices::union(&[room.returned, freed]), ..room }
    }

    /// What Kueue could admit now.
    pub fn admissible(&self, world: &World) -> Vec<u8> {
        let all = || (0..).zip(&world.workloads).filter(|(object, _)| world.object(*object).is_some());
        let has_quota = |workload: &Workload| matches!(workload, Workload::Admitted | Workload::Evicted);
        let used: u32 = all().filter(|(_, workload)| has_quota(workload)).map(|_| self.queues[0]).sum();
        let quota = self.scene.room.filter(|_| self.scene.kueue).unwrap_or_default();
        if u64::from(used + self.queues[0]) > quota {
            return Vec::new();
        }
        all().filter(|(_, workload)| **workload == Workload::Waiting).map(|(object, _)| object).collect()
    }

    /// What Kueue has admitted.
    pub fn admitted(world: &World) -> Vec<u8> {
        let all = (0..).zip(&world.workloads);
        all.filter(|(_, workload)| **workload == Workload::Admitted).map(|(object, _)| object).collect()
    }

    /// Whose quota the operator would give back now: nothing of it is in use, as far as it knows.
    pub fn given_back(&self, world: &World, op: usize) -> Vec<u8> {
        let queue = &world.operators[op].memory.queue;
        let is_due = |object: &u8| {
            let place = usize::from(*object);
            let entry = queue.entries[place].as_ref().filter(|_| queue.looked[place]);
            let free = entry.is_some_and(|entry| entry.in_use().is_empty());
            match world.workloads[place] {
                Workload::Admitted => free && Self::is_completed(world, op, *object),
                Workload::Evicted => free || self.broken.gives_back_at_once,
                Workload::Waiting | Workload::Finished => false,
            }
        };
        (0..u8::try_from(world.objects.len()).unwrap()).filter(is_due).collect()
    }

    pub fn give_back(world: &mut World, op: usize, object: u8) {
        let completed = Self::is_completed(world, op, object);
        let now = if completed { Workload::Finished } else { Workload::Waiting };
        world.workloads[usize::from(object)] = now;
    }

    fn is_completed(world: &World, op: usize, object: u8) -> bool {
        let rows = &world.operators[op].ledger.rows[usize::from(object)];
        rows.known.as_ref().is_some_and(|known| known.phase == Phase::Completed)
    }

    /// HTCondor has no more jobs than there is room for, without those that are held until they have room again, and those of objects
    /// that were recorded when there was no queue.
    pub fn keeps_to_room(&self, world: &World) -> bool {
        let Some(room) = self.scene.room else { return true };
        let open = world.queued().filter(|job| {
            let held = job.ad.status == JobStatus::Held && job.ad.hold.awaits_quota();
            let free = world.seen.lines[usize::from(job.object)] == Some(false);
            let over = matches!(job.ad.status, JobStatus::Completed | JobStatus::Removed);
            !over && !held && !free && !job.overdue && !job.late()
        });
        open.count() as u64 <= room
    }
}
