//! The component: the operator under exactly these rights.

use std::panic::AssertUnwindSafe;

use bed::{ACCOUNT, is_true};
use serde_json::json;
use testbed::{KubeOptions, Version};

use super::stage::Stage;
use crate::deploy::manifests::{container, each, render_with};
use crate::deploy::rbac::token;
use crate::deploy::rights::{self, Right};
use crate::queue::site::{labelled, wait_quota};

on_versions! {
    kueue: kueue_component_needs_exactly_its_rights;
}

const COMPONENT: &str = "../../components/kueue";

fn kueue_component_needs_exactly_its_rights(version: Version) {
    let stage = Stage::new(version, &KubeOptions { audit: true, ..KubeOptions::default() });
    let bed = &stage.site.bed;
    let overlay = render_with("overlays/local", COMPONENT);
    let variable = each(&container(&overlay)["env"]).find(|variable| variable["name"] == "HTC_QUEUEING").unwrap();
    assert_eq!(variable["value"], "kueue");
    let of_kueue = |right: &Right| right.role.contains("kueue");
    let rights: Vec<Right> =
        rights::of(&overlay, "htc-operator", "htc-operator").into_iter().filter(of_kueue).collect();
    assert_eq!(rights.len(), 8, "{rights:?}");
    // Without them it says what it needs.
    bed.without_component("kueue");
    bed.set_env("HTC_QUEUEING", "kueue");
    bed.log_in(&token(bed));
    let (well, output) = bed.check();
    assert!(!well && output.contains("kueue: the operator may not list workloads, watch workloads"), "{output}");
    bed.apply_all(&overlay);
    let (_, output) = bed.check();
    assert!(output.contains("ok    kueue: "), "{output}");

    let before = rights::asked(&bed.kube.audit_log(), ACCOUNT).len();
    bed.start_operator();
    stage.cluster_queue("pool", 1, &json!({ "preemption": { "withinClusterQueue": "LowerPriority" } }));
    let here = stage.namespace("pool");
    let story = std::panic::catch_unwind(AssertUnwindSafe(|| {
        here.create(&stage.of_class("low", 1, "low"));
        here.wait_running("low", 1);
        here.create(&stage.of_class("high", 1, "high"));
        here.wait_running("high", 1);
        here.create(&labelled(stage.site.noted("leaves", 1, ""), "batch"));
        wait_quota(&here, "leaves", "False", "WaitingForQuota");
        here.kubectl(&["label", "htcjob", "leaves", "kueue.x-k8s.io/queue-name-"]);
        for name in ["high", "low"] {
            stage.site.finish(name);
            assert!(is_true(&here.wait_ended(name), "Complete"));
            stage.wait_says(&here, name, "Finished", "True", "Succeeded");
            here.delete(name);
        }
        here.wait_ended("leaves");
        here.delete("leaves");
    }));
    let asked = rights::asked(&bed.kube.audit_log(), ACCOUNT);
    rights::must_suffice(&asked[before..]);
    story.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    rights::must_be_needed(&rights, &asked[before..]);
}
