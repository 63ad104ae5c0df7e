//! Jobs as they change.

use std::collections::BTreeSet;

use bed::gates::Gates;
use bed::person::wait_printed;
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO, htcjob, is_true};
use serde_json::Value;
use testbed::{Version, wait_for};

use crate::jobs_api::actions::does;
use crate::jobs_api::{json, rows};

on_versions! {
    trixie: watch_has_an_event_for_each_change;
    sid: watch_with_a_field_selector_has_only_matching_jobs;
    long:
        watch_resumes_with_the_next_leader,
        watch_reports_deleted_htcjobs,
        watch_resumes_from_a_resource_version,
        watch_reports_requested_holds_releases_and_removals;
}

/// Event, name and state of each row that kubectl has printed.
fn events(printed: &str) -> Vec<[String; 3]> {
    rows(printed).into_iter().map(|row| [row[0], row[1], row[2]].map(str::to_owned)).collect()
}

fn is(event: &[String; 3], expected: [&str; 3]) -> bool {
    event.iter().zip(expected).all(|(word, expected)| word == expected)
}

/// A job that kubectl can say more of than its head.
fn create_ended_htcjob(here: &Namespace<'_>) {
    here.create(&htcjob("before", "true"));
    here.wait_ended("before");
}

fn watch_has_an_event_for_each_change(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    create_ended_htcjob(&here);
    let ann = here.person("ann", &["htcprocs-view"]);
    ann.comes_to_see(&["get", "htcprocs"]);
    let watch = ann.begins(&["get", "htcprocs", "-w", "--output-watch-events"]);
    wait_printed(&watch, "the jobs that are there", |text| {
        events(text).iter().any(|event| is(event, ["ADDED", "before-0", "Succeeded"]))
    });
    here.create(&htcjob("fit", UNTIL_LET_GO));
    wait_printed(&watch, "a job that runs", |text| {
        events(text).iter().any(|event| is(event, ["MODIFIED", "fit-0", "Running"]))
    });
    here.let_go("fit");
    wait_printed(&watch, "a job that has ended", |text| {
        events(text).iter().any(|event| is(event, ["MODIFIED", "fit-0", "Succeeded"]))
    });
    here.delete("fit");
    let text = wait_printed(&watch, "a job whose HTCJob is deleted", |text| {
        events(text).iter().any(|event| is(event, ["DELETED", "fit-0", "Succeeded"]))
    });
    let of_fit: Vec<String> =
        events(&text).into_iter().filter(|event| event[1] == "fit-0").map(|[kind, ..]| kind).collect();
    assert_eq!(of_fit.first().map(String::as_str), Some("ADDED"), "{text}");
    assert_eq!(of_fit.iter().filter(|kind| *kind != "MODIFIED").count(), 2, "it comes once and goes once: {text}");
    assert!(watch.is_running(), "{text}");
    assert_eq!(text.matches("STATE").count(), 1, "one head for all rows: {text}");
    // One job, by name: it is printed once, and then what becomes of it.
    here.create(&htcjob("one", UNTIL_LET_GO));
    here.wait_running("one", 1);
    let watch = ann.begins(&["get", "htcproc", "one-0", "-w"]);
    wait_printed(&watch, "the job", |text| text.contains("Running"));
    here.let_go("one");
    let text = wait_printed(&watch, "its end", |text| text.contains("Succeeded"));
    assert!(rows(&text).iter().all(|row| row[0] == "one-0"), "{text}");
}

fn watch_with_a_field_selector_has_only_matching_jobs(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    create_ended_htcjob(&here);
    let mut object = htcjob("fit", &format!("{UNTIL_LET_GO}; [ $1 != 1 ]"));
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    here.wait_running("fit", 3);
    let ann = here.person("ann", &["htcprocs-view"]);
    ann.comes_to_see(&["get", "htcprocs"]);
    let failed = "--field-selector=status.state=Failed";
    let watch = ann.begins(&["get", "htcprocs", "-w", "--output-watch-events", failed]);
    let running =
        ann.begins(&["get", "htcprocs", "-w", "--output-watch-events", "--field-selector=status.state=Running"]);
    wait_printed(&running, "the jobs that run", |text| text.matches("ADDED").count() == 3);
    assert!(is_true(&here.let_go("fit"), "Failed"));
    let text = wait_printed(&watch, "the job that has failed", |text| text.contains("fit-1"));
    // Its output comes a moment later.
    let others = |text: &str| {
        let events = events(text).into_iter().filter(|event| event[0] != "MODIFIED");
        events.collect::<Vec<_>>()
    };
    assert_eq!(others(&text), [["ADDED", "fit-1", "Failed"]], "{text}");
    // What leaves a selection is gone for who watches it.
    let text = wait_printed(&running, "no job that runs", |text| text.matches("DELETED").count() == 3);
    // What has changed between kubectl's list and its watch, and is in the same state, is not told as added once more.
    let of = |wanted: &str| {
        let mut jobs: Vec<String> =
            others(&text).into_iter().filter(|[kind, ..]| kind == wanted).map(|[_, job, _]| job).collect();
        jobs.sort_unstable();
        jobs
    };
    for kind in ["ADDED", "DELETED"] {
        assert_eq!(of(kind), ["fit-0", "fit-1", "fit-2"], "{kind}: {text}");
    }
    here.delete("fit");
    let text = wait_printed(&watch, "the HTCJob to be gone", |text| text.contains("DELETED"));
    assert_eq!(others(&text), [["ADDED", "fit-1", "Failed"], ["DELETED", "fit-1", "Failed"]], "{text}");
}

fn watch_resumes_from_a_resource_version(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    create_ended_htcjob(&here);
    here.create(&htcjob("fit", UNTIL_LET_GO));
    here.wait_running("fit", 1);
    let jobs = here.procs();
    let raw = |query: &str| here.bed.raw(&format!("{jobs}?{query}")).unwrap();
    let listed = wait_for("the job to run in a list", bed::PATIENCE, || {
        let list = json(&raw(""));
        (list["items"][1]["status"]["state"] == "Running").then_some(list)
    })
    .unwrap();
    let since = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let frames = |query: &str| -> Vec<[String; 3]> {
        let text = raw(&format!("watch=true&timeoutSeconds=2&{query}"));
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        text.lines()
            .filter(|line| !line.is_empty())
            .map(json)
            .map(|frame| {
                let object = &frame["object"];
                [&frame["type"], &object["metadata"]["name"], &object["status"]["state"]].map(word)
            })
            .collect()
    };
    here.let_go("fit");
    here.create(&htcjob("new", "true"));
    here.wait_ended("new");
    let mut waits = htcjob("waits", "true");
    waits["spec"]["suspend"] = true.into();
    here.create(&waits);
    here.wait_phase("waits", "Pending");
    does(&here.admin(), &here, "waits-0", "hold");
    let all = frames(&format!("resourceVersion={since}"));
    assert!(!all.iter().any(|frame| frame[1] == "before-0"), "what has not changed is not told: {all:?}");
    let of_fit: Vec<&[String; 3]> = all.iter().filter(|frame| frame[1] == "fit-0").collect();
    assert!(of_fit.iter().all(|frame| frame[0] == "MODIFIED"), "{all:?}");
    assert_eq!(of_fit.last().unwrap()[2], "Succeeded", "{all:?}");
    assert!(all.iter().any(|frame| frame[1] == "new-0" && frame[2] == "Succeeded"), "{all:?}");
    let of_new = all.iter().filter(|frame| frame[0] == "ADDED").map(|frame| frame[1].as_str());
    assert_eq!(of_new.collect::<BTreeSet<_>>(), ["new-0", "waits-0"].into(), "{all:?}");
    let of_waits: Vec<&[String; 3]> = all.iter().filter(|frame| frame[1] == "waits-0").collect();
    assert_eq!(of_waits, [&["ADDED", "waits-0", "Held"]], "{all:?}");
    // Without a version: all that there is.
    let now = frames("");
    let (last, others) = now.split_last().unwrap();
    assert_eq!(others, ["before-0", "fit-0", "new-0"].map(|name| ["ADDED", name, "Succeeded"]), "{now:?}");
    assert_eq!(*last, ["ADDED", "waits-0", "Held"]);
    // What was Running then and is not now has left the selection; what never was in it is not told.
    let running = frames(&format!("resourceVersion={since}&fieldSelector=status.state%3DRunning"));
    let left: Vec<&str> = running.iter().filter(|frame| frame[0] == "DELETED").map(|frame| frame[1].as_str()).collect();
    assert!(left.contains(&"fit-0") && !left.contains(&"before-0"), "{running:?}");
    let why = here.bed.raw(&format!("{jobs}?watch=true&resourceVersion=999999999999"));
    let why = why.unwrap_err().to_string();
    assert!(why.contains("list again"), "{why}");
}

/// A watch ends with its leader. A watch from the last version misses no event and repeats none.
fn watch_resumes_with_the_next_leader(version: Version) {
    let bed = Bed::with_jobs_api(version, LONG_SUBMISSIONS);
    bed.start_operator();
    bed.front();
    let here = bed.namespace();
    create_ended_htcjob(&here);
    here.create(&htcjob("fit", UNTIL_LET_GO));
    here.wait_running("fit", 1);
    let raw = |query: &str| here.bed.raw(&format!("{}?{query}", here.procs()));
    let since = wait_for("the job to run in a list", PATIENCE, || {
        let list = json(&raw("").map_err(|error| error.to_string())?);
        let state = &list["items"][1]["status"]["state"];
        if state == "Running" { Ok(list["metadata"]["resourceVersion"].clone()) } else { Err(state.to_string()) }
    })
    .unwrap();
    let since = since.as_str().unwrap();
    let watch = here.admin().begins(&["get", "--raw", &format!("{}?watch=1&resourceVersion={since}", here.procs())]);
    bed.stop_operator();
    watch.wait(PATIENCE).unwrap();
    assert!(!watch.log_text().contains("Succeeded"), "{}", watch.log_text());
    bed.start_operator();
    here.let_go("fit");
    here.wait_output("fit");
    let frames = wait_for("the job's end on another watch", PATIENCE, || {
        let text = raw(&format!("watch=true&timeoutSeconds=2&resourceVersion={since}"));
        let text = text.map_err(|error| error.to_string())?;
        if text.contains("Succeeded") { Ok(text) } else { Err(text) }
    })
    .unwrap();
    let told: Vec<Value> = frames.lines().filter(|line| !line.is_empty()).map(json).collect();
    assert!(told.iter().all(|frame| frame["object"]["metadata"]["name"] == "fit-0"), "{frames}");
    assert!(told.iter().all(|frame| frame["type"] == "MODIFIED"), "{frames}");
    let last = told.last().unwrap()["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    let number = |version: &str| version.parse::<u64>().unwrap();
    assert!(number(last) > number(since), "{frames}");
}

/// A watch reports an HTCJob that the operator has released, also if another finalizer keeps it in Kubernetes. A client
/// that missed the event has to list again.
fn watch_reports_deleted_htcjobs(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let mut kept = htcjob("kept", "true");
    kept["metadata"]["finalizers"] = serde_json::json!(["example.org/keep"]);
    here.create(&kept);
    here.wait_ended("kept");
    create_ended_htcjob(&here);
    let admin = here.admin();
    admin.comes_to_see(&["get", "htcprocs"]);
    let list = || json(&here.bed.raw(&here.procs()).unwrap());
    let names = |list: &Value| {
        let names = list["items"].as_array().unwrap().iter().map(|proc| proc["metadata"]["name"].clone());
        names.collect::<Vec<_>>()
    };
    let before = list();
    assert_eq!(names(&before), ["before-0", "kept-0"]);
    let from = |list: &Value| format!("{}?watch=1&timeoutSeconds=1&resourceVersion={}", here.procs(), version_of(list));
    // Who goes on from before the job was gone; the list that he gets then.
    let must_list_again = |before: &Value, gone: &str| {
        let why = here.bed.raw(&from(before)).unwrap_err().to_string();
        assert!(why.contains("HTCJobs have gone since that version: list again"), "{why}");
        let after = list();
        assert_eq!(names(&after), ["before-0"]);
        let reported = here.bed.raw(&from(&after)).unwrap();
        assert!(!reported.contains(gone), "{reported}");
        after
    };
    let watch = admin.begins(&["get", "htcprocs", "-w", "--output-watch-events"]);
    wait_printed(&watch, "the jobs that are there", |text| text.contains("before-0"));
    here.begin_delete("kept");
    wait_printed(&watch, "that the job is gone", |text| text.contains("DELETED") && text.contains("kept-0"));
    let after = must_list_again(&before, "kept-0");
    here.kubectl(&[
        "patch",
        "htcjob",
        "kept",
        "--type=json",
        "-p",
        r#"[{"op":"remove","path":"/metadata/finalizers"}]"#,
    ]);
    here.wait_gone("kept");
    let reported = here.bed.raw(&from(&after)).unwrap();
    assert!(!reported.contains("kept-0"), "its job is gone already: {reported}");

    // Somebody removes the operator's own finalizer.
    here.create(&htcjob("forced", "true"));
    here.wait_ended("forced");
    here.wait_output("forced");
    let before = list();
    assert_eq!(names(&before), ["before-0", "forced-0"]);
    here.force_away("forced");
    wait_printed(&watch, "that the job is gone", |text| {
        text.contains("forced-0") && text.matches("DELETED").count() == 2
    });
    must_list_again(&before, "forced-0");
}

/// Watches of a second, each of which goes on from the last event of the one before.
struct Watches<'a> {
    here: &'a Namespace<'a>,
    since: String,
    /// All events so far.
    told: Vec<Value>,
}

fn version_of(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

fn name_of(event: &Value) -> &str {
    event["object"]["metadata"]["name"].as_str().unwrap()
}

/// What a job's events are about, but for the time that goes by.
fn status_without_duration(event: &Value) -> Value {
    let mut status = event["object"]["status"].clone();
    status.as_object_mut().unwrap().remove("durationSeconds");
    status
}

impl<'a> Watches<'a> {
    fn from(here: &'a Namespace<'a>, since: &str) -> Self {
        Self { here, since: since.to_owned(), told: Vec::new() }
    }

    fn one(&self, since: &str) -> Vec<Value> {
        let to = format!("{}?watch=true&timeoutSeconds=1&resourceVersion={since}", self.here.procs());
        let text = self.here.bed.raw(&to).unwrap();
        text.lines().filter(|line| !line.is_empty()).map(json).collect()
    }

    /// Goes on until a new event says this of a job.
    fn until(&mut self, job: &str, wanted: &[(&str, Value); 2]) {
        let already = self.told.len();
        wait_for(&format!("{job} to be {wanted:?}"), PATIENCE, || {
            let new = self.one(&self.since);
            if let Some(last) = new.last() {
                version_of(&last["object"]).clone_into(&mut self.since);
            }
            self.told.extend(new);
            let is = |event: &&Value| {
                let status = &event["object"]["status"];
                name_of(event) == job && wanted.iter().all(|(field, value)| status[*field] == *value)
            };
            let seen = &self.told[already..];
            if seen.iter().any(|event| is(&event)) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .unwrap();
    }
}

/// For a job in HTCondor and a waiting one, the watch reports the request and its completion. A watch resumed at any
/// event misses none and repeats none.
fn watch_reports_requested_holds_releases_and_removals(version: Version) {
    let gates = Gates::new(version);
    let bed = Bed::with_jobs_api(version, &[LONG_SUBMISSIONS, &[&gates.argument()]].concat());
    bed.start_operator();
    bed.front();
    let here = bed.namespace();
    create_ended_htcjob(&here);
    let admin = here.admin();
    let mut object = htcjob("fit", UNTIL_LET_GO);
    object["spec"]["queue"] = 4.into();
    object["spec"]["parallelism"] = 3.into();
    gates.shut("condor_submit");
    here.create(&object);
    gates.wait_at("condor_submit");
    let list = || json(&here.bed.raw(&here.procs()).unwrap());
    let waits = wait_for("the jobs to wait", PATIENCE, || {
        let list = list();
        if list["items"].as_array().unwrap().len() == 5 { Ok(list) } else { Err(list.to_string()) }
    })
    .unwrap();
    let rows = admin.begins(&["get", "htcprocs", "-w", "--output-watch-events"]);
    wait_printed(&rows, "the job that waits", |text| text.contains("fit-3"));
    gates.open("condor_submit");
    here.wait_running("fit", 3);
    let mut watches = Watches::from(&here, version_of(&waits));

    // HTCondor has accepted three jobs at once.
    let all = watches.one(&watches.since);
    let names = |events: &[Value]| events.iter().map(|event| name_of(event).to_owned()).collect::<BTreeSet<_>>();
    assert!(names(&all).is_superset(&["fit-0", "fit-1", "fit-2"].map(str::to_owned).into()), "{all:?}");
    for (number, event) in all.iter().enumerate() {
        let behind = names(&all[number + 1..]);
        let told = names(&watches.one(version_of(&event["object"])));
        assert!(told.is_superset(&behind), "behind {event}: {told:?}");
    }
    watches.until("fit-0", &[("state", "Running".into()), ("requested", Value::Null)]);

    let steps =
        [("hold", "condor_hold", "Hold"), ("release", "condor_release", "Release"), ("remove", "condor_rm", "Remove")];
    for ((action, tool, asked), done) in steps.into_iter().zip([["Held"; 2], ["Running", "Waiting"], ["Removed"; 2]]) {
        let open = if asked == "Hold" { asked.into() } else { Value::Null };
        does(&admin, &here, "fit-3", action);
        watches.until("fit-3", &[("state", done[1].into()), ("requested", open.clone())]);
        gates.shut(tool);
        let before = does(&admin, &here, "fit-0", action)["status"]["state"].clone();
        watches.until("fit-0", &[("state", before), ("requested", asked.into())]);
        gates.open(tool);
        watches.until("fit-0", &[("state", done[0].into()), ("requested", open)]);
    }
    for event in &watches.told {
        assert_eq!(event["type"], "MODIFIED", "{event}");
    }
    for job in ["fit-0", "fit-3"] {
        let told: Vec<Value> =
            watches.told.iter().filter(|event| name_of(event) == job).map(status_without_duration).collect();
        let over = told.iter().position(|status| status["state"] == "Removed").unwrap();
        for two in told[..=over].windows(2) {
            assert_ne!(two[0], two[1], "{job} is told twice: {told:#?}");
        }
    }
    let versions: Vec<u64> = watches.told.iter().map(|event| version_of(&event["object"]).parse().unwrap()).collect();
    assert!(versions.is_sorted(), "{versions:?}");

    let printed = wait_printed(&rows, "both to be removed", |text| text.matches("Removed").count() >= 2);
    for (job, expected) in
        [("fit-0", ["Running", "Held", "Running", "Removed"]), ("fit-3", ["Waiting", "Held", "Waiting", "Removed"])]
    {
        let mut states = events(&printed).into_iter().filter(|event| event[1] == job).map(|[.., state]| state);
        for state in expected {
            assert!(states.any(|seen| seen == state), "{job} is not {state} in its turn: {printed}");
        }
    }
    here.let_go("fit");
    here.wait_ended("fit");
}
