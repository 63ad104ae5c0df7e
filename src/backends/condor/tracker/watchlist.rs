//! The watched objects, and the evidence about each.

use std::collections::HashMap;

use htc_api::ObservedHTCJob;
use htc_machine::decide::Polling;
use htc_machine::facts::{Ad, Answer, Evidence, History, HistoryReach, JobStatus, QueryError, QueueAnswer};
use htc_machine::{Attempt, Birthdate, Timestamp, Uid};
use htc_support::retry::Backoff;
use htcondor::query::AdsByUid;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::{Poller, is_live};
use crate::backends::condor::tracker::watched_object::{LARGE, Urgency, WatchedObject};

/// Maximum number of objects that are queried by uid. For more objects, the query for all jobs costs no more.
const FEW: usize = 1000;

/// Maximum number of waiting jobs, if none runs, for which changed jobs are queried. Waiting jobs cannot end, and
/// thousands of them should cost no more than the queries for all jobs.
const FEW_LIVE: usize = 1000;

/// Objects from which a change is expected, for one query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) urgency: Urgency,
    /// Objects with all their jobs.
    pub(super) whole: Vec<Uid>,
    /// Objects with only the jobs of this attempt and later ones.
    pub(super) parts: Vec<(Uid, Attempt)>,
    /// Whether they have many jobs together.
    pub(super) many: bool,
}

/// All watched objects.
#[derive(Debug, Default)]
pub(super) struct Watchlist {
    entries: Mutex<HashMap<Uid, WatchedObject>>,
    /// Notifies the poller of all jobs.
    changed: Notify,
    /// Notifies the poller of the few jobs with expected changes.
    awaited: Notify,
    /// Notifies the poller of objects with many jobs.
    awaited_of_many: Notify,
    /// Notifies the poller of the history.
    wanted: Notify,
    /// Notifies the poller of changed jobs.
    answered: Notify,
}

impl Watchlist {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Uid, WatchedObject>) -> T) -> T {
        work(&mut self.entries.lock())
    }

    /// Waits until the polling of an object has changed.
    pub(super) fn changed(&self, asker: Poller) -> Notified<'_> {
        match asker {
            Poller::All => self.changed.notified(),
            Poller::Few => self.awaited.notified(),
            Poller::Many => self.awaited_of_many.notified(),
        }
    }

    /// Notifies all pollers of the queue: their objects and pauses may have changed.
    fn rethink(&self) {
        self.changed.notify_one();
        self.awaited.notify_one();
        self.awaited_of_many.notify_one();
    }

    /// Waits until an object may newly need the history.
    pub(super) fn wanted(&self) -> Notified<'_> {
        self.wanted.notified()
    }

    /// Waits until HTCondor has answered about any object.
    pub(super) fn answered(&self) -> Notified<'_> {
        self.answered.notified()
    }

    pub(super) fn set(&self, uid: &Uid, object: &ObjectRef<ObservedHTCJob>, look: Polling, jobs: usize) {
        let news = self.with(|entries| {
            if look == Polling::Off {
                return entries.remove(uid).is_some();
            }
            let entry = entries.entry(uid.clone()).or_insert_with(|| WatchedObject::new(object.clone()));
            entry.set(look, jobs)
        });
        if news {
            self.rethink();
            self.wanted.notify_one();
        }
    }

    /// Forgets all objects that `wanted` does not select.
    pub(super) fn keep(&self, wanted: impl Fn(&Uid, &ObjectRef<ObservedHTCJob>) -> bool) {
        self.with(|entries| entries.retain(|uid, entry| wanted(uid, &entry.object)));
    }

    pub(super) fn evidence(&self, uid: &Uid) -> (Evidence, Option<Timestamp>) {
        self.with(|entries| match entries.get(uid) {
            Some(entry) => (entry.evidence().clone(), entry.silent_since()),
            None => (Evidence::none(), None),
        })
    }

    /// Returns the objects to query by uid and their urgency: with `many`, objects with many jobs, otherwise the
    /// others. Returns none if there are too many; [`Self::urgency_of_all`] covers them then.
    pub(super) fn awaited(&self, many: bool) -> Awaited {
        self.with(|entries| {
            let mut awaited = Awaited { many, ..Awaited::default() };
            let mut jobs = 0;
            for (uid, entry) in entries.iter().filter(|(_, entry)| entry.is_awaited() && entry.is_large() == many) {
                awaited.urgency = awaited.urgency.max(entry.urgency());
                jobs += entry.jobs();
                match entry.accepting() {
                    Some(attempt) => awaited.parts.push((uid.clone(), attempt)),
                    None => awaited.whole.push(uid.clone()),
                }
                if awaited.whole.len() + awaited.parts.len() > FEW {
                    return Awaited::default();
                }
            }
            awaited.many |= jobs > LARGE;
            awaited
        })
    }

    /// Returns how soon all jobs are to be queried.
    pub(super) fn urgency_of_all(&self) -> Urgency {
        self.with(|entries| {
            let few = [false, true].map(|many| {
                entries.values().filter(|entry| entry.is_awaited() && entry.is_large() == many).count() <= FEW
            });
            let urgency = |entry: &WatchedObject| {
                if few[usize::from(entry.is_large())] {
                    entry.urgency().min(Urgency::Interval)
                } else {
                    entry.urgency()
                }
            };
            entries.values().map(urgency).max().unwrap_or(Urgency::Nothing)
        })
    }

    /// Whether a query for changed jobs is worth its cost: some jobs run, or a few wait.
    pub(super) fn may_change(&self) -> bool {
        self.with(|entries| {
            let known = entries.values().filter_map(|entry| match &entry.evidence().queue {
                Answer::Known(queue) => Some(queue),
                Answer::Unknown(_) => None,
            });
            let mut live = 0;
            for ad in known.flat_map(|queue| queue.ads.iter()).filter(|ad| is_live(ad)) {
                live += 1;
                if matches!(ad.status, JobStatus::Running | JobStatus::TransferringOutput) {
                    return true;
                }
            }
            (1..=FEW_LIVE).contains(&live)
        })
    }

    /// Returns the time of the next query of the history, if any object needs it.
    pub(super) fn history_due(&self, now: Instant) -> Option<Instant> {
        self.with(|entries| entries.values().filter_map(|entry| entry.history_due(now)).min())
    }

    /// Marks the due objects as being queried in the history. Returns them, with how far back the answer must reach.
    pub(super) fn ask_history(&self, now: Instant) -> HashMap<Uid, HistoryReach> {
        self.with(|entries| {
            let due = entries.iter_mut().filter(|(_, entry)| entry.history_due(now).is_some_and(|due| due <= now));
            due.filter_map(|(uid, entry)| Some((uid.clone(), entry.ask_history()?))).collect()
        })
    }

    /// Stores the history's answer for the objects that it was requested for. Returns the objects to wake.
    pub(super) fn history(
        &self,
        asked: &HashMap<Uid, HistoryReach>,
        now: Instant,
        backoff: impl Fn() -> Backoff,
        mut part: impl FnMut(&Uid, &HistoryReach, &QueueAnswer) -> Answer<History>,
    ) -> Vec<ObjectRef<ObservedHTCJob>> {
        self.with(|entries| {
            let mut woken = Vec::new();
            for (uid, reach) in asked {
                if let Some(entry) = entries.get_mut(uid)
                    && entry.history_answered(now, &backoff, |base| part(uid, reach, base))
                {
                    woken.push(entry.object.clone());
                }
            }
            woken
        })
    }

    /// Stores an answer about these objects, or about all if `uids` is empty. `part` returns an object's answer with
    /// the time of the query, or `None`. Returns the objects to wake.
    pub(super) fn answer(
        &self,
        uids: &[Uid],
        mut part: impl FnMut(&Uid) -> Option<(Timestamp, Answer<QueueAnswer>)>,
    ) -> Vec<ObjectRef<ObservedHTCJob>> {
        let woken = self.with_each(uids, |uid, entry| match part(uid) {
            Some((_, Answer::Known(queue))) => entry.answered(queue),
            Some((asked_at, Answer::Unknown(unknown))) => entry.unanswered(asked_at, &unknown),
            None => false,
        });
        self.rethink();
        self.wanted.notify_one();
        self.answered.notify_one();
        woken
    }

    /// Stores the ads of the latest attempts of these objects. `part` returns the ads of an object, the time of the
    /// query and the birthdate of the queue. Returns the objects to wake.
    pub(super) fn merge_attempts(
        &self,
        parts: &[(Uid, Attempt)],
        mut part: impl FnMut(&Uid) -> Option<(Timestamp, Birthdate, Vec<Ad>)>,
    ) -> Vec<ObjectRef<ObservedHTCJob>> {
        let woken = self.with(|entries| {
            let mut woken = Vec::new();
            for (uid, _) in parts {
                if let Some(entry) = entries.get_mut(uid)
                    && let Some((asked_at, birthdate, ads)) = part(uid)
                    && entry.merge_attempts(asked_at, birthdate, ads)
                {
                    woken.push(entry.object.clone());
                }
            }
            woken
        });
        self.rethink();
        woken
    }

    /// Stores the ads of changed jobs from a query at `asked_at`. Returns the objects to wake.
    pub(super) fn take_in_changes(&self, asked_at: Timestamp, ads: &AdsByUid) -> Vec<ObjectRef<ObservedHTCJob>> {
        self.with(|entries| {
            let mut woken = Vec::new();
            for (uid, ads) in ads {
                if let Some(entry) = entries.get_mut(uid)
                    && entry.merge_changes(asked_at, ads)
                {
                    woken.push(entry.object.clone());
                }
            }
            woken
        })
    }

    /// Records that a query at `asked_at` about these objects, or about all if `uids` is empty, was not answered.
    /// Returns the objects for which that is new.
    pub(super) fn no_answer(
        &self,
        asked_at: Timestamp,
        uids: &[Uid],
        unknown: &QueryError,
    ) -> Vec<ObjectRef<ObservedHTCJob>> {
        self.with_each(uids, |_, entry| entry.unanswered(asked_at, unknown))
    }

    fn with_each(
        &self,
        uids: &[Uid],
        mut news: impl FnMut(&Uid, &mut WatchedObject) -> bool,
    ) -> Vec<ObjectRef<ObservedHTCJob>> {
        let mut woken = Vec::new();
        let mut show = |uid: &Uid, entry: &mut WatchedObject| {
            if news(uid, entry) {
                woken.push(entry.object.clone());
            }
        };
        self.with(|entries| {
            if uids.is_empty() {
                for (uid, entry) in entries.iter_mut() {
                    show(uid, entry);
                }
            }
            for uid in uids {
                if let Some(entry) = entries.get_mut(uid) {
                    show(uid, entry);
                }
            }
        });
        woken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use htc_api::HTCJob;
    use htc_machine::SchedDate;
    use htc_machine::facts::QueryErrorKind;

    use super::*;
    use crate::backends::condor::tracker::watched_object::tests::ad;
    use crate::backends::condor::tracker::{Question, Unanswered, no_answer};

    fn watching(jobs: usize, status: JobStatus) -> Watchlist {
        let mut job = HTCJob::new("j", htc_api::HTCJobSpec::default());
        job.metadata.namespace = Some("n".to_owned());
        let object = ObjectRef::from_obj(&htc_api::Guarded(Ok(job)));
        let (watchlist, uid) = (Watchlist::default(), Uid::from("u"));
        watchlist.set(&uid, &object, Polling::OnChange, jobs);
        assert!(!watchlist.may_change(), "nothing is known yet");
        let its = |proc| Ad { staged_in: Some(SchedDate(1)), ..ad(proc, status) };
        let ads = Arc::new((0..).take(jobs).map(its).collect());
        let queue = |_: &Uid| {
            let queue = QueueAnswer {
                asked_at: Timestamp(1),
                birthdate: Birthdate(1),
                steady_since: Timestamp(0),
                ads: Arc::clone(&ads),
                unlabelled: Arc::default(),
                before: None,
            };
            Some((Timestamp(1), Answer::Known(queue)))
        };
        watchlist.answer(&[], queue);
        watchlist
    }

    #[test]
    fn no_query_runs_if_no_job_can_change() {
        for (jobs, status, may) in [
            (0, JobStatus::Idle, false),
            (1, JobStatus::Completed, false),
            (1, JobStatus::Removed, false),
            (1, JobStatus::Idle, true),
            (1, JobStatus::Held, true),
            (FEW_LIVE, JobStatus::Idle, true),
            (FEW_LIVE + 1, JobStatus::Idle, false),
            (FEW_LIVE + 1, JobStatus::Running, true),
        ] {
            assert_eq!(watching(jobs, status).may_change(), may, "{jobs} jobs, {status:?}");
        }
    }

    #[test]
    fn changed_htcjob_is_woken() {
        let watchlist = watching(2, JobStatus::Running);
        let over = Ad { staged_in: Some(SchedDate(1)), ..ad(1, JobStatus::Completed) };
        let found = |uid: &str| AdsByUid::from([(Uid::from(uid), vec![over.clone()])]);
        assert!(watchlist.take_in_changes(Timestamp(2), &found("another")).is_empty());
        assert_eq!(watchlist.take_in_changes(Timestamp(2), &found("u")).len(), 1);
        assert!(watchlist.take_in_changes(Timestamp(3), &found("u")).is_empty());
        assert!(watchlist.may_change(), "the other one runs");
    }

    /// The first part of a query was answered in the millisecond in which it was sent.
    #[test]
    fn failed_part_of_a_query_keeps_the_other_answers() {
        let (watchlist, uid) = (watching(1, JobStatus::Idle), Uid::from("u"));
        let parts = vec![(Uid::from("other"), Attempt(2))];
        let question = Question::Awaited(Awaited { whole: vec![uid.clone()], parts, ..Awaited::default() });
        let away = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "away".to_owned() };
        let is_known = || matches!(watchlist.evidence(&uid).0.queue, Answer::Known(_));
        assert!(no_answer(&watchlist, Timestamp(1), &question, &Unanswered::Parts(away.clone())).is_empty());
        assert!(is_known());
        assert_eq!(no_answer(&watchlist, Timestamp(1), &question, &Unanswered::Whole(away)).len(), 1);
        assert!(!is_known());
    }

    fn named(name: &str) -> ObjectRef<ObservedHTCJob> {
        let mut job = HTCJob::new(name, htc_api::HTCJobSpec::default());
        job.metadata.namespace = Some("n".to_owned());
        ObjectRef::from_obj(&htc_api::Guarded(Ok(job)))
    }

    const SOON: Polling = Polling::Always { history: None, urgent: true };

    fn answer(watchlist: &Watchlist, uid: &Uid, at: i64, jobs: usize) {
        let ads = Arc::new((0..).take(jobs).map(|proc| ad(proc, JobStatus::Removed)).collect());
        let queue = QueueAnswer {
            asked_at: Timestamp(at),
            birthdate: Birthdate(1),
            steady_since: Timestamp(0),
            ads,
            unlabelled: Arc::default(),
            before: None,
        };
        watchlist.answer(std::slice::from_ref(uid), |_| Some((Timestamp(at), Answer::Known(queue.clone()))));
    }

    /// The objects of each query for expected changes, with the urgency of all.
    fn asked(watchlist: &Watchlist) -> (Vec<Uid>, Vec<Uid>, Urgency) {
        (watchlist.awaited(false).whole, watchlist.awaited(true).whole, watchlist.urgency_of_all())
    }

    #[tokio::test]
    async fn pollers_are_notified_when_an_htcjob_becomes_large_or_small() {
        let (watchlist, uid) = (Watchlist::default(), Uid::from("u"));
        watchlist.set(&uid, &named("j"), SOON, 0);
        let told = |asker| {
            let mut told = std::pin::pin!(watchlist.changed(asker));
            told.as_mut().enable()
        };
        let drain = || [Poller::All, Poller::Few, Poller::Many].map(told);
        drain();
        assert_eq!(asked(&watchlist), (vec![uid.clone()], vec![], Urgency::Interval));
        answer(&watchlist, &uid, 1, LARGE + 1);
        assert_eq!(asked(&watchlist), (vec![], vec![uid.clone()], Urgency::Interval));
        assert_eq!(drain(), [true; 3], "the next question is another's");
        answer(&watchlist, &uid, 2, 0);
        assert_eq!(asked(&watchlist), (vec![uid], vec![], Urgency::Interval));
        assert_eq!(drain(), [true; 3], "and again");
    }

    #[test]
    fn large_htcjob_does_not_delay_queries_about_small_ones() {
        let watchlist = Watchlist::default();
        let [few, many] = ["few", "many"].map(Uid::from);
        watchlist.set(&few, &named("few"), SOON, 1);
        watchlist.set(&many, &named("many"), SOON, 100_000);
        assert_eq!(asked(&watchlist), (vec![few], vec![many.clone()], Urgency::Interval), "whatever is known of it");
        answer(&watchlist, &many, 1, 4);
        watchlist.set(&many, &named("many"), Polling::Accepting(Attempt(7)), 100_000);
        let awaited = watchlist.awaited(true);
        assert_eq!((awaited.whole, awaited.parts), (vec![], vec![(many, Attempt(7))]));
    }

    #[test]
    fn many_awaited_htcjobs_are_queried_with_all_jobs() {
        let watchlist = Watchlist::default();
        let set = |number: usize| {
            watchlist.set(&Uid::from(number.to_string().as_str()), &named("j"), SOON, 1);
        };
        (0..FEW).for_each(set);
        assert_eq!((watchlist.awaited(false).whole.len(), watchlist.urgency_of_all()), (FEW, Urgency::Interval));
        set(FEW);
        assert_eq!((watchlist.awaited(false), watchlist.urgency_of_all()), (Awaited::default(), Urgency::Now));
    }
}
