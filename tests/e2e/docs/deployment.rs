//! Stands in for the Deployment controller and the kubelet, which the test bed lacks: the operator's process runs, or does not,
//! as the Deployment `htc-operator` says.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::wait_for;

use bed::{Bed, PATIENCE, beside};

/// Does `work` while the bed's operator, which runs, is started and stopped as the Deployment says.
pub fn run_as_deployed<T>(bed: &Bed, work: impl FnOnce() -> T) -> T {
    bed.kube.apply_stdin(&deployment().to_string()).unwrap();
    let keep = |runs: &mut bool| {
        *runs = obey(bed, *runs);
        std::thread::sleep(Duration::from_millis(300));
    };
    beside(true, keep, work).0
}

fn deployment() -> Value {
    let labels = json!({ "app.kubernetes.io/name": "htc-operator" });
    let container = json!({ "name": "htc-operator", "image": "htc-operator" });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "htc-operator", "namespace": "htc-operator" },
        "spec": {
            "replicas": 1, "strategy": { "type": "Recreate" }, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
        },
    })
}

fn obey(bed: &Bed, runs: bool) -> bool {
    let reported = bed.object("/apis/apps/v1/namespaces/htc-operator/deployments", "htc-operator").unwrap();
    let wanted = reported["spec"]["replicas"].as_u64().unwrap_or(1);
    match (wanted, runs) {
        (0, true) => drop(bed.stop_operator()),
        (1.., false) => {
            bed.start_operator();
            // Before that it is not ready, and dies of SIGTERM.
            wait_for("the operator to run", PATIENCE, || bed.log().contains("htc-operator runs")).unwrap();
        }
        _ => {}
    }
    let mut status = json!({ "observedGeneration": reported["metadata"]["generation"] });
    for count in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
        status[count] = wanted.min(1).into();
    }
    // The API server keeps no counts of 0.
    let differs = |(field, value): (&String, &Value)| reported["status"].get(field).unwrap_or(&json!(0)) != value;
    if status.as_object().unwrap().iter().any(differs) {
        let patch = json!({ "status": status }).to_string();
        let arguments = ["-n", "htc-operator", "patch", "deployment", "htc-operator", "--subresource=status"];
        bed.kube.kubectl_ok(&[&arguments[..], &["--type=merge", "-p", &patch]].concat()).unwrap();
    }
    wanted > 0
}
