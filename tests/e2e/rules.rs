//! Scenes in which one rule of `machine::rules` alone stands between a fault and a broken promise: with that rule taken out
//! its scene fails. The other rules have such a scene among the outages and faults (docs/guarantees.md says which).

mod finalizer;
mod jobs;
mod ledger;
mod submitter;

on_versions!(
    trixie:
        submitter::alive_while_its_object_is_deleted,
        ledger::copied_after_the_last_renewal,
        finalizer::not_attached_yet,
        jobs::behind_another_schedd;
    sid: submitter::alive_while_its_object_is_abandoned;
    long:
        submitter::landing_late_before_it_counts_as_dead,
        ledger::another_ones_claim,
        jobs::second_of_an_index;
);
