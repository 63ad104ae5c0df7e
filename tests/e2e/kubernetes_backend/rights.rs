//! The component and the Role of a namespace: the operator under exactly these rights.

use std::panic::AssertUnwindSafe;

use bed::{ACCOUNT, Bed, is_true};
use htc_support::failpoint::Point;
use serde_json::Value;
use testbed::{KubeOptions, PoolOptions, Version};

use super::kubelet::{Kubelet, kept};
use super::stage::{Owned as _, Stage, pods};
use crate::deploy::manifests::{container, each, render, render_with};
use crate::deploy::rbac::token;
use crate::deploy::rights::{self, Right};

on_versions! {
    trixie: backend_needs_exactly_its_rights, namespace_deletion_completes_after_its_role_is_gone;
}

const COMPONENT: &str = "../../components/kubernetes-backend";

/// The Role that is for one namespace, there.
fn role(namespace: &str) -> Vec<Value> {
    let mut objects = render("namespace-kubernetes-backend");
    for object in &mut objects {
        object["metadata"]["namespace"] = namespace.into();
    }
    objects
}

fn backend_needs_exactly_its_rights(version: Version) {
    let audit = KubeOptions { audit: true, ..KubeOptions::default() };
    let bed = Bed::with_kube(version, &audit, &PoolOptions::default(), &["--kubernetes-backend"]);
    let overlay = render_with("overlays/local", COMPONENT);
    let switched_on = each(&container(&overlay)["env"]).any(|variable| variable["name"] == "HTC_KUBERNETES_BACKEND");
    assert!(switched_on);
    let stage = Stage::of(bed);
    stage.bed.log_in(&token(&stage.bed));
    let (here, closed) = (stage.namespace(), stage.closed_namespace());
    let kubelet = Kubelet::start(&stage.bed);
    let story = std::panic::catch_unwind(AssertUnwindSafe(|| {
        // Killed between ConfigMap and Job: what is there is looked at.
        let places = [<&str>::from(Point::AfterConfigMapCreated).to_owned()];
        stage.bed.dying_at(&places, 1, || {
            here.create(&pods("ends", 1));
            let pod = kubelet.take(&here, 0);
            kubelet.writes(&pod, b"kept");
            here.end(0, 0);
            assert!(is_true(&here.wait_ended("ends"), "Complete"));
        });
        here.delete("ends");
        assert_eq!(std::fs::read_to_string(kept(&here, "ends", 0)).unwrap(), "kept");
        // Its Pods are left behind.
        here.create(&pods("orphaned", 1));
        here.run(0);
        here.wait_phase("orphaned", "Running");
        here.kubectl(&["delete", "job", &here.job_name("orphaned"), "--cascade=orphan"]);
        here.wait_ended("orphaned");
        here.delete("orphaned");
        assert!(here.pods().is_empty(), "{:#?}", here.pods());
        here.wait_all_gone();
        // Where it has no such Role it says what to do.
        closed.create(&pods("waits", 1));
        let message = closed.wait_says("waits", "Submitted", "False", "CreateRefused");
        assert!(message.contains("deploy/namespace-kubernetes-backend"), "{message}");
    }));
    let asked = rights::asked(&stage.bed.kube.audit_log(), ACCOUNT);
    let in_its_namespaces: Vec<_> = asked.iter().filter(|asked| asked.namespace != closed.name).cloned().collect();
    rights::must_suffice(&in_its_namespaces);
    story.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    stage.bed.set_env("HTC_KUBERNETES_BACKEND", "true");
    let (well, output) = stage.bed.check();
    let line = output.lines().find(|line| line.contains("kubernetes backend: ")).unwrap_or_else(|| panic!("{output}"));
    let missing = format!("pods/log in namespace {}: ", closed.name);
    assert!(!well && line.contains(&missing) && !line.contains("all namespaces"), "{output}");
    // Also without it the operator can say that there is no Job of it.
    closed.delete("waits");
    let (_, output) = stage.bed.check();
    assert!(output.contains("ok    kubernetes backend: the operator may watch Jobs and Pods; no HTCJob"), "{output}");
    let all = [overlay, role(&here.name)].concat();
    let of_the_backend = |right: &Right| right.role.contains("kubernetes-backend");
    let rights: Vec<Right> =
        rights::of(&all, "htc-operator", "htc-operator").into_iter().filter(of_the_backend).collect();
    assert_eq!(rights.len(), 12, "{rights:?}");
    rights::must_be_needed(&rights, &asked);
}

/// The controller of namespaces may delete the Role long before the `HTCJob`s.
fn namespace_deletion_completes_after_its_role_is_gone(version: Version) {
    let bed = Bed::with_kube(version, &KubeOptions::default(), &PoolOptions::default(), &["--kubernetes-backend"]);
    let stage = Stage::of(bed);
    let here = stage.namespace();
    stage.bed.start_operator();
    here.create(&pods("runs", 2));
    here.run(0);
    here.wait_phase("runs", "Running");
    here.remove("rolebinding", "htc-operator-kubernetes-backend");
    stage.delete_namespace(&here);
}
