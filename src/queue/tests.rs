//! Passes over all queues, without an API server and a ledger.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use kube::ResourceExt as _;
use serde_json::json;

use super::admit::{PATIENCE, Terms};
use super::amounts::{Amounts, Resource, ResourceSet};
use super::line::Named;
use super::state::{Asker, Decided, Queueing, Queues};
use super::terms::Demand;
use crate::api::{FINALIZER, HTCQueueSpec, ObjectName, Observed, QUEUE_NAME, Reason};
use crate::ledger::Grant;
use crate::machine::facts::{Queued, Record};
use crate::machine::room::Room;
use crate::machine::{Indices, Timestamp, Uid};
use crate::metrics::Metrics;

fn queues() -> Queues {
    queues_with(Vec::new(), &[])
}

pub(super) fn queues_with(known: Vec<(String, Uid, Record)>, grants: &[Grant]) -> Queues {
    let queues = Queues::new(Queueing::Embedded, Metrics::default(), known, grants);
    queues.with(|state| {
        state.world.listed = Some(Ok(()));
        state.world.namespaces_listed = Some(Ok(()));
        state.world.namespaces = BTreeMap::from([("ns".to_owned(), BTreeMap::new())]);
    });
    queues
}

pub(super) fn set(queues: &Queues, name: &str, spec: serde_json::Value) {
    let spec: HTCQueueSpec = serde_json::from_value(spec).unwrap();
    let named = Named { uid: name.to_owned(), generation: Some(1), terms: Terms::of(&spec), spec, told: None };
    queues.with(|state| state.world.queues.insert(name.to_owned(), named));
}

fn with_quota(queues: &Queues, jobs: u32) {
    set(queues, "q", json!({ "namespaceSelector": {}, "quota": { "jobs": jobs } }));
}

pub(super) fn object(name: &str, label: Option<&str>) -> Observed {
    serde_json::from_value(json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob",
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "finalizers": [FINALIZER], "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": label.map(|label| json!({ QUEUE_NAME: label })),
        },
        "spec": { "script": { "image": "i", "command": "c", "source": "s" }, "queue": 3 },
    }))
    .unwrap()
}

fn indices(text: &str) -> Indices {
    text.parse().unwrap()
}

fn decided(queues: &Queues, object: &Observed, [uses, asks, gives_back]: [&str; 3]) {
    let room = Room {
        uses: indices(uses),
        unknown: false,
        asks: indices(asks),
        gives_back: indices(gives_back),
        keeps_what_it_uses: true,
        failed_at: None,
    };
    decided_room(queues, object, &room);
}

fn decided_room(queues: &Queues, object: &Observed, room: &Room) {
    decided_all(queues, object, room, Some(Demand::one()));
}

fn decided_all(queues: &Queues, object: &Observed, room: &Room, demand: Option<Demand>) {
    let uid = Uid::from(object.uid().unwrap().as_str());
    let name = ObjectName { namespace: "ns".to_owned(), name: object.name_any() };
    let granted = &Indices::default();
    queues.decided(&Decided {
        object,
        uid: &uid,
        name: &name,
        bound: None,
        seen_in: None,
        granted,
        demand,
        room,
        over: false,
        progress: None,
    });
    queues.looked_at(object, false);
}

fn fact(queues: &Queues, object: &Observed) -> Option<Queued> {
    let uid = Uid::from(object.uid().unwrap().as_str());
    queues.fact(&Asker { uid: &uid, namespace: "ns", object, bound: None, seen_in: None, holds: false })
}

fn listed(queues: &Queues, objects: &[&Observed]) {
    let uids: HashSet<Uid> = objects.iter().map(|object| Uid::from(object.uid().unwrap().as_str())).collect();
    queues.listed(&uids);
}

/// What a pass grants: name and jobs.
fn granted(queues: &Queues) -> Vec<(String, String)> {
    let grants = queues.plan().grants;
    grants.iter().map(|grant| (grant.uid.to_string(), grant.indices.to_string())).collect()
}

fn pair(name: &str, jobs: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), jobs.to_owned())]
}

#[test]
fn nothing_is_granted_before_all_of_the_first_list_were_looked_at() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 3);
    decided(&queues, &a, ["", "0-1", ""]);
    assert!(granted(&queues).is_empty(), "it is not known who there is");
    listed(&queues, &[&a, &b]);
    assert!(granted(&queues).is_empty() && !queues.plan().begun);
    // It cannot be looked at: it may have all of its three jobs.
    queues.looked_at(&b, true);
    assert!(granted(&queues).is_empty() && queues.plan().begun);
    decided(&queues, &b, ["0", "", ""]);
    assert_eq!(granted(&queues), [("b".to_owned(), "0".to_owned()), ("a".to_owned(), "0-1".to_owned())]);
}

/// The last HTCJob that was to be looked at is deleted instead.
#[test]
fn who_goes_before_being_looked_at_holds_up_nobody() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 1);
    listed(&queues, &[&a, &b]);
    decided(&queues, &a, ["", "0", ""]);
    assert!(granted(&queues).is_empty());
    let news = || queues.news.notified().now_or_never().is_some();
    news();
    queues.forget(&"b".into());
    assert!(news());
    assert_eq!(granted(&queues), pair("a", "0"));
}

/// It names no amount that is another one a moment later.
#[test]
fn what_is_said_while_one_waits_stays_true() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 3);
    listed(&queues, &[&a, &b]);
    decided(&queues, &a, ["0-2", "", ""]);
    decided(&queues, &b, ["", "0-2", ""]);
    let says = |queues: &Queues| {
        drop(queues.plan());
        fact(queues, &b).unwrap().waits.unwrap().message
    };
    let before = says(&queues);
    with_quota(&queues, 2);
    queues.with(|state| state.placed = None);
    let after = says(&queues);
    assert!(before.contains("3 jobs, has no room") && after.contains("2 jobs, has no room"), "{before}\n{after}");
    // Two of three have ended.
    decided(&queues, &a, ["0-1", "", "2"]);
    queues.with(|state| state.placed = None);
    assert_eq!(says(&queues), after);
}

#[test]
fn what_is_granted_counts_at_once_and_may_be_given_back_meanwhile() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 1);
    listed(&queues, &[]);
    decided(&queues, &a, ["", "0", ""]);
    assert_eq!(granted(&queues), pair("a", "0"));
    decided(&queues, &b, ["", "0", ""]);
    // By a record from before the grant.
    decided(&queues, &a, ["", "0", ""]);
    assert!(granted(&queues).is_empty());
    decided(&queues, &a, ["", "", "0"]);
    assert_eq!(granted(&queues), pair("b", "0"));
    queues.forget(&"b".into());
    decided(&queues, &a, ["", "0", ""]);
    assert_eq!(granted(&queues), pair("a", "0"));
}

/// The watch may show that it is gone before the pass ends that has let it go.
#[test]
fn what_was_let_go_has_nothing() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 1);
    listed(&queues, &[]);
    decided(&queues, &a, ["", "0", ""]);
    assert_eq!(granted(&queues), pair("a", "0"));
    queues.forget(&"a".into());
    queues.looked_at(&a, false);
    decided(&queues, &b, ["", "0", ""]);
    assert_eq!(granted(&queues), pair("b", "0"));
}

/// Nobody is woken twice for the same, and those in no queue learn that one is their default.
#[test]
fn those_are_woken_for_whom_something_changes() {
    let (queues, a) = (queues(), object("a", None));
    listed(&queues, &[]);
    decided(&queues, &a, ["0", "1", ""]);
    assert_eq!(fact(&queues, &a), None);
    assert!(queues.plan().wake.is_empty());
    set(&queues, "default", json!({ "namespaceSelector": {}, "quota": { "jobs": 1 }, "default": true }));
    assert_eq!((queues.plan().wake.len(), queues.plan().wake.len()), (1, 0));
    let told = fact(&queues, &a).unwrap();
    let waits = told.waits.unwrap();
    assert_eq!((told.queue.as_str(), waits.reason, waits.place), ("default", Reason::WaitingForQuota, Some(1)));
    set(&queues, "default", json!({ "namespaceSelector": {}, "stopPolicy": "HoldAndDrain", "default": true }));
    assert_eq!(queues.plan().wake.len(), 1);
    assert!(fact(&queues, &a).unwrap().drained);
    assert!(queues.plan().wake.is_empty());
}

#[test]
fn without_queues_a_label_is_not_ignored() {
    let queues = Queues::new(Queueing::None, Metrics::default(), Vec::new(), &[]);
    assert_eq!(fact(&queues, &object("a", None)), None);
    let told = fact(&queues, &object("a", Some("q"))).unwrap();
    assert_eq!(told.waits.unwrap().reason, Reason::Misconfigured);
}

/// What Pods use beyond their room is counted and not granted: the Job is changed back.
#[test]
fn what_does_not_go_on_counts_and_gets_no_room() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 3);
    listed(&queues, &[]);
    let room = |keeps_what_it_uses| Room { uses: indices("0-1"), keeps_what_it_uses, ..Room::default() };
    decided_room(&queues, &a, &room(false));
    decided(&queues, &b, ["", "0-1", ""]);
    assert_eq!(granted(&queues), pair("b", "0"), "both are in use");
    decided_room(&queues, &a, &room(true));
    assert_eq!(granted(&queues), pair("a", "0-1"));
}

/// Whoever has asked since before it failed is ahead of it.
#[test]
fn what_failed_is_in_line_from_then_on() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    set(&queues, "q", json!({ "namespaceSelector": {}, "quota": { "jobs": 1 }, "queueingStrategy": "StrictFIFO" }));
    listed(&queues, &[&a, &b]);
    let asks = |failed_at| Room { asks: indices("0"), keeps_what_it_uses: true, failed_at, ..Room::default() };
    let later = b.creation_timestamp().map(|time| Timestamp((time.0.as_second() + 1) * 1000));
    decided_room(&queues, &a, &asks(later));
    decided_room(&queues, &b, &asks(None));
    assert_eq!(granted(&queues), pair("b", "0"), "a would be first by its name");
}

/// The queue was stopped and goes on before the HTCJob has looked: that it is stopped again is news.
#[test]
fn who_has_looked_is_woken_again_for_the_same() {
    let (queues, a) = (queues(), object("a", Some("q")));
    let stopped = |policy: &str| {
        set(&queues, "q", json!({ "namespaceSelector": {}, "quota": { "jobs": 5 }, "stopPolicy": policy }));
        queues.plan().wake.len()
    };
    decided(&queues, &a, ["0", "", ""]);
    listed(&queues, &[&a]);
    fact(&queues, &a);
    assert_eq!((stopped("HoldAndDrain"), stopped("HoldAndDrain")), (1, 0));
    with_quota(&queues, 5);
    assert!(!fact(&queues, &a).unwrap().drained);
    assert_eq!(stopped("HoldAndDrain"), 1);
}

/// What it needs is kept with its room: it counts as much after a restart, although its spec cannot be read by then.
#[test]
fn who_cannot_be_read_after_a_restart_uses_what_it_was_given() {
    let (a, b) = (object("a", Some("q")), object("b", Some("q")));
    let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Gpus, 3)]);
    let demand = Demand { each, unknown: ResourceSet::default() };
    let asks = |jobs: &str| Room { asks: indices(jobs), keeps_what_it_uses: true, ..Room::default() };
    let of_gpus = |queues: &Queues| set(queues, "q", json!({ "namespaceSelector": {}, "quota": { "gpus": 8 } }));
    let first = queues();
    of_gpus(&first);
    listed(&first, &[&a]);
    decided_all(&first, &a, &asks("0-1"), Some(demand));
    let grants = first.plan().grants;
    assert_eq!(grants.len(), 1);

    let record = Record { queue: Some("q".to_owned()), granted: indices("0-1"), ..Record::default() };
    let again = queues_with(vec![("ns".to_owned(), "a".into(), record)], &grants);
    of_gpus(&again);
    listed(&again, &[&a, &b]);
    again.looked_at(&a, true);
    decided_all(&again, &b, &asks("0"), Some(demand));
    assert!(granted(&again).is_empty(), "6 of 8 GPUs are in use");
    let unread = Room { uses: indices("0-1"), keeps_what_it_uses: true, ..Room::default() };
    decided_all(&again, &a, &unread, None);
    assert!(granted(&again).is_empty());
    decided(&again, &a, ["", "", "0"]);
    assert_eq!(granted(&again), pair("b", "0"));
}

/// What an older version has granted says nothing of what each job uses: its spec does, before anybody gets anything.
#[test]
fn what_was_granted_before_it_was_kept_counts_with_its_spec() {
    let (a, b) = (object("a", Some("q")), object("b", Some("q")));
    let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Gpus, 3)]);
    let demand = Some(Demand { each, unknown: ResourceSet::default() });
    let record = Record { queue: Some("q".to_owned()), granted: indices("0-1"), ..Record::default() };
    let grant =
        Grant { uid: "a".into(), queue: "q".to_owned(), indices: indices("0-1"), number: 1, each: String::new() };
    let queues = queues_with(vec![("ns".to_owned(), "a".into(), record)], &[grant]);
    set(&queues, "q", json!({ "namespaceSelector": {}, "quota": { "gpus": 8 } }));
    listed(&queues, &[&a, &b]);
    decided_all(&queues, &b, &Room { asks: indices("0"), keeps_what_it_uses: true, ..Room::default() }, demand);
    assert!(granted(&queues).is_empty(), "not before all were looked at");
    decided_all(&queues, &a, &Room { uses: indices("0-1"), keeps_what_it_uses: true, ..Room::default() }, demand);
    assert!(granted(&queues).is_empty(), "6 of 8 GPUs are in use");
    assert_eq!(queues.plan().queues[0].admission.used.get(Resource::Gpus), 6);
}

/// The ledger was lost when some of its jobs were submitted: all may be there, then those that are there count, and what was never
/// tried asks for room like anybody's.
#[test]
fn what_a_lost_ledger_has_submitted_in_part_is_counted_once() {
    for (quota, rest) in [(3, "2"), (2, ""), (1, "")] {
        let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
        with_quota(&queues, quota);
        listed(&queues, &[&a, &b]);
        let unknown = Room { uses: indices("0-2"), unknown: true, keeps_what_it_uses: true, ..Room::default() };
        decided_room(&queues, &a, &unknown);
        decided(&queues, &b, ["", "0-2", ""]);
        assert!(granted(&queues).is_empty(), "all of it may be there");
        decided(&queues, &a, ["0-1", "2", ""]);
        let mut has = Indices::default();
        for (name, jobs) in granted(&queues) {
            assert_eq!(name, "a", "quota {quota}");
            has = Indices::union(&[has, indices(&jobs)]);
        }
        assert_eq!(has, Indices::union(&[indices("0-1"), indices(rest)]), "quota {quota}");
        assert!(granted(&queues).is_empty(), "nothing is granted twice");
        let used = queues.plan().queues[0].admission.used.get(Resource::Jobs);
        assert_eq!(used, has.len() as u64, "quota {quota}");
        // Its first two end: what is free then is given once.
        decided(&queues, &a, ["", if rest.is_empty() { "2" } else { "" }, "0-1"]);
        let given: usize = granted(&queues).iter().map(|(_, jobs)| indices(jobs).len()).sum();
        assert_eq!(given, quota as usize - rest.len(), "quota {quota}");
    }
}

/// Anybody can name a queue: what runs in a namespace that it is not for takes nothing of it.
#[test]
fn a_queue_that_is_not_for_the_namespace_counts_and_grants_nothing() {
    let (queues, a) = (queues(), object("a", Some("q")));
    set(&queues, "q", json!({ "namespaceSelector": { "matchLabels": { "team": "atlas" } }, "quota": { "jobs": 5 } }));
    listed(&queues, &[&a]);
    decided(&queues, &a, ["0-3", "4", ""]);
    assert!(granted(&queues).is_empty());
    assert_eq!(queues.plan().queues[0].admission.used, Amounts::default());
    // What the queue gave before it was for others counts until it has ended.
    queues.with(|state| state.htcjobs.get_mut(&Uid::from("a")).unwrap().bound = Some("q".to_owned()));
    assert_eq!(queues.plan().queues[0].admission.used.get(Resource::Jobs), 4);
}

/// Of another operator's HTCJob, or one that somebody has marked as such, nothing counts that this ledger does not know.
#[test]
fn what_is_not_looked_at_for_another_operator_takes_nothing() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 2);
    listed(&queues, &[&a, &b]);
    queues.left_alone(&a);
    decided(&queues, &b, ["", "0-1", ""]);
    assert_eq!(granted(&queues), pair("b", "0-1"));
    decided(&queues, &a, ["", "0", ""]);
    decided(&queues, &b, ["", "", "0-1"]);
    queues.left_alone(&a);
    assert!(granted(&queues).is_empty(), "it is asked for by somebody else's HTCJob");
}

/// Room is kept for one that was passed too often, but not for ever: what it waits for may never come free.
#[test]
fn room_is_kept_for_an_hour_at_most() {
    let (queues, large, small, held) =
        (queues(), object("large", Some("q")), object("small", Some("q")), object("held", Some("q")));
    set(&queues, "q", json!({ "namespaceSelector": {}, "quota": { "cpus": 4 }, "fairSharing": false }));
    listed(&queues, &[&large, &small, &held]);
    let of = |cpus: u64| Demand {
        each: Amounts::of(&[(Resource::Jobs, 1), (Resource::Cpus, cpus)]),
        unknown: ResourceSet::default(),
    };
    decided(&queues, &held, ["0", "", ""]);
    let asks = Room { asks: indices("0"), keeps_what_it_uses: true, ..Room::default() };
    decided_all(&queues, &large, &asks, Some(of(4)));
    queues.plan();
    let entry = |change: &dyn Fn(&mut super::state::Entry)| {
        queues.with(|state| change(state.htcjobs.get_mut(&Uid::from("large")).unwrap()));
    };
    entry(&|entry| entry.passed = PATIENCE);
    decided(&queues, &small, ["", "0", ""]);
    let again = queues.plan().again.unwrap();
    assert!(granted(&queues).is_empty() && again > Duration::from_secs(3500), "{again:?}");
    entry(&|entry| entry.waited_for = Instant::now().checked_sub(Duration::from_secs(3600)));
    let plan = queues.plan();
    assert!(plan.grants.is_empty() && plan.again == Some(Duration::ZERO));
    assert_eq!(granted(&queues), pair("small", "0"));
    // What asks for nothing any more was passed by nobody.
    entry(&|entry| entry.passed = PATIENCE);
    decided_all(&queues, &large, &Room::default(), Some(of(4)));
    entry(&|entry| assert_eq!(entry.passed, 0));
}
