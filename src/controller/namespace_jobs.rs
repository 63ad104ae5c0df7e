//! How many jobs each namespace has in HTCondor, and how many more it may have. What may be submitted is counted before it is: two
//! HTCJobs never get the same place.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;

use crate::api::{Observed, Phase, Wake};
use crate::machine::decide::{Action, Decision};
use crate::machine::facts::{Facts, JobState, Record, Spec};
use crate::machine::room::Share;
use crate::machine::{Kind, Uid, Work};

/// The jobs of all namespaces.
#[derive(Debug)]
pub struct NamespaceJobs {
    limit: usize,
    wake: Wake,
    namespaces: Mutex<HashMap<String, Namespace>>,
}

#[derive(Debug, Default)]
struct Namespace {
    /// Most jobs that each HTCJob may have in HTCondor.
    jobs: HashMap<Uid, usize>,
    /// Most jobs that each HTCJob was allowed to have at a time, of those whose backend starts them.
    permitted: HashMap<Uid, usize>,
    /// HTCJobs that may not submit all that they want; who has waited longest is first.
    waiting: VecDeque<ObjectRef<Observed>>,
}

impl Namespace {
    fn of_others(&self, uid: &Uid) -> usize {
        self.jobs.iter().filter(|(other, _)| *other != uid).map(|(_, jobs)| jobs).sum()
    }

    /// Those that are to look again, once so many places are free.
    fn next(&mut self, free: usize) -> Vec<ObjectRef<Observed>> {
        let count = free.min(self.waiting.len());
        self.waiting.drain(..count).collect()
    }
}

/// Jobs that HTCondor has, or may have: those that have not ended, and those of attempts that are not known to have come to
/// nothing. What jobs report of themselves does not count.
fn may_have(record: &Record) -> usize {
    let active = record.jobs.values().filter(|job| !matches!(job.state, JobState::Ended(_))).count();
    // Of what has completed, the rest was given up with a proof.
    let completed = record.known.as_ref().is_some_and(|known| known.phase == Phase::Completed);
    if completed { active } else { active + record.in_doubt().len() }
}

/// Whether a submission is under way.
fn submits(facts: &Facts) -> bool {
    facts.in_flight.as_ref().is_some_and(|request| request.key.kind == Kind::Submit)
}

impl NamespaceJobs {
    /// At most `limit` jobs for each namespace (0: no limit). `known`: what the ledger has; `elsewhere`: the HTCJobs among them that may have
    /// jobs elsewhere than in HTCondor. These count with all that there may be until they were looked at.
    #[must_use]
    pub fn new(limit: usize, wake: Wake, known: Vec<(String, Uid, Record)>, elsewhere: &HashSet<Uid>) -> Self {
        let mut namespaces: HashMap<String, Namespace> = HashMap::new();
        for (namespace, uid, record) in known {
            let jobs = if elsewhere.contains(&uid) { limit } else { may_have(&record) };
            namespaces.entry(namespace).or_default().jobs.insert(uid, jobs);
        }
        Self { limit, wake, namespaces: Mutex::new(namespaces) }
    }

    fn of(&self) -> MutexGuard<'_, HashMap<String, Namespace>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many jobs an HTCJob may have in HTCondor in all, none without a limit. Until [`Self::decided`] all of them count.
    pub(super) fn room(&self, namespace: &str, facts: &Facts) -> Option<usize> {
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
        // While one is under way no other submission begins.
        let most = if submits(facts) { has } else { has.max(room.min(wanted)) };
        namespace.jobs.insert(uid.clone(), most);
        Some(room)
    }

    /// What was decided is what counts. Who waits for places that are free by that looks again.
    pub(super) fn decided(&self, name: &str, object: &ObjectRef<Observed>, facts: &Facts, decision: Option<&Decision>) {
        if self.limit == 0 {
            return;
        }
        let uid = &facts.object.uid;
        let record = decision.and_then(|decision| decision.after.as_ref()).unwrap_or(&facts.record);
        let jobs = match decision.map(|decision| &decision.action) {
            Some(Action::Hand(request)) => match &request.work {
                Work::Submit(indices, _) => may_have(record) + indices.without(&record.in_doubt()).len(),
                _ => may_have(record),
            },
            // It takes the places that it was given.
            Some(Action::Cancel(_) | Action::Nothing) | None if submits(facts) => return,
            Some(Action::Cancel(_) | Action::Nothing) | None => may_have(record),
        };
        let waits = decision.is_some_and(|decision| decision.namespace_is_full);
        self.settle(name, object, uid, jobs, waits);
    }

    /// How many jobs at a time an HTCJob may have in all where the backend starts them, none without a limit. Until [`Self::shared`] all of them
    /// count.
    pub(super) fn share(&self, namespace: &str, uid: &Uid, share: Share) -> Option<usize> {
        if self.limit == 0 {
            return None;
        }
        let mut namespaces = self.of();
        let namespace = namespaces.entry(namespace.to_owned()).or_default();
        let room = self.limit.saturating_sub(namespace.of_others(uid));
        let before = namespace.jobs.get(uid).copied().unwrap_or_default();
        let has = share.has.unwrap_or(before);
        // What runs when it is seen for the first time goes on. What somebody else has made of it since counts, and may not.
        let permitted = namespace.permitted.get(uid).map_or(has, |permitted| has.min(*permitted));
        let may = permitted.max(room.min(share.wants));
        namespace.jobs.insert(uid.clone(), has.max(may));
        namespace.permitted.insert(uid.clone(), may);
        Some(may)
    }

    /// So many count after the decision; where that is not known, as many as before.
    pub(super) fn shared(&self, name: &str, object: &ObjectRef<Observed>, uid: &Uid, jobs: Option<usize>, waits: bool) {
        if let Some(jobs) = jobs.filter(|_| self.limit > 0) {
            self.settle(name, object, uid, jobs, waits);
        }
    }

    fn settle(&self, name: &str, object: &ObjectRef<Observed>, uid: &Uid, jobs: usize, waits: bool) {
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

    /// An HTCJob that is gone has no share.
    pub(super) fn forget(&self, uid: &Uid) {
        self.retain(|other| other != uid);
    }

    /// Forgets all HTCJobs but these.
    pub(super) fn keep(&self, uids: &HashSet<Uid>) {
        self.retain(|uid| uids.contains(uid));
    }

    fn retain(&self, stays: impl Fn(&Uid) -> bool) {
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

    /// One that cannot be woken looks again by itself.
    fn wake(&self, objects: Vec<ObjectRef<Observed>>) {
        for object in objects {
            let _ = self.wake.try_send(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::machine::Indices;
    use crate::machine::facts::Submission;
    use crate::machine::ids::{Attempt, Birthdate, SchedDate, Timestamp};

    fn record(jobs: u32) -> Record {
        let submission = Submission {
            attempt: Attempt(1),
            indices: Indices::first(jobs),
            schedd: "s".into(),
            birthdate: Birthdate(1),
            intent_at: Timestamp(0),
            intent_date: SchedDate(0),
            not_after: Timestamp(0),
            dead_since: None,
            refusal: None,
            absent: false,
        };
        Record { attempts: vec![submission], ..Record::default() }
    }

    #[test]
    fn what_the_ledger_has_counts_and_what_is_gone_does_not() {
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
        jobs.keep(&HashSet::new());
        assert!(jobs.of().is_empty());
    }

    #[test]
    fn pods_count_beside_jobs_and_with_all_before_they_are_known() {
        let (wake, mut woken) = mpsc::channel(8);
        let (a, b) = (Uid::from("a"), Uid::from("b"));
        let known = vec![("physics".to_owned(), a.clone(), record(0)), ("physics".to_owned(), b.clone(), record(3))];
        let jobs = NamespaceJobs::new(10, wake, known, &HashSet::from([a.clone()]));
        let (pods, waits) = (Uid::from("pods"), ObjectRef::new("waits"));
        let asking = |wants| Share { has: Some(0), wants };
        assert_eq!(jobs.share("physics", &pods, asking(5)), Some(0), "what a has is not known");
        jobs.shared("physics", &waits, &pods, Some(0), true);
        let unknown = Share { has: None, wants: 0 };
        assert_eq!(jobs.share("physics", &a, unknown), Some(10));
        jobs.shared("physics", &ObjectRef::new("a"), &a, None, false);
        assert!(woken.try_recv().is_err());
        assert_eq!(jobs.share("physics", &a, Share { has: Some(2), wants: 2 }), Some(2));
        jobs.shared("physics", &ObjectRef::new("a"), &a, Some(2), false);
        assert_eq!(woken.try_recv().unwrap().name, "waits");
        assert_eq!(jobs.share("physics", &pods, asking(9)), Some(5));
        assert_eq!(jobs.share("physics", &Uid::from("c"), asking(1)), Some(0), "they count before they are decided");
        assert_eq!(jobs.share("physics", &pods, Share { has: Some(5), wants: 0 }), Some(5), "nothing is taken away");
        assert_eq!(
            jobs.share("physics", &pods, Share { has: Some(7), wants: 9 }),
            Some(5),
            "somebody has made it more"
        );
        let ran = Uid::from("ran");
        assert_eq!(jobs.share("physics", &ran, Share { has: Some(4), wants: 4 }), Some(4), "it ran before");
    }
}
