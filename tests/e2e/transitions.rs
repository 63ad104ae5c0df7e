//! Every transition of the table is made on real servers, and no other: the ledger's journal is compared with it.

use std::collections::BTreeSet;
use std::fs;

use bed::gates::Gates;
use bed::{Bed, LONG_SUBMISSIONS, Namespace, OFTEN, UNTIL_LET_GO, condition, htcjob, ids, is_true, of};
use htc_api::Phase;
use htc_machine::transitions::TRANSITIONS;
use rstest::rstest;
use serde_json::{Value, json};
use testbed::Version::{self, Sid, Trixie};
use testbed::wait_for;

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn operator_makes_each_transition_of_the_table(#[case] version: Version) {
    // One job in each condor_submit: each attempt after the first is a resubmission. Output is fetched only at the end.
    let gates = Gates::new(version);
    let argument = gates.argument();
    let own = [LONG_SUBMISSIONS, &[&argument, "--batch-jobs=1", "--fetch-every=600s", OFTEN]].concat();
    let bed = Bed::with_jobs_api(version, &own);
    bed.start_operator();
    bed.front();
    let here = bed.namespace();
    removed_before_it_is_submitted(&here);
    bed.pool.set_start(false).unwrap();
    while_nothing_starts(&here);
    ended_without_having_started(&here);
    while_jobs_run(&here, &gates);
    past_their_deadlines(&here);
    with_more_failures_than_there_may_be(&here);
    runs_again(&here);
    assert_all_made(&bed);
}

fn object(name: &str, source: &str, queue: u32, options: &str) -> Value {
    let mut object = htcjob(name, source);
    object["spec"]["queue"] = queue.into();
    object["spec"]["htcopts"] = options.into();
    object
}

fn accepted(here: &Namespace<'_>, name: &str, jobs: u32) -> Value {
    here.wait(name, "all jobs accepted", |object| object["status"]["active"] == jobs && is_true(object, "Submitted"))
}

/// By a user, through the jobs API.
fn removed_before_it_is_submitted(here: &Namespace<'_>) {
    let mut object = object("never", "true", 1, "");
    object["spec"]["suspend"] = true.into();
    here.create(&object);
    here.wait_phase("never", "Pending");
    let job = here.procs() + "/never-0";
    here.admin().comes_to_see(&["get", "--raw", &job]);
    here.kubectl(&["create", "--raw", &format!("{job}/remove"), "-f", "/dev/null"]);
    here.wait_phase("never", "Completed");
    here.delete("never");
}

fn while_nothing_starts(here: &Namespace<'_>) {
    here.create(&object("invalid", "true", 1, "executable = /bin/sh"));
    here.wait_event("invalid", "InvalidSpec");
    here.delete("invalid");

    here.create(&object("idle", "true", 2, ""));
    here.create(&object("removed", "true", 1, ""));
    let idle = accepted(here, "idle", 2);
    here.bed.condor.ok("condor_hold", &[&ids(&idle)[0]]).unwrap();
    here.wait_event("idle", "JobsHeld");
    here.delete("idle");

    let removed = accepted(here, "removed", 1);
    here.bed.condor.ok("condor_rm", &[&ids(&removed)[0]]).unwrap();
    here.wait_ended("removed");
    here.delete("removed");
}

/// HTCondor notes when a job starts. The operator does not rely on it: somebody takes the note away before it looks.
fn ended_without_having_started(here: &Namespace<'_>) {
    let bed = here.bed;
    let uid = here.create(&object("unseen", "true", 1, ""));
    let id = ids(&accepted(here, "unseen", 1)).remove(0);
    bed.kill_operator();
    bed.pool.set_start(true).unwrap();
    let is = of(&uid);
    wait_for("the job to complete", bed::PATIENCE, || bed.queue(&is, &["JobStatus"]) == [["4"]]).unwrap();
    bed.pool.tool("condor_qedit", &[&id, "JobStartDate", "undefined"]).unwrap();
    bed.start_operator();
    here.wait_ended("unseen");
    here.wait_event("unseen", "Fetched");
    here.delete("unseen");
}

fn while_jobs_run(here: &Namespace<'_>, gates: &Gates) {
    // The first of its jobs runs before the second is handed over.
    let folder = gates.place("handed");
    let handed = folder.display();
    let one =
        format!("mkdir {handed}/first 2>/dev/null || while [ ! -e {handed}/all ]; do sleep 0.02; done\nexec \"$@\"\n");
    gates.replace("condor_submit", &one);
    here.create(&object("grows", UNTIL_LET_GO, 6, ""));
    here.wait_phase("grows", "Running");
    fs::write(folder.join("all"), "").unwrap();
    for (name, source) in [("doomed", UNTIL_LET_GO), ("fails", "exit 1")] {
        here.create(&object(name, source, 1, ""));
    }
    here.wait_phase("doomed", "Running");
    here.delete("doomed");
    assert!(is_true(&here.wait_ended("fails"), "Failed"));
    let all = here.wait("grows", "all jobs run", |object| object["status"]["running"] == 6);
    let id = ids(&all).remove(0);
    here.bed.condor.ok("condor_hold", &[&id]).unwrap();
    here.wait_event("grows", "JobsHeld");
    here.bed.condor.ok("condor_release", &[&id]).unwrap();
    assert!(is_true(&here.let_go("grows"), "Complete"));
    for name in ["fails", "grows"] {
        here.delete(name);
    }
}

fn past_their_deadlines(here: &Namespace<'_>) {
    for (name, options) in [("never-starts", "requirements = false"), ("never-ends", "")] {
        let mut object = object(name, UNTIL_LET_GO, 1, options);
        object["spec"]["activeDeadlineSeconds"] = 1000.into();
        here.create(&object);
    }
    accepted(here, "never-starts", 1);
    here.wait_phase("never-ends", "Running");
    for name in ["never-starts", "never-ends"] {
        here.merge(name, &json!({ "spec": { "activeDeadlineSeconds": 1 } }));
        here.wait_event(name, "DeadlineExceeded");
        let ended = here.wait_ended(name);
        assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "DeadlineExceeded", "{ended:#}");
        here.delete(name);
    }
}

fn with_more_failures_than_there_may_be(here: &Namespace<'_>) {
    for (name, options) in
        [("none-starts", "requirements = false"), ("one-starts", "requirements = MY.HTCJobIndex == 0")]
    {
        let mut object = object(name, UNTIL_LET_GO, 2, options);
        object["spec"]["maxFailedIndexes"] = 0.into();
        here.create(&object);
    }
    for name in ["none-starts", "one-starts"] {
        if name == "one-starts" {
            here.wait_phase(name, "Running");
        }
        let removed = &ids(&accepted(here, name, 2))[1];
        here.bed.condor.ok("condor_rm", &[removed]).unwrap();
        here.wait_event(name, "MaxFailedIndexesExceeded");
        let ended = here.wait_ended(name);
        assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "MaxFailedIndexesExceeded", "{ended:#}");
        here.delete(name);
    }
}

/// A schedd that loses the last minute of its queue, as after a power failure, runs a job again that had ended.
fn runs_again(here: &Namespace<'_>) {
    let bed = here.bed;
    bed.pool.set_start(false).unwrap();
    // Its second run, which finds what the first one left, lasts until it has been told.
    let source = format!("[ -e ran ] || {{ touch ran; exit 0; }}; {UNTIL_LET_GO}");
    let uid = here.create(&object("again", &source, 2, "requirements = MY.HTCJobIndex == 0"));
    here.create(&object("stuck", "true", 1, "requirements = false"));
    accepted(here, "again", 2);
    accepted(here, "stuck", 1);
    let log = bed.pool.spool_dir().join("job_queue.log");
    let before = fs::read(&log).unwrap();
    bed.pool.set_start(true).unwrap();
    here.wait("again", "one job ended", |object| object["status"]["succeeded"] == 1);
    bed.pool.stop().unwrap();

    // Meanwhile one cannot be removed.
    here.begin_delete("stuck");
    here.wait("stuck", "JobsRemoved ScheddUnreachable", |object| {
        condition(object, "JobsRemoved").is_some_and(|condition| condition["reason"] == "ScheddUnreachable")
    });

    fs::write(&log, before).unwrap();
    bed.pool.start_again().unwrap();
    here.wait_gone("stuck");
    here.wait_event("again", "RanAgain");
    let ran = here.wait("again", "it ended again", |object| {
        bed.open_gate(&uid);
        object["status"]["succeeded"] == 1
    });
    assert_eq!(ran["status"]["phase"], "Running");
    here.delete("again");
}

fn assert_all_made(bed: &Bed) {
    type Row = (Option<String>, String, Option<String>);
    bed.stop_operator();
    let ledger = rusqlite::Connection::open(bed.data.join("sqlite/htcjobs.db")).unwrap();
    let mut statement = ledger.prepare("select distinct \"from\", trigger, \"to\" from transitions").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    let seen: BTreeSet<Row> = rows.map(Result::unwrap).collect();
    let phase = |phase: Option<Phase>| phase.map(|phase| <&str>::from(phase).to_owned());
    let table: BTreeSet<Row> =
        TRANSITIONS.iter().map(|row| (phase(row.from), row.trigger.to_string(), phase(row.to))).collect();
    let not_seen: Vec<&Row> = table.difference(&seen).collect();
    let not_in_it: Vec<&Row> = seen.difference(&table).collect();
    assert!(not_seen.is_empty() && not_in_it.is_empty(), "not seen: {not_seen:?}; not in the table: {not_in_it:?}");
}
