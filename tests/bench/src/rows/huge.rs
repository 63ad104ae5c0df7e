//! Rows 7 and 11: one HTCJob with as many jobs as there may be.

use std::time::{Duration, Instant};

use super::queue::small_ones;
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
/// What each job does, once row 11 lets some run: the first have ended soon, and then others end all the time.
pub(super) const PAYLOAD: &str = "sleep $((20 + $1 % 40))";

pub(crate) fn measure(bed: &mut Bed, raw: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    bed.pool.set_start(false)?;
    let queue = options.huge;
    let namespace = if options.rows.contains(&7) {
        submitted(bed, raw, queue, report)?
    } else {
        super::procs::htcjob_of(bed, queue)?
    };
    let listed =
        if options.rows.contains(&11) { super::procs::measure(bed, &namespace, queue, report) } else { Ok(()) };
    say("deleting it");
    bed.clear(&namespace)?;
    listed
}

/// Row 7; the namespace with the HTCJob.
fn submitted(bed: &mut Bed, raw: &Raw, queue: u32, report: &mut Report) -> Result<String> {
    say(&format!("row 7: one HTCJob with queue {queue}"));
    let jobs = queue.min(STEP);
    let step = raw.submit(&raw.prepare(1, jobs)?, 1)?.took.as_secs_f64();
    raw.remove_all()?;
    let by_hand = step * f64::from(queue) / f64::from(jobs);
    let (namespace, small) = (bed.namespace()?, bed.namespace()?);
    let began = Instant::now();
    bed.cluster.create(&namespace, [htcjob("huge", queue, PAYLOAD)])?;
    let told = std::cell::Cell::new(Instant::now());
    let done = || {
        let tally = bed.cluster.seen.tally(&namespace);
        if told.get().elapsed() > Duration::from_secs(30) {
            say(&format!("row 7: {} ids after {}", tally.ids, seconds(began.elapsed().as_secs_f64())));
            told.set(Instant::now());
        }
        tally.with_ids == 1
    };
    let waits = small_ones(bed, &small, EVERY, done)?;
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
            "{} ({:.0} jobs/s); of {} others the slowest {}; status {:.1} KiB; RSS {:.0} MiB, peak {:.0} MiB",
            seconds(took),
            rate(queue, took),
            waits.count,
            seconds(waits.longest),
            status / 1024.0,
            usage.rss,
            usage.peak
        ),
        raw: format!("condor_submit of {jobs}: {}, so {} for all", seconds(step), seconds(by_hand)),
        ratio: format!("{:.2} × the time", took / by_hand),
        aim: "status under 64 KiB; others not held up over 1 s (beside what they take alone)".to_owned(),
        reached: Some(huge.status_bytes < STATUS && waits.longest < 2.0),
        numbers: [
            ("queue", f64::from(queue)),
            ("idsSeconds", took),
            ("condorSubmitStepSeconds", step),
            ("othersSlowestSeconds", waits.longest),
            ("statusBytes", status),
            ("rssMiB", usage.rss),
            ("peakMiB", usage.peak),
        ]
        .into(),
    });
    bed.clear(&small)?;
    Ok(namespace)
}
