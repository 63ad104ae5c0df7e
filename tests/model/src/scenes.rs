//! With all rules in force every promise holds, within these bounds.

use Trouble::{
    BlindLook, BlindLookAtOne, Crash, Deadline, DyingNode, DyingSubmitter, Evict, FailingTool, HalfSubmission,
    HangingTransfer, Lapse, LimitPasses, LingeringRemoval, LostAnswer, LostLedger, LostWrite, NewItems, NoTrace,
    NodeFault, OldLedger, OldObjects, OtherName, OtherSchedd, Parallelism, QueueGoes, RemovedByHand, Reset, Rotation,
    SecondOperator, Silence, SlowLook, SlowReconcile, SlowStaging, SlowSubmitter, StagingFails, StaleCache, Suspend,
    Wish,
};
use htc_machine::Rules;

use crate::bounds::{GoOperator, Refusal, Scene, Trouble};
use crate::steps::Model;
use crate::{explore, full};

/// Reasons of conditions that ask an admin what to do.
const ADMIN: &[&str] = &["HistoryTooShort", "JobsLost", "QueueLost"];

/// And that items were lost, with a ledger.
const LOST_ITEMS: &[&str] = &["HistoryTooShort", "JobsLost", "QueueLost", "InvalidSpec"];

fn holds(scene: &Scene) {
    let scene = Scene { troubles: scene.troubles + u8::from(full() && !scene.kinds.is_empty()), ..scene.clone() };
    let found = explore(Model::new(scene.clone(), Rules::ALL));
    eprintln!(
        "{}: {} jobs, {} troubles of {:?}: {} states{}, {} steps deep, {:.1} s",
        scene.name,
        scene.queues.iter().map(u32::to_string).collect::<Vec<_>>().join(" and "),
        scene.troubles,
        scene.kinds,
        found.states,
        if found.complete { "" } else { " (stopped there: not all)" },
        found.depth,
        found.seconds
    );
    let stories: Vec<String> =
        found.stories.iter().map(|(promise, story)| format!("not so: {promise}\n{}", story.join("\n"))).collect();
    assert!(stories.is_empty(), "{}: {}", scene.name, stories.join("\n"));
    assert!(found.complete || full(), "{}: the bounds are too wide", scene.name);
}

#[test]
fn undisturbed() {
    holds(&Scene::new("undisturbed", &[1, 1], 0, &[]));
    holds(&Scene { slow_jobs: true, ..Scene::new("slow jobs", &[2], 0, &[]) });
    holds(&Scene { leaves_when_fetched: false, creates: true, ..Scene::new("23.9", &[1], 0, &[]) });
}

/// Every kind of trouble but those of ledgers, one at a time.
#[test]
fn any_single_fault() {
    let kinds = &[
        Crash,
        SlowSubmitter,
        SlowStaging,
        DyingSubmitter,
        LimitPasses,
        RemovedByHand,
        LingeringRemoval,
        FailingTool,
        HangingTransfer,
        Lapse,
        LostAnswer,
        Silence,
        SlowLook,
        OtherSchedd,
        SlowReconcile,
        StaleCache,
        LostWrite,
        Rotation,
        Reset,
        Suspend,
        Deadline,
    ];
    let scene = Scene { slow_tools: true, creates: true, ..Scene::new("any one trouble", &[1], 1, kinds) };
    holds(&Scene { admins: ADMIN, ..scene });
}

#[test]
fn submitters() {
    let kinds = &[SlowSubmitter, SlowStaging, DyingSubmitter, StagingFails, LimitPasses];
    holds(&Scene::new("submitters", &[1], 2, kinds));
    let late = Scene::new("a Lease renewed late", &[1], 2, &[DyingSubmitter, Lapse]);
    holds(&Scene { old_history: false, ..late });
    let orphans = Scene::new("orphans", &[1], 2, &[Crash, SlowSubmitter, LimitPasses]);
    holds(&Scene { in_step: !full(), ..orphans });
    let halves = Scene::new("half submissions", &[2], 1 + u8::from(full()), &[Crash, HalfSubmission]);
    holds(&Scene { in_step: !full(), ..halves });
    let deadline = &[Deadline, Crash, SlowSubmitter, SlowStaging];
    holds(&Scene { slow_jobs: true, in_step: !full(), ..Scene::new("deadlines", &[1], 2, deadline) });
}

/// Some jobs wait until others have ended, and some are not asked for.
#[test]
fn parts() {
    let parts = |name, troubles, kinds| {
        let scene = Scene::new(name, &[2], troubles, kinds);
        Scene { parallelism: Some(1), in_step: !full(), ..scene }
    };
    holds(&Scene { slow_jobs: true, ..parts("one at a time", 0, &[]) });
    holds(&parts("one at a time and crashes", 1, &[Crash, LostAnswer]));
    holds(&parts("one at a time and submitters", 1, &[SlowSubmitter, SlowStaging, DyingSubmitter, LimitPasses]));
    holds(&Scene { deletes: 0, ..parts("one at a time and deadlines", 2, &[Deadline, SlowStaging]) });
    holds(&Scene {
        admins: ADMIN,
        ..parts("one at a time and other hands", 1, &[RemovedByHand, Suspend, Rotation, Reset])
    });
    holds(&Scene {
        not_the_first: true,
        parallelism: None,
        ..parts("not all of the queue", 1, &[Crash, SlowSubmitter])
    });
}

/// And how many may run at a time changes while they do.
#[test]
fn parts_that_change() {
    let scene = Scene::new("one at a time, none, and two", &[2], 2, &[Parallelism]);
    holds(&Scene { parallelism: Some(1), deletes: 0, in_step: true, ..scene });
    if full() {
        let scene = Scene::new("parallelism that changes, and crashes", &[2], 2, &[Parallelism, Crash]);
        holds(&Scene { parallelism: Some(1), deletes: 0, in_step: true, ..scene });
    }
}

/// Items come from a ConfigMap that a user changes at any time.
#[test]
fn items() {
    let items = |name, troubles, kinds| Scene { items: true, deletes: 0, ..Scene::new(name, &[1], troubles, kinds) };
    holds(&Scene { deletes: 1, creates: true, ..items("items", 1, &[NewItems, Crash]) });
    holds(&items("items and submitters", 2, &[NewItems, DyingSubmitter, SlowSubmitter, Crash]));
    holds(&Scene {
        queues: &[2],
        parallelism: Some(1),
        in_step: true,
        ..items("items in parts", 1 + u8::from(full()), &[NewItems, Crash])
    });
    let lost = items("items and a lost ledger", 2, &[NewItems, LostLedger]);
    holds(&Scene { queues: &[2], parallelism: Some(1), in_step: true, admins: LOST_ITEMS, ..lost });
    if full() {
        let old = items("items and an old ledger", 2, &[NewItems, OldLedger]);
        holds(&Scene { admins: LOST_ITEMS, in_step: true, ..old });
    }
}

const fn wish(name: &'static str, troubles: u8, kinds: &'static [Trouble]) -> Scene {
    Scene { deletes: 0, ..Scene::new(name, &[1], troubles, kinds) }
}

/// Users hold, release and remove single jobs, at any time.
#[test]
fn requested_actions() {
    holds(&Scene { slow_jobs: true, ..wish("wishes", 2, &[Wish]) });
    holds(&Scene { in_step: !full(), ..wish("wishes and crashes", 2, &[Wish, Crash]) });
    holds(&wish("wishes and submitters", 2, &[Wish, SlowSubmitter, SlowStaging, DyingSubmitter]));
}

#[test]
fn requested_actions_beside_faults() {
    holds(&Scene { slow_tools: true, ..wish("wishes and tools", 2, &[Wish, FailingTool, LostAnswer]) });
    holds(&wish("wishes beside suspend", 2, &[Wish, Suspend]));
    holds(&Scene { slow_jobs: true, ..wish("wishes beside deadlines", 2, &[Wish, Deadline]) });
    holds(&Scene { deletes: 1, in_step: true, queues: &[2], ..wish("wishes beside deletion", 1, &[Wish]) });
    holds(&Scene {
        in_step: true,
        queues: &[2],
        parallelism: Some(1),
        ..wish("wishes of two", 1 + u8::from(full()), &[Wish, Crash])
    });
    let jobs = if full() { &[2] } else { &[1] };
    holds(&Scene { in_step: true, queues: jobs, ..wish("wishes beside transfers", 2, &[Wish, HangingTransfer]) });
}

/// HTCondor holds jobs after faults of their nodes, and releases them by itself.
#[test]
fn node_faults() {
    let faults = |name, kinds| Scene { deletes: 0, in_step: !full(), ..Scene::new(name, &[1], 2, kinds) };
    holds(&Scene { deletes: 1, ..faults("faults of nodes", &[NodeFault, Crash]) });
    holds(&faults("faults of nodes beside suspend", &[NodeFault, Suspend]));
    holds(&faults("faults of nodes beside wishes", &[NodeFault, Wish]));
    holds(&faults("faults of nodes beside deadlines", &[NodeFault, Deadline]));
    let queued =
        Scene { room: Some(1), queues: &[1, 1], ..faults("faults of nodes and one place", &[NodeFault, Suspend]) };
    holds(&Scene { in_step: true, ..queued });
}

#[test]
fn answers() {
    holds(&Scene { in_step: !full(), ..Scene::new("late answers", &[1], 2, &[Crash, SlowLook]) });
    holds(&Scene::new("old views", &[1], 2, &[SlowReconcile, StaleCache]));
}

/// The queue answers with success and shows nothing; history is asked right after.
#[test]
fn blind_answers() {
    for kind in [&[BlindLook], &[BlindLookAtOne]] {
        holds(&Scene { history_apart: true, ..Scene::new("blind answers", &[1], 1, kind) });
    }
}

#[test]
fn removals() {
    let kinds = &[LingeringRemoval, OtherSchedd, SlowLook];
    holds(&Scene { slow_tools: true, ..Scene::new("removals", &[1], 2, kinds) });
}

/// A transfer of output hangs, and what must not wait for it is asked for.
#[test]
fn transfers() {
    for (name, kinds) in [
        ("holds beside transfers that hang", &[HangingTransfer, Suspend]),
        ("deadlines beside transfers that hang", &[HangingTransfer, Deadline]),
    ] {
        holds(&Scene { in_step: true, deletes: 0, ..Scene::new(name, &[2], 2, kinds) });
    }
    holds(&Scene::new("behind transfers that hang", &[1, 1], 1, &[HangingTransfer]));
}

/// Where history was empty before the intent and has since dropped what came after it, nobody can tell: that is left out.
#[test]
fn history() {
    holds(&Scene { admins: ADMIN, ..Scene::new("history", &[1], 3, &[RemovedByHand, Rotation]) });
    let empty = Scene::new("history that was empty", &[1], 2, &[RemovedByHand, Crash]);
    holds(&Scene { old_history: false, in_step: !full(), ..empty });
}

#[test]
fn queues() {
    holds(&Scene { admins: ADMIN, ..Scene::new("queues", &[1], 2, &[Reset, OtherSchedd]) });
}

/// The operator is started with another schedd than the one that has the jobs, and back.
#[test]
fn schedds() {
    holds(&Scene::new("another schedd by name", &[1], 1, &[OtherName]));
    if full() {
        let orphans = &[OtherName, LimitPasses, SlowSubmitter];
        holds(&Scene { in_step: true, ..Scene::new("another schedd beside orphans", &[1], 1, orphans) });
    }
    let scene = Scene::new("another schedd and a lost ledger", &[1], 2, &[OtherName, LostLedger]);
    holds(&Scene { admins: ADMIN, in_step: true, ..scene });
}

/// Two pools whose ids are equal, with an object in each: what happens in the one is nothing to the other.
#[test]
fn pools() {
    let pools = |name, troubles, kinds| Scene { two_pools: true, ..Scene::new(name, &[1, 1], troubles, kinds) };
    let lasting = |name, kinds| Scene { deletes: 0, ..pools(name, 1, kinds) };
    holds(&pools("two pools", 0, &[]));
    if full() {
        holds(&lasting("two pools and crashes", &[Crash]));
        holds(&lasting("two pools and submitters", &[SlowSubmitter, DyingSubmitter]));
    }
    holds(&Scene { admins: ADMIN, ..lasting("one of two pools is lost", &[Reset]) });
    holds(&lasting("one of two pools is silent", &[Silence, HangingTransfer]));
}

/// Two objects, and a queue that has room for one job: never more than one is in HTCondor, and both are in the end.
#[test]
fn queued() {
    let one_place = |name, troubles, kinds| Scene { room: Some(1), ..Scene::new(name, &[1, 1], troubles, kinds) };
    holds(&Scene { slow_jobs: true, ..one_place("one place", 0, &[]) });
    holds(&Scene { in_step: !full(), deletes: 0, ..one_place("one place and crashes", 1, &[Crash]) });
    let submitters = &[SlowSubmitter, SlowStaging, DyingSubmitter];
    holds(&Scene { deletes: 0, ..one_place("one place and submitters", 1, submitters) });
    // What HTCondor begins again keeps its room.
    let retries = Scene { deletes: 0, in_step: true, ..one_place("one place and retries", 0, &[]) };
    holds(&Scene { retries: true, slow_jobs: true, ..retries });
}

#[test]
fn queued_beside_faults() {
    let one_place = |name, troubles, kinds| Scene { room: Some(1), ..Scene::new(name, &[1, 1], troubles, kinds) };
    holds(&Scene { deletes: 0, slow_jobs: full(), ..one_place("one place and suspend", 1, &[Suspend]) });
    if full() {
        holds(&Scene { deletes: 0, ..one_place("one place and suspend again", 2, &[Suspend]) });
    }
    let submitters = |name| one_place(name, 2, &[Suspend, DyingSubmitter]);
    holds(&Scene { deletes: 0, queues: &[1], ..submitters("one place, suspend and submitters") });
    if full() {
        holds(&Scene { deletes: 0, ..submitters("one place, suspend and submitters, for two") });
        holds(&Scene { deletes: 0, ..one_place("one place and a lost ledger", 1, &[LostLedger]) });
    }
    holds(&Scene { deletes: 0, ..one_place("one place and deadlines", 1, &[Deadline]) });
    holds(&Scene { queues: &[2], in_step: !full(), ..one_place("one place for two jobs of one", 1, &[Crash]) });
}

/// The first of them is refused for ever: it holds up the other only while it is tried.
#[test]
fn queued_behind_refused() {
    let behind = |name, refused, troubles, kinds| {
        let scene = Scene::new(name, &[1, 1], troubles, kinds);
        Scene { room: Some(1), refused: Some(refused), deletes: 0, ..scene }
    };
    holds(&behind("behind one whose Secret is missing", Refusal::NotBegun, 1, &[Crash, Suspend, Wish]));
    holds(&behind("behind one that the schedd refuses", Refusal::BySchedd, u8::from(full()), &[Crash]));
    let two = behind("behind two jobs whose Secret is missing", Refusal::NotBegun, 0, &[]);
    holds(&Scene { queues: &[2, 1], ..two });
}

/// Users hold, release and remove what is in a queue.
#[test]
fn queued_with_requested_actions() {
    let one_place = |name, troubles, kinds| {
        let scene = Scene::new(name, &[1, 1], troubles, kinds);
        Scene { room: Some(1), deletes: 0, ..scene }
    };
    holds(&one_place("one place and wishes", 1, &[Wish]));
    holds(&Scene { queues: &[1], ..one_place("one place, suspend and wishes", 2, &[Suspend, Wish]) });
    holds(&Scene { kueue: true, queues: &[1], ..one_place("Kueue and wishes", 2, &[Evict, Wish]) });
    if full() {
        holds(&one_place("one place, suspend and wishes, for two", 2, &[Suspend, Wish]));
    }
}

/// The queue is deleted, and made again: what was in it waits meanwhile.
#[test]
fn queued_while_queue_is_deleted() {
    let one_place = |name, troubles, kinds| Scene { room: Some(1), ..Scene::new(name, &[1, 1], troubles, kinds) };
    holds(&Scene { deletes: 0, slow_jobs: full(), ..one_place("the queue goes", 1, &[QueueGoes]) });
    let alone = |name, kinds| Scene { queues: &[1], deletes: u8::from(full()), ..one_place(name, 2, kinds) };
    holds(&alone("the queue goes, and crashes", &[QueueGoes, Crash]));
    holds(&alone("the queue goes, and suspend", &[QueueGoes, Suspend]));
    holds(&alone("the queue goes, and submitters", &[QueueGoes, SlowSubmitter, SlowStaging]));
}

/// The same with Kueue, which takes room back at any time: it gives it to the other object when the operator has given it back.
#[test]
fn queued_by_kueue() {
    let one_place = |name, troubles, kinds| Scene {
        room: Some(1),
        kueue: true,
        deletes: 0,
        ..Scene::new(name, &[1, 1], troubles, kinds)
    };
    holds(&Scene { slow_jobs: full(), ..one_place("Kueue", 1, &[Evict]) });
    let alone = |name, kinds| Scene { queues: &[1], ..one_place(name, 2, kinds) };
    holds(&alone("Kueue and crashes", &[Evict, Crash]));
    holds(&alone("Kueue and suspend", &[Evict, Suspend]));
    holds(&alone("Kueue and submitters", &[Evict, SlowSubmitter, SlowStaging]));
    if full() {
        holds(&Scene { deletes: 1, slow_jobs: true, ..one_place("Kueue and deletion", 1, &[Evict]) });
    }
}

/// etcd is restored from a copy.
#[test]
fn old_objects() {
    let kinds: &[Trouble] = if full() { &[OldObjects, Crash, StaleCache] } else { &[OldObjects] };
    holds(&Scene { in_step: full(), ..Scene::new("old objects", &[1], 1, kinds) });
}

#[test]
fn ledgers() {
    holds(&Scene { admins: ADMIN, ..Scene::new("a lost ledger", &[1], 1, &[LostLedger, Rotation, Reset]) });
    holds(&Scene { admins: ADMIN, ..Scene::new("an old ledger", &[1], 1, &[OldLedger]) });
}

/// What is left to submit goes on in the ledger that has found all that was submitted, and only there.
#[test]
fn ledgers_lost_between_parts() {
    let parts = |name, troubles, kinds| Scene { deletes: 0, in_step: true, ..Scene::new(name, &[2], troubles, kinds) };
    holds(&Scene { parallelism: Some(1), ..parts("one at a time and a lost ledger", 1, &[LostLedger]) });
    holds(&Scene { room: Some(1), ..parts("one place for two jobs and a lost ledger", 1, &[LostLedger]) });
    let scene = parts("one at a time, a lost ledger and a job without a trace", 2, &[LostLedger, NoTrace]);
    holds(&Scene { parallelism: Some(1), losses: true, admins: ADMIN, ..scene });
}

#[test]
fn operators() {
    let scene = Scene::new("two operators", &[1], 1, &[SecondOperator]);
    holds(&Scene { admins: ADMIN, two_operators: true, deletes: u8::from(full()), in_step: true, ..scene });
}

/// What jobs report comes early, late, again or never, whatever else happens.
#[test]
fn reports() {
    let reporting = |name, troubles, kinds| {
        let scene = Scene::new(name, &[1], troubles, kinds);
        Scene { reports: true, slow_jobs: true, deletes: 0, in_step: !full(), ..scene }
    };
    holds(&Scene { deletes: 1, ..reporting("reports", 0, &[]) });
    holds(&Scene { in_step: false, ..reporting("reports and crashes", 1, &[Crash]) });
    holds(&reporting("reports and slow answers", 1, &[SlowLook, SlowReconcile, DyingNode]));
    holds(&Scene { retries: true, ..reporting("reports and retries", 0, &[]) });
    if full() {
        holds(&Scene { retries: true, ..reporting("reports, retries and crashes", 1, &[Crash, SlowLook]) });
    }
    holds(&reporting("reports beside late jobs", 2, &[SlowStaging, LimitPasses, StagingFails]));
    holds(&reporting("reports and other hands", 1, &[Suspend, RemovedByHand, StaleCache]));
    holds(&Scene { admins: ADMIN, ..reporting("reports to another ledger", 1, &[LostLedger, Reset, Rotation]) });
    holds(&Scene { queues: &[1, 1], ..reporting("reports of two", 0, &[]) });
}

/// Two objects in one condor_submit.
#[test]
fn batches() {
    holds(&Scene { deletes: 0, ..Scene::new("batches", &[1, 1], 1, &[SlowStaging, StagingFails]) });
    holds(&Scene { deletes: 0, in_step: !full(), ..Scene::new("batches and crashes", &[1, 1], 1, &[Crash]) });
}

/// Objects of the Go operator, whatever it has left of them.
#[test]
fn inherited() {
    let kinds = &[
        Crash,
        FailingTool,
        LostAnswer,
        SlowLook,
        SlowReconcile,
        StaleCache,
        LostWrite,
        LingeringRemoval,
        RemovedByHand,
        Rotation,
        Reset,
        LostLedger,
        Suspend,
    ];
    for (name, left) in [
        ("jobs of the Go operator", GoOperator::Waiting),
        ("those that have left the queue", GoOperator::Left),
        ("those that it has not written down", GoOperator::Unwritten),
    ] {
        let scene = Scene { in_step: true, slow_tools: true, ..Scene::new(name, &[1], 1, kinds) };
        let admins = &["HistoryTooShort", "JobsLost", "QueueLost", "LegacyJobsUnknown"];
        holds(&Scene { go_operator: Some(left), admins, ..scene });
    }
}
