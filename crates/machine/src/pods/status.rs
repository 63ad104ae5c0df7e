//! Counts and messages, computed from the record.

use std::collections::BTreeMap;

use crate::indices::Indices;
use crate::runs::{RunEnd, RunState, RunsRecord};
use crate::status::{Counts, jobs_text, most_frequent, split_by_success};

/// Counts the runs of `record`. An active index is idle if its Pod has not started, or will be followed by another.
#[must_use]
pub fn counts(record: &RunsRecord) -> Counts {
    let mut counts = Counts::default();
    for run in record.runs.values() {
        match run.state {
            RunState::Waiting => {}
            RunState::Pending | RunState::Exited => counts.idle += 1,
            RunState::Running => counts.running += 1,
            RunState::Ended(RunEnd::Succeeded) => counts.succeeded += 1,
            RunState::Ended(RunEnd::Failed | RunEnd::Removed) => counts.failed += 1,
        }
    }
    counts.failed += record.row.as_ref().map_or(0, |known| known.given_up as usize);
    counts.active = counts.idle + counts.running;
    counts
}

/// Returns which of the indexes in `asked_for` succeeded, and which failed, as in [`counts`].
#[must_use]
pub fn indexes(record: &RunsRecord, asked_for: &Indices) -> [Indices; 2] {
    let ended = record.runs.iter().filter_map(|(index, run)| Some((*index, run.state.end()? == RunEnd::Succeeded)));
    let recorded = record.runs.keys().copied().collect();
    split_by_success(ended, record.row.as_ref(), &recorded, asked_for)
}

/// Describes in one sentence how the indexes of `record` ended: how many, in which ways, and which failed first.
pub(super) fn ending(record: &RunsRecord) -> String {
    let counts = counts(record);
    if counts.failed == 0 {
        return format!("{} succeeded", jobs_text(counts.succeeded));
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
    let never = record.row.as_ref().map_or(0, |known| known.given_up as usize);
    if never > 0 {
        ways.insert("never started".to_owned(), never);
    }
    let (ways, _) = most_frequent(ways);
    let first = record.runs.iter().find(|(_, run)| run.state == RunState::Ended(RunEnd::Failed));
    let first = first.map_or_else(String::new, |(index, run)| {
        let pod = run.id.as_deref().map_or_else(String::new, |pod| format!(" (Pod {pod})"));
        let code = run.exit.map_or_else(|| "failed".to_owned(), |code| format!("exited with {code}"));
        let words = run.message.as_deref().map_or_else(String::new, |words| format!(": {words}"));
        format!("; job {index}{pod} {code}{words}")
    });
    format!("{} of {} failed: {ways}{first}", counts.failed, jobs_text(counts.succeeded + counts.failed))
}
