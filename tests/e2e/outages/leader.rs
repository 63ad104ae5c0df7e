//! Two operators, of which one may act; and a ledger that is not what the Lease says.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use testbed::{Owned, Scratch, Version, wait_for};

use bed::api::OWN_LEASES;
use bed::signals::{Unlimited, signal};
use bed::site::Site;
use bed::{PATIENCE, is_true, of};

on_versions! {
    trixie: old_ledger_copy_submits_no_job_twice;
    sid:
        standby_waits_for_ledger_and_lease_then_takes_over,
        operator_that_cannot_renew_its_lease_starts_nothing,
        leader_that_sleeps_past_its_lease_runs_no_job;
}

/// A Lease that is soon free.
pub const SHORT: [&str; 3] =
    ["--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms"];

const RENEW_DEADLINE: Duration = Duration::from_secs(3);

pub fn start(version: Version) -> Site {
    let site = Site::with(version, "", &SHORT);
    site.bed.start_operator();
    site
}

pub fn wait_log(operator: &Owned, what: &str) {
    wait_for(&format!("`{what}` in an operator's log"), PATIENCE, || {
        let text = operator.log_text();
        if text.contains(what) { Ok(()) } else { Err(text) }
    })
    .unwrap();
}

/// Who holds the Lease, and how often that has changed.
pub fn holder(site: &Site) -> (String, String) {
    let spec = &site.bed.object(OWN_LEASES, "htc-operator").unwrap()["spec"];
    (spec["holderIdentity"].as_str().unwrap().to_owned(), spec["leaseTransitions"].to_string())
}

/// The standby waits for the ledger's file, then for the Lease, and goes on where the other stopped.
fn standby_waits_for_ledger_and_lease_then_takes_over(version: Version) {
    let site = start(version);
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 2));
    let running = here.wait("running", "both jobs run", |object| object["status"]["running"] == 2);
    assert_eq!(holder(&site).0, "bed");
    let standby = site.bed.start_another("standby", &site.bed.data, &[&SHORT[..], &[&site.bind()]].concat());
    wait_log(&standby, "standing by");
    wait_log(&standby, "is held by another process");
    assert!(!standby.log_text().contains("lease acquired"), "{}", standby.log_text());
    site.bed.kill_operator();
    wait_log(&standby, "standing by lease=");
    wait_log(&standby, "lease acquired");
    assert!(!standby.log_text().contains("ledger incomplete"), "{}", standby.log_text());
    assert_eq!(holder(&site), ("standby".to_owned(), "1".to_owned()));
    here.create(&site.noted("new", 1, ""));
    site.assert_complete_once(&here, "new", 1);
    site.finish("running");
    let ended = site.assert_complete_once(&here, "running", 2);
    assert_eq!(ended["status"]["jobid"], running["status"]["jobid"]);

    // Told to stop, it lets the next one lead at once.
    standby.terminate().unwrap();
    assert!(standby.wait(PATIENCE).unwrap().success());
    assert_eq!(holder(&site).0, "");
    site.bed.start_operator();
    here.create(&site.noted("newer", 1, ""));
    site.assert_complete_once(&here, "newer", 1);
    assert!(!site.bed.log().contains("standing by"), "{}", site.bed.log());
}

/// Misconfigured: the second operator has a ledger of its own. The leader and its condor_submit sleep past the Lease;
/// jobs that they submit afterwards do not run.
fn leader_that_sleeps_past_its_lease_runs_no_job(version: Version) {
    // The doubt lasts for longer than what is new takes.
    let times = [&SHORT[..], &["--submit-timeout-max=60s"]].concat();
    let site = Site::with(version, "", &times);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 2));
    let running = here.wait("running", "both jobs run", |object| object["status"]["running"] == 2);
    site.gates.shut("condor_submit");
    let caught = here.create(&site.lasting("caught", 2));
    let submitter = site.gates.wait_at("condor_submit");
    let sleeper = site.bed.operator_pid();
    signal(sleeper, Signal::STOP);
    let _submitter = Unlimited::new(submitter);

    let folder = Scratch::new().unwrap();
    let data = folder.dir("data").unwrap();
    let other = site.bed.start_another("other", &data, &[&times[..], &[&site.bind()]].concat());
    wait_log(&other, "standing by lease=");
    wait_log(&other, "lease acquired");
    // What is new is not kept waiting for what is in doubt.
    here.create(&site.noted("new", 1, ""));
    let ended = here.wait_ended("new");
    assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", other.log_text());
    here.wait_says("caught", "Submitted", "False", "PastUnknown");
    // A young pool's history says nothing of the time before; a person does.
    here.wait_says("caught", "Submitted", "False", "HistoryTooShort");
    here.annotate("caught", "htc.cern.ch/submit-again");
    let again = here.wait("caught", "both jobs run", |object| object["status"]["running"] == 2);

    let late = || -> Vec<String> {
        let seen = site.bed.jobs_of(&caught);
        seen.into_iter().filter(|job| job.late).map(|job| job.id).collect()
    };
    assert!(late().is_empty());
    site.gates.open("condor_submit");
    wait_for("the sleeper's jobs to land", PATIENCE, || late().len() == 2).unwrap();
    signal(sleeper, Signal::CONT);
    let status = site.bed.wait_operator();
    assert!(!status.success(), "{}", site.bed.log());
    assert!(site.bed.log().contains("other has taken over the Lease"), "{}", site.bed.log());

    let late = late();
    wait_for("the sleeper's jobs to be removed", PATIENCE, || {
        site.bed.queue("JobStatus != 3", &["ClusterId", "ProcId"]).iter().all(|row| !late.contains(&row.join(".")))
    })
    .unwrap();
    for (name, before) in [("running", &running), ("caught", &again)] {
        site.finish(name);
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", other.log_text());
        assert_eq!(ended["status"]["jobid"], before["status"]["jobid"]);
        let uid = here.uid(name);
        site.bed.assert_once(&uid, name, 2);
        for index in 0..2 {
            assert_eq!(site.runs(name, index), 1, "{name}.{index}\n{}", other.log_text());
        }
        here.delete(name);
        site.bed.assert_removed(&uid, name);
    }
    other.terminate().unwrap();
    other.wait(PATIENCE).unwrap();
}

/// Without a renewed Lease an operator starts nothing in Kubernetes or HTCondor. It continues if no other operator has
/// led meanwhile.
fn operator_that_cannot_renew_its_lease_starts_nothing(version: Version) {
    let site = start(version);
    let here = site.bed.namespace();
    let uid = here.create(&site.lasting("one", 1));
    here.wait_phase("one", "Running");
    let pid = site.bed.operator_pid();
    site.bed.kube.pause_apiserver().unwrap();
    let paused = std::time::Instant::now();
    wait_for("the operator to notice", PATIENCE, || site.bed.log().contains("lease not renewed, retrying")).unwrap();
    wait_for("the last renewal to be too old", PATIENCE, || paused.elapsed() > RENEW_DEADLINE).unwrap();
    site.finish("one");
    let of = of(&uid);
    wait_for("the job to end", PATIENCE, || site.bed.queue(&of, &["JobStatus"]) == [["4"]]).unwrap();
    let asked = site.gates.calls("condor_q");
    wait_for("some more looks at the queue", PATIENCE, || site.gates.calls("condor_q") >= asked + 3).unwrap();
    assert_eq!(site.gates.calls("condor_transfer_data"), 0, "its output is not fetched");
    site.bed.kube.resume_apiserver().unwrap();
    site.assert_complete_once(&here, "one", 1);
    assert!(site.bed.log().contains("lease renewed again"), "{}", site.bed.log());
    assert_eq!(site.bed.operator_pid(), pid);
    assert_eq!(holder(&site), ("bed".to_owned(), "0".to_owned()));
}

/// A restored backup lacks later changes: the operator detects it and asks HTCondor.
fn old_ledger_copy_submits_no_job_twice(version: Version) {
    let site = start(version);
    let here = site.bed.namespace();
    here.create(&site.lasting("before", 1));
    here.wait_phase("before", "Running");
    let deleted = here.create(&site.lasting("deleted", 1));
    here.wait_phase("deleted", "Running");
    site.bed.stop_operator();
    let ledger = site.bed.data.join("sqlite/htcjobs.db");
    let copy = fs::read(&ledger).unwrap();

    site.bed.start_operator();
    here.create(&site.lasting("after", 2));
    let running = here.wait("after", "both jobs run", |object| object["status"]["running"] == 2);
    site.finish("before");
    here.wait_ended("before");
    site.bed.kill_operator();
    site.bed.lose_ledger();
    testbed::Account::unprivileged().write(&ledger, copy, 0o644).unwrap();

    site.bed.start_operator();
    wait_for("the operator to notice", PATIENCE, || site.bed.log().contains("past=OldCopy")).unwrap();
    here.begin_delete("deleted");
    here.create(&site.noted("new", 1, ""));
    site.assert_complete_once(&here, "new", 1);
    site.finish("after");
    let ended = site.assert_complete_once(&here, "after", 2);
    assert_eq!(ended["status"]["jobid"], running["status"]["jobid"]);
    assert_eq!(ended["status"]["attempt"], 1);
    site.assert_complete_once(&here, "before", 1);
    here.wait_gone("deleted");
    site.bed.assert_removed(&deleted, "deleted");

    // From here on the ledger is as good as any.
    site.bed.kill_operator();
    site.bed.start_operator();
    here.create(&site.noted("newer", 1, ""));
    site.assert_complete_once(&here, "newer", 1);
    assert!(!site.bed.log().contains("ledger incomplete"), "{}", site.bed.log());
}
