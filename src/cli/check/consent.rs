//! Checks whether the Secrets and ConfigMaps that `HTCJob`s name allow their use.

use std::collections::BTreeSet;

use htc_api::{Backend, HTCJob, ObjectName, ObservedHTCJob, Phase, Use};
use htc_support::kubernetes::{ApiError, scoped_api, with_timeout};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::error::CheckError;

/// Maximum number of objects that are checked.
const OBJECTS: usize = 200;

/// Lists the objects without the label, with the commands that set it. `None` if no `HTCJob` names an object.
pub(super) async fn labels(client: &Client, namespace: Option<&str>) -> Option<Result<String, CheckError>> {
    match ask(client, namespace).await {
        Ok(asked) if asked.named == 0 => None,
        Ok(asked) => Some(in_words(asked)),
        Err(error) => Some(Err(error.into())),
    }
}

/// Objects that `HTCJob`s name.
struct ConsentReport {
    named: usize,
    /// Commands for the objects that can be read and have no label.
    unlabelled: Vec<String>,
    left_out: usize,
}

fn in_words(asked: ConsentReport) -> Result<String, CheckError> {
    let ConsentReport { named, unlabelled, left_out } = asked;
    let more = if left_out == 0 { String::new() } else { format!("; {left_out} more were not asked about") };
    if unlabelled.is_empty() {
        let said = "those of them that are there and may be read have the label";
        return Ok(format!("HTCJobs name {named} Secrets and ConfigMaps; {said}{more}"));
    }
    Err(CheckError::Unlabelled { commands: unlabelled, more })
}

async fn ask(client: &Client, namespace: Option<&str>) -> Result<ConsentReport, ApiError> {
    let objects: Api<ObservedHTCJob> = scoped_api(client, namespace);
    let listed = with_timeout("list", &"HTCJobs", objects.list(&ListParams::default())).await?;
    let named: BTreeSet<(Use, ObjectName)> = listed
        .items
        .iter()
        .filter_map(|object| Some((object.namespace()?, object.0.as_ref().ok()?)))
        .flat_map(|(namespace, job)| {
            uses(job).into_iter().map(move |(what, name)| (what, ObjectName { namespace: namespace.clone(), name }))
        })
        .collect();
    let mut unlabelled = Vec::new();
    for (what, object) in named.iter().take(OBJECTS) {
        if !is_allowed(client, *what, object).await? {
            unlabelled.push(what.command(object));
        }
    }
    Ok(ConsentReport { named: named.len(), unlabelled, left_out: named.len().saturating_sub(OBJECTS) })
}

/// Returns the objects that an `HTCJob` still needs. It reads its items before anything is submitted.
fn uses(job: &HTCJob) -> Vec<(Use, String)> {
    let pending = job.status.as_ref().is_none_or(|status| matches!(status.phase, None | Some(Phase::Pending)));
    let items = job.spec.items_from.as_ref().filter(|_| pending).map(|from| &from.config_map_key_ref.name);
    let secret = job.spec.credentials_secret_name.as_ref();
    let items = items.map(|name| (Use::Items, name.clone()));
    let files = job.spec.files.iter().filter(|_| pending).filter_map(|file| file.config_map.as_ref());
    let files: BTreeSet<&String> = files.map(|map| &map.name).collect();
    let files = files.into_iter().map(|name| (Use::Files, name.clone()));
    let env = job.spec.env.iter().filter_map(|variable| variable.value_from.as_ref());
    let maps = env.clone().filter(|_| pending).filter_map(|from| from.config_map_key_ref.as_ref());
    let files = files.chain(maps.map(|key| (Use::Files, key.name.clone())));
    // Jobs read Secrets whenever they begin.
    let keys = job.spec.files.iter().filter_map(|file| file.secret.as_ref());
    let keys = keys.chain(env.filter_map(|from| from.secret_key_ref.as_ref()));
    let files = files.chain(keys.map(|key| (Use::SecretFiles, key.name.clone())));
    let pulls = job.spec.image_pull_secrets.iter().filter(|_| job.spec.backend() == Backend::HTCondor);
    let files = files.chain(pulls.map(|secret| (Use::ImagePull, secret.name.clone())));
    items.into_iter().chain(files).chain(secret.map(|name| (Use::Credentials, name.clone()))).collect()
}

/// Returns whether an object has the label. An object that is missing or may not be read counts as labelled: the
/// condition of its `HTCJob`s names it.
async fn is_allowed(client: &Client, what: Use, object: &ObjectName) -> Result<bool, ApiError> {
    let ObjectName { namespace, name } = object;
    match what {
        Use::Items | Use::Files => {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            is_labelled(with_timeout("read the ConfigMap", object, api.get_metadata_opt(name)).await, what)
        }
        Use::Credentials | Use::SecretFiles | Use::ImagePull => {
            let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
            is_labelled(with_timeout("read the Secret", object, api.get_metadata_opt(name)).await, what)
        }
    }
}

fn is_labelled<K: ResourceExt>(found: Result<Option<K>, ApiError>, what: Use) -> Result<bool, ApiError> {
    match found {
        Ok(found) => Ok(found.is_none_or(|found| what.is_allowed_by(&found).is_ok())),
        Err(error) if matches!(error.code(), Some(401 | 403)) => Ok(true),
        Err(error) => Err(error),
    }
}
