//! Attacks by users who may edit objects of a namespace.

use bed::{Namespace, PATIENCE, is_true};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::lifecycle::counts;
use super::stage::{Owned as _, Stage, assert_one_job, container, pods};

on_versions! {
    trixie:
        forged_owners_and_labels_are_ignored,
        job_changed_by_hand_is_reverted_and_kept,
        invalid_time_in_metadata_stops_no_watch,
        pods_meet_the_restricted_standard;
    sid: foreign_script_config_map_is_not_run;
    long: job_name_conflict_is_retried_with_pauses;
}

fn owner(name: &str, uid: &str) -> Value {
    json!({ "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "name": name, "uid": uid, "controller": true })
}

/// A ConfigMap of another author is not run, also if its owner reference names the HTCJob.
fn foreign_script_config_map_is_not_run(version: Version) {
    let stage = Stage::new(version);
    let here = stage.namespace();
    let maps = format!("/api/v1/namespaces/{}/configmaps", here.name);
    for (name, owned) in [("theirs", false), ("forged", true)] {
        let uid = here.create(&pods(name, 1));
        let mut map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
            "metadata": { "name": here.job_name(name), "namespace": here.name }, "data": { "script": "steal" } });
        if owned {
            map["metadata"]["ownerReferences"] = json!([owner(name, &uid)]);
        }
        stage.bed.apply(&map);
        // A time that the API server takes and no calendar has.
        let entry = json!({ "manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": { "f:data": { "f:script": {} } }, "time": "9999-12-31T23:59:59Z" });
        let patch = json!({ "metadata": { "managedFields": [entry] } });
        here.patch("configmap", &here.job_name(name), &patch);
    }
    stage.bed.start_operator();
    for name in ["theirs", "forged"] {
        let message = here.wait_says(name, "Submitted", "False", "NameTaken");
        assert!(message.contains(&format!("a ConfigMap {}", here.job_name(name))), "{message}");
        assert!(here.jobs().iter().all(|job| job["metadata"]["name"] != *here.job_name(name)));
        assert_eq!(
            stage.bed.object(&maps, &here.job_name(name)).unwrap()["data"]["script"],
            "steal",
            "it is left alone"
        );
        here.remove("configmap", &here.job_name(name));
        here.wait_index(0);
        let map = stage.bed.object(&maps, &here.job_name(name)).unwrap();
        assert!(map["data"]["script"].as_str().unwrap().contains("echo $1"), "{map:#}");
        here.end(0, 0);
        assert!(is_true(&here.wait_ended(name), "Complete"));
        here.delete(name);
    }
    // Another one of the same name begins anew.
    here.create(&pods("forged", 1));
    here.end(0, 3);
    assert!(is_true(&here.wait_ended("forged"), "Failed"));
    here.delete("forged");
}

/// Objects of another namespace, or of none of its Jobs, that say they are the HTCJob's.
fn forged_owners_and_labels_are_ignored(version: Version) {
    let stage = Stage::start(version);
    let (here, there) = (stage.namespace(), stage.namespace());
    let uid = here.create(&pods("sums", 2));
    here.wait_pods("both", |pods| pods.len() == 2);
    let job = assert_one_job(&here, "sums");
    let own: Vec<Value> = here.pods().iter().map(|pod| pod["metadata"]["name"].clone()).collect();
    let metadata = |name: &str, namespace: &str, labelled: bool| {
        let mut metadata = json!({
            "name": name, "namespace": namespace,
            "labels": { "htc.cern.ch/htcjob-uid": uid, "app.kubernetes.io/managed-by": "htc-operator" },
            "annotations": { "htc.cern.ch/htcjob": "sums", "batch.kubernetes.io/job-completion-index": "0" },
            "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": here.job_name("sums"), "uid": job,
                "controller": true }],
        });
        if labelled {
            metadata["labels"]["batch.kubernetes.io/controller-uid"] = job.clone().into();
        }
        metadata
    };
    let containers = json!([{ "name": "job", "image": "theirs" }]);
    let lies = json!({ "status": { "phase": "Failed", "containerStatuses": [container(&json!({ "terminated": {
        "exitCode": 99, "message": "lies", "finishedAt": "2026-01-01T00:00:07Z" } }))] } });
    for (name, namespace, labelled) in [("elsewhere", &there, true), ("beside", &here, false)] {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata(name, &namespace.name, labelled),
            "spec": { "containers": containers, "restartPolicy": "Never" } });
        stage.bed.apply(&pod);
        // The garbage collector may have removed it by then: its owner is not there.
        let _ = namespace.try_patch_status("pod", name, &lies);
    }
    let template = json!({ "metadata": {}, "spec": { "restartPolicy": "Never", "containers": containers } });
    let mut forged = metadata(&here.job_name("sums"), &there.name, false);
    forged["ownerReferences"] = json!([owner("sums", &uid)]);
    let forged = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": forged,
        "spec": { "suspend": true, "template": template } });
    stage.bed.apply(&forged);
    // Once another one has run, the operator has seen all that.
    there.create(&pods("other", 1));
    wait_for("the Pod of the other", PATIENCE, || {
        there.pods().iter().any(|pod| pod["metadata"]["name"].as_str().unwrap().starts_with("other-"))
    })
    .unwrap();
    // Counts wait for their next change.
    wait_for("the counts of its own Pods", PATIENCE, || {
        let seen = here.get("sums");
        if counts(&seen) == [2, 0, 0] { Ok(()) } else { Err(format!("{seen:#}")) }
    })
    .unwrap();
    stage.bed.front();
    let proc = here.proc("sums-0");
    assert!(own.contains(&proc["status"]["id"]) && proc["status"]["exitCode"].is_null(), "{proc:#}");
    for pod in own {
        let pod = pod.as_str().unwrap();
        let done = json!({ "status": { "phase": "Succeeded", "containerStatuses": [container(&json!({ "terminated": {
            "exitCode": 0, "finishedAt": "2026-01-01T00:00:07Z" } }))] } });
        here.patch_status("pod", pod, &done);
    }
    let ended = here.wait_ended("sums");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.delete("sums");
    there.delete("other");
}

/// `suspend` and `parallelism` follow the HTCJob. Without its owner reference and label the Job is still the recorded
/// one.
fn job_changed_by_hand_is_reverted_and_kept(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let uid = here.create(&pods("sums", 3));
    here.wait_pods("all", |pods| pods.len() == 3);
    let job = here.job_name("sums");
    here.patch("job", &job, &json!({ "spec": { "suspend": true, "parallelism": 1 } }));
    wait_for("the Job to be as it was", PATIENCE, || {
        let spec = here.job("sums")["spec"].clone();
        if spec["suspend"] == false && spec["parallelism"] == 3 { Ok(()) } else { Err(spec) }
    })
    .unwrap();
    here.wait_pods("all again", |pods| pods.len() == 3);
    let free = json!({ "metadata": { "ownerReferences": null, "labels": { "htc.cern.ch/htcjob-uid": null } } });
    here.patch("job", &job, &free);
    here.end(0, 0);
    here.end(1, 0);
    let seen = here.wait("sums", "two have succeeded", |object| object["status"]["succeeded"] == 2);
    assert!(!is_true(&seen, "Failed"), "{seen:#}");
    here.begin_delete("sums");
    here.wait_gone("sums");
    let jobs = here.jobs();
    assert!(jobs.is_empty() && here.pods().is_empty(), "{uid}: {jobs:#?}");
}

/// A user creates a Job of the same name: one that cannot be decoded, or whose owner reference only resembles the
/// HTCJob's. The operator reports it and tries again with pauses.
fn job_name_conflict_is_retried_with_pauses(version: Version) {
    let stage = Stage::new(version);
    let here = stage.namespace();
    let template = json!({ "metadata": {}, "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "c", "image": "theirs" }] } });
    for name in ["unreadable", "foo"] {
        let uid = here.create(&pods(name, 1));
        let mut job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": {
            "name": here.job_name(name), "namespace": here.name }, "spec": { "suspend": true, "template": template } });
        if name == "foo" {
            job["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "example.com/v1", "kind": "Foo", "name": "foo", "uid": uid, "controller": true }]);
        } else {
            job["spec"]["template"]["metadata"]["creationTimestamp"] = "9999-12-31T23:59:59Z".into();
            // The operator watches it, too.
            job["metadata"]["labels"] = json!({ "htc.cern.ch/htcjob-uid": uid });
        }
        stage.bed.apply(&job);
    }
    let theirs = here.jobs();
    let spoiled = |job: &Value| job["spec"]["template"]["metadata"]["creationTimestamp"] == "9999-12-31T23:59:59Z";
    assert!(theirs.iter().any(spoiled), "the API server takes it: {theirs:#?}");
    stage.bed.start_operator();
    let message = here.wait_says("unreadable", "Submitted", "False", "NameTaken");
    assert!(message.contains(&here.job_name("unreadable")) && message.contains("cannot be read"), "{message}");
    let message = here.wait_says("foo", "Submitted", "False", "NameTaken");
    assert!(message.contains("Foo foo controls it"), "{message}");
    here.create(&pods("other", 1));
    here.end(0, 0);
    assert!(is_true(&here.wait_ended("other"), "Complete"));
    let metrics = stage.bed.raw("/metrics").unwrap();
    let conflicts = |line: &&str| {
        ["apiserver_request_total{", "code=\"409\"", "resource=\"jobs\"", "verb=\"POST\""]
            .iter()
            .all(|part| line.contains(part))
    };
    let conflicts: Vec<&str> = metrics.lines().filter(conflicts).collect();
    let tries: f64 = conflicts.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    assert!((2.0..20.0).contains(&tries), "there is a pause between two tries: {conflicts:?}");
    for name in ["unreadable", "foo"] {
        here.begin_remove("job", &here.job_name(name));
    }
    for name in ["unreadable", "foo"] {
        wait_for("its own Job", PATIENCE, || {
            here.jobs()
                .iter()
                .any(|job| job["metadata"]["name"] == *here.job_name(name) && job["spec"]["completions"] == 1)
        })
        .unwrap();
    }
    for name in ["unreadable", "foo", "other"] {
        here.delete(name);
    }
    here.wait_all_gone();
}

/// A namespace that enforces the Pod Security Standard `restricted` lets them in.
fn pods_meet_the_restricted_standard(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    stage.bed.merge("/api/v1/namespaces", &here.name, &json!({ "metadata": { "labels": labels } }));
    let plain = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "plain", "namespace": here.name },
        "spec": { "containers": [{ "name": "job", "image": "centos" }] } });
    let refused = stage.bed.create(&here.collection("pod"), &plain).unwrap_err().to_string();
    assert!(refused.contains("restricted"), "{refused}");
    let mut object = pods("all", 2);
    let spec = &mut object["spec"];
    spec["items"] = json!(["$(HTCPROCID) `id` \"", "\\"]);
    spec["env"] = json!([{ "name": "ODD", "value": "$(HTCPROCID) $$ '\n" }]);
    spec["resources"] = json!({ "cpus": "500m", "memory": "1Gi", "disk": "1Gi" });
    spec["kubernetes"] =
        json!({ "volumes": [{ "claim": "data", "mountPath": "/data" }], "imagePullSecrets": [{ "name": "s" }] });
    here.create(&object);
    let made = here.wait_pods("both", |pods| pods.len() == 2);
    let container = &made[0]["spec"]["containers"][0];
    let odd = container["env"].as_array().unwrap().iter().find(|variable| variable["name"] == "ODD").unwrap();
    assert_eq!(odd["value"], "$$(HTCPROCID) $$$$ '\n", "nothing in it is expanded");
    let maps = format!("/api/v1/namespaces/{}/configmaps", here.name);
    let map = stage.bed.object(&maps, &here.job_name("all")).unwrap();
    assert_eq!(map["data"]["items"], "$(HTCPROCID) `id` \"\n\\\n");
    here.end(0, 0);
    here.end(1, 0);
    assert!(is_true(&here.wait_ended("all"), "Complete"));
    here.delete("all");
}

/// The API server accepts times in metadata that no calendar has.
fn invalid_time_in_metadata_stops_no_watch(version: Version) {
    let stage = Stage::new(version);
    let (here, there) = (stage.namespace(), stage.namespace());
    let spoil = |kind: &str, name: &str| {
        let (api, field) = match kind {
            "pod" => ("v1", "f:restartPolicy"),
            "job" => ("batch/v1", "f:suspend"),
            _ => ("htc.cern.ch/v1alpha1", "f:queue"),
        };
        let entry = json!({ "manager": "x", "operation": "Update", "apiVersion": api, "fieldsType": "FieldsV1",
            "fieldsV1": { "f:spec": { field: {} } }, "time": "9999-12-31T23:59:59Z" });
        let patch = json!({ "metadata": { "managedFields": [entry] } });
        there.patch(kind, name, &patch);
        let now = there.object(kind, name).unwrap().to_string();
        assert!(now.contains("9999-12-31"), "{now}");
    };
    there.create(&pods("spoiled", 1));
    spoil("htcjob", "spoiled");
    let containers = json!([{ "name": "job", "image": "theirs" }]);
    let template = json!({ "spec": { "restartPolicy": "Never", "containers": containers } });
    let metadata = json!({ "name": "bystander", "namespace": there.name, "labels": { "htc.cern.ch/htcjob-uid": "x" } });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "containers": containers } });
    let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
        "spec": { "suspend": true, "template": template } });
    for object in [pod, job] {
        stage.bed.apply(&object);
    }
    spoil("pod", "bystander");
    spoil("job", "bystander");
    stage.bed.start_operator();
    let complete = |here: &Namespace<'_>, name: &str| {
        here.create(&pods(name, 1));
        here.end(0, 0);
        assert!(is_true(&here.wait_ended(name), "Complete"));
    };
    complete(&here, "first");
    // While it is watched.
    spoil("job", &there.job_name("spoiled"));
    spoil("pod", "bystander");
    complete(&here, "second");
    there.end(0, 0);
    assert!(is_true(&there.wait_ended("spoiled"), "Complete"));
    stage.bed.kill_operator();
    stage.bed.start_operator();
    complete(&here, "third");
    for (here, name) in [(&there, "spoiled"), (&here, "first"), (&here, "second"), (&here, "third")] {
        here.delete(name);
        here.wait_gone(name);
    }
}
