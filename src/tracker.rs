//! Asks HTCondor about all jobs at once, and wakes the objects whose jobs changed.
//!
//! One look at all jobs at each interval, and only while something is watched. Beside it, so that none of them holds up
//! another: short questions about the few objects with which something is about to happen; which jobs have changed since, as
//! often as that is cheap; and history, which may take minutes, only for objects that ask for it, after the queue.

mod entry;
mod pace;
mod watchlist;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::api::{Observed, Wake};
use crate::condor::query::{HistoryAnswer, Shown, WantedInherited, reach};
use crate::condor::schedd::{Reading, Schedd};
use crate::machine::decide::Look;
use crate::machine::facts::{Ad, Answer, Evidence, History, Queue, Reach, Unknown, Why};
use crate::machine::inherited::InheritedJob;
use crate::machine::{Attempt, Birthdate, SchedDate, Timestamp, Uid};
use crate::metrics::Metrics;
use crate::retry::Backoff;
use pace::Recent;
use watchlist::{Awaited, Watchlist};

/// Changes of the watchlist that come in so short a time are looked at together: each look goes over all of it.
const SETTLE: Duration = Duration::from_millis(20);

/// Which jobs have changed is asked from so many seconds before the last answer on: the schedd's clock is read once in an
/// interval, and what is shown twice does no harm.
const OVERLAP: i64 = 5;

/// Time limit of that question. One that takes longer may be asked only as seldom as all jobs are looked at.
const CHANGES_LIMIT: Duration = Duration::from_secs(5);

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
    /// Longest pause between two questions to history that bring no news.
    longest: Duration,
    steady: Mutex<Option<Steady>>,
    /// All objects, and whether they were listed once.
    objects: OnceLock<(Store<Observed>, watch::Receiver<bool>)>,
    last: Mutex<LastLooks>,
    /// Held by who looks at all jobs and by who asks which have changed: of two answers about one job, the younger is shown.
    turn: tokio::sync::Mutex<()>,
    metrics: Metrics,
}

/// The last looks at all jobs that were answered.
#[derive(Debug)]
struct LastLooks {
    /// When the last of them was asked for.
    asked_at: Timestamp,
    costs: Recent,
}

/// What one look found.
struct Found {
    asked_at: Timestamp,
    birthdate: Birthdate,
    steady_since: Timestamp,
    shown: Shown,
}

/// The birthdate that the latest answers had.
#[derive(Debug)]
struct Steady {
    birthdate: Birthdate,
    /// When the first of them was asked for.
    since: Timestamp,
    /// When the last of them was asked for.
    latest: Timestamp,
}

/// Who asks about the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asker {
    /// About all jobs.
    All,
    /// About those of objects of which something is awaited.
    Few,
    /// The same about objects with many jobs, beside the others: it holds up none of them.
    Many,
}

/// What is asked.
enum Question {
    All,
    Awaited(Awaited),
}

impl Question {
    /// Of how many HTCJobs, for the log.
    fn about(&self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Awaited(awaited) => (awaited.whole.len() + awaited.parts.len()).to_string(),
        }
    }
}

/// Which part of a question was not answered.
enum Unanswered {
    /// That about all jobs of its objects.
    Whole(Unknown),
    /// Only that about jobs of the latest attempts of some; the other one was answered.
    Parts(Unknown),
}

/// What history has.
struct FoundInHistory {
    answer: HistoryAnswer,
    /// The date that was asked about, if history reaches back to it.
    reached: Option<SchedDate>,
    /// That of the schedd that answered, read afterwards.
    birthdate: Birthdate,
}

impl Tracker {
    /// Asks `schedd` every `interval`, and every `soon` while something is about to change. Where history brings no news it
    /// is asked with pauses that grow from `interval` to `longest`.
    #[must_use]
    pub fn new(
        schedd: Arc<Schedd>,
        wake: Wake,
        interval: Duration,
        soon: Duration,
        longest: Duration,
        metrics: Metrics,
    ) -> Self {
        let (watchlist, steady, objects) = (Watchlist::default(), Mutex::default(), OnceLock::new());
        let last = Mutex::new(LastLooks { asked_at: schedd.clock.now(), costs: Recent::default() });
        let turn = tokio::sync::Mutex::default();
        Self { schedd, watchlist, wake, interval, soon, longest, steady, objects, last, turn, metrics }
    }

    /// From now on, objects that are not in `store` are forgotten: nobody says so when one goes. `listed`: whether it had all of them once.
    pub fn forget_what_leaves(&self, store: Store<Observed>, listed: watch::Receiver<bool>) {
        let _ = self.objects.set((store, listed));
    }

    /// Watches an object, or no longer. `jobs`: the number of its jobs, or 0; `inherited`: its jobs of the Go operator that may be in
    /// HTCondor.
    pub fn watch(
        &self,
        uid: &Uid,
        object: &ObjectRef<Observed>,
        look: Look,
        jobs: usize,
        inherited: Arc<[InheritedJob]>,
    ) {
        self.watchlist.set(uid, object, look, jobs, inherited);
    }

    /// What is known about an object's jobs, and since when the queue is silent if it is.
    #[must_use]
    pub fn evidence(&self, uid: &Uid) -> (Evidence, Option<Timestamp>) {
        self.watchlist.evidence(uid)
    }

    /// Runs until it is dropped.
    pub async fn run(&self) {
        let [all, few, many] = [Asker::All, Asker::Few, Asker::Many].map(|asker| self.follow(asker));
        tokio::join!(all, few, many, self.follow_changes(), self.follow_history());
    }

    /// Asks the queue again and again, about all jobs or about what is awaited.
    async fn follow(&self, asker: Asker) {
        let mut backoff = Backoff::new(self.soon, self.interval.max(self.soon));
        let (mut failed, mut took) = (None, Duration::ZERO);
        loop {
            let question = self.wait(asker, Instant::now(), failed.take(), took).await;
            let (began, asked_at) = (Instant::now(), self.schedd.clock.now());
            let result = Box::pin(self.look_once(&question)).await;
            took = began.elapsed();
            match result {
                Ok(()) => backoff.reset(),
                Err(failure) => {
                    self.wake(no_answer(&self.watchlist, asked_at, &question, &failure)).await;
                    failed = Some(backoff.pause());
                }
            }
        }
    }

    /// One look.
    #[tracing::instrument(name = "look", level = "error", skip_all, fields(htcjobs = question.about()))]
    async fn look_once(&self, question: &Question) -> Result<(), Unanswered> {
        let result = match question {
            Question::All => self.look().await.map_err(Unanswered::Whole),
            Question::Awaited(awaited) => self.look_at(&awaited.whole, &awaited.parts).await,
        };
        match &result {
            Ok(()) => {}
            Err(Unanswered::Whole(unknown) | Unanswered::Parts(unknown)) => {
                tracing::debug!(why = %unknown.why, message = %unknown.message, "no answer from HTCondor");
            }
        }
        result
    }

    /// Waits until it is time to ask, and what.
    async fn wait(&self, asker: Asker, last: Instant, failed: Option<Duration>, took: Duration) -> Question {
        loop {
            let changed = self.watchlist.changed(asker);
            let (usual, question) = match asker {
                Asker::All => {
                    let urgency = self.watchlist.urgency_of_all();
                    (pace::until_next_look(urgency, self.interval, self.soon, took), Question::All)
                }
                Asker::Few | Asker::Many => {
                    let awaited = self.watchlist.awaited(asker == Asker::Many);
                    let (urgency, many) = (awaited.urgency, awaited.many);
                    let pause = pace::until_next_question(urgency, self.interval, self.soon, many, took);
                    (pause, Question::Awaited(awaited))
                }
            };
            let pause = usual.map(|pause| failed.unwrap_or(pause));
            match pause {
                None => changed.await,
                Some(pause) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(last + pause) => return question,
                        () = changed => {}
                    }
                }
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    /// Asks again and again which jobs have changed, at the pace that their cost allows.
    async fn follow_changes(&self) {
        let (mut since, mut costs, mut failed) = (self.schedd.clock.now(), Recent::default(), false);
        loop {
            let answered = self.watchlist.answered();
            let of_all = self.last_looks().costs.mean();
            let pause = if failed { Some(self.interval) } else { pace::pause(costs.mean(), of_all, self.interval) };
            match pause.filter(|_| self.watchlist.may_change()) {
                None => {
                    answered.await;
                    continue;
                }
                Some(pause) => tokio::time::sleep(pause).await,
            }
            if !self.watchlist.may_change() {
                continue;
            }
            let turn = self.turn.lock().await;
            let (asked_at, before) = (self.schedd.clock.now(), self.schedd.spent());
            since = since.max(self.last_looks().asked_at);
            let Some(SchedDate(date)) = self.schedd.date(since) else { continue };
            let changed = self.schedd.changed_since(SchedDate(date - OVERLAP), CHANGES_LIMIT);
            let found = changed.instrument(tracing::error_span!("look", htcjobs = "changed")).await;
            costs.add(self.schedd.spent() - before);
            failed = found.is_err();
            match found {
                Ok(shown) => {
                    since = asked_at;
                    let woken = self.watchlist.take_in_changes(asked_at, &shown.ads);
                    drop(turn);
                    self.wake(woken).await;
                }
                // Whether HTCondor answers is for the next look at all jobs to say.
                Err(unknown) => {
                    tracing::debug!(why = %unknown.why, message = %unknown.message, "no answer from HTCondor");
                }
            }
        }
    }

    fn last_looks(&self) -> MutexGuard<'_, LastLooks> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks history for all that want it, one question at a time.
    async fn follow_history(&self) {
        loop {
            let wanted = self.watchlist.wanted();
            match self.watchlist.history_due(Instant::now()) {
                Some(due) if due <= Instant::now() => self.look_into_history().await,
                Some(due) => tokio::select! {
                    () = tokio::time::sleep_until(due) => {}
                    () = wanted => tokio::time::sleep(SETTLE).await,
                },
                None => wanted.await,
            }
        }
    }

    #[tracing::instrument(level = "error", skip_all, fields(htcjobs))]
    async fn look_into_history(&self) {
        let wanted = self.watchlist.ask_history(Instant::now());
        tracing::Span::current().record("htcjobs", wanted.len());
        let asked_at = self.schedd.clock.now();
        let found = self.ask_history(&wanted).await;
        match &found {
            Ok(found) => self.count_unreadable("history", &found.answer.shown),
            Err(unknown) => {
                tracing::debug!(why = %unknown.why, message = %unknown.message, "no answer from HTCondor's history");
            }
        }
        let backoff = || Backoff::new(self.interval, self.longest.max(self.interval));
        let woken = self.watchlist.history(&wanted, Instant::now(), backoff, |uid, asked, base| match &found {
            Err(unknown) => Answer::Unknown(unknown.clone()),
            Ok(found) if found.birthdate != base.birthdate => Answer::Unknown(self.another_schedd()),
            Ok(FoundInHistory { answer, reached, .. }) => answer.shown.doubt(uid, &self.schedd.users).map_or_else(
                || {
                    Answer::Known(History {
                        asked_at,
                        reaches: reach(asked, &answer.witnesses, *reached),
                        ads: answer.shown.ads.get(uid).cloned().unwrap_or_default().into(),
                    })
                },
                Answer::Unknown,
            ),
        });
        self.wake(woken).await;
    }

    /// Asks about all jobs.
    async fn look(&self) -> Result<(), Unknown> {
        if let Some((store, _)) = self.objects.get() {
            self.watchlist.keep(|uid, object| {
                store.get(object).is_some_and(|object| object.uid().as_deref() == Some(uid.as_str()))
            });
        }
        let _turn = self.turn.lock().await;
        let spent = self.schedd.spent();
        let inherited = self.watchlist.inherited(&[]);
        let found = self.ask(self.with_inherited(&inherited, Box::pin(self.schedd.queue()))).await?;
        {
            let mut last = self.last_looks();
            last.asked_at = found.asked_at;
            last.costs.add(self.schedd.spent() - spent);
        }
        self.metrics.looked();
        self.count_unreadable("queue", &found.shown);
        self.count_orphans(&found.shown);
        self.publish(found, &[], &inherited).await;
        Ok(())
    }

    fn count_unreadable(&self, place: &'static str, shown: &Shown) {
        let of_htcjobs = shown.unreadable.values().map(Vec::len).sum();
        self.metrics.unreadable(place, of_htcjobs, shown.ignored);
    }

    /// Of all objects that had jobs when HTCondor was asked, one that went since had been proved to have none.
    fn count_orphans(&self, shown: &Shown) {
        let Some((store, _)) = self.objects.get().filter(|(_, listed)| *listed.borrow()) else { return };
        let objects: HashSet<Uid> =
            store.state().iter().filter_map(|object| object.uid()).map(|uid| Uid::from(uid.as_str())).collect();
        self.metrics
            .orphans(shown.ads.iter().filter(|(uid, _)| !objects.contains(*uid)).map(|(_, ads)| ads.len()).sum());
    }

    /// Asks about the jobs of some objects, and about those of the latest attempts of others.
    async fn look_at(&self, whole: &[Uid], parts: &[(Uid, Attempt)]) -> Result<(), Unanswered> {
        if !whole.is_empty() {
            self.look_at_whole(whole).await.map_err(Unanswered::Whole)?;
        }
        if !parts.is_empty() {
            self.look_at_parts(parts).await.map_err(Unanswered::Parts)?;
        }
        Ok(())
    }

    /// Asks about the jobs of these attempts of these objects. What is found are jobs that are there; the answer says of none that it is
    /// not. As it says more of them than an earlier answer, it is asked for while no look at all jobs is under way.
    async fn look_at_parts(&self, parts: &[(Uid, Attempt)]) -> Result<(), Unknown> {
        let _turn = self.turn.lock().await;
        let found = self.ask(Box::pin(self.schedd.queue_of_attempts(parts))).await?;
        let Found { asked_at, birthdate, mut shown, .. } = found;
        let users = &self.schedd.users;
        let woken = self.watchlist.joined(parts, |uid| {
            let unsure = users.assigned(uid).is_some_and(|(_, since)| asked_at <= since);
            if unsure || shown.doubt(uid, users).is_some() {
                return None;
            }
            Some((asked_at, birthdate, shown.ads.remove(uid).unwrap_or_default()))
        });
        self.wake(woken).await;
        Ok(())
    }

    /// Asks about the jobs of these objects: what is found is all that there is of them.
    async fn look_at_whole(&self, uids: &[Uid]) -> Result<(), Unknown> {
        let inherited = self.watchlist.inherited(uids);
        let found = self.ask(self.with_inherited(&inherited, Box::pin(self.schedd.queue_of(uids)))).await?;
        self.publish(found, uids, &inherited).await;
        Ok(())
    }

    /// Asks about jobs of the Go operator, too, as long as there are any.
    async fn with_inherited(
        &self,
        wanted: &WantedInherited,
        question: impl Future<Output = Result<Shown, Unknown>>,
    ) -> Result<Shown, Unknown> {
        if wanted.is_empty() {
            return question.await;
        }
        let inherited = self.schedd.queue_of_inherited(wanted).await?;
        let mut shown = question.await?;
        shown.merge(inherited);
        Ok(shown)
    }

    /// Puts one question, and reads the birthdate before and after it.
    async fn ask(&self, question: impl Future<Output = Result<Shown, Unknown>>) -> Result<Found, Unknown> {
        let first = self.schedd.recent_reading().await?;
        let asked_at = self.schedd.clock.now();
        let shown = question.await?;
        let second = self.schedd.reading().await?;
        if first.birthdate != second.birthdate {
            return Err(self.another_schedd());
        }
        warn_of_skew(&second, asked_at);
        let steady_since = self.steady_since(second.birthdate, asked_at);
        Ok(Found { asked_at, birthdate: second.birthdate, steady_since, shown })
    }

    /// Since when all answers have had this birthdate. One that comes after a younger answer with another is steady since
    /// no time at all.
    fn steady_since(&self, birthdate: Birthdate, asked_at: Timestamp) -> Timestamp {
        let mut steady = self.steady.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *steady {
            Some(seen) if seen.birthdate == birthdate => {
                seen.latest = seen.latest.max(asked_at);
                seen.since = seen.since.min(asked_at);
                seen.since
            }
            Some(seen) if seen.latest > asked_at => asked_at,
            _ => {
                *steady = Some(Steady { birthdate, since: asked_at, latest: asked_at });
                asked_at
            }
        }
    }

    fn another_schedd(&self) -> Unknown {
        let message = format!("the JobQueueBirthdate of schedd {} changed while it was asked", self.schedd.name);
        Unknown { why: Why::AnotherSchedd, message }
    }

    async fn ask_history(&self, wanted: &HashMap<Uid, Reach>) -> Result<FoundInHistory, Unknown> {
        let uids: Vec<Uid> = wanted.keys().cloned().collect();
        let witnesses: BTreeSet<String> = wanted.values().flat_map(|reach| reach.witnesses.iter().cloned()).collect();
        let mut answer = self.schedd.history(&uids, &witnesses).await?;
        let inherited = self.watchlist.inherited(&uids);
        if !inherited.is_empty() {
            answer.shown.merge(self.schedd.history_of_inherited(&inherited).await?);
        }
        let reached = match wanted.values().filter_map(|reach| reach.date).min() {
            Some(date) => self.schedd.history_reaches(date).await?.then_some(date),
            None => None,
        };
        Ok(FoundInHistory { answer, reached, birthdate: self.schedd.reading().await?.birthdate })
    }

    /// Shows what was found to these objects, or to all if none is named.
    ///
    /// Whoever has jobs of the Go operator hears only an answer that was asked for them, too: to any other they are not there.
    /// And whoever was not yet known to be of one identity hears only a later answer: to this one, anybody's jobs could be its.
    async fn publish(&self, found: Found, uids: &[Uid], inherited: &WantedInherited) {
        let Found { asked_at, birthdate, steady_since, mut shown } = found;
        let users = &self.schedd.users;
        let woken = self.watchlist.answer(uids, inherited, |uid| {
            if users.assigned(uid).is_some_and(|(_, since)| asked_at <= since) {
                return None;
            }
            if let Some(doubt) = shown.doubt(uid, users) {
                return Some((asked_at, Answer::Unknown(doubt)));
            }
            let ads = Arc::new(shown.ads.remove(uid).unwrap_or_default());
            let nameless = shown.nameless_in_its_name(uid, users);
            Some((asked_at, Answer::Known(Queue { asked_at, birthdate, steady_since, ads, nameless, before: None })))
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

/// Takes in that there was no answer; gives back the objects to wake. Of objects that were asked about in part, the next look at all their
/// jobs says so.
fn no_answer(
    watchlist: &Watchlist,
    asked_at: Timestamp,
    question: &Question,
    failure: &Unanswered,
) -> Vec<ObjectRef<Observed>> {
    match (question, failure) {
        (Question::All, Unanswered::Whole(unknown) | Unanswered::Parts(unknown)) => {
            watchlist.no_answer(asked_at, &[], unknown)
        }
        (Question::Awaited(Awaited { whole, .. }), Unanswered::Whole(unknown)) if !whole.is_empty() => {
            watchlist.no_answer(asked_at, whole, unknown)
        }
        (Question::Awaited(_), _) => Vec::new(),
    }
}

const fn is_live(ad: &Ad) -> bool {
    !ad.status.is_over()
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
