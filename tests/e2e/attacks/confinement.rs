//! The kernel's part alone: HTCondor's own tools, as the operator starts them, and jobs whose ads lead them astray.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use bed::PATIENCE;
use htc_submit::description::files::UNDEFINED;
use testbed::{Account, Assets, Client, Pool, PoolOptions, Scratch, Version, wait_for};

on_versions! {
    trixie: confined_tools_read_and_write_only_their_own_folder;
    sid: endless_manifest_file_is_not_read, confined_tool_and_its_children_regain_no_access;
}

const SECRET: &str = "nobody else knows this";

struct Site {
    pool: Pool,
    scratch: Scratch,
    alice: Client,
}

impl Site {
    fn new(version: Version) -> Self {
        bed::turns::take(bed::Weight::Servers);
        let options = PoolOptions { extra_config: "ENABLE_URL_TRANSFERS = true".to_owned(), ..PoolOptions::default() };
        let pool = Pool::start(&Assets::locate().unwrap(), version, &options).unwrap();
        let alice = pool.client("alice@test").unwrap();
        Self { pool, scratch: Scratch::new().unwrap(), alice }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.scratch.dir(name).unwrap()
    }

    /// The words with which the operator starts a tool; `writes`: the only folder that it may write to.
    fn confined(&self, writes: &Path) -> Vec<String> {
        let release = fs::canonicalize(self.alice.bin_dir()).unwrap().parent().unwrap().to_owned();
        let program = self.scratch.share(&bed::program()).unwrap();
        let mut words = vec![program.display().to_string()];
        words.extend(
            ["confined", "--landlock", "--memory=1073741824", "--file-size=1048576", "--write=/dev/null"]
                .map(str::to_owned),
        );
        words.push(format!("--write={}", writes.display()));
        let config = self.alice.config();
        let own = config.parent().unwrap();
        let system = ["/usr", "/bin", "/lib", "/lib64", "/proc", "/sys", "/etc/passwd", "/etc/ssl"];
        // Without these HTCondor asks for the name of its own machine again and again for a minute.
        let names = ["/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/gai.conf"];
        for path in system.into_iter().chain(names).map(Path::new).chain([release.as_path(), own]) {
            words.push(format!("--read={}", path.display()));
        }
        words.push("--".to_owned());
        words
    }

    /// A tool as alice, with these words before it. One that cannot write may wait for ever: the operator has a time limit, too.
    fn run(&self, before: &[String], tool: &str, arguments: &[&str]) -> Output {
        self.run_for("20", before, tool, arguments)
    }

    /// With a time limit in seconds.
    fn run_for(&self, limit: &str, before: &[String], tool: &str, arguments: &[&str]) -> Output {
        let path = self.alice.bin_dir().join(tool);
        let mut command: Command = self.alice.command("/usr/bin/timeout");
        command.args(["-s", "KILL", limit]).args(before).arg(path).args(arguments).output().unwrap()
    }

    /// A job that has left `marker` in its output, and its own folder.
    fn ended(&self, name: &str) -> (String, PathBuf) {
        let own = self.folder(name);
        let id = self
            .alice
            .submit(&format!(
                "executable = /bin/sh\ntransfer_executable = false\narguments = \"-c 'echo attack >marker'\"\n\
                 should_transfer_files = YES\ninitialdir = {}\noutput = out\nleave_in_queue = JobStatus == 4\nqueue\n",
                own.display()
            ))
            .unwrap();
        wait_for("the job to end", PATIENCE, || {
            self.alice.ok("condor_q", &[&id, "-af", "JobStatus"]).is_ok_and(|status| status.trim() == "4")
        })
        .unwrap();
        (id, own)
    }
}

/// Files that an edited ad points to are neither written nor read. Without confinement the same tool does both, which
/// shows that the test can fail.
///
/// Against b8ba2a8: succeeds. It starts tools as they are: with a step that does nothing, the first edit leads the tool elsewhere.
fn confined_tools_read_and_write_only_their_own_folder(version: Version) {
    let site = Site::new(version);
    let elsewhere = site.folder("elsewhere");
    let secret = elsewhere.join("secret");
    Account::unprivileged().write(&secret, SECRET, 0o600).unwrap();
    let marker = elsewhere.join("marker");
    let text = |value: &str| format!("\"{value}\"");
    let remaps = text(&format!("marker={}", marker.display()));
    for (name, attribute, value) in [
        ("iwd", "SUBMIT_Iwd", text(&elsewhere.display().to_string())),
        ("remaps", "SUBMIT_TransferOutputRemaps", remaps),
        ("log", "SUBMIT_UserLog", text(&marker.display().to_string())),
    ] {
        let (id, own) = site.ended(name);
        let before = site.confined(&own);
        // As it was submitted it goes through.
        let output = site.run(&before, "condor_transfer_data", &[&id]);
        assert!(output.status.success() && own.join("marker").exists(), "{name}: {output:?}");

        site.alice.ok("condor_qedit", &[&id, attribute, &value]).unwrap();
        let output = site.run(&before, "condor_transfer_data", &[&id]);
        assert!(!output.status.success() && !marker.exists(), "{name}: {output:?}");
        let output = site.run(&[], "condor_transfer_data", &[&id]);
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(fs::read_to_string(&marker).unwrap(), "attack\n", "{name}");
        fs::remove_file(&marker).unwrap();
    }

    let (id, own) = site.ended("url");
    let url = text(&format!("file://{}", secret.display()));
    site.alice.ok("condor_qedit", &[&id, "SpooledOutputFiles", &url, "TransferOutput", &url]).unwrap();
    let output = site.run(&site.confined(&own), "condor_transfer_data", &[&id]);
    assert!(!output.status.success(), "{output:?}");
    assert!(fs::read_to_string(own.join("secret")).unwrap_or_default() != SECRET);
    let output = site.run(&[], "condor_transfer_data", &[&id]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(own.join("secret")).unwrap(), SECRET);
    drop(site.pool);
}

/// A tool that asks for more memory than it may have does not get it, and its children are confined as it is.
///
/// Against b8ba2a8: succeeds in the same way, with the first script.
fn confined_tool_and_its_children_regain_no_access(version: Version) {
    let site = Site::new(version);
    let own = site.folder("own");
    let elsewhere = site.folder("elsewhere");
    let before = site.confined(&own);
    let shell = |script: &str| {
        let [first, rest @ ..] = before.as_slice() else { unreachable!() };
        site.alice.command(first).args(rest).args(["/bin/sh", "-c", script]).current_dir("/").output().unwrap()
    };
    let inside = shell(&format!("echo in >{}/file; sh -c 'cat {0}/file'; echo >/dev/null", own.display()));
    assert_eq!(String::from_utf8_lossy(&inside.stdout).trim(), "in", "{inside:?}");
    for script in [
        format!("echo x >{}/file", elsewhere.display()),
        format!("sh -c 'ls {}'", elsewhere.display()),
        format!("ln -s {} {}/link; echo x >{1}/link/file", elsewhere.display(), own.display()),
        format!("mkdir {0}/d; mv {0}/d {1}/d", own.display(), elsewhere.display()),
        format!("yes | head -c 2000000 >{}/large", own.display()),
        "x=$(yes | head -c 2000000000)".to_owned(),
    ] {
        let output = shell(&script);
        assert!(!output.status.success(), "{script}: {output:?}");
    }
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

/// A manifest that is `/dev/zero`, to a tool that may read it: it reads without end until the time limit, or that of memory, ends
/// it. With the operator's own line after the attribute it is not read at all.
///
/// It fails without that line in `description/files.rs`, as the second submission does here.
///
/// Against b8ba2a8: passes, with a step that does nothing, because the line is the test's. That operator writes no such line and limits
/// no tool's memory, so that each `condor_submit` is the second one here.
fn endless_manifest_file_is_not_read(version: Version) {
    let site = Site::new(version);
    let own = site.folder("own");
    let mut before = site.confined(&own);
    before.insert(before.len() - 1, "--read=/dev/zero".to_owned());
    let submit = |name: &str, last: &str, limit: &str| {
        let file = own.join(name);
        let description = format!(
            "executable = /bin/true\ntransfer_executable = false\nshould_transfer_files = YES\nrequirements = false\n\
             MY.DataReuseManifestSHA256 = \"/dev/zero\"\n{last}queue\n"
        );
        Account::unprivileged().write(&file, description, 0o644).unwrap();
        site.run_for(limit, &before, "condor_submit", &["-spool", "-terse", file.to_str().unwrap()])
    };
    let name = "DataReuseManifestSHA256";
    assert!(UNDEFINED.contains(&name));
    let locked = submit("locked", &format!("MY.{name} = undefined\n"), "20");
    assert!(locked.status.success(), "{locked:?}");
    // It takes a core for as long.
    let open = submit("open", "", "10");
    assert!(!open.status.success(), "nothing reads it at all: {open:?}");
}

/// As a tool that asks a question, when the operator is killed.
#[test]
fn confined_tool_ends_with_its_parent() {
    bed::turns::take(bed::Weight::Light);
    let program = bed::program();
    let words = "--landlock --read=/usr --read=/bin --read=/lib --read=/lib64 -- /bin/sleep 600";
    let script = format!("{} confined --dies-with=$$ {words} & echo $!; wait", program.display());
    let mut shell = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let tool = PathBuf::from(format!("/proc/{}", line.trim()));
    // One that has ended and that nobody has waited for has no command line.
    let is_tool = || fs::read(tool.join("cmdline")).is_ok_and(|words| words == b"/bin/sleep\x00600\x00");
    wait_for("the step to become the tool", PATIENCE, is_tool).unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    wait_for("the tool to end", PATIENCE, || !is_tool()).unwrap();

    // Who started it has ended before it could ask to be told.
    let mut over = Command::new("true").spawn().unwrap();
    over.wait().unwrap();
    let dies_with = format!("--dies-with={}", over.id());
    let late = Command::new(program).args(["confined", &dies_with, "--", "/bin/echo", "begun"]).output().unwrap();
    assert_eq!((late.status.code(), late.stdout.as_slice()), (Some(126), &b""[..]), "{late:?}");
}
