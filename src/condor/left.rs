//! Jobs whose `HTCJob` is gone, as people are told of them.

use std::collections::{BTreeMap, BTreeSet};

use super::ads::LARGE;
use super::query::UIDS_PER_CALL;
use super::row::Row;
use super::schedd::Schedd;
use crate::api::Identity;
use crate::machine::facts::{JobStatus, Unknown};
use crate::machine::{JobId, Uid};

/// What is asked of them: nothing of any length that whose job it is may write there.
const ATTRIBUTES: &str = "ClusterId,ProcId,HTCJobUID,HTCOperator,JobStatus,User";
/// What is asked to name them.
const NAMES: &str = "ClusterId,ProcId,JobBatchName";

/// A job in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its id.
    pub id: JobId,
    /// Of which object it was.
    pub uid: Uid,
    /// Namespace and name of that, by what the job says, if it was asked: nothing is decided by it.
    pub name: String,
    /// `User`: in whose name it is.
    pub user: String,
    /// `JobStatus`
    pub status: JobStatus,
}

impl Schedd {
    /// The jobs of these objects that are in the queue.
    pub async fn left(&self, uids: &[Uid]) -> Result<Vec<Left>, Unknown> {
        let mut left = Vec::new();
        for uids in uids.chunks(UIDS_PER_CALL) {
            let (constraint, asked) = (self.jobs_of(uids).await?, uids.iter().collect());
            let each = |row: &Row| left.extend(self.one_left(row, &asked));
            self.each_queued(&constraint, ATTRIBUTES, self.tools.limit, None, each).await?;
        }
        left.sort_by_key(|job| job.id);
        Ok(left)
    }

    fn one_left(&self, row: &Row, asked: &BTreeSet<&Uid>) -> Option<Left> {
        let (id, user, status) = (row.job_id()?, row.user()?, row.status()?);
        let uid = row.uid().map(Uid::from).filter(|uid| asked.contains(uid))?;
        let ours = row.operator() == Some(&self.operator) && self.users.knows(user);
        ours.then(|| Left { id, uid, name: String::new(), user: user.to_owned(), status })
    }

    /// Asks them for their names. Whoever writes more there than can be shown is left without one, and keeps nobody from anything.
    pub async fn name(&self, left: &mut [Left]) {
        let mut names: BTreeMap<JobId, String> = BTreeMap::new();
        let uids: BTreeSet<Uid> = left.iter().map(|job| job.uid.clone()).collect();
        for uids in uids.into_iter().collect::<Vec<_>>().chunks(UIDS_PER_CALL) {
            let Ok(theirs) = self.jobs_of(uids).await else { return };
            let constraint = format!("{theirs} && size(unparse(JobBatchName)) < {LARGE}");
            let each = |row: &Row| names.extend(row.job_id().map(|id| (id, row.batch())));
            if let Err(unknown) = self.each_queued(&constraint, NAMES, self.tools.limit, None, each).await {
                tracing::debug!(why = %unknown.message, "jobs do not say of which HTCJobs they were");
            }
        }
        for job in left {
            job.name = names.remove(&job.id).unwrap_or_default();
        }
    }

    /// Learns in whose names there are jobs of this operator, as far as `whose` can tell by the name.
    pub async fn learn_users(&self, whose: impl Fn(&str) -> Option<Identity>) -> Result<(), Unknown> {
        let mut users: BTreeSet<String> = BTreeSet::new();
        let each = |row: &Row| users.extend(row.user().map(str::to_owned));
        self.each_queued(&self.of_operator(), "ClusterId,ProcId,User", self.tools.limit, None, each).await?;
        for user in users {
            if let Some(identity) = whose(&user) {
                self.users.learn(&identity, &user, self.clock.now());
            }
        }
        Ok(())
    }
}
