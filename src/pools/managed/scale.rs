//! Which workers a managed pool gets, and which go. Pure: it sees dated evidence and says what to do.
//!
//! A worker goes by being drained: HTCondor itself says whether it has a job, in the same step in which it stops taking any. Only a pod
//! that has ended, or has never begun, is deleted; and one whose startd the collector does not know, if the schedd has no job there.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Most workers that are made at one look: the next one is soon.
const AT_ONCE: usize = 50;
/// First pause after a worker that ended too soon, in seconds; it doubles with each that follows.
const FIRST_PAUSE: i64 = 10;
/// Longest pause.
const LONGEST_PAUSE: i64 = 300;

/// What is known about the workers of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Unix seconds.
    pub now: i64,
    /// How many there should be.
    pub goal: Goal,
    /// All their pods.
    pub workers: Vec<Worker>,
    /// What the collector's answer is worth.
    pub answer: Answer,
    /// Workers that ended too soon.
    pub deaths: Deaths,
    /// Numbers that workers of other images have.
    pub taken: BTreeSet<u32>,
    /// Most that may be made now.
    pub room: u32,
}

/// How many workers there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// As many as somebody has written. Those that are too many go even if they have jobs: as soon as these have ended.
    Replicas(u32),
    /// As many as the jobs need.
    Follow {
        /// Workers that all jobs fill that run or wait.
        needed: u32,
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
        /// How long one has had nothing to do when it goes, in seconds.
        after: i64,
    },
}

/// What the collector's answer is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It names all workers that it should.
    Known,
    /// The collector has begun a short while ago: those that it does not name, and what it says of those that it does, prove nothing.
    Young,
    /// There is none, or it is too old.
    Unknown,
}

/// Workers that ended by themselves soon after they began, since the last one that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    /// How many.
    pub count: u32,
    /// When the last one was seen, in unix seconds.
    pub last: i64,
}

/// A worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The number in its name.
    pub number: u32,
    /// Its pod.
    pub pod: Pod,
    /// What HTCondor says of it.
    pub slot: Slot,
    /// It was made as it would be made now.
    pub current: bool,
    /// HTCondor was told to drain it, and has accepted that.
    pub drained: bool,
}

/// The pod of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pod {
    /// No container of it has begun.
    Waiting {
        /// Since when, in unix seconds.
        since: i64,
    },
    /// It has begun.
    Running,
    /// It has ended, well or not.
    Ended,
    /// Somebody has deleted it.
    Leaving,
    /// It was asked for, and the watch has not shown it yet: what the watch shows of others may be newer than what it shows of this one.
    Made {
        /// The API server has made it; else it may not be there.
        sure: bool,
    },
}

/// What HTCondor says of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    /// Nothing: it may have jobs all the same.
    Unseen,
    /// Nothing for so long that it counts as dead, although its pod runs.
    Absent {
        /// An answer that was asked for since then does not name it, either.
        again: bool,
    },
    /// It has no job.
    Idle {
        /// Seen so since then, in unix seconds.
        since: i64,
    },
    /// It has jobs.
    Busy,
    /// It takes no more jobs, and ends after those that it has.
    Draining,
}

/// How a worker is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drain {
    /// Unless it has a job by now: HTCondor looks, and refuses.
    IfIdle,
    /// It finishes its jobs.
    Graceful,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Make these: new ones, and those of which it is not known whether they were made.
    pub make: Vec<u32>,
    /// Delete the pods of these: they have ended.
    pub remove: Vec<u32>,
    /// Delete the pods of these unless they have begun by now.
    pub withdraw: Vec<u32>,
    /// Delete the pods of these unless the schedd has a job on them: they run, and the collector does not know them.
    pub discard: Vec<u32>,
    /// Drain these.
    pub drain: Vec<(u32, Drain)>,
    /// None is made before this time, in unix seconds: too many have ended at once.
    pub held_until: Option<i64>,
    /// When to look again although nothing has happened, in unix seconds.
    pub again: Option<i64>,
}

impl Worker {
    /// It goes already.
    const fn goes(&self) -> bool {
        self.drained || matches!(self.slot, Slot::Draining) || matches!(self.pod, Pod::Ended | Pod::Leaving)
    }

    /// It counts as one of those that there should be.
    #[must_use]
    pub const fn counts(&self) -> bool {
        self.current && !self.goes() && !matches!(self.slot, Slot::Absent { .. })
    }

    /// It has not joined in time, by an answer from after that was noticed.
    const fn is_lost(&self) -> bool {
        matches!((self.pod, self.slot), (Pod::Running, Slot::Absent { again: true })) && !self.drained
    }

    /// There is a pod of it, or will be, and it has not been sent away.
    #[must_use]
    pub const fn is_there(&self) -> bool {
        !self.drained && !matches!(self.pod, Pod::Ended | Pod::Leaving)
    }
}

impl Goal {
    /// How many there should be.
    #[must_use]
    pub fn wanted(self) -> u32 {
        match self {
            Self::Replicas(replicas) => replicas,
            Self::Follow { needed, min, max, .. } => needed.max(min).min(max),
        }
    }

    /// Since when a worker must have had nothing to do.
    const fn idle_before(self, now: i64) -> i64 {
        match self {
            Self::Replicas(_) => now,
            Self::Follow { after, .. } => now - after,
        }
    }

    const fn after(self) -> i64 {
        match self {
            Self::Replicas(_) => 0,
            Self::Follow { after, .. } => after,
        }
    }

    const fn spares_the_busy(self) -> bool {
        match self {
            Self::Replicas(_) => false,
            Self::Follow { .. } => true,
        }
    }
}

impl Deaths {
    /// Until when none is made.
    #[must_use]
    pub fn pause_ends(self) -> Option<i64> {
        let doubled = self.count.checked_sub(1)?;
        let pause = FIRST_PAUSE.checked_shl(doubled.min(16)).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        Some(self.last + pause)
    }
}

/// Decides.
#[must_use]
pub fn scale(evidence: &Evidence) -> Plan {
    let Evidence { now, goal, ref workers, answer, deaths, ref taken, room } = *evidence;
    let mut plan = Plan {
        remove: workers.iter().filter(|worker| worker.pod == Pod::Ended).map(|worker| worker.number).collect(),
        ..Plan::default()
    };
    if answer == Answer::Known {
        let lost = workers.iter().filter(|worker| worker.is_lost()).map(|worker| worker.number);
        plan.discard = lost.take(AT_ONCE).collect();
    }
    let wanted = usize::try_from(goal.wanted()).unwrap_or(usize::MAX);
    let (counted, rest): (Vec<&Worker>, Vec<&Worker>) = workers.iter().partition(|worker| worker.counts());
    let lacking = wanted.saturating_sub(counted.len());
    let unsure = counted.iter().filter(|worker| worker.pod == Pod::Made { sure: false }).map(|worker| worker.number);
    let mut anew: Vec<u32> = unsure.collect();
    anew.truncate(wanted.saturating_sub(counted.len() - anew.len()));
    if lacking > 0 || !anew.is_empty() {
        if let Some(ends) = deaths.pause_ends().filter(|ends| *ends > now) {
            (plan.held_until, plan.again) = (Some(ends), Some(ends));
        } else {
            plan.make = anew;
            plan.make.extend(free_numbers(workers, taken, lacking.min(AT_ONCE).min(room as usize)));
        }
    }
    for worker in rest.iter().filter(|worker| !worker.goes()) {
        // Of a template that is no longer that of the pool.
        match (worker.pod, worker.slot) {
            (Pod::Waiting { .. }, _) => plan.withdraw.push(worker.number),
            (Pod::Running, Slot::Idle { .. }) if answer == Answer::Known => {
                plan.drain.push((worker.number, Drain::IfIdle));
            }
            (Pod::Running, Slot::Busy) if answer == Answer::Known => plan.drain.push((worker.number, Drain::Graceful)),
            // One that was made just now is withdrawn when it is seen.
            (Pod::Running | Pod::Ended | Pod::Leaving | Pod::Made { .. }, _) => {}
        }
    }
    take_away(&mut plan, evidence, counted, wanted);
    plan
}

/// Those that are too many: pods that wait, then workers without jobs, the longest first, and then others if that is wanted.
fn take_away(plan: &mut Plan, evidence: &Evidence, counted: Vec<&Worker>, wanted: usize) {
    let Evidence { now, goal, answer, .. } = *evidence;
    // Those that are made just now are the first to go, when they are seen.
    let seen = counted.iter().filter(|worker| !matches!(worker.pod, Pod::Made { .. })).count();
    let mut excess = seen.saturating_sub(wanted);
    let due = goal.idle_before(now);
    let (mut waiting, mut idle, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for worker in counted {
        match (worker.pod, worker.slot) {
            (Pod::Waiting { since }, _) => waiting.push((Reverse(worker.number), since)),
            (Pod::Running, Slot::Idle { since }) => idle.push((since, worker.number)),
            (Pod::Running, Slot::Busy) => busy.push(Reverse(worker.number)),
            // What it does is not known.
            (Pod::Running, Slot::Unseen | Slot::Absent { .. } | Slot::Draining)
            | (Pod::Ended | Pod::Leaving | Pod::Made { .. }, _) => {}
        }
    }
    waiting.sort_unstable();
    idle.sort_unstable();
    busy.sort_unstable();
    let mut later = |since: i64| {
        let when = since + goal.after();
        plan.again = Some(plan.again.map_or(when, |again| again.min(when)));
    };
    for (Reverse(number), since) in waiting {
        if excess == 0 {
            return;
        }
        if since > due {
            later(since);
        } else {
            plan.withdraw.push(number);
            excess -= 1;
        }
    }
    if answer != Answer::Known {
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

/// The lowest numbers that no pod has: who is told twice makes the same ones.
fn free_numbers(workers: &[Worker], taken: &BTreeSet<u32>, count: usize) -> Vec<u32> {
    let own: BTreeSet<u32> = workers.iter().map(|worker| worker.number).collect();
    (0..=u32::MAX).filter(|number| !own.contains(number) && !taken.contains(number)).take(count).collect()
}

#[cfg(test)]
mod tests;
