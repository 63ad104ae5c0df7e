//! Small HTCJobs beside a large one, and somebody who submits such jobs by hand beside the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::queue::{alone, small_ones};
use super::{percentile, seconds};
use crate::bed::Bed;
use crate::error::{Error, Result};
use crate::raw::Raw;

/// By how much a small one may take longer than alone, or than by hand beside the same load.
const LONGER: f64 = 2.0;

/// Seconds that one small HTCJob, and one job by hand, take with nothing beside them.
#[derive(Clone, Copy)]
pub(super) struct Alone {
    pub(super) operator: f64,
    by_hand: f64,
}

/// The same of several beside a large one, in order.
pub(super) struct Beside {
    operator: Vec<f64>,
    by_hand: Vec<f64>,
}

impl Alone {
    pub(super) fn measure(bed: &mut Bed, raw: &Raw) -> Result<Self> {
        let by_hand = raw.submit(&raw.prepare(1, 1)?, 1)?.staged.as_secs_f64();
        raw.remove_all()?;
        Ok(Self { operator: alone(bed)?, by_hand })
    }
}

impl Beside {
    /// Small ones, one after another, until `done`.
    pub(super) fn measure(
        bed: &Bed,
        raw: &Raw,
        namespace: &str,
        every: Duration,
        done: impl Fn() -> bool,
    ) -> Result<Self> {
        let over = AtomicBool::new(false);
        let (operator, by_hand) = thread::scope(|scope| {
            let by_hand = scope.spawn(|| one_by_one(raw, every, &over));
            let waits = small_ones(bed, namespace, every, done);
            over.store(true, Ordering::Relaxed);
            let by_hand = by_hand.join().map_err(|_| Error::Unexpected("a submission panicked".to_owned()))?;
            Ok::<_, Error>((waits?.all, by_hand?))
        })?;
        let sorted = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times
        };
        Ok(Self { operator: sorted(operator), by_hand: sorted(by_hand) })
    }

    pub(super) fn longest(&self) -> f64 {
        self.operator.last().copied().unwrap_or_default()
    }

    fn longest_by_hand(&self) -> f64 {
        self.by_hand.last().copied().unwrap_or_default()
    }

    /// Whether the aim is reached.
    pub(super) fn in_time(&self, alone: Alone) -> bool {
        self.longest() <= LONGER + alone.operator.max(self.longest_by_hand())
    }

    pub(super) fn words(&self, alone: Alone) -> String {
        format!(
            "of {} others p50 {}, the slowest {}, alone {}",
            self.operator.len(),
            seconds(percentile(&self.operator, 0.5)),
            seconds(self.longest()),
            seconds(alone.operator)
        )
    }

    pub(super) fn words_by_hand(&self, alone: Alone) -> String {
        format!(
            "of {} condor_submit of one job beside it p50 {}, the slowest {}, alone {}",
            self.by_hand.len(),
            seconds(percentile(&self.by_hand, 0.5)),
            seconds(self.longest_by_hand()),
            seconds(alone.by_hand)
        )
    }

    /// Of the slowest, to that alone and to that by hand beside the same load.
    pub(super) fn ratios(&self, alone: Alone) -> String {
        let ratio = |one: f64, other: f64| if other > 0.0 { one / other } else { 0.0 };
        format!(
            "others {:.1} × alone, {:.1} × by hand beside the same",
            ratio(self.longest(), alone.operator),
            ratio(self.longest(), self.longest_by_hand())
        )
    }

    pub(super) fn numbers(&self, alone: Alone) -> [(&'static str, f64); 6] {
        [
            ("othersAloneSeconds", alone.operator),
            ("othersP50Seconds", percentile(&self.operator, 0.5)),
            ("othersSlowestSeconds", self.longest()),
            ("byHandAloneSeconds", alone.by_hand),
            ("byHandP50Seconds", percentile(&self.by_hand, 0.5)),
            ("byHandSlowestSeconds", self.longest_by_hand()),
        ]
    }
}

/// Submits one job after another, until it is over: seconds until HTCondor has the files of each.
fn one_by_one(raw: &Raw, every: Duration, over: &AtomicBool) -> Result<Vec<f64>> {
    let mut took = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let description = raw.prepare(1, 1)?;
        took.push(raw.submit(&description, 1)?.staged.as_secs_f64());
        thread::sleep(every);
    }
    raw.remove_all()?;
    Ok(took)
}
