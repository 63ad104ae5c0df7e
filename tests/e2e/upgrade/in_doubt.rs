//! Objects of which nobody knows whether the Go operator had submitted them.

use serde_json::json;
use testbed::{PoolOptions, Version};

use crate::upgrade::old::{FINALIZER, Old, wait_says};
use bed::{Bed, condition, htcjob};

on_versions! {
    sid: nothing_is_submitted_that_may_have_been;
}

fn nothing_is_submitted_that_may_have_been(version: Version) {
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
    bed.start_operator();

    for (name, words) in
        [("unsaid", "the database has some"), ("unknown", "no row"), ("bare", "neither its status nor")]
    {
        wait_says(&here, name, "Submitted", "False", "GoOperator");
        here.wait_event(name, "GoOperator");
        let object = here.get(name);
        let message = condition(&object, "Submitted").unwrap()["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        assert_eq!(object["status"]["phase"], "Pending");
    }
    assert_eq!(here.get("unknown")["status"]["active"], 1, "what was said stands");
    here.kubectl(&["annotate", "htcjob", "unknown", "bare", "htc.cern.ch/submit-again=true"]);
    here.wait_ended("bare");
    bed.assert_once(&uid, "bare", 1);
    here.delete("bare");
    wait_says(&here, "unknown", "Submitted", "False", "Lost");
    assert_eq!(bed.jobs_of_all().keys().collect::<Vec<_>>(), [&uid], "nothing else was submitted");

    // Nobody knows which jobs to remove: a person does, and says so.
    here.begin_delete("unsaid");
    wait_says(&here, "unsaid", "JobsRemoved", "False", "GoOperator");
    bed.condor.ok("condor_rm", &["-constraint", "regexp(\"JOB_NAME=unsaid \", Environment)"]).unwrap();
    here.annotate("unsaid", "htc.cern.ch/abandon");
    here.wait_gone("unsaid");

    wait_says(&here, "another", "Submitted", "False", "CredentialsRefused");
    here.begin_delete("another");
    wait_says(&here, "another", "JobsRemoved", "False", "CredentialsRefused");
    assert!(bed.queue("HTCOperator =!= undefined", &["ClusterId"]).is_empty());
    assert_eq!(another.queued(&bed), 1, "it is not ours to remove");
    alice.ok("condor_rm", &[&another.ids[0]]).unwrap();
    here.wait_gone("another");
    old.assert_rows_kept();
}
