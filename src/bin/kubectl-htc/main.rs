//! `kubectl htc`: what users do with HTCJobs beyond `kubectl get` and `kubectl describe`.

mod act;
mod cluster;
mod complete;
mod events;
mod files;
mod head;
mod jobs;
mod logs;
mod new;
mod patience;
mod procs;
mod queue;
mod retry;
mod say;
mod story;
mod submit;
mod wait;
mod why;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use htc_operator::machine::wishes::Wanted;

use self::cluster::Cluster;
use self::say::{line, tell};
use self::words::Words;

/// Something went wrong that is not a job's failure.
const ERROR: u8 = 2;

#[derive(Parser)]
#[command(
    name = "kubectl-htc",
    bin_name = "kubectl htc",
    version,
    about = "Works with HTCJobs: creates them, waits for them, shows their jobs, logs and files, says what is wrong with them, and runs their failed jobs again",
    after_help = "Exit codes: 0 done; 1 jobs have failed (wait); 2 an error, such as an HTCJob that does not exist.\n\n\
                  Examples:\n  kubectl htc submit zero --image centos --script zero.sh\n  kubectl htc wait zero --timeout 10m\n  kubectl htc why zero\n  kubectl htc story zero --svg zero.svg\n  kubectl htc jobs zero --failed\n  kubectl htc logs zero/3 -f\n  kubectl htc files zero results\n  kubectl htc retry zero"
)]
struct Cli {
    #[command(flatten)]
    cluster: Cluster,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What kubectl_complete-htc does, for who has no such link.
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print a script that completes this command's words in a shell.
    #[command(
        after_help = "kubectl itself completes the words after `kubectl htc`, the names of HTCJobs and their jobs among them, in the \
        shells that `kubectl completion` is for: bash, zsh, fish and powershell. It asks a program named kubectl_complete-htc, which \
        is this one under another name:\n\n  \
        ln -s kubectl-htc ~/.local/bin/kubectl_complete-htc\n\n\
        The script that is printed here is for the word kubectl-htc, and knows commands and flags only.\n\n\
        Examples:\n  \
        source <(kubectl completion bash)\n  \
        source <(kubectl htc completion bash)"
    )]
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Fetch the output of jobs.
    Files(files::Arguments),
    /// Hold single jobs until they are released; those that wait are not submitted.
    #[command(
        after_help = "Examples:\n  kubectl htc hold sums/3 sums/17\n  kubectl htc hold sums --indexes 3,17,200-210"
    )]
    Hold(act::Arguments),
    /// List the jobs of an HTCJob, and how each is doing.
    Jobs(jobs::Arguments),
    /// Print what a job has written, or follow what it writes.
    Logs(logs::Arguments),
    /// Show how full queues are, and who waits for what.
    Queue(queue::Arguments),
    /// Release single jobs that are held, whoever holds them.
    #[command(
        after_help = "Examples:\n  kubectl htc release sums/3 sums/17\n  kubectl htc release sums --indexes 3,17,200-210"
    )]
    Release(act::Arguments),
    /// Remove single jobs: they count as failed, and the others go on.
    #[command(
        after_help = "A job that is removed never runs again. The whole HTCJob is removed with kubectl delete.\n\n\
        Examples:\n  kubectl htc remove sums/3 sums/17\n  kubectl htc remove sums --indexes 3,17,200-210"
    )]
    Remove(act::Arguments),
    /// Create an HTCJob that runs the failed jobs of another one again.
    Retry(retry::Arguments),
    /// Show what has happened to an HTCJob, step by step, and draw when each of its jobs waited, ran and ended.
    Story(story::Arguments),
    /// Create an HTCJob from a script and flags.
    Submit(Box<submit::Arguments>),
    /// Wait until an HTCJob has ended, and show how far it is.
    Wait(wait::Arguments),
    /// Show on one page what an HTCJob is doing, what is wrong with it, and what to do next.
    Why(why::Arguments),
}

/// A command could not be carried out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failure(String);

impl Failure {
    /// While doing what, and why.
    fn new(doing: &str, why: impl Words) -> Self {
        Self(format!("cannot {doing}: {}", why.words()))
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next().map(PathBuf::from);
    let completes = name.as_deref().and_then(Path::file_stem).is_some_and(|name| name == complete::PROGRAM);
    let cli = if completes {
        let words = words.map(|word| word.to_string_lossy().into_owned()).collect();
        Cli { cluster: Cluster::default(), command: Command::Complete { words } }
    } else {
        Cli::parse()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(|error| Failure::new("start", error)).and_then(|runtime| runtime.block_on(run(cli)));
    result.unwrap_or_else(|failure| {
        tell!("error: {failure}");
        ExitCode::from(ERROR)
    })
}

async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Complete { words } => Ok(complete::run(Cli::command(), &words).await),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kubectl-htc", &mut script);
            say::raw(&script).map(|()| ExitCode::SUCCESS).map_err(|error| Failure::new("print the script", error))
        }
        Command::Files(arguments) => files::run(&cli.cluster, &arguments).await,
        Command::Hold(arguments) => act::run(&cli.cluster, &arguments, Wanted::Hold).await,
        Command::Jobs(arguments) => jobs::run(&cli.cluster, &arguments).await,
        Command::Logs(arguments) => logs::run(&cli.cluster, &arguments).await,
        Command::Queue(arguments) => queue::run(&cli.cluster, &arguments).await,
        Command::Release(arguments) => act::run(&cli.cluster, &arguments, Wanted::Release).await,
        Command::Remove(arguments) => act::run(&cli.cluster, &arguments, Wanted::Remove).await,
        Command::Story(arguments) => story::run(&cli.cluster, &arguments).await,
        Command::Submit(arguments) => submit::run(&cli.cluster, &arguments).await,
        Command::Retry(arguments) => retry::run(&cli.cluster, &arguments).await,
        Command::Wait(arguments) => wait::run(&cli.cluster, &arguments).await,
        Command::Why(arguments) => why::run(&cli.cluster, &arguments).await,
    }
}
