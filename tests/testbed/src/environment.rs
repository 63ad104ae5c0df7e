//! The table of docs/using.md about the environment of payloads, compared with what a payload prints.

use std::collections::BTreeMap;

/// Script of a payload that prints its environment.
pub const PROBE: &str = include_str!("environment.sh");
/// Program that runs the script only if the payload's `PATH` was searched for it.
pub const INTERPRETER: &str = "#!/bin/sh\nFOUND_IN_PATH=yes exec /bin/sh \"$@\"\n";
/// Name of that program.
pub const INTERPRETER_NAME: &str = "sh-in-path";
/// Heading of the section with the table.
const HEADING: &str = "## How your script runs";
/// Folder of a payload in the scratch directory. The table has an ellipsis for what is before it.
const WORK: &str = "/.htc_work/";

/// Column of the table: what runs the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Apptainer on a node of HTCondor.
    Apptainer = 1,
    /// A worker of a managed pool.
    Worker = 2,
    /// A Pod of the Kubernetes backend.
    Pod = 3,
}

/// Returns the differences between the column of the table in `page` and the output of [`PROBE`].
///
/// A cell begins with the value, or with `the` if it depends on the node, the site or the image.
#[must_use]
pub fn differences(page: &str, column: Column, printed: &str) -> Vec<String> {
    let documented = cells(page, column);
    let printed: BTreeMap<String, String> = printed.lines().filter_map(row).collect();
    let mut differences = Vec::new();
    for name in documented.keys().filter(|name| !printed.contains_key(*name)) {
        differences.push(format!("{name}: not printed"));
    }
    for (name, value) in &printed {
        match documented.get(name) {
            None => differences.push(format!("{name}: not in the table")),
            Some(cell) if !cell.starts_with("the ") && !begins_with(cell, value) => {
                differences.push(format!("{name}: {value:?} is documented as {cell:?}"));
            }
            Some(_) => {}
        }
    }
    differences
}

fn row(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('\t')?;
    let value = match value.split_once(WORK) {
        Some((_, rest)) => format!("…{WORK}{rest}"),
        None => value.to_owned(),
    };
    Some((name.to_owned(), value))
}

fn begins_with(cell: &str, value: &str) -> bool {
    cell.strip_prefix(value).is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ';', ' ']))
}

/// Returns the cells of a column by the names of their rows, without backticks.
fn cells(page: &str, column: Column) -> BTreeMap<String, String> {
    let (_, section) = page.split_once(HEADING).unwrap_or_default();
    let lines = section.lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
    let rows = lines.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<String> = line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let cell = |number: usize| cells.get(number).cloned().unwrap_or_default();
        (cell(0), cell(column as usize))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_is_compared() {
        let page = "## How your script runs\n\n| | a | b | c |\n| --- | --- | --- | --- |\n| `HOME` | `/h`, empty | `…/.htc_work/home` | the image's |\n| umask | `0022` | `0022` | `0022` |\n\n## x\n";
        let of = |column, printed| differences(page, column, printed);
        assert_eq!(of(Column::Apptainer, "HOME\t/h\numask\t0022\n"), Vec::<String>::new());
        assert_eq!(of(Column::Worker, "HOME\t/x/y/.htc_work/home\numask\t0022\n"), Vec::<String>::new());
        assert_eq!(of(Column::Pod, "HOME\t/root\numask\t0022\n"), Vec::<String>::new());
        assert_eq!(
            of(Column::Apptainer, "HOME\t/home\numask\t0022\n"),
            ["HOME: \"/home\" is documented as \"/h, empty\""]
        );
        assert_eq!(of(Column::Pod, "HOME\t/\n"), ["umask: not printed"]);
        assert_eq!(of(Column::Pod, "HOME\t/\numask\t0022\nx\ty\n"), ["x: not in the table"]);
    }
}
