//! Random numbers that can be had again: the seed is printed, and `HTC_TEST_SEED` sets it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub struct Dice(u64);

impl Dice {
    pub fn new(what: &str) -> Self {
        let seed = std::env::var("HTC_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            now.as_secs() ^ u64::from(now.subsec_nanos())
        });
        println!("{what}: HTC_TEST_SEED={seed}");
        Self(seed)
    }

    /// A number below `limit` (`SplitMix64`).
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    /// Further dice, for what is thrown at the same time by somebody else.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }

    /// One of them.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    pub fn milliseconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}
