//! The operator is killed in its pod at each step of making a managed pool, of taking its workers away and of letting it go.
//!
//! Its image has the fail points. Each time that its container begins it is told the next place at which it is to die (`HTC_KILL_AT`), and dies
//! there of SIGKILL; kubelet begins the container again, in the same pod. So it leads again at once, under its own rights and on its own volumes.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::managed::{self, PYTHON, begun, finish, lasting, make_namespace, ran_once, wrote};
use super::site::Site;
use crate::demo::{failed, say};
use crate::error::{Doing as _, Result};
use crate::tool::tail;
use crate::wait::wait_for;

const POOL: &str = "mortal";
/// For the operator to come to a place; a start takes seconds.
const PATIENCE: Duration = Duration::from_mins(5);

/// What a pool has beside its pods.
const OBJECTS: [&str; 11] = [
    "configmap/mortal-config",
    "deployment.apps/mortal-central-manager",
    "networkpolicy.networking.k8s.io/mortal-pool",
    "networkpolicy.networking.k8s.io/mortal-worker",
    "secret/mortal-central-manager-token",
    "secret/mortal-operator-token",
    "secret/mortal-schedd-token",
    "secret/mortal-signing-key",
    "service/mortal-central-manager",
    "service/mortal-schedd",
    "statefulset.apps/mortal-schedd",
];
const WORKERS: usize = 2;

/// What the container runs. Places that are left are in the file `places`, one a line.
const MORTAL: &str = r#"place=$(head -n 1 /state/places 2>/dev/null || true)
if [ -n "$place" ]; then
    sed 1d /state/places >/state/places.left
    mv /state/places.left /state/places
    export HTC_KILL_AT="$place"
fi
exec htc-operator run >>/state/log 2>&1"#;

/// Installs such an operator, kills it, and installs the usual one again.
pub(super) fn run(site: &Site<'_>) -> Result<()> {
    let began = Instant::now();
    let overlay = site.folder.join("deploy/overlays/mine/kustomization.yaml");
    let usual = fs::read_to_string(&overlay).doing("reading", &overlay)?;
    let patch = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "htc-operator" },
        "spec": { "template": { "spec": { "containers": [
            { "name": "htc-operator", "command": ["tini", "--", "sh", "-c", MORTAL] },
        ] } } },
    });
    let patched = format!("{usual}patches:\n  - patch: |\n      {patch}\n");
    fs::write(&overlay, patched).doing("writing", &overlay)?;
    install(site)?;
    let volume = "kubectl get persistentvolumes -o 'jsonpath={.items[?(@.spec.claimRef.name==\"htc-operator-state\")].spec.local.path}'";
    let mortal = Mortal { site, state: PathBuf::from(site.says(volume)?.trim()) };
    let kills = mortal.story().inspect_err(|_| say(&tail(&mortal.log())))?;
    fs::write(&overlay, usual).doing("writing", &overlay)?;
    install(site)?;
    say(&format!(
        "a pool whose operator is killed {kills} times while it is made, scaled and deleted: {:.0} s",
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn install(site: &Site<'_>) -> Result<()> {
    site.kubectl("apply -k deploy/overlays/mine")?;
    site.kubectl("-n htc-operator rollout status deployment/htc-operator --timeout=180s")
}

/// The places before and after these steps, so many times.
fn around(times: usize, steps: &[&str]) -> Vec<String> {
    let once = || steps.iter().flat_map(|step| ["before", "after"].map(|when| format!("{when}-{step}")));
    (0..times).flat_map(|_| once()).collect()
}

struct Mortal<'a> {
    site: &'a Site<'a>,
    /// The operator's folder.
    state: PathBuf,
}

impl Mortal<'_> {
    /// How often it was killed.
    fn story(&self) -> Result<usize> {
        let site = self.site;
        make_namespace(site)?;
        site.add_volume(POOL)?;
        let workers = json!({
            "image": PYTHON, "replicas": WORKERS, "resources": { "cpus": 1, "memory": "256Mi", "disk": "1Gi" },
        });
        let places = [
            around(1, &["pool-finalizer-attached"]),
            around(OBJECTS.len(), &["pool-object-made"]),
            around(WORKERS, &["worker-made"]),
        ]
        .concat();
        self.dying_at(&places, places.len(), || {
            site.apply(&managed::pool(POOL, &workers))?;
            for condition in ["Ready", "WorkersReady"] {
                site.kubectl(&format!("-n pools wait --for=condition={condition} htcpool/{POOL} --timeout=10m"))?;
            }
            Ok(())
        })?;
        let first = self.made()?;
        if !first.keys().eq(OBJECTS) {
            return Err(failed("make each object once", format!("{:?}", first.keys())));
        }
        self.signed_by_one_key()?;
        self.workers(WORKERS)?;

        site.apply(&lasting(POOL, "runs", 1, None))?;
        let runs = begun(site, POOL, "runs", 1)?;
        let places =
            [around(WORKERS, &["worker-marked", "condor-drain"]), around(WORKERS, &["worker-deleted"])].concat();
        // The one without a job is drained first, and may be gone before the other one is drained.
        let certain = places.len() - 2;
        self.dying_at(&places, certain, || {
            site.kubectl(&format!("-n pools scale htcpool/{POOL} --replicas=0"))?;
            // One that drains is not counted as busy.
            let state = "{.status.workers.replicas} {.status.workers.draining}";
            site.until(&format!("kubectl -n pools get htcpool {POOL} -o 'jsonpath={state}'"), |state| state == "0 1")?;
            self.workers(1)?;
            let worker = runs.keys().next().cloned().unwrap_or_default();
            finish(site, &worker, "runs")?;
            ran_once(&runs, &wrote(site, "runs", 1)?)?;
            self.workers(0)
        })?;
        if self.made()? != first {
            return Err(failed("make nothing anew", format!("before: {first:?}, now: {:?}", self.made()?)));
        }

        site.kubectl("-n pools delete htcjob runs --timeout=3m")?;
        let ends = around(1, &["pool-finalizer-released"]);
        self.dying_at(&ends, ends.len(), || site.kubectl(&format!("-n pools delete htcpool {POOL} --timeout=3m")))?;
        let kinds = "pods,services,deployments,statefulsets,networkpolicies,persistentvolumeclaims,secrets,configmaps";
        let left = format!("kubectl -n pools get {kinds} -o name | grep -v ^configmap/kube-root-ca.crt || true");
        site.until(&left, str::is_empty)?;
        site.kubectl("delete namespace pools")?;
        Ok(self.log().matches(KILLED).count())
    }

    /// Runs a story with an operator that is killed at each of these places in turn; it must come to the first `certain` of them.
    fn dying_at(&self, places: &[String], certain: usize, story: impl FnOnce() -> Result<()>) -> Result<()> {
        let path = self.state.join("places");
        fs::write(&path, places.join("\n") + "\n").doing("writing", &path)?;
        let before = self.log().len();
        // It reads the first place when it begins.
        self.kill()?;
        story()?;
        wait_for("the operator to die at each place", PATIENCE, || {
            let log = self.log();
            let log = log.get(before..).unwrap_or_default();
            let missing = missing(&places[..certain], log);
            if missing.is_empty() { Ok(()) } else { Err(format!("it has not died at {missing:?}")) }
        })?;
        fs::write(&path, "").doing("writing", &path)?;
        self.kill()
    }

    /// Its container begins again.
    fn kill(&self) -> Result<()> {
        let restarts =
            "kubectl -n htc-operator get pods -o 'jsonpath={.items[*].status.containerStatuses[0].restartCount}'";
        let before = self.site.says(restarts)?;
        self.site
            .says("for p in /proc/[0-9]*; do if grep -qsx htc-operator $p/comm; then kill -9 ${p#/proc/}; fi; done")?;
        self.site.until(restarts, |now| now != before)?;
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.state.join("log")).unwrap_or_default()
    }

    /// What the pool has beside its pods and what goes with them: uids by kind and name.
    fn made(&self) -> Result<BTreeMap<String, String>> {
        let kinds = "services,configmaps,secrets,deployments,statefulsets,networkpolicies";
        let label = format!("htc.cern.ch/htcpool={POOL},app.kubernetes.io/managed-by=htc-operator,!htc.cern.ch/role");
        let names = self.site.says(&format!("kubectl -n pools get {kinds} -l '{label}' -o name"))?;
        let uids = format!("kubectl -n pools get {kinds} -l '{label}' -o 'jsonpath={{.items[*].metadata.uid}}'");
        let uids = self.site.says(&uids)?;
        Ok(names.lines().map(str::to_owned).zip(uids.split(' ').map(str::to_owned)).collect())
    }

    /// Waits until there are so many workers.
    fn workers(&self, wanted: usize) -> Result<()> {
        let line = "kubectl -n pools get pods -l htc.cern.ch/role=worker -o name";
        self.site.until(line, |pods| pods.lines().count() == wanted).map(drop)
    }

    /// All tokens are of the key that the pool says it has.
    fn signed_by_one_key(&self) -> Result<()> {
        let key = self.site.says(&format!("kubectl -n pools get htcpool {POOL} -o jsonpath={{.status.signingKey}}"))?;
        let all: Value = serde_json::from_str(&self.site.says("kubectl -n pools get secrets -o json")?)
            .map_err(|error| failed("read the Secrets", error.to_string()))?;
        let secrets = all["items"].as_array().into_iter().flatten();
        let by = secrets.filter_map(|secret| secret["metadata"]["annotations"]["htc.cern.ch/signing-key"].as_str());
        let by: Vec<&str> = by.collect();
        if by.len() == 3 && by.iter().all(|one| *one == key) {
            Ok(())
        } else {
            Err(failed("sign all tokens by one key", format!("{key}: {by:?}")))
        }
    }
}

/// How an operator says that it dies.
const KILLED: &str = "killed at ";

/// Those of these places that it was not killed at, each as often as it stands there.
fn missing<'a>(places: &'a [String], log: &str) -> Vec<&'a String> {
    let mut left: Vec<&str> = log.split(KILLED).skip(1).filter_map(|after| after.split(':').next()).collect();
    let mut was_there = |place: &String| {
        let found = left.iter().position(|died| died == place);
        found.map(|at| left.swap_remove(at)).is_some()
    };
    places.iter().filter(|place| !was_there(place)).collect()
}
