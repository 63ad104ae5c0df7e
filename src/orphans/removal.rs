//! Removes orphans, for a person who has said so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::Client;

use super::objects;
use crate::condor::Schedd;
use crate::condor::left::Left;
use crate::credentials::Credentials;
use crate::machine::facts::JobStatus;
use crate::machine::{JobId, Uid};

/// Most jobs that one call removes: their ids and uids fit into one argument.
const AT_ONCE: usize = 1000;

/// Why a job is still there.
pub type Stays = BTreeMap<JobId, String>;

/// Removes these jobs, each in the name that it is in, unless its HTCJob is there again; those that are still there, and why.
pub async fn remove(
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    namespace: Option<&str>,
    jobs: &[Left],
) -> Result<Stays, String> {
    let mut whose: BTreeMap<&str, Vec<&Left>> = BTreeMap::new();
    for job in jobs {
        whose.entry(&job.user).or_default().push(job);
    }
    let mut why = Stays::new();
    let mut stay = |jobs: &[&Left], message: &str| why.extend(jobs.iter().map(|job| (job.id, message.to_owned())));
    for (user, its) in whose {
        let acting = match acting(schedd, credentials, user).await {
            Ok(acting) => acting,
            Err(message) => {
                stay(&its, &message);
                continue;
            }
        };
        for part in its.chunks(AT_ONCE) {
            // Right before each call: credentials take their time, and so do the calls before.
            let there = match objects(client, namespace).await {
                Ok(there) => there,
                Err(error) => {
                    stay(part, &format!("it is not known whether its HTCJob is there again: {error}"));
                    continue;
                }
            };
            let (again, gone): (Vec<&Left>, Vec<&Left>) = part.iter().partition(|job| there.contains(&job.uid));
            stay(&again, "its HTCJob is there again");
            if !gone.is_empty()
                && let Err(unknown) = acting.remove_left(&gone).await
            {
                stay(&gone, &unknown.message);
            }
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

/// HTCondor in this user's name; if no credentials are that user's now, in the name of some that were.
async fn acting(schedd: &Schedd, credentials: &Credentials, user: &str) -> Result<Arc<Schedd>, String> {
    let mut others = Err("the operator does not know whose name that is".to_owned());
    for identity in schedd.users.identities_of(user) {
        match credentials.look_for(&identity).await {
            Ok(acting) if acting.identity().await.is_ok_and(|now| now == user) => return Ok(acting),
            found => others = others.or(found),
        }
    }
    others
}
