//! What is known about one watched object, and when history is asked about it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

use crate::api::Observed;
use crate::machine::decide::Look;
use crate::machine::facts::{Ad, Answer, Earlier, Evidence, History, Queue, Reach, Unknown, Why};
use crate::machine::inherited::InheritedJob;
use crate::machine::{Attempt, Birthdate, JobId, Timestamp};
use crate::retry::Backoff;

/// condor_q shows this many jobs in less than half a second.
pub(super) const LARGE: usize = 2000;

/// After this time without news, only the looks at all jobs ask for what is awaited.
const TOO_LONG: Duration = Duration::from_secs(200);

/// Looks without news after which it is no longer asked briskly. The schedd has a job's files a second after
/// `condor_submit` has returned, whatever their size.
const BRISK_LOOKS: u8 = 8;

/// How soon HTCondor should be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Not at all: nothing is watched.
    #[default]
    Nothing,
    /// At the usual interval.
    Interval,
    /// After this time: something is awaited, and has been for ten times as long.
    Lasting(Reverse<Duration>),
    /// A little later.
    Soon,
    /// Several times in that while: something is about to happen, and mostly does within a second.
    Briskly,
    /// At once: something is watched of which nothing is known yet.
    Now,
}

/// One watched object.
///
/// History counts only together with an answer of the queue that was there before history was asked, so the two are shown as
/// a pair. While a pair
/// is wanted, an answer of the queue that shows the same as before is kept back: its younger date would only spoil the
/// pair. One that shows something else is shown at once, and history is asked again; but if that has happened to the last
/// pair too, it waits for the next one, so that an object whose jobs come and go gets its pair in the end.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) object: ObjectRef<Observed>,
    pub(super) look: Look,
    /// Its jobs of the Go operator that may be in HTCondor.
    pub(super) inherited: Arc<[InheritedJob]>,
    evidence: Evidence,
    /// When the first question was put that the queue has not answered since its last answer.
    silent_since: Option<Timestamp>,
    /// An answer of the queue that is younger than the one shown.
    kept_back: Option<Queue>,
    asking: Option<Asking>,
    asked: Option<Asked>,
    /// The last pair did not fit.
    spoiled: bool,
    /// Answers since there was news.
    stale: u8,
    /// When the first of these answers was asked for.
    stale_since: Option<Timestamp>,
    /// When the first answer was asked for while something is awaited of it without a pause.
    awaited_since: Option<Timestamp>,
    /// Number of its jobs, as far as that is known without an answer.
    expected: usize,
    /// When the latest question was put that was not answered. An answer that was asked for by then comes too late: by its date alone it
    /// would not be known which of the two was later, and a younger one may have been shown before.
    overtaken: Option<Timestamp>,
    /// When the question was put whose answer last changed some of the ads that are shown, if it was younger than theirs.
    changed_at: Option<Timestamp>,
}

/// A question to history that is under way.
#[derive(Debug)]
struct Asking {
    reach: Reach,
    /// The answer of the queue after which it was put.
    base: Queue,
}

/// The last question to history that was answered, if it is still the one that is wanted.
#[derive(Debug)]
struct Asked {
    base: Queue,
    backoff: Backoff,
    again: Instant,
}

fn reach(look: &Look) -> Option<&Reach> {
    match look {
        Look::Every { history, .. } => history.as_ref(),
        Look::Changes | Look::Accepting(_) | Look::Nothing => None,
    }
}

fn ids(ads: &[Ad]) -> impl Iterator<Item = JobId> + '_ {
    ads.iter().map(|ad| ad.id)
}

/// Whether both ads are of one job. Cluster and proc come again when a queue begins anew; an attempt is made once.
fn same_job(one: &Ad, other: &Ad) -> bool {
    let names = |ad: &Ad| (ad.id, ad.attempt, ad.index, ad.not_after, ad.staged_in);
    one.marked
        && other.marked
        && one.attempt != Attempt::INHERITED
        && one.staged_in.is_some()
        && names(one) == names(other)
}

/// Whether two answers show the same jobs, in whatever state.
fn same_jobs(one: &Queue, other: &Queue) -> bool {
    one.birthdate == other.birthdate && ids(&one.ads).eq(ids(&other.ads))
}

impl Entry {
    pub(super) fn new(object: ObjectRef<Observed>) -> Self {
        Self {
            object,
            look: Look::Nothing,
            inherited: Arc::default(),
            evidence: Evidence::none(),
            silent_since: None,
            kept_back: None,
            asking: None,
            asked: None,
            spoiled: false,
            stale: 0,
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

    /// Watches it in this way; whether that is news. `expected`: number of its jobs.
    pub(super) fn set(&mut self, look: Look, expected: usize) -> bool {
        self.expected = expected;
        if reach(&look) != reach(&self.look) {
            // What was answered to another question says nothing about when to ask this one.
            self.asked = None;
        }
        if reach(&look).is_none() {
            (self.kept_back, self.spoiled) = (None, false);
        }
        let news = look != self.look;
        if news {
            self.has_news();
        }
        self.look = look;
        if !self.awaits_effect() {
            self.awaited_since = None;
        }
        news
    }

    pub(super) fn urgency(&self) -> Urgency {
        let unknown = matches!(&self.evidence.queue, Answer::Unknown(unknown) if unknown.why == Why::NotAsked);
        match &self.look {
            Look::Nothing => Urgency::Nothing,
            _ if unknown => Urgency::Now,
            Look::Changes | Look::Every { soon: false, .. } => Urgency::Interval,
            // An answer about many jobs has news each time, of others than those of which something is awaited.
            _ if self.is_large() && self.awaited_for() >= TOO_LONG => Urgency::Interval,
            Look::Every { soon: true, .. } | Look::Accepting(_) if self.stale < BRISK_LOOKS => Urgency::Briskly,
            Look::Every { soon: true, .. } | Look::Accepting(_) => match self.without_news() {
                lasts if lasts < Duration::from_secs(10) => Urgency::Soon,
                lasts if lasts < TOO_LONG => Urgency::Lasting(Reverse(lasts / 10)),
                _ => Urgency::Interval,
            },
        }
    }

    /// Whether it is to be asked about by itself.
    pub(super) fn is_awaited(&self) -> bool {
        self.urgency() > Urgency::Interval
    }

    /// A change is awaited of jobs that HTCondor has.
    fn awaits_effect(&self) -> bool {
        matches!(self.look, Look::Every { soon: true, .. })
    }

    /// How long that has lasted, whatever the news.
    fn awaited_for(&self) -> Duration {
        match (self.latest(), self.awaited_since) {
            (Some(latest), Some(since)) => latest.asked_at.since(since),
            _ => Duration::ZERO,
        }
    }

    /// The latest answer of the queue.
    fn latest(&self) -> Option<&Queue> {
        match &self.evidence.queue {
            Answer::Known(shown) => Some(self.kept_back.as_ref().unwrap_or(shown)),
            Answer::Unknown(_) => None,
        }
    }

    /// How long its answers have brought no news.
    fn without_news(&self) -> Duration {
        match (self.latest(), self.stale_since) {
            (Some(latest), Some(since)) => latest.asked_at.since(since),
            _ => Duration::ZERO,
        }
    }

    fn has_news(&mut self) {
        (self.stale, self.stale_since) = (0, None);
    }

    fn has_no_news(&mut self, asked_at: Timestamp) {
        self.stale = self.stale.saturating_add(1);
        self.stale_since.get_or_insert(asked_at);
    }

    /// Whether an answer about it alone takes so long that it would hold up others.
    pub(super) fn is_large(&self) -> bool {
        self.expected.max(self.jobs()) > LARGE
    }

    /// Number of its jobs in the answer that is shown.
    pub(super) fn jobs(&self) -> usize {
        self.evidence.queued().len()
    }

    /// The attempts that it is to be asked about, from this one on, if it has many jobs and the others are of no interest now.
    pub(super) fn accepting(&self) -> Option<Attempt> {
        let known = matches!(self.evidence.queue, Answer::Known(_));
        match self.look {
            Look::Accepting(attempt) if known && self.is_large() => Some(attempt),
            _ => None,
        }
    }

    /// Takes in an answer of the queue; whether the object is to be woken.
    pub(super) fn answered(&mut self, mut queue: Queue) -> bool {
        let is_late = |at: Option<Timestamp>| at.is_some_and(|at| queue.asked_at <= at);
        if self.was_under_way(&queue) || is_late(self.changed_at) || is_late(self.overtaken) {
            return false;
        }
        let mut news = true;
        if let Answer::Known(shown) = &self.evidence.queue {
            let held = self.kept_back.as_ref().unwrap_or(shown);
            if queue.asked_at <= held.asked_at {
                return false;
            }
            if self.awaits_effect() {
                self.awaited_since.get_or_insert(queue.asked_at);
            }
            queue.before = (held.birthdate == queue.birthdate).then(|| Earlier::new(held.asked_at, &held.ads));
            if queue.ads == shown.ads {
                queue.ads = Arc::clone(&shown.ads);
                news = queue.birthdate != shown.birthdate || queue.nameless != shown.nameless;
            }
            if news {
                self.has_news();
            } else {
                self.has_no_news(queue.asked_at);
            }
            if !self.may_be_shown(news) {
                self.kept_back = Some(queue);
                return false;
            }
        }
        (self.kept_back, self.changed_at, self.silent_since) = (None, None, None);
        self.evidence.queue = Answer::Known(queue);
        news || matches!(self.look, Look::Every { .. })
    }

    /// Takes in the ads of jobs whose status has changed, asked for at `asked_at`; whether the object is to be woken.
    ///
    /// They take the place of the ads of the same jobs. What is shown keeps its date: which jobs are not in the queue is known
    /// from then, and is said by no such answer. While history is wanted, nothing is touched.
    pub(super) fn changed(&mut self, asked_at: Timestamp, ads: &[Ad]) -> bool {
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

    /// Takes in all ads of its latest attempts, asked for at `asked_at` of the queue of this birthdate, which was read before and after
    /// it; whether the object is to be woken.
    ///
    /// They are added to what is shown, or take the place of the ads of the same jobs. What is shown keeps its date, and what is missing among
    /// them stays: this answer says of no job that it is not there.
    pub(super) fn joined(&mut self, asked_at: Timestamp, birthdate: Birthdate, ads: Vec<Ad>) -> bool {
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

    /// The answer that is shown, if ads that were asked for at `asked_at` may be put into it.
    fn older_answer(&mut self, asked_at: Timestamp) -> Option<&mut Queue> {
        let younger = |history: &History| history.asked_at >= asked_at;
        if reach(&self.look).is_some()
            || self.asking.is_some()
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

    /// Whether this answer of the queue was asked for before the history that is shown, and has come after it. What left the
    /// queue in between may be in neither, and the dates alone would not tell.
    fn was_under_way(&self, queue: &Queue) -> bool {
        matches!(&self.evidence.history, Answer::Known(history) if history.asked_at >= queue.asked_at)
    }

    /// Whether an answer of the queue may take the place of the one that is shown.
    fn may_be_shown(&self, news: bool) -> bool {
        let Look::Every { history: Some(_), soon } = self.look else {
            return true;
        };
        if self.asking.is_some() {
            return news && !self.spoiled;
        }
        news || soon || !self.is_pair()
    }

    /// Whether history was asked after the answer of the queue that is shown.
    fn is_pair(&self) -> bool {
        matches!((&self.evidence.queue, &self.evidence.history),
            (Answer::Known(queue), Answer::Known(history)) if history.asked_at > queue.asked_at)
    }

    /// Takes in that a question put at `asked_at` was not answered; whether that is news.
    pub(super) fn unanswered(&mut self, asked_at: Timestamp, unknown: &Unknown) -> bool {
        let latest = self.latest().map(|latest| latest.asked_at);
        if latest.is_some_and(|latest| latest > asked_at) {
            return false;
        }
        let news = match &self.evidence.queue {
            Answer::Known(_) => true,
            Answer::Unknown(old) => old.why != unknown.why,
        };
        self.kept_back = None;
        self.overtaken = self.overtaken.max(Some(asked_at));
        self.silent_since.get_or_insert(asked_at);
        self.evidence.queue = Answer::Unknown(unknown.clone());
        news
    }

    /// When history is to be asked about it, if it is wanted and is not being asked: at once, or after a pause if it was
    /// asked before and the jobs in the queue are the same.
    pub(super) fn history_due(&self, now: Instant) -> Option<Instant> {
        let Answer::Known(shown) = &self.evidence.queue else {
            return None;
        };
        if reach(&self.look).is_none() || self.asking.is_some() {
            return None;
        }
        let latest = self.kept_back.as_ref().unwrap_or(shown);
        Some(self.asked.as_ref().filter(|asked| same_jobs(&asked.base, latest)).map_or(now, |asked| asked.again))
    }

    /// From now on history is being asked; how far back it must reach.
    pub(super) fn ask_history(&mut self) -> Option<Reach> {
        let Answer::Known(shown) = &self.evidence.queue else {
            return None;
        };
        let reach = reach(&self.look)?.clone();
        let base = self.kept_back.take().unwrap_or_else(|| shown.clone());
        self.asking = Some(Asking { reach: reach.clone(), base });
        Some(reach)
    }

    /// Takes in history's answer; whether the object is to be woken.
    pub(super) fn history_answered(
        &mut self,
        now: Instant,
        backoff: impl Fn() -> Backoff,
        answer: impl FnOnce(&Queue) -> Answer<History>,
    ) -> bool {
        let Some(Asking { reach: asked_for, base }) = self.asking.take() else {
            return false;
        };
        let history = answer(&base);
        let told = |history: &Answer<History>| match history {
            Answer::Known(history) => Ok((history.reaches.clone(), Arc::clone(&history.ads))),
            Answer::Unknown(unknown) => Err(unknown.why),
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
        self.spoiled = !fits;
        let last = self.asked.take().filter(|asked| no_news && same_jobs(&asked.base, &base));
        let mut backoff = last.map_or_else(backoff, |asked| asked.backoff);
        let again = if fits { now + backoff.pause() } else { now };
        self.asked = (reach(&self.look) == Some(&asked_for)).then_some(Asked { base, backoff, again });
        fits
    }
}

#[cfg(test)]
pub(super) mod tests;
