//! Two pools side by side.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use testbed::{Pool, PoolOptions, Version, wait_for};

use bed::site::Site;
use bed::{LONG_SUBMISSIONS, Namespace, PATIENCE, is_true};

use super::site::{Pools, delete, describe, other, wait_ready, with_pool};

on_versions! {
    sid: equal_job_ids_in_two_pools_are_not_confused, hanging_pool_delays_no_other_pool;
    long: swapped_schedds_lose_no_job, many_htcjobs_run_each_in_their_own_pool;
}

/// Both pools have jobs 1.0 and 2.0, of HTCJobs of one operator, which is killed while they run.
fn equal_job_ids_in_two_pools_are_not_confused(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    for name in ["first-doomed", "first"] {
        pools.site.start_lasting(&here, &[name]);
    }
    pools.start_lasting(&here, &["doomed", "stays"]);
    wait_ready(&here, "second", "Answering");
    let [first, doomed, stays] = ["first", "doomed", "stays"].map(|name| here.uid(name));
    assert_eq!(here.get("doomed")["status"]["jobid"], here.get("first-doomed")["status"]["jobid"], "the ids are equal");
    assert_eq!((pools.in_first(&doomed), pools.in_first(&stays)), (0, 0));

    bed.kill_operator();
    bed.start_operator();
    for name in ["doomed", "first"] {
        here.delete(name);
    }
    assert!(pools.queue(&doomed).is_empty() && pools.queue(&stays).len() == 1);
    assert!(bed.queue(&bed::of(&first), &["ClusterId"]).is_empty());
    for name in ["first-doomed", "stays"] {
        assert_eq!(here.get(name)["status"]["phase"], "Running", "{name}");
        pools.site.finish(name);
        here.wait_ended(name);
        assert!(here.output(name, 0).join("out").exists());
        pools.ends_well(&here, name);
    }
    delete(&here, "second");
}

/// The schedd of one pool is stopped: HTCJobs of the other pool run and can be deleted.
fn hanging_pool_delays_no_other_pool(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.start_lasting(&here, &["waits"]);
    wait_ready(&here, "second", "Answering");
    pools.second.pause_schedd().unwrap();
    for number in 0..3 {
        here.create(&pools.noted(&format!("late-{number}"), 1, "second"));
    }
    let message = wait_ready(&here, "second", "ScheddUnreachable");
    assert!(message.contains("does not answer"), "{message}");
    let names: Vec<String> = (0..5).map(|number| format!("here-{number}")).collect();
    for name in &names {
        here.create(&pools.site.noted(name, 1, ""));
    }
    for name in &names {
        pools.ends_well(&here, name);
    }
    assert_eq!(here.get("waits")["status"]["phase"], "Running");
    pools.second.resume_schedd().unwrap();
    wait_ready(&here, "second", "Answering");
    pools.site.finish("waits");
    for name in ["waits", "late-0", "late-1", "late-2"] {
        pools.ends_well(&here, name);
    }
    delete(&here, "second");
}

/// The schedds of two pools are exchanged, with equal job ids: one pool finds a younger schedd, the other an older one.
/// No job is lost, removed or released until both are back.
fn swapped_schedds_lose_no_job(version: Version) {
    let site = Site::with(version, "", &["--credentials-refresh=2s", "--birthdate-steady=1s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let start = |name: &str, version: Version| {
        let pool = Pool::start(&site.bed.assets, version, &PoolOptions::default()).unwrap();
        pool.set_start(false).unwrap();
        describe(&here, name, &pool, &[]);
        pool
    };
    let pools = [("older", start("older", version)), ("newer", start("newer", other(version)))];
    for (name, _) in &pools {
        wait_ready(&here, name, "Answering");
        for job in ["stays", "doomed"] {
            let job = format!("{name}-{job}");
            here.create(&with_pool(site.noted(&job, 1, ""), name));
            here.wait(&job, "it is idle", |object| object["status"]["idle"] == 1);
        }
    }
    let born = |pool: &Pool| -> i64 {
        let message = pool.tool("condor_status", &["-schedd", "-af", "JobQueueBirthdate"]).unwrap();
        message.trim().parse().unwrap()
    };
    assert!(born(&pools[0].1) < born(&pools[1].1));
    let ids = ["older", "newer"].map(|name| here.get(&format!("{name}-doomed"))["status"]["jobid"].clone());
    assert_eq!(ids[0], ids[1]);

    pools[0].1.exchange_addresses(&pools[1].1).unwrap();
    for (name, _) in &pools {
        here.wait_says(&format!("{name}-stays"), "Tracked", "False", "AnotherSchedd");
        here.begin_delete(&format!("{name}-doomed"));
        here.wait_says(&format!("{name}-doomed"), "JobsRemoved", "False", "AnotherSchedd");
    }
    site.bed.kill_operator();
    site.bed.start_operator();
    for (name, _) in &pools {
        here.create(&with_pool(site.noted(&format!("{name}-late"), 1, ""), name));
        here.wait(&format!("{name}-late"), "it is idle", |object| object["status"]["idle"] == 1);
    }
    for (name, pool) in &pools {
        let stays = here.get(&format!("{name}-stays"));
        assert_eq!(
            (&stays["status"]["phase"], &stays["status"]["failed"]),
            (&"Submitted".into(), &0.into()),
            "{stays:#}"
        );
        here.wait_says(&format!("{name}-doomed"), "JobsRemoved", "False", "AnotherSchedd");
        let idle =
            pool.tool("condor_q", &["-allusers", "-constraint", "JobStatus == 1", "-af:j", "HTCJobUID"]).unwrap();
        assert_eq!(idle.lines().count(), 3, "{idle}");
    }
    for (name, _) in &pools {
        // Who is there now takes it away again.
        here.delete(&format!("{name}-late"));
    }

    pools[0].1.exchange_addresses(&pools[1].1).unwrap();
    for (name, pool) in &pools {
        here.wait_gone(&format!("{name}-doomed"));
        pool.set_start(true).unwrap();
        let stays = format!("{name}-stays");
        let ended = here.wait_ended(&stays);
        assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", site.bed.logs());
        assert_eq!(site.runs(&stays, 0), 1);
        here.delete(&stays);
        delete(&here, name);
    }
    assert_eq!(site.all_runs().len(), 2);
}

/// A few HTCPools and HTCJobs.
fn many_htcjobs_run_each_in_their_own_pool(version: Version) {
    in_pools(version, 3, 45);
}

/// So many HTCPools, a schedd each, and so many HTCJobs, spread over them: each HTCJob has its jobs in its own schedd and in no other. The
/// schedd of the first one is stopped meanwhile: its HTCJobs wait, and no others.
pub fn in_pools(version: Version, pools: usize, htcjobs: usize) {
    bed::turns::take(bed::Weight::Heavy);
    let site = Site::with(version, "", &[&["--credentials-refresh=2s"], LONG_SUBMISSIONS].concat());
    site.bed.start_operator();
    let here = site.bed.namespace();
    let of = |number: usize| format!("pool-{number}");
    let start = |number: usize| {
        let version = if number.is_multiple_of(2) { version } else { other(version) };
        let pool = Pool::start(&site.bed.assets, version, &PoolOptions::default()).unwrap();
        describe(&here, &of(number), &pool, &[]);
        pool
    };
    let schedds: Vec<Pool> = (0..pools).map(start).collect();
    (0..pools).for_each(|number| drop(wait_ready(&here, &of(number), "Answering")));
    schedds[0].pause_schedd().unwrap();
    wait_ready(&here, &of(0), "ScheddUnreachable");

    let item = |number: usize| {
        let mut object = with_pool(site.noted(&format!("j{number}"), 1, ""), &of(number % pools));
        object["metadata"]["namespace"] = here.name.clone().into();
        object
    };
    let all: Vec<Value> = (0..htcjobs).map(item).collect();
    here.bed.apply_all(&all);
    let patience = PATIENCE + Duration::from_secs(htcjobs as u64);
    let in_first = |object: &Value| object["spec"]["pool"] == of(0);
    wait_complete(&here, patience, |object| !in_first(object));
    for object in here.all().iter().filter(|object| in_first(object)) {
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(!is_true(object, "Complete") && site.runs(name, 0) == 0, "{object:#}");
    }

    schedds[0].resume_schedd().unwrap();
    wait_complete(&here, patience, |_| true);
    let objects = here.all();
    assert_eq!(objects.len(), htcjobs);
    for (number, schedd) in schedds.iter().enumerate() {
        let its = objects.iter().filter(|object| object["spec"]["pool"] == of(number));
        let its: BTreeSet<&str> = its.map(|object| object["metadata"]["uid"].as_str().unwrap()).collect();
        let queue = schedd.tool("condor_q", &["-allusers", "-af:j", "HTCJobUID"]).unwrap();
        let history = schedd.tool("condor_history", &["-af:j", "HTCJobUID"]).unwrap();
        // A job that leaves the queue meanwhile is in both.
        let jobs: BTreeSet<(&str, &str)> =
            queue.lines().chain(history.lines()).filter_map(|line| line.trim().split_once(' ')).collect();
        assert_eq!(jobs.len(), its.len(), "{}: {jobs:?}", of(number));
        assert_eq!(jobs.iter().map(|(_, uid)| *uid).collect::<BTreeSet<&str>>(), its);
    }
    let runs = site.all_runs();
    assert!(runs.len() == htcjobs && runs.values().all(|count| *count == 1), "{runs:?}");
    // One request: kubectl would delete them one by one.
    here.kubectl(&["delete", "--raw", &format!("/apis/htc.cern.ch/v1alpha1/namespaces/{}/htcjobs", here.name)]);
    wait_for("all HTCJobs to be gone", patience, || {
        let left = here.all().len();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", here.bed.logs()));
    (0..pools).for_each(|number| delete(&here, &of(number)));
}

fn wait_complete(here: &Namespace<'_>, patience: Duration, which: impl Fn(&Value) -> bool) {
    wait_for("HTCJobs to be complete", patience, || {
        let objects = here.all();
        let left = objects.iter().filter(|object| which(object) && !is_true(object, "Complete"));
        let left: Vec<String> = left.map(|object| object["metadata"]["name"].to_string()).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{} are not: {}", left.len(), left[..left.len().min(9)].join(" ")))
        }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", here.bed.logs()));
}
