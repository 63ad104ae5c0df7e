//! The soak: `HTCJob`s are created, completed, suspended, resumed, held by hand and deleted while the operator is killed at
//! random, again and again. Most have one job, some three, a few very many; once in each round many come at once. What jobs
//! report of themselves is lost, doubled and late at random on its way. Afterwards everything that can be seen is compared with
//! what was asked for.
//!
//! `make test` kills 10 times with the newer HTCondor, in a smaller round, `make soak KILLS=500` as often as one likes with both. What
//! happens to an `HTCJob` is a [`plan::Plan`]; [`driver`] does it, [`killer`] kills, [`collect`] looks, [`checker`] judges.

mod checker;
mod collect;
mod driver;
mod forged;
mod free;
mod killer;
mod plan;
mod report;
mod submitter;
mod watching;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use self::checker::{Rule, Violation, check};
use self::collect::Collected;
use self::driver::{Life, drive};
use self::plan::{Plan, QUEUE, QUOTA, SMALL, Size, WHOLE};
use self::report::Summary;
use self::submitter::Submitter;
use bed::carrier::{Carrier, Lot};
use bed::dice::Dice;
use bed::watch::Watch;
use bed::{Bed, Namespace, PATIENCE};
use testbed::{PoolOptions, Port, Scratch, Version, wait_for};

on_versions! {
    sid: every_job_runs_once_under_random_kills;
}

/// Kills in one round at most.
const KILLS: usize = 20;
/// Kills, and all of a smaller round, if `HTC_SOAK_KILLS` does not say.
const FEW_KILLS: usize = 10;

/// The servers of one soak.
pub struct Soak {
    // Fields drop in this order: the servers before their folders.
    bed: Bed,
    /// Between the jobs and the operator.
    carrier: Carrier,
    _port: Port,
    submitter: Submitter,
    /// The file in which payloads note that they run; its folder is bound into their containers.
    records: PathBuf,
    _scratch: Scratch,
    /// Of each round.
    size: Size,
    /// Kills so far.
    killed: AtomicUsize,
    /// `HTCJob`s that were seen to have ended, or to be deleted.
    ended: AtomicUsize,
    /// Whoever has it starts the operator; the driver takes it while it creates a crowd.
    next_life: Mutex<()>,
    /// A crowd was created since the operator was last started.
    crowded: AtomicBool,
    /// The operator that runs is not killed any more.
    rests: AtomicBool,
    /// When each operator was started, and when it was stopped or ended, in seconds since 1970.
    awake: Mutex<Vec<(i64, Option<i64>)>>,
    began: Instant,
}

impl Soak {
    fn new(version: Version, size: Size, mut dice: Dice) -> Self {
        let scratch = Scratch::new().unwrap();
        let runs = scratch.dir("runs").unwrap();
        let submitter = Submitter::new(version);
        let bind = format!("--bind={}", runs.display());
        let port = Port::reserve().unwrap();
        let listen = format!("--callback-listen=127.0.0.1:{}", port.number);
        let carrier = Carrier::new(port.number, move |_| lot(&mut dice));
        let queueing = "--queueing=embedded".to_owned();
        let arguments = [submitter.argument(), bind, carrier.argument(), listen, queueing];
        let bed = Bed::new(version, &PoolOptions::default(), &arguments.each_ref().map(String::as_str));
        let queue = json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": QUEUE },
            "spec": { "namespaceSelector": {}, "quota": { "jobs": QUOTA } },
        });
        bed.apply(&queue);
        Self {
            bed,
            carrier,
            _port: port,
            submitter,
            records: runs.join("records"),
            _scratch: scratch,
            size,
            killed: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            next_life: Mutex::new(()),
            crowded: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            awake: Mutex::default(),
            began: Instant::now(),
        }
    }

    /// One round: the `HTCJob`s of its plans, `kills` times the end of the operator, and then rest. What is wrong
    /// after it, and the uids of its `HTCJob`s.
    fn round(&self, kills: usize, dice: &mut Dice, former: &[String], summary: &mut Summary) -> Vec<String> {
        let here = self.bed.namespace();
        let watch = here.watch();
        let (plans, creations) = (Plan::round(self.size, dice), self.size.creations());
        let (mut at_kills, before) = (dice.fork(), self.killed.load(Ordering::Relaxed));
        let before_ended = self.ended.load(Ordering::Relaxed);
        self.rests.store(false, Ordering::Relaxed);
        // Creation keeps step with the kills, and is over when six of ten are done, but for the last one.
        let turn = || {
            let kill = self.killed.load(Ordering::Relaxed) - before;
            (1 + kill * creations * 10 / (kills * 6).max(1)).min(creations) + usize::from(kill >= kills)
        };
        let (lives, (tally, mut violations)) = thread::scope(|scope| {
            let killer = scope.spawn(|| killer::kill(self, &mut at_kills, kills));
            let lives = drive(self, &here, plans, &turn);
            (lives, killer.join().unwrap())
        });
        summary.tally.add(tally);
        summary.reports = self.carrier.tally();
        self.ended.store(before_ended + lives.len(), Ordering::Relaxed);
        let found = self.settle(&here, &watch, lives, former);
        let (wrong, late_holds) = judge(&found);
        violations.extend(wrong);
        summary.late_holds += late_holds;
        summary.add(&found);
        if !violations.is_empty() {
            self.tell(&found, &violations);
        }
        summary.violations += violations.len();
        summary.broken += by_the_operator(&violations).count();
        if violations.is_empty() {
            here.begin_delete_all();
            wait_for("all HTCJobs to be gone", PATIENCE, || here.all().is_empty()).unwrap();
        }
        found.lives.into_iter().map(|life| life.uid).collect()
    }

    /// An operator is about to be stopped or ended.
    fn sleeps(&self) {
        if let Some((_, end @ None)) = self.awake.lock().unwrap().last_mut() {
            *end = Some(now());
        }
    }

    /// An operator was started, in the place of one that may still run.
    fn wakes_up(&self) {
        self.sleeps();
        self.awake.lock().unwrap().push((now(), None));
    }

    /// When an operator was there.
    fn awake(&self) -> Vec<(i64, i64)> {
        self.awake.lock().unwrap().iter().map(|(from, to)| (*from, to.unwrap_or_else(now))).collect()
    }

    /// Waits until nothing is wrong, or nothing changes any more that could mend it.
    fn settle(&self, here: &Namespace<'_>, watch: &Watch, mut lives: Vec<Life>, former: &[String]) -> Collected {
        let (mut last, mut since) = (Vec::new(), Instant::now());
        loop {
            let objects = here.all();
            for life in &mut lives {
                life.look(&objects);
            }
            let found = self.collect(here, watch, &lives, former);
            let (violations, _) = judge(&found);
            if violations.is_empty() {
                return found;
            }
            if violations != last {
                (last, since) = (violations, Instant::now());
            }
            if since.elapsed() > STILL {
                return found;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Of so many `HTCJob`s at most one meets a hold that HTCondor carries out too late.
const LATE_HOLDS: usize = 50;

/// What is wrong for this long stays wrong: longer than any of the operator's pauses and time limits in tests, and than HTCondor
/// leaves a released job idle. For 25.14 that has been more than two minutes, behind jobs of the same user that cannot run.
const STILL: Duration = Duration::from_secs(300);

/// Seconds since 1970, as HTCondor's dates.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}

/// What is wrong, without what follows from holds that HTCondor has carried out too late ([`Rule::RemovedByHold`]); and how many
/// `HTCJob`s have met such a one.
fn judge(found: &Collected) -> (Vec<Violation>, usize) {
    let mut violations = check(found);
    let met = violations.iter().filter(|violation| violation.rule == Rule::RemovedByHold);
    let met: BTreeSet<String> = met.map(|violation| violation.uid.clone()).collect();
    violations.retain(|violation| !met.contains(&violation.uid));
    (violations, met.len())
}

/// Without what follows from HTCondor's removing a job by itself: its `HTCJob` has no output of it, for example. And without
/// what the watch has missed.
fn by_the_operator(violations: &[Violation]) -> impl Iterator<Item = &Violation> {
    let by_others = |uid: &str| violations.iter().any(|other| other.rule == Rule::RemovedByOthers && other.uid == uid);
    violations.iter().filter(move |violation| violation.rule != Rule::Unwatched && !by_others(&violation.uid))
}

/// What becomes of a report on its way. What is late may come after the next start of its job, or after the job is gone.
fn lot(dice: &mut Dice) -> Lot {
    match dice.below(20) {
        0..=9 => Lot::Comes,
        10 | 11 => Lot::Lost,
        12 | 13 => Lot::Unanswered,
        14 => Lot::Twice,
        15 | 16 => Lot::Refused,
        _ => Lot::Late(dice.milliseconds(200, 12_000)),
    }
}

fn every_job_runs_once_under_random_kills(version: Version) {
    bed::turns::take(bed::Weight::Heavy);
    let asked = std::env::var("HTC_SOAK_KILLS").ok();
    let (size, kills) = asked.map_or((SMALL, FEW_KILLS), |kills| (WHOLE, kills.parse().unwrap()));
    let mut dice = Dice::new(&format!("soak, {version}"));
    let mut summary = Summary::new(version, kills);
    let soak = Soak::new(version, size, dice.fork());
    let rounds = kills.div_ceil(KILLS);
    let mut former = Vec::new();
    for round in 0..rounds {
        let killed = soak.killed.load(Ordering::Relaxed);
        former.extend(soak.round((kills - killed).div_ceil(rounds - round), &mut dice, &former, &mut summary));
        summary.print();
        if summary.violations > 0 {
            break;
        }
    }
    // Its logs go with it: what matters has been printed.
    drop(soak);
    // What HTCondor does may be looked at again.
    let _promise = (summary.broken > 0).then_some(bed::Promise);
    assert_eq!(summary.violations, 0, "{version}: violations, see above");
    assert!(summary.late_holds <= summary.objects / LATE_HOLDS, "{version}: {} late holds", summary.late_holds);
    assert!(summary.places > 0, "{version}: no place was left while an operator was there");
    assert!(summary.reports.stored > 0 && summary.early > 0, "{version}: no job's report had an effect");
}
