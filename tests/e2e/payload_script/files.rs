//! Files that a job brings: `job.sh` unpacks them, and gives back only those that the payload has changed.

use std::os::unix::fs::PermissionsExt as _;

use htc_api::FrozenFile;
use htc_submit::payload::{Image, Payload, Program};

use super::worker::on_worker;
use super::{SHELLS, Scratch, bare, image};

fn file(path: &str, mode: u32, content: &[u8]) -> FrozenFile {
    FrozenFile { path: path.to_owned(), mode, sha256: String::new(), content: content.to_vec() }
}

fn scratch_with(files: &[FrozenFile], source: &str) -> Scratch {
    let (image, command) = (Image::of_the_site(image().to_str().unwrap()).unwrap(), Program::script("bash").unwrap());
    Scratch::of(tempfile::tempdir().unwrap(), &Payload { files, ..bare(&image, &command, source) })
}

/// In a container of Apptainer, and on a worker that is the container itself.
fn each_place(files: &[FrozenFile], source: &str) -> Vec<(String, Scratch, (i32, String, String))> {
    let mut all = Vec::new();
    for shell in SHELLS {
        for worker in [false, true] {
            let mut scratch = scratch_with(files, source);
            if worker {
                scratch = on_worker("python:3.12", scratch);
            }
            let ended = scratch.run(shell);
            all.push((format!("{shell}, worker: {worker}"), scratch, ended));
        }
    }
    all
}

fn returned(scratch: &Scratch) -> Vec<String> {
    let ours = [".job.ad", ".machine.ad", "htc_input.tar", "job.sh", "payload.conf", "script.sh"];
    scratch.names().into_iter().filter(|name| !ours.contains(&name.as_str())).collect()
}

#[test]
fn files_have_their_paths_modes_and_bytes() {
    let bytes: Vec<u8> = (0..=255).collect();
    let files = [
        file("bin/tool", 0o755, b"#!/bin/sh\necho ran\n"),
        file("conf/a b/cuts.yaml", 0o640, &bytes),
        file(".netrc", 0o400, b"x"),
    ];
    let source = "./bin/tool; stat -c '%a %n' bin/tool 'conf/a b/cuts.yaml' .netrc; od -An -tx1 -v 'conf/a b/cuts.yaml' | tr -d ' \\n'";
    let hex = htc_submit::job_token::hex(&bytes);
    for (place, scratch, (code, stdout, stderr)) in each_place(&files, source) {
        let expected = format!("ran\n755 bin/tool\n640 conf/a b/cuts.yaml\n400 .netrc\n{hex}");
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, expected.as_str(), ""), "{place}");
        assert_eq!(returned(&scratch), Vec::<String>::new(), "{place}");
    }
}

#[test]
fn only_changed_files_come_back() {
    let files = [
        file("same", 0o644, b"1"),
        file("changed", 0o644, b"1"),
        file("d/same", 0o644, b"1"),
        file("d/e/x", 0o644, b"1"),
    ];
    let source = "echo 2 > changed; echo 3 > d/new; echo 4 > made";
    for (place, scratch, (code, ..)) in each_place(&files, source) {
        assert_eq!(code, 0, "{place}");
        assert_eq!(returned(&scratch), ["changed", "htc_output.tar", "made"], "{place}");
        let listed = std::process::Command::new("tar")
            .arg("-tf")
            .arg(scratch.folder.path().join("htc_output.tar"))
            .output()
            .unwrap();
        let mut listed: Vec<String> = String::from_utf8(listed.stdout)
            .unwrap()
            .lines()
            .map(|line| line.trim_end_matches('/').to_owned())
            .collect();
        listed.sort();
        assert_eq!(listed, [".", "./d", "./d/new"], "{place}");
    }
}

/// A folder with all programs of this machine but these.
fn programs_without(missing: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let all = ["/usr/bin", "/bin"].into_iter().flat_map(|at| std::fs::read_dir(at).unwrap()).flatten();
    for entry in all.filter(|entry| entry.file_name().to_str().is_some_and(|name| !missing.contains(&name))) {
        // A program may be in both.
        let _ = std::os::unix::fs::symlink(entry.path(), folder.path().join(entry.file_name()));
    }
    folder
}

/// A node whose files cannot be compared returns them all.
#[test]
fn node_without_cmp_returns_no_unchanged_file() {
    for (missing, wanted) in [(&["cmp"][..], &[][..]), (&["cmp", "sha256sum"], &["same"])] {
        let programs = programs_without(missing);
        for shell in SHELLS {
            let mut scratch = on_worker("python:3.12", scratch_with(&[file("same", 0o644, b"1")], "true"));
            scratch.path = programs.path().display().to_string();
            assert_eq!(scratch.run(shell), (0, String::new(), String::new()), "{shell}");
            assert_eq!(returned(&scratch), wanted, "{shell} without {missing:?}");
        }
    }
}

/// A run that follows another one, for example after a retry, gets the files as they were submitted.
#[test]
fn next_run_gets_the_same_files() {
    for shell in SHELLS {
        let scratch = scratch_with(&[file("cuts", 0o644, b"first")], "cat cuts; echo other > cuts");
        assert_eq!(scratch.run(shell).1, "first", "{shell}");
        assert_eq!(scratch.read("cuts"), "other\n", "{shell}");
        assert_eq!(scratch.run(shell).1, "first", "{shell}");
    }
}

/// A run that was started again finds a plain file where its files have a folder, and leaves a pipe in the place of a file.
#[test]
fn payload_cannot_break_the_next_run_or_the_end() {
    let files = [file("conf/cuts", 0o644, b"first"), file("list", 0o644, b"1")];
    for shell in SHELLS {
        let scratch = scratch_with(&files, "cat conf/cuts; rm -r conf list; echo x > conf; mkfifo list");
        for _ in 0..2 {
            let (code, stdout, _) = scratch.run(shell);
            assert_eq!((code, stdout.as_str()), (0, "first"), "{shell}");
            assert_eq!(scratch.read("conf"), "x\n", "{shell}");
        }
    }
}

/// HTCondor keeps a file of a former run: the next one, which leaves it as it was submitted, replaces it.
#[test]
fn file_changed_by_a_former_run_is_replaced() {
    for shell in SHELLS {
        let scratch = scratch_with(&[file("cuts", 0o644, b"first")], "[ -e ran ] || echo other > cuts; echo yes > ran");
        assert_eq!(scratch.run(shell).0, 0, "{shell}");
        assert_eq!(scratch.read("cuts"), "other\n", "{shell}");
        assert_eq!(scratch.run(shell).0, 0, "{shell}");
        assert_eq!(scratch.read("cuts"), "first", "{shell}");
    }
}

/// The comparison may read through a link that the payload has left, and nothing is removed there.
#[test]
fn links_of_the_payload_lead_to_no_removal() {
    for shell in SHELLS {
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("cuts"), "1").unwrap();
        let source = format!("rm -r conf && ln -s {} conf", elsewhere.path().display());
        let scratch = on_worker("python:3.12", scratch_with(&[file("conf/cuts", 0o644, b"1")], &source));
        assert_eq!(scratch.run(shell).0, 0, "{shell}");
        assert!(elsewhere.path().join("cuts").exists(), "{shell}");
    }
}

#[test]
fn broken_archive_ends_the_job_before_the_payload() {
    for shell in SHELLS {
        let scratch = scratch_with(&[file("a", 0o644, b"1")], "echo ran");
        scratch.write("htc_input.tar", "not an archive");
        let (code, stdout, stderr) = scratch.run(shell);
        assert_eq!((code, stdout.as_str()), (-45, ""), "{shell}");
        assert!(stderr.contains("the files of the job cannot be unpacked by tar on"), "{shell}: {stderr}");
    }
}
