//! From admission to the end, and conditions of waiting HTCJobs.

use bed::{condition, is_true};
use serde_json::json;
use testbed::{Version, wait_for};

use super::stage::{Stage, local_queue, wait_no_workloads, workload_condition};
use crate::queue::site::{labelled, wait_quota, wait_state};

on_versions! {
    kueue: admitted_htcjob_is_submitted_and_finishes_its_workload, waiting_htcjob_quotes_the_reason_of_kueue;
}

fn admitted_htcjob_is_submitted_and_finishes_its_workload(version: Version) {
    let stage = Stage::start(version);
    stage.cluster_queue("pool", 2, &json!({}));
    let here = stage.namespace("pool");
    here.create(&stage.lasting("first", 2));
    here.wait_running("first", 2);
    wait_quota(&here, "first", "True", "QuotaReserved");
    let workload = stage.wait_says(&here, "first", "PodsReady", "True", "Started");
    assert_eq!(workload_condition(&workload, "Admitted").unwrap()["status"], "True");
    assert_eq!(workload["spec"]["queueName"], "batch");
    assert_eq!(workload["metadata"]["ownerReferences"][0]["name"], "first");
    assert_eq!(workload["metadata"]["finalizers"], json!(["kueue.x-k8s.io/resource-in-use"]));
    stage.wait_used("pool", 2);
    stage.site.finish("first");
    stage.site.assert_complete_once(&here, "first", 2);
    stage.wait_says(&here, "first", "Finished", "True", "Succeeded");
    stage.wait_let_go(&here, "first");
    stage.wait_used("pool", 0);

    let mut fails = labelled(stage.site.noted("fails", 1, "exit 3"), "batch");
    fails["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high".into();
    here.create(&fails);
    assert!(is_true(&here.wait_ended("fails"), "Failed"));
    let workload = stage.wait_says(&here, "fails", "Finished", "True", "Failed");
    assert_eq!(
        (&workload["spec"]["priority"], &workload["spec"]["priorityClassRef"]["name"]),
        (&json!(100), &json!("high"))
    );
    // One that is deleted while it runs.
    here.create(&stage.lasting("deleted", 1));
    here.wait_running("deleted", 1);
    for name in ["first", "fails", "deleted"] {
        here.delete(name);
    }
    wait_no_workloads(&here);
    stage.wait_used("pool", 0);
    assert_eq!(stage.open(), 0);
}

fn waiting_htcjob_quotes_the_reason_of_kueue(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({}));
    let here = stage.namespace("pool");
    here.create(&stage.lasting("first", 1));
    here.wait_running("first", 1);
    let second = here.create(&stage.lasting("second", 1));
    let message = wait_quota(&here, "second", "False", "WaitingForQuota");
    assert!(message.starts_with("LocalQueue batch: ") && message.contains("htc.cern.ch/jobs"), "{message}");
    wait_state(&here, "second", "Queued");
    assert!(bed.jobs_of(&second).is_empty());
    // The words are those of now, also where the reason stays.
    let lost = here.create(&labelled(stage.site.noted("lost", 1, ""), "elsewhere"));
    let message = wait_quota(&here, "lost", "False", "Inadmissible");
    assert!(message.contains("elsewhere"), "{message}");
    wait_state(&here, "lost", "Inadmissible");
    local_queue(&here, "elsewhere", "nowhere");
    here.wait("lost", "told of the ClusterQueue", |object| {
        condition(object, "QuotaReserved").is_some_and(|condition| {
            condition["reason"] == "Inadmissible" && condition["message"].as_str().unwrap().contains("nowhere")
        })
    });
    let mut unknown = stage.of_class("unknown", 1, "nobody");
    unknown["spec"]["queue"] = 1.into();
    here.create(&unknown);
    let message = wait_quota(&here, "unknown", "False", "Misconfigured");
    assert!(message.contains("there is no WorkloadPriorityClass nobody"), "{message}");
    assert!(bed.jobs_of(&lost).is_empty());
    // Each goes on by itself.
    stage.cluster_queue("nowhere", 1, &json!({}));
    stage.site.assert_complete_once(&here, "lost", 1);
    here.kubectl(&["label", "htcjob", "unknown", "kueue.x-k8s.io/priority-class-"]);
    stage.site.finish("first");
    stage.site.assert_complete_once(&here, "first", 1);
    for name in ["second", "unknown"] {
        stage.site.finish(name);
        stage.site.assert_complete_once(&here, name, 1);
    }
    // One that waits and is no more in a queue needs no quota.
    stage.cluster_queue("pool", 0, &json!({}));
    here.create(&labelled(stage.site.noted("leaves", 1, ""), "batch"));
    wait_quota(&here, "leaves", "False", "WaitingForQuota");
    here.kubectl(&["label", "htcjob", "leaves", "kueue.x-k8s.io/queue-name-"]);
    stage.site.assert_complete_once(&here, "leaves", 1);
    wait_for("its Workload to be gone", bed::PATIENCE, || stage.workload(&here, "leaves").is_none()).unwrap();
}
