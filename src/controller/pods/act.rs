//! What was decided is carried out.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::runtime::reflector::ObjectRef;
use serde_json::json;

use super::gather::{Gathered, only, pods_of, whose};
use crate::api::text::{WORDS, harmless};
use crate::api::{Backend, Guarded, HTCJob, Observed, Reason};
use crate::controller::act::{attach, delete, release, unless_done};
use crate::controller::{Context, WriteError};
use crate::failpoint::{Point, around};
use crate::kubernetes::{ApiError, is_controlled, unless_changed};
use crate::kubernetes_backend::{PodLogs, Texts, TooLarge, config_map, job};
use crate::ledger::LedgerError;
use crate::machine::Uid;
use crate::machine::facts::Spec;
use crate::machine::ids::Index;
use crate::machine::pods::{Action, Adjust, JobSeen, Permit};
use crate::machine::runs::{JobUid, KeptLog};
use crate::workers::WantedLogs;

/// Most Pods that are deleted in one pass.
const PODS: u32 = 500;

/// What is left to be done.
pub(super) enum Acted {
    /// Nothing: the object has become another one, or is gone.
    Over { again: Option<Duration> },
    /// Its status may be another one.
    Shown { again: Option<Duration> },
}

pub(super) async fn act(
    context: &Context,
    object: &Observed,
    gathered: &Gathered,
    action: Action,
    again: Option<Duration>,
) -> Result<Acted, WriteError> {
    let (uid, name) = (&gathered.facts.object.uid, &gathered.name);
    let again = match action {
        Action::Nothing => {
            context.backends.changes.forget(uid);
            again
        }
        Action::AttachFinalizer => {
            if gathered.facts.record.known.is_none() {
                context.volatile.claim(uid);
            }
            let done = attach(context, object, name, None, Backend::Kubernetes).await?;
            return Ok(Acted::Over { again: unless_done(again, done) });
        }
        Action::Create => match create(context, object, gathered).await? {
            Created::Here => {
                context.backends.creations.forget(uid);
                Some(Duration::ZERO)
            }
            Created::Refused(reason, message) => {
                context.backends.creations.refused(uid, reason, message, context.clock.now());
                Some(Duration::ZERO)
            }
            Created::TooLarge(error) => {
                context.backends.creations.never(uid, Reason::InvalidSpec, error.to_string());
                Some(Duration::ZERO)
            }
        },
        Action::Adjust(job, wanted) => {
            let adjusted = adjust(context, gathered, &job, wanted).await;
            match &adjusted {
                Ok(_) => context.backends.changes.forget(uid),
                Err(WriteError::Api(error)) if is_refusal(error) => {
                    context.backends.changes.refuse(uid, format!("{error}{}", advice(error)));
                }
                Err(WriteError::Api(_) | WriteError::PutOff(_)) => {}
            }
            let done = adjusted?;
            doubt_unless(context, gathered, again, done)
        }
        Action::KeepLogs(pods) => {
            keep_logs(context, gathered, object, pods);
            again
        }
        Action::DeleteJob(job) => {
            context.kept_logs.stop(uid);
            let done = delete_job(context, gathered, &job).await?;
            doubt_unless(context, gathered, again, done)
        }
        Action::DeletePods(job) => {
            Box::pin(delete_pods(context, gathered, &job)).await?;
            again
        }
        Action::ReleaseFinalizer(permit) => {
            if let Permit::Abandoned(job) = &permit {
                tracing::warn!(job, "abandoned by annotation: this Job and its Pods may be left");
            }
            let done = release(context, object, name).await?;
            context.volatile.forget(uid);
            context.namespace_jobs.forget(uid);
            context.queues.forget(uid);
            context.kept_logs.stop(uid);
            context.backends.forget(uid);
            return Ok(Acted::Over { again: unless_done(None, done) });
        }
        Action::DeleteObject => unless_done(again, delete(context, object, name).await?),
    };
    Ok(Acted::Shown { again })
}

/// Asks for these logs, beside what else is done.
fn keep_logs(context: &Context, gathered: &Gathered, object: &Observed, pods: Vec<(Index, Arc<str>)>) {
    let record = &gathered.facts.record;
    let Some(job) = &record.job else { return };
    let tries = |index: Index| match record.runs.get(&index).map(|run| &run.log) {
        Some(KeptLog::Failed { tries, .. }) => *tries,
        Some(KeptLog::NotYet | KeptLog::Kept { .. } | KeptLog::Gone) | None => 0,
    };
    let (client, namespace) = (context.client.clone(), gathered.name.namespace.clone());
    let source = PodLogs { client, namespace, job: job.clone() };
    context.kept_logs.keep(WantedLogs {
        name: gathered.name.clone(),
        uid: gathered.facts.object.uid.clone(),
        object: ObjectRef::from_obj(object),
        source: Arc::new(source),
        jobs: pods.into_iter().map(|(index, pod)| (index, pod, tries(index))).collect(),
    });
}

/// What was not there, or another one, is asked for before anything else is done.
fn doubt_unless(context: &Context, gathered: &Gathered, again: Option<Duration>, done: bool) -> Option<Duration> {
    if !done {
        context.backends.pods.doubt(&gathered.named());
    }
    unless_done(again, done)
}

enum Created {
    Here,
    Refused(Reason, String),
    /// What it is made of does not change.
    TooLarge(TooLarge),
}

/// Creates the ConfigMap and then the Job. Whatever was created before by this name is found, and is only ours if it says so.
async fn create(context: &Context, object: &Observed, gathered: &Gathered) -> Result<Created, WriteError> {
    let (Ok(htcjob), Some(plan), Ok(spec)) = (&object.0, &gathered.plan, &gathered.facts.object.spec) else {
        return Ok(Created::Refused(Reason::InvalidSpec, "the HTCJob cannot be read".to_owned()));
    };
    let identity = gathered.identity();
    let texts = match texts(context, htcjob, spec, &gathered.facts.object.uid).await {
        Ok(texts) => texts,
        Err(error) => return Ok(Created::Refused(Reason::ItemsUnavailable, error.to_string())),
    };
    let map = match config_map(&identity, &texts) {
        Ok(map) => map,
        Err(error) => return Ok(Created::TooLarge(error)),
    };
    if let Some(refused) = create_config_map(context, gathered, &map).await? {
        return Ok(refused);
    }
    create_job(context, gathered, plan, &texts).await
}

/// What goes into the ConfigMap.
async fn texts(context: &Context, job: &HTCJob, spec: &Spec, uid: &Uid) -> Result<Texts, LedgerError> {
    let indexes: Vec<Index> = spec.asked_for().iter().collect();
    let items = if job.spec.items_from.is_some() {
        context.ledger.items(uid, &spec.asked_for()).await?.into_values().collect()
    } else {
        indexes.iter().filter_map(|index| job.spec.items.get(index.0 as usize).cloned()).collect()
    };
    Ok(Texts { source: job.spec.script.source.clone(), indexes, items })
}

async fn create_config_map(
    context: &Context,
    gathered: &Gathered,
    map: &ConfigMap,
) -> Result<Option<Created>, WriteError> {
    let (name, of) = (&gathered.name, &gathered.facts.object);
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &name.namespace);
    let parameters = PostParams::default();
    let created = context.writes.ask("create the ConfigMap of HTCJob", name, api.create(&parameters, map));
    match around(Point::BeforeConfigMapCreated, created, Point::AfterConfigMapCreated).await {
        Ok(_) => Ok(None),
        Err(error) if is_there(&error) => {
            let api: Api<Guarded<ConfigMap>> = Api::namespaced(context.client.clone(), &name.namespace);
            let there = context.writes.ask("get the ConfigMap of HTCJob", name, api.get(&of.job_name)).await?;
            let what = format!("ConfigMap {}", of.job_name);
            Ok(match &there.0 {
                Ok(there) if is_as(there, map, of.uid.as_str()) => None,
                Ok(_) => {
                    let why = "it is not this HTCJob's: another object controls it, or something else is in it";
                    Some(taken(&what, why))
                }
                Err(invalid) => Some(taken(&what, &format!("it cannot be read: {invalid}"))),
            })
        }
        Err(error) => refused(error).map(Some),
    }
}

/// Whether it is what the operator has created before, and can be changed by nobody: whoever may create ConfigMaps may write any owner
/// into one.
fn is_as(there: &ConfigMap, map: &ConfigMap, uid: &str) -> bool {
    let nothing_else = there.binary_data.as_ref().is_none_or(std::collections::BTreeMap::is_empty);
    is_controlled(there, uid) && there.data == map.data && there.immutable == Some(true) && nothing_else
}

async fn create_job(
    context: &Context,
    gathered: &Gathered,
    plan: &crate::kubernetes_backend::PodPlan,
    texts: &Texts,
) -> Result<Created, WriteError> {
    let (name, of) = (&gathered.name, &gathered.facts.object);
    let Ok(spec) = &of.spec else { return Ok(Created::Refused(Reason::InvalidSpec, String::new())) };
    let new = job(&gathered.identity(), plan, &context.backends.pods.site, texts, Adjust::of(spec));
    let api: Api<Job> = Api::namespaced(context.client.clone(), &name.namespace);
    let parameters = PostParams::default();
    let created = context.writes.ask("create the Job of HTCJob", name, api.create(&parameters, &new));
    let there = match around(Point::BeforeJobCreated, created, Point::AfterJobCreated).await {
        Ok(job) => job,
        Err(error) if is_there(&error) => {
            let api: Api<Guarded<Job>> = Api::namespaced(context.client.clone(), &name.namespace);
            let there = context.writes.ask("list the Job of HTCJob", name, api.list(&only(&of.job_name))).await?;
            match there.items.into_iter().next() {
                Some(Guarded(Ok(job))) => job,
                Some(Guarded(Err(invalid))) => {
                    return Ok(taken(&format!("Job {}", of.job_name), &format!("it cannot be read: {invalid}")));
                }
                // It has gone meanwhile: it is tried again, as what failed is.
                None => return Err(error),
            }
        }
        Err(error) => return refused(error),
    };
    match whose(&there, &of.uid, None, None) {
        JobSeen::Ours(_) => {
            context.backends.pods.saw(&there);
            // The next pass follows at once, and has to see it.
            if context.backends.pods.job(&gathered.named(), &of.uid).is_some() {
                return Ok(Created::Here);
            }
            Ok(taken(&format!("Job {}", of.job_name), "its owner has just been changed"))
        }
        JobSeen::Foreign(whose) => {
            Ok(taken(&format!("Job {}", of.job_name), &format!("it is not this HTCJob's: {whose}")))
        }
        JobSeen::Absent | JobSeen::Unknown(_) => Ok(taken(&format!("Job {}", of.job_name), "it cannot be read")),
    }
}

/// Something else has the name. It is tried again after a pause: whoever has the name may have taken it so that it is tried for ever.
fn taken(what: &str, why: &str) -> Created {
    let why = harmless(why, WORDS);
    let message =
        format!("there is a {what} already, and {why}. It is left alone: delete it, or create the HTCJob again");
    Created::Refused(Reason::NameTaken, message)
}

fn is_there(error: &WriteError) -> bool {
    matches!(error, WriteError::Api(error) if error.answer().is_some_and(|answer| answer.reason == "AlreadyExists"))
}

/// What the API server refuses is said; what it could not answer is tried again.
fn refused(error: WriteError) -> Result<Created, WriteError> {
    let WriteError::Api(api) = &error else { return Err(error) };
    let said = |more: &str| Ok(Created::Refused(Reason::CreateRefused, format!("{api}{more}")));
    if is_refusal(api) { said(advice(api)) } else { Err(error) }
}

/// Whether the API server has refused a write, and not only for its load (429) or its own trouble.
fn is_refusal(error: &ApiError) -> bool {
    matches!((error.code(), error.answer()), (Some(400..=428 | 430..=499), Some(_)))
}

/// What helps if the operator has no right to do it in the namespace.
fn advice(error: &ApiError) -> &'static str {
    match (error.code(), error.answer()) {
        (Some(403), Some(answer)) if answer.message.contains("cannot ") => {
            ". An administrator of the namespace can allow it: kubectl apply --namespace NAMESPACE -k deploy/namespace-kubernetes-backend"
        }
        (_, _) => "",
    }
}

/// Changes what may change of the Job, only if it is the one that is recorded.
async fn adjust(context: &Context, gathered: &Gathered, uid: &JobUid, wanted: Adjust) -> Result<bool, WriteError> {
    let (name, of) = (&gathered.name, &gathered.facts.object);
    let Adjust { suspend, parallelism, deadline } = wanted;
    let patch = Patch::Merge(json!({
        "metadata": { "uid": uid.as_str() },
        "spec": {
            "suspend": suspend,
            "parallelism": parallelism,
            "activeDeadlineSeconds": deadline.map(|limit| limit.as_secs()),
        },
    }));
    let api: Api<Guarded<Job>> = Api::namespaced(context.client.clone(), &name.namespace);
    let parameters = PatchParams::default();
    let patched = context.writes.ask("change the Job of HTCJob", name, api.patch(&of.job_name, &parameters, &patch));
    match around(Point::BeforeJobAdjusted, patched, Point::AfterJobAdjusted).await {
        Ok(job) => {
            if let Ok(job) = &job.0 {
                context.backends.pods.saw(job);
            }
            Ok(true)
        }
        Err(WriteError::Api(error)) => Ok(unless_changed::<Job>(Err(error))?),
        Err(error) => Err(error),
    }
}

/// Without a policy the API server leaves the Pods where they are.
fn with_its_pods(uid: &JobUid) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.as_str().to_owned()), resource_version: None }),
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    }
}

/// Deletes the Job and its Pods, only if it is the one that is recorded.
async fn delete_job(context: &Context, gathered: &Gathered, uid: &JobUid) -> Result<bool, WriteError> {
    let (name, of) = (&gathered.name, &gathered.facts.object);
    let api: Api<Guarded<Job>> = Api::namespaced(context.client.clone(), &name.namespace);
    let parameters = with_its_pods(uid);
    let deleted = context.writes.write("delete the Job of HTCJob", name, api.delete(&of.job_name, &parameters));
    around(Point::BeforeJobDeleted, deleted, Point::AfterJobDeleted).await
}

/// Deletes Pods that have lost their Job.
async fn delete_pods(context: &Context, gathered: &Gathered, uid: &JobUid) -> Result<(), WriteError> {
    let name = &gathered.name;
    let api: Api<Guarded<Pod>> = Api::namespaced(context.client.clone(), &name.namespace);
    for pod in pods_of(context, name, (&gathered.facts.object.uid, uid), PODS).await? {
        let (pod_name, reference) = (pod.name_any(), ObjectRef::from_obj(&pod));
        if kube::Resource::meta(&pod).deletion_timestamp.is_some() {
            continue;
        }
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = context.writes.write("delete a Pod of HTCJob", name, api.delete(&pod_name, &parameters));
        if around(Point::BeforePodDeleted, deleted, Point::AfterPodDeleted).await? {
            tracing::info!(pod = %reference, "deleted: its Job is gone");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    #[test]
    fn only_the_recorded_job_is_deleted_and_its_pods_with_it() {
        let parameters = serde_json::to_value(with_its_pods(&JobUid::from("j"))).unwrap();
        assert_eq!(parameters["preconditions"]["uid"], "j");
        assert_eq!(parameters["propagationPolicy"], "Foreground");
    }

    #[test]
    fn a_config_map_is_its_only_if_it_controls_it() {
        let controlled = |uid: &str, controller: bool| {
            let owner =
                json!({ "apiVersion": "x/v1", "kind": "HTCJob", "name": "a", "uid": uid, "controller": controller });
            let map: ConfigMap = serde_json::from_value(
                json!({ "metadata": { "ownerReferences": [owner] }, "data": { "script": "s" }, "immutable": true }),
            )
            .unwrap();
            let wanted = ConfigMap { metadata: ObjectMeta::default(), ..map.clone() };
            let forged = [
                ConfigMap { data: None, ..map.clone() },
                ConfigMap { immutable: None, ..map.clone() },
                ConfigMap { binary_data: Some([("run".to_owned(), ByteString(Vec::new()))].into()), ..map.clone() },
            ];
            assert!(forged.iter().all(|forged| !is_as(forged, &wanted, "u")));
            is_as(&map, &wanted, "u")
        };
        assert!(controlled("u", true) && !controlled("v", true) && !controlled("u", false));
    }
}
