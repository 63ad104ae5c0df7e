//! Jobs whose `HTCJob` is gone, as people are told of them.

use std::collections::BTreeSet;

use super::query::UIDS_PER_CALL;
use super::row::Row;
use super::schedd::Schedd;
use crate::api::Identity;
use crate::machine::facts::{JobStatus, Unknown};
use crate::machine::{JobId, Uid};

/// What is asked of them.
const ATTRIBUTES: &str = "ClusterId,ProcId,HTCJobUID,HTCOperator,JobStatus,JobBatchName,User";

/// A job in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its id.
    pub id: JobId,
    /// Of which object it was.
    pub uid: Uid,
    /// Namespace and name of that, by what the job says: nothing is decided by it.
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
        ours.then(|| Left { id, uid, name: row.batch(), user: user.to_owned(), status })
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
