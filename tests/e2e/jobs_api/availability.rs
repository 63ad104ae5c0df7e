//! Outages of the front, of the leader, and of both: other APIs are not affected.

use std::time::{Duration, Instant};

use bed::front::available;
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, htcjob};
use testbed::{FRONT_PROXY, KubeOptions, Version, wait_for};

use crate::jobs_api::{API, json, names};
use bed::direct::Direct;

on_versions! {
    sid: jobs_api_outage_affects_no_other_api;
    long: certificates_are_renewed_while_requests_go_on, expired_certificate_is_renewed_by_the_next_leader;
}

fn wait_available(bed: &Bed, status: &str) {
    wait_for(&format!("the API to be available: {status}"), PATIENCE, || {
        let condition = available(bed);
        if condition["status"] == status { Ok(()) } else { Err(condition.to_string()) }
    })
    .unwrap();
}

/// A kubectl that remembers nothing of what there is.
fn afresh(bed: &Bed, arguments: &[&str]) -> testbed::Result<String> {
    let folder = testbed::Scratch::new().unwrap();
    let cache = format!("--cache-dir={}", folder.path().display());
    bed.kube.kubectl_ok(&[&[cache.as_str()], arguments].concat())
}

/// What has nothing to do with the jobs API goes on as if there were none.
fn others_notice_nothing(here: &Namespace<'_>, name: &str) {
    let bed = here.bed;
    for arguments in [
        ["api-resources", "--api-group=htc.cern.ch", "-o", "name"].as_slice(),
        &["-n", &here.name, "get", "htcjobs,configmaps,deployments.apps"],
        &["get", "--raw", "/openapi/v2"],
        &["explain", "htcjobs"],
    ] {
        afresh(bed, arguments).unwrap();
    }
    let groups = json(&afresh(bed, &["get", "--raw", "/apis"]).unwrap());
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "htc.cern.ch"), "{groups}");
    here.create(&htcjob(name, "true"));
    here.wait(name, "to be there", |_| true);
}

/// Controllers that look at all kinds of objects, and that [`controllers_notice_nothing`] needs.
pub(super) const CONTROLLERS: [&str; 3] =
    ["namespace-controller", "garbage-collector-controller", "resourcequota-controller"];

/// Those go on with the other kinds: what has lost its owner goes, and what there is counts.
pub(super) fn controllers_notice_nothing(here: &Namespace<'_>) {
    let counts = |wanted: &str| {
        wait_for(&format!("the quota to count {wanted}"), PATIENCE, || {
            let quota = here.object("resourcequota", "few").expect("it is there");
            let used = &quota["status"]["used"]["count/configmaps"];
            if *used == wanted { Ok(()) } else { Err(used.to_string()) }
        })
        .unwrap();
    };
    here.kubectl(&["create", "quota", "few", "--hard=count/configmaps=7"]);
    counts("0");
    here.kubectl(&["create", "configmap", "owner"]);
    let uid = here.object("configmap", "owner").unwrap()["metadata"]["uid"].take();
    let owned = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "owned", "namespace": here.name,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid }],
        },
    });
    here.bed.apply(&owned);
    counts("2");
    here.remove("configmap", "owner");
    wait_for("what was owned to be gone", PATIENCE, || here.object("configmap", "owned").is_none()).unwrap();
    counts("0");
}

fn jobs_api_outage_affects_no_other_api(version: Version) {
    let bed = Bed::with_jobs_api(version, LONG_SUBMISSIONS);
    let here = bed.namespace();
    // A site may start the front first: it waits for its certificate.
    let front = bed.new_front();
    wait_available(&bed, "False");
    others_notice_nothing(&here, "before");
    bed.start_operator();
    bed.wait_known();
    here.wait_ended("before");
    assert_eq!(names(&here.kubectl(&["get", "htcprocs"])), ["before-0"]);

    front.stop();
    wait_available(&bed, "False");
    others_notice_nothing(&here, "without-front");
    here.wait_ended("without-front");
    let why = here.try_kubectl(&["get", "--raw", &here.procs()]).unwrap_err().to_string();
    assert!(why.contains("currently unable to handle the request"), "{why}");

    bed.kill_operator();
    others_notice_nothing(&here, "without-both");
    front.start(&bed);
    wait_available(&bed, "True");

    // Without a leader: the API is there, and says why it gives no jobs.
    others_notice_nothing(&here, "without-leader");
    let discovered = json(&afresh(&bed, &["get", "--raw", API]).unwrap());
    assert_eq!(discovered["resources"][0]["name"], "htcprocs", "{discovered}");
    let api_server = Direct::new(front.port.number, Some(&bed.kube.front_proxy_credentials(FRONT_PROXY).unwrap()));
    let admin = [("X-Remote-User", "testbed-admin"), ("X-Remote-Group", "system:masters")];
    let (status, body) = api_server.get(&here.procs(), &admin).unwrap();
    let answer = json(&body);
    assert_eq!((status, &answer["reason"]), (503, &"ServiceUnavailable".into()), "{body}");
    assert_eq!(answer["details"]["retryAfterSeconds"], 2, "clients try again by themselves: {body}");
    let why = here.try_kubectl(&["get", "htcprocs"]).unwrap_err().to_string();
    assert!(why.contains("no htc-operator leads at the moment"), "{why}");
    assert_eq!(available(&bed)["status"], "True");

    // Who asks while the next one starts gets an answer, and not an empty one.
    let asks = here.admin().begins(&["get", "htcprocs"]);
    bed.start_operator();
    let status = asks.wait(PATIENCE).unwrap();
    assert!(status.success(), "{}", asks.log_text());
    let seen = asks.log_text();
    assert_eq!(names(&seen), ["before-0", "without-both-0", "without-front-0", "without-leader-0"], "{seen}");
    for name in ["without-both", "without-leader"] {
        here.wait_ended(name);
    }
}

fn front_certificate(bed: &Bed) -> (String, String) {
    let entry = |entry: &str| bed.own_secret("htc-operator-jobs-api-front", entry);
    (entry("tls.crt"), entry("ca.crt"))
}

fn certificates_are_renewed_while_requests_go_on(version: Version) {
    let bed = Bed::with_jobs_api(version, &[LONG_SUBMISSIONS, &["--jobs-api-certificate-life=60s"]].concat());
    bed.start_operator();
    bed.front();
    let here = bed.namespace();
    here.create(&htcjob("fit", "true"));
    here.wait_ended("fit");
    let watch = here.admin().begins(&["get", "htcprocs", "-w"]);
    let (first, mut seen, began) = (front_certificate(&bed), Vec::new(), Instant::now());
    // Until the first would have ended, and two others have come.
    while began.elapsed() < Duration::from_secs(60) || seen.len() < 2 {
        assert!(began.elapsed() < PATIENCE, "the certificate is not renewed: {}", seen.len());
        let answer = json(&here.bed.raw(&here.procs()).unwrap());
        assert_eq!(answer["items"].as_array().map(Vec::len), Some(1), "{answer}");
        let now = front_certificate(&bed);
        if now != first && seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    assert_eq!(available(&bed)["status"], "True");
    assert!(watch.is_running(), "{}", watch.log_text());
    here.create(&htcjob("after", "true"));
    bed::person::wait_printed(&watch, "a job on a connection that is older", |text| text.contains("after-0"));
}

fn expired_certificate_is_renewed_by_the_next_leader(version: Version) {
    let arguments = [LONG_SUBMISSIONS, &["--jobs-api-certificate-life=60s"]].concat();
    let bed = Bed::with_jobs_api_alone(version, &KubeOptions::default(), &arguments);
    let _controllers = bed.controllers(&CONTROLLERS);
    bed.start_operator();
    bed.front();
    let (here, other) = (bed.namespace(), bed.namespace());
    // Nobody renews it.
    bed.kill_operator();
    wait_available(&bed, "False");
    others_notice_nothing(&here, "meanwhile");
    controllers_notice_nothing(&here);
    bed.delete("/api/v1/namespaces", &other.name);
    let find = || bed.object("/api/v1/namespaces", &other.name);
    wait_for("the namespace to be kept", PATIENCE, || {
        let object = find().ok_or("it is gone")?;
        let kept = bed::condition(&object, "NamespaceDeletionDiscoveryFailure").map(|kept| kept["status"] == "True");
        if kept == Some(true) { Ok(()) } else { Err(object.to_string()) }
    })
    .unwrap();
    bed.start_operator();
    bed.wait_known();
    wait_for("the namespace to be gone", PATIENCE, || find().map_or(Ok(()), |left| Err(left.to_string()))).unwrap();
    here.wait_ended("meanwhile");
    assert_eq!(names(&here.kubectl(&["get", "htcprocs"])), ["meanwhile-0"]);
}
