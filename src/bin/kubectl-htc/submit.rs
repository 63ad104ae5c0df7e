//! An HTCJob from a script and flags.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use htc_operator::api::{EnvVar, HTCJob, HTCJobSpec, Quantity, Resources, Script};

use super::Failure;
use super::cluster::Cluster;
use super::new::{DryRun, New};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl htc submit hello --image centos --script hello.sh\n  \
    kubectl htc submit sums --image python:3.12 --command python3 --script sums.py --queue 100 --memory 2Gi\n  \
    ls *.root | kubectl htc submit skim --image centos --script skim.sh --items - --parallelism 20\n  \
    kubectl htc submit hello --image centos --script hello.sh --dry-run=client -o yaml >hello.yaml")]
pub(super) struct Arguments {
    /// Name of the new HTCJob.
    name: String,
    /// Container image, for example `centos` or a folder on CVMFS.
    #[arg(long)]
    image: String,
    /// File with the script; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
    /// Program of the image that runs the script, with its options.
    #[arg(long, default_value = "bash")]
    command: String,
    /// Number of jobs. Default: the number of items, or 1.
    #[arg(long, value_name = "NUMBER", conflicts_with = "items")]
    queue: Option<i64>,
    /// File with one item for each job, a line each; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    items: Option<PathBuf>,
    /// Most jobs that HTCondor has at a time.
    #[arg(long, value_name = "NUMBER")]
    parallelism: Option<i64>,
    /// Remove the other jobs when more than this have failed.
    #[arg(long, value_name = "NUMBER")]
    max_failed_indexes: Option<i64>,
    /// How often HTCondor runs a failed job again.
    #[arg(long, value_name = "NUMBER")]
    max_retries: Option<i64>,
    /// Cores of each job, for example 4.
    #[arg(long, value_name = "QUANTITY")]
    cpus: Option<String>,
    /// Memory of each job, for example 2Gi.
    #[arg(long, value_name = "QUANTITY")]
    memory: Option<String>,
    /// Disk of each job, for example 10Gi.
    #[arg(long, value_name = "QUANTITY")]
    disk: Option<String>,
    /// GPUs of each job.
    #[arg(long, value_name = "NUMBER")]
    gpus: Option<i64>,
    /// Variable of the script. Repeat it for more.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<EnvVar>,
    /// File, folder or pattern that comes back, for example `plots/*.pdf`. Repeat it for more. Default: all that the script leaves.
    #[arg(long, value_name = "PATTERN")]
    outputs: Vec<String>,
    /// HTCondor submit command, for example `+JobFlavour = "espresso"`. Repeat it for more.
    #[arg(long, value_name = "KEY = VALUE", allow_hyphen_values = true)]
    htcopts: Vec<String>,
    /// Secret with the credentials to submit with.
    #[arg(long, value_name = "NAME")]
    credentials_secret_name: Option<String>,
    #[command(flatten)]
    new: New,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut new = HTCJob::new(&arguments.name, spec(arguments)?);
    if arguments.new.dry_run == DryRun::Client {
        new.metadata.namespace.clone_from(&cluster.namespace);
    } else {
        let jobs = cluster.jobs().await?;
        new.metadata.namespace = Some(jobs.namespace.clone());
        let doing = format!("create HTCJob {}/{}", jobs.namespace, arguments.name);
        let created = jobs.api.create(&arguments.new.parameters(), &new).await;
        new = created.map_err(|error| Failure::new(&doing, error))?;
    }
    arguments.new.print(&new, "")?;
    Ok(ExitCode::SUCCESS)
}

/// What the API server does not know to be wrong the operator says: the condition `Submitted` is then False.
fn spec(arguments: &Arguments) -> Result<HTCJobSpec, Failure> {
    let stdin = |path: &Path| path == Path::new("-");
    if stdin(&arguments.script) && arguments.items.as_deref().is_some_and(stdin) {
        return Err(Failure("--script and --items cannot both read standard input".to_owned()));
    }
    let quantity = |text: &Option<String>| text.as_ref().map(|text| quantity(text));
    let resources = Resources {
        cpus: quantity(&arguments.cpus),
        memory: quantity(&arguments.memory),
        disk: quantity(&arguments.disk),
        gpus: arguments.gpus,
    };
    let items = match &arguments.items {
        Some(path) => read(path)?.lines().map(str::to_owned).collect(),
        None => Vec::new(),
    };
    if arguments.items.is_some() && items.is_empty() {
        return Err(Failure("there are no items: write one in each line".to_owned()));
    }
    Ok(HTCJobSpec {
        script: Script {
            image: arguments.image.clone(),
            command: arguments.command.clone(),
            source: read(&arguments.script)?,
            ..Script::default()
        },
        queue: arguments.queue,
        items,
        parallelism: arguments.parallelism,
        max_failed_indexes: arguments.max_failed_indexes,
        max_retries: arguments.max_retries,
        resources: (resources != Resources::default()).then_some(resources),
        env: arguments.env.clone(),
        outputs: arguments.outputs.clone(),
        htcopts: (!arguments.htcopts.is_empty()).then(|| arguments.htcopts.join("\n")),
        credentials_secret_name: arguments.credentials_secret_name.clone(),
        ..HTCJobSpec::default()
    })
}

fn read(path: &Path) -> Result<String, Failure> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|error| Failure::new(&format!("read {}", path.display()), error))
}

fn quantity(text: &str) -> Quantity {
    text.parse().map_or_else(|_| Quantity::Text(text.to_owned()), Quantity::Number)
}

fn parse_variable(text: &str) -> Result<EnvVar, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok(EnvVar { name: name.to_owned(), value: value.to_owned() }),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    fn arguments(more: &[&str]) -> Result<Arguments, clap::Error> {
        let words = [&["kubectl-htc", "submit", "sums", "--image=centos"], more].concat();
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Submit(arguments) => *arguments,
            _ => panic!("another command"),
        })
    }

    #[test]
    fn flags_become_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name).display().to_string()
        };
        let (script, items) = (path("script", "echo $2\n"), path("items", "one\n\nthree\n"));
        let flags =
            ["--script", &script, "--items", &items, "--parallelism=2", "--memory=2Gi", "--cpus=4", "--env=A=b=c"];
        let more = [
            "--outputs=*.root",
            "--outputs",
            "plots",
            "--htcopts",
            "+JobFlavour = \"espresso\"",
            "--htcopts",
            "rank = Memory",
        ];
        let spec = spec(&arguments(&[&flags[..], &more].concat()).unwrap()).unwrap();
        assert_eq!(spec.script.source, "echo $2\n");
        assert_eq!((spec.items, spec.queue), (vec!["one".to_owned(), String::new(), "three".to_owned()], None));
        assert_eq!((spec.parallelism, spec.max_retries), (Some(2), None));
        let resources = spec.resources.unwrap();
        assert_eq!((resources.cpus, resources.disk), (Some(Quantity::Number(4)), None));
        assert_eq!(resources.memory, Some(Quantity::Text("2Gi".to_owned())));
        assert_eq!((spec.env[0].name.as_str(), spec.env[0].value.as_str()), ("A", "b=c"));
        assert_eq!(spec.outputs, ["*.root", "plots"]);
        assert_eq!(spec.htcopts.as_deref(), Some("+JobFlavour = \"espresso\"\nrank = Memory"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for wrong in [&["--script=s", "--queue=2", "--items=i"][..], &["--script=s", "--env=A"], &[]] {
            assert!(arguments(wrong).is_err(), "{wrong:?}");
        }
        let both = spec(&arguments(&["--script=-", "--items=-"]).unwrap());
        assert!(both.unwrap_err().0.contains("standard input"));
        let missing = spec(&arguments(&["--script=/nosuch"]).unwrap());
        assert!(missing.unwrap_err().0.starts_with("cannot read /nosuch: "));
    }
}
