//! Orphans: jobs whose `HTCJob` is deleted.

use std::collections::{BTreeMap, BTreeSet};

use htc_api::Identity;
use htc_machine::facts::{JobStatus, QueryError};
use htc_machine::{JobId, Uid};

use super::ads::LARGE_AD;
use super::query::UIDS_PER_CALL;
use super::row::Row;
use super::schedd::Schedd;

/// Queried attributes. Their owner can make none of them long.
const ATTRIBUTES: &str = "ClusterId,ProcId,HTCJobUID,HTCOperator,JobStatus,User";
/// Attributes for the display of the HTCJob's name.
const NAMES: &str = "ClusterId,ProcId,JobBatchName";

/// A job in the queue whose `HTCJob` is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    pub id: JobId,
    /// Uid of the deleted object.
    pub uid: Uid,
    /// Namespace and name of the object as the job says, or empty if that was not queried. For display only.
    pub name: String,
    /// `User` of the job.
    pub user: String,
    /// `JobStatus`
    pub status: JobStatus,
}

impl Schedd {
    /// Returns the jobs of these objects in the queue.
    pub async fn orphans_of(&self, uids: &[Uid]) -> Result<Vec<Orphan>, QueryError> {
        let mut left = Vec::new();
        for uids in uids.chunks(UIDS_PER_CALL) {
            let (constraint, asked) = (self.jobs_of(uids).await?, uids.iter().collect());
            let each = |row: &Row| left.extend(self.orphan_from_row(row, &asked));
            self.each_queued(&constraint, ATTRIBUTES, self.tools.limit, None, each).await?;
        }
        left.sort_by_key(|job| job.id);
        Ok(left)
    }

    fn orphan_from_row(&self, row: &Row, asked: &BTreeSet<&Uid>) -> Option<Orphan> {
        let (id, user, status) = (row.job_id()?, row.user()?, row.status()?);
        let uid = row.uid().map(Uid::from).filter(|uid| asked.contains(uid))?;
        let ours = row.operator() == Some(&self.operator) && self.users.knows(user);
        ours.then(|| Orphan { id, uid, name: String::new(), user: user.to_owned(), status })
    }

    /// Queries the names of the jobs' objects. A job with too long a name in its ad stays without one, and does not
    /// affect others.
    pub async fn name(&self, left: &mut [Orphan]) {
        let mut names: BTreeMap<JobId, String> = BTreeMap::new();
        let uids: BTreeSet<Uid> = left.iter().map(|job| job.uid.clone()).collect();
        for uids in uids.into_iter().collect::<Vec<_>>().chunks(UIDS_PER_CALL) {
            let Ok(theirs) = self.jobs_of(uids).await else { return };
            let constraint = format!("{theirs} && size(unparse(JobBatchName)) < {LARGE_AD}");
            let each = |row: &Row| names.extend(row.job_id().map(|id| (id, row.batch())));
            if let Err(unknown) = self.each_queued(&constraint, NAMES, self.tools.limit, None, each).await {
                tracing::debug!(why = %unknown.message, "orphans' HTCJobs unknown");
            }
        }
        for job in left {
            job.name = names.remove(&job.id).unwrap_or_default();
        }
    }

    /// Queries the users of this operator's jobs in the queue, and records those whose identity `whose` can derive from
    /// the name.
    pub async fn learn_users(&self, whose: impl Fn(&str) -> Option<Identity>) -> Result<(), QueryError> {
        let mut users: BTreeSet<String> = BTreeSet::new();
        let each = |row: &Row| users.extend(row.user().map(str::to_owned));
        self.each_queued(&self.operator_constraint(), "ClusterId,ProcId,User", self.tools.limit, None, each).await?;
        for user in users {
            if let Some(identity) = whose(&user) {
                self.users.learn(&identity, &user, self.clock.now());
            }
        }
        Ok(())
    }
}
