//! Command `jobs`: lists the jobs of an HTCJob.

use std::process::ExitCode;

use htc_machine::text::table;
use serde_json::{Value, json};

use super::CommandFailure;
use super::cluster::Cluster;
use super::line;
use super::procs::{JobSelector, failed_only, parse_which};
use crate::terminal as say;
use crate::terminal::{say, tell};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl htc jobs sums\n  \
    kubectl htc jobs sums --failed -o wide\n  \
    kubectl htc jobs sums --state Held -o name\n  \
    kubectl htc jobs sums/3 -o yaml")]
pub(super) struct Arguments {
    /// Name of the HTCJob, or NAME/INDEX for one of its jobs.
    #[arg(value_parser = parse_which)]
    name: JobSelector,
    /// List failed jobs only: those in status.failedIndexes of the HTCJob, whose state is Failed, Removed or Lost.
    #[arg(long, conflicts_with = "state")]
    failed: bool,
    /// List jobs in this state only: Waiting, Idle, Running, Held, Succeeded, Failed, Removed or Lost.
    #[arg(long)]
    state: Option<htc_api::htcproc::State>,
    /// Output format.
    #[arg(short, long, value_enum)]
    output: Option<JobsFormat>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum JobsFormat {
    Wide,
    Name,
    Json,
    Yaml,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let jobs = cluster.jobs().await?;
    let Arguments { name, failed, state, output } = arguments;
    let one = name.index.map(|index| format!("spec.index={index}"));
    let in_state = if *failed { Some(failed_only()) } else { state.map(|state| format!("status.state={state}")) };
    let selector: Vec<String> = one.into_iter().chain(in_state).collect();
    let table = matches!(output, None | Some(JobsFormat::Wide));
    // Checks that the HTCJob exists at all: it may have no job in this state.
    jobs.get(&name.htcjob).await?;
    let accept = if table { TABLE } else { "application/json" };
    let pages = jobs.pages(&name.htcjob, &selector.join(","), accept).await?;
    if table {
        match lines(&pages, *output == Some(JobsFormat::Wide)) {
            Some(lines) => say!("{}", lines.join("\n")),
            None => tell!("No jobs found."),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let items: Vec<Value> = pages.iter().filter_map(|page| page["items"].as_array()).flatten().cloned().collect();
    match output {
        Some(JobsFormat::Name) => {
            for item in &items {
                say!("htcproc.procs.htc.cern.ch/{}", item["metadata"]["name"].as_str().unwrap_or_default());
            }
        }
        Some(JobsFormat::Yaml) => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
            say::yaml(&list)?;
        }
        _ => say::json(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the lines of the server's table, as kubectl prints them; `None` if it has no rows.
fn lines(pages: &[Value], wide: bool) -> Option<Vec<String>> {
    let columns = pages.first().and_then(|page| page["columnDefinitions"].as_array()).cloned().unwrap_or_default();
    let shown: Vec<usize> =
        (0..columns.len()).filter(|at| wide || columns[*at]["priority"].as_u64().unwrap_or_default() == 0).collect();
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), line);
    let head: Vec<String> =
        shown.iter().map(|at| columns[*at]["name"].as_str().unwrap_or_default().to_uppercase()).collect();
    let rows = pages.iter().filter_map(|page| page["rows"].as_array()).flatten();
    let rows = rows.map(|row| shown.iter().map(|at| cell(&row["cells"][*at])).collect());
    let written: Vec<Vec<String>> = [head].into_iter().chain(rows).collect();
    (written.len() > 1).then(|| table(&written))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_cells_stay_in_their_columns() {
        let page = json!({
            "columnDefinitions": [
                { "name": "Name", "priority": 0 }, { "name": "Starts", "priority": 0 }, { "name": "Item", "priority": 1 },
            ],
            "rows": [
                { "cells": ["fit-0", 1, "\u{1b}[2Jone\ntwo"] },
                { "cells": ["fit-10", 12, "three"] },
            ],
        });
        let pages = [page];
        let shown = lines(&pages, true).unwrap();
        assert_eq!(
            shown,
            ["NAME     STARTS   ITEM", "fit-0    1        \u{fffd}[2Jone two", "fit-10   12       three"]
        );
        assert_eq!(lines(&pages, false).unwrap(), ["NAME     STARTS", "fit-0    1", "fit-10   12"]);
        assert_eq!(lines(&[], false), None);
    }
}
