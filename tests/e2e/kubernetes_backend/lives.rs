//! What becomes of HTCJobs that go their way.

use bed::{PATIENCE, condition, is_true};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::stage::{Owned as _, Stage, assert_one_job, index_of, pods};

on_versions! {
    trixie: all_succeed_and_nothing_is_left, failures_have_exit_codes_and_are_tried_again;
    long:
        items_of_a_config_map_are_read_once,
        only_some_indexes_with_items,
        suspended_and_resumed_and_as_many_at_a_time_as_are_wanted,
        the_deadline_and_the_time_after_the_end,
        too_many_failures_cut_it_short;
}

pub fn counts(object: &Value) -> [i64; 3] {
    ["active", "succeeded", "failed"].map(|count| object["status"][count].as_i64().unwrap())
}

fn all_succeed_and_nothing_is_left(version: Version) {
    let stage = Stage::start(version);
    stage.bed.front();
    let here = stage.namespace();
    let mut object = pods("sums", 3);
    object["metadata"]["labels"] = json!({ "app": "submission-helper", "other": "x" });
    object["spec"]["env"] = json!([{ "name": "PRICE", "value": "$(HOME) costs $5" }]);
    object["spec"]["resources"] = json!({ "cpus": "500m", "memory": "2Gi", "disk": "1Gi", "gpus": 1 });
    object["spec"]["kubernetes"] = json!({
        "imagePullSecrets": [{ "name": "my-registry" }],
        "volumes": [{ "claim": "ntuples-claim", "mountPath": "/ntuples", "readOnly": true }],
        "nodeSelector": { "disk": "ssd" },
        "tolerations": [{ "key": "batch", "operator": "Exists" }],
    });
    here.create(&object);
    here.wait_phase("sums", "Submitted");
    let seen = here.wait_pods("three", |pods| pods.len() == 3);
    assert_one_job(&here, "sums");
    // What the API server has made of it, defaults and all.
    let labels = &seen[0]["metadata"]["labels"];
    assert_eq!((&labels["app"], &labels["other"]), (&json!("submission-helper"), &Value::Null));
    let spec = &seen[0]["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["volumes"][1]["persistentVolumeClaim"]["claimName"], "ntuples-claim");
    assert_eq!(spec["imagePullSecrets"][0]["name"], "my-registry");
    let container = &spec["containers"][0];
    assert_eq!(container["command"], json!(["bash"]));
    assert_eq!(container["args"], json!(["/etc/htcjob/script", "$(HTCPROCID)"]));
    let price = container["env"].as_array().unwrap().iter().find(|variable| variable["name"] == "PRICE").unwrap();
    assert_eq!(price["value"], "$$(HOME) costs $$5");
    assert_eq!(container["resources"]["requests"]["cpu"], "500m");
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "1");

    here.run(1);
    let running = here.wait("sums", "one runs", |object| object["status"]["running"] == 1);
    assert_eq!((&running["status"]["phase"], counts(&running)), (&json!("Running"), [3, 0, 0]));
    for index in 0..3 {
        here.end(index, 0);
    }
    let ended = here.wait_ended("sums");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!((&ended["status"]["completedIndexes"], counts(&ended)), (&json!("0-2"), [0, 3, 0]));
    assert_eq!(ended["status"]["jobName"], here.job_name("sums"));
    assert_eq!(here.story("sums", "Completed"), ["Pending", "Submitted", "Running", "Completed"]);
    let proc = here.proc("sums-1");
    assert_eq!((&proc["status"]["state"], &proc["status"]["exitCode"]), (&json!("Succeeded"), &json!(0)));
    assert_eq!(proc["status"]["durationSeconds"], 7, "{proc:#}");
    assert!(proc["status"]["id"].as_str().unwrap().starts_with(&here.job_name("sums")), "{proc:#}");

    here.begin_delete("sums");
    here.wait_gone("sums");
    assert!(here.jobs().is_empty() && here.pods().is_empty(), "they go before it");
    here.wait_all_gone();
}

fn failures_have_exit_codes_and_are_tried_again(version: Version) {
    let stage = Stage::start(version);
    stage.bed.front();
    let here = stage.namespace();
    let mut object = pods("fit", 3);
    object["spec"]["maxRetries"] = 1.into();
    here.create(&object);
    here.end(0, 3);
    here.end(1, 0);
    here.end(2, 7);
    // The Job waits for a while before it tries again.
    here.end(2, 0);
    here.end(0, 4);
    let ended = here.wait_ended("fit");
    let failed = condition(&ended, "Failed").unwrap();
    assert_eq!(failed["reason"], "JobsFailed");
    let message = failed["message"].as_str().unwrap();
    assert!(message.starts_with("1 of 3 jobs failed: exit code 4 (1); job 0 (Pod fit-"), "{message}");
    assert!(message.contains("last words of 0"), "{message}");
    assert_eq!((&ended["status"]["failedIndexes"], counts(&ended)), (&json!("0"), [0, 2, 1]));
    let proc = here.proc("fit-0");
    let status = &proc["status"];
    assert_eq!((&status["state"], &status["exitCode"], &status["attempts"]), (&json!("Failed"), &json!(4), &json!(2)));
    let listed = here.kubectl(&["get", "htcprocs", "-l", "htc.cern.ch/htcjob=fit"]);
    assert_eq!(listed.lines().count(), 4, "{listed}");
    let stories = here.procs().replace("htcprocs", "htcstories");
    for path in [format!("{}/fit-0/files", here.procs()), format!("{stories}/fit/files")] {
        let refused = here.bed.raw(&path).unwrap_err();
        assert!(refused.to_string().contains("volume"), "{refused}");
    }
    here.delete("fit");
    here.wait_all_gone();
}

fn only_some_indexes_with_items(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let mut object = pods("skim", 5);
    object["spec"]["items"] = json!(["a", "b c", "", "$d", "e"]);
    object["spec"]["indexes"] = "4,1-2".into();
    here.create(&object);
    let seen = here.wait_pods("three", |pods| pods.len() == 3);
    let container = &seen[0]["spec"]["containers"][0];
    assert_eq!((&container["command"], &container["args"]), (&json!(["/bin/sh", "/etc/htcjob/run"]), &json!(["bash"])));
    let maps = format!("/api/v1/namespaces/{}/configmaps", here.name);
    let map = stage.bed.object(&maps, &here.job_name("skim")).unwrap();
    assert_eq!((&map["data"]["indexes"], &map["data"]["items"]), (&json!("1\n2\n4\n"), &json!("b c\n\ne\n")));
    assert_eq!(map["immutable"], true);
    here.end(0, 0);
    here.end(1, 1);
    here.end(2, 0);
    let ended = here.wait_ended("skim");
    let status = &ended["status"];
    assert_eq!((&status["completedIndexes"], &status["failedIndexes"]), (&json!("1,4"), &json!("2")));
    here.delete("skim");
}

fn items_of_a_config_map_are_read_once(version: Version) {
    let stage = Stage::start(version);
    stage.bed.front();
    let here = stage.namespace();
    let list = |lines: &str| {
        let list = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "list", "namespace": here.name, "labels": { "htc.cern.ch/use": "items" } }, "data": { "files": lines } });
        stage.bed.apply(&list);
    };
    let mut object = pods("lines", 1);
    object["spec"].as_object_mut().unwrap().remove("queue");
    object["spec"]["itemsFrom"] = json!({ "configMapKeyRef": { "name": "list", "key": "files" } });
    here.create(&object);
    here.wait_says("lines", "Submitted", "False", "ItemsUnavailable");
    list("a\nb c\nd\n");
    here.wait_pods("three", |pods| pods.len() == 3);
    list("other\n");
    stage.bed.kill_operator();
    stage.bed.start_operator();
    let maps = format!("/api/v1/namespaces/{}/configmaps", here.name);
    let map = stage.bed.object(&maps, &here.job_name("lines")).unwrap();
    assert_eq!(map["data"]["items"], "a\nb c\nd\n");
    for index in 0..3 {
        here.end(index, 0);
    }
    let ended = here.wait_ended("lines");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!((&ended["status"]["completedIndexes"], counts(&ended)), (&json!("0-2"), [0, 3, 0]));
    assert_eq!(here.proc("lines-1")["spec"]["item"], "b c");
    here.delete("lines");
    here.wait_all_gone();
}

fn too_many_failures_cut_it_short(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let mut object = pods("cut", 4);
    object["spec"]["maxFailedIndexes"] = 0.into();
    object["spec"]["parallelism"] = 2.into();
    here.create(&object);
    here.wait_pods("two", |pods| pods.len() == 2);
    here.run(0);
    here.end(1, 9);
    let ended = here.wait_ended("cut");
    assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "MaxFailedIndexesExceeded", "{ended:#}");
    assert_eq!(counts(&ended), [0, 0, 4]);
    assert_eq!(ended["status"]["failedIndexes"], "0-3");
    here.wait_event("cut", "MaxFailedIndexesExceeded");
    here.delete("cut");
    here.wait_all_gone();
}

fn suspended_and_resumed_and_as_many_at_a_time_as_are_wanted(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let mut object = pods("wait", 3);
    object["spec"]["suspend"] = true.into();
    object["spec"]["parallelism"] = 1.into();
    here.create(&object);
    here.wait("wait", "Suspended", |object| is_true(object, "Suspended") && is_true(object, "Submitted"));
    assert_eq!(here.job("wait")["spec"]["suspend"], true);
    assert!(here.pods().is_empty());
    here.suspend("wait", false);
    here.wait_pods("one", |pods| pods.len() == 1);
    here.merge("wait", &json!({ "spec": { "parallelism": 2 } }));
    here.wait_pods("two", |pods| pods.len() == 2);
    here.run(0);
    here.wait_phase("wait", "Running");
    here.suspend("wait", true);
    here.wait_pods("none", <[Value]>::is_empty);
    let waits = here.wait("wait", "nothing is active", |object| counts(object) == [0, 0, 0]);
    assert_eq!((&waits["status"]["phase"], &waits["status"]["state"]), (&json!("Running"), &json!("Suspended")));
    here.suspend("wait", false);
    for index in 0..3 {
        here.end(index, 0);
    }
    let ended = here.wait_ended("wait");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(here.count_events("wait", "Resumed"), 2);
    here.delete("wait");
}

fn the_deadline_and_the_time_after_the_end(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let mut object = pods("late", 2);
    object["spec"]["activeDeadlineSeconds"] = 600.into();
    here.create(&object);
    here.end(1, 0);
    here.wait("late", "one has succeeded", |object| object["status"]["succeeded"] == 1);
    here.merge("late", &json!({ "spec": { "activeDeadlineSeconds": 1 } }));
    let ended = here.wait_ended("late");
    assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "DeadlineExceeded", "{ended:#}");
    assert_eq!((&ended["status"]["failedIndexes"], counts(&ended)), (&json!("0"), [0, 1, 1]));
    here.merge("late", &json!({ "spec": { "ttlSecondsAfterFinished": 0 } }));
    here.wait_gone("late");
    here.wait_all_gone();
    let left = wait_for("its Pods to be gone", PATIENCE, || here.pods().iter().all(|pod| index_of(pod) == u32::MAX));
    left.unwrap();
}
