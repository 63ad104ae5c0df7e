//! HTCJobs that have workers of their own and are in a queue.

use bed::{condition, of};
use serde_json::{Value, json};
use testbed::Version;

use super::super::site::{delete, wait_ready};
use super::mini::{ends, own, places, wait_running};
use super::node::Node;
use super::{Cluster, POOL, apply, fixed, mini, pool};
use crate::queue::site::{labelled, wait_quota};

const QUEUE: &str = "batch";

fn set_quota(cluster: &Cluster, jobs: u32) {
    let queue = json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": QUEUE },
        "spec": { "namespaceSelector": {}, "quota": { "jobs": jobs } },
    });
    cluster.bed.kube.apply_stdin(&queue.to_string()).unwrap();
}

/// Its workers come when it has room, and not before: what waits in the queue holds no machine. A job that waits for its worker uses room.
pub fn its_workers_come_when_it_has_room(version: Version) {
    let cluster = Cluster::with(version, true, &["--queueing=embedded"]);
    let here = cluster.namespace();
    set_quota(&cluster, 2);
    Node::run(&cluster.bed, &here.name, version, |node| {
        let mut workers = fixed(0);
        workers["miniClusters"] = json!({ "max": 3 });
        apply(&here, pool(&workers));
        wait_ready(&here, POOL, "Answering");
        let queued = |name: &str, jobs: u32, own: Value| labelled(mini::placed(name, jobs, Some(own)), QUEUE);
        let first = here.create(&queued("first", 2, json!({ "maxSize": 1 })));
        wait_running(&here, "first", 2);
        assert_eq!(own(node, &first).len(), 1);

        // It asks for a worker whether or not it has jobs to run.
        let second = here.create(&queued("second", 2, json!({ "size": 1, "maxSize": 2 })));
        let message = wait_quota(&here, "second", "False", "WaitingForQuota");
        assert!(message.contains("HTCQueue batch has 2 of 2 jobs in use"), "{message}");
        let looks = || {
            assert!(own(node, &second).is_empty(), "it waits");
            assert!(cluster.bed.queue(&of(&second), &["ProcId"]).is_empty());
        };
        looks();
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
            let get = ["get", "htcqueue", QUEUE, "-o", "jsonpath={.status.used.jobs} {.status.pending}"];
            let said = cluster.bed.kube.kubectl_ok(&get).unwrap();
            if said == "0 0" { Ok(()) } else { Err(said) }
        })
        .unwrap();
        for name in ["first", "second"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}
