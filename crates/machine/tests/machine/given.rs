//! Facts, records, ads and answers for tests of the state machine, and a small world in which it lives.

pub mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use htc_machine::facts::{
    Ad, Answer, Claim, EarlierAnswer, Evidence, Exit, Facts, History, HistoryReach, Hold, InFlight, Job, JobState,
    JobStatus, LastRequest, Object, ObjectRow, Past, Published, QueryError, QueryErrorKind, QueueAnswer, Record,
    RequestFailure, RunHistory, Spec, Submission, Witness,
};
use htc_machine::judge::REMOVED_BY_US;
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::{Attempt, Birthdate, Index, Indices, JobId, RequestKey, RequestKind, SchedDate, Settings, Timestamp};

/// When all of it happens: seconds on the operator's clock. [`at`] counts from here.
pub const NOW: i64 = 1_000_000;
/// The same moment on the schedd's clock.
pub const SCHEDD_NOW: i64 = 5_000_000;
/// The schedd.
pub const SCHEDD: &str = "schedd@test";
/// The queue of the schedd.
pub const BIRTH: Birthdate = Birthdate(7000);
/// What was newest in history before the first intent.
pub const WITNESS: &str = "schedd#1.0#4999000";
/// What the schedd writes when the files of a job do not come.
pub const STAGING_FAILED: &str = "Staging of job files failed";

/// So many seconds after now.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp((NOW + seconds) * 1000)
}

/// The same on the schedd's clock.
pub fn date(seconds: i64) -> SchedDate {
    SchedDate(SCHEDD_NOW + seconds)
}

pub fn settings() -> Settings {
    Settings::default()
}

pub fn id(text: &str) -> JobId {
    text.parse().unwrap()
}

pub fn indices(text: &str) -> Indices {
    text.parse().unwrap()
}

/// A job that HTCondor accepted in attempt 1 and that waits for a machine.
pub fn ad(index: u32, job: &str) -> Ad {
    Ad {
        id: id(job),
        attempt: Attempt(1),
        index: Index(index),
        not_after: Some(date(-10)),
        status: JobStatus::Idle,
        hold: no_hold(),
        staged_in: Some(date(-90)),
        staged_out: None,
        exit: None,
        completed: false,
        started: false,
        remove_reason: String::new(),
        runs: RunHistory::default(),
    }
}

pub fn no_hold() -> Hold {
    Hold { code: 0, subcode: 0, reason: String::new(), since: None }
}

pub fn own_hold() -> Hold {
    Hold { code: Hold::BY_USER, subcode: Hold::SUSPENDED, reason: "spec.suspend".to_owned(), since: None }
}

pub fn other_hold() -> Hold {
    Hold { code: 13, subcode: 2, reason: "because".to_owned(), since: None }
}

pub fn running(ad: Ad) -> Ad {
    Ad { status: JobStatus::Running, started: true, ..ad }
}

pub fn ended(ad: Ad, exit: Exit) -> Ad {
    Ad { status: JobStatus::Completed, started: true, completed: true, exit: Some(exit), ..ad }
}

pub fn held(ad: Ad, code: i64, subcode: i64) -> Ad {
    Ad { status: JobStatus::Held, hold: Hold { code, subcode, reason: "because".to_owned(), since: None }, ..ad }
}

/// Its files are on their way.
pub fn staging(ad: Ad) -> Ad {
    Ad { staged_in: None, started: false, ..held(ad, Hold::SPOOLING, 0) }
}

/// Its files came after the time for them.
pub fn late(ad: Ad) -> Ad {
    Ad { staged_in: ad.not_after.map(|limit| SchedDate(limit.0 + 1)), ..ad }
}

pub fn removed(ad: Ad, reason: &str) -> Ad {
    Ad { status: JobStatus::Removed, remove_reason: reason.to_owned(), ..ad }
}

/// Removed by us before its files had come.
pub fn stillborn(ad: Ad) -> Ad {
    Ad { staged_in: None, ..removed(ad, &format!("{REMOVED_BY_US} (by user operator)")) }
}

/// An answer of `condor_q`, asked so many seconds after now; the one right before it was the same.
pub fn queue(asked: i64, ads: &[Ad]) -> Answer<QueueAnswer> {
    let (asked_at, birthdate, steady_since) = (at(asked), BIRTH, at(-100_000));
    let ads = Arc::new(ads.to_vec());
    let before = Some(EarlierAnswer::new(Timestamp(asked_at.0 - 1), &ads));
    Answer::Known(QueueAnswer { asked_at, birthdate, steady_since, ads, unlabelled: Arc::default(), before })
}

/// An answer of `condor_history` that reaches back to [`WITNESS`] and to the object's creation.
pub fn history(asked: i64, ads: &[Ad]) -> Answer<History> {
    Answer::Known(History { asked_at: at(asked), reaches: far(), ads: ads.into() })
}

pub fn far() -> HistoryReach {
    HistoryReach { witnesses: BTreeSet::from([WITNESS.to_owned()]), date: Some(date(-100_000)) }
}

pub fn known_queue(facts: &mut Facts) -> &mut QueueAnswer {
    match &mut facts.evidence.queue {
        Answer::Known(queue) => queue,
        Answer::Unknown(unknown) => panic!("{unknown:?}"),
    }
}

pub fn known_history(facts: &mut Facts) -> &mut History {
    match &mut facts.evidence.history {
        Answer::Known(history) => history,
        Answer::Unknown(unknown) => panic!("{unknown:?}"),
    }
}

pub fn unknown<T>(why: QueryErrorKind) -> Answer<T> {
    let message = if why == QueryErrorKind::NotAsked { String::new() } else { format!("the words of {why}") };
    Answer::Unknown(QueryError { kind: why, message })
}

/// An object that nobody has touched.
pub fn fresh(jobs: u32) -> Facts {
    Facts {
        object: Object {
            uid: "11111111-aaaa".into(),
            deleting: false,
            finalizer: false,
            claim: Claim::None,
            spec: Ok(Spec { queue: jobs, suspend: false, ..Spec::default() }),
            output: "/data/htc_out/default/x/11111111".to_owned(),
            published: Published::default(),
            created: date(-1000),
            abandon: false,
            submit_again: false,
            may_rerun: false,
            unadopted: false,
        },
        record: Record::default(),
        past: Past::Continuous,
        in_flight: None,
        evidence: Evidence::none(),
        silent_since: None,
        schedd_is_silent: false,
        queue: None,
        schedd: SCHEDD.into(),
    }
}

/// One that has our finalizer and a row in the ledger.
pub fn pending(jobs: u32) -> Facts {
    let mut facts = fresh(jobs);
    facts.object.finalizer = true;
    facts.object.claim = Claim::Ours;
    facts.record.row = Some(known(Phase::Pending));
    facts
}

pub fn known(phase: Phase) -> ObjectRow {
    let reached = |other| (phase >= other && phase != Phase::Terminating).then(|| at(-80));
    ObjectRow {
        phase,
        new: true,
        started: reached(Phase::Submitted),
        completed: reached(Phase::Completed),
        cut_short: None,
        given_up: 0,
        released: false,
        last_queue: None,
        conditions: Vec::new(),
    }
}

/// One that was submitted 100 s ago in one attempt; the submitter ended 90 s ago.
pub fn submitted(jobs: u32) -> Facts {
    let mut facts = pending(jobs);
    add_attempt(&mut facts, attempt(1, &format!("0-{}", jobs - 1)));
    facts
}

/// One whose attempt 1 ended 90 s ago; neither the queue nor history has a job of it.
pub fn refused() -> Facts {
    let mut facts = submitted(1);
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    facts
}

pub fn attempt(number: u32, jobs: &str) -> Submission {
    Submission {
        attempt: Attempt(number),
        indices: indices(jobs),
        schedd: SCHEDD.into(),
        birthdate: BIRTH,
        intent_at: at(-100),
        intent_date: date(-100),
        submitter_deadline: at(-40),
        dead_since: Some(at(-90)),
        refusal: None,
        absent: false,
    }
}

/// Enters an attempt into the record, with [`WITNESS`], as the ledger does.
pub fn add_attempt(facts: &mut Facts, attempt: Submission) {
    let record = &mut facts.record;
    record.highest = record.highest.max(attempt.attempt);
    record.attempted = record.attempted.iter().chain(attempt.indices.iter()).collect();
    record.witnesses.insert(attempt.attempt, Witness::Newest(WITNESS.to_owned()));
    let request = LastRequest {
        attempt: attempt.attempt,
        step: attempt.attempt.0,
        started: attempt.intent_at,
        finished: attempt.dead_since,
        failure: None,
        failures: 0,
    };
    record.requests.insert(RequestKind::Submit, request);
    record.attempts.push(attempt);
}

/// An accepted job of attempt 1, recorded 80 s ago.
pub fn job(text: &str, state: JobState) -> Job {
    Job {
        id: id(text),
        attempt: Attempt(1),
        birthdate: BIRTH,
        recorded: at(-80),
        staged_in: date(-90),
        started: matches!(state, JobState::Running | JobState::Ended(_)),
        state,
        fetched: false,
        gone: false,
        runs: RunHistory::default(),
    }
}

pub fn idle_job(text: &str) -> Job {
    job(text, JobState::Idle)
}

pub fn running_job(text: &str) -> Job {
    job(text, JobState::Running)
}

pub fn ended_job(text: &str, outcome: Outcome) -> Job {
    job(text, JobState::Ended(outcome))
}

/// Changes each recorded job.
pub fn change_job(facts: &mut Facts, change: impl Fn(&mut Job)) {
    facts.record.jobs.values_mut().for_each(change);
}

/// One whose attempt 1 has been accepted; the queue was asked a second ago and shows just these jobs.
pub fn accepted(phase: Phase, jobs: &[(Job, Ad)]) -> Facts {
    let mut facts = submitted(u32::try_from(jobs.len()).unwrap());
    facts.record.row = Some(known(phase));
    for (index, (job, _)) in (0_u32..).zip(jobs) {
        facts.record.jobs.insert(Index(index), job.clone());
    }
    let ads: Vec<Ad> = jobs.iter().map(|(_, ad)| ad.clone()).collect();
    facts.evidence.queue = queue(-1, &ads);
    facts
}

pub fn in_flight(facts: &Facts, kind: RequestKind, running: bool) -> InFlight {
    InFlight {
        key: RequestKey { uid: facts.object.uid.clone(), kind, attempt: facts.record.highest, step: 1 },
        running,
    }
}

/// A request that ended well so many seconds after now.
pub fn done(seconds: i64) -> LastRequest {
    LastRequest {
        attempt: Attempt(1),
        step: 1,
        started: at(seconds - 1),
        finished: Some(at(seconds)),
        failure: None,
        failures: 0,
    }
}

/// One that failed for the n-th time in a row.
pub fn failed(seconds: i64, failures: u32) -> LastRequest {
    let failure =
        RequestFailure { reason: "ScheddUnreachable".to_owned(), message: "cannot reach the schedd".to_owned() };
    LastRequest { step: failures, failure: Some(failure), failures, ..done(seconds) }
}
