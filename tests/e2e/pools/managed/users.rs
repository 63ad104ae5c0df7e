//! Whose jobs are whose in a pool that many namespaces use.

use std::fs;
use std::path::{Path, PathBuf};

use bed::{Namespace, PATIENCE, ids};
use htc_api::Isolation;
use htc_operator::backends::condor::credentials::signing::SigningKey;
use testbed::{Version, wait_for};

use super::super::site::{delete, wait_ready, with_pool};
use super::node::Node;
use super::{Cluster, POOL, apply, configured, configured_with, ends_well, fixed, lasting, pool, schedd, tool};

on_versions! {
    sid: each_namespace_is_its_own_htcondor_user, undecodable_htcjob_keeps_the_user_of_its_namespace;
}

/// HTCondor shares the workers fairly between namespaces, and none can touch another's jobs.
fn each_namespace_is_its_own_htcondor_user(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, guest) = (cluster.namespace(), cluster.namespace());
    let place = format!("{}/{POOL}", here.name);
    Node::run(&cluster.bed, &here.name, version, |node| {
        let mut workers = fixed(0);
        workers["resources"]["cpus"] = 1.into();
        let mut open = pool(&workers);
        open["spec"]["allowedNamespaces"] = serde_json::json!([here.name, guest.name]);
        apply(&here, open);
        wait_ready(&here, POOL, "Answering");
        for name in ["a", "b", "c"] {
            here.create(&lasting(name));
            here.wait_phase(name, "Submitted");
        }
        guest.create(&with_pool(lasting("late"), &place));
        guest.wait_phase("late", "Submitted");
        let config = configured(&here, "own-operator-token", "schedd");
        let mut users = listed(&here, &config, &["Owner"]);
        users.sort_unstable();
        let [own, guests_] = [&here, &guest].map(|namespace| format!("ns-{}", namespace.name));
        let mut wanted = vec![own.clone(), own.clone(), own, guests_];
        wanted.sort_unstable();
        assert_eq!(users, wanted);

        none_touches_anothers(&here, &guest);

        // A job fits on each. By age it would be two of those that were there first.
        here.kubectl(&["scale", "htcpool", POOL, "--replicas=2"]);
        guest.wait_phase("late", "Running");
        let running = ["a", "b", "c"].iter().filter(|name| here.get(name)["status"]["phase"] == "Running").count();
        assert!(running <= 1, "{running} run beside it");
        let mut tenants: Vec<String> = node
            .pods("worker")
            .iter()
            .map(|pod| pod["metadata"]["labels"]["htc.cern.ch/worker-of"].to_string())
            .collect();
        tenants.sort_unstable();
        let mut wanted = [&here, &guest].map(|namespace| format!("{:?}", namespace.name));
        wanted.sort_unstable();
        assert_eq!(tenants, wanted, "each namespace has a worker to itself");

        // Who was submitted once keeps its name when the operator is started again.
        cluster.bed.kill_operator();
        cluster.bed.start_operator();
        ends_well(&guest, node, "late");
        for name in ["a", "b", "c"] {
            ends_well(&here, node, name);
            here.delete(name);
        }
        guest.delete("late");
        delete(&here, POOL);
    });
}

/// Attributes of all jobs in the queue.
fn listed(here: &Namespace<'_>, config: &Path, attributes: &[&str]) -> Vec<String> {
    let schedd = schedd(here);
    let asked = [&["-name", &schedd, "-allusers", "-af"], attributes].concat();
    let output = tool(here, config, "condor_q").args(asked).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A configuration with the token that the operator makes for a namespace.
pub fn configured_as(here: &Namespace<'_>, namespace: &str) -> PathBuf {
    let secret = here.kubectl(&["get", "secret", "own-signing-key", "-o", "json"]);
    let key = SigningKey::of_secret(&serde_json::from_str(&secret).unwrap(), 1).unwrap();
    let uid = super::get(here)["metadata"]["uid"].as_str().unwrap().to_owned();
    let names =
        htc_operator::htcpool::managed::names::PoolNames::new(&format!("{}/{POOL}", here.name).parse().unwrap(), &uid);
    let now = jiff::Timestamp::now().as_second();
    let token = key.namespace_token(&names.unwrap().signer(Isolation::Namespace), namespace, now);
    configured_with(here, &token, &format!("as-{namespace}"))
}

/// Even a token that got out of the operator lets its namespace do nothing to others' jobs.
fn none_touches_anothers(here: &Namespace<'_>, guest: &Namespace<'_>) {
    let (config, look) = (configured_as(here, &guest.name), configured(here, "own-operator-token", "look"));
    let (name, others, own) = (schedd(here), ids(&here.get("a")), ids(&guest.get("late")));
    for job in [&others[0], &own[0]] {
        let words = ["-name", &name, job, "JobPrio", "-1"];
        let edited = tool(here, &config, "condor_qedit").args(words).output().unwrap();
        assert_eq!(edited.status.success(), *job == own[0], "{job}: {edited:?}");
    }
    let words = ["-name", &name, "-constraint", "true"];
    let removed = tool(here, &config, "condor_hold").args(words).output().unwrap();
    wait_for("only its own job to be held", PATIENCE, || {
        let held = listed(here, &look, &["Owner", "JobStatus"]);
        let held: Vec<&String> = held.iter().filter(|line| line.ends_with(" 5")).collect();
        match held.as_slice() {
            [line] if line.starts_with(&format!("ns-{} ", guest.name)) => Ok(()),
            _ => Err(format!("{held:?} {removed:?}")),
        }
    })
    .unwrap();
    guest.wait("late", "held", |object| object["status"]["held"] == 1);
    for universe in ["local", "scheduler"] {
        let message = submitted(here, &config, universe);
        assert!(message.contains("this pool runs jobs of the vanilla universe only"), "{universe}: {message}");
    }
    let released = tool(here, &config, "condor_release").args(words).output().unwrap();
    assert!(released.status.success(), "{released:?}");
    // No worker is made for a job that the operator takes for held.
    guest.wait("late", "released", |object| object["status"]["held"] == 0);
}

/// Submits a job that would be a process of the schedd's pod; what `condor_submit` says to its refusal.
fn submitted(here: &Namespace<'_>, config: &Path, universe: &str) -> String {
    let folder = here.bed.scratch().dir(&format!("submit-{universe}")).unwrap();
    let file = folder.join("description");
    fs::write(&file, format!("universe = {universe}\nexecutable = /bin/true\nqueue\n")).unwrap();
    let mut submit = tool(here, config, "condor_submit");
    let output = submit.args(["-spool", "-name", &schedd(here)]).arg(&file).current_dir(&folder).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The ledger is lost, and the HTCJob cannot be decoded: its jobs still belong to its namespace, and are removed with
/// it.
fn undecodable_htcjob_keeps_the_user_of_its_namespace(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |_| {
        apply(&here, pool(&fixed(0)));
        wait_ready(&here, POOL, "Answering");
        here.create(&lasting("odd"));
        here.wait_phase("odd", "Submitted");
        bed.kill_operator();
        bed.lose_ledger();
        bed.take_any_spec();
        let no_number = r#"{"spec": {"queue": "three"}}"#;
        let patched = || here.try_kubectl(&["patch", "htcjob", "odd", "--type=merge", "-p", no_number]);
        wait_for("an HTCJob that cannot be decoded", PATIENCE, patched).unwrap();
        bed.start_operator();
        here.delete("odd");
        let config = configured(&here, "own-operator-token", "schedd");
        assert_eq!(listed(&here, &config, &["Owner"]), Vec::<String>::new());
        delete(&here, POOL);
    });
}
