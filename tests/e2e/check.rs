//! `htc-operator check`, and the look for orphans at the start, where one namespace is watched.

use std::process::Command;

use bed::{Bed, Namespace, PATIENCE, UNTIL_LET_GO, htcjob, ids};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::{PoolOptions, Version, tool, wait_for};

/// A Role in a namespace, and whom it is for.
fn role(namespace: &str, rules: &Value) -> [Value; 2] {
    let metadata = json!({ "name": "htc-operator", "namespace": namespace });
    let group = "rbac.authorization.k8s.io";
    [
        json!({ "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": "htc-operator" },
            "subjects": [{ "kind": "ServiceAccount", "name": "htc-operator", "namespace": "htc-operator" }],
        }),
    ]
}

/// The operator gets Roles only: what it needs for itself, and the HTCJobs of these namespaces.
fn give_rights(bed: &Bed, namespaces: &[&Namespace<'_>]) {
    let cluster =
        json!([{ "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"] }]);
    let leases = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"] }]);
    let htcjobs = json!([
        { "apiGroups": ["htc.cern.ch"], "resources": ["htcjobs"], "verbs": ["list", "watch", "patch"] },
        { "apiGroups": ["htc.cern.ch"], "resources": ["htcjobs/status"], "verbs": ["patch"] },
        { "apiGroups": [""], "resources": ["events"], "verbs": ["create"] },
    ]);
    let own = [("kube-system", &cluster), ("htc-operator", &leases)];
    let its = namespaces.iter().map(|here| (here.name.as_str(), &htcjobs));
    let items: Vec<Value> = own.into_iter().chain(its).flat_map(|(namespace, rules)| role(namespace, rules)).collect();
    bed.without_rights();
    bed.apply_all(&items);
}

/// Rights in the watched namespace suffice. Jobs of HTCJobs in namespaces that the operator watched earlier are no
/// orphans.
#[rstest]
#[case::trixie(Version::Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Version::Sid)]
fn operator_watches_one_namespace_with_rights_there_only(#[case] version: Version) {
    let bed = Bed::new(version, &PoolOptions::default(), &[]);
    let (before, here) = (bed.namespace(), bed.namespace());
    give_rights(&bed, &[&before, &here]);
    bed.set_env("HTC_WATCH_NAMESPACE", &before.name);
    bed.start_operator();
    before.create(&htcjob("earlier", UNTIL_LET_GO));
    let earlier = ids(&before.wait_phase("earlier", "Running")).remove(0);
    let (well, output) = bed.check();
    let none = |here: &Namespace<'_>| {
        format!(
            "ok    orphans: none: every job of this operator in HTCondor that is of namespace {} belongs",
            here.name
        )
    };
    assert!(well && output.contains("ok    cluster: ") && output.contains(&none(&before)), "{output}");
    assert!(!output.contains("more (") && output.contains("ok    confinement: "), "{output}");
    wait_for("the look for orphans", PATIENCE, || bed.log().contains("orphans=0")).unwrap();
    bed.stop_operator();

    bed.set_env("HTC_WATCH_NAMESPACE", &here.name);
    bed.start_operator();
    wait_for("the look for orphans", PATIENCE, || bed.log().contains("elsewhere=1")).unwrap();
    assert!(!bed.log().contains("orphans="), "{}", bed.log());
    for name in ["stray", "stays"] {
        here.create(&htcjob(name, UNTIL_LET_GO));
    }
    let stray = ids(&here.wait_phase("stray", "Running")).remove(0);
    here.wait_phase("stays", "Running");
    let more = format!("; 1 more ({earlier}) are not of the watched namespace {}", here.name);
    let (well, output) = bed.check();
    assert!(well && output.contains(&none(&here)) && output.contains(&more), "{output}");

    bed.kill_operator();
    here.force_away("stray");
    let (well, output) = bed.check();
    let wrong = format!("WRONG orphans: 1 jobs of namespace {} in HTCondor belong to no HTCJob: {stray};", here.name);
    assert!(!well && output.contains(&wrong) && output.contains(&more), "{output}");
    bed.start_operator();
    wait_for("the orphan to be named", PATIENCE, || {
        bed.log().lines().any(|line| line.contains("orphans=1") && line.contains(&format!("ids={stray}")))
    })
    .unwrap();
    here.let_go("stays");
    assert_eq!(before.get("earlier")["status"]["phase"], "Running");
}

/// HTCondor's tools would act as another account than the submitting one, and their errors would look like an
/// unreachable schedd.
#[test]
fn operator_refuses_to_run_as_root() {
    for command in ["run", "check", "adopt", "orphans"] {
        let mut root = Command::new("unshare");
        root.args(["--map-root-user", env!("CARGO_BIN_EXE_htc-operator"), command, "--schedd", "s"]);
        let ended = tool::run("running as root", &mut root, "", PATIENCE).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert!(ended.stderr.starts_with("htc-operator: it does not run as root"), "{ended:?}");
    }
}
