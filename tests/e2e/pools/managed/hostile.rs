//! A payload that becomes a worker: what its starter can have of the schedd's pod.

use std::fs;
use std::process::Command;

use testbed::{Version, wait_for};

use bed::{Namespace, PATIENCE, files_below, ids};

use super::super::site::{delete, wait_ready, with_pool};
use super::node::{Node, decoded};
use super::{Cluster, POOL, apply, fixed, lasting, pool};

/// A starter is whatever a payload made of it, and a shadow makes links for its starter unasked. What they lead to does not come.
///
/// Against 4ccb4b1: the signing key is among the input of the job, with both versions of HTCondor. So it is without
/// `LIMIT_DIRECTORY_ACCESS` in the schedd's configuration and `LimitDirectoryAccess` of the job.
pub fn a_starter_of_its_own_has_no_file_but_its_jobs(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, guest) = (cluster.namespace(), cluster.namespace());
    // A payload that is confined does not get so far.
    Node::run_unconfined(&cluster.bed, &here.name, version, |node| {
        let library = node.runs.join("starter.so");
        let source = bed::checkout().join("tests/e2e/pools/managed/starter.c");
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).output().unwrap();
        assert!(made.status.success(), "{made:?}");

        let mut open = pool(&fixed(1));
        open["spec"]["allowedNamespaces"] = serde_json::json!([here.name, guest.name]);
        apply(&here, open);
        wait_ready(&here, POOL, "Answering");
        let place = format!("{}/{POOL}", here.name);
        let mut victim = with_pool(lasting("victim"), &place);
        victim["spec"]["htcopts"] = "requirements = TARGET.Nothing =?= true".into();
        victim["spec"]["env"] = serde_json::json!([{ "name": "PASSWORD", "value": OF_ANOTHER }]);
        guest.create(&victim);
        guest.wait_phase("victim", "Submitted");
        fs::write(node.runs.join("links"), links(&guest)).unwrap();

        let mut worker = lasting("hostile");
        worker["spec"]["script"]["source"] = include_str!("starter.sh").into();
        here.create(&worker);
        here.wait_phase("hostile", "Running");
        let mut bait = lasting("bait");
        bait["spec"]["htcopts"] = "requirements = TARGET.Hostile =?= true".into();
        here.create(&bait);
        let tried = wait_for("the starter to have tried", PATIENCE, || {
            let tried = fs::read_to_string(node.runs.join("tried")).unwrap_or_default();
            if tried.lines().count() >= 2 { Ok(tried) } else { Err(tried) }
        })
        .unwrap();
        // The input has come, or the job is held because it may not.
        wait_for("the job to run, or to be held", PATIENCE, || {
            let held = here.get("bait")["status"]["held"].as_u64().unwrap_or_default() > 0;
            if held || node.runs.join("taken").exists() { Ok(()) } else { Err(tried.clone()) }
        })
        .unwrap();
        let secret = here.object("secret", "own-signing-key").unwrap();
        let key = decoded(secret["data"]["htcpool"].as_str().unwrap());
        for file in files_below(&node.runs.join("taken"), &|_| true).iter().filter(|file| file.is_file()) {
            let taken = fs::read(file).unwrap();
            assert!(taken != key, "the signing key is in {}", file.display());
            let text = String::from_utf8_lossy(&taken);
            assert!(!text.contains(OF_ANOTHER), "a file of another namespace's job is {}", file.display());
        }
        for (namespace, name) in [(&guest, "victim"), (&here, "bait"), (&here, "hostile")] {
            namespace.delete(name);
        }
        delete(&here, POOL);
    });
}

const OF_ANOTHER: &str = "sesame-of-another-namespace";

/// To the signing key, and to what the job of another namespace got from its HTCJob.
fn links(guest: &Namespace<'_>) -> String {
    let ids = ids(&guest.get("victim"));
    let (cluster, proc) = ids[0].split_once('.').unwrap();
    let number = |text: &str| text.parse::<u32>().unwrap() % 10_000;
    let (a, b) = (number(cluster), number(proc));
    let conf = format!("/htcpool/spool/spool/{a}/{b}/cluster{cluster}.proc{proc}.subproc0/payload.conf");
    format!("symbolic /htcpool/local/passwords.d/htcpool loot\nsymbolic {conf} other\n")
}
