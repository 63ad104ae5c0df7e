//! Builds the status of an object whose jobs run in HTCondor.

use htc_api::{HTCJobStatus, NodeFaultsStatus};
use htc_machine::ScheddName;
use htc_machine::facts::{Facts, Listed, Published, Record, Spec};
use htc_machine::ids::{CUT, JobId, id_ranges};
use htc_machine::node_fault_counts::NodeFaultCounts;
use htc_machine::status::{Counts, indexes};

use super::gather::CondorGathered;
use crate::htcjob::pass::Pass;
use crate::htcjob::status::CommonStatus;

/// Maximum number of ids listed one by one.
const IDS: usize = 100;
/// Maximum length of the ids written as ranges, in bytes.
const RANGES: usize = 32 * 1024;

/// Builds the status from `record`. Never removes what the object's status has: it proves that jobs may exist, and a
/// ledger that was lost must not hide that.
pub(super) fn status(pass: &Pass<'_>, record: &Record, gathered: &CondorGathered) -> HTCJobStatus {
    let facts = &gathered.facts;
    let old = pass.status();
    let own_workers = pass.context.pools.own_workers(&pass.uid);
    let mut counts = Counts::of(record);
    if let Some(old) = old.filter(|_| facts.object.unadopted) {
        // The counts of the Go operator stay until its jobs are adopted.
        let count = |count: i64| usize::try_from(count).unwrap_or_default();
        (counts.active, counts.succeeded, counts.failed) = (count(old.active), count(old.succeeded), count(old.failed));
    }
    let cluster = record.jobs.values().next().map(|job| job.id.cluster.to_string());
    let published = &facts.object.published;
    let (jobid, jobs) = listed(record, facts, old);
    let attempt = record.highest.0.max(published.attempt);
    let asked_for = facts.object.spec.as_ref().map(Spec::asked_for).unwrap_or_default();
    let common = CommonStatus {
        row: record.row.as_ref(),
        spec: facts.object.spec.as_ref().ok(),
        counts,
        indexes: indexes(record, &asked_for),
        queue: facts.queue.as_ref(),
        inputs: &gathered.inputs,
    };
    let plan = gathered.plan.as_deref();
    let image_digest = plan.and_then(|plan| plan.image.digest()).map(str::to_owned);
    let digest_problem = plan.and_then(|plan| plan.digest_problem.clone());
    HTCJobStatus {
        image_digest: image_digest.or_else(|| old.and_then(|old| old.image_digest.clone())),
        image_digest_problem: digest_problem.or_else(|| old.and_then(|old| old.image_digest_problem.clone())),
        schedd: (attempt > 0).then(|| schedd_with_jobs(record, published, &facts.schedd).to_string()),
        attempt: (attempt > 0).then(|| i64::from(attempt)),
        // The first value stays: the CRD allows a change only together with the attempt, which is published at the
        // intent.
        clusterid: old.and_then(|old| old.clusterid.clone()).filter(|id| !id.is_empty()).or(cluster),
        jobid,
        jobs,
        uniqid: old.and_then(|old| old.uniqid),
        jobids: old.map(|old| old.jobids.clone()).unwrap_or_default(),
        node_faults: NodeFaultCounts::of(record).as_ref().map(NodeFaultsStatus::from),
        // Until the pool was reconciled, the former value stays.
        mini_cluster: own_workers.or_else(|| old.and_then(|old| old.mini_cluster.clone())),
        ..common.build(pass)
    }
}

/// Returns the first ids one by one, and all ids as ranges.
fn listed(record: &Record, facts: &Facts, old: Option<&HTCJobStatus>) -> (Vec<String>, Option<String>) {
    let texts = |ids: &[JobId]| (ids.iter().take(IDS).map(JobId::to_string).collect(), id_ranges(ids, RANGES));
    match facts.object.published.to_list(record) {
        Listed::Nothing => (Vec::new(), None),
        Listed::All(ids) => {
            let (first, all) = texts(&ids);
            (first, Some(all))
        }
        Listed::Partly if record.jobs.is_empty() => {
            old.map(|old| (old.jobid.clone(), old.jobs.clone())).unwrap_or_default()
        }
        Listed::Partly => {
            let mut ids: Vec<JobId> = record.jobs.values().map(|job| job.id).collect();
            ids.sort_unstable();
            let (first, mut some) = texts(&ids);
            // All jobs of the Go operator are known. Any other partial list must be recognizable as cut.
            if !record.has_inherited() && !some.ends_with(CUT) {
                some.push_str(CUT);
            }
            (first, Some(some))
        }
    }
}

/// Returns the schedd that has the jobs. It may differ from the one that this operator queries.
fn schedd_with_jobs<'a>(record: &'a Record, published: &'a Published, asked: &'a ScheddName) -> &'a ScheddName {
    let last = record.attempts.iter().next_back().map(|attempt| &attempt.schedd);
    record.schedds.iter().find(|schedd| !schedd.is_same(asked)).or(last).or(published.schedd.as_ref()).unwrap_or(asked)
}
