//! Pods in an HTCQueue, beside jobs of HTCondor.

use bed::{Namespace, PATIENCE, beside, condition, htcjob, is_true};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::kubelet::Kubelet;
use super::stage::{Owned as _, Stage, pods};
use crate::queue::site::{labelled, wait_quota};

on_versions! {
    trixie: quota_counts_both_backends, job_resumed_by_hand_gets_no_quota;
    sid: operator_kill_around_a_grant_grants_no_quota_twice;
    long: orphaned_pods_keep_their_quota, suspended_htcjob_returns_its_quota_and_waits_for_it;
}

fn start(version: Version, jobs: u32) -> Stage {
    let stage = Stage::with(version, &["--kubernetes-backend", "--queueing=embedded"]);
    let queue = json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": "batch" },
        "spec": { "namespaceSelector": {}, "quota": { "jobs": jobs } },
    });
    stage.bed.apply(&queue);
    stage.bed.start_operator();
    stage
}

fn in_queue(name: &str, queue: u32) -> Value {
    let mut object = pods(name, queue);
    object["metadata"]["labels"] = json!({});
    labelled(object, "batch")
}

/// One job in HTCondor that ends when the test says so.
fn in_htcondor(name: &str) -> Value {
    let mut object = htcjob(name, "while [ ! -e go ]; do sleep 0.2; done");
    object["metadata"]["labels"] = json!({});
    labelled(object, "batch")
}

/// Pods that have not ended, also those that are being deleted, and jobs in HTCondor.
fn open(here: &Namespace<'_>) -> usize {
    let ended = |pod: &Value| ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
    let pods = here.pods().iter().filter(|pod| !ended(pod)).count();
    pods + here.bed.queue("member(JobStatus, {1, 2, 6}) || HoldReasonCode == 16", &["ProcId"]).len()
}

fn wait_used(here: &Namespace<'_>, jobs: u32) {
    wait_for(&format!("{jobs} in use"), PATIENCE, || {
        let queue = here.bed.object(bed::api::QUEUES, "batch").unwrap();
        if queue["status"]["used"]["jobs"] == jobs { Ok(()) } else { Err(queue["status"].to_string()) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", here.bed.log()));
}

fn never_more_than(here: &Namespace<'_>, quota: usize, story: impl FnOnce()) {
    let ((), most) = beside(0, |most: &mut usize| *most = open(here).max(*most), story);
    assert_eq!(most, quota);
}

/// HTCondor waits for Pods, and Pods for HTCondor.
fn quota_counts_both_backends(version: Version) {
    let stage = start(version, 2);
    let here = stage.namespace();
    never_more_than(&here, 2, || {
        here.create(&in_queue("first", 3));
        here.wait_pods("two of three", |pods| pods.len() == 2);
        wait_quota(&here, "first", "True", "QuotaReserved");
        assert_eq!(here.job("first")["spec"]["parallelism"], 2);
        let second = here.create(&in_htcondor("second"));
        let message = wait_quota(&here, "second", "False", "WaitingForQuota");
        assert!(message.contains("the quota of HTCQueue batch, 2 jobs, has too little left"), "{message}");
        // Another index takes the place of one that has ended, as long as there is one.
        here.end(0, 0);
        here.wait_index(2);
        here.wait("first", "one has succeeded", |object| object["status"]["succeeded"] == 1);
        wait_quota(&here, "second", "False", "WaitingForQuota");
        here.end(1, 0);
        here.wait_running("second", 1);
        here.create(&in_queue("third", 1));
        let message = wait_quota(&here, "third", "False", "WaitingForQuota");
        assert!(message.contains("the quota of HTCQueue batch, 2 jobs, has too little left"), "{message}");
        let waits = here.get("third");
        assert_eq!(waits["status"]["state"], "Queued (1st)", "{waits:#}");
        assert!(is_true(&waits, "Submitted"), "{waits:#}");
        assert_eq!(here.job("third")["spec"]["suspend"], true);
        stage.bed.open_gate(&second);
        assert!(is_true(&here.wait_ended("second"), "Complete"));
        here.wait_pods("that of the third", |pods| pods.len() == 2);
        here.end(2, 0);
        assert!(is_true(&here.wait_ended("first"), "Complete"));
        here.end(0, 0);
        assert!(is_true(&here.wait_ended("third"), "Complete"));
    });
    wait_used(&here, 0);
    let reported = here.story("third", "Completed");
    assert_eq!(reported[..4], ["Pending", "Submitted", "WaitingForQuota", "QuotaReserved"], "{reported:?}");
    for name in ["first", "second", "third"] {
        here.delete(name);
    }
    here.wait_all_gone();
}

/// Quota goes to the next HTCJob when the Pods are gone, and the suspended one waits for its turn, also after a restart
/// of the operator. Changes of the Job by hand are reverted.
fn suspended_htcjob_returns_its_quota_and_waits_for_it(version: Version) {
    let stage = start(version, 1);
    let here = stage.namespace();
    never_more_than(&here, 1, || {
        here.create(&in_queue("first", 2));
        here.run(0);
        here.wait_phase("first", "Running");
        here.create(&in_queue("second", 1));
        wait_quota(&here, "second", "False", "WaitingForQuota");
        here.suspend("first", true);
        let job = here.job_name("second");
        here.wait_pods("that of the second", |pods| {
            pods.len() == 1 && pods[0]["metadata"]["name"].as_str().unwrap().starts_with(&job)
        });
        wait_quota(&here, "first", "False", "Suspended");
        here.suspend("first", false);
        wait_quota(&here, "first", "False", "WaitingForQuota");
        assert_eq!(here.job("first")["spec"]["suspend"], true);
        stage.bed.kill_operator();
        stage.bed.start_operator();
        here.end(0, 0);
        here.wait_ended("second");
        wait_quota(&here, "first", "True", "QuotaReserved");
        for index in 0..2 {
            here.end(index, 0);
        }
        assert!(is_true(&here.wait_ended("first"), "Complete"));
    });
    here.delete("first");
    here.delete("second");
}

/// A Job that is deleted without its Pods keeps its quota until these are gone.
fn orphaned_pods_keep_their_quota(version: Version) {
    let stage = start(version, 1);
    let here = stage.namespace();
    let kubelet = Kubelet::start(&stage.bed);
    never_more_than(&here, 1, || {
        here.create(&in_queue("first", 1));
        let pod = kubelet.take(&here, 0);
        here.run(0);
        here.wait_phase("first", "Running");
        here.create(&in_queue("second", 1));
        wait_quota(&here, "second", "False", "WaitingForQuota");
        here.kubectl(&["delete", "job", &here.job_name("first"), "--cascade=orphan"]);
        let ended = here.wait_ended("first");
        assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "JobsLost", "{ended:#}");
        // A third one comes and is told: by then the operator has looked at the first again.
        here.create(&in_queue("third", 1));
        let message = wait_quota(&here, "third", "False", "WaitingForQuota");
        assert!(message.contains("the quota of HTCQueue batch, 1 jobs, has too little left"), "{message}");
        assert_eq!(here.job("second")["spec"]["suspend"], true);
        here.kill_pod(&pod);
        here.end(0, 0);
        here.wait_ended("second");
        here.wait_pods("that of the third", |pods| pods.len() == 1);
        here.end(0, 0);
        here.wait_ended("third");
    });
    for name in ["first", "second", "third"] {
        here.delete(name);
    }
}

/// Kills the operator before and after each grant and each change of a Job.
fn operator_kill_around_a_grant_grants_no_quota_twice(version: Version) {
    let stage = start(version, 1);
    let here = stage.namespace();
    let places = ["before-grants", "after-grants", "before-job-adjusted", "after-job-adjusted", "after-grants"];
    let places: Vec<String> = places.map(str::to_owned).to_vec();
    let names: Vec<String> = (0..4).map(|number| format!("job-{number}")).collect();
    never_more_than(&here, 1, || {
        stage.bed.dying_at(&places, places.len(), || {
            for name in &names {
                here.create(&in_queue(name, 1));
            }
            for _ in &names {
                here.end(0, 0);
            }
            for name in &names {
                assert!(is_true(&here.wait_ended(name), "Complete"));
            }
        });
    });
    wait_used(&here, 0);
    for name in &names {
        here.delete(name);
    }
}

/// The right to change Jobs gives no quota.
fn job_resumed_by_hand_gets_no_quota(version: Version) {
    let stage = start(version, 1);
    let here = stage.namespace();
    here.create(&in_queue("has", 1));
    here.wait_pods("one", |pods| pods.len() == 1);
    here.create(&in_queue("wants", 5));
    wait_quota(&here, "wants", "False", "WaitingForQuota");
    let resume = json!({ "spec": { "suspend": false, "parallelism": 5 } });
    here.patch("job", &here.job_name("wants"), &resume);
    wait_for("it to be suspended again", PATIENCE, || {
        let job = here.job("wants");
        if job["spec"]["suspend"] == true { Ok(()) } else { Err(job["spec"]["suspend"].to_string()) }
    })
    .unwrap();
    here.wait_pods("none of it", |pods| pods.len() == 1);
    wait_used(&here, 1);
    wait_quota(&here, "wants", "False", "WaitingForQuota");
    here.end(0, 0);
    here.wait_ended("has");
    wait_quota(&here, "wants", "True", "QuotaReserved");
    wait_used(&here, 1);
    assert_eq!(here.job("wants")["spec"]["parallelism"], 1);
    for name in ["has", "wants"] {
        here.delete(name);
    }
    here.wait_all_gone();
}
