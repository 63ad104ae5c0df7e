//! The `HTCJob`s of one test: made, looked at, waited for.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use testbed::wait_for;

use super::watch::Watch;
use super::{Bed, PATIENCE};

/// A payload that runs until [`Bed::open_gate`].
pub const UNTIL_LET_GO: &str = "until [ -e go ]; do sleep 0.3; done";

/// The `HTCJob`s of one test.
pub struct Namespace<'a> {
    pub bed: &'a Bed,
    pub name: String,
}

/// An `HTCJob` to be created: image `centos` and command `bash`, unless its spec says otherwise.
pub fn htcjob(name: &str, source: &str) -> Value {
    serde_json::json!({
        "apiVersion": "htc.cern.ch/v1alpha1",
        "kind": "HTCJob",
        "metadata": { "name": name },
        "spec": { "name": name, "script": { "image": "centos", "command": "bash", "source": source } },
    })
}

/// An `HTCJob` with this `spec.container`.
pub fn htcjob_of_container(name: &str, container: &serde_json::Value) -> serde_json::Value {
    let mut object = htcjob(name, "");
    object["spec"] = serde_json::json!({ "container": container });
    object
}

impl Namespace<'_> {
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap()
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> testbed::Result<String> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments);
        self.bed.kube.kubectl_ok(&all)
    }

    /// Creates an object; its uid.
    pub fn create(&self, object: &Value) -> String {
        let mut object = object.clone();
        object["metadata"]["namespace"] = self.name.clone().into();
        let made = self.bed.reader.create(&self.htcjobs(), &object).unwrap();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Creates objects, one right after the other.
    pub fn create_all(&self, objects: &[Value]) {
        for object in objects {
            self.create(object);
        }
    }

    pub fn uid(&self, name: &str) -> String {
        self.get(name)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub fn get(&self, name: &str) -> Value {
        self.find(name).unwrap_or_else(|| panic!("there is no HTCJob {name}"))
    }

    fn find(&self, name: &str) -> Option<Value> {
        self.bed.reader.object(&self.htcjobs(), name)
    }

    /// One of the jobs, with its index, as the jobs API shows it.
    pub fn proc(&self, name: &str) -> Value {
        self.bed.reader.object(&self.procs(), name).unwrap_or_else(|| panic!("there is no HTCProc {name}"))
    }

    /// Where the jobs API has its jobs.
    pub fn procs(&self) -> String {
        format!("/apis/procs.htc.cern.ch/v1alpha1/namespaces/{}/htcprocs", self.name)
    }

    fn htcjobs(&self) -> String {
        format!("/apis/htc.cern.ch/v1alpha1/namespaces/{}/htcjobs", self.name)
    }

    pub fn all(&self) -> Vec<Value> {
        self.bed.reader.objects(&self.htcjobs())
    }

    /// Follows all objects, as the operator reaches the API server.
    pub fn watch(&self) -> Watch {
        Watch::new(&self.bed.kubeconfig, &self.name)
    }

    /// Waits until the object is as `wanted` says; the object.
    pub fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = self.get(name);
        // Containers start one after another.
        let jobs = last["spec"]["queue"].as_u64().unwrap_or(1).min(2000);
        let result = wait_for(&format!("HTCJob {name}: {what}"), PATIENCE + Duration::from_secs(jobs), || {
            last = self.get(name);
            wanted(&last).then(|| last.clone())
        });
        result.unwrap_or_else(|error| {
            panic!(
                "{error}\nits last state: {last:#}\nits events:\n{}\nthe operator's log:\n{}",
                self.events_text(name),
                self.bed.log()
            )
        })
    }

    pub fn wait_phase(&self, name: &str, phase: &str) -> Value {
        self.wait(name, &format!("phase {phase}"), |object| object["status"]["phase"] == phase)
    }

    /// Waits for Complete or Failed; the object.
    pub fn wait_ended(&self, name: &str) -> Value {
        self.wait(name, "Complete or Failed", |object| is_true(object, "Complete") || is_true(object, "Failed"))
    }

    /// Opens the gate of its jobs, whenever they come to it, until it has ended; the object.
    pub fn let_go(&self, name: &str) -> Value {
        let uid = self.uid(name);
        self.wait(name, "Complete or Failed, with the gate open", |object| {
            self.bed.open_gate(&uid);
            is_true(object, "Complete") || is_true(object, "Failed")
        })
    }

    /// Waits until the output of an object is here, if it still exists: `Complete` does not wait for a second try.
    pub fn wait_output(&self, name: &str) {
        if self.find(name).is_some() {
            self.wait(name, "its output", |object| is_true(object, "OutputFetched"));
        }
    }

    pub fn suspend(&self, name: &str, suspend: bool) {
        self.merge(name, &serde_json::json!({ "spec": { "suspend": suspend } }));
    }

    /// Merges a patch into an object.
    pub fn merge(&self, name: &str, patch: &Value) {
        self.bed.reader.merge(&self.htcjobs(), name, patch).unwrap();
    }

    /// Sets an annotation such as `htc.cern.ch/abandon` to `true`.
    pub fn annotate(&self, name: &str, annotation: &str) {
        self.merge(name, &serde_json::json!({ "metadata": { "annotations": { annotation: "true" } } }));
    }

    /// Deletes all objects, and does not wait.
    pub fn begin_delete_all(&self) {
        for object in self.all() {
            self.begin_delete(object["metadata"]["name"].as_str().unwrap());
        }
    }

    /// Deletes an object.
    pub fn begin_delete(&self, name: &str) {
        self.begin_remove("htcjob", name);
    }

    /// Deletes an object and waits until it is gone.
    pub fn delete(&self, name: &str) {
        self.begin_delete(name);
        self.wait_gone(name);
    }

    /// Deletes an object and takes its finalizers away: it is gone, and nobody asked the operator.
    pub fn force_away(&self, name: &str) {
        self.begin_delete(name);
        self.merge(name, &serde_json::json!({ "metadata": { "finalizers": null } }));
        self.wait_gone(name);
    }

    pub fn wait_gone(&self, name: &str) {
        let gone = wait_for(&format!("HTCJob {name} to be gone"), PATIENCE, || self.find(name).is_none());
        gone.unwrap_or_else(|error| panic!("{error}\n{:#}\nthe operator's log:\n{}", self.get(name), self.bed.log()));
    }

    /// The Events of all objects.
    pub fn all_events(&self) -> Vec<Value> {
        self.bed.reader.objects(&format!("/api/v1/namespaces/{}/events", self.name))
    }

    /// Reason and message of the object's Events, oldest first.
    pub fn events(&self, name: &str) -> Vec<(String, String)> {
        self.journal(name).into_iter().map(|(_, reason, message)| (reason, message)).collect()
    }

    /// Number, reason and message of the object's Events, oldest first. They are numbered from 1, and posted side by side.
    pub fn journal(&self, name: &str) -> Vec<(i64, String, String)> {
        let mut events: Vec<(i64, String, String)> = self
            .all_events()
            .iter()
            .filter(|event| event["involvedObject"]["name"] == name)
            .map(|event| {
                let seq = event["metadata"]["name"].as_str().unwrap().rsplit('.').next().unwrap().parse().unwrap();
                (seq, event["reason"].as_str().unwrap().to_owned(), event["message"].as_str().unwrap().to_owned())
            })
            .collect();
        events.sort();
        events
    }

    /// Waits until the object's Events have `reason`; all reasons.
    pub fn wait_event(&self, name: &str, reason: &str) -> Vec<String> {
        let found = wait_for(&format!("an Event {reason} of HTCJob {name}"), PATIENCE, || {
            let reasons: Vec<String> = self.events(name).into_iter().map(|(reason, _)| reason).collect();
            reasons.iter().any(|other| other == reason).then_some(reasons)
        });
        found.unwrap_or_else(|error| {
            panic!("{error}\n{}\nthe operator's log:\n{}", self.events_text(name), self.bed.log())
        })
    }

    fn events_text(&self, name: &str) -> String {
        self.events(name).iter().map(|(reason, message)| format!("  {reason}: {message}\n")).collect()
    }

    /// The folder of one job's output.
    pub fn output(&self, name: &str, index: u32) -> PathBuf {
        self.bed.data.join("htc_out").join(&self.name).join(name).join("latest").join(index.to_string())
    }

    /// Waits until HTCondor's queue and spool have nothing of this object.
    pub fn wait_nothing_left(&self, uid: &str) {
        let constraint = format!("HTCJobUID == \"{uid}\"");
        wait_for("HTCondor's queue to have nothing of the HTCJob", PATIENCE, || {
            self.bed.queue(&constraint, &["ClusterId", "JobStatus"]).is_empty()
        })
        .unwrap();
    }

    /// Reasons of the object's Events once they end with `last`, without waiting for more.
    pub fn story(&self, name: &str, last: &str) -> Vec<String> {
        wait_for(&format!("the Events of HTCJob {name} to end with {last}"), PATIENCE, || {
            let journal = self.journal(name);
            let complete = journal.iter().zip(1..).all(|((number, ..), place)| *number == place);
            let reasons: Vec<String> = journal.into_iter().map(|(_, reason, _)| reason).collect();
            let ends = complete && reasons.last().is_some_and(|reason| reason == last);
            if ends { Ok(reasons) } else { Err(format!("{reasons:?}")) }
        })
        .unwrap_or_else(|error| panic!("{error}\n{:#}\nthe operator's log:\n{}", self.get(name), self.bed.log()))
    }

    /// The message of the Event with this reason, which there must be exactly once.
    pub fn event_message(&self, name: &str, reason: &str) -> String {
        self.wait_event(name, reason);
        let mut messages: Vec<String> =
            self.events(name).into_iter().filter(|(other, _)| other == reason).map(|(_, message)| message).collect();
        assert_eq!(messages.len(), 1, "Events {reason} of {name}: {messages:?}");
        messages.remove(0)
    }

    /// Waits until that many of its jobs run; the object.
    pub fn wait_running(&self, name: &str, jobs: u32) -> Value {
        self.wait(name, &format!("{jobs} running"), |object| object["status"]["running"] == jobs)
    }
}

/// Whether a condition of an object is True.
pub fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// The ids in HTCondor that an object's status records, by index.
pub fn ids(object: &Value) -> Vec<String> {
    object["status"]["jobid"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}
