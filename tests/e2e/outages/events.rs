//! Events that the API server does not take.

use bed::site::Site;
use bed::{Namespace, PATIENCE};
use serde_json::json;
use testbed::{Version, wait_for};

on_versions! {
    sid: refused_events_delay_no_other_namespace;
}

const WEBHOOK: &str = "refuses-events";

/// So many are more than are tried in one go once nothing goes well.
const NAMESPACES: usize = 20;

/// A webhook that nobody answers stands before the Events of one namespace, and of many others. They are more than are written at once, and
/// come first; other Events come all the same, and theirs as soon as the webhook is gone.
///
/// It fails if what is refused of one object counts as trouble with all Events (`what_it_means` in `events.rs`).
fn refused_events_delay_no_other_namespace(version: Version) {
    let site = Site::start(version);
    let many: Vec<_> = (0..NAMESPACES).map(|_| site.bed.namespace()).collect();
    let (refused, here) = (site.bed.namespace(), site.bed.namespace());
    refuse_events(&site, &many.iter().chain([&refused]).collect::<Vec<_>>());
    let mut waits = site.noted("waits", 1, "");
    waits["spec"]["suspend"] = true.into();
    for namespace in &many {
        namespace.create(&waits);
    }
    for namespace in &many {
        namespace.wait_phase("waits", "Pending");
    }
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
    for namespace in &many {
        namespace.wait_event("waits", "Pending");
    }
    for here in [&refused, &here] {
        site.assert_events_match_journal(here);
    }
}

fn refuse_events(site: &Site, namespaces: &[&Namespace<'_>]) {
    let names: Vec<&str> = namespaces.iter().map(|namespace| namespace.name.as_str()).collect();
    let here = namespaces[0];
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": WEBHOOK },
        "webhooks": [{
            "name": "events.example.com", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 2,
            "namespaceSelector": {
                "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": names }],
            },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"], "operations": ["CREATE"] }],
            "clientConfig": { "url": "https://127.0.0.1:1/" },
        }],
    });
    site.bed.apply(&webhook);
    let probe = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "probe", "namespace": here.name },
        "involvedObject": { "kind": "Namespace", "name": here.name, "namespace": here.name }, "reason": "Probe",
    });
    wait_for("the webhook to be asked", PATIENCE, || match site.bed.create(&here.collection("event"), &probe) {
        Ok(_) => {
            here.remove("event", "probe");
            Err("it was not")
        }
        Err(_) => Ok(()),
    })
    .unwrap();
}
