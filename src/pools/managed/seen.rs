//! What is known of the workers of one pool: from their pods, and from the collector, with the time at which it was asked.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod as KubePod};
use kube::ResourceExt as _;

use super::absent::Absences;
use super::config::UPDATE_INTERVAL;
use super::error::ApplyError;
use super::groups::{Group, Shared, There};
use super::made::Made;
use super::names::Names;
use super::objects::{CHECK_CONTAINER, DRAIN, IMAGE, MINI_CLUSTER, NAMESPACE, TEMPLATE, WorkerKind};
use super::scale::{Answer, Deaths, Evidence, Goal, Pod, Slot, Worker};
use crate::api::text::{WORDS, harmless};
use crate::condor::startds::{Startds, Who};
use crate::confine::job_wrapper::Payloads;
use crate::credentials::Tenant;
use crate::machine::facts::Unknown;

/// A worker that ends by itself within so many seconds has hardly worked.
const TOO_SOON: i64 = 120;
/// After so many seconds another worker takes the place of one: well before the end of its token.
const LIFE: i64 = 14 * 24 * 3600;
/// Workers that were made together are replaced so many seconds one after another.
const STEP: i64 = 3600;
/// And in so many steps.
const STEPS: u32 = 48;
/// An answer is good for so many seconds.
const GOOD_FOR: i64 = 60;
/// Exit code of a master whose startd has been drained.
const IN_ORDER: i32 = 99;
/// Why a container does not begin that will not begin by waiting.
const NOT_TO_BE_HAD: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "CreateContainerError",
];

/// What has been seen of the workers so far.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// With the time at which it was asked for.
    answer: Option<(i64, Result<Startds, Unknown>)>,
    /// Those whose pods run and that it does not name.
    pub(super) absences: Absences,
    /// What confines the jobs of each worker, by the latest answer that was one.
    payloads: HashMap<Who, Payloads>,
    /// Since when those have no jobs that have none.
    idle: HashMap<Who, i64>,
    /// Those that have accepted to drain.
    drained: HashSet<String>,
    /// Those whose end has been counted, or whose image was waited for in vain.
    ended: HashSet<String>,
    /// Uids of the workers whose Secret exists.
    tokens: HashSet<String>,
    /// Why others have none, by their uids.
    no_tokens: BTreeMap<String, String>,
    /// Those that were asked for and are not shown yet.
    pub(super) made: Made,
    deaths: BTreeMap<Group, Deaths>,
    /// What their image lacks that a worker needs, as it says itself.
    pub(super) lacks: BTreeMap<Group, String>,
    /// `HTCJob`s that were told so, by their uids.
    told: HashSet<String>,
}

/// What there should be of a group, and what a worker of it is made from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) goal: Goal,
    /// As [`TEMPLATE`] says it of one that is made now. None if that is not known: then each is as it should be.
    pub(super) template: Option<String>,
    /// None if none can be made.
    pub(super) kind: Option<WorkerKind>,
}

impl Memory {
    /// How old the answer is.
    pub(super) fn age(&self, now: i64) -> Option<Duration> {
        let (at, _) = self.answer.as_ref()?;
        Some(Duration::from_secs(u64::try_from(now - at).unwrap_or_default()))
    }

    pub(super) fn take_in(&mut self, answer: Result<Startds, Unknown>, now: i64) {
        if let Ok(startds) = &answer {
            self.idle.retain(|who, _| startds.startds.get(who).is_some_and(|startd| !startd.busy));
            for (who, _) in startds.startds.iter().filter(|(_, startd)| !startd.busy) {
                self.idle.entry(who.clone()).or_insert(now);
            }
            let payloads = startds.startds.iter().map(|(who, startd)| (who.clone(), startd.payloads));
            self.payloads = payloads.map(|(who, is)| (who, is.unwrap_or(Payloads::ImageTooOld))).collect();
        }
        self.answer = Some((now, answer));
    }

    /// Number, uid and tenant of each worker that has not begun and has no Secret yet.
    pub(super) fn without_token(&self, pods: &[Arc<KubePod>], names: &Names) -> Vec<(u32, String, Tenant)> {
        let waiting = pods.iter().filter(|pod| matches!(state(pod), Pod::Waiting { .. }));
        let lacking = waiting.filter_map(|pod| {
            let (number, uid) = (names.worker_number(&pod.name_any())?, pod.uid()?);
            (!self.tokens.contains(&uid)).then(|| (number, uid, tenant_of(pod)))
        });
        lacking.collect()
    }

    /// The Secret of this worker is there.
    pub(super) fn has_token(&mut self, uid: String) {
        self.no_tokens.remove(&uid);
        self.tokens.insert(uid);
    }

    /// The Secret of this worker cannot be made before somebody does something about it.
    pub(super) fn has_no_token(&mut self, uid: String, why: &ApplyError) {
        self.no_tokens.insert(uid, why.to_string());
    }

    /// Why workers have no Secret.
    pub(super) fn no_tokens(&self) -> impl ExactSizeIterator<Item = &str> {
        self.no_tokens.values().map(String::as_str)
    }

    /// Compares the answer, which is new, with the pods: those that it has not named for long have died, and of a group of which one has
    /// stayed none has.
    pub(super) fn compare(&mut self, pods: &[Arc<KubePod>], names: &Names, now: i64) {
        let running = pods.iter().filter(|pod| matches!(state(pod), Pod::Running));
        let (answer, startds) = worth(self.answer.as_ref(), now);
        let Some((asked, startds)) = startds.filter(|_| answer == Answer::Known) else {
            self.absences.is_unknown();
            return;
        };
        let is_named = |pod: &&Arc<KubePod>| startds.startds.contains_key(&who(pod, names));
        let (joined, missing): (Vec<_>, Vec<_>) = running.partition(is_named);
        for pod in joined {
            let was_dead = self.absences.is_named(&pod.uid().unwrap_or_default());
            if lived(pod, now) >= TOO_SOON {
                let began = if was_dead { now } else { now.saturating_sub(lived(pod, now)) };
                self.has_stayed(&group_of(pod), began);
            }
        }
        for pod in missing {
            let uid = pod.uid().unwrap_or_default();
            if !self.drained.contains(&uid) && self.absences.is_not_named(&uid, asked, now) {
                tracing::warn!("worker {} runs, and the collector does not name it: it counts as dead", pod.name_any());
                self.died(group_of(pod), now);
                self.absences.set_last(group_of(pod), pod.name_any());
            }
        }
    }

    /// A worker of this group has, which began then. That others do not join is not forgotten for one that was there before.
    fn has_stayed(&mut self, group: &Group, began: i64) {
        let before = |deaths: &Deaths| began < deaths.last;
        if self.absences.last(group).is_some() && self.deaths.get(group).is_some_and(before) {
            return;
        }
        self.deaths.remove(group);
        self.absences.forget_last(group);
        if self.lacks.remove(group).is_some() && self.lacks.is_empty() {
            self.told.clear();
        }
    }

    /// This worker has accepted to drain.
    pub(super) fn drains(&mut self, uid: String) {
        self.drained.insert(uid);
    }

    /// The same of those that this operator told so before it was started again: they are marked, and HTCondor says that they drain.
    pub(super) fn recall(&mut self, pods: &[Arc<KubePod>], names: &Names) {
        let Some((_, Ok(startds))) = &self.answer else { return };
        let drains = |pod: &&Arc<KubePod>| {
            is_marked(pod) && startds.startds.get(&who(pod, names)).is_some_and(|startd| startd.draining)
        };
        self.drained.extend(pods.iter().filter(drains).filter_map(|pod| pod.uid()));
    }

    /// Why a worker of this group cannot be made.
    pub(super) fn lack(&self, group: &Group) -> Option<&str> {
        self.lacks.get(group).map(String::as_str)
    }

    /// The same, or why those that there are have not joined.
    pub(super) fn trouble(&self, group: &Group) -> Option<&str> {
        self.lack(group)
            .or_else(|| self.absences.last(group).map(|_| "they run, and HTCondor's collector does not name them"))
    }

    /// The pod of the last worker of this group that has died, if it did so because it has not joined.
    pub(super) fn not_joined(&self, group: &Group) -> Option<&str> {
        self.absences.last(group)
    }

    pub(super) fn has_lacks(&self) -> bool {
        !self.lacks.is_empty()
    }

    /// Forgets why workers have ended that are not asked for any more.
    pub(super) fn keep(&mut self, asked: &BTreeSet<Group>) {
        self.deaths.retain(|group, _| asked.contains(group));
        self.lacks.retain(|group, _| asked.contains(group));
        self.absences.keep_groups(asked);
    }

    /// What is known of each group that there are workers of, or were.
    pub(super) fn there(&self, pods: &[Arc<KubePod>], names: &Names) -> BTreeMap<Group, There> {
        let deaths = self.deaths.iter().map(|(group, deaths)| (group.clone(), There { alive: 0, deaths: *deaths }));
        let mut there: BTreeMap<Group, There> = deaths.collect();
        for pod in pods {
            let uid = pod.uid().unwrap_or_default();
            let its = there.entry(group_of(pod)).or_default();
            let alive = matches!(state(pod), Pod::Waiting { .. } | Pod::Running);
            if alive && !self.drained.contains(&uid) && !self.ended.contains(&uid) && !self.absences.is_dead(&uid) {
                its.alive += 1;
            }
        }
        for worker in self.made.not_in(pods, names) {
            there.entry(worker.group.clone()).or_default().alive += 1;
        }
        there
    }

    /// What is wrong with each group whose workers cannot be made, or end again and again.
    pub(super) fn failing(&self) -> BTreeMap<&Group, &str> {
        // That workers do not join is no fault of an image.
        let joined = |group: &Group| self.absences.last(group).is_none();
        let hopeless = self.deaths.iter().filter(|(group, deaths)| deaths.is_hopeless() && joined(group));
        let hopeless = hopeless.map(|(group, _)| (group, "its workers end shortly after they begin"));
        hopeless.chain(self.lacks.iter().map(|(group, lack)| (group, lack.as_str()))).collect()
    }

    /// The next time at which workers may be made of a group again that ended too soon.
    pub(super) fn pause_ends(&self, now: i64) -> Option<i64> {
        self.deaths.values().filter_map(|deaths| deaths.pause_ends()).filter(|ends| *ends > now).min()
    }

    /// The `HTCJob` with this uid was not told before.
    pub(super) fn is_news(&mut self, uid: String) -> bool {
        self.told.insert(uid)
    }

    /// Counts those that have ended too soon, and forgets those that are gone.
    pub(super) fn notice(&mut self, pods: &[Arc<KubePod>], now: i64) {
        let there: HashSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
        self.drained.retain(|uid| there.contains(uid));
        self.ended.retain(|uid| there.contains(uid));
        self.absences.keep(&there);
        self.tokens.retain(|uid| there.contains(uid) || self.made.has(uid));
        self.no_tokens.retain(|uid, _| there.contains(uid) || self.made.has(uid));
        for pod in pods {
            let (uid, group) = (pod.uid().unwrap_or_default(), group_of(pod));
            match state(pod) {
                // Who has deleted it has ended it.
                Pod::Ended if pod.metadata.deletion_timestamp.is_some() => {}
                Pod::Ended if self.ended.insert(uid.clone()) => {
                    let counted = self.drained.contains(&uid) || self.absences.is_dead(&uid);
                    if !counted && exit_code(pod) != Some(IN_ORDER) && lived(pod, now) < TOO_SOON {
                        if let Some(lack) = lack(pod) {
                            self.lacks.insert(group.clone(), lack);
                        }
                        self.died(group, now);
                    }
                }
                Pod::Waiting { since } if now.saturating_sub(since) >= TOO_SOON => {
                    if let Some(lack) = not_to_be_had(pod)
                        && self.ended.insert(uid)
                    {
                        self.lacks.insert(group.clone(), lack);
                        self.died(group, now);
                    }
                }
                Pod::Ended | Pod::Running | Pod::Waiting { .. } | Pod::Leaving | Pod::Made { .. } => {}
            }
        }
    }

    /// The API server does not let a worker be made.
    pub(super) fn refused(&mut self, group: &Group, why: &str, now: i64) {
        // What a pool's administrator has written is tried again at once, when it is allowed.
        if let Group::HTCJob(_) = group {
            self.lacks.insert(group.clone(), harmless(why, WORDS / 2));
            self.died(group.clone(), now);
        }
    }

    fn died(&mut self, group: Group, now: i64) {
        self.absences.forget_last(&group);
        let deaths = self.deaths.entry(group).or_default();
        *deaths = Deaths { count: deaths.count.saturating_add(1), last: now };
    }

    /// Of the workers of each group that there is or should be.
    pub(super) fn evidence(
        &self,
        pods: &[Arc<KubePod>],
        names: &Names,
        wanted: &BTreeMap<Group, Wanted>,
        now: i64,
    ) -> BTreeMap<Group, Evidence> {
        let (answer, startds) = worth(self.answer.as_ref(), now);
        let asked = startds.filter(|_| answer == Answer::Known).map(|(asked, _)| asked);
        let worker = |pod: &Arc<KubePod>, template: Option<&str>| {
            let is_current = |made: &String| template.is_none_or(|template| made == template);
            let uid = pod.uid().unwrap_or_default();
            let who = who(pod, names);
            let slot = match startds.and_then(|(_, startds)| startds.startds.get(&who)) {
                None => self.absences.slot(&uid, asked),
                Some(startd) if startd.draining => Slot::Draining,
                Some(startd) if startd.busy => Slot::Busy,
                Some(_) => Slot::Idle { since: self.idle.get(&who).copied().unwrap_or(now) },
            };
            let number = names.worker_number(&pod.name_any())?;
            Some(Worker {
                number,
                pod: state(pod),
                slot,
                // One that waits for its image in vain is withdrawn.
                current: pod.annotations().get(TEMPLATE).is_some_and(is_current)
                    && !self.ended.contains(&uid)
                    && !is_old(pod, number, now),
                drained: self.drained.contains(&uid),
            })
        };
        let of = |(group, wanted): (&Group, &Wanted)| {
            let template = wanted.template.as_deref();
            let its = pods.iter().filter(|pod| group_of(pod) == *group);
            let made = self.made.not_in(pods, names).filter(|made| made.group == *group);
            let made = made.map(|made| made.worker(template));
            let mut workers: Vec<Worker> = its.filter_map(|pod| worker(pod, template)).chain(made).collect();
            workers.sort_unstable_by_key(|worker| worker.number);
            let deaths = self.deaths.get(group).copied().unwrap_or_default();
            let (taken, room) = (BTreeSet::new(), u32::MAX);
            (group.clone(), Evidence { now, goal: wanted.goal, workers, answer, deaths, taken, room })
        };
        wanted.iter().map(of).collect()
    }

    /// Something is about to change of which nobody tells.
    pub(super) fn is_restless(groups: &BTreeMap<Group, Evidence>) -> bool {
        groups.values().any(Self::is_one_restless)
    }

    fn is_one_restless(evidence: &Evidence) -> bool {
        let settled = |worker: &Worker| {
            worker.counts() && worker.pod == Pod::Running && matches!(worker.slot, Slot::Idle { .. } | Slot::Busy)
        };
        let wanted = evidence.goal.wanted() as usize;
        evidence.answer == Answer::Unknown
            || evidence.workers.len() != wanted
            || evidence.workers.iter().any(|worker| !settled(worker))
    }

    /// What confines the jobs of each worker that HTCondor knows, by the name of its pod.
    pub(super) fn payloads(&self, pods: &[Arc<KubePod>], names: &Names) -> BTreeMap<String, Payloads> {
        pods.iter().filter_map(|pod| Some((pod.name_any(), *self.payloads.get(&who(pod, names))?))).collect()
    }

    pub(super) fn silent(&self) -> Option<&str> {
        match &self.answer {
            Some((_, Err(unknown))) => Some(&unknown.message),
            Some((_, Ok(_))) | None => None,
        }
    }
}

/// What the answer is worth, and what it says with the time at which it was asked for.
fn worth(answer: Option<&(i64, Result<Startds, Unknown>)>, now: i64) -> (Answer, Option<(i64, &Startds)>) {
    let Some((asked, Ok(startds))) = answer.filter(|(asked, _)| now - asked <= GOOD_FOR) else {
        return (Answer::Unknown, None);
    };
    let is_young = startds.collector_age < i64::from(2 * UPDATE_INTERVAL);
    (if is_young { Answer::Young } else { Answer::Known }, Some((*asked, startds)))
}

/// Its token ends before long.
fn is_old(pod: &KubePod, number: u32, now: i64) -> bool {
    let made = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0.as_second());
    now - made >= LIFE + i64::from(number % STEPS) * STEP
}

/// Whose jobs it runs.
fn tenant_of(pod: &KubePod) -> Tenant {
    match group_of(pod) {
        Group::HTCJob(uid) => Tenant::HTCJob(uid),
        Group::Shared(Shared { namespace: Some(namespace), .. }) => Tenant::Namespace(namespace),
        Group::Shared(Shared { namespace: None, .. }) => Tenant::Everybody,
    }
}

/// HTCondor was told to drain it, or was to be told: it may have refused.
pub(super) fn is_marked(pod: &KubePod) -> bool {
    pod.annotations().contains_key(DRAIN)
}

/// What the slots of this pod say of themselves.
fn who(pod: &KubePod, names: &Names) -> Who {
    Who { id: pod.uid().unwrap_or_default(), name: names.startd(&pod.name_any()) }
}

/// Whose it is, or what it is a container of and for whom.
fn group_of(pod: &KubePod) -> Group {
    let shared = || Shared { image: image_of(pod).to_owned(), namespace: pod.labels().get(NAMESPACE).cloned() };
    pod.labels().get(MINI_CLUSTER).map_or_else(|| Group::Shared(shared()), |uid| Group::HTCJob(uid.clone()))
}

/// The image that a worker is a container of, as HTCJobs name it: a cluster may get it from elsewhere.
fn image_of(pod: &KubePod) -> &str {
    let in_spec = || pod.spec.as_ref()?.containers.first()?.image.as_ref();
    pod.annotations().get(IMAGE).or_else(in_spec).map(String::as_str).unwrap_or_default()
}

/// What a container that comes before HTCondor has said, if it was not content.
fn lack(pod: &KubePod) -> Option<String> {
    let statuses = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let failed = |status: &&ContainerStatus| ended(status).is_some_and(|ended| ended.exit_code != 0);
    let status = statuses.iter().find(failed)?;
    let ended = ended(status)?;
    let said = ended.message.as_deref().map(str::trim).filter(|said| !said.is_empty());
    let is_check = status.name == CHECK_CONTAINER;
    let what = if is_check { "its check" } else { "what puts HTCondor there" };
    let said = said.map_or_else(|| format!("{what} ended with {}", ended.exit_code), str::to_owned);
    let said = harmless(&said, WORDS / 2);
    let next = if is_check {
        "use an image that has all that a worker needs (docs/pools.md)"
    } else {
        "this comes of spec.managed.image or of the node"
    };
    Some(format!("{said}; {next}"))
}

fn ended(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

/// Why an image cannot be had, if that is why a pod waits.
fn not_to_be_had(pod: &KubePod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let lists = [status.init_container_statuses.as_ref(), status.container_statuses.as_ref()];
    let waits =
        lists.into_iter().flatten().flatten().filter_map(|container| container.state.as_ref()?.waiting.as_ref());
    let why = waits.filter_map(|waits| waits.reason.as_deref()).find(|why| NOT_TO_BE_HAD.contains(why))?;
    Some(format!("it cannot be had ({why}): look at its name, and at spec.managed.imagePullSecrets"))
}

fn state(pod: &KubePod) -> Pod {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match phase {
        Some("Succeeded" | "Failed") => Pod::Ended,
        _ if pod.metadata.deletion_timestamp.is_some() => Pod::Leaving,
        None | Some("Pending") => {
            Pod::Waiting { since: pod.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()) }
        }
        Some(_) => Pod::Running,
    }
}

/// For how long its container ran, or has run so far.
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
