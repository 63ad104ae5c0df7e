//! A small world in which one `HTCJob` lives: the real `decide`, a ledger, and an HTCondor that does what the test says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use htc_machine::decide::{Action, Decision, Polling};
use htc_machine::facts::{
    Ad, Answer, Claim, EarlierAnswer, Evidence, Exit, Facts, History, HistoryReach, Hold, JobStatus, LastRequest,
    QueryErrorKind, QueueAnswer, Record, RunHistory, Submission, Witness,
};
use htc_machine::judge::REMOVED_BY_US;
use htc_machine::phase::Phase;
use htc_machine::request::{RemovalScope, SubmitPermit};
use htc_machine::transitions::{Transition, find};
use htc_machine::{
    Attempt, Birthdate, ClusterId, Index, JobId, Request, Rules, SchedDate, Settings, Timestamp, Work, decide,
};

use super::{BIRTH, NOW, SCHEDD_NOW, fresh, no_hold, unknown};

/// What becomes of a job that is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// HTCondor takes its files and queues it.
    Accepted,
    /// It is in the queue, and its files never come.
    Stuck,
    /// HTCondor never hears of it.
    Refused,
}

/// The world.
#[derive(Debug)]
pub struct World {
    pub now: Timestamp,
    pub settings: Settings,
    pub facts: Facts,
    pub queue: Vec<Ad>,
    pub history: Vec<Ad>,
    pub birthdate: Birthdate,
    pub born: Timestamp,
    /// Of the jobs that are submitted next.
    pub fate: fn(Index) -> Fate,
    /// HTCondor does not answer.
    pub away: bool,
    /// What was made, in order.
    pub transitions: Vec<Transition>,
    pub requests: Vec<Request>,
    pub last: Option<Decision>,
    next_cluster: u64,
    gone: bool,
}

impl World {
    /// One object with so many jobs, which nobody has touched.
    pub fn new(jobs: u32) -> Self {
        Self {
            now: Timestamp(NOW * 1000),
            settings: Settings::default(),
            facts: fresh(jobs),
            queue: Vec::new(),
            history: Vec::new(),
            birthdate: BIRTH,
            born: Timestamp(0),
            fate: |_| Fate::Accepted,
            away: false,
            transitions: Vec::new(),
            requests: Vec::new(),
            last: None,
            next_cluster: 1,
            gone: false,
        }
    }

    /// Whether the finalizer is gone and the object with it.
    pub const fn gone(&self) -> bool {
        self.gone
    }

    pub fn phase(&self) -> Option<Phase> {
        self.facts.record.row.as_ref().map(|known| known.phase)
    }

    /// The reason that a condition has now, with its status: `"True Fetched"`.
    pub fn condition(&self, kind: htc_machine::condition::ConditionType) -> Option<String> {
        let known = self.facts.record.row.as_ref()?;
        let condition = known.conditions.iter().find(|condition| condition.kind == kind)?;
        Some(format!("{} {}", condition.status, condition.reason))
    }

    /// The reasons of the Events so far.
    pub fn reasons(&self) -> Vec<&str> {
        self.transitions.iter().map(|transition| transition.reason.as_str()).collect()
    }

    fn date(&self) -> SchedDate {
        SchedDate(self.now.0 / 1000 - NOW + SCHEDD_NOW)
    }

    /// Lets time pass.
    pub fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(Duration::from_secs(seconds));
    }

    /// Puts a question to HTCondor, and a second later one to its history.
    pub fn ask(&mut self) {
        if self.away {
            self.facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable);
            return;
        }
        self.wait(1);
        let queue = QueueAnswer {
            asked_at: self.now,
            birthdate: self.birthdate,
            steady_since: self.born,
            ads: self.queue.clone().into(),
            unlabelled: Arc::default(),
            before: match &self.facts.evidence.queue {
                Answer::Known(before) if before.birthdate == self.birthdate => {
                    Some(EarlierAnswer::new(before.asked_at, &before.ads))
                }
                Answer::Known(_) | Answer::Unknown(_) => None,
            },
        };
        self.wait(1);
        let witnesses = self.facts.record.witnesses.values();
        let reaches = HistoryReach {
            witnesses: witnesses
                .filter_map(|witness| match witness {
                    Witness::Newest(id) => Some(id.clone()),
                    Witness::Empty => None,
                })
                .collect(),
            date: Some(self.facts.object.created),
        };
        let history = History { asked_at: self.now, reaches, ads: self.history.clone().into() };
        self.facts.evidence = Evidence { queue: Answer::Known(queue), history: Answer::Known(history) };
    }

    /// One decision, and what follows from it.
    pub fn step(&mut self) -> &Decision {
        let decision = decide(&self.facts, self.now, &self.settings, &Rules::ALL).unwrap();
        for transition in &decision.transitions {
            assert!(find(transition.from, transition.trigger, transition.to).is_some(), "{transition:?}");
        }
        self.transitions.extend(decision.transitions.iter().cloned());
        if let Some(after) = decision.after.clone() {
            self.publish(&after);
            self.facts.record = after;
        }
        self.facts.record.attempts.retain(|attempt| Some(attempt.attempt) > decision.details.settled);
        match decision.action.clone() {
            Action::Dispatch(request) => self.carry_out(&request),
            Action::Cancel(key) => {
                assert_eq!(self.facts.in_flight.as_ref().map(|request| &request.key), Some(&key));
                self.facts.in_flight = None;
            }
            Action::Nothing => {}
        }
        if decision.details.polling == Polling::Off {
            // The tracker forgets who is not watched.
            self.facts.evidence = Evidence::none();
        }
        self.last.insert(decision)
    }

    /// As the controller does.
    fn publish(&mut self, after: &Record) {
        let published = &mut self.facts.object.published;
        published.phase = after.row.as_ref().map(|known| known.phase).max(published.phase);
        published.attempt = after.highest.0.max(published.attempt);
        published.listed = published.to_list(after);
    }

    /// Asks and decides until nothing changes any more, at most so many times; each time some seconds pass.
    ///
    /// That a job is not there takes two answers: one of them is not the end.
    pub fn settle(&mut self) {
        let mut calm = 0;
        for _ in 0..60 {
            let before = (self.facts.record.clone(), self.transitions.len(), self.requests.len());
            self.step();
            // The end of a request wakes the object before HTCondor is asked again.
            self.step();
            let look = self.last.as_ref().map(|decision| decision.details.polling.clone());
            if look != Some(Polling::Off) {
                self.ask();
            }
            self.step();
            let changed = before != (self.facts.record.clone(), self.transitions.len(), self.requests.len());
            calm = if changed { 0 } else { calm + 1 };
            if calm == 2 {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.reasons());
    }

    /// The same, and waits out whatever it waits for, for at most an hour.
    pub fn run(&mut self) {
        let end = self.now.plus(Duration::from_secs(3600));
        while self.now < end && !self.gone {
            self.settle();
            let again = self.last.as_ref().and_then(|decision| decision.requeue_after);
            match again {
                Some(again) => self.wait(again.as_secs().max(1)),
                None => return,
            }
        }
    }

    /// The request is carried out at once and goes well.
    fn carry_out(&mut self, request: &Request) {
        self.requests.push(request.clone());
        let attempt = request.key.attempt;
        let started = self.now;
        match &request.work {
            Work::AttachFinalizer => {
                self.facts.object.finalizer = true;
                self.facts.object.claim = Claim::Ours;
                return;
            }
            Work::ReleaseFinalizer(_) => {
                self.facts.object.finalizer = false;
                self.gone = true;
                return;
            }
            Work::DeleteObject => {
                self.facts.object.deleting = true;
                return;
            }
            Work::Submit(indices, permit) => {
                if let SubmitPermit::Again(proof) = permit {
                    self.facts.record.attempts.retain(|open| open.attempt > proof.attempt());
                }
                self.submit(attempt, indices);
            }
            Work::Remove(scope) => self.remove(scope),
            Work::Hold => {
                for ad in &mut self.queue {
                    if matches!(ad.status, JobStatus::Idle | JobStatus::Running) {
                        ad.status = JobStatus::Held;
                        ad.hold = Hold {
                            code: Hold::BY_USER,
                            subcode: Hold::SUSPENDED,
                            reason: "spec.suspend".to_owned(),
                            since: None,
                        };
                    }
                }
            }
            Work::Release => {
                for ad in self.queue.iter_mut().filter(|ad| ad.status == JobStatus::Held && ad.hold.is_ours()) {
                    ad.status = JobStatus::Idle;
                    ad.hold = no_hold();
                }
            }
            Work::HoldJobs(ids) => {
                for ad in self.queue.iter_mut().filter(|ad| ids.contains(&ad.id)) {
                    if matches!(ad.status, JobStatus::Idle | JobStatus::Running) {
                        ad.status = JobStatus::Held;
                        ad.hold = Hold {
                            code: Hold::BY_USER,
                            subcode: Hold::FOR_USER,
                            reason: "a user".to_owned(),
                            since: None,
                        };
                    }
                }
            }
            Work::ReleaseJobs(ids) => {
                let held = |ad: &&mut Ad| ad.status == JobStatus::Held && ids.contains(&ad.id);
                for ad in self.queue.iter_mut().filter(held) {
                    ad.status = JobStatus::Idle;
                    ad.hold = no_hold();
                }
            }
            Work::Fetch(indices) => {
                for (_, job) in self.facts.record.jobs.iter_mut().filter(|(index, _)| indices.contains(**index)) {
                    job.fetched = true;
                }
            }
            Work::Tidy(indices) => {
                let indices = indices.clone();
                self.leave(|ad| ad.status == JobStatus::Completed && indices.contains(ad.index));
            }
        }
        self.wait(1);
        let step = request.key.step;
        let result = LastRequest { attempt, step, started, finished: Some(self.now), failure: None, failures: 0 };
        self.facts.record.requests.insert(request.key.kind, result);
    }

    fn submit(&mut self, attempt: Attempt, indices: &htc_machine::Indices) {
        let cluster = ClusterId(self.next_cluster);
        self.next_cluster += 1;
        let intent = (self.now, self.date());
        let newest = self.history.last().map_or(Witness::Empty, |ad| Witness::Newest(ad.id.to_string()));
        self.wait(1);
        let not_after = SchedDate(self.date().0 + 90);
        let fate = self.fate;
        for (proc, index) in (0..).zip(indices.iter()) {
            let staged_in = match fate(index) {
                Fate::Accepted => Some(self.date()),
                Fate::Stuck => None,
                Fate::Refused => continue,
            };
            let (status, code) =
                if staged_in.is_some() { (JobStatus::Idle, 0) } else { (JobStatus::Held, Hold::SPOOLING) };
            self.queue.push(Ad {
                id: JobId { cluster, proc },
                attempt,
                index,
                not_after: Some(not_after),
                status,
                hold: Hold { code, ..no_hold() },
                staged_in,
                staged_out: None,
                exit: None,
                completed: false,
                started: false,
                remove_reason: String::new(),
                runs: RunHistory::default(),
            });
        }
        let all_refused = indices.iter().all(|index| fate(index) == Fate::Refused);
        let record = &mut self.facts.record;
        record.highest = attempt;
        record.attempted = record.attempted.iter().chain(indices.iter()).collect();
        record.witnesses.insert(attempt, newest);
        record.refused = if all_refused { record.refused + 1 } else { 0 };
        record.attempts.push(Submission {
            attempt,
            indices: indices.clone(),
            schedd: "schedd@test".into(),
            birthdate: self.birthdate,
            intent_at: intent.0,
            intent_date: intent.1,
            submitter_deadline: intent.0.plus(Duration::from_secs(60)),
            dead_since: Some(self.now),
            refusal: all_refused.then(|| "ERROR: the schedd said no".to_owned()),
            absent: false,
        });
    }

    fn remove(&mut self, scope: &RemovalScope) {
        let chosen = |ad: &Ad| match scope {
            RemovalScope::All => true,
            RemovalScope::Staging => ad.staged_in.is_none() && ad.status == JobStatus::Held,
            RemovalScope::Unfinished => !matches!(ad.status, JobStatus::Completed | JobStatus::Removed),
            RemovalScope::Requested(ids) => {
                ids.contains(&ad.id) && !matches!(ad.status, JobStatus::Completed | JobStatus::Removed)
            }
            RemovalScope::Extra(ids) => ids.contains(&ad.id),
        };
        for ad in self.queue.iter_mut().filter(|ad| chosen(ad)) {
            ad.status = JobStatus::Removed;
            ad.remove_reason = format!("{REMOVED_BY_US} (by user operator)");
        }
        self.leave(|ad| ad.status == JobStatus::Removed);
    }

    /// These jobs leave the queue for history.
    pub fn leave(&mut self, which: impl Fn(&Ad) -> bool) {
        let (left, stay) = std::mem::take(&mut self.queue).into_iter().partition(|ad| which(ad));
        self.queue = stay;
        self.history.extend::<Vec<Ad>>(left);
    }

    /// Changes the ads of an index.
    pub fn change(&mut self, index: u32, change: impl Fn(&mut Ad)) {
        self.queue.iter_mut().filter(|ad| ad.index == Index(index)).for_each(change);
    }

    pub fn start(&mut self, index: u32) {
        self.change(index, |ad| {
            ad.status = JobStatus::Running;
            ad.started = true;
        });
    }

    pub fn end(&mut self, index: u32, exit: Exit) {
        self.change(index, |ad| {
            ad.status = JobStatus::Completed;
            ad.started = true;
            ad.completed = true;
            ad.exit = Some(exit);
        });
    }

    /// Somebody uses `condor_rm`.
    pub fn remove_by_hand(&mut self, index: u32) {
        self.change(index, |ad| {
            ad.status = JobStatus::Removed;
            ad.remove_reason = String::from("via condor_rm (by user alice)");
        });
        self.leave(|ad| ad.status == JobStatus::Removed);
    }

    /// The schedd comes back with an empty queue.
    pub fn lose_queue(&mut self) {
        self.queue.clear();
        self.birthdate.0 += 100;
        self.born = self.now;
    }

    /// How many times each kind of request was made.
    pub fn counts(&self) -> BTreeMap<htc_machine::RequestKind, usize> {
        let mut counts = BTreeMap::new();
        for request in &self.requests {
            *counts.entry(request.key.kind).or_default() += 1;
        }
        counts
    }
}
