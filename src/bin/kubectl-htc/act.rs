//! Hold, release and remove single jobs.

use std::process::ExitCode;
use std::time::Duration;

use futures::StreamExt as _;
use htc_operator::machine::indices::Indices;
use htc_operator::machine::wishes::Wanted;

use super::Failure;
use super::cluster::{Cluster, Jobs};
use super::procs::{Which, parse_which};
use super::say::{say, tell};

/// Requests under way at a time.
const AT_ONCE: usize = 8;
/// How often one is made that may pass a moment later.
const TRIES: u32 = 5;
/// Pause before it is made again.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The jobs, each as NAME/INDEX; or the name of an HTCJob with --indexes.
    #[arg(required = true, value_name = "NAME/INDEX", value_parser = parse_which)]
    jobs: Vec<Which>,
    /// Which jobs of the HTCJob, for example `3,17,200-210`.
    #[arg(long)]
    indexes: Option<Indices>,
}

impl Arguments {
    /// Names of the jobs.
    fn names(&self) -> Result<Vec<String>, Failure> {
        match (self.jobs.as_slice(), &self.indexes) {
            ([Which { htcjob, index: None }], Some(indexes)) => {
                Ok(indexes.iter().map(|index| format!("{htcjob}-{index}")).collect())
            }
            (_, Some(_)) => Err(Failure("with --indexes, give the name of one HTCJob".to_owned())),
            (jobs, None) => {
                let name = |job: &Which| match job.index {
                    Some(index) => Ok(format!("{}-{index}", job.htcjob)),
                    None => Err(Failure(format!(
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

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments, wanted: Wanted) -> Result<ExitCode, Failure> {
    let names = arguments.names()?;
    let jobs = cluster.jobs().await?;
    let (action, will) = match wanted {
        Wanted::Hold => ("hold", "will be held"),
        Wanted::Release => ("release", "will be released"),
        Wanted::Remove => ("remove", "will be removed"),
    };
    let each = names.iter().map(|name| {
        let jobs = &jobs;
        async move { (name, post(jobs, name, action).await) }
    });
    let mut done = futures::stream::iter(each).buffered(AT_ONCE);
    let mut failed = 0;
    while let Some((name, result)) = done.next().await {
        match result {
            Ok(()) => say!("htcproc/{name} {will}"),
            Err(why) => {
                failed += 1;
                tell!("error: cannot {action} htcproc/{name}: {why}");
            }
        }
    }
    if failed == 0 { Ok(ExitCode::SUCCESS) } else { Ok(ExitCode::from(super::ERROR)) }
}

async fn post(jobs: &Jobs, name: &str, action: &str) -> Result<(), String> {
    let mut tries = 1;
    loop {
        match jobs.post(name, action).await {
            Ok(()) => return Ok(()),
            Err(refused) if refused.may_pass() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(refused) => return Err(refused.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(jobs: &[&str], indexes: Option<&str>) -> Result<Vec<String>, String> {
        let jobs = jobs.iter().map(|job| parse_which(job).unwrap()).collect();
        let indexes = indexes.map(|indexes| indexes.parse().unwrap());
        Arguments { jobs, indexes }.names().map_err(|failure| failure.to_string())
    }

    #[test]
    fn jobs_are_named_one_by_one_or_by_their_indexes() {
        assert_eq!(names(&["zero/3", "one/0"], None).unwrap(), ["zero-3", "one-0"]);
        assert_eq!(names(&["zero"], Some("1,3-4")).unwrap(), ["zero-1", "zero-3", "zero-4"]);
        assert!(names(&["zero"], None).unwrap_err().contains("spec.suspend"));
        assert!(names(&["zero/1"], Some("2")).is_err());
        assert!(names(&["zero", "one"], Some("2")).is_err());
    }
}
