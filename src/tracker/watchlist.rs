//! Who is watched, and what is known about each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::entry::{Entry, LARGE, Urgency};
use super::{Asker, is_live};
use crate::api::Observed;
use crate::condor::query::{Ads, WantedInherited};
use crate::machine::decide::Look;
use crate::machine::facts::{Ad, Answer, Evidence, History, JobStatus, Queue, Reach, Unknown};
use crate::machine::inherited::InheritedJob;
use crate::machine::{Attempt, Birthdate, Timestamp, Uid};
use crate::retry::Backoff;

/// Most objects that are asked about by themselves; it costs as much to ask about all when there are more.
const FEW: usize = 1000;

/// While none runs, so many jobs are asked about between two looks at all of them: nothing of theirs can end, and to have
/// thousands wait shall cost no more than those looks.
const FEW_LIVE: usize = 1000;

/// What is to be asked about objects of which something is awaited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) urgency: Urgency,
    /// Objects whose jobs are asked about.
    pub(super) whole: Vec<Uid>,
    /// Objects of which only the jobs of the attempts from this one on are asked about.
    pub(super) parts: Vec<(Uid, Attempt)>,
    /// They have many jobs together.
    pub(super) many: bool,
}

/// All watched objects.
#[derive(Debug, Default)]
pub(super) struct Watchlist {
    entries: Mutex<HashMap<Uid, Entry>>,
    /// For whoever asks about all jobs.
    changed: Notify,
    /// For whoever asks about few of which something is awaited.
    awaited: Notify,
    /// For whoever asks about those of many jobs.
    awaited_of_many: Notify,
    /// For whoever asks history.
    wanted: Notify,
    /// For whoever asks which jobs have changed.
    answered: Notify,
}

impl Watchlist {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Uid, Entry>) -> T) -> T {
        work(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves when somebody is watched in another way than before.
    pub(super) fn changed(&self, asker: Asker) -> Notified<'_> {
        match asker {
            Asker::All => self.changed.notified(),
            Asker::Few => self.awaited.notified(),
            Asker::Many => self.awaited_of_many.notified(),
        }
    }

    /// Who asks when may be another now. All of them look.
    fn rethink(&self) {
        self.changed.notify_one();
        self.awaited.notify_one();
        self.awaited_of_many.notify_one();
    }

    /// Resolves when somebody may want history who did not before.
    pub(super) fn wanted(&self) -> Notified<'_> {
        self.wanted.notified()
    }

    /// Resolves when HTCondor has answered about somebody.
    pub(super) fn answered(&self) -> Notified<'_> {
        self.answered.notified()
    }

    pub(super) fn set(
        &self,
        uid: &Uid,
        object: &ObjectRef<Observed>,
        look: Look,
        jobs: usize,
        inherited: Arc<[InheritedJob]>,
    ) {
        let news = self.with(|entries| {
            if look == Look::Nothing {
                return entries.remove(uid).is_some();
            }
            let entry = entries.entry(uid.clone()).or_insert_with(|| Entry::new(object.clone()));
            entry.inherited = inherited;
            entry.set(look, jobs)
        });
        if news {
            self.rethink();
            self.wanted.notify_one();
        }
    }

    /// Forgets all objects but those that `wanted` says.
    pub(super) fn keep(&self, wanted: impl Fn(&Uid, &ObjectRef<Observed>) -> bool) {
        self.with(|entries| entries.retain(|uid, entry| wanted(uid, &entry.object)));
    }

    pub(super) fn evidence(&self, uid: &Uid) -> (Evidence, Option<Timestamp>) {
        self.with(|entries| match entries.get(uid) {
            Some(entry) => (entry.evidence().clone(), entry.silent_since()),
            None => (Evidence::none(), None),
        })
    }

    /// The jobs of the Go operator of these objects, or of all if none is named.
    pub(super) fn inherited(&self, uids: &[Uid]) -> WantedInherited {
        let its = |(uid, entry): (&Uid, &Entry)| {
            (!entry.inherited.is_empty()).then(|| (uid.clone(), Arc::clone(&entry.inherited)))
        };
        self.with(|entries| {
            if uids.is_empty() {
                entries.iter().filter_map(its).collect()
            } else {
                uids.iter().filter_map(|uid| its(entries.get_key_value(uid)?)).collect()
            }
        })
    }

    /// Those that are to be asked about by themselves, and how soon: `many`, of those with many jobs, else of the others. They are few:
    /// [`Self::urgency_of_all`] has the others.
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

    /// How soon all jobs are to be asked about.
    pub(super) fn urgency_of_all(&self) -> Urgency {
        self.with(|entries| {
            let few = [false, true].map(|many| {
                entries.values().filter(|entry| entry.is_awaited() && entry.is_large() == many).count() <= FEW
            });
            let urgency = |entry: &Entry| {
                if few[usize::from(entry.is_large())] {
                    entry.urgency().min(Urgency::Interval)
                } else {
                    entry.urgency()
                }
            };
            entries.values().map(urgency).max().unwrap_or(Urgency::Nothing)
        })
    }

    /// Whether it is worth asking which jobs have changed: some run, or a few wait.
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

    /// When history is to be asked next, if anybody wants it.
    pub(super) fn history_due(&self, now: Instant) -> Option<Instant> {
        self.with(|entries| entries.values().filter_map(|entry| entry.history_due(now)).min())
    }

    /// Takes down that history is being asked for those that are due: who, and how far back.
    pub(super) fn ask_history(&self, now: Instant) -> HashMap<Uid, Reach> {
        self.with(|entries| {
            let due = entries.iter_mut().filter(|(_, entry)| entry.history_due(now).is_some_and(|due| due <= now));
            due.filter_map(|(uid, entry)| Some((uid.clone(), entry.ask_history()?))).collect()
        })
    }

    /// Takes in history's answer for those that it was asked for; gives back the objects to wake.
    pub(super) fn history(
        &self,
        asked: &HashMap<Uid, Reach>,
        now: Instant,
        backoff: impl Fn() -> Backoff,
        mut part: impl FnMut(&Uid, &Reach, &Queue) -> Answer<History>,
    ) -> Vec<ObjectRef<Observed>> {
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

    /// Takes in an answer about these objects, or about all if none is named, with the time at which it was asked for; gives
    /// back the objects to wake. To some it may say nothing.
    pub(super) fn answer(
        &self,
        uids: &[Uid],
        inherited: &WantedInherited,
        mut part: impl FnMut(&Uid) -> Option<(Timestamp, Answer<Queue>)>,
    ) -> Vec<ObjectRef<Observed>> {
        let asked_for = |uid: &Uid, entry: &Entry| entry.inherited.is_empty() || inherited.contains_key(uid);
        let woken = self.with_each(uids, |uid, entry| {
            asked_for(uid, entry)
                && match part(uid) {
                    Some((_, Answer::Known(queue))) => entry.answered(queue),
                    Some((asked_at, Answer::Unknown(unknown))) => entry.unanswered(asked_at, &unknown),
                    None => false,
                }
        });
        self.rethink();
        self.wanted.notify_one();
        self.answered.notify_one();
        woken
    }

    /// Takes in the ads of the latest attempts of these objects, which `part` gives with the time at which they were asked for and the
    /// birthdate of their queue; gives back the objects to wake.
    pub(super) fn joined(
        &self,
        parts: &[(Uid, Attempt)],
        mut part: impl FnMut(&Uid) -> Option<(Timestamp, Birthdate, Vec<Ad>)>,
    ) -> Vec<ObjectRef<Observed>> {
        let woken = self.with(|entries| {
            let mut woken = Vec::new();
            for (uid, _) in parts {
                if let Some(entry) = entries.get_mut(uid)
                    && let Some((asked_at, birthdate, ads)) = part(uid)
                    && entry.joined(asked_at, birthdate, ads)
                {
                    woken.push(entry.object.clone());
                }
            }
            woken
        });
        self.rethink();
        woken
    }

    /// Takes in the ads of jobs that have changed, asked for at `asked_at`; gives back the objects to wake.
    pub(super) fn take_in_changes(&self, asked_at: Timestamp, ads: &Ads) -> Vec<ObjectRef<Observed>> {
        self.with(|entries| {
            let mut woken = Vec::new();
            for (uid, ads) in ads {
                if let Some(entry) = entries.get_mut(uid)
                    && entry.changed(asked_at, ads)
                {
                    woken.push(entry.object.clone());
                }
            }
            woken
        })
    }

    /// Takes in that there is no answer to a question put at `asked_at` about these objects, or about all if none is named;
    /// gives back the objects to which this is news.
    pub(super) fn no_answer(&self, asked_at: Timestamp, uids: &[Uid], unknown: &Unknown) -> Vec<ObjectRef<Observed>> {
        self.with_each(uids, |_, entry| entry.unanswered(asked_at, unknown))
    }

    fn with_each(&self, uids: &[Uid], mut news: impl FnMut(&Uid, &mut Entry) -> bool) -> Vec<ObjectRef<Observed>> {
        let mut woken = Vec::new();
        let mut show = |uid: &Uid, entry: &mut Entry| {
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
    use super::*;
    use crate::api::HTCJob;
    use crate::machine::SchedDate;
    use crate::machine::facts::Why;
    use crate::tracker::entry::tests::ad;
    use crate::tracker::{Question, Unanswered, no_answer};

    fn watching(jobs: usize, status: JobStatus) -> Watchlist {
        let mut job = HTCJob::new("j", crate::api::HTCJobSpec::default());
        job.metadata.namespace = Some("n".to_owned());
        let object = ObjectRef::from_obj(&crate::api::Guarded(Ok(job)));
        let (watchlist, uid) = (Watchlist::default(), Uid::from("u"));
        watchlist.set(&uid, &object, Look::Changes, jobs, Arc::default());
        assert!(!watchlist.may_change(), "nothing is known yet");
        let its = |proc| Ad { staged_in: Some(SchedDate(1)), ..ad(proc, status) };
        let ads = Arc::new((0..).take(jobs).map(its).collect());
        let queue = |_: &Uid| {
            let queue = Queue {
                asked_at: Timestamp(1),
                birthdate: Birthdate(1),
                steady_since: Timestamp(0),
                ads: Arc::clone(&ads),
                nameless: Arc::default(),
                before: None,
            };
            Some((Timestamp(1), Answer::Known(queue)))
        };
        watchlist.answer(&[], &WantedInherited::new(), queue);
        watchlist
    }

    #[test]
    fn nothing_is_asked_where_nothing_can_change() {
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
    fn who_has_changed_is_woken() {
        let watchlist = watching(2, JobStatus::Running);
        let over = Ad { staged_in: Some(SchedDate(1)), ..ad(1, JobStatus::Completed) };
        let found = |uid: &str| Ads::from([(Uid::from(uid), vec![over.clone()])]);
        assert!(watchlist.take_in_changes(Timestamp(2), &found("another")).is_empty());
        assert_eq!(watchlist.take_in_changes(Timestamp(2), &found("u")).len(), 1);
        assert!(watchlist.take_in_changes(Timestamp(3), &found("u")).is_empty());
        assert!(watchlist.may_change(), "the other one runs");
    }

    /// The first part of a question was answered in the millisecond in which the question was put.
    #[test]
    fn an_answer_stays_when_only_another_part_of_its_question_has_none() {
        let (watchlist, uid) = (watching(1, JobStatus::Idle), Uid::from("u"));
        let parts = vec![(Uid::from("other"), Attempt(2))];
        let question = Question::Awaited(Awaited { whole: vec![uid.clone()], parts, ..Awaited::default() });
        let away = Unknown { why: Why::ScheddUnreachable, message: "away".to_owned() };
        let is_known = || matches!(watchlist.evidence(&uid).0.queue, Answer::Known(_));
        assert!(no_answer(&watchlist, Timestamp(1), &question, &Unanswered::Parts(away.clone())).is_empty());
        assert!(is_known());
        assert_eq!(no_answer(&watchlist, Timestamp(1), &question, &Unanswered::Whole(away)).len(), 1);
        assert!(!is_known());
    }

    fn named(name: &str) -> ObjectRef<Observed> {
        let mut job = HTCJob::new(name, crate::api::HTCJobSpec::default());
        job.metadata.namespace = Some("n".to_owned());
        ObjectRef::from_obj(&crate::api::Guarded(Ok(job)))
    }

    const SOON: Look = Look::Every { history: None, soon: true };

    fn answer(watchlist: &Watchlist, uid: &Uid, at: i64, jobs: usize) {
        let ads = Arc::new((0..).take(jobs).map(|proc| ad(proc, JobStatus::Removed)).collect());
        let queue = Queue {
            asked_at: Timestamp(at),
            birthdate: Birthdate(1),
            steady_since: Timestamp(0),
            ads,
            nameless: Arc::default(),
            before: None,
        };
        watchlist.answer(std::slice::from_ref(uid), &WantedInherited::new(), |_| {
            Some((Timestamp(at), Answer::Known(queue.clone())))
        });
    }

    /// Whom each question about what is awaited is about, with the urgency of all.
    fn asked(watchlist: &Watchlist) -> (Vec<Uid>, Vec<Uid>, Urgency) {
        (watchlist.awaited(false).whole, watchlist.awaited(true).whole, watchlist.urgency_of_all())
    }

    #[tokio::test]
    async fn whoever_is_to_ask_next_hears_of_an_answer_that_made_a_few_jobs_many_or_many_few() {
        let (watchlist, uid) = (Watchlist::default(), Uid::from("u"));
        watchlist.set(&uid, &named("j"), SOON, 0, Arc::default());
        let told = |asker| {
            let mut told = std::pin::pin!(watchlist.changed(asker));
            told.as_mut().enable()
        };
        let drain = || [Asker::All, Asker::Few, Asker::Many].map(told);
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
    fn one_of_many_jobs_holds_up_no_question_about_few() {
        let watchlist = Watchlist::default();
        let [few, many] = ["few", "many"].map(Uid::from);
        watchlist.set(&few, &named("few"), SOON, 1, Arc::default());
        watchlist.set(&many, &named("many"), SOON, 100_000, Arc::default());
        assert_eq!(asked(&watchlist), (vec![few], vec![many.clone()], Urgency::Interval), "whatever is known of it");
        answer(&watchlist, &many, 1, 4);
        watchlist.set(&many, &named("many"), Look::Accepting(Attempt(7)), 100_000, Arc::default());
        let awaited = watchlist.awaited(true);
        assert_eq!((awaited.whole, awaited.parts), (vec![], vec![(many, Attempt(7))]));
    }

    #[test]
    fn thousands_are_asked_about_together_with_all() {
        let watchlist = Watchlist::default();
        let set = |number: usize| {
            watchlist.set(&Uid::from(number.to_string().as_str()), &named("j"), SOON, 1, Arc::default());
        };
        (0..FEW).for_each(set);
        assert_eq!((watchlist.awaited(false).whole.len(), watchlist.urgency_of_all()), (FEW, Urgency::Interval));
        set(FEW);
        assert_eq!((watchlist.awaited(false), watchlist.urgency_of_all()), (Awaited::default(), Urgency::Now));
    }
}
