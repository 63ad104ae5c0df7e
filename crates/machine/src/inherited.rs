//! What the Go operator of 2020 left of an `HTCJob`.
//!
//! It wrote `status.uniqid`, then submitted all jobs in one `condor_submit`, then wrote a row for each, then
//! `status.jobids`.
//! Its rows have no namespace, its numbers begin anew with each of its starts, and ids begin anew with each queue.
//! So a job is identified by its id, its user and the folder that it was submitted from, together.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::ids::{Index, JobId, id_ranges};
use super::outcome::Outcome;

/// Maximum number of bytes of ids in a message.
const IDS: usize = 256;

/// What is left of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Inherited {
    /// Jobs on which the status and the database agree.
    Jobs(Arc<[InheritedJob]>),
    /// The Go operator managed the object, and it is unclear which jobs it submitted. Says why.
    Unclear(String),
}

/// One job that the Go operator submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InheritedJob {
    /// Id of the job in HTCondor.
    pub id: JobId,
    /// `ProcId`, which was the script's argument.
    pub index: Index,
    /// Folder that the job was submitted from (`tempDir`).
    pub folder: Arc<str>,
    /// Outcome according to the database; none if the job was active.
    pub outcome: Option<Outcome>,
    /// Whether the Go operator has fetched the output.
    pub fetched: bool,
}

/// One row of the Go operator's database.
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

/// Returns what is left of an object.
/// The status has `ids` and `uniqid`; `rows` are those that the database has for the object's name.
#[must_use]
pub fn inherited(ids: &[String], uniqid: Option<i64>, rows: &[OldRow]) -> Inherited {
    if ids.is_empty() {
        return Inherited::Unclear(without_ids(uniqid, rows));
    }
    let mut by_id: HashMap<&str, Vec<&OldRow>> = HashMap::new();
    for row in rows.iter().filter(|row| uniqid.zip(row.uniqid).is_none_or(|(status, row)| status == row)) {
        by_id.entry(row.id.trim()).or_default().push(row);
    }
    let mut jobs = Vec::new();
    for id in ids {
        let job = match by_id.get(id.trim()).map(Vec::as_slice) {
            Some([row]) => row.job(),
            Some([_, ..]) => {
                return Inherited::Unclear(format!(
                    "its status names job {id}, of which the database has several rows"
                ));
            }
            Some([]) | None => {
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

/// Explains a status without ids: the Go operator ended, or could not write the status, after `condor_submit`; or it
/// never submitted.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, status: i64, uniqid: i64) -> OldRow {
        OldRow { id: id.to_owned(), status, folder: "/tmp/htcjob1".to_owned(), uniqid: Some(uniqid) }
    }

    fn of(ids: &[&str], uniqid: Option<i64>, rows: &[OldRow]) -> Inherited {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        inherited(&ids, uniqid, rows)
    }

    #[test]
    fn every_exit_code_of_the_go_operator_is_decoded() {
        let rows: Vec<OldRow> =
            (0..).zip([1, 4, 7, 14, 17, 24, 27]).map(|(proc, code)| row(&format!("5.{proc}"), code, 9)).collect();
        let ids = ["5.6", "5.0", "5.1", "5.2", "5.3", "5.4", "5.5"];
        let Inherited::Jobs(jobs) = of(&ids, Some(9), &rows) else { panic!("unclear") };
        let seen: Vec<_> = jobs.iter().map(|job| (job.id.proc, job.outcome.clone(), job.fetched)).collect();
        let (good, bad) = (Some(Outcome::Succeeded), Some(Outcome::FailedBefore));
        let expected = [
            (0, None, false),
            (1, good.clone(), false),
            (2, bad.clone(), false),
            (3, good.clone(), true),
            (4, bad.clone(), true),
            (5, good, true),
            (6, bad, true),
        ];
        assert_eq!(seen, expected);
    }

    /// Ids and number in the status, rows, and words of the expected message.
    type Case<'a> = (&'a [&'a str], Option<i64>, &'a [OldRow], &'a str);

    /// Rows have no namespace, and numbers repeat: a row that fits two objects, or none, is not used.
    #[test]
    fn ambiguous_inherited_rows_are_unclear() {
        let here = [row("5.0", 1, 9), row("6.0", 1, 8)];
        assert!(matches!(of(&["5.0"], Some(9), &here), Inherited::Jobs(jobs) if jobs.len() == 1));
        assert!(matches!(of(&["6.0"], None, &here), Inherited::Jobs(jobs) if jobs.len() == 1));
        let twice = [row("5.0", 1, 9), row("5.0", 24, 9)];
        let relative = [OldRow { folder: "tmp".to_owned(), ..row("5.0", 1, 9) }];
        let cases: [Case<'_>; 9] = [
            (&["5.0"], Some(8), &here, "no row"),
            (&["5.1"], Some(9), &here, "no row"),
            (&["5.0", "5.1"], Some(9), &here, "no row"),
            (&["5.0"], Some(9), &twice, "several rows"),
            (&["5.0", "6.0"], None, &here, "one ProcId"),
            (&["5.0"], Some(9), &[row("5.0", 2, 9)], "cannot be understood"),
            (&["5.0"], Some(9), &relative, "cannot be understood"),
            (&[], Some(9), &here, "some of an HTCJob of its name: 5.0"),
            (&[], Some(7), &here, "neither"),
        ];
        for (ids, uniqid, rows, words) in cases {
            match of(ids, uniqid, rows) {
                Inherited::Unclear(why) => assert!(why.contains(words), "{why}"),
                Inherited::Jobs(jobs) => panic!("{jobs:?}"),
            }
        }
    }
}
