//! What a job writes to standard output and standard error: of one that runs from its node, of one that has ended from the volume,
//! and of one that ends meanwhile from the one and then the other, at the byte where it had come to. What is shown is of one run: when
//! HTCondor starts the job again, the log ends.
//!
//! HTCondor cannot be asked for a part of what a job that runs has written: it sends all of it, or the end of it without saying where
//! that begins. So of such a job the beginning is shown, up to a limit, or the last lines.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::log_query::LogQuery;
use super::{Found, Jobs};
use crate::backends;
use crate::condor::tail::{Extent, Stream, Tail};
use crate::machine::facts::Unknown;
use crate::procs::State;
use crate::procs::answer::Failure;
use crate::workers::written;

/// Bytes that are read at once.
pub(super) const PART: usize = 256 * 1024;
/// Pause between two looks at a job whose output is on its way.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the output of a job that has ended is waited for.
const ARRIVAL: Duration = Duration::from_secs(10 * 60);
/// What a job has written before it was asked for has come when nothing more comes for so long.
const BACKLOG: Duration = Duration::from_millis(500);
/// How long that takes at most, of a job that writes without a pause. The front waits longer for an answer.
const BACKLOG_IN_ALL: Duration = Duration::from_secs(40);
/// How long the first part is waited for.
const FIRST: Duration = Duration::from_secs(10);
/// Most bytes that `tailLines` looks back.
const LOOK_BACK: usize = 4 * 1024 * 1024;
/// Most bytes that HTCondor is made to send of a job that runs: as many as come within the time limit of a tool.
const SENT: u64 = 1 << 28;
/// Longest time between looks at whether a job that is followed still runs.
pub(super) const LOOK: Duration = Duration::from_secs(5);

/// The header that says of which run the log is: how often HTCondor had started the job.
const ATTEMPT: &str = "x-htc-attempt";
/// The header that says when that run began: who goes on where a log has ended asks for this run.
const RUN: &str = "x-htc-run";
/// The header that says at which byte of the file the log begins, if that is known.
const OFFSET: &str = "x-htc-offset";
/// The header that says when the first line was written from which the bytes are counted, where that may be another one later.
const FIRST_LINE: &str = "x-htc-first-line";

/// Of what a log is. Known once it has begun.
#[derive(Clone, Copy, Debug, Default)]
struct LogStart {
    run: Option<Timestamp>,
    offset: Option<u64>,
    first_line: Option<Timestamp>,
}

/// Answers with the log.
pub(super) async fn log(jobs: &Jobs, user: &str, found: Found, wanted: LogQuery) -> Result<HttpResponse, Failure> {
    if backends::has_logs(found.parent.backend()) && wanted.stream == Stream::Err {
        let (name, backend) = (found.proc.name.name(), found.parent.backend());
        // Not 400, which says that there is no log now: who follows would wait for it.
        return Err(Failure::invalid(format!(
            "{name} has backend {backend}, where standard output and standard error are in one log: ask for stream=out"
        )));
    }
    let attempt = found.proc.status.attempts;
    let (parts, receiver) = mpsc::channel(4);
    let mut source = Source {
        jobs: jobs.clone(),
        user: user.to_owned(),
        start: wanted.run.or_else(|| began(&found)),
        begins: Arc::default(),
        offset: wanted.tail_lines.is_none().then_some(wanted.offset),
        first_line: wanted.first_line,
        found,
        wanted,
        at: wanted.offset,
        left: wanted.limit_bytes,
        parts,
        told: false,
        shown: false,
    };
    let begins = Arc::clone(&source.begins);
    let mut first = receiver;
    let work = async move {
        let result = source.run().await;
        if let Err(failure) = result {
            let _ = source.parts.send(Err(failure)).await;
        }
    };
    let work = EndWith(tokio::spawn(work.in_current_span()));
    // The first part tells whether there is a log at all.
    let Some(part) = first.recv().await else {
        return Ok(HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(""));
    };
    let part = part?;
    let rest = futures::stream::unfold((first, work), |(mut parts, work)| async move {
        match parts.recv().await? {
            Ok(part) => Some((Ok(part), (parts, work))),
            // Who reads must not take it for the end.
            Err(failure) => {
                tracing::info!(why = failure.message, "a log ends in the middle");
                Some((Err(std::io::Error::other(failure.message)), (parts, work)))
            }
        }
    });
    let all = futures::StreamExt::chain(futures::stream::iter([Ok(part)]), rest);
    let mut response = HttpResponse::Ok();
    response.content_type("text/plain; charset=utf-8").insert_header((ATTEMPT, attempt.to_string()));
    let LogStart { run, offset, first_line } = begins.get().copied().unwrap_or_default();
    if let Some(run) = run {
        response.insert_header((RUN, run.to_string()));
    }
    if let Some(offset) = offset {
        response.insert_header((OFFSET, offset.to_string()));
    }
    if let Some(first_line) = first_line {
        response.insert_header((FIRST_LINE, first_line.to_string()));
    }
    Ok(response.streaming(super::in_span(all)))
}

/// Ends a task when it is dropped: a client that leaves is no longer worked for.
struct EndWith(tokio::task::JoinHandle<()>);

impl Drop for EndWith {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) struct Source {
    pub(super) jobs: Jobs,
    /// Who reads it.
    user: String,
    pub(super) found: Found,
    /// When the run began that is shown.
    start: Option<Timestamp>,
    pub(super) wanted: LogQuery,
    /// The next byte of the file.
    pub(super) at: u64,
    left: Option<u64>,
    pub(super) parts: mpsc::Sender<Result<Bytes, Failure>>,
    /// Something was sent, if only that there is a log.
    pub(super) told: bool,
    /// Something of the file was sent: from there it goes on.
    pub(super) shown: bool,
    /// The byte of the file that comes first, if that is known.
    offset: Option<u64>,
    /// When the first line was written that a backend had: from there the bytes are counted.
    pub(super) first_line: Option<Timestamp>,
    /// Of what the log is, for the head of the answer.
    begins: Arc<OnceLock<LogStart>>,
}

impl Source {
    async fn run(&mut self) -> Result<(), Failure> {
        let mut ended: Option<tokio::time::Instant> = None;
        loop {
            if self.began_again(began(&self.found)) {
                return self.is_over();
            }
            let status = &self.found.proc.status;
            let is_backends = backends::has_logs(self.found.parent.backend());
            match status.state {
                State::Succeeded | State::Failed if status.output_fetched => return self.show_stored().await,
                // Until it is kept the backend has it; and where it cannot be kept, for as long as it has it.
                State::Succeeded | State::Failed | State::Removed if is_backends => return self.show_backends().await,
                // Of a job that has ended and of which the backend has not said yet what that means, too.
                State::Idle if is_backends && !self.told => return self.show_backends().await,
                State::Succeeded | State::Failed if self.wanted.follow => {
                    let waited = ended.get_or_insert_with(tokio::time::Instant::now).elapsed();
                    if waited >= ARRIVAL {
                        return Err(self.not_here_yet());
                    }
                    // The front waits for an answer only so long.
                    if waited >= LOOK {
                        self.begin().await?;
                    }
                }
                State::Succeeded | State::Failed => return Err(self.not_here_yet()),
                State::Running => {
                    self.show_running().await?;
                    // A backend does not say where in the log the last lines are: nobody could go on from there.
                    let no_more = is_backends && self.wanted.tail_lines.is_some();
                    if self.left == Some(0) || (!self.wanted.follow || no_more) && self.told {
                        return Ok(());
                    }
                }
                _ if self.told => return Ok(()),
                state => {
                    let (name, attempts) = (self.found.proc.name.name(), self.found.proc.status.attempts);
                    return Err(Failure::bad_request(no_log(&name, state, attempts)));
                }
            }
            if self.parts.is_closed() {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
            self.look().await?;
        }
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let name = self.found.proc.name.name();
        self.found = self.jobs.find(&self.found.parent.namespace.clone(), &name).await?;
        Ok(())
    }

    /// The run that was shown is over. Who has asked for just this one is told that there is another one.
    fn is_over(&self) -> Result<(), Failure> {
        if self.told || self.wanted.run.is_none() {
            return Ok(());
        }
        let name = self.found.proc.name.name();
        Err(Failure::conflict(format!("{name} was started again: what it has written since begins anew")))
    }

    fn not_here_yet(&self) -> Failure {
        let name = self.found.proc.name.name();
        Failure::unavailable(format!("{name} has ended and its output has not arrived yet: try again"))
    }

    async fn show_stored(&mut self) -> Result<(), Failure> {
        let folder =
            self.jobs.planner.job_output(&self.found.parent.htcjob(), &self.found.parent.uid, self.found.index);
        let (what, index) = (self.wanted.stream.file(), self.found.index);
        let path = self
            .jobs
            .volume
            .step(move || written(&folder, what, index).ok_or_else(|| std::io::ErrorKind::NotFound.into()));
        let (file, length) = self.jobs.volume.opened(path.await?).await?;
        if self.at > length && !self.told && backends::has_logs(self.found.parent.backend()) {
            let (name, at) = (self.found.proc.name.name(), self.at);
            return Err(Failure::expired(format!(
                "{length} bytes of the log of {name} are kept, and {at} were read before: what it has written since may be missing"
            )));
        }
        if let Some(lines) = self.wanted.tail_lines.filter(|_| !self.shown) {
            let from = length.saturating_sub(LOOK_BACK as u64);
            let end = self.jobs.volume.read(&file, from, LOOK_BACK).await?;
            let start = last_lines(&end, lines);
            self.at = from + start as u64;
            self.offset = Some(self.at);
        }
        loop {
            let part = self.jobs.volume.read(&file, self.at, PART).await?;
            self.at += part.len() as u64;
            if part.is_empty() || !self.send(&part).await {
                return self.begin().await;
            }
        }
    }

    async fn show_running(&mut self) -> Result<(), Failure> {
        if backends::has_logs(self.found.parent.backend()) {
            return self.show_backends().await;
        }
        if self.at >= SENT {
            return Err(self.too_much());
        }
        let schedd = self.jobs.schedd(&self.found.parent)?;
        let _turn = self.jobs.turns.log(&self.user).await?;
        let unavailable = |unknown: Unknown| Failure::unavailable(unknown.message);
        let (uid, stream, follow) = (&self.found.parent.uid, self.wanted.stream, self.wanted.follow);
        let last_lines_of = self.wanted.tail_lines.filter(|_| !self.shown);
        // Where the last lines are matters only to who goes on from there.
        let extent = if last_lines_of.is_some() && !follow { Extent::Last(LOOK_BACK as u64) } else { Extent::All };
        let tail = schedd.tail(uid, self.found.index, stream, extent, follow).await.map_err(unavailable)?;
        let Some(Tail { start, mut parts }) = tail else { return Ok(()) };
        // What the ledger knows of the run may be late: without HTCondor's word an interruption right now would not be seen.
        let start = start.and_then(|date| Timestamp::from_second(date.0).ok());
        if !self.told && self.wanted.run.is_none() {
            self.start = start.or(self.start);
        } else if self.began_again(start) {
            return self.is_over();
        }
        // The next byte that comes.
        let mut next = 0;
        if let Some(lines) = last_lines_of {
            let most = follow.then_some(BACKLOG_IN_ALL);
            let backlog = Backlog::read(&mut parts, most).await.map_err(unavailable)?;
            if backlog.total > SENT {
                return Err(self.too_much());
            }
            (next, self.at) = (backlog.total, backlog.total);
            let from = last_lines(&backlog.kept, lines);
            // Of the end of a file alone it is not known where it begins.
            self.offset = follow.then(|| backlog.total - (backlog.kept.len() - from) as u64);
            if !self.send(&backlog.kept[from..]).await {
                return Ok(());
            }
        }
        loop {
            tokio::select! {
                part = parts.recv() => {
                    let Some(part) = part else { return self.begin().await };
                    let part = part.map_err(unavailable)?;
                    let end = next + part.len() as u64;
                    // What was sent already is not sent again.
                    let new = usize::try_from(self.at.saturating_sub(next)).unwrap_or(usize::MAX).min(part.len());
                    next = end;
                    if new < part.len() && !self.send(&part[new..]).await {
                        return Ok(());
                    }
                    self.at = self.at.max(end);
                    if next >= SENT {
                        return Err(self.too_much());
                    }
                }
                () = tokio::time::sleep(LOOK) => {
                    self.begin().await?;
                    self.look().await?;
                    if self.found.proc.status.state != State::Running || self.began_again(began(&self.found)) {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn too_much(&self) -> Failure {
        Failure::bad_request(format!(
            "{} runs, and of a job that runs no more than {SENT} bytes of its log can be read: wait until it has ended, or ask for its \
             last lines only, without following it",
            self.found.proc.name.name()
        ))
    }

    /// Whether HTCondor has begun the job again since the log began, if this is when it did last. Its count of starts does not tell: it
    /// comes a moment later (seen with 23.9 and 25.14), and never if the run was over by then (23.9).
    fn began_again(&mut self, last: Option<Timestamp>) -> bool {
        last.is_some_and(|last| last > *self.start.get_or_insert(last))
    }

    /// There is a log, if an empty one.
    pub(super) async fn begin(&mut self) -> Result<(), Failure> {
        if !self.told {
            self.tells();
            let _ = self.parts.send(Ok(Bytes::new())).await;
        }
        Ok(())
    }

    /// What the answer is of is known by now.
    fn tells(&mut self) {
        self.told = true;
        let _ = self.begins.set(LogStart { run: self.start, offset: self.offset, first_line: self.first_line });
    }

    /// Whether more is wanted.
    pub(super) async fn send(&mut self, part: &[u8]) -> bool {
        let most = self.left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let part = &part[..part.len().min(most)];
        self.left = self.left.map(|left| left.saturating_sub(part.len() as u64));
        self.tells();
        self.shown = true;
        self.parts.send(Ok(Bytes::copy_from_slice(part))).await.is_ok() && self.left != Some(0)
    }
}

/// Why there is nothing, and what to do.
fn no_log(name: &str, state: State, attempts: u32) -> String {
    let none = format!("{name} is {state}: it has no log");
    let unreadable = "what its last run has written cannot be read: HTCondor drops what a run that it interrupts has written, and keeps to \
                      itself that of a run that ended by itself";
    match state {
        State::Held if attempts > 0 => {
            format!("{none}, and {unreadable}. Release the job, and read what its next run writes")
        }
        State::Held => format!("{none}, because it was not started yet. Release it, and read its log when it runs"),
        State::Idle if attempts > 0 => {
            format!("{none} until it runs again, and {unreadable}. Read what its next run writes")
        }
        _ => none,
    }
}

/// When the job was started last, as far as the ledger knows.
fn began(found: &Found) -> Option<Timestamp> {
    found.proc.status.start_time.as_ref()?.parse().ok()
}

/// What a job had written when it was asked for.
struct Backlog {
    total: u64,
    /// The end of it.
    kept: Vec<u8>,
}

impl Backlog {
    /// `most`: how long it is read at most, of a log that does not end.
    async fn read(
        parts: &mut mpsc::Receiver<Result<Vec<u8>, Unknown>>,
        most: Option<Duration>,
    ) -> Result<Self, Unknown> {
        let mut backlog = Self { total: 0, kept: Vec::new() };
        let begun = tokio::time::Instant::now();
        let mut silent = most.map(|most| begun + FIRST.min(most));
        loop {
            let part = match silent {
                None => parts.recv().await,
                Some(until) if until <= tokio::time::Instant::now() => return Ok(backlog),
                Some(until) => match tokio::time::timeout_at(until, parts.recv()).await {
                    Ok(part) => part,
                    Err(_) => return Ok(backlog),
                },
            };
            let Some(part) = part else { return Ok(backlog) };
            let part = part?;
            backlog.total += part.len() as u64;
            backlog.kept.extend_from_slice(&part);
            if backlog.total > SENT {
                return Ok(backlog);
            }
            let excess = backlog.kept.len().saturating_sub(LOOK_BACK);
            backlog.kept.drain(..excess);
            silent = most.map(|most| (tokio::time::Instant::now() + BACKLOG).min(begun + most));
        }
    }
}

/// Where the last so many lines begin.
fn last_lines(text: &[u8], lines: usize) -> usize {
    if lines == 0 {
        return text.len();
    }
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    breaks.take(lines).nth(lines - 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        let text = b"one\ntwo\nthree\n";
        let last = |lines| &text[last_lines(text, lines)..];
        assert_eq!(last(0), b"");
        assert_eq!(last(1), b"three\n");
        assert_eq!(last(2), b"two\nthree\n");
        assert_eq!(last(7), text);
        assert_eq!(&b"a\nb"[last_lines(b"a\nb", 1)..], b"b", "a line that has not ended is one");
    }

    #[test]
    fn why_a_job_has_no_log_is_said() {
        let (unreadable, release, not_started) =
            ("HTCondor drops what a run that it interrupts", "Release", "not started");
        let again = "until it runs again";
        for state in State::VARIANTS {
            for attempts in [0, 1, 2] {
                let said = no_log("fit-0", *state, attempts);
                let expected: &[&str] = match (state, attempts) {
                    (State::Held, 0) => &[not_started, release],
                    (State::Held, _) => &[unreadable, release],
                    (State::Idle, 1..) => &[again, unreadable],
                    _ => &[],
                };
                let none = format!("fit-0 is {state}: it has no log");
                assert!(said.starts_with(&none) && (said == none) == expected.is_empty(), "{said}");
                for part in [again, unreadable, release, not_started] {
                    assert_eq!(
                        said.contains(part),
                        expected.contains(&part),
                        "{part:?} of {attempts} attempts: {said}"
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn of_a_job_that_always_writes_the_last_lines_come_too() {
        let (sender, mut parts) = mpsc::channel(1);
        let writes = tokio::spawn(async move { while sender.send(Ok(b"line\n".to_vec())).await.is_ok() {} });
        let most = Duration::from_millis(20);
        let read = tokio::time::timeout(Duration::from_secs(60), Backlog::read(&mut parts, Some(most))).await;
        let backlog = read.expect("it goes on for as long as the job does").unwrap();
        assert!(backlog.total > 0 && backlog.kept.ends_with(b"line\n"));
        writes.abort();
    }
}
