//! The time of a decision grows with the number of jobs, and not with its square.

use std::time::Duration;

use htc_machine::facts::{Ad, Exit, Facts, Job, JobState};
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use rstest::rstest;

use crate::decide::decision::decide;
use crate::given::{accepted, ad, add_attempt, attempt, ended, ended_job, history, idle_job, pending, queue};

const FEW: u32 = 4_000;
const MANY: u32 = 10 * FEW;

fn idle(index: u32) -> (Job, Ad) {
    (idle_job(&format!("5.{index}")), ad(index, &format!("5.{index}")))
}

fn all_idle(jobs: u32) -> Facts {
    accepted(Phase::Submitted, &(0..jobs).map(idle).collect::<Vec<_>>())
}

fn ads(indices: impl Iterator<Item = u32>) -> Vec<Ad> {
    indices.map(|index| idle(index).1).collect()
}

fn none_recorded(jobs: u32) -> Facts {
    let mut facts = pending(jobs);
    for step in 0..jobs / 1000 {
        add_attempt(&mut facts, attempt(step + 1, &format!("{}-{}", step * 1000, step * 1000 + 999)));
    }
    facts.evidence.queue = queue(-1, &ads(0..jobs));
    facts
}

fn every_second_missing(jobs: u32) -> Facts {
    let mut facts = none_recorded(jobs);
    facts.evidence.queue = queue(-2, &ads((0..jobs).step_by(2)));
    facts.evidence.history = history(-1, &[]);
    facts
}

fn all_vanished(jobs: u32) -> Facts {
    let mut facts = all_idle(jobs);
    facts.evidence.queue = queue(-2, &[]);
    facts.evidence.history = history(-1, &[]);
    facts
}

fn all_in_history(jobs: u32) -> Facts {
    let mut facts = all_vanished(jobs);
    let over = ads(0..jobs).into_iter().map(|ad| ended(ad, Exit::Code(3))).collect::<Vec<_>>();
    facts.evidence.history = history(-1, &over);
    facts
}

fn half_in_history(jobs: u32) -> Facts {
    let mut facts = all_vanished(jobs);
    let over = ads((0..jobs).step_by(2)).into_iter().map(|ad| ended(ad, Exit::Code(0))).collect::<Vec<_>>();
    facts.evidence.history = history(-1, &over);
    facts
}

fn all_ended(jobs: u32) -> Facts {
    let over = |index| {
        let (_, ad) = idle(index);
        (ended_job(&format!("5.{index}"), Outcome::Succeeded), ended(ad, Exit::Code(0)))
    };
    accepted(Phase::Completed, &(0..jobs).map(over).collect::<Vec<_>>())
}

fn deleted(jobs: u32) -> Facts {
    let mut facts = all_idle(jobs);
    facts.object.deleting = true;
    facts
}

fn held(jobs: u32) -> Facts {
    let mut facts = all_idle(jobs);
    for job in facts.record.jobs.values_mut() {
        job.state = JobState::Held(crate::given::other_hold());
    }
    facts
}

/// Time that this thread had the processor: the machine may be busy with other things.
fn processor_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

/// The shortest of some.
fn time(facts: &Facts) -> Duration {
    let once = |_| {
        let began = processor_time();
        std::hint::black_box(decide(facts));
        processor_time().saturating_sub(began)
    };
    (0..5).map(once).min().unwrap()
}

#[rstest]
#[case::none_recorded(none_recorded)]
#[case::every_second_missing(every_second_missing)]
#[case::all_idle(all_idle)]
#[case::all_vanished(all_vanished)]
#[case::all_in_history(all_in_history)]
#[case::half_in_history(half_in_history)]
#[case::all_ended(all_ended)]
#[case::held(held)]
#[case::deleted(deleted)]
fn decision_time_is_linear_in_the_number_of_jobs(#[case] facts: fn(u32) -> Facts) {
    let (few, many) = (facts(FEW), facts(MANY));
    let mut seen = Vec::new();
    // On a busy machine a pair says little; what grows with the square is never in proportion.
    let in_proportion = (0..20).any(|_| {
        seen.push((time(&few), time(&many)));
        seen.last().is_some_and(|(few, many)| *many < *few * 40 + Duration::from_millis(20))
    });
    assert!(in_proportion, "times for {FEW} and for {MANY} jobs: {seen:?}");
}
