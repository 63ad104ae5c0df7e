//! A namespace's share of active jobs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testbed::{Version, wait_for};

use crate::lifecycle::of;
use bed::PATIENCE;
use bed::site::Site;

/// A namespace has no more active jobs than it may have, what is left is submitted when others end, and another namespace has its own.
pub fn no_more_active_jobs_than_the_share(version: Version) {
    let site = Site::with(version, "", &["--namespace-active-jobs=3"]);
    site.bed.start_operator();
    let (here, there) = (site.bed.namespace(), site.bed.namespace());
    here.create(&site.lasting("first", 2));
    here.wait_says("first", "Submitted", "True", "Accepted");
    let uid = here.create(&site.lasting("second", 4));
    let message = here.wait_says("second", "Submitted", "False", "NamespaceLimit");
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
    assert_eq!(here.count_events("second", "NamespaceLimit"), 1, "{:?}", here.events("second"));
}

/// Beside a share of the namespace `parallelism` counts as well: the smaller number wins, and places that one HTCJob gives back go to
/// the other, up to its own number.
pub fn parallelism_within_the_share(version: Version) {
    let site = Site::with(version, "", &["--namespace-active-jobs=3"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let two_at_a_time = |name: &str| {
        let mut object = site.lasting(name, 4);
        object["spec"]["parallelism"] = 2.into();
        here.create(&object)
    };
    let first = two_at_a_time("first");
    here.wait_says("first", "Submitted", "False", "Parallelism");
    assert_eq!(site.bed.jobs_of(&first).len(), 2);
    let second = two_at_a_time("second");
    here.wait_says("second", "Submitted", "False", "NamespaceLimit");
    assert_eq!(site.bed.jobs_of(&second).len(), 1);
    let open = |of: &str| format!("({of}) && !member(JobStatus, {{3,4}})");
    let ended = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let both = open(&format!("{} || {}", of(&first), of(&second)));
            let mut most = [0, 0];
            while !ended.load(Ordering::Relaxed) {
                most[0] = most[0].max(site.bed.queue(&both, &["ProcId"]).len());
                most[1] = most[1].max(site.bed.queue(&open(&of(&second)), &["ProcId"]).len());
            }
            most
        });
        site.finish("first");
        here.wait_says("second", "Submitted", "False", "Parallelism");
        here.wait_ended("first");
        site.finish("second");
        here.wait_ended("second");
        ended.store(true, Ordering::Relaxed);
        looks.join().unwrap()
    });
    assert_eq!(most, [3, 2]);
    site.assert_complete_once(&here, "first", 4);
    site.assert_complete_once(&here, "second", 4);
}
