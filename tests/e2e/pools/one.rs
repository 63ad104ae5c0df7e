//! The life of one `HTCPool`.

use bed::Namespace;
use bed::site::Site;
use testbed::Version;

use super::site::{Pools, apply, delete, describe, wait_events, wait_gone, wait_ready, wait_ready_says, with_pool};

fn wait_says(here: &Namespace<'_>, name: &str, reason: &str) -> String {
    here.wait_says(name, "Submitted", "False", reason)
}

/// The pool is not there, not for this namespace, and then it is: nothing is lost meanwhile.
pub fn what_is_missing_is_said_and_waited_for(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let (here, there) = (bed.namespace(), bed.namespace());
    let pool = format!("{}/second", there.name);
    for name in ["waits", "doomed"] {
        here.create(&pools.noted(name, 2, &pool));
    }
    let message = wait_says(&here, "waits", "PoolNotFound");
    assert!(message.contains(&pool), "{message}");
    here.delete("doomed");

    pools.describe(&there, "second", &[]);
    wait_ready(&there, "second", "Answering");
    let message = wait_says(&here, "waits", "PoolNotAllowed");
    assert!(message.contains("allowedNamespaces"), "{message}");
    let allowed = format!(r#"{{"spec":{{"allowedNamespaces":["{}"]}}}}"#, here.name);
    there.kubectl(&["patch", "htcpool", "second", "--type=merge", "-p", &allowed]);
    let mut own = pools.noted("own", 1, &pool);
    own["spec"]["miniCluster"] = serde_json::json!({ "size": 1 });
    here.create(&own);
    let message = wait_says(&here, "own", "NoWorkerFits");
    assert!(message.contains("name a managed pool"), "{message}");
    here.delete("own");
    pools.ends_well(&here, "waits");
    assert_eq!(pools.site.runs("waits", 1), 1);
    wait_events(&there, "second", &["Answering"]);
    let (well, said) = bed.check();
    assert!(well && said.contains("ok    pools: the operator has found all HTCPools ready (1)"), "{said}");
    delete(&there, "second");
}

/// What runs there is not left alone by who deletes the pool.
pub fn it_stays_until_no_htcjob_needs_it(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.start_lasting(&here, &["runs"]);
    let uid = here.uid("runs");
    here.kubectl(&["delete", "htcpool", "second", "--wait=false"]);
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

/// The operator's own schedd once more: HTCJobs that name it wait, and the message says which one to use.
pub fn the_same_schedd_is_no_second_pool(version: Version) {
    let site = Site::start(version);
    let bed = &site.bed;
    let here = bed.namespace();
    describe(&here, "again", &bed.pool, &[]);
    let message = wait_ready(&here, "again", "SameSchedd");
    assert!(message.contains("HTCJobs without spec.pool"), "{message}");
    wait_events(&here, "again", &["SameSchedd"]);
    let (well, said) = bed.check();
    assert!(!well && said.contains(&format!("HTCPool {}/again: SameSchedd: ", here.name)), "{said}");
    here.create(&with_pool(site.noted("waits", 1, ""), "again"));
    let message = wait_says(&here, "waits", "PoolNotReady");
    assert!(message.contains(bed.pool.schedd_name()), "{message}");
    here.delete("waits");
    delete(&here, "again");
}

/// The schedd comes back without its queue, as another one would: its jobs are not lost for that, and not let go.
pub fn a_queue_that_is_lost_is_not_taken_for_jobs_that_are_gone(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.start_lasting(&here, &["runs"]);
    pools.second.reset_queue().unwrap();
    here.wait_says("runs", "Tracked", "False", "AnotherSchedd");
    assert_eq!(here.get("runs")["status"]["phase"], "Running");
    assert_eq!(here.get("runs")["status"]["failed"], 0);
    here.kubectl(&["annotate", "htcjob", "runs", "htc.cern.ch/abandon=true"]);
    here.delete("runs");
    delete(&here, "second");
}

/// Somebody takes its finalizer away, deletes it, and makes another one of its name, with a schedd of the same name.
pub fn another_pool_of_its_name_is_not_taken_for_it(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.start_lasting(&here, &["runs", "abandoned"]);
    let take_away = || {
        here.kubectl(&["delete", "htcpool", "second", "--wait=false"]);
        here.kubectl(&["patch", "htcpool", "second", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    };
    take_away();
    here.wait_says("runs", "Tracked", "False", "PoolNotFound");
    // It is not known to be empty; but an administrator may know that it is.
    here.kubectl(&["delete", "htcjob", "abandoned", "--wait=false"]);
    here.wait_says("abandoned", "JobsRemoved", "False", "PoolNotFound");
    here.kubectl(&["annotate", "htcjob", "abandoned", "htc.cern.ch/abandon=true"]);
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
