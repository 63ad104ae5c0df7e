//! Creates the `HTCJob`s of a round and carries out the plan of each, while the operator is killed and started.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::wait_for;

use crate::soak::Soak;
use crate::soak::collect::Ad;
use crate::soak::free::{Place, places};
use crate::soak::plan::{Act, Fate, Plan, Step};
use bed::{Namespace, PATIENCE};

/// An `HTCJob` that was created, and how it was seen.
#[derive(Clone, Debug)]
pub struct Life {
    pub plan: Plan,
    pub uid: String,
    /// Its status each time it was listed and had changed.
    pub seen: Vec<Value>,
    /// Steps that were done.
    done: usize,
    /// Since when the next step's phase is reached.
    since: Option<Instant>,
}

const PHASES: [&str; 5] = ["Pending", "Submitted", "Running", "Completed", "Terminating"];

/// The rank of `Completed`.
pub const ENDED: usize = 4;

/// How far a status has come; 0 for none.
pub fn rank(status: &Value) -> usize {
    PHASES.iter().position(|phase| status["phase"] == *phase).map_or(0, |at| at + 1)
}

/// Lives the plans of one round. `turn` says how many of the lists may have been created by now.
pub fn drive(soak: &Soak, here: &Namespace<'_>, plans: Vec<Vec<Plan>>, turn: &dyn Fn() -> usize) -> Vec<Life> {
    let before = soak.ended.load(Ordering::Relaxed);
    let mut waiting = plans.into_iter();
    let mut lives: Vec<Life> = Vec::new();
    let mut created = 0;
    loop {
        if created < turn()
            && let Some(plans) = waiting.next()
        {
            lives.extend(soak.create(here, plans));
            created += 1;
        }
        let objects = here.all();
        let ended = lives.iter().filter(|life| life.seen.last().map_or(0, rank) >= ENDED).count();
        soak.ended.store(before + ended, Ordering::Relaxed);
        for life in &mut lives {
            life.look(&objects);
            while let Some(act) = life.due() {
                soak.act(here, life, act);
                (life.done, life.since) = (life.done + 1, None);
            }
        }
        if waiting.len() == 0 && lives.iter().all(|life| life.done == life.plan.steps.len()) {
            return lives;
        }
        // The pace of the people who use it.
        thread::sleep(Duration::from_millis(100));
    }
}

impl Life {
    pub fn new(plan: Plan, uid: String, seen: Vec<Value>) -> Self {
        Self { plan, uid, seen, done: 0, since: None }
    }

    /// Places that its jobs have left to others, if it has the same number of them all the time.
    pub fn places(&self, ads: &[&Ad], awake: &[(i64, i64)]) -> Vec<Place> {
        match self.plan.fate {
            Fate::AtATime(most) => places(ads, most, awake),
            _ => Vec::new(),
        }
    }

    /// Notes how the object is now, if it is still there.
    pub fn look(&mut self, objects: &[Value]) {
        let object = objects.iter().find(|object| object["metadata"]["uid"] == self.uid.as_str());
        if let Some(status) = object.map(|object| &object["status"])
            && self.seen.last() != Some(status)
        {
            self.seen.push(status.clone());
        }
    }

    /// What is to be done now.
    fn due(&mut self) -> Option<Act> {
        let Step { phase, pause, act } = self.plan.steps.get(self.done)?;
        let wanted = PHASES.iter().position(|other| other == phase).map_or(0, |at| at + 1);
        if self.seen.last().map_or(0, rank) < wanted {
            return None;
        }
        (self.since.get_or_insert_with(Instant::now).elapsed() >= *pause).then_some(*act)
    }
}

impl Soak {
    fn create(&self, here: &Namespace<'_>, mut plans: Vec<Plan>) -> Vec<Life> {
        if plans.len() == 1 {
            let plan = plans.remove(0);
            let uid = here.create(&plan.object(&self.records));
            return vec![Life::new(plan, uid, Vec::new())];
        }
        // kubectl creates them one after another: the next operator is to find all of them at once.
        let next = self.next_life.lock().unwrap();
        wait_for("the operator to be dead", PATIENCE, || {
            !self.bed.has_operator() || self.rests.load(Ordering::Relaxed)
        })
        .unwrap();
        here.create_all(&plans.iter().map(|plan| plan.object(&self.records)).collect::<Vec<_>>());
        self.crowded.store(true, Ordering::Relaxed);
        drop(next);
        let objects = here.all();
        let uid = |plan: &Plan| {
            let object = objects.iter().find(|object| object["metadata"]["name"] == plan.name.as_str()).unwrap();
            object["metadata"]["uid"].as_str().unwrap().to_owned()
        };
        plans.into_iter().map(|plan| (uid(&plan), plan)).map(|(uid, plan)| Life::new(plan, uid, Vec::new())).collect()
    }

    fn act(&self, here: &Namespace<'_>, life: &Life, act: Act) {
        let name = &life.plan.name;
        // Whether there is anything to hold or to let go is for HTCondor to know. 16: its files are on their way.
        let by_hand = |tool: &str, which: &str| {
            let constraint = format!("HTCJobUID == \"{}\" && {which}", life.uid);
            self.bed.condor.run(tool, &["-constraint", &constraint], "").unwrap();
        };
        match act {
            Act::Suspend => here.suspend(name, true),
            Act::Resume => here.suspend(name, false),
            Act::Hold => by_hand("condor_hold", "JobStatus != 5"),
            Act::Release => by_hand("condor_release", "HoldReasonCode =!= 16"),
            Act::AtATime(most) => {
                here.merge(name, &json!({ "spec": { "parallelism": most } }));
            }
            Act::Delete => here.begin_delete(name),
        }
    }
}
