//! The operator is killed at every one of its fail points in turn: before and after every durable write and every external
//! effect. Whatever it was about, everything ends as it was asked for.

pub mod stories;

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use bed::dice::Dice;
use htc_support::failpoint::Point;
use rstest::rstest;
use strum::IntoEnumIterator as _;
use testbed::Version::{self, Sid, Trixie};

use self::stories::{LIVES, Stage, Story};
use crate::pools::managed::{LETS_GO, POINTS};

/// Test beds for each version, which share the lives.
const LANES: usize = 3;
/// Random pairs of points in each lane.
const PAIRS: u64 = 1;

#[test]
fn every_fail_point_has_a_test() {
    let of_pods = crate::kubernetes_backend::POINTS;
    let of_kueue = crate::kueue::POINTS;
    let of_htcpools = POINTS.iter().chain(LETS_GO);
    let lives = LIVES.iter().flat_map(|(_, points)| *points).chain(of_htcpools).chain(of_pods).chain(of_kueue);
    let met: Vec<Point> = lives.copied().collect();
    let forgotten: Vec<Point> = Point::iter().filter(|point| !met.contains(point)).collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn operator_kill_at_each_fail_point_runs_each_job_once(#[case] version: Version, #[values(0, 1, 2)] lane: usize) {
    let stage = Stage::new(version);
    let mut failures = String::new();
    let mut attempt = |what: &str, work: &dyn Fn()| {
        let began = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(work));
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{version}: {what}: {outcome} after {:.1?}", began.elapsed());
        if let Err(panic) = result {
            let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            write!(failures, "\n--- {what}: {}", words.unwrap_or("?")).unwrap();
        }
    };
    let mut play = |title: &str, story: Story, places: &[String], certain: usize| {
        let what = format!("{title}, {story:?}, killed at {}", places.join(", "));
        attempt(&what, &|| stage.play(story, title, places, certain));
    };
    for (number, (story, points)) in LIVES.iter().enumerate().filter(|(number, _)| number % LANES == lane) {
        let places: Vec<String> = points.iter().map(|point| <&str>::from(point).to_owned()).collect();
        play(&format!("life-{number}"), *story, &places, places.len());
    }
    let mut dice = Dice::new(&format!("pairs of points, {version}, lane {lane}"));
    let lives = || LIVES.iter().filter(|(story, _)| *story == Story::Completed);
    // Those behind the first of a life may come only after a death there.
    let firsts: Vec<&Point> = lives().filter_map(|(_, points)| points.first()).collect();
    let all: Vec<&Point> = lives().flat_map(|(_, points)| *points).collect();
    for pair in 0..PAIRS {
        // At which passage: the second may then never come.
        let (first, second) = (*dice.one_of(&firsts), *dice.one_of(&all));
        let places = [<&str>::from(first).to_owned(), format!("{}:{}", <&str>::from(second), pair + 1)];
        play(&format!("pair-{pair}"), Story::Completed, &places, 1);
    }
    attempt("all told, nothing left", &|| stage.assert_all_events_written_and_nothing_left());
    assert!(failures.is_empty(), "{failures}");
}
