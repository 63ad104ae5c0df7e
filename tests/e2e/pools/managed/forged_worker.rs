//! A payload that becomes a worker, with the token of the worker that it runs on: whose jobs it is given.

use std::fs;
use std::path::Path;

use bed::{Namespace, PATIENCE, htcjob};
use serde_json::{Value, json};
use testbed::{Account, Owned, Spec, Version, wait_for};

use super::super::site::{delete, wait_ready, with_pool};
use super::node::Node;
use super::{Cluster, IMAGE, POOL, apply, fixed, pool, wait_workers, worker_secret};

on_versions! {
    both: forged_worker_gets_no_job_of_another_tenant;
}

/// The worker advertises itself like workers of others, and gets jobs of its own namespace only.
///
/// Without the identity that jobs require it is given those of all three.
fn forged_worker_gets_no_job_of_another_tenant(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, guest) = (cluster.namespace(), cluster.namespace());
    Node::run(&cluster.bed, &here.name, version, |node| {
        let mut workers = fixed(1);
        workers["miniClusters"] = json!({ "max": 2 });
        let mut open = pool(&workers);
        open["spec"]["allowedNamespaces"] = json!([here.name, guest.name]);
        apply(&here, open);
        wait_ready(&here, POOL, "Answering");
        wait_workers(&here, 1);
        let token = here.secret_entry(&worker_secret(&here.name, 0), "token");

        let place = format!("{}/{POOL}", here.name);
        let waiting = |name: &str| {
            let mut object = with_pool(htcjob(name, "true"), &place);
            object["spec"]["script"]["image"] = format!("docker://{IMAGE}").into();
            // The true ones do not take it before the false one is there.
            object["spec"]["htcopts"] = "requirements = TARGET.Hostile =?= true".into();
            object
        };
        let mut own = waiting("own");
        own["spec"]["miniCluster"] = json!({ "size": 0, "maxSize": 1 });
        let its = guest.create(&own);
        guest.create(&waiting("victim"));
        for name in ["own", "victim"] {
            guest.wait_phase(name, "Submitted");
        }
        let folder = cluster.bed.scratch().dir("hostile").unwrap();
        let lies = [
            ("HTCWorkerMiniCluster", its),
            ("HTCWorkerOwner", "-".to_owned()),
            ("AuthenticatedIdentity", format!("worker-ns-{}@own.{}.htcpool", guest.name, here.name)),
        ];
        let hostile = Owned::spawn(&startd(&here, node, &folder, &token, &lies)).unwrap();

        let given = || fs::read_to_string(folder.join("given")).unwrap_or_default();
        // In each round of the negotiator all namespaces have their turn.
        for name in ["bait", "again"] {
            here.create(&waiting(name));
            wait_for("the false worker to be given a job of its own namespace", PATIENCE, || {
                let given = given();
                let own = format!("{}/{name}", here.name);
                if given.lines().any(|line| line == own) { Ok(()) } else { Err(format!("{given}\n{}", log(&folder))) }
            })
            .unwrap();
        }
        let others: Vec<String> =
            given().lines().filter(|line| !line.starts_with(&format!("{}/", here.name))).map(str::to_owned).collect();
        assert_eq!(others, Vec::<String>::new(), "jobs of others");
        drop(hostile);
        for (namespace, name) in [(&guest, "own"), (&guest, "victim"), (&here, "bait"), (&here, "again")] {
            namespace.delete(name);
        }
        delete(&here, POOL);
    });
}

/// A master and a startd outside of all pods, configured as a worker of the pool but for what it says of itself. It notes whose jobs it is
/// given.
fn startd(here: &Namespace<'_>, node: &Node<'_>, folder: &Path, token: &str, lies: &[(&str, String)]) -> Spec {
    let account = Account::unprivileged();
    account.own(folder).unwrap();
    for (name, mode) in [
        ("log", 0o755),
        ("execute", 0o755),
        ("run", 0o755),
        ("lock", 0o755),
        ("spool", 0o755),
        ("tokens.d", 0o700),
        ("passwords.d", 0o700),
    ] {
        account.make_dir(&folder.join(name), mode).unwrap();
    }
    account.write(&folder.join("tokens.d/token"), token, 0o600).unwrap();
    let hook = format!(
        "#!/bin/sh\nPATH=/bin:/usr/bin\nsed -n 's/^JobBatchName = \"\\(.*\\)\"$/\\1/p' >>{}\n",
        folder.join("given").display()
    );
    account.write(&folder.join("note"), hook, 0o755).unwrap();
    let map = here.object("configmap", "own-config").unwrap();
    let service = here.object("service", "own-central-manager").unwrap();
    let worker = map["data"]["worker"].as_str().unwrap();
    let own = format!(
        "RELEASE_DIR = {}\nLOCAL_DIR = {}\nCONDOR_HOST = {}\nSTARTER_JOB_HOOK_KEYWORD = X\n\
         X_HOOK_PREPARE_JOB_BEFORE_TRANSFER = $(LOCAL_DIR)/note\nSTART = true\nHostile = true\n",
        here.bed.pool.release_dir().display(),
        folder.display(),
        address(&service),
    );
    let added: Vec<String> = lies.iter().map(|(name, value)| format!("{name} = \"{value}\"\n")).collect();
    let told: Vec<&str> = lies.iter().map(|(name, _)| *name).collect();
    let text = format!("{worker}{own}{}STARTD_ATTRS = $(STARTD_ATTRS) Hostile {}\n", added.concat(), told.join(" "));
    let config = folder.join("condor_config");
    account.write(&config, text, 0o644).unwrap();
    let master = here.bed.pool.bin_dir().parent().unwrap().join("sbin/condor_master");
    let mut spec = Spec::new(master, folder.join("output")).arg("-f").env("CONDOR_CONFIG", &config);
    for (name, value) in [
        ("POD_NAME", "hostile"),
        ("POD_UID", "hostile"),
        ("POD_IP", &node.address()),
        ("WORKER_IMAGE", IMAGE),
        ("WORKER_MINI_CLUSTER", "-"),
        ("WORKER_OWNER", "-"),
        ("WORKER_IDENTITY", &format!("worker-ns-{}@own.{0}.htcpool", here.name)),
        ("WORKER_CPUS", "9"),
        ("WORKER_MEMORY_MIB", "4096"),
        ("WORKER_DISK_KIB", "9000000"),
        ("PATH", "/bin:/usr/bin"),
    ] {
        spec = spec.env(name, value);
    }
    spec
}

fn address(service: &Value) -> String {
    service["spec"]["clusterIP"].as_str().unwrap().to_owned()
}

/// What the false worker has logged.
fn log(folder: &Path) -> String {
    let read = |name: &str| fs::read_to_string(folder.join("log").join(name)).unwrap_or_default();
    ["MasterLog", "StartLog", "StarterLog.slot1_1"].map(read).join("\n---\n")
}
