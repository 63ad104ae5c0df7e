//! Command `logs`: prints what jobs have written, or follows it.

use std::process::ExitCode;
use std::time::Duration;

use super::CommandFailure;
use super::cluster::{Cluster, JobsClient};
use super::procs::{ApiRefusal, JobSelector, Proc, parse_which};
use crate::retry_budget::RetryBudget;
use crate::terminal as say;
use crate::terminal::{say, tell};

/// Pause before a job without log is checked again.
const PAUSE: Duration = Duration::from_secs(2);
/// Number of times in a row that the log of an ended job is requested: enough for the longest absence of operators
/// and fronts.
const TRIES: u32 = 150;
/// HTTP status: there is no log, or none now.
const NO_LOG: u16 = 400;
/// HTTP status: the Pod is gone, and its log was not stored.
const NOT_FOUND: u16 = 404;
/// HTTP status: the log is of another run by now.
const ANOTHER_RUN: u16 = 409;
/// HTTP status: a part of the log is gone by now.
const CUT: u16 = 410;
/// Code for local errors: standard output cannot be written.
const HERE: u16 = 1;
/// Maximum number of jobs whose logs one call prints.
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
    name: JobSelector,
    /// Follow the log until the job has ended. Waits for a job that has not started.
    #[arg(short, long)]
    follow: bool,
    /// Print standard error instead of standard output.
    #[arg(long)]
    err: bool,
    /// Print the logs of failed jobs (at most 50), each with a header. Jobs that were removed or lost come last.
    #[arg(long, conflicts_with = "follow")]
    failed: bool,
    /// Number of last lines to print.
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let jobs = cluster.jobs().await?;
    let Arguments { name, follow, failed, .. } = arguments;
    let mut procs = jobs.procs(name, *failed).await?;
    // Jobs that were removed, or that HTCondor has lost, have no log, except as Pods.
    procs.sort_by_key(Proc::is_gone);
    if procs.is_empty() {
        jobs.get(&name.htcjob).await?;
        return Err(CommandFailure(format!("no job of HTCJob {} has failed", name.htcjob)));
    }
    if procs.len() > 1 && !failed {
        return Err(CommandFailure(format!(
            "HTCJob {0} has {1} jobs: name one of them, such as {0}/{2}, or write --failed",
            name.htcjob,
            procs.len(),
            procs[0].index
        )));
    }
    if *follow {
        let jobs = JobsClient { patience: RetryBudget::none(), ..jobs };
        return follow_to_the_end(&jobs, &procs[0], arguments).await;
    }
    let mut code = ExitCode::SUCCESS;
    for proc in procs.iter().take(MOST) {
        if *failed {
            say!("==> {}/{} <==", name.htcjob, proc.index);
        }
        let mut shown = LogPosition::begin(arguments.tail);
        match shown.print_whole(&jobs, proc, arguments).await {
            Ok(()) => {}
            Err(ApiRefusal { code: NO_LOG | NOT_FOUND, message, .. }) if *failed && proc.is_gone() => {
                tell!("{message}");
            }
            Err(ApiRefusal { message, .. }) if *failed => {
                tell!("error: {message}");
                code = ExitCode::from(super::ERROR);
            }
            Err(ApiRefusal { message, .. }) => return Err(CommandFailure(message)),
        }
    }
    if procs.len() > MOST {
        tell!("{} more jobs have failed: kubectl htc jobs {} --failed", procs.len() - MOST, name.htcjob);
    }
    Ok(code)
}

/// Printed part of the log of one run, and where it continues.
struct LogPosition {
    /// Start time of the run, as reported by the operator. Without it, the log could continue in the middle of
    /// another run: the number of starts is known too late.
    run: Option<String>,
    /// Time of the line from which bytes are counted, if the operator reports it.
    first_line: Option<String>,
    /// Next byte of the file, if it is known.
    next: Option<u64>,
    /// Only this many last lines are requested, and none has arrived.
    tail: Option<usize>,
    bytes: u64,
}

impl LogPosition {
    const fn begin(tail: Option<usize>) -> Self {
        Self { run: None, first_line: None, next: Some(0), tail, bytes: 0 }
    }

    /// Returns whether the position is unknown: older operators, and nodes that run Pods, do not report at which byte
    /// the last lines begin.
    const fn is_lost(&self) -> bool {
        self.tail.is_none() && self.next.is_none()
    }

    /// Returns the path and query of the next request.
    fn path(&self, stream: &str, follow: bool) -> String {
        let place = match (self.tail, self.next) {
            (Some(lines), _) => format!("tailLines={lines}"),
            (None, next) => format!("offset={}", next.unwrap_or_default()),
        };
        let run = self.run.as_ref().map(|run| format!("&run={run}")).unwrap_or_default();
        let first_line = self.first_line.as_ref().filter(|_| self.tail.is_none());
        let first_line = first_line.map(|time| format!("&firstLine={time}")).unwrap_or_default();
        format!("log?stream={stream}&follow={follow}&{place}{run}{first_line}")
    }

    /// Records the headers of an answer.
    fn answered(&mut self, header: impl Fn(&str) -> Option<String>) {
        self.run = header("x-htc-run").or_else(|| self.run.take());
        self.first_line = header("x-htc-first-line").or_else(|| self.first_line.take());
        if self.tail.is_some() {
            self.next = header("x-htc-offset").and_then(|offset| offset.parse().ok());
        }
        // With `--tail 0` no earlier line arrives: everything that is written from there on is requested.
        if self.tail == Some(0) && self.next.is_some() {
            self.tail = None;
        }
    }

    /// Records that this many bytes have arrived.
    fn came(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.next = self.next.map(|next| next + bytes);
        if bytes > 0 {
            self.tail = None;
        }
    }

    /// Prints the log as it is now; `follow`: until the answer ends.
    async fn print(
        &mut self,
        jobs: &JobsClient,
        proc: &Proc,
        wanted: &Arguments,
        follow: bool,
    ) -> Result<(), ApiRefusal> {
        let path = self.path(if wanted.err { "err" } else { "out" }, follow);
        let mut answer = jobs.of_job(&proc.name, &path).await?;
        self.answered(|name| answer.header(name).map(str::to_owned));
        while let Some(part) = answer.next().await {
            let part = part.map_err(|why| ApiRefusal::local(0, why))?;
            say::raw(&part).map_err(|error| ApiRefusal::local(HERE, error))?;
            self.came(part.len() as u64);
        }
        Ok(())
    }

    /// Prints the whole log, also if connections end too early.
    async fn print_whole(&mut self, jobs: &JobsClient, proc: &Proc, wanted: &Arguments) -> Result<(), ApiRefusal> {
        loop {
            let before = self.bytes;
            match self.print(jobs, proc, wanted, false).await {
                Err(ApiRefusal { code: 0, .. }) if !self.is_lost() && self.bytes > before => {}
                done => return done,
            }
        }
    }
}

async fn follow_to_the_end(jobs: &JobsClient, first: &Proc, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let (mut proc, mut shown, mut told) = (first.clone(), LogPosition::begin(arguments.tail), String::new());
    let mut say = |words: String| {
        if told != words {
            tell!("{words}");
            told = words;
        }
    };
    let mut tries = 0;
    loop {
        let ended = proc.is_over() && (proc.fetched || !matches!(proc.state.as_str(), "Succeeded" | "Failed"));
        if proc.state == "Running" || proc.is_over() {
            let before = shown.bytes;
            let printed = if ended {
                shown.print_whole(jobs, &proc, arguments).await
            } else {
                shown.print(jobs, &proc, arguments, true).await
            };
            tries = if shown.bytes > before { 0 } else { tries + 1 };
            match printed {
                // For an ended job, the answer ends when all of the log was sent.
                Ok(()) if proc.is_over() || shown.is_lost() => return Ok(ExitCode::SUCCESS),
                // The run is over, or the job has only just begun.
                Ok(()) => {}
                Err(ApiRefusal { code: ANOTHER_RUN, .. }) if shown.run.is_some() => {
                    tell!("{} was started again", proc.name);
                    shown = LogPosition::begin(None);
                    continue;
                }
                Err(ApiRefusal { code: CUT, message, .. }) => {
                    tell!("{message}");
                    if ended {
                        return Ok(ExitCode::SUCCESS);
                    }
                    shown = LogPosition::begin(None);
                }
                // It has written more than can be read while it runs, or has no log at the moment.
                Err(ApiRefusal { code: NO_LOG, message, .. }) if !ended => say(format!("{message}: waiting")),
                // There was a log as long as it ran.
                Err(ApiRefusal { code: NO_LOG, message, .. }) if shown.bytes > 0 => {
                    say(message);
                    return Ok(ExitCode::SUCCESS);
                }
                Err(refused) if !refused.is_transient() || ended && tries >= TRIES => {
                    return Err(CommandFailure(refused.message));
                }
                Err(refused) if shown.is_lost() => {
                    return Err(CommandFailure(format!(
                        "{}, and it is not known where in the log of {} to go on: call it again",
                        refused.message, proc.name
                    )));
                }
                // After a connection that ended early, a new one is opened.
                Err(ApiRefusal { code: 0, .. }) if shown.bytes > before => {}
                Err(refused) => say(format!("{}: trying again", refused.why())),
            }
        } else {
            say(format!("{} is {}: waiting", proc.name, proc.state));
        }
        tokio::time::sleep(PAUSE).await;
        match jobs.one(&proc.name).await {
            Ok(now) => {
                // Older operators do not report the run of a log.
                if shown.run.is_none() && now.attempts > proc.attempts && proc.attempts > 0 && shown.bytes > 0 {
                    tell!("{} was started again", now.name);
                    shown = LogPosition::begin(None);
                }
                proc = now;
            }
            // Jobs go on without the operator, its front and the API server.
            Err(refused) if refused.is_transient() => say(format!("{}: trying again", refused.why())),
            Err(refused) => return Err(CommandFailure(refused.message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn help_names_the_largest_number_of_logs() {
        let command = Arguments::augment_args(clap::Command::new("logs"));
        let failed = command.get_arguments().find(|flag| flag.get_id() == "failed").unwrap();
        let help = failed.get_help().unwrap().to_string();
        assert!(help.contains(&format!("at most {MOST}")), "{help}");
    }

    #[test]
    fn log_resumes_in_the_same_run_at_the_next_byte() {
        let headers = |name: &str| match name {
            "x-htc-run" => Some("2026-01-02T03:04:05Z".to_owned()),
            "x-htc-offset" => Some("1000".to_owned()),
            _ => None,
        };
        let mut shown = LogPosition::begin(None);
        assert_eq!(shown.path("out", true), "log?stream=out&follow=true&offset=0");
        shown.answered(headers);
        shown.came(7);
        assert_eq!(shown.path("out", true), "log?stream=out&follow=true&offset=7&run=2026-01-02T03:04:05Z");

        let cut = |name: &str| {
            headers(name).or_else(|| (name == "x-htc-first-line").then(|| "2026-01-02T03:04:06Z".to_owned()))
        };
        shown.answered(cut);
        assert!(shown.path("out", true).ends_with("&firstLine=2026-01-02T03:04:06Z"), "{}", shown.path("out", true));

        let mut shown = LogPosition::begin(Some(3));
        shown.answered(headers);
        shown.came(0);
        assert!(shown.path("err", true).contains("&tailLines=3&run="), "nothing has come: {}", shown.path("err", true));
        shown.came(20);
        assert!(shown.path("err", true).contains("&offset=1020&run="), "{}", shown.path("err", true));
        assert!(!shown.is_lost());

        let mut shown = LogPosition::begin(Some(0));
        shown.answered(headers);
        assert!(shown.path("err", true).contains("&offset=1000&run="), "{}", shown.path("err", true));

        let mut shown = LogPosition::begin(Some(3));
        shown.answered(|_| None);
        assert!(!shown.is_lost());
        shown.came(20);
        assert!(shown.is_lost(), "the offset of the lines is unknown");
    }
}
