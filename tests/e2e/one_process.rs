//! Two operators in one process: each counts for itself, is ready for itself, and ends for itself.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bed::signals::signal;
use bed::{Bed, LONG_SUBMISSIONS, PATIENCE, htcjob, http};
use clap::Parser as _;
use htc_operator::cli::config::Config;
use htc_support::telemetry;
use htc_support::telemetry::LogFormat;
use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::Version::Trixie;
use testbed::{Owned, PoolOptions, Port, Spec, wait_for};

/// The variable with the arguments of both operators.
const OPERATORS: &str = "HTC_TEST_OPERATORS";
/// The file in an operator's data folder that tells it to stop.
const STOP: &str = "stop";

struct Operator {
    monitor: Port,
    data: PathBuf,
    arguments: Vec<String>,
}

impl Operator {
    fn new(bed: &Bed, name: &str, namespace: &str) -> Self {
        let (monitor, data) = (Port::reserve().unwrap(), bed.scratch().dir(name).unwrap());
        let arguments = [
            "--schedd".to_owned(),
            bed.pool.schedd_name().to_owned(),
            format!("--data-dir={}", data.display()),
            format!("--operator-name={name}"),
            format!("--watch-namespace={namespace}"),
            format!("--metrics-bind-address=127.0.0.1:{}", monitor.number),
            format!("--image=centos={}", bed.assets.image().display()),
            // The program here is the test, which does not become a tool.
            "--confinement=off".to_owned(),
        ];
        let usual = bed::usual_beside(LONG_SUBMISSIONS).chain(LONG_SUBMISSIONS.iter().copied()).map(str::to_owned);
        Self { monitor, data, arguments: usual.chain(arguments).collect() }
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.monitor.number).into()
    }

    /// Waits for an answer of `/readyz` with this status and these words.
    fn wait_ready(&self, status: u16, words: &str) {
        wait_for(&format!("{status} from /readyz: {words}"), PATIENCE, || {
            let answer = http::get(self.address(), "/readyz").map_err(|error| error.to_string())?;
            if answer.status == status && answer.body.contains(words) { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .unwrap();
    }

    /// Waits until `/metrics` has all these lines.
    fn wait_metrics(&self, lines: &[&str]) {
        wait_for(&format!("{lines:?} in /metrics"), PATIENCE, || {
            let text = http::get(self.address(), "/metrics").map_err(|error| error.to_string())?.body;
            let missing: Vec<_> = lines.iter().filter(|line| text.lines().all(|found| found != **line)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("without {missing:?}:\n{text}")) }
        })
        .unwrap();
    }

    fn stop(&self) {
        std::fs::write(self.data.join(STOP), "").unwrap();
        wait_for("its port to be closed", PATIENCE, || http::get(self.address(), "/healthz").is_err()).unwrap();
    }
}

#[test]
fn operators_in_one_process_stay_separate() {
    let bed = Bed::new(Trixie, &PoolOptions::default(), &[]);
    let (here, there) = (bed.namespace(), bed.namespace());
    bed.let_lead("one");
    bed.let_lead("two");
    let (one, two) = (Operator::new(&bed, "one", &here.name), Operator::new(&bed, "two", &there.name));
    // Somebody else leads in the place of the second, which stands by.
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "two", "namespace": "htc-operator" },
        "spec": { "holderIdentity": "somebody", "leaseDurationSeconds": 3600 },
    });
    bed.apply(&lease);
    let log = bed.scratch().path().join("both.log");
    let program = bed.scratch().share(&std::env::current_exe().unwrap()).unwrap();
    let spec = Spec::new(program, &log)
        .args(["one_process::process_of_both_operators", "--exact", "--nocapture"])
        .env(OPERATORS, json!([one.arguments, two.arguments]).to_string());
    let both = Owned::spawn(&bed.as_operator(spec)).unwrap();

    one.wait_ready(200, "leading: ok\n");
    two.wait_ready(200, "leading: ok (standby)\n");
    one.wait_metrics(&["htc_leader 1"]);
    two.wait_metrics(&["htc_leader 0"]);
    for name in ["a", "b"] {
        here.create(&htcjob(name, "true"));
    }
    there.create(&htcjob("c", "true"));
    for name in ["a", "b"] {
        here.wait_ended(name);
    }
    one.wait_metrics(&["htc_submissions_total 2", "htc_htcjobs{phase=\"Completed\"} 2", "htc_removals_total 0"]);
    two.wait_metrics(&["htc_submissions_total 0", "htc_reconciles_total 0", "htc_leader 0"]);

    bed.kube.kubectl_ok(&["-n", "htc-operator", "delete", "lease", "two"]).unwrap();
    two.wait_ready(200, "leading: ok\n");
    there.wait_ended("c");
    two.wait_metrics(&["htc_submissions_total 1", "htc_htcjobs{phase=\"Completed\"} 1", "htc_leader 1"]);
    here.delete("a");
    here.wait_gone("a");
    one.wait_metrics(&["htc_removals_total 1", "htc_htcjobs{phase=\"Completed\"} 1", "htc_submissions_total 2"]);
    two.wait_metrics(&["htc_removals_total 0"]);

    one.stop();
    both.must_run().unwrap();
    let levels = || -> BTreeSet<String> { lines(&both).iter().map(|line| line["level"].to_string()).collect() };
    assert!(!levels().contains("\"DEBUG\""));
    signal(both.pid(), Signal::HUP);
    wait_for("the log to show more", PATIENCE, || lines(&both).iter().any(|line| line["filter"].is_string())).unwrap();
    let uid = there.create(&htcjob("d", "true"));
    there.wait_ended("d");
    two.wait_ready(200, "schedd-seen: ok\n");
    two.wait_metrics(&["htc_submissions_total 2"]);
    assert!(levels().contains("\"DEBUG\""));
    assert_named(&lines(&both), &there.name, &uid);
    two.stop();
    let status = both.wait(PATIENCE).unwrap();
    assert!(status.success(), "{}", both.log_text());
}

/// What both have logged.
fn lines(both: &Owned) -> Vec<Value> {
    both.log_text().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Each line about the HTCJob `d` names it: its passes, the batches that it was in, and the looks at it.
fn assert_named(lines: &[Value], namespace: &str, uid: &str) {
    let is_d = |line: &&Value| {
        let span = &line["span"];
        span["namespace"] == namespace && span["htcjob"] == "d" && span["uid"] == uid
    };
    let told: Vec<&str> = lines.iter().filter(is_d).filter_map(|line| line["reason"].as_str()).collect();
    assert_eq!(told, ["Pending", "Submitted", "Running", "Completed", "Fetched"], "{lines:#?}");
    let of = |name: &'static str| lines.iter().filter(move |line| line["span"]["name"] == name);
    let name = format!("{namespace}/d");
    for kind in ["Submit", "Fetch"] {
        let batch = |line: &&Value| line["span"]["kind"] == kind && line["span"]["htcjobs"] == name.as_str();
        let batch = of("batch").find(batch).unwrap_or_else(|| panic!("no batch {kind}: {lines:#?}"));
        assert_eq!((&batch["span"]["size"], &batch["span"]["identity"]), (&json!(1), &json!("operator")), "{batch}");
    }
    assert!(of("look").any(|line| line["tool"] == "condor_q"), "{lines:#?}");
}

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    config: Config,
}

/// The process of the test above, which has an environment and a user of its own; by itself it does nothing.
#[test]
fn process_of_both_operators() {
    let Ok(operators) = std::env::var(OPERATORS) else { return };
    let log = telemetry::start(LogFormat::Json, "info,kube_runtime=warn").unwrap();
    let operators: Vec<Vec<String>> = serde_json::from_str(&operators).unwrap();
    let configs = operators.iter().map(|arguments| {
        Cli::try_parse_from(std::iter::once("htc-operator").chain(arguments.iter().map(String::as_str))).unwrap().config
    });
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        tokio::spawn(log.follow_hangups().unwrap());
        let run = |config: Config| {
            let stop = made(config.data.data_dir.join(STOP));
            tokio::spawn(htc_operator::cli::run::run(config, stop))
        };
        for operator in configs.map(run).collect::<Vec<_>>() {
            operator.await.unwrap().unwrap();
        }
    });
}

/// Resolves when there is such a file.
async fn made(file: impl AsRef<Path>) {
    while !file.as_ref().exists() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
