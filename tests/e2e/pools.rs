//! HTCJobs go to the pool that they name: each stays there, and no pool has to do with another.

pub mod managed;
mod one_pool;
mod several_pools;
pub mod site;

#[test]
#[ignore = "make test-long: ten schedds and a thousand containers"]
fn thousand_htcjobs_run_each_in_one_of_ten_pools() {
    several_pools::in_pools(testbed::Version::Sid, 10, 1000);
}
