//! Simulates a pool whose watch and collector lag behind: no job is ever lost, and there are never too many workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use htc_api::ObjectName;
use htc_machine::scaling::*;
use htc_machine::worker_groups::{ExistingWorkers, SharedGoal, SharedGroup, WorkerGroup, scale_all};
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::runtime::watcher;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use crate::htcpool::managed::absences::Absences;
use crate::htcpool::managed::expectations::Expectations;
use crate::htcpool::managed::names::PoolNames;

const NOW: i64 = 1_000_000;

/// The image of the pool, and another one.
const IMAGES: [&str; 2] = ["own", "other"];
/// Seconds for which an answer of the collector is valid.
const GOOD_FOR: i64 = 60;

fn shared(image: &str) -> SharedGroup {
    SharedGroup { image: image.to_owned(), namespace: None, volumes: String::new() }
}

fn names() -> PoolNames {
    PoolNames::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "uid").unwrap()
}

fn pod_of(real: &Real) -> KubePod {
    let mut pod = KubePod::default();
    (pod.metadata.name, pod.metadata.uid) = (Some(names().worker(real.number)), Some(real.id.to_string()));
    pod
}

/// A pool, with its real state and its observed state.
#[derive(Debug)]
struct ScaleFixture {
    now: i64,
    pods: Vec<Real>,
    /// Template of workers that are created now.
    template: u32,
    collector_began: i64,
    /// The latest ads that the collector has of workers, by their ids.
    ads: BTreeMap<u32, SlotState>,
    /// The collector's last answer: time, quality and content.
    answer: Option<(i64, AnswerQuality, BTreeMap<u32, SlotState>)>,
    next: u32,
    /// The pods after each change. The watch reports one change after another.
    changes: Vec<Vec<Real>>,
    /// Index of the change that the watch has reported last.
    shown: usize,
    /// Memory of the operator.
    made: Expectations,
    told: BTreeSet<u32>,
    absences: Absences,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Real {
    number: u32,
    /// Distinguishes pods of one name.
    id: u32,
    image: &'static str,
    template: u32,
    pod: PodState,
    /// Number of running jobs.
    jobs: u32,
    draining: bool,
    idle_since: i64,
    /// The startd does not reach the collector.
    deaf: bool,
}

/// Outcome of a request to create a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiRequest {
    Answered,
    /// The worker is created, and the answer is lost.
    Unanswered,
    Lost,
}

#[derive(Clone, Debug)]
enum Event {
    Time(i64),
    /// For five minutes nothing happens but queries of the collector.
    Calm,
    Begin(usize),
    JobStarts(usize),
    JobEnds(usize),
    NodeDies(usize),
    /// The startd no longer reaches the collector, or does so again.
    Deaf(usize, bool),
    /// A user deletes the pod.
    Deleted(usize),
    /// The kubelet has ended a deleted pod.
    Gone(usize),
    CollectorRestarts,
    Wish(SharedGoal),
    /// The template of new workers changes.
    Template,
    /// All startds send their ads to the collector.
    Ads,
    /// The collector does not answer a query.
    Silence,
    /// The watch reports this many further changes.
    Watch(usize),
    /// The watch restarts with a list.
    List,
    /// Another operator takes over.
    Restart,
    /// A reconcile. `ask`: with a query of the collector. `late_job`: a job starts on each worker between decision and
    /// action.
    Look {
        ask: bool,
        late_job: bool,
        request: ApiRequest,
    },
}

fn look() -> impl Strategy<Value = Event> {
    let request = prop_oneof![
        Just(ApiRequest::Answered),
        Just(ApiRequest::Answered),
        Just(ApiRequest::Unanswered),
        Just(ApiRequest::Lost),
    ];
    (any::<bool>(), any::<bool>(), request).prop_map(|(ask, late_job, request)| Event::Look { ask, late_job, request })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let follow = |(needed, min, max): ([u32; 2], u32, u32)| {
        let needed = IMAGES.iter().map(|image| shared(image)).zip(needed).collect();
        SharedGoal::Autoscale { needed, min, max, scale_down_after: 30 }
    };
    let wish = prop_oneof![
        (0u32..6).prop_map(SharedGoal::Replicas),
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

impl ScaleFixture {
    fn new() -> Self {
        Self {
            now: NOW,
            pods: Vec::new(),
            template: 0,
            collector_began: NOW - 1000,
            ads: BTreeMap::new(),
            answer: None,
            next: 0,
            changes: vec![Vec::new()],
            shown: 0,
            made: Expectations::default(),
            told: BTreeSet::new(),
            absences: Absences::default(),
        }
    }

    /// The watch reports one further change.
    fn watch(&mut self) {
        let Some(next) = self.changes.get(self.shown + 1) else { return };
        let before = &self.changes[self.shown];
        let is_in = |pods: &[Real], real: &Real| pods.iter().any(|other| other.id == real.id);
        let gone = before.iter().filter(|real| !is_in(next, real)).map(|real| watcher::Event::Delete(pod_of(real)));
        let events: Vec<_> = gone.chain(next.iter().map(|real| watcher::Event::Apply(pod_of(real)))).collect();
        for event in &events {
            self.made.observe(event, &names());
        }
        self.shown += 1;
    }

    /// The watch lists all pods as they are now.
    fn list(&mut self) {
        self.made.observe(&watcher::Event::Init, &names());
        for real in &self.pods {
            self.made.observe(&watcher::Event::InitApply(pod_of(real)), &names());
        }
        self.made.observe(&watcher::Event::InitDone, &names());
        self.shown = self.changes.len() - 1;
    }

    fn view(&self) -> &[Real] {
        &self.changes[self.shown]
    }

    /// Returns the pod that the operator has observed for this worker.
    fn seen(&self, number: u32) -> Real {
        self.view().iter().find(|real| real.number == number).unwrap().clone()
    }

    /// Counts the workers that may exist and are not requested again.
    ///
    /// Their requests got no answer, and the watch has not reported them. The operator does not wait for them: those
    /// that do not exist will never be reported.
    fn doubted(&self, plans: &BTreeMap<String, ScalePlan>, wish: &SharedGoal) -> usize {
        let asked = |number: u32| plans.values().any(|plan| plan.create.contains(&number));
        let doubted =
            |worker: &&Worker| worker.pod_state == PodState::Requested { confirmed: false } && !asked(worker.number);
        self.see(wish).values().flat_map(|evidence| &evidence.workers).filter(doubted).count()
    }

    /// Counts the pods that take jobs, or will, have the current template, and do not count as dead.
    fn staying(&self) -> usize {
        let stays = |real: &&Real| {
            let is_there = matches!(real.pod, PodState::Waiting { .. } | PodState::Running);
            !real.draining && real.template == self.template && is_there && !self.absences.is_dead(&real.id.to_string())
        };
        self.pods.iter().filter(stays).count()
    }

    /// Counts the pods that are not drained.
    fn there(&self) -> usize {
        let there = |real: &&Real| !real.draining && matches!(real.pod, PodState::Waiting { .. } | PodState::Running);
        self.pods.iter().filter(there).count()
    }

    /// Records a change, which the watch will report.
    fn record(&mut self) {
        if self.changes.last() != Some(&self.pods) {
            self.changes.push(self.pods.clone());
        }
    }

    /// All startds send their ads to the collector.
    fn advertise(&mut self) {
        let slot = |real: &Real| match (real.draining, real.jobs) {
            (true, _) => SlotState::Draining,
            (false, 0) => SlotState::Idle { since: real.idle_since },
            (false, _) => SlotState::Busy,
        };
        let running = self.pods.iter().filter(|real| real.pod == PodState::Running && !real.deaf);
        self.ads = running.map(|real| (real.id, slot(real))).collect();
    }

    fn ask(&mut self) {
        let answer = if self.now - self.collector_began < 40 { AnswerQuality::Young } else { AnswerQuality::Known };
        self.answer = Some((self.now, answer, self.ads.clone()));
        if answer != AnswerQuality::Known {
            return self.absences.record_no_answer();
        }
        let running = self.view().iter().filter(|real| real.pod == PodState::Running).map(|real| real.id);
        for id in running.collect::<Vec<_>>() {
            let uid = id.to_string();
            if self.ads.contains_key(&id) {
                self.absences.record_presence(&uid);
            } else if !self.told.contains(&id) {
                self.absences.record_absence(&uid, self.now, self.now);
            }
        }
    }

    fn see(&self, wish: &SharedGoal) -> BTreeMap<String, WorkerEvidence> {
        let good = self.answer.as_ref().filter(|(at, ..)| self.now - at <= GOOD_FOR);
        let answer = good.map_or(AnswerQuality::Unknown, |(_, answer, _)| *answer);
        let asked = good.filter(|_| answer == AnswerQuality::Known).map(|(at, ..)| *at);
        let slot = |real: &Real| {
            let named = good.and_then(|(.., ads)| ads.get(&real.id)).copied();
            named.unwrap_or_else(|| self.absences.slot(&real.id.to_string(), asked))
        };
        let seen = |real: &Real| Worker {
            number: real.number,
            pod_state: real.pod,
            slot_state: slot(real),
            up_to_date: real.template == self.template,
            drain_accepted: self.told.contains(&real.id),
        };
        let pods: Vec<Arc<KubePod>> = self.view().iter().map(|real| Arc::new(pod_of(real))).collect();
        let workers = |image: &str| -> Vec<Worker> {
            let made =
                self.made.missing_from(&pods, &names()).filter(|made| made.group == WorkerGroup::Shared(shared(image)));
            let made = made.map(|made| made.worker(Some(&self.template.to_string())));
            self.view().iter().filter(|real| real.image == image).map(seen).chain(made).collect()
        };
        let there = IMAGES.iter().map(|image| (shared(image), ExistingWorkers::default())).collect();
        let of = |(SharedGroup { image, .. }, goal): (SharedGroup, Goal)| {
            let (workers, deaths, taken) = (workers(&image), EarlyExits::default(), BTreeSet::new());
            (
                image,
                WorkerEvidence {
                    now: self.now,
                    goal,
                    workers,
                    answer,
                    deaths,
                    taken_numbers: taken,
                    max_create: u32::MAX,
                },
            )
        };
        wish.goals(&shared(IMAGES[0]), &there, &BTreeSet::new(), self.now).into_iter().map(of).collect()
    }

    /// Returns the decision on each group.
    fn plans(&self, wish: &SharedGoal) -> BTreeMap<String, ScalePlan> {
        scale_all(&self.see(wish), wish.most())
    }

    /// Carries out the plans as HTCondor and Kubernetes would do.
    fn act(&mut self, plans: &BTreeMap<String, ScalePlan>, wish: &SharedGoal, request: ApiRequest) {
        for number in plans.values().flat_map(|plan| &plan.delete_ended) {
            let seen = self.seen(*number);
            assert_eq!(seen.pod, PodState::Ended, "a pod that runs is deleted");
            self.pods.retain(|real| real.id != seen.id);
            self.record();
        }
        for number in plans.values().flat_map(|plan| &plan.delete_unstarted) {
            // The API server refuses to delete a pod that has changed.
            let seen = self.seen(*number);
            self.pods.retain(|real| *real != seen || !matches!(real.pod, PodState::Waiting { .. }));
            self.record();
        }
        for number in plans.values().flat_map(|plan| &plan.delete_unknown) {
            let seen = self.seen(*number);
            let real = self.pods.iter_mut().find(|real| real.id == seen.id && real.pod == PodState::Running);
            // The schedd is queried whether it has a job there.
            if let Some(real) = real.filter(|real| real.jobs == 0) {
                assert!(!self.told.contains(&seen.id), "it drains, and ends by itself");
                real.pod = PodState::Terminating;
                self.record();
            }
        }
        for (number, how) in plans.values().flat_map(|plan| &plan.drain) {
            let seen = self.seen(*number);
            let Some(real) = self.pods.iter_mut().find(|real| real.number == *number && real.pod == PodState::Running)
            else {
                continue;
            };
            assert_eq!(real.id, seen.id, "another worker is drained");
            match how {
                // HTCondor refuses to drain a busy worker.
                Drain::IfIdle if real.jobs > 0 => continue,
                Drain::IfIdle => {}
                Drain::Graceful => {
                    let asked_for = matches!(wish, SharedGoal::Replicas(_)) || real.template != self.template;
                    assert!(asked_for, "it was not requested");
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
            for number in &plan.create {
                self.made.expect_creation(*number, &WorkerGroup::Shared(shared(image)), &self.template.to_string());
                if request != ApiRequest::Lost {
                    let uid = self.make(*number, image);
                    if request == ApiRequest::Answered {
                        self.made.creation_observed(*number, uid);
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

    /// Creates a pod. Returns its uid; `None` if there is one of its name already.
    fn make(&mut self, number: u32, image: &'static str) -> Option<String> {
        if self.pods.iter().any(|real| real.number == number) {
            return None;
        }
        self.next += 1;
        let (id, pod, template) = (self.next, PodState::Waiting { since: self.now }, self.template);
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

    /// A drained worker ends after its last job, and never before.
    fn drained_ones_end(&mut self) {
        self.record();
        for real in &mut self.pods {
            if real.pod == PodState::Running && real.draining && real.jobs == 0 {
                real.pod = PodState::Ended;
            }
        }
        self.record();
    }

    fn step(&mut self, event: &Event, wish: &mut SharedGoal) {
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
                if let Some(index) = one(self, *index, |real| matches!(real.pod, PodState::Waiting { .. })) {
                    (self.pods[index].pod, self.pods[index].idle_since) = (PodState::Running, self.now);
                }
            }
            Event::JobStarts(index) => {
                if let Some(index) = one(self, *index, |real| real.pod == PodState::Running && !real.draining) {
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
                if let Some(index) =
                    one(self, *index, |real| matches!(real.pod, PodState::Waiting { .. } | PodState::Running))
                {
                    (self.pods[index].pod, self.pods[index].jobs) = (PodState::Ended, 0);
                }
            }
            Event::Deaf(index, deaf) => {
                if let Some(index) =
                    one(self, *index, |real| matches!(real.pod, PodState::Waiting { .. } | PodState::Running))
                {
                    self.pods[index].deaf = *deaf;
                    self.ads.remove(&self.pods[index].id);
                }
            }
            Event::Deleted(index) => {
                if let Some(index) =
                    one(self, *index, |real| !matches!(real.pod, PodState::Ended | PodState::Terminating))
                {
                    (self.pods[index].pod, self.pods[index].jobs) = (PodState::Terminating, 0);
                }
            }
            Event::Gone(index) => {
                if let Some(index) = one(self, *index, |real| real.pod == PodState::Terminating) {
                    self.pods.remove(index);
                }
            }
            Event::CollectorRestarts => (self.collector_began, self.ads) = (self.now, BTreeMap::new()),
            Event::Wish(new) => wish.clone_from(new),
            Event::Template => self.template += 1,
            Event::Ads => self.advertise(),
            Event::Silence => {
                self.answer = None;
                self.absences.record_no_answer();
            }
            Event::Watch(changes) => (0..*changes).for_each(|_| self.watch()),
            Event::List => self.list(),
            Event::Restart => {
                (self.made, self.told, self.answer) = (Expectations::default(), BTreeSet::new(), None);
                self.absences = Absences::default();
                self.list();
            }
            Event::Look { ask, late_job, request } => {
                if *ask {
                    self.ask();
                }
                let seen = self.see(wish);
                let plans = self.plans(wish);
                assert_eq!(plans, self.plans(wish));
                if seen.values().any(|seen| seen.answer != AnswerQuality::Known) {
                    assert!(plans.values().all(|plan| plan.drain.is_empty()), "{plans:?}");
                }
                if *late_job {
                    for real in self.pods.iter_mut().filter(|real| real.pod == PodState::Running && !real.draining) {
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

    /// No further events: all jobs end, and the pool is reconciled until nothing changes any more.
    fn settle(&mut self, wish: &SharedGoal) {
        for _ in 0..40 {
            self.pods.retain(|real| real.pod != PodState::Terminating);
            self.record();
            for real in &mut self.pods {
                if matches!(real.pod, PodState::Waiting { .. }) {
                    (real.pod, real.idle_since) = (PodState::Running, self.now);
                }
                real.jobs = 0;
            }
            self.drained_ones_end();
            self.now += 61;
            self.list();
            self.advertise();
            self.ask();
            let plans = self.plans(wish);
            self.act(&plans, wish, ApiRequest::Answered);
        }
        self.list();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 300 }))]

    #[test]
    fn pool_converges_without_losing_a_job(events in events()) {
        let (mut world, mut wish) = (ScaleFixture::new(), SharedGoal::Replicas(2));
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
            prop_assert_eq!(&plan, &ScalePlan { requeue_at: plan.requeue_at, ..ScalePlan::default() });
        }
    }
}

/// Each kind of step is planned at least once.
#[test]
#[cfg(not(miri))]
fn every_kind_of_scaling_step_occurs() {
    // The same events whatever proptest's settings are.
    let steady = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let (mut runner, mut seen) = (TestRunner::new_with_rng(ProptestConfig::default(), steady), [false; 5]);
    for _ in 0..400 {
        let (mut world, mut wish) = (ScaleFixture::new(), SharedGoal::Replicas(2));
        for event in events().new_tree(&mut runner).unwrap().current() {
            for ScalePlan {
                create: make,
                delete_ended: remove,
                delete_unstarted: withdraw,
                delete_unknown: discard,
                drain,
                ..
            } in world.plans(&wish).into_values()
            {
                let parts = [make, remove, withdraw, discard].map(|numbers| !numbers.is_empty());
                let parts = parts.into_iter().chain([!drain.is_empty()]);
                seen.iter_mut().zip(parts).for_each(|(seen, part)| *seen |= part);
            }
            world.step(&event, &mut wish);
        }
    }
    assert_eq!(seen, [true; 5], "make, remove, withdraw, discard, drain");
}
