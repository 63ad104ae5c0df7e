//! Workers that the collector does not name.

use bed::site::says;
use bed::{PATIENCE, condition};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::{Version, wait_for};

use super::super::site::{delete, wait_ready};
use super::node::{Node, names};
use super::{Cluster, POOL, apply, ends_well, fixed, get, lasting, note, pool, wait_workers};

on_versions! {
    trixie: worker_that_never_joins_is_replaced;
    sid: worker_with_a_job_stays_when_the_collector_forgets_it;
}

/// Instead of five minutes: how long a worker may be absent.
const JOINS: &str = "20";

fn start(version: Version) -> Cluster {
    let cluster = Cluster::without_operator(version, true, &[]);
    cluster.bed.set_env("HTC_JOIN_SECONDS", JOINS);
    cluster.bed.start_operator();
    cluster
}

/// The startd of the pool's only worker does not find the collector. The `HTCPool` says so, another worker comes, and runs the job.
fn worker_that_never_joins_is_replaced(version: Version) {
    let cluster = start(version);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |node| {
        node.deafen(1);
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        let deaf = node.wait_pods("worker", "one", |pods| pods.len() == 1).remove(0);
        here.create(&lasting("first"));
        let pool = wait_for("the pool to say that it has not joined", PATIENCE, || {
            let pool = get(&here);
            if says(&pool, "WorkersReady", "False", "NotJoining") {
                Ok(pool)
            } else {
                Err(format!("{:#}", pool["status"]))
            }
        })
        .unwrap();
        let message = condition(&pool, "WorkersReady").unwrap()["message"].as_str().unwrap();
        assert!(message.contains("own-worker-0") && message.contains("StartLog"), "{message}");
        wait_workers(&here, 1);
        ends_well(&here, node, "first");
        let left = node.wait_pods("worker", "the new one alone", |pods| pods.len() == 1);
        assert_ne!(left[0]["metadata"]["uid"], deaf["metadata"]["uid"]);
        here.delete("first");
        delete(&here, POOL);
    });
}

/// The collector begins anew while the startd of a worker with a job hangs. Another worker comes; the job goes on where it is, and the
/// worker counts again when its startd goes on.
fn worker_with_a_job_stays_when_the_collector_forgets_it(version: Version) {
    let cluster = start(version);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        here.create(&lasting("first"));
        wait_for("the job to run", PATIENCE, || match node.noted(&note("first")) {
            1 => Ok(()),
            runs => Err(format!("{runs} runs")),
        })
        .unwrap();
        let worker = wait_workers(&here, 1);
        assert_eq!(worker["status"]["workers"]["busy"], 1, "{worker:#}");
        let uid = node.pods("worker")[0]["metadata"]["uid"].clone();

        let startds = node.processes("own-worker-0", "condor_startd");
        let signal = |signal: Signal| {
            for startd in &startds {
                kill_process(Pid::from_raw((*startd).try_into().unwrap()).unwrap(), signal).unwrap();
            }
        };
        signal(Signal::STOP);
        here.kubectl(&["delete", "pod", "-l", "htc.cern.ch/role=central-manager", "--wait=false"]);
        node.wait_pods("worker", "another one", |pods| pods.len() == 2);
        wait_for("the schedd to say that it has a job", PATIENCE, || {
            let message = "worker unknown to the collector has a job, kept worker=\"own-worker-0\"";
            if bed.logs().contains(message) { Ok(()) } else { Err(names(&node.pods("worker"))) }
        })
        .unwrap();
        wait_workers(&here, 1);
        signal(Signal::CONT);
        // One of the two is too many, and it is the one without a job.
        let left = node.wait_pods("worker", "one", |pods| pods.len() == 1);
        assert_eq!(left[0]["metadata"]["uid"], uid);
        assert_eq!(left[0]["metadata"]["deletionTimestamp"], Value::Null);
        ends_well(&here, node, "first");
        here.delete("first");
        delete(&here, POOL);
    });
}
