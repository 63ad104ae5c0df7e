//! Submissions: many HTCJobs in one `condor_submit`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::sizes::Refusal;
use super::{Plan, Planner, Queued, WorkItem};
use crate::api::Reason;
use crate::api::text::without_others;
use crate::condor::description::{self, Common, submit_description};
use crate::condor::htcopts::HtcOpts;
use crate::condor::schedd::Reading;
use crate::condor::submit::Submitted;
use crate::condor::{HeldLock, Schedd};
use crate::credentials::Tenant;
use crate::ledger::{Intent, Noted, SubmitResult};
use crate::machine::facts::{Failure, Submission as Intended, Unknown, Witness};
use crate::machine::judge::SubmitterLock;
use crate::machine::request::{SubmitPermit, Work};
use crate::machine::{Index, Indices, SchedDate, Timestamp};

/// One submission under way.
#[derive(Default)]
pub(super) struct Submission {
    asked: Option<Result<Asked, Unknown>>,
    /// When the submitter is killed.
    not_after: Timestamp,
    /// `HTCNotAfter`
    late_after: SchedDate,
    /// Held from before the intents are durable until the end is.
    lock: Option<HeldLock>,
    ended: Option<(Submitted, Timestamp)>,
    /// How long the submitter ran.
    pub(super) took: Duration,
}

/// Bytes that a submission is taken to send in a second.
const BYTES_PER_SECOND: usize = 1_000_000;
/// How long the file of a lock is waited for.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// What a job costs beside its script, in bytes: the operator's own files and the schedd's work, 20 ms on a busy machine.
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

/// What the schedd says before a submission.
pub(super) struct Asked {
    reading: Reading,
    witness: Witness,
    user: String,
}

/// What the row of one job is made of.
struct Row<'a> {
    job: &'a WorkItem,
    index: Index,
    batch_name: String,
    sandbox: String,
    output: String,
}

impl<'a> Row<'a> {
    fn all(job: &'a WorkItem, planner: &Planner) -> impl Iterator<Item = Self> {
        let (name, uid) = (&job.name, &job.request.key.uid);
        indices(job).iter().map(move |index| Self {
            job,
            index,
            batch_name: format!("{}/{}", name.namespace, name.name),
            sandbox: planner.sandbox(uid).display().to_string(),
            output: planner.job_incoming(name, uid, index).display().to_string(),
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

impl Submission {
    /// Asks before each submission: credentials may have changed, and jobs of a name that is not known are not found.
    #[tracing::instrument(name = "before_submission", level = "error", skip_all, fields(identity = schedd.identity.logged()))]
    pub(super) async fn ask(&mut self, schedd: &Schedd) {
        let (user, witness, reading) =
            tokio::join!(schedd.identity(), schedd.newest_in_history(), schedd.recent_reading());
        // Of several that fail, the same one is always reported. The status would change with each try otherwise.
        self.asked = Some(user.and_then(|user| Ok(Asked { user, witness: witness?, reading: reading? })));
    }

    /// Writes the sandboxes, and makes the intents durable.
    pub(super) async fn intend(&mut self, batch: &mut Batch) -> bool {
        let asked = match &self.asked {
            Some(Ok(asked)) => asked,
            Some(Err(unknown)) => {
                batch.give_up(|_| Some(unknown.clone().into())).await;
                return false;
            }
            // The fence was closed when it was time to ask. They come again.
            None => return false,
        };
        if !prepare(batch).await {
            return false;
        }
        let shared = &batch.shared;
        let bytes: usize = batch
            .jobs
            .iter()
            .filter_map(|job| job.texts.as_ref().map(|texts| (texts.source.len() + BYTES_PER_JOB) * indices(job).len()))
            .sum();
        let transfer = Duration::from_secs((bytes / BYTES_PER_SECOND) as u64);
        let limit = (shared.limits.submit + transfer).min(shared.settings.submit_max);
        let now = shared.clock.now();
        self.not_after = now.plus(limit);
        self.late_after = SchedDate(
            asked.reading.date.0 + seconds(now.since(asked.reading.at) + limit + shared.settings.late_margin) + 1,
        );
        self.lock = take_lock(batch).await;
        let lock = self.lock.as_ref().map(HeldLock::lock);
        let intents = batch.jobs.iter().map(|job| intent(job, asked, self.not_after, now, lock, batch)).collect();
        match shared.ledger.intend(intents).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "nothing is submitted: the intents are not durable");
                // Its file stays otherwise, one more at each try. Without it the end of what may yet be durable is unknown.
                discard(self.lock.take()).await;
                tokio::time::sleep(super::LEDGER_PAUSE).await;
                false
            }
        }
    }

    /// Runs `condor_submit` to its end, or to its time limit.
    pub(super) async fn run(&mut self, batch: &Batch) {
        let shared = &batch.shared;
        let submitted = match self.describe(batch) {
            Ok(text) => {
                let limit = self.not_after.since(shared.clock.now());
                if limit.is_zero() {
                    Submitted {
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
            Err(error) => Submitted { dead: true, timed_out: false, status: None, message: Some(error.to_string()) },
        };
        if let Some(message) = &submitted.message {
            tracing::warn!(status = submitted.status, %message, "condor_submit failed; its jobs are judged by what HTCondor has");
        }
        self.ended = Some((submitted, shared.clock.now()));
    }

    fn describe(&self, batch: &Batch) -> Result<String, description::DescriptionError> {
        let planner = &batch.shared.planner;
        let rows: Vec<Row<'_>> = batch.jobs.iter().flat_map(|job| Row::all(job, planner)).collect();
        let rows: Vec<description::QueueItem<'_>> = rows.iter().map(Row::as_item).collect();
        let none = HtcOpts::default();
        let options = batch.jobs.first().and_then(|job| job.plan.as_deref()).map_or(&none, |plan: &Plan| &plan.options);
        let mini_cluster = batch.jobs.first().and_then(|job| job.plan.as_deref()).is_some_and(|plan| plan.mini_cluster);
        let workers = batch.shared.credentials.signer().and_then(|signer| {
            let of_its_own = mini_cluster.then(|| Tenant::HTCJob(description::OWN_UID.to_owned()));
            Some(of_its_own.or_else(|| signer.tenant(&batch.schedd.identity))?.identity(&signer.domain))
        });
        let common = Common {
            operator: &batch.shared.schedd.operator,
            not_after: self.late_after.0,
            site_defaults: &planner.site_defaults,
            options,
            callback: planner.callback.is_some(),
            output_limit: planner.output_limit,
            mini_cluster,
            workers: workers.as_deref(),
        };
        submit_description(&common, &rows)
    }

    /// What the end of a submitter says about the size of submissions. One that goes again in smaller parts is no refusal that
    /// anybody need know of: where HTCJobs went together it may be the fault of any of them, and who is refused alone is told.
    fn learn(submitted: &mut Submitted, took: Duration, batch: &Batch, now: Timestamp) {
        let jobs = batch.jobs.iter().map(|job| indices(job).len()).sum();
        match (submitted.status, &submitted.message) {
            (Some(0), _) => {
                batch.shared.sizes.accepted(jobs);
                batch.shared.sizes.took(jobs, took);
            }
            (Some(_), Some(words)) => match batch.shared.sizes.refused(words, jobs, now) {
                Refusal::TooMany => submitted.message = None,
                Refusal::Other if batch.jobs.len() > 1 => submitted.message = None,
                Refusal::Full | Refusal::Other => {}
            },
            (None, _) if submitted.timed_out => batch.shared.sizes.took_too_long(jobs, now),
            (Some(_), None) | (None, _) => {}
        }
    }

    /// Writes how the submitter ended, or that it never ran.
    pub(super) async fn commit(&mut self, batch: &Batch, not_run: bool) -> bool {
        let now = batch.shared.clock.now();
        let not_begun =
            || Submitted { dead: true, timed_out: false, status: None, message: Some(super::NOT_BEGUN.to_owned()) };
        let (mut submitted, at) = self.ended.take().unwrap_or_else(|| (not_begun(), now));
        Self::learn(&mut submitted, self.took, batch, now);
        let results: Vec<SubmitResult> = batch
            .jobs
            .iter()
            .map(|job| SubmitResult {
                key: job.request.key.clone(),
                at,
                dead_since: submitted.dead.then_some(at),
                exit_status: submitted.status,
                message: submitted.message.as_ref().map(|words| without_others(words, job.request.key.uid.as_str())),
                not_run,
                supersedes: match &job.request.work {
                    Work::Submit(_, SubmitPermit::Again(proof)) => Some(proof.attempt()),
                    _ => None,
                },
            })
            .collect();
        let verdict = |job: &Queued| match &job.request.work {
            _ if not_run => Some("not_run"),
            // It was judged before these jobs went again.
            Work::Submit(_, SubmitPermit::Again(proof)) => Some(proof.verdict().into()),
            _ => None,
        };
        let metrics = &batch.shared.metrics;
        metrics.submitted(if not_run { 0 } else { results.len() });
        batch.jobs.iter().filter_map(verdict).for_each(|verdict| metrics.attempt(verdict));
        let lock = self.lock.take().filter(|_| submitted.dead);
        match batch.shared.ledger.resolve_submits(results).await {
            Ok(()) => {
                discard(lock).await;
                true
            }
            Err(error) => {
                // The intents stand, and are judged by HTCondor's answers once their time has passed.
                tracing::error!(%error, "the end of a submission is not in the ledger");
                tokio::time::sleep(super::LEDGER_PAUSE).await;
                false
            }
        }
    }
}

/// Those that the jobs are submitted from, and those that their output is to arrive in.
fn folders(batch: &Batch) -> Vec<PathBuf> {
    let planner = &batch.shared.planner;
    let of = |job: &Queued| {
        let uid = &job.request.key.uid;
        [planner.sandbox(uid), planner.incoming(&job.name, uid)]
    };
    batch.jobs.iter().flat_map(of).collect()
}

fn files_failed(message: String) -> Failure {
    Failure::new(Reason::CannotWriteFiles, message)
}

/// Removes the file of a lock that nobody needs any more.
async fn discard(lock: Option<HeldLock>) {
    if let Some(lock) = lock {
        let discarded = tokio::task::spawn_blocking(move || lock.discard());
        let _ = tokio::time::timeout(LOCK_LIMIT, discarded).await;
    }
}

/// Without a lock the time limit is waited for if nobody sees the submitter end.
async fn take_lock(batch: &Batch) -> Option<HeldLock> {
    let locks = batch.shared.locks.clone();
    let taken = tokio::time::timeout(LOCK_LIMIT, tokio::task::spawn_blocking(move || locks.take())).await;
    let error = match taken {
        Ok(Ok(Ok(lock))) => return lock,
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the data folder has not answered for {LOCK_LIMIT:?}"),
    };
    tracing::warn!(%error, "no lock for condor_submit: should the operator crash meanwhile, its end is seen later");
    None
}

fn intent(
    job: &WorkItem,
    asked: &Asked,
    not_after: Timestamp,
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
        not_after,
        dead_since: None,
        refusal: None,
        absent: false,
    };
    let (witness, user) = (asked.witness.clone(), asked.user.clone());
    let noted = Noted { submission, witness, user, identity: job.identity.clone(), lock: lock.cloned() };
    Intent { key: job.request.key.clone(), at: now, submission: Some(noted) }
}

/// Writes the files; an HTCJob whose files cannot be written fails alone.
async fn prepare(batch: &mut Batch) -> bool {
    let work = |batch: &Batch| {
        let planner = batch.shared.planner.clone();
        let work: Vec<_> = batch
            .jobs
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
                    let result = match plan {
                        Some((plan, texts)) => planner.prepare(name, uid, plan, &texts.source, indices),
                        None => Err("the spec cannot be read any more".to_owned()),
                    };
                    result.err().map(|why| (uid.clone(), why))
                })
                .collect::<HashMap<_, _>>()
        };
        (jobs, write)
    };
    match batch.on_files(files_failed, work).await {
        Some(failures) => batch.give_up(|job| failures.get(&job.request.key.uid).cloned().map(files_failed)).await,
        None => false,
    }
}
