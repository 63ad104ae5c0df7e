//! Jobs that report nothing, and an operator that looks at all of them every ten minutes: their HTCJobs follow all the same.

use std::time::Instant;

use rstest::rstest;
use testbed::Version::{self, Sid, Trixie};
use testbed::{PoolOptions, wait_for};

use crate::lifecycle::{UNTIL_LET_GO, counts};
use bed::looks::Looks;
use bed::{Bed, PATIENCE, htcjob, is_true};

/// All jobs are looked at so seldom that a test would not wait for it.
const SELDOM: &str = "--poll-interval=600s";

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn job_start_and_end_reach_the_status_within_few_queries(#[case] version: Version) {
    let bed = Bed::new(version, &PoolOptions::default(), &[SELDOM]);
    bed.start_operator();
    let here = bed.namespace();
    let ends = [("good", "exit 0", [0, 2, 0], "Complete"), ("bad", "exit 7", [0, 0, 2], "Failed")];
    for (name, end, ..) in ends {
        let mut object = htcjob(name, &format!("{UNTIL_LET_GO}\n{end}"));
        object["spec"]["queue"] = 2.into();
        here.create(&object);
    }
    for (name, _, counted, condition) in ends {
        here.wait_running(name, 2);
        let uid = here.uid(name);
        bed.open_gate(&uid);
        wait_for("HTCondor to say that both have ended", PATIENCE, || {
            bed.jobs_of(&uid).iter().all(|job| job.status == 4)
        })
        .unwrap();
        let (began, before) = (Instant::now(), bed.looks());
        here.wait_phase(name, "Completed");
        let (took, looks) = (began.elapsed(), bed.looks().since(before));
        println!("{version}: Completed {took:.2?} and {looks:?} after the end");
        assert!(looks.within(Looks::SECOND), "{looks:?}");
        let ended = here.wait(name, condition, |object| is_true(object, condition));
        assert_eq!(counts(&ended), counted);
        here.wait_output(name);
    }
}
