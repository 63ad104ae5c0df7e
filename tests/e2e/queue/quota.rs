//! A queue is created, HTCJobs come before and after it, wait for quota, and get it as others end.

use serde_json::json;
use testbed::{Version, wait_for};

use bed::{Namespace, PATIENCE, beside, is_true};

use super::site::{Queued, wait_quota, wait_state};

on_versions! {
    trixie:
        htcjobs_wait_for_quota_and_run_in_order,
        operator_kill_around_a_grant_grants_no_quota_twice,
        waiting_jobs_are_submitted_after_ledger_loss;
    sid: quota_counts_htcondor_jobs_after_ledger_loss;
}

/// docs/queues.md names the seed's steps beside these.
fn htcjobs_wait_for_quota_and_run_in_order(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    // Before the queue: the seed ignores it.
    let before = here.create(&queued.lasting("before", 1, "batch"));
    let message = wait_quota(&here, "before", "False", "QueueNotFound");
    assert!(message.contains("there is no HTCQueue batch"), "{message}");
    wait_state(&here, "before", "QueueNotFound");
    assert!(bed.jobs_of(&before).is_empty());

    queued.queue("batch", &json!({ "quota": { "jobs": 2 } }));
    here.wait_running("before", 1);
    assert_eq!(here.get("before")["status"]["state"], "Running");
    wait_quota(&here, "before", "True", "QuotaReserved");

    let second = here.create(&queued.lasting("second", 2, "batch"));
    here.wait_running("second", 1);
    let message = here.wait_says("second", "Submitted", "False", "Queued");
    assert!(message.contains("the quota of HTCQueue batch, 2 jobs, has too little left"), "{message}");
    let third = here.create(&queued.lasting("third", 1, "batch"));
    wait_state(&here, "third", "Queued (2nd)");
    let uids = [before.as_str(), &second, &third];
    let status = queued.wait("batch", "two wait", |status| status["waitingJobs"] == 2);
    assert_eq!(status["status"]["used"]["jobs"], 2);
    assert_eq!(status["status"]["waiting"][1]["name"], "third", "{status:#}");
    assert_eq!(status["status"]["byNamespace"][0]["namespace"], here.name.as_str());

    let look = |most: &mut usize| *most = queued.open(&uids).max(*most);
    let ((), most) = beside(0, look, || {
        queued.site.finish("before");
        here.wait_running("second", 2);
        wait_state(&here, "third", "Queued (1st)");
        queued.site.finish("second");
        here.wait_running("third", 1);
        queued.site.finish("third");
        for (name, jobs) in [("before", 1), ("second", 2), ("third", 1)] {
            queued.site.assert_complete_once(&here, name, jobs);
        }
    });
    assert_eq!(most, 2, "never more than the quota");
    queued.wait("batch", "nothing is in use", |status| status["used"]["jobs"] == 0 && status["waitingJobs"] == 0);
    assert_eq!(queued.events("batch"), ["Ready"]);
    // One for each transition, not for each place.
    for (name, reasons) in [
        ("before", ["Pending", "QueueNotFound", "QuotaReserved", "Submitted"]),
        ("third", ["Pending", "WaitingForQuota", "QuotaReserved", "Submitted"]),
    ] {
        assert_eq!(here.story(name, "Fetched")[..4], reasons, "{name}");
    }
}

/// The operator dies before and after each grant, and right before and after the intents that follow: nothing is granted twice or lost.
fn operator_kill_around_a_grant_grants_no_quota_twice(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 2 } }));
    let names: Vec<String> = (0..6).map(|number| format!("job-{number}")).collect();
    let places = ["before-grants", "after-grants", "before-submit-intents", "after-grants:2", "after-submit-intents"];
    let places: Vec<String> = places.map(str::to_owned).to_vec();
    let look = |most: &mut usize| {
        let open = bed.queue("member(JobStatus, {1, 2, 6}) || HoldReasonCode == 16", &["ProcId"]).len();
        *most = open.max(*most);
    };
    let ((), most) = beside(0, look, || {
        bed.dying_at(&places, places.len(), || {
            for name in &names {
                here.create(&super::site::labelled(queued.site.noted(name, 1, "sleep 1"), "batch"));
            }
            for name in &names {
                queued.site.assert_complete_once(&here, name, 1);
            }
        });
    });
    assert_eq!(most, 2);
    queued.wait("batch", "nothing is in use", |status| status["used"]["jobs"] == 0);
    for name in &names {
        here.delete(name);
    }
}

/// Nothing is granted before the operator knows the jobs in HTCondor.
fn quota_counts_htcondor_jobs_after_ledger_loss(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 2 } }));
    let uid = here.create(&queued.lasting("runs", 2, "batch"));
    here.wait_running("runs", 2);
    wait_for("the jobs' ids in the status", PATIENCE, || {
        here.get("runs")["status"]["jobid"].as_array().map(Vec::len) == Some(2)
    })
    .unwrap();
    bed.kill_operator();
    std::fs::remove_dir_all(bed.data.join("sqlite")).unwrap();
    let look = |most: &mut usize| *most = queued.open(&[&uid]).max(*most);
    let ((), most) = beside(0, look, || {
        bed.start_operator();
        let late = here.create(&queued.lasting("late", 1, "batch"));
        wait_quota(&here, "late", "False", "WaitingForQuota");
        queued.wait("batch", "what is in HTCondor counts", |status| status["used"]["jobs"] == 2);
        assert_eq!(bed.jobs_of(&late).len(), 0);
        queued.site.finish("runs");
        queued.site.finish("late");
        ends_well(&here, "runs");
        ends_well(&here, "late");
    });
    assert_eq!(most, 2);
    assert_eq!([0, 1].map(|index| queued.site.runs("runs", index)), [1, 1]);
}

/// One HTCJob has run half of its jobs, another none: the next ledger submits the rest, job by job within the quota.
fn waiting_jobs_are_submitted_after_ledger_loss(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 1 } }));
    let create = |mut object: serde_json::Value| {
        // History is too young to say anything.
        object["metadata"]["annotations"] = json!({ "htc.cern.ch/submit-again": "true" });
        here.create(&object);
    };
    create(queued.lasting("begun", 2, "batch"));
    here.wait("begun", "its first job is listed", |object| object["status"]["jobid"].as_array().is_some());
    create(super::site::labelled(queued.site.noted("waiting", 2, ""), "batch"));
    wait_quota(&here, "waiting", "False", "WaitingForQuota");
    bed.kill_operator();
    std::fs::remove_dir_all(bed.data.join("sqlite")).unwrap();
    bed.start_operator();
    queued.site.finish("begun");
    for name in ["begun", "waiting"] {
        queued.site.assert_complete_once(&here, name, 2);
        assert_eq!(here.count_events(name, "JobsLost"), 0, "{:?}", here.events(name));
    }
}

fn ends_well(here: &Namespace<'_>, name: &str) {
    let ended = here.wait_ended(name);
    assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", here.bed.logs());
}
