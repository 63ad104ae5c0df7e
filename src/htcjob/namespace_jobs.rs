//! Counts the jobs that each namespace has in HTCondor, and limits them. Jobs are counted before they are submitted, so
//! that two HTCJobs never use the same part of the limit.

use std::collections::{HashMap, HashSet, VecDeque};

use htc_api::{ObservedHTCJob, Phase};
use htc_machine::decide::{Action, Decision};
use htc_machine::facts::{Facts, JobState, Record, Spec};
use htc_machine::quota_usage::Concurrency;
use htc_machine::{RequestKind, Uid, Work};
use htc_support::forget::Forget;
use htc_support::kubernetes::Wake;
use kube::runtime::reflector::ObjectRef;
use parking_lot::{Mutex, MutexGuard};

/// The counts of all namespaces.
#[derive(Debug)]
pub struct NamespaceJobs {
    limit: usize,
    wake: Wake,
    namespaces: Mutex<HashMap<String, NamespaceCount>>,
}

#[derive(Debug, Default)]
struct NamespaceCount {
    /// Upper bound of the jobs that each HTCJob has in HTCondor.
    jobs: HashMap<Uid, usize>,
    /// Maximum number of concurrent jobs that each HTCJob was permitted, for backends that start the jobs themselves.
    permitted: HashMap<Uid, usize>,
    /// HTCJobs that may not submit all the jobs that they want; the one that has waited longest is first.
    waiting: VecDeque<ObjectRef<ObservedHTCJob>>,
}

impl NamespaceCount {
    fn of_others(&self, uid: &Uid) -> usize {
        self.jobs.iter().filter(|(other, _)| *other != uid).map(|(_, jobs)| jobs).sum()
    }

    /// Removes and returns the HTCJobs to wake when `free` jobs may be submitted.
    fn next(&mut self, free: usize) -> Vec<ObjectRef<ObservedHTCJob>> {
        let count = free.min(self.waiting.len());
        self.waiting.drain(..count).collect()
    }
}

/// Counts the jobs that HTCondor has or may have: jobs that have not ended, and jobs of attempts that are not proven to
/// have failed. What jobs report about themselves does not count.
fn may_have(record: &Record) -> usize {
    let active = record.jobs.values().filter(|job| !matches!(job.state, JobState::Ended(_))).count();
    // When an HTCJob completed, its remaining jobs had been given up with a proof.
    let completed = record.row.as_ref().is_some_and(|known| known.phase == Phase::Completed);
    if completed { active } else { active + record.in_doubt().len() }
}

/// Whether a submission is in flight.
fn submits(facts: &Facts) -> bool {
    facts.in_flight.as_ref().is_some_and(|request| request.key.kind == RequestKind::Submit)
}

impl NamespaceJobs {
    /// Allows at most `limit` jobs in each namespace (0: no limit). `known`: records in the ledger. `elsewhere`: those
    /// HTCJobs among them that may have jobs in a backend other than HTCondor; all their jobs count until they are
    /// reconciled.
    #[must_use]
    pub fn new(limit: usize, wake: Wake, known: Vec<(String, Uid, Record)>, elsewhere: &HashSet<Uid>) -> Self {
        let mut namespaces: HashMap<String, NamespaceCount> = HashMap::new();
        for (namespace, uid, record) in known {
            let jobs = if elsewhere.contains(&uid) { limit } else { may_have(&record) };
            namespaces.entry(namespace).or_default().jobs.insert(uid, jobs);
        }
        Self { limit, wake, namespaces: Mutex::new(namespaces) }
    }

    fn of(&self) -> MutexGuard<'_, HashMap<String, NamespaceCount>> {
        self.namespaces.lock()
    }

    /// Returns how many jobs an HTCJob may have in HTCondor in total, or `None` without a limit. All of them count
    /// until [`Self::settle_decision`].
    pub(super) fn reserve(&self, namespace: &str, facts: &Facts) -> Option<usize> {
        if self.limit == 0 {
            return None;
        }
        let uid = &facts.object.uid;
        let mut namespaces = self.of();
        let namespace = namespaces.entry(namespace.to_owned()).or_default();
        let room = self.limit.saturating_sub(namespace.of_others(uid));
        let asked_for = facts.object.spec.as_ref().map_or(0, Spec::count);
        let at_a_time =
            facts.object.spec.as_ref().ok().and_then(|spec| spec.parallelism).map_or(usize::MAX, |most| most as usize);
        let wanted = at_a_time.min(asked_for.saturating_sub(facts.record.jobs.len()) + may_have(&facts.record));
        let before = namespace.jobs.get(uid).copied().unwrap_or_default();
        let has = may_have(&facts.record).max(before);
        // No other submission of an HTCJob starts while one is in flight.
        let most = if submits(facts) { has } else { has.max(room.min(wanted)) };
        namespace.jobs.insert(uid.clone(), most);
        Some(room)
    }

    /// Counts the jobs after the decision. Wakes HTCJobs that wait if jobs of the limit became free.
    pub(super) fn settle_decision(
        &self,
        name: &str,
        object: &ObjectRef<ObservedHTCJob>,
        facts: &Facts,
        decision: Option<&Decision>,
    ) {
        if self.limit == 0 {
            return;
        }
        let uid = &facts.object.uid;
        let record = decision.and_then(|decision| decision.after.as_ref()).unwrap_or(&facts.record);
        let jobs = match decision.map(|decision| &decision.action) {
            Some(Action::Dispatch(request)) => match &request.work {
                Work::Submit(indices, _) => may_have(record) + indices.without(&record.in_doubt()).len(),
                _ => may_have(record),
            },
            // The submission in flight keeps what it reserved.
            Some(Action::Cancel(_) | Action::Nothing) | None if submits(facts) => return,
            Some(Action::Cancel(_) | Action::Nothing) | None => may_have(record),
        };
        let waits = decision.is_some_and(|decision| decision.details.namespace_is_full);
        self.settle(name, object, uid, jobs, waits);
    }

    /// Returns how many jobs an HTCJob may have at a time, for backends that start the jobs themselves, or `None`
    /// without a limit. All of them count until [`Self::settle_concurrency`].
    pub(super) fn reserve_concurrency(&self, namespace: &str, uid: &Uid, share: Concurrency) -> Option<usize> {
        if self.limit == 0 {
            return None;
        }
        let mut namespaces = self.of();
        let namespace = namespaces.entry(namespace.to_owned()).or_default();
        let room = self.limit.saturating_sub(namespace.of_others(uid));
        let before = namespace.jobs.get(uid).copied().unwrap_or_default();
        let has = share.current.unwrap_or(before);
        // Jobs that run when the HTCJob is first seen may continue. A later increase by another user counts, but is
        // not permitted.
        let permitted = namespace.permitted.get(uid).map_or(has, |permitted| has.min(*permitted));
        let may = permitted.max(room.min(share.wanted));
        namespace.jobs.insert(uid.clone(), has.max(may));
        namespace.permitted.insert(uid.clone(), may);
        Some(may)
    }

    /// Counts `jobs` after the decision; if that is unknown, the count stays.
    pub(super) fn settle_concurrency(
        &self,
        name: &str,
        object: &ObjectRef<ObservedHTCJob>,
        uid: &Uid,
        jobs: Option<usize>,
        waits: bool,
    ) {
        if let Some(jobs) = jobs.filter(|_| self.limit > 0) {
            self.settle(name, object, uid, jobs, waits);
        }
    }

    fn settle(&self, name: &str, object: &ObjectRef<ObservedHTCJob>, uid: &Uid, jobs: usize, waits: bool) {
        let mut namespaces = self.of();
        let namespace = namespaces.entry(name.to_owned()).or_default();
        namespace.jobs.insert(uid.clone(), jobs);
        namespace.waiting.retain(|waiting| waiting != object);
        let free = self.limit.saturating_sub(namespace.jobs.values().sum());
        let next = namespace.next(free);
        if waits {
            namespace.waiting.push_back(object.clone());
        }
        drop(namespaces);
        self.wake(next);
    }

    fn remove_unless(&self, stays: impl Fn(&Uid) -> bool) {
        let mut next = Vec::new();
        self.of().retain(|_, namespace| {
            let before = namespace.jobs.len();
            namespace.jobs.retain(|uid, _| stays(uid));
            namespace.permitted.retain(|uid, _| stays(uid));
            if namespace.jobs.len() < before {
                let free = self.limit.saturating_sub(namespace.jobs.values().sum());
                next.extend(namespace.next(free));
            }
            !(namespace.jobs.is_empty() && namespace.waiting.is_empty())
        });
        self.wake(next);
    }

    /// Wakes HTCJobs. One that cannot be woken is requeued by its own timer.
    fn wake(&self, objects: Vec<ObjectRef<ObservedHTCJob>>) {
        for object in objects {
            let _ = self.wake.try_send(object);
        }
    }
}

impl Forget for NamespaceJobs {
    fn forget(&self, uid: &Uid) {
        self.remove_unless(|other| other != uid);
    }

    fn retain(&self, uids: &HashSet<Uid>) {
        self.remove_unless(|uid| uids.contains(uid));
    }
}

#[cfg(test)]
mod tests {
    use htc_machine::Indices;
    use htc_machine::facts::Submission;
    use htc_machine::ids::{Attempt, Birthdate, SchedDate, Timestamp};
    use tokio::sync::mpsc;

    use super::*;

    fn record(jobs: u32) -> Record {
        let submission = Submission {
            attempt: Attempt(1),
            indices: Indices::first(jobs),
            schedd: "s".into(),
            birthdate: Birthdate(1),
            intent_at: Timestamp(0),
            intent_date: SchedDate(0),
            submitter_deadline: Timestamp(0),
            dead_since: None,
            refusal: None,
            absent: false,
        };
        Record { attempts: vec![submission], ..Record::default() }
    }

    #[test]
    fn recorded_jobs_count_until_forgotten() {
        let (wake, mut woken) = mpsc::channel(8);
        let known = vec![
            ("physics".to_owned(), Uid::from("a"), record(3)),
            ("physics".to_owned(), Uid::from("b"), record(4)),
            ("chemistry".to_owned(), Uid::from("c"), record(9)),
        ];
        let jobs = NamespaceJobs::new(10, wake, known, &HashSet::new());
        assert_eq!(jobs.of()["physics"].of_others(&Uid::from("b")), 3);
        jobs.of().get_mut("physics").unwrap().waiting.push_back(ObjectRef::new("waits"));
        jobs.forget(&Uid::from("c"));
        assert!(woken.try_recv().is_err(), "another namespace's");
        jobs.forget(&Uid::from("b"));
        assert_eq!(woken.try_recv().unwrap().name, "waits");
        assert_eq!(jobs.of()["physics"].of_others(&Uid::from("x")), 3);
        jobs.retain(&HashSet::new());
        assert!(jobs.of().is_empty());
    }

    #[test]
    fn pods_count_like_jobs_and_fully_while_unknown() {
        let (wake, mut woken) = mpsc::channel(8);
        let (a, b) = (Uid::from("a"), Uid::from("b"));
        let known = vec![("physics".to_owned(), a.clone(), record(0)), ("physics".to_owned(), b.clone(), record(3))];
        let jobs = NamespaceJobs::new(10, wake, known, &HashSet::from([a.clone()]));
        let (pods, waits) = (Uid::from("pods"), ObjectRef::new("waits"));
        let asking = |wants| Concurrency { current: Some(0), wanted: wants };
        assert_eq!(jobs.reserve_concurrency("physics", &pods, asking(5)), Some(0), "the jobs of a are unknown");
        jobs.settle_concurrency("physics", &waits, &pods, Some(0), true);
        let unknown = Concurrency { current: None, wanted: 0 };
        assert_eq!(jobs.reserve_concurrency("physics", &a, unknown), Some(10));
        jobs.settle_concurrency("physics", &ObjectRef::new("a"), &a, None, false);
        assert!(woken.try_recv().is_err());
        assert_eq!(jobs.reserve_concurrency("physics", &a, Concurrency { current: Some(2), wanted: 2 }), Some(2));
        jobs.settle_concurrency("physics", &ObjectRef::new("a"), &a, Some(2), false);
        assert_eq!(woken.try_recv().unwrap().name, "waits");
        assert_eq!(jobs.reserve_concurrency("physics", &pods, asking(9)), Some(5));
        assert_eq!(
            jobs.reserve_concurrency("physics", &Uid::from("c"), asking(1)),
            Some(0),
            "they count before they are decided"
        );
        assert_eq!(
            jobs.reserve_concurrency("physics", &pods, Concurrency { current: Some(5), wanted: 0 }),
            Some(5),
            "nothing is taken away"
        );
        assert_eq!(
            jobs.reserve_concurrency("physics", &pods, Concurrency { current: Some(7), wanted: 9 }),
            Some(5),
            "it was raised by hand"
        );
        let ran = Uid::from("ran");
        assert_eq!(
            jobs.reserve_concurrency("physics", &ran, Concurrency { current: Some(4), wanted: 4 }),
            Some(4),
            "it ran before"
        );
    }
}
