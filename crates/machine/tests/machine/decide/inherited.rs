//! Objects that the Go operator had: nothing is done with them before their jobs are adopted; then they are followed like others, and none
//! is submitted again.

use htc_machine::condition::ConditionType;
use htc_machine::decide::{Polling, adopted_job, adoption};
use htc_machine::facts::{Ad, Claim, Exit, Facts, JobState, Listed, Unreadable};
use htc_machine::inherited::InheritedJob;
use htc_machine::judge::{AdSource, Doubt, Sightings};
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::request::{ReleasePermit, RemovalScope};
use htc_machine::transitions::Trigger;
use htc_machine::{Attempt, Birthdate, Index, RequestKind, Rules, SchedDate, Work, judge};
use proptest::prop_assert;
use rstest::rstest;

use crate::decide::decision::{condition, decide, message, phase, submits, triggers, work};
use crate::decide::properties::{check_fixpoint, run_with};
use crate::given::{ad, at, done, ended, history, id, indices, pending, queue, removed, running, settings};

fn inherited(text: &str, outcome: Option<Outcome>, fetched: bool) -> InheritedJob {
    let id = id(text);
    InheritedJob { id, index: Index(id.proc), folder: "/tmp/htcjob1".into(), outcome, fetched }
}

/// Its ad once it is marked.
fn marked(ad: Ad) -> Ad {
    Ad { attempt: Attempt::INHERITED, not_after: None, ..ad }
}

/// One whose jobs are adopted: `queued` are in the queue, `former` in history.
fn adopted(jobs: &[InheritedJob], queued: &[Ad], former: &[Ad]) -> Facts {
    let mut facts = pending(u32::try_from(jobs.len()).unwrap());
    facts.object.published.listed = Listed::Partly;
    facts.record.row = None;
    let find = |ads: &[Ad], id| ads.iter().find(|ad| ad.id == id).cloned();
    for job in jobs {
        let queued = find(queued, job.id).map(|ad| (ad, AdSource::Queue));
        let seen = queued.or_else(|| find(former, job.id).map(|ad| (ad, AdSource::History)));
        let seen = seen.as_ref().map(|(ad, place)| (ad, *place));
        let row = adopted_job(job, seen, queue_birthdate(), SchedDate(1), at(-2));
        facts.record.jobs.insert(job.index, row);
    }
    let (known, transitions) = adoption(&facts.record, jobs.len());
    let told: Vec<&str> = transitions.iter().map(|told| told.reason.as_str()).collect();
    assert_eq!(told, ["Guarded", "Adopted"]);
    facts.record.row = Some(known);
    facts.evidence.queue = queue(-1, queued);
    facts
}

fn queue_birthdate() -> Birthdate {
    match queue(0, &[]) {
        htc_machine::facts::Answer::Known(queue) => queue.birthdate,
        htc_machine::facts::Answer::Unknown(_) => unreachable!(),
    }
}

/// One of which nobody knows the jobs yet, in a row of this operator.
fn unadopted() -> Facts {
    let mut facts = pending(2);
    facts.object.claim = Claim::None;
    facts.object.unadopted = true;
    facts.record.row.as_mut().unwrap().new = false;
    facts
}

#[test]
fn inherited_jobs_are_tracked_like_others() {
    let jobs = [
        inherited("5.0", None, false),
        inherited("5.1", None, false),
        inherited("5.2", Some(Outcome::FailedBefore), false),
        inherited("5.3", Some(Outcome::Succeeded), true),
    ];
    let queued = [running(marked(ad(0, "5.0"))), ended(marked(ad(2, "5.2")), Exit::Code(0))];
    let facts = adopted(&jobs, &queued, &[removed(marked(ad(1, "5.1")), "via condor_rm")]);
    assert!(!facts.record.jobs[&Index(3)].gone, "it was in neither place, which the operator is to see for itself");
    let decision = decide(&facts);
    let record = decision.after.as_ref().unwrap();
    let by_hand = Outcome::Removed("via condor_rm".to_owned());
    let states: Vec<JobState> = record.jobs.values().map(|job| job.state.clone()).collect();
    let over = |outcome: &Outcome| JobState::Ended(outcome.clone());
    assert_eq!(states, [JobState::Running, over(&by_hand), over(&Outcome::FailedBefore), over(&Outcome::Succeeded)]);
    assert!(record.jobs[&Index(1)].gone, "history has it");
    assert_eq!(triggers(&decision), [Trigger::Accepted, Trigger::Started]);
    assert_eq!(condition(&decision, ConditionType::Submitted), "True Accepted");

    // What HTCondor says of one that ended before changes nothing; with the others it counts.
    let mut facts = Facts { record: record.clone(), ..facts };
    facts.evidence.queue = queue(2, &[ended(marked(ad(0, "5.0")), Exit::Code(0)), running(marked(ad(2, "5.2")))]);
    let decision = decide(&facts);
    let outcomes: Vec<_> = decision.after.as_ref().unwrap().jobs.values().map(|job| job.outcome().cloned()).collect();
    let expected = [Outcome::Succeeded, by_hand, Outcome::FailedBefore, Outcome::Succeeded];
    assert_eq!(outcomes, expected.map(Some));
    assert_eq!(phase(&decision), Phase::Completed);
    assert!(matches!(work(&decision), Some(Work::Fetch(_))));
}

/// The spec may ask for others, or be one that nobody can read.
#[test]
fn inherited_jobs_are_never_resubmitted() {
    let jobs = [inherited("5.0", None, false)];
    let mut facts = adopted(&jobs, &[marked(ad(0, "5.0"))], &[]);
    facts.object.spec.as_mut().unwrap().queue = 3;
    for unreadable in [false, true] {
        if unreadable {
            facts.object.spec = Err(Unreadable::invalid("no such command"));
        }
        let decision = decide(&facts);
        assert_eq!(submits(&decision), None);
        assert_eq!(condition(&decision, ConditionType::Submitted), "True Accepted");
        let mut over = Facts { record: decision.after.clone().unwrap(), ..facts.clone() };
        over.evidence.queue = queue(2, &[ended(marked(ad(0, "5.0")), Exit::Code(0))]);
        assert_eq!(phase(&decide(&over)), Phase::Completed);
    }
}

/// The command has looked twice; what it means that a job is nowhere is judged as ever.
#[test]
fn inherited_job_is_lost_only_if_history_reaches_back() {
    let mut facts = adopted(&[inherited("5.0", None, false)], &[], &[]);
    assert_eq!(facts.record.jobs[&Index(0)].state, JobState::Idle);
    facts.evidence.queue = queue(-1, &[]);
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(phase(&decision), Phase::Submitted);
    assert!(decision.after.unwrap().jobs[&Index(0)].outcome().is_none());
}

#[test]
fn inherited_jobs_are_removed_like_others() {
    let queued = [marked(ad(0, "5.0"))];
    let mut facts = adopted(&[inherited("5.0", None, false)], &queued, &[]);
    facts.object.deleting = true;
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Remove(RemovalScope::All)));
    facts.record = decision.after.clone().unwrap();
    facts.record.requests.insert(RequestKind::Remove, done(0));
    facts.evidence.queue = queue(1, &[]);
    assert!(matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(ReleasePermit::Gone(_)))));
}

#[test]
fn unadopted_htcjob_is_neither_submitted_nor_released() {
    for row in [false, true] {
        let mut facts = unadopted();
        if !row {
            facts.record.row = None;
        }
        for answered in [false, true] {
            if answered {
                facts.evidence.queue = queue(-1, &[]);
                facts.evidence.history = history(0, &[]);
            }
            let decision = decide(&facts);
            assert_eq!((work(&decision), decision.details.polling.clone()), (None, Polling::Off));
            assert_eq!(condition(&decision, ConditionType::Submitted), "False LegacyJobsUnknown");
            assert!(message(&decision, ConditionType::Submitted).contains("htc-operator adopt"));
            assert!(!decision.after.unwrap().row.unwrap().new);
        }
    }
    // No finalizer of any operator may stand: it is not taken for new.
    let mut bare = unadopted();
    (bare.object.finalizer, bare.record.row) = (false, None);
    assert_eq!(work(&decide(&bare)), None);

    let mut leaving = unadopted();
    leaving.object.deleting = true;
    leaving.evidence.queue = queue(2, &[]);
    let decision = decide(&leaving);
    assert_eq!((work(&decision), phase(&decision)), (None, Phase::Terminating));
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False LegacyJobsUnknown");
    assert!(message(&decision, ConditionType::JobsRemoved).contains("abandon"));
    leaving.record = decision.after.unwrap();
    leaving.object.abandon = true;
    assert_eq!(work(&decide(&leaving)), Some(&Work::Remove(RemovalScope::All)), "whatever it is worth");
    leaving.record.requests.insert(RequestKind::Remove, done(0));
    assert!(matches!(work(&decide(&leaving)), Some(Work::ReleaseFinalizer(ReleasePermit::Abandoned(_)))));
}

/// A person may say that it never ran, but not of one whose status shows jobs.
#[test]
fn unadopted_htcjob_is_submitted_with_submit_again() {
    let mut facts = unadopted();
    facts.object.submit_again = true;
    facts.object.published.listed = Listed::Partly;
    assert_eq!(work(&decide(&facts)), None);
    facts.object.published.listed = Listed::Nothing;
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::AttachFinalizer));
    // By which it is claimed; HTCondor is asked all the same.
    let mut facts = Facts { record: decision.after.unwrap(), ..facts };
    (facts.object.unadopted, facts.object.claim) = (false, Claim::Ours);
    assert_eq!(submits(&decide(&facts)), None);
    facts.evidence.queue = queue(-1, &[]);
    facts.evidence.history = history(0, &[]);
    assert_eq!(submits(&decide(&facts)), Some((&indices("0-1"), true, Attempt(1))));
}

/// Each proof by itself, and what stands in its way.
#[test]
fn unadopted_htcjob_has_no_proofs() {
    let mut facts = unadopted();
    facts.evidence.queue = queue(-1, &[]);
    facts.evidence.history = history(0, &[]);
    facts.record.row.as_mut().unwrap().new = true;
    let rules = [Rules::ALL, Rules { adopted_first: false, two_answers: false, ..Rules::ALL }];
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
    assert_eq!(all[0], [Err(Doubt::NotAdopted), Err(Doubt::NotAdopted), Err(Doubt::NotAdopted)]);
    assert_eq!(all[1], [Ok(()), Ok(()), Ok(())], "nothing else stands in the way");
    assert!(judge::never_submitted(&facts.object, &facts.record, facts.past).is_none());
}

/// Whatever else is known: what is not adopted is never submitted, and let go only for a person's sake.
#[rstest]
fn unadopted_htcjob_is_never_submitted_and_released_only_if_abandoned() {
    let change = |facts: &mut Facts| facts.object.unadopted = true;
    run_with(change, |facts, decision| {
        match work(decision) {
            Some(Work::AttachFinalizer) => {
                prop_assert!(facts.object.submit_again && !facts.object.published.shows_jobs());
            }
            Some(Work::Submit(..)) => prop_assert!(false, "it may have been"),
            Some(Work::ReleaseFinalizer(permit)) => {
                prop_assert!(matches!(permit, ReleasePermit::Abandoned(_)), "{permit:?}");
            }
            _ => {}
        }
        check_fixpoint(facts, decision)
    });
}
