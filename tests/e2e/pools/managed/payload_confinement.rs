//! Payloads on their worker: files and processes that they cannot reach, and leftovers.

use std::fs;
use std::process::Command;

use serde_json::json;
use testbed::{Version, wait_for};

use bed::{Namespace, PATIENCE, is_true};

use super::super::site::{delete, wait_condition, wait_ready};
use super::node::Node;
use super::{Cluster, POOL, apply, ends_well, fixed, lasting, pool, wait_workers, worker_secret};

on_versions! {
    both: confined_payload_reaches_and_leaves_nothing_on_its_worker, starter_follows_no_links_of_the_payload;
    trixie: pool_on_a_node_without_landlock_reports_unconfined_payloads;
}

/// What a payload tries: see payload.sh.
const TRIED: [&str; 13] = [
    "token",
    "log",
    "claim",
    "neighbour",
    "program",
    "signal-to-startd",
    "signal-to-starter",
    "signal-to-parent",
    "environment",
    "root",
    "memory",
    "limit",
    "write",
];
/// Notes which processes there are of a payload before, and whether that one has opened the worker's token to later ones.
const LOOKS: &str = "cat /htcpool/local/tokens.d/token >/dev/null 2>&1 && echo token >>/runs/left
    for folder in /proc/[0-9]*; do tr '\\0' ' ' <$folder/cmdline 2>/dev/null; echo; done | grep -c '^sleep 424' >>/runs/left || :\n";
/// What payloads usually do.
const HONEST: &str = "set -e
    for folder in \"$TMPDIR\" /tmp /var/tmp; do [ ! -w $folder ] || dd if=/dev/zero of=$folder/large bs=1M count=100 2>/dev/null; done
    rm -f /tmp/large /var/tmp/large
    file=$(mktemp); mkdir -p \"$HOME/a\" b; echo x >\"$HOME/a/x\"; mv \"$HOME/a/x\" b/x; ln b/x hard; mv \"$file\" b/
    cat \"$_CONDOR_JOB_AD\" \"$_CONDOR_MACHINE_AD\" /proc/self/status /proc/meminfo >/dev/null; echo y >/proc/self/comm
    mkdir c; ln -s ../b/x c/link; [ \"$(cat c/link)\" = x ]; ln c/link same; mv c moved; mkfifo pipe; (echo z >pipe &); [ \"$(cat pipe)\" = z ]
    cp /bin/busybox busybox; ./busybox true; echo said >/dev/stdout; echo said >>/dev/stderr
    printf '#!/bin/sh\\nexit 0\\n' >own; chmod 755 own; ./own; (sleep 60 & kill $!); echo made >result; mkdir folder; echo made >folder/deep\n";

fn script(name: &str, source: &str) -> serde_json::Value {
    let mut object = lasting(name);
    object["spec"]["script"]["source"] = source.into();
    object
}

/// Runs it on the worker to its end.
fn runs(here: &Namespace<'_>, name: &str, source: &str) {
    here.create(&script(name, source));
    let ended = here.wait_ended(name);
    assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", here.bed.logs());
}

/// What the payload of payload.sh could do, while another job is beside it.
fn tries(here: &Namespace<'_>, node: &Node<'_>) -> Vec<(String, bool)> {
    let source = bed::checkout().join("tests/e2e/pools/managed/limit.c");
    let made = Command::new("cc").args(["-static", "-o"]).args([&node.runs.join("limit"), &source]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    apply(here, pool(&fixed(1)));
    wait_ready(here, POOL, "Answering");
    let mut neighbour = lasting("neighbour");
    neighbour["spec"]["env"] = json!([{ "name": "PASSWORD", "value": "sesame-of-a-neighbour" }]);
    here.create(&neighbour);
    here.wait_phase("neighbour", "Running");
    runs(here, "tries", include_str!("payload.sh"));
    let tried = fs::read_to_string(node.runs.join("tried")).unwrap();
    let word = |line: &str| line.split_once(' ').map(|(what, could)| (what.to_owned(), could == "yes"));
    tried.lines().filter_map(word).collect()
}

fn left(node: &Node<'_>) -> Vec<String> {
    let left = fs::read_to_string(node.runs.join("left")).unwrap_or_default();
    left.lines().map(str::to_owned).collect()
}

/// And honest ones are as they were.
fn confined_payload_reaches_and_leaves_nothing_on_its_worker(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        let tried = tries(&here, node);
        assert_eq!(tried, TRIED.map(|what| (what.to_owned(), false)));
        runs(&here, "after", LOOKS);
        assert_eq!(left(node), ["0"], "what a payload has left is there when the next job runs");
        runs(&here, "honest", HONEST);
        here.wait_output("honest");
        for file in ["result", "hard", "b/x", "folder/deep"] {
            assert!(here.output("honest", 0).join(file).exists(), "{file}");
        }

        ends_well(&here, node, "neighbour");

        // The wrapper is killed, and can end nothing.
        let endless = [include_str!("payload.sh"), "touch /runs/endless\nwhile :; do sleep 1; done\n"].concat();
        here.create(&script("endless", &endless));
        wait_for("the payload to have left a process", PATIENCE, || {
            if node.runs.join("endless").exists() { Ok(()) } else { Err("not yet") }
        })
        .unwrap();
        let worker = node.pods("worker")[0]["metadata"]["name"].as_str().unwrap().to_owned();
        for wrapper in node.processes(&worker, "htc-job-wrapper") {
            let pid = rustix::process::Pid::from_raw(wrapper.try_into().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        here.wait_ended("endless");
        runs(&here, "last", LOOKS);
        assert_eq!(left(node), ["0", "0"], "what a payload has left is there when the next job runs");

        wait_condition(&here, POOL, "PayloadsConfined", "Confined");
        for name in ["neighbour", "tries", "after", "honest", "endless", "last"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}

/// A node that cannot confine payloads: Landlock and the wrapper close what the test above finds closed.
fn pool_on_a_node_without_landlock_reports_unconfined_payloads(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run_unconfined(&cluster.bed, &here.name, version, |node| {
        let tried = tries(&here, node);
        assert_eq!(tried, TRIED.map(|what| (what.to_owned(), what != "signal-to-parent")));
        runs(&here, "after", LOOKS);
        assert_ne!(left(node), ["0"]);
        wait_workers(&here, 1);
        let message = wait_condition(&here, POOL, "PayloadsConfined", "NoLandlock");
        assert!(message.contains("own-worker-0 may read the worker's token"), "{message}");
        ends_well(&here, node, "neighbour");
        for name in ["neighbour", "tries", "after"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}

/// A payload leaves links where HTCondor's starter, which is confined by nothing, looks for output. It makes them until it is killed, so that
/// `job.sh` removes them in vain.
const LINKS: &str = "scratch=$(cd ../.. && pwd)
    for folder in /proc/[0-9]*; do
        read -r comm <$folder/comm && [ $comm = condor_starter ] && starters=\"$starters ${folder#/proc/}\"
    done
    make() {
        while :; do
            ln -sf /htcpool/local/tokens.d/token $scratch/token
            ln -sf /htcpool/local/tokens.d/token $scratch/_condor_stdout
            for starter in $starters; do
                ln -sf /htcpool/local/execute/dir_$starter/payload.conf $scratch/a-$starter
                ln -sf /htcpool/local/execute/dir_$starter/scratch/payload.conf $scratch/b-$starter
            done
            : >/runs/made
        done
    }
    (make </dev/null >/dev/null 2>&1 &)
    until [ -e /runs/made ]; do sleep 0.1; done\n";

fn starter_follows_no_links_of_the_payload(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        let mut neighbour = lasting("neighbour");
        neighbour["spec"]["env"] = json!([{ "name": "PASSWORD", "value": "sesame-of-a-neighbour" }]);
        here.create(&neighbour);
        here.wait_phase("neighbour", "Running");
        runs(&here, "links", LINKS);
        here.wait_output("links");
        let token = here.secret_entry(&worker_secret(&here.name, 0), "token");
        for file in bed::files_below(&here.output("links", 0), &|_| true) {
            let text = fs::read_to_string(&file).unwrap();
            assert!(!text.contains(token.trim()) && !text.contains("sesame-of-a-neighbour"), "{}", file.display());
        }
        // Without the file of a stream HTCondor would give back nothing.
        runs(&here, "removes", "rm -f \"$(cd ../.. && pwd)/_condor_stdout\"");
        here.wait_output("removes");
        ends_well(&here, node, "neighbour");
        for name in ["neighbour", "links", "removes"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}
