//! Row 11: the jobs of the huge HTCJob as objects, while as many of them run as there are slots.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::huge::PAYLOAD;
use super::queue::{Waits, alone, small_ones};
use super::{percentile, real, seconds};
use crate::bed::Bed;
use crate::cluster::{Pages, htcjob};
use crate::error::{Error, Result};
use crate::front::Front;
use crate::report::{Line, Report};
use crate::say;
use crate::usage::Usage;

/// What kubectl asks for.
const PAGE: usize = 500;
/// Between two small HTCJobs.
const EVERY: Duration = Duration::from_millis(500);

/// The HTCJob in `namespace` has so many jobs, all in HTCondor.
pub(super) fn measure(bed: &mut Bed, namespace: &str, queue: u32, report: &mut Report) -> Result<()> {
    let jobs = queue as usize;
    say(&format!("row 11: {jobs} jobs listed, selected and watched"));
    let small = bed.namespace()?;
    let front = Front::start(bed)?;
    let (by_hand, alone) = (condor_q(bed)?, alone(bed)?);
    bed.wait_written()?;
    let (leader, before) = (bed.operator_pid()?, bed.usage()?);
    for pid in [leader, front.pid()] {
        Usage::forget_peak(pid)?;
    }
    let path = format!("/apis/procs.htc.cern.ch/v1alpha1/namespaces/{namespace}/htcprocs");
    let version = bed.cluster.version(&path)?;
    bed.pool.set_start(true)?;

    let (walks, waits, starts) = walked(bed, &path, &version, &small)?;
    if walks.iter().any(|walk| walk.rows != jobs) {
        let rows = walks.map(|walk| walk.rows);
        return Err(Error::Unexpected(format!("{jobs} jobs, and the lists had {rows:?}")));
    }
    let lists = walks.each_ref().map(|walk| walk.took.iter().sum::<f64>());
    let list = f64::midpoint(lists[0], lists[1]);
    let mut took: Vec<f64> = walks.iter().flat_map(|walk| walk.took.clone()).collect();
    took.sort_by(f64::total_cmp);
    say(&format!("row 11: listed in {} and {}; condor_q {}", seconds(lists[0]), seconds(lists[1]), seconds(by_hand)));

    // None of them has failed: all are looked at, and one answer says so.
    let began = Instant::now();
    let failed = bed.cluster.pages(&format!("{path}?fieldSelector=status.state%3DFailed"), PAGE)?;
    let selected = began.elapsed().as_secs_f64();
    let running = bed.cluster.pages(&format!("{path}?fieldSelector=status.state%3DRunning"), PAGE)?.rows;
    if failed.rows != 0 || failed.took.len() != 1 || running == 0 {
        return Err(Error::Unexpected(format!("{} of the jobs have failed, and {running} run", failed.rows)));
    }
    let began = Instant::now();
    bed.cluster.watch_all(&path, jobs)?;
    let watched = began.elapsed().as_secs_f64();
    let (usage, front_usage) = (bed.usage()?, front.usage()?);
    say(&format!("row 11: selected in {}, watched in {}", seconds(selected), seconds(watched)));

    let ratio = list / by_hand;
    let cpu = usage.cpu - before.cpu;
    report.lines.push(Line {
        row: 11,
        what: format!("{jobs} jobs of one HTCJob as objects, while some of them run: listed by pages of {PAGE}, selected by status.state, watched"),
        operator: format!(
            "listed in {} ({:.0} jobs/s; a page p50 {:.0} ms, p99 {:.0} ms), none of them Failed in {}, {running} Running, all on a new watch in {}, \
             {starts} starts on the one before; of {} other HTCJobs meanwhile the slowest {}, alone {}; leader RSS {:.0} MiB before, peak {:.0} MiB, CPU {cpu:.1} s; front peak {:.0} MiB",
            seconds(list),
            real(jobs) / list,
            percentile(&took, 0.5) * 1000.0,
            percentile(&took, 0.99) * 1000.0,
            seconds(selected),
            seconds(watched),
            waits.count,
            seconds(waits.longest),
            seconds(alone),
            before.rss,
            usage.peak,
            front_usage.peak,
        ),
        raw: format!("condor_q of the same jobs, five attributes each: {}", seconds(by_hand)),
        ratio: format!("{ratio:.2} × the time"),
        aim: "a page faster than kubectl asks (200 ms); leader at most 64 MiB more; front under 64 MiB; others not held up over 1 s"
            .to_owned(),
        reached: Some(
            percentile(&took, 0.99) < 0.2
                && usage.peak - before.rss < 64.0
                && front_usage.peak < 64.0
                && waits.longest - alone <= 1.0,
        ),
        numbers: [
            ("jobs", real(jobs)),
            ("listSeconds", list),
            ("pageP50Seconds", percentile(&took, 0.5)),
            ("pageP99Seconds", percentile(&took, 0.99)),
            ("selectedSeconds", selected),
            ("watchedSeconds", watched),
            ("condorQSeconds", by_hand),
            ("ratio", ratio),
            ("othersSlowestSeconds", waits.longest),
            ("othersAloneSeconds", alone),
            ("starts", real(starts)),
            ("running", real(running)),
            ("leaderBeforeMiB", before.rss),
            ("leaderPeakMiB", usage.peak),
            ("leaderCpuSeconds", cpu),
            ("frontPeakMiB", front_usage.peak),
        ]
        .into(),
    });
    bed.pool.set_start(false)?;
    bed.clear(&small)?;
    front.end(bed)
}

/// All pages, twice, while jobs start, small HTCJobs come and somebody watches.
fn walked(bed: &Bed, path: &str, version: &str, small: &str) -> Result<([Pages; 2], Waits, usize)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let done = Cell::new(false);
        let (cluster, over) = (&bed.cluster, &over);
        let starts = scope.spawn(move || cluster.watch_starts(path, version, over));
        let lists = scope.spawn(move || -> Result<_> { Ok([cluster.pages(path, PAGE)?, cluster.pages(path, PAGE)?]) });
        let waits = small_ones(bed, small, EVERY, || {
            done.set(lists.is_finished());
            done.get()
        });
        over.store(true, Ordering::SeqCst);
        let lists = lists.join().map_err(|_| Error::Unexpected("a list panicked".to_owned()))?;
        let starts = starts.join().map_err(|_| Error::Unexpected("a watch panicked".to_owned()))?;
        Ok::<_, Error>((lists?, waits?, starts?))
    })
}

/// An HTCJob of its own, if the row is measured without the one before.
pub(super) fn htcjob_of(bed: &mut Bed, queue: u32) -> Result<String> {
    let namespace = bed.namespace()?;
    bed.cluster.create(&namespace, [htcjob("huge", queue, PAYLOAD)])?;
    bed.cluster.seen.wait("all ids", &namespace, super::LONG, |tally| tally.with_ids == 1)?;
    Ok(namespace)
}

/// How long it takes to print what the table of jobs has.
fn condor_q(bed: &Bed) -> Result<f64> {
    let arguments = ["-allusers", "-af", "ClusterId", "ProcId", "JobStatus", "HTCJobIndex", "NumJobStarts"];
    let began = Instant::now();
    bed.pool.tool("condor_q", &arguments)?;
    Ok(began.elapsed().as_secs_f64())
}
