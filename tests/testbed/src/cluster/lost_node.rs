//! A second node that is lost while jobs run there: kubelet says nothing more, and of the workers one goes on, one hangs, and one is dead.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::managed::{self, PYTHON, begun, finish, lasting, make_namespace, places, ran_once, wrote};
use super::node::Node;
use super::site::{HTCONDOR, PYTHON as PYTHON_OF_NODE, Site};
use crate::demo::{failed, say};
use crate::error::Result;
use crate::tool::run_ok;
use crate::wait::wait_for;

const POOL: &str = "lossy";
/// Instead of 20 minutes, in seconds.
const LEASE: u32 = 60;
/// After how many seconds Kubernetes evicts the workers of `own` from a node that does not answer; others after its usual 300.
const PATIENT: u32 = 20;
/// For HTCondor to notice.
const AGAIN: Duration = Duration::from_mins(25);
/// For one command.
const LIMIT: Duration = Duration::from_mins(1);

/// Loses the node, and gets it back.
pub(super) fn run(site: &Site<'_>) -> Result<()> {
    let began = Instant::now();
    let node = site.cluster.another_node(&[HTCONDOR, PYTHON_OF_NODE])?;
    make_namespace(site)?;
    site.add_volume(POOL)?;
    let workers = json!({
        "image": PYTHON, "replicas": 0, "miniClusters": { "max": 2 },
        "resources": { "cpus": 1, "memory": "256Mi", "disk": "1Gi" },
    });
    site.apply(&managed::pool(POOL, &workers))?;
    site.kubectl(&format!("-n pools wait --for=condition=Ready htcpool/{POOL} --timeout=5m"))?;
    let scene = Scene { site, node: &node };
    let (goes_on, own) = scene.fill()?;
    scene.lose(&goes_on, &own)?;
    site.kubectl("-n pools delete htcjobs --all --timeout=2m")?;
    site.kubectl(&format!("-n pools delete htcpool {POOL} --timeout=2m"))?;
    site.until("kubectl -n pools get pods -o name", str::is_empty)?;
    site.kubectl("delete namespace pools")?;
    drop(node);
    site.kubectl("delete node node-2")?;
    say(&format!("a node that is lost, and comes back: {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

/// What the jobs on each worker have said.
type Begun = BTreeMap<String, Vec<String>>;

struct Scene<'a> {
    site: &'a Site<'a>,
    node: &'a Node,
}

impl Scene<'_> {
    /// Three workers on the second node, each with a job: one of the pool's own, and two of the HTCJob `own`. Others would find room on the first
    /// node from now on.
    fn fill(&self) -> Result<(Begun, Begun)> {
        let site = self.site;
        let unanswered = ["unreachable", "not-ready"].map(|why| {
            json!({
                "key": format!("node.kubernetes.io/{why}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": PATIENT,
            })
        });
        site.kubectl("cordon node node-2")?;
        site.apply(&lasting(POOL, "own", 2, Some(json!({ "size": 2, "template": { "tolerations": unanswered } }))))?;
        site.until("kubectl -n pools get htcjob own -o jsonpath={.status.idle}", |idle| idle == "2")?;
        self.shorten_the_lease()?;
        site.kubectl("uncordon node-2")?;
        let own = begun(site, POOL, "own", 2)?;
        site.apply(&lasting(POOL, "goes-on", 1, None))?;
        site.kubectl(&format!("-n pools scale htcpool/{POOL} --replicas=1"))?;
        let goes_on = begun(site, POOL, "goes-on", 1)?;
        for worker in own.keys().chain(goes_on.keys()) {
            let on = site.says(&format!("kubectl -n pools get pod {worker} -o jsonpath={{.spec.nodeName}}"))?;
            if on != self.node.name() {
                return Err(failed("have the workers on the second node", format!("{worker} is on {on}")));
            }
        }
        site.kubectl("uncordon node")?;
        Ok((goes_on, own))
    }

    /// Whoever has the signing key may say that he is whoever submits.
    fn shorten_the_lease(&self) -> Result<()> {
        let user = format!("ns-pools@{POOL}.pools.htcpool");
        let edit = format!(
            "umask 077; mkdir -p /tmp/tokens; condor_token_create -key htcpool -identity {user} >/tmp/tokens/own; \
             _CONDOR_SEC_TOKEN_DIRECTORY=/tmp/tokens condor_qedit -constraint true JobLeaseDuration {LEASE}"
        );
        self.site.says(&format!("kubectl -n pools exec {POOL}-schedd-0 -- sh -c '{edit}'")).map(drop)
    }

    fn lose(&self, goes_on: &Begun, own: &Begun) -> Result<()> {
        let site = self.site;
        let uid =
            |worker: &String| site.says(&format!("kubectl -n pools get pod {worker} -o jsonpath={{.metadata.uid}}"));
        let [hangs, dead] = own
            .keys()
            .map(uid)
            .collect::<Result<Vec<_>>>()?
            .try_into()
            .map_err(|own| failed("have two workers of its own", format!("{own:?}")))?;
        let lives = goes_on.keys().map(uid).collect::<Result<String>>()?;
        let ids = self.ids()?;
        self.node.pause()?;
        let silent = Instant::now();
        signal(Signal::STOP, &hangs)?;
        // Nobody hears of its end.
        cut_off(&dead)?;
        signal(Signal::KILL, &dead)?;
        let after =
            |what: &str| say(&format!("{:.0} s after the node fell silent: {what}", silent.elapsed().as_secs_f64()));
        site.kubectl("wait --for=condition=Ready=Unknown node/node-2 --timeout=5m")?;
        after("the node is NotReady");
        let output = "kubectl -n pools get htcpool lossy -o 'jsonpath={.status.conditions[?(@.type==\"WorkersReady\")].reason} {.status.workers.ready}'";
        after(&format!("WorkersReady says {}", site.says(output)?));
        let (left, lost) =
            (own.keys().next().cloned().unwrap_or_default(), own.keys().last().cloned().unwrap_or_default());
        let (worker, line) = self.again(&lost)?;
        after(&format!("the job of the dead worker runs again, on {worker}"));
        // HTCondor has not heard that the other one hangs, and runs its job nowhere else.
        let on = places(site, POOL, "own")?;
        if !on.values().any(|place| *place == left) || on.len() != 2 {
            return Err(failed("leave the job of the worker that hangs", format!("{on:?}")));
        }
        finish(site, &worker, "own")?;
        signal(Signal::CONT, &hangs)?;
        touch(&hangs, "finish-own")?;
        let mut ends: Begun =
            own.iter().filter(|(place, _)| **place == left).map(|(at, output)| (at.clone(), output.clone())).collect();
        ends.insert(worker, vec![line]);
        let wrote_again = wrote(site, "own", 2)?;
        ran_once(&ends, &wrote_again)?;
        after("what hung goes on, and its job has ended well; so has the other one");

        // The usual patience of Kubernetes is over, and the job on the worker that lives has noticed nothing.
        let place = site.until(
            "kubectl -n pools get pods -l htc.cern.ch/role=worker,!htc.cern.ch/mini-cluster --field-selector spec.nodeName=node -o 'jsonpath={.items[*].metadata.name} {.items[*].status.phase}'",
            |pods| pods.ends_with(" Running"),
        )?;
        after(&format!("{place} in the place of the pool's own worker"));
        site.until(output, |output| output == "AsWanted 1")?;
        if !places(site, POOL, "goes-on")?.values().eq(goes_on.keys()) || self.ids()? != ids {
            return Err(failed("leave the job where it runs", format!("{goes_on:?}, {ids}, {}", self.ids()?)));
        }
        touch(&lives, "finish-goes-on")?;
        ran_once(goes_on, &wrote(site, "goes-on", 1)?)?;
        after("the job on the worker that lives has ended well");

        // kubelet learns what it is to end.
        self.node.resume()?;
        site.kubectl("wait --for=condition=Ready node/node-2 --timeout=5m")?;
        let left = "kubectl -n pools get pods --field-selector spec.nodeName=node-2 -o name";
        site.until(left, str::is_empty)?;
        after("the node is back, and nothing of the pool is left there");
        for (name, jobs, before) in
            [("own", 2, &wrote_again), ("goes-on", 1, &goes_on.values().flatten().cloned().collect())]
        {
            let now = wrote(site, name, jobs)?;
            if now != *before {
                return Err(failed("let nothing of the lost node count", format!("{before:?}, then {now:?}")));
            }
        }
        site.until(output, |output| output == "AsWanted 1").map(drop)
    }

    /// The ids of all jobs.
    fn ids(&self) -> Result<String> {
        self.site.says("kubectl -n pools get htcjobs -o 'jsonpath={.items[*].status.jobs}'")
    }

    /// The job of a worker that is lost runs again, on another one of the HTCJob's and under its id: on which, and what it has said there.
    fn again(&self, lost: &str) -> Result<(String, String)> {
        let (site, ids) = (self.site, self.ids()?);
        let before: Vec<String> = places(site, POOL, "own")?.into_values().collect();
        let elsewhere = || {
            let places = places(site, POOL, "own").map_err(|error| error.to_string())?;
            let new = places.values().find(|worker| *worker != lost && !before.contains(worker));
            new.cloned().ok_or_else(|| format!("they are on {places:?}"))
        };
        let worker = wait_for("the job to run again", AGAIN, elsewhere)?;
        let line = site.until(&format!("kubectl -n pools exec {worker} -- cat /tmp/began-own"), |message| {
            message.lines().count() == 1
        })?;
        if self.ids()? == ids {
            Ok((worker, line))
        } else {
            Err(failed("run the same job again", format!("{ids}, {}", self.ids()?)))
        }
    }
}

/// Processes of a pod, by the uid of that, which is in the names of their cgroups.
fn processes(pod: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let own = |path: &PathBuf| fs::read_to_string(path.join("cgroup")).is_ok_and(|groups| groups.contains(pod));
    entries.filter(own).collect()
}

/// Sends a signal to all processes of a pod.
fn signal(signal: Signal, pod: &str) -> Result<()> {
    let pids = processes(pod);
    let pids: Vec<Pid> =
        pids.iter().filter_map(|path| Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)).collect();
    if pids.is_empty() {
        return Err(failed("find the processes of a worker", pod.to_owned()));
    }
    for pid in pids {
        // It may have ended with another one.
        let _ = kill_process(pid, signal);
    }
    Ok(())
}

/// Takes a pod off the network.
fn cut_off(pod: &str) -> Result<()> {
    let processes = processes(pod);
    let pid = processes.first().and_then(|path| path.file_name()).unwrap_or_default();
    let mut nsenter = Command::new("nsenter");
    nsenter.args(["--net", "--target"]).arg(pid).args(["ip", "link", "set", "eth0", "down"]);
    run_ok("taking a worker off the network", &mut nsenter, "", LIMIT).map(drop)
}

/// Makes a file in the folder for temporary files of a pod whose node does not answer.
fn touch(pod: &str, file: &str) -> Result<()> {
    let made = processes(pod).iter().any(|process| fs::write(process.join("root/tmp").join(file), "").is_ok());
    if made { Ok(()) } else { Err(failed("tell a job to finish", format!("{pod} has no process"))) }
}
