//! Runs a command of cargo's tests and says at its end what took longest and what the machine waited for. Tests that failed beside
//! others are tried once more by themselves: `docs/decisions/0034-a-failed-test-is-tried-once-more.md`.
#![allow(clippy::print_stdout, reason = "what a command-line tool is for")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::cache::Cache;
use crate::error::{Doing, Error, Result};

/// How many of each list are shown.
const SHOWN: usize = 10;
/// Tests wait for their turn, which to the test program looks as if they ran.
const NOISE: &str = "has been running for over 60 seconds";
/// With more tests that fail than these, it is not the machine.
const MOST_TRIED_AGAIN: usize = 3;
/// What cargo's exit code is when tests have failed.
const TESTS_FAILED: i32 = 101;

/// What all cores did in one second, as shares of 1.
#[derive(Clone, Copy, Default)]
struct Second {
    /// Milliseconds since 1970 at its end.
    at: u128,
    busy: f64,
    disk: f64,
    idle: f64,
}

struct Test {
    name: String,
    /// Milliseconds since 1970.
    start: u128,
    waited: u128,
    took: u128,
}

/// A run of the command.
struct Run {
    /// None if a signal ended it.
    code: Option<i32>,
    failed: Vec<String>,
    /// How many that are by the test program's own count at its end, if it came to it.
    counted: Option<usize>,
    seconds: Vec<Second>,
}

impl Run {
    /// With the files in which tests write down how they failed, and the one for the times of all.
    fn new(command: &[String], notes: &Notes, times: Option<&Path>) -> Result<Self> {
        let (program, arguments) = command.split_first().ok_or_else(|| Error::Machine {
            problem: "there is nothing to run".to_owned(),
            remedy: "name a command".to_owned(),
        })?;
        let mut child = Command::new(program)
            .args(arguments)
            .env("HTC_TEST_BROKEN", &notes.broken)
            .env("HTC_TEST_WAITED", &notes.waited)
            .env("HTC_TEST_SEED", &notes.seed)
            .envs(times.map(|times| ("HTC_TEST_TIMES", times)))
            .stdout(Stdio::piped())
            .spawn()
            .doing("starting", Path::new(program))?;
        let output = child.stdout.take();
        let done = AtomicBool::new(false);
        let (status, failed, counted, seconds) = thread::scope(|scope| {
            let sampler = scope.spawn(|| sample(&done));
            let (mut failed, mut counted) = (Vec::new(), None);
            // Bytes, because what tests print need not be UTF-8.
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).split(b'\n'));
            for line in lines.map_while(std::io::Result::ok) {
                let line = String::from_utf8_lossy(&line);
                if !line.contains(NOISE) {
                    println!("{line}");
                }
                failed.extend(failed_test(&line));
                counted = counted.or(failed_count(&line));
            }
            let status = child.wait();
            done.store(true, Ordering::Relaxed);
            (status, failed, counted, sampler.join().unwrap_or_default())
        });
        let code = status.doing("waiting for", Path::new(program))?.code();
        Ok(Self { code, failed, counted, seconds })
    }

    fn exit_code(&self) -> u8 {
        self.code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

/// The test that a line of the test program says has failed.
fn failed_test(line: &str) -> Option<String> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned)
}

/// How many tests have failed, if a line of the test program says that.
fn failed_count(line: &str) -> Option<usize> {
    let result = line.strip_prefix("test result: FAILED. ")?;
    result.split("; ").find_map(|part| part.strip_suffix(" failed"))?.parse().ok()
}

/// Where tests write down how they failed, and the seed of their random numbers.
struct Notes {
    /// Those that found a promise broken.
    broken: PathBuf,
    /// Those that failed in a wait that ran out.
    waited: PathBuf,
    seed: String,
}

impl Notes {
    fn new(root: &Path) -> Result<Self> {
        let seed = std::env::var("HTC_TEST_SEED").unwrap_or_else(|_| now().to_string());
        let notes = Self { broken: root.join("test-broken"), waited: root.join("test-waited"), seed };
        for file in [&notes.broken, &notes.waited] {
            fs::write(file, "").doing("writing", file)?;
        }
        Ok(notes)
    }

    /// Adds the tests that passed by themselves only to `target/unsteady.json`, a line each.
    fn unsteady(&self, tests: &[String]) -> Result<()> {
        let target = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
        let file = target.join("unsteady.json");
        let mut open = fs::OpenOptions::new().create(true).append(true).open(&file).doing("opening", &file)?;
        for test in tests {
            let line = serde_json::json!({ "test": test, "seed": self.seed, "at": now() });
            writeln!(open, "{line}").doing("writing", &file)?;
        }
        Ok(())
    }
}

/// Runs the command; its exit code. Each test of `bed` writes its times down meanwhile.
pub fn measured(command: &[String]) -> Result<u8> {
    let root = Cache::locate()?.root().to_owned();
    let (times, notes) = (root.join("test-times"), Notes::new(&root)?);
    let (began, since) = (Instant::now(), now());
    let run = Run::new(command, &notes, Some(&times))?;
    report(&read(&times, since), &run.seconds, began.elapsed());
    if run.code != Some(TESTS_FAILED) {
        return Ok(run.exit_code());
    }
    let read = |file: &Path| fs::read_to_string(file).unwrap_or_default();
    match another_try(command, &run, &read(&notes.broken), &read(&notes.waited)) {
        Ok(again) => {
            println!("\nThese tests failed, and are tried once more by themselves: {}.", run.failed.join(", "));
            let again = Run::new(&again, &notes, None)?;
            if again.code == Some(0) {
                println!(
                    "\nUNSTEADY: these tests failed beside others and passed by themselves: {} (HTC_TEST_SEED={}). Look into the first \
                     failure, above.",
                    run.failed.join(", "),
                    notes.seed
                );
                notes.unsteady(&run.failed)?;
                if std::env::var_os("HTC_TEST_STEADY").is_some() {
                    println!("HTC_TEST_STEADY is set: an unsteady test is a failure.");
                    return Ok(1);
                }
            }
            Ok(again.exit_code())
        }
        Err(why) => {
            println!("\nNo test is tried again: {why}.");
            Ok(run.exit_code())
        }
    }
}

/// The command for the tests that failed, or why there is none.
fn another_try(
    command: &[String],
    run: &Run,
    promises: &str,
    waited: &str,
) -> std::result::Result<Vec<String>, String> {
    if let Some(test) = promises.lines().next() {
        return Err(format!("{test} found a promise broken, and that may not happen once"));
    }
    if run.counted != Some(run.failed.len()) {
        return Err(format!("the tests did not come to their end, or not all that failed are known: {:?}", run.failed));
    }
    if let Some(test) = run.failed.iter().find(|test| !waited.lines().any(|line| line == test.as_str())) {
        return Err(format!("{test} failed in an assertion, and only what failed waiting is"));
    }
    if run.failed.len() > MOST_TRIED_AGAIN {
        return Err(format!("{} failed, and at most {MOST_TRIED_AGAIN} are", run.failed.len()));
    }
    let alone = ["--exact", "--test-threads=1"].map(str::to_owned);
    Ok(command.iter().chain(&alone).chain(&run.failed).cloned().collect())
}

fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// Ticks of all cores so far: all, idle, and idle while the disk had something to do.
fn ticks() -> Option<[f64; 3]> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<f64> =
        text.lines().next()?.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    Some([fields.iter().take(8).sum(), *fields.get(3)?, *fields.get(4)?])
}

fn sample(done: &AtomicBool) -> Vec<Second> {
    let (mut seconds, mut before) = (Vec::new(), ticks());
    while !done.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_secs(1));
        let after = ticks();
        if let (Some(before), Some(after)) = (before, after) {
            let [all, idle, disk] = [0, 1, 2].map(|which| after[which] - before[which]);
            if all > 0.0 {
                seconds.push(Second { at: now(), busy: 1.0 - (idle + disk) / all, disk: disk / all, idle: idle / all });
            }
        }
        before = after;
    }
    seconds
}

/// The tests that have begun since then.
fn read(times: &Path, since: u128) -> Vec<Test> {
    let text = fs::read_to_string(times).unwrap_or_default();
    let tests = text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?.to_owned();
        let mut number = || fields.next()?.parse().ok();
        Some(Test { name, start: number()?, waited: number()?, took: number()? })
    });
    tests.filter(|test| test.start >= since).collect()
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds of an hour")]
fn report(tests: &[Test], seconds: &[Second], took: Duration) {
    let minutes = took.as_secs_f64() / 60.0;
    let mean = |of: fn(&Second) -> f64| 100.0 * seconds.iter().map(of).sum::<f64>() / (seconds.len().max(1) as f64);
    println!(
        "\n{minutes:.1} minutes, in which the cores were busy for {:.0} %, waited for the disk for {:.0} % and had nothing to do for {:.0} %.",
        mean(|second| second.busy),
        mean(|second| second.disk),
        mean(|second| second.idle)
    );
    if tests.is_empty() {
        return;
    }
    let waited = tests.iter().map(|test| test.waited).max().unwrap_or_default();
    println!("The last test to get its turn waited {:.0} s for it.", waited as f64 / 1000.0);

    let mut slowest: Vec<(&str, f64)> =
        tests.iter().map(|test| (test.name.as_str(), test.took as f64 / 1000.0)).collect();
    show("The slowest tests:", &mut slowest);

    // An idle second is shared among those that ran in it.
    let mut idle: BTreeMap<&str, f64> = BTreeMap::new();
    for second in seconds {
        let runs = |test: &&Test| test.start < second.at && second.at < test.start + test.took;
        let running: Vec<&Test> = tests.iter().filter(runs).collect();
        for test in &running {
            *idle.entry(&test.name).or_default() += second.idle / running.len() as f64;
        }
    }
    let mut idle: Vec<(&str, f64)> = idle.into_iter().collect();
    show("What the machine waited for (its idle time, shared among the tests that ran):", &mut idle);
}

fn show(title: &str, tests: &mut [(&str, f64)]) {
    println!("{title}");
    tests.sort_by(|one, other| other.1.total_cmp(&one.1));
    for (name, seconds) in tests.iter().take(SHOWN) {
        println!("{seconds:>7.1} s  {name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn failed_tests_are_parsed_from_the_output() {
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b".to_owned()));
        assert_eq!(failed_test("test a::b ... ok"), None);
        let end = "test result: FAILED. 486 passed; 2 failed; 3 ignored; 0 measured; 0 filtered out; finished in 1.2s";
        assert_eq!((failed_test(end), failed_count(end)), (None, Some(2)));
        assert_eq!(failed_count("test result: ok. 486 passed; 0 failed; 3 ignored"), None);
    }

    #[test]
    fn only_few_timed_out_tests_are_retried_alone() {
        let command = words("cargo test --test e2e --");
        let run = |failed: &str, counted| Run { code: Some(101), failed: words(failed), counted, seconds: Vec::new() };
        let another_try = |run: Run, promises: &str| another_try(&command, &run, promises, "a::b\nc\na\nb\nd\n");
        let again = another_try(run("a::b c", Some(2)), "").unwrap();
        assert_eq!(again, words("cargo test --test e2e -- --exact --test-threads=1 a::b c"));
        let broken = another_try(run("a::b c", Some(2)), "c\n").unwrap_err();
        assert!(broken.contains("c found a promise broken"), "{broken}");
        assert!(another_try(run("a b c d", Some(4)), "").is_err());
        assert!(another_try(run("a", None), "").is_err(), "it was ended half way");
        assert!(another_try(run("a", Some(2)), "").is_err());
        assert!(another_try(run("", None), "").is_err(), "it did not compile, for example");
        let asserted = another_try(run("a e", Some(2)), "").unwrap_err();
        assert!(asserted.contains("e failed in an assertion"), "{asserted}");
    }
}
