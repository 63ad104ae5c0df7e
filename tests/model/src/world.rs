//! One state of the world: the API server, the operators with their ledgers and memories, HTCondor, and what a bystander has
//! seen so far.
//!
//! Time is symbolic. A moment is a rank: after each step all moments that still occur are numbered anew, so that two worlds
//! that differ only in how long things took are one. Limits that lie ahead are numbered from [`FAR`] in the order in which
//! they will pass; when one passes, it becomes that moment everywhere.

use std::collections::{BTreeMap, BTreeSet};

use htc_machine::actions::{RequestedAction, RequestedActions};
use htc_machine::decide::Polling;
use htc_machine::facts::{
    Answer, Evidence, HistoryReach, InFlight, Job, LastRequest, ObjectRow, Published, Submission, Witness,
};
use htc_machine::judge::REMOVED_BY_US;
use htc_machine::worker::WorkerStep;
use htc_machine::{Birthdate, Index, Indices, Request, RequestKind, ScheddName, Timestamp, Uid};

use crate::condor::{Elsewhere, Schedd, Submitter};
use crate::reports::{Event, Sent, Stored};
use crate::shared::{Moments, Shared};

/// Limits that lie ahead are numbered from here.
pub const FAR: i64 = 1_000_000;

/// A world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub objects: Vec<Slot>,
    pub operators: Vec<Operator>,
    pub schedd: Shared<Schedd>,
    pub submitters: Vec<Submitter>,
    /// Another schedd, if the operator ever was started with another name.
    pub elsewhere: Option<Elsewhere>,
    /// Of two pools, `schedd` and the operator's memory are those of the second one. Only while a step is made there.
    pub there: bool,
    /// What jobs have reported, whether or not it came to anybody's ears.
    pub sent: BTreeSet<Sent>,
    /// An old copy of the first operator's ledger.
    pub copy: Option<Ledger>,
    /// An old copy of etcd's data.
    pub backup: Option<Vec<Slot>>,
    /// How many more troubles may happen.
    pub troubles: u8,
    /// Which contents the ConfigMap of each object's items has: the first, or another one.
    pub config_maps: Vec<u8>,
    /// What Kueue says of each object.
    pub workloads: Vec<crate::queue::Workload>,
    /// The pause of each object after a submission that was refused is not over.
    pub pausing: Vec<bool>,
    pub queue_is_gone: bool,
    pub seen: Shared<Seen>,
    pub broken: Option<Broken>,
    pub clock: i64,
    /// How many limits lay ahead after the last step.
    pub limits: usize,
    pub next_ledger: u8,
}

/// One `HTCJob` on the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    NotYet,
    There(Shared<HtcJob>),
    Gone,
}

/// What the API server has of an `HTCJob`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HtcJob {
    pub deleting: bool,
    pub finalizer: bool,
    /// The ledger that claimed it.
    pub claim: Option<u8>,
    pub suspend: bool,
    /// `spec.parallelism`, if a user has changed it.
    pub parallelism: Option<u32>,
    /// The most that it was changed to.
    pub widest: u32,
    /// Its deadline has passed.
    pub deadline: bool,
    pub published: Published,
}

/// One operator process with its ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operator {
    pub ledger: Ledger,
    pub awake: bool,
    /// Whether its fence holds.
    pub leads: bool,
    pub memory: Shared<Memory>,
}

/// A ledger: what `ledger::store` writes and `ledger::load` reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub id: u8,
    pub rows: Vec<Shared<Rows>>,
}

/// The rows of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rows {
    pub known: Option<ObjectRow>,
    pub submissions: Vec<(Submission, Witness, Fate)>,
    pub requests: BTreeMap<RequestKind, LastRequest>,
    pub jobs: BTreeMap<Index, Job>,
    /// `htcjobs.schedd`
    pub schedds: BTreeMap<Index, ScheddName>,
    pub reports: BTreeMap<Event, Stored>,
    pub wishes: RequestedActions,
    /// `grants.indices`
    pub granted: Indices,
    /// `items`: which contents of the ConfigMap.
    pub items: Option<u8>,
}

/// `submissions.state`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Open,
    Superseded,
    Settled,
    NotRun,
}

/// What a crash takes away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// The watch's view of the objects.
    pub cache: Vec<Option<Shared<HtcJob>>>,
    /// The watch lags behind.
    pub stalled: bool,
    pub registry: Vec<Option<InFlight>>,
    pub lanes: BTreeMap<Lane, Vec<Request>>,
    pub batches: BTreeMap<Lane, Batch>,
    pub watched: Vec<Option<Shared<Watched>>>,
    /// The birthdate that the latest answers had, and since when.
    pub birthdate: Option<(Birthdate, Timestamp)>,
    /// A look whose question about the queue is answered and whose history is still to be asked.
    pub look: Option<PendingLook>,
    /// A reconcile that has gathered the first half of its facts.
    pub reading: Option<Reading>,
    /// When the wait for an earlier operator's submitter is over.
    pub strangers: Vec<Option<Timestamp>>,
    /// What the keeper of queues knows.
    pub queue: Shared<crate::queue::Queue>,
}

/// The workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    Submit,
    Remove,
    Hold,
    Fetch,
    Tidy,
}

/// A batch under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    pub requests: Vec<Request>,
    pub step: WorkerStep,
    pub submitter_deadline: Timestamp,
    /// Whether the fence was found to hold since the intents were durable.
    pub checked: bool,
    /// What `submitter_deadline - now` came to when it was computed: whether anything is left.
    pub time_left: Option<bool>,
    pub submitter: Option<u8>,
    pub ended: Option<Ended>,
    /// A transfer, or taking in what it has brought, does not end by itself.
    pub hangs: bool,
    /// It was told to stop.
    pub stop: bool,
}

/// How a tool ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    pub well: bool,
    pub at: Timestamp,
    /// Of a fetch: whose output has come.
    pub fetched: BTreeSet<(u8, Index)>,
}

/// An entry of the tracker's watch list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watched {
    pub look: Polling,
    pub evidence: Evidence,
}

impl Watched {
    /// Whether history is wanted after the answer of the queue that is there.
    pub fn is_due(&self) -> bool {
        let wanted = matches!(self.look, Polling::Always { history: Some(_), .. });
        let asked = matches!((&self.evidence.queue, &self.evidence.history),
            (Answer::Known(queue), Answer::Known(history)) if history.asked_at > queue.asked_at);
        wanted && !asked && matches!(self.evidence.queue, Answer::Known(_))
    }
}

/// The first half of a look.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PendingLook {
    pub asked_at: Timestamp,
    pub birthdate: Birthdate,
    pub ads: Vec<std::sync::Arc<Vec<htc_machine::facts::Ad>>>,
    pub wanted: BTreeMap<u8, HistoryReach>,
}

/// The first half of a reconcile's facts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    pub object: u8,
    pub view: Shared<HtcJob>,
    pub in_flight: Option<InFlight>,
    pub evidence: Evidence,
    /// Read too early, by a broken variant.
    pub rows: Option<Shared<Rows>>,
}

/// What a bystander has seen, of each object and index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// How many jobs have run the payload.
    pub ran: Vec<Vec<u8>>,
    /// Something else than the operator made an end of a job of this index.
    pub excused: Vec<Vec<bool>>,
    /// The output lies in its folder.
    pub output: Vec<Vec<bool>>,
    /// With which items its jobs were submitted, of each object.
    pub items: Vec<Option<u8>>,
    /// Whether the queue was there when it was recorded, of each object.
    pub lines: Vec<Option<bool>>,
}

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    RanTwice,
    LeftBehind,
    PhaseWentBack,
    IdChanged,
    ToolBehindFence,
    Forgotten,
    CountedTooMuch,
    CompletedByHearsay,
    HtcondorOverruled,
    RefutedWrongly,
    SubmittedDeleted,
    SubmittedUnwanted,
    OtherItems,
    TooManyAtATime,
}

pub fn uid(object: u8) -> Uid {
    Uid::from(name(object))
}

/// The name of an object.
pub fn name(object: u8) -> &'static str {
    ["a", "b", "c"][usize::from(object)]
}

/// The number of an object.
pub fn number(uid: &Uid) -> u8 {
    uid.as_str().bytes().next().map_or(0, |byte| byte - b'a')
}

impl Memory {
    pub fn new(objects: usize) -> Self {
        Self {
            queue: crate::queue::Queue::start(&vec![Shared::default(); objects]).into(),
            cache: vec![None; objects],
            registry: vec![None; objects],
            watched: vec![None; objects],
            strangers: vec![None; objects],
            ..Self::default()
        }
    }
}

impl Ledger {
    pub fn new(id: u8, objects: usize) -> Self {
        Self { id, rows: vec![Shared::default(); objects] }
    }
}

impl World {
    /// The next moment.
    pub fn tick(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp(self.clock)
    }

    /// A limit that lies ahead, behind all others.
    pub fn limit(&mut self) -> Timestamp {
        let mut last = FAR;
        self.times(&mut |time| last = last.max(*time));
        Timestamp(last + 1)
    }

    pub fn object(&self, object: u8) -> Option<&HtcJob> {
        match &self.objects[usize::from(object)] {
            Slot::There(job) => Some(job),
            Slot::NotYet | Slot::Gone => None,
        }
    }

    pub fn object_mut(&mut self, object: u8) -> Option<&mut HtcJob> {
        match &mut self.objects[usize::from(object)] {
            Slot::There(job) => Some(job),
            Slot::NotYet | Slot::Gone => None,
        }
    }

    pub fn breaks(&mut self, promise: Broken) {
        self.broken.get_or_insert(promise);
    }

    /// Lets the watches see what there is.
    fn watch_objects(&mut self) {
        let objects: Vec<Option<Shared<HtcJob>>> = (0..)
            .zip(&self.objects)
            .map(|(object, slot)| match slot {
                Slot::There(job) if self.is_here(object) => Some(job.clone()),
                Slot::There(_) | Slot::NotYet | Slot::Gone => None,
            })
            .collect();
        for operator in &mut self.operators {
            if operator.awake && !operator.memory.stalled && operator.memory.cache != objects {
                operator.memory.cache.clone_from(&objects);
            }
            for object in 0..objects.len() {
                let memory = &operator.memory;
                if memory.cache[object].is_none() && (memory.watched[object].is_some() || memory.queue.knows(object)) {
                    operator.memory.watched[object] = None;
                    operator.memory.queue.forget(object);
                }
            }
        }
    }

    /// Numbers all moments anew, and lets the watches see what there is.
    pub fn settle(&mut self) {
        self.in_each_pool(Self::watch_objects);
        let mut moments = Vec::with_capacity(32);
        self.times(&mut |time| moments.push(*time));
        moments.sort_unstable();
        moments.dedup();
        let near = moments.partition_point(|time| *time < FAR);
        let rank = |time: i64| {
            let place = moments.partition_point(|other| *other < time);
            let rank = if place < near { place + 1 } else { place - near + 1 };
            i64::try_from(rank).unwrap() + if place < near { 0 } else { FAR }
        };
        self.times(&mut |time| *time = rank(*time));
        self.clock = i64::try_from(near).unwrap();
        self.limits = moments.len() - near;
    }

    /// The earliest limit that lies ahead, between two steps.
    pub fn next_limit(&self) -> Option<Timestamp> {
        (self.limits > 0).then_some(Timestamp(FAR + 1))
    }

    /// The earliest limit that lies ahead, in the middle of a step.
    pub fn first_limit(&mut self) -> Option<Timestamp> {
        let mut first = None;
        self.times(&mut |time| {
            if *time >= FAR && first.is_none_or(|first| *time < first) {
                first = Some(*time);
            }
        });
        first.map(Timestamp)
    }

    /// Calls `work` for all moments that matter; 0 is none.
    pub fn times(&mut self, work: &mut dyn FnMut(&mut i64)) {
        let mut each = |time: &mut Timestamp| {
            if time.0 != 0 {
                work(&mut time.0);
            }
        };
        for operator in &mut self.operators {
            operator.ledger.times(&mut each);
            operator.memory.times(&mut each);
        }
        if let Some(copy) = &mut self.copy {
            copy.times(&mut each);
        }
        if let Some(pool) = self.other_pool_mut() {
            pool.memory.times(&mut each);
        }
        let elsewhere = self.elsewhere.iter_mut().map(|other| (&mut other.schedd, &mut other.submitters));
        for (schedd, submitters) in elsewhere.chain([(&mut self.schedd, &mut self.submitters)]) {
            for submitter in submitters {
                each(&mut submitter.limit);
            }
            schedd.times(&mut each);
        }
    }
}

impl Moments for Schedd {
    fn times(&mut self, each: &mut dyn FnMut(&mut Timestamp)) {
        self.queue.iter_mut().for_each(|job| each(&mut job.limit));
    }
}

impl Moments for Ledger {
    fn times(&mut self, each: &mut dyn FnMut(&mut Timestamp)) {
        self.rows.iter_mut().for_each(|rows| rows.times(each));
    }
}

impl Moments for Rows {
    fn times(&mut self, each: &mut dyn FnMut(&mut Timestamp)) {
        if let Some(known) = &mut self.known {
            for condition in &mut known.conditions {
                each(&mut condition.since);
            }
        }
        for (submission, _, _) in &mut self.submissions {
            each(&mut submission.submitter_deadline);
            if let Some(dead) = &mut submission.dead_since {
                each(dead);
            }
        }
        for request in self.requests.values_mut() {
            each(&mut request.started);
            if let Some(finished) = &mut request.finished {
                each(finished);
            }
        }
        for job in self.jobs.values_mut() {
            each(&mut job.recorded);
        }
        for report in self.reports.values_mut() {
            each(&mut report.at);
        }
        for (_, wished) in self.wishes.iter_mut() {
            if let RequestedAction::Release { since, asked } = &mut wished.action {
                each(since);
                asked.iter_mut().for_each(&mut *each);
            }
        }
    }
}

impl Moments for Memory {
    fn times(&mut self, each: &mut dyn FnMut(&mut Timestamp)) {
        for batch in self.batches.values_mut() {
            each(&mut batch.submitter_deadline);
            if let Some(ended) = &mut batch.ended {
                each(&mut ended.at);
            }
        }
        for watched in self.watched.iter_mut().flatten() {
            watched.times(each);
        }
        if let Some((_, since)) = &mut self.birthdate {
            each(since);
        }
        if let Some(look) = &mut self.look {
            each(&mut look.asked_at);
        }
        if let Some(reading) = &mut self.reading {
            evidence_times(&mut reading.evidence, each);
        }
        for settles in self.strangers.iter_mut().flatten() {
            each(settles);
        }
    }
}

impl Moments for Watched {
    fn times(&mut self, each: &mut dyn FnMut(&mut Timestamp)) {
        evidence_times(&mut self.evidence, each);
    }
}

fn evidence_times(evidence: &mut Evidence, each: &mut dyn FnMut(&mut Timestamp)) {
    if let Answer::Known(queue) = &mut evidence.queue {
        each(&mut queue.asked_at);
        each(&mut queue.steady_since);
        if let Some(before) = &mut queue.before {
            each(&mut before.asked_at);
        }
    }
    if let Answer::Known(history) = &mut evidence.history {
        each(&mut history.asked_at);
    }
}

/// The reason that HTCondor keeps of a removal by this operator.
pub fn by_us() -> String {
    format!("{REMOVED_BY_US} (by user operator)")
}
