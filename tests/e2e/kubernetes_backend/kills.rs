//! The operator dies at every step, and another one goes on: never two Jobs, and nothing left.

use bed::{Namespace, PATIENCE, condition, is_true};
use htc_support::failpoint::Point;
use serde_json::json;
use testbed::{Version, wait_for};

use super::kubelet::{Kubelet, kept};
use super::stage::{Owned as _, Stage, assert_one_job, pods};

on_versions! {
    trixie:
        operator_kill_at_each_fail_point_creates_one_job,
        ledger_loss_creates_no_second_job,
        second_operator_leaves_the_job_alone;
}

/// Where it dies, in each life one after the other.
const LIVES: &[&[Point]] = {
    use Point::*;
    &[
        &[BeforeFinalizerAttached, AfterFinalizerAttached, BeforeDecisionSaved, AfterDecisionSaved],
        &[BeforeConfigMapCreated, AfterConfigMapCreated, BeforeJobCreated, AfterJobCreated],
        &[BeforeJobAdjusted, AfterJobAdjusted, BeforeStatusWritten, AfterStatusWritten],
        &[BeforeLogsSaved, AfterLogsSaved],
        &[BeforeJobDeleted, AfterJobDeleted, BeforeFinalizerReleased, AfterFinalizerReleased],
    ]
};

/// The same, where somebody deletes the Job and leaves its Pods.
const LEFT: &[Point] = {
    use Point::*;
    &[BeforePodDeleted, AfterPodDeleted, BeforeFinalizerReleased, AfterFinalizerReleased]
};

/// The same, where somebody abandons it, and the garbage collector would leave its Job.
const ABANDONED: &[Point] = {
    use Point::*;
    &[BeforeJobDeleted, AfterJobDeleted, BeforeFinalizerReleased, AfterFinalizerReleased]
};

/// The same, where its time after the end is over.
const EXPIRED: &[Point] = {
    use Point::*;
    &[BeforeObjectDeleted, AfterObjectDeleted, BeforeFinalizerReleased, AfterFinalizerReleased]
};

/// Those that no other life has.
pub const POINTS: &[Point] = {
    use Point::*;
    &[
        BeforeConfigMapCreated,
        AfterConfigMapCreated,
        BeforeJobCreated,
        AfterJobCreated,
        BeforeJobAdjusted,
        AfterJobAdjusted,
        BeforeLogsSaved,
        AfterLogsSaved,
        BeforeJobDeleted,
        AfterJobDeleted,
        BeforePodDeleted,
        AfterPodDeleted,
    ]
};

fn completed(here: &Namespace<'_>, name: &str) {
    here.create(&pods(name, 2));
    here.wait_pods("both", |pods| pods.len() == 2);
    let job = assert_one_job(here, name);
    here.run(0);
    here.end(0, 0);
    here.end(1, 5);
    let ended = here.wait_ended(name);
    assert!(is_true(&ended, "Failed"), "{ended:#}");
    let counts = ["succeeded", "failed", "active"].map(|count| ended["status"][count].as_i64().unwrap());
    assert_eq!(counts, [1, 1, 0], "{ended:#}");
    assert_eq!(assert_one_job(here, name), job, "it is the same one");
    let pods = here.pods();
    assert_eq!(pods.len(), 2, "each index had one Pod: {pods:#?}");
    here.begin_delete(name);
    here.wait_gone(name);
    assert!(here.jobs().is_empty() && here.pods().is_empty());
    here.wait_all_gone();
}

fn operator_kill_at_each_fail_point_creates_one_job(version: Version) {
    assert!(POINTS.iter().all(|point| LIVES.concat().contains(point) || LEFT.contains(point)));
    let stage = Stage::new(version);
    let here = stage.namespace();
    let places = |life: &[Point]| life.iter().map(|point| <&str>::from(point).to_owned()).collect::<Vec<_>>();
    for (number, life) in LIVES.iter().enumerate() {
        stage.bed.dying_at(&places(life), life.len(), || completed(&here, &format!("life-{number}")));
    }
    stage.bed.dying_at(&places(LEFT), LEFT.len(), || left_behind(&here, "left"));
    let kubelet = Kubelet::start(&stage.bed);
    let logs = [Point::BeforeLogsSaved, Point::AfterLogsSaved];
    stage.bed.dying_at(&places(&logs), logs.len(), || logged(&here, &kubelet, "logged"));
    stage.bed.dying_at(&places(ABANDONED), ABANDONED.len(), || abandoned(&here, "abandoned"));
    stage.bed.dying_at(&places(EXPIRED), EXPIRED.len(), || expired(&here, "expired"));
}

/// It goes by itself, and its Job with it.
fn expired(here: &Namespace<'_>, name: &str) {
    let mut object = pods(name, 1);
    object["spec"]["ttlSecondsAfterFinished"] = 0.into();
    here.create(&object);
    here.run(0);
    here.end(0, 0);
    here.wait_gone(name);
    here.wait_all_gone();
}

/// Its Job goes, whenever the operator dies.
fn abandoned(here: &Namespace<'_>, name: &str) {
    here.create(&pods(name, 1));
    here.run(0);
    here.wait_phase(name, "Running");
    here.patch("job", &here.job_name(name), &json!({ "metadata": { "ownerReferences": null } }));
    here.annotate(name, "htc.cern.ch/abandon");
    here.begin_delete(name);
    here.wait_gone(name);
    here.wait_all_gone();
}

/// On a node, so that there is a log: it is kept whenever the operator dies, and asked for again if it does not know that.
fn logged(here: &Namespace<'_>, kubelet: &Kubelet, name: &str) {
    here.create(&pods(name, 1));
    let log = kept(here, name, 0);
    let pod = kubelet.take(here, 0);
    kubelet.writes(&pod, b"one\ntwo\n");
    kubelet.ends(&pod);
    here.end(0, 0);
    assert!(is_true(&here.wait_ended(name), "Complete"));
    here.begin_delete(name);
    here.wait_gone(name);
    assert_eq!(std::fs::read_to_string(log).unwrap(), "one\ntwo\n");
    let asked = kubelet.asked().iter().filter(|asked| asked.contains(&pod)).count();
    assert!(asked >= 2, "{:?}", kubelet.asked());
    here.wait_all_gone();
}

/// Nothing else than the operator deletes these Pods before the HTCJob is let go.
fn left_behind(here: &Namespace<'_>, name: &str) {
    here.create(&pods(name, 2));
    here.wait_pods("both", |pods| pods.len() == 2);
    here.run(0);
    here.wait_phase(name, "Running");
    here.kubectl(&["delete", "job", &here.job_name(name), "--cascade=orphan", "--wait=false"]);
    let ended = here.wait_ended(name);
    let message = condition(&ended, "Failed").unwrap()["message"].to_string();
    assert!(message.contains("some of its Pods are still there"), "{message}");
    assert_eq!(here.pods().len(), 2, "they are left");
    here.begin_delete(name);
    here.wait_gone(name);
    assert!(here.pods().is_empty());
    here.wait_all_gone();
}

/// Existing Jobs continue. Missing Jobs are created again only if a person says so.
fn ledger_loss_creates_no_second_job(version: Version) {
    let stage = Stage::start(version);
    let (here, there, elsewhere) = (stage.namespace(), stage.namespace(), stage.namespace());
    // Its items go with the ledger, the list is deleted, and its status does not say how many there are.
    let config_map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "list", "namespace": elsewhere.name, "labels": { "htc.cern.ch/use": "items" } },
        "data": { "files": "a\nb\n" } });
    stage.bed.apply(&config_map);
    let mut listed = pods("listed", 2);
    listed["spec"].as_object_mut().unwrap().remove("queue");
    listed["spec"]["itemsFrom"] = json!({ "configMapKeyRef": { "name": "list", "key": "files" } });
    elsewhere.create(&listed);
    elsewhere.run(0);
    elsewhere.wait_phase("listed", "Running");
    here.create(&pods("found", 2));
    here.run(0);
    here.wait_phase("found", "Running");
    let job = assert_one_job(&here, "found");
    there.create(&pods("gone", 2));
    there.run(0);
    there.wait_phase("gone", "Running");
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {
        "name": "quota", "namespace": here.name }, "spec": { "hard": { "count/jobs.batch": "0" } } });
    stage.bed.apply(&quota);
    let quotas = format!("/api/v1/namespaces/{}/resourcequotas", here.name);
    wait_for("the quota to be in force", PATIENCE, || {
        stage.bed.object(&quotas, "quota").is_some_and(|quota| quota["status"]["hard"] == quota["spec"]["hard"])
    })
    .unwrap();
    here.create(&pods("never", 1));
    here.wait_says("never", "Submitted", "False", "CreateRefused");
    stage.bed.kill_operator();
    stage.bed.lose_ledger();
    here.remove("resourcequota", "quota");
    let lost = there.job_name("gone");
    there.remove("job", &lost);
    elsewhere.remove("configmap", "list");
    elsewhere.patch_status("htcjob", "listed", &json!({ "status": { "total": null } }));
    stage.bed.start_operator();
    elsewhere.end(0, 0);
    elsewhere.end(1, 0);
    let ended = elsewhere.wait_ended("listed");
    assert_eq!((&ended["status"]["succeeded"], &ended["status"]["total"]), (&json!(2), &json!(2)), "{ended:#}");
    let ended = there.wait_ended("gone");
    assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "JobsLost", "{ended:#}");
    here.wait_says("never", "Submitted", "False", "PastUnknown");
    here.end(0, 0);
    here.end(1, 3);
    let ended = here.wait_ended("found");
    assert_eq!((&ended["status"]["succeeded"], &ended["status"]["failedIndexes"]), (&json!(1), &json!("1")));
    assert_eq!(assert_one_job(&here, "found"), job, "it is the same one");
    assert_eq!((here.jobs().len(), there.jobs().len()), (1, 0), "nothing is made again");
    here.annotate("never", "htc.cern.ch/submit-again");
    here.end(0, 0);
    assert!(is_true(&here.wait_ended("never"), "Complete"));
    for (namespace, name) in [(&here, "found"), (&here, "never"), (&there, "gone"), (&elsewhere, "listed")] {
        namespace.delete(name);
    }
    here.wait_all_gone();
    there.wait_all_gone();
}

fn second_operator_leaves_the_job_alone(version: Version) {
    let stage = Stage::start(version);
    let here = stage.namespace();
    here.create(&pods("ours", 1));
    here.run(0);
    here.wait_phase("ours", "Running");
    let job = assert_one_job(&here, "ours");
    let data = stage.bed.scratch().dir("other").unwrap();
    let other = stage.bed.start_another("other", &data, &["--operator-name=other", "--kubernetes-backend"]);
    wait_for("the other operator to run", PATIENCE, || other.log_text().contains("htc-operator runs")).unwrap();
    here.end(0, 0);
    assert!(is_true(&here.wait_ended("ours"), "Complete"));
    // Whichever of them gets it.
    here.create(&pods("late", 1));
    here.end(0, 0);
    here.wait_ended("late");
    assert_one_job(&here, "late");
    assert_eq!(assert_one_job(&here, "ours"), job);
    here.delete("ours");
    here.delete("late");
    here.wait_all_gone();
}
