//! The API server is killed in every phase, refuses writes, loses answers, is slow, forgets watches.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Fault, Proxy, Rule, Seen, Version, wait_for};

use bed::site::Site;
use bed::{Namespace, OFTEN, PATIENCE, of};

on_versions! {
    trixie: hanging_webhook_delays_no_other_namespace, refused_and_lost_writes_submit_each_job_once;
    long:
        status_stays_current_under_permanent_refusal,
        expired_watches_and_long_api_server_outage_lose_no_htcjob,
        api_server_kill_in_every_phase_submits_each_job_once;
}

/// What each HTCJob that runs to its end is told, once.
const STORY: [&str; 5] = ["Pending", "Submitted", "Running", "Completed", "Fetched"];

fn behind_a_proxy(version: Version) -> (Site, Proxy) {
    let site = Site::with(version, "", &[OFTEN]);
    let proxy = site.bed.kube.proxy().unwrap();
    site.bed.through(&proxy);
    (site, proxy)
}

fn assert_events_once(site: &Site, here: &Namespace<'_>, names: &[&str]) {
    site.assert_events_match_journal(here);
    for name in names {
        for reason in STORY {
            assert_eq!(here.count_events(name, reason), 1, "{name}: {:?}", here.events(name));
        }
    }
}

fn api_server_kill_in_every_phase_submits_each_job_once(version: Version) {
    let (site, proxy) = behind_a_proxy(version);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.start_lasting(&here, &["running", "fetched", "deleted"]);
    site.gates.shut("condor_transfer_data");
    site.finish("fetched");
    site.gates.wait_at("condor_transfer_data");
    here.wait_phase("fetched", "Completed");
    site.gates.shut("condor_rm");
    let deleted = here.uid("deleted");
    here.begin_delete("deleted");
    site.gates.wait_at("condor_rm");
    here.wait_phase("deleted", "Terminating");
    site.bed.pool.set_start(false).unwrap();
    here.create(&site.noted("submitted", 1, ""));
    here.wait_phase("submitted", "Submitted");
    // Its finalizer is on the way.
    proxy.add(Rule::new("PATCH", "/htcjobs/pending", Fault::Hang));
    here.create(&site.noted("pending", 1, ""));
    wait_for("the patch with the finalizer", PATIENCE, || proxy.spoiled(&Fault::Hang) > 0).unwrap();

    site.bed.kube.kill_apiserver().unwrap();
    proxy.clear();
    site.gates.open("condor_transfer_data");
    site.gates.open("condor_rm");
    site.finish("running");
    site.bed.pool.set_start(true).unwrap();
    wait_for("the operator to have news that it cannot tell", PATIENCE, || {
        site.bed.log().contains("Events not written")
    })
    .unwrap();
    site.bed.kube.start_apiserver().unwrap();

    here.wait_gone("deleted");
    site.bed.assert_removed(&deleted, "deleted");
    let ended = ["running", "fetched", "submitted", "pending"];
    for name in ended {
        let object = site.assert_complete_once(&here, name, 1);
        assert_eq!(object["status"]["attempt"], 1, "{name}");
    }
    assert_events_once(&site, &here, &ended);
}

/// Longer than the operator waits for any answer.
const TOO_SLOW: Duration = Duration::from_secs(17);
/// What a busy API server asks for.
const RETRY_AFTER: Duration = Duration::from_secs(3);

fn refused_and_lost_writes_submit_each_job_once(version: Version) {
    let (site, proxy) = behind_a_proxy(version);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let busy = Fault::Status(429, Some(RETRY_AFTER));
    let cases = [
        ("slow", Fault::Delay(TOO_SLOW), 1),
        ("conflict", Fault::Status(409, None), 4),
        ("busy", busy.clone(), 2),
        ("broken", Fault::Status(500, None), 3),
        ("away", Fault::Status(503, None), 3),
        ("lost", Fault::LoseAnswer, 4),
        ("cut", Fault::CutAnswer, 4),
    ];
    let path = |name: &str| format!("/htcjobs/{name}");
    for (name, fault, times) in &cases {
        proxy.add(Rule::new("PATCH", &path(name), fault.clone()).times(*times));
    }
    for fault in [Fault::LoseAnswer, busy, Fault::Status(500, None), Fault::CutAnswer] {
        proxy.add(Rule::new("POST", "/events", fault).times(3));
    }
    here.create_all(&cases.each_ref().map(|(name, ..)| site.noted(name, 1, "")));
    for (name, ..) in &cases {
        let ended = site.assert_complete_once(&here, name, 1);
        assert_eq!(ended["status"]["attempt"], 1, "{name}");
    }
    wait_for("every fault to have struck", PATIENCE, || match proxy.left() {
        0 => Ok(()),
        left => Err(format!("{left} to go")),
    })
    .unwrap();
    let seen = proxy.seen();
    for (name, fault, times) in &cases {
        let writes: Vec<_> =
            seen.iter().filter(|seen| seen.method == "PATCH" && seen.path.contains(&path(name))).collect();
        println!("{version}: {name}: {} writes, {times} of them {fault:?}", writes.len());
        // One for each thing to say, and one more for each that went wrong.
        assert!(writes.len() <= 14 + times, "{name}: {} writes: {writes:#?}", writes.len());
        for pair in writes.windows(2).filter(|pair| matches!(pair[0].fault, Some(Fault::Status(429, _)))) {
            let pause = pair[1].at - pair[0].at;
            assert!(pause >= RETRY_AFTER.mul_f64(0.9), "{name}: written to again after {pause:?}");
        }
    }
    let names = cases.each_ref().map(|(name, ..)| *name);
    assert_events_once(&site, &here, &names);

    // The same when they go.
    for (name, fault, _) in &cases {
        let fault = if matches!(fault, Fault::Delay(_)) { Fault::LoseAnswer } else { fault.clone() };
        proxy.add(Rule::new("PATCH", &path(name), fault).times(2));
    }
    let uids = names.map(|name| here.uid(name));
    here.begin_delete_all();
    for (name, uid) in names.iter().zip(&uids) {
        here.wait_gone(name);
        site.bed.assert_removed(uid, name);
        here.wait_event(name, "JobsRemoved");
        assert_eq!(here.count_events(name, "JobsRemoved"), 1, "{:?}", here.events(name));
    }
}

/// A webhook or a right that is missing: the HTCJob still says how it is.
fn status_stays_current_under_permanent_refusal(version: Version) {
    let (site, proxy) = behind_a_proxy(version);
    site.bed.start_operator();
    let here = site.bed.namespace();
    proxy.add(Rule::new("DELETE", "/htcjobs/over", Fault::Status(403, None)));
    let mut over = site.noted("over", 1, "");
    over["spec"]["ttlSecondsAfterFinished"] = 0.into();
    here.create(&over);
    here.wait("over", "Complete", |object| bed::is_true(object, "Complete"));

    // Its end and its deletion are decided at once: there is no output to fetch.
    proxy.add(Rule::new("DELETE", "/htcjobs/removed", Fault::Status(403, None)));
    let mut removed = site.lasting("removed", 1);
    removed["spec"]["ttlSecondsAfterFinished"] = 0.into();
    let uid = here.create(&removed);
    here.wait_phase("removed", "Running");
    site.bed.pool.tool("condor_rm", &["-constraint", &of(&uid)]).unwrap();
    here.wait("removed", "Failed", |object| bed::is_true(object, "Failed"));

    // One that was never submitted is let go at once.
    let mut waits = site.noted("waits", 1, "");
    waits["spec"]["suspend"] = true.into();
    here.create(&waits);
    here.wait_phase("waits", "Pending");
    proxy.add(Rule::new("PATCH", "/htcjobs/waits?", Fault::Status(403, None)));
    here.begin_delete("waits");
    here.wait_phase("waits", "Terminating");

    here.create(&site.lasting("stays", 1));
    here.wait_phase("stays", "Running");
    let uid = here.uid("stays");
    // The object, and not its status.
    proxy.add(Rule::new("PATCH", "/htcjobs/stays?", Fault::Status(403, None)));
    here.begin_delete("stays");
    here.wait("stays", "JobsRemoved", |object| bed::is_true(object, "JobsRemoved"));
    site.bed.assert_removed(&uid, "stays");

    proxy.clear();
    for name in ["over", "removed", "waits", "stays"] {
        here.wait_gone(name);
    }
}

const HANGS: &str = "hangs";
/// So many that all reconciles are taken by them again and again, each for as long as a write may take.
const BEFORE_THE_WEBHOOK: usize = 40;

/// A webhook for the HTCJobs of one namespace accepts connections and never answers.
fn hanging_webhook_delays_no_other_namespace(version: Version) {
    let site = Site::with(version, "", &["--max-concurrent-reconciles=4"]);
    let (hangs, here) = (site.bed.namespace(), site.bed.namespace());
    let names: Vec<String> = (0..BEFORE_THE_WEBHOOK).map(|nth| format!("waits-{nth}")).collect();
    let suspended = |name: &String| {
        let mut object = site.noted(name, 1, "");
        object["spec"]["suspend"] = true.into();
        object
    };
    hangs.create_all(&names.iter().map(suspended).collect::<Vec<_>>());
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    nobody.set_nonblocking(true).unwrap();
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": { "name": HANGS },
        "webhooks": [{
            "name": "hangs.example.com", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": hangs.name } },
            "rules": [{
                "apiGroups": ["htc.cern.ch"], "apiVersions": ["*"], "resources": ["htcjobs", "htcjobs/status"], "operations": ["UPDATE"],
            }],
            "clientConfig": { "url": format!("https://{}/", nobody.local_addr().unwrap()) },
        }],
    });
    site.bed.apply(&webhook);
    site.bed.start_operator();
    let _asked = wait_for("the webhook to be asked", PATIENCE, || nobody.accept()).unwrap();
    here.create(&site.noted("one", 1, ""));
    site.assert_complete_once(&here, "one", 1);
    let away = |object: &serde_json::Value| object["status"]["phase"].is_null();
    assert!(
        hangs.all().iter().filter(|object| away(object)).count() > BEFORE_THE_WEBHOOK / 2,
        "the webhook did not hang"
    );

    site.bed.kube.kubectl_ok(&["delete", "validatingwebhookconfiguration", HANGS]).unwrap();
    for name in &names {
        hangs.wait_phase(name, "Pending");
    }
}

/// How long the API server refuses everything.
const OUTAGE: Duration = Duration::from_secs(20);
const OBJECTS: usize = 10;

fn expired_watches_and_long_api_server_outage_lose_no_htcjob(version: Version) {
    let (site, proxy) = behind_a_proxy(version);
    let gone = Fault::Status(410, None);
    for (method, fault) in [
        ("WATCH", Fault::Expire(1)),
        ("WATCH", gone.clone()),
        ("WATCH", Fault::Expire(2)),
        ("GET", Fault::Status(500, None)),
    ] {
        let path = if method == "GET" { "/htcjobs?" } else { "/htcjobs" };
        proxy.add(Rule::new(method, path, fault).times(1));
    }
    site.bed.start_operator();
    let here = site.bed.namespace();
    let early = ["early-0", "early-1", "early-2", "early-3"];
    for name in early {
        here.create(&site.noted(name, 1, ""));
    }
    for name in early {
        let ended = site.assert_complete_once(&here, name, 1);
        assert_eq!(ended["status"]["attempt"], 1, "{name}");
    }
    assert_eq!(proxy.left(), 0, "every watch was broken as planned");
    let watches = proxy.seen().iter().filter(|seen| seen.path.contains("watch=")).count();
    assert!(watches <= 8, "{watches} watches were begun");

    let names: Vec<String> = (0..OBJECTS).map(|number| format!("long-{number}")).collect();
    here.create_all(&names.iter().map(|name| site.lasting(name, 1)).collect::<Vec<_>>());
    for name in &names {
        here.wait_phase(name, "Running");
    }
    let away = Fault::Status(503, None);
    let began = Instant::now();
    proxy.add(Rule::new("*", "", away.clone()));
    for name in &names {
        site.finish(name);
    }
    wait_for("the outage to last", PATIENCE, || began.elapsed() >= OUTAGE).unwrap();
    proxy.clear();
    // The Lease is tried at one pace all the time.
    let counts = |seen: &&Seen| seen.fault == Some(away.clone()) && !seen.path.contains("/leases");
    let refused: Vec<Duration> = proxy.seen().iter().filter(counts).map(|seen| seen.at - began).collect();
    let half = refused.iter().filter(|at| **at < OUTAGE / 2).count();
    println!("{version}: {} requests in {OUTAGE:?} of outage, {half} of them in the first half", refused.len());
    // Six or seven tries of each object, and of the Events eight or twice as many each time.
    assert!(refused.len() <= OBJECTS * 8 + 7 * 16, "{} requests", refused.len());
    assert!((refused.len() - half) * 2 <= half + OBJECTS, "the pauses do not grow: {refused:?}");
    for name in &names {
        let ended = site.assert_complete_once(&here, name, 1);
        assert_eq!(ended["status"]["attempt"], 1, "{name}");
    }

    // Pauses that have grown do not outlast the outage.
    let began = Instant::now();
    here.create(&site.noted("after", 1, ""));
    site.assert_complete_once(&here, "after", 1);
    println!("{version}: the next HTCJob took {:?}", began.elapsed());
    assert!(began.elapsed() < OUTAGE * 2, "the next HTCJob took {:?}", began.elapsed());
    let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
    all.extend(early);
    all.push("after");
    assert_events_once(&site, &here, &all);
}
