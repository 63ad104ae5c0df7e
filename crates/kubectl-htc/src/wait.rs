//! Command `wait`: waits for the end of an HTCJob.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use htc_api::{Condition, ConditionStatus, HTCJob, HTCJobStatus};
use htc_machine::text::human;
use kube::ResourceExt as _;

use super::CommandFailure;
use super::cluster::{Cluster, parse_name};
use super::words::Describe;
use crate::terminal as say;
use crate::terminal::{say, tell};

/// Interval between two requests to the API server.
const EVERY: Duration = Duration::from_secs(1);
/// Interval between two lines where there is no terminal to show progress on.
const LINE_EVERY: Duration = Duration::from_secs(30);
const WIDTH: usize = 30;

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 every job has succeeded; 1 jobs have failed, or the spec is not valid; 2 an error, or the time is up.\n\n\
    Examples:\n  \
    kubectl htc wait sums\n  \
    kubectl htc wait sums --timeout 8h || kubectl htc why sums"
)]
pub(super) struct Arguments {
    /// Name of the HTCJob.
    #[arg(value_parser = parse_name)]
    name: String,
    /// How long to wait, for example 90s, 10m or 8h. Default: without a limit.
    #[arg(long, value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let jobs = cluster.jobs().await?;
    let Arguments { name, timeout } = arguments;
    let first = jobs.get(name).await?;
    let (uid, began) = (first.uid(), Instant::now());
    let mut progress = WaitProgress::new(&first);
    let mut known = first;
    loop {
        progress.show(&known);
        if let Some((told, code)) = end(&known) {
            progress.clear();
            say!("htcjob.htc.cern.ch/{name}: {told}");
            return Ok(code);
        }
        if timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
            progress.clear();
            return Err(CommandFailure(format!("HTCJob {name} has not ended in time: {}", line(&status(&known)))));
        }
        tokio::time::sleep(EVERY).await;
        match jobs.api.get_opt(name).await {
            Ok(Some(job)) if job.uid() == uid => known = job,
            Ok(Some(_) | None) => {
                progress.clear();
                return Err(CommandFailure(format!("HTCJob {name} was deleted")));
            }
            Err(error @ kube::Error::Api(_)) => {
                progress.clear();
                return Err(CommandFailure::new(&format!("get HTCJob {}/{name}", jobs.namespace), error));
            }
            // The API server cannot be reached: jobs go on without it.
            Err(error) => progress.note(&format!("cannot reach the API server, trying again: {}", error.describe())),
        }
    }
}

/// Returns the final message and exit code, if the HTCJob has ended.
fn end(job: &HTCJob) -> Option<(String, ExitCode)> {
    let status = job.status.as_ref()?;
    let told = |kind: &str, value: ConditionStatus, reason: Option<&str>| -> Option<&Condition> {
        let mut conditions = status.conditions.iter();
        conditions.find(|told| {
            told.type_ == kind && told.status == value && reason.is_none_or(|reason| told.reason == reason)
        })
    };
    if let Some(complete) = told("Complete", ConditionStatus::True, None) {
        return Some((complete.message.clone(), ExitCode::SUCCESS));
    }
    let failed = told("Failed", ConditionStatus::True, None);
    // No job will come of it: the spec cannot be changed.
    let refused =
        || told("Submitted", ConditionStatus::False, Some("InvalidSpec")).filter(|_| status.attempt.is_none());
    failed.or_else(refused).map(|told| (told.message.clone(), ExitCode::FAILURE))
}

fn status(job: &HTCJob) -> HTCJobStatus {
    job.status.clone().unwrap_or_default()
}

/// Formats a line: `412 of 1000 jobs ended, 3 failed; 200 running, 388 idle`, and what needs attention.
fn line(status: &HTCJobStatus) -> String {
    let total = status.total.unwrap_or_default();
    let failed = if status.failed > 0 { format!(", {} failed", status.failed) } else { String::new() };
    let active: Vec<String> = [(status.running, "running"), (status.idle, "idle"), (status.held, "held")]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let active = if active.is_empty() { String::new() } else { format!("; {}", active.join(", ")) };
    let phase = status.phase.map(|phase| phase.to_string());
    let attention = status.state.as_ref().filter(|state| Some(*state) != phase.as_ref());
    let attention = attention.map(|state| format!(" ({state})")).unwrap_or_default();
    format!("{} of {total} jobs ended{failed}{active}{attention}", status.succeeded + status.failed)
}

/// Progress on standard error.
struct WaitProgress {
    terminal: bool,
    began: Instant,
    /// Number of jobs that had ended at the start.
    before: i64,
    last: Option<(Instant, String)>,
}

impl WaitProgress {
    fn new(job: &HTCJob) -> Self {
        let status = status(job);
        let before = status.succeeded + status.failed;
        Self { terminal: std::io::stderr().is_terminal(), began: Instant::now(), before, last: None }
    }

    fn show(&mut self, job: &HTCJob) {
        let status = status(job);
        let line = line(&status) + &self.estimate(&status);
        let (same, soon) =
            self.last.as_ref().map_or((false, false), |(at, last)| (*last == line, at.elapsed() < LINE_EVERY));
        if self.terminal {
            say::progress(&format!("[{}] {line}", bar(&status)));
        } else if !same && !soon {
            tell!("{line}");
        } else {
            return;
        }
        self.last = Some((Instant::now(), line));
    }

    /// Returns an estimate by the pace since the start.
    fn estimate(&self, status: &HTCJobStatus) -> String {
        let ended = status.succeeded + status.failed;
        let left = status.total.unwrap_or_default() - ended;
        estimate(ended - self.before, left, self.began.elapsed().as_secs_f64())
    }

    fn note(&mut self, text: &str) {
        if self.last.as_ref().is_none_or(|(_, last)| last != text) {
            self.clear();
            tell!("{text}");
            self.last = Some((Instant::now(), text.to_owned()));
        }
    }

    fn clear(&self) {
        if self.terminal {
            say::clear();
        }
    }
}

/// Returns the rate of jobs per second, minute or hour, and the remaining time.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "for people")]
fn estimate(ended: i64, left: i64, seconds: f64) -> String {
    let pace = ended as f64 / seconds.max(1.0);
    if pace <= 0.0 || left <= 0 {
        return String::new();
    }
    let (rate, unit) = match pace {
        pace if pace >= 1.0 => (pace, "s"),
        pace if pace * 60.0 >= 1.0 => (pace * 60.0, "min"),
        pace => (pace * 3600.0, "h"),
    };
    format!("; {rate:.1}/{unit}, about {} left", human((left as f64 / pace).ceil() as i64))
}

fn bar(status: &HTCJobStatus) -> String {
    let total = usize::try_from(status.total.unwrap_or_default()).unwrap_or_default().max(1);
    let ended = usize::try_from(status.succeeded + status.failed).unwrap_or_default().min(total);
    let full = WIDTH * ended / total;
    format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full))
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 90s, 10m or 8h");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_counts_jobs_by_state() {
        let status =
            HTCJobStatus { total: Some(10), succeeded: 3, failed: 1, running: 2, idle: 4, ..HTCJobStatus::default() };
        assert_eq!(line(&status), "4 of 10 jobs ended, 1 failed; 2 running, 4 idle");
        assert_eq!(bar(&status), "############..................");
        let status =
            HTCJobStatus { state: Some("Held".to_owned()), total: Some(1), held: 1, ..HTCJobStatus::default() };
        assert_eq!(line(&status), "0 of 1 jobs ended; 1 held (Held)");
    }

    #[test]
    fn remaining_time_is_estimated() {
        assert_eq!(estimate(0, 10, 60.0), "");
        assert_eq!(estimate(10, 0, 60.0), "");
        assert_eq!(estimate(120, 60, 60.0), "; 2.0/s, about 30s left");
        assert_eq!(estimate(6, 30, 60.0), "; 6.0/min, about 5m left");
        assert_eq!(estimate(1, 20, 1800.0), "; 2.0/h, about 10h left");
    }

    #[test]
    fn durations_are_parsed_as_kubectl_does() {
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        for wrong in ["", "m", "10", "-1s", "1d", "1é"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
