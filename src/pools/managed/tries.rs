//! When the objects of a pool are written again that could not be written.

use std::time::{Duration, Instant};

use super::error::ApplyError;
use crate::retry::Backoff;

/// The first pause and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Why a pool is not made: reason and message of its condition.
pub(in crate::pools) type NotMade = (&'static str, String);

/// Tries that failed since the last one that did not.
#[derive(Debug, Default)]
pub(super) struct Tries(Option<Failed>);

#[derive(Debug)]
struct Failed {
    /// Of the `HTCPool` that was tried.
    generation: i64,
    why: NotMade,
    backoff: Backoff,
    until: Instant,
}

impl Tries {
    /// Why the last one failed, if the next one has to wait. What is changed is tried at once.
    pub(super) fn waits(&self, generation: i64, now: Instant) -> Option<NotMade> {
        let failed = self.0.as_ref().filter(|failed| failed.generation == generation && now < failed.until)?;
        Some(failed.why.clone())
    }

    /// One has failed. Pauses grow as long as the reason is the same.
    pub(super) fn failed(&mut self, generation: i64, error: &ApplyError, now: Instant) -> NotMade {
        let why = (error.reason(), error.to_string());
        let same = |failed: &Failed| failed.generation == generation && failed.why.0 == why.0;
        let (first, longest) = PAUSES;
        let mut backoff =
            self.0.take().filter(same).map_or_else(|| Backoff::new(first, longest), |failed| failed.backoff);
        let until = now + backoff.pause();
        self.0 = Some(Failed { generation, why: why.clone(), backoff, until });
        why
    }

    /// Why the last one failed, if none has gone well since.
    pub(super) fn last(&self) -> Option<NotMade> {
        self.0.as_ref().map(|failed| failed.why.clone())
    }

    pub(super) fn went_well(&mut self) {
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
    fn what_fails_for_the_same_reason_is_tried_ever_more_seldom() {
        let (mut tries, mut now) = (Tries::default(), Instant::now());
        assert_eq!(tries.waits(1, now), None);
        let began = now;
        for _ in 0..20 {
            let why = tries.failed(1, &taken(), now);
            assert_eq!(why.0, "NameTaken");
            assert_eq!(tries.waits(1, now + Duration::from_millis(500)), Some(why));
            while tries.waits(1, now).is_some() {
                now += Duration::from_millis(100);
            }
        }
        // 1, 2, 4, 8, 16 and then 30 s, give or take a fifth.
        let took = (now - began).as_secs();
        assert!((400..=620).contains(&took), "{took}");
    }

    #[test]
    fn another_spec_is_tried_at_once_and_another_reason_after_the_first_pause() {
        let (mut tries, now) = (Tries::default(), Instant::now());
        for _ in 0..9 {
            tries.failed(1, &taken(), now);
        }
        assert!(tries.waits(1, now + Duration::from_secs(20)).is_some());
        assert_eq!(tries.waits(2, now), None);
        tries.failed(1, &ApplyError::KeyGone("own-signing-key".to_owned()), now);
        assert_eq!(tries.waits(1, now + Duration::from_secs(3)), None);
        tries.failed(1, &taken(), now);
        tries.went_well();
        assert_eq!(tries.waits(1, now), None);
    }
}
