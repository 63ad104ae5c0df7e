//! The YAML in the pages for users and admins.

use bed::pages::{Block, blocks, read, user_pages};
use serde_json::Value;

use super::{htcjob, kubectl, spec};

/// Whether it is taken; blocks that are a part of a spec, of one that is fine otherwise.
fn try_block(block: &Block) -> Result<(), String> {
    let value: Value = serde_saphyr::from_str(&block.text).map_err(|error| error.to_string())?;
    if value["resource"].is_object() {
        return of_the_workflow(&block.text);
    }
    let object = match (&value["kind"], &value["spec"]) {
        (Value::Null, Value::Null) => htcjob(&whole(value)),
        (Value::Null, part) => htcjob(&whole(part.clone())),
        _ => value,
    };
    kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], &object).map(drop)
}

/// The spec that a part belongs to. A container takes the place of the script.
fn whole(mut part: Value) -> Value {
    if part["container"].is_object() {
        part["script"] = Value::Null;
    }
    spec(&part)
}

/// Argo's kinds are not this server's: `examples/argo/workflow.yaml`, which tests/e2e/examples/argo.rs runs, has each of these lines.
fn of_the_workflow(text: &str) -> Result<(), String> {
    let workflow = read("examples/argo/workflow.yaml").replace("{{inputs.parameters.queue}}", "5");
    let there: Vec<&str> = workflow.lines().map(str::trim).collect();
    let missing = text.lines().map(str::trim).find(|line| *line != "…" && !there.contains(line));
    missing.map_or(Ok(()), |line| Err(format!("examples/argo/workflow.yaml has no line {line}")))
}

#[test]
fn api_server_accepts_every_yaml_in_the_docs() {
    let (mut seen, mut refused) = (0, Vec::new());
    // The alerts in docs/metrics.md are Prometheus': tests/docs has them.
    for page in user_pages().into_iter().filter(|page| page != "docs/metrics.md") {
        for block in blocks(&read(&page)).iter().filter(|block| block.language == "yaml") {
            seen += 1;
            if let Err(why) = try_block(block) {
                refused.push(format!("{page}:{}: {why}", block.line));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(seen > 15, "only {seen} blocks");
}
