//! `bench`: measures, prints the table, and leaves it with JSON and curves in a folder.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

use std::path::PathBuf;
use std::process::ExitCode;

use bench::{Error, Options, Result, measure};
use clap::{Parser, ValueEnum};
use testbed::Version;

/// Measures the operator beside HTCondor's own tools, on real servers.
#[derive(Parser)]
struct Cli {
    /// The operator's program, built with --release.
    program: PathBuf,
    /// Folder with the CustomResourceDefinitions.
    #[arg(long, default_value = "crd")]
    crd: PathBuf,
    /// Folder for the table, the JSON and the curves.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// Which rows; without it all but 7, 11 and 13, which take long, and 14, which takes `testbed setup --kueue`.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<u8>,
    /// Rows 7, 11 and 13 too.
    #[arg(long)]
    full: bool,
    /// Which HTCondor.
    #[arg(long, value_enum, default_value = "trixie")]
    version: Pool,
    /// Rows 5, 6 and 8: numbers of finished HTCJobs, growing.
    #[arg(long, value_delimiter = ',')]
    finished: Vec<u32>,
    /// Rows 7 and 11: jobs of the huge HTCJob.
    #[arg(long)]
    huge: Option<u32>,
    /// Row 10: callbacks.
    #[arg(long)]
    callbacks: Option<u32>,
    /// Row 12: HTCJobs of the Kubernetes backend.
    #[arg(long)]
    pods: Option<u32>,
    /// Row 13: HTCJobs that wait.
    #[arg(long)]
    waiting: Option<u32>,
    /// Row 14: HTCJobs that go through Kueue.
    #[arg(long)]
    workloads: Option<u32>,
    /// Row 15: HTCPools.
    #[arg(long)]
    pools: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Pool {
    Trixie,
    Sid,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let crd = |name: &str| {
        let path = cli.crd.join(format!("{name}.yaml"));
        std::fs::read_to_string(&path).map_err(|source| Error::File { doing: "read", path, source })
    };
    let [jobs, queues, pools] = ["htcjobs", "htcqueues", "htcpools"].map(|kind| crd(&format!("{kind}.htc.cern.ch")));
    let mut options = Options::new(cli.program, jobs?, queues?, pools?);
    if !cli.rows.is_empty() {
        options.rows = cli.rows.into_iter().collect();
    }
    if cli.full {
        options.rows.extend([7, 11, 13]);
    }
    if !cli.finished.is_empty() {
        options.finished = cli.finished;
    }
    options.huge = cli.huge.unwrap_or(options.huge);
    options.callbacks = cli.callbacks.unwrap_or(options.callbacks);
    options.pods = cli.pods.unwrap_or(options.pods);
    options.waiting = cli.waiting.unwrap_or(options.waiting);
    options.workloads = cli.workloads.unwrap_or(options.workloads);
    options.pools = cli.pools.unwrap_or(options.pools);
    options.version = match cli.version {
        Pool::Trixie => Version::Trixie,
        Pool::Sid => Version::Sid,
    };
    // At once, as the rows take long, and whoever ends them early wants to keep what there is.
    let report = measure(&options, |report| report.write(&cli.out))?;
    println!("\n{}", report.markdown());
    println!("The table, the JSON and the curves are in {}.", cli.out.display());
    let failed: Vec<&str> = report.failed.iter().map(|(row, _)| row.as_str()).collect();
    if failed.is_empty() { Ok(()) } else { Err(Error::Rows(format!("row {}", failed.join(", ")))) }
}
