//! The life of one `HTCPool`.

use bed::site::Site;
use bed::{Namespace, PATIENCE, http, is_true};
use testbed::{Pool, PoolOptions, Port, Version, wait_for};

use super::site::{
    Pools, apply, delete, describe, other, wait_events, wait_gone, wait_ready, wait_ready_says, with_pool,
};

on_versions! {
    trixie: deleted_pool_stays_while_htcjobs_use_it, recreated_pool_of_the_same_name_is_another_pool;
    sid:
        schedd_of_the_operator_is_no_second_pool,
        operator_runs_without_a_schedd_of_its_own,
        lost_queue_of_a_pool_does_not_count_its_jobs_as_gone;
    long: schedd_of_an_older_pool_is_no_second_pool, missing_or_forbidden_pool_is_reported_and_awaited;
}

fn wait_says(here: &Namespace<'_>, name: &str, reason: &str) -> String {
    here.wait_says(name, "Submitted", "False", reason)
}

/// The pool is not there, not for this namespace, and then it is: nothing is lost meanwhile.
fn missing_or_forbidden_pool_is_reported_and_awaited(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let (here, there) = (bed.namespace(), bed.namespace());
    let pool = format!("{}/second", there.name);
    for name in ["waits", "doomed"] {
        here.create(&pools.noted(name, 2, &pool));
    }
    let message = wait_says(&here, "waits", "PoolNotFound");
    let ways = "spec.allowedNamespaces; or delete the HTCJob and create it again with another spec.pool";
    assert!(message.contains(&pool) && message.contains(ways), "{message}");
    there.create(&pools.noted("own", 1, "second"));
    let own = wait_says(&there, "own", "PoolNotFound");
    assert!(own.contains("create the HTCPool, or delete the HTCJob"), "{own}");
    there.delete("own");
    // What it does not say is refused.
    let other = r#"{"spec":{"pool":"another"}}"#;
    let refused = here.try_kubectl(&["patch", "htcjob", "waits", "--type=merge", "-p", other]).unwrap_err().to_string();
    assert!(refused.contains("the spec cannot be changed once the HTCJob exists"), "{refused}");
    here.delete("doomed");

    pools.describe(&there, "second", &[]);
    wait_ready(&there, "second", "Answering");
    // Who may not use it does not learn that it is there.
    here.create(&pools.noted("later", 1, &pool));
    assert_eq!(wait_says(&here, "later", "PoolNotFound"), message);
    here.delete("later");
    let allowed = serde_json::json!({ "spec": { "allowedNamespaces": [here.name] } });
    there.patch("htcpool", "second", &allowed);
    there.create(&pools.noted("own", 1, "second"));
    let own = wait_says(&there, "own", "PoolNotAllowed");
    assert!(own.contains("allowedNamespaces"), "{own}");
    there.delete("own");
    let mut own = pools.noted("own", 1, &pool);
    own["spec"]["miniCluster"] = serde_json::json!({ "size": 1 });
    here.create(&own);
    let message = wait_says(&here, "own", "NoWorkerFits");
    assert!(message.contains("with the spec.pool of a managed pool"), "{message}");
    here.delete("own");
    pools.ends_well(&here, "waits");
    assert_eq!(pools.site.runs("waits", 1), 1);
    wait_events(&there, "second", &["Answering"]);
    let (well, output) = bed.check();
    assert!(well && output.contains("ok    pools: the operator has found all HTCPools ready (1)"), "{output}");
    let schedd = pools.second.schedd_name();
    let answers = format!("ok    pool {pool}: {schedd} answers; authenticated as pools@test; ");
    assert!(output.contains(&answers) && output.contains(&format!("ok    orphans in pool {pool}: none: ")), "{output}");

    pools.second.set_start(false).unwrap();
    let uid = here.create(&pools.noted("left", 1, &pool));
    here.wait("left", "it is idle", |object| object["status"]["idle"] == 1);
    bed.stop_operator();
    here.force_away("left");
    let (well, output) = bed.check();
    let orphan = format!("WRONG orphans in pool {pool}: 1 jobs in HTCondor belong to no HTCJob: ");
    assert!(!well && output.contains(&orphan), "{output}");
    pools.second.pause_schedd().unwrap();
    let (_, output) = bed.check();
    let silent = output.lines().find(|line| line.contains(&format!(" pool {pool}: "))).unwrap();
    assert!(silent.starts_with("WRONG ") && silent.contains("does not answer"), "{output}");
    let (well, output) = bed.orphans(&["--remove"]);
    assert!(!well && output.contains("No orphans in: default\n") && output.contains("does not answer"), "{output}");
    pools.second.resume_schedd().unwrap();
    let (well, output) = bed.orphans(&["--pool", &format!("{}/none", here.name)]);
    assert!(!well && output.contains("this operator has no HTCPool"), "{output}");
    // Looking removes nothing.
    for arguments in [&["--pool", &pool][..], &["--pool", &pool, "--remove"]] {
        assert_eq!(pools.queue(&uid).len(), 1);
        let (well, output) = bed.orphans(arguments);
        let row = output.lines().find(|line| line.starts_with(&pool)).unwrap_or_else(|| panic!("{output}"));
        let cells: Vec<&str> = row.split_whitespace().skip(2).collect();
        let removed = if arguments.len() == 3 { " yes" } else { "" };
        assert_eq!(cells.join(" "), format!("{} left Idle pools@test{removed}", here.name));
        assert!(well, "{output}");
    }
    wait_for(
        "the orphan to be gone",
        PATIENCE,
        || if pools.queue(&uid).is_empty() { Ok(()) } else { Err("it is there") },
    )
    .unwrap();

    // In whose other names there may be jobs, only the ledger knows.
    bed.lose_ledger();
    let unknown = "only the operator's own jobs were checked: no ledger";
    let (_, output) = bed.check();
    let line = output.lines().find(|line| line.contains(&format!(" orphans in pool {pool}: "))).unwrap();
    assert!(line.contains(unknown), "{output}");
    let (well, output) = bed.orphans(&["--pool", &pool]);
    assert!(well && output.contains(&format!("pool {pool}: {unknown}")), "{output}");
}

/// The finalizer of the HTCPool stays while HTCJobs use the pool.
fn deleted_pool_stays_while_htcjobs_use_it(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.start_lasting(&here, &["runs"]);
    let uid = here.uid("runs");
    here.begin_remove("htcpool", "second");
    let message = wait_ready(&here, "second", "InUse");
    assert!(message.starts_with("1 HTCJob uses this pool"), "{message}");
    here.create(&pools.noted("late", 1, "second"));
    wait_says(&here, "late", "PoolNotReady");
    wait_ready_says(&here, "second", "InUse", "2 HTCJobs use this pool");
    bed.kill_operator();
    bed.start_operator();
    here.delete("late");
    // Once, however often it is looked at.
    wait_events(&here, "second", &["Answering", "InUse"]);
    here.delete("runs");
    assert!(pools.queue(&uid).is_empty());
    wait_gone(&here, "second");
}

/// HTCJobs that name a pool with the operator's own schedd wait, and the message says which pool to use.
fn schedd_of_the_operator_is_no_second_pool(version: Version) {
    let site = Site::start(version);
    let bed = &site.bed;
    let here = bed.namespace();
    describe(&here, "again", &bed.pool, &[]);
    let message = wait_ready(&here, "again", "SameSchedd");
    assert!(message.contains("HTCJobs without spec.pool"), "{message}");
    wait_events(&here, "again", &["SameSchedd"]);
    let (well, output) = bed.check();
    assert!(!well && output.contains(&format!("HTCPool {}/again: SameSchedd: ", here.name)), "{output}");
    here.create(&with_pool(site.noted("waits", 1, ""), "again"));
    let message = wait_says(&here, "waits", "PoolNotReady");
    assert!(message.contains(bed.pool.schedd_name()), "{message}");
    here.delete("waits");
    delete(&here, "again");
}

/// Of two HTCPools with one schedd the older one owns it, before and after a restart of the operator, while it exists.
fn schedd_of_an_older_pool_is_no_second_pool(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.describe(&here, "first", &[]);
    wait_ready(&here, "first", "Answering");
    pools.describe(&here, "second", &[]);
    let same = format!("HTCPool {}/first is the same schedd", here.name);
    wait_ready_says(&here, "second", "SameSchedd", &same);
    let uid = here.create(&pools.noted("waits", 1, "second"));
    let message = wait_says(&here, "waits", "PoolNotReady");
    assert!(message.contains(&same), "{message}");
    here.create(&pools.noted("runs", 1, "first"));
    pools.ends_well(&here, "runs");

    bed.kill_operator();
    bed.start_operator();
    here.create(&pools.noted("again", 1, "first"));
    pools.ends_well(&here, "again");
    let message = wait_says(&here, "waits", "PoolNotReady");
    assert!(message.contains(&same), "{message}");
    assert!(pools.queue(&uid).is_empty() && pools.site.runs("waits", 0) == 0);
    // It is told once.
    wait_events(&here, "second", &["SameSchedd"]);
    wait_events(&here, "first", &["Answering"]);

    delete(&here, "first");
    wait_ready(&here, "second", "Answering");
    pools.ends_well(&here, "waits");
    delete(&here, "second");
}

/// The schedd comes back without its queue, as if it were another one: its jobs are neither lost nor released.
fn lost_queue_of_a_pool_does_not_count_its_jobs_as_gone(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.start_lasting(&here, &["runs"]);
    pools.second.reset_queue().unwrap();
    here.wait_says("runs", "Tracked", "False", "AnotherSchedd");
    assert_eq!(here.get("runs")["status"]["phase"], "Running");
    assert_eq!(here.get("runs")["status"]["failed"], 0);
    here.annotate("runs", "htc.cern.ch/abandon");
    here.delete("runs");
    delete(&here, "second");
}

/// A user removes the finalizer of the HTCPool, deletes it, and creates another one of the same name, with a schedd of
/// the same name.
fn recreated_pool_of_the_same_name_is_another_pool(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.start_lasting(&here, &["runs", "abandoned"]);
    let take_away = || {
        here.begin_remove("htcpool", "second");
        here.patch("htcpool", "second", &serde_json::json!({ "metadata": { "finalizers": null } }));
    };
    take_away();
    here.wait_says("runs", "Tracked", "False", "PoolNotFound");
    // It is not known to be empty; but an administrator may know that it is.
    here.begin_delete("abandoned");
    here.wait_says("abandoned", "JobsRemoved", "False", "PoolNotFound");
    here.annotate("abandoned", "htc.cern.ch/abandon");
    here.wait_gone("abandoned");
    assert_eq!(bed.pool.schedd_name(), pools.second.schedd_name());
    apply(&here, "second", &bed.pool, "second-token", &[]);
    let message = wait_ready(&here, "second", "AnotherPool");
    assert!(message.contains(&pools.second.address()), "{message}");
    bed.kill_operator();
    bed.start_operator();
    here.create(&pools.noted("late", 1, "second"));
    wait_says(&here, "late", "PoolNotFound");
    let runs = here.get("runs");
    assert_eq!((&runs["status"]["phase"], &runs["status"]["failed"]), (&"Running".into(), &0.into()), "{runs:#}");

    take_away();
    apply(&here, "second", &pools.second, "second-token", &[]);
    pools.site.finish("runs");
    for name in ["runs", "late"] {
        pools.ends_well(&here, name);
    }
    delete(&here, "second");
}

/// Without `--schedd`, HTCJobs run in pools, and HTCJobs without a pool report that they need one.
fn operator_runs_without_a_schedd_of_its_own(version: Version) {
    let site = Site::with(version, "", &["--credentials-refresh=2s"]);
    let monitor = Port::reserve().unwrap();
    site.bed.set_env("HTC_SCHEDD", "");
    site.bed.set_env("HTC_METRICS_BIND_ADDRESS", &format!("127.0.0.1:{}", monitor.number));
    site.bed.start_operator();
    let here = site.bed.namespace();
    let series = || -> Vec<String> {
        let text = http::get(([127, 0, 0, 1], monitor.number).into(), "/metrics").unwrap().body;
        let label = format!("pool=\"{}/only\"", here.name);
        text.lines().filter(|line| line.contains(&label)).map(str::to_owned).collect()
    };
    let pool = Pool::start(&site.bed.assets, other(version), &PoolOptions::default()).unwrap();
    here.create(&site.noted("nowhere", 1, ""));
    let message = wait_says(&here, "nowhere", "PoolNotFound");
    assert!(message.contains("create it with spec.pool"), "{message}");
    describe(&here, "only", &pool, &[]);
    here.create(&with_pool(site.lasting("runs", 1), "only"));
    // Some come with the first look at all jobs, and there is none once they have ended.
    for name in ["htc_credentials_failing", "htc_tracker_age_seconds", "htc_orphans", "htc_unreadable_ads"] {
        wait_for(name, PATIENCE, || {
            let measured = series();
            if measured.iter().any(|line| line.starts_with(name)) { Ok(()) } else { Err(format!("{measured:?}")) }
        })
        .unwrap();
    }
    site.finish("runs");
    let ended = here.wait_ended("runs");
    assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", site.bed.logs());
    let (well, output) = site.bed.check();
    assert!(well && output.contains("ok    schedd: none (--schedd): ") && !output.contains("orphans: "), "{output}");
    assert!(output.contains(&format!("ok    pool {}/only: ", here.name)), "{output}");
    for name in ["runs", "nowhere"] {
        here.delete(name);
    }
    delete(&here, "only");
    wait_for("nothing to be measured of the pool", PATIENCE, || {
        let left = series();
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    })
    .unwrap();
}
