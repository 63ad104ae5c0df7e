//! A namespace's share of active jobs.

use testbed::{Version, wait_for};

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
