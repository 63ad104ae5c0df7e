//! Runs one program to its end, with a time limit.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long output may stay open after the program's end, by a child it left behind.
const AFTER_THE_END: Duration = Duration::from_secs(5);

/// What a program printed and how it ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output, undecodable bytes replaced.
    pub stdout: String,
    /// Standard error, undecodable bytes replaced.
    pub stderr: String,
}

/// Runs `command` with `input` on its stdin; after `limit` it is killed. Any exit status is fine.
pub fn run(doing: &str, command: &mut Command, input: &str, limit: Duration) -> Result<Finished> {
    run_watched(doing, command, input, limit, |_| ())
}

/// The same, and `said` gets each line of standard error as it comes.
fn run_watched(
    doing: &str,
    command: &mut Command,
    input: &str,
    limit: Duration,
    said: impl FnMut(&str) + Send + 'static,
) -> Result<Finished> {
    let line = command_line(command);
    let failed = |outcome: String, output: &str| Error::Tool {
        doing: doing.to_owned(),
        command: line.clone(),
        outcome,
        output: tail(output),
    };
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| {
            failed(format!("could not be started ({e}); tests/testbed/prerequisites.sh names what is missing"), "")
        })?;
    let stdin = child.stdin.take();
    let input = input.to_owned();
    thread::spawn(move || {
        // A program that does not read its input closes the pipe; its exit status tells.
        stdin.map(|mut pipe| pipe.write_all(input.as_bytes()))
    });
    let stdout = collect(child.stdout.take(), |_| ());
    let stderr = collect(child.stderr.take(), said);
    let ended = wait_timeout(limit, || child.try_wait());
    if !matches!(ended, Ok(Some(_))) {
        let _ = child.kill();
        let _ = child.wait();
    }
    let stdout = stdout.recv_timeout(AFTER_THE_END).unwrap_or_default();
    let stderr = stderr.recv_timeout(AFTER_THE_END).unwrap_or_default();
    match ended {
        Ok(Some(status)) => Ok(Finished { status, stdout, stderr }),
        Ok(None) => Err(failed(format!("was killed after its time limit of {limit:?}"), &(stdout + &stderr))),
        Err(e) => Err(failed(format!("could not be waited for ({e})"), &stderr)),
    }
}

/// Like [`run`], but an exit status other than 0 is an error; gives standard output.
pub fn run_ok(doing: &str, command: &mut Command, input: &str, limit: Duration) -> Result<String> {
    let done = run(doing, command, input, limit)?;
    succeeded(doing, command, done)
}

/// The same without input; `said` gets each line of standard error as it comes.
pub(crate) fn run_ok_watched(
    doing: &str,
    command: &mut Command,
    limit: Duration,
    said: impl FnMut(&str) + Send + 'static,
) -> Result<String> {
    let done = run_watched(doing, command, "", limit, said)?;
    succeeded(doing, command, done)
}

fn succeeded(doing: &str, command: &Command, done: Finished) -> Result<String> {
    if done.status.success() {
        return Ok(done.stdout);
    }
    Err(Error::Tool {
        doing: doing.to_owned(),
        command: command_line(command),
        outcome: format!("failed ({})", done.status),
        output: tail(&(done.stdout + &done.stderr)),
    })
}

/// Asks `try_wait` until it gives the exit status, at most for `limit`; `None` when the program still runs.
pub(crate) fn wait_timeout(
    limit: Duration,
    mut try_wait: impl FnMut() -> io::Result<Option<ExitStatus>>,
) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = try_wait()? {
            return Ok(Some(status));
        }
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>, mut said: impl FnMut(&str) + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        if let Some(pipe) = pipe {
            let mut lines = BufReader::new(pipe);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                let words = String::from_utf8_lossy(&line);
                said(words.trim_end());
                text += &words;
                line.clear();
            }
        }
        let _ = sender.send(text);
    });
    receiver
}

fn command_line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        let _ = write!(line, " {}", arg.to_string_lossy());
    }
    line
}

/// The last 30 lines, as an error message shows them.
pub(crate) fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let from = lines.len().saturating_sub(30);
    lines[from..].iter().fold(String::new(), |text, line| text + "\n  | " + line)
}
