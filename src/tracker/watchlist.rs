//! Who is watched, and what is known about each.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::entry::{Entry, Urgency};
use super::{Asker, is_live};
use crate::api::Observed;
use crate::condor::query::WantedInherited;
use crate::machine::decide::Look;
use crate::machine::facts::{Answer, Evidence, History, Queue, Reach, Unknown};
use crate::machine::inherited::InheritedJob;
use crate::machine::{JobId, Timestamp, Uid};
use crate::retry::Pauses;

/// Most objects that are asked about by themselves; it costs as much to ask about all when there are more.
const FEW: usize = 1000;

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
}

impl Watchlist {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Uid, Entry>) -> T) -> T {
        work(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves when somebody is watched in another way than before.
    pub(super) fn changed(&self, asker: &Asker<'_>) -> Notified<'_> {
        match asker {
            Asker::All(_) => self.changed.notified(),
            Asker::Urgent => self.urgent.notified(),
        }
    }

    /// Resolves when somebody may want history who did not before.
    pub(super) fn wanted(&self) -> Notified<'_> {
        self.wanted.notified()
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

    pub(super) fn evidence(&self, uid: &Uid) -> Evidence {
        self.with(|entries| entries.get(uid).map_or_else(Evidence::none, |entry| entry.evidence().clone()))
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

    /// Objects of which nothing but news is wanted.
    pub(super) fn calm(&self) -> HashSet<Uid> {
        self.with(|entries| {
            entries.iter().filter(|(_, entry)| entry.look == Look::Changes).map(|(uid, _)| uid.clone()).collect()
        })
    }

    /// The jobs that an answer asked for before `date` has shown as live.
    pub(super) fn live(&self, date: Timestamp) -> BTreeSet<JobId> {
        self.with(|entries| {
            let calm = entries.values().filter(|entry| entry.look == Look::Changes);
            let shown = calm.filter_map(|entry| match &entry.evidence().queue {
                Answer::Known(queue) if queue.asked_at < date => Some(queue),
                Answer::Known(_) | Answer::Unknown(_) => None,
            });
            shown.flat_map(|queue| queue.ads.iter()).filter(|ad| is_live(ad)).map(|ad| ad.id).collect()
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
        pauses: impl Fn() -> Pauses,
        mut part: impl FnMut(&Uid, &Reach, &Queue) -> Answer<History>,
    ) -> Vec<ObjectRef<Observed>> {
        self.with(|entries| {
            let mut woken = Vec::new();
            for (uid, reach) in asked {
                if let Some(entry) = entries.get_mut(uid)
                    && entry.history_answered(now, &pauses, |base| part(uid, reach, base))
                {
                    woken.push(entry.object.clone());
                }
            }
            woken
        })
    }

    /// Takes in an answer about these objects, or about all if none is named; gives back the objects to wake.
    pub(super) fn answer(
        &self,
        uids: &[Uid],
        inherited: &WantedInherited,
        mut part: impl FnMut(&Uid) -> Queue,
    ) -> Vec<ObjectRef<Observed>> {
        let asked_for = |uid: &Uid, entry: &Entry| entry.inherited.is_empty() || inherited.contains_key(uid);
        let woken = self.with_each(uids, |uid, entry| asked_for(uid, entry) && entry.answered(part(uid)));
        self.wanted.notify_one();
        woken
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
