//! HTCJobs that the Go operator may or may not have submitted.

use serde_json::json;
use testbed::{PoolOptions, Version};

use crate::upgrade::old::{FINALIZER, Old, wait_says};
use bed::{Bed, condition, htcjob};

on_versions! {
    sid: possibly_submitted_jobs_are_not_submitted_again;
}

/// HTCJobs, and why the command does not adopt them.
const NAMES: [(&str, &str); 4] = [
    ("unsaid", "the database has some"),
    ("unknown", "no row"),
    ("bare", "neither its status nor"),
    ("another", "cannot be adopted: they are of"),
];

fn possibly_submitted_jobs_are_not_submitted_again(version: Version) {
    let bed = Bed::new(version, &PoolOptions::default(), &[]);
    let old = Old::new(&bed);
    let here = bed.namespace();
    // It ended between its rows and the status.
    let unsaid = old.submit(&bed.condor, "unsaid", 2, "");
    old.note("unsaid", &unsaid, &[1, 1]);
    let nothing = crate::upgrade::old::Submitted { ids: Vec::new(), ..unsaid };
    Old::object(&here, htcjob("unsaid", "true"), &nothing, &[]);
    // The database was not taken along, or not all of it.
    let unknown = old.submit(&bed.condor, "unknown", 1, "");
    Old::object(&here, htcjob("unknown", "true"), &unknown, &[1]);
    // Nothing but its finalizer.
    let mut bare = htcjob("bare", "echo ran");
    bare["metadata"]["finalizers"] = json!([FINALIZER]);
    let uid = here.create(&bare);
    // The Go operator was another user of HTCondor than we are.
    let alice = bed.pool.client("alice").unwrap();
    let another = old.submit(&alice, "another", 1, "requirements = (NoSuchMachine =?= true)");
    old.note("another", &another, &[1]);
    Old::object(&here, htcjob("another", "true"), &another, &[1]);
    old.leave_database();
    for (name, words) in NAMES {
        assert!(condition(&here.get(name), "Submitted").is_none(), "{words}");
    }
    bed.start_operator();

    // With an operator that started before the command was run, nothing happens.
    let all_wait = || {
        for (name, _) in NAMES {
            wait_says(&here, name, "Submitted", "False", "LegacyJobsUnknown");
            here.wait_event(name, "LegacyJobsUnknown");
            let object = here.get(name);
            let message = condition(&object, "Submitted").unwrap()["message"].as_str().unwrap();
            assert!(message.contains("htc-operator adopt"), "{message}");
            assert_eq!(object["status"]["phase"], "Pending");
        }
    };
    all_wait();
    let (well, output) = bed.adopt();
    assert!(!well && output.contains("stop the operator first"), "{output}");
    bed.stop_operator();
    let (well, output) = bed.adopt();
    assert!(!well && output.contains("4 of 4 HTCJobs were not adopted"), "{output}");
    for (name, words) in NAMES {
        let line = output.lines().find(|line| line.contains(&format!("NOT ADOPTED  {}/{name}: ", here.name)));
        assert!(line.is_some_and(|line| line.contains(words)), "{output}");
    }
    bed.start_operator();
    all_wait();
    assert_eq!(here.get("unknown")["status"]["active"], 1, "what was said stands");
    here.kubectl(&["annotate", "htcjob", "unknown", "bare", "htc.cern.ch/submit-again=true"]);
    here.wait_ended("bare");
    bed.assert_once(&uid, "bare", 1);
    here.delete("bare");
    wait_says(&here, "unknown", "Submitted", "False", "LegacyJobsUnknown");
    assert_eq!(bed.jobs_of_all().keys().collect::<Vec<_>>(), [&uid], "nothing else was submitted");

    // Nobody knows which jobs to remove: a person does, and says so.
    here.begin_delete("unsaid");
    wait_says(&here, "unsaid", "JobsRemoved", "False", "LegacyJobsUnknown");
    bed.condor.ok("condor_rm", &["-constraint", "regexp(\"JOB_NAME=unsaid \", Environment)"]).unwrap();
    here.annotate("unsaid", "htc.cern.ch/abandon");
    here.wait_gone("unsaid");

    here.begin_delete("another");
    wait_says(&here, "another", "JobsRemoved", "False", "LegacyJobsUnknown");
    assert!(bed.queue("HTCOperator =!= undefined", &["ClusterId"]).is_empty());
    assert_eq!(another.queued(&bed), 1, "it is not ours to remove");
    alice.ok("condor_rm", &[&another.ids[0]]).unwrap();
    another.wait_gone(&bed);
    bed.stop_operator();
    let (well, output) = bed.adopt();
    assert!(!well && output.contains("1 of 2 HTCJobs were not adopted"), "{output}");
    bed.start_operator();
    here.wait_gone("another");
    old.assert_rows_kept();
}
