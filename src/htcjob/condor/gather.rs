//! Gathers the facts about one object.

use std::sync::Arc;

use htc_api::{
    ABANDON_ANNOTATION, CLAIM_ANNOTATION, FINALIZER, HTCJob, HTCJobStatus, Identity, InputStatus, OLD_FINALIZER,
    ObservedHTCJob, Reason, SUBMIT_AGAIN_ANNOTATION,
};
use htc_machine::facts::{
    Answer, Evidence, Facts, Job, JobState, Listed, Object, Past, Published, QueryError, QueryErrorKind, Record, Spec,
    SpecRefused, Unreadable,
};
use htc_machine::ids::{JobId, id_ranges};
use htc_machine::{SchedDate, ScheddName, Timestamp, Uid};
use htc_submit::spec::{Nodes, Plan};
use kube::{Resource as _, ResourceExt as _};

use crate::htcjob::GatherError;
use crate::htcjob::config_maps::SpecState;
use crate::htcjob::image_digest;
use crate::htcjob::pass::Pass;
use crate::htcjob::spec::{RequestedSpec, read_spec};
use crate::htcpool::{Pool, PoolPlacement};

/// Facts for the decision, and the inputs that the workers need.
pub(in crate::htcjob) struct CondorGathered {
    pub(super) facts: Facts,
    pub(super) plan: Option<Arc<Plan>>,
    /// Files that the jobs get.
    pub(super) inputs: Vec<InputStatus>,
    /// Identity whose HTCondor user owns the object's jobs.
    pub(super) identity: Identity,
    /// Pool that has the jobs or will get them.
    pub(super) place: PoolPlacement,
}

/// What was made of the spec.
struct Planned {
    /// Submission plan, if the spec can be submitted.
    plan: Option<Arc<Plan>>,
    /// Spec, as decisions need it.
    spec: Result<Spec, Unreadable>,
    /// Files that the jobs get.
    inputs: Vec<InputStatus>,
}

/// Gathers all facts. The request in flight is read before the ledger: a request that ends in between then counts as in
/// flight, and is never missed.
pub(super) async fn gather(pass: &Pass<'_>) -> Result<CondorGathered, GatherError> {
    let Pass { context, object, uid, name } = pass;
    let in_flight = context.requests.get(uid);
    let place = context.pools.placement(uid, &name.namespace, object);
    let (identity, assigned) = identity_of(object, uid, &name.namespace, place.pool.as_deref(), pass.now());
    let (evidence, silent_since) =
        place.pool.as_ref().map_or_else(|| (evidence_without_pool(&place), None), |pool| pool.tracker.evidence(uid));
    let record = context.ledger.load(uid).await?;
    let claim = pass.claim();
    let ledger_past = pass.past(claim, record.row.is_some());
    let evidence = match &place.pool {
        Some(pool) => require_known_user(evidence, (&identity, assigned), &record, ledger_past, pool),
        None => evidence,
    };
    let evidence = doubt_unlabelled_jobs(evidence, &record);
    let (ours, deleting) = (pass.has_finalizer(), pass.is_deleting());
    let published = object.0.as_ref().map(published).unwrap_or_default();
    let Planned { plan, spec, inputs } = match &object.0 {
        Ok(job) => {
            let state = SpecState {
                ours: ours && !deleting,
                recorded: record.row.is_some(),
                submitted: was_submitted(&record, &published),
            };
            refuse_without_pool(&place, &state, plan(pass, job, &place, &state).await?)
        }
        Err(invalid) => {
            let spec = Err(Unreadable::invalid(format!("the HTCJob cannot be read: {}", invalid.error)));
            Planned { plan: None, spec, inputs: Vec::new() }
        }
    };
    let site = &context.planner.site_defaults;
    let may_rerun = plan.as_ref().is_none_or(|plan| site.may_rerun() || plan.options.may_rerun());
    let unadopted = is_unadopted(object);
    // For an object that is being deleted, the Go operator's finalizer counts like ours: it holds the object as well, and
    // ours can no longer be added.
    let guarded = ours || ((deleting || unadopted) && has_old_finalizer(object));
    let holds = record.jobs.values().any(|job| matches!(&job.state, JobState::Held(hold) if hold.is_ours()));
    let queue = pass.queue_facts(record.granting_queue.as_deref(), record.row.as_ref(), holds);
    let drained = queue.as_ref().is_some_and(|queue| queue.drained);
    let spec = spec.map(|spec| Spec { suspend: spec.suspend || drained, ..spec });
    let facts = Facts {
        schedd: schedd(&place, &record, &published),
        object: Object {
            uid: uid.clone(),
            deleting,
            finalizer: guarded,
            claim,
            spec,
            output: output(pass, &record),
            published,
            created: SchedDate(object.creation_timestamp().map_or(0, |time| time.0.as_second())),
            abandon: pass.is_annotated(ABANDON_ANNOTATION),
            submit_again: pass.is_annotated(SUBMIT_AGAIN_ANNOTATION),
            may_rerun,
            unadopted,
        },
        past: ledger_past,
        record,
        in_flight,
        evidence,
        silent_since,
        schedd_is_silent: place.pool.as_ref().is_some_and(|pool| pool.schedd.backoff.is_unresponsive(pass.now())),
        queue,
    };
    Ok(CondorGathered { facts, plan, inputs, identity, place })
}

/// Whether jobs in this pool pull their images. Workers of a managed pool are the containers themselves.
fn pulls_images(place: &PoolPlacement) -> bool {
    place.pool.as_ref().is_some_and(|pool| !pool.credentials.is_managed())
}

/// Whether jobs of an object were submitted to HTCondor.
fn was_submitted(record: &Record, published: &Published) -> bool {
    let recorded = record.highest.0 > 0 || !record.jobs.is_empty();
    recorded || published.attempt > 0 || published.shows_jobs()
}

/// Returns the identity whose HTCondor user owns the object's jobs, and the time since which it is known.
pub(in crate::htcjob) fn identity_of(
    object: &ObservedHTCJob,
    uid: &Uid,
    namespace: &str,
    pool: Option<&Pool>,
    now: Timestamp,
) -> (Identity, Timestamp) {
    let users = pool.map(|pool| &pool.schedd.users);
    let spec = object.0.as_ref().ok().map(|job| &job.spec);
    let identity = match pool {
        Some(pool) => pool.identity(uid, namespace, spec),
        None => spec.map(|spec| Identity::of(namespace, spec)),
    };
    match identity {
        Some(identity) => {
            let assigned = users.map_or(now, |users| users.assign(uid, &identity, now));
            (identity, assigned)
        }
        // The spec is unreadable, so the Secret that it names is unknown. Until it is known, jobs of every user count
        // as the object's own, so that none is overlooked.
        None => users.and_then(|users| users.assigned(uid)).unwrap_or((Identity::Operator, Timestamp(0))),
    }
}

/// Returns the evidence for an object without a pool to query.
fn evidence_without_pool(place: &PoolPlacement) -> Evidence {
    match &place.refusal {
        Some(SpecRefused { reason: Reason::PoolNotFound, message }) => {
            let unknown = QueryError { kind: QueryErrorKind::PoolNotFound, message: message.clone() };
            Evidence { queue: Answer::Unknown(unknown.clone()), history: Answer::Unknown(unknown) }
        }
        Some(_) | None => Evidence::none(),
    }
}

/// Returns the schedd that is queried. Without a pool, returns the schedd that has the jobs.
fn schedd(place: &PoolPlacement, record: &Record, published: &Published) -> ScheddName {
    let asked = place.pool.as_ref().map(|pool| pool.schedd.name.clone());
    let attempted = || record.attempts.first().map(|attempt| attempt.schedd.clone());
    let known = || record.schedds.iter().next().cloned().or_else(attempted).or_else(|| published.schedd.clone());
    asked.or_else(known).unwrap_or_else(|| ScheddName::from(""))
}

/// Refuses new submissions if the pool does not exist, does not admit this namespace or is not ready. An object that
/// was already submitted continues.
fn refuse_without_pool(place: &PoolPlacement, state: &SpecState, planned: Planned) -> Planned {
    let Some(trouble) = &place.refusal else { return planned };
    let Planned { plan, spec, inputs } = planned;
    let (plan, spec) = match spec {
        Ok(_) if !state.submitted => {
            let SpecRefused { reason, message } = trouble.clone();
            (None, Err(Unreadable { reason, message, requeue_after: None }))
        }
        Ok(spec) => {
            let refused = spec.refused.or_else(|| Some(trouble.clone()));
            (plan, Ok(Spec { refused, ..spec }))
        }
        Err(unreadable) => (plan, Err(unreadable)),
    };
    Planned { plan, spec, inputs }
}

/// Ignores evidence requested before the object's HTCondor user was known: it may lack the object's jobs, or count
/// another user's. It may lack jobs when the users of Secrets are unknown after a ledger was lost; then the schedd is
/// asked for the user first. It may count too many when the object had no single identity at the time of the query:
/// jobs of every user then counted as its own.
fn require_known_user(
    evidence: Evidence,
    (identity, assigned): (&Identity, Timestamp),
    record: &Record,
    past: Past,
    pool: &Pool,
) -> Evidence {
    let since = match (identity, pool.schedd.users.known_since(identity)) {
        // The operator's own user name is resolved before any other query.
        (Identity::Operator, _) => assigned,
        (Identity::Secret { .. } | Identity::Namespace(_), Some(known)) => known.max(assigned),
        (Identity::Secret { .. } | Identity::Namespace(_), None) => {
            let new = past == Past::Continuous && record.row.as_ref().is_none_or(|known| known.new);
            let failed = if new { None } else { pool.credentials.ensure_user_known(identity) };
            return match failed {
                Some(unknown) => {
                    Evidence { queue: Answer::Unknown(unknown.clone()), history: Answer::Unknown(unknown) }
                }
                None => Evidence::none(),
            };
        }
    };
    match &evidence.queue {
        Answer::Known(queue) if queue.asked_at <= since => Evidence::none(),
        Answer::Known(_) | Answer::Unknown(_) => evidence,
    }
}

/// Returns unknown evidence if a recorded job has lost its label (the attribute `HTCJobUID`). Such a job is not gone.
/// The object's state stays unknown until the job is labelled again or leaves the queue.
fn doubt_unlabelled_jobs(evidence: Evidence, record: &Record) -> Evidence {
    let Answer::Known(queue) = &evidence.queue else { return evidence };
    let nameless: Vec<JobId> = match queue.unlabelled.as_ref() {
        [] => return evidence,
        ids => {
            // In a queue with another birthdate, the same id belongs to another job.
            let is_it =
                |job: &&Job| !job.gone && job.birthdate == queue.birthdate && ids.binary_search(&job.id).is_ok();
            record.jobs.values().filter(is_it).map(|job| job.id).collect()
        }
    };
    if nameless.is_empty() {
        return evidence;
    }
    let message = format!(
        "{} no longer say that they are of this HTCJob: somebody has changed their attribute HTCJobUID; set it to the HTCJob's uid with condor_qedit, or remove the jobs with condor_rm",
        id_ranges(&nameless, 200)
    );
    Evidence {
        queue: Answer::Unknown(QueryError { kind: QueryErrorKind::Incomplete, message }),
        history: evidence.history,
    }
}

fn has_old_finalizer(object: &ObservedHTCJob) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == OLD_FINALIZER)
}

/// Whether the object belonged to the Go operator and its jobs are not adopted yet. Either the Go operator's finalizer
/// is there, or its status fields are and no operator of this kind has touched the object. Adoption cannot remove the
/// finalizer of an object that is being deleted.
pub(crate) fn is_unadopted(object: &ObservedHTCJob) -> bool {
    let (old, deleting) = (has_old_finalizer(object), object.meta().deletion_timestamp.is_some());
    let status = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let uniqid = |status: &HTCJobStatus| status.uniqid.is_some_and(|uniqid| uniqid != 0);
    let had = old || status.is_some_and(|status| !status.jobids.is_empty() || uniqid(status));
    let touched =
        object.annotations().contains_key(CLAIM_ANNOTATION) || object.finalizers().iter().any(|own| own == FINALIZER);
    (old && !deleting) || (had && !touched)
}

/// Location of the output, for messages.
fn output(pass: &Pass<'_>, record: &Record) -> String {
    let own = pass.context.planner.layout.output(&pass.name, &pass.uid).display().to_string();
    if record.has_inherited() {
        format!("{own}, or where the Go operator has put it (htc_out/{} of its volume)", pass.name.name)
    } else {
        own
    }
}

/// Returns the submission plan, if the spec can be submitted, and the spec as decisions need it. A spec that this
/// operator refuses but an earlier one submitted is still followed.
async fn plan(pass: &Pass<'_>, job: &HTCJob, place: &PoolPlacement, state: &SpecState) -> Result<Planned, GatherError> {
    let nodes = if place.managed { Nodes::Managed } else { Nodes::Site { namespace: &pass.name.namespace } };
    let plan = |jobs| pass.context.planner.rules.plan(&job.spec, jobs, nodes).map_err(|error| error.to_string());
    let check = || plan(0).err();
    let RequestedSpec { spec, inputs, lost } = match read_spec(pass, job, state, check, || None).await? {
        Ok(requested) => requested,
        Err(unreadable) => return Ok(Planned { plan: None, spec: Err(unreadable), inputs: Vec::new() }),
    };
    let plan = match lost.map(str::to_owned).or_else(|| too_large(pass, &inputs, spec.count())) {
        Some(refused) => Err(refused),
        None => plan(spec.count()),
    };
    let plan = match plan {
        Ok(plan) if pulls_images(place) => match image_digest::pinned(pass, plan, state).await? {
            Ok(plan) => Ok(plan),
            Err(unreadable) => return Ok(Planned { plan: None, spec: Err(unreadable), inputs }),
        },
        plan => plan,
    };
    let refused = plan.as_ref().err().map(SpecRefused::invalid);
    Ok(Planned { plan: plan.ok().map(Arc::new), spec: Ok(Spec { refused, ..spec }), inputs })
}

/// Why the files of this many jobs are too large for the schedd, which keeps a copy for each job.
fn too_large(pass: &Pass<'_>, inputs: &[InputStatus], jobs: usize) -> Option<String> {
    let limit = pass.context.planner.inputs_limit;
    let bytes: i64 = inputs.iter().map(|input| input.bytes).sum();
    let needed = u64::try_from(bytes).unwrap_or_default().saturating_mul(jobs as u64);
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    (limit > 0 && needed > limit).then(|| {
        format!(
            "spec.files: HTCondor keeps {bytes} bytes for each of {jobs} jobs, {} MiB together, and the site allows {} MiB: make the files smaller, or put them where the nodes can read them (/cvmfs, a web server) and fetch them in the script",
            mib(needed),
            mib(limit)
        )
    })
}

fn published(job: &HTCJob) -> Published {
    job.status.as_ref().map_or_else(Published::default, |status| Published {
        phase: status.phase,
        attempt: status.attempt.and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or_default(),
        listed: listed(job, status),
        schedd: status.schedd.as_deref().filter(|name| !name.is_empty()).map(ScheddName::from),
    })
}

fn listed(job: &HTCJob, status: &HTCJobStatus) -> Listed {
    let others = !status.jobid.is_empty()
        || !status.jobids.is_empty()
        || status.clusterid.as_ref().is_some_and(|id| !id.is_empty());
    match &status.jobs {
        // The items that this ledger has read may differ from those that these jobs were submitted with.
        Some(_) if job.spec.items_from.is_some() => Listed::Partly,
        Some(ids) => Listed::read(ids),
        None if others => Listed::Partly,
        None => Listed::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A ledger that read the ConfigMap later does not know which items those jobs were submitted with.
    #[test]
    fn published_jobs_with_config_map_items_are_a_partial_list() {
        let listed = |more: Value| {
            let mut job = json!({
                "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": "fit" },
                "spec": { "script": { "image": "centos", "command": "bash", "source": "true" } }, "status": { "jobs": "1.0" },
            });
            let more = more.as_object().cloned().unwrap_or_default();
            job["spec"].as_object_mut().unwrap().extend(more);
            published(&serde_json::from_value(job).unwrap()).listed
        };
        assert_eq!(listed(json!({ "queue": 2 })), Listed::All(vec!["1.0".parse().unwrap()]));
        assert_eq!(listed(json!({ "items": ["a", "b"] })), Listed::All(vec!["1.0".parse().unwrap()]));
        let key = json!({ "configMapKeyRef": { "name": "items", "key": "text" } });
        assert_eq!(listed(json!({ "itemsFrom": key })), Listed::Partly);
    }
}
