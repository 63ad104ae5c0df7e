//! HTCJobs go to the pool that they name: each stays there, and no pool has to do with another.

pub mod managed;
mod one;
mod several;
pub mod site;

#[test]
#[ignore = "make test-long: ten schedds and a thousand containers"]
fn a_thousand_htcjobs_in_ten_pools() {
    several::in_pools(testbed::Version::Sid, 10, 1000);
}
