//! Command `files`: fetches the output of jobs.

mod parcel;

use std::fs::{self, File};
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use self::parcel::{Parcel, is_taken, make};
use super::CommandFailure;
use super::cluster::{Cluster, JobsClient};
use super::procs::{JobSelector, Proc, parse_which};
use crate::terminal as say;
use crate::terminal::{say, tell};

/// Number of times in a row that a connection may end before any data arrived.
const TRIES: u32 = 5;
/// HTTP status: there is no such output.
const GONE: u16 = 404;
/// Width of the progress bar.
const WIDTH: usize = 30;
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
#[command(after_help = "A call that was interrupted goes on where it ended, when it is repeated.\n\n\
    Examples:\n  \
    kubectl htc files sums results\n  \
    kubectl htc files sums/3 results-of-3\n  \
    kubectl htc files sums results --failed\n  \
    kubectl htc files sums results --overwrite")]
pub(super) struct Arguments {
    /// Name of the HTCJob, or NAME/INDEX for one of its jobs.
    #[arg(value_parser = parse_which)]
    name: JobSelector,
    /// Folder for the output. With several jobs, each gets a folder in it, named after its index.
    folder: PathBuf,
    /// Replace existing files.
    #[arg(long)]
    overwrite: bool,
    /// Fetch the output of failed jobs only: those in status.failedIndexes of the HTCJob.
    #[arg(long)]
    failed: bool,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let jobs = cluster.jobs().await?;
    let Arguments { name, folder, overwrite, failed } = arguments;
    let procs = jobs.procs(name, *failed).await?;
    if procs.is_empty() {
        jobs.get(&name.htcjob).await?;
    }
    let (here, missing): (Vec<Proc>, Vec<Proc>) = procs.into_iter().partition(|proc| proc.fetched);
    if let (Some(proc), Some(_)) = (missing.first(), name.index) {
        return Err(CommandFailure(format!("the output of {} is not stored: it is {}", proc.name, proc.state)));
    }
    make(folder)?;
    let mut progress = TransferProgress::new(here.len());
    let mut failed = 0;
    for proc in &here {
        let place = if name.index.is_some() { folder.clone() } else { folder.join(proc.index.to_string()) };
        let parcel = Parcel::of(&proc.name, folder);
        if !overwrite && name.index.is_none() && is_taken(&place) {
            progress.clear();
            // An earlier call with --overwrite may have replaced only some of the files.
            if parcel.is_whole() {
                tell!(
                    "error: {}: an earlier call has not moved all files there: repeat it with --overwrite",
                    place.display()
                );
                failed += 1;
                continue;
            }
            tell!("{}: there is something already; skipped (--overwrite replaces it)", place.display());
            parcel.discard()?;
            progress.done += 1;
            continue;
        }
        parcel.make()?;
        if let Fetched::Gone(why) = fetch(&jobs, proc, &parcel, &mut progress).await? {
            // The other jobs' output is still there.
            progress.clear();
            tell!("error: {why}");
            // Only for a job that exists is it certain that its output is gone.
            if jobs.one(&proc.name).await.is_ok() {
                parcel.discard()?;
            }
            failed += 1;
            continue;
        }
        parcel.unpack()?;
        parcel.deliver(&place, *overwrite)?;
        progress.done += 1;
    }
    progress.clear();
    say!("output of {} of {} jobs is in {}", progress.done, here.len() + missing.len(), folder.display());
    if !missing.is_empty() {
        tell!("the output of {} jobs is not stored (yet)", missing.len());
    }
    if failed == 0 { Ok(ExitCode::SUCCESS) } else { Ok(ExitCode::from(super::ERROR)) }
}

/// Result of fetching one job's output.
enum Fetched {
    Whole,
    /// The operator has removed it, or never had it.
    Gone(CommandFailure),
}

/// Fetches an archive. Continues what an earlier call has fetched, if it is of the same archive: the operator is
/// asked, even if nothing is missing.
async fn fetch(
    jobs: &JobsClient,
    proc: &Proc,
    parcel: &Parcel,
    progress: &mut TransferProgress,
) -> Result<Fetched, CommandFailure> {
    let doing = format!("fetch the output of {}", proc.name);
    let (archive, tag_file) = (parcel.archive(), parcel.tag());
    let failed = |error: std::io::Error| CommandFailure::new(&format!("write {}", archive.display()), error);
    let mut tag = fs::read_to_string(&tag_file).ok();
    let mut file = File::options().create(true).append(true).open(&archive).map_err(failed)?;
    let mut tries = 0;
    loop {
        let offset = file.metadata().map_err(failed)?.len();
        let known = tag.as_ref().filter(|_| offset > 0).map(|tag| format!("&etag={tag}"));
        if known.is_none() && offset > 0 {
            file.set_len(0).map_err(failed)?;
            continue;
        }
        if offset == 0 {
            parcel.forget_unpacked().map_err(failed)?;
        }
        let what = format!("files?offset={offset}{}", known.unwrap_or_default());
        let mut answer = match jobs.of_job(&proc.name, &what).await {
            Ok(answer) => answer,
            // The archive has changed.
            Err(refused) if refused.code == 409 || refused.code == 400 && offset > 0 => {
                (tag, tries) = (None, tries + 1);
                if tries > TRIES {
                    return Err(CommandFailure::new(&doing, refused.message));
                }
                continue;
            }
            Err(refused) if refused.is_transient() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(refused) if refused.code == GONE => {
                return Ok(Fetched::Gone(CommandFailure::new(&doing, refused.message)));
            }
            Err(refused) => return Err(CommandFailure::new(&doing, refused.message)),
        };
        let length: Option<u64> = answer.header("x-htc-length").and_then(|length| length.parse().ok());
        let current = answer.header("etag").map(|tag| tag.trim_matches('"').to_owned());
        if let Some(current) = &current {
            fs::write(&tag_file, current).map_err(failed)?;
        }
        tag = current;
        let mut at = offset;
        while let Some(Ok(part)) = answer.next().await {
            file.write_all(&part).map_err(failed)?;
            at += part.len() as u64;
            tries = 0;
            progress.show(&proc.name, at, length);
        }
        if length.is_none_or(|length| at >= length) {
            return file.sync_all().map(|()| Fetched::Whole).map_err(failed);
        }
        tries += 1;
        if tries > TRIES {
            return Err(CommandFailure::new(
                &doing,
                "the connection ends again and again: try again later, it goes on from there",
            ));
        }
    }
}

/// Progress on standard error, on a terminal only.
struct TransferProgress {
    terminal: bool,
    all: usize,
    done: usize,
}

impl TransferProgress {
    fn new(all: usize) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), all, done: 0 }
    }

    /// Formats a line: `[######........] 4/9 sums-3: 2.1 of 8.4 MB`.
    fn line(&self, name: &str, at: u64, length: Option<u64>) -> String {
        let of = length.map(|length| format!(" of {:.1}", megabytes(length))).unwrap_or_default();
        let (all, width) = (self.all.max(1) as u64 * 100, WIDTH as u64);
        let part = length.filter(|length| *length > 0).map_or(0, |length| at.min(length) * 100 / length);
        let full = usize::try_from((self.done as u64 * 100 + part) * width / all).unwrap_or(WIDTH).min(WIDTH);
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full));
        format!("[{bar}] {}/{} {name}: {:.1}{of} MB", self.done + 1, self.all, megabytes(at))
    }

    fn show(&self, name: &str, at: u64, length: Option<u64>) {
        if self.terminal {
            say::progress(&self.line(name, at, length));
        }
    }

    fn clear(&self) {
        if self.terminal {
            say::clear();
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_has_finished_jobs_and_bytes_of_this_one() {
        let mut progress = TransferProgress { terminal: true, all: 2, done: 0 };
        let line = progress.line("sums-3", 1_000_000, Some(4_000_000));
        assert_eq!(line, "[###...........................] 1/2 sums-3: 1.0 of 4.0 MB");
        progress.done = 1;
        let line = progress.line("sums-5", 4_000_000, Some(4_000_000));
        assert_eq!(line, "[##############################] 2/2 sums-5: 4.0 of 4.0 MB");
        assert!(progress.line("sums-5", 7, None).ends_with(" 2/2 sums-5: 0.0 MB"));
        assert!(progress.line("sums-5", 7, Some(0)).starts_with("[###############..."));
    }
}
