//! A site whose operator works with queues.

use serde_json::{Value, json};
use testbed::{Version, wait_for};

use bed::api::QUEUES;
use bed::site::Site;
use bed::{Namespace, PATIENCE, condition, of};

pub struct Queued {
    pub site: Site,
}

impl Queued {
    pub fn start(version: Version) -> Self {
        Self::with(version, &[])
    }

    pub fn with(version: Version, arguments: &[&str]) -> Self {
        let site = Site::with(version, "", &[&["--queueing=embedded"], arguments].concat());
        site.bed.start_operator();
        Self { site }
    }

    /// An HTCQueue for all namespaces, unless `spec` says otherwise.
    pub fn queue(&self, name: &str, spec: &Value) {
        let mut all = json!({ "namespaceSelector": {} });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let object = json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": name }, "spec": all,
        });
        self.site.bed.apply(&object);
    }

    pub fn change(&self, name: &str, spec: &Value) {
        let patch = json!({ "spec": spec });
        self.site.bed.merge(QUEUES, name, &patch);
    }

    pub fn get(&self, name: &str) -> Value {
        self.site.bed.object(QUEUES, name).unwrap()
    }

    /// Reasons of the Events about a queue, in order of the alphabet.
    pub fn events(&self, name: &str) -> Vec<String> {
        let events = self.site.bed.objects("/api/v1/namespaces/default/events");
        let about =
            |event: &&Value| event["involvedObject"]["kind"] == "HTCQueue" && event["involvedObject"]["name"] == name;
        let reason = |event: &Value| event["reason"].as_str().unwrap().to_owned();
        let mut reasons: Vec<String> = events.iter().filter(about).map(reason).collect();
        reasons.sort_unstable();
        reasons
    }

    /// Waits until the status of a queue is as `wanted` says; the queue.
    pub fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("HTCQueue {name}: {what}"), PATIENCE, || {
            let queue = self.get(name);
            if wanted(&queue["status"]) { Ok(queue) } else { Err(format!("{:#}", queue["status"])) }
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", self.site.bed.log()))
    }

    /// An `HTCJob` in a queue that notes that it ran, and runs until it is told to finish.
    pub fn lasting(&self, name: &str, jobs: u32, queue: &str) -> Value {
        labelled(self.site.lasting(name, jobs), queue)
    }

    /// Waits until HTCondor has so many jobs of these HTCJobs that have not ended and are not held.
    pub fn wait_in_htcondor(&self, uids: &[&str], jobs: usize) {
        wait_for(&format!("{jobs} jobs in HTCondor"), PATIENCE, || {
            let open = self.open(uids);
            if open == jobs { Ok(()) } else { Err(format!("{open} are")) }
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", self.site.bed.log()));
    }

    /// How many jobs of these HTCJobs have not ended and are not held.
    pub fn open(&self, uids: &[&str]) -> usize {
        let which: Vec<String> = uids.iter().map(|uid| of(uid)).collect();
        // A job whose files are being received is on its way.
        let open = "(JobStatus == 1 || JobStatus == 2 || JobStatus == 6 || HoldReasonCode == 16)";
        self.site.bed.queue(&format!("({}) && {open}", which.join(" || ")), &["ProcId"]).len()
    }
}

pub fn labelled(mut object: Value, queue: &str) -> Value {
    object["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = queue.into();
    object
}

/// Waits until `QuotaReserved` is so; its message.
pub fn wait_quota(here: &Namespace<'_>, name: &str, status: &str, reason: &str) -> String {
    let object = here.wait(name, &format!("QuotaReserved {status}, {reason}"), |object| {
        condition(object, "QuotaReserved")
            .is_some_and(|condition| condition["status"] == status && condition["reason"] == reason)
    });
    condition(&object, "QuotaReserved").unwrap()["message"].as_str().unwrap().to_owned()
}

/// Waits until the column STATUS says this.
pub fn wait_state(here: &Namespace<'_>, name: &str, state: &str) -> Value {
    here.wait(name, &format!("status {state}"), |object| object["status"]["state"] == state)
}
