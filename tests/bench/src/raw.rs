//! The same work by hand: condor_submit with the operator's description and files, condor_rm.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use testbed::{Account, Client, Scratch};

use crate::error::{Doing as _, Error, Result};
use crate::tools::Mould;

/// Seconds that one tool may take.
const LIMIT: &str = "1800";
const PATIENCE: Duration = Duration::from_mins(5);

/// Somebody who uses HTCondor's tools.
pub(crate) struct Raw {
    client: Client,
    mould: Mould,
    /// A copy of one sandbox of the operator's, which goes with its HTCJob.
    sandbox: PathBuf,
    folder: PathBuf,
    made: AtomicUsize,
}

/// When each of several submissions was over.
#[derive(Clone, Debug)]
pub(crate) struct Submitted {
    pub(crate) took: Duration,
    /// Until the schedd had all files: only from then on a job is there whatever happens.
    pub(crate) staged: Duration,
    /// Seconds after the begin, in order.
    pub(crate) ends: Vec<f64>,
}

impl Raw {
    pub(crate) fn new(client: Client, mould: Mould, scratch: &Scratch) -> Result<Self> {
        let folder = scratch.dir("raw")?;
        let sandbox = folder.join("mould");
        Account::unprivileged().make_dir(&sandbox, 0o755)?;
        copy(&mould.sandbox, &sandbox)?;
        Ok(Self { client, mould, sandbox, folder, made: AtomicUsize::new(0) })
    }

    /// Makes the files of so many HTCJobs of `queue` jobs each; their descriptions.
    pub(crate) fn prepare(&self, count: usize, queue: u32) -> Result<Vec<String>> {
        (0..count).map(|_| self.prepare_one(queue)).collect()
    }

    fn prepare_one(&self, queue: u32) -> Result<String> {
        let uid = format!("{:08x}-raw", self.made.fetch_add(1, Ordering::Relaxed) + 1);
        let account = Account::unprivileged();
        let sandbox = self.folder.join("sandbox").join(&uid);
        account.make_dir(&sandbox, 0o755)?;
        copy(&self.sandbox, &sandbox)?;
        let mut rows = Vec::new();
        for index in 0..queue {
            let (row, output) = self.mould.job(&uid, index, &self.folder);
            account.make_dir(&output, 0o755)?;
            rows.push(row);
        }
        Ok(self.mould.description(&rows))
    }

    /// Submits all of them, so many at the same time.
    pub(crate) fn submit(&self, descriptions: &[String], at_once: usize) -> Result<Submitted> {
        let (next, ends, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(None));
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(description) = descriptions.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match self.run("condor_submit", &["-spool", "-terse", "-"], description) {
                            Ok(_) => {
                                ends.lock().unwrap_or_else(PoisonError::into_inner).push(began.elapsed().as_secs_f64());
                            }
                            Err(error) => {
                                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                                return;
                            }
                        }
                    }
                });
            }
        });
        let took = began.elapsed();
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.wait_staged()?;
        Ok(Submitted { took, staged: began.elapsed(), ends })
    }

    fn wait_staged(&self) -> Result<()> {
        let coming = format!("User == \"{}\" && StageInFinish =?= undefined", self.client.identity());
        self.wait_none(&coming, "the files of all jobs to be in HTCondor", Instant::now())
    }

    /// Waits until no job fulfils this constraint.
    fn wait_none(&self, constraint: &str, what: &str, began: Instant) -> Result<()> {
        let mut left = String::from("?");
        while began.elapsed() < PATIENCE {
            left = self.run("condor_q", &["-constraint", constraint, "-af", "ClusterId"], "")?;
            if left.trim().is_empty() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        let seen = format!("{} jobs", left.lines().count());
        Err(Error::Waited { what: what.to_owned(), limit: PATIENCE, seen })
    }

    /// Removes all jobs by one condor_rm, and waits until the queue has none; how long that took.
    pub(crate) fn remove_all(&self) -> Result<Duration> {
        let began = Instant::now();
        let user = self.client.identity().to_owned();
        let all = format!("User == \"{user}\"");
        self.run("condor_rm", &["-constraint", &all], "")?;
        self.wait_none(&all, "jobs to leave the queue", began)?;
        Ok(began.elapsed())
    }

    /// Runs a tool as the operator does: below `timeout`, without looking at it again and again.
    pub(crate) fn run(&self, tool: &'static str, arguments: &[&str], input: &str) -> Result<String> {
        let inner = self.client.command(tool);
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", LIMIT]).arg(inner.get_program()).args(inner.get_args()).args(arguments).env_clear();
        command.envs(inner.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
        let folder = self.client.home();
        let mut child = command
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .doing("start a tool in", &folder)?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that ends before it has read everything says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().doing("wait for a tool in", &folder)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Tool { tool, status: output.status.to_string(), words })
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).doing("list", from)? {
        let entry = entry.doing("list", from)?;
        let copied = to.join(entry.file_name());
        fs::copy(entry.path(), &copied).doing("copy", &entry.path())?;
        Account::unprivileged().own(&copied)?;
    }
    Ok(())
}
