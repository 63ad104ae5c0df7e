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
mod procs;
mod queue;
mod retry;
mod retry_budget;
mod story;
mod submit;
mod terminal;
mod wait;
mod why;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use htc_machine::actions::JobAction;

use self::cluster::Cluster;
use self::words::Describe;
use crate::terminal::{line, tell};

/// Exit code for errors that are not a job's failure.
const ERROR: u8 = 2;

#[derive(Parser)]
#[command(
    name = "kubectl-htc",
    bin_name = "kubectl htc",
    version,
    about = "Manages HTCJobs: `why` explains what one is doing and what to do next; others create HTCJobs, wait for them, show jobs, logs and files, and run failed jobs again",
    after_help = "Exit codes: 0 done; 1 jobs have failed (wait); 2 an error, such as an HTCJob that does not exist.\n\n\
                  Examples:\n  kubectl htc submit zero --image centos --script zero.sh\n  kubectl htc wait zero --timeout 10m\n  kubectl htc why zero\n  kubectl htc story zero --svg zero.svg\n  kubectl htc jobs zero --failed\n  kubectl htc logs zero/3 -f\n  kubectl htc files zero results\n  kubectl htc retry zero"
)]
struct PluginCli {
    #[command(flatten)]
    cluster: Cluster,
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Subcommand)]
enum PluginCommand {
    /// Complete words as kubectl_complete-htc does.
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
        /// Name of the shell.
        shell: clap_complete::Shell,
    },
    /// Fetch the output of jobs.
    #[command(visible_aliases = ["cp", "download"])]
    Files(files::Arguments),
    /// Hold single jobs until they are released; those that wait are not submitted.
    #[command(
        after_help = "Examples:\n  kubectl htc hold sums/3 sums/17\n  kubectl htc hold sums --indexes 3,17,200-210"
    )]
    Hold(act::Arguments),
    /// List the jobs of an HTCJob, with the state of each.
    #[command(visible_alias = "list")]
    Jobs(jobs::Arguments),
    /// Print what a job has written, or follow what it writes.
    Logs(logs::Arguments),
    /// Show the usage of queues, and which HTCJobs wait for quota.
    #[command(visible_alias = "queues")]
    Queue(queue::Arguments),
    /// Release single held jobs, also if another user holds them.
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
    /// Create a new HTCJob that runs the failed jobs of another one again.
    #[command(visible_alias = "resubmit")]
    Retry(retry::Arguments),
    /// Show the history of an HTCJob, step by step, and draw when each of its jobs waited, ran and ended.
    #[command(visible_alias = "history")]
    Story(story::Arguments),
    /// Create an HTCJob from a script and flags.
    Submit(Box<submit::Arguments>),
    /// Wait until an HTCJob has ended, and show its progress.
    Wait(wait::Arguments),
    /// Show on one page what an HTCJob is doing, what is wrong with it, and what to do next.
    #[command(visible_aliases = ["describe", "status"])]
    Why(why::Arguments),
}

/// A command could not be carried out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct CommandFailure(String);

impl CommandFailure {
    /// Returns an error that says what was being done, and why it failed.
    fn new(doing: &str, why: impl Describe) -> Self {
        Self(format!("cannot {doing}: {}", why.describe()))
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next().map(PathBuf::from);
    let completes = name.as_deref().and_then(Path::file_stem).is_some_and(|name| name == complete::PROGRAM);
    let cli = if completes {
        let words = words.map(|word| word.to_string_lossy().into_owned()).collect();
        PluginCli { cluster: Cluster::default(), command: PluginCommand::Complete { words } }
    } else {
        PluginCli::parse()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result =
        runtime.map_err(|error| CommandFailure::new("start", error)).and_then(|runtime| runtime.block_on(run(cli)));
    result.unwrap_or_else(|failure| {
        tell!("error: {failure}");
        ExitCode::from(ERROR)
    })
}

async fn run(cli: PluginCli) -> Result<ExitCode, CommandFailure> {
    match cli.command {
        PluginCommand::Complete { words } => Ok(complete::run(PluginCli::command(), &words).await),
        PluginCommand::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut PluginCli::command(), "kubectl-htc", &mut script);
            terminal::raw(&script)
                .map(|()| ExitCode::SUCCESS)
                .map_err(|error| CommandFailure::new("print the script", error))
        }
        PluginCommand::Files(arguments) => files::run(&cli.cluster, &arguments).await,
        PluginCommand::Hold(arguments) => act::run(&cli.cluster, &arguments, JobAction::Hold).await,
        PluginCommand::Jobs(arguments) => jobs::run(&cli.cluster, &arguments).await,
        PluginCommand::Logs(arguments) => logs::run(&cli.cluster, &arguments).await,
        PluginCommand::Queue(arguments) => queue::run(&cli.cluster, &arguments).await,
        PluginCommand::Release(arguments) => act::run(&cli.cluster, &arguments, JobAction::Release).await,
        PluginCommand::Remove(arguments) => act::run(&cli.cluster, &arguments, JobAction::Remove).await,
        PluginCommand::Story(arguments) => story::run(&cli.cluster, &arguments).await,
        PluginCommand::Submit(arguments) => submit::run(&cli.cluster, &arguments).await,
        PluginCommand::Retry(arguments) => retry::run(&cli.cluster, &arguments).await,
        PluginCommand::Wait(arguments) => wait::run(&cli.cluster, &arguments).await,
        PluginCommand::Why(arguments) => why::run(&cli.cluster, &arguments).await,
    }
}
