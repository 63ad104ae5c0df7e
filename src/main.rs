//! Flags to a command, and its result to an exit code.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what talks to the terminal")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use htc_operator::api::text::table;
use htc_operator::check::orphans::{InPool, Which, orphans};
use htc_operator::config::Config;
use htc_operator::confine;
use htc_operator::front::{self, FrontConfig};
use htc_operator::telemetry::{self, Log, LogFormat};
use htc_operator::{api, check, machine, operator, pools, queue};

/// Gives back what it no longer needs: after ten thousand HTCJobs, glibc's has kept more than twice as much as is in use.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(version, about = "Runs Kubernetes HTCJobs on an HTCondor pool, exactly once, and leaves nothing behind")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Format of the log lines.
    #[arg(long, env = "HTC_LOG_FORMAT", default_value = "text", global = true)]
    log_format: LogFormat,
    /// Log level, for example `warn`, `info` or `htc_operator=debug`.
    #[arg(long, env = "HTC_LOG", default_value = "info,kube_runtime=warn,kube_client=error", global = true)]
    log: String,
}

#[derive(Subcommand)]
enum Command {
    /// Run the operator until SIGTERM.
    Run(Box<Config>),
    /// Run a front of the jobs API until SIGTERM: what the API server connects to for `kubectl get htcprocs`.
    JobsApi(Box<FrontConfig>),
    /// Print a CustomResourceDefinition.
    Crd {
        /// Of which kind.
        #[arg(default_value = "htcjobs")]
        kind: CrdKind,
    },
    /// Write the statecharts into a folder.
    Statechart {
        /// The folder. Default: print the Mermaid diagram.
        folder: Option<PathBuf>,
    },
    /// Check the cluster, the schedd, the credentials and the database, and say what to fix.
    Check(Box<Config>),
    /// List the jobs of this operator in HTCondor whose HTCJob is gone, and remove them.
    Orphans(Box<OrphanArgs>),
}

#[derive(clap::Args)]
struct OrphanArgs {
    /// Look only in this pool: NAMESPACE/NAME of an HTCPool, or `default` for that of --schedd.
    #[arg(long)]
    pool: Option<Which>,
    /// Remove them with condor_rm, each as the user that it belongs to. This cannot be undone.
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    config: Config,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum CrdKind {
    /// HTCJob.
    Htcjobs,
    /// HTCPool.
    Htcpools,
    /// HTCQueue.
    Htcqueues,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == confine::COMMAND) {
        let (why, code) = confine::step(std::env::args_os().skip(1));
        eprintln!("{why}");
        return ExitCode::from(code);
    }
    let cli = Cli::parse();
    let log = match telemetry::start(cli.log_format, &cli.log) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("htc-operator: --log: {error}");
            return ExitCode::from(2);
        }
    };
    let acts = matches!(cli.command, Command::Run(_) | Command::Check(_) | Command::Orphans(_));
    if acts && rustix::process::geteuid().is_root() {
        eprintln!(
            "htc-operator: it does not run as root, because HTCondor's tools then act as another account than the one that \
             submits; run it as an ordinary user, such as uid 10001 in its image"
        );
        return ExitCode::from(2);
    }
    let result = match cli.command {
        Command::Run(config) => {
            block_on(run(*config, log)).and_then(|result| result.map_err(|error| error.to_string()))
        }
        Command::JobsApi(config) => {
            block_on(serve(*config, log)).and_then(|result| result.map_err(|error| error.to_string()))
        }
        Command::Crd { kind } => match kind {
            CrdKind::Htcjobs => api::crd_yaml(),
            CrdKind::Htcpools => api::pool_crd_yaml(),
            CrdKind::Htcqueues => api::queue_crd_yaml(),
        }
        .map(|yaml| print!("{yaml}"))
        .map_err(|error| error.to_string()),
        Command::Statechart { folder: None } => {
            print!("{}", machine::chart::mermaid());
            Ok(())
        }
        Command::Statechart { folder: Some(folder) } => write_charts(&folder)
            .map_err(|error| format!("cannot write the statecharts into {}: {error}", folder.display())),
        Command::Check(config) => block_on(check::check(&config)).and_then(|lines| report(&lines)),
        Command::Orphans(args) => {
            let OrphanArgs { pool, remove, config } = *args;
            block_on(orphans(&config, pool.as_ref(), remove)).flatten().and_then(|found| list(&found, remove))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("htc-operator: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config, log: Log) -> Result<(), operator::StartError> {
    let stop = operator::told_to_stop()?;
    tokio::spawn(log.follow_hangups()?);
    Box::pin(operator::run(config, stop)).await
}

async fn serve(config: FrontConfig, log: Log) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stop = operator::told_to_stop()?;
    tokio::spawn(log.follow_hangups()?);
    Ok(front::run(config, stop).await?)
}

fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let result = runtime.block_on(work);
    // A write to a slow volume must not hold up the end.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    Ok(result)
}

fn write_charts(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let others = [pools::states::file(), pools::managed::states::file(), queue::states::file()];
    let files = machine::chart::files().into_iter().chain(others);
    files.into_iter().try_for_each(|file| std::fs::write(folder.join(file.name), &file.contents))
}

fn report(lines: &[check::Line]) -> Result<(), String> {
    for check::Line { what, found } in lines {
        match found {
            Ok(found) => println!("ok    {what}: {found}"),
            Err(wrong) => println!("WRONG {what}: {wrong}"),
        }
    }
    let wrong = lines.iter().filter(|line| line.found.is_err()).count();
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {} cannot be used", lines.len())) }
}

/// A table of the orphans; what is not known or was not done is an error.
fn list(found: &[InPool], removes: bool) -> Result<(), String> {
    let titles = ["POOL", "ID", "NAMESPACE", "NAME", "STATE", "USER", "REMOVED"];
    let columns = if removes { titles.len() } else { titles.len() - 1 };
    let cells = |row: [&str; 7]| row[..columns].iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
    let mut rows = vec![cells(titles)];
    for InPool { pool, jobs, trouble, .. } in found {
        for (job, stays) in jobs {
            let (namespace, name) = job.name.split_once('/').unwrap_or(("?", &job.name));
            let gone = match (stays, trouble) {
                (Some(_), _) => "no",
                (None, Some(_)) => "see below",
                (None, None) => "yes",
            };
            let status = format!("{:?}", job.status);
            rows.push(cells([pool, &job.id.to_string(), namespace, name, &status, &job.user, gone]));
        }
    }
    if rows.len() == 1 {
        let known = found.iter().filter(|found| found.trouble.is_none()).map(|found| found.pool.as_str());
        println!("No orphans in: {}", known.collect::<Vec<_>>().join(", "));
    } else {
        for line in table(&rows) {
            println!("{line}");
        }
    }
    let mut wrong = 0;
    for InPool { pool, jobs, notes, trouble } in found {
        for note in notes {
            eprintln!("htc-operator: pool {pool}: {note}");
        }
        let stay = jobs.iter().filter_map(|(job, stays)| Some(format!("job {} stays: {}", job.id, stays.as_ref()?)));
        for why in trouble.iter().cloned().chain(stay) {
            eprintln!("htc-operator: pool {pool}: {why}");
            wrong += 1;
        }
    }
    if wrong == 0 { Ok(()) } else { Err("not all is known or done: see above".to_owned()) }
}
