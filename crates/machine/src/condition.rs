//! The conditions of an `HTCJob`, and their reasons.

use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// Types of the conditions of an `HTCJob`, in the order in which its status lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumIter, EnumString)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize))]
pub enum ConditionType {
    /// HTCondor has accepted all jobs; `False` says what they wait for.
    Submitted,
    /// HTCondor answers queries about the jobs; `False` says why the status may be out of date.
    Tracked,
    /// Some jobs are on hold in HTCondor; the message has HTCondor's reason.
    Held,
    /// Runs of jobs ended by faults of their nodes; HTCondor runs these jobs again.
    NodeFaults,
    /// Pods cannot start; the message says why.
    Stuck,
    /// `spec.suspend` is in force.
    Suspended,
    /// Jobs have quota in their queue; `False` says what they wait for.
    QuotaReserved,
    /// The output of the ended jobs is in the output folder.
    OutputFetched,
    /// Deletion: the jobs are gone from HTCondor; `False` says what the deletion waits for.
    JobsRemoved,
    /// Every job succeeded.
    Complete,
    /// Every job has ended, and at least one did not succeed.
    Failed,
}

/// `metav1.ConditionStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumString)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

/// Reason of a condition, in one word. `docs/troubleshooting.md` explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumIter, EnumString, IntoStaticStr)]
pub enum Reason {
    /// HTCondor has accepted every job.
    Accepted,
    /// The spec cannot be run.
    InvalidSpec,
    /// The ConfigMap of `spec.itemsFrom` does not exist, may not be read, or has no items that jobs could get.
    ItemsUnavailable,
    /// A ConfigMap of `spec.files` does not exist, may not be read, or lacks a key.
    InputsUnavailable,
    /// There is no `HTCPool` with the name in `spec.pool`.
    PoolNotFound,
    /// The `HTCPool` does not allow the namespace of the `HTCJob`.
    PoolNotAllowed,
    /// Nothing is submitted to the `HTCPool` now.
    PoolNotReady,
    /// This operator does not run jobs as Pods.
    BackendDisabled,
    /// The Job is being created.
    Creating,
    /// The API server refuses the Job or its ConfigMap.
    CreateRefused,
    /// Another object has the name of the Job or of its ConfigMap.
    NameTaken,
    /// The operator cannot watch Jobs and Pods.
    WatchFailed,
    /// Pods wait for something that they may never get: an image, a node, a volume.
    PodsCannotStart,
    /// The Job has created no Pods.
    PodsNotCreated,
    /// A Pod that is being deleted has not ended: its node does not answer.
    NodeNotAnswering,
    /// An annotation requests that the HTCJob be deleted whatever jobs are left.
    Abandoned,
    /// Pods are starting.
    PodsStart,
    /// The workers of the `HTCPool` have another image, or are too small.
    NoWorkerFits,
    /// `spec.suspend` is true.
    Suspended,
    /// The jobs are being submitted.
    Submitting,
    /// The jobs are being submitted in smaller parts, because the schedd refused more at once.
    SmallerSubmissions,
    /// HTCondor is being asked about the jobs.
    #[strum(to_string = "QueryingHTCondor", serialize = "Asking")]
    QueryingHTCondor,
    /// The Go operator managed the HTCJob, and its jobs are not adopted.
    #[strum(to_string = "LegacyJobsUnknown", serialize = "GoOperator")]
    LegacyJobsUnknown,
    /// Nothing is submitted now.
    Waiting,
    /// HTCondor is receiving the jobs' files.
    Staging,
    /// `condor_submit` failed.
    SubmitRefused,
    /// The schedd or its collector cannot be reached, or did not answer in time.
    ScheddUnreachable,
    /// One of HTCondor's tools could not be started, or was killed.
    ToolFailed,
    /// HTCondor refused the operator's credentials.
    CredentialsRefused,
    /// There are no credentials to query HTCondor with: no ticket, or a Secret that cannot be read.
    CredentialsFailed,
    /// HTCondor's answer was cut short or cannot be parsed.
    #[strum(to_string = "AnswerIncomplete", serialize = "Incomplete")]
    AnswerIncomplete,
    /// Another schedd answers under this name, or the queue was lost a short while ago.
    AnotherSchedd,
    /// A `condor_submit` may still be running.
    SubmitterMayLive,
    /// An operator with another ledger may have submitted jobs.
    PastUnknown,
    /// HTCondor still has jobs.
    JobsPresent,
    /// HTCondor's history does not reach back far enough to show what became of the jobs.
    HistoryTooShort,
    /// The schedd lost its queue while jobs were being submitted to it.
    QueueLost,
    /// Jobs are neither in HTCondor's queue nor in its history.
    #[strum(to_string = "JobsLost", serialize = "Lost")]
    JobsLost,
    /// The HTCJob was deleted before: the API server's data were restored.
    WasDeleted,
    /// The jobs' files cannot be written.
    CannotWriteFiles,
    /// `spec.activeDeadlineSeconds` has passed.
    DeadlineExceeded,
    /// More jobs have failed than `spec.maxFailedIndexes` allows.
    MaxFailedIndexesExceeded,
    /// The operator was stopped before the tool ran.
    #[strum(to_string = "OperatorStopping", serialize = "Stopped")]
    OperatorStopping,
    /// HTCondor answers again.
    Tracking,
    /// HTCondor holds jobs.
    JobsHeld,
    /// HTCondor runs jobs again after faults of their nodes.
    TriedElsewhere,
    /// No job that has not ended had a fault of its node.
    NoNodeFaults,
    /// No job is held any more.
    NotHeld,
    /// `spec.suspend` is false again.
    Resumed,
    /// Every job ended before it could be held.
    JobsEnded,
    /// The output was fetched.
    Fetched,
    /// No job has left output.
    NothingToFetch,
    /// The output could not be fetched.
    FetchFailed,
    /// The place to which HTCondor writes the jobs' output was changed by another program or user.
    OutputRedirected,
    /// The output breaks the limits for what a job may leave.
    OutputRefused,
    /// The data volume is nearly full.
    #[strum(to_string = "OutputVolumeFull", serialize = "NoSpace")]
    OutputVolumeFull,
    /// The namespace has reached one of its limits.
    #[strum(to_string = "NamespaceLimitReached", serialize = "NamespaceLimit")]
    NamespaceLimitReached,
    /// HTCondor has as many of the jobs as `spec.parallelism` allows.
    #[strum(to_string = "ParallelismReached", serialize = "Parallelism")]
    ParallelismReached,
    /// The queue has no quota for more of the jobs.
    Queued,
    /// Jobs have quota in their queue.
    QuotaReserved,
    /// The quota of the queue is used up, or other workloads are ahead.
    WaitingForQuota,
    /// One job alone needs more than the queue's whole quota.
    ExceedsMaxQuota,
    /// The queue does not exist.
    QueueNotFound,
    /// The queue does not allow the namespace of the `HTCJob`.
    QueueNotAllowed,
    /// The queue is stopped or drained.
    QueueStopped,
    /// The `HTCJob` cannot be counted in its queue, or the operator works without queues.
    Misconfigured,
    /// Kueue has not decided about the HTCJob, or has withdrawn its quota.
    PendingEvaluation,
    /// Kueue cannot admit the HTCJob as things are: its queue does not exist, or is stopped.
    Inadmissible,
    /// Kueue finds no `ResourceFlavor` for the jobs.
    NoMatchingFlavor,
    /// Other workloads are being evicted for this HTCJob.
    WaitingForPreemptedWorkloads,
    /// Kueue has reserved quota for the HTCJob, and its admission checks are not complete.
    UnsatisfiedAdmissionChecks,
    /// No queue applies any more.
    NoQueue,
    /// The jobs left HTCondor's queue before their output was fetched.
    OutputLost,
    /// The jobs are being removed from HTCondor.
    Removing,
    /// The jobs are still there a while after their removal was requested.
    NotRemovedYet,
    /// HTCondor has none of the jobs left; or all of them were removed.
    Removed,
    /// Every job exited with 0.
    AllSucceeded,
    /// Some jobs did not exit with 0.
    JobsFailed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_earlier_versions_stored_are_known() {
        for (old, reason) in [
            ("Asking", Reason::QueryingHTCondor),
            ("GoOperator", Reason::LegacyJobsUnknown),
            ("Incomplete", Reason::AnswerIncomplete),
            ("Lost", Reason::JobsLost),
            ("NamespaceLimit", Reason::NamespaceLimitReached),
            ("NoSpace", Reason::OutputVolumeFull),
            ("Parallelism", Reason::ParallelismReached),
            ("Stopped", Reason::OperatorStopping),
        ] {
            assert_eq!((old.parse(), reason.to_string().parse()), (Ok(reason), Ok(reason)), "{old}");
        }
    }
}
