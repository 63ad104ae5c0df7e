//! Jobs that run in HTCondor.

mod act;
mod gather;
mod status;

use std::collections::BTreeSet;
use std::time::Duration;

use htc_api::{HTCJobStatus, Phase};
use htc_ledger::{LedgerError, Save};
use htc_machine::decide::Decision;
use htc_machine::demand::JobDemand;
use htc_machine::progress::Progress;
use htc_machine::quota_usage::quota_usage;
use htc_machine::rules::Rules;
use htc_machine::transitions::IllegalTransition;
use htc_machine::{Attempt, Indices, Settings};

use super::memory::Deferral;
use super::pass::{ActOutcome, JobBackend, Pass, PassOutcome, PoolDemand};
use super::{ActError, GatherError};
use crate::backends::condor::workers::ScheddWorkers;
use crate::htcqueue::{DecidedUsage, JobResources};
use gather::CondorGathered;
pub(in crate::htcjob) use gather::identity_of;
pub(crate) use gather::is_unadopted;

/// HTCondor, as the backend of a pass.
pub(super) struct Condor;

impl JobBackend for Condor {
    type Gathered = CondorGathered;
    type Decision = Decision;
    const DEFERRAL: Deferral = Deferral::Nothing;

    async fn gather(pass: &Pass<'_>) -> Result<CondorGathered, GatherError> {
        gather::gather(pass).await
    }

    /// Keeps within the batch size that the schedd accepts, too.
    fn decide(pass: &Pass<'_>, gathered: &mut CondorGathered) -> Result<Decision, IllegalTransition> {
        let (context, facts) = (pass.context, &gathered.facts);
        let workers = gathered.place.pool.as_ref().map(|pool| &pool.workers);
        let most = workers.map_or(usize::MAX, ScheddWorkers::jobs_per_submission);
        let own_pool = gathered.place.name.is_none();
        let settings = Settings {
            // An HTCPool may come to mean another schedd without a change by the operator's administrator. Therefore only
            // a person may declare its queue lost.
            birthdate_steady: if own_pool { context.settings.birthdate_steady } else { Duration::MAX },
            jobs_per_attempt: context.settings.jobs_per_attempt.min(most),
            namespace_limit: context.namespace_jobs.reserve(&pass.name.namespace, facts),
            size_refusal: workers.and_then(ScheddWorkers::size_refusal),
            ..context.settings.clone()
        };
        let decision = htc_machine::decide::decide(facts, pass.now(), &settings, &Rules::ALL);
        let decided = decision.as_ref().ok();
        context.namespace_jobs.settle_decision(&pass.name.namespace, &pass.reference(), facts, decided);
        decision
    }

    fn outcome<'a>(pass: &'a Pass<'_>, gathered: &'a CondorGathered, decision: &'a Decision) -> PassOutcome<'a> {
        let (facts, context) = (&gathered.facts, pass.context);
        let row = decision.after.as_ref().and_then(|after| after.row.as_ref());
        let suspend = pass.object.0.as_ref().is_ok_and(|job| job.spec.suspend);
        let plan = gathered.plan.as_ref();
        let quota = context.queues.is_enabled().then(|| DecidedUsage {
            object: pass.object,
            uid: &pass.uid,
            name: &pass.name,
            granting_queue: facts.record.granting_queue.as_deref(),
            last_queue: row.and_then(|row| row.last_queue.as_deref()),
            granted: &facts.record.granted,
            resources: plan.map(|plan| JobResources::of(Some(&plan.options), &context.planner.site_defaults)),
            usage: quota_usage(facts, decision, &Rules::ALL),
            finished: row.is_some_and(|row| row.phase == Phase::Completed),
            progress: Progress::of(facts, decision, suspend),
            pod: None,
        });
        let record = decision.after.as_ref().unwrap_or(&facts.record);
        let demand = if gathered.place.name.is_some() {
            JobDemand::after_pass(facts, record).map_or(PoolDemand::Unknown, PoolDemand::Known)
        } else {
            PoolDemand::NoPool
        };
        PassOutcome { quota, demand }
    }

    async fn commit(
        pass: &Pass<'_>,
        gathered: &CondorGathered,
        decision: &Decision,
        returned: Indices,
    ) -> Result<bool, LedgerError> {
        let context = pass.context;
        let Some(after) = &decision.after else { return Ok(false) };
        let Some(row) = after.row.clone() else { return Ok(false) };
        let before = gathered.facts.record.row.as_ref();
        let unchanged = decision.transitions.is_empty()
            && decision.changed.is_empty()
            && decision.details.settled.is_none()
            && decision.details.absent.is_none()
            && decision.details.action_updates.is_empty()
            && returned.is_empty()
            && before == Some(&row);
        if unchanged {
            return Ok(false);
        }
        let changed = || decision.changed.iter().filter_map(|index| Some((*index, after.jobs.get(index)?)));
        let known: BTreeSet<Attempt> = gathered.facts.record.jobs.values().map(|job| job.attempt).collect();
        let attempts: BTreeSet<Attempt> = changed().map(|(_, job)| job.attempt).collect();
        attempts.difference(&known).for_each(|_| context.metrics.attempt("accepted"));
        let save = Save {
            uid: pass.uid.clone(),
            name: pass.name.clone(),
            sandbox: context.planner.layout.sandbox(&pass.uid).display().to_string(),
            pool: gathered.place.name.clone(),
            row,
            jobs: changed().map(|(index, job)| (index, job.clone())).collect(),
            settled: decision.details.settled,
            absent: decision.details.absent,
            action_updates: decision.details.action_updates.clone(),
            schedd: gathered.facts.schedd.clone(),
            transitions: decision.transitions.clone(),
            refuted: decision.details.refuted.clone(),
            returned_quota: returned,
            now: pass.now(),
        };
        context.pools.assign(&save.uid, save.pool.as_ref());
        context.ledger.save(save).await?;
        pass.announce(&decision.transitions, before);
        Ok(true)
    }

    async fn act(pass: &Pass<'_>, gathered: &CondorGathered, decision: &Decision) -> Result<ActOutcome, ActError> {
        act::act(pass, gathered, decision).await
    }

    fn status(pass: &Pass<'_>, gathered: &CondorGathered, decision: &Decision) -> Option<HTCJobStatus> {
        let object = &gathered.facts.object;
        let record = decision.after.as_ref().filter(|_| object.finalizer || object.unadopted)?;
        Some(status::status(pass, record, gathered))
    }
}
