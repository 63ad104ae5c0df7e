//! The operator dies before and after each object that it makes, and at each step that sends a worker away.

use std::collections::BTreeMap;

use bed::{Namespace, PATIENCE};
use htc_support::failpoint::Point;
use serde_json::Value;
use testbed::{Version, wait_for};

use super::super::site::{delete, wait_ready};
use super::node::{Node, names};
use super::{Cluster, POOL, apply, ends_well, fixed, get, lasting, pool, wait_workers};

on_versions! {
    sid: operator_kill_at_each_step_creates_nothing_twice;
}

/// What a pool has beside its workers.
const OBJECTS: [&str; 11] = [
    "ConfigMap own-config",
    "Deployment own-central-manager",
    "NetworkPolicy own-pool",
    "NetworkPolicy own-worker",
    "Secret own-central-manager-token",
    "Secret own-operator-token",
    "Secret own-schedd-token",
    "Secret own-signing-key",
    "Service own-central-manager",
    "Service own-schedd",
    "StatefulSet own-schedd",
];
const WORKERS: usize = 2;
/// Where the operator dies while it lets a pool go.
pub const LETS_GO: &[Point] = &[Point::BeforePoolFinalizerReleased, Point::AfterPoolFinalizerReleased];

/// An operator that dies before it makes one makes none, and one that dies after it has made one: so each one is come to by both.
fn each(count: usize, points: &[Point]) -> Vec<String> {
    let names: Vec<String> = points.iter().map(|point| <&str>::from(point).to_owned()).collect();
    (0..count).flat_map(|_| names.clone()).collect()
}

/// What is labelled as the pool's but for pods and what goes with them: its uid by its kind and name.
fn made(here: &Namespace<'_>) -> BTreeMap<String, String> {
    let kinds = "services,configmaps,secrets,deployments,statefulsets,networkpolicies,persistentvolumeclaims";
    let output = here.kubectl(&[
        "get",
        kinds,
        "-l",
        "app.kubernetes.io/managed-by=htc-operator,!htc.cern.ch/role",
        "-o",
        "json",
    ]);
    let all: Value = serde_json::from_str(&output).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let called = |item: &Value| format!("{} {}", text(&item["kind"]), text(&item["metadata"]["name"]));
    all["items"].as_array().unwrap().iter().map(|item| (called(item), text(&item["metadata"]["uid"]))).collect()
}

/// All tokens are of the key that the pool says it has.
fn signed_by_one_key(here: &Namespace<'_>) {
    let key = get(here)["status"]["signingKey"].clone();
    for who in ["central-manager", "schedd", "operator"] {
        let secret = here.object("secret", &format!("own-{who}-token")).unwrap();
        assert_eq!(secret["metadata"]["annotations"]["htc.cern.ch/signing-key"], key, "{who}");
    }
}

fn operator_kill_at_each_step_creates_nothing_twice(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |node| {
        let objects = each(OBJECTS.len(), &[Point::BeforePoolObjectMade, Point::AfterPoolObjectMade]);
        let workers = each(WORKERS, &[Point::BeforeWorkerMade, Point::AfterWorkerMade]);
        let guarded = each(1, &[Point::BeforePoolFinalizerAttached, Point::AfterPoolFinalizerAttached]);
        let places = [guarded, objects, workers].concat();
        bed.dying_at(&places, places.len(), || {
            apply(&here, pool(&fixed(2)));
            wait_ready(&here, POOL, "Answering");
            wait_workers(&here, 2);
        });
        let first = made(&here);
        assert_eq!(first.keys().map(String::as_str).collect::<Vec<_>>(), OBJECTS);
        assert_eq!(node.pods("worker").len(), WORKERS, "{}", names(&node.pods("worker")));
        signed_by_one_key(&here);
        here.create(&lasting("runs"));
        here.wait_phase("runs", "Running");
        wait_for("one worker with a job", PATIENCE, || {
            let status = wait_workers(&here, 2)["status"]["workers"].clone();
            if status["busy"] == 1 { Ok(()) } else { Err(status) }
        })
        .unwrap();

        let steps =
            [Point::BeforeWorkerMarked, Point::AfterWorkerMarked, Point::BeforeCondorDrain, Point::AfterCondorDrain];
        let gone = [Point::BeforeWorkerDeleted, Point::AfterWorkerDeleted];
        let places = [each(WORKERS, &steps), each(WORKERS, &gone)].concat();
        // The one without a job is drained first, and may be gone before the other one is drained.
        bed.dying_at(&places, places.len() - gone.len(), || {
            here.kubectl(&["scale", "htcpool", POOL, "--replicas=0"]);
            let drains = |pod: &Value| pod["metadata"]["annotations"]["htc.cern.ch/drain"] == "true";
            node.wait_pods("worker", "the one with a job, which drains", |pods| {
                pods.len() == 1 && drains(&pods[0]) && get(&here)["status"]["workers"]["draining"] == 1
            });
            assert_eq!(here.get("runs")["status"]["phase"], "Running");
            ends_well(&here, node, "runs");
            node.wait_pods("worker", "none", <[Value]>::is_empty);
        });
        assert_eq!(made(&here), first, "nothing is made anew");

        here.delete("runs");
        bed.dying_at(&each(1, LETS_GO), LETS_GO.len(), || delete(&here, POOL));
        wait_for("all that the pool had to be gone", PATIENCE, || {
            let left = made(&here);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .unwrap();
        let pods = bed.objects(&format!("/api/v1/namespaces/{}/pods", here.name));
        assert!(pods.iter().all(|pod| !pod["metadata"]["deletionTimestamp"].is_null()), "{}", names(&pods));
    });
}
