//! Prints what jobs have written, or write.

use std::process::ExitCode;
use std::time::Duration;

use super::Failure;
use super::cluster::{Cluster, Jobs};
use super::patience::Patience;
use super::procs::{Proc, Refused, Which, parse_which};
use super::say::{self, say, tell};

/// Pause before a job is looked at again that has no log yet.
const PAUSE: Duration = Duration::from_secs(2);
/// How often in a row the log of a job that has ended is asked for: for as long as operators and their fronts are away at most.
const TRIES: u32 = 150;
/// It has no log, or none now.
const NO_LOG: u16 = 400;
/// Its Pod is gone, and nothing was kept of it.
const NOT_FOUND: u16 = 404;
/// It is of another run by now.
const ANOTHER_RUN: u16 = 409;
/// A part of it is gone by now.
const CUT: u16 = 410;
/// Of what happens here and not there: standard output cannot be written.
const HERE: u16 = 1;
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
    /// Of the jobs that have failed, at most 50, each with its name before it. Those that were removed or lost come last.
    #[arg(long, conflicts_with = "follow")]
    failed: bool,
    /// Only the last so many lines.
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let jobs = cluster.jobs().await?;
    let Arguments { name, follow, failed, .. } = arguments;
    let mut procs = jobs.procs(name, *failed).await?;
    // Those that were removed, or that HTCondor has lost, have no log, but for Pods.
    procs.sort_by_key(Proc::is_gone);
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
        let jobs = Jobs { patience: Patience::none(), ..jobs };
        return follow_to_the_end(&jobs, &procs[0], arguments).await;
    }
    let mut code = ExitCode::SUCCESS;
    for proc in procs.iter().take(MOST) {
        if *failed {
            say!("==> {}/{} <==", name.htcjob, proc.index);
        }
        let mut shown = Shown::begin(arguments.tail);
        match shown.print_whole(&jobs, proc, arguments).await {
            Ok(()) => {}
            Err(Refused { code: NO_LOG | NOT_FOUND, message, .. }) if *failed && proc.is_gone() => {
                tell!("{message}");
            }
            Err(Refused { message, .. }) if *failed => {
                tell!("error: {message}");
                code = ExitCode::from(super::ERROR);
            }
            Err(Refused { message, .. }) => return Err(Failure(message)),
        }
    }
    if procs.len() > MOST {
        tell!("{} more jobs have failed: kubectl htc jobs {} --failed", procs.len() - MOST, name.htcjob);
    }
    Ok(code)
}

/// What has been printed of a run of a job, and where that goes on.
struct Shown {
    /// When the run began, as the operator says it. Without that word another run would be gone on with in the middle: how often the
    /// job was started is known too late.
    run: Option<String>,
    /// When the line was written from which bytes are counted, if the operator says it.
    first_line: Option<String>,
    /// The next byte of the file, if that is known.
    next: Option<u64>,
    /// Only the last so many lines are wanted, and none has come.
    tail: Option<usize>,
    bytes: u64,
}

impl Shown {
    const fn begin(tail: Option<usize>) -> Self {
        Self { run: None, first_line: None, next: Some(0), tail, bytes: 0 }
    }

    /// Operators of before, and nodes that have Pods, do not say at which byte the last lines begin.
    const fn is_lost(&self) -> bool {
        self.tail.is_none() && self.next.is_none()
    }

    /// What to ask for.
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

    /// An answer has begun.
    fn answered(&mut self, header: impl Fn(&str) -> Option<String>) {
        self.run = header("x-htc-run").or_else(|| self.run.take());
        self.first_line = header("x-htc-first-line").or_else(|| self.first_line.take());
        if self.tail.is_some() {
            self.next = header("x-htc-offset").and_then(|offset| offset.parse().ok());
        }
        // Of no lines none is to come: what is written from there on is.
        if self.tail == Some(0) && self.next.is_some() {
            self.tail = None;
        }
    }

    /// So many bytes have come.
    fn came(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.next = self.next.map(|next| next + bytes);
        if bytes > 0 {
            self.tail = None;
        }
    }

    /// Prints what there is; `follow`: until the answer ends.
    async fn print(&mut self, jobs: &Jobs, proc: &Proc, wanted: &Arguments, follow: bool) -> Result<(), Refused> {
        let path = self.path(if wanted.err { "err" } else { "out" }, follow);
        let mut answer = jobs.of_job(&proc.name, &path).await?;
        self.answered(|name| answer.header(name).map(str::to_owned));
        while let Some(part) = answer.next().await {
            let part = part.map_err(|why| Refused::nobody(0, why))?;
            say::raw(&part).map_err(|error| Refused::nobody(HERE, error))?;
            self.came(part.len() as u64);
        }
        Ok(())
    }

    /// Prints all that there is, over connections that end too early.
    async fn print_whole(&mut self, jobs: &Jobs, proc: &Proc, wanted: &Arguments) -> Result<(), Refused> {
        loop {
            let before = self.bytes;
            match self.print(jobs, proc, wanted, false).await {
                Err(Refused { code: 0, .. }) if !self.is_lost() && self.bytes > before => {}
                done => return done,
            }
        }
    }
}

async fn follow_to_the_end(jobs: &Jobs, first: &Proc, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (mut proc, mut shown, mut told) = (first.clone(), Shown::begin(arguments.tail), String::new());
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
                // Of a job that is over the answer ends when all was shown.
                Ok(()) if proc.is_over() || shown.is_lost() => return Ok(ExitCode::SUCCESS),
                // The run is over, or the job has only just begun.
                Ok(()) => {}
                Err(Refused { code: ANOTHER_RUN, .. }) if shown.run.is_some() => {
                    tell!("{} was started again", proc.name);
                    shown = Shown::begin(None);
                    continue;
                }
                Err(Refused { code: CUT, message, .. }) => {
                    tell!("{message}");
                    if ended {
                        return Ok(ExitCode::SUCCESS);
                    }
                    shown = Shown::begin(None);
                }
                // It has written more than can be had while it runs, or has no log at the moment.
                Err(Refused { code: NO_LOG, message, .. }) if !ended => say(format!("{message}: waiting")),
                // There was one as long as it ran.
                Err(Refused { code: NO_LOG, message, .. }) if shown.bytes > 0 => {
                    say(message);
                    return Ok(ExitCode::SUCCESS);
                }
                Err(refused) if !refused.may_pass() || ended && tries >= TRIES => return Err(Failure(refused.message)),
                Err(refused) if shown.is_lost() => {
                    return Err(Failure(format!(
                        "{}, and it is not known where in the log of {} to go on: call it again",
                        refused.message, proc.name
                    )));
                }
                // A connection that ends is made again.
                Err(Refused { code: 0, .. }) if shown.bytes > before => {}
                Err(refused) => say(format!("{}: trying again", refused.why())),
            }
        } else {
            say(format!("{} is {}: waiting", proc.name, proc.state));
        }
        tokio::time::sleep(PAUSE).await;
        match jobs.one(&proc.name).await {
            Ok(now) => {
                // An operator of before does not say of which run a log is.
                if shown.run.is_none() && now.attempts > proc.attempts && proc.attempts > 0 && shown.bytes > 0 {
                    tell!("{} was started again", now.name);
                    shown = Shown::begin(None);
                }
                proc = now;
            }
            // Jobs go on without the operator, its front and the API server.
            Err(refused) if refused.may_pass() => say(format!("{}: trying again", refused.why())),
            Err(refused) => return Err(Failure(refused.message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn how_many_logs_one_call_prints_is_told() {
        let command = Arguments::augment_args(clap::Command::new("logs"));
        let failed = command.get_arguments().find(|flag| flag.get_id() == "failed").unwrap();
        let help = failed.get_help().unwrap().to_string();
        assert!(help.contains(&format!("at most {MOST}")), "{help}");
    }

    #[test]
    fn a_log_goes_on_in_the_same_run_at_the_next_byte() {
        let headers = |name: &str| match name {
            "x-htc-run" => Some("2026-01-02T03:04:05Z".to_owned()),
            "x-htc-offset" => Some("1000".to_owned()),
            _ => None,
        };
        let mut shown = Shown::begin(None);
        assert_eq!(shown.path("out", true), "log?stream=out&follow=true&offset=0");
        shown.answered(headers);
        shown.came(7);
        assert_eq!(shown.path("out", true), "log?stream=out&follow=true&offset=7&run=2026-01-02T03:04:05Z");

        let cut = |name: &str| {
            headers(name).or_else(|| (name == "x-htc-first-line").then(|| "2026-01-02T03:04:06Z".to_owned()))
        };
        shown.answered(cut);
        assert!(shown.path("out", true).ends_with("&firstLine=2026-01-02T03:04:06Z"), "{}", shown.path("out", true));

        let mut shown = Shown::begin(Some(3));
        shown.answered(headers);
        shown.came(0);
        assert!(shown.path("err", true).contains("&tailLines=3&run="), "nothing has come: {}", shown.path("err", true));
        shown.came(20);
        assert!(shown.path("err", true).contains("&offset=1020&run="), "{}", shown.path("err", true));
        assert!(!shown.is_lost());

        let mut shown = Shown::begin(Some(0));
        shown.answered(headers);
        assert!(shown.path("err", true).contains("&offset=1000&run="), "{}", shown.path("err", true));

        let mut shown = Shown::begin(Some(3));
        shown.answered(|_| None);
        assert!(!shown.is_lost());
        shown.came(20);
        assert!(shown.is_lost(), "nobody has said where the lines begin");
    }
}
