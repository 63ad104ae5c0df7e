//! `kubectl htc`, as kubectl calls it: found in PATH by its name.

mod files;
mod flags;
mod jobs;
mod logs;
mod recording;
mod roles;
mod story;
pub mod users;
mod why;
mod wishes;

use bed::{Bed, LONG_SUBMISSIONS};
use testbed::Version;

#[test]
#[ignore = "make test-long: a thousand containers keep the machine busy for minutes"]
fn three_of_a_thousand_fail_on_trixie() {
    three_of_a_thousand_fail(Version::Trixie);
}

#[test]
#[ignore = "make test-long: a thousand containers keep the machine busy for minutes"]
fn three_of_a_thousand_fail_on_sid() {
    three_of_a_thousand_fail(Version::Sid);
}

fn three_of_a_thousand_fail(version: Version) {
    bed::turns::take(bed::Weight::Heavy);
    let bed = Bed::with_jobs_api(version, LONG_SUBMISSIONS);
    bed.start_operator();
    jobs::three_fail_of(1000, &bed.namespace());
}
