//! Jobs as kubectl prints them: a `Table`.

use htc_api::htcproc::HTCProc;
use htc_machine::ids::SchedDate;
pub use htc_machine::text::{human, size};
use serde_json::{Value, json};

use super::list::Include;

/// Maximum bytes of a cell.
const CELL: usize = 120;

/// Names, types, descriptions and priorities of the columns; those above 0 appear only with `-o wide`.
const COLUMNS: [(&str, &str, &str, u8); 11] = [
    ("Name", "string", "name of the HTCJob, and the job's index", 0),
    ("State", "string", "Waiting, Idle, Running, Held, Succeeded, Failed, Removed or Lost", 0),
    ("Exit", "string", "exit code, or the signal that killed the job", 0),
    ("Id", "string", "the job's id in HTCondor", 0),
    ("Attempts", "integer", "how often HTCondor has started the job", 0),
    ("Duration", "string", "how long the last run took, or has taken so far", 0),
    ("Age", "string", "since the HTCJob was created", 0),
    ("Host", "string", "the slot that the job runs on, or ran on last", 1),
    ("Output", "string", "size of the job's stored output", 1),
    ("Item", "string", "the job's item, if the HTCJob has items", 1),
    (
        "Message",
        "string",
        "why the job is held, what its state means, or why HTCondor has not done what is requested",
        1,
    ),
];

/// Returns a whole table.
#[must_use]
pub fn whole(rows: &Value, metadata: &Value) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns(),
        "rows": rows,
    })
}

/// Returns the definitions of the columns.
#[must_use]
pub fn columns() -> Value {
    let definition = |(name, kind, description, priority): &(&str, &str, &str, u8)| {
        let format = if *name == "Name" { "name" } else { "" };
        json!({ "name": name, "type": kind, "format": format, "description": description, "priority": priority })
    };
    COLUMNS.iter().map(definition).collect()
}

/// Returns the row of one job.
#[must_use]
pub fn row(proc: &HTCProc, include: Include, now: SchedDate) -> Value {
    let status = &proc.status;
    let exit = match (status.exit_code, status.exit_signal) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => String::new(),
    };
    let created = proc.name.created.as_deref().and_then(|time| time.parse::<jiff::Timestamp>().ok());
    let age = created.map_or_else(|| "<unknown>".to_owned(), |created| human(now.0 - created.as_second()));
    let message = status.message.as_deref().or(status.hold_reason.as_deref()).unwrap_or_default();
    let cells = json!([
        proc.name.name(),
        status.state,
        exit,
        status.id.as_deref().unwrap_or_default(),
        status.attempts,
        status.duration_seconds.map(human).unwrap_or_default(),
        age,
        status.host.as_deref().unwrap_or_default(),
        status.output_bytes.map(size).unwrap_or_default(),
        short(proc.spec.item.as_deref().unwrap_or_default()),
        short(message),
    ]);
    let object = match include {
        Include::None => Value::Null,
        Include::Metadata => json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": proc.name.metadata(),
        }),
        Include::Object => proc.object(),
    };
    json!({ "cells": cells, "object": object })
}

fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.len() <= CELL {
        return line.to_owned();
    }
    let mut end = CELL;
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &line[..end])
}

#[cfg(test)]
mod tests {
    use htc_machine::ids::Index;

    use super::*;
    use crate::backends::procs::Parent;

    #[test]
    fn table_rows_fit_the_columns() {
        let parent = Parent {
            namespace: "physics".to_owned(),
            name: "fit".to_owned(),
            created: Some("1970-01-01T00:00:10Z".to_owned()),
            ..Parent::default()
        };
        let proc = crate::backends::procs::not_recorded(&parent, Index(7), true, None);
        let row = row(&proc, Include::Metadata, SchedDate(100));
        let cells = row["cells"].as_array().unwrap();
        assert_eq!(cells.len(), columns().as_array().unwrap().len());
        assert_eq!((&cells[0], &cells[1], &cells[6]), (&json!("fit-7"), &json!("Removed"), &json!("90s")));
        assert_eq!(row["object"]["metadata"]["labels"]["htc.cern.ch/htcjob"], "fit");
    }
}
