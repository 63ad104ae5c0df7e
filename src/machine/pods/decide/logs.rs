//! Whose logs are to be kept: those of indexes that are over, before their Pods go.

use std::sync::Arc;
use std::time::Duration;

use super::{Action, Run};
use crate::machine::ids::Index;
use crate::machine::runs::{KeptLog, Run as Row, RunEnd, RunState};

/// Most logs that are asked for at once.
const AT_ONCE: usize = 50;
/// Pause after the first failure; each is twice as long as the one before.
const FIRST: Duration = Duration::from_secs(10);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(600);
/// Longest pause while the object waits to go.
const LONGEST_AT_THE_END: Duration = Duration::from_secs(5);
/// So many failures in a row, in some two hours, and the log is given up.
const TRIES: u32 = 18;
/// How long a deletion waits for logs.
pub(super) const WAITED_FOR: Duration = Duration::from_secs(60);

/// What is to be done about logs.
pub(super) enum Logs {
    /// Nothing: each is kept, or is given up.
    Done,
    /// Those of these Pods are asked for now, or some later.
    Wanted,
}

impl Run<'_> {
    /// Has logs kept, if there are any to keep and nothing else is to be done.
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
            self.look_again(next);
        }
        if due.is_empty() {
            return if next.is_some() { Logs::Wanted } else { Logs::Done };
        }
        if self.action == Action::Nothing {
            self.action = Action::KeepLogs(due);
        }
        Logs::Wanted
    }
}

/// The Pod whose log is to be kept, and the pause before it is asked for. What was cut short has no Pod any more.
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
