//! State of all queues between two passes: what every `HTCJob` has of its queue, and what it requests.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use htc_api::{
    FINALIZER, HTCJobSpec, MAX_QUEUE, ObjectName, ObservedHTCJob, PRIORITY_CLASS_LABEL, QUEUE_NAME_LABEL, Reason,
};
use htc_ledger::Grant;
use htc_machine::amounts::{Amounts, Resource, ResourceSet};
use htc_machine::facts::{QueueFacts, QueueWait, Record};
use htc_machine::progress::Progress;
use htc_machine::quota_usage::QuotaUsage;
use htc_machine::{Indices, Uid};
use htc_support::forget::Forget;
use htc_support::metrics::Metrics;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use super::kueue::Kueue;
use crate::htcqueue::assignment::{Assignment, QueueRequest, Snapshot};
use crate::htcqueue::policy::JobResources;

/// Queueing engine: decides when jobs may be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Queueing {
    /// No one: there are no queues, and an HTCJob that names one waits.
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
    pub(super) state: Mutex<QueuesState>,
    /// Wakes the controller that grants quota.
    pub(super) usage_changed: Notify,
    /// Wakes the controller that writes Workloads.
    pub(super) workloads_changed: Notify,
    pub(super) metrics: Metrics,
}

#[derive(Debug, Default)]
pub(super) struct QueuesState {
    pub(super) snapshot: Snapshot,
    pub(super) kueue: Kueue,
    pub(super) htcjobs: HashMap<Uid, WorkloadInfo>,
    /// `HTCJob`s of the first list that have not been reconciled yet; `None` until that list is known. Nothing new is
    /// granted before it is empty.
    pub(super) first: Option<HashSet<Uid>>,
    /// `HTCJob`s that were reconciled before the first list was complete.
    looked_at: HashSet<Uid>,
    /// Number of the last grant.
    pub(super) number: u64,
    /// When positions were last published.
    pub(super) placed: Option<Instant>,
}

/// Queueing state of one `HTCJob` (Kueue: `workload.Info`).
#[allow(clippy::struct_excessive_bools, reason = "each stands for itself")]
#[derive(Debug)]
pub(super) struct WorkloadInfo {
    /// `None` as long as only the ledger knows it.
    pub(super) reference: Option<ObjectRef<ObservedHTCJob>>,
    pub(super) namespace: Arc<str>,
    /// Label that names the queue.
    pub(super) queue_label: Option<String>,
    /// Label that names the priority.
    pub(super) priority_class: Option<String>,
    /// Creation time, in Unix seconds.
    pub(super) created: i64,
    /// Queue that granted it quota before.
    pub(super) granting_queue: Option<String>,
    /// Queue that it was in last, as recorded in the ledger.
    pub(super) last_queue: Option<String>,
    pub(super) resources: JobResources,
    /// Granted jobs, as recorded in the ledger. A release is applied here only once it is durable.
    pub(super) granted: Indices,
    pub(super) used: Indices,
    /// `used` is not known: it is all that could be.
    pub(super) usage_unknown: bool,
    /// Jobs that it uses without a grant are granted afterwards.
    pub(super) grandfathered: bool,
    pub(super) requested: Indices,
    /// Has completed: changes of queues do not wake it.
    pub(super) finished: bool,
    /// Number of its last grant.
    pub(super) last_grant: u64,
    /// Number of times in a row that others got quota and it got none.
    pub(super) times_skipped: u32,
    /// Since when quota is reserved for it.
    pub(super) reserved_since: Option<Instant>,
    /// Why it waits, as users see it.
    pub(super) wait: Option<QueueWait>,
    /// Assignment seen by its last reconcile.
    pub(super) last_observed: Option<(Assignment, Option<QueueWait>)>,
    /// Assignment that it was last woken for, since its last reconcile.
    pub(super) last_notified: Option<(Assignment, Option<QueueWait>)>,
    /// Since when it requests quota.
    pub(super) requested_since: Option<Instant>,
    /// This operator holds some of its jobs.
    pub(super) has_held_jobs: bool,
    /// Progress of its jobs; `None` before its first decision.
    pub(super) progress: Option<Progress>,
    /// Pod spec, as far as it matters for admission; `None` for jobs in HTCondor.
    pub(super) pod: Option<Value>,
}

/// Input of [`Queues::queue_facts`].
#[derive(Clone, Copy, Debug)]
pub struct QueueQuery<'a> {
    /// Uid of the `HTCJob`.
    pub uid: &'a Uid,
    /// Namespace of the `HTCJob`.
    pub namespace: &'a str,
    /// Object as the watch returned it.
    pub object: &'a ObservedHTCJob,
    /// Queue that granted it quota before.
    pub granting_queue: Option<&'a str>,
    /// Queue that it was in last.
    pub last_queue: Option<&'a str>,
    /// This operator holds some of its jobs.
    pub has_held_jobs: bool,
}

impl WorkloadInfo {
    /// Returns an `HTCJob` that uses nothing, requests nothing and is in no queue, as far as is known.
    fn new(namespace: &str) -> Self {
        Self {
            reference: None,
            namespace: namespace.into(),
            queue_label: None,
            priority_class: None,
            created: 0,
            granting_queue: None,
            last_queue: None,
            resources: JobResources::one(),
            granted: Indices::default(),
            used: Indices::default(),
            usage_unknown: false,
            grandfathered: true,
            requested: Indices::default(),
            finished: false,
            last_grant: 0,
            times_skipped: 0,
            reserved_since: None,
            wait: None,
            last_observed: None,
            last_notified: None,
            requested_since: None,
            has_held_jobs: false,
            progress: None,
            pod: None,
        }
    }

    /// Returns an `HTCJob` of which only the object is known. All of its jobs count as used.
    fn unknown(object: &ObservedHTCJob) -> Self {
        let spec = object.0.as_ref().ok().map(|job| &job.spec);
        let jobs = spec.and_then(HTCJobSpec::job_count).unwrap_or(MAX_QUEUE);
        let resources = spec.and_then(|spec| spec.resources.as_ref());
        Self {
            reference: Some(ObjectRef::from_obj(object)),
            queue_label: object.labels().get(QUEUE_NAME_LABEL).cloned(),
            resources: resources.map_or_else(JobResources::one, JobResources::of_resources),
            used: Indices::first(u32::try_from(jobs).unwrap_or_default()),
            usage_unknown: true,
            ..Self::new(&object.namespace().unwrap_or_default())
        }
    }

    /// Records the assignment seen by a reconcile. A later change wakes it again, also one it was woken for before.
    pub(super) fn set_observed(&mut self, line: Assignment, wait: Option<QueueWait>) {
        (self.last_observed, self.last_notified) = (Some((line, wait)), None);
    }

    /// Returns the key of its Workload.
    pub(super) fn owner(&self, uid: &Uid) -> (Arc<str>, Uid) {
        (Arc::clone(&self.namespace), uid.clone())
    }

    fn queue_request(&self) -> QueueRequest<'_> {
        QueueRequest {
            namespace: &self.namespace,
            label: self.queue_label.as_deref(),
            granting_queue: self.granting_queue.as_deref(),
            last_queue: self.last_queue.as_deref(),
        }
    }

    pub(super) fn assignment(&self, world: &Snapshot) -> Assignment {
        world.assign(self.queue_request())
    }

    /// Returns all jobs that count in the queue.
    pub(super) fn in_use(&self) -> Indices {
        Indices::union(&[self.granted.clone(), self.used.clone()])
    }

    /// Returns whether it uses any quota, as far as is known.
    pub(super) fn has_usage(&self) -> bool {
        !self.granted.is_empty() || !(self.usage_unknown || self.used.is_empty())
    }

    /// Returns the jobs that it uses without a grant, and that go on whatever the queue decides.
    pub(super) fn ungranted_usage(&self) -> Indices {
        // Nearly always there are none: a set of 100,000 is not searched for that.
        let nothing = self.usage_unknown || !self.grandfathered || self.in_use().len() == self.granted.len();
        if nothing { Indices::default() } else { self.used.without(&self.granted) }
    }
}

/// Usage of an `HTCJob` after a decision.
#[derive(Debug)]
pub struct DecidedUsage<'a> {
    /// Object as the watch returned it.
    pub object: &'a ObservedHTCJob,
    /// Uid of the `HTCJob`.
    pub uid: &'a Uid,
    /// Namespace and name of the `HTCJob`.
    pub name: &'a ObjectName,
    /// Queue that granted it quota before, as recorded in the ledger before the decision.
    pub granting_queue: Option<&'a str>,
    /// Queue that it was in last, after the decision.
    pub last_queue: Option<&'a str>,
    /// Jobs granted there.
    pub granted: &'a Indices,
    /// What one of its jobs uses; `None` if the spec cannot be read: then the last value stays.
    pub resources: Option<JobResources>,
    /// Used and requested quota after the decision, which is durable.
    pub usage: QuotaUsage,
    /// The decision completed it.
    pub finished: bool,
    /// Progress of its jobs after the decision.
    pub progress: Option<Progress>,
    /// Pod spec, as far as it matters for admission; `None` for jobs in HTCondor.
    pub pod: Option<Value>,
}

impl Queues {
    /// `known`: the ledger's records of objects that were not released, and `grants` their grants.
    #[must_use]
    pub fn new(mode: Queueing, metrics: Metrics, known: Vec<(String, Uid, Record)>, grants: &[Grant]) -> Self {
        Self::with_kueue(mode, &[], metrics, known, grants)
    }

    /// As [`Queues::new`]. `resources`: those that are requested of Kueue for each job.
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
            let each = grant.and_then(|grant| Amounts::from_ledger_text(&grant.per_job));
            let demand = each.map(|each| JobResources { per_job: each, unknown: ResourceSet::default() });
            let entry = WorkloadInfo {
                resources: demand.unwrap_or_else(JobResources::one),
                granting_queue: record.granting_queue.clone(),
                last_queue: record.row.as_ref().and_then(|known| known.last_queue.clone()),
                used: record.in_use(),
                granted: record.granted,
                last_grant: grant.map(|grant| grant.number).unwrap_or_default(),
                ..WorkloadInfo::new(&namespace)
            };
            (uid, entry)
        });
        let kueue = Kueue { resources: resources.to_vec(), ..Kueue::default() };
        let state = QueuesState { htcjobs: htcjobs.collect(), number, kueue, ..QueuesState::default() };
        Self { mode, state: Mutex::new(state), usage_changed: Notify::new(), workloads_changed: Notify::new(), metrics }
    }

    pub(super) fn with<T>(&self, work: impl FnOnce(&mut QueuesState) -> T) -> T {
        work(&mut self.state.lock())
    }

    /// Returns whether there are queues, of this operator or of Kueue.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        match self.mode {
            Queueing::None => false,
            Queueing::Embedded | Queueing::Kueue => true,
        }
    }

    /// Returns the queue that the object is in, as far as a decision needs to know; `None` if it needs no quota.
    pub fn queue_facts(&self, asker: &QueueQuery<'_>) -> Option<QueueFacts> {
        let QueueQuery { uid, namespace, object, granting_queue: bound, last_queue: seen_in, .. } = *asker;
        let label = object.labels().get(QUEUE_NAME_LABEL).map(String::as_str);
        if self.mode == Queueing::Kueue {
            return self.kueue_facts(asker, label);
        }
        if !self.is_enabled() {
            return label.map(|queue| QueueFacts {
                queue: queue.to_owned(),
                wait: Some(QueueWait { reason: Reason::Misconfigured, message: no_queues(queue), position: None }),
                closed: true,
                ..QueueFacts::default()
            });
        }
        self.with(|state| {
            let line =
                state.snapshot.assign(QueueRequest { namespace, label, granting_queue: bound, last_queue: seen_in });
            let entry = state.htcjobs.get_mut(uid);
            let wait = entry.as_ref().and_then(|entry| entry.wait.clone());
            if let Some(entry) = entry {
                entry.set_observed(line.clone(), wait.clone());
            }
            match line {
                Assignment::Unqueued(_) => None,
                Assignment::Queued { queue, drained } => {
                    Some(QueueFacts { queue, wait, drained, ..QueueFacts::default() })
                }
                Assignment::Inadmissible { queue, wait } => {
                    Some(QueueFacts { queue, wait: Some(wait), closed: true, ..QueueFacts::default() })
                }
                Assignment::Unknown { queue, wait } => {
                    Some(QueueFacts { queue, wait, closed: true, ..QueueFacts::default() })
                }
            }
        })
    }

    /// Records the usage after a decision that is durable. It counts from now on.
    pub fn record_decision(&self, decided: &DecidedUsage<'_>) {
        if !self.is_enabled() {
            return;
        }
        let DecidedUsage {
            object,
            uid,
            name,
            granting_queue: bound,
            last_queue: seen_in,
            granted,
            resources: demand,
            usage: room,
            finished: over,
            progress,
            pod,
        } = decided;
        let changed = self.with(|state| {
            let label = |key: &str| object.labels().get(key).cloned();
            let created = object.creation_timestamp().map_or(0, |time| time.0.as_second());
            // A failed attempt queues behind those that asked before it failed.
            let created = room.failed_at.map_or(created, |failed| created.max(failed.0.div_euclid(1000)));
            let entry = state.htcjobs.entry((*uid).clone()).or_insert_with(|| WorkloadInfo {
                created,
                granting_queue: bound.map(str::to_owned),
                resources: demand.unwrap_or_else(JobResources::one),
                granted: (*granted).clone(),
                ..WorkloadInfo::new(&name.namespace)
            });
            entry.last_queue = seen_in.map(str::to_owned);
            let (label, class) = (label(QUEUE_NAME_LABEL), label(PRIORITY_CLASS_LABEL));
            let demand = demand.unwrap_or(entry.resources);
            let granted =
                if room.returned.is_empty() { entry.granted.clone() } else { entry.granted.without(&room.returned) };
            // What was granted since the facts were gathered is no longer requested.
            let asks = room.requested.without(&granted);
            let before = (
                &entry.queue_label,
                &entry.priority_class,
                &entry.granted,
                &entry.used,
                &entry.requested,
                entry.resources,
            );
            let changed = entry.reference.is_none()
                || before != (&label, &class, &granted, &room.used, &asks, demand)
                || (entry.usage_unknown, entry.grandfathered) != (room.usage_unknown, room.grandfathered)
                || entry.created != created
                || entry.progress != *progress
                || entry.pod != *pod;
            if !changed {
                return false;
            }
            entry.reference = Some(ObjectRef::from_obj(object));
            (entry.created, entry.queue_label, entry.priority_class, entry.resources) = (created, label, class, demand);
            (entry.granted, entry.used) = (granted, room.used.clone());
            (entry.usage_unknown, entry.grandfathered) = (room.usage_unknown, room.grandfathered);
            entry.requested_since =
                if asks.is_empty() { None } else { entry.requested_since.or_else(|| Some(Instant::now())) };
            if asks.is_empty() {
                (entry.wait, entry.times_skipped, entry.reserved_since) = (None, 0, None);
            }
            (entry.requested, entry.finished) = (asks, *over);
            (entry.progress, entry.pod) = (progress.clone(), pod.clone());
            true
        });
        if changed {
            self.notify();
        }
    }

    pub(super) fn notify(&self) {
        self.usage_changed.notify_one();
        self.workloads_changed.notify_one();
    }

    /// Records that an object was reconciled. If that failed (`failed`), it counts with everything it may have.
    /// Otherwise its usage is known by now; an object that was released meanwhile uses nothing.
    pub fn record_reconciled(&self, object: &ObservedHTCJob, failed: bool) {
        let Some(uid) = object.uid().filter(|_| self.is_enabled()) else { return };
        let uid = Uid::from(uid.as_str());
        let done = self.with(|state| {
            if failed && object.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
                state.htcjobs.entry(uid.clone()).or_insert_with(|| WorkloadInfo::unknown(object));
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
            self.notify();
        }
    }

    /// Records that an object belongs to another operator, or claims to: it gets no further quota. It keeps what the
    /// ledger has of it until it is gone.
    pub fn record_foreign(&self, object: &ObservedHTCJob) {
        let Some(uid) = object.uid().filter(|_| self.is_enabled()) else { return };
        let uid = Uid::from(uid.as_str());
        self.with(|state| match state.htcjobs.get_mut(&uid) {
            Some(entry) => (entry.requested, entry.wait) = (Indices::default(), None),
            None if self.mode == Queueing::Kueue => drop(state.kueue.others.insert(uid)),
            None => {}
        });
        self.record_reconciled(object, false);
    }

    /// Confirms durable grants. `refused` were not written, as their `HTCJob`s are gone. Returns those to be
    /// reconciled.
    pub(super) fn confirm_grants(&self, grants: &[Grant], refused: &[Grant]) -> Vec<ObjectRef<ObservedHTCJob>> {
        let (mut woken, mut took) = (Vec::new(), Vec::new());
        let jobs: usize = grants.iter().map(|grant| grant.indices.len()).sum();
        self.with(|state| {
            for grant in grants {
                let Some(entry) = state.htcjobs.get_mut(&grant.uid) else { continue };
                took.extend(entry.requested_since.map(|since| since.elapsed()));
                entry.requested_since = (!entry.requested.is_empty()).then(Instant::now);
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

impl Forget for Queues {
    /// Removes its quota, too. If it was the last of the first list, others may be granted quota now.
    fn forget(&self, uid: &Uid) {
        let news = self.with(|state| {
            let was_last = state.first.as_mut().is_some_and(|first| first.remove(uid) && first.is_empty());
            state.kueue.backoffs.reset(uid);
            let another = state.kueue.others.remove(uid);
            state.htcjobs.remove(uid).is_some() || another || was_last
        });
        if news {
            self.notify();
        }
    }

    /// The first of these lists has the `HTCJob`s whose usage is not known yet: nothing is granted before it is.
    fn retain(&self, uids: &HashSet<Uid>) {
        if !self.is_enabled() {
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
        self.notify();
    }
}

/// Shortest interval between two updates of positions.
pub(super) const POSITION_INTERVAL: Duration = Duration::from_secs(5);

fn no_queues(queue: &str) -> String {
    format!(
        "the label {QUEUE_NAME_LABEL} names the HTCQueue {queue:?}, and this operator works without queues (--queueing=none): ask its administrator, or remove the label"
    )
}
