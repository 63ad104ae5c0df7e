//! The ledger's statements, as `ledger::load` and `ledger::store` make them.

use htc_machine::actions::ActionUpdate;
use htc_machine::condition::ConditionType;
use htc_machine::facts::{Job, LastRequest, ObjectRow, Record, RequestFailure, Submission, Witness};
use htc_machine::indices::Indices;
use htc_machine::{Attempt, Decision, Index, RequestKey, ScheddName, Timestamp};

use crate::world::{Broken, Fate, Ledger, Rows};

impl Rows {
    /// As `ledger::load` does.
    pub fn load(&self) -> Record {
        let mut record = Record { row: self.known.clone(), jobs: self.jobs.clone(), ..Record::default() };
        let accepted = record.jobs.values().map(|job| job.attempt).max().unwrap_or_default();
        let mut attempted = Vec::new();
        for (submission, witness, fate) in &self.submissions {
            if *fate == Fate::Settled {
                let live = |job: &Job| !job.gone && job.attempt == submission.attempt;
                if self.jobs.values().any(live) {
                    record.witnesses.insert(submission.attempt, witness.clone());
                }
                continue;
            }
            record.highest = record.highest.max(submission.attempt);
            if *fate == Fate::NotRun {
                continue;
            }
            record.refused += u32::from(submission.attempt > accepted);
            attempted.extend(submission.indices.iter());
            record.witnesses.insert(submission.attempt, witness.clone());
            if *fate == Fate::Open {
                record.attempts.push(submission.clone());
            }
        }
        record.attempted = attempted.into_iter().collect();
        let left = |(index, _): &(&Index, &ScheddName)| self.jobs.get(index).is_some_and(|job| !job.gone);
        record.schedds = self.schedds.iter().filter(left).map(|(_, schedd)| schedd.clone()).collect();
        record.requests.clone_from(&self.requests);
        record.reports = self.told();
        record.requested_actions.clone_from(&self.wishes);
        record.granted.clone_from(&self.granted);
        record
    }

    /// Writes a decision that was made by what this schedd says. Gives back a promise that this breaks.
    pub fn save(&mut self, decision: &Decision, schedd: &ScheddName) -> Option<Broken> {
        let after = decision.after.as_ref()?;
        let known = after.row.clone()?;
        let mut broken = None;
        if self.known.as_ref().is_some_and(|before| before.phase > known.phase) {
            broken = Some(Broken::PhaseWentBack);
        }
        let new = self.known.as_ref().map_or(known.new, |before| before.new);
        self.known = Some(without_words(ObjectRow { new, ..known }));
        for index in &decision.changed {
            let Some(job) = after.jobs.get(index) else { continue };
            let mut job = job.clone();
            let known = |before: &Job| before.id == job.id && before.attempt == job.attempt;
            if !self.jobs.get(index).is_some_and(known) {
                self.schedds.insert(*index, schedd.clone());
            }
            if let Some(before) = self.jobs.get(index) {
                job.fetched |= before.fetched;
                if before.attempt == job.attempt && before.id != job.id {
                    broken = Some(Broken::IdChanged);
                }
            }
            self.jobs.insert(*index, job);
        }
        for ActionUpdate { index, now, .. } in &decision.details.action_updates {
            self.wishes.retain(|other, _| other != *index);
            if let Some(wished) = now {
                self.wishes.insert(*index, wished.clone());
            }
        }
        for (submission, _, fate) in &mut self.submissions {
            submission.absent |=
                decision.details.absent.is_some_and(|attempt| submission.attempt <= attempt) && *fate == Fate::Open;
            if decision.details.settled.is_some_and(|attempt| submission.attempt <= attempt) && *fate == Fate::Open {
                *fate = Fate::Settled;
                // Nothing of it but its number, its jobs and its witness is read any more.
                submission.submitter_deadline = Timestamp(0);
                submission.dead_since = None;
            }
        }
        self.settle(decision);
        broken
    }

    /// That a request is taken up.
    pub fn intend(&mut self, key: &RequestKey, at: Timestamp, noted: Option<(Submission, Witness)>) {
        let failures = self.requests.get(&key.kind).map_or(0, |last| last.failures);
        let last = LastRequest { attempt: Attempt(0), step: 1, started: at, finished: None, failure: None, failures };
        self.requests.insert(key.kind, last);
        if let Some((submission, witness)) = noted {
            self.submissions.push((submission, witness, Fate::Open));
        }
    }

    /// How a request ended.
    pub fn resolve(&mut self, key: &RequestKey, at: Timestamp, failure: Option<RequestFailure>, fetched: &Indices) {
        let failures = u32::from(failure.is_some());
        let last =
            LastRequest { attempt: Attempt(0), step: 1, started: Timestamp(0), finished: Some(at), failure, failures };
        self.requests.insert(key.kind, last);
        for index in fetched.iter() {
            if let Some(job) = self.jobs.get_mut(&index) {
                job.fetched = true;
            }
        }
    }

    /// How a submitter ended.
    pub fn resolve_submit(
        &mut self,
        key: &RequestKey,
        at: Timestamp,
        refusal: Option<&str>,
        not_run: bool,
        supersedes: Option<Attempt>,
    ) {
        for (submission, _, fate) in &mut self.submissions {
            if submission.attempt == key.attempt && *fate == Fate::Open {
                submission.dead_since = Some(at);
                submission.submitter_deadline = Timestamp(0);
                submission.refusal = refusal.map(str::to_owned);
                if not_run {
                    *fate = Fate::NotRun;
                    submission.dead_since = None;
                }
            }
        }
        for (submission, _, fate) in &mut self.submissions {
            let replaced = supersedes.is_some_and(|attempt| submission.attempt <= attempt);
            if replaced && !not_run && *fate == Fate::Open {
                *fate = Fate::Superseded;
                // Nothing of it but its number, its jobs and its witness is read any more.
                submission.submitter_deadline = Timestamp(0);
                submission.dead_since = None;
            }
        }
        let stopped = || RequestFailure { reason: "OperatorStopping".to_owned(), message: String::new() };
        self.resolve(key, at, not_run.then(stopped), &Indices::default());
    }
}

impl Ledger {
    /// An old copy, found to be one: it takes a new id, and none of its objects counts as new.
    pub fn distrusted(mut self, id: u8) -> Self {
        self.id = id;
        for known in self.rows.iter_mut().filter_map(|rows| rows.known.as_mut()) {
            known.new = false;
        }
        self
    }
}

/// Words, and moments that no decision looks at, are left out.
fn without_words(mut known: ObjectRow) -> ObjectRow {
    known.started = known.started.map(|_| Timestamp(0));
    if let Some(cut) = &mut known.cut_short {
        cut.at = Timestamp(0);
    }
    known.completed = known.completed.map(|_| Timestamp(0));
    for condition in &mut known.conditions {
        condition.message.clear();
        if !matches!(condition.kind, ConditionType::Submitted | ConditionType::JobsRemoved) {
            condition.since = Timestamp(0);
        }
    }
    known
}
