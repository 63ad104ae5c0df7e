use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// The conditions an `HTCJob` can carry, in the order in which they stand in its status.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display, EnumIter, EnumString,
)]
pub enum ConditionType {
    /// All jobs have been accepted by HTCondor; `False` says what they wait for.
    Submitted,
    /// HTCondor answers questions about the jobs; `False` says why what is shown may be old.
    Tracked,
    /// Some jobs are on hold in HTCondor; the message has HTCondor's reason.
    Held,
    /// Pods cannot start; the message says why.
    Stuck,
    /// `spec.suspend` is in force.
    Suspended,
    /// Jobs have room in their `HTCQueue`; `False` says what they wait for.
    QuotaReserved,
    /// The output of the ended jobs lies in the output folder.
    OutputFetched,
    /// Deletion: the jobs are gone from HTCondor; `False` says what is waited for.
    JobsRemoved,
    /// Every job succeeded.
    Complete,
    /// Every job has ended, and some did not succeed.
    Failed,
}

/// `metav1.ConditionStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Display, EnumString)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

/// Why a condition holds or does not, as one word. `docs/troubleshooting.md` explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumIter, EnumString, IntoStaticStr)]
pub enum Reason {
    /// HTCondor has accepted every job.
    Accepted,
    /// The spec cannot be run.
    InvalidSpec,
    /// The ConfigMap of `spec.itemsFrom` is not there, may not be read, or has no items that jobs could get.
    ItemsUnavailable,
    /// There is no `HTCPool` of the name in `spec.pool`.
    PoolNotFound,
    /// The `HTCPool` is not for the namespace of the `HTCJob`.
    PoolNotAllowed,
    /// Nothing is submitted to the `HTCPool` now.
    PoolNotReady,
    /// This operator does not run jobs as Pods.
    BackendDisabled,
    /// The Job is being created.
    Creating,
    /// The API server refuses the Job or its ConfigMap.
    CreateRefused,
    /// Another object has the name that the Job, or its ConfigMap, is to have.
    NameTaken,
    /// The operator cannot see Jobs and Pods.
    WatchFailed,
    /// Pods wait for something that they may not get: an image, a node, a volume.
    PodsCannotStart,
    /// The Job has made no Pods.
    PodsNotCreated,
    /// A Pod that is being deleted has not ended: its node does not answer.
    NodeNotAnswering,
    /// An annotation says that the HTCJob is to go, whatever is left of it.
    Abandoned,
    /// Pods start.
    PodsStart,
    /// The workers of the `HTCPool` have another image, or are too small.
    NoWorkerFits,
    /// `spec.suspend` is true.
    Suspended,
    /// The jobs are being handed to HTCondor.
    Submitting,
    /// They are, in smaller parts, as the schedd has refused more at once.
    SmallerSubmissions,
    /// HTCondor is being asked about the jobs.
    Asking,
    /// Jobs of the Go operator are being taken over.
    Adopting,
    /// The Go operator had it, and nobody knows which jobs it submitted.
    GoOperator,
    /// Nothing is submitted now.
    Waiting,
    /// HTCondor is taking in the jobs' files.
    Staging,
    /// `condor_submit` failed.
    SubmitRefused,
    /// The schedd or its collector cannot be reached, or did not answer in time.
    ScheddUnreachable,
    /// One of HTCondor's tools could not be started, or was ended by somebody.
    ToolFailed,
    /// HTCondor refused the operator's credentials.
    CredentialsRefused,
    /// There are no credentials that HTCondor could be asked with: no ticket, or a Secret that cannot be read.
    CredentialsFailed,
    /// HTCondor's answer was cut short or cannot be read.
    Incomplete,
    /// Another schedd answers to the name, or the queue was lost a short while ago.
    AnotherSchedd,
    /// A `condor_submit` may still be running.
    SubmitterMayLive,
    /// An operator with another ledger may have submitted jobs.
    PastUnknown,
    /// HTCondor still has jobs.
    JobsPresent,
    /// HTCondor's history does not say what became of the jobs.
    HistoryTooShort,
    /// The schedd lost its queue while it was being handed jobs.
    QueueLost,
    /// Jobs are nowhere to be found.
    Lost,
    /// The HTCJob was deleted before: the API server's data were restored.
    WasDeleted,
    /// The jobs' files cannot be written.
    CannotWriteFiles,
    /// `spec.activeDeadlineSeconds` has passed.
    DeadlineExceeded,
    /// More jobs have failed than `spec.maxFailedIndexes` allows.
    MaxFailedIndexesExceeded,
    /// The operator was stopped before the tool ran.
    Stopped,
    /// HTCondor answers again.
    Tracking,
    /// HTCondor holds jobs.
    JobsHeld,
    /// No job is held any more.
    NotHeld,
    /// `spec.suspend` is false again.
    Resumed,
    /// Every job ended before it came to a hold.
    JobsEnded,
    /// The output is here.
    Fetched,
    /// No job has left output.
    NothingToFetch,
    /// The output could not be fetched.
    FetchFailed,
    /// Somebody changed where HTCondor writes the jobs' output.
    OutputRedirected,
    /// The output is not what a job may leave.
    OutputRefused,
    /// The data volume is nearly full.
    NoSpace,
    /// The namespace has as much as it may have.
    NamespaceLimit,
    /// HTCondor has as many of the jobs as `spec.parallelism` allows.
    Parallelism,
    /// The queue has no room for more of the jobs.
    Queued,
    /// Jobs have room in their queue.
    QuotaReserved,
    /// The quota of the queue is used up, or others are ahead of it.
    WaitingForQuota,
    /// One job alone needs more than the queue ever has.
    ExceedsMaxQuota,
    /// There is no such queue, it is not for this namespace, or the HTCJob cannot be counted in it.
    Misconfigured,
    /// Kueue has not decided about the HTCJob, or has taken its quota back.
    PendingEvaluation,
    /// Kueue cannot admit the HTCJob as things are: its queue is not there, or is stopped.
    Inadmissible,
    /// Kueue finds no `ResourceFlavor` for the jobs.
    NoMatchingFlavor,
    /// Others are being evicted for this HTCJob.
    WaitingForPreemptedWorkloads,
    /// Kueue has quota for the HTCJob, and its admission checks are not done.
    UnsatisfiedAdmissionChecks,
    /// No queue applies any more.
    NoQueue,
    /// The jobs left HTCondor's queue before their output was fetched.
    OutputLost,
    /// The jobs are being removed from HTCondor.
    Removing,
    /// The jobs have outlasted their removal for a while.
    NotRemovedYet,
    /// HTCondor has none of the jobs left; or somebody removed all of them.
    Removed,
    /// Every job exited with 0.
    AllSucceeded,
    /// Some jobs did not exit with 0.
    JobsFailed,
}

/// One aspect of the object's current state (the fields of `metav1.Condition`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, for example Submitted, Held or Complete.
    #[serde(rename = "type")]
    #[schemars(length(max = 64))]
    pub type_: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// Reason in one word. docs/troubleshooting.md explains each.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub reason: String,
    /// Human-readable explanation and, if there is one, the next step.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub message: String,
    /// Time at which the status last changed.
    pub last_transition_time: Time,
    /// Generation of the spec that the condition refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
