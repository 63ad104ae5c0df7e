//! Draws verdicts and proofs from dated evidence.
//!
//! The types [`ProvenGone`], [`ProvenNeverAccepted`], [`NeverAttempted`] and [`NeverSubmitted`] can be constructed only
//! here.
//! `decide` cannot submit jobs or release a finalizer without one of them.

mod sightings;
mod submitter;
mod verdict;

use super::facts::{
    Answer, EarlierAnswer, Evidence, History, Job, Object, Past, QueryError, QueueAnswer, Record, Submission, Witness,
};
use super::ids::{Attempt, Birthdate, Index, JobId, SchedDate, ScheddName, Timestamp, Uid};
use super::indices::Indices;
use super::outcome::Loss;
use super::rules::{Rules, Settings};
pub use sightings::{Acceptance, AdSource, REMOVED_BY_US, Sighting, Sightings, acceptance, counts, outcome, removed};
pub use submitter::{LockObservation, NotALock, SubmitterGone, SubmitterLock, submitter_gone};
pub use verdict::Verdict;

/// Proof that HTCondor had no job of an object when it was asked, and that none can appear any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProvenGone {
    uid: Uid,
    asked_at: Timestamp,
}

impl ProvenGone {
    /// UID of the object.
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

/// Proof that no attempt so far has made HTCondor accept any of these jobs, and that none will.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProvenNeverAccepted {
    uid: Uid,
    attempt: Attempt,
    indices: Indices,
    verdict: Verdict,
}

impl ProvenNeverAccepted {
    /// What became of the jobs.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Attempts up to this one are settled for good: all their jobs are recorded, except those that this proof covers.
    #[must_use]
    pub const fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// UID of the object.
    #[must_use]
    pub const fn uid(&self) -> &Uid {
        &self.uid
    }

    /// Indices of the jobs.
    #[must_use]
    pub const fn indices(&self) -> &Indices {
        &self.indices
    }
}

/// Proof that these jobs never were part of an attempt, from a ledger that knows its past.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NeverAttempted {
    indices: Indices,
}

impl NeverAttempted {
    /// Indices of the jobs.
    #[must_use]
    pub const fn indices(&self) -> &Indices {
        &self.indices
    }
}

/// Proof that no job of the object was ever submitted, from a ledger that knows its past.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NeverSubmitted(());

/// Why something is not proved (yet).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// HTCondor has to be asked (again) first.
    NotAskedSince,
    /// One answer of HTCondor lacked jobs that had been there; a second answer must confirm that.
    SeenOnce,
    /// History has to be asked first.
    HistoryNotAsked,
    /// HTCondor did not answer.
    Unanswered(QueryError),
    /// A submitter may still be alive, until this time at most.
    SubmitterMayLive(Timestamp),
    /// The past of the ledger is unknown, and the wait for an earlier operator's submitter is not over.
    PastUnknown,
    /// These jobs are in HTCondor.
    Present(Vec<JobId>),
    /// History does not reach back to the intent.
    HistoryTooShort,
    /// The birthdate is not that of the intent, and it is not (yet) certain that the queue was lost.
    BirthdateChanged,
    /// The schedd has lost its queue since the intent: the jobs may have been in it, and may have run.
    QueueLost,
    /// The status shows jobs that the ledger lacks.
    PublishedJobs,
    /// The Go operator managed the object, and its jobs are not adopted.
    NotAdopted,
}

/// Whether answers of this queue apply to what was recorded at birthdate `recorded`: it is the same queue, or certainly
/// a new one.
#[must_use]
pub fn birthdate_agrees(queue: &QueueAnswer, recorded: Birthdate, settings: &Settings, rules: &Rules) -> bool {
    !rules.same_birthdate || queue.birthdate == recorded || queue_was_reset(queue, recorded, settings)
}

/// Whether the schedd has lost the queue of birthdate `recorded`: a newer birthdate, seen without interruption.
#[must_use]
pub fn queue_was_reset(queue: &QueueAnswer, recorded: Birthdate, settings: &Settings) -> bool {
    queue.birthdate > recorded && queue.asked_at.since(queue.steady_since) >= settings.birthdate_steady
}

/// Returns when the submitter of `attempt` is certain to be dead.
#[must_use]
pub fn dead_at(attempt: &Submission, settings: &Settings) -> Timestamp {
    attempt.dead_since.unwrap_or_else(|| attempt.submitter_deadline.plus(settings.dead_margin))
}

/// Returns until when the submitter of `attempt` may still bring in jobs; none if it cannot.
/// It cannot once each of its indexes has a job of this attempt: a submitter names each index once.
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

/// Returns the attempt up to which attempts need not be read from the ledger again: decisions depend only on their
/// recorded jobs.
/// Of the wholly accepted attempts at the beginning, the last is kept: it shows whether those after it were refused in
/// a row.
#[must_use]
pub fn settled_for_good(record: &Record, rules: &Rules) -> Option<Attempt> {
    let settled = record.attempts.iter().take_while(|attempt| all_accepted(attempt, record, rules)).count();
    record.attempts.get(settled.checked_sub(2)?).map(|attempt| attempt.attempt)
}

/// Whether all jobs of this attempt are recorded.
fn all_accepted(attempt: &Submission, record: &Record, rules: &Rules) -> bool {
    let mut indices = attempt.indices.iter();
    let accepted = |index: Index| record.jobs.get(&index).is_some_and(|job| job.attempt == attempt.attempt);
    if rules.every_index_accepted { indices.all(accepted) } else { indices.any(accepted) }
}

/// Returns another schedd that has jobs of the object, or may have. Answers of `schedd` then prove nothing about those
/// jobs.
/// Ids and birthdates are those of one schedd.
/// If the ledger knows neither job nor attempt of an object, the schedd in its status counts.
#[must_use]
pub fn elsewhere<'a>(
    object: &'a Object,
    record: &'a Record,
    schedd: &ScheddName,
    rules: &Rules,
) -> Option<&'a ScheddName> {
    // A released object has no jobs anywhere: that was proved before.
    if !rules.same_schedd || record.row.as_ref().is_some_and(|known| known.released) {
        return None;
    }
    let open = record.attempts.iter().filter(|attempt| !all_accepted(attempt, record, rules));
    let published = object.published.schedd.iter().filter(|_| record.jobs.is_empty() && record.attempts.is_empty());
    let mut all = record.schedds.iter().chain(open.map(|attempt| &attempt.schedd)).chain(published);
    all.find(|other| !other.is_same(schedd))
}

/// Returns the queue's answer, if it was asked when no submitter could bring in jobs any more.
fn asked_after_death<'a>(
    evidence: &'a Evidence,
    record: &Record,
    attempts: &[&Submission],
    settings: &Settings,
    rules: &Rules,
) -> Result<&'a QueueAnswer, Doubt> {
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
        // A wholly accepted attempt does not matter here: its jobs have rows of their own.
        let settled = all_accepted(attempt, record, rules);
        if !settled && !birthdate_agrees(queue, attempt.birthdate, settings, rules) {
            return Err(Doubt::BirthdateChanged);
        }
    }
    Ok(queue)
}

/// Fails unless two answers of the queue, both asked for after `since`, lack the jobs.
/// HTCondor may report success and yet return fewer jobs than there are.
fn missing_twice(
    queue: &QueueAnswer,
    since: Timestamp,
    shows: impl Fn(&EarlierAnswer) -> bool,
    rules: &Rules,
) -> Result<(), Doubt> {
    match &queue.before {
        _ if !rules.two_answers => Ok(()),
        Some(before) if (before.asked_at > since || !rules.ask_after_death) && !shows(before) => Ok(()),
        Some(_) | None => Err(Doubt::SeenOnce),
    }
}

/// Checks that a recorded job has left the queue.
pub fn has_left(job: &Job, queue: &QueueAnswer, rules: &Rules) -> Result<(), Doubt> {
    if queue.asked_at <= job.recorded {
        return Err(Doubt::NotAskedSince);
    }
    // Within one queue an id is one job, whatever its ad contains now; in another queue the same id is another job.
    let same = queue.birthdate == job.birthdate;
    if same && queue.ads.binary_search_by_key(&job.id, |ad| ad.id).is_ok() {
        return Err(Doubt::Present(vec![job.id]));
    }
    missing_twice(queue, job.recorded, |before| same && before.shows(job.id), rules)
}

pub(super) fn past_settled(past: Past, queue: &QueueAnswer, rules: &Rules) -> Result<(), Doubt> {
    match past {
        Past::Continuous => Ok(()),
        Past::Unknown { .. } if !rules.doubt_unknown_past => Ok(()),
        Past::Unknown { settled: Some(settled) } if queue.asked_at > settled => Ok(()),
        Past::Unknown { settled: Some(_) } => Err(Doubt::NotAskedSince),
        Past::Unknown { settled: None } => Err(Doubt::PastUnknown),
    }
}

/// Fails if the object may have jobs of the Go operator, which lack the attributes that this operator sets.
pub fn adopted(object: &Object, rules: &Rules) -> Result<(), Doubt> {
    if object.unadopted && rules.adopted_first { Err(Doubt::NotAdopted) } else { Ok(()) }
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
    adopted(object, rules)?;
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
    // An attempt that failed, or was killed, may have left all its jobs in the queue.
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
    adopted(object, rules)?;
    let left: Vec<JobId> = indices
        .iter()
        .flat_map(|index| sightings.of(index))
        .filter(|sighting| sighting.source == AdSource::Queue || counts(sighting.acceptance))
        .map(|sighting| sighting.ad.id)
        .collect();
    if !left.is_empty() {
        return Err(Doubt::Present(left));
    }
    let since = dead_since(&attempts, record, settings, rules).into_iter().chain(settled_at(past, rules)).max();
    let shows = |before: &EarlierAnswer| before.shown.iter().any(|(_, index)| indices.contains(*index));
    missing_twice(queue, since.unwrap_or(Timestamp(0)), shows, rules)?;
    let history = match &evidence.history {
        Answer::Known(history) if history.asked_at > queue.asked_at || !rules.ask_after_death => history,
        Answer::Known(_) => return Err(Doubt::HistoryNotAsked),
        Answer::Unknown(unknown) if unknown.message.is_empty() => return Err(Doubt::HistoryNotAsked),
        Answer::Unknown(unknown) => return Err(Doubt::Unanswered(unknown.clone())),
    };
    let intent_known = |index: Index| attempts.iter().any(|attempt| attempt.indices.contains(index));
    let all_known = indices.iter().all(intent_known);
    // Some jobs are in no evidence. As the record is then incomplete, it proves nothing about the others either.
    if rules.status_is_presence && !all_known && object.published.shows_more_than(record) {
        return Err(Doubt::PublishedJobs);
    }
    let far_enough = (all_known || reaches_to(history, None, object.created))
        && attempts
            .iter()
            .all(|attempt| reaches_to(history, record.witnesses.get(&attempt.attempt), attempt.intent_date));
    if rules.history_reaches_back && !far_enough && !object.submit_again {
        return Err(Doubt::HistoryTooShort);
    }
    // Where no intent is known, it may have been made at any time since the object was created.
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

/// Returns when the wait for an earlier operator's submitter ended, if there may have been one.
const fn settled_at(past: Past, rules: &Rules) -> Option<Timestamp> {
    match past {
        Past::Unknown { settled } if rules.doubt_unknown_past => settled,
        Past::Unknown { .. } | Past::Continuous => None,
    }
}

/// Returns when the last of these submitters was dead; only those that could bring in jobs count.
fn dead_since(attempts: &[&Submission], record: &Record, settings: &Settings, rules: &Rules) -> Option<Timestamp> {
    attempts.iter().filter_map(|attempt| may_submit_until(attempt, record, settings, rules)).max()
}

/// Returns the latest attempt up to which no jobs are missing except `indices`.
fn settled(record: &Record, indices: &Indices) -> Attempt {
    let withdrawn = record.requested_actions.withdrawn();
    let judged = |index: Index| indices.contains(index) || withdrawn.contains(index);
    let missing_too = |index: Index| !judged(index) && !record.jobs.contains_key(&index);
    let unsettled = record.attempts.iter().find(|attempt| attempt.indices.iter().any(missing_too));
    unsettled.map_or(record.highest, |attempt| Attempt(attempt.attempt.0.saturating_sub(1)))
}

/// Whether history still has all jobs that left the queue since `witness` was seen, or since `date` if there is no
/// witness.
fn reaches_to(history: &History, witness: Option<&Witness>, date: SchedDate) -> bool {
    match witness {
        Some(Witness::Empty) => true,
        Some(Witness::Newest(id)) => history.reaches.witnesses.contains(id),
        None => history.reaches.date.is_some_and(|reached| reached <= date),
    }
}

/// Proves that `indices` never were part of an attempt. For a new object no evidence from HTCondor is needed.
pub fn never_attempted(
    object: &Object,
    record: &Record,
    past: Past,
    indices: &Indices,
    rules: &Rules,
) -> Result<NeverAttempted, Doubt> {
    adopted(object, rules)?;
    let new = record.row.as_ref().is_some_and(|known| known.new);
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

/// Proves that no job of the object was ever submitted.
#[must_use]
pub fn never_submitted(object: &Object, record: &Record, past: Past) -> Option<NeverSubmitted> {
    let new = record.row.as_ref().is_none_or(|known| known.new);
    let untouched = record.highest == Attempt(0)
        && !object.unadopted
        && record.jobs.is_empty()
        && object.published.attempt == 0
        && !object.published.shows_jobs();
    (new && untouched && past == Past::Continuous).then_some(NeverSubmitted(()))
}

/// Returns how an accepted job was lost.
/// The job must be in neither place: history was asked after the queue and reaches back far enough, or the queue was
/// lost.
/// `seen` has the ads of the job's index in `evidence`.
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
    if seen.iter().any(|seen| seen.source == AdSource::History && is_it(seen)) {
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
