//! HTCQueues: quotas of jobs in HTCondor, and HTCJobs that wait for quota.

mod changes;
mod fail_closed;
mod failing_htcjobs;
mod limits;
mod quota;
pub mod site;
mod users;
