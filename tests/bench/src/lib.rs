//! Measures the operator beside HTCondor's own tools with the same files in the same run: real API server, real pool.
//!
//! It is a crate of its own because it needs a Kubernetes client, which `testbed` and all who use it can do without. The
//! rooms: `bed` has the servers and the operator; `watch` is what one watch of the API server has shown; `tools` counts the
//! operator's calls; `raw` does the same work by hand; `rows` are the measurements; [`Report`] says what came of them.

mod bed;
mod cluster;
mod error;
mod front;
mod monitor;
mod raw;
mod report;
mod rows;
mod svg;
mod tools;
mod usage;
mod watch;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use testbed::Version;

use bed::Bed;
pub use error::{Error, Result};
pub use report::{Line, Report};
pub use svg::Chart;

/// What is measured, and how much of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operator's program.
    pub program: PathBuf,
    /// The CustomResourceDefinition of HTCJobs.
    pub crd: String,
    /// The one of HTCQueues.
    pub queue_crd: String,
    /// The one of HTCPools.
    pub pool_crd: String,
    /// Which HTCondor.
    pub version: Version,
    /// Which rows; 7, 11 and 13 take some ten minutes, and 14 needs a Kueue that is built from source.
    pub rows: BTreeSet<u8>,
    /// Row 1: HTCJobs created at once. Row 3 deletes as many as the last.
    pub at_once: Vec<u32>,
    /// Row 2: jobs of the large HTCJob.
    pub queue: u32,
    /// Rows 4 and 9: HTCJobs whose ends are seen.
    pub ends: u32,
    /// Rows 4 and 9: seconds over which they end; two of the tracker's intervals.
    pub spread: u32,
    /// Rows 5, 6 and 8: finished HTCJobs.
    pub finished: Vec<u32>,
    /// Rows 5 and 8: how long it is looked on; in row 4 a quarter of that.
    pub window: Duration,
    /// Rows 7 and 11: jobs of the huge HTCJob.
    pub huge: u32,
    /// Row 10: callbacks that are sent as fast as they are taken.
    pub callbacks: u32,
    /// Row 12: HTCJobs of the Kubernetes backend.
    pub pods: u32,
    /// Row 13: HTCJobs that wait in a queue.
    pub waiting: u32,
    /// Row 13: jobs for which the queue has room.
    pub room: u32,
    /// Row 14: HTCJobs that go through Kueue.
    pub workloads: u32,
    /// Row 15: HTCPools, and schedds.
    pub pools: u32,
}

impl Options {
    /// All rows but 7, 11, 13 and 14, with the numbers that the aims are about.
    #[must_use]
    pub fn new(program: PathBuf, crd: String, queue_crd: String, pool_crd: String) -> Self {
        Self {
            program,
            crd,
            queue_crd,
            pool_crd,
            version: Version::Trixie,
            rows: [1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15].into(),
            at_once: vec![100, 1000],
            queue: 1000,
            ends: 200,
            spread: 40,
            finished: vec![1000, 3000, 10_000],
            window: Duration::from_mins(1),
            huge: 100_000,
            callbacks: 10_000,
            pods: 1000,
            waiting: 10_000,
            room: 100,
            workloads: 500,
            pools: 10,
        }
    }
}

type Measurement = fn(&mut Bed, &raw::Raw, &Options, &mut Report) -> Result<()>;

/// Measures; a row that cannot be measured does not stop the others. After each, `so_far` gets what is measured until then.
pub fn measure(options: &Options, mut so_far: impl FnMut(&Report) -> Result<()>) -> Result<Report> {
    let mut report =
        Report { conditions: format!("{}; HTCondor of {}", report::machine(), options.version), ..Report::default() };
    say("starting etcd, kube-apiserver, an HTCondor pool and the operator");
    let mut bed = Bed::start(&options.program, &options.crd, options.version)?;
    let raw = bed.by_hand()?;
    let measurements: [(&[u8], Measurement); 10] = [
        // Before the others: on ext4 nothing is created fast for minutes after thousands of files were deleted.
        (&[2], rows::queue::measure),
        (&[1, 3], rows::at_once::measure),
        (&[4], rows::ends::measure),
        (&[9, 10], rows::callbacks::measure),
        (&[12], rows::pods::measure),
        (&[7, 11], rows::huge::measure),
        (&[13], rows::waiting::measure),
        (&[15], rows::pools::measure),
        (&[5, 6, 8], rows::finished::measure),
        (&[14], rows::kueue::measure),
    ];
    for (rows, measurement) in measurements {
        let wanted: Vec<String> = rows.iter().filter(|row| options.rows.contains(row)).map(u8::to_string).collect();
        if wanted.is_empty() {
            continue;
        }
        let name = wanted.join(", ");
        if let Err(error) = measurement(&mut bed, &raw, options, &mut report) {
            say(&format!(
                "row {name} could not be measured: {error}\nthe operator's log ends with\n{}",
                bed.log_tail()
            ));
            report.failed.push((name, error.to_string()));
        }
        so_far(&report)?;
    }
    bed.stop_operator()?;
    Ok(report)
}

/// One line of progress, with the time since the first.
pub(crate) fn say(line: &str) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let began = *BEGAN.get_or_init(Instant::now);
    // Whoever reads it may have stopped reading.
    let _ = writeln!(std::io::stderr(), "[{:4.0} s] {line}", began.elapsed().as_secs_f64());
}
