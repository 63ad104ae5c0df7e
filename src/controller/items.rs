//! Items from a ConfigMap: read once, when nothing has been submitted yet, and kept in the ledger.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::Api;

use super::{Context, GatherError};
use crate::api::{ConfigMapKeyRef, HTCJob, HTCJobSpec, MAX_QUEUE, ObjectName, Reason, Use};
use crate::kubernetes::limited;
use crate::machine::Uid;
use crate::machine::facts::{Published, Record, Unreadable};
use crate::workers::items_of;

/// What is known of the number of jobs of an HTCJob that takes its items from a ConfigMap.
pub(super) enum Kept {
    /// So many items are kept.
    Items(u32),
    /// Jobs of it were submitted, and their items are gone with a ledger.
    Lost,
    /// It is not known yet.
    NotYet(Unreadable),
}

/// Why nothing more is submitted of an HTCJob whose items are lost.
pub(super) const LOST: &str = "spec.itemsFrom: the items were lost with the operator's ledger, and the ConfigMap may have changed. HTCondor's jobs are followed, and no others are submitted: create a new HTCJob for those";

/// The object whose items are asked for.
pub(super) struct Row<'a> {
    pub(super) uid: &'a Uid,
    pub(super) name: &'a ObjectName,
    /// It has our finalizer and is not being deleted.
    pub(super) ours: bool,
    /// The ledger has a row of it.
    pub(super) recorded: bool,
    /// Jobs of it were submitted.
    pub(super) submitted: bool,
}

/// Whether jobs of an object were submitted to HTCondor.
pub(super) fn submitted(record: &Record, published: &Published) -> bool {
    let recorded = record.highest.0 > 0 || !record.jobs.is_empty();
    recorded || published.attempt > 0 || published.shows_jobs()
}

/// The items of an object that has them in a ConfigMap, from the ledger; if they are not there, they are read now. After a failure
/// that is done again after a pause.
pub(super) async fn kept(
    asked: &Row<'_>,
    job: &HTCJob,
    from: &ConfigMapKeyRef,
    context: &Context,
) -> Result<Kept, GatherError> {
    if let Some(items) = context.ledger.count_items(asked.uid).await? {
        context.volatile.items_are_kept(asked.uid);
        return Ok(Kept::Items(items));
    }
    // What the ConfigMap has now need not be what those jobs have got.
    if asked.submitted {
        return Ok(Kept::Lost);
    }
    if !asked.ours || !asked.recorded {
        let message = "the items are read once the HTCJob is recorded".to_owned();
        let again = asked.ours.then_some(std::time::Duration::ZERO);
        return Ok(Kept::NotYet(Unreadable { reason: Reason::Waiting, message, again }));
    }
    let now = context.clock.now();
    let unavailable =
        |message, again| Ok(Kept::NotYet(Unreadable { reason: Reason::ItemsUnavailable, message, again: Some(again) }));
    if let Some((message, wait)) = context.volatile.items_failed_before(asked.uid, now) {
        return unavailable(message, wait);
    }
    match read(&context.client, &asked.name.namespace, &job.spec, from).await {
        Ok(items) => Ok(Kept::Items(context.ledger.keep_items(asked.uid, items).await?)),
        Err(message) => {
            let wait = context.volatile.items_failed(asked.uid, &message, now);
            unavailable(message, wait)
        }
    }
}

/// The items, if they are as the spec wants them; why not, in words for the user.
async fn read(
    client: &Client,
    namespace: &str,
    spec: &HTCJobSpec,
    from: &ConfigMapKeyRef,
) -> Result<Vec<String>, String> {
    let ConfigMapKeyRef { name, key } = from;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let full = format!("{namespace}/{name}");
    let found = match limited("read the ConfigMap", &full, api.get_opt(name)).await {
        Ok(found) => found,
        Err(error) if matches!(error.code(), Some(401 | 403)) => {
            return Err(format!(
                "the operator may not read the ConfigMap {full}: ask an administrator of the namespace for a Role and a RoleBinding for `get` on it, as in docs/using.md"
            ));
        }
        Err(error) => return Err(error.to_string()),
    };
    let found = found.ok_or_else(|| format!("there is no ConfigMap {full}: create it with the key {key:?}"))?;
    Use::Items.is_allowed_by(&found).map_err(|error| error.to_string())?;
    let of_key = format!("the key {key:?} of the ConfigMap {full}");
    let text = found.data.unwrap_or_default().remove(key);
    let binary = found.binary_data.unwrap_or_default().contains_key(key);
    let text = text.ok_or_else(|| {
        if binary {
            format!("{of_key} is not text: write it as UTF-8")
        } else {
            format!("the ConfigMap {full} has no key {key:?}: add it, with one item in each line")
        }
    })?;
    let items = items_of(&text).map_err(|why| format!("{of_key} {why}"))?;
    match spec.jobs() {
        Some(jobs) if i64::try_from(items.len()) != Ok(jobs) => Err(format!(
            "{of_key} has {} lines, and spec.queue is {jobs}: correct the ConfigMap, or create the HTCJob without spec.queue",
            items.len()
        )),
        Some(_) | None => Ok(items),
    }
}

/// How many jobs there are by what the status says, if the items are lost; of some of them the numbers are in the spec.
pub(super) fn published_queue(job: &HTCJob) -> Option<u32> {
    let total = job.status.as_ref().and_then(|status| status.total);
    let queue = if job.spec.indexes.is_some() { Some(MAX_QUEUE) } else { total };
    queue.and_then(|queue| u32::try_from(queue).ok()).filter(|queue| *queue > 0)
}
