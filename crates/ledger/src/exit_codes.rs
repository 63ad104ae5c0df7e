//! Exit codes of jobs that HTCondor ran again. A job's ad has only the last one.

use htc_machine::facts::{Exit, Job};
use htc_machine::ids::{Index, Uid};
use htc_machine::payload_failure::JobShEnd;
use rusqlite::{Connection, params};

/// Maximum number of exits kept per job, the last ones.
const KEPT: u32 = 10;

/// Encodes an exit code as itself, and a signal as a negative number.
pub(super) const fn encode(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => -signal,
    }
}

pub(super) const fn decode(written: i32) -> Exit {
    if written < 0 { Exit::Signal(-written) } else { Exit::Code(written) }
}

/// Parses a JSON array of pairs, as [`super::procs`] selects them.
pub(super) fn parse_pairs(pairs: &str) -> Vec<(u32, Exit)> {
    let pairs: Vec<(u32, i32)> = serde_json::from_str(pairs).unwrap_or_default();
    pairs.into_iter().map(|(number, exit)| (number, decode(exit))).collect()
}

/// Records the last exit of the job's payload, before its row is written. Records nothing if HTCondor has interrupted the job since
/// its last observation: the last exit in the ad is then that of the interruption.
pub(super) fn note(connection: &Connection, uid: &Uid, index: Index, job: &Job) -> rusqlite::Result<()> {
    let (number, vacated) = (job.runs.exits, job.runs.vacated.map(|date| date.0));
    let by_payload = |exit: &Exit| !matches!(exit, Exit::Signal(signal) if JobShEnd::from_signal(*signal).is_some());
    let Some(exit) = job.runs.last_exit.filter(|exit| number > 0 && job.outcome().is_none() && by_payload(exit)) else {
        return Ok(());
    };
    let noted = connection
        .prepare_cached(
            "insert or ignore into exits(uid, idx, number, exit) select ?1, ?2, ?3, ?4
             where coalesce((select vacated is ?5 from htcjobs where uid = ?1 and idx = ?2), ?5 is null)",
        )?
        .execute(params![uid.as_str(), index.0, number, encode(exit), vacated])?;
    if noted > 0 && number > KEPT {
        connection
            .prepare_cached("delete from exits where uid = ?1 and idx = ?2 and number <= ?3")?
            .execute(params![uid.as_str(), index.0, number - KEPT])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use htc_api::Phase;
    use htc_machine::facts::{JobState, RunHistory};
    use htc_machine::ids::SchedDate;
    use htc_machine::outcome::Outcome;

    use super::super::Ledger;
    use super::super::tests::{job, known, save, uid};
    use super::*;

    /// Returns the exits that are stored after a series of observations of one job.
    async fn kept(looks: &[(u32, Option<Exit>, Option<i64>, JobState)]) -> Vec<(u32, Exit)> {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        for (exits, last_exit, vacated, state) in looks {
            let runs = RunHistory {
                exits: *exits,
                last_exit: *last_exit,
                vacated: vacated.map(SchedDate),
                ..RunHistory::default()
            };
            let job = Job { runs, ..job(0, state.clone()) };
            ledger.save(save(known(Phase::Running), vec![(Index(0), job.clone())], Vec::new())).await.unwrap();
            let rows = ledger.procs(uid(), Index(0), 9).await.unwrap().rows;
            assert_eq!(rows[0].job, job);
        }
        let mut rows = ledger.procs(uid(), Index(0), 9).await.unwrap().rows;
        rows.remove(0).exits
    }

    #[tokio::test]
    async fn exit_of_each_observed_run_is_kept() {
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
    async fn interrupted_run_has_no_exit() {
        let killed = Some(Exit::Signal(15));
        assert_eq!(kept(&[(1, killed, Some(70), JobState::Idle)]).await, [], "the state before is unknown");
        let looks = [(0, None, None, JobState::Running), (1, killed, Some(70), JobState::Idle)];
        assert_eq!(kept(&looks).await, []);
    }

    #[tokio::test]
    async fn only_the_last_exits_are_kept() {
        let look = |number: u32| (number, Some(Exit::Code(1)), None, JobState::Running);
        let looks: Vec<_> = (1..=13).map(look).collect();
        assert_eq!(
            kept(&looks).await.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            (4..=13).collect::<Vec<_>>()
        );
    }
}
