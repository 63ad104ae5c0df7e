//! How much goes into one call of a tool, as far as HTCondor's answers have taught.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Limits, Queued, WorkItem};
use crate::api::text::without_others;
use crate::machine::request::{Scope, SubmitPermit, Work};
use crate::machine::{Kind, Timestamp, Uid};

/// A request that touches more jobs than this is served beside the others, so that it holds none of them up: a submission
/// of 200 jobs takes less than a second.
pub(super) const LARGE: usize = 200;

/// Most jobs of all small requests in one submission. A larger one would be little faster for each job, and keep those that
/// come meanwhile waiting.
const SMALL_TOGETHER: usize = 2 * LARGE;

/// By this much sizes shrink. By a half would be nearer to what is possible; but each failure costs an attempt that must be
/// judged, and a pause that doubles.
const SHRINK: usize = 4;

/// A submission is to take the schedd less than a second, in which it answers nobody.
const AIM: Duration = Duration::from_millis(700);

/// By its time alone a submission has no less than this part of the jobs that it may have: below, its beginning and its end cost more than
/// the jobs.
const LEAST: usize = 4;

/// What has failed goes with this many times fewer than the last time: 50, 6, 1. So after at most two more tries it goes
/// alone, and those that it has spoilt the try for are then through.
const FEWER: usize = 8;

/// Most requests whose company is remembered.
const REMEMBERED: usize = 10_000;

/// What a failing `condor_submit` says about size. The words are the same in 23.9 and 25.14: `Number of submitted jobs would
/// exceed MAX_JOBS_PER_SUBMISSION`, or another of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// These were too many at once; fewer will be taken.
    TooMany,
    /// The queue is as full as it may be, for this user or at all; it has room when jobs leave.
    Full,
    /// Something else, or what cannot be made smaller.
    Other,
}

/// Sizes, learned and kept for the operator's life.
#[derive(Debug)]
pub struct Sizes {
    limits: Limits,
    /// Time after which larger submissions are tried again.
    forget: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Most jobs in one submission.
    jobs: usize,
    /// Most jobs in one submission by the time that others have taken.
    timely: usize,
    /// The schedd's words, while they are fewer than they might be for its sake.
    words: Option<Arc<str>>,
    /// When it may grow by itself.
    grows: Option<Timestamp>,
    /// With how many others a request that had failed went last.
    company: HashMap<(Uid, Kind), usize>,
}

/// How many jobs a request touches, as far as that is known.
pub(super) fn touches(job: &WorkItem) -> usize {
    match &job.request.work {
        Work::Submit(indices, _) | Work::Fetch(indices) | Work::Tidy(indices) => indices.len(),
        Work::Adopt(jobs) => jobs.len(),
        Work::Remove(Scope::Extra(ids) | Scope::Wished(ids)) | Work::HoldJobs(ids) | Work::ReleaseJobs(ids) => {
            ids.len()
        }
        // How many an HTCJob has that cannot be decoded is not known.
        Work::Remove(Scope::Staging) => job.plan.as_ref().map_or(0, |plan| plan.jobs),
        Work::Remove(_) | Work::Hold | Work::Release => job.plan.as_ref().map_or(usize::MAX, |plan| plan.jobs),
        Work::AttachFinalizer | Work::ReleaseFinalizer(_) | Work::DeleteObject => 0,
    }
}

pub(super) fn failed_before(job: &WorkItem) -> bool {
    job.request.alone || matches!(&job.request.work, Work::Submit(_, SubmitPermit::Again(_)))
}

impl Sizes {
    /// Begins with what the settings allow; after `forget` without a refusal, more is tried again.
    #[must_use]
    pub fn new(limits: Limits, forget: Duration) -> Self {
        let state = State { jobs: limits.jobs, timely: limits.jobs, words: None, grows: None, company: HashMap::new() };
        Self { limits, forget, state: Mutex::new(state) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Most jobs in one submission.
    pub fn jobs(&self, now: Timestamp) -> usize {
        self.with(|state| {
            if state.grows.is_some_and(|grows| grows <= now) {
                state.jobs = (state.jobs * 2).min(self.limits.jobs);
                state.grows = (state.jobs < self.limits.jobs).then(|| now.plus(self.forget));
                if state.grows.is_none() {
                    state.words = None;
                }
            }
            state.jobs.min(state.timely)
        })
    }

    /// Whether a request is one of those that hold up others: it touches many jobs, or submits a part of very many.
    pub(super) fn is_large(&self, job: &WorkItem) -> bool {
        let submits = matches!(job.request.work, Work::Submit(..));
        let of = job.plan.as_ref().filter(|_| submits).map_or(0, |plan| plan.jobs);
        self.holds_up_others(touches(job), of)
    }

    /// The same of one that touches so many jobs and, if it is a submission, is of an `HTCJob` of so many. Where parts are small, an
    /// `HTCJob` that fits into one is not large.
    fn holds_up_others(&self, touched: usize, of: usize) -> bool {
        let of_a_part = self.with(|state| state.jobs.min(state.timely));
        touched > LARGE || (of > LARGE && touched >= of_a_part)
    }

    /// The schedd's words, if it has refused more at once.
    pub fn refused_more(&self) -> Option<Arc<str>> {
        self.with(|state| state.words.clone())
    }

    /// Most jobs in one batch of requests of which the first is this one.
    pub(super) fn together(&self, first: &WorkItem, now: Timestamp) -> usize {
        let jobs = if matches!(first.request.work, Work::Submit(..)) { self.jobs(now) } else { self.limits.jobs };
        if self.is_large(first) { jobs } else { jobs.min(SMALL_TOGETHER) }
    }

    /// Most requests in a batch that this one is part of.
    pub(super) fn room(&self, job: &WorkItem) -> usize {
        match job.request.work {
            _ if !failed_before(job) => return self.limits.objects,
            Work::Fetch(_) => return 1,
            _ => {}
        }
        let key = (job.request.key.uid.clone(), job.request.key.kind);
        let last = self.with(|state| state.company.get(&key).copied()).unwrap_or(self.limits.objects);
        (last / FEWER).max(1)
    }

    /// These go together.
    pub(super) fn taken(&self, batch: &[Queued]) {
        self.with(|state| {
            if state.company.len() > REMEMBERED {
                state.company.retain(|_, company| *company == 1);
            }
            if state.company.len() > REMEMBERED {
                state.company.clear();
            }
            for job in batch.iter().filter(|job| failed_before(job)) {
                state.company.insert((job.request.key.uid.clone(), job.request.key.kind), batch.len());
            }
        });
    }

    /// A submission of so many jobs was taken.
    pub(super) fn accepted(&self, jobs: usize) {
        self.with(|state| {
            // Where the queue was full, it no longer is.
            if state.grows.is_none() && jobs * 2 > state.jobs {
                state.jobs = (state.jobs * 2).min(self.limits.jobs);
            }
        });
    }

    /// A submission of so many jobs was taken in this time.
    pub(super) fn took(&self, jobs: usize, took: Duration) {
        self.with(|state| {
            // The time of a small one is mostly that for which it waited for others.
            if jobs * 2 <= state.timely {
                return;
            }
            let millis = usize::try_from(took.as_millis()).unwrap_or(usize::MAX).max(1);
            let in_time = jobs.saturating_mul(AIM.as_millis() as usize) / millis;
            let least = self.limits.jobs.div_ceil(LEAST);
            state.timely = in_time.clamp(state.timely / 2, state.timely * 2).clamp(least, self.limits.jobs);
            tracing::debug!(jobs, ?took, next = state.timely, "the size of submissions by their time");
        });
    }

    /// A submission of so many jobs was killed at its time limit: fewer may be taken in time.
    pub(super) fn took_too_long(&self, jobs: usize, now: Timestamp) {
        self.with(|state| {
            if jobs > LARGE {
                state.jobs = state.jobs.min(jobs / SHRINK);
                state.grows = Some(now.plus(self.forget));
                tracing::info!(jobs = state.jobs, "most jobs in one submission from now on, as {jobs} took too long");
            }
        });
    }

    /// A submission of so many jobs failed with these words.
    pub(super) fn refused(&self, words: &str, jobs: usize, now: Timestamp) -> Refusal {
        let refusal = if words.contains("would exceed MAX_JOBS_PER_SUBMISSION") && jobs > 1 {
            Refusal::TooMany
        } else if words.contains("would exceed MAX_JOBS_") {
            Refusal::Full
        } else {
            return Refusal::Other;
        };
        self.with(|state| {
            state.jobs = state.jobs.min(jobs / SHRINK).max(1);
            if refusal == Refusal::TooMany {
                state.grows = Some(now.plus(self.forget));
                // They are shown to others, too.
                state.words = Some(without_others(words, "").into());
            }
            tracing::info!(jobs = state.jobs, "most jobs in one submission from now on, as the schedd refuses {jobs}");
        });
        refusal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORGET: Duration = Duration::from_secs(600);
    const TOO_MANY: &str = "ERROR: Failed to create proc Number of submitted jobs would exceed MAX_JOBS_PER_SUBMISSION";
    const FULL: &str = "ERROR: Failed to create proc Number of submitted jobs would exceed MAX_JOBS_PER_OWNER";

    fn sizes() -> Sizes {
        let limit = Duration::from_secs(60);
        Sizes::new(Limits { objects: 50, jobs: 2000, submit: limit, transfer_together: limit }, FORGET)
    }

    #[test]
    fn too_many_at_once_become_fewer_and_slowly_more() {
        let (sizes, now) = (sizes(), Timestamp(0));
        assert_eq!(sizes.refused(TOO_MANY, 2000, now), Refusal::TooMany);
        assert_eq!(sizes.refused_more().as_deref(), Some(TOO_MANY));
        assert_eq!(sizes.jobs(now), 500);
        sizes.accepted(500);
        assert_eq!(sizes.jobs(now.plus(FORGET / 2)), 500, "what fits is kept to");
        assert_eq!(sizes.jobs(now.plus(FORGET)), 1000);
        assert_eq!(sizes.refused(TOO_MANY, 4, now), Refusal::TooMany);
        assert_eq!(sizes.jobs(now), 1);
        assert_eq!(sizes.refused(TOO_MANY, 1, now), Refusal::Full, "none can be taken");
        assert_eq!(sizes.jobs(now), 1);
    }

    #[test]
    fn submissions_are_as_large_as_the_schedd_takes_in_in_a_second() {
        let (sizes, now) = (sizes(), Timestamp(0));
        let took = |jobs, millis| {
            sizes.took(jobs, Duration::from_millis(millis));
            sizes.jobs(now)
        };
        assert_eq!(took(2000, 700), 2000);
        assert_eq!(took(2000, 350), 2000, "no more than is allowed");
        assert_eq!(took(2000, 1400), 1000);
        assert_eq!(took(1000, 1000), 700);
        assert_eq!(took(700, 60_000), 500, "at its smallest, after one bad moment");
        assert_eq!(took(251, 10), 1000);
        assert_eq!(took(500, 60_000), 1000, "a small one shows nothing");
        assert_eq!(sizes.refused(TOO_MANY, 200, now), Refusal::TooMany);
        assert_eq!(sizes.jobs(now), 50, "that has gone before");
    }

    #[test]
    fn parts_of_very_many_jobs_hold_up_others_and_small_htcjobs_do_not() {
        let limit = Duration::from_secs(60);
        let of = |jobs| Sizes::new(Limits { objects: 50, jobs, submit: limit, transfer_together: limit }, FORGET);
        for part in [1, 100, LARGE] {
            let small = of(part);
            assert!(!small.holds_up_others(part, part), "an HTCJob of {part} that fits into one submission");
            assert!(small.holds_up_others(part, LARGE + 1), "a part of {part}");
        }
        assert!(!of(100).holds_up_others(99, 100_000), "a rest");
        assert!(of(100).holds_up_others(LARGE + 1, 0));
        // The schedd lets in fewer at once than it could take in in time.
        let refused = sizes();
        refused.refused(TOO_MANY, LARGE, Timestamp(0));
        assert!(refused.holds_up_others(LARGE / SHRINK, 100_000) && !refused.holds_up_others(LARGE / SHRINK, 50));
    }

    #[test]
    fn a_full_queue_takes_more_as_soon_as_it_takes_any() {
        let (sizes, now) = (sizes(), Timestamp(0));
        for expected in [500, 125, 31] {
            assert_eq!(sizes.refused(FULL, sizes.jobs(now), now), Refusal::Full);
            assert_eq!(sizes.jobs(now), expected);
        }
        sizes.accepted(1);
        assert_eq!(sizes.jobs(now), 31, "a small one shows nothing");
        for expected in [62, 124, 248, 496, 992, 1984, 2000, 2000] {
            sizes.accepted(sizes.jobs(now));
            assert_eq!(sizes.jobs(now), expected);
        }
        assert_eq!(sizes.refused("ERROR: No such directory", 2000, now), Refusal::Other);
        assert_eq!(sizes.jobs(now), 2000);
        sizes.took_too_long(50, now);
        assert_eq!(sizes.jobs(now), 2000, "that was not for its size");
        sizes.took_too_long(2000, now);
        assert_eq!(sizes.jobs(now), 500);
        sizes.accepted(500);
        assert_eq!(sizes.jobs(now), 500, "it would take too long again");
        assert_eq!(sizes.jobs(now.plus(FORGET)), 1000);
    }
}
