//! The folders of deploy/ as kustomize renders them.

use std::path::PathBuf;

pub use bed::manifests::{render_at, render_with};
use serde_json::Value;

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
