//! Passes over all queues, without an API server and a ledger.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use htc_api::{FINALIZER, HTCQueueSpec, ObjectName, ObservedHTCJob, QUEUE_NAME_LABEL, Reason};
use htc_ledger::Grant;
use htc_machine::admission::SKIPS_BEFORE_RESERVATION;
use htc_machine::amounts::{Amounts, Resource, ResourceSet};
use htc_machine::facts::{QueueFacts, Record};
use htc_machine::quota_usage::QuotaUsage;
use htc_machine::{Indices, Timestamp, Uid};
use htc_support::forget::Forget as _;
use htc_support::metrics::Metrics;
use kube::ResourceExt as _;
use serde_json::json;

use super::state::{DecidedUsage, QueueQuery, Queueing, Queues};
use crate::htcqueue::assignment::QueueInfo;
use crate::htcqueue::policy::JobResources;
use crate::htcqueue::policy::terms_of;

fn queues() -> Queues {
    queues_with(Vec::new(), &[])
}

fn queues_with(known: Vec<(String, Uid, Record)>, grants: &[Grant]) -> Queues {
    let queues = Queues::new(Queueing::Embedded, Metrics::default(), known, grants);
    queues.with(|state| {
        state.snapshot.listed = Some(Ok(()));
        state.snapshot.namespaces_listed = Some(Ok(()));
        state.snapshot.namespaces = BTreeMap::from([("ns".to_owned(), BTreeMap::new())]);
    });
    queues
}

fn set(queues: &Queues, name: &str, spec: serde_json::Value) {
    let spec: HTCQueueSpec = serde_json::from_value(spec).unwrap();
    let named =
        QueueInfo { uid: name.to_owned(), generation: Some(1), policy: terms_of(&spec), spec, active_condition: None };
    queues.with(|state| state.snapshot.queues.insert(name.to_owned(), named));
}

fn with_quota(queues: &Queues, jobs: u32) {
    set(queues, "q", json!({ "namespaceSelector": {}, "quota": { "jobs": jobs } }));
}

fn object(name: &str, label: Option<&str>) -> ObservedHTCJob {
    serde_json::from_value(json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob",
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "finalizers": [FINALIZER], "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": label.map(|label| json!({ QUEUE_NAME_LABEL: label })),
        },
        "spec": { "script": { "image": "i", "command": "c", "source": "s" }, "queue": 3 },
    }))
    .unwrap()
}

fn indices(text: &str) -> Indices {
    text.parse().unwrap()
}

fn decided(queues: &Queues, object: &ObservedHTCJob, [uses, asks, gives_back]: [&str; 3]) {
    let room = QuotaUsage {
        used: indices(uses),
        usage_unknown: false,
        requested: indices(asks),
        returned: indices(gives_back),
        grandfathered: true,
        failed_at: None,
    };
    decided_room(queues, object, &room);
}

fn decided_room(queues: &Queues, object: &ObservedHTCJob, room: &QuotaUsage) {
    decided_all(queues, object, room, Some(JobResources::one()));
}

fn decided_all(queues: &Queues, object: &ObservedHTCJob, room: &QuotaUsage, demand: Option<JobResources>) {
    let uid = Uid::from(object.uid().unwrap().as_str());
    let name = ObjectName { namespace: "ns".to_owned(), name: object.name_any() };
    let granted = &Indices::default();
    queues.record_decision(&DecidedUsage {
        object,
        uid: &uid,
        name: &name,
        granting_queue: None,
        last_queue: None,
        granted,
        resources: demand,
        usage: room.clone(),
        finished: false,
        progress: None,
        pod: None,
    });
    queues.record_reconciled(object, false);
}

fn fact(queues: &Queues, object: &ObservedHTCJob) -> Option<QueueFacts> {
    let uid = Uid::from(object.uid().unwrap().as_str());
    queues.queue_facts(&QueueQuery {
        uid: &uid,
        namespace: "ns",
        object,
        granting_queue: None,
        last_queue: None,
        has_held_jobs: false,
    })
}

fn listed(queues: &Queues, objects: &[&ObservedHTCJob]) {
    let uids: HashSet<Uid> = objects.iter().map(|object| Uid::from(object.uid().unwrap().as_str())).collect();
    queues.retain(&uids);
}

/// Returns the grants of a pass: name and jobs.
fn granted(queues: &Queues) -> Vec<(String, String)> {
    let grants = queues.plan().grants;
    grants.iter().map(|grant| (grant.uid.to_string(), grant.indices.to_string())).collect()
}

fn pair(name: &str, jobs: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), jobs.to_owned())]
}

#[test]
fn no_quota_is_granted_before_the_initial_list_is_reconciled() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 3);
    decided(&queues, &a, ["", "0-1", ""]);
    assert!(granted(&queues).is_empty(), "it is not known who there is");
    listed(&queues, &[&a, &b]);
    assert!(granted(&queues).is_empty() && !queues.plan().begun);
    // It cannot be reconciled: it may have all of its three jobs.
    queues.record_reconciled(&b, true);
    assert!(granted(&queues).is_empty() && queues.plan().begun);
    decided(&queues, &b, ["0", "", ""]);
    assert_eq!(granted(&queues), [("b".to_owned(), "0".to_owned()), ("a".to_owned(), "0-1".to_owned())]);
}

/// The last HTCJob that was to be reconciled is deleted instead.
#[test]
fn htcjob_deleted_before_its_first_reconcile_blocks_no_other() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 1);
    listed(&queues, &[&a, &b]);
    decided(&queues, &a, ["", "0", ""]);
    assert!(granted(&queues).is_empty());
    let news = || queues.usage_changed.notified().now_or_never().is_some();
    news();
    queues.forget(&"b".into());
    assert!(news());
    assert_eq!(granted(&queues), pair("a", "0"));
}

/// The message contains no amount that differs a moment later.
#[test]
fn wait_message_stays_true_while_usage_changes() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 3);
    listed(&queues, &[&a, &b]);
    decided(&queues, &a, ["0-2", "", ""]);
    decided(&queues, &b, ["", "0-2", ""]);
    let says = |queues: &Queues| {
        drop(queues.plan());
        fact(queues, &b).unwrap().wait.unwrap().message
    };
    let before = says(&queues);
    with_quota(&queues, 2);
    queues.with(|state| state.placed = None);
    let after = says(&queues);
    assert!(
        before.contains("3 jobs, has too little left") && after.contains("2 jobs, has too little left"),
        "{before}\n{after}"
    );
    // Two of three have ended.
    decided(&queues, &a, ["0-1", "", "2"]);
    queues.with(|state| state.placed = None);
    assert_eq!(says(&queues), after);
}

#[test]
fn grant_counts_at_once_and_can_be_released_before_use() {
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

/// The watch may report the deletion before the pass ends that has released the HTCJob.
#[test]
fn released_htcjob_holds_no_quota() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 1);
    listed(&queues, &[]);
    decided(&queues, &a, ["", "0", ""]);
    assert_eq!(granted(&queues), pair("a", "0"));
    queues.forget(&"a".into());
    queues.record_reconciled(&a, false);
    decided(&queues, &b, ["", "0", ""]);
    assert_eq!(granted(&queues), pair("b", "0"));
}

/// No HTCJob is woken twice for the same change. Those in no queue learn of a new default queue.
#[test]
fn only_affected_htcjobs_are_woken() {
    let (queues, a) = (queues(), object("a", None));
    listed(&queues, &[]);
    decided(&queues, &a, ["0", "1", ""]);
    assert_eq!(fact(&queues, &a), None);
    assert!(queues.plan().wake.is_empty());
    set(&queues, "default", json!({ "namespaceSelector": {}, "quota": { "jobs": 1 }, "default": true }));
    assert_eq!((queues.plan().wake.len(), queues.plan().wake.len()), (1, 0));
    let told = fact(&queues, &a).unwrap();
    let waits = told.wait.unwrap();
    assert_eq!((told.queue.as_str(), waits.reason, waits.position), ("default", Reason::WaitingForQuota, Some(1)));
    set(&queues, "default", json!({ "namespaceSelector": {}, "stopPolicy": "HoldAndDrain", "default": true }));
    assert_eq!(queues.plan().wake.len(), 1);
    assert!(fact(&queues, &a).unwrap().drained);
    assert!(queues.plan().wake.is_empty());
}

#[test]
fn queue_label_without_queueing_is_misconfigured() {
    let queues = Queues::new(Queueing::None, Metrics::default(), Vec::new(), &[]);
    assert_eq!(fact(&queues, &object("a", None)), None);
    let told = fact(&queues, &object("a", Some("q"))).unwrap();
    assert_eq!(told.wait.unwrap().reason, Reason::Misconfigured);
}

/// Usage of Pods beyond their grants is counted and not granted: the Job is changed back.
#[test]
fn usage_beyond_grants_counts_but_is_not_granted() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 3);
    listed(&queues, &[]);
    let room = |keeps_what_it_uses| QuotaUsage {
        used: indices("0-1"),
        grandfathered: keeps_what_it_uses,
        ..QuotaUsage::default()
    };
    decided_room(&queues, &a, &room(false));
    decided(&queues, &b, ["", "0-1", ""]);
    assert_eq!(granted(&queues), pair("b", "0"), "both are in use");
    decided_room(&queues, &a, &room(true));
    assert_eq!(granted(&queues), pair("a", "0-1"));
}

/// An HTCJob that has asked since before the failure is ahead of it.
#[test]
fn failure_resets_queue_age() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    set(&queues, "q", json!({ "namespaceSelector": {}, "quota": { "jobs": 1 }, "queueingStrategy": "StrictFIFO" }));
    listed(&queues, &[&a, &b]);
    let asks =
        |failed_at| QuotaUsage { requested: indices("0"), grandfathered: true, failed_at, ..QuotaUsage::default() };
    let later = b.creation_timestamp().map(|time| Timestamp((time.0.as_second() + 1) * 1000));
    decided_room(&queues, &a, &asks(later));
    decided_room(&queues, &b, &asks(None));
    assert_eq!(granted(&queues), pair("b", "0"), "a would be first by its name");
}

/// The queue was stopped and goes on before the HTCJob was reconciled: that it is stopped again is a change.
#[test]
fn repeated_stop_wakes_the_htcjob_again() {
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

/// The requests of its jobs are kept with its grants: they count as much after a restart, although its spec cannot be
/// read by then.
#[test]
fn unreadable_htcjob_uses_its_granted_amounts_after_a_restart() {
    let (a, b) = (object("a", Some("q")), object("b", Some("q")));
    let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Gpus, 3)]);
    let demand = JobResources { per_job: each, unknown: ResourceSet::default() };
    let asks = |jobs: &str| QuotaUsage { requested: indices(jobs), grandfathered: true, ..QuotaUsage::default() };
    let of_gpus = |queues: &Queues| set(queues, "q", json!({ "namespaceSelector": {}, "quota": { "gpus": 8 } }));
    let first = queues();
    of_gpus(&first);
    listed(&first, &[&a]);
    decided_all(&first, &a, &asks("0-1"), Some(demand));
    let grants = first.plan().grants;
    assert_eq!(grants.len(), 1);

    let record = Record { granting_queue: Some("q".to_owned()), granted: indices("0-1"), ..Record::default() };
    let again = queues_with(vec![("ns".to_owned(), "a".into(), record)], &grants);
    of_gpus(&again);
    listed(&again, &[&a, &b]);
    again.record_reconciled(&a, true);
    decided_all(&again, &b, &asks("0"), Some(demand));
    assert!(granted(&again).is_empty(), "6 of 8 GPUs are in use");
    let unread = QuotaUsage { used: indices("0-1"), grandfathered: true, ..QuotaUsage::default() };
    decided_all(&again, &a, &unread, None);
    assert!(granted(&again).is_empty());
    decided(&again, &a, ["", "", "0"]);
    assert_eq!(granted(&again), pair("b", "0"));
}

/// Grants of an older version do not record what each job uses. It is taken from the spec before anything new is
/// granted.
#[test]
fn grants_of_an_older_version_count_with_the_spec() {
    let (a, b) = (object("a", Some("q")), object("b", Some("q")));
    let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Gpus, 3)]);
    let demand = Some(JobResources { per_job: each, unknown: ResourceSet::default() });
    let record = Record { granting_queue: Some("q".to_owned()), granted: indices("0-1"), ..Record::default() };
    let grant =
        Grant { uid: "a".into(), queue: "q".to_owned(), indices: indices("0-1"), number: 1, per_job: String::new() };
    let queues = queues_with(vec![("ns".to_owned(), "a".into(), record)], &[grant]);
    set(&queues, "q", json!({ "namespaceSelector": {}, "quota": { "gpus": 8 } }));
    listed(&queues, &[&a, &b]);
    decided_all(
        &queues,
        &b,
        &QuotaUsage { requested: indices("0"), grandfathered: true, ..QuotaUsage::default() },
        demand,
    );
    assert!(granted(&queues).is_empty(), "not before all were looked at");
    decided_all(
        &queues,
        &a,
        &QuotaUsage { used: indices("0-1"), grandfathered: true, ..QuotaUsage::default() },
        demand,
    );
    assert!(granted(&queues).is_empty(), "6 of 8 GPUs are in use");
    assert_eq!(queues.plan().queues[0].admission.used.get(Resource::Gpus), 6);
}

/// The ledger was lost when some of its jobs were submitted. First all count, as they may exist; then those that
/// exist. Jobs that were never tried request quota like any others.
#[test]
fn jobs_of_a_lost_ledger_are_counted_once() {
    for (quota, rest) in [(3, "2"), (2, ""), (1, "")] {
        let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
        with_quota(&queues, quota);
        listed(&queues, &[&a, &b]);
        let unknown =
            QuotaUsage { used: indices("0-2"), usage_unknown: true, grandfathered: true, ..QuotaUsage::default() };
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
        // Its first two jobs end: their quota is granted once.
        decided(&queues, &a, ["", if rest.is_empty() { "2" } else { "" }, "0-1"]);
        let given: usize = granted(&queues).iter().map(|(_, jobs)| indices(jobs).len()).sum();
        assert_eq!(given, quota as usize - rest.len(), "quota {quota}");
    }
}

/// Anybody can name a queue: jobs in a namespace that the queue does not admit use nothing of it.
#[test]
fn queue_not_for_the_namespace_counts_and_grants_nothing() {
    let (queues, a) = (queues(), object("a", Some("q")));
    set(&queues, "q", json!({ "namespaceSelector": { "matchLabels": { "team": "atlas" } }, "quota": { "jobs": 5 } }));
    listed(&queues, &[&a]);
    decided(&queues, &a, ["0-3", "4", ""]);
    assert!(granted(&queues).is_empty());
    assert_eq!(queues.plan().queues[0].admission.used, Amounts::default());
    // What the queue granted before it was for other namespaces counts until it has ended.
    queues.with(|state| state.htcjobs.get_mut(&Uid::from("a")).unwrap().granting_queue = Some("q".to_owned()));
    assert_eq!(queues.plan().queues[0].admission.used.get(Resource::Jobs), 4);
}

/// For another operator's HTCJob, or one that was marked as such by hand, only what this ledger knows counts.
#[test]
fn htcjob_of_another_operator_takes_no_quota() {
    let (queues, a, b) = (queues(), object("a", Some("q")), object("b", Some("q")));
    with_quota(&queues, 2);
    listed(&queues, &[&a, &b]);
    queues.record_foreign(&a);
    decided(&queues, &b, ["", "0-1", ""]);
    assert_eq!(granted(&queues), pair("b", "0-1"));
    decided(&queues, &a, ["", "0", ""]);
    decided(&queues, &b, ["", "", "0-1"]);
    queues.record_foreign(&a);
    assert!(granted(&queues).is_empty(), "an HTCJob of another operator requests it");
}

/// Quota is reserved for an HTCJob that was skipped too often, but not for ever: what it waits for may never become
/// free.
#[test]
fn reservation_lasts_at_most_an_hour() {
    let (queues, large, small, held) =
        (queues(), object("large", Some("q")), object("small", Some("q")), object("held", Some("q")));
    set(&queues, "q", json!({ "namespaceSelector": {}, "quota": { "cpus": 4 }, "fairSharing": false }));
    listed(&queues, &[&large, &small, &held]);
    let of = |cpus: u64| JobResources {
        per_job: Amounts::of(&[(Resource::Jobs, 1), (Resource::Cpus, cpus)]),
        unknown: ResourceSet::default(),
    };
    decided(&queues, &held, ["0", "", ""]);
    let asks = QuotaUsage { requested: indices("0"), grandfathered: true, ..QuotaUsage::default() };
    decided_all(&queues, &large, &asks, Some(of(4)));
    queues.plan();
    let entry = |change: &dyn Fn(&mut super::state::WorkloadInfo)| {
        queues.with(|state| change(state.htcjobs.get_mut(&Uid::from("large")).unwrap()));
    };
    entry(&|entry| entry.times_skipped = SKIPS_BEFORE_RESERVATION);
    decided(&queues, &small, ["", "0", ""]);
    let again = queues.plan().requeue_after.unwrap();
    assert!(granted(&queues).is_empty() && again > Duration::from_secs(3500), "{again:?}");
    entry(&|entry| entry.reserved_since = Instant::now().checked_sub(Duration::from_secs(3600)));
    let plan = queues.plan();
    assert!(plan.grants.is_empty() && plan.requeue_after == Some(Duration::ZERO));
    assert_eq!(granted(&queues), pair("small", "0"));
    // An HTCJob that requests nothing any more was not skipped.
    entry(&|entry| entry.times_skipped = SKIPS_BEFORE_RESERVATION);
    decided_all(&queues, &large, &QuotaUsage::default(), Some(of(4)));
    entry(&|entry| assert_eq!(entry.times_skipped, 0));
}
