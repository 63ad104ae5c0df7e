//! The folders of deploy/ as kustomize renders them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bed::api::documents;
use serde_json::Value;
use testbed::{Assets, tool};

/// A file or folder of the checkout.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

pub fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The objects of one folder below deploy/.
pub fn render(folder: &str) -> Vec<Value> {
    render_at(&path("deploy").join(folder))
}

/// The objects of a folder anywhere.
pub fn render_at(folder: &Path) -> Vec<Value> {
    let kubectl = Assets::locate().unwrap().kubectl().to_owned();
    let mut kustomize = Command::new(kubectl);
    kustomize.arg("kustomize").arg(folder);
    let text = tool::run_ok("rendering an overlay", &mut kustomize, "", Duration::from_secs(60)).unwrap();
    documents(&text)
}

/// The objects of an overlay below deploy/ to which somebody has added a component.
pub fn render_with(overlay: &str, component: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(path("deploy")).arg(folder.path());
    tool::run_ok("copying", &mut copy, "", Duration::from_secs(60)).unwrap();
    let overlay = folder.path().join("deploy").join(overlay);
    let file = overlay.join("kustomization.yaml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    let line = format!("components:\n  - {component}\n");
    if text.contains("\ncomponents:\n") {
        text = text.replacen("components:\n", &line, 1);
    } else {
        text.push_str(&line);
    }
    std::fs::write(&file, text).unwrap();
    render_at(&overlay)
}

/// The only object of its kind and name.
pub fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found: Vec<&Value> =
        objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name).collect();
    assert_eq!(found.len(), 1, "{kind} {name}: {found:#?}");
    found[0]
}

/// Objects as `kubectl apply -f -` takes them.
pub fn list(objects: &[Value]) -> String {
    serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string()
}

/// The elements of a list; none if there is no list.
pub fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The operator's container in these objects.
pub fn container(objects: &[Value]) -> &Value {
    &find(objects, "Deployment", "htc-operator")["spec"]["template"]["spec"]["containers"][0]
}

/// The lines `NAME=value` of a ConfigMap whose generated name begins so.
pub fn config_map<'a>(objects: &'a [Value], stem: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| {
        object["kind"] == "ConfigMap" && object["metadata"]["name"].as_str().unwrap().starts_with(stem)
    });
    let only = found.next().unwrap_or_else(|| panic!("no ConfigMap {stem}…"));
    assert!(found.next().is_none(), "several ConfigMaps {stem}…");
    only
}
