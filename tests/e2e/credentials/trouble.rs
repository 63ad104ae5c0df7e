//! Secrets that are not there, may not be read, have something else in them, or tokens that HTCondor does not take.

use testbed::{Version, wait_for};

use crate::credentials::site::{Site, put_secret, users, wait_says, with_secret};
use bed::{Namespace, PATIENCE, UNTIL_LET_GO, condition, htcjob, is_true};

on_versions! {
    trixie: htcjob_waits_for_its_deleted_secret_to_remove_its_jobs, secret_without_its_label_is_not_used;
    long: invalid_secret_is_reported_with_its_fault, undecodable_htcjob_with_unknown_secret_waits_for_its_jobs;
}

fn assert_waits(here: &Namespace<'_>, name: &str) {
    let object = here.get(name);
    assert_eq!(object["status"]["phase"], "Pending", "{object:#}");
    assert_eq!(object["status"]["attempt"].as_u64().unwrap_or(0), 0, "nothing was submitted: {object:#}");
}

fn invalid_secret_is_reported_with_its_fault(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let good = site.token("alice@test", &[]);
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let forged = format!("{signed}.{}", signature.chars().rev().collect::<String>());
    let ended = site.token("alice@test", &["-lifetime", "1"]);
    for (secret, entries) in [
        ("no-right", &[("token", good.as_bytes())][..]),
        ("empty", &[("something", b"else")]),
        ("half", &[("username", b"alice")]),
        ("garbled", &[("token", b"Zq7-not-a-token")]),
        ("ended", &[("token", ended.as_bytes())]),
        ("forged", &[("token", forged.as_bytes())]),
    ] {
        put_secret(&here, secret, entries);
        if secret != "no-right" {
            here.let_read_secret(secret);
        }
    }
    here.let_read_secret("missing");
    let cases = [
        ("no-right", "CredentialsFailed", "may not read the Secret"),
        ("missing", "CredentialsFailed", "there is no Secret"),
        ("empty", "CredentialsFailed", "expected the entries `token`"),
        ("half", "CredentialsFailed", "no `password`"),
        ("garbled", "CredentialsFailed", "is no IDTOKEN"),
        ("ended", "CredentialsFailed", "the token ended"),
        ("forged", "CredentialsRefused", "the credentials in the Secret"),
    ];
    for (secret, ..) in cases {
        here.create(&with_secret(secret, secret, "true"));
    }
    here.create(&htcjob("plain", "true"));
    for (secret, reason, words) in cases {
        let message = wait_says(&here, secret, "Submitted", reason, words);
        assert!(message.contains(&format!("{}/{secret}", here.name)) || reason == "CredentialsFailed", "{message}");
        assert_waits(&here, secret);
        here.wait_event(secret, reason);
        assert!(here.kubectl(&["describe", "htcjob", secret]).contains(words));
    }
    // They are in nobody's way.
    let ended = here.wait_ended("plain");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    site.assert_closed();
    site.assert_secret(&here, &["Zq7-not-a-token", &good, &forged]);

    // Once it is put right, it goes on by itself.
    here.let_read_secret("no-right");
    for secret in ["missing", "empty", "half", "garbled", "ended", "forged"] {
        put_secret(&here, secret, &[("token", good.as_bytes())]);
    }
    for (secret, ..) in cases {
        let ended = here.wait_ended(secret);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        site.bed.assert_once(&here.uid(secret), secret, 1);
        here.delete(secret);
    }
}

fn htcjob_waits_for_its_deleted_secret_to_remove_its_jobs(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let token = site.token("alice@test", &[]);
    put_secret(&here, "mine", &[("token", token.as_bytes())]);
    here.let_read_secret("mine");
    let uids = ["put-back", "abandoned"].map(|name| here.create(&with_secret(name, "mine", UNTIL_LET_GO)));
    for name in ["put-back", "abandoned"] {
        here.wait_phase(name, "Running");
    }
    here.remove("secret", "mine");
    site.wait_forgotten(&here.name, "mine");
    // What runs is followed in the operator's own name.
    for name in ["put-back", "abandoned"] {
        assert_eq!(here.get(name)["status"]["running"], 1);
        here.begin_delete(name);
    }
    for (name, uid) in ["put-back", "abandoned"].iter().zip(&uids) {
        wait_says(&here, name, "JobsRemoved", "CredentialsFailed", "there is no Secret");
        let object = here.get(name);
        assert_eq!(object["status"]["phase"], "Terminating");
        assert!(condition(&object, "JobsRemoved").is_some_and(|condition| condition["status"] == "False"));
        assert_eq!(users(&site.bed, uid), ["alice@test"], "its job is left alone");
    }
    here.annotate("abandoned", "htc.cern.ch/abandon");
    here.wait_gone("abandoned");
    assert_eq!(users(&site.bed, &uids[1]), ["alice@test"]);
    put_secret(&here, "mine", &[("token", token.as_bytes())]);
    here.wait_gone("put-back");
    here.wait_nothing_left(&uids[0]);
}

/// That a Role lets the operator read it, for something else perhaps, lets no HTCJob use it.
fn secret_without_its_label_is_not_used(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    put_secret(&here, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    let label = |label: &str| drop(here.kubectl(&["label", "--overwrite", "secret", "mine", label]));
    label("htc.cern.ch/use-");
    here.let_read_secret("mine");
    let uid = here.create(&with_secret("waits", "mine", UNTIL_LET_GO));
    let command =
        format!("`kubectl --namespace {} label --overwrite secret mine htc.cern.ch/use=credentials`", here.name);
    wait_says(&here, "waits", "Submitted", "CredentialsFailed", &command);
    assert_waits(&here, "waits");
    let (_, output) = site.bed.check();
    assert!(output.contains(command.trim_matches('`')), "{output}");
    label("htc.cern.ch/use=items");
    site.wait_forgotten(&here.name, "mine");
    assert_waits(&here, "waits");
    here.let_use("secret", "mine");
    here.wait_phase("waits", "Running");
    // What was submitted goes on.
    label("htc.cern.ch/use-");
    site.wait_forgotten(&here.name, "mine");
    assert_eq!(here.get("waits")["status"]["running"], 1);
    here.begin_delete("waits");
    wait_says(&here, "waits", "JobsRemoved", "CredentialsFailed", &command);
    assert_eq!(users(&site.bed, &uid), ["alice@test"], "its job is left alone");
    here.let_use("secret", "mine");
    here.wait_gone("waits");
    here.wait_nothing_left(&uid);
}

/// An HTCJob that was stored under other rules no longer says which Secret is its own: its jobs are not overlooked for that.
fn undecodable_htcjob_with_unknown_secret_waits_for_its_jobs(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let token = site.token("alice@test", &[]);
    put_secret(&here, "mine", &[("token", token.as_bytes())]);
    here.let_read_secret("mine");
    let uids = ["known", "unknown"].map(|name| here.create(&with_secret(name, "mine", UNTIL_LET_GO)));
    for name in ["known", "unknown"] {
        here.wait_phase(name, "Running");
    }
    site.bed.take_any_spec();
    for name in ["known", "unknown"] {
        let no_source = r#"{"spec": {"script": {"source": null}}}"#;
        let patched = || here.try_kubectl(&["patch", "htcjob", name, "--type=merge", "-p", no_source]);
        wait_for("an HTCJob without a source", PATIENCE, patched).unwrap();
    }
    // Whoever has seen it before remembers.
    here.begin_delete("known");
    here.wait_gone("known");
    here.wait_nothing_left(&uids[0]);

    site.bed.stop_operator();
    site.bed.start_operator();
    here.begin_delete("unknown");
    wait_says(&here, "unknown", "JobsRemoved", "NotRemovedYet", "");
    assert_eq!(users(&site.bed, &uids[1]), ["alice@test"]);
    assert_eq!(here.get("unknown")["status"]["running"], 1);
    here.annotate("unknown", "htc.cern.ch/abandon");
    here.wait_gone("unknown");
}
