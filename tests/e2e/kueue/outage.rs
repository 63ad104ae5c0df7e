//! Kueue does not run: its webhooks refuse every change.

use bed::condition;
use serde_json::json;
use testbed::Version;

use super::stage::Stage;

on_versions! {
    kueue: kueue_outage_starts_and_stops_no_job;
}

fn kueue_outage_starts_and_stops_no_job(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 2, &json!({}));
    let here = stage.namespace("pool");
    here.create(&stage.lasting("runs", 1));
    here.wait_running("runs", 1);
    stage.kueue.stop().unwrap();
    let late = here.create(&stage.lasting("late", 1));
    let object = here.wait("late", "told that Kueue does not answer", |object| {
        condition(object, "QuotaReserved").is_some_and(|condition| {
            condition["status"] == "False" && condition["message"].as_str().unwrap().contains("webhook")
        })
    });
    assert_eq!(condition(&object, "QuotaReserved").unwrap()["reason"], "PendingEvaluation");
    // A new operator does not know it better.
    bed.kill_operator();
    bed.start_operator();
    stage.site.finish("runs");
    let ended = stage.site.assert_complete_once(&here, "runs", 1);
    assert!(bed.jobs_of(&late).is_empty(), "{ended:#}");
    stage.kueue.start_again(&bed.kube).unwrap();
    here.wait_running("late", 1);
    stage.wait_says(&here, "runs", "Finished", "True", "Succeeded");
    stage.wait_used("pool", 1);
    stage.site.finish("late");
    stage.site.assert_complete_once(&here, "late", 1);
    stage.wait_used("pool", 0);
}
