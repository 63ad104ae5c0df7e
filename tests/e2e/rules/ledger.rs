//! A ledger that knows less than the objects say.

use std::fs;

use testbed::{Account, Fault, Rule, Version, wait_for};

use bed::site::Site;
use bed::{LONG_SUBMISSIONS, PATIENCE};

on_versions! {
    trixie: ledger_copied_after_the_last_renewal_submits_no_job_twice;
    sid: htcjob_claimed_by_another_ledger_is_not_submitted;
}

fn ledger_files(site: &Site) -> [std::path::PathBuf; 2] {
    ["", "-wal"].map(|end| site.bed.data.join(format!("sqlite/htcjobs.db{end}")))
}

/// `status_is_presence`: a copy of the ledger that is younger than the last renewal of the Lease looks like the ledger
/// itself. Only the status shows that it lacks a submission.
fn ledger_copied_after_the_last_renewal_submits_no_job_twice(version: Version) {
    let seldom = &[
        "--leader-elect-lease-duration=300s",
        "--leader-elect-renew-deadline=290s",
        "--leader-elect-retry-period=280s",
    ];
    let site = Site::with(version, "", &[seldom, LONG_SUBMISSIONS].concat());
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut object = site.lasting("one", 1);
    object["spec"]["suspend"] = true.into();
    here.create(&object);
    here.wait_says("one", "Submitted", "False", "Suspended");
    site.bed.stop_operator();
    // With its log, if it had not the time to close it.
    let copies = ledger_files(&site).map(|file| (fs::read(&file).ok(), file));

    site.bed.start_operator();
    here.suspend("one", false);
    let running = here.wait("one", "it runs", |object| object["status"]["running"] == 1);
    site.bed.kill_operator();
    for (copy, file) in copies {
        let _ = fs::remove_file(&file);
        if let Some(copy) = copy {
            Account::unprivileged().write(&file, copy, 0o644).unwrap();
        }
    }
    site.bed.start_operator();
    here.wait("one", "it is found again", |object| {
        let recorded = site.bed.ledger("select count(*) from htcjobs").is_ok_and(|rows| rows == [["1"]]);
        recorded && object["status"]["running"] == 1
    });
    assert!(!site.bed.log().contains("ledger incomplete"), "the Lease gave the copy away: {}", site.bed.log());
    site.finish("one");
    let ended = site.assert_complete_once(&here, "one", 1);
    assert_eq!(ended["status"]["jobid"], running["status"]["jobid"]);
    assert_eq!(ended["status"]["attempt"], 1);
}

/// `only_claimant`: an HTCJob claimed by another ledger is submitted only after this ledger has claimed it, even when
/// its past is known. In `decide` the claim also comes before the submission, and there is one request at a time.
fn htcjob_claimed_by_another_ledger_is_not_submitted(version: Version) {
    let site = Site::with(version, "", &["--submit-timeout=3s", "--submit-timeout-max=3s"]);
    let proxy = site.bed.kube.proxy().unwrap();
    site.bed.through(&proxy);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut object = site.noted("one", 1, "");
    object["spec"]["suspend"] = true.into();
    // History is too young to say anything.
    object["metadata"]["annotations"] = serde_json::json!({ "htc.cern.ch/submit-again": "true" });
    here.create(&object);
    here.wait_says("one", "Submitted", "False", "Suspended");
    let claim = |object: &serde_json::Value| object["metadata"]["annotations"]["htc.cern.ch/ledger"].clone();
    let first = claim(&here.get("one"));
    site.bed.kill_operator();
    site.bed.lose_ledger();
    here.suspend("one", false);
    let refused = Fault::Status(500, None);
    proxy.add(Rule::new("PATCH", "/htcjobs/one?", refused.clone()));
    site.bed.start_operator();
    wait_for("some tries to claim it", PATIENCE, || {
        assert_eq!(site.gates.calls("condor_submit"), 0, "submitted before it was claimed");
        proxy.spoiled(&refused) >= 3
    })
    .unwrap();
    proxy.clear();
    let ended = site.assert_complete_once(&here, "one", 1);
    assert_ne!(claim(&ended), first);
}
