//! Files and variables from Secrets, which jobs fetch over TLS; and variables from ConfigMaps and fields.

use std::process::Command;

use htc_submit::job_token::TokenKeys;
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use crate::callbacks::tls;
use crate::lifecycle::read;
use bed::desk::KEY;
use bed::{Bed, Namespace, PATIENCE, UNTIL_LET_GO, htcjob, is_true};

on_versions! {
    both: secret_reaches_its_jobs_and_is_nowhere_else;
    sid: changed_secret_is_not_given_to_jobs;
    trixie: secrets_need_consent_and_a_way_to_the_job;
}

fn put_secret(here: &Namespace<'_>, name: &str, label: &str, password: &str) {
    here.replace(
        "secret",
        &json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": { "password": password },
            "metadata": { "name": name, "namespace": here.name, "labels": { "htc.cern.ch/use": label } },
        }),
    );
    here.let_read_secret(name);
}

fn with_secret(name: &str, secret: &str, source: &str) -> Value {
    let mut object = htcjob(name, source);
    let key = json!({ "name": secret, "key": "password" });
    object["spec"]["files"] = json!([{ "path": "conf/pass", "secret": key }]);
    object["spec"]["env"] = json!([{ "name": "PASSWORD", "valueFrom": { "secretKeyRef": key } }]);
    object
}

fn secret_reaches_its_jobs_and_is_nowhere_else(version: Version) {
    let (site, _scratch) = tls::site(version);
    let here = site.bed.namespace();
    put_secret(&here, "robot", "files", "hunter2");
    here.replace(
        "configmap",
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "key": "of the map" },
            "metadata": { "name": "params", "namespace": here.name, "labels": { "htc.cern.ch/use": "files" } },
        }),
    );
    here.let_read_config_map("params");
    let checks =
        format!("test \"$(cat conf/pass)$PASSWORD\" = hunter''2hunter''2 && echo \"$MAP $LABEL\"; {UNTIL_LET_GO}");
    let mut object = with_secret("uses", "robot", &checks);
    object["metadata"]["labels"] = json!({ "team": "atlas" });
    object["spec"]["outputs"] = json!(["**"]);
    object["spec"]["env"].as_array_mut().unwrap().extend([
        json!({ "name": "MAP", "valueFrom": { "configMapKeyRef": { "name": "params", "key": "key" } } }),
        json!({ "name": "LABEL", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['team']" } } }),
    ]);
    here.create(&object);
    here.wait_running("uses", 1);
    let looks = |what: &str| {
        let objects = here.kubectl(&["get", "events,htcjobs,configmaps", "--output=yaml"]);
        assert!(!objects.contains("hunter2") && !site.bed.log().contains("hunter2"), "{what}");
        // The queue and the history are in the first, the ledger and the output in the second.
        for folder in [site.bed.pool.spool_dir(), site.bed.data.clone()] {
            let found = Command::new("grep").args(["-rla", "hunter2"]).arg(&folder).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{what}: {}", folder.display());
        }
    };
    looks("while it runs");
    assert!(is_true(&here.let_go("uses"), "Complete"));
    assert_eq!(read(&here, "uses", 0, "out").lines().next(), Some("of the map atlas"));
    looks("at its end");
}

/// The second job begins after the Secret has changed.
fn changed_secret_is_not_given_to_jobs(version: Version) {
    let (site, _scratch) = tls::site(version);
    let here = site.bed.namespace();
    put_secret(&here, "robot", "files", "first");
    let mut object = with_secret("uses", "robot", &format!("test \"$PASSWORD\" = first; {UNTIL_LET_GO}"));
    object["spec"]["queue"] = 2.into();
    object["spec"]["parallelism"] = 1.into();
    let uid = here.create(&object);
    here.wait_running("uses", 1);
    let token = TokenKeys::parse(KEY).unwrap().token(&uid.as_str().into());
    let fetch = |token: &str, key: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-q", "--silent", "--insecure", "--noproxy", "*", "--write-out", " %{http_code}", "--header"]);
        curl.arg(format!("Authorization: Bearer {token}"));
        let url = format!("https://{}/cloudevents/{uid}/secrets/{key}", site.address());
        String::from_utf8(curl.arg(url).output().unwrap().stdout).unwrap()
    };
    assert_eq!(fetch(&token, "robot/password"), "first 200");
    for (token, key, status) in
        [(&*token, "robot/other", "404"), (&token, "other/password", "404"), (&"0".repeat(64), "robot/password", "403")]
    {
        assert!(fetch(token, key).ends_with(status), "{key}: {}", fetch(token, key));
    }
    put_secret(&here, "robot", "files", "second");
    let is_changed = || {
        let answer = fetch(&token, "robot/password");
        if answer.ends_with(" 409") { Ok(()) } else { Err(answer) }
    };
    wait_for("the operator to see the change", PATIENCE, is_changed).unwrap();
    let ended = here.let_go("uses");
    assert_eq!((&ended["status"]["succeeded"], &ended["status"]["failed"]), (&json!(1), &json!(1)), "{ended:#}");
    here.wait_output("uses");
    let err = read(&here, "uses", 1, "err");
    assert!(err.contains("it is another one than when the first job was submitted"), "{err}");
    here.delete("uses");
    assert!(fetch(&token, "robot/password").ends_with("404"));
}

fn secrets_need_consent_and_a_way_to_the_job(version: Version) {
    let (site, _scratch) = tls::site(version);
    let here = site.bed.namespace();
    put_secret(&here, "robot", "credentials", "hunter2");
    let uid = here.create(&with_secret("uses", "robot", "test \"$PASSWORD\" = hunter''2"));
    let message = here.wait_says("uses", "Submitted", "False", "InputsUnavailable");
    assert!(message.contains("htc.cern.ch/use=files"), "{message}");
    assert!(site.bed.jobs_of(&uid).is_empty());
    put_secret(&here, "robot", "files", "hunter2");
    assert!(is_true(&here.wait_ended("uses"), "Complete"));

    let other = Bed::shared(version);
    let there = other.namespace();
    put_secret(&there, "robot", "files", "hunter2");
    there.create(&with_secret("uses", "robot", "true"));
    wait_for("the HTCJob to be refused", PATIENCE, || {
        let message = there.wait_says("uses", "Submitted", "False", "InvalidSpec");
        if message.contains("--callback-url with https://") { Ok(()) } else { Err(message) }
    })
    .unwrap();
}
