//! Which queue applies is proved: an HTCJob that may be in one waits, and one that was in one stays out of HTCondor without it.

use serde_json::{Value, json};
use testbed::{Fault, KubeOptions, Rule, Version, wait_for};

use bed::site::Site;
use bed::{Namespace, PATIENCE, beside, condition, of};

use super::site::{Queued, wait_quota};

on_versions! {
    trixie: deleted_default_queue_lets_no_job_exceed_its_quota, htcjob_waits_while_any_queue_is_undecodable;
    sid:
        replaced_queue_lets_no_job_exceed_its_quota,
        held_jobs_stay_held_when_the_queue_is_deleted,
        htcjob_in_a_namespace_that_cannot_be_watched_waits,
        htcjob_waits_while_the_htcqueue_crd_is_missing,
        retired_queue_is_emptied_and_then_deleted;
}

const CRD: &str = "htcqueues.htc.cern.ch";

/// A default HTCQueue with room for one job at a time.
fn one_place() -> Value {
    json!({ "quota": { "jobs": 1 }, "default": true })
}

/// Most jobs of these HTCJobs that HTCondor has at a time while `story` goes on.
fn most_of(queued: &Queued, uids: &[&str], story: impl FnOnce()) -> usize {
    let look = |most: &mut usize| *most = queued.open(uids).max(*most);
    let ((), most) = beside(0, look, story);
    most
}

/// Waits until `QuotaReserved` says that the queue is gone.
fn wait_gone(here: &Namespace<'_>, name: &str) {
    wait_message(here, name, "HTCQueue batch, which this HTCJob is in, is gone");
}

/// Waits until `QuotaReserved` is `False` for a queue that cannot be used and its message contains `words`. An older message of the
/// same reason may stand there first.
fn wait_message(here: &Namespace<'_>, name: &str, words: &str) -> Value {
    here.wait(name, words, |object| {
        condition(object, "QuotaReserved").is_some_and(|quota| {
            quota["status"] == "False"
                && ["Misconfigured", "QueueNotFound", "QueueNotAllowed"].map(Value::from).contains(&quota["reason"])
                && quota["message"].as_str().is_some_and(|message| message.contains(words))
        })
    })
}

/// Running jobs continue and waiting ones wait, also after a restart. A queue of the same name takes all of them back.
fn deleted_default_queue_lets_no_job_exceed_its_quota(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &one_place());
    let runs = here.create(&queued.site.noted("runs", 2, "while [ ! -e go ]; do sleep 0.3; done"));
    here.wait_running("runs", 1);
    let waits = here.create(&queued.site.lasting("waits", 3));
    wait_quota(&here, "waits", "False", "WaitingForQuota");
    let uids = [runs.as_str(), &waits];
    let most = most_of(&queued, &uids, || {
        bed.delete(bed::api::QUEUES, "batch");
        wait_gone(&here, "waits");
        let message = wait_quota(&here, "runs", "True", "QuotaReserved");
        assert!(message.contains("is gone"), "{message}");
        bed.kill_operator();
        bed.start_operator();
        // The one that runs ends, and nothing follows it.
        bed.open_gate(&runs);
        wait_gone(&here, "runs");
        assert_eq!(queued.open(&uids), 0);
        queued.queue("batch", &one_place());
        here.wait_running("runs", 1);
        bed.open_gate(&runs);
        queued.site.finish("waits");
        queued.site.assert_complete_once(&here, "runs", 2);
        queued.site.assert_complete_once(&here, "waits", 3);
    });
    assert_eq!(most, 1, "never more than the quota");
}

/// As GitOps tools and `kubectl replace --force` do it.
fn replaced_queue_lets_no_job_exceed_its_quota(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &one_place());
    let runs = here.create(&queued.site.lasting("runs", 1));
    here.wait_running("runs", 1);
    let names: Vec<String> = (0..3).map(|number| format!("waits-{number}")).collect();
    let waits: Vec<String> = names.iter().map(|name| here.create(&queued.site.noted(name, 1, "sleep 1"))).collect();
    for name in &names {
        wait_quota(&here, name, "False", "WaitingForQuota");
    }
    let uids: Vec<&str> = waits.iter().chain([&runs]).map(String::as_str).collect();
    let most = most_of(&queued, &uids, || {
        for _ in 0..3 {
            bed.delete(bed::api::QUEUES, "batch");
            wait_gone(&here, "waits-0");
            queued.queue("batch", &one_place());
            wait_quota(&here, "waits-0", "False", "WaitingForQuota");
        }
        queued.site.finish("runs");
        for name in &names {
            queued.site.assert_complete_once(&here, name, 1);
        }
    });
    assert_eq!(most, 1, "never more than the quota");
}

/// Jobs held by `HoldAndDrain`, or waiting to be released, stay held. A label moves the HTCJob to another queue;
/// removing the label releases nothing.
fn held_jobs_stay_held_when_the_queue_is_deleted(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 2 } }));
    let uid = here.create(&queued.lasting("held", 2, "batch"));
    here.wait_running("held", 2);
    queued.change("batch", &json!({ "stopPolicy": "HoldAndDrain" }));
    here.wait("held", "held", |object| object["status"]["held"] == 2);
    queued.wait("batch", "nothing is in use", |status| status["used"]["jobs"] == 0);
    let most = most_of(&queued, &[&uid], || {
        bed.delete(bed::api::QUEUES, "batch");
        wait_gone(&here, "held");
        here.kubectl(&["label", "htcjob", "held", "kueue.x-k8s.io/queue-name-"]);
        here.kubectl(&["label", "htcjob", "held", "kueue.x-k8s.io/queue-name=none"]);
        let object = wait_message(&here, "held", "there is no HTCQueue none");
        assert_eq!(object["status"]["held"], 2);
        here.kubectl(&["label", "htcjob", "held", "kueue.x-k8s.io/queue-name-"]);
        wait_gone(&here, "held");
    });
    assert_eq!(most, 0);
    assert_eq!(bed.queue(&of(&uid), &["JobStatus"]), [["5"], ["5"]]);
    queued.queue("other", &json!({ "quota": { "jobs": 1 } }));
    here.kubectl(&["label", "htcjob", "held", "kueue.x-k8s.io/queue-name=other"]);
    queued.wait_in_htcondor(&[&uid], 1);
    queued.site.finish("held");
    here.wait_ended("held");
}

/// The operator may list namespaces and not watch them: later namespaces are unknown to it.
fn htcjob_in_a_namespace_that_cannot_be_watched_waits(version: Version) {
    let queued = Queued { site: Site::with(version, "", &["--queueing=embedded"]) };
    let bed = &queued.site.bed;
    let proxy = bed.kube.proxy().unwrap();
    bed.through(&proxy);
    proxy.add(Rule::new("WATCH", "/api/v1/namespaces?", Fault::Status(403, None)));
    let before = bed.namespace();
    bed.start_operator();
    queued.queue("batch", &one_place());
    queued.wait("batch", "it is seen", |status| status["conditions"][0]["reason"] == "Ready");
    let since = bed.namespace();
    let uid = since.create(&queued.site.lasting("unknown", 3));
    let message = wait_quota(&since, "unknown", "False", "PendingEvaluation");
    assert!(message.contains(&format!("namespace {}", since.name)) && message.contains("403"), "{message}");
    let labelled = since.create(&queued.lasting("labelled", 1, "batch"));
    wait_quota(&since, "labelled", "False", "PendingEvaluation");
    // What is known goes on.
    let known = before.create(&queued.site.lasting("known", 1));
    before.wait_running("known", 1);
    assert_eq!(queued.open(&[&uid, &labelled]), 0);
    let uids = [uid.as_str(), &labelled, &known];
    let most = most_of(&queued, &uids, || {
        proxy.clear();
        wait_quota(&since, "unknown", "False", "WaitingForQuota");
        let all = [(&before, "known"), (&since, "unknown"), (&since, "labelled")];
        for (_, name) in all {
            queued.site.finish(name);
        }
        for (here, name) in all {
            here.wait_ended(name);
        }
    });
    assert_eq!(most, 1, "never more than the quota");
}

/// One of a later version, with a word that this operator does not know: it may be the default of every namespace.
fn htcjob_waits_while_any_queue_is_undecodable(version: Version) {
    let site = Site::alone(version, &KubeOptions::default(), &["--queueing=embedded"]);
    let loose = r#"[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema",
        "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}]"#;
    site.bed.kube.kubectl_ok(&["patch", "crd", CRD, "--type=json", "-p", loose]).unwrap();
    let queued = Queued { site };
    let bed = &queued.site.bed;
    let later = json!({ "queueingStrategy": "Lottery" });
    wait_for("the API server takes any HTCQueue", PATIENCE, || {
        let spec =
            json!({ "namespaceSelector": {}, "quota": { "jobs": 1 }, "default": true, "queueingStrategy": "Lottery" });
        let object = json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": "batch" }, "spec": spec,
        });
        bed.create(bed::api::QUEUES, &object).map(drop).map_err(|error| error.to_string())
    })
    .unwrap();
    bed.start_operator();
    let here = bed.namespace();
    let free = here.create(&queued.site.lasting("unlabelled", 3));
    let named = here.create(&queued.lasting("labelled", 1, "batch"));
    for name in ["unlabelled", "labelled"] {
        let message = wait_quota(&here, name, "False", "PendingEvaluation");
        assert!(message.contains("HTCQueue batch cannot be read") && message.contains("Lottery"), "{message}");
    }
    let most = most_of(&queued, &[&free, &named], || {
        queued.change("batch", &json!({ "queueingStrategy": null }));
        // Of the same second: whichever is first.
        queued.wait_in_htcondor(&[&free, &named], 1);
        let waits = if queued.open(&[&free]) == 1 { "labelled" } else { "unlabelled" };
        // What runs goes on when it cannot be read any more, and nothing else begins.
        queued.change("batch", &later);
        let message = wait_quota(&here, waits, "False", "PendingEvaluation");
        assert!(message.contains("cannot be read"), "{message}");
        assert_eq!(queued.open(&[&free, &named]), 1);
        queued.change("batch", &json!({ "queueingStrategy": null }));
        let all = ["unlabelled", "labelled"];
        for name in all {
            queued.site.finish(name);
        }
        for name in all {
            here.wait_ended(name);
        }
    });
    assert_eq!(most, 1, "never more than the quota");
}

/// With `--queueing=embedded` HTCQueues are expected: without their CRD it is unknown which one applies.
fn htcjob_waits_while_the_htcqueue_crd_is_missing(version: Version) {
    let site = Site::alone(version, &KubeOptions::default(), &["--queueing=embedded"]);
    let crd = site.bed.kube.kubectl_ok(&["get", "crd", CRD, "-o", "json"]).unwrap();
    site.bed.kube.kubectl_ok(&["delete", "crd", CRD]).unwrap();
    site.bed.set_env("HTC_QUEUEING", "embedded");
    let (well, output) = site.bed.check();
    assert!(!well && output.contains("the API server does not serve HTCQueues"), "{output}");
    site.bed.start_operator();
    let queued = Queued { site };
    let bed = &queued.site.bed;
    let here = bed.namespace();
    let uid = here.create(&queued.site.lasting("early", 3));
    let message = wait_quota(&here, "early", "False", "Misconfigured");
    assert!(message.contains("does not serve HTCQueues") && message.contains("--queueing=none"), "{message}");
    let most = most_of(&queued, &[&uid], || {
        let mut object: Value = serde_json::from_str(&crd).unwrap();
        object["metadata"] = json!({ "name": CRD });
        object.as_object_mut().unwrap().remove("status");
        bed.kube.apply_stdin(&object.to_string()).unwrap();
        wait_for("the kind", PATIENCE, || bed.kube.has_kind("htc.cern.ch", "v1alpha1", "htcqueues")).unwrap();
        queued.queue("batch", &one_place());
        here.wait_running("early", 1);
    });
    assert!(most <= 1, "{most} with a quota of one");
    queued.site.finish("early");
    here.wait_ended("early");
}

/// As docs/queues.md describes: no HTCJob enters the queue, those in it end or move, and it is deleted.
fn retired_queue_is_emptied_and_then_deleted(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("old", &json!({ "quota": { "jobs": 1 }, "default": true }));
    let runs = here.create(&queued.site.lasting("runs", 1));
    here.wait_running("runs", 1);
    let waits = here.create(&queued.site.lasting("waits", 1));
    wait_quota(&here, "waits", "False", "WaitingForQuota");
    let named = here.create(&queued.lasting("named", 1, "old"));
    wait_quota(&here, "named", "False", "WaitingForQuota");
    // The next one is the default, and gives nothing yet: who is where shows.
    queued.queue("next", &json!({ "quota": { "jobs": 2 }, "default": true, "stopPolicy": "Hold" }));
    queued.change("old", &json!({ "default": false }));
    let late = here.create(&queued.site.lasting("late", 1));
    let message = wait_quota(&here, "late", "False", "QueueStopped");
    assert!(message.contains("HTCQueue next"), "{message}");
    queued.wait("old", "two wait in the old one", |status| status["pending"] == 2 && status["admitted"] == 1);
    let labels =
        ["label", "htcjobs", "-l", "kueue.x-k8s.io/queue-name=old", "--overwrite", "kueue.x-k8s.io/queue-name=next"];
    here.kubectl(&labels);
    queued.wait("old", "one waits in the old one", |status| status["pending"] == 1);
    let uids = [runs.as_str(), &waits, &named, &late];
    let most = most_of(&queued, &uids, || {
        bed.delete(bed::api::QUEUES, "old");
        // What the old one has given counts in the next one, and what waits moves there.
        queued.wait("next", "all are in the next one", |status| {
            status["used"]["jobs"] == 1 && status["pending"] == 3 && status["admitted"] == 1
        });
        queued.change("next", &json!({ "stopPolicy": "None" }));
        queued.wait_in_htcondor(&uids, 2);
        for name in ["runs", "waits", "named", "late"] {
            queued.site.finish(name);
        }
        for name in ["runs", "waits", "named", "late"] {
            queued.site.assert_complete_once(&here, name, 1);
        }
    });
    assert_eq!(most, 2, "never more than the quota of the next one");
    queued.wait("next", "nothing is in use", |status| status["used"]["jobs"] == 0 && status["pending"] == 0);
}
