//! The schedd loses its queue, history ends too early, and answers show less than there is.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use testbed::{Account, Version, wait_for};

use crate::faults::stuck::assert_growing;
use bed::site::Site;
use bed::{Namespace, OFTEN, PATIENCE, condition, ids, is_true, of};

on_versions! {
    trixie:
        single_empty_queue_answer_loses_no_job,
        jobs_of_a_lost_queue_are_lost_and_not_resubmitted,
        empty_first_queue_answer_loses_no_job,
        queue_view_of_another_user_loses_no_job;
    sid:
        jobs_are_not_resubmitted_while_history_is_too_short,
        empty_answer_to_a_partial_query_loses_no_job,
        jobs_lost_before_the_first_query_are_not_resubmitted;
}

/// Whether the jobs of `uid` run, each in its first start: nothing has touched them.
fn assert_untouched(site: &Site, uid: &str, count: usize) {
    let rows = site.bed.queue(&of(uid), &["JobStatus", "NumShadowStarts"]);
    assert_eq!(rows, vec![vec!["2".to_owned(), "1".to_owned()]; count]);
}

/// design §6.6: jobs that went with the queue are lost, they are not submitted again, their numbers mean others' jobs now.
fn jobs_of_a_lost_queue_are_lost_and_not_resubmitted(version: Version) {
    let site = Site::with(version, "", &["--birthdate-steady=4s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 2));
    let running = here.wait("running", "both run", |object| object["status"]["running"] == 2);
    for name in ["held", "doomed", "going"] {
        here.create(&site.lasting(name, 1));
    }
    here.create(&site.noted("done", 1, ""));
    for name in ["held", "doomed", "going"] {
        here.wait_phase(name, "Running");
    }
    site.assert_complete_once(&here, "done", 1);
    let held = of(&here.uid("held"));
    site.bed.pool.tool("condor_hold", &["-reason", "for a while", "-constraint", &held]).unwrap();
    here.wait_says("held", "Held", "True", "JobsHeld");
    site.gates.shut("condor_rm");
    here.begin_delete("going");
    site.gates.wait_at("condor_rm");
    let submitted = site.gates.calls("condor_submit");

    site.bed.pool.reset_queue().unwrap();
    let fresh = here.create(&site.lasting("fresh", 2));
    let now = here.wait("fresh", "both run", |object| object["status"]["running"] == 2);
    let (now, then) = (ids(&now), ids(&running));
    assert!(now.iter().any(|id| then.contains(id)), "the ids come again: {now:?} and {then:?}");
    site.gates.open("condor_rm");
    here.begin_delete("doomed");
    for (name, jobs) in [("running", 2), ("held", 1)] {
        let ended = here.wait_ended(name);
        assert_eq!(ended["status"]["phase"], "Completed");
        assert_eq!(ended["status"]["failed"], jobs, "{ended:#}");
        let failed = condition(&ended, "Failed").unwrap();
        assert_eq!(failed["reason"], "JobsLost", "{failed}");
        let message = failed["message"].as_str().unwrap();
        assert!(message.contains("was lost with the schedd's queue"), "{message}");
        assert_eq!(ended["status"]["attempt"], 1);
    }
    here.wait_gone("going");
    here.wait_gone("doomed");
    for name in ["running", "held", "done"] {
        here.delete(name);
    }
    assert_eq!(site.gates.calls("condor_submit"), submitted + 1, "only of `fresh`");
    assert_untouched(&site, &fresh, 2);
    site.finish("fresh");
    site.assert_complete_once(&here, "fresh", 2);
    site.assert_events_match_journal(&here);
}

/// docs/decisions/0007: jobs that ran before the operator's first query, and were lost with the queue, look as if they
/// had never existed. They are submitted again only if a person says so, and delay no deletion.
fn jobs_lost_before_the_first_query_are_not_resubmitted(version: Version) {
    let site = Site::with(version, "", &["--birthdate-steady=4s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.gates.shut("condor_q");
    for name in ["handed", "dropped"] {
        here.create(&site.noted(name, 1, ""));
        wait_for("its payload", PATIENCE, || site.runs(name, 0) == 1).unwrap();
    }
    site.bed.kill_operator();
    site.bed.pool.reset_queue().unwrap();
    site.gates.open("condor_q");
    site.bed.start_operator();
    for name in ["handed", "dropped"] {
        let message = here.wait_says(name, "Submitted", "False", "QueueLost");
        assert!(message.contains("htc.cern.ch/submit-again=true"), "what to do: {message}");
        assert_eq!(here.get(name)["status"]["phase"], "Pending");
        assert_eq!(site.runs(name, 0), 1);
    }
    here.create(&site.noted("new", 1, ""));
    site.assert_complete_once(&here, "new", 1);
    here.delete("dropped");
    here.annotate("handed", "htc.cern.ch/submit-again");
    let ended = here.wait_ended("handed");
    assert_eq!((&ended["status"]["succeeded"], &ended["status"]["attempt"]), (&1.into(), &2.into()), "{ended:#}");
    assert_eq!((site.runs("handed", 0), site.runs("dropped", 0)), (2, 1));
    assert_eq!(here.count_events("handed", "QueueLost"), 1, "{:?}", here.events("handed"));
}

/// A submission whose end nobody saw, and then the operator is gone.
pub fn unsure(site: &Site, here: &Namespace<'_>, name: &str) -> String {
    site.gates.shut("condor_submit");
    let uid = here.create(&site.noted(name, 1, ""));
    let submitter = site.gates.wait_at("condor_submit");
    site.bed.kill_operator();
    // Its time may have ended just now.
    let _ = kill_process(Pid::from_raw(submitter).unwrap(), Signal::KILL);
    site.gates.open("condor_submit");
    uid
}

/// `count` jobs of somebody else come and go.
fn others(site: &Site, count: usize) {
    let description =
        format!("executable = /bin/true\ntransfer_executable = false\nrequirements = false\nqueue {count}\n");
    let alice = site.bed.pool.client("alice").unwrap();
    alice.submit(&description).unwrap();
    let hers = "Owner == \"alice\"";
    wait_for("her jobs to be staged", PATIENCE, || {
        site.bed.queue(hers, &["JobStatus"]).iter().all(|row| row[0] == "1")
    })
    .unwrap();
    alice.ok("condor_rm", &["-constraint", hers]).unwrap();
    wait_for("her jobs to be gone", PATIENCE, || site.bed.queue(hers, &["ClusterId"]).is_empty()).unwrap();
}

/// A possibly submitted job is submitted again only once history proves that it was not, or an administrator says so.
fn jobs_are_not_resubmitted_while_history_is_too_short(version: Version) {
    let config = "MAX_HISTORY_LOG = 10000\nMAX_HISTORY_ROTATIONS = 1\n";
    let limits = ["--submit-timeout=10s", "--submit-timeout-max=10s", "--poll-interval=1s", "--retry-backoff-max=60s"];
    let site = Site::with(version, config, &limits);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let first = here.create(&site.noted("first", 1, ""));
    site.assert_complete_once(&here, "first", 1);
    let witness = of(&first);
    let file = site.bed.pool.spool_dir().join("history");

    for name in ["rotated", "missing"] {
        let uid = unsure(&site, &here, name);
        if name == "rotated" {
            others(&site, 40);
            assert!(site.bed.history(&witness, &["ClusterId"]).is_empty(), "history is longer than was thought");
        } else {
            for entry in fs::read_dir(site.bed.pool.spool_dir()).unwrap().flatten() {
                if entry.file_name().to_string_lossy().starts_with("history") {
                    fs::remove_file(entry.path()).unwrap();
                }
            }
            assert!(!file.exists());
        }
        let submitted = site.gates.calls("condor_submit");
        site.bed.start_operator();
        let message = here.wait_says(name, "Submitted", "False", "HistoryTooShort");
        assert!(message.contains("htc.cern.ch/submit-again=true"), "what to do: {message}");
        let asked = site.gates.calls("condor_history");
        // One look may take several calls.
        let looks = || {
            let mut times = site.gates.times("condor_history").split_off(asked);
            times.dedup_by(|next, before| *next - *before < 0.7);
            times
        };
        let times = wait_for("five more looks", PATIENCE, || Some(looks()).filter(|times| times.len() >= 5)).unwrap();
        assert_growing("history", &times, 1.0);
        assert_eq!(here.count_events(name, "HistoryTooShort"), 1, "{:?}", here.events(name));
        assert_eq!(site.gates.calls("condor_submit"), submitted, "nothing is submitted again");
        assert!(site.bed.jobs_of(&uid).is_empty());
        // It is in nobody's way.
        let beside = format!("beside-{name}");
        here.create(&site.noted(&beside, 1, ""));
        here.wait_ended(&beside);
        here.annotate(name, "htc.cern.ch/submit-again");
        let ended = here.wait_ended(name);
        assert_eq!(ended["status"]["attempt"], 2);
        // Without history only the payloads themselves can say how often they ran.
        for name in [name, &beside] {
            assert_eq!(here.get(name)["status"]["succeeded"], 1);
            assert_eq!(site.runs(name, 0), 1);
            here.wait_nothing_left(&here.uid(name));
        }
        here.delete(&beside);
    }

    // One that is deleted needs no history.
    unsure(&site, &here, "deleted");
    others(&site, 40);
    site.bed.start_operator();
    here.delete("deleted");
}

/// The operator's token is replaced by another user's, who can neither list nor change these jobs.
fn queue_view_of_another_user_loses_no_job(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    site.start_lasting(&here, &["running", "doomed"]);
    let (uid, doomed) = (here.uid("running"), here.uid("doomed"));
    let path = site.bed.condor.token();
    let own = fs::read_to_string(&path).unwrap();
    let other = fs::read_to_string(site.bed.pool.client("alice").unwrap().token()).unwrap();
    Account::unprivileged().write(&path, other, 0o600).unwrap();
    let plain = site.bed.condor.ok("condor_q", &["-af", "ClusterId"]).unwrap();
    assert_eq!(plain, "", "to her the queue is empty");
    here.begin_delete("doomed");
    let (asked, removed) = (site.gates.calls("condor_q"), site.gates.calls("condor_rm"));
    wait_for("some looks and tries", PATIENCE, || {
        site.gates.calls("condor_q") >= asked + 6 && site.gates.calls("condor_rm") >= removed + 2
    })
    .unwrap();
    let message = here.wait_says("doomed", "JobsRemoved", "False", "NotRemovedYet");
    assert!(message.contains("the user who submitted them"), "what to do: {message}");
    assert_untouched(&site, &doomed, 1);
    assert_untouched(&site, &uid, 1);
    assert_eq!(here.get("running")["status"]["running"], 1);
    Account::unprivileged().write(&path, own, 0o600).unwrap();
    here.wait_gone("doomed");
    site.bed.assert_removed(&doomed, "doomed");
    site.finish("running");
    site.assert_complete_once(&here, "running", 1);
}

/// One answer with rc 0 that shows none of the jobs: it is asked again before that is believed.
fn single_empty_queue_answer_loses_no_job(version: Version) {
    let site = Site::with(version, "", &[OFTEN]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 2));
    here.wait("running", "both run", |object| object["status"]["running"] == 2);
    for round in 0..3 {
        shows_nothing_once(&site, round, Look::AtAll, 3);
    }
    let running = here.get("running");
    assert_eq!((&running["status"]["phase"], &running["status"]["running"]), (&"Running".into(), &2.into()));
    site.finish("running");
    let ended = site.assert_complete_once(&here, "running", 2);
    assert_eq!(ended["status"]["attempt"], 1);
}

/// The same for jobs that no full query has returned yet, only the one that found them accepted.
fn empty_first_queue_answer_loses_no_job(version: Version) {
    let site = Site::with(version, "", &["--poll-interval=20s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 2));
    here.wait("running", "its ids", |object| object["status"]["clusterid"].is_string());
    shows_nothing_once(&site, 0, Look::AtAll, 2);
    site.finish("running");
    site.assert_complete_once(&here, "running", 2);
}

/// The same for queries of single HTCJobs, right after a submission and while running jobs are held.
fn empty_answer_to_a_partial_query_loses_no_job(version: Version) {
    let site = Site::with(version, "", &["--poll-interval=20s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let submitted = hide_once(&site, 0, Look::AtFew);
    here.create(&site.lasting("running", 1));
    here.wait_phase("running", "Running");
    assert!(!submitted.exists(), "no look at few after the submission");
    let held = hide_once(&site, 1, Look::AtFew);
    here.suspend("running", true);
    here.wait("running", "held", |object| object["status"]["held"] == 1);
    assert!(!held.exists(), "no look at few after the hold");
    site.gates.restore("condor_q");
    here.suspend("running", false);
    site.finish("running");
    let ended = here.wait_ended("running");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(ended["status"]["attempt"], 1);
}

/// Which of the tracker's questions.
#[derive(Clone, Copy)]
enum Look {
    AtAll,
    AtFew,
}

/// The next such condor_q finds no job, and those after it, of which there are `looks` in all, what is there.
fn shows_nothing_once(site: &Site, round: u32, look: Look, looks: usize) {
    let asked = site.gates.calls("condor_q");
    let once = hide_once(site, round, look);
    wait_for("the answer, and some more looks", PATIENCE, || {
        !once.exists() && site.gates.calls("condor_q") >= asked + looks
    })
    .unwrap();
    site.gates.restore("condor_q");
}

/// From now on the next such condor_q finds no job; gives what is there until then.
fn hide_once(site: &Site, round: u32, look: Look) -> PathBuf {
    let once = site.gates.place("once").join(round.to_string());
    Account::unprivileged().make_dir(&once, 0o755).unwrap();
    let wanted = match look {
        Look::AtAll => "*'EnteredCurrentStatus >= '*|*member\\(HTCJobUID*) ;; *)",
        Look::AtFew => "*member\\(HTCJobUID*)",
    };
    let script = format!(
        "real=$1; shift\ncase \"$*\" in {wanted} rmdir {} 2>/dev/null && exec $real \"$@\" -constraint false;; esac\nexec $real \"$@\"\n",
        once.display()
    );
    site.gates.replace("condor_q", &script);
    once
}
