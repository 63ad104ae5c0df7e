//! Pods in a queue: as many at a time as there is room for, whatever is seen late.

use htc_machine::facts::{QueueFacts, QueueKind, QueueWait};
use htc_machine::pods::progress as pods_progress;
use htc_machine::pods::{concurrency, concurrency_after, quota_usage};
use htc_machine::progress::Progress;
use htc_machine::quota_usage::{Concurrency, QuotaUsage};
use rstest::rstest;

use super::*;

fn in_queue() -> QueueFacts {
    QueueFacts { queue: "q".to_owned(), ..QueueFacts::default() }
}

fn set(text: &str) -> Indices {
    text.parse().unwrap()
}

/// With its Job recorded, suspended and as the Job controller has left it, and this room.
fn queued(queue: u32, granted: Option<&str>) -> PodsFacts {
    let mut facts = guarded(queue);
    facts.queue = Some(in_queue());
    facts.job = JobObservation::Ours(BatchJob { parallelism: Some(queue), stopped: true, ..job("j") });
    step(&mut facts);
    if let Some(granted) = granted {
        (facts.record.granting_queue, facts.record.granted) = (Some("q".to_owned()), set(granted));
    }
    facts
}

fn resumed(parallelism: u32) -> BatchJob {
    BatchJob { suspended: false, parallelism: Some(parallelism), started: Some(NOW), active: parallelism, ..job("j") }
}

fn room_of(facts: &PodsFacts) -> QuotaUsage {
    quota_usage(facts, &decide(facts))
}

fn has(facts: &PodsFacts) -> [String; 3] {
    let QuotaUsage { used: uses, requested: asks, returned: gives_back, .. } = room_of(facts);
    [uses, asks, gives_back].map(|set| set.to_string())
}

fn texts(all: [&str; 3]) -> [String; 3] {
    all.map(str::to_owned)
}

/// None if the Job stays as it is, else `suspend` and `parallelism`.
fn wants(facts: &PodsFacts) -> Option<(bool, u32)> {
    match decide(facts).action {
        PodsAction::UpdateJob(_, DesiredJob { suspend, parallelism, .. }) => Some((suspend, parallelism)),
        _ => None,
    }
}

#[rstest]
// It has had no room yet: somebody has resumed it by hand.
#[case(None, true, 4, None)]
#[case(None, false, 4, Some((true, 4)))]
#[case(Some(""), true, 4, None)]
#[case(Some("0-1"), true, 4, Some((false, 2)))]
#[case(Some("0-3"), true, 4, Some((false, 4)))]
#[case(Some("0-1"), false, 2, None)]
#[case(Some("0-2"), false, 2, Some((false, 3)))]
// It was changed by hand.
#[case(Some("0-1"), false, 4, Some((false, 2)))]
#[case(Some(""), false, 4, Some((true, 4)))]
fn parallelism_is_bounded_by_granted_quota(
    #[case] granted: Option<&str>,
    #[case] suspended: bool,
    #[case] parallelism: u32,
    #[case] wanted: Option<(bool, u32)>,
) {
    let mut facts = queued(4, granted);
    let suspended_job = BatchJob { parallelism: Some(parallelism), stopped: true, ..job("j") };
    facts.job = JobObservation::Ours(if suspended { suspended_job } else { resumed(parallelism) });
    assert_eq!(wants(&facts), wanted);
    facts.queue = None;
    let all = (!suspended && parallelism == 4).then_some(()).map_or(Some((false, 4)), |()| None);
    assert_eq!(wants(&facts), all, "in no queue");
}

#[test]
fn only_a_job_that_ran_before_the_queue_is_grandfathered() {
    let mut ran = begun(4);
    ran.job = JobObservation::Ours(resumed(4));
    step(&mut ran);
    ran.queue = Some(in_queue());
    assert!(wants(&ran).is_none() && room_of(&ran).grandfathered);
    step(&mut ran);
    assert!(is_said(&ran, ConditionType::QuotaReserved, ConditionStatus::True, Reason::QuotaReserved));
    assert!(wants(&ran).is_none() && room_of(&ran).grandfathered, "nor later");

    for suspend in [false, true] {
        let mut facts = guarded(4);
        facts.queue = Some(in_queue());
        facts.object.spec = Ok(Spec { suspend, ..spec(4) });
        // Before its Job is recorded, or afterwards.
        facts.job = JobObservation::Ours(resumed(4));
        assert!(!room_of(&facts).grandfathered);
        step(&mut facts);
        assert_eq!((wants(&facts), room_of(&facts).grandfathered), (Some((true, 4)), false), "{suspend}");
        assert_eq!(says(&facts, ConditionType::QuotaReserved).unwrap().0, ConditionStatus::False);
    }
}

#[test]
fn job_that_cannot_run_requests_no_quota() {
    let waits = queued(4, None);
    assert_eq!((has(&waits), concurrency(&waits).wanted), (texts(["", "0-3", ""]), 4));
    let but = |change: &dyn Fn(&mut PodsFacts)| {
        let mut facts = waits.clone();
        change(&mut facts);
        assert_eq!(concurrency(&facts).wanted, 0, "of the namespace, which is asked before it is decided");
        has(&facts)
    };
    let stopped = || BatchJob { parallelism: Some(4), stopped: true, ..job("j") };
    let nothing = texts(["", "", ""]);
    assert_eq!(but(&|facts| facts.object.deleting = true), nothing);
    assert_eq!(but(&|facts| facts.object.claim = Claim::Other), nothing, "another operator's");
    assert_eq!(but(&|facts| facts.object.spec = Ok(Spec { suspend: true, ..spec(4) })), nothing);
    let refused = Some(SpecRefused::invalid("no"));
    assert_eq!(but(&|facts| facts.object.spec = Ok(Spec { refused: refused.clone(), ..spec(4) })), nothing);
    assert_eq!(but(&|facts| facts.job = JobObservation::Ours(BatchJob { deleting: true, ..stopped() })), nothing);
    let failing = Some(Exceeded::Deadline);
    assert_eq!(but(&|facts| facts.job = JobObservation::Ours(BatchJob { failing, ..stopped() })), nothing);
}

#[test]
fn quota_is_requested_and_released_with_remaining_jobs() {
    let mut facts = queued(6, None);
    assert_eq!(has(&facts), texts(["", "0-5", ""]));
    facts.object.spec = Ok(Spec { parallelism: Some(3), ..spec(6) });
    assert_eq!(has(&facts), texts(["", "0-2", ""]));
    let mut facts = PodsFacts { record: queued(6, Some("0-1")).record, ..facts };
    assert_eq!(has(&facts), texts(["", "2", ""]));
    facts.job = JobObservation::Ours(resumed(2));
    assert_eq!(has(&facts), texts(["0-1", "2", ""]));
    // One that ends is followed by another in its place.
    facts.job = JobObservation::Ours(BatchJob { succeeded: set("0-3"), ..resumed(2) });
    assert_eq!((has(&facts), wants(&facts)), (texts(["0-1", "", ""]), None));
    facts.job = JobObservation::Ours(BatchJob { succeeded: set("0-3"), failed: set("5"), active: 1, ..resumed(2) });
    assert_eq!((has(&facts), wants(&facts)), (texts(["0", "", "1"]), None));
    facts.job = JobObservation::Ours(BatchJob { succeeded: set("0-5"), end: Some(JobEnd::Complete), ..resumed(2) });
    assert_eq!(has(&facts), texts(["", "", "0-1"]));
}

#[test]
fn suspended_job_releases_quota_once_its_pods_are_gone() {
    let mut facts = queued(2, Some("0-1"));
    facts.job = JobObservation::Ours(BatchJob { started: None, ..resumed(2) });
    facts.object.spec = Ok(Spec { suspend: true, ..spec(2) });
    assert_eq!(wants(&facts), None, "the Job controller has not seen yet that it was resumed");
    facts.job = JobObservation::Ours(resumed(2));
    assert_eq!((wants(&facts), has(&facts)), (Some((true, 2)), texts(["0-1", "", ""])));
    let suspended = BatchJob { suspended: true, ..resumed(2) };
    for (job, back) in [
        (suspended.clone(), ""),
        (BatchJob { active: 0, ..suspended.clone() }, ""),
        (BatchJob { active: 0, stopped: true, terminating: 1, ..suspended.clone() }, "1"),
        (BatchJob { active: 0, stopped: true, ..suspended.clone() }, "0-1"),
    ] {
        facts.job = JobObservation::Ours(job.clone());
        assert_eq!(has(&facts)[2], back, "{job:?}");
    }
    facts.pods = PodsObservation::Known(BTreeMap::from([(Index(1), pod(PodPhase::Running, None))]));
    assert_eq!(has(&facts)[2], "1", "its Pod is still seen");
}

#[test]
fn deleted_job_keeps_its_quota_while_its_pods_exist() {
    for (left, back) in [(LeftoverPods::Unknown, ""), (LeftoverPods::Some, ""), (LeftoverPods::None, "0-1")] {
        let mut facts = queued(2, Some("0-1"));
        (facts.job, facts.leftover_pods) = (JobObservation::Absent, left);
        let decision = step(&mut facts);
        assert_eq!(phase(&facts), Phase::Completed);
        assert_eq!(quota_usage(&facts, &decision).returned.to_string(), back, "{left:?}");
        assert!(decide(&facts).requeue_after.is_some());
    }
}

#[test]
fn unknown_job_counts_fully_unless_its_quota_is_recorded() {
    let unknown = JobObservation::Unknown("?".to_owned());
    let facts = PodsFacts { job: unknown.clone(), ..queued(3, None) };
    let QuotaUsage { used: uses, usage_unknown: is_unknown, grandfathered: keeps_what_it_uses, .. } = room_of(&facts);
    assert_eq!((uses.to_string(), is_unknown, keeps_what_it_uses), ("0-2".to_owned(), true, false));
    let facts = PodsFacts { job: unknown.clone(), ..queued(3, Some("0-1")) };
    let QuotaUsage {
        used: uses,
        usage_unknown: is_unknown,
        grandfathered: keeps_what_it_uses,
        returned: gives_back,
        ..
    } = room_of(&facts);
    assert_eq!((uses.to_string(), is_unknown, keeps_what_it_uses), ("0-1".to_owned(), false, false));
    assert!(gives_back.is_empty());
    let facts = PodsFacts { job: unknown, queue: Some(in_queue()), ..guarded(3) };
    assert_eq!(has(&facts), texts(["", "", ""]), "a new one has no Pods");
}

#[rstest]
#[case(0, Some((true, 4)), true)]
#[case(3, Some((false, 3)), true)]
#[case(4, Some((false, 4)), false)]
fn namespace_limit_bounds_parallelism(#[case] most: usize, #[case] wanted: Option<(bool, u32)>, #[case] told: bool) {
    let mut facts = begun(4);
    facts.namespace_limit = Some(most);
    let resumes = if most == 0 { None } else { wanted };
    assert_eq!(wants(&facts), resumes, "it is suspended");
    facts.job = JobObservation::Ours(resumed(4));
    let changed = if most == 4 { None } else { wanted };
    assert_eq!(wants(&facts), changed);
    step(&mut facts);
    assert_eq!(is_said(&facts, ConditionType::Submitted, ConditionStatus::False, Reason::NamespaceLimitReached), told);
    assert_eq!(concurrency(&facts), Concurrency { current: Some(4), wanted: 4 });
    facts.job = JobObservation::Ours(BatchJob { parallelism: Some(4), ..job("j") });
    let decision = decide(&facts);
    assert_eq!(concurrency_after(&facts, &decision), Some(most), "the change made now counts");
}

#[test]
fn quota_reserved_condition_follows_the_queue() {
    let is = |facts: &PodsFacts, status, reason| is_said(facts, ConditionType::QuotaReserved, status, reason);
    let mut facts = queued(2, None);
    step(&mut facts);
    assert!(is(&facts, ConditionStatus::False, Reason::Waiting));
    let wait = QueueWait { reason: Reason::WaitingForQuota, message: "wait".to_owned(), position: Some(1) };
    facts.queue = Some(QueueFacts { wait: Some(wait), ..in_queue() });
    let decision = step(&mut facts);
    assert!(is(&facts, ConditionStatus::False, Reason::WaitingForQuota));
    assert!(decision.transitions.last().is_some_and(|told| !told.warning && told.reason == "WaitingForQuota"));
    (facts.record.granting_queue, facts.record.granted) = (Some("q".to_owned()), set("0"));
    step(&mut facts);
    assert!(is(&facts, ConditionStatus::True, Reason::QuotaReserved));
    facts.record.granted = set("");
    facts.queue = Some(QueueFacts { drained: true, ..in_queue() });
    facts.object.spec = Ok(Spec { suspend: true, ..spec(2) });
    step(&mut facts);
    assert!(is(&facts, ConditionStatus::False, Reason::QueueStopped));
    facts.queue = None;
    step(&mut facts);
    assert!(is(&facts, ConditionStatus::True, Reason::NoQueue));
}

/// What runs goes on, also where it has room for more, and what is suspended stays so.
#[rstest]
#[case("0-3", 2, None)]
#[case("0-1", 2, None)]
#[case("0", 2, Some((false, 1)))]
#[case("", 2, Some((true, 2)))]
fn missing_queue_adds_no_pod(#[case] granted: &str, #[case] runs: u32, #[case] wanted: Option<(bool, u32)>) {
    let mut facts = queued(4, Some(granted));
    let wait = QueueWait { reason: Reason::Misconfigured, message: "it is gone".to_owned(), position: None };
    facts.queue = Some(QueueFacts { closed: true, wait: Some(wait), ..in_queue() });
    assert_eq!(wants(&facts), None, "it stays suspended");
    facts.job = JobObservation::Ours(resumed(runs));
    assert_eq!(wants(&facts), wanted);
}

#[test]
fn last_queue_of_pods_is_recorded() {
    let kept = |facts: &PodsFacts| decide(facts).after.unwrap().row.unwrap().last_queue;
    let mut facts = queued(2, None);
    assert_eq!(kept(&facts).as_deref(), Some("q"));
    facts.record.row.as_mut().unwrap().last_queue = None;
    facts.queue = Some(QueueFacts { closed: true, ..in_queue() });
    assert_eq!(kept(&facts), None);
}

/// What is evicted stays suspended, and is told why, until Kueue admits it again.
#[test]
fn eviction_by_kueue_is_reported() {
    let local = |wait: Option<(Reason, &str)>, drained| {
        let waits = wait.map(|(reason, message)| QueueWait { reason, message: message.to_owned(), position: None });
        Some(QueueFacts { kind: QueueKind::LocalQueue, queue: "q".to_owned(), wait: waits, drained, closed: false })
    };
    let is = |facts: &PodsFacts, status, reason| is_said(facts, ConditionType::QuotaReserved, status, reason);
    let mut facts = queued(1, Some("0"));
    facts.job = JobObservation::Ours(resumed(1));
    facts.queue = local(Some((Reason::PendingEvaluation, "Kueue evicts it")), true);
    facts.object.spec = Ok(Spec { suspend: true, ..spec(1) });
    assert_eq!(wants(&facts), Some((true, 1)));
    step(&mut facts);
    assert!(is(&facts, ConditionStatus::True, Reason::QuotaReserved), "its Pods are there");
    let suspended = |facts: &PodsFacts| {
        let known = facts.record.row.as_ref().unwrap();
        let told = known.conditions.iter().find(|told| told.kind == ConditionType::Suspended).unwrap();
        (told.status, told.message.clone())
    };
    let (_, message) = suspended(&facts);
    assert!(message.starts_with("Kueue evicts it: "), "{message}");
    facts.record.granted = set("");
    facts.job = JobObservation::Ours(BatchJob { suspended: true, stopped: true, active: 0, ..resumed(1) });
    facts.queue = local(None, true);
    step(&mut facts);
    assert!(is(&facts, ConditionStatus::True, Reason::QuotaReserved), "nothing is known");
    facts.queue = local(Some((Reason::WaitingForQuota, "wait")), true);
    step(&mut facts);
    assert!(is(&facts, ConditionStatus::False, Reason::WaitingForQuota));
    (facts.queue, facts.object.spec) = (local(None, false), Ok(spec(1)));
    step(&mut facts);
    assert_eq!(
        suspended(&facts),
        (ConditionStatus::False, "spec.suspend is false, and Kueue admits the HTCJob".to_owned())
    );
}

fn progress(facts: &PodsFacts) -> Option<Progress> {
    let decision = decide(facts);
    pods_progress(facts, &decision, &quota_usage(facts, &decision), false)
}

#[test]
fn progress_for_kueue_counts_unfinished_jobs() {
    let told = |facts: &PodsFacts| progress(facts).map(|told| (told.unfinished, told.accepted, told.ended)).unwrap();
    assert_eq!(progress(&guarded(3)), None, "its Job is not created yet");
    let mut facts = queued(3, Some("0-1"));
    facts.object.spec = Ok(Spec { parallelism: Some(2), ..spec(3) });
    let first = progress(&facts).unwrap();
    assert!((first.at_a_time, first.unfinished, first.accepted, first.ended) == (2, 3, false, None) && !first.deleting);
    let runs = |facts: &mut PodsFacts, pods: &[(u32, PodPhase)]| {
        let pods = pods.iter().map(|(index, phase)| (Index(*index), pod(phase.clone(), None)));
        facts.pods = PodsObservation::Known(pods.collect());
    };
    facts.job = JobObservation::Ours(resumed(2));
    runs(&mut facts, &[(0, PodPhase::Running), (1, PodPhase::Pending(None))]);
    assert_eq!(told(&facts), (3, false, None), "one of two has started");
    runs(&mut facts, &[(0, PodPhase::Running), (1, PodPhase::Running)]);
    assert_eq!(told(&facts), (3, true, None));
    // One is over: the last but one begins.
    let one_over = BatchJob { succeeded: set("0"), ..resumed(2) };
    facts.job = JobObservation::Ours(one_over.clone());
    runs(&mut facts, &[(1, PodPhase::Running), (2, PodPhase::Pending(None))]);
    assert_eq!(told(&facts), (2, true, None), "ended jobs had started");
    // A Pod that is being deleted counts, also if its index is over.
    facts.job = JobObservation::Ours(BatchJob { succeeded: set("0-1"), active: 1, terminating: 1, ..one_over.clone() });
    assert_eq!(told(&facts).0, 2);
    facts.job = JobObservation::Ours(BatchJob { succeeded: set("0-1"), active: 1, ..one_over.clone() });
    assert_eq!(told(&facts).0, 1);
    // What is cut short has only what is left of it.
    facts.job = JobObservation::Ours(BatchJob { failing: Some(Exceeded::Deadline), active: 1, ..one_over });
    runs(&mut facts, &[(1, PodPhase::Running)]);
    assert_eq!(told(&facts).0, 2, "its Job may still make another");
    let over = |failed: &str, end| BatchJob {
        succeeded: set("0-1"),
        failed: set(failed),
        end: Some(end),
        active: 0,
        ..resumed(2)
    };
    facts.job = JobObservation::Ours(BatchJob { succeeded: set("0-2"), ..over("", JobEnd::Complete) });
    assert_eq!(told(&facts), (0, false, Some(false)));
    facts.job = JobObservation::Ours(over("2", JobEnd::Failed { exceeded: None, message: String::new() }));
    assert_eq!(told(&facts).2, Some(true));
    // Without room nothing has started, whatever ran before.
    facts.job = JobObservation::Ours(BatchJob { succeeded: set("0"), started: Some(NOW), stopped: true, ..job("j") });
    facts.record.granted = set("");
    assert_eq!(told(&facts), (2, false, None));
    facts.object.deleting = true;
    assert!(progress(&facts).is_some_and(|told| told.deleting));
}

/// Neither of two gates holds what the other one gives.
#[test]
fn jobs_over_the_namespace_limit_request_no_quota() {
    let mut facts = queued(4, Some("0-3"));
    let shares = |facts: &PodsFacts| {
        let QuotaUsage { requested: asks, returned: gives_back, .. } = quota_usage(facts, &decide(facts));
        [asks, gives_back].map(|set| set.to_string())
    };
    facts.namespace_limit = Some(1);
    assert_eq!(shares(&facts), ["", "1-3"]);
    facts.namespace_limit = Some(0);
    assert_eq!(shares(&facts), ["", "0-3"]);
    facts.record.granted = set("");
    assert_eq!(shares(&facts), ["", ""]);
    step(&mut facts);
    assert!(is_said(&facts, ConditionType::Submitted, ConditionStatus::False, Reason::NamespaceLimitReached));
    assert!(is_said(&facts, ConditionType::QuotaReserved, ConditionStatus::False, Reason::Waiting));
    facts.namespace_limit = Some(2);
    assert_eq!(shares(&facts), ["0-1", ""]);
    // What runs goes on.
    facts.record.granted = set("0-3");
    (facts.job, facts.namespace_limit) = (JobObservation::Ours(resumed(4)), Some(1));
    assert_eq!(shares(&facts), ["", ""]);
}

/// A controller that has not seen a smaller number makes as many Pods as before.
#[test]
fn lowered_parallelism_releases_quota_once_observed() {
    let mut facts = queued(6, Some("0-3"));
    facts.object.spec = Ok(Spec { parallelism: Some(2), ..spec(6) });
    let gives_back = |facts: &PodsFacts| quota_usage(facts, &decide(facts)).returned.to_string();
    facts.job = JobObservation::Ours(BatchJob { active: 0, settled: false, ..resumed(2) });
    assert_eq!(gives_back(&facts), "");
    facts.job = JobObservation::Ours(BatchJob { active: 2, terminating: 1, ..resumed(2) });
    assert_eq!(gives_back(&facts), "3", "one is being deleted");
    facts.job = JobObservation::Ours(resumed(2));
    assert_eq!(gives_back(&facts), "2-3");
}

/// A Job with its controller, which looks when it likes, and its Pods.
#[derive(Clone, Debug, Default)]
struct World {
    facts: Option<PodsFacts>,
    /// As it is: `suspend` and `parallelism`.
    spec: (bool, u32),
    /// As its controller has it.
    cached: (bool, u32),
    status: BatchStatus,
    /// Which of the Job's specs it is, which its controller has seen, and which its status was written for.
    generation: u32,
    cached_generation: u32,
    status_generation: u32,
    live: BTreeSet<u32>,
    terminating: BTreeSet<u32>,
    over: BTreeSet<u32>,
    deleted: bool,
    room: QuotaUsage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BatchStatus {
    started: bool,
    stopped: bool,
    active: u32,
    terminating: u32,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The operator looks; it sees the Pods or not yet.
    Look(bool),
    /// News of the Job arrive.
    Watch,
    Controller,
    Cache,
    PodEnds(u32),
    PodGoes,
    Suspend(bool),
    Parallelism(u32),
    DeleteJob,
    Grant,
}

const JOBS: u32 = 4;

impl World {
    fn new() -> Self {
        let mut facts = guarded(JOBS);
        facts.queue = Some(in_queue());
        let mut world = Self { spec: (true, JOBS), cached: (true, JOBS), ..Self::default() };
        facts.job = world.shown();
        world.facts = Some(facts);
        world
    }

    fn pods(&self) -> usize {
        self.live.len() + self.terminating.len()
    }

    /// The Job as the API server has it.
    fn shown(&self) -> JobObservation {
        let BatchStatus { started, stopped, active, terminating } = self.status;
        let complete = self.over.len() == JOBS as usize && self.pods() == 0;
        JobObservation::Ours(BatchJob {
            suspended: self.spec.0,
            parallelism: Some(self.spec.1),
            started: started.then_some(NOW),
            stopped,
            active,
            terminating,
            settled: self.status_generation == self.generation,
            succeeded: self.over.iter().copied().map(Index).collect(),
            end: complete.then_some(JobEnd::Complete),
            ..job("j")
        })
    }

    fn in_use(&self) -> usize {
        let granted = self.facts.as_ref().unwrap().record.granted.clone();
        Indices::union(&[granted, self.room.used.clone()]).len()
    }

    fn step(&mut self, now: Step) {
        let mut facts = self.facts.take().unwrap();
        match now {
            Step::Look(pods) => {
                let seen = self.live.iter().filter(|_| pods);
                let seen = seen.map(|index| (Index(*index), pod(PodPhase::Running, None))).collect();
                facts.pods = PodsObservation::Known(seen);
                // This is asked for.
                facts.leftover_pods = if self.pods() == 0 { LeftoverPods::None } else { LeftoverPods::Some };
                let decision = step(&mut facts);
                self.room = quota_usage(&facts, &decision);
                facts.record.granted = facts.record.granted.without(&self.room.returned);
                if let PodsAction::UpdateJob(_, DesiredJob { suspend, parallelism, .. }) = decision.action
                    && !self.deleted
                {
                    self.spec = (suspend, parallelism);
                    self.generation += 1;
                    facts.job = self.shown();
                }
            }
            Step::Watch => facts.job = if self.deleted { JobObservation::Absent } else { self.shown() },
            Step::Controller if !self.deleted => self.control(),
            Step::Cache => (self.cached, self.cached_generation) = (self.spec, self.generation),
            Step::PodEnds(index) if self.live.remove(&index) => drop(self.over.insert(index)),
            Step::PodGoes => drop(self.terminating.pop_first()),
            Step::Suspend(suspend) => {
                let spec = facts.object.spec.clone().unwrap();
                facts.object.spec = Ok(Spec { suspend, ..spec });
            }
            Step::Parallelism(most) => {
                let spec = facts.object.spec.clone().unwrap();
                facts.object.spec = Ok(Spec { parallelism: Some(most), ..spec });
            }
            Step::DeleteJob => self.deleted = true,
            Step::Controller | Step::PodEnds(_) | Step::Grant => {}
        }
        self.facts = Some(facts);
    }

    /// As the Job controller does: by what it has seen of the Job and, exactly, of its Pods.
    fn control(&mut self) {
        let (suspend, parallelism) = self.cached;
        let wanted = if suspend { 0 } else { parallelism as usize };
        while self.live.len() > wanted {
            let last = self.live.pop_last().unwrap();
            self.terminating.insert(last);
        }
        let busy =
            |index: &u32| self.live.contains(index) || self.terminating.contains(index) || self.over.contains(index);
        let free: Vec<u32> = (0..JOBS).filter(|index| !busy(index)).collect();
        let more = wanted.saturating_sub(self.pods());
        self.live.extend(free.into_iter().take(more));
        let started = self.status.started || !suspend;
        let count = |pods: &BTreeSet<u32>| u32::try_from(pods.len()).unwrap();
        let status =
            BatchStatus { started, stopped: suspend, active: count(&self.live), terminating: count(&self.terminating) };
        // The API server refuses what was made of an older Job; and what stays the same is not written.
        if self.cached_generation == self.generation && status != self.status {
            (self.status, self.status_generation) = (status, self.generation);
        }
    }
}

fn steps() -> impl Strategy<Value = (bool, Step)> {
    let step = prop_oneof![
        8 => any::<bool>().prop_map(Step::Look),
        6 => Just(Step::Watch),
        6 => Just(Step::Controller),
        6 => Just(Step::Cache),
        4 => (0..JOBS).prop_map(Step::PodEnds),
        4 => Just(Step::PodGoes),
        2 => any::<bool>().prop_map(Step::Suspend),
        3 => (0..=JOBS).prop_map(Step::Parallelism),
        1 => Just(Step::DeleteJob),
        8 => Just(Step::Grant),
    ];
    (any::<bool>(), step)
}

/// The queue gives one of them what it asks for, as far as there is room.
fn grant(worlds: &mut [World; 2], place: usize, quota: usize) {
    let free = quota.saturating_sub(worlds.iter().map(World::in_use).sum());
    let world = &mut worlds[place];
    let record = &mut world.facts.as_mut().unwrap().record;
    let asks = world.room.requested.without(&record.granted).take(free);
    if !asks.is_empty() {
        record.granting_queue = Some("q".to_owned());
        record.granted = Indices::union(&[record.granted.clone(), asks]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// Two of them in one queue: whatever is seen late, there are no more Pods than the queue gives, and none is forgotten.
    #[test]
    fn pods_never_exceed_their_quota(all in proptest::collection::vec(steps(), 1..120), quota in 1_usize..5) {
        let mut worlds = [World::new(), World::new()];
        for (second, now) in all {
            let place = usize::from(second);
            if matches!(now, Step::Grant) {
                grant(&mut worlds, place, quota);
            }
            worlds[place].step(now);
            let pods: usize = worlds.iter().map(World::pods).sum();
            prop_assert!(pods <= quota, "{now:?}: {worlds:#?}");
        }
        // Once all is seen, the room is used, or nobody wants it. Where nothing changes but the spec there is no status until a Pod ends.
        for turn in 0..40 {
            for place in 0..2 {
                if let JobObservation::Ours(BatchJob { settled: false, .. }) = worlds[place].shown() && turn == 10 {
                    let first = worlds[place].live.first().copied();
                    worlds[place].step(first.map_or(Step::Watch, Step::PodEnds));
                }
                // Pods that a deleted Job has left end.
                if worlds[place].deleted {
                    worlds[place].live.clear();
                }
                for now in [Step::Cache, Step::Controller, Step::PodGoes, Step::Watch, Step::Look(true)] {
                    worlds[place].step(now);
                }
                grant(&mut worlds, place, quota);
            }
        }
        let pods: usize = worlds.iter().map(World::pods).sum();
        let waits = worlds.iter().any(|world| !world.room.requested.is_empty());
        prop_assert!(pods == quota || !waits, "{pods} of {quota}: {worlds:#?}");
    }
}
