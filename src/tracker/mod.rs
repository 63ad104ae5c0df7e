//! Asks HTCondor about all jobs at once, and wakes the objects whose jobs changed.
//!
//! One condor_q for each interval, and only while something is watched; history only for objects that ask for it, after
//! the queue.

mod watchlist;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::time::Instant;

use crate::condor::query::{Ads, HistoryAnswer, reach};
use crate::condor::schedd::{Reading, Schedd};
use crate::controller::Observed;
use crate::machine::decide::Look;
use crate::machine::facts::{Ad, Answer, Evidence, History, JobStatus, Queue, Reach, Unknown, Why};
use crate::machine::{Birthdate, JobId, SchedDate, Timestamp, Uid};
use crate::retry::Pauses;
use crate::workers::Wake;
use watchlist::Watchlist;

/// A clock that is off by more than this is worth a warning.
const SKEW: i64 = 10;

/// Asks one schedd.
#[derive(Debug)]
pub struct Tracker {
    schedd: Arc<Schedd>,
    watchlist: Watchlist,
    wake: Wake,
    interval: Duration,
    soon: Duration,
    store: OnceLock<Store<Observed>>,
}

/// What one look found.
struct Found {
    asked_at: Timestamp,
    birthdate: Birthdate,
    ads: Ads,
}

/// What a look is compared with.
#[derive(Default)]
struct Before {
    birthdate: Option<(Birthdate, Timestamp)>,
    live: BTreeSet<JobId>,
    doubted: bool,
}

impl Tracker {
    /// Asks `schedd` every `interval`, and every `soon` while something is about to change.
    #[must_use]
    pub fn new(schedd: Arc<Schedd>, wake: Wake, interval: Duration, soon: Duration) -> Self {
        Self { schedd, watchlist: Watchlist::default(), wake, interval, soon, store: OnceLock::new() }
    }

    /// From now on, objects that are not in `store` are forgotten: nobody says so when one goes.
    pub fn forget_what_leaves(&self, store: Store<Observed>) {
        let _ = self.store.set(store);
    }

    /// Watches an object, or no longer.
    pub fn watch(&self, uid: &Uid, object: &ObjectRef<Observed>, look: Look) {
        self.watchlist.set(uid, object, look);
    }

    /// What is known about an object's jobs.
    #[must_use]
    pub fn evidence(&self, uid: &Uid) -> Evidence {
        self.watchlist.evidence(uid)
    }

    /// Runs until it is dropped.
    pub async fn run(&self) {
        let mut before = Before::default();
        let mut pauses = Pauses::new(self.soon, self.interval.max(self.soon));
        let mut failed = None;
        loop {
            self.wait(Instant::now(), failed.take()).await;
            match self.look(&mut before).await {
                Ok(()) => pauses.reset(),
                // Not a word of it is told before it is seen twice.
                Err(unknown) if unknown.why == Why::SuddenDrop => {
                    tracing::info!(message = %unknown.message);
                    failed = Some(self.soon);
                }
                Err(unknown) => {
                    tracing::debug!(why = %unknown.why, message = %unknown.message, "no answer from HTCondor");
                    self.wake(self.watchlist.no_answer(&unknown)).await;
                    failed = Some(pauses.pause());
                }
            }
        }
    }

    /// Waits until it is time to ask again: when something is watched, at the interval, or soon.
    async fn wait(&self, last: Instant, failed: Option<Duration>) {
        loop {
            let changed = self.watchlist.changed();
            let pause = match (failed, self.watchlist.urgency()) {
                (_, watchlist::Urgency::Nothing) => None,
                (Some(pause), _) => Some(pause),
                (None, watchlist::Urgency::Interval) => Some(self.interval),
                (None, watchlist::Urgency::Soon) => Some(self.soon),
                (None, watchlist::Urgency::Now) => Some(self.soon / 10),
            };
            match pause {
                None => changed.await,
                Some(pause) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(last + pause) => return,
                        () = changed => {}
                    }
                }
            }
        }
    }

    async fn look(&self, before: &mut Before) -> Result<(), Unknown> {
        if let Some(store) = self.store.get() {
            self.watchlist.keep(|uid, object| {
                store.get(object).is_some_and(|object| object.uid().as_deref() == Some(uid.as_str()))
            });
        }
        let wanted = self.watchlist.wanted();
        let first = self.schedd.reading().await?;
        let asked_at = self.schedd.clock.now();
        let ads = self.schedd.queue().await?;
        let second = self.schedd.reading().await?;
        if first.birthdate != second.birthdate {
            return Err(Unknown {
                why: Why::AnotherSchedd,
                message: format!("the JobQueueBirthdate of schedd {} changed while it was asked", self.schedd.name),
            });
        }
        warn_of_skew(&second, asked_at);
        crate::metrics::looked();
        let found = Found { asked_at, birthdate: second.birthdate, ads };
        self.doubt_sudden_drop(before, &found)?;
        let steady_since = match before.birthdate {
            Some((birthdate, since)) if birthdate == found.birthdate => since,
            _ => asked_at,
        };
        before.birthdate = Some((found.birthdate, steady_since));
        let history = self.ask_history(&wanted).await;
        self.publish(found, steady_since, &wanted, &history).await;
        Ok(())
    }

    /// If more than half of the live jobs vanish at once, it is asked again before that is believed.
    fn doubt_sudden_drop(&self, before: &mut Before, found: &Found) -> Result<(), Unknown> {
        let present: BTreeSet<JobId> = found.ads.values().flatten().map(|ad| ad.id).collect();
        let vanished = before.live.iter().filter(|id| !present.contains(id)).count();
        if vanished * 2 > before.live.len() && !before.doubted {
            before.doubted = true;
            let message = format!(
                "{vanished} of {} live jobs vanished from schedd {} at once; asking again",
                before.live.len(),
                self.schedd.name
            );
            return Err(Unknown { why: Why::SuddenDrop, message });
        }
        before.doubted = false;
        // Jobs of objects that are being judged or deleted are expected to vanish.
        before.live = self
            .watchlist
            .calm()
            .iter()
            .filter_map(|uid| found.ads.get(uid))
            .flatten()
            .filter(|ad| !matches!(ad.status, JobStatus::Removed | JobStatus::Completed))
            .map(|ad| ad.id)
            .collect();
        Ok(())
    }

    /// Asks history for those that want it: once for all of them.
    async fn ask_history(&self, wanted: &HashMap<Uid, Reach>) -> Answer<(Timestamp, HistoryAnswer, Option<SchedDate>)> {
        let asked_at = self.schedd.clock.now();
        if wanted.is_empty() {
            return Answer::Known((asked_at, HistoryAnswer::default(), None));
        }
        let uids: Vec<Uid> = wanted.keys().cloned().collect();
        let witnesses: BTreeSet<String> = wanted.values().flat_map(|reach| reach.witnesses.iter().cloned()).collect();
        let dates = wanted.values().filter_map(|reach| reach.date).min();
        let answer = async {
            let found = self.schedd.history(&uids, &witnesses).await?;
            let reached = match dates {
                Some(date) => self.schedd.history_reaches(date).await?.then_some(date),
                None => None,
            };
            Ok((asked_at, found, reached))
        };
        answer.await.map_or_else(Answer::Unknown, Answer::Known)
    }

    async fn publish(
        &self,
        mut found: Found,
        steady_since: Timestamp,
        wanted: &HashMap<Uid, Reach>,
        history: &Answer<(Timestamp, HistoryAnswer, Option<SchedDate>)>,
    ) {
        let woken = self.watchlist.answer(|uid| {
            let ads: Arc<[Ad]> = found.ads.remove(uid).unwrap_or_default().into();
            let queue = Queue { asked_at: found.asked_at, birthdate: found.birthdate, steady_since, ads };
            let history = wanted.get(uid).map(|asked| match history {
                Answer::Unknown(unknown) => Answer::Unknown(unknown.clone()),
                Answer::Known((asked_at, answer, date)) => Answer::Known(History {
                    asked_at: *asked_at,
                    reaches: reach(asked, &answer.witnesses, *date),
                    ads: answer.ads.get(uid).cloned().unwrap_or_default().into(),
                }),
            });
            (queue, history)
        });
        self.wake(woken).await;
    }

    async fn wake(&self, objects: Vec<ObjectRef<Observed>>) {
        for object in objects {
            // The receiver goes only when the operator ends.
            let _ = self.wake.send(object).await;
        }
    }
}

fn warn_of_skew(reading: &Reading, now: Timestamp) {
    let skew = reading.date.0 - now.0 / 1000;
    if skew.abs() > SKEW {
        tracing::warn!(
            skew_seconds = skew,
            "the schedd's clock and the operator's differ; times of submissions are the schedd's"
        );
    }
}
