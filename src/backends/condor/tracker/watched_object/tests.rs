use std::time::Duration;

use htc_api::HTCJob;
use htc_machine::facts::{Hold, JobStatus, RunHistory};
use htc_machine::{Birthdate, ClusterId, Index, SchedDate};

use super::*;

pub(in crate::backends::condor::tracker) fn ad(proc: u32, status: JobStatus) -> Ad {
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
        runs: RunHistory::default(),
    }
}

fn queue(at: i64, ads: &[Ad]) -> QueueAnswer {
    let (asked_at, birthdate, steady_since) = (Timestamp(at), Birthdate(1), Timestamp(0));
    QueueAnswer {
        asked_at,
        birthdate,
        steady_since,
        ads: ads.to_vec().into(),
        unlabelled: Arc::default(),
        before: None,
    }
}

fn history(at: i64) -> Answer<History> {
    Answer::Known(History { asked_at: Timestamp(at), reaches: HistoryReach::default(), ads: Arc::from([]) })
}

fn wanting_history(soon: bool) -> WatchedObject {
    let mut job = HTCJob::new("j", htc_api::HTCJobSpec::default());
    job.metadata.namespace = Some("n".to_owned());
    let mut entry = WatchedObject::new(ObjectRef::from_obj(&htc_api::Guarded(Ok(job))));
    assert!(entry.set(Polling::Always { history: Some(HistoryReach::default()), urgent: soon }, 1));
    entry
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_secs(20), Duration::from_secs(600))
}

/// Times of the published answers of the queue and of the history.
fn shown(entry: &WatchedObject) -> (i64, i64) {
    match (&entry.evidence.queue, &entry.evidence.history) {
        (Answer::Known(queue), Answer::Known(history)) => (queue.asked_at.0, history.asked_at.0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn history_is_queried_after_the_queue_and_paired_with_it() {
    let (mut entry, now) = (wanting_history(false), Instant::now());
    assert_eq!(entry.history_due(now), None, "the queue first");
    assert!(entry.answered(queue(1, &[])));
    assert_eq!(entry.history_due(now), Some(now));
    assert!(entry.ask_history().is_some());
    assert_eq!(entry.history_due(now), None, "one question at a time");
    assert!(!entry.answered(queue(3, &[])), "an answer without changes keeps the pair");
    assert!(entry.history_answered(now, backoff, |_| history(2)));
    assert_eq!(shown(&entry), (1, 2));
    assert!(!entry.answered(queue(4, &[])), "nor does it afterwards");
    assert_eq!(shown(&entry), (1, 2));
    assert!(entry.ask_history().is_some());
    assert!(entry.history_answered(now, backoff, |_| history(5)));
    assert_eq!(shown(&entry), (4, 5), "the next pair is younger");
    entry.set(Polling::Always { history: None, urgent: true }, 1);
    assert!(entry.answered(queue(6, &[])));
    assert_eq!(shown(&entry), (6, 5));
}

#[test]
fn changed_queue_answer_replaces_a_pair_only_for_a_while() {
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
    assert!(entry.answered(queue(6, &idle)), "then the delayed answer follows");
}

#[test]
fn queue_answer_under_way_during_history_query_makes_no_pair() {
    let (mut entry, now) = (wanting_history(false), Instant::now());
    let idle = [ad(0, JobStatus::Idle)];
    entry.answered(queue(1, &idle));
    entry.ask_history();
    // The query starts at 2 and is answered after the job has left. History is queried at 3, when the job was still in
    // the queue.
    assert!(entry.answered(queue(2, &[])), "before history has answered");
    assert!(!entry.history_answered(now, backoff, |_| history(3)));
    assert!(!entry.is_pair());
    let mut entry = wanting_history(true);
    entry.answered(queue(1, &idle));
    entry.ask_history();
    assert!(entry.history_answered(now, backoff, |_| history(3)));
    assert!(!entry.answered(queue(2, &[])), "after it has");
    assert_eq!(shown(&entry), (1, 3));
    entry.unanswered(Timestamp(3), &QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "away".to_owned() });
    assert!(!entry.answered(queue(2, &[])), "whatever came in between");
    assert!(entry.answered(queue(4, &[])));
    assert!(!entry.is_pair());
}

#[test]
fn queue_answer_carries_the_previous_answer() {
    let before = |entry: &WatchedObject| match &entry.evidence.queue {
        Answer::Known(queue) => queue.before.as_ref().map(|before| (before.asked_at.0, before.shown.len())),
        Answer::Unknown(_) => None,
    };
    let (mut entry, idle) = (calm(&[ad(0, JobStatus::Idle)]), [ad(0, JobStatus::Idle)]);
    assert_eq!(before(&entry), None);
    assert!(entry.answered(queue(11, &[])));
    assert_eq!(before(&entry), Some((10, 1)), "it has been seen to be missing once");
    assert!(!entry.answered(queue(12, &[])));
    assert_eq!(before(&entry), Some((11, 0)), "and twice");
    assert!(entry.answered(QueueAnswer { birthdate: Birthdate(2), ..queue(13, &idle) }));
    assert_eq!(before(&entry), None, "another queue");
    let away = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "away".to_owned() };
    assert!(entry.unanswered(Timestamp(14), &away));
    assert!(entry.answered(queue(15, &[])));
    assert_eq!(before(&entry), None);
}

#[test]
fn job_that_loses_its_uid_is_a_change() {
    let mut entry = calm(&[]);
    let named = |at| QueueAnswer { unlabelled: [ad(7, JobStatus::Running).id].into(), ..queue(at, &[]) };
    assert!(entry.answered(named(11)));
    assert!(!entry.answered(named(12)));
    assert!(entry.answered(queue(13, &[])));
}

#[test]
fn older_answer_never_replaces_a_newer_one() {
    let mut entry = wanting_history(true);
    assert!(entry.answered(queue(5, &[])));
    assert!(!entry.answered(queue(4, &[ad(0, JobStatus::Idle)])));
    let unknown = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "away".to_owned() };
    assert!(!entry.unanswered(Timestamp(4), &unknown));
    assert!(matches!(&entry.evidence.queue, Answer::Known(queue) if queue.asked_at == Timestamp(5)));
    assert!(entry.unanswered(Timestamp(6), &unknown));
    assert!(!entry.unanswered(Timestamp(7), &unknown), "reported once");
    assert_eq!(entry.silent_since(), Some(Timestamp(6)), "since the first");
    assert!(entry.answered(queue(8, &[])));
    assert_eq!(entry.silent_since(), None);
}

#[test]
fn answer_asked_before_a_failed_query_is_ignored() {
    let away = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "away".to_owned() };
    let mut entry = wanting_history(true);
    assert!(entry.answered(queue(5, &[])));
    assert!(entry.unanswered(Timestamp(7), &away));
    for late in [4, 6, 7] {
        assert!(!entry.answered(queue(late, &[ad(0, JobStatus::Idle)])), "{late}");
        assert!(matches!(&entry.evidence.queue, Answer::Unknown(_)), "{late}");
    }
    assert_eq!(entry.silent_since(), Some(Timestamp(7)));
    assert!(entry.answered(queue(8, &[])));
    // The other order gives the same result.
    assert!(entry.unanswered(Timestamp(8), &away));
    assert!(!entry.answered(queue(8, &[])));
}

/// A job whose files HTCondor has, in this status.
fn staged(proc: u32, status: JobStatus) -> Ad {
    Ad { staged_in: Some(SchedDate(1)), ..ad(proc, status) }
}

fn calm(ads: &[Ad]) -> WatchedObject {
    let mut entry = wanting_history(false);
    entry.set(Polling::OnChange, 1);
    assert!(entry.answered(queue(10, ads)));
    entry
}

fn states(entry: &WatchedObject) -> Vec<JobStatus> {
    entry.evidence.queued().iter().map(|ad| ad.status).collect()
}

#[test]
fn merged_change_does_not_prove_absence() {
    use JobStatus::{Completed, Running};
    let mut entry = calm(&[staged(0, Running), staged(1, Running)]);
    assert!(!entry.merge_changes(Timestamp(11), &[staged(1, Running)]), "nothing new");
    assert!(entry.merge_changes(Timestamp(12), &[staged(1, Completed)]));
    assert_eq!(states(&entry), [Running, Completed]);
    let Answer::Known(shown) = &entry.evidence.queue else { panic!("{entry:?}") };
    assert_eq!(shown.asked_at, Timestamp(10), "the other job was not asked about");
    assert!(!entry.merge_changes(Timestamp(13), &[staged(2, Running)]), "a job that no full answer has");
    assert_eq!(entry.evidence.queued().len(), 2);
}

#[test]
fn change_of_another_job_with_the_same_id_is_ignored() {
    let shown = staged(0, JobStatus::Running);
    let over = staged(0, JobStatus::Completed);
    let others = [
        Ad { attempt: Attempt(2), ..over.clone() },
        Ad { index: Index(7), ..over.clone() },
        Ad { not_after: Some(SchedDate(5)), ..over.clone() },
        Ad { staged_in: Some(SchedDate(5)), ..over.clone() },
        Ad { staged_in: None, ..over.clone() },
    ];
    for other in others {
        assert!(
            !calm(std::slice::from_ref(&shown)).merge_changes(Timestamp(11), std::slice::from_ref(&other)),
            "{other:?}"
        );
    }
    let unsure = |ad: &Ad| Ad { staged_in: None, ..ad.clone() };
    assert!(!calm(&[unsure(&shown)]).merge_changes(Timestamp(11), &[unsure(&over)]));
    assert!(calm(&[shown]).merge_changes(Timestamp(11), &[over]));
}

#[test]
fn newer_of_two_answers_wins() {
    use JobStatus::{Completed, Idle, Running};
    let mut entry = calm(&[staged(0, Running)]);
    assert!(!entry.merge_changes(Timestamp(10), &[staged(0, Completed)]), "asked at the time of the current answer");
    assert!(entry.merge_changes(Timestamp(12), &[staged(0, Completed)]));
    assert!(!entry.merge_changes(Timestamp(11), &[staged(0, Running)]), "asked for earlier, answered later");
    assert!(!entry.answered(queue(12, &[staged(0, Running)])), "so was this");
    assert_eq!(states(&entry), [Completed]);
    assert!(entry.answered(queue(13, &[staged(0, Idle)])), "it runs again");
    assert!(!entry.merge_changes(Timestamp(12), &[staged(0, Completed)]));
    assert!(entry.merge_changes(Timestamp(14), &[staged(0, Running)]));
    let away = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "away".to_owned() };
    assert!(entry.unanswered(Timestamp(15), &away));
    assert!(!entry.merge_changes(Timestamp(16), &[staged(0, Completed)]), "which jobs there are is not known");
}

#[test]
fn merged_change_leaves_history_pairing_and_backoff_unchanged() {
    use JobStatus::{Completed, Idle};
    let (mut entry, now) = (wanting_history(false), Instant::now());
    assert!(entry.answered(queue(1, &[staged(0, Idle)])));
    assert!(!entry.merge_changes(Timestamp(2), &[staged(0, Completed)]), "history is wanted");
    entry.ask_history();
    entry.set(Polling::OnChange, 1);
    assert!(!entry.merge_changes(Timestamp(3), &[staged(0, Completed)]), "history is being asked");
    assert!(entry.history_answered(now, backoff, |_| history(4)));
    assert!(!entry.merge_changes(Timestamp(4), &[staged(0, Completed)]), "asked for before history was");
    assert_eq!((states(&entry), shown(&entry)), (vec![Idle], (1, 4)));
    assert!(entry.merge_changes(Timestamp(5), &[staged(0, Completed)]));
    assert_eq!(shown(&entry), (1, 4));

    let mut entry = wanting_history(false);
    entry.answered(queue(1, &[staged(0, Idle)]));
    entry.ask_history();
    assert!(entry.history_answered(now, backoff, |_| history(2)));
    let due = entry.history_due(now);
    assert!(due > Some(now));
    entry.merge_changes(Timestamp(3), &[staged(0, Completed)]);
    assert_eq!(entry.history_due(now), due);
}

#[test]
fn history_backoff_grows_until_a_change() {
    let (mut entry, now) = (wanting_history(false), Instant::now());
    let mut at = 0;
    let mut pair = |entry: &mut WatchedObject, ads: &[Ad]| {
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
    let other = HistoryReach { witnesses: ["a".to_owned()].into(), date: None };
    entry.set(Polling::Always { history: Some(other), urgent: false }, 1);
    assert_eq!(entry.history_due(now), Some(now), "another question");
}

fn awaiting(look: Polling, jobs: usize) -> WatchedObject {
    let mut entry = calm(&[]);
    entry.set(look, jobs);
    entry
}

const SOON: Polling = Polling::Always { history: None, urgent: true };

/// Urgency after answers without news, at each of these times, in milliseconds after an answer with news.
fn after_answers(times: impl IntoIterator<Item = i64>) -> Urgency {
    let mut entry = awaiting(SOON, 1);
    for time in times {
        entry.answered(queue(1000 + time, &[]));
    }
    entry.urgency()
}

#[test]
fn urgency_falls_with_the_duration_of_the_wait() {
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

/// An `HTCJob` with this many jobs, one of which stays in the queue while others start.
fn after_minutes(minutes: i64, jobs: usize) -> Urgency {
    let mut entry = awaiting(SOON, jobs);
    for number in 0..=60 * minutes {
        let news = if number % 2 == 0 { JobStatus::Idle } else { JobStatus::Running };
        entry.answered(queue(1000 + number * 1000, &[ad(0, JobStatus::Removed), ad(1, news)]));
    }
    entry.urgency()
}

#[test]
fn changes_of_other_jobs_do_not_prolong_polling_of_large_htcjobs() {
    assert_eq!((after_minutes(2, LARGE + 1), after_minutes(4, LARGE)), (Urgency::Briskly, Urgency::Briskly));
    assert_eq!(after_minutes(4, LARGE + 1), Urgency::Interval);
}

#[test]
fn newly_accepted_jobs_are_merged_into_the_answer() {
    let others = [staged(0, JobStatus::Idle), ad(7, JobStatus::Held)];
    let mut entry = calm(&others);
    entry.set(Polling::Accepting(Attempt(2)), 100_000);
    assert_eq!(entry.accepting(), Some(Attempt(2)));
    let joined =
        |entry: &mut WatchedObject, at, ads: &[Ad]| entry.merge_attempts(Timestamp(at), Birthdate(1), ads.to_vec());
    assert!(!joined(&mut entry, 10, &[staged(8, JobStatus::Idle)]), "asked at the time of the current answer");
    assert!(!entry.merge_attempts(Timestamp(11), Birthdate(2), vec![staged(8, JobStatus::Idle)]), "of another queue");
    assert!(joined(&mut entry, 12, &[staged(3, JobStatus::Idle), staged(7, JobStatus::Idle)]));
    let ids = |entry: &WatchedObject| ids(entry.evidence.queued()).map(|id| id.proc).collect::<Vec<_>>();
    assert_eq!((ids(&entry), states(&entry)), (vec![0, 3, 7], vec![JobStatus::Idle; 3]));
    assert!(!joined(&mut entry, 13, &[staged(3, JobStatus::Idle)]), "nothing new");
    assert_eq!(ids(&entry), [0, 3, 7], "a job missing from such an answer may exist");
    let Answer::Known(shown) = &entry.evidence.queue else { panic!("{entry:?}") };
    assert_eq!(shown.asked_at, Timestamp(10), "nothing is missing since then");
    assert!(!entry.answered(queue(11, &others)), "an older look");
    assert!(entry.answered(queue(14, &others)), "a younger look shows all that there is");
    assert_eq!(ids(&entry), [0, 7]);
}

#[test]
fn accepted_jobs_are_not_merged_without_a_known_queue() {
    let mut entry = wanting_history(false);
    entry.answered(queue(1, &[]));
    assert!(!entry.merge_attempts(Timestamp(2), Birthdate(1), vec![staged(0, JobStatus::Idle)]));
    entry.ask_history();
    entry.set(Polling::Accepting(Attempt(2)), 100_000);
    assert!(!entry.merge_attempts(Timestamp(3), Birthdate(1), vec![staged(0, JobStatus::Idle)]), "it is being asked");
    entry.history_answered(Instant::now(), backoff, |_| history(4));
    assert!(
        !entry.merge_attempts(Timestamp(4), Birthdate(1), vec![staged(0, JobStatus::Idle)]),
        "asked for before history was"
    );
    assert!(entry.merge_attempts(Timestamp(5), Birthdate(1), vec![staged(0, JobStatus::Idle)]));
    let away = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "away".to_owned() };
    entry.unanswered(Timestamp(6), &away);
    assert_eq!(entry.accepting(), None, "all of it is asked for");
    assert!(!entry.merge_attempts(Timestamp(7), Birthdate(1), vec![staged(0, JobStatus::Idle)]));
}

#[test]
fn small_htcjob_is_always_queried_as_a_whole() {
    assert_eq!(awaiting(Polling::Accepting(Attempt(2)), LARGE).accepting(), None);
    assert!(awaiting(Polling::Accepting(Attempt(2)), LARGE).is_awaited());
    assert!(!awaiting(Polling::OnChange, LARGE + 1).is_awaited());
}
