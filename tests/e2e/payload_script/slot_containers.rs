//! Nodes whose slots are containers already, and nodes that have Apptainer in CVMFS only.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use htc_submit::payload::PayloadFailure;

use super::{SHELLS, Scratch, condor_root, failure, with_image};

/// Command before the shell, which hides a part of `/proc` as container engines do.
const HIDDEN: &str = "unshare --user --map-current-user --keep-caps --mount sh ./hidden";

fn in_a_container(scratch: Scratch) -> Scratch {
    let hide = "mount -t tmpfs none /proc/acpi || exit 99\nexec setpriv --ambient-caps=-all --inh-caps=-all \"$@\"\n";
    scratch.write("hidden", hide);
    scratch
}

#[test]
fn payload_runs_where_no_container_may_mount_proc() {
    for shell in SHELLS {
        let source = "echo ran; ls /proc/1/root/ 2>&1 | grep -c denied; echo more >made; exit 255";
        let scratch = in_a_container(with_image("bash", source));
        let (code, stdout, stderr) = scratch.run(&format!("{HIDDEN} {shell}"));
        assert_eq!((code, stdout.as_str()), (255, "ran\n1\n"), "{shell}: {stderr}");
        assert!(stderr.contains("htc-operator: containers get no /proc of their own"), "{shell}: {stderr}");
        assert_eq!(scratch.read("made"), "more\n");
    }
}

#[test]
fn missing_command_is_found_out_in_a_container_as_well() {
    let scratch = in_a_container(with_image("nosuch", "echo yes > ran"));
    let (code, _, stderr) = scratch.run(&format!("{HIDDEN} dash"));
    assert_eq!(failure(code), Some(PayloadFailure::CommandNotFound), "{stderr}");
}

#[test]
fn apptainer_is_found_in_cvmfs() {
    const CVMFS: &str = "/cvmfs/oasis.opensciencegrid.org/mis/apptainer/bin";
    let there = tempfile::tempdir().unwrap();
    fs::set_permissions(there.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = there.path().join("apptainer");
    fs::write(&program, format!("#!/bin/sh\nexec {} \"$@\"\n", condor_root().join("usr/bin/apptainer").display()))
        .unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    for shell in SHELLS {
        let mut scratch = with_image("bash", "echo ran");
        scratch.path = "/usr/bin:/bin".to_owned();
        let job_sh = scratch.read("job.sh");
        assert!(job_sh.contains(CVMFS));
        scratch.write("job.sh", &job_sh.replace(CVMFS, there.path().to_str().unwrap()));
        assert_eq!(scratch.run(shell), (0, "ran\n".to_owned(), String::new()), "{shell}");
    }
}
