//! Items from a ConfigMap: read once, before the first submission, and stored in the ledger.

use htc_api::{ConfigMapKeyRef, HTCJob, HTCJobSpec, MAX_QUEUE};
use htc_submit::items::{ItemsError, items_of};
use htc_support::consent::SourceError;

use super::GatherError;
use super::config_maps::{ReadOnce, SpecState, get};
use super::memory::Content;
use super::pass::Pass;

/// Message for an HTCJob whose items are lost: nothing more is submitted.
pub(super) const LOST: &str = "spec.itemsFrom: the items were lost with the operator's ledger, and the ConfigMap may have changed. HTCondor's jobs are followed, and no others are submitted: create a new HTCJob for those";

/// Returns the number of items in the ledger. Reads the ConfigMap if the ledger has none; after a failure only once a
/// pause has passed.
pub(super) async fn kept(
    pass: &Pass<'_>,
    job: &HTCJob,
    from: &ConfigMapKeyRef,
    state: &SpecState,
) -> Result<ReadOnce<u32>, GatherError> {
    let Pass { context, uid, .. } = pass;
    if let Some(items) = context.ledger.count_items(uid).await? {
        context.memory.read_succeeded(uid, Content::Items);
        return Ok(ReadOnce::Kept(items));
    }
    if let Some(known) = ReadOnce::before_reading(pass, Content::Items, state) {
        return Ok(known);
    }
    Ok(match read(pass, &job.spec, from).await {
        Ok(items) => ReadOnce::Kept(context.ledger.keep_items(uid, items).await?),
        Err(error) => ReadOnce::failed(pass, Content::Items, &error),
    })
}

/// Reason why the items cannot be read. It is tried again after a pause.
#[derive(Debug, thiserror::Error)]
enum ItemsReadError {
    #[error(transparent)]
    ConfigMap(#[from] SourceError),
    #[error("there is no ConfigMap {name}: create it with the key {key:?}")]
    Missing { name: String, key: String },
    #[error("the key {key:?} of the ConfigMap {name} is not text: write it as UTF-8")]
    NotText { name: String, key: String },
    #[error("the ConfigMap {name} has no key {key:?}: add it, with one item in each line")]
    NoKey { name: String, key: String },
    #[error("the key {key:?} of the ConfigMap {name} {problem}")]
    Items { name: String, key: String, problem: ItemsError },
    #[error(
        "the key {key:?} of the ConfigMap {name} has {lines} lines, and spec.queue is {jobs}: correct the ConfigMap, or create the HTCJob without spec.queue"
    )]
    Count { name: String, key: String, lines: usize, jobs: i64 },
}

/// Reads the items and checks them against the spec.
async fn read(pass: &Pass<'_>, spec: &HTCJobSpec, from: &ConfigMapKeyRef) -> Result<Vec<String>, ItemsReadError> {
    let name = format!("{}/{}", pass.name.namespace, from.name);
    let key = from.key.clone();
    let map = match get(pass, Content::Items, &from.name).await {
        Err(SourceError::Missing { name, .. }) => return Err(ItemsReadError::Missing { name, key }),
        map => map?,
    };
    let Some(text) = map.data.unwrap_or_default().remove(&key) else {
        let binary = map.binary_data.unwrap_or_default().contains_key(&key);
        return Err(if binary { ItemsReadError::NotText { name, key } } else { ItemsReadError::NoKey { name, key } });
    };
    let items = match items_of(&text) {
        Ok(items) => items,
        Err(problem) => return Err(ItemsReadError::Items { name, key, problem }),
    };
    match spec.job_count() {
        Some(jobs) if i64::try_from(items.len()) != Ok(jobs) => {
            Err(ItemsReadError::Count { name, key, lines: items.len(), jobs })
        }
        Some(_) | None => Ok(items),
    }
}

/// Returns the number of jobs according to the status, for items that are lost. If `spec.indexes` selects some of the
/// jobs, the spec has their numbers.
pub(super) fn published_queue(job: &HTCJob) -> Option<u32> {
    let total = job.status.as_ref().and_then(|status| status.total);
    let queue = if job.spec.indexes.is_some() { Some(MAX_QUEUE) } else { total };
    queue.and_then(|queue| u32::try_from(queue).ok()).filter(|queue| *queue > 0)
}
