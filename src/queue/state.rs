//! What every `HTCJob` has of its queue, and what it asks for, between two passes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use super::amounts::{Amounts, Resource, ResourceSet};
use super::kueue::Kueue;
use super::line::{Asks, Line, World};
use super::progress::Progress;
use super::terms::Demand;
use crate::api::{FINALIZER, HTCJobSpec, MAX_QUEUE, ObjectName, Observed, PRIORITY_CLASS, QUEUE_NAME, Reason};
use crate::ledger::Grant;
use crate::machine::facts::{QueueWait, Queued, Record};
use crate::machine::room::Room;
use crate::machine::{Indices, Uid};
use crate::metrics::Metrics;

/// Who decides when jobs may be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Queueing {
    /// Nobody: there are no queues, and an HTCJob that names one waits.
    None,
    /// This operator, by HTCQueues.
    Embedded,
    /// Kueue, by Workloads that this operator makes.
    Kueue,
}

/// All queues, and all `HTCJob`s that may be in one.
#[derive(Debug)]
pub struct Queues {
    pub(super) mode: Queueing,
    pub(super) state: Mutex<State>,
    /// For who gives room.
    pub(super) news: Notify,
    /// For who writes Workloads.
    pub(super) writes: Notify,
    pub(super) metrics: Metrics,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) world: World,
    pub(super) kueue: Kueue,
    pub(super) htcjobs: HashMap<Uid, Entry>,
    /// Those of the first list that were not looked at yet; none while it is not known. Nothing new is granted before.
    pub(super) first: Option<HashSet<Uid>>,
    /// Those that were looked at before the first list was complete.
    looked_at: HashSet<Uid>,
    /// Of the last grant.
    pub(super) number: u64,
    /// When places were told last.
    pub(super) placed: Option<Instant>,
}

/// One `HTCJob`.
#[allow(clippy::struct_excessive_bools, reason = "each stands for itself")]
#[derive(Debug)]
pub(super) struct Entry {
    /// None as long as only the ledger knows it.
    pub(super) reference: Option<ObjectRef<Observed>>,
    pub(super) namespace: Arc<str>,
    /// Its label.
    pub(super) label: Option<String>,
    /// Its label for the priority.
    pub(super) class: Option<String>,
    /// When it was made, in seconds.
    pub(super) created: i64,
    /// The queue that gave it room before.
    pub(super) bound: Option<String>,
    /// The queue that it was in last, as the ledger has it.
    pub(super) seen_in: Option<String>,
    pub(super) demand: Demand,
    /// What the ledger has: it is changed here only once that is durable.
    pub(super) granted: Indices,
    pub(super) uses: Indices,
    /// What is in `uses` is not known: it is all that could be.
    pub(super) unknown: bool,
    /// What it uses and was not granted is granted afterwards.
    pub(super) keeps: bool,
    pub(super) asks: Indices,
    /// It has completed: nothing that queues do is news to it.
    pub(super) over: bool,
    /// The number of its last grant.
    pub(super) last: u64,
    /// How often in a row others got room, and it none.
    pub(super) passed: u32,
    /// Since when room is kept for it.
    pub(super) waited_for: Option<Instant>,
    /// Why it waits, as it is told.
    pub(super) wait: Option<QueueWait>,
    /// What its last pass went by.
    pub(super) shown: Option<(Line, Option<QueueWait>)>,
    /// What it was woken for since.
    pub(super) woken_for: Option<(Line, Option<QueueWait>)>,
    /// Since when it asks for something.
    pub(super) since: Option<Instant>,
    /// This operator holds jobs of it.
    pub(super) holds: bool,
    /// How far it is; none before its first decision.
    pub(super) progress: Option<Progress>,
}

/// Who asks for its queue.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// Its uid.
    pub uid: &'a Uid,
    /// Its namespace.
    pub namespace: &'a str,
    /// As the watch shows it.
    pub object: &'a Observed,
    /// The queue that gave it room before.
    pub bound: Option<&'a str>,
    /// The queue that it was in last.
    pub seen_in: Option<&'a str>,
    /// This operator holds jobs of it.
    pub holds: bool,
}

impl Entry {
    /// One that uses nothing, asks for nothing and is in no queue, as far as is known.
    fn new(namespace: &str) -> Self {
        Self {
            reference: None,
            namespace: namespace.into(),
            label: None,
            class: None,
            created: 0,
            bound: None,
            seen_in: None,
            demand: Demand::one(),
            granted: Indices::default(),
            uses: Indices::default(),
            unknown: false,
            keeps: true,
            asks: Indices::default(),
            over: false,
            last: 0,
            passed: 0,
            waited_for: None,
            wait: None,
            shown: None,
            woken_for: None,
            since: None,
            holds: false,
            progress: None,
        }
    }

    /// One of which nothing but the object is known.
    fn unknown(object: &Observed) -> Self {
        let spec = object.0.as_ref().ok().map(|job| &job.spec);
        let jobs = spec.and_then(HTCJobSpec::jobs).unwrap_or(MAX_QUEUE);
        let resources = spec.and_then(|spec| spec.resources.as_ref());
        Self {
            reference: Some(ObjectRef::from_obj(object)),
            label: object.labels().get(QUEUE_NAME).cloned(),
            demand: resources.map_or_else(Demand::one, Demand::of_resources),
            uses: Indices::first(u32::try_from(jobs).unwrap_or_default()),
            unknown: true,
            ..Self::new(&object.namespace().unwrap_or_default())
        }
    }

    /// Its pass goes by this: whatever it was woken for before, it is woken for again.
    pub(super) fn goes_by(&mut self, line: Line, wait: Option<QueueWait>) {
        (self.shown, self.woken_for) = (Some((line, wait)), None);
    }

    /// Whose Workload would be its own.
    pub(super) fn owner(&self, uid: &Uid) -> (Arc<str>, Uid) {
        (Arc::clone(&self.namespace), uid.clone())
    }

    fn asks(&self) -> Asks<'_> {
        Asks {
            namespace: &self.namespace,
            label: self.label.as_deref(),
            bound: self.bound.as_deref(),
            seen_in: self.seen_in.as_deref(),
        }
    }

    pub(super) fn line(&self, world: &World) -> Line {
        world.line(self.asks())
    }

    /// All that counts in the queue.
    pub(super) fn in_use(&self) -> Indices {
        Indices::union(&[self.granted.clone(), self.uses.clone()])
    }

    /// It has something of it, as far as is known.
    pub(super) fn has_some(&self) -> bool {
        !self.granted.is_empty() || !(self.unknown || self.uses.is_empty())
    }

    /// What of that it was not granted, and goes on whatever the queue says.
    pub(super) fn found(&self) -> Indices {
        // Nearly always there is nothing, and a set of 100,000 is not looked through for that.
        let nothing = self.unknown || !self.keeps || self.in_use().len() == self.granted.len();
        if nothing { Indices::default() } else { self.uses.without(&self.granted) }
    }
}

/// What its last decision has made of an `HTCJob`.
#[derive(Debug)]
pub struct Decided<'a> {
    /// As the watch shows it.
    pub object: &'a Observed,
    /// Its uid.
    pub uid: &'a Uid,
    /// Its name.
    pub name: &'a ObjectName,
    /// The queue that gave it room before, as the ledger had it before the decision.
    pub bound: Option<&'a str>,
    /// The queue that it was in last, after the decision.
    pub seen_in: Option<&'a str>,
    /// What it had there.
    pub granted: &'a Indices,
    /// What one of its jobs uses; none if the spec cannot be read: then it is as it was.
    pub demand: Option<Demand>,
    /// What it has and asks for after the decision, which is durable.
    pub room: &'a Room,
    /// It has completed by then.
    pub over: bool,
    /// How far it is then.
    pub progress: Option<Progress>,
}

impl Queues {
    /// `known`: what the ledger has of objects that were not let go, and what they were granted.
    #[must_use]
    pub fn new(mode: Queueing, metrics: Metrics, known: Vec<(String, Uid, Record)>, grants: &[Grant]) -> Self {
        Self::with_kueue(mode, &[], metrics, known, grants)
    }

    /// The same; `resources` are requested of Kueue.
    #[must_use]
    pub fn with_kueue(
        mode: Queueing,
        resources: &[Resource],
        metrics: Metrics,
        known: Vec<(String, Uid, Record)>,
        grants: &[Grant],
    ) -> Self {
        let grants: HashMap<&Uid, &Grant> = grants.iter().map(|grant| (&grant.uid, grant)).collect();
        let number = grants.values().map(|grant| grant.number).max().unwrap_or_default();
        let htcjobs = known.into_iter().map(|(namespace, uid, record)| {
            let grant = grants.get(&uid);
            let each = grant.and_then(|grant| Amounts::of_kept(&grant.each));
            let demand = each.map(|each| Demand { each, unknown: ResourceSet::default() });
            let entry = Entry {
                demand: demand.unwrap_or_else(Demand::one),
                bound: record.queue.clone(),
                seen_in: record.known.as_ref().and_then(|known| known.queue.clone()),
                uses: record.in_use(),
                granted: record.granted,
                last: grant.map(|grant| grant.number).unwrap_or_default(),
                ..Entry::new(&namespace)
            };
            (uid, entry)
        });
        let kueue = Kueue { resources: resources.to_vec(), ..Kueue::default() };
        let state = State { htcjobs: htcjobs.collect(), number, kueue, ..State::default() };
        Self { mode, state: Mutex::new(state), news: Notify::new(), writes: Notify::new(), metrics }
    }

    pub(super) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there are queues, of this operator or of Kueue.
    #[must_use]
    pub const fn give_room(&self) -> bool {
        match self.mode {
            Queueing::None => false,
            Queueing::Embedded | Queueing::Kueue => true,
        }
    }

    /// The queue that the object is in, as far as a decision needs to know; none if it needs room in none.
    pub fn fact(&self, asker: &Asker<'_>) -> Option<Queued> {
        let Asker { uid, namespace, object, bound, seen_in, .. } = *asker;
        let label = object.labels().get(QUEUE_NAME).map(String::as_str);
        if self.mode == Queueing::Kueue {
            return self.kueue_fact(asker, label);
        }
        if !self.give_room() {
            return label.map(|queue| Queued {
                queue: queue.to_owned(),
                waits: Some(QueueWait { reason: Reason::Misconfigured, message: no_queues(queue), place: None }),
                closed: true,
                ..Queued::default()
            });
        }
        self.with(|state| {
            let line = state.world.line(Asks { namespace, label, bound, seen_in });
            let entry = state.htcjobs.get_mut(uid);
            let wait = entry.as_ref().and_then(|entry| entry.wait.clone());
            if let Some(entry) = entry {
                entry.goes_by(line.clone(), wait.clone());
            }
            match line {
                Line::Free(_) => None,
                Line::In { queue, drained } => Some(Queued { queue, waits: wait, drained, ..Queued::default() }),
                Line::Out { queue, wait } => {
                    Some(Queued { queue, waits: Some(wait), closed: true, ..Queued::default() })
                }
                Line::NotYet { queue, wait } => Some(Queued { queue, waits: wait, closed: true, ..Queued::default() }),
            }
        })
    }

    /// What was decided is durable: it counts from now on.
    pub fn decided(&self, decided: &Decided<'_>) {
        if !self.give_room() {
            return;
        }
        let Decided { object, uid, name, bound, seen_in, granted, demand, room, over, progress } = decided;
        let changed = self.with(|state| {
            let label = |key: &str| object.labels().get(key).cloned();
            let created = object.creation_timestamp().map_or(0, |time| time.0.as_second());
            // What came to nothing is in line behind those who asked before.
            let created = room.failed_at.map_or(created, |failed| created.max(failed.0.div_euclid(1000)));
            let entry = state.htcjobs.entry((*uid).clone()).or_insert_with(|| Entry {
                created,
                bound: bound.map(str::to_owned),
                demand: demand.unwrap_or_else(Demand::one),
                granted: (*granted).clone(),
                ..Entry::new(&name.namespace)
            });
            entry.seen_in = seen_in.map(str::to_owned);
            let (label, class) = (label(QUEUE_NAME), label(PRIORITY_CLASS));
            let demand = demand.unwrap_or(entry.demand);
            let granted = if room.gives_back.is_empty() {
                entry.granted.clone()
            } else {
                entry.granted.without(&room.gives_back)
            };
            // What was granted since the facts were gathered is not asked for any more.
            let asks = room.asks.without(&granted);
            let before = (&entry.label, &entry.class, &entry.granted, &entry.uses, &entry.asks, entry.demand);
            let changed = entry.reference.is_none()
                || before != (&label, &class, &granted, &room.uses, &asks, demand)
                || (entry.unknown, entry.keeps) != (room.unknown, room.keeps_what_it_uses)
                || entry.created != created
                || entry.progress != *progress;
            if !changed {
                return false;
            }
            entry.reference = Some(ObjectRef::from_obj(object));
            (entry.created, entry.label, entry.class, entry.demand) = (created, label, class, demand);
            (entry.granted, entry.uses) = (granted, room.uses.clone());
            (entry.unknown, entry.keeps) = (room.unknown, room.keeps_what_it_uses);
            entry.since = if asks.is_empty() { None } else { entry.since.or_else(|| Some(Instant::now())) };
            if asks.is_empty() {
                (entry.wait, entry.passed, entry.waited_for) = (None, 0, None);
            }
            (entry.asks, entry.over, entry.progress) = (asks, *over, progress.clone());
            true
        });
        if changed {
            self.tell_news();
        }
    }

    pub(super) fn tell_news(&self) {
        self.news.notify_one();
        self.writes.notify_one();
    }

    /// All `HTCJob`s that are there at the start are these.
    pub fn listed(&self, uids: &HashSet<Uid>) {
        if !self.give_room() {
            return;
        }
        self.with(|state| {
            state.htcjobs.retain(|uid, _| uids.contains(uid));
            state.kueue.others.retain(|uid| uids.contains(uid));
            if state.first.is_none() {
                let looked_at = std::mem::take(&mut state.looked_at);
                state.first = Some(uids.difference(&looked_at).cloned().collect());
            }
        });
        self.tell_news();
    }

    /// An object was looked at. One that could not be (`failed`) is taken to have all that it may have; of the others it is known by
    /// now what they have, and one that was let go meanwhile has nothing.
    pub fn looked_at(&self, object: &Observed, failed: bool) {
        let Some(uid) = object.uid().filter(|_| self.give_room()) else { return };
        let uid = Uid::from(uid.as_str());
        let done = self.with(|state| {
            if failed && object.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
                state.htcjobs.entry(uid.clone()).or_insert_with(|| Entry::unknown(object));
            }
            match &mut state.first {
                None => {
                    state.looked_at.insert(uid.clone());
                    false
                }
                Some(first) => first.remove(&uid) && first.is_empty(),
            }
        });
        if done {
            self.tell_news();
        }
    }

    /// An object is another operator's, or is said to be: it gets nothing more. It has what the ledger knows of it, until it is gone.
    pub fn left_alone(&self, object: &Observed) {
        let Some(uid) = object.uid().filter(|_| self.give_room()) else { return };
        let uid = Uid::from(uid.as_str());
        self.with(|state| match state.htcjobs.get_mut(&uid) {
            Some(entry) => (entry.asks, entry.wait) = (Indices::default(), None),
            None if self.mode == Queueing::Kueue => drop(state.kueue.others.insert(uid)),
            None => {}
        });
        self.looked_at(object, false);
    }

    /// An object is gone, and its room with it. If it was the last that had to be looked at, others may get room now.
    pub fn forget(&self, uid: &Uid) {
        let news = self.with(|state| {
            let was_last = state.first.as_mut().is_some_and(|first| first.remove(uid) && first.is_empty());
            state.kueue.troubles.remove(uid);
            let another = state.kueue.others.remove(uid);
            state.htcjobs.remove(uid).is_some() || another || was_last
        });
        if news {
            self.tell_news();
        }
    }

    /// These were granted, and that is durable; `refused` were not, as nobody has them any more. Gives those that are to look again.
    pub(super) fn granted(&self, grants: &[Grant], refused: &[Grant]) -> Vec<ObjectRef<Observed>> {
        let (mut woken, mut took) = (Vec::new(), Vec::new());
        let jobs: usize = grants.iter().map(|grant| grant.indices.len()).sum();
        self.with(|state| {
            for grant in grants {
                let Some(entry) = state.htcjobs.get_mut(&grant.uid) else { continue };
                took.extend(entry.since.map(|since| since.elapsed()));
                entry.since = (!entry.asks.is_empty()).then(Instant::now);
                woken.extend(entry.reference.clone());
            }
            for grant in refused {
                if let Some(entry) = state.htcjobs.get_mut(&grant.uid) {
                    entry.granted = entry.granted.without(&grant.indices);
                }
            }
        });
        self.metrics.granted(jobs, &took);
        woken
    }
}

/// Places are told again after this time.
pub(super) const PLACES: Duration = Duration::from_secs(5);

fn no_queues(queue: &str) -> String {
    format!(
        "the label {QUEUE_NAME} names the HTCQueue {queue:?}, and this operator works without queues (--queueing=none): ask its administrator, or remove the label"
    )
}
