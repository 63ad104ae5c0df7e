//! The Lease is deleted, edited by hand, or renewed without an answer; and set-ups in which it is all that tells two
//! operators apart.

use std::fs;

use serde_json::json;
use testbed::{Account, Fault, Rule, Scratch, Version, wait_for};

use crate::outages::leader::{SHORT, holder, wait_log};
use bed::api::OWN_LEASES;
use bed::site::Site;
use bed::{Namespace, PATIENCE, is_true};

on_versions! {
    trixie: lost_renewal_answers_keep_the_lease, deleted_lease_is_recreated_and_edited_lease_is_obeyed;
    sid: second_process_of_one_identity_stops_the_first, standby_with_a_ledger_copy_submits_no_job_twice;
}

/// Where nobody is to lose the Lease for a moment's stall.
const STEADY: [&str; 3] =
    ["--leader-elect-lease-duration=20s", "--leader-elect-renew-deadline=15s", "--leader-elect-retry-period=500ms"];

fn lease(site: &Site, arguments: &[&str]) -> String {
    site.bed.kube.kubectl_ok(&[&["-n", "htc-operator"], arguments].concat()).unwrap()
}

/// The holder recreates its Lease as long as no other operator can have led meanwhile. A Lease edited by a person
/// counts like one written by another operator.
fn deleted_lease_is_recreated_and_edited_lease_is_obeyed(version: Version) {
    let site = Site::with(version, "", &STEADY);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 1));
    let running = here.wait("running", "it runs", |object| object["status"]["running"] == 1);
    let pid = site.bed.operator_pid();
    lease(&site, &["delete", "lease", "htc-operator"]);
    let again = || site.bed.objects(OWN_LEASES).len() == 1 && holder(&site).0 == "bed";
    wait_for("the Lease to be there again", PATIENCE, again).unwrap();
    here.create(&site.noted("after", 1, ""));
    site.assert_complete_once(&here, "after", 1);
    assert_eq!(site.bed.operator_pid(), pid);

    let patch = json!({ "spec": { "holderIdentity": "somebody" } }).to_string();
    lease(&site, &["patch", "lease", "htc-operator", "--type=merge", "-p", &patch]);
    assert!(!site.bed.wait_operator().success(), "{}", site.bed.log());
    assert!(site.bed.log().contains("somebody has taken over the Lease"), "{}", site.bed.log());
    site.bed.start_operator();
    here.create(&site.noted("later", 1, ""));
    wait_for("the operator to stand by", PATIENCE, || site.bed.log().contains("standing by")).unwrap();
    site.assert_complete_once(&here, "later", 1);
    // Nobody else's ledger has led.
    assert!(!site.bed.log().contains("ledger incomplete"), "{}", site.bed.log());
    site.finish("running");
    let ended = site.assert_complete_once(&here, "running", 1);
    assert_eq!(ended["status"]["jobid"], running["status"]["jobid"]);
}

/// The holder recognizes its own renewals, whose answers were lost.
fn lost_renewal_answers_keep_the_lease(version: Version) {
    let site = Site::with(version, "", &SHORT);
    let proxy = site.bed.kube.proxy().unwrap();
    site.bed.through(&proxy);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 1));
    here.wait_phase("running", "Running");
    let pid = site.bed.operator_pid();
    for (fault, times) in [(Fault::LoseAnswer, 1), (Fault::CutAnswer, 2), (Fault::Status(409, None), 3)] {
        proxy.add(Rule::new("PUT", "/leases/", fault).times(times));
        wait_for("the fault to have struck", PATIENCE, || proxy.left() == 0).unwrap();
    }
    let renewed = || proxy.seen().iter().filter(|seen| seen.method == "PUT" && seen.fault.is_none()).count();
    let before = renewed();
    wait_for("some renewals", PATIENCE, || renewed() >= before + 3).unwrap();
    here.create(&site.noted("new", 1, ""));
    site.finish("running");
    for name in ["new", "running"] {
        site.assert_complete_once(&here, name, 1);
    }
    assert_eq!((site.bed.operator_pid(), holder(&site)), (pid, ("bed".to_owned(), "0".to_owned())));
}

/// So that the wait for an earlier operator's submitter is short.
const LIMITS: [&str; 2] = ["--submit-timeout=10s", "--submit-timeout-max=10s"];

fn assert_ended_once(site: &Site, here: &Namespace<'_>, names: &[&str], log: &dyn Fn() -> String) {
    for name in names {
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", log());
        site.bed.assert_once(&here.uid(name), name, 1);
        assert_eq!(site.runs(name, 0), 1, "{name}\n{}", log());
    }
}

/// Misconfigured: a second operator has the same name and a ledger of its own. The Lease takes it for a restart; the
/// first operator detects it at its next renewal.
fn second_process_of_one_identity_stops_the_first(version: Version) {
    let site = Site::with(version, "", &[&SHORT[..], &LIMITS].concat());
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 1));
    here.wait_phase("running", "Running");
    site.gates.shut("condor_submit");
    // The first, when it ends, may or may not come to end its condor_submit in time. Which it was, a young pool's history
    // does not say.
    let mut caught = site.lasting("caught", 1);
    caught["metadata"]["annotations"] = json!({ "htc.cern.ch/submit-again": "true" });
    here.create(&caught);
    site.gates.wait_at("condor_submit");

    let folder = Scratch::new().unwrap();
    let data = folder.dir("data").unwrap();
    let second = site.bed.start_another("bed", &data, &[&SHORT[..], &LIMITS, &[&site.bind()]].concat());
    wait_log(&second, "lease acquired");
    site.gates.open("condor_submit");
    assert!(!site.bed.wait_operator().success(), "{}", site.bed.log());
    assert!(site.bed.log().contains("bed has taken over the Lease"), "{}", site.bed.log());
    here.create(&site.noted("new", 1, ""));
    assert_ended_once(&site, &here, &["new"], &|| second.log_text());
    here.wait_phase("caught", "Running");
    site.finish("running");
    site.finish("caught");
    assert_ended_once(&site, &here, &["running", "caught"], &|| second.log_text());
    assert!(second.is_running());
    second.terminate().unwrap();
    second.wait(PATIENCE).unwrap();
}

/// Misconfigured: the standby's ledger is a copy of the leader's, with the same id. The Lease shows that the copy lacks
/// later changes.
fn standby_with_a_ledger_copy_submits_no_job_twice(version: Version) {
    let site = Site::with(version, "", &[&STEADY[..], &LIMITS].concat());
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("before", 1));
    here.wait_phase("before", "Running");
    site.bed.stop_operator();
    let folder = Scratch::new().unwrap();
    let data = folder.dir("data").unwrap();
    let file = "sqlite/htcjobs.db";
    Account::unprivileged().make_dir(&data.join("sqlite"), 0o755).unwrap();
    let copy = fs::read(site.bed.data.join(file)).unwrap();
    Account::unprivileged().write(&data.join(file), copy, 0o644).unwrap();

    site.bed.start_operator();
    wait_for("the first to lead", PATIENCE, || site.bed.log().contains("lease acquired")).unwrap();
    let other = site.bed.start_another("other", &data, &[&STEADY[..], &LIMITS, &[&site.bind()]].concat());
    wait_log(&other, "standing by lease=");
    here.create(&site.lasting("between", 1));
    here.wait_phase("between", "Running");
    site.bed.kill_operator();
    wait_log(&other, "past=OldCopy");
    wait_log(&other, "lease acquired");
    here.create(&site.noted("new", 1, ""));
    assert_ended_once(&site, &here, &["new"], &|| other.log_text());
    for name in ["before", "between"] {
        site.finish(name);
    }
    assert_ended_once(&site, &here, &["before", "between"], &|| other.log_text());
    other.terminate().unwrap();
    other.wait(PATIENCE).unwrap();
}
