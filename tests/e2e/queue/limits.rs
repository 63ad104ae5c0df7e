//! Limits of quota, and the order of admission.

use std::time::{Duration, Instant};

use serde_json::json;
use testbed::Version;

use bed::is_true;

use super::site::{Queued, labelled, wait_quota, wait_state};

on_versions! {
    trixie: higher_priority_is_admitted_first;
    sid: later_namespace_is_served_before_a_larger_one_is_done;
    long: htcjob_without_a_label_is_in_the_default_queue, htcjob_beyond_the_whole_quota_is_reported_at_once;
}

/// Jobs that wait.
const MANY: u32 = 10_000;
/// Jobs of those who come later.
const FEW: u32 = 10;

fn htcjob_beyond_the_whole_quota_is_reported_at_once(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 1, "memory": "1Gi" }, "priorities": { "urgent": 5 } }));
    let mut object = queued.lasting("large", 1, "batch");
    object["spec"]["resources"] = json!({ "memory": "2Gi" });
    let uid = here.create(&object);
    let message = wait_quota(&here, "large", "False", "ExceedsMaxQuota");
    assert!(message.contains("each job needs 2048Mi memory") && message.contains("1024Mi in all"), "{message}");
    wait_state(&here, "large", "ExceedsMaxQuota");
    here.create(&queued.lasting("silent", 1, "batch"));
    let message = wait_quota(&here, "silent", "False", "Misconfigured");
    assert!(message.contains("spec.resources.memory"), "{message}");
    let mut object = queued.lasting("nameless", 1, "batch");
    object["spec"]["resources"] = json!({ "memory": "10Mi" });
    object["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "nobody".into();
    here.create(&object);
    let message = wait_quota(&here, "nameless", "False", "Misconfigured");
    assert!(message.contains("no priority \"nobody\" (it has urgent)"), "{message}");
    // They hold up nobody, and what is mended goes on.
    let mut object = labelled(queued.site.noted("fits", 1, ""), "batch");
    object["spec"]["resources"] = json!({ "memory": "100Mi" });
    here.create(&object);
    queued.site.assert_complete_once(&here, "fits", 1);
    here.kubectl(&["label", "htcjob", "nameless", "--overwrite", "kueue.x-k8s.io/priority-class=urgent"]);
    here.wait_running("nameless", 1);
    queued.change("batch", &json!({ "quota": { "jobs": 2, "memory": "4Gi" } }));
    here.wait_running("large", 1);
    assert_eq!(bed.jobs_of(&uid).len(), 1);
    for name in ["nameless", "large"] {
        queued.site.finish(name);
        here.wait_ended(name);
    }
    here.delete("silent");
}

fn higher_priority_is_admitted_first(version: Version) {
    let queued = Queued::start(version);
    let here = queued.site.bed.namespace();
    queued.queue(
        "batch",
        &json!({ "quota": { "jobs": 1 }, "priorities": { "urgent": 5 }, "queueingStrategy": "StrictFIFO" }),
    );
    here.create(&queued.lasting("runs", 1, "batch"));
    here.wait_running("runs", 1);
    here.create(&queued.lasting("early", 1, "batch"));
    wait_state(&here, "early", "Queued (1st)");
    let mut object = queued.lasting("urgent", 1, "batch");
    object["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "urgent".into();
    here.create(&object);
    wait_state(&here, "urgent", "Queued (1st)");
    let early = wait_state(&here, "early", "Queued (2nd)");
    let message = early["status"]["message"].as_str().unwrap();
    assert!(message.contains("1 job before it"), "{message}");
    queued.site.finish("runs");
    here.wait_running("urgent", 1);
    assert_eq!(here.get("early")["status"]["running"], 0);
    for name in ["urgent", "early"] {
        queued.site.finish(name);
        here.wait_ended(name);
    }
}

/// One has many jobs that wait, and another comes later with few: it does not wait for the many.
fn later_namespace_is_served_before_a_larger_one_is_done(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let (here, there) = (bed.namespace(), bed.namespace());
    queued.queue("batch", &json!({ "quota": { "jobs": 4 }, "perNamespace": { "jobs": 3 } }));
    let many = here.create(&labelled(queued.site.noted("many", MANY, "sleep 1"), "batch"));
    here.wait("many", "some have run", |object| object["status"]["succeeded"].as_i64() >= Some(1));
    assert!(queued.open(&[&many]) <= 3, "no more than a namespace may have");
    let ended = || here.get("many")["status"]["succeeded"].as_i64().unwrap();
    let (before, began) = (ended(), Instant::now());
    there.create(&labelled(queued.site.noted("few", FEW, "sleep 1"), "batch"));
    there.wait("few", "the last of the few has begun", |object| {
        let (running, ended) = (object["status"]["running"].as_i64(), object["status"]["succeeded"].as_i64());
        running.unwrap_or_default() + ended.unwrap_or_default() == i64::from(FEW) || is_true(object, "Complete")
    });
    let took = began.elapsed();
    queued.site.assert_complete_once(&there, "few", FEW);
    let meanwhile = ended() - before;
    assert!(
        took < Duration::from_mins(1) || meanwhile <= i64::from(FEW),
        "{took:?}, in which {meanwhile} of the many ended"
    );
    // Of four places the many may have three: three to one, and what ran when the few came.
    assert!(meanwhile <= 3 * i64::from(FEW) + 6, "the few have waited for the many: {meanwhile} have ended meanwhile");
    here.delete("many");
}

fn htcjob_without_a_label_is_in_the_default_queue(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let (here, there) = (bed.namespace(), bed.namespace());
    bed.kube.kubectl_ok(&["label", "namespace", &here.name, "team=atlas"]).unwrap();
    let spec = json!({
        "quota": { "jobs": 1 }, "default": true,
        "namespaceSelector": { "matchExpressions": [{ "key": "team", "operator": "In", "values": ["atlas"] }] },
    });
    queued.queue("atlas", &spec);
    queued.wait("atlas", "it is for one", |status| status["conditions"][0]["message"] == "it is for 1 namespace");
    here.create(&queued.site.lasting("default", 2));
    here.wait_running("default", 1);
    wait_quota(&here, "default", "True", "QuotaReserved");
    here.wait_says("default", "Submitted", "False", "Queued");
    // For others it is none: they go at once.
    there.create(&queued.site.lasting("free", 3));
    let free = there.wait_running("free", 3);
    assert!(bed::condition(&free, "QuotaReserved").is_none(), "{free:#}");
    // It is no longer the default: what waits goes on.
    let before = here.uid("default");
    queued.change("atlas", &json!({ "quota": { "jobs": 2 }, "default": false }));
    queued.wait_in_htcondor(&[&before], 2);
    queued.site.finish("default");
    queued.site.finish("free");
    queued.site.assert_complete_once(&here, "default", 2);
    there.wait_ended("free");
}
