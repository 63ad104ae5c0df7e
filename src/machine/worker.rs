//! The order in which a worker carries out a batch of requests. The workers and the model checker both step through it.

use super::rules::Rules;

/// One step of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Leave out what was cancelled, and check that this operator may act.
    CheckFence,
    /// Make the intents of the whole batch durable, in one transaction.
    CommitIntents,
    /// Check the fence again: time has passed.
    CheckFenceAgain,
    /// Run the tool.
    RunTool,
    /// Make the results durable.
    CommitResults,
    /// Close the intents as *not run*.
    CommitNotRun,
    /// Resolve the requests and wake their objects.
    Wake,
}

/// The first step, once a batch is taken.
#[must_use]
pub const fn first() -> Step {
    Step::CheckFence
}

/// The step after `step`, which went well or not. A crash can come between any two of them.
#[must_use]
pub const fn next(step: Step, went_well: bool, rules: &Rules) -> Option<Step> {
    Some(match (step, went_well) {
        (Step::CheckFence, true) if rules.intent_first => Step::CommitIntents,
        (Step::CommitIntents, true) if rules.fence_after_intent => Step::CheckFenceAgain,
        (Step::CheckFence | Step::CommitIntents | Step::CheckFenceAgain, true) => Step::RunTool,
        (Step::CheckFenceAgain, false) => Step::CommitNotRun,
        (Step::RunTool, _) => Step::CommitResults,
        (Step::CheckFence | Step::CommitIntents, false) | (Step::CommitResults | Step::CommitNotRun, _) => Step::Wake,
        (Step::Wake, _) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(failing: Option<Step>) -> Vec<Step> {
        let mut steps = vec![first()];
        while let Some(step) = next(*steps.last().unwrap(), steps.last().copied() != failing, &Rules::ALL) {
            steps.push(step);
        }
        steps
    }

    #[test]
    fn the_tool_runs_only_between_durable_intents_and_durable_results() {
        use Step::{CheckFence, CheckFenceAgain, CommitIntents, CommitNotRun, CommitResults, RunTool, Wake};
        assert_eq!(path(None), [CheckFence, CommitIntents, CheckFenceAgain, RunTool, CommitResults, Wake]);
        assert_eq!(path(Some(CheckFence)), [CheckFence, Wake]);
        assert_eq!(path(Some(CommitIntents)), [CheckFence, CommitIntents, Wake]);
        assert_eq!(path(Some(CheckFenceAgain)), [CheckFence, CommitIntents, CheckFenceAgain, CommitNotRun, Wake]);
        assert_eq!(path(Some(RunTool)), [CheckFence, CommitIntents, CheckFenceAgain, RunTool, CommitResults, Wake]);
    }
}
