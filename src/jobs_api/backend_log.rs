//! Log of a job as its backend has it: while the job runs, and until its output is stored. A backend starts a log at
//! its first byte or at its last lines. What comes before the requested byte is skipped here.

use futures::AsyncReadExt as _;
use jiff::Timestamp;

use super::log::{LogSession, PART};
use crate::backends;
use crate::backends::kept_logs::{LogPart, LogSource, LogStream, NoLog};
use crate::jobs_api::resource::status_error::StatusError;

impl LogSession {
    /// Sends what the job has written; if `follow` is requested, until it ends.
    pub(super) async fn show_backends(&mut self) -> Result<(), StatusError> {
        let name = self.job.proc.name.name();
        let Some(id) = self.job.proc.status.id.clone() else {
            let state = self.job.proc.status.state;
            return Err(StatusError::bad_request(format!("{name} is {state}, and nothing runs it: it has no log")));
        };
        let logs = backends::log_source(&self.jobs.client, &self.jobs.records.ledger, &self.job.parent).await?;
        let Some(logs) = logs else { return Err(self.no_log(&id, NoLog::Gone)) };
        let tail_lines = self.wanted.tail_lines.filter(|_| !self.content_sent);
        let from = if tail_lines.is_some() { 0 } else { self.position };
        // If the first line of the log is not known, the log is first read without following it, to find its length.
        let follow = self.wanted.follow && (from == 0 || self.first_line.is_some());
        let opened = open(&*logs, &id, LogPart { follow, tail_lines, limit_bytes: None }).await;
        let (mut log, first_line) = opened.map_err(|why| self.no_log(&id, why))?;
        if tail_lines.is_none() {
            if from > 0 && self.first_line.is_some() && self.first_line != first_line {
                return Err(self.is_cut(&id));
            }
            self.first_line = first_line;
        }
        let (mut next, mut buffer) = (0_u64, vec![0; PART]);
        loop {
            let came = tokio::select! {
                came = log.read(&mut buffer) => came,
                // A client that follows learns at once that there is a log, if an empty one.
                () = tokio::time::sleep(super::log::LOOK), if !self.head_sent => {
                    self.begin().await?;
                    continue;
                }
                () = self.parts.closed() => return Ok(()),
            };
            let came = came.map_err(|error| StatusError::unavailable(format!("the log of {id} has ended: {error}")))?;
            if came == 0 && next < from {
                return Err(self.is_cut(&id));
            }
            if came == 0 {
                return self.begin().await;
            }
            if self.first_line.is_none() && tail_lines.is_none() {
                self.first_line = logs.first_line(&id).await.ok().flatten();
            }
            let skipped = usize::try_from(from.saturating_sub(next)).unwrap_or(usize::MAX).min(came);
            next += came as u64;
            // Bytes that were sent, from the backend or from the volume, are not sent again. The position of the last
            // lines in the log is not known.
            if tail_lines.is_none() {
                self.position = self.position.max(next);
            }
            if skipped < came && !self.send(&buffer[skipped..came]).await {
                return Ok(());
            }
        }
    }

    /// Returns the error that bytes read before are not the beginning of the present log.
    fn is_cut(&self, id: &str) -> StatusError {
        let (name, at) = (self.job.proc.name.name(), self.position);
        StatusError::expired(format!(
            "the node of {id} no longer has the beginning of the log of {name}, of which {at} bytes were read before: lines may be missing. \
             What it still has comes without the parameter offset"
        ))
    }

    fn no_log(&self, id: &str, why: NoLog) -> StatusError {
        let name = self.job.proc.name.name();
        match why {
            NoLog::Gone => {
                StatusError::not_found(format!("the log of {name} is not kept, and {id} is gone: its log went with it"))
            }
            NoLog::Nothing => StatusError::bad_request(format!("{name} has no log yet: {id} has come to no node")),
            NoLog::NotYet(why) => StatusError::bad_request(format!("{name} has no log yet: {why}")),
            NoLog::Failed(why) => StatusError::unavailable(why),
        }
    }
}

/// Opens the log, and returns when its first line was written. If that differs afterwards, it is not known which of
/// the two logs was opened.
async fn open(logs: &dyn LogSource, id: &str, wanted: LogPart) -> Result<(LogStream, Option<Timestamp>), NoLog> {
    if wanted.tail_lines.is_some() {
        return Ok((logs.open(id, wanted).await?, None));
    }
    let mut before = logs.first_line(id).await?;
    loop {
        let log = logs.open(id, wanted).await?;
        let first_line = logs.first_line(id).await?;
        if before.is_none() || before == first_line {
            return Ok((log, first_line));
        }
        before = first_line;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use futures::FutureExt as _;
    use futures::future::BoxFuture;

    use super::*;

    /// When the first line was written, for each query; and how often the log was opened.
    struct Begins(Mutex<(VecDeque<Option<Timestamp>>, u32)>);

    impl LogSource for Begins {
        fn open<'a>(&'a self, _: &'a str, _: LogPart) -> BoxFuture<'a, Result<LogStream, NoLog>> {
            self.0.lock().unwrap().1 += 1;
            futures::future::ready(Ok(Box::pin(futures::io::empty()) as LogStream)).boxed()
        }

        fn first_line<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Timestamp>, NoLog>> {
            futures::future::ready(self.0.lock().unwrap().0.pop_front().ok_or(NoLog::Gone)).boxed()
        }
    }

    #[tokio::test]
    async fn log_that_restarts_while_opening_is_reopened() {
        let at = |second| Timestamp::from_second(second).ok();
        for (begins, opened) in
            [(vec![at(1), at(1)], 1), (vec![None, at(1)], 1), (vec![at(0), at(1), at(1)], 2), (vec![None, None], 1)]
        {
            let last = *begins.last().unwrap();
            let logs = Begins(Mutex::new((begins.into(), 0)));
            let Ok((_, first_line)) = open(&logs, "a-0-xyz", LogPart::default()).await else { panic!("it is there") };
            assert_eq!((first_line, logs.0.lock().unwrap().1), (last, opened));
        }
    }
}
