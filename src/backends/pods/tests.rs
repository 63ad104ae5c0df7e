//! Tests of every field of the spec: what it becomes in the Job, or the message that refuses it.

use std::collections::BTreeSet;

use htc_api::{HTCJobSpec, ObjectName};
use htc_machine::Uid;
use htc_machine::facts::Spec;
use htc_machine::ids::Index;
use htc_machine::pods::DesiredJob;
use htc_submit::pod_spec::{CpuLimits, PodPlan, PodSecurity, PodSettings};
use htc_submit::spec;
use serde_json::{Value, json};

use super::*;

fn site() -> PodSettings {
    PodSettings {
        enabled: true,
        gpu_resource: "example.com/gpu".to_owned(),
        run_as_user: None,
        security: PodSecurity::Restricted,
        fs_group: None,
        service_accounts: vec!["runner".to_owned()],
        metadata: vec!["example.org/*".parse().unwrap()],
        cpu_limits: None,
    }
}

fn spec(more: &Value) -> HTCJobSpec {
    let mut spec = json!({
        "backend": "Kubernetes",
        "script": { "image": "python:3.12", "command": "python3 -u", "source": "print(1)" },
    });
    for (field, value) in more.as_object().unwrap() {
        match value.as_object() {
            Some(more) if spec[field].is_object() => spec[field].as_object_mut().unwrap().extend(more.clone()),
            _ => spec[field] = value.clone(),
        }
    }
    if !spec["container"].is_null() {
        spec.as_object_mut().unwrap().remove("script");
    }
    serde_json::from_value(spec).unwrap()
}

/// Builds the ConfigMap and the Job; the error is the refusal.
fn made(more: &Value, site: &PodSettings) -> Result<Value, String> {
    let spec = spec(more);
    let plan = PodPlan::parse(&spec, site).map_err(|error| error.to_string())?;
    let queue = spec::queue(&spec, Some(4).filter(|_| spec.items_from.is_some())).map_err(|error| error.to_string())?;
    let indexes = spec::indexes(&spec, queue).map_err(|error| error.to_string())?;
    let most = |limit: Option<i64>| limit.map(|limit| u32::try_from(limit).unwrap());
    let facts = Spec {
        queue,
        indexes,
        suspend: spec.suspend,
        parallelism: most(spec.parallelism),
        deadline: spec.active_deadline_seconds.map(|limit| std::time::Duration::from_secs(limit.unsigned_abs())),
        ..Spec::default()
    };
    let indexes: Vec<Index> = facts.asked_for().iter().collect();
    let items = indexes.iter().filter_map(|index| spec.items.get(index.0 as usize).cloned()).collect();
    let texts =
        Texts { source: spec.source().map(str::to_owned), indexes, items, files: Vec::new(), variables: Vec::new() };
    let name = ObjectName { namespace: "physics".to_owned(), name: "sums.x".to_owned() };
    let of = JobOwner { name, uid: Uid::from("0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001"), app: Some("mine".to_owned()) };
    let map = config_map(&of, &texts).map_err(|error| error.to_string())?;
    let job = job(&of, &plan, site, &texts, DesiredJob::of(&facts));
    Ok(json!({
        "map": map, "job": job.spec, "pod": job.spec.as_ref().unwrap().template.spec,
        "c": job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0],
        "meta": job.metadata, "podMeta": job.spec.as_ref().unwrap().template.metadata,
    }))
}

enum Becomes {
    /// This value is at this JSON pointer.
    Stands(&'static str, Value),
    /// The Job does not change; the operator itself reads the field.
    Nothing,
    /// It is refused with a message that contains these words.
    Refused(&'static str),
}

fn container(command: &Value, args: &Value) -> Value {
    json!({ "container": { "image": "python:3.13", "command": command, "args": args } })
}

fn with(mut spec: Value, field: &str, value: Value) -> Value {
    spec[field] = value;
    spec
}

/// Field, its value, and the expected result.
#[allow(clippy::too_many_lines, reason = "a line for each field")]
fn table() -> Vec<(&'static str, Value, Becomes)> {
    use Becomes::{Nothing, Refused, Stands};
    let script = |field: &str, value: &str| json!({ "script": { field: value } });
    let pods = |value: Value| json!({ "kubernetes": value });
    let volume = |path: &str| pods(json!({ "volumes": [{ "claim": "data", "mountPath": path }] }));
    vec![
        ("name", json!({ "name": "x" }), Nothing),
        ("backend", json!({}), Stands("/job/completionMode", json!("Indexed"))),
        ("script.image", json!({}), Stands("/c/image", json!("python:3.12"))),
        ("script.image", script("image", "/cvmfs/x"), Refused("not a name in a registry")),
        ("script.image", script("image", "my.sif"), Refused("not a name in a registry")),
        ("script.image", script("image", "docker://python"), Refused("has a scheme")),
        ("script.image", script("image", "Python X"), Refused("spec.script.image")),
        ("script.command", json!({}), Stands("/c/command", json!(["python3", "-u"]))),
        ("script.command", json!({}), Stands("/c/args", json!(["/etc/htcjob/script", "$(HTCPROCID)"]))),
        ("script.command", script("command", "bash -c 'x'"), Refused("spec.script.command")),
        ("script.source", json!({}), Stands("/map/data/script", json!("print(1)"))),
        ("script.queue", json!({ "script": { "queue": 3 } }), Stands("/job/completions", json!(3))),
        ("container.image", container(&json!(["sh"]), &json!([])), Stands("/c/image", json!("python:3.13"))),
        (
            "container.image",
            json!({ "container": { "image": "/cvmfs/x" } }),
            Refused("spec.container.image: \"/cvmfs/x\" is not a name in a registry"),
        ),
        (
            "container.command",
            container(&json!(["a $(B)", "$${x}"]), &json!([])),
            Stands("/c/command", json!(["a $$(B)"])),
        ),
        (
            "container.args",
            container(&json!(["sh", "$${x}"]), &json!(["", "${index}$(A)$$"])),
            Stands("/c/args", json!(["$${x}", "", "$(HTCPROCID)$$(A)$$$$"])),
        ),
        ("container.args", container(&json!([]), &json!(["-v"])), Stands("/c/args", json!(["-v"]))),
        ("container.args", container(&json!([]), &json!([])), Stands("/c/args", Value::Null)),
        ("container.command", container(&json!([]), &json!(["-v"])), Stands("/c/command", Value::Null)),
        ("container.command", container(&json!([]), &json!([])), Stands("/map/data", json!({}))),
        ("container.command", container(&json!(["-e"]), &json!([])), Refused("spec.container.command")),
        (
            "container.args",
            with(container(&json!(["sh"]), &json!(["$x${item}"])), "items", json!(["a", "b"])),
            Stands("/c/args", json!(["text", "sh", "word", "text", "$$x", "item", "word"])),
        ),
        (
            "container.command",
            with(container(&json!([]), &json!([])), "items", json!(["a"])),
            Refused("spec.items: with backend Kubernetes the image's own entrypoint cannot have it"),
        ),
        (
            "container.command",
            with(with(container(&json!([]), &json!([])), "queue", json!(9)), "indexes", json!("0")),
            Refused("spec.indexes: with backend Kubernetes"),
        ),
        ("queue", json!({}), Stands("/job/completions", json!(1))),
        ("queue", json!({ "queue": 5 }), Stands("/job/completions", json!(5))),
        ("queue", json!({ "queue": 5 }), Stands("/job/parallelism", json!(5))),
        ("queue", json!({ "queue": 0 }), Refused("spec.queue is 0")),
        ("indexes", json!({ "queue": 9, "indexes": "7,2-3" }), Stands("/job/completions", json!(3))),
        ("indexes", json!({ "queue": 9, "indexes": "7,2-3" }), Stands("/map/data/indexes", json!("2\n3\n7\n"))),
        (
            "indexes",
            json!({ "queue": 9, "indexes": "7,2-3" }),
            Stands("/c/command", json!(["/bin/sh", "/etc/htcjob/run"])),
        ),
        ("indexes", json!({ "queue": 9, "indexes": "9" }), Refused("spec.indexes")),
        ("items", json!({ "items": ["a b", ""] }), Stands("/map/data/items", json!("a b\n\n"))),
        (
            "items",
            json!({ "items": ["a", "b"] }),
            Stands(
                "/c/args",
                json!([
                    "text",
                    "python3",
                    "word",
                    "text",
                    "-u",
                    "word",
                    "text",
                    "/etc/htcjob/script",
                    "word",
                    "index",
                    "word",
                    "item",
                    "word"
                ]),
            ),
        ),
        ("items", json!({ "items": ["a\nb"] }), Refused("spec.items")),
        (
            "itemsFrom",
            json!({ "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }),
            Stands("/job/completions", json!(4)),
        ),
        (
            "itemsFrom",
            json!({ "itemsFrom": { "configMapKeyRef": { "name": "N", "key": "k" } } }),
            Refused("spec.itemsFrom"),
        ),
        ("parallelism", json!({ "queue": 5, "parallelism": 2 }), Stands("/job/parallelism", json!(2))),
        ("parallelism", json!({ "queue": 5, "parallelism": 0 }), Stands("/job/parallelism", json!(0))),
        ("maxFailedIndexes", json!({ "maxFailedIndexes": 2 }), Stands("/job/maxFailedIndexes", json!(2))),
        ("maxFailedIndexes", json!({}), Stands("/job/maxFailedIndexes", Value::Null)),
        ("maxRetries", json!({ "maxRetries": 100_001 }), Refused("write a number from 0 to 100000")),
        ("maxFailedIndexes", json!({ "maxFailedIndexes": 100_001 }), Refused("write a number from 0 to 100000")),
        ("maxRetries", json!({}), Stands("/job/backoffLimitPerIndex", json!(0))),
        ("maxRetries", json!({ "maxRetries": 4 }), Stands("/job/backoffLimitPerIndex", json!(4))),
        (
            "env",
            json!({ "env": [{ "name": "A", "value": "$(B) $C" }] }),
            Stands("/c/env/5", json!({ "name": "A", "value": "$$(B) $$C" })),
        ),
        ("env", json!({}), Stands("/c/env/2", json!({ "name": "TMPDIR", "value": "/tmp" }))),
        (
            "env",
            json!({ "env": [{ "name": "TMPDIR", "value": "/scratch" }] }),
            Stands("/c/env/4", json!({ "name": "TMPDIR", "value": "/scratch" })),
        ),
        ("env", json!({ "env": [{ "name": "HOME", "value": "here" }] }), Refused("write an absolute path")),
        ("env", json!({ "env": [{ "name": "HTC_ITEM", "value": "" }] }), Refused("spec.env")),
        (
            "resources.cpus",
            json!({ "resources": { "cpus": "500m" } }),
            Stands("/c/resources/requests/cpu", json!("500m")),
        ),
        ("resources.cpus", json!({ "resources": { "cpus": "500m" } }), Stands("/c/resources/limits/cpu", Value::Null)),
        ("resources.cpus", json!({ "resources": { "cpus": "many" } }), Refused("spec.resources.cpus")),
        (
            "resources.memory",
            json!({ "resources": { "memory": "2Gi" } }),
            Stands("/c/resources/requests/memory", json!("2Gi")),
        ),
        (
            "resources.memory",
            json!({ "resources": { "memory": "2Gi" } }),
            Stands("/c/resources/limits/memory", json!("2Gi")),
        ),
        (
            "resources.memory",
            json!({ "resources": { "memory": "2Gi" } }),
            Stands("/pod/volumes/1/emptyDir", json!({ "medium": "Memory", "sizeLimit": "2Gi" })),
        ),
        ("resources.memory", json!({}), Stands("/c/volumeMounts/1/mountPath", json!("/dev/shm"))),
        ("resources.memory", json!({}), Stands("/pod/volumes/1/emptyDir", json!({ "medium": "Memory" }))),
        ("resources.memory", json!({ "resources": { "memory": "lots" } }), Refused("spec.resources.memory")),
        ("resources.disk", json!({ "resources": { "disk": "lots" } }), Refused("spec.resources.disk")),
        (
            "resources.disk",
            json!({ "resources": { "disk": 5 } }),
            Stands("/c/resources/limits/ephemeral-storage", json!("5")),
        ),
        (
            "resources.gpus",
            json!({ "resources": { "gpus": 2 } }),
            Stands("/c/resources/limits/example.com~1gpu", json!("2")),
        ),
        ("resources.gpus", json!({ "resources": { "gpus": 0 } }), Stands("/c/resources/limits", json!({}))),
        (
            "activeDeadlineSeconds",
            json!({ "activeDeadlineSeconds": 9 }),
            Stands("/job/activeDeadlineSeconds", json!(9)),
        ),
        ("ttlSecondsAfterFinished", json!({ "ttlSecondsAfterFinished": 9 }), Nothing),
        // It is resumed only after it is recorded.
        ("suspend", json!({}), Stands("/job/suspend", json!(true))),
        ("suspend", json!({ "suspend": true }), Stands("/job/suspend", json!(true))),
        ("htcopts", json!({ "htcopts": "rank = 1" }), Refused("spec.htcopts has no meaning")),
        ("requirements", json!({ "requirements": "true" }), Refused("spec.kubernetes.nodeSelector")),
        (
            "credentialsSecretName",
            json!({ "credentialsSecretName": "s" }),
            Refused("spec.credentialsSecretName has no meaning"),
        ),
        ("pool", json!({ "pool": "p" }), Refused("spec.pool has no meaning")),
        ("miniCluster", json!({ "miniCluster": {} }), Refused("spec.miniCluster has no meaning")),
        ("outputs", json!({ "outputs": ["x"] }), Refused("the files of a Pod go with it")),
        (
            "imagePullSecrets",
            json!({ "imagePullSecrets": [{ "name": "s" }] }),
            Stands("/pod/imagePullSecrets", json!([{ "name": "s" }])),
        ),
        ("imagePullSecrets", json!({ "imagePullSecrets": [{ "name": "S" }] }), Refused("spec.imagePullSecrets")),
        (
            "kubernetes.imagePullSecrets",
            pods(json!({ "imagePullSecrets": [{ "name": "s" }] })),
            Stands("/pod/imagePullSecrets", json!([{ "name": "s" }])),
        ),
        (
            "kubernetes.imagePullSecrets",
            pods(json!({ "imagePullSecrets": [{ "name": "S" }] })),
            Refused("spec.kubernetes.imagePullSecrets"),
        ),
        ("files", json!({ "files": [{ "path": "../a", "inline": "x" }] }), Refused("not a path below")),
        ("files", json!({ "files": [{ "path": "a", "url": "https://h/a" }] }), Refused("no program that fetches it")),
        (
            "files",
            json!({ "files": [{ "path": "a", "secret": { "name": "s", "key": "k" } }] }),
            Stands(
                "/pod/volumes/2/secret",
                json!({ "secretName": "s", "items": [{ "key": "k", "path": "content", "mode": 0o444 }] }),
            ),
        ),
        (
            "env",
            json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }] }),
            Stands("/c/env/5/valueFrom/secretKeyRef", json!({ "name": "s", "key": "k" })),
        ),
        (
            "volumes",
            json!({ "volumes": [{ "claim": "data", "path": "/data" }] }),
            Stands("/pod/volumes/1/persistentVolumeClaim/claimName", json!("data")),
        ),
        (
            "volumes",
            json!({ "volumes": [{ "claim": "data", "path": "/data", "readOnly": true }] }),
            Stands("/c/volumeMounts/1", json!({ "name": "claim-0", "mountPath": "/data", "readOnly": true })),
        ),
        (
            "volumes",
            json!({ "volumes": [{ "claim": "data", "path": "/etc/htcjob" }] }),
            Refused("belongs to the image"),
        ),
        (
            "volumes",
            json!({ "volumes": [{ "claim": "spool-lhc-schedd-0", "path": "/data" }] }),
            Refused("belongs to an HTCPool"),
        ),
        (
            "volumes",
            json!({ "volumes": [{ "claim": "a", "path": "/a" }], "kubernetes": { "volumes": [{ "claim": "b", "mountPath": "/b" }] } }),
            Refused("write spec.volumes only"),
        ),
        (
            "kubernetes.volumes",
            pods(json!({ "volumes": [{ "claim": "lhc-central-manager", "mountPath": "/data" }] })),
            Refused("belongs to an HTCPool"),
        ),
        (
            "kubernetes.volumes",
            volume("/data"),
            Stands("/pod/volumes/1/persistentVolumeClaim/claimName", json!("data")),
        ),
        ("kubernetes.volumes", volume("/data"), Stands("/c/volumeMounts/1/mountPath", json!("/data"))),
        (
            "kubernetes.volumes",
            pods(json!({ "volumes": [{ "claim": "Data", "mountPath": "/data" }] })),
            Refused("not a name of an object"),
        ),
        (
            "kubernetes.volumes",
            pods(
                json!({ "volumes": [{ "claim": "a", "mountPath": "/data" }, { "claim": "b", "mountPath": "/data/" }] }),
            ),
            Refused("is there twice"),
        ),
        (
            "kubernetes.volumes",
            pods(json!({ "volumes": [{ "claim": "data", "mountPath": "/data", "readOnly": true }] })),
            Stands("/c/volumeMounts/1/readOnly", json!(true)),
        ),
        ("kubernetes.volumes", volume("/etc/htcjob/run"), Refused("where the script is")),
        ("kubernetes.volumes", volume("/htc_run"), Refused("where the files of the job are")),
        ("kubernetes.volumes", volume("/htc_run/data/"), Refused("where the files of the job are")),
        ("kubernetes.volumes", volume("/htc_runs"), Stands("/c/volumeMounts/1/mountPath", json!("/htc_runs"))),
        ("kubernetes.volumes", volume("/dev/shm"), Refused("where shared memory is")),
        ("kubernetes.volumes", volume("data"), Refused("no absolute path")),
        ("kubernetes.volumes", volume("/"), Refused("no absolute path")),
        ("kubernetes.volumes", volume("/a/../etc"), Refused("no absolute path")),
        ("kubernetes.volumes", volume("/etc/htcjob/"), Refused("where the script is")),
        ("kubernetes.volumes", volume("/etc/./htcjob"), Refused("no absolute path")),
        ("kubernetes.volumes", volume("/etc//htcjob"), Refused("no absolute path")),
        ("kubernetes.volumes", volume("//etc/htcjob"), Refused("no absolute path")),
        ("kubernetes.volumes", volume("/data//"), Refused("no absolute path")),
        ("kubernetes.volumes", volume("/.data/x..y"), Stands("/c/volumeMounts/1/mountPath", json!("/.data/x..y"))),
        ("kubernetes.serviceAccountName", json!({}), Stands("/pod/automountServiceAccountToken", json!(false))),
        (
            "kubernetes.serviceAccountName",
            pods(json!({ "serviceAccountName": "runner" })),
            Stands("/pod/serviceAccountName", json!("runner")),
        ),
        (
            "kubernetes.serviceAccountName",
            pods(json!({ "serviceAccountName": "runner" })),
            Stands("/pod/automountServiceAccountToken", json!(true)),
        ),
        (
            "kubernetes.serviceAccountName",
            pods(json!({ "serviceAccountName": "admin" })),
            Refused("--kubernetes-service-account"),
        ),
        (
            "kubernetes.nodeSelector",
            pods(json!({ "nodeSelector": { "a": "b" } })),
            Stands("/pod/nodeSelector", json!({ "a": "b", "kubernetes.io/os": "linux" })),
        ),
        (
            "kubernetes.tolerations",
            pods(json!({ "tolerations": [{ "key": "k", "operator": "Exists" }] })),
            Stands("/pod/tolerations", json!([{ "key": "k", "operator": "Exists" }])),
        ),
        (
            "kubernetes.priorityClassName",
            pods(json!({ "priorityClassName": "low" })),
            Stands("/pod/priorityClassName", json!("low")),
        ),
        (
            "kubernetes.priorityClassName",
            pods(json!({ "priorityClassName": "L" })),
            Refused("spec.kubernetes.priorityClassName"),
        ),
        (
            "kubernetes.podLabels",
            pods(json!({ "podLabels": { "example.org/team": "cms" } })),
            Stands("/podMeta/labels/example.org~1team", json!("cms")),
        ),
        (
            "kubernetes.podLabels",
            pods(json!({ "podLabels": { "htc.cern.ch/htcjob-uid": "x" } })),
            Refused("spec.kubernetes.podLabels: \"htc.cern.ch/htcjob-uid\" is not among"),
        ),
        (
            "kubernetes.podLabels",
            pods(json!({ "podLabels": { "kueue.x-k8s.io/queue-name": "x" } })),
            Refused("--allow-pod-metadata: example.org/*"),
        ),
        (
            "kubernetes.podAnnotations",
            pods(json!({ "podAnnotations": { "example.org/note": "a b" } })),
            Stands("/podMeta/annotations/example.org~1note", json!("a b")),
        ),
        (
            "kubernetes.podAnnotations",
            pods(json!({ "podAnnotations": { "k8s.v1.cni.cncf.io/networks": "x" } })),
            Refused("spec.kubernetes.podAnnotations"),
        ),
    ]
}

#[test]
fn every_spec_field_is_mapped_or_refused() {
    let nothing = made(&json!({}), &site()).unwrap();
    for (field, written, becomes) in table() {
        let made = made(&written, &site());
        match (becomes, made) {
            (Becomes::Stands(place, wanted), Ok(made)) => {
                assert_eq!(made.pointer(place).unwrap_or(&Value::Null), &wanted, "{field} {written}: {place}");
            }
            (Becomes::Nothing, Ok(made)) => assert_eq!(made, nothing, "{field} {written}"),
            (Becomes::Refused(words), Err(said)) => assert!(said.contains(words), "{field} {written}: {said}"),
            (_, made) => panic!("{field} {written}: {made:?}"),
        }
    }
}

/// Fails if a field is added to the schema but not to the table. A field that is not read does not compile.
#[test]
fn table_lists_every_spec_field() {
    let crd = serde_json::to_value(htc_api::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let mut fields = BTreeSet::new();
    for (name, field) in schema.as_object().unwrap() {
        match field["properties"]
            .as_object()
            .filter(|_| ["script", "container", "resources", "kubernetes"].contains(&&**name))
        {
            Some(inner) => fields.extend(inner.keys().map(|inner| format!("{name}.{inner}"))),
            None => fields.extend([name.clone()]),
        }
    }
    let listed: BTreeSet<String> = table().into_iter().map(|(field, ..)| field.to_owned()).collect();
    assert_eq!(listed, fields);
}

#[test]
fn pods_have_a_restricted_security_context() {
    let made = made(&json!({}), &PodSettings { run_as_user: Some(1000), fs_group: Some(2000), ..site() }).unwrap();
    assert_eq!(
        made["pod"]["securityContext"],
        json!({
            "runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": { "type": "RuntimeDefault" },
        })
    );
    assert_eq!(
        made["c"]["securityContext"],
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
    );
    assert_eq!((&made["pod"]["restartPolicy"], &made["pod"]["enableServiceLinks"]), (&json!("Never"), &json!(false)));
    assert_eq!(made["job"]["podReplacementPolicy"], "Failed");
    let rule = &made["job"]["podFailurePolicy"]["rules"][0];
    assert_eq!((&rule["action"], &rule["onPodConditions"][0]["type"]), (&json!("Ignore"), &json!("DisruptionTarget")));
    for metadata in [&made["meta"], &made["podMeta"], &made["map"]["metadata"]] {
        assert_eq!(metadata["labels"]["app"], "mine");
        assert_eq!(metadata["annotations"][HTCJOB], "sums.x");
    }
    let owner = &made["meta"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["controller"], &made["meta"]["name"]),
        (&json!("HTCJob"), &json!(true), &json!("sums-x-0b5ea2a4"))
    );
    assert!(made["job"]["ttlSecondsAfterFinished"].is_null() && made["map"]["immutable"] == true);
}

#[test]
fn baseline_pods_run_as_the_user_of_their_image() {
    let made = made(&json!({}), &PodSettings { security: PodSecurity::Baseline, ..site() }).unwrap();
    assert_eq!(
        made["pod"]["securityContext"],
        json!({ "seccompProfile": { "type": "RuntimeDefault" } }),
        "neither runAsNonRoot nor a user"
    );
    assert_eq!(
        made["c"]["securityContext"],
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
    );
}

#[test]
fn sidecars_and_autoscalers_leave_pods_alone() {
    let plain = made(&json!({}), &site()).unwrap();
    assert_eq!(plain["podMeta"]["labels"]["sidecar.istio.io/inject"], "false");
    let annotations = &plain["podMeta"]["annotations"];
    for (key, value) in [
        ("linkerd.io/inject", "disabled"),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
    ] {
        assert_eq!(annotations[key], value, "{key}");
    }
    // A user's labels are on the Pods only: a label of the Job could put it into a queue.
    let labels = json!({ "kubernetes": { "podLabels": { "example.org/team": "cms" } } });
    let made = made(&labels, &site()).unwrap();
    assert!(made["meta"]["labels"].get("example.org/team").is_none(), "{made}");
}

#[test]
fn cpu_is_limited_if_the_site_says_so() {
    let cpus = json!({ "resources": { "cpus": "1500m", "memory": "2Gi" } });
    let limit = |cpu_limits| {
        let made = made(&cpus, &PodSettings { cpu_limits, ..site() }).unwrap();
        made["c"]["resources"]["limits"].clone()
    };
    assert_eq!(limit(None), json!({ "memory": "2Gi" }));
    assert_eq!(limit(Some(CpuLimits::None)), json!({ "memory": "2Gi" }));
    assert_eq!(limit(Some(CpuLimits::Requests)), json!({ "memory": "2Gi", "cpu": "1500m" }));
}

/// The Pod spec for admission to the queue equals what the scheduler sees, but for the operating system.
#[test]
fn queue_requests_equal_pod_requests() {
    let more = json!({
        "resources": { "cpus": "1500m", "memory": "2Gi", "disk": "1Gi", "gpus": 2 },
        "kubernetes": {
            "nodeSelector": { "zone": "a" }, "tolerations": [{ "key": "gpu", "operator": "Exists" }],
            "priorityClassName": "high",
        },
    });
    let asked = serde_json::to_value(pod_requests(&spec(&more), &site())).unwrap();
    let made = made(&more, &site()).unwrap();
    let requests = json!({ "cpu": "1500m", "memory": "2Gi", "ephemeral-storage": "1Gi", "example.com/gpu": "2" });
    assert_eq!(asked["containers"][0]["resources"], json!({ "requests": requests }));
    assert_eq!(made["c"]["resources"]["limits"]["example.com/gpu"], "2");
    assert_eq!(asked["nodeSelector"], json!({ "zone": "a" }));
    assert_eq!(made["pod"]["nodeSelector"], json!({ "zone": "a", "kubernetes.io/os": "linux" }));
    for field in ["tolerations", "restartPolicy"] {
        assert_eq!(asked[field], made["pod"][field], "{field}");
    }
    assert!(asked.get("priorityClassName").is_none());
    let nothing = serde_json::to_value(pod_requests(&spec(&json!({})), &site())).unwrap();
    assert_eq!(nothing["containers"][0]["resources"], json!({ "requests": {} }));
}

#[test]
fn pod_names_fit_the_length_limit() {
    let uid = Uid::from("0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001");
    for name in ["a", "a.b.c", &"x".repeat(253), &format!("{}.-y", "x".repeat(38))] {
        let job = job_name(name, &uid);
        assert!(format!("{job}-99999-abcde").len() <= 63 && !job.contains('.') && !job.contains("--"), "{job}");
    }
}

/// Runs the script that finds index and item in this machine's shell.
#[test]
fn each_pod_finds_its_index_and_item() {
    const PRINT: &str = "for word; do printf '<%s>' \"$word\"; done; printf '%s' \"$HTC_ITEM\"";
    let items: Vec<String> =
        (0..10).map(|index| if index == 9 { "$(x) `y` \\ \"z'".to_owned() } else { format!("{index} b") }).collect();
    let common = json!({ "items": items, "indexes": "2,5,9" });
    let script = with(common.clone(), "script", json!({ "command": "sh", "source": PRINT }));
    let arguments = json!(["-c", PRINT, "sh", "", "${index}-${item}\n", "$${item} $$ \\n"]);
    let container = with(common, "container", json!({ "image": "i", "command": ["sh"], "args": arguments }));
    for (spec, said) in [
        (script, ["<2><2 b>2 b", "<5><5 b>5 b", "<9><$(x) `y` \\ \"z'>$(x) `y` \\ \"z'"]),
        (
            container,
            [
                "<><2-2 b\n><${item} $$ \\n>2 b",
                "<><5-5 b\n><${item} $$ \\n>5 b",
                "<><9-$(x) `y` \\ \"z'\n><${item} $$ \\n>$(x) `y` \\ \"z'",
            ],
        ),
    ] {
        let made = made(&spec, &site()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let here = |text: &str| text.replace("/etc/htcjob", folder.path().to_str().unwrap());
        for (name, text) in made["map"]["data"].as_object().unwrap() {
            std::fs::write(folder.path().join(name), here(text.as_str().unwrap())).unwrap();
        }
        let run = |completion: usize| {
            let mut run = std::process::Command::new("/bin/sh");
            // As Kubernetes expands them.
            let arguments = made["c"]["args"].as_array().unwrap().iter();
            run.arg(folder.path().join("run"))
                .args(arguments.map(|word| here(&word.as_str().unwrap().replace("$$", "$"))))
                .env("HTCPROCID", completion.to_string())
                .output()
                .unwrap()
        };
        for (completion, said) in said.into_iter().enumerate() {
            let done = run(completion);
            assert_eq!(String::from_utf8_lossy(&done.stdout), said, "{done:?}");
        }
        assert!(!run(3).status.success());
    }
}
