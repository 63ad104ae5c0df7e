//! From dated evidence to verdicts and proofs.
//!
//! The types [`ProvenGone`], [`ProvenNeverAccepted`], [`NeverAttempted`] and [`NeverSubmitted`] can be made only here.
//! `decide` cannot submit or release a finalizer without one of them.

mod sightings;
mod submitter;
mod verdict;

use super::facts::{
    Answer, Earlier, Evidence, History, Job, Object, Past, Queue, Record, Submission, Unknown, Witness,
};
use super::ids::{Attempt, Birthdate, Index, JobId, SchedDate, ScheddName, Timestamp, Uid};
use super::indices::Indices;
use super::inherited::{Inherited, InheritedJob};
use super::outcome::Loss;
use super::rules::{Rules, Settings};
pub use sightings::{Acceptance, REMOVED_BY_US, SeenIn, Sighting, Sightings, acceptance, counts, outcome, removed};
pub use submitter::{LockSeen, NotALock, SubmitterGone, SubmitterLock, submitter_gone};
pub use verdict::Verdict;

/// HTCondor had no job of this object when it was asked, and none can appear any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProvenGone {
    uid: Uid,
    asked_at: Timestamp,
}

impl ProvenGone {
    /// The object.
    #[must_use]
    pub const fn uid(&self) -> &Uid {
        &self.uid
    }

    /// When HTCondor was asked.
    #[must_use]
    pub const fn asked_at(&self) -> Timestamp {
        self.asked_at
    }
}

/// No attempt so far has made HTCondor accept any of these jobs, and none will.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProvenNeverAccepted {
    uid: Uid,
    attempt: Attempt,
    indices: Indices,
    verdict: Verdict,
}

impl ProvenNeverAccepted {
    /// What became of them.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Up to this attempt all are settled for good: none of their jobs is missing but those that were judged.
    #[must_use]
    pub const fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// The object.
    #[must_use]
    pub const fn uid(&self) -> &Uid {
        &self.uid
    }

    /// The jobs.
    #[must_use]
    pub const fn indices(&self) -> &Indices {
        &self.indices
    }
}

/// These jobs never were part of an attempt, in a ledger that knows its past.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NeverAttempted {
    indices: Indices,
}

impl NeverAttempted {
    /// The jobs.
    #[must_use]
    pub const fn indices(&self) -> &Indices {
        &self.indices
    }
}

/// Nothing was ever submitted for the object, in a ledger that knows its past.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NeverSubmitted(());

/// Why something is not proved (yet).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// HTCondor has to be asked (again) first.
    NotAskedSince,
    /// HTCondor did not show what had been there; it has to be asked again before that is believed.
    SeenOnce,
    /// History has to be asked first.
    HistoryNotAsked,
    /// HTCondor did not answer.
    Unanswered(Unknown),
    /// A submitter may still be alive, until this time at most.
    SubmitterMayLive(Timestamp),
    /// The past of the ledger is unknown, and the wait for an earlier operator's submitter is not over.
    PastUnknown,
    /// These jobs are in HTCondor.
    Present(Vec<JobId>),
    /// History does not reach back to the intent.
    HistoryTooShort,
    /// The birthdate is not that of the intent, and not (yet) plainly that of a lost queue.
    BirthdateChanged,
    /// The schedd has lost its queue since the intent: the jobs may have been in it, and have run.
    QueueLost,
    /// The status shows jobs that the ledger lacks.
    PublishedJobs,
    /// Jobs of the Go operator are not adopted yet.
    NotAdopted,
    /// Which jobs the Go operator submitted is not plain.
    Inherited(String),
}

/// Whether a birthdate seen now is as good as `recorded`: the same, or plainly that of a queue begun anew.
#[must_use]
pub fn birthdate_agrees(queue: &Queue, recorded: Birthdate, settings: &Settings, rules: &Rules) -> bool {
    !rules.same_birthdate || queue.birthdate == recorded || queue_was_reset(queue, recorded, settings)
}

/// Whether the schedd has lost the queue that was born at `recorded`: a newer birthdate, seen steadily.
#[must_use]
pub fn queue_was_reset(queue: &Queue, recorded: Birthdate, settings: &Settings) -> bool {
    queue.birthdate > recorded && queue.asked_at.since(queue.steady_since) >= settings.birthdate_steady
}

/// When the submitter of `attempt` is dead for certain.
#[must_use]
pub fn dead_at(attempt: &Submission, settings: &Settings) -> Timestamp {
    attempt.dead_since.unwrap_or_else(|| attempt.not_after.plus(settings.dead_margin))
}

/// Until when the submitter of `attempt` may still bring jobs in; none if it cannot: each of its indexes has a job of this
/// attempt, and a submitter names each index once.
#[must_use]
pub fn may_submit_until(
    attempt: &Submission,
    record: &Record,
    settings: &Settings,
    rules: &Rules,
) -> Option<Timestamp> {
    (!all_accepted(attempt, record, rules)).then(|| dead_at(attempt, settings))
}

/// Whether jobs of this attempt may still be missing.
#[must_use]
pub fn is_open(attempt: &Submission, record: &Record, rules: &Rules) -> bool {
    !all_accepted(attempt, record, rules)
}

/// The attempts up to this one need not be read again: no decision depends on more of them than is recorded of their jobs. Of those
/// that are wholly accepted, from the oldest on, the last is kept: it shows whether those after it were refused in a row.
#[must_use]
pub fn settled_for_good(record: &Record, rules: &Rules) -> Option<Attempt> {
    let settled = record.attempts.iter().take_while(|attempt| all_accepted(attempt, record, rules)).count();
    record.attempts.get(settled.checked_sub(2)?).map(|attempt| attempt.attempt)
}

/// Whether the jobs of this attempt are all recorded.
fn all_accepted(attempt: &Submission, record: &Record, rules: &Rules) -> bool {
    let mut indices = attempt.indices.iter();
    let accepted = |index: Index| record.jobs.get(&index).is_some_and(|job| job.attempt == attempt.attempt);
    if rules.every_index_accepted { indices.all(accepted) } else { indices.any(accepted) }
}

/// Another schedd that has jobs of the object, or may have: nothing that `schedd` says is about them. Ids and birthdates are those
/// of one schedd. A ledger that knows no job of an object that shows some goes by its status.
#[must_use]
pub fn elsewhere<'a>(
    object: &'a Object,
    record: &'a Record,
    schedd: &ScheddName,
    rules: &Rules,
) -> Option<&'a ScheddName> {
    // That its jobs are gone was proved before.
    if !rules.same_schedd || record.known.as_ref().is_some_and(|known| known.released) {
        return None;
    }
    let open = record.attempts.iter().filter(|attempt| !all_accepted(attempt, record, rules));
    let published = object.published.schedd.iter().filter(|_| record.jobs.is_empty() && record.attempts.is_empty());
    let mut all = record.schedds.iter().chain(open.map(|attempt| &attempt.schedd)).chain(published);
    all.find(|other| !other.is_same(schedd))
}

/// The queue's answer, if it was asked when no submitter could bring jobs in any more.
fn asked_after_death<'a>(
    evidence: &'a Evidence,
    record: &Record,
    attempts: &[&Submission],
    settings: &Settings,
    rules: &Rules,
) -> Result<&'a Queue, Doubt> {
    let queue = match &evidence.queue {
        Answer::Known(queue) => queue,
        Answer::Unknown(unknown) => return Err(Doubt::Unanswered(unknown.clone())),
    };
    for attempt in attempts {
        if let Some(dead) = may_submit_until(attempt, record, settings, rules)
            && rules.ask_after_death
            && queue.asked_at <= dead
        {
            let known_dead = attempt.dead_since.is_some();
            return Err(if known_dead { Doubt::NotAskedSince } else { Doubt::SubmitterMayLive(dead) });
        }
        // What has all been accepted is in the rows of its jobs.
        let settled = all_accepted(attempt, record, rules);
        if !settled && !birthdate_agrees(queue, attempt.birthdate, settings, rules) {
            return Err(Doubt::BirthdateChanged);
        }
    }
    Ok(queue)
}

/// Fails unless the queue was asked twice after `since` and did not show such a job either time. HTCondor may answer with
/// success and show less than there is.
fn missing_twice(
    queue: &Queue,
    since: Timestamp,
    shows: impl Fn(&Earlier) -> bool,
    rules: &Rules,
) -> Result<(), Doubt> {
    match &queue.before {
        _ if !rules.two_answers => Ok(()),
        Some(before) if (before.asked_at > since || !rules.ask_after_death) && !shows(before) => Ok(()),
        Some(_) | None => Err(Doubt::SeenOnce),
    }
}

/// Whether a recorded job has left the queue, whose answer does not show it.
pub fn has_left(job: &Job, queue: &Queue, rules: &Rules) -> Result<(), Doubt> {
    if queue.asked_at <= job.recorded {
        return Err(Doubt::NotAskedSince);
    }
    // Within one queue an id is one job, whatever else its ad says now; in another queue the same id is another job.
    let same = queue.birthdate == job.birthdate;
    if same && queue.ads.binary_search_by_key(&job.id, |ad| ad.id).is_ok() {
        return Err(Doubt::Present(vec![job.id]));
    }
    missing_twice(queue, job.recorded, |before| same && before.shows(job.id), rules)
}

pub(super) fn past_settled(past: Past, queue: &Queue, rules: &Rules) -> Result<(), Doubt> {
    match past {
        Past::Continuous => Ok(()),
        Past::Unknown { .. } if !rules.doubt_unknown_past => Ok(()),
        Past::Unknown { settled: Some(settled) } if queue.asked_at > settled => Ok(()),
        Past::Unknown { settled: Some(_) } => Err(Doubt::NotAskedSince),
        Past::Unknown { settled: None } => Err(Doubt::PastUnknown),
    }
}

/// Fails if the object may have jobs of the Go operator that are not in the record. Once it was submitted anew, a person has
/// said that it has none.
pub fn all_recorded(object: &Object, record: &Record, rules: &Rules) -> Result<(), Doubt> {
    match &object.inherited {
        None => Ok(()),
        Some(_) if !rules.inherited_is_presence || record.highest > Attempt::INHERITED => Ok(()),
        Some(Inherited::Unclear(_)) if object.submit_again || record.has_inherited() => Ok(()),
        Some(Inherited::Unclear(why)) => Err(Doubt::Inherited(why.clone())),
        Some(Inherited::Jobs(jobs)) => {
            let recorded = |job: &InheritedJob| record.jobs.get(&job.index).is_some_and(|known| known.id == job.id);
            if jobs.iter().all(recorded) { Ok(()) } else { Err(Doubt::NotAdopted) }
        }
    }
}

/// Proves that HTCondor has no job of the object left and that none can appear.
pub fn prove_gone(
    object: &Object,
    record: &Record,
    past: Past,
    evidence: &Evidence,
    settings: &Settings,
    rules: &Rules,
) -> Result<ProvenGone, Doubt> {
    let attempts: Vec<&Submission> = record.attempts.iter().collect();
    let queue = asked_after_death(evidence, record, &attempts, settings, rules)?;
    past_settled(past, queue, rules)?;
    all_recorded(object, record, rules)?;
    if !rules.prove_gone {
        return Ok(ProvenGone { uid: object.uid.clone(), asked_at: queue.asked_at });
    }
    let last_change = record
        .jobs
        .values()
        .map(|job| job.recorded)
        .chain(record.requests.values().map(super::facts::LastRequest::latest))
        .max();
    if rules.ask_after_death && last_change.is_some_and(|change| queue.asked_at <= change) {
        return Err(Doubt::NotAskedSince);
    }
    if record.jobs.values().any(|job| !job.gone && !birthdate_agrees(queue, job.birthdate, settings, rules)) {
        return Err(Doubt::BirthdateChanged);
    }
    if !queue.ads.is_empty() {
        return Err(Doubt::Present(queue.ads.iter().map(|ad| ad.id).collect()));
    }
    // One that failed, or was killed, may have left all its jobs in the queue.
    let expected = settled_at(past, rules).is_some()
        || record.jobs.values().any(|job| !job.gone)
        || attempts.iter().any(|attempt| !all_accepted(attempt, record, rules));
    if expected {
        let dead = dead_since(&attempts, record, settings, rules);
        let since = last_change.into_iter().chain(dead).chain(settled_at(past, rules)).max();
        missing_twice(queue, since.unwrap_or(Timestamp(0)), |before| !before.shown.is_empty(), rules)?;
    }
    Ok(ProvenGone { uid: object.uid.clone(), asked_at: queue.asked_at })
}

/// Proves that no attempt so far has made HTCondor accept any of `indices`.
#[allow(clippy::too_many_arguments, reason = "each is a different kind of evidence")]
pub fn prove_never_accepted(
    object: &Object,
    record: &Record,
    past: Past,
    indices: &Indices,
    evidence: &Evidence,
    sightings: &Sightings<'_>,
    settings: &Settings,
    rules: &Rules,
) -> Result<ProvenNeverAccepted, Doubt> {
    let attempts: Vec<&Submission> =
        record.attempts.iter().filter(|attempt| attempt.indices.iter().any(|index| indices.contains(index))).collect();
    let queue = asked_after_death(evidence, record, &attempts, settings, rules)?;
    past_settled(past, queue, rules)?;
    all_recorded(object, record, rules)?;
    let left: Vec<JobId> = indices
        .iter()
        .flat_map(|index| sightings.of(index))
        .filter(|sighting| sighting.place == SeenIn::Queue || counts(sighting.acceptance))
        .map(|sighting| sighting.ad.id)
        .collect();
    if !left.is_empty() {
        return Err(Doubt::Present(left));
    }
    let since = dead_since(&attempts, record, settings, rules).into_iter().chain(settled_at(past, rules)).max();
    let shows = |before: &Earlier| before.shown.iter().any(|(_, index)| indices.contains(*index));
    missing_twice(queue, since.unwrap_or(Timestamp(0)), shows, rules)?;
    let history = match &evidence.history {
        Answer::Known(history) if history.asked_at > queue.asked_at || !rules.ask_after_death => history,
        Answer::Known(_) => return Err(Doubt::HistoryNotAsked),
        Answer::Unknown(unknown) if unknown.message.is_empty() => return Err(Doubt::HistoryNotAsked),
        Answer::Unknown(unknown) => return Err(Doubt::Unanswered(unknown.clone())),
    };
    let intent_known = |index: Index| attempts.iter().any(|attempt| attempt.indices.contains(index));
    let all_known = indices.iter().all(intent_known);
    if rules.status_is_presence && !all_known && shows_more(object, record) {
        return Err(Doubt::PublishedJobs);
    }
    let far_enough = (all_known || reaches_to(history, None, object.created))
        && attempts
            .iter()
            .all(|attempt| reaches_to(history, record.witnesses.get(&attempt.attempt), attempt.intent_date));
    if rules.history_reaches_back && !far_enough && !object.submit_again {
        return Err(Doubt::HistoryTooShort);
    }
    // Where no intent is known, it may have been made at any time since the object was.
    let queue_lost = attempts.iter().any(|attempt| attempt.birthdate != queue.birthdate)
        || (!all_known && queue.birthdate.0 > object.created.0);
    if rules.lost_queue_is_doubt && rules.same_birthdate && queue_lost && !object.submit_again {
        return Err(Doubt::QueueLost);
    }
    Ok(ProvenNeverAccepted {
        uid: object.uid.clone(),
        attempt: settled(record, indices),
        indices: indices.clone(),
        verdict: Verdict::on(indices, sightings),
    })
}

/// Whether the status shows jobs that are in no evidence: as this is incomplete, it proves nothing about others either. Once all
/// that it shows are found, it says nothing about others. The ads of jobs of the Go operator do not say whose they are.
fn shows_more(object: &Object, record: &Record) -> bool {
    match object.inherited {
        Some(_) => object.published.shows_jobs(),
        None => object.published.shows_more_than(record),
    }
}

/// When the wait for an earlier operator's submitter was over, if there may have been one.
const fn settled_at(past: Past, rules: &Rules) -> Option<Timestamp> {
    match past {
        Past::Unknown { settled } if rules.doubt_unknown_past => settled,
        Past::Unknown { .. } | Past::Continuous => None,
    }
}

/// When the last of these submitters was dead, of those that could bring jobs in.
fn dead_since(attempts: &[&Submission], record: &Record, settings: &Settings, rules: &Rules) -> Option<Timestamp> {
    attempts.iter().filter_map(|attempt| may_submit_until(attempt, record, settings, rules)).max()
}

/// The latest attempt up to which no job is missing but `indices`.
fn settled(record: &Record, indices: &Indices) -> Attempt {
    let withdrawn = record.wishes.withdrawn();
    let judged = |index: Index| indices.contains(index) || withdrawn.contains(index);
    let missing_too = |index: Index| !judged(index) && !record.jobs.contains_key(&index);
    let unsettled = record.attempts.iter().find(|attempt| attempt.indices.iter().any(missing_too));
    unsettled.map_or(record.highest, |attempt| Attempt(attempt.attempt.0.saturating_sub(1)))
}

/// Whether history still has all that left the queue since `witness` was seen, or since `date` where there is none.
fn reaches_to(history: &History, witness: Option<&Witness>, date: SchedDate) -> bool {
    match witness {
        Some(Witness::Empty) => true,
        Some(Witness::Newest(id)) => history.reaches.witnesses.contains(id),
        None => history.reaches.date.is_some_and(|reached| reached <= date),
    }
}

/// Shows that `indices` never were part of an attempt; no evidence from HTCondor is needed for a new object.
pub fn never_attempted(
    object: &Object,
    record: &Record,
    past: Past,
    indices: &Indices,
    rules: &Rules,
) -> Result<NeverAttempted, Doubt> {
    all_recorded(object, record, rules)?;
    let new = record.known.as_ref().is_some_and(|known| known.new);
    if rules.doubt_unknown_past && !(new && past == Past::Continuous) {
        return Err(Doubt::PastUnknown);
    }
    let shows_more =
        object.published.attempt > record.highest.0 || (object.published.shows_jobs() && record.highest == Attempt(0));
    if rules.status_is_presence && shows_more {
        return Err(Doubt::PublishedJobs);
    }
    if indices.iter().any(|index| record.attempted.contains(index)) {
        return Err(Doubt::NotAskedSince);
    }
    Ok(NeverAttempted { indices: indices.clone() })
}

/// Shows that nothing was ever submitted for the object.
#[must_use]
pub fn never_submitted(object: &Object, record: &Record, past: Past) -> Option<NeverSubmitted> {
    let new = record.known.as_ref().is_none_or(|known| known.new);
    let untouched = record.highest == Attempt(0)
        && object.inherited.is_none()
        && record.jobs.is_empty()
        && object.published.attempt == 0
        && !object.published.shows_jobs();
    (new && untouched && past == Past::Continuous).then_some(NeverSubmitted(()))
}

/// Whether a job that was accepted is in neither place: its history was asked after the queue and reaches back far
/// enough, or its queue was lost. `seen`: what `evidence` has of its index.
pub fn is_lost(
    job: &Job,
    record: &Record,
    evidence: &Evidence,
    seen: &[Sighting<'_>],
    settings: &Settings,
    rules: &Rules,
) -> Result<Loss, Doubt> {
    let queue = match &evidence.queue {
        Answer::Known(queue) => queue,
        Answer::Unknown(unknown) => return Err(Doubt::Unanswered(unknown.clone())),
    };
    let reset = queue_was_reset(queue, job.birthdate, settings);
    if queue.birthdate != job.birthdate && !reset {
        return Err(Doubt::BirthdateChanged);
    }
    has_left(job, queue, rules)?;
    let history = match &evidence.history {
        Answer::Known(history) if history.asked_at > queue.asked_at => history,
        Answer::Known(_) => return Err(Doubt::HistoryNotAsked),
        Answer::Unknown(unknown) if unknown.message.is_empty() => return Err(Doubt::HistoryNotAsked),
        Answer::Unknown(unknown) => return Err(Doubt::Unanswered(unknown.clone())),
    };
    let is_it = |seen: &Sighting<'_>| seen.ad.id == job.id && seen.ad.attempt == job.attempt;
    if seen.iter().any(|seen| seen.place == SeenIn::History && is_it(seen)) {
        return Err(Doubt::Present(vec![job.id]));
    }
    if reset {
        Ok(Loss::QueueReset)
    } else if reaches_to(history, record.witnesses.get(&job.attempt), job.staged_in) {
        Ok(Loss::Vanished)
    } else {
        Err(Doubt::HistoryTooShort)
    }
}
