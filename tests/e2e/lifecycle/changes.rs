//! Jobs that report nothing, and an operator that looks at all of them every ten minutes: their HTCJobs follow all the same.

use std::time::{Duration, Instant};

use rstest::rstest;
use testbed::PoolOptions;
use testbed::Version::{self, Sid, Trixie};

use crate::lifecycle::{UNTIL_LET_GO, counts};
use bed::{Bed, htcjob, is_true};

/// All jobs are looked at so seldom that a test would not wait for it.
const SELDOM: Duration = Duration::from_secs(600);
/// On a machine where nothing else runs it is one second; where much else does, questions take longer and come less often.
const SOON: Duration = Duration::from_secs(60);

#[rstest]
fn a_start_and_an_end_are_seen_soon(#[values(Trixie, Sid)] version: Version) {
    let seldom = format!("--tracker-interval={}s", SELDOM.as_secs());
    let bed = Bed::new(version, &PoolOptions::default(), &[&seldom]);
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
        bed.open_gate(&here.uid(name));
        let began = Instant::now();
        let ended = here.wait(name, condition, |object| is_true(object, condition));
        let took = began.elapsed();
        println!("{version}: {condition} {took:.2?} after the end");
        assert_eq!(counts(&ended), counted);
        assert!(took < SOON, "{took:?}");
        here.wait_output(name);
    }
}
