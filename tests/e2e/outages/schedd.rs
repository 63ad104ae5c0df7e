//! The schedd is down, goes down, hangs, refuses, and dies at the worst moment.

use std::time::Instant;

use testbed::{Account, Version, wait_for};

use bed::site::{Site, says};
use bed::{PATIENCE, is_true};

on_versions! {
    trixie:
        schedd_hang_during_submission_runs_each_job_once,
        schedd_outage_at_the_start_and_later_loses_no_job,
        refused_jobs_are_reported_and_retried;
    sid: refused_credentials_are_reported_until_corrected, schedd_kill_during_staging_runs_each_job_once;
}

/// Retries that are waited for: one Event for all of them.
const RETRIES: usize = 4;

fn schedd_outage_at_the_start_and_later_loses_no_job(version: Version) {
    let site = Site::new(version);
    site.bed.pool.stop().unwrap();
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("job", 2));

    let message = here.wait_says("job", "Submitted", "False", "ScheddUnreachable");
    assert!(message.contains(site.bed.pool.schedd_name()), "{message}");
    assert!(message.contains("check that it runs"), "what to do about it: {message}");
    assert_eq!(here.get("job")["status"]["phase"], "Pending");
    let before = site.gates.calls("condor_ping");
    wait_for("some more tries", PATIENCE, || site.gates.calls("condor_ping") >= before + RETRIES).unwrap();
    here.wait_says("job", "Submitted", "False", "ScheddUnreachable");
    here.wait_event("job", "ScheddUnreachable");

    site.bed.pool.start_again().unwrap();
    let running = here.wait("job", "both jobs run", |object| object["status"]["running"] == 2);
    assert!(is_true(&running, "Submitted"), "{running:#}");
    assert_eq!(running["status"]["attempt"], 1, "nothing was submitted before");
    assert_eq!(here.count_events("job", "ScheddUnreachable"), 1, "{:?}", here.events("job"));

    wait_for("both payloads", PATIENCE, || (0..2).all(|index| site.runs("job", index) == 1)).unwrap();
    // A schedd that dies comes back within seconds, and the jobs have not noticed.
    site.bed.pool.restart_schedd_kill9().unwrap();
    let uid = here.uid("job");
    let asked = site.gates.calls("condor_q");
    wait_for("the operator to ask the next schedd", PATIENCE, || site.gates.calls("condor_q") > asked + 2).unwrap();
    here.wait("job", "both jobs still run", |object| {
        object["status"]["running"] == 2 && !says(object, "Tracked", "False", "ScheddUnreachable")
    });
    for index in 0..2 {
        assert_eq!(site.runs("job", index), 1, "{:#?}", site.bed.jobs_of(&uid));
    }

    // One that stays away is told of, and so is its return.
    let trouble = here.count_events("job", "ScheddUnreachable");
    site.bed.pool.stop().unwrap();
    let message = here.wait_says("job", "Tracked", "False", "ScheddUnreachable");
    assert!(message.contains(site.bed.pool.schedd_name()), "{message}");
    let gone = here.get("job");
    assert_eq!(gone["status"]["phase"], "Running", "unknown is not absent: {gone:#}");
    assert_eq!(gone["status"]["active"], 2, "{gone:#}");
    let recovered = here.count_events("job", "Tracking");
    site.bed.pool.start_again().unwrap();
    here.wait_says("job", "Tracked", "True", "Tracking");
    wait_for("the Events", PATIENCE, || here.count_events("job", "Tracking") == recovered + 1).unwrap();
    assert_eq!(here.count_events("job", "ScheddUnreachable"), trouble + 1, "{:?}", here.events("job"));

    // HTCondor began the jobs again: each is still one job.
    site.finish("job");
    let ended = here.wait_ended("job");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(ended["status"]["succeeded"], 2);
    assert_eq!(ended["status"]["jobid"], running["status"]["jobid"]);
    here.wait_nothing_left(&uid);
    site.bed.assert_once(&uid, "job", 2);
}

fn schedd_hang_during_submission_runs_each_job_once(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 1));
    here.wait_phase("running", "Running");
    site.gates.shut("condor_submit");
    here.create(&site.noted("handed", 1, ""));
    site.gates.wait_at("condor_submit");
    site.bed.pool.pause_schedd().unwrap();
    site.gates.open("condor_submit");

    // condor_submit alone would hang for 15 minutes, the others for 20 s.
    here.wait_says("running", "Tracked", "False", "ScheddUnreachable");
    here.wait_says("handed", "Submitted", "False", "ScheddUnreachable");
    let running = here.get("running");
    assert_eq!(running["status"]["phase"], "Running", "{running:#}");

    site.bed.pool.resume_schedd().unwrap();
    here.wait_says("running", "Tracked", "True", "Tracking");
    site.assert_complete_once(&here, "handed", 1);
    site.finish("running");
    site.assert_complete_once(&here, "running", 1);
}

fn refused_credentials_are_reported_until_corrected(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    site.start_lasting(&here, &["running", "doomed"]);

    let path = site.bed.condor.token();
    let token = std::fs::read_to_string(&path).unwrap();
    let (signed, signature) = token.trim().rsplit_once('.').unwrap();
    let forged = format!("{signed}.{}\n", signature.chars().rev().collect::<String>());
    Account::unprivileged().write(&path, forged, 0o600).unwrap();
    // Reading needs no rights in this pool: what runs is followed all the same. Whatever changes something waits.
    here.create(&site.noted("new", 1, ""));
    let uid = here.uid("doomed");
    here.begin_delete("doomed");
    for (name, kind) in [("new", "Submitted"), ("doomed", "JobsRemoved")] {
        let message = here.wait_says(name, kind, "False", "CredentialsRefused");
        assert!(message.contains("token"), "what to do about it: {message}");
    }
    let tried = [site.gates.calls("condor_ping"), site.gates.calls("condor_rm")];
    wait_for("some more tries", PATIENCE, || {
        site.gates.calls("condor_ping") >= tried[0] + RETRIES && site.gates.calls("condor_rm") >= tried[1] + 2
    })
    .unwrap();
    assert_eq!(here.get("new")["status"]["phase"], "Pending");
    assert_eq!(here.get("running")["status"]["phase"], "Running");
    for name in ["new", "doomed"] {
        assert_eq!(here.count_events(name, "CredentialsRefused"), 1, "{:?}", here.events(name));
    }

    Account::unprivileged().write(&path, &token, 0o600).unwrap();
    here.wait_gone("doomed");
    site.bed.assert_removed(&uid, "doomed");
    let ended = site.assert_complete_once(&here, "new", 1);
    assert_eq!(ended["status"]["attempt"], 1);
    site.finish("running");
    site.assert_complete_once(&here, "running", 1);

    // The same with an operator that has never known better.
    site.bed.stop_operator();
    Account::unprivileged().write(&path, "", 0o600).unwrap();
    site.bed.start_operator();
    here.create(&site.noted("newer", 1, ""));
    let message = here.wait_says("newer", "Submitted", "False", "CredentialsRefused");
    assert!(message.contains("token"), "what to do about it: {message}");
    Account::unprivileged().write(&path, &token, 0o600).unwrap();
    site.assert_complete_once(&here, "newer", 1);
}

/// A permanent refusal is reported in the tool's own words, and retried with growing pauses.
fn refused_jobs_are_reported_and_retried(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let config = site.bed.pool.config();
    let open = std::fs::read_to_string(&config).unwrap();
    let closed = "SUBMIT_REQUIREMENT_NAMES = Open\nSUBMIT_REQUIREMENT_Open = false\n\
                  SUBMIT_REQUIREMENT_Open_REASON = \"the pool is closed for lunch\"\n";
    let configure = |text: &str| {
        Account::unprivileged().write(&config, text, 0o644).unwrap();
        site.bed.pool.tool("condor_reconfig", &["-schedd"]).unwrap();
    };
    configure(&format!("{open}{closed}"));
    let began = Instant::now();
    let uid = here.create(&site.noted("job", 2, ""));
    let message = here.wait_says("job", "Submitted", "False", "SubmitRefused");
    assert!(message.contains("closed for lunch"), "{message}");
    let refused = here.wait("job", "a few attempts", |object| object["status"]["attempt"].as_u64() > Some(3));
    assert_eq!(refused["status"]["phase"], "Pending", "{refused:#}");
    here.wait_says("job", "Submitted", "False", "SubmitRefused");
    assert_eq!(here.count_events("job", "SubmitRefused"), 1, "{:?}", here.events("job"));
    let (asked, seconds) = (site.gates.calls("condor_q"), began.elapsed().as_secs());
    assert!(asked < 20 + 3 * usize::try_from(seconds).unwrap(), "{asked} condor_q in {seconds} s");
    assert!(site.bed.jobs_of(&uid).is_empty());

    configure(&open);
    site.assert_complete_once(&here, "job", 2);
}

fn schedd_kill_during_staging_runs_each_job_once(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    // A job whose files had arrived in that very moment is in order: then it is tried again.
    for round in 0..20 {
        let name = format!("staged-{round}");
        let uid = here.create(&site.noted(&name, 2, ""));
        let seen = wait_for("the jobs", PATIENCE, || site.bed.jobs_of(&uid).into_iter().next()).unwrap();
        if seen.accepted {
            site.assert_complete_once(&here, &name, 2);
            continue;
        }
        let doomed = seen.id.split('.').next().unwrap();
        site.bed.pool.restart_schedd_kill9().unwrap();
        let ended = site.assert_complete_once(&here, &name, 2);
        if ended["status"]["attempt"] == 1 {
            continue;
        }
        assert_eq!(ended["status"]["attempt"], 2, "{ended:#}");
        assert_ne!(ended["status"]["clusterid"], doomed);
        let stillborn: Vec<_> = site.bed.jobs_of(&uid).into_iter().filter(|job| !job.accepted).collect();
        assert!(stillborn.iter().all(|job| job.attempt == 1 && job.starts == 0), "{stillborn:#?}");
        let removed = "removed by htc-operator";
        let reasons = site.bed.pool.tool("condor_history", &[doomed, "-af", "RemoveReason"]).unwrap();
        assert!(
            reasons.lines().all(|reason| reason.starts_with(removed) || reason.contains("Staging of job files failed")),
            "{reasons}"
        );
        return;
    }
    panic!("in twenty tries the schedd never died before it had the files");
}
