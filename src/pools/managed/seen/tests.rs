use serde_json::json;

use super::*;
use crate::api::ObjectName;
use crate::condor::startds::{Startd, Who};
use crate::machine::facts::Why;
use crate::pools::managed::scale::{Plan, scale};

const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> String {
    jiff::Timestamp::from_second(NOW + seconds).unwrap().to_string()
}

fn pod(number: u32, phase: &str, state: &serde_json::Value) -> Arc<KubePod> {
    let pod = json!({
        "metadata": {
            "name": format!("p-worker-{number}"), "uid": format!("u-{number}"),
            "creationTimestamp": at(-1000), "annotations": { TEMPLATE: "t" },
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

fn image(name: &str) -> Group {
    Group::Shared(Shared { image: name.to_owned(), namespace: None })
}

fn one(replicas: u32) -> BTreeMap<Group, Wanted> {
    let wanted = Wanted { goal: Goal::Replicas(replicas), template: Some("t".to_owned()), kind: None };
    BTreeMap::from([(image("i"), wanted)])
}

fn see(memory: &Memory, pod: &Arc<KubePod>, now: i64) -> Evidence {
    memory.evidence(&[Arc::clone(pod)], &names(), &one(1), now).remove(&image("i")).unwrap()
}

fn names() -> Names {
    Names::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "uid").unwrap()
}

fn startds(age: i64, startds: &[(&str, bool, bool)]) -> Startds {
    let who = |id: &str| {
        let number = id.strip_prefix("u-").unwrap().parse().unwrap_or_default();
        Who { id: id.to_owned(), name: names().startd(&names().worker(number)) }
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
fn an_answer_is_worth_what_its_collector_can_know() {
    let mut memory = Memory::default();
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
    let see = |memory: &Memory, now| see(memory, &running, now);
    assert_eq!(see(&memory, NOW).answer, Answer::Unknown);
    memory.take_in(Ok(startds(39, &[])), NOW);
    assert_eq!(see(&memory, NOW).answer, Answer::Young);
    memory.take_in(Ok(startds(40, &[("u-0", false, false)])), NOW);
    assert_eq!(see(&memory, NOW).answer, Answer::Known);
    assert_eq!(see(&memory, NOW).workers[0].slot, Slot::Idle { since: NOW });
    assert_eq!(see(&memory, NOW + GOOD_FOR + 1).answer, Answer::Unknown);
    memory.take_in(Ok(startds(60, &[("u-0", false, false)])), NOW + 20);
    assert_eq!(see(&memory, NOW + 20).workers[0].slot, Slot::Idle { since: NOW });
    memory.take_in(Ok(startds(80, &[("u-0", true, false)])), NOW + 40);
    assert_eq!(see(&memory, NOW + 40).workers[0].slot, Slot::Busy);
    memory.take_in(Ok(startds(99, &[("u-0", false, false)])), NOW + 60);
    assert_eq!(see(&memory, NOW + 60).workers[0].slot, Slot::Idle { since: NOW + 60 });
    memory.take_in(Err(Unknown { why: Why::Incomplete, message: "m".to_owned() }), NOW + 61);
    assert_eq!(see(&memory, NOW + 61).answer, Answer::Unknown);
}

#[test]
fn a_pod_of_an_earlier_name_is_not_taken_for_this_one() {
    let mut memory = Memory::default();
    memory.take_in(Ok(startds(500, &[("u-of-the-former", true, true)])), NOW);
    let new = pod(0, "Running", &json!({ "running": { "startedAt": at(0) } }));
    assert_eq!(see(&memory, &new, NOW).workers[0].slot, Slot::Unseen);
}

#[test]
fn only_workers_that_ended_too_soon_count() {
    let mut memory = Memory::default();
    let mut after = |state: &serde_json::Value, number: u32| {
        memory.notice(&[pod(number, "Failed", state)], NOW);
        memory.deaths.get(&image("i")).map_or(0, |deaths| deaths.count)
    };
    assert_eq!(after(&ended(5, 1), 0), 1);
    assert_eq!(after(&ended(5, 1), 0), 1, "it is counted once");
    assert_eq!(after(&ended(5, 44), 1), 2);
    assert_eq!(after(&ended(5, IN_ORDER), 2), 2);
    assert_eq!(after(&ended(TOO_SOON, 1), 3), 2);
    let mut running_for = |seconds: i64, named: &[(&str, bool, bool)]| {
        let running = pod(4, "Running", &json!({ "running": { "startedAt": at(-seconds) } }));
        memory.take_in(Ok(startds(500, named)), NOW);
        memory.notice(&[Arc::clone(&running)], NOW);
        memory.compare(&[running], &names(), NOW);
        memory.deaths.len()
    };
    let joined = [("u-4", false, false)];
    assert_eq!(
        [running_for(TOO_SOON - 1, &joined), running_for(TOO_SOON, &[]), running_for(TOO_SOON, &joined)],
        [1, 1, 0]
    );
}

/// Looks at a worker that runs, by an answer that was asked for so many seconds after [`NOW`]; what is decided of it.
fn look(memory: &mut Memory, after: i64, answer: Startds) -> (Plan, u32) {
    let running = [runs(0)];
    memory.notice(&running, NOW + after);
    memory.take_in(Ok(answer), NOW + after);
    memory.compare(&running, &names(), NOW + after);
    let groups = memory.evidence(&running, &names(), &one(1), NOW + after);
    (scale(&groups[&image("i")]), memory.deaths.get(&image("i")).map_or(0, |deaths| deaths.count))
}

#[test]
fn one_that_never_joins_is_replaced_after_a_pause_and_deleted_when_another_answer_does_not_name_it() {
    let mut memory = Memory::default();
    for after in [0, 20, 299] {
        assert_eq!(look(&mut memory, after, startds(5000, &[])), (Plan::default(), 0), "{after}");
    }
    let held = Plan { held_until: Some(NOW + 310), again: Some(NOW + 310), ..Plan::default() };
    assert_eq!(look(&mut memory, 300, startds(5000, &[])), (held.clone(), 1));
    assert_eq!(memory.there(&[runs(0)], &names())[&image("i")].alive, 0);
    assert_eq!(look(&mut memory, 301, startds(5000, &[])), (Plan { discard: vec![0], ..held }, 1));
    assert_eq!(
        look(&mut memory, 310, startds(5000, &[])),
        (Plan { make: vec![1], discard: vec![0], ..Plan::default() }, 1)
    );
    assert_eq!(memory.not_joined(&image("i")), Some("p-worker-0"));
    // It has joined after all.
    assert_eq!(look(&mut memory, 320, startds(5000, &[("u-0", true, false)])), (Plan::default(), 0));
    assert_eq!(memory.not_joined(&image("i")), None);
}

#[test]
fn one_that_never_joins_is_not_forgotten_for_one_that_was_there_before() {
    let mut memory = Memory::default();
    let answer = |memory: &mut Memory, after: i64, named: &[(&str, bool, bool)]| {
        memory.take_in(Ok(startds(5000, named)), NOW + after);
        memory.compare(&[runs(0), runs(1)], &names(), NOW + after);
    };
    for after in [0, 300, 301] {
        answer(&mut memory, after, &[("u-1", true, false)]);
    }
    assert_eq!(memory.not_joined(&image("i")), Some("p-worker-0"));
    assert_eq!(memory.deaths[&image("i")].count, 1);
    // Nobody asks for workers of this image any more.
    memory.keep(&BTreeSet::new());
    assert_eq!(memory.not_joined(&image("i")), None);
}

#[test]
fn a_worker_that_is_deleted_has_not_died() {
    let mut memory = Memory::default();
    let mut deleted = (*pod(0, "Failed", &ended(5, 137))).clone();
    let at = deleted.metadata.creation_timestamp.clone();
    deleted.metadata.deletion_timestamp =
        at.or(Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH)));
    memory.notice(&[Arc::new(deleted)], NOW);
    assert!(memory.deaths.is_empty() && !memory.has_lacks());
}

#[test]
fn a_worker_is_not_given_up_while_the_collector_may_not_know_it() {
    let mut memory = Memory::default();
    look(&mut memory, 0, startds(5000, &[]));
    // It began anew.
    look(&mut memory, 200, startds(10, &[]));
    assert_eq!(look(&mut memory, 400, startds(210, &[])), (Plan::default(), 0));
    memory.take_in(Err(Unknown { why: Why::Incomplete, message: "m".to_owned() }), NOW + 600);
    memory.compare(&[runs(0)], &names(), NOW + 600);
    assert_eq!(look(&mut memory, 701, startds(511, &[])), (Plan::default(), 0));
    assert_eq!(look(&mut memory, 1001, startds(811, &[])).1, 1);
    // Nothing is deleted by an answer that is old by now.
    let groups = memory.evidence(&[runs(0)], &names(), &one(1), NOW + 1001 + GOOD_FOR + 1);
    assert!(scale(&groups[&image("i")]).discard.is_empty());
}

#[test]
fn one_that_is_not_named_for_a_while_is_idle_anew() {
    let mut memory = Memory::default();
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
    for (names, when) in [(true, 0), (false, 10), (true, 20)] {
        let told: &[(&str, bool, bool)] = if names { &[("u-0", false, false)] } else { &[] };
        memory.take_in(Ok(startds(500, told)), NOW + when);
    }
    assert_eq!(see(&memory, &running, NOW + 20).workers[0].slot, Slot::Idle { since: NOW + 20 });
    memory.take_in(Ok(startds(500, &[("u-0", false, true)])), NOW + 30);
    assert_eq!(see(&memory, &running, NOW + 30).workers[0].slot, Slot::Draining);
}

#[test]
fn one_that_was_drained_goes_and_has_not_died() {
    let mut memory = Memory::default();
    memory.drains("u-0".to_owned());
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-5) } }));
    memory.notice(&[Arc::clone(&running)], NOW);
    assert!(see(&memory, &running, NOW).workers[0].drained);
    memory.notice(&[pod(0, "Failed", &ended(5, 1))], NOW);
    assert_eq!(memory.deaths, BTreeMap::new());
    memory.notice(&[], NOW);
    assert!(!see(&memory, &running, NOW).workers[0].drained);
}

#[test]
fn a_pod_is_what_its_status_says() {
    let of = |phase: Option<&str>, deleted: bool| {
        let mut pod = KubePod::clone(&pod(0, "Pending", &json!({})));
        pod.status.as_mut().unwrap().phase = phase.map(str::to_owned);
        pod.metadata.deletion_timestamp = deleted.then(|| serde_json::from_value(json!(at(0))).unwrap());
        state(&pod)
    };
    let waiting = Pod::Waiting { since: NOW - 1000 };
    assert_eq!([of(None, false), of(Some("Pending"), false)], [waiting; 2]);
    assert_eq!([of(Some("Running"), false), of(Some("Unknown"), false)], [Pod::Running; 2]);
    assert_eq!([of(Some("Succeeded"), true), of(Some("Failed"), false)], [Pod::Ended; 2]);
    assert_eq!([of(None, true), of(Some("Running"), true)], [Pod::Leaving; 2]);
}

fn of_image(pod: &Arc<KubePod>, image: &str) -> Arc<KubePod> {
    let mut pod = KubePod::clone(pod);
    pod.metadata.annotations.as_mut().unwrap().insert(IMAGE.to_owned(), image.to_owned());
    Arc::new(pod)
}

#[test]
fn a_worker_belongs_to_the_image_that_it_was_made_for() {
    let running = |number| pod(number, "Running", &json!({ "running": { "startedAt": at(-5) } }));
    let mut mirrored = KubePod::clone(&of_image(&running(1), "i"));
    mirrored.metadata.annotations.as_mut().unwrap().insert(TEMPLATE.to_owned(), "former".to_owned());
    mirrored.spec.as_mut().unwrap().containers[0].image = Some("mirror/i".to_owned());
    let (mut memory, mut wanted) = (Memory::default(), one(2));
    wanted.insert(image("j"), wanted[&image("i")].clone());
    memory.notice(&[of_image(&pod(9, "Failed", &ended(5, 1)), "j")], NOW);
    let pods = [running(0), Arc::new(mirrored), of_image(&running(2), "j")];
    let groups = memory.evidence(&pods, &names(), &wanted, NOW);
    let of = |image: &str| -> Vec<(u32, bool)> {
        groups[&self::image(image)].workers.iter().map(|worker| (worker.number, worker.current)).collect()
    };
    assert_eq!((of("i"), of("j")), (vec![(0, true), (1, false)], vec![(2, true)]));
    assert_eq!((groups[&image("i")].deaths.count, groups[&image("j")].deaths.count), (0, 1));
}

#[test]
fn it_is_looked_at_often_while_something_is_about_to_change() {
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
    let mut memory = Memory::default();
    let restless = |memory: &Memory, pods: &[Arc<KubePod>], replicas: u32| {
        Memory::is_restless(&memory.evidence(pods, &names(), &one(replicas), NOW))
    };
    assert!(restless(&memory, &[], 0), "nothing is known");
    memory.take_in(Ok(startds(500, &[("u-0", true, false)])), NOW);
    let there = [running];
    assert_eq!([0, 1, 2].map(|replicas| restless(&memory, &there, replicas)), [true, false, true]);
    memory.take_in(Ok(startds(500, &[("u-0", true, true)])), NOW);
    assert!(restless(&memory, &there, 1), "it drains");
}

#[test]
fn an_image_that_cannot_be_had_is_given_up_for_a_while() {
    let waits = |number: u32, seconds: i64, why: &str| {
        let mut pod = KubePod::clone(&pod(number, "Pending", &json!({ "waiting": { "reason": "PodInitializing" } })));
        pod.metadata.creation_timestamp = serde_json::from_value(json!(at(-seconds))).unwrap();
        let status = json!([{ "name": CHECK_CONTAINER, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": why } } }]);
        pod.status.as_mut().unwrap().init_container_statuses = serde_json::from_value(status).unwrap();
        Arc::new(pod)
    };
    let mut memory = Memory::default();
    let mut alive = |pod: &Arc<KubePod>| {
        memory.notice(&[Arc::clone(pod)], NOW);
        let there = memory.there(&[Arc::clone(pod)], &names())[&image("i")];
        assert_eq!(see(&memory, pod, NOW).workers[0].current, there.alive == 1);
        (there.alive, there.deaths.count)
    };
    assert_eq!(alive(&waits(0, TOO_SOON, "ContainerCreating")), (1, 0));
    assert_eq!(alive(&waits(0, TOO_SOON - 1, "ImagePullBackOff")), (1, 0));
    assert_eq!([(); 2].map(|()| alive(&waits(0, TOO_SOON, "ImagePullBackOff"))), [(0, 1); 2], "it is counted once");
    assert!(memory.failing()[&image("i")].contains("(ImagePullBackOff)"), "{:?}", memory.failing());
}

#[test]
fn an_image_that_nobody_asks_for_is_forgotten() {
    let mut memory = Memory::default();
    for number in 0..3 {
        memory.notice(&[pod(number, "Failed", &ended(5, 1))], NOW);
    }
    assert_eq!(memory.failing().into_keys().collect::<Vec<_>>(), [&image("i")]);
    memory.keep(&BTreeSet::from([image("i")]));
    assert_eq!(memory.there(&[], &names())[&image("i")].deaths, Deaths { count: 3, last: NOW });
    memory.keep(&BTreeSet::from([image("j")]));
    assert!(memory.failing().is_empty() && memory.there(&[], &names()).is_empty());
}

#[test]
fn what_was_made_just_now_is_a_worker_of_its_image() {
    let mut memory = Memory::default();
    memory.made.asks(7, &image("i"), "t");
    memory.made.is_there(7, Some("u-7".to_owned()));
    let seen = |memory: &Memory, pods: &[Arc<KubePod>]| -> Vec<(u32, Pod)> {
        let groups = memory.evidence(pods, &names(), &one(1), NOW);
        groups[&image("i")].workers.iter().map(|worker| (worker.number, worker.pod)).collect()
    };
    assert_eq!(seen(&memory, &[]), [(7, Pod::Made { sure: true })]);
    assert_eq!(memory.there(&[], &names())[&image("i")].alive, 1);
    let shown = [pod(7, "Running", &json!({ "running": { "startedAt": at(0) } }))];
    assert_eq!(seen(&memory, &shown), [(7, Pod::Running)]);
    assert_eq!(memory.there(&shown, &names())[&image("i")].alive, 1);
}

#[test]
fn what_an_image_lacks_is_said_until_a_worker_of_it_works() {
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
    let mut memory = Memory::default();
    memory.notice(&[failed(1, json!("the image lacks find\n"))], NOW);
    assert!(memory.lack(&image("i")).unwrap().starts_with("the image lacks find; use "));
    assert_eq!(memory.deaths[&image("i")].count, 1);
    let mut silent = Memory::default();
    silent.notice(&[failed(1, json!(null))], NOW);
    assert!(silent.lack(&image("i")).unwrap().starts_with("its check ended with 1; "));
    let mut unprepared = Memory::default();
    unprepared.notice(&[prepared(1, 0, json!("cp: no space left\n"))], NOW);
    assert_eq!(
        unprepared.lack(&image("i")).unwrap(),
        "cp: no space left; this comes of spec.managed.image or of the node"
    );
    let mut content = Memory::default();
    content.notice(&[failed(0, json!(null))], NOW);
    assert_eq!(content.lack(&image("i")), None);
    assert_eq!([(); 2].map(|()| memory.is_news("u".to_owned())), [true, false]);
    memory.take_in(Ok(startds(500, &[("u-1", false, false)])), NOW);
    let running = json!({ "running": { "startedAt": at(-TOO_SOON) } });
    memory.compare(&[pod(1, "Running", &running)], &names(), NOW);
    assert_eq!(memory.lack(&image("i")), None);
    assert!(memory.is_news("u".to_owned()));
}

#[test]
fn what_the_api_server_refuses_is_the_htcjobs_own_and_the_pools_is_tried_again_at_once() {
    let (mut memory, its) = (Memory::default(), Group::HTCJob("u".to_owned()));
    for _ in 0..3 {
        memory.refused(&its, "cannot create Pod p-worker-1: exceeded quota", NOW);
        memory.refused(&image("i"), "cannot create Pod p-worker-0: exceeded quota", NOW);
    }
    assert!(memory.lack(&its).unwrap().contains("exceeded quota"));
    assert_eq!(memory.there(&[], &names())[&its].deaths, Deaths { count: 3, last: NOW });
    assert!(memory.lack(&image("i")).is_none() && !memory.deaths.contains_key(&image("i")));
}

#[test]
fn a_worker_of_one_htcjob_is_none_of_its_image() {
    let running = |number| pod(number, "Running", &json!({ "running": { "startedAt": at(-5) } }));
    let mut own = KubePod::clone(&of_image(&running(1), "i"));
    own.metadata.labels = Some([(MINI_CLUSTER.to_owned(), "u-9".to_owned())].into());
    let pods = [running(0), Arc::new(own)];
    let (mut wanted, its) = (one(1), Group::HTCJob("u-9".to_owned()));
    let evidence = |wanted: &BTreeMap<Group, Wanted>| {
        let groups = Memory::default().evidence(&pods, &names(), wanted, NOW);
        let of = |group: &Group| -> Vec<(u32, bool)> {
            groups[group].workers.iter().map(|worker| (worker.number, worker.current)).collect()
        };
        (of(&image("i")), of(&its))
    };
    let mut own = |template: Option<&str>| {
        let template = template.map(str::to_owned);
        wanted.insert(its.clone(), Wanted { goal: Goal::Replicas(1), template, kind: None });
        evidence(&wanted)
    };
    assert_eq!(own(Some("t")), (vec![(0, true)], vec![(1, true)]));
    // Of one that is gone, and of one that cannot be read.
    assert_eq!((own(Some("")).1, own(None).1), (vec![(1, false)], vec![(1, true)]));
}

#[test]
fn what_another_worker_says_in_its_name_is_not_heard() {
    let mut memory = Memory::default();
    let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
    let forged = Who { id: "u-0".to_owned(), name: names().startd("p-worker-9") };
    let mut said = startds(500, &[("u-0", false, false)]);
    said.startds.insert(forged, Startd { busy: true, draining: true, payloads: None });
    memory.take_in(Ok(said), NOW);
    assert_eq!(see(&memory, &running, NOW).workers[0].slot, Slot::Idle { since: NOW });
}

/// It has drained them itself, and has not kept that in mind.
#[test]
fn an_operator_that_was_started_again_knows_which_workers_it_has_sent_away() {
    let running = |number, marked| {
        let mut pod = pod(number, "Running", &json!({ "running": { "startedAt": at(-500) } }));
        if marked {
            Arc::make_mut(&mut pod).annotations_mut().insert(DRAIN.to_owned(), "true".to_owned());
        }
        pod
    };
    // The second one has refused, and the third one says so although nobody has told it to.
    let pods = [running(0, true), running(1, true), running(2, false)];
    let told = [("u-0", true, true), ("u-1", true, false), ("u-2", true, true)];
    let mut memory = Memory::default();
    let sent_away = |memory: &Memory| -> Vec<bool> {
        let evidence = memory.evidence(&pods, &names(), &one(3), NOW).remove(&image("i")).unwrap();
        evidence.workers.iter().map(|worker| worker.drained).collect()
    };
    memory.recall(&pods, &names());
    assert_eq!(sent_away(&memory), [false; 3], "HTCondor has not said anything");
    memory.take_in(Ok(startds(500, &told)), NOW);
    memory.recall(&pods, &names());
    assert_eq!(sent_away(&memory), [true, false, false]);
}

fn runs(number: u32) -> Arc<KubePod> {
    pod(number, "Running", &json!({ "running": { "startedAt": at(-500) } }))
}

#[test]
fn another_worker_takes_the_place_of_one_before_its_token_ends() {
    let current = |number: u32, age: i64| {
        let mut pod = KubePod::clone(&runs(number));
        pod.metadata.creation_timestamp = Some(serde_json::from_value(json!(at(-age))).unwrap());
        see(&Memory::default(), &Arc::new(pod), NOW).workers[0].current
    };
    assert_eq!((current(0, LIFE - 1), current(0, LIFE)), (true, false));
    assert_eq!((current(3, LIFE + 3 * STEP - 1), current(3, LIFE + 3 * STEP)), (true, false), "not all at once");
}

#[test]
fn a_worker_that_has_not_begun_gets_its_token_once() {
    let labelled = |number: u32, label: &str, value: &str| {
        let mut pod = KubePod::clone(&pod(number, "Pending", &json!({})));
        pod.metadata.labels.get_or_insert_default().insert(label.to_owned(), value.to_owned());
        Arc::new(pod)
    };
    let pods =
        [labelled(0, NAMESPACE, "atlas"), labelled(1, MINI_CLUSTER, "u-9"), pod(2, "Pending", &json!({})), runs(3)];
    let mut memory = Memory::default();
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
    memory.notice(&pods, NOW);
    assert_eq!(memory.without_token(&pods, &names()), []);
    memory.notice(&[], NOW);
    assert_eq!(memory.without_token(&pods, &names()).len(), 3, "what is gone is forgotten");
}

#[test]
fn workers_of_two_namespaces_are_two_groups() {
    let mut own = KubePod::clone(&runs(1));
    own.metadata.labels.get_or_insert_default().insert(NAMESPACE.to_owned(), "atlas".to_owned());
    let its = Group::Shared(Shared { image: "i".to_owned(), namespace: Some("atlas".to_owned()) });
    let there = Memory::default().there(&[runs(0), Arc::new(own)], &names());
    assert_eq!(there.keys().cloned().collect::<Vec<_>>(), [image("i"), its]);
}
