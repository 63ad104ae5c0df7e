//! Submissions: many HTCJobs in one `condor_submit`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use htc_api::Reason;
use htc_ledger::{Intent, Ledger, LedgerError, NotedSubmission, SubmitResult};
use htc_machine::facts::{QueryError, RequestFailure, Submission as Intended, Witness};
use htc_machine::judge::SubmitterLock;
use htc_machine::request::{SubmitPermit, Work};
use htc_machine::text::redact_other_uids;
use htc_machine::{Index, Indices, SchedDate, Timestamp};
use htc_submit::description;
use htc_submit::description::{ClusterSettings, submit_description};
use htc_submit::htcopts::HtcOpts;
use htc_submit::spec::{KeptInputs, Plan};
use htcondor::schedd::ScheddReading;
use htcondor::submit::SubmitterExit;
use htcondor::{HeldLock, Schedd};

use super::batch::Batch;
use super::plan::SandboxError;
use super::{Planner, QueuedRequest, WorkItem};
use crate::backends::condor::credentials::Tenant;
use crate::backends::condor::workers::submission_sizes::SizeRefusal;

/// One submission in progress.
#[derive(Default)]
pub(super) struct SubmitCall {
    preflight: Option<Result<Preflight, QueryError>>,
    /// Time when the submitter is killed.
    submitter_deadline: Timestamp,
    /// `HTCNotAfter`
    late_after: SchedDate,
    /// Lock of the submitter. It is held from before the intents are committed until the result is.
    lock: Option<HeldLock>,
    ended: Option<(SubmitterExit, Timestamp)>,
    /// Time that the submitter ran.
    pub(super) took: Duration,
}

/// Assumed rate of a submission's transfer, in bytes per second.
const BYTES_PER_SECOND: usize = 1_000_000;
/// Timeout for the lock file.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Cost of a job in addition to its script, in bytes: the operator's own files and the schedd's work, 20 ms on a busy
/// machine.
const BYTES_PER_JOB: usize = 20_000;

fn indices(job: &WorkItem) -> &Indices {
    static NONE: std::sync::LazyLock<Indices> = std::sync::LazyLock::new(Indices::default);
    match &job.request.work {
        Work::Submit(indices, _) => indices,
        _ => &NONE,
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// Answers of the schedd before a submission.
pub(super) struct Preflight {
    reading: ScheddReading,
    witness: Witness,
    user: String,
}

/// Data for the row of one job in the submit description.
struct SubmitRow<'a> {
    job: &'a WorkItem,
    index: Index,
    batch_name: String,
    sandbox: String,
    output: String,
}

impl<'a> SubmitRow<'a> {
    fn all(job: &'a WorkItem, planner: &Planner) -> impl Iterator<Item = Self> {
        let (name, uid) = (&job.name, &job.request.key.uid);
        indices(job).iter().map(move |index| Self {
            job,
            index,
            batch_name: format!("{}/{}", name.namespace, name.name),
            sandbox: planner.layout.sandbox(uid).display().to_string(),
            output: planner.layout.job_incoming(name, uid, index).display().to_string(),
        })
    }

    fn as_item(&self) -> description::QueueItem<'_> {
        let key = &self.job.request.key;
        description::QueueItem {
            uid: key.uid.as_str(),
            attempt: key.attempt.0,
            index: self.index.0,
            batch_name: &self.batch_name,
            sandbox: &self.sandbox,
            output: &self.output,
            item: self.job.texts.as_ref().and_then(|texts| texts.items.get(&self.index)).map(String::as_str),
            image: self.job.plan.as_deref().map_or("", |plan: &Plan| plan.named.as_str()),
        }
    }
}

impl SubmitCall {
    /// Queries the schedd before each submission. The credentials may have changed, and jobs of an unknown user would
    /// not be found.
    #[tracing::instrument(name = "before_submission", level = "error", skip_all, fields(identity = schedd.identity.logged()))]
    pub(super) async fn ask(&mut self, schedd: &Schedd) {
        let (user, witness, reading) =
            tokio::join!(schedd.ask_user(), schedd.newest_in_history(), schedd.recent_reading());
        // If several queries fail, the same one is always reported. Otherwise the status would change with each retry.
        self.preflight = Some(user.and_then(|user| Ok(Preflight { user, witness: witness?, reading: reading? })));
    }

    /// Writes the sandboxes and commits the intents to the ledger.
    pub(super) async fn intend(&mut self, batch: &mut Batch) -> bool {
        let asked = match &self.preflight {
            Some(Ok(asked)) => asked,
            Some(Err(unknown)) => {
                batch.give_up(|_| Some(unknown.clone().into())).await;
                return false;
            }
            // The fence was closed when it was time to query. The requests will be handed over again.
            None => return false,
        };
        if !prepare(batch).await {
            return false;
        }
        let shared = &batch.shared;
        let bytes: usize = batch
            .requests
            .iter()
            .filter_map(|job| job.texts.as_ref().map(|texts| (texts.bytes() + BYTES_PER_JOB) * indices(job).len()))
            .sum();
        let transfer = Duration::from_secs((bytes / BYTES_PER_SECOND) as u64);
        let limit = (shared.limits.submit + transfer).min(shared.settings.submit_max);
        let now = shared.clock.now();
        self.submitter_deadline = now.plus(limit);
        self.late_after = SchedDate(
            asked.reading.date.0 + seconds(now.since(asked.reading.at) + limit + shared.settings.late_margin) + 1,
        );
        self.lock = take_lock(batch).await;
        let lock = self.lock.as_ref().map(HeldLock::lock);
        let intents =
            batch.requests.iter().map(|job| intent(job, asked, self.submitter_deadline, now, lock, batch)).collect();
        match shared.ledger.intend(intents).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "nothing submitted, intents not stored");
                // Otherwise one lock file would remain at each retry. Without the file, the end of a submission whose
                // intent may yet be durable is unknown.
                discard(self.lock.take()).await;
                tokio::time::sleep(super::LEDGER_PAUSE).await;
                false
            }
        }
    }

    /// Runs `condor_submit` until it ends or reaches its time limit.
    pub(super) async fn run(&mut self, batch: &Batch) {
        let shared = &batch.shared;
        let submitted = match self.describe(batch) {
            Ok(text) => {
                let limit = self.submitter_deadline.since(shared.clock.now());
                if limit.is_zero() {
                    SubmitterExit {
                        dead: true,
                        timed_out: false,
                        status: None,
                        message: Some("the time for this submission had passed before it began".to_owned()),
                    }
                } else {
                    let began = Instant::now();
                    let submitted = batch.schedd.submit(text, &folders(batch), limit, self.lock.as_ref()).await;
                    self.took = began.elapsed();
                    submitted
                }
            }
            Err(error) => {
                SubmitterExit { dead: true, timed_out: false, status: None, message: Some(error.to_string()) }
            }
        };
        if let Some(message) = &submitted.message {
            tracing::warn!(status = submitted.status, %message, "condor_submit failed");
        }
        self.ended = Some((submitted, shared.clock.now()));
    }

    fn describe(&self, batch: &Batch) -> Result<String, description::DescriptionError> {
        let planner = &batch.shared.planner;
        let rows: Vec<SubmitRow<'_>> = batch.requests.iter().flat_map(|job| SubmitRow::all(job, planner)).collect();
        let rows: Vec<description::QueueItem<'_>> = rows.iter().map(SubmitRow::as_item).collect();
        let none = HtcOpts::default();
        let plan = batch.requests.first().and_then(|job| job.plan.as_deref());
        let options = plan.map_or(&none, |plan: &Plan| &plan.options);
        let mini_cluster = plan.is_some_and(|plan| plan.mini_cluster);
        let files =
            batch.requests.iter().any(|job| job.plan.as_deref().is_some_and(|plan| !plan.files.kept.is_empty()));
        let workers = batch.shared.credentials.signer().and_then(|signer| {
            let of_its_own = mini_cluster.then(|| Tenant::HTCJob(description::OWN_UID.to_owned()));
            Some(of_its_own.or_else(|| signer.tenant(&batch.schedd.identity))?.identity(&signer.domain))
        });
        let common = ClusterSettings {
            operator: &batch.shared.schedd.operator,
            not_after: self.late_after.0,
            site_defaults: &planner.site_defaults,
            options,
            callback: planner.callback.is_some(),
            files,
            output_limit: planner.layout.output_limit,
            node_faults: planner.node_faults,
            mini_cluster,
            volumes: plan.and_then(|plan| plan.volumes.of_worker()),
            workers: workers.as_deref(),
        };
        submit_description(&common, &rows)
    }

    /// Learns from the submitter's result about the size of submissions. A submission that is retried in smaller parts
    /// is not reported as a refusal. If several HTCJobs were in it, any of them may be the cause; a refusal is reported
    /// once an HTCJob is refused alone.
    fn learn(submitted: &mut SubmitterExit, took: Duration, batch: &Batch, now: Timestamp) {
        let jobs = batch.requests.iter().map(|job| indices(job).len()).sum();
        match (submitted.status, &submitted.message) {
            (Some(0), _) => {
                batch.shared.sizes.accepted(jobs);
                batch.shared.sizes.took(jobs, took);
            }
            (Some(_), Some(words)) => match batch.shared.sizes.refused(words, jobs, now) {
                SizeRefusal::TooMany => submitted.message = None,
                SizeRefusal::Other if batch.requests.len() > 1 => submitted.message = None,
                SizeRefusal::Full | SizeRefusal::Other => {}
            },
            (None, _) if submitted.timed_out => batch.shared.sizes.took_too_long(jobs, now),
            (Some(_), None) | (None, _) => {}
        }
    }

    /// Commits how the submitter ended, or that it never ran.
    pub(super) async fn commit(&mut self, batch: &Batch, not_run: bool) -> bool {
        let now = batch.shared.clock.now();
        let not_begun =
            || SubmitterExit { dead: true, timed_out: false, status: None, message: Some(super::NOT_BEGUN.to_owned()) };
        let (mut submitted, at) = self.ended.take().unwrap_or_else(|| (not_begun(), now));
        Self::learn(&mut submitted, self.took, batch, now);
        let results: Vec<SubmitResult> = batch
            .requests
            .iter()
            .map(|job| SubmitResult {
                key: job.request.key.clone(),
                at,
                dead_since: submitted.dead.then_some(at),
                exit_status: submitted.status,
                message: submitted.message.as_ref().map(|words| redact_other_uids(words, job.request.key.uid.as_str())),
                not_run,
                supersedes: match &job.request.work {
                    Work::Submit(_, SubmitPermit::Again(proof)) => Some(proof.attempt()),
                    _ => None,
                },
            })
            .collect();
        let verdict = |job: &QueuedRequest| match &job.request.work {
            _ if not_run => Some("not_run"),
            // The former attempt was judged before these jobs were submitted again.
            Work::Submit(_, SubmitPermit::Again(proof)) => Some(proof.verdict().into()),
            _ => None,
        };
        let metrics = &batch.shared.metrics;
        metrics.submitted(if not_run { 0 } else { results.len() });
        batch.requests.iter().filter_map(verdict).for_each(|verdict| metrics.attempt(verdict));
        let lock = self.lock.take().filter(|_| submitted.dead);
        match batch.shared.ledger.resolve_submits(results).await {
            Ok(()) => {
                discard(lock).await;
                true
            }
            Err(error) => {
                // The intents remain, and are judged by HTCondor's answers after their time limit.
                tracing::error!(%error, "end of a submission not stored");
                tokio::time::sleep(super::LEDGER_PAUSE).await;
                false
            }
        }
    }
}

/// Returns the folders that the jobs are submitted from, and those for their output.
fn folders(batch: &Batch) -> Vec<PathBuf> {
    let planner = &batch.shared.planner;
    let of = |job: &QueuedRequest| {
        let uid = &job.request.key.uid;
        [planner.layout.sandbox(uid), planner.layout.incoming(&job.name, uid)]
    };
    batch.requests.iter().flat_map(of).collect()
}

fn files_failed(message: String) -> RequestFailure {
    RequestFailure::new(Reason::CannotWriteFiles, message)
}

/// Removes a lock file that is no longer needed.
async fn discard(lock: Option<HeldLock>) {
    if let Some(lock) = lock {
        let discarded = tokio::task::spawn_blocking(move || lock.discard());
        let _ = tokio::time::timeout(LOCK_LIMIT, discarded).await;
    }
}

/// Takes a lock for the submitter. Without one, a submitter whose end is not seen counts as running until its time
/// limit.
async fn take_lock(batch: &Batch) -> Option<HeldLock> {
    let locks = batch.shared.locks.clone();
    let taken = tokio::time::timeout(LOCK_LIMIT, tokio::task::spawn_blocking(move || locks.take())).await;
    let error = match taken {
        Ok(Ok(Ok(lock))) => return lock,
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the data folder has not answered for {LOCK_LIMIT:?}"),
    };
    tracing::warn!(%error, "condor_submit runs without a lock file");
    None
}

fn intent(
    job: &WorkItem,
    asked: &Preflight,
    submitter_deadline: Timestamp,
    now: Timestamp,
    lock: Option<&SubmitterLock>,
    batch: &Batch,
) -> Intent {
    let submission = Intended {
        attempt: job.request.key.attempt,
        indices: indices(job).clone(),
        schedd: batch.shared.schedd.name.clone(),
        birthdate: asked.reading.birthdate,
        intent_at: now,
        intent_date: asked.reading.date,
        submitter_deadline,
        dead_since: None,
        refusal: None,
        absent: false,
    };
    let (witness, user) = (asked.witness.clone(), asked.user.clone());
    let noted = NotedSubmission { submission, witness, user, identity: job.identity.clone(), lock: lock.cloned() };
    Intent { key: job.request.key.clone(), at: now, submission: Some(noted) }
}

/// Reads what the ledger has for these jobs.
async fn inputs(ledger: &Ledger, job: &WorkItem) -> Result<KeptInputs, LedgerError> {
    let (Some(plan), uid) = (&job.plan, &job.request.key.uid) else { return Ok(KeptInputs::default()) };
    Ok(KeptInputs {
        files: if plan.files.kept.is_empty() { Vec::new() } else { ledger.files(uid).await? },
        variables: if plan.env.read.is_empty() { Vec::new() } else { ledger.variables(uid).await? },
    })
}

/// Writes the files. An HTCJob whose files cannot be written fails alone.
async fn prepare(batch: &mut Batch) -> bool {
    let mut kept = HashMap::new();
    for job in &batch.requests {
        match inputs(&batch.shared.ledger, job).await {
            Ok(inputs) => kept.insert(job.request.key.uid.clone(), inputs),
            Err(error) => {
                tracing::error!(%error, "nothing submitted, inputs not read");
                tokio::time::sleep(super::LEDGER_PAUSE).await;
                return false;
            }
        };
    }
    let work = |batch: &Batch| {
        let planner = batch.shared.planner.clone();
        let work: Vec<_> = batch
            .requests
            .iter()
            .map(|job| {
                let plan = job.plan.clone().zip(job.texts.clone());
                (job.name.clone(), job.request.key.uid.clone(), plan, indices(job).clone())
            })
            .collect();
        let jobs: usize = work.iter().map(|(_, _, _, indices)| indices.len()).sum();
        let write = move || {
            work.iter()
                .filter_map(|(name, uid, plan, indices)| {
                    let result = match (plan, kept.get(uid)) {
                        (Some((plan, texts)), Some(inputs)) => planner.prepare(name, uid, plan, texts, inputs, indices),
                        _ => Err(SandboxError::UnreadableSpec),
                    };
                    result.err().map(|why| (uid.clone(), why))
                })
                .collect::<HashMap<_, _>>()
        };
        (jobs, write)
    };
    match batch.on_files(files_failed, work).await {
        Some(failures) => {
            let failed = |error: &SandboxError| files_failed(error.to_string());
            batch.give_up(|job| failures.get(&job.request.key.uid).map(failed)).await
        }
        None => false,
    }
}
