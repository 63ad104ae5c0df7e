//! condor_history is slow or hangs: only HTCJobs that need its answer wait.

use std::time::{Duration, Instant};

use testbed::{Scratch, Version, wait_for};

use crate::faults::queue::unsure;
use bed::site::Site;
use bed::{Namespace, PATIENCE};

on_versions! {
    trixie: hanging_condor_history_delays_no_submission;
}

/// From creation to the end.
fn good(site: &Site, here: &Namespace<'_>, name: &str) -> Duration {
    let began = Instant::now();
    here.create(&site.noted(name, 1, ""));
    let took = wait_for("its end", PATIENCE, || {
        let phase = here.get(name)["status"]["phase"].clone();
        if phase == "Completed" { Ok(began.elapsed()) } else { Err(phase) }
    });
    took.unwrap_or_else(|error| panic!("{error}\n{}", site.bed.logs()))
}

/// A query of the whole history hangs. The query before each submission, for the newest ad, does not.
fn hanging_condor_history_delays_no_submission(version: Version) {
    let arguments = ["--submit-timeout=10s", "--submit-timeout-max=10s", "--history-timeout=30s"];
    let site = Site::with(version, "", &arguments);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let alone = good(&site, &here, "alone");

    let scratch = Scratch::new().unwrap();
    let hangs = scratch.path().join("hangs");
    std::fs::write(&hangs, "").unwrap();
    let script = format!(
        "real=$1; shift\ncase \"$*\" in *'-limit 1'*) ;; *-constraint*) while [ -e {} ]; do sleep 0.1; done;; esac\nexec $real \"$@\"\n",
        hangs.display()
    );
    site.gates.replace("condor_history", &script);
    unsure(&site, &here, "unsure");
    site.bed.start_operator();
    here.wait_says("unsure", "Submitted", "False", "QueryingHTCondor");
    // One that is really held up is so each time.
    let beside = ["beside-0", "beside-1"].map(|name| good(&site, &here, name)).into_iter().min().unwrap();
    println!("{version}: {alone:?} alone, {beside:?} while history hangs");
    assert!(beside < alone * 2 + Duration::from_secs(5), "{beside:?} instead of {alone:?}");
    let message = here.wait_says("unsure", "Submitted", "False", "ScheddUnreachable");
    assert!(message.contains("condor_history did not end within 30 s"), "{message}");
    std::fs::remove_file(&hangs).unwrap();
    let ended = site.assert_complete_once(&here, "unsure", 1);
    assert_eq!(ended["status"]["attempt"], 2, "{ended:#}");
    for name in ["beside-0", "beside-1"] {
        site.assert_complete_once(&here, name, 1);
    }
}
