//! The transition table as generated files: Mermaid, SCXML and a Markdown table.

use std::fmt::Write as _;

use strum::IntoEnumIterator as _;

use super::phase::Phase;
use super::transitions::{TRANSITIONS, TransitionRule, Trigger};

/// One generated file of `statecharts/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Name of the file in the folder.
    pub name: &'static str,
    /// Contents of the file.
    pub contents: String,
}

/// Returns all files of `statecharts/`.
#[must_use]
pub fn files() -> Vec<File> {
    vec![
        File { name: "htcjob.mmd", contents: mermaid() },
        File { name: "overview.mmd", contents: overview() },
        File { name: "kubernetes.mmd", contents: of_pods() },
        File { name: "htcjob.scxml", contents: scxml() },
        File { name: "README.md", contents: readme() },
    ]
}

/// Draws the table as a Mermaid state diagram. Changes of conditions within a phase are left out.
#[must_use]
pub fn mermaid() -> String {
    let mut text = "stateDiagram-v2\n    direction LR\n".to_owned();
    for row in TRANSITIONS.iter().filter(|row| row.trigger != Trigger::ConditionChanged) {
        let _ = writeln!(text, "    {} --> {}: {}", drawn(row.from), drawn(row.to), row.trigger);
    }
    text
}

/// Draws the transitions that occur with backend Kubernetes.
#[must_use]
pub fn of_pods() -> String {
    let mut text = "stateDiagram-v2\n    direction LR\n".to_owned();
    // A Job that is Complete has indexes that have ended, and so have started.
    let happens = |row: &&TransitionRule| (row.from, row.trigger) != (Some(Phase::Submitted), Trigger::Succeeded);
    let drawn_row =
        |row: &&TransitionRule| row.trigger != Trigger::ConditionChanged && meaning_for_pods(row.trigger).is_some();
    for row in TRANSITIONS.iter().filter(drawn_row).filter(happens) {
        let _ = writeln!(text, "    {} --> {}: {}", drawn(row.from), drawn(row.to), row.trigger);
    }
    text
}

/// Draws phases and triggers for the README: one arrow for each pair of phases, none within a phase.
#[must_use]
pub fn overview() -> String {
    let mut arrows: Vec<(&TransitionRule, Vec<&str>)> = Vec::new();
    for row in TRANSITIONS.iter().filter(|row| row.from != row.to) {
        match arrows.iter_mut().find(|(first, _)| (first.from, first.to) == (row.from, row.to)) {
            Some((_, triggers)) => triggers.push(row.trigger.into()),
            None => arrows.push((row, vec![row.trigger.into()])),
        }
    }
    let mut text = "stateDiagram-v2\n    direction LR\n".to_owned();
    for (row, triggers) in arrows {
        let _ = writeln!(text, "    {} --> {}: {}", drawn(row.from), drawn(row.to), triggers.join(" or "));
    }
    text
}

/// Returns the name of a phase in a diagram; without one, the start or the end.
fn drawn(phase: Option<Phase>) -> String {
    phase.map_or_else(|| "[*]".to_owned(), |phase| phase.to_string())
}

/// Writes the table as SCXML (W3C), with events named after the triggers.
#[must_use]
pub fn scxml() -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<scxml xmlns=\"http://www.w3.org/2005/07/scxml\" version=\"1.0\" name=\"HTCJob\" initial=\"Unknown\">\n",
    );
    let mut state = |id: &str, phase: Option<Phase>| {
        let _ = writeln!(text, "  <state id=\"{id}\">");
        for row in TRANSITIONS.iter().filter(|row| row.from == phase) {
            let target = row.to.map_or_else(|| "Gone".to_owned(), |phase| phase.to_string());
            let kind = if row.from == row.to { " type=\"internal\"" } else { "" };
            let _ = writeln!(text, "    <transition event=\"{}\" target=\"{target}\"{kind}/>", row.trigger);
        }
        text.push_str("  </state>\n");
    };
    state("Unknown", None);
    for phase in Phase::iter() {
        state(phase.into(), Some(phase));
    }
    text.push_str("  <final id=\"Gone\"/>\n</scxml>\n");
    text
}

const fn meaning(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Guarded => "The finalizer is attached and the HTCJob is recorded in the ledger.",
        Trigger::Accepted => "HTCondor has accepted the first job, with its files.",
        Trigger::AllAccepted => "HTCondor has accepted all jobs, after it had accepted some of them earlier.",
        Trigger::Started => "The first job started.",
        Trigger::Succeeded => "Every job has ended and succeeded.",
        Trigger::Failed => "Every job has ended and at least one did not succeed.",
        Trigger::RanAgain => "HTCondor runs a job again that had ended.",
        Trigger::DeadlineExceeded => "activeDeadlineSeconds has passed. Jobs that have not ended are removed.",
        Trigger::MaxFailedIndexesExceeded => {
            "More jobs have failed than maxFailedIndexes allows. Jobs that have not ended are removed."
        }
        Trigger::ConditionChanged => "A condition changed, for example Held, Suspended, Tracked or OutputFetched.",
        Trigger::Deleted => "The HTCJob is being deleted.",
        Trigger::Gone => "HTCondor provably has none of the jobs. The finalizer is removed.",
    }
}

/// Returns the meaning with backend Kubernetes; none if the trigger does not occur there.
const fn meaning_for_pods(trigger: Trigger) -> Option<&'static str> {
    match trigger {
        Trigger::Guarded => Some("The finalizer is attached and the HTCJob is recorded in the ledger."),
        Trigger::Accepted => {
            Some("The Job is created, suspended, and recorded in the ledger. Only then it is resumed.")
        }
        Trigger::Started => Some("The first Pod started."),
        Trigger::Succeeded => Some("The Job is Complete."),
        Trigger::Failed => Some("The Job is Failed, or was deleted before it ended."),
        Trigger::DeadlineExceeded => Some("The Job has exceeded activeDeadlineSeconds."),
        Trigger::MaxFailedIndexesExceeded => Some("More indexes of the Job have failed than maxFailedIndexes allows."),
        Trigger::ConditionChanged => Some("A condition changed, for example Suspended, Stuck or Tracked."),
        Trigger::Deleted => Some("The HTCJob is being deleted."),
        Trigger::Gone => Some(
            "No Job was begun, or the API server has neither the Job nor any of its Pods. The finalizer is removed.",
        ),
        Trigger::AllAccepted | Trigger::RanAgain => None,
    }
}

fn table_row(row: &TransitionRule) -> String {
    let name = |phase: Option<Phase>| phase.map_or_else(|| "–".to_owned(), |phase| phase.to_string());
    let reason = row.reason.unwrap_or("the condition's reason");
    format!("| {} | {} | {} | {reason} | {} |\n", name(row.from), row.trigger, name(row.to), meaning(row.trigger))
}

/// Writes the diagrams and tables for people.
#[must_use]
pub fn readme() -> String {
    let mut text = format!(
        "# The state machine of an HTCJob\n\nGenerated by `make generate` from the table in `crates/machine/src/transitions.rs`. Do not edit.\nTests check that these files match the table, and that `decide` makes no other transition.\n\n```mermaid\n{}```\n\n## Phases\n\n| phase | meaning |\n| --- | --- |\n",
        mermaid()
    );
    for phase in Phase::iter() {
        let _ = writeln!(text, "| {phase} | {} |", phase.meaning());
    }
    text.push_str("\n## Transitions\n\nEach transition is recorded as one row in the ledger's journal and published as one Event.\n\n| from | trigger | to | Event reason | why |\n| --- | --- | --- | --- | --- |\n");
    text.extend(TRANSITIONS.iter().map(table_row));
    let _ = write!(
        text,
        "\n## With backend Kubernetes\n\nThe same table; some rows do not occur.\n\n```mermaid\n{}```\n\n| phase | meaning |\n| --- | --- |\n",
        of_pods()
    );
    for phase in Phase::iter() {
        let _ = writeln!(text, "| {phase} | {} |", phase.meaning_for_pods());
    }
    text.push_str("\n| trigger | why |\n| --- | --- |\n");
    for trigger in Trigger::iter() {
        if let Some(why) = meaning_for_pods(trigger) {
            let _ = writeln!(text, "| {trigger} | {why} |");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn readme_has_the_overview_chart() {
        let readme = include_str!("../../../README.md");
        let block = format!("```mermaid\n{}```\n", super::overview());
        assert!(readme.contains(&block), "README.md does not show statecharts/overview.mmd as it is: copy it there");
    }
}
