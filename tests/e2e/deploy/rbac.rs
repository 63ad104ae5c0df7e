//! The operator's whole life under the rights of the overlays, and no others.

use std::panic::AssertUnwindSafe;

use testbed::{KubeOptions, Owned, PoolOptions, Port, Scratch, Version, wait_for};

use crate::deploy::manifests::{path, render};
use crate::deploy::rights;
use crate::pools::site as pools;
use bed::{ACCOUNT, Bed, Namespace, PATIENCE, UNTIL_LET_GO, htcjob, is_true, of};

/// A token of the operator's service account, as its pod has one.
pub fn token(bed: &Bed) -> String {
    token_of(bed, "htc-operator")
}

/// The same of another account in its namespace.
pub fn token_of(bed: &Bed, account: &str) -> String {
    let arguments = ["-n", "htc-operator", "create", "token", account, "--duration=2h"];
    bed.kube.kubectl_ok(&arguments).unwrap().trim().to_owned()
}

#[test]
fn operator_needs_exactly_its_rights() {
    let port = Port::reserve().unwrap();
    let arguments = [
        format!("--callback-url=http://127.0.0.1:{}/cloudevents", port.number),
        format!("--callback-listen=127.0.0.1:{}", port.number),
        "--queueing=embedded".to_owned(),
    ];
    let arguments = arguments.each_ref().map(String::as_str);
    let bed = Bed::with_kube(
        Version::Trixie,
        &KubeOptions { audit: true, ..KubeOptions::default() },
        &PoolOptions::default(),
        &arguments,
    );
    bed.kube.kubectl_ok(&["apply", "-k", path("deploy/overlays/local").to_str().unwrap()]).unwrap();
    bed.log_in(&token(&bed));
    bed.start_operator();

    let ns = bed.namespace();
    let story = std::panic::catch_unwind(AssertUnwindSafe(|| story(&ns)));

    let asked = rights::asked(&bed.kube.audit_log(), ACCOUNT);
    let mut allowed = rights::of(&render("overlays/local"), "htc-operator", "htc-operator");
    let mut in_namespace = [render("namespace-credentials"), render("namespace-items")].concat();
    for object in &mut in_namespace {
        object["metadata"]["namespace"] = ns.name.clone().into();
    }
    allowed.extend(rights::of(&in_namespace, "htc-operator", "htc-operator"));
    // A right that is missing is named before what came of it.
    rights::must_suffice(&asked);
    story.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    rights::must_be_needed(&allowed, &asked);
    // The log would show what is too much, or too little.
    let mut more = allowed.clone();
    more[0].verb = "deletecollection".to_owned();
    assert_eq!(rights::unused(&more, &asked), [&more[0]]);
    assert!(asked.len() > 50, "only {} requests were seen", asked.len());
}

/// Everything that an operator may ever ask of the API server.
fn story(ns: &Namespace<'_>) {
    let bed = ns.bed;
    // An HTCJob that deletes itself, one that is held and let go, and one that is deleted while it runs.
    let mut short = htcjob("short", "true");
    short["spec"]["ttlSecondsAfterFinished"] = 1.into();
    ns.create(&short);
    for name in ["held", "deleted"] {
        ns.create(&htcjob(name, UNTIL_LET_GO));
        ns.wait_phase(name, "Running");
    }
    ns.suspend("held", true);
    ns.wait("held", "held", |object| object["status"]["held"] == 1);
    ns.suspend("held", false);
    assert!(is_true(&ns.let_go("held"), "Complete"));
    ns.wait_event("held", "Completed");
    ns.delete("deleted");
    ns.wait_gone("short");
    // One that is submitted with a Secret of its namespace, which lets the operator read that one.
    let token_of_alice = format!("--from-file=token={}", bed.pool.client("alice").unwrap().token().display());
    ns.kubectl(&["create", "secret", "generic", "my-condor", &token_of_alice]);
    ns.let_use("secret", "my-condor");
    ns.kubectl(&["apply", "-k", path("deploy/namespace-credentials").to_str().unwrap()]);
    // The API server's authorizer learns of it a little later.
    wait_for("the new right", PATIENCE, || {
        ns.try_kubectl(&["auth", "can-i", "get", "secrets/my-condor", "--as", ACCOUNT]).map(drop)
    })
    .unwrap();
    let mut theirs = htcjob("theirs", "true");
    theirs["spec"]["credentialsSecretName"] = "my-condor".into();
    let uid = ns.create(&theirs);
    ns.wait_ended("theirs");
    ns.delete("theirs");
    assert_eq!(bed.history(&of(&uid), &["User"]), [["alice@test"]]);
    // An HTCPool comes and goes.
    pools::apply(ns, "again", &bed.pool, "my-condor", &[]);
    pools::wait_ready(ns, "again", "SameSchedd");
    pools::delete(ns, "again");
    // An HTCQueue gives room to one.
    let spec = r#"{"namespaceSelector":{},"quota":{"jobs":1}}"#;
    let queue = format!(
        r#"{{"apiVersion":"htc.cern.ch/v1alpha1","kind":"HTCQueue","metadata":{{"name":"batch"}},"spec":{spec}}}"#
    );
    bed.kube.apply_stdin(&queue).unwrap();
    let mut queued = htcjob("queued", "true");
    queued["metadata"]["labels"] = serde_json::json!({ "kueue.x-k8s.io/queue-name": "batch" });
    ns.create(&queued);
    assert!(is_true(&ns.wait_ended("queued"), "Complete"));
    // One that takes its items from a ConfigMap.
    ns.kubectl(&["create", "configmap", "my-items", "--from-literal=files.txt=one"]);
    ns.let_use("configmap", "my-items");
    ns.kubectl(&["apply", "-k", path("deploy/namespace-items").to_str().unwrap()]);
    wait_for("the new right", PATIENCE, || {
        ns.try_kubectl(&["auth", "can-i", "get", "configmaps/my-items", "--as", ACCOUNT]).map(drop)
    })
    .unwrap();
    let mut items = htcjob("items", "test \"$2\" = one");
    items["spec"]["itemsFrom"] = serde_json::json!({ "configMapKeyRef": { "name": "my-items", "key": "files.txt" } });
    ns.create(&items);
    assert!(is_true(&ns.wait_ended("items"), "Complete"));
    let (well, output) = bed.check();
    assert!(well, "{output}");

    // One that is started again, and one that takes over.
    bed.stop_operator();
    bed.start_operator();
    ns.create(&htcjob("again", "true"));
    ns.wait_ended("again");
    let scratch = Scratch::new().unwrap();
    let other_port = Port::reserve().unwrap();
    let other_listen = format!("--callback-listen=127.0.0.1:{}", other_port.number);
    let other = bed.start_another("other", &scratch.dir("data").unwrap(), &[&other_listen]);
    wait_for("the other operator to stand by", PATIENCE, || other.log_text().contains("standing by")).unwrap();
    bed.kill_operator();
    wait_to_lead(&other);
    ns.create(&htcjob("taken-over", "true"));
    ns.wait_ended("taken-over");
    other.terminate().unwrap();
    assert!(other.wait(PATIENCE).unwrap().success(), "{}", other.log_text());
}

fn wait_to_lead(operator: &Owned) {
    wait_for("the operator to lead", PATIENCE, || operator.log_text().contains("lease acquired"))
        .unwrap_or_else(|error| panic!("{error}\n{}", operator.log_text()));
}

/// A Secret in the operator's own namespace is all that it may read of them.
#[test]
fn roles_grant_no_secrets_of_other_namespaces() {
    for overlay in ["overlays/local", "overlays/cern"] {
        let allowed = rights::of(&render(overlay), "htc-operator", "htc-operator");
        assert!(allowed.len() > 8, "{allowed:?}");
        for right in allowed {
            let parts = [&right.verb, &right.group, &right.resource];
            assert!(parts.iter().all(|part| !part.contains('*')), "{overlay}: {right} is a wildcard");
            if right.resource.starts_with("secrets") {
                assert_eq!(right.namespace.as_deref(), Some("htc-operator"), "{overlay}: {right}");
                assert!(right.verb == "create" || right.name.is_some(), "{overlay}: {right} opens all Secrets");
            }
        }
    }
}

/// `check` looks for the rights of managed pools that their Role has, and for no others.
#[test]
fn check_verifies_the_rights_for_managed_pools() {
    let mut role = render("namespace-pools");
    for object in &mut role {
        object["metadata"]["namespace"] = "pools".into();
    }
    let mut granted: Vec<(String, String, String)> = rights::of(&role, "htc-operator", "htc-operator")
        .into_iter()
        .map(|right| (right.group, right.resource, right.verb))
        .collect();
    let own = |(group, resource, verb): (&str, &str, &str)| (group.to_owned(), resource.to_owned(), verb.to_owned());
    let mut asked: Vec<_> = htc_operator::cli::check::MANAGED_POOL_RIGHTS.into_iter().map(own).collect();
    granted.sort_unstable();
    asked.sort_unstable();
    assert_eq!(asked, granted);
}
