//! A `condor_submit` whose end is unknown.

use std::time::{Duration, Instant};

use testbed::{Version, wait_for};

use bed::signals::Unlimited;
use bed::site::Site;
use bed::{PATIENCE, condition, of};

on_versions! {
    trixie: deletion_waits_for_a_living_submitter;
    sid: abandonment_waits_for_a_living_submitter, late_jobs_are_removed_before_their_submitter_counts_as_dead;
}

/// The submit limit below, and what the schedd's clock, which counts whole seconds, may add to it.
const TOO_LATE: Duration = Duration::from_secs(5 + 10);

/// `late_is_no_job`, `remove_extra`: jobs whose files arrive too late are found before their submitter counts as dead.
/// They do not count and are removed, and there is no other attempt until then. The schedd's own removal is disabled.
fn late_jobs_are_removed_before_their_submitter_counts_as_dead(version: Version) {
    let limits = ["--submit-timeout=5s", "--submit-timeout-max=5s", "--late-margin=0s", "--dead-margin=30s"];
    let site = Site::with(version, "PERIODIC_EXPR_INTERVAL = 3600\n", &limits);
    site.bed.pool.set_start(false).unwrap();
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.gates.shut("condor_submit");
    let uid = here.create(&site.noted("late", 1, ""));
    let submitter = site.gates.wait_at("condor_submit");
    let began = Instant::now();
    site.bed.kill_operator();
    let _submitter = Unlimited::new(submitter);
    site.bed.start_operator();
    here.wait_says("late", "Submitted", "False", "SubmitterMayLive");
    wait_for("the time of the submission to be over", PATIENCE, || began.elapsed() >= TOO_LATE).unwrap();
    site.gates.open("condor_submit");
    wait_for("the late job", PATIENCE, || site.bed.jobs_of(&uid).first().is_some_and(|job| job.late)).unwrap();

    let removed = wait_for("the late job to be removed", PATIENCE, || {
        assert_eq!(here.get("late")["status"]["phase"], "Pending", "a late job was taken for one that counts");
        let rows = site.bed.history(&of(&uid), &["HTCJobAttempt", "RemoveReason"]);
        rows.first().map(|row| row.join(" ")).ok_or_else(|| format!("{:?}", site.bed.jobs_of(&uid)))
    })
    .unwrap();
    assert!(removed.starts_with("1 removed by htc-operator"), "{removed}");
    site.bed.pool.set_start(true).unwrap();
    let ended = here.wait_ended("late");
    assert_eq!(ended["status"]["succeeded"], 1, "{ended:#}");
    site.bed.assert_once(&uid, "late", 1);
    assert_eq!(site.runs("late", 0), 1);
    assert!(ended["status"]["attempt"].as_u64().unwrap() >= 2, "{ended:#}");
}

/// `wait_for_submitter`: nothing is removed, and nothing is let go, while a submitter may still bring jobs in.
fn deletion_waits_for_a_living_submitter(version: Version) {
    let site = Site::with(version, "", &["--submit-timeout=40s", "--submit-timeout-max=40s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.gates.shut("condor_submit");
    let uid = here.create(&site.noted("doomed", 1, ""));
    site.gates.wait_at("condor_submit");
    site.bed.kill_operator();
    here.begin_delete("doomed");
    site.bed.start_operator();
    let object =
        here.wait("doomed", "what its deletion waits for", |object| condition(object, "JobsRemoved").is_some());
    let reported = condition(&object, "JobsRemoved").unwrap();
    assert_eq!((&reported["status"], &reported["reason"]), (&"False".into(), &"SubmitterMayLive".into()), "{reported}");
    let asked = site.gates.calls("condor_q");
    wait_for("two more looks", PATIENCE, || site.gates.calls("condor_q") >= asked + 2).unwrap();
    assert_eq!(site.gates.calls("condor_rm"), 0, "{}", site.bed.log());
    site.gates.open("condor_submit");
    wait_for("its job", PATIENCE, || !site.bed.jobs_of(&uid).is_empty()).unwrap();
    here.wait_gone("doomed");
    site.bed.assert_removed(&uid, "doomed");
    assert_eq!(site.bed.jobs_of(&uid).len(), 1);
}

/// An object that is abandoned is not let go while a tool runs for it, and its jobs are removed once before it goes.
fn abandonment_waits_for_a_living_submitter(version: Version) {
    let site = Site::with(version, "", &["--submit-timeout=20s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.gates.shut("condor_submit");
    let uid = here.create(&site.lasting("left", 1));
    site.gates.wait_at("condor_submit");
    here.annotate("left", "htc.cern.ch/abandon");
    here.begin_delete("left");
    here.wait_phase("left", "Terminating");
    site.gates.open("condor_submit");
    here.wait_gone("left");
    // What it was abandoned with was there before it went: the one condor_rm has found it.
    here.wait_event("left", "JobsRemoved");
    assert_eq!(site.gates.calls("condor_rm"), 1);
    here.wait_nothing_left(&uid);
}
