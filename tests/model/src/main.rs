//! The model: the same `judge`, `decide` and worker order as in production, in a world that can go wrong in every way that is
//! known of.
//!
//! `HTC_MODEL=full` explores larger bounds, and says how far it has come (`make model`).
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unused_self,
    clippy::needless_pass_by_value,
    clippy::struct_excessive_bools,
    reason = "a test program; only functions with #[test] count as tests to clippy"
)]

mod bounds;
mod changes;
mod condor;
mod inherited;
mod ledger;
mod operator;
mod pools;
mod properties;
mod queue;
mod reports;
mod shared;
mod state;
mod steps;
mod story;
mod wishes;
mod workers;
mod world;

mod rules;
mod scaling;
mod scenes;

use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use stateright::{Checker as _, HasDiscoveries, Model as _};
use steps::Model;

/// Worlds are copied at every step: a third of the time went into the usual allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Most steps that are looked at; an exploration that ends here says so.
const MOST_STEPS: usize = 12_000_000;
/// How often a long exploration says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// Whether the larger bounds are explored.
fn full() -> bool {
    std::env::var("HTC_MODEL").is_ok_and(|bounds| bounds == "full")
}

/// What an exploration has found.
struct Found {
    states: usize,
    /// Nothing within the bounds was left out.
    complete: bool,
    depth: usize,
    seconds: f64,
    /// Each broken promise, with the shortest story of how it comes to that.
    stories: Vec<(&'static str, Vec<String>)>,
}

/// Explores everything, or up to the first broken promise.
fn explore(model: Model) -> Found {
    let begun = Instant::now();
    let name = model.scene.name;
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(MOST_STEPS).spawn_bfs();
    let mut told = begun;
    while full() && !checker.is_done() {
        std::thread::sleep(Duration::from_millis(100));
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            eprintln!("{name}: {} states so far, {} deep", checker.unique_state_count(), checker.max_depth());
        }
    }
    let checker = checker.join();
    let model = checker.model();
    let mut stories: Vec<(&'static str, Vec<String>)> = checker
        .discoveries()
        .into_iter()
        .map(|(promise, path)| {
            let world = path.last_state().clone();
            let mut actions = path.into_actions();
            if let Err(rest) = model.ends_well(&world).and_then(|()| model.goes_on(&world)) {
                actions.extend(rest);
            }
            (promise, model.story(&actions))
        })
        .collect();
    stories.sort_by_key(|(_, story)| story.len());
    Found {
        stories,
        complete: checker.state_count() < MOST_STEPS,
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        seconds: begun.elapsed().as_secs_f64(),
    }
}
