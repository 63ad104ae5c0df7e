//! Namespaces that are deleted, by the controller that does it in every cluster.

use bed::front::available;
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO, checkout, htcjob, ids, of};
use serde_json::Value;
use testbed::{Controllers, KubeOptions, Version, wait_for};

use crate::jobs_api::availability::{CONTROLLERS, controllers_notice_nothing};
use crate::jobs_api::names;

on_versions! {
    trixie: namespace_deletion_removes_all_jobs;
    long: namespace_deletion_waits_for_the_jobs_api;
}

const DISCOVERY: &str = "NamespaceDeletionDiscoveryFailure";

fn bed(version: Version) -> (Bed, Controllers) {
    let bed = Bed::with_jobs_api_alone(version, &KubeOptions::default(), LONG_SUBMISSIONS);
    let controllers = bed.controllers(&CONTROLLERS);
    (bed, controllers)
}

fn delete(here: &Namespace<'_>) {
    here.bed.delete("/api/v1/namespaces", &here.name);
}

fn find(here: &Namespace<'_>) -> Option<Value> {
    here.bed.object("/api/v1/namespaces", &here.name)
}

fn wait_gone(here: &Namespace<'_>, controllers: &Controllers) {
    let gone = wait_for(&format!("namespace {} to be gone", here.name), PATIENCE, || match find(here) {
        None => Ok(()),
        Some(left) => Err(left["status"].to_string()),
    });
    gone.unwrap_or_else(|error| panic!("{error}\n{:?}\n{}", here.all(), controllers.log()));
}

/// What the namespace's condition says that is True now, and was not before.
fn wait_kept(here: &Namespace<'_>, condition: &str) -> String {
    wait_for(&format!("namespace {} to be kept: {condition}", here.name), PATIENCE, || {
        let object = find(here).ok_or("it is gone")?;
        let found = bed::condition(&object, condition).filter(|found| found["status"] == "True");
        found.map(|found| found["message"].as_str().unwrap().to_owned()).ok_or(object["status"].to_string())
    })
    .unwrap()
}

fn wait_available(bed: &Bed, status: &str) {
    wait_for(&format!("the API to be available: {status}"), PATIENCE, || {
        let condition = available(bed);
        if condition["status"] == status { Ok(()) } else { Err(condition.to_string()) }
    })
    .unwrap();
}

/// An HTCJob of which nothing is left once its namespace is gone, in HTCondor either.
fn under_way(here: &Namespace<'_>, name: &str, jobs: u32) -> (String, Vec<String>) {
    let mut object = htcjob(name, UNTIL_LET_GO);
    object["spec"]["queue"] = jobs.into();
    let uid = here.create(&object);
    (uid, ids(&here.wait_running(name, jobs)))
}

fn namespace_deletion_removes_all_jobs(version: Version) {
    let (bed, controllers) = bed(version);
    bed.start_operator();
    bed.front();
    let (here, there) = (bed.namespace(), bed.namespace());
    let (runs, running) = under_way(&here, "runs", 3);
    let (held, on_hold) = under_way(&here, "held", 1);
    bed.condor.ok("condor_hold", &[&on_hold[0]]).unwrap();
    // The Secret goes with the namespace, too.
    let token = format!("--from-file=token={}", bed.pool.client("alice").unwrap().token().display());
    here.kubectl(&["create", "secret", "generic", "my-condor", &token]);
    here.let_read_secret("my-condor");
    here.let_use("secret", "my-condor");
    let mut object = htcjob("theirs", UNTIL_LET_GO);
    object["spec"]["credentialsSecretName"] = "my-condor".into();
    let theirs = here.create(&object);
    here.wait_running("theirs", 1);
    let mut waits = htcjob("waits", "true");
    waits["spec"]["parallelism"] = 0.into();
    let waits = here.create(&waits);
    let ended = here.create(&htcjob("ended", "true"));
    here.wait_ended("ended");
    under_way(&there, "others", 1);
    delete(&here);
    wait_gone(&here, &controllers);
    for uid in [&runs, &held, &theirs, &waits, &ended] {
        assert_eq!(bed.queue(&of(uid), &["ClusterId"]), Vec::<Vec<String>>::new());
    }
    bed.wait_spool_free(&[running, on_hold].concat());
    assert_eq!(names(&bed.kube.kubectl_ok(&["get", "htcprocs", "-A"]).unwrap()), [there.name.as_str()]);
    there.let_go("others");
    // And one that has nothing.
    let empty = bed.namespace();
    delete(&empty);
    wait_gone(&empty, &controllers);
}

fn namespace_deletion_waits_for_the_jobs_api(version: Version) {
    let (bed, controllers) = bed(version);
    bed.start_operator();
    let front = bed.front();
    let (here, other) = (bed.namespace(), bed.namespace());
    let (uid, _) = under_way(&here, "runs", 2);
    other.kubectl(&["create", "configmap", "something"]);

    front.stop();
    bed.kill_operator();
    wait_available(&bed, "False");
    for namespace in [&here, &other] {
        delete(namespace);
        let why = wait_kept(namespace, DISCOVERY);
        assert!(why.contains("procs.htc.cern.ch/v1alpha1"), "{why}");
    }
    // What was in it goes all the same.
    wait_for("what the other namespace has to go", PATIENCE, || {
        let left = other.kubectl(&["get", "configmaps", "-o", "name"]);
        if left.contains("something") { Err(left) } else { Ok(()) }
    })
    .unwrap();
    assert!(find(&other).is_some());
    controllers_notice_nothing(&bed.namespace());

    // A front is enough for other namespaces; an HTCJob waits for its operator.
    front.start(&bed);
    wait_available(&bed, "True");
    wait_gone(&other, &controllers);
    let why = wait_kept(&here, "NamespaceFinalizersRemaining");
    assert!(why.contains("htc.cern.ch/condor-jobs"), "{why}");
    assert!(here.get("runs")["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(bed.queue(&of(&uid), &["ClusterId"]).len(), 2);
    // Controllers that are started now learn from discovery what there is, and from nobody what jobs there are.
    drop(controllers);
    let controllers = bed.controllers(&CONTROLLERS);
    controllers_notice_nothing(&bed.namespace());
    bed.start_operator();
    wait_gone(&here, &controllers);
    assert_eq!(bed.queue(&of(&uid), &["ClusterId"]), Vec::<Vec<String>>::new());

    // Who takes the API away lets them go, too.
    let third = bed.namespace();
    front.stop();
    wait_available(&bed, "False");
    controllers_notice_nothing(&bed.namespace());
    delete(&third);
    wait_kept(&third, DISCOVERY);
    let folder = checkout().join("deploy/jobs-api");
    bed.kube.kubectl_ok(&["delete", "-k", folder.to_str().unwrap()]).unwrap();
    wait_gone(&third, &controllers);
}
