//! Builds the status of an object whose jobs are Pods.

use htc_api::HTCJobStatus;
use htc_machine::facts::Spec;
use htc_machine::pods::{counts, indexes};
use htc_machine::runs::RunsRecord;

use super::gather::PodsGathered;
use crate::htcjob::pass::Pass;
use crate::htcjob::status::CommonStatus;

/// Builds the status from `record`.
pub(super) fn status(pass: &Pass<'_>, record: &RunsRecord, gathered: &PodsGathered) -> HTCJobStatus {
    let facts = &gathered.facts;
    let asked_for = facts.object.spec.as_ref().map(Spec::asked_for).unwrap_or_default();
    let common = CommonStatus {
        row: record.row.as_ref(),
        spec: facts.object.spec.as_ref().ok(),
        counts: counts(record),
        indexes: indexes(record, &asked_for),
        queue: facts.queue.as_ref(),
        inputs: &gathered.inputs,
    };
    let published = || pass.status().and_then(|old| old.job_name.clone());
    HTCJobStatus {
        job_name: record.job.is_some().then(|| facts.object.job_name.clone()).or_else(published),
        ..common.build(pass)
    }
}
