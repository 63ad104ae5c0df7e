//! Each rule taken out: the checker must find a run that breaks a promise, and tells it.

use std::time::Duration;

use Trouble::{
    BlindLook, BlindLookAtOne, Crash, Deadline, DyingNode, DyingSubmitter, Evict, HalfSubmission, HangingTransfer,
    LimitPasses, LingeringRemoval, LostLedger, NewItems, NoTrace, OldObjects, OtherName, OtherSchedd, QueueGoes,
    RemovedByHand, Reset, Rotation, SecondOperator, SlowLook, SlowReconcile, SlowStaging, SlowSubmitter, StagingFails,
    Suspend, Wish,
};
use htc_machine::Rules;
use rstest::rstest;

use crate::bounds::{GoOperator, Refusal, Scene, Trouble};
use crate::steps::Model;
use crate::{Found, explore};

const ADMIN: &[&str] = &["HistoryTooShort", "JobsLost", "QueueLost"];

fn scene(troubles: u8, kinds: &'static [Trouble]) -> Scene {
    Scene { admins: ADMIN, ..Scene::new("", &[1], troubles, kinds) }
}

#[rstest]
#[case::ask_after_death(scene(1, &[Crash]), |model: &mut Model| model.rules.ask_after_death = false)]
#[case::history_reaches_back(scene(3, &[RemovedByHand, Rotation]), |model: &mut Model| model.rules.history_reaches_back = false)]
#[case::same_birthdate(scene(2, &[LingeringRemoval, OtherSchedd]), |model: &mut Model| {
    // The second answer is another layer.
    model.rules.two_answers = false;
    model.rules.same_birthdate = false;
})]
#[case::same_schedd(scene(1, &[OtherName]), |model: &mut Model| model.rules.same_schedd = false)]
#[case::same_schedd_before_it_is_let_go(scene(1, &[OtherName]), |model: &mut Model| {
    // What it would count as lost is told above.
    model.told.lock().unwrap().insert(crate::properties::OUTCOME);
    model.rules.same_schedd = false;
})]
#[case::pools_are_known(Scene { two_pools: true, queues: &[1, 1], deletes: 0, in_step: true, ..scene(1, &[Crash]) }, |model: &mut Model| model.broken.forgets_pools = true)]
#[case::a_pool_is_settled(scene(1, &[OtherName]), |model: &mut Model| {
    // The ledger knows the place of a pool: `decide` cannot tell it by the name of the schedd.
    model.broken.names_come_again = true;
})]
#[case::deleted_is_over(scene(1, &[OldObjects]), |model: &mut Model| model.rules.deleted_is_over = false)]
#[case::deleted_is_over_once_it_was_submitted(scene(1, &[OldObjects]), |model: &mut Model| {
    // What it would submit is told above.
    model.told.lock().unwrap().insert(crate::properties::OVER);
    model.rules.deleted_is_over = false;
})]
#[case::late_is_no_job(scene(2, &[SlowStaging, LimitPasses]), |model: &mut Model| model.rules.late_is_no_job = false)]
#[case::staged_is_accepted(scene(2, &[SlowStaging, StagingFails]), |model: &mut Model| model.rules.staged_is_accepted = false)]
#[case::one_request(scene(0, &[]), |model: &mut Model| {
    // `decide` says it twice; the registry and the ledger's key of attempts are further layers.
    model.rules.one_request = false;
    model.broken.forgets_in_flight = true;
    model.broken.registry_lets_all_in = true;
    model.broken.attempts_have_no_key = true;
})]
#[case::stop_transfers(scene(1, &[HangingTransfer]), |model: &mut Model| model.rules.stop_transfers = false)]
#[case::stop_transfers_for_a_hold(fetched_early(&[HangingTransfer, Suspend]), |model: &mut Model| model.rules.stop_transfers = false)]
#[case::stop_transfers_for_a_deadline(fetched_early(&[HangingTransfer, Deadline]), |model: &mut Model| model.rules.stop_transfers = false)]
#[case::free_at_once(Scene { queues: &[1, 1], in_step: true, ..scene(1, &[HangingTransfer]) }, |model: &mut Model| model.broken.frees_in_turn = true)]
#[case::prove_gone(scene(1, &[LingeringRemoval]), |model: &mut Model| model.rules.prove_gone = false)]
#[case::intent_first(scene(0, &[]), |model: &mut Model| model.rules.intent_first = false)]
#[case::fence_after_intent(two(), |model: &mut Model| model.rules.fence_after_intent = false)]
#[case::doubt_unknown_past(scene(1, &[LostLedger]), |model: &mut Model| model.rules.doubt_unknown_past = false)]
#[case::finalizer_first(Scene { creates: true, ..scene(0, &[]) }, |model: &mut Model| {
    // The claim comes with the finalizer; without it the object's past counts as unknown. Those are the other layers.
    model.rules.doubt_unknown_past = false;
    model.rules.finalizer_first = false;
    model.rules.only_claimant = false;
})]
#[case::status_is_presence(scene(2, &[LostLedger, Reset]), |model: &mut Model| {
    // After a reset the birthdate alone would do.
    model.rules.status_is_presence = false;
    model.rules.lost_queue_is_doubt = false;
})]
#[case::status_is_presence_of_each_job(lost_between_parts(), |model: &mut Model| model.rules.status_is_presence = false)]
#[case::a_status_lists_no_less(lost_between_parts(), |model: &mut Model| model.broken.lists_its_own_only = true)]
#[case::lost_queue_is_doubt(scene(1, &[Reset]), |model: &mut Model| model.rules.lost_queue_is_doubt = false)]
#[case::prove_given_up(Scene { queues: &[2], ..scene(2, &[SlowStaging, Deadline]) }, |model: &mut Model| {
    model.settings.jobs_per_attempt = 1;
    model.rules.prove_given_up = false;
})]
#[case::stillborn_is_no_job(scene(2, &[SlowStaging, StagingFails]), |model: &mut Model| model.rules.stillborn_is_no_job = false)]
#[case::wait_for_submitter(scene(1, &[Crash]), |model: &mut Model| {
    // The proof of absence has the same rule. What that alone breaks is told elsewhere.
    model.told.lock().unwrap().insert(crate::properties::ONCE);
    model.rules.wait_for_submitter = false;
    model.rules.ask_after_death = false;
})]
#[case::lock_is_free(Scene { deletes: 0, ..scene(1, &[Crash]) }, |model: &mut Model| model.rules.lock_is_free = false)]
#[case::lock_is_free_before_it_is_let_go(scene(1, &[Crash]), |model: &mut Model| {
    // What it would submit again is told above.
    model.told.lock().unwrap().insert(crate::properties::ONCE);
    model.rules.lock_is_free = false;
})]
#[case::every_index_accepted(half_submitted(0), |model: &mut Model| model.rules.every_index_accepted = false)]
#[case::every_index_accepted_before_it_is_let_go(half_submitted(1), |model: &mut Model| {
    // What it would submit again is told above.
    model.told.lock().unwrap().insert(crate::properties::ONCE);
    model.rules.every_index_accepted = false;
})]
#[case::remove_extra(scene(2, &[SlowStaging, LimitPasses]), |model: &mut Model| model.rules.remove_extra = false)]
#[case::in_flight_before_record(scene(1, &[SlowReconcile]), |model: &mut Model| {
    // The ledger's key of attempts is the other layer.
    model.broken.record_before_in_flight = true;
    model.broken.attempts_have_no_key = true;
})]
#[case::two_answers(blind(&[BlindLook]), |model: &mut Model| model.rules.two_answers = false)]
#[case::two_answers_about_one(blind(&[BlindLookAtOne]), |model: &mut Model| model.rules.two_answers = false)]
#[case::two_answers_before_it_is_let_go(scene(2, &[BlindLookAtOne, LingeringRemoval]), |model: &mut Model| {
    // What it would submit again, and count as lost, is told above.
    model.told.lock().unwrap().extend([crate::properties::ONCE, crate::properties::OUTCOME]);
    model.rules.two_answers = false;
})]
#[case::steady_birthdate(scene(2, &[LingeringRemoval, OtherSchedd]), |model: &mut Model| {
    // The second answer is another layer.
    model.rules.two_answers = false;
    model.settings.birthdate_steady = Duration::ZERO;
})]
#[case::dated_when_asked(scene(2, &[Crash, SlowLook]), |model: &mut Model| {
    // The second answer is another layer.
    model.rules.two_answers = false;
    model.broken.dates_answers_late = true;
})]
#[case::prove_withdrawn(wishing(&[Wish, SlowSubmitter]), |model: &mut Model| model.rules.prove_withdrawn = false)]
#[case::wishes_keep_back(wishing(&[Wish, DyingSubmitter]), |model: &mut Model| model.rules.wishes_keep_back = false)]
#[case::release_until_done(wishing(&[Wish, Crash]), |model: &mut Model| model.rules.release_until_done = false)]
#[case::tried_counts(Scene { queues: &[2], parallelism: Some(1), ..scene(0, &[]) }, |model: &mut Model| model.rules.tried_counts = false)]
#[case::parallelism_is_read_again(changing(&[2], 1), |model: &mut Model| model.broken.reads_parallelism_once = true)]
#[case::parallelism_is_lowered(changing(&[3], 2), |model: &mut Model| model.broken.never_narrows = true)]
#[case::items_are_read_once(Scene { queues: &[2], parallelism: Some(1), items: true, in_step: true, deletes: 0, ..scene(1, &[NewItems]) }, |model: &mut Model| model.broken.reads_items_again = true)]
#[case::granted_first(queued(0, &[]), |model: &mut Model| model.rules.granted_first = false)]
#[case::queue_is_kept(queued(1, &[QueueGoes]), |model: &mut Model| model.rules.queue_is_kept = false)]
#[case::unknown_is_not_none(queued(0, &[QueueGoes]), |model: &mut Model| model.broken.takes_unknown_for_none = true)]
#[case::room_until_held(Scene { slow_jobs: true, ..queued(2, &[Suspend]) }, |model: &mut Model| model.rules.room_until_held = false)]
#[case::absent_is_proved(queued(2, &[Suspend, SlowStaging]), |model: &mut Model| model.rules.absent_is_proved = false)]
#[case::lent_for_a_try(Scene { refused: Some(Refusal::NotBegun), ..queued(0, &[]) }, |model: &mut Model| model.rules.lent_for_a_try = false)]
#[case::lent_for_a_try_to_what_the_schedd_refuses(Scene { refused: Some(Refusal::BySchedd), ..queued(0, &[]) }, |model: &mut Model| model.rules.lent_for_a_try = false)]
#[case::wishes_free_nothing(queued(2, &[Suspend, Wish]), |model: &mut Model| model.rules.wishes_free_nothing = false)]
#[case::give_back_when_proved(Scene { kueue: true, slow_jobs: true, ..queued(1, &[Evict]) }, |model: &mut Model| model.broken.gives_back_at_once = true)]
#[case::only_htcondor_frees(Scene { retries: true, reports: true, slow_jobs: true, ..queued(0, &[]) }, |model: &mut Model| model.broken.frees_by_report = true)]
#[case::only_last_ends_count(Scene { retries: true, ..reporting(0, &[]) }, |model: &mut Model| model.rules.only_last_ends_count = false)]
#[case::only_htcondor_completes(reporting(1, &[DyingNode]), |model: &mut Model| model.rules.only_htcondor_completes = false)]
#[case::htcondor_is_right(reporting(1, &[DyingNode]), |model: &mut Model| model.rules.htcondor_is_right = false)]
#[case::ask_after_report(reporting(0, &[]), |model: &mut Model| model.rules.ask_after_report = false)]
#[case::adopted_first(left_unwritten(0), |model: &mut Model| model.rules.adopted_first = false)]
#[case::adopted_first_until_gone(left_unwritten(1), |model: &mut Model| {
    // What it would submit meanwhile is told above.
    model.told.lock().unwrap().insert(crate::properties::ONCE);
    model.rules.adopted_first = false;
})]
#[case::wait_for_strangers(scene(1, &[LostLedger]), |model: &mut Model| model.broken.no_wait_for_strangers = true)]
fn each_mutant_breaks_a_promise(#[case] scene: Scene, #[case] sabotage: fn(&mut Model)) {
    let found = [false, true].map(|watches_the_end| {
        let mut model = Model::new(scene.clone(), Rules::ALL);
        model.watches_the_end = watches_the_end;
        sabotage(&mut model);
        model
    });
    let found = found.into_iter().map(explore).find(|found| !found.stories.is_empty());
    let Some(Found { states, seconds, stories, .. }) = found else {
        panic!("not refuted ({:?}, {} troubles)", scene.kinds, scene.troubles);
    };
    let (promise, story) = &stories[0];
    let steps = story.iter().filter(|line| !line.starts_with("    ")).count();
    eprintln!("not so: {promise} ({steps} steps, {states} states, {seconds:.1} s)\n{}", story.join("\n"));
}

/// Ends that only an admin can bring about: each is said in a condition, and the checker shows how it comes to it.
#[rstest]
#[case::history_too_short(scene(3, &[RemovedByHand, Rotation]), &["QueueLost", "JobsLost"])]
#[case::queue_lost(scene(1, &[Reset]), &["HistoryTooShort", "JobsLost"])]
#[case::lost(scene(2, &[LostLedger, Reset]), &["HistoryTooShort", "QueueLost"])]
fn htcjob_never_ends_without_an_admin(#[case] scene: Scene, #[case] others: &'static [&'static str]) {
    let found = explore(Model::new(Scene { admins: others, ..scene }, Rules::ALL));
    let [(promise, story)] = found.stories.as_slice() else { panic!("it ends in {} states", found.states) };
    assert_eq!(*promise, crate::properties::END);
    eprintln!("{} states, {:.1} s\n{}", found.states, found.seconds, story.join("\n"));
}

/// The first of two jobs is over when the second is lost without a trace, and with it the ledger.
fn lost_between_parts() -> Scene {
    let scene =
        Scene { queues: &[2], parallelism: Some(1), deletes: 0, in_step: true, ..scene(2, &[LostLedger, NoTrace]) };
    Scene { losses: true, ..scene }
}

fn reporting(troubles: u8, kinds: &'static [Trouble]) -> Scene {
    Scene { reports: true, slow_jobs: true, ..scene(troubles, kinds) }
}

fn blind(kinds: &'static [Trouble]) -> Scene {
    Scene { history_apart: true, deletes: 0, ..scene(1, kinds) }
}

/// The output of one job is fetched while the other runs.
fn fetched_early(kinds: &'static [Trouble]) -> Scene {
    Scene { queues: &[2], deletes: 0, ..scene(2, kinds) }
}

fn wishing(kinds: &'static [Trouble]) -> Scene {
    Scene { deletes: 0, slow_jobs: true, ..scene(2, kinds) }
}

/// One at a time, until a user says otherwise.
fn changing(queues: &'static [u32], troubles: u8) -> Scene {
    Scene { queues, parallelism: Some(1), in_step: true, deletes: 0, ..scene(troubles, &[Trouble::Parallelism]) }
}

fn queued(troubles: u8, kinds: &'static [Trouble]) -> Scene {
    Scene { room: Some(1), queues: &[1, 1], in_step: true, deletes: 0, ..scene(troubles, kinds) }
}

fn half_submitted(deletes: u8) -> Scene {
    Scene { queues: &[2], deletes, ..scene(2, &[Crash, HalfSubmission]) }
}

fn left_unwritten(deletes: u8) -> Scene {
    Scene { go_operator: Some(GoOperator::Unwritten), deletes, ..scene(0, &[]) }
}

fn two() -> Scene {
    Scene { two_operators: true, ..scene(1, &[SecondOperator]) }
}
