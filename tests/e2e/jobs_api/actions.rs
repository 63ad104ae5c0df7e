//! Users hold, release and remove single jobs.

use bed::gates::Gates;
use bed::person::{Person, wait_printed};
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO, htcjob, ids, is_true};
use serde_json::Value;
use testbed::tool::Finished;
use testbed::{Version, wait_for};

use crate::jobs_api::json;
use crate::jobs_api::states::wait_state;

on_versions! {
    both: single_jobs_are_held_released_and_removed;
    trixie: jobs_removed_before_submission_never_reach_htcondor;
    sid:
        only_editors_of_the_namespace_hold_release_and_remove,
        action_that_htcondor_refuses_is_retried_and_reported,
        requested_hold_survives_operator_kill_and_silent_schedd;
}

/// Asks that something is done about one job.
fn post(person: &Person<'_>, here: &Namespace<'_>, job: &str, action: &str) -> Finished {
    let to = format!("{}/{job}/{action}", here.procs());
    person.kubectl(&["create", "--raw", &to, "-f", "/dev/null"])
}

/// The job as it is answered.
pub(super) fn does(person: &Person<'_>, here: &Namespace<'_>, job: &str, action: &str) -> Value {
    let Finished { status, stdout, stderr } = post(person, here, job, action);
    assert!(status.success(), "{action} {job}: {stderr}");
    json(&stdout)
}

fn refused(person: &Person<'_>, here: &Namespace<'_>, job: &str, action: &str) -> String {
    let Finished { status, stdout, stderr } = post(person, here, job, action);
    assert!(!status.success() && stdout.is_empty(), "{action} {job}: {stdout}");
    stderr
}

fn status_in_queue(bed: &Bed, id: &str) -> String {
    bed.condor.ok("condor_q", &[id, "-af", "JobStatus", "HoldReason"]).unwrap().trim().to_owned()
}

/// Five jobs, three at a time: a running and a waiting job are held, and a running and a waiting job are removed. The
/// others continue, and released jobs run.
fn single_jobs_are_held_released_and_removed(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let ann = here.person("ann", &["htcprocs-view", "htcprocs-edit"]);
    let mut object = htcjob("fit", UNTIL_LET_GO);
    object["spec"]["queue"] = 5.into();
    object["spec"]["parallelism"] = 3.into();
    here.create(&object);
    let all = ids(&here.wait_running("fit", 3));
    ann.comes_to_see(&["get", "htcprocs"]);

    // Those that wait first: the end of a job makes room for one of them.
    let waits = does(&ann, &here, "fit-3", "hold");
    assert_eq!(waits["status"]["state"], "Held", "{waits:#}");
    does(&ann, &here, "fit-4", "remove");
    assert_eq!(does(&ann, &here, "fit-0", "remove")["status"]["requested"], "Remove");
    assert_eq!(does(&ann, &here, "fit-1", "hold")["status"]["requested"], "Hold");
    for name in ["fit-0", "fit-4"] {
        let removed = wait_state(&here, name, "Removed");
        assert_eq!(removed["status"]["reason"], "RemovedByUser", "{removed:#}");
    }
    let held = wait_state(&here, "fit-1", "Held");
    let reason = held["status"]["holdReason"].as_str().unwrap();
    assert!(reason.starts_with("a user of the HTCJob holds this job"), "{held:#}");
    here.wait_event("fit", "RemovedByUser");
    let events = here.kubectl(&["get", "events", "-o=jsonpath={range .items[*]}{.message}{'\\n'}{end}"]);
    assert!(events.contains(&format!("{} removes ", ann.name)), "{events}");
    here.wait_event("fit", "HeldByUser");

    // Whoever releases it in HTCondor: it is held until a user releases it.
    bed.condor.ok("condor_release", &[&all[1]]).unwrap();
    wait_for("the job to be held again", PATIENCE, || {
        let answer = status_in_queue(bed, &all[1]);
        if answer.starts_with("5 ") { Ok(()) } else { Err(answer) }
    })
    .unwrap();
    assert!(refused(&ann, &here, "fit-0", "release").contains("fit-0 has ended: Removed"));
    assert!(refused(&ann, &here, "fit-4", "hold").contains("fit-4 has ended: Removed"));

    does(&ann, &here, "fit-1", "release");
    does(&ann, &here, "fit-3", "release");
    here.wait_running("fit", 3);
    let released = wait_state(&here, "fit-1", "Running");
    assert!(released["status"]["requested"].is_null(), "{released:#}");
    here.let_go("fit");
    let ended = here.wait_ended("fit");
    // Between two holds it may have run, too.
    let again = wait_state(&here, "fit-1", "Succeeded");
    assert!(again["status"]["attempts"].as_u64() >= Some(2), "{again:#}");
    assert_eq!(ended["status"]["failedIndexes"], "0,4", "{ended:#}");
    assert_eq!((&ended["status"]["succeeded"], &ended["status"]["failed"]), (&3.into(), &2.into()), "{ended:#}");
    assert!(is_true(&ended, "Failed"));
    let message = ended["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("2 of 5 jobs failed: removed by a user (2)"), "{message}");
    assert_eq!(ids(&ended).len(), 4, "the one that waited never was in HTCondor: {ended:#}");
}

/// All jobs are removed before they are submitted: it ends, and HTCondor never hears of it.
fn jobs_removed_before_submission_never_reach_htcondor(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let ann = here.person("ann", &["htcprocs-view", "htcprocs-edit"]);
    let mut object = htcjob("never", "true");
    object["spec"]["queue"] = 2.into();
    object["spec"]["suspend"] = true.into();
    here.create(&object);
    here.wait_phase("never", "Pending");
    ann.comes_to_see(&["get", "htcprocs"]);
    let why = refused(&ann, &here, "never-0", "release");
    assert!(why.contains("HTCJob never is suspended, and never-0 with it: set spec.suspend to false"), "{why}");
    for job in ["never-0", "never-1"] {
        does(&ann, &here, job, "remove");
    }
    let ended = here.wait_phase("never", "Completed");
    assert_eq!((&ended["status"]["failed"], &ended["status"]["attempt"]), (&2.into(), &Value::Null), "{ended:#}");
    here.kubectl(&["delete", "htcjob", "never", "--timeout=60s"]);
}

/// Viewers and users of other namespaces change nothing, and nothing else can be posted.
fn only_editors_of_the_namespace_hold_release_and_remove(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let (here, there) = (bed.namespace(), bed.namespace());
    here.create(&{
        let mut object = htcjob("fit", "true");
        object["spec"]["suspend"] = true.into();
        object
    });
    here.wait_phase("fit", "Pending");
    let (viewer, stranger) = (here.person("vera", &["htcprocs-view"]), there.person("sam", &["htcprocs-edit"]));
    let editor = here.person("ann", &["htcprocs-view", "htcprocs-edit"]);
    viewer.comes_to_see(&["get", "htcprocs"]);
    for person in [&viewer, &stranger] {
        for action in ["hold", "release", "remove"] {
            let why = refused(person, &here, "fit-0", action);
            let words = format!("cannot create resource \"htcprocs/{action}\"");
            assert!(why.contains("Forbidden") && why.contains(&words), "{why}");
        }
    }
    let can =
        |person: &Person<'_>| person.kubectl(&["auth", "can-i", "create", "htcprocs", "--subresource=hold"]).stdout;
    assert_eq!(can(&viewer).trim(), "no");
    editor.comes_to_see(&["get", "htcprocs"]);
    assert_eq!(can(&editor).trim(), "yes");
    assert!(refused(&editor, &here, "fit-7", "hold").contains("NotFound"));
    assert!(refused(&editor, &here, "nosuch-0", "remove").contains("NotFound"));

    // An admin, whom RBAC lets do anything.
    let admin = here.admin();
    for action in ["log", "files", "analysis"] {
        assert!(refused(&admin, &here, "fit-0", action).contains("MethodNotAllowed"), "{action}");
    }
    let why = admin.is_refused(&["get", "--raw", &format!("{}/fit-0/hold", here.procs())]);
    assert!(why.contains("by POST"), "{why}");
    let proc = here.proc("fit-0");
    assert_eq!((&proc["status"]["state"], &proc["status"]["requested"]), (&"Waiting".into(), &Value::Null));
}

/// A wish outlives the operator, and HTCondor's silence.
fn requested_hold_survives_operator_kill_and_silent_schedd(version: Version) {
    let bed = Bed::with_jobs_api(version, LONG_SUBMISSIONS);
    bed.start_operator();
    bed.front();
    let here = bed.namespace();
    let admin = here.admin();
    let mut object = htcjob("fit", UNTIL_LET_GO);
    object["spec"]["queue"] = 2.into();
    here.create(&object);
    let all = ids(&here.wait_running("fit", 2));
    bed.pool.pause_schedd().unwrap();
    does(&admin, &here, "fit-0", "hold");
    does(&admin, &here, "fit-1", "remove");
    bed.kill_operator();
    bed.pool.resume_schedd().unwrap();
    bed.start_operator();
    bed.wait_known();
    admin.comes_to_see(&["get", "htcprocs"]);
    wait_state(&here, "fit-0", "Held");
    assert_eq!(wait_state(&here, "fit-1", "Removed")["status"]["reason"], "RemovedByUser");
    assert!(status_in_queue(&bed, &all[0]).starts_with("5 "));
    assert_eq!(here.count_events("fit", "HeldByUser"), 1);
    does(&admin, &here, "fit-0", "release");
    here.let_go("fit");
    here.wait_ended("fit");
    wait_state(&here, "fit-0", "Succeeded");
}

/// The job shows HTCondor's answer meanwhile.
fn action_that_htcondor_refuses_is_retried_and_reported(version: Version) {
    let gates = Gates::new(version);
    let bed = Bed::with_jobs_api(version, &[LONG_SUBMISSIONS, &[&gates.argument()]].concat());
    bed.start_operator();
    bed.front();
    let here = bed.namespace();
    let admin = here.admin();
    let mut object = htcjob("fit", UNTIL_LET_GO);
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    here.wait_running("fit", 3);
    admin.comes_to_see(&["get", "htcprocs"]);
    let watch = admin.begins(&["get", "htcprocs", "-w", "-o", "wide"]);
    let refuse = |tool: &str| gates.replace(tool, "printf 'ERROR: not \\033[2Jtoday\\n' >&2; exit 1\n");
    let told = |job: &str, done: &str| {
        let begins = format!("HTCondor has not {done} the job: ");
        let message = wait_for(&format!("what is said of {job}"), PATIENCE, || {
            let found = here.proc(job);
            let message = found["status"]["message"].as_str().unwrap_or_default().to_owned();
            if message.starts_with(&begins) && !found["status"]["requested"].is_null() {
                Ok(message)
            } else {
                Err(found.to_string())
            }
        })
        .unwrap();
        assert!(message.contains("ERROR: not ") && !message.contains('\u{1b}'), "{message:?}");
        assert!(message.ends_with("; the operator tries again with growing pauses"), "{message}");
        wait_printed(&watch, "the same in a watch", |text| text.contains(&begins));
    };

    refuse("condor_hold");
    refuse("condor_rm");
    does(&admin, &here, "fit-0", "hold");
    told("fit-0", "held");
    does(&admin, &here, "fit-1", "remove");
    told("fit-1", "removed");
    let other = wait_state(&here, "fit-2", "Running");
    assert!(other["status"]["message"].is_null(), "{other:#}");

    gates.restore("condor_hold");
    gates.restore("condor_rm");
    for (job, state) in [("fit-0", "Held"), ("fit-1", "Removed")] {
        let done = wait_state(&here, job, state);
        assert!(done["status"]["message"].is_null(), "{done:#}");
    }
    refuse("condor_release");
    does(&admin, &here, "fit-0", "release");
    told("fit-0", "released");
    gates.restore("condor_release");
    here.let_go("fit");
    let ended = wait_state(&here, "fit-0", "Succeeded");
    assert!(ended["status"]["message"].is_null(), "{ended:#}");
}
