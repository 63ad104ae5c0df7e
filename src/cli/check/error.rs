//! What is wrong with the parts that `check`, `adopt` and `orphans` look at, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use htc_api::ObjectName;
use htc_confine::NO_LANDLOCK;
use htc_ledger::LedgerError;
use htc_machine::JobId;
use htc_machine::facts::QueryError;
use htc_machine::ids::id_ranges;
use htc_support::kubernetes::ApiError;

use crate::backends::condor::orphans::OrphanError;
use crate::cli::config::error::ConfigError;
use crate::cli::run::StartError;
use crate::htcpool::managed::error::ApplyError;
use crate::htcpool::managed::names::BadName;
use crate::leader::LeadershipLost;

/// What is wrong with one part, or why it could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cluster or the ledger, which several parts need, is not there.
    #[error(transparent)]
    Start(#[from] Arc<StartError>),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    OrphanSearch(#[from] OrphanError),
    /// An error, and what else was found.
    #[error("{error}; {remark}")]
    WithRemark { error: Box<Self>, remark: String },
    /// The object cannot be decoded.
    #[error("{0}")]
    UnreadableObject(String),
    #[error("the API server does not know HTCJobs: run `kubectl apply -f crd/`")]
    NoHTCJobs,
    #[error("the operator may not {missing}: {remedy}")]
    NotPermitted { missing: String, remedy: String },
    #[error(
        "the API server does not serve HTCQueues, so that every HTCJob waits: apply deploy/crd, or use --queueing=none"
    )]
    NoHTCQueues,
    #[error("these HTCQueues cannot be read, and HTCJobs that may be in them wait: {}", .0.join(", "))]
    UnreadableQueues(Vec<String>),
    #[error(
        "the API server does not know Workloads of kueue.x-k8s.io/v1beta2: install Kueue 0.16 or newer, or use --queueing=embedded"
    )]
    NoWorkloads,
    #[error(
        "HTCJobs name Secrets and ConfigMaps without the label that lets them use these: if they may, {}{more}",
        commands.join("; ")
    )]
    Unlabelled { commands: Vec<String>, more: String },
    #[error("cannot create {}: {source}; check --data-dir", folder.display())]
    CreateLedger { folder: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}; check its owner, and the volume's space and health", path.display())]
    WriteLedger { path: PathBuf, source: io::Error },
    #[error("{NO_LANDLOCK}; use Linux 5.13 or newer, or --confinement=auto")]
    NoLandlock,
    #[error(
        "HTCJobs have jobs at other schedds than {ours}: {others}; run the operator with --schedd of each until those have ended"
    )]
    OtherSchedds { ours: String, others: String },
    #[error("{}", .0.join("; "))]
    PoolsNotReady(Vec<String>),
    #[error(transparent)]
    PoolName(#[from] BadName),
    /// An object of a managed pool, such as its signing key, is not as it should be.
    #[error(transparent)]
    ManagedPool(#[from] ApplyError),
    #[error(
        "there is no {kind} {name} yet: the operator makes it once it may and runs; the line `pools` says what is in its way"
    )]
    NotMade { kind: &'static str, name: ObjectName },
    #[error(
        "{} jobs{} in HTCondor belong to no HTCJob: {}; remove them with `htc-operator orphans --remove` if nobody needs them",
        jobs.len(),
        namespace.as_ref().map(|namespace| format!(" of namespace {namespace}")).unwrap_or_default(),
        id_ranges(jobs, usize::MAX)
    )]
    Orphans { jobs: Vec<JobId>, namespace: Option<String> },
    #[error("--schedd names no schedd")]
    NoSchedd,
    #[error("this operator has no HTCPool {0}")]
    NoPool(ObjectName),
    #[error("--schedd names no schedd; name the one that has the jobs of the Go operator")]
    NothingToAdoptFrom,
    #[error("{0}; stop the operator first")]
    LedgerInUse(#[source] LedgerError),
    #[error("another operator leads, or the Lease cannot be written: stop the operator first")]
    AnotherLeads,
    #[error(transparent)]
    LeadershipLost(#[from] LeadershipLost),
    #[error("it has no uid")]
    NoUid,
    /// The status of the HTCJob and the database do not agree on its jobs.
    #[error("{0}")]
    UnclearJobs(String),
    #[error("job {0} is in the queue and does not carry this operator's attributes yet; run the command again")]
    NotMarked(JobId),
}
