//! Limits the size of one call of a tool, as learned from HTCondor's answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use htc_machine::request::{RemovalScope, SubmitPermit, Work};
use htc_machine::text::redact_other_uids;
use htc_machine::{RequestKind, Timestamp, Uid};
use parking_lot::Mutex;

use super::{BatchLimits, QueuedRequest, WorkItem};

/// Number of jobs above which a request has a separate worker, so that it does not delay others. A submission of 200
/// jobs takes less than a second.
pub(super) const LARGE: usize = 200;

/// Bytes of input files above which a submission has a separate worker. They take some tenths of a second.
const LARGE_BYTES: usize = 20 << 20;

/// Maximum number of jobs of all small requests in one submission. More would save little time per job, and would delay
/// requests that arrive meanwhile.
const SMALL_TOGETHER: usize = 2 * LARGE;

/// Factor by which sizes shrink. A factor of two would come closer to the possible size, but each failure costs an
/// attempt that must be judged, and doubles the back-off.
const SHRINK: usize = 4;

/// Target duration of a submission. The schedd should be busy for less than a second, because it answers no other
/// client in that time.
const AIM: Duration = Duration::from_millis(700);

/// Part of the configured limit below which the size never falls because of duration alone: the fixed cost of smaller
/// submissions exceeds the cost of their jobs.
const LEAST: usize = 4;

/// Factor by which the batch of a failed request shrinks at each retry: 50, 6, 1. So after at most two more retries it
/// runs alone, and requests that failed because of it have succeeded.
const FEWER: usize = 8;

/// Maximum number of requests whose batch size is remembered.
const REMEMBERED: usize = 10_000;

/// Classification of the messages of a failed `condor_submit` about sizes. The messages are the same in 23.9 and 25.14:
/// `Number of submitted jobs would exceed MAX_JOBS_PER_SUBMISSION`, or another of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeRefusal {
    /// Too many jobs in one submission; fewer will be accepted.
    TooMany,
    /// The queue has reached its limit, for this user or in total. It accepts jobs again when others leave.
    Full,
    /// Another message, or a submission that cannot be made smaller.
    Other,
}

/// Learned sizes; they are kept for the lifetime of the process.
#[derive(Debug)]
pub struct SubmissionSizes {
    limits: BatchLimits,
    /// Time after which larger submissions are tried again.
    forget: Duration,
    state: Mutex<SizeState>,
}

#[derive(Debug)]
struct SizeState {
    /// Maximum number of jobs in one submission.
    jobs: usize,
    /// Maximum number of jobs in one submission, according to the duration of earlier ones.
    timely: usize,
    /// Message of the schedd, while the maximum is reduced because of it.
    words: Option<Arc<str>>,
    /// Time when the maximum grows without a success.
    grows: Option<Timestamp>,
    /// Batch size of the last try of requests that have failed.
    company: HashMap<(Uid, RequestKind), usize>,
}

/// Returns how many jobs a request touches, as far as that is known.
pub(super) fn touches(job: &WorkItem) -> usize {
    match &job.request.work {
        Work::Submit(indices, _) | Work::Fetch(indices) | Work::Tidy(indices) => indices.len(),
        Work::Remove(RemovalScope::Extra(ids) | RemovalScope::Requested(ids))
        | Work::HoldJobs(ids)
        | Work::ReleaseJobs(ids) => ids.len(),
        // If the HTCJob cannot be decoded, its number of jobs is unknown.
        Work::Remove(RemovalScope::Staging) => job.plan.as_ref().map_or(0, |plan| plan.jobs),
        Work::Remove(_) | Work::Hold | Work::Release => job.plan.as_ref().map_or(usize::MAX, |plan| plan.jobs),
        Work::AttachFinalizer | Work::ReleaseFinalizer(_) | Work::DeleteObject => 0,
    }
}

pub(super) fn failed_before(job: &WorkItem) -> bool {
    job.request.alone || matches!(&job.request.work, Work::Submit(_, SubmitPermit::Again(_)))
}

impl SubmissionSizes {
    /// Starts with the configured limits. Larger submissions are tried again after `forget` without a refusal.
    #[must_use]
    pub fn new(limits: BatchLimits, forget: Duration) -> Self {
        let state =
            SizeState { jobs: limits.jobs, timely: limits.jobs, words: None, grows: None, company: HashMap::new() };
        Self { limits, forget, state: Mutex::new(state) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut SizeState) -> T) -> T {
        work(&mut self.state.lock())
    }

    /// Returns the maximum number of jobs in one submission.
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

    /// Whether a request delays others: it touches many jobs, submits a part of very many, or transfers large files.
    pub(super) fn is_large(&self, job: &WorkItem) -> bool {
        let submits = matches!(job.request.work, Work::Submit(..));
        let of = job.plan.as_ref().filter(|_| submits).map_or(0, |plan| plan.jobs);
        let bytes = job.texts.as_ref().map_or(0, |texts| texts.input_bytes.saturating_mul(touches(job)));
        bytes > LARGE_BYTES || self.holds_up_others(touches(job), of)
    }

    /// Like [`Self::is_large`], for a request that touches `touched` jobs and, if it is a submission, belongs to an
    /// `HTCJob` with `of` jobs. An `HTCJob` that fits into one reduced submission is not large.
    fn holds_up_others(&self, touched: usize, of: usize) -> bool {
        let of_a_part = self.with(|state| state.jobs.min(state.timely));
        touched > LARGE || (of > LARGE && touched >= of_a_part)
    }

    /// Returns the schedd's message, if it has refused a larger submission.
    pub fn size_refusal(&self) -> Option<Arc<str>> {
        self.with(|state| state.words.clone())
    }

    /// Returns the maximum number of jobs in one batch that starts with this request.
    pub(super) fn max_jobs(&self, first: &WorkItem, now: Timestamp) -> usize {
        let jobs = if matches!(first.request.work, Work::Submit(..)) { self.jobs(now) } else { self.limits.jobs };
        if self.is_large(first) { jobs } else { jobs.min(SMALL_TOGETHER) }
    }

    /// Returns the maximum number of requests in a batch with this one.
    pub(super) fn max_requests(&self, job: &WorkItem) -> usize {
        match job.request.work {
            _ if !failed_before(job) => return self.limits.objects,
            Work::Fetch(_) => return 1,
            _ => {}
        }
        let key = (job.request.key.uid.clone(), job.request.key.kind);
        let last = self.with(|state| state.company.get(&key).copied()).unwrap_or(self.limits.objects);
        (last / FEWER).max(1)
    }

    /// Records the batch size of the requests that have failed before.
    pub(super) fn taken(&self, batch: &[QueuedRequest]) {
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

    /// Records that a submission of `jobs` jobs was accepted.
    pub(super) fn accepted(&self, jobs: usize) {
        self.with(|state| {
            // If the queue was full, it no longer is.
            if state.grows.is_none() && jobs * 2 > state.jobs {
                state.jobs = (state.jobs * 2).min(self.limits.jobs);
            }
        });
    }

    /// Records how long an accepted submission took.
    pub(super) fn took(&self, jobs: usize, took: Duration) {
        self.with(|state| {
            // A small submission spends most of its time waiting for others.
            if jobs * 2 <= state.timely {
                return;
            }
            let millis = usize::try_from(took.as_millis()).unwrap_or(usize::MAX).max(1);
            let in_time = jobs.saturating_mul(AIM.as_millis() as usize) / millis;
            let least = self.limits.jobs.div_ceil(LEAST);
            state.timely = in_time.clamp(state.timely / 2, state.timely * 2).clamp(least, self.limits.jobs);
            tracing::debug!(jobs, ?took, next = state.timely, "submission size adapted");
        });
    }

    /// Records that a submission was killed at its time limit: fewer jobs may be accepted in time.
    pub(super) fn took_too_long(&self, jobs: usize, now: Timestamp) {
        self.with(|state| {
            if jobs > LARGE {
                state.jobs = state.jobs.min(jobs / SHRINK);
                state.grows = Some(now.plus(self.forget));
                tracing::info!(jobs, maximum = state.jobs, why = "timed out", "submission size reduced");
            }
        });
    }

    /// Records that a submission of `jobs` jobs failed with the message `words`.
    pub(super) fn refused(&self, words: &str, jobs: usize, now: Timestamp) -> SizeRefusal {
        let refusal = if words.contains("would exceed MAX_JOBS_PER_SUBMISSION") && jobs > 1 {
            SizeRefusal::TooMany
        } else if words.contains("would exceed MAX_JOBS_") {
            SizeRefusal::Full
        } else {
            return SizeRefusal::Other;
        };
        self.with(|state| {
            state.jobs = state.jobs.min(jobs / SHRINK).max(1);
            if refusal == SizeRefusal::TooMany {
                state.grows = Some(now.plus(self.forget));
                // Users of other HTCJobs see this message, too.
                state.words = Some(redact_other_uids(words, "").into());
            }
            tracing::info!(jobs, maximum = state.jobs, why = "refused by the schedd", "submission size reduced");
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

    fn sizes() -> SubmissionSizes {
        let limit = Duration::from_secs(60);
        SubmissionSizes::new(BatchLimits { objects: 50, jobs: 2000, submit: limit, transfer_together: limit }, FORGET)
    }

    #[test]
    fn submission_size_shrinks_on_refusal_and_recovers_slowly() {
        let (sizes, now) = (sizes(), Timestamp(0));
        assert_eq!(sizes.refused(TOO_MANY, 2000, now), SizeRefusal::TooMany);
        assert_eq!(sizes.size_refusal().as_deref(), Some(TOO_MANY));
        assert_eq!(sizes.jobs(now), 500);
        sizes.accepted(500);
        assert_eq!(sizes.jobs(now.plus(FORGET / 2)), 500, "the size that fits is kept");
        assert_eq!(sizes.jobs(now.plus(FORGET)), 1000);
        assert_eq!(sizes.refused(TOO_MANY, 4, now), SizeRefusal::TooMany);
        assert_eq!(sizes.jobs(now), 1);
        assert_eq!(sizes.refused(TOO_MANY, 1, now), SizeRefusal::Full, "none can be taken");
        assert_eq!(sizes.jobs(now), 1);
    }

    #[test]
    fn submission_size_follows_the_speed_of_the_schedd() {
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
        assert_eq!(sizes.refused(TOO_MANY, 200, now), SizeRefusal::TooMany);
        assert_eq!(sizes.jobs(now), 50, "that has gone before");
    }

    #[test]
    fn only_parts_of_large_htcjobs_yield_to_others() {
        let limit = Duration::from_secs(60);
        let of = |jobs| {
            SubmissionSizes::new(BatchLimits { objects: 50, jobs, submit: limit, transfer_together: limit }, FORGET)
        };
        for part in [1, 100, LARGE] {
            let small = of(part);
            assert!(!small.holds_up_others(part, part), "an HTCJob of {part} that fits into one submission");
            assert!(small.holds_up_others(part, LARGE + 1), "a part of {part}");
        }
        assert!(!of(100).holds_up_others(99, 100_000), "a rest");
        assert!(of(100).holds_up_others(LARGE + 1, 0));
        // The schedd admits fewer jobs at once than it could accept in time.
        let refused = sizes();
        refused.refused(TOO_MANY, LARGE, Timestamp(0));
        assert!(refused.holds_up_others(LARGE / SHRINK, 100_000) && !refused.holds_up_others(LARGE / SHRINK, 50));
    }

    #[test]
    fn submission_size_recovers_at_once_after_a_full_queue() {
        let (sizes, now) = (sizes(), Timestamp(0));
        for expected in [500, 125, 31] {
            assert_eq!(sizes.refused(FULL, sizes.jobs(now), now), SizeRefusal::Full);
            assert_eq!(sizes.jobs(now), expected);
        }
        sizes.accepted(1);
        assert_eq!(sizes.jobs(now), 31, "a small one shows nothing");
        for expected in [62, 124, 248, 496, 992, 1984, 2000, 2000] {
            sizes.accepted(sizes.jobs(now));
            assert_eq!(sizes.jobs(now), expected);
        }
        assert_eq!(sizes.refused("ERROR: No such directory", 2000, now), SizeRefusal::Other);
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
