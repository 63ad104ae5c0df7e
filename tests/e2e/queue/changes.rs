//! Changes while jobs run: suspension, a lower quota, a stopped or deleted queue.

use serde_json::json;
use testbed::{KubeOptions, Version};

use bed::site::Site;
use bed::{beside, condition, of};

use super::site::{Queued, wait_quota, wait_state};

on_versions! {
    sid: suspend_returns_quota_and_resume_waits_for_it;
    long:
        abandoned_htcjob_returns_its_quota,
        recreated_queue_continues_with_its_htcjobs,
        stopped_queue_grants_nothing_and_drained_queue_holds_jobs,
        htcjob_that_ends_early_returns_its_quota_once,
        lowered_quota_stops_no_running_job;
}

fn suspend_returns_quota_and_resume_waits_for_it(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 1 } }));
    let first = here.create(&queued.lasting("first", 1, "batch"));
    here.wait_running("first", 1);
    let second = here.create(&queued.lasting("second", 1, "batch"));
    wait_state(&here, "second", "Queued (1st)");
    let look = |most: &mut usize| *most = queued.open(&[&first, &second]).max(*most);
    let ((), most) = beside(0, look, || {
        here.suspend("first", true);
        here.wait_running("second", 1);
        let message = wait_quota(&here, "first", "False", "Suspended");
        assert!(message.starts_with("spec.suspend is true"), "{message}");
        here.suspend("first", false);
        let message = wait_quota(&here, "first", "False", "WaitingForQuota");
        assert!(message.starts_with("1 job waits for quota"), "{message}");
        wait_state(&here, "first", "Queued (1st)");
        assert_eq!(here.get("first")["status"]["held"], 1);
        bed.kill_operator();
        bed.start_operator();
        queued.site.finish("second");
        here.wait_running("first", 1);
        queued.site.finish("first");
        here.wait_ended("first");
    });
    assert_eq!(most, 1);
    queued.site.assert_complete_once(&here, "second", 1);
    let story = here.story("first", "Fetched");
    let reported =
        ["Pending", "QuotaReserved", "Submitted", "Running", "Suspended", "Suspended", "Resumed", "WaitingForQuota"];
    assert_eq!(story[..reported.len()], reported, "{story:?}");
}

/// Nothing is taken, and nothing new is granted until it fits.
fn lowered_quota_stops_no_running_job(version: Version) {
    let queued = Queued::start(version);
    let here = queued.site.bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 3 } }));
    let many = here.create(&queued.lasting("many", 3, "batch"));
    here.wait_running("many", 3);
    queued.change("batch", &json!({ "quota": { "jobs": 1 } }));
    let later = here.create(&queued.lasting("later", 1, "batch"));
    let message = wait_quota(&here, "later", "False", "WaitingForQuota");
    assert!(message.contains("the quota of HTCQueue batch, 1 jobs, has too little left"), "{message}");
    queued.wait("batch", "more is in use than may be", |status| status["used"]["jobs"] == 3);
    assert_eq!((queued.open(&[&many]), queued.open(&[&later])), (3, 0));
    queued.site.finish("many");
    queued.site.assert_complete_once(&here, "many", 3);
    here.wait_running("later", 1);
    queued.site.finish("later");
    queued.site.assert_complete_once(&here, "later", 1);
}

fn stopped_queue_grants_nothing_and_drained_queue_holds_jobs(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 5 } }));
    let runs = here.create(&queued.lasting("runs", 1, "batch"));
    here.wait_running("runs", 1);
    queued.change("batch", &json!({ "stopPolicy": "Hold" }));
    queued.wait("batch", "it is stopped", |status| status["conditions"][0]["reason"] == "Stopped");
    here.create(&queued.lasting("waits", 1, "batch"));
    let message = wait_quota(&here, "waits", "False", "QueueStopped");
    assert!(message.contains("stopped by its administrator"), "{message}");
    assert_eq!(here.get("runs")["status"]["running"], 1);

    queued.change("batch", &json!({ "stopPolicy": "HoldAndDrain" }));
    let held = here.wait("runs", "held", |object| object["status"]["held"] == 1);
    let message = condition(&held, "Suspended").unwrap()["message"].as_str().unwrap();
    assert!(message.starts_with("HTCQueue batch has stopPolicy HoldAndDrain"), "{message}");
    queued.wait("batch", "nothing is in use", |status| status["used"]["jobs"] == 0);
    assert_eq!(bed.queue(&of(&runs), &["JobStatus"]), [["5"]]);

    queued.change("batch", &json!({ "stopPolicy": "None" }));
    here.wait_running("runs", 1);
    here.wait_running("waits", 1);
    let active = queued.wait("batch", "it gives room", |status| status["conditions"][0]["reason"] == "Ready");
    // Each change once, and the next operator tells nothing again.
    bed.kill_operator();
    bed.start_operator();
    let pods = here.create(&queued.lasting("next", 1, "batch"));
    here.wait_running("next", 1);
    queued.wait("batch", "three are in use", |status| status["used"]["jobs"] == 3);
    assert_eq!(queued.events("batch"), ["Ready", "Ready", "Stopped"]);
    let since = |queue: &serde_json::Value| queue["status"]["conditions"][0]["lastTransitionTime"].clone();
    assert_eq!(since(&queued.get("batch")), since(&active));
    queued.site.finish("next");
    queued.site.assert_complete_once(&here, "next", 1);
    assert_eq!(bed.jobs_of(&pods).len(), 1);
    for name in ["runs", "waits"] {
        queued.site.finish(name);
        here.wait_ended(name);
    }
}

/// Deleted while waiting or running, or past its deadline: its quota goes to the next HTCJob, once. A waiting HTCJob
/// has no `startTime`.
fn htcjob_that_ends_early_returns_its_quota_once(version: Version) {
    let queued = Queued::start(version);
    let here = queued.site.bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 1 } }));
    let within = |name: &str, seconds: u32| {
        let mut object = queued.lasting(name, 1, "batch");
        object["spec"]["activeDeadlineSeconds"] = seconds.into();
        object
    };
    let first = here.create(&within("first", 8));
    here.wait_running("first", 1);
    let waits = here.create(&queued.lasting("waits", 1, "batch"));
    wait_state(&here, "waits", "Queued (1st)");
    let second = here.create(&within("second", 1));
    let uids = [&first, &waits, &second].map(String::as_str);
    let look = |most: &mut usize| *most = queued.open(&uids).max(*most);
    let ((), most) = beside(0, look, || {
        here.delete("waits");
        for name in ["first", "second"] {
            here.wait_says(name, "Failed", "True", "DeadlineExceeded");
        }
        assert!(here.get("second")["status"]["startTime"].is_string(), "its time began when it had room");
    });
    assert_eq!(most, 1, "never more than the quota");
    here.create(&queued.lasting("third", 1, "batch"));
    here.wait_running("third", 1);
    here.create(&queued.lasting("last", 1, "batch"));
    wait_state(&here, "last", "Queued (1st)");
    here.delete("third");
    here.wait_running("last", 1);
    queued.site.finish("last");
    queued.site.assert_complete_once(&here, "last", 1);
    queued.wait("batch", "nothing is in use", |status| status["used"]["jobs"] == 0 && status["pending"] == 0);
}

/// Running jobs continue, waiting HTCJobs report the missing queue and continue by themselves, and running jobs count
/// in the new queue.
fn recreated_queue_continues_with_its_htcjobs(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 1 } }));
    let uid = here.create(&queued.lasting("parts", 2, "batch"));
    here.wait_running("parts", 1);
    bed.delete(bed::api::QUEUES, "batch");
    here.create(&queued.lasting("late", 1, "batch"));
    let message = wait_quota(&here, "late", "False", "QueueNotFound");
    assert!(message.contains("there is no HTCQueue batch"), "{message}");
    assert_eq!(queued.open(&[&uid]), 1);
    queued.queue("batch", &json!({ "quota": { "jobs": 1 }, "namespaceSelector": { "matchLabels": { "no": "such" } } }));
    let message = here.wait("late", "not for this namespace", |object| {
        condition(object, "QuotaReserved")
            .is_some_and(|condition| condition["message"].as_str().unwrap().contains("is not for namespace"))
    });
    assert_eq!(message["status"]["state"], "QueueNotAllowed");
    let queue = queued.wait("batch", "it is for nobody", |status| status["conditions"][0]["reason"] == "NoNamespace");
    assert_eq!(queue["status"]["used"]["jobs"], 1, "what runs counts");
    bed.kube.kubectl_ok(&["label", "namespace", &here.name, "no=such"]).unwrap();
    wait_quota(&here, "late", "False", "WaitingForQuota");
    for name in ["parts", "late"] {
        queued.site.finish(name);
    }
    queued.site.assert_complete_once(&here, "parts", 2);
    queued.site.assert_complete_once(&here, "late", 1);
}

/// Jobs of an abandoned HTCJob no longer concern the operator: the next HTCJob gets the quota, once.
fn abandoned_htcjob_returns_its_quota(version: Version) {
    let site = Site::alone(version, &KubeOptions::default(), &["--queueing=embedded", "--tool-timeout=5s"]);
    site.bed.start_operator();
    let queued = Queued { site };
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 1 } }));
    here.create(&queued.lasting("left", 1, "batch"));
    here.wait_running("left", 1);
    // Of the same second: whichever is first.
    let waiting = ["one", "other"].map(|name| here.create(&queued.lasting(name, 1, "batch")));
    queued.wait("batch", "two wait", |status| status["waitingJobs"] == 2);
    bed.pool.pause_schedd().unwrap();
    here.begin_delete("left");
    here.wait_says("left", "JobsRemoved", "False", "ScheddUnreachable");
    queued.wait("batch", "it may still run", |status| status["used"]["jobs"] == 1);
    here.annotate("left", "htc.cern.ch/abandon");
    here.wait_gone("left");
    queued.wait("batch", "one waits", |status| status["waitingJobs"] == 1 && status["used"]["jobs"] == 1);
    bed.kill_operator();
    bed.start_operator();
    bed.pool.resume_schedd().unwrap();
    queued.wait_in_htcondor(&[&waiting[0], &waiting[1]], 1);
    queued.wait("batch", "one is in use", |status| status["waitingJobs"] == 1 && status["used"]["jobs"] == 1);
    for name in ["one", "other", "left"] {
        queued.site.finish(name);
    }
    for name in ["one", "other"] {
        queued.site.assert_complete_once(&here, name, 1);
    }
}
