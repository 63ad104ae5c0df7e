//! The Dockerfile, as far as it can be tried without a container engine: tests/e2e/deploy/image.rs runs what it makes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use testbed::{IMAGE_ACCOUNT, tool};

use crate::deploy::manifests::{container, find, path, read, render};

/// The arguments of all instructions of one name.
fn instructions(dockerfile: &str, name: &str) -> Vec<Vec<String>> {
    let whole = dockerfile.replace("\\\n", " ");
    let lines = whole.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn image_build_has_the_whole_workspace() {
    let dockerfile = read("Dockerfile");
    let folder = tempfile::tempdir().unwrap();
    let build = folder.path().join("build");
    fs::create_dir(&build).unwrap();
    for mut copied in instructions(&dockerfile, "COPY") {
        if copied[0].starts_with("--from=") {
            continue;
        }
        let to = build.join(copied.pop().unwrap().trim_start_matches('/'));
        for from in copied {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let mut copy = Command::new("cp");
            // COPY gives a folder's contents, and makes the folder that it copies into.
            if path(&from).is_dir() {
                fs::create_dir_all(&to).unwrap();
                copy.arg("-rT");
            } else if to.extension().is_none_or(|extension| extension != "toml") {
                fs::create_dir_all(&to).unwrap();
            }
            tool::run_ok("copying", copy.arg(path(&from)).arg(&to), "", Duration::from_secs(60)).unwrap();
        }
    }
    // The instruction that makes the stand-ins of the tests' crates.
    let stand_ins = instructions(&dockerfile, "RUN").into_iter().find(|run| run[0] == "for").unwrap().join(" ");
    let sh = |script: &str| {
        let mut command = Command::new("sh");
        command.current_dir(&build).args(["-euc", script]);
        tool::run_ok("building as the Dockerfile does", &mut command, "", Duration::from_secs(120)).unwrap()
    };
    sh(&stand_ins);
    // A machine that has only built the workspace has the crates of its own platform and no others.
    let metadata = sh("host=$(rustc --version --verbose | sed -n 's/^host: //p')
        cargo metadata --locked --offline --filter-platform \"$host\" --format-version 1");
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let operator = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == "htc-operator");
    let targets = operator.unwrap()["targets"].to_string();
    assert!(targets.contains(r#"["bin"]"#) && targets.contains("src/main.rs"), "{targets}");
    assert!(build.join("crates/submit/src/payload/job.sh").is_file());
}

#[test]
fn image_and_deployment_agree() {
    let dockerfile = read("Dockerfile");
    let toolchain = read("rust-toolchain.toml");
    let version = toolchain.split('"').nth(1).unwrap();
    assert!(dockerfile.contains(&format!("FROM rust:{version}-slim-trixie ")), "another Rust than {version}");
    let account = IMAGE_ACCOUNT.to_string();
    // The daemons of managed pools run as nobody; what is built last is the operator's.
    assert_eq!(instructions(&dockerfile, "USER").concat(), ["65534:65534".to_owned(), format!("{account}:{account}")]);
    assert!(
        read("deploy/image/prepare.sh")
            .contains(&format!("htc-operator:x:{account}:{account}:htc-operator:/nonexistent:"))
    );
    let objects = render("overlays/local");
    let pod = &find(&objects, "Deployment", "htc-operator")["spec"]["template"]["spec"];
    for key in ["runAsUser", "runAsGroup", "fsGroup"] {
        assert_eq!(pod["securityContext"][key], IMAGE_ACCOUNT, "{key}");
    }
    assert_eq!(container(&objects)["image"], "htc-operator:dev");
}
