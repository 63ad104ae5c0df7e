//! Checks whether `HTCQueue`s exist, and the operator has the rights to use them.

use htc_api::{Guarded, HTCQueue};
use htc_support::kubernetes::with_timeout;
use kube::Client;
use kube::api::{Api, ListParams};

use super::access::denied;
use super::error::CheckError;

/// Rights that are needed for resources without namespace: group, resource, verb.
const RIGHTS: [(&str, &str, &str); 5] = [
    ("htc.cern.ch", "htcqueues", "list"),
    ("htc.cern.ch", "htcqueues", "watch"),
    ("htc.cern.ch", "htcqueues/status", "patch"),
    ("", "namespaces", "list"),
    ("", "namespaces", "watch"),
];

/// Returns the number of queues, or the missing rights as an error.
pub(super) async fn rights(client: &Client) -> Result<String, CheckError> {
    if let Some(missing) = denied(client, None, &RIGHTS).await? {
        let remedy = "the ClusterRole of deploy/base has the rights".to_owned();
        return Err(CheckError::NotPermitted { missing, remedy });
    }
    let api: Api<Guarded<HTCQueue>> = Api::all(client.clone());
    match with_timeout("list", &"HTCQueues", api.list(&ListParams::default())).await {
        Ok(queues) => {
            let unreadable: Vec<String> =
                queues.iter().filter_map(|queue| queue.0.as_ref().err()?.metadata.name.clone()).collect();
            if unreadable.is_empty() {
                Ok(format!("the operator finds {} HTCQueues", queues.items.len()))
            } else {
                Err(CheckError::UnreadableQueues(unreadable))
            }
        }
        Err(error) if error.code() == Some(404) => Err(CheckError::NoHTCQueues),
        Err(error) => Err(error.into()),
    }
}
