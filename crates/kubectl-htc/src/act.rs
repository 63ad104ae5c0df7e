//! Commands `hold`, `release` and `remove` for single jobs.

use std::process::ExitCode;
use std::time::Duration;

use futures::StreamExt as _;
use htc_machine::actions::JobAction;
use htc_machine::indices::Indices;

use super::CommandFailure;
use super::cluster::{Cluster, JobsClient};
use super::procs::{ApiRefusal, JobSelector, parse_which};
use crate::terminal::{say, tell};

/// Maximum number of concurrent requests.
const AT_ONCE: usize = 8;
/// Number of attempts for a request that may succeed a moment later.
const TRIES: u32 = 5;
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The jobs, each as NAME/INDEX; or the name of an HTCJob with --indexes.
    #[arg(required = true, value_name = "NAME/INDEX", value_parser = parse_which)]
    jobs: Vec<JobSelector>,
    /// Which jobs of the HTCJob, for example `3,17,200-210`.
    #[arg(long)]
    indexes: Option<Indices>,
}

impl Arguments {
    /// Returns the names of the jobs.
    fn names(&self) -> Result<Vec<String>, CommandFailure> {
        match (self.jobs.as_slice(), &self.indexes) {
            ([JobSelector { htcjob, index: None }], Some(indexes)) => {
                Ok(indexes.iter().map(|index| format!("{htcjob}-{index}")).collect())
            }
            (_, Some(_)) => Err(CommandFailure("with --indexes, give the name of one HTCJob".to_owned())),
            (jobs, None) => {
                let name = |job: &JobSelector| match job.index {
                    Some(index) => Ok(format!("{}-{index}", job.htcjob)),
                    None => Err(CommandFailure(format!(
                        "which jobs of {}? Write NAME/INDEX, or use --indexes. A whole HTCJob is held with spec.suspend, \
                         and removed with kubectl delete",
                        job.htcjob
                    ))),
                };
                jobs.iter().map(name).collect()
            }
        }
    }
}

pub(super) async fn run(
    cluster: &Cluster,
    arguments: &Arguments,
    wanted: JobAction,
) -> Result<ExitCode, CommandFailure> {
    let names = arguments.names()?;
    let jobs = cluster.jobs().await?;
    let action = match wanted {
        JobAction::Hold => "hold",
        JobAction::Release => "release",
        JobAction::Remove => "remove",
    };
    let each = names.iter().map(|name| {
        let jobs = &jobs;
        async move { (name, post(jobs, name, action).await) }
    });
    let mut done = futures::stream::iter(each).buffered(AT_ONCE);
    let mut failed = 0;
    while let Some((name, result)) = done.next().await {
        match result {
            Ok(()) => say!("htcproc.procs.htc.cern.ch/{name} {action} requested"),
            Err(refused) => {
                failed += 1;
                tell!("error: cannot {action} htcproc.procs.htc.cern.ch/{name}: {}", refused.message);
            }
        }
    }
    if failed == 0 { Ok(ExitCode::SUCCESS) } else { Ok(ExitCode::from(super::ERROR)) }
}

async fn post(jobs: &JobsClient, name: &str, action: &str) -> Result<(), ApiRefusal> {
    let mut tries = 1;
    loop {
        match jobs.post(name, action).await {
            Ok(()) => return Ok(()),
            Err(refused) if refused.is_transient() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(refused) => return Err(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(jobs: &[&str], indexes: Option<&str>) -> Result<Vec<String>, CommandFailure> {
        let jobs = jobs.iter().map(|job| parse_which(job).unwrap()).collect();
        let indexes = indexes.map(|indexes| indexes.parse().unwrap());
        Arguments { jobs, indexes }.names()
    }

    #[test]
    fn jobs_are_selected_by_name_or_by_indexes() {
        assert_eq!(names(&["zero/3", "one/0"], None).unwrap(), ["zero-3", "one-0"]);
        assert_eq!(names(&["zero"], Some("1,3-4")).unwrap(), ["zero-1", "zero-3", "zero-4"]);
        assert!(names(&["zero"], None).unwrap_err().to_string().contains("spec.suspend"));
        assert!(names(&["zero/1"], Some("2")).is_err());
        assert!(names(&["zero", "one"], Some("2")).is_err());
    }
}
