//! The operator reads a ConfigMap only where a Role lets it.

use serde_json::json;
use testbed::Version;

use crate::credentials::site::Site;
use bed::{htcjob, is_true};

on_versions! {
    trixie: one_is_read_once_a_role_allows_it;
}

fn one_is_read_once_a_role_allows_it(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    here.kubectl(&["create", "configmap", "my-items", "--from-literal=files.txt=one"]);
    let mut object = htcjob("reads", "test \"$2\" = one");
    object["spec"]["itemsFrom"] = json!({ "configMapKeyRef": { "name": "my-items", "key": "files.txt" } });
    here.create(&object);
    let message = here.wait_says("reads", "Submitted", "False", "ItemsUnavailable");
    assert!(message.contains("may not read the ConfigMap") && message.contains("RoleBinding"), "{message}");
    let folder = bed::checkout().join("deploy/namespace-items");
    here.kubectl(&["apply", "-k", folder.to_str().unwrap()]);
    assert!(is_true(&here.wait_ended("reads"), "Complete"));
}
