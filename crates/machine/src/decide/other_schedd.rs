//! Objects whose jobs are at another schedd than the one that this operator asks. They wait for an operator that asks
//! it.

use super::{Action, Decider, Polling};
use crate::annotations::ABANDON_ANNOTATION;
use crate::condition::{ConditionStatus, ConditionType, Reason};
use crate::ids::{RequestKind, ScheddName};
use crate::phase::Phase;
use crate::request::Work;

impl Decider<'_> {
    /// Sets the condition. Nothing is requested of HTCondor, and this schedd's answers are not used.
    pub(super) fn wait_for_other_schedd(&mut self, other: &ScheddName) {
        let waiting = self.facts.in_flight.as_ref().filter(|request| !request.running);
        if let Some(request) = waiting {
            self.action = Action::Cancel(request.key.clone());
        }
        if !self.facts.object.deleting && !self.facts.object.finalizer {
            self.request(RequestKind::AttachFinalizer, Work::AttachFinalizer);
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
                format!("{message}, or annotate the HTCJob with {ABANDON_ANNOTATION}=true to leave them there")
            }
            _ => message,
        };
        self.set_condition(kind, ConditionStatus::False, Reason::AnotherSchedd, &message);
        if self.known.phase == Phase::Completed {
            self.set_outcome_conditions();
        }
        self.details.polling = Polling::Off;
    }
}
