//! Facts of every kind: well-formed, with all the parts that can come together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use htc_machine::actions::{RequestedAction, StoredAction};
use htc_machine::condition::{ConditionStatus, ConditionType};
use htc_machine::facts::{
    Ad, Answer, Claim, ConditionRecord, CutShort, EarlierAnswer, Evidence, Exceeded, Exit, Facts, History,
    HistoryReach, InFlight, Job, JobState, LastRequest, Listed, Object, ObjectRow, Past, Published, QueryErrorKind,
    QueueAnswer, Record, Report, ReportedEnd, RunHistory, Spec, SpecRefused, Submission, Unreadable, Witness,
};
use htc_machine::indices::Indices;
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::{Attempt, Birthdate, ClusterId, Index, JobId, RequestKey, RequestKind, Timestamp};
use proptest::prelude::*;
use proptest::sample::select;

use crate::decide::parts::{
    Seen, Shape, attempts, birthdate, conditions, job_state, make_ad, past_time, queue_answer, requests, shape, witness,
};
use crate::given::{at, date, unknown};

/// What a job reports: its index, its attempt, when it began, and how it ended.
type Told = (u32, u32, Option<Timestamp>, Option<ReportedEnd>);

#[derive(Clone, Debug)]
pub struct Seed {
    jobs: u32,
    object: (bool, bool, u8, u8, bool, bool, bool),
    published: (Option<Phase>, u32, Listed),
    past: Past,
    attempts: Vec<(Submission, bool)>,
    ads: Vec<Seen>,
    recorded: Vec<(u32, JobState, Timestamp, Birthdate, bool, bool)>,
    row: (bool, bool, bool, u8),
    /// Seconds: `activeDeadlineSeconds`, `ttlSecondsAfterFinished`, and since when the first has passed.
    times: (Option<u64>, Option<u64>, Option<i64>),
    /// `parallelism`, `maxFailedIndexes`
    limits: [Option<u32>; 2],
    conditions: Vec<ConditionRecord>,
    requests: BTreeMap<RequestKind, LastRequest>,
    in_flight: Option<(RequestKind, bool)>,
    /// If it is being deleted: the jobs were removed and are gone.
    emptied: bool,
    queue: Result<(Timestamp, Birthdate, i64), QueryErrorKind>,
    /// The answer before: how many milliseconds earlier it was asked for, which of the ads it showed, and whether it showed those that
    /// are in history now.
    before: Option<(i64, Vec<bool>, bool)>,
    history: Result<i64, QueryErrorKind>,
    reach: (BTreeSet<u32>, Option<i64>),
    /// What jobs report, by index and attempt; and whether something may follow an end.
    reports: (Vec<Told>, bool),
    /// What users want of jobs.
    wishes: Vec<(u32, StoredAction)>,
}

type Times = (Option<u64>, Option<u64>, Option<i64>);

fn times_and_limits() -> (impl Strategy<Value = Times>, impl Strategy<Value = [Option<u32>; 2]>) {
    let times = (
        prop::option::weighted(0.15, 1..30_u64),
        prop::option::weighted(0.2, 0..10_u64),
        prop::option::weighted(0.15, -8..0_i64),
    );
    let limits = [prop::option::weighted(0.3, 0..5_u32), prop::option::weighted(0.2, 0..3_u32)];
    (times, limits)
}

/// The answer of the queue before: see [`Seed`].
fn before() -> impl Strategy<Value = Option<(i64, Vec<bool>, bool)>> {
    let shown = prop_oneof![2 => Just(vec![true]), 1 => prop::collection::vec(any::<bool>(), 1..6)];
    let before = (select(vec![1, 1, 1, 1000, 3000, 8000]), shown, prop::bool::weighted(0.2));
    prop::option::weighted(0.85, before)
}

fn wished() -> impl Strategy<Value = StoredAction> {
    let wish = prop_oneof![
        Just(RequestedAction::Hold),
        (past_time(), prop::option::of(past_time()))
            .prop_map(|(since, asked)| RequestedAction::Release { since, asked }),
        any::<bool>().prop_map(|withdrawn| RequestedAction::Remove { withdrawn }),
    ];
    (wish, prop::option::of(Just("alice".to_owned()))).prop_map(|(wish, untold)| StoredAction {
        number: 1,
        action: wish,
        unreported: untold,
    })
}

fn wishes(jobs: u32) -> impl Strategy<Value = Vec<(u32, StoredAction)>> {
    prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec((0..jobs, wished()), 1..4)]
}

/// Mostly ids that jobs and ads may have.
fn listed(jobs: u32) -> impl Strategy<Value = Listed> {
    let id = (1..=4_u64, 0..jobs).prop_map(|(attempt, proc)| JobId { cluster: ClusterId(attempt * 10), proc });
    let ids = prop::collection::btree_set(id, 1..3).prop_map(|ids| Listed::All(ids.into_iter().collect()));
    prop_oneof![20 => Just(Listed::Nothing), 3 => ids, 1 => Just(Listed::Partly)]
}

#[allow(clippy::too_many_lines, reason = "one generator for all facts")]
pub fn seed() -> impl Strategy<Value = Seed> {
    (1..=5_u32).prop_flat_map(|jobs| {
        let object = (
            prop::bool::weighted(0.3),
            prop::bool::weighted(0.93),
            0..12_u8,
            0..16_u8,
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
            listed(jobs),
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
        let (times, limits) = times_and_limits();
        let in_flight = prop::option::weighted(
            0.2,
            (
                select(vec![
                    RequestKind::Submit,
                    RequestKind::Remove,
                    RequestKind::Hold,
                    RequestKind::Release,
                    RequestKind::Fetch,
                    RequestKind::Tidy,
                ]),
                any::<bool>(),
            ),
        );
        let history = prop_oneof![
            5 => (-2..=2_i64).prop_map(Ok),
            1 => select(vec![QueryErrorKind::NotAsked, QueryErrorKind::ScheddUnreachable]).prop_map(Err),
        ];
        let reach = (prop::collection::btree_set(1..=4_u32, 0..=4), prop::option::weighted(0.7, -30..0_i64));
        let report = (
            0..jobs,
            1..=4_u32,
            prop::option::of(past_time()),
            prop::option::of((past_time(), select(vec![0, 3])).prop_map(|(at, code)| ReportedEnd { at, code })),
        );
        let told = ((prop::collection::vec(report, 0..4), prop::bool::weighted(0.3)), wishes(jobs));
        (
            (Just(jobs), object, published, past, attempts(jobs), ads, recorded),
            (
                (row, times, limits),
                conditions(),
                requests(),
                in_flight,
                prop::bool::weighted(0.2),
                (queue_answer(), before()),
                history,
                reach,
                told,
            ),
        )
            .prop_map(|((jobs, object, published, past, attempts, ads, recorded), rest)| {
                let (
                    (row, times, limits),
                    conditions,
                    requests,
                    in_flight,
                    emptied,
                    (queue, before),
                    history,
                    reach,
                    (reports, wishes),
                ) = rest;
                let seed = Seed {
                    jobs,
                    object,
                    published,
                    past,
                    attempts,
                    ads,
                    recorded,
                    row,
                    times,
                    limits,
                    conditions,
                    requests,
                    in_flight,
                    emptied,
                    queue,
                    before,
                    history,
                    reach,
                    reports,
                    wishes,
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
            self.requests.insert(RequestKind::Remove, removed);
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
        let (deleting, finalizer, claim, spec, suspend, abandon, submit_again) = self.object;
        let (phase, attempt, listed) = self.published.clone();
        Object {
            uid: "11111111-aaaa".into(),
            deleting,
            finalizer,
            claim: match claim {
                0 => Claim::None,
                1 => Claim::Other,
                _ => Claim::Ours,
            },
            spec: if spec == 0 {
                Err(Unreadable::invalid("line 1: no"))
            } else {
                let (deadline, ttl) = (self.times.0.map(Duration::from_secs), self.times.1.map(Duration::from_secs));
                let refused = (spec == 1).then(|| SpecRefused::invalid("line 1: no"));
                let indexes = (spec > 9).then(|| Indices::first(self.jobs));
                let queue = self.jobs + u32::from(indexes.is_some());
                let [parallelism, max_failed] = self.limits;
                Ok(Spec { queue, indexes, suspend, parallelism, max_failed, deadline, ttl, refused })
            },
            output: "/out".to_owned(),
            published: Published { phase, attempt, listed, schedd: None },
            created: date(-25),
            abandon,
            submit_again,
            may_rerun: self.reports.1,
            unadopted: false,
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
            ads.sort_by_key(|ad| ad.id);
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
                    runs: RunHistory::default(),
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
        // The jobs are reported as gone when it is proved.
        let in_order = |told: &&ConditionRecord| {
            released || told.kind != ConditionType::JobsRemoved || told.status == ConditionStatus::False
        };
        record.row = Some(ObjectRow {
            phase,
            new,
            started: (phase > Phase::Pending).then(|| at(-15)),
            completed: (phase == Phase::Completed).then(|| at(-5)),
            cut_short: self.times.2.filter(|_| phase > Phase::Pending).map(|seconds| CutShort {
                at: at(seconds),
                exceeded: if seconds % 2 == 0 { Exceeded::Deadline } else { Exceeded::FailedIndexes },
            }),
            given_up: 0,
            released,
            last_queue: None,
            conditions: self.conditions.iter().filter(in_order).cloned().collect(),
        });
        let wishes = self.wishes.iter().map(|(index, wished)| (Index(*index), wished.clone()));
        // What is recorded was not withdrawn, nor was what HTCondor has.
        let there = |index: &Index| record.jobs.contains_key(index) || queue.iter().any(|ad| ad.index == *index);
        let true_ones = |(index, wished): &(Index, StoredAction)| {
            wished.action != RequestedAction::Remove { withdrawn: true } || !there(index)
        };
        let wishes = wishes.filter(true_ones).collect();
        record.requested_actions = wishes;
        let report = |&(index, attempt, started, ended): &Told| {
            (JobId { cluster: ClusterId(u64::from(attempt) * 10), proc: index }, Report { started, ended })
        };
        record.reports = self.reports.0.iter().map(report).collect();
        record
    }

    /// The queue's answer before one that was asked for then.
    fn before(&self, asked_at: Timestamp, queue: &[Ad], history: &[Ad]) -> Option<EarlierAnswer> {
        let (earlier, shown, with_former) = self.before.as_ref()?;
        let shown = queue.iter().zip(shown.iter().cycle()).filter(|(_, shown)| **shown).map(|(ad, _)| ad);
        let former = history.iter().filter(|ad| *with_former && queue.iter().all(|queued| queued.id != ad.id));
        let mut ads: Vec<Ad> = shown.chain(former).cloned().collect();
        ads.sort_by_key(|ad| ad.id);
        Some(EarlierAnswer::new(Timestamp(asked_at.0 - earlier), &ads))
    }

    pub fn facts(&self) -> Facts {
        let (queue_ads, history_ads) = self.ads();
        let record = self.record(&queue_ads);
        let object = self.object();
        let queue = match self.queue {
            Ok((asked_at, birthdate, steady)) => Answer::Known(QueueAnswer {
                asked_at,
                birthdate,
                steady_since: Timestamp(asked_at.0 - steady * 1000),
                before: self.before(asked_at, &queue_ads, &history_ads),
                ads: queue_ads.into(),
                unlabelled: Arc::default(),
            }),
            Err(why) => unknown(why),
        };
        let history = match (&self.history, &queue) {
            (Ok(after), Answer::Known(queue)) => Answer::Known(History {
                asked_at: Timestamp(queue.asked_at.0 + after * 1000),
                reaches: HistoryReach {
                    witnesses: self.reach.0.iter().copied().map(witness).collect(),
                    date: self.reach.1.map(date),
                },
                ads: history_ads.into(),
            }),
            (Ok(_), Answer::Unknown(_)) => unknown(QueryErrorKind::NotAsked),
            (Err(why), _) => unknown(*why),
        };
        let in_flight = self.in_flight.filter(|_| object.finalizer && record.row.is_some()).map(|(kind, running)| {
            let attempt = Attempt(record.highest.0 + u32::from(kind == RequestKind::Submit));
            InFlight { key: RequestKey { uid: object.uid.clone(), kind, attempt, step: 9 }, running }
        });
        let past = match object.claim {
            // Such an object is never of known past.
            Claim::None | Claim::Other if self.past == Past::Continuous => Past::Unknown { settled: None },
            Claim::Ours | Claim::None | Claim::Other => self.past,
        };
        let evidence = Evidence { queue, history };
        Facts {
            object,
            record,
            past,
            in_flight,
            evidence,
            silent_since: None,
            schedd_is_silent: false,
            queue: None,
            schedd: "schedd@test".into(),
        }
    }
}
