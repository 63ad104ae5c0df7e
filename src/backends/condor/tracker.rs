//! Queries HTCondor about all jobs together, and wakes the objects whose jobs changed.
//!
//! All jobs are queried once in each interval, and only while objects are watched. Three other kinds of queries run
//! independently, so that none delays another: short queries about the few objects that are about to change; queries
//! for the jobs that have changed since, as often as they are cheap; and queries of the history. The history may take
//! minutes, and is queried after the queue, only for objects that need it.

mod pace;
mod watched_object;
mod watchlist;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use htc_api::ObservedHTCJob;
use htc_machine::decide::Polling;
use htc_machine::facts::{Ad, Answer, Evidence, History, HistoryReach, QueryError, QueryErrorKind, QueueAnswer};
use htc_machine::{Attempt, Birthdate, SchedDate, Timestamp, Uid};
use htc_support::kubernetes::Wake;
use htc_support::metrics::Metrics;
use htc_support::retry::Backoff;
use htcondor::query::{AdListing, HistoryAnswer, reach};
use htcondor::schedd::{Schedd, ScheddReading};
use kube::ResourceExt as _;
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument as _;

use pace::RecentCosts;
use watchlist::{Awaited, Watchlist};

/// Time to collect changes of the watchlist before it is evaluated, because each evaluation reads all of it.
const SETTLE: Duration = Duration::from_millis(20);

/// Seconds before the last answer from which changed jobs are queried again. The schedd's clock is read once in an
/// interval, and repeated answers do no harm.
const OVERLAP: i64 = 5;

/// Timeout of the query for changed jobs. A query that takes longer may run only as rarely as the query for all jobs.
const CHANGES_LIMIT: Duration = Duration::from_secs(5);

/// Difference of clocks, in seconds, above which a warning is logged.
const SKEW: i64 = 10;

/// Queries one schedd.
#[derive(Debug)]
pub struct Tracker {
    schedd: Arc<Schedd>,
    watchlist: Watchlist,
    wake: Wake,
    interval: Duration,
    soon: Duration,
    /// Longest pause between two queries of the history without news.
    longest: Duration,
    steady: Mutex<Option<SteadyBirthdate>>,
    /// Watch cache of all objects, and whether its initial list is complete.
    objects: OnceLock<(Store<ObservedHTCJob>, watch::Receiver<bool>)>,
    last: Mutex<LastPolls>,
    /// Held by the query for all jobs and by the query for changed jobs, so that of two answers about one job the later
    /// one is kept.
    turn: tokio::sync::Mutex<()>,
    metrics: Metrics,
}

/// The last answered queries for all jobs.
#[derive(Debug)]
struct LastPolls {
    /// Time when the last one was started.
    asked_at: Timestamp,
    costs: RecentCosts,
}

/// Result of one query of the queue.
struct PollResult {
    asked_at: Timestamp,
    birthdate: Birthdate,
    steady_since: Timestamp,
    shown: AdListing,
}

/// The birthdate of the job queue in the latest answers.
#[derive(Debug)]
struct SteadyBirthdate {
    birthdate: Birthdate,
    /// Start of the first query with this birthdate.
    since: Timestamp,
    /// Start of the last query with this birthdate.
    latest: Timestamp,
}

/// Kinds of pollers of the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Poller {
    /// Queries all jobs.
    All,
    /// Queries the jobs of objects from which a change is expected.
    Few,
    /// Like [`Self::Few`], for objects with many jobs, separately so that they do not delay others.
    Many,
}

/// A query of the queue.
enum Question {
    All,
    Awaited(Awaited),
}

impl Question {
    /// Returns the number of HTCJobs, for the log.
    fn about(&self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Awaited(awaited) => (awaited.whole.len() + awaited.parts.len()).to_string(),
        }
    }
}

/// The part of a query that was not answered.
enum Unanswered {
    /// The query for all jobs of its objects.
    Whole(QueryError),
    /// Only the query for jobs of the latest attempts of some objects; the other one was answered.
    Parts(QueryError),
}

/// Result of a query of the history.
struct HistoryResult {
    answer: HistoryAnswer,
    /// The requested date, if the history reaches back to it.
    reached: Option<SchedDate>,
    /// Birthdate of the schedd that answered, read after the query.
    birthdate: Birthdate,
}

impl Tracker {
    /// Queries `schedd` every `interval`, and every `soon` while a change is expected. Queries of the history without
    /// news have pauses that grow from `interval` to `longest`.
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
        let last = Mutex::new(LastPolls { asked_at: schedd.clock.now(), costs: RecentCosts::default() });
        let turn = tokio::sync::Mutex::default();
        Self { schedd, watchlist, wake, interval, soon, longest, steady, objects, last, turn, metrics }
    }

    /// Forgets objects that are not in `store`, from now on; their deletion is not reported otherwise. `listed`:
    /// whether its initial list is complete.
    pub fn forget_deleted(&self, store: Store<ObservedHTCJob>, listed: watch::Receiver<bool>) {
        let _ = self.objects.set((store, listed));
    }

    /// Starts, changes or ends the watch of an object. `jobs`: the number of its jobs, or 0 if unknown.
    pub fn watch(&self, uid: &Uid, object: &ObjectRef<ObservedHTCJob>, look: Polling, jobs: usize) {
        self.watchlist.set(uid, object, look, jobs);
    }

    /// Returns the evidence about an object's jobs. If the queue does not answer, also returns the time since when.
    #[must_use]
    pub fn evidence(&self, uid: &Uid) -> (Evidence, Option<Timestamp>) {
        self.watchlist.evidence(uid)
    }

    /// Runs until it is dropped.
    pub async fn run(&self) {
        let [all, few, many] = [Poller::All, Poller::Few, Poller::Many].map(|asker| self.follow(asker));
        tokio::join!(all, few, many, self.follow_changes(), self.follow_history());
    }

    /// Queries the queue repeatedly, for all jobs or for expected changes.
    async fn follow(&self, asker: Poller) {
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

    /// Runs one query.
    #[tracing::instrument(name = "look", level = "error", skip_all, fields(htcjobs = question.about()))]
    async fn look_once(&self, question: &Question) -> Result<(), Unanswered> {
        let result = match question {
            Question::All => self.look().await.map_err(Unanswered::Whole),
            Question::Awaited(awaited) => self.look_at(&awaited.whole, &awaited.parts).await,
        };
        match &result {
            Ok(()) => {}
            Err(Unanswered::Whole(unknown) | Unanswered::Parts(unknown)) => {
                tracing::debug!(why = %unknown.kind, message = %unknown.message, "query failed");
            }
        }
        result
    }

    /// Waits until the next query is due, and returns it.
    async fn wait(&self, asker: Poller, last: Instant, failed: Option<Duration>, took: Duration) -> Question {
        loop {
            let changed = self.watchlist.changed(asker);
            let (usual, question) = match asker {
                Poller::All => {
                    let urgency = self.watchlist.urgency_of_all();
                    (pace::until_next_look(urgency, self.interval, self.soon, took), Question::All)
                }
                Poller::Few | Poller::Many => {
                    let awaited = self.watchlist.awaited(asker == Poller::Many);
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

    /// Queries the changed jobs repeatedly, at the rate that their cost permits.
    async fn follow_changes(&self) {
        let (mut since, mut costs, mut failed) = (self.schedd.clock.now(), RecentCosts::default(), false);
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
                // Only the query for all jobs decides whether HTCondor answers.
                Err(unknown) => {
                    tracing::debug!(why = %unknown.kind, message = %unknown.message, "query failed");
                }
            }
        }
    }

    fn last_looks(&self) -> MutexGuard<'_, LastPolls> {
        self.last.lock()
    }

    /// Queries the history for all objects that need it, one query at a time.
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
            Ok(found) => self.count_unreadable("history", &found.answer.listing),
            Err(unknown) => {
                tracing::debug!(why = %unknown.kind, message = %unknown.message, "history query failed");
            }
        }
        let backoff = || Backoff::new(self.interval, self.longest.max(self.interval));
        let woken = self.watchlist.history(&wanted, Instant::now(), backoff, |uid, asked, base| match &found {
            Err(unknown) => Answer::Unknown(unknown.clone()),
            Ok(found) if found.birthdate != base.birthdate => Answer::Unknown(self.another_schedd()),
            Ok(HistoryResult { answer, reached, .. }) => answer.listing.doubt(uid, &self.schedd.users).map_or_else(
                || {
                    Answer::Known(History {
                        asked_at,
                        reaches: reach(asked, &answer.witnesses, *reached),
                        ads: answer.listing.ads.get(uid).cloned().unwrap_or_default().into(),
                    })
                },
                Answer::Unknown,
            ),
        });
        self.wake(woken).await;
    }

    /// Queries all jobs.
    async fn look(&self) -> Result<(), QueryError> {
        if let Some((store, _)) = self.objects.get() {
            self.watchlist.keep(|uid, object| {
                store.get(object).is_some_and(|object| object.uid().as_deref() == Some(uid.as_str()))
            });
        }
        let _turn = self.turn.lock().await;
        let spent = self.schedd.spent();
        let found = self.ask(Box::pin(self.schedd.queue())).await?;
        {
            let mut last = self.last_looks();
            last.asked_at = found.asked_at;
            last.costs.add(self.schedd.spent() - spent);
        }
        self.metrics.record_poll();
        self.count_unreadable("queue", &found.shown);
        self.count_orphans(&found.shown);
        self.publish(found, &[]).await;
        Ok(())
    }

    fn count_unreadable(&self, place: &'static str, shown: &AdListing) {
        let of_htcjobs = shown.unreadable.values().map(Vec::len).sum();
        self.metrics.unreadable(place, of_htcjobs, shown.ignored);
    }

    /// Counts jobs whose object is gone. All objects that had jobs at the time of the query are known; an object
    /// deleted since was proved to have no jobs.
    fn count_orphans(&self, shown: &AdListing) {
        let Some((store, _)) = self.objects.get().filter(|(_, listed)| *listed.borrow()) else { return };
        let objects: HashSet<Uid> =
            store.state().iter().filter_map(|object| object.uid()).map(|uid| Uid::from(uid.as_str())).collect();
        self.metrics
            .orphans(shown.ads.iter().filter(|(uid, _)| !objects.contains(*uid)).map(|(_, ads)| ads.len()).sum());
    }

    /// Queries the jobs of some objects, and those of the latest attempts of others.
    async fn look_at(&self, whole: &[Uid], parts: &[(Uid, Attempt)]) -> Result<(), Unanswered> {
        if !whole.is_empty() {
            self.look_at_whole(whole).await.map_err(Unanswered::Whole)?;
        }
        if !parts.is_empty() {
            self.look_at_parts(parts).await.map_err(Unanswered::Parts)?;
        }
        Ok(())
    }

    /// Queries the jobs of these attempts. The answer proves that jobs exist, and never that a job is gone. It may be
    /// newer than an earlier answer about the same jobs, so it does not run at the same time as the query for all jobs.
    async fn look_at_parts(&self, parts: &[(Uid, Attempt)]) -> Result<(), QueryError> {
        let _turn = self.turn.lock().await;
        let found = self.ask(Box::pin(self.schedd.queue_of_attempts(parts))).await?;
        let PollResult { asked_at, birthdate, mut shown, .. } = found;
        let users = &self.schedd.users;
        let woken = self.watchlist.merge_attempts(parts, |uid| {
            let unsure = users.assigned(uid).is_some_and(|(_, since)| asked_at <= since);
            if unsure || shown.doubt(uid, users).is_some() {
                return None;
            }
            Some((asked_at, birthdate, shown.ads.remove(uid).unwrap_or_default()))
        });
        self.wake(woken).await;
        Ok(())
    }

    /// Queries all jobs of these objects. A job that is not in the answer does not exist.
    async fn look_at_whole(&self, uids: &[Uid]) -> Result<(), QueryError> {
        let found = self.ask(Box::pin(self.schedd.queue_of(uids))).await?;
        self.publish(found, uids).await;
        Ok(())
    }

    /// Runs one query, and reads the birthdate before and after it.
    async fn ask(
        &self,
        question: impl Future<Output = Result<AdListing, QueryError>>,
    ) -> Result<PollResult, QueryError> {
        let first = self.schedd.recent_reading().await?;
        let asked_at = self.schedd.clock.now();
        let shown = question.await?;
        let second = self.schedd.reading().await?;
        if first.birthdate != second.birthdate {
            return Err(self.another_schedd());
        }
        warn_of_skew(&second, asked_at);
        let steady_since = self.steady_since(second.birthdate, asked_at);
        Ok(PollResult { asked_at, birthdate: second.birthdate, steady_since, shown })
    }

    /// Returns the time since which all answers have had this birthdate. If a later query has already returned another
    /// birthdate, it is not steady at all.
    fn steady_since(&self, birthdate: Birthdate, asked_at: Timestamp) -> Timestamp {
        let mut steady = self.steady.lock();
        match &mut *steady {
            Some(seen) if seen.birthdate == birthdate => {
                seen.latest = seen.latest.max(asked_at);
                seen.since = seen.since.min(asked_at);
                seen.since
            }
            Some(seen) if seen.latest > asked_at => asked_at,
            _ => {
                *steady = Some(SteadyBirthdate { birthdate, since: asked_at, latest: asked_at });
                asked_at
            }
        }
    }

    fn another_schedd(&self) -> QueryError {
        let message = format!("the JobQueueBirthdate of schedd {} changed while it was asked", self.schedd.name);
        QueryError { kind: QueryErrorKind::AnotherSchedd, message }
    }

    async fn ask_history(&self, wanted: &HashMap<Uid, HistoryReach>) -> Result<HistoryResult, QueryError> {
        let uids: Vec<Uid> = wanted.keys().cloned().collect();
        let witnesses: BTreeSet<String> = wanted.values().flat_map(|reach| reach.witnesses.iter().cloned()).collect();
        let answer = self.schedd.history(&uids, &witnesses).await?;
        let reached = match wanted.values().filter_map(|reach| reach.date).min() {
            Some(date) => self.schedd.history_reaches(date).await?.then_some(date),
            None => None,
        };
        Ok(HistoryResult { answer, reached, birthdate: self.schedd.reading().await?.birthdate })
    }

    /// Stores an answer for these objects, or for all if `uids` is empty.
    ///
    /// Skips objects whose identity was not known when the query started: jobs of every user could have counted as
    /// theirs.
    async fn publish(&self, found: PollResult, uids: &[Uid]) {
        let PollResult { asked_at, birthdate, steady_since, mut shown } = found;
        let users = &self.schedd.users;
        let woken = self.watchlist.answer(uids, |uid| {
            if users.assigned(uid).is_some_and(|(_, since)| asked_at <= since) {
                return None;
            }
            if let Some(doubt) = shown.doubt(uid, users) {
                return Some((asked_at, Answer::Unknown(doubt)));
            }
            let ads = Arc::new(shown.ads.remove(uid).unwrap_or_default());
            let nameless = shown.without_uid_for(uid, users);
            Some((
                asked_at,
                Answer::Known(QueueAnswer {
                    asked_at,
                    birthdate,
                    steady_since,
                    ads,
                    unlabelled: nameless,
                    before: None,
                }),
            ))
        });
        self.wake(woken).await;
    }

    async fn wake(&self, objects: Vec<ObjectRef<ObservedHTCJob>>) {
        for object in objects {
            // The receiver is dropped only when the operator ends.
            let _ = self.wake.send(object).await;
        }
    }
}

/// Records that a query was not answered. Returns the objects to wake. For objects that were queried in part, the next
/// query for all their jobs records it.
fn no_answer(
    watchlist: &Watchlist,
    asked_at: Timestamp,
    question: &Question,
    failure: &Unanswered,
) -> Vec<ObjectRef<ObservedHTCJob>> {
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

fn warn_of_skew(reading: &ScheddReading, now: Timestamp) {
    let skew = reading.date.0 - now.0 / 1000;
    if skew.abs() > SKEW {
        tracing::warn!(skew_seconds = skew, "schedd's clock differs from the operator's");
    }
}
