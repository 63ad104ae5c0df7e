//! The operator is stopped and killed.

use std::thread;

use serde_json::{Value, json};
use testbed::{Version, wait_for};

use crate::bed::dice::Dice;
use crate::bed::{Namespace, PATIENCE};
use crate::site::{PROMPT, Site};

#[derive(Clone, Copy)]
enum End {
    Terminate,
    Kill,
}

impl End {
    fn of(self, site: &Site) {
        match self {
            Self::Kill => site.bed.kill_operator(),
            // That it ends with 0 is checked there.
            Self::Terminate => {
                let took = site.bed.stop_operator();
                println!("SIGTERM took {took:?}");
                assert!(took < PROMPT, "SIGTERM took {took:?}");
            }
        }
    }
}

pub fn stopped_at_any_point_it_goes_on(version: Version) {
    goes_on(version, End::Terminate);
}

pub fn killed_at_any_point_it_goes_on(version: Version) {
    goes_on(version, End::Kill);
}

fn goes_on(version: Version, end: End) {
    let site = Site::new(version);
    let here = site.bed.namespace();

    // Created while there is none.
    here.create(&site.noted("early", 1, ""));
    site.bed.start_operator();

    // Between the finalizer and the intent.
    site.gates.shut("condor_history");
    here.create(&site.noted("guarded", 1, ""));
    site.gates.wait_at("condor_history");
    end.of(&site);
    assert_eq!(here.get("guarded")["metadata"]["finalizers"].as_array().unwrap().len(), 1);
    site.gates.open("condor_history");
    site.bed.start_operator();
    site.assert_complete_once(&here, "early", 1);
    let guarded = site.assert_complete_once(&here, "guarded", 1);
    assert_eq!(guarded["status"]["attempt"], 1);

    // While jobs run, are removed, are handed to condor_submit and wait for their turn, all at once.
    let deleted = here.create(&site.lasting("deleted", 2));
    here.create(&site.lasting("running", 2));
    for name in ["deleted", "running"] {
        here.wait(name, "both jobs run", |object| object["status"]["running"] == 2);
    }
    site.gates.shut("condor_rm");
    here.kubectl(&["delete", "htcjob", "deleted", "--wait=false"]);
    site.gates.wait_at("condor_rm");
    site.gates.shut("condor_submit");
    here.create(&site.noted("handed", 2, ""));
    let submitter = site.gates.wait_at("condor_submit");
    here.create(&site.noted("waiting", 1, ""));
    end.of(&site);
    site.gates.open("condor_rm");
    site.bed.start_operator();
    wait_for("the end of the submitter by its time limit", PATIENCE, || !is_alive(submitter)).unwrap();
    site.gates.open("condor_submit");
    here.wait_gone("deleted");
    site.bed.assert_removed(&deleted, "deleted");
    site.assert_complete_once(&here, "handed", 2);
    site.assert_complete_once(&here, "waiting", 1);
    assert_eq!(here.get("running")["status"]["running"], 2);
    site.finish("running");
    site.assert_complete_once(&here, "running", 2);

    // After condor_submit, before the acceptance is recorded; one is to be deleted at that.
    let staged = here.create(&site.noted("staged", 1, ""));
    let doomed = here.create(&site.lasting("doomed", 1));
    for uid in [&staged, &doomed] {
        wait_for("the job in the queue", PATIENCE, || !site.bed.jobs_of(uid).is_empty()).unwrap();
    }
    here.kubectl(&["delete", "htcjob", "doomed", "--wait=false"]);
    end.of(&site);
    site.bed.start_operator();
    here.wait_gone("doomed");
    site.bed.assert_removed(&doomed, "doomed");
    let ended = site.assert_complete_once(&here, "staged", 1);
    assert_eq!(ended["status"]["attempt"], 1);

    site.assert_journal_told(&here);
    for name in ["early", "guarded", "handed", "waiting", "running", "staged"] {
        for reason in ["Pending", "Submitted", "Running", "Completed", "Fetched"] {
            assert_eq!(here.count_events(name, reason), 1, "{name}: {:?}", here.events(name));
        }
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// `HTCJob`s of the random run.
const OBJECTS: u64 = 12;
const KILLS: usize = 15;

/// What happens to one of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Left,
    Suspended,
    Deleted,
}

fn fate(number: u64) -> Fate {
    match number % 4 {
        1 => Fate::Suspended,
        3 => Fate::Deleted,
        _ => Fate::Left,
    }
}

fn jobs(number: u64) -> u32 {
    u32::try_from(number % 3).unwrap() + 1
}

pub fn killed_at_random_every_job_runs_once(version: Version) {
    let site = Site::new(version);
    let here = site.bed.namespace();
    let mut dice = Dice::new(&format!("killed at random, {version}"));
    let mut pauses = Dice::new("what users do meanwhile");
    let uids = thread::scope(|scope| {
        let users = scope.spawn(|| use_it(&site, &here, &mut pauses));
        for _ in 0..KILLS {
            site.bed.start_operator();
            thread::sleep(dice.milliseconds(50, 1500));
            site.bed.kill_operator();
        }
        users.join().unwrap()
    });
    site.bed.start_operator();
    for (number, uid) in (0..).zip(&uids) {
        let name = format!("r{number}");
        if fate(number) == Fate::Deleted {
            here.wait_gone(&name);
            site.bed.assert_removed(uid, &name);
        } else {
            assert_ended(&site, &here, &name, uid, number);
        }
    }
    let left = site.bed.queue("true", &["HTCJobUID", "ClusterId", "JobStatus"]);
    assert!(left.is_empty(), "left in the queue: {left:?}, known: {uids:?}");
    let attempts: Vec<u64> = here.all().iter().filter_map(|object| object["status"]["attempt"].as_u64()).collect();
    println!("{version}: attempts {attempts:?}, {} condor_submit", site.gates.calls("condor_submit"));
    site.assert_journal_told(&here);
}

/// What people do while the operator comes and goes: create, suspend, resume, delete.
fn use_it(site: &Site, here: &Namespace<'_>, dice: &mut Dice) -> Vec<String> {
    let suspend = |number: u64, value: bool| {
        let patch = json!({ "spec": { "suspend": value } }).to_string();
        here.kubectl(&["patch", "htcjob", &format!("r{number}"), "--type=merge", "-p", &patch]);
    };
    let mut uids = Vec::new();
    for number in 0..OBJECTS {
        uids.push(here.create(&site.noted(&format!("r{number}"), jobs(number), "sleep 0.5")));
        thread::sleep(dice.milliseconds(0, 800));
        // Those of two rounds ago, so that their fate meets them anywhere.
        if let Some(older) = number.checked_sub(2) {
            match fate(older) {
                Fate::Left => {}
                Fate::Suspended => suspend(older, true),
                Fate::Deleted => drop(here.kubectl(&["delete", "htcjob", &format!("r{older}"), "--wait=false"])),
            }
        }
        if let Some(oldest) = number.checked_sub(4).filter(|oldest| fate(*oldest) == Fate::Suspended) {
            suspend(oldest, false);
        }
    }
    for number in OBJECTS - 4..OBJECTS {
        match fate(number) {
            Fate::Suspended => suspend(number, false),
            Fate::Deleted if number >= OBJECTS - 2 => {
                drop(here.kubectl(&["delete", "htcjob", &format!("r{number}"), "--wait=false"]));
            }
            Fate::Left | Fate::Deleted => {}
        }
    }
    uids
}

/// A job that was suspended while it ran is begun again by HTCondor: one job all the same.
fn assert_ended(site: &Site, here: &Namespace<'_>, name: &str, uid: &str, number: u64) {
    let jobs = jobs(number);
    if fate(number) == Fate::Left {
        site.assert_complete_once(here, name, jobs);
        return;
    }
    let ended: Value = here.wait_ended(name);
    assert_eq!(ended["status"]["succeeded"], jobs, "{ended:#}\n{}", site.bed.logs());
    assert_eq!(ended["status"]["failed"], 0, "{ended:#}");
    here.wait_nothing_left(uid);
    for job in site.bed.assert_once(uid, name, jobs) {
        let runs = u32::try_from(site.runs(name, job.index)).unwrap();
        assert!((1..=job.starts).contains(&runs), "{name}.{} ran {runs} times: {job:?}", job.index);
    }
}
