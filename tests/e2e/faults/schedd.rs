//! The schedd dies while it is handed jobs, loses the child that takes in their files, hangs for longer than anybody waits,
//! and cannot be reached.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use testbed::{Version, wait_for};

use bed::PATIENCE;
use bed::dice::Dice;
use bed::site::{Site, says};

on_versions! {
    trixie: unreachable_schedd_loses_no_job;
    sid: schedd_kill_during_submission_runs_each_job_once, schedd_hang_beyond_every_limit_runs_each_job_once;
}

/// Limits that are over within seconds.
const SHORT: &[&str] = &[
    "--tool-timeout=3s",
    "--history-timeout=3s",
    "--transfer-timeout=3s",
    "--submit-timeout=10s",
    "--submit-timeout-max=10s",
    "--late-margin=4s",
    "--dead-margin=4s",
];

fn schedd_kill_during_submission_runs_each_job_once(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let mut dice = Dice::new(&format!("the schedd is killed during condor_submit, {version}"));
    let mut attempts = Vec::new();
    for round in 0..3 {
        let name = format!("handed-{round}");
        site.gates.shut("condor_submit");
        here.create(&site.noted(&name, 5, ""));
        site.gates.wait_at("condor_submit");
        site.gates.open("condor_submit");
        // A condor_submit takes about 50 ms.
        std::thread::sleep(dice.milliseconds(5, 80));
        site.bed.pool.restart_schedd_kill9().unwrap();
        attempts.push(site.assert_complete_once(&here, &name, 5)["status"]["attempt"].clone());
    }
    println!("{version}: attempts {attempts:?}");

    // The schedd takes in files in a child of its own; without it the jobs are removed as "Staging of job files failed".
    for round in 0..20 {
        let name = format!("childless-{round}");
        let uid = here.create(&site.noted(&name, 2, ""));
        let seen = wait_for("the jobs", PATIENCE, || site.bed.jobs_of(&uid).into_iter().next()).unwrap();
        if seen.accepted {
            site.assert_complete_once(&here, &name, 2);
            continue;
        }
        for pid in site.bed.pool.schedd_children() {
            // A child that only answered a query is gone by now.
            let _ = kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL);
        }
        let ended = site.assert_complete_once(&here, &name, 2);
        let stillborn: Vec<_> = site.bed.jobs_of(&uid).into_iter().filter(|job| !job.accepted).collect();
        if ended["status"]["attempt"] == 1 {
            continue;
        }
        println!("{version}: round {round}: {stillborn:?}");
        assert_eq!(stillborn.len(), 2);
        assert!(stillborn.iter().all(|job| job.attempt == 1 && job.status == 3 && job.starts == 0), "{stillborn:#?}");
        site.assert_events_match_journal(&here);
        return;
    }
    panic!("in twenty tries the schedd's child never died before it had the files");
}

fn schedd_hang_beyond_every_limit_runs_each_job_once(version: Version) {
    let site = Site::with(version, "", SHORT);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.start_lasting(&here, &["running", "fetched", "deleted"]);
    let deleted = here.uid("deleted");
    for tool in ["condor_transfer_data", "condor_rm", "condor_submit"] {
        site.gates.shut(tool);
    }
    site.finish("fetched");
    here.create(&site.noted("handed", 2, ""));
    here.begin_delete("deleted");
    for tool in ["condor_transfer_data", "condor_rm", "condor_submit"] {
        site.gates.wait_at(tool);
    }
    site.bed.pool.pause_schedd().unwrap();
    for tool in ["condor_transfer_data", "condor_rm", "condor_submit"] {
        site.gates.open(tool);
    }
    here.create(&site.noted("new", 1, ""));
    let unanswered = [
        ("running", "Tracked", "ScheddUnreachable"),
        ("deleted", "JobsRemoved", "ScheddUnreachable"),
        ("fetched", "OutputFetched", "ScheddUnreachable"),
        ("handed", "Submitted", "ScheddUnreachable"),
        ("new", "Submitted", "ScheddUnreachable"),
    ];
    for (name, kind, reason) in unanswered {
        let message = here.wait_says(name, kind, "False", reason);
        assert!(message.contains("schedd schedd@test") && message.contains("check that it runs"), "{name}: {message}");
    }
    let (removed, fetched) = (site.gates.calls("condor_rm"), site.gates.calls("condor_transfer_data"));
    wait_for("two more tries of each", PATIENCE, || {
        site.gates.calls("condor_rm") >= removed + 2 && site.gates.calls("condor_transfer_data") >= fetched + 2
    })
    .unwrap();
    assert_eq!(here.get("running")["status"]["phase"], "Running");
    for (name, kind, reason) in unanswered {
        assert!(says(&here.get(name), kind, "False", reason), "{name}: {:#}", here.get(name));
        let events = here.count_events(name, reason);
        assert!((1..=2).contains(&events), "{name}: one Event for each condition: {:?}", here.events(name));
    }

    site.bed.pool.resume_schedd().unwrap();
    here.wait_gone("deleted");
    site.bed.assert_removed(&deleted, "deleted");
    site.finish("running");
    for (name, jobs) in [("running", 1), ("fetched", 1), ("handed", 2), ("new", 1)] {
        site.assert_complete_once(&here, name, jobs);
    }
    site.assert_events_match_journal(&here);
}

/// The collector's address refuses connections, or accepts them and never answers; or a single tool fails.
fn unreachable_schedd_loses_no_job(version: Version) {
    let site = Site::with(version, "", SHORT);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.start_lasting(&here, &["running", "deleted"]);
    let uid = here.uid("deleted");
    let submitted = site.gates.calls("condor_submit");
    let config = site.bed.condor.config();
    let real = fs::read_to_string(&config).unwrap();
    // A slow answer before may have been told, too.
    let [before_running, before_deleted] = ["running", "deleted"].map(|name| {
        here.wait(name, "tracked", |object| !object.to_string().contains("ScheddUnreachable"));
        here.count_events(name, "ScheddUnreachable")
    });
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let elsewhere = real.replace(&site.bed.pool.address(), &silent.local_addr().unwrap().to_string());
    assert_ne!(real, elsewhere);
    let began = Instant::now();
    fs::write(&config, elsewhere).unwrap();
    here.create(&site.noted("new", 1, ""));
    here.begin_delete("deleted");
    let waiting =
        [("running", "Tracked", before_running), ("new", "Submitted", 0), ("deleted", "JobsRemoved", before_deleted)];
    for (name, kind, _) in waiting {
        let message = here.wait_says(name, kind, "False", "ScheddUnreachable");
        assert!(message.contains("did not end within 3 s"), "{name}: {message}");
    }
    println!("{version}: said after {:?} that nobody answers", began.elapsed());
    drop(silent);
    let refused = [site.gates.calls("condor_status"), site.gates.calls("condor_rm")];
    wait_for("some more tries", PATIENCE, || {
        site.gates.calls("condor_status") >= refused[0] + 3 && site.gates.calls("condor_rm") >= refused[1] + 3
    })
    .unwrap();
    for (name, kind, before) in waiting {
        assert!(says(&here.get(name), kind, "False", "ScheddUnreachable"), "{name}: {:#}", here.get(name));
        let events = here.count_events(name, "ScheddUnreachable") - before;
        // One for each condition that says so.
        assert!((1..=if name == "deleted" { 2 } else { 1 }).contains(&events), "{name}: {:?}", here.events(name));
    }
    assert_eq!(here.get("running")["status"]["phase"], "Running");
    assert_eq!(site.gates.calls("condor_submit"), submitted, "only of `running` and `deleted`");
    fs::write(&config, &real).unwrap();
    here.wait_gone("deleted");
    site.bed.assert_removed(&uid, "deleted");
    let ended = site.assert_complete_once(&here, "new", 1);
    assert_eq!(ended["status"]["attempt"], 1);

    let alone = [
        ("condor_q", "echo '-- Failed to fetch ads from: schedd@test' >&2; exit 1"),
        ("condor_status", "exec sleep 1000"),
    ];
    for (round, (tool, script)) in alone.into_iter().enumerate() {
        here.wait("running", "tracked", |object| !object.to_string().contains("ScheddUnreachable"));
        site.gates.replace(tool, script);
        here.wait_says("running", "Tracked", "False", "ScheddUnreachable");
        let (new, doomed) = (format!("new-{round}"), format!("doomed-{round}"));
        here.create(&site.noted(&new, 1, ""));
        let uid = here.create(&site.lasting(&doomed, 1));
        let calls = site.gates.calls(tool);
        here.wait(&doomed, "its finalizer", |object| !object["metadata"]["finalizers"].is_null());
        here.begin_delete(&doomed);
        wait_for("some more tries", PATIENCE, || site.gates.calls(tool) >= calls + 3).unwrap();
        here.wait_phase(&new, "Pending");
        assert_eq!(here.get("running")["status"]["running"], 1, "unknown is not absent");
        site.gates.restore(tool);
        here.wait_gone(&doomed);
        site.bed.assert_removed(&uid, &doomed);
        let ended = site.assert_complete_once(&here, &new, 1);
        assert_eq!(ended["status"]["attempt"], 1, "{tool}");
    }
    site.finish("running");
    site.assert_complete_once(&here, "running", 1);
    site.assert_events_match_journal(&here);
}
