//! HTCJobs that have workers of their own and are in a queue.

use bed::{Namespace, condition};
use serde_json::{Value, json};
use testbed::{Kueue, Version};

use super::super::site::{delete, wait_ready};
use super::mini_clusters::{ends, own, places, wait_running};
use super::node::Node;
use super::{Cluster, POOL, apply, fixed, mini_clusters, pool};
use crate::kueue::stage;
use crate::queue::site::{labelled, wait_quota};

on_versions! {
    long: mini_cluster_workers_start_once_quota_is_granted;
    kueue: mini_cluster_workers_start_once_kueue_admits_their_htcjob;
}

const QUEUE: &str = "batch";

fn set_quota(cluster: &Cluster, jobs: u32) {
    let queue = json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": QUEUE },
        "spec": { "namespaceSelector": {}, "quota": { "jobs": jobs } },
    });
    cluster.bed.apply(&queue);
}

fn queued(name: &str, jobs: u32, own: Value) -> Value {
    labelled(mini_clusters::placed(name, jobs, Some(own)), QUEUE)
}

/// What waits has no worker, and no job in HTCondor.
fn looks(here: &Namespace<'_>, node: &Node<'_>, name: &str) {
    assert!(own(node, &here.uid(name)).is_empty(), "it waits");
    assert!(here.get(name)["status"]["jobid"].is_null());
}

/// An HTCJob that waits in the queue holds no worker. A job that waits for its worker uses quota.
fn mini_cluster_workers_start_once_quota_is_granted(version: Version) {
    let cluster = Cluster::with(version, true, &["--queueing=embedded"]);
    let here = cluster.namespace();
    set_quota(&cluster, 2);
    Node::run(&cluster.bed, &here.name, version, |node| {
        let mut workers = fixed(0);
        workers["miniClusters"] = json!({ "max": 3 });
        apply(&here, pool(&workers));
        wait_ready(&here, POOL, "Answering");
        let first = here.create(&queued("first", 2, json!({ "maxSize": 1 })));
        wait_running(&here, "first", 2);
        assert_eq!(own(node, &first).len(), 1);

        // It asks for a worker whether or not it has jobs to run.
        let second = here.create(&queued("second", 2, json!({ "size": 1, "maxSize": 2 })));
        let message = wait_quota(&here, "second", "False", "WaitingForQuota");
        assert!(message.contains("the quota of HTCQueue batch, 2 jobs, has too little left"), "{message}");
        looks(&here, node, "second");
        // A part gets room: so many workers as that needs.
        set_quota(&cluster, 3);
        wait_running(&here, "second", 1);
        assert_eq!(own(node, &second).len(), 1);
        ends(&here, node, "first");
        wait_running(&here, "second", 2);
        ends(&here, node, "second");
        for name in ["first", "second"] {
            places(node, name, 2);
            assert_eq!(condition(&here.get(name), "QuotaReserved").unwrap()["status"], "True");
        }
        node.wait_pods("worker", "none", <[Value]>::is_empty);
        testbed::wait_for("the queue to be empty", bed::PATIENCE, || {
            let status = &cluster.bed.object(bed::api::QUEUES, QUEUE).unwrap()["status"];
            let empty = status["used"]["jobs"] == 0 && status["pending"] == 0;
            if empty { Ok(()) } else { Err(status.to_string()) }
        })
        .unwrap();
        for name in ["first", "second"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}

/// The same with Kueue: preempted jobs are held, and a worker without jobs counts as no job.
fn mini_cluster_workers_start_once_kueue_admits_their_htcjob(version: Version) {
    let cluster = Cluster::without_operator(version, true, &["--queueing=kueue", "--kueue-resource=jobs"]);
    let bed = &cluster.bed;
    let _kueue = Kueue::start(&bed.kube).unwrap();
    stage::basics(bed);
    stage::cluster_queue(bed, "pool", 1, &json!({ "preemption": { "withinClusterQueue": "LowerPriority" } }));
    bed.start_operator();
    let here = cluster.namespace();
    stage::local_queue(&here, QUEUE, "pool");
    Node::run(bed, &here.name, version, |node| {
        let mut workers = fixed(0);
        workers["miniClusters"] = json!({ "max": 3 });
        apply(&here, pool(&workers));
        wait_ready(&here, POOL, "Answering");
        let low = here.create(&queued("low", 1, json!({})));
        wait_running(&here, "low", 1);
        assert_eq!(own(node, &low).len(), 1);
        here.create(&queued("second", 2, json!({ "size": 1, "maxSize": 2 })));
        let message = wait_quota(&here, "second", "False", "WaitingForQuota");
        assert!(message.starts_with("LocalQueue batch: "), "{message}");
        looks(&here, node, "second");

        let mut high = queued("high", 1, json!({}));
        high["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high".into();
        let high = here.create(&high);
        wait_running(&here, "high", 1);
        let status = here.get("low")["status"].clone();
        assert_eq!((&status["running"], &status["held"]), (&0.into(), &1.into()), "{status:#}");
        assert_eq!(own(node, &high).len(), 1);
        stage::wait_used(bed, "pool", 1);
        looks(&here, node, "second");
        ends(&here, node, "high");
        places(node, "high", 1);
        wait_running(&here, "low", 1);
        ends(&here, node, "low");
        // Its two jobs are admitted in part, one after the other.
        wait_running(&here, "second", 1);
        assert_eq!(own(node, &here.uid("second")).len(), 1);
        ends(&here, node, "second");
        places(node, "second", 2);
        node.wait_pods("worker", "none", <[Value]>::is_empty);
        stage::wait_used(bed, "pool", 0);
        for name in ["low", "second", "high"] {
            here.delete(name);
        }
        stage::wait_no_workloads(&here);
        delete(&here, POOL);
    });
}
