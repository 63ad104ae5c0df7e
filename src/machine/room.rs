//! What an object has of its queue, what it asks for, and what it gives back. All of it is derived from the record: nothing is counted
//! that could be counted twice.

use super::decide::{Action, Decision};
use super::facts::{Answer, Facts, JobState, LastRequest, Record, Spec};
use super::ids::{Index, Kind, Timestamp};
use super::indices::Indices;
use super::request::Work;
use super::rules::Rules;
use super::wishes::Wanted;

/// What an object has of its queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Jobs that HTCondor has or may have, whether or not they were granted room. Those that the operator holds for `spec.suspend` use
    /// what they were granted.
    pub uses: Indices,
    /// That is not known, and is all that there could be.
    pub unknown: bool,
    /// Jobs that it would submit or release now, if they had room.
    pub asks: Indices,
    /// Jobs that have room and need it no more: they have ended, are held, or are not to be submitted now.
    pub gives_back: Indices,
    /// What it uses beyond what it was granted goes on, and is granted to it afterwards.
    pub keeps_what_it_uses: bool,
    /// When its last try came to nothing, if it did: those who have asked since before that are ahead of it.
    pub failed_at: Option<Timestamp>,
}

/// Jobs of an object at a time, where it is not the operator that starts each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// That it has or may have; none if that is not known.
    pub has: Option<usize>,
    /// That it would have now.
    pub wants: usize,
}

/// What the object has of its queue after this decision.
#[must_use]
pub fn room(facts: &Facts, decision: &Decision, rules: &Rules) -> Room {
    let record = decision.after.as_ref().unwrap_or(&facts.record);
    let mut uses = record.in_use();
    let recorded: Indices = record.jobs.keys().copied().collect();
    let unknown = facts.is_anothers(record);
    if unknown {
        // Until it is known here what of it HTCondor has, all of it counts.
        let all = facts.object.spec.as_ref().map(Spec::asked_for).unwrap_or_default();
        uses = Indices::union(&[uses, all.without(&recorded)]);
    }
    let submits = facts.in_flight.as_ref().is_some_and(|request| request.key.kind == Kind::Submit)
        || matches!(&decision.action, Action::Hand(request) if matches!(request.work, Work::Submit(..)));
    let (granted, wants) = (&record.granted, &decision.wants);
    let suspended = facts.object.spec.as_ref().is_ok_and(|spec| spec.suspend);
    let held = held_by_us(record, rules);
    let held_for_users = held_for_users(record);
    let held_for_good = !rules.room_until_held || is_held_for_good(facts, record, decision);
    let ended: Indices =
        record.jobs.iter().filter(|(_, job)| job.outcome().is_some()).map(|(index, _)| *index).collect();
    let not_needed = |index: &Index| {
        if ended.contains(*index) {
            return true;
        }
        let needed = uses.contains(*index) || wants.contains(*index);
        // A submission under way takes what it was given; what is held counts until it is known to be. What users hold keeps its room,
        // unless all of it is to give its room back.
        let may_go = if held_for_users.contains(*index) {
            suspended && held_for_good
        } else if held.contains(*index) {
            held_for_good
        } else {
            !submits
        };
        !needed && may_go
    };
    let gives_back = granted.iter().filter(not_needed).collect();
    let (asks, failed_at) = (wants.without(granted), decision.failed_at);
    Room { uses, unknown, asks, gives_back, keeps_what_it_uses: true, failed_at }
}

/// Jobs that the operator holds for `spec.suspend`, whatever users want of them: their room goes once they are held for good.
fn held_by_us(record: &Record, rules: &Rules) -> Indices {
    let held = record.jobs.iter().filter(|(index, job)| {
        let ours = matches!(&job.state, JobState::Held(hold) if hold.is_ours());
        ours && (rules.wishes_free_nothing || !record.wishes.is(**index, Wanted::Hold))
    });
    held.map(|(index, _)| *index).collect()
}

/// Jobs that the operator holds for users.
fn held_for_users(record: &Record) -> Indices {
    let held = record.jobs.iter().filter(|(_, job)| matches!(&job.state, JobState::Held(hold) if hold.is_wished()));
    held.map(|(index, _)| *index).collect()
}

/// Whether what is shown as held is so for good: by an answer from after the last hold and release, and neither is under way.
fn is_held_for_good(facts: &Facts, record: &Record, decision: &Decision) -> bool {
    let changes = |kind| matches!(kind, Kind::Hold | Kind::Release);
    let under_way = facts.in_flight.as_ref().is_some_and(|request| changes(request.key.kind));
    let begins = matches!(&decision.action, Action::Hand(request) if changes(request.key.kind));
    let last =
        [Kind::Hold, Kind::Release].iter().filter_map(|kind| record.requests.get(kind)).map(LastRequest::latest).max();
    match &facts.evidence.queue {
        Answer::Known(queue) => !under_way && !begins && last.is_none_or(|last| queue.asked_at > last),
        Answer::Unknown(_) => false,
    }
}
