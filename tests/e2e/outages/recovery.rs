//! The operator is killed while `condor_submit` is under way, and started again on the same machine.

use std::time::{Duration, Instant};

use bed::signals::{Unlimited, parent, signal};
use bed::site::Site;
use bed::{PATIENCE, condition};
use htc_machine::Rules;
use htc_machine::judge::{SubmitterLock, submitter_gone};
use htcondor::SubmitterLocks;
use rusqlite::Connection;
use rustix::process::Signal;
use testbed::{Version, wait_for};

on_versions! {
    trixie: living_orphan_submitter_is_waited_for;
    sid: work_of_a_dead_submitter_continues_at_once, submitter_on_another_machine_is_waited_for_until_its_limit;
    long: accepted_htcjob_waits_for_no_submitter;
}

/// From the start of the operator until what a dead submitter has left is submitted again, or let go.
const AT_ONCE: Duration = Duration::from_secs(5);
/// How often that is tried: a machine that stands still meanwhile says nothing about the operator.
const TRIES: usize = 5;

/// A submitter's time limit, two minutes with its margin: far longer than anything here.
const LONG: &[&str] = &["--submit-timeout=60s", "--submit-timeout-max=60s", "--dead-margin=60s"];

/// The submitter is dead when the next operator starts: its jobs are submitted again, or its HTCJob is released, at
/// once.
fn work_of_a_dead_submitter_continues_at_once(version: Version) {
    let site = Site::with(version, "", LONG);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut took = Vec::new();
    for turn in 1..=TRIES {
        let (again, doomed) = (format!("again-{turn}"), format!("doomed-{turn}"));
        // Whoever comes while history is asked goes along.
        for tool in ["condor_history", "condor_submit"] {
            site.gates.shut(tool);
        }
        here.create_all(&[site.noted(&again, 2, ""), site.noted(&doomed, 1, "")]);
        site.gates.wait_at("condor_history");
        for name in [&again, &doomed] {
            here.wait(name, "the finalizer", |object| object["metadata"]["finalizers"].is_array());
        }
        site.gates.open("condor_history");
        site.gates.wait_at("condor_submit");
        site.bed.kill_operator();
        let together = locks(&site, &here.uid(&doomed)) == locks(&site, &here.uid(&again));
        here.begin_delete(&doomed);
        // It ends before it has said anything to the schedd.
        site.gates.replace("condor_submit", "exit 0");
        site.gates.open("condor_submit");
        for lock in locks(&site, &here.uid(&again)) {
            wait_for("the submitter to end", PATIENCE, || is_gone(&site, &lock)).unwrap();
        }
        site.gates.restore("condor_submit");
        let started = Instant::now();
        site.bed.start_operator();
        here.wait(&again, "its jobs are accepted", |object| object["status"]["attempt"] == 2);
        let resubmitted = started.elapsed();
        here.wait_gone(&doomed);
        took.push(started.elapsed());
        println!("{version}: submitted again after {resubmitted:.1?}, both done after {:.1?}", started.elapsed());
        site.assert_complete_once(&here, &again, 2);
        assert_eq!(here.count_events(&again, "SubmitterMayLive"), 0, "{:?}", here.events(&again));
        if took.last().is_some_and(|took| together && *took <= AT_ONCE) {
            assert_eq!(files(&site), 0, "locks that nobody needs are removed");
            return;
        }
    }
    panic!("{took:?}");
}

/// All jobs of the HTCJob are accepted: a submitter that still lives does not matter.
fn accepted_htcjob_waits_for_no_submitter(version: Version) {
    let site = Site::with(version, "", LONG);
    site.bed.start_operator();
    let here = site.bed.namespace();
    // It stays when its work is done.
    site.gates.replace("condor_submit", "\"$@\"; exec sleep 1000");
    let uid = here.create(&site.lasting("done", 2));
    let accepted = || site.bed.queue(&format!("HTCJobUID == \"{uid}\" && StageInFinish > 0"), &["ProcId"]);
    wait_for("its jobs", PATIENCE, || accepted().len() == 2).unwrap();
    site.bed.kill_operator();
    let [lock] = locks(&site, &uid).try_into().unwrap();
    site.bed.start_operator();
    here.wait_phase("done", "Running");
    here.begin_delete("done");
    here.wait_gone("done");
    assert!(!is_gone(&site, &lock), "it was waited for");
    site.bed.assert_removed(&uid, "done");
    assert_eq!(here.count_events("done", "SubmitterMayLive"), 0, "{:?}", here.events("done"));
}

/// A hanging or stopped submitter does not count as dead: HTCondor's own tool keeps its lock even when the `timeout`
/// above it is gone.
fn living_orphan_submitter_is_waited_for(version: Version) {
    let site = Site::with(version, "", LONG);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.gates.shut("condor_submit");
    let uid = here.create(&site.noted("orphan", 2, ""));
    let submitter = site.gates.wait_at("condor_submit");
    site.bed.pool.pause_schedd().unwrap();
    // It says that it begins before it reaches the schedd, and would die of that if nobody listened any more.
    site.gates.replace("condor_submit", "exec \"$@\" >/dev/null 2>&1");
    site.gates.open("condor_submit");
    // The gate is a script of the same name.
    let program = || std::fs::read_link(format!("/proc/{submitter}/exe")).unwrap_or_default();
    wait_for("HTCondor's own tool", PATIENCE, || program().ends_with("condor_submit")).unwrap();
    site.gates.restore("condor_submit");
    site.bed.kill_operator();
    let [lock] = locks(&site, &uid).try_into().unwrap();
    let orphan = submitter.unsigned_abs();
    let above = parent(orphan);
    signal(above, Signal::KILL);
    // Whoever stands still when the last process above its group dies is hung up on, if that has its parent in the same session.
    wait_for("the end of what limits its time", PATIENCE, || parent(orphan) != above).unwrap();
    signal(orphan, Signal::STOP);
    site.bed.pool.resume_schedd().unwrap();
    assert!(!is_gone(&site, &lock), "it is alive");
    site.bed.start_operator();
    here.wait_says("orphan", "Submitted", "False", "SubmitterMayLive");
    let asked = site.gates.calls("condor_q");
    wait_for("some looks", PATIENCE, || site.gates.calls("condor_q") >= asked + 3).unwrap();
    assert!(!is_gone(&site, &lock), "it is alive");
    assert_eq!(site.gates.calls("condor_submit"), 1, "nothing is submitted while it may land");
    // Now it is not, and that is seen at once.
    let killed = Instant::now();
    signal(orphan, Signal::KILL);
    let ended = site.assert_complete_once(&here, "orphan", 2);
    println!("{version}: complete {:.1?} after its orphan was killed", killed.elapsed());
    assert_eq!(ended["status"]["attempt"], 2, "{ended:#}");
}

/// Where nothing shows that a submitter is dead, its time limit is waited for.
fn submitter_on_another_machine_is_waited_for_until_its_limit(version: Version) {
    let limits = ["--submit-timeout=10s", "--submit-timeout-max=10s", "--dead-margin=5s"];
    let site = Site::with(version, "", &limits);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.gates.shut("condor_submit");
    let uid = here.create(&site.noted("moved", 1, ""));
    let submitter = site.gates.wait_at("condor_submit");
    let began = Instant::now();
    site.bed.kill_operator();
    drop(Unlimited::new(submitter));
    site.gates.open("condor_submit");
    let [lock] = locks(&site, &uid).try_into().unwrap();
    wait_for("the submitter to end", PATIENCE, || is_gone(&site, &lock)).unwrap();
    // The next operator's machine has another boot id than the one that the intent names.
    let ledger = Connection::open(site.bed.data.join("sqlite/htcjobs.db")).unwrap();
    let elsewhere = SubmitterLock { boot: "0a7ac82f-0000-4000-8000-000000000000".to_owned(), ..lock };
    assert_eq!(ledger.execute("update submissions set lock = ?1", [elsewhere.to_string()]), Ok(1));
    drop(ledger);
    site.bed.start_operator();
    let object = here.wait("moved", "what is waited for", |object| {
        condition(object, "Submitted").is_some_and(|condition| condition["reason"] == "SubmitterMayLive")
    });
    assert_eq!(object["status"]["phase"], "Pending");
    here.wait("moved", "its job is accepted", |object| object["status"]["attempt"] == 2);
    assert!(began.elapsed() >= Duration::from_secs(10 + 5), "after {:?}: nobody knew", began.elapsed());
    site.assert_complete_once(&here, "moved", 1);
}

/// The locks of the submitters of one object that were not seen to end.
fn locks(site: &Site, uid: &str) -> Vec<SubmitterLock> {
    let ledger = Connection::open(site.bed.data.join("sqlite/htcjobs.db")).unwrap();
    let mut rows = ledger.prepare("select lock from submissions where uid = ?1 and deadSince is null").unwrap();
    let rows = rows.query_map([uid], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|lock| lock.unwrap().parse().unwrap()).collect()
}

fn is_gone(site: &Site, lock: &SubmitterLock) -> bool {
    let seen = SubmitterLocks::new(&site.bed.data).look(lock, &htc_support::clock::Clock::default());
    submitter_gone(lock, &seen.unwrap(), &Rules::ALL).is_some()
}

/// Files of locks.
fn files(site: &Site) -> usize {
    std::fs::read_dir(site.bed.data.join("submitters")).unwrap().count()
}
