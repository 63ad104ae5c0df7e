//! Jobs of this operator in HTCondor whose HTCJob is gone: its finalizer was taken away by hand, or etcd was restored. They
//! are counted and named, and never removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};

use crate::api::HTCJob;
use crate::condor::Schedd;
use crate::condor::query::Ads;
use crate::controller::API_LIMIT;
use crate::machine::Uid;
use crate::machine::ids::{IDS_IN_LINE, JobId, id_lines};
use crate::retry::Pauses;

/// Jobs in HTCondor that belong to no HTCJob, by id.
pub async fn orphans(client: &Client, schedd: &Schedd) -> Result<Vec<JobId>, String> {
    let ads = schedd.queue().await.map_err(|unknown| unknown.message)?;
    if ads.is_empty() {
        return Ok(Vec::new());
    }
    // The objects are listed after the jobs: a job whose object was made before it is then no orphan.
    let objects = objects(client, None).await?;
    let stray = |ads: &Ads| -> BTreeSet<JobId> {
        ads.iter().filter(|(uid, _)| !objects.contains(*uid)).flat_map(|(_, ads)| ads.iter().map(|ad| ad.id)).collect()
    };
    let mut left: Vec<JobId> = stray(&ads).into_iter().collect();
    if !left.is_empty() {
        // Jobs that went between the two answers, and their object with them, are none either.
        let still = stray(&schedd.queue().await.map_err(|unknown| unknown.message)?);
        left.retain(|id| still.contains(id));
    }
    Ok(left)
}

/// The HTCJobs that exist, in all namespaces or in one.
pub async fn objects(client: &Client, namespace: Option<&str>) -> Result<BTreeSet<Uid>, String> {
    let client = client.clone();
    let api: Api<PartialObjectMeta<HTCJob>> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let list = tokio::time::timeout(API_LIMIT, api.list_metadata(&ListParams::default())).await;
    let list = list.map_err(|_| "the API server did not answer".to_owned())?.map_err(|error| error.to_string())?;
    Ok(list.iter().filter_map(ResourceExt::uid).map(|uid| Uid::from(uid.as_str())).collect())
}

/// Counts them once in the log, when both sides have answered; nothing waits for it.
pub async fn count_at_start(client: Client, schedd: Arc<Schedd>) {
    let mut pauses = Pauses::new(Duration::from_secs(5), Duration::from_secs(600));
    loop {
        match orphans(&client, &schedd).await {
            Ok(left) if left.is_empty() => {
                tracing::info!(orphans = 0, "every job of this operator in HTCondor belongs to an HTCJob");
                return;
            }
            Ok(left) => {
                crate::metrics::orphans(left.len());
                for ids in id_lines(&left, IDS_IN_LINE) {
                    tracing::warn!(
                        orphans = left.len(),
                        %ids,
                        "jobs of this operator in HTCondor belong to no HTCJob; remove them with condor_rm if nobody needs them"
                    );
                }
                return;
            }
            Err(message) => tracing::debug!(%message, "orphans cannot be counted yet"),
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}
