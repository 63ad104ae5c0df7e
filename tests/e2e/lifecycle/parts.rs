//! Jobs of one HTCJob that differ, that wait for each other, and that end with each other: `items`, `parallelism` and
//! `maxFailedIndexes`.

use serde_json::json;
use testbed::{Version, wait_for};

use crate::lifecycle::{counts, read, told_in};
use bed::site::Site;
use bed::{Bed, PATIENCE, UNTIL_LET_GO, beside, htcjob, is_true, of};

on_versions! {
    both: each_job_gets_its_item;
    trixie: parallelism_can_be_changed, too_many_failures_end_the_rest;
    sid: no_more_at_a_time_than_parallelism;
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
fn no_more_at_a_time_than_parallelism(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let mut object = site.noted("parts", 9, "sleep 1");
    object["spec"]["parallelism"] = 2.into();
    let uid = here.create(&object);
    let open = format!("{} && !member(JobStatus, {{3,4}})", of(&uid));
    let look = |most: &mut usize| *most = site.bed.queue(&open, &["ProcId"]).len().max(*most);
    let ((), most) = beside(0, look, || {
        here.wait_says("parts", "Submitted", "False", "Parallelism");
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
    let message = here.wait_says("changed", "Submitted", "False", "Parallelism");
    assert!(message.contains("until it is increased"), "{message}");
    let set = |most: u32| here.merge("changed", &json!({ "spec": { "parallelism": most } }));
    let has = |count: usize| {
        wait_for("jobs to be submitted", PATIENCE, || site.bed.jobs_of(&uid).len() == count).unwrap();
    };
    set(2);
    has(2);
    here.wait_running("changed", 2);
    set(0);
    let told = || told_in(&here.get("changed"), "Submitted")[2].contains("until it is increased");
    wait_for("the change to be told", PATIENCE, told).unwrap();
    assert_eq!(counts(&here.get("changed")), [2, 0, 0], "what runs goes on");
    set(5);
    has(5);
    site.finish("changed");
    site.assert_complete_once(&here, "changed", 5);
}

fn too_many_failures_end_the_rest(version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut object = htcjob("failing", &format!("case $1 in 0 | 2) exit 3 ;; esac\n{UNTIL_LET_GO}"));
    object["spec"]["queue"] = 5.into();
    object["spec"]["maxFailedIndexes"] = 1.into();
    let uid = here.create(&object);
    let ended = here.wait_ended("failing");
    assert_eq!(counts(&ended), [0, 0, 5]);
    let [status, reason, message] = told_in(&ended, "Failed");
    assert_eq!([status.as_str(), &reason], ["True", "MaxFailedIndexesExceeded"]);
    assert!(message.starts_with("5 of 5 jobs failed: ") && message.contains("exit code 3 (2)"), "{message}");
    let told = here.told("failing", "MaxFailedIndexesExceeded");
    assert!(told.contains("2 jobs failed, more than maxFailedIndexes (1) allows"), "{told:?}");
    here.wait_nothing_left(&uid);
}
