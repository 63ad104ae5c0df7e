//! `condor_submit` is killed, outlives its operator, and lands late.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use testbed::{Version, wait_for};

use bed::dice::Dice;
use bed::signals::{Unlimited, signal};
use bed::site::Site;
use bed::{Bed, PATIENCE};

on_versions! {
    trixie: jobs_landing_late_run_no_payload;
    sid: condor_submit_that_outlives_the_operator_is_waited_for, condor_submit_killed_from_outside_runs_each_job_once;
}

/// The submit limit of a bed's operator, and how much later the submitter counts as dead.
const LIMIT: Duration = Duration::from_secs(10 + 5);

fn condor_submit_killed_from_outside_runs_each_job_once(version: Version) {
    // Without gates: the moments of the real tool matter.
    let bed = Bed::start(version);
    let here = bed.namespace();
    let mut dice = Dice::new(&format!("condor_submit killed, {version}"));
    let mut uids = Vec::new();
    let mut caught = 0;
    for number in 0..8 {
        let name = format!("s{number}");
        let object = bed::htcjob(&name, "echo ran");
        let known = condor_submits(&bed);
        uids.push((name.clone(), here.create(&object)));
        if let Some(pid) = catch(&bed, &known) {
            caught += 1;
            std::thread::sleep(dice.milliseconds(0, 15));
            signal(pid, Signal::KILL);
        }
    }
    let mut again = 0;
    for (name, uid) in &uids {
        let ended = here.wait_ended(name);
        assert_eq!(ended["status"]["succeeded"], 1, "{ended:#}\n{}", bed.logs());
        here.wait_nothing_left(uid);
        let seen = bed.assert_once(uid, name, 1);
        assert_eq!(seen[0].starts, 1, "{seen:?}");
        assert_eq!(fs::read_to_string(here.output(name, 0).join("out")).unwrap(), "ran\n");
        again += u32::from(ended["status"]["attempt"] != 1);
    }
    println!("{version}: of {} submitters {caught} were killed, {again} HTCJobs were submitted again", uids.len());
    assert!(caught > 0, "no submitter was killed");
}

/// Waits for a new `condor_submit`. It lives for some 30 ms: one that is not seen has done its work.
fn catch(bed: &Bed, known: &[u32]) -> Option<u32> {
    let began = std::time::Instant::now();
    while began.elapsed() < LIMIT {
        if let Some(pid) = condor_submits(bed).into_iter().find(|pid| !known.contains(pid)) {
            return Some(pid);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}

/// `condor_submit`s that the operator runs, each under a `timeout`.
fn condor_submits(bed: &Bed) -> Vec<u32> {
    let named =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "condor_submit");
    children(bed.operator_pid()).into_iter().flat_map(children).filter(named).collect()
}

fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The operator is killed. The next one waits for its condor_submit, and accepts jobs that are submitted in time.
fn condor_submit_that_outlives_the_operator_is_waited_for(version: Version) {
    let site = Site::with(version, "", &["--submit-timeout=30s", "--submit-timeout-max=30s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.gates.shut("condor_submit");
    here.create(&site.noted("orphan", 2, ""));
    let doomed = here.create(&site.noted("doomed", 1, ""));
    site.gates.wait_at("condor_submit");
    site.bed.kill_operator();
    site.bed.start_operator();
    let message = here.wait_says("orphan", "Submitted", "False", "SubmitterMayLive");
    assert!(message.contains("condor_submit"), "{message}");
    // One that may still be submitted is not let go.
    here.begin_delete("doomed");
    site.gates.open("condor_submit");
    let ended = site.assert_complete_once(&here, "orphan", 2);
    assert_eq!(ended["status"]["attempt"], 1, "the orphan's own jobs count");
    assert_eq!(here.count_events("orphan", "SubmitterMayLive"), 1, "{:?}", here.events("orphan"));
    here.wait_gone("doomed");
    site.bed.assert_removed(&doomed, "doomed");
}

/// A submitter that nothing has killed - its machine was asleep - lands when another attempt has long been made.
fn jobs_landing_late_run_no_payload(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    site.gates.shut("condor_submit");
    let began = std::time::Instant::now();
    let mut object = site.lasting("late", 2);
    // What its user wants of jobs that fail must not keep those that come too late.
    object["spec"]["htcopts"] = "on_exit_hold = ExitCode =!= 0".into();
    here.create(&object);
    let submitter = site.gates.wait_at("condor_submit");
    site.bed.kill_operator();
    let submitter = Unlimited::new(submitter);
    submitter.stop();
    site.gates.open("condor_submit");
    site.bed.start_operator();
    let running = here.wait("late", "both jobs run", |object| object["status"]["running"] == 2);
    assert!(
        began.elapsed() >= LIMIT,
        "submitted again after {:?}, while the submitter could still land",
        began.elapsed()
    );
    assert_eq!(running["status"]["attempt"], 2);
    let uid = here.uid("late");
    let first = format!("HTCJobUID == \"{uid}\" && HTCJobAttempt == 1");
    assert!(site.bed.queue(&first, &["ClusterId"]).is_empty());

    // Nobody is there to remove them when they land: the lock is in the jobs themselves.
    site.bed.kill_operator();
    submitter.wake_up();
    wait_for("the late jobs to land and to go", PATIENCE, || {
        let rows = site.bed.history(&first, &["JobStatus", "ExitCode"]);
        let gone = rows.iter().filter(|row| row[0] == "3" && row[1] != "0").count() == 2;
        if gone { Ok(()) } else { Err(format!("{rows:?}, {:?}", site.bed.queue(&first, &["JobStatus", "HoldReason"]))) }
    })
    .unwrap();
    assert!(site.bed.jobs_of(&uid).iter().all(|job| job.late == (job.attempt == 1)));
    site.bed.start_operator();
    let still = here.get("late");
    assert_eq!(still["status"]["running"], 2, "{still:#}");
    assert_eq!(still["status"]["jobid"], running["status"]["jobid"]);
    site.finish("late");
    let ended = site.assert_complete_once(&here, "late", 2);
    assert_eq!(ended["status"]["jobid"], running["status"]["jobid"]);
    for index in 0..2 {
        assert_eq!(fs::read_to_string(here.output("late", index).join("out")).unwrap(), "finished\n");
    }
    assert_eq!(here.count_events("late", "SubmitterMayLive"), 1, "{:?}", here.events("late"));
}
