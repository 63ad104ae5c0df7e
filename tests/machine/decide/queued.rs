//! Objects in a queue: what has room is submitted and released, what has not waits, and what is not needed is given back.

use htc_operator::api::{ConditionType, Reason};
use htc_operator::machine::decide::Action;
use htc_operator::machine::facts::{
    Claim, Exit, Facts, Hold, JobState, Past, QueueWait, Queued, Spec, SpecRefused, Submission, Why,
};
use htc_operator::machine::outcome::Outcome;
use htc_operator::machine::phase::Phase;
use htc_operator::machine::room::{Room, room};
use htc_operator::machine::wishes::{Wanted, Wish, Wished};
use htc_operator::machine::{Decision, Index, Kind, Rules, Settings, Work};

use crate::decide::decision::{condition, decide, message, submits, work};
use crate::given::{
    accepted, ad, add_attempt, at, attempt, done, ended, ended_job, failed, held, history, in_flight, indices, job,
    own_hold, pending, queue, running, running_job, settings, unknown,
};

fn waits(reason: Reason) -> QueueWait {
    QueueWait { reason, message: format!("because of {reason}"), place: Some(4) }
}

fn in_queue(mut facts: Facts, granted: &str) -> Facts {
    facts.queue =
        Some(Queued { queue: "batch".to_owned(), waits: Some(waits(Reason::WaitingForQuota)), ..Queued::default() });
    facts.record.granted = indices(granted);
    facts
}

fn submitted(decision: &Decision) -> String {
    submits(decision).map_or_else(String::new, |(indices, ..)| indices.to_string())
}

fn room_of(facts: &Facts) -> Room {
    room(facts, &decide(facts), &Rules::ALL)
}

/// Uses, asks, gives back.
fn shares(facts: &Facts) -> [String; 3] {
    let Room { uses, asks, gives_back, .. } = room_of(facts);
    [uses, asks, gives_back].map(|set| set.to_string())
}

#[test]
fn nothing_is_submitted_without_room() {
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
fn judging_asks_no_queue() {
    let mut facts = in_queue(pending(3), "");
    add_attempt(&mut facts, attempt(1, "0-1"));
    assert_eq!(condition(&decide(&facts), ConditionType::Submitted), "False Asking");
    (facts.evidence.queue, facts.evidence.history) = (queue(-1, &[]), history(0, &[]));
    let proved = decide(&facts);
    assert_eq!(submitted(&proved), "", "it never was accepted, and has no room to go again");
    assert_eq!(condition(&proved, ConditionType::Submitted), "False Queued");
    facts.record.granted = indices("1");
    assert_eq!(submitted(&decide(&facts)), "1");
    facts.record.granted = indices("0-2");
    assert_eq!(submitted(&decide(&facts)), "2", "what was never tried goes first, as ever");
}

/// A submission that came to nothing has no room while it is not to be made again, and asks for it anew. What was proved once is not
/// asked again: evidence ages.
#[test]
fn what_was_never_accepted_uses_nothing_while_it_waits() {
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
fn ends_give_room_back_and_others_ask() {
    assert_eq!(shares(&in_queue(pending(5), "")), ["", "0-4", ""]);
    assert_eq!(shares(&in_queue(pending(5), "0-1")), ["", "2-4", ""], "what is on its way keeps its room");
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
    facts.record.wishes.insert(Index(2), Wished { number: 1, wish: Wish::new(Wanted::Hold, at(-5)), untold: None });
    assert_eq!(shares(&facts), ["1", "3", "2"]);
    facts.object.deleting = true;
    assert_eq!(shares(&facts), ["1", "", "2"]);
}

#[test]
fn held_jobs_give_room_back_once_they_are_held_for_good() {
    let ours = (job("5.0", JobState::Held(own_hold())), held(ad(0, "5.0"), Hold::BY_USER, Hold::SUSPENDED));
    let mut facts = in_queue(accepted(Phase::Running, &[ours]), "0");
    facts.object.spec = Ok(Spec { queue: 1, suspend: true, ..Spec::default() });
    assert_eq!(shares(&facts), ["", "", "0"]);
    facts.record.requests.insert(Kind::Release, done(0));
    assert_eq!(shares(&facts), ["", "", ""], "the answer is from before a release");
    facts.record.requests.insert(Kind::Release, done(-5));
    assert_eq!(shares(&facts), ["", "", "0"]);
    let eager = Rules { room_until_held: false, ..Rules::ALL };
    facts.record.requests.insert(Kind::Release, done(0));
    assert_eq!(room(&facts, &decide(&facts), &eager).gives_back.to_string(), "0");

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
fn only_those_with_room_are_released() {
    let held_by_us =
        |index, id: &str| (job(id, JobState::Held(own_hold())), held(ad(index, id), Hold::BY_USER, Hold::SUSPENDED));
    let facts = in_queue(accepted(Phase::Running, &[held_by_us(0, "5.0"), held_by_us(1, "5.1")]), "1");
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(vec!["5.1".parse().unwrap()])));
}

/// Until it is known what another ledger's object has, all that it may have counts.
#[test]
fn what_is_not_known_counts_as_used() {
    let mut facts = in_queue(pending(5), "");
    facts.object.claim = Claim::Other;
    facts.past = Past::Unknown { settled: None };
    facts.record.known.as_mut().unwrap().new = false;
    let room = room_of(&facts);
    assert_eq!((room.uses.to_string().as_str(), room.unknown, room.asks.is_empty()), ("0-4", true, true));
}

#[test]
fn one_that_is_drained_says_so_and_one_to_which_no_queue_applies_is_free() {
    let mut facts = in_queue(pending(2), "0");
    facts.queue.as_mut().unwrap().drained = true;
    facts.object.spec = Ok(Spec { queue: 2, suspend: true, ..Spec::default() });
    let drained = decide(&facts);
    assert!(message(&drained, ConditionType::Suspended).starts_with("HTCQueue batch has stopPolicy HoldAndDrain"));
    assert_eq!(shares(&facts), ["", "", "0"]);

    let mut facts = in_queue(pending(2), "");
    facts.queue.as_mut().unwrap().waits = Some(waits(Reason::Misconfigured));
    facts.record = decide(&facts).after.unwrap();
    facts.queue = None;
    let free = decide(&facts);
    assert_eq!(condition(&free, ConditionType::QuotaReserved), "True NoQueue");
    assert_eq!(submitted(&free), "0-1");
}

/// A missing Secret, a silent schedd: nothing was submitted. The room goes at once, and one job asks for it at the next try.
#[test]
fn room_is_given_back_in_the_pause_after_a_failure() {
    let mut facts = in_queue(pending(5), "0-4");
    assert_eq!(shares(&facts), ["", "", ""]);
    facts.record.requests.insert(Kind::Submit, failed(-1, 1));
    assert_eq!(shares(&facts), ["", "", "0-4"]);
    let fails = decide(&facts);
    assert_eq!(condition(&fails, ConditionType::Submitted), "False ScheddUnreachable");
    assert_eq!(condition(&fails, ConditionType::QuotaReserved), "False Waiting");
    assert_eq!((&fails.action, fails.again), (&Action::Nothing, Some(std::time::Duration::from_secs(4))));

    // Without room it says the same, also while it waits for its next try.
    facts.record = fails.after.unwrap();
    facts.record.granted = indices("");
    for seconds in [-1, -5] {
        facts.record.requests.insert(Kind::Submit, failed(seconds, 1));
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
    facts.record.requests.insert(Kind::Submit, failed(-5, 1));
    facts.in_flight = Some(in_flight(&facts, Kind::Submit, true));
    assert_eq!(shares(&facts), ["0", "", ""]);
    // With that accepted, the others ask.
    let mut facts = in_queue(accepted(Phase::Submitted, &[(running_job("5.0"), running(ad(0, "5.0")))]), "0");
    facts.object.spec = Ok(Spec { queue: 5, ..Spec::default() });
    assert_eq!(shares(&facts), ["0", "1-4", ""]);
}

/// What the schedd refuses keeps its room until it is proved that it has not accepted it; then it asks for the next part.
#[test]
fn what_the_schedd_refuses_gives_its_room_back_once_its_absence_is_proved() {
    let refused = |since: i64| {
        let mut facts = in_queue(pending(9), "0-8");
        let refusal = Some("no".to_owned());
        add_attempt(&mut facts, Submission { refusal, intent_at: at(since), ..attempt(1, "0-7") });
        facts.record.refused = 1;
        facts
    };
    let mut facts = refused(-1);
    assert_eq!(shares(&facts), ["0-7", "", "8"], "what was not tried goes at once");
    facts.evidence.queue = unknown(Why::ScheddUnreachable);
    assert_eq!(shares(&facts), ["0-7", "", "8"], "HTCondor may have it");
    (facts.evidence.queue, facts.evidence.history) = (queue(-1, &[]), history(0, &[]));
    assert_eq!(shares(&facts), ["", "", "0-8"]);
    assert_eq!(condition(&decide(&facts), ConditionType::Submitted), "False SubmitRefused");
    assert_eq!(condition(&decide(&facts), ConditionType::QuotaReserved), "False Waiting");

    let mut facts = refused(-10);
    facts.record.attempts[0].absent = true;
    facts.record.granted = indices("");
    assert_eq!(shares(&facts), ["", "0,8", ""], "a quarter of it, and first what was never tried");
    facts.record.attempts[0].indices = indices("0-8");
    facts.record.attempted = indices("0-8");
    assert_eq!(shares(&facts), ["", "0-1", ""]);
    // As long as its absence cannot be proved anew, room would be of no use.
    facts.evidence.queue = unknown(Why::ScheddUnreachable);
    assert_eq!(shares(&facts), ["", "", ""]);
    facts.record.granted = indices("0-1");
    assert_eq!(shares(&facts), ["", "", "0-1"]);
}

/// What the schedd accepts and drops, again and again, is lent room for one job at a time.
#[test]
fn what_the_schedd_drops_asks_for_one_job() {
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
fn a_spec_that_is_refused_keeps_no_room() {
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
fn what_is_asked_for_is_the_least_of_all_limits() {
    let within = |facts: &Facts, most: usize| {
        let settings = Settings { namespace_room: Some(most), ..settings() };
        let decision = htc_operator::machine::decide(facts, at(0), &settings, &Rules::ALL).unwrap();
        let Room { asks, gives_back, .. } = room(facts, &decision, &Rules::ALL);
        ([asks, gives_back].map(|set| set.to_string()), decision)
    };
    assert_eq!(within(&in_queue(pending(5), ""), 2).0, ["0-1", ""]);
    assert_eq!(within(&in_queue(pending(5), "3-4"), 2).0, ["", ""], "what has room already comes first");
    let (shares, full) = within(&in_queue(pending(5), "3-4"), 0);
    assert_eq!(shares, ["", "3-4"]);
    assert_eq!(condition(&full, ConditionType::QuotaReserved), "False Waiting");
    let (shares, full) = within(&in_queue(pending(5), ""), 0);
    assert_eq!(shares, ["", ""]);
    assert!(full.namespace_is_full && full.again.is_some(), "it is woken, and looks again");
    assert_eq!(condition(&full, ConditionType::Submitted), "False NamespaceLimit");
}

/// What is held for `spec.suspend` and cannot be released does not keep the room that it got for that.
#[test]
fn a_release_that_fails_gives_room_back() {
    let ours = (job("5.0", JobState::Held(own_hold())), held(ad(0, "5.0"), Hold::BY_USER, Hold::SUSPENDED));
    let mut facts = in_queue(accepted(Phase::Running, &[ours]), "0");
    facts.record.requests.insert(Kind::Release, failed(0, 1));
    assert_eq!(shares(&facts), ["", "", ""], "it may have been released: the answer is from before");
    facts.record.requests.insert(Kind::Release, failed(-2, 1));
    assert_eq!(shares(&facts), ["", "", "0"]);
    facts.record.granted = indices("");
    assert_eq!((shares(&facts), decide(&facts).again.is_some()), (["", "", ""].map(str::to_owned), true));
    facts.record.requests.insert(Kind::Release, failed(-6, 1));
    assert_eq!(shares(&facts), ["", "0", ""]);
}

/// A job is being released when a user holds it: it may run, and keeps its room until it is known to be held.
#[test]
fn a_wish_to_hold_frees_no_room_while_the_job_is_being_released() {
    let ours = (job("5.0", JobState::Held(own_hold())), held(ad(0, "5.0"), Hold::BY_USER, Hold::SUSPENDED));
    let mut facts = in_queue(accepted(Phase::Running, &[ours]), "0");
    facts.record.wishes.insert(Index(0), Wished { number: 1, wish: Wish::new(Wanted::Hold, at(-1)), untold: None });
    facts.in_flight = Some(in_flight(&facts, Kind::Release, true));
    assert_eq!(shares(&facts), ["", "", ""], "the release is under way");
    facts.in_flight = None;
    facts.record.requests.insert(Kind::Release, done(0));
    assert_eq!(shares(&facts), ["", "", ""], "the answer is from before the release");
    let mutant = Rules { wishes_free_nothing: false, ..Rules::ALL };
    assert_eq!(room(&facts, &decide(&facts), &mutant).gives_back.to_string(), "0");
    facts.record.requests.insert(Kind::Release, done(-5));
    assert_eq!(shares(&facts), ["", "", "0"], "it is held for good");
    facts.record.granted = indices("");
    assert_eq!(shares(&facts), ["", "", ""], "nobody is to release it");
}

/// A job that a user holds has no machine: where all room is to go back, its room does, too. Released, it waits for room.
#[test]
fn what_a_user_holds_gives_room_back_only_where_all_is_suspended() {
    let hold = Hold { subcode: Hold::WISHED, ..own_hold() };
    let theirs = (job("5.0", JobState::Held(hold)), held(ad(0, "5.0"), Hold::BY_USER, Hold::WISHED));
    let mut facts = in_queue(accepted(Phase::Running, &[theirs]), "0");
    let wish = |facts: &mut Facts, wanted| {
        let wished = Wished { number: 1, wish: Wish::new(wanted, at(-5)), untold: None };
        facts.record.wishes.insert(Index(0), wished);
    };
    wish(&mut facts, Wanted::Hold);
    assert_eq!(shares(&facts), ["", "", ""], "it keeps its room");
    facts.object.spec = Ok(Spec { queue: 1, suspend: true, ..Spec::default() });
    facts.record.requests.insert(Kind::Hold, done(0));
    assert_eq!(shares(&facts), ["", "", ""], "the answer is from before a hold");
    facts.record.requests.insert(Kind::Hold, done(-5));
    assert_eq!(shares(&facts), ["", "", "0"]);
    facts.record.granted = indices("");
    facts.object.spec = Ok(Spec { queue: 1, ..Spec::default() });
    assert_eq!(shares(&facts), ["", "", ""]);
    wish(&mut facts, Wanted::Release);
    assert_eq!((shares(&facts), work(&decide(&facts))), (["", "0", ""].map(str::to_owned), None));
    facts.record.granted = indices("0");
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(vec!["5.0".parse().unwrap()])));
}

/// Whoever has found that out: nothing is tried there that would keep room from others until its time limit.
#[test]
fn a_schedd_that_answers_nobody_is_not_tried_with_room() {
    let mut facts = in_queue(pending(3), "0-2");
    facts.schedd_is_silent = true;
    let waits = decide(&facts);
    assert_eq!((&waits.action, shares(&facts)), (&Action::Nothing, ["", "", "0-2"].map(str::to_owned)));
    assert!(waits.again.is_some());
    assert_eq!(condition(&waits, ConditionType::Submitted), "False ScheddUnreachable");
    assert_eq!(condition(&waits, ConditionType::QuotaReserved), "False Waiting");
    facts.record.granted = indices("");
    assert_eq!(shares(&facts), ["", "", ""]);
    facts.queue = None;
    assert_eq!(submitted(&decide(&facts)), "0-2", "without a queue it keeps nothing from others");
}

#[test]
fn what_came_to_nothing_is_in_line_from_then_on() {
    let mut facts = in_queue(pending(3), "");
    assert_eq!(room_of(&facts).failed_at, None);
    facts.record.requests.insert(Kind::Submit, failed(-20, 1));
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
    let queue = facts.queue.clone().map(|queue| Queued { closed: true, waits, ..queue });
    Facts { queue, ..facts.clone() }
}

#[test]
fn without_its_queue_nothing_begins() {
    let open = in_queue(pending(3), "0-1");
    assert_eq!(submitted(&decide(&open)), "0-1");
    let gone = closed(&open, Some(waits(Reason::Misconfigured)));
    let decision = decide(&gone);
    assert_eq!(submitted(&decision), "");
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Queued");
    let told = message(&decision, ConditionType::QuotaReserved);
    assert_eq!(told, "what runs of this HTCJob goes on: because of Misconfigured");
    assert_eq!(shares(&gone), ["", "2", ""], "it keeps what it has");
    let none = closed(&in_queue(pending(3), ""), Some(waits(Reason::Misconfigured)));
    assert_eq!(condition(&decide(&none), ConditionType::QuotaReserved), "False Misconfigured");
    let unknown = closed(&open, None);
    assert!(
        message(&decide(&unknown), ConditionType::Submitted).starts_with("it is not known yet which queue applies")
    );
}

#[test]
fn without_its_queue_what_is_held_stays_held() {
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
    assert!(message(&gone, ConditionType::Suspended).ends_with("What is held stays held: no queue has room for it"));
    // After a restart it is not known yet that the queue drains it.
    let unknown = decide(&closed(&facts, None));
    assert_eq!((work(&unknown), condition(&unknown, ConditionType::Suspended).as_str()), (None, "True Suspended"));
}

/// What is said of it is durable with the queue of which it is said.
#[test]
fn the_queue_that_it_is_in_is_kept() {
    let kept = |facts: &Facts, rules: &Rules| {
        let decision = htc_operator::machine::decide::decide(facts, at(0), &Settings::default(), rules).unwrap();
        decision.after.unwrap().known.unwrap().queue
    };
    let mut facts = in_queue(pending(3), "");
    assert_eq!(kept(&facts, &Rules { queue_is_kept: false, ..Rules::ALL }), None);
    assert_eq!(kept(&closed(&facts, Some(waits(Reason::Misconfigured))), &Rules::ALL), None, "it was never in it");
    assert_eq!(kept(&facts, &Rules::ALL).as_deref(), Some("batch"));
    facts.record.known.as_mut().unwrap().queue = Some("batch".to_owned());
    for other in [closed(&facts, None), Facts { queue: None, ..facts.clone() }] {
        assert_eq!(kept(&other, &Rules::ALL).as_deref(), Some("batch"));
    }
    facts.queue.as_mut().unwrap().queue = "other".to_owned();
    assert_eq!(kept(&facts, &Rules::ALL).as_deref(), Some("other"));
}
