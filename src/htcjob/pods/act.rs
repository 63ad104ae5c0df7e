//! Carries out the decisions about Jobs and Pods.

use std::sync::Arc;
use std::time::Duration;

use htc_api::{Backend, Guarded, HTCJob, Reason};
use htc_ledger::LedgerError;
use htc_machine::facts::Spec;
use htc_machine::ids::Index;
use htc_machine::pods::{DesiredJob, JobObservation, PodsAction, PodsDecision, PodsReleasePermit};
use htc_machine::runs::{JobUid, KeptLog};
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_submit::pod_spec::{PodSecurity, PodSettings};
use htc_support::failpoint::{Point, around};
use htc_support::kubernetes::{ApiError, is_controlled, unless_changed};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::runtime::reflector::ObjectRef;
use serde_json::json;

use super::gather::{PodsGathered, classify_job, only, pods_of};
use crate::backends::kept_logs::LogRequest;
use crate::backends::pods::{PodLogs, Texts, TooLarge, config_map, job};
use crate::htcjob::pass::{ActOutcome, Pass, requeue_unless_done};
use crate::htcjob::spec::{files, items, variables};
use crate::htcjob::{ActError, Context, WriteError};

/// Label of a namespace with the Pod Security Standard of the Pods that it admits.
const ADMITTED_PODS: &str = "pod-security.kubernetes.io/enforce";
/// Maximum number of Pods deleted in one reconcile.
const PODS: u32 = 500;

/// Carries out the action.
pub(super) async fn act(
    pass: &Pass<'_>,
    gathered: &PodsGathered,
    decision: &PodsDecision,
) -> Result<ActOutcome, ActError> {
    let Pass { context, uid, .. } = pass;
    let requeue_after = decision.requeue_after;
    let requeue_after = match &decision.action {
        PodsAction::Nothing => {
            context.backends.changes.forget(uid);
            requeue_after
        }
        PodsAction::AttachFinalizer => {
            if gathered.facts.record.row.is_none() {
                context.memory.record_claim(uid);
            }
            let done = pass.attach_finalizer(Backend::Kubernetes, None).await?;
            return Ok(ActOutcome::Done { requeue_after: requeue_unless_done(requeue_after, done) });
        }
        PodsAction::Create => {
            match create(pass, gathered).await? {
                CreateOutcome::Exists => context.backends.creations.forget(uid),
                CreateOutcome::Refused(reason, message) => {
                    context.backends.creations.record_refusal(uid, reason, message, pass.now());
                }
                CreateOutcome::TooLarge(error) => {
                    context.backends.creations.record_permanent_refusal(uid, Reason::InvalidSpec, error.to_string());
                }
            }
            Some(Duration::ZERO)
        }
        PodsAction::UpdateJob(job, wanted) => {
            let adjusted = adjust(pass, gathered, job, *wanted).await;
            match &adjusted {
                Ok(_) => context.backends.changes.forget(uid),
                Err(WriteError::Api(error)) if is_refusal(error) => {
                    context.backends.changes.record_refusal(uid, format!("{error}{}", advice(error)));
                }
                Err(WriteError::Api(_) | WriteError::Throttled(_)) => {}
            }
            doubt_unless(context, gathered, requeue_after, adjusted?)
        }
        PodsAction::KeepLogs(pods) => {
            keep_logs(pass, gathered, pods);
            requeue_after
        }
        PodsAction::DeleteJob(job) => {
            context.kept_logs.stop(uid);
            let done = delete_job(pass, gathered, job).await?;
            doubt_unless(context, gathered, requeue_after, done)
        }
        PodsAction::DeletePods(job) => {
            Box::pin(delete_pods(pass, job)).await?;
            requeue_after
        }
        PodsAction::ReleaseFinalizer(permit) => {
            if let PodsReleasePermit::Abandoned(job) = permit {
                tracing::warn!(job, "HTCJob abandoned by annotation, its Job and Pods may be left");
            }
            let done = pass.release_finalizer().await?;
            context.forget(uid);
            return Ok(ActOutcome::Done { requeue_after: requeue_unless_done(None, done) });
        }
        PodsAction::DeleteObject => requeue_unless_done(requeue_after, pass.delete_object().await?),
    };
    Ok(ActOutcome::Publish { requeue_after, about_to_change: false })
}

/// Starts to fetch the logs of these Pods in the background.
fn keep_logs(pass: &Pass<'_>, gathered: &PodsGathered, pods: &[(Index, Arc<str>)]) {
    let context = pass.context;
    let record = &gathered.facts.record;
    let Some(job) = &record.job else { return };
    let tries = |index: Index| match record.runs.get(&index).map(|run| &run.log) {
        Some(KeptLog::Failed { tries, .. }) => *tries,
        Some(KeptLog::NotYet | KeptLog::Kept { .. } | KeptLog::Gone) | None => 0,
    };
    let (client, namespace) = (context.client.clone(), pass.name.namespace.clone());
    let source = PodLogs { client, namespace, job: job.clone() };
    context.kept_logs.keep(LogRequest {
        name: pass.name.clone(),
        uid: pass.uid.clone(),
        object: pass.reference(),
        source: Arc::new(source),
        jobs: pods.iter().map(|(index, pod)| (*index, Arc::clone(pod), tries(*index))).collect(),
    });
}

/// If the Job was absent or another one, drops it from the cache, so that the API server is queried before the next
/// action.
fn doubt_unless(
    context: &Context,
    gathered: &PodsGathered,
    requeue_after: Option<Duration>,
    done: bool,
) -> Option<Duration> {
    if !done {
        context.backends.pods.forget_job(&gathered.job());
    }
    requeue_unless_done(requeue_after, done)
}

enum CreateOutcome {
    Exists,
    Refused(Reason, String),
    /// A request that is too large; its inputs never change, so a retry cannot help.
    TooLarge(TooLarge),
}

/// Creates the ConfigMap and then the Job. An existing object of the same name is used only if this HTCJob controls it.
async fn create(pass: &Pass<'_>, gathered: &PodsGathered) -> Result<CreateOutcome, WriteError> {
    let (Ok(htcjob), Some(plan), Ok(spec)) = (&pass.object.0, &gathered.plan, &gathered.facts.object.spec) else {
        return Ok(CreateOutcome::Refused(Reason::InvalidSpec, "the HTCJob cannot be read".to_owned()));
    };
    let texts = match texts(pass, htcjob, spec).await {
        Ok(texts) => texts,
        Err(error) => return Ok(CreateOutcome::Refused(Reason::ItemsUnavailable, error.to_string())),
    };
    let map = match config_map(&gathered.owner, &texts) {
        Ok(map) => map,
        Err(error) => return Ok(CreateOutcome::TooLarge(error)),
    };
    if let Some(refused) = create_config_map(pass, gathered, &map).await? {
        return Ok(refused);
    }
    create_job(pass, gathered, plan, &texts).await
}

/// Returns the content of the ConfigMap.
async fn texts(pass: &Pass<'_>, job: &HTCJob, spec: &Spec) -> Result<Texts, LedgerError> {
    let asked_for = spec.asked_for();
    let items = items(pass, job, &asked_for).await?.into_values().collect();
    let (files, variables) = (files(pass, job).await?, variables(pass, job).await?);
    let source = job.spec.source().map(str::to_owned);
    Ok(Texts { source, indexes: asked_for.iter().collect(), items, files, variables })
}

async fn create_config_map(
    pass: &Pass<'_>,
    gathered: &PodsGathered,
    map: &ConfigMap,
) -> Result<Option<CreateOutcome>, WriteError> {
    let (context, name, of) = (pass.context, &pass.name, &gathered.facts.object);
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &name.namespace);
    let parameters = PostParams::default();
    let created = context.write_limiter.ask("create the ConfigMap of HTCJob", name, api.create(&parameters, map));
    match around(Point::BeforeConfigMapCreated, created, Point::AfterConfigMapCreated).await {
        Ok(_) => Ok(None),
        Err(error) if is_there(&error) => {
            let api: Api<Guarded<ConfigMap>> = Api::namespaced(context.client.clone(), &name.namespace);
            let there = context.write_limiter.ask("get the ConfigMap of HTCJob", name, api.get(&of.job_name)).await?;
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

/// Whether `there` is the ConfigMap that the operator created earlier, and is immutable. The owner alone proves
/// nothing: users who may create ConfigMaps may set any owner.
fn is_as(there: &ConfigMap, map: &ConfigMap, uid: &str) -> bool {
    // The API server leaves out an empty map.
    let same_files = there.binary_data.clone().unwrap_or_default() == map.binary_data.clone().unwrap_or_default();
    let same_texts = there.data.clone().unwrap_or_default() == map.data.clone().unwrap_or_default();
    is_controlled(there, uid) && same_texts && same_files && there.immutable == Some(true)
}

/// Returns the site's settings as they are in the namespace of the HTCJob.
async fn settings(pass: &Pass<'_>) -> Result<PodSettings, WriteError> {
    let (context, name) = (pass.context, &pass.name);
    let site = context.backends.pods.site.clone();
    if site.security == PodSecurity::Restricted {
        return Ok(site);
    }
    let api: Api<Namespace> = Api::all(context.client.clone());
    let parameters = only(&name.namespace);
    let listed =
        context.write_limiter.ask("list the namespace of HTCJob", name, api.list_metadata(&parameters)).await?;
    let mut levels = listed.items.iter().filter_map(|namespace| namespace.labels().get(ADMITTED_PODS));
    let restricted = levels.any(|level| level == "restricted");
    let security = if restricted { PodSecurity::Restricted } else { site.security };
    Ok(PodSettings { security, ..site })
}

async fn create_job(
    pass: &Pass<'_>,
    gathered: &PodsGathered,
    plan: &htc_submit::pod_spec::PodPlan,
    texts: &Texts,
) -> Result<CreateOutcome, WriteError> {
    let (context, name, of) = (pass.context, &pass.name, &gathered.facts.object);
    let Ok(spec) = &of.spec else { return Ok(CreateOutcome::Refused(Reason::InvalidSpec, String::new())) };
    let site = settings(pass).await?;
    let new = job(&gathered.owner, plan, &site, texts, DesiredJob::of(spec));
    let api: Api<Job> = Api::namespaced(context.client.clone(), &name.namespace);
    let parameters = PostParams::default();
    let created = context.write_limiter.ask("create the Job of HTCJob", name, api.create(&parameters, &new));
    let there = match around(Point::BeforeJobCreated, created, Point::AfterJobCreated).await {
        Ok(job) => job,
        Err(error) if is_there(&error) => {
            let api: Api<Guarded<Job>> = Api::namespaced(context.client.clone(), &name.namespace);
            let there =
                context.write_limiter.ask("list the Job of HTCJob", name, api.list(&only(&of.job_name))).await?;
            match there.items.into_iter().next() {
                Some(Guarded(Ok(job))) => job,
                Some(Guarded(Err(invalid))) => {
                    return Ok(taken(&format!("Job {}", of.job_name), &format!("it cannot be read: {invalid}")));
                }
                // The Job has been deleted meanwhile; the creation is retried like any failed one.
                None => return Err(error),
            }
        }
        Err(error) => return refused(error),
    };
    match classify_job(&there, &of.uid, None, None) {
        JobObservation::Ours(_) => {
            context.backends.pods.store_answer(&there);
            // The next reconcile follows immediately, and must find the Job in the cache.
            if context.backends.pods.job(&gathered.job(), &of.uid).is_some() {
                return Ok(CreateOutcome::Exists);
            }
            Ok(taken(&format!("Job {}", of.job_name), "its owner has just been changed"))
        }
        JobObservation::Foreign(whose) => {
            Ok(taken(&format!("Job {}", of.job_name), &format!("it is not this HTCJob's: {whose}")))
        }
        JobObservation::Absent | JobObservation::Unknown(_) => {
            Ok(taken(&format!("Job {}", of.job_name), "it cannot be read"))
        }
    }
}

/// Refuses the creation because another object has the name. It is retried only after a pause: a user may have taken
/// the name on purpose, to make the operator retry for ever.
fn taken(what: &str, why: &str) -> CreateOutcome {
    let why = sanitize(why, MAX_MESSAGE);
    let message =
        format!("there is a {what} already, and {why}. It is left alone: delete it, or create the HTCJob again");
    CreateOutcome::Refused(Reason::NameTaken, message)
}

fn is_there(error: &WriteError) -> bool {
    matches!(error, WriteError::Api(error) if error.answer().is_some_and(|answer| answer.reason == "AlreadyExists"))
}

/// Reports a refusal by the API server to the user. Other errors are returned and retried.
fn refused(error: WriteError) -> Result<CreateOutcome, WriteError> {
    let WriteError::Api(api) = &error else { return Err(error) };
    let said = |more: &str| Ok(CreateOutcome::Refused(Reason::CreateRefused, format!("{api}{more}")));
    if is_refusal(api) { said(advice(api)) } else { Err(error) }
}

/// Whether the API server refused the write itself, and not because of load (429) or an internal error.
fn is_refusal(error: &ApiError) -> bool {
    matches!((error.code(), error.answer()), (Some(400..=428 | 430..=499), Some(_)))
}

/// Returns the advice for users if the operator lacks the permission in the namespace.
fn advice(error: &ApiError) -> &'static str {
    match (error.code(), error.answer()) {
        (Some(403), Some(answer)) if answer.message.contains("cannot ") => {
            ". An administrator of the namespace can allow it: kubectl apply --namespace NAMESPACE -k deploy/namespace-kubernetes-backend"
        }
        (_, _) => "",
    }
}

/// Updates the mutable fields of the Job, only if it is the recorded one.
async fn adjust(
    pass: &Pass<'_>,
    gathered: &PodsGathered,
    uid: &JobUid,
    wanted: DesiredJob,
) -> Result<bool, WriteError> {
    let (context, name, of) = (pass.context, &pass.name, &gathered.facts.object);
    let DesiredJob { suspend, parallelism, deadline } = wanted;
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
    let patched =
        context.write_limiter.ask("change the Job of HTCJob", name, api.patch(&of.job_name, &parameters, &patch));
    match around(Point::BeforeJobAdjusted, patched, Point::AfterJobAdjusted).await {
        Ok(job) => {
            if let Ok(job) = &job.0 {
                context.backends.pods.store_answer(job);
            }
            Ok(true)
        }
        Err(WriteError::Api(error)) => Ok(unless_changed::<Job>(Err(error))?),
        Err(error) => Err(error),
    }
}

/// Returns parameters that delete the Pods as well. Without a propagation policy the API server leaves them.
fn with_its_pods(uid: &JobUid) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.as_str().to_owned()), resource_version: None }),
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    }
}

/// Deletes the Job and its Pods, only if it is the recorded one.
async fn delete_job(pass: &Pass<'_>, gathered: &PodsGathered, uid: &JobUid) -> Result<bool, WriteError> {
    let (context, name, of) = (pass.context, &pass.name, &gathered.facts.object);
    let api: Api<Guarded<Job>> = Api::namespaced(context.client.clone(), &name.namespace);
    let parameters = with_its_pods(uid);
    let deleted = context.write_limiter.write("delete the Job of HTCJob", name, api.delete(&of.job_name, &parameters));
    around(Point::BeforeJobDeleted, deleted, Point::AfterJobDeleted).await
}

/// Deletes Pods whose Job is gone.
async fn delete_pods(pass: &Pass<'_>, uid: &JobUid) -> Result<(), WriteError> {
    let (context, name) = (pass.context, &pass.name);
    let api: Api<Guarded<Pod>> = Api::namespaced(context.client.clone(), &name.namespace);
    for pod in pods_of(context, name, (&pass.uid, uid), PODS).await? {
        let (pod_name, reference) = (pod.name_any(), ObjectRef::from_obj(&pod));
        if kube::Resource::meta(&pod).deletion_timestamp.is_some() {
            continue;
        }
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = context.write_limiter.write("delete a Pod of HTCJob", name, api.delete(&pod_name, &parameters));
        if around(Point::BeforePodDeleted, deleted, Point::AfterPodDeleted).await? {
            tracing::info!(pod = %reference, "Pod without a Job deleted");
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
    fn deletion_targets_the_recorded_job_and_its_pods() {
        let parameters = serde_json::to_value(with_its_pods(&JobUid::from("j"))).unwrap();
        assert_eq!(parameters["preconditions"]["uid"], "j");
        assert_eq!(parameters["propagationPolicy"], "Foreground");
    }

    #[test]
    fn config_map_is_owned_only_if_controlled() {
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
