//! Row 15: what HTCPools cost that nobody uses.

use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Assets, Pool, PoolOptions, wait_for};

use super::finished::Window;
use super::{real, seconds};
use crate::bed::Bed;
use crate::error::Result;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::{Options, say};

/// For all schedds to have answered once.
const READY: Duration = Duration::from_mins(5);

pub(crate) fn measure(bed: &mut Bed, _: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    let count = options.pools;
    bed.stop_operator()?;
    bed.kube().apply_crd(&options.pool_crd, "htcpools.htc.cern.ch")?;
    bed.restart_with(&[])?;
    bed.wait_written()?;
    say("row 15: no HTCPool");
    let before = Window::open(bed, options.window)?;

    say(&format!("row 15: {count} HTCPools, each with a schedd of its own"));
    let assets = Assets::locate()?;
    let start = |_| Pool::start(&assets, options.version, &PoolOptions::default());
    let pools = (0..count).map(start).collect::<testbed::Result<Vec<_>>>()?;
    let namespace = bed.namespace()?;
    let began = Instant::now();
    for (number, pool) in pools.iter().enumerate() {
        describe(bed, &namespace, number, pool)?;
    }
    let ready =
        ["get", "htcpools", "--namespace", &namespace, "-o", "jsonpath={.items[*].status.conditions[*].status}"];
    wait_for("all HTCPools to be ready", READY, || {
        let output = bed.kube().kubectl_ok(&ready).map_err(|error| error.to_string())?;
        let all = output.split(' ').filter(|status| *status == "True").count() == pools.len();
        if all { Ok(()) } else { Err(output) }
    })?;
    let took = began.elapsed().as_secs_f64();
    bed.wait_written()?;
    let window = Window::open(bed, options.window)?;
    bed.kube().kubectl_ok(&["delete", "htcpools", "--all", "--namespace", &namespace, "--timeout=60s"])?;
    report.lines.push(line(count, took, &before, &window));
    Ok(())
}

/// An HTCPool, with the Secret that it needs.
fn describe(bed: &Bed, namespace: &str, number: usize, pool: &Pool) -> Result<()> {
    let token = pool.tool("condor_token_create", &["-identity", "pools@test", "-key", "POOL"])?;
    let name = format!("pool{number}");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": namespace },
        "stringData": { "token": token.trim() },
    });
    let object = json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCPool", "metadata": { "name": name, "namespace": namespace },
        "spec": { "external":
            { "collector": pool.address(), "schedd": pool.schedd_name(), "credentialsSecretName": name } },
    });
    for object in [secret, object] {
        bed.kube().apply_stdin(&object.to_string())?;
    }
    Ok(())
}

fn line(count: u32, took: f64, before: &Window, window: &Window) -> Line {
    let minutes = window.seconds / 60.0;
    let a_minute = |window: &Window| real(window.tools.all()) / (window.seconds / 60.0);
    let Window { writes, tools, cpu, tools_cpu, rss, .. } = window;
    say(&format!("row 15: ready after {}; {writes} writes, tools: {}, CPU {cpu:.2} %", seconds(took), tools.words()));
    Line {
        row: 15,
        what: format!("{count} external HTCPools that no HTCJob uses, each a schedd of its own, {minutes:.0} min"),
        operator: format!(
            "ready after {}; then {writes} API writes, {:.1} tools a minute ({}); CPU {cpu:.2} %, with its tools {:.2} %, RSS {rss:.0} MiB",
            seconds(took),
            a_minute(window),
            tools.words(),
            cpu + tools_cpu
        ),
        raw: format!(
            "without HTCPools: {} API writes, {:.1} tools a minute, CPU {:.2} %, with its tools {:.2} %, RSS {:.0} MiB",
            before.writes,
            a_minute(before),
            before.cpu,
            before.cpu + before.tools_cpu,
            before.rss
        ),
        aim: "no writes".to_owned(),
        reached: Some(*writes == 0),
        numbers: [
            ("pools", f64::from(count)),
            ("readySeconds", took),
            ("toolsWithout", real(before.tools.all())),
            ("cpuPercentWithout", before.cpu),
        ]
        .into_iter()
        .chain(window.numbers())
        .collect(),
        ..Line::default()
    }
}
