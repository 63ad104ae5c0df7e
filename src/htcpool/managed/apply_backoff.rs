//! Back-off of failed attempts to write a pool's objects.

use std::time::{Duration, Instant};

use htc_support::retry::Failure;

use super::error::ApplyError;

/// Shortest and longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Reason and message of the condition of a pool that cannot be created.
pub(in crate::htcpool) type ReasonAndMessage = (&'static str, String);

/// Failed attempts since the last success, with the generation of the `HTCPool` at the last one.
#[derive(Debug, Default)]
pub(super) struct ApplyBackoff(Option<Failure<(i64, ReasonAndMessage), Instant>>);

impl ApplyBackoff {
    /// Returns the latest failure if the next attempt has to wait. A new generation is tried at once.
    pub(super) fn active_backoff(&self, generation: i64, now: Instant) -> Option<ReasonAndMessage> {
        let failed = self.0.as_ref().filter(|failed| failed.cause.0 == generation && failed.is_active(now))?;
        Some(failed.cause.1.clone())
    }

    /// Records a failed attempt. The pauses grow while generation and reason stay the same.
    pub(super) fn failed(&mut self, generation: i64, error: &ApplyError, now: Instant) -> ReasonAndMessage {
        let why = (error.reason(), error.to_string());
        let before =
            self.0.take().filter(|Failure { cause: (last, (reason, _)), .. }| (*last, *reason) == (generation, why.0));
        self.0 = Some(Failure::after(before, (generation, why.clone()), PAUSES, now));
        why
    }

    /// Returns the latest failure, if there was no success since.
    pub(super) fn last(&self) -> Option<ReasonAndMessage> {
        self.0.as_ref().map(|failed| failed.cause.1.clone())
    }

    pub(super) fn reset(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken() -> ApplyError {
        ApplyError::NotOurs { kind: "Service".to_owned(), name: "own-schedd".to_owned() }
    }

    #[test]
    fn same_failure_is_retried_with_backoff() {
        let (mut tries, mut now) = (ApplyBackoff::default(), Instant::now());
        assert_eq!(tries.active_backoff(1, now), None);
        let began = now;
        for _ in 0..20 {
            let why = tries.failed(1, &taken(), now);
            assert_eq!(why.0, "NameTaken");
            assert_eq!(tries.active_backoff(1, now + Duration::from_millis(500)), Some(why));
            while tries.active_backoff(1, now).is_some() {
                now += Duration::from_millis(100);
            }
        }
        // 1, 2, 4, 8, 16 and then 30 s, each with a jitter of a fifth.
        let took = (now - began).as_secs();
        assert!((400..=620).contains(&took), "{took}");
    }

    #[test]
    fn new_spec_resets_backoff_and_new_reason_restarts_it() {
        let (mut tries, now) = (ApplyBackoff::default(), Instant::now());
        for _ in 0..9 {
            tries.failed(1, &taken(), now);
        }
        assert!(tries.active_backoff(1, now + Duration::from_secs(20)).is_some());
        assert_eq!(tries.active_backoff(2, now), None);
        tries.failed(1, &ApplyError::KeyGone("own-signing-key".to_owned()), now);
        assert_eq!(tries.active_backoff(1, now + Duration::from_secs(3)), None);
        tries.failed(1, &taken(), now);
        tries.reset();
        assert_eq!(tries.active_backoff(1, now), None);
    }
}
