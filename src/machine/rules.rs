//! Times that the machine waits, and the rules that the model checker can switch off one by one.

use std::sync::Arc;
use std::time::Duration;

/// Times and sizes that `judge` and `decide` go by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long after its submitter's death a job may stay in staging before it is removed.
    pub staging: Duration,
    /// How long after `not_after` a submitter that was not seen to die counts as dead.
    pub dead_margin: Duration,
    /// `HTCNotAfter` lies this much after the submitter's own limit.
    pub late_margin: Duration,
    /// How long `Complete` and `Failed` wait for the output.
    pub output_wait: Duration,
    /// How long a newer birthdate must be seen before the queue counts as lost; `Duration::MAX`: it never does.
    pub birthdate_steady: Duration,
    /// Longest life of a submitter (`T_max`).
    pub submit_max: Duration,
    /// First pause after something that HTCondor refused; it doubles with each further one.
    pub pause_first: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// Least time between two fetches of output while jobs are still running.
    pub fetch_every: Duration,
    /// How long the output of a deleted HTCJob is kept; `Duration::MAX`: always.
    pub keep_output: Duration,
    /// How long after an effect HTCondor is asked every `soon`; after that, at the tracker's interval.
    pub eager: Duration,
    /// How long the queue must not have answered before `Tracked` is False: three of the tracker's intervals.
    pub silence: Duration,
    /// Pause before the next look when something is about to change (staging, removal).
    pub soon: Duration,
    /// Most jobs handed to HTCondor in one attempt.
    pub jobs_per_attempt: usize,
    /// How many jobs the HTCJob may have in HTCondor, given those of others in its namespace; none: no limit.
    pub namespace_room: Option<usize>,
    /// The schedd's words, if it has refused more at once.
    pub refused_more: Option<Arc<str>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            staging: Duration::from_secs(120),
            dead_margin: Duration::from_secs(60),
            late_margin: Duration::from_secs(30),
            output_wait: Duration::from_secs(600),
            birthdate_steady: Duration::from_secs(300),
            submit_max: Duration::from_secs(600),
            pause_first: Duration::from_secs(5),
            pause_max: Duration::from_secs(600),
            fetch_every: Duration::from_secs(60),
            keep_output: Duration::from_secs(30 * 86_400),
            eager: Duration::from_secs(15),
            silence: Duration::from_secs(60),
            soon: Duration::from_secs(1),
            jobs_per_attempt: 500,
            namespace_room: None,
            refused_more: None,
        }
    }
}

impl Settings {
    /// Pause after `failures` failures in a row: none for 0, then `pause_first`, doubling up to `pause_max`.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => self.pause_first.saturating_mul(1_u32.checked_shl(n - 1).unwrap_or(u32::MAX)).min(self.pause_max),
        }
    }
}

/// The rules that keep the promises. All are on in production; the model checker takes one out at a time and must then
/// find a run that breaks a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one switch of its own")]
pub struct Rules {
    /// An answer counts only if its question was asked after the submitter's death and the job's last change.
    pub ask_after_death: bool,
    /// That a job is not in the queue counts only when two answers say so.
    pub two_answers: bool,
    /// History must reach back before the intent.
    pub history_reaches_back: bool,
    /// The birthdate must be that of the intent.
    pub same_birthdate: bool,
    /// What is at another schedd is judged by nothing that this one says.
    pub same_schedd: bool,
    /// A job whose files arrived after `HTCNotAfter` is no job.
    pub late_is_no_job: bool,
    /// A job counts only once the schedd has its files.
    pub staged_is_accepted: bool,
    /// While a request is queued or running no other is made.
    pub one_request: bool,
    /// A transfer that runs is stopped for a deletion, a hold, a release or a removal.
    pub stop_transfers: bool,
    /// The finalizer goes only with a proof.
    pub prove_gone: bool,
    /// The intents of a batch are durable before the tool runs.
    pub intent_first: bool,
    /// The fence is checked again after the intents are durable.
    pub fence_after_intent: bool,
    /// An object that had our finalizer before this ledger knew it is judged before it is submitted.
    pub doubt_unknown_past: bool,
    /// Nothing is submitted before the finalizer stands.
    pub finalizer_first: bool,
    /// Only the ledger that claimed an object submits it.
    pub only_claimant: bool,
    /// A status that shows jobs of which the ledger has no intent is never submitted.
    pub status_is_presence: bool,
    /// A job that the schedd or we removed before it was accepted has no outcome.
    pub stillborn_is_no_job: bool,
    /// An object that is being deleted waits for the submitter before it removes its jobs.
    pub wait_for_submitter: bool,
    /// An attempt has no submitter to wait for once each of its indexes is accepted; some of them are not enough.
    pub every_index_accepted: bool,
    /// Only a lock that nobody holds shows that a submitter whose end nobody saw has ended.
    pub lock_is_free: bool,
    /// What was being deleted is submitted no more, even if it lives again.
    pub deleted_is_over: bool,
    /// Jobs that do not count are removed.
    pub remove_extra: bool,
    /// What was submitted to a queue that is lost is not submitted again.
    pub lost_queue_is_doubt: bool,
    /// After the deadline a job is given up only once it is proved that it never was and never will be accepted.
    pub prove_given_up: bool,
    /// A job that a user removes before it is recorded has failed only once it is proved that it never was and never will be accepted.
    pub prove_withdrawn: bool,
    /// A job that a user has held or removed is not submitted.
    pub wishes_keep_back: bool,
    /// A release is over only once the job is not held, or a release that was asked for since has ended well.
    pub release_until_done: bool,
    /// An end that a job reports counts only where nothing can follow it.
    pub only_last_ends_count: bool,
    /// What was tried counts, beside what is accepted, for how many jobs HTCondor may have.
    pub tried_counts: bool,
    /// What a job reports is no outcome.
    pub only_htcondor_completes: bool,
    /// What HTCondor says of a job is right, whatever the job has reported before.
    pub htcondor_is_right: bool,
    /// HTCondor's answer refutes a report only if it was asked after that came.
    pub ask_after_report: bool,
    /// An object that the Go operator had is taken for one that has jobs, unless they are all known.
    pub inherited_is_presence: bool,
    /// Of an object in a queue nothing is submitted or released that has no room there.
    pub granted_first: bool,
    /// The queue that an object is in is kept with it: it is in that one also when nothing else shows it any more.
    pub queue_is_kept: bool,
    /// Held jobs give their room back only once an answer from after the last hold and release shows them held.
    pub room_until_held: bool,
    /// What was tried and waits uses its room until it is proved that it never was and never will be accepted.
    pub absent_is_proved: bool,
    /// What cannot be submitted now keeps no room: it asks again when it is tried again.
    pub lent_for_a_try: bool,
    /// That a user holds a job frees no room: a job that the operator holds keeps its room until it is held for good.
    pub wishes_free_nothing: bool,
}

impl Rules {
    /// Every rule in force.
    pub const ALL: Self = Self {
        ask_after_death: true,
        two_answers: true,
        history_reaches_back: true,
        same_birthdate: true,
        same_schedd: true,
        late_is_no_job: true,
        staged_is_accepted: true,
        one_request: true,
        stop_transfers: true,
        prove_gone: true,
        intent_first: true,
        fence_after_intent: true,
        doubt_unknown_past: true,
        finalizer_first: true,
        only_claimant: true,
        status_is_presence: true,
        stillborn_is_no_job: true,
        wait_for_submitter: true,
        every_index_accepted: true,
        lock_is_free: true,
        deleted_is_over: true,
        remove_extra: true,
        lost_queue_is_doubt: true,
        prove_given_up: true,
        prove_withdrawn: true,
        wishes_keep_back: true,
        release_until_done: true,
        only_last_ends_count: true,
        tried_counts: true,
        only_htcondor_completes: true,
        htcondor_is_right: true,
        ask_after_report: true,
        inherited_is_presence: true,
        granted_first: true,
        queue_is_kept: true,
        room_until_held: true,
        absent_is_proved: true,
        lent_for_a_try: true,
        wishes_free_nothing: true,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let settings = Settings::default();
        let pauses: Vec<u64> = (0..10).map(|failures| settings.pause(failures).as_secs()).collect();
        assert_eq!(pauses, [0, 5, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(settings.pause(u32::MAX), settings.pause_max);
    }
}
