//! Objects in a queue: what has room is submitted and released, what has not waits, and what is not needed is given back.

use htc_machine::actions::{JobAction, RequestedAction, StoredAction};
use htc_machine::condition::{ConditionType, Reason};
use htc_machine::decide::Action;
use htc_machine::facts::{
    Claim, Exit, Facts, Hold, JobState, Past, QueryErrorKind, QueueFacts, QueueWait, Spec, SpecRefused, Submission,
};
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::quota_usage::{QuotaUsage, quota_usage};
use htc_machine::{Decision, Index, RequestKind, Rules, Settings, Work};

use crate::decide::decision::{condition, decide, message, submits, work};
use crate::given::{
    accepted, ad, add_attempt, at, attempt, done, ended, ended_job, failed, held, history, in_flight, indices, job,
    own_hold, pending, queue, running, running_job, settings, unknown,
};

fn waits(reason: Reason) -> QueueWait {
    QueueWait { reason, message: format!("because of {reason}"), position: Some(4) }
}

fn in_queue(mut facts: Facts, granted: &str) -> Facts {
    facts.queue = Some(QueueFacts {
        queue: "batch".to_owned(),
        wait: Some(waits(Reason::WaitingForQuota)),
        ..QueueFacts::default()
    });
    facts.record.granted = indices(granted);
    facts
}

fn submitted(decision: &Decision) -> String {
    submits(decision).map_or_else(String::new, |(indices, ..)| indices.to_string())
}

fn room_of(facts: &Facts) -> QuotaUsage {
    quota_usage(facts, &decide(facts), &Rules::ALL)
}

/// Uses, asks, gives back.
fn shares(facts: &Facts) -> [String; 3] {
    let QuotaUsage { used: uses, requested: asks, returned: gives_back, .. } = room_of(facts);
    [uses, asks, gives_back].map(|set| set.to_string())
}

#[test]
fn no_job_is_submitted_without_quota() {
    let none = decide(&in_queue(pending(5), ""));
    assert_eq!(none.action, Action::Nothing);
    assert_eq!(condition(&none, ConditionType::Submitted), "False Queued");
    assert_eq!(condition(&none, ConditionType::QuotaReserved), "False WaitingForQuota");
    assert_eq!(message(&none, ConditionType::Submitted), "because of WaitingForQuota");
    let told: Vec<&str> = none.transitions.iter().map(|row| row.reason.as_str()).collect();
    assert_eq!(told, ["WaitingForQuota"], "one Event, not two");

    let some = decide(&in_queue(pending(5), "1,3-4"));
    assert_eq!(submitted(&some), "1,3-4");
    assert_eq!(condition(&some, ConditionType::QuotaReserved), "True QuotaReserved");
    assert_eq!(submitted(&decide(&in_queue(pending(2), "0-1"))), "0-1");
    let mut free = in_queue(pending(5), "");
    free.queue = None;
    assert_eq!(submitted(&decide(&free)), "0-4");
}

/// What was tried is found out whatever the queue says, and goes again only with room.
#[test]
fn open_attempt_is_judged_without_quota() {
    let mut facts = in_queue(pending(3), "");
    add_attempt(&mut facts, attempt(1, "0-1"));
    assert_eq!(condition(&decide(&facts), ConditionType::Submitted), "False QueryingHTCondor");
    (facts.evidence.queue, facts.evidence.history) = (queue(-1, &[]), history(0, &[]));
    let proved = decide(&facts);
    assert_eq!(submitted(&proved), "", "it was never accepted, and has no quota to be submitted again");
    assert_eq!(condition(&proved, ConditionType::Submitted), "False Queued");
    facts.record.granted = indices("1");
    assert_eq!(submitted(&decide(&facts)), "1");
    facts.record.granted = indices("0-2");
    assert_eq!(submitted(&decide(&facts)), "2", "jobs that were never attempted go first, as always");
}

/// A submission that came to nothing has no room while it is not to be made again, and asks for it anew. What was proved once is not
/// asked again: evidence ages.
#[test]
fn unaccepted_jobs_use_no_quota_while_waiting() {
    let mut facts = in_queue(pending(3), "0-1");
    add_attempt(&mut facts, attempt(1, "0-1"));
    facts.object.spec.as_mut().unwrap().suspend = true;
    assert_eq!(shares(&facts), ["0-1", "", ""], "HTCondor may have them");
    (facts.evidence.queue, facts.evidence.history) = (queue(-1, &[]), history(0, &[]));
    assert_eq!(shares(&facts), ["", "", "0-1"]);
    facts.record = decide(&facts).after.unwrap();
    (facts.record.granted, facts.evidence.queue) = (indices(""), queue(10, &[]));
    assert_eq!(shares(&facts), ["", "", ""]);
    assert_eq!(condition(&decide(&facts), ConditionType::QuotaReserved), "False Suspended");
    facts.record = decide(&facts).after.unwrap();
    facts.object.spec.as_mut().unwrap().suspend = false;
    assert_eq!(shares(&facts), ["", "0-2", ""]);
    assert_eq!(condition(&decide(&facts), ConditionType::QuotaReserved), "False WaitingForQuota");
    // With room it goes again, once that is proved anew.
    facts.record.granted = indices("0-1");
    assert_eq!((shares(&facts), submitted(&decide(&facts)).as_str()), (["", "2", ""].map(str::to_owned), ""));
    facts.evidence.history = history(11, &[]);
    assert_eq!(submitted(&decide(&facts)), "0-1");
    // As long as one of them has room, all of them wait for what becomes of it.
    let mut partly = in_queue(pending(2), "1");
    add_attempt(&mut partly, attempt(1, "0-1"));
    assert_eq!(shares(&partly), ["0-1", "", ""]);
}

#[test]
fn ended_jobs_release_quota_and_waiting_jobs_request_it() {
    assert_eq!(shares(&in_queue(pending(5), "")), ["", "0-4", ""]);
    assert_eq!(shares(&in_queue(pending(5), "0-1")), ["", "2-4", ""], "jobs about to be submitted keep their quota");
    let jobs = [
        (ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0))),
        (running_job("5.1"), running(ad(1, "5.1"))),
    ];
    let mut facts = in_queue(accepted(Phase::Running, &jobs), "0-1");
    facts.object.spec = Ok(Spec { queue: 4, ..Spec::default() });
    assert_eq!(shares(&facts), ["1", "2-3", "0"]);
    facts.object.spec = Ok(Spec { queue: 4, parallelism: Some(2), ..Spec::default() });
    assert_eq!(shares(&facts), ["1", "2", "0"], "it asks for no more than it may have at a time");
    facts.object.spec = Ok(Spec { queue: 4, parallelism: Some(1), ..Spec::default() });
    facts.record.granted = indices("1,2");
    assert_eq!(shares(&facts), ["1", "", "2"], "parallelism was lowered");
    // What waits for nothing keeps nothing: it is deleted, cut short, held by a user.
    facts.object.spec = Ok(Spec { queue: 4, ..Spec::default() });
    facts.record.requested_actions.insert(
        Index(2),
        StoredAction { number: 1, action: RequestedAction::new(JobAction::Hold, at(-5)), unreported: None },
    );
    assert_eq!(shares(&facts), ["1", "3", "2"]);
    facts.object.deleting = true;
    assert_eq!(shares(&facts), ["1", "", "2"]);
}

#[test]
fn suspended_jobs_release_quota_once_hold_is_confirmed() {
    let ours = (job("5.0", JobState::Held(own_hold())), held(ad(0, "5.0"), Hold::BY_USER, Hold::SUSPENDED));
    let mut facts = in_queue(accepted(Phase::Running, &[ours]), "0");
    facts.object.spec = Ok(Spec { queue: 1, suspend: true, ..Spec::default() });
    assert_eq!(shares(&facts), ["", "", "0"]);
    facts.record.requests.insert(RequestKind::Release, done(0));
    assert_eq!(shares(&facts), ["", "", ""], "the answer is from before a release");
    facts.record.requests.insert(RequestKind::Release, done(-5));
    assert_eq!(shares(&facts), ["", "", "0"]);
    let eager = Rules { room_until_held: false, ..Rules::ALL };
    facts.record.requests.insert(RequestKind::Release, done(0));
    assert_eq!(quota_usage(&facts, &decide(&facts), &eager).returned.to_string(), "0");

    // Resumed, it waits for room before it is released.
    facts.record.requests.clear();
    facts.object.spec = Ok(Spec { queue: 1, ..Spec::default() });
    facts.record.granted = indices("");
    let waiting = decide(&facts);
    assert_eq!(
        (work(&waiting), condition(&waiting, ConditionType::QuotaReserved)),
        (None, "False WaitingForQuota".to_owned())
    );
    assert_eq!(shares(&facts), ["", "0", ""]);
    facts.record.granted = indices("0");
    assert_eq!(work(&decide(&facts)), Some(&Work::Release));
    assert_eq!(shares(&facts), ["", "", ""]);
}

#[test]
fn only_held_jobs_with_quota_are_released() {
    let held_by_us =
        |index, id: &str| (job(id, JobState::Held(own_hold())), held(ad(index, id), Hold::BY_USER, Hold::SUSPENDED));
    let facts = in_queue(accepted(Phase::Running, &[held_by_us(0, "5.0"), held_by_us(1, "5.1")]), "1");
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(vec!["5.1".parse().unwrap()])));
}

/// Until it is known what another ledger's object has, all that it may have counts.
#[test]
fn unknown_jobs_count_as_used_quota() {
    let mut facts = in_queue(pending(5), "");
    facts.object.claim = Claim::Other;
    facts.past = Past::Unknown { settled: None };
    facts.record.row.as_mut().unwrap().new = false;
    let room = room_of(&facts);
    assert_eq!((room.used.to_string().as_str(), room.usage_unknown, room.requested.is_empty()), ("0-4", true, true));
}

#[test]
fn drained_htcjob_is_reported_and_unqueued_htcjob_needs_no_quota() {
    let mut facts = in_queue(pending(2), "0");
    facts.queue.as_mut().unwrap().drained = true;
    facts.object.spec = Ok(Spec { queue: 2, suspend: true, ..Spec::default() });
    let drained = decide(&facts);
    assert!(message(&drained, ConditionType::Suspended).starts_with("HTCQueue batch has stopPolicy HoldAndDrain"));
    assert_eq!(shares(&facts), ["", "", "0"]);

    let mut facts = in_queue(pending(2), "");
    facts.queue.as_mut().unwrap().wait = Some(waits(Reason::Misconfigured));
    facts.record = decide(&facts).after.unwrap();
    facts.queue = None;
    let free = decide(&facts);
    assert_eq!(condition(&free, ConditionType::QuotaReserved), "True NoQueue");
    assert_eq!(submitted(&free), "0-1");
}

/// A missing Secret, a silent schedd: nothing was submitted. The room goes at once, and one job asks for it at the next try.
#[test]
fn quota_is_released_during_backoff() {
    let mut facts = in_queue(pending(5), "0-4");
    assert_eq!(shares(&facts), ["", "", ""]);
    facts.record.requests.insert(RequestKind::Submit, failed(-1, 1));
    assert_eq!(shares(&facts), ["", "", "0-4"]);
    let fails = decide(&facts);
    assert_eq!(condition(&fails, ConditionType::Submitted), "False ScheddUnreachable");
    assert_eq!(condition(&fails, ConditionType::QuotaReserved), "False Waiting");
    assert_eq!((&fails.action, fails.requeue_after), (&Action::Nothing, Some(std::time::Duration::from_secs(4))));

    // Without room it says the same, also while it waits for its next try.
    facts.record = fails.after.unwrap();
    facts.record.granted = indices("");
    for seconds in [-1, -5] {
        facts.record.requests.insert(RequestKind::Submit, failed(seconds, 1));
        let waits = decide(&facts);
        assert_eq!(condition(&waits, ConditionType::Submitted), "False ScheddUnreachable");
        assert_eq!(condition(&waits, ConditionType::QuotaReserved), "False Waiting");
        assert!(waits.transitions.is_empty(), "{:?}", waits.transitions);
    }
    assert_eq!(shares(&facts), ["", "0", ""], "one job is tried");
    facts.record.granted = indices("0");
    assert_eq!((shares(&facts), submitted(&decide(&facts)).as_str()), (["", "", ""].map(str::to_owned), "0"));
    // While it is tried no other one asks.
    add_attempt(&mut facts, Submission { dead_since: None, ..attempt(1, "0") });
    facts.record.requests.insert(RequestKind::Submit, failed(-5, 1));
    facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, true));
    assert_eq!(shares(&facts), ["0", "", ""]);
    // With that accepted, the others ask.
    let mut facts = in_queue(accepted(Phase::Submitted, &[(running_job("5.0"), running(ad(0, "5.0")))]), "0");
    facts.object.spec = Ok(Spec { queue: 5, ..Spec::default() });
    assert_eq!(shares(&facts), ["0", "1-4", ""]);
}

/// What the schedd refuses keeps its room until it is proved that it has not accepted it; then it asks for the next part.
#[test]
fn refused_jobs_release_quota_once_proved_absent() {
    let refused = |since: i64| {
        let mut facts = in_queue(pending(9), "0-8");
        let refusal = Some("no".to_owned());
        add_attempt(&mut facts, Submission { refusal, intent_at: at(since), ..attempt(1, "0-7") });
        facts.record.refused = 1;
        facts
    };
    let mut facts = refused(-1);
    assert_eq!(shares(&facts), ["0-7", "", "8"], "jobs that were not attempted go at once");
    facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable);
    assert_eq!(shares(&facts), ["0-7", "", "8"], "HTCondor may have it");
    (facts.evidence.queue, facts.evidence.history) = (queue(-1, &[]), history(0, &[]));
    assert_eq!(shares(&facts), ["", "", "0-8"]);
    assert_eq!(condition(&decide(&facts), ConditionType::Submitted), "False SubmitRefused");
    assert_eq!(condition(&decide(&facts), ConditionType::QuotaReserved), "False Waiting");

    let mut facts = refused(-10);
    facts.record.attempts[0].absent = true;
    facts.record.granted = indices("");
    assert_eq!(shares(&facts), ["", "0,8", ""], "a quarter of it, and jobs never attempted first");
    facts.record.attempts[0].indices = indices("0-8");
    facts.record.attempted = indices("0-8");
    assert_eq!(shares(&facts), ["", "0-1", ""]);
    // As long as its absence cannot be proved anew, room would be of no use.
    facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable);
    assert_eq!(shares(&facts), ["", "", ""]);
    facts.record.granted = indices("0-1");
    assert_eq!(shares(&facts), ["", "", "0-1"]);
}

/// What the schedd accepts and drops, again and again, is lent room for one job at a time.
#[test]
fn repeatedly_dropped_jobs_request_quota_for_one_job() {
    let mut facts = in_queue(pending(9), "");
    add_attempt(&mut facts, attempt(3, "0-1"));
    facts.record.refused = 3;
    assert_eq!(shares(&facts), ["0-1", "", ""]);
    facts.record.attempts[0].absent = true;
    assert_eq!(shares(&facts), ["", "2", ""]);
    facts.record.refused = 1;
    assert_eq!(shares(&facts), ["", "0-8", ""], "it was not tried again");
}

/// A pool that is not ready, an operator that does not allow its options: nothing of it can go, and what was tried is judged.
#[test]
fn refused_spec_keeps_no_quota() {
    let mut facts = in_queue(pending(3), "0-2");
    add_attempt(&mut facts, attempt(1, "0"));
    let refused = Some(SpecRefused { reason: Reason::PoolNotReady, message: "m".to_owned() });
    facts.object.spec = Ok(Spec { queue: 3, refused, ..Spec::default() });
    assert_eq!(shares(&facts), ["0", "", "1-2"]);
    (facts.evidence.queue, facts.evidence.history) = (queue(-1, &[]), history(0, &[]));
    assert_eq!(shares(&facts), ["", "", "0-2"]);
}

/// What its namespace or `parallelism` keeps back asks for no room: no gate holds what another one gives.
#[test]
fn requested_quota_is_bounded_by_all_limits() {
    let within = |facts: &Facts, most: usize| {
        let settings = Settings { namespace_limit: Some(most), ..settings() };
        let decision = htc_machine::decide(facts, at(0), &settings, &Rules::ALL).unwrap();
        let QuotaUsage { requested: asks, returned: gives_back, .. } = quota_usage(facts, &decision, &Rules::ALL);
        ([asks, gives_back].map(|set| set.to_string()), decision)
    };
    assert_eq!(within(&in_queue(pending(5), ""), 2).0, ["0-1", ""]);
    assert_eq!(within(&in_queue(pending(5), "3-4"), 2).0, ["", ""], "jobs that have quota already come first");
    let (shares, full) = within(&in_queue(pending(5), "3-4"), 0);
    assert_eq!(shares, ["", "3-4"]);
    assert_eq!(condition(&full, ConditionType::QuotaReserved), "False Waiting");
    let (shares, full) = within(&in_queue(pending(5), ""), 0);
    assert_eq!(shares, ["", ""]);
    assert!(full.details.namespace_is_full && full.requeue_after.is_some(), "it is woken, and looks again");
    assert_eq!(condition(&full, ConditionType::Submitted), "False NamespaceLimitReached");
}

/// What is held for `spec.suspend` and cannot be released does not keep the room that it got for that.
#[test]
fn failed_release_gives_quota_back() {
    let ours = (job("5.0", JobState::Held(own_hold())), held(ad(0, "5.0"), Hold::BY_USER, Hold::SUSPENDED));
    let mut facts = in_queue(accepted(Phase::Running, &[ours]), "0");
    facts.record.requests.insert(RequestKind::Release, failed(0, 1));
    assert_eq!(shares(&facts), ["", "", ""], "it may have been released: the answer is from before");
    facts.record.requests.insert(RequestKind::Release, failed(-2, 1));
    assert_eq!(shares(&facts), ["", "", "0"]);
    facts.record.granted = indices("");
    assert_eq!((shares(&facts), decide(&facts).requeue_after.is_some()), (["", "", ""].map(str::to_owned), true));
    facts.record.requests.insert(RequestKind::Release, failed(-6, 1));
    assert_eq!(shares(&facts), ["", "0", ""]);
}

/// A job is being released when a user holds it: it may run, and keeps its room until it is known to be held.
#[test]
fn hold_action_frees_no_quota_while_a_release_is_under_way() {
    let ours = (job("5.0", JobState::Held(own_hold())), held(ad(0, "5.0"), Hold::BY_USER, Hold::SUSPENDED));
    let mut facts = in_queue(accepted(Phase::Running, &[ours]), "0");
    facts.record.requested_actions.insert(
        Index(0),
        StoredAction { number: 1, action: RequestedAction::new(JobAction::Hold, at(-1)), unreported: None },
    );
    facts.in_flight = Some(in_flight(&facts, RequestKind::Release, true));
    assert_eq!(shares(&facts), ["", "", ""], "the release is under way");
    facts.in_flight = None;
    facts.record.requests.insert(RequestKind::Release, done(0));
    assert_eq!(shares(&facts), ["", "", ""], "the answer is from before the release");
    let mutant = Rules { wishes_free_nothing: false, ..Rules::ALL };
    assert_eq!(quota_usage(&facts, &decide(&facts), &mutant).returned.to_string(), "0");
    facts.record.requests.insert(RequestKind::Release, done(-5));
    assert_eq!(shares(&facts), ["", "", "0"], "it is held for good");
    facts.record.granted = indices("");
    assert_eq!(shares(&facts), ["", "", ""], "no release is requested");
}

/// A job that a user holds has no machine: where all room is to go back, its room does, too. Released, it waits for room.
#[test]
fn job_held_by_user_releases_quota_only_when_suspended() {
    let hold = Hold { subcode: Hold::FOR_USER, ..own_hold() };
    let theirs = (job("5.0", JobState::Held(hold)), held(ad(0, "5.0"), Hold::BY_USER, Hold::FOR_USER));
    let mut facts = in_queue(accepted(Phase::Running, &[theirs]), "0");
    let wish = |facts: &mut Facts, wanted| {
        let wished = StoredAction { number: 1, action: RequestedAction::new(wanted, at(-5)), unreported: None };
        facts.record.requested_actions.insert(Index(0), wished);
    };
    wish(&mut facts, JobAction::Hold);
    assert_eq!(shares(&facts), ["", "", ""], "it keeps its quota");
    facts.object.spec = Ok(Spec { queue: 1, suspend: true, ..Spec::default() });
    facts.record.requests.insert(RequestKind::Hold, done(0));
    assert_eq!(shares(&facts), ["", "", ""], "the answer is from before a hold");
    facts.record.requests.insert(RequestKind::Hold, done(-5));
    assert_eq!(shares(&facts), ["", "", "0"]);
    facts.record.granted = indices("");
    facts.object.spec = Ok(Spec { queue: 1, ..Spec::default() });
    assert_eq!(shares(&facts), ["", "", ""]);
    wish(&mut facts, JobAction::Release);
    assert_eq!((shares(&facts), work(&decide(&facts))), (["", "0", ""].map(str::to_owned), None));
    facts.record.granted = indices("0");
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(vec!["5.0".parse().unwrap()])));
}

/// Whoever has found that out: nothing is tried there that would keep room from others until its time limit.
#[test]
fn unresponsive_schedd_gets_no_quota() {
    let mut facts = in_queue(pending(3), "0-2");
    facts.schedd_is_silent = true;
    let waits = decide(&facts);
    assert_eq!((&waits.action, shares(&facts)), (&Action::Nothing, ["", "", "0-2"].map(str::to_owned)));
    assert!(waits.requeue_after.is_some());
    assert_eq!(condition(&waits, ConditionType::Submitted), "False ScheddUnreachable");
    assert_eq!(condition(&waits, ConditionType::QuotaReserved), "False Waiting");
    facts.record.granted = indices("");
    assert_eq!(shares(&facts), ["", "", ""]);
    facts.queue = None;
    assert_eq!(submitted(&decide(&facts)), "0-2", "without a queue it keeps nothing from others");
}

#[test]
fn failed_submission_restarts_queue_age() {
    let mut facts = in_queue(pending(3), "");
    assert_eq!(room_of(&facts).failed_at, None);
    facts.record.requests.insert(RequestKind::Submit, failed(-20, 1));
    assert_eq!(room_of(&facts).failed_at, Some(at(-20)));
    let refusal = Some("no".to_owned());
    add_attempt(
        &mut facts,
        Submission { refusal, absent: true, intent_at: at(-10), dead_since: Some(at(-9)), ..attempt(1, "0-2") },
    );
    assert_eq!(room_of(&facts).failed_at, Some(at(-9)));
}

/// The same facts while the queue gives nothing to anybody; none of it may be used that it gave before.
fn closed(facts: &Facts, waits: Option<QueueWait>) -> Facts {
    let queue = facts.queue.clone().map(|queue| QueueFacts { closed: true, wait: waits, ..queue });
    Facts { queue, ..facts.clone() }
}

#[test]
fn missing_queue_blocks_submission() {
    let open = in_queue(pending(3), "0-1");
    assert_eq!(submitted(&decide(&open)), "0-1");
    let gone = closed(&open, Some(waits(Reason::Misconfigured)));
    let decision = decide(&gone);
    assert_eq!(submitted(&decision), "");
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Queued");
    let told = message(&decision, ConditionType::QuotaReserved);
    assert_eq!(told, "what runs of this HTCJob goes on: because of Misconfigured");
    assert_eq!(shares(&gone), ["", "2", ""], "it keeps its quota");
    let none = closed(&in_queue(pending(3), ""), Some(waits(Reason::Misconfigured)));
    assert_eq!(condition(&decide(&none), ConditionType::QuotaReserved), "False Misconfigured");
    let unknown = closed(&open, None);
    assert!(
        message(&decide(&unknown), ConditionType::Submitted).starts_with("it is not known yet which queue applies")
    );
}

#[test]
fn missing_queue_blocks_release_of_held_jobs() {
    let ours =
        |index, id: &str| (job(id, JobState::Held(own_hold())), held(ad(index, id), Hold::BY_USER, Hold::SUSPENDED));
    let mut facts = in_queue(accepted(Phase::Running, &[ours(0, "5.0"), ours(1, "5.1")]), "0-1");
    let suspended = |facts: &mut Facts, suspend| {
        facts.object.spec = Ok(Spec { queue: 2, suspend, ..Spec::default() });
    };
    suspended(&mut facts, true);
    facts.queue.as_mut().unwrap().drained = true;
    facts.record = decide(&facts).after.unwrap();
    // The queue goes before the jobs have given their room back.
    facts.record.granted = indices("0-1");
    facts.queue.as_mut().unwrap().drained = false;
    suspended(&mut facts, false);
    assert_eq!(work(&decide(&facts)), Some(&Work::Release));
    let gone = decide(&closed(&facts, Some(waits(Reason::Misconfigured))));
    assert_eq!(work(&gone), None);
    assert_eq!(condition(&gone, ConditionType::Suspended), "False Resumed");
    assert!(message(&gone, ConditionType::Suspended).ends_with("Held jobs stay held: no queue has quota for them"));
    // After a restart it is not known yet that the queue drains it.
    let unknown = decide(&closed(&facts, None));
    assert_eq!((work(&unknown), condition(&unknown, ConditionType::Suspended).as_str()), (None, "True Suspended"));
}

/// What is said of it is durable with the queue of which it is said.
#[test]
fn last_queue_is_recorded() {
    let kept = |facts: &Facts, rules: &Rules| {
        let decision = htc_machine::decide::decide(facts, at(0), &Settings::default(), rules).unwrap();
        decision.after.unwrap().row.unwrap().last_queue
    };
    let mut facts = in_queue(pending(3), "");
    assert_eq!(kept(&facts, &Rules { queue_is_kept: false, ..Rules::ALL }), None);
    assert_eq!(kept(&closed(&facts, Some(waits(Reason::Misconfigured))), &Rules::ALL), None, "it was never in it");
    assert_eq!(kept(&facts, &Rules::ALL).as_deref(), Some("batch"));
    facts.record.row.as_mut().unwrap().last_queue = Some("batch".to_owned());
    for other in [closed(&facts, None), Facts { queue: None, ..facts.clone() }] {
        assert_eq!(kept(&other, &Rules::ALL).as_deref(), Some("batch"));
    }
    facts.queue.as_mut().unwrap().queue = "other".to_owned();
    assert_eq!(kept(&facts, &Rules::ALL).as_deref(), Some("other"));
}
