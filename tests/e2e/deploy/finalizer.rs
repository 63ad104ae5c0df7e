//! The component that lets HTCJobs be created with their finalizer: with it, and without.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::{Version, tool, wait_for};

use crate::deploy::manifests::{each, find, path, read, render_at};
use crate::deploy::overlays::dry_run;
use bed::{Bed, Namespace, PATIENCE, htcjob, is_true};

const FINALIZER: &str = "htc.cern.ch/condor-jobs";
const LEDGER: &str = "htc.cern.ch/ledger";
const OPERATOR: &str = "htc.cern.ch/operator";

/// Installs the component for the `HTCJob`s of one namespace, with this Lease for the operator's.
fn install(here: &Namespace<'_>, lease: &str) {
    let mut objects = ["policy", "binding"]
        .map(|file| read(&format!("deploy/components/finalizer-at-creation/{file}.yaml")))
        .map(|text| serde_saphyr::from_str::<Value>(&text).unwrap());
    let name = format!("finalizer-{}", here.name);
    for object in &mut objects {
        object["metadata"]["name"] = name.clone().into();
    }
    objects[1]["spec"]["policyName"] = name.into();
    objects[1]["spec"]["paramRef"]["name"] = lease.into();
    objects[1]["spec"]["matchResources"] =
        json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": here.name } } });
    here.bed.apply_all(&objects);
}

/// Creates an object; what the API server made of it at once.
fn born(here: &Namespace<'_>, object: &Value, more: &[&str]) -> Value {
    try_create(here, object, more).unwrap()
}

fn try_create(here: &Namespace<'_>, object: &Value, more: &[&str]) -> testbed::Result<Value> {
    let arguments = [&["-n", &here.name, "create", "-f", "-", "-o", "json"], more].concat();
    let text = tool::run_ok(
        "creating an HTCJob",
        &mut here.bed.kube.kubectl(&arguments),
        &object.to_string(),
        Duration::from_secs(60),
    );
    text.map(|text| serde_json::from_str(&text).unwrap())
}

fn wait_effective(here: &Namespace<'_>) {
    wait_for("the policy to take effect", PATIENCE, || {
        // Policies hear of a new CRD a little later, and refuse what they do not know.
        let object =
            try_create(here, &htcjob("try", "true"), &["--dry-run=server"]).map_err(|error| error.to_string())?;
        if object["metadata"]["finalizers"].is_array() { Ok(()) } else { Err(object["metadata"].to_string()) }
    })
    .unwrap();
}

/// Who has written to the object itself, not to its status.
fn writers(here: &Namespace<'_>, name: &str) -> Vec<String> {
    let object = here.kubectl(&["get", "htcjob", name, "-o", "json", "--show-managed-fields"]);
    let object: Value = serde_json::from_str(&object).unwrap();
    let entries = each(&object["metadata"]["managedFields"]).filter(|entry| entry["subresource"].is_null());
    entries.map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn admission_policy_attaches_the_finalizer_and_saves_one_write() {
    let bed = Bed::shared(Version::Trixie);
    let (with, without) = (bed.namespace(), bed.namespace());
    install(&with, "htc-operator");
    wait_effective(&with);
    let at_once = born(&with, &htcjob("one", "true"), &[]);
    let lease: Value = serde_json::from_str(
        &bed.kube.kubectl_ok(&["-n", "htc-operator", "get", "lease", "htc-operator", "-o", "json"]).unwrap(),
    )
    .unwrap();
    assert_eq!(at_once["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(at_once["metadata"]["annotations"][LEDGER], lease["metadata"]["annotations"][LEDGER]);
    assert_eq!(at_once["metadata"]["annotations"][OPERATOR], "htc-operator/htc-operator");
    let later = born(&without, &htcjob("one", "true"), &[]);
    assert!(later["metadata"]["finalizers"].is_null() && later["metadata"]["annotations"].is_null(), "{later:#}");

    for (here, writes) in [(&with, 1), (&without, 2)] {
        let ended = here.wait_ended("one");
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        assert_eq!(ended["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(ended["metadata"]["annotations"], at_once["metadata"]["annotations"]);
        let writers = writers(here, "one");
        assert_eq!(writers.len(), writes, "{writers:?}");
        let uid = here.uid("one");
        bed.assert_once(&uid, "one", 1);
        here.delete("one");
        here.wait_gone("one");
    }
    // Deleted before, or while, the operator sees it for the first time.
    born(&with, &htcjob("brief", "true"), &[]);
    with.delete("brief");
    with.wait_gone("brief");
}

#[test]
fn overlay_may_include_the_finalizer_component() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["deploy", "crd"] {
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(path(part)).arg(folder.path());
        tool::run_ok("copying", &mut copy, "", Duration::from_secs(60)).unwrap();
    }
    let overlay = folder.path().join("deploy/overlays/local");
    let file = overlay.join("kustomization.yaml");
    let text = std::fs::read_to_string(&file).unwrap().replace("# components:", "components:");
    std::fs::write(&file, text.replace("#   - ../../components/finalizer", "  - ../../components/finalizer")).unwrap();
    let objects = render_at(&overlay);
    assert_eq!(
        find(&objects, "MutatingAdmissionPolicyBinding", "htc-operator-finalizer")["spec"]["paramRef"]["namespace"],
        "htc-operator"
    );
    let policies: Vec<Value> =
        objects.into_iter().filter(|object| object["kind"].as_str().unwrap().starts_with("Mutating")).collect();
    assert_eq!(policies.len(), 2);
    assert_eq!(dry_run(&Bed::shared(Version::Trixie).kube, &policies).as_deref(), Ok(""));
}

#[test]
fn admission_policy_ignores_marked_objects_and_a_missing_lease() {
    let bed = Bed::shared(Version::Trixie);
    let (here, stranger) = (bed.namespace(), bed.namespace());
    // Before the policy is there.
    let before = born(&here, &htcjob("before", "true"), &[]);
    assert!(before["metadata"]["finalizers"].is_null());
    install(&here, "htc-operator");
    install(&stranger, "nobody");
    wait_effective(&here);
    for (what, metadata) in [
        ("finalizer", json!({ "finalizers": [FINALIZER] })),
        ("old", json!({ "finalizers": ["finalizer.htc.cern.ch"] })),
        ("ledger", json!({ "annotations": { LEDGER: "another" } })),
        ("operator", json!({ "annotations": { OPERATOR: "another/operator" } })),
    ] {
        let mut object = htcjob(what, "true");
        let Value::Object(marks) = metadata.clone() else { unreachable!() };
        object["metadata"].as_object_mut().unwrap().extend(marks);
        let taken = born(&here, &object, &["--dry-run=server"]);
        for part in ["finalizers", "annotations"] {
            assert_eq!(taken["metadata"][part], metadata[part], "{what}");
        }
    }
    // Marks of other programs are no reason.
    let mut object = htcjob("others", "true");
    object["metadata"]["finalizers"] = json!(["example.org/a"]);
    object["metadata"]["annotations"] = json!({ "example.org/b": "c" });
    let taken = born(&here, &object, &["--dry-run=server"]);
    assert_eq!(taken["metadata"]["finalizers"], json!(["example.org/a", FINALIZER]));
    assert_eq!(taken["metadata"]["annotations"]["example.org/b"], "c");
    assert!(taken["metadata"]["annotations"][LEDGER].is_string());

    let unmarked = born(&stranger, &htcjob("one", "true"), &[]);
    assert!(unmarked["metadata"]["finalizers"].is_null(), "{unmarked:#}");
    assert!(is_true(&stranger.wait_ended("one"), "Complete"));
    assert!(is_true(&here.wait_ended("before"), "Complete"));
}
