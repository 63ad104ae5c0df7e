//! Events that the API server does not take.

use bed::site::Site;
use bed::{Namespace, PATIENCE};
use serde_json::json;
use testbed::{Version, wait_for};

const WEBHOOK: &str = "refuses-events";

/// A webhook that nobody answers stands before the Events of one namespace. They are more than are written at once, and come first; the
/// others' Events come all the same, and theirs as soon as the webhook is gone.
pub fn refused_in_one_namespace(version: Version) {
    let site = Site::start(version);
    let (refused, here) = (site.bed.namespace(), site.bed.namespace());
    refuse_events(&site, &refused);
    let names: Vec<String> = (0..12).map(|nth| format!("refused-{nth}")).collect();
    for name in &names {
        refused.create(&site.noted(name, 1, ""));
    }
    for name in &names {
        refused.wait_ended(name);
    }
    for name in ["one", "two"] {
        here.create(&site.noted(name, 1, ""));
        here.wait_ended(name);
        here.wait_event(name, "Completed");
    }
    for name in &names {
        assert_eq!(refused.events(name), []);
    }
    site.bed.kube.kubectl_ok(&["delete", "validatingwebhookconfiguration", WEBHOOK]).unwrap();
    for name in &names {
        refused.wait_event(name, "Completed");
    }
    for here in [&refused, &here] {
        site.assert_journal_told(here);
    }
}

fn refuse_events(site: &Site, here: &Namespace<'_>) {
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": WEBHOOK },
        "webhooks": [{
            "name": "events.example.com", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 2,
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": here.name } },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"], "operations": ["CREATE"] }],
            "clientConfig": { "url": "https://127.0.0.1:1/" },
        }],
    });
    site.bed.kube.apply_stdin(&webhook.to_string()).unwrap();
    let probe = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "probe", "namespace": here.name },
        "involvedObject": { "kind": "Namespace", "name": here.name, "namespace": here.name }, "reason": "Probe",
    });
    wait_for("the webhook to be asked", PATIENCE, || match site.bed.kube.apply_stdin(&probe.to_string()) {
        Ok(_) => Err(here.kubectl(&["delete", "event", "probe"])),
        Err(_) => Ok(()),
    })
    .unwrap();
}
