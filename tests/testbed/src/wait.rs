//! Waiting for conditions: tests never sleep for a fixed time.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// What one look at a condition gives: the value waited for, or the state seen instead.
pub trait Look<T> {
    /// `Err` holds what was seen, for the message of a wait that runs out.
    fn look(self) -> std::result::Result<T, String>;
}

impl<T> Look<T> for Option<T> {
    fn look(self) -> std::result::Result<T, String> {
        self.ok_or_else(|| "not there yet".to_owned())
    }
}

impl<T, E: Display> Look<T> for std::result::Result<T, E> {
    fn look(self) -> std::result::Result<T, String> {
        self.map_err(|seen| seen.to_string())
    }
}

impl Look<()> for bool {
    fn look(self) -> std::result::Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".to_owned())
    }
}

/// A pause is so many times as long as the look before it took, at least: what tools take to look, many tests at a time would take from
/// what they wait for.
const TIMES: u32 = 4;

/// The longest of these.
const LONGEST: Duration = Duration::from_secs(1);

/// Looks until `probe` gives the value, with pauses from 5 ms growing to 400 ms, or to 1 s where looks are dear; after `limit` it fails and
/// tells what the last look showed. The probe may return an `Option`, a `bool`, or a `Result` whose error says what was seen.
pub fn wait_for<T, L: Look<T>>(what: &str, limit: Duration, mut probe: impl FnMut() -> L) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        let began = Instant::now();
        let last = match probe().look() {
            Ok(value) => return Ok(value),
            Err(last) => last,
        };
        let dear = (began.elapsed() * TIMES).min(LONGEST);
        if start.elapsed() >= limit {
            return Err(Error::TimedOut { what: what.to_owned(), limit, last });
        }
        thread::sleep(pause.max(dear));
        pause = (pause * 3 / 2).min(Duration::from_millis(400));
    }
}
