//! Row 2: one HTCJob of many jobs, and how long others wait meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use super::{LONG, course, seconds};
use crate::bed::Bed;
use crate::cluster::{PATIENCE, htcjob};
use crate::error::Result;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::svg::Chart;
use crate::{Options, say};

/// Small HTCJobs that are measured alone.
const ALONE: u32 = 3;
/// Between two small HTCJobs while the large one is under way.
const EVERY: Duration = Duration::from_millis(500);

/// How long small HTCJobs took from their creation to their ids.
pub(super) struct Waits {
    pub(super) longest: f64,
    pub(super) count: usize,
    /// Of each.
    pub(super) all: Vec<f64>,
}

pub(crate) fn measure(bed: &mut Bed, raw: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    bed.pool.set_start(false)?;
    let queue = options.queue;
    say(&format!("row 2: one HTCJob with queue {queue}"));
    let alone = alone(bed)?;
    let descriptions = raw.prepare(2, queue)?;
    let before = raw.submit(&descriptions[..1], 1)?;
    raw.remove_all()?;

    let (namespace, small) = (bed.namespace()?, bed.namespace()?);
    let calls = bed.tools.calls();
    let began = Instant::now();
    bed.cluster.create(&namespace, [htcjob("large", queue, "true")])?;
    let waits = small_ones(bed, &small, EVERY, || bed.cluster.seen.tally(&namespace).with_ids == 1)?;
    let at = bed.cluster.seen.wait("all ids", &namespace, LONG, |tally| tally.with_ids == 1)?;
    let large = bed.cluster.seen.all(&namespace);
    let at = large.get("large").and_then(|shown| shown.ids_at).unwrap_or(at);
    let took = at.duration_since(began).as_secs_f64();
    let calls = bed.tools.calls().since(&calls);
    say(&format!(
        "row 2: ids after {}, others at most {} (alone {}); {}",
        seconds(took),
        seconds(waits.longest),
        seconds(alone),
        calls.words()
    ));
    let after = raw.submit(&descriptions[1..], 1)?;
    raw.remove_all()?;
    let by_hand = f64::midpoint(before.took.as_secs_f64(), after.took.as_secs_f64());
    let staged = f64::midpoint(before.staged.as_secs_f64(), after.staged.as_secs_f64());
    let (ratio, staged_ratio) = (took / by_hand, took / staged);
    let blocked = (waits.longest - alone).max(0.0);
    report.charts.push((
        "queue.svg",
        Chart {
            title: format!("one HTCJob with queue {queue}"),
            x: "seconds".to_owned(),
            y: "ids in the status".to_owned(),
            curves: vec![
                ("operator".to_owned(), course(&bed.cluster.seen.tally(&namespace), began, |point| point.2)),
                ("condor_submit".to_owned(), vec![(0.0, 0.0), (by_hand, 0.0), (by_hand, f64::from(queue))]),
            ],
        },
    ));
    report.lines.push(Line {
        row: 2,
        what: format!("queue {queue} until all ids are in the status; other HTCJobs meanwhile"),
        operator: format!(
            "{}; of {} others the slowest {}, alone {}",
            seconds(took),
            waits.count,
            seconds(waits.longest),
            seconds(alone)
        ),
        raw: format!(
            "one condor_submit {} and {}, until HTCondor has the files {} and {}",
            seconds(before.took.as_secs_f64()),
            seconds(after.took.as_secs_f64()),
            seconds(before.staged.as_secs_f64()),
            seconds(after.staged.as_secs_f64())
        ),
        ratio: format!(
            "{ratio:.2} × the time, {staged_ratio:.2} × until HTCondor has the files; others {} longer",
            seconds(blocked)
        ),
        aim: "at most 1.3 × the time; others not blocked over 1 s".to_owned(),
        reached: Some(ratio <= 1.3 && blocked <= 1.0),
        numbers: [
            ("queue", f64::from(queue)),
            ("idsSeconds", took),
            ("condorSubmitBeforeSeconds", before.took.as_secs_f64()),
            ("condorSubmitAfterSeconds", after.took.as_secs_f64()),
            ("stagedSeconds", staged),
            ("ratio", ratio),
            ("stagedRatio", staged_ratio),
            ("othersSlowestSeconds", waits.longest),
            ("othersAloneSeconds", alone),
        ]
        .into(),
    });
    bed.clear(&small)?;
    bed.clear(&namespace)
}

/// The usual time of a small HTCJob: that of the middle one of some that were created one after another.
pub(super) fn alone(bed: &mut Bed) -> Result<f64> {
    let namespace = bed.namespace()?;
    let mut took = Vec::new();
    for number in 1..=ALONE {
        let began = Instant::now();
        bed.cluster.create(&namespace, [htcjob(&format!("alone{number}"), 1, "true")])?;
        let wanted = number as usize;
        let at = bed.cluster.seen.wait("the ids of one", &namespace, PATIENCE, |tally| tally.with_ids == wanted)?;
        took.push(at.duration_since(began).as_secs_f64());
    }
    bed.clear(&namespace)?;
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}

/// Creates small HTCJobs, one after another, until `done`; then waits until all of them have ids.
pub(super) fn small_ones(bed: &Bed, namespace: &str, every: Duration, done: impl Fn() -> bool) -> Result<Waits> {
    let mut created: Vec<(String, Instant)> = Vec::new();
    let began = Instant::now();
    while !done() && began.elapsed() < LONG * 4 {
        let name = format!("small{}", created.len());
        created.push((name.clone(), Instant::now()));
        bed.cluster.create(namespace, [htcjob(&name, 1, "true")])?;
        thread::sleep(every);
    }
    let wanted = created.len();
    bed.cluster.seen.wait("the ids of the small ones", namespace, LONG, |tally| tally.with_ids == wanted)?;
    let seen = bed.cluster.seen.all(namespace);
    let waits = created.iter().filter_map(|(name, began)| {
        let at = seen.get(name)?.ids_at?;
        Some(at.saturating_duration_since(*began).as_secs_f64())
    });
    let all: Vec<f64> = waits.collect();
    Ok(Waits { longest: all.iter().copied().fold(0.0, f64::max), count: wanted, all })
}
