//! Waiting for conditions: tests never sleep for a fixed time.

use std::cell::RefCell;
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

thread_local! {
    /// What the last wait of this thread that ran out was for.
    static TIMED_OUT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Whether a panic with this message comes from a wait of this thread that ran out, and not from an assertion.
#[must_use]
pub fn ran_out(message: &str) -> bool {
    let of_a_wait = |what: &String| !what.is_empty() && message.contains(what.as_str());
    // As `unwrap`, and as the error itself says it.
    let error = message.contains("TimedOut {") || message.contains("waited ");
    error && !message.contains("assertion ") && TIMED_OUT.with_borrow(of_a_wait)
}

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
            TIMED_OUT.with_borrow_mut(|timed_out| what.clone_into(timed_out));
            return Err(Error::TimedOut { what: what.to_owned(), limit, last });
        }
        thread::sleep(pause.max(dear));
        pause = (pause * 3 / 2).min(Duration::from_millis(400));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timed_out_wait_differs_from_a_failed_assertion() {
        assert!(!ran_out("waited 1s for the end; last seen: nothing"), "no wait has run out");
        let error = wait_for("the end", Duration::ZERO, || None::<()>).unwrap_err();
        for message in [
            format!("{error}\nits last state: {{}}"),
            format!("called `Result::unwrap()` on an `Err` value: {error:?}"),
        ] {
            assert!(ran_out(&message), "{message}");
        }
        for message in [
            "assertion `left == right` failed: waited 1s for the end",
            "it ran twice",
            "waited 1s for something else; last seen: false",
        ] {
            assert!(!ran_out(message), "{message}");
        }
    }
}
