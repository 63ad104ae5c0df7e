//! Output that the schedd cannot read.

use std::fs;

use testbed::{Version, wait_for};

use bed::PATIENCE;
use bed::site::Site;

on_versions! {
    trixie: files_missing_from_the_spool_are_named;
}

/// A file of a job that has ended is not in the schedd's spool. The `HTCJob` says that, and has its output when the file is back.
fn files_missing_from_the_spool_are_named(version: Version) {
    let site = Site::with(version, "", &[]);
    let bed = &site.bed;
    bed.start_operator();
    let here = bed.namespace();
    site.start_lasting(&here, &["gone"]);
    bed.kill_operator();
    site.finish("gone");
    wait_for("the job to have ended", PATIENCE, || {
        let statuses = bed.queue("true", &["JobStatus"]);
        if statuses.iter().all(|status| status[0] == "4") { Ok(()) } else { Err(format!("{statuses:?}")) }
    })
    .unwrap();
    let file = bed::files_below(&bed.pool.spool_dir(), &|name| name == "err").remove(0);
    let away = site.gates.place("away").join("err");
    fs::rename(&file, &away).unwrap();
    bed.start_operator();
    let message = here.wait_says("gone", "OutputFetched", "False", "FetchFailed");
    assert!(message.contains("cannot read the output in its spool") && message.contains("(errno 2)"), "{message}");
    fs::rename(&away, &file).unwrap();
    here.wait_says("gone", "OutputFetched", "True", "Fetched");
    site.assert_complete_once(&here, "gone", 1);
}
