//! Finds orphans: jobs of this operator in HTCondor whose HTCJob is gone, because its finalizer was removed by hand or
//! etcd was restored. They are counted and listed, and removed only on a person's request.

mod removal;

use std::collections::BTreeMap;
use std::time::Duration;

use htc_machine::Uid;
use htc_machine::facts::QueryError;
use htc_machine::ids::{IDS_IN_LINE, JobId, id_lines};
use htc_support::kubernetes::{ListError, htcjob_uids};
use htc_support::metrics::Metrics;
use htc_support::retry::Backoff;
use htcondor::Schedd;
use htcondor::query::AdListing;
use kube::Client;

use crate::backends::condor::credentials::Credentials;

pub use removal::{NotRemoved, remove};

/// Reason why the orphans are not known, or were not removed.
#[derive(Debug, thiserror::Error)]
pub enum OrphanError {
    /// HTCondor did not answer.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// It is not known which HTCJobs exist.
    #[error(transparent)]
    List(#[from] ListError),
    /// HTCondor answered for some of its users.
    #[error("HTCondor does not show the jobs of {}, though those of others", .0.join(", "))]
    UnansweredUsers(Vec<String>),
    /// No identity of the operator is this user.
    #[error("the operator does not know whose name that is")]
    UnknownUser,
    /// Jobs may have been removed.
    #[error("it is not known what is left: {0}")]
    NotVerified(#[source] QueryError),
}

/// Jobs of this operator in HTCondor that belong to no HTCJob in the API server, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanReport {
    /// Orphans, with the uid of the HTCJob that is gone.
    pub orphans: BTreeMap<JobId, Uid>,
    /// Jobs without the label of the watched namespace, if only one is watched. The operator's name does not tell which
    /// namespaces it watches, so these jobs may be its own, from a time when it watched other namespaces.
    pub elsewhere: Vec<JobId>,
    /// Number of jobs whose ad is unreadable or does not name an HTCJob.
    pub unreadable: usize,
}

impl OrphanReport {
    /// Returns the ids of the orphans.
    #[must_use]
    pub fn ids(&self) -> Vec<JobId> {
        self.orphans.keys().copied().collect()
    }
}

/// Finds the orphans. If `namespace` is given, only HTCJobs in that namespace are compared.
pub async fn find(
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    namespace: Option<&str>,
) -> Result<OrphanReport, OrphanError> {
    credentials.learn_users().await?;
    let shown = whole(schedd.queue().await)?;
    let unreadable = shown.count_unreadable();
    let none = OrphanReport { unreadable, ..OrphanReport::default() };
    if shown.ads.is_empty() {
        return Ok(none);
    }
    // The objects are listed after the jobs, so a job whose object was created before it is never taken for an orphan.
    let objects = htcjob_uids(client, namespace).await?;
    let stray = |AdListing { ads, .. }: &AdListing| -> BTreeMap<JobId, Uid> {
        let gone = ads.iter().filter(|(uid, _)| !objects.contains(*uid));
        gone.flat_map(|(uid, ads)| ads.iter().map(|ad| (ad.id, uid.clone()))).collect()
    };
    let mut left = stray(&shown);
    if left.is_empty() {
        return Ok(none);
    }
    // Excludes jobs that left the queue, together with their object, between the two queries.
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

/// Returns the answer, or an error if it lacks the jobs of some users.
fn whole(answer: Result<AdListing, QueryError>) -> Result<AdListing, OrphanError> {
    let shown = answer?;
    if shown.unanswered_users.is_empty() {
        return Ok(shown);
    }
    Err(OrphanError::UnansweredUsers(shown.unanswered_users.into_iter().collect()))
}

/// Counts the orphans once and logs them, as soon as both the API server and the schedd answer. Nothing waits for this.
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
                    tracing::info!(orphans = 0, "no orphans in HTCondor");
                }
                if !orphans.is_empty() {
                    metrics.orphans(orphans.len());
                }
                if unreadable > 0 {
                    tracing::warn!(unreadable, "job ads unreadable, their attributes were changed");
                }
                tell(&orphans, &elsewhere);
                return;
            }
            Err(error) => tracing::debug!(message = %error, "orphans not counted yet"),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

fn tell(orphans: &[JobId], elsewhere: &[JobId]) {
    for ids in id_lines(orphans, IDS_IN_LINE) {
        tracing::warn!(orphans = orphans.len(), %ids, "orphans in HTCondor, remove them with `htc-operator orphans --remove`");
    }
    for ids in id_lines(elsewhere, IDS_IN_LINE) {
        tracing::warn!(elsewhere = elsewhere.len(), %ids, "jobs outside the watched namespace in HTCondor");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// Number of HTCJobs that are read from this answer of the API server, if it is accepted.
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
        let found = htcjob_uids(&client, None).await;
        server.join().unwrap();
        found.ok().map(|uids| uids.len())
    }

    /// If an HTCJob is missing in the list, its jobs would be taken for orphans.
    #[rstest]
    #[case::complete_list(json!({}), json!([{ "metadata": { "uid": "1" } }, { "metadata": { "uid": "2" } }]), Some(2))]
    #[case::empty_list(json!({ "continue": "" }), json!([]), Some(0))]
    #[case::undecodable_item(json!({}), json!([{ "metadata": { "uid": "1", "creationTimestamp": 7 } }]), Some(1))]
    #[case::continued_list(json!({ "continue": "x" }), json!([{ "metadata": { "uid": "1" } }]), None)]
    #[case::item_without_uid(json!({}), json!([{ "metadata": { "uid": "1" } }, { "metadata": {} }]), None)]
    #[case::invalid_list(json!({}), json!(7), None)]
    #[tokio::test]
    async fn incomplete_htcjob_list_finds_no_orphans(
        #[case] metadata: Value,
        #[case] items: Value,
        #[case] expected: Option<usize>,
    ) {
        let answer = json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": metadata, "items": items });
        assert_eq!(known(&answer).await, expected);
    }
}
