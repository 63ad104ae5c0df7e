//! Parts that generated facts are made up of.
//!
//! Times are whole seconds, few and close together, so that before, at and after all come up.

use std::collections::BTreeMap;

use htc_machine::condition::{ConditionStatus, ConditionType};
use htc_machine::facts::{
    Ad, ConditionRecord, Exit, Hold, JobState, JobStatus, LastRequest, QueryErrorKind, RequestFailure, RunHistory,
    Submission,
};
use htc_machine::judge::REMOVED_BY_US;
use htc_machine::outcome::{Loss, Outcome};
use htc_machine::{Attempt, Birthdate, Index, JobId, RequestKind, SchedDate, Timestamp};
use proptest::prelude::*;
use proptest::sample::select;

use crate::given::{BIRTH, STAGING_FAILED, at, date, no_hold};

pub fn past_time() -> impl Strategy<Value = Timestamp> {
    (-20_i64..=0).prop_map(at)
}

pub fn witness(attempt: u32) -> String {
    format!("witness of {attempt}")
}

pub fn birthdate() -> impl Strategy<Value = Birthdate> {
    prop_oneof![
        8 => Just(BIRTH),
        1 => Just(Birthdate(BIRTH.0 + 1)),
        1 => Just(Birthdate(BIRTH.0 - 1)),
    ]
}

pub fn attempts(jobs: u32) -> impl Strategy<Value = Vec<(Submission, bool)>> {
    let one = (
        prop::collection::btree_set(0..jobs, 1..=jobs as usize),
        birthdate(),
        past_time(),
        0..5_i64,
        prop::option::weighted(0.8, 0..6_i64),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.75),
    );
    prop::collection::vec(one, 0..=3).prop_map(|all| {
        let mut starts: Vec<Timestamp> = all.iter().map(|one| one.2).collect();
        starts.sort_unstable();
        (1..)
            .zip(all.into_iter().zip(starts))
            .map(|(number, ((indices, birthdate, _, life, death, refused, open), intent_at))| {
                let seconds = |seconds: i64| Timestamp(intent_at.0 + seconds * 1000);
                let submission = Submission {
                    attempt: Attempt(number),
                    indices: indices.into_iter().map(Index).collect(),
                    schedd: "schedd@test".into(),
                    birthdate,
                    intent_at,
                    intent_date: SchedDate(date(0).0 + intent_at.0 / 1000 - at(0).0 / 1000),
                    submitter_deadline: seconds(life),
                    dead_since: death.map(seconds).filter(|dead| *dead <= at(0)),
                    refusal: refused.then(|| "ERROR: no".to_owned()),
                    absent: false,
                };
                (submission, open)
            })
            .collect()
    })
}

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Idle,
    Running,
    Held,
    HeldByUs,
    Ended(Exit),
    RemovedByHand,
    RemovedByUs,
    Late,
    LateEnded,
    Staging,
    Stillborn,
    StagingFailed,
    RemovedWhileStaging,
    RemovedAfterItsEnd,
}

pub fn shape() -> impl Strategy<Value = Shape> {
    use Shape::{
        Ended, Held, HeldByUs, Idle, Late, LateEnded, RemovedAfterItsEnd, RemovedByHand, RemovedByUs,
        RemovedWhileStaging, Running, Staging, StagingFailed, Stillborn,
    };
    select(vec![
        Idle,
        Idle,
        Running,
        Running,
        Held,
        HeldByUs,
        Ended(Exit::Code(0)),
        Ended(Exit::Code(0)),
        Ended(Exit::Code(3)),
        Ended(Exit::Signal(9)),
        RemovedByHand,
        RemovedByUs,
        Late,
        LateEnded,
        Staging,
        Staging,
        Stillborn,
        StagingFailed,
        RemovedWhileStaging,
        RemovedAfterItsEnd,
    ])
}

pub fn make_ad(id: JobId, attempt: u32, index: u32, shape: Shape) -> Ad {
    let base = Ad {
        id,
        attempt: Attempt(attempt),
        index: Index(index),
        not_after: Some(date(-5)),
        status: JobStatus::Idle,
        hold: no_hold(),
        staged_in: Some(date(-10)),
        staged_out: None,
        exit: None,
        completed: false,
        started: false,
        remove_reason: String::new(),
        runs: RunHistory::default(),
    };
    let hold = |code, subcode| Hold { code, subcode, reason: "because".to_owned(), since: None };
    let late = Ad { staged_in: Some(date(-4)), ..base.clone() };
    let unstaged = Ad { staged_in: None, ..base.clone() };
    let removed = |ad: Ad, reason: &str| Ad { status: JobStatus::Removed, remove_reason: reason.to_owned(), ..ad };
    let ended =
        |ad: Ad, exit| Ad { status: JobStatus::Completed, exit: Some(exit), completed: true, started: true, ..ad };
    match shape {
        Shape::Idle => base,
        Shape::Running => Ad { status: JobStatus::Running, started: true, ..base },
        Shape::Held => Ad { status: JobStatus::Held, hold: hold(13, 2), ..base },
        Shape::HeldByUs => Ad { status: JobStatus::Held, hold: hold(Hold::BY_USER, Hold::SUSPENDED), ..base },
        Shape::Ended(exit) => ended(base, exit),
        Shape::RemovedByHand => removed(base, "via condor_rm (by user alice)"),
        Shape::RemovedByUs => removed(base, REMOVED_BY_US),
        Shape::Late => late,
        Shape::LateEnded => ended(late, Exit::Code(241)),
        Shape::Staging => Ad { status: JobStatus::Held, hold: hold(Hold::SPOOLING, 0), ..unstaged },
        Shape::Stillborn => removed(unstaged, REMOVED_BY_US),
        Shape::StagingFailed => removed(unstaged, STAGING_FAILED),
        Shape::RemovedWhileStaging => removed(unstaged, "via condor_rm (by user alice)"),
        Shape::RemovedAfterItsEnd => removed(ended(base, Exit::Code(0)), "via condor_rm (by user alice)"),
    }
}

/// Where an ad is: in the queue, in history, in both, nowhere any more.
pub type Seen = (u32, u32, Shape, u8, bool);

fn outcome() -> impl Strategy<Value = Outcome> {
    select(vec![
        Outcome::Succeeded,
        Outcome::Succeeded,
        Outcome::Failed(3),
        Outcome::Killed(9),
        Outcome::Removed(String::new()),
        Outcome::Lost(Loss::Vanished),
    ])
}

pub fn job_state() -> impl Strategy<Value = JobState> {
    prop_oneof![
        Just(JobState::Idle),
        Just(JobState::Running),
        Just(JobState::Held(Hold { code: 13, subcode: 2, reason: "because".to_owned(), since: None })),
        Just(JobState::Held(Hold {
            code: Hold::BY_USER,
            subcode: Hold::SUSPENDED,
            reason: String::new(),
            since: None
        })),
        outcome().prop_map(JobState::Ended),
        outcome().prop_map(JobState::Ended),
    ]
}

pub fn requests() -> impl Strategy<Value = BTreeMap<RequestKind, LastRequest>> {
    let one = (
        select(vec![
            RequestKind::Submit,
            RequestKind::Remove,
            RequestKind::Hold,
            RequestKind::Release,
            RequestKind::Fetch,
            RequestKind::Tidy,
        ]),
        past_time(),
        prop::option::weighted(0.9, 0..3_i64),
        0..3_u32,
        1..5_u32,
    );
    prop::collection::vec(one, 0..4).prop_map(|all| {
        all.into_iter()
            .map(|(kind, started, life, failures, step)| {
                let finished = life.map(|life| Timestamp((started.0 + life * 1000).min(at(0).0)));
                let failure = (failures > 0)
                    .then(|| RequestFailure { reason: "ScheddUnreachable".to_owned(), message: "no route".to_owned() });
                let step = step.max(failures);
                (kind, LastRequest { attempt: Attempt(1), step, started, finished, failure, failures })
            })
            .collect()
    })
}

pub fn conditions() -> impl Strategy<Value = Vec<ConditionRecord>> {
    let one = (
        select(vec![
            ConditionType::Submitted,
            ConditionType::Tracked,
            ConditionType::Held,
            ConditionType::Suspended,
            ConditionType::OutputFetched,
            ConditionType::JobsRemoved,
        ]),
        select(vec![ConditionStatus::True, ConditionStatus::False]),
        select(vec!["QueryingHTCondor", "SubmitRefused", "Removing", "ScheddUnreachable", "Submitting"]),
        past_time(),
    );
    prop::collection::vec(one, 0..4).prop_map(|all| {
        let by_kind: BTreeMap<ConditionType, ConditionRecord> = all
            .into_iter()
            .map(|(kind, status, reason, since)| {
                (kind, ConditionRecord { kind, status, reason: reason.to_owned(), message: "m".to_owned(), since })
            })
            .collect();
        by_kind.into_values().collect()
    })
}

pub fn queue_answer() -> impl Strategy<Value = Result<(Timestamp, Birthdate, i64), QueryErrorKind>> {
    let trouble = select(vec![
        QueryErrorKind::NotAsked,
        QueryErrorKind::ScheddUnreachable,
        QueryErrorKind::CredentialsRefused,
        QueryErrorKind::CredentialsFailed,
        QueryErrorKind::Incomplete,
        QueryErrorKind::AnotherSchedd,
    ]);
    prop_oneof![
        6 => (prop_oneof![2 => Just(at(0)), 1 => past_time()], birthdate(), select(vec![0, 3, 5, 30])).prop_map(Ok),
        1 => trouble.prop_map(Err),
    ]
}
