//! Command `queue`: shows how full queues are, and which HTCJobs wait.

use std::process::ExitCode;

use htc_api::{HTCQueue, Quota, Used};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::CommandFailure;
use super::cluster::Cluster;
use crate::terminal::say;

/// Width of a bar in characters.
const BAR: usize = 20;
const MIB: u64 = 1 << 20;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl htc queue\n  \
    kubectl htc queue batch")]
pub(super) struct Arguments {
    /// Name of an HTCQueue. Default: all HTCQueues, one per line.
    name: Option<String>,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let api: Api<HTCQueue> = Api::all(cluster.jobs().await?.client);
    if let Some(name) = &arguments.name {
        let queue = api.get(name).await.map_err(|error| CommandFailure::new(&format!("get HTCQueue {name}"), error))?;
        say!("{}", page(&queue));
        return Ok(ExitCode::SUCCESS);
    }
    let queues =
        api.list(&ListParams::default()).await.map_err(|error| CommandFailure::new("list HTCQueues", error))?.items;
    if queues.is_empty() {
        say!("there are no HTCQueues. Where Kueue queues HTCJobs: kubectl get workloads.kueue.x-k8s.io");
    }
    for queue in &queues {
        say!("{}", line(queue));
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws a bar: `##########----------`. Usage above the limit is cut off.
fn bar(used: u64, limit: u64) -> String {
    let part = |limit: u64| usize::try_from(u128::from(used) * BAR as u128 / u128::from(limit)).unwrap_or(BAR);
    let full = if limit == 0 { if used > 0 { BAR } else { 0 } } else { part(limit).min(BAR) };
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full))
}

/// Returns used amount and limit of each resource.
fn amounts(used: &Used, quota: &Quota) -> Vec<(&'static str, u64, Option<u64>)> {
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    let memory = used.memory.strip_suffix("Mi").and_then(|memory| memory.parse().ok()).unwrap_or(0);
    let limit = quota.memory.as_ref().and_then(|memory| memory.in_units_of(1).ok()).map(|bytes| bytes / MIB);
    vec![
        ("jobs", number(used.jobs), quota.jobs.map(number)),
        ("cpus", number(used.cpus), quota.cpus.map(number)),
        ("memory (MiB)", memory, limit),
        ("gpus", number(used.gpus), quota.gpus.map(number)),
    ]
}

fn line(queue: &HTCQueue) -> String {
    let status = queue.status.clone().unwrap_or_default();
    // The scarcest resource decides how full the queue is.
    let fullest = amounts(&status.used, &queue.spec.quota)
        .into_iter()
        .filter_map(|(what, used, limit)| Some((what, used, limit?)))
        .max_by_key(|(_, used, limit)| u128::from(*used) * 1000 / u128::from((*limit).max(1)));
    let full = match fullest {
        Some((what, used, limit)) => format!("{} {used} of {limit} {what}", bar(used, limit)),
        None => format!("{} jobs, without a limit", status.used.jobs),
    };
    let active = queue.active_condition().map_or("no operator has seen it yet", |active| active.reason.as_str());
    format!("{}: {full}; {} jobs of {} HTCJobs wait; {active}", queue.name_any(), status.waiting_jobs, status.pending)
}

fn page(queue: &HTCQueue) -> String {
    let status = queue.status.clone().unwrap_or_default();
    let mut lines = vec![format!("HTCQueue {}", queue.name_any())];
    match queue.active_condition() {
        Some(active) => lines.push(format!("  {}: {}", active.reason, active.message)),
        None => lines.push("  no operator has seen it yet: does it run with --queueing=embedded?".to_owned()),
    }
    for (what, used, limit) in amounts(&status.used, &queue.spec.quota) {
        match limit {
            Some(limit) => lines.push(format!("  {what:<12} {} {used} of {limit}", bar(used, limit))),
            None if used > 0 => lines.push(format!("  {what:<12} {used}, without a limit")),
            None => {}
        }
    }
    if !status.by_namespace.is_empty() {
        lines.push("Namespaces:".to_owned());
    }
    for its in &status.by_namespace {
        lines.push(format!("  {}: {} jobs in use, {} HTCJobs wait", its.namespace, its.used.jobs, its.pending));
    }
    if status.pending > 0 {
        lines.push(format!("{} jobs of {} HTCJobs wait:", status.waiting_jobs, status.pending));
    }
    for waits in &status.waiting {
        let place = waits.position.map_or_else(|| "-".to_owned(), |place| format!("{place}."));
        lines.push(format!("  {place:<4} {}/{} ({}): {}", waits.namespace, waits.name, waits.reason, waits.message));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bar_length_is_the_used_share() {
        assert_eq!(bar(0, 10), "[--------------------]");
        assert_eq!(bar(5, 10), "[##########----------]");
        assert_eq!(bar(30, 10), "[####################]", "more than the limit");
        assert_eq!((bar(0, 0), bar(1, 0)), ("[--------------------]".to_owned(), "[####################]".to_owned()));
    }

    #[test]
    fn page_lists_waiting_htcjobs_with_their_reasons() {
        let queue: HTCQueue = serde_json::from_value(json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": "batch" },
            "spec": { "quota": { "jobs": 4, "memory": "1Gi" } },
            "status": {
                "used": { "jobs": 2, "cpus": 3, "memory": "1024Mi" }, "pending": 1, "waitingJobs": 7,
                "byNamespace": [{ "namespace": "physics", "used": { "jobs": 2 }, "pending": 1 }],
                "waiting": [{
                    "namespace": "physics", "name": "fit", "position": 1, "jobs": 7, "reason": "WaitingForQuota", "message": "why",
                }],
            },
        }))
        .unwrap();
        let page = page(&queue);
        for part in [
            "  jobs         [##########----------] 2 of 4",
            "  memory (MiB) [####################] 1024 of 1024",
            "  cpus         3, without a limit",
            "  physics: 2 jobs in use, 1 HTCJobs wait",
            "7 jobs of 1 HTCJobs wait:",
            "  1.   physics/fit (WaitingForQuota): why",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        assert_eq!(
            line(&queue),
            "batch: [####################] 1024 of 1024 memory (MiB); 7 jobs of 1 HTCJobs wait; no operator has seen it yet"
        );
    }
}
