//! What a payload leaves for the script that runs outside of its container, and images that would show it the node.

use std::fs;

use testbed::{Account, Version};

use bed::{Bed, Promise, condition, htcjob, is_true};

const BEFORE: &str = "as it was";

/// A payload puts a link where `job.sh` writes, and ends with the code for which it writes there. What the link leads to belongs to
/// the account in which HTCondor runs jobs, and stays as it is.
///
/// It fails if `job.sh` does not cover its folder in the container (`cover` in `prepare_cache`): the file is then empty.
pub fn a_link_leads_job_sh_nowhere(version: Version) {
    let here = Bed::shared(version).namespace();
    let outside = here.bed.scratch().dir(&here.name).unwrap();
    let file = outside.join("file");
    let target = file.display();
    for (name, source) in [
        (
            "moved",
            format!(
                "mv /htc_run/.htc_cache /htc_run/o; mkdir /htc_run/.htc_cache; ln -s {target} /htc_run/.htc_cache/probe"
            ),
        ),
        ("emptied", format!("rm -rf .htc_cache; mkdir .htc_cache; ln -sf {target} .htc_cache/probe")),
        ("whole", format!("rm -rf .htc_cache; ln -s {} .htc_cache", outside.display())),
    ] {
        Account::unprivileged().write(&file, BEFORE, 0o600).unwrap();
        here.create(&htcjob(name, &format!("{source}; echo ran; exit 255")));
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Failed"), "{ended:#}");
        here.wait_output(name);
        assert!(fs::read_to_string(here.output(name, 0).join("out")).unwrap().ends_with("ran\n"), "{name}");
        let _promise = Promise;
        assert_eq!(fs::read_to_string(&file).unwrap(), BEFORE, "{name}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{name}");
    }
}

/// Paths that show the node's files are refused, and nothing comes to HTCondor.
///
/// It fails if a user's path need not be in a folder that jobs see (`Image::of_a_user`): the payload then has the node's root for
/// its own.
pub fn an_image_that_is_the_node_is_refused(version: Version) {
    let here = Bed::shared(version).namespace();
    for (name, image, words) in [
        ("root", "/proc/self/root", "it must be in a folder that jobs see"),
        ("slash", "/proc/self/root/", "it must be in a folder that jobs see"),
        ("first", "/proc/1/root", "it must be in a folder that jobs see"),
        ("folder", "/proc/self/cwd", "it must be in a folder that jobs see"),
        ("double", "//proc/self/root", "is not allowed"),
        ("dots", "/cvmfs/../proc/self/root", "is not allowed"),
    ] {
        let mut object = htcjob(name, "ls /");
        object["spec"]["script"]["image"] = image.into();
        let uid = here.create(&object);
        let object = here.wait(name, "InvalidSpec", |object| {
            condition(object, "Submitted").is_some_and(|told| told["reason"] == "InvalidSpec")
        });
        let message = condition(&object, "Submitted").unwrap()["message"].as_str().unwrap();
        assert!(message.contains(words), "{name}: {message}");
        assert!(here.bed.jobs_of(&uid).is_empty(), "{name}");
    }
}
