//! What may never happen, not even once in a thousand runs.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;

/// The file that names the tests that found a promise broken, a line each.
const BROKEN: &str = "HTC_TEST_BROKEN";

/// Stands while a wait checks a promise: that nothing is left behind, for example. If that wait runs out, the test is not given the
/// second try that `testbed measured` gives to tests that failed waiting. What fails in an assertion has none anyway.
pub struct Promise;

impl Drop for Promise {
    fn drop(&mut self) {
        if thread::panicking() {
            write_down(BROKEN);
        }
    }
}

/// Adds this thread's test to the file that the variable names.
pub(crate) fn write_down(variable: &str) {
    let Some(file) = std::env::var_os(variable) else { return };
    let line = format!("{}\n", thread::current().name().unwrap_or("?"));
    let opened = OpenOptions::new().create(true).append(true).open(file);
    // A panic in a panic would end all tests.
    if let Err(error) = opened.and_then(|mut file| file.write_all(line.as_bytes())) {
        eprintln!("writing down how a test failed: {error}");
    }
}
