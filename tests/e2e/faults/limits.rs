//! The schedd takes only so many jobs, at once or at all; or not all of those that come together.

use std::time::Instant;

use serde_json::Value;
use testbed::{Version, wait_for};

use bed::site::{Site, says};
use bed::{PATIENCE, condition};

on_versions! {
    trixie: refused_submission_of_many_jobs_goes_in_parts;
    sid: refused_htcjob_does_not_block_its_submission_batch;
    long: jobs_beyond_max_jobs_per_owner_wait, submission_size_follows_max_jobs_per_submission;
}

/// MAX_JOBS_PER_SUBMISSION is smaller than the operator's submissions: the operator learns it and reports it.
fn submission_size_follows_max_jobs_per_submission(version: Version) {
    let site = Site::with(version, "MAX_JOBS_PER_SUBMISSION = 30\n", &["--retry-backoff-max=120s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    // Longer than a status waits for its next change, so that each is seen.
    site.gates.replace("condor_submit", "real=$1; shift\nsleep 2\nexec $real \"$@\"\n");
    let mut many = site.noted("many", 100, "");
    // It is about their way in, not about running a hundred containers.
    many["spec"]["htcopts"] = "requirements = false".into();
    let uid = here.create(&many);
    let message = here.wait_says("many", "Submitted", "False", "SmallerSubmissions");
    site.gates.restore("condor_submit");
    assert!(message.contains("at most 25 jobs at once") && message.contains("MAX_JOBS_PER_SUBMISSION"), "{message}");
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

/// A SUBMIT_REQUIREMENT of the site refuses many jobs at once, with a message that the operator cannot interpret.
fn refused_submission_of_many_jobs_goes_in_parts(version: Version) {
    let config = "SUBMIT_REQUIREMENT_NAMES = Few\nSUBMIT_REQUIREMENT_Few = ProcId < 20\n\
        SUBMIT_REQUIREMENT_Few_REASON = \"this site takes twenty at once\"\n";
    let site = Site::with(version, config, &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut many = site.noted("many", 60, "");
    many["spec"]["htcopts"] = "requirements = false".into();
    let uid = here.create(&many);
    let message = here.wait_says("many", "Submitted", "False", "SubmitRefused");
    assert!(message.contains("this site takes twenty at once"), "{message}");
    here.wait("many", "all are accepted", |object| object["status"]["idle"] == 60);
    assert_eq!(site.bed.jobs_of(&uid).len(), 60);
    here.delete("many");
}

/// MAX_JOBS_PER_OWNER: further jobs report it, wait, and are submitted when others leave the queue.
fn jobs_beyond_max_jobs_per_owner_wait(version: Version) {
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
    assert!(condition(&object, "Submitted").is_some_and(|condition| condition["status"] == "True"), "{object:#}");
    site.finish("first");
    site.assert_complete_once(&here, "second", 9);
    site.assert_complete_once(&here, "first", 4);
    // Once while none of them was in, once while some were.
    assert!(here.count_events("second", "SubmitRefused") <= 2, "{:?}", here.events("second"));
}

/// A submission of many HTCJobs fails because of one. The others are submitted again in smaller batches, soon.
fn refused_htcjob_does_not_block_its_submission_batch(version: Version) {
    const GOOD: usize = 24;
    let config = "SUBMIT_REQUIREMENT_NAMES = Name\nSUBMIT_REQUIREMENT_Name = !regexp(\"/refused$\", JobBatchName)\n";
    // The first stands at its gate until all others have come.
    let site = Site::with(version, config, &["--submit-timeout=150s", "--submit-timeout-max=150s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.gates.shut("condor_submit");
    here.create(&site.noted("first", 1, ""));
    site.gates.wait_at("condor_submit");
    let good = |number: usize| format!("good-{number}");
    let mut objects: Vec<_> = (0..GOOD).map(|number| site.noted(&good(number), 1, "")).collect();
    objects.insert(GOOD / 2, site.noted("refused", 1, ""));
    here.create_all(&objects);
    wait_for("all to wait for the first", PATIENCE, || {
        let waits = |object: &&Value| says(object, "Submitted", "False", "Submitting");
        let waiting = here.all().iter().filter(waits).count();
        if waiting == GOOD + 2 { Ok(()) } else { Err(waiting) }
    })
    .unwrap();
    site.gates.open("condor_submit");
    let began = Instant::now();
    wait_for("the ids of all but one", PATIENCE, || {
        let have = here.all().iter().filter(|object| object["status"]["clusterid"].is_string()).count();
        if have > GOOD { Ok(()) } else { Err(have) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", site.bed.logs()));
    let submissions = site.gates.calls("condor_submit");
    println!("{version}: {GOOD} beside a bad one in {submissions} submissions, {:.1?}", began.elapsed());
    assert!(submissions < GOOD / 2 + 6, "fewer, not one by one: {submissions}");
    for number in 0..GOOD {
        let ended = site.assert_complete_once(&here, &good(number), 1);
        assert!(ended["status"]["attempt"].as_u64() <= Some(3), "{ended:#}");
        assert_eq!(here.count_events(&good(number), "SubmitRefused"), 0, "it is not its fault");
    }
    here.wait_says("refused", "Submitted", "False", "SubmitRefused");
}
