//! Standard output and standard error of a job. For a running job they come from its node, for an ended job from the
//! volume. If the job ends meanwhile, the log continues from the volume at the same byte. A log is of one run: when
//! HTCondor starts the job again, it ends.
//!
//! HTCondor cannot be asked for a part of a running job's output: it sends all of it, or the end of it without its
//! position. So for such a job the beginning is sent, up to a limit, or the last lines.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use htc_api::htcproc::State;
use htc_machine::facts::QueryError;
use htcondor::tail::{Stream, Tail, TailRange};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::log_query::LogQuery;
use super::{FoundJob, JobsService};
use crate::backends;
use crate::jobs_api::resource::status_error::StatusError;
use crate::output::incoming::written;

/// Bytes read at once.
pub(super) const PART: usize = 256 * 1024;
/// Pause between two checks of a job whose output is on its way.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum time to wait for the output of a job that has ended.
const ARRIVAL: Duration = Duration::from_secs(10 * 60);
/// Time without new output after which the backlog (what the job had written before the request) counts as complete.
const BACKLOG: Duration = Duration::from_millis(500);
/// Maximum time to read the backlog of a job that writes without a pause. The front waits longer for an answer.
const BACKLOG_IN_ALL: Duration = Duration::from_secs(40);
/// Maximum time to wait for the first part.
const FIRST: Duration = Duration::from_secs(10);
/// Maximum bytes that `tailLines` looks back.
const LOOK_BACK: usize = 4 * 1024 * 1024;
/// Maximum bytes that HTCondor is made to send of a running job: as many as arrive within the time limit of a tool.
const SENT: u64 = 1 << 28;
/// Maximum time between two checks whether a followed job still runs.
pub(super) const LOOK: Duration = Duration::from_secs(5);

/// Header with the number of the run: how often HTCondor had started the job.
const ATTEMPT: &str = "x-htc-attempt";
/// Header with the start time of that run. A client that continues where a log has ended requests this run.
const RUN: &str = "x-htc-run";
/// Header with the byte of the file at which the log begins, if that is known.
const OFFSET: &str = "x-htc-offset";
/// Header with the time of the line from which bytes are counted, where that may be another line later.
const FIRST_LINE: &str = "x-htc-first-line";

/// Metadata of a log, known when its first bytes are sent.
#[derive(Clone, Copy, Debug, Default)]
struct LogStart {
    run: Option<Timestamp>,
    offset: Option<u64>,
    first_line: Option<Timestamp>,
}

/// Answers with the log.
pub(super) async fn log(
    jobs: &JobsService,
    user: &str,
    found: FoundJob,
    wanted: LogQuery,
) -> Result<HttpResponse, StatusError> {
    if backends::has_logs(found.parent.backend()) && wanted.stream == Stream::Err {
        let (name, backend) = (found.proc.name.name(), found.parent.backend());
        // Not 400, which means that there is no log now: a client that follows would wait for it.
        return Err(StatusError::invalid(format!(
            "{name} has backend {backend}, where standard output and standard error are in one log: ask for stream=out"
        )));
    }
    let attempt = found.proc.status.attempts;
    let (parts, receiver) = mpsc::channel(4);
    let mut source = LogSession {
        jobs: jobs.clone(),
        user: user.to_owned(),
        run_start: wanted.run.or_else(|| began(&found)),
        begins: Arc::default(),
        offset: wanted.tail_lines.is_none().then_some(wanted.offset),
        first_line: wanted.first_line,
        job: found,
        wanted,
        position: wanted.offset,
        remaining: wanted.limit_bytes,
        parts,
        head_sent: false,
        content_sent: false,
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
    // The first part decides whether there is a log at all.
    let Some(part) = first.recv().await else {
        return Ok(HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(""));
    };
    let part = part?;
    let rest = futures::stream::unfold((first, work), |(mut parts, work)| async move {
        match parts.recv().await? {
            Ok(part) => Some((Ok(part), (parts, work))),
            // The client must not take this for the end of the log.
            Err(failure) => {
                tracing::info!(why = failure.message, "log cut short");
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

/// Ends a task when this is dropped: nothing is read for a client that has left.
struct EndWith(tokio::task::JoinHandle<()>);

impl Drop for EndWith {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) struct LogSession {
    pub(super) jobs: JobsService,
    /// User who reads the log.
    user: String,
    pub(super) job: FoundJob,
    /// Start time of the run that is sent.
    run_start: Option<Timestamp>,
    pub(super) wanted: LogQuery,
    /// Next byte of the file.
    pub(super) position: u64,
    remaining: Option<u64>,
    pub(super) parts: mpsc::Sender<Result<Bytes, StatusError>>,
    /// Something was sent, if only that there is a log.
    pub(super) head_sent: bool,
    /// Bytes of the file were sent: the log continues from there.
    pub(super) content_sent: bool,
    /// First byte that is sent, counted in the file, if known.
    offset: Option<u64>,
    /// Time of the first line that the backend had: bytes are counted from there.
    pub(super) first_line: Option<Timestamp>,
    /// Metadata for the headers of the answer.
    begins: Arc<OnceLock<LogStart>>,
}

impl LogSession {
    async fn run(&mut self) -> Result<(), StatusError> {
        let mut ended: Option<tokio::time::Instant> = None;
        loop {
            if self.began_again(began(&self.job)) {
                return self.run_ended();
            }
            let status = &self.job.proc.status;
            let is_backends = backends::has_logs(self.job.parent.backend());
            match status.state {
                State::Succeeded | State::Failed if status.output_fetched => return self.show_stored().await,
                // The backend has the log until it is stored. Where it cannot be stored, the backend has it for as
                // long as it keeps it.
                State::Succeeded | State::Failed | State::Removed if is_backends => return self.show_backends().await,
                // So it is for an ended job whose outcome the backend has not reported yet.
                State::Idle if is_backends && !self.head_sent => return self.show_backends().await,
                State::Succeeded | State::Failed if self.wanted.follow => {
                    let waited = ended.get_or_insert_with(tokio::time::Instant::now).elapsed();
                    if waited >= ARRIVAL {
                        return Err(self.not_here_yet());
                    }
                    // The front waits only so long for an answer.
                    if waited >= LOOK {
                        self.begin().await?;
                    }
                }
                State::Succeeded | State::Failed => return Err(self.not_here_yet()),
                State::Running => {
                    self.show_running().await?;
                    // A backend does not report the position of the last lines: a client could not continue from
                    // there.
                    let no_more = is_backends && self.wanted.tail_lines.is_some();
                    if self.remaining == Some(0) || (!self.wanted.follow || no_more) && self.head_sent {
                        return Ok(());
                    }
                }
                _ if self.head_sent => return Ok(()),
                state => {
                    let (name, attempts) = (self.job.proc.name.name(), self.job.proc.status.attempts);
                    return Err(StatusError::bad_request(no_log(&name, state, attempts)));
                }
            }
            if self.parts.is_closed() {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
            self.look().await?;
        }
    }

    async fn look(&mut self) -> Result<(), StatusError> {
        let name = self.job.proc.name.name();
        self.job = self.jobs.find(&self.job.parent.namespace.clone(), &name).await?;
        Ok(())
    }

    /// Ends the log, as its run is over. A client that has requested just this run gets an error if nothing was sent.
    fn run_ended(&self) -> Result<(), StatusError> {
        if self.head_sent || self.wanted.run.is_none() {
            return Ok(());
        }
        let name = self.job.proc.name.name();
        Err(StatusError::conflict(format!("{name} was started again: what it has written since begins anew")))
    }

    fn not_here_yet(&self) -> StatusError {
        let name = self.job.proc.name.name();
        StatusError::unavailable(format!("{name} has ended and its output has not arrived yet: try again"))
    }

    async fn show_stored(&mut self) -> Result<(), StatusError> {
        let folder = self.jobs.layout.job_output(&self.job.parent.htcjob(), &self.job.parent.uid, self.job.index);
        let (what, index) = (self.wanted.stream.file(), self.job.index);
        let path = self
            .jobs
            .volume
            .step(move || written(&folder, what, index).ok_or_else(|| std::io::ErrorKind::NotFound.into()));
        let (file, length) = self.jobs.volume.opened(path.await?).await?;
        if self.position > length && !self.head_sent && backends::has_logs(self.job.parent.backend()) {
            let (name, at) = (self.job.proc.name.name(), self.position);
            return Err(StatusError::expired(format!(
                "{length} bytes of the log of {name} are kept, and {at} were read before: what it has written since may be missing"
            )));
        }
        if let Some(lines) = self.wanted.tail_lines.filter(|_| !self.content_sent) {
            let from = length.saturating_sub(LOOK_BACK as u64);
            let end = self.jobs.volume.read(&file, from, LOOK_BACK).await?;
            let start = last_lines(&end, lines);
            self.position = from + start as u64;
            self.offset = Some(self.position);
        }
        loop {
            let part = self.jobs.volume.read(&file, self.position, PART).await?;
            self.position += part.len() as u64;
            if part.is_empty() || !self.send(&part).await {
                return self.begin().await;
            }
        }
    }

    async fn show_running(&mut self) -> Result<(), StatusError> {
        if backends::has_logs(self.job.parent.backend()) {
            return self.show_backends().await;
        }
        if self.position >= SENT {
            return Err(self.too_much());
        }
        let schedd = self.jobs.schedd(&self.job.parent)?;
        let _turn = self.jobs.limits.log(&self.user).await?;
        let unavailable = |unknown: QueryError| StatusError::unavailable(unknown.message);
        let (uid, stream, follow) = (&self.job.parent.uid, self.wanted.stream, self.wanted.follow);
        let last_lines_of = self.wanted.tail_lines.filter(|_| !self.content_sent);
        // The position of the last lines matters only to a client that continues from there.
        let extent =
            if last_lines_of.is_some() && !follow { TailRange::Last(LOOK_BACK as u64) } else { TailRange::All };
        let tail = schedd.tail(uid, self.job.index, stream, extent, follow).await.map_err(unavailable)?;
        let Some(Tail { start, mut parts }) = tail else { return Ok(()) };
        // The ledger may learn of a new run late. Without HTCondor's start time an interruption right now would go
        // unnoticed.
        let start = start.and_then(|date| Timestamp::from_second(date.0).ok());
        if !self.head_sent && self.wanted.run.is_none() {
            self.run_start = start.or(self.run_start);
        } else if self.began_again(start) {
            return self.run_ended();
        }
        // Position of the next byte that arrives.
        let mut next = 0;
        if let Some(lines) = last_lines_of {
            let most = follow.then_some(BACKLOG_IN_ALL);
            let backlog = Backlog::read(&mut parts, most).await.map_err(unavailable)?;
            if backlog.total > SENT {
                return Err(self.too_much());
            }
            (next, self.position) = (backlog.total, backlog.total);
            let from = last_lines(&backlog.kept, lines);
            // Of the end of a file alone, the position is not known.
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
                    // Bytes that were sent already are not sent again.
                    let new = usize::try_from(self.position.saturating_sub(next)).unwrap_or(usize::MAX).min(part.len());
                    next = end;
                    if new < part.len() && !self.send(&part[new..]).await {
                        return Ok(());
                    }
                    self.position = self.position.max(end);
                    if next >= SENT {
                        return Err(self.too_much());
                    }
                }
                () = tokio::time::sleep(LOOK) => {
                    self.begin().await?;
                    self.look().await?;
                    if self.job.proc.status.state != State::Running || self.began_again(began(&self.job)) {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn too_much(&self) -> StatusError {
        StatusError::bad_request(format!(
            "{} runs, and of a job that runs no more than {SENT} bytes of its log can be read: wait until it has ended, or ask for its \
             last lines only, without following it",
            self.job.proc.name.name()
        ))
    }

    /// Returns whether HTCondor has started the job again since the log began. `last`: time of its last start.
    /// HTCondor's count of starts cannot be used: it is updated a moment later (seen with 23.9 and 25.14), and never
    /// if the run was over by then (23.9).
    fn began_again(&mut self, last: Option<Timestamp>) -> bool {
        last.is_some_and(|last| last > *self.run_start.get_or_insert(last))
    }

    /// Reports that there is a log, if an empty one.
    pub(super) async fn begin(&mut self) -> Result<(), StatusError> {
        if !self.head_sent {
            self.tells();
            let _ = self.parts.send(Ok(Bytes::new())).await;
        }
        Ok(())
    }

    /// Fixes the metadata of the answer, which are known by now.
    fn tells(&mut self) {
        self.head_sent = true;
        let _ = self.begins.set(LogStart { run: self.run_start, offset: self.offset, first_line: self.first_line });
    }

    /// Sends a part. Returns whether more is wanted.
    pub(super) async fn send(&mut self, part: &[u8]) -> bool {
        let most = self.remaining.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let part = &part[..part.len().min(most)];
        self.remaining = self.remaining.map(|left| left.saturating_sub(part.len() as u64));
        self.tells();
        self.content_sent = true;
        self.parts.send(Ok(Bytes::copy_from_slice(part))).await.is_ok() && self.remaining != Some(0)
    }
}

/// Returns the message why there is no log, and what to do.
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

/// Returns when the job was started last, as recorded in the ledger.
fn began(found: &FoundJob) -> Option<Timestamp> {
    found.proc.status.start_time.as_ref()?.parse().ok()
}

/// Output that a job had written before the request.
struct Backlog {
    total: u64,
    /// End of the output.
    kept: Vec<u8>,
}

impl Backlog {
    /// Reads the backlog. `most`: maximum time for a log that does not end.
    async fn read(
        parts: &mut mpsc::Receiver<Result<Vec<u8>, QueryError>>,
        most: Option<Duration>,
    ) -> Result<Self, QueryError> {
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

/// Returns where the last `lines` lines begin.
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
    fn tail_consists_of_whole_lines() {
        let text = b"one\ntwo\nthree\n";
        let last = |lines| &text[last_lines(text, lines)..];
        assert_eq!(last(0), b"");
        assert_eq!(last(1), b"three\n");
        assert_eq!(last(2), b"two\nthree\n");
        assert_eq!(last(7), text);
        assert_eq!(&b"a\nb"[last_lines(b"a\nb", 1)..], b"b", "a line that has not ended is one");
    }

    #[test]
    fn missing_log_is_explained() {
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
    async fn tail_of_a_continuously_written_log_is_returned() {
        let (sender, mut parts) = mpsc::channel(1);
        let writes = tokio::spawn(async move { while sender.send(Ok(b"line\n".to_vec())).await.is_ok() {} });
        let most = Duration::from_millis(20);
        let read = tokio::time::timeout(Duration::from_secs(60), Backlog::read(&mut parts, Some(most))).await;
        let backlog = read.expect("it goes on for as long as the job does").unwrap();
        assert!(backlog.total > 0 && backlog.kept.ends_with(b"line\n"));
        writes.abort();
    }
}
