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
    Queue { asked_at, birthdate, steady_since, ads: ads.to_vec().into(), nameless: Arc::default(), before: None }
}

fn history(at: i64) -> Answer<History> {
    Answer::Known(History { asked_at: Timestamp(at), reaches: Reach::default(), ads: Arc::from([]) })
}

fn wanting_history(soon: bool) -> Entry {
    let mut job = HTCJob::new("j", crate::api::HTCJobSpec::default());
    job.metadata.namespace = Some("n".to_owned());
    let mut entry = Entry::new(ObjectRef::from_obj(&crate::api::Guarded(Ok(job))));
    assert!(entry.set(Look::Every { history: Some(Reach::default()), soon }, 1));
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
    entry.set(Look::Every { history: None, soon: true }, 1);
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
        Answer::Known(queue) => queue.before.as_ref().map(|before| (before.asked_at.0, before.shown.len())),
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

#[test]
fn an_answer_counts_only_if_it_was_asked_for_after_the_question_that_had_none() {
    let away = Unknown { why: Why::ScheddUnreachable, message: "away".to_owned() };
    let mut entry = wanting_history(true);
    assert!(entry.answered(queue(5, &[])));
    assert!(entry.unanswered(Timestamp(7), &away));
    for late in [4, 6, 7] {
        assert!(!entry.answered(queue(late, &[ad(0, JobStatus::Idle)])), "{late}");
        assert!(matches!(&entry.evidence.queue, Answer::Unknown(_)), "{late}");
    }
    assert_eq!(entry.silent_since(), Some(Timestamp(7)));
    assert!(entry.answered(queue(8, &[])));
    // In the other order they come to the same.
    assert!(entry.unanswered(Timestamp(8), &away));
    assert!(!entry.answered(queue(8, &[])));
}

/// In HTCondor for good, and with news.
fn staged(proc: u32, status: JobStatus) -> Ad {
    Ad { staged_in: Some(SchedDate(1)), ..ad(proc, status) }
}

fn calm(ads: &[Ad]) -> Entry {
    let mut entry = wanting_history(false);
    entry.set(Look::Changes, 1);
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
        assert!(!calm(std::slice::from_ref(&shown)).changed(Timestamp(11), std::slice::from_ref(&other)), "{other:?}");
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
    entry.set(Look::Changes, 1);
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
    entry.set(Look::Every { history: Some(other), soon: false }, 1);
    assert_eq!(entry.history_due(now), Some(now), "another question");
}

fn awaiting(look: Look, jobs: usize) -> Entry {
    let mut entry = calm(&[]);
    entry.set(look, jobs);
    entry
}

const SOON: Look = Look::Every { history: None, soon: true };

/// What is urgent after answers without news, asked for each of these milliseconds after one that had some.
fn after_answers(times: impl IntoIterator<Item = i64>) -> Urgency {
    let mut entry = awaiting(SOON, 1);
    for time in times {
        entry.answered(queue(1000 + time, &[]));
    }
    entry.urgency()
}

#[test]
fn what_is_awaited_for_long_is_asked_about_after_a_tenth_of_that_time() {
    let lasting = |millis| Urgency::Lasting(Reverse(Duration::from_millis(millis)));
    assert_eq!(after_answers([]), Urgency::Briskly);
    assert_eq!(after_answers((0..8).map(|number| number * 200)), Urgency::Soon);
    assert_eq!(after_answers((0..10).map(|number| number * 1000)), Urgency::Soon);
    assert_eq!(after_answers((0..61).map(|number| number * 1000)), lasting(6000));
    assert_eq!(after_answers((0..200).map(|number| number * 1000)), lasting(19_900));
    assert_eq!(after_answers((0..=200).map(|number| number * 1000)), Urgency::Interval);
    assert!(lasting(19_900) > Urgency::Interval && lasting(1000) > lasting(2000) && Urgency::Soon > lasting(1000));
    let mut entry = awaiting(SOON, 1);
    for number in 1..62 {
        entry.answered(queue(number * 1000, &[]));
    }
    entry.answered(queue(99_000, &[ad(0, JobStatus::Idle)]));
    assert_eq!(entry.urgency(), Urgency::Briskly, "there was news");
}

/// Of an `HTCJob` with so many jobs, of which one does not leave the queue while others start.
fn after_minutes(minutes: i64, jobs: usize) -> Urgency {
    let mut entry = awaiting(SOON, jobs);
    for number in 0..=60 * minutes {
        let news = if number % 2 == 0 { JobStatus::Idle } else { JobStatus::Running };
        entry.answered(queue(1000 + number * 1000, &[ad(0, JobStatus::Removed), ad(1, news)]));
    }
    entry.urgency()
}

#[test]
fn news_of_other_jobs_do_not_keep_questions_about_many_going() {
    assert_eq!((after_minutes(2, LARGE + 1), after_minutes(4, LARGE)), (Urgency::Briskly, Urgency::Briskly));
    assert_eq!(after_minutes(4, LARGE + 1), Urgency::Interval);
}

#[test]
fn jobs_that_are_being_accepted_join_those_that_are_shown() {
    let others = [staged(0, JobStatus::Idle), ad(7, JobStatus::Held)];
    let mut entry = calm(&others);
    entry.set(Look::Accepting(Attempt(2)), 100_000);
    assert_eq!(entry.accepting(), Some(Attempt(2)));
    let joined = |entry: &mut Entry, at, ads: &[Ad]| entry.joined(Timestamp(at), Birthdate(1), ads.to_vec());
    assert!(!joined(&mut entry, 10, &[staged(8, JobStatus::Idle)]), "asked for when the shown ones were");
    assert!(!entry.joined(Timestamp(11), Birthdate(2), vec![staged(8, JobStatus::Idle)]), "of another queue");
    assert!(joined(&mut entry, 12, &[staged(3, JobStatus::Idle), staged(7, JobStatus::Idle)]));
    let ids = |entry: &Entry| ids(entry.evidence.queued()).map(|id| id.proc).collect::<Vec<_>>();
    assert_eq!((ids(&entry), states(&entry)), (vec![0, 3, 7], vec![JobStatus::Idle; 3]));
    assert!(!joined(&mut entry, 13, &[staged(3, JobStatus::Idle)]), "nothing new");
    assert_eq!(ids(&entry), [0, 3, 7], "what such an answer does not show may be there");
    let Answer::Known(shown) = &entry.evidence.queue else { panic!("{entry:?}") };
    assert_eq!(shown.asked_at, Timestamp(10), "nothing is missing since then");
    assert!(!entry.answered(queue(11, &others)), "an older look");
    assert!(entry.answered(queue(14, &others)), "a younger look shows all that there is");
    assert_eq!(ids(&entry), [0, 7]);
}

#[test]
fn jobs_do_not_join_where_history_is_wanted_or_nothing_is_known() {
    let mut entry = wanting_history(false);
    entry.answered(queue(1, &[]));
    assert!(!entry.joined(Timestamp(2), Birthdate(1), vec![staged(0, JobStatus::Idle)]));
    entry.ask_history();
    entry.set(Look::Accepting(Attempt(2)), 100_000);
    assert!(!entry.joined(Timestamp(3), Birthdate(1), vec![staged(0, JobStatus::Idle)]), "it is being asked");
    entry.history_answered(Instant::now(), backoff, |_| history(4));
    assert!(
        !entry.joined(Timestamp(4), Birthdate(1), vec![staged(0, JobStatus::Idle)]),
        "asked for before history was"
    );
    assert!(entry.joined(Timestamp(5), Birthdate(1), vec![staged(0, JobStatus::Idle)]));
    let away = Unknown { why: Why::ScheddUnreachable, message: "away".to_owned() };
    entry.unanswered(Timestamp(6), &away);
    assert_eq!(entry.accepting(), None, "all of it is asked for");
    assert!(!entry.joined(Timestamp(7), Birthdate(1), vec![staged(0, JobStatus::Idle)]));
}

#[test]
fn few_jobs_are_all_asked_about() {
    assert_eq!(awaiting(Look::Accepting(Attempt(2)), LARGE).accepting(), None);
    assert!(awaiting(Look::Accepting(Attempt(2)), LARGE).is_awaited());
    assert!(!awaiting(Look::Changes, LARGE + 1).is_awaited());
}
