//! Quota that is taken back: the jobs are held first, and HTCondor says so.

use bed::{beside, condition, is_true, of};
use serde_json::json;
use testbed::Version;

use super::stage::{Stage, is, patch_workload, wait_no_workloads, workload_condition};
use crate::queue::site::{wait_quota, wait_state};

on_versions! {
    kueue:
        preempted_htcjob_keeps_quota_until_its_jobs_are_held,
        suspended_or_deactivated_workload_returns_quota,
        deleted_workload_is_recreated;
}

fn preempted_htcjob_keeps_quota_until_its_jobs_are_held(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({ "preemption": { "withinClusterQueue": "LowerPriority" } }));
    let here = stage.namespace("pool");
    let low = here.create(&stage.of_class("low", 1, "low"));
    here.wait_running("low", 1);
    stage.wait_says(&here, "low", "PodsReady", "True", "Started");
    let look = |most: &mut usize| *most = stage.open().max(*most);
    let ((), most) = beside(0, look, || {
        // HTCondor cannot say that it holds them: the quota is in use.
        stage.site.gates.shut("condor_hold");
        let high = here.create(&stage.of_class("high", 1, "high"));
        stage.site.gates.wait_at("condor_hold");
        let evicted = stage.wait_says(&here, "low", "Evicted", "True", "Preempted");
        assert!(is(&evicted, "QuotaReserved") && bed.jobs_of(&high).is_empty(), "{evicted:#}");
        let low_now = here.wait("low", "it is told", |object| is_true(object, "Suspended"));
        let message = condition(&low_now, "Suspended").unwrap()["message"].as_str().unwrap();
        assert!(message.contains("Kueue evicts Workload htcjob-") && message.contains("Preempted"), "{message}");
        stage.site.gates.open("condor_hold");
        here.wait_running("high", 1);
        let freed = stage.workload(&here, "low").unwrap();
        assert!(!is(&freed, "QuotaReserved") && !is(&freed, "Admitted"), "{freed:#}");
        assert_eq!(workload_condition(&freed, "Requeued").unwrap()["reason"], "Preempted");
        assert_eq!(bed.queue(&of(&low), &["JobStatus"]), [["5"]]);
        wait_quota(&here, "low", "False", "WaitingForQuota");
        wait_state(&here, "low", "Queued");
        // The next operator knows it all the same.
        bed.kill_operator();
        bed.start_operator();
        stage.site.finish("high");
        stage.site.assert_complete_once(&here, "high", 1);
        here.wait_running("low", 1);
        stage.site.finish("low");
        assert!(is_true(&here.wait_ended("low"), "Complete"));
    });
    assert_eq!(most, 1, "never more than the quota");
    // Granted, preempted, given back, granted again.
    let mut story = here.story("low", "Fetched");
    story.retain(|reason| reason != "PendingEvaluation");
    story.dedup();
    let told = ["Pending", "QuotaReserved", "Submitted", "Running", "Suspended", "WaitingForQuota", "Resumed"];
    assert_eq!(story, [&told[..], &["QuotaReserved", "Completed", "Fetched"]].concat());
    for (reason, words) in [("Suspended", "(Preempted)"), ("WaitingForQuota", "LocalQueue batch: ")] {
        let told = |(other, message): &(String, String)| other == reason && message.contains(words);
        assert!(here.events("low").iter().any(told), "{reason}: {:?}", here.events("low"));
    }
    stage.wait_says(&here, "low", "Finished", "True", "Succeeded");
    stage.wait_used("pool", 0);
}

fn suspended_or_deactivated_workload_returns_quota(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({}));
    let here = stage.namespace("pool");
    let first = here.create(&stage.lasting("first", 1));
    here.wait_running("first", 1);
    // By its user.
    here.suspend("first", true);
    let workload = stage.wait_workload(&here, "first", "not active, without quota", |workload| {
        workload["spec"]["active"] == false && !is(workload, "QuotaReserved")
    });
    assert_eq!(workload["metadata"]["annotations"]["htc.cern.ch/suspended"], "true");
    assert_eq!(bed.queue(&of(&first), &["JobStatus"]), [["5"]]);
    stage.wait_used("pool", 0);
    let message = wait_quota(&here, "first", "False", "Suspended");
    assert!(message.starts_with("spec.suspend is true"), "{message}");
    here.create(&stage.lasting("second", 1));
    here.wait_running("second", 1);
    here.suspend("first", false);
    wait_quota(&here, "first", "False", "WaitingForQuota");
    stage.site.finish("second");
    stage.site.assert_complete_once(&here, "second", 1);
    here.wait_running("first", 1);
    // By a person: that is not ours to undo.
    patch_workload(&here, "first", &json!({ "spec": { "active": false } }));
    here.wait("first", "held", |object| object["status"]["held"] == 1);
    stage.wait_workload(&here, "first", "without quota", |workload| !is(workload, "QuotaReserved"));
    let message = wait_quota(&here, "first", "False", "Suspended");
    assert!(message.contains("is deactivated") && message.contains("set its spec.active to true"), "{message}");
    here.suspend("first", true);
    here.wait("first", "suspended by its user, too", |object| {
        condition(object, "Suspended")
            .is_some_and(|condition| condition["message"].as_str().unwrap().starts_with("spec.suspend"))
    });
    here.suspend("first", false);
    here.wait("first", "told of the person again", |object| {
        condition(object, "QuotaReserved")
            .is_some_and(|condition| condition["message"].as_str().unwrap().contains("is deactivated"))
    });
    let workload = stage.workload(&here, "first").unwrap();
    assert!(workload["spec"]["active"] == false, "{workload:#}");
    assert!(workload["metadata"]["annotations"]["htc.cern.ch/suspended"].is_null(), "{workload:#}");
    patch_workload(&here, "first", &json!({ "spec": { "active": true } }));
    here.wait_running("first", 1);
    // A ClusterQueue that is drained.
    stage.cluster_queue("pool", 1, &json!({ "stopPolicy": "HoldAndDrain" }));
    here.wait("first", "held", |object| object["status"]["held"] == 1);
    stage.wait_used("pool", 0);
    stage.cluster_queue("pool", 1, &json!({ "stopPolicy": "None" }));
    here.wait_running("first", 1);
    stage.site.finish("first");
    assert!(is_true(&here.wait_ended("first"), "Complete"));
    stage.wait_used("pool", 0);
}

fn deleted_workload_is_recreated(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({}));
    let here = stage.namespace("pool");
    let uid = here.create(&stage.lasting("first", 1));
    here.wait_running("first", 1);
    let before = stage.workload(&here, "first").unwrap();
    here.kubectl(&["delete", "workloads.kueue.x-k8s.io", "--all", "--wait=false"]);
    let again = stage.wait_workload(&here, "first", "another one, admitted", |workload| {
        workload["metadata"]["uid"] != before["metadata"]["uid"] && is(workload, "Admitted")
    });
    assert!(again["metadata"]["deletionTimestamp"].is_null());
    here.wait_running("first", 1);
    assert_eq!(bed.queue(&of(&uid), &["JobStatus"]), [["2"]]);
    // Its owner is deleted: the quota is kept until HTCondor has none.
    stage.site.gates.shut("condor_rm");
    here.kubectl(&["delete", "htcjob", "first", "--cascade=foreground", "--wait=false"]);
    stage.site.gates.wait_at("condor_rm");
    let leaving = stage.workload(&here, "first").unwrap();
    assert!(is(&leaving, "QuotaReserved"), "{leaving:#}");
    assert_eq!(leaving["metadata"]["finalizers"], json!(["kueue.x-k8s.io/resource-in-use"]));
    stage.site.gates.open("condor_rm");
    here.wait_gone("first");
    stage.wait_used("pool", 0);
    wait_no_workloads(&here);
}
