//! Every field of the spec: what it becomes, or the sentence that refuses it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::api::{HTCJobSpec, ObjectName};
use crate::machine::Uid;
use crate::machine::facts::Spec;
use crate::machine::ids::Index;
use crate::machine::pods::Adjust;
use crate::workers::Planner;

fn site() -> Site {
    Site {
        enabled: true,
        gpu_resource: "example.com/gpu".to_owned(),
        run_as_user: None,
        fs_group: None,
        service_accounts: vec!["runner".to_owned()],
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
    serde_json::from_value(spec).unwrap()
}

/// The ConfigMap and the Job, or why there are none.
fn made(more: &Value, site: &Site) -> Result<Value, String> {
    let spec = spec(more);
    let plan = PodPlan::parse(&spec, site).map_err(|error| error.to_string())?;
    let queue =
        Planner::queue(&spec, Some(4).filter(|_| spec.items_from.is_some())).map_err(|error| error.to_string())?;
    let indexes = Planner::indexes(&spec, queue).map_err(|error| error.to_string())?;
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
    let texts = Texts { source: spec.script.source.clone(), indexes, items };
    let name = ObjectName { namespace: "physics".to_owned(), name: "sums.x".to_owned() };
    let of = Identity { name, uid: Uid::from("0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001"), app: Some("mine".to_owned()) };
    let map = config_map(&of, &texts).map_err(|error| error.to_string())?;
    let job = job(&of, &plan, site, &texts, Adjust::of(&facts));
    Ok(json!({
        "map": map, "job": job.spec, "pod": job.spec.as_ref().unwrap().template.spec,
        "c": job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0],
        "meta": job.metadata, "podMeta": job.spec.as_ref().unwrap().template.metadata,
    }))
}

enum Becomes {
    /// This stands at this JSON pointer.
    Stands(&'static str, Value),
    /// It changes nothing of what is made: the operator reads it.
    Nothing,
    /// A sentence with these words refuses it.
    Refused(&'static str),
}

/// Field, what is written there, and what becomes of it.
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
        ("items", json!({ "items": ["a", "b"] }), Stands("/c/args", json!(["python3", "-u"]))),
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
            Stands("/c/env/2", json!({ "name": "A", "value": "$$(B) $$C" })),
        ),
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
        // It is resumed once it is recorded, and only then.
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
            "kubernetes.imagePullSecrets",
            pods(json!({ "imagePullSecrets": [{ "name": "s" }] })),
            Stands("/pod/imagePullSecrets", json!([{ "name": "s" }])),
        ),
        (
            "kubernetes.imagePullSecrets",
            pods(json!({ "imagePullSecrets": [{ "name": "S" }] })),
            Refused("spec.kubernetes.imagePullSecrets"),
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
            Stands("/pod/nodeSelector", json!({ "a": "b" })),
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
    ]
}

#[test]
fn every_field_has_a_meaning_or_is_refused() {
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

/// A field that is added to the schema and not to the table fails here; one that is not read fails to compile.
#[test]
fn no_field_is_forgotten() {
    let crd = serde_json::to_value(crate::api::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let mut fields = BTreeSet::new();
    for (name, field) in schema.as_object().unwrap() {
        match field["properties"].as_object().filter(|_| ["script", "resources", "kubernetes"].contains(&&**name)) {
            Some(inner) => fields.extend(inner.keys().map(|inner| format!("{name}.{inner}"))),
            None => fields.extend([name.clone()]),
        }
    }
    let listed: BTreeSet<String> = table().into_iter().map(|(field, ..)| field.to_owned()).collect();
    assert_eq!(listed, fields);
}

#[test]
fn pods_are_as_restricted_as_can_be() {
    let made = made(&json!({}), &Site { run_as_user: Some(1000), fs_group: Some(2000), ..site() }).unwrap();
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

/// Who admits the Pods is told what the scheduler is: no more, and nothing else.
#[test]
fn what_is_asked_for_is_what_the_pods_request() {
    let more = json!({
        "resources": { "cpus": "1500m", "memory": "2Gi", "disk": "1Gi", "gpus": 2 },
        "kubernetes": {
            "nodeSelector": { "zone": "a" }, "tolerations": [{ "key": "gpu", "operator": "Exists" }],
            "priorityClassName": "high",
        },
    });
    let asked = serde_json::to_value(asked_for(&spec(&more), &site())).unwrap();
    let made = made(&more, &site()).unwrap();
    let requests = json!({ "cpu": "1500m", "memory": "2Gi", "ephemeral-storage": "1Gi", "example.com/gpu": "2" });
    assert_eq!(asked["containers"][0]["resources"], json!({ "requests": requests }));
    assert_eq!(made["c"]["resources"]["limits"]["example.com/gpu"], "2");
    for field in ["nodeSelector", "tolerations", "restartPolicy"] {
        assert_eq!(asked[field], made["pod"][field], "{field}");
    }
    assert!(asked.get("priorityClassName").is_none());
    let nothing = serde_json::to_value(asked_for(&spec(&json!({})), &site())).unwrap();
    assert_eq!(nothing["containers"][0]["resources"], json!({ "requests": {} }));
}

#[test]
fn names_of_pods_fit() {
    let uid = Uid::from("0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001");
    for name in ["a", "a.b.c", &"x".repeat(253), &format!("{}.-y", "x".repeat(38))] {
        let job = job_name(name, &uid);
        assert!(format!("{job}-99999-abcde").len() <= 63 && !job.contains('.') && !job.contains("--"), "{job}");
    }
}

/// The script that finds index and item, run by this machine's shell.
#[test]
fn each_pod_finds_its_index_and_its_item() {
    let folder = tempfile::tempdir().unwrap();
    let indexes: Vec<Index> = [2, 5, 9].map(Index).to_vec();
    let items = ["a b", "", "$(x) `y` \\ \"z'"].map(str::to_owned).to_vec();
    let texts = Texts {
        source: "for word; do printf '<%s>' \"$word\"; done; printf '%s' \"$HTC_ITEM\"".to_owned(),
        indexes,
        items,
    };
    for (name, text) in texts.data().unwrap() {
        std::fs::write(folder.path().join(name), text.replace("/etc/htcjob", folder.path().to_str().unwrap())).unwrap();
    }
    for (completion, said) in [(0, "<2><a b>a b"), (1, "<5><>"), (2, "<9><$(x) `y` \\ \"z'>$(x) `y` \\ \"z'")] {
        let mut run = std::process::Command::new("/bin/sh");
        run.arg(folder.path().join("run")).arg("sh").env("HTCPROCID", completion.to_string());
        let done = run.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout), said, "{done:?}");
    }
    let missing =
        std::process::Command::new("/bin/sh").arg(folder.path().join("run")).arg("sh").env("HTCPROCID", "3").output();
    assert!(!missing.unwrap().status.success());
}
