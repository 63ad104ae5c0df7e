//! The operator is killed before and after everything that it writes of a Workload.

use bed::{PATIENCE, beside, is_true};
use htc_support::failpoint::Point;
use serde_json::json;
use testbed::{Version, wait_for};

use super::stage::{Stage, is, local_queue, wait_no_workloads, workloads};
use crate::queue::site::wait_quota;

on_versions! {
    kueue: operator_kill_at_each_workload_write_exceeds_no_quota, operator_kill_at_each_user_change_exceeds_no_quota;
}

/// Those that only lives with Kueue meet.
pub const POINTS: &[Point] =
    &[Point::BeforeWorkloadMade, Point::AfterWorkloadMade, Point::BeforeWorkloadChanged, Point::AfterWorkloadChanged];

/// Before and after each of so many changes of Workloads.
fn changes(count: usize) -> impl Iterator<Item = String> {
    std::iter::repeat_n(["before-workload-changed", "after-workload-changed"], count).flatten().map(str::to_owned)
}

fn operator_kill_at_each_workload_write_exceeds_no_quota(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({ "preemption": { "withinClusterQueue": "LowerPriority" } }));
    let here = stage.namespace("pool");
    let look = |most: &mut usize| *most = stage.open().max(*most);
    let places = [
        "before-workload-made",
        "after-workload-made",
        "before-grants",
        "after-grants",
        "before-submit-intents",
        "before-workload-changed",
        "after-workload-changed",
        // Once a second one is preferred.
        "after-condor-hold",
        "before-workload-changed",
        "after-workload-changed",
        "after-grants",
    ];
    // The second one is ready, finished and let go; then the first one is.
    let places: Vec<String> = places.map(str::to_owned).into_iter().chain(changes(6)).collect();
    let ((), most) = beside(0, look, || {
        bed.dying_at(&places, places.len(), || {
            here.create(&stage.of_class("low", 1, "low"));
            here.wait_running("low", 1);
            stage.wait_says(&here, "low", "PodsReady", "True", "Started");
            here.create(&stage.of_class("high", 1, "high"));
            here.wait_running("high", 1);
            stage.wait_says(&here, "high", "PodsReady", "True", "Started");
            stage.site.finish("high");
            assert!(is_true(&here.wait_ended("high"), "Complete"));
            stage.wait_let_go(&here, "high");
            here.wait_running("low", 1);
            stage.wait_says(&here, "low", "PodsReady", "True", "Started");
            stage.site.finish("low");
            assert!(is_true(&here.wait_ended("low"), "Complete"));
        });
        for name in ["low", "high"] {
            stage.wait_says(&here, name, "Finished", "True", "Succeeded");
            here.delete(name);
        }
    });
    assert_eq!(most, 1, "never more than the quota");
    stage.wait_used("pool", 0);
}

/// Suspended and resumed, in another queue and in none, deleted.
fn operator_kill_at_each_user_change_exceeds_no_quota(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({}));
    stage.cluster_queue("none", 0, &json!({}));
    let here = stage.namespace("pool");
    local_queue(&here, "other", "none");
    let label = |queue: &str| {
        here.kubectl(&["label", "htcjob", "second", "--overwrite", &format!("kueue.x-k8s.io/queue-name{queue}")]);
    };
    let look = |most: &mut usize| *most = stage.open().max(*most);
    let places: Vec<String> = changes(11).collect();
    let ((), most) = beside(0, look, || {
        bed.dying_at(&places, places.len(), || {
            here.create(&stage.lasting("first", 1));
            here.wait_running("first", 1);
            stage.wait_says(&here, "first", "PodsReady", "True", "Started");
            // Not active, without quota; active again; ready again.
            here.suspend("first", true);
            stage.wait_workload(&here, "first", "not active, without quota", |workload| {
                workload["spec"]["active"] == false && !is(workload, "QuotaReserved")
            });
            here.suspend("first", false);
            here.wait_running("first", 1);
            stage.wait_says(&here, "first", "PodsReady", "True", "Started");
            // In the other queue; deleted, and let go.
            here.create(&stage.lasting("second", 1));
            wait_quota(&here, "second", "False", "WaitingForQuota");
            label("=other");
            stage.wait_workload(&here, "second", "in the other queue", |workload| {
                workload["spec"]["queueName"] == "other"
            });
            label("-");
            wait_for("its Workload to be gone", PATIENCE, || stage.workload(&here, "second").is_none()).unwrap();
            // Let go, by name, when nobody knows the HTCJob any more.
            here.create(&stage.of_class("third", 1, "low"));
            wait_quota(&here, "third", "False", "WaitingForQuota");
            here.kubectl(&["delete", "htcjob", "third", "--cascade=orphan", "--wait=false"]);
            wait_for("one Workload to be left", PATIENCE, || workloads(&here).len() == 1).unwrap();
            // Finished.
            stage.site.finish("first");
            assert!(is_true(&here.wait_ended("first"), "Complete"));
            stage.wait_let_go(&here, "first");
        });
        stage.site.finish("second");
        stage.site.assert_complete_once(&here, "second", 1);
    });
    assert_eq!(most, 2, "one in a queue, and one in none");
    for name in ["first", "second"] {
        here.delete(name);
    }
    wait_no_workloads(&here);
    stage.wait_used("pool", 0);
}
