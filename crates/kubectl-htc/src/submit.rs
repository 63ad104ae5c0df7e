//! Command `submit`: creates an HTCJob from a script and flags.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use htc_api::{
    APP_LABEL, Backend, ContainerSpec, EnvVar, FileConfigMap, FileSource, HTCJob, HTCJobSpec, KeyRef, PullSecret,
    Quantity, Resources, Script, Volume,
};

use super::CommandFailure;
use super::cluster::Cluster;
use super::new::{DryRun, New};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl htc submit hello --image centos --script hello.sh\n  \
    kubectl htc submit sums --image python:3.12 --command python3 --script sums.py --jobs 100 --memory 2Gi\n  \
    ls *.root | kubectl htc submit skim --image centos --script skim.sh --items - --parallelism 20\n  \
    kubectl htc submit fit --image centos --script fit.sh --volume ntuples-claim:/ntuples:ro\n  \
    kubectl htc submit hello --image centos --script hello.sh --dry-run=client -o yaml >hello.yaml\n  \
    kubectl htc submit fit --k8s-image registry.example.org/team/fit:1.0 -- ./fit.py --input /ntuples/all.root\n  \
    kubectl htc submit sums --image python:3.12 --jobs 10 --exec -- python3 -c 'print(${index})'\n  \
    kubectl htc submit fit --image registry.example.org/team/fit:1.0 --entrypoint -- --seed '${index}'")]
pub(super) struct Arguments {
    /// Name of the new HTCJob.
    name: String,
    /// Container image, for example `centos` or a folder on CVMFS.
    #[arg(long, required_unless_present = "k8s_image")]
    image: Option<String>,
    /// File with the script; `-` reads standard input.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["payload", "entrypoint"])]
    script: Option<PathBuf>,
    /// The script itself: one text, or a program and its arguments.
    #[arg(last = true, conflicts_with = "script")]
    payload: Vec<String>,
    /// Run the words after `--` without a shell: a program of the image and its arguments, in which `${index}` and `${item}` are the job's.
    #[arg(long, requires = "payload", conflicts_with_all = ["script", "command"])]
    exec: bool,
    /// Run the image's own entrypoint. The words after `--` are its arguments, as with `--exec`.
    #[arg(long, conflicts_with_all = ["script", "command", "exec"])]
    entrypoint: bool,
    /// Program of the image that runs the script, with its options. Default: `bash`; `bash -l` with backend Kubernetes or an option of the
    /// submission helper.
    #[arg(long)]
    command: Option<String>,
    /// Number of jobs. Default: the number of items, or 1.
    #[arg(long = "jobs", alias = "queue", value_name = "NUMBER", conflicts_with = "items")]
    queue: Option<i64>,
    /// File with one item for each job, a line each; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    items: Option<PathBuf>,
    /// Maximum number of jobs in HTCondor, or of Pods, at a time.
    #[arg(long, value_name = "NUMBER")]
    parallelism: Option<i64>,
    /// Remove the other jobs when more than this have failed.
    #[arg(long, value_name = "NUMBER")]
    max_failed_indexes: Option<i64>,
    /// Number of retries of a failed job.
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
    /// Environment variable of the script. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<EnvVar>,
    /// File that each job brings: `PATH=URL`, which the job fetches, or `PATH=configmap/NAME[/KEY]`, or `PATH=secret/NAME/KEY`. Can be repeated.
    #[arg(long = "file", value_name = "PATH=SOURCE", value_parser = parse_file)]
    files: Vec<FileSource>,
    /// PersistentVolumeClaim that the jobs see at a path, with `:ro` only to read. Can be repeated.
    #[arg(long = "volume", value_name = "CLAIM:PATH[:ro]")]
    volumes: Vec<Volume>,
    /// File, folder or pattern of output to keep, for example `plots/*.pdf`. Can be repeated. Default: all that the script leaves.
    #[arg(long, value_name = "PATTERN")]
    outputs: Vec<String>,
    /// HTCondor submit command, for example `+JobFlavour = "espresso"`. Can be repeated.
    #[arg(long, value_name = "KEY = VALUE", allow_hyphen_values = true)]
    htcopts: Vec<String>,
    /// What runs the jobs: `HTCondor` or `Kubernetes`. Default: `Kubernetes` with an option of the submission helper, else `HTCondor`.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(["HTCondor", "Kubernetes"]).try_map(|name| name.parse::<Backend>()))]
    backend: Option<Backend>,
    /// Secret with the credentials to submit with.
    #[arg(long, value_name = "NAME")]
    credentials_secret_name: Option<String>,
    #[command(flatten)]
    helper: Helper,
    #[command(flatten)]
    new: New,
}

/// The submission helper's options by its names. With any of them the jobs run as Pods on the cluster's own nodes, unless
/// `--backend` says otherwise.
#[derive(clap::Args)]
#[command(next_help_heading = "Submission helper")]
#[allow(clippy::struct_field_names, reason = "the submission helper's names")]
struct Helper {
    /// Container image, as docker writes it.
    #[arg(long, value_name = "IMAGE", conflicts_with = "image")]
    k8s_image: Option<String>,
    /// Secret that the nodes pull the image of Pods with. Default: `sh-k8s-registry-secret`.
    #[arg(long, value_name = "NAME")]
    k8s_registry_secret: Option<String>,
    /// PersistentVolumeClaim with the input data. Default: `ntuples-claim`.
    #[arg(long, value_name = "NAME")]
    k8s_volume_claim: Option<String>,
    /// Path of the claim in the container. Default: `/ntuples`.
    #[arg(long, value_name = "PATH")]
    k8s_mount_path: Option<String>,
}

/// Label value that the submission helper sets on its objects.
const HELPER: &str = "submission-helper";

impl Helper {
    fn is_used(&self) -> bool {
        let Self { k8s_image, k8s_registry_secret, k8s_volume_claim, k8s_mount_path } = self;
        [k8s_image, k8s_registry_secret, k8s_volume_claim, k8s_mount_path].iter().any(|given| given.is_some())
    }

    /// Returns the volume with the input data.
    fn volume(&self) -> Volume {
        let or = |given: &Option<String>, usual: &str| given.clone().unwrap_or_else(|| usual.to_owned());
        let (claim, path) = (or(&self.k8s_volume_claim, "ntuples-claim"), or(&self.k8s_mount_path, "/ntuples"));
        Volume { claim, path, read_only: false }
    }

    /// Returns the Secrets with which the image is pulled. HTCondor has none by default: there they need a label.
    fn pull_secrets(&self, backend: Backend) -> Vec<PullSecret> {
        let usual = || (self.is_used() && backend == Backend::Kubernetes).then(|| "sh-k8s-registry-secret".to_owned());
        self.k8s_registry_secret.clone().or_else(usual).map(|name| PullSecret { name }).into_iter().collect()
    }
}

impl Arguments {
    fn backend(&self) -> Backend {
        self.backend.unwrap_or(if self.helper.is_used() { Backend::Kubernetes } else { Backend::HTCondor })
    }

    /// Checks that each flag has a meaning for the backend. The operator refuses the others.
    fn check_backend(&self) -> Result<(), CommandFailure> {
        let of_condor = [
            ("--outputs", !self.outputs.is_empty()),
            ("--htcopts", !self.htcopts.is_empty()),
            ("--credentials-secret-name", self.credentials_secret_name.is_some()),
        ];
        match of_condor.iter().find(|(_, given)| *given) {
            Some((flag, _)) if self.backend() == Backend::Kubernetes => {
                Err(CommandFailure(format!("{flag} is for --backend HTCondor only: leave it out")))
            }
            _ => Ok(()),
        }
    }
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let mut new = HTCJob::new(&arguments.name, spec(arguments)?);
    if arguments.helper.is_used() {
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
        new = created.map_err(|error| CommandFailure::new(&doing, error))?;
    }
    arguments.new.print(&new, "")?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the spec. Errors that the API server does not detect are reported by the operator: the condition
/// `Submitted` is then False.
fn spec(arguments: &Arguments) -> Result<HTCJobSpec, CommandFailure> {
    let stdin = |path: &Path| path == Path::new("-");
    if arguments.script.as_deref().is_some_and(stdin) && arguments.items.as_deref().is_some_and(stdin) {
        return Err(CommandFailure("--script and --items cannot both read standard input".to_owned()));
    }
    arguments.check_backend()?;
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
        return Err(CommandFailure("there are no items: write one in each line".to_owned()));
    }
    let (helper, backend) = (&arguments.helper, arguments.backend());
    let image = arguments.helper.k8s_image.as_ref().or(arguments.image.as_ref());
    let image = image.cloned().unwrap_or_default();
    // A login shell reads the profile, which sets up the environment.
    let usual = if helper.is_used() || backend == Backend::Kubernetes { "bash -l" } else { "bash" };
    let (script, container) = match container(arguments, &image) {
        Some(container) => (None, Some(container)),
        None => (Some(script(arguments, image, usual)?), None),
    };
    Ok(HTCJobSpec {
        script,
        container,
        backend: (backend != Backend::default()).then_some(backend),
        image_pull_secrets: helper.pull_secrets(backend),
        volumes: helper.is_used().then(|| helper.volume()).into_iter().chain(arguments.volumes.clone()).collect(),
        queue: arguments.queue,
        items,
        parallelism: arguments.parallelism,
        max_failed_indexes: arguments.max_failed_indexes,
        max_retries: arguments.max_retries,
        resources: (resources != Resources::default()).then_some(resources),
        env: arguments.env.clone(),
        files: arguments.files.clone(),
        outputs: arguments.outputs.clone(),
        htcopts: (!arguments.htcopts.is_empty()).then(|| arguments.htcopts.join("\n")),
        credentials_secret_name: arguments.credentials_secret_name.clone(),
        ..HTCJobSpec::default()
    })
}

/// Returns the script; `usual`: the command that runs it by default.
fn script(arguments: &Arguments, image: String, usual: &str) -> Result<Script, CommandFailure> {
    let source = match &arguments.script {
        Some(path) => read(path)?,
        None => payload(&arguments.payload),
    };
    let command = arguments.command.clone().unwrap_or_else(|| usual.to_owned());
    Ok(Script { image, command, source, ..Script::default() })
}

/// Returns what runs without a script, if the flags ask for it.
fn container(arguments: &Arguments, image: &str) -> Option<ContainerSpec> {
    let words = arguments.payload.clone();
    let (command, args) = match (arguments.exec, arguments.entrypoint) {
        (true, _) => (words, Vec::new()),
        (false, true) => (Vec::new(), words),
        (false, false) => return None,
    };
    Some(ContainerSpec { image: image.to_owned(), command, args })
}

/// Joins the words of a payload. One word is a script; several are a program and its arguments, which are quoted as
/// needed.
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

fn read(path: &Path) -> Result<String, CommandFailure> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|error| CommandFailure::new(&format!("read {}", path.display()), error))
}

fn quantity(text: &str) -> Quantity {
    text.parse().map_or_else(|_| Quantity::Text(text.to_owned()), Quantity::Number)
}

/// Error for a flag whose value has another form.
#[derive(Debug, thiserror::Error)]
#[error("write {0}")]
struct WrongForm(&'static str);

fn parse_variable(text: &str) -> Result<EnvVar, WrongForm> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            Ok(EnvVar { name: name.to_owned(), value: value.to_owned(), value_from: None })
        }
        _ => Err(WrongForm("NAME=VALUE")),
    }
}

fn parse_file(text: &str) -> Result<FileSource, WrongForm> {
    let wrong =
        || WrongForm("PATH=URL, PATH=configmap/NAME/KEY, PATH=configmap/NAME for all keys, or PATH=secret/NAME/KEY");
    let (path, source) = text.split_once('=').filter(|(path, _)| !path.is_empty()).ok_or_else(wrong)?;
    let file = FileSource { path: path.to_owned(), ..FileSource::default() };
    if source.contains("://") {
        return Ok(FileSource { url: Some(source.to_owned()), ..file });
    }
    if let Some((name, key)) = source.strip_prefix("secret/").and_then(|secret| secret.split_once('/')) {
        let key = KeyRef { name: name.to_owned(), key: key.to_owned() };
        return Ok(FileSource { secret: Some(key), ..file });
    }
    let name = source.strip_prefix("configmap/").filter(|name| !name.is_empty()).ok_or_else(wrong)?;
    let (name, key) = name.split_once('/').map_or((name, None), |(name, key)| (name, Some(key.to_owned())));
    Ok(FileSource { config_map: Some(FileConfigMap { name: name.to_owned(), key }), ..file })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{PluginCli, PluginCommand};
    use super::*;

    fn arguments(more: &[&str]) -> Result<Arguments, clap::Error> {
        let words = [&["kubectl-htc", "submit", "sums", "--image=centos"], more].concat();
        PluginCli::try_parse_from(words).map(|cli| match cli.command {
            PluginCommand::Submit(arguments) => *arguments,
            _ => panic!("another command"),
        })
    }

    #[test]
    fn flags_become_spec_fields() {
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
            "--file=in.root=https://h/${item}?a=b",
            "--file=conf=configmap/params",
            "--file=cuts=configmap/params/cuts.yaml",
            "--file=.netrc=secret/robot/netrc",
            "--volume=data:/in:ro",
            "--volume=results:/out",
        ];
        let spec = spec(&arguments(&[&flags[..], &more].concat()).unwrap()).unwrap();
        assert_eq!(spec.source(), Some("echo $2\n"));
        assert_eq!((spec.items, spec.queue), (vec!["one".to_owned(), String::new(), "three".to_owned()], None));
        assert_eq!((spec.parallelism, spec.max_retries), (Some(2), None));
        let resources = spec.resources.unwrap();
        assert_eq!((resources.cpus, resources.disk), (Some(Quantity::Number(4)), None));
        assert_eq!(resources.memory, Some(Quantity::Text("2Gi".to_owned())));
        assert_eq!(spec.volumes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["data:/in:ro", "results:/out"]);
        assert_eq!((spec.env[0].name.as_str(), spec.env[0].value.as_str()), ("A", "b=c"));
        assert_eq!(spec.outputs, ["*.root", "plots"]);
        assert_eq!(
            (spec.files[0].path.as_str(), spec.files[0].url.as_deref()),
            ("in.root", Some("https://h/${item}?a=b"))
        );
        let of = |file: &FileSource| file.config_map.clone().map(|map| (map.name, map.key)).unwrap();
        let key = KeyRef { name: "robot".to_owned(), key: "netrc".to_owned() };
        assert_eq!(spec.files[3].secret, Some(key));
        assert_eq!(of(&spec.files[1]), ("params".to_owned(), None));
        assert_eq!(of(&spec.files[2]), ("params".to_owned(), Some("cuts.yaml".to_owned())));
        assert_eq!(spec.htcopts.as_deref(), Some("+JobFlavour = \"espresso\"\nrank = Memory"));
    }

    #[test]
    fn k8s_options_select_the_kubernetes_backend() {
        let parse = |words: &[&str]| {
            let words = [&["kubectl-htc", "submit", "fit"], words].concat();
            let cli = PluginCli::try_parse_from(words).map_err(|error| error.to_string())?;
            let PluginCommand::Submit(arguments) = cli.command else { panic!("another command") };
            spec(&arguments).map_err(|failure| failure.0)
        };
        let usual = parse(&["--k8s-image=team/fit:1", "--", "./fit.py", "a b", "it's"]).unwrap();
        assert_eq!((usual.backend, usual.named_image()), (Some(Backend::Kubernetes), "team/fit:1"));
        assert_eq!(usual.volumes[0].to_string(), "ntuples-claim:/ntuples");
        let script = usual.script.unwrap();
        assert_eq!((script.command.as_str(), script.source.as_str()), ("bash -l", "./fit.py 'a b' 'it'\\''s'\n"));
        assert_eq!(usual.image_pull_secrets[0].name, "sh-k8s-registry-secret");
        let own = [
            "--image=i",
            "--k8s-registry-secret=s",
            "--k8s-volume-claim=c",
            "--k8s-mount-path=/in",
            "--",
            "cd /in && ls",
        ];
        let own = parse(&own).unwrap();
        assert_eq!((own.named_image(), own.source()), ("i", Some("cd /in && ls\n")));
        assert_eq!(own.image_pull_secrets[0].name, "s");
        assert_eq!(own.volumes[0].to_string(), "c:/in");
        let helper = ["--k8s-image=i", "--k8s-volume-claim=c", "--k8s-mount-path=/in", "--", "ls /in"];
        let on_condor = parse(&[&["--backend=HTCondor"][..], &helper].concat()).unwrap();
        assert_eq!((on_condor.backend, on_condor.named_image()), (None, "i"));
        assert_eq!(on_condor.volumes[0].to_string(), "c:/in");
        assert_eq!((on_condor.image_pull_secrets, on_condor.script.unwrap().command.as_str()), (vec![], "bash -l"));
        let private = parse(&["--backend=HTCondor", "--k8s-image=i", "--k8s-registry-secret=s", "--", "true"]).unwrap();
        assert_eq!((private.backend, private.image_pull_secrets[0].name.as_str()), (None, "s"));
        let condor = parse(&["--image=i", "--", "true"]).unwrap();
        assert_eq!((condor.backend, condor.kubernetes, condor.script.unwrap().command.as_str()), (None, None, "bash"));
        for wrong in [
            &["--", "true"][..],
            &["--image=i", "--k8s-image=i", "--", "true"],
            &["--image=i", "--script=s", "--", "x"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        // Pods cannot use these flags, and the operator would refuse the HTCJob.
        for condor in ["--outputs=*.root", "--htcopts=priority = 1", "--credentials-secret-name=s"] {
            for pods in ["--k8s-image=i", "--k8s-registry-secret=s", "--k8s-volume-claim=c", "--k8s-mount-path=/in"] {
                let image: &[&str] = if pods.starts_with("--k8s-image") { &[] } else { &["--image=i"] };
                let refused = parse(&[image, &[condor, pods, "--", "true"]].concat()).unwrap_err();
                assert!(refused.contains("is for --backend HTCondor only"), "{condor} {pods}: {refused}");
            }
        }
    }

    #[test]
    fn exec_and_entrypoint_take_the_words_as_they_are() {
        let container = |more: &[&str]| {
            let spec = spec(&arguments(more).unwrap()).unwrap();
            assert_eq!(spec.script, None);
            let ContainerSpec { image, command, args } = spec.container.unwrap();
            assert_eq!(image, "centos");
            (command, args)
        };
        let words = ["a b", "${index}", ""].map(str::to_owned).to_vec();
        assert_eq!(container(&["--exec", "--", "a b", "${index}", ""]), (words.clone(), vec![]));
        assert_eq!(container(&["--entrypoint", "--", "a b", "${index}", ""]), (vec![], words));
        assert_eq!(container(&["--entrypoint"]), (vec![], vec![]));
        for wrong in [
            &["--exec"][..],
            &["--exec", "--entrypoint", "--", "a"],
            &["--entrypoint", "--script=s"],
            &["--exec", "--command=sh", "--", "a"],
        ] {
            assert!(arguments(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn contradictory_flags_are_refused() {
        for wrong in [&["--script=s", "--queue=2", "--items=i"][..], &["--script=s", "--env=A"], &[]] {
            assert!(arguments(wrong).is_err(), "{wrong:?}");
        }
        let both = spec(&arguments(&["--script=-", "--items=-"]).unwrap());
        assert!(both.unwrap_err().0.contains("standard input"));
        let missing = spec(&arguments(&["--script=/nosuch"]).unwrap());
        assert!(missing.unwrap_err().0.starts_with("cannot read /nosuch: "));
    }
}
