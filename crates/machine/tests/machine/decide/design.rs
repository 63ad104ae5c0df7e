//! The design once more, in other words: what may be submitted, what may be released, and what is at rest.

use htc_machine::condition::{ConditionStatus, ConditionType};
use htc_machine::decide::Decision;
use htc_machine::facts::{
    Ad, Answer, Claim, EarlierAnswer, Facts, JobStatus, Listed, Past, QueueAnswer, Record, Submission, Witness,
};
use htc_machine::judge::REMOVED_BY_US;
use htc_machine::phase::Phase;
use htc_machine::request::{ReleasePermit, SubmitPermit};
use htc_machine::{Attempt, Birthdate, Index, JobId, RequestKind, SchedDate, Timestamp};

use crate::given::STAGING_FAILED;

/// Design §6.4: whether an ad is a job of its object.
pub fn is_a_job(ad: &Ad) -> bool {
    let in_time = |staged_in: SchedDate| ad.not_after.is_none_or(|limit| staged_in <= limit);
    let never_was = ad.remove_reason.starts_with(REMOVED_BY_US) || ad.remove_reason.contains(STAGING_FAILED);
    match (ad.staged_in, ad.status) {
        (Some(staged_in), _) => in_time(staged_in),
        (None, _) if ad.started => true,
        (None, JobStatus::Removed) => !never_was,
        (None, JobStatus::Held | JobStatus::Idle) => false,
        (None, _) => true,
    }
}

pub fn ads_of(facts: &Facts) -> (Vec<Ad>, Vec<Ad>) {
    let queue = match &facts.evidence.queue {
        Answer::Known(queue) => queue.ads.to_vec(),
        Answer::Unknown(_) => Vec::new(),
    };
    let history = match &facts.evidence.history {
        Answer::Known(history) if !queue.is_empty() || matches!(facts.evidence.queue, Answer::Known(_)) => {
            history.ads.to_vec()
        }
        _ => Vec::new(),
    };
    (queue, history)
}

fn dead(attempt: &Submission) -> Timestamp {
    attempt.dead_since.unwrap_or(Timestamp(attempt.submitter_deadline.0 + 2000))
}

/// A submitter names each index once: with a job of each it has none left to bring in.
fn brought_in_all(attempt: &Submission, record: &Record) -> bool {
    let of_it = |index: Index| record.jobs.get(&index).is_some_and(|job| job.attempt == attempt.attempt);
    attempt.indices.iter().all(of_it)
}

/// Evidence (a) to (d) for these attempts: asked after their submitters could bring in no more, at the schedd that they went to.
fn asked_after(queue: &QueueAnswer, record: &Record, attempts: &[&Submission]) -> Result<(), String> {
    for attempt in attempts {
        if queue.asked_at <= dead(attempt) && !brought_in_all(attempt, record) {
            return Err(format!(
                "asked at {} and attempt {} died at {}",
                queue.asked_at,
                attempt.attempt,
                dead(attempt)
            ));
        }
        if !brought_in_all(attempt, record) {
            same_queue(queue, attempt.birthdate)?;
        }
    }
    Ok(())
}

fn same_queue(queue: &QueueAnswer, birthdate: Birthdate) -> Result<(), String> {
    let steady = queue.asked_at.0 - queue.steady_since.0 >= 5000;
    if queue.birthdate == birthdate || (queue.birthdate > birthdate && steady) {
        Ok(())
    } else {
        Err(format!("birthdate {birthdate} was {}", queue.birthdate))
    }
}

/// That something is not there is said by two answers, both asked for after `since`.
pub fn missing_twice(
    queue: &QueueAnswer,
    since: Option<Timestamp>,
    shows: impl Fn(&EarlierAnswer) -> bool,
) -> Result<(), String> {
    let Some(before) = &queue.before else { return Err("one answer only lacks it".to_owned()) };
    if since.is_some_and(|since| before.asked_at <= since) {
        return Err(format!("the answer before was asked for at {}, not after {since:?}", before.asked_at));
    }
    let last = EarlierAnswer::new(queue.asked_at, &queue.ads);
    if shows(&last) || shows(before) { Err("one of two answers shows it".to_owned()) } else { Ok(()) }
}

/// When the last submitter of these could bring in no more, and an earlier operator's, too.
fn dead_by(facts: &Facts, record: &Record, attempts: &[&Submission]) -> Option<Timestamp> {
    let open = attempts.iter().filter(|attempt| !brought_in_all(attempt, record)).map(|attempt| dead(attempt));
    let strangers = match facts.past {
        Past::Unknown { settled } => settled,
        Past::Continuous => None,
    };
    open.chain(strangers).max()
}

fn settled(facts: &Facts, queue: &QueueAnswer) -> Result<(), String> {
    match facts.past {
        Past::Continuous => Ok(()),
        Past::Unknown { settled: Some(settled) } if queue.asked_at > settled => Ok(()),
        Past::Unknown { .. } => Err("the past is unknown".to_owned()),
    }
}

/// Whether the object may be released for this reason.
pub fn may_release(facts: &Facts, before: &Record, permit: &ReleasePermit) -> Result<(), String> {
    if !facts.object.deleting {
        return Err("it is not being deleted".to_owned());
    }
    match permit {
        ReleasePermit::Abandoned(_) if facts.object.abandon => Ok(()),
        ReleasePermit::Abandoned(_) => Err("nobody said so".to_owned()),
        ReleasePermit::NeverSubmitted(_) => {
            let new = before.row.as_ref().is_none_or(|known| known.new) && facts.past == Past::Continuous;
            let clean = before.highest == Attempt(0) && before.jobs.is_empty() && before.attempts.is_empty();
            let shown = facts.object.published.listed != Listed::Nothing
                || matches!(facts.object.published.phase, Some(Phase::Submitted | Phase::Running | Phase::Completed));
            if new && clean && !shown { Ok(()) } else { Err("something may have been submitted".to_owned()) }
        }
        ReleasePermit::Gone(proof) => {
            let Answer::Known(queue) = &facts.evidence.queue else { return Err("there is no answer".to_owned()) };
            if proof.uid() != &facts.object.uid || proof.asked_at() != queue.asked_at {
                return Err("the proof is of something else".to_owned());
            }
            if !queue.ads.is_empty() {
                return Err("jobs are there".to_owned());
            }
            let attempts: Vec<&Submission> = before.attempts.iter().collect();
            asked_after(queue, before, &attempts)?;
            let dead = dead_by(facts, before, &attempts);
            if dead.is_some() || before.jobs.values().any(|job| !job.gone) {
                let requests = before.requests.values().map(|last| last.finished.unwrap_or(last.started));
                let recorded = before.jobs.values().map(|job| job.recorded);
                missing_twice(queue, requests.chain(recorded).chain(dead).max(), |answer| !answer.shown.is_empty())?;
            }
            settled(facts, queue)?;
            for job in before.jobs.values() {
                if queue.asked_at <= job.recorded {
                    return Err("asked before a job was recorded".to_owned());
                }
                if !job.gone {
                    same_queue(queue, job.birthdate)?;
                }
            }
            let removed = before
                .requests
                .get(&RequestKind::Remove)
                .and_then(|last| last.finished.filter(|_| last.failure.is_none()));
            match removed {
                Some(removed) if queue.asked_at > removed => {}
                other => return Err(format!("asked at {}, removed {other:?}", queue.asked_at)),
            }
            if before.requests.values().any(|last| queue.asked_at <= last.finished.unwrap_or(last.started)) {
                return Err("asked before a request ended".to_owned());
            }
            Ok(())
        }
    }
}

/// Whether this job may be submitted for this reason.
pub fn may_submit(facts: &Facts, after: &Record, index: Index, permit: &SubmitPermit) -> Result<(), String> {
    let (queue_ads, history_ads) = ads_of(facts);
    let Ok(spec) = &facts.object.spec else { return Err("the spec is invalid".to_owned()) };
    if spec.refused.is_some()
        || facts.object.deleting
        || spec.suspend
        || !facts.object.finalizer
        || facts.object.claim != Claim::Ours
    {
        return Err("the object is not to be submitted".to_owned());
    }
    if index.0 >= spec.queue || after.jobs.contains_key(&index) {
        return Err("it is not missing".to_owned());
    }
    if queue_ads.iter().chain(&history_ads).any(|ad| ad.index == index && is_a_job(ad)) {
        return Err("HTCondor has accepted it".to_owned());
    }
    match permit {
        SubmitPermit::First(proof) => {
            let new = after.row.as_ref().is_some_and(|known| known.new) && facts.past == Past::Continuous;
            if !new || after.attempted.contains(index) || !proof.indices().contains(index) {
                return Err("it may have been tried".to_owned());
            }
            let shown = facts.object.published.shows_jobs() && after.highest == Attempt(0);
            if shown { Err("its status shows jobs".to_owned()) } else { Ok(()) }
        }
        SubmitPermit::Again(proof) => {
            if !proof.indices().contains(index) || proof.uid() != &facts.object.uid {
                return Err("the proof is of something else".to_owned());
            }
            cannot_come(facts, after, index)?;
            if facts.object.submit_again {
                return Ok(());
            }
            // What the proof settles for good: no job but those judged may be missing up to there.
            let judged =
                |index: Index| proof.indices().contains(index) || after.requested_actions.withdrawn().contains(index);
            let missing = |other: Index| other.0 < spec.queue && !after.jobs.contains_key(&other) && !judged(other);
            let unsettled =
                after.attempts.iter().find(|one| one.attempt <= proof.attempt() && one.indices.iter().any(missing));
            unsettled.map_or(Ok(()), |one| Err(format!("attempt {} is superseded unjudged", one.attempt)))
        }
    }
}

/// Whether what was tried of a job has come to nothing, and cannot come to anything.
pub fn cannot_come(facts: &Facts, after: &Record, index: Index) -> Result<(), String> {
    let (Answer::Known(queue), Answer::Known(history)) = (&facts.evidence.queue, &facts.evidence.history) else {
        return Err("there is no answer".to_owned());
    };
    let tried: Vec<&Submission> = after.attempts.iter().filter(|one| one.indices.contains(index)).collect();
    asked_after(queue, after, &tried)?;
    settled(facts, queue)?;
    // What the last answer shows may be in history by now; the one before must not show any.
    if queue.before.as_ref().is_none_or(|before| before.shown.iter().any(|(_, shown)| *shown == index)) {
        return Err("the answer before shows it, or there is none".to_owned());
    }
    missing_twice(queue, dead_by(facts, after, &tried), |_| false)?;
    // An ad that is also in history has left the queue.
    let left = |ad: &Ad| !history.ads.iter().any(|old| old.id == ad.id && old.attempt == ad.attempt);
    if queue.ads.iter().any(|ad| ad.index == index && left(ad)) {
        return Err("an ad of it is in the queue".to_owned());
    }
    if history.asked_at <= queue.asked_at {
        return Err("history was asked before the queue".to_owned());
    }
    if tried.is_empty() && !all_it_shows_is_recorded(facts, after) {
        return Err("its status shows jobs that are nowhere".to_owned());
    }
    if facts.object.submit_again {
        return Ok(());
    }
    let reaches = |witness: Option<&Witness>, back_to: SchedDate| match witness {
        Some(Witness::Empty) => true,
        Some(Witness::Newest(id)) => history.reaches.witnesses.contains(id),
        None => history.reaches.date.is_some_and(|reached| reached <= back_to),
    };
    let far = if tried.is_empty() {
        reaches(None, facts.object.created)
    } else {
        tried.iter().all(|one| reaches(after.witnesses.get(&one.attempt), one.intent_date))
    };
    if !far {
        return Err("history does not reach back".to_owned());
    }
    Ok(())
}

fn all_it_shows_is_recorded(facts: &Facts, after: &Record) -> bool {
    let published = &facts.object.published;
    match &published.listed {
        Listed::Nothing => matches!(published.phase, None | Some(Phase::Pending | Phase::Terminating)),
        Listed::Partly => false,
        Listed::All(ids) => {
            let recorded = |id: &JobId| after.jobs.values().any(|job| job.id == *id);
            published.phase != Some(Phase::Completed) && ids.iter().all(recorded)
        }
    }
}

pub fn is_at_rest(facts: &Facts, decision: &Decision) -> bool {
    let Some(after) = &decision.after else {
        return facts.object.deleting;
    };
    let known = after.row.as_ref().unwrap();
    let said = |kind| known.conditions.iter().any(|told| told.kind == kind && told.status == ConditionStatus::True);
    // Nothing is submitted: it is to be told otherwise, or nothing can be submitted of it.
    let waits = facts
        .object
        .spec
        .as_ref()
        .is_ok_and(|spec| spec.suspend || spec.refused.is_some() || spec.parallelism == Some(0));
    known.released
        || facts.object.spec.is_err()
        || (waits && after.attempts.is_empty() && after.jobs.values().all(|job| job.gone))
        || (known.phase == Phase::Completed
            && after.jobs.values().all(|job| job.gone)
            && (said(ConditionType::Complete) || said(ConditionType::Failed)))
}
