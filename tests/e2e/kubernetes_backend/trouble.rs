//! Failures, and the conditions that report them.

use bed::{Bed, Namespace, PATIENCE, condition, is_true};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::kubelet::{Kubelet, NODE};
use super::stage::{Owned as _, Stage, assert_one_job, container, pods};

on_versions! {
    trixie:
        deleted_job_is_lost_and_not_recreated,
        foreign_job_of_the_same_name_is_left_alone,
        htcjob_waits_and_can_be_deleted_while_the_backend_is_off;
    long:
        silent_node_is_reported_and_its_pod_is_waited_for,
        exceeded_resource_quota_is_reported_and_retried,
        evicted_pod_is_no_failure,
        missing_image_is_reported,
        root_image_is_reported_with_a_remedy,
        fields_without_meaning_are_refused,
        namespace_deletion_removes_all_pods;
}

fn wait_says(here: &Namespace<'_>, name: &str, reason: &str) -> String {
    here.wait_says(name, "Submitted", "False", reason)
}

/// Waits until another HTCJob, made later, has run: by then the operator would have done something about the first one.
fn another_runs(here: &Namespace<'_>, name: &str) {
    here.create(&pods(name, 1));
    here.end(0, 0);
    here.wait_ended(name);
}

fn deleted_job_is_lost_and_not_recreated(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    here.create(&pods("gone", 3));
    here.end(2, 0);
    here.wait("gone", "one has succeeded", |object| object["status"]["succeeded"] == 1);
    let job = here.job_name("gone");
    here.begin_remove("job", &job);
    let ended = here.wait_ended("gone");
    let failed = condition(&ended, "Failed").unwrap();
    assert_eq!(failed["reason"], "JobsLost");
    assert!(failed["message"].as_str().unwrap().contains("was deleted before it ended"), "{failed}");
    assert_eq!((&ended["status"]["succeeded"], &ended["status"]["failedIndexes"]), (&json!(1), &json!("0-1")));
    // Nor is it made again by an operator that was started since, nor if somebody deletes the end of it, too.
    stage.bed.kill_operator();
    stage.bed.start_operator();
    another_runs(&here, "other");
    let jobs = here.jobs();
    assert!(jobs.iter().all(|other| other["metadata"]["name"] != *job), "{jobs:#?}");
    here.delete("gone");
    here.delete("other");
    here.wait_all_gone();
}

fn foreign_job_of_the_same_name_is_left_alone(version: Version) {
    let stage = Stage::new(version);
    let here = stage.namespace();
    for name in ["first", "second"] {
        here.create(&pods(name, 1));
        let template = json!({ "spec": {
            "restartPolicy": "Never", "containers": [{ "name": "c", "image": "theirs" }] } });
        let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": {
            "name": here.job_name(name), "namespace": here.name }, "spec": { "suspend": true, "template": template } });
        stage.bed.apply(&job);
    }
    stage.bed.start_operator();
    let message = wait_says(&here, "first", "NameTaken");
    assert!(message.contains(&here.job_name("first")) && message.contains("left alone"), "{message}");
    wait_says(&here, "second", "NameTaken");
    // Somebody else's is neither taken over nor deleted.
    let theirs = here.job_name("second");
    here.delete("second");
    let left = here.jobs();
    assert!(left.iter().any(|job| job["metadata"]["name"] == *theirs), "{left:#?}");
    here.begin_remove("job", &here.job_name("first"));
    here.end(0, 0);
    assert!(is_true(&here.wait_ended("first"), "Complete"));
    here.delete("first");
}

fn exceeded_resource_quota_is_reported_and_retried(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let quota = |name: &str, hard: Value| {
        let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {
            "name": name, "namespace": here.name }, "spec": { "hard": hard } });
        stage.bed.apply(&quota);
        let quotas = format!("/api/v1/namespaces/{}/resourcequotas", here.name);
        wait_for("the quota to be in force", PATIENCE, || {
            stage.bed.object(&quotas, name).is_some_and(|quota| quota["status"]["hard"] == quota["spec"]["hard"])
        })
        .unwrap();
    };
    quota("jobs", json!({ "count/jobs.batch": "0" }));
    here.create(&pods("many", 1));
    let message = wait_says(&here, "many", "CreateRefused");
    assert!(message.contains("exceeded quota"), "{message}");
    assert_eq!(here.get("many")["status"]["phase"], "Pending");
    // Before the Job may be made: it would have its Pod at once.
    quota("pods", json!({ "pods": "0" }));
    here.remove("resourcequota", "jobs");
    let message = here.wait_says("many", "Stuck", "True", "PodsNotCreated");
    assert!(message.contains("kubectl describe job many-"), "{message}");
    here.remove("resourcequota", "pods");
    here.end(0, 0);
    let ended = here.wait_ended("many");
    assert!(is_true(&ended, "Complete") && !is_true(&ended, "Stuck"), "{ended:#}");
    here.delete("many");
}

fn evicted_pod_is_no_failure(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    here.create(&pods("moved", 1));
    here.run(0);
    here.wait_phase("moved", "Running");
    let first = here.wait_index(0)["metadata"]["uid"].clone();
    here.play(
        0,
        json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory.",
        "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet" }] }),
    );
    let second = here.wait_index(0);
    assert_ne!(second["metadata"]["uid"], first);
    assert_eq!(here.get("moved")["status"]["failed"], 0);
    here.end(0, 0);
    assert!(is_true(&here.wait_ended("moved"), "Complete"));
    here.delete("moved");
}

/// The test does by hand what the node lifecycle controller does for a silent node: it marks and deletes the Pods.
fn silent_node_is_reported_and_its_pod_is_waited_for(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let kubelet = Kubelet::start(&stage.bed);
    here.create(&pods("silent", 1));
    let pod = kubelet.take(&here, 0);
    here.run(0);
    here.wait_phase("silent", "Running");
    let first = here.wait_index(0)["metadata"]["uid"].clone();
    let marked = json!([{ "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager" }]);
    here.play(0, json!({ "conditions": marked }));
    here.kubectl(&["delete", "pod", &pod, "--grace-period=1", "--wait=false"]);
    let message = here.wait_says("silent", "Stuck", "True", "NodeNotAnswering");
    let words = format!("Pod {pod} of job 0 is being deleted, and may still run on node {NODE}");
    assert!(message.contains(&words), "{message}");
    let left = here.pods();
    assert_eq!((left.len(), &left[0]["metadata"]["uid"]), (1, &first), "none takes its place: {left:#?}");
    // An administrator says that the node is gone.
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "reason": "Off" }] } });
    stage.bed.merge_status("/api/v1/nodes", NODE, &ready);
    let taint = json!({ "spec": { "taints": [{
        "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" }] } });
    stage.bed.merge("/api/v1/nodes", NODE, &taint);
    let second = here.wait_index(0);
    assert_ne!(second["metadata"]["uid"], first);
    here.wait("silent", "not stuck", |object| !is_true(object, "Stuck"));
    here.end(0, 0);
    let ended = here.wait_ended("silent");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(ended["status"]["failed"], 0);
    here.delete("silent");
    here.wait_all_gone();
}

fn missing_image_is_reported(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    here.create(&pods("typo", 1));
    let waiting =
        json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image \"centos\"" } });
    here.play(0, json!({ "containerStatuses": [container(&waiting)] }));
    let message = here.wait_says("typo", "Stuck", "True", "PodsCannotStart");
    assert!(message.contains("ImagePullBackOff: Back-off pulling image"), "{message}");
    assert_eq!(here.get("typo")["status"]["state"], "PodsCannotStart");
    here.run(0);
    here.wait("typo", "not stuck", |object| object["status"]["state"] == "Running");
    here.delete("typo");
}

/// In kubelet's words, which `verifyRunAsNonRoot` has (pkg/kubelet/kuberuntime/security_context.go).
fn root_image_is_reported_with_a_remedy(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    for (name, image) in [
        ("named", "image has non-numeric user (physicist), cannot verify user is non-root"),
        ("root", "image will run as root"),
    ] {
        here.create(&pods(name, 1));
        let words =
            format!("container has runAsNonRoot and {image} (pod: \"{name}_{}(u)\", container: job)", here.name);
        let waiting = json!({ "waiting": { "reason": "CreateContainerConfigError", "message": words } });
        here.play(0, json!({ "containerStatuses": [container(&waiting)] }));
        let message = here.wait_says(name, "Stuck", "True", "PodsCannotStart");
        let (_, next) = message.split_once(&format!("CreateContainerConfigError: {words}. ")).unwrap_or_default();
        let baseline = Some("--kubernetes-pod-security=baseline").filter(|_| name == "named");
        for step in ["`USER 1000`", "--kubernetes-run-as-user", "create the HTCJob again"].into_iter().chain(baseline) {
            assert!(next.contains(step), "{step}: {message}");
        }
        here.delete(name);
    }
}

fn fields_without_meaning_are_refused(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    let mut object = pods("options", 1);
    object["spec"]["htcopts"] = "priority = 1".into();
    here.create(&object);
    let message = wait_says(&here, "options", "InvalidSpec");
    assert!(message.starts_with("spec.htcopts has no meaning with backend Kubernetes: "), "{message}");
    let mut object = pods("large", 1);
    object["spec"]["script"]["source"] = "x".repeat(200_000).into();
    object["spec"]["items"] = vec!["y".repeat(1000); 900].into();
    object["spec"]["queue"] = 900.into();
    here.create(&object);
    let message = wait_says(&here, "large", "InvalidSpec");
    assert!(message.contains("a ConfigMap holds 1048576"), "{message}");
    let list = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "list", "namespace": here.name, "labels": { "htc.cern.ch/use": "items" } }, "data": { "files": "y".repeat(1000) + "\n" } });
    let lines = json!({ "data": { "files": format!("{}\n", "y".repeat(1000)).repeat(900) } });
    stage.bed.apply(&list);
    let file = stage.bed.scratch().path().join("lines.json");
    std::fs::write(&file, lines.to_string()).unwrap();
    here.kubectl(&["patch", "configmap", "list", "--type=merge", "--patch-file", file.to_str().unwrap()]);
    let mut object = pods("lines", 900);
    object["spec"]["script"]["source"] = "x".repeat(200_000).into();
    object["spec"]["itemsFrom"] = json!({ "configMapKeyRef": { "name": "list", "key": "files" } });
    here.create(&object);
    let message = wait_says(&here, "lines", "InvalidSpec");
    assert!(message.contains("a ConfigMap holds 1048576"), "{message}");
    let mut object = pods("account", 1);
    object["spec"]["kubernetes"] = json!({ "serviceAccountName": "admin" });
    here.create(&object);
    let message = wait_says(&here, "account", "InvalidSpec");
    assert!(message.contains("--kubernetes-service-account"), "{message}");
    // By the API server itself.
    let mut object = bed::htcjob("condor", "true");
    object["spec"]["kubernetes"] = json!({});
    object["metadata"]["namespace"] = here.name.clone().into();
    let refused = stage.bed.kube.apply_stdin(&object.to_string()).unwrap_err().to_string();
    assert!(refused.contains("spec.kubernetes is for Pods only"), "{refused}");
    assert!(here.jobs().is_empty());
    for name in ["options", "large", "lines", "account"] {
        here.delete(name);
    }
}

fn htcjob_waits_and_can_be_deleted_while_the_backend_is_off(version: Version) {
    let here = Bed::shared(version).namespace();
    here.create(&pods("off", 1));
    let message = wait_says(&here, "off", "BackendDisabled");
    assert!(message.contains("--kubernetes-backend"), "{message}");
    here.delete("off");
}

fn namespace_deletion_removes_all_pods(version: Version) {
    let stage = Stage::start(version);
    // The namespace controller asks every API.
    stage.bed.front();
    let here = stage.namespace();
    here.create(&pods("runs", 2));
    here.run(0);
    here.wait_phase("runs", "Running");
    assert_one_job(&here, "runs");
    stage.delete_namespace(&here);
}
