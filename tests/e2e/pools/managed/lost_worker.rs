//! A node that is lost, with the worker on it.

use bed::{PATIENCE, is_true};
use testbed::{Version, wait_for};

use super::super::site::{delete, wait_ready};
use super::node::Node;
use super::users::configured_as;
use super::{Cluster, POOL, apply, fixed, lasting, note, pool, schedd, tool, wait_workers};

on_versions! {
    trixie: jobs_of_a_lost_worker_rerun_after_their_lease;
}

/// Instead of 20 minutes, in seconds.
const LEASE: &str = "30";

/// HTCondor is not informed of the loss. Another worker starts at once, and runs the job when the job's lease has
/// expired.
fn jobs_of_a_lost_worker_rerun_after_their_lease(version: Version) {
    let cluster = Cluster::start(version, true);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    Node::run(bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(0)));
        wait_ready(&here, POOL, "Answering");
        here.create(&lasting("again"));
        here.wait("again", "it is idle", |object| object["status"]["idle"] == 1);
        let (config, own) = (configured_as(&here, &here.name), bed::ids(&here.get("again")));
        let schedd = schedd(&here);
        let edit = ["-name", &schedd, &own[0], "JobLeaseDuration", LEASE];
        let edited = tool(&here, &config, "condor_qedit").args(edit).output().unwrap();
        assert!(edited.status.success(), "{edited:?}");
        here.kubectl(&["scale", "htcpool", POOL, "--replicas=1"]);
        // `Running` is said when the shadow has begun, and the payload may not have.
        wait_for("the job to run", PATIENCE, || runs(node, 1)).unwrap();
        let uid = node.pods("worker")[0]["metadata"]["uid"].clone();

        node.lose("own-worker-0");
        wait_workers(&here, 1);
        assert_ne!(node.pods("worker")[0]["metadata"]["uid"], uid);
        wait_for("the job to run again", 3 * PATIENCE, || runs(node, 2)).unwrap();
        assert_eq!(bed::ids(&here.get("again")), own, "it is the same job");
        node.finish("again");
        let ended = here.wait_ended("again");
        assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", bed.logs());
        assert_eq!(node.noted(&note("again")), 2);
        here.delete("again");
        delete(&here, POOL);
    });
}

fn runs(node: &Node<'_>, wanted: usize) -> Result<(), String> {
    let runs = node.noted(&note("again"));
    if runs == wanted { Ok(()) } else { Err(format!("{runs} runs")) }
}
