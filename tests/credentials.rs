//! In whose name: the operator's own tickets and tokens, and those that people put into Secrets beside their HTCJobs. On a
//! real pool, a real API server and a real KDC.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod bed;
#[path = "credentials/kerberos.rs"]
mod kerberos;
#[path = "credentials/orphans.rs"]
mod orphans;
#[path = "credentials/secrets.rs"]
mod secrets;
#[path = "credentials/site.rs"]
mod site;
#[path = "credentials/trouble.rs"]
mod trouble;
#[macro_use]
#[path = "outages/versions.rs"]
mod versions;

on_both_versions!(
    secrets::each_namespace_in_its_own_name,
    secrets::a_lost_ledger_finds_jobs_in_all_names,
    trouble::what_is_wrong_with_a_secret_is_said,
    trouble::a_secret_that_goes_before_its_htcjob,
    trouble::one_that_cannot_be_read_any_more,
    kerberos::jobs_of_a_kerberos_user,
    orphans::named_by_check_with_and_without_an_operator,
);
