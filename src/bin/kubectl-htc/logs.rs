//! Prints what jobs have written, or write.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use super::Failure;
use super::cluster::{Cluster, Jobs};
use super::procs::{Proc, Refused, Which, parse_which};

/// Pause before a job is looked at again that has no log yet.
const PAUSE: Duration = Duration::from_secs(2);
/// There is no log, and will be none.
const GONE: u16 = 404;
/// Most jobs whose logs one call prints.
const MOST: usize = 50;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl htc logs sums/3\n  \
    kubectl htc logs sums/3 -f\n  \
    kubectl htc logs sums/3 --err --tail 20\n  \
    kubectl htc logs sums --failed --err")]
pub(super) struct Arguments {
    /// Name of the HTCJob, or NAME/INDEX for one of its jobs.
    #[arg(value_parser = parse_which)]
    name: Which,
    /// Go on until the job has ended. Waits for a job that has not started.
    #[arg(short, long)]
    follow: bool,
    /// Standard error instead of standard output.
    #[arg(long)]
    err: bool,
    /// Of all jobs that have failed, each with its name before it.
    #[arg(long, conflicts_with = "follow")]
    failed: bool,
    /// Only the last so many lines.
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let jobs = cluster.jobs().await?;
    let Arguments { name, follow, failed, .. } = arguments;
    let procs = jobs.procs(name, if *failed { "status.state=Failed" } else { "" }).await?;
    if procs.is_empty() {
        jobs.get(&name.htcjob).await?;
        return Err(Failure(format!("no job of HTCJob {} has failed", name.htcjob)));
    }
    if procs.len() > 1 && !failed {
        return Err(Failure(format!(
            "HTCJob {0} has {1} jobs: name one of them, such as {0}/{2}, or write --failed",
            name.htcjob,
            procs.len(),
            procs[0].index
        )));
    }
    if *follow {
        return follow_to_the_end(&jobs, &procs[0], arguments).await;
    }
    let mut code = ExitCode::SUCCESS;
    for proc in procs.iter().take(MOST) {
        if *failed {
            println!("==> {}/{} <==", name.htcjob, proc.index);
        }
        let mut shown = Shown::default();
        if let Err(Refused { message, .. }) = shown.print_whole(&jobs, proc, arguments).await {
            if !failed {
                return Err(Failure(message));
            }
            eprintln!("error: {message}");
            code = ExitCode::from(super::ERROR);
        }
    }
    if procs.len() > MOST {
        eprintln!("{} more jobs have failed: kubectl htc jobs {} --failed", procs.len() - MOST, name.htcjob);
    }
    Ok(code)
}

/// What has been printed of a job.
#[derive(Default)]
struct Shown {
    /// Bytes of this run.
    bytes: u64,
}

impl Shown {
    /// Prints what there is; `follow`: until the answer ends.
    async fn print(&mut self, jobs: &Jobs, proc: &Proc, wanted: &Arguments, follow: bool) -> Result<(), Refused> {
        let stream = if wanted.err { "err" } else { "out" };
        let tail = wanted.tail.filter(|_| self.bytes == 0).map(|lines| format!("&tailLines={lines}"));
        // With the last lines alone it is not known at which byte they begin.
        let place = tail.unwrap_or_else(|| format!("&offset={}", self.bytes));
        let what = format!("log?stream={stream}&follow={follow}{place}");
        let mut answer = jobs.of_job(&proc.name, &what).await?;
        let broken = |message: String| Refused { code: 0, message };
        while let Some(part) = answer.next().await {
            let part = part.map_err(broken)?;
            let mut out = std::io::stdout().lock();
            out.write_all(&part).and_then(|()| out.flush()).map_err(|error| broken(error.to_string()))?;
            self.bytes += part.len() as u64;
        }
        Ok(())
    }

    /// Prints all that there is, over connections that end too early.
    async fn print_whole(&mut self, jobs: &Jobs, proc: &Proc, wanted: &Arguments) -> Result<(), Refused> {
        loop {
            let before = self.bytes;
            match self.print(jobs, proc, wanted, false).await {
                Err(Refused { code: 0, .. }) if wanted.tail.is_none() && self.bytes > before => {}
                done => return done,
            }
        }
    }
}

async fn follow_to_the_end(jobs: &Jobs, first: &Proc, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let which = Which { index: Some(first.index), ..arguments.name.clone() };
    let (mut proc, mut shown, mut told) = (first.clone(), Shown::default(), String::new());
    loop {
        let ended = proc.is_over() && (proc.fetched || !matches!(proc.state.as_str(), "Succeeded" | "Failed"));
        if proc.state == "Running" || proc.is_over() {
            let printed = if ended {
                shown.print_whole(jobs, &proc, arguments).await
            } else {
                shown.print(jobs, &proc, arguments, true).await
            };
            match printed {
                // Of a job that is over the answer ends when all was shown.
                Ok(()) if proc.is_over() => return Ok(ExitCode::SUCCESS),
                Err(Refused { code, message }) if code == GONE || ended && (code == 0 || shown.bytes == 0) => {
                    return Err(Failure(message));
                }
                // It has written more than can be had while it runs.
                Err(Refused { code: 400, message }) if told != message => {
                    eprintln!("{message}: waiting");
                    told = message;
                }
                // The connection ended, or the job has only just begun or ended.
                Ok(()) | Err(_) => {}
            }
            // With the last lines alone it cannot be gone on from where they ended.
            if ended || arguments.tail.is_some() && shown.bytes > 0 {
                return Ok(ExitCode::SUCCESS);
            }
        } else if told != proc.state {
            eprintln!("{} is {}: waiting", proc.name, proc.state);
            told.clone_from(&proc.state);
        }
        tokio::time::sleep(PAUSE).await;
        let now = jobs.procs(&which, "").await?;
        if let Some(now) = now.into_iter().next() {
            if now.attempts > proc.attempts && proc.attempts > 0 && shown.bytes > 0 {
                eprintln!("{} was started again", now.name);
                shown = Shown::default();
            }
            proc = now;
        }
    }
}
