//! What the condition `WorkersReady` says of the workers of a pool.

use std::collections::BTreeMap;

use super::scale::{Answer, Evidence, Plan, Pod, Slot, Worker};
use super::seen::Memory;
use crate::api::{ConditionStatus, WorkersStatus};

/// What is said of the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) counts: WorkersStatus,
    pub(super) status: ConditionStatus,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What is to be said of the workers.
pub(super) fn said(groups: &BTreeMap<String, Evidence>, plans: &BTreeMap<String, Plan>, memory: &Memory) -> Said {
    let count = |which: &dyn Fn(&Worker) -> bool| {
        let workers = groups.values().flat_map(|group| &group.workers);
        i32::try_from(workers.filter(|worker| which(worker)).count()).unwrap_or(i32::MAX)
    };
    let alive = |worker: &Worker| matches!(worker.pod, Pod::Waiting { .. } | Pod::Running);
    let counts = WorkersStatus {
        replicas: count(&Worker::counts),
        ready: count(&|worker| worker.pod == Pod::Running && matches!(worker.slot, Slot::Idle { .. } | Slot::Busy)),
        busy: count(&|worker| worker.pod == Pod::Running && worker.slot == Slot::Busy),
        draining: count(&|worker| alive(worker) && (worker.drained || worker.slot == Slot::Draining)),
        selector: String::new(),
    };
    let wanted: u64 = groups.values().map(|group| u64::from(group.goal.wanted())).sum();
    let wanted = i32::try_from(wanted).unwrap_or(i32::MAX);
    let no = |reason, message| Said { counts: counts.clone(), status: ConditionStatus::False, reason, message };
    let mut held = plans.iter().filter(|(_, plan)| plan.held_until.is_some());
    if let Some((image, count)) = held.find_map(|(image, _)| Some((image, groups.get(image)?.deaths.count))) {
        let next = memory.lack(image).map_or_else(
            || "look at the pods' events and at spec.managed.workers".to_owned(),
            |lack| format!("{lack}; use an image that has all that a worker needs (docs/pools.md)"),
        );
        let message = format!(
            "workers of the image {image} end shortly after they begin ({count} so far): {next}; the next one is made after a pause"
        );
        return no("EndTooSoon", message);
    }
    if let Some(silent) = memory.silent() {
        return Said { status: ConditionStatus::Unknown, ..no("CollectorSilent", silent.to_owned()) };
    }
    if groups.values().any(|group| group.answer == Answer::Young) {
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

#[cfg(test)]
mod tests {
    use super::super::scale::{Deaths, Goal};
    use super::*;
    use crate::condor::startds::Startds;
    use crate::machine::facts::{Unknown, Why};

    const NOW: i64 = 1_800_000_000;

    fn group(replicas: u32, workers: &[(Pod, Slot)], answer: Answer) -> Evidence {
        let worker = |(number, (pod, slot)): (u32, &(Pod, Slot))| Worker {
            number,
            pod: *pod,
            slot: *slot,
            current: true,
            drained: false,
        };
        let (goal, workers) = (Goal::Replicas(replicas), (0..).zip(workers).map(worker).collect());
        let (deaths, taken) = (Deaths::default(), std::collections::BTreeSet::new());
        Evidence { now: NOW, goal, workers, answer, deaths, taken, room: u32::MAX }
    }

    fn one(evidence: Evidence, memory: &Memory) -> Said {
        said(&BTreeMap::from([("python:3.12".to_owned(), evidence)]), &BTreeMap::new(), memory)
    }

    #[test]
    fn what_is_said_is_what_is_known() {
        let mut memory = Memory::default();
        let waiting = (Pod::Waiting { since: NOW }, Slot::Unseen);
        let (busy, idle) = ((Pod::Running, Slot::Busy), (Pod::Running, Slot::Idle { since: NOW }));
        let reason = |memory: &Memory, replicas, workers: &[(Pod, Slot)], answer| {
            one(group(replicas, workers, answer), memory).reason
        };
        assert_eq!(reason(&memory, 2, &[(Pod::Running, Slot::Unseen), waiting], Answer::Unknown), "Starting");
        assert_eq!(reason(&memory, 2, &[busy, waiting], Answer::Known), "Starting");
        assert_eq!(reason(&memory, 1, &[busy, waiting], Answer::Known), "Leaving");
        assert_eq!(reason(&memory, 1, &[busy, (Pod::Running, Slot::Draining)], Answer::Known), "Leaving");
        assert_eq!(reason(&memory, 2, &[busy, idle], Answer::Known), "AsWanted");
        assert_eq!(reason(&memory, 2, &[busy, idle], Answer::Young), "CollectorYoung");
        memory.take_in(Err(Unknown { why: Why::Incomplete, message: "m".to_owned() }), NOW);
        assert_eq!(reason(&memory, 2, &[busy, idle], Answer::Unknown), "CollectorSilent");
        memory.take_in(Ok(Startds::default()), NOW);
        assert_eq!(reason(&memory, 2, &[busy, idle], Answer::Known), "AsWanted");
    }

    #[test]
    fn images_count_together_and_the_one_that_fails_is_named() {
        let idle = (Pod::Running, Slot::Idle { since: NOW });
        let mut bad = group(1, &[], Answer::Known);
        bad.deaths = Deaths { count: 3, last: NOW };
        let groups = BTreeMap::from([
            ("alpine:3".to_owned(), bad),
            ("python:3.12".to_owned(), group(2, &[idle, (Pod::Running, Slot::Busy)], Answer::Known)),
        ]);
        let told = |plans: &BTreeMap<String, Plan>| said(&groups, plans, &Memory::default());
        let told_so = told(&BTreeMap::new());
        assert_eq!((told_so.counts.ready, told_so.counts.busy, told_so.reason), (2, 1, "Starting"));
        assert!(told_so.message.contains("2 of 3"), "{}", told_so.message);
        let held = Plan { held_until: Some(NOW + 9), ..Plan::default() };
        let told_so = told(&BTreeMap::from([("alpine:3".to_owned(), held)]));
        assert_eq!(told_so.reason, "EndTooSoon");
        assert!(told_so.message.contains("alpine:3") && told_so.message.contains("(3 so far)"), "{}", told_so.message);
    }
}
