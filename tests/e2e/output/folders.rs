//! Output that is more than plain files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use testbed::Version;

use bed::{Bed, htcjob, is_true};

on_versions! {
    both: output_folders_come_back_whole;
    trixie: last_run_returns_only_its_own_output, output_under_reserved_names_is_reported;
}

/// Folders, and names that HTCondor cannot keep, come back as they were.
fn output_folders_come_back_whole(version: Version) {
    let here = Bed::shared(version).namespace();
    let script = r"mkdir -p results/deep/er empty; echo plain >plain; echo deep >results/deep/er/file
        echo '#!/bin/sh' >results/run; chmod 750 results/run; echo odd >'a, b '; echo dot >.dot; ln -s /etc results/link
        mkfifo results/pipe; echo one >results/one; ln results/one results/two; chmod 0 results/deep; echo mine >job.sh";
    here.create(&htcjob("folders", script));
    let ended = here.wait_ended("folders");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.wait_output("folders");
    let output = here.output("folders", 0);
    for (file, text) in [
        ("plain", "plain\n"),
        ("results/deep/er/file", "deep\n"),
        ("a, b ", "odd\n"),
        (".dot", "dot\n"),
        ("results/one", "one\n"),
        ("results/two", "one\n"),
        ("job.sh", "mine\n"),
    ] {
        assert_eq!(
            fs::read_to_string(output.join(file)).unwrap_or_else(|error| panic!("{file}: {error}")),
            text,
            "{file}"
        );
    }
    assert!(output.join("empty").is_dir());
    assert_eq!(fs::metadata(output.join("results/run")).unwrap().permissions().mode() & 0o777, 0o750);
    for gone in ["results/link", "results/pipe", "htc_output.tar", "script.sh", ".job.ad"] {
        assert!(output.join(gone).symlink_metadata().is_err(), "{gone}");
    }
    let err = fs::read_to_string(output.join("err")).unwrap();
    let omitted = [
        "links do not come back as output (1): copy what they lead to",
        "sockets, pipes and devices do not come back as output (1): write files",
    ];
    assert_eq!(err, omitted.map(|line| format!("htc-operator: {line}\n")).concat());
    let message = here.wait_says("folders", "OutputFetched", "True", "Fetched");
    let expected = format!("; not all of 1 job came back. Job 0: {}", omitted.join("; "));
    assert!(message.ends_with(&expected), "{message}");
    assert!(!output.join("htc_output.omitted").exists());
}

/// Output under names of the job's own files is named in the condition and in the job.
fn output_under_reserved_names_is_reported(version: Version) {
    let here = Bed::shared(version).namespace();
    let mut object =
        htcjob("taken", "[ $1 = 0 ] || { mkdir out; echo 42 >out/result.txt; echo x >err; }; echo y >kept");
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    let ended = here.wait_ended("taken");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    let message = here.wait_says("taken", "OutputFetched", "True", "Fetched");
    let lost = "these names are the job's own, and what the script left there does not come back (a file err, a folder out): \
                choose other names";
    assert!(message.contains("; not all of 2 jobs came back. Job 1: "), "{message}");
    assert!(message.ends_with(lost), "{message}");
    for index in 0..3 {
        assert_eq!(fs::read_to_string(here.output("taken", index).join("kept")).unwrap(), "y\n", "{index}");
    }
}

/// Files that a previous run packed, or left under names of packed files, are not returned.
fn last_run_returns_only_its_own_output(version: Version) {
    let here = Bed::shared(version).namespace();
    for (name, second, wanted) in
        [("none", "", None), ("folder", "rm results; mkdir results; echo 2 >results/f", Some("2\n"))]
    {
        let first = "mkdir old; echo 1 >old/f; echo 1 >results; touch tried; exit 5";
        let mut object =
            htcjob(name, &format!("[ -e tried ] || {{ {first}; }}\n[ ! -e old ] || exit 6\n{second}\nexit 0"));
        object["spec"]["maxRetries"] = 1.into();
        here.create(&object);
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        here.wait_output(name);
        let output = here.output(name, 0);
        assert!(!output.join("old").exists() && !output.join("htc_output.tar").exists(), "{name}");
        assert_eq!(fs::read_to_string(output.join("results/f")).ok().as_deref(), wanted, "{name}");
    }
}
