//! The ledger's file goes while the operator runs, is an old copy when it starts, or is not there.

use std::fs;
use std::path::{Path, PathBuf};

use testbed::{Account, Version, wait_for};

use bed::PATIENCE;
use bed::site::{PROMPT, Site};

on_versions! {
    trixie: old_or_lost_ledger_submits_no_job_twice;
    sid: operator_submits_nothing_while_its_ledger_file_is_missing;
}

/// So that the wait for an earlier operator's submitter is short.
const LIMITS: &[&str] = &["--submit-timeout=10s", "--submit-timeout-max=10s"];

fn file(site: &Site) -> PathBuf {
    site.bed.data.join("sqlite/htcjobs.db")
}

fn remove(file: &Path) {
    for end in ["", "-wal"] {
        let mut name = file.as_os_str().to_owned();
        name.push(end);
        let _ = fs::remove_file(PathBuf::from(name));
    }
    assert!(!file.exists());
}

fn noticed(site: &Site) -> usize {
    site.bed.log().lines().filter(|line| line.contains("is no longer the file")).count()
}

fn operator_submits_nothing_while_its_ledger_file_is_missing(version: Version) {
    let site = Site::with(version, "", LIMITS);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 1));
    here.wait_phase("running", "Running");
    let submitted = site.gates.calls("condor_submit");

    let away = site.bed.data.join("away.db");
    fs::rename(file(&site), &away).unwrap();
    here.create(&site.noted("new", 1, ""));
    wait_for("the operator to notice", PATIENCE, || noticed(&site) >= 4).unwrap();
    assert_eq!(site.gates.calls("condor_submit"), submitted, "nothing is done without the ledger");
    let line = site.bed.log().lines().find(|line| line.contains("is no longer the file")).unwrap().to_owned();
    assert!(line.contains(&file(&site).display().to_string()) && line.contains("restart the operator"), "{line}");
    fs::rename(&away, file(&site)).unwrap();
    let ended = site.assert_complete_once(&here, "new", 1);
    assert_eq!(ended["status"]["attempt"], 1);

    remove(&file(&site));
    let before = noticed(&site);
    here.create(&site.noted("newer", 1, ""));
    here.create(&site.lasting("doomed", 1));
    site.finish("running");
    here.begin_delete("new");
    wait_for("the operator to notice", PATIENCE, || noticed(&site) >= before + 4).unwrap();
    assert!(site.bed.stop_operator() < PROMPT, "it can still be stopped");
    site.bed.start_operator();
    site.assert_complete_once(&here, "newer", 1);
    site.assert_complete_once(&here, "running", 1);
    here.wait_gone("new");
    here.wait_phase("doomed", "Running");
    let doomed = here.uid("doomed");
    here.delete("doomed");
    site.bed.assert_removed(&doomed, "doomed");
    for name in ["running", "newer"] {
        here.delete(name);
    }
    assert!(site.bed.queue("true", &["ClusterId"]).is_empty());
}

fn old_or_lost_ledger_submits_no_job_twice(version: Version) {
    let site = Site::with(version, "", LIMITS);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("before", 1));
    here.wait_phase("before", "Running");
    site.bed.stop_operator();
    let old = site.bed.data.join("old.db");
    fs::copy(file(&site), &old).unwrap();
    Account::unprivileged().own(&old).unwrap();

    // What the old copy does not know.
    site.bed.start_operator();
    here.create(&site.lasting("between", 2));
    here.wait("between", "both run", |object| object["status"]["running"] == 2);
    here.create(&site.lasting("doomed", 1));
    here.wait_phase("doomed", "Running");
    let doomed = here.uid("doomed");
    here.create(&site.noted("done", 1, ""));
    site.assert_complete_once(&here, "done", 1);
    // Submitted, and its status says so, but its jobs were never seen.
    site.gates.shut("condor_q");
    here.create(&site.noted("handed", 2, ""));
    let handed = here.wait("handed", "its attempt", |object| object["status"]["attempt"] == 1);
    assert_eq!(handed["status"]["phase"], "Pending");
    site.bed.kill_operator();
    site.finish("before");
    site.gates.open("condor_q");
    remove(&file(&site));
    fs::rename(&old, file(&site)).unwrap();
    here.begin_delete("doomed");
    site.bed.start_operator();
    here.wait_gone("doomed");
    site.bed.assert_removed(&doomed, "doomed");
    site.assert_complete_once(&here, "before", 1);
    site.assert_complete_once(&here, "handed", 2);
    assert_eq!(here.get("between")["status"]["running"], 2);
    assert_eq!(here.get("done")["status"]["phase"], "Completed");
    // Rows of the file that is lost were told under the same numbers.
    site.assert_all_events_written(&here);

    site.bed.stop_operator();
    remove(&file(&site));
    let doomed = here.uid("handed");
    here.begin_delete("handed");
    site.finish("between");
    here.create(&site.noted("new", 1, ""));
    site.bed.start_operator();
    site.assert_complete_once(&here, "new", 1);
    site.assert_complete_once(&here, "between", 2);
    here.wait_gone("handed");
    site.bed.assert_removed(&doomed, "handed");
    for name in ["before", "between", "done", "new"] {
        let uid = here.uid(name);
        here.delete(name);
        site.bed.assert_removed(&uid, name);
    }
    assert!(site.bed.queue("true", &["ClusterId"]).is_empty());
}
