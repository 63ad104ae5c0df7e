//! Pools that the operator runs: their objects on a real API server, and their pods on a node that this test plays.

mod environment;
mod fencing;
mod forged_worker;
mod images;
mod links;
mod lost_worker;
mod mini_clusters;
mod missing_workers;
mod node;
mod operator_kills;
mod orphans;
mod payload_confinement;
mod pod_settings;
mod programs;
mod queued;
mod reclaim;
mod shadow_confinement;
mod signing_key;
mod users;
mod volumes;

use std::path::{Path, PathBuf};
use std::process::Command;

use bed::site::says;
use bed::{Bed, Namespace, PATIENCE, htcjob, is_true};
use htc_support::failpoint::Point;
use serde_json::{Value, json};
use testbed::{Account, Controllers, KubeOptions, PoolOptions, Port, Version, wait_for};

use super::site::{delete, find, wait_condition, wait_gone, wait_ready, wait_ready_says, with_pool};
use node::{Node, names, services};

pub use operator_kills::LETS_GO;

on_versions! {
    both: tokens_are_renewed_while_daemons_run;
    trixie: pool_objects_are_its_own_and_restricted, tokens_grant_each_daemon_only_its_rights;
    sid: jobs_survive_replacement_of_all_pool_daemons;
    long: pool_scales_with_its_jobs;
}

pub const POOL: &str = "own";
/// The image that jobs run in.
const IMAGE: &str = "registry.example.org/analysis:1";

/// Real controllers make the pods of the central manager and of the schedd, and delete what is owned by what is gone.
const CONTROLLERS: &[&str] = &[
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "serviceaccount-controller",
    "garbage-collector-controller",
    // A claim goes when no pod has it any more.
    "persistentvolumeclaim-protection-controller",
];

/// Where the operator dies while it makes a pool and its workers, and sends them away again.
pub const POINTS: &[Point] = &[
    Point::BeforePoolFinalizerAttached,
    Point::AfterPoolFinalizerAttached,
    Point::BeforePoolObjectMade,
    Point::AfterPoolObjectMade,
    Point::BeforeWorkerMade,
    Point::AfterWorkerMade,
    // One that is marked is not marked again.
    Point::BeforeWorkerMarked,
    Point::AfterWorkerMarked,
    Point::BeforeCondorDrain,
    Point::AfterCondorDrain,
    Point::BeforeWorkerDeleted,
    Point::AfterWorkerDeleted,
];

struct Cluster {
    // Fields drop in this order.
    _controllers: Option<Controllers>,
    bed: Bed,
    _net: Port,
}

impl Cluster {
    fn start(version: Version, with_controllers: bool) -> Self {
        Self::with(version, with_controllers, &[])
    }

    fn with(version: Version, with_controllers: bool, arguments: &[&str]) -> Self {
        let cluster = Self::without_operator(version, with_controllers, arguments);
        cluster.bed.start_operator();
        cluster
    }

    fn without_operator(version: Version, with_controllers: bool, arguments: &[&str]) -> Self {
        let net = Port::reserve().unwrap();
        let options = KubeOptions { services: services(&net), ..KubeOptions::default() };
        let own = [&["--credentials-refresh=3s", "--poll-interval=3s"], arguments].concat();
        let bed = Bed::with_kube(version, &options, &PoolOptions::default(), &own);
        let controllers = with_controllers.then(|| bed.controllers(CONTROLLERS));
        Self { _controllers: controllers, bed, _net: net }
    }

    /// A namespace in which the operator may run pools, and that lets in no pod that is not restricted.
    fn namespace(&self) -> Namespace<'_> {
        let here = self.closed_namespace();
        here.let_operator("namespace-pools");
        here
    }

    /// The same where it may not.
    fn closed_namespace(&self) -> Namespace<'_> {
        let here = self.bed.namespace();
        let label = "pod-security.kubernetes.io/enforce";
        self.bed.merge("/api/v1/namespaces", &here.name, &json!({ "metadata": { "labels": { label: "restricted" } } }));
        here
    }
}

pub fn pool(workers: &Value) -> Value {
    json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCPool", "metadata": { "name": POOL },
        "spec": { "managed": {
            "image": "htcondor:test",
            "schedd": { "storage": { "size": "1Gi" } },
            "workers": workers,
        }},
    })
}

pub fn fixed(replicas: u32) -> Value {
    let resources = json!({ "cpus": 2, "memory": "512Mi", "disk": "4Gi" });
    json!({ "image": IMAGE, "replicas": replicas, "resources": resources })
}

pub fn apply(here: &Namespace<'_>, mut object: Value) {
    object["metadata"]["namespace"] = here.name.clone().into();
    here.bed.apply(&object);
}

fn get(here: &Namespace<'_>) -> Value {
    find(here, POOL).unwrap()
}

/// Waits until HTCondor knows that many workers; the pool.
fn wait_workers(here: &Namespace<'_>, ready: u32) -> Value {
    wait_for(&format!("{ready} workers"), PATIENCE, || {
        let pool = get(here);
        if says(&pool, "WorkersReady", "True", "AsWanted") && pool["status"]["workers"]["ready"] == ready {
            Ok(pool)
        } else {
            Err(format!("{:#}", pool["status"]))
        }
    })
    .unwrap()
}

/// An `HTCJob` that notes that it runs, and runs until it is told to finish.
fn lasting(name: &str) -> Value {
    let script = "echo $JOB_NAME.$HTCPROCID.$IMAGE_SAYS >>/runs/ran\n\
                  while [ ! -e /runs/finish-$JOB_NAME ]; do sleep 0.3; done\necho finished in $PWD >result\n";
    let mut object = with_pool(htcjob(name, script), POOL);
    object["spec"]["script"]["image"] = format!("docker://{IMAGE}").into();
    object
}

fn note(name: &str) -> String {
    format!("{name}.0.{IMAGE}")
}

/// It has succeeded, ran once, and its output is here.
fn ends_well(here: &Namespace<'_>, node: &Node<'_>, name: &str) {
    ends_well_as(here, node, name, &note(name));
}

fn ends_well_as(here: &Namespace<'_>, node: &Node<'_>, name: &str, written: &str) {
    node.finish(name);
    let ended = here.wait_ended(name);
    assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", here.bed.logs());
    assert_eq!(node.noted(written), 1, "{name}");
    here.wait_output(name);
    let result = std::fs::read_to_string(here.output(name, 0).join("result")).unwrap();
    assert!(result.starts_with("finished in "), "{result}");
}

/// A configuration of its own for a token of the pool.
fn configured(here: &Namespace<'_>, secret: &str, at: &str) -> PathBuf {
    let token = here.secret_entry(secret, "token");
    configured_with(here, &token, &format!("as-{secret}-{at}"))
}

fn configured_with(here: &Namespace<'_>, token: &str, folder: &str) -> PathBuf {
    let bed = here.bed;
    let folder = bed.scratch().dir(folder).unwrap();
    let account = Account::unprivileged();
    account.make_dir(&folder.join("tokens"), 0o700).unwrap();
    account.write(&folder.join("tokens/token"), token, 0o600).unwrap();
    let service = here.object("service", "own-central-manager").unwrap();
    let service = service["spec"]["clusterIP"].as_str().unwrap();
    let text = format!(
        "RELEASE_DIR = {}\nLOCAL_DIR = {1}\nLOCAL_CONFIG_FILE =\nLOCAL_CONFIG_DIR =\nREQUIRE_LOCAL_CONFIG_FILE = false\n\
         COLLECTOR_HOST = {service}:9618\nSEC_TOKEN_DIRECTORY = {1}/tokens\nSEC_CLIENT_AUTHENTICATION_METHODS = IDTOKENS\n",
        bed.pool.release_dir().display(),
        folder.display()
    );
    let config = folder.join("condor_config");
    account.write(&config, text, 0o644).unwrap();
    config
}

/// One of HTCondor's tools with that configuration.
fn tool(here: &Namespace<'_>, config: &Path, name: &str) -> Command {
    let mut command = Account::unprivileged().command(&here.bed.pool.bin_dir().join(name));
    command.env_clear().env("CONDOR_CONFIG", config).env("HOME", "/nonexistent");
    command
}

/// The Secret with the token of a worker that this namespace has to itself.
fn worker_secret(namespace: &str, number: u32) -> String {
    format!("own-worker-ns-{namespace}-{number}")
}

/// What the schedd of the pool is called.
fn schedd(here: &Namespace<'_>) -> String {
    format!("schedd@own.{}.htcpool", here.name)
}

/// What condor_ping says of the rights of a token at the collector or the schedd.
fn rights(here: &Namespace<'_>, secret: &str, at: &str) -> Vec<String> {
    let (config, schedd) = (configured(here, secret, at), schedd(here));
    let levels = ["READ", "WRITE", "ADMINISTRATOR", "ADVERTISE_SCHEDD", "ADVERTISE_STARTD", "ADVERTISE_MASTER"];
    let may = |level: &&str| {
        let to: &[&str] = if at == "schedd" { &["-type", "schedd", "-name", &schedd] } else { &["-type", "collector"] };
        tool(here, &config, "condor_ping").args(to).args(["-quiet", level]).output().unwrap().status.success()
    };
    levels.into_iter().filter(may).map(str::to_lowercase).collect()
}

/// Each token opens what its holder needs, and nothing else.
fn tokens_grant_each_daemon_only_its_rights(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |_| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        wait_workers(&here, 1);
        let at_collector = |who: &str| rights(&here, &format!("own-{who}-token"), "collector").join(" ");
        // Who may be an administrator may write, too: there is nothing to write to a collector but what is advertised.
        assert_eq!(at_collector("operator"), "read write administrator");
        assert_eq!(at_collector("schedd"), "read advertise_schedd advertise_master");
        let at = |place: &str| rights(&here, &worker_secret(&here.name, 0), place).join(" ");
        assert_eq!(at("collector"), "read advertise_startd advertise_master");
        assert_eq!(rights(&here, "own-operator-token", "schedd").join(" "), "read write");
        // The queue has the jobs of all namespaces.
        assert_eq!(at("schedd"), "");

        let mut object = lasting("own-secret");
        object["spec"]["credentialsSecretName"] = "mine".into();
        here.create(&object);
        let message = here.wait_says("own-secret", "Submitted", "False", "InvalidSpec");
        assert!(message.contains("without spec.credentialsSecretName"), "{message}");
        assert_eq!(here.get("own-secret")["status"]["attempt"], Value::Null);
        here.delete("own-secret");
        delete(&here, POOL);
    });
}

/// Tokens that are old are made anew, and come to daemons that run.
fn tokens_are_renewed_while_daemons_run(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(0)));
        wait_ready(&here, POOL, "Answering");
        let secrets = ["own-central-manager-token", "own-schedd-token", "own-operator-token"];
        let tokens = || secrets.map(|secret| here.secret_entry(secret, "token"));
        let before = tokens();
        for secret in secrets {
            here.kubectl(&["annotate", "secret", secret, "--overwrite", "htc.cern.ch/token-made=1"]);
        }
        cluster.bed.kill_operator();
        cluster.bed.start_operator();
        wait_for("all tokens to be new", PATIENCE, || {
            let now = tokens();
            if now.iter().zip(&before).all(|(now, before)| now != before) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .unwrap();
        for (role, secret) in [("central-manager", secrets[0]), ("schedd", secrets[1])] {
            let pod = node.pods(role).remove(0);
            let wanted = here.secret_entry(secret, "token");
            wait_for("the daemons to have it", PATIENCE, || {
                let has = std::fs::read_to_string(node.folder(&pod).join("local/tokens.d/token")).unwrap_or_default();
                if has == wanted { Ok(()) } else { Err(has) }
            })
            .unwrap();
            assert_eq!(node.pods(role)[0]["metadata"]["uid"], pod["metadata"]["uid"], "it runs on");
        }
        assert_eq!(rights(&here, secrets[1], "collector").join(" "), "read advertise_schedd advertise_master");
        delete(&here, POOL);
    });
}

/// Central manager and schedd are replaced, and workers go, while jobs run: no job is lost, and none runs twice.
fn jobs_survive_replacement_of_all_pool_daemons(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        for name in ["first", "second"] {
            here.create(&lasting(name));
            here.wait_phase(name, "Running");
        }
        let running = wait_workers(&here, 1);
        assert_eq!(running["status"]["workers"]["busy"], 1, "{running:#}");
        let mut other = lasting("other-image");
        other["spec"]["script"]["image"] = "another:1".into();
        here.create(&other);
        let message = here.wait_says("other-image", "Submitted", "False", "NoWorkerFits");
        assert!(message.contains(IMAGE), "{message}");
        here.delete("other-image");

        // Both are busy, or would be: the new one has nothing to do, and goes.
        here.kubectl(&["scale", "htcpool", POOL, "--replicas=2"]);
        wait_workers(&here, 2);
        here.kubectl(&["scale", "htcpool", POOL, "--replicas=1"]);
        node.wait_pods("worker", "the first alone", |pods| {
            pods.len() == 1 && pods[0]["metadata"]["name"] == "own-worker-0"
        });

        for role in ["central-manager", "schedd"] {
            let before = node.pods(role)[0]["metadata"]["uid"].clone();
            here.kubectl(&["delete", "pod", "-l", &format!("htc.cern.ch/role={role}"), "--wait=false"]);
            node.wait_pods(role, "another one", |pods| {
                pods.len() == 1 && pods[0]["metadata"]["uid"] != before && pods[0]["status"]["phase"] == "Running"
            });
            bed.kill_operator();
            bed.start_operator();
        }
        wait_ready(&here, POOL, "Answering");
        ends_well(&here, node, "first");
        here.create(&lasting("third"));
        here.wait_phase("third", "Running");

        // It finishes what it has, and takes nothing more.
        here.kubectl(&["scale", "htcpool", POOL, "--replicas=0"]);
        wait_for("the worker to drain", PATIENCE, || {
            let status = get(&here)["status"]["workers"].clone();
            if status["draining"] == 1 { Ok(()) } else { Err(status) }
        })
        .unwrap();
        assert_eq!(node.pods("worker")[0]["metadata"]["annotations"]["htc.cern.ch/drain"], "true");
        here.create(&lasting("late"));
        here.wait_phase("late", "Submitted");
        for name in ["second", "third"] {
            assert_eq!(here.get(name)["status"]["phase"], "Running", "{name}");
            ends_well(&here, node, name);
        }
        node.wait_pods("worker", "none", <[Value]>::is_empty);
        assert_eq!(node.noted(&note("late")), 0);
        here.kubectl(&["scale", "htcpool", POOL, "--replicas=1"]);
        here.wait_phase("late", "Running");
        ends_well(&here, node, "late");

        here.begin_remove("htcpool", POOL);
        wait_ready(&here, POOL, "InUse");
        for name in ["first", "second", "third", "late"] {
            here.delete(name);
        }
        wait_gone(&here, POOL);
        wait_for("all that the pool had to be gone", PATIENCE, || {
            let kinds = "pods,services,configmaps,secrets,deployments,statefulsets,networkpolicies";
            let left = here.kubectl(&["get", kinds, "-l", "htc.cern.ch/htcpool", "-o", "name"]);
            if left.trim().is_empty() { Ok(()) } else { Err(left) }
        })
        .unwrap();
        assert!(here.kubectl(&["get", "persistentvolumeclaims", "-o", "name"]).contains("spool-own-schedd-0"));
    });
}

/// From no workers to as many as the jobs need and back; a lost worker is replaced.
fn pool_scales_with_its_jobs(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |node| {
        let mut workers = fixed(0);
        workers.as_object_mut().unwrap().remove("replicas");
        workers["autoscaling"] = json!({ "max": 2, "scaleDownAfterSeconds": 5 });
        let places: Vec<String> = POINTS.iter().map(|point| <&str>::from(point).to_owned()).collect();
        bed.dying_at(&places, places.len(), || {
            apply(&here, pool(&workers));
            wait_ready(&here, POOL, "Answering");
            assert_eq!(names(&node.pods("worker")), "");
            // Two fit on one worker.
            for name in ["a", "b", "c"] {
                here.create(&lasting(name));
            }
            node.wait_pods("worker", "two", |pods| pods.len() == 2);
            for name in ["a", "b", "c"] {
                here.wait_phase(name, "Running");
            }
            assert_eq!(node.pods("worker").len(), 2, "nothing is made twice");
            for name in ["a", "b", "c"] {
                ends_well(&here, node, name);
            }
            node.wait_pods("worker", "none", <[Value]>::is_empty);
        });

        here.create(&lasting("again"));
        here.wait_phase("again", "Running");
        let worker = node.pods("worker")[0]["metadata"]["name"].as_str().unwrap().to_owned();
        node.lose(&worker);
        wait_workers(&here, 1);
        here.annotate("again", "htc.cern.ch/abandon");
        // Completed ones are in the pool, too.
        for name in ["again", "a", "b", "c"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}

/// The objects of a pool are restored after edits, and objects of others under their names are left alone.
fn pool_objects_are_its_own_and_restricted(version: Version) {
    let cluster = Cluster::start(version, false);
    let (here, bed) = (cluster.closed_namespace(), &cluster.bed);
    here.kubectl(&["create", "serviceaccount", "default"]);
    let services = ["own-central-manager", "own-schedd"];
    for service in services {
        here.kubectl(&["create", "service", "clusterip", service, "--tcp=1"]);
    }
    let mut object = pool(&fixed(1));
    object["spec"]["managed"]["centralManager"] = json!({ "storage": { "size": "1Gi" } });
    apply(&here, object);
    let message = wait_ready(&here, POOL, "NotPermitted");
    assert!(message.contains("own-signing-key"), "{message}");
    here.let_operator("namespace-pools");
    for service in services {
        wait_ready_says(&here, POOL, "NameTaken", &format!("Service {service} "));
        here.remove("service", service);
    }
    wait_ready(&here, POOL, "ScheddUnreachable");
    let wait_pods = |count: usize| {
        wait_for(&format!("{count} workers"), PATIENCE, || {
            let mut pods = bed.objects(&format!("/api/v1/namespaces/{}/pods", here.name));
            pods.retain(|pod| pod["metadata"]["labels"]["htc.cern.ch/role"] == "worker");
            if pods.len() == count { Ok(()) } else { Err(format!("{pods:?}")) }
        })
        .unwrap();
    };
    wait_pods(1);

    owned_and_let_in(&here);

    // Edits by hand are undone when the pool is looked at again; another spec is written.
    let lets_in = || here.object("networkpolicy", "own-worker").unwrap()["spec"]["ingress"].take();
    let limited = lets_in();
    here.patch("statefulset", "own-schedd", &json!({ "spec": { "replicas": 2 } }));
    here.patch("networkpolicy", "own-worker", &json!({ "spec": { "ingress": [{}] } }));
    assert_eq!(lets_in(), json!([{}]), "everybody");
    let image = json!({ "spec": { "managed": { "image": "htcondor:next" } } });
    here.patch("htcpool", POOL, &image);
    wait_for("the StatefulSet to be as it should be", PATIENCE, || {
        let set = here.object("statefulset", "own-schedd").unwrap();
        let image = &set["spec"]["template"]["spec"]["containers"][0]["image"];
        if *image == "htcondor:next" && set["spec"]["replicas"] == 1 { Ok(()) } else { Err(set["spec"].clone()) }
    })
    .unwrap();
    wait_for("the NetworkPolicy to be as it should be", PATIENCE, || {
        if lets_in() == limited { Ok(()) } else { Err(lets_in()) }
    })
    .unwrap();

    refused(&here);

    // The key is never made a second time: all tokens would be worth nothing.
    let key = || here.object("secret", "own-signing-key").unwrap()["data"]["htcpool"].take();
    let before = key();
    let foreign = worker_secret(&here.name, 2);
    here.secret(&foreign, "token", "another's");
    here.kubectl(&["scale", "htcpool", POOL, "--replicas=4"]);
    wait_pods(4);
    one_secret_is_anothers(&here, &foreign);
    assert_eq!(key(), before);
    here.remove("secret", "own-signing-key");
    here.bed.kill_operator();
    here.bed.start_operator();
    let message = wait_ready(&here, POOL, "SigningKeyMissing");
    assert!(message.contains("own-signing-key"), "{message}");
    delete(&here, POOL);
}

/// The worker with the name of a Secret that is another's waits for somebody to delete that, and no other worker does.
fn one_secret_is_anothers(here: &Namespace<'_>, foreign: &str) {
    let message = wait_condition(here, POOL, "WorkersReady", "NameTaken");
    assert!(message.contains(&format!("Secret {foreign} ")) && message.contains("delete it"), "{message}");
    let others = [0, 1, 3].map(|number| worker_secret(&here.name, number));
    for name in &others {
        here.remove("secret", name);
    }
    // It does not know that it has made them.
    here.bed.kill_operator();
    here.bed.start_operator();
    let wait_owned = |name: &str| {
        wait_for(&format!("Secret {name}"), PATIENCE, || {
            let secret = here.object("secret", name).unwrap_or_default();
            if secret["metadata"]["ownerReferences"][0]["kind"] == "Pod" { Ok(()) } else { Err(secret) }
        })
        .unwrap();
    };
    for name in &others {
        wait_owned(name);
    }
    here.remove("secret", foreign);
    wait_owned(foreign);
    wait_condition(here, POOL, "WorkersReady", "CollectorSilent");
}

/// All that the pool has is there, and its own; and pods of its templates are let into a namespace that is restricted.
fn owned_and_let_in(here: &Namespace<'_>) {
    let uid = get(here)["metadata"]["uid"].clone();
    let kinds = "services,configmaps,secrets,deployments,statefulsets,networkpolicies,persistentvolumeclaims,pods";
    let all: Value =
        serde_json::from_str(&here.kubectl(&["get", kinds, "-l", "htc.cern.ch/htcpool=own", "-o", "json"])).unwrap();
    let items = all["items"].as_array().unwrap();
    let found: Vec<String> =
        items.iter().map(|item| format!("{} {}", item["kind"], item["metadata"]["name"]).replace('"', "")).collect();
    for expected in [
        "Service own-central-manager",
        "Service own-schedd",
        "ConfigMap own-config",
        "Secret own-signing-key",
        "Secret own-central-manager-token",
        "Secret own-schedd-token",
        "Secret own-worker-ns-{namespace}-0",
        "Secret own-operator-token",
        "Deployment own-central-manager",
        "StatefulSet own-schedd",
        "NetworkPolicy own-pool",
        "NetworkPolicy own-worker",
        "PersistentVolumeClaim own-central-manager",
        "Pod own-worker-0",
    ] {
        let expected = expected.replace("{namespace}", &here.name);
        assert!(found.contains(&expected), "{expected} is not in {found:?}");
    }
    assert_eq!(found.len(), 14, "{found:?}");
    for item in items {
        let owner = &item["metadata"]["ownerReferences"][0];
        if item["metadata"]["labels"]["htc.cern.ch/role"] == "worker" && item["kind"] == "Secret" {
            assert_eq!((&owner["name"], &owner["kind"]), (&"own-worker-0".into(), &"Pod".into()), "{item:#}");
        } else {
            assert_eq!((&owner["uid"], &owner["kind"]), (&uid, &"HTCPool".into()), "{item:#}");
        }
        // Pods of these templates are let in here; a worker is in already.
        if item["spec"]["template"].is_object() {
            let mut pod =
                json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "tried", "namespace": here.name } });
            pod["spec"] = item["spec"]["template"]["spec"].clone();
            for claim in item["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
                let volume = json!({ "name": claim["metadata"]["name"], "emptyDir": {} });
                pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
            }
            here.bed.apply(&pod);
            here.kill_pod("tried");
        }
    }
}

/// What would make another pool of it, or has no meaning.
fn refused(here: &Namespace<'_>) {
    for (refused, says) in [
        (r#"{"spec":{"managed":{"workers":{"image":"another:1"}}}}"#, "the image of the workers cannot be changed"),
        (r#"{"spec":{"managed":{"workers":{"autoscaling":{"max":3}}}}}"#, "exclude each other"),
        (
            r#"{"spec":{"managed":{"workers":{"allowedImages":["*"]}}}}"#,
            "allowedImages needs autoscaling or miniClusters",
        ),
        (r#"{"spec":{"managed":{"workers":{"allowedImages":["a*b"]}}}}"#, "should match"),
        (
            r#"{"spec":{"managed":{"workers":{"allowedClaims":["a"]}}}}"#,
            "allowedClaims needs autoscaling or miniClusters",
        ),
        (r#"{"spec":{"managed":{"workers":{"isolation":"None"}}}}"#, "the isolation of the workers cannot be changed"),
        (r#"{"spec":{"managed":{"schedd":{"storage":{"size":"2Gi"}}}}}"#, "the volume of the queue cannot be changed"),
        (r#"{"spec":{"external":{"collector":"c","schedd":"s","credentialsSecretName":"x"}}}"#, "either"),
        (r#"{"spec":{"managed":{"podUser":"Cluster"}}}"#, "podUser cannot be changed"),
        (r#"{"spec":{"managed":{"signingKey":{"generation":0}}}}"#, "generation is a number from 1 to 1000"),
        (
            r#"{"spec":{"managed":{"signingKey":{"generation":1,"oldestAccepted":2}}}}"#,
            "oldestAccepted is larger than generation",
        ),
        (r#"{"spec":{"managed":null}}"#, "either"),
    ] {
        let error =
            here.try_kubectl(&["patch", "htcpool", POOL, "--type=merge", "-p", refused]).unwrap_err().to_string();
        assert!(error.contains(says), "{refused}: {error}");
    }
}
