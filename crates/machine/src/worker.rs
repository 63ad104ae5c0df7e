//! The order in which a worker carries out a batch of requests. The workers and the model checker both step through it.

use super::rules::Rules;

/// One step of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerStep {
    /// Drop cancelled requests, and check that this operator may act.
    CheckFence,
    /// Commit the intents of the whole batch, in one transaction.
    CommitIntents,
    /// Check the fence again, because time has passed.
    CheckFenceAgain,
    /// Run the tool.
    RunTool,
    /// Commit the results.
    CommitResults,
    /// Close the intents as *not run*.
    CommitNotRun,
    /// Resolve the requests and trigger reconciles of their objects.
    Wake,
}

/// Returns the first step for a batch.
#[must_use]
pub const fn first() -> WorkerStep {
    WorkerStep::CheckFence
}

/// Returns the step after `step`, which succeeded or not. A crash can happen between any two of them.
#[must_use]
pub const fn next(step: WorkerStep, went_well: bool, rules: &Rules) -> Option<WorkerStep> {
    Some(match (step, went_well) {
        (WorkerStep::CheckFence, true) if rules.intent_first => WorkerStep::CommitIntents,
        (WorkerStep::CommitIntents, true) if rules.fence_after_intent => WorkerStep::CheckFenceAgain,
        (WorkerStep::CheckFence | WorkerStep::CommitIntents | WorkerStep::CheckFenceAgain, true) => WorkerStep::RunTool,
        (WorkerStep::CheckFenceAgain, false) => WorkerStep::CommitNotRun,
        (WorkerStep::RunTool, _) => WorkerStep::CommitResults,
        (WorkerStep::CheckFence | WorkerStep::CommitIntents, false)
        | (WorkerStep::CommitResults | WorkerStep::CommitNotRun, _) => WorkerStep::Wake,
        (WorkerStep::Wake, _) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(failing: Option<WorkerStep>) -> Vec<WorkerStep> {
        let mut steps = vec![first()];
        while let Some(step) = next(*steps.last().unwrap(), steps.last().copied() != failing, &Rules::ALL) {
            steps.push(step);
        }
        steps
    }

    #[test]
    fn tool_runs_only_between_durable_intents_and_durable_results() {
        use WorkerStep::{CheckFence, CheckFenceAgain, CommitIntents, CommitNotRun, CommitResults, RunTool, Wake};
        assert_eq!(path(None), [CheckFence, CommitIntents, CheckFenceAgain, RunTool, CommitResults, Wake]);
        assert_eq!(path(Some(CheckFence)), [CheckFence, Wake]);
        assert_eq!(path(Some(CommitIntents)), [CheckFence, CommitIntents, Wake]);
        assert_eq!(path(Some(CheckFenceAgain)), [CheckFence, CommitIntents, CheckFenceAgain, CommitNotRun, Wake]);
        assert_eq!(path(Some(RunTool)), [CheckFence, CommitIntents, CheckFenceAgain, RunTool, CommitResults, Wake]);
    }
}
