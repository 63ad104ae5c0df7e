//! Flags to a command, and its result to an exit code.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what talks to the terminal")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use htc_confine as confine;
use htc_machine::text::table;
use htc_operator::cli::check::adopt::adopt;
use htc_operator::cli::check::orphans::{PoolOrphans, PoolSelector, orphans};
use htc_operator::cli::config::{Config, accept_old_names};
use htc_operator::cli::{check, run as operator};
use htc_operator::jobs_api::front;
use htc_operator::jobs_api::front::FrontConfig;
use htc_support::telemetry;
use htc_support::telemetry::{Log, LogFormat};

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
    /// Log level, for example `warn`, `info` or `htc=debug`.
    #[arg(long, env = "HTC_LOG_LEVEL", default_value = "info,kube_runtime=warn,kube_client=error", global = true)]
    log_level: String,
}

#[derive(Subcommand)]
enum Command {
    /// Run the operator until SIGTERM.
    Run(Box<Config>),
    /// Serve the jobs API (`kubectl get htcprocs`) to the API server until SIGTERM.
    JobsApi(Box<FrontConfig>),
    /// Print a CustomResourceDefinition.
    Crd {
        /// Kind of the resource.
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
    /// Adopt the jobs of the Go operator of 2020, before this operator runs for the first time.
    Adopt(Box<Config>),
    /// List the jobs of this operator in HTCondor whose HTCJob is gone, and remove them.
    Orphans(Box<OrphanArgs>),
}

#[derive(clap::Args)]
struct OrphanArgs {
    /// List the jobs in this pool only: NAMESPACE/NAME of an HTCPool, or `default` for that of --schedd.
    #[arg(long)]
    pool: Option<PoolSelector>,
    /// Remove the jobs with condor_rm, each as the user that it belongs to. This cannot be undone.
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

/// Result of a command. Its error is printed, and nothing else is done about it.
type CommandResult = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == confine::COMMAND) {
        let (why, code) = confine::run_step(std::env::args_os().skip(1));
        eprintln!("{why}");
        return ExitCode::from(code);
    }
    let matches = accept_old_names(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let log = match telemetry::start(cli.log_format, &cli.log_level) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("htc-operator: --log-level: {error}");
            return ExitCode::from(2);
        }
    };
    let acts = matches!(cli.command, Command::Run(_) | Command::Check(_) | Command::Adopt(_) | Command::Orphans(_));
    if acts && rustix::process::geteuid().is_root() {
        eprintln!(
            "htc-operator: it does not run as root, because HTCondor's tools then act as another account than the one that \
             submits; run it as an ordinary user, such as uid 10001 in its image"
        );
        return ExitCode::from(2);
    }
    let result = match cli.command {
        Command::Run(config) => block_on(run(*config, log)),
        Command::JobsApi(config) => block_on(serve(*config, log)),
        Command::Crd { kind } => match kind {
            CrdKind::Htcjobs => htc_api::crd_yaml(),
            CrdKind::Htcpools => htc_api::pool_crd_yaml(),
            CrdKind::Htcqueues => htc_api::queue_crd_yaml(),
        }
        .map(|yaml| print!("{yaml}"))
        .map_err(Into::into),
        Command::Statechart { folder: None } => {
            print!("{}", htc_machine::chart::mermaid());
            Ok(())
        }
        Command::Statechart { folder: Some(folder) } => write_charts(&folder)
            .map_err(|error| format!("cannot write the statecharts into {}: {error}", folder.display()).into()),
        Command::Check(config) => block_on(async { report(&check::check(&config).await) }),
        Command::Adopt(config) => block_on(async { adopted(&Box::pin(adopt(&config)).await?) }),
        Command::Orphans(args) => {
            let OrphanArgs { pool, remove, config } = *args;
            block_on(async { list(&orphans(&config, pool.as_ref(), remove).await?, remove) })
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("htc-operator: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config, log: Log) -> CommandResult {
    let stop = operator::stop_signal()?;
    tokio::spawn(log.follow_hangups()?);
    Ok(Box::pin(operator::run(config, stop)).await?)
}

async fn serve(config: FrontConfig, log: Log) -> CommandResult {
    let stop = operator::stop_signal()?;
    tokio::spawn(log.follow_hangups()?);
    Ok(front::run(config, stop).await?)
}

fn block_on(work: impl Future<Output = CommandResult>) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let result = runtime.block_on(work);
    // A write to a slow volume must not hold up the end.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    result
}

fn write_charts(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    htc_machine::chart::files().into_iter().try_for_each(|file| std::fs::write(folder.join(file.name), &file.contents))
}

fn report(lines: &[check::CheckResult]) -> CommandResult {
    for check::CheckResult { subject: what, result: found } in lines {
        match found {
            Ok(found) => println!("ok    {what}: {found}"),
            Err(wrong) => println!("WRONG {what}: {wrong}"),
        }
    }
    let wrong = lines.iter().filter(|line| line.result.is_err()).count();
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {} checks failed", lines.len()).into()) }
}

/// One line for each HTCJob; one that was not adopted is an error.
fn adopted(lines: &[check::CheckResult]) -> CommandResult {
    for check::CheckResult { subject: what, result: found } in lines {
        match found {
            Ok(jobs) => println!("adopted      {what}: {jobs}"),
            Err(why) => println!("NOT ADOPTED  {what}: {why}"),
        }
    }
    match lines.iter().filter(|line| line.result.is_err()).count() {
        0 if lines.is_empty() => println!("No HTCJob of the Go operator waits for its jobs to be adopted"),
        0 => {}
        left => return Err(format!("{left} of {} HTCJobs were not adopted: see above", lines.len()).into()),
    }
    Ok(())
}

/// A table of the orphans; what is not known or was not done is an error.
fn list(found: &[PoolOrphans], removes: bool) -> CommandResult {
    let titles = ["POOL", "ID", "NAMESPACE", "NAME", "STATE", "USER", "REMOVED"];
    let columns = if removes { titles.len() } else { titles.len() - 1 };
    let cells = |row: [&str; 7]| row[..columns].iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
    let mut rows = vec![cells(titles)];
    for PoolOrphans { pool, jobs, failure: trouble, .. } in found {
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
        let known = found.iter().filter(|found| found.failure.is_none()).map(|found| found.pool.as_str());
        println!("No orphans in: {}", known.collect::<Vec<_>>().join(", "));
    } else {
        for line in table(&rows) {
            println!("{line}");
        }
    }
    let mut wrong = 0;
    for PoolOrphans { pool, jobs, notes, failure: trouble } in found {
        for note in notes {
            eprintln!("htc-operator: pool {pool}: {note}");
        }
        let stay = jobs.iter().filter_map(|(job, stays)| Some(format!("job {} stays: {}", job.id, stays.as_ref()?)));
        for why in trouble.iter().map(ToString::to_string).chain(stay) {
            eprintln!("htc-operator: pool {pool}: {why}");
            wrong += 1;
        }
    }
    if wrong == 0 { Ok(()) } else { Err("not all is known or done: see above".into()) }
}
