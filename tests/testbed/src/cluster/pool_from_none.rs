//! A pool without a worker: workers come for jobs that wait, and go after them; an image that no worker can be made of is named.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::managed::{self, PYTHON};
use super::site::Site;
use crate::demo::{failed, say};
use crate::error::{Doing as _, Result};
use crate::wait::wait_for;

/// How many HTCJobs come at once.
const JOBS: usize = 50;
/// For each step; all of them take less than two minutes on a quiet machine.
const PATIENCE: Duration = Duration::from_mins(10);

/// It has no account 65534.
const WITHOUT_NOBODY: &str = "registry.example.org/jobs/without-nobody:1";
/// It has nothing at all.
const EMPTY: &str = "registry.example.org/jobs/empty:1";
/// It is not there.
const MISSING: &str = "registry.example.org/jobs/missing:1";
/// HTCJobs whose image no worker can be made of, and what is said of it.
const USELESS: [(&str, &str, &str); 3] = [
    ("without-nobody", WITHOUT_NOBODY, "lacks an-account-with-the-number-65534-in-/etc/passwd"),
    ("empty", EMPTY, "/bin/sh"),
    ("missing", MISSING, "it cannot be had ("),
];

/// Makes the pool, uses it, and takes it away.
pub(super) fn run(site: &Site<'_>) -> Result<()> {
    managed::make_namespace(site)?;
    site.add_volume("from-none")?;
    make_images(site)?;
    site.apply(&pool())?;
    site.kubectl("-n pools wait --for=condition=Ready htcpool/from-none --timeout=5m")?;
    measure(site)?;
    name_useless_images(site)?;
    site.kubectl("-n pools delete htcpool from-none --timeout=2m")?;
    site.kubectl("delete namespace pools")
}

/// How long it takes until the first of many HTCJobs runs, until all have ended, and until no worker is left.
fn measure(site: &Site<'_>) -> Result<()> {
    let jobs: Vec<Value> = (0..JOBS).map(|number| htcjob(&format!("short{number}"), PYTHON)).collect();
    let began = Instant::now();
    site.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": jobs }))?;
    let applied = began.elapsed();
    let phases = |wanted: &[&str], least: usize| {
        wait_for(&format!("{least} HTCJobs in {wanted:?}"), PATIENCE, || {
            let phases = "-n pools get htcjobs -o jsonpath={.items[*].status.phase}";
            let phases = site.ask(phases).map_err(|error| error.to_string())?;
            let there = phases.split(' ').filter(|phase| wanted.contains(phase)).count();
            if there >= least { Ok(began.elapsed()) } else { Err(phases) }
        })
    };
    let first = phases(&["Running", "Completed"], 1)?;
    let all = phases(&["Completed"], JOBS)?;
    let none = no_worker(site).map(|()| began.elapsed())?;
    let succeeded = "-n pools get htcjobs -o jsonpath={.items[*].status.succeeded}";
    let succeeded = site.ask(succeeded)?;
    if succeeded.split(' ').filter(|count| *count == "1").count() != JOBS {
        return Err(failed("have all jobs end well", succeeded));
    }
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    say(&format!(
        "{JOBS} HTCJobs in a pool without a worker: applied after {}, the first runs after {}, all have ended after {}, no worker is left after {}",
        seconds(applied),
        seconds(first),
        seconds(all),
        seconds(none)
    ));
    site.ask("-n pools delete htcjobs --all --timeout=50s").map(drop)
}

/// The pool and the HTCJobs say what is wrong, in what the image's own container or the node has said; other HTCJobs run meanwhile.
fn name_useless_images(site: &Site<'_>) -> Result<()> {
    let jobs = USELESS.map(|(name, image, _)| htcjob(name, image));
    site.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": jobs }))?;
    for (name, image, words) in USELESS {
        let events = format!(
            "-n pools get events --field-selector involvedObject.name={name},reason=NoWorkerFits -o jsonpath={{.items[*].message}}"
        );
        let reported = shows(site, &events, |reported| reported.contains(image) && reported.contains(words))?;
        say(&format!("HTCJob {name}: {reported}"));
    }
    let reported =
        shows(site, &condition("message"), |condition| USELESS.iter().all(|(_, image, _)| condition.contains(image)))?;
    say(&format!("HTCPool from-none: {reported}"));
    site.apply(&htcjob("good", PYTHON))?;
    site.kubectl("-n pools wait --for=condition=Complete htcjob/good --timeout=10m")?;
    site.kubectl("-n pools delete htcjobs --all --timeout=2m")?;
    shows(site, &condition("reason"), |reason| reason == "NoneFails")?;
    no_worker(site)
}

fn condition(field: &str) -> String {
    format!("-n pools get htcpool from-none -o jsonpath={{.status.conditions[?(@.type==\"ImagesUsable\")].{field}}}")
}

fn shows(site: &Site<'_>, line: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
    wait_for(&format!("`kubectl {line}` to show what it should"), PATIENCE, || {
        let shown = site.ask(line).map_err(|error| error.to_string())?;
        if wanted(&shown) { Ok(shown) } else { Err(shown) }
    })
}

fn no_worker(site: &Site<'_>) -> Result<()> {
    shows(site, "-n pools get pods -l htc.cern.ch/role=worker -o name", |pods| pods.trim().is_empty()).map(drop)
}

/// Those that the node has; one that is in no registry either is not made.
fn make_images(site: &Site<'_>) -> Result<()> {
    let folder = |name: &str| {
        let path = site.cluster.scratch.path().join(name);
        fs::create_dir_all(path.join("etc")).doing("making the folder", &path)?;
        Ok(path)
    };
    let (root_alone, empty) = (folder("root-alone")?, folder("empty")?);
    let passwd = root_alone.join("etc/passwd");
    fs::write(&passwd, "root:x:0:0:root:/root:/bin/sh\n").doing("writing", &passwd)?;
    site.import(WITHOUT_NOBODY, &[site.cluster.assets.python(), &root_alone], "{}")?;
    site.import(EMPTY, &[&empty], "{}")
}

fn pool() -> Value {
    managed::pool(
        "from-none",
        &json!({
            "image": PYTHON,
            "allowedImages": ["registry.example.org/jobs/*"],
            "resources": { "cpus": 4, "memory": "1Gi", "disk": "1Gi" },
            "autoscaling": { "min": 0, "max": 3, "scaleDownAfterSeconds": 30 },
        }),
    )
}

fn htcjob(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": name, "namespace": "pools" },
        "spec": {
            "pool": "from-none", "resources": { "cpus": 1, "memory": "128Mi" },
            "script": { "image": image, "command": "python3", "source": "print('short')\n" },
        },
    })
}
