//! `kubectl htc`, as kubectl calls it: found in PATH by its name.

mod actions;
mod files;
mod flags;
mod jobs;
mod logs;
mod recording;
mod roles;
mod story;
pub mod submit_and_retry;
mod why;

use bed::{Bed, LONG_SUBMISSIONS};
use testbed::Version;

#[test]
#[ignore = "make test-long: a thousand containers keep the machine busy for minutes"]
fn three_failed_of_1000_jobs_are_found_and_retried_on_trixie() {
    three_of_1000_jobs_fail(Version::Trixie);
}

#[test]
#[ignore = "make test-long: a thousand containers keep the machine busy for minutes"]
fn three_failed_of_1000_jobs_are_found_and_retried_on_sid() {
    three_of_1000_jobs_fail(Version::Sid);
}

fn three_of_1000_jobs_fail(version: Version) {
    bed::turns::take(bed::Weight::Heavy);
    let bed = Bed::with_jobs_api(version, LONG_SUBMISSIONS);
    bed.start_operator();
    jobs::three_fail_of(1000, &bed.namespace());
}
