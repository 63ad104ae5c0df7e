//! The Lease cannot be renewed while something of a pool is under way.

use std::time::{Duration, Instant};

use bed::PATIENCE;
use serde_json::Value;
use testbed::{Fault, Proxy, Rule, Seen, Version, wait_for};

use super::super::site::{delete, wait_ready};
use super::node::{Node, names};
use super::{Cluster, POOL, apply, fixed, pool, wait_workers, worker_secret};

on_versions! {
    sid: operator_without_its_lease_sends_no_further_request;
}

/// So that the fence closes soon.
const SHORT: [&str; 3] =
    ["--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms"];
/// As in [`SHORT`], and a moment.
const RENEW_DEADLINE: Duration = Duration::from_millis(3500);

fn no_renewal() -> Fault {
    Fault::Status(500, None)
}

/// From now on the Lease is not renewed; when the last renewal is too old.
fn close(proxy: &Proxy) -> Instant {
    proxy.add(Rule::new("PUT", "/leases/", no_renewal()));
    wait_for("the last renewal to be too old", PATIENCE, || {
        let seen = proxy.seen();
        let is_renewal = |seen: &&Seen| seen.method == "PUT" && seen.path.contains("/leases/") && seen.fault.is_none();
        let renewed = seen.iter().filter(is_renewal);
        renewed.map(|seen| seen.at).max().is_some_and(|last| last.elapsed() > RENEW_DEADLINE)
    })
    .unwrap();
    Instant::now()
}

/// What hangs is carried out; what the operator has written meanwhile and afterwards, while it tries to renew its Lease some more times.
fn let_go(proxy: &Proxy, closed: Instant) -> Vec<String> {
    proxy.let_go();
    let tried = proxy.spoiled(&no_renewal());
    wait_for("some more tries to renew the Lease", PATIENCE, || proxy.spoiled(&no_renewal()) >= tried + 8).unwrap();
    let seen = proxy.seen();
    let written =
        seen.iter().filter(|seen| seen.at > closed && seen.method != "GET" && !seen.path.contains("/leases/"));
    written.map(|seen| format!("{} {}", seen.method, seen.path)).collect()
}

fn wait_hangs(proxy: &Proxy, times: usize) {
    wait_for("a request to hang", PATIENCE, || proxy.spoiled(&Fault::Hang) == times).unwrap();
}

/// The request under way is carried out. The following ones are not: other workers, the worker's token, and
/// `condor_drain`.
fn operator_without_its_lease_sends_no_further_request(version: Version) {
    let cluster = Cluster::without_operator(version, true, &SHORT);
    let (here, bed) = (cluster.namespace(), &cluster.bed);
    let proxy = bed.kube.proxy().unwrap();
    bed.through(&proxy);
    bed.start_operator();
    Node::run(bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(0)));
        wait_ready(&here, POOL, "Answering");

        proxy.add(Rule::new("POST", "/pods", Fault::Hang).times(1));
        here.kubectl(&["scale", "htcpool", POOL, "--replicas=2"]);
        wait_hangs(&proxy, 1);
        let closed = close(&proxy);
        assert_eq!(let_go(&proxy, closed), [""; 0], "{}", bed.log());
        let made = node.pods("worker");
        assert_eq!(made.len(), 1, "{}", names(&made));
        assert!(here.object("secret", &worker_secret(&here.name, 0)).is_none());
        proxy.clear();
        wait_workers(&here, 2);

        proxy.add(Rule::new("PATCH", "/pods/", Fault::Hang).times(1));
        here.kubectl(&["scale", "htcpool", POOL, "--replicas=0"]);
        wait_hangs(&proxy, 2);
        let closed = close(&proxy);
        assert_eq!(let_go(&proxy, closed), [""; 0], "{}", bed.log());
        let marked = |pod: &Value| pod["metadata"]["annotations"]["htc.cern.ch/drain"] == "true";
        assert_eq!(node.pods("worker").iter().filter(|pod| marked(pod)).count(), 1);
        assert!(!bed.log().contains("worker draining"), "{}", bed.log());
        proxy.clear();
        node.wait_pods("worker", "none", <[Value]>::is_empty);
        delete(&here, POOL);
    });
}
