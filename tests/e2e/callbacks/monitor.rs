//! Orphans in `/metrics`.

use serde_json::json;
use testbed::Version::Trixie;
use testbed::wait_for;

use crate::callbacks::jobs::Site;
use bed::{PATIENCE, UNTIL_LET_GO, htcjob, ids};

/// Jobs whose HTCJob is gone: they are counted for as long as HTCondor has them.
#[test]
#[ignore = "another test shows the same promise: make test-long"]
fn orphan_metric_follows_every_query() {
    let site = Site::new(Trixie, &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    for name in ["stray", "other"] {
        here.create(&htcjob(name, UNTIL_LET_GO));
    }
    let stray = ids(&here.wait_phase("stray", "Running")).remove(0);
    here.wait_phase("other", "Running");
    let shows = |count: &str| {
        wait_for(&format!("{count} orphans"), PATIENCE, || {
            site.metric(&format!("htc_orphans{{pool=\"default\"}} {count}"))
        })
        .unwrap();
    };
    shows("0");
    site.bed.kill_operator();
    here.patch("htcjob", "stray", &json!({ "metadata": { "finalizers": null } }));
    here.remove("htcjob", "stray");
    site.bed.start_operator();
    shows("1");
    site.bed.pool.tool("condor_rm", &[&stray]).unwrap();
    shows("0");
    here.let_go("other");
}
