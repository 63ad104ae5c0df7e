//! Many HTCJobs, one after another and at once: each is submitted exactly once. The first htc-operator fails both.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use bed::dice::Dice;
use bed::gates::Gates;
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, htcjob, is_true};
use serde_json::{Value, json};
use testbed::{PoolOptions, Version, wait_for};

const MANY: usize = 50;

fn each_is_submitted_once(version: Version) {
    let gates = Gates::new(version);
    let bed = Bed::new(version, &PoolOptions::default(), &[LONG_SUBMISSIONS, &[&gates.argument()]].concat());
    bed.start_operator();

    let here = bed.namespace();
    let mut dice = Dice::new(&format!("{MANY} HTCJobs one after another, {version}"));
    let began = Instant::now();
    for number in 0..MANY {
        let next = Instant::now() + dice.milliseconds(0, 1000);
        bed.apply(&object(&here, number));
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    println!("  created within {:.1} s", began.elapsed().as_secs_f64());
    wait_ids(&here, MANY);
    report(version, MANY, "one after another", began.elapsed(), gates.calls("condor_submit"));
    assert_each_once(&here);

    let before = gates.calls("condor_submit");
    let here = bed.namespace();
    let items: Vec<Value> = (0..MANY).map(|number| object(&here, number)).collect();
    let began = Instant::now();
    bed.apply_all(&items);
    println!("  created within {:.1} s", began.elapsed().as_secs_f64());
    wait_ids(&here, MANY);
    let commands = gates.calls("condor_submit") - before;
    report(version, MANY, "at once", began.elapsed(), commands);
    assert_each_once(&here);
    assert!(commands < MANY / 2, "what waits goes together: {commands} condor_submit for {MANY} HTCJobs");
}

fn wait_ids(here: &Namespace<'_>, count: usize) {
    wait_for("ids in all statuses", PATIENCE, || {
        let have = here.all().iter().filter(|object| object["status"]["clusterid"].is_string()).count();
        if have == count { Ok(()) } else { Err(format!("{have} of {count}")) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", here.bed.logs()));
}

fn object(here: &Namespace<'_>, number: usize) -> Value {
    let mut object = htcjob(&format!("j{number}"), "true");
    object["metadata"]["namespace"] = here.name.clone().into();
    object
}

#[allow(clippy::cast_precision_loss, reason = "fifty at most")]
fn report(version: Version, count: usize, how: &str, took: Duration, commands: usize) {
    let rate = count as f64 / took.as_secs_f64();
    println!("{version}, {count} HTCJobs {how}: {rate:.1} HTCJobs/s until all ids stand, {commands} condor_submit");
}

fn assert_each_once(here: &Namespace<'_>) {
    wait_for("the end of all", PATIENCE, || here.all().iter().all(|object| is_true(object, "Complete")))
        .unwrap_or_else(|error| panic!("{error}\n{}", here.bed.logs()));
    let mut clusters = BTreeSet::new();
    for object in here.all() {
        let name = object["metadata"]["name"].as_str().unwrap();
        let uid = object["metadata"]["uid"].as_str().unwrap();
        assert_eq!(object["status"]["attempt"], 1, "{object:#}");
        assert_eq!(object["status"]["succeeded"], 1, "{object:#}");
        here.wait_nothing_left(uid);
        let all = here.bed.jobs_of(uid);
        assert_eq!(all.len(), 1, "{name}: {all:#?}");
        let seen = here.bed.assert_once(uid, name, 1);
        assert_eq!(object["status"]["jobid"], json!([seen[0].id]));
        assert_eq!(seen[0].starts, 1, "{seen:?}");
        clusters.insert(object["status"]["clusterid"].as_str().unwrap().to_owned());
    }
    println!("  {} clusters", clusters.len());
}

#[test]
#[ignore = "make test-long: a hundred containers"]
fn many_htcjobs_are_submitted_once_each_on_trixie() {
    each_is_submitted_once(Version::Trixie);
}

#[test]
#[ignore = "make test-long: a hundred containers"]
fn many_htcjobs_are_submitted_once_each_on_sid() {
    each_is_submitted_once(Version::Sid);
}
