//! Gathers the facts about one object whose jobs are Pods.

use std::time::Instant;

use htc_api::{
    ABANDON_ANNOTATION, APP_LABEL, Guarded, HTCJob, InputStatus, ObjectName, Reason, SUBMIT_AGAIN_ANNOTATION,
};
use htc_machine::Uid;
use htc_machine::facts::{Spec, SpecRefused, Unreadable};
use htc_machine::ids::Index;
use htc_machine::indices::Indices;
use htc_machine::pods::{BatchJob, JobObservation, LeftoverPods, PodsFacts, PodsObject, PodsObservation};
use htc_machine::runs::{JobUid, RunsRecord};
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_submit::pod_spec::PodPlan;
use htc_support::kubernetes::{ApiError, with_timeout};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};

use crate::backends::pods::{CONTROLLER_UID, HTCJOB_UID, JobOwner, is_htcjob, job_name, seen_job};
use crate::htcjob::config_maps::SpecState;
use crate::htcjob::pass::Pass;
use crate::htcjob::spec::{RequestedSpec, read_spec};
use crate::htcjob::{Context, GatherError};

/// Facts for the decision, and the inputs of the Job.
pub(in crate::htcjob) struct PodsGathered {
    pub(super) facts: PodsFacts,
    pub(super) plan: Option<PodPlan>,
    /// Files that the jobs get.
    pub(super) inputs: Vec<InputStatus>,
    pub(super) owner: JobOwner,
    /// Whether the Job exists but the watch does not show it, because its label was removed by hand.
    pub(super) unwatched: bool,
}

impl PodsGathered {
    /// Name of its Job.
    pub(super) fn job(&self) -> ObjectName {
        ObjectName { namespace: self.owner.name.namespace.clone(), name: self.facts.object.job_name.clone() }
    }
}

pub(super) async fn gather(pass: &Pass<'_>) -> Result<PodsGathered, GatherError> {
    let Pass { context, object, uid, name } = pass;
    let began = Instant::now();
    let record = context.ledger.load_runs(uid).await?;
    context.memory.record_read(uid, began.elapsed(), pass.now());
    let claim = pass.claim();
    let ledger_past = pass.past(claim, record.row.is_some());
    let (finalizer, deleting) = (pass.has_finalizer(), pass.is_deleting());
    let shows_job = pass.status().is_some_and(|status| {
        status.job_name.is_some() || status.phase.is_some_and(|phase| phase > htc_api::Phase::Pending)
    });
    let job_name = job_name(&name.name, uid);
    let named = ObjectName { namespace: name.namespace.clone(), name: job_name.clone() };
    let granting_queue = record.granting_queue.as_deref();
    // It had quota, is suspended, and waits for quota again.
    let holds = granting_queue.is_some() && context.backends.pods.job(&named, uid).is_some_and(|job| job.suspended);
    let queue = pass.queue_facts(granting_queue, record.row.as_ref(), holds);
    let drained = queue.as_ref().is_some_and(|queue| queue.drained);
    let PodsPlanned { plan, spec, inputs } = match &object.0 {
        Ok(job) => {
            let state = SpecState {
                ours: finalizer && !deleting,
                recorded: record.row.is_some(),
                submitted: record.job.is_some() || shows_job,
            };
            plan(pass, job, &named, &state).await?
        }
        Err(invalid) => {
            PodsPlanned::unreadable(Unreadable::invalid(format!("the HTCJob cannot be read: {}", invalid.error)))
        }
    };
    let spec = spec.map(|spec| Spec { suspend: spec.suspend || drained, ..spec });
    let asked: Option<Indices> = spec.as_ref().ok().map(Spec::asked_for);
    let wanted = JobQuery { uid, job_name: &job_name, record: &record, asked: asked.as_ref(), deleting, finalizer };
    let job = see_job(context, name, &wanted).await;
    let pods = match (&job, &asked) {
        (JobObservation::Ours(job), Some(asked)) => {
            context.backends.pods.pods(&name.namespace, &job.uid, &asked.iter().collect::<Vec<_>>())
        }
        _ => PodsObservation::Unknown,
    };
    let mut facts = PodsFacts {
        creation: context.backends.creations.may_create(uid, pass.now()),
        update_refused: context.backends.changes.refusal_of(uid),
        object: PodsObject {
            uid: uid.clone(),
            deleting,
            finalizer,
            claim,
            spec,
            job_name,
            shows_job,
            abandon: pass.is_annotated(ABANDON_ANNOTATION),
            submit_again: pass.is_annotated(SUBMIT_AGAIN_ANNOTATION),
        },
        record,
        past: ledger_past,
        job,
        pods,
        leftover_pods: LeftoverPods::Unknown,
        queue,
        namespace_limit: None,
    };
    if is_gone(&facts) && left_matters(&facts) {
        facts.leftover_pods = see_left(context, name, uid, facts.record.job.as_ref()).await;
    }
    let unwatched = matches!(facts.job, JobObservation::Ours(_)) && context.backends.pods.job(&named, uid).is_none();
    let app = object.labels().get(APP_LABEL).cloned();
    Ok(PodsGathered { facts, plan, inputs, owner: JobOwner { name: name.clone(), uid: uid.clone(), app }, unwatched })
}

/// Parameters of the query for the Job.
struct JobQuery<'a> {
    uid: &'a Uid,
    job_name: &'a str,
    record: &'a RunsRecord,
    asked: Option<&'a Indices>,
    deleting: bool,
    finalizer: bool,
}

/// Returns the Job from the watch cache. If the cache lacks it and the answer matters, queries the API server for its
/// present state.
async fn see_job(context: &Context, name: &ObjectName, wanted: &JobQuery<'_>) -> JobObservation {
    if let Some(why) = context.backends.pods.watch_failure() {
        return JobObservation::Unknown(why);
    }
    let named = ObjectName { namespace: name.namespace.clone(), name: wanted.job_name.to_owned() };
    if let Some(job) = context.backends.pods.job(&named, wanted.uid) {
        return JobObservation::Ours(by_index(job, wanted.asked));
    }
    let over = wanted.record.row.as_ref().is_none_or(|known| known.completed.is_some());
    let follows = wanted.record.job.is_some() && !over;
    // Otherwise no query is needed: the creation of an existing Job fails with a conflict.
    let matters = follows || (wanted.deleting && wanted.finalizer);
    if !matters {
        return JobObservation::Absent;
    }
    let api: Api<Guarded<Job>> = Api::namespaced(context.client.clone(), &name.namespace);
    match with_timeout("list the Job", &wanted.job_name, api.list(&only(wanted.job_name))).await {
        Ok(listed) => match listed.items.first().map(|job| &job.0) {
            None => JobObservation::Absent,
            Some(Ok(job)) => classify_job(job, wanted.uid, wanted.record.job.as_ref(), wanted.asked),
            Some(Err(invalid)) => JobObservation::Unknown(sanitize(
                &format!("Job {} cannot be read: {invalid}", wanted.job_name),
                MAX_MESSAGE,
            )),
        },
        Err(error) => JobObservation::Unknown(error.to_string()),
    }
}

/// Returns parameters that list only the object of this name. A `get` would need a permission in the namespace. While a
/// namespace is being deleted, its Roles may be deleted before the `HTCJob`s, and their finalizers could never be
/// released.
pub(super) fn only(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}

/// Determines whether the HTCJob owns the Job of this name. The recorded Job stays the HTCJob's even if
/// its owner was removed by hand.
pub(super) fn classify_job(job: &Job, uid: &Uid, recorded: Option<&JobUid>, asked: Option<&Indices>) -> JobObservation {
    let owner = job.owner_references().iter().find(|owner| owner.controller == Some(true));
    match (owner, seen_job(job)) {
        (_, Some(job)) if recorded.is_some_and(|recorded| *recorded == job.uid) => {
            JobObservation::Ours(by_index(job, asked))
        }
        (Some(owner), Some(job)) if is_htcjob(owner) && owner.uid == uid.as_str() => {
            JobObservation::Ours(by_index(job, asked))
        }
        (Some(owner), _) => {
            JobObservation::Foreign(sanitize(&format!("{} {} controls it", owner.kind, owner.name), MAX_MESSAGE))
        }
        (None, _) => JobObservation::Foreign("nothing controls it".to_owned()),
    }
}

/// Translates completion indexes to indexes of the `HTCJob`. If these are unknown, removes all results, and the end of
/// the Job.
fn by_index(job: BatchJob, asked: Option<&Indices>) -> BatchJob {
    let Some(asked) = asked else {
        return BatchJob { succeeded: Indices::default(), failed: Indices::default(), failing: None, end: None, ..job };
    };
    let all: Vec<Index> = asked.iter().collect();
    let of = |set: &Indices| set.iter().filter_map(|completion| all.get(completion.0 as usize).copied()).collect();
    BatchJob { succeeded: of(&job.succeeded), failed: of(&job.failed), ..job }
}

fn is_gone(facts: &PodsFacts) -> bool {
    match &facts.job {
        JobObservation::Absent | JobObservation::Foreign(_) => true,
        JobObservation::Ours(other) => facts.record.job.as_ref().is_some_and(|recorded| *recorded != other.uid),
        JobObservation::Unknown(_) => false,
    }
}

/// Whether leftover Pods matter. Deleting a Job may leave its Pods, which still use quota. The message about a lost Job
/// mentions them.
fn left_matters(facts: &PodsFacts) -> bool {
    let PodsFacts { object, record, .. } = facts;
    let is_lost = record.job.is_some() && record.row.as_ref().is_some_and(|known| known.completed.is_none());
    (object.deleting && object.finalizer) || !record.granted.is_empty() || is_lost
}

/// Queries whether a Job that is gone has left Pods.
async fn see_left(context: &Context, name: &ObjectName, uid: &Uid, job: Option<&JobUid>) -> LeftoverPods {
    let Some(job) = job else { return LeftoverPods::None };
    match pods_of(context, name, (uid, job), 1).await {
        Ok(pods) if pods.is_empty() => LeftoverPods::None,
        Ok(_) => LeftoverPods::Some,
        Err(error) => {
            tracing::warn!(%error, "leftover Pods unknown");
            LeftoverPods::Unknown
        }
    }
}

/// Lists at most `most` Pods of a Job, as the API server has them now.
pub(super) async fn pods_of(
    context: &Context,
    name: &ObjectName,
    (uid, job): (&Uid, &JobUid),
    most: u32,
) -> Result<Vec<Guarded<Pod>>, ApiError> {
    let api: Api<Guarded<Pod>> = Api::namespaced(context.client.clone(), &name.namespace);
    let of_job =
        ListParams::default().labels(&format!("{CONTROLLER_UID}={},{HTCJOB_UID}={uid}", job.as_str())).limit(most);
    Ok(with_timeout("list the Pods of HTCJob", name, api.list(&of_job)).await?.items)
}

/// What was made of the spec.
struct PodsPlanned {
    /// Plan of the Pods, if the spec can be run.
    plan: Option<PodPlan>,
    /// Spec, as decisions need it.
    spec: Result<Spec, Unreadable>,
    /// Files that the jobs get.
    inputs: Vec<InputStatus>,
}

impl PodsPlanned {
    const fn unreadable(unreadable: Unreadable) -> Self {
        Self { plan: None, spec: Err(unreadable), inputs: Vec::new() }
    }
}

/// Returns the plan of the Pods, and the spec as decisions need it. `named`: name of the Job.
async fn plan(
    pass: &Pass<'_>,
    job: &HTCJob,
    named: &ObjectName,
    state: &SpecState,
) -> Result<PodsPlanned, GatherError> {
    let pods = &pass.context.backends.pods;
    let plan = PodPlan::parse(&job.spec, &pods.site);
    let invalid = || plan.as_ref().err().map(ToString::to_string);
    // The Job still has the number of items.
    let lost_count = || pods.job(named, &pass.uid)?.completions;
    let RequestedSpec { spec, inputs, lost } = match read_spec(pass, job, state, invalid, lost_count).await? {
        Ok(requested) => requested,
        Err(unreadable) => return Ok(PodsPlanned::unreadable(unreadable)),
    };
    // A Job that exists has its items and its files.
    let lost = lost.filter(|_| pods.job(named, &pass.uid).is_none());
    let refused = match &plan {
        _ if lost.is_some() => lost.map(SpecRefused::invalid),
        Err(error) => Some(SpecRefused::invalid(error.to_string())),
        Ok(_) if !pods.site.enabled => {
            let message = pods.watch_failure().unwrap_or_default();
            Some(SpecRefused { reason: Reason::BackendDisabled, message })
        }
        Ok(_) => None,
    };
    Ok(PodsPlanned { plan: plan.ok(), spec: Ok(Spec { refused, ..spec }), inputs })
}

#[cfg(test)]
mod tests {
    use htc_machine::Timestamp;
    use htc_machine::facts::{Claim, ObjectRow, Past};
    use htc_machine::phase::Phase;
    use htc_machine::pods::Creation;
    use serde_json::{Value, json};

    use super::*;

    fn seen(owners: &Value) -> JobObservation {
        let job =
            json!({ "metadata": { "name": "sums-0b5ea2a4", "namespace": "n", "uid": "j", "ownerReferences": owners } });
        classify_job(&serde_json::from_value(job).unwrap(), &Uid::from("u"), None, None)
    }

    #[test]
    fn leftover_pods_are_listed_when_the_job_is_lost() {
        let known = |completed| ObjectRow {
            phase: Phase::Running,
            new: true,
            started: None,
            completed,
            cut_short: None,
            given_up: 0,
            released: false,
            last_queue: None,
            conditions: Vec::new(),
        };
        let matters = |job: Option<&str>, completed, deleting, granted: &str| {
            let record = RunsRecord {
                row: Some(known(completed)),
                job: job.map(JobUid::from),
                granted: granted.parse().unwrap(),
                ..RunsRecord::default()
            };
            let object = PodsObject {
                uid: Uid::from("u"),
                deleting,
                finalizer: true,
                claim: Claim::Ours,
                spec: Ok(Spec::default()),
                job_name: "sums-0b5ea2a4".to_owned(),
                shows_job: false,
                abandon: false,
                submit_again: false,
            };
            left_matters(&PodsFacts {
                object,
                record,
                past: Past::Continuous,
                job: JobObservation::Absent,
                pods: PodsObservation::Unknown,
                leftover_pods: LeftoverPods::Unknown,
                creation: Creation::Allowed,
                update_refused: None,
                queue: None,
                namespace_limit: None,
            })
        };
        assert!(matters(Some("j"), None, false, ""));
        assert!(!matters(None, None, false, ""), "one that was never recorded has made none");
        assert!(!matters(Some("j"), Some(Timestamp(1)), false, ""), "it was reported");
        assert!(matters(Some("j"), Some(Timestamp(1)), false, "0") && matters(None, None, true, ""));
    }

    #[test]
    fn recorded_job_is_owned_without_an_owner_reference() {
        let job: Job = serde_json::from_value(json!({ "metadata": { "name": "sums-0b5ea2a4", "uid": "j" } })).unwrap();
        let seen = |recorded: &str| classify_job(&job, &Uid::from("u"), Some(&JobUid::from(recorded)), None);
        assert!(matches!(seen("j"), JobObservation::Ours(_)) && matches!(seen("k"), JobObservation::Foreign(_)));
    }

    #[test]
    fn job_is_owned_only_if_controlled() {
        let owner = |kind: &str, uid: &str, controller: bool| json!({ "apiVersion": "htc.cern.ch/v1alpha1", "kind": kind, "name": "sums", "uid": uid, "controller": controller });
        assert!(matches!(seen(&json!([owner("HTCJob", "u", true)])), JobObservation::Ours(_)));
        let others = [owner("HTCJob", "v", true), owner("HTCJob", "u", false), owner("Foo", "u", true)];
        for foreign in others.map(|other| json!([other])).into_iter().chain([json!([])]) {
            assert!(matches!(seen(&foreign), JobObservation::Foreign(_)), "{foreign}");
        }
        let JobObservation::Foreign(whose) = seen(&json!([owner("CronJob", "c", true), owner("HTCJob", "u", false)]))
        else {
            panic!("it has another controller")
        };
        assert_eq!(whose, "CronJob sums controls it");
    }
}
