//! What is left of `HTCJob`s that are gone.

use super::rules::{not_held, object_with};
use super::*;
use crate::queue::kueue::keeper::is_there;

/// By `kubectl delete --cascade=orphan`.
fn orphaned(object: &mut Value) {
    not_held(object);
    object["metadata"]["ownerReferences"] = json!([]);
    object["metadata"]["annotations"] = json!({ "htc.cern.ch/htcjob": "fit" });
}

/// The finalizer of a Workload whose `HTCJob` was let go is looked at, and of no other.
#[test]
fn what_is_left_of_an_htcjob_that_is_gone_is_let_go() {
    let queues = queues();
    see(&queues, ADMITTED, 1);
    assert_eq!(steps(&queues), [Step::LetGo]);
    decided(&queues, ["", "", ""]);
    assert!(!steps(&queues).contains(&Step::LetGo));
    queues.forget(&"u".into());
    assert_eq!(steps(&queues), [Step::LetGo]);
}

/// What has lost its owner is deleted by nobody else, also once it has finished.
#[test]
fn what_has_no_owner_any_more_is_left_too() {
    let queues = queues();
    let sees = |change: OfSeen, version: u64| {
        let seen = Seen { version, ..seen("!QuotaReserved Finished", change) };
        queues.with(|state| state.kueue.see("u".into(), seen.clone()));
        seen
    };
    sees(not_held, 1);
    assert_eq!(steps(&queues), [], "the garbage collector deletes it");
    let orphan = sees(orphaned, 2);
    assert_eq!((steps(&queues), orphan.owner), (vec![Step::LetGo], Some(("fit".to_owned(), "u".into()))));
    sees(
        |object| {
            orphaned(object);
            deleting(object);
        },
        3,
    );
    assert_eq!(steps(&queues), [], "others hold it");
    // As long as the HTCJob is there it is its own.
    sees(orphaned, 4);
    decided(&queues, ["", "", ""]);
    assert!(!steps(&queues).contains(&Step::LetGo));
    assert_eq!(next(&wanted(none), Some(&seen(EVICTED, orphaned))), Some(Step::GiveBack));
}

/// Two operators see each other's Workloads: each keeps to its own.
#[test]
fn the_workload_of_another_operators_htcjob_is_left_alone() {
    let queues = queues();
    see(&queues, ADMITTED, 1);
    queues.left_alone(&object());
    assert_eq!(steps(&queues), []);
    queues.listed(&HashSet::from(["u".into()]));
    assert_eq!(steps(&queues), []);
    // Both are gone, and nobody is left to let it go.
    queues.forget(&"u".into());
    assert_eq!(steps(&queues), [Step::LetGo]);
    queues.left_alone(&object());
    queues.listed(&HashSet::new());
    assert_eq!(steps(&queues), [Step::LetGo], "it went while the watch was broken");
    // It becomes this operator's.
    queues.left_alone(&object());
    decided(&queues, ["", "0-2", ""]);
    assert_eq!(granted(&queues), "0-1");
    queues.forget(&"u".into());
    assert_eq!(steps(&queues), [Step::LetGo]);
}

#[test]
fn an_htcjob_is_there_until_it_is_let_go() {
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
