//! What the Go operator of 2020 has left of an `HTCJob`.
//!
//! It wrote `status.uniqid`, then submitted all jobs in one `condor_submit`, then wrote a row for each, then `status.jobids`.
//! Its rows have no namespace, its numbers begin anew with each of its starts, and ids begin anew with each queue: a job is
//! known by its id, its user and the folder that it was submitted from, together.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::facts::Outcome;
use super::ids::{Index, JobId, id_ranges};

/// Most bytes of ids in a message.
const IDS: usize = 256;

/// What is left of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Inherited {
    /// Its jobs, each as the status and the database agree on.
    Jobs(Arc<[InheritedJob]>),
    /// The Go operator had the object, and it is not plain which jobs it submitted: why.
    Unclear(String),
}

/// One job that the Go operator submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InheritedJob {
    /// Its id in HTCondor.
    pub id: JobId,
    /// `ProcId`, which was the script's argument.
    pub index: Index,
    /// The folder that it was submitted from (`tempDir`).
    pub folder: Arc<str>,
    /// How it ended, by the database.
    pub outcome: Option<Outcome>,
    /// The Go operator has fetched its output.
    pub fetched: bool,
}

/// A row of the Go operator's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldRow {
    /// `jobId`
    pub id: String,
    /// `status`: 1 active, 4 succeeded, 7 failed; +10 fetched, +20 copied as well.
    pub status: i64,
    /// `tempDir`
    pub folder: String,
    /// `uniqid`
    pub uniqid: Option<i64>,
}

impl OldRow {
    fn job(&self) -> Option<InheritedJob> {
        let id: JobId = self.id.trim().parse().ok()?;
        let outcome = match self.status.rem_euclid(10) {
            1 => None,
            4 => Some(Outcome::Succeeded),
            7 => Some(Outcome::FailedBefore),
            _ => return None,
        };
        let absolute = self.folder.starts_with('/') && !self.folder.contains(char::is_control);
        absolute.then(|| InheritedJob {
            id,
            index: Index(id.proc),
            folder: self.folder.as_str().into(),
            fetched: self.status >= 10 && outcome.is_some(),
            outcome,
        })
    }
}

/// What is left of an object of which the status has `ids` and `uniqid` and the database has `rows`, by the object's name.
#[must_use]
pub fn inherited(ids: &[String], uniqid: Option<i64>, rows: &[OldRow]) -> Inherited {
    if ids.is_empty() {
        return Inherited::Unclear(without_ids(uniqid, rows));
    }
    let mut jobs = Vec::new();
    for id in ids {
        let its = |row: &&OldRow| {
            row.id.trim() == id.trim() && uniqid.zip(row.uniqid).is_none_or(|(status, row)| status == row)
        };
        let mut found = rows.iter().filter(its);
        let job = match (found.next(), found.next()) {
            (Some(row), None) => row.job(),
            (Some(_), Some(_)) => {
                return Inherited::Unclear(format!(
                    "its status names job {id}, of which the database has several rows"
                ));
            }
            (None, _) => {
                return Inherited::Unclear(format!(
                    "its status names job {id}, of which the database has no row: is it the Go operator's database that the operator was started with?"
                ));
            }
        };
        let Some(job) = job else {
            return Inherited::Unclear(format!("the database's row of job {id} cannot be understood"));
        };
        jobs.push(job);
    }
    let indices: BTreeSet<Index> = jobs.iter().map(|job| job.index).collect();
    if indices.len() < jobs.len() {
        return Inherited::Unclear(
            "its status names two jobs of one ProcId, which one submission cannot have".to_owned(),
        );
    }
    jobs.sort_by_key(|job| job.index);
    Inherited::Jobs(jobs.into())
}

/// The Go operator ended, or its status could not be written, after `condor_submit`: or it never came so far.
fn without_ids(uniqid: Option<i64>, rows: &[OldRow]) -> String {
    let same = |row: &&OldRow| uniqid.zip(row.uniqid).is_none_or(|(status, row)| status == row);
    let mut ids: Vec<JobId> = rows.iter().filter(same).filter_map(|row| row.id.trim().parse().ok()).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        "neither its status nor the database says whether the Go operator had submitted it".to_owned()
    } else {
        format!(
            "its status names no jobs, but the database has some of an HTCJob of its name: {}",
            id_ranges(&ids, IDS)
        )
    }
}
