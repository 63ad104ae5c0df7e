//! Conditions of a managed pool about its workers, images, shadows and payloads.

use std::collections::BTreeMap;

use htc_api::{Condition, ConditionStatus, MiniClusterStatus, WorkersStatus};
use htc_confine::job_wrapper::PayloadConfinement;
use htc_machine::scaling::{AnswerQuality, PodState, ScalePlan, SlotState, Worker, WorkerEvidence};
use htc_machine::text::sanitize;
use htc_machine::worker_groups::{SharedGroup, WorkerGroup};

use super::shadow::ShadowConfinement;
use crate::htcpool::managed::observations::WorkerObservations;

/// Type of the condition about the number of workers.
pub(super) const WORKERS_READY: &str = "WorkersReady";
/// Reason: workers run, and the collector does not list them.
const NOT_JOINING: &str = "NotJoining";
/// Type of the condition about the images of the workers.
pub(super) const IMAGES_USABLE: &str = "ImagesUsable";

/// Type of the condition about the confinement of the schedd's shadows.
pub(super) const SHADOWS_CONFINED: &str = "ShadowsConfined";
/// Type of the condition about the confinement of the workers' jobs.
pub(super) const PAYLOADS_CONFINED: &str = "PayloadsConfined";
/// Type of the condition about the signing key.
pub(super) const SIGNING_KEY_ROTATED: &str = "SigningKeyRotated";
/// Reason of [`WORKERS_READY`]: objects that do not belong to the pool have the names of the workers' Secrets.
const NAME_TAKEN: &str = "NameTaken";
/// Reason of [`WORKERS_READY`]: the API server refuses the pods of workers.
const CREATE_REFUSED: &str = "CreateRefused";
/// Maximum number of workers that a message names.
const NAMED: usize = 5;

/// A condition before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolCondition {
    pub(super) kind: &'static str,
    pub(super) status: ConditionStatus,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl PoolCondition {
    /// Returns whether the condition needs no write.
    ///
    /// The message about workers contains counts, which are in the status as well: a change of it alone is not written.
    pub(super) fn matches(&self, old: &Condition) -> bool {
        let counts = self.kind == WORKERS_READY && ![NAME_TAKEN, NOT_JOINING, CREATE_REFUSED].contains(&self.reason);
        // The messages of HTCondor's tools differ each time.
        let silent = self.kind == SIGNING_KEY_ROTATED && self.status == ConditionStatus::Unknown;
        let words = counts || silent || old.message == self.message;
        old.status == self.status && old.reason == self.reason && words
    }
}

/// Returns the groups of workers that do not belong to one HTCJob.
fn shared(
    groups: &BTreeMap<WorkerGroup, WorkerEvidence>,
) -> impl Iterator<Item = (&SharedGroup, &WorkerEvidence)> + Clone {
    groups.iter().filter_map(|(group, evidence)| match group {
        WorkerGroup::Shared(shared) => Some((shared, evidence)),
        WorkerGroup::HTCJob(_) => None,
    })
}

/// Counts the workers that do not belong to one HTCJob.
pub(super) fn counts(groups: &BTreeMap<WorkerGroup, WorkerEvidence>) -> WorkersStatus {
    counted(&shared(groups).map(|(_, evidence)| evidence))
}

fn counted<'a>(groups: &(impl Iterator<Item = &'a WorkerEvidence> + Clone)) -> WorkersStatus {
    let count = |which: &dyn Fn(&Worker) -> bool| {
        let workers = groups.clone().flat_map(|group| &group.workers);
        i32::try_from(workers.filter(|worker| which(worker)).count()).unwrap_or(i32::MAX)
    };
    let alive = |worker: &Worker| matches!(worker.pod_state, PodState::Waiting { .. } | PodState::Running);
    WorkersStatus {
        replicas: count(&Worker::counts),
        ready: count(&|worker| {
            worker.pod_state == PodState::Running
                && matches!(worker.slot_state, SlotState::Idle { .. } | SlotState::Busy)
        }),
        busy: count(&|worker| worker.pod_state == PodState::Running && worker.slot_state == SlotState::Busy),
        draining: count(&|worker| alive(worker) && (worker.drain_accepted || worker.slot_state == SlotState::Draining)),
        selector: String::new(),
    }
}

/// Returns the status of the workers that belong to one HTCJob.
pub(super) fn mini_cluster_status(evidence: Option<&WorkerEvidence>, lack: Option<&str>) -> MiniClusterStatus {
    let WorkersStatus { replicas, ready, busy, .. } = counted(&evidence.into_iter());
    let fails = evidence.is_some_and(|evidence| evidence.deaths.is_hopeless());
    let message = lack
        .or(fails.then_some("they end shortly after they begin"))
        .map(|why| sanitize(&format!("its workers cannot be had: {why}; it is tried again after pauses"), 1000));
    MiniClusterStatus { workers: replicas, ready, busy, message }
}

/// Returns the condition about the images.
pub(super) fn images_condition(memory: &WorkerObservations) -> PoolCondition {
    let failing = memory.failing_groups();
    let images = failing.iter().filter_map(|(group, why)| match group {
        WorkerGroup::Shared(shared) => Some((&shared.image, *why)),
        // The HTCJob reports this itself.
        WorkerGroup::HTCJob(_) => None,
    });
    // The same image in several namespaces is named once.
    let images: BTreeMap<&String, &str> = images.collect();
    let each: Vec<String> = images.iter().map(|(image, why)| format!("{image}: {why}")).collect();
    if each.is_empty() {
        let message = "no image is known that workers cannot be made of".to_owned();
        return PoolCondition { kind: IMAGES_USABLE, status: ConditionStatus::True, reason: "NoneFails", message };
    }
    let message = sanitize(
        &format!("HTCJobs wait for workers of images that fail; it is tried again after pauses. {}", each.join("; ")),
        4000,
    );
    PoolCondition { kind: IMAGES_USABLE, status: ConditionStatus::False, reason: "ImageFails", message }
}

/// Returns the condition about the number of workers.
pub(super) fn workers_condition(
    groups: &BTreeMap<WorkerGroup, WorkerEvidence>,
    plans: &BTreeMap<WorkerGroup, ScalePlan>,
    memory: &WorkerObservations,
) -> PoolCondition {
    let counts = counts(groups);
    let wanted: u64 = shared(groups).map(|(_, group)| u64::from(group.goal.wanted())).sum();
    let wanted = i32::try_from(wanted).unwrap_or(i32::MAX);
    let no = |reason, message| PoolCondition { kind: WORKERS_READY, status: ConditionStatus::False, reason, message };
    let group = |shared: &SharedGroup| WorkerGroup::Shared(shared.clone());
    let held = |shared: &SharedGroup| plans.get(&group(shared)).is_some_and(|plan| plan.backoff_until.is_some());
    let absent = |shared: &SharedGroup| memory.last_unjoined_pod(&group(shared));
    let fails = |(shared, group): &(&SharedGroup, &WorkerEvidence)| {
        (held(shared) || group.deaths.is_hopeless()) && absent(shared).is_none()
    };
    if let Some((failing, count)) = shared(groups).find(fails).map(|(failing, group)| (failing, group.deaths.count)) {
        let image = &failing.image;
        let next =
            memory.image_problem(&group(failing)).unwrap_or("look at the pods' events and at spec.managed.workers");
        let message = format!(
            "workers of the image {image} end shortly after they begin ({count} so far): {next}; the next one is made after a pause"
        );
        return no("EndTooSoon", message);
    }
    if let Some(refusal) = memory.refusal() {
        let message = format!("the API server refuses the pods of workers; it is tried again. {refusal}");
        return no(CREATE_REFUSED, message);
    }
    let without_token = memory.no_tokens();
    if without_token.len() > 0 {
        let (count, named) = (without_token.len(), without_token.take(NAMED).collect::<Vec<_>>().join("; "));
        let message = format!("{count} of the workers' pods wait for their tokens: {named}");
        return no(NAME_TAKEN, sanitize(&message, 4000));
    }
    if let Some(silent) = memory.answer_failure() {
        return PoolCondition { status: ConditionStatus::Unknown, ..no("CollectorSilent", silent.to_owned()) };
    }
    if shared(groups).any(|(_, group)| group.answer == AnswerQuality::Young) {
        let message = "the central manager has begun a short while ago: what it knows is not whole yet".to_owned();
        return PoolCondition { status: ConditionStatus::Unknown, ..no("CollectorYoung", message) };
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
    PoolCondition {
        status: ConditionStatus::True,
        ..no(
            "AsWanted",
            if wanted == 1 { "1 worker is there".to_owned() } else { format!("{wanted} workers are there") },
        )
    }
}

/// Returns the condition about the shadows: whether a worker can reach other files of the schedd's pod than its job's.
pub(super) fn shadows_said(shadows: ShadowConfinement) -> PoolCondition {
    let no = |message: &str| PoolCondition {
        kind: SHADOWS_CONFINED,
        status: ConditionStatus::False,
        reason: shadows.into(),
        message: format!("{REACH}: {message}"),
    };
    match shadows {
        ShadowConfinement::Confined => PoolCondition {
            status: ConditionStatus::True,
            message: "each shadow reads and writes the files of its own job, and no others".to_owned(),
            ..no("")
        },
        ShadowConfinement::ImageTooOld => no(
            "spec.managed.image has no htc-confine; make the image anew with the Dockerfile of the operator's version, under a new tag (docs/pools.md)",
        ),
        ShadowConfinement::NoLandlock => no(
            "the node's kernel has no Landlock of Linux 5.19 or newer, or the container runtime's seccomp profile does not allow it; run the schedd on another node, or let only namespaces that trust each other use the pool",
        ),
    }
}

/// Consequence of unconfined shadows, for messages.
const REACH: &str = "a payload that replaces its worker's HTCondor may read files of other jobs in the schedd's spool";

/// Returns the condition about the confinement of jobs: the weakest among the workers that HTCondor knows.
pub(super) fn payloads_condition(workers: &BTreeMap<String, PayloadConfinement>) -> PoolCondition {
    let no =
        |reason, message| PoolCondition { kind: PAYLOADS_CONFINED, status: ConditionStatus::False, reason, message };
    let Some(worst) = workers.values().min() else {
        let message = "HTCondor knows no worker".to_owned();
        return PoolCondition { status: ConditionStatus::Unknown, ..no("NoWorkers", message) };
    };
    let named: Vec<&str> = workers.iter().filter(|(_, is)| *is == worst).map(|(name, _)| name.as_str()).collect();
    let more = if named.len() > NAMED { format!(" and {} more", named.len() - NAMED) } else { String::new() };
    let named = format!("{}{more}", named.iter().take(NAMED).copied().collect::<Vec<_>>().join(", "));
    let all = "read the worker's token and the files of its other jobs, and end its daemons";
    let message = match worst {
        PayloadConfinement::Confined => {
            let message = "each job reaches the files and the processes of its own, and no others of its worker";
            return PoolCondition { status: ConditionStatus::True, ..no(worst.into(), message.to_owned()) };
        }
        PayloadConfinement::FilesOnly => format!(
            "jobs on {named} may send signals to the worker's daemons and to its other jobs: the node's kernel has no Landlock of Linux 6.12 or newer"
        ),
        PayloadConfinement::NoLandlock => format!(
            "jobs on {named} may {all}: the node's kernel has no Landlock of Linux 5.19 or newer, or the container runtime's seccomp profile does not allow it. Run workers on other nodes, or let only namespaces that trust each other use the pool"
        ),
        PayloadConfinement::ImageTooOld => format!(
            "jobs on {named} may {all}: spec.managed.image has no htc-job-wrapper, or the worker is older than this operator. Make the image anew with this version's Dockerfile"
        ),
    };
    no(worst.into(), sanitize(&message, 1000))
}

#[cfg(test)]
mod tests {
    use htc_machine::facts::{QueryError, QueryErrorKind};
    use htc_machine::scaling::{EarlyExits, Goal};
    use htcondor::startds::Startds;

    use super::super::error::ApplyError;
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn group(replicas: u32, workers: &[(PodState, SlotState)], answer: AnswerQuality) -> WorkerEvidence {
        let worker = |(number, (pod, slot)): (u32, &(PodState, SlotState))| Worker {
            number,
            pod_state: *pod,
            slot_state: *slot,
            up_to_date: true,
            drain_accepted: false,
        };
        let (goal, workers) = (Goal::Replicas(replicas), (0..).zip(workers).map(worker).collect());
        let (deaths, taken) = (EarlyExits::default(), std::collections::BTreeSet::new());
        WorkerEvidence { now: NOW, goal, workers, answer, deaths, taken_numbers: taken, max_create: u32::MAX }
    }

    fn image(name: &str) -> WorkerGroup {
        WorkerGroup::Shared(SharedGroup { image: name.to_owned(), namespace: None, volumes: String::new() })
    }

    /// The same condition as it is in a status.
    fn old(said: &PoolCondition) -> Condition {
        Condition {
            type_: said.kind.to_owned(),
            status: said.status,
            reason: said.reason.to_owned(),
            message: said.message.clone(),
            last_transition_time: serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap(),
            observed_generation: None,
        }
    }

    fn one(evidence: WorkerEvidence, memory: &WorkerObservations) -> PoolCondition {
        workers_condition(&BTreeMap::from([(image("python:3.12"), evidence)]), &BTreeMap::new(), memory)
    }

    #[test]
    fn workers_condition_follows_the_evidence() {
        let mut memory = WorkerObservations::default();
        let waiting = (PodState::Waiting { since: NOW }, SlotState::Unseen);
        let (busy, idle) = ((PodState::Running, SlotState::Busy), (PodState::Running, SlotState::Idle { since: NOW }));
        let reason = |memory: &WorkerObservations, replicas, workers: &[(PodState, SlotState)], answer| {
            one(group(replicas, workers, answer), memory).reason
        };
        assert_eq!(
            reason(&memory, 2, &[(PodState::Running, SlotState::Unseen), waiting], AnswerQuality::Unknown),
            "Starting"
        );
        assert_eq!(reason(&memory, 2, &[busy, waiting], AnswerQuality::Known), "Starting");
        assert_eq!(reason(&memory, 1, &[busy, waiting], AnswerQuality::Known), "Leaving");
        assert_eq!(
            reason(&memory, 1, &[busy, (PodState::Running, SlotState::Draining)], AnswerQuality::Known),
            "Leaving"
        );
        assert_eq!(reason(&memory, 2, &[busy, idle], AnswerQuality::Known), "AsWanted");
        assert_eq!(reason(&memory, 2, &[busy, idle], AnswerQuality::Young), "CollectorYoung");
        memory.record_answer(Err(QueryError { kind: QueryErrorKind::Incomplete, message: "m".to_owned() }), NOW);
        assert_eq!(reason(&memory, 2, &[busy, idle], AnswerQuality::Unknown), "CollectorSilent");
        memory.record_answer(Ok(Startds::default()), NOW);
        assert_eq!(reason(&memory, 2, &[busy, idle], AnswerQuality::Known), "AsWanted");
    }

    #[test]
    fn refused_pods_are_reported_until_the_next_attempt() {
        let group = || group(1, &[], AnswerQuality::Known);
        let mut memory = WorkerObservations::default();
        memory.refused(&image("python:3.12"), "policy \"user-ids\" denied request", NOW);
        let condition = one(group(), &memory);
        assert_eq!((condition.status, condition.reason), (ConditionStatus::False, CREATE_REFUSED));
        assert!(condition.message.contains("\"user-ids\" denied"), "{}", condition.message);
        memory.forget_refusal(&image("python:3.12"));
        assert_eq!(one(group(), &memory).reason, "Starting");
    }

    #[test]
    fn workers_with_foreign_secrets_are_reported_with_a_remedy() {
        let groups = BTreeMap::from([(
            image("i"),
            group(1, &[(PodState::Waiting { since: NOW }, SlotState::Unseen)], AnswerQuality::Known),
        )]);
        let mut memory = WorkerObservations::default();
        let not_ours = |name: &str| ApplyError::NotOurs { kind: "Secret".to_owned(), name: name.to_owned() };
        memory.has_no_token("u-1".to_owned(), &not_ours("p-worker-ns-n-1"));
        let said = workers_condition(&groups, &BTreeMap::new(), &memory);
        assert_eq!((said.status, said.reason), (ConditionStatus::False, NAME_TAKEN));
        assert!(
            said.message.contains("Secret p-worker-ns-n-1 ") && said.message.contains("delete it"),
            "{}",
            said.message
        );
        let old = old(&said);
        memory.has_no_token("u-2".to_owned(), &not_ours("p-worker-ns-n-2"));
        assert!(!workers_condition(&groups, &BTreeMap::new(), &memory).matches(&old), "another one is named");
        for uid in ["u-1", "u-2"] {
            memory.has_token(uid.to_owned());
        }
        assert_eq!(workers_condition(&groups, &BTreeMap::new(), &memory).reason, "Starting");
    }

    #[test]
    fn unjoined_worker_is_reported_until_enough_are_ready() {
        let (mut memory, busy) = (WorkerObservations::default(), (PodState::Running, SlotState::Busy));
        memory.absences.set_last(image("python:3.12"), "p-worker-7".to_owned());
        let absent = (PodState::Running, SlotState::Absent { confirmed: true });
        let mut evidence = group(2, &[absent, busy], AnswerQuality::Known);
        evidence.deaths = EarlyExits { count: 4, last: NOW };
        let said = one(evidence, &memory);
        assert_eq!((said.status, said.reason), (ConditionStatus::False, "NotJoining"));
        let names = |word: &str| said.message.contains(word);
        assert!(names("p-worker-7") && names("(4 so far)") && names("StartLog"), "{}", said.message);
        assert_eq!(one(group(1, &[absent, busy], AnswerQuality::Known), &memory).reason, "AsWanted");
        assert_eq!(images_condition(&memory).reason, "NoneFails");
        let mut old = old(&said);
        assert!(said.matches(&old));
        old.message = "the worker p-worker-6".to_owned();
        assert!(!said.matches(&old), "it is another worker");
    }

    #[test]
    fn images_are_counted_together_and_a_failing_image_is_named() {
        let idle = (PodState::Running, SlotState::Idle { since: NOW });
        let mut bad = group(1, &[], AnswerQuality::Known);
        bad.deaths = EarlyExits { count: 3, last: NOW };
        let mut groups = BTreeMap::from([
            (image("alpine:3"), bad),
            (image("python:3.12"), group(2, &[idle, (PodState::Running, SlotState::Busy)], AnswerQuality::Known)),
        ]);
        let told_so = workers_condition(&groups, &BTreeMap::new(), &WorkerObservations::default());
        let counted = counts(&groups);
        assert_eq!((counted.ready, counted.busy, told_so.reason), (2, 1, "EndTooSoon"));
        groups.get_mut(&image("alpine:3")).unwrap().deaths.count = 2;
        let told_so = workers_condition(&groups, &BTreeMap::new(), &WorkerObservations::default());
        assert_eq!(told_so.reason, "Starting");
        assert!(told_so.message.contains("2 of 3"), "{}", told_so.message);
        let held = ScalePlan { backoff_until: Some(NOW + 9), ..ScalePlan::default() };
        let told_so =
            workers_condition(&groups, &BTreeMap::from([(image("alpine:3"), held)]), &WorkerObservations::default());
        assert_eq!(told_so.reason, "EndTooSoon");
        assert!(told_so.message.contains("alpine:3") && told_so.message.contains("(2 so far)"), "{}", told_so.message);
    }

    #[test]
    fn failing_image_is_reported_once_with_its_problem() {
        let mut memory = WorkerObservations::default();
        let said = images_condition(&memory);
        assert_eq!((said.status, said.reason), (ConditionStatus::True, "NoneFails"));
        memory.missing_in_image.insert(image("alpine:3"), "the image lacks find".to_owned());
        let said = images_condition(&memory);
        assert_eq!((said.status, said.reason), (ConditionStatus::False, "ImageFails"));
        assert!(said.message.contains("alpine:3: the image lacks find"), "{}", said.message);
        let mut old = old(&said);
        assert!(said.matches(&old));
        old.message.push_str("; another:1: it fails");
        assert!(!said.matches(&old), "another image fails");
        let workers = PoolCondition { kind: WORKERS_READY, ..said };
        assert!(workers.matches(&old), "its numbers are in the status");
    }

    #[test]
    fn unconfined_shadows_are_reported_with_a_remedy() {
        use strum::IntoEnumIterator as _;
        for shadows in ShadowConfinement::iter() {
            let said = shadows_said(shadows);
            assert_eq!(said.reason.parse(), Ok(shadows));
            let confined = shadows == ShadowConfinement::Confined;
            assert_eq!(said.status == ConditionStatus::True, confined);
            assert_ne!(said.message.contains("of other jobs"), confined, "{}", said.message);
        }
    }

    #[test]
    fn least_confined_worker_is_reported_with_a_remedy() {
        let said = |workers: &[(&str, PayloadConfinement)]| {
            payloads_condition(&workers.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect())
        };
        assert_eq!((said(&[]).status, said(&[]).reason), (ConditionStatus::Unknown, "NoWorkers"));
        let confined = said(&[("a", PayloadConfinement::Confined), ("b", PayloadConfinement::Confined)]);
        assert_eq!((confined.status, confined.reason), (ConditionStatus::True, "Confined"));
        for (worst, says) in [
            (PayloadConfinement::FilesOnly, "Linux 6.12"),
            (PayloadConfinement::NoLandlock, "Linux 5.19"),
            (PayloadConfinement::ImageTooOld, "Make the image anew"),
        ] {
            let said = said(&[("a", PayloadConfinement::Confined), ("b", worst), ("c", PayloadConfinement::Confined)]);
            assert_eq!((said.status, said.reason), (ConditionStatus::False, <&str>::from(worst)));
            assert!(said.message.contains("jobs on b may") && said.message.contains(says), "{}", said.message);
        }
        let many: Vec<String> = (0..9).map(|number| format!("w-{number}")).collect();
        let many: Vec<(&str, PayloadConfinement)> =
            many.iter().map(|name| (name.as_str(), PayloadConfinement::NoLandlock)).collect();
        assert!(said(&many).message.contains("w-4 and 4 more"), "{}", said(&many).message);
    }

    #[test]
    fn mini_cluster_workers_are_reported_only_by_their_htcjob() {
        let idle = (PodState::Running, SlotState::Idle { since: NOW });
        let mut own = group(
            3,
            &[idle, (PodState::Running, SlotState::Busy), (PodState::Waiting { since: NOW }, SlotState::Unseen)],
            AnswerQuality::Known,
        );
        let said = |own: &WorkerEvidence, lack| {
            let MiniClusterStatus { workers, ready, busy, message } = mini_cluster_status(Some(own), lack);
            ((workers, ready, busy), message.unwrap_or_default())
        };
        assert_eq!(said(&own, None), ((3, 2, 1), String::new()));
        assert!(said(&own, Some("the image lacks find")).1.contains("the image lacks find"));
        own.deaths = EarlyExits { count: 3, last: NOW };
        assert!(said(&own, None).1.contains("end shortly after"));
        let its = WorkerGroup::HTCJob("u".to_owned());
        let groups = BTreeMap::from([(image("i"), group(1, &[idle], AnswerQuality::Known)), (its.clone(), own)]);
        let mut memory = WorkerObservations::default();
        memory.missing_in_image.insert(its, "the image lacks find".to_owned());
        assert_eq!(workers_condition(&groups, &BTreeMap::new(), &memory).reason, "AsWanted");
        assert_eq!((counts(&groups).replicas, images_condition(&memory).reason), (1, "NoneFails"));
        assert_eq!(mini_cluster_status(None, None), MiniClusterStatus::default());
    }
}
