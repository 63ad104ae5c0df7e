//! The interface between the operator and the backends that run the jobs of HTCJobs. [`htc_machine::judge`] judges jobs
//! in HTCondor. A backend that reports the state of its jobs itself records them as [`htc_machine::runs`]. Such a
//! backend is named only here, in [`crate::htcjob`]'s reconcile of its HTCJobs, and where the operator is assembled.
//! docs/architecture.md describes what a third backend needs.

pub mod condor;
pub mod kept_logs;
pub mod pods;
pub mod procs;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use htc_api::Backend;
use htc_api::htcproc::HTCProc;
use htc_ledger::{Ledger, LedgerError, ProcAction, ProcRow, RunRow};
use htc_machine::ids::{Index, SchedDate, Uid};
use htc_submit::pod_spec::PodSettings;
use htc_support::forget::Forget;
use htc_support::kubernetes::Wake;
use kube::Client;

use crate::backends::kept_logs::LogSource;
use crate::backends::pods::{JobCache, PodLogs, RefusedChanges, RefusedCreations};
use crate::backends::procs::Parent;

/// State of the backends other than HTCondor.
#[derive(Debug)]
pub struct Backends {
    /// Watch cache of Jobs and Pods.
    pub pods: JobCache,
    /// Jobs whose creation the API server refused.
    pub creations: RefusedCreations,
    /// Changes of Jobs that the API server refused.
    pub changes: RefusedChanges,
}

impl Backends {
    /// Creates an empty state.
    #[must_use]
    pub fn new(pods: PodSettings) -> Self {
        Self { pods: JobCache::new(pods), creations: RefusedCreations::default(), changes: RefusedChanges::default() }
    }

    /// Watches Jobs and Pods, and wakes their HTCJobs. Runs as long as the operator.
    pub async fn run(&self, client: &Client, namespace: Option<&str>, wake: Wake) {
        self.pods.run(client, namespace, wake).await;
    }
}

impl Forget for Backends {
    fn forget(&self, uid: &Uid) {
        self.creations.forget(uid);
        self.changes.forget(uid);
    }

    fn retain(&self, uids: &HashSet<Uid>) {
        self.creations.retain(uids);
        self.changes.retain(uids);
    }
}

/// Some jobs of an HTCJob, as the ledger has them.
pub struct RecordedProcs {
    /// The recorded jobs, by index.
    pub procs: Vec<HTCProc>,
    given_up: bool,
    wishes: BTreeMap<Index, ProcAction>,
}

impl RecordedProcs {
    /// Reads at most `limit` jobs, starting with index `from`.
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
                let procs = found.rows.iter().map(|row| crate::backends::procs::recorded(parent, row, now)).collect();
                Self { procs, given_up: found.given_up, wishes: found.requested_actions }
            }
            Backend::Kubernetes => {
                let found = ledger.runs(uid, from, limit).await?;
                let procs = found.rows.iter().map(|row| crate::backends::procs::of_run(parent, row, now)).collect();
                Self { procs, given_up: found.given_up, wishes: BTreeMap::new() }
            }
        })
    }

    /// Returns a job that is not recorded.
    #[must_use]
    pub fn missing(&self, parent: &Parent, index: Index) -> HTCProc {
        crate::backends::procs::not_recorded(parent, index, self.given_up, self.wishes.get(&index))
    }
}

/// The record of one job.
pub enum RecordedProc {
    /// A job in HTCondor.
    HTCondor(ProcRow),
    /// A job in any other backend.
    Run(RunRow),
}

impl RecordedProc {
    /// Reads the jobs of all backends that were changed after transaction number `since`. Also returns the last
    /// transaction that the result covers completely: `newest`, or an earlier one if there are more than `limit`
    /// changes.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn changed_since(
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
        let judged = judged.into_iter().map(|(uid, row)| (uid, Self::HTCondor(row)));
        let all = judged.chain(runs.into_iter().map(|(uid, row)| (uid, Self::Run(row))));
        // Later changes are left out; otherwise the next call would return them again.
        Ok((all.filter(|(_, row)| row.changed_at() <= until).collect(), until))
    }

    const fn changed_at(&self) -> i64 {
        match self {
            Self::HTCondor(row) => row.changed,
            Self::Run(row) => row.changed,
        }
    }

    /// Converts the record to an HTCProc.
    #[must_use]
    pub fn proc(&self, parent: &Parent, now: SchedDate) -> HTCProc {
        match self {
            Self::HTCondor(row) => crate::backends::procs::recorded(parent, row, now),
            Self::Run(row) => crate::backends::procs::of_run(parent, row, now),
        }
    }
}

/// Features for single jobs that only some backends have.
#[derive(Clone, Copy, Debug)]
pub enum JobFeature {
    /// Access to the files of the jobs.
    Files,
    /// Analysis why jobs wait.
    Analysis,
    /// Holding, releasing and removing jobs.
    Action,
}

/// Returns why the backend does not support the feature for a job, and what to do instead. `id`: name of what runs or
/// ran the job. Returns `None` if the feature is supported.
#[must_use]
pub fn why_unsupported(backend: Backend, asked: JobFeature, id: Option<&str>) -> Option<String> {
    alternative_to(backend, asked)
        .map(|instead| format!("runs as a Pod ({}): {instead}", id.unwrap_or("of which there is none yet")))
}

/// Returns what to do instead of a feature that the backend does not support.
#[must_use]
pub const fn alternative_to(backend: Backend, asked: JobFeature) -> Option<&'static str> {
    match (backend, asked) {
        (Backend::HTCondor, _) => None,
        (Backend::Kubernetes, JobFeature::Files) => {
            Some("its files go with it; let the script write to a volume of spec.kubernetes")
        }
        (Backend::Kubernetes, JobFeature::Analysis) => Some("`kubectl describe pod` says why it waits"),
        (Backend::Kubernetes, JobFeature::Action) => Some(
            "single ones cannot be held, released or removed; suspend the whole HTCJob by spec.suspend, or delete it",
        ),
    }
}

/// Whether the backend serves the log of each job, as one stream, until the operator has stored it. For HTCondor, its
/// tools return both streams of running jobs, and the output of ended jobs is fetched.
#[must_use]
pub const fn has_logs(backend: Backend) -> bool {
    match backend {
        Backend::HTCondor => false,
        Backend::Kubernetes => true,
    }
}

/// Returns the source of the logs of an HTCJob's jobs, or `None` if nothing was created for it.
///
/// # Errors
/// The ledger cannot be read.
pub async fn log_source(
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
