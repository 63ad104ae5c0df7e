//! `job.sh` on a worker that is the container itself: its slot says so.

use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use htc_submit::payload::{Image, Payload, Program};
use testbed::environment::INTERPRETER_NAME;
use testbed::wait_for;

use super::{PayloadFailure, SHELLS, Scratch, USES_VARIABLES, bare, ended, expect, with_image};

/// With a slot of a worker that is a container of this image.
pub(super) fn on_worker(image: &str, mut scratch: Scratch) -> Scratch {
    scratch.write(".machine.ad", &format!("Cpus = 1\nHTCWorkerImage = \"{image}\"\nMemory = 1\n"));
    scratch.environment.push(("_CONDOR_MACHINE_AD", scratch.folder.path().join(".machine.ad")));
    // There is no container runtime.
    "/usr/bin:/bin".clone_into(&mut scratch.path);
    scratch
}

#[test]
fn payload_runs_without_a_container_in_its_own_folder() {
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
fn htcondor_variables_name_paths_of_the_payload() {
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
fn job_exits_with_the_code_of_its_payload() {
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
fn other_image_or_missing_command_runs_nothing() {
    let ran = || with_image("bash", "echo yes >ran");
    expect(PayloadFailure::ImageUnavailable, "is a container of python:3.13", || on_worker("python:3.13", ran()));
    let missing = || on_worker("python:3.12", with_image("nosuchprogram", "echo yes >ran"));
    expect(PayloadFailure::CommandNotFound, "nosuchprogram is not in the image python:3.12", missing);
}

#[test]
fn user_variables_affect_only_the_payload() {
    let (image, command) = (Image::Registry("python:3.12".to_owned()), Program::script("/bin/sh").unwrap());
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let env =
        [pair("A", " b\nc\\n$x "), pair("PATH", "/nowhere"), pair("IFS", "x"), pair("code", "9"), pair("work", "/")];
    for shell in SHELLS {
        let payload = Payload {
            image_name: "docker://python:3.12",
            env: &env,
            ..bare(&image, &command, "printf '[%s] %s %s %s\\n' \"$A\" \"$PATH\" \"$code\" \"$work\"")
        };
        let scratch = on_worker("python:3.12", Scratch::of(tempfile::tempdir().unwrap(), &payload));
        let (code, stdout, stderr) = scratch.run(shell);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "[ b\nc\\n$x ] /nowhere 9 /\n", ""), "{shell}");
    }
}

#[test]
fn command_is_found_in_the_path_of_the_payload_only() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    crate::environment::write_interpreter(folder.path());
    let image = Image::Registry("python:3.12".to_owned());
    let with = |command: &str, path: &str| {
        let program = Program::script(command).unwrap();
        let payload = Payload {
            env: &[("PATH".to_owned(), path.to_owned())],
            ..bare(&image, &program, "echo yes >ran; echo $FOUND_IN_PATH")
        };
        on_worker("python:3.12", Scratch::of(tempfile::tempdir().unwrap(), &payload))
    };
    let at = folder.path().display().to_string();
    for shell in SHELLS {
        let (code, stdout, stderr) = with(INTERPRETER_NAME, &format!("/nosuchfolder:{at}:/usr/bin:/bin")).run(shell);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "yes\n", ""), "{shell}");
    }
    expect(PayloadFailure::CommandNotFound, "the command sh is not in", || with("sh", &at));
    // A function of job.sh.
    expect(PayloadFailure::CommandNotFound, "the command collect is not in", || with("collect", "/usr/bin:/bin"));
}

/// What HTCondor's starter starts a job by on a managed worker, where everybody may start it.
struct Wrapper {
    _folder: tempfile::TempDir,
    program: PathBuf,
}

impl Wrapper {
    fn bring() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let libexec = folder.path().join("usr/libexec/condor");
        std::fs::create_dir_all(&libexec).unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let program = libexec.join("htc-job-wrapper");
        std::fs::copy(bed::built("htc-job-wrapper"), &program).unwrap();
        Self { _folder: folder, program }
    }

    /// The words that start a job with this shell.
    fn before(&self, shell: &str) -> String {
        format!("{} {shell}", self.program.display())
    }
}

/// Processes that the payload of [`LEAVES`] has left.
fn left_of(scratch: &Scratch) -> Vec<u32> {
    let mark = scratch.folder.path().join("began");
    let is_marked = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == mark.as_os_str().as_bytes())
    };
    let all = std::fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).filter(is_marked).collect()
}

#[test]
fn confinement_does_not_change_an_honest_payload() {
    let wrapper = Wrapper::bring();
    for shell in SHELLS {
        for code in [0, 1, 126, 127, 255] {
            let scratch = on_worker("python:3.12", with_image("bash", &format!("exit {code}")));
            let (ended, _, stderr) = scratch.run(&wrapper.before(shell));
            assert_eq!((ended, stderr.as_str()), (code, ""), "{shell}");
        }
        let killed = on_worker("python:3.12", with_image("bash", "kill -KILL $$; sleep 5"));
        assert_eq!(killed.run(&wrapper.before(shell)).0, 137, "{shell}");
        let python = "\npython3 -c 'import os, tempfile; f = tempfile.NamedTemporaryFile(); d = tempfile.mkdtemp(); os.rename(f.name, d + \"/x\"); open(f.name, \"w\")'";
        let ad = "Cpus = 1\nHTCWorkerImage = \"python:3.12\"\n";
        let scratch = on_worker("python:3.12", with_image("bash", &[USES_VARIABLES, python].concat()));
        let scratch = scratch.with_htcondors_variables(ad);
        let (code, _, stderr) = scratch.run(&wrapper.before(shell));
        assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
        assert!(scratch.names().contains(&"made".to_owned()), "{shell}");
    }
}

/// A process that starts another one and ends, again and again until the scratch directory goes, and one that hides from its parent.
const LEAVES: &str = r#"began=$(cd ../.. && pwd)/began; touch "$began"
    next='[ ! -e "$2" ] || sh -c "$1" next "$1" "$2" &'
    setsid sh -c "$next" next "$next" "$began" </dev/null >/dev/null 2>&1 &
    (env -i PATH="$PATH" setsid sh -c 'touch "$0-2"; sleep 20; exit 1' "$began" </dev/null >/dev/null 2>&1 &)
    until [ -e "$began-2" ]; do :; done
    "#;

#[test]
fn no_process_of_a_payload_outlives_its_job() {
    let wrapper = Wrapper::bring();
    for shell in SHELLS {
        let scratch = on_worker("python:3.12", with_image("bash", &[LEAVES, "exit 7"].concat()));
        assert_eq!(scratch.run(&wrapper.before(shell)).0, 7, "{shell}");
        assert_eq!(left_of(&scratch), Vec::<u32>::new(), "{shell}");
    }
}

#[test]
fn terminated_job_leaves_no_process() {
    let wrapper = Wrapper::bring();
    for shell in SHELLS {
        let scratch = on_worker("python:3.12", with_image("bash", &[LEAVES, "sleep 300"].concat()));
        let job = scratch.start(&wrapper.before(shell), &["3"]);
        wait_for("the payload to begin", bed::PATIENCE, || {
            if scratch.folder.path().join("began-2").exists() { Ok(()) } else { Err("not yet") }
        })
        .unwrap();
        let pid = rustix::process::Pid::from_child(&job);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(ended(job.wait_with_output().unwrap()).0, 143, "{shell}");
        assert_eq!(left_of(&scratch), Vec::<u32>::new(), "{shell}");
    }
}
