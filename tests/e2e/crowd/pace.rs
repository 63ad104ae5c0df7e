//! Speed of the machine beside the tests: the duration of a fixed piece of work.

use std::fmt;
use std::hint::black_box;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Between two pieces: each takes ten milliseconds or more.
const EVERY: Duration = Duration::from_millis(300);
/// Numbers that a piece of work goes through: more than the caches of a core hold, as with what else runs here.
const NUMBERS: usize = 1 << 19;

/// What one piece of work took, on average.
#[derive(Clone, Copy)]
pub struct Pace {
    /// From its beginning to its end.
    pub time: f64,
    /// On a processor.
    pub work: f64,
}

impl Pace {
    /// How many times as long it took as at another time; at least 1, so that a test is never stricter than it is without this.
    pub fn slower_than(self, other: Self) -> Self {
        Self { time: (self.time / other.time).max(1.0), work: (self.work / other.work).max(1.0) }
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} (processor {:.2})", self.time, self.work)
    }
}

/// Does `work`, and shows how fast the machine was meanwhile.
pub fn meanwhile<T>(work: impl FnOnce() -> T) -> (T, Pace) {
    thread::scope(|scope| {
        let (over, is_over) = mpsc::channel::<()>();
        let measure = scope.spawn(move || measure(&is_over));
        let result = work();
        drop(over);
        (result, measure.join().unwrap())
    })
}

#[allow(clippy::cast_precision_loss, reason = "thousands")]
fn measure(is_over: &mpsc::Receiver<()>) -> Pace {
    let mut numbers: Vec<u64> = (0..NUMBERS as u64).collect();
    let (mut time, mut work, mut pieces) = (Duration::ZERO, Duration::ZERO, 0);
    let spent = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    while pieces == 0 || is_over.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let (began, before) = (Instant::now(), spent());
        piece(&mut numbers);
        (time, work, pieces) = (time + began.elapsed(), work + spent().saturating_sub(before), pieces + 1);
    }
    let mean = |sum: Duration| sum.as_secs_f64() * 1000.0 / f64::from(pieces);
    Pace { time: mean(time), work: mean(work) }
}

/// Leaps through the numbers.
fn piece(numbers: &mut [u64]) {
    let mut at = 1_usize;
    for _ in 0..NUMBERS {
        at = (at * 5 + 7) % NUMBERS;
        numbers[at] = numbers[at].rotate_left(7) ^ at as u64;
    }
    black_box(numbers);
}
