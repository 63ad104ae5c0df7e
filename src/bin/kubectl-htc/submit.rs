//! An HTCJob from a script and flags.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use htc_operator::api::{
    APP_LABEL, Backend, ClaimVolume, EnvVar, HTCJob, HTCJobSpec, KubernetesSpec, PullSecret, Quantity, Resources,
    Script,
};

use super::Failure;
use super::cluster::Cluster;
use super::new::{DryRun, New};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl htc submit hello --image centos --script hello.sh\n  \
    kubectl htc submit sums --image python:3.12 --command python3 --script sums.py --queue 100 --memory 2Gi\n  \
    ls *.root | kubectl htc submit skim --image centos --script skim.sh --items - --parallelism 20\n  \
    kubectl htc submit hello --image centos --script hello.sh --dry-run=client -o yaml >hello.yaml\n  \
    kubectl htc submit fit --k8s-image registry.example.org/team/fit:1.0 -- ./fit.py --input /ntuples/all.root")]
pub(super) struct Arguments {
    /// Name of the new HTCJob.
    name: String,
    /// Container image, for example `centos` or a folder on CVMFS.
    #[arg(long, required_unless_present = "k8s_image")]
    image: Option<String>,
    /// File with the script; `-` reads standard input.
    #[arg(long, value_name = "FILE", required_unless_present = "payload")]
    script: Option<PathBuf>,
    /// The script itself: one text, or a program and its arguments.
    #[arg(last = true, conflicts_with = "script")]
    payload: Vec<String>,
    /// Program of the image that runs the script, with its options. Default: `bash`; `bash -l` with backend Kubernetes.
    #[arg(long)]
    command: Option<String>,
    /// Number of jobs. Default: the number of items, or 1.
    #[arg(long, value_name = "NUMBER", conflicts_with = "items")]
    queue: Option<i64>,
    /// File with one item for each job, a line each; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    items: Option<PathBuf>,
    /// Most jobs that HTCondor has at a time, or most Pods that run at a time.
    #[arg(long, value_name = "NUMBER")]
    parallelism: Option<i64>,
    /// Remove the other jobs when more than this have failed.
    #[arg(long, value_name = "NUMBER")]
    max_failed_indexes: Option<i64>,
    /// How often a failed job runs again, by HTCondor or as another Pod.
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
    helper: Helper,
    #[command(flatten)]
    new: New,
}

/// What only HTCondor has a use for.
const CONDOR: [&str; 3] = ["outputs", "htcopts", "credentials_secret_name"];

/// The submission helper's options by its names. With any of them the jobs run as Pods on the cluster's own nodes.
#[derive(clap::Args)]
#[command(next_help_heading = "Kubernetes backend")]
#[allow(clippy::struct_field_names, reason = "the submission helper's names")]
struct Helper {
    /// Container image, as docker writes it. The jobs run as Pods.
    #[arg(long, value_name = "IMAGE", conflicts_with = "image", conflicts_with_all = CONDOR)]
    k8s_image: Option<String>,
    /// Secret that the image is pulled with. Default: `sh-k8s-registry-secret`. The jobs run as Pods.
    #[arg(long, value_name = "NAME", conflicts_with_all = CONDOR)]
    k8s_registry_secret: Option<String>,
    /// PersistentVolumeClaim with the input data. Default: `ntuples-claim`. The jobs run as Pods.
    #[arg(long, value_name = "NAME", conflicts_with_all = CONDOR)]
    k8s_volume_claim: Option<String>,
    /// Path in the container at which the claim is mounted. Default: `/ntuples`. The jobs run as Pods.
    #[arg(long, value_name = "PATH", conflicts_with_all = CONDOR)]
    k8s_mount_path: Option<String>,
}

/// What the submission helper labels its objects with.
const HELPER: &str = "submission-helper";

impl Helper {
    /// What Pods get, if the jobs run as Pods.
    fn pods(&self) -> Option<KubernetesSpec> {
        let Self { k8s_image, k8s_registry_secret, k8s_volume_claim, k8s_mount_path } = self;
        let given = [k8s_image, k8s_registry_secret, k8s_volume_claim, k8s_mount_path];
        let or = |given: &Option<String>, usual: &str| given.clone().unwrap_or_else(|| usual.to_owned());
        given.iter().any(|given| given.is_some()).then(|| KubernetesSpec {
            image_pull_secrets: vec![PullSecret { name: or(k8s_registry_secret, "sh-k8s-registry-secret") }],
            volumes: vec![ClaimVolume {
                claim: or(k8s_volume_claim, "ntuples-claim"),
                mount_path: or(k8s_mount_path, "/ntuples"),
                read_only: false,
            }],
            ..KubernetesSpec::default()
        })
    }
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut new = HTCJob::new(&arguments.name, spec(arguments)?);
    if arguments.helper.pods().is_some() {
        let label = (APP_LABEL.to_owned(), HELPER.to_owned());
        new.metadata.labels.get_or_insert_default().extend([label]);
    }
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
    if arguments.script.as_deref().is_some_and(stdin) && arguments.items.as_deref().is_some_and(stdin) {
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
    let kubernetes = arguments.helper.pods();
    let image = arguments.helper.k8s_image.as_ref().or(arguments.image.as_ref());
    // A login shell reads the profile, which sets up the environment.
    let usual = if kubernetes.is_some() { "bash -l" } else { "bash" };
    let source = match &arguments.script {
        Some(path) => read(path)?,
        None => payload(&arguments.payload),
    };
    Ok(HTCJobSpec {
        script: Script {
            image: image.cloned().unwrap_or_default(),
            command: arguments.command.clone().unwrap_or_else(|| usual.to_owned()),
            source,
            ..Script::default()
        },
        backend: kubernetes.is_some().then_some(Backend::Kubernetes),
        kubernetes,
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

/// One word is a script; several are a program and its arguments, which stay what they are.
fn payload(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    let quoted = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    match words {
        [script] => format!("{script}\n"),
        words => words.iter().map(quoted).collect::<Vec<_>>().join(" ") + "\n",
    }
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
    fn the_submission_helpers_options_make_pods() {
        let parse = |words: &[&str]| {
            let words = [&["kubectl-htc", "submit", "fit"], words].concat();
            Cli::try_parse_from(words).map(|cli| match cli.command {
                Command::Submit(arguments) => spec(&arguments).unwrap(),
                _ => panic!("another command"),
            })
        };
        let usual = parse(&["--k8s-image=team/fit:1", "--", "./fit.py", "a b", "it's"]).unwrap();
        assert_eq!((usual.backend, usual.script.image.as_str()), (Some(Backend::Kubernetes), "team/fit:1"));
        assert_eq!(
            (usual.script.command.as_str(), usual.script.source.as_str()),
            ("bash -l", "./fit.py 'a b' 'it'\\''s'\n")
        );
        let pods = usual.kubernetes.unwrap();
        assert_eq!(pods.image_pull_secrets[0].name, "sh-k8s-registry-secret");
        assert_eq!(
            (pods.volumes[0].claim.as_str(), pods.volumes[0].mount_path.as_str()),
            ("ntuples-claim", "/ntuples")
        );
        let own = [
            "--image=i",
            "--k8s-registry-secret=s",
            "--k8s-volume-claim=c",
            "--k8s-mount-path=/in",
            "--",
            "cd /in && ls",
        ];
        let own = parse(&own).unwrap();
        assert_eq!((own.script.image.as_str(), own.script.source.as_str()), ("i", "cd /in && ls\n"));
        let pods = own.kubernetes.unwrap();
        assert_eq!((pods.image_pull_secrets[0].name.as_str(), pods.volumes[0].claim.as_str()), ("s", "c"));
        assert_eq!(pods.volumes[0].mount_path, "/in");
        let condor = parse(&["--image=i", "--", "true"]).unwrap();
        assert_eq!((condor.backend, condor.kubernetes, condor.script.command.as_str()), (None, None, "bash"));
        for wrong in [
            &["--", "true"][..],
            &["--image=i", "--k8s-image=i", "--", "true"],
            &["--image=i", "--script=s", "--", "x"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        // Pods have no use for these, and the operator would refuse the HTCJob.
        for condor in ["--outputs=*.root", "--htcopts=priority = 1", "--credentials-secret-name=s"] {
            for pods in ["--k8s-image=i", "--k8s-registry-secret=s", "--k8s-volume-claim=c", "--k8s-mount-path=/in"] {
                let image: &[&str] = if pods.starts_with("--k8s-image") { &[] } else { &["--image=i"] };
                let refused = parse(&[image, &[condor, pods, "--", "true"]].concat()).map(|_| ()).unwrap_err();
                assert_eq!(refused.kind(), clap::error::ErrorKind::ArgumentConflict, "{condor} {pods}: {refused}");
            }
        }
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
