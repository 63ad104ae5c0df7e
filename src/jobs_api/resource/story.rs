//! Story of an `HTCJob` as an object of the API: [`HTCStory`], from the ledger's journal.

use htc_api::htcproc::API_VERSION;
use htc_ledger::StoryRow;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::list::{Form, Include};
use super::table;
use crate::backends::procs::Parent;

/// Name of the resource.
pub const STORIES: &str = "htcstories";

/// What has happened to an HTCJob, step by step. It has the name of the HTCJob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HTCStory {
    /// Name, namespace and uid.
    #[serde(skip)]
    #[schemars(skip)]
    metadata: Value,
    /// Number of transitions before the first in this list. The operator keeps the last 200.
    pub earlier_transitions: i64,
    /// The transitions, the oldest first.
    pub transitions: Vec<StoryTransition>,
}

/// Something that has happened to an HTCJob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoryTransition {
    /// When it happened, on the operator's clock.
    pub time: String,
    /// How long after the transition before it, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_seconds: Option<i64>,
    /// What happened, one word: the reason of its Event.
    pub reason: String,
    /// What happened, in a sentence: the message of its Event.
    pub message: String,
    /// The phase before it. Absent if the operator did not know the HTCJob yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The phase after it. Absent once HTCondor has none of the jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether it needs attention.
    pub warning: bool,
    /// How many jobs had not ended after it.
    pub active: i64,
    /// How many jobs had succeeded.
    pub succeeded: i64,
    /// How many jobs had failed.
    pub failed: i64,
}

impl HTCStory {
    /// Returns the story of this `HTCJob`, from the rows of its journal in their order.
    #[must_use]
    pub fn of(parent: &Parent, rows: Vec<StoryRow>) -> Self {
        let earlier_transitions = rows.first().map_or(0, |first| first.seq - 1);
        let mut before = None;
        let transitions = rows.into_iter().map(|row| {
            let pause = before.replace(row.time).map(|before| (row.time.0 - before.0) / 1000);
            let time = jiff::Timestamp::from_millisecond(row.time.0).unwrap_or_default();
            StoryTransition {
                time: time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                pause_seconds: pause,
                reason: row.reason,
                message: row.detail,
                from: row.from,
                to: row.to,
                warning: row.warning,
                active: row.active,
                succeeded: row.succeeded,
                failed: row.failed,
            }
        });
        Self { metadata: metadata(parent), earlier_transitions, transitions: transitions.collect() }
    }

    /// Returns the answer in this form: a table has a row for each transition.
    #[must_use]
    pub fn answer(&self, form: Form) -> Value {
        let include = match form {
            Form::Objects => return self.object(),
            Form::Table(include) => include,
        };
        let object = match include {
            Include::None => Value::Null,
            Include::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": self.metadata,
            }),
            Include::Object => self.object(),
        };
        let column = |name, format, description| json!({ "name": name, "type": "string", "format": format, "description": description, "priority": 0 });
        let rows = self.transitions.iter().map(|step| {
            let pause = step.pause_seconds.map(table::human).unwrap_or_default();
            let message = step.message.lines().next().unwrap_or_default();
            json!({
                "cells": [self.metadata["name"], step.time, pause, step.reason, message],
                "object": object,
            })
        });
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {},
            "columnDefinitions": [
                column("Name", "name", "name of the HTCJob"),
                column("Time", "", "when it happened"),
                column("Pause", "", "how long after the transition before it"),
                column("Reason", "", "what happened, one word"),
                column("Message", "", "what happened, in a sentence"),
            ],
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    fn object(&self) -> Value {
        let mut object = json!({ "apiVersion": API_VERSION, "kind": "HTCStory", "metadata": self.metadata });
        object["earlierTransitions"] = self.earlier_transitions.into();
        object["transitions"] = json!(self.transitions);
        object
    }
}

fn metadata(parent: &Parent) -> Value {
    let mut metadata = json!({
        "name": parent.name, "namespace": parent.namespace, "uid": htc_api::htcproc::uid(parent.uid.as_str(), "story"),
    });
    if let Some(created) = &parent.created {
        metadata["creationTimestamp"] = created.clone().into();
    }
    metadata
}

#[cfg(test)]
mod tests {
    use htc_machine::ids::{Timestamp, Uid};

    use super::*;

    fn row(seq: i64, time: i64, reason: &str) -> StoryRow {
        StoryRow {
            seq,
            time: Timestamp(time),
            from: (seq > 1).then(|| "Pending".to_owned()),
            to: Some("Submitted".to_owned()),
            reason: reason.to_owned(),
            detail: format!("{reason}!\nmore"),
            warning: false,
            active: 2,
            succeeded: 1,
            failed: 0,
        }
    }

    #[test]
    fn each_transition_has_its_time_and_the_pause_before_it() {
        let parent = Parent { name: "sums".to_owned(), uid: Uid::from("abc"), ..Parent::default() };
        let story = HTCStory::of(&parent, vec![row(7, 100_900, "Submitted"), row(8, 163_100, "Running")]);
        let object = story.answer(Form::Objects);
        assert_eq!((&object["kind"], &object["metadata"]["name"]), (&json!("HTCStory"), &json!("sums")));
        assert_eq!(object["earlierTransitions"], 6);
        let steps = object["transitions"].as_array().unwrap();
        assert_eq!(steps[0]["time"], "1970-01-01T00:01:40Z");
        assert_eq!((&steps[0]["pauseSeconds"], &steps[1]["pauseSeconds"]), (&Value::Null, &json!(62)));
        assert_eq!((&steps[1]["from"], &steps[1]["message"]), (&json!("Pending"), &json!("Running!\nmore")));

        let table = story.answer(Form::Table(Include::Metadata));
        assert_eq!(table["rows"][1]["cells"], json!(["sums", "1970-01-01T00:02:43Z", "62s", "Running", "Running!"]));
        assert_eq!(table["rows"][1]["object"]["metadata"]["name"], "sums");
        assert_eq!(HTCStory::of(&parent, Vec::new()).answer(Form::Objects)["earlierTransitions"], 0);
    }
}
