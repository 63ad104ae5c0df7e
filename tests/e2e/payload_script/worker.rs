//! `job.sh` on a worker that is the container itself: its slot says so.

use htc_operator::condor::payload::{Command, Image, Payload};

use super::{PayloadFailure, SHELLS, Scratch, USES_VARIABLES, expect, with_image};

/// With a slot of a worker that is a container of this image.
fn on_worker(image: &str, mut scratch: Scratch) -> Scratch {
    scratch.write(".machine.ad", &format!("Cpus = 1\nHTCWorkerImage = \"{image}\"\nMemory = 1\n"));
    scratch.environment.push(("_CONDOR_MACHINE_AD", scratch.folder.path().join(".machine.ad")));
    // There is no container runtime.
    "/usr/bin:/bin".clone_into(&mut scratch.path);
    scratch
}

#[test]
fn the_payload_runs_as_it_is_in_a_folder_of_its_own() {
    let source = "echo \"$1 $HTCPROCID $JOB_NAME $0 $#\"; echo text >made; echo x >\"$HOME/left\"; pwd >where; exit 7";
    for shell in SHELLS {
        let scratch = on_worker("python:3.12", with_image("bash", source));
        let (code, stdout, stderr) = scratch.run(shell);
        assert_eq!((code, stderr.as_str()), (7, ""), "{shell}");
        assert_eq!(stdout, "3 3 my-job ./script.sh 1\n", "{shell}");
        assert_eq!(scratch.read("made"), "text\n", "{shell}");
        assert_eq!(
            scratch.read("where").trim(),
            scratch.folder.path().join(".htc_work/run").to_str().unwrap(),
            "{shell}"
        );
        let left = [".job.ad", ".machine.ad", "job.sh", "made", "payload.conf", "script.sh", "where"];
        assert_eq!(scratch.names(), left, "{shell}");
    }
}

#[test]
fn htcondors_variables_name_what_the_payload_may_use() {
    for shell in SHELLS {
        let ad = "Cpus = 1\nHTCWorkerImage = \"python:3.12\"\n";
        let scratch = on_worker("python:3.12", with_image("bash", USES_VARIABLES)).with_htcondors_variables(ad);
        let (code, stdout, stderr) = scratch.run(shell);
        let area = scratch.folder.path().join(".htc_work/tmp");
        assert_eq!((code, stdout.trim(), stderr.as_str()), (0, area.to_str().unwrap(), ""), "{shell}");
        let left = [".job.ad", ".machine.ad", "job.sh", "made", "payload.conf", "script.sh"];
        assert_eq!(scratch.names(), left, "{shell}");
    }
}

#[test]
fn exit_codes_are_the_payloads() {
    for shell in SHELLS {
        for code in [0, 1, 126, 127, 255] {
            let scratch = on_worker("python:3.12", with_image("bash", &format!("exit {code}")));
            assert_eq!(scratch.run(shell).0, code, "{shell}");
        }
        let killed = on_worker("python:3.12", with_image("bash", "kill -KILL $$; sleep 5"));
        assert_eq!(killed.run(shell).0, 137, "{shell}");
    }
}

#[test]
fn another_image_and_a_missing_command_run_nothing() {
    let ran = || with_image("bash", "echo yes >ran");
    expect(PayloadFailure::ImageUnavailable, "is a container of python:3.13", || on_worker("python:3.13", ran()));
    let missing = || on_worker("python:3.12", with_image("nosuchprogram", "echo yes >ran"));
    expect(PayloadFailure::CommandNotFound, "nosuchprogram is not in the image python:3.12", missing);
}

#[test]
fn the_users_variables_mean_something_to_the_payload_only() {
    let (image, command) = (Image::Registry("python:3.12".to_owned()), Command::parse("/bin/sh").unwrap());
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let env =
        [pair("A", " b\nc\\n$x "), pair("PATH", "/nowhere"), pair("IFS", "x"), pair("code", "9"), pair("work", "/")];
    for shell in SHELLS {
        let payload = Payload {
            name: "my-job",
            image: &image,
            named: "docker://python:3.12",
            command: &command,
            source: "printf '[%s] %s %s %s\\n' \"$A\" \"$PATH\" \"$code\" \"$work\"",
            binds: &[],
            callback: None,
            env: &env,
            outputs: &[],
        };
        let scratch = on_worker("python:3.12", Scratch::of(tempfile::tempdir().unwrap(), &payload));
        let (code, stdout, stderr) = scratch.run(shell);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "[ b\nc\\n$x ] /nowhere 9 /\n", ""), "{shell}");
    }
}
