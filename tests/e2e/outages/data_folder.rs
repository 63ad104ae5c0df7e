//! The operator's data folder cannot be written.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use testbed::{Version, wait_for};

use bed::PATIENCE;
use bed::site::Site;

on_versions! {
    trixie: read_only_data_folder_loses_nothing;
}

fn read_only_data_folder_loses_nothing(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    here.create(&site.lasting("running", 1));
    here.wait_phase("running", "Running");

    // The ledger's file is open; what is new needs files of its own.
    let folders =
        [site.bed.data.clone(), site.bed.data.join("sandbox"), site.bed.data.join("htc_out").join(&here.name)];
    for folder in &folders {
        set_mode(folder, 0o555);
    }
    let asked = site.gates.calls("condor_ping") + site.gates.calls("condor_history");
    here.create(&site.noted("new", 1, ""));
    let message = here.wait_says("new", "Submitted", "False", "CannotWriteFiles");
    assert!(message.contains(&site.bed.data.display().to_string()), "which file: {message}");
    assert!(message.contains("check the operator's data volume"), "what to do: {message}");
    wait_for("some more tries", PATIENCE, || {
        site.gates.calls("condor_ping") + site.gates.calls("condor_history") >= asked + 4
    })
    .unwrap();
    assert_eq!(site.gates.calls("condor_submit"), 1, "only of `running`");
    assert_eq!(here.get("new")["status"]["phase"], "Pending");
    assert_eq!(here.count_events("new", "CannotWriteFiles"), 1, "{:?}", here.events("new"));

    for folder in &folders {
        set_mode(folder, 0o755);
    }
    let ended = site.assert_complete_once(&here, "new", 1);
    assert_eq!(ended["status"]["attempt"], 1);

    // Output that cannot be written waits for the disk, too, and is not lost.
    let output = here.output("running", 0).parent().unwrap().to_owned();
    set_mode(&output, 0o555);
    site.finish("running");
    let message = here.wait_says("running", "OutputFetched", "False", "FetchFailed");
    assert!(message.contains("cannot write"), "{message}");
    set_mode(&output, 0o755);
    here.wait_says("running", "OutputFetched", "True", "Fetched");
    site.assert_complete_once(&here, "running", 1);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
