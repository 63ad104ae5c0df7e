//! What the machine withholds from a process.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// How long the threads of a process have waited for a processor since this was made.
pub(crate) struct Waits {
    pid: u32,
    before: HashMap<String, Duration>,
    latest: HashMap<String, Duration>,
}

impl Waits {
    pub(crate) fn of(pid: u32) -> Self {
        Self { pid, before: waits(pid), latest: HashMap::new() }
    }

    /// To be called again and again: what a thread has waited goes with it.
    pub(crate) fn look(&mut self) {
        self.latest.extend(waits(self.pid));
    }

    /// Of all of them together.
    pub(crate) fn total(&self) -> Duration {
        let before = |thread| self.before.get(thread).copied().unwrap_or_default();
        self.latest.iter().map(|(thread, waited)| waited.saturating_sub(before(thread))).sum()
    }
}

/// Of each thread, since it began; of none where the kernel does not say it.
fn waits(pid: u32) -> HashMap<String, Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let waited = |thread: fs::DirEntry| {
        let schedstat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let nanoseconds = schedstat.split_whitespace().nth(1)?.parse().ok()?;
        Some((thread.file_name().into_string().ok()?, Duration::from_nanos(nanoseconds)))
    };
    threads.filter_map(waited).collect()
}
