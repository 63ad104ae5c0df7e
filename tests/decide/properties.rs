//! What holds of every decision, whatever the facts: they are generated, well-formed but otherwise of every kind.
//!
//! Times are whole seconds, few and close together, so that before, at and after all come up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use htc_operator::api::{ConditionStatus, ConditionType};
use htc_operator::machine::decide::{Action, Decision, Look};
use htc_operator::machine::facts::{
    Ad, Answer, Claim, Condition, Evidence, Exit, Facts, Failure, History, Hold, InFlight, Job, JobState, JobStatus,
    Known, LastRequest, Loss, Object, Outcome, Past, Published, Queue, Reach, Record, Spec, Submission, Why, Witness,
};
use htc_operator::machine::judge::REMOVED_BY_US;
use htc_operator::machine::phase::Phase;
use htc_operator::machine::request::{ReleasePermit, SubmitPermit};
use htc_operator::machine::transitions::{TRANSITIONS, find};
use htc_operator::machine::{
    Attempt, Birthdate, ClusterId, Index, JobId, Kind, Request, RequestKey, Rules, SchedDate, Settings, Timestamp,
    Work, decide,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use crate::machine::{BIRTH, STAGING_FAILED, at, date, no_hold, unknown};

/// Three jobs a submission, so that larger objects come in parts; pauses and margins of a few seconds.
fn settings() -> Settings {
    Settings {
        staging: Duration::from_secs(4),
        dead_margin: Duration::from_secs(2),
        late_margin: Duration::from_secs(1),
        output_wait: Duration::from_secs(6),
        birthdate_steady: Duration::from_secs(5),
        submit_max: Duration::from_secs(5),
        pause_first: Duration::from_secs(2),
        pause_max: Duration::from_secs(8),
        fetch_every: Duration::from_secs(3),
        eager: Duration::from_secs(3),
        soon: Duration::from_secs(1),
        jobs_per_attempt: 3,
    }
}

// --- facts ----------------------------------------------------------------------------------------------------------

fn past_time() -> impl Strategy<Value = Timestamp> {
    (-20_i64..=0).prop_map(at)
}

fn witness(attempt: u32) -> String {
    format!("witness of {attempt}")
}

fn birthdate() -> impl Strategy<Value = Birthdate> {
    prop_oneof![
        8 => Just(BIRTH),
        1 => Just(Birthdate(BIRTH.0 + 1)),
        1 => Just(Birthdate(BIRTH.0 - 1)),
    ]
}

fn attempts(jobs: u32) -> impl Strategy<Value = Vec<(Submission, bool)>> {
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
                    not_after: seconds(life),
                    dead_since: death.map(seconds).filter(|dead| *dead <= at(0)),
                    refusal: refused.then(|| "ERROR: no".to_owned()),
                };
                (submission, open)
            })
            .collect()
    })
}

#[derive(Clone, Copy, Debug)]
enum Shape {
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

fn shape() -> impl Strategy<Value = Shape> {
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

fn make_ad(id: JobId, attempt: u32, index: u32, shape: Shape) -> Ad {
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
    };
    let hold = |code, subcode| Hold { code, subcode, reason: "because".to_owned() };
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
type Seen = (u32, u32, Shape, u8, bool);

fn outcome() -> impl Strategy<Value = Outcome> {
    select(vec![
        Outcome::Succeeded,
        Outcome::Succeeded,
        Outcome::Failed(3),
        Outcome::Killed(9),
        Outcome::Removed,
        Outcome::Lost(Loss::Vanished),
    ])
}

fn job_state() -> impl Strategy<Value = JobState> {
    prop_oneof![
        Just(JobState::Idle),
        Just(JobState::Running),
        Just(JobState::Held(Hold { code: 13, subcode: 2, reason: "because".to_owned() })),
        Just(JobState::Held(Hold { code: Hold::BY_USER, subcode: Hold::SUSPENDED, reason: String::new() })),
        outcome().prop_map(JobState::Ended),
        outcome().prop_map(JobState::Ended),
    ]
}

fn requests() -> impl Strategy<Value = BTreeMap<Kind, LastRequest>> {
    let one = (
        select(vec![Kind::Submit, Kind::Remove, Kind::Hold, Kind::Release, Kind::Fetch, Kind::Tidy]),
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
                    .then(|| Failure { reason: "ScheddUnreachable".to_owned(), message: "no route".to_owned() });
                let step = step.max(failures);
                (kind, LastRequest { attempt: Attempt(1), step, started, finished, failure, failures })
            })
            .collect()
    })
}

fn conditions() -> impl Strategy<Value = Vec<Condition>> {
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
        select(vec!["Asking", "SubmitRefused", "Removing", "ScheddUnreachable", "Submitting"]),
        past_time(),
    );
    prop::collection::vec(one, 0..4).prop_map(|all| {
        let by_kind: BTreeMap<ConditionType, Condition> = all
            .into_iter()
            .map(|(kind, status, reason, since)| {
                (kind, Condition { kind, status, reason: reason.to_owned(), message: "m".to_owned(), since })
            })
            .collect();
        by_kind.into_values().collect()
    })
}

fn queue_answer() -> impl Strategy<Value = Result<(Timestamp, Birthdate, i64), Why>> {
    let trouble = select(vec![
        Why::NotAsked,
        Why::ScheddUnreachable,
        Why::CredentialsRefused,
        Why::Incomplete,
        Why::SuddenDrop,
        Why::AnotherSchedd,
    ]);
    prop_oneof![
        6 => (prop_oneof![2 => Just(at(0)), 1 => past_time()], birthdate(), select(vec![0, 3, 5, 30])).prop_map(Ok),
        1 => trouble.prop_map(Err),
    ]
}

#[derive(Clone, Debug)]
struct Seed {
    jobs: u32,
    object: (bool, bool, u8, bool, bool, bool, bool),
    published: (Option<Phase>, u32, bool),
    past: Past,
    attempts: Vec<(Submission, bool)>,
    ads: Vec<Seen>,
    recorded: Vec<(u32, JobState, Timestamp, Birthdate, bool, bool)>,
    row: (bool, bool, bool, u8),
    conditions: Vec<Condition>,
    requests: BTreeMap<Kind, LastRequest>,
    in_flight: Option<(Kind, bool)>,
    /// If it is being deleted: the jobs were removed and are gone.
    emptied: bool,
    queue: Result<(Timestamp, Birthdate, i64), Why>,
    history: Result<i64, Why>,
    reach: (BTreeSet<u32>, Option<i64>),
}

fn seed() -> impl Strategy<Value = Seed> {
    (1..=5_u32).prop_flat_map(|jobs| {
        let object = (
            prop::bool::weighted(0.3),
            prop::bool::weighted(0.93),
            0..12_u8,
            prop::bool::weighted(0.06),
            prop::bool::weighted(0.15),
            prop::bool::weighted(0.08),
            prop::bool::weighted(0.1),
        );
        let published = (
            prop::option::weighted(
                0.15,
                select(vec![Phase::Pending, Phase::Submitted, Phase::Running, Phase::Completed]),
            ),
            0..4_u32,
            prop::bool::weighted(0.08),
        );
        let past = prop_oneof![
            8 => Just(Past::Continuous),
            1 => Just(Past::Unknown { settled: None }),
            1 => past_time().prop_map(|settled| Past::Unknown { settled: Some(settled) }),
        ];
        let ads = prop::collection::vec((1..=4_u32, 0..=jobs, shape(), 0..4_u8, any::<bool>()), 0..6);
        let recorded = prop::collection::vec(
            (0..jobs, job_state(), past_time(), birthdate(), any::<bool>(), prop::bool::weighted(0.3)),
            0..4,
        );
        let row = (prop::bool::weighted(0.85), prop::bool::weighted(0.75), prop::bool::weighted(0.1), 0..6_u8);
        let in_flight = prop::option::weighted(
            0.2,
            (
                select(vec![Kind::Submit, Kind::Remove, Kind::Hold, Kind::Release, Kind::Fetch, Kind::Tidy]),
                any::<bool>(),
            ),
        );
        let history = prop_oneof![
            5 => (-2..=2_i64).prop_map(Ok),
            1 => select(vec![Why::NotAsked, Why::ScheddUnreachable]).prop_map(Err),
        ];
        let reach = (prop::collection::btree_set(1..=4_u32, 0..=4), prop::option::weighted(0.7, -30..0_i64));
        (
            (Just(jobs), object, published, past, attempts(jobs), ads, recorded),
            (row, conditions(), requests(), in_flight, prop::bool::weighted(0.2), queue_answer(), history, reach),
        )
            .prop_map(|((jobs, object, published, past, attempts, ads, recorded), rest)| {
                let (row, conditions, requests, in_flight, emptied, queue, history, reach) = rest;
                let seed = Seed {
                    jobs,
                    object,
                    published,
                    past,
                    attempts,
                    ads,
                    recorded,
                    row,
                    conditions,
                    requests,
                    in_flight,
                    emptied,
                    queue,
                    history,
                    reach,
                };
                seed.emptied()
            })
    })
}

impl Seed {
    /// Most deletions would otherwise be caught half way.
    fn emptied(mut self) -> Self {
        if self.emptied && self.object.0 {
            self.ads.retain(|ad| ad.3 == 2);
            let removed = LastRequest {
                attempt: Attempt(1),
                step: 1,
                started: at(-1),
                finished: Some(at(-1)),
                failure: None,
                failures: 0,
            };
            self.requests.insert(Kind::Remove, removed);
            for told in self.conditions.iter_mut().filter(|told| told.kind == ConditionType::JobsRemoved) {
                told.since = at(-2);
            }
            if let Ok((asked_at, ..)) = &mut self.queue {
                *asked_at = at(0);
            }
        }
        self
    }

    fn object(&self) -> Object {
        let (deleting, finalizer, claim, invalid, suspend, abandon, submit_again) = self.object;
        let (phase, attempt, has_ids) = self.published;
        Object {
            uid: "11111111-aaaa".into(),
            deleting,
            finalizer,
            claim: match claim {
                0 => Claim::None,
                1 => Claim::Other,
                _ => Claim::Ours,
            },
            spec: if invalid { Err("line 1: no".to_owned()) } else { Ok(Spec { queue: self.jobs, suspend }) },
            output: "/out".to_owned(),
            published: Published { phase, attempt, has_ids },
            created: date(-25),
            abandon,
            submit_again,
        }
    }

    /// Ids: the cluster is the attempt's; a second ad of the same job gets another one.
    fn ads(&self) -> (Vec<Ad>, Vec<Ad>) {
        let (mut queue, mut history) = (Vec::new(), Vec::new());
        let mut used = BTreeSet::new();
        for &(attempt, index, shape, place, reused) in &self.ads {
            let mut cluster = u64::from(attempt) * 10;
            while !used.insert((cluster, index)) {
                cluster += 1;
            }
            let ad = |cluster| make_ad(JobId { cluster: ClusterId(cluster), proc: index }, attempt, index, shape);
            match place {
                0 | 1 => queue.push(ad(cluster)),
                2 => history.push(ad(cluster)),
                // The same number as one of another attempt: a schedd that began anew.
                _ if reused => history.push(ad(u64::from(attempt % 4 + 1) * 10)),
                _ => {
                    queue.push(ad(cluster));
                    history.push(make_ad(
                        JobId { cluster: ClusterId(cluster), proc: index },
                        attempt,
                        index,
                        Shape::Ended(Exit::Code(0)),
                    ));
                }
            }
        }
        for ads in [&mut queue, &mut history] {
            let mut seen = BTreeSet::new();
            ads.retain(|ad| seen.insert((ad.id, ad.attempt)));
        }
        (queue, history)
    }

    fn record(&self, queue: &[Ad]) -> Record {
        let (known, new, released, phase) = self.row;
        if !known {
            return Record::default();
        }
        let mut record = Record {
            highest: self.attempts.last().map_or(Attempt(0), |(last, _)| last.attempt),
            attempted: self.attempts.iter().flat_map(|(one, _)| one.indices.iter()).collect(),
            witnesses: self
                .attempts
                .iter()
                .filter(|(one, _)| one.attempt.0 != 3)
                .map(|(one, _)| {
                    let empty = one.attempt.0 == 2 && one.refusal.is_some();
                    let seen = if empty { Witness::Empty } else { Witness::Newest(witness(one.attempt.0)) };
                    (one.attempt, seen)
                })
                .collect(),
            requests: self.requests.clone(),
            ..Record::default()
        };
        record.attempts = self.attempts.iter().filter(|(_, open)| *open).map(|(one, _)| one.clone()).collect();
        record.refused = u32::try_from(record.attempts.iter().filter(|one| one.refusal.is_some()).count()).unwrap();
        for (index, state, recorded, birthdate, gone, fetched) in &self.recorded {
            // Only what was tried can have been accepted; its ad in the queue, if there is one, has its id.
            let Some((attempt, _)) = self.attempts.iter().find(|(one, _)| one.indices.contains(Index(*index))) else {
                continue;
            };
            let seen = queue.iter().find(|ad| ad.index.0 == *index && ad.attempt == attempt.attempt);
            let cluster = ClusterId(u64::from(attempt.attempt.0) * 10);
            let ended = matches!(state, JobState::Ended(_));
            record.jobs.insert(
                Index(*index),
                Job {
                    id: seen.map_or(JobId { cluster, proc: *index }, |ad| ad.id),
                    attempt: attempt.attempt,
                    birthdate: *birthdate,
                    recorded: *recorded,
                    staged_in: date(-10),
                    started: matches!(
                        state,
                        JobState::Running | JobState::Ended(Outcome::Succeeded | Outcome::Failed(_))
                    ),
                    state: state.clone(),
                    fetched: *fetched && ended,
                    gone: *gone && ended && seen.is_none(),
                },
            );
        }
        let jobs = &record.jobs;
        let all_ended = jobs.len() == self.jobs as usize && jobs.values().all(|job| job.outcome().is_some());
        let phase = match phase {
            0 => Phase::Terminating,
            _ if jobs.is_empty() => Phase::Pending,
            _ if all_ended => Phase::Completed,
            _ if jobs.values().any(|job| job.started) => Phase::Running,
            _ => Phase::Submitted,
        };
        // Terminating is for good.
        let phase = if phase == Phase::Terminating && !self.object.0 { Phase::Pending } else { phase };
        if phase == Phase::Pending {
            record.jobs.clear();
        }
        let released = released && phase == Phase::Terminating;
        // It is said that the jobs are gone when it is proved.
        let in_order = |told: &&Condition| {
            released || told.kind != ConditionType::JobsRemoved || told.status == ConditionStatus::False
        };
        record.known = Some(Known {
            phase,
            new,
            started: (phase > Phase::Pending).then(|| at(-15)),
            completed: (phase == Phase::Completed).then(|| at(-5)),
            released,
            conditions: self.conditions.iter().filter(in_order).cloned().collect(),
        });
        record
    }

    fn facts(&self) -> Facts {
        let (queue_ads, history_ads) = self.ads();
        let record = self.record(&queue_ads);
        let object = self.object();
        let queue = match self.queue {
            Ok((asked_at, birthdate, steady)) => Answer::Known(Queue {
                asked_at,
                birthdate,
                steady_since: Timestamp(asked_at.0 - steady * 1000),
                ads: queue_ads.into(),
            }),
            Err(why) => unknown(why),
        };
        let history = match (&self.history, &queue) {
            (Ok(after), Answer::Known(queue)) => Answer::Known(History {
                asked_at: Timestamp(queue.asked_at.0 + after * 1000),
                reaches: Reach {
                    witnesses: self.reach.0.iter().copied().map(witness).collect(),
                    date: self.reach.1.map(date),
                },
                ads: history_ads.into(),
            }),
            (Ok(_), Answer::Unknown(_)) => unknown(Why::NotAsked),
            (Err(why), _) => unknown(*why),
        };
        let in_flight = self.in_flight.filter(|_| object.finalizer && record.known.is_some()).map(|(kind, running)| {
            let attempt = Attempt(record.highest.0 + u32::from(kind == Kind::Submit));
            InFlight { key: RequestKey { uid: object.uid.clone(), kind, attempt, step: 9 }, running }
        });
        let past = match object.claim {
            // Such an object is never of known past.
            Claim::None | Claim::Other if self.past == Past::Continuous => Past::Unknown { settled: None },
            Claim::Ours | Claim::None | Claim::Other => self.past,
        };
        Facts { object, record, past, in_flight, evidence: Evidence { queue, history } }
    }
}

// --- the design once more, in other words ---------------------------------------------------------------------------

/// Design §6.4: whether an ad is a job of its object.
fn is_a_job(ad: &Ad) -> bool {
    let in_time = |staged_in: SchedDate| ad.not_after.is_none_or(|limit| staged_in <= limit);
    let never_was = ad.remove_reason.starts_with(REMOVED_BY_US) || ad.remove_reason.contains(STAGING_FAILED);
    match (ad.staged_in, ad.status) {
        (Some(staged_in), _) => in_time(staged_in),
        (None, _) if ad.started => true,
        (None, JobStatus::Removed) => !never_was,
        (None, JobStatus::Held | JobStatus::Idle) => false,
        (None, _) => true,
    }
}

fn ads_of(facts: &Facts) -> (Vec<Ad>, Vec<Ad>) {
    let queue = match &facts.evidence.queue {
        Answer::Known(queue) => queue.ads.to_vec(),
        Answer::Unknown(_) => Vec::new(),
    };
    let history = match &facts.evidence.history {
        Answer::Known(history) if !queue.is_empty() || matches!(facts.evidence.queue, Answer::Known(_)) => {
            history.ads.to_vec()
        }
        _ => Vec::new(),
    };
    (queue, history)
}

fn dead(attempt: &Submission) -> Timestamp {
    attempt.dead_since.unwrap_or(Timestamp(attempt.not_after.0 + 2000))
}

/// Evidence (a) to (d) for these attempts: asked after their submitters were dead, at the schedd that they went to.
fn asked_after(queue: &Queue, attempts: &[&Submission]) -> Result<(), String> {
    for attempt in attempts {
        if queue.asked_at <= dead(attempt) {
            return Err(format!(
                "asked at {} and attempt {} died at {}",
                queue.asked_at,
                attempt.attempt,
                dead(attempt)
            ));
        }
        same_queue(queue, attempt.birthdate)?;
    }
    Ok(())
}

fn same_queue(queue: &Queue, birthdate: Birthdate) -> Result<(), String> {
    let steady = queue.asked_at.0 - queue.steady_since.0 >= 5000;
    if queue.birthdate == birthdate || (queue.birthdate > birthdate && steady) {
        Ok(())
    } else {
        Err(format!("birthdate {birthdate} was {}", queue.birthdate))
    }
}

fn settled(facts: &Facts, queue: &Queue) -> Result<(), String> {
    match facts.past {
        Past::Continuous => Ok(()),
        Past::Unknown { settled: Some(settled) } if queue.asked_at > settled => Ok(()),
        Past::Unknown { .. } => Err("the past is unknown".to_owned()),
    }
}

/// Whether the object may be released for this reason.
fn may_release(facts: &Facts, before: &Record, permit: &ReleasePermit) -> Result<(), String> {
    if !facts.object.deleting {
        return Err("it is not being deleted".to_owned());
    }
    match permit {
        ReleasePermit::Abandoned(_) if facts.object.abandon => Ok(()),
        ReleasePermit::Abandoned(_) => Err("nobody said so".to_owned()),
        ReleasePermit::NeverSubmitted(_) => {
            let new = before.known.as_ref().is_none_or(|known| known.new) && facts.past == Past::Continuous;
            let clean = before.highest == Attempt(0) && before.jobs.is_empty() && before.attempts.is_empty();
            let shown = facts.object.published.has_ids
                || matches!(facts.object.published.phase, Some(Phase::Submitted | Phase::Running | Phase::Completed));
            if new && clean && !shown { Ok(()) } else { Err("something may have been submitted".to_owned()) }
        }
        ReleasePermit::Gone(proof) => {
            let Answer::Known(queue) = &facts.evidence.queue else { return Err("there is no answer".to_owned()) };
            if proof.uid() != &facts.object.uid || proof.asked_at() != queue.asked_at {
                return Err("the proof is of something else".to_owned());
            }
            if !queue.ads.is_empty() {
                return Err("jobs are there".to_owned());
            }
            asked_after(queue, &before.attempts.iter().collect::<Vec<_>>())?;
            settled(facts, queue)?;
            for job in before.jobs.values() {
                if queue.asked_at <= job.recorded {
                    return Err("asked before a job was recorded".to_owned());
                }
                if !job.gone {
                    same_queue(queue, job.birthdate)?;
                }
            }
            let removed =
                before.requests.get(&Kind::Remove).and_then(|last| last.finished.filter(|_| last.failure.is_none()));
            match removed {
                Some(removed) if queue.asked_at > removed => {}
                other => return Err(format!("asked at {}, removed {other:?}", queue.asked_at)),
            }
            if before.requests.values().any(|last| queue.asked_at <= last.finished.unwrap_or(last.started)) {
                return Err("asked before a request ended".to_owned());
            }
            Ok(())
        }
    }
}

/// Whether this job may be submitted for this reason.
fn may_submit(facts: &Facts, after: &Record, index: Index, permit: &SubmitPermit) -> Result<(), String> {
    let (queue_ads, history_ads) = ads_of(facts);
    let Ok(spec) = &facts.object.spec else { return Err("the spec is invalid".to_owned()) };
    if facts.object.deleting || spec.suspend || !facts.object.finalizer || facts.object.claim != Claim::Ours {
        return Err("the object is not to be submitted".to_owned());
    }
    if index.0 >= spec.queue || after.jobs.contains_key(&index) {
        return Err("it is not missing".to_owned());
    }
    if queue_ads.iter().chain(&history_ads).any(|ad| ad.index == index && is_a_job(ad)) {
        return Err("HTCondor has accepted it".to_owned());
    }
    match permit {
        SubmitPermit::First(proof) => {
            let new = after.known.as_ref().is_some_and(|known| known.new) && facts.past == Past::Continuous;
            if !new || after.attempted.contains(index) || !proof.indices().contains(index) {
                return Err("it may have been tried".to_owned());
            }
            let shown = facts.object.published.shows_jobs() && after.highest == Attempt(0);
            if shown { Err("its status shows jobs".to_owned()) } else { Ok(()) }
        }
        SubmitPermit::Again(proof) => {
            if !proof.indices().contains(index) || proof.uid() != &facts.object.uid {
                return Err("the proof is of something else".to_owned());
            }
            let (Answer::Known(queue), Answer::Known(history)) = (&facts.evidence.queue, &facts.evidence.history)
            else {
                return Err("there is no answer".to_owned());
            };
            let tried: Vec<&Submission> = after.attempts.iter().filter(|one| one.indices.contains(index)).collect();
            asked_after(queue, &tried)?;
            settled(facts, queue)?;
            // An ad that is also in history has left the queue.
            let left = |ad: &Ad| !history.ads.iter().any(|old| old.id == ad.id && old.attempt == ad.attempt);
            if queue.ads.iter().any(|ad| ad.index == index && left(ad)) {
                return Err("an ad of it is in the queue".to_owned());
            }
            if history.asked_at <= queue.asked_at {
                return Err("history was asked before the queue".to_owned());
            }
            if tried.is_empty() && facts.object.published.shows_jobs() {
                return Err("its status shows jobs".to_owned());
            }
            if facts.object.submit_again {
                return Ok(());
            }
            let reaches = |witness: Option<&Witness>, back_to: SchedDate| match witness {
                Some(Witness::Empty) => true,
                Some(Witness::Newest(id)) => history.reaches.witnesses.contains(id),
                None => history.reaches.date.is_some_and(|reached| reached <= back_to),
            };
            let far = if tried.is_empty() {
                reaches(None, facts.object.created)
            } else {
                tried.iter().all(|one| reaches(after.witnesses.get(&one.attempt), one.intent_date))
            };
            if !far {
                return Err("history does not reach back".to_owned());
            }
            // What the proof settles for good: no job but those judged may be missing up to there.
            let unsettled = after.attempts.iter().find(|one| {
                one.attempt <= proof.attempt()
                    && one.indices.iter().any(|other| {
                        other.0 < spec.queue && !after.jobs.contains_key(&other) && !proof.indices().contains(other)
                    })
            });
            unsettled.map_or(Ok(()), |one| Err(format!("attempt {} is superseded unjudged", one.attempt)))
        }
    }
}

fn is_at_rest(facts: &Facts, decision: &Decision) -> bool {
    let Some(after) = &decision.after else {
        return facts.object.deleting;
    };
    let known = after.known.as_ref().unwrap();
    let said = |kind| known.conditions.iter().any(|told| told.kind == kind && told.status == ConditionStatus::True);
    let suspended = facts.object.spec.as_ref().is_ok_and(|spec| spec.suspend);
    known.released
        || facts.object.spec.is_err()
        || (suspended && after.attempts.is_empty() && after.jobs.values().all(|job| job.gone))
        || (known.phase == Phase::Completed
            && after.jobs.values().all(|job| job.gone)
            && (said(ConditionType::Complete) || said(ConditionType::Failed)))
}

// --- the properties -------------------------------------------------------------------------------------------------

fn phase_of(record: &Record) -> Option<Phase> {
    record.known.as_ref().map(|known| known.phase)
}

fn check(facts: &Facts, decision: &Decision) -> Result<(), TestCaseError> {
    let before = phase_of(&facts.record);
    let after = decision.after.as_ref().and_then(phase_of);

    // A phase never goes back, and the transitions lead from the one to the other.
    if decision.after.is_some() {
        prop_assert!(before.is_none_or(|before| after.unwrap() >= before), "{before:?} to {after:?}");
    }
    let mut at_phase = before;
    let mut gone = false;
    for told in &decision.transitions {
        prop_assert!(
            find(told.from, told.trigger, told.to).is_some(),
            "not in the table: {:?} --{}--> {:?}",
            told.from,
            told.trigger,
            told.to
        );
        prop_assert!(!gone, "{told:?} after the end");
        prop_assert_eq!(told.from, at_phase, "{:?} does not follow", told);
        prop_assert!(!told.reason.is_empty() && !told.detail.is_empty() && !told.reason.contains(' '), "{told:?}");
        at_phase = told.to;
        gone = told.to.is_none();
    }
    if !gone && decision.after.is_some() {
        prop_assert_eq!(at_phase, after);
    }

    // It is completed when all that was asked for has an outcome, and whoever was recorded was asked for.
    if let (Some(record), Ok(spec)) = (&decision.after, &facts.object.spec) {
        prop_assert!(record.jobs.keys().all(|index| index.0 < spec.queue));
        if after == Some(Phase::Completed) && before < after {
            prop_assert_eq!(record.jobs.len(), spec.queue as usize);
            prop_assert!(record.jobs.values().all(|job| job.outcome().is_some()));
        }
    }

    // At most one request, and none while one stands.
    match &decision.action {
        Action::Hand(Request { key, work, .. }) => {
            prop_assert!(facts.in_flight.is_none(), "{key:?} while {:?} stands", facts.in_flight);
            prop_assert_eq!(&key.uid, &facts.object.uid);
            let last = facts.record.requests.get(&key.kind).map_or(0, |last| last.step);
            prop_assert_eq!(key.step, last + 1);
            check_work(facts, decision, key, work)?;
        }
        Action::Cancel(key) => {
            let stands = facts.in_flight.as_ref().unwrap();
            prop_assert!(&stands.key == key && !stands.running, "{key:?} cancelled, {stands:?}");
        }
        Action::Nothing => {}
    }

    // Jobs: only those that changed differ; an outcome stays, unless HTCondor runs the job again; an id never changes.
    if let Some(record) = &decision.after {
        for (index, job) in &record.jobs {
            let old = facts.record.jobs.get(index);
            prop_assert_eq!(old != Some(job), decision.changed.contains(index), "{}", index);
            if let Some(old) = old {
                prop_assert_eq!((old.id, old.attempt, old.recorded), (job.id, job.attempt, job.recorded));
                prop_assert!(old.fetched == job.fetched && (!old.gone || job.gone));
                prop_assert!(!old.started || job.started);
                if old.outcome().is_some() && job.outcome() != old.outcome() {
                    prop_assert!(job.outcome().is_none() && before < Some(Phase::Completed), "{old:?} to {job:?}");
                }
            }
        }
        prop_assert!(facts.record.jobs.keys().all(|index| record.jobs.contains_key(index)));
        prop_assert_eq!(&record.attempts, &facts.record.attempts);
        prop_assert_eq!(&record.requests, &facts.record.requests);
        let kinds: Vec<ConditionType> =
            record.known.as_ref().unwrap().conditions.iter().map(|condition| condition.kind).collect();
        prop_assert!(kinds.is_sorted_by(|a, b| a < b), "{kinds:?}");
        prop_assert!(record.known.as_ref().unwrap().conditions.iter().all(|told| told.since <= at(0)));
    }

    // Something goes on, or wakes it, or it is at rest; and it does not spin.
    let waits = facts.in_flight.is_some() || decision.look != Look::Nothing || decision.again.is_some();
    prop_assert!(
        waits || decision.action != Action::Nothing || is_at_rest(facts, decision),
        "nothing would ever wake it"
    );
    prop_assert!(decision.again.is_none_or(|again| again >= Duration::from_secs(1)), "it spins: {:?}", decision.again);
    Ok(())
}

fn check_work(facts: &Facts, decision: &Decision, key: &RequestKey, work: &Work) -> Result<(), TestCaseError> {
    let of_kind = match work {
        Work::AttachFinalizer => Kind::AttachFinalizer,
        Work::Submit(..) => Kind::Submit,
        Work::Remove(_) => Kind::Remove,
        Work::Hold => Kind::Hold,
        Work::Release => Kind::Release,
        Work::Fetch(_) => Kind::Fetch,
        Work::Tidy(_) => Kind::Tidy,
        Work::ReleaseFinalizer(_) => Kind::ReleaseFinalizer,
    };
    prop_assert_eq!(of_kind, key.kind);
    match work {
        Work::AttachFinalizer => prop_assert!(!facts.object.deleting),
        Work::Submit(indices, permit) => {
            let after = decision.after.as_ref().unwrap();
            prop_assert!(!indices.is_empty() && indices.len() <= 3, "{indices}");
            let (queue, history) = ads_of(facts);
            let known = queue.iter().chain(&history).map(|ad| ad.attempt.0);
            let highest = known.chain([facts.record.highest.0, facts.object.published.attempt]).max().unwrap();
            prop_assert_eq!(key.attempt, Attempt(highest + 1));
            for index in indices.iter() {
                let allowed = may_submit(facts, after, index, permit);
                prop_assert!(allowed.is_ok(), "job {index} is submitted although {}", allowed.unwrap_err());
            }
        }
        Work::Remove(scope) => {
            use htc_operator::machine::request::Scope;
            let recorded: BTreeSet<JobId> = decision.after.as_ref().unwrap().jobs.values().map(|job| job.id).collect();
            match scope {
                Scope::All => prop_assert!(facts.object.deleting),
                Scope::Staging => prop_assert!(!facts.object.deleting),
                Scope::Extra(ids) => {
                    prop_assert!(!facts.object.deleting && !ids.is_empty());
                    let (queue, _) = ads_of(facts);
                    for id in ids {
                        prop_assert!(queue.iter().any(|ad| ad.id == *id), "{id} is not in the queue");
                        let kept = recorded.contains(id) && queue.iter().any(|ad| ad.id == *id && is_a_job(ad));
                        prop_assert!(!kept, "{id} is a recorded job");
                    }
                }
            }
        }
        Work::Hold | Work::Release => {
            let suspend = facts.object.spec.as_ref().unwrap().suspend;
            prop_assert!(!facts.object.deleting && suspend == (*work == Work::Hold));
            let jobs = decision.after.as_ref().unwrap().jobs.values();
            let states: Vec<&JobState> = jobs.map(|job| &job.state).collect();
            let ours = states.iter().any(|state| matches!(state, JobState::Held(hold) if hold.is_ours()));
            let loose = states.iter().any(|state| matches!(state, JobState::Idle | JobState::Running));
            let wanted = if suspend { loose } else { ours };
            prop_assert!(wanted);
        }
        Work::Fetch(indices) => {
            let jobs = &decision.after.as_ref().unwrap().jobs;
            prop_assert!(!facts.object.deleting && !indices.is_empty());
            prop_assert!(indices.iter().all(|index| jobs[&index].has_output()));
        }
        Work::Tidy(indices) => {
            let jobs = &decision.after.as_ref().unwrap().jobs;
            prop_assert!(!facts.object.deleting && !indices.is_empty());
            prop_assert!(indices.iter().all(|index| jobs[&index].fetched && !jobs[&index].gone));
        }
        Work::ReleaseFinalizer(permit) => {
            let after = decision.after.as_ref().unwrap();
            prop_assert!(after.known.as_ref().unwrap().released);
            let allowed = may_release(facts, after, permit);
            prop_assert!(allowed.is_ok(), "released although {}", allowed.unwrap_err());
        }
    }
    Ok(())
}

/// With the same evidence at the same time there is nothing more to say or to change.
fn check_fixpoint(facts: &Facts, decision: &Decision) -> Result<(), TestCaseError> {
    let Some(after) = &decision.after else { return Ok(()) };
    let again = Facts { record: after.clone(), ..facts.clone() };
    let second = decide(&again, at(0), &settings(), &Rules::ALL);
    prop_assert!(second.transitions.is_empty(), "says more: {:#?}", second.transitions);
    prop_assert!(second.changed.is_empty(), "changes more: {:?}", second.changed);
    prop_assert_eq!(second.after.as_ref(), Some(after));
    prop_assert_eq!(&second.action, &decision.action);
    prop_assert_eq!(&second.look, &decision.look);
    prop_assert_eq!(second.again, decision.again);
    Ok(())
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(15_000)
}

fn run(test: impl Fn(&Facts, &Decision) -> Result<(), TestCaseError>) {
    let config = Config { cases: cases(), failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let result = TestRunner::new(config).run(&seed(), |seed| {
        let facts = seed.facts();
        let decision = decide(&facts, at(0), &settings(), &Rules::ALL);
        test(&facts, &decision).map_err(|error| TestCaseError::fail(format!("{error}\n{facts:#?}\n{decision:#?}")))
    });
    if let Err(error) = result {
        // The facts are in the reason; the seed would only say the same in another way.
        let reason = error.to_string();
        panic!("{}", reason.split("minimal failing input").next().unwrap_or(&reason));
    }
}

/// One test for all, because making up the facts takes most of the time. At the end: the facts were rich, they led to every
/// kind of request, every permit and every row of the table.
#[test]
fn every_decision_keeps_the_rules() {
    let seen = Mutex::new(BTreeSet::new());
    run(|facts, decision| {
        check(facts, decision)?;
        check_fixpoint(facts, decision)?;
        let mut seen = seen.lock().unwrap();
        for told in &decision.transitions {
            seen.insert(format!("{:?} --{}--> {:?}", told.from, told.trigger, told.to));
        }
        let action = match &decision.action {
            Action::Nothing => "nothing".to_owned(),
            Action::Cancel(_) => "cancel".to_owned(),
            Action::Hand(Request { work, .. }) => match work {
                Work::Submit(_, SubmitPermit::First(_)) => "submit first".to_owned(),
                Work::Submit(_, SubmitPermit::Again(_)) => "submit again".to_owned(),
                Work::ReleaseFinalizer(ReleasePermit::Gone(_)) => "release, gone".to_owned(),
                Work::ReleaseFinalizer(ReleasePermit::NeverSubmitted(_)) => "release, never submitted".to_owned(),
                Work::ReleaseFinalizer(ReleasePermit::Abandoned(_)) => "release, abandoned".to_owned(),
                Work::Remove(scope) => format!("remove {scope:?}").split('(').next().unwrap_or_default().to_owned(),
                Work::AttachFinalizer => "attach".to_owned(),
                Work::Hold => "hold".to_owned(),
                Work::Release => "release jobs".to_owned(),
                Work::Fetch(_) => "fetch".to_owned(),
                Work::Tidy(_) => "tidy".to_owned(),
            },
        };
        seen.insert(action);
        Ok(())
    });
    let seen = seen.into_inner().unwrap();
    let actions = [
        "nothing",
        "cancel",
        "attach",
        "submit first",
        "submit again",
        "remove All",
        "remove Staging",
        "remove Extra",
        "hold",
        "release jobs",
        "fetch",
        "tidy",
        "release, gone",
        "release, never submitted",
        "release, abandoned",
    ];
    let rows = TRANSITIONS.iter().map(|row| format!("{:?} --{}--> {:?}", row.from, row.trigger, row.to));
    let missing: Vec<String> =
        actions.iter().map(|action| (*action).to_owned()).chain(rows).filter(|what| !seen.contains(what)).collect();
    // An end of an object whose jobs were all seen without a start needs a lot of luck.
    let rare = ["Some(Submitted) --Succeeded--> Some(Completed)"];
    let missing: Vec<_> = missing.iter().filter(|what| !rare.contains(&what.as_str())).collect();
    assert!(missing.is_empty(), "never seen: {missing:#?}");
}
