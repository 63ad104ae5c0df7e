//! What was measured, as a table, as JSON, and the curves.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use crate::error::{Doing as _, Result};
use crate::svg::Chart;

/// One line of the table.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Number of the row, as `ROWS` names it.
    pub row: u8,
    /// What was done.
    pub what: String,
    /// How the operator did it.
    pub operator: String,
    /// How it was done by hand.
    pub raw: String,
    /// How the two compare.
    pub ratio: String,
    /// What is aimed at; empty if nothing is.
    pub aim: String,
    /// Whether the aim is reached.
    pub reached: Option<bool>,
    /// All numbers, for the JSON.
    pub numbers: BTreeMap<&'static str, f64>,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Report {
    /// The lines, in the order of their measurement.
    pub lines: Vec<Line>,
    /// File names and curves.
    pub charts: Vec<(&'static str, Chart)>,
    /// What could not be measured, and why.
    pub failed: Vec<(String, String)>,
    /// Version of HTCondor, machine, load.
    pub conditions: String,
}

impl Report {
    /// The table, to be pasted into `docs/performance.md`.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut lines: Vec<&Line> = self.lines.iter().collect();
        lines.sort_by_key(|line| line.row);
        let mut text = format!("{}\n\n", self.conditions);
        text.push_str("| row | what | operator | by hand | ratio | aim | reached |\n|---|---|---|---|---|---|---|\n");
        for line in lines {
            let reached = line.reached.map_or("", |reached| if reached { "yes" } else { "**no**" });
            let Line { row, what, operator, raw, ratio, aim, .. } = line;
            let _ = writeln!(text, "| {row} | {what} | {operator} | {raw} | {ratio} | {aim} | {reached} |");
        }
        for (row, why) in &self.failed {
            let _ = writeln!(text, "\nNot measured: row {row}: {why}");
        }
        text
    }

    /// Writes the table, the JSON and the curves into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).doing("make the folder", folder)?;
        let lines: Vec<_> = self
            .lines
            .iter()
            .map(|line| {
                json!({
                    "row": line.row, "what": line.what, "operator": line.operator, "byHand": line.raw, "ratio": line.ratio,
                    "aim": line.aim, "reached": line.reached, "numbers": line.numbers,
                })
            })
            .collect();
        let json = json!({ "conditions": self.conditions, "lines": lines, "notMeasured": self.failed });
        let files = [("bench.md", self.markdown()), ("bench.json", format!("{json:#}\n"))];
        let charts = self.charts.iter().map(|(name, chart)| (*name, chart.svg()));
        for (name, contents) in files.into_iter().chain(charts) {
            let path = folder.join(name);
            std::fs::write(&path, contents).doing("write", &path)?;
        }
        Ok(())
    }
}

/// What this machine is, in one line.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = read("/proc/meminfo");
    let memory = memory.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok()).unwrap_or_default();
    let (name, load) = (read("/etc/os-release"), read("/proc/loadavg"));
    let name = name.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default().trim_matches('"');
    let load = load.split(' ').next().unwrap_or_default();
    format!("{cores} cores, {:.0} GiB, {name}, load {load} at the start", memory / 1024.0 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_table_has_measured_and_failed_rows() {
        let line = |row, reached| Line { row, what: format!("row {row}"), reached, ..Line::default() };
        let report = Report {
            lines: vec![line(2, Some(false)), line(1, Some(true))],
            failed: vec![("3".to_owned(), "no schedd".to_owned())],
            ..Report::default()
        };
        let text = report.markdown();
        let (first, second) = (text.find("| 1 | row 1 |").unwrap(), text.find("| 2 | row 2 |").unwrap());
        assert!(first < second && text.contains("| **no** |") && text.contains("| yes |"), "{text}");
        assert!(text.contains("row 3: no schedd"), "{text}");
    }
}
