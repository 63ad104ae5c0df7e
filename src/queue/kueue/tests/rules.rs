//! Each rule by itself: what must not happen without it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::machine::facts::QueueWait;
use crate::queue::kueue::keeper::{of, pause, wait};
use crate::queue::kueue::plan::missing;
use crate::queue::kueue::{SILENT, Trouble};

fn with_finalizers(finalizers: &[&str]) -> impl FnOnce(&mut Value) + use<> {
    let finalizers = json!(finalizers);
    move |object| object["metadata"]["finalizers"] = finalizers
}

pub(super) fn not_held(object: &mut Value) {
    with_finalizers(&[])(object);
}

fn left_without_finalizer(object: &mut Value) {
    deleting(object);
    not_held(object);
}

fn annotated(object: &mut Value) {
    object["metadata"]["annotations"] = json!({ "htc.cern.ch/suspended": "true" });
}

fn reclaimed(object: &mut Value) {
    object["status"]["reclaimablePods"] = json!([{ "name": "jobs", "count": 2 }]);
}

#[test]
fn a_workload_is_read_as_it_stands() {
    let seen = seen("", |object: &mut Value| {
        object["metadata"]["ownerReferences"] = json!([
            { "apiVersion": "a/v1", "kind": "Other", "name": "other", "uid": "o" },
            { "apiVersion": "a/v1", "kind": "HTCJob", "name": "fit", "uid": "u", "controller": true },
        ]);
        object["metadata"]["finalizers"] = json!(["other/finalizer"]);
        object["spec"].as_object_mut().unwrap().remove("active");
    });
    assert_eq!(seen.owner, Some(("fit".to_owned(), "u".into())));
    assert!(seen.active && !seen.is_held());
}

#[test]
fn an_old_admission_is_none() {
    let assigned = |object: &mut Value| {
        object["status"]["admission"] = json!({ "podSetAssignments": [{ "name": "jobs", "count": 2 }] });
    };
    assert_eq!(seen("!QuotaReserved Admitted", assigned).room(), None);
}

#[rstest]
#[case("QuotaReserved !Admitted !Finished", same, Reason::UnsatisfiedAdmissionChecks, "has quota for it")]
#[case("QuotaReserved !Admitted !Evicted", same, Reason::UnsatisfiedAdmissionChecks, "has quota for it")]
#[case("!QuotaReserved/WaitingForQuota Evicted/Preempted", same, Reason::WaitingForQuota, "words of !QuotaReserved")]
#[case("!QuotaReserved/WaitingForQuota", suspended, Reason::PendingEvaluation, "becomes active once")]
#[case(
    "QuotaReserved Admitted Finished/Failed",
    same,
    Reason::Misconfigured,
    "is Finished (Failed: words of Finished); delete"
)]
// A reason of the operator's own is not Kueue's.
#[case("!QuotaReserved/Queued", same, Reason::PendingEvaluation, "words of !QuotaReserved")]
fn what_was_so_is_not_told(#[case] said: &str, #[case] of_seen: OfSeen, #[case] reason: Reason, #[case] words: &str) {
    let wait = seen(said, of_seen).wait();
    assert!(wait.reason == reason && wait.message.contains(words), "{wait:?}");
}

#[test]
fn kueue_is_silent_only_of_what_is_its_to_judge() {
    assert!(seen("", same).is_silent());
    assert!(!seen("!QuotaReserved", same).is_silent() && !seen("", inactive).is_silent());
    assert!(!seen("", deleting).is_silent());
}

#[rstest]
#[case::gone_but_for_others("!QuotaReserved", left_without_finalizer, |w: &mut Wanted| w.queue = None)]
#[case::let_go_before(ADMITTED, left_without_finalizer, none)]
#[case::finished_by_somebody_else("QuotaReserved Admitted Finished", same, none)]
#[case::finished_and_in_use("QuotaReserved Admitted Finished", same, |w: &mut Wanted| (w.ended, w.in_use) = (Some(false), true))]
#[case::finished_and_let_go("QuotaReserved Admitted Finished", not_held, |w: &mut Wanted| w.ended = Some(false))]
// Who is being deleted wants nothing more of Kueue.
#[case::suspended_and_deleted(ADMITTED, same, |w: &mut Wanted| (w.deleting, w.suspend) = (true, true))]
#[case::deleted_before_it_was_admitted("!QuotaReserved", same, |w: &mut Wanted| (w.deleting, w.accepted, w.count) = (true, true, 2))]
#[case::active_in_spite_of_the_annotation("!QuotaReserved", annotated, none)]
#[case::fewer_but_some_are_over("!QuotaReserved", reclaimed, |w: &mut Wanted| w.count = 2)]
#[case::none_at_a_time("!QuotaReserved", same, |w: &mut Wanted| w.count = 0)]
#[case::what_is_reclaimed_stays_so(ADMITTED, reclaimed, |w: &mut Wanted| w.left = 2)]
fn nothing_is_written(#[case] said: &str, #[case] of_seen: OfSeen, #[case] of_wanted: OfWanted) {
    assert_eq!(next(&wanted(of_wanted), Some(&seen(said, of_seen))), None);
}

#[test]
fn none_is_made_for_no_jobs() {
    assert_eq!(next(&wanted(|wanted| wanted.count = 0), None), None);
}

#[test]
fn a_workload_is_held_and_owned() {
    let made = workload(&wanted(none), None);
    assert_eq!(made["metadata"]["finalizers"], json!(["kueue.x-k8s.io/resource-in-use"]));
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["controller"], &owner["uid"]), (&json!(true), &json!("u")));
    assert!(
        made["spec"].get("priorityClassRef").is_none()
            && made["metadata"]["annotations"].get("htc.cern.ch/suspended").is_none()
    );
}

fn body(step: &Step, seen: &Seen) -> Value {
    patch(step, &wanted(none), seen, &now()).unwrap().1
}

fn told(body: &Value, kind: &str) -> Value {
    let conditions = body["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|told| told["type"] == kind).cloned().unwrap_or_default()
}

#[test]
fn only_what_this_operator_has_suspended_is_marked() {
    let deactivated = body(&Step::Deactivate, &seen(ADMITTED, same));
    assert_eq!(deactivated["spec"]["active"], false);
    assert_eq!(deactivated["metadata"]["annotations"], json!({ "htc.cern.ch/suspended": "true" }));
    let activated = body(&Step::Activate, &seen("!QuotaReserved", suspended));
    assert_eq!(activated["spec"]["active"], true);
    assert_eq!(activated["metadata"]["annotations"], json!({ "htc.cern.ch/suspended": null }));
}

#[test]
fn what_is_deactivated_is_not_put_in_line_again() {
    let given_back = body(&Step::GiveBack, &seen("QuotaReserved Admitted !Evicted/Preempted", inactive));
    let requeued = told(&given_back, "Requeued");
    assert_eq!((&requeued["status"], &requeued["reason"]), (&json!("False"), &json!("Deactivated")));
    assert!(told(&given_back, "PodsReady").is_null(), "it never was");
    let timeout = body(&Step::GiveBack, &seen("QuotaReserved Admitted Evicted/PodsReadyTimeout", same));
    assert_eq!(told(&timeout, "Requeued")["status"], "False", "Kueue does that when its time has come");
}

#[test]
fn progress_says_what_is_new_and_nothing_else() {
    let seen = seen(ADMITTED, same);
    let reclaim = body(&Step::Progress { reclaim: Some(2), ready: false }, &seen);
    assert_eq!(reclaim["status"], json!({ "reclaimablePods": [{ "name": "jobs", "count": 2 }] }));
    let ready = body(&Step::Progress { reclaim: None, ready: true }, &seen);
    assert!(ready["status"].get("reclaimablePods").is_none() && told(&ready, "PodsReady")["status"] == "True");
}

#[test]
fn it_finishes_as_the_htcjob_does() {
    for (failed, reason) in [(true, "Failed"), (false, "Succeeded")] {
        let finished = body(&Step::Finish { failed }, &seen(ADMITTED, same));
        assert_eq!(told(&finished, "Finished")["reason"], reason);
        assert_eq!(told(&finished, "Admitted")["status"], "True", "the others stay");
    }
}

#[test]
fn only_the_own_finalizer_is_taken_off() {
    let seen = seen(ADMITTED, with_finalizers(&["other/one", "kueue.x-k8s.io/resource-in-use", "other/two"]));
    assert_eq!(body(&Step::LetGo, &seen)["metadata"]["finalizers"], json!(["other/one", "other/two"]));
}

#[test]
fn a_condition_has_the_time_of_its_last_change() {
    let (before, now) = ("2026-01-01T00:00:00Z", "1970-01-01T00:00:00Z");
    let ready = Step::Progress { reclaim: None, ready: true };
    for (said, since) in [("QuotaReserved PodsReady", before), ("QuotaReserved !PodsReady", now)] {
        let body = body(&ready, &seen(said, same));
        assert_eq!(told(&body, "PodsReady")["lastTransitionTime"], since, "{said}");
        let all = body["status"]["conditions"].as_array().unwrap();
        assert_eq!(all.iter().filter(|told| told["type"] == "PodsReady").count(), 1);
    }
}

#[test]
fn the_api_server_takes_what_is_told() {
    let mut seen = seen(EVICTED, same);
    seen.conditions.iter_mut().for_each(|told| told.message = "ö".repeat(3000));
    assert_eq!(told(&body(&Step::GiveBack, &seen), "Requeued")["message"].as_str().unwrap().chars().count(), 1024);
}

pub(super) fn object_with(change: impl FnOnce(&mut Value)) -> Observed {
    let mut object = serde_json::to_value(object().0.unwrap()).unwrap();
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

/// After a decision about this object, which has nothing and asks for all three.
fn decided_as(queues: &Queues, object: &Observed, progress: Progress, over: bool) {
    let asks = "0-2".parse().unwrap();
    let room = Room { asks, keeps_what_it_uses: true, ..Room::default() };
    decided_with(queues, object, &room, progress, over);
}

fn decided_with(queues: &Queues, object: &Observed, room: &Room, progress: Progress, over: bool) {
    let uid = Uid::from(object.uid().unwrap().as_str());
    queues.decided(&Decided {
        object,
        uid: &uid,
        name: &ObjectName { namespace: "ns".to_owned(), name: object.name_any() },
        seen_in: None,
        bound: None,
        granted: &Indices::default(),
        demand: Some(Demand::one()),
        room,
        over,
        progress: Some(progress),
    });
}

/// What is to be written, without that it counts as begun.
fn wants(queues: &Queues) -> Option<Wanted> {
    let writes = queues.kueue_writes();
    queues.with(|state| state.kueue.writing.clear());
    writes.now.into_iter().find_map(|write| match write.what {
        What::Step(_, wanted, _) => Some(*wanted),
        What::Orphan(_) => None,
    })
}

#[test]
fn a_workload_says_what_the_htcjob_does() {
    let queues = queues();
    let object = object_with(|object| {
        object["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high".into();
    });
    let told = Progress { at_a_time: 2, suspend: true, accepted: true, ..progress() };
    decided_as(&queues, &object, told.clone(), false);
    let wanted = wants(&queues).unwrap();
    assert_eq!((wanted.count, wanted.left, wanted.class.as_deref()), (2, 3, Some("high")));
    assert!(wanted.suspend && wanted.accepted && !wanted.deleting && wanted.ended.is_none() && !wanted.bound);
    assert_eq!(wanted.unknown, ResourceSet::of(&[Resource::Memory]));
    // What is known of Pods stands in their spec.
    decided_as(&queues, &object, Progress { pod: Some(json!({})), ..told.clone() }, false);
    let wanted = wants(&queues).unwrap();
    assert!(wanted.unknown == ResourceSet::default() && wanted.pod == Some(json!({})));
    decided_as(&queues, &object, Progress { deleting: true, ..told.clone() }, false);
    assert_eq!(wants(&queues), None, "none is made for it");
    decided_as(&queues, &object, Progress { ended: Some(true), ..told }, false);
    see(&queues, ADMITTED, 1);
    assert_eq!(steps(&queues), [Step::Finish { failed: true }]);
}

/// With `parallelism: 0` nothing can use the quota. It is asked for again once something can.
#[test]
fn without_jobs_at_a_time_quota_is_given_back() {
    let queues = queues();
    let at_a_time = |at_a_time| {
        decided_as(&queues, &object(), Progress { at_a_time, accepted: true, ..progress() }, false);
    };
    at_a_time(0);
    see(&queues, ADMITTED, 1);
    assert_eq!(steps(&queues), [Step::Deactivate]);
    at_a_time(3);
    assert_ne!(steps(&queues), [Step::Deactivate]);
}

/// An HTCJob stays in the queue that gave it room.
#[test]
fn the_queue_that_gave_room_counts_before_the_label() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    see(&queues, ADMITTED, 1);
    assert_eq!(granted(&queues), "0-1");
    let moved = object_with(|object| object["metadata"]["labels"][QUEUE_NAME] = "other".into());
    decided_as(&queues, &moved, Progress { accepted: true, ..progress() }, false);
    let wanted = wants(&queues).unwrap();
    assert_eq!((wanted.queue.as_deref(), wanted.bound), (Some("q"), true));
    let uid = Uid::from("u");
    let asker = Asker { uid: &uid, namespace: "ns", object: &moved, bound: Some("q"), seen_in: None, holds: false };
    assert_eq!(queues.fact(&asker).unwrap().queue, "q");
}

#[test]
fn what_is_missing_is_asked_for_only_if_it_is_requested() {
    let memory = ResourceSet::of(&[Resource::Memory]);
    assert_eq!(missing(memory, &[Resource::Jobs]), None);
    assert!(missing(memory, &[Resource::Memory]).unwrap().contains("spec.resources.memory"));
    assert_eq!(missing(ResourceSet::default(), &[Resource::Memory]), None);
}

fn trouble(seconds: u64) -> Trouble {
    let wait = QueueWait { reason: Reason::PendingEvaluation, message: "no answer".to_owned(), place: None };
    Trouble { wait, failures: 1, until: Instant::now() + Duration::from_secs(seconds) }
}

#[test]
fn what_is_written_is_not_written_twice() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    assert_eq!(queues.kueue_writes().now.len(), 1);
    assert!(queues.kueue_writes().now.is_empty(), "that is under way");
    // It is not there.
    queues.written(("ns", &"u".into()), None, None);
    assert_eq!(queues.kueue_writes().now.len(), 1);
    queues.written(("ns", &"u".into()), Some(seen(ADMITTED, same)), None);
    assert_eq!(granted(&queues), "0-1");
    queues.written(("ns", &"u".into()), None, None);
    assert_eq!(steps(&queues), [Step::Create], "what was seen is gone");
}

#[test]
fn what_has_failed_is_told_and_waits_for_its_time() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    let other = object_with(|object| object["metadata"]["uid"] = "v".into());
    decided_as(&queues, &other, progress(), false);
    let (first, second) = (trouble(10), trouble(60));
    for (uid, trouble) in [("u", first.clone()), ("v", second)] {
        queues.written(("ns", &uid.into()), None, Some(trouble));
    }
    let writes = queues.kueue_writes();
    assert!(writes.now.is_empty() && writes.again == Some(first.until), "the first of them");
    assert_eq!(fact(&queues, false).waits, Some(first.wait.clone()));
    see(&queues, "", 1);
    assert_eq!(fact(&queues, false).waits, Some(first.wait), "Kueue is silent");
    queues.written(("ns", &"u".into()), None, None);
    assert_eq!((steps(&queues), fact(&queues, false).waits), (vec![Step::Create], None));
}

#[test]
fn what_is_held_stays_so_while_no_workload_is_seen() {
    let queues = queues();
    decided(&queues, ["", "", ""]);
    assert!(fact(&queues, true).drained && !fact(&queues, false).drained);
}

#[test]
fn kueue_has_some_time_to_say_something() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    see(&queues, "", 1);
    assert_eq!((fact(&queues, false).waits, queues.plan().again), (None, Some(SILENT)));
    queues.with(|state| {
        let known = state.kueue.workloads.get_mut(&owner("u")).unwrap();
        known.since = Instant::now().checked_sub(SILENT + SILENT).unwrap();
    });
    assert!(fact(&queues, false).waits.unwrap().message.contains("Kueue has said nothing"));
    assert_eq!(queues.plan().again, None);
    // Another Workload has a time of its own.
    let mut another = seen("", same);
    (another.uid, another.version) = ("other".to_owned(), 9);
    queues.with(|state| state.kueue.see("u".into(), another));
    assert_eq!(fact(&queues, false).waits, None);
}

/// Whoever makes a Workload of that name gets no job admitted by it.
#[test]
fn the_workload_of_somebody_else_gives_no_room() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    let foreign = seen(ADMITTED, |object| object["metadata"]["ownerReferences"][0]["uid"] = "v".into());
    queues.with(|state| state.kueue.see("u".into(), foreign));
    assert!(granted(&queues).is_empty() && steps(&queues).is_empty());
    assert!(fact(&queues, false).waits.unwrap().message.contains("belongs to another object"));
}

#[test]
fn what_a_user_has_suspended_is_not_drained() {
    let queues = queues();
    decided(&queues, ["0", "", ""]);
    see(&queues, EVICTED, 1);
    let suspended = object_with(|object| object["spec"]["suspend"] = true.into());
    let uid = Uid::from("u");
    let drained = |object| {
        queues
            .fact(&Asker { uid: &uid, namespace: "ns", object, bound: None, seen_in: None, holds: true })
            .unwrap()
            .drained
    };
    let plain = object();
    assert!(drained(&plain) && !drained(&suspended));
}

#[test]
fn nothing_is_news_to_who_is_over() {
    let queues = queues();
    decided_as(&queues, &object(), progress(), true);
    see(&queues, ADMITTED, 1);
    assert!(queues.plan().wake.is_empty());
    decided_as(&queues, &object(), Progress { left: 2, ..progress() }, false);
    assert_eq!(queues.plan().wake.len(), 1);
}

/// What runs and was not granted, as the ledger was lost, counts first.
#[test]
fn what_is_found_is_granted() {
    let queues = queues();
    decided(&queues, ["0-1", "2", ""]);
    assert_eq!(granted(&queues), "0-1");
}

#[test]
fn nothing_is_written_before_all_is_known() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    queues.with(|state| state.kueue.listed = None);
    assert!(steps(&queues).is_empty());
    // Whose Workload that is, is not known before all HTCJobs are listed.
    let queues = Queues::with_kueue(Queueing::Kueue, &[Resource::Jobs], Metrics::default(), Vec::new(), &[]);
    queues.with(|state| state.kueue.listed = Some(Ok(())));
    see(&queues, ADMITTED, 1);
    assert!(steps(&queues).is_empty());
    queues.listed(&HashSet::new());
    assert_eq!(steps(&queues), [Step::LetGo]);
}

#[test]
fn what_is_not_held_needs_no_letting_go() {
    let queues = queues();
    queues.with(|state| state.kueue.see("u".into(), seen(ADMITTED, not_held)));
    assert!(steps(&queues).is_empty());
}

fn owner(uid: &str) -> (Arc<str>, Uid) {
    ("ns".into(), uid.into())
}

/// A Workload of the same name in another namespace is somebody else's, whatever it says of its owner.
#[test]
fn a_workload_elsewhere_gives_no_room_and_takes_none() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    let elsewhere = |version: u64| Seen { version, namespace: "other".to_owned(), ..seen(ADMITTED, same) };
    queues.with(|state| state.kueue.see("u".into(), elsewhere(9)));
    assert!(granted(&queues).is_empty());
    assert_eq!(steps(&queues), [Step::Create]);
    queues.written(("ns", &"u".into()), Some(seen(ADMITTED, same)), None);
    queues.with(|state| state.kueue.gone(&("other".into(), "u".into()), 10));
    assert_eq!(granted(&queues), "0-1");
}

fn known(queues: &Queues) -> Vec<String> {
    let mut known: Vec<String> =
        queues.with(|state| state.kueue.workloads.keys().map(|(_, uid)| uid.to_string()).collect());
    known.sort_unstable();
    known
}

#[test]
fn what_is_seen_late_changes_nothing() {
    let queues = queues();
    let at = |version: u64| Seen { version, ..seen(ADMITTED, same) };
    let see = |uid: &str, version: u64| queues.with(|state| state.kueue.see(uid.into(), at(version)));
    assert!(see("a", 5) && !see("a", 5) && !see("a", 4) && see("a", 6));
    assert!(!queues.with(|state| state.kueue.gone(&owner("a"), 5)), "that was an older one");
    assert!(queues.with(|state| state.kueue.gone(&owner("a"), 6)));
    // Made while they were listed: it is not in the list.
    for (uid, version) in [("old", 3), ("there", 8), ("new", 2)] {
        see(uid, version);
    }
    let before = ["old", "there"].map(owner).into();
    queues.with(|state| {
        state.kueue.listed = None;
        state.kueue.list([("there".into(), at(8)), ("other".into(), at(10))], &before);
    });
    assert_eq!(known(&queues), ["new", "other", "there"]);
    assert_eq!(queues.with(|state| state.kueue.listed.clone()), Some(Ok(())));
    // All were deleted while nothing was watched.
    let before = ["new", "other", "there"].map(owner).into();
    queues.with(|state| state.kueue.list([], &before));
    assert!(known(&queues).is_empty());
}

#[test]
fn workloads_of_other_names_are_none() {
    let read = |name: &str, label: Option<&str>, count: Value| {
        let labels = label.map(|uid| json!({ "kueue.x-k8s.io/job-uid": uid }));
        let object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": { "name": name, "namespace": "ns", "uid": "w", "resourceVersion": "7", "labels": labels },
            "spec": { "podSets": [{ "count": count }] },
        });
        of(&serde_json::from_value(object).unwrap()).map(|(uid, _)| uid.to_string())
    };
    // Labels can be taken off, and then its eviction must still be seen.
    for label in [Some("u"), Some("v"), None] {
        assert_eq!(read("htcjob-u", label, json!(1)).as_deref(), Some("u"));
    }
    for (name, count) in [("u", json!(1)), ("htcjob-", json!(1)), ("htcjob-u", json!("many"))] {
        assert_eq!(read(name, Some("u"), count), None, "{name}");
    }
}

#[test]
fn pauses_grow_to_half_a_minute() {
    let seconds = [1, 2, 3, 4, 5, 99].map(|failures| pause(failures).as_secs());
    assert_eq!(seconds, [2, 4, 8, 16, 30, 30]);
}

#[test]
fn what_the_api_server_refuses_is_told_with_the_next_step() {
    let told = |code| wait("make a Workload", "no", code);
    for (code, reason, words) in [
        (Some(403), Reason::Misconfigured, "deploy/components/kueue"),
        (Some(404), Reason::Misconfigured, "is Kueue installed?"),
        (Some(422), Reason::Misconfigured, "cannot make a Workload: no"),
        (Some(500), Reason::PendingEvaluation, "does Kueue run?"),
        (None, Reason::PendingEvaluation, "does Kueue run?"),
    ] {
        let told = told(code);
        assert!(told.reason == reason && told.message.contains(words), "{told:?}");
        assert!(told.message.starts_with("cannot make a Workload: no"), "{told:?}");
    }
}

/// An HTCJob whose Secret is missing: the quota that it was admitted with goes to others until it is tried again.
#[test]
fn what_cannot_use_its_quota_gives_it_back_until_its_next_try() {
    let queues = queues();
    let decided = |room: [&str; 3], idle| {
        let [uses, asks, gives_back] = room.map(|text| text.parse::<Indices>().unwrap());
        let room = Room { uses, asks, gives_back, keeps_what_it_uses: true, ..Room::default() };
        decided_with(&queues, &object(), &room, Progress { idle, ..progress() }, false);
    };
    decided(["", "0-2", ""], false);
    see(&queues, ADMITTED, 1);
    assert_eq!(granted(&queues), "0-1");
    assert!(steps(&queues).is_empty());
    // It may have been accepted.
    decided(["0-1", "", ""], true);
    assert!(steps(&queues).is_empty());
    decided(["", "", "0-1"], true);
    assert_eq!(steps(&queues), [Step::Deactivate]);
    let is = |said, version| {
        let mut seen = seen(said, suspended);
        seen.version = version;
        queues.with(|state| state.kueue.see("u".into(), seen));
    };
    is("QuotaReserved Admitted Evicted/Deactivated", 2);
    assert_eq!(steps(&queues), [Step::GiveBack]);
    is("!QuotaReserved !Admitted", 3);
    assert!(steps(&queues).is_empty() && granted(&queues).is_empty(), "it waits for its next try");
    decided(["", "0", ""], false);
    assert_eq!(steps(&queues), [Step::Activate]);
}
