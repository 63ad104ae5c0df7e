//! Named points before and after every durable write and every external effect. A test kills the operator at one of
//! them, and may remove data that was not synchronised by then. Only the cargo feature `fail-points` compiles them in,
//! and it is for tests.

use strum::{EnumIter, EnumString, IntoStaticStr};

/// Point at which the operator can be killed. At `Before…`, no part of the step has happened. At `After…`, all of it
/// has happened, but no other part of the program knows yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumIter, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say it, and the tests list them")]
pub enum Point {
    // The ledger: its file when it is first made, then every kind of transaction.
    BeforeLedgerMade,
    /// The tables exist, but the ledger's id does not.
    LedgerWithoutId,
    AfterLedgerMade,
    BeforeDecisionSaved,
    AfterDecisionSaved,
    BeforeSubmitIntents,
    AfterSubmitIntents,
    BeforeOtherIntents,
    AfterOtherIntents,
    BeforeSubmitResults,
    AfterSubmitResults,
    BeforeSubmitterGone,
    AfterSubmitterGone,
    BeforeOtherResults,
    AfterOtherResults,
    BeforeNotRun,
    AfterNotRun,
    BeforeGrants,
    AfterGrants,
    BeforeLogsSaved,
    AfterLogsSaved,
    BeforeEventsMarked,
    AfterEventsMarked,
    BeforeLedgerAnew,
    AfterLedgerAnew,
    BeforeCallbackStored,
    AfterCallbackStored,
    // The data folder.
    BeforeSandboxWritten,
    AfterSandboxWritten,
    BeforeOutputFolders,
    AfterOutputFolders,
    // HTCondor's tools: before they are started, and when they have ended.
    BeforeCondorSubmit,
    /// The tool runs and has not read anything yet.
    CondorSubmitStarted,
    /// The tool has got all its input and can finish without the operator.
    CondorSubmitFed,
    AfterCondorSubmit,
    BeforeCondorRm,
    AfterCondorRm,
    BeforeCondorHold,
    AfterCondorHold,
    BeforeCondorRelease,
    AfterCondorRelease,
    BeforeCondorTransferData,
    AfterCondorTransferData,
    BeforeCondorQedit,
    AfterCondorQedit,
    BeforeCondorDrain,
    AfterCondorDrain,
    // Kubernetes.
    BeforeLeaseTaken,
    AfterLeaseTaken,
    BeforeLeaseRenewed,
    AfterLeaseRenewed,
    BeforeLeaseReleased,
    AfterLeaseReleased,
    BeforeFinalizerAttached,
    AfterFinalizerAttached,
    BeforeFinalizerReleased,
    AfterFinalizerReleased,
    BeforeObjectDeleted,
    AfterObjectDeleted,
    // Jobs of Kubernetes, and what they mount.
    BeforeConfigMapCreated,
    AfterConfigMapCreated,
    BeforeJobCreated,
    AfterJobCreated,
    BeforeJobAdjusted,
    AfterJobAdjusted,
    BeforeJobDeleted,
    AfterJobDeleted,
    BeforePodDeleted,
    AfterPodDeleted,
    BeforeStatusWritten,
    AfterStatusWritten,
    BeforeEventWritten,
    AfterEventWritten,
    // Workloads of Kueue.
    BeforeWorkloadMade,
    AfterWorkloadMade,
    BeforeWorkloadChanged,
    AfterWorkloadChanged,
    // Pools.
    BeforePoolFinalizerAttached,
    AfterPoolFinalizerAttached,
    BeforePoolFinalizerReleased,
    AfterPoolFinalizerReleased,
    // Managed pools.
    BeforePoolObjectMade,
    AfterPoolObjectMade,
    BeforeWorkerMade,
    AfterWorkerMade,
    BeforeWorkerMarked,
    AfterWorkerMarked,
    BeforeWorkerDeleted,
    AfterWorkerDeleted,
}

/// Points before and after each of HTCondor's tools that changes something.
#[cfg(feature = "fail-points")]
const TOOLS: &[(&str, Point, Point)] = &[
    ("condor_submit", Point::BeforeCondorSubmit, Point::AfterCondorSubmit),
    ("condor_rm", Point::BeforeCondorRm, Point::AfterCondorRm),
    ("condor_hold", Point::BeforeCondorHold, Point::AfterCondorHold),
    ("condor_release", Point::BeforeCondorRelease, Point::AfterCondorRelease),
    ("condor_transfer_data", Point::BeforeCondorTransferData, Point::AfterCondorTransferData),
    ("condor_qedit", Point::BeforeCondorQedit, Point::AfterCondorQedit),
    ("condor_drain", Point::BeforeCondorDrain, Point::AfterCondorDrain),
];

/// Runs `work` between the point before and the point after it.
pub async fn around<T>(before: Point, work: impl Future<Output = T>, after: Point) -> T {
    at(before);
    let result = work.await;
    at(after);
    result
}

#[cfg(not(feature = "fail-points"))]
mod without {
    use super::Point;

    /// Does nothing: the operator was built without fail points.
    #[inline]
    pub const fn at(_point: Point) {}

    /// Does nothing.
    #[inline]
    pub const fn before_tool(_tool: &str) {}

    /// Does nothing.
    #[inline]
    pub const fn after_tool(_tool: &str) {}
}
#[cfg(not(feature = "fail-points"))]
pub use without::{after_tool, at, before_tool};

#[cfg(feature = "fail-points")]
mod with {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    use super::{Point, TOOLS};

    /// Point of the kill, and at which passage of it, counted from 1.
    static KILL_AT: LazyLock<Option<(Point, u32)>> = LazyLock::new(|| {
        let text = std::env::var("HTC_KILL_AT").ok()?;
        let parsed = parse(&text);
        if parsed.is_none() {
            tracing::error!(value = %text, "HTC_KILL_AT invalid, write `name` or `name:n` with n from 1");
        }
        parsed
    });

    static PASSED: AtomicU32 = AtomicU32::new(0);

    pub(super) fn parse(text: &str) -> Option<(Point, u32)> {
        let (name, passage) = text.split_once(':').unwrap_or((text, "1"));
        Some((name.parse().ok()?, passage.parse().ok().filter(|passage| *passage > 0)?))
    }

    /// Kills this process with SIGKILL if the environment variable `HTC_KILL_AT` names this point and this passage.
    pub fn at(point: Point) {
        let Some((wanted, passage)) = *KILL_AT else { return };
        if wanted != point || PASSED.fetch_add(1, Ordering::SeqCst) + 1 < passage {
            return;
        }
        // Tests look for the point and its passage in this line.
        tracing::warn!("killed at {}:{passage}", <&str>::from(point));
        let _ = kill_process(getpid(), Signal::KILL);
        // Stops here until the signal arrives.
        loop {
            std::thread::park();
        }
    }

    pub fn before_tool(tool: &str) {
        TOOLS.iter().filter(|(name, ..)| *name == tool).for_each(|(_, before, _)| at(*before));
    }

    pub fn after_tool(tool: &str) {
        TOOLS.iter().filter(|(name, ..)| *name == tool).for_each(|(.., after)| at(*after));
    }
}
#[cfg(feature = "fail-points")]
pub use with::{after_tool, at, before_tool};

#[cfg(all(test, feature = "fail-points"))]
mod tests {
    use super::*;

    #[test]
    fn fail_point_is_parsed_with_its_pass_number() {
        assert_eq!(with::parse("after-condor-rm"), Some((Point::AfterCondorRm, 1)));
        assert_eq!(with::parse("before-decision-saved:3"), Some((Point::BeforeDecisionSaved, 3)));
        for wrong in ["", "after-condor-q", "after-condor-rm:0", "after-condor-rm:x"] {
            assert_eq!(with::parse(wrong), None, "{wrong}");
        }
    }
}
