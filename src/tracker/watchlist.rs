//! Who is watched, and what is known about each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::entry::{Entry, Urgency};
use super::{Asker, is_live};
use crate::api::Observed;
use crate::condor::query::{Ads, WantedInherited};
use crate::machine::decide::Look;
use crate::machine::facts::{Answer, Evidence, History, JobStatus, Queue, Reach, Unknown};
use crate::machine::inherited::InheritedJob;
use crate::machine::{Timestamp, Uid};
use crate::retry::Backoff;

/// Most objects that are asked about by themselves; it costs as much to ask about all when there are more.
const FEW: usize = 1000;

/// While none runs, so many jobs are asked about between two looks at all of them: nothing of theirs can end, and to have
/// thousands wait shall cost no more than those looks.
const FEW_LIVE: usize = 1000;

/// All watched objects.
#[derive(Debug, Default)]
pub(super) struct Watchlist {
    entries: Mutex<HashMap<Uid, Entry>>,
    /// For whoever asks about all jobs.
    changed: Notify,
    /// For whoever asks about the urgent ones.
    urgent: Notify,
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
            Asker::Urgent => self.urgent.notified(),
        }
    }

    /// Resolves when somebody may want history who did not before.
    pub(super) fn wanted(&self) -> Notified<'_> {
        self.wanted.notified()
    }

    /// Resolves when HTCondor has answered about somebody.
    pub(super) fn answered(&self) -> Notified<'_> {
        self.answered.notified()
    }

    pub(super) fn set(&self, uid: &Uid, object: &ObjectRef<Observed>, look: Look, inherited: Arc<[InheritedJob]>) {
        let news = self.with(|entries| {
            if look == Look::Nothing {
                return entries.remove(uid).is_some();
            }
            let entry = entries.entry(uid.clone()).or_insert_with(|| Entry::new(object.clone()));
            entry.inherited = inherited;
            entry.set(look)
        });
        if news {
            self.changed.notify_one();
            self.urgent.notify_one();
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

    /// Those that are to be asked about by themselves, and how soon. They are few, and have few jobs: [`Self::urgency_of_all`]
    /// has the others.
    pub(super) fn urgent(&self) -> (Urgency, Vec<Uid>) {
        self.with(|entries| {
            let urgent =
                || entries.iter().filter(|(_, entry)| entry.urgency() > Urgency::Interval && !entry.is_large());
            if urgent().take(FEW + 1).count() > FEW {
                return (Urgency::Nothing, Vec::new());
            }
            let urgency = urgent().map(|(_, entry)| entry.urgency()).max().unwrap_or(Urgency::Nothing);
            (urgency, urgent().map(|(uid, _)| uid.clone()).collect())
        })
    }

    /// How soon all jobs are to be asked about.
    pub(super) fn urgency_of_all(&self) -> Urgency {
        self.with(|entries| {
            let alone = |entry: &Entry| entry.urgency() > Urgency::Interval && !entry.is_large();
            let few = entries.values().filter(|entry| alone(entry)).count() <= FEW;
            let urgency = |entry: &Entry| {
                if few && alone(entry) { Urgency::Interval } else { entry.urgency() }
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
        self.wanted.notify_one();
        self.answered.notify_one();
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
    use crate::machine::facts::Ad;
    use crate::machine::{Birthdate, SchedDate};
    use crate::tracker::entry::tests::ad;

    fn watching(jobs: usize, status: JobStatus) -> Watchlist {
        let mut job = HTCJob::new("j", crate::api::HTCJobSpec::default());
        job.metadata.namespace = Some("n".to_owned());
        let object = ObjectRef::from_obj(&crate::api::Guarded(Ok(job)));
        let (watchlist, uid) = (Watchlist::default(), Uid::from("u"));
        watchlist.set(&uid, &object, Look::Changes, Arc::default());
        assert!(!watchlist.may_change(), "nothing is known yet");
        let ads: Arc<[Ad]> =
            (0..).take(jobs).map(|proc| Ad { staged_in: Some(SchedDate(1)), ..ad(proc, status) }).collect();
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
}
