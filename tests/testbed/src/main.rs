//! `testbed`: fills the cache, and starts servers to play with.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

use std::fmt::Display;
use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use clap::{Parser, Subcommand, ValueEnum};
use testbed::{Assets, Kube, Part, Pool, PoolOptions, Purpose, Result, Version};

/// Real Kubernetes and real HTCondor for tests and the demo.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make what is missing in the cache (`HTC_TESTBED_CACHE`): about 5 minutes the first time, nothing afterwards.
    Setup {
        /// Make everything that comes from Debian again; sid moves.
        #[arg(long)]
        refresh: bool,
        /// Also what a cluster with a node needs: about 5 minutes more.
        #[arg(long)]
        cluster: bool,
        /// Also Kueue's controller, which some tests of `make test-long` need: up to half an hour more.
        #[arg(long)]
        kueue: bool,
    },
    /// Show one HTCJob from kubectl apply to kubectl delete. Makes what is missing for that in the cache, and the operator.
    Demo,
    /// Install the operator into a cluster with a node, as docs/install.md says, and run jobs with it: in a pool outside the cluster, in one
    /// that it runs itself, and as Pods. Needs root.
    Cluster {
        /// The operator's program.
        program: std::path::PathBuf,
        /// Instead of that, show a pool and an HTCJob in it.
        #[arg(long)]
        demo: bool,
        /// Only this part, once the operator is installed.
        #[arg(long, value_enum)]
        only: Option<Part>,
        /// Used by itself: it stays up afterwards.
        #[arg(long, hide = true)]
        stay: bool,
        /// Used by itself: this is the process in the cluster's namespaces, with this cgroup.
        #[arg(long, hide = true)]
        inside: Option<String>,
    },
    /// Run a command of cargo's tests, and say at its end what took longest and what the machine waited for.
    Measured {
        /// The command.
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<String>,
    },
    /// Print the paths of what setup made, for a shell's eval.
    Env,
    /// Start servers, print their environment for a shell, and run until stdin ends or Ctrl-C.
    Up {
        /// An HTCondor pool; may be given twice, and the environment is the first one's.
        #[arg(long, value_enum, default_values_t = [PoolChoice::Trixie])]
        pool: Vec<PoolChoice>,
        /// No Kubernetes.
        #[arg(long)]
        no_kube: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PoolChoice {
    Trixie,
    Sid,
    None,
}

impl PoolChoice {
    fn version(self) -> Option<Version> {
        match self {
            Self::Trixie => Some(Version::Trixie),
            Self::Sid => Some(Version::Sid),
            Self::None => None,
        }
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Measured { command } => match testbed::measured(&command) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
        Command::Setup { refresh, cluster, kueue } => Assets::setup(refresh)
            .and_then(|_| if cluster { testbed::setup_cluster(refresh) } else { Ok(()) })
            .and_then(|()| if kueue { testbed::setup_kueue() } else { Ok(()) }),
        Command::Demo => testbed::demo(std::path::Path::new("."), &stop_signal()),
        Command::Cluster { program, demo, only, stay, inside } => {
            let stay = stay || inside.is_none() && stdin().is_terminal();
            let purpose = if demo { Purpose::Demo { stay } } else { Purpose::Proof { only } };
            match inside {
                None => testbed::cluster(&program, std::path::Path::new("."), purpose, &signals().1),
                Some(name) => testbed::cluster_inside(&name, &program, purpose),
            }
        }
        Command::Env => Assets::locate().map(|assets| env(&assets)),
        Command::Up { pool, no_kube } => up(&pool, no_kube),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn env(assets: &Assets) {
    export("HTC_TESTBED_CACHE", assets.cache().display());
    export("KUBE_APISERVER", assets.kube_apiserver().display());
    export("KUBECTL", assets.kubectl().display());
    export("ETCD", assets.etcd().display());
    export("CONDOR_TRIXIE", assets.condor(Version::Trixie).display());
    export("CONDOR_SID", assets.condor(Version::Sid).display());
    export("APPTAINER", assets.job_bin().join("apptainer").display());
    export("IMAGE", assets.image().display());
}

/// One line for a shell. Whoever reads them may stop reading.
fn export(name: &str, value: impl Display) {
    let _ = writeln!(stdout(), "export {name}={value}");
}

fn up(pools: &[PoolChoice], no_kube: bool) -> Result<()> {
    let stop = stop_signal();
    let assets = Assets::locate()?;
    let kube = if no_kube { None } else { Some(Kube::start(&assets)?) };
    let pools = pools
        .iter()
        .filter_map(|choice| choice.version())
        .map(|version| Pool::start(&assets, version, &PoolOptions::default()))
        .collect::<Result<Vec<_>>>()?;
    let mut path = Vec::new();
    if let Some(kube) = &kube {
        export("KUBECONFIG", kube.kubeconfig().display());
        path.extend(assets.kubectl().parent().map(|dir| dir.display().to_string()));
    }
    if let Some(pool) = pools.first() {
        let client = pool.client_for_caller("operator")?;
        export("CONDOR_CONFIG", client.config().display());
        path.push(client.bin_dir().display().to_string());
    }
    path.push("$PATH".to_owned());
    export("PATH", path.join(":"));
    eprintln!("ready; stop with Ctrl-C or the end of stdin");
    let _ = stop.recv();
    Ok(())
}

/// Receives one message at Ctrl-C, SIGTERM or SIGHUP.
fn signals() -> (mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (sender, stop) = mpsc::channel();
    let at_signal = sender.clone();
    if let Err(error) = ctrlc::set_handler(move || _ = at_signal.send(())) {
        eprintln!("Ctrl-C will not stop it in order: {error}");
    }
    (sender, stop)
}

/// The same, and one at the end of stdin.
fn stop_signal() -> mpsc::Receiver<()> {
    let (sender, stop) = signals();
    thread::spawn(move || {
        let _ = std::io::copy(&mut stdin().lock().by_ref(), &mut std::io::sink());
        sender.send(())
    });
    stop
}
