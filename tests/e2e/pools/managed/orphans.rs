//! Jobs in a managed pool whose `HTCJob` is gone, and `htc-operator check` for such pools.

use bed::{Namespace, PATIENCE, http, ids};
use testbed::{Port, Version, wait_for};

use super::super::site::{delete, wait_ready, with_pool};
use super::node::Node;
use super::{Cluster, POOL, apply, fixed, lasting, pool};

on_versions! {
    trixie: orphans_are_named_and_removed_as_the_users_of_their_namespaces;
}

/// What a table has after the ids, line by line; the ids are in the order in which the jobs were submitted.
fn rows(said: &str, pool: &str) -> Vec<String> {
    let rows = said.lines().filter(|line| line.starts_with(pool));
    let mut rows: Vec<String> =
        rows.map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")).collect();
    rows.sort_unstable();
    rows
}

/// They are counted and named, though the ledger is lost, and removed as their namespaces when a person says so, and only then.
fn orphans_are_named_and_removed_as_the_users_of_their_namespaces(version: Version) {
    let cluster = Cluster::without_operator(version, true, &[]);
    let bed = &cluster.bed;
    let monitor = Port::reserve().unwrap();
    bed.set_env("HTC_METRICS_BIND_ADDRESS", &format!("127.0.0.1:{}", monitor.number));
    let (here, guest) = (cluster.namespace(), cluster.closed_namespace());
    bed.start_operator();
    let place = format!("{}/{POOL}", here.name);
    Node::run(bed, &here.name, version, |_| {
        let mut open = pool(&fixed(0));
        open["spec"]["allowedNamespaces"] = serde_json::json!([here.name, guest.name]);
        apply(&here, open);
        wait_ready(&here, POOL, "Answering");
        for name in ["left", "stays"] {
            here.create(&lasting(name));
        }
        guest.create(&with_pool(lasting("guests"), &place));
        for (namespace, name) in [(&here, "left"), (&here, "stays"), (&guest, "guests")] {
            namespace.wait_phase(name, "Submitted");
        }
        let (well, output) = bed.check();
        let token = format!("ok    namespaces in pool {place}: the schedd takes the operator's token");
        for line in [
            format!("ok    pool {place}: schedd@own.{}.htcpool answers; authenticated as operator@", here.name),
            format!("ok    rights for pool {place}: "),
            format!("ok    signing key of pool {place}: "),
            format!("{token} for namespace {0}, which is ns-{0}@own.{0}.htcpool there", here.name),
            format!("ok    orphans in pool {place}: none: "),
        ] {
            assert!(well && output.contains(&line), "{line}\n{output}");
        }

        let orphans = [ids(&here.get("left")).remove(0), ids(&guest.get("guests")).remove(0)];
        bed.kill_operator();
        here.force_away("left");
        guest.force_away("guests");
        // Who restores etcd may have no ledger either.
        bed.lose_ledger();
        let (well, output) = bed.check();
        let wrong = format!("WRONG orphans in pool {place}: 2 jobs in HTCondor belong to no HTCJob: ");
        let line = output.lines().find(|line| line.starts_with(&wrong)).unwrap_or_else(|| panic!("{output}"));
        assert!(!well && line.contains("orphans --remove"), "{line}");
        bed.start_operator();
        wait_for("the orphans to be counted", PATIENCE, || {
            bed.log().lines().any(|line| line.contains("orphans=2") && line.contains(&place))
        })
        .unwrap();
        let counted = format!("htc_orphans{{pool=\"{place}\"}} 2");
        wait_for("the orphans to be measured", PATIENCE, || {
            let text = http::get(([127, 0, 0, 1], monitor.number).into(), "/metrics").unwrap().body;
            text.lines().any(|line| line == counted)
        })
        .unwrap();

        let listed = |removed: &str| {
            let row = |namespace: &Namespace<'_>, name: &str| {
                let namespace = &namespace.name;
                format!("{namespace} {name} Idle ns-{namespace}@own.{}.htcpool{removed}", here.name)
            };
            [row(&here, "left"), row(&guest, "guests")]
        };
        let (well, output) = bed.orphans(&["--pool", &place]);
        assert!(well && orphans.iter().all(|id| output.contains(&format!("   {id} "))), "{output}");
        assert_eq!(rows(&output, &place), sorted(listed("")), "{output}");

        // What the API server does not say is not known: nothing is removed.
        bed.may_list(false);
        let (well, output) = bed.orphans(&["--pool", &place, "--remove"]);
        assert!(!well && output.contains("cannot list HTCJobs") && rows(&output, &place).is_empty(), "{output}");
        bed.may_list(true);

        let (well, output) = bed.orphans(&["--remove"]);
        assert!(well, "{output}");
        assert_eq!(rows(&output, &place), sorted(listed(" yes")), "nothing was removed before\n{output}");
        let (well, output) = bed.orphans(&["--pool", &place, "--remove"]);
        assert!(well && output.contains(&format!("No orphans in: {place}\n")), "{output}");
        assert_eq!(here.get("stays")["status"]["phase"], "Submitted");
        let (well, output) = bed.check();
        assert!(well && output.contains(&format!("ok    orphans in pool {place}: none: ")), "{output}");
        here.delete("stays");
        doubts_are_the_pools_own(&here, &guest);
        delete(&here, POOL);
        delete(&guest, POOL);
    });
}

fn sorted(mut rows: [String; 2]) -> [String; 2] {
    rows.sort_unstable();
    rows
}

/// One lacks its key, and one its rights: each says so, and hides nothing of the other.
fn doubts_are_the_pools_own(here: &Namespace<'_>, guest: &Namespace<'_>) {
    apply(guest, pool(&fixed(0)));
    wait_ready(guest, POOL, "NotPermitted");
    let (_, output) = here.bed.check();
    let (place, other) = (format!("{}/{POOL}", here.name), format!("{}/{POOL}", guest.name));
    let missing =
        format!("delete pods in namespace {0}: kubectl apply --namespace {0} -k deploy/namespace-pools", guest.name);
    let rights = output.lines().find(|line| line.starts_with(&format!("WRONG rights for pool {other}: "))).unwrap();
    assert!(rights.contains("the operator may not get configmaps, ") && rights.ends_with(&missing), "{rights}");
    for line in [
        format!("WRONG signing key of pool {other}: "),
        format!("WRONG pool {other}: "),
        format!("ok    pool {place}: "),
        format!("ok    namespaces in pool {place}: "),
    ] {
        assert!(output.contains(&line), "{line}\n{output}");
    }
    let secret = here.kubectl(&["get", "secret", "own-signing-key", "-o", "json"]);
    here.remove("secret", "own-signing-key");
    let (_, output) = here.bed.check();
    for line in [
        format!("WRONG signing key of pool {place}: the Secret own-signing-key is gone"),
        // The schedd accepts it still.
        format!("ok    namespaces in pool {place}: "),
        format!("ok    pool {place}: "),
    ] {
        assert!(output.contains(&line), "{line}\n{output}");
    }
    here.bed.kube.apply_stdin(&secret).unwrap();
}
