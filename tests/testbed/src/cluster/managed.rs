//! HTCPools that the operator runs and HTCJobs in them, for parts that no page describes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::site::{HTCONDOR, Site};
use crate::demo::failed;
use crate::error::Result;

/// What jobs run in.
pub(super) const PYTHON: &str = "python:3.12";

/// Says where it runs, in its output and on the worker, and runs until it is told to finish there.
const LASTING: &str = r#"import os, pathlib, sys, time
name = os.environ["JOB_NAME"]
line = f"job {sys.argv[1]} began on {os.environ['POD_NAME']} at {time.time()}\n"
with open("/tmp/began-" + name, "a") as began:
    began.write(line)
print(line, end="", flush=True)
while not pathlib.Path("/tmp/finish-" + name).exists():
    time.sleep(0.2)
"#;

/// A namespace that lets in no pod that is not restricted, with the Role that pools need.
pub(super) fn make_namespace(site: &Site<'_>) -> Result<()> {
    site.kubectl("create namespace pools")?;
    site.kubectl("label namespace pools pod-security.kubernetes.io/enforce=restricted")?;
    site.kubectl("apply -n pools -k deploy/namespace-pools")
}

/// An HTCPool with these workers, whose queue goes with it.
pub(super) fn pool(name: &str, workers: &Value) -> Value {
    json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCPool", "metadata": { "name": name, "namespace": "pools" },
        "spec": { "managed": {
            "image": HTCONDOR,
            "schedd": { "storage": { "size": "1Gi", "reclaim": "Delete" } },
            "workers": workers,
        } },
    })
}

/// Jobs that run until [`finish`]; `own`: `spec.miniCluster`, if it has one.
pub(super) fn lasting(pool: &str, name: &str, queue: u32, own: Option<Value>) -> Value {
    let mut object = json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": name, "namespace": "pools" },
        "spec": {
            "pool": pool, "queue": queue, "resources": { "cpus": 1, "memory": "64Mi", "disk": "64Mi" },
            "script": { "image": PYTHON, "command": "python3", "source": LASTING },
        },
    });
    if let Some(own) = own {
        object["spec"]["miniCluster"] = own;
    }
    object
}

/// Where HTCondor says that the jobs of an HTCJob run: the worker by the job's id.
pub(super) fn places(site: &Site<'_>, pool: &str, name: &str) -> Result<BTreeMap<String, String>> {
    let jobs = site.says(&format!(
        "kubectl -n pools exec {pool}-schedd-0 -- condor_q -allusers -constraint 'JobBatchName == \"pools/{name}\" && JobStatus == 2' -af:j RemoteHost"
    ))?;
    let place = |line: &str| Some((line.split_whitespace().next()?.to_owned(), line.split('@').nth(1)?.to_owned()));
    Ok(jobs.lines().filter_map(place).collect())
}

/// Waits until so many jobs of an HTCJob run, and have said so; what each has said, by the worker on which it runs.
pub(super) fn begun(site: &Site<'_>, pool: &str, name: &str, jobs: usize) -> Result<BTreeMap<String, Vec<String>>> {
    site.until(&format!("kubectl -n pools get htcjob {name} -o jsonpath={{.status.running}}"), |running| {
        running == jobs.to_string()
    })?;
    let on: Vec<String> = places(site, pool, name)?.into_values().collect();
    if on.len() != jobs {
        return Err(failed("find the jobs on workers", format!("{on:?}")));
    }
    let mut begun = BTreeMap::new();
    for worker in &on {
        let its = on.iter().filter(|place| *place == worker).count();
        let line = format!("kubectl -n pools exec {worker} -- cat /tmp/began-{name}");
        let message = site.until(&line, |message| message.lines().count() == its)?;
        begun.insert(worker.clone(), message.lines().map(str::to_owned).collect());
    }
    Ok(begun)
}

/// Jobs of an HTCJob on this worker come to their end.
pub(super) fn finish(site: &Site<'_>, worker: &str, name: &str) -> Result<()> {
    site.says(&format!("kubectl -n pools exec {worker} -- touch /tmp/finish-{name}")).map(drop)
}

/// All jobs of an HTCJob have ended well, and what they have written has come back: each has said once where it runs.
pub(super) fn wrote(site: &Site<'_>, name: &str, jobs: usize) -> Result<Vec<String>> {
    let state =
        "jsonpath={.status.succeeded} {.status.failed} {.status.conditions[?(@.type==\"OutputFetched\")].status}";
    let ended = format!("{jobs} 0 True");
    site.until(&format!("kubectl -n pools get htcjob {name} -o '{state}'"), |shown| shown == ended)?;
    let out = format!("cat /data/htc_out/pools/{name}/latest/*/out");
    let said = site.says(&format!("kubectl -n htc-operator exec deploy/htc-operator -- sh -c '{out}'"))?;
    let mut said: Vec<String> = said.lines().map(str::to_owned).collect();
    said.sort_unstable();
    if said.len() == jobs { Ok(said) } else { Err(failed("have each job run once", said.join("\n"))) }
}

/// The jobs have written what they had written when they were seen to begin, and nothing else: each has run once, and where it was.
pub(super) fn ran_once(begun: &BTreeMap<String, Vec<String>>, wrote: &[String]) -> Result<()> {
    let mut before: Vec<&String> = begun.values().flatten().collect();
    before.sort_unstable();
    if before.iter().copied().eq(wrote) {
        Ok(())
    } else {
        Err(failed("have each job run once", format!("they began as {before:?}, and ended as {wrote:?}")))
    }
}
