//! What managed pools cost that nobody uses.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::managed::{self, PYTHON, make_namespace};
use super::site::Site;
use crate::demo::{failed, say};
use crate::error::{Error, Result};
use crate::wait::wait_for;

const POOLS: u32 = 10;
/// Without pools.
const BEFORE: Duration = Duration::from_mins(1);
/// With them: the operator looks at all objects of a pool once in five minutes.
const WINDOW: Duration = Duration::from_mins(6);
/// For the last write that has to do with their making.
const PATIENCE: Duration = Duration::from_mins(5);
/// Without a write they are at rest.
const REST: Duration = Duration::from_secs(20);

/// Clock ticks in a second, on every Linux that this runs on (`getconf CLK_TCK`).
const TICKS: f64 = 100.0;
/// Bytes of a page.
const PAGE: f64 = 4096.0;
const MIB: f64 = 1_048_576.0;

/// What pools consist of, beside the objects of `htc.cern.ch`.
const PARTS: [&str; 7] =
    ["secrets", "configmaps", "services", "deployments", "statefulsets", "networkpolicies", "persistentvolumeclaims"];

/// Makes the pools, each with a worker, lets them be, and takes them away.
pub(super) fn run(site: &Site<'_>) -> Result<()> {
    make_namespace(site)?;
    rest(site)?;
    say(&format!("without HTCPools: {}", window(site, BEFORE)?));
    let workers =
        json!({ "image": PYTHON, "replicas": 1, "resources": { "cpus": 1, "memory": "256Mi", "disk": "1Gi" } });
    let names: Vec<String> = (0..POOLS).map(|number| format!("idle{number}")).collect();
    names.iter().try_for_each(|name| site.add_volume(name))?;
    let began = Instant::now();
    names.iter().try_for_each(|name| site.apply(&managed::pool(name, &workers)))?;
    for condition in ["Ready", "WorkersReady"] {
        site.kubectl(&format!("-n pools wait --for=condition={condition} htcpools --all --timeout=10m"))?;
    }
    say(&format!(
        "{POOLS} managed HTCPools, each with a worker, are ready after {:.0} s",
        began.elapsed().as_secs_f64()
    ));
    rest(site)?;
    let before = writes(site)?;
    say(&format!("{POOLS} managed HTCPools that nobody uses: {}", window(site, WINDOW)?));
    let written = since(&before, &writes(site)?);
    site.kubectl("-n pools delete htcpools --all --timeout=5m")?;
    site.kubectl("delete namespace pools")?;
    if written.is_empty() { Ok(()) } else { Err(failed("write nothing for pools at rest", format!("{written:?}"))) }
}

/// Waits until nothing is written any more.
fn rest(site: &Site<'_>) -> Result<()> {
    let (mut last, mut at) = (writes(site)?, Instant::now());
    wait_for("the operator to come to rest", PATIENCE, || {
        let now = writes(site).map_err(|error| error.to_string())?;
        let new = since(&last, &now);
        if !new.is_empty() {
            (last, at) = (now, Instant::now());
        }
        if at.elapsed() >= REST { Ok(()) } else { Err(format!("{new:?}")) }
    })
}

/// What the operator and HTCondor take in that time, and what is written.
fn window(site: &Site<'_>, time: Duration) -> Result<String> {
    let (began, requests, tools, before) = (Instant::now(), writes(site)?, tools(site)?, Usage::now()?);
    thread::sleep(time);
    let (after, now) = (Usage::now()?, tools_since(&tools, &self::tools(site)?));
    let seconds = began.elapsed().as_secs_f64();
    let written: f64 = since(&requests, &writes(site)?).values().sum();
    let share = |after: f64, before: f64| 100.0 * (after - before) / seconds;
    Ok(format!(
        "in {seconds:.0} s {written} API writes; tools: {now}; operator: CPU {:.2} %, with its tools {:.2} %, RSS {:.0} MiB; HTCondor's daemons: CPU {:.2} %, RSS {:.0} MiB",
        share(after.operator, before.operator),
        share(after.operator + after.tools, before.operator + before.tools),
        after.rss,
        share(after.daemons, before.daemons),
        after.daemons_rss,
    ))
}

/// Requests that have written, by verb and resource, as the API server has counted them.
fn writes(site: &Site<'_>) -> Result<BTreeMap<String, f64>> {
    let mut all = BTreeMap::new();
    for line in site.ask("get --raw /metrics")?.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{"))
    {
        let label = |name: &str| {
            line.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default()
        };
        let (verb, resource) = (label(",verb"), label(",resource"));
        let is_ours = label("group") == "htc.cern.ch" || PARTS.contains(&resource) && label("subresource").is_empty();
        if is_ours && ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&verb) {
            let count: f64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default();
            *all.entry(format!("{verb} {resource}")).or_default() += count;
        }
    }
    Ok(all)
}

fn since(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let new = |(name, count): (&String, &f64)| {
        let new = count - before.get(name).copied().unwrap_or_default();
        (new > 0.0).then(|| (name.clone(), new))
    };
    now.iter().filter_map(new).collect()
}

/// How often the operator has run each of HTCondor's tools.
fn tools(site: &Site<'_>) -> Result<BTreeMap<String, f64>> {
    let path = "/api/v1/namespaces/htc-operator/services/htc-operator-metrics:metrics/proxy/metrics";
    let mut all = BTreeMap::new();
    for line in site.ask(&format!("get --raw {path}"))?.lines() {
        let Some(line) = line.strip_prefix("htc_tool_duration_seconds_count{") else { continue };
        let tool = line.split_once("tool=\"").and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default();
        let count: f64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default();
        *all.entry(tool.to_owned()).or_default() += count;
    }
    Ok(all)
}

fn tools_since(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>) -> String {
    let new: Vec<String> = since(before, now).iter().map(|(tool, count)| format!("{count} {tool}")).collect();
    if new.is_empty() { "none".to_owned() } else { new.join(", ") }
}

/// Of the processes in this cluster: seconds of CPU so far, and MiB now.
#[derive(Debug, Default)]
struct Usage {
    operator: f64,
    /// Those that the operator has waited for.
    tools: f64,
    rss: f64,
    daemons: f64,
    daemons_rss: f64,
}

impl Usage {
    fn now() -> Result<Self> {
        let mut all = Self::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            // It may have ended.
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some((name, rest)) = stat.split_once(" (").and_then(|(_, rest)| rest.rsplit_once(") ")) else {
                continue;
            };
            let fields: Vec<f64> = rest.split(' ').map(|field| field.parse().unwrap_or_default()).collect();
            let ticks = |from: usize| fields.get(from..from + 2).map_or(0.0, |two| two.iter().sum::<f64>() / TICKS);
            let rss = fields.get(21).copied().unwrap_or_default() * PAGE / MIB;
            if name == "htc-operator" {
                (all.operator, all.tools, all.rss) = (ticks(11), ticks(13), rss);
            } else if name.starts_with("condor_") {
                all.daemons += ticks(11) + ticks(13);
                all.daemons_rss += rss;
            }
        }
        let none = || -> Error { failed("find the operator's process", "there is none".to_owned()) };
        if all.operator > 0.0 { Ok(all) } else { Err(none()) }
    }
}
