//! Whether there are `HTCQueue`s to work with, and the operator has the rights that they take.

use kube::Client;
use kube::api::{Api, ListParams};

use super::access::denied;
use crate::api::{Guarded, HTCQueue};
use crate::kubernetes::{ApiError, limited};

/// What it takes, of what is in no namespace: group, resource, verb.
const RIGHTS: [(&str, &str, &str); 5] = [
    ("htc.cern.ch", "htcqueues", "list"),
    ("htc.cern.ch", "htcqueues", "watch"),
    ("htc.cern.ch", "htcqueues/status", "patch"),
    ("", "namespaces", "list"),
    ("", "namespaces", "watch"),
];

/// What is missing, or how many there are.
pub(super) async fn rights(client: &Client) -> Result<String, String> {
    let missing = denied(client, None, &RIGHTS).await.map_err(|error: ApiError| error.to_string())?;
    if let Some(missing) = missing {
        return Err(format!("the operator may not {missing}: the ClusterRole of deploy/base has the rights"));
    }
    let api: Api<Guarded<HTCQueue>> = Api::all(client.clone());
    match limited("list", &"HTCQueues", api.list(&ListParams::default())).await {
        Ok(queues) => {
            let unreadable: Vec<&str> =
                queues.iter().filter_map(|queue| queue.0.as_ref().err()?.metadata.name.as_deref()).collect();
            if unreadable.is_empty() {
                Ok(format!("the operator finds {} HTCQueues", queues.items.len()))
            } else {
                Err(format!("these HTCQueues cannot be read, and HTCJobs that may be in them wait: {}", unreadable.join(", ")))
            }
        }
        Err(error) if error.code() == Some(404) => Err(
            "the API server does not serve HTCQueues, so that every HTCJob waits: apply deploy/crd, or use --queueing=none".to_owned(),
        ),
        Err(error) => Err(error.to_string()),
    }
}
