//! Jobs of this operator in HTCondor whose HTCJob is gone: its finalizer was taken away by hand, or etcd was restored. They
//! are counted and named, and removed only if a person says so.

mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::ListParams;
use kube::core::{ObjectList, PartialObjectMeta, Request};
use kube::{Client, ResourceExt};

use crate::api::{Guarded, HTCJob};
use crate::condor::Schedd;
use crate::condor::query::Shown;
use crate::credentials::Credentials;
use crate::kubernetes::limited;
use crate::machine::Uid;
use crate::machine::facts::Unknown;
use crate::machine::ids::{IDS_IN_LINE, JobId, id_lines};
use crate::metrics::Metrics;
use crate::retry::Backoff;

pub use removal::{Stays, remove};

/// Jobs of this operator in HTCondor that belong to no HTCJob that can be seen, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanReport {
    /// Their HTCJob is gone: this one.
    pub orphans: BTreeMap<JobId, Uid>,
    /// Where one namespace is watched: jobs that do not say that they are of it. What this operator is called does not tell
    /// which namespace it watches, so they may be its own from when it watched others.
    pub elsewhere: Vec<JobId>,
    /// How many jobs have an ad that cannot be read, or that does not say whose it is.
    pub unreadable: usize,
}

impl OrphanReport {
    /// Those that are orphans.
    #[must_use]
    pub fn ids(&self) -> Vec<JobId> {
        self.orphans.keys().copied().collect()
    }
}

/// Looks for them; for the HTCJobs in `namespace` alone where one is watched.
pub async fn find(
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    namespace: Option<&str>,
) -> Result<OrphanReport, String> {
    credentials.learn_users().await.map_err(|unknown| unknown.message)?;
    let shown = whole(schedd.queue().await)?;
    let unreadable = shown.count_unreadable();
    let none = OrphanReport { unreadable, ..OrphanReport::default() };
    if shown.ads.is_empty() {
        return Ok(none);
    }
    // The objects are listed after the jobs: a job whose object was made before it is then no orphan.
    let objects = objects(client, namespace).await?;
    let stray = |Shown { ads, .. }: &Shown| -> BTreeMap<JobId, Uid> {
        let gone = ads.iter().filter(|(uid, _)| !objects.contains(*uid));
        gone.flat_map(|(uid, ads)| ads.iter().map(|ad| (ad.id, uid.clone()))).collect()
    };
    let mut left = stray(&shown);
    if left.is_empty() {
        return Ok(none);
    }
    // Jobs that went between the two answers, and their object with them, are none either.
    let still = stray(&whole(schedd.queue().await)?);
    left.retain(|id, uid| still.get(id) == Some(uid));
    let Some(namespace) = namespace else {
        return Ok(OrphanReport { orphans: left, ..none });
    };
    let here = stray(&whole(schedd.queue_in(namespace).await)?);
    let (orphans, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        left.into_iter().partition(|(id, _)| here.contains_key(id));
    Ok(OrphanReport { orphans, elsewhere: others.into_keys().collect(), unreadable })
}

/// The answer, if it shows the jobs of all users.
fn whole(answer: Result<Shown, Unknown>) -> Result<Shown, String> {
    let shown = answer.map_err(|unknown| unknown.message)?;
    if shown.silent.is_empty() {
        return Ok(shown);
    }
    let users: Vec<&str> = shown.silent.iter().map(String::as_str).collect();
    Err(format!("HTCondor does not show the jobs of {}, though those of others", users.join(", ")))
}

/// The HTCJobs that exist, in all namespaces or in one.
pub async fn objects(client: &Client, namespace: Option<&str>) -> Result<BTreeSet<Uid>, String> {
    let request =
        Request::new(<HTCJob as kube::Resource>::url_path(&(), namespace)).list_metadata(&ListParams::default());
    let list = async {
        let request = request.map_err(kube::Error::BuildRequest)?;
        client.request::<ObjectList<Guarded<PartialObjectMeta<HTCJob>>>>(request).await
    };
    let list = limited("list", &"HTCJobs", list).await.map_err(|error| error.to_string())?;
    let uids = list.iter().map(|object| object.uid().map(|uid| Uid::from(uid.as_str()))).collect::<Option<_>>();
    let all = list.metadata.continue_.is_none_or(|more| more.is_empty());
    uids.filter(|_| all).ok_or_else(|| "cannot list HTCJobs: the API server does not show all of them".to_owned())
}

/// Counts them once in the log, when both sides have answered; nothing waits for it.
pub async fn count_at_start(
    client: Client,
    schedd: &Schedd,
    credentials: &Credentials,
    namespace: Option<&str>,
    metrics: Metrics,
) {
    let mut backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(600));
    loop {
        match find(&client, schedd, credentials, namespace).await {
            Ok(report) => {
                let (orphans, OrphanReport { elsewhere, unreadable, .. }) = (report.ids(), report);
                if orphans.is_empty() && elsewhere.is_empty() {
                    tracing::info!(orphans = 0, "every job of this operator in HTCondor belongs to an HTCJob");
                }
                if !orphans.is_empty() {
                    metrics.orphans(orphans.len());
                }
                if unreadable > 0 {
                    tracing::warn!(
                        unreadable,
                        "jobs in the names of this operator have ads that it cannot read; somebody has changed their attributes"
                    );
                }
                tell(&orphans, &elsewhere);
                return;
            }
            Err(message) => tracing::debug!(%message, "orphans cannot be counted yet"),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

fn tell(orphans: &[JobId], elsewhere: &[JobId]) {
    for ids in id_lines(orphans, IDS_IN_LINE) {
        tracing::warn!(
            orphans = orphans.len(),
            %ids,
            "jobs of this operator in HTCondor belong to no HTCJob; remove them with `htc-operator orphans --remove` if nobody needs them"
        );
    }
    for ids in id_lines(elsewhere, IDS_IN_LINE) {
        tracing::warn!(
            elsewhere = elsewhere.len(),
            %ids,
            "jobs of this operator in HTCondor do not say that they are of the namespace that is watched: they may be those of HTCJobs in others, from before --watch-namespace was set or changed"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// What is known of the HTCJobs after this answer of the API server.
    async fn known(answer: &Value) -> Option<usize> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, body) = (listener.local_addr().unwrap(), answer.to_string());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}");
            write!(stream, "{head}\r\nConnection: close\r\n\r\n{body}").unwrap();
        });
        let client = Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let found = objects(&client, None).await;
        server.join().unwrap();
        found.ok().map(|uids| uids.len())
    }

    /// An HTCJob that is not shown would have its jobs taken for orphans.
    #[rstest]
    #[case::whole(json!({}), json!([{ "metadata": { "uid": "1" } }, { "metadata": { "uid": "2" } }]), Some(2))]
    #[case::none(json!({ "continue": "" }), json!([]), Some(0))]
    #[case::one_cannot_be_decoded(json!({}), json!([{ "metadata": { "uid": "1", "creationTimestamp": 7 } }]), Some(1))]
    #[case::there_are_more(json!({ "continue": "x" }), json!([{ "metadata": { "uid": "1" } }]), None)]
    #[case::one_does_not_say_which(json!({}), json!([{ "metadata": { "uid": "1" } }, { "metadata": {} }]), None)]
    #[case::no_list(json!({}), json!(7), None)]
    #[tokio::test]
    async fn a_list_of_some_htcjobs_is_none(
        #[case] metadata: Value,
        #[case] items: Value,
        #[case] expected: Option<usize>,
    ) {
        let answer = json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": metadata, "items": items });
        assert_eq!(known(&answer).await, expected);
    }
}
