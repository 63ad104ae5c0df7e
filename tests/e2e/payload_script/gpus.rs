//! Arguments of Apptainer where HTCondor has assigned GPUs: a script stands in for it, and text for the devices.

use std::os::unix::fs::PermissionsExt;

use super::{SHELLS, with_image};

/// The arguments of the one call of Apptainer in a slot with this ad.
fn called(shell: &str, machine_ad: Option<&str>) -> Vec<String> {
    let mut scratch = with_image("bash", "true");
    let bin = tempfile::tempdir().unwrap();
    std::fs::set_permissions(bin.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let apptainer = bin.path().join("apptainer");
    std::fs::write(&apptainer, "#!/bin/sh\nprintf '%s\\n' \"$@\" >>called\n").unwrap();
    std::fs::set_permissions(&apptainer, PermissionsExt::from_mode(0o755)).unwrap();
    scratch.path = format!("{}:{}", bin.path().display(), scratch.path);
    if let Some(ad) = machine_ad {
        scratch.write(".machine.ad", ad);
        scratch.environment.push(("_CONDOR_MACHINE_AD", scratch.folder.path().join(".machine.ad")));
    }
    let (code, _, stderr) = scratch.run(shell);
    assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
    scratch.read("called").lines().map(str::to_owned).collect()
}

#[test]
fn container_gets_its_assigned_gpus() {
    let cases = [
        (None, None),
        (Some("Cpus = 1\n"), None),
        (Some("AssignedGPUs = \"\"\nDetectedGPUs = \"CUDA0\"\nGPUs_NvidiaDriver = \"12.4\"\n"), None),
        (Some("Cpus = 1\nAssignedGPUs = \"CUDA0\"\n"), Some("--nv")),
        (Some("ASSIGNEDGPUS = \"GPU-c4a646d7,GPU-6a96bd13\"\nGPUs_Rocm = 0"), Some("--nv")),
        (Some("AssignedGPUs = \"CUDA0\"\nGPUs_NvidiaDriver = \"12.4\"\nGPUs_Rocm = 6\n"), Some("--nv")),
        (Some("AssignedGPUs = \"ROC0\"\nGPUs_NvidiaDriver = \"\"\nGPUs_Rocm = 6\n"), Some("--rocm")),
    ];
    for shell in SHELLS {
        for (machine_ad, wanted) in &cases {
            let arguments = called(shell, *machine_ad);
            let given = arguments.iter().map(String::as_str).filter(|word| ["--nv", "--rocm"].contains(word));
            assert_eq!(given.collect::<Vec<_>>(), Vec::from_iter(*wanted), "{shell}: {machine_ad:?}");
            assert_eq!(arguments[..2], ["--quiet", "exec"], "{shell}");
            assert!(arguments.ends_with(&["bash".to_owned(), "/htc_run/script.sh".to_owned(), "3".to_owned()]));
        }
    }
}
