//! HTCJobs from creation to their end, without failures of the cluster.

use bed::{PATIENCE, condition, htcjob_of_container, is_true};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::stage::{Owned as _, Stage, assert_one_job, index_of, pods};

on_versions! {
    trixie:
        successful_job_completes_and_leaves_no_objects,
        failures_have_exit_codes_and_are_retried,
        files_are_mounted_below_the_working_directory,
        programs_without_a_script_are_native_commands,
        baseline_pods_run_as_the_user_of_their_image,
        pods_have_default_metadata_and_listed_keys_only;
    long:
        config_map_items_are_read_once,
        selected_indexes_run_with_their_items,
        suspend_and_parallelism_apply_to_pods,
        deadline_ends_and_ttl_deletes_the_htcjob,
        max_failed_indexes_ends_the_job;
}

pub fn counts(object: &Value) -> [i64; 3] {
    ["active", "succeeded", "failed"].map(|count| object["status"][count].as_i64().unwrap())
}

fn successful_job_completes_and_leaves_no_objects(version: Version) {
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

/// What the API server has made of them, defaults and all.
fn programs_without_a_script_are_native_commands(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let run = ["text", "printf", "word", "text", "$$(HTCPROCID)", "word", "text", "a ", "item", "word"];
    for (name, container, items, command, args) in [
        (
            "command",
            json!({ "image": "i:1", "command": ["printf", "$(HTCPROCID)"], "args": ["${index}\n", "", "$${item}"] }),
            Value::Null,
            json!(["printf"]),
            json!(["$$(HTCPROCID)", "$(HTCPROCID)\n", "", "$${item}"]),
        ),
        (
            "items",
            json!({ "image": "i:1", "command": ["printf", "$(HTCPROCID)", "a ${item}"] }),
            json!(["x"]),
            json!(["/bin/sh", "/etc/htcjob/run"]),
            json!(run),
        ),
        (
            "entrypoint",
            json!({ "image": "i:1", "args": ["${index}"] }),
            Value::Null,
            Value::Null,
            json!(["$(HTCPROCID)"]),
        ),
        ("default", json!({ "image": "i:1" }), Value::Null, Value::Null, Value::Null),
    ] {
        let mut object = htcjob_of_container(name, &container);
        object["spec"]["backend"] = "Kubernetes".into();
        if items.is_array() {
            object["spec"]["items"] = items;
        }
        here.create(&object);
        let pod = here.wait_index(0);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(
            (&container["image"], &container["command"], &container["args"]),
            (&json!("i:1"), &command, &args),
            "{name}"
        );
        here.end(0, 0);
        assert!(is_true(&here.wait_ended(name), "Complete"), "{name}");
        here.delete(name);
    }
    let mut object = htcjob_of_container("unknown", &json!({ "image": "i:1" }));
    object["spec"]["backend"] = "Kubernetes".into();
    object["spec"]["items"] = json!(["x"]);
    here.create(&object);
    let message = here.wait_says("unknown", "Submitted", "False", "InvalidSpec");
    assert!(message.starts_with("spec.items: with backend Kubernetes the image's own entrypoint"), "{message}");
    here.delete("unknown");
    here.wait_all_gone();
}

/// A namespace that admits only restricted Pods gets those.
fn baseline_pods_run_as_the_user_of_their_image(version: Version) {
    let stage = Stage::with(version, &["--kubernetes-backend", "--kubernetes-pod-security=baseline"]);
    stage.bed.start_operator();
    for (level, non_root) in [("baseline", Value::Null), ("restricted", json!(true))] {
        let here = stage.namespace();
        let label = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": level } } });
        stage.bed.merge("/api/v1/namespaces", &here.name, &label);
        here.create(&pods("atlas", 1));
        let pod = here.wait_index(0);
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], non_root, "{level}");
        here.end(0, 0);
        assert!(is_true(&here.wait_ended("atlas"), "Complete"), "{level}");
        here.delete("atlas");
    }
}

fn failures_have_exit_codes_and_are_retried(version: Version) {
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

/// Unlisted keys and keys of Kubernetes are refused before anything is created.
fn pods_have_default_metadata_and_listed_keys_only(version: Version) {
    let stage = Stage::with(version, &["--kubernetes-backend", "--allow-pod-metadata=example.org/*"]);
    stage.bed.start_operator();
    let here = stage.namespace();
    let create = |name: &str, field: &str, key: &str| {
        let mut object = pods(name, 1);
        object["spec"]["kubernetes"] = json!({ field: { key: "x" } });
        here.create(&object);
    };
    for (name, field, key) in
        [("unlisted", "podAnnotations", "other.org/team"), ("reserved", "podLabels", "batch.kubernetes.io/job-name")]
    {
        create(name, field, key);
        let message = here.wait_says(name, "Submitted", "False", "InvalidSpec");
        for part in [&format!("spec.kubernetes.{field}: {key:?}"), "--allow-pod-metadata: example.org/*"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    assert!(here.jobs().is_empty() && here.pods().is_empty());

    create("listed", "podAnnotations", "example.org/team");
    let metadata = &here.wait_index(0)["metadata"];
    assert_eq!(metadata["labels"]["sidecar.istio.io/inject"], "false");
    for (key, value) in [
        ("example.org/team", "x"),
        ("linkerd.io/inject", "disabled"),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
    ] {
        assert_eq!(metadata["annotations"][key], value, "{key}: {metadata:#}");
    }
    for name in ["unlisted", "reserved", "listed"] {
        here.delete(name);
    }
    here.wait_all_gone();
}

fn selected_indexes_run_with_their_items(version: Version) {
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

fn config_map_items_are_read_once(version: Version) {
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

fn max_failed_indexes_ends_the_job(version: Version) {
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

fn suspend_and_parallelism_apply_to_pods(version: Version) {
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

fn deadline_ends_and_ttl_deletes_the_htcjob(version: Version) {
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

/// No kubelet runs here: the Pod names what it would mount, and the ConfigMap has the bytes.
fn files_are_mounted_below_the_working_directory(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let mut object = pods("brings", 1);
    object["spec"]["files"] = json!([
        { "path": "conf/cuts.yaml", "inline": "x" },
        { "path": "bin/tool", "inline": "#!/bin/sh\n", "mode": 0o755 },
    ]);
    here.create(&object);
    let pod = here.wait_index(0);
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["workingDir"], "/htc_run");
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mounted = |path: &str| mounts.iter().find(|mount| mount["mountPath"] == path).cloned().unwrap_or_default();
    assert_eq!(mounted("/htc_run")["readOnly"], Value::Null);
    for (path, key) in [("/htc_run/conf/cuts.yaml", "file-0"), ("/htc_run/bin/tool", "file-1")] {
        let mount = mounted(path);
        assert_eq!((&mount["subPath"], &mount["readOnly"]), (&json!(key), &json!(true)), "{mounts:#?}");
    }
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let files = volumes.iter().find(|volume| volume["name"] == "files").unwrap();
    assert_eq!(files["configMap"]["items"][1], json!({ "key": "file-1", "path": "file-1", "mode": 0o755 }));
    let maps = stage.bed.objects(&format!("/api/v1/namespaces/{}/configmaps", here.name));
    let map = maps.iter().find(|map| map["metadata"]["name"] == json!(here.job_name("brings"))).unwrap();
    assert_eq!(map["binaryData"], json!({ "file-0": "eA==", "file-1": "IyEvYmluL3NoCg==" }));
    here.end(0, 0);
    let ended = here.wait_ended("brings");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(ended["status"]["inputs"][1]["bytes"], 10);
    here.delete("brings");
    here.wait_all_gone();
}
