//! The seam: what the operator asks of whatever runs the jobs of an HTCJob. HTCondor's jobs are judged by [`crate::machine::judge`]; a backend
//! that says itself how its jobs are doing records that as [`crate::machine::runs`], and is known by name here, in
//! [`crate::controller`]'s pass over such an HTCJob, and where the operator is put together. docs/architecture.md says what a third one would be.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kube::Client;

use crate::api::{Backend, Wake};
use crate::kubernetes_backend::{Changes, Creations, PodLogs, Site, Watched};
use crate::ledger::{Ledger, LedgerError, ProcRow, ProcWish, RunRow};
use crate::machine::ids::{Index, SchedDate, Uid};
use crate::procs::{HTCProc, Parent};
use crate::workers::LogSource;

/// What the process has of the backends beside HTCondor.
#[derive(Debug)]
pub struct Backends {
    /// Jobs and Pods, as they are seen.
    pub pods: Watched,
    /// Jobs that the API server has refused.
    pub creations: Creations,
    /// Changes of Jobs that it has refused.
    pub changes: Changes,
}

impl Backends {
    /// Nothing is seen yet.
    #[must_use]
    pub fn new(pods: Site) -> Self {
        Self { pods: Watched::new(pods), creations: Creations::default(), changes: Changes::default() }
    }

    /// Sees what becomes of their jobs, and wakes the HTCJobs. Runs for as long as the operator does.
    pub async fn run(&self, client: &Client, namespace: Option<&str>, wake: Wake) {
        self.pods.run(client, namespace, wake).await;
    }

    /// An HTCJob that is gone.
    pub fn forget(&self, uid: &Uid) {
        self.creations.forget(uid);
        self.changes.forget(uid);
    }

    /// Forgets all HTCJobs but these.
    pub fn keep(&self, uids: &HashSet<Uid>) {
        self.creations.keep(uids);
        self.changes.keep(uids);
    }
}

/// Some jobs of an HTCJob, as its backend has recorded them.
pub struct Recorded {
    /// By index.
    pub procs: Vec<HTCProc>,
    given_up: bool,
    wishes: BTreeMap<Index, ProcWish>,
}

impl Recorded {
    /// At most `limit`, from `from` on.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn read(
        ledger: &Ledger,
        parent: &Parent,
        from: Index,
        limit: usize,
        now: SchedDate,
    ) -> Result<Self, LedgerError> {
        let uid = parent.uid.clone();
        Ok(match parent.backend() {
            Backend::HTCondor => {
                let found = ledger.procs(uid, from, limit).await?;
                let procs = found.rows.iter().map(|row| HTCProc::recorded(parent, row, now)).collect();
                Self { procs, given_up: found.given_up, wishes: found.wishes }
            }
            Backend::Kubernetes => {
                let found = ledger.runs(uid, from, limit).await?;
                let procs = found.rows.iter().map(|row| HTCProc::of_run(parent, row, now)).collect();
                Self { procs, given_up: found.given_up, wishes: BTreeMap::new() }
            }
        })
    }

    /// One of them that is not recorded.
    #[must_use]
    pub fn missing(&self, parent: &Parent, index: Index) -> HTCProc {
        HTCProc::not_recorded(parent, index, self.given_up, self.wishes.get(&index))
    }
}

/// What is recorded of one job.
pub enum Row {
    /// What HTCondor's jobs have.
    Judged(ProcRow),
    /// What all others have.
    Run(RunRow),
}

impl Row {
    /// Of all backends those that were changed after transaction number `since`, and the transaction up to which these are all: `newest`,
    /// or one before it where there are more than `limit`.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn changed(
        ledger: &Ledger,
        since: i64,
        newest: i64,
        limit: usize,
    ) -> Result<(Vec<(Uid, Self)>, i64), LedgerError> {
        let judged = ledger.procs_changed(since, limit).await?;
        let runs = ledger.runs_changed(since, limit).await?;
        let last = judged.last().map(|(_, row)| row.changed).filter(|_| judged.len() >= limit);
        let last_run = runs.last().map(|(_, row)| row.changed).filter(|_| runs.len() >= limit);
        let until = [last, last_run].into_iter().flatten().fold(newest, i64::min);
        let judged = judged.into_iter().map(|(uid, row)| (uid, Self::Judged(row)));
        let all = judged.chain(runs.into_iter().map(|(uid, row)| (uid, Self::Run(row))));
        // What has changed since then would be told twice.
        Ok((all.filter(|(_, row)| row.changed_at() <= until).collect(), until))
    }

    const fn changed_at(&self) -> i64 {
        match self {
            Self::Judged(row) => row.changed,
            Self::Run(row) => row.changed,
        }
    }

    /// As it is shown.
    #[must_use]
    pub fn proc(&self, parent: &Parent, now: SchedDate) -> HTCProc {
        match self {
            Self::Judged(row) => HTCProc::recorded(parent, row, now),
            Self::Run(row) => HTCProc::of_run(parent, row, now),
        }
    }
}

/// What users may ask of single jobs, and only some backends have.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    /// The files that they leave.
    Files,
    /// Why they wait.
    Analysis,
    /// To hold, release or remove them.
    Wish,
}

/// Why a job, which runs or ran as `id`, does not have that, and what to do instead.
#[must_use]
pub fn lacks(backend: Backend, asked: Asked, id: Option<&str>) -> Option<String> {
    instead(backend, asked)
        .map(|instead| format!("runs as a Pod ({}): {instead}", id.unwrap_or("of which there is none yet")))
}

/// What to do where the backend does not have that.
#[must_use]
pub const fn instead(backend: Backend, asked: Asked) -> Option<&'static str> {
    match (backend, asked) {
        (Backend::HTCondor, _) => None,
        (Backend::Kubernetes, Asked::Files) => {
            Some("its files go with it; let the script write to a volume of spec.kubernetes")
        }
        (Backend::Kubernetes, Asked::Analysis) => Some("`kubectl describe pod` says why it waits"),
        (Backend::Kubernetes, Asked::Wish) => Some(
            "single ones cannot be held, released or removed; suspend the whole HTCJob by spec.suspend, or delete it",
        ),
    }
}

/// Whether it is the backend that has the log of each job, in one stream, until it is kept. HTCondor's tools have both streams of jobs that
/// run, and bring the output of those that have ended.
#[must_use]
pub const fn has_logs(backend: Backend) -> bool {
    match backend {
        Backend::HTCondor => false,
        Backend::Kubernetes => true,
    }
}

/// Where the backend has the logs of the jobs of an HTCJob; none if nothing was made of it.
///
/// # Errors
/// The ledger cannot be read.
pub async fn logs(
    client: &Client,
    ledger: &Ledger,
    parent: &Parent,
) -> Result<Option<Arc<dyn LogSource>>, LedgerError> {
    Ok(match parent.backend() {
        Backend::HTCondor => None,
        Backend::Kubernetes => ledger.job_of(parent.uid.clone()).await?.map(|job| {
            let (client, namespace) = (client.clone(), parent.namespace.clone());
            Arc::new(PodLogs { client, namespace, job }) as Arc<dyn LogSource>
        }),
    })
}
