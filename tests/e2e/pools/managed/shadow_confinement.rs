//! A payload that replaces its worker: files of the schedd's pod that its starter can reach.

use std::fs;
use std::process::Command;

use serde_json::Value;
use testbed::{Version, wait_for};

use bed::site::says;
use bed::{Namespace, PATIENCE, condition, files_below, ids, is_true};

use super::super::site::{delete, wait_ready, with_pool};
use super::node::{Node, OLD_IMAGE, decoded};
use super::users::configured_as;
use super::{Cluster, POOL, apply, fixed, get, lasting, pool, schedd, tool};

on_versions! {
    both:
        forged_starter_gets_only_files_of_its_own_job,
        confined_shadow_transfers_input_and_output,
        pool_with_an_older_image_reports_unconfined_shadows;
}

/// A starter is whatever a payload made of it, and a shadow makes links and changes modes for its starter unasked. Confined, it makes no link
/// that leads out of its own job's folders. A mode it still changes, but not of the file by which shadows are confined: the schedd has its
/// files again when its pod begins anew.
///
/// Against 4ccb4b1 the signing key is among the input of the job by a symbolic link, with both versions of HTCondor; with
/// `LIMIT_DIRECTORY_ACCESS` alone, a file of another namespace's job by a hard link, as the next test shows.
fn forged_starter_gets_only_files_of_its_own_job(version: Version) {
    let conf = |job: &str| format!("{job}/payload.conf");
    let calls = |job: &str| {
        format!(
            "symbolic {KEY} loot\nsymbolic {0} other\nhard {0} same\nhard {KEY} key\nhard {SPOOL}/job_queue.log queue\n\
             hard /htcpool/local/shadow/ShadowLog log\nchmod 000 {SPOOL}/job_queue.log\n\
             chmod 000 /htcpool/local/shadow.conf\nchmod 000 /htcpool/node/shadow.conf\n",
            conf(job)
        )
    };
    attack(version, "htcondor:test", calls, |here, node, tried| {
        wait_says(here, "True", "Confined");
        let (modes, links): (Vec<&str>, Vec<&str>) = tried.lines().partition(|line| line.starts_with("chmod"));
        assert!(links.len() == 6 && links.iter().all(|line| line.contains(" refused ")), "{tried}");
        // Before it runs, all that is in its folder comes with its input.
        assert!(!taken(node).iter().any(|file| is_key(here, file) || is_of_another(file)), "{tried}");
        let (made, refused): (Vec<&str>, Vec<&str>) = modes.into_iter().partition(|line| line.contains(" made "));
        assert!(made.len() == 1 && made[0].contains("job_queue.log") && refused.len() == 2, "{tried}");
        // The schedd finds its queue again.
        let before = node.pods("schedd")[0]["metadata"]["uid"].clone();
        here.kubectl(&["delete", "pod", "-l", "htc.cern.ch/role=schedd", "--wait=false"]);
        node.wait_pods("schedd", "another one", |pods| {
            pods.len() == 1 && pods[0]["metadata"]["uid"] != before && pods[0]["status"]["phase"] == "Running"
        });
        wait_ready(here, POOL, "Answering");
    });
}

/// An image of an earlier version has no program that confines shadows. The pool works, and reports which files a
/// worker can reach.
fn pool_with_an_older_image_reports_unconfined_shadows(version: Version) {
    attack(
        version,
        OLD_IMAGE,
        |job| format!("hard {job}/payload.conf same\n"),
        |here, node, tried| {
            let message = wait_says(here, "False", "ImageTooOld");
            assert!(message.contains("files of other jobs") && message.contains("docs/pools.md"), "{message}");
            assert!(tried.contains("hard made same") && taken(node).iter().any(|file| is_of_another(file)), "{tried}");
        },
    );
}

const SPOOL: &str = "/htcpool/spool/spool";
const KEY: &str = "/htcpool/local/passwords.d/htcpool";
const OF_ANOTHER: &str = "sesame-of-another-namespace";

/// Plays the attack in a pool whose HTCondor is in this image. `calls`: those that the starter has the shadow make, where the job of another
/// namespace has this folder in the spool. `look`: at what came of each, once the job has its input.
fn attack(
    version: Version,
    image: &str,
    calls: impl FnOnce(&str) -> String,
    look: impl FnOnce(&Namespace<'_>, &Node<'_>, &str),
) {
    let cluster = Cluster::start(version, true);
    let (here, guest) = (cluster.namespace(), cluster.namespace());
    // A payload that is confined does not get so far.
    Node::run_unconfined(&cluster.bed, &here.name, version, |node| {
        let library = node.runs.join("starter.so");
        let source = bed::checkout().join("tests/e2e/pools/managed/starter.c");
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let chirp = cluster.bed.assets.condor(version).join("usr/libexec/condor/condor_chirp");
        fs::copy(chirp, node.runs.join("condor_chirp")).unwrap();

        let mut open = pool(&fixed(1));
        open["spec"]["allowedNamespaces"] = serde_json::json!([here.name, guest.name]);
        open["spec"]["managed"]["image"] = image.into();
        apply(&here, open);
        wait_ready(&here, POOL, "Answering");
        let place = format!("{}/{POOL}", here.name);
        let mut victim = with_pool(lasting("victim"), &place);
        victim["spec"]["htcopts"] = "requirements = TARGET.Nothing =?= true".into();
        victim["spec"]["env"] = serde_json::json!([{ "name": "PASSWORD", "value": OF_ANOTHER }]);
        guest.create(&victim);
        guest.wait_phase("victim", "Submitted");
        let calls = calls(&spooled(&guest));
        fs::write(node.runs.join("calls"), &calls).unwrap();

        let mut worker = lasting("hostile");
        worker["spec"]["script"]["source"] = include_str!("starter.sh").into();
        here.create(&worker);
        here.wait_phase("hostile", "Running");
        let mut bait = lasting("bait");
        bait["spec"]["htcopts"] = "requirements = TARGET.Hostile =?= true".into();
        here.create(&bait);
        let tried = wait_for("the starter to have tried", PATIENCE, || {
            let tried = fs::read_to_string(node.runs.join("tried")).unwrap_or_default();
            // HTCondor may start the job once more.
            if tried.lines().count() >= calls.lines().count() { Ok(tried) } else { Err(tried) }
        })
        .unwrap();
        wait_for("the job's input to have come", PATIENCE, || {
            if node.runs.join("taken").exists() { Ok(()) } else { Err(format!("{tried}{:#}", here.get("bait"))) }
        })
        .unwrap();
        look(&here, node, &tried);
        for (namespace, name) in [(&guest, "victim"), (&here, "bait"), (&here, "hostile")] {
            namespace.delete(name);
        }
        delete(&here, POOL);
    });
}

/// The folder of the job of another namespace in the spool.
fn spooled(guest: &Namespace<'_>) -> String {
    let ids = ids(&guest.get("victim"));
    let (cluster, proc) = ids[0].split_once('.').unwrap();
    let number = |text: &str| text.parse::<u32>().unwrap() % 10_000;
    let (a, b) = (number(cluster), number(proc));
    format!("{SPOOL}/{a}/{b}/cluster{cluster}.proc{proc}.subproc0")
}

/// What came as the job's input.
fn taken(node: &Node<'_>) -> Vec<Vec<u8>> {
    let files = files_below(&node.runs.join("taken"), &|_| true);
    files.iter().filter(|file| file.is_file()).map(|file| fs::read(file).unwrap()).collect()
}

fn is_key(here: &Namespace<'_>, file: &[u8]) -> bool {
    let secret = here.object("secret", "own-signing-key").unwrap();
    file == decoded(secret["data"]["htcpool"].as_str().unwrap())
}

fn is_of_another(file: &[u8]) -> bool {
    String::from_utf8_lossy(file).contains(OF_ANOTHER)
}

/// Waits until the condition about shadows says so; its message.
fn wait_says(here: &Namespace<'_>, status: &str, reason: &str) -> String {
    const KIND: &str = "ShadowsConfined";
    let said = |pool: Value| {
        if says(&pool, KIND, status, reason) { Ok(pool) } else { Err(format!("{:#}", pool["status"])) }
    };
    let pool = wait_for(&format!("{KIND} {status} {reason}"), PATIENCE, || said(get(here))).unwrap();
    condition(&pool, KIND).unwrap()["message"].as_str().unwrap().to_owned()
}

/// A confined shadow serves an honest job in all that it does: its input comes again after an eviction; its output replaces that of an
/// earlier run, and waits for its turn if it is large.
fn confined_shadow_transfers_input_and_output(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        wait_says(&here, "True", "Confined");
        let mut honest = lasting("honest");
        honest["spec"]["script"]["source"] = HONEST.into();
        honest["spec"]["maxRetries"] = 1.into();
        here.create(&honest);
        let starts = |count| {
            wait_for(&format!("start {count} of the job"), PATIENCE, || {
                let now = node.noted("honest");
                if now >= count { Ok(()) } else { Err(format!("{now}: {:#}", here.get("honest"))) }
            })
            .unwrap();
        };
        starts(1);
        let config = configured_as(&here, &here.name);
        let job = ids(&here.get("honest")).remove(0);
        let mut vacate = tool(&here, &config, "condor_vacate_job");
        let vacated = vacate.args(["-fast", "-name", &schedd(&here), &job]).output().unwrap();
        assert!(vacated.status.success(), "{vacated:?}");
        starts(2);
        node.finish("honest");
        let ended = here.wait_ended("honest");
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        assert_eq!(node.noted("honest"), 3, "it is evicted once, and fails once");
        here.wait_output("honest");
        let output = here.output("honest", 0);
        assert_eq!(fs::read_to_string(output.join("run")).unwrap(), "3\n");
        assert_eq!(fs::read_to_string(output.join("folder/deep/run")).unwrap(), "3\n");
        assert_eq!(fs::metadata(output.join("large")).unwrap().len(), LARGE);
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(output.join("tool")).unwrap().permissions());
        assert_ne!(mode & 0o100, 0, "{mode:o}");
        here.delete("honest");
        delete(&here, POOL);
    });
}

/// More than the shadow sends or takes without asking the schedd for a turn (`TRANSFER_QUEUE_…`, 100 MiB).
const LARGE: u64 = 120 << 20;

/// Waits in its first two runs, leaves output and fails in the second, and ends well in the third.
const HONEST: &str = "echo honest >>/runs/ran\n\
    run=$(wc -l </runs/ran)\n\
    while [ ! -e /runs/finish-honest ]; do sleep 0.3; done\n\
    mkdir -p folder/deep\n\
    for file in run folder/deep/run tool; do echo $((run)) >$file; done\n\
    chmod 755 tool\n\
    head -c 125829120 /dev/zero >large\n\
    [ $run -ge 3 ]\n";
