//! Workloads of `HTCJob`s that are gone.

use super::rules::{not_held, object_with};
use super::*;
use crate::htcqueue::kueue::controller::is_there;

/// By `kubectl delete --cascade=orphan`.
fn orphaned(object: &mut Value) {
    not_held(object);
    object["metadata"]["ownerReferences"] = json!([]);
    object["metadata"]["annotations"] = json!({ "htc.cern.ch/htcjob": "fit" });
}

/// Only a Workload whose `HTCJob` was released is checked for its finalizer.
#[test]
fn workload_of_a_released_htcjob_loses_its_finalizer() {
    let queues = queues();
    see(&queues, ADMITTED, 1);
    assert_eq!(steps(&queues), [WorkloadStep::RemoveFinalizer]);
    decided(&queues, ["", "", ""]);
    assert!(!steps(&queues).contains(&WorkloadStep::RemoveFinalizer));
    queues.forget(&"u".into());
    assert_eq!(steps(&queues), [WorkloadStep::RemoveFinalizer]);
}

/// Only this operator deletes a Workload that has lost its owner, also once it has finished.
#[test]
fn ownerless_workload_is_deleted_by_its_operator() {
    let queues = queues();
    let sees = |change: OfSeen, version: u64| {
        let seen = KueueWorkload { version, ..seen("!QuotaReserved Finished", change) };
        queues.with(|state| state.kueue.update_workload("u".into(), seen.clone()));
        seen
    };
    sees(not_held, 1);
    assert_eq!(steps(&queues), [], "the garbage collector deletes it");
    let orphan = sees(orphaned, 2);
    assert_eq!(
        (steps(&queues), orphan.owner),
        (vec![WorkloadStep::RemoveFinalizer], Some(("fit".to_owned(), "u".into())))
    );
    sees(
        |object| {
            orphaned(object);
            deleting(object);
        },
        3,
    );
    assert_eq!(steps(&queues), [], "others hold it");
    // As long as the HTCJob exists, the Workload belongs to it.
    sees(orphaned, 4);
    decided(&queues, ["", "", ""]);
    assert!(!steps(&queues).contains(&WorkloadStep::RemoveFinalizer));
    assert_eq!(next_step(&wanted(none), Some(&seen(EVICTED, orphaned))), Some(WorkloadStep::ReleaseQuota));
}

/// Two operators see each other's Workloads: each writes only to its own.
#[test]
fn workload_of_another_operator_is_left_alone() {
    let queues = queues();
    see(&queues, ADMITTED, 1);
    queues.record_foreign(&object());
    assert_eq!(steps(&queues), []);
    queues.retain(&HashSet::from(["u".into()]));
    assert_eq!(steps(&queues), []);
    // Both are gone, and no other operator would remove the finalizer.
    queues.forget(&"u".into());
    assert_eq!(steps(&queues), [WorkloadStep::RemoveFinalizer]);
    queues.record_foreign(&object());
    queues.retain(&HashSet::new());
    assert_eq!(steps(&queues), [WorkloadStep::RemoveFinalizer], "it went while the watch was broken");
    // It becomes this operator's.
    queues.record_foreign(&object());
    decided(&queues, ["", "0-2", ""]);
    assert_eq!(granted(&queues), "0-1");
    queues.forget(&"u".into());
    assert_eq!(steps(&queues), [WorkloadStep::RemoveFinalizer]);
}

#[test]
fn htcjob_exists_until_it_is_released() {
    let with = |deleted: bool, finalizers: &[&str]| {
        let object = object_with(|object| {
            object["metadata"]["finalizers"] = json!(finalizers);
            if deleted {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
        });
        [is_there(&object, &"u".into()), is_there(&object, &"v".into())]
    };
    assert_eq!(with(false, &[]), [true, false]);
    assert_eq!(with(true, &[FINALIZER]), [true, false]);
    assert_eq!((with(true, &[]), with(true, &["other/finalizer"])), ([false; 2], [false; 2]));
}
