//! Command `why`: one page about one HTCJob.

use std::process::ExitCode;

use htc_api::{Backend, ConditionStatus, HTCJob, HTCJobStatus};
use htc_machine::Index;
use htc_machine::indices::Indices;
use htc_machine::transitions::Notice;
use jiff::Timestamp;

use super::CommandFailure;
use super::cluster::{Cluster, JobsClient};
use super::events::{events_of, time};
use super::head::head;
use super::line;
use super::procs::{ApiRefusal, JobSelector, Proc, parse_which};
use super::story::{self, StoryStep};
use crate::terminal::say;

/// Number of last Events to print.
const EVENTS: usize = 10;
/// Number of last lines of a job's `err` to print.
const LINES: usize = 10;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl htc why sums\n  \
    kubectl htc why sums/3")]
pub(super) struct Arguments {
    /// Name of the HTCJob, or NAME/INDEX for one of its jobs.
    #[arg(value_parser = parse_which)]
    name: JobSelector,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let jobs = cluster.jobs().await?;
    let name = &arguments.name.htcjob;
    if arguments.name.index.is_some() {
        return why_job(&jobs, &arguments.name).await;
    }
    let job = jobs.get(name).await?;
    let status = job.status.clone().unwrap_or_default();
    say!("{}", head(&jobs.namespace, &job, &status));
    for condition in &status.conditions {
        let mark = if condition.status == ConditionStatus::False { "not " } else { "" };
        say!("  {mark}{} ({}): {}", condition.type_, condition.reason, line(&condition.message));
    }
    if let Some(failed) = &status.failed_indexes {
        say!("Failed jobs: {failed}");
    }
    match events(&jobs, &job).await {
        Ok(events) if events.is_empty() => {}
        Ok(events) => {
            say!("Last Events:");
            for event in events {
                say!("  {}", line(&event));
            }
        }
        Err(error) => say!("Last Events: {error}"),
    }
    let has_pods = job.spec.backend() == Backend::Kubernetes;
    if status.idle > 0 && !has_pods {
        idle(&jobs, name).await;
    }
    say!("Next: {}", next(name, &status, has_pods));
    Ok(ExitCode::SUCCESS)
}

/// Prints why the first of the idle jobs does not run. Prints nothing without the jobs API.
async fn idle(jobs: &JobsClient, name: &str) {
    let procs = jobs.first_procs(name, "status.state=Idle").await.unwrap_or_default();
    if let Some(proc) = procs.first() {
        show(jobs, &proc.name, &format!("HTCondor on why {} does not run:", proc.name), "analysis").await;
    }
}

/// Prints an answer about one job below a title, unless it is empty.
async fn show(jobs: &JobsClient, proc: &str, title: &str, what: &str) {
    let mut answer = match jobs.of_job(proc, what).await {
        Ok(answer) => answer,
        Err(ApiRefusal { code: 403, message, .. }) => {
            return say!("{title}\n  you may not see that: {}", line(&message));
        }
        Err(_) => return,
    };
    let mut text = Vec::new();
    while let Some(Ok(part)) = answer.next().await {
        text.extend(part);
    }
    if !text.is_empty() {
        say!("{title}");
        for written in String::from_utf8_lossy(&text).lines() {
            say!("  {}", line(written));
        }
    }
}

/// Prints the page about one job.
async fn why_job(jobs: &JobsClient, which: &JobSelector) -> Result<ExitCode, CommandFailure> {
    let Some(proc) = jobs.procs(which, false).await?.into_iter().next() else { return Ok(ExitCode::FAILURE) };
    let job = jobs.get(&which.htcjob).await;
    let has_pods = job.as_ref().is_ok_and(|job| job.spec.backend() == Backend::Kubernetes);
    let starts = if has_pods { "its Pods were started" } else { "HTCondor has started it" };
    say!("{} is {}; {starts} {} times", proc.name, proc.state, proc.attempts);
    for (key, value) in &proc.status {
        say!("  {key}: {}", line(value));
    }
    let htcjob = job.as_ref().ok().and_then(|job| job.status.as_ref()?.job_name.as_deref());
    if let Ok(job) = &job {
        let (told, _) = story::load_steps(jobs, job).await;
        let of_it: Vec<&StoryStep> = told.iter().filter(|step| is_about(step, &proc)).collect();
        if !of_it.is_empty() {
            say!("Events about it:");
        }
        for step in of_it.iter().skip(of_it.len().saturating_sub(EVENTS)) {
            say!("  {} {} {}", step.at.strftime("%Y-%m-%d %H:%M:%SZ"), step.what, line(&step.message));
        }
    }
    match proc.state.as_str() {
        "Idle" if has_pods => say!("{}", where_to_look(&proc, htcjob)),
        "Idle" => show(jobs, &proc.name, "HTCondor's analysis:", "analysis").await,
        "Running" | "Failed" | "Succeeded" => {
            let stream = if has_pods { "out" } else { "err" };
            let what = format!("log?stream={stream}&tailLines={LINES}");
            show(jobs, &proc.name, &format!("The last lines of {stream}:"), &what).await;
        }
        _ => {}
    }
    let (htcjob, index) = (&which.htcjob, proc.index);
    say!(
        "Next: {}",
        match proc.state.as_str() {
            "Waiting" => format!("see why the HTCJob is not submitted: kubectl htc why {htcjob}"),
            "Idle" if has_pods => "wait, or remove what its Pod waits for".to_owned(),
            "Idle" => "wait, or ask for fewer resources in another HTCJob".to_owned(),
            "Held" =>
                "remove the reason for the hold and release the job with kubectl htc release, or delete the HTCJob"
                    .to_owned(),
            "Running" => format!("follow it: kubectl htc logs {htcjob}/{index} -f"),
            "Succeeded" if has_pods => format!("read its log: kubectl htc logs {htcjob}/{index}"),
            "Succeeded" => format!("fetch its files: kubectl htc files {htcjob}/{index} FOLDER"),
            _ => format!("run it again: kubectl htc retry {htcjob} --indexes {index}"),
        }
    );
    Ok(ExitCode::SUCCESS)
}

/// Returns where to look for why a job waits that runs as a Pod: its newest Pod, or the Job that has created none.
fn where_to_look(proc: &Proc, job: Option<&str>) -> String {
    match (proc.status.iter().find(|(key, _)| key == "id"), job) {
        (Some((_, pod)), _) => format!("See why it waits: kubectl describe pod {pod}"),
        (None, Some(job)) => format!("It has no Pod yet. See why: kubectl describe job {job}"),
        (None, None) => "It has no Pod yet, nor a Job".to_owned(),
    }
}

/// Returns whether a step names this job: by its id in HTCondor, as `job 3`, or among the jobs for which a user has
/// requested an action.
fn is_about(step: &StoryStep, proc: &Proc) -> bool {
    let id = proc.status.iter().find(|(key, _)| key == "id").map(|(_, id)| id.as_str());
    let index = proc.index.to_string();
    let plain = |word: &str| word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned();
    let words: Vec<String> = step.message.split_whitespace().map(plain).collect();
    let named = words.iter().any(|word| Some(word.as_str()) == id)
        || words.windows(2).any(|two| two[0].eq_ignore_ascii_case("job") && two[1] == index);
    let wished = [Notice::HeldByUser, Notice::ReleasedByUser, Notice::RemovedByUser];
    named
        || wished.iter().any(|notice| notice.to_string() == step.what)
            && step.message.rsplit_once(": ").is_some_and(|(_, list)| {
                let listed: Option<Indices> = list.trim_end_matches(",…").parse().ok();
                listed.is_some_and(|listed| listed.contains(Index(proc.index)))
            })
}

/// Returns the last Events of the object, oldest first.
async fn events(jobs: &JobsClient, job: &HTCJob) -> Result<Vec<String>, CommandFailure> {
    let mut events: Vec<(Timestamp, String)> = events_of(jobs, job)
        .await?
        .into_iter()
        .map(|event| {
            let at = time(&event);
            let words = format!("{} {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
            (at, format!("{} {words}", at.strftime("%Y-%m-%d %H:%M:%SZ")))
        })
        .collect();
    events.sort();
    let old = events.len().saturating_sub(EVENTS);
    Ok(events.into_iter().skip(old).map(|(_, line)| line).collect())
}

/// Returns the recommended next step, in one sentence.
fn next(name: &str, status: &HTCJobStatus, has_pods: bool) -> String {
    let phase = status.phase.map(|phase| phase.to_string()).unwrap_or_default();
    match status.state.as_deref().unwrap_or(&phase) {
        "" => "check that the operator runs and watches this namespace".to_owned(),
        "InvalidSpec" => "correct the spec, delete this HTCJob and create it again".to_owned(),
        "Failed" => {
            let stream = if has_pods { "" } else { " --err" };
            format!(
                "see what the failed jobs wrote (kubectl htc logs {name} --failed{stream}), and run them again: kubectl htc retry {name}"
            )
        }
        "Held" => {
            "if the reason above can be removed, do so and release the jobs with kubectl htc release; else delete the HTCJob"
                .to_owned()
        }
        state if state.starts_with("Queued") => format!("wait: kubectl htc wait {name}; docs/queues.md explains the queue"),
        "Suspended" => "set spec.suspend to false to resume".to_owned(),
        "Completed" => "nothing: every job has succeeded".to_owned(),
        "Pending" | "Submitted" | "Running" | "Terminating" => format!("wait: kubectl htc wait {name}"),
        reason => format!("docs/troubleshooting.md explains {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_job_points_to_its_pod_or_job() {
        let proc = |status| Proc {
            name: "sums-3".to_owned(),
            index: 3,
            state: "Idle".to_owned(),
            attempts: 0,
            fetched: false,
            status,
        };
        let pod = vec![("id".to_owned(), "sums-1-3-x".to_owned())];
        assert!(where_to_look(&proc(pod), Some("sums-1")).ends_with("kubectl describe pod sums-1-3-x"));
        assert!(where_to_look(&proc(Vec::new()), Some("sums-1")).ends_with("kubectl describe job sums-1"));
    }

    #[test]
    fn story_step_that_names_a_job_is_about_it() {
        let status = vec![("id".to_owned(), "12.3".to_owned())];
        let proc =
            Proc { name: "sums-3".to_owned(), index: 3, state: String::new(), attempts: 1, fetched: false, status };
        let about = |what: &str, message: &str| {
            let step = StoryStep { at: Timestamp::default(), what: what.to_owned(), message: message.to_owned() };
            is_about(&step, &proc)
        };
        assert!(about("JobsHeld", "1 of 5 jobs held; 12.3: no disk; release"));
        assert!(about("Failed", "1 of 5 jobs failed: exit code 4 (1); job 3 (12.3) wrote"));
        assert!(about("Failed", "the output of 1 job is not kept. Job 3: too much"));
        assert!(about("HeldByUser", "oidc:ann holds 3 jobs: 1-4"));
        assert!(about("RemovedByUser", "ann removes 700 jobs: 1,3,…"));
        for (what, message) in [
            ("JobsHeld", "1 of 5 jobs held; 12.30: no disk"),
            ("Failed", "job 30 (12.30) failed; 3 others"),
            ("HeldByUser", "ann holds 2 jobs: 1,4"),
            ("Submitted", "HTCondor accepted 5 jobs: 12.0-4"),
        ] {
            assert!(!about(what, message), "{message}");
        }
    }
}
