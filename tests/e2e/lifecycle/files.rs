//! `files`: read once from ConfigMaps, kept, and given to every job.

use serde_json::{Value, json};
use testbed::{PoolOptions, Version};

use crate::lifecycle::read;
use bed::site::Site;
use bed::{Bed, Namespace, condition, htcjob, is_true};

on_versions! {
    both: every_job_gets_the_files_as_first_read;
    trixie: unusable_files_are_reported_and_awaited;
    sid: files_too_large_for_the_site_are_refused;
}

/// SHA-256 of `first`.
const FIRST: &str = "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e";

fn put(here: &Namespace<'_>, name: &str, label: &str, keys: &Value) {
    let mut config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": here.name, "labels": { "htc.cern.ch/use": label } },
    });
    for (field, value) in keys.as_object().unwrap() {
        config_map[field] = value.clone();
    }
    here.replace("configmap", &config_map);
    here.let_read_config_map(name);
}

fn with_files(mut object: Value, files: &Value) -> Value {
    object["spec"]["files"] = files.clone();
    object
}

/// The second job is submitted by the next leader, after the ConfigMap was changed and removed.
fn every_job_gets_the_files_as_first_read(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    put(&here, "params", "files", &json!({ "data": { "cuts.yaml": "first" }, "binaryData": { "raw.bin": "AP8K" } }));
    let mut object = site.lasting("brings", 2);
    let script = object["spec"]["script"]["source"].as_str().unwrap().to_owned();
    let source = format!(
        "{script}\ncat conf/cuts.yaml; od -An -tx1 all/raw.bin; ./bin/tool; echo changed > all/raw.bin; echo made > made"
    );
    object["spec"]["script"]["source"] = source.into();
    object["spec"]["parallelism"] = 1.into();
    let files = json!([
        { "path": "conf/cuts.yaml", "configMap": { "name": "params", "key": "cuts.yaml" } },
        { "path": "all", "configMap": { "name": "params" } },
        { "path": "bin/tool", "inline": "#!/bin/sh\necho ran\n", "mode": 0o755 },
    ]);
    here.create(&with_files(object, &files));
    let running = here.wait_running("brings", 1);
    let inputs = running["status"]["inputs"].as_array().unwrap();
    let paths: Vec<&str> = inputs.iter().map(|input| input["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["conf/cuts.yaml", "all/cuts.yaml", "all/raw.bin", "bin/tool"]);
    assert_eq!((&inputs[0]["bytes"], &inputs[0]["sha256"]), (&json!(5), &json!(FIRST)));
    put(&here, "params", "files", &json!({ "data": { "cuts.yaml": "other" } }));
    site.bed.kill_operator();
    here.remove("configmap", "params");
    site.bed.start_operator();
    site.finish("brings");
    site.assert_complete_once(&here, "brings", 2);
    for index in 0..2 {
        assert_eq!(read(&here, "brings", index, "out"), "finished\nfirst 00 ff 0a\nran\n");
        assert_eq!(read(&here, "brings", index, "made"), "made\n");
        let folder = here.output("brings", index);
        assert_eq!(std::fs::read_to_string(folder.join("all/raw.bin")).unwrap(), "changed\n");
        assert!(!folder.join("conf").exists() && !folder.join("htc_input.tar").exists());
    }
    assert_eq!(here.get("brings")["status"]["inputs"][0]["sha256"], FIRST);
}

/// Each is reported with its cause, and runs once that is mended.
fn unusable_files_are_reported_and_awaited(version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    here.kubectl(&["create", "configmap", "forbidden", "--from-literal=a=right"]);
    put(&here, "other-use", "items", &json!({ "data": { "a": "right" } }));
    put(&here, "other-key", "files", &json!({ "data": { "b": "right" } }));
    here.let_read_config_map("missing");
    let cases = [
        ("forbidden", "may not read the ConfigMap"),
        ("missing", "there is no ConfigMap"),
        ("other-use", "htc.cern.ch/use=files"),
        ("other-key", "has no key \"a\""),
    ];
    let uids = cases.map(|(name, _)| {
        let files = json!([{ "path": "a", "configMap": { "name": name, "key": "a" } }]);
        here.create(&with_files(htcjob(name, "test \"$(cat a)\" = right"), &files))
    });
    for (name, words) in cases {
        let message = here.wait_says(name, "Submitted", "False", "InputsUnavailable");
        assert!(message.contains(words), "{message}");
    }
    assert!(uids.iter().all(|uid| bed.jobs_of(uid).is_empty()));
    for (name, _) in cases {
        put(&here, name, "files", &json!({ "data": { "a": "right" } }));
    }
    for (name, _) in cases {
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
    }
}

/// The schedd would keep a copy for each job.
fn files_too_large_for_the_site_are_refused(version: Version) {
    let bed = Bed::new(version, &PoolOptions::default(), &["--inputs-limit=3K"]);
    bed.start_operator();
    let here = bed.namespace();
    let file = json!([{ "path": "a", "inline": "x".repeat(1024) }]);
    let mut many = with_files(htcjob("many", "true"), &file);
    many["spec"]["queue"] = 4.into();
    let uid = here.create(&many);
    here.create(&with_files(htcjob("few", "test $(wc -c < a) = 1024"), &file));
    let message = here.wait_says("many", "Submitted", "False", "InvalidSpec");
    assert!(message.contains("1024 bytes for each of 4 jobs"), "{message}");
    assert!(is_true(&here.wait_ended("few"), "Complete"));
    assert!(bed.jobs_of(&uid).is_empty());
    assert!(condition(&here.get("many"), "Complete").is_none());
}
