//! From the record to counts and words.

use std::collections::BTreeMap;

use crate::machine::indices::Indices;
use crate::machine::runs::{Record, RunEnd, RunState};
use crate::machine::status::jobs;

/// Counts over the indexes of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Indexes with a Pod that has not ended for good.
    pub active: usize,
    /// Those that succeeded.
    pub succeeded: usize,
    /// Those that are over otherwise.
    pub failed: usize,
    /// Of the active ones: whose Pod has not started, or is to be followed by another.
    pub idle: usize,
    /// Of the active ones: whose Pod runs.
    pub running: usize,
}

impl Counts {
    /// Counts the runs of `record`.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let mut counts = Self::default();
        for run in record.runs.values() {
            match run.state {
                RunState::Waiting => {}
                RunState::Pending | RunState::Exited => counts.idle += 1,
                RunState::Running => counts.running += 1,
                RunState::Ended(RunEnd::Succeeded) => counts.succeeded += 1,
                RunState::Ended(RunEnd::Failed | RunEnd::Removed) => counts.failed += 1,
            }
        }
        counts.failed += record.known.as_ref().map_or(0, |known| known.given_up as usize);
        counts.active = counts.idle + counts.running;
        counts
    }
}

/// Which of the indexes that were asked for succeeded, and which failed, in the sense of [`Counts`].
#[must_use]
pub fn indexes(record: &Record, asked_for: &Indices) -> [Indices; 2] {
    let ended = |wanted: fn(RunEnd) -> bool| -> Indices {
        let ended = record.runs.iter().filter(|(_, run)| run.state.end().is_some_and(wanted));
        ended.map(|(index, _)| *index).collect()
    };
    let failed = ended(|end| end != RunEnd::Succeeded);
    let given_up = record.known.as_ref().is_some_and(|known| known.given_up > 0);
    let never = if given_up { asked_for.without(&record.runs.keys().copied().collect()) } else { Indices::default() };
    [ended(|end| end == RunEnd::Succeeded), Indices::union(&[failed, never])]
}

/// How the indexes of `record` ended, in one sentence: how many, in which ways, and the first failure by name.
pub(super) fn ending(record: &Record) -> String {
    let counts = Counts::of(record);
    if counts.failed == 0 {
        return format!("{} succeeded", jobs(counts.succeeded));
    }
    let mut ways: BTreeMap<String, usize> = BTreeMap::new();
    for run in record.runs.values() {
        let way = match (run.state.end(), run.exit) {
            (Some(RunEnd::Failed), Some(code)) => format!("exit code {code}"),
            (Some(RunEnd::Failed), None) => "exit code not known".to_owned(),
            (Some(RunEnd::Removed), _) => "cut short".to_owned(),
            (Some(RunEnd::Succeeded) | None, _) => continue,
        };
        *ways.entry(way).or_default() += 1;
    }
    let never = record.known.as_ref().map_or(0, |known| known.given_up as usize);
    if never > 0 {
        ways.insert("never started".to_owned(), never);
    }
    let mut ways: Vec<(String, usize)> = ways.into_iter().collect();
    ways.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let ways: Vec<String> = ways.iter().take(8).map(|(way, number)| format!("{way} ({number})")).collect();
    let first = record.runs.iter().find(|(_, run)| run.state == RunState::Ended(RunEnd::Failed));
    let first = first.map_or_else(String::new, |(index, run)| {
        let pod = run.id.as_deref().map_or_else(String::new, |pod| format!(" (Pod {pod})"));
        let code = run.exit.map_or_else(|| "failed".to_owned(), |code| format!("exited with {code}"));
        let words = run.message.as_deref().map_or_else(String::new, |words| format!(": {words}"));
        format!("; job {index}{pod} {code}{words}")
    });
    format!("{} of {} failed: {}{first}", counts.failed, jobs(counts.succeeded + counts.failed), ways.join(", "))
}
