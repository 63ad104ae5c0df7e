//! What is seen of Jobs and Pods, and whom it wakes.

use k8s_openapi::api::batch::v1::JobStatus;
use serde_json::{Value, json};

use super::super::CONTROLLER_UID;
use super::*;

fn site() -> Site {
    Site { enabled: true, gpu_resource: String::new(), run_as_user: None, fs_group: None, service_accounts: Vec::new() }
}

/// A Job that says an `HTCJob` of this uid controls it.
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

/// Who forges a Job of it in another namespace takes none of its news away.
#[test]
fn another_namespaces_job_of_the_same_uid_is_none_of_it() {
    for deleted in [false, true] {
        let watched = Watched::new(site());
        watched.job_event(watcher::Event::Apply(forged("its", 1, true)));
        watched.job_event(watcher::Event::Apply(forged("other", 2, true)));
        if deleted {
            watched.job_event(watcher::Event::Delete(forged("other", 3, true)));
        }
        watched.state().woken.clear();
        watched.job_event(watcher::Event::Init);
        watched.job_event(watcher::Event::InitDone);
        let woken: Vec<String> = watched.state().woken.iter().filter_map(|of| of.namespace.clone()).collect();
        assert!(woken.contains(&"its".to_owned()), "its Job is gone, and it is told: {woken:?}");
    }
}

/// A Job without its owner, and a Pod that the Job controller has let go, are not shown as they were before.
#[test]
fn what_is_no_longer_its_is_forgotten() {
    let watched = Watched::new(site());
    let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
    let mut job = forged("n", 1, false);
    watched.job_event(watcher::Event::Apply(job.clone()));
    job.metadata.owner_references = None;
    watched.state().woken.clear();
    watched.job_event(watcher::Event::Apply(job));
    assert!(watched.job(&name, &Uid::from("u")).is_none() && watched.state().woken.len() == 1);

    watched.state().pods_health.listed = true;
    let pods = || match watched.pods("n", &JobUid::from("j"), &[Index(0)]) {
        PodsSeen::Known(pods) => pods.len(),
        PodsSeen::Unknown => panic!("they are known"),
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

/// Whoever may change a Job or a Pod may make it one that cannot be decoded: it is not shown as it was before, and its `HTCJob` looks.
#[test]
fn what_can_no_longer_be_read_is_forgotten_and_told() {
    let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
    for deleted in [false, true] {
        let watched = Watched::new(site());
        let job = forged("n", 1, false);
        watched.job_event(watcher::Event::Apply(job.clone()));
        assert!(watched.job(&name, &Uid::from("u")).is_some());
        watched.state().woken.clear();
        let mut spoiled = serde_json::to_value(&job).unwrap();
        spoiled["spec"]["template"] = json!({ "metadata": { "creationTimestamp": "9999-12-31T23:59:59Z" } });
        let spoiled: Guarded<Job> = serde_json::from_value(spoiled).unwrap();
        assert!(spoiled.0.is_err());
        watched.hear(event(spoiled, deleted), Watched::job_event, State::unreadable_job);
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
        assert!(matches!(pods(), PodsSeen::Known(pods) if pods.len() == 1));
        watched.state().woken.clear();
        pod["status"] = json!({ "startTime": "9999-12-31T23:59:59Z" });
        let spoiled: Guarded<KubernetesPod> = serde_json::from_value(pod).unwrap();
        assert!(spoiled.0.is_err());
        watched.hear(event(spoiled, deleted), Watched::pod_event, State::unreadable_pod);
        assert!(matches!(pods(), PodsSeen::Known(pods) if pods.is_empty()) && watched.state().woken.len() == 1);
    }
}

/// An answer to a change comes before the watch has told of the time before it.
#[test]
fn what_is_seen_of_a_job_does_not_become_older() {
    let watched = Watched::new(site());
    let is_suspended = |watched: &Watched| {
        let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
        watched.job(&name, &Uid::from("u")).unwrap().suspended
    };
    watched.saw(&forged("n", 5, false));
    watched.job_event(watcher::Event::Apply(forged("n", 4, true)));
    assert!(!is_suspended(&watched));
    watched.job_event(watcher::Event::Init);
    watched.job_event(watcher::Event::InitApply(forged("n", 4, true)));
    watched.job_event(watcher::Event::InitDone);
    assert!(!is_suspended(&watched));
    watched.job_event(watcher::Event::Apply(forged("n", 6, true)));
    assert!(is_suspended(&watched));
}

/// A status is the Job controller's word about a spec only if it was written after that.
#[test]
fn a_status_from_after_the_change_is_told_from_one_before_it() {
    let watched = Watched::new(site());
    let job = |version, generation: i64, active: i32| {
        let mut job = forged("n", version, false);
        job.metadata.generation = Some(generation);
        job.status = Some(JobStatus { active: Some(active), ..JobStatus::default() });
        job
    };
    let is_settled = |watched: &Watched| {
        let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
        watched.job(&name, &Uid::from("u")).unwrap().settled
    };
    watched.saw(&job(5, 2, 0));
    assert!(!is_settled(&watched), "nothing is known of before");
    watched.job_event(watcher::Event::Apply(job(6, 2, 4)));
    assert!(is_settled(&watched));
    watched.saw(&job(8, 3, 4));
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
fn only_the_job_that_it_controls_is_seen() {
    let name = ObjectName { namespace: "n".to_owned(), name: "sums-0b5ea2a4".to_owned() };
    let is_seen = |owner: &Value| {
        let watched = Watched::new(site());
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

/// A watch that fails begins a list each time: for how long it has failed is told from the first time on.
#[test]
fn a_list_that_is_begun_is_no_answer() {
    let mut health = Health { listed: true, failing: None };
    assert!(health.broke("first".to_owned()));
    let long_ago = Instant::now().checked_sub(BLIND).unwrap();
    health.failing = Some((long_ago, "first".to_owned()));
    health.heard(&watcher::Event::<Job>::Init);
    assert!(!health.broke("second".to_owned()));
    assert!(health.trouble("Jobs").is_some_and(|told| told.contains("first")));
    health.heard(&watcher::Event::<Job>::InitDone);
    assert_eq!(health.trouble("Jobs"), None);
}
