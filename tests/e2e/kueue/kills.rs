//! The operator is killed before and after everything that it writes of a Workload.

use bed::{beside, is_true};
use htc_operator::failpoint::Point;
use serde_json::json;
use testbed::Version;

use super::stage::Stage;

/// Those that only lives with Kueue meet.
pub const POINTS: &[Point] =
    &[Point::BeforeWorkloadMade, Point::AfterWorkloadMade, Point::BeforeWorkloadChanged, Point::AfterWorkloadChanged];

pub fn killed_at_every_write(version: Version) {
    let stage = Stage::start(version);
    let bed = &stage.site.bed;
    stage.cluster_queue("pool", 1, &json!({ "preemption": { "withinClusterQueue": "LowerPriority" } }));
    let here = stage.namespace("pool");
    let look = |most: &mut usize| *most = stage.open().max(*most);
    let places = [
        "before-workload-made",
        "after-workload-made",
        "before-grants",
        "after-grants",
        "before-submit-intents",
        "before-workload-changed",
        "after-workload-changed",
        // Once a second one is preferred.
        "after-condor-hold",
        "before-workload-changed",
        "after-workload-changed",
        "after-grants",
    ];
    let places: Vec<String> = places.map(str::to_owned).to_vec();
    let ((), most) = beside(0, look, || {
        bed.dying_at(&places, places.len(), || {
            here.create(&stage.of_class("low", 1, "low"));
            here.wait_running("low", 1);
            stage.wait_says(&here, "low", "PodsReady", "True", "Started");
            here.create(&stage.of_class("high", 1, "high"));
            here.wait_running("high", 1);
            stage.site.finish("high");
            assert!(is_true(&here.wait_ended("high"), "Complete"));
            here.wait_running("low", 1);
            stage.site.finish("low");
            assert!(is_true(&here.wait_ended("low"), "Complete"));
        });
        for name in ["low", "high"] {
            stage.wait_says(&here, name, "Finished", "True", "Succeeded");
            here.delete(name);
        }
    });
    assert_eq!(most, 1, "never more than the quota");
    stage.wait_used("pool", 0);
}
