//! What has happened to an HTCJob, step by step, and when its jobs waited, ran and ended.

mod picture;
mod timeline;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use htc_operator::api::{HTCJob, HTCJobStatus, Phase};
use htc_operator::procs::table::human;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;
use serde_json::json;

use self::picture::Picture;
use self::timeline::Row;
use super::Failure;
use super::cluster::{Cluster, Jobs, parse_name};
use super::why;

#[derive(clap::Args)]
#[command(
    after_help = "Times are in UTC. Kubernetes keeps Events for an hour, unless its administrators have set another time. \
    What happened before that comes from the status, which has fewer times.\n\n\
    Examples:\n  \
    kubectl htc story sums\n  \
    kubectl htc story sums --svg sums.svg\n  \
    kubectl htc story sums -o json"
)]
pub(super) struct Arguments {
    /// Name of the HTCJob.
    #[arg(value_parser = parse_name)]
    name: String,
    /// Write a picture of all jobs into this file: when each waited, was idle, ran, was held, and how it ended. `-` prints it.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, conflicts_with = "svg")]
    output: Option<Format>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Json,
    Yaml,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let jobs = cluster.jobs().await?;
    let job = jobs.get(&arguments.name).await?;
    let (events, told) = match why::events_of(&jobs, &job).await {
        Ok(events) => (events, None),
        Err(error) => (Vec::new(), Some(format!("Events cannot be listed: {error}"))),
    };
    let now = Timestamp::now();
    if let Some(path) = &arguments.svg {
        let (rows, note) = rows(&jobs, &job, &events, now.as_second()).await;
        let count = rows.len();
        let picture = Picture::new(&why::head(&jobs.namespace, &job, &status(&job)), rows, note.as_deref());
        write(path, &picture.svg())?;
        if path == Path::new("-") {
            return Ok(ExitCode::SUCCESS);
        }
        match &note {
            None => eprintln!("{}: a timeline of {count} jobs", path.display()),
            Some(note) => eprintln!("{}: {note}", path.display()),
        }
    }
    let steps = steps(&job, &events);
    match arguments.output {
        None => println!("{}\n{}", why::head(&jobs.namespace, &job, &status(&job)), text(&job, &steps, now)),
        Some(format) => print(format, &steps)?,
    }
    if let Some(told) = told {
        eprintln!("{told}");
    } else if !events.iter().any(|event| event.reason.as_deref() == Some("Pending")) {
        eprintln!("The first Events are gone or have not come yet; what is missing comes from the status.");
    }
    Ok(ExitCode::SUCCESS)
}

fn status(job: &HTCJob) -> HTCJobStatus {
    job.status.clone().unwrap_or_default()
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    at: Timestamp,
    what: String,
    message: String,
}

/// What has happened, in order. What a time of the object or of its status says an Event of the same time says better.
fn steps(job: &HTCJob, events: &[Event]) -> Vec<Step> {
    let step =
        |at: Timestamp, what: &str, message: &str| Step { at, what: what.to_owned(), message: message.to_owned() };
    let mut of_events: Vec<(&Event, Timestamp)> = events.iter().map(|event| (event, why::time(event))).collect();
    // Their names end with their numbers.
    of_events.sort_by_key(|(event, at)| {
        let name = event.metadata.name.as_deref().unwrap_or_default();
        (*at, name.len(), name)
    });
    let told = |at: Timestamp| of_events.iter().any(|(_, event)| (event.as_second() - at.as_second()).abs() <= 1);
    let mut steps = Vec::new();
    if let Some(created) = &job.metadata.creation_timestamp {
        steps.push(step(created.0, "Created", "the HTCJob was created"));
    }
    steps.extend(of_events.iter().map(|(event, at)| {
        step(*at, event.reason.as_deref().unwrap_or_default(), event.message.as_deref().unwrap_or_default())
    }));
    let status = status(job);
    let mut known: Vec<Step> = Vec::new();
    known.extend(status.start_time.as_ref().map(|at| step(at.0, "Submitted", "HTCondor accepted the first job")));
    known.extend(status.completion_time.as_ref().map(|at| step(at.0, "Completed", "every job had ended")));
    known.extend(status.conditions.iter().filter_map(|condition| {
        let at = condition.last_transition_time.0;
        Some(step(at, &condition.reason, &condition.message)).filter(|step| !step.what.is_empty())
    }));
    steps.extend(known.into_iter().filter(|step| !told(step.at)));
    if let Some(deleted) = &job.metadata.deletion_timestamp {
        steps.push(step(deleted.0, "Deleted", "somebody deleted the HTCJob"));
    }
    steps.sort_by_key(|step| step.at.as_second());
    steps
}

/// A line for each step: its time, the pause before it, what it was. The last line of an HTCJob that has not ended is how it stands.
fn text(job: &HTCJob, steps: &[Step], now: Timestamp) -> String {
    let ended = status(job).phase == Some(Phase::Completed);
    let stands = (!ended).then(|| Step {
        at: now,
        what: "now".to_owned(),
        message: status(job).message.or(status(job).state).unwrap_or_default(),
    });
    let all: Vec<&Step> = steps.iter().chain(&stands).collect();
    let pause = |at: usize| match at.checked_sub(1) {
        Some(before) => human(all[at].at.as_second() - all[before].at.as_second()),
        None => String::new(),
    };
    let width = all.iter().map(|step| step.what.chars().count()).max().unwrap_or_default();
    let mut lines = vec![format!("{:20}  {:>6}  {:width$}  MESSAGE", "TIME", "PAUSE", "WHAT")];
    lines.extend(all.iter().enumerate().map(|(at, step)| {
        let message = step.message.lines().next().unwrap_or_default();
        let time = step.at.strftime("%Y-%m-%d %H:%M:%SZ");
        format!("{time}  {:>6}  {:width$}  {message}", pause(at), step.what).trim_end().to_owned()
    }));
    lines.join("\n")
}

fn print(format: Format, steps: &[Step]) -> Result<(), Failure> {
    let mut before: Option<Timestamp> = None;
    let items: Vec<_> = steps
        .iter()
        .map(|step| {
            let pause = before.replace(step.at).map(|before| step.at.as_second() - before.as_second());
            json!({
                "time": step.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                "pauseSeconds": pause,
                "what": step.what,
                "message": step.message,
            })
        })
        .collect();
    let list = json!({ "steps": items });
    match format {
        Format::Json => println!("{list:#}"),
        Format::Yaml => {
            print!("{}", serde_saphyr::to_string(&list).map_err(|error| Failure::new("write YAML", error))?);
        }
    }
    Ok(())
}

/// A row for each job; where jobs cannot be had, one for the HTCJob, and why.
async fn rows(jobs: &Jobs, job: &HTCJob, events: &[Event], now: i64) -> (Vec<Row>, Option<String>) {
    let created = job.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0.as_second());
    let finished = status(job).completion_time.map(|time| time.0.as_second());
    let mut rows = Vec::new();
    let listed = jobs
        .each_page(&job.name_any(), "", "application/json", |page| {
            let items = page["items"].as_array().into_iter().flatten();
            rows.extend(items.map(|item| Row::of_job(item, created, finished, now)));
        })
        .await;
    let why = match listed {
        Ok(()) if rows.is_empty() => "no job is recorded".to_owned(),
        Ok(()) => return (rows, None),
        Err(Failure(why)) => why,
    };
    let running = events.iter().filter(|event| event.reason.as_deref() == Some("Running")).map(why::time).min();
    let row = Row::of_htcjob(&status(job), created, running.map(Timestamp::as_second), now);
    (vec![row], Some(format!("the HTCJob as a whole, without its jobs: {why}")))
}

fn write(path: &Path, svg: &str) -> Result<(), Failure> {
    if path == Path::new("-") {
        print!("{svg}");
        return Ok(());
    }
    std::fs::write(path, svg).map_err(|error| Failure::new(&format!("write {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use htc_operator::api::HTCJobSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn event(number: u32, second: i64, reason: &str) -> Event {
        let mut event = Event { reason: Some(reason.to_owned()), ..Event::default() };
        event.metadata.name = Some(format!("sums.12345678.{number:04}"));
        event.last_timestamp = Some(Time(at(second)));
        event.message = Some(format!("{reason}!\nmore"));
        event
    }

    fn job(phase: Phase) -> HTCJob {
        let mut job = HTCJob::new("sums", HTCJobSpec::default());
        job.metadata.creation_timestamp = Some(Time(at(100)));
        let time = |second| Some(Time(at(second)));
        let message = Some("two of three".to_owned());
        let status = HTCJobStatus {
            phase: Some(phase),
            start_time: time(102),
            completion_time: time(400).filter(|_| phase == Phase::Completed),
            message,
            ..HTCJobStatus::default()
        };
        job.status = Some(status);
        job
    }

    fn whats(steps: &[Step]) -> Vec<(i64, &str)> {
        steps.iter().map(|step| (step.at.as_second(), step.what.as_str())).collect()
    }

    #[test]
    fn events_tell_the_story_and_the_status_what_they_leave_out() {
        // Two of one second stand in the order of their numbers, however the API server lists them.
        let events = [event(3, 160, "Running"), event(2, 101, "Submitted"), event(1, 101, "Pending")];
        let found = steps(&job(Phase::Completed), &events);
        let wanted = [(100, "Created"), (101, "Pending"), (101, "Submitted"), (160, "Running"), (400, "Completed")];
        assert_eq!(whats(&found), wanted, "the start, a second later than its Event, is not told twice");
        let without = steps(&job(Phase::Completed), &[]);
        assert_eq!(whats(&without), [(100, "Created"), (102, "Submitted"), (400, "Completed")]);
    }

    #[test]
    fn a_line_has_a_time_and_the_pause_before_it() {
        let job = job(Phase::Running);
        let shown = text(&job, &steps(&job, &[event(1, 101, "Pending")]), at(700));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "TIME                   PAUSE  WHAT     MESSAGE");
        assert_eq!(lines[1], "1970-01-01 00:01:40Z          Created  the HTCJob was created");
        assert_eq!(lines[2], "1970-01-01 00:01:41Z      1s  Pending  Pending!");
        assert_eq!(lines[3], "1970-01-01 00:11:40Z   9m59s  now      two of three");
        assert_eq!(lines.len(), 4);
    }
}
