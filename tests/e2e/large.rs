//! One HTCJob of very many jobs: it is accepted in steps, what is told of it is right at any time and stays small, and it
//! holds up nobody. `HTC_LARGE=100000` says how many.

use std::thread;
use std::time::{Duration, Instant};

use bed::{Bed, Namespace, PATIENCE, beside, htcjob, of};
use serde_json::Value;
use testbed::{PoolOptions, Version, wait_for};

/// If `HTC_LARGE` does not say: several submissions of the largest size.
const JOBS: u64 = 4_000;
/// The CRD's promise, whatever the number of jobs.
const STATUS_LIMIT: usize = 64 * 1024;
/// Jobs that a submission and all that belongs to it bring into the ledger in a second, at the very least.
const SLOWEST: u64 = 40;

fn jobs() -> u64 {
    std::env::var("HTC_LARGE").map_or(JOBS, |text| text.parse().expect("HTC_LARGE is a number of jobs"))
}

/// A figure of `/proc/PID/status`, in MiB.
fn memory(pid: u32, figure: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(figure)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// CPU time of a process so far, in seconds.
fn cpu(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) / 100
}

/// How many ids a list such as `1.0-1999,3.7` names.
fn named(ranges: &str) -> u64 {
    let count = |range: &str| {
        let (_, procs) = range.split_once('.').unwrap();
        let (first, last) = procs.split_once('-').unwrap_or((procs, procs));
        last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1
    };
    ranges.split(',').filter(|range| !range.is_empty()).map(count).sum()
}

/// What is shown is right by itself, and small; how many jobs are accepted.
fn assert_right(object: &Value, total: u64) -> u64 {
    let status = &object["status"];
    let number = |name: &str| status[name].as_u64().unwrap_or_default();
    let active = number("active");
    assert_eq!(number("idle") + number("running") + number("held"), active, "{status:#}");
    assert_eq!(named(status["jobs"].as_str().unwrap_or_default()), active, "{status:#}");
    assert!(active <= total && number("succeeded") + number("failed") == 0, "{status:#}");
    assert!(status.to_string().len() < STATUS_LIMIT);
    active
}

/// Creates small ones of this kind one after another until it is told to stop; how long each had to wait for its id.
fn small_one(here: &Namespace<'_>, kind: &str, waits: &mut Vec<Duration>) {
    let name = format!("{kind}-{}", waits.len());
    let began = Instant::now();
    here.create(&htcjob(&name, "true"));
    wait_for("its id", PATIENCE, || here.get(&name)["status"]["clusterid"].is_string())
        .unwrap_or_else(|error| panic!("{name}: {error}\n{}", here.bed.logs()));
    waits.push(began.elapsed());
    thread::sleep(Duration::from_secs(1));
}

fn median_wait(what: &str, waits: &[Duration]) -> Duration {
    let mut sorted = waits.to_vec();
    sorted.sort_unstable();
    let (middle, longest) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    println!("{what}: {} small HTCJobs had their ids after {middle:.1?} (median), {longest:.1?} at most", waits.len());
    middle
}

#[test]
#[ignore = "make test-long: with 100,000 jobs, and nothing else may run meanwhile"]
fn very_large_htcjob_is_accepted_in_steps_and_delays_no_other() {
    // It compares how long small ones take with and without the large one.
    bed::turns::take(bed::Weight::Quiet);
    let total = jobs();
    let own = ["--submit-timeout=60s", "--submit-timeout-max=300s", "--poll-interval=5s", bed::SOON];
    let bed = Bed::new(Version::Trixie, &PoolOptions::default(), &own);
    bed.pool.set_start(false).unwrap();
    bed.start_operator();
    let here = bed.namespace();
    let pid = bed.operator_pid();
    let small = |kind| {
        let here = &here;
        move |waits: &mut Vec<Duration>| small_one(here, kind, waits)
    };
    let ((), alone) = beside(Vec::new(), small("alone"), || thread::sleep(Duration::from_secs(8)));
    let alone = median_wait("alone", &alone);

    let (began, before) = (Instant::now(), memory(pid, "VmRSS"));
    let mut large = htcjob("large", "true");
    large["spec"]["queue"] = total.into();
    let uid = here.create(&large);
    let limit = Duration::from_secs(60 + total / SLOWEST);
    let ((), with_it) = beside(Vec::new(), small("beside"), || {
        let (mut accepted, mut steps) = (0, 0);
        while accepted < total {
            let now = assert_right(&here.get("large"), total);
            assert!(now >= accepted, "{now} after {accepted}");
            if now > accepted {
                let spent = (began.elapsed().as_secs(), cpu(pid), memory(pid, "VmRSS"));
                println!("  {now} jobs after {} s, {} s of CPU, {} MiB", spent.0, spent.1, spent.2);
                (accepted, steps) = (now, steps + 1);
            }
            assert!(began.elapsed() < limit, "{accepted} of {total} after {limit:?}\n{}", bed.logs());
            thread::sleep(Duration::from_millis(300));
        }
        println!("{total} jobs accepted in {steps} steps and {:.0?}", began.elapsed());
    });
    let with_it = median_wait("beside", &with_it);
    let object = here.get("large");
    println!("its status has {} bytes", object["status"].to_string().len());
    println!("the operator has {} MiB at most, {before} before", memory(pid, "VmHWM"));
    let began = Instant::now();
    let constraint = of(&uid);
    assert_eq!(bed.queue(&constraint, &["HTCJobIndex"]).len() as u64, total);
    println!("condor_q of all takes {:.1?}", began.elapsed());
    here.wait_event("large", "AllSubmitted");
    let reasons: Vec<String> = here.events("large").into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, ["Pending", "Submitted", "AllSubmitted"], "no Event for each step");
    assert!(with_it < alone * 2 + Duration::from_secs(2), "{with_it:?} beside the large one, {alone:?} without it");

    let began = Instant::now();
    here.begin_delete("large");
    wait_for("the large one to be gone", limit, || {
        here.all().iter().all(|object| object["metadata"]["name"] != "large")
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", bed.logs()));
    println!("deleted and gone after {:.1?}", began.elapsed());
    here.wait_nothing_left(&uid);
}
