//! Runs a command of cargo's tests and says at its end what took longest and what the machine waited for.
#![allow(clippy::print_stdout, reason = "what a command-line tool is for")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
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

/// Runs the command; its exit code. Each test of `bed` writes its times down meanwhile.
pub fn measured(command: &[String]) -> Result<u8> {
    let times = Cache::locate()?.root().join("test-times");
    let (program, arguments) = command.split_first().ok_or_else(|| Error::Machine {
        problem: "there is nothing to run".to_owned(),
        remedy: "name a command".to_owned(),
    })?;
    let began = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .env("HTC_TEST_TIMES", &times)
        .stdout(Stdio::piped())
        .spawn()
        .doing("starting", Path::new(program))?;
    let output = child.stdout.take();
    let done = AtomicBool::new(false);
    let (status, seconds) = thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(&done));
        // Bytes, because what tests print need not be UTF-8.
        let lines = output.into_iter().flat_map(|output| BufReader::new(output).split(b'\n'));
        for line in lines.map_while(std::io::Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if !line.contains(NOISE) {
                println!("{line}");
            }
        }
        let status = child.wait();
        done.store(true, Ordering::Relaxed);
        (status, sampler.join().unwrap_or_default())
    });
    let status = status.doing("waiting for", Path::new(program))?;
    report(&read(&times), &seconds, began.elapsed());
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
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

fn read(times: &Path) -> Vec<Test> {
    let text = fs::read_to_string(times).unwrap_or_default();
    let tests = text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?.to_owned();
        let mut number = || fields.next()?.parse().ok();
        Some(Test { name, start: number()?, waited: number()?, took: number()? })
    });
    tests.collect()
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
