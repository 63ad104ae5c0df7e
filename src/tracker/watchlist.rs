//! Who is watched, and what is known about each.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::controller::Observed;
use crate::machine::Uid;
use crate::machine::decide::Look;
use crate::machine::facts::{Answer, Evidence, History, Queue, Reach, Unknown, Why};

/// How soon HTCondor should be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Not at all: nothing is watched.
    Nothing,
    /// At the usual interval.
    Interval,
    /// A little later.
    Soon,
    /// At once: something is watched of which nothing is known yet.
    Now,
}

#[derive(Debug)]
struct Entry {
    object: ObjectRef<Observed>,
    look: Look,
    evidence: Evidence,
    /// History was wanted at the last look, and is not here yet.
    owed: bool,
}

impl Entry {
    fn urgency(&self) -> Urgency {
        let unknown = matches!(&self.evidence.queue, Answer::Unknown(unknown) if unknown.why == Why::NotAsked);
        match &self.look {
            Look::Nothing => Urgency::Nothing,
            _ if unknown || self.owed => Urgency::Now,
            Look::Changes | Look::Every { soon: false, .. } => Urgency::Interval,
            Look::Every { soon: true, .. } => Urgency::Soon,
        }
    }
}

/// All watched objects.
#[derive(Debug, Default)]
pub(super) struct Watchlist {
    entries: Mutex<HashMap<Uid, Entry>>,
    changed: Notify,
}

impl Watchlist {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Uid, Entry>) -> T) -> T {
        work(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves when somebody is watched in another way than before.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub(super) fn set(&self, uid: &Uid, object: &ObjectRef<Observed>, look: Look) {
        let news = self.with(|entries| {
            if look == Look::Nothing {
                return entries.remove(uid).is_some();
            }
            let entry = entries.entry(uid.clone()).or_insert_with(|| Entry {
                object: object.clone(),
                look: Look::Nothing,
                evidence: Evidence::none(),
                owed: false,
            });
            let wants = |look: &Look| matches!(look, Look::Every { history: Some(_), .. });
            entry.owed |= wants(&look) && !wants(&entry.look);
            let news = entry.look != look;
            entry.look = look;
            news
        });
        if news {
            self.changed.notify_one();
        }
    }

    /// Forgets all objects but those that `wanted` says.
    pub(super) fn keep(&self, wanted: impl Fn(&Uid, &ObjectRef<Observed>) -> bool) {
        self.with(|entries| entries.retain(|uid, entry| wanted(uid, &entry.object)));
    }

    pub(super) fn evidence(&self, uid: &Uid) -> Evidence {
        self.with(|entries| entries.get(uid).map_or_else(Evidence::none, |entry| entry.evidence.clone()))
    }

    pub(super) fn urgency(&self) -> Urgency {
        self.with(|entries| entries.values().map(Entry::urgency).max().unwrap_or(Urgency::Nothing))
    }

    /// Who wants history, and how far back.
    pub(super) fn wanted(&self) -> HashMap<Uid, Reach> {
        self.with(|entries| {
            entries
                .iter()
                .filter_map(|(uid, entry)| match &entry.look {
                    Look::Every { history: Some(reach), .. } => Some((uid.clone(), reach.clone())),
                    Look::Every { history: None, .. } | Look::Changes | Look::Nothing => None,
                })
                .collect()
        })
    }

    /// Objects of which nothing but news is wanted.
    pub(super) fn calm(&self) -> HashSet<Uid> {
        self.with(|entries| {
            entries.iter().filter(|(_, entry)| entry.look == Look::Changes).map(|(uid, _)| uid.clone()).collect()
        })
    }

    /// Takes in an answer; gives back the objects to wake.
    pub(super) fn answer(
        &self,
        mut part: impl FnMut(&Uid) -> (Queue, Option<Answer<History>>),
    ) -> Vec<ObjectRef<Observed>> {
        self.with(|entries| {
            let mut woken = Vec::new();
            for (uid, entry) in entries.iter_mut() {
                let (queue, history) = part(uid);
                let news = match &entry.evidence.queue {
                    Answer::Known(old) => old.ads != queue.ads || old.birthdate != queue.birthdate,
                    Answer::Unknown(_) => true,
                };
                entry.evidence.queue = Answer::Known(queue);
                if let Some(history) = history {
                    entry.evidence.history = history;
                    entry.owed = false;
                }
                if news || matches!(entry.look, Look::Every { .. }) {
                    woken.push(entry.object.clone());
                }
            }
            woken
        })
    }

    /// Takes in that there is no answer; gives back the objects to which this is news.
    pub(super) fn no_answer(&self, unknown: &Unknown) -> Vec<ObjectRef<Observed>> {
        self.with(|entries| {
            let mut woken = Vec::new();
            for entry in entries.values_mut() {
                let news = !matches!(&entry.evidence.queue, Answer::Unknown(old) if old.why == unknown.why);
                entry.evidence.queue = Answer::Unknown(unknown.clone());
                if news {
                    woken.push(entry.object.clone());
                }
            }
            woken
        })
    }
}
