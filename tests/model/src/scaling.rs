//! The workers of a managed pool: `scale_all`, as in production, with a watch that is behind, a collector that is behind or begins
//! anew, requests that are lost, and nodes that die. It has a world of its own: it shares nothing with that of HTCJobs.
//!
//! Time is what one is told: what has had nothing to do for long enough when it is looked at may go.

use std::collections::{BTreeMap, BTreeSet};

use htc_machine::scaling::{
    AnswerQuality, Drain, EarlyExits, Goal, PodState, ScalePlan, SlotState, Worker, WorkerEvidence,
};
use htc_machine::worker_groups::scale_all;
use rstest::rstest;
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use crate::{MOST_STEPS, full};

const NOW: i64 = 1_000_000;
/// How long a worker has had nothing to do when it goes.
const AFTER: i64 = 300;
/// Most rounds to a good end.
const PATIENCE: usize = 20;

/// A pool, and what the operator knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// Pods, by the numbers in their names.
    pods: BTreeMap<u32, Real>,
    /// What the watch shows of them.
    shown: BTreeMap<u32, Real>,
    /// Jobs that wait for a worker.
    waiting: u8,
    /// What the collector has heard of startds, by the ids of their pods.
    ads: BTreeMap<u8, SlotState>,
    /// It has begun a short while ago.
    young: bool,
    /// Its last answer.
    answer: Option<(AnswerQuality, BTreeMap<u8, SlotState>)>,
    /// Workers that were asked for and are not shown yet, and whether the API server has said that it made them.
    made: BTreeMap<u32, bool>,
    /// Pods whose startds have accepted to drain.
    drained: BTreeSet<u8>,
    /// Pods that run, and whose startds the collector has not named for long.
    absent: BTreeMap<u8, Absence>,
    /// How many workers a person has asked for, where the pool does not follow the jobs.
    replicas: u32,
    troubles: u8,
    next: u8,
    broken: Option<&'static str>,
}

/// A pod as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Real {
    /// Tells pods of one name apart.
    id: u8,
    phase: Phase,
    busy: bool,
    draining: bool,
    /// Its startd does not reach the collector.
    deaf: bool,
}

/// A worker that counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Absence {
    /// An answer that was asked for since does not name it, either.
    again: bool,
    /// It had joined when it was given up.
    had_joined: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Waiting,
    Running,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Watch,
    Ask,
    /// The operator looks, and acts. Whether what has nothing to do has had that for long enough, and what becomes of its
    /// requests to make workers.
    Look {
        long: bool,
        request: Request,
    },
    Begin(u32),
    JobStarts(u32),
    JobEnds(u32),
    /// All startds tell the collector how they are, for long enough that it is no longer young.
    Advertise,
    /// One of them does, and the collector stays young.
    Heard(u32),
    NodeDies(u32),
    /// Answers have not named this one for long.
    GiveUp(u32),
    /// The startd of one that begins does not reach the collector.
    BeginDeaf(u32),
    CollectorRestarts,
    OperatorRestarts,
    Replicas(u32),
}

/// What becomes of a request to make a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Answered,
    /// It is made, and the answer is lost.
    Unanswered,
    Lost,
}

/// What is broken outside of `scale_all`.
#[derive(Clone, Copy, Debug, Default)]
struct Sabotage {
    /// The API server deletes a pod that was to be withdrawn although it has begun since.
    withdraws_blindly: bool,
    /// A startd that is to drain if it has no job ends the one that it has.
    drains_blindly: bool,
    /// What was made is forgotten before it is shown, and gets another number.
    forgets_made: bool,
    /// The collector's first answer is the last one.
    never_asks_again: bool,
    /// A collector that has begun a short while ago is taken at its word.
    believes_the_young: bool,
    /// A worker that does not join counts as one for ever.
    waits_for_the_deaf: bool,
    /// A worker that does not join is deleted by the answer by which it is given up.
    discards_at_once: bool,
    /// Nor is the schedd asked whether it has a job.
    discards_blindly: bool,
}

struct Workers {
    /// The pool follows its jobs; otherwise a person says how many workers it has.
    follows: bool,
    jobs: u8,
    troubles: u8,
    broken: Sabotage,
}

const MOST: u32 = 2;
const LOST: &str = "no job that runs is ended by the operator";
const SPARED: &str = "a worker with a job is drained only if a person has asked for fewer";
const MANY: &str = "there are never more workers than the most that stay, nor twice as many in all";
const BLIND: &str = "nothing is drained on an answer that is worth nothing";
const JOINED: &str = "a worker that had joined when it was given up is not deleted for that";
const END: &str = "all jobs end, and the pool becomes as large as it should be";

impl World {
    fn breaks(&mut self, promise: &'static str) {
        self.broken.get_or_insert(promise);
    }

    /// How the startds are.
    fn startds(&self) -> BTreeMap<u8, SlotState> {
        let slot = |real: &Real| match (real.draining, real.busy) {
            (true, _) => SlotState::Draining,
            (false, true) => SlotState::Busy,
            (false, false) => SlotState::Idle { since: NOW },
        };
        let heard = self.pods.values().filter(|real| real.phase == Phase::Running && !real.deaf);
        heard.map(|real| (real.id, slot(real))).collect()
    }

    /// What a drained startd does: it ends after its last job.
    fn drained_ones_end(&mut self) {
        for real in self.pods.values_mut().filter(|real| real.phase == Phase::Running) {
            if real.draining && !real.busy {
                real.phase = Phase::Ended;
            }
        }
    }

    fn watch(&mut self) {
        self.shown.clone_from(&self.pods);
        // What was surely made is shown by now, or has gone.
        self.made.retain(|number, sure| !*sure && !self.pods.contains_key(number));
    }

    fn stay(&self) -> usize {
        let stays = |real: &&Real| real.phase != Phase::Ended && !real.draining && !self.absent.contains_key(&real.id);
        self.pods.values().filter(stays).count()
    }

    /// What the answer says of workers that are absent: that they are not, or that they still are.
    fn confirm(&mut self) {
        let Some((AnswerQuality::Known, ads)) = &self.answer else { return };
        self.absent.retain(|id, _| !ads.contains_key(id));
        self.absent.values_mut().for_each(|absence| absence.again = true);
    }

    /// Whether the answer does not name this worker, which is shown as one that runs. One that is not deaf does not stay so for long without
    /// any trouble.
    fn is_missed(&self, number: u32) -> bool {
        let Some((AnswerQuality::Known, ads)) = &self.answer else { return false };
        self.shown.get(&number).is_some_and(|real| {
            let counts = !self.drained.contains(&real.id) && !self.absent.contains_key(&real.id);
            real.phase == Phase::Running && counts && !ads.contains_key(&real.id) && (real.deaf || self.troubles > 0)
        })
    }
}

impl Workers {
    fn goal(&self, world: &World) -> Goal {
        if self.follows {
            let running = world.pods.values().filter(|real| real.busy).count();
            let needed = u32::try_from(running).unwrap() + u32::from(world.waiting);
            Goal::Autoscale { needed, min: 0, max: MOST, scale_down_after: AFTER }
        } else {
            Goal::Replicas(world.replicas)
        }
    }

    fn most(&self, world: &World) -> u32 {
        if self.follows { MOST } else { world.replicas }
    }

    /// What the operator sees.
    fn evidence(&self, world: &World, long: bool) -> WorkerEvidence {
        let since = if long { NOW - AFTER } else { NOW };
        let (answer, ads) = match &world.answer {
            Some((_, ads)) if self.broken.believes_the_young => (AnswerQuality::Known, Some(ads)),
            Some((answer, ads)) => (*answer, Some(ads)),
            None => (AnswerQuality::Unknown, None),
        };
        let slot = |real: &Real| match ads.and_then(|ads| ads.get(&real.id)) {
            Some(SlotState::Idle { .. }) => SlotState::Idle { since },
            Some(slot) => *slot,
            None => match world.absent.get(&real.id) {
                Some(absence) => SlotState::Absent { confirmed: absence.again || self.broken.discards_at_once },
                None => SlotState::Unseen,
            },
        };
        let seen = |(number, real): (&u32, &Real)| {
            let pod = match real.phase {
                Phase::Waiting => PodState::Waiting { since },
                Phase::Running => PodState::Running,
                Phase::Ended => PodState::Ended,
            };
            let drained = world.drained.contains(&real.id);
            Worker {
                number: *number,
                pod_state: pod,
                slot_state: slot(real),
                up_to_date: true,
                drain_accepted: drained,
            }
        };
        let made = world.made.iter().filter(|(number, _)| !world.shown.contains_key(number));
        let made = made.map(|(number, sure)| Worker {
            number: *number,
            pod_state: PodState::Requested { confirmed: *sure },
            slot_state: SlotState::Unseen,
            up_to_date: true,
            drain_accepted: false,
        });
        WorkerEvidence {
            now: NOW,
            goal: self.goal(world),
            workers: world.shown.iter().map(seen).chain(made).collect(),
            answer,
            deaths: EarlyExits::default(),
            taken_numbers: BTreeSet::new(),
            max_create: u32::MAX,
        }
    }

    /// Does what HTCondor and Kubernetes would do.
    fn look(&self, world: &mut World, long: bool, request: Request) {
        let evidence = self.evidence(world, long);
        let plan = scale_all(&BTreeMap::from([((), evidence.clone())]), self.most(world)).remove(&()).unwrap();
        let worth = world.answer.as_ref().is_some_and(|(answer, _)| *answer == AnswerQuality::Known);
        if !worth && !plan.drain.is_empty() {
            world.breaks(BLIND);
        }
        for number in &plan.delete_ended {
            self.delete(world, *number, |_, _| true);
        }
        for number in &plan.delete_unstarted {
            // The API server refuses it for a pod that has changed.
            let blindly = self.broken.withdraws_blindly;
            self.delete(world, *number, |now, seen| blindly || now == seen);
        }
        for number in &plan.delete_unknown {
            let Some(absence) = world.absent.get(&world.shown[number].id).copied() else { continue };
            let (blindly, runs) = (self.broken.discards_blindly, world.pods.get(number).map(|now| now.phase));
            let goes = self.delete(world, *number, |now, _| blindly || !now.busy);
            if goes && absence.had_joined && runs == Some(Phase::Running) {
                world.breaks(JOINED);
            }
        }
        self.drain(world, &plan);
        self.make(world, &plan, request);
    }

    /// Whether it is deleted.
    fn delete(&self, world: &mut World, number: u32, goes: impl Fn(&Real, &Real) -> bool) -> bool {
        let seen = world.shown[&number];
        let Some(now) = world.pods.get(&number).filter(|now| now.id == seen.id && goes(now, &seen)) else {
            return false;
        };
        if now.busy {
            world.breaks(LOST);
        }
        world.pods.remove(&number);
        true
    }

    fn drain(&self, world: &mut World, plan: &ScalePlan) {
        for (number, how) in &plan.drain {
            let seen = world.shown[number];
            let Some(real) = world.pods.get_mut(number).filter(|real| real.id == seen.id) else { continue };
            if real.phase != Phase::Running {
                continue;
            }
            match (how, real.busy) {
                // HTCondor refuses.
                (Drain::IfIdle, true) if !self.broken.drains_blindly => continue,
                (Drain::IfIdle, true) => {
                    real.busy = false;
                    world.broken.get_or_insert(LOST);
                }
                (Drain::Graceful, _) if self.follows => {
                    world.broken.get_or_insert(SPARED);
                }
                (Drain::Graceful, _) | (Drain::IfIdle, false) => {}
            }
            real.draining = true;
            world.drained.insert(seen.id);
        }
        world.drained_ones_end();
    }

    fn make(&self, world: &mut World, plan: &ScalePlan, request: Request) {
        let before = world.pods.len();
        for number in &plan.create {
            let forgets = self.broken.forgets_made;
            let number = if forgets { world.pods.keys().max().map_or(0, |last| last + 1) } else { *number };
            if !forgets {
                world.made.insert(number, request == Request::Answered);
            }
            if request != Request::Lost && !world.pods.contains_key(&number) {
                world.next += 1;
                let real = Real { id: world.next, phase: Phase::Waiting, busy: false, draining: false, deaf: false };
                world.pods.insert(number, real);
            }
        }
        let most = self.most(world) as usize;
        let there = |real: &&Real| real.phase != Phase::Ended && !world.drained.contains(&real.id);
        if world.pods.len() > before && (world.stay() > most || world.pods.values().filter(there).count() > 2 * most) {
            world.breaks(MANY);
        }
    }

    fn change(&self, world: &mut World, action: &Action) {
        match action {
            Action::Watch => world.watch(),
            Action::Ask => {
                let answer = if world.young { AnswerQuality::Young } else { AnswerQuality::Known };
                if world.answer.is_none() || !self.broken.never_asks_again {
                    world.answer = Some((answer, world.ads.clone()));
                    world.confirm();
                }
            }
            Action::Look { long, request } => {
                world.troubles -= u8::from(*request != Request::Answered);
                self.look(world, *long, *request);
            }
            Action::Begin(number) => world.pods.get_mut(number).unwrap().phase = Phase::Running,
            Action::BeginDeaf(number) => {
                world.troubles -= 1;
                let real = world.pods.get_mut(number).unwrap();
                (real.phase, real.deaf) = (Phase::Running, true);
            }
            Action::JobStarts(number) => {
                world.pods.get_mut(number).unwrap().busy = true;
                world.waiting -= 1;
            }
            Action::JobEnds(number) => world.pods.get_mut(number).unwrap().busy = false,
            Action::Advertise => {
                world.ads = world.startds();
                world.young = false;
            }
            Action::Heard(number) => {
                let id = world.pods[number].id;
                world.ads.insert(id, world.startds()[&id]);
            }
            Action::NodeDies(number) => {
                world.troubles -= 1;
                let real = world.pods.get_mut(number).unwrap();
                real.phase = Phase::Ended;
                // HTCondor runs it again.
                world.waiting += u8::from(std::mem::take(&mut real.busy));
            }
            Action::GiveUp(number) => {
                let real = world.shown[number];
                world.troubles -= u8::from(!real.deaf);
                let had_joined = world.ads.contains_key(&real.id);
                world.absent.insert(real.id, Absence { again: false, had_joined });
            }
            Action::CollectorRestarts => {
                world.troubles -= 1;
                (world.ads, world.young) = (BTreeMap::new(), true);
            }
            Action::OperatorRestarts => {
                world.troubles -= 1;
                (world.made, world.drained, world.answer) = (BTreeMap::new(), BTreeSet::new(), None);
                world.absent = BTreeMap::new();
                world.watch();
            }
            Action::Replicas(replicas) => {
                world.troubles -= 1;
                world.replicas = *replicas;
            }
        }
        world.drained_ones_end();
        self.forget(world);
    }

    /// Ids that nothing names any more are given again, so that worlds which differ only in them are one.
    fn forget(&self, world: &mut World) {
        let mut ids: Vec<u8> = world.pods.values().chain(world.shown.values()).map(|real| real.id).collect();
        ids.sort_unstable();
        ids.dedup();
        // None of one that nothing names.
        let anew = |id: u8| ids.binary_search(&id).ok().map(|place| u8::try_from(place).unwrap() + 1);
        for real in world.pods.values_mut().chain(world.shown.values_mut()) {
            real.id = anew(real.id).unwrap();
        }
        let renamed =
            |ads: &BTreeMap<u8, SlotState>| ads.iter().filter_map(|(id, slot)| Some((anew(*id)?, *slot))).collect();
        world.ads = renamed(&world.ads);
        world.answer = world.answer.as_ref().map(|(answer, ads)| (*answer, renamed(ads)));
        world.drained = world.drained.iter().filter_map(|id| anew(*id)).collect();
        world.absent = world.absent.iter().filter_map(|(id, absence)| Some((anew(*id)?, *absence))).collect();
        world.next = u8::try_from(ids.len()).unwrap();
    }

    /// Nothing goes wrong any more, and everybody has his turn: whether it comes to a good end.
    fn ends_well(&self, world: &World) -> bool {
        let mut now = World { troubles: 0, ..world.clone() };
        for _ in 0..PATIENCE {
            let before = now.clone();
            for number in now.shown.keys().copied().collect::<Vec<_>>() {
                if self.may_give_up(&now, number) {
                    self.change(&mut now, &Action::GiveUp(number));
                }
            }
            for action in [
                Action::Watch,
                Action::Advertise,
                Action::Ask,
                Action::Look { long: true, request: Request::Answered },
                Action::Watch,
            ] {
                self.change(&mut now, &action);
            }
            for number in now.pods.keys().copied().collect::<Vec<_>>() {
                for action in [Action::Begin(number), Action::JobStarts(number), Action::JobEnds(number)] {
                    if Self::can(&now, &action) {
                        self.change(&mut now, &action);
                    }
                }
            }
            if now == before {
                break;
            }
        }
        let wanted = if self.follows { 0 } else { now.replicas as usize };
        let all_run = now.pods.values().all(|real| real.phase == Phase::Running && !real.draining);
        let jobs_end = now.waiting == 0 || wanted == 0 && !self.follows;
        now.broken.is_none() && jobs_end && all_run && now.pods.len() == wanted
    }

    fn may_give_up(&self, world: &World, number: u32) -> bool {
        !self.broken.waits_for_the_deaf && world.is_missed(number)
    }

    fn can(world: &World, action: &Action) -> bool {
        let is = |number: &u32, fits: fn(&Real) -> bool| world.pods.get(number).is_some_and(fits);
        match action {
            Action::Begin(number) => is(number, |real| real.phase == Phase::Waiting),
            Action::JobStarts(number) => {
                let takes = |real: &Real| real.phase == Phase::Running && !real.busy && !real.draining && !real.deaf;
                world.waiting > 0 && is(number, takes)
            }
            Action::BeginDeaf(number) => world.troubles > 0 && is(number, |real| real.phase == Phase::Waiting),
            Action::JobEnds(number) => is(number, |real| real.busy),
            Action::Heard(number) => world.young && is(number, |real| real.phase == Phase::Running && !real.deaf),
            Action::NodeDies(number) => world.troubles > 0 && is(number, |real| real.phase == Phase::Running),
            _ => true,
        }
    }
}

impl Model for Workers {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            pods: BTreeMap::new(),
            shown: BTreeMap::new(),
            waiting: self.jobs,
            ads: BTreeMap::new(),
            young: false,
            answer: None,
            made: BTreeMap::new(),
            drained: BTreeSet::new(),
            absent: BTreeMap::new(),
            replicas: MOST,
            troubles: self.troubles,
            next: 0,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        actions.extend([Action::Watch, Action::Ask, Action::Advertise]);
        let mut requests = vec![Request::Answered];
        if world.troubles > 0 {
            requests.extend([Request::Unanswered, Request::Lost]);
            actions.extend([Action::CollectorRestarts, Action::OperatorRestarts]);
            if !self.follows {
                actions.extend((0..=MOST).filter(|other| *other != world.replicas).map(Action::Replicas));
            }
        }
        for request in requests {
            actions.extend([false, true].map(|long| Action::Look { long, request }));
        }
        let of = |number: &u32| {
            let number = *number;
            let jobs = [Action::Begin(number), Action::JobStarts(number), Action::JobEnds(number)];
            jobs.into_iter().chain([Action::Heard(number), Action::NodeDies(number), Action::BeginDeaf(number)])
        };
        let missed = world.shown.keys().copied().filter(|number| self.may_give_up(world, *number));
        actions.extend(missed.map(Action::GiveUp));
        actions.extend(world.pods.keys().flat_map(of).filter(|action| Self::can(world, action)));
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        self.change(&mut next, &action);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LOST, |_, world: &World| world.broken != Some(LOST)),
            Property::always(SPARED, |_, world: &World| world.broken != Some(SPARED)),
            Property::always(MANY, |_, world: &World| world.broken != Some(MANY)),
            Property::always(BLIND, |_, world: &World| world.broken != Some(BLIND)),
            Property::always(JOINED, |_, world: &World| world.broken != Some(JOINED)),
            Property::always(END, |model: &Self, world: &World| world.broken.is_some() || model.ends_well(world)),
        ]
    }
}

/// The promises that are broken, each with the steps that lead there.
fn explore(workers: Workers) -> Vec<(&'static str, Vec<Action>)> {
    let checker = workers.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(MOST_STEPS);
    let checker = checker.spawn_bfs().join();
    eprintln!("workers: {} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    assert!(checker.state_count() < MOST_STEPS, "the bounds are too wide");
    checker.discoveries().into_iter().map(|(promise, path)| (promise, path.into_actions())).collect()
}

#[rstest]
fn no_job_is_lost_while_workers_come_and_go(#[values(true, false)] follows: bool) {
    let troubles = if full() { 3 } else { 1 };
    let stories = explore(Workers { follows, jobs: 2, troubles, broken: Sabotage::default() });
    assert!(stories.is_empty(), "{stories:#?}");
}

#[rstest]
#[case::pod_is_withdrawn_only_unchanged(true, LOST, Sabotage { withdraws_blindly: true, ..Sabotage::default() })]
#[case::busy_startd_is_not_drained(true, LOST, Sabotage { drains_blindly: true, ..Sabotage::default() })]
#[case::created_pod_is_remembered(true, MANY, Sabotage { forgets_made: true, ..Sabotage::default() })]
#[case::collector_is_queried_again(true, END, Sabotage { never_asks_again: true, ..Sabotage::default() })]
#[case::young_collector_proves_nothing(true, BLIND, Sabotage { believes_the_young: true, ..Sabotage::default() })]
#[case::unjoined_worker_is_replaced(true, END, Sabotage { waits_for_the_deaf: true, ..Sabotage::default() })]
#[case::unjoined_worker_is_deleted_by_a_later_answer(true, JOINED, Sabotage { discards_at_once: true, ..Sabotage::default() })]
#[case::unjoined_worker_is_deleted_only_without_jobs(true, LOST, Sabotage { discards_blindly: true, ..Sabotage::default() })]
fn each_mutant_breaks_a_promise(#[case] follows: bool, #[case] promise: &str, #[case] broken: Sabotage) {
    let stories = explore(Workers { follows, jobs: 2, troubles: 1, broken });
    assert!(stories.iter().any(|(told, _)| *told == promise), "{promise}: {stories:#?}");
}
