//! Command `story`: what has happened to an HTCJob, step by step, and when its jobs waited, ran and ended.

mod picture;
mod timeline;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use htc_api::{Backend, HTCJob, HTCJobStatus, Phase, Reason};
use htc_machine::text::human;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use self::picture::Picture;
use self::timeline::{HoldSpan, TimelineRow};
use super::CommandFailure;
use super::cluster::{Cluster, JobsClient, parse_name};
use super::events::{events_of, time};
use super::head::head;
use super::line;
use super::procs::ApiRefusal;
use crate::terminal as say;
use crate::terminal::{say, tell};

#[derive(clap::Args)]
#[command(
    after_help = "Times are in UTC. The steps come from the operator, which keeps the last 200 of each HTCJob. Without the jobs API, \
    or without the right to get HTCStories, they come from Events, which Kubernetes keeps for an hour, unless its administrators have \
    set another time. What happened before that comes from the status, which has fewer times.\n\n\
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
    output: Option<StoryFormat>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum StoryFormat {
    Json,
    Yaml,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let jobs = cluster.jobs().await?;
    let job = jobs.get(&arguments.name).await?;
    let (told, left_out) = load_steps(&jobs, &job).await;
    let now = Timestamp::now();
    if let Some(path) = &arguments.svg {
        let (rows, note) = rows(&jobs, &job, &told, now.as_second()).await;
        let count = rows.len();
        let holds = holds(&job, &told, now.as_second());
        let picture = Picture::new(&head(&jobs.namespace, &job, &status(&job)), rows, holds, note.as_deref());
        write(path, &picture.svg())?;
        if path == Path::new("-") {
            return Ok(ExitCode::SUCCESS);
        }
        match &note {
            None => tell!("{}: a timeline of {count} jobs", path.display()),
            Some(note) => tell!("{}: {note}", path.display()),
        }
    }
    let steps = steps(&job, told);
    match arguments.output {
        None => say!("{}\n{}", head(&jobs.namespace, &job, &status(&job)), text(&job, &steps, now)),
        Some(format) => print(format, &steps)?,
    }
    if let Some(left_out) = left_out {
        tell!("{left_out}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the steps that the operator has recorded, from its ledger or else from Events; and a remark for the user
/// about that.
pub(super) async fn load_steps(jobs: &JobsClient, job: &HTCJob) -> (Vec<StoryStep>, Option<String>) {
    let why = match jobs.story(&job.name_any()).await {
        Ok(story) => return recorded(&story),
        Err(ApiRefusal { code: 404, message, .. }) if !message.starts_with("htcstories") => {
            "this cluster has no jobs API, or an older one (docs/jobs-api.md)".to_owned()
        }
        Err(refused) => refused.message,
    };
    match events_of(jobs, job).await {
        Ok(events) => {
            let steps = of_events(&events);
            let gone = if steps.iter().any(|step| step.what == "Pending") {
                ""
            } else {
                " The first are gone or have not come yet; what is missing comes from the status."
            };
            (steps, Some(format!("The steps come from Events, which Kubernetes keeps for an hour: {why}.{gone}")))
        }
        Err(error) => (Vec::new(), Some(format!("{why}; {error}"))),
    }
}

/// Returns the steps of an HTCStory.
fn recorded(story: &Value) -> (Vec<StoryStep>, Option<String>) {
    let step = |transition: &Value| {
        let text = |key: &str| transition[key].as_str().unwrap_or_default();
        Some(StoryStep {
            at: text("time").parse().ok()?,
            what: line(text("reason")),
            message: text("message").to_owned(),
        })
    };
    let steps = story["transitions"].as_array().into_iter().flatten().filter_map(step).collect();
    let earlier = story["earlierTransitions"].as_i64().unwrap_or_default();
    let left_out = (earlier > 0).then(|| {
        format!("{earlier} earlier steps are not kept by the operator; what is missing comes from the status.")
    });
    (steps, left_out)
}

/// Returns the steps in Events, in their order.
fn of_events(events: &[Event]) -> Vec<StoryStep> {
    let mut events: Vec<(&Event, Timestamp)> = events.iter().map(|event| (event, time(event))).collect();
    // Their names end with their numbers.
    events.sort_by_key(|(event, at)| {
        let name = event.metadata.name.as_deref().unwrap_or_default();
        (*at, name.len(), name)
    });
    let owned = |text: &Option<String>| text.clone().unwrap_or_default();
    events
        .iter()
        .map(|(event, at)| StoryStep { at: *at, what: line(&owned(&event.reason)), message: owned(&event.message) })
        .collect()
}

fn status(job: &HTCJob) -> HTCJobStatus {
    job.status.clone().unwrap_or_default()
}

/// One step of the story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoryStep {
    pub(super) at: Timestamp,
    pub(super) what: String,
    pub(super) message: String,
}

/// Returns all steps in order. Times in the object or its status are left out where the operator has recorded a step
/// (`told`) at the same time: its message is better.
fn steps(job: &HTCJob, told: Vec<StoryStep>) -> Vec<StoryStep> {
    let step =
        |at: Timestamp, what: &str, message: &str| StoryStep { at, what: what.to_owned(), message: message.to_owned() };
    let is_told = |step: &StoryStep| told.iter().any(|other| (other.at.as_second() - step.at.as_second()).abs() <= 1);
    let mut steps = Vec::new();
    if let Some(created) = &job.metadata.creation_timestamp {
        steps.push(step(created.0, "Created", "the HTCJob was created"));
    }
    let status = status(job);
    let mut known: Vec<StoryStep> = Vec::new();
    let accepted = match job.spec.backend() {
        Backend::HTCondor => "HTCondor accepted the first job",
        Backend::Kubernetes => "the Job is created",
    };
    known.extend(status.start_time.as_ref().map(|at| step(at.0, "Submitted", accepted)));
    known.extend(status.completion_time.as_ref().map(|at| step(at.0, "Completed", "every job had ended")));
    known.extend(status.conditions.iter().filter_map(|condition| {
        let at = condition.last_transition_time.0;
        Some(step(at, &condition.reason, &condition.message)).filter(|step| !step.what.is_empty())
    }));
    known.retain(|step| !is_told(step));
    steps.extend(told);
    steps.extend(known);
    if let Some(deleted) = &job.metadata.deletion_timestamp {
        steps.push(step(deleted.0, "Deleted", "somebody deleted the HTCJob"));
    }
    steps.sort_by_key(|step| step.at.as_second());
    steps
}

/// Formats a line for each step: its time, the pause before it, its text. The last line of an HTCJob that has not
/// ended is its present state.
fn text(job: &HTCJob, steps: &[StoryStep], now: Timestamp) -> String {
    let ended = status(job).phase == Some(Phase::Completed);
    let stands = (!ended).then(|| StoryStep {
        at: now,
        what: "now".to_owned(),
        message: status(job).message.or(status(job).state).unwrap_or_default(),
    });
    let all: Vec<&StoryStep> = steps.iter().chain(&stands).collect();
    let pause = |at: usize| match at.checked_sub(1) {
        Some(before) => human(all[at].at.as_second() - all[before].at.as_second()),
        None => String::new(),
    };
    let width = all.iter().map(|step| step.what.chars().count()).max().unwrap_or_default();
    let mut lines = vec![format!("{:20}  {:>6}  {:width$}  MESSAGE", "TIME", "PAUSE", "WHAT")];
    lines.extend(all.iter().enumerate().map(|(at, step)| {
        let message = line(step.message.lines().next().unwrap_or_default());
        let time = step.at.strftime("%Y-%m-%d %H:%M:%SZ");
        format!("{time}  {:>6}  {:width$}  {message}", pause(at), step.what).trim_end().to_owned()
    }));
    lines.join("\n")
}

fn print(format: StoryFormat, steps: &[StoryStep]) -> Result<(), CommandFailure> {
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
        StoryFormat::Json => say::json(&list)?,
        StoryFormat::Yaml => say::yaml(&list)?,
    }
    Ok(())
}

/// Returns when HTCondor held some of the jobs, with the first reason that was given. Past holds of single jobs are
/// not recorded.
fn holds(job: &HTCJob, told: &[StoryStep], now: i64) -> Vec<HoldSpan> {
    let (held, over) = (Reason::JobsHeld.to_string(), Reason::NotHeld.to_string());
    let ended = status(job).completion_time.map_or(now, |time| time.0.as_second());
    let mut holds: Vec<HoldSpan> = Vec::new();
    let mut open = false;
    for step in told {
        let at = step.at.as_second();
        if step.what == held && !open {
            holds.push(HoldSpan { from: at, to: ended.max(at), message: step.message.clone() });
            open = true;
        } else if step.what == over && open {
            open = false;
            if let Some(last) = holds.last_mut() {
                last.to = at;
            }
        }
    }
    holds
}

/// Returns a row for each job. If jobs cannot be read, returns one for the HTCJob, and why.
async fn rows(jobs: &JobsClient, job: &HTCJob, told: &[StoryStep], now: i64) -> (Vec<TimelineRow>, Option<String>) {
    let created = job.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0.as_second());
    let finished = status(job).completion_time.map(|time| time.0.as_second());
    let mut rows = Vec::new();
    let listed = jobs
        .each_page(&job.name_any(), "", "application/json", |page| {
            let items = page["items"].as_array().into_iter().flatten();
            rows.extend(items.map(|item| TimelineRow::of_job(item, created, finished, now)));
        })
        .await;
    let why = match listed {
        Ok(()) if rows.is_empty() => "no job is recorded".to_owned(),
        Ok(()) => return (rows, None),
        Err(CommandFailure(why)) => why,
    };
    let running = told.iter().find(|step| step.what == "Running").map(|step| step.at.as_second());
    let row = TimelineRow::of_htcjob(&status(job), created, running, now);
    (vec![row], Some(format!("the HTCJob as a whole, without its jobs: {why}")))
}

fn write(path: &Path, svg: &str) -> Result<(), CommandFailure> {
    if path == Path::new("-") {
        return say::raw(svg.as_bytes()).map_err(|error| CommandFailure::new("write to standard output", error));
    }
    std::fs::write(path, svg).map_err(|error| CommandFailure::new(&format!("write {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use htc_api::HTCJobSpec;
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

    fn whats(steps: &[StoryStep]) -> Vec<(i64, &str)> {
        steps.iter().map(|step| (step.at.as_second(), step.what.as_str())).collect()
    }

    #[test]
    fn story_comes_from_events_and_missing_steps_from_the_status() {
        // Two Events of one second are in the order of their numbers, however the API server lists them.
        let events = [event(3, 160, "Running"), event(2, 101, "Submitted"), event(1, 101, "Pending")];
        let found = steps(&job(Phase::Completed), of_events(&events));
        let wanted = [(100, "Created"), (101, "Pending"), (101, "Submitted"), (160, "Running"), (400, "Completed")];
        assert_eq!(whats(&found), wanted, "the start, a second later than its Event, is one step");
        let mut pods = job(Phase::Completed);
        for (backend, accepted) in [(None, "HTCondor accepted"), (Some(Backend::Kubernetes), "the Job is created")] {
            pods.spec.backend = backend;
            let without = steps(&pods, Vec::new());
            assert_eq!(whats(&without), [(100, "Created"), (102, "Submitted"), (400, "Completed")]);
            assert!(without[1].message.starts_with(accepted));
        }
    }

    #[test]
    fn story_from_the_ledger_counts_its_omitted_steps() {
        let transition = |time: &str, reason: &str| json!({ "time": time, "reason": reason, "message": "m" });
        let rows = [transition("1970-01-01T00:01:42Z", "Submitted"), transition("1970-01-01T00:02:40Z", "Running")];
        let (told, left_out) = recorded(&json!({ "earlierTransitions": 0, "transitions": rows }));
        assert_eq!((whats(&told), left_out), (vec![(102, "Submitted"), (160, "Running")], None));
        let found = steps(&job(Phase::Completed), told);
        assert_eq!(whats(&found), [(100, "Created"), (102, "Submitted"), (160, "Running"), (400, "Completed")]);
        let (_, left_out) = recorded(&json!({ "earlierTransitions": 7, "transitions": rows }));
        assert!(left_out.unwrap().starts_with("7 earlier steps"));
    }

    #[test]
    fn hold_span_ends_with_release_or_completion() {
        let step = |second, what: &str| StoryStep { at: at(second), what: what.to_owned(), message: what.to_owned() };
        let told = [step(110, "JobsHeld"), step(120, "JobsHeld"), step(150, "NotHeld"), step(200, "JobsHeld")];
        let spans = |job: &HTCJob| -> Vec<(i64, i64)> {
            holds(job, &told, 1000).iter().map(|hold| (hold.from, hold.to)).collect()
        };
        assert_eq!(spans(&job(Phase::Running)), [(110, 150), (200, 1000)]);
        assert_eq!(spans(&job(Phase::Completed)), [(110, 150), (200, 400)]);
    }

    #[test]
    fn story_line_has_a_time_and_the_pause_before_it() {
        let job = job(Phase::Running);
        let shown = text(&job, &steps(&job, of_events(&[event(1, 101, "Pending")])), at(700));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "TIME                   PAUSE  WHAT     MESSAGE");
        assert_eq!(lines[1], "1970-01-01 00:01:40Z          Created  the HTCJob was created");
        assert_eq!(lines[2], "1970-01-01 00:01:41Z      1s  Pending  Pending!");
        assert_eq!(lines[3], "1970-01-01 00:11:40Z   9m59s  now      two of three");
        assert_eq!(lines.len(), 4);
    }
}
