//! The log of a job as its backend has it: until it is kept, and while the job runs. A backend begins a log at its first byte or at its last
//! lines; what comes before the byte that is wanted is left out here.

use futures::AsyncReadExt as _;
use jiff::Timestamp;

use super::log::{PART, Source};
use crate::backends;
use crate::procs::answer::Failure;
use crate::workers::{Log, LogPart, LogSource, NoLog};

impl Source {
    /// Shows what the job has written; if that is wanted, until it ends.
    pub(super) async fn show_backends(&mut self) -> Result<(), Failure> {
        let name = self.found.proc.name.name();
        let Some(id) = self.found.proc.status.id.clone() else {
            let state = self.found.proc.status.state;
            return Err(Failure::bad_request(format!("{name} is {state}, and nothing runs it: it has no log")));
        };
        let logs = backends::logs(&self.jobs.client, &self.jobs.records.ledger, &self.found.parent).await?;
        let Some(logs) = logs else { return Err(self.no_log(&id, NoLog::Gone)) };
        let tail_lines = self.wanted.tail_lines.filter(|_| !self.shown);
        let from = if tail_lines.is_some() { 0 } else { self.at };
        // If it is not known from which line bytes were counted, it is seen first how far they go.
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
                // Who follows is told at once that there is a log, if an empty one.
                () = tokio::time::sleep(super::log::LOOK), if !self.told => {
                    self.begin().await?;
                    continue;
                }
                () = self.parts.closed() => return Ok(()),
            };
            let came = came.map_err(|error| Failure::unavailable(format!("the log of {id} has ended: {error}")))?;
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
            // What was sent is not sent again, be it from the backend or from the volume. Where the last lines are in the log is not known.
            if tail_lines.is_none() {
                self.at = self.at.max(next);
            }
            if skipped < came && !self.send(&buffer[skipped..came]).await {
                return Ok(());
            }
        }
    }

    /// What was read before is not the beginning of what there is.
    fn is_cut(&self, id: &str) -> Failure {
        let (name, at) = (self.found.proc.name.name(), self.at);
        Failure::expired(format!(
            "the node of {id} no longer has the beginning of the log of {name}, of which {at} bytes were read before: lines may be missing. \
             What it still has comes without the parameter offset"
        ))
    }

    fn no_log(&self, id: &str, why: NoLog) -> Failure {
        let name = self.found.proc.name.name();
        match why {
            NoLog::Gone => {
                Failure::not_found(format!("the log of {name} is not kept, and {id} is gone: its log went with it"))
            }
            NoLog::Nothing => Failure::bad_request(format!("{name} has no log yet: {id} has come to no node")),
            NoLog::NotYet(why) => Failure::bad_request(format!("{name} has no log yet: {why}")),
            NoLog::Failed(why) => Failure::unavailable(why),
        }
    }
}

/// The log, and when its first line was written. If that is another one afterwards, it is not known which of the two was opened.
async fn open(logs: &dyn LogSource, id: &str, wanted: LogPart) -> Result<(Log, Option<Timestamp>), NoLog> {
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

    /// When the first line was written, each time that is asked; and how often the log was opened.
    struct Begins(Mutex<(VecDeque<Option<Timestamp>>, u32)>);

    impl LogSource for Begins {
        fn open<'a>(&'a self, _: &'a str, _: LogPart) -> BoxFuture<'a, Result<Log, NoLog>> {
            self.0.lock().unwrap().1 += 1;
            futures::future::ready(Ok(Box::pin(futures::io::empty()) as Log)).boxed()
        }

        fn first_line<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Timestamp>, NoLog>> {
            futures::future::ready(self.0.lock().unwrap().0.pop_front().ok_or(NoLog::Gone)).boxed()
        }
    }

    #[tokio::test]
    async fn a_log_that_is_begun_anew_while_it_is_opened_is_opened_again() {
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
