//! The table beside what the queue does: `HTCJob`s live at random in a queue that is changed at random.

use kube::ResourceExt as _;
use serde_json::json;

use super::super::state::{Decided, Queues};
use super::super::terms::Demand;
use super::super::tests::{object, queues_with, set};
use super::{Line, State, TABLE, Trigger};
use crate::api::{FINALIZER, ObjectName, Observed};
use crate::machine::facts::Record;
use crate::machine::room::Room;
use crate::machine::states::lives::{Changes, Dice, assert_is_the_table};
use crate::machine::{Index, Indices, Uid};

/// How HTCondor has a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Missing,
    Open,
    Held,
    Ended,
}

struct Life {
    object: Observed,
    uid: Uid,
    jobs: [Job; 2],
    suspended: bool,
    known: bool,
    /// The queue that it was in last.
    seen_in: Option<String>,
}

struct World {
    queues: Queues,
    lives: Vec<Life>,
    /// As they were after the last event.
    states: Vec<Option<State>>,
    seen: Changes<State, Trigger>,
}

fn all_looked_at() -> Queues {
    let queues = queues_with(Vec::new(), &[]);
    queues.listed(&std::collections::HashSet::new());
    queues
}

impl World {
    fn new() -> Self {
        let life = |(name, label)| {
            let object: Observed = object(name, label);
            let uid = Uid::from(object.uid().unwrap().as_str());
            assert!(object.finalizers().iter().any(|finalizer| finalizer == FINALIZER));
            Life { object, uid, jobs: [Job::Missing; 2], suspended: false, known: false, seen_in: None }
        };
        let lives: Vec<Life> = [("a", Some("q")), ("b", Some("q")), ("c", None)].into_iter().map(life).collect();
        let states = vec![None; lives.len()];
        Self { queues: all_looked_at(), lives, states, seen: Changes::new() }
    }

    /// Where it stands now, what it has room for, and whether its queue is drained.
    fn stands(&self, place: usize) -> (Option<State>, Indices, bool) {
        self.queues.with(|state| {
            let Some(entry) = state.htcjobs.get(&self.lives[place].uid) else {
                return (None, Indices::default(), false);
            };
            let line = entry.line(&state.world);
            let drained = matches!(line, Line::In { drained: true, .. });
            (State::of(entry, &line, entry.wait.as_ref()), entry.granted.clone(), drained)
        })
    }

    /// As `machine::room` has it.
    fn decide(&mut self, place: usize) {
        let (_, granted, drained) = self.stands(place);
        let now = self.queues.with(|state| Some(state.htcjobs.get(&self.lives[place].uid)?.line(&state.world)));
        if let Some(Line::In { queue, .. }) = now {
            self.lives[place].seen_in = Some(queue);
        }
        let life = &self.lives[place];
        let of = |which: &[Job]| -> Indices {
            (0..).zip(&life.jobs).filter(|(_, job)| which.contains(job)).map(|(index, _)| Index(index)).collect()
        };
        let stays = life.suspended || drained;
        let asks = if stays { Indices::default() } else { of(&[Job::Missing, Job::Held]) };
        let free = if stays { of(&[Job::Missing, Job::Held, Job::Ended]) } else { of(&[Job::Ended]) };
        let room = Room {
            uses: of(&[Job::Open]),
            asks: asks.without(&granted),
            gives_back: granted.iter().filter(|index| free.contains(*index)).collect(),
            keeps_what_it_uses: true,
            ..Room::default()
        };
        let name = ObjectName { namespace: "ns".to_owned(), name: life.object.name_any() };
        self.queues.decided(&Decided {
            object: &life.object,
            uid: &life.uid,
            name: &name,
            bound: None,
            seen_in: life.seen_in.as_deref(),
            granted: &Indices::default(),
            demand: Some(Demand::one()),
            room: &room,
            over: life.jobs == [Job::Ended; 2],
            progress: None,
        });
        self.lives[place].known = true;
    }

    fn plan(&self) {
        let plan = self.queues.plan();
        self.queues.granted(&plan.grants, &[]);
    }

    fn set_queue(&self, dice: &mut Dice) {
        if dice.below(6) == 0 {
            self.queues.with(|state| state.world.queues.remove("q"));
            return;
        }
        let selector = if dice.below(5) == 0 { json!({ "matchLabels": { "team": "other" } }) } else { json!({}) };
        let stop = ["None", "None", "None", "Hold", "HoldAndDrain"][usize::try_from(dice.below(5)).unwrap()];
        let spec = json!({
            "namespaceSelector": selector, "quota": { "jobs": dice.below(5) }, "stopPolicy": stop, "default": dice.below(2) == 0,
        });
        set(&self.queues, "q", spec);
    }

    /// The operator is started again, with its ledger.
    fn restart(&mut self) {
        let known = self.queues.with(|state| {
            let known = state.htcjobs.iter().filter(|(_, entry)| !entry.unknown);
            let record = |entry: &super::Entry| Record {
                queue: entry.bound.clone(),
                granted: entry.granted.clone(),
                ..Record::default()
            };
            known.map(|(uid, entry)| ("ns".to_owned(), uid.clone(), record(entry))).collect::<Vec<_>>()
        });
        let there = known.iter().map(|(_, uid, _)| uid.clone()).collect();
        let before = std::mem::replace(&mut self.queues, queues_with(known, &[]));
        let world = before.with(|state| std::mem::take(&mut state.world));
        self.queues.with(|state| state.world = world);
        self.queues.listed(&there);
        self.lives.iter_mut().for_each(|life| life.known = false);
        self.states.fill(None);
    }

    /// Something happens; none if that is nothing to the queue.
    fn happens(&mut self, dice: &mut Dice) -> Option<Trigger> {
        let place = usize::try_from(dice.below(3)).unwrap();
        let (_, granted, drained) = self.stands(place);
        let life = &mut self.lives[place];
        let index = usize::try_from(dice.below(2)).unwrap();
        let has = granted.contains(Index(u32::try_from(index).unwrap()));
        let stays = life.suspended || drained;
        match dice.below(20) {
            0..=4 => {
                self.decide(place);
                return Some(Trigger::Decided);
            }
            5..=8 => {
                self.plan();
                return Some(Trigger::Scheduled);
            }
            9 | 10 => {
                self.set_queue(dice);
                return Some(Trigger::QueueChanged);
            }
            11..=13 => match life.jobs[index] {
                Job::Missing | Job::Held if has && !stays => life.jobs[index] = Job::Open,
                Job::Open if stays => life.jobs[index] = Job::Held,
                Job::Open => life.jobs[index] = Job::Ended,
                _ => {}
            },
            14 | 15 => life.suspended = !life.suspended,
            16 => {
                let uid = life.uid.clone();
                (life.jobs, life.suspended, life.known) = ([Job::Missing; 2], false, false);
                self.queues.forget(&uid);
                return Some(Trigger::Left);
            }
            17 => {
                // It cannot be looked at.
                let object = life.object.clone();
                self.queues.looked_at(&object, true);
                return Some(Trigger::Entered);
            }
            // A ledger that is lost has granted that.
            18 if !life.known => life.jobs[index] = Job::Open,
            19 if dice.below(3) == 0 => {
                self.restart();
                return Some(Trigger::Entered);
            }
            _ => {}
        }
        None
    }

    fn note(&mut self, trigger: Trigger) {
        for place in 0..self.lives.len() {
            let (now, ..) = self.stands(place);
            let before = std::mem::replace(&mut self.states[place], now);
            if before != now {
                let trigger = match (before, now) {
                    (None, _) => Trigger::Entered,
                    (_, None) => Trigger::Left,
                    _ => trigger,
                };
                self.seen.insert((before, now, trigger));
            }
        }
    }
}

#[test]
fn the_table_is_what_happens() {
    let mut seen = Changes::new();
    for walk in 0..3000 {
        let (mut world, mut dice) = (World::new(), Dice(walk));
        world.set_queue(&mut dice);
        for _ in 0..60 {
            if let Some(trigger) = world.happens(&mut dice) {
                world.note(trigger);
            }
        }
        seen.append(&mut world.seen);
    }
    assert_is_the_table(&seen, &TABLE);
}
