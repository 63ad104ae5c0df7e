//! The parts of the spec that decisions of all backends depend on.

use std::collections::BTreeMap;
use std::time::Duration;

use htc_api::{FrozenFile, HTCJob, InputStatus};
use htc_ledger::LedgerError;
use htc_machine::facts::{Spec, Unreadable};
use htc_machine::{Index, Indices};
use htc_submit::spec;

use super::GatherError;
use super::config_maps::{ReadOnce, SpecState};
use super::inputs::InputSources;
use super::pass::Pass;
use super::{inputs as input_files, items as item_lists};

/// Spec without `refused`, which depends on the backend.
pub(super) struct RequestedSpec {
    pub(super) spec: Spec,
    /// Files that its jobs get.
    pub(super) inputs: Vec<InputStatus>,
    /// Why nothing more can be submitted: its items or its files were lost with a ledger. The number of jobs is then
    /// the published one.
    pub(super) lost: Option<&'static str>,
}

/// Reads the spec. Items and files that come from ConfigMaps are read once, and kept in the ledger.
///
/// `invalid`: why the rest of the spec cannot be submitted; it is reported before errors of items and files. `lost_count`: the
/// number of items of an object that has lost them, if its status does not have it.
pub(super) async fn read_spec(
    pass: &Pass<'_>,
    job: &HTCJob,
    state: &SpecState,
    invalid: impl FnOnce() -> Option<String>,
    lost_count: impl FnOnce() -> Option<u32>,
) -> Result<Result<RequestedSpec, Unreadable>, GatherError> {
    let (mut items, mut inputs, mut lost) = (None, Vec::new(), None);
    let sources = InputSources::of(job, &pass.context.planner.rules);
    if (job.spec.items_from.is_some() || sources.is_some())
        && !state.submitted
        && let Some(message) = invalid()
    {
        return Ok(Err(Unreadable::invalid(message)));
    }
    if let Some(from) = &job.spec.items_from {
        items = match item_lists::kept(pass, job, &from.config_map_key_ref, state).await? {
            ReadOnce::Kept(items) => Some(items),
            ReadOnce::Lost => {
                lost = Some(item_lists::LOST);
                item_lists::published_queue(job).or_else(lost_count)
            }
            ReadOnce::NotYet(unreadable) => return Ok(Err(unreadable)),
        };
    }
    if let Some(sources) = sources {
        match input_files::kept(pass, job, &sources, state).await? {
            ReadOnce::Kept(kept) => inputs = kept,
            ReadOnce::Lost => lost = Some(input_files::LOST),
            ReadOnce::NotYet(unreadable) => return Ok(Err(unreadable)),
        }
    }
    let limit = |limit: Option<i64>| limit.map(|limit| u32::try_from(limit.max(0)).unwrap_or(u32::MAX));
    let seconds =
        |seconds: Option<i64>| seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    let spec = spec::queue(&job.spec, items).and_then(|queue| {
        Ok(Spec {
            queue,
            indexes: spec::indexes(&job.spec, queue)?,
            suspend: job.spec.suspend,
            parallelism: limit(job.spec.parallelism),
            max_failed: limit(job.spec.max_failed_indexes),
            deadline: seconds(job.spec.active_deadline_seconds),
            ttl: seconds(job.spec.ttl_seconds_after_finished),
            refused: None,
        })
    });
    Ok(spec.map(|spec| RequestedSpec { spec, inputs, lost }).map_err(|error| Unreadable::invalid(error.to_string())))
}

/// Returns the items of these jobs, from the spec or as they were read; none if the jobs have no items.
pub(super) async fn items(
    pass: &Pass<'_>,
    job: &HTCJob,
    indices: &Indices,
) -> Result<BTreeMap<Index, String>, LedgerError> {
    if job.spec.items_from.is_some() {
        return pass.context.ledger.items(&pass.uid, indices).await;
    }
    let item = |index: Index| Some((index, job.spec.items.get(index.0 as usize)?.clone()));
    Ok(indices.iter().filter_map(item).collect())
}

/// Returns the variables of the jobs that were read.
pub(super) async fn variables(pass: &Pass<'_>, job: &HTCJob) -> Result<Vec<(String, String)>, LedgerError> {
    if job.spec.env.iter().all(|variable| variable.value_from.is_none()) {
        return Ok(Vec::new());
    }
    pass.context.ledger.variables(&pass.uid).await
}

/// Returns the files of the jobs, as they were read.
pub(super) async fn files(pass: &Pass<'_>, job: &HTCJob) -> Result<Vec<FrozenFile>, LedgerError> {
    if job.spec.files.is_empty() { Ok(Vec::new()) } else { pass.context.ledger.files(&pass.uid).await }
}
