//! Live output of a running job, and the reason why a job is not running. Both are for display only.
//!
//! `condor_tail` and `condor_q -better-analyze` select a job by its id alone, and ids are reused when a schedd's queue
//! begins anew. So the schedd is queried for the id and start date of the HTCJob's job right before, and once again
//! after the first output.

use std::sync::Arc;
use std::time::Duration;

use htc_machine::facts::{QueryError, QueryErrorKind};
use htc_machine::text::{MAX_MESSAGE, sanitize, sanitize_lines};
use htc_machine::{Index, JobId, SchedDate, Uid};
use tokio::sync::mpsc;

use super::row::Row;
use super::schedd::{QUEUE_TOOL, Schedd, unknown};
use super::tools::{Listener, ToolError};

/// Tool that reads a file of a running job.
const TAIL: &str = "condor_tail";
/// Number of bytes that makes `condor_tail` start at byte 0. It starts that many bytes before the end of a file, and
/// does not print that position; no file is this large.
const WHOLE: u64 = i64::MAX.unsigned_abs();
/// Maximum time for which one call follows a job.
const FOLLOWED: Duration = Duration::from_secs(6 * 3600);
/// Maximum number of parts queued for a slow reader.
const PARTS: usize = 16;
/// Maximum bytes of an analysis: some lines for each clause of the job's requirements.
const ANALYSIS: usize = 256 * 1024;

/// Part of a running job's file to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailRange {
    /// The whole file.
    All,
    /// The last bytes of the file, this many at most. The position of the first one is unknown.
    Last(u64),
}

/// An output stream of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    #[default]
    Out,
    Err,
}

impl TailRange {
    const fn back(self) -> u64 {
        match self {
            Self::All => WHOLE,
            Self::Last(bytes) => bytes,
        }
    }
}

impl Stream {
    /// Returns the name of the stream's file in the job's output.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
        }
    }

    /// Returns the name of the file while the job runs. `condor_tail` gets this name instead of its own option for
    /// standard output. With that option, starters of HTCondor 25 send parts of the stream repeatedly when it is
    /// followed (seen with 25.14), and they do not say at which byte their answer begins.
    const fn on_its_node(self) -> &'static str {
        match self {
            Self::Out => "_condor_stdout",
            Self::Err => "_condor_stderr",
        }
    }
}

/// A run of a job that is in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
struct QueuedRun {
    id: JobId,
    /// Date of its last start, by the schedd's clock.
    start: Option<SchedDate>,
}

/// Live output of a running job.
pub struct Tail {
    /// Start of the run, by the schedd's clock.
    pub start: Option<SchedDate>,
    /// Parts of the output. The channel ends with the run, or with an error.
    pub parts: mpsc::Receiver<Result<Vec<u8>, QueryError>>,
}

impl Schedd {
    /// Returns this job's id and last start if it is in the queue with one of these `JobStatus`.
    async fn queued(&self, uid: &Uid, index: Index, statuses: &str) -> Result<Option<QueuedRun>, QueryError> {
        let mine = self.my_jobs_of(std::slice::from_ref(uid)).await?;
        let which = format!("{mine} && HTCJobIndex =?= {index} && member(JobStatus, {{{statuses}}})");
        let mut found: Vec<QueuedRun> = Vec::new();
        let each = |row: &Row| found.extend(row.job_id().map(|id| QueuedRun { id, start: row.run_start() }));
        self.each_queued(&which, "ClusterId,ProcId,JobCurrentStartDate", self.tools.limit, None, each).await?;
        // A late job of an earlier attempt may also be in the queue.
        Ok(found.into_iter().max_by_key(|job| (job.id.cluster, job.id.proc)))
    }

    /// Returns the output of this job so far, if it is running. With `follow` it continues until the run ends. The
    /// amount is unlimited: drop the receiver to stop.
    pub async fn tail(
        self: &Arc<Self>,
        uid: &Uid,
        index: Index,
        stream: Stream,
        extent: TailRange,
        follow: bool,
    ) -> Result<Option<Tail>, QueryError> {
        let Some(run) = self.queued(uid, index, "2,6,7").await? else { return Ok(None) };
        let (parts, mut read) = mpsc::channel::<Vec<u8>>(PARTS);
        let (sender, receiver) = mpsc::channel(PARTS);
        let (tools, name) = (self.tools.clone(), self.name.clone());
        let (id_text, back) = (run.id.to_string(), extent.back().to_string());
        let failed = sender.clone();
        let call = async move {
            let mut arguments = vec!["-name", name.as_str(), "-maxbytes", &back, "-no-stdout"];
            if follow {
                arguments.push("-follow");
            }
            arguments.extend([id_text.as_str(), stream.on_its_node()]);
            let limit = if follow { FOLLOWED } else { tools.limit };
            let why = match tools.ask_streaming(TAIL, &arguments, limit, Listener::Channel(&parts)).await {
                Ok(output) if output.status == Some(0) => None,
                Ok(output) => Some(sanitize(&output.stderr, MAX_MESSAGE)),
                // The reader has dropped the receiver.
                Err(ToolError::TooMuch { .. }) => None,
                Err(error) => Some(error.to_string()),
            };
            // A job that ends while it is followed is no failure of the tool.
            if let Some(why) = why.filter(|_| !follow) {
                let message = format!("HTCondor cannot show what the job has written: {why}");
                let _ = failed.send(Err(unknown(QueryErrorKind::ScheddUnreachable, message))).await;
            }
        };
        let (again, uid) = (Arc::clone(self), uid.clone());
        tokio::spawn(async move {
            let pass_on = async {
                let mut sure = false;
                while let Some(part) = read.recv().await {
                    if !sure {
                        match again.queued(&uid, index, "2,4,6,7").await {
                            Ok(Some(now)) if now == run => sure = true,
                            Ok(_) => return,
                            Err(unknown) => return drop(sender.send(Err(unknown)).await),
                        }
                    }
                    if sender.send(Ok(part)).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                // Dropping the call kills the tool.
                () = async { tokio::join!(call, pass_on); } => {}
                () = sender.closed() => {}
            }
        });
        Ok(Some(Tail { start: run.start, parts: receiver }))
    }

    /// Returns HTCondor's explanation why this job does not run, or none if it is not idle.
    pub async fn analyze(&self, uid: &Uid, index: Index) -> Result<Option<String>, QueryError> {
        let Some(QueuedRun { id, .. }) = self.queued(uid, index, "1").await? else { return Ok(None) };
        let (name, id_text) = (self.name.as_str(), id.to_string());
        let arguments = ["-name", name, "-better-analyze", &id_text];
        let output = self.ask(QUEUE_TOOL, &arguments, self.tools.limit, ANALYSIS).await?;
        let still = self.queued(uid, index, "1,2,4,5,6,7").await?.is_some_and(|now| now.id == id);
        Ok(still.then(|| sanitize_lines(String::from_utf8_lossy(&output.stdout).trim())))
    }
}
