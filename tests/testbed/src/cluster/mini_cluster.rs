//! HTCJobs with workers of their own on a real node: whose jobs run where, and when their workers come and go.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::json;

use super::managed::{self, PYTHON, begun, finish, lasting, make_namespace, ran_once, wrote};
use super::site::{PATIENCE, STANDARD, Site};
use crate::demo::{failed, say};
use crate::error::Result;
use crate::wait::wait_for;

const POOL: &str = "minis";
/// An image that the pool allows beside its own.
const OTHER: &str = "registry.example.org/jobs/other:1";

/// Makes the pool, has HTCJobs run beside one another, and takes all away.
pub(super) fn run(site: &Site<'_>) -> Result<()> {
    let began = Instant::now();
    make_namespace(site)?;
    [POOL, "own-workers"].iter().try_for_each(|pool| site.add_volume(pool))?;
    site.import(OTHER, &[site.cluster.assets.python()], &format!(r#"{{"Env": ["PATH={STANDARD}"]}}"#))?;
    let workers = json!({
        "image": PYTHON, "allowedImages": ["registry.example.org/jobs/*"], "replicas": 1, "miniClusters": { "max": 3 },
        "resources": { "cpus": 2, "memory": "256Mi", "disk": "1Gi" },
    });
    site.apply(&managed::pool(POOL, &workers))?;
    for condition in ["Ready", "WorkersReady"] {
        site.kubectl(&format!("-n pools wait --for=condition={condition} htcpool/{POOL} --timeout=5m"))?;
    }
    side_by_side(site)?;
    deleted_while_it_runs(site)?;
    site.kubectl(&format!("-n pools delete htcpool {POOL} --timeout=2m"))?;
    example(site)?;
    site.kubectl("delete namespace pools")?;
    say(&format!("HTCJobs with workers of their own: {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

/// The names of the workers that an HTCJob has of its own, and their images.
fn own(site: &Site<'_>, name: &str) -> Result<BTreeMap<String, String>> {
    let uid = site.says(&format!("kubectl -n pools get htcjob {name} -o jsonpath={{.metadata.uid}}"))?;
    let each = r#"{range .items[*]}{.metadata.name} {.spec.containers[0].image}{"\n"}{end}"#;
    let pods =
        site.says(&format!("kubectl -n pools get pods -l htc.cern.ch/mini-cluster={uid} -o 'jsonpath={each}'"))?;
    Ok(pods
        .lines()
        .filter_map(|pod| pod.split_once(' '))
        .map(|(pod, image)| (pod.to_owned(), image.to_owned()))
        .collect())
}

/// What the status of an HTCJob says of its own workers.
fn shows(site: &Site<'_>, name: &str, workers: u32, busy: u32) -> Result<()> {
    let each = "{.status.miniCluster.workers} {.status.miniCluster.ready} {.status.miniCluster.busy}";
    let line = format!("kubectl -n pools get htcjob {name} -o 'jsonpath={each}'");
    site.until(&line, |shown| shown == format!("{workers} {workers} {busy}")).map(drop)
}

fn within(what: &str, begun: &BTreeMap<String, Vec<String>>, own: &BTreeMap<String, String>) -> Result<()> {
    if begun.keys().eq(own.keys()) {
        return Ok(());
    }
    Err(failed(&format!("run {what} on its own workers only"), format!("jobs: {begun:?}; workers: {own:?}")))
}

/// One HTCJob fills one and a half workers of its own, one has more jobs than the pool's own worker takes, and one has another image.
fn side_by_side(site: &Site<'_>) -> Result<()> {
    let applied = Instant::now();
    site.apply(&lasting(POOL, "own", 3, Some(json!({ "size": 1, "maxSize": 2 }))))?;
    let of_own = begun(site, POOL, "own", 3)?;
    say(&format!("all jobs run on workers of their own after {:.1} s", applied.elapsed().as_secs_f64()));
    within("own", &of_own, &own(site, "own")?)?;
    shows(site, "own", 2, 2)?;

    site.apply(&lasting(POOL, "shared", 3, None))?;
    let running = "kubectl -n pools get htcjob shared -o jsonpath={.status.running}";
    site.until(running, |running| running == "2")?;
    site.apply(&lasting(POOL, "image", 1, Some(json!({ "image": OTHER }))))?;
    let of_image = begun(site, POOL, "image", 1)?;
    let workers = own(site, "image")?;
    within("image", &of_image, &workers)?;
    if !workers.values().eq([OTHER]) {
        return Err(failed("make a worker of the image that the HTCJob names", format!("{workers:?}")));
    }
    // HTCondor has looked for places since then, and one of those workers has room.
    let of_shared = begun(site, POOL, "shared", 2)?;
    if !of_shared.keys().eq(["minis-worker-0"]) {
        return Err(failed("run the third job only where it may", format!("{of_shared:?}")));
    }
    let counts = format!(
        "kubectl -n pools get htcpool {POOL} -o 'jsonpath={{.status.workers.replicas}} {{.status.workers.busy}}'"
    );
    site.until(&counts, |counts| counts == "1 1")?;

    for (name, jobs, begun) in [("own", 3, of_own), ("image", 1, of_image)] {
        begun.keys().try_for_each(|worker| finish(site, worker, name))?;
        ran_once(&begun, &wrote(site, name, jobs)?)?;
        shows(site, name, 0, 0)?;
        none_left(site, name)?;
    }
    finish(site, "minis-worker-0", "shared")?;
    let on = |line: &String| line.contains(" began on minis-worker-0 ");
    let lines = wrote(site, "shared", 3)?;
    if !lines.iter().all(on) {
        return Err(failed("run the others on the pool's own worker", lines.join("\n")));
    }
    site.kubectl("-n pools delete htcjobs --all --timeout=2m")
}

/// Those that are drained end first, and then their pods go.
fn none_left(site: &Site<'_>, name: &str) -> Result<()> {
    wait_for("workers to go with their jobs", PATIENCE, || {
        let own = own(site, name).map_err(|error| error.to_string())?;
        if own.is_empty() { Ok(()) } else { Err(format!("{own:?}")) }
    })
}

/// Nobody is told to finish.
fn deleted_while_it_runs(site: &Site<'_>) -> Result<()> {
    site.apply(&lasting(POOL, "gone", 1, Some(json!({}))))?;
    begun(site, POOL, "gone", 1)?;
    site.kubectl("-n pools delete htcjob gone --timeout=3m")?;
    site.until("kubectl -n pools get pods -l htc.cern.ch/mini-cluster -o name", str::is_empty).map(drop)
}

/// The commands of examples/pools/mini-cluster.yaml.
fn example(site: &Site<'_>) -> Result<()> {
    site.kubectl("-n pools apply -f examples/pools/mini-cluster.yaml")?;
    site.kubectl("-n pools wait --for=condition=Ready --timeout=5m htcpool/own-workers")?;
    site.kubectl("-n pools wait --for=condition=Complete --timeout=10m htcjob/with-own-workers")?;
    site.kubectl("-n pools get htcjob with-own-workers -o jsonpath={.status.miniCluster}")?;
    site.kubectl("-n pools delete htcjob with-own-workers --timeout=2m")?;
    site.kubectl("-n pools delete htcpool own-workers --timeout=2m")
}
