//! What a process takes of the machine, from /proc.

use std::fs;
use std::path::PathBuf;

use crate::error::{Doing as _, Error, Result};

/// Clock ticks in a second, on every Linux that this runs on (`getconf CLK_TCK`).
const TICKS: f64 = 100.0;

/// So far, and now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Seconds of CPU, of the process itself.
    pub(crate) cpu: f64,
    /// Seconds of CPU, of the processes that it has waited for: the operator's are tools.
    pub(crate) tools: f64,
    /// Resident memory, in MiB.
    pub(crate) rss: f64,
    /// The same, each shared page divided by those who share it.
    pub(crate) pss: f64,
    /// The most resident memory ever, in MiB.
    pub(crate) peak: f64,
}

impl Usage {
    /// From now on the peak is of what is to come.
    pub(crate) fn forget_peak(pid: u32) -> Result<()> {
        let path = PathBuf::from(format!("/proc/{pid}/clear_refs"));
        fs::write(&path, "5").doing("forget the peak by", &path)
    }

    pub(crate) fn of(pid: u32) -> Result<Self> {
        let read = |name: &str| {
            let path = PathBuf::from(format!("/proc/{pid}/{name}"));
            fs::read_to_string(&path).doing("read", &path)
        };
        let (stat, status, memory) = (read("stat")?, read("status")?, read("smaps_rollup")?);
        // The name of the program, in parentheses, may hold blanks.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |field: usize| {
            fields
                .get(field - 3)
                .and_then(|ticks| ticks.parse::<f64>().ok())
                .ok_or_else(|| Error::Unexpected(format!("/proc/{pid}/stat has no field {field}")))
        };
        let mebibytes = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next()).and_then(|word| word.parse::<f64>().ok());
            number.map_or(0.0, |kibibytes| kibibytes / 1024.0)
        };
        Ok(Self {
            cpu: (ticks(14)? + ticks(15)?) / TICKS,
            tools: (ticks(16)? + ticks(17)?) / TICKS,
            rss: mebibytes(&status, "VmRSS:"),
            pss: mebibytes(&memory, "Pss:"),
            peak: mebibytes(&status, "VmHWM:"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_is_read() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.rss > 0.5 && usage.pss > 0.1 && usage.peak >= usage.rss, "{usage:?}");
    }
}
