//! The operator reads a ConfigMap only where a Role lets it, and uses it only if the ConfigMap says so.

use serde_json::json;
use testbed::Version;

use crate::credentials::site::Site;
use bed::{condition, htcjob, is_true};

on_versions! {
    trixie: config_map_is_read_once_a_role_allows_it;
}

fn config_map_is_read_once_a_role_allows_it(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    here.kubectl(&["create", "configmap", "my-items", "--from-literal=files.txt=one"]);
    let mut object = htcjob("reads", "test \"$2\" = one");
    object["spec"]["itemsFrom"] = json!({ "configMapKeyRef": { "name": "my-items", "key": "files.txt" } });
    here.create(&object);
    let mut other = object.clone();
    other["metadata"]["name"] = "other".into();
    let message = here.wait_says("reads", "Submitted", "False", "ItemsUnavailable");
    assert!(message.contains("may not read the ConfigMap") && message.contains("RoleBinding"), "{message}");
    let folder = bed::checkout().join("deploy/namespace-items");
    here.kubectl(&["apply", "-k", folder.to_str().unwrap()]);
    // A Role that was made for something else lets nobody read it through HTCJobs.
    let label = format!("kubectl --namespace {} label --overwrite configmap my-items htc.cern.ch/use=items", here.name);
    here.wait("reads", "it names the label", |object| {
        condition(object, "Submitted").is_some_and(|condition| condition["message"].as_str().unwrap().contains(&label))
    });
    let (well, output) = site.bed.check();
    assert!(!well && output.contains(&label), "{output}");
    here.kubectl(&["label", "configmap", "my-items", "htc.cern.ch/use=credentials"]);
    here.create(&other);
    here.wait("other", "it names the label", |object| {
        condition(object, "Submitted").is_some_and(|condition| condition["message"].as_str().unwrap().contains(&label))
    });
    let words: Vec<&str> = label.split(' ').skip(1).collect();
    here.kubectl(&words);
    assert!(is_true(&here.wait_ended("other"), "Complete"));
    let (_, output) = site.bed.check();
    assert!(!output.contains(&label), "its items are kept: {output}");
    assert!(is_true(&here.wait_ended("reads"), "Complete"));
}
