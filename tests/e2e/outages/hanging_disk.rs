//! The ledger's disk hangs: it fails no call, and answers none.

use std::net::SocketAddr;

use testbed::{Port, Scratch, Version, wait_for};

use crate::callbacks::readiness;
use crate::outages::leader::{SHORT, holder, wait_log};
use bed::site::{PROMPT, Site};
use bed::{Namespace, PATIENCE, is_true};

on_versions! {
    trixie: leader_on_a_hanging_disk_gives_up_its_lease;
    sid: operator_restarted_on_a_hanging_disk_waits_and_continues;
}

/// So that the wait for an earlier operator's submitter is short.
const LIMITS: [&str; 2] = ["--submit-timeout=10s", "--submit-timeout-max=10s"];

struct Scene {
    site: Site,
    monitor: Port,
}

impl Scene {
    fn new(version: Version) -> Self {
        let monitor = Port::reserve().unwrap();
        let listen = format!("--metrics-bind-address=127.0.0.1:{}", monitor.number);
        let mut site = Site::with(version, "", &[&SHORT[..], &LIMITS, &[&listen]].concat());
        site.bed.keep_what_is_on_the_disk();
        site.bed.start_operator();
        Self { site, monitor }
    }

    fn wait_ready_but(&self, missing: &[&str]) {
        readiness::wait(SocketAddr::from(([127, 0, 0, 1], self.monitor.number)), missing);
    }

    /// Jobs of `running` run, and those of `caught` are submitted while the disk hangs, so that nothing notes that.
    fn hang(&self, here: &Namespace<'_>) {
        let Self { site, .. } = self;
        here.create(&site.lasting("running", 1));
        here.wait_phase("running", "Running");
        site.gates.shut("condor_submit");
        let caught = here.create(&site.lasting("caught", 1));
        site.gates.wait_at("condor_submit");
        site.bed.hang_the_disk();
        site.gates.open("condor_submit");
        wait_for("the jobs to be submitted", PATIENCE, || site.bed.jobs_of(&caught).iter().any(|job| job.accepted))
            .unwrap();
        site.bed.wait_for_the_hanging_disk();
        self.wait_ready_but(&["ledger-answers"]);
    }

    fn assert_ended_once(&self, here: &Namespace<'_>, names: &[&str], log: &dyn Fn() -> String) {
        for name in names {
            self.site.finish(name);
            let ended = here.wait_ended(name);
            assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", log());
            let seen = self.site.bed.assert_once(&here.uid(name), name, 1);
            assert_eq!(seen[0].attempt, 1, "{seen:#?}\n{}", log());
            assert_eq!(self.site.runs(name, 0), 1, "{name}\n{}", log());
        }
    }
}

/// The leader does nothing, reports it, and no longer renews its Lease; it ends once another operator leads. That one
/// has its own ledger here: the file stays open and locked while the disk hangs.
fn leader_on_a_hanging_disk_gives_up_its_lease(version: Version) {
    let scene = Scene::new(version);
    let Scene { site, .. } = &scene;
    let here = site.bed.namespace();
    scene.hang(&here);
    wait_for("the leader to say so", PATIENCE, || site.bed.log().contains("ledger does not answer, lease not renewed"))
        .unwrap();
    let submitted = site.gates.calls("condor_submit");
    here.create(&site.noted("new", 1, ""));

    let folder = Scratch::new().unwrap();
    let data = folder.dir("data").unwrap();
    let other = site.bed.start_another("other", &data, &[&SHORT[..], &LIMITS, &[&site.bind()]].concat());
    wait_log(&other, "lease acquired");
    assert!(site.bed.operator_ended().is_none(), "{}", site.bed.log());
    scene.assert_ended_once(&here, &["new", "running", "caught"], &|| other.log_text());

    site.bed.have_the_disk_answer();
    assert!(!site.bed.wait_operator().success(), "{}", site.bed.log());
    assert!(site.bed.log().contains("other has taken over the Lease"), "{}", site.bed.log());
    assert_eq!(
        site.gates.calls("condor_submit"),
        submitted,
        "the first one has submitted something\n{}",
        site.bed.log()
    );
    assert_eq!(holder(site).0, "other");
    other.terminate().unwrap();
    other.wait(PATIENCE).unwrap();
}

/// Each operator ends on SIGTERM, and the one that runs when the disk answers continues.
fn operator_restarted_on_a_hanging_disk_waits_and_continues(version: Version) {
    let scene = Scene::new(version);
    let Scene { site, .. } = &scene;
    let here = site.bed.namespace();
    scene.hang(&here);
    here.create(&site.noted("new", 1, ""));
    let took = site.bed.stop_operator();
    assert!(took < PROMPT, "it took {took:?} to stop");

    let submitted = site.gates.calls("condor_submit");
    site.bed.start_operator();
    site.bed.wait_for_the_hanging_disk();
    scene.wait_ready_but(&readiness::GATES);
    let took = site.bed.stop_operator();
    assert!(took < PROMPT, "it took {took:?} to stop one that has not come to its ledger");

    site.bed.start_operator();
    site.bed.wait_for_the_hanging_disk();
    assert_eq!(site.gates.calls("condor_submit"), submitted);
    site.bed.have_the_disk_answer();
    scene.wait_ready_but(&[]);
    scene.assert_ended_once(&here, &["new", "running", "caught"], &|| site.bed.logs());
    assert!(!site.bed.log().contains("ledger incomplete"), "{}", site.bed.log());
}
