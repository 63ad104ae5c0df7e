//! What is known of the workers of one pool: from their pods, and from the collector, with the time at which it was asked.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;

use super::config::UPDATE_INTERVAL;
use super::names::Names;
use super::objects::TEMPLATE;
use super::scale::{Answer, Deaths, Evidence, Goal, Plan, Pod, Slot, Worker};
use crate::api::{ConditionStatus, WorkersStatus};
use crate::condor::startds::Startds;
use crate::machine::facts::Unknown;

/// A worker that ends by itself within so many seconds has hardly worked.
const TOO_SOON: i64 = 120;
/// An answer is good for so many seconds.
const GOOD_FOR: i64 = 60;
/// Exit code of a master whose startd has been drained.
const IN_ORDER: i32 = 99;

/// What has been seen of the workers so far.
#[derive(Debug, Default)]
pub(super) struct Memory {
    answer: Option<(i64, Result<Startds, Unknown>)>,
    /// Since when those have no jobs that have none, by the pod's uid.
    idle: HashMap<String, i64>,
    /// Those that have accepted to drain.
    drained: HashSet<String>,
    /// Those whose end has been counted.
    ended: HashSet<String>,
    deaths: Deaths,
}

/// What is said of the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) counts: WorkersStatus,
    pub(super) status: ConditionStatus,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Memory {
    /// How old the answer is.
    pub(super) fn age(&self, now: i64) -> Option<Duration> {
        let (at, _) = self.answer.as_ref()?;
        Some(Duration::from_secs(u64::try_from(now - at).unwrap_or_default()))
    }

    pub(super) fn take_in(&mut self, answer: Result<Startds, Unknown>, now: i64) {
        if let Ok(startds) = &answer {
            self.idle.retain(|id, _| startds.by_id.get(id).is_some_and(|startd| !startd.busy));
            for (id, _) in startds.by_id.iter().filter(|(_, startd)| !startd.busy) {
                self.idle.entry(id.clone()).or_insert(now);
            }
        }
        self.answer = Some((now, answer));
    }

    /// This worker has accepted to drain.
    pub(super) fn drains(&mut self, uid: String) {
        self.drained.insert(uid);
    }

    /// Counts those that have ended too soon, and forgets those that are gone.
    pub(super) fn notice(&mut self, pods: &[Arc<KubePod>], now: i64) {
        let there: HashSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
        self.drained.retain(|uid| there.contains(uid));
        self.ended.retain(|uid| there.contains(uid));
        for pod in pods {
            let uid = pod.uid().unwrap_or_default();
            match state(pod) {
                Pod::Ended if self.ended.insert(uid.clone()) => {
                    if !self.drained.contains(&uid) && exit_code(pod) != Some(IN_ORDER) && lived(pod, now) < TOO_SOON {
                        self.deaths = Deaths { count: self.deaths.count.saturating_add(1), last: now };
                    }
                }
                Pod::Running if lived(pod, now) >= TOO_SOON => self.deaths = Deaths::default(),
                Pod::Ended | Pod::Running | Pod::Waiting { .. } | Pod::Leaving => {}
            }
        }
    }

    pub(super) fn evidence(
        &self,
        pods: &[Arc<KubePod>],
        names: &Names,
        goal: Goal,
        template: &str,
        now: i64,
    ) -> Evidence {
        let startds = match &self.answer {
            Some((at, Ok(startds))) if now - at <= GOOD_FOR => Some(startds),
            Some(_) | None => None,
        };
        let answer = match startds {
            None => Answer::Unknown,
            Some(startds) if startds.collector_age < i64::from(2 * UPDATE_INTERVAL) => Answer::Young,
            Some(_) => Answer::Known,
        };
        let worker = |pod: &Arc<KubePod>| {
            let uid = pod.uid().unwrap_or_default();
            let slot = match startds.and_then(|startds| startds.by_id.get(&uid)) {
                None => Slot::Unseen,
                Some(startd) if startd.draining => Slot::Draining,
                Some(startd) if startd.busy => Slot::Busy,
                Some(_) => Slot::Idle { since: self.idle.get(&uid).copied().unwrap_or(now) },
            };
            Some(Worker {
                number: names.worker_number(&pod.name_any())?,
                pod: state(pod),
                slot,
                current: pod.annotations().get(TEMPLATE).is_some_and(|made| made == template),
                drained: self.drained.contains(&uid),
            })
        };
        let mut workers: Vec<Worker> = pods.iter().filter_map(worker).collect();
        workers.sort_unstable_by_key(|worker| worker.number);
        Evidence { now, goal, workers, answer, deaths: self.deaths }
    }

    /// Something is about to change of which nobody tells.
    pub(super) fn is_restless(evidence: &Evidence) -> bool {
        let settled = |worker: &Worker| {
            worker.counts() && worker.pod == Pod::Running && matches!(worker.slot, Slot::Idle { .. } | Slot::Busy)
        };
        let wanted = evidence.goal.wanted() as usize;
        evidence.answer == Answer::Unknown
            || evidence.workers.len() != wanted
            || evidence.workers.iter().any(|worker| !settled(worker))
    }

    fn silent(&self) -> Option<&str> {
        match &self.answer {
            Some((_, Err(unknown))) => Some(&unknown.message),
            Some((_, Ok(_))) | None => None,
        }
    }
}

/// What is to be said of the workers.
pub(super) fn said(evidence: &Evidence, plan: &Plan, memory: &Memory) -> Said {
    let count = |which: &dyn Fn(&Worker) -> bool| {
        i32::try_from(evidence.workers.iter().filter(|worker| which(worker)).count()).unwrap_or(i32::MAX)
    };
    let alive = |worker: &Worker| matches!(worker.pod, Pod::Waiting { .. } | Pod::Running);
    let counts = WorkersStatus {
        replicas: count(&Worker::counts),
        ready: count(&|worker| worker.pod == Pod::Running && matches!(worker.slot, Slot::Idle { .. } | Slot::Busy)),
        busy: count(&|worker| worker.pod == Pod::Running && worker.slot == Slot::Busy),
        draining: count(&|worker| alive(worker) && (worker.drained || worker.slot == Slot::Draining)),
        selector: String::new(),
    };
    let wanted = i32::try_from(evidence.goal.wanted()).unwrap_or(i32::MAX);
    let no = |reason, message| Said { counts: counts.clone(), status: ConditionStatus::False, reason, message };
    if plan.held_until.is_some() {
        let message = format!(
            "workers end shortly after they begin ({} so far): look at the pods' events and at spec.managed.workers; the next one is made after a pause",
            evidence.deaths.count
        );
        return no("EndTooSoon", message);
    }
    if let Some(silent) = memory.silent() {
        return Said { status: ConditionStatus::Unknown, ..no("CollectorSilent", silent.to_owned()) };
    }
    if evidence.answer == Answer::Young {
        let message = "the central manager has begun a short while ago: what it knows is not whole yet".to_owned();
        return Said { status: ConditionStatus::Unknown, ..no("CollectorYoung", message) };
    }
    if counts.ready < wanted {
        return no(
            "Starting",
            format!("{} of {wanted} workers are there; pods that wait say why themselves", counts.ready),
        );
    }
    if counts.replicas > wanted || counts.draining > 0 {
        return no("Leaving", format!("{wanted} workers are wanted; those that are too many finish their jobs first"));
    }
    Said {
        status: ConditionStatus::True,
        ..no(
            "AsWanted",
            if wanted == 1 { "1 worker is there".to_owned() } else { format!("{wanted} workers are there") },
        )
    }
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::ObjectName;
    use crate::condor::startds::Startd;
    use crate::machine::facts::Why;

    const NOW: i64 = 1_800_000_000;

    fn at(seconds: i64) -> String {
        jiff::Timestamp::from_second(NOW + seconds).unwrap().to_string()
    }

    fn pod(number: u32, phase: &str, state: &serde_json::Value) -> Arc<KubePod> {
        let pod = json!({
            "metadata": {
                "name": format!("p-worker-{number}"), "uid": format!("u-{number}"),
                "creationTimestamp": at(-1000), "annotations": { TEMPLATE: "t" },
            },
            "status": {
                "phase": phase,
                "containerStatuses": [{
                    "name": "condor", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": state,
                }],
            },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn names() -> Names {
        Names::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "uid").unwrap()
    }

    fn startds(age: i64, startds: &[(&str, bool, bool)]) -> Startds {
        let by_id =
            startds.iter().map(|(id, busy, draining)| ((*id).to_owned(), Startd { busy: *busy, draining: *draining }));
        Startds { collector_age: age, by_id: by_id.collect() }
    }

    fn ended(lived: i64, code: i32) -> serde_json::Value {
        json!({ "terminated": { "exitCode": code, "startedAt": at(-lived), "finishedAt": at(0) } })
    }

    #[test]
    fn an_answer_is_worth_what_its_collector_can_know() {
        let mut memory = Memory::default();
        let running = pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } }));
        let see =
            |memory: &Memory, now| memory.evidence(&[Arc::clone(&running)], &names(), Goal::Replicas(1), "t", now);
        assert_eq!(see(&memory, NOW).answer, Answer::Unknown);
        memory.take_in(Ok(startds(39, &[])), NOW);
        assert_eq!(see(&memory, NOW).answer, Answer::Young);
        memory.take_in(Ok(startds(40, &[("u-0", false, false)])), NOW);
        assert_eq!(see(&memory, NOW).answer, Answer::Known);
        assert_eq!(see(&memory, NOW).workers[0].slot, Slot::Idle { since: NOW });
        assert_eq!(see(&memory, NOW + GOOD_FOR + 1).answer, Answer::Unknown);
        memory.take_in(Ok(startds(60, &[("u-0", false, false)])), NOW + 20);
        assert_eq!(see(&memory, NOW + 20).workers[0].slot, Slot::Idle { since: NOW });
        memory.take_in(Ok(startds(80, &[("u-0", true, false)])), NOW + 40);
        assert_eq!(see(&memory, NOW + 40).workers[0].slot, Slot::Busy);
        memory.take_in(Ok(startds(99, &[("u-0", false, false)])), NOW + 60);
        assert_eq!(see(&memory, NOW + 60).workers[0].slot, Slot::Idle { since: NOW + 60 });
        memory.take_in(Err(Unknown { why: Why::Incomplete, message: "m".to_owned() }), NOW + 61);
        assert_eq!(see(&memory, NOW + 61).answer, Answer::Unknown);
    }

    #[test]
    fn a_pod_of_an_earlier_name_is_not_taken_for_this_one() {
        let mut memory = Memory::default();
        memory.take_in(Ok(startds(500, &[("u-of-the-former", true, true)])), NOW);
        let new = pod(0, "Running", &json!({ "running": { "startedAt": at(0) } }));
        let evidence = memory.evidence(&[new], &names(), Goal::Replicas(1), "t", NOW);
        assert_eq!(evidence.workers[0].slot, Slot::Unseen);
    }

    #[test]
    fn only_workers_that_ended_too_soon_count() {
        let mut memory = Memory::default();
        let mut after = |state: &serde_json::Value, number: u32| {
            memory.notice(&[pod(number, "Failed", state)], NOW);
            memory.deaths.count
        };
        assert_eq!(after(&ended(5, 1), 0), 1);
        assert_eq!(after(&ended(5, 1), 0), 1, "it is counted once");
        assert_eq!(after(&ended(5, 44), 1), 2);
        assert_eq!(after(&ended(5, IN_ORDER), 2), 2);
        assert_eq!(after(&ended(TOO_SOON, 1), 3), 2);
        memory.notice(&[pod(4, "Running", &json!({ "running": { "startedAt": at(-TOO_SOON) } }))], NOW);
        assert_eq!(memory.deaths, Deaths::default());
    }

    #[test]
    fn what_is_said_is_what_is_known() {
        let mut memory = Memory::default();
        let pods = [pod(0, "Running", &json!({ "running": { "startedAt": at(-500) } })), pod(1, "Pending", &json!({}))];
        let reason = |memory: &Memory, replicas: u32| {
            let evidence = memory.evidence(&pods, &names(), Goal::Replicas(replicas), "t", NOW);
            said(&evidence, &Plan::default(), memory).reason
        };
        assert_eq!(reason(&memory, 2), "Starting");
        memory.take_in(Ok(startds(500, &[("u-0", true, false)])), NOW);
        assert_eq!((reason(&memory, 2), reason(&memory, 1)), ("Starting", "Leaving"));
        memory.take_in(Ok(startds(500, &[("u-0", true, false), ("u-1", false, false)])), NOW);
        memory.take_in(Ok(startds(1, &[])), NOW);
        assert_eq!(reason(&memory, 1), "CollectorYoung");
        memory.take_in(Err(Unknown { why: Why::Incomplete, message: "m".to_owned() }), NOW);
        assert_eq!(reason(&memory, 1), "CollectorSilent");
    }
}
