//! A pool whose watch and whose collector are behind what happens: no job is ever lost, and there are never too many workers.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::runtime::watcher;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::super::*;
use super::NOW;
use crate::api::ObjectName;
use crate::machine::states::lives::{Changes, assert_is_the_table};
use crate::pools::managed::absent::Absences;
use crate::pools::managed::groups::{Group, Shared, There, Wish, scale_all};
use crate::pools::managed::made::Made;
use crate::pools::managed::names::Names;
use crate::pools::managed::states::{State, TABLE};

/// The pool's image, and another one.
const IMAGES: [&str; 2] = ["own", "other"];
/// For so many seconds an answer of the collector is good.
const GOOD_FOR: i64 = 60;

fn shared(image: &str) -> Shared {
    Shared { image: image.to_owned(), namespace: None }
}

fn names() -> Names {
    Names::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "uid").unwrap()
}

fn pod_of(real: &Real) -> KubePod {
    let mut pod = KubePod::default();
    (pod.metadata.name, pod.metadata.uid) = (Some(names().worker(real.number)), Some(real.id.to_string()));
    pod
}

/// A pool, as it is, and as it is seen.
#[derive(Debug)]
struct World {
    now: i64,
    pods: Vec<Real>,
    /// Of which workers are made now.
    template: u32,
    collector_began: i64,
    /// The latest that the collector has heard of workers, by their ids.
    ads: BTreeMap<u32, Slot>,
    /// Its last answer: when, whether it had begun a short while before, and what it knew.
    answer: Option<(i64, Answer, BTreeMap<u32, Slot>)>,
    next: u32,
    /// The states in which the workers were last, by their ids.
    states: Vec<(u32, State)>,
    /// What has followed what.
    seen: Changes<State, &'static str>,
    /// What the pods were after each change: the watch shows one after another.
    changes: Vec<Vec<Real>>,
    /// Which of these it shows.
    shown: usize,
    /// What the operator remembers.
    made: Made,
    told: BTreeSet<u32>,
    absences: Absences,
    /// Those that it takes for absent, and that have not joined since.
    absent: BTreeSet<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Real {
    number: u32,
    /// Tells pods of one name apart.
    id: u32,
    image: &'static str,
    template: u32,
    pod: Pod,
    /// Jobs that run.
    jobs: u32,
    draining: bool,
    idle_since: i64,
    /// Its startd does not reach the collector.
    deaf: bool,
}

/// What becomes of the request to make a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Answered,
    /// It is made, and the answer is lost.
    Unanswered,
    Lost,
}

#[derive(Clone, Debug)]
enum Event {
    Time(i64),
    /// For five minutes nothing happens but that the collector is asked.
    Calm,
    Begin(usize),
    JobStarts(usize),
    JobEnds(usize),
    NodeDies(usize),
    /// Its startd reaches the collector no more, or again.
    Deaf(usize, bool),
    /// Somebody deletes its pod.
    Deleted(usize),
    /// The kubelet has ended what somebody has deleted.
    Gone(usize),
    CollectorRestarts,
    Wish(Wish),
    /// Workers are to be made of another template.
    Template,
    /// All startds tell the collector how they are.
    Ads,
    /// It is asked, and does not answer.
    Silence,
    /// The watch shows so many changes more.
    Watch(usize),
    /// The watch is begun anew.
    List,
    /// Another operator takes over.
    Restart,
    /// A look; whether the collector is asked anew, and whether a job starts on each worker between the look and the act.
    Look {
        ask: bool,
        late_job: bool,
        request: Request,
    },
}

fn look() -> impl Strategy<Value = Event> {
    let request =
        prop_oneof![Just(Request::Answered), Just(Request::Answered), Just(Request::Unanswered), Just(Request::Lost),];
    (any::<bool>(), any::<bool>(), request).prop_map(|(ask, late_job, request)| Event::Look { ask, late_job, request })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let follow = |(needed, min, max): ([u32; 2], u32, u32)| {
        let needed = IMAGES.iter().map(|image| shared(image)).zip(needed).collect();
        Wish::Follow { needed, min, max, after: 30 }
    };
    let wish = prop_oneof![
        (0u32..6).prop_map(Wish::Replicas),
        ([0u32..6, 0u32..6], 0u32..3, 3u32..6).prop_map(follow),
        ([0u32..6, 0u32..6], 0u32..3, 3u32..6).prop_map(follow),
    ];
    let event = prop_oneof![
        (1i64..60).prop_map(Event::Time),
        Just(Event::Calm),
        Just(Event::Calm),
        (0usize..8, any::<bool>()).prop_map(|(index, deaf)| Event::Deaf(index, deaf)),
        (0usize..8).prop_map(Event::Begin),
        (0usize..8).prop_map(Event::JobStarts),
        (0usize..8).prop_map(Event::JobEnds),
        (0usize..8).prop_map(Event::NodeDies),
        (0usize..8).prop_map(Event::Deleted),
        (0usize..8).prop_map(Event::Gone),
        Just(Event::CollectorRestarts),
        wish.prop_map(Event::Wish),
        Just(Event::Template),
        Just(Event::Ads),
        Just(Event::Silence),
        (0usize..6).prop_map(Event::Watch),
        Just(Event::List),
        Just(Event::Restart),
        look(),
        look(),
    ];
    prop::collection::vec(event, 1..120)
}

impl World {
    fn new() -> Self {
        Self {
            now: NOW,
            pods: Vec::new(),
            template: 0,
            collector_began: NOW - 1000,
            ads: BTreeMap::new(),
            answer: None,
            next: 0,
            states: Vec::new(),
            seen: Changes::new(),
            changes: vec![Vec::new()],
            shown: 0,
            made: Made::default(),
            told: BTreeSet::new(),
            absences: Absences::default(),
            absent: BTreeSet::new(),
        }
    }

    /// The watch shows one change more.
    fn watch(&mut self) {
        let Some(next) = self.changes.get(self.shown + 1) else { return };
        let before = &self.changes[self.shown];
        let is_in = |pods: &[Real], real: &Real| pods.iter().any(|other| other.id == real.id);
        let gone = before.iter().filter(|real| !is_in(next, real)).map(|real| watcher::Event::Delete(pod_of(real)));
        let events: Vec<_> = gone.chain(next.iter().map(|real| watcher::Event::Apply(pod_of(real)))).collect();
        for event in &events {
            self.made.watched(event, &names());
        }
        self.shown += 1;
    }

    /// The watch lists all, as they are now.
    fn list(&mut self) {
        self.made.watched(&watcher::Event::Init, &names());
        for real in &self.pods {
            self.made.watched(&watcher::Event::InitApply(pod_of(real)), &names());
        }
        self.made.watched(&watcher::Event::InitDone, &names());
        self.shown = self.changes.len() - 1;
    }

    fn view(&self) -> &[Real] {
        &self.changes[self.shown]
    }

    /// The pod that the operator takes for this worker.
    fn seen(&self, number: u32) -> Real {
        self.view().iter().find(|real| real.number == number).unwrap().clone()
    }

    /// Workers that may be there and are not asked for again: no answer came when they were asked for, and the watch has not shown them.
    /// Nobody waits for them, as nobody may ever hear of those that are not there.
    fn doubted(&self, plans: &BTreeMap<String, Plan>, wish: &Wish) -> usize {
        let asked = |number: u32| plans.values().any(|plan| plan.make.contains(&number));
        let doubted = |worker: &&Worker| worker.pod == Pod::Made { sure: false } && !asked(worker.number);
        self.see(wish).values().flat_map(|evidence| &evidence.workers).filter(doubted).count()
    }

    /// Pods that take jobs, or will, are as they are made now, and do not count as dead.
    fn staying(&self) -> usize {
        let stays = |real: &&Real| {
            let is_there = matches!(real.pod, Pod::Waiting { .. } | Pod::Running);
            !real.draining && real.template == self.template && is_there && !self.absences.is_dead(&real.id.to_string())
        };
        self.pods.iter().filter(stays).count()
    }

    /// Pods that have not been sent away.
    fn there(&self) -> usize {
        let there = |real: &&Real| !real.draining && matches!(real.pod, Pod::Waiting { .. } | Pod::Running);
        self.pods.iter().filter(there).count()
    }

    /// Each change of state stands in the table. A worker is seen while the collector names it, or the operator remembers that it drains.
    fn record(&mut self) {
        let state = |real: &Real| match (real.pod, real.draining, real.jobs) {
            (Pod::Waiting { .. } | Pod::Made { .. }, ..) => State::Waiting,
            (Pod::Ended, ..) => State::Ended,
            (Pod::Leaving, ..) => State::Leaving,
            (Pod::Running, true, _) if self.told.contains(&real.id) => State::Draining,
            (Pod::Running, ..) if !self.ads.contains_key(&real.id) => {
                if self.absent.contains(&real.id) {
                    State::Absent
                } else {
                    State::Unseen
                }
            }
            (Pod::Running, true, _) => State::Draining,
            (Pod::Running, false, 0) => State::Idle,
            (Pod::Running, false, _) => State::Busy,
        };
        let now: Vec<(u32, State)> = self.pods.iter().map(|real| (real.id, state(real))).collect();
        let of =
            |states: &[(u32, State)], id: u32| states.iter().find(|(other, _)| *other == id).map(|(_, state)| *state);
        let row = |from: Option<State>, to: Option<State>| TABLE.iter().find(|row| (row.from, row.to) == (from, to));
        for id in self.states.iter().chain(&now).map(|(id, _)| *id) {
            let (from, to) = (of(&self.states, id), of(&now, id));
            if from != to {
                let row = row(from, to).unwrap_or_else(|| panic!("a worker went from {from:?} to {to:?}"));
                self.seen.insert((from, to, row.trigger));
            }
        }
        self.states = now;
        if self.changes.last() != Some(&self.pods) {
            self.changes.push(self.pods.clone());
        }
    }

    /// All startds tell the collector how they are.
    fn advertise(&mut self) {
        let slot = |real: &Real| match (real.draining, real.jobs) {
            (true, _) => Slot::Draining,
            (false, 0) => Slot::Idle { since: real.idle_since },
            (false, _) => Slot::Busy,
        };
        let running = self.pods.iter().filter(|real| real.pod == Pod::Running && !real.deaf);
        self.ads = running.map(|real| (real.id, slot(real))).collect();
        self.absent.retain(|id| !self.ads.contains_key(id));
    }

    fn ask(&mut self) {
        let answer = if self.now - self.collector_began < 40 { Answer::Young } else { Answer::Known };
        self.answer = Some((self.now, answer, self.ads.clone()));
        if answer != Answer::Known {
            return self.absences.is_unknown();
        }
        let running = self.view().iter().filter(|real| real.pod == Pod::Running).map(|real| real.id);
        for id in running.collect::<Vec<_>>() {
            let uid = id.to_string();
            if self.ads.contains_key(&id) {
                self.absences.is_named(&uid);
            } else if !self.told.contains(&id) && self.absences.is_not_named(&uid, self.now, self.now) {
                self.absent.insert(id);
            }
        }
    }

    fn see(&self, wish: &Wish) -> BTreeMap<String, Evidence> {
        let good = self.answer.as_ref().filter(|(at, ..)| self.now - at <= GOOD_FOR);
        let answer = good.map_or(Answer::Unknown, |(_, answer, _)| *answer);
        let asked = good.filter(|_| answer == Answer::Known).map(|(at, ..)| *at);
        let slot = |real: &Real| {
            let named = good.and_then(|(.., ads)| ads.get(&real.id)).copied();
            named.unwrap_or_else(|| self.absences.slot(&real.id.to_string(), asked))
        };
        let seen = |real: &Real| Worker {
            number: real.number,
            pod: real.pod,
            slot: slot(real),
            current: real.template == self.template,
            drained: self.told.contains(&real.id),
        };
        let pods: Vec<Arc<KubePod>> = self.view().iter().map(|real| Arc::new(pod_of(real))).collect();
        let workers = |image: &str| -> Vec<Worker> {
            let made = self.made.not_in(&pods, &names()).filter(|made| made.group == Group::Shared(shared(image)));
            let made = made.map(|made| made.worker(Some(&self.template.to_string())));
            self.view().iter().filter(|real| real.image == image).map(seen).chain(made).collect()
        };
        let there = IMAGES.iter().map(|image| (shared(image), There::default())).collect();
        let of = |(Shared { image, .. }, goal): (Shared, Goal)| {
            let (workers, deaths, taken) = (workers(&image), Deaths::default(), BTreeSet::new());
            (image, Evidence { now: self.now, goal, workers, answer, deaths, taken, room: u32::MAX })
        };
        wish.goals(&shared(IMAGES[0]), &there, &BTreeSet::new(), self.now).into_iter().map(of).collect()
    }

    /// What is decided.
    fn plans(&self, wish: &Wish) -> BTreeMap<String, Plan> {
        scale_all(&self.see(wish), wish.most())
    }

    /// Does what HTCondor and Kubernetes would do.
    fn act(&mut self, plans: &BTreeMap<String, Plan>, wish: &Wish, request: Request) {
        for number in plans.values().flat_map(|plan| &plan.remove) {
            let seen = self.seen(*number);
            assert_eq!(seen.pod, Pod::Ended, "a pod that runs is deleted");
            self.pods.retain(|real| real.id != seen.id);
            self.record();
        }
        for number in plans.values().flat_map(|plan| &plan.withdraw) {
            // The API server refuses it for a pod that has changed.
            let seen = self.seen(*number);
            self.pods.retain(|real| *real != seen || !matches!(real.pod, Pod::Waiting { .. }));
            self.record();
        }
        for number in plans.values().flat_map(|plan| &plan.discard) {
            let seen = self.seen(*number);
            let real = self.pods.iter_mut().find(|real| real.id == seen.id && real.pod == Pod::Running);
            // The schedd is asked whether it has a job there.
            if let Some(real) = real.filter(|real| real.jobs == 0) {
                assert!(!self.told.contains(&seen.id), "it drains, and ends by itself");
                real.pod = Pod::Leaving;
                self.record();
            }
        }
        for (number, how) in plans.values().flat_map(|plan| &plan.drain) {
            let seen = self.seen(*number);
            let Some(real) = self.pods.iter_mut().find(|real| real.number == *number && real.pod == Pod::Running)
            else {
                continue;
            };
            assert_eq!(real.id, seen.id, "another worker is drained");
            match how {
                // HTCondor refuses.
                Drain::IfIdle if real.jobs > 0 => continue,
                Drain::IfIdle => {}
                Drain::Graceful => {
                    let asked_for = matches!(wish, Wish::Replicas(_)) || real.template != self.template;
                    assert!(asked_for, "nobody asked for that");
                }
            }
            real.draining = true;
            self.told.insert(real.id);
        }
        self.drained_ones_end();
        let before = self.pods.len();
        let most = wish.most() as usize + self.doubted(plans, wish);
        for (image, plan) in plans {
            let image = IMAGES.into_iter().find(|other| other == image).unwrap();
            for number in &plan.make {
                self.made.asks(*number, &Group::Shared(shared(image)), &self.template.to_string());
                if request != Request::Lost {
                    let uid = self.make(*number, image);
                    if request == Request::Answered {
                        self.made.is_there(*number, uid);
                    }
                }
                self.record();
            }
        }
        if self.pods.len() > before {
            assert!(self.staying() <= most, "{} of {most} by {plans:?}", self.staying());
            assert!(self.there() <= 2 * most, "{} of {most} by {plans:?}", self.there());
        }
    }

    /// The uid of its pod; none if there is one of its name already.
    fn make(&mut self, number: u32, image: &'static str) -> Option<String> {
        if self.pods.iter().any(|real| real.number == number) {
            return None;
        }
        self.next += 1;
        let (id, pod, template) = (self.next, Pod::Waiting { since: self.now }, self.template);
        self.pods.push(Real {
            number,
            id,
            image,
            template,
            pod,
            jobs: 0,
            draining: false,
            idle_since: self.now,
            deaf: false,
        });
        Some(id.to_string())
    }

    /// A worker that is drained ends after its last job; never before.
    fn drained_ones_end(&mut self) {
        self.record();
        for real in &mut self.pods {
            if real.pod == Pod::Running && real.draining && real.jobs == 0 {
                real.pod = Pod::Ended;
            }
        }
        self.record();
    }

    fn step(&mut self, event: &Event, wish: &mut Wish) {
        let one = |world: &Self, index: usize, fits: fn(&Real) -> bool| {
            world.pods.iter().position(fits).filter(|_| index < world.pods.len()).map(|first| {
                let other = index.max(first);
                if fits(&world.pods[other]) { other } else { first }
            })
        };
        match event {
            Event::Time(seconds) => self.now += seconds,
            Event::Calm => {
                for _ in 0..6 {
                    self.now += 60;
                    self.ask();
                }
            }
            Event::Begin(index) => {
                if let Some(index) = one(self, *index, |real| matches!(real.pod, Pod::Waiting { .. })) {
                    (self.pods[index].pod, self.pods[index].idle_since) = (Pod::Running, self.now);
                }
            }
            Event::JobStarts(index) => {
                if let Some(index) = one(self, *index, |real| real.pod == Pod::Running && !real.draining) {
                    self.pods[index].jobs += 1;
                }
            }
            Event::JobEnds(index) => {
                if let Some(index) = one(self, *index, |real| real.jobs > 0) {
                    (self.pods[index].jobs, self.pods[index].idle_since) = (self.pods[index].jobs - 1, self.now);
                }
                self.drained_ones_end();
            }
            Event::NodeDies(index) => {
                if let Some(index) = one(self, *index, |real| matches!(real.pod, Pod::Waiting { .. } | Pod::Running)) {
                    (self.pods[index].pod, self.pods[index].jobs) = (Pod::Ended, 0);
                }
            }
            Event::Deaf(index, deaf) => {
                if let Some(index) = one(self, *index, |real| matches!(real.pod, Pod::Waiting { .. } | Pod::Running)) {
                    self.pods[index].deaf = *deaf;
                    self.ads.remove(&self.pods[index].id);
                }
            }
            Event::Deleted(index) => {
                if let Some(index) = one(self, *index, |real| !matches!(real.pod, Pod::Ended | Pod::Leaving)) {
                    (self.pods[index].pod, self.pods[index].jobs) = (Pod::Leaving, 0);
                }
            }
            Event::Gone(index) => {
                if let Some(index) = one(self, *index, |real| real.pod == Pod::Leaving) {
                    self.pods.remove(index);
                }
            }
            Event::CollectorRestarts => (self.collector_began, self.ads) = (self.now, BTreeMap::new()),
            Event::Wish(new) => wish.clone_from(new),
            Event::Template => self.template += 1,
            Event::Ads => self.advertise(),
            Event::Silence => {
                self.answer = None;
                self.absences.is_unknown();
            }
            Event::Watch(changes) => (0..*changes).for_each(|_| self.watch()),
            Event::List => self.list(),
            Event::Restart => {
                (self.made, self.told, self.answer) = (Made::default(), BTreeSet::new(), None);
                (self.absences, self.absent) = (Absences::default(), BTreeSet::new());
                self.list();
            }
            Event::Look { ask, late_job, request } => {
                if *ask {
                    self.ask();
                }
                let seen = self.see(wish);
                let plans = self.plans(wish);
                assert_eq!(plans, self.plans(wish));
                if seen.values().any(|seen| seen.answer != Answer::Known) {
                    assert!(plans.values().all(|plan| plan.drain.is_empty()), "{plans:?}");
                }
                if *late_job {
                    for real in self.pods.iter_mut().filter(|real| real.pod == Pod::Running && !real.draining) {
                        real.jobs += 1;
                    }
                }
                self.record();
                let jobs: u32 = self.pods.iter().map(|real| real.jobs).sum();
                self.act(&plans, wish, *request);
                assert_eq!(self.pods.iter().map(|real| real.jobs).sum::<u32>(), jobs, "a job is lost by {plans:?}");
            }
        }
        self.record();
    }

    /// Nothing more happens: all jobs end, and it is looked at for long enough.
    fn settle(&mut self, wish: &Wish) {
        for _ in 0..40 {
            self.pods.retain(|real| real.pod != Pod::Leaving);
            self.record();
            for real in &mut self.pods {
                if matches!(real.pod, Pod::Waiting { .. }) {
                    (real.pod, real.idle_since) = (Pod::Running, self.now);
                }
                real.jobs = 0;
            }
            self.drained_ones_end();
            self.now += 61;
            self.list();
            self.advertise();
            self.ask();
            let plans = self.plans(wish);
            self.act(&plans, wish, Request::Answered);
        }
        self.list();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 300 }))]

    #[test]
    fn no_job_is_ever_lost_and_the_pool_becomes_what_it_should_be(events in events()) {
        let (mut world, mut wish) = (World::new(), Wish::Replicas(2));
        for event in &events {
            world.step(event, &mut wish);
            let mut ids: Vec<u32> = world.pods.iter().map(|real| real.id).collect();
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len(), world.pods.len());
        }
        world.settle(&wish);
        for (image, seen) in world.see(&wish) {
            let its = world.pods.iter().filter(|real| real.image == image).count();
            prop_assert_eq!(its, seen.goal.wanted() as usize, "{} {:?}", image, world);
        }
        for plan in world.plans(&wish).into_values() {
            prop_assert_eq!(&plan, &Plan { again: plan.again, ..Plan::default() });
        }
    }
}

/// And each row of the table happens.
#[test]
#[cfg(not(miri))]
fn each_row_of_the_table_happens() {
    // The same steps whatever proptest's settings are.
    let steady = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let (mut runner, mut seen) = (TestRunner::new_with_rng(ProptestConfig::default(), steady), Changes::new());
    for _ in 0..400 {
        let (mut world, mut wish) = (World::new(), Wish::Replicas(2));
        for event in events().new_tree(&mut runner).unwrap().current() {
            world.step(&event, &mut wish);
        }
        seen.append(&mut world.seen);
    }
    assert_is_the_table(&seen, &TABLE);
}
