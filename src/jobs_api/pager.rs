//! Iterates over all selected jobs, one part at a time, so that no more than one part is in memory.

use std::collections::VecDeque;

use htc_api::htcproc::HTCProc;
use htc_ledger::LedgerError;
use htc_machine::ids::Index;

use super::{Records, now};
use crate::backends::RecordedProcs;
use crate::backends::procs::Parent;
use crate::jobs_api::resource::list::Cursor;
use crate::jobs_api::resource::selection::Selection;

/// Maximum number of jobs read in one step of the ledger.
const PART: usize = 1000;

/// Iterator over jobs, ordered by namespace, HTCJob and index.
pub(super) struct JobPager {
    records: Records,
    selection: Selection,
    parents: VecDeque<Parent>,
    from: Index,
}

impl JobPager {
    /// Starts at the beginning, or after a job.
    pub(super) async fn new(
        records: Records,
        namespace: Option<&str>,
        selection: Selection,
        behind: Option<&Cursor>,
    ) -> Result<Self, LedgerError> {
        let mut parents: VecDeque<Parent> = records.parents(namespace, &selection).await?.into();
        let mut from = Index(0);
        if let Some(Cursor { namespace, htcjob, index, .. }) = behind {
            let place = (namespace, htcjob);
            parents.retain(|parent| (&parent.namespace, &parent.name) >= place);
            if parents.front().is_some_and(|first| (&first.namespace, &first.name) == place) {
                from = Index(index.saturating_add(1));
            }
        }
        let mut walk = Self { records, selection, parents, from };
        walk.begin(from);
        Ok(walk)
    }

    /// Iterates over all jobs of one `HTCJob`.
    pub(super) fn of(records: Records, parent: Parent) -> Self {
        Self::through(records, VecDeque::from([parent]), Selection::default())
    }

    /// Iterates over the selected jobs of these `HTCJob`s.
    pub(super) fn through(records: Records, parents: VecDeque<Parent>, selection: Selection) -> Self {
        let mut walk = Self { records, selection, parents, from: Index(0) };
        walk.begin(Index(0));
        walk
    }

    /// Starts at `from`, or at the only index that can be selected if there is only one.
    fn begin(&mut self, from: Index) {
        self.from = self.selection.only_index().map_or(from, |only| Index(only.max(from.0)));
    }

    /// Returns the next selected jobs; `None` at the end. A part may be empty without being the last.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<HTCProc>>, LedgerError> {
        self.next_of(PART).await
    }

    /// As [`Self::next`], at most `most` jobs.
    pub(super) async fn next_of(&mut self, most: usize) -> Result<Option<Vec<HTCProc>>, LedgerError> {
        let Some(parent) = self.parents.front() else { return Ok(None) };
        let _turn = self.records.ledger_steps.acquire().await;
        let only = self.selection.only_index();
        let limit = match only {
            Some(_) => 1,
            // If some are left out, more have to be read.
            None if self.selection.takes_whole_htcjobs() => most.clamp(1, PART),
            None => PART,
        };
        let mut found = RecordedProcs::read(&self.records.ledger, parent, self.from, limit, now()).await?;
        let recorded = std::mem::take(&mut found.procs);
        let (mut procs, next) = merge(parent, recorded, self.from, limit, |index| found.missing(parent, index));
        procs.retain(|proc| self.selection.matches(proc));
        self.records.add_items(parent, &mut procs).await?;
        if let Some(next) = next.filter(|next| only.is_none_or(|only| next.0 <= only)) {
            self.from = next;
        } else {
            self.parents.pop_front();
            self.begin(Index(0));
        }
        Ok(Some(procs))
    }
}

/// Returns at most `limit` jobs starting at `from`: those that are recorded, and those that are requested and not
/// recorded between them. Also returns where to continue, if there are more.
fn merge(
    parent: &Parent,
    recorded: Vec<HTCProc>,
    from: Index,
    limit: usize,
    missing: impl Fn(Index) -> HTCProc,
) -> (Vec<HTCProc>, Option<Index>) {
    let all_were_read = recorded.len() < limit;
    let mut rows = recorded.into_iter().peekable();
    let mut asked_for = parent.asked_for.iter_from(from).peekable();
    let mut procs = Vec::new();
    let mut last = None;
    while procs.len() < limit {
        let row = rows.peek().map(|proc| Index(proc.spec.index));
        let asked = asked_for.peek().copied();
        // After the last row that was read there may be more.
        if row.is_none() && !all_were_read {
            break;
        }
        let Some(next) = [row, asked].into_iter().flatten().min() else { return (procs, None) };
        if asked == Some(next) {
            asked_for.next();
        }
        let recorded = if row == Some(next) { rows.next() } else { None };
        procs.push(recorded.unwrap_or_else(|| missing(next)));
        last = Some(next);
    }
    (procs, last.and_then(|last| last.0.checked_add(1)).map(Index))
}

#[cfg(test)]
mod tests {
    use htc_api::htcproc::State;
    use htc_ledger::ProcRow;
    use htc_machine::facts::{Job, JobState, RunHistory};
    use htc_machine::ids::{Attempt, Birthdate, ClusterId, JobId, SchedDate, Timestamp};
    use htc_machine::indices::Indices;

    use super::*;

    fn row(index: u32) -> ProcRow {
        let job = Job {
            id: JobId { cluster: ClusterId(1), proc: index },
            attempt: Attempt(1),
            birthdate: Birthdate(1),
            recorded: Timestamp(1),
            staged_in: SchedDate(1),
            started: true,
            state: JobState::Running,
            fetched: false,
            gone: false,
            runs: RunHistory::default(),
        };
        ProcRow {
            index: Index(index),
            job,
            schedd: None,
            reported: None,
            requested: None,
            refusal: None,
            omitted: None,
            output_bytes: None,
            exits: Vec::new(),
            changed: 1,
            stated: 1,
        }
    }

    /// Returns all jobs, read in parts of this size, from a ledger that has these rows.
    fn walk(asked_for: &str, recorded: &[u32], limit: usize) -> Vec<(u32, State)> {
        let asked_for: Indices = asked_for.parse().unwrap();
        let parent = Parent { asked_for, ..Parent::default() };
        let (mut from, mut all, mut parts) = (Some(Index(0)), Vec::new(), 0);
        while let Some(first) = from {
            let rows = recorded.iter().filter(|index| **index >= first.0).take(limit);
            let rows =
                rows.map(|index| crate::backends::procs::recorded(&parent, &row(*index), SchedDate(5))).collect();
            let missing = |index| crate::backends::procs::not_recorded(&parent, index, false, None);
            let (procs, next) = merge(&parent, rows, first, limit, missing);
            assert!(procs.len() <= limit);
            assert!(next.is_none_or(|next| next > first), "it goes on");
            all.extend(procs.iter().map(|proc| (proc.spec.index, proc.status.state)));
            from = next;
            parts += 1;
            assert!(parts < 100);
        }
        all
    }

    #[test]
    fn every_job_is_listed_once_and_in_order() {
        use State::{Running, Waiting};
        for limit in [1, 2, 3, 1000] {
            assert_eq!(
                walk("0-3", &[1, 2], limit),
                [(0, Waiting), (1, Running), (2, Running), (3, Waiting)],
                "{limit}"
            );
            assert_eq!(walk("5,9", &[], limit), [(5, Waiting), (9, Waiting)], "{limit}");
            assert_eq!(
                walk("1", &[0, 1, 2], limit),
                [(0, Running), (1, Running), (2, Running)],
                "existing jobs are listed"
            );
            assert_eq!(walk("4294967295", &[], limit), [(u32::MAX, Waiting)], "{limit}");
        }
    }
}
