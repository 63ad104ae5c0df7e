//! What is known becomes the object's status.

use std::time::Duration;

use jiff::Timestamp as Moment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::act::{ToShow, sooner, unless_done};
use super::gather::Gathered;
use super::volatile::{MayWait, Publish};
use super::{Context, WriteError};
use crate::api::{Condition, HTCJobStatus, ObjectName, Observed};
use crate::failpoint::{Point, around};
use crate::kubernetes::MANAGER;
use crate::machine::facts::{self, Facts, Listed, Published, Queued, Record, Spec};
use crate::machine::ids::{CUT, JobId, id_ranges};
use crate::machine::status::{Counts, indexes};
use crate::machine::summary::{QUEUED, summary};
use crate::machine::{Attempt, ScheddName, Timestamp, Uid};
use crate::queue::words;

/// Ids listed one by one.
const IDS: usize = 100;
/// Most bytes of ids as ranges.
const RANGES: usize = 32 * 1024;

/// Most bytes of the indexes of jobs that succeeded, and of those that failed.
pub(super) const RANGES_OF_INDEXES: usize = 16 * 1024;
/// Most characters of the message beside the state.
const MESSAGE: usize = 200;

/// The status that says what `record` has. It never says less than the object's status does: that is presence, and a
/// ledger that was lost must not hide it.
fn status(
    record: &Record,
    facts: &Facts,
    old: Option<&HTCJobStatus>,
    schedd: &ScheddName,
    generation: Option<i64>,
) -> HTCJobStatus {
    let mut counts = Counts::of(record);
    let waits = facts.object.inherited.is_some() && record.jobs.is_empty() && record.highest == Attempt::INHERITED;
    if let Some(old) = old.filter(|_| waits) {
        // What the Go operator said stands until its jobs are adopted.
        let count = |count: i64| usize::try_from(count).unwrap_or_default();
        (counts.active, counts.succeeded, counts.failed) = (count(old.active), count(old.succeeded), count(old.failed));
    }
    let cluster = record.jobs.values().next().map(|job| job.id.cluster.to_string());
    let known = record.known.as_ref();
    let published = &facts.object.published;
    let (jobid, jobs) = listed(record, facts, old);
    let phase = known.map(|known| known.phase).max(published.phase);
    let attempt = record.highest.0.max(published.attempt);
    let conditions = known.map(|known| known.conditions.as_slice()).unwrap_or_default();
    let summary = phase.map(|phase| summary(phase, counts.failed, conditions));
    let asked_for = facts.object.spec.as_ref().map(Spec::asked_for).unwrap_or_default();
    let [completed_indexes, failed_indexes] =
        indexes(record, &asked_for).map(|set| (!set.is_empty()).then(|| set.within(RANGES_OF_INDEXES)));
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    HTCJobStatus {
        phase,
        state: summary.as_ref().map(|(state, _)| with_place(state, facts.queue.as_ref())),
        message: summary.and_then(|(_, told)| told).map(|told| first_words(&told.message)),
        observed_generation: generation,
        schedd: (attempt > 0).then(|| whose(record, published, schedd).to_string()),
        attempt: (attempt > 0).then(|| i64::from(attempt)),
        // What was said first stays said: the CRD lets it change only with the attempt, which is published at the intent.
        clusterid: old.and_then(|old| old.clusterid.clone()).filter(|id| !id.is_empty()).or(cluster),
        jobid,
        jobs,
        uniqid: old.and_then(|old| old.uniqid),
        jobids: old.map(|old| old.jobids.clone()).unwrap_or_default(),
        total: facts.object.spec.as_ref().ok().map(|spec| number(spec.count())),
        active: number(counts.active),
        succeeded: number(counts.succeeded),
        failed: number(counts.failed),
        completed_indexes,
        failed_indexes,
        idle: number(counts.idle),
        running: number(counts.running),
        held: number(counts.held),
        start_time: known.and_then(|known| known.started).and_then(time),
        completion_time: known.and_then(|known| known.completed).and_then(time),
        conditions: self::conditions(conditions, generation),
        ..HTCJobStatus::default()
    }
}

/// The first ids one by one, and all as ranges.
fn listed(record: &Record, facts: &Facts, old: Option<&HTCJobStatus>) -> (Vec<String>, Option<String>) {
    let texts = |ids: &[JobId]| (ids.iter().take(IDS).map(JobId::to_string).collect(), id_ranges(ids, RANGES));
    match facts.object.published.to_list(record) {
        Listed::Nothing => (Vec::new(), None),
        Listed::All(ids) => {
            let (first, all) = texts(&ids);
            (first, Some(all))
        }
        Listed::Partly if record.jobs.is_empty() => {
            old.map(|old| (old.jobid.clone(), old.jobs.clone())).unwrap_or_default()
        }
        Listed::Partly => {
            let mut ids: Vec<JobId> = record.jobs.values().map(|job| job.id).collect();
            ids.sort_unstable();
            let (first, mut some) = texts(&ids);
            // Of the Go operator's jobs each is known. Any other list must not look whole.
            if facts.object.inherited.is_none() && !some.ends_with(CUT) {
                some.push_str(CUT);
            }
            (first, Some(some))
        }
    }
}

/// `Queued (4th)`
pub(super) fn with_place(state: &str, queue: Option<&Queued>) -> String {
    let wait = queue.and_then(|queue| queue.waits.as_ref());
    match wait.and_then(|wait| wait.place).filter(|_| state == QUEUED) {
        Some(place) => format!("{state} ({})", words::place(place as usize)),
        None => state.to_owned(),
    }
}

/// The conditions as users see them.
pub(super) fn conditions(conditions: &[facts::Condition], generation: Option<i64>) -> Vec<Condition> {
    let shown = conditions.iter().filter_map(|condition| {
        Some(Condition {
            type_: condition.kind.to_string(),
            status: condition.status,
            reason: condition.reason.clone(),
            message: condition.message.chars().take(4000).collect(),
            last_transition_time: time(condition.since)?,
            observed_generation: generation,
        })
    });
    shown.collect()
}

pub(super) fn time(at: Timestamp) -> Option<Time> {
    Moment::from_second(at.0.div_euclid(1000)).ok().map(Time)
}

/// Enough for a line of `kubectl get -o wide`; the condition has all of it.
pub(super) fn first_words(message: &str) -> String {
    match message.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

/// The schedd that has the jobs: not always the one that this operator asks.
fn whose<'a>(record: &'a Record, published: &'a Published, asked: &'a ScheddName) -> &'a ScheddName {
    let last = record.attempts.iter().next_back().map(|attempt| &attempt.schedd);
    record.schedds.iter().find(|schedd| !schedd.is_same(asked)).or(last).or(published.schedd.as_ref()).unwrap_or(asked)
}

/// Publishes what is to be shown, unless it is known already or will soon be another one; when the next pass is due.
pub(super) async fn publish(
    context: &Context,
    object: &Observed,
    gathered: &Gathered,
    ToShow { record, again, about_to_change, .. }: ToShow,
) -> Result<Option<Duration>, WriteError> {
    let Some(record) = record.filter(|_| gathered.facts.object.finalizer) else { return Ok(again) };
    let old = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let mut status = status(&record, &gathered.facts, old, &gathered.facts.schedd, object.meta().generation);
    // Until the pool is looked at, what was said before stands.
    let own = context.pools.own_workers(&gathered.facts.object.uid);
    status.mini_cluster = own.or_else(|| old.and_then(|old| old.mini_cluster.clone()));
    let of = (&gathered.name, &gathered.facts.object.uid);
    let may_wait = if about_to_change { MayWait::AllButNews } else { MayWait::Nothing };
    publish_status(context, object, of, status, may_wait, again).await
}

/// Publishes a status, unless it is known already or will soon be another one; when the next pass is due.
pub(super) async fn publish_status(
    context: &Context,
    object: &Observed,
    (name, uid): (&ObjectName, &Uid),
    status: HTCJobStatus,
    may_wait: MayWait,
    again: Option<Duration>,
) -> Result<Option<Duration>, WriteError> {
    let old = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let waiting = || context.requests.waiting();
    Ok(match context.volatile.publish(uid, &status, old, may_wait, waiting, context.clock.now()) {
        Publish::Known => again,
        Publish::Later(pause) => Some(sooner(again, pause)),
        Publish::Now => unless_done(again, write(context, name, uid, status).await?),
    })
}

/// Writes the status; false if the object has changed meanwhile.
async fn write(context: &Context, name: &ObjectName, uid: &Uid, status: HTCJobStatus) -> Result<bool, WriteError> {
    let api: Api<Observed> = Api::namespaced(context.client.clone(), &name.namespace);
    let patch = Patch::Apply(json!({
        "apiVersion": "htc.cern.ch/v1alpha1",
        "kind": "HTCJob",
        // With the uid, an object of the same name that was made since is not touched.
        "metadata": { "name": name.name, "uid": uid.as_str() },
        "status": status,
    }));
    let parameters = PatchParams::apply(MANAGER).force();
    let request = api.patch_status(&name.name, &parameters, &patch);
    let written = context.writes.write("write the status of HTCJob", name, request);
    if !around(Point::BeforeStatusWritten, written, Point::AfterStatusWritten).await? {
        return Ok(false);
    }
    context.volatile.published(uid, status);
    Ok(true)
}
