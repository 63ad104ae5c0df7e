//! Counts jobs by their ads, in the queue and in history: what HTCondor itself says was submitted and ran.

use std::collections::BTreeMap;

use testbed::wait_for;

use super::{Bed, PATIENCE, Promise};

/// `JobStatus`
const REMOVED: u32 = 3;
const COMPLETED: u32 = 4;

/// One job of an `HTCJob`, as its ad has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `ClusterId.ProcId`
    pub id: String,
    pub index: u32,
    pub attempt: u32,
    /// `JobStatus`
    pub status: u32,
    /// HTCondor has its files, and had them in time: it counts.
    pub accepted: bool,
    /// Its files came too late: it may start, but runs no payload.
    pub late: bool,
    /// `NumJobStarts`
    pub starts: u32,
}

const ATTRIBUTES: &[&str] = &[
    "ClusterId",
    "ProcId",
    "HTCJobIndex",
    "HTCJobAttempt",
    "JobStatus",
    "StageInFinish",
    "HTCNotAfter",
    "NumJobStarts",
    "JobStartDate",
];

impl Bed {
    /// All jobs that HTCondor has or had of one `HTCJob`, by id. The queue is asked first, so that a job that leaves it
    /// meanwhile is seen.
    pub fn jobs_of(&self, uid: &str) -> Vec<Seen> {
        let constraint = format!("HTCJobUID == \"{uid}\"");
        let mut rows = self.queue(&constraint, ATTRIBUTES);
        rows.extend(self.history(&constraint, ATTRIBUTES));
        let seen: BTreeMap<String, Seen> =
            rows.iter().map(|row| job_of_row(row)).map(|seen| (seen.id.clone(), seen)).collect();
        seen.into_values().collect()
    }

    /// All jobs that HTCondor has or had, by the `HTCJob`'s uid: one query for very many of them.
    pub fn jobs_of_all(&self) -> BTreeMap<String, Vec<Seen>> {
        let constraint = "HTCJobUID =!= undefined";
        let attributes = [ATTRIBUTES, &["HTCJobUID"]].concat();
        let mut rows = self.queue(constraint, &attributes);
        rows.extend(self.history(constraint, &attributes));
        let mut all: BTreeMap<String, BTreeMap<String, Seen>> = BTreeMap::new();
        for row in &rows {
            let seen = job_of_row(row);
            all.entry(row[ATTRIBUTES.len()].clone()).or_default().insert(seen.id.clone(), seen);
        }
        all.into_iter().map(|(uid, jobs)| (uid, jobs.into_values().collect())).collect()
    }

    /// Each index of the `HTCJob` has exactly one job that counts, and that job has started; no other ever started,
    /// unless it came late. Gives the jobs that count.
    pub fn assert_once(&self, uid: &str, what: &str, jobs: u32) -> Vec<Seen> {
        let _promise = Promise;
        let all = self.jobs_of(uid);
        let counting: Vec<Seen> = all.iter().filter(|job| job.accepted).cloned().collect();
        let mut indices: Vec<u32> = counting.iter().map(|job| job.index).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..jobs).collect::<Vec<_>>(), "{what}: one job for each index, but: {all:#?}");
        assert!(counting.iter().all(|job| job.starts > 0), "{what}: a job never started: {all:#?}");
        assert!(
            all.iter().all(|job| job.accepted || job.late || job.starts == 0),
            "{what}: a job that does not count has started: {all:#?}"
        );
        counting
    }

    /// No index of the `HTCJob` has more than one job that counts; none is in the queue. HTCondor's history has each job that the
    /// operator has seen accepted: an answer that shows nothing proves nothing.
    pub fn assert_removed(&self, uid: &str, what: &str) {
        let all = self.assert_none_left(uid, what);
        let _promise = Promise;
        let missing: Vec<String> =
            self.recorded(uid).into_iter().filter(|id| all.iter().all(|job| job.id != *id)).collect();
        assert!(missing.is_empty(), "{what}: history does not show {missing:?}: {all:#?}");
        let was_accepted = |line: &str| line.contains(uid) && line.contains(" to=\"Submitted\"");
        assert!(
            all.iter().any(|job| job.accepted) || !self.logs().lines().any(was_accepted),
            "{what}: HTCondor shows none of the jobs that it has accepted: {all:#?}"
        );
    }

    /// Ids of the jobs that the operator's ledger has of one `HTCJob`. It may have been lost.
    fn recorded(&self, uid: &str) -> Vec<String> {
        // A copy of it may be torn.
        let rows = wait_for("the ledger's jobs", PATIENCE, || {
            self.ledger(&format!("select jobId from htcjobs where uid = '{uid}'")).map_err(|error| error.to_string())
        });
        rows.unwrap().concat()
    }

    /// The same where HTCondor may have lost all that it knew of the jobs; what it knows.
    pub fn assert_none_left(&self, uid: &str, what: &str) -> Vec<Seen> {
        let _promise = Promise;
        let left = self.queue(&format!("HTCJobUID == \"{uid}\""), &["ClusterId", "JobStatus"]);
        assert!(left.is_empty(), "{what}: left in the queue: {left:?}");
        let all = self.jobs_of(uid);
        let still: Vec<&Seen> = all.iter().filter(|job| ![REMOVED, COMPLETED].contains(&job.status)).collect();
        assert!(still.is_empty(), "{what}: neither ended nor removed: {still:#?}");
        let mut indices: Vec<u32> = all.iter().filter(|job| job.accepted).map(|job| job.index).collect();
        let count = indices.len();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), count, "{what}: an index was accepted twice: {all:#?}");
        all
    }
}

fn job_of_row(row: &[String]) -> Seen {
    let number = |column: usize| row[column].parse::<u64>().ok();
    let small = |column: usize| number(column).map(|number| u32::try_from(number).unwrap());
    let (staged, limit) = (number(5), number(6));
    let late = matches!((staged, limit), (Some(staged), Some(limit)) if staged > limit);
    Seen {
        id: format!("{}.{}", row[0], row[1]),
        index: small(2).unwrap(),
        attempt: small(3).unwrap(),
        status: small(4).unwrap(),
        accepted: staged.is_some() && !late,
        late,
        starts: small(7).unwrap_or(0).max(u32::from(number(8).is_some())),
    }
}
