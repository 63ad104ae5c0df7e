//! HTCJobs that wait for an answer have queries of their own: these operators query all jobs every ten minutes.

use bed::gates::Gates;
use bed::{Bed, PATIENCE, SOON, htcjob, of};
use serde_json::Value;
use testbed::{PoolOptions, Version, wait_for};

on_versions! {
    both: many_jobs_are_accepted_and_removed_between_two_full_queries;
    trixie: submission_size_shrinks_after_slow_submissions;
}

const SELDOM: &str = "--poll-interval=600s";

/// More jobs than are asked about together with those of other HTCJobs (2,000), in parts of 500.
const MANY: u64 = 2_500;

/// The first call goes through, and those after it wait until the tool is restored.
const FIRST_ONLY: &str = "#!/bin/sh\nif ! mkdir \"$0.first\" 2>/dev/null; then\n    while [ -e \"$0\" ]; do sleep 0.1; done\nfi\nexec \"$@\"\n";

/// Each call takes one and a half seconds more.
const SLOW: &str = "#!/bin/sh\nsleep 1.5\nexec \"$@\"\n";

fn bed_with(version: Version, gates: &Gates) -> Bed {
    let own = ["--submit-timeout=60s", "--submit-timeout-max=300s", SELDOM, SOON, &gates.argument()];
    let bed = Bed::new(version, &PoolOptions::default(), &own);
    bed.pool.set_start(false).unwrap();
    bed.start_operator();
    bed
}

fn active(object: &Value) -> u64 {
    object["status"]["active"].as_u64().unwrap_or_default()
}

/// Its jobs are shown as soon as HTCondor has them, while the next part is still on its way; and it is gone as soon as they are.
fn many_jobs_are_accepted_and_removed_between_two_full_queries(version: Version) {
    let gates = Gates::new(version);
    gates.replace("condor_submit", FIRST_ONLY);
    let bed = bed_with(version, &gates);
    let here = bed.namespace();
    let mut many = htcjob("many", "true");
    many["spec"]["queue"] = MANY.into();
    let uid = here.create(&many);
    here.wait("many", "the first part accepted", |object| active(object) == 500);
    wait_for("the second part to go", PATIENCE, || gates.calls("condor_submit") == 2).unwrap();
    assert_eq!(here.get("many")["status"]["phase"], "Submitted");
    gates.restore("condor_submit");
    here.wait("many", "all parts accepted", |object| active(object) == MANY);
    here.delete("many");
    assert!(bed.queue(&of(&uid), &["ProcId"]).is_empty());
}

/// A part that took long is followed by a smaller one, after a pause of the same length.
fn submission_size_shrinks_after_slow_submissions(version: Version) {
    let gates = Gates::new(version);
    gates.replace("condor_submit", SLOW);
    let bed = bed_with(version, &gates);
    let here = bed.namespace();
    let mut slow = htcjob("slow", "true");
    slow["spec"]["queue"] = 900.into();
    let uid = here.create(&slow);
    here.wait("slow", "all parts accepted", |object| active(object) == 900);
    let attempts = bed.queue(&of(&uid), &["HTCJobAttempt"]);
    let of_attempt = |number: u32| attempts.iter().filter(|row| row[0] == number.to_string()).count();
    assert_eq!([1, 2, 3, 4].map(of_attempt), [500, 250, 125, 25]);
    let times = gates.times("condor_submit");
    // The few that are left go with those of other HTCJobs.
    assert!(times[..3].windows(2).all(|pair| pair[1] - pair[0] >= 3.0), "{times:?}");
    here.delete("slow");
}
