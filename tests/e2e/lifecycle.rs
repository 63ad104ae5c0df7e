//! From `kubectl apply` to the output: what users see when all goes well, when their script fails, and when somebody
//! holds or removes their jobs.

mod events;
mod files;
mod hold_and_remove;
mod items;
mod large_submissions;
mod latency;
mod names;
mod namespace_limit;
mod outcomes;
mod parallelism;
mod private_images;
mod secrets;
mod suspend;
mod urls;

use bed::{Bed, Namespace, PATIENCE, UNTIL_LET_GO, condition, ids, of};
use serde_json::Value;
use testbed::wait_for;

/// Active, succeeded, failed; -1 as long as there is no status.
fn counts(object: &Value) -> [i64; 3] {
    ["active", "succeeded", "failed"].map(|count| object["status"][count].as_i64().unwrap_or(-1))
}

/// Status, reason and message of a condition; empty if there is none.
fn condition_parts(object: &Value, kind: &str) -> [String; 3] {
    ["status", "reason", "message"]
        .map(|part| condition(object, kind).map_or("", |condition| condition[part].as_str().unwrap()).to_owned())
}

/// What the `HTCJob`'s job wrote into a file of its output folder.
pub fn read(here: &Namespace<'_>, name: &str, index: u32, file: &str) -> String {
    here.wait_output(name);
    let path = here.output(name, index).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An attribute that is one word, of the only job in history that the constraint has.
fn in_history(bed: &Bed, constraint: &str, attributes: &[&str]) -> Vec<String> {
    let one = || match <[Vec<String>; 1]>::try_from(bed.history(constraint, attributes)) {
        Ok([row]) => Ok(row),
        Err(rows) => Err(format!("{constraint}: {rows:?}")),
    };
    wait_for("one job in history", PATIENCE, one).unwrap()
}
