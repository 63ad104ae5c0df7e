//! The evidence about one watched object, and when the history is queried for it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use htc_api::ObservedHTCJob;
use htc_machine::decide::Polling;
use htc_machine::facts::{
    Ad, Answer, EarlierAnswer, Evidence, History, HistoryReach, QueryError, QueryErrorKind, QueueAnswer,
};
use htc_machine::{Attempt, Birthdate, JobId, Timestamp};
use htc_support::retry::Backoff;
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

/// Number of jobs above which an object is large. condor_q prints this many in less than half a second.
pub(super) const LARGE: usize = 2000;

/// Time without news after which expected changes are found only by the queries for all jobs.
const TOO_LONG: Duration = Duration::from_secs(200);

/// Number of answers without news after which the object is no longer queried briskly. The schedd has a job's files a
/// second after `condor_submit` has returned, whatever their size.
const BRISK_LOOKS: u8 = 8;

/// How soon HTCondor should be queried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Never: nothing is watched.
    #[default]
    Nothing,
    /// At the normal interval.
    Interval,
    /// After this pause: a change is expected, and has been for ten times as long.
    Lasting(Reverse<Duration>),
    /// After the short pause.
    Soon,
    /// Several times in the short pause: a change is expected, and usually happens within a second.
    Briskly,
    /// Immediately: an object is watched and nothing is known about it yet.
    Now,
}

/// One watched object.
///
/// An answer of the history is valid only together with an earlier answer of the queue, so the two are published as a
/// pair. While history is wanted, an answer of the queue is published or held back by these rules:
///
/// | history is being queried | answer as before | answer with news |
/// | --- | --- | --- |
/// | yes | held back: its later date would make the pair invalid | published; history is queried again |
/// | yes, and the last pair was rejected | held back | held back, so that constant changes do not prevent a pair |
/// | no | held back if a valid pair is published, unless the polling is urgent | published |
#[derive(Debug)]
pub(super) struct WatchedObject {
    pub(super) object: ObjectRef<ObservedHTCJob>,
    pub(super) polling: Polling,
    evidence: Evidence,
    /// Start of the first query without an answer since the queue's last answer.
    silent_since: Option<Timestamp>,
    /// An answer of the queue that is newer than the published one, and held back.
    held_answer: Option<QueueAnswer>,
    pending_history: Option<PendingHistory>,
    last_history: Option<AnsweredHistory>,
    /// Whether the last answer of the history did not fit the published answer of the queue.
    pair_rejected: bool,
    /// Number of answers since the last news.
    answers_without_news: u8,
    /// Start of the query for the first of these answers.
    stale_since: Option<Timestamp>,
    /// Start of the first answered query since a change has been expected without interruption.
    awaited_since: Option<Timestamp>,
    /// Number of its jobs, as far as it is known without an answer.
    expected: usize,
    /// Start of the latest query without an answer. Answers to earlier queries are ignored: their date would not tell
    /// which of the two came later, and a newer answer may have been published before.
    overtaken: Option<Timestamp>,
    /// Start of the query that last changed some of the published ads, if it is newer than the published answer.
    changed_at: Option<Timestamp>,
}

/// A query of the history in progress.
#[derive(Debug)]
struct PendingHistory {
    reach: HistoryReach,
    /// The answer of the queue that preceded it.
    base: QueueAnswer,
}

/// The last answered query of the history, if the same one is still wanted.
#[derive(Debug)]
struct AnsweredHistory {
    base: QueueAnswer,
    backoff: Backoff,
    retry_at: Instant,
}

fn reach(look: &Polling) -> Option<&HistoryReach> {
    match look {
        Polling::Always { history, .. } => history.as_ref(),
        Polling::OnChange | Polling::Accepting(_) | Polling::Off => None,
    }
}

fn ids(ads: &[Ad]) -> impl Iterator<Item = JobId> + '_ {
    ads.iter().map(|ad| ad.id)
}

/// Whether both ads belong to the same job. A new queue repeats cluster and proc ids, but an attempt exists only once.
fn same_job(one: &Ad, other: &Ad) -> bool {
    let names = |ad: &Ad| (ad.id, ad.attempt, ad.index, ad.not_after, ad.staged_in);
    one.staged_in.is_some() && names(one) == names(other)
}

/// Whether two answers contain the same jobs, in whatever state.
fn same_jobs(one: &QueueAnswer, other: &QueueAnswer) -> bool {
    one.birthdate == other.birthdate && ids(&one.ads).eq(ids(&other.ads))
}

impl WatchedObject {
    pub(super) fn new(object: ObjectRef<ObservedHTCJob>) -> Self {
        Self {
            object,
            polling: Polling::Off,
            evidence: Evidence::none(),
            silent_since: None,
            held_answer: None,
            pending_history: None,
            last_history: None,
            pair_rejected: false,
            answers_without_news: 0,
            stale_since: None,
            awaited_since: None,
            expected: 0,
            overtaken: None,
            changed_at: None,
        }
    }

    pub(super) const fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    pub(super) const fn silent_since(&self) -> Option<Timestamp> {
        self.silent_since
    }

    /// Sets the polling. Returns whether it has changed. `expected`: number of the object's jobs.
    pub(super) fn set(&mut self, look: Polling, expected: usize) -> bool {
        self.expected = expected;
        if reach(&look) != reach(&self.polling) {
            // The answer to another query does not determine when to send this one.
            self.last_history = None;
        }
        if reach(&look).is_none() {
            (self.held_answer, self.pair_rejected) = (None, false);
        }
        let news = look != self.polling;
        if news {
            self.has_news();
        }
        self.polling = look;
        if !self.awaits_effect() {
            self.awaited_since = None;
        }
        news
    }

    pub(super) fn urgency(&self) -> Urgency {
        let unknown =
            matches!(&self.evidence.queue, Answer::Unknown(unknown) if unknown.kind == QueryErrorKind::NotAsked);
        match &self.polling {
            Polling::Off => Urgency::Nothing,
            _ if unknown => Urgency::Now,
            Polling::OnChange | Polling::Always { urgent: false, .. } => Urgency::Interval,
            // Each answer about many jobs has news, of jobs other than those with an expected change.
            _ if self.is_large() && self.awaited_for() >= TOO_LONG => Urgency::Interval,
            Polling::Always { urgent: true, .. } | Polling::Accepting(_) if self.answers_without_news < BRISK_LOOKS => {
                Urgency::Briskly
            }
            Polling::Always { urgent: true, .. } | Polling::Accepting(_) => match self.without_news() {
                lasts if lasts < Duration::from_secs(10) => Urgency::Soon,
                lasts if lasts < TOO_LONG => Urgency::Lasting(Reverse(lasts / 10)),
                _ => Urgency::Interval,
            },
        }
    }

    /// Whether it is queried by uid.
    pub(super) fn is_awaited(&self) -> bool {
        self.urgency() > Urgency::Interval
    }

    /// Whether a change is expected of jobs that HTCondor has.
    fn awaits_effect(&self) -> bool {
        matches!(self.polling, Polling::Always { urgent: true, .. })
    }

    /// Returns for how long the change has been expected, regardless of news.
    fn awaited_for(&self) -> Duration {
        match (self.latest(), self.awaited_since) {
            (Some(latest), Some(since)) => latest.asked_at.since(since),
            _ => Duration::ZERO,
        }
    }

    /// Returns the latest answer of the queue.
    fn latest(&self) -> Option<&QueueAnswer> {
        match &self.evidence.queue {
            Answer::Known(shown) => Some(self.held_answer.as_ref().unwrap_or(shown)),
            Answer::Unknown(_) => None,
        }
    }

    /// Returns for how long its answers have had no news.
    fn without_news(&self) -> Duration {
        match (self.latest(), self.stale_since) {
            (Some(latest), Some(since)) => latest.asked_at.since(since),
            _ => Duration::ZERO,
        }
    }

    fn has_news(&mut self) {
        (self.answers_without_news, self.stale_since) = (0, None);
    }

    fn has_no_news(&mut self, asked_at: Timestamp) {
        self.answers_without_news = self.answers_without_news.saturating_add(1);
        self.stale_since.get_or_insert(asked_at);
    }

    /// Whether a query by uid takes so long that it would delay others.
    pub(super) fn is_large(&self) -> bool {
        self.expected.max(self.jobs()) > LARGE
    }

    /// Returns the number of its jobs in the published answer.
    pub(super) fn jobs(&self) -> usize {
        self.evidence.queued().len()
    }

    /// Returns the first of the attempts to query, if it has many jobs and only the latest attempts matter now.
    pub(super) fn accepting(&self) -> Option<Attempt> {
        let known = matches!(self.evidence.queue, Answer::Known(_));
        match self.polling {
            Polling::Accepting(attempt) if known && self.is_large() => Some(attempt),
            _ => None,
        }
    }

    /// Handles an answer of the queue. Returns whether the object is to be woken.
    pub(super) fn answered(&mut self, mut queue: QueueAnswer) -> bool {
        let is_late = |at: Option<Timestamp>| at.is_some_and(|at| queue.asked_at <= at);
        if self.was_under_way(&queue) || is_late(self.changed_at) || is_late(self.overtaken) {
            return false;
        }
        let mut news = true;
        if let Answer::Known(shown) = &self.evidence.queue {
            let held = self.held_answer.as_ref().unwrap_or(shown);
            if queue.asked_at <= held.asked_at {
                return false;
            }
            if self.awaits_effect() {
                self.awaited_since.get_or_insert(queue.asked_at);
            }
            queue.before = (held.birthdate == queue.birthdate).then(|| EarlierAnswer::new(held.asked_at, &held.ads));
            if queue.ads == shown.ads {
                queue.ads = Arc::clone(&shown.ads);
                news = queue.birthdate != shown.birthdate || queue.unlabelled != shown.unlabelled;
            }
            if news {
                self.has_news();
            } else {
                self.has_no_news(queue.asked_at);
            }
            if !self.may_be_shown(news) {
                self.held_answer = Some(queue);
                return false;
            }
        }
        (self.held_answer, self.changed_at, self.silent_since) = (None, None, None);
        self.evidence.queue = Answer::Known(queue);
        news || matches!(self.polling, Polling::Always { .. })
    }

    /// Merges the ads of changed jobs from a query at `asked_at`. Returns whether the object is to be woken.
    ///
    /// The ads replace those of the same jobs. The published answer keeps its date, because only a complete answer
    /// tells which jobs are not in the queue. Nothing changes while history is wanted.
    pub(super) fn merge_changes(&mut self, asked_at: Timestamp, ads: &[Ad]) -> bool {
        let Some(shown) = self.older_answer(asked_at) else {
            return false;
        };
        let mut merged: Option<Vec<Ad>> = None;
        for ad in ads {
            if let Ok(place) = shown.ads.binary_search_by_key(&ad.id, |ad| ad.id)
                && same_job(&shown.ads[place], ad)
                && shown.ads[place] != *ad
            {
                merged.get_or_insert_with(|| shown.ads.to_vec())[place] = ad.clone();
            }
        }
        let Some(merged) = merged else {
            return false;
        };
        shown.ads = merged.into();
        self.changed_at = Some(asked_at);
        self.has_news();
        true
    }

    /// Merges all ads of the latest attempts from a query at `asked_at`. `birthdate` is that of the queue, read before
    /// and after the query. Returns whether the object is to be woken.
    ///
    /// The ads are added, or replace those of the same jobs. The published answer keeps its date and all other jobs,
    /// because this answer never proves that a job is gone.
    pub(super) fn merge_attempts(&mut self, asked_at: Timestamp, birthdate: Birthdate, ads: Vec<Ad>) -> bool {
        let Some(shown) = self.older_answer(asked_at).filter(|shown| shown.birthdate == birthdate) else {
            return false;
        };
        let place = |ad: &Ad| shown.ads.binary_search_by_key(&ad.id, |ad| ad.id);
        let news: Vec<Ad> =
            ads.into_iter().filter(|ad| place(ad).ok().is_none_or(|place| shown.ads[place] != *ad)).collect();
        if news.is_empty() {
            self.has_no_news(asked_at);
            return false;
        }
        let mut merged = shown.ads.to_vec();
        for ad in news {
            match place(&ad) {
                Ok(place) => merged[place] = ad,
                Err(_) => merged.push(ad),
            }
        }
        merged.sort_unstable_by_key(|ad| ad.id);
        shown.ads = merged.into();
        self.changed_at = Some(asked_at);
        self.has_news();
        true
    }

    /// Returns the published answer, if ads from a query at `asked_at` may be merged into it.
    fn older_answer(&mut self, asked_at: Timestamp) -> Option<&mut QueueAnswer> {
        let younger = |history: &History| history.asked_at >= asked_at;
        if reach(&self.polling).is_some()
            || self.pending_history.is_some()
            || matches!(&self.evidence.history, Answer::Known(history) if younger(history))
            || self.changed_at.is_some_and(|at| asked_at <= at)
        {
            return None;
        }
        match &mut self.evidence.queue {
            Answer::Known(shown) if asked_at > shown.asked_at => Some(shown),
            Answer::Known(_) | Answer::Unknown(_) => None,
        }
    }

    /// Whether this answer of the queue was requested before the published history, and arrived after it. A job that
    /// left the queue in between may be in neither, and the dates alone would not tell.
    fn was_under_way(&self, queue: &QueueAnswer) -> bool {
        matches!(&self.evidence.history, Answer::Known(history) if history.asked_at >= queue.asked_at)
    }

    /// Whether an answer of the queue may replace the published one.
    fn may_be_shown(&self, news: bool) -> bool {
        let Polling::Always { history: Some(_), urgent: soon } = self.polling else {
            return true;
        };
        if self.pending_history.is_some() {
            return news && !self.pair_rejected;
        }
        news || soon || !self.is_pair()
    }

    /// Whether history was queried after the published answer of the queue.
    fn is_pair(&self) -> bool {
        matches!((&self.evidence.queue, &self.evidence.history),
            (Answer::Known(queue), Answer::Known(history)) if history.asked_at > queue.asked_at)
    }

    /// Records that a query at `asked_at` was not answered. Returns whether that is news.
    pub(super) fn unanswered(&mut self, asked_at: Timestamp, unknown: &QueryError) -> bool {
        let latest = self.latest().map(|latest| latest.asked_at);
        if latest.is_some_and(|latest| latest > asked_at) {
            return false;
        }
        let news = match &self.evidence.queue {
            Answer::Known(_) => true,
            Answer::Unknown(old) => old.kind != unknown.kind,
        };
        self.held_answer = None;
        self.overtaken = self.overtaken.max(Some(asked_at));
        self.silent_since.get_or_insert(asked_at);
        self.evidence.queue = Answer::Unknown(unknown.clone());
        news
    }

    /// Returns the time of the next query of the history, if it is wanted and none is in progress. It is due at once,
    /// or after a pause if history was queried before and the jobs in the queue are the same.
    pub(super) fn history_due(&self, now: Instant) -> Option<Instant> {
        let Answer::Known(shown) = &self.evidence.queue else {
            return None;
        };
        if reach(&self.polling).is_none() || self.pending_history.is_some() {
            return None;
        }
        let latest = self.held_answer.as_ref().unwrap_or(shown);
        Some(
            self.last_history
                .as_ref()
                .filter(|asked| same_jobs(&asked.base, latest))
                .map_or(now, |asked| asked.retry_at),
        )
    }

    /// Marks the history as being queried. Returns how far back it must reach.
    pub(super) fn ask_history(&mut self) -> Option<HistoryReach> {
        let Answer::Known(shown) = &self.evidence.queue else {
            return None;
        };
        let reach = reach(&self.polling)?.clone();
        let base = self.held_answer.take().unwrap_or_else(|| shown.clone());
        self.pending_history = Some(PendingHistory { reach: reach.clone(), base });
        Some(reach)
    }

    /// Handles the history's answer. Returns whether the object is to be woken.
    pub(super) fn history_answered(
        &mut self,
        now: Instant,
        backoff: impl Fn() -> Backoff,
        answer: impl FnOnce(&QueueAnswer) -> Answer<History>,
    ) -> bool {
        let Some(PendingHistory { reach: asked_for, base }) = self.pending_history.take() else {
            return false;
        };
        let history = answer(&base);
        let told = |history: &Answer<History>| match history {
            Answer::Known(history) => Ok((history.reaches.clone(), Arc::clone(&history.ads))),
            Answer::Unknown(unknown) => Err(unknown.kind),
        };
        let no_news = told(&history) == told(&self.evidence.history);
        let fits = match &self.evidence.queue {
            Answer::Known(shown) => shown.asked_at <= base.asked_at,
            Answer::Unknown(_) => true,
        };
        if fits {
            if let (Answer::Known(_), Answer::Known(_)) = (&self.evidence.queue, &history) {
                self.evidence.queue = Answer::Known(base.clone());
            }
            self.evidence.history = history;
        }
        self.pair_rejected = !fits;
        let last = self.last_history.take().filter(|asked| no_news && same_jobs(&asked.base, &base));
        let mut backoff = last.map_or_else(backoff, |asked| asked.backoff);
        let again = if fits { now + backoff.pause() } else { now };
        self.last_history =
            (reach(&self.polling) == Some(&asked_for)).then_some(AnsweredHistory { base, backoff, retry_at: again });
        fits
    }
}

#[cfg(test)]
pub(super) mod tests;
