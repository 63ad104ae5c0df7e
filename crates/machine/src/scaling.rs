//! Decides which workers of a managed pool are created and which are removed. Pure: takes dated evidence, returns a
//! plan.
//!
//! A worker is removed by draining it. HTCondor itself checks whether it has a job, in the same step in which it stops
//! accepting any.
//! A pod is deleted only if it has ended or never begun.
//! The exception is a pod whose startd the collector does not know: it is deleted if the schedd has no job there.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Maximum number of workers created or deleted in one step: the next step follows soon.
const AT_ONCE: usize = 50;
/// First back-off after a worker that ended too soon, in seconds. It doubles with each further one.
const FIRST_PAUSE: i64 = 10;
/// Longest back-off, in seconds.
const LONGEST_PAUSE: i64 = 300;

/// Evidence about the workers of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerEvidence {
    /// Current time, in Unix seconds.
    pub now: i64,
    /// How many workers there should be.
    pub goal: Goal,
    /// All workers, by their pods.
    pub workers: Vec<Worker>,
    /// Quality of the collector's answer.
    pub answer: AnswerQuality,
    /// Workers that ended too soon.
    pub deaths: EarlyExits,
    /// Numbers used by workers of other images.
    pub taken_numbers: BTreeSet<u32>,
    /// Maximum number of workers that may be created now.
    pub max_create: u32,
}

/// How many workers there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A fixed number, from the spec. Excess workers are removed even if they have jobs: once these have ended.
    Replicas(u32),
    /// As many as the jobs need.
    Autoscale {
        /// Number of workers that the running and the waiting jobs would fill.
        needed: u32,
        /// Minimum number.
        min: u32,
        /// Maximum number.
        max: u32,
        /// How long a worker must have been idle before it is removed, in seconds.
        scale_down_after: i64,
    },
}

/// Quality of the collector's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerQuality {
    /// The answer names all workers that it should.
    Known,
    /// The collector has started a short while ago. Neither what it reports nor what it lacks proves anything.
    Young,
    /// There is no answer, or it is too old.
    Unknown,
}

/// Workers that ended by themselves soon after they had started, since the last one that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlyExits {
    /// Number of such workers in a row.
    pub count: u32,
    /// When the last one was seen, in Unix seconds.
    pub last: i64,
}

/// One worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Number in the worker's name.
    pub number: u32,
    /// State of the worker's pod.
    pub pod_state: PodState,
    /// State of the worker in HTCondor.
    pub slot_state: SlotState,
    /// Whether the worker was created from the current template.
    pub up_to_date: bool,
    /// Whether HTCondor has accepted a request to drain the worker.
    pub drain_accepted: bool,
}

/// State of a worker's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// No container has started.
    Waiting {
        /// Since when, in Unix seconds.
        since: i64,
    },
    /// A container has started.
    Running,
    /// The pod has ended, successfully or not.
    Ended,
    /// The pod is being deleted.
    Terminating,
    /// The pod was requested, and the watch has not reported it yet. The watch may be ahead with the pods of other
    /// workers.
    Requested {
        /// Whether the API server confirmed that it created the pod; if not, it may not exist.
        confirmed: bool,
    },
}

/// State of a worker in HTCondor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// HTCondor does not know the worker. It may have jobs all the same.
    Unseen,
    /// HTCondor has not known the worker for so long that it counts as dead, although its pod runs.
    Absent {
        /// Whether an answer that was requested after that lacks the worker, too.
        confirmed: bool,
    },
    /// The worker has no job.
    Idle {
        /// Seen idle since this time, in Unix seconds.
        since: i64,
    },
    /// The worker has jobs.
    Busy,
    /// The worker accepts no more jobs, and ends after those that it has.
    Draining,
}

/// How a worker is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drain {
    /// Only if it has no job by now: HTCondor checks, and refuses otherwise.
    IfIdle,
    /// The worker finishes its jobs first.
    Graceful,
}

/// Steps to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScalePlan {
    /// Create these: new ones, and those that may or may not have been created before.
    pub create: Vec<u32>,
    /// Delete the pods of these: they have ended.
    pub delete_ended: Vec<u32>,
    /// Delete the pods of these unless they have started by now.
    pub delete_unstarted: Vec<u32>,
    /// Delete the pods of these unless the schedd has a job on them: they run, and the collector does not know them.
    pub delete_unknown: Vec<u32>,
    /// Drain these.
    pub drain: Vec<(u32, Drain)>,
    /// Create no worker before this time, in Unix seconds: too many have ended too soon.
    pub backoff_until: Option<i64>,
    /// When to check again although nothing has happened, in Unix seconds.
    pub requeue_at: Option<i64>,
}

impl Worker {
    /// Whether the worker is already being removed.
    const fn goes(&self) -> bool {
        self.drain_accepted
            || matches!(self.slot_state, SlotState::Draining)
            || matches!(self.pod_state, PodState::Ended | PodState::Terminating)
    }

    /// Whether the worker counts toward the number that there should be.
    #[must_use]
    pub const fn counts(&self) -> bool {
        self.up_to_date && !self.goes() && !matches!(self.slot_state, SlotState::Absent { .. })
    }

    /// Whether the worker has not joined in time, confirmed by an answer that was requested after that was noticed.
    const fn is_lost(&self) -> bool {
        matches!((self.pod_state, self.slot_state), (PodState::Running, SlotState::Absent { confirmed: true }))
            && !self.drain_accepted
    }

    /// Whether the worker has a pod, or will have one, and was not drained.
    #[must_use]
    pub const fn is_there(&self) -> bool {
        !self.drain_accepted && !matches!(self.pod_state, PodState::Ended | PodState::Terminating)
    }
}

impl Goal {
    /// Returns how many workers there should be.
    #[must_use]
    pub fn wanted(self) -> u32 {
        match self {
            Self::Replicas(replicas) => replicas,
            Self::Autoscale { needed, min, max, .. } => needed.max(min).min(max),
        }
    }

    /// Returns the latest time since when a worker must have been idle to be removed.
    const fn idle_before(self, now: i64) -> i64 {
        match self {
            Self::Replicas(_) => now,
            Self::Autoscale { scale_down_after: after, .. } => now - after,
        }
    }

    const fn after(self) -> i64 {
        match self {
            Self::Replicas(_) => 0,
            Self::Autoscale { scale_down_after: after, .. } => after,
        }
    }

    const fn spares_the_busy(self) -> bool {
        match self {
            Self::Replicas(_) => false,
            Self::Autoscale { .. } => true,
        }
    }
}

impl EarlyExits {
    /// Returns until when no worker is created; none if no worker ended too soon.
    #[must_use]
    pub fn pause_ends(self) -> Option<i64> {
        let doubled = self.count.checked_sub(1)?;
        let pause = FIRST_PAUSE.checked_shl(doubled.min(16)).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        Some(self.last + pause)
    }
}

/// Decides which workers to create, drain and delete.
#[must_use]
pub fn scale(evidence: &WorkerEvidence) -> ScalePlan {
    let WorkerEvidence { now, goal, ref workers, answer, deaths, taken_numbers: ref taken, max_create: room } =
        *evidence;
    let mut plan = ScalePlan {
        delete_ended: workers
            .iter()
            .filter(|worker| worker.pod_state == PodState::Ended)
            .map(|worker| worker.number)
            .collect(),
        ..ScalePlan::default()
    };
    if answer == AnswerQuality::Known {
        let lost = workers.iter().filter(|worker| worker.is_lost()).map(|worker| worker.number);
        plan.delete_unknown = lost.take(AT_ONCE).collect();
    }
    let wanted = usize::try_from(goal.wanted()).unwrap_or(usize::MAX);
    let (counted, rest): (Vec<&Worker>, Vec<&Worker>) = workers.iter().partition(|worker| worker.counts());
    let lacking = wanted.saturating_sub(counted.len());
    let unsure = counted
        .iter()
        .filter(|worker| worker.pod_state == PodState::Requested { confirmed: false })
        .map(|worker| worker.number);
    let mut anew: Vec<u32> = unsure.collect();
    anew.truncate(wanted.saturating_sub(counted.len() - anew.len()));
    if lacking > 0 || !anew.is_empty() {
        if let Some(ends) = deaths.pause_ends().filter(|ends| *ends > now) {
            (plan.backoff_until, plan.requeue_at) = (Some(ends), Some(ends));
        } else {
            plan.create = anew;
            plan.create.extend(free_numbers(workers, taken, lacking.min(AT_ONCE).min(room as usize)));
        }
    }
    for worker in rest.iter().filter(|worker| !worker.goes()) {
        // The worker was created from an outdated template.
        match (worker.pod_state, worker.slot_state) {
            (PodState::Waiting { .. }, _) => plan.delete_unstarted.push(worker.number),
            (PodState::Running, SlotState::Idle { .. }) if answer == AnswerQuality::Known => {
                plan.drain.push((worker.number, Drain::IfIdle));
            }
            (PodState::Running, SlotState::Busy) if answer == AnswerQuality::Known => {
                plan.drain.push((worker.number, Drain::Graceful));
            }
            // A worker that was just requested is removed once the watch shows it.
            (PodState::Running | PodState::Ended | PodState::Terminating | PodState::Requested { .. }, _) => {}
        }
    }
    scale_down(&mut plan, evidence, counted, wanted);
    plan
}

/// Removes excess workers: waiting pods first, then idle workers, longest idle first, then busy ones if the goal allows
/// it.
fn scale_down(plan: &mut ScalePlan, evidence: &WorkerEvidence, counted: Vec<&Worker>, wanted: usize) {
    let WorkerEvidence { now, goal, answer, .. } = *evidence;
    // Workers that were just requested would be the first to be removed, once the watch shows them.
    let seen = counted.iter().filter(|worker| !matches!(worker.pod_state, PodState::Requested { .. })).count();
    let mut excess = seen.saturating_sub(wanted);
    let due = goal.idle_before(now);
    let (mut waiting, mut idle, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for worker in counted {
        match (worker.pod_state, worker.slot_state) {
            (PodState::Waiting { since }, _) => waiting.push((Reverse(worker.number), since)),
            (PodState::Running, SlotState::Idle { since }) => idle.push((since, worker.number)),
            (PodState::Running, SlotState::Busy) => busy.push(Reverse(worker.number)),
            // It is not known what the worker does.
            (PodState::Running, SlotState::Unseen | SlotState::Absent { .. } | SlotState::Draining)
            | (PodState::Ended | PodState::Terminating | PodState::Requested { .. }, _) => {}
        }
    }
    waiting.sort_unstable();
    idle.sort_unstable();
    busy.sort_unstable();
    let mut later = |since: i64| {
        let when = since + goal.after();
        plan.requeue_at = Some(plan.requeue_at.map_or(when, |again| again.min(when)));
    };
    for (Reverse(number), since) in waiting {
        if excess == 0 {
            return;
        }
        if since > due {
            later(since);
        } else {
            plan.delete_unstarted.push(number);
            excess -= 1;
        }
    }
    if answer != AnswerQuality::Known {
        return;
    }
    for (since, number) in idle {
        if excess == 0 {
            return;
        }
        if since > due {
            later(since);
        } else {
            plan.drain.push((number, Drain::IfIdle));
        }
        excess -= 1;
    }
    if !goal.spares_the_busy() {
        plan.drain.extend(busy.into_iter().take(excess).map(|Reverse(number)| (number, Drain::Graceful)));
    }
}

/// Returns the lowest numbers that no pod has. A repeated call with the same evidence returns the same numbers.
fn free_numbers(workers: &[Worker], taken: &BTreeSet<u32>, count: usize) -> Vec<u32> {
    let own: BTreeSet<u32> = workers.iter().map(|worker| worker.number).collect();
    (0..=u32::MAX).filter(|number| !own.contains(number) && !taken.contains(number)).take(count).collect()
}

#[cfg(test)]
mod tests;
