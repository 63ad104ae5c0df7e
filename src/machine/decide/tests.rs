//! What no facts bring about.

use crate::machine::facts::{Claim, Evidence, Facts, Object, Past, Published, Record, Spec};
use crate::machine::ids::{SchedDate, Timestamp};
use crate::machine::phase::Phase;
use crate::machine::rules::{Rules, Settings};
use crate::machine::transitions::{IllegalTransition, Trigger};

use super::Run;

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
        inherited: None,
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

/// In a release, too.
#[test]
fn a_transition_that_is_not_in_the_table_is_no_decision() {
    let (facts, settings) = (facts(), Settings::default());
    let begin = || Run::begin(&facts, Timestamp(1), &settings, &Rules::ALL).unwrap();
    assert!(begin().finish().is_ok());
    let mut run = begin();
    run.go(Trigger::Succeeded, Phase::Completed, String::new(), false);
    run.go(Trigger::Deleted, Phase::Terminating, String::new(), false);
    let (from, to) = (Some(Phase::Pending), Some(Phase::Completed));
    let illegal = IllegalTransition { from, trigger: Trigger::Succeeded, to };
    assert_eq!(run.finish(), Err(illegal));
    assert!(illegal.to_string().starts_with("the transition Succeeded from Pending to Completed is not in the table"));
}
