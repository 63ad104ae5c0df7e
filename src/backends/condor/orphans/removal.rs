//! Removes orphans on a person's request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use htc_machine::facts::JobStatus;
use htc_machine::{JobId, Uid};
use htc_support::kubernetes::htcjob_uids as objects;
use htcondor::Schedd;
use htcondor::orphans::Orphan;
use kube::Client;

use super::OrphanError;
use crate::backends::condor::credentials::Credentials;

/// Maximum number of jobs that one call removes: their ids and uids fit into one argument.
const AT_ONCE: usize = 1000;

/// Jobs that were not removed, with the reason.
pub type NotRemoved = BTreeMap<JobId, String>;

/// Removes these jobs as their own HTCondor users, unless their HTCJob exists again. Returns the jobs that remain, with
/// the reasons.
pub async fn remove(
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    namespace: Option<&str>,
    jobs: &[Orphan],
) -> Result<NotRemoved, OrphanError> {
    let mut whose: BTreeMap<&str, Vec<&Orphan>> = BTreeMap::new();
    for job in jobs {
        whose.entry(&job.user).or_default().push(job);
    }
    let mut why = NotRemoved::new();
    let mut stay = |jobs: &[&Orphan], message: &str| why.extend(jobs.iter().map(|job| (job.id, message.to_owned())));
    for (user, its) in whose {
        let acting = match acting(schedd, credentials, user).await {
            Ok(acting) => acting,
            Err(error) => {
                stay(&its, &error.to_string());
                continue;
            }
        };
        for part in its.chunks(AT_ONCE) {
            // Checked right before each call, because obtaining credentials and the earlier calls take time.
            let there = match objects(client, namespace).await {
                Ok(there) => there,
                Err(error) => {
                    stay(part, &format!("it is not known whether its HTCJob is there again: {error}"));
                    continue;
                }
            };
            let (again, gone): (Vec<&Orphan>, Vec<&Orphan>) = part.iter().partition(|job| there.contains(&job.uid));
            stay(&again, "its HTCJob is there again");
            if !gone.is_empty()
                && let Err(unknown) = acting.remove_orphans(&gone).await
            {
                stay(&gone, &unknown.message);
            }
        }
    }
    // The output of the tools proves nothing, so the queue is queried again.
    let uids: BTreeSet<&Uid> = jobs.iter().map(|job| &job.uid).collect();
    let left = schedd.orphans_of(&uids.into_iter().cloned().collect::<Vec<_>>()).await;
    let left = left.map_err(OrphanError::NotVerified)?;
    let asked: BTreeSet<JobId> = jobs.iter().map(|job| job.id).collect();
    let stays = left.into_iter().filter(|job| asked.contains(&job.id) && job.status != JobStatus::Removed);
    Ok(stays
        .map(|job| (job.id, why.remove(&job.id).unwrap_or_else(|| "HTCondor did not remove it".to_owned())))
        .collect())
}

/// Returns the schedd with credentials of this user. If no credentials belong to that user now, returns it with
/// credentials that once did.
async fn acting(schedd: &Schedd, credentials: &Credentials, user: &str) -> Result<Arc<Schedd>, OrphanError> {
    let mut others = Err(OrphanError::UnknownUser);
    for identity in schedd.users.identities_of(user) {
        match credentials.refresh_and_wait(&identity).await {
            Ok(acting) if acting.ask_user().await.is_ok_and(|now| now == user) => return Ok(acting),
            found => others = others.or(found.map_err(OrphanError::from)),
        }
    }
    others
}
