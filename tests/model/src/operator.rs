//! The controller and the tracker: facts are gathered, decisions carried out and answers taken in as in production.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use htc_machine::condition::Reason;
use htc_machine::decide::{Action as Deed, Polling, decide};
use htc_machine::facts::{
    Answer, Claim, EarlierAnswer, Evidence, Facts, History, HistoryReach, InFlight, Listed, Object, ObjectRow, Past,
    Published, QueryError, QueryErrorKind, QueueAnswer, Record, Spec, SpecRefused, Unreadable,
};
use htc_machine::phase::Phase;
use htc_machine::quota_usage::quota_usage;
use htc_machine::{
    Birthdate, Indices, Request, RequestKey, RequestKind, Rules, SchedDate, ScheddName, Settings, Timestamp, Work,
};

use crate::shared::Shared;
use crate::steps::Model;
use crate::story::Teller;
use crate::world::{
    Batch, Broken, FAR, HtcJob, Lane, Memory, Operator, PendingLook, Reading, Slot, Watched, World, name, uid,
};

/// What becomes of the Kubernetes writes of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writes {
    Done,
    Lost,
}

/// Who answers a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Voice {
    /// The schedd.
    Schedd,
    /// Nobody.
    Nobody,
    /// The schedd, which shows no jobs although it has some.
    Blind,
    /// Another one that answers to its name, with an empty queue born then.
    Other(Birthdate),
}

impl Operator {
    /// A new process on this ledger.
    pub fn start(&mut self, objects: usize) {
        let queue = crate::queue::Queue::start(&self.ledger.rows).into();
        self.memory = Memory { queue, ..Memory::new(objects) }.into();
        self.awake = true;
    }
}

impl Model {
    /// First half: what is read before the ledger.
    pub fn read(&self, world: &World, op: usize, object: u8) -> Option<Reading> {
        let operator = &world.operators[op];
        let place = usize::from(object);
        let view = operator.memory.cache[place].clone()?;
        let entry = operator.memory.registry[place].as_ref().filter(|_| !self.broken.forgets_in_flight);
        let in_flight = entry.cloned();
        let watched = operator.memory.watched[place].as_ref();
        let evidence = watched.map_or_else(Evidence::none, |watched| watched.evidence.clone());
        let rows = self.broken.record_before_in_flight.then(|| operator.ledger.rows[place].clone());
        Some(Reading { object, view, in_flight, evidence, rows })
    }

    /// Second half: the ledger is read, and the rest follows.
    pub fn reconcile(&self, world: &mut World, op: usize, reading: Reading, writes: Writes, tell: &mut Teller) {
        if !world.operators[op].leads {
            return;
        }
        let Reading { object, view, in_flight, evidence, rows } = reading;
        let place = usize::from(object);
        let (in_flight, record) = match rows {
            Some(rows) => {
                let entry = world.operators[op].memory.registry[place].as_ref();
                (entry.cloned(), rows.load())
            }
            None => (in_flight, world.operators[op].ledger.rows[place].load()),
        };
        let facts = self.facts(world, op, object, &view, in_flight, evidence, record);
        let now = world.tick();
        let decision = decide(&facts, now, &self.settings_of(world, object), &self.rules).unwrap();
        let mut broken = None;
        let known = decision.after.as_ref().and_then(|after| after.row.as_ref());
        let room = self.scene.room.map(|_| self.heard(quota_usage(&facts, &decision, &self.rules), &facts.record));
        let gives_back = room.as_ref().map(|room| room.returned.clone()).unwrap_or_default();
        let news =
            !decision.changed.is_empty() || !decision.details.action_updates.is_empty() || !gives_back.is_empty();
        if known.is_some() && (known != facts.record.row.as_ref() || news) {
            let schedd = world.schedd.name.clone();
            let rows = &mut world.operators[op].ledger.rows[place];
            broken = rows.save(&decision, &schedd);
            rows.granted = rows.granted.without(&gives_back);
            if known.is_some_and(|known| known.released) {
                rows.granted = Indices::default();
            }
            for transition in &decision.transitions {
                tell.say(|| format!("    {}: {}", transition.trigger, words(&transition.reason, &transition.detail)));
            }
        }
        if let Some(broken) = broken {
            world.breaks(broken);
        }
        if known.is_some() {
            self.note_line(world, op, object);
        }
        if let Some(room) = &room {
            let mut queue = crate::queue::Queue::clone(&world.operators[op].memory.queue);
            queue.decided(place, &facts.record.granted, room);
            if queue != *world.operators[op].memory.queue {
                world.operators[op].memory.queue = queue.into();
            }
        }
        self.watch_reports(world, (op, object), &facts.evidence, &facts.record.reports, &decision);
        watch(&mut world.operators[op].memory, place, decision.details.polling.clone());
        match decision.action {
            Deed::Dispatch(Request { work: Work::AttachFinalizer, .. }) => {
                if writes == Writes::Done && world.object(object) == Some(&*view) {
                    let claim = Some(world.operators[op].ledger.id);
                    if let Some(job) = world.object_mut(object) {
                        job.finalizer = true;
                        job.claim = claim;
                        tell.say(|| format!("    the finalizer and the claim stand on {}", name(object)));
                    }
                }
                return;
            }
            Deed::Dispatch(Request { work: Work::ReleaseFinalizer(_), .. }) => {
                if writes == Writes::Done && world.object(object) == Some(&*view) {
                    self.release(world, object, tell);
                }
                world.operators[op].memory.watched[place] = None;
                world.operators[op].memory.strangers[place] = None;
                return;
            }
            Deed::Dispatch(request) => {
                tell.say(|| format!("    hands over: {}", asked(&request)));
                let over = |known: &ObjectRow| known.phase == Phase::Terminating || known.released;
                if matches!(request.work, Work::Submit(..)) && known.is_some_and(over) {
                    world.breaks(Broken::SubmittedDeleted);
                }
                let rows = world.operators[op].ledger.rows[place].clone();
                Self::watch_submissions(world, &rows, &request);
                self.watch_parallelism(world, &request);
                let full = !self.broken.registry_lets_all_in;
                world.operators[op].memory.hand_over(place, request, full);
            }
            Deed::Cancel(key) => {
                world.operators[op].memory.cancel(place, &key, !self.broken.frees_in_turn, tell);
            }
            Deed::Nothing => {}
        }
        if let Some(after) = decision.after.filter(|_| facts.object.finalizer && writes == Writes::Done) {
            self.publish(world, object, &view, &after);
        }
        self.nothing_forgotten(world, op, object);
    }

    #[allow(clippy::too_many_arguments, reason = "each is gathered elsewhere")]
    fn facts(
        &self,
        world: &mut World,
        op: usize,
        object: u8,
        view: &HtcJob,
        in_flight: Option<InFlight>,
        evidence: Evidence,
        record: Record,
    ) -> Facts {
        let claim = match view.claim {
            None => Claim::None,
            Some(id) if id == world.operators[op].ledger.id => Claim::Ours,
            Some(_) => Claim::Other,
        };
        let past = match claim {
            Claim::None if !view.finalizer => Past::Continuous,
            claim => past(world, op, object, claim, !self.broken.no_wait_for_strangers),
        };
        let unadopted = self.is_unadopted(view);
        let drained = self.is_drained(world, op, object, &record);
        let queue = self.queue_of(world, op, &record, drained);
        let spec = Spec {
            queue: self.queues[usize::from(object)],
            indexes: self
                .scene
                .not_the_first
                .then(|| Indices::first(self.queues[usize::from(object)]).without(&Indices::first(1))),
            suspend: view.suspend || drained,
            parallelism: self.parallelism_of(view),
            max_failed: None,
            deadline: view.deadline.then_some(Duration::ZERO),
            ttl: None,
            refused: None,
        };
        let spec = if self.scene.items { self.with_items(world, (op, object), view, &record, spec) } else { Ok(spec) };
        let object = Object {
            uid: uid(object),
            deleting: view.deleting,
            finalizer: view.finalizer || unadopted || (view.deleting && self.is_held(false)),
            claim,
            spec,
            output: String::new(),
            published: self.published(view),
            created: SchedDate(1),
            abandon: false,
            submit_again: false,
            may_rerun: self.scene.retries,
            unadopted,
        };
        Facts {
            object,
            record,
            past,
            in_flight,
            evidence,
            silent_since: None,
            schedd_is_silent: false,
            queue,
            schedd: world.schedd.name.clone(),
        }
    }

    /// A pause ends when the model says so.
    fn settings_of(&self, world: &World, object: u8) -> Settings {
        let pause =
            if world.pausing[usize::from(object)] { Duration::from_millis(FAR.unsigned_abs()) } else { Duration::ZERO };
        Settings { backoff_first: pause, backoff_max: pause, ..self.settings.clone() }
    }

    /// As it is in the spec, or as a broken variant takes it.
    fn parallelism_of(&self, view: &HtcJob) -> Option<u32> {
        if self.broken.reads_parallelism_once {
            return self.scene.parallelism;
        }
        let now = view.parallelism.or(self.scene.parallelism);
        if self.broken.never_narrows { now.max(Some(view.widest).filter(|widest| *widest > 0)) } else { now }
    }

    /// As `controller::gather::published` reads it.
    fn published(&self, view: &HtcJob) -> Published {
        let mut published = view.published.clone();
        if self.scene.items && published.listed != Listed::Nothing {
            published.listed = Listed::Partly;
        }
        published
    }

    /// As `controller::items::kept` does.
    fn with_items(
        &self,
        world: &mut World,
        (op, object): (usize, u8),
        view: &HtcJob,
        record: &Record,
        spec: Spec,
    ) -> Result<Spec, Unreadable> {
        let place = usize::from(object);
        if world.operators[op].ledger.rows[place].items.is_some() && !self.broken.reads_items_again {
            return Ok(spec);
        }
        let published = view.published.attempt > 0 || view.published.shows_jobs();
        let submitted = record.highest.0 > 0 || !record.jobs.is_empty() || published;
        if submitted && !self.broken.reads_items_again {
            return Ok(Spec { refused: Some(SpecRefused::invalid(String::new())), ..spec });
        }
        if !view.finalizer || view.deleting || record.row.is_none() {
            let (reason, message) = (Reason::Waiting, String::new());
            return Err(Unreadable { reason, message, requeue_after: Some(Duration::ZERO) });
        }
        world.operators[op].ledger.rows[place].items = Some(world.config_maps[place]);
        Ok(spec)
    }

    fn release(&self, world: &mut World, object: u8, tell: &mut Teller) {
        tell.say(|| format!("    the finalizer of {} is released", name(object)));
        if let Some(job) = world.object_mut(object) {
            job.finalizer = false;
            if job.deleting {
                world.objects[usize::from(object)] = Slot::Gone;
                world.nothing_is_left();
            }
        }
    }

    /// As `controller::publish`; the API server refuses a phase that goes back (a rule of the CRD).
    fn publish(&self, world: &mut World, object: u8, view: &HtcJob, after: &Record) {
        let asked = world.schedd.name.clone();
        let Some(old) = world.object(object).map(|job| job.published.clone()) else { return };
        let phase = after.row.as_ref().map(|known| known.phase).max(view.published.phase);
        if self.crd_rules && old.phase > phase {
            return;
        }
        let mut published = Published { phase, attempt: after.highest.0.max(view.published.attempt), ..old.clone() };
        if published.attempt > 0 {
            published.schedd = Some(whose(after, &view.published, &asked).clone());
        }
        let before = if self.broken.lists_its_own_only { Published::default() } else { self.published(view) };
        published.listed = before.to_list(after);
        if published != old
            && let Some(job) = world.object_mut(object)
        {
            job.published = published;
        }
        if old.phase > phase {
            world.breaks(Broken::PhaseWentBack);
        }
    }

    /// Asks the queue; the first half of a look. None if there is no answer to be taken in.
    pub fn ask_queue(&self, world: &mut World, op: usize, voice: Voice) -> Option<PendingLook> {
        let objects = world.objects.len();
        let asked_at = world.tick();
        let empty = || vec![std::sync::Arc::default(); objects];
        let (birthdate, ads) = match voice {
            Voice::Schedd => (world.schedd.birthdate, world.schedd.ads(objects)),
            Voice::Blind => (world.schedd.birthdate, empty()),
            Voice::Other(birthdate) => (birthdate, empty()),
            Voice::Nobody => {
                let unknown = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "no answer".to_owned() };
                for watched in world.operators[op].memory.watched.iter_mut().flatten() {
                    watched.evidence.queue = Answer::Unknown(unknown.clone());
                }
                return None;
            }
        };
        let memory = &mut world.operators[op].memory;
        let steady = match memory.birthdate {
            Some((seen, since)) if seen == birthdate => since,
            _ => asked_at,
        };
        memory.birthdate = Some((birthdate, steady));
        let wanted: BTreeMap<u8, HistoryReach> = (0..)
            .zip(&memory.watched)
            .filter_map(|(object, watched)| match watched.as_ref().map(|watched| &watched.look) {
                Some(Polling::Always { history: Some(reach), .. }) => Some((object, reach.clone())),
                _ => None,
            })
            .collect();
        Some(PendingLook { asked_at, birthdate, ads, wanted })
    }

    /// A look at one object that shows none of its jobs. Nobody else hears of it.
    pub fn look_at_one_blindly(&self, world: &mut World, op: usize, object: u8) {
        let Some(mut look) = self.ask_queue(world, op, Voice::Blind) else { return };
        look.wanted.retain(|wanted, _| *wanted == object);
        let place = usize::from(object);
        let others = world.operators[op].memory.watched.clone();
        self.finish_look(world, op, look, Voice::Blind);
        for (other, before) in others.into_iter().enumerate().filter(|(other, _)| *other != place) {
            world.operators[op].memory.watched[other] = before;
        }
    }

    /// Asks history alone about one object, after the answer of the queue that it has.
    pub fn look_into_history(&self, world: &mut World, op: usize, object: u8) {
        let asked_at = world.tick();
        let schedd = &world.schedd;
        let Some(watched) = &mut world.operators[op].memory.watched[usize::from(object)] else { return };
        let Polling::Always { history: Some(wanted), .. } = &watched.look else { return };
        let there = |id: &String| schedd.history.iter().any(|former| former.id == *id);
        let reaches = HistoryReach {
            witnesses: wanted.witnesses.iter().filter(|id| there(id)).cloned().collect(),
            date: wanted.date.filter(|_| schedd.reaches_the_beginning()),
        };
        let ads = schedd.former(object);
        watched.evidence.history = Answer::Known(History { asked_at, reaches, ads });
    }

    /// Asks history and takes the answers in.
    pub fn finish_look(&self, world: &mut World, op: usize, look: PendingLook, voice: Voice) {
        let asked_at = world.tick();
        let schedd = world.schedd.clone();
        let memory = &mut world.operators[op].memory;
        let Some((_, steady_since)) = memory.birthdate else { return };
        for (object, watched) in memory.watched.iter_mut().enumerate() {
            let Some(watched) = watched else { continue };
            let PendingLook { asked_at: queue_asked, birthdate, ads, wanted } = &look;
            let queue_asked = if self.broken.dates_answers_late { asked_at } else { *queue_asked };
            let asked_at = Timestamp(asked_at.0 + 1);
            let queue = QueueAnswer {
                asked_at: queue_asked,
                birthdate: *birthdate,
                steady_since,
                ads: ads[object].clone(),
                unlabelled: Arc::default(),
                before: match &watched.evidence.queue {
                    Answer::Known(before) if before.birthdate == *birthdate => {
                        Some(EarlierAnswer::new(before.asked_at, &before.ads))
                    }
                    Answer::Known(_) | Answer::Unknown(_) => None,
                },
            };
            watched.evidence.queue = Answer::Known(queue);
            let number = u8::try_from(object).unwrap();
            let Some(wanted) = wanted.get(&number) else { continue };
            let there = |id: &String| schedd.history.iter().any(|former| former.id == *id);
            let other = matches!(voice, Voice::Other(_));
            let reaches = HistoryReach {
                witnesses: wanted.witnesses.iter().filter(|id| !other && there(id)).cloned().collect(),
                date: wanted.date.filter(|_| !other && schedd.reaches_the_beginning()),
            };
            let ads = if other { std::sync::Arc::from([]) } else { schedd.former(number) };
            watched.evidence.history = Answer::Known(History { asked_at, reaches, ads });
        }
    }
}

/// As `controller::publish` says whose the jobs are.
fn whose<'a>(record: &'a Record, published: &'a Published, asked: &'a ScheddName) -> &'a ScheddName {
    let last = record.attempts.last().map(|attempt| &attempt.schedd);
    record.schedds.iter().find(|schedd| !schedd.is_same(asked)).or(last).or(published.schedd.as_ref()).unwrap_or(asked)
}

/// As `controller::gather` does.
fn past(world: &mut World, op: usize, object: u8, claim: Claim, waits: bool) -> Past {
    let place = usize::from(object);
    if claim == Claim::Ours {
        if world.operators[op].memory.strangers[place].is_some() {
            world.operators[op].memory.strangers[place] = None;
        }
        return Past::Continuous;
    }
    let settles = if let Some(settles) = world.operators[op].memory.strangers[place] {
        settles
    } else {
        let settles = if waits { world.limit() } else { world.tick() };
        world.operators[op].memory.strangers[place] = Some(settles);
        settles
    };
    Past::Unknown { settled: (settles.0 < FAR).then_some(settles) }
}

fn watch(memory: &mut Shared<Memory>, place: usize, look: Polling) {
    let look = match look {
        Polling::Always { history, .. } => Polling::Always { history, urgent: false },
        look => look,
    };
    if look == memory.watched[place].as_ref().map_or(Polling::Off, |watched| watched.look.clone()) {
        return;
    }
    if look == Polling::Off {
        memory.watched[place] = None;
    } else {
        let unasked = || Watched { look: Polling::Off, evidence: Evidence::none() }.into();
        memory.watched[place].get_or_insert_with(unasked).look = look;
    }
}

impl Memory {
    fn hand_over(&mut self, place: usize, mut request: Request, one_each: bool) {
        request.key.step = 1;
        // Without the registry they would pile up for ever.
        let waiting: usize = self.lanes.values().map(Vec::len).sum();
        if self.registry[place].is_none() || (!one_each && waiting < 2) {
            let request_in_flight = InFlight { key: request.key.clone(), running: false };
            self.registry[place] = Some(request_in_flight);
            self.lanes.entry(lane(&request)).or_default().push(request);
        }
    }

    /// As `workers::registry` does. What waits is free at once; in its queue it stays without effect, by its ticket. A transfer
    /// that runs is told to stop.
    fn cancel(&mut self, place: usize, key: &RequestKey, frees: bool, tell: &mut Teller) {
        let Some(request) = self.registry[place].as_ref().filter(|request| request.key == *key) else { return };
        if request.running {
            let stops = request.can_be_cancelled(&Rules::ALL);
            let its = |batch: &&mut Batch| stops && batch.requests.iter().any(|other| other.key == *key);
            for batch in self.batches.values_mut().filter(its) {
                tell.say(|| format!("    stops: {:?} of {}", key.kind, key.uid.as_str()));
                batch.stop = true;
            }
        } else if frees {
            tell.say(|| format!("    takes back: {:?} of {}", key.kind, key.uid.as_str()));
            self.registry[place] = None;
            self.lanes.retain(|_, queue| {
                queue.retain(|request| request.key != *key);
                !queue.is_empty()
            });
        }
    }
}

/// Which worker serves a request.
pub fn lane(request: &Request) -> Lane {
    match request.key.kind {
        RequestKind::Submit => Lane::Submit,
        RequestKind::Hold | RequestKind::Release => Lane::Hold,
        RequestKind::Fetch => Lane::Fetch,
        RequestKind::Tidy => Lane::Tidy,
        RequestKind::Remove
        | RequestKind::AttachFinalizer
        | RequestKind::ReleaseFinalizer
        | RequestKind::DeleteObject => Lane::Remove,
    }
}

fn words(reason: &str, detail: &str) -> String {
    if detail.is_empty() { reason.to_owned() } else { format!("{reason} ({detail})") }
}

/// A request in words.
pub fn asked(request: &Request) -> String {
    let object = request.key.uid.as_str();
    match &request.work {
        Work::Submit(indices, _) => format!("submit jobs {indices} of {object}, attempt {}", request.key.attempt),
        Work::Remove(scope) => format!("remove jobs of {object} ({scope:?})"),
        Work::Hold => format!("hold the jobs of {object}"),
        Work::Release => format!("release the jobs of {object}"),
        Work::HoldJobs(ids) => format!("hold {ids:?} of {object}"),
        Work::ReleaseJobs(ids) => format!("release {ids:?} of {object}"),
        Work::Fetch(indices) => format!("fetch the output of jobs {indices} of {object}"),
        Work::Tidy(indices) => format!("let jobs {indices} of {object} leave the queue"),
        Work::AttachFinalizer => format!("attach the finalizer of {object}"),
        Work::ReleaseFinalizer(_) => format!("release the finalizer of {object}"),
        Work::DeleteObject => format!("delete {object}"),
    }
}
