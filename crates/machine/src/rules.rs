//! Times that the machine waits, and the rules that the model checker can switch off one by one.

use std::sync::Arc;
use std::time::Duration;

/// Maximum number of jobs of one `HTCJob`.
pub const MAX_QUEUE: i64 = 100_000;

/// Times and sizes that `judge` and `decide` depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long after its submitter's death a job may stay in staging before it is removed.
    pub staging: Duration,
    /// How long after `submitter_deadline` a submitter counts as dead although its death was not seen.
    pub dead_margin: Duration,
    /// How much later `HTCNotAfter` is than the submitter's own limit.
    pub late_margin: Duration,
    /// How long `Complete` and `Failed` wait for the output.
    pub output_wait: Duration,
    /// How long a newer birthdate must be seen before the queue counts as lost; `Duration::MAX`: never.
    pub birthdate_steady: Duration,
    /// Longest life of a submitter (`T_max`).
    pub submit_max: Duration,
    /// First back-off after HTCondor refused something. It doubles with each further refusal.
    pub backoff_first: Duration,
    /// Longest back-off.
    pub backoff_max: Duration,
    /// Minimum interval between two fetches of output while jobs are still running.
    pub fetch_every: Duration,
    /// How long the output of a deleted HTCJob is kept; `Duration::MAX`: for ever.
    pub keep_output: Duration,
    /// How long after an effect HTCondor is asked every `soon`; after that, at the tracker's interval.
    pub eager: Duration,
    /// How long the queue must not have answered before `Tracked` is False: three of the tracker's intervals.
    pub silence: Duration,
    /// Time until the next reconcile when something is about to change (staging, removal).
    pub soon: Duration,
    /// Maximum number of jobs submitted in one attempt.
    pub jobs_per_attempt: usize,
    /// Maximum number of jobs that the HTCJob may have in HTCondor, given those of others in its namespace; none for no
    /// limit.
    pub namespace_limit: Option<usize>,
    /// Message of the schedd with which it refused a larger submission; none if it did not.
    pub size_refusal: Option<Arc<str>>,
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
            backoff_first: Duration::from_secs(5),
            backoff_max: Duration::from_secs(600),
            fetch_every: Duration::from_secs(60),
            keep_output: Duration::from_secs(30 * 86_400),
            eager: Duration::from_secs(15),
            silence: Duration::from_secs(60),
            soon: Duration::from_secs(1),
            jobs_per_attempt: 500,
            namespace_limit: None,
            size_refusal: None,
        }
    }
}

impl Settings {
    /// Returns the pause after `failures` failures in a row: zero for 0, then `backoff_first`, doubling up to
    /// `backoff_max`.
    #[must_use]
    pub fn backoff(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => self.backoff_first.saturating_mul(1_u32.checked_shl(n - 1).unwrap_or(u32::MAX)).min(self.backoff_max),
        }
    }
}

/// Rules that keep the promises.
/// All are on in production. The model checker switches off one at a time and must then find a run that breaks a
/// promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one switch of its own")]
pub struct Rules {
    /// An answer counts only if its query was sent after the submitter's death and the job's last change.
    pub ask_after_death: bool,
    /// A job counts as absent from the queue only when two answers lack it.
    pub two_answers: bool,
    /// History must reach back before the intent.
    pub history_reaches_back: bool,
    /// The birthdate must be that of the intent.
    pub same_birthdate: bool,
    /// Answers of one schedd prove nothing about jobs at another.
    pub same_schedd: bool,
    /// A job whose files arrived after `HTCNotAfter` does not count as a job.
    pub late_is_no_job: bool,
    /// A job counts only once the schedd has its files.
    pub staged_is_accepted: bool,
    /// While a request is queued or running no other is made.
    pub one_request: bool,
    /// A running transfer is stopped for a deletion, a hold, a release or a removal.
    pub stop_transfers: bool,
    /// The finalizer is removed only with a proof.
    pub prove_gone: bool,
    /// The intents of a batch are durable before the tool runs.
    pub intent_first: bool,
    /// The fence is checked again after the intents are durable.
    pub fence_after_intent: bool,
    /// An object that had our finalizer before this ledger knew it is judged before it is submitted.
    pub doubt_unknown_past: bool,
    /// No job is submitted before the finalizer is attached.
    pub finalizer_first: bool,
    /// Only the ledger that claimed an object submits its jobs.
    pub only_claimant: bool,
    /// An object whose status shows jobs of which the ledger has no intent is never submitted.
    pub status_is_presence: bool,
    /// A job that was removed before it was accepted, by the schedd or by us, has no outcome.
    pub stillborn_is_no_job: bool,
    /// An object that is being deleted waits for its submitter to end before its jobs are removed.
    pub wait_for_submitter: bool,
    /// An attempt has no submitter to wait for once each of its indexes is accepted; some of them are not enough.
    pub every_index_accepted: bool,
    /// Only a free lock proves that a submitter has ended whose end was not seen.
    pub lock_is_free: bool,
    /// An object that was being deleted is not submitted any more, even if it exists again.
    pub deleted_is_over: bool,
    /// Jobs that do not count are removed.
    pub remove_extra: bool,
    /// Jobs that were submitted to a queue which was lost are not submitted again.
    pub lost_queue_is_doubt: bool,
    /// After the deadline a job is given up only once it is proved that it never was and never will be accepted.
    pub prove_given_up: bool,
    /// A job that a user removes before it is recorded has failed only once it is proved that it never was and never
    /// will be accepted.
    pub prove_withdrawn: bool,
    /// A job that a user has held or removed is not submitted.
    pub wishes_keep_back: bool,
    /// A release is complete only once the job is not held, or a release that was requested since has succeeded.
    pub release_until_done: bool,
    /// An end that a job reports counts only where no further run can follow it.
    pub only_last_ends_count: bool,
    /// Jobs that were part of an attempt count, beside accepted ones, toward the limit of jobs in HTCondor.
    pub tried_counts: bool,
    /// A report of a job is not an outcome.
    pub only_htcondor_completes: bool,
    /// HTCondor's answers about a job take precedence over the job's earlier reports.
    pub htcondor_is_right: bool,
    /// HTCondor's answer refutes a report only if it was asked for after the report arrived.
    pub ask_after_report: bool,
    /// An object of the Go operator is neither submitted nor released before its jobs are adopted.
    pub adopted_first: bool,
    /// A job of an object in a queue is submitted or released only if it has quota there.
    pub granted_first: bool,
    /// The queue of an object is recorded with it: the object stays in that queue even if nothing else shows it any
    /// more.
    pub queue_is_kept: bool,
    /// Held jobs return their quota only once an answer from after the last hold and release shows them held.
    pub room_until_held: bool,
    /// Jobs that were part of an attempt keep their quota until it is proved that they never were and never will be
    /// accepted.
    pub absent_is_proved: bool,
    /// Jobs that cannot be submitted now keep no quota: they request it again for the next try.
    pub lent_for_a_try: bool,
    /// A user's hold of a job frees no quota: a job that the operator holds keeps its quota until it is held for good.
    pub wishes_free_nothing: bool,
}

impl Rules {
    /// All rules on.
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
        adopted_first: true,
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
    fn backoff_doubles_up_to_its_maximum() {
        let settings = Settings::default();
        let pauses: Vec<u64> = (0..10).map(|failures| settings.backoff(failures).as_secs()).collect();
        assert_eq!(pauses, [0, 5, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(settings.backoff(u32::MAX), settings.backoff_max);
    }
}
