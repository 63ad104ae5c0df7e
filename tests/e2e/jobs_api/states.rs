//! Each state of a job, as its object says it.

use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO, condition, htcjob, ids, is_true, of};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use crate::jobs_api::{json, names, rows};

on_versions! {
    both: each_run_of_a_retried_job_has_its_end;
    trixie: held_and_removed_jobs_are_listed_with_reasons, config_map_items_are_listed_in_every_state;
    sid:
        waiting_and_never_submitted_jobs_are_listed,
        output_size_is_listed,
        jobs_have_their_index_and_item,
        killed_job_is_listed_with_its_signal;
    long: jobs_of_a_lost_queue_are_listed_as_lost;
}

/// The object of one job once it is in this state.
pub(super) fn wait_state(here: &Namespace<'_>, name: &str, state: &str) -> Value {
    wait_for(&format!("{name} to be {state}"), PATIENCE, || {
        let found = here.proc(name);
        if found["status"]["state"] == state { Ok(found) } else { Err(found.to_string()) }
    })
    .unwrap()
}

fn jobs_have_their_index_and_item(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let mut object = htcjob("fit", "true");
    object["spec"]["items"] = json!(["first", "second", "two words", "last"]);
    object["spec"]["indexes"] = "0,2-3".into();
    here.create(&object);
    here.wait_ended("fit");
    let wide = here.kubectl(&["get", "htcprocs", "-o", "wide"]);
    assert_eq!(names(&wide), ["fit-0", "fit-2", "fit-3"]);
    assert!(wide.lines().nth(2).unwrap().contains("two words"), "{wide}");
    let items = "-o=jsonpath={range .items[*]}{.spec.index}={.spec.item};{end}";
    assert_eq!(here.kubectl(&["get", "htcprocs", items]), "0=first;2=two words;3=last;");
    let why = here.try_kubectl(&["get", "htcproc", "fit-1"]).unwrap_err().to_string();
    assert!(why.contains("NotFound"), "{why}");
    let by_index = here.kubectl(&["get", "htcprocs", "--field-selector=spec.index=2"]);
    assert_eq!(names(&by_index), ["fit-2"]);
}

/// Items that only the ledger has, for waiting and ended jobs, in lists, single objects and watches.
fn config_map_items_are_listed_in_every_state(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    here.kubectl(&["create", "configmap", "runs", "--from-literal=files.txt=first\n\ntwo words\n"]);
    here.let_read_config_map("runs");
    here.let_use("configmap", "runs");
    let mut object = htcjob("fit", UNTIL_LET_GO);
    object["spec"]["itemsFrom"] = json!({ "configMapKeyRef": { "name": "runs", "key": "files.txt" } });
    object["spec"]["parallelism"] = 2.into();
    let watch = here.admin().begins(&["get", "htcprocs", "-w", "-o", "wide"]);
    here.create(&object);
    here.wait_running("fit", 2);
    bed::person::wait_printed(&watch, "the job that waits", |text| {
        text.lines().any(|line| line.contains("Waiting") && line.contains("two words"))
    });
    let items = "-o=jsonpath={range .items[*]}{.spec.index}={.spec.item} {.status.state};{end}";
    let listed = here.kubectl(&["get", "htcprocs", items]);
    assert!(listed.starts_with("0=first ") && listed.ends_with("2=two words Waiting;"), "{listed}");
    assert!(listed.contains(";1= "), "an empty line is an item: {listed}");
    here.remove("configmap", "runs");
    here.let_go("fit");
    for (index, item) in [(0, "first"), (1, ""), (2, "two words")] {
        let one = wait_state(&here, &format!("fit-{index}"), "Succeeded");
        assert_eq!(one["spec"]["item"], item, "{one:#}");
    }
    bed::person::wait_printed(&watch, "an item in what is watched", |text| {
        text.lines().any(|line| line.contains("Succeeded") && line.contains("two words"))
    });
}

/// How much a job has left, once it is here.
fn output_size_is_listed(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let script = "mkdir deep; head -c 5000 /dev/zero >deep/data; head -c 700 /dev/zero >flat";
    here.create(&htcjob("fit", script));
    here.wait_ended("fit");
    here.wait_output("fit");
    let one = wait_state(&here, "fit-0", "Succeeded");
    let here_now = bed::files_below(&here.output("fit", 0), &|_| true);
    let bytes: u64 = here_now
        .iter()
        .map(|path| path.metadata().unwrap())
        .filter(std::fs::Metadata::is_file)
        .map(|file| file.len())
        .sum();
    assert!(bytes >= 5700, "{here_now:?}");
    assert_eq!((&one["status"]["outputBytes"], &one["status"]["outputFetched"]), (&bytes.into(), &true.into()));
    let wide = here.kubectl(&["get", "htcprocs", "-o", "wide"]);
    assert!(wide.lines().next().unwrap().contains("OUTPUT") && wide.contains("5.6Ki"), "{wide}");
    here.create(&htcjob("runs", UNTIL_LET_GO));
    here.wait_running("runs", 1);
    let running = wait_state(&here, "runs-0", "Running");
    assert!(running["status"]["outputBytes"].is_null(), "{running:#}");
}

/// Of four runs the first exits, the second is killed, the third is interrupted by HTCondor, and the last succeeds.
fn each_run_of_a_retried_job_has_its_end(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let runs_on = format!("{UNTIL_LET_GO}; rm go; [ $n != 1 ] || kill -9 $$");
    let mut object =
        htcjob("fit", &format!("n=$(cat n || echo 0); echo $((n + 1)) >n; [ $n != 0 ] || exit 3; {runs_on}"));
    object["spec"]["maxRetries"] = 5.into();
    let uid = here.create(&object);
    let exits = |expected: Value| {
        wait_for("the ends of its runs", PATIENCE, || {
            let found = here.proc("fit-0");
            let runs_again = found["status"]["state"] == "Running" && !bed.payload_folders(&uid).is_empty();
            if runs_again && found["status"]["earlierExits"] == expected { Ok(()) } else { Err(format!("{found:#}")) }
        })
        .unwrap();
    };
    here.wait_running("fit", 1);
    let first = json!({ "number": 1, "exitCode": 3 });
    exits(json!([first]));
    bed.open_gate(&uid);
    // The shell in the container is killed: for HTCondor, the job has exited with what a shell makes of that.
    let second = json!({ "number": 2, "exitCode": 137 });
    exits(json!([first, second]));
    let id = ids(&here.get("fit")).remove(0);
    let starts = || bed.queue(&of(&uid), &["NumJobStarts"]).concat().concat();
    wait_for("the third run", PATIENCE, || starts() == "3").unwrap();
    bed.condor.ok("condor_vacate_job", &[&id]).unwrap();
    wait_for("the fourth run", PATIENCE, || starts() == "4").unwrap();
    exits(json!([first, second]));
    assert!(is_true(&here.let_go("fit"), "Complete"));
    let ended = wait_state(&here, "fit-0", "Succeeded");
    let status = &ended["status"];
    assert_eq!((&status["exitCode"], &status["attempts"]), (&0.into(), &4.into()), "{ended:#}");
    assert_eq!(status["earlierExits"], json!([first, second]), "{ended:#}");
}

/// Of three jobs one is killed from outside, one exits with a code, and one succeeds.
fn killed_job_is_listed_with_its_signal(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let mut object = htcjob("fit", &format!("case $1 in 0) touch part; {UNTIL_LET_GO};; 1) exit 4;; esac"));
    object["spec"]["queue"] = 3.into();
    let uid = here.create(&object);
    bed.kill_job(&uid, "part");
    let ended = here.wait_ended("fit");
    assert!(is_true(&ended, "Failed"), "{ended:#}");
    let message = condition(&ended, "Failed").unwrap()["message"].as_str().unwrap().to_owned();
    let expected = format!(
        "2 of 3 jobs failed: exit code 4 (1), signal 9 (1); job 0 ({}) was killed by signal 9",
        ended["status"]["jobid"][0].as_str().unwrap()
    );
    assert!(message.starts_with(&expected), "{message}");
    let killed = wait_state(&here, "fit-0", "Failed");
    assert_eq!((&killed["status"]["exitSignal"], &killed["status"]["exitCode"]), (&9.into(), &Value::Null));
    let failed = |table: &str| -> Vec<(String, String)> {
        let lines = table.lines().skip(1).filter(|line| line.contains(" Failed "));
        let ends = ["signal 9", "4"];
        let end = |line: &str| ends.iter().find(|end| line.contains(&format!(" {end} "))).unwrap_or(&"?").to_string();
        lines.map(|line| (line.split(' ').next().unwrap().to_owned(), end(line))).collect()
    };
    let expected = [("fit-0", "signal 9"), ("fit-1", "4")].map(|(name, end)| (name.to_owned(), end.to_owned()));
    let table = here.kubectl(&["get", "htcprocs"]);
    assert_eq!(failed(&table), expected, "{table}");
    let (code, table, _) = crate::plugin::submit_and_retry::htc(&here, &["jobs", "fit"]);
    assert_eq!((code, failed(&table)), (0, expected.to_vec()), "{table}");
}

fn waiting_and_never_submitted_jobs_are_listed(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let mut object = htcjob("waits", "true");
    object["spec"]["queue"] = 3.into();
    object["spec"]["parallelism"] = 0.into();
    here.create(&object);
    let table = wait_for("jobs that wait", PATIENCE, || {
        let table = here.kubectl(&["get", "htcprocs"]);
        if rows(&table).len() == 3 { Ok(table) } else { Err(table) }
    })
    .unwrap();
    assert!(rows(&table).iter().all(|row| row[1] == "Waiting"), "{table}");
    let one = json(&here.kubectl(&["get", "htcproc", "waits-2", "-o", "json"]));
    assert!(one["status"]["id"].is_null() && one["status"]["attempts"] == 0, "{one:#}");
    here.merge("waits", &json!({ "spec": { "parallelism": 3 } }));
    here.wait_ended("waits");
    for index in 0..3 {
        wait_state(&here, &format!("waits-{index}"), "Succeeded");
    }

    // The first fails, and one failure is too many: the others are never submitted. Who watches sees that, too.
    let watch = here.admin().begins(&["get", "htcprocs", "-w", "-l", "htc.cern.ch/htcjob=short"]);
    let mut object = htcjob("short", &format!("{UNTIL_LET_GO}; exit 3"));
    object["spec"]["queue"] = 3.into();
    object["spec"]["parallelism"] = 1.into();
    object["spec"]["maxFailedIndexes"] = 0.into();
    here.create(&object);
    here.wait_running("short", 1);
    bed::person::wait_printed(&watch, "jobs that wait", |text| text.matches("Waiting").count() >= 2);
    here.let_go("short");
    assert_eq!(wait_state(&here, "short-0", "Failed")["status"]["exitCode"], 3);
    for name in ["short-1", "short-2"] {
        let never = wait_state(&here, name, "Removed");
        assert_eq!(never["status"]["message"], "the HTCJob was cut short before this job was submitted");
        assert!(never["status"]["id"].is_null(), "{never:#}");
    }
    bed::person::wait_printed(&watch, "jobs that were given up", |text| text.matches("Removed").count() == 2);
}

fn held_and_removed_jobs_are_listed_with_reasons(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let mut object = htcjob("fit", UNTIL_LET_GO);
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    let ids = ids(&here.wait_running("fit", 3));
    let running = wait_state(&here, "fit-0", "Running");
    assert_eq!((&running["status"]["id"], &running["status"]["attempts"]), (&ids[0].as_str().into(), &1.into()));
    assert!(running["status"]["host"].is_string() && running["status"]["durationSeconds"].is_i64(), "{running:#}");
    bed.condor.ok("condor_hold", &["-reason", "the disk is full", &ids[1]]).unwrap();
    bed.condor.ok("condor_rm", &[&ids[2]]).unwrap();
    let held = wait_state(&here, "fit-1", "Held");
    let reason = held["status"]["holdReason"].as_str().unwrap();
    assert!(reason.contains("the disk is full") && held["status"]["holdCode"] == 1, "{held:#}");
    let since = |time: &str| held["status"][time].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
    assert!(since("heldSince").is_some() && since("heldSince") >= since("startTime"), "{held:#}");
    let wide = here.kubectl(&["get", "htcproc", "fit-1", "-o", "wide"]);
    assert!(wide.contains("the disk is full"), "{wide}");
    let removed = wait_state(&here, "fit-2", "Removed");
    assert!(removed["status"]["exitCode"].is_null(), "{removed:#}");
    let why = removed["status"]["message"].as_str().unwrap_or_default();
    assert!(why.starts_with("via condor_rm (by user "), "{removed:#}");
    bed.condor.ok("condor_release", &[&ids[1]]).unwrap();
    // HTCondor counts a start a moment after the job runs, and not at all if it has ended by then.
    let attempts = || here.proc("fit-1")["status"]["attempts"].as_i64();
    wait_for("the second start", PATIENCE, || attempts() == Some(2)).unwrap();
    here.let_go("fit");
    let released = wait_state(&here, "fit-1", "Succeeded");
    assert!(released["status"]["holdReason"].is_null() && released["status"]["heldSince"].is_null(), "{released:#}");
}

/// HTCondor has lost its queue: how the jobs ended is unknown, and they are not submitted again.
fn jobs_of_a_lost_queue_are_listed_as_lost(version: Version) {
    let bed = Bed::with_jobs_api(version, &[LONG_SUBMISSIONS, &["--birthdate-steady=4s"]].concat());
    bed.start_operator();
    bed.front();
    let here = bed.namespace();
    let mut object = htcjob("fit", &format!("[ $1 = 2 ] || {UNTIL_LET_GO}"));
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    let ids = ids(&here.wait_running("fit", 2));
    wait_state(&here, "fit-2", "Succeeded");
    let watch = here.admin().begins(&["get", "htcprocs", "-w", "-o", "wide"]);
    bed::person::wait_printed(&watch, "those that run", |text| text.matches(" Running ").count() >= 2);
    bed.pool.reset_queue().unwrap();
    for (name, id) in ["fit-0", "fit-1"].into_iter().zip(&ids) {
        let lost = wait_state(&here, name, "Lost");
        let status = &lost["status"];
        assert_eq!(status["message"], "the job was lost with the schedd's queue", "{lost:#}");
        assert_eq!((&status["id"], &status["attempts"]), (&id.as_str().into(), &1.into()), "{lost:#}");
        assert!(status["exitCode"].is_null() && status["outputFetched"] == false, "{lost:#}");
    }
    here.wait_ended("fit");
    let selected = here.kubectl(&["get", "htcprocs", "--field-selector=status.state=Lost", "-o", "wide"]);
    assert_eq!(names(&selected), ["fit-0", "fit-1"], "{selected}");
    assert_eq!(selected.matches("the job was lost with the schedd's queue").count(), 2, "{selected}");
    bed::person::wait_printed(&watch, "those that are lost", |text| text.matches(" Lost ").count() == 2);
    let log = here.bed.raw(&format!("{}/fit-0/log", here.procs())).unwrap_err().to_string();
    assert!(log.contains("fit-0 is Lost: it has no log"), "{log}");
    let (code, names, _) = crate::plugin::submit_and_retry::htc(&here, &["jobs", "fit", "--state=Lost", "-o", "name"]);
    assert_eq!((code, names.lines().count()), (0, 2), "{names}");
}
