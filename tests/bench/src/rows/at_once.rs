//! Rows 1 and 3: many HTCJobs created at once until ids stand in all statuses, and deleted until none is left.

use std::thread;
use std::time::Instant;

use super::{LONG, course, rate, real, seconds};
use crate::bed::Bed;
use crate::cluster::{Requests, htcjob};
use crate::error::{Error, Result};
use crate::raw::{Raw, Submitted};
use crate::report::{Line, Report};
use crate::svg::Chart;
use crate::{Options, say};

/// Submissions by hand at the same time.
const PARALLEL: usize = 4;

pub(crate) fn measure(bed: &mut Bed, raw: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    bed.pool.set_start(false)?;
    let last = options.at_once.last().copied();
    for count in options.at_once.iter().copied() {
        let deleted = options.rows.contains(&3) && Some(count) == last;
        if !options.rows.contains(&1) && !deleted {
            continue;
        }
        let namespace = bed.namespace()?;
        let lines = create(bed, raw, &namespace, count, options, report)?;
        report.lines.extend(lines);
        if deleted {
            let line = delete(bed, raw, &namespace, count, report)?;
            report.lines.push(line);
        } else {
            bed.clear(&namespace)?;
        }
    }
    Ok(())
}

fn create(
    bed: &mut Bed,
    raw: &Raw,
    namespace: &str,
    count: u32,
    options: &Options,
    report: &mut Report,
) -> Result<Vec<Line>> {
    say(&format!("row 1: {count} HTCJobs at once"));
    let (calls, requests) = (bed.tools.calls(), bed.cluster.requests()?);
    let began = Instant::now();
    bed.cluster.create(namespace, (0..count).map(|number| htcjob(&format!("j{number}"), 1, "true")))?;
    let created = began.elapsed().as_secs_f64();
    let wanted = count as usize;
    let at = bed.cluster.seen.wait("ids in all statuses", namespace, LONG, |tally| tally.with_ids == wanted)?;
    let took = at.duration_since(began).as_secs_f64();
    let (calls, requests) = (bed.tools.calls().since(&calls), bed.cluster.requests()?.since(&requests));
    // Those that created them are not the operator's.
    let writes = requests.writes().saturating_sub(count.into());
    say(&format!("row 1: created in {}, ids after {}", seconds(created), seconds(took)));
    say(&format!("row 1: tools: {}; writes: {}", calls.words(), requests.words()));
    if !options.rows.contains(&1) {
        return Ok(Vec::new());
    }
    let beside = beside_bare(bed, raw, namespace, count, took, &requests)?;
    let (one, four) = by_hand(raw, wanted)?;
    let (one_took, four_took) = (one.took.as_secs_f64(), four.took.as_secs_f64());
    let (ratio, staged_ratio) = (four_took / took, four.staged.as_secs_f64() / took);
    let ours = course(&bed.cluster.seen.tally(namespace), began, |point| point.1);
    let hand = |submitted: &Submitted| submitted.ends.iter().copied().zip((1..).map(real)).collect();
    report.charts.push((
        if count >= 1000 { "ids-1000.svg" } else { "ids-100.svg" },
        Chart {
            title: format!("{count} HTCJobs created at once"),
            x: "seconds".to_owned(),
            y: "jobs with ids".to_owned(),
            curves: vec![
                ("operator, ids in the status".to_owned(), ours),
                ("condor_submit, four at once".to_owned(), hand(&four)),
                ("condor_submit, one at a time".to_owned(), hand(&one)),
            ],
        },
    ));
    let line = Line {
        row: 1,
        what: format!("{count} HTCJobs at once until ids stand in all statuses"),
        operator: format!(
            "{} ({:.0}/s); {} condor_submit, {} tools and {writes} API writes in all",
            seconds(took),
            rate(count, took),
            calls.of("condor_submit"),
            calls.all()
        ),
        raw: format!(
            "condor_submit four at once {} ({:.0}/s), until HTCondor has the files {}; one at a time {} ({:.0}/s)",
            seconds(four_took),
            rate(count, four_took),
            seconds(four.staged.as_secs_f64()),
            seconds(one_took),
            rate(count, one_took)
        ),
        ratio: format!("{ratio:.1} × four at once, {staged_ratio:.1} × until HTCondor has the files"),
        aim: "at least 3 × four at once, at least 100/s".to_owned(),
        reached: Some(ratio >= 3.0 && rate(count, took) >= 100.0),
        numbers: [
            ("htcjobs", f64::from(count)),
            ("createdSeconds", created),
            ("idsSeconds", took),
            ("oneAtATimeSeconds", one_took),
            ("fourAtOnceSeconds", four_took),
            ("stagedSeconds", four.staged.as_secs_f64()),
            ("ratio", ratio),
            ("stagedRatio", staged_ratio),
            ("condorSubmit", real(calls.of("condor_submit"))),
            ("tools", real(calls.all())),
        ]
        .into(),
    };
    Ok(vec![line, beside])
}

/// The limit that is left when the operator costs nothing: as many requests to the API server, by a client that does
/// nothing else, while one condor_submit hands over all jobs.
fn beside_bare(bed: &mut Bed, raw: &Raw, namespace: &str, count: u32, took: f64, requests: &Requests) -> Result<Line> {
    let written = bed.cluster.written(namespace, "j0")?;
    let own = bed.namespace()?;
    let description = raw.prepare(1, count)?;
    say("row 1: as many requests by a bare client, and one condor_submit");
    let (wrote, submitted) = thread::scope(|scope| {
        let submitting = scope.spawn(|| raw.submit(&description, 1));
        let wrote = bed.cluster.write_bare(&own, count, requests, &written);
        (wrote, submitting.join())
    });
    let died = |_| Error::Unexpected("the thread of condor_submit died".to_owned());
    let (wrote, staged) = (wrote?.as_secs_f64(), submitted.map_err(died)??.staged.as_secs_f64());
    raw.remove_all()?;
    bed.cluster.remove_bare(&own)?;
    bed.cluster.seen.wait("HTCJobs of the bare client to go", &own, LONG, |tally| tally.objects == 0)?;
    let bare = wrote.max(staged);
    Ok(Line {
        row: 1,
        what: format!("{count} HTCJobs at once, beside a client that only makes the same requests"),
        operator: seconds(took),
        raw: format!(
            "{}: {} requests {}, one condor_submit beside them until HTCondor has the files {}",
            seconds(bare),
            u64::from(count)
                + requests.of("htcjobs", "PATCH")
                + requests.of("htcjobs", "APPLY")
                + requests.of("events", "POST"),
            seconds(wrote),
            seconds(staged)
        ),
        ratio: format!("{:.2} × the time", took / bare),
        aim: "at most 1.25 × the time".to_owned(),
        reached: Some(took <= 1.25 * bare),
        numbers: [
            ("htcjobs", f64::from(count)),
            ("idsSeconds", took),
            ("bareSeconds", wrote),
            ("sharedSubmitSeconds", staged),
            ("bareRatio", took / bare),
        ]
        .into(),
    })
}

/// One at a time, and four at once.
fn by_hand(raw: &Raw, count: usize) -> Result<(Submitted, Submitted)> {
    let descriptions = raw.prepare(count, 1)?;
    say("row 1: by hand, four at once");
    let four = raw.submit(&descriptions, PARALLEL)?;
    raw.remove_all()?;
    say("row 1: by hand, one at a time");
    let one = raw.submit(&descriptions, 1)?;
    raw.remove_all()?;
    Ok((one, four))
}

fn delete(bed: &Bed, raw: &Raw, namespace: &str, count: u32, report: &mut Report) -> Result<Line> {
    say(&format!("row 3: deletion of {count} HTCJobs"));
    let (calls, requests) = (bed.tools.calls(), bed.cluster.requests()?);
    let began = Instant::now();
    bed.cluster.delete_all(namespace)?;
    let asked = began.elapsed().as_secs_f64();
    let at = bed.cluster.seen.wait("all HTCJobs to go", namespace, LONG, |tally| tally.objects == 0)?;
    let took = at.duration_since(began).as_secs_f64();
    let (calls, requests) = (bed.tools.calls().since(&calls), bed.cluster.requests()?.since(&requests));
    let left = bed.queued()?;
    if left > 0 {
        return Err(Error::Unexpected(format!("{left} jobs are left in HTCondor's queue after the deletion")));
    }
    say(&format!("row 3: asked in {}, gone after {}", seconds(asked), seconds(took)));
    say(&format!("row 3: tools: {}; writes: {}", calls.words(), requests.words()));
    raw.submit(&raw.prepare(1, count)?, 1)?;
    let by_hand = raw.remove_all()?.as_secs_f64();
    let ours = course(&bed.cluster.seen.tally(namespace), began, |point| point.3);
    report.charts.push((
        "deletion.svg",
        Chart {
            title: format!("deletion of {count} HTCJobs"),
            x: "seconds".to_owned(),
            y: "HTCJobs left".to_owned(),
            curves: vec![
                ("operator".to_owned(), ours.into_iter().filter(|point| point.0 > 0.0).collect()),
                ("condor_rm".to_owned(), vec![(0.0, f64::from(count)), (by_hand, 0.0)]),
            ],
        },
    ));
    Ok(Line {
        row: 3,
        what: format!("deletion of {count} HTCJobs until none is left"),
        operator: format!("{} (the DELETE requests {}); {} tools", seconds(took), seconds(asked), calls.all()),
        raw: format!("one condor_rm until the queue is empty {}", seconds(by_hand)),
        ratio: format!("{:.1} × the time", took / by_hand),
        aim: "under 6 s".to_owned(),
        reached: Some(took < 6.0),
        numbers: [
            ("htcjobs", f64::from(count)),
            ("askedSeconds", asked),
            ("goneSeconds", took),
            ("condorRmSeconds", by_hand),
            ("tools", real(calls.all())),
        ]
        .into(),
    })
}
