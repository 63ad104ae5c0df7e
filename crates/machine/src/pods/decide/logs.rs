//! Copies of logs: made for indexes that are over, before their Pods are deleted.

use std::sync::Arc;
use std::time::Duration;

use super::{PodsAction, PodsDecider};
use crate::ids::Index;
use crate::runs::{KeptLog, Run as Row, RunEnd, RunState};

/// Maximum number of logs that are requested at once.
const AT_ONCE: usize = 50;
/// Pause after the first failure. It doubles with each further one.
const FIRST: Duration = Duration::from_secs(10);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(600);
/// Longest pause while the object waits to be deleted.
const LONGEST_AT_THE_END: Duration = Duration::from_secs(5);
/// Number of failures in a row, in some two hours, after which the log is given up.
const TRIES: u32 = 18;
/// How long a deletion waits for logs.
pub(super) const WAITED_FOR: Duration = Duration::from_secs(60);

/// State of the copies.
pub(super) enum Logs {
    /// Each log is copied or given up.
    Done,
    /// Some logs are requested, now or later.
    Wanted,
}

impl PodsDecider<'_> {
    /// Requests logs, if there are any to copy and there is no other action.
    pub(super) fn keep_logs(&mut self, deleting: bool) -> Logs {
        let (mut due, mut next): (Vec<(Index, Arc<str>)>, Option<Duration>) = (Vec::new(), None);
        for (index, run) in &self.record.runs {
            let Some((pod, pause)) = wanted(run, deleting) else { continue };
            let since = match &run.log {
                KeptLog::Failed { at, .. } => self.now.since(*at),
                KeptLog::NotYet | KeptLog::Kept { .. } | KeptLog::Gone => pause,
            };
            if since < pause {
                let left = pause.saturating_sub(since);
                next = Some(next.map_or(left, |next| next.min(left)));
            } else if due.len() < AT_ONCE {
                due.push((*index, pod));
            }
        }
        if let Some(next) = next {
            self.requeue_within(next);
        }
        if due.is_empty() {
            return if next.is_some() { Logs::Wanted } else { Logs::Done };
        }
        if self.action == PodsAction::Nothing {
            self.action = PodsAction::KeepLogs(due);
        }
        Logs::Wanted
    }
}

/// Returns the Pod whose log is to be copied, and the pause before the request. An index that was cut short has no Pod
/// any more.
fn wanted(run: &Row, deleting: bool) -> Option<(Arc<str>, Duration)> {
    let pod = run.id.clone()?;
    match run.state {
        RunState::Ended(RunEnd::Succeeded | RunEnd::Failed) => {}
        RunState::Waiting
        | RunState::Pending
        | RunState::Running
        | RunState::Exited
        | RunState::Ended(RunEnd::Removed) => return None,
    }
    match &run.log {
        KeptLog::NotYet => Some((pod, Duration::ZERO)),
        KeptLog::Failed { tries, .. } if *tries >= TRIES => None,
        KeptLog::Failed { tries, .. } => {
            let longest = if deleting { LONGEST_AT_THE_END } else { LONGEST };
            Some((pod, FIRST.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(longest)))
        }
        KeptLog::Kept { id: kept, .. } => (*kept != pod).then_some((pod, Duration::ZERO)),
        KeptLog::Gone => None,
    }
}
