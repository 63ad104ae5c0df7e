//! The commands of a page of the documentation, in its order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::site::Site;
use crate::demo::{failed, run, say};
use crate::error::{Doing as _, Result};
use crate::tool::run_ok;
use crate::wait::wait_for;

/// What takes seconds on a quiet machine, or a minute where jobs are to end.
pub(super) const PATIENCE: Duration = Duration::from_mins(5);
/// For one look.
const LOOK: Duration = Duration::from_mins(1);

/// A section of a page.
pub(super) struct Page<'a> {
    site: &'a Site<'a>,
    name: &'static str,
    kubeconfig: PathBuf,
    /// Its commands that have not run yet.
    lines: RefCell<VecDeque<String>>,
}

impl<'a> Page<'a> {
    /// From a heading to the next one of the same rank.
    pub(super) fn section(site: &'a Site<'a>, name: &'static str, heading: &str) -> Result<Self> {
        let text = site.page(name)?;
        let (_, text) = text.split_once(heading).unwrap_or_default();
        let text = text.split_once("\n## ").map_or(text, |(section, _)| section);
        let kubeconfig = site.cluster.kube.kubeconfig().to_owned();
        Ok(Self { site, name, kubeconfig, lines: RefCell::new(commands(text)) })
    }

    /// Its commands are about this namespace, as a person has set it.
    pub(super) fn within(mut self, namespace: &str) -> Result<Self> {
        let copy = self.site.cluster.scratch.path().join(format!("kubeconfig-{namespace}"));
        std::fs::copy(&self.kubeconfig, &copy).doing("copying", &self.kubeconfig)?;
        self.kubeconfig = copy;
        self.ask(&format!("kubectl config set-context --current --namespace={namespace}"))?;
        Ok(self)
    }

    /// The next command, which has these words.
    pub(super) fn next(&self, words: &str) -> Result<String> {
        let line = self.lines.borrow_mut().pop_front().unwrap_or_default();
        if line.contains(words) {
            Ok(line)
        } else {
            Err(failed(&format!("run docs/{}", self.name), format!("`{line}` comes where `{words}` is expected")))
        }
    }

    /// Runs the next command once.
    pub(super) fn does(&self, words: &str) -> Result<()> {
        self.runs(&self.next(words)?)
    }

    /// Runs the next command until it shows what is wanted; what it has shown.
    pub(super) fn shows(&self, words: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let line = self.next(words)?;
        let shown = self.until(&line, wanted)?;
        say(&format!("$ {line}"));
        crate::progress::say(shown.trim_end());
        Ok(shown)
    }

    /// All of it has run.
    pub(super) fn is_done(&self) -> Result<()> {
        let Some(line) = self.lines.borrow().front().cloned() else { return Ok(()) };
        Err(failed(&format!("run docs/{}", self.name), format!("nothing here looks at `{line}`")))
    }

    /// Shows a command that is not the page's, and runs it.
    pub(super) fn runs(&self, line: &str) -> Result<()> {
        run(line, &mut self.shell(line))
    }

    /// What a command says that is not the page's.
    pub(super) fn ask(&self, line: &str) -> Result<String> {
        run_ok(&format!("running docs/{}", self.name), &mut self.shell(line), "", LOOK)
    }

    /// Runs a command until it says what is wanted.
    pub(super) fn until(&self, line: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        wait_for(&format!("`{line}` to show what it should"), PATIENCE, || {
            let shown = self.ask(line).map_err(|error| error.to_string())?;
            if wanted(&shown) { Ok(shown) } else { Err(shown) }
        })
    }

    /// A command that the caller starts.
    pub(super) fn shell(&self, line: &str) -> Command {
        let mut shell = self.site.shell(line);
        shell.env("KUBECONFIG", &self.kubeconfig);
        shell
    }
}

/// The lines of `sh` blocks, and those of other blocks that begin with a prompt; one that goes on in the next line is one.
fn commands(text: &str) -> VecDeque<String> {
    let mut is_sh = false;
    let mut commands = VecDeque::new();
    let mut begun = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_sh = line == "```sh";
            continue;
        }
        let Some(line) = line.strip_prefix("$ ").or(is_sh.then_some(line)) else { continue };
        begun.push_str(line.trim_start());
        match begun.strip_suffix('\\') {
            Some(rest) => begun.truncate(rest.len()),
            None => commands.push_back(std::mem::take(&mut begun)),
        }
    }
    commands
}
