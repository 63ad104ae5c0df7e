//! The operator is started with another schedd.

use bed::Namespace;
use bed::site::Site;
use testbed::{Pool, PoolOptions, Version};

on_versions! {
    trixie: jobs_wait_for_their_own_schedd;
}

/// The operator is started with another, younger schedd with an empty queue. Jobs of the first schedd are neither lost
/// nor released, new HTCJobs go to the other one, and back at the first schedd everything continues.
fn jobs_wait_for_their_own_schedd(version: Version) {
    let site = Site::with(version, "", &["--birthdate-steady=1s"]);
    let bed = &site.bed;
    bed.start_operator();
    let here = bed.namespace();
    site.start_lasting(&here, &["runs", "doomed"]);
    bed.stop_operator();

    let options = PoolOptions { schedd: Some("other@test".to_owned()), ..PoolOptions::default() };
    let other = Pool::start(&bed.assets, version, &options).unwrap();
    let own = bed.condor.config();
    ask(&site, "other@test", &other.client("operator").unwrap().config());
    here.begin_delete("doomed");
    let (well, output) = bed.check();
    assert!(!well && output.contains("WRONG other schedds: ") && output.contains("2 at schedd@test"), "{output}");
    bed.start_operator();
    assert_waits(&here, "runs", "Tracked");
    assert_waits(&here, "doomed", "JobsRemoved");
    // What never had to do with the first schedd goes on.
    here.create(&site.noted("new", 1, ""));
    here.wait_ended("new");
    here.delete("new");
    assert_eq!(here.get("runs")["status"]["phase"], "Running");
    assert_eq!(here.get("doomed")["status"]["phase"], "Terminating");
    bed.stop_operator();

    ask(&site, bed.pool.schedd_name(), &own);
    bed.start_operator();
    here.wait_gone("doomed");
    site.finish("runs");
    site.assert_complete_once(&here, "runs", 1);
}

/// From its next start on the operator asks this schedd.
fn ask(site: &Site, schedd: &str, config: &std::path::Path) {
    site.bed.set_env("HTC_SCHEDD", schedd);
    site.bed.set_env("CONDOR_CONFIG", config.to_str().unwrap());
}

fn assert_waits(here: &Namespace<'_>, name: &str, condition: &str) {
    let message = here.wait_says(name, condition, "False", "AnotherSchedd");
    assert!(message.contains("--schedd=schedd@test"), "what to do: {message}");
}
