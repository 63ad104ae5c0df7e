//! Each job as an object: `kubectl get htcprocs`, through the API server's aggregation and the front.

mod actions;
mod attacks;
mod availability;
mod htcjob_archive;
mod kubectl;
mod listing;
mod logs;
mod namespaces;
mod states;
mod users;
mod watching;

use serde_json::Value;

/// The paths of the API.
const API: &str = "/apis/procs.htc.cern.ch/v1alpha1";

/// Rows of a table: the words of each line but the first.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

/// The first word of each row.
fn names(table: &str) -> Vec<&str> {
    rows(table).into_iter().map(|row| row[0]).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
