//! HTCJobs that have workers of their own.

use bed::{Namespace, PATIENCE};
use htc_support::failpoint::Point;
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::super::site::{delete, wait_ready, with_pool};
use super::node::Node;
use super::{Cluster, IMAGE, POOL, apply, fixed, get, pool, wait_workers};

on_versions! {
    trixie: mini_cluster_workers_are_removed_despite_operator_kills;
    sid: mini_cluster_workers_run_only_jobs_of_their_htcjob;
}

const OTHER: &str = "registry.example.org/tools/other:1";
const LABEL: &str = "htc.cern.ch/mini-cluster";

/// Where the operator dies while workers come and go.
const OF_WORKERS: &[Point] = &[
    Point::BeforeWorkerMade,
    Point::AfterWorkerMade,
    Point::BeforeWorkerMarked,
    Point::AfterWorkerMarked,
    Point::BeforeCondorDrain,
    Point::AfterCondorDrain,
    Point::BeforeWorkerDeleted,
    Point::AfterWorkerDeleted,
];

/// Notes on which worker it runs, and runs until it is told to finish.
pub fn placed(name: &str, queue: u32, own: Option<Value>) -> Value {
    let script = "echo $JOB_NAME.$HTCPROCID $POD_NAME $IMAGE_SAYS >>/runs/ran\n\
                  while [ ! -e /runs/finish-$JOB_NAME ]; do sleep 0.3; done\n";
    let mut object = with_pool(bed::htcjob(name, script), POOL);
    object["spec"]["script"]["image"] = format!("docker://{IMAGE}").into();
    object["spec"]["queue"] = queue.into();
    if let Some(own) = own {
        object["spec"]["miniCluster"] = own;
    }
    object
}

/// Waits until the jobs of an `HTCJob` have noted that they run: on which workers, and in which images. Each has done so once.
pub fn places(node: &Node<'_>, name: &str, jobs: usize) -> Vec<(String, String)> {
    let wanted: Vec<String> = (0..jobs).map(|index| format!("{name}.{index}")).collect();
    wait_for(&format!("{name} to run"), PATIENCE, || {
        let text = std::fs::read_to_string(node.runs.join("ran")).unwrap_or_default();
        let mut lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        lines.retain(|words| words[0].strip_prefix(name).is_some_and(|rest| rest.starts_with('.')));
        lines.sort_unstable();
        let ran: Vec<&str> = lines.iter().map(|words| words[0]).collect();
        let places = lines.iter().map(|words| (words[1].to_owned(), words[2].to_owned()));
        if ran == wanted { Ok(places.collect()) } else { Err(text) }
    })
    .unwrap()
}

/// Names of the workers that this `HTCJob` has of its own.
pub fn own(node: &Node<'_>, uid: &str) -> Vec<String> {
    let mut pods = node.pods("worker");
    pods.retain(|pod| pod["metadata"]["labels"][LABEL] == uid);
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn wait_own(here: &Namespace<'_>, name: &str, workers: u32, busy: u32) {
    here.wait(name, &format!("{workers} workers of its own, {busy} busy"), |object| {
        let message = &object["status"]["miniCluster"];
        message["workers"] == workers && message["ready"] == workers && message["busy"] == busy
    });
}

pub fn wait_running(here: &Namespace<'_>, name: &str, jobs: u32) {
    here.wait(name, &format!("{jobs} running"), |object| object["status"]["running"] == jobs);
}

pub fn ends(here: &Namespace<'_>, node: &Node<'_>, name: &str) {
    node.finish(name);
    let ended = here.wait_ended(name);
    assert!(bed::is_true(&ended, "Complete"), "{ended:#}\n{}", here.bed.logs());
}

/// Its jobs run on its own workers only, and no others do; they follow its jobs, and go with them.
fn mini_cluster_workers_run_only_jobs_of_their_htcjob(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        let mut workers = fixed(1);
        apply(&here, pool(&workers));
        wait_ready(&here, POOL, "Answering");
        here.create(&placed("not-allowed", 1, Some(json!({}))));
        let message = here.wait_says("not-allowed", "Submitted", "False", "NoWorkerFits");
        assert!(message.contains("spec.managed.workers.miniClusters"), "{message}");
        workers["miniClusters"] = json!({ "max": 3 });
        workers["allowedImages"] = json!([OTHER]);
        apply(&here, pool(&workers));
        let not_allowed = here.uid("not-allowed");
        wait_running(&here, "not-allowed", 1);
        assert_eq!(own(node, &not_allowed).len(), 1);
        ends(&here, node, "not-allowed");
        refused(&here);
        wait_workers(&here, 1);

        // Two fit on one worker, and the pool's own is not theirs.
        let uid = here.create(&placed("own", 3, Some(json!({ "size": 1, "maxSize": 2 }))));
        wait_running(&here, "own", 3);
        wait_own(&here, "own", 2, 2);
        let workers = own(node, &uid);
        assert!(places(node, "own", 3).iter().all(|(worker, image)| workers.contains(worker) && image == IMAGE));

        // Others fill the pool's own, and no free place of these is for them.
        here.create(&placed("shared", 3, None));
        wait_running(&here, "shared", 2);
        here.create(&placed("image", 1, Some(json!({ "image": OTHER }))));
        wait_running(&here, "image", 1);
        let [(worker, image)] = places(node, "image", 1).try_into().unwrap();
        assert!(!workers.contains(&worker) && image == OTHER, "{worker} {image}");
        let status = get(&here)["status"]["workers"].clone();
        assert_eq!((&status["replicas"], &status["busy"]), (&1.into(), &1.into()), "{status}");
        assert_eq!(here.get("shared")["status"]["running"], 2);
        ends(&here, node, "shared");
        assert!(places(node, "shared", 3).iter().all(|(worker, _)| worker == "own-worker-0"));

        for (name, jobs) in [("own", 3), ("image", 1)] {
            ends(&here, node, name);
            wait_own(&here, name, 0, 0);
            places(node, name, jobs);
        }
        node.wait_pods("worker", "the pool's own alone", |pods| pods.len() == 1);
        for name in ["own", "image", "shared", "not-allowed"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}

/// What the API server refuses, and what the pool does.
fn refused(here: &Namespace<'_>) {
    let tried = |change: &dyn Fn(&mut Value)| {
        let mut object = placed("refused", 1, Some(json!({ "size": 1 })));
        object["metadata"]["namespace"] = here.name.clone().into();
        change(&mut object);
        here.bed.kube.apply_stdin(&object.to_string()).unwrap_err().to_string()
    };
    let own = |own: Value| tried(&move |object: &mut Value| object["spec"]["miniCluster"] = own.clone());
    for (output, wanted) in [
        (tried(&|object| drop(object["spec"].as_object_mut().unwrap().remove("pool"))), "for managed pools only"),
        (tried(&|object| object["spec"]["backend"] = "Kubernetes".into()), "for managed pools only"),
        (own(json!({ "size": 3, "maxSize": 2 })), "size is larger than maxSize"),
        (own(json!({ "size": -1 })), "size is a number of workers"),
        (own(json!({ "maxSize": 0 })), "maxSize is a number of workers"),
        (own(json!({ "image": "a b" })), "image is the name of an image"),
        (own(json!({ "template": { "hostNetwork": true } })), "unknown field"),
    ] {
        assert!(output.contains(wanted), "{wanted}: {output}");
    }
    for (name, own, wanted) in [
        ("image", json!({ "image": "elsewhere:1" }), "names elsewhere:1"),
        ("size", json!({ "size": 4 }), "may have 3 workers"),
        ("class", json!({ "template": { "priorityClassName": "high" } }), "PriorityClass \"high\""),
        ("small", json!({ "resources": { "memory": "64Mi" } }), "spec.miniCluster.resources"),
    ] {
        let name = format!("refused-{name}");
        here.create(&placed(&name, 1, Some(own)));
        let message = here.wait_says(&name, "Submitted", "False", "NoWorkerFits");
        assert!(message.contains(wanted), "{message}");
        let patch = r#"{"spec":{"miniCluster":{"size":2}}}"#;
        let output =
            here.try_kubectl(&["patch", "htcjob", &name, "--type=merge", "-p", patch]).unwrap_err().to_string();
        assert!(output.contains("cannot be changed"), "{output}");
        here.delete(&name);
    }
}

/// The operator dies at each step of their lives: none is made twice, no job runs twice, and none is left.
fn mini_cluster_workers_are_removed_despite_operator_kills(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |node| {
        let mut workers = fixed(0);
        workers["miniClusters"] = json!({ "max": 2 });
        apply(&here, pool(&workers));
        wait_ready(&here, POOL, "Answering");
        let dies: Vec<String> = OF_WORKERS.iter().map(|point| <&str>::from(point).to_owned()).collect();
        bed.dying_at(&dies, dies.len(), || {
            let uid = here.create(&placed("dies", 3, Some(json!({ "size": 0, "maxSize": 2 }))));
            wait_running(&here, "dies", 3);
            assert_eq!(own(node, &uid).len(), 2, "nothing is made twice");
            ends(&here, node, "dies");
            node.wait_pods("worker", "none", <[Value]>::is_empty);
            places(node, "dies", 3);
        });

        // It is deleted while its jobs run, and while nobody looks.
        let uid = here.create(&placed("gone", 1, Some(json!({}))));
        wait_running(&here, "gone", 1);
        bed.kill_operator();
        here.begin_delete("gone");
        assert_eq!(own(node, &uid).len(), 1);
        bed.start_operator();
        node.wait_pods("worker", "none", <[Value]>::is_empty);
        wait_for("the HTCJob to be gone", PATIENCE, || here.all().iter().all(|left| left["metadata"]["uid"] != uid))
            .unwrap();
        here.delete("dies");
        delete(&here, POOL);
    });
}
