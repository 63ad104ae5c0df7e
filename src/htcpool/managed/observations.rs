//! Observations of the workers of one pool: their pods, and the collector's answer with the time of the query.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use htc_confine::job_wrapper::PayloadConfinement;
use htc_machine::facts::QueryError;
use htc_machine::scaling::{AnswerQuality, EarlyExits, Goal, PodState, SlotState, Worker, WorkerEvidence};
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_machine::worker_groups::{ExistingWorkers, SharedGroup, WorkerGroup};
use htcondor::startds::{StartdId, Startds};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod as KubePod};
use kube::ResourceExt as _;

use super::config::UPDATE_INTERVAL;
use super::error::ApplyError;
use super::names::PoolNames;
use super::objects::{
    CHECK_CONTAINER, DRAIN_ANNOTATION, IMAGE_ANNOTATION, MINI_CLUSTER_LABEL, NAMESPACE_LABEL, TEMPLATE_ANNOTATION,
    VOLUMES_ANNOTATION, WorkerKind,
};
use crate::backends::condor::credentials::Tenant;
use crate::htcpool::managed::absences::Absences;
use crate::htcpool::managed::expectations::Expectations;

/// Lifetime in seconds below which a worker that ends by itself counts as an early exit.
const TOO_SOON: i64 = 120;
/// Age in seconds at which a worker is replaced: well before its token expires.
const LIFE: i64 = 14 * 24 * 3600;
/// Seconds between the replacements of workers that were created together.
const STEP: i64 = 3600;
/// Number of steps that these replacements are spread over.
const STEPS: u32 = 48;
/// Seconds for which an answer of the collector is valid.
const GOOD_FOR: i64 = 60;
/// Exit code of a master whose startd was drained.
const IN_ORDER: i32 = 99;
/// Reasons of waiting containers that do not go away by waiting.
const NOT_TO_BE_HAD: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "CreateContainerError",
];

/// Observations of the workers so far.
#[derive(Debug, Default)]
pub(super) struct WorkerObservations {
    /// The latest answer of the collector, with the time of the query in unix seconds.
    answer: Option<(i64, Result<Startds, QueryError>)>,
    /// Workers with running pods that the answers do not list.
    pub(super) absences: Absences,
    /// Confinement of the jobs of each worker, from the latest successful answer.
    payloads: HashMap<StartdId, PayloadConfinement>,
    /// Workers without a job, with the time since when.
    idle: HashMap<StartdId, i64>,
    /// Uids of the pods whose startds have accepted to drain.
    drained: HashSet<String>,
    /// Uids of the pods whose end was counted, or whose image cannot be pulled.
    ended: HashSet<String>,
    /// Uids of the pods whose Secret exists.
    tokens: HashSet<String>,
    /// Reasons why other pods have no Secret, by their uids.
    no_tokens: BTreeMap<String, String>,
    /// Workers that were requested, and that the watch has not reported yet.
    pub(super) made: Expectations,
    deaths: BTreeMap<WorkerGroup, EarlyExits>,
    /// Reasons why no worker of a group can be created: what its image lacks, or a refusal of the API server.
    pub(super) missing_in_image: BTreeMap<WorkerGroup, String>,
    /// Refusals of the API server when workers of a shared group were created last.
    refused_creations: BTreeMap<WorkerGroup, String>,
    /// Uids of the `HTCJob`s that have an Event about their image.
    told: HashSet<String>,
}

/// Goal of a group, and what its workers are created from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredGroup {
    pub(super) goal: Goal,
    /// [`TEMPLATE_ANNOTATION`] of a worker that is created now. `None` if it is not known: then all workers are up to
    /// date.
    pub(super) template: Option<String>,
    /// `None` if no worker can be created.
    pub(super) kind: Option<WorkerKind>,
}

impl WorkerObservations {
    /// Returns the age of the latest answer.
    pub(super) fn age(&self, now: i64) -> Option<Duration> {
        let (at, _) = self.answer.as_ref()?;
        Some(Duration::from_secs(u64::try_from(now - at).unwrap_or_default()))
    }

    pub(super) fn record_answer(&mut self, answer: Result<Startds, QueryError>, now: i64) {
        if let Ok(startds) = &answer {
            self.idle.retain(|who, _| startds.startds.get(who).is_some_and(|startd| !startd.busy));
            for (who, _) in startds.startds.iter().filter(|(_, startd)| !startd.busy) {
                self.idle.entry(who.clone()).or_insert(now);
            }
            let payloads = startds.startds.iter().map(|(who, startd)| (who.clone(), startd.payloads));
            self.payloads = payloads.map(|(who, is)| (who, is.unwrap_or(PayloadConfinement::ImageTooOld))).collect();
        }
        self.answer = Some((now, answer));
    }

    /// Returns number, uid and tenant of each worker that has not started and has no Secret yet.
    pub(super) fn without_token(&self, pods: &[Arc<KubePod>], names: &PoolNames) -> Vec<(u32, String, Tenant)> {
        let waiting = pods.iter().filter(|pod| matches!(state(pod), PodState::Waiting { .. }));
        let lacking = waiting.filter_map(|pod| {
            let (number, uid) = (names.worker_number(&pod.name_any())?, pod.uid()?);
            (!self.tokens.contains(&uid)).then(|| (number, uid, tenant_of(pod)))
        });
        lacking.collect()
    }

    /// Records that the Secret of this worker exists.
    pub(super) fn has_token(&mut self, uid: String) {
        self.no_tokens.remove(&uid);
        self.tokens.insert(uid);
    }

    /// Records that the Secret of this worker cannot be created until an administrator steps in.
    pub(super) fn has_no_token(&mut self, uid: String, why: &ApplyError) {
        self.no_tokens.insert(uid, why.to_string());
    }

    /// Returns why workers have no Secret.
    pub(super) fn no_tokens(&self) -> impl ExactSizeIterator<Item = &str> {
        self.no_tokens.values().map(String::as_str)
    }

    /// Compares the pods with a new answer.
    ///
    /// A worker that was not listed for long counts as dead. If a worker of a group has stayed, the deaths of the group
    /// are forgotten.
    pub(super) fn update_absences(&mut self, pods: &[Arc<KubePod>], names: &PoolNames, now: i64) {
        let running = pods.iter().filter(|pod| matches!(state(pod), PodState::Running));
        let (answer, startds) = worth(self.answer.as_ref(), now);
        let Some((asked, startds)) = startds.filter(|_| answer == AnswerQuality::Known) else {
            self.absences.record_no_answer();
            return;
        };
        let is_named = |pod: &&Arc<KubePod>| startds.startds.contains_key(&who(pod, names));
        let (joined, missing): (Vec<_>, Vec<_>) = running.partition(is_named);
        for pod in joined {
            let was_dead = self.absences.record_presence(&pod.uid().unwrap_or_default());
            if lived(pod, now) >= TOO_SOON {
                let began = if was_dead { now } else { now.saturating_sub(lived(pod, now)) };
                self.has_stayed(&group_of(pod), began);
            }
        }
        for pod in missing {
            let uid = pod.uid().unwrap_or_default();
            if !self.drained.contains(&uid) && self.absences.record_absence(&uid, asked, now) {
                tracing::warn!(worker = pod.name_any(), "worker unknown to the collector, counted as dead");
                self.died(group_of(pod), now);
                self.absences.set_last(group_of(pod), pod.name_any());
            }
        }
    }

    /// Records that a worker of this group, which began at `began`, has joined and stayed.
    ///
    /// A worker that began before the group's last death does not prove that new workers can join: the death stays
    /// recorded.
    fn has_stayed(&mut self, group: &WorkerGroup, began: i64) {
        let before = |deaths: &EarlyExits| began < deaths.last;
        if self.absences.last(group).is_some() && self.deaths.get(group).is_some_and(before) {
            return;
        }
        self.deaths.remove(group);
        self.absences.forget_last(group);
        if self.missing_in_image.remove(group).is_some() && self.missing_in_image.is_empty() {
            self.told.clear();
        }
    }

    /// Records that this worker has accepted to drain.
    pub(super) fn record_drain(&mut self, uid: String) {
        self.drained.insert(uid);
    }

    /// Records the drains that an earlier run of the operator has requested: the pod is marked, and HTCondor reports a
    /// drain.
    pub(super) fn restore_drains(&mut self, pods: &[Arc<KubePod>], names: &PoolNames) {
        let Some((_, Ok(startds))) = &self.answer else { return };
        let drains = |pod: &&Arc<KubePod>| {
            is_marked(pod) && startds.startds.get(&who(pod, names)).is_some_and(|startd| startd.draining)
        };
        self.drained.extend(pods.iter().filter(drains).filter_map(|pod| pod.uid()));
    }

    /// Returns why no worker of this group can be created.
    pub(super) fn image_problem(&self, group: &WorkerGroup) -> Option<&str> {
        self.missing_in_image.get(group).map(String::as_str)
    }

    /// Returns why no worker of this group can be created, or why the existing ones have not joined.
    pub(super) fn group_problem(&self, group: &WorkerGroup) -> Option<&str> {
        self.image_problem(group)
            .or_else(|| self.absences.last(group).map(|_| "they run, and HTCondor's collector does not name them"))
    }

    /// Returns the pod of the group's last dead worker, if it died because it did not join.
    pub(super) fn last_unjoined_pod(&self, group: &WorkerGroup) -> Option<&str> {
        self.absences.last(group)
    }

    pub(super) fn has_image_problems(&self) -> bool {
        !self.missing_in_image.is_empty()
    }

    /// Drops the records of groups that are not requested any more.
    pub(super) fn keep(&mut self, asked: &BTreeSet<WorkerGroup>) {
        self.deaths.retain(|group, _| asked.contains(group));
        self.missing_in_image.retain(|group, _| asked.contains(group));
        self.refused_creations.retain(|group, _| asked.contains(group));
        self.absences.keep_groups(asked);
    }

    /// Returns the existing workers and the early exits of each group.
    pub(super) fn existing_workers(
        &self,
        pods: &[Arc<KubePod>],
        names: &PoolNames,
    ) -> BTreeMap<WorkerGroup, ExistingWorkers> {
        let deaths =
            self.deaths.iter().map(|(group, deaths)| (group.clone(), ExistingWorkers { alive: 0, deaths: *deaths }));
        let mut there: BTreeMap<WorkerGroup, ExistingWorkers> = deaths.collect();
        for pod in pods {
            let uid = pod.uid().unwrap_or_default();
            let its = there.entry(group_of(pod)).or_default();
            let alive = matches!(state(pod), PodState::Waiting { .. } | PodState::Running);
            if alive && !self.drained.contains(&uid) && !self.ended.contains(&uid) && !self.absences.is_dead(&uid) {
                its.alive += 1;
            }
        }
        for worker in self.made.missing_from(pods, names) {
            there.entry(worker.group.clone()).or_default().alive += 1;
        }
        there
    }

    /// Returns the problem of each group whose workers cannot be created, or exit early again and again.
    pub(super) fn failing_groups(&self) -> BTreeMap<&WorkerGroup, &str> {
        // The image is not the reason why workers do not join.
        let joined = |group: &WorkerGroup| self.absences.last(group).is_none();
        let hopeless = self.deaths.iter().filter(|(group, deaths)| deaths.is_hopeless() && joined(group));
        let hopeless = hopeless.map(|(group, _)| (group, "its workers end shortly after they begin"));
        hopeless.chain(self.missing_in_image.iter().map(|(group, lack)| (group, lack.as_str()))).collect()
    }

    /// Returns when the next back-off of a group with early exits ends, in unix seconds.
    pub(super) fn pause_ends(&self, now: i64) -> Option<i64> {
        self.deaths.values().filter_map(|deaths| deaths.pause_ends()).filter(|ends| *ends > now).min()
    }

    /// Records a notice to the `HTCJob` with this uid. Returns whether it is the first.
    pub(super) fn is_first_notice(&mut self, uid: String) -> bool {
        self.told.insert(uid)
    }

    /// Counts early exits, and drops what is known of pods that are gone.
    pub(super) fn count_early_exits(&mut self, pods: &[Arc<KubePod>], now: i64) {
        let there: HashSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
        self.drained.retain(|uid| there.contains(uid));
        self.ended.retain(|uid| there.contains(uid));
        self.absences.keep(&there);
        self.tokens.retain(|uid| there.contains(uid) || self.made.has(uid));
        self.no_tokens.retain(|uid, _| there.contains(uid) || self.made.has(uid));
        for pod in pods {
            let (uid, group) = (pod.uid().unwrap_or_default(), group_of(pod));
            match state(pod) {
                // The pod was deleted, and did not end by itself.
                PodState::Ended if pod.metadata.deletion_timestamp.is_some() => {}
                PodState::Ended if self.ended.insert(uid.clone()) => {
                    let counted = self.drained.contains(&uid) || self.absences.is_dead(&uid);
                    if !counted && exit_code(pod) != Some(IN_ORDER) && lived(pod, now) < TOO_SOON {
                        if let Some(lack) = lack(pod) {
                            self.missing_in_image.insert(group.clone(), lack);
                        }
                        self.died(group, now);
                    }
                }
                PodState::Waiting { since } if now.saturating_sub(since) >= TOO_SOON => {
                    if let Some(lack) = not_to_be_had(pod)
                        && self.ended.insert(uid)
                    {
                        self.missing_in_image.insert(group.clone(), lack);
                        self.died(group, now);
                    }
                }
                PodState::Ended
                | PodState::Running
                | PodState::Waiting { .. }
                | PodState::Terminating
                | PodState::Requested { .. } => {}
            }
        }
    }

    /// Records that the API server refuses workers of this group.
    pub(super) fn refused(&mut self, group: &WorkerGroup, why: &str, now: i64) {
        let why = sanitize(why, MAX_MESSAGE / 2);
        match group {
            WorkerGroup::HTCJob(_) => {
                self.missing_in_image.insert(group.clone(), why);
                self.died(group.clone(), now);
            }
            // Shared workers are the administrator's request. They get no back-off, and are created as soon as they are
            // allowed.
            WorkerGroup::Shared(_) => drop(self.refused_creations.insert(group.clone(), why)),
        }
    }

    /// Forgets the refusal of this group, before its workers are created again.
    pub(super) fn forget_refusal(&mut self, group: &WorkerGroup) {
        self.refused_creations.remove(group);
    }

    /// Returns the refusal of one shared group.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refused_creations.values().next().map(String::as_str)
    }

    fn died(&mut self, group: WorkerGroup, now: i64) {
        self.absences.forget_last(&group);
        let deaths = self.deaths.entry(group).or_default();
        *deaths = EarlyExits { count: deaths.count.saturating_add(1), last: now };
    }

    /// Returns what is known of each desired group, for the decision on its size.
    pub(super) fn evidence(
        &self,
        pods: &[Arc<KubePod>],
        names: &PoolNames,
        wanted: &BTreeMap<WorkerGroup, DesiredGroup>,
        now: i64,
    ) -> BTreeMap<WorkerGroup, WorkerEvidence> {
        let (answer, startds) = worth(self.answer.as_ref(), now);
        let asked = startds.filter(|_| answer == AnswerQuality::Known).map(|(asked, _)| asked);
        let worker = |pod: &Arc<KubePod>, template: Option<&str>| {
            let is_current = |made: &String| template.is_none_or(|template| made == template);
            let uid = pod.uid().unwrap_or_default();
            let who = who(pod, names);
            let slot = match startds.and_then(|(_, startds)| startds.startds.get(&who)) {
                None => self.absences.slot(&uid, asked),
                Some(startd) if startd.draining => SlotState::Draining,
                Some(startd) if startd.busy => SlotState::Busy,
                Some(_) => SlotState::Idle { since: self.idle.get(&who).copied().unwrap_or(now) },
            };
            let number = names.worker_number(&pod.name_any())?;
            Some(Worker {
                number,
                pod_state: state(pod),
                slot_state: slot,
                // A worker whose image cannot be pulled is withdrawn.
                up_to_date: pod.annotations().get(TEMPLATE_ANNOTATION).is_some_and(is_current)
                    && !self.ended.contains(&uid)
                    && !is_old(pod, number, now),
                drain_accepted: self.drained.contains(&uid),
            })
        };
        let of = |(group, wanted): (&WorkerGroup, &DesiredGroup)| {
            let template = wanted.template.as_deref();
            let its = pods.iter().filter(|pod| group_of(pod) == *group);
            let made = self.made.missing_from(pods, names).filter(|made| made.group == *group);
            let made = made.map(|made| made.worker(template));
            let mut workers: Vec<Worker> = its.filter_map(|pod| worker(pod, template)).chain(made).collect();
            workers.sort_unstable_by_key(|worker| worker.number);
            let deaths = self.deaths.get(group).copied().unwrap_or_default();
            let (taken, room) = (BTreeSet::new(), u32::MAX);
            (
                group.clone(),
                WorkerEvidence {
                    now,
                    goal: wanted.goal,
                    workers,
                    answer,
                    deaths,
                    taken_numbers: taken,
                    max_create: room,
                },
            )
        };
        wanted.iter().map(of).collect()
    }

    /// Returns whether a change is expected that comes without an event.
    pub(super) fn expects_change(groups: &BTreeMap<WorkerGroup, WorkerEvidence>) -> bool {
        groups.values().any(Self::is_one_restless)
    }

    fn is_one_restless(evidence: &WorkerEvidence) -> bool {
        let settled = |worker: &Worker| {
            worker.counts()
                && worker.pod_state == PodState::Running
                && matches!(worker.slot_state, SlotState::Idle { .. } | SlotState::Busy)
        };
        let wanted = evidence.goal.wanted() as usize;
        evidence.answer == AnswerQuality::Unknown
            || evidence.workers.len() != wanted
            || evidence.workers.iter().any(|worker| !settled(worker))
    }

    /// Returns the confinement of the jobs of each worker that HTCondor knows, by the name of its pod.
    pub(super) fn payloads(&self, pods: &[Arc<KubePod>], names: &PoolNames) -> BTreeMap<String, PayloadConfinement> {
        pods.iter().filter_map(|pod| Some((pod.name_any(), *self.payloads.get(&who(pod, names))?))).collect()
    }

    pub(super) fn answer_failure(&self) -> Option<&str> {
        match &self.answer {
            Some((_, Err(unknown))) => Some(&unknown.message),
            Some((_, Ok(_))) | None => None,
        }
    }
}

/// Returns the quality of the answer, and the answer with the time of its query if it is valid.
fn worth(answer: Option<&(i64, Result<Startds, QueryError>)>, now: i64) -> (AnswerQuality, Option<(i64, &Startds)>) {
    let Some((asked, Ok(startds))) = answer.filter(|(asked, _)| now - asked <= GOOD_FOR) else {
        return (AnswerQuality::Unknown, None);
    };
    let is_young = startds.collector_age < i64::from(2 * UPDATE_INTERVAL);
    (if is_young { AnswerQuality::Young } else { AnswerQuality::Known }, Some((*asked, startds)))
}

/// Returns whether the worker is due for replacement, because its token expires before long.
fn is_old(pod: &KubePod, number: u32, now: i64) -> bool {
    let made = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0.as_second());
    now - made >= LIFE + i64::from(number % STEPS) * STEP
}

/// Returns the tenant whose jobs the worker runs.
fn tenant_of(pod: &KubePod) -> Tenant {
    match group_of(pod) {
        WorkerGroup::HTCJob(uid) => Tenant::HTCJob(uid),
        WorkerGroup::Shared(SharedGroup { namespace: Some(namespace), .. }) => Tenant::Namespace(namespace),
        WorkerGroup::Shared(SharedGroup { namespace: None, .. }) => Tenant::Everybody,
    }
}

/// Returns whether the operator has requested a drain from HTCondor, or was about to. HTCondor may have refused it.
pub(super) fn is_marked(pod: &KubePod) -> bool {
    pod.annotations().contains_key(DRAIN_ANNOTATION)
}

/// Returns the identity that the slots of this pod advertise.
fn who(pod: &KubePod, names: &PoolNames) -> StartdId {
    StartdId { id: pod.uid().unwrap_or_default(), name: names.startd(&pod.name_any()) }
}

/// Returns the group of the worker: its `HTCJob`, or its image and namespace.
fn group_of(pod: &KubePod) -> WorkerGroup {
    let shared = || SharedGroup {
        image: image_of(pod).to_owned(),
        namespace: pod.labels().get(NAMESPACE_LABEL).cloned(),
        volumes: pod.annotations().get(VOLUMES_ANNOTATION).cloned().unwrap_or_default(),
    };
    pod.labels()
        .get(MINI_CLUSTER_LABEL)
        .map_or_else(|| WorkerGroup::Shared(shared()), |uid| WorkerGroup::HTCJob(uid.clone()))
}

/// Returns the image of a worker as HTCJobs name it. The pod's spec may differ: a cluster may pull it from elsewhere.
fn image_of(pod: &KubePod) -> &str {
    let in_spec = || pod.spec.as_ref()?.containers.first()?.image.as_ref();
    pod.annotations().get(IMAGE_ANNOTATION).or_else(in_spec).map(String::as_str).unwrap_or_default()
}

/// Returns the message of a failed init container.
fn lack(pod: &KubePod) -> Option<String> {
    let statuses = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let failed = |status: &&ContainerStatus| ended(status).is_some_and(|ended| ended.exit_code != 0);
    let status = statuses.iter().find(failed)?;
    let ended = ended(status)?;
    let said = ended.message.as_deref().map(str::trim).filter(|said| !said.is_empty());
    let is_check = status.name == CHECK_CONTAINER;
    let what = if is_check { "its check" } else { "what puts HTCondor there" };
    let said = said.map_or_else(|| format!("{what} ended with {}", ended.exit_code), str::to_owned);
    let said = sanitize(&said, MAX_MESSAGE / 2);
    let next = if said.contains("exec format error") {
        "the image was built for another architecture than its node has: choose nodes by kubernetes.io/arch in spec.managed.workers.nodeSelector, or build the image for both"
    } else if is_check {
        "use an image that has all that a worker needs (docs/pools.md)"
    } else {
        "this comes of spec.managed.image or of the node"
    };
    Some(format!("{said}; {next}"))
}

fn ended(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

/// Returns why the image cannot be pulled, if the pod waits for that reason.
fn not_to_be_had(pod: &KubePod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let lists = [status.init_container_statuses.as_ref(), status.container_statuses.as_ref()];
    let waits =
        lists.into_iter().flatten().flatten().filter_map(|container| container.state.as_ref()?.waiting.as_ref());
    let why = waits.filter_map(|waits| waits.reason.as_deref()).find(|why| NOT_TO_BE_HAD.contains(why))?;
    Some(format!("it cannot be had ({why}): look at its name, and at spec.managed.imagePullSecrets"))
}

fn state(pod: &KubePod) -> PodState {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match phase {
        Some("Succeeded" | "Failed") => PodState::Ended,
        _ if pod.metadata.deletion_timestamp.is_some() => PodState::Terminating,
        None | Some("Pending") => PodState::Waiting {
            since: pod.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()),
        },
        Some(_) => PodState::Running,
    }
}

/// Returns for how many seconds its container ran, or has run so far.
fn lived(pod: &KubePod, now: i64) -> i64 {
    let state = container(pod);
    let (began, ended) = match state {
        Some(state) => match (&state.running, &state.terminated) {
            (_, Some(ended)) => (ended.started_at.clone(), ended.finished_at.clone()),
            (Some(running), None) => (running.started_at.clone(), None),
            (None, None) => (None, None),
        },
        None => (None, None),
    };
    began.map_or(0, |began| ended.map_or(now, |ended| ended.0.as_second()) - began.0.as_second())
}

fn exit_code(pod: &KubePod) -> Option<i32> {
    Some(container(pod)?.terminated.as_ref()?.exit_code)
}

fn container(pod: &KubePod) -> Option<&k8s_openapi::api::core::v1::ContainerState> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()
}

#[cfg(test)]
mod tests;
