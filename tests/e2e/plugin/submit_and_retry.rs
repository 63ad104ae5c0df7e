//! `submit`, `wait` and `retry`, and their errors.

use std::process::Command;

use bed::{Bed, Namespace, UNTIL_LET_GO, htcjob, ids};
use serde_json::{Value, json};
use testbed::Version;

on_versions! {
    trixie: retry_runs_only_failed_jobs, retry_keeps_files_of_a_config_map;
    sid: submit_takes_a_script_with_items, retry_keeps_items_of_a_config_map, failed_command_exits_with_an_error;
}

/// `kubectl htc` with these arguments, as a cluster admin.
pub fn command(here: &Namespace<'_>, arguments: &[&str]) -> Command {
    here.admin().htc_command(arguments)
}

/// As a cluster admin: its exit code, standard output and standard error.
pub fn htc(here: &Namespace<'_>, arguments: &[&str]) -> (i32, String, String) {
    here.admin().htc(arguments)
}

fn retry_runs_only_failed_jobs(version: Version) {
    let here = &Bed::shared(version).namespace();
    let mut sums = htcjob("sums", "echo $1 of $JOB_NAME; [ $JOB_NAME != sums ] || case $1 in 1|3) exit 4 ;; esac");
    (sums["spec"]["queue"], sums["metadata"]["labels"]["team"]) = (5.into(), "top".into());
    here.create(&sums);
    let (code, stdout, progress) = htc(here, &["wait", "sums", "--timeout", "10m"]);
    assert_eq!(code, 1, "{progress}");
    assert!(stdout.starts_with("htcjob.htc.cern.ch/sums: 2 of 5 jobs failed: exit code 4 (2); job 1 ("), "{stdout}");

    let (_, page, _) = htc(here, &["why", "htcjob/sums"]);
    for part in [
        "/sums: Failed; 3 of 5 jobs succeeded, 2 failed",
        "  Failed (JobsFailed): 2 of 5 jobs failed",
        "Failed jobs: 1,3\n",
        " Submitted HTCondor accepted 5 jobs: ",
        "kubectl htc retry sums",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }

    let (code, dry, _) = htc(here, &["retry", "sums", "--dry-run=client", "-o", "json"]);
    let dry: Value = serde_json::from_str(&dry).unwrap();
    assert_eq!((code, &dry["metadata"]["name"], &dry["spec"]["indexes"]), (0, &"sums-r1".into(), &"1,3".into()));
    assert!(here.try_kubectl(&["get", "htcjob", "sums-r1"]).is_err(), "a dry run stores nothing");

    let (_, stdout, _) = htc(here, &["retry", "sums"]);
    assert_eq!(stdout, "htcjob.htc.cern.ch/sums-r1 created: jobs 1,3 of sums\n");
    let (code, stdout, _) = htc(here, &["wait", "sums-r1", "--timeout=10m"]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/sums-r1: 2 jobs succeeded\n"));
    let again = here.get("sums-r1");
    assert_eq!((ids(&again).len(), &again["metadata"]["labels"]["team"]), (2, &"top".into()));
    for index in [1, 3] {
        let out = std::fs::read_to_string(here.output("sums-r1", index).join("out")).unwrap();
        assert_eq!(out, format!("{index} of sums-r1\n"));
    }
    assert!(!here.output("sums-r1", 0).exists());
    assert_eq!(ids(&here.get("sums")).len(), 5, "the first one is as it was");

    let (_, stdout, _) = htc(here, &["retry", "sums", "--indexes", "0", "-o", "name"]);
    assert_eq!(stdout, "htcjob.htc.cern.ch/sums-r2\n", "the next name that is free");
    let (code, _, error) = htc(here, &["retry", "sums-r1"]);
    assert_eq!((code, error.as_str()), (2, "error: no job of HTCJob sums-r1 has failed\n"));
}

/// Whatever is in the ConfigMap by now; each at the index that it had.
fn retry_keeps_items_of_a_config_map(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    let put = |list: &str| {
        let config_map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "list": list },
            "metadata": { "name": "inputs", "namespace": here.name, "labels": { "htc.cern.ch/use": "items" } } });
        bed.apply(&config_map);
    };
    here.let_read_config_map("inputs");
    put("one\ntwo\nthree \"words\"\n");
    let mut sums = htcjob("sums", "echo $1 $2; [ $JOB_NAME != sums ] || [ $1 = 1 ]");
    sums["spec"]["itemsFrom"] = json!({ "configMapKeyRef": { "name": "inputs", "key": "list" } });
    here.create(&sums);
    here.wait_ended("sums");
    put("other\n");
    let (code, stdout, error) = htc(here, &["retry", "sums"]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/sums-r1 created: jobs 0,2 of sums\n"), "{error}");
    let spec = &here.get("sums-r1")["spec"];
    assert_eq!((&spec["items"], &spec["itemsFrom"]), (&json!(["one", "", "three \"words\""]), &Value::Null), "{spec}");
    let (code, stdout, _) = htc(here, &["wait", "sums-r1", "--timeout=10m"]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/sums-r1: 2 jobs succeeded\n"));
    let out = std::fs::read_to_string(here.output("sums-r1", 2).join("out")).unwrap();
    assert_eq!(out, "2 three \"words\"\n");
    let ann = here.person("ann", &["htcjobs-view"]);
    ann.comes_to_see(&["get", "htcjobs"]);
    let (code, _, error) = htc(here, &["retry", "sums", "--as", &ann.name]);
    assert!(code == 2 && error.contains("(spec.itemsFrom) cannot be read") && error.contains("forbidden"), "{error}");
}

/// Whatever is in the ConfigMap by now. The files of an HTCJob in another namespace are out of reach.
fn retry_keeps_files_of_a_config_map(version: Version) {
    let bed = Bed::shared(version);
    let here = &bed.namespace();
    let put = |cuts: &str| {
        let config_map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "cuts": cuts },
            "metadata": { "name": "inputs", "namespace": here.name, "labels": { "htc.cern.ch/use": "files" } } });
        bed.apply(&config_map);
    };
    here.let_read_config_map("inputs");
    put("first");
    let mut fit = htcjob("fit", "cat conf/cuts; [ $JOB_NAME != fit ]");
    fit["spec"]["files"] = json!([{ "path": "conf", "configMap": { "name": "inputs" } }]);
    let uid = here.create(&fit);
    here.wait_ended("fit");
    put("second");
    let (code, stdout, error) = htc(here, &["retry", "fit"]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/fit-r1 created: jobs 0 of fit\n"), "{error}");
    let (code, stdout, _) = htc(here, &["wait", "fit-r1", "--timeout=10m"]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/fit-r1: 1 job succeeded\n"));
    assert_eq!(std::fs::read_to_string(here.output("fit-r1", 0).join("out")).unwrap(), "first");

    let other = bed.namespace();
    fit["metadata"]["annotations"] = json!({ "htc.cern.ch/files-of": uid });
    other.create(&fit);
    let message = other.wait_says("fit", "Submitted", "False", "InputsUnavailable");
    assert!(message.contains("does not have the files of an HTCJob with the uid"), "{message}");
    other.delete("fit");
}

fn submit_takes_a_script_with_items(version: Version) {
    let here = &Bed::shared(version).namespace();
    let folder = here.bed.scratch().dir(&here.name).unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).display().to_string()
    };
    let (script, items) = (file("script", "echo $2 $WHO"), file("items", "one\ntwo words\n"));
    let flags = ["--image=centos", "--script", &script, "--items", &items, "--env=WHO=me", "--parallelism=1"];
    let submit = |name: &str, more: &[&str]| htc(here, &[&["submit", name], &flags[..], more].concat());
    let (code, yaml, _) = submit("dry", &["--dry-run=client", "-o", "yaml"]);
    assert!(code == 0 && yaml.contains("two words") && yaml.contains(&here.name), "{yaml}");
    assert!(here.try_kubectl(&["get", "htcjob", "dry"]).is_err(), "a dry run stores nothing");
    std::fs::write(folder.join("dry.yaml"), yaml).unwrap();
    here.kubectl(&["create", "--dry-run=server", "-f", folder.join("dry.yaml").to_str().unwrap()]);

    let (code, stdout, _) = submit("flags", &[]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/flags created\n"));
    let (code, _, error) = submit("flags", &[]);
    assert!(code == 2 && error.contains("already exists"), "{error}");
    let (code, _, error) = submit("wrong", &["--max-retries=-1"]);
    assert!(code == 2 && error.contains("write a number from 0 to 1000"), "{error}");
    let (code, stdout, _) = htc(here, &["wait", "flags", "--timeout=10m"]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/flags: 2 jobs succeeded\n"));
    let out = std::fs::read_to_string(here.output("flags", 1).join("out")).unwrap();
    assert_eq!(out, "two words me\n");
    assert!(htc(here, &["completion", "bash"]).1.contains("--parallelism"));
}

fn failed_command_exits_with_an_error(version: Version) {
    let bed = Bed::shared(version);
    // While another test makes the jobs API known, it is not available.
    bed.front();
    let here = &bed.namespace();
    no_error_shows_a_value_of_rust(here);
    here.create(&htcjob("runs", UNTIL_LET_GO));
    here.wait_running("runs", 1);
    let (code, _, error) = htc(here, &["wait", "runs", "--timeout=2s"]);
    assert_eq!(code, 2);
    assert!(error.contains("0 of 1 jobs ended; 1 running\n"), "{error}");
    assert!(error.ends_with("has not ended in time: 0 of 1 jobs ended; 1 running\n"), "{error}");
    let (code, _, error) = htc(here, &["retry", "runs"]);
    assert!(code == 2 && error.contains("has not ended (Running)"), "{error}");
    let (code, _, error) = htc(here, &["retry", "runs", "--indexes=7"]);
    assert_eq!((code, error.as_str()), (2, "error: jobs 7 of HTCJob runs have not ended\n"));
    let mut invalid = htcjob("invalid", "true");
    invalid["spec"]["htcopts"] = "executable = /bin/sh".into();
    here.create(&invalid);
    let (code, stdout, _) = htc(here, &["wait", "invalid", "--timeout=5m"]);
    assert!(code == 1 && stdout.starts_with("htcjob.htc.cern.ch/invalid: spec.htcopts"), "{stdout}");
    here.delete("runs");
}

/// Each command, for an HTCJob that is not there, for a user who may do nothing, and without an API server.
fn no_error_shows_a_value_of_rust(here: &Namespace<'_>) {
    let nowhere = here.bed.scratch().path().join("kubeconfig-nowhere");
    let cluster = "clusters: [{name: x, cluster: {server: \"http://127.0.0.1:1\"}}]";
    let context =
        "contexts: [{name: x, context: {cluster: x, user: x}}]\ncurrent-context: x\nusers: [{name: x, user: {}}]";
    std::fs::write(&nowhere, format!("apiVersion: v1\nkind: Config\n{cluster}\n{context}\n")).unwrap();
    let nowhere = format!("--kubeconfig={}", nowhere.display());
    let (folder, script) = (here.bed.scratch().path().join("never-made"), here.bed.scratch().path().join("script.sh"));
    std::fs::write(&script, "true\n").unwrap();
    let (folder, script) = (folder.to_str().unwrap(), format!("--script={}", script.display()));
    let commands: [&[&str]; 13] = [
        &["wait", "nosuch"],
        &["why", "nosuch"],
        &["why", "nosuch/1"],
        &["story", "nosuch"],
        &["jobs", "nosuch"],
        &["logs", "nosuch"],
        &["logs", "nosuch/1", "--follow"],
        &["files", "nosuch", folder],
        &["retry", "nosuch"],
        &["hold", "nosuch/1"],
        &["release", "nosuch/1"],
        &["remove", "nosuch/1"],
        &["queue", "nosuch"],
    ];
    let submit = ["submit", "nosuch", "--image=centos", &script];
    let each = commands.iter().copied().map(|command| (command, None));
    let refused = commands.iter().copied().chain([&submit[..]]).map(|command| (command, Some("--as=nobody-at-all")));
    let unheard = commands.iter().copied().chain([&submit[..]]).map(|command| (command, Some(nowhere.as_str())));
    for (command, how) in each.chain(refused).chain(unheard) {
        let (code, stdout, error) = htc(here, &command.iter().copied().chain(how).collect::<Vec<_>>());
        assert_eq!(code, 2, "{command:?} {how:?}: {stdout}{error}");
        for value in ["Some(", "None", "Status {", "Error(", "ApiError", "ServiceError", "HyperError"] {
            assert!(!error.contains(value), "{command:?} {how:?}: {error}");
        }
        let says = match how {
            None => &["not found", "no job"][..],
            Some("--as=nobody-at-all") => &["forbidden"],
            Some(_) => &["refused"],
        };
        assert!(says.iter().any(|says| error.to_lowercase().contains(says)), "{command:?} {how:?}: {error}");
    }
}
