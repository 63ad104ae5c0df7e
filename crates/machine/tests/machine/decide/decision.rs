//! `decide` under the usual settings, and what a decision says.

use htc_machine::condition::ConditionType;
use htc_machine::decide::{Action, Decision, Polling};
use htc_machine::facts::{Facts, JobState};
use htc_machine::phase::Phase;
use htc_machine::request::SubmitPermit;
use htc_machine::transitions::Trigger;
use htc_machine::{Attempt, Index, Indices, Rules, Work};

use crate::given::{at, settings};

pub fn decide(facts: &Facts) -> Decision {
    htc_machine::decide(facts, at(0), &settings(), &Rules::ALL).unwrap()
}

pub fn work(decision: &Decision) -> Option<&Work> {
    match &decision.action {
        Action::Dispatch(request) => Some(&request.work),
        Action::Nothing | Action::Cancel(_) => None,
    }
}

pub fn submits(decision: &Decision) -> Option<(&Indices, bool, Attempt)> {
    match &decision.action {
        Action::Dispatch(request) => match &request.work {
            Work::Submit(indices, permit) => {
                Some((indices, matches!(permit, SubmitPermit::Again(_)), request.key.attempt))
            }
            _ => None,
        },
        Action::Nothing | Action::Cancel(_) => None,
    }
}

pub fn phase(decision: &Decision) -> Phase {
    decision.after.as_ref().unwrap().row.as_ref().unwrap().phase
}

/// `"True Fetched"`
pub fn condition(decision: &Decision, kind: ConditionType) -> String {
    let known = decision.after.as_ref().unwrap().row.as_ref().unwrap();
    let condition = known.conditions.iter().find(|condition| condition.kind == kind);
    condition.map_or_else(|| "nothing".to_owned(), |condition| format!("{} {}", condition.status, condition.reason))
}

pub fn message(decision: &Decision, kind: ConditionType) -> String {
    let known = decision.after.as_ref().unwrap().row.as_ref().unwrap();
    known.conditions.iter().find(|condition| condition.kind == kind).unwrap().message.clone()
}

pub fn triggers(decision: &Decision) -> Vec<Trigger> {
    decision.transitions.iter().map(|transition| transition.trigger).collect()
}

pub fn state(decision: &Decision, index: u32) -> JobState {
    decision.after.as_ref().unwrap().jobs[&Index(index)].state.clone()
}

pub fn watched(decision: &Decision) -> bool {
    decision.details.polling != Polling::Off
}
