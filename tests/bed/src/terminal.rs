//! A user's terminal: runs the commands that stand in a page, in order, and says on which of its lines one failed.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use testbed::{Account, Owned, Scratch, Spec};

use super::Bed;

/// What of the checkout lies in the folder in which commands run.
const CHECKOUT: [&str; 6] = ["README.md", "crd", "deploy", "docs", "examples", "statecharts"];

/// Commands, each on the line on which it stands in its page, so that what the shell says of a line is true of the page.
pub struct Page {
    name: String,
    script: String,
}

impl Page {
    /// What stands in the blocks of a Markdown file that are marked `sh`.
    pub fn of_markdown(name: &str, text: &str) -> Self {
        let mut inside = false;
        let command = |line: &str| {
            let line = line.trim_start();
            if line.starts_with("```") {
                inside = !inside && line.trim_end() == "```sh";
                return String::new();
            }
            if inside { line.to_owned() } else { String::new() }
        };
        Self { name: name.to_owned(), script: text.lines().map(command).collect::<Vec<_>>().join("\n") }
    }

    /// What stands three blanks behind the `#` of the comment with which a YAML file begins.
    pub fn of_comments(name: &str, text: &str) -> Self {
        let comment = text.lines().take_while(|line| line.starts_with('#'));
        let commands =
            comment.map(|line| line.strip_prefix("#   ").filter(|line| is_command(line)).unwrap_or_default());
        Self { name: name.to_owned(), script: commands.collect::<Vec<_>>().join("\n") }
    }

    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.script.trim().is_empty()
    }
}

/// A field of the spec may stand in a comment as well.
fn is_command(line: &str) -> bool {
    line.split_once(' ').is_some_and(|(word, _)| !word.ends_with(':'))
}

/// A terminal in a fresh copy of the checkout, with `kubectl`, `htc-operator` and HTCondor's tools, as somebody who may do
/// what the operator may.
pub struct Terminal<'a> {
    bed: &'a Bed,
    scratch: Scratch,
    checkout: PathBuf,
    variables: Vec<(String, String)>,
}

impl<'a> Terminal<'a> {
    pub fn open(bed: &'a Bed, namespace: &str) -> Self {
        let scratch = Scratch::new().unwrap();
        let checkout = scratch.dir("htc-operator").unwrap();
        for name in CHECKOUT {
            let from = crate::checkout().join(name);
            if from.exists() {
                copy(&from, &checkout.join(name));
            }
        }
        let bin = scratch.dir("bin").unwrap();
        for name in ["htc-operator", "kubectl-htc"] {
            let program = scratch.share(&crate::program().with_file_name(name)).unwrap();
            symlink(program, bin.join(name)).unwrap();
        }
        symlink(bed.assets.kubectl(), bin.join("kubectl")).unwrap();
        scratch.dir("home").unwrap();
        let kubeconfig = scratch.path().join("kubeconfig");
        Account::unprivileged().write(&kubeconfig, fs::read(bed.kube.kubeconfig()).unwrap(), 0o600).unwrap();
        let terminal = Self { bed, scratch, checkout, variables: Vec::new() };
        let page = Page {
            name: "start".to_owned(),
            script: format!("\nkubectl config set-context --current --namespace={namespace}"),
        };
        terminal.run(&page, super::PATIENCE).unwrap();
        terminal
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs a page to its end. `Err` says where it stopped, and what was shown before that.
    pub fn run(&self, page: &Page, limit: Duration) -> Result<(), String> {
        let (file, log) = (self.scratch.path().join("page.sh"), self.scratch.path().join("terminal.log"));
        let _ = fs::remove_file(&log);
        // The first line of a page is a heading, or a sentence.
        assert!(page.script.lines().next().is_none_or(str::is_empty), "{}: a command on its first line", page.name);
        let script = format!("set -eEuo pipefail; PS4='+ {}:$LINENO: '; set -x{}", page.name, page.script);
        Account::unprivileged().write(&file, script, 0o644).unwrap();
        let shell = Owned::spawn(&self.spec(&log).arg(&file)).unwrap();
        let ended = shell.wait(limit);
        let shown = || {
            let text = fs::read(&log).unwrap_or_default();
            let lines: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{} ended with {status}; the last `+` says where:\n{}", page.name, shown())),
            Err(error) => Err(format!("{}: {error}\n{}", page.name, shown())),
        }
    }

    /// Runs commands in a folder of the checkout: each behind a `$`, and below it what it prints. What is printed to standard error,
    /// such as progress, is left out, and a command may fail.
    pub fn record(&self, folder: &Path, commands: &[&str]) -> String {
        let mut text = String::new();
        for command in commands {
            let log = self.scratch.path().join("record.log");
            let _ = fs::remove_file(&log);
            let quiet = format!("exec 2>/dev/null; {command}");
            let spec = self.spec(&log).current_dir(self.checkout.join(folder)).args(["-c", &quiet]);
            Owned::spawn(&spec).unwrap().wait(super::PATIENCE).unwrap();
            let shown = fs::read(&log).unwrap_or_default();
            let _ = write!(text, "$ {command}\n{}", String::from_utf8_lossy(&shown));
        }
        text
    }

    fn spec(&self, log: &Path) -> Spec {
        let mut path = String::new();
        write!(path, "{}:", self.scratch.path().join("bin").display()).unwrap();
        write!(path, "{}:/usr/bin:/bin", self.bed.condor.bin_dir().display()).unwrap();
        let spec = Spec::new("/bin/bash", log)
            .current_dir(&self.checkout)
            .env("PATH", path)
            .env("HOME", self.scratch.path().join("home"))
            .env("TMPDIR", self.scratch.dir("tmp").unwrap())
            .env("KUBECONFIG", self.scratch.path().join("kubeconfig"))
            .env("CONDOR_CONFIG", self.bed.condor.config())
            .env("HTC_SCHEDD", self.bed.pool.schedd_name())
            .env("HTC_DATA_DIR", &self.bed.data);
        self.variables.iter().fold(spec, |spec, (name, value)| spec.env(name, value))
    }
}

fn copy(from: &Path, to: &Path) {
    let account = Account::unprivileged();
    if from.is_dir() {
        account.make_dir(to, 0o755).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        account.write(to, fs::read(from).unwrap(), 0o644).unwrap();
    }
}
