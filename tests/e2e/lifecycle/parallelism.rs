//! Jobs of one HTCJob that differ, that wait for each other, and that end with each other: `items`, `parallelism` and
//! `maxFailedIndexes`.

use serde_json::json;
use testbed::{Version, wait_for};

use crate::lifecycle::{condition_parts, counts, read};
use bed::site::Site;
use bed::{Bed, PATIENCE, UNTIL_LET_GO, beside, htcjob, is_true, of};

on_versions! {
    both: each_job_gets_its_item;
    trixie: parallelism_can_be_changed, max_failed_indexes_ends_the_remaining_jobs;
    sid: jobs_in_htcondor_never_exceed_parallelism;
}

/// What would mean something to condor_submit, to a shell, or in a list.
const ITEMS: [&str; 7] =
    ["plain", "two words", "", "-", "a,b;c = \"d\" 'e' \\", "$(Process) $$(Arch) `id` $HOME *", "µ → 1 % $ENV(PATH) )"];

fn each_job_gets_its_item(version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut object = htcjob("items", r#"printf '%s|%s|%s|%s\n' "$#" "$1" "$2" "$HTC_ITEM""#);
    object["spec"]["items"] = json!(ITEMS);
    here.create(&object);
    // In the same submission, one whose job gets none.
    here.create(&htcjob("none", r#"printf '%s|%s\n' "$#" "${HTC_ITEM-unset}""#));
    let ended = here.wait_ended("items");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(ended["status"]["total"], ITEMS.len());
    for (index, item) in (0..).zip(ITEMS) {
        assert_eq!(read(&here, "items", index, "out"), format!("2|{index}|{item}|{item}\n"));
    }
    here.wait_ended("none");
    assert_eq!(read(&here, "none", 0, "out"), "1|unset\n");
    // With their numbers: the items of those that run again are the same.
    object["metadata"]["name"] = "again".into();
    object["spec"]["indexes"] = "1,5".into();
    here.create(&object);
    here.wait_ended("again");
    assert_eq!(read(&here, "again", 5, "out"), format!("2|5|{0}|{0}\n", ITEMS[5]));
    assert!(!here.output("again", 0).exists());
}

/// HTCondor is asked all the while: never has it more at a time than it may have.
fn jobs_in_htcondor_never_exceed_parallelism(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let mut object = site.noted("parts", 9, "sleep 1");
    object["spec"]["parallelism"] = 2.into();
    let uid = here.create(&object);
    let open = format!("{} && !member(JobStatus, {{3,4}})", of(&uid));
    let look = |most: &mut usize| *most = site.bed.queue(&open, &["ProcId"]).len().max(*most);
    let ((), most) = beside(0, look, || {
        here.wait_says("parts", "Submitted", "False", "ParallelismReached");
        // The leader that follows knows what is in HTCondor.
        site.bed.kill_operator();
        site.bed.start_operator();
        here.wait_says("parts", "Submitted", "True", "Accepted");
        here.wait_ended("parts");
    });
    assert_eq!(most, 2);
    site.assert_complete_once(&here, "parts", 9);
    let story = here.story("parts", "Fetched");
    assert_eq!(story, ["Pending", "Submitted", "Running", "AllSubmitted", "Completed", "Fetched"]);
}

/// 0 stops what is not submitted, not what is; a larger number goes on.
fn parallelism_can_be_changed(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let mut object = site.lasting("changed", 5);
    object["spec"]["parallelism"] = 0.into();
    let uid = here.create(&object);
    let message = here.wait_says("changed", "Submitted", "False", "ParallelismReached");
    assert!(message.contains("until it is increased"), "{message}");
    let set = |most: u32| here.merge("changed", &json!({ "spec": { "parallelism": most } }));
    let has = |count: usize| {
        wait_for("jobs to be submitted", PATIENCE, || site.bed.jobs_of(&uid).len() == count).unwrap();
    };
    set(2);
    has(2);
    here.wait_running("changed", 2);
    set(0);
    let told = || condition_parts(&here.get("changed"), "Submitted")[2].contains("until it is increased");
    wait_for("the change to be told", PATIENCE, told).unwrap();
    assert_eq!(counts(&here.get("changed")), [2, 0, 0], "what runs goes on");
    set(5);
    has(5);
    site.finish("changed");
    site.assert_complete_once(&here, "changed", 5);
}

fn max_failed_indexes_ends_the_remaining_jobs(version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut object = htcjob("failing", &format!("case $1 in 0 | 2) exit 3 ;; esac\n{UNTIL_LET_GO}"));
    object["spec"]["queue"] = 5.into();
    object["spec"]["maxFailedIndexes"] = 1.into();
    let uid = here.create(&object);
    let ended = here.wait_ended("failing");
    assert_eq!(counts(&ended), [0, 0, 5]);
    let [status, reason, message] = condition_parts(&ended, "Failed");
    assert_eq!([status.as_str(), &reason], ["True", "MaxFailedIndexesExceeded"]);
    assert!(message.starts_with("5 of 5 jobs failed: ") && message.contains("exit code 3 (2)"), "{message}");
    let event = here.event_message("failing", "MaxFailedIndexesExceeded");
    assert!(event.contains("2 jobs failed, more than maxFailedIndexes (1) allows"), "{event:?}");
    here.wait_nothing_left(&uid);
}
