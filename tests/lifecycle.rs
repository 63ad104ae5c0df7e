//! From `kubectl apply` to the output: what users see when all goes well, when their script fails, and when somebody
//! holds or removes their jobs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod bed;

#[path = "lifecycle/by_hand.rs"]
mod by_hand;
#[path = "lifecycle/names.rs"]
mod names;
#[path = "lifecycle/outcomes.rs"]
mod outcomes;
#[path = "lifecycle/story.rs"]
mod story;
#[path = "lifecycle/suspend.rs"]
mod suspend;

use bed::{Bed, Namespace, UNTIL_LET_GO, condition, ids};
use serde_json::Value;
use testbed::wait_for;

impl Namespace<'_> {
    /// Reasons of the object's Events once they end with `last`, without waiting for more.
    fn story(&self, name: &str, last: &str) -> Vec<String> {
        wait_for(&format!("the Events of HTCJob {name} to end with {last}"), bed::PATIENCE, || {
            let journal = self.journal(name);
            let complete = journal.iter().zip(1..).all(|((number, ..), place)| *number == place);
            let reasons: Vec<String> = journal.into_iter().map(|(_, reason, _)| reason).collect();
            let ends = complete && reasons.last().is_some_and(|reason| reason == last);
            if ends { Ok(reasons) } else { Err(format!("{reasons:?}")) }
        })
        .unwrap_or_else(|error| panic!("{error}\n{:#}\nthe operator's log:\n{}", self.get(name), self.bed.log()))
    }

    /// The message of the Event with this reason, which there must be exactly once.
    fn told(&self, name: &str, reason: &str) -> String {
        self.wait_event(name, reason);
        let mut messages: Vec<String> =
            self.events(name).into_iter().filter(|(other, _)| other == reason).map(|(_, message)| message).collect();
        assert_eq!(messages.len(), 1, "Events {reason} of {name}: {messages:?}");
        messages.remove(0)
    }

    /// Waits until that many of its jobs run; the object.
    fn wait_running(&self, name: &str, jobs: u32) -> Value {
        self.wait(name, &format!("{jobs} running"), |object| object["status"]["running"] == jobs)
    }
}

/// Active, succeeded, failed; -1 as long as there is no status.
fn counts(object: &Value) -> [i64; 3] {
    ["active", "succeeded", "failed"].map(|count| object["status"][count].as_i64().unwrap_or(-1))
}

/// Status, reason and message of a condition; empty if there is none.
fn told_in(object: &Value, kind: &str) -> [String; 3] {
    ["status", "reason", "message"]
        .map(|part| condition(object, kind).map_or("", |condition| condition[part].as_str().unwrap()).to_owned())
}

/// What the `HTCJob`'s job wrote into a file of its output folder.
fn read(here: &Namespace<'_>, name: &str, index: u32, file: &str) -> String {
    here.wait_output(name);
    let path = here.output(name, index).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A constraint for all jobs of one object.
fn of(uid: &str) -> String {
    format!("HTCJobUID == \"{uid}\"")
}

/// An attribute that is one word, of the only job in history that the constraint has.
fn in_history(bed: &Bed, constraint: &str, attributes: &[&str]) -> Vec<String> {
    let mut rows = bed.history(constraint, attributes);
    assert_eq!(rows.len(), 1, "{constraint}: {rows:?}");
    rows.remove(0)
}
