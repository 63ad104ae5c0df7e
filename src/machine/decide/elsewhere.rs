//! Objects whose jobs are at another schedd than the one that this operator asks: they wait for an operator that asks it.

use super::{Action, Look, Run};
use crate::api::{ABANDON, ConditionStatus, ConditionType, Reason};
use crate::machine::ids::{Kind, ScheddName};
use crate::machine::phase::Phase;
use crate::machine::request::Work;

impl Run<'_> {
    /// Nothing is done in HTCondor, and nothing is judged by what this schedd says.
    pub(super) fn wait_for(&mut self, other: &ScheddName) {
        let waiting = self.facts.in_flight.as_ref().filter(|request| !request.running);
        if let Some(request) = waiting {
            self.action = Action::Cancel(request.key.clone());
        }
        if !self.facts.object.deleting && !self.facts.object.finalizer {
            self.ask(Kind::AttachFinalizer, Work::AttachFinalizer);
            return;
        }
        let here = &self.facts.schedd;
        let message = format!(
            "jobs of this HTCJob are at schedd {other}, or may be, and this operator asks {here}: nothing is known about them here. Run the operator with --schedd={other} until they have ended, or, if the HTCJob has spec.pool, create that HTCPool again with this schedd"
        );
        let kind = if self.facts.object.deleting {
            self.begin_to_terminate();
            if self.facts.object.abandon {
                self.abandon();
                return;
            }
            ConditionType::JobsRemoved
        } else if self.record.jobs.is_empty() {
            ConditionType::Submitted
        } else {
            ConditionType::Tracked
        };
        let message = match kind {
            ConditionType::JobsRemoved => {
                format!("{message}, or annotate the HTCJob with {ABANDON}=true to leave them there")
            }
            _ => message,
        };
        self.say(kind, ConditionStatus::False, Reason::AnotherSchedd, &message);
        if self.known.phase == Phase::Completed {
            self.say_how_it_ended();
        }
        self.look = Look::Nothing;
    }
}
