//! Files that a payload leaves for the script outside its container, and images that would expose the node.

use std::fs;

use testbed::{Account, Version};

use bed::{Bed, Promise, condition, htcjob, is_true, of};

on_versions! {
    both: image_path_that_exposes_the_node_is_refused, resource_usage_forged_by_a_payload_is_not_in_the_ad;
    trixie: files_of_a_run_do_not_control_the_next_run;
    sid:
        output_link_brings_no_file_of_another_namespaces_job,
        output_link_brings_no_file_from_outside_the_container,
        job_sh_follows_no_links_of_the_payload;
}

const BEFORE: &str = "as it was";

/// A payload puts a link where `job.sh` writes, and ends with the code after which it writes there. The target of the
/// link, which belongs to the account of jobs, is unchanged.
///
/// It fails if the payload's folder is the scratch directory (`binds` in `prepare_work`): the file is then empty.
///
/// Against b8ba2a8: succeeds with `.htc_cache`, as the folder was called there: the file of `within` is empty.
fn job_sh_follows_no_links_of_the_payload(version: Version) {
    let here = Bed::shared(version).namespace();
    let outside = here.bed.scratch().dir(&here.name).unwrap();
    let file = outside.join("file");
    let target = file.display();
    for (name, source) in [
        ("within", format!("mkdir -p .htc_work; ln -s {target} .htc_work/probe")),
        ("replaced", format!("mv .htc_work o; mkdir .htc_work; ln -s {target} .htc_work/probe")),
        (
            "above",
            format!("ln -sf {target} ../probe; ln -sf {target} /htc_run/../.htc_work/probe; ln -s {target} probe"),
        ),
        ("whole", format!("rm -rf .htc_work; ln -s {} .htc_work", outside.display())),
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
///
/// Against b8ba2a8: `root` is submitted, runs, and gets as far as Apptainer on the node, which refuses it (`/ as sandbox is not
/// authorized`).
fn image_path_that_exposes_the_node_is_refused(version: Version) {
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
            condition(object, "Submitted").is_some_and(|condition| condition["reason"] == "InvalidSpec")
        });
        let message = condition(&object, "Submitted").unwrap()["message"].as_str().unwrap();
        assert!(message.contains(words), "{name}: {message}");
        assert!(here.bed.jobs_of(&uid).is_empty(), "{name}");
    }
}

/// A payload overwrites the files of its job. HTCondor returns them as output and gives them to the next run, which
/// they control nowhere outside the container.
///
/// It fails if the payload's folder is the scratch directory: `bind` then shows the payload the node. And it would fail if HTCondor took
/// a file `condor_exec.exe` that an earlier run left for the job's program.
///
/// Against b8ba2a8: succeeds with `conf`: its second run has the file in its output. It does not with `exec`.
fn files_of_a_run_do_not_control_the_next_run(version: Version) {
    let here = Bed::shared(version).namespace();
    let outside = here.bed.scratch().dir(&here.name).unwrap();
    Account::unprivileged().write(&outside.join("file"), BEFORE, 0o600).unwrap();
    let folder = outside.display();
    let program =
        format!("printf '#!/bin/sh\\ncat {folder}/file\\n' >condor_exec.exe; chmod 755 condor_exec.exe; exit 1");
    let bind = format!("cat {folder}/file && exit 0; echo 'bind {folder}' >>payload.conf; exit 1");
    for (name, source) in [("exec", &program), ("conf", &bind)] {
        let mut object = htcjob(name, source);
        object["spec"]["maxRetries"] = 1.into();
        here.create(&object);
    }
    let outs = ["exec", "conf"].map(|name| {
        here.wait_ended(name);
        here.wait_output(name);
        let out = fs::read_to_string(here.output(name, 0).join("out")).unwrap();
        println!("{version}: {name}: {out:?}");
        out
    });
    let _promise = Promise;
    assert!(!outs.iter().any(|out| out.contains(BEFORE)), "{outs:?}");
}

/// Links among a payload's output do not bring it files that its container does not show it.
///
/// It fails if they are there when HTCondor's starter, outside of the container, reads the output (`collect`).
///
/// Against b8ba2a8: succeeds. The output `link` has the file's text.
fn output_link_brings_no_file_from_outside_the_container(version: Version) {
    let here = Bed::shared(version).namespace();
    let outside = here.bed.scratch().dir(&here.name).unwrap();
    Account::unprivileged().write(&outside.join("file"), BEFORE, 0o600).unwrap();
    let target = outside.join("file");
    let target = target.display();
    here.create(&htcjob(
        "link",
        &format!(
            "cat {target} && exit 9; ln -s {target} link; rm _condor_stderr; ln -s {target} _condor_stderr; exit 0"
        ),
    ));
    let ended = here.wait_ended("link");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.wait_output("link");
    let _promise = Promise;
    for name in ["link", "err"] {
        let came = fs::read_to_string(here.output("link", 0).join(name)).unwrap_or_default();
        assert!(!came.contains(BEFORE), "{name}: {came}");
    }
}

/// The same with files of another namespace's job on the same node: a payload finds its own folder in `mountinfo`, and
/// folders of jobs that began at about the same time are beside it.
///
/// It fails for the same reason.
///
/// Against b8ba2a8: succeeds. One of the outputs is the `payload.conf` of `victim`, with its variables.
fn output_link_brings_no_file_of_another_namespaces_job(version: Version) {
    let bed = Bed::shared(version);
    let (victim, here) = (bed.namespace(), bed.namespace());
    let mut object = htcjob("victim", "while sleep 1; do :; done");
    object["spec"]["env"] = serde_json::json!([{ "name": "PASSWORD", "value": BEFORE }]);
    victim.create(&object);
    victim.wait_running("victim", 1);
    here.create(&htcjob(
        "thief",
        r#"own=; while read -r -a words; do [ "${words[4]}" != /htc_run ] || own=${words[3]}; done </proc/self/mountinfo
           [[ $own =~ ^(.*/dir_)([0-9]+)(.*)$ ]] || exit 8
           before=${BASH_REMATCH[1]} number=${BASH_REMATCH[2]} behind=${BASH_REMATCH[3]%/.htc_work/run}
           echo "$own"
           for ((n = number - 1500; n < number; n++)); do ln -s "$before$n$behind/payload.conf" "stolen.$n"; done"#,
    ));
    let ended = here.wait_ended("thief");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.wait_output("thief");
    victim.delete("victim");
    let stolen = bed::files_below(&here.output("thief", 0), &|_| true);
    let _promise = Promise;
    for file in stolen {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains(BEFORE), "{}: {text}", file.display());
    }
}

/// A payload writes the file by which HTCondor's startd tells the starter how much the slot has used: nothing of it comes into the
/// job's ad.
///
/// It fails on 23.9 if the payload's folder is the scratch directory (`binds` in `prepare_work`).
///
/// Against b8ba2a8: succeeds with 23.9. `CpusUsage` in the ad has 200,006 characters.
fn resource_usage_forged_by_a_payload_is_not_in_the_ad(version: Version) {
    let here = Bed::shared(version).namespace();
    let uid = here.create(&htcjob(
        "update",
        r#"long=$(printf '%0200000d' 0)
           for ((n = 0; n < 100; n++)); do echo "CpusUsage = \"mine$long\"" >new; mv new .update.ad; sleep 0.05; done"#,
    ));
    here.wait_ended("update");
    here.wait_nothing_left(&uid);
    let left = here.bed.history(&of(&uid), &["size(unparse(CpusUsage))"]);
    let _promise = Promise;
    assert!(matches!(&left[..], [row] if row[0].parse::<u32>().map_or(true, |size| size < 1000)), "{left:?}");
}
