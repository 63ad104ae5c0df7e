//! Tests of the cache of Jobs and Pods, and of which HTCJobs it wakes.

use htc_submit::pod_spec::PodSecurity;
use k8s_openapi::api::batch::v1::JobStatus;
use serde_json::{Value, json};

use super::super::CONTROLLER_UID;
use super::*;

fn site() -> PodSettings {
    PodSettings {
        enabled: true,
        gpu_resource: String::new(),
        run_as_user: None,
        security: PodSecurity::Restricted,
        fs_group: None,
        service_accounts: Vec::new(),
        metadata: Vec::new(),
        cpu_limits: None,
    }
}

/// A Job with an owner reference to an `HTCJob` of this uid.
fn forged(namespace: &str, version: u32, suspended: bool) -> Job {
    serde_json::from_value(json!({
        "metadata": {
            "name": "sums-0b5ea2a4", "namespace": namespace, "uid": namespace, "resourceVersion": version.to_string(),
            "annotations": { HTCJOB: "sums" },
            "ownerReferences": [{ "apiVersion": "x/v1", "kind": "HTCJob", "name": "sums", "uid": "u", "controller": true }],
        },
        "spec": { "suspend": suspended },
    }))
    .unwrap()
}

/// A forged Job in another namespace must not hide changes of the real one.
#[test]
fn job_of_another_namespace_with_the_same_uid_is_ignored() {
    for deleted in [false, true] {
        let watched = JobCache::new(site());
        watched.job_event(watcher::Event::Apply(forged("its", 1, true)));
        watched.job_event(watcher::Event::Apply(forged("other", 2, true)));
        if deleted {
            watched.job_event(watcher::Event::Delete(forged("other", 3, true)));
        }
        watched.state().woken.clear();
        watched.job_event(watcher::Event::Init);
        watched.job_event(watcher::Event::InitDone);
        let woken: Vec<String> = watched.state().woken.iter().filter_map(|of| of.namespace.clone()).collect();
        assert!(woken.contains(&"its".to_owned()), "its Job is gone, and it is woken: {woken:?}");
    }
}

/// A Job that lost its owner, and a Pod that the Job controller released, must leave the cache.
#[test]
fn released_job_or_pod_leaves_the_cache() {
    let watched = JobCache::new(site());
    let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
    let mut job = forged("n", 1, false);
    watched.job_event(watcher::Event::Apply(job.clone()));
    job.metadata.owner_references = None;
    watched.state().woken.clear();
    watched.job_event(watcher::Event::Apply(job));
    assert!(watched.job(&name, &Uid::from("u")).is_none() && watched.state().woken.len() == 1);

    watched.state().pods_health.listed = true;
    let pods = || match watched.pods("n", &JobUid::from("j"), &[Index(0)]) {
        PodsObservation::Known(pods) => pods.len(),
        PodsObservation::Unknown => panic!("they are known"),
    };
    let pod = |controller: &str, owned: bool| -> KubernetesPod {
        let owner =
            json!({ "apiVersion": "batch/v1", "kind": "Job", "name": name.name, "uid": "j", "controller": true });
        serde_json::from_value(json!({ "metadata": {
            "name": "sums-0", "namespace": "n", "uid": "p",
            "labels": { HTCJOB_UID: "u", CONTROLLER_UID: controller },
            "annotations": { HTCJOB: "sums", "batch.kubernetes.io/job-completion-index": "0" },
            "ownerReferences": if owned { json!([owner]) } else { json!([]) },
        } }))
        .unwrap()
    };
    watched.pod_event(watcher::Event::Apply(pod("another", true)));
    assert_eq!(pods(), 0, "the Job controller does not count it");
    watched.pod_event(watcher::Event::Apply(pod("j", true)));
    assert_eq!(pods(), 1);
    watched.pod_event(watcher::Event::Apply(pod("j", false)));
    assert_eq!(pods(), 0);
}

fn event<K>(object: K, deleted: bool) -> watcher::Event<K> {
    if deleted { watcher::Event::Delete(object) } else { watcher::Event::Apply(object) }
}

/// Users who may change a Job or a Pod may make it undecodable: it must leave the cache, and its `HTCJob` is woken.
#[test]
fn undecodable_job_or_pod_leaves_the_cache_and_wakes_its_htcjob() {
    let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
    for deleted in [false, true] {
        let watched = JobCache::new(site());
        let job = forged("n", 1, false);
        watched.job_event(watcher::Event::Apply(job.clone()));
        assert!(watched.job(&name, &Uid::from("u")).is_some());
        watched.state().woken.clear();
        let mut spoiled = serde_json::to_value(&job).unwrap();
        spoiled["spec"]["template"] = json!({ "metadata": { "creationTimestamp": "9999-12-31T23:59:59Z" } });
        let spoiled: Guarded<Job> = serde_json::from_value(spoiled).unwrap();
        assert!(spoiled.0.is_err());
        watched.apply_event(event(spoiled, deleted), JobCache::job_event, CacheState::unreadable_job);
        assert!(watched.job(&name, &Uid::from("u")).is_none() && watched.state().woken.len() == 1, "{deleted}");

        watched.state().pods_health.listed = true;
        let owner =
            json!({ "apiVersion": "batch/v1", "kind": "Job", "name": name.name, "uid": "j", "controller": true });
        let mut pod = json!({ "metadata": {
            "name": "sums-0", "namespace": "n", "uid": "p", "labels": { HTCJOB_UID: "u", CONTROLLER_UID: "j" },
            "annotations": { HTCJOB: "sums", "batch.kubernetes.io/job-completion-index": "0" },
            "ownerReferences": [owner],
        } });
        watched.pod_event(watcher::Event::Apply(serde_json::from_value(pod.clone()).unwrap()));
        let pods = || watched.pods("n", &JobUid::from("j"), &[Index(0)]);
        assert!(matches!(pods(), PodsObservation::Known(pods) if pods.len() == 1));
        watched.state().woken.clear();
        pod["status"] = json!({ "startTime": "9999-12-31T23:59:59Z" });
        let spoiled: Guarded<KubernetesPod> = serde_json::from_value(pod).unwrap();
        assert!(spoiled.0.is_err());
        watched.apply_event(event(spoiled, deleted), JobCache::pod_event, CacheState::unreadable_pod);
        assert!(matches!(pods(), PodsObservation::Known(pods) if pods.is_empty()) && watched.state().woken.len() == 1);
    }
}

/// The answer to a change arrives before the watch shows an earlier state.
#[test]
fn cached_job_never_becomes_older() {
    let watched = JobCache::new(site());
    let is_suspended = |watched: &JobCache| {
        let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
        watched.job(&name, &Uid::from("u")).unwrap().suspended
    };
    watched.store_answer(&forged("n", 5, false));
    watched.job_event(watcher::Event::Apply(forged("n", 4, true)));
    assert!(!is_suspended(&watched));
    watched.job_event(watcher::Event::Init);
    watched.job_event(watcher::Event::InitApply(forged("n", 4, true)));
    watched.job_event(watcher::Event::InitDone);
    assert!(!is_suspended(&watched));
    watched.job_event(watcher::Event::Apply(forged("n", 6, true)));
    assert!(is_suspended(&watched));
}

/// A status describes a spec only if the Job controller wrote it after the change of the spec.
#[test]
fn job_status_is_settled_only_after_the_spec_change() {
    let watched = JobCache::new(site());
    let job = |version, generation: i64, active: i32| {
        let mut job = forged("n", version, false);
        job.metadata.generation = Some(generation);
        job.status = Some(JobStatus { active: Some(active), ..JobStatus::default() });
        job
    };
    let is_settled = |watched: &JobCache| {
        let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
        watched.job(&name, &Uid::from("u")).unwrap().settled
    };
    watched.store_answer(&job(5, 2, 0));
    assert!(!is_settled(&watched), "nothing is known of before");
    watched.job_event(watcher::Event::Apply(job(6, 2, 4)));
    assert!(is_settled(&watched));
    watched.store_answer(&job(8, 3, 4));
    assert!(!is_settled(&watched), "the spec was changed");
    watched.job_event(watcher::Event::Apply(job(7, 2, 3)));
    assert!(!is_settled(&watched), "from before the change");
    watched.job_event(watcher::Event::Apply(job(9, 3, 4)));
    assert!(!is_settled(&watched), "another change of its metadata");
    watched.job_event(watcher::Event::Init);
    watched.job_event(watcher::Event::InitApply(job(10, 3, 2)));
    watched.job_event(watcher::Event::InitDone);
    assert!(is_settled(&watched));
    watched.job_event(watcher::Event::Apply(job(11, 3, 2)));
    assert!(is_settled(&watched), "it stays so");
}

#[test]
fn only_a_controlled_job_is_observed() {
    let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
    let is_seen = |owner: &Value| {
        let watched = JobCache::new(site());
        let job = json!({ "metadata": {
            "name": name.name, "namespace": name.namespace, "uid": "j", "ownerReferences": [owner] } });
        watched.job_event(watcher::Event::Apply(serde_json::from_value(job).unwrap()));
        watched.job(&name, &Uid::from("u")).is_some()
    };
    let owner = |kind: &str, uid: &str, controller: bool| json!({ "apiVersion": "x/v1", "kind": kind, "name": "sums", "uid": uid, "controller": controller });
    assert!(is_seen(&owner("HTCJob", "u", true)));
    for other in [owner("HTCJob", "v", true), owner("HTCJob", "u", false), owner("CronJob", "u", true)] {
        assert!(!is_seen(&other), "{other}");
    }
}

/// A watch that fails starts a list each time; the duration of the failure counts from the first failure.
#[test]
fn started_list_does_not_end_a_watch_failure() {
    let mut health = WatchHealth { listed: true, failing: None };
    assert!(health.broke("first".to_owned()));
    let long_ago = Instant::now().checked_sub(BLIND).unwrap();
    health.failing = Some((long_ago, "first".to_owned()));
    health.heard(&watcher::Event::<Job>::Init);
    assert!(!health.broke("second".to_owned()));
    assert!(health.trouble("Jobs").is_some_and(|told| told.contains("first")));
    health.heard(&watcher::Event::<Job>::InitDone);
    assert_eq!(health.trouble("Jobs"), None);
}
