//! HTCJobs as Pods through Kueue: its own integration of Jobs, which runs beside, leaves their Jobs alone.

use bed::{Namespace, PATIENCE, beside, condition, is_true};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::stage::{Stage, is, local_queue, patch_workload, wait_no_workloads, workload_condition, workloads};
use crate::kubernetes_backend::kubelet::Kubelet;
use crate::kubernetes_backend::stage::{Owned as _, pods};
use crate::queue::site::{labelled, wait_quota, wait_state};

on_versions! {
    kueue:
        cluster_queue_admits_both_backends,
        preempted_htcjob_keeps_quota_until_its_pods_are_gone,
        suspended_deactivated_or_deleted_workload_controls_pods,
        operator_kill_at_each_write_with_pods_exceeds_no_quota,
        kueue_managing_every_job_leaves_jobs_of_htcjobs_alone;
}

const BY_PRIORITY: &str = r#"{ "preemption": { "withinClusterQueue": "LowerPriority" } }"#;

/// So many Pods of one core each, in the LocalQueue `batch`.
fn of_cores(name: &str, queue: u32) -> Value {
    let mut object = pods(name, queue);
    object["spec"]["resources"] = json!({ "cpus": "1" });
    object["metadata"]["labels"] = json!({});
    labelled(object, "batch")
}

fn of_class(name: &str, class: &str) -> Value {
    let mut object = of_cores(name, 1);
    object["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = class.into();
    object
}

/// In which Pods can be made.
fn namespace(stage: &Stage) -> Namespace<'_> {
    let here = stage.namespace("pool");
    let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", here.name);
    wait_for("the ServiceAccount default", PATIENCE, || stage.site.bed.object(&accounts, "default").is_some()).unwrap();
    here
}

/// Pods that have not ended, also those that are being deleted.
fn open(here: &Namespace<'_>) -> usize {
    let ended = |pod: &Value| ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
    here.pods().iter().filter(|pod| !ended(pod)).count()
}

fn never_more_than(here: &Namespace<'_>, quota: usize, story: impl FnOnce()) {
    let ((), most) = beside(0, |most: &mut usize| *most = open(here).max(*most), story);
    assert_eq!(most, quota);
}

fn cluster_queue_admits_both_backends(version: Version) {
    let stage = Stage::with_pods(version, 1, 2, &json!({}));
    let here = namespace(&stage);
    never_more_than(&here, 2, || {
        here.create(&of_cores("first", 3));
        here.wait_pods("two of three", |pods| pods.len() == 2);
        wait_quota(&here, "first", "True", "QuotaReserved");
        assert_eq!(here.job("first")["spec"]["parallelism"], 2);
        let workload = stage.workload(&here, "first").unwrap();
        let asked = &workload["spec"]["podSets"][0];
        let requests = &asked["template"]["spec"]["containers"][0]["resources"]["requests"];
        assert_eq!((&asked["count"], &asked["minCount"], requests), (&json!(3), &json!(1), &json!({ "cpu": "1" })));
        assert!(
            workload_condition(&workload, "PodsReady").is_none_or(|condition| condition["status"] == "False"),
            "{workload:#}"
        );
        // Kueue itself has nothing to do with the Job.
        assert!(here.job("first")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"].is_null());
        assert_eq!(workloads(&here).len(), 1);
        here.create(&of_cores("second", 1));
        let message = wait_quota(&here, "second", "False", "WaitingForQuota");
        assert!(message.starts_with("LocalQueue batch: ") && message.contains("cpu"), "{message}");
        wait_state(&here, "second", "Queued");
        assert_eq!(here.job("second")["spec"]["suspend"], true);
        // What HTCondor gives is another resource.
        here.create(&stage.lasting("third", 1));
        here.wait_running("third", 1);
        here.run(0);
        here.run(1);
        stage.wait_says(&here, "first", "PodsReady", "True", "Started");
        // Another index takes the place of one that has ended, as long as there is one.
        here.end(0, 0);
        here.wait_index(2);
        wait_quota(&here, "second", "False", "WaitingForQuota");
        here.end(1, 0);
        stage.wait_workload(&here, "first", "one of three is left", |workload| {
            workload["status"]["reclaimablePods"][0]["count"] == 2
        });
        let job = here.job_name("second");
        let of_second = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().starts_with(&job);
        here.wait_pods("that of the second", |pods| pods.iter().any(of_second));
        here.end(2, 0);
        assert!(is_true(&here.wait_ended("first"), "Complete"));
        stage.wait_says(&here, "first", "Finished", "True", "Succeeded");
        here.end(0, 3);
        assert!(is_true(&here.wait_ended("second"), "Failed"));
        stage.wait_says(&here, "second", "Finished", "True", "Failed");
    });
    stage.wait_used("pool", 0);
    stage.site.finish("third");
    stage.site.assert_complete_once(&here, "third", 1);
    for name in ["first", "second", "third"] {
        here.delete(name);
    }
    here.wait_all_gone();
    wait_no_workloads(&here);
}

fn preempted_htcjob_keeps_quota_until_its_pods_are_gone(version: Version) {
    let stage = Stage::with_pods(version, 0, 1, &serde_json::from_str(BY_PRIORITY).unwrap());
    let bed = &stage.site.bed;
    let here = namespace(&stage);
    let kubelet = Kubelet::start(bed);
    never_more_than(&here, 1, || {
        here.create(&of_class("low", "low"));
        let pod = kubelet.take(&here, 0);
        here.run(0);
        stage.wait_says(&here, "low", "PodsReady", "True", "Started");
        here.create(&of_class("high", "high"));
        let evicted = stage.wait_says(&here, "low", "Evicted", "True", "Preempted");
        assert!(is(&evicted, "QuotaReserved"), "{evicted:#}");
        // The node has not said that it is gone: its quota is in use.
        wait_for("the Pod to be deleted", PATIENCE, || {
            here.pods().iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_string())
        })
        .unwrap();
        let low = here.wait("low", "it is told", |object| is_true(object, "Suspended"));
        let message = condition(&low, "Suspended").unwrap()["message"].as_str().unwrap();
        assert!(message.contains("Kueue evicts Workload htcjob-") && message.contains("Preempted"), "{message}");
        bed.kill_operator();
        bed.start_operator();
        // Another one comes, of which Kueue says nothing while one is to be preempted: by then the operator has looked at all of them.
        here.create(&of_class("third", "low"));
        wait_quota(&here, "third", "False", "PendingEvaluation");
        assert!(is(&stage.workload(&here, "low").unwrap(), "QuotaReserved"));
        assert_eq!(here.job("high")["spec"]["suspend"], true);
        here.delete("third");
        here.kill_pod(&pod);
        let freed = stage.wait_says(&here, "low", "Requeued", "True", "Preempted");
        assert!(!is(&freed, "QuotaReserved") && !is(&freed, "Admitted"), "{freed:#}");
        assert_eq!(workload_condition(&freed, "PodsReady").unwrap()["status"], "False");
        wait_quota(&here, "low", "False", "WaitingForQuota");
        wait_state(&here, "low", "Queued");
        here.end(0, 0);
        assert!(is_true(&here.wait_ended("high"), "Complete"));
        here.wait("low", "admitted again", |object| !is_true(object, "Suspended"));
        here.end(0, 0);
        assert!(is_true(&here.wait_ended("low"), "Complete"));
    });
    for name in ["low", "high"] {
        stage.wait_says(&here, name, "Finished", "True", "Succeeded");
        here.delete(name);
    }
    stage.wait_used("pool", 0);
    wait_no_workloads(&here);
}

fn suspended_deactivated_or_deleted_workload_controls_pods(version: Version) {
    let stage = Stage::with_pods(version, 0, 1, &json!({}));
    let here = namespace(&stage);
    let runs = || here.wait_pods("one", |pods| pods.len() == 1);
    let none = || here.wait_pods("none", <[Value]>::is_empty);
    here.create(&of_cores("first", 1));
    runs();
    here.run(0);
    // By its user.
    here.suspend("first", true);
    none();
    let workload = stage.wait_workload(&here, "first", "not active, without quota", |workload| {
        workload["spec"]["active"] == false && !is(workload, "QuotaReserved")
    });
    assert_eq!(workload["metadata"]["annotations"]["htc.cern.ch/suspended"], "true");
    stage.wait_used("pool", 0);
    let message = wait_quota(&here, "first", "False", "Suspended");
    assert!(message.starts_with("spec.suspend is true"), "{message}");
    here.suspend("first", false);
    runs();
    // By a person: that is not ours to undo.
    patch_workload(&here, "first", &json!({ "spec": { "active": false } }));
    none();
    stage.wait_workload(&here, "first", "without quota", |workload| !is(workload, "QuotaReserved"));
    let message = wait_quota(&here, "first", "False", "Suspended");
    assert!(message.contains("is deactivated") && message.contains("set its spec.active to true"), "{message}");
    patch_workload(&here, "first", &json!({ "spec": { "active": true } }));
    runs();
    // Deleted by hand it is made again.
    let before = stage.workload(&here, "first").unwrap();
    here.kubectl(&["delete", "workloads.kueue.x-k8s.io", "--all", "--wait=false"]);
    stage.wait_workload(&here, "first", "another one, admitted", |workload| {
        workload["metadata"]["uid"] != before["metadata"]["uid"] && is(workload, "Admitted")
    });
    runs();
    here.delete("first");
    here.wait_all_gone();
    wait_no_workloads(&here);
    stage.wait_used("pool", 0);
}

fn operator_kill_at_each_write_with_pods_exceeds_no_quota(version: Version) {
    let stage = Stage::with_pods(version, 0, 1, &serde_json::from_str(BY_PRIORITY).unwrap());
    let here = namespace(&stage);
    let places = [
        "after-job-created",
        "before-workload-made",
        "after-workload-made",
        "before-grants",
        "after-grants",
        "before-job-adjusted",
        "after-job-adjusted",
        // Once a second one is preferred.
        "before-job-adjusted",
        "after-job-adjusted",
        "before-workload-changed",
        "after-workload-changed",
        "after-grants",
        "after-job-adjusted",
    ];
    let places: Vec<String> = places.map(str::to_owned).to_vec();
    never_more_than(&here, 1, || {
        stage.site.bed.dying_at(&places, places.len(), || {
            here.create(&of_class("low", "low"));
            here.run(0);
            stage.wait_says(&here, "low", "PodsReady", "True", "Started");
            here.create(&of_class("high", "high"));
            here.wait("high", "it has room", |object| is_true(object, "QuotaReserved"));
            here.end(0, 0);
            assert!(is_true(&here.wait_ended("high"), "Complete"));
            here.wait("low", "admitted again", |object| is_true(object, "QuotaReserved"));
            here.end(0, 0);
            assert!(is_true(&here.wait_ended("low"), "Complete"));
        });
    });
    for name in ["low", "high"] {
        stage.wait_says(&here, name, "Finished", "True", "Succeeded");
        here.delete(name);
    }
    stage.wait_used("pool", 0);
    wait_no_workloads(&here);
}

/// A Kueue that queues every Job by itself, and a LocalQueue that is the default: the Job of an HTCJob is left to its Workload.
fn kueue_managing_every_job_leaves_jobs_of_htcjobs_alone(version: Version) {
    let own = ["kube-system", "kueue-system"];
    let configuration = json!({
        "manageJobsWithoutQueueName": true,
        "managedJobsNamespaceSelector": {
            "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": own }],
        },
        "integrations": { "frameworks": ["batch/job"], "externalFrameworks": ["HTCJob.v1alpha1.htc.cern.ch"] },
    });
    let stage = Stage::configured_with_pods(version, (0, 1), &json!({}), &configuration);
    let here = namespace(&stage);
    local_queue(&here, "default", "pool");
    never_more_than(&here, 1, || {
        here.create(&of_cores("first", 1));
        here.run(0);
        stage.wait_says(&here, "first", "PodsReady", "True", "Started");
        here.create(&of_cores("second", 1));
        wait_quota(&here, "second", "False", "WaitingForQuota");
        assert_eq!(workloads(&here).len(), 2, "one for each HTCJob");
        for name in ["first", "second"] {
            assert!(here.job(name)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"].is_null(), "{name}");
        }
        here.end(0, 0);
        assert!(is_true(&here.wait_ended("first"), "Complete"));
        wait_quota(&here, "second", "True", "QuotaReserved");
        here.end(0, 0);
        assert!(is_true(&here.wait_ended("second"), "Complete"));
    });
    stage.wait_used("pool", 0);
}
