//! The workers: `machine::worker` gives the order of the steps; each step does here what it does in `workers`.

use std::collections::BTreeSet;

use htc_machine::facts::{Hold, JobStatus, RequestFailure, Submission};
use htc_machine::judge::{LockObservation, SubmitterLock, submitter_gone};
use htc_machine::request::{RemovalScope, SubmitPermit};
use htc_machine::worker;
use htc_machine::worker::WorkerStep;
use htc_machine::{Index, Indices, Request, SchedDate, Timestamp, Work};

use crate::bounds::{Refusal, Trouble};
use crate::condor::Submitter;
use crate::operator::{asked, lane};
use crate::steps::Model;
use crate::story::Teller;
use crate::world::{Batch, Broken, Ended, FAR, Fate, Lane, Rows, World, number};

/// How a tool fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Luck {
    Well,
    /// It fails, and has done nothing.
    Fails,
    /// It works, but the operator is told that it failed.
    AnswerLost,
    /// Removed jobs stay in the queue until their nodes answer.
    Lingering,
    /// The fence is found closed once.
    FenceCloses,
}

/// As `workers::batch` does.
fn together(first: &Request, other: &Request) -> bool {
    let alone = |request: &Request| {
        matches!(
            request.work,
            Work::Submit(_, SubmitPermit::Again(_)) | Work::Remove(RemovalScope::Extra(_) | RemovalScope::Requested(_))
        ) || request.alone
    };
    if alone(first) || alone(other) {
        return false;
    }
    match (&first.work, &other.work) {
        (Work::Remove(a), Work::Remove(b)) => a == b,
        (Work::Submit(..), Work::Submit(..))
        | (Work::Hold, Work::Hold)
        | (Work::Release, Work::Release)
        | (Work::Fetch(_), Work::Fetch(_))
        | (Work::Tidy(_), Work::Tidy(_)) => true,
        _ => false,
    }
}

fn object(request: &Request) -> usize {
    usize::from(number(&request.key.uid))
}

impl Model {
    /// A worker takes a batch: what waits and can go together.
    pub fn take(&self, world: &mut World, op: usize, lane: Lane, tell: &mut Teller) {
        let memory = &mut world.operators[op].memory;
        let Some(waiting) = memory.lanes.remove(&lane) else { return };
        let (requests, rest): (Vec<_>, Vec<_>) = {
            let first = waiting[0].clone();
            let mut nth = 0;
            waiting.into_iter().partition(|request| {
                nth += 1;
                nth == 1 || together(&first, request)
            })
        };
        if !rest.is_empty() {
            memory.lanes.insert(lane, rest);
        }
        let batch = Batch {
            requests,
            step: worker::first(),
            submitter_deadline: Timestamp(0),
            checked: false,
            time_left: None,
            submitter: None,
            ended: None,
            hangs: false,
            stop: false,
        };
        let taken = batch.requests.clone();
        memory.batches.insert(lane, batch);
        for request in &taken {
            let rows = world.operators[op].ledger.rows[object(request)].clone();
            Self::watch_submissions(world, &rows, request);
        }
        self.work(world, op, lane, Luck::Well, tell);
    }

    /// Whether others can come between this step and the one before. Between all others nobody else could tell.
    fn pauses_before(&self, step: WorkerStep, lane: Lane) -> bool {
        let two = self.scene.two_operators;
        match step {
            WorkerStep::CommitIntents => two && lane == Lane::Submit,
            WorkerStep::CheckFenceAgain => two || lane == Lane::Submit,
            WorkerStep::RunTool if lane == Lane::Submit => two,
            WorkerStep::RunTool => !self.scene.in_step || (lane == Lane::Fetch && self.transfers_hang()),
            WorkerStep::CommitResults => lane != Lane::Submit && self.scene.slow_tools,
            WorkerStep::CheckFence | WorkerStep::CommitNotRun | WorkerStep::Wake => false,
        }
    }

    fn transfers_hang(&self) -> bool {
        self.scene.kinds.contains(&Trouble::HangingTransfer)
    }

    /// Whether a worker can go on.
    pub fn can_work(world: &World, op: usize, lane: Lane) -> bool {
        let ended = |batch: &Batch| {
            batch.submitter.is_none_or(|number| world.submitters.iter().all(|other| other.number != number))
        };
        let batch = world.operators[op].memory.batches.get(&lane);
        batch.is_some_and(|batch| ended(batch) && (!batch.hangs || batch.stop))
    }

    /// Whether a transfer of this operator hangs, and nobody has stopped it.
    pub fn transfer_hangs(world: &World, op: usize) -> bool {
        world.operators[op].memory.batches.get(&Lane::Fetch).is_some_and(|batch| batch.hangs && !batch.stop)
    }

    /// Whether a transfer is under way, or what it has brought is being taken in.
    pub fn can_hang(world: &World, op: usize) -> bool {
        let under_way = |batch: &Batch| matches!(batch.step, WorkerStep::RunTool | WorkerStep::CommitResults);
        let batch = world.operators[op].memory.batches.get(&Lane::Fetch);
        batch.is_some_and(|batch| under_way(batch) && !batch.hangs && !batch.stop)
    }

    /// Nothing more comes of a transfer.
    pub fn hang(world: &mut World, op: usize) {
        world.troubles -= 1;
        if let Some(batch) = world.operators[op].memory.batches.get_mut(&Lane::Fetch) {
            batch.hangs = true;
            batch.ended = None;
        }
    }

    /// The time limit of a transfer that hangs passes.
    pub fn end_transfer(&self, world: &mut World, op: usize, tell: &mut Teller) {
        let at = world.tick();
        let batch = world.operators[op].memory.batches.get_mut(&Lane::Fetch);
        let Some(batch) = batch.filter(|batch| batch.hangs) else { return };
        batch.hangs = false;
        batch.step = WorkerStep::CommitResults;
        batch.ended = Some(Ended { well: false, at, fetched: BTreeSet::new() });
        self.work(world, op, Lane::Fetch, Luck::Well, tell);
    }

    /// Goes on with a batch, up to where others can come in between.
    pub fn work(&self, world: &mut World, op: usize, lane: Lane, luck: Luck, tell: &mut Teller) {
        let Some(mut batch) = world.operators[op].memory.batches.remove(&lane) else { return };
        let mut waits = false;
        loop {
            let step = batch.step;
            let went_well = match step {
                WorkerStep::CheckFence => self.check_fence(world, op, &mut batch),
                WorkerStep::CommitIntents => self.intend(world, op, &mut batch, tell),
                WorkerStep::CheckFenceAgain => {
                    batch.checked = world.operators[op].leads && luck != Luck::FenceCloses;
                    tell.say(|| format!("    its fence {}", if batch.checked { "holds" } else { "is refused" }));
                    batch.checked
                }
                // As `workers::tool_call` does: nothing comes of it, as if the operator had been killed.
                WorkerStep::RunTool if batch.stop => {
                    tell.say(|| "    the transfer is stopped".to_owned());
                    true
                }
                WorkerStep::RunTool => {
                    waits = self.run(world, op, &mut batch, luck, tell);
                    true
                }
                WorkerStep::CommitResults => {
                    if batch.ended.is_some() {
                        self.commit(world, op, &mut batch, false);
                    }
                    true
                }
                WorkerStep::CommitNotRun => {
                    self.commit(world, op, &mut batch, true);
                    true
                }
                WorkerStep::Wake => {
                    for request in batch.requests.drain(..) {
                        world.operators[op].memory.registry[object(&request)] = None;
                    }
                    true
                }
            };
            if waits {
                break;
            }
            let Some(next) = worker::next(step, went_well, &self.rules) else { return };
            batch.step = next;
            if self.pauses_before(next, lane) {
                break;
            }
        }
        world.operators[op].memory.batches.insert(lane, batch);
    }

    fn check_fence(&self, world: &mut World, op: usize, batch: &mut Batch) -> bool {
        let registry = &mut world.operators[op].memory.registry;
        batch.requests.retain(|request| {
            let entry = &mut registry[object(request)];
            if let Some(entry) = entry {
                entry.running = true;
            }
            entry.is_some()
        });
        !batch.requests.is_empty() && world.operators[op].leads
    }

    /// Why nothing of this object is ever submitted.
    pub fn refusal(&self, object: u8) -> Option<Refusal> {
        self.scene.refused.filter(|_| object == 0)
    }

    /// More tries show nothing new.
    pub fn was_tried_enough(world: &World, object: u8) -> bool {
        let rows = world.operators.iter().map(|operator| operator.ledger.rows[usize::from(object)].load());
        rows.into_iter().any(|record| record.highest.0 >= 2)
    }

    /// As `workers::batch` does with what it gives up: no intent of it is made.
    fn give_up(&self, world: &mut World, op: usize, batch: &mut Batch, tell: &mut Teller) {
        let refused = |request: &Request| {
            lane(request) == Lane::Submit && self.refusal(number(&request.key.uid)) == Some(Refusal::NotBegun)
        };
        let (refused, others): (Vec<_>, Vec<_>) = batch.requests.drain(..).partition(refused);
        batch.requests = others;
        for request in refused {
            tell.say(|| format!("    it is not begun: {}", asked(&request)));
            let (at, place) = (world.tick(), object(&request));
            let failure = RequestFailure { reason: "CredentialsFailed".to_owned(), message: String::new() };
            world.operators[op].ledger.rows[place].resolve(&request.key, at, Some(failure), &Indices::default());
            world.operators[op].memory.registry[place] = None;
            world.pausing[place] = true;
        }
    }

    fn intend(&self, world: &mut World, op: usize, batch: &mut Batch, tell: &mut Teller) -> bool {
        self.give_up(world, op, batch, tell);
        if batch.requests.is_empty() {
            return false;
        }
        let submits = batch.requests.iter().any(|request| lane(request) == Lane::Submit);
        let exists = |rows: &Rows, request: &Request| {
            rows.submissions.iter().any(|(submission, _, _)| submission.attempt == request.key.attempt)
        };
        let rows = &world.operators[op].ledger.rows;
        let again = batch.requests.iter().any(|request| exists(&rows[object(request)], request));
        if submits && again && !self.broken.attempts_have_no_key {
            return false;
        }
        if submits {
            batch.submitter_deadline = world.limit();
        }
        let at = world.tick();
        let (witness, birthdate) = (world.schedd.newest(), world.schedd.birthdate);
        for request in &batch.requests {
            let noted = match &request.work {
                Work::Submit(indices, _) => {
                    let submission = Submission {
                        attempt: request.key.attempt,
                        indices: indices.clone(),
                        schedd: world.schedd.name.clone(),
                        birthdate,
                        intent_at: Timestamp(0),
                        intent_date: SchedDate(2),
                        submitter_deadline: batch.submitter_deadline,
                        dead_since: None,
                        refusal: None,
                        absent: false,
                    };
                    Some((submission, witness.clone()))
                }
                _ => None,
            };
            world.operators[op].ledger.rows[object(request)].intend(&request.key, at, noted);
            tell.say(|| format!("    the intent is durable: {}", asked(request)));
        }
        true
    }

    /// Runs the tool; true while it is still running.
    fn run(&self, world: &mut World, op: usize, batch: &mut Batch, luck: Luck, tell: &mut Teller) -> bool {
        if batch.submitter.is_none() && batch.time_left.is_none() && !batch.checked && !world.operators[op].leads {
            world.breaks(Broken::ToolBehindFence);
        }
        let at = world.tick();
        if batch.requests.iter().any(|request| lane(request) == Lane::Submit) {
            return self.submit(world, op, batch, at, tell);
        }
        let (mut well, mut fetched) = (luck != Luck::AnswerLost, BTreeSet::new());
        if luck == Luck::Fails {
            well = false;
            tell.say(|| "    its tool fails and does nothing".to_owned());
        } else {
            for request in &batch.requests {
                tell.say(|| format!("    carried out: {}", asked(request)));
                self.effect(world, request, luck == Luck::Lingering, &mut fetched);
            }
        }
        batch.ended = Some(Ended { well, at, fetched: if well { fetched } else { BTreeSet::new() } });
        false
    }

    /// The limits of submitters that no operator saw end, and that are seen to have ended now. A limit names its submission.
    pub fn gone_unseen(&self, world: &World, op: usize) -> BTreeSet<Timestamp> {
        let rows = world.operators[op].ledger.rows.iter();
        let open = rows.flat_map(|rows| &rows.submissions).filter(|(submission, _, fate)| {
            *fate == Fate::Open && submission.dead_since.is_none() && submission.submitter_deadline != Timestamp(0)
        });
        open.map(|(submission, ..)| submission.submitter_deadline)
            .filter(|limit| {
                let lock = SubmitterLock { boot: "1".to_owned(), device: 1, inode: 1, file: "1".to_owned() };
                let (at, boot) = (Timestamp(0), lock.boot.clone());
                let seen = LockObservation { at, boot, device: 1, inode: 1, free: !Self::lock_is_held(world, *limit) };
                submitter_gone(&lock, &seen, &self.rules).is_some()
            })
            .collect()
    }

    /// Whether a submitter lives, or the operator that would have started it.
    fn lock_is_held(world: &World, limit: Timestamp) -> bool {
        let mut batches = world.memories().flat_map(|memory| memory.batches.values());
        world.submitting().any(|submitter| submitter.limit == limit && !submitter.overdue)
            || batches.any(|batch| batch.submitter_deadline == limit)
    }

    pub fn look_at_submitters(&self, world: &mut World, op: usize) {
        let gone = self.gone_unseen(world, op);
        let at = world.tick();
        let rows = world.operators[op].ledger.rows.iter_mut();
        for (submission, _, fate) in rows.flat_map(|rows| &mut rows.submissions) {
            if *fate == Fate::Open && submission.dead_since.is_none() && gone.contains(&submission.submitter_deadline) {
                submission.dead_since = Some(at);
                submission.submitter_deadline = Timestamp(0);
            }
        }
    }

    fn submit(&self, world: &mut World, op: usize, batch: &mut Batch, at: Timestamp, tell: &mut Teller) -> bool {
        if batch.submitter.is_some() {
            tell.say(|| "    condor_submit has ended".to_owned());
            batch.ended = Some(Ended { well: true, at, fetched: BTreeSet::new() });
            return false;
        }
        let refused = |request: &Request| self.refusal(number(&request.key.uid)) == Some(Refusal::BySchedd);
        if batch.requests.iter().any(refused) {
            tell.say(|| "    the schedd refuses it".to_owned());
            batch.ended = Some(Ended { well: false, at, fetched: BTreeSet::new() });
            return false;
        }
        if batch.submitter_deadline == Timestamp(0) {
            // A broken variant without intents.
            batch.submitter_deadline = world.limit();
        }
        let time_left = *batch.time_left.get_or_insert(batch.submitter_deadline.0 >= FAR);
        if !time_left {
            tell.say(|| "    the time for this submission had passed before it began".to_owned());
            batch.ended = Some(Ended { well: false, at, fetched: BTreeSet::new() });
            return false;
        }
        if self.scene.two_operators && batch.checked {
            // The time that is left is computed; the tool is started in the next step.
            batch.checked = false;
            tell.say(|| "    the time that is left for condor_submit is computed".to_owned());
            return true;
        }
        let rows = batch.requests.iter().flat_map(|request| {
            let indices = match &request.work {
                Work::Submit(indices, _) => indices.clone(),
                _ => Indices::default(),
            };
            let (object, attempt) = (number(&request.key.uid), request.key.attempt);
            indices.iter().map(move |index| (object, attempt, index)).collect::<Vec<_>>()
        });
        let overdue = batch.submitter_deadline.0 < FAR;
        let limit = if overdue { world.limit() } else { batch.submitter_deadline };
        let number = (0..=u8::MAX).find(|number| world.submitters.iter().all(|other| other.number != *number)).unwrap();
        batch.submitter = Some(number);
        tell.say(|| "    condor_submit is started".to_owned());
        let items = world.operators[op].ledger.rows.iter().map(|rows| rows.items).collect();
        world.submitters.push(Submitter { number, rows: rows.collect(), items, limit, overdue, cluster: None });
        true
    }

    fn effect(&self, world: &mut World, request: &Request, lingering: bool, fetched: &mut BTreeSet<(u8, Index)>) {
        let owner = number(&request.key.uid);
        match &request.work {
            Work::Remove(scope) => world.remove_scope(owner, scope, lingering),
            Work::Hold => {
                for job in world.schedd.queue.iter_mut().filter(|job| job.is_of(owner)) {
                    if matches!(job.ad.status, JobStatus::Idle | JobStatus::Running) {
                        job.ad.status = JobStatus::Held;
                        job.ad.hold =
                            Hold { code: Hold::BY_USER, subcode: Hold::SUSPENDED, reason: String::new(), since: None };
                    }
                }
            }
            Work::Release => {
                for job in world.schedd.queue.iter_mut().filter(|job| job.is_of(owner)) {
                    if job.ad.status == JobStatus::Held && job.ad.hold.is_ours() {
                        job.ad.status = JobStatus::Idle;
                    }
                }
            }
            Work::HoldJobs(ids) => world.hold_jobs(owner, ids),
            Work::ReleaseJobs(ids) => world.release_jobs(owner, ids),
            Work::Fetch(indices) => {
                for place in 0..world.schedd.queue.len() {
                    let job = &mut world.schedd.queue[place];
                    let ended = job.ad.status == JobStatus::Completed && !job.late();
                    if job.is_of(owner) && ended && indices.contains(job.ad.index) {
                        job.ad.staged_out = Some(SchedDate(7));
                        let index = job.ad.index.0 as usize;
                        world.seen.output[usize::from(owner)][index] = true;
                    }
                }
                let there = |index: &Index| world.seen.output[usize::from(owner)][index.0 as usize];
                fetched.extend(indices.iter().filter(there).map(|index| (owner, index)));
                if self.scene.leaves_when_fetched {
                    world.schedd.leave_all(|job| job.ad.status == JobStatus::Completed && job.ad.staged_out.is_some());
                }
            }
            Work::Tidy(indices) => world.schedd.leave_all(|job| {
                job.is_of(owner) && job.ad.status == JobStatus::Completed && indices.contains(job.ad.index)
            }),
            Work::Submit(..) | Work::AttachFinalizer | Work::ReleaseFinalizer(_) | Work::DeleteObject => {}
        }
    }

    fn commit(&self, world: &mut World, op: usize, batch: &mut Batch, not_run: bool) {
        let now = world.tick();
        let ended = batch.ended.take().unwrap_or(Ended { well: false, at: now, fetched: BTreeSet::new() });
        let failed = |reason: &str| RequestFailure { reason: reason.to_owned(), message: String::new() };
        for request in &batch.requests {
            let rows = &mut world.operators[op].ledger.rows[object(request)];
            match &request.work {
                Work::Submit(_, permit) => {
                    let refusal = (!ended.well).then_some("refused");
                    let supersedes = match permit {
                        SubmitPermit::Again(proof) => Some(proof.attempt()),
                        SubmitPermit::First(_) => None,
                    };
                    rows.resolve_submit(&request.key, ended.at, refusal, not_run, supersedes);
                    world.pausing[object(request)] = self.refusal(number(&request.key.uid)).is_some();
                }
                Work::Fetch(asked_for) if ended.well => {
                    let owner = number(&request.key.uid);
                    let fetched: Indices =
                        asked_for.iter().filter(|index| ended.fetched.contains(&(owner, *index))).collect();
                    let missing = (fetched.len() < asked_for.len()).then(|| failed("FetchFailed"));
                    rows.resolve(&request.key, ended.at, missing, &fetched);
                }
                _ => {
                    let failure =
                        (!ended.well).then(|| failed(if not_run { "OperatorStopping" } else { "ScheddUnreachable" }));
                    rows.resolve(&request.key, ended.at, failure, &Indices::default());
                }
            }
        }
    }
}
