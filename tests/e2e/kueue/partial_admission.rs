//! Partial admission, and quota that is reclaimed as jobs end.

use bed::beside;
use serde_json::json;
use testbed::Version;

use super::stage::Stage;
use crate::queue::site::{labelled, wait_quota};

on_versions! {
    kueue: partial_admission_limits_jobs_and_reclaims_quota;
}

fn partial_admission_limits_jobs_and_reclaims_quota(version: Version) {
    let stage = Stage::start(version);
    stage.cluster_queue("pool", 3, &json!({}));
    let here = stage.namespace("pool");
    here.create(&stage.lasting("first", 1));
    here.wait_running("first", 1);
    // Of four at a time, two fit.
    let runs = stage.site.ran().parent().unwrap().display().to_string();
    let script = format!("[ $HTCPROCID -lt 5 ] || while [ ! -e {runs}/finish-parts ]; do sleep 0.3; done");
    let mut parts = labelled(stage.site.noted("parts", 6, &script), "batch");
    parts["spec"]["parallelism"] = 4.into();
    let look = |most: &mut usize| *most = stage.open().max(*most);
    let ((), most) = beside(0, look, || {
        here.create(&parts);
        let workload = stage.wait_workload(&here, "parts", "two are admitted", |workload| {
            workload["status"]["admission"]["podSetAssignments"][0]["count"] == 2
        });
        let asked = &workload["spec"]["podSets"][0];
        assert_eq!((&asked["count"], &asked["minCount"]), (&json!(4), &json!(1)));
        // Its last one is left: one of two places is free.
        here.wait("parts", "five have ended", |object| object["status"]["succeeded"] == 5);
        let workload = stage.wait_workload(&here, "parts", "three of four are over", |workload| {
            workload["status"]["reclaimablePods"][0]["count"] == 3
        });
        assert_eq!(workload["status"]["reclaimablePods"][0]["name"], "jobs");
        stage.wait_used("pool", 2);
        here.create(&stage.lasting("third", 1));
        here.wait_running("third", 1);
        here.create(&stage.lasting("fourth", 1));
        wait_quota(&here, "fourth", "False", "WaitingForQuota");
        stage.site.finish("parts");
        stage.site.assert_complete_once(&here, "parts", 6);
        here.wait_running("fourth", 1);
        for name in ["first", "third", "fourth"] {
            stage.site.finish(name);
            stage.site.assert_complete_once(&here, name, 1);
        }
    });
    assert_eq!(most, 3, "never more than the quota");
    stage.wait_used("pool", 0);
}
