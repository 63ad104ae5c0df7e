//! How jobs ended that HTCondor ran again: an ad says it of the last time only.

use rusqlite::{Connection, params};

use crate::machine::facts::{Exit, Job};
use crate::machine::ids::{Index, Uid};

/// Ends of one job that are kept, the last ones.
const KEPT: u32 = 10;

/// The exit code, or the signal below 0.
pub(super) const fn written(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => -signal,
    }
}

pub(super) const fn read(written: i32) -> Exit {
    if written < 0 { Exit::Signal(-written) } else { Exit::Code(written) }
}

/// Of pairs in a JSON array, as [`super::procs`] reads them.
pub(super) fn list(pairs: &str) -> Vec<(u32, Exit)> {
    let pairs: Vec<(u32, i32)> = serde_json::from_str(pairs).unwrap_or_default();
    pairs.into_iter().map(|(number, exit)| (number, read(exit))).collect()
}

/// Notes how the job ended last, before its row is written. Not if HTCondor has interrupted it since it was last looked at: then
/// its ad says how that went.
pub(super) fn note(connection: &Connection, uid: &Uid, index: Index, job: &Job) -> rusqlite::Result<()> {
    let (number, vacated) = (job.runs.exits, job.runs.vacated.map(|date| date.0));
    let Some(exit) = job.runs.last_exit.filter(|_| number > 0 && job.outcome().is_none()) else {
        return Ok(());
    };
    let noted = connection
        .prepare_cached(
            "insert or ignore into exits(uid, idx, number, exit) select ?1, ?2, ?3, ?4
             where coalesce((select vacated is ?5 from htcjobs where uid = ?1 and idx = ?2), ?5 is null)",
        )?
        .execute(params![uid.as_str(), index.0, number, written(exit), vacated])?;
    if noted > 0 && number > KEPT {
        connection
            .prepare_cached("delete from exits where uid = ?1 and idx = ?2 and number <= ?3")?
            .execute(params![uid.as_str(), index.0, number - KEPT])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Ledger;
    use super::super::tests::{job, known, save, uid};
    use super::*;
    use crate::api::Phase;
    use crate::machine::facts::{JobState, Runs};
    use crate::machine::ids::SchedDate;
    use crate::machine::outcome::Outcome;

    /// What is kept of a job that was seen so, one look after another.
    async fn kept(looks: &[(u32, Option<Exit>, Option<i64>, JobState)]) -> Vec<(u32, Exit)> {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        for (exits, last_exit, vacated, state) in looks {
            let runs =
                Runs { exits: *exits, last_exit: *last_exit, vacated: vacated.map(SchedDate), ..Runs::default() };
            let job = Job { runs, ..job(0, state.clone()) };
            ledger.save(save(known(Phase::Running), vec![(Index(0), job.clone())], Vec::new())).await.unwrap();
            let rows = ledger.procs(uid(), Index(0), 9).await.unwrap().rows;
            assert_eq!(rows[0].job, job);
        }
        let mut rows = ledger.procs(uid(), Index(0), 9).await.unwrap().rows;
        rows.remove(0).exits
    }

    #[tokio::test]
    async fn each_end_that_was_seen_is_kept() {
        let running = || JobState::Running;
        let code = |code| Some(Exit::Code(code));
        let looks = [
            (0, None, None, running()),
            (1, code(3), None, running()),
            (2, Some(Exit::Signal(9)), None, JobState::Idle),
            (2, Some(Exit::Signal(15)), Some(70), JobState::Idle),
            (4, code(0), Some(70), running()),
            (5, code(0), Some(70), JobState::Ended(Outcome::Succeeded)),
        ];
        let expected = [(1, Exit::Code(3)), (2, Exit::Signal(9)), (4, Exit::Code(0))];
        assert_eq!(kept(&looks).await, expected);
    }

    #[tokio::test]
    async fn an_interruption_is_no_end() {
        let killed = Some(Exit::Signal(15));
        assert_eq!(kept(&[(1, killed, Some(70), JobState::Idle)]).await, [], "it is not known what came last");
        let looks = [(0, None, None, JobState::Running), (1, killed, Some(70), JobState::Idle)];
        assert_eq!(kept(&looks).await, []);
    }

    #[tokio::test]
    async fn the_last_ones_are_kept() {
        let look = |number: u32| (number, Some(Exit::Code(1)), None, JobState::Running);
        let looks: Vec<_> = (1..=13).map(look).collect();
        assert_eq!(
            kept(&looks).await.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            (4..=13).collect::<Vec<_>>()
        );
    }
}
