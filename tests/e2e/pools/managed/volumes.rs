//! Volumes of jobs in a managed pool: workers mount the claims.

use std::fs;

use bed::{htcjob, is_true};
use serde_json::{Value, json};
use testbed::{Account, Version};

use super::super::site::{delete, wait_ready, with_pool};
use super::node::Node;
use super::{Cluster, IMAGE, POOL, apply, fixed, pool};

on_versions! {
    sid: workers_mount_the_claims_of_their_jobs;
}

fn with(name: &str, source: &str, volumes: Value) -> Value {
    let mut object = with_pool(htcjob(name, source), POOL);
    object["spec"]["script"]["image"] = IMAGE.into();
    object["spec"]["volumes"] = volumes;
    object
}

/// Workers with a claim run jobs with the same volumes only, and jobs with volumes run on no others.
fn workers_mount_the_claims_of_their_jobs(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, other) = (cluster.namespace(), cluster.bed.namespace());
    Node::run(&cluster.bed, &here.name, version, |node| {
        let mut workers = fixed(0);
        workers.as_object_mut().unwrap().remove("replicas");
        workers["autoscaling"] = json!({ "max": 3, "scaleDownAfterSeconds": 5 });
        workers["miniClusters"] = json!({ "max": 1 });
        workers["allowedClaims"] = json!(["ntuples-*", "spool-*"]);
        let mut object = pool(&workers);
        object["spec"]["allowedNamespaces"] = json!([here.name, other.name]);
        apply(&here, object);
        wait_ready(&here, POOL, "Answering");
        let data = node.claims().join("ntuples-claim");
        fs::create_dir_all(node.claims()).unwrap();
        Account::unprivileged().make_dir(&data, 0o770).unwrap();
        Account::unprivileged().write(&data.join("all.txt"), "data\n", 0o644).unwrap();

        let volume = |claim: &str| json!([{ "claim": claim, "path": "/ntuples", "readOnly": true }]);
        for (name, claim, words) in
            [("denied", "secrets", "allowedClaims"), ("spool", "spool-own-schedd-0", "belongs to an HTCPool")]
        {
            here.create(&with(name, "true", volume(claim)));
            let message = here.wait_says(name, "Submitted", "False", "NoWorkerFits");
            assert!(message.contains(words), "{message}");
            here.delete(name);
        }
        let mut foreign = with("foreign", "true", volume("ntuples-claim"));
        foreign["spec"]["pool"] = format!("{}/{POOL}", here.name).into();
        other.create(&foreign);
        let message = other.wait_says("foreign", "Submitted", "False", "InvalidSpec");
        assert!(message.contains("cannot mount claims of namespace"), "{message}");
        other.delete("foreign");

        let reads = "cat /ntuples/all.txt; { echo x >/ntuples/new; } 2>/dev/null || echo read-only";
        here.create(&with("reads", reads, volume("ntuples-claim")));
        here.create(&with("plain", "[ ! -e /ntuples ] && echo none", json!([])));
        let writes = json!([{ "claim": "ntuples-claim", "path": "/data/out" }]);
        let mut own = with("own", "cat /data/out/all.txt; echo result >/data/out/result", writes);
        own["spec"]["miniCluster"] = json!({});
        here.create(&own);
        for (name, wanted) in [("reads", "data\nread-only\n"), ("plain", "none\n"), ("own", "data\n")] {
            let ended = here.wait_ended(name);
            here.wait_output(name);
            let out = fs::read_to_string(here.output(name, 0).join("out")).unwrap();
            assert!(is_true(&ended, "Complete") && out == wanted, "{name}: {out}\n{ended:#}");
        }
        assert_eq!(fs::read_to_string(data.join("result")).unwrap(), "result\n");
        assert!(!data.join("new").exists());
        for name in ["reads", "plain", "own"] {
            here.delete(name);
        }
        node.wait_pods("worker", "none", <[Value]>::is_empty);
        delete(&here, POOL);
    });
}
