//! The schedd takes only so many jobs: at once, or at all.

use testbed::Version;

use crate::bed::condition;
use crate::site::{Site, says};

/// MAX_JOBS_PER_SUBMISSION is smaller than what the operator sends: it learns that, and nobody need know.
pub fn too_many_at_once(version: Version) {
    let site = Site::with(version, "MAX_JOBS_PER_SUBMISSION = 30\n", &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut many = site.noted("many", 100, "");
    // It is about their way in, not about running a hundred containers.
    many["spec"]["htcopts"] = "requirements = false".into();
    let uid = here.create(&many);
    let object = here.wait("many", "all are accepted", |object| {
        assert!(!says(object, "Submitted", "False", "SubmitRefused"), "{object:#}");
        object["status"]["idle"] == 100
    });
    assert_eq!(here.count_events("many", "SubmitRefused"), 0, "{:?}", here.events("many"));
    let submitted = site.gates.calls("condor_submit");
    println!("{version}: 100 jobs in {submitted} submissions, attempt {}", object["status"]["attempt"]);
    assert!(submitted <= 6, "100, and then 25 at a time: {submitted}");
    let all = site.bed.jobs_of(&uid);
    assert_eq!(all.len(), 100, "{all:#?}");

    // What has been learned is kept: the next one is not refused at all.
    let mut next = site.noted("next", 50, "");
    next["spec"]["htcopts"] = "requirements = false".into();
    here.create(&next);
    here.wait("next", "all are accepted", |object| object["status"]["idle"] == 50);
    assert_eq!(site.gates.calls("condor_submit"), submitted + 2);
    here.delete("many");
    here.delete("next");
}

/// MAX_JOBS_PER_OWNER: who has no room says so, waits, and goes on when jobs leave.
pub fn the_queue_is_full(version: Version) {
    let site = Site::with(version, "MAX_JOBS_PER_OWNER = 6\n", &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("first", 4));
    here.wait("first", "all run", |object| object["status"]["running"] == 4);
    here.create(&site.noted("second", 9, ""));
    let message = here.wait_says("second", "Submitted", "False", "SubmitRefused");
    assert!(message.contains("would exceed MAX_JOBS_PER_OWNER"), "{message}");
    // Two of the nine fit beside the four.
    here.wait("second", "some have ended", |object| object["status"]["succeeded"].as_u64() >= Some(1));
    let object = here.get("first");
    assert!(condition(&object, "Submitted").is_some_and(|told| told["status"] == "True"), "{object:#}");
    site.finish("first");
    site.assert_complete_once(&here, "second", 9);
    site.assert_complete_once(&here, "first", 4);
    assert!(here.count_events("second", "SubmitRefused") <= 3, "{:?}", here.events("second"));
}
