//! What the condition `WorkersReady` says of the workers of a pool.

use std::collections::BTreeMap;

use super::groups::{Group, Shared};
use super::scale::{Answer, Evidence, Plan, Pod, Slot, Worker};
use super::seen::Memory;
use super::shadow::Shadows;
use crate::api::text::harmless;
use crate::api::{Condition, ConditionStatus, MiniClusterStatus, WorkersStatus};
use crate::confine::job_wrapper::Payloads;

/// Type of the condition about the number of workers.
pub(super) const WORKERS_READY: &str = "WorkersReady";
/// Reason of that condition.
const NOT_JOINING: &str = "NotJoining";
/// Type of the condition about the images that workers are made of.
pub(super) const IMAGES_USABLE: &str = "ImagesUsable";

/// Type of the condition about the shadows of the schedd.
pub(super) const SHADOWS_CONFINED: &str = "ShadowsConfined";
/// Type of the condition about what the workers' jobs are confined by.
pub(super) const PAYLOADS_CONFINED: &str = "PayloadsConfined";
/// Type of the condition about the signing key.
pub(super) const SIGNING_KEY_ROTATED: &str = "SigningKeyRotated";
/// Reason of [`WORKERS_READY`]: Secrets have the names of workers' and are not the pool's.
const NAME_TAKEN: &str = "NameTaken";
/// Most workers that a message names.
const NAMED: usize = 5;

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) kind: &'static str,
    pub(super) status: ConditionStatus,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Said {
    /// The object says so already. What the message about workers counts is in the status as well.
    pub(super) fn is_told_by(&self, old: &Condition) -> bool {
        let counts = self.kind == WORKERS_READY && ![NAME_TAKEN, NOT_JOINING].contains(&self.reason);
        // The words of a tool differ each time.
        let silent = self.kind == SIGNING_KEY_ROTATED && self.status == ConditionStatus::Unknown;
        let words = counts || silent || old.message == self.message;
        old.status == self.status && old.reason == self.reason && words
    }
}

/// Workers that do not belong to one HTCJob.
fn shared(groups: &BTreeMap<Group, Evidence>) -> impl Iterator<Item = (&Shared, &Evidence)> + Clone {
    groups.iter().filter_map(|(group, evidence)| match group {
        Group::Shared(shared) => Some((shared, evidence)),
        Group::HTCJob(_) => None,
    })
}

/// How many workers there are that are no HTCJob's own.
pub(super) fn counts(groups: &BTreeMap<Group, Evidence>) -> WorkersStatus {
    counted(&shared(groups).map(|(_, evidence)| evidence))
}

fn counted<'a>(groups: &(impl Iterator<Item = &'a Evidence> + Clone)) -> WorkersStatus {
    let count = |which: &dyn Fn(&Worker) -> bool| {
        let workers = groups.clone().flat_map(|group| &group.workers);
        i32::try_from(workers.filter(|worker| which(worker)).count()).unwrap_or(i32::MAX)
    };
    let alive = |worker: &Worker| matches!(worker.pod, Pod::Waiting { .. } | Pod::Running);
    WorkersStatus {
        replicas: count(&Worker::counts),
        ready: count(&|worker| worker.pod == Pod::Running && matches!(worker.slot, Slot::Idle { .. } | Slot::Busy)),
        busy: count(&|worker| worker.pod == Pod::Running && worker.slot == Slot::Busy),
        draining: count(&|worker| alive(worker) && (worker.drained || worker.slot == Slot::Draining)),
        selector: String::new(),
    }
}

/// What is to be said of the workers of one HTCJob.
pub(super) fn own_said(evidence: Option<&Evidence>, lack: Option<&str>) -> MiniClusterStatus {
    let WorkersStatus { replicas, ready, busy, .. } = counted(&evidence.into_iter());
    let fails = evidence.is_some_and(|evidence| evidence.deaths.is_hopeless());
    let message = lack
        .or(fails.then_some("they end shortly after they begin"))
        .map(|why| harmless(&format!("its workers cannot be had: {why}; it is tried again after pauses"), 1000));
    MiniClusterStatus { workers: replicas, ready, busy, message }
}

/// What is to be said of the images.
pub(super) fn images_said(memory: &Memory) -> Said {
    let failing = memory.failing();
    let images = failing.iter().filter_map(|(group, why)| match group {
        Group::Shared(shared) => Some((&shared.image, *why)),
        // The HTCJob says so itself.
        Group::HTCJob(_) => None,
    });
    // An image is the same for all namespaces.
    let images: BTreeMap<&String, &str> = images.collect();
    let each: Vec<String> = images.iter().map(|(image, why)| format!("{image}: {why}")).collect();
    if each.is_empty() {
        let message = "no image is known that workers cannot be made of".to_owned();
        return Said { kind: IMAGES_USABLE, status: ConditionStatus::True, reason: "NoneFails", message };
    }
    let message = harmless(
        &format!("HTCJobs wait for workers of images that fail; it is tried again after pauses. {}", each.join("; ")),
        4000,
    );
    Said { kind: IMAGES_USABLE, status: ConditionStatus::False, reason: "ImageFails", message }
}

/// What is to be said of the number of workers.
pub(super) fn workers_said(groups: &BTreeMap<Group, Evidence>, plans: &BTreeMap<Group, Plan>, memory: &Memory) -> Said {
    let counts = counts(groups);
    let wanted: u64 = shared(groups).map(|(_, group)| u64::from(group.goal.wanted())).sum();
    let wanted = i32::try_from(wanted).unwrap_or(i32::MAX);
    let no = |reason, message| Said { kind: WORKERS_READY, status: ConditionStatus::False, reason, message };
    let group = |shared: &Shared| Group::Shared(shared.clone());
    let held = |shared: &Shared| plans.get(&group(shared)).is_some_and(|plan| plan.held_until.is_some());
    let absent = |shared: &Shared| memory.not_joined(&group(shared));
    let fails = |(shared, group): &(&Shared, &Evidence)| {
        (held(shared) || group.deaths.is_hopeless()) && absent(shared).is_none()
    };
    if let Some((failing, count)) = shared(groups).find(fails).map(|(failing, group)| (failing, group.deaths.count)) {
        let image = &failing.image;
        let next = memory.lack(&group(failing)).unwrap_or("look at the pods' events and at spec.managed.workers");
        let message = format!(
            "workers of the image {image} end shortly after they begin ({count} so far): {next}; the next one is made after a pause"
        );
        return no("EndTooSoon", message);
    }
    let without_token = memory.no_tokens();
    if without_token.len() > 0 {
        let (count, named) = (without_token.len(), without_token.take(NAMED).collect::<Vec<_>>().join("; "));
        let message = format!("{count} of the workers' pods wait for their tokens: {named}");
        return no(NAME_TAKEN, harmless(&message, 4000));
    }
    if let Some(silent) = memory.silent() {
        return Said { status: ConditionStatus::Unknown, ..no("CollectorSilent", silent.to_owned()) };
    }
    if shared(groups).any(|(_, group)| group.answer == Answer::Young) {
        let message = "the central manager has begun a short while ago: what it knows is not whole yet".to_owned();
        return Said { status: ConditionStatus::Unknown, ..no("CollectorYoung", message) };
    }
    let not_joined = shared(groups).find_map(|(shared, group)| Some((absent(shared)?, group.deaths.count)));
    if let Some((pod, count)) = not_joined.filter(|_| counts.ready < wanted) {
        let message = format!(
            "the worker {pod} ran for minutes, and HTCondor's collector did not name it ({count} so far): another one takes its place. Read the \
             log of that one while it runs (kubectl exec POD -- cat /htcpool/local/log/StartLog): it says why the collector is not reached, \
             or does not take its token"
        );
        return no(NOT_JOINING, message);
    }
    if counts.ready < wanted {
        return no(
            "Starting",
            format!(
                "{} of {wanted} workers are there; pods that wait say why themselves, and one that runs and does not join HTCondor is replaced \
                 after some minutes",
                counts.ready
            ),
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

/// Whether a worker can reach more of the schedd's pod than the files of its own job.
pub(super) fn shadows_said(shadows: Shadows) -> Said {
    let no = |message: &str| Said {
        kind: SHADOWS_CONFINED,
        status: ConditionStatus::False,
        reason: shadows.into(),
        message: format!("{REACH}: {message}"),
    };
    match shadows {
        Shadows::Confined => Said {
            status: ConditionStatus::True,
            message: "each shadow reads and writes the files of its own job, and no others".to_owned(),
            ..no("")
        },
        Shadows::ImageTooOld => no(
            "spec.managed.image has no htc-confine; make the image anew with the Dockerfile of the operator's version, under a new tag (docs/pools.md)",
        ),
        Shadows::NoLandlock => no(
            "the node's kernel has no Landlock of Linux 5.19 or newer, or the container runtime's seccomp profile does not allow it; run the schedd on another node, or let only namespaces that trust each other use the pool",
        ),
    }
}

/// The consequence of shadows without confinement, for messages.
const REACH: &str = "a payload that replaces its worker's HTCondor may read files of other jobs in the schedd's spool";

/// What is to be said of the confinement of jobs, by the workers that HTCondor knows: the worst of it.
pub(super) fn payloads_said(workers: &BTreeMap<String, Payloads>) -> Said {
    let no = |reason, message| Said { kind: PAYLOADS_CONFINED, status: ConditionStatus::False, reason, message };
    let Some(worst) = workers.values().min() else {
        let message = "HTCondor knows no worker".to_owned();
        return Said { status: ConditionStatus::Unknown, ..no("NoWorkers", message) };
    };
    let named: Vec<&str> = workers.iter().filter(|(_, is)| *is == worst).map(|(name, _)| name.as_str()).collect();
    let more = if named.len() > NAMED { format!(" and {} more", named.len() - NAMED) } else { String::new() };
    let named = format!("{}{more}", named.iter().take(NAMED).copied().collect::<Vec<_>>().join(", "));
    let all = "read the worker's token and the files of its other jobs, and end its daemons";
    let message = match worst {
        Payloads::Confined => {
            let message = "each job reaches the files and the processes of its own, and no others of its worker";
            return Said { status: ConditionStatus::True, ..no(worst.into(), message.to_owned()) };
        }
        Payloads::FilesOnly => format!(
            "jobs on {named} may send signals to the worker's daemons and to its other jobs: the node's kernel has no Landlock of Linux 6.12 or newer"
        ),
        Payloads::NoLandlock => format!(
            "jobs on {named} may {all}: the node's kernel has no Landlock of Linux 5.19 or newer, or the container runtime's seccomp profile does not allow it. Run workers on other nodes, or let only namespaces that trust each other use the pool"
        ),
        Payloads::ImageTooOld => format!(
            "jobs on {named} may {all}: spec.managed.image has no htc-job-wrapper, or the worker is older than this operator. Make the image anew with this version's Dockerfile"
        ),
    };
    no(worst.into(), harmless(&message, 1000))
}

#[cfg(test)]
mod tests {
    use super::super::error::ApplyError;
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

    fn image(name: &str) -> Group {
        Group::Shared(Shared { image: name.to_owned(), namespace: None })
    }

    /// The condition that says so.
    fn old(said: &Said) -> Condition {
        Condition {
            type_: said.kind.to_owned(),
            status: said.status,
            reason: said.reason.to_owned(),
            message: said.message.clone(),
            last_transition_time: serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap(),
            observed_generation: None,
        }
    }

    fn one(evidence: Evidence, memory: &Memory) -> Said {
        workers_said(&BTreeMap::from([(image("python:3.12"), evidence)]), &BTreeMap::new(), memory)
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
    fn workers_whose_secrets_are_anothers_are_named_with_the_next_step() {
        let groups =
            BTreeMap::from([(image("i"), group(1, &[(Pod::Waiting { since: NOW }, Slot::Unseen)], Answer::Known))]);
        let mut memory = Memory::default();
        let not_ours = |name: &str| ApplyError::NotOurs { kind: "Secret".to_owned(), name: name.to_owned() };
        memory.has_no_token("u-1".to_owned(), &not_ours("p-worker-ns-n-1"));
        let said = workers_said(&groups, &BTreeMap::new(), &memory);
        assert_eq!((said.status, said.reason), (ConditionStatus::False, NAME_TAKEN));
        assert!(
            said.message.contains("Secret p-worker-ns-n-1 ") && said.message.contains("delete it"),
            "{}",
            said.message
        );
        let old = old(&said);
        memory.has_no_token("u-2".to_owned(), &not_ours("p-worker-ns-n-2"));
        assert!(!workers_said(&groups, &BTreeMap::new(), &memory).is_told_by(&old), "another one is named");
        for uid in ["u-1", "u-2"] {
            memory.has_token(uid.to_owned());
        }
        assert_eq!(workers_said(&groups, &BTreeMap::new(), &memory).reason, "Starting");
    }

    #[test]
    fn a_worker_that_does_not_join_is_named_until_there_are_enough() {
        let (mut memory, busy) = (Memory::default(), (Pod::Running, Slot::Busy));
        memory.absences.set_last(image("python:3.12"), "p-worker-7".to_owned());
        let absent = (Pod::Running, Slot::Absent { again: true });
        let mut evidence = group(2, &[absent, busy], Answer::Known);
        evidence.deaths = Deaths { count: 4, last: NOW };
        let said = one(evidence, &memory);
        assert_eq!((said.status, said.reason), (ConditionStatus::False, "NotJoining"));
        let names = |word: &str| said.message.contains(word);
        assert!(names("p-worker-7") && names("(4 so far)") && names("StartLog"), "{}", said.message);
        assert_eq!(one(group(1, &[absent, busy], Answer::Known), &memory).reason, "AsWanted");
        assert_eq!(images_said(&memory).reason, "NoneFails");
        let mut old = old(&said);
        assert!(said.is_told_by(&old));
        old.message = "the worker p-worker-6".to_owned();
        assert!(!said.is_told_by(&old), "it is another worker");
    }

    #[test]
    fn images_count_together_and_the_one_that_fails_is_named() {
        let idle = (Pod::Running, Slot::Idle { since: NOW });
        let mut bad = group(1, &[], Answer::Known);
        bad.deaths = Deaths { count: 3, last: NOW };
        let mut groups = BTreeMap::from([
            (image("alpine:3"), bad),
            (image("python:3.12"), group(2, &[idle, (Pod::Running, Slot::Busy)], Answer::Known)),
        ]);
        let told_so = workers_said(&groups, &BTreeMap::new(), &Memory::default());
        let counted = counts(&groups);
        assert_eq!((counted.ready, counted.busy, told_so.reason), (2, 1, "EndTooSoon"));
        groups.get_mut(&image("alpine:3")).unwrap().deaths.count = 2;
        let told_so = workers_said(&groups, &BTreeMap::new(), &Memory::default());
        assert_eq!(told_so.reason, "Starting");
        assert!(told_so.message.contains("2 of 3"), "{}", told_so.message);
        let held = Plan { held_until: Some(NOW + 9), ..Plan::default() };
        let told_so = workers_said(&groups, &BTreeMap::from([(image("alpine:3"), held)]), &Memory::default());
        assert_eq!(told_so.reason, "EndTooSoon");
        assert!(told_so.message.contains("alpine:3") && told_so.message.contains("(2 so far)"), "{}", told_so.message);
    }

    #[test]
    fn an_image_that_fails_is_told_with_what_it_lacks_and_once() {
        let mut memory = Memory::default();
        let said = images_said(&memory);
        assert_eq!((said.status, said.reason), (ConditionStatus::True, "NoneFails"));
        memory.lacks.insert(image("alpine:3"), "the image lacks find".to_owned());
        let said = images_said(&memory);
        assert_eq!((said.status, said.reason), (ConditionStatus::False, "ImageFails"));
        assert!(said.message.contains("alpine:3: the image lacks find"), "{}", said.message);
        let mut old = old(&said);
        assert!(said.is_told_by(&old));
        old.message.push_str("; another:1: it fails");
        assert!(!said.is_told_by(&old), "another image fails");
        let workers = Said { kind: WORKERS_READY, ..said };
        assert!(workers.is_told_by(&old), "its numbers are in the status");
    }

    #[test]
    fn shadows_that_are_not_confined_are_named_with_the_next_step() {
        use strum::IntoEnumIterator as _;
        for shadows in Shadows::iter() {
            let said = shadows_said(shadows);
            assert_eq!(said.reason.parse(), Ok(shadows));
            let confined = shadows == Shadows::Confined;
            assert_eq!(said.status == ConditionStatus::True, confined);
            assert_ne!(said.message.contains("of other jobs"), confined, "{}", said.message);
        }
    }

    #[test]
    fn the_worker_that_confines_its_jobs_least_is_named_with_the_next_step() {
        let said = |workers: &[(&str, Payloads)]| {
            payloads_said(&workers.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect())
        };
        assert_eq!((said(&[]).status, said(&[]).reason), (ConditionStatus::Unknown, "NoWorkers"));
        let confined = said(&[("a", Payloads::Confined), ("b", Payloads::Confined)]);
        assert_eq!((confined.status, confined.reason), (ConditionStatus::True, "Confined"));
        for (worst, says) in [
            (Payloads::FilesOnly, "Linux 6.12"),
            (Payloads::NoLandlock, "Linux 5.19"),
            (Payloads::ImageTooOld, "Make the image anew"),
        ] {
            let said = said(&[("a", Payloads::Confined), ("b", worst), ("c", Payloads::Confined)]);
            assert_eq!((said.status, said.reason), (ConditionStatus::False, <&str>::from(worst)));
            assert!(said.message.contains("jobs on b may") && said.message.contains(says), "{}", said.message);
        }
        let many: Vec<String> = (0..9).map(|number| format!("w-{number}")).collect();
        let many: Vec<(&str, Payloads)> = many.iter().map(|name| (name.as_str(), Payloads::NoLandlock)).collect();
        assert!(said(&many).message.contains("w-4 and 4 more"), "{}", said(&many).message);
    }

    #[test]
    fn workers_of_one_htcjob_are_told_by_it_alone() {
        let idle = (Pod::Running, Slot::Idle { since: NOW });
        let mut own =
            group(3, &[idle, (Pod::Running, Slot::Busy), (Pod::Waiting { since: NOW }, Slot::Unseen)], Answer::Known);
        let said = |own: &Evidence, lack| {
            let MiniClusterStatus { workers, ready, busy, message } = own_said(Some(own), lack);
            ((workers, ready, busy), message.unwrap_or_default())
        };
        assert_eq!(said(&own, None), ((3, 2, 1), String::new()));
        assert!(said(&own, Some("the image lacks find")).1.contains("the image lacks find"));
        own.deaths = Deaths { count: 3, last: NOW };
        assert!(said(&own, None).1.contains("end shortly after"));
        let its = Group::HTCJob("u".to_owned());
        let groups = BTreeMap::from([(image("i"), group(1, &[idle], Answer::Known)), (its.clone(), own)]);
        let mut memory = Memory::default();
        memory.lacks.insert(its, "the image lacks find".to_owned());
        assert_eq!(workers_said(&groups, &BTreeMap::new(), &memory).reason, "AsWanted");
        assert_eq!((counts(&groups).replicas, images_said(&memory).reason), (1, "NoneFails"));
        assert_eq!(own_said(None, None), MiniClusterStatus::default());
    }
}
