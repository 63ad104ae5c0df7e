//! The facts about one object.

use std::sync::Arc;
use std::time::Duration;

use kube::{Resource as _, ResourceExt as _};

use super::items::{self, Kept, Row};
use super::{Context, GatherError};
use crate::api::{
    ABANDON, CLAIM, FINALIZER, HTCJob, HTCJobStatus, Identity, OLD_FINALIZER, ObjectName, Observed, Reason,
    SUBMIT_AGAIN,
};
use crate::machine::decide::{Action, Decision};
use crate::machine::facts::{
    Answer, Claim, Evidence, Facts, Job, JobState, Listed, Object, Past, Published, Record, Spec, SpecRefused, Unknown,
    Unreadable, Why,
};
use crate::machine::ids::{JobId, id_ranges};
use crate::machine::inherited::{Inherited, InheritedJob};
use crate::machine::{Index, Request, SchedDate, ScheddName, Timestamp, Uid, Work};
use crate::pools::{Place, Pool};
use crate::queue::Asker;
use crate::workers::{Plan, Planner, Texts};

/// The facts, and what the workers will need.
pub(super) struct Gathered {
    pub(super) facts: Facts,
    pub(super) name: ObjectName,
    pub(super) plan: Option<Arc<Plan>>,
    /// In whose name its jobs are.
    pub(super) identity: Identity,
    /// Where they are, or go.
    pub(super) place: Place,
}

/// What is to be run, and what decisions need of that.
type Planned = (Option<Arc<Plan>>, Result<Spec, Unreadable>);

/// Gathers all that is known. The request in flight is looked up before the ledger is read: one that ends in between is
/// then still seen, never missed.
pub(super) async fn gather(object: &Observed, context: &Context) -> Result<Gathered, GatherError> {
    let uid = Uid::from(object.uid().ok_or(GatherError::Nameless("uid"))?.as_str());
    let namespace = object.namespace().ok_or(GatherError::Nameless("namespace"))?;
    let name = ObjectName { namespace, name: object.name_any() };
    let in_flight = context.requests.get(&uid);
    let place = context.pools.place(&uid, &name.namespace, object);
    let (identity, assigned) = whose(object, &uid, &name.namespace, place.pool.as_deref(), context.clock.now());
    let (evidence, silent_since) =
        place.pool.as_ref().map_or_else(|| (nowhere(&place), None), |pool| pool.tracker.evidence(&uid));
    let record = context.ledger.load(&uid).await?;
    let claim = claim(object, context);
    let ours = object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let past = match past(context, &uid, claim, ours) {
        Past::Continuous if may_be_forgotten(object, context, &uid, record.known.is_some()) => {
            Past::Unknown { settled: Some(context.clock.now()) }
        }
        past => past,
    };
    let evidence = match &place.pool {
        Some(pool) => in_its_name(evidence, (&identity, assigned), &record, past, pool),
        None => evidence,
    };
    let evidence = unless_nameless(evidence, &record);
    // None can be attached any more, and the Go operator's holds it as well.
    let deleting = object.meta().deletion_timestamp.is_some();
    let published = object.0.as_ref().map(published).unwrap_or_default();
    let (plan, spec) = match &object.0 {
        Ok(job) => {
            let ours = ours && !deleting;
            let (recorded, submitted) = (record.known.is_some(), items::submitted(&record, &published));
            let row = Row { uid: &uid, name: &name, ours, recorded, submitted };
            in_its_place(&place, &row, plan(job, &row, context).await?)
        }
        Err(invalid) => (None, Err(Unreadable::invalid(format!("the HTCJob cannot be read: {}", invalid.error)))),
    };
    let site = &context.planner.site_defaults;
    let may_rerun = plan.as_ref().is_none_or(|plan| site.may_rerun() || plan.options.may_rerun());
    let guarded = ours || (deleting && has_old_finalizer(object));
    let inherited = inherited(object, context, &name, &uid).await?;
    let holds = record.jobs.values().any(|job| matches!(&job.state, JobState::Held(hold) if hold.is_ours()));
    let bound = record.queue.as_deref();
    let seen_in = record.known.as_ref().and_then(|known| known.queue.as_deref());
    let queue = context.queues.fact(&Asker { uid: &uid, namespace: &name.namespace, object, bound, seen_in, holds });
    let drained = queue.as_ref().is_some_and(|queue| queue.drained);
    let spec = spec.map(|spec| Spec { suspend: spec.suspend || drained, ..spec });
    let annotated = |key: &str| object.annotations().get(key).is_some_and(|value| value == "true");
    let facts = Facts {
        schedd: schedd(&place, &record, &published),
        object: Object {
            uid: uid.clone(),
            deleting,
            finalizer: guarded,
            claim,
            spec,
            output: output(context, &name, &uid, inherited.as_ref()),
            published,
            created: SchedDate(object.creation_timestamp().map_or(0, |time| time.0.as_second())),
            abandon: annotated(ABANDON),
            submit_again: annotated(SUBMIT_AGAIN),
            may_rerun,
            inherited,
        },
        past,
        record,
        in_flight,
        evidence,
        silent_since,
        schedd_is_silent: place.pool.as_ref().is_some_and(|pool| pool.schedd.pauses.is_silent(context.clock.now())),
        queue,
    };
    Ok(Gathered { facts, name, plan, identity, place })
}

/// In whose name the object's jobs are, and since when that is known.
fn whose(object: &Observed, uid: &Uid, namespace: &str, pool: Option<&Pool>, now: Timestamp) -> (Identity, Timestamp) {
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
        // Which Secret it names cannot be read. As long as that is not known, jobs in all names are its own: none is
        // overlooked.
        None => users.and_then(|users| users.assigned(uid)).unwrap_or((Identity::Operator, Timestamp(0))),
    }
}

/// What is known where it is not known where to ask.
fn nowhere(place: &Place) -> Evidence {
    match &place.trouble {
        Some(SpecRefused { reason: Reason::PoolNotFound, message }) => {
            let unknown = Unknown { why: Why::PoolNotFound, message: message.clone() };
            Evidence { queue: Answer::Unknown(unknown.clone()), history: Answer::Unknown(unknown) }
        }
        Some(_) | None => Evidence::none(),
    }
}

/// The schedd that is asked; where none can be, the one that has the jobs.
fn schedd(place: &Place, record: &Record, published: &Published) -> ScheddName {
    let asked = place.pool.as_ref().map(|pool| pool.schedd.name.clone());
    let attempted = || record.attempts.first().map(|attempt| attempt.schedd.clone());
    let known = || record.schedds.iter().next().cloned().or_else(attempted).or_else(|| published.schedd.clone());
    asked.or_else(known).unwrap_or_else(|| ScheddName::from(""))
}

/// Nothing is submitted to a pool that is not there, is not for this namespace or is not ready. What was submitted goes on.
fn in_its_place(place: &Place, row: &Row<'_>, planned: Planned) -> Planned {
    let Some(trouble) = &place.trouble else { return planned };
    match planned {
        (_, Ok(_)) if !row.submitted => {
            let SpecRefused { reason, message } = trouble.clone();
            (None, Err(Unreadable { reason, message, again: None }))
        }
        (plan, Ok(spec)) => {
            let refused = spec.refused.or_else(|| Some(trouble.clone()));
            (plan, Ok(Spec { refused, ..spec }))
        }
        (plan, Err(unreadable)) => (plan, Err(unreadable)),
    }
}

/// An answer says nothing about jobs in a name that was not known when it was asked for: so it is with those of Secrets after a
/// ledger was lost. Then the schedd is asked for the name first. And it says too much if it was asked for when the object was
/// not known to be of one identity: jobs in any name then counted as its own.
fn in_its_name(
    evidence: Evidence,
    (identity, assigned): (&Identity, Timestamp),
    record: &Record,
    past: Past,
    pool: &Pool,
) -> Evidence {
    let since = match (identity, pool.schedd.users.known_since(identity)) {
        // Its name is asked for before anything else.
        (Identity::Operator, _) => assigned,
        (Identity::Secret { .. } | Identity::Namespace(_), Some(known)) => known.max(assigned),
        (Identity::Secret { .. } | Identity::Namespace(_), None) => {
            let new = past == Past::Continuous && record.known.as_ref().is_none_or(|known| known.new);
            let failed = if new { None } else { pool.credentials.introduce(identity) };
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

/// A recorded job that no longer says whose it is has not gone: of its object nothing is known until it says it again or
/// leaves the queue.
fn unless_nameless(evidence: Evidence, record: &Record) -> Evidence {
    let Answer::Known(queue) = &evidence.queue else { return evidence };
    let nameless: Vec<JobId> = match queue.nameless.as_ref() {
        [] => return evidence,
        ids => {
            // In another queue the same id is another job.
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
    Evidence { queue: Answer::Unknown(Unknown { why: Why::Incomplete, message }), history: evidence.history }
}

impl Gathered {
    /// All its jobs of the Go operator.
    pub(super) fn inherited(&self) -> Arc<[InheritedJob]> {
        match &self.facts.object.inherited {
            Some(Inherited::Jobs(jobs)) => Arc::clone(jobs),
            Some(Inherited::Unclear(_)) | None => Arc::default(),
        }
    }

    /// Those that may still be in HTCondor.
    pub(super) fn still_inherited(&self) -> Arc<[InheritedJob]> {
        let known = &self.facts.record.jobs;
        let gone = |job: &InheritedJob| known.get(&job.index).is_some_and(|known| known.id == job.id && known.gone);
        self.inherited().iter().filter(|job| !gone(job)).cloned().collect()
    }
}

fn has_old_finalizer(object: &Observed) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == OLD_FINALIZER)
}

/// What the Go operator has left of the object, if its finalizer or its fields of the status show that it had it.
async fn inherited(
    object: &Observed,
    context: &Context,
    name: &ObjectName,
    uid: &Uid,
) -> Result<Option<Inherited>, GatherError> {
    let status = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let ids = status.map(|status| status.jobids.as_slice()).unwrap_or_default();
    let uniqid = status.and_then(|status| status.uniqid).filter(|uniqid| *uniqid != 0);
    if !has_old_finalizer(object) && ids.is_empty() && uniqid.is_none() {
        return Ok(None);
    }
    let rows = context.ledger.inherited(&name.name, uid).await?;
    Ok(Some(crate::machine::inherited::inherited(ids, uniqid, &rows)))
}

/// Where the output is, for messages.
fn output(context: &Context, name: &ObjectName, uid: &Uid, inherited: Option<&Inherited>) -> String {
    let own = context.planner.output(name, uid).display().to_string();
    match inherited {
        Some(Inherited::Jobs(jobs)) if jobs.iter().any(|job| job.fetched) => {
            format!("{own}, or where the Go operator has put it (htc_out/{} of its volume)", name.name)
        }
        Some(_) | None => own,
    }
}

pub(super) fn claim(object: &Observed, context: &Context) -> Claim {
    match object.annotations().get(CLAIM) {
        None => Claim::None,
        Some(id) if id == context.ledger.id() => Claim::Ours,
        Some(_) => Claim::Other,
    }
}

/// An object that carries our finalizer but not our ledger's claim may have been submitted by somebody whose submitter
/// still lives: it waits for the longest life of one, from when it was first seen so.
pub(super) fn past(context: &Context, uid: &Uid, claim: Claim, ours: bool) -> Past {
    // Finalizer and claim come in one patch: without both, no operator of this kind has ever touched it.
    if claim == Claim::None && !ours {
        return Past::Continuous;
    }
    if claim == Claim::Ours {
        context.volatile.is_no_stranger(uid);
        return Past::Continuous;
    }
    let now = context.clock.now();
    let seen = context.volatile.stranger_since(uid, now);
    let settles = seen.plus(context.settings.submit_max + context.settings.dead_margin);
    Past::Unknown { settled: (settles <= now).then_some(settles) }
}

/// An object of ours without a row is new, unless it is old enough to have been one whose rows are removed by now: it came
/// back with a restored etcd, and its jobs may have run.
pub(super) fn may_be_forgotten(object: &Observed, context: &Context, uid: &Uid, recorded: bool) -> bool {
    if recorded {
        context.volatile.has_a_row(uid);
        return false;
    }
    let created = object.creation_timestamp().map_or(0, |time| time.0.as_millisecond());
    !context.volatile.has_claimed(uid) && context.ledger.has_forgotten(Timestamp(created))
}

/// What it is to run, if that can be submitted, and what decisions need of the spec. An operator that refuses what a former one
/// has submitted still follows it.
async fn plan(job: &HTCJob, row: &Row<'_>, context: &Context) -> Result<Planned, GatherError> {
    let (read, lost) = match &job.spec.items_from {
        None => (None, None),
        Some(from) => {
            // What is wrong with the rest of it is said first.
            if let Err(error) = context.planner.plan(&job.spec, 0)
                && !row.submitted
            {
                return Ok((None, Err(Unreadable::invalid(error.to_string()))));
            }
            match items::kept(row, job, &from.config_map_key_ref, context).await? {
                Kept::Items(items) => (Some(items), None),
                Kept::Lost => (items::published_queue(job), Some(items::LOST)),
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
    let plan = context.planner.plan(&job.spec, asked_for.count()).map_err(|error| error.to_string());
    let plan = lost.map_or(plan, |lost| Err(lost.to_owned()));
    let seconds =
        |seconds: Option<i64>| seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    let most = |limit: Option<i64>| limit.map(|limit| u32::try_from(limit.max(0)).unwrap_or(u32::MAX));
    let spec = Spec {
        suspend: job.spec.suspend,
        parallelism: most(job.spec.parallelism),
        max_failed: most(job.spec.max_failed_indexes),
        deadline: seconds(job.spec.active_deadline_seconds),
        ttl: seconds(job.spec.ttl_seconds_after_finished),
        refused: plan.as_ref().err().map(SpecRefused::invalid),
        ..asked_for
    };
    Ok((plan.ok().map(Arc::new), Ok(spec)))
}

/// What a submission takes from the spec as it stands there, if that is what was decided.
pub(super) async fn texts(
    object: &Observed,
    gathered: &Gathered,
    decision: &Decision,
    context: &Context,
) -> Result<Option<Arc<Texts>>, GatherError> {
    let (Ok(job), Action::Hand(Request { work: Work::Submit(indices, _), .. })) = (&object.0, &decision.action) else {
        return Ok(None);
    };
    let items = if job.spec.items_from.is_some() {
        context.ledger.items(&gathered.facts.object.uid, indices).await?
    } else {
        let item = |index: Index| Some((index, job.spec.items.get(index.0 as usize)?.clone()));
        indices.iter().filter_map(item).collect()
    };
    Ok(Some(Arc::new(Texts { source: job.spec.script.source.clone(), items })))
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
        // The items that this ledger has read need not be those that these jobs have got.
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

    /// Which items those jobs have got is not known to a ledger that has read the ConfigMap later.
    #[test]
    fn a_list_of_jobs_with_items_of_a_config_map_is_not_taken_as_whole() {
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
