//! What a job that runs has written so far, and why one is not running: for people.
//!
//! `condor_tail` and `condor_q -better-analyze` take a job by its id alone, and ids come again when a schedd's queue begins anew. So
//! the schedd is asked which of the HTCJob's jobs has the id, and since when it runs, right before and again once something has come.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::row::Row;
use super::schedd::{QUEUE_TOOL, Schedd, unknown};
use super::tools::{Listener, ToolError};
use crate::api::text::{WORDS, harmless, harmless_lines};
use crate::machine::facts::{Unknown, Why};
use crate::machine::{Index, JobId, SchedDate, Uid};

/// What reads a file of a job that runs.
const TAIL: &str = "condor_tail";
/// `condor_tail` begins so many bytes before the end of a file, and does not say where that is: with more than any file has, at byte 0.
const WHOLE: u64 = i64::MAX.unsigned_abs();
/// Longest time that a job is followed by one call.
const FOLLOWED: Duration = Duration::from_secs(6 * 3600);
/// Most parts that wait for who reads slowly.
const PARTS: usize = 16;
/// Most bytes of an analysis: some lines for each clause of the job's requirements.
const ANALYSIS: usize = 256 * 1024;

/// How much is wanted of a file of a job that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// From its first byte on.
    All,
    /// From so many bytes before its end on, or from its first byte if it has fewer. Which byte that is is not known.
    Last(u64),
}

/// Which of the two a job writes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    #[default]
    Out,
    /// Standard error.
    Err,
}

impl Extent {
    const fn back(self) -> u64 {
        match self {
            Self::All => WHOLE,
            Self::Last(bytes) => bytes,
        }
    }
}

impl Stream {
    /// Name of the file.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
        }
    }

    /// Name of the file while the job runs. It is asked for by its name: what follows standard output as such gets parts of it again and
    /// again from starters of HTCondor 25 (seen with 25.14), which do not say at which byte their answer begins.
    const fn on_its_node(self) -> &'static str {
        match self {
            Self::Out => "_condor_stdout",
            Self::Err => "_condor_stderr",
        }
    }
}

/// A run of a job in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Queued {
    id: JobId,
    /// When it was started last, by the schedd's clock.
    start: Option<SchedDate>,
}

/// What a job that runs writes.
pub struct Tail {
    /// When the run began, by the schedd's clock.
    pub start: Option<SchedDate>,
    /// They end when the run does, or with the reason why they cannot be had.
    pub parts: mpsc::Receiver<Result<Vec<u8>, Unknown>>,
}

impl Schedd {
    /// This job, if it is in the queue with one of these `JobStatus`: its id, and when it was started last.
    async fn queued(&self, uid: &Uid, index: Index, statuses: &str) -> Result<Option<Queued>, Unknown> {
        let mine = self.my_jobs_of(std::slice::from_ref(uid)).await?;
        let which = format!("{mine} && HTCJobIndex =?= {index} && member(JobStatus, {{{statuses}}})");
        let mut found: Vec<Queued> = Vec::new();
        let each = |row: &Row| found.extend(row.job_id().map(|id| Queued { id, start: row.run_start() }));
        self.each_queued(&which, "ClusterId,ProcId,JobCurrentStartDate", self.tools.limit, None, each).await?;
        // A late one of an earlier attempt may be there beside it.
        Ok(found.into_iter().max_by_key(|job| (job.id.cluster, job.id.proc)))
    }

    /// What this job writes, if it runs now; `follow`: and goes on writing until the run ends. Nothing limits how much comes: who has had enough drops the receiver.
    pub async fn tail(
        self: &Arc<Self>,
        uid: &Uid,
        index: Index,
        stream: Stream,
        extent: Extent,
        follow: bool,
    ) -> Result<Option<Tail>, Unknown> {
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
            let why = match tools.ask_at_length(TAIL, &arguments, limit, Listener::Channel(&parts)).await {
                Ok(output) if output.status == Some(0) => None,
                Ok(output) => Some(harmless(&output.stderr, WORDS)),
                // Who reads has gone.
                Err(ToolError::TooMuch { .. }) => None,
                Err(error) => Some(error.to_string()),
            };
            // A job that ends while it is followed is no failure of the tool's.
            if let Some(why) = why.filter(|_| !follow) {
                let message = format!("HTCondor cannot show what the job has written: {why}");
                let _ = failed.send(Err(unknown(Why::ScheddUnreachable, message))).await;
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
                // Dropped half way, the tool is killed.
                () = async { tokio::join!(call, pass_on); } => {}
                () = sender.closed() => {}
            }
        });
        Ok(Some(Tail { start: run.start, parts: receiver }))
    }

    /// Why this job does not run, in HTCondor's words; none if it is not idle.
    pub async fn analyze(&self, uid: &Uid, index: Index) -> Result<Option<String>, Unknown> {
        let Some(Queued { id, .. }) = self.queued(uid, index, "1").await? else { return Ok(None) };
        let (name, id_text) = (self.name.as_str(), id.to_string());
        let arguments = ["-name", name, "-better-analyze", &id_text];
        let output = self.question(QUEUE_TOOL, &arguments, self.tools.limit, ANALYSIS).await?;
        let still = self.queued(uid, index, "1,2,4,5,6,7").await?.is_some_and(|now| now.id == id);
        Ok(still.then(|| harmless_lines(String::from_utf8_lossy(&output.stdout).trim())))
    }
}
