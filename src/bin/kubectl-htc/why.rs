//! One page about one HTCJob.

use std::process::ExitCode;

use htc_operator::api::{ConditionStatus, HTCJob, HTCJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::Failure;
use super::cluster::{Cluster, Jobs};
use super::procs::{Which, parse_which};

/// How many of the last Events are shown.
const EVENTS: usize = 10;
/// How many of the last lines of a job's `err`.
const LINES: usize = 10;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Name of the HTCJob, or NAME/INDEX for one of its jobs.
    #[arg(value_parser = parse_which)]
    name: Which,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let jobs = cluster.jobs().await?;
    let name = &arguments.name.htcjob;
    if arguments.name.index.is_some() {
        return why_job(&jobs, &arguments.name).await;
    }
    let job = jobs.get(name).await?;
    let status = job.status.clone().unwrap_or_default();
    println!("{}", head(&jobs.namespace, &job, &status));
    for condition in &status.conditions {
        let mark = if condition.status == ConditionStatus::False { "not " } else { "" };
        println!("  {mark}{} ({}): {}", condition.type_, condition.reason, condition.message);
    }
    if let Some(failed) = &status.failed_indexes {
        println!("Failed jobs: {failed}");
    }
    match events(&jobs, &job).await {
        Ok(events) if events.is_empty() => {}
        Ok(events) => {
            println!("Last Events:");
            for event in events {
                println!("  {event}");
            }
        }
        Err(error) => println!("Events cannot be listed: {error}"),
    }
    println!("Next: {}", next(name, &status));
    Ok(ExitCode::SUCCESS)
}

/// The same of one job.
async fn why_job(jobs: &Jobs, which: &Which) -> Result<ExitCode, Failure> {
    let Some(proc) = jobs.procs(which, "").await?.into_iter().next() else { return Ok(ExitCode::FAILURE) };
    println!("{} is {}; HTCondor has started it {} times", proc.name, proc.state, proc.attempts);
    for (key, value) in &proc.status {
        println!("  {key}: {value}");
    }
    let show = async |title: String, what: &str| {
        let Ok(mut answer) = jobs.of_job(&proc.name, what).await else { return };
        let mut text = Vec::new();
        while let Some(Ok(part)) = answer.next().await {
            text.extend(part);
        }
        if !text.is_empty() {
            println!("{title}");
            for line in String::from_utf8_lossy(&text).lines() {
                println!("  {line}");
            }
        }
    };
    match proc.state.as_str() {
        "Idle" => show("HTCondor on why it does not run:".to_owned(), "analysis").await,
        "Running" | "Failed" | "Succeeded" => {
            show("The last lines of err:".to_owned(), &format!("log?stream=err&tailLines={LINES}")).await;
        }
        _ => {}
    }
    let (htcjob, index) = (&which.htcjob, proc.index);
    println!(
        "Next: {}",
        match proc.state.as_str() {
            "Waiting" => format!("see why the HTCJob is not submitted: kubectl htc why {htcjob}"),
            "Idle" => "wait, or ask for fewer resources in another HTCJob".to_owned(),
            "Held" => "remove the reason for the hold and release the job with condor_release, or delete the HTCJob"
                .to_owned(),
            "Running" => format!("follow it: kubectl htc logs {htcjob}/{index} -f"),
            "Succeeded" => format!("fetch its files: kubectl htc files {htcjob}/{index} FOLDER"),
            _ => format!("run it again: kubectl htc retry {htcjob} --indexes {index}"),
        }
    );
    Ok(ExitCode::SUCCESS)
}

fn head(namespace: &str, job: &HTCJob, status: &HTCJobStatus) -> String {
    let total = status.total.or_else(|| job.spec.jobs());
    let state = status.state.clone().or_else(|| status.phase.map(|phase| phase.to_string()));
    format!(
        "HTCJob {namespace}/{}: {}; {} of {} jobs succeeded, {} failed, {} running, {} idle, {} held",
        job.name_any(),
        state.as_deref().unwrap_or("no operator has seen it yet"),
        status.succeeded,
        total.map_or_else(|| "?".to_owned(), |total| total.to_string()),
        status.failed,
        status.running,
        status.idle,
        status.held
    )
}

/// The last Events of the object, oldest first.
async fn events(jobs: &Jobs, job: &HTCJob) -> Result<Vec<String>, kube::Error> {
    let api: Api<Event> = Api::namespaced(jobs.client.clone(), &jobs.namespace);
    let uid = job.uid().unwrap_or_default();
    let listed = api.list(&ListParams::default().fields(&format!("involvedObject.uid={uid}"))).await?;
    let mut events: Vec<(Timestamp, String)> = listed
        .into_iter()
        .map(|event| {
            let at =
                event.event_time.map(|time| time.0).or(event.last_timestamp.map(|time| time.0)).unwrap_or_default();
            let words = format!("{} {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
            (at, format!("{} {words}", at.strftime("%Y-%m-%d %H:%M:%SZ")))
        })
        .collect();
    events.sort();
    let old = events.len().saturating_sub(EVENTS);
    Ok(events.into_iter().skip(old).map(|(_, line)| line).collect())
}

/// The next step, in one sentence.
fn next(name: &str, status: &HTCJobStatus) -> String {
    let phase = status.phase.map(|phase| phase.to_string()).unwrap_or_default();
    match status.state.as_deref().unwrap_or(&phase) {
        "" => "check that the operator runs and watches this namespace".to_owned(),
        "InvalidSpec" => "correct the spec, delete this HTCJob and create it again".to_owned(),
        "Failed" => {
            format!(
                "see what the failed jobs wrote (kubectl htc logs {name} --failed --err), and run them again: kubectl htc retry {name}"
            )
        }
        "Held" => {
            "if the reason above can be removed, do so and release the jobs with condor_release; else delete the HTCJob"
                .to_owned()
        }
        "Suspended" => "set spec.suspend to false to resume".to_owned(),
        "Completed" => "nothing: every job has succeeded".to_owned(),
        "Pending" | "Submitted" | "Running" | "Terminating" => format!("wait: kubectl htc wait {name}"),
        reason => format!("docs/troubleshooting.md explains {reason}"),
    }
}
