//! Never attempted, never submitted: what needs no evidence.

use htc_machine::facts::{Facts, JobState, Listed, Past};
use htc_machine::judge;
use htc_machine::judge::Doubt;
use htc_machine::phase::Phase;
use htc_machine::{Attempt, Index};

use crate::given::{at, indices, job, known, pending, submitted};
use crate::judge::questions::{ALL, never_attempted, without};

#[test]
fn new_htcjob_is_never_attempted_without_evidence() {
    let facts = pending(3);
    assert_eq!(never_attempted(&facts, "0-2", &ALL).unwrap().indices(), &indices("0-2"));
    assert!(judge::never_submitted(&facts.object, &facts.record, facts.past).is_some());
}

#[test]
fn indexes_of_an_attempt_are_attempted() {
    let mut facts = submitted(2);
    assert_eq!(never_attempted(&facts, "0", &ALL), Err(Doubt::NotAskedSince));
    assert_eq!(never_attempted(&facts, "1-2", &ALL), Err(Doubt::NotAskedSince));
    assert!(never_attempted(&facts, "2", &ALL).is_ok());
    facts.object.published.listed = Listed::Partly;
    assert!(never_attempted(&facts, "2", &ALL).is_ok(), "the ledger knows where the ids come from");
}

#[test]
fn htcjob_of_unknown_past_may_have_been_attempted() {
    let mut stranger = pending(1);
    stranger.record.row = Some(htc_machine::facts::ObjectRow { new: false, ..known(Phase::Pending) });
    let mut unknown_past = pending(1);
    unknown_past.past = Past::Unknown { settled: Some(at(-50)) };
    let mut no_row = pending(1);
    no_row.record.row = None;
    for facts in [stranger, unknown_past, no_row] {
        assert_eq!(never_attempted(&facts, "0", &ALL), Err(Doubt::PastUnknown));
        assert!(never_attempted(&facts, "0", &without(|rules| rules.doubt_unknown_past = false)).is_ok());
    }
}

#[test]
fn never_submitted_needs_a_spotless_record() {
    let spotless = |change: fn(&mut Facts)| {
        let mut facts = pending(1);
        change(&mut facts);
        judge::never_submitted(&facts.object, &facts.record, facts.past).is_some()
    };
    assert!(spotless(|_| {}));
    assert!(!spotless(|facts| facts.record.highest = Attempt(1)));
    assert!(!spotless(|facts| drop(facts.record.jobs.insert(Index(0), job("5.0", JobState::Idle)))));
    assert!(!spotless(|facts| facts.object.published.listed = Listed::Partly));
    assert!(!spotless(|facts| facts.past = Past::Unknown { settled: Some(at(-50)) }));
    assert!(!spotless(|facts| facts.record.row.as_mut().unwrap().new = false));
}
