use htc_api::ObjectName;
use htc_machine::facts::QueryErrorKind;
use htc_machine::scaling::{ScalePlan, scale};
use htcondor::startds::{Startd, StartdId};
use serde_json::json;

use super::*;

const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> String {
    jiff::Timestamp::from_second(NOW + seconds).unwrap().to_string()
}

fn pod(number: u32, phase: &str, state: &serde_json::Value) -> Arc<KubePod> {
    let pod = json!({
        "metadata": {
            "name": format!("p-worker-{number}"), "uid": format!("u-{number}"),
            "creationTimestamp": at(-1000), "annotations": { TEMPLATE_ANNOTATION: "t" },
        },
        "spec": { "containers": [{ "name": "condor", "image": "i" }] },
        "status": {
            "phase": phase,
            "containerStatuses": [{
                "name": "condor", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": state,
            }],
        },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn image(name: &str) -> WorkerGroup {
    WorkerGroup::Shared(SharedGroup { image: name.to_owned(), namespace: None, volumes: String::new() })
}

fn one(replicas: u32) -> BTreeMap<WorkerGroup, DesiredGroup> {
    let wanted = DesiredGroup { goal: Goal::Replicas(replicas), template: Some("t".to_owned()), kind: None };
    BTreeMap::from([(image("i"), wanted)])
}

fn see(memory: &WorkerObservations, pod: &Arc<KubePod>, now: i64) -> WorkerEvidence {
    memory.evidence(&[Arc::clone(pod)], &names(), &one(1), now).remove(&image("i")).unwrap()
}

fn names() -> PoolNames {
    PoolNames::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "uid").unwrap()
}

fn startds(age: i64, startds: &[(&str, bool, bool)]) -> Startds {
    let who = |id: &str| {
        let number = id.strip_prefix("u-").unwrap().parse().unwrap_or_default();
        StartdId { id: id.to_owned(), name: names().startd(&names().worker(number)) }
    };
    let of = |(id, busy, draining): &(&str, bool, bool)| {
        (who(id), Startd { busy: *busy, draining: *draining, payloads: None })
    };
    Startds { collector_age: age, startds: startds.iter().map(of).collect() }
}

fn ended(lived: i64, code: i32) -> serde_json::Value {
    json!({ "terminated": { "exitCode": code, "startedAt": at(-lived), "finishedAt": at(0) } })
}

#[test]
fn answer_quality_depends_on_the_age_of_the_collector() {
    let mut memory = WorkerObservations::default();
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
    let see = |memory: &WorkerObservations, now| see(memory, &running, now);
    assert_eq!(see(&memory, NOW).answer, AnswerQuality::Unknown);
    memory.record_answer(Ok(startds(39, &[])), NOW);
    assert_eq!(see(&memory, NOW).answer, AnswerQuality::Young);
    memory.record_answer(Ok(startds(40, &[("u-0", false, false)])), NOW);
    assert_eq!(see(&memory, NOW).answer, AnswerQuality::Known);
    assert_eq!(see(&memory, NOW).workers[0].slot_state, SlotState::Idle { since: NOW });
    assert_eq!(see(&memory, NOW + GOOD_FOR + 1).answer, AnswerQuality::Unknown);
    memory.record_answer(Ok(startds(60, &[("u-0", false, false)])), NOW + 20);
    assert_eq!(see(&memory, NOW + 20).workers[0].slot_state, SlotState::Idle { since: NOW });
    memory.record_answer(Ok(startds(80, &[("u-0", true, false)])), NOW + 40);
    assert_eq!(see(&memory, NOW + 40).workers[0].slot_state, SlotState::Busy);
    memory.record_answer(Ok(startds(99, &[("u-0", false, false)])), NOW + 60);
    assert_eq!(see(&memory, NOW + 60).workers[0].slot_state, SlotState::Idle { since: NOW + 60 });
    memory.record_answer(Err(QueryError { kind: QueryErrorKind::Incomplete, message: "m".to_owned() }), NOW + 61);
    assert_eq!(see(&memory, NOW + 61).answer, AnswerQuality::Unknown);
}

#[test]
fn startd_of_an_earlier_pod_is_ignored() {
    let mut memory = WorkerObservations::default();
    memory.record_answer(Ok(startds(500, &[("u-of-the-former", true, true)])), NOW);
    let new = pod(0, "Running", &json!({ "running": { "startedAt": at(0) } }));
    assert_eq!(see(&memory, &new, NOW).workers[0].slot_state, SlotState::Unseen);
}

#[test]
fn only_early_exits_are_counted() {
    let mut memory = WorkerObservations::default();
    let mut after = |state: &serde_json::Value, number: u32| {
        memory.count_early_exits(&[pod(number, "Failed", state)], NOW);
        memory.deaths.get(&image("i")).map_or(0, |deaths| deaths.count)
    };
    assert_eq!(after(&ended(5, 1), 0), 1);
    assert_eq!(after(&ended(5, 1), 0), 1, "it is counted once");
    assert_eq!(after(&ended(5, 44), 1), 2);
    assert_eq!(after(&ended(5, IN_ORDER), 2), 2);
    assert_eq!(after(&ended(TOO_SOON, 1), 3), 2);
    let mut running_for = |seconds: i64, named: &[(&str, bool, bool)]| {
        let running = pod(4, "Running", &json!({ "running": { "startedAt": at(-seconds) } }));
        memory.record_answer(Ok(startds(500, named)), NOW);
        memory.count_early_exits(&[Arc::clone(&running)], NOW);
        memory.update_absences(&[running], &names(), NOW);
        memory.deaths.len()
    };
    let joined = [("u-4", false, false)];
    assert_eq!(
        [running_for(TOO_SOON - 1, &joined), running_for(TOO_SOON, &[]), running_for(TOO_SOON, &joined)],
        [1, 1, 0]
    );
}

/// Evaluates a running worker after an answer so many seconds after [`NOW`]. Returns the decision.
fn look(memory: &mut WorkerObservations, after: i64, answer: Startds) -> (ScalePlan, u32) {
    let running = [runs(0)];
    memory.count_early_exits(&running, NOW + after);
    memory.record_answer(Ok(answer), NOW + after);
    memory.update_absences(&running, &names(), NOW + after);
    let groups = memory.evidence(&running, &names(), &one(1), NOW + after);
    (scale(&groups[&image("i")]), memory.deaths.get(&image("i")).map_or(0, |deaths| deaths.count))
}

#[test]
fn unjoined_worker_is_replaced_after_backoff_and_then_deleted() {
    let mut memory = WorkerObservations::default();
    for after in [0, 20, 299] {
        assert_eq!(look(&mut memory, after, startds(5000, &[])), (ScalePlan::default(), 0), "{after}");
    }
    let held = ScalePlan { backoff_until: Some(NOW + 310), requeue_at: Some(NOW + 310), ..ScalePlan::default() };
    assert_eq!(look(&mut memory, 300, startds(5000, &[])), (held.clone(), 1));
    assert_eq!(memory.existing_workers(&[runs(0)], &names())[&image("i")].alive, 0);
    assert_eq!(look(&mut memory, 301, startds(5000, &[])), (ScalePlan { delete_unknown: vec![0], ..held }, 1));
    assert_eq!(
        look(&mut memory, 310, startds(5000, &[])),
        (ScalePlan { create: vec![1], delete_unknown: vec![0], ..ScalePlan::default() }, 1)
    );
    assert_eq!(memory.last_unjoined_pod(&image("i")), Some("p-worker-0"));
    // The worker has joined in the end.
    assert_eq!(look(&mut memory, 320, startds(5000, &[("u-0", true, false)])), (ScalePlan::default(), 0));
    assert_eq!(memory.last_unjoined_pod(&image("i")), None);
}

#[test]
fn unjoined_worker_is_reported_despite_an_older_joined_one() {
    let mut memory = WorkerObservations::default();
    let answer = |memory: &mut WorkerObservations, after: i64, named: &[(&str, bool, bool)]| {
        memory.record_answer(Ok(startds(5000, named)), NOW + after);
        memory.update_absences(&[runs(0), runs(1)], &names(), NOW + after);
    };
    for after in [0, 300, 301] {
        answer(&mut memory, after, &[("u-1", true, false)]);
    }
    assert_eq!(memory.last_unjoined_pod(&image("i")), Some("p-worker-0"));
    assert_eq!(memory.deaths[&image("i")].count, 1);
    // No HTCJob requests workers of this image any more.
    memory.keep(&BTreeSet::new());
    assert_eq!(memory.last_unjoined_pod(&image("i")), None);
}

#[test]
fn deleted_worker_is_not_an_early_exit() {
    let mut memory = WorkerObservations::default();
    let mut deleted = (*pod(0, "Failed", &ended(5, 137))).clone();
    let at = deleted.metadata.creation_timestamp.clone();
    deleted.metadata.deletion_timestamp =
        at.or(Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH)));
    memory.count_early_exits(&[Arc::new(deleted)], NOW);
    assert!(memory.deaths.is_empty() && !memory.has_image_problems());
}

#[test]
fn worker_is_not_dead_while_the_collector_is_young() {
    let mut memory = WorkerObservations::default();
    look(&mut memory, 0, startds(5000, &[]));
    // The collector has restarted.
    look(&mut memory, 200, startds(10, &[]));
    assert_eq!(look(&mut memory, 400, startds(210, &[])), (ScalePlan::default(), 0));
    memory.record_answer(Err(QueryError { kind: QueryErrorKind::Incomplete, message: "m".to_owned() }), NOW + 600);
    memory.update_absences(&[runs(0)], &names(), NOW + 600);
    assert_eq!(look(&mut memory, 701, startds(511, &[])), (ScalePlan::default(), 0));
    assert_eq!(look(&mut memory, 1001, startds(811, &[])).1, 1);
    // An outdated answer deletes nothing.
    let groups = memory.evidence(&[runs(0)], &names(), &one(1), NOW + 1001 + GOOD_FOR + 1);
    assert!(scale(&groups[&image("i")]).delete_unknown.is_empty());
}

#[test]
fn idle_time_restarts_after_a_missing_startd() {
    let mut memory = WorkerObservations::default();
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
    for (names, when) in [(true, 0), (false, 10), (true, 20)] {
        let told: &[(&str, bool, bool)] = if names { &[("u-0", false, false)] } else { &[] };
        memory.record_answer(Ok(startds(500, told)), NOW + when);
    }
    assert_eq!(see(&memory, &running, NOW + 20).workers[0].slot_state, SlotState::Idle { since: NOW + 20 });
    memory.record_answer(Ok(startds(500, &[("u-0", false, true)])), NOW + 30);
    assert_eq!(see(&memory, &running, NOW + 30).workers[0].slot_state, SlotState::Draining);
}

#[test]
fn drained_worker_is_not_an_early_exit() {
    let mut memory = WorkerObservations::default();
    memory.record_drain("u-0".to_owned());
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-5) } }));
    memory.count_early_exits(&[Arc::clone(&running)], NOW);
    assert!(see(&memory, &running, NOW).workers[0].drain_accepted);
    memory.count_early_exits(&[pod(0, "Failed", &ended(5, 1))], NOW);
    assert_eq!(memory.deaths, BTreeMap::new());
    memory.count_early_exits(&[], NOW);
    assert!(!see(&memory, &running, NOW).workers[0].drain_accepted);
}

#[test]
fn pod_state_follows_its_status() {
    let of = |phase: Option<&str>, deleted: bool| {
        let mut pod = KubePod::clone(&pod(0, "Pending", &json!({})));
        pod.status.as_mut().unwrap().phase = phase.map(str::to_owned);
        pod.metadata.deletion_timestamp = deleted.then(|| serde_json::from_value(json!(at(0))).unwrap());
        state(&pod)
    };
    let waiting = PodState::Waiting { since: NOW - 1000 };
    assert_eq!([of(None, false), of(Some("Pending"), false)], [waiting; 2]);
    assert_eq!([of(Some("Running"), false), of(Some("Unknown"), false)], [PodState::Running; 2]);
    assert_eq!([of(Some("Succeeded"), true), of(Some("Failed"), false)], [PodState::Ended; 2]);
    assert_eq!([of(None, true), of(Some("Running"), true)], [PodState::Terminating; 2]);
}

fn of_image(pod: &Arc<KubePod>, image: &str) -> Arc<KubePod> {
    let mut pod = KubePod::clone(pod);
    pod.metadata.annotations.as_mut().unwrap().insert(IMAGE_ANNOTATION.to_owned(), image.to_owned());
    Arc::new(pod)
}

#[test]
fn worker_belongs_to_the_image_it_was_created_for() {
    let running = |number| pod(number, "Running", &json!({ "running": { "startedAt": at(-5) } }));
    let mut mirrored = KubePod::clone(&of_image(&running(1), "i"));
    mirrored.metadata.annotations.as_mut().unwrap().insert(TEMPLATE_ANNOTATION.to_owned(), "former".to_owned());
    mirrored.spec.as_mut().unwrap().containers[0].image = Some("mirror/i".to_owned());
    let (mut memory, mut wanted) = (WorkerObservations::default(), one(2));
    wanted.insert(image("j"), wanted[&image("i")].clone());
    memory.count_early_exits(&[of_image(&pod(9, "Failed", &ended(5, 1)), "j")], NOW);
    let pods = [running(0), Arc::new(mirrored), of_image(&running(2), "j")];
    let groups = memory.evidence(&pods, &names(), &wanted, NOW);
    let of = |image: &str| -> Vec<(u32, bool)> {
        groups[&self::image(image)].workers.iter().map(|worker| (worker.number, worker.up_to_date)).collect()
    };
    assert_eq!((of("i"), of("j")), (vec![(0, true), (1, false)], vec![(2, true)]));
    assert_eq!((groups[&image("i")].deaths.count, groups[&image("j")].deaths.count), (0, 1));
}

#[test]
fn pool_is_polled_often_while_a_change_is_expected() {
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
    let mut memory = WorkerObservations::default();
    let restless = |memory: &WorkerObservations, pods: &[Arc<KubePod>], replicas: u32| {
        WorkerObservations::expects_change(&memory.evidence(pods, &names(), &one(replicas), NOW))
    };
    assert!(restless(&memory, &[], 0), "nothing is known");
    memory.record_answer(Ok(startds(500, &[("u-0", true, false)])), NOW);
    let there = [running];
    assert_eq!([0, 1, 2].map(|replicas| restless(&memory, &there, replicas)), [true, false, true]);
    memory.record_answer(Ok(startds(500, &[("u-0", true, true)])), NOW);
    assert!(restless(&memory, &there, 1), "it drains");
}

#[test]
fn unpullable_image_backs_off() {
    let waits = |number: u32, seconds: i64, why: &str| {
        let mut pod = KubePod::clone(&pod(number, "Pending", &json!({ "waiting": { "reason": "PodInitializing" } })));
        pod.metadata.creation_timestamp = serde_json::from_value(json!(at(-seconds))).unwrap();
        let status = json!([{ "name": CHECK_CONTAINER, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": why } } }]);
        pod.status.as_mut().unwrap().init_container_statuses = serde_json::from_value(status).unwrap();
        Arc::new(pod)
    };
    let mut memory = WorkerObservations::default();
    let mut alive = |pod: &Arc<KubePod>| {
        memory.count_early_exits(&[Arc::clone(pod)], NOW);
        let there = memory.existing_workers(&[Arc::clone(pod)], &names())[&image("i")];
        assert_eq!(see(&memory, pod, NOW).workers[0].up_to_date, there.alive == 1);
        (there.alive, there.deaths.count)
    };
    assert_eq!(alive(&waits(0, TOO_SOON, "ContainerCreating")), (1, 0));
    assert_eq!(alive(&waits(0, TOO_SOON - 1, "ImagePullBackOff")), (1, 0));
    assert_eq!([(); 2].map(|()| alive(&waits(0, TOO_SOON, "ImagePullBackOff"))), [(0, 1); 2], "it is counted once");
    assert!(memory.failing_groups()[&image("i")].contains("(ImagePullBackOff)"), "{:?}", memory.failing_groups());
}

#[test]
fn unrequested_image_is_forgotten() {
    let mut memory = WorkerObservations::default();
    for number in 0..3 {
        memory.count_early_exits(&[pod(number, "Failed", &ended(5, 1))], NOW);
    }
    assert_eq!(memory.failing_groups().into_keys().collect::<Vec<_>>(), [&image("i")]);
    memory.keep(&BTreeSet::from([image("i")]));
    assert_eq!(memory.existing_workers(&[], &names())[&image("i")].deaths, EarlyExits { count: 3, last: NOW });
    memory.keep(&BTreeSet::from([image("j")]));
    assert!(memory.failing_groups().is_empty() && memory.existing_workers(&[], &names()).is_empty());
}

#[test]
fn just_created_pod_counts_as_worker_of_its_image() {
    let mut memory = WorkerObservations::default();
    memory.made.expect_creation(7, &image("i"), "t");
    memory.made.creation_observed(7, Some("u-7".to_owned()));
    let seen = |memory: &WorkerObservations, pods: &[Arc<KubePod>]| -> Vec<(u32, PodState)> {
        let groups = memory.evidence(pods, &names(), &one(1), NOW);
        groups[&image("i")].workers.iter().map(|worker| (worker.number, worker.pod_state)).collect()
    };
    assert_eq!(seen(&memory, &[]), [(7, PodState::Requested { confirmed: true })]);
    assert_eq!(memory.existing_workers(&[], &names())[&image("i")].alive, 1);
    let shown = [pod(7, "Running", &json!({ "running": { "startedAt": at(0) } }))];
    assert_eq!(seen(&memory, &shown), [(7, PodState::Running)]);
    assert_eq!(memory.existing_workers(&shown, &names())[&image("i")].alive, 1);
}

#[test]
fn image_problem_is_reported_until_a_worker_runs() {
    let prepared = |prepared: i32, code: i32, message: serde_json::Value| {
        let mut pod = KubePod::clone(&pod(0, "Failed", &json!({ "waiting": { "reason": "PodInitializing" } })));
        let status = json!([
            { "name": "prepare", "image": "h", "imageID": "h", "ready": true, "restartCount": 0,
              "state": { "terminated": { "exitCode": prepared, "message": message } } },
            { "name": CHECK_CONTAINER, "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
              "state": { "terminated": { "exitCode": code, "message": message } } },
        ]);
        pod.status.as_mut().unwrap().init_container_statuses = serde_json::from_value(status).unwrap();
        Arc::new(pod)
    };
    let failed = |code: i32, message: serde_json::Value| prepared(0, code, message);
    let mut memory = WorkerObservations::default();
    memory.count_early_exits(&[failed(1, json!("the image lacks find\n"))], NOW);
    assert!(memory.image_problem(&image("i")).unwrap().starts_with("the image lacks find; use "));
    assert_eq!(memory.deaths[&image("i")].count, 1);
    let mut silent = WorkerObservations::default();
    silent.count_early_exits(&[failed(1, json!(null))], NOW);
    assert!(silent.image_problem(&image("i")).unwrap().starts_with("its check ended with 1; "));
    let mut unprepared = WorkerObservations::default();
    unprepared.count_early_exits(&[prepared(1, 0, json!("cp: no space left\n"))], NOW);
    assert_eq!(
        unprepared.image_problem(&image("i")).unwrap(),
        "cp: no space left; this comes of spec.managed.image or of the node"
    );
    let mut content = WorkerObservations::default();
    content.count_early_exits(&[failed(0, json!(null))], NOW);
    assert_eq!(content.image_problem(&image("i")), None);
    assert_eq!([(); 2].map(|()| memory.is_first_notice("u".to_owned())), [true, false]);
    memory.record_answer(Ok(startds(500, &[("u-1", false, false)])), NOW);
    let running = json!({ "running": { "startedAt": at(-TOO_SOON) } });
    memory.update_absences(&[pod(1, "Running", &running)], &names(), NOW);
    assert_eq!(memory.image_problem(&image("i")), None);
    assert!(memory.is_first_notice("u".to_owned()));
}

#[test]
fn refused_worker_backs_off_only_for_a_mini_cluster() {
    let (mut memory, its) = (WorkerObservations::default(), WorkerGroup::HTCJob("u".to_owned()));
    for _ in 0..3 {
        memory.refused(&its, "cannot create Pod p-worker-1: exceeded quota", NOW);
        memory.refused(&image("i"), "cannot create Pod p-worker-0: exceeded quota", NOW);
    }
    assert!(memory.image_problem(&its).unwrap().contains("exceeded quota"));
    assert_eq!(memory.existing_workers(&[], &names())[&its].deaths, EarlyExits { count: 3, last: NOW });
    assert!(memory.image_problem(&image("i")).is_none() && !memory.deaths.contains_key(&image("i")));
}

#[test]
fn mini_cluster_worker_is_not_in_the_image_group() {
    let running = |number| pod(number, "Running", &json!({ "running": { "startedAt": at(-5) } }));
    let mut own = KubePod::clone(&of_image(&running(1), "i"));
    own.metadata.labels = Some([(MINI_CLUSTER_LABEL.to_owned(), "u-9".to_owned())].into());
    let pods = [running(0), Arc::new(own)];
    let (mut wanted, its) = (one(1), WorkerGroup::HTCJob("u-9".to_owned()));
    let evidence = |wanted: &BTreeMap<WorkerGroup, DesiredGroup>| {
        let groups = WorkerObservations::default().evidence(&pods, &names(), wanted, NOW);
        let of = |group: &WorkerGroup| -> Vec<(u32, bool)> {
            groups[group].workers.iter().map(|worker| (worker.number, worker.up_to_date)).collect()
        };
        (of(&image("i")), of(&its))
    };
    let mut own = |template: Option<&str>| {
        let template = template.map(str::to_owned);
        wanted.insert(its.clone(), DesiredGroup { goal: Goal::Replicas(1), template, kind: None });
        evidence(&wanted)
    };
    assert_eq!(own(Some("t")), (vec![(0, true)], vec![(1, true)]));
    // An HTCJob that is gone, and one that cannot be decoded.
    assert_eq!((own(Some("")).1, own(None).1), (vec![(1, false)], vec![(1, true)]));
}

#[test]
fn startd_ad_under_the_id_of_another_worker_is_ignored() {
    let mut memory = WorkerObservations::default();
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
    let forged = StartdId { id: "u-0".to_owned(), name: names().startd("p-worker-9") };
    let mut said = startds(500, &[("u-0", false, false)]);
    said.startds.insert(forged, Startd { busy: true, draining: true, payloads: None });
    memory.record_answer(Ok(said), NOW);
    assert_eq!(see(&memory, &running, NOW).workers[0].slot_state, SlotState::Idle { since: NOW });
}

/// The operator has requested the drains itself, and has no memory of them.
#[test]
fn restarted_operator_restores_its_drains() {
    let running = |number, marked| {
        let mut pod = pod(number, "Running", &json!({ "running": { "startedAt": at(-500) } }));
        if marked {
            Arc::make_mut(&mut pod).annotations_mut().insert(DRAIN_ANNOTATION.to_owned(), "true".to_owned());
        }
        pod
    };
    // The second one has refused, and the third one reports a drain that was not requested.
    let pods = [running(0, true), running(1, true), running(2, false)];
    let told = [("u-0", true, true), ("u-1", true, false), ("u-2", true, true)];
    let mut memory = WorkerObservations::default();
    let sent_away = |memory: &WorkerObservations| -> Vec<bool> {
        let evidence = memory.evidence(&pods, &names(), &one(3), NOW).remove(&image("i")).unwrap();
        evidence.workers.iter().map(|worker| worker.drain_accepted).collect()
    };
    memory.restore_drains(&pods, &names());
    assert_eq!(sent_away(&memory), [false; 3], "HTCondor has not answered");
    memory.record_answer(Ok(startds(500, &told)), NOW);
    memory.restore_drains(&pods, &names());
    assert_eq!(sent_away(&memory), [true, false, false]);
}

fn runs(number: u32) -> Arc<KubePod> {
    pod(number, "Running", &json!({ "running": { "startedAt": at(-500) } }))
}

#[test]
fn worker_is_replaced_before_its_token_expires() {
    let current = |number: u32, age: i64| {
        let mut pod = KubePod::clone(&runs(number));
        pod.metadata.creation_timestamp = Some(serde_json::from_value(json!(at(-age))).unwrap());
        see(&WorkerObservations::default(), &Arc::new(pod), NOW).workers[0].up_to_date
    };
    assert_eq!((current(0, LIFE - 1), current(0, LIFE)), (true, false));
    assert_eq!((current(3, LIFE + 3 * STEP - 1), current(3, LIFE + 3 * STEP)), (true, false), "not all at once");
}

#[test]
fn unstarted_worker_gets_its_token_once() {
    let labelled = |number: u32, label: &str, value: &str| {
        let mut pod = KubePod::clone(&pod(number, "Pending", &json!({})));
        pod.metadata.labels.get_or_insert_default().insert(label.to_owned(), value.to_owned());
        Arc::new(pod)
    };
    let pods = [
        labelled(0, NAMESPACE_LABEL, "atlas"),
        labelled(1, MINI_CLUSTER_LABEL, "u-9"),
        pod(2, "Pending", &json!({})),
        runs(3),
    ];
    let mut memory = WorkerObservations::default();
    let lacking = memory.without_token(&pods, &names());
    let wanted = [
        (0, "u-0".to_owned(), Tenant::Namespace("atlas".to_owned())),
        (1, "u-1".to_owned(), Tenant::HTCJob("u-9".to_owned())),
        (2, "u-2".to_owned(), Tenant::Everybody),
    ];
    assert_eq!(lacking, wanted);
    for (_, uid, _) in lacking {
        memory.has_token(uid);
    }
    memory.count_early_exits(&pods, NOW);
    assert_eq!(memory.without_token(&pods, &names()), []);
    memory.count_early_exits(&[], NOW);
    assert_eq!(memory.without_token(&pods, &names()).len(), 3, "deleted Pods are forgotten");
}

#[test]
fn workers_of_two_namespaces_or_with_other_volumes_are_two_groups() {
    let (mut own, mut mounts) = (KubePod::clone(&runs(1)), KubePod::clone(&runs(2)));
    own.metadata.labels.get_or_insert_default().insert(NAMESPACE_LABEL.to_owned(), "atlas".to_owned());
    mounts.metadata.annotations.get_or_insert_default().insert(VOLUMES_ANNOTATION.to_owned(), "a:/a".to_owned());
    let with_volumes =
        WorkerGroup::Shared(SharedGroup { image: "i".to_owned(), namespace: None, volumes: "a:/a".to_owned() });
    let its = WorkerGroup::Shared(SharedGroup {
        image: "i".to_owned(),
        namespace: Some("atlas".to_owned()),
        volumes: String::new(),
    });
    let there = WorkerObservations::default().existing_workers(&[runs(0), Arc::new(own), Arc::new(mounts)], &names());
    assert_eq!(there.keys().cloned().collect::<Vec<_>>(), [image("i"), with_volumes, its]);
}
