//! Commands by which HTCondor runs a job again elsewhere if its node was at fault.
//!
//! `job.sh` ends itself with a signal then ([`JobShEnd`]). HTCondor holds the job for a pause, releases it by itself, and
//! does not match it with the same machine for a while. What it needs for that is in the text of the hold, which becomes
//! `LastHoldReason`: the number of such runs, when the last one ended, and on which machines they were. Nothing is
//! counted in attributes, which only the schedd's own tools can change. A hold for something else begins a new count.

use htc_machine::payload_failure::{JobShEnd, PayloadFailure};
use strum::IntoEnumIterator as _;

use super::ClusterSettings;

/// The site's rules for runs that end by faults of their nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFaultRules {
    /// How often a job is run again after such runs. 0: never.
    pub retries: u32,
    /// Pause before the first of these runs, in seconds. Before the n-th it is n² times as long.
    pub pause: u32,
}

/// Pause after a refusal of the registry, in pauses after other faults: limits of registries last for minutes or hours.
const REGISTRY: u32 = 10;
/// How long the machines are avoided after the first fault, in pauses, and n² times as long after the n-th. Not for ever:
/// there may be no other machine. Long: a machine that fails each job at once is free when all others are busy, and jobs
/// that wait in a long queue would come back to it.
const AVOIDED: u32 = 60;
/// `DEFAULT_JOB_MAX_RETRIES`, if a command that implies retries is there without `max_retries`.
const DEFAULT_RETRIES: &str = "2";

/// `job.sh` has ended itself. Its payload exits with a code, whatever ends it.
const OWN_END: &str = "HTCOwnEnd";
/// The run ended by a fault of its node.
const FAULT: &str = "HTCNodeFault";
/// The last hold was for a fault of a node.
const HAD_FAULTS: &str = "HTCHadNodeFaults";
/// Number of runs in a row that ended by faults of their nodes.
const FAULTS: &str = "HTCNodeFaults";

/// ClassAd expression for jobs that are not matched with machines of their last faults.
pub(super) fn avoidance(rules: NodeFaultRules) -> Option<String> {
    let NodeFaultRules { retries, pause } = rules;
    let avoided = AVOIDED.saturating_mul(pause);
    (retries > 0).then(|| {
        let registry = by_registry("LastHoldReason");
        format!(
            "!({HAD_FAULTS} && !{registry} && member(TARGET.Machine, split(split(LastHoldReason, \" \")[8], \",\")) && \
             time() < int(split(LastHoldReason, \" \")[6]) + {avoided} * {FAULTS} * {FAULTS})"
        )
    })
}

/// ClassAd expression for a hold for which not the machine but the registry was the cause.
fn by_registry(reason: &str) -> String {
    format!("regexp(\" with {};\", {reason})", PayloadFailure::RegistryBusy.code())
}

/// Renders the commands, except `requirements`. They include the user's own commands and those of the site: an end by
/// `job.sh` is none of a payload, so theirs do not apply to it.
pub(super) fn lines(common: &ClusterSettings) -> String {
    let wanted = |command| common.options.command(command).or(common.site_defaults.command(command));
    let NodeFaultRules { retries, pause } = common.node_faults;
    let (first, last) = JobShEnd::SIGNALS.into_inner();
    let faults: Vec<String> = PayloadFailure::iter()
        .map(|failure| JobShEnd { failure, after_payload: false })
        .filter(|end| end.is_node_fault())
        .map(|end| end.signal().to_string())
        .collect();
    let text = "^Node fault [0-9]+ of [0-9]+ at [0-9]+ on [^ ]+ with ";
    let mut lines = vec![format!(
        "job_machine_attrs = Machine\n\
         MY.{OWN_END} = ExitBySignal =?= true && ExitSignal >= {first} && ExitSignal <= {last}\n\
         MY.{FAULT} = {OWN_END} && member(ExitSignal, {{{}}})\n\
         MY.{HAD_FAULTS} = regexp(\"{text}\", LastHoldReason ?: \"\")\n\
         MY.{FAULTS} = ifThenElse({HAD_FAULTS}, int(split(LastHoldReason, \" \")[2]), 0)\n",
        faults.join(",")
    )];
    let held = match wanted("on_exit_hold") {
        Some(expression) => format!("(!{OWN_END} && ({expression}))"),
        None => "false".to_owned(),
    };
    lines.push(format!("on_exit_hold = ({FAULT} && {FAULTS} < {retries}) || {held}\n"));
    lines.push(format!(
        "on_exit_hold_reason = ifThenElse({FAULT}, strcat(\"Node fault \", {FAULTS} + 1, \" of {}\", \" at \", time(), \" on \", \
         ifThenElse({HAD_FAULTS}, strcat(split(LastHoldReason, \" \")[8], \",\"), \"\"), MachineAttrMachine0 ?: \"?\", \" with \", ExitSignal + 200, \
         \"; this is no failure of the job, which runs again after a pause\"), {})\n",
        retries + 1,
        wanted("on_exit_hold_reason").unwrap_or("undefined")
    ));
    let kept = retries_kept(common);
    if wanted("on_exit_remove").is_some() || kept.is_some() {
        // condor_submit adds the conditions of `max_retries` as alternatives.
        let others = wanted("on_exit_remove").map(|expression| format!(" || ({expression})")).unwrap_or_default();
        lines.push(format!("on_exit_remove = {OWN_END}{others}\n"));
    }
    if let Some(kept) = kept {
        lines.push(format!("MY.JobMaxRetries = {kept} + (NumHoldsByReason.JobPolicy ?: 0)\n"));
    }
    let held = format!("HoldReasonCode == 3 && regexp(\"{text}\", HoldReason ?: \"\")");
    let number = "int(split(HoldReason, \" \")[2])";
    let factor = format!("ifThenElse({}, {REGISTRY}, 1)", by_registry("HoldReason"));
    let due = format!("time() - EnteredCurrentStatus >= {pause} * {factor} * {number} * {number}");
    let others =
        wanted("periodic_release").map(|expression| format!(" || (!({held}) && ({expression}))")).unwrap_or_default();
    lines.push(format!("periodic_release = ({held} && {due}){others}\n"));
    lines.concat()
}

/// Returns the retries of payloads that fail, if any command asks for them. Runs that ended by faults of nodes are not
/// counted: HTCondor counts all ends in `NumJobCompletions`, and all holds by a job's own policy.
fn retries_kept<'a>(common: &ClusterSettings<'a>) -> Option<&'a str> {
    let wanted = |command| common.options.command(command).or(common.site_defaults.command(command));
    let implied = || ["success_exit_code", "retry_until"].into_iter().find_map(wanted).map(|_| DEFAULT_RETRIES);
    wanted("max_retries").or_else(implied)
}
