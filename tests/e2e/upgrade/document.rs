//! The commands of docs/upgrading.md, run as they stand there: an upgrade, the way back, and once more.

use std::process::Command;

use serde_json::json;
use testbed::{Account, PoolOptions, Scratch, Version};

use crate::upgrade::old::{FINALIZER, Old, wait_says};
use bed::{Bed, is_true};

on_versions! {
    sid: upgrading_page_commands_work;
}

/// The blocks that are to be run, in order.
fn blocks() -> Vec<String> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/upgrading.md")).unwrap();
    let mut blocks: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines().map(str::trim_start) {
        match line {
            "```sh" => {
                inside = true;
                blocks.push(String::new());
            }
            "```" => inside = false,
            line if inside => blocks.last_mut().unwrap().extend([line, "\n"]),
            _ => {}
        }
    }
    blocks
}

/// Runs blocks in a shell that has the variables that the document names; what they print.
fn run(bed: &Bed, place: &Scratch, namespace: &str, blocks: &[String]) -> String {
    let kubectl = bed.kube.kubectl(&[]);
    let bin = place.path().join("bin");
    if !bin.exists() {
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(kubectl.get_program(), bin.join("kubectl")).unwrap();
        let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");
        std::os::unix::fs::symlink(deploy, place.path().join("deploy")).unwrap();
    }
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &blocks.concat()])
        .current_dir(place.path())
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("HOME", place.path())
        .env("KUBECONFIG", bed.kube.kubeconfig())
        .env("DATA", &bed.data)
        .env("OLD_NAMESPACE", namespace)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}\n{output:?}", blocks.concat());
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    // What the document says about ownership.
    for entry in std::fs::read_dir(bed.data.join("sqlite")).unwrap() {
        Account::unprivileged().own(&entry.unwrap().path()).unwrap();
    }
    printed
}

fn upgrading_page_commands_work(version: Version) {
    let blocks = blocks();
    assert_eq!(blocks.len(), 9, "the steps below are those of the document");
    let bed = Bed::new(version, &PoolOptions::default(), &[]);
    let place = Scratch::new().unwrap();
    let old = Old::new(&bed);
    let here = bed.namespace();
    let (_, running) = old.run(&here, "running", &[1], "");
    let (_, _) = old.run(&here, "done", &[24, 14], "requirements = (NoSuchMachine =?= true)");
    old.leave_database();
    running.wait_status(&bed, 0..1, "2");
    let labels = json!({ "name": "htc-operator" });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "htc-operator", "namespace": here.name },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "o", "image": "o" }] } },
        },
    });
    bed.apply(&deployment);

    let output = run(&bed, &place, &here.name, &blocks[..4]);
    let running_id = &running.ids[0];
    assert!(output.contains(&format!("[{running_id}]")) && output.contains("24|1"), "{output}");
    let kept = std::fs::read_to_string(place.path().join("htcjobs-before.json")).unwrap();
    assert!(kept.contains(FINALIZER));
    let replicas = ["get", "deployment", "htc-operator", "-o", "jsonpath={.spec.replicas}"];
    assert_eq!(here.kubectl(&replicas), "0");
    assert_eq!(blocks[4], "htc-operator adopt\n");
    let (well, output) = bed.adopt();
    assert!(well, "{output}");
    bed.start_operator();
    here.wait_phase("running", "Running");
    here.wait_ended("done");
    here.wait_event("running", "Adopted");
    here.wait("running", "adopted", |object| is_true(object, "Submitted"));
    let output = run(&bed, &place, &here.name, &blocks[5..7]);
    assert!(output.contains("Adopted"), "{output}");

    bed.stop_operator();
    run(&bed, &place, &here.name, &blocks[7..]);
    let back = here.get("running");
    assert_eq!(back["metadata"]["finalizers"], json!([FINALIZER]));
    for annotation in ["htc.cern.ch/ledger", "htc.cern.ch/operator"] {
        assert!(back["metadata"]["annotations"].get(annotation).is_none(), "{back:#}");
    }
    let columns = bed.ledger("select group_concat(name) from pragma_table_info('htcjobs')").unwrap();
    assert_eq!(columns.concat(), ["htcjobName,jobId,status,tempDir,uniqid"]);
    let asked = format!("select status from htcjobs where htcjobName = 'running' and jobId = '{running_id}'");
    assert_eq!(bed.ledger(&asked).unwrap().concat(), ["1"]);

    // Once more: its job is found by what it carries.
    let (well, output) = bed.adopt();
    assert!(well, "{output}");
    assert_eq!(here.get("running")["metadata"]["finalizers"], json!(["htc.cern.ch/condor-jobs"]));
    bed.start_operator();
    running.let_go(&bed);
    let ended = here.wait_ended("running");
    assert_eq!(ended["status"]["succeeded"], 1);
    wait_says(&here, "running", "OutputFetched", "True", "Fetched");
    assert!(here.output("running", 0).join(format!("out.{running_id}")).exists());
    for name in ["running", "done"] {
        here.delete(name);
    }
    assert!(bed.queue("true", &["ClusterId"]).is_empty());
    old.assert_rows_kept();
}
