//! `job.sh` under the shells that worker nodes have, with the real Apptainer and a real image.

mod files;
mod gpus;
pub mod https;
mod images;
mod nested;
mod outputs;
mod program;
mod reports;
mod secrets;
mod slot_containers;
pub mod urls;
mod volumes;
mod worker;

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Output, Stdio};
use std::time::{Duration, Instant};

use htc_submit::payload::{Callback, Image, ImageMap, JobShEnd, Payload, PayloadFailure, Program, sandbox_files};

const SHELLS: [&str; 3] = ["dash", "bash", "busybox sh"];
/// Apptainer refuses to run as root here; a test that is root runs the job as `nobody`.
const NOBODY: u32 = 65_534;

/// Folder that holds `usr/bin/apptainer`.
fn condor_root() -> PathBuf {
    testbed::Assets::locate().unwrap().condor(testbed::Version::Sid).to_owned()
}

/// An unpacked image with bash and busybox.
fn image() -> PathBuf {
    testbed::Assets::locate().unwrap().image().to_owned()
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// A scratch directory as HTCondor makes it.
struct Scratch {
    folder: tempfile::TempDir,
    path: String,
    /// What the node's HTCondor gives each job beside it.
    environment: Vec<(&'static str, PathBuf)>,
}

/// A payload that brings nothing.
fn bare<'a>(image: &'a Image, program: &'a Program, source: &'a str) -> Payload<'a> {
    Payload {
        name: "my-job",
        image,
        image_name: "python:3.12",
        private: false,
        image_cache: None,
        program,
        source,
        binds: &[],
        volumes: &[],
        callback: None,
        env: &[],
        files: &[],
        fetched: &[],
        secret_files: &[],
        secret_env: &[],
        outputs: &[],
    }
}

impl Scratch {
    fn new(image: &str, command: &str, source: &str) -> Self {
        Self::reporting(image, command, source, None)
    }

    fn reporting(image: &str, command: &str, source: &str, callback: Option<Callback<'_>>) -> Self {
        let image = if image.starts_with('/') {
            Image::of_the_site(image).unwrap()
        } else {
            Image::resolve(image, &ImageMap::new()).unwrap()
        };
        Self::with(&image, &["/nosuchbind", "/var/log"], command, source, callback)
    }

    fn with(image: &Image, binds: &[&str], command: &str, source: &str, callback: Option<Callback<'_>>) -> Self {
        bed::turns::take(bed::Weight::Light);
        let folder = tempfile::tempdir().unwrap();
        let command = Program::script(command).unwrap();
        let binds: Vec<String> = binds.iter().map(ToString::to_string).collect();
        let payload = Payload { binds: &binds, callback, ..bare(image, &command, source) };
        Self::of(folder, &payload)
    }

    fn of(folder: tempfile::TempDir, payload: &Payload<'_>) -> Self {
        for file in sandbox_files(payload).unwrap() {
            let path = folder.path().join(file.name);
            std::fs::write(&path, file.contents).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(file.mode)).unwrap();
        }
        let path = format!("{}:/usr/bin:/bin", condor_root().join("usr/bin").display());
        let scratch = Self { folder, path, environment: Vec::new() };
        scratch.write(
            ".job.ad",
            "ClusterId = 884426\nProcId = 7\nHTCNotAfter = 1000\nStageInFinish = 1000\nX = \"StageInFinish = 9\"\n",
        );
        if is_root() {
            for entry in std::fs::read_dir(scratch.folder.path()).unwrap() {
                chown(entry.unwrap().path(), Some(NOBODY), Some(NOBODY)).unwrap();
            }
            chown(scratch.folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        scratch
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// What is in it.
    fn names(&self) -> Vec<String> {
        names(self.folder.path())
    }

    fn start(&self, shell: &str, arguments: &[&str]) -> Child {
        let mut words: Vec<&str> = vec![];
        if is_root() {
            words.extend(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        }
        words.extend(shell.split(' ').chain(["./job.sh"]).chain(arguments.iter().copied()));
        // A name that the test's PATH has and the job's may lack.
        let program = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|folder| folder.join(words[0]))
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("{} is not in PATH", words[0]));
        Process::new(program)
            .args(&words[1..])
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", &self.path)
            .env("_CONDOR_JOB_AD", self.folder.path().join(".job.ad"))
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Exit code, standard output, standard error.
    fn run(&self, shell: &str) -> (i32, String, String) {
        ended(self.start(shell, &["3"]).wait_with_output().unwrap())
    }
}

/// Exit code, standard output and standard error. A signal is a negative code.
fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let code = output.status.code().or_else(|| Some(-output.status.signal()?));
    (code.unwrap_or(i32::MIN), text(output.stdout), text(output.stderr))
}

/// What [`ended`] returns for a job whose input cannot be had now: `job.sh` ends itself with this signal for 246.
const NO_INPUT: i32 = -46;
/// The same for an input that is refused or another one.
const INPUT_REFUSED: i32 = -50;

/// Failure with which `job.sh` ended itself before the payload had run.
fn failure(code: i32) -> Option<PayloadFailure> {
    JobShEnd::from_signal(-code).filter(|end| !end.after_payload).map(|end| end.failure)
}

fn with_image(command: &str, source: &str) -> Scratch {
    Scratch::new(image().to_str().unwrap(), command, source)
}

#[test]
fn job_sh_passes_shellcheck() {
    let scratch = with_image("bash", "");
    let output = Process::new("shellcheck").arg(scratch.folder.path().join("job.sh")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn job_exits_with_the_code_of_its_payload() {
    for shell in SHELLS {
        for code in [0, 1, 7, 126, 127, 255] {
            let (ended, _, stderr) = with_image("bash", &format!("exit {code}")).run(shell);
            assert_eq!((ended, stderr.as_str()), (code, ""), "{shell}");
        }
        for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
            assert_eq!(with_image("bash", &format!("kill -{signal} $$; sleep 5")).run(shell).0, code, "{shell}");
        }
    }
}

#[test]
fn payload_has_its_index_name_and_folder() {
    let source = "echo \"$1 $HTCPROCID $JOB_NAME $PWD $0 $#\"; echo text > made; ls -A / > root; [ -e /var/log/. ] && echo bound";
    for shell in SHELLS {
        let scratch = with_image("bash -e", source);
        let (code, stdout, stderr) = scratch.run(shell);
        assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
        assert_eq!(stdout, "3 3 my-job /htc_run /htc_run/script.sh 1\nbound\n", "{shell}");
        assert_eq!(scratch.read("made"), "text\n");
        assert!(
            !scratch.read("root").contains("nosuchbind"),
            "a bind that the node lacks was made: {}",
            scratch.read("root")
        );
        assert_eq!(scratch.names(), [".job.ad", "job.sh", "made", "payload.conf", "root", "script.sh"], "{shell}");
    }
}

/// What HTCondor gives each job: folders and files of the node.
const VARIABLES: [&str; 7] =
    ["TMPDIR", "TMP", "TEMP", "_CONDOR_SCRATCH_DIR", "_CONDOR_JOB_IWD", "_CONDOR_JOB_AD", "_CONDOR_MACHINE_AD"];

/// Prints what each of those variables names, if it is there; writes files where they say, and 200 MB into /tmp.
const USES_VARIABLES: &str = r#"set -e
    for folder in "$TMPDIR" "$TMP" "$TEMP" "$_CONDOR_SCRATCH_DIR" "$_CONDOR_JOB_IWD"; do
        [ -d "$folder" ] || echo "no folder $folder"; echo x >"$folder/written"; rm "$folder/written"
    done
    cat "$_CONDOR_JOB_AD" "$_CONDOR_MACHINE_AD" >/dev/null
    for number in 1 2; do file=$(mktemp); echo x >"$file"; done
    dd if=/dev/zero of="$TMPDIR/large" bs=1M count=200 2>/dev/null; dd if=/dev/zero of="$HOME/large" bs=1M count=100 2>/dev/null
    echo made >"$_CONDOR_SCRATCH_DIR/made"; echo "$TMPDIR""#;

impl Scratch {
    /// Sets what HTCondor's starter sets for each job.
    fn with_htcondors_variables(mut self, machine_ad: &str) -> Self {
        self.write(".machine.ad", machine_ad);
        for name in VARIABLES {
            let path = match name {
                "_CONDOR_JOB_AD" => self.folder.path().join(".job.ad"),
                "_CONDOR_MACHINE_AD" => self.folder.path().join(".machine.ad"),
                _ => self.folder.path().to_owned(),
            };
            self.environment.push((name, path));
        }
        self
    }
}

#[test]
fn htcondor_variables_name_paths_in_the_container() {
    for shell in SHELLS {
        let scratch = with_image("bash", USES_VARIABLES).with_htcondors_variables("Cpus = 1\n");
        let (code, stdout, stderr) = scratch.run(shell);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "/tmp\n", ""), "{shell}");
        assert_eq!(scratch.read("made"), "made\n", "{shell}");
        let left = [".job.ad", ".machine.ad", "job.sh", "made", "payload.conf", "script.sh"];
        assert_eq!(scratch.names(), left, "{shell}");
    }
}

#[test]
fn user_tmpdir_is_kept() {
    let (image, command) = (Image::of_the_site(image().to_str().unwrap()).unwrap(), Program::script("bash").unwrap());
    let env = [("TMPDIR".to_owned(), "/htc_run/mine".to_owned())];
    let payload = Payload {
        env: &env,
        ..bare(&image, &command, "mkdir mine; mktemp >/dev/null && ls mine | wc -l; echo $TMP; rm -r mine")
    };
    let scratch = Scratch::of(tempfile::tempdir().unwrap(), &payload).with_htcondors_variables("Cpus = 1\n");
    assert_eq!(scratch.run("dash").1, "1\n/tmp\n");
}

/// Whatever limits the node's HTCondor has.
#[test]
fn payload_has_no_core_files_and_a_usual_umask() {
    for shell in SHELLS {
        let scratch = with_image("bash", "umask; ulimit -c; ulimit -Hc");
        scratch.write("node", "umask 077; ulimit -c unlimited; exec \"$@\"");
        assert_eq!(scratch.run(&format!("sh ./node {shell}")).1, "0022\n0\n0\n", "{shell}");
    }
}

/// Runs under each shell, and expects one failure with a line that names it and no payload.
fn expect(failure: PayloadFailure, hint: &str, make: impl Fn() -> Scratch) {
    for shell in SHELLS {
        let scratch = make();
        let (code, _, stderr) = scratch.run(shell);
        assert_eq!(self::failure(code), Some(failure), "{shell}: {code} {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("htc-operator: ") && last.contains(hint), "{shell}: {stderr}");
        assert_eq!(scratch.read("ran"), "", "{shell}: the payload ran");
    }
}

#[test]
fn each_missing_part_has_its_own_signal() {
    let source = "echo yes > ran";
    expect(PayloadFailure::CommandNotFound, "nosuch", || with_image("nosuch -x", source));
    expect(PayloadFailure::CommandNotFound, "/opt/nosuch", || with_image("/opt/nosuch", source));
    expect(PayloadFailure::ImageUnavailable, "/no/such/image", || Scratch::new("/no/such/image", "bash", source));
    expect(PayloadFailure::ImageUnavailable, "docker://localhost:9/a/b:1", || {
        Scratch::new("localhost:9/a/b:1", "bash", source)
    });
    expect(PayloadFailure::NoContainerRuntime, "apptainer", || {
        let mut scratch = with_image("bash", source);
        scratch.path = "/usr/bin:/bin".to_owned();
        scratch
    });
    expect(PayloadFailure::SandboxBroken, "payload.conf", || {
        let scratch = with_image("bash", source);
        let conf = scratch.read("payload.conf");
        scratch.write("payload.conf", conf.strip_suffix("end\n").unwrap());
        scratch
    });
    expect(PayloadFailure::SandboxBroken, "script.sh", || {
        let scratch = with_image("bash", source);
        std::fs::remove_file(scratch.folder.path().join("script.sh")).unwrap();
        scratch
    });
    for shell in SHELLS {
        for arguments in [&[][..], &["x"], &["-1"]] {
            let scratch = with_image("bash", source);
            let (code, _, _) = ended(scratch.start(shell, arguments).wait_with_output().unwrap());
            assert_eq!(failure(code), Some(PayloadFailure::SandboxBroken), "{shell} {arguments:?}");
        }
    }
}

#[test]
fn late_or_unreadable_job_ad_runs_no_payload() {
    let ad = |text: &'static str| {
        move || {
            let scratch = with_image("bash", "echo yes > ran");
            scratch.write(".job.ad", text);
            scratch
        }
    };
    expect(PayloadFailure::Late, "1001", ad("StageInFinish = 1001\nHTCNotAfter = 1000\n"));
    for unreadable in [
        "",
        "HTCNotAfter = 1000\n",
        "StageInFinish = 900\n",
        "HTCNotAfter = 1000\nStageInFinish = undefined\n",
        "HTCNotAfter = -5\nStageInFinish = 1\n",
        "HTCNotAfter = 1000\nX = \"\\nStageInFinish = 1\"\n",
        "HTCNotAfter = \"1000\"\nStageInFinish = 1\n",
    ] {
        expect(PayloadFailure::AdUnreadable, "HTCNotAfter", ad(unreadable));
    }
    expect(PayloadFailure::AdUnreadable, "_CONDOR_JOB_AD", || {
        let scratch = with_image("bash", "echo yes > ran");
        std::fs::remove_file(scratch.folder.path().join(".job.ad")).unwrap();
        scratch
    });
    assert_eq!(
        ad("HTCNotAfter = 1000\nStageInFinish = 1000")().run("dash").0,
        0,
        "the last line may lack its line feed"
    );
}

#[test]
fn payload_that_overwrites_job_files_keeps_its_exit_code() {
    for shell in SHELLS {
        let source = "echo 'exit 99' > job.sh; echo > payload.conf; rm -rf script.sh .job.ad; exit 255";
        assert_eq!(with_image("bash", source).run(shell).0, 255, "{shell}");
    }
}

/// Links in a payload's folder do not redirect programs outside the container.
#[test]
fn payload_links_redirect_no_writes() {
    for shell in SHELLS {
        let outside = tempfile::tempdir().unwrap();
        if is_root() {
            chown(outside.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let at = outside.path().display();
        for source in [
            format!("mkdir .htc_work; ln -s {at}/made .htc_work/probe; ln -s {at}/made ../probe; exit 255"),
            format!("mkdir -p .htc_work/run; ln -s {at} .htc_work/tmp; ln -s {at} tmp; ln -s {at} run; exit 255"),
        ] {
            assert_eq!(with_image("bash", &source).run(shell).0, 255, "{shell}");
            let made: Vec<_> = std::fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(made.is_empty(), "{shell}: {source} made {made:?}");
        }
    }
}

/// What its archive has, unpacked.
fn unpacked(scratch: &Scratch) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let archive = scratch.folder.path().join("htc_output.tar");
    let tar = Process::new("tar").arg("-xf").arg(archive).arg("-C").arg(folder.path()).status().unwrap();
    assert!(tar.success());
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Entries that are neither files nor folders stay behind, files with names that HTCondor interprets come packed, and
/// the files of job.sh and HTCondor are unchanged.
#[test]
fn output_names_mean_nothing_to_htcondor() {
    let source = "echo mine >fine; echo mine >'fine too'; echo mine >-fine; chmod 0 fine; mkfifo pipe; ln -s /etc/passwd link
        ln -s missing dangling; mkdir -p folder/deep; echo x >folder/deep/file; ln folder/deep/file folder/deep/twin
        ln -s / folder/deep/link; mkfifo folder/pipe; chmod 4755 folder/deep/file; chmod 0 folder/deep folder; echo yes >a,b
        for name in out err ' blank' job.sh payload.conf callback.token condor_exec.exe _condor_stderr .job.ad .update.ad $'line\\nend'; do
            rm -f \"$name\"; echo yes >\"$name\"; done; exit 3";
    for shell in SHELLS {
        let scratch = with_image("bash", source);
        let before = ["job.sh", "payload.conf", "script.sh", ".job.ad"].map(|name| scratch.read(name));
        let (code, _, stderr) = scratch.run(shell);
        assert_eq!(code, 3, "{shell}: {stderr}");
        assert!(stderr.contains("links do not come back as output (3)"), "{shell}: {stderr}");
        assert!(stderr.contains("these names are the job's own, and what the script left there does not come back (a file err, a file out)"), "{shell}: {stderr}");
        let after = ["job.sh", "payload.conf", "script.sh", ".job.ad"].map(|name| scratch.read(name));
        assert_eq!(after, before, "{shell}");
        let wanted = [
            "-fine",
            ".job.ad",
            "fine",
            "fine too",
            "htc_output.omitted",
            "htc_output.tar",
            "job.sh",
            "payload.conf",
            "script.sh",
        ];
        assert_eq!(scratch.names(), wanted, "{shell}");
        assert_eq!(scratch.read("fine"), "mine\n", "{shell}");
        let unpacked = unpacked(&scratch);
        let packed = [
            " blank",
            ".update.ad",
            "_condor_stderr",
            "a,b",
            "callback.token",
            "condor_exec.exe",
            "folder",
            "job.sh",
            "line\nend",
            "payload.conf",
        ];
        assert_eq!(names(unpacked.path()), packed, "{shell}");
        assert_eq!(names(&unpacked.path().join("folder")), ["deep"], "{shell}");
        let deep = unpacked.path().join("folder/deep");
        assert_eq!(names(&deep), ["file", "twin"], "{shell}");
        let listed =
            Process::new("tar").arg("-tvf").arg(scratch.folder.path().join("htc_output.tar")).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(
            listed.lines().all(|line| line.starts_with(['d', '-', 'h']) && !line[..10].contains('s')),
            "{shell}: {listed}"
        );
    }
}

#[test]
fn next_run_finds_files_of_the_previous_run() {
    for shell in SHELLS {
        let scratch = with_image(
            "bash",
            "ls; cat kept; echo more >>kept; [ -e kept2 ] || echo no >payload.conf; : >kept2; exit 4",
        );
        assert_eq!(scratch.run(shell).1, "script.sh\n", "{shell}");
        assert_eq!(scratch.run(shell).1, "kept\nkept2\nscript.sh\nmore\n", "{shell}");
        assert_eq!(scratch.read("kept"), "more\nmore\n", "{shell}");
        // What the first run has packed is not the second's: HTCondor gets an archive without anything in its place.
        let left = [".job.ad", "htc_output.tar", "job.sh", "kept", "kept2", "payload.conf", "script.sh"];
        assert_eq!(scratch.names(), left, "{shell}");
        assert!(names(unpacked(&scratch).path()).is_empty(), "{shell}");
    }
}

/// HTCondor would bring them back beside this run's, under the same names.
#[test]
fn next_run_drops_stdout_of_the_previous_run() {
    for shell in SHELLS {
        let scratch = with_image("bash", "ls; exit 4");
        for name in ["out", "err"] {
            scratch.write(name, "former");
        }
        assert_eq!(scratch.run(shell), (4, "script.sh\n".to_owned(), String::new()), "{shell}");
        assert_eq!(scratch.names(), [".job.ad", "job.sh", "payload.conf", "script.sh"], "{shell}");
    }
}

/// On the operator's volume such a file would run in the operator's account.
#[test]
fn setuid_bits_are_removed_from_output() {
    let source = "for mode in 4755 2755 6000; do echo x >$mode; chmod $mode $mode; done; ls -l >modes";
    for shell in SHELLS {
        let scratch = with_image("bash", source);
        assert_eq!(scratch.run(shell), (0, String::new(), String::new()), "{shell}");
        assert!(scratch.read("modes").contains("---S--S---"), "there were none: {}", scratch.read("modes"));
        for (name, mode) in [("4755", 0o755), ("2755", 0o755), ("6000", 0o600)] {
            let left = std::fs::metadata(scratch.folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(left & 0o7777, mode, "{shell}: {name}");
        }
    }
}

/// A payload ends with 255, and the check of job.sh fails because the image or the command is gone by then.
#[test]
fn output_comes_back_although_the_image_is_gone() {
    for (gone, failure) in [("image", PayloadFailure::ImageUnavailable), ("command", PayloadFailure::CommandNotFound)] {
        for shell in SHELLS {
            let folder = tempfile::tempdir().unwrap();
            let at = folder.path().to_str().unwrap();
            std::os::unix::fs::symlink(image(), folder.path().join("image")).unwrap();
            std::os::unix::fs::symlink("/bin/bash", folder.path().join("command")).unwrap();
            if is_root() {
                chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            }
            let site = Image::of_the_site(&format!("{at}/image")).unwrap();
            let source = format!("echo mine >made; ln -s made link; rm {at}/{gone}; exit 255");
            let scratch = Scratch::with(&site, &[at], &format!("{at}/command"), &source, None);
            let (code, _, stderr) = scratch.run(shell);
            assert_eq!(self::failure(code), Some(failure), "{shell}: {code} {stderr}");
            assert_eq!(scratch.read("made"), "mine\n", "{shell}: {gone}");
            let left = [".job.ad", "htc_output.omitted", "job.sh", "made", "payload.conf", "script.sh"];
            assert_eq!(scratch.names(), left, "{shell}: {gone}");
        }
    }
}

#[test]
fn files_beyond_the_job_ad_limit_come_packed() {
    // Each name counts with 236 characters at most, and 262,144 may come.
    let files = |count: usize| format!("long=$(printf %0200d 0); for n in {{1..{count}}}; do : >$long$n; done");
    for shell in SHELLS {
        let scratch = with_image("bash", &files(1200));
        let (code, _, stderr) = scratch.run(shell);
        assert_eq!(code, 0, "{shell}: {stderr}");
        assert_eq!(scratch.names().len(), 5, "{shell}: none came as it is");
        assert_eq!(names(unpacked(&scratch).path()).len(), 1200, "{shell}");
    }
    let scratch = with_image("bash", &files(1100));
    assert_eq!(scratch.run(SHELLS[0]).0, 0);
    assert_eq!(scratch.names().len(), 1104, "all came");
}

/// A link in a folder that users can write to would expose its target to the payload.
#[test]
fn image_path_outside_the_binds_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bind = folder.path().to_str().unwrap();
    std::os::unix::fs::symlink("/proc/self/root", folder.path().join("node")).unwrap();
    std::os::unix::fs::symlink(image(), folder.path().join("out")).unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for shell in SHELLS {
        let run = |bind: &str, image: &str| {
            let map = ImageMap::new().with_bound_folders([bind.to_owned()]);
            let image = Image::resolve(image, &map).unwrap();
            Scratch::with(&image, &[bind], "bash", "echo ran", None).run(shell)
        };
        for link in ["node", "out", "nothing"] {
            let (code, stdout, stderr) = run(bind, &format!("{bind}/{link}"));
            assert_eq!(
                (failure(code), stdout.as_str()),
                (Some(PayloadFailure::ImageUnavailable), ""),
                "{shell}: {link}"
            );
            let says =
                if link == "nothing" { "cannot be had" } else { "in the folders that are bound into containers" };
            assert!(stderr.contains(says), "{stderr}");
        }
        let there = image();
        let (code, stdout, stderr) = run(there.parent().unwrap().to_str().unwrap(), there.to_str().unwrap());
        assert_eq!((code, stdout.as_str()), (0, "ran\n"), "{shell}: {stderr}");
    }
}

/// Sends SIGTERM to `job.sh` once the payload is up, as HTCondor does for `condor_rm` and eviction.
fn terminate(shell: &str, source: &str) -> (i32, String, String) {
    let scratch = with_image("bash", source);
    let job = scratch.start(shell, &["3"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !Path::new(&scratch.folder.path().join(".htc_work/run/up")).exists() {
        assert!(Instant::now() < deadline, "{shell}: the payload did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let sent = Instant::now();
    assert!(Process::new("kill").arg(job.id().to_string()).status().unwrap().success());
    let result = ended(job.wait_with_output().unwrap());
    assert!(sent.elapsed() < Duration::from_secs(40), "{shell}: it took {:?}", sent.elapsed());
    assert!(!scratch.folder.path().join(".htc_work").exists(), "{shell}: the folder is left");
    result
}

#[test]
fn sigterm_reaches_the_payload() {
    for shell in SHELLS {
        let clean = "trap 'echo cleaning; exit 9' TERM; touch up; while :; do sleep 0.05; done";
        assert_eq!(terminate(shell, clean), (9, "cleaning\n".to_owned(), String::new()), "{shell}");
        assert_eq!(terminate(shell, "touch up; sleep 60").0, 143, "{shell}");
    }
}
