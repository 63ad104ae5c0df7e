//! Tests of decisions that no facts bring about.

use crate::facts::{Claim, Evidence, Facts, Object, ObjectRow, Past, Published, Record, Spec};
use crate::ids::{SchedDate, Timestamp};
use crate::phase::Phase;
use crate::rules::{Rules, Settings};
use crate::transitions::{IllegalTransition, Trigger};

use super::Decider;

fn facts() -> Facts {
    let object = Object {
        uid: "u".into(),
        deleting: false,
        finalizer: true,
        claim: Claim::Ours,
        spec: Ok(Spec { queue: 1, ..Spec::default() }),
        output: String::new(),
        published: Published::default(),
        created: SchedDate(1),
        abandon: false,
        submit_again: false,
        may_rerun: false,
        unadopted: false,
    };
    let (record, past, evidence) = (Record::default(), Past::Continuous, Evidence::none());
    Facts {
        object,
        record,
        past,
        in_flight: None,
        evidence,
        silent_since: None,
        schedd_is_silent: false,
        queue: None,
        schedd: "schedd@test".into(),
    }
}

/// Checked in release builds, too.
#[test]
fn transition_outside_the_table_is_an_error() {
    let (facts, settings) = (facts(), Settings::default());
    let begin = || Decider::begin(&facts, Timestamp(1), &settings, &Rules::ALL, Some(ObjectRow::found(true))).unwrap();
    assert!(begin().finish().is_ok());
    let mut run = begin();
    run.set_phase(Trigger::Succeeded, Phase::Completed, String::new(), false);
    run.set_phase(Trigger::Deleted, Phase::Terminating, String::new(), false);
    let (from, to) = (Some(Phase::Pending), Some(Phase::Completed));
    let illegal = IllegalTransition { from, trigger: Trigger::Succeeded, to };
    assert_eq!(run.finish(), Err(illegal));
    assert!(illegal.to_string().starts_with("the transition Succeeded from Pending to Completed is not in the table"));
}
