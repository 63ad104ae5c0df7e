//! The facts about one object whose jobs are Pods.

use std::time::{Duration, Instant};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Resource as _, ResourceExt as _};

use crate::api::text::{WORDS, harmless};
use crate::api::{ABANDON, APP_LABEL, FINALIZER, Guarded, HTCJob, ObjectName, Observed, Reason, SUBMIT_AGAIN};
use crate::controller::gather::{claim, may_be_forgotten, past};
use crate::controller::items::{self, Kept, Row};
use crate::controller::{Context, GatherError};
use crate::kubernetes::{ApiError, limited};
use crate::kubernetes_backend::{CONTROLLER_UID, HTCJOB_UID, Identity, PodPlan, is_htcjob, job_name, seen_job};
use crate::machine::Uid;
use crate::machine::facts::{Past, Spec, SpecRefused, Unreadable};
use crate::machine::ids::Index;
use crate::machine::indices::Indices;
use crate::machine::pods::{BatchJob, Facts, JobSeen, Left, Object, PodsSeen};
use crate::machine::runs::{JobUid, Record};
use crate::queue::Asker;
use crate::workers::Planner;

/// The facts, and what the Job is made of.
pub(super) struct Gathered {
    pub(super) facts: Facts,
    pub(super) name: ObjectName,
    pub(super) plan: Option<PodPlan>,
    pub(super) app: Option<String>,
    /// Its Job is there, and is not seen by the watch: somebody has taken the label away.
    pub(super) unwatched: bool,
}

impl Gathered {
    /// Its Job.
    pub(super) fn named(&self) -> ObjectName {
        ObjectName { namespace: self.name.namespace.clone(), name: self.facts.object.job_name.clone() }
    }

    pub(super) fn identity(&self) -> Identity {
        Identity { name: self.name.clone(), uid: self.facts.object.uid.clone(), app: self.app.clone() }
    }
}

pub(super) async fn gather(object: &Observed, context: &Context) -> Result<Gathered, GatherError> {
    let uid = Uid::from(object.uid().ok_or(GatherError::Nameless("uid"))?.as_str());
    let namespace = object.namespace().ok_or(GatherError::Nameless("namespace"))?;
    let name = ObjectName { namespace, name: object.name_any() };
    let began = Instant::now();
    let record = context.ledger.load_runs(&uid).await?;
    context.volatile.read(&uid, began.elapsed(), context.clock.now());
    let claim = claim(object, context);
    let finalizer = object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let past = match past(context, &uid, claim, finalizer) {
        Past::Continuous if may_be_forgotten(object, context, &uid, record.known.is_some()) => {
            Past::Unknown { settled: Some(context.clock.now()) }
        }
        past => past,
    };
    let deleting = object.meta().deletion_timestamp.is_some();
    let status = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let shows_job = status.is_some_and(|status| {
        status.job_name.is_some() || status.phase.is_some_and(|phase| phase > crate::api::Phase::Pending)
    });
    let bound = record.queue.as_deref();
    let job_name = job_name(&name.name, &uid);
    let named = ObjectName { namespace: name.namespace.clone(), name: job_name.clone() };
    // It had room, and waits for some again.
    let holds = bound.is_some() && context.backends.pods.job(&named, &uid).is_some_and(|job| job.suspended);
    let seen_in = record.known.as_ref().and_then(|known| known.queue.as_deref());
    let queue = context.queues.fact(&Asker { uid: &uid, namespace: &name.namespace, object, bound, seen_in, holds });
    let drained = queue.as_ref().is_some_and(|queue| queue.drained);
    let (plan, spec) = match &object.0 {
        Ok(job) => {
            let row = Row {
                uid: &uid,
                name: &name,
                ours: finalizer && !deleting,
                recorded: record.known.is_some(),
                submitted: record.job.is_some() || shows_job,
            };
            plan(job, drained, &named, &row, context).await?
        }
        Err(invalid) => (None, Err(Unreadable::invalid(format!("the HTCJob cannot be read: {}", invalid.error)))),
    };
    let asked: Option<Indices> = spec.as_ref().ok().map(Spec::asked_for);
    let wanted = Wanted { uid: &uid, job_name: &job_name, record: &record, asked: asked.as_ref(), deleting, finalizer };
    let job = see_job(context, &name, &wanted).await;
    let pods = match (&job, &asked) {
        (JobSeen::Ours(job), Some(asked)) => {
            context.backends.pods.pods(&name.namespace, &job.uid, &asked.iter().collect::<Vec<_>>())
        }
        _ => PodsSeen::Unknown,
    };
    let annotated = |key: &str| object.annotations().get(key).is_some_and(|value| value == "true");
    let mut facts = Facts {
        create: context.backends.creations.may(&uid, context.clock.now()),
        adjust_refused: context.backends.changes.refused(&uid),
        object: Object {
            uid,
            deleting,
            finalizer,
            claim,
            spec,
            job_name,
            shows_job,
            abandon: annotated(ABANDON),
            submit_again: annotated(SUBMIT_AGAIN),
        },
        record,
        past,
        job,
        pods,
        left: Left::Unknown,
        queue,
        namespace_room: None,
    };
    if is_gone(&facts) && left_matters(&facts) {
        facts.left = see_left(context, &name, &facts.object.uid, facts.record.job.as_ref()).await;
    }
    let app = object.labels().get(APP_LABEL).cloned();
    let unwatched =
        matches!(facts.job, JobSeen::Ours(_)) && context.backends.pods.job(&named, &facts.object.uid).is_none();
    Ok(Gathered { facts, name, plan, app, unwatched })
}

/// What is asked for.
struct Wanted<'a> {
    uid: &'a Uid,
    job_name: &'a str,
    record: &'a Record,
    asked: Option<&'a Indices>,
    deleting: bool,
    finalizer: bool,
}

/// The Job by what is watched. Only what is not seen there and matters is asked for: then the API server's answer is of now.
async fn see_job(context: &Context, name: &ObjectName, wanted: &Wanted<'_>) -> JobSeen {
    if let Some(why) = context.backends.pods.trouble() {
        return JobSeen::Unknown(why);
    }
    let named = ObjectName { namespace: name.namespace.clone(), name: wanted.job_name.to_owned() };
    if let Some(job) = context.backends.pods.job(&named, wanted.uid) {
        return JobSeen::Ours(by_index(job, wanted.asked));
    }
    let over = wanted.record.known.as_ref().is_none_or(|known| known.completed.is_some());
    let follows = wanted.record.job.is_some() && !over;
    // To create one that is there is a conflict.
    let matters = follows || (wanted.deleting && wanted.finalizer);
    if !matters {
        return JobSeen::Absent;
    }
    let api: Api<Guarded<Job>> = Api::namespaced(context.client.clone(), &name.namespace);
    match limited("list the Job", &wanted.job_name, api.list(&only(wanted.job_name))).await {
        Ok(listed) => match listed.items.first().map(|job| &job.0) {
            None => JobSeen::Absent,
            Some(Ok(job)) => whose(job, wanted.uid, wanted.record.job.as_ref(), wanted.asked),
            Some(Err(invalid)) => {
                JobSeen::Unknown(harmless(&format!("Job {} cannot be read: {invalid}", wanted.job_name), WORDS))
            }
        },
        Err(error) => JobSeen::Unknown(error.to_string()),
    }
}

/// The one of this name, if it is there, as the API server has it now. To `get` it would take a right in its namespace, and of a namespace
/// that is being deleted the rights may go before the `HTCJob`s: nobody could let these go then.
pub(super) fn only(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}

/// Whose a Job is that has the name. The one that is recorded stays the `HTCJob`'s, also if somebody has taken the owner out of it.
pub(super) fn whose(job: &Job, uid: &Uid, recorded: Option<&JobUid>, asked: Option<&Indices>) -> JobSeen {
    let owner = job.owner_references().iter().find(|owner| owner.controller == Some(true));
    match (owner, seen_job(job)) {
        (_, Some(job)) if recorded.is_some_and(|recorded| *recorded == job.uid) => JobSeen::Ours(by_index(job, asked)),
        (Some(owner), Some(job)) if is_htcjob(owner) && owner.uid == uid.as_str() => {
            JobSeen::Ours(by_index(job, asked))
        }
        (Some(owner), _) => JobSeen::Foreign(harmless(&format!("{} {} controls it", owner.kind, owner.name), WORDS)),
        (None, _) => JobSeen::Foreign("nothing controls it".to_owned()),
    }
}

/// Completion indexes become those of the `HTCJob`. Where these are not known, nothing is said of them, nor that it has ended.
fn by_index(job: BatchJob, asked: Option<&Indices>) -> BatchJob {
    let Some(asked) = asked else {
        return BatchJob { succeeded: Indices::default(), failed: Indices::default(), failing: None, end: None, ..job };
    };
    let all: Vec<Index> = asked.iter().collect();
    let of = |set: &Indices| set.iter().filter_map(|completion| all.get(completion.0 as usize).copied()).collect();
    BatchJob { succeeded: of(&job.succeeded), failed: of(&job.failed), ..job }
}

fn is_gone(facts: &Facts) -> bool {
    match &facts.job {
        JobSeen::Absent | JobSeen::Foreign(_) => true,
        JobSeen::Ours(other) => facts.record.job.as_ref().is_some_and(|recorded| *recorded != other.uid),
        JobSeen::Unknown(_) => false,
    }
}

/// Who deletes a Job may leave its Pods, which use what they were given. Who reads that it is lost is told so.
fn left_matters(facts: &Facts) -> bool {
    let Facts { object, record, .. } = facts;
    let is_lost = record.job.is_some() && record.known.as_ref().is_some_and(|known| known.completed.is_none());
    (object.deleting && object.finalizer) || !record.granted.is_empty() || is_lost
}

/// Whether Pods are left of a Job that is gone.
async fn see_left(context: &Context, name: &ObjectName, uid: &Uid, job: Option<&JobUid>) -> Left {
    let Some(job) = job else { return Left::None };
    match pods_of(context, name, (uid, job), 1).await {
        Ok(pods) if pods.is_empty() => Left::None,
        Ok(_) => Left::Some,
        Err(error) => {
            tracing::warn!(%error, "whether Pods are left is not known");
            Left::Unknown
        }
    }
}

/// At most so many Pods of a Job, as the API server has them now.
pub(super) async fn pods_of(
    context: &Context,
    name: &ObjectName,
    (uid, job): (&Uid, &JobUid),
    most: u32,
) -> Result<Vec<Guarded<Pod>>, ApiError> {
    let api: Api<Guarded<Pod>> = Api::namespaced(context.client.clone(), &name.namespace);
    let of_job =
        ListParams::default().labels(&format!("{CONTROLLER_UID}={},{HTCJOB_UID}={uid}", job.as_str())).limit(most);
    Ok(limited("list the Pods of HTCJob", name, api.list(&of_job)).await?.items)
}

type Planned = (Option<PodPlan>, Result<Spec, Unreadable>);

/// What it is to run, and what decisions need of that. `named`: its Job.
async fn plan(
    job: &HTCJob,
    drained: bool,
    named: &ObjectName,
    row: &Row<'_>,
    context: &Context,
) -> Result<Planned, GatherError> {
    let plan = PodPlan::parse(&job.spec, &context.backends.pods.site);
    let read = match &job.spec.items_from {
        None => None,
        Some(from) => {
            // What is wrong with the rest of it is said first.
            if let (Err(error), false) = (&plan, row.submitted) {
                return Ok((None, Err(Unreadable::invalid(error.to_string()))));
            }
            match items::kept(row, job, &from.config_map_key_ref, context).await? {
                Kept::Items(items) => Some(items),
                // The Job has them.
                Kept::Lost => {
                    items::published_queue(job).or_else(|| context.backends.pods.job(named, row.uid)?.completions)
                }
                Kept::NotYet(unreadable) => return Ok((None, Err(unreadable))),
            }
        }
    };
    let asked_for = Planner::queue(&job.spec, read)
        .and_then(|queue| Ok(Spec { queue, indexes: Planner::indexes(&job.spec, queue)?, ..Spec::default() }));
    let asked_for = match asked_for {
        Ok(asked_for) => asked_for,
        Err(error) => return Ok((None, Err(Unreadable::invalid(error.to_string())))),
    };
    let seconds =
        |seconds: Option<i64>| seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    let most = |limit: Option<i64>| limit.map(|limit| u32::try_from(limit.max(0)).unwrap_or(u32::MAX));
    let spec = Spec {
        suspend: job.spec.suspend || drained,
        parallelism: most(job.spec.parallelism),
        max_failed: most(job.spec.max_failed_indexes),
        deadline: seconds(job.spec.active_deadline_seconds),
        ttl: seconds(job.spec.ttl_seconds_after_finished),
        ..asked_for
    };
    let refused = match &plan {
        Err(error) => Some(SpecRefused::invalid(error.to_string())),
        Ok(_) if !context.backends.pods.site.enabled => Some(SpecRefused {
            reason: Reason::BackendDisabled,
            message: context.backends.pods.trouble().unwrap_or_default(),
        }),
        Ok(_) => None,
    };
    Ok((plan.ok(), Ok(Spec { refused, ..spec })))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::machine::Timestamp;
    use crate::machine::facts::{Claim, Known};
    use crate::machine::phase::Phase;
    use crate::machine::pods::Create;

    fn seen(owners: &Value) -> JobSeen {
        let job =
            json!({ "metadata": { "name": "sums-0b5ea2a4", "namespace": "n", "uid": "j", "ownerReferences": owners } });
        whose(&serde_json::from_value(job).unwrap(), &Uid::from("u"), None, None)
    }

    #[test]
    fn pods_are_looked_for_when_the_job_is_lost() {
        let known = |completed| Known {
            phase: Phase::Running,
            new: true,
            started: None,
            completed,
            cut_short: None,
            given_up: 0,
            released: false,
            queue: None,
            conditions: Vec::new(),
        };
        let matters = |job: Option<&str>, completed, deleting, granted: &str| {
            let record = Record {
                known: Some(known(completed)),
                job: job.map(JobUid::from),
                granted: granted.parse().unwrap(),
                ..Record::default()
            };
            let object = Object {
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
            left_matters(&Facts {
                object,
                record,
                past: Past::Continuous,
                job: JobSeen::Absent,
                pods: PodsSeen::Unknown,
                left: Left::Unknown,
                create: Create::May,
                adjust_refused: None,
                queue: None,
                namespace_room: None,
            })
        };
        assert!(matters(Some("j"), None, false, ""));
        assert!(!matters(None, None, false, ""), "one that was never recorded has made none");
        assert!(!matters(Some("j"), Some(Timestamp(1)), false, ""), "it has been told");
        assert!(matters(Some("j"), Some(Timestamp(1)), false, "0") && matters(None, None, true, ""));
    }

    #[test]
    fn the_recorded_job_stays_its_own() {
        let job: Job = serde_json::from_value(json!({ "metadata": { "name": "sums-0b5ea2a4", "uid": "j" } })).unwrap();
        let seen = |recorded: &str| whose(&job, &Uid::from("u"), Some(&JobUid::from(recorded)), None);
        assert!(matches!(seen("j"), JobSeen::Ours(_)) && matches!(seen("k"), JobSeen::Foreign(_)));
    }

    #[test]
    fn a_job_is_its_only_if_it_controls_it() {
        let owner = |kind: &str, uid: &str, controller: bool| json!({ "apiVersion": "htc.cern.ch/v1alpha1", "kind": kind, "name": "sums", "uid": uid, "controller": controller });
        assert!(matches!(seen(&json!([owner("HTCJob", "u", true)])), JobSeen::Ours(_)));
        let others = [owner("HTCJob", "v", true), owner("HTCJob", "u", false), owner("Foo", "u", true)];
        for foreign in others.map(|other| json!([other])).into_iter().chain([json!([])]) {
            assert!(matches!(seen(&foreign), JobSeen::Foreign(_)), "{foreign}");
        }
        let JobSeen::Foreign(whose) = seen(&json!([owner("CronJob", "c", true), owner("HTCJob", "u", false)])) else {
            panic!("it is somebody else's")
        };
        assert_eq!(whose, "CronJob sums controls it");
    }
}
