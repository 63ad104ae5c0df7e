//! A namespace's share of active jobs, and of the submissions.

use std::collections::BTreeSet;

use serde_json::Value;
use testbed::{Version, wait_for};

use bed::site::{Site, says};
use bed::{LONG_SUBMISSIONS, Namespace, PATIENCE, beside, htcjob, ids, of};

on_versions! {
    trixie: submissions_take_turns_between_namespaces;
    sid: active_jobs_never_exceed_the_namespace_limit;
    long: parallelism_applies_within_the_namespace_limit;
}

/// A namespace has no more active jobs than it may have, what is left is submitted when others end, and another namespace has its own.
fn active_jobs_never_exceed_the_namespace_limit(version: Version) {
    let site = Site::with(version, "", &["--namespace-active-jobs=3"]);
    site.bed.start_operator();
    let (here, there) = (site.bed.namespace(), site.bed.namespace());
    here.create(&site.lasting("first", 2));
    here.wait_says("first", "Submitted", "True", "Accepted");
    let uid = here.create(&site.lasting("second", 4));
    let message = here.wait_says("second", "Submitted", "False", "NamespaceLimitReached");
    assert!(message.contains("--namespace-active-jobs") && message.contains("when others end"), "{message}");
    there.create(&site.lasting("others", 3));
    there.wait_says("others", "Submitted", "True", "Accepted");
    let accepted = |count: usize| {
        wait_for("jobs to be submitted", PATIENCE, || site.bed.jobs_of(&uid).len() == count).unwrap();
    };
    accepted(1);
    // The leader that follows knows what is in HTCondor.
    site.bed.stop_operator();
    site.bed.start_operator();
    site.finish("first");
    accepted(3);
    site.finish("second");
    site.assert_complete_once(&here, "second", 4);
    assert_eq!(here.count_events("second", "NamespaceLimitReached"), 1, "{:?}", here.events("second"));
}

/// Beside a share of the namespace `parallelism` counts as well: the smaller number wins, and places that one HTCJob gives back go to
/// the other, up to its own number.
fn parallelism_applies_within_the_namespace_limit(version: Version) {
    let site = Site::with(version, "", &["--namespace-active-jobs=3"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let two_at_a_time = |name: &str| {
        let mut object = site.lasting(name, 4);
        object["spec"]["parallelism"] = 2.into();
        here.create(&object)
    };
    let first = two_at_a_time("first");
    here.wait_says("first", "Submitted", "False", "ParallelismReached");
    assert_eq!(site.bed.jobs_of(&first).len(), 2);
    let second = two_at_a_time("second");
    here.wait_says("second", "Submitted", "False", "NamespaceLimitReached");
    assert_eq!(site.bed.jobs_of(&second).len(), 1);
    let open = |of: &str| format!("({of}) && !member(JobStatus, {{3,4}})");
    let queries = [open(&format!("{} || {}", of(&first), of(&second))), open(&of(&second))];
    let look = |most: &mut [usize; 2]| {
        for (most, query) in most.iter_mut().zip(&queries) {
            *most = site.bed.queue(query, &["ProcId"]).len().max(*most);
        }
    };
    let ((), most) = beside([0, 0], look, || {
        site.finish("first");
        here.wait_says("second", "Submitted", "False", "ParallelismReached");
        here.wait_ended("first");
        site.finish("second");
        here.wait_ended("second");
    });
    assert_eq!(most, [3, 2]);
    site.assert_complete_once(&here, "first", 4);
    site.assert_complete_once(&here, "second", 4);
}

/// HTCJobs of one namespace that all wait for a submission, and those of another one that come after them.
const CROWD: usize = 40;
const OTHERS: usize = 8;
/// Most of them in one submission.
const TOGETHER: usize = 4;

/// Who comes after a crowd waits for no more of the crowd than its own number, and the submission under way. That is counted, and not
/// timed: HTCondor numbers jobs in the order of their submissions.
///
/// It fails if namespaces have no turns (`in_turn` in `lane.rs`, and what `take` puts behind the others).
fn submissions_take_turns_between_namespaces(version: Version) {
    let together = format!("--batch-objects={TOGETHER}");
    let site = Site::with(version, "", &[&[together.as_str()], LONG_SUBMISSIONS].concat());
    site.bed.start_operator();
    let (crowd, here) = (site.bed.namespace(), site.bed.namespace());
    let mut object = htcjob("", "true");
    object["spec"]["htcopts"] = "requirements = false".into();
    let mut named = |name: String| {
        object["metadata"]["name"] = name.into();
        object.clone()
    };
    site.gates.shut("condor_submit");
    crowd.create(&named("crowd-first".to_owned()));
    site.gates.wait_at("condor_submit");
    crowd.create_all(&(1..CROWD).map(|number| named(format!("crowd-{number}"))).collect::<Vec<_>>());
    let all_wait = |here: &Namespace<'_>, count: usize| {
        wait_for("all to wait for their submission", PATIENCE, || {
            let waits = |object: &&Value| says(object, "Submitted", "False", "Submitting");
            let waiting = here.all().iter().filter(waits).count();
            if waiting == count { Ok(()) } else { Err(waiting) }
        })
        .unwrap();
    };
    all_wait(&crowd, CROWD);
    here.create_all(&(0..OTHERS).map(|number| named(format!("other-{number}"))).collect::<Vec<_>>());
    all_wait(&here, OTHERS);
    site.gates.open("condor_submit");

    let numbers = |here: &Namespace<'_>, count: usize| -> BTreeSet<(u64, u64)> {
        wait_for("all to be accepted", PATIENCE, || {
            let accepted = |object: &&Value| object["status"]["clusterid"].is_string();
            let ids: Vec<String> = here.all().iter().filter(accepted).flat_map(ids).collect();
            if ids.len() == count { Ok(ids) } else { Err(ids.len()) }
        })
        .unwrap()
        .iter()
        .map(|id| id.split_once('.').map(|(cluster, proc)| (cluster.parse().unwrap(), proc.parse().unwrap())).unwrap())
        .collect()
    };
    let (others, all) = (numbers(&here, OTHERS), numbers(&crowd, CROWD));
    let before = all.iter().filter(|id| *id < others.last().unwrap()).count();
    println!("{version}: {before} of {CROWD} came before the last of {OTHERS} others");
    assert!(before <= OTHERS + 2 * TOGETHER, "{before} of the crowd came first: {all:?}, {others:?}");
    assert!(all.iter().any(|id| id < others.first().unwrap()), "the crowd was first");
}
