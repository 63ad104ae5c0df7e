//! Jobs that run as Pods of a `batch/v1` Job in the HTCJob's own cluster.

mod act;
mod gather;
mod status;

use std::time::Duration;

use htc_api::{HTCJobStatus, Phase};
use htc_ledger::{LedgerError, SaveRuns};
use htc_machine::Indices;
use htc_machine::pods::{PodsDecision, concurrency, concurrency_after, decide_pods, progress, quota_usage};
use htc_machine::transitions::IllegalTransition;

use super::memory::Deferral;
use super::pass::{ActOutcome, JobBackend, Pass, PassOutcome, PoolDemand};
use super::{ActError, GatherError};
use crate::backends::pods::pod_requests;
use crate::htcqueue::{DecidedUsage, JobResources};
use gather::PodsGathered;

/// Interval between queries for a Job that the watch does not show.
const UNWATCHED: Duration = Duration::from_secs(10);

/// Pods, as the backend of a pass.
pub(super) struct Pods;

impl JobBackend for Pods {
    type Gathered = PodsGathered;
    type Decision = PodsDecision;
    const DEFERRAL: Deferral = Deferral::Counts;

    async fn gather(pass: &Pass<'_>) -> Result<PodsGathered, GatherError> {
        gather::gather(pass).await
    }

    fn decide(pass: &Pass<'_>, gathered: &mut PodsGathered) -> Result<PodsDecision, IllegalTransition> {
        let (context, uid, namespace) = (pass.context, &pass.uid, &pass.name.namespace);
        let wanted = concurrency(&gathered.facts);
        let limit = context.namespace_jobs.reserve_concurrency(namespace, uid, wanted);
        gathered.facts.namespace_limit = limit;
        let decision = decide_pods(&gathered.facts, pass.now(), &context.settings);
        let has = decision.as_ref().map_or(wanted.current, |decision| concurrency_after(&gathered.facts, decision));
        let waits = limit.is_some_and(|limit| limit < wanted.wanted);
        context.namespace_jobs.settle_concurrency(namespace, &pass.reference(), uid, has, waits);
        let mut decision = decision?;
        let unwatched = gathered.unwatched.then_some(UNWATCHED);
        decision.requeue_after = decision.requeue_after.into_iter().chain(unwatched).min();
        Ok(decision)
    }

    fn outcome<'a>(pass: &'a Pass<'_>, gathered: &'a PodsGathered, decision: &'a PodsDecision) -> PassOutcome<'a> {
        let (facts, context) = (&gathered.facts, pass.context);
        let spec = pass.object.0.as_ref().ok().map(|job| &job.spec);
        let row = decision.after.as_ref().and_then(|after| after.row.as_ref());
        let quota = context.queues.is_enabled().then(|| {
            let usage = quota_usage(facts, decision);
            DecidedUsage {
                object: pass.object,
                uid: &pass.uid,
                name: &pass.name,
                granting_queue: facts.record.granting_queue.as_deref(),
                last_queue: row.and_then(|row| row.last_queue.as_deref()),
                granted: &facts.record.granted,
                resources: spec.map(|spec| JobResources::of_resources(&spec.resources.clone().unwrap_or_default())),
                finished: row.is_some_and(|row| row.phase == Phase::Completed),
                progress: spec.and_then(|spec| progress(facts, decision, &usage, spec.suspend)),
                pod: spec.and_then(|spec| serde_json::to_value(pod_requests(spec, &context.backends.pods.site)).ok()),
                usage,
            }
        });
        PassOutcome { quota, demand: PoolDemand::NoPool }
    }

    async fn commit(
        pass: &Pass<'_>,
        gathered: &PodsGathered,
        decision: &PodsDecision,
        returned: Indices,
    ) -> Result<bool, LedgerError> {
        let Some(after) = &decision.after else { return Ok(false) };
        let Some(row) = after.row.clone() else { return Ok(false) };
        let before = &gathered.facts.record;
        let changed = !decision.changed.is_empty() || !decision.transitions.is_empty() || !returned.is_empty();
        if !changed && before.row.as_ref() == Some(&row) && before.job == after.job {
            return Ok(false);
        }
        let runs = decision.changed.iter().filter_map(|index| Some((*index, after.runs.get(index)?.clone())));
        let save = SaveRuns {
            uid: pass.uid.clone(),
            name: pass.name.clone(),
            row,
            job: after.job.clone(),
            runs: runs.collect(),
            returned_quota: returned,
            transitions: decision.transitions.clone(),
            now: pass.now(),
        };
        pass.context.ledger.save_runs(save).await?;
        pass.announce(&decision.transitions, before.row.as_ref());
        Ok(true)
    }

    async fn act(pass: &Pass<'_>, gathered: &PodsGathered, decision: &PodsDecision) -> Result<ActOutcome, ActError> {
        act::act(pass, gathered, decision).await
    }

    fn status(pass: &Pass<'_>, gathered: &PodsGathered, decision: &PodsDecision) -> Option<HTCJobStatus> {
        let record = decision.after.as_ref().filter(|_| gathered.facts.object.finalizer)?;
        Some(status::status(pass, record, gathered))
    }
}
