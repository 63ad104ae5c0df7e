//! A walk through all jobs that are wanted, a part at a time: never more of them in memory than one part.

use std::collections::VecDeque;

use super::{Records, now};
use crate::backends::Recorded;
use crate::ledger::LedgerError;
use crate::machine::ids::Index;
use crate::procs::list::Cursor;
use crate::procs::selection::Selection;
use crate::procs::{HTCProc, Parent};

/// Most jobs that are looked at in one step of the ledger.
const PART: usize = 1000;

/// A walk: by namespace, HTCJob, index.
pub(super) struct Walk {
    records: Records,
    selection: Selection,
    parents: VecDeque<Parent>,
    from: Index,
}

impl Walk {
    /// From the start, or behind a job.
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

    /// Through all jobs of one `HTCJob`.
    pub(super) fn of(records: Records, parent: Parent) -> Self {
        Self::through(records, VecDeque::from([parent]), Selection::default())
    }

    /// Through those that are wanted of these.
    pub(super) fn through(records: Records, parents: VecDeque<Parent>, selection: Selection) -> Self {
        let mut walk = Self { records, selection, parents, from: Index(0) };
        walk.begin(Index(0));
        walk
    }

    /// At the only index that can be wanted, if there is only one.
    fn begin(&mut self, from: Index) {
        self.from = self.selection.only_index().map_or(from, |only| Index(only.max(from.0)));
    }

    /// The next jobs that are wanted; none at the end. There may be none in a part that is not the last.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<HTCProc>>, LedgerError> {
        self.next_of(PART).await
    }

    /// The same for who wants so many at most.
    pub(super) async fn next_of(&mut self, most: usize) -> Result<Option<Vec<HTCProc>>, LedgerError> {
        let Some(parent) = self.parents.front() else { return Ok(None) };
        let _turn = self.records.steps.next().await;
        let only = self.selection.only_index();
        let limit = match only {
            Some(_) => 1,
            // Where some are left out, more have to be looked at.
            None if self.selection.takes_whole_htcjobs() => most.clamp(1, PART),
            None => PART,
        };
        let mut found = Recorded::read(&self.records.ledger, parent, self.from, limit, now()).await?;
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

/// Jobs from `from` on, at most `limit`: those that are recorded, and between them those that are asked for and are not. And where
/// to go on, if there are more.
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
        // Behind the last row that was read there may be more of them.
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
    use super::*;
    use crate::ledger::ProcRow;
    use crate::machine::facts::{Job, JobState, Runs};
    use crate::machine::ids::{Attempt, Birthdate, ClusterId, JobId, SchedDate, Timestamp};
    use crate::machine::indices::Indices;
    use crate::procs::State;

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
            runs: Runs::default(),
        };
        ProcRow {
            index: Index(index),
            job,
            schedd: None,
            reported: None,
            wish: None,
            refusal: None,
            omitted: None,
            output_bytes: None,
            exits: Vec::new(),
            changed: 1,
            stated: 1,
        }
    }

    /// All jobs, in parts of this size, of a ledger that has these rows.
    fn walk(asked_for: &str, recorded: &[u32], limit: usize) -> Vec<(u32, State)> {
        let asked_for: Indices = asked_for.parse().unwrap();
        let parent = Parent { asked_for, ..Parent::default() };
        let (mut from, mut all, mut parts) = (Some(Index(0)), Vec::new(), 0);
        while let Some(first) = from {
            let rows = recorded.iter().filter(|index| **index >= first.0).take(limit);
            let rows = rows.map(|index| HTCProc::recorded(&parent, &row(*index), SchedDate(5))).collect();
            let missing = |index| HTCProc::not_recorded(&parent, index, false, None);
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
    fn every_job_comes_once_and_in_order() {
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
                "what is there is shown"
            );
            assert_eq!(walk("4294967295", &[], limit), [(u32::MAX, Waiting)], "{limit}");
        }
    }
}
