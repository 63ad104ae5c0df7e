//! `/readyz`: 503 with the names of closed gates.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::json;
use testbed::Version::Trixie;
use testbed::{Account, Fault, Owned, Port, Rule, Scratch, Spec, wait_for};

use crate::callbacks::jobs::Site;
use bed::PATIENCE;
use bed::http;
use bed::signals::signal;

pub const GATES: [&str; 6] =
    ["crd-served", "cache-synced", "ledger-writable", "ledger-answers", "schedd-seen", "leading"];

/// Waits until `/readyz` says that all gates are open but those that are `missing`.
pub fn wait(address: SocketAddr, missing: &[&str]) {
    let word = |gate: &&str| if missing.contains(gate) { "NOT YET" } else { "ok" };
    let text = GATES.map(|gate| format!("{gate}: {}\n", word(&gate))).concat();
    wait_says(address, if missing.is_empty() { 200 } else { 503 }, &text);
}

fn wait_says(address: SocketAddr, status: u16, text: &str) {
    wait_for(&format!("{status} from /readyz: {text}"), PATIENCE, || {
        // Nobody listens yet while the operator starts.
        let answer = http::get(address, "/readyz").map_err(|error| error.to_string())?;
        if answer.status == status && answer.body == text { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .unwrap();
}

/// No HTCJob changes meanwhile: each gate opens again by itself.
#[test]
#[ignore = "another test shows the same promise: make test-long"]
fn readyz_names_closed_gates_until_they_open() {
    let site = Site::new(Trixie, &[]);
    site.bed.pool.stop().unwrap();
    site.bed.start_operator();
    let here = site.monitor_address();
    wait(here, &["schedd-seen"]);
    site.bed.pool.start_again().unwrap();
    wait(here, &[]);

    site.bed.kube.kill_apiserver().unwrap();
    wait(here, &["crd-served"]);
    site.bed.kube.start_apiserver().unwrap();
    wait(here, &[]);

    site.bed.kube.kubectl_ok(&["delete", "crd", "htcjobs.htc.cern.ch"]).unwrap();
    wait(here, &["crd-served"]);
    site.bed.kube.apply_crd(&htc_api::crd_yaml().unwrap(), "htcjobs.htc.cern.ch").unwrap();
    wait(here, &[]);

    // One that waits for the ledger's file, and then for the Lease, needs nothing else.
    let monitor = Port::reserve().unwrap();
    let there = SocketAddr::from(([127, 0, 0, 1], monitor.number));
    let listen = format!("--metrics-bind-address={there}");
    let _standby = site.bed.start_another("standby", &site.bed.data, &[&listen]);
    let standing_by = GATES.map(|gate| match gate {
        "leading" => "leading: ok (standby)\n".to_owned(),
        _ => format!("{gate}: not asked on standby\n"),
    });
    let standing_by = standing_by.concat();
    wait_says(there, 200, &standing_by);
    site.bed.kill_operator();
    wait(there, &[]);
}

/// Unlike in the test above, the API server keeps its watch cache, and nothing is listed anew.
#[test]
fn restarted_watch_opens_its_gate_without_a_change() {
    let site = Site::new(Trixie, &[]);
    let proxy = site.bed.kube.proxy().unwrap();
    site.bed.through(&proxy);
    proxy.add(Rule::new("WATCH", "/htcjobs", Fault::Status(503, None)).times(3));
    site.bed.start_operator();
    wait_for("three refused watches", PATIENCE, || proxy.left() == 0).unwrap();
    wait(site.monitor_address(), &[]);
}

/// An operator without servers, with few open files.
#[test]
fn operator_without_api_server_does_not_lead_and_raises_its_file_limit() {
    let scratch = Scratch::new().unwrap();
    let (data, monitor, nowhere) = (scratch.dir("data").unwrap(), Port::reserve().unwrap(), Port::reserve().unwrap());
    let kubeconfig = scratch.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{}", nowhere.number) } }],
        "users": [{ "name": "u", "user": {} }],
    });
    Account::unprivileged().write(&kubeconfig, config.to_string(), 0o600).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], monitor.number));
    let program = scratch.share(&bed::program()).unwrap();
    let spec = Spec::new("prlimit", scratch.path().join("operator.log"))
        .arg("--nofile=1024:8192")
        .arg(program)
        .args(["run", "--schedd=nobody", &format!("--metrics-bind-address={address}"), "--data-dir"])
        .arg(data)
        .env("KUBECONFIG", kubeconfig)
        .env("PATH", "/usr/bin:/bin");
    let operator = Owned::spawn(&spec).unwrap();
    wait_for("the operator to look for the API server", PATIENCE, || {
        operator.must_run().map_err(|error| error.to_string())?;
        let text = operator.log_text();
        if text.contains("waiting for the API server") { Ok(()) } else { Err(text) }
    })
    .unwrap();
    wait(address, &GATES);
    signal(operator.pid(), Signal::HUP);
    let more = || operator.log_text().contains("filter=info,kube_runtime=warn,kube_client=error,htc=debug");
    wait_for("the log to show more", PATIENCE, more).unwrap();
    assert_eq!(http::get(address, "/healthz").unwrap().status, 200, "it need not be started again");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", operator.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().nth(3), Some("8192"), "{files}");
}
