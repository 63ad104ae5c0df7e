//! What is not read again of attempts that HTCondor has accepted as a whole.

use std::sync::atomic::{AtomicUsize, Ordering};

use htc_machine::facts::{Facts, JobState, Record};
use htc_machine::judge::settled_for_good;
use htc_machine::outcome::Outcome;
use htc_machine::{Attempt, Index, Rules, decide};
use proptest::prelude::*;

use crate::decide::properties::run_with;
use crate::given::{add_attempt, at, attempt, idle_job, indices, pending, settings};

fn settled(facts: &Facts) -> Option<u32> {
    settled_for_good(&facts.record, &Rules::ALL).map(|attempt| attempt.0)
}

#[test]
fn leading_accepted_attempts_but_the_last_are_settled() {
    let mut facts = pending(9);
    let accept = |facts: &mut Facts, index: u32, number| {
        let job = idle_job(&format!("{}.0", index + 1));
        facts.record.jobs.insert(Index(index), htc_machine::facts::Job { attempt: Attempt(number), ..job });
    };
    for (number, of) in [(1, "0-1"), (2, "2"), (3, "3-4"), (4, "5")] {
        add_attempt(&mut facts, attempt(number, of));
    }
    assert_eq!(settled(&facts), None);
    for (index, number) in [(0, 1), (2, 2), (3, 3), (5, 4)] {
        accept(&mut facts, index, number);
    }
    assert_eq!(settled(&facts), None, "a job of the first is missing");
    accept(&mut facts, 1, 1);
    assert_eq!(settled(&facts), Some(1), "a job of the third is missing");
    accept(&mut facts, 4, 2);
    assert_eq!(settled(&facts), Some(1), "another attempt's job says nothing of the third");
    accept(&mut facts, 4, 3);
    assert_eq!(settled(&facts), Some(3));
    let decision = decide(&facts, at(0), &settings(), &Rules::ALL).unwrap();
    assert_eq!(decision.details.settled, Some(Attempt(3)));
}

/// As `ledger::load` leaves it out.
fn without_what_is_settled(record: &Record, settled: Attempt) -> Record {
    let mut less = record.clone();
    less.attempts.retain(|attempt| attempt.attempt > settled);
    less.attempted = less.attempts.iter().flat_map(|attempt| attempt.indices.iter()).collect();
    let needed =
        |attempt: Attempt| attempt > settled || record.jobs.values().any(|job| !job.gone && job.attempt == attempt);
    less.witnesses.retain(|attempt, _| needed(*attempt));
    less
}

/// The first two attempts are of one job each, and accepted; their submitters ended before the next attempt.
fn accept_two(facts: &mut Facts) {
    let Record { attempts, jobs, attempted, .. } = &mut facts.record;
    if attempts.len() < 2 {
        return;
    }
    for (index, attempt) in (0..).zip(attempts.iter_mut().take(2)) {
        attempt.indices = indices(&index.to_string());
        attempt.refusal = None;
        attempt.dead_since = Some(attempt.intent_at);
        let ended = || crate::given::job(&format!("{}.0", 90 + index), JobState::Ended(Outcome::Succeeded));
        let job = jobs.entry(Index(index)).or_insert_with(|| htc_machine::facts::Job { gone: true, ..ended() });
        job.attempt = attempt.attempt;
    }
    *attempted = attempts.iter().flat_map(|attempt| attempt.indices.iter()).collect();
}

/// Whatever else is known: nothing is decided otherwise because it is not read.
#[test]
fn decision_is_the_same_without_settled_attempts() {
    let met = AtomicUsize::new(0);
    run_with(accept_two, |facts, decision| {
        let (Some(settled), Some(after)) = (decision.details.settled, &decision.after) else { return Ok(()) };
        met.fetch_add(1, Ordering::Relaxed);
        let next = |record| {
            let facts = Facts { record, ..facts.clone() };
            decide(&facts, at(0), &settings(), &Rules::ALL).unwrap()
        };
        let (all, less) = (next(after.clone()), next(without_what_is_settled(after, settled)));
        prop_assert_eq!(&less.action, &all.action);
        prop_assert_eq!(&less.details.polling, &all.details.polling);
        prop_assert_eq!(less.requeue_after, all.requeue_after);
        prop_assert_eq!(&less.transitions, &all.transitions);
        let (less, all) = (less.after.unwrap(), all.after.unwrap());
        prop_assert_eq!((less.row, less.jobs), (all.row, all.jobs));
        Ok(())
    });
    assert!(met.into_inner() > 300, "it was hardly ever so");
}
