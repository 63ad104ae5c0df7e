//! `spec.outputs`: output that the user selects.

use std::fs;
use std::path::Path;

use serde_json::json;
use testbed::Version;

use bed::{Bed, htcjob, is_true};

on_versions! {
    sid: only_outputs_in_the_spec_come_back;
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn only_outputs_in_the_spec_come_back(version: Version) {
    let here = Bed::shared(version).namespace();
    let script = r"mkdir -p results/deep big; echo 1 >results/deep/a.root; echo 2 >top.root; echo 3 >'$(id) b'; echo 4 >other
        head -c 3000000 /dev/zero >big/one; echo 5 >big/log; exit 3";
    let mut object = htcjob("selected", script);
    object["spec"]["outputs"] = json!(["results", "*.root", "$(id) b", "**/log", "nothing*"]);
    here.create(&object);
    let ended = here.wait_ended("selected");
    assert!(is_true(&ended, "Failed"), "{ended:#}");
    here.wait_output("selected");
    let output = here.output("selected", 0);
    assert_eq!(names(&output), ["$(id) b", "big", "err", "out", "results", "top.root"]);
    assert_eq!(names(&output.join("big")), ["log"]);
    assert_eq!(fs::read_to_string(output.join("results/deep/a.root")).unwrap(), "1\n");
    let err = fs::read_to_string(output.join("err")).unwrap();
    assert_eq!(err, "htc-operator: nothing matches 1 of spec.outputs: nothing*\n");

    // What only the operator can know to be wrong.
    let mut object = htcjob("wrong", "true");
    object["spec"]["outputs"] = json!(["a", "b[z-a]"]);
    here.create(&object);
    let refused = here.wait("wrong", "refused", |object| object["status"]["state"] == "InvalidSpec");
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("spec.outputs: \"b[z-a]\" has a [ that is not the beginning of a list"), "{message}");
}
