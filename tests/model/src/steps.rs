//! What can happen next.

use std::collections::{BTreeSet, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use htc_machine::actions::JobAction;
use htc_machine::facts::{JobStatus, Listed};
use htc_machine::worker::WorkerStep;
use htc_machine::{Birthdate, ClusterId, Index, Rules, Settings, Timestamp};
use stateright::Property;

use crate::bounds::{Sabotage, Scene, Trouble};
use crate::condor::{CondorJob, Files, Schedd};
use crate::operator::{Voice, Writes};
use crate::properties::Course;
use crate::reports::Sent;
use crate::shared::Shared;
use crate::state::State;
use crate::story::Teller;
use crate::workers::Luck;
use crate::world::{Lane, Ledger, Memory, Operator, Seen, Slot, World};

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Reconcile(usize, u8, Writes),
    /// All objects in turn.
    ReconcileAll(usize),
    BeginReconcile(usize, u8),
    FinishReconcile(usize),
    Take(usize, Lane),
    /// The keeper of queues decides, or makes what it has decided durable.
    Grant(usize),
    /// An operator sees whether the queue is there.
    SeeQueue(usize),
    /// The queue is deleted, or made again.
    QueueGoes,
    QueueComes,
    Work(usize, Lane, Luck),
    /// A transfer under way hangs from now on.
    Hang(usize),
    /// The time limit of a transfer that hangs passes.
    TransferLimit(usize),
    Look(usize, Voice),
    /// History is asked about one object, after the queue has answered.
    LookIntoHistory(usize, u8),
    /// A look at one object alone shows none of its jobs.
    BlindLookAtOne(usize, u8),
    BeginLook(usize),
    /// An operator looks whether the submitters of those before it have ended.
    LookAtSubmitters(usize),
    FinishLook(usize),
    Stall(usize),
    CatchUp(usize),
    Create(u8),
    Delete(u8),
    Suspend(u8),
    /// A user changes `spec.parallelism`.
    Parallelism(u8, u32),
    /// The deadline of an object passes.
    Deadline(u8),
    /// The ConfigMap of an object's items gets other ones.
    NewItems(u8),
    Resume(u8),
    /// Kueue admits an object, or takes that back.
    Admit(u8),
    Evict(u8),
    /// An operator gives Kueue's quota back.
    GiveBack(usize, u8),
    /// The pause of an object after a submission that was refused is over.
    PauseEnds(u8),
    /// A user wants something of a job.
    Wish(u8, Index, JobAction),
    Submit(usize),
    SubmitSlowly(usize),
    SubmitFirst(usize),
    SubmitEndsEarly(usize),
    Send(usize),
    SubmitterDies(usize),
    Land(ClusterId),
    StagingFails(ClusterId),
    Start(usize),
    End(usize),
    /// What a job reports comes to an operator's ears.
    Report(usize, Sent),
    /// The node of a job dies right after its payload has ended and that was reported.
    NodeDies(usize),
    NodeFault(usize),
    /// HTCondor's pause after a fault of a node is over.
    PauseOver(usize),
    Purge,
    RemoveByHand(usize),
    /// HTCondor loses a job, and all trace of it.
    NoTrace(usize),
    LimitPasses,
    Crash(usize),
    Rotate,
    Reset,
    LoseLedger,
    Copy,
    Restore,
    TakeOver,
    Wake,
    /// The operator is started with another `--schedd`: by mistake, or because a condition says so.
    OtherName,
    NameThatIsAskedFor,
    Backup,
    RestoreObjects,
    /// A person stops the operator, has the jobs of the Go operator adopted, and starts it again; `true`: the command dies before it claims
    /// their objects.
    Adopt(bool),
    /// In the second of two pools.
    There(Box<Action>),
}

/// The print of a state, and what steps from it come to.
type FirstSteps = (u64, Vec<(Action, Option<State>)>);

/// A scene, with rules that may be broken.
#[derive(Debug)]
pub struct Model {
    pub scene: Scene,
    pub queues: &'static [u32],
    pub rules: Rules,
    pub settings: Settings,
    pub broken: Sabotage,
    /// The API server enforces the rules of the CRD.
    pub crd_rules: bool,
    /// States from which such a fair run is known to come to a good end.
    pub good: Mutex<HashSet<(u64, Course)>>,
    /// Steps from the state that the checker looks at.
    pub first_steps: Mutex<FirstSteps>,
    /// Promises that were found broken: only the first story of each is the shortest.
    pub told: Mutex<HashSet<&'static str>>,
    /// Whether it is looked at how everything ends.
    pub watches_the_end: bool,
}

impl Model {
    pub fn new(scene: Scene, rules: Rules) -> Self {
        let settings = Settings {
            staging: Duration::ZERO,
            dead_margin: Duration::ZERO,
            late_margin: Duration::ZERO,
            output_wait: Duration::ZERO,
            birthdate_steady: Duration::from_millis(1),
            submit_max: Duration::ZERO,
            backoff_first: Duration::ZERO,
            backoff_max: Duration::ZERO,
            fetch_every: Duration::ZERO,
            keep_output: Duration::MAX,
            eager: Duration::ZERO,
            silence: Duration::ZERO,
            soon: Duration::ZERO,
            jobs_per_attempt: 100,
            size_refusal: None,
            namespace_limit: None,
        };
        let queues = scene.queues;
        Self {
            scene,
            queues,
            rules,
            settings,
            broken: Sabotage::default(),
            crd_rules: true,
            good: Mutex::default(),
            first_steps: Mutex::default(),
            told: Mutex::default(),
            watches_the_end: true,
        }
    }

    pub fn beginning(&self) -> World {
        let objects = self.queues.len();
        let operator = |id, leads| Operator {
            ledger: Ledger::new(id, objects),
            awake: leads,
            leads,
            memory: Memory::new(objects).into(),
        };
        let mut operators = vec![operator(1, true)];
        if self.scene.two_operators {
            operators.push(operator(2, false));
        }
        let each = |queue: &u32| *queue as usize;
        let first = if self.scene.creates { Slot::NotYet } else { Slot::There(Shared::default()) };
        let mut world = World {
            objects: vec![first; objects],
            operators,
            schedd: Schedd::new(self.scene.old_history).into(),
            submitters: Vec::new(),
            elsewhere: None,
            there: false,
            sent: BTreeSet::new(),
            copy: None,
            backup: None,
            troubles: self.scene.troubles,
            config_maps: vec![0; objects],
            workloads: vec![crate::queue::Workload::default(); objects],
            pausing: vec![false; objects],
            queue_is_gone: false,
            seen: Seen {
                ran: self.queues.iter().map(|queue| vec![0; each(queue)]).collect(),
                excused: self.queues.iter().map(|queue| vec![false; each(queue)]).collect(),
                output: self.queues.iter().map(|queue| vec![false; each(queue)]).collect(),
                items: vec![None; objects],
                lines: vec![None; objects],
            }
            .into(),
            broken: None,
            clock: 0,
            limits: 0,
            next_ledger: 3,
        };
        if self.scene.two_pools {
            world.add_pool(self.scene.old_history);
        }
        self.had_go_operator(&mut world);
        world.settle();
        world
    }

    /// What goes on by itself when nothing goes wrong, in an order in which everything comes to an end.
    pub fn progress(&self, world: &World, actions: &mut Vec<Action>) {
        self.progress_here(world, actions);
        Self::there(world, actions, |world, actions| self.progress_here(world, actions));
    }

    pub fn progress_here(&self, world: &World, actions: &mut Vec<Action>) {
        for (nth, submitter) in world.submitters.iter().enumerate() {
            actions.push(if submitter.cluster.is_some() { Action::Send(nth) } else { Action::Submit(nth) });
        }
        let mut clusters: Vec<ClusterId> = world
            .schedd
            .queue
            .iter()
            .filter(|job| job.files == Files::Sent && job.staging())
            .map(|job| job.ad.id.cluster)
            .collect();
        clusters.dedup();
        actions.extend(clusters.into_iter().map(Action::Land));
        for (place, job) in world.schedd.queue.iter().enumerate() {
            match job.ad.status {
                JobStatus::Idle => actions.push(Action::Start(place)),
                JobStatus::Running => actions.push(Action::End(place)),
                JobStatus::Held if job.pauses() => actions.push(Action::PauseOver(place)),
                _ => {}
            }
        }
        if world.schedd.queue.iter().any(|job| job.ad.status == JobStatus::Removed) {
            actions.push(Action::Purge);
        }
        for (op, operator) in world.operators.iter().enumerate() {
            if !operator.awake {
                continue;
            }
            let memory = &operator.memory;
            if memory.stalled {
                actions.push(Action::CatchUp(op));
            }
            if memory.reading.is_some() {
                actions.push(Action::FinishReconcile(op));
            }
            if memory.look.is_some() {
                actions.push(Action::FinishLook(op));
            }
            for lane in memory.batches.keys() {
                if Self::can_work(world, op, *lane) {
                    actions.push(Action::Work(op, *lane, Luck::Well));
                }
            }
            for lane in memory.lanes.keys() {
                if !memory.batches.contains_key(lane) {
                    actions.push(Action::Take(op, *lane));
                }
            }
            if operator.leads && memory.reading.is_none() {
                if self.scene.in_step {
                    actions.push(Action::ReconcileAll(op));
                } else {
                    let seen = (0..).zip(&memory.cache).filter(|(_, seen)| seen.is_some());
                    actions.extend(seen.map(|(object, _)| Action::Reconcile(op, object, Writes::Done)));
                }
            }
            if operator.leads {
                actions.extend(self.given_back(world, op).into_iter().map(|object| Action::GiveBack(op, object)));
            }
            if operator.leads && self.can_grant(world, op) {
                actions.push(Action::Grant(op));
            }
            if self.sight(world, op) != Self::truth(world) {
                actions.push(Action::SeeQueue(op));
            }
            if operator.leads && !self.gone_unseen(world, op).is_empty() {
                actions.push(Action::LookAtSubmitters(op));
            }
            if operator.leads && memory.look.is_none() && memory.watched.iter().any(Option::is_some) {
                actions.push(Action::Look(op, Voice::Schedd));
            }
            if operator.leads && self.scene.history_apart {
                let due = (0..)
                    .zip(&memory.watched)
                    .filter(|(_, watched)| watched.as_ref().is_some_and(|watched| watched.is_due()));
                actions.extend(due.map(|(object, _)| Action::LookIntoHistory(op, object)));
            }
        }
        actions.extend(self.admissible(world).into_iter().map(Action::Admit));
        actions.extend(world.queue_is_gone.then_some(Action::QueueComes));
        actions.extend(self.can_adopt(world).then_some(Action::Adopt(false)));
        if self.scene.two_operators && !world.operators[0].awake {
            actions.push(Action::Wake);
        }
        let objects = || (0..).zip(&world.objects).map(|(object, _)| object);
        if objects().any(|object| Self::is_sent_elsewhere(world, object)) {
            actions.push(Action::NameThatIsAskedFor);
        }
        if self.scene.kinds.contains(&Trouble::OldObjects) {
            let was_deleted = |object: &u8| {
                let lives = world.object(*object).is_some_and(|job| !job.deleting);
                lives && Self::says(world, *object, "WasDeleted")
            };
            actions.extend(objects().filter(was_deleted).map(Action::Delete));
        }
    }

    /// Objects that wait for the end of a pause.
    pub fn pauses(world: &World) -> impl Iterator<Item = u8> {
        let pausing = (0..).zip(&world.pausing).filter(|(_, pausing)| **pausing);
        pausing.map(|(object, _)| object)
    }

    /// Whether the earliest limit ahead matters to nobody but to those who wait for it.
    pub fn limit_harms_nobody(world: &World, limit: Timestamp) -> bool {
        let waiting = |memory: &Shared<Memory>| {
            memory.batches.values().any(|batch| batch.submitter_deadline == limit && batch.submitter.is_none())
        };
        let awake = world.operators.iter().filter(|operator| operator.awake).map(|operator| &operator.memory);
        let mut memories = awake.chain(world.other_pool().map(|pool| &pool.memory));
        world.submitting().all(|submitter| submitter.limit != limit)
            && world.queued().all(|job| job.limit != limit || job.files == Files::Never)
            && !memories.any(waiting)
    }

    pub fn transfer_limits(world: &World, actions: &mut Vec<Action>) {
        let operators = 0..world.operators.len();
        actions.extend(operators.filter(|op| Self::transfer_hangs(world, *op)).map(Action::TransferLimit));
    }

    /// Each report may come at any time; one that came before changes nothing.
    fn reports(world: &World, actions: &mut Vec<Action>) {
        for (op, _) in world.operators.iter().enumerate().filter(|(_, operator)| operator.awake && operator.leads) {
            actions.extend(world.sent.iter().map(|sent| Action::Report(op, sent.clone())));
        }
    }

    fn users(&self, world: &World, actions: &mut Vec<Action>) {
        actions.extend(self.can_adopt(world).then_some(Action::Adopt(true)));
        for (object, slot) in (0..).zip(&world.objects) {
            match slot {
                Slot::NotYet => actions.push(Action::Create(object)),
                Slot::There(job) => {
                    if object < self.scene.deletes && !job.deleting {
                        actions.push(Action::Delete(object));
                    }
                    if job.suspend {
                        actions.push(Action::Resume(object));
                    }
                    if job.parallelism == Some(0) {
                        actions.push(Action::Parallelism(object, 1));
                    }
                }
                Slot::Gone => {}
            }
        }
    }

    #[allow(clippy::too_many_lines, reason = "a table")]
    fn troubles(&self, world: &World, actions: &mut Vec<Action>) {
        let submitting = |op: usize| world.operators[op].memory.batches.contains_key(&Lane::Submit);
        let limit = world.next_limit();
        let harmful = limit.is_some_and(|limit| !Self::limit_harms_nobody(world, limit));
        for kind in self.scene.kinds {
            let submitters = || world.submitters.iter().enumerate();
            match kind {
                Trouble::SlowSubmitter => actions.extend(
                    submitters().filter(|(_, other)| other.cluster.is_none()).map(|(nth, _)| Action::SubmitSlowly(nth)),
                ),
                Trouble::HalfSubmission => actions.extend(
                    submitters()
                        .filter(|(_, other)| other.cluster.is_none() && other.rows.len() > 1)
                        .map(|(nth, _)| Action::SubmitFirst(nth)),
                ),
                Trouble::SlowStaging => actions.extend(
                    submitters()
                        .filter(|(_, other)| other.cluster.is_none())
                        .map(|(nth, _)| Action::SubmitEndsEarly(nth)),
                ),
                Trouble::DyingSubmitter => actions.extend(submitters().map(|(nth, _)| Action::SubmitterDies(nth))),
                Trouble::StagingFails => {
                    let mut clusters: Vec<ClusterId> =
                        world.schedd.queue.iter().filter(|job| job.staging()).map(|job| job.ad.id.cluster).collect();
                    clusters.dedup();
                    actions.extend(clusters.into_iter().map(Action::StagingFails));
                }
                Trouble::LimitPasses if harmful => actions.push(Action::LimitPasses),
                Trouble::RemovedByHand => actions.extend(
                    (0..world.schedd.queue.len())
                        .filter(|place| world.schedd.queue[*place].ad.status != JobStatus::Removed)
                        .map(Action::RemoveByHand),
                ),
                Trouble::NoTrace => {
                    let is_listed = |job: &CondorJob| {
                        let listed = world.object(job.object).map(|object| &object.published.listed);
                        matches!(listed, Some(Listed::All(ids)) if ids.contains(&job.ad.id))
                    };
                    let places = (0..).zip(&world.schedd.queue).filter(|(_, job)| is_listed(job));
                    actions.extend(places.map(|(place, _)| Action::NoTrace(place)));
                }
                Trouble::DyingNode => {
                    let runs = |job: &CondorJob| job.ad.status == JobStatus::Running && !job.late();
                    let places = (0..).zip(&world.schedd.queue).filter(|(_, job)| runs(job));
                    actions.extend(places.map(|(place, _)| Action::NodeDies(place)));
                }
                Trouble::NodeFault => {
                    let begins = |job: &CondorJob| job.ad.status == JobStatus::Idle && !job.late();
                    let places = (0..).zip(&world.schedd.queue).filter(|(_, job)| begins(job));
                    actions.extend(places.map(|(place, _)| Action::NodeFault(place)));
                }
                Trouble::Rotation if !world.schedd.history.is_empty() => actions.push(Action::Rotate),
                Trouble::Reset => actions.push(Action::Reset),
                Trouble::LostLedger if self.shows_its_attempts(world) => actions.push(Action::LoseLedger),
                Trouble::OldLedger if world.copy.is_some() => actions.push(Action::Restore),
                Trouble::OldLedger => actions.push(Action::Copy),
                Trouble::OtherName if self.shows_its_attempts(world) => actions.push(Action::OtherName),
                Trouble::OldObjects => match &world.backup {
                    Some(backup) if *backup != world.objects => actions.push(Action::RestoreObjects),
                    // Older ones would take objects or finalizers away, which nobody is safe from.
                    None if world
                        .objects
                        .iter()
                        .all(|slot| matches!(slot, Slot::There(job) if job.finalizer && !job.deleting)) =>
                    {
                        actions.push(Action::Backup);
                    }
                    Some(_) | None => {}
                },
                Trouble::SecondOperator if world.operators[0].leads && submitting(0) => actions.push(Action::TakeOver),
                Trouble::Wish => self.wishes(world, actions),
                Trouble::Deadline => {
                    actions.extend((0..).zip(&world.objects).filter_map(|(object, slot)| match slot {
                        Slot::There(job) if !job.deadline && !job.deleting => Some(Action::Deadline(object)),
                        _ => None,
                    }));
                }
                Trouble::NewItems => {
                    let same = (0..).zip(&world.config_maps).filter(|(_, contents)| **contents == 0);
                    actions.extend(same.map(|(object, _)| Action::NewItems(object)));
                }
                Trouble::QueueGoes if !world.queue_is_gone => actions.push(Action::QueueGoes),
                Trouble::Evict => actions.extend(Self::admitted(world).into_iter().map(Action::Evict)),
                Trouble::Parallelism => {
                    actions.extend((0..).zip(&world.objects).flat_map(|(object, slot)| {
                        let now = match slot {
                            Slot::There(job) if !job.deleting => job.parallelism.or(self.scene.parallelism),
                            _ => None,
                        };
                        // From none it becomes one by itself: `users`.
                        let others = [0, 1, 2]
                            .into_iter()
                            .filter(move |most| now.is_some_and(|now| now != *most && (now, *most) != (0, 1)));
                        others.map(move |most| Action::Parallelism(object, most))
                    }));
                }
                Trouble::Suspend => actions.extend((0..).zip(&world.objects).filter_map(|(object, slot)| match slot {
                    Slot::There(job) if !job.suspend && !job.deleting => Some(Action::Suspend(object)),
                    _ => None,
                })),
                _ => {}
            }
            for op in 0..world.operators.len() {
                if world.operators[op].awake && world.operators[op].leads {
                    Self::operators_troubles(world, op, *kind, actions);
                }
            }
        }
    }

    /// Where both the ledger and the name of the schedd can go, only the statuses say which schedd has jobs: they show each attempt a
    /// little after its intent.
    fn shows_its_attempts(&self, world: &World) -> bool {
        let both = [Trouble::LostLedger, Trouble::OtherName].iter().all(|kind| self.scene.kinds.contains(kind));
        let rows = world.operators.iter().flat_map(|operator| (0..).zip(&operator.ledger.rows));
        let shown = |object| world.object(object).map_or(u32::MAX, |job| job.published.attempt);
        !both || rows.into_iter().all(|(object, rows)| rows.load().highest.0 <= shown(object))
    }

    fn operators_troubles(world: &World, op: usize, kind: Trouble, actions: &mut Vec<Action>) {
        let memory = &world.operators[op].memory;
        let looks = memory.look.is_none() && memory.watched.iter().any(Option::is_some);
        let seen = || (0..).zip(&memory.cache).filter(|(_, seen)| seen.is_some()).map(|(object, _)| object);
        let simple = || {
            let goes_on = |lane: &&Lane| **lane != Lane::Submit && Self::can_work(world, op, **lane);
            memory.batches.keys().filter(goes_on)
        };
        match kind {
            Trouble::Crash => actions.push(Action::Crash(op)),
            Trouble::LingeringRemoval if memory.batches.contains_key(&Lane::Remove) => {
                actions.push(Action::Work(op, Lane::Remove, Luck::Lingering));
            }
            Trouble::Lapse
                if memory.batches.get(&Lane::Submit).is_some_and(|batch| batch.step == WorkerStep::CheckFenceAgain) =>
            {
                actions.push(Action::Work(op, Lane::Submit, Luck::FenceCloses));
            }
            Trouble::FailingTool => actions.extend(simple().map(|lane| Action::Work(op, *lane, Luck::Fails))),
            Trouble::HangingTransfer if Self::can_hang(world, op) => actions.push(Action::Hang(op)),
            Trouble::LostAnswer => actions.extend(simple().map(|lane| Action::Work(op, *lane, Luck::AnswerLost))),
            Trouble::Silence if looks => actions.push(Action::Look(op, Voice::Nobody)),
            Trouble::SlowLook if looks => actions.push(Action::BeginLook(op)),
            Trouble::BlindLook if looks => actions.push(Action::Look(op, Voice::Blind)),
            Trouble::BlindLookAtOne if looks => {
                let watched = (0..).zip(&memory.watched).filter(|(_, watched)| watched.is_some());
                actions.extend(watched.map(|(object, _)| Action::BlindLookAtOne(op, object)));
            }
            Trouble::OtherSchedd if looks => {
                let now = world.schedd.birthdate.0;
                actions.push(Action::Look(op, Voice::Other(Birthdate(now - 1))));
                // Not for long enough to pass for a lost queue.
                let newer = Birthdate(now + 10);
                if memory.birthdate.is_none_or(|(seen, _)| seen != newer) {
                    actions.push(Action::Look(op, Voice::Other(newer)));
                }
            }
            Trouble::SlowReconcile if memory.reading.is_none() => {
                actions.extend(seen().map(|object| Action::BeginReconcile(op, object)));
            }
            Trouble::StaleCache if !memory.stalled => actions.push(Action::Stall(op)),
            Trouble::LostWrite => {
                actions.extend(seen().map(|object| Action::Reconcile(op, object, Writes::Lost)));
            }
            _ => {}
        }
    }

    /// The world after `action`.
    pub fn apply(&self, world: &World, action: &Action, tell: &mut Teller) -> World {
        let mut next = world.clone();
        self.change(&mut next, action, tell);
        next.settle();
        next
    }

    /// The state after `action`, if that changes anything.
    pub fn step(&self, state: &State, action: &Action) -> Option<State> {
        let next = State::new(self.apply(state, action, &mut Teller::silent()));
        (next != *state).then_some(next)
    }

    /// The same from the state that the checker looks at. It is asked for twice: first for the promises about how everything ends.
    pub fn first_step(&self, state: &State, action: &Action) -> Option<State> {
        let mut first_steps = self.first_steps.lock().unwrap();
        let (of, steps) = &mut *first_steps;
        if *of != state.print() {
            (*of, *steps) = (state.print(), Vec::new());
        }
        if let Some((_, next)) = steps.iter().find(|(other, _)| other == action) {
            return next.clone();
        }
        let next = self.step(state, action);
        steps.push((action.clone(), next.clone()));
        next
    }
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.beginning())]
    }

    fn actions(&self, world: &State, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        self.progress(world, actions);
        actions.extend(
            Self::pauses(world).filter(|object| !Self::was_tried_enough(world, *object)).map(Action::PauseEnds),
        );
        let limit = world.next_limit();
        if limit.is_some_and(|limit| Self::limit_harms_nobody(world, limit)) {
            actions.push(Action::LimitPasses);
        }
        Self::transfer_limits(world, actions);
        Self::there(world, actions, Self::transfer_limits);
        Self::reports(world, actions);
        self.users(world, actions);
        if world.troubles > 0 {
            self.troubles(world, actions);
            Self::there(world, actions, |world, actions| self.troubles(world, actions));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let (of, steps) = &mut *self.first_steps.lock().unwrap();
        let place = steps.iter().position(|(other, _)| *other == action).filter(|_| *of == state.print());
        place.map_or_else(|| self.step(state, &action), |place| steps.swap_remove(place).1)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        crate::properties::properties()
    }
}
