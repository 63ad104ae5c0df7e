//! Row 11: the jobs of the huge HTCJob as objects, first while all of them are idle, then while they run: as many as the machine can start.

use std::thread;
use std::time::{Duration, Instant};

use testbed::wait_for;

use super::beside::{Alone, Beside};
use super::huge::PAYLOAD;
use super::{LONG, percentile, real, seconds};
use crate::bed::Bed;
use crate::cluster::{Changes, Cluster, PATIENCE, Pages, htcjob};
use crate::error::{Error, Result};
use crate::front::Front;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::say;
use crate::usage::Usage;

/// What kubectl asks for.
const PAGE: usize = 500;
/// MiB that the leader may have more while 100,000 jobs run.
const LEADER: f64 = 128.0;
/// Between two small HTCJobs.
const EVERY: Duration = Duration::from_millis(500);
/// So many have ended when it is looked at those that run: since then jobs start and end all the time.
const ENDED: usize = 50;

/// What is looked at.
struct Place<'a> {
    path: String,
    jobs: usize,
    front: &'a Front,
    /// How long a small HTCJob takes while nobody looks.
    alone: Alone,
    /// Resident memory of the leader before the first look.
    before: f64,
}

/// What one look took, and all that was done meanwhile.
struct Look {
    asked: Asked,
    beside: Beside,
    by_hand: f64,
    /// Seconds until all was told, and of the leader's processor and its tools' in them.
    took: f64,
    cpu: f64,
    tools: f64,
    peak: f64,
    front_peak: f64,
}

/// What was asked for, one after the other.
struct Asked {
    lists: [Pages; 2],
    /// None.
    failed: Selected,
    running: Selected,
    succeeded: Selected,
    /// Seconds until a new watch had told of all.
    watched: f64,
}

/// Those in one state.
struct Selected {
    rows: usize,
    took: f64,
}

/// The HTCJob in `namespace` has so many jobs, all in HTCondor.
pub(super) fn measure(
    bed: &mut Bed,
    raw: &Raw,
    alone: Alone,
    namespace: &str,
    queue: u32,
    report: &mut Report,
) -> Result<()> {
    let jobs = queue as usize;
    say(&format!("row 11: {jobs} jobs listed, selected and watched"));
    let small = [bed.namespace()?, bed.namespace()?];
    let front = Front::start(bed)?;
    bed.wait_written()?;
    let path = format!("/apis/procs.htc.cern.ch/v1alpha1/namespaces/{namespace}/htcprocs");
    let place = Place { path, jobs, front: &front, alone, before: bed.usage()?.rss };
    let idle = look(bed, raw, &place, &small[0], || true)?;
    report.lines.push(idle.line(&place, None));
    bed.clear(&small[0])?;

    let version = bed.cluster.version(&place.path)?;
    let changes = Changes::default();
    let running = thread::scope(|scope| {
        let (cluster, path, changes, version) = (&bed.cluster, &place.path, &changes, &version);
        let watch = scope.spawn(move || cluster.watch_changes(path, version, changes));
        let look = while_they_run(bed, raw, &place, &small[1], changes);
        changes.end();
        watch.join().map_err(|_| Error::Unexpected("a watch panicked".to_owned()))??;
        look
    });
    bed.pool.set_start(false)?;
    let (look, reported) = running?;
    report.lines.push(look.line(&place, Some(&reported)));
    bed.clear(&small[1])?;
    front.end(bed)
}

/// What a watch has told that began before the first job started.
struct Ran {
    /// Seconds from when jobs might start to when so many had ended that it was looked.
    until: f64,
    /// Jobs that have started since.
    starts: usize,
    /// Jobs that ended while it was looked, and how long after each end the watch told of it.
    delays: Vec<f64>,
}

/// Lets jobs start, and looks once some have ended.
fn while_they_run(bed: &Bed, raw: &Raw, place: &Place<'_>, small: &str, changes: &Changes) -> Result<(Look, Ran)> {
    let (wanted, began) = (ENDED.min(place.jobs / 10), Instant::now());
    bed.pool.set_start(true)?;
    wait_for("jobs to end", LONG, || {
        let ends = changes.ends();
        if ends >= wanted { Ok(()) } else { Err(format!("{} starts, {ends} ends", changes.starts())) }
    })?;
    let (until, before, starts) = (began.elapsed().as_secs_f64(), changes.ends(), changes.starts());
    say(&format!("row 11: {starts} have started after {}, and {before} ended", seconds(until)));
    // However soon all of it is done, one has ended meanwhile.
    let look = look(bed, raw, place, small, || changes.ends() > before)?;
    let ran = Ran { until, starts: changes.starts(), delays: changes.delays(before) };
    if look.asked.running.rows == 0 || look.asked.succeeded.rows == 0 || ran.delays.is_empty() {
        let (running, ended, meanwhile) = (look.asked.running.rows, look.asked.succeeded.rows, ran.delays.len());
        return Err(Error::Unexpected(format!(
            "{running} jobs run, {ended} have ended, {meanwhile} of them meanwhile"
        )));
    }
    Ok((look, ran))
}

/// All pages twice, three selections and a new watch, while small HTCJobs come, and until `enough`.
fn look(bed: &Bed, raw: &Raw, place: &Place<'_>, small: &str, enough: impl Fn() -> bool) -> Result<Look> {
    let (pid, front) = (bed.operator_pid()?, place.front.pid());
    for pid in [pid, front] {
        Usage::forget_peak(pid)?;
    }
    let (before, began) = (bed.usage()?, Instant::now());
    let (cluster, path, jobs) = (&bed.cluster, &place.path, place.jobs);
    let (asked, beside) = thread::scope(|scope| {
        let asked = scope.spawn(move || Asked::now(cluster, path, jobs));
        let done = || asked.is_finished() && (enough() || began.elapsed() > PATIENCE * 5);
        let beside = Beside::measure(bed, raw, small, EVERY, done);
        let asked = asked.join().map_err(|_| Error::Unexpected("a list panicked".to_owned()))?;
        Ok::<_, Error>((asked?, beside?))
    })?;
    let (took, usage, front_usage) = (began.elapsed().as_secs_f64(), bed.usage()?, place.front.usage()?);
    let look = Look {
        beside,
        took,
        cpu: usage.cpu - before.cpu,
        tools: usage.tools - before.tools,
        peak: usage.peak,
        front_peak: front_usage.peak,
        by_hand: condor_q(bed)?,
        asked,
    };
    let Asked { failed, running, succeeded, watched, .. } = &look.asked;
    say(&format!(
        "row 11: listed in {}, condor_q {}; selected in {}, {} and {}, watched in {}",
        seconds(look.list()),
        seconds(look.by_hand),
        seconds(failed.took),
        seconds(running.took),
        seconds(succeeded.took),
        seconds(*watched),
    ));
    Ok(look)
}

impl Asked {
    fn now(cluster: &Cluster, path: &str, jobs: usize) -> Result<Self> {
        let lists = [cluster.pages(path, PAGE)?, cluster.pages(path, PAGE)?];
        if lists.iter().any(|list| list.rows != jobs) {
            let rows = lists.map(|list| list.rows);
            return Err(Error::Unexpected(format!("{jobs} jobs, and the lists had {rows:?}")));
        }
        let select = |state: &str| {
            let pages = cluster.pages(&format!("{path}?fieldSelector=status.state%3D{state}"), PAGE)?;
            Ok::<_, Error>(Selected { rows: pages.rows, took: pages.took.iter().sum() })
        };
        // None of them has failed: all are looked at, and one answer says so.
        let (failed, running, succeeded) = (select("Failed")?, select("Running")?, select("Succeeded")?);
        if failed.rows != 0 {
            return Err(Error::Unexpected(format!("{} of the jobs have failed", failed.rows)));
        }
        let began = Instant::now();
        cluster.watch_all(path, jobs)?;
        Ok(Self { lists, failed, running, succeeded, watched: began.elapsed().as_secs_f64() })
    }
}

impl Look {
    /// Seconds of a whole list.
    fn list(&self) -> f64 {
        let [first, second] = self.asked.lists.each_ref().map(|list| list.took.iter().sum::<f64>());
        f64::midpoint(first, second)
    }

    /// The line of the table; `ran`: of jobs that run.
    fn line(&self, place: &Place<'_>, ran: Option<&Ran>) -> Line {
        let (jobs, list) = (place.jobs, self.list());
        let Asked { lists, failed, running, succeeded, watched } = &self.asked;
        let mut pages: Vec<f64> = lists.iter().flat_map(|list| list.took.clone()).collect();
        pages.sort_by(f64::total_cmp);
        let (p50, p99) = (percentile(&pages, 0.5), percentile(&pages, 0.99));
        let delays = ran.map(|ran| ran.delays.as_slice()).unwrap_or_default();
        let (end50, end99) = (percentile(delays, 0.5), percentile(delays, 0.99));
        let life = ran.map_or_else(String::new, |ran| {
            format!(
                "{} Running in {}, {} Succeeded in {}; of {} ends meanwhile ({:.1}/s) another watch told after p50 {}, p99 {}; {} have started in \
                 all, {} before it; ",
                running.rows,
                seconds(running.took),
                succeeded.rows,
                seconds(succeeded.took),
                delays.len(),
                real(delays.len()) / self.took,
                seconds(end50),
                seconds(end99),
                ran.starts,
                seconds(ran.until),
            )
        });
        let kind = if ran.is_some() { "while they start, run and end" } else { "all idle" };
        let ratio = list / self.by_hand;
        Line {
            row: 11,
            what: format!(
                "{jobs} jobs of one HTCJob as objects, {kind}: listed by pages of {PAGE}, selected by status.state, watched"
            ),
            operator: format!(
                "listed in {} ({:.0} jobs/s; a page p50 {:.0} ms, p99 {:.0} ms), none of them Failed in {}, all on a new watch in {}; {life}{}; \
                 leader RSS {:.0} MiB before, peak {:.0} MiB, CPU {:.1} s and its tools' {:.1} s \
                 in {}; front peak {:.0} MiB",
                seconds(list),
                real(jobs) / list,
                p50 * 1000.0,
                p99 * 1000.0,
                seconds(failed.took),
                seconds(*watched),
                self.beside.words(place.alone),
                place.before,
                self.peak,
                self.cpu,
                self.tools,
                seconds(self.took),
                self.front_peak,
            ),
            raw: format!(
                "condor_q of the same jobs, five attributes each: {}; {}",
                seconds(self.by_hand),
                self.beside.words_by_hand(place.alone)
            ),
            ratio: format!("{ratio:.2} × the time; {}", self.beside.ratios(place.alone)),
            aim: "a page faster than kubectl asks (200 ms); leader at most 128 MiB more; front under 64 MiB; others at most 2 s longer than alone, or than by hand beside the same"
                .to_owned(),
            reached: Some(
                p99 < 0.2 && self.peak - place.before <= LEADER && self.front_peak < 64.0 && self.beside.in_time(place.alone),
            ),
            numbers: [
                ("jobs", real(jobs)),
                ("listSeconds", list),
                ("pageP50Seconds", p50),
                ("pageP99Seconds", p99),
                ("selectedSeconds", failed.took),
                ("watchedSeconds", *watched),
                ("condorQSeconds", self.by_hand),
                ("ratio", ratio),
                ("starts", real(ran.map_or(0, |ran| ran.starts))),
                ("running", real(running.rows)),
                ("succeeded", real(succeeded.rows)),
                ("ends", real(delays.len())),
                ("endP50Seconds", end50),
                ("endP99Seconds", end99),
                ("lookSeconds", self.took),
                ("leaderBeforeMiB", place.before),
                ("leaderPeakMiB", self.peak),
                ("leaderCpuSeconds", self.cpu),
                ("toolsCpuSeconds", self.tools),
                ("frontPeakMiB", self.front_peak),
            ]
            .into_iter()
            .chain(self.beside.numbers(place.alone))
            .collect(),
        }
    }
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
