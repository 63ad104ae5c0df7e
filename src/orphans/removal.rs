//! Removes orphans, for a person who has said so.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;

use super::find;
use crate::condor::Schedd;
use crate::condor::left::Left;
use crate::credentials::Credentials;
use crate::machine::facts::JobStatus;
use crate::machine::{JobId, Uid};

/// Why a job is still there.
pub type Stays = BTreeMap<JobId, String>;

/// Removes these jobs, each in the name that it is in, unless it is no orphan any more; those that are still there, and why. If it cannot
/// be seen now whether they are orphans, none is removed.
pub async fn remove(
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    namespace: Option<&str>,
    jobs: &[Left],
) -> Result<Stays, String> {
    let users: BTreeSet<&str> = jobs.iter().map(|job| job.user.as_str()).collect();
    let mut acting = BTreeMap::new();
    for user in users {
        let acts = match schedd.users.identity_of(user) {
            Some(identity) => credentials.look_for(&identity).await,
            None => Err("the operator does not know whose name that is".to_owned()),
        };
        acting.insert(user, acts);
    }
    // To get credentials takes its time.
    let now = find(client, schedd, credentials, namespace).await;
    let now = now.map_err(|why| format!("nothing is removed: {why}"))?.orphans;
    let mut batches: BTreeMap<(&str, &Uid), Vec<JobId>> = BTreeMap::new();
    let mut why: Stays = BTreeMap::new();
    for job in jobs {
        if now.get(&job.id) == Some(&job.uid) {
            batches.entry((&job.user, &job.uid)).or_default().push(job.id);
        } else {
            why.insert(job.id, "its HTCJob is there again".to_owned());
        }
    }
    for ((user, uid), ids) in batches {
        let removed = match &acting[user] {
            Ok(acting) => acting.remove_left(uid, &ids).await.map_err(|unknown| unknown.message),
            Err(why) => Err(why.clone()),
        };
        if let Err(message) = removed {
            why.extend(ids.into_iter().map(|id| (id, message.clone())));
        }
    }
    // What the tools say proves nothing.
    let uids: BTreeSet<&Uid> = jobs.iter().map(|job| &job.uid).collect();
    let left = schedd.left(&uids.into_iter().cloned().collect::<Vec<_>>()).await;
    let left = left.map_err(|unknown| format!("it is not known what is left: {}", unknown.message))?;
    let asked: BTreeSet<JobId> = jobs.iter().map(|job| job.id).collect();
    let stays = left.into_iter().filter(|job| asked.contains(&job.id) && job.status != JobStatus::Removed);
    Ok(stays
        .map(|job| (job.id, why.remove(&job.id).unwrap_or_else(|| "HTCondor did not remove it".to_owned())))
        .collect())
}
