//! Rows 7 and 11: one HTCJob with as many jobs as there may be.

use std::time::{Duration, Instant};

use super::beside::{Alone, Beside};
use super::{LONG, course, rate, seconds};
use crate::bed::Bed;
use crate::cluster::htcjob;
use crate::error::Result;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::svg::Chart;
use crate::{Options, say};

/// Between two small HTCJobs.
const EVERY: Duration = Duration::from_secs(3);
/// Largest status.
const STATUS: usize = 64 * 1024;
/// Jobs of one submission by hand, and of one of the operator's.
const STEP: u32 = 500;
/// Jobs that one `condor_rm` by hand removes: it takes much longer than twice as long for twice as many.
const REMOVED: u32 = 10_000;
/// What each job does, once row 11 lets some run: the first have ended soon, and then others end all the time.
pub(super) const PAYLOAD: &str = "sleep $((20 + $1 % 40))";

pub(crate) fn measure(bed: &mut Bed, raw: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    bed.pool.set_start(false)?;
    let queue = options.huge;
    let alone = Alone::measure(bed, raw)?;
    let mut removal = Duration::ZERO;
    let namespace = if options.rows.contains(&7) {
        removal = removed_by_hand(raw, queue)?;
        submitted(bed, raw, alone, queue, report)?
    } else {
        super::procs::htcjob_of(bed, queue)?
    };
    let listed = if options.rows.contains(&11) {
        super::procs::measure(bed, raw, alone, &namespace, queue, report)
    } else {
        Ok(())
    };
    say("deleting it");
    if options.rows.contains(&7) {
        deleted(bed, raw, alone, &namespace, (queue, removal), report)?;
    } else {
        bed.clear(&namespace)?;
    }
    listed
}

/// How long so many jobs take to be removed by hand, as many `condor_rm` of [`REMOVED`] jobs, one after the other.
fn removed_by_hand(raw: &Raw, queue: u32) -> Result<Duration> {
    let jobs = queue.min(REMOVED);
    say(&format!("row 7: {jobs} jobs removed by hand"));
    let descriptions = raw.prepare((jobs / STEP).max(1).try_into().unwrap_or(1), jobs.min(STEP))?;
    raw.submit(&descriptions, 1)?;
    Ok(raw.remove_all()?.mul_f64(f64::from(queue) / f64::from(jobs)))
}

/// The end of row 7: it is deleted. `removal`: how long that takes by hand.
fn deleted(
    bed: &mut Bed,
    raw: &Raw,
    alone: Alone,
    namespace: &str,
    (queue, removal): (u32, Duration),
    report: &mut Report,
) -> Result<()> {
    let small = bed.namespace()?;
    let began = Instant::now();
    bed.cluster.delete_all(namespace)?;
    let took = std::cell::Cell::new(None);
    let gone = || {
        let gone = bed.cluster.seen.tally(namespace).objects == 0;
        if gone && took.get().is_none() {
            took.set(Some(began.elapsed()));
        }
        gone
    };
    let beside = Beside::measure(bed, raw, &small, EVERY, gone)?;
    bed.clear(namespace)?;
    let took = took.get().unwrap_or_else(|| began.elapsed()).as_secs_f64();
    let by_hand = removal.as_secs_f64();
    report.lines.push(Line {
        row: 7,
        what: format!("one HTCJob with queue {queue} from DELETE until it is gone"),
        operator: format!("{} ({:.0} jobs/s); {}", seconds(took), rate(queue, took), beside.words(alone)),
        raw: format!(
            "condor_rm of {} jobs again and again until they have left the queue: {}; {}",
            queue.min(REMOVED),
            seconds(by_hand),
            beside.words_by_hand(alone)
        ),
        ratio: format!("{:.2} × the time; {}", took / by_hand, beside.ratios(alone)),
        aim: "at most 1.5 × the time; others at most 2 s longer than alone, or than by hand beside the same".to_owned(),
        reached: Some(took <= 1.5 * by_hand && beside.in_time(alone)),
        numbers: [("queue", f64::from(queue)), ("goneSeconds", took), ("byHandSeconds", by_hand)]
            .into_iter()
            .chain(beside.numbers(alone))
            .collect(),
    });
    bed.clear(&small)
}

/// Row 7; the namespace with the HTCJob.
fn submitted(bed: &mut Bed, raw: &Raw, alone: Alone, queue: u32, report: &mut Report) -> Result<String> {
    say(&format!("row 7: one HTCJob with queue {queue}"));
    let jobs = queue.min(STEP);
    let step = raw.submit(&raw.prepare(1, jobs)?, 1)?.took.as_secs_f64();
    raw.remove_all()?;
    let by_hand = step * f64::from(queue) / f64::from(jobs);
    let (namespace, small) = (bed.namespace()?, bed.namespace()?);
    let began = Instant::now();
    bed.cluster.create(&namespace, [htcjob("huge", queue, PAYLOAD)])?;
    let reported = std::cell::Cell::new(Instant::now());
    let done = || {
        let tally = bed.cluster.seen.tally(&namespace);
        if reported.get().elapsed() > Duration::from_secs(30) {
            say(&format!("row 7: {} ids after {}", tally.ids, seconds(began.elapsed().as_secs_f64())));
            reported.set(Instant::now());
        }
        tally.with_ids == 1
    };
    let beside = Beside::measure(bed, raw, &small, EVERY, done)?;
    bed.cluster.seen.wait("all ids", &namespace, LONG, |tally| tally.with_ids == 1)?;
    let all = bed.cluster.seen.all(&namespace);
    let huge = all.get("huge").cloned().unwrap_or_default();
    let took = huge.ids_at.map_or(began.elapsed(), |at| at.duration_since(began)).as_secs_f64();
    let usage = bed.usage()?;
    report.charts.push((
        "huge.svg",
        Chart {
            title: format!("one HTCJob with queue {queue}"),
            x: "seconds".to_owned(),
            y: "ids in the status".to_owned(),
            curves: vec![
                ("operator".to_owned(), course(&bed.cluster.seen.tally(&namespace), began, |point| point.2)),
                (
                    format!("condor_submit of {jobs} again and again (reckoned)"),
                    vec![(0.0, 0.0), (by_hand, f64::from(queue))],
                ),
            ],
        },
    ));
    #[allow(clippy::cast_precision_loss, reason = "bytes of a status")]
    let status = huge.status_bytes as f64;
    report.lines.push(Line {
        row: 7,
        what: format!("one HTCJob with queue {queue} until all ids are in the status"),
        operator: format!(
            "{} ({:.0} jobs/s); {}; status {:.1} KiB; RSS {:.0} MiB, peak {:.0} MiB",
            seconds(took),
            rate(queue, took),
            beside.words(alone),
            status / 1024.0,
            usage.rss,
            usage.peak
        ),
        raw: format!(
            "condor_submit of {jobs}: {}, so {} for all; {}",
            seconds(step),
            seconds(by_hand),
            beside.words_by_hand(alone)
        ),
        ratio: format!("{:.2} × the time; {}", took / by_hand, beside.ratios(alone)),
        aim: "status under 64 KiB; others at most 2 s longer than alone, or than by hand beside the same".to_owned(),
        reached: Some(huge.status_bytes < STATUS && beside.in_time(alone)),
        numbers: [
            ("queue", f64::from(queue)),
            ("idsSeconds", took),
            ("condorSubmitStepSeconds", step),
            ("statusBytes", status),
            ("rssMiB", usage.rss),
            ("peakMiB", usage.peak),
        ]
        .into_iter()
        .chain(beside.numbers(alone))
        .collect(),
    });
    bed.clear(&small)?;
    Ok(namespace)
}
