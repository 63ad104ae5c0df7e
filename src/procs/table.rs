//! Jobs as kubectl prints them: a `Table`.

use serde_json::{Value, json};

use super::HTCProc;
use super::list::Include;
use crate::machine::ids::SchedDate;

/// Most bytes of a cell.
const CELL: usize = 120;

/// Names, types, descriptions, and whether only `-o wide` shows them.
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

/// A whole table.
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

/// The definitions of the columns.
#[must_use]
pub fn columns() -> Value {
    let definition = |(name, kind, description, priority): &(&str, &str, &str, u8)| {
        let format = if *name == "Name" { "name" } else { "" };
        json!({ "name": name, "type": kind, "format": format, "description": description, "priority": priority })
    };
    COLUMNS.iter().map(definition).collect()
}

/// The row of one job.
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

/// Bytes as Kubernetes writes them: `512`, `1.5Ki`, `34Mi`.
#[must_use]
pub fn size(bytes: i64) -> String {
    let mut tenths = i128::from(bytes.max(0)) * 10;
    let mut unit = "";
    for next in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if tenths < 10 * 1024 {
            break;
        }
        (tenths, unit) = ((tenths + 512) / 1024, next);
    }
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if tenth == 0 || whole >= 10 { format!("{whole}{unit}") } else { format!("{whole}.{tenth}{unit}") }
}

/// Seconds as kubectl writes them: `45s`, `3m12s`, `5h7m`, `3d4h`, `40d`.
#[must_use]
pub fn human(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |large: i64, letter: char, small: i64, other: char| {
        if small == 0 { format!("{large}{letter}") } else { format!("{large}{letter}{small}{other}") }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if hours < 3 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        two(days, 'd', hours % 24, 'h')
    } else {
        format!("{days}d")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ids::Index;
    use crate::procs::Parent;

    #[test]
    fn rows_fit_the_columns() {
        let parent = Parent {
            namespace: "physics".to_owned(),
            name: "fit".to_owned(),
            created: Some("1970-01-01T00:00:10Z".to_owned()),
            ..Parent::default()
        };
        let proc = HTCProc::not_recorded(&parent, Index(7), true, None);
        let row = row(&proc, Include::Metadata, SchedDate(100));
        let cells = row["cells"].as_array().unwrap();
        assert_eq!(cells.len(), columns().as_array().unwrap().len());
        assert_eq!((&cells[0], &cells[1], &cells[6]), (&json!("fit-7"), &json!("Removed"), &json!("90s")));
        assert_eq!(row["object"]["metadata"]["labels"]["htc.cern.ch/htcjob"], "fit");
        let shown: Vec<String> = [5, 119, 125, 700, 11_000, 20_000, 90_000, 200_000, 900_000].map(human).into();
        assert_eq!(shown, ["5s", "119s", "2m5s", "11m", "3h3m", "5h33m", "25h", "2d7h", "10d"]);
        let sizes: Vec<String> = [0, 1023, 1024, 1536, 10_000_000, 1 << 40, i64::MAX].map(size).into();
        assert_eq!(sizes, ["0", "1023", "1Ki", "1.5Ki", "9.5Mi", "1Ti", "8Ei"]);
    }
}
