//! HTCJobs that cannot use their quota return it after each try, and block no other.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::{Pool, PoolOptions, Version};

use bed::Namespace;
use bed::site::Site;

use super::site::{Queued, labelled, wait_quota};
use crate::pools::site::{describe, other, wait_ready, with_pool};

on_versions! {
    trixie: five_failing_namespaces_block_no_quota;
    sid: htcjob_with_a_missing_secret_blocks_no_quota;
    long: htcjobs_of_a_silent_pool_keep_no_quota;
}

const REFUSING: &str = "SUBMIT_REQUIREMENT_NAMES = Name\nSUBMIT_REQUIREMENT_Name = !regexp(\"/refused$\", JobBatchName)\n\
                        SUBMIT_REQUIREMENT_Name_REASON = \"the pool takes no job of this name\"\n";

/// Longest time that free room may stay unused while one waits that can use it.
const SOON: Duration = Duration::from_mins(1);

fn without_secret(mut object: Value) -> Value {
    object["spec"]["credentialsSecretName"] = "none".into();
    object
}

/// It keeps no room, says why, and goes on when the Secret is there.
fn gives_back(here: &Namespace<'_>, name: &str, reason: &str) {
    here.wait_says(name, "Submitted", "False", reason);
    let message = wait_quota(here, name, "False", "Waiting");
    assert!(message.contains("keeps no quota in HTCQueue batch while it cannot submit"), "{message}");
}

fn htcjob_with_a_missing_secret_blocks_no_quota(version: Version) {
    let queued = Queued::start(version);
    let here = queued.site.bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 1 }, "queueingStrategy": "StrictFIFO" }));
    here.create(&without_secret(queued.lasting("broken", 3, "batch")));
    gives_back(&here, "broken", "CredentialsFailed");
    let began = Instant::now();
    here.create(&queued.lasting("good", 1, "batch"));
    here.wait_running("good", 1);
    let took = began.elapsed();
    assert!(took < SOON, "{took:?}");
    queued.site.finish("good");
    queued.site.assert_complete_once(&here, "good", 1);
    gives_back(&here, "broken", "CredentialsFailed");
    let events = here.count_events("broken", "Waiting");
    assert_eq!(events, 1, "once, not for each try: {:?}", here.events("broken"));
}

/// The failing HTCJobs are the oldest, and cannot use the quota they get.
fn five_failing_namespaces_block_no_quota(version: Version) {
    let arguments = ["--queueing=embedded", "--namespace-active-jobs=1"];
    let site = Site::with(version, REFUSING, &arguments);
    site.bed.start_operator();
    let queued = Queued { site };
    let bed = &queued.site.bed;
    queued.queue("batch", &json!({ "quota": { "jobs": 1 }, "queueingStrategy": "StrictFIFO" }));
    let (first, last) = (bed.namespace(), bed.namespace());
    first.create(&queued.lasting("runs", 1, "batch"));
    first.wait_running("runs", 1);
    let broken: Vec<(Namespace<'_>, &str, &str)> = [
        ("secret", "CredentialsFailed"),
        ("refused", "SubmitRefused"),
        ("secret", "CredentialsFailed"),
        ("refused", "SubmitRefused"),
        ("limited", "NamespaceLimitReached"),
    ]
    .into_iter()
    .map(|(name, reason)| {
        let here = bed.namespace();
        let object = queued.lasting(name, 3, "batch");
        if name == "limited" {
            here.create(&queued.site.lasting("free", 1));
            here.wait_running("free", 1);
        }
        here.create(&if name == "secret" { without_secret(object) } else { object });
        (here, name, reason)
    })
    .collect();
    for (here, name, _) in broken.iter().filter(|(_, name, _)| *name != "limited") {
        wait_quota(here, name, "False", "WaitingForQuota");
    }
    let good = last.create(&queued.lasting("good", 1, "batch"));
    wait_quota(&last, "good", "False", "WaitingForQuota");
    let began = Instant::now();
    queued.site.finish("runs");
    last.wait_running("good", 1);
    let took = began.elapsed();
    println!("the sixth runs after {took:.1?}");
    assert!(took < SOON, "{took:?}");
    for (here, name, reason) in &broken {
        here.wait_says(name, "Submitted", "False", reason);
    }
    queued.wait("batch", "one job is in use", |status| status["used"]["jobs"] == 1);
    assert_eq!(queued.open(&[&good]), 1);
    queued.site.finish("good");
    queued.site.assert_complete_once(&last, "good", 1);
    for (here, name, reason) in &broken {
        gives_back(here, name, reason);
    }
    // What kept it back is gone.
    let limited = &broken[4].0;
    queued.site.finish("free");
    limited.wait_running("limited", 1);
    queued.site.finish("limited");
    queued.site.assert_complete_once(limited, "limited", 3);
}

/// The schedd of one of two pools does not answer.
fn htcjobs_of_a_silent_pool_keep_no_quota(version: Version) {
    let queued = Queued::with(version, &["--credentials-refresh=2s"]);
    let bed = &queued.site.bed;
    let second = Pool::start(&bed.assets, other(version), &PoolOptions::default()).unwrap();
    queued.queue("batch", &json!({ "quota": { "jobs": 1 }, "queueingStrategy": "StrictFIFO" }));
    let there = bed.namespace();
    describe(&there, "second", &second, &[]);
    there.create(&with_pool(queued.site.noted("before", 1, ""), "second"));
    there.wait_ended("before");
    wait_ready(&there, "second", "Answering");
    second.pause_schedd().unwrap();
    for number in 0..3 {
        let name = format!("silent-{number}");
        there.create(&labelled(with_pool(queued.site.noted(&name, 3, ""), "second"), "batch"));
    }
    there.wait_says("silent-0", "Submitted", "False", "ScheddUnreachable");
    let here = bed.namespace();
    let began = Instant::now();
    here.create(&queued.lasting("good", 1, "batch"));
    here.wait_running("good", 1);
    let took = began.elapsed();
    println!("the good one runs after {took:.1?}");
    assert!(took < SOON, "{took:?}");
    second.resume_schedd().unwrap();
    queued.site.finish("good");
    queued.site.assert_complete_once(&here, "good", 1);
    for number in 0..3 {
        there.wait_ended(&format!("silent-{number}"));
    }
}
