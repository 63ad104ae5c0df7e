//! Lists of jobs in kubectl.

use bed::{Bed, htcjob, is_true};
use testbed::Version;

use crate::jobs_api::{json, names, rows};

on_versions! {
    trixie: failed_jobs_are_listed_with_exit_codes;
}

fn failed_jobs_are_listed_with_exit_codes(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let script = "case $1 in 3) exit 7;; 5) kill -9 $$;; esac; echo done";
    let mut object = htcjob("fit-2", script);
    object["spec"]["queue"] = 8.into();
    here.create(&object);
    let ended = here.wait_ended("fit-2");
    assert!(is_true(&ended, "Failed"), "{ended:#}");

    let all = here.kubectl(&["get", "htcprocs"]);
    assert!(all.starts_with("NAME "), "{all}");
    assert_eq!(
        names(&all),
        ["fit-2-0", "fit-2-1", "fit-2-2", "fit-2-3", "fit-2-4", "fit-2-5", "fit-2-6", "fit-2-7"],
        "{all}"
    );
    let failed = here.kubectl(&["get", "htcprocs", "--field-selector=status.state=Failed"]);
    assert_eq!(
        rows(&failed).iter().map(|row| (row[0], row[1])).collect::<Vec<_>>(),
        [("fit-2-3", "Failed"), ("fit-2-5", "Failed")],
        "{failed}"
    );
    assert_eq!(rows(&failed)[0][2], "7", "{failed}");

    let one = json(&here.kubectl(&["get", "htcproc", "fit-2-3", "-o", "json"]));
    assert_eq!(
        (&one["kind"], &one["spec"]["htcJob"], &one["spec"]["index"]),
        (&"HTCProc".into(), &"fit-2".into(), &3.into())
    );
    assert_eq!(one["status"]["exitCode"], 7);
    assert_eq!(one["status"]["id"], ended["status"]["jobid"][3], "{ended:#}");
    for field in ["host", "submitTime", "startTime", "completionTime"] {
        assert!(one["status"][field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {one:#}");
    }
}
