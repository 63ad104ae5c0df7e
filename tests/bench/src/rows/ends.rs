//! Row 4: from a job's end to the status that counts it, without callbacks. Row 9 measures the same with them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::finished::Window;
use super::{LONG, percentile, real, seconds};
use crate::bed::Bed;
use crate::cluster::htcjob;
use crate::error::{Doing as _, Error, Result};
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::svg::Chart;
use crate::{Options, say};

/// So many jobs start in a second.
const STARTS: u32 = 5;
/// How often somebody looks by hand.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) fn measure(bed: &mut Bed, _: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    let count = options.ends;
    say(&format!("row 4: the ends of {count} jobs"));
    let namespace = bed.namespace()?;
    let quiet = options.window / 4;
    create(bed, options, &namespace, quiet * 4)?;
    let calm = calm(bed, &namespace, options, quiet)?;
    let (ours, hand) = delays(bed, options, &namespace, true)?;
    let curve = |values: &[f64]| {
        let all = real(values.len());
        values.iter().copied().zip((1..).map(|place| 100.0 * real(place) / all)).collect()
    };
    report.charts.push((
        "ends.svg",
        Chart {
            title: "from a job's end to the status that counts it".to_owned(),
            x: "seconds".to_owned(),
            y: "% of jobs".to_owned(),
            curves: vec![("operator".to_owned(), curve(&ours)), ("condor_q once a second".to_owned(), curve(&hand))],
        },
    ));
    let (p50, p99) = (percentile(&ours, 0.5), percentile(&ours, 0.99));
    let (hand50, hand99) = (percentile(&hand, 0.5), percentile(&hand, 0.99));
    say(&format!("row 4: p50 {}, p99 {}", seconds(p50), seconds(p99)));
    let Calm { window, schedd_alone } = calm;
    let here = window.cpu + window.tools_cpu;
    let there = window.schedd_cpu - schedd_alone;
    report.lines.push(Line {
        row: 4,
        what: format!("the last line of {count} payloads to the status, without callbacks"),
        operator: format!(
            "p50 {}, p99 {}; before, while all run: {}; CPU {:.2} %, with its tools {here:.2} %, the schedd's {there:.2} % more than the {schedd_alone:.2} % without operator",
            seconds(p50),
            seconds(p99),
            window.tools.words(),
            window.cpu,
        ),
        raw: format!(
            "condor_q once a second ({} of them seen) p50 {}, p99 {}",
            hand.len(),
            seconds(hand50),
            seconds(hand99)
        ),
        aim: "p50 at most 1 s, p99 at most 2.5 s; 2 % of a core and of the schedd".to_owned(),
        reached: Some(p50 <= 1.0 && p99 <= 2.5 && here <= 2.0 && there <= 2.0),
        numbers: [
            ("jobs", f64::from(count)),
            ("p50Seconds", p50),
            ("p99Seconds", p99),
            ("cpuPercent", window.cpu),
            ("toolsCpuPercent", window.tools_cpu),
            ("scheddCpuPercent", window.schedd_cpu),
            ("scheddAloneCpuPercent", schedd_alone),
            ("byHandP50Seconds", hand50),
            ("byHandP99Seconds", hand99),
        ]
        .into(),
        ..Line::default()
    });
    Ok(())
}

/// While all jobs run and none ends.
struct Calm {
    window: Window,
    /// Percent of one core that the schedd takes while no operator runs.
    schedd_alone: f64,
}

/// HTCJobs whose ends are spread, the first one `calm` after all have started.
pub(crate) fn create(bed: &Bed, options: &Options, namespace: &str, calm: Duration) -> Result<()> {
    let count = options.ends;
    bed.pool.set_start(true)?;
    let first = u64::from(count / STARTS) + calm.as_secs();
    let jobs = (0..count).map(|number| {
        let source = format!("sleep {}\necho \"$EPOCHREALTIME\"", first + u64::from(options.spread * number / count));
        htcjob(&format!("end{number}"), 1, &source)
    });
    bed.cluster.create(namespace, jobs)
}

/// Looks on for so long with the operator, and for as long without.
fn calm(bed: &mut Bed, namespace: &str, options: &Options, length: Duration) -> Result<Calm> {
    let all = options.ends as usize;
    bed.cluster.seen.wait("all to run", namespace, LONG, |tally| tally.running + tally.finished >= all)?;
    let window = Window::open(bed, length)?;
    say(&format!("row 4: {}; CPU {:.2} %, its tools {:.2} %", window.tools.words(), window.cpu, window.tools_cpu));
    bed.stop_operator()?;
    let (before, began) = (bed.schedd()?, Instant::now());
    thread::sleep(length);
    let after = bed.schedd()?;
    let schedd_alone = 100.0 * (after.cpu + after.tools - before.cpu - before.tools) / began.elapsed().as_secs_f64();
    bed.restart_with(&[])?;
    let ended = bed.cluster.seen.tally(namespace).finished;
    say(&format!(
        "row 4: the schedd {:.2} %, without operator {schedd_alone:.2} %; {ended} have ended",
        window.schedd_cpu
    ));
    Ok(Calm { window, schedd_alone })
}

/// Seconds from the last line of each payload until a watch has shown its end, and until condor_q has, in order. Nobody asks
/// condor_q unless `by_hand`.
pub(crate) fn delays(bed: &Bed, options: &Options, namespace: &str, by_hand: bool) -> Result<(Vec<f64>, Vec<f64>)> {
    let over = AtomicBool::new(false);
    let (finished, looks) = thread::scope(|scope| {
        let looks = scope.spawn(|| if by_hand { look(bed, &over) } else { Ok(HashMap::new()) });
        let wanted = options.ends as usize;
        let finished = bed.cluster.seen.wait("all to end", namespace, LONG, |tally| tally.finished == wanted);
        over.store(true, Ordering::Relaxed);
        (finished, looks.join())
    });
    finished?;
    let looks = looks.map_err(|_| Error::Unexpected("the looks by hand came to no end".to_owned()))??;
    bed.pool.set_start(false)?;
    let (mut ours, mut hand) = (Vec::new(), Vec::new());
    for (name, shown) in bed.cluster.seen.all(namespace) {
        let path = bed.data.join("htc_out").join(namespace).join(&name).join("latest/0/out");
        let text = std::fs::read_to_string(&path).doing("read the output", &path)?;
        let ended =
            text.trim().parse::<f64>().map_err(|_| Error::Unexpected(format!("the output of {name} is {text:?}")))?;
        let after =
            |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |at| at.as_secs_f64()) - ended;
        ours.extend(shown.ended_at.map(after));
        hand.extend(looks.get(&format!("{namespace}/{name}")).copied().map(after));
    }
    ours.sort_by(f64::total_cmp);
    hand.sort_by(f64::total_cmp);
    bed.clear(namespace)?;
    Ok((ours, hand))
}

/// When condor_q, asked by hand, first shows each job as completed, by its batch name.
fn look(bed: &Bed, over: &AtomicBool) -> Result<HashMap<String, SystemTime>> {
    let mut seen = HashMap::new();
    while !over.load(Ordering::Relaxed) {
        let arguments = ["-allusers", "-constraint", "JobStatus == 4", "-af", "JobBatchName"];
        let answer = bed.pool.tool("condor_q", &arguments)?;
        let now = SystemTime::now();
        for name in answer.lines() {
            seen.entry(name.trim().to_owned()).or_insert(now);
        }
        thread::sleep(LOOK);
    }
    Ok(seen)
}
