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
    reason = "a test program; only functions with #[test] count as tests to clippy"
)]

#[path = "model/changes.rs"]
mod changes;
#[path = "model/condor.rs"]
mod condor;
#[path = "model/ledger.rs"]
mod ledger;
#[path = "model/operator.rs"]
mod operator;
#[path = "model/properties.rs"]
mod properties;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/story.rs"]
mod story;
#[path = "model/workers.rs"]
mod workers;
#[path = "model/world.rs"]
mod world;

use htc_operator::machine::Rules;
use stateright::{Checker as _, HasDiscoveries, Model as _};
use steps::{Model, Scene, Trouble};

/// What an exploration has found.
struct Found {
    states: usize,
    depth: usize,
    seconds: f64,
    /// Each broken promise, with the shortest story of how it comes to that.
    stories: Vec<(&'static str, Vec<String>)>,
}

fn explore(model: Model, finish: HasDiscoveries) -> Found {
    let begun = std::time::Instant::now();
    let checker = model.checker().finish_when(finish).spawn_bfs().join();
    let model = checker.model();
    let stories = checker.discoveries().into_iter().map(|(property, path)| {
        let world = path.last_state().clone();
        let mut actions = path.into_actions();
        if let Err(rest) = model.ends_well(&world) {
            actions.extend(rest);
        }
        (property, model.story(&actions))
    });
    Found {
        stories: stories.collect(),
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        seconds: begun.elapsed().as_secs_f64(),
    }
}

fn hold(scene: Scene) {
    let name = scene.name;
    let found = explore(Model::new(scene, Rules::ALL), HasDiscoveries::All);
    eprintln!("{name}: {} states, depth {}, {:.1} s", found.states, found.depth, found.seconds);
    for (property, story) in found.stories {
        eprintln!("  NOT SO: {property}\n{}", story.join("\n"));
    }
}

const ALL_TROUBLES: &[Trouble] = &[
    Trouble::Crash,
    Trouble::SlowSubmitter,
    Trouble::SlowStaging,
    Trouble::DyingSubmitter,
    Trouble::StagingFails,
    Trouble::LimitPasses,
    Trouble::RemovedByHand,
    Trouble::LingeringRemoval,
    Trouble::FailingTool,
    Trouble::LostAnswer,
    Trouble::Silence,
    Trouble::SlowLook,
    Trouble::OtherSchedd,
    Trouble::SlowReconcile,
    Trouble::StaleCache,
    Trouble::LostWrite,
    Trouble::Rotation,
    Trouble::Reset,
    Trouble::LostLedger,
    Trouble::OldLedger,
    Trouble::Suspend,
];

#[test]
fn a0() {
    hold(Scene::new("one object, undisturbed", &[1], 0, &[]));
}
#[test]
fn a1() {
    hold(Scene::new("one object, two jobs, undisturbed", &[2], 0, &[]));
}
#[test]
fn a2() {
    hold(Scene::new("two objects, undisturbed", &[1, 1], 0, &[]));
}
#[test]
fn b_each() {
    for kind in ALL_TROUBLES {
        hold(Scene::new(format!("{kind:?}").leak(), &[1], 1, std::slice::from_ref(kind)));
    }
}
