//! In whose name: the operator's own tickets and tokens, and those that people put into Secrets beside their HTCJobs. On a
//! real pool, a real API server and a real KDC.

mod ads;
mod config_maps;
mod kerberos;
mod orphans;
mod secrets;
mod shares;
pub mod site;
mod trouble;

on_versions!(
    trixie:
        config_maps::one_is_read_once_a_role_allows_it,
        trouble::a_secret_that_goes_before_its_htcjob,
        trouble::a_secret_without_its_label_is_as_good_as_missing,
        orphans::named_by_check_with_and_without_an_operator,
        orphans::nothing_but_an_orphan_is_removed,
        secrets::each_namespace_in_its_own_name,
        ads::what_one_user_writes_holds_up_nobody_else,
        secrets::a_lost_ledger_finds_jobs_in_all_names;
    sid:
        kerberos::jobs_of_a_kerberos_user,
        ads::one_users_ads_are_a_doubt_about_its_own_jobs_alone;
    long:
        trouble::what_is_wrong_with_a_secret_is_said,
        trouble::one_that_cannot_be_read_any_more;
);
