//! What holds of every decision, whatever the facts: they are generated, well-formed but otherwise of every kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use htc_machine::actions::{JobAction, RequestedAction};
use htc_machine::condition::ConditionType;
use htc_machine::decide::{Action, Decision, Polling};
use htc_machine::facts::{Answer, EarlierAnswer, Facts, Job, JobState, Past, Record};
use htc_machine::phase::Phase;
use htc_machine::request::{ReleasePermit, RemovalScope, SubmitPermit};
use htc_machine::transitions::{TRANSITIONS, find};
use htc_machine::{Attempt, Index, JobId, Request, RequestKey, RequestKind, Rules, Settings, Work, decide};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::decide::design::{ads_of, cannot_come, is_a_job, is_at_rest, may_release, may_submit, missing_twice};
use crate::decide::seed::seed;
use crate::given::at;

/// Three jobs a submission, so that larger objects come in parts; pauses and margins of a few seconds.
fn settings() -> Settings {
    Settings {
        staging: Duration::from_secs(4),
        dead_margin: Duration::from_secs(2),
        late_margin: Duration::from_secs(1),
        output_wait: Duration::from_secs(6),
        birthdate_steady: Duration::from_secs(5),
        submit_max: Duration::from_secs(5),
        backoff_first: Duration::from_secs(2),
        backoff_max: Duration::from_secs(8),
        fetch_every: Duration::from_secs(3),
        keep_output: Duration::from_secs(9),
        eager: Duration::from_secs(3),
        silence: Duration::from_secs(6),
        soon: Duration::from_secs(1),
        jobs_per_attempt: 3,
        namespace_limit: None,
        size_refusal: None,
    }
}

fn phase_of(record: &Record) -> Option<Phase> {
    record.row.as_ref().map(|known| known.phase)
}

fn check(facts: &Facts, decision: &Decision) -> Result<(), TestCaseError> {
    let before = phase_of(&facts.record);
    let after = decision.after.as_ref().and_then(phase_of);

    // A phase never goes back, and the transitions lead from the one to the other.
    if decision.after.is_some() {
        prop_assert!(before.is_none_or(|before| after.unwrap() >= before), "{before:?} to {after:?}");
    }
    let mut at_phase = before;
    let mut gone = false;
    for told in &decision.transitions {
        prop_assert!(
            find(told.from, told.trigger, told.to).is_some(),
            "not in the table: {:?} --{}--> {:?}",
            told.from,
            told.trigger,
            told.to
        );
        prop_assert!(!gone, "{told:?} after the end");
        prop_assert_eq!(told.from, at_phase, "{:?} does not follow", told);
        prop_assert!(!told.reason.is_empty() && !told.detail.is_empty() && !told.reason.contains(' '), "{told:?}");
        at_phase = told.to;
        gone = told.to.is_none();
    }
    if !gone && decision.after.is_some() {
        prop_assert_eq!(at_phase, after);
    }

    // It is completed when all that was asked for has an outcome, and whoever was recorded was asked for.
    if let (Some(record), Ok(spec)) = (&decision.after, &facts.object.spec) {
        prop_assert!(record.jobs.keys().all(|index| spec.asked_for().contains(*index)));
        if after == Some(Phase::Completed) && before < after {
            let given_up = record.row.as_ref().unwrap().given_up;
            let withdrawn = record.requested_actions.withdrawn();
            let asked_for = withdrawn.iter().filter(|index| spec.asked_for().contains(*index)).count();
            prop_assert_eq!(record.jobs.len() + given_up as usize + asked_for, spec.count());
            if given_up > 0 {
                let (queue, _) = ads_of(facts);
                prop_assert!(
                    queue.iter().all(|ad| record.jobs.contains_key(&ad.index) || !spec.asked_for().contains(ad.index))
                );
                prop_assert!(facts.in_flight.as_ref().is_none_or(|request| request.key.kind != RequestKind::Submit));
            }
            prop_assert!(record.jobs.values().all(|job| job.outcome().is_some()));
        }
    }

    // At most one request, and none while one stands.
    match &decision.action {
        Action::Dispatch(Request { key, work, .. }) => {
            prop_assert!(facts.in_flight.is_none(), "{key:?} while {:?} stands", facts.in_flight);
            prop_assert_eq!(&key.uid, &facts.object.uid);
            let last = facts.record.requests.get(&key.kind).map_or(0, |last| last.step);
            prop_assert_eq!(key.step, last + 1);
            check_work(facts, decision, key, work)?;
        }
        Action::Cancel(key) => {
            let stands = facts.in_flight.as_ref().unwrap();
            prop_assert!(&stands.key == key && stands.can_be_cancelled(&Rules::ALL), "{key:?} cancelled, {stands:?}");
        }
        Action::Nothing => {}
    }

    // Jobs: only those that changed differ; an outcome stays, unless HTCondor runs the job again; an id never changes.
    if let Some(record) = &decision.after {
        for (index, job) in &record.jobs {
            let old = facts.record.jobs.get(index);
            prop_assert_eq!(old != Some(job), decision.changed.contains(index), "{}", index);
            if let Some(old) = old {
                prop_assert_eq!((old.id, old.attempt, old.recorded), (job.id, job.attempt, job.recorded));
                prop_assert!(old.fetched == job.fetched && (!old.gone || job.gone));
                prop_assert!(!old.started || job.started);
                if job.gone && !old.gone {
                    check_gone(facts, old)?;
                }
                if old.outcome().is_some() && job.outcome() != old.outcome() {
                    prop_assert!(job.outcome().is_none() && before < Some(Phase::Completed), "{old:?} to {job:?}");
                }
            }
        }
        prop_assert!(facts.record.jobs.keys().all(|index| record.jobs.contains_key(index)));
        prop_assert_eq!(&record.attempts, &facts.record.attempts);
        prop_assert_eq!(&record.requests, &facts.record.requests);
        let kinds: Vec<ConditionType> =
            record.row.as_ref().unwrap().conditions.iter().map(|condition| condition.kind).collect();
        prop_assert!(kinds.is_sorted_by(|a, b| a < b), "{kinds:?}");
        prop_assert!(record.row.as_ref().unwrap().conditions.iter().all(|told| told.since <= at(0)));
    }

    // Something goes on, or wakes it, or it is at rest; and it does not spin.
    let waits =
        facts.in_flight.is_some() || decision.details.polling != Polling::Off || decision.requeue_after.is_some();
    prop_assert!(
        waits || decision.action != Action::Nothing || is_at_rest(facts, decision),
        "nothing would ever wake it"
    );
    prop_assert!(
        decision.requeue_after.is_none_or(|again| again >= Duration::from_secs(1)),
        "it spins: {:?}",
        decision.requeue_after
    );
    Ok(())
}

/// A job has left the queue if history has it, or two answers lack it.
fn check_gone(facts: &Facts, job: &Job) -> Result<(), TestCaseError> {
    let Answer::Known(queue) = &facts.evidence.queue else { panic!("nobody has answered") };
    let (_, history) = ads_of(facts);
    let former = history.iter().any(|ad| ad.id == job.id && ad.attempt == job.attempt);
    let shows =
        |answer: &EarlierAnswer| queue.birthdate == job.birthdate && answer.shown.iter().any(|(id, _)| *id == job.id);
    let missing = missing_twice(queue, Some(job.recorded), shows);
    prop_assert!(former || missing.is_ok(), "{job:?} is gone although {}", missing.unwrap_err());
    Ok(())
}

fn check_removal(facts: &Facts, decision: &Decision, scope: &RemovalScope) -> Result<(), TestCaseError> {
    let recorded: BTreeSet<JobId> = decision.after.as_ref().unwrap().jobs.values().map(|job| job.id).collect();
    match scope {
        RemovalScope::All => prop_assert!(facts.object.deleting),
        RemovalScope::Staging => prop_assert!(!facts.object.deleting),
        RemovalScope::Unfinished => {
            let known = decision.after.as_ref().unwrap().row.as_ref().unwrap();
            prop_assert!(!facts.object.deleting && known.cut_short.is_some() && known.completed.is_none());
        }
        RemovalScope::Requested(ids) => {
            check_wished(facts, decision, ids, |job, wish, _| {
                job.outcome().is_none() && wish == Some(JobAction::Remove)
            })?;
        }
        RemovalScope::Extra(ids) => {
            prop_assert!(!facts.object.deleting && !ids.is_empty());
            let (queue, _) = ads_of(facts);
            for id in ids {
                prop_assert!(queue.iter().any(|ad| ad.id == *id), "{id} is not in the queue");
                let kept = recorded.contains(id) && queue.iter().any(|ad| ad.id == *id && is_a_job(ad));
                prop_assert!(!kept, "{id} is a recorded job");
            }
        }
    }

    Ok(())
}

fn check_work(facts: &Facts, decision: &Decision, key: &RequestKey, work: &Work) -> Result<(), TestCaseError> {
    let of_kind = match work {
        Work::AttachFinalizer => RequestKind::AttachFinalizer,
        Work::Submit(..) => RequestKind::Submit,
        Work::Remove(_) => RequestKind::Remove,
        Work::Hold | Work::HoldJobs(_) => RequestKind::Hold,
        Work::Release | Work::ReleaseJobs(_) => RequestKind::Release,
        Work::Fetch(_) => RequestKind::Fetch,
        Work::Tidy(_) => RequestKind::Tidy,
        Work::ReleaseFinalizer(_) => RequestKind::ReleaseFinalizer,
        Work::DeleteObject => RequestKind::DeleteObject,
    };
    prop_assert_eq!(of_kind, key.kind);
    match work {
        Work::AttachFinalizer => prop_assert!(!facts.object.deleting),
        Work::Submit(indices, permit) => {
            let after = decision.after.as_ref().unwrap();
            prop_assert!(after.row.as_ref().unwrap().cut_short.is_none(), "submitted after it was cut short");
            prop_assert!(!indices.is_empty() && indices.len() <= 3, "{indices}");
            let unwanted = after.requested_actions.held_back().iter().find(|index| indices.contains(*index));
            prop_assert!(unwanted.is_none(), "{unwanted:?} is submitted although a user has held or removed it");
            if let Some(most) = facts.object.spec.as_ref().unwrap().parallelism {
                let open = after.jobs.values().filter(|job| job.outcome().is_none()).count();
                let may_come = |index: &Index| cannot_come(facts, after, *index).is_err();
                let tried = after.in_doubt().without(indices).iter().filter(may_come).count();
                prop_assert!(open + tried + indices.len() <= most as usize, "more than {most} at a time");
            }
            let (queue, history) = ads_of(facts);
            let known = queue.iter().chain(&history).map(|ad| ad.attempt.0);
            let highest = known.chain([facts.record.highest.0, facts.object.published.attempt]).max().unwrap();
            prop_assert_eq!(key.attempt, Attempt(highest + 1));
            for index in indices.iter() {
                let allowed = may_submit(facts, after, index, permit);
                prop_assert!(allowed.is_ok(), "job {index} is submitted although {}", allowed.unwrap_err());
            }
        }
        Work::Remove(scope) => check_removal(facts, decision, scope)?,
        Work::HoldJobs(ids) => check_wished(facts, decision, ids, |job, wish, suspended| {
            let loose = matches!(job.state, JobState::Idle | JobState::Running);
            loose && wish == Some(JobAction::Hold) && !suspended
        })?,
        Work::ReleaseJobs(ids) => check_wished(facts, decision, ids, |job, wish, suspended| {
            let JobState::Held(hold) = &job.state else { return false };
            match wish {
                Some(JobAction::Release) => !suspended,
                None => hold.is_ours() && !suspended,
                Some(JobAction::Hold | JobAction::Remove) => false,
            }
        })?,
        Work::Hold | Work::Release => {
            let after = decision.after.as_ref().unwrap();
            let mut left = after
                .requested_actions
                .iter()
                .filter(|(index, _)| after.jobs.get(index).is_some_and(|job| job.outcome().is_none()));
            prop_assert!(*work == Work::Hold || left.next().is_none());
            let suspend = facts.object.spec.as_ref().unwrap().suspend;
            prop_assert!(!facts.object.deleting && suspend == (*work == Work::Hold));
            let jobs = decision.after.as_ref().unwrap().jobs.values();
            let states: Vec<&JobState> = jobs.map(|job| &job.state).collect();
            let ours = states.iter().any(|state| matches!(state, JobState::Held(hold) if hold.is_ours()));
            let loose = states.iter().any(|state| matches!(state, JobState::Idle | JobState::Running));
            let wanted = if suspend { loose } else { ours };
            prop_assert!(wanted);
        }
        Work::Fetch(indices) => {
            let jobs = &decision.after.as_ref().unwrap().jobs;
            prop_assert!(!facts.object.deleting && !indices.is_empty());
            prop_assert!(indices.iter().all(|index| jobs[&index].has_output()));
        }
        Work::Tidy(indices) => {
            let jobs = &decision.after.as_ref().unwrap().jobs;
            prop_assert!(!facts.object.deleting && !indices.is_empty());
            prop_assert!(indices.iter().all(|index| jobs[&index].fetched && !jobs[&index].gone));
        }
        Work::DeleteObject => {
            let after = decision.after.as_ref().unwrap();
            let ttl = facts.object.spec.as_ref().unwrap().ttl.unwrap();
            let completed = after.row.as_ref().unwrap().completed.unwrap();
            prop_assert!(!facts.object.deleting && completed.plus(ttl) <= at(0));
            prop_assert!(after.jobs.values().all(|job| job.outcome().is_some() && !job.has_output()));
        }
        Work::ReleaseFinalizer(permit) => {
            let after = decision.after.as_ref().unwrap();
            prop_assert!(after.row.as_ref().unwrap().released);
            let allowed = may_release(facts, after, permit);
            prop_assert!(allowed.is_ok(), "released although {}", allowed.unwrap_err());
        }
    }
    Ok(())
}

/// What is asked about these jobs is what users want, and only of jobs that are recorded.
fn check_wished(
    facts: &Facts,
    decision: &Decision,
    ids: &[JobId],
    may: impl Fn(&Job, Option<JobAction>, bool) -> bool,
) -> Result<(), TestCaseError> {
    let after = decision.after.as_ref().unwrap();
    let suspended = facts.object.spec.as_ref().unwrap().suspend;
    prop_assert!(!facts.object.deleting && !ids.is_empty());
    for id in ids {
        let found = after.jobs.iter().find(|(_, job)| job.id == *id);
        let allowed = found.is_some_and(|(index, job)| {
            may(job, after.requested_actions.of(*index).map(RequestedAction::action), suspended)
        });
        prop_assert!(allowed, "{id}");
    }
    Ok(())
}

/// A job that a user removes is withdrawn only if it cannot come any more; a wish is told once; nobody else's is touched.
fn check_wishes(facts: &Facts, decision: &Decision) -> Result<(), TestCaseError> {
    let Some(after) = &decision.after else { return Ok(()) };
    let before = &facts.record.requested_actions;
    for (index, wished) in after.requested_actions.iter() {
        let old = before.iter().find(|(other, _)| *other == index).map(|(_, old)| old);
        prop_assert_eq!(old.map(|old| old.action.action()), Some(wished.action.action()));
        let withdrawn = Some(&RequestedAction::Remove { withdrawn: true });
        if Some(&wished.action) == withdrawn && old.map(|old| &old.action) != withdrawn {
            prop_assert!(!after.jobs.contains_key(&index));
            prop_assert!(facts.in_flight.as_ref().is_none_or(|request| request.key.kind != RequestKind::Submit));
            let known = facts.record.row.as_ref().is_some_and(|known| known.new) && facts.past == Past::Continuous;
            let never_tried = known && !facts.record.attempted.contains(index);
            let cannot = if never_tried { Ok(()) } else { cannot_come(facts, after, index) };
            prop_assert!(cannot.is_ok(), "job {index} is withdrawn although {}", cannot.unwrap_err());
        }
    }
    let mut gone = before.iter().filter(|(index, _)| after.requested_actions.of(*index).is_none());
    prop_assert!(gone.all(|(_, wished)| wished.action.action() == JobAction::Release), "only releases are over");
    Ok(())
}

/// A record as the ledger gives it back after a decision.
fn stored(facts: &Facts, decision: &Decision, after: &Record) -> Record {
    let mut reports = facts.record.reports.clone();
    reports.retain(|id, _| !after.jobs.values().any(|job| job.id == *id && job.outcome().is_some()));
    for id in &decision.details.refuted {
        reports.entry(*id).and_modify(|report| report.ended = None);
    }
    Record { reports, ..after.clone() }
}

/// What jobs say of themselves is a hint: it gives no job an outcome, completes nothing and makes no other request.
fn check_hints(facts: &Facts, decision: &Decision) -> Result<(), TestCaseError> {
    let (Some(after), Some(phase)) = (&decision.after, decision.after.as_ref().and_then(phase_of)) else {
        return Ok(());
    };
    let without = Facts { record: Record { reports: BTreeMap::new(), ..facts.record.clone() }, ..facts.clone() };
    let without = decide(&without, at(0), &settings(), &Rules::ALL).unwrap();
    prop_assert_eq!(&without.action, &decision.action);
    let truth = without.after.as_ref().unwrap();
    prop_assert!(truth.jobs.keys().eq(after.jobs.keys()));
    for (job, truth) in after.jobs.values().zip(truth.jobs.values()) {
        prop_assert_eq!(job.outcome(), truth.outcome());
        prop_assert!(job.state == truth.state || (&truth.state, &job.state) == (&JobState::Idle, &JobState::Running));
        prop_assert!(job.started || !truth.started);
    }
    let moved_on = phase_of(truth) == Some(Phase::Submitted) && phase == Phase::Running;
    prop_assert!(
        phase_of(truth) == Some(phase) || moved_on,
        "{:?} without hints, {phase:?} with them",
        phase_of(truth)
    );
    let counted = after.reports.keys();
    prop_assert!(counted.clone().count() == 0 || !facts.object.may_rerun);
    let open = |id: &JobId| after.jobs.values().any(|job| job.id == *id && job.outcome().is_none());
    prop_assert!(counted.clone().all(open), "{:?} count, but are not open jobs", after.reports);
    Ok(())
}

/// With the same evidence at the same time there is nothing more to say or to change.
pub fn check_fixpoint(facts: &Facts, decision: &Decision) -> Result<(), TestCaseError> {
    let Some(after) = &decision.after else { return Ok(()) };
    let again = Facts { record: stored(facts, decision, after), ..facts.clone() };
    let second = decide(&again, at(0), &settings(), &Rules::ALL).unwrap();
    prop_assert!(second.transitions.is_empty(), "says more: {:#?}", second.transitions);
    prop_assert!(second.changed.is_empty(), "changes more: {:?}", second.changed);
    prop_assert_eq!(second.after.as_ref(), Some(after));
    // A submission is taken back once for new wishes: what is queued afterwards is made without those jobs.
    let once = facts.record.requested_actions.iter().any(|(_, wished)| wished.unreported.is_some())
        && matches!(&decision.action, Action::Cancel(key) if key.kind == RequestKind::Submit);
    prop_assert!(second.action == decision.action || once, "{:?} instead of {:?}", second.action, decision.action);
    prop_assert_eq!(&second.details.polling, &decision.details.polling);
    prop_assert_eq!(second.requeue_after, decision.requeue_after);
    Ok(())
}

fn run(test: impl Fn(&Facts, &Decision) -> Result<(), TestCaseError>) {
    run_over(15_000, |_| {}, test);
}

/// Over all facts, changed in this way.
pub fn run_with(change: impl Fn(&mut Facts), test: impl Fn(&Facts, &Decision) -> Result<(), TestCaseError>) {
    run_over(5_000, change, test);
}

/// Over so many, if `PROPTEST_CASES` does not say how many.
fn run_over(cases: u32, change: impl Fn(&mut Facts), test: impl Fn(&Facts, &Decision) -> Result<(), TestCaseError>) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let result = TestRunner::new(config).run(&seed(), |seed| {
        let mut facts = seed.facts();
        change(&mut facts);
        let decision = decide(&facts, at(0), &settings(), &Rules::ALL).unwrap();
        test(&facts, &decision).map_err(|error| TestCaseError::fail(format!("{error}\n{facts:#?}\n{decision:#?}")))
    });
    if let Err(error) = result {
        // The facts are in the reason; the seed would only say the same in another way.
        let reason = error.to_string();
        panic!("{}", reason.split("minimal failing input").next().unwrap_or(&reason));
    }
}

/// One test for all, because making up the facts takes most of the time. At the end: the facts were rich, they led to every
/// kind of request, every permit and every row of the table.
#[test]
fn every_decision_keeps_the_rules() {
    let seen = Mutex::new(BTreeSet::new());
    run(|facts, decision| {
        check(facts, decision)?;
        check_fixpoint(facts, decision)?;
        check_hints(facts, decision)?;
        check_wishes(facts, decision)?;
        let mut seen = seen.lock().unwrap();
        for told in &decision.transitions {
            seen.insert(format!("{:?} --{}--> {:?}", told.from, told.trigger, told.to));
        }
        let action = match &decision.action {
            Action::Nothing => "nothing".to_owned(),
            Action::Cancel(_) => "cancel".to_owned(),
            Action::Dispatch(Request { work, .. }) => match work {
                Work::Submit(_, SubmitPermit::First(_)) => "submit first".to_owned(),
                Work::Submit(_, SubmitPermit::Again(_)) => "submit again".to_owned(),
                Work::ReleaseFinalizer(ReleasePermit::Gone(_)) => "release, gone".to_owned(),
                Work::ReleaseFinalizer(ReleasePermit::NeverSubmitted(_)) => "release, never submitted".to_owned(),
                Work::ReleaseFinalizer(ReleasePermit::Abandoned(_)) => "release, abandoned".to_owned(),
                Work::Remove(scope) => format!("remove {scope:?}").split('(').next().unwrap_or_default().to_owned(),
                Work::AttachFinalizer => "attach".to_owned(),
                Work::Hold => "hold".to_owned(),
                Work::Release => "release jobs".to_owned(),
                Work::HoldJobs(_) => "hold single jobs".to_owned(),
                Work::ReleaseJobs(_) => "release single jobs".to_owned(),
                Work::Fetch(_) => "fetch".to_owned(),
                Work::Tidy(_) => "tidy".to_owned(),
                Work::DeleteObject => "delete".to_owned(),
            },
        };
        seen.insert(action);
        if decision.after.as_ref().is_some_and(|after| !after.reports.is_empty()) {
            seen.insert("a reported end counts".to_owned());
        }
        let withdrawn = |record: &Record| record.requested_actions.withdrawn().len();
        if decision.after.as_ref().is_some_and(|after| withdrawn(after) > withdrawn(&facts.record)) {
            seen.insert("a job is withdrawn".to_owned());
        }
        if !decision.details.refuted.is_empty() {
            seen.insert("a reported end is refuted".to_owned());
        }
        Ok(())
    });
    let seen = seen.into_inner().unwrap();
    let actions = [
        "nothing",
        "cancel",
        "attach",
        "submit first",
        "submit again",
        "remove All",
        "remove Staging",
        "remove Extra",
        "remove Unfinished",
        "remove Requested",
        "hold single jobs",
        "release single jobs",
        "a job is withdrawn",
        "delete",
        "hold",
        "release jobs",
        "fetch",
        "tidy",
        "release, gone",
        "release, never submitted",
        "release, abandoned",
        "a reported end counts",
        "a reported end is refuted",
    ];
    let rows = TRANSITIONS.iter().map(|row| format!("{:?} --{}--> {:?}", row.from, row.trigger, row.to));
    let missing: Vec<String> =
        actions.iter().map(|action| (*action).to_owned()).chain(rows).filter(|what| !seen.contains(what)).collect();
    // An end of an object whose jobs were all seen without a start needs a lot of luck.
    let rare = ["Some(Submitted) --Succeeded--> Some(Completed)"];
    let missing: Vec<_> = missing.iter().filter(|what| !rare.contains(&what.as_str())).collect();
    assert!(missing.is_empty(), "never seen: {missing:#?}");
}
