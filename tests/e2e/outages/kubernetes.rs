//! The API server goes away.

use testbed::{Version, wait_for};

use bed::PATIENCE;
use bed::site::{PROMPT, Site};

on_versions! {
    trixie: api_server_kill_loses_no_status_and_no_event;
}

fn api_server_kill_loses_no_status_and_no_event(version: Version) {
    // It leads for long enough to meet the news.
    let site = Site::with(version, "", &["--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=45s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let uid = here.create(&site.lasting("job", 2));
    here.wait("job", "both jobs run", |object| object["status"]["running"] == 2);

    // Many are new, some of their Events are written, the others are to be.
    here.create_all(&[0, 1, 2, 3, 4, 5].map(|number| site.noted(&format!("n{number}"), 1, "")));
    site.bed.kube.kill_apiserver().unwrap();
    site.finish("job");
    wait_for("the end of the jobs, unknown to Kubernetes", PATIENCE, || {
        site.bed.jobs_of(&uid).iter().all(|job| job.status == 4)
    })
    .unwrap();
    wait_for("the operator to have news that it cannot tell", PATIENCE, || {
        site.bed.log().contains("Events not written")
    })
    .unwrap();
    site.bed.kube.start_apiserver().unwrap();
    for number in 0..6 {
        let ended = site.assert_complete_once(&here, &format!("n{number}"), 1);
        assert_eq!(ended["status"]["attempt"], 1);
    }
    site.assert_complete_once(&here, "job", 2);

    // The operator too is killed and started while there is no API server to tell it what to do.
    let uid = here.create(&site.lasting("other", 2));
    here.wait("other", "both jobs run", |object| object["status"]["running"] == 2);
    site.bed.kube.kill_apiserver().unwrap();
    site.finish("other");
    wait_for("the end of the jobs, unknown to Kubernetes", PATIENCE, || {
        site.bed.jobs_of(&uid).iter().all(|job| job.status == 4)
    })
    .unwrap();
    site.bed.kill_operator();
    site.bed.start_operator();
    wait_for("the operator to look for the API server", PATIENCE, || {
        site.bed.log().contains("waiting for the API server")
    })
    .unwrap();
    assert!(site.bed.stop_operator() < PROMPT);
    site.bed.start_operator();
    site.bed.kube.start_apiserver().unwrap();
    site.assert_complete_once(&here, "other", 2);

    // One that hangs is no better than none.
    here.create(&site.lasting("third", 1));
    here.wait_phase("third", "Running");
    site.bed.kube.pause_apiserver().unwrap();
    site.finish("third");
    wait_for("the operator to have news that it cannot tell", PATIENCE, || {
        site.bed.log().contains("Events not written")
    })
    .unwrap();
    site.bed.kube.resume_apiserver().unwrap();
    site.assert_complete_once(&here, "third", 1);
    site.bed.kube.pause_apiserver().unwrap();
    assert!(site.bed.stop_operator() < PROMPT);
    site.bed.kube.resume_apiserver().unwrap();
    site.bed.start_operator();
    wait_for("the operator to run", PATIENCE, || site.bed.log().contains("htc-operator runs")).unwrap();

    site.assert_events_match_journal(&here);
    for name in ["job", "n0", "n5", "other", "third"] {
        for reason in ["Pending", "Submitted", "Running", "Completed", "Fetched"] {
            assert_eq!(here.count_events(name, reason), 1, "{name}: {:?}", here.events(name));
        }
    }
}
