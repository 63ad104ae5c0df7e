//! What is known about one watched object, and when history is asked about it.

use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

use crate::api::Observed;
use crate::machine::decide::Look;
use crate::machine::facts::{Ad, Answer, Earlier, Evidence, History, Queue, Reach, Unknown, Why};
use crate::machine::inherited::InheritedJob;
use crate::machine::{Attempt, JobId, Timestamp};
use crate::retry::Backoff;

/// condor_q shows this many jobs in less than half a second.
const LARGE: usize = 2000;

/// Looks without news after which it is no longer asked briskly. The schedd has a job's files a second after
/// `condor_submit` has returned, whatever their size.
const BRISK_LOOKS: u8 = 8;

/// How soon HTCondor should be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Not at all: nothing is watched.
    Nothing,
    /// At the usual interval.
    Interval,
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
        Look::Changes | Look::Nothing => None,
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
            changed_at: None,
        }
    }

    pub(super) const fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    pub(super) const fn silent_since(&self) -> Option<Timestamp> {
        self.silent_since
    }

    /// Watches it in this way; whether that is news.
    pub(super) fn set(&mut self, look: Look) -> bool {
        if reach(&look) != reach(&self.look) {
            // What was answered to another question says nothing about when to ask this one.
            self.asked = None;
        }
        if reach(&look).is_none() {
            (self.kept_back, self.spoiled) = (None, false);
        }
        let news = look != self.look;
        if news {
            self.stale = 0;
        }
        self.look = look;
        news
    }

    pub(super) fn urgency(&self) -> Urgency {
        let unknown = matches!(&self.evidence.queue, Answer::Unknown(unknown) if unknown.why == Why::NotAsked);
        match &self.look {
            Look::Nothing => Urgency::Nothing,
            _ if unknown => Urgency::Now,
            Look::Changes | Look::Every { soon: false, .. } => Urgency::Interval,
            Look::Every { soon: true, .. } if self.stale < BRISK_LOOKS => Urgency::Briskly,
            Look::Every { soon: true, .. } => Urgency::Soon,
        }
    }

    /// Whether an answer about it alone takes so long that it would hold up others.
    pub(super) fn is_large(&self) -> bool {
        matches!(&self.evidence.queue, Answer::Known(queue) if queue.ads.len() > LARGE)
    }

    /// Takes in an answer of the queue; whether the object is to be woken.
    pub(super) fn answered(&mut self, mut queue: Queue) -> bool {
        if self.was_under_way(&queue) || self.changed_at.is_some_and(|at| queue.asked_at <= at) {
            return false;
        }
        let mut news = true;
        if let Answer::Known(shown) = &self.evidence.queue {
            let held = self.kept_back.as_ref().unwrap_or(shown);
            if queue.asked_at <= held.asked_at {
                return false;
            }
            queue.before = (held.birthdate == queue.birthdate)
                .then(|| Earlier { asked_at: held.asked_at, ads: Arc::clone(&held.ads) });
            if queue.ads == shown.ads {
                queue.ads = Arc::clone(&shown.ads);
                news = queue.birthdate != shown.birthdate || queue.nameless != shown.nameless;
            }
            self.stale = if news { 0 } else { self.stale.saturating_add(1) };
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
        let old = |history: &History| history.asked_at >= asked_at;
        if reach(&self.look).is_some()
            || self.asking.is_some()
            || matches!(&self.evidence.history, Answer::Known(history) if old(history))
            || self.changed_at.is_some_and(|at| asked_at <= at)
        {
            return false;
        }
        let Answer::Known(shown) = &mut self.evidence.queue else {
            return false;
        };
        if asked_at <= shown.asked_at {
            return false;
        }
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
        (self.changed_at, self.stale) = (Some(asked_at), 0);
        true
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
        let news = match &self.evidence.queue {
            Answer::Known(shown) if self.kept_back.as_ref().unwrap_or(shown).asked_at > asked_at => return false,
            Answer::Known(_) => true,
            Answer::Unknown(old) => old.why != unknown.why,
        };
        self.kept_back = None;
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
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::api::HTCJob;
    use crate::machine::facts::{Hold, JobStatus, Runs};
    use crate::machine::{Birthdate, ClusterId, Index, SchedDate};

    pub(in crate::tracker) fn ad(proc: u32, status: JobStatus) -> Ad {
        Ad {
            id: JobId { cluster: ClusterId(1), proc },
            attempt: Attempt(1),
            index: Index(proc),
            not_after: None,
            status,
            hold: Hold { code: 0, subcode: 0, reason: String::new(), since: None },
            staged_in: None,
            staged_out: None,
            exit: None,
            completed: false,
            started: false,
            remove_reason: String::new(),
            marked: true,
            runs: Runs::default(),
        }
    }

    fn queue(at: i64, ads: &[Ad]) -> Queue {
        let (asked_at, birthdate, steady_since) = (Timestamp(at), Birthdate(1), Timestamp(0));
        Queue { asked_at, birthdate, steady_since, ads: ads.into(), nameless: Arc::default(), before: None }
    }

    fn history(at: i64) -> Answer<History> {
        Answer::Known(History { asked_at: Timestamp(at), reaches: Reach::default(), ads: Arc::from([]) })
    }

    fn wanting_history(soon: bool) -> Entry {
        let mut job = HTCJob::new("j", crate::api::HTCJobSpec::default());
        job.metadata.namespace = Some("n".to_owned());
        let mut entry = Entry::new(ObjectRef::from_obj(&kube::core::DeserializeGuard(Ok(job))));
        assert!(entry.set(Look::Every { history: Some(Reach::default()), soon }));
        entry
    }

    fn backoff() -> Backoff {
        Backoff::new(Duration::from_secs(20), Duration::from_secs(600))
    }

    /// When the queue and history were asked, as it is shown.
    fn shown(entry: &Entry) -> (i64, i64) {
        match (&entry.evidence.queue, &entry.evidence.history) {
            (Answer::Known(queue), Answer::Known(history)) => (queue.asked_at.0, history.asked_at.0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn history_is_asked_after_the_queue_and_shown_with_it() {
        let (mut entry, now) = (wanting_history(false), Instant::now());
        assert_eq!(entry.history_due(now), None, "the queue first");
        assert!(entry.answered(queue(1, &[])));
        assert_eq!(entry.history_due(now), Some(now));
        assert!(entry.ask_history().is_some());
        assert_eq!(entry.history_due(now), None, "one question at a time");
        assert!(!entry.answered(queue(3, &[])), "what says nothing new does not spoil the pair");
        assert!(entry.history_answered(now, backoff, |_| history(2)));
        assert_eq!(shown(&entry), (1, 2));
        assert!(!entry.answered(queue(4, &[])), "nor does it afterwards");
        assert_eq!(shown(&entry), (1, 2));
        assert!(entry.ask_history().is_some());
        assert!(entry.history_answered(now, backoff, |_| history(5)));
        assert_eq!(shown(&entry), (4, 5), "the next pair is younger");
        entry.set(Look::Every { history: None, soon: true });
        assert!(entry.answered(queue(6, &[])));
        assert_eq!(shown(&entry), (6, 5));
    }

    #[test]
    fn news_is_shown_at_once_but_not_for_ever() {
        let (mut entry, now) = (wanting_history(false), Instant::now());
        let idle = [ad(0, JobStatus::Idle)];
        assert!(entry.answered(queue(1, &idle)));
        entry.ask_history();
        assert!(entry.answered(queue(3, &[])), "the job has left");
        assert!(!entry.history_answered(now, backoff, |_| history(2)), "history may not know of it");
        assert_eq!(entry.history_due(now), Some(now));
        entry.ask_history();
        assert!(!entry.answered(queue(5, &idle)), "this pair is waited for");
        assert!(entry.history_answered(now, backoff, |_| history(4)));
        assert_eq!(shown(&entry), (3, 4));
        assert!(entry.answered(queue(6, &idle)), "and then comes what was kept back");
    }

    #[test]
    fn an_answer_that_was_under_way_when_history_was_asked_makes_no_pair_with_it() {
        let (mut entry, now) = (wanting_history(false), Instant::now());
        let idle = [ad(0, JobStatus::Idle)];
        entry.answered(queue(1, &idle));
        entry.ask_history();
        // Asked for at 2, answered when the job had left; history was asked at 3, when the job was still in the queue.
        assert!(entry.answered(queue(2, &[])), "before history has answered");
        assert!(!entry.history_answered(now, backoff, |_| history(3)));
        assert!(!entry.is_pair());
        let mut entry = wanting_history(true);
        entry.answered(queue(1, &idle));
        entry.ask_history();
        assert!(entry.history_answered(now, backoff, |_| history(3)));
        assert!(!entry.answered(queue(2, &[])), "after it has");
        assert_eq!(shown(&entry), (1, 3));
        entry.unanswered(Timestamp(3), &Unknown { why: Why::ScheddUnreachable, message: "away".to_owned() });
        assert!(!entry.answered(queue(2, &[])), "whatever came in between");
        assert!(entry.answered(queue(4, &[])));
        assert!(!entry.is_pair());
    }

    #[test]
    fn each_answer_has_the_one_before_it() {
        let before = |entry: &Entry| match &entry.evidence.queue {
            Answer::Known(queue) => queue.before.as_ref().map(|before| (before.asked_at.0, before.ads.len())),
            Answer::Unknown(_) => None,
        };
        let (mut entry, idle) = (calm(&[ad(0, JobStatus::Idle)]), [ad(0, JobStatus::Idle)]);
        assert_eq!(before(&entry), None);
        assert!(entry.answered(queue(11, &[])));
        assert_eq!(before(&entry), Some((10, 1)), "it has been seen to be missing once");
        assert!(!entry.answered(queue(12, &[])));
        assert_eq!(before(&entry), Some((11, 0)), "and twice");
        assert!(entry.answered(Queue { birthdate: Birthdate(2), ..queue(13, &idle) }));
        assert_eq!(before(&entry), None, "another queue");
        let away = Unknown { why: Why::ScheddUnreachable, message: "away".to_owned() };
        assert!(entry.unanswered(Timestamp(14), &away));
        assert!(entry.answered(queue(15, &[])));
        assert_eq!(before(&entry), None);
    }

    #[test]
    fn a_job_that_says_no_more_whose_it_is_is_news() {
        let mut entry = calm(&[]);
        let named = |at| Queue { nameless: [ad(7, JobStatus::Running).id].into(), ..queue(at, &[]) };
        assert!(entry.answered(named(11)));
        assert!(!entry.answered(named(12)));
        assert!(entry.answered(queue(13, &[])));
    }

    #[test]
    fn nothing_goes_back_in_time() {
        let mut entry = wanting_history(true);
        assert!(entry.answered(queue(5, &[])));
        assert!(!entry.answered(queue(4, &[ad(0, JobStatus::Idle)])));
        let unknown = Unknown { why: Why::ScheddUnreachable, message: "away".to_owned() };
        assert!(!entry.unanswered(Timestamp(4), &unknown));
        assert!(matches!(&entry.evidence.queue, Answer::Known(queue) if queue.asked_at == Timestamp(5)));
        assert!(entry.unanswered(Timestamp(6), &unknown));
        assert!(!entry.unanswered(Timestamp(7), &unknown), "told once");
        assert_eq!(entry.silent_since(), Some(Timestamp(6)), "since the first");
        assert!(entry.answered(queue(8, &[])));
        assert_eq!(entry.silent_since(), None);
    }

    /// In HTCondor for good, and with news.
    fn staged(proc: u32, status: JobStatus) -> Ad {
        Ad { staged_in: Some(SchedDate(1)), ..ad(proc, status) }
    }

    fn calm(ads: &[Ad]) -> Entry {
        let mut entry = wanting_history(false);
        entry.set(Look::Changes);
        assert!(entry.answered(queue(10, ads)));
        entry
    }

    fn states(entry: &Entry) -> Vec<JobStatus> {
        entry.evidence.queued().iter().map(|ad| ad.status).collect()
    }

    #[test]
    fn a_change_is_shown_and_proves_no_absence() {
        use JobStatus::{Completed, Running};
        let mut entry = calm(&[staged(0, Running), staged(1, Running)]);
        assert!(!entry.changed(Timestamp(11), &[staged(1, Running)]), "nothing new");
        assert!(entry.changed(Timestamp(12), &[staged(1, Completed)]));
        assert_eq!(states(&entry), [Running, Completed]);
        let Answer::Known(shown) = &entry.evidence.queue else { panic!("{entry:?}") };
        assert_eq!(shown.asked_at, Timestamp(10), "the other job was not asked about");
        assert!(!entry.changed(Timestamp(13), &[staged(2, Running)]), "a job that no look has shown");
        assert_eq!(entry.evidence.queued().len(), 2);
    }

    #[test]
    fn another_job_of_the_same_id_is_no_change() {
        let shown = staged(0, JobStatus::Running);
        let over = staged(0, JobStatus::Completed);
        let others = [
            Ad { attempt: Attempt(2), ..over.clone() },
            Ad { index: Index(7), ..over.clone() },
            Ad { not_after: Some(SchedDate(5)), ..over.clone() },
            Ad { staged_in: Some(SchedDate(5)), ..over.clone() },
            Ad { staged_in: None, ..over.clone() },
            Ad { marked: false, ..over.clone() },
        ];
        for other in others {
            assert!(
                !calm(std::slice::from_ref(&shown)).changed(Timestamp(11), std::slice::from_ref(&other)),
                "{other:?}"
            );
        }
        for unsure in [
            |ad: Ad| Ad { staged_in: None, ..ad },
            |ad: Ad| Ad { attempt: Attempt::INHERITED, ..ad },
            |ad: Ad| Ad { marked: false, ..ad },
        ] {
            assert!(!calm(&[unsure(shown.clone())]).changed(Timestamp(11), &[unsure(over.clone())]));
        }
        assert!(calm(&[shown]).changed(Timestamp(11), &[over]));
    }

    #[test]
    fn of_two_answers_the_younger_stays() {
        use JobStatus::{Completed, Idle, Running};
        let mut entry = calm(&[staged(0, Running)]);
        assert!(!entry.changed(Timestamp(10), &[staged(0, Completed)]), "asked for when the shown one was");
        assert!(entry.changed(Timestamp(12), &[staged(0, Completed)]));
        assert!(!entry.changed(Timestamp(11), &[staged(0, Running)]), "asked for earlier, answered later");
        assert!(!entry.answered(queue(12, &[staged(0, Running)])), "so was this");
        assert_eq!(states(&entry), [Completed]);
        assert!(entry.answered(queue(13, &[staged(0, Idle)])), "it runs again");
        assert!(!entry.changed(Timestamp(12), &[staged(0, Completed)]));
        assert!(entry.changed(Timestamp(14), &[staged(0, Running)]));
        let away = Unknown { why: Why::ScheddUnreachable, message: "away".to_owned() };
        assert!(entry.unanswered(Timestamp(15), &away));
        assert!(!entry.changed(Timestamp(16), &[staged(0, Completed)]), "which jobs there are is not known");
    }

    #[test]
    fn a_change_does_not_touch_a_pair_or_its_pauses() {
        use JobStatus::{Completed, Idle};
        let (mut entry, now) = (wanting_history(false), Instant::now());
        assert!(entry.answered(queue(1, &[staged(0, Idle)])));
        assert!(!entry.changed(Timestamp(2), &[staged(0, Completed)]), "history is wanted");
        entry.ask_history();
        entry.set(Look::Changes);
        assert!(!entry.changed(Timestamp(3), &[staged(0, Completed)]), "history is being asked");
        assert!(entry.history_answered(now, backoff, |_| history(4)));
        assert!(!entry.changed(Timestamp(4), &[staged(0, Completed)]), "asked for before history was");
        assert_eq!((states(&entry), shown(&entry)), (vec![Idle], (1, 4)));
        assert!(entry.changed(Timestamp(5), &[staged(0, Completed)]));
        assert_eq!(shown(&entry), (1, 4));

        let mut entry = wanting_history(false);
        entry.answered(queue(1, &[staged(0, Idle)]));
        entry.ask_history();
        assert!(entry.history_answered(now, backoff, |_| history(2)));
        let due = entry.history_due(now);
        assert!(due > Some(now));
        entry.changed(Timestamp(3), &[staged(0, Completed)]);
        assert_eq!(entry.history_due(now), due);
    }

    #[test]
    fn pauses_grow_until_there_is_news() {
        let (mut entry, now) = (wanting_history(false), Instant::now());
        let mut at = 0;
        let mut pair = |entry: &mut Entry, ads: &[Ad]| {
            at += 200;
            entry.answered(queue(at, ads));
            assert!(entry.ask_history().is_some());
            assert!(entry.history_answered(now, backoff, |_| history(at + 1)));
            entry.history_due(now).unwrap() - now
        };
        let idle = [ad(0, JobStatus::Idle)];
        let mut grown: Vec<Duration> = (0..8).map(|_| pair(&mut entry, &idle)).collect();
        assert!(grown[0] < Duration::from_secs(30) && grown[7] > Duration::from_secs(400), "{grown:?}");
        grown.push(pair(&mut entry, &[ad(0, JobStatus::Running)]));
        assert!(grown[8] > Duration::from_secs(400), "the same job: {grown:?}");
        entry.answered(queue(1900, &[]));
        assert_eq!(entry.history_due(now), Some(now), "it has left the queue");
        pair(&mut entry, &[]);
        let other = Reach { witnesses: ["a".to_owned()].into(), date: None };
        entry.set(Look::Every { history: Some(other), soon: false });
        assert_eq!(entry.history_due(now), Some(now), "another question");
    }
}
