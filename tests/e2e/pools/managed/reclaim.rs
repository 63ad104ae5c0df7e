//! The queue of a pool that is deleted and created again.

use bed::{Namespace, PATIENCE};
use serde_json::Value;
use testbed::{Version, wait_for};

use super::super::site::{delete, wait_ready};
use super::node::Node;
use super::{Cluster, POOL, apply, configured, ends_well, fixed, get, lasting, pool, tool};

on_versions! {
    sid: recreated_pool_reuses_its_queue_unless_reclaim_is_delete;
}

/// Its claim.
const CLAIM: &str = "spool-own-schedd-0";

/// Where the next job of a queue is, and which queue that is.
fn run_one(here: &Namespace<'_>, node: &Node<'_>, name: &str) -> (u32, String) {
    wait_ready(here, POOL, "Answering");
    here.create(&lasting(name));
    here.wait_phase(name, "Running");
    let id = bed::ids(&here.get(name)).remove(0);
    let config = configured(here, "own-operator-token", name);
    let question = ["-schedd", "-af", "JobQueueBirthdate"];
    let output = tool(here, &config, "condor_status").args(question).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    ends_well(here, node, name);
    here.delete(name);
    (id.split('.').next().unwrap().parse().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn claim(here: &Namespace<'_>) -> Option<Value> {
    here.bed.object(&format!("/api/v1/namespaces/{}/persistentvolumeclaims", here.name), CLAIM)
}

/// A pool of the same name continues with the queue of the deleted one; with `reclaim: Delete` the claim is deleted,
/// too.
fn recreated_pool_reuses_its_queue_unless_reclaim_is_delete(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        let before = run_one(&here, node, "first");
        let (kept, old) = (claim(&here).unwrap()["metadata"]["uid"].clone(), get(&here)["metadata"]["uid"].clone());
        delete(&here, POOL);
        for role in ["worker", "schedd", "central-manager"] {
            node.wait_pods(role, "none", <[Value]>::is_empty);
        }
        assert_eq!(claim(&here).unwrap()["metadata"]["uid"], kept);

        let mut object = pool(&fixed(1));
        object["spec"]["managed"]["schedd"]["storage"]["reclaim"] = "Delete".into();
        apply(&here, object);
        let after = run_one(&here, node, "second");
        assert_ne!(get(&here)["metadata"]["uid"], old);
        assert_eq!(claim(&here).unwrap()["metadata"]["uid"], kept);
        assert_eq!(after, (before.0 + 1, before.1), "the queue is the same, and its ids go on");
        delete(&here, POOL);
        wait_for("the claim to be gone", PATIENCE, || claim(&here).map_or(Ok(()), Err)).unwrap();
    });
}
