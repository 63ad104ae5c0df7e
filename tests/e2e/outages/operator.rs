//! The operator is stopped and killed.

use testbed::{Version, wait_for};

use bed::PATIENCE;
use bed::site::{PROMPT, Site};

on_versions! {
    sid: operator_stop_at_any_point_runs_each_job_once;
    long: operator_kill_at_any_point_runs_each_job_once;
}

#[derive(Clone, Copy)]
enum End {
    Terminate,
    Kill,
}

impl End {
    fn of(self, site: &Site) {
        match self {
            Self::Kill => site.bed.kill_operator(),
            // That it ends with 0 is checked there.
            Self::Terminate => {
                let took = site.bed.stop_operator();
                println!("SIGTERM took {took:?}");
                assert!(took < PROMPT, "SIGTERM took {took:?}");
            }
        }
    }
}

fn operator_stop_at_any_point_runs_each_job_once(version: Version) {
    goes_on(version, End::Terminate);
}

fn operator_kill_at_any_point_runs_each_job_once(version: Version) {
    goes_on(version, End::Kill);
}

fn goes_on(version: Version, end: End) {
    let site = Site::new(version);
    let here = site.bed.namespace();

    // Created while there is none.
    here.create(&site.noted("early", 1, ""));
    site.bed.start_operator();

    // Between the finalizer and the intent.
    site.gates.shut("condor_history");
    here.create(&site.noted("guarded", 1, ""));
    // What waits at the gate may have been asked for `early`; whoever comes later waits behind it.
    site.gates.wait_at("condor_history");
    here.wait("guarded", "the finalizer", |object| object["metadata"]["finalizers"].is_array());
    end.of(&site);
    site.gates.open("condor_history");
    site.bed.start_operator();
    site.assert_complete_once(&here, "early", 1);
    let guarded = site.assert_complete_once(&here, "guarded", 1);
    assert_eq!(guarded["status"]["attempt"], 1);

    // While jobs run, are removed, are handed to condor_submit and wait for their turn, all at once.
    let deleted = here.create(&site.lasting("deleted", 2));
    here.create(&site.lasting("running", 2));
    for name in ["deleted", "running"] {
        here.wait(name, "both jobs run", |object| object["status"]["running"] == 2);
    }
    site.gates.shut("condor_rm");
    here.begin_delete("deleted");
    site.gates.wait_at("condor_rm");
    site.gates.shut("condor_submit");
    here.create(&site.noted("handed", 2, ""));
    let submitter = site.gates.wait_at("condor_submit");
    here.create(&site.noted("waiting", 1, ""));
    end.of(&site);
    site.gates.open("condor_rm");
    site.bed.start_operator();
    wait_for("the end of the submitter by its time limit", PATIENCE, || !is_alive(submitter)).unwrap();
    site.gates.open("condor_submit");
    here.wait_gone("deleted");
    site.bed.assert_removed(&deleted, "deleted");
    site.assert_complete_once(&here, "handed", 2);
    site.assert_complete_once(&here, "waiting", 1);
    assert_eq!(here.get("running")["status"]["running"], 2);
    site.finish("running");
    site.assert_complete_once(&here, "running", 2);

    // After condor_submit, before the acceptance is recorded; one is to be deleted at that.
    let staged = here.create(&site.noted("staged", 1, ""));
    let doomed = here.create(&site.lasting("doomed", 1));
    for uid in [&staged, &doomed] {
        wait_for("the job in the queue", PATIENCE, || !site.bed.jobs_of(uid).is_empty()).unwrap();
    }
    here.begin_delete("doomed");
    end.of(&site);
    site.bed.start_operator();
    here.wait_gone("doomed");
    site.bed.assert_removed(&doomed, "doomed");
    let ended = site.assert_complete_once(&here, "staged", 1);
    assert_eq!(ended["status"]["attempt"], 1);

    site.assert_events_match_journal(&here);
    for name in ["early", "guarded", "handed", "waiting", "running", "staged"] {
        for reason in ["Pending", "Submitted", "Running", "Completed", "Fetched"] {
            assert_eq!(here.count_events(name, reason), 1, "{name}: {:?}", here.events(name));
        }
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}
