//! The signing key of a pool is replaced while jobs run.

use std::path::Path;

use bed::{Namespace, PATIENCE};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::super::site::{delete, wait_condition, wait_ready};
use super::node::Node;
use super::users::configured_as;
use super::{Cluster, POOL, apply, configured, ends_well, fixed, lasting, note, pool, schedd, tool, wait_workers};

on_versions! {
    both: signing_key_is_replaced_while_jobs_run;
    sid: stolen_signing_key_is_refused_at_once;
}

const ROTATED: &str = "SigningKeyRotated";
const FIRST: &str = "own-signing-key";
const SECOND: &str = "own-signing-key-2";

/// Whether the collector or the schedd lets in who has these tokens.
fn lets_in(here: &Namespace<'_>, config: &Path, at: &str) -> bool {
    let name = schedd(here);
    let to: &[&str] = if at == "schedd" { &["-type", "schedd", "-name", &name] } else { &["-type", "collector"] };
    tool(here, config, "condor_ping").args(to).args(["-quiet", "READ"]).output().unwrap().status.success()
}

/// Names of the keys that the daemons of central manager and schedd are to accept.
fn given(here: &Namespace<'_>) -> [Vec<String>; 2] {
    ["own-central-manager-token", "own-schedd-token"].map(|name| {
        let secret = here.object("secret", name).unwrap();
        let entries = secret["data"].as_object().unwrap().keys();
        entries.filter(|entry| *entry != "token").cloned().collect()
    })
}

fn restart_operator(here: &Namespace<'_>) {
    here.bed.kill_operator();
    here.bed.start_operator();
}

fn uid(node: &Node<'_>, role: &str) -> Value {
    node.pods(role)[0]["metadata"]["uid"].clone()
}

/// What the collector has logged of those that it did not let in.
fn refused(node: &Node<'_>) -> Vec<String> {
    let pod = node.pods("central-manager").remove(0);
    let log = std::fs::read_to_string(node.folder(&pod).join("local/log/CollectorLog")).unwrap();
    let refused =
        log.lines().filter(|line| line.contains("PERMISSION DENIED") || line.contains("required authentication"));
    refused.map(str::to_owned).collect()
}

/// A job runs on, others come, and each is let in all the time. The operator dies in each step, and a Secret is taken away by hand.
fn signing_key_is_replaced_while_jobs_run(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        wait_workers(&here, 1);
        here.create(&lasting("first"));
        here.wait_phase("first", "Running");
        wait_condition(&here, POOL, ROTATED, "OneKey");
        let old = [configured_as(&here, &here.name), configured(&here, "own-operator-token", "old")];

        here.patch("htcpool", POOL, &json!({ "spec": { "managed": { "signingKey": { "generation": 2 } } } }));
        let message = wait_condition(&here, POOL, ROTATED, "OldTokensInUse");
        assert!(message.starts_with("1 with tokens of generation 1: own-worker-0;"), "{message}");
        let both = || ["htcpool".to_owned(), "htcpool-2".to_owned()].to_vec();
        assert_eq!(given(&here), [both(), both()]);
        here.create(&lasting("second"));
        here.wait_phase("second", "Running");
        assert_eq!(here.get("first")["status"]["phase"], "Running");

        // Nothing takes the place of a key that somebody has a token of.
        for name in [FIRST, SECOND] {
            let secret = here.kubectl(&["get", "secret", name, "-o", "json"]);
            here.remove("secret", name);
            let message = wait_condition(&here, POOL, ROTATED, "SigningKeyMissing");
            assert!(message.contains(&format!("the Secret {name} is gone")), "{message}");
            restart_operator(&here);
            let message = wait_ready(&here, POOL, "SigningKeyMissing");
            assert!(message.contains(&format!("the Secret {name} is gone")), "{message}");
            assert_eq!(given(&here), [both(), both()]);
            here.bed.kube.apply_stdin(&secret).unwrap();
            wait_ready(&here, POOL, "Answering");
            wait_condition(&here, POOL, ROTATED, "OldTokensInUse");
        }
        assert_eq!(refused(node), Vec::<String>::new(), "each was let in until now");
        for (config, at) in [(&old[0], "schedd"), (&old[1], "schedd"), (&old[1], "collector")] {
            assert!(lets_in(&here, config, at), "the overlap has not ended: {at}");
        }

        ends_well(&here, node, "first");
        wait_for("the old key to be withdrawn", PATIENCE, || {
            let given = given(&here);
            if given.iter().all(|names| *names == ["htcpool-2"]) { Ok(()) } else { Err(format!("{given:?}")) }
        })
        .unwrap();
        restart_operator(&here);
        wait_condition(&here, POOL, ROTATED, "OneKey");
        assert!(here.object("secret", FIRST).is_none() && here.object("secret", SECOND).is_some());
        assert_eq!(refused(node), Vec::<String>::new(), "each was let in until now");
        for (config, at) in [(&old[0], "schedd"), (&old[1], "schedd"), (&old[1], "collector")] {
            assert!(!lets_in(&here, config, at), "{at} accepts a token of the old key");
        }
        for at in ["schedd", "collector"] {
            assert!(lets_in(&here, &configured(&here, "own-operator-token", &format!("new-{at}")), at), "{at}");
        }
        here.create(&lasting("third"));
        here.wait_phase("third", "Running");
        ends_well(&here, node, "second");
        ends_well(&here, node, "third");
        for name in ["first", "second", "third"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}

/// Without an overlap, tokens of the old key are refused, and the job runs again on another worker.
fn stolen_signing_key_is_refused_at_once(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        here.create(&lasting("again"));
        here.wait_phase("again", "Running");
        wait_for("the job to run", PATIENCE, || runs(node, 1)).unwrap();
        let daemons = ["central-manager", "schedd"].map(|role| uid(node, role));
        let (worker, old) = (uid(node, "worker"), configured(&here, "own-operator-token", "old"));
        let key = json!({ "generation": 2, "oldestAccepted": 2 });
        here.patch("htcpool", POOL, &json!({ "spec": { "managed": { "signingKey": key } } }));
        wait_for("the new key alone", PATIENCE, || {
            let message = wait_condition(&here, POOL, ROTATED, "OneKey");
            if message.contains("of generation 2") { Ok(()) } else { Err(message) }
        })
        .unwrap();
        for at in ["schedd", "collector"] {
            assert!(!lets_in(&here, &old, at), "{at}");
        }
        assert!(here.object("secret", FIRST).is_none());
        for (role, before) in ["central-manager", "schedd"].into_iter().zip(daemons) {
            assert_ne!(uid(node, role), before, "sessions of {role} have ended");
        }
        wait_for("the job to run again", PATIENCE, || runs(node, 2)).unwrap();
        assert!(node.pods("worker").iter().all(|pod| pod["metadata"]["uid"] != worker));
        node.finish("again");
        here.wait_ended("again");
        here.delete("again");
        delete(&here, POOL);
    });
}

fn runs(node: &Node<'_>, wanted: usize) -> Result<(), String> {
    let runs = node.noted(&note("again"));
    if runs == wanted { Ok(()) } else { Err(format!("{runs} runs")) }
}
