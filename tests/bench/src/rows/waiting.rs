//! Row 13: thousands of HTCJobs that wait in a full HTCQueue: what they cost at rest, and who is next when there is room.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::{Value, json};
use testbed::Port;

use super::finished::Window;
use super::{LONG, course, rate, seconds};
use crate::bed::Bed;
use crate::cluster::htcjob;
use crate::error::Result;
use crate::monitor::value;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::svg::Chart;
use crate::watch::Shown;
use crate::{Options, say};

/// Name of the queue.
const QUEUE: &str = "bench";
/// HTCJobs of the namespace that comes last.
const LATE: u32 = 10;

pub(crate) fn measure(bed: &mut Bed, _: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    bed.pool.set_start(false)?;
    let (waiting, room) = (options.waiting, options.room);
    say(&format!("row 13: {waiting} HTCJobs wait in a queue with room for {room} jobs"));
    bed.stop_operator()?;
    bed.kube().apply_crd(&options.queue_crd, "htcqueues.htc.cern.ch")?;
    bed.kube().apply_stdin(&queue(room).to_string())?;
    let began = Instant::now();
    let monitor = Port::reserve()?;
    bed.start_with(&[
        "--queueing=embedded".to_owned(),
        format!("--metrics-bind-address=127.0.0.1:{}", monitor.number),
    ])?;
    bed.wait_caught_up(began)?;

    let (first, late) = (bed.namespace()?, bed.namespace()?);
    let mut next = 0;
    while next < waiting + room {
        let end = (next + 1000).min(waiting + room);
        bed.cluster.create(&first, (next..end).map(|number| in_queue(&format!("q{number}"))))?;
        next = end;
    }
    let full = room as usize;
    bed.cluster.seen.wait("the quota to be used up", &first, LONG, |tally| tally.with_ids == full)?;
    bed.wait_written()?;
    let window = Window::open(bed, options.window)?;
    say(&format!("row 13: {} writes, tools: {}, CPU {:.2} %", window.writes, window.tools.words(), window.cpu));

    let before = Decisions::so_far(monitor.number)?;
    let late_jobs = (0..LATE).map(|number| in_queue(&format!("late{number}")));
    bed.cluster.create(&late, late_jobs)?;
    bed.wait_written()?;
    let began = Instant::now();
    bed.pool.tool("condor_rm", &["-all"])?;
    bed.cluster.seen.wait("the ids of those that came last", &late, LONG, |tally| tally.with_ids == LATE as usize)?;
    let after = |shown: HashMap<String, Shown>| {
        let ids = shown.into_values().filter_map(|shown| shown.ids_at).filter(|at| *at > began);
        ids.map(|at| at.duration_since(began).as_secs_f64()).fold(0.0, f64::max)
    };
    let last_of_late = after(bed.cluster.seen.all(&late));
    let others = room.saturating_sub(LATE).min(waiting);
    let at = bed
        .cluster
        .seen
        .wait("the room to be used again", &first, LONG, |tally| tally.with_ids >= full + others as usize)?;
    let filled = at.duration_since(began).as_secs_f64();
    say(&format!("row 13: the late ones after {}, all room after {}", seconds(last_of_late), seconds(filled)));
    let more = more_room(bed, &first, room, waiting.saturating_sub(others))?;
    let decisions = Decisions::so_far(monitor.number)?.since(&before);
    say(&format!("row 13: {} decisions, {:.1} ms each", decisions.count, decisions.each() * 1000.0));
    report.charts.push((
        "waiting.svg",
        Chart {
            title: format!("{waiting} HTCJobs in a queue"),
            x: "seconds since there was room".to_owned(),
            y: "HTCJobs with ids".to_owned(),
            curves: vec![(
                "operator".to_owned(),
                course(&bed.cluster.seen.tally(&first), began, |point| point.1)
                    .into_iter()
                    .filter(|at| at.0 > 0.0)
                    .collect(),
            )],
        },
    ));
    report.lines.push(line(options, &window, last_of_late, filled, (more, &decisions)));
    bed.pool.tool("condor_rm", &["-all"])?;
    bed.clear(&late)?;
    bed.clear(&first)?;
    bed.restart_with(&[])
}

/// How often it was decided who gets room, and how long that took in all.
struct Decisions {
    count: f64,
    seconds: f64,
}

impl Decisions {
    fn so_far(monitor: u16) -> Result<Self> {
        let of = |what: &str| value(monitor, &format!("htc_queue_decision_duration_seconds_{what}"));
        Ok(Self { count: of("count")?, seconds: of("sum")? })
    }

    fn since(&self, before: &Self) -> Self {
        Self { count: self.count - before.count, seconds: self.seconds - before.seconds }
    }

    fn each(&self) -> f64 {
        self.seconds / self.count.max(1.0)
    }
}

/// Raises the quota so that a thousand more, or all that are left, have room; how many had ids in a second.
fn more_room(bed: &Bed, namespace: &str, room: u32, left: u32) -> Result<f64> {
    let more = left.min(1000);
    let before = bed.cluster.seen.tally(namespace).with_ids;
    let began = Instant::now();
    bed.kube().apply_stdin(&queue(room + more).to_string())?;
    let wanted = before + more as usize;
    let at = bed.cluster.seen.wait("the larger quota to be used", namespace, LONG, |tally| tally.with_ids >= wanted)?;
    Ok(rate(more, at.duration_since(began).as_secs_f64()))
}

fn line(options: &Options, window: &Window, late: f64, filled: f64, (more, decisions): (f64, &Decisions)) -> Line {
    let (waiting, room) = (options.waiting, options.room);
    let idle = window.writes == 0 && window.cpu < 0.5;
    Line {
        row: 13,
        what: format!(
            "{waiting} HTCJobs wait in a queue for {room} jobs; then its jobs are removed, {LATE} of another namespace came last"
        ),
        operator: format!(
            "waiting: {} writes, tools: {}, CPU {:.2} %, RSS {:.0} MiB; the {LATE} have ids {} after the removal, all {room} {}; with a larger quota {more:.0}/s; a decision over all of them takes {:.1} ms ({:.0}/s)",
            window.writes,
            window.tools.words(),
            window.cpu,
            window.rss,
            seconds(late),
            seconds(filled),
            decisions.each() * 1000.0,
            1.0 / decisions.each(),
        ),
        raw: "–".to_owned(),
        aim: "nothing is written while they wait; those that came last start within a minute; a decision takes less than 100 ms".to_owned(),
        reached: Some(idle && late < 60.0 && decisions.each() < 0.1),
        numbers: [
            ("waiting", f64::from(waiting)),
            ("room", f64::from(room)),
            ("lateSeconds", late),
            ("filledSeconds", filled),
            ("grantedPerSecond", more),
            ("decisionSeconds", decisions.each()),
        ]
        .into_iter()
        .chain(window.numbers())
        .collect(),
        ..Line::default()
    }
}

fn queue(jobs: u32) -> Value {
    json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": QUEUE },
        "spec": { "namespaceSelector": {}, "quota": { "jobs": jobs } },
    })
}

fn in_queue(name: &str) -> Value {
    let mut object = htcjob(name, 1, "true");
    object["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": QUEUE });
    object
}
