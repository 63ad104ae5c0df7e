//! Rows 5, 6 and 8: thousands of finished HTCJobs at rest; the start with them; and thousands of live jobs. They come last:
//! the HTCJobs stay, to be gone with the servers.

use std::thread;
use std::time::{Duration, Instant};

use super::{LONG, rate, real, seconds};
use crate::bed::Bed;
use crate::cluster::htcjob;
use crate::error::Result;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::svg::Chart;
use crate::{Options, say};

/// Jobs of one HTCJob that fills the queue up for row 8.
const FILL: u32 = 1000;

/// What a window showed.
pub(super) struct Window {
    pub(super) seconds: f64,
    pub(super) writes: u64,
    reads: u64,
    renewals: u64,
    pub(super) tools: crate::tools::Calls,
    /// Percent of one core: the operator, and the tools that it called.
    pub(super) cpu: f64,
    pub(super) tools_cpu: f64,
    /// The same of the schedd.
    pub(super) schedd_cpu: f64,
    pub(super) rss: f64,
    pss: f64,
}

pub(crate) fn measure(bed: &mut Bed, _: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    bed.pool.set_start(false)?;
    let namespace = bed.namespace()?;
    let mut have = 0;
    let (mut growth, mut cpu, mut memory) = (vec![(0.0, 0.0)], Vec::new(), Vec::new());
    let mut spent = 0.0;
    for count in options.finished.iter().copied() {
        let began = Instant::now();
        say(&format!("row 5: {} HTCJobs more, {count} in all", count - have));
        create(bed, &namespace, have, count)?;
        spent += began.elapsed().as_secs_f64();
        growth.push((f64::from(count), spent));
        say(&format!("row 5: their ids after {}", seconds(began.elapsed().as_secs_f64())));
        let live = count - have;
        have = count;
        if options.rows.contains(&8) && options.finished.last() == Some(&count) {
            track(bed, live, options, report)?;
        }
        end(bed, &namespace, count)?;
        if options.rows.contains(&5) {
            bed.wait_quiet()?;
            let window = Window::open(bed, options.window)?;
            cpu.push((f64::from(count), window.cpu));
            memory.push((f64::from(count), window.rss));
            report.lines.push(at_rest(count, &window));
        }
    }
    let chart = |title: &str, y: &str, points| Chart {
        title: title.to_owned(),
        x: "HTCJobs".to_owned(),
        y: y.to_owned(),
        curves: vec![("operator".to_owned(), points)],
    };
    report.charts.push(("growth.svg", chart("until ids stand in all statuses", "seconds", growth)));
    if options.rows.contains(&5) {
        report.charts.push(("rest-cpu.svg", chart("finished HTCJobs at rest", "% of one core", cpu)));
        report.charts.push(("rest-memory.svg", chart("finished HTCJobs at rest", "MiB resident", memory)));
    }
    if options.rows.contains(&6) {
        start_again(bed, have, report)?;
    }
    Ok(())
}

/// In steps of a thousand, so that it can be seen to go on.
fn create(bed: &Bed, namespace: &str, from: u32, to: u32) -> Result<()> {
    let mut next = from;
    while next < to {
        let end = (next + 1000).min(to);
        let began = Instant::now();
        bed.cluster.create(namespace, (next..end).map(|number| htcjob(&format!("f{number}"), 1, "true")))?;
        let wanted = end as usize;
        bed.cluster.seen.wait("ids in all statuses", namespace, LONG, |tally| tally.with_ids == wanted)?;
        let took = began.elapsed().as_secs_f64();
        say(&format!("row 5: {end} have ids, the last {} at {:.0}/s", end - next, rate(end - next, took)));
        next = end;
    }
    Ok(())
}

/// Ends all jobs at once, as a person can: they are Completed, with the condition Failed and the reason Removed.
fn end(bed: &Bed, namespace: &str, count: u32) -> Result<()> {
    let began = Instant::now();
    bed.pool.tool("condor_rm", &["-all"])?;
    let wanted = count as usize;
    bed.cluster.seen.wait("all HTCJobs to end", namespace, LONG, |tally| tally.finished == wanted)?;
    say(&format!("row 5: {count} have ended, the last {} after condor_rm", seconds(began.elapsed().as_secs_f64())));
    Ok(())
}

impl Window {
    pub(super) fn open(bed: &Bed, length: Duration) -> Result<Self> {
        say(&format!("looking on for {} s", length.as_secs()));
        let (requests, calls) = (bed.cluster.requests()?, bed.tools.calls());
        let (usage, schedd) = (bed.usage()?, bed.schedd()?);
        let began = Instant::now();
        thread::sleep(length);
        let (after, schedd_after) = (bed.usage()?, bed.schedd()?);
        let seconds = began.elapsed().as_secs_f64();
        let (requests, tools) = (bed.cluster.requests()?.since(&requests), bed.tools.calls().since(&calls));
        Ok(Self {
            seconds,
            writes: requests.writes(),
            reads: requests.reads(),
            renewals: requests.renewals(),
            tools,
            cpu: 100.0 * (after.cpu - usage.cpu) / seconds,
            tools_cpu: 100.0 * (after.tools - usage.tools) / seconds,
            schedd_cpu: 100.0 * (schedd_after.cpu + schedd_after.tools - schedd.cpu - schedd.tools) / seconds,
            rss: after.rss,
            pss: after.pss,
        })
    }

    #[allow(clippy::cast_precision_loss, reason = "counts of requests")]
    pub(super) fn numbers(&self) -> [(&'static str, f64); 10] {
        [
            ("windowSeconds", self.seconds),
            ("apiWrites", self.writes as f64),
            ("apiReads", self.reads as f64),
            ("leaseRenewals", self.renewals as f64),
            ("tools", real(self.tools.all())),
            ("cpuPercent", self.cpu),
            ("toolsCpuPercent", self.tools_cpu),
            ("scheddCpuPercent", self.schedd_cpu),
            ("rssMiB", self.rss),
            ("pssMiB", self.pss),
        ]
    }
}

fn at_rest(count: u32, window: &Window) -> Line {
    let Window { seconds, writes, reads, renewals, tools, cpu, rss, pss, .. } = window;
    say(&format!("row 5: {writes} writes, tools: {}, CPU {cpu:.2} %, {rss:.0} MiB", tools.words()));
    Line {
        row: 5,
        what: format!("{count} finished HTCJobs at rest, {seconds:.0} s"),
        operator: format!(
            "{writes} writes and {reads} reads of HTCJobs and Events ({renewals} renewals of Leases), tools: {}; CPU {cpu:.2} %, RSS {rss:.0} MiB, PSS {pss:.0} MiB",
            tools.words()
        ),
        raw: "–".to_owned(),
        aim: "no writes, no tools, under 0.1 % CPU, under 100 MiB".to_owned(),
        reached: Some(*writes == 0 && tools.all() == 0 && *cpu < 0.1 && *rss < 100.0),
        numbers: [("htcjobs", f64::from(count))].into_iter().chain(window.numbers()).collect(),
        ..Line::default()
    }
}

/// Row 8: the tracker with as many idle jobs as there are to be finished ones.
fn track(bed: &mut Bed, live: u32, options: &Options, report: &mut Report) -> Result<()> {
    let wanted = options.finished.last().copied().unwrap_or(live);
    let namespace = bed.namespace()?;
    let large = (wanted - live).div_ceil(FILL);
    say(&format!("row 8: {large} HTCJobs with queue {FILL}, so that {wanted} jobs are live"));
    bed.cluster.create(&namespace, (0..large).map(|number| htcjob(&format!("fill{number}"), FILL, "true")))?;
    if large > 0 {
        let all = large as usize;
        bed.cluster.seen.wait("all ids", &namespace, LONG, |tally| tally.with_ids == all)?;
    }
    // What was about to change has been looked at.
    thread::sleep(Duration::from_secs(5));
    let queued = bed.queued()?;
    let window = Window::open(bed, options.window)?;
    let intervals = window.seconds / 20.0;
    let queries = real(window.tools.of("condor_q"));
    let Window { seconds, writes, tools, cpu, tools_cpu, schedd_cpu, rss, .. } = &window;
    say(&format!("row 8: {queued} live jobs, {}; CPU {cpu:.2} %, schedd {schedd_cpu:.2} %", tools.words()));
    report.lines.push(Line {
        row: 8,
        what: format!("tracker with {queued} live (idle) jobs, {seconds:.0} s, interval 20 s"),
        operator: format!(
            "{:.1} condor_q an interval ({}); CPU {cpu:.2} %, with its tools {:.2} %, the schedd's {schedd_cpu:.2} %, RSS {rss:.0} MiB, {writes} writes",
            queries / intervals,
            tools.words(),
            cpu + tools_cpu
        ),
        raw: "–".to_owned(),
        aim: "one query an interval, under 2 % of a core".to_owned(),
        // The window may begin and end with one.
        reached: Some(queries <= intervals + 1.0 && cpu + tools_cpu < 2.0),
        numbers: [("liveJobs", real(queued)), ("condorQ", queries)].into_iter().chain(window.numbers()).collect(),
        ..Line::default()
    });
    bed.clear(&namespace)
}

/// Row 6.
fn start_again(bed: &mut Bed, count: u32, report: &mut Report) -> Result<()> {
    say(&format!("row 6: start with {count} HTCJobs"));
    bed.stop_operator()?;
    let (requests, calls) = (bed.cluster.requests()?, bed.tools.calls());
    let began = Instant::now();
    bed.start_operator()?;
    let took = bed.wait_caught_up(began)?.as_secs_f64();
    let at_once = bed.usage()?;
    thread::sleep(Duration::from_secs(3));
    let (requests, calls) = (bed.cluster.requests()?.since(&requests), bed.tools.calls().since(&calls));
    let (writes, reads) = (requests.writes(), requests.reads());
    say(&format!("row 6: caught up after {}, {writes} writes; {}", seconds(took), calls.words()));
    #[allow(clippy::cast_precision_loss, reason = "a count of requests")]
    let counted = [("apiWrites", writes as f64), ("apiReads", reads as f64)];
    report.lines.push(Line {
        row: 6,
        what: format!("start with {count} HTCJobs to the first reconcile of the last one"),
        operator: format!(
            "{}; {writes} writes and {reads} reads; CPU {}, peak {:.0} MiB; tools: {}",
            seconds(took),
            seconds(at_once.cpu),
            at_once.peak,
            calls.words()
        ),
        raw: "–".to_owned(),
        aim: "under 5 s, no writes".to_owned(),
        reached: Some(took < 5.0 && writes == 0),
        numbers: [
            ("htcjobs", f64::from(count)),
            ("caughtUpSeconds", took),
            ("cpuSeconds", at_once.cpu),
            ("peakMiB", at_once.peak),
            ("tools", real(calls.all())),
        ]
        .into_iter()
        .chain(counted)
        .collect(),
        ..Line::default()
    });
    Ok(())
}
