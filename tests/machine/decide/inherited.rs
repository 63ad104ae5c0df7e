//! Objects that the Go operator had: their jobs are recorded, adopted and followed, and none is submitted again.

use htc_operator::api::ConditionType;
use htc_operator::machine::decide::Look;
use htc_operator::machine::facts::{Ad, Exit, Facts, JobState, Listed, Unreadable, Why};
use htc_operator::machine::inherited::{Inherited, InheritedJob};
use htc_operator::machine::judge::{self, Doubt, Sightings};
use htc_operator::machine::outcome::Outcome;
use htc_operator::machine::phase::Phase;
use htc_operator::machine::request::{ReleasePermit, Scope};
use htc_operator::machine::transitions::Trigger;
use htc_operator::machine::{Attempt, Index, Kind, Rules, Work};
use proptest::prop_assert;
use rstest::rstest;

use crate::decide::decision::{condition, decide, message, phase, submits, triggers, work};
use crate::decide::properties::{check_fixpoint, run_with};
use crate::given::{
    ad, at, done, ended, failed, history, id, indices, pending, queue, removed, running, settings, unknown,
};

fn inherited(text: &str, outcome: Option<Outcome>, fetched: bool) -> InheritedJob {
    let id = id(text);
    InheritedJob { id, index: Index(id.proc), folder: "/tmp/htcjob1".into(), outcome, fetched }
}

/// One of which the Go operator's status and database name these jobs.
fn old(jobs: &[InheritedJob]) -> Facts {
    let mut facts = pending(u32::try_from(jobs.len()).unwrap());
    facts.object.published.listed = Listed::Partly;
    facts.object.inherited = Some(Inherited::Jobs(jobs.into()));
    if let Some(known) = &mut facts.record.known {
        known.new = false;
    }
    facts
}

fn unclear() -> Facts {
    let mut facts = old(&[]);
    facts.object.spec.as_mut().unwrap().queue = 2;
    facts.object.published.listed = Listed::Nothing;
    facts.object.inherited = Some(Inherited::Unclear("nobody knows".to_owned()));
    facts
}

/// Its ad, which does not carry our attributes.
fn foreign(ad: Ad) -> Ad {
    Ad { attempt: Attempt::INHERITED, not_after: None, marked: false, ..ad }
}

fn marked(ad: Ad) -> Ad {
    Ad { marked: true, ..foreign(ad) }
}

#[test]
fn nothing_is_known_before_htcondor_answers() {
    let jobs = [inherited("5.0", None, false), inherited("5.1", Some(Outcome::Succeeded), true)];
    let mut facts = old(&jobs);
    for invalid in [false, true] {
        if invalid {
            facts.object.spec = Err(Unreadable::invalid("no such command"));
        }
        let decision = decide(&facts);
        assert!(decision.after.as_ref().unwrap().jobs.is_empty());
        assert_eq!((phase(&decision), submits(&decision)), (Phase::Pending, None));
        assert_eq!(decision.look, Look::Every { history: None, soon: true });
        facts.evidence.queue = unknown(Why::ScheddUnreachable);
        assert_eq!(condition(&decide(&facts), ConditionType::Submitted), "False ScheddUnreachable");
        facts.evidence.queue = unknown(Why::NotAsked);
    }
}

#[test]
fn they_are_recorded_and_adopted_where_they_are() {
    let jobs = [
        inherited("5.0", None, false),
        inherited("5.1", None, false),
        inherited("5.2", Some(Outcome::FailedBefore), false),
        inherited("5.3", Some(Outcome::Succeeded), true),
    ];
    let mut facts = old(&jobs);
    let ads = [running(foreign(ad(0, "5.0"))), ended(foreign(ad(2, "5.2")), Exit::Code(0))];
    facts.evidence.queue = queue(-1, &ads);
    let decision = decide(&facts);
    let record = decision.after.as_ref().unwrap();
    let states: Vec<&JobState> = record.jobs.values().map(|job| &job.state).collect();
    let ended_by_row = |outcome| JobState::Ended(outcome);
    assert_eq!(
        states,
        [&JobState::Running, &JobState::Idle, &ended_by_row(Outcome::FailedBefore), &ended_by_row(Outcome::Succeeded)]
    );
    assert!(record.jobs.values().all(|job| job.attempt == Attempt::INHERITED && job.recorded == at(0)));
    assert_eq!(triggers(&decision), [Trigger::ConditionChanged, Trigger::Accepted, Trigger::Started]);
    assert_eq!(decision.transitions[0].reason, "Adopted");
    assert_eq!(work(&decision), Some(&Work::Adopt([jobs[0].clone(), jobs[2].clone()].into())));
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Adopting");

    // What HTCondor says of one that ended before changes nothing; with the others it counts.
    let mut facts = Facts { record: record.clone(), ..facts };
    facts.record.requests.insert(Kind::Adopt, done(1));
    let ads = [ended(marked(ad(0, "5.0")), Exit::Code(0)), running(marked(ad(2, "5.2")))];
    facts.evidence.queue = queue(2, &ads);
    facts.evidence.history = history(3, &[removed(foreign(ad(1, "5.1")), "via condor_rm")]);
    let decision = decide(&facts);
    let outcomes: Vec<_> = decision.after.as_ref().unwrap().jobs.values().map(|job| job.outcome().cloned()).collect();
    let expected =
        [Outcome::Succeeded, Outcome::Removed("via condor_rm".to_owned()), Outcome::FailedBefore, Outcome::Succeeded];
    assert_eq!(outcomes, expected.map(Some));
    assert_eq!(phase(&decision), Phase::Completed);
    assert_eq!(condition(&decision, ConditionType::Submitted), "True Accepted");
}

#[test]
fn their_output_is_fetched_once_they_are_seen_to_be_ours() {
    let mut facts = old(&[inherited("5.0", Some(Outcome::Succeeded), false)]);
    facts.evidence.queue = queue(-1, &[ended(foreign(ad(0, "5.0")), Exit::Code(0))]);
    let record = decide(&facts).after.unwrap();
    // The operator died before it knew how the adoption had gone.
    let mut facts = Facts { record, ..facts };
    facts.record.requests.insert(Kind::Adopt, done(-1));
    for why in [Why::NotAsked, Why::ScheddUnreachable] {
        facts.evidence.queue = unknown(why);
        let decision = decide(&facts);
        assert_eq!(work(&decision), None);
        assert_eq!(decision.look, Look::Every { history: None, soon: true });
        assert_eq!(condition(&decision, ConditionType::Complete), "nothing");
    }
    // The end waits for that no longer than for other output.
    let mut later = facts.clone();
    later.record.known.as_mut().unwrap().completed = Some(at(-600));
    assert_eq!(condition(&decide(&later), ConditionType::Complete), "True AllSucceeded");
    facts.evidence.queue = queue(0, &[ended(foreign(ad(0, "5.0")), Exit::Code(0))]);
    assert!(matches!(work(&decide(&facts)), Some(Work::Adopt(_))));
    facts.evidence.queue = queue(0, &[ended(marked(ad(0, "5.0")), Exit::Code(0))]);
    assert!(matches!(work(&decide(&facts)), Some(Work::Fetch(_))));
}

#[test]
fn an_adoption_that_fails_is_said_and_tried_again_with_pauses() {
    let mut facts = old(&[inherited("5.0", None, false)]);
    facts.evidence.queue = queue(-1, &[foreign(ad(0, "5.0"))]);
    facts.record.requests.insert(Kind::Adopt, failed(-2, 3));
    let decision = decide(&facts);
    assert_eq!(work(&decision), None);
    assert!(decision.again.is_some());
    assert_eq!(condition(&decision, ConditionType::Submitted), "False ScheddUnreachable");
}

#[test]
fn they_are_removed_like_others_once_they_are_ours() {
    let mut facts = old(&[inherited("5.0", None, false)]);
    facts.object.deleting = true;
    facts.evidence.queue = queue(-1, &[foreign(ad(0, "5.0"))]);
    let decision = decide(&facts);
    assert!(matches!(work(&decision), Some(Work::Adopt(_))), "{decision:?}");
    facts.record = decision.after.clone().unwrap();
    facts.record.requests.insert(Kind::Adopt, done(-1));
    // An earlier removal cannot have met it.
    facts.record.requests.insert(Kind::Remove, done(-2));
    facts.evidence.queue = queue(0, &[marked(ad(0, "5.0"))]);
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Remove(Scope::All)));
    facts.record.requests.insert(Kind::Remove, done(0));
    facts.evidence.queue = queue(1, &[]);
    assert!(matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(_))));
}

#[test]
fn what_is_unclear_is_neither_submitted_nor_let_go() {
    let mut facts = unclear();
    for answered in [false, true] {
        if answered {
            facts.evidence.queue = queue(-1, &[]);
            facts.evidence.history = history(0, &[]);
        }
        let decision = decide(&facts);
        assert_eq!((work(&decision), decision.look.clone()), (None, Look::Nothing));
        assert_eq!(condition(&decision, ConditionType::Submitted), "False GoOperator");
        assert!(message(&decision, ConditionType::Submitted).contains("submit-again"));
    }
    let invalid = Facts {
        object: htc_operator::machine::facts::Object { spec: Err(Unreadable::invalid("x")), ..facts.object.clone() },
        ..facts.clone()
    };
    assert_eq!(condition(&decide(&invalid), ConditionType::Submitted), "False GoOperator");

    facts.object.submit_again = true;
    assert_eq!(submits(&decide(&facts)), Some((&indices("0-1"), true, Attempt(1))));
    facts.object.published.listed = Listed::Partly;
    assert_eq!(condition(&decide(&facts), ConditionType::Submitted), "False Lost", "not even then");

    let mut leaving = unclear();
    leaving.object.deleting = true;
    leaving.record.requests.insert(Kind::Remove, done(0));
    leaving.evidence.queue = queue(2, &[]);
    let decision = decide(&leaving);
    assert_eq!((work(&decision), phase(&decision)), (None, Phase::Terminating));
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False GoOperator");
    assert!(message(&decision, ConditionType::JobsRemoved).contains("abandon"));
    leaving.object.abandon = true;
    assert!(matches!(work(&decide(&leaving)), Some(Work::ReleaseFinalizer(_))));
}

/// Each proof by itself, and what stands in its way.
#[rstest]
#[case::unclear(unclear(), Doubt::Inherited("nobody knows".to_owned()))]
#[case::not_recorded(old(&[inherited("5.0", None, false)]), Doubt::NotAdopted)]
fn no_proof_without_them(#[case] mut facts: Facts, #[case] doubt: Doubt) {
    facts.evidence.queue = queue(-1, &[]);
    facts.evidence.history = history(0, &[]);
    facts.object.published.listed = Listed::Nothing;
    if let Some(known) = &mut facts.record.known {
        known.new = true;
    }
    let rules = [Rules::ALL, Rules { inherited_is_presence: false, ..Rules::ALL }];
    let all = rules.map(|rules| {
        let (object, record, past, evidence) = (&facts.object, &facts.record, facts.past, &facts.evidence);
        let first = indices("0");
        let sightings = Sightings::new(evidence, &rules);
        let gone = judge::prove_gone(object, record, past, evidence, &settings(), &rules).map(drop);
        let never = judge::never_attempted(object, record, past, &first, &rules).map(drop);
        let again =
            judge::prove_never_accepted(object, record, past, &first, evidence, &sightings, &settings(), &rules);
        [gone, never, again.map(drop)]
    });
    assert_eq!(all[0], [Err(doubt.clone()), Err(doubt.clone()), Err(doubt)]);
    assert_eq!(all[1], [Ok(()), Ok(()), Ok(())], "nothing else stands in the way");
    assert!(judge::never_submitted(&facts.object, &facts.record, facts.past).is_none());
}

/// Whatever else is known: what the Go operator had is never submitted anew or let go, unless all its jobs are known or a
/// person has said that there are none.
#[rstest]
#[case::unclear(false)]
#[case::plain(true)]
fn whatever_else_is_known(#[case] plain: bool) {
    let jobs = [inherited("40.0", None, false), inherited("40.1", Some(Outcome::FailedBefore), true)];
    let change = |facts: &mut Facts| {
        facts.object.inherited =
            Some(if plain { Inherited::Jobs(jobs.as_slice().into()) } else { Inherited::Unclear("why".to_owned()) });
    };
    run_with(change, |facts, decision| {
        let spoken = facts.record.highest > Attempt::INHERITED || (!plain && facts.object.submit_again);
        match work(decision) {
            Some(Work::Submit(..)) => prop_assert!(spoken),
            Some(Work::ReleaseFinalizer(ReleasePermit::NeverSubmitted(_))) => prop_assert!(false, "it may have been"),
            Some(Work::ReleaseFinalizer(ReleasePermit::Gone(_))) => {
                let jobs = &decision.after.as_ref().unwrap().jobs;
                prop_assert!(spoken || facts.record.known.as_ref().unwrap().released || (plain && jobs.len() >= 2));
            }
            _ => {}
        }
        check_fixpoint(facts, decision)
    });
}
