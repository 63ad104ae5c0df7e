//! Payloads that start a container themselves.

use htc_submit::payload::Image;
use testbed::{Assets, Registry};

use super::{SHELLS, Scratch, condor_root, image};

/// A folder, and an image of a registry, for which Apptainer needs room in `HOME` and `/tmp`.
#[test]
fn payload_starts_apptainer_in_its_own_container() {
    let assets = Assets::locate().unwrap();
    let registry = Registry::start(&assets).unwrap();
    registry.push("team/inner", "1", &image()).unwrap();
    let (root, folder) = (condor_root().display().to_string(), image().display().to_string());
    let site = Image::of_the_site(&folder).unwrap();
    // Programs of the node, in the place of an image that brings them.
    let binds = [root.as_str(), folder.as_str(), "/lib", "/lib64"];
    let source = format!(
        "export PATH={}:$PATH\n\
         for image in {folder} docker://{}/team/inner:1; do\n\
         apptainer --quiet exec --no-https $image /bin/sh -c 'echo inner in $PWD'\ndone",
        assets.job_bin().display(),
        registry.address(),
    );
    for shell in SHELLS {
        let (code, stdout, stderr) = Scratch::with(&site, &binds, "bash -e", &source, None).run(shell);
        assert_eq!((code, stdout.as_str()), (0, "inner in /htc_run\n".repeat(2).as_str()), "{shell}: {stderr}");
    }
}
