//! HTCJobs that end before all of their jobs have run, and a ledger that is lost.

use bed::{PATIENCE, beside, ids, is_true, of};
use serde_json::json;
use testbed::{Version, wait_for};

use super::stage::{Stage, is, wait_no_workloads, workloads};
use crate::queue::site::{wait_quota, wait_state};

on_versions! {
    kueue:
        ledger_loss_runs_only_admitted_jobs_once,
        deleted_htcjob_returns_its_quota_in_every_state,
        deadline_returns_the_quota;
}

/// Their Workloads go with them, and their quota goes to the next, whoever looks and however they are deleted.
fn deleted_htcjob_returns_its_quota_in_every_state(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({ "preemption": { "withinClusterQueue": "LowerPriority" } }));
    let here = stage.namespace("pool");
    here.create(&stage.lasting("first", 1));
    here.wait_running("first", 1);
    // Kueue says why of one of those that request the same.
    for (name, reason) in [("waits", "WaitingForQuota"), ("alone", "PendingEvaluation")] {
        let uid = here.create(&stage.lasting(name, 1));
        let message = wait_quota(&here, name, "False", reason);
        assert!(name == "waits" || message.contains("others that request the same wait"), "{message}");
        assert!(bed.jobs_of(&uid).is_empty());
    }
    here.delete("waits");
    // Nobody looks when it is deleted.
    bed.kill_operator();
    here.begin_delete("alone");
    bed.start_operator();
    here.wait_gone("alone");
    wait_for("only one Workload to be left", PATIENCE, || workloads(&here).len() == 1).unwrap();
    stage.wait_used("pool", 1);
    // The garbage collector leaves what it was owner of.
    let next = here.create(&stage.lasting("next", 1));
    wait_state(&here, "next", "Queued");
    stage.site.gates.shut("condor_rm");
    here.kubectl(&["delete", "htcjob", "first", "--cascade=orphan", "--wait=false"]);
    stage.site.gates.wait_at("condor_rm");
    let left =
        stage.wait_workload(&here, "first", "without owner", |left| left["metadata"]["ownerReferences"].is_null());
    assert!(is(&left, "QuotaReserved") && bed.jobs_of(&next).is_empty(), "{left:#}");
    stage.site.gates.open("condor_rm");
    here.wait_running("next", 1);
    wait_for("only one Workload to be left", PATIENCE, || workloads(&here).len() == 1).unwrap();
    // One that is preempted, and held.
    here.create(&stage.of_class("high", 1, "high"));
    here.wait_running("high", 1);
    assert_eq!(bed.queue(&of(&next), &["JobStatus"]), [["5"]]);
    here.delete("next");
    stage.wait_used("pool", 1);
    stage.site.finish("high");
    stage.site.assert_complete_once(&here, "high", 1);
    stage.wait_says(&here, "high", "Finished", "True", "Succeeded");
    // What has finished holds nothing, and nobody is to find it afterwards.
    here.kubectl(&["delete", "htcjob", "high", "--cascade=orphan", "--timeout=60s"]);
    wait_no_workloads(&here);
    stage.wait_used("pool", 0);
    assert_eq!(stage.open(), 0);
}

/// What waits for Kueue has no `startTime`.
fn deadline_returns_the_quota(version: Version) {
    let stage = Stage::start(version);
    stage.cluster_queue("pool", 1, &json!({}));
    let here = stage.namespace("pool");
    let within = |name: &str, seconds: u32| {
        let mut object = stage.lasting(name, 1);
        object["spec"]["activeDeadlineSeconds"] = seconds.into();
        object
    };
    let look = |most: &mut usize| *most = stage.open().max(*most);
    let ((), most) = beside(0, look, || {
        here.create(&within("first", 8));
        here.wait_running("first", 1);
        let second = here.create(&within("second", 1));
        wait_quota(&here, "second", "False", "WaitingForQuota");
        here.create(&stage.lasting("third", 1));
        for name in ["first", "second"] {
            here.wait_says(name, "Failed", "True", "DeadlineExceeded");
            stage.wait_says(&here, name, "Finished", "True", "Failed");
        }
        assert!(here.get("second")["status"]["startTime"].is_string());
        assert_eq!(stage.site.bed.jobs_of(&second).len(), 1, "it was submitted when it was admitted");
        here.wait_running("third", 1);
        stage.site.finish("third");
        stage.site.assert_complete_once(&here, "third", 1);
    });
    assert_eq!(most, 1, "never more than the quota");
    stage.wait_used("pool", 0);
}

/// What Kueue has admitted and what HTCondor has is known without a ledger: nothing runs twice, or beside what is admitted.
fn ledger_loss_runs_only_admitted_jobs_once(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({ "preemption": { "withinClusterQueue": "LowerPriority" } }));
    let here = stage.namespace("pool");
    let low = here.create(&stage.of_class("low", 1, "low"));
    here.wait_running("low", 1);
    let high = here.create(&stage.of_class("high", 1, "high"));
    here.wait_running("high", 1);
    assert_eq!(bed.queue(&of(&low), &["JobStatus"]), [["5"]]);
    let reported = ids(&here.wait("high", "its id", |object| object["status"]["jobid"].is_array()));
    bed.kill_operator();
    std::fs::remove_dir_all(bed.data.join("sqlite")).unwrap();
    let look = |most: &mut usize| *most = stage.open().max(*most);
    let ((), most) = beside(0, look, || {
        bed.start_operator();
        let late = here.create(&stage.lasting("late", 1));
        wait_quota(&here, "late", "False", "WaitingForQuota");
        here.wait_running("high", 1);
        assert_eq!(bed.queue(&of(&low), &["JobStatus"]), [["5"]]);
        assert!(bed.jobs_of(&late).is_empty() && bed.jobs_of(&high).len() == 1);
        for name in ["high", "low", "late"] {
            here.wait_running(name, 1);
            stage.site.finish(name);
            let ended = here.wait_ended(name);
            assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", bed.logs());
            stage.wait_says(&here, name, "Finished", "True", "Succeeded");
        }
    });
    assert_eq!(most, 1, "never more than the quota");
    assert_eq!((ids(&here.get("high")), stage.site.runs("high", 0)), (reported, 1));
    assert_eq!((stage.site.runs("late", 0), bed.jobs_of(&low).len()), (1, 1));
    for name in ["high", "low", "late"] {
        here.delete(name);
    }
    wait_no_workloads(&here);
    stage.wait_used("pool", 0);
}
