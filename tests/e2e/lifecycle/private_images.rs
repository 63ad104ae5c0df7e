//! `spec.imagePullSecrets`: jobs in HTCondor pull with the login of a Secret.

use std::process::Command;

use serde_json::{Value, json};
use testbed::{Assets, Registry, Version, wait_for};

use crate::callbacks::tls;
use crate::lifecycle::read;
use bed::{Namespace, PATIENCE, condition, htcjob, is_true};

on_versions! {
    both: private_image_is_pulled_with_the_login_of_its_secret;
}

const NAME: &str = "fsauerbu";
const PASSWORD: &str = "YOUR_PASSWORD";

fn put_login(here: &Namespace<'_>, name: &str, label: &str, registry: &str, password: &str) {
    let config = json!({ "auths": { registry: { "username": NAME, "password": password } } });
    here.replace(
        "secret",
        &json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "stringData": { ".dockerconfigjson": config.to_string() },
            "metadata": { "name": name, "namespace": here.name, "labels": { "htc.cern.ch/use": label } },
        }),
    );
    here.let_read_secret(name);
}

fn pulling(name: &str, image: &str, secrets: &[&str], source: &str) -> Value {
    let mut object = htcjob(name, source);
    object["spec"]["script"]["image"] = image.into();
    object["spec"]["imagePullSecrets"] = secrets.iter().map(|secret| json!({ "name": secret })).collect();
    object
}

fn private_image_is_pulled_with_the_login_of_its_secret(version: Version) {
    let assets = Assets::locate().unwrap();
    let registry = Registry::with_login(&assets).unwrap();
    registry.push("team/private", "1", assets.image()).unwrap();
    let image = format!("{}/team/private:1", registry.address());
    let (site, _certificate) = tls::site(version);
    let here = site.bed.namespace();
    put_login(&here, "robot", "files", &registry.address(), PASSWORD);
    put_login(&here, "other", "images", "registry.example.org", PASSWORD);
    put_login(&here, "wrong", "images", &registry.address(), "not it");
    // Where the payload could find what the pull had.
    let source = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '[Y]OUR_PASS'; ls -A /htc_run";
    here.create(&pulling("pulls", &image, &["other", "robot"], source));
    let message = here.wait_says("pulls", "Submitted", "False", "InputsUnavailable");
    assert!(message.contains("htc.cern.ch/use=images"), "{message}");
    put_login(&here, "robot", "images", &registry.address(), PASSWORD);
    let ended = here.wait_ended("pulls");
    here.wait_output("pulls");
    assert!(is_true(&ended, "Complete"), "{}\n{ended:#}", read(&here, "pulls", 0, "err"));
    let out = read(&here, "pulls", 0, "out");
    assert_eq!(out.lines().next(), Some("0"), "{out}");
    let objects = here.kubectl(&["get", "events,htcjobs", "--output=yaml"]);
    assert!(!objects.contains(PASSWORD) && !site.bed.log().contains(PASSWORD));
    for folder in [site.bed.pool.spool_dir(), site.bed.data.clone()] {
        let found = Command::new("grep").args(["-rla", PASSWORD]).arg(&folder).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{}", folder.display());
    }

    here.create(&pulling("wrong", &image, &["wrong"], "echo ran"));
    here.create(&pulling("none", &image, &["other"], "echo ran"));
    let message = here.wait_says("none", "Submitted", "False", "InputsUnavailable");
    assert!(message.contains("none of the Secrets has a login for"), "{message}");
    let ended = here.wait_ended("wrong");
    let message = condition(&ended, "Failed").unwrap()["message"].to_string();
    assert!(
        message.contains("(249): the registry does not have the image, or does not let the job have it"),
        "{message}"
    );
    // A login that was changed is used by jobs that begin later.
    put_login(&here, "wrong", "images", &registry.address(), PASSWORD);
    wait_for("a job with the new login", PATIENCE, || {
        let object = pulling("later", &image, &["wrong"], "echo ran");
        here.create(&object);
        let ended = here.wait_ended("later");
        let complete = is_true(&ended, "Complete");
        if !complete {
            here.delete("later");
        }
        if complete { Ok(()) } else { Err(ended["status"]["message"].to_string()) }
    })
    .unwrap();
}
