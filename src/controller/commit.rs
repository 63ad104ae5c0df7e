//! What was decided becomes durable.

use std::collections::BTreeSet;

use super::Context;
use super::gather::Gathered;
use crate::api::Phase;
use crate::ledger::{LedgerError, Save};
use crate::machine::Attempt;
use crate::machine::decide::Decision;
use crate::machine::facts::Known;
use crate::machine::room::Room;
use crate::machine::transitions::{Transition, Trigger};

/// Writes the decision into the ledger, in one transaction; nothing is handed over or published before. Whether room was given back.
pub(super) async fn commit(
    context: &Context,
    gathered: &Gathered,
    decision: &Decision,
    room: Option<&Room>,
) -> Result<bool, LedgerError> {
    let gives_back = room.map(|room| room.gives_back.clone()).unwrap_or_default();
    let gave = !gives_back.is_empty();
    let Some(after) = &decision.after else { return Ok(false) };
    let before = gathered.facts.record.known.as_ref();
    let Some(known) = after.known.clone() else { return Ok(false) };
    let nothing_new = decision.transitions.is_empty()
        && decision.changed.is_empty()
        && decision.settled.is_none()
        && decision.absent.is_none()
        && decision.wishes.is_empty()
        && gives_back.is_empty()
        && before == Some(&known);
    if nothing_new {
        return Ok(false);
    }
    let uid = gathered.facts.object.uid.clone();
    let jobs =
        decision.changed.iter().filter_map(|index| after.jobs.get(index).map(|job| (*index, job.clone()))).collect();
    log(&decision.transitions, before);
    let told = !decision.transitions.is_empty();
    let known_before: BTreeSet<Attempt> = gathered.facts.record.jobs.values().map(|job| job.attempt).collect();
    let attempts: BTreeSet<Attempt> =
        decision.changed.iter().filter_map(|index| after.jobs.get(index)).map(|job| job.attempt).collect();
    let submitted = attempts.difference(&known_before).filter(|attempt| **attempt != Attempt::INHERITED);
    submitted.for_each(|_| context.metrics.attempt("accepted"));
    let save = Save {
        sandbox: context.planner.sandbox(&uid).display().to_string(),
        uid,
        name: gathered.name.clone(),
        pool: gathered.place.name.clone(),
        known,
        jobs,
        settled: decision.settled,
        absent: decision.absent,
        wishes: decision.wishes.clone(),
        schedd: gathered.facts.schedd.clone(),
        transitions: decision.transitions.clone(),
        inherited: gathered.inherited(),
        refuted: decision.refuted.clone(),
        gives_back,
        now: context.clock.now(),
    };
    context.pools.assign(&save.uid, save.pool.as_ref());
    context.ledger.save(save).await?;
    if told {
        context.publisher.news();
    }
    Ok(gave)
}

/// One line for each transition.
pub(super) fn log(transitions: &[Transition], before: Option<&Known>) {
    for transition in transitions {
        let phase = |phase: Option<Phase>| phase.map_or("-", <&str>::from);
        let (from, to) = (phase(transition.from), phase(transition.to));
        let jobs =
            format!("{} active, {} succeeded, {} failed", transition.active, transition.succeeded, transition.failed);
        let reason = &transition.reason;
        let quiet = transition.trigger == Trigger::ConditionChanged && before.is_none();
        if transition.warning && !quiet {
            tracing::warn!(from, to, reason, jobs, "{}", transition.detail);
        } else {
            tracing::info!(from, to, reason, jobs, "{}", transition.detail);
        }
    }
}
