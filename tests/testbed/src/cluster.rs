//! A whole cluster: the control plane with its controllers and its scheduler, and a node that runs pods.
//!
//! It has a network namespace of its own, in which nothing but it and its pool can be reached, and namespaces for mounts,
//! processes, names and messages: whatever a node leaves behind there is gone with it. Only its cgroups are the machine's.
//! It needs root.

mod cgroups;
mod node;
mod proof;

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use crate::assets::{Assets, ClusterAssets};
use crate::controllers;
use crate::error::{Doing as _, Error, Result};
use crate::kube::{Kube, KubeOptions};
use crate::owned::{Owned, Spec};
use crate::scratch::Scratch;
use crate::tool::{run_ok, wait_timeout};
use crate::wait::wait_for;

use cgroups::Cgroups;
use node::Node;

/// The address of everything in the cluster's network namespace that is no pod.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 30, 255, 1);

const LIMIT: Duration = Duration::from_mins(1);
/// From the start of kubelet to a node that is ready: about 5 s on a quiet machine.
const READY: Duration = Duration::from_mins(3);

/// Runs the proof in a cluster of its own: `deploy/`, with the operator at `program`, on a real node. Ends early
/// when `stop` gets a message.
pub fn cluster(program: &Path, checkout: &Path, stop: &Receiver<()>) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Machine {
            problem: "a node needs namespaces, mounts and cgroups of its own".to_owned(),
            remedy: "run it as root".to_owned(),
        });
    }
    Assets::locate()?;
    ClusterAssets::locate()?;
    let cgroups = Cgroups::new()?;
    // Run folders are called by process ids, and those in there begin at 1.
    let scratch = Scratch::new()?;
    let own = std::env::current_exe().doing("finding", Path::new("this program"))?;
    let mut command = Command::new("setpriv");
    // Process 1 is a shell, which takes in the ends of the container runtime's orphans.
    command
        .args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL"])
        .args(["--uts", "--ipc", "--mount-proc", "sh", "-c", "\"$@\"; exit $?", "sh"])
        .arg(own)
        .args(["cluster", "--inside", cgroups.name()])
        .arg(program)
        .current_dir(checkout)
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::null());
    let line = "unshare … testbed cluster";
    let mut child = command.spawn().doing("starting", Path::new(line))?;
    let status = loop {
        let waited = wait_timeout(Duration::from_millis(200), || child.try_wait());
        if let Some(status) = waited.doing("waiting for", Path::new(line))? {
            break Some(status);
        }
        if stop.try_recv() != Err(TryRecvError::Empty) {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
    };
    match status {
        Some(status) if status.success() => Ok(()),
        Some(_) => Err(Error::Demo {
            doing: "prove deploy/ on a real node".to_owned(),
            outcome: "see what is said above".to_owned(),
        }),
        None => Err(Error::Demo { doing: "go on".to_owned(), outcome: "it was stopped".to_owned() }),
    }
}

/// The same, in the namespaces that [`cluster`] has made. `name` is its cgroup's.
pub fn cluster_inside(name: &str, program: &Path) -> Result<()> {
    let cluster = Cluster::start(name)?;
    proof::run_proof(&cluster, program, Path::new(".")).inspect_err(|_| cluster.tell())
}

/// A running cluster; ends with this value.
pub(crate) struct Cluster {
    // Fields drop in this order.
    node: Node,
    controllers: [Owned; 2],
    pub(crate) kube: Kube,
    pub(crate) assets: Assets,
    pub(crate) scratch: Scratch,
}

impl Cluster {
    fn start(name: &str) -> Result<Self> {
        let assets = Assets::locate()?;
        let programs = ClusterAssets::locate()?;
        let scratch = Scratch::new()?;
        let network = format!(
            "mount --make-rshared /\nip link set lo up\nip link add testbed0 type bridge\n\
             ip address add {ADDRESS}/24 dev testbed0\nip link set testbed0 up\nip route add 10.96.0.0/16 dev testbed0\necho 1 >/proc/sys/net/ipv4/ip_forward\n"
        );
        run_ok("making the cluster's network", Command::new("sh").args(["-euc", &network]), "", LIMIT)?;
        let kube = Kube::start_with(&assets, &KubeOptions::at(ADDRESS))?;
        let controllers = [
            Owned::spawn(&controllers::spec(assets.kube_controller_manager(), &kube, &scratch)?)?,
            scheduler(&programs, &kube, &scratch)?,
        ];
        let node = Node::start(name, &programs, &kube, &assets, &scratch)?;
        let cluster = Self { node, controllers, kube, assets, scratch };
        wait_for("the node to be Ready", READY, || {
            cluster.must_run().map_err(|error| error.to_string())?;
            let ready = "-o=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
            let said = cluster.kube.kubectl_ok(&["get", "nodes", ready]).map_err(|error| error.to_string())?;
            if said == "True" { Ok(()) } else { Err(format!("Ready is {said:?}")) }
        })
        .inspect_err(|_| cluster.tell())?;
        Ok(cluster)
    }

    fn must_run(&self) -> Result<()> {
        self.controllers.iter().try_for_each(Owned::must_run)?;
        self.node.must_run()
    }

    /// Takes in an image of the node's architecture from an OCI archive.
    pub(crate) fn import(&self, archive: &Path) -> Result<()> {
        self.node.import(archive)
    }

    /// Shows the ends of the logs.
    fn tell(&self) {
        for server in self.controllers.iter().chain(self.node.servers()) {
            crate::progress::say(&format!("--- {}{}", server.log().display(), crate::tool::tail(&server.log_text())));
        }
    }
}

fn scheduler(programs: &ClusterAssets, kube: &Kube, scratch: &Scratch) -> Result<Owned> {
    let program = "kube-scheduler";
    let kubeconfig = kube.kubeconfig_for(&format!("system:{program}"), None)?;
    let spec = Spec::new(programs.kubernetes.join(program), scratch.path().join(format!("{program}.log")))
        .args(
            ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
                .map(|flag| format!("--{flag}={}", kubeconfig.display())),
        )
        .args(["--leader-elect=false", "--bind-address=127.0.0.1"])
        .arg(format!("--cert-dir={}", scratch.dir(program)?.display()));
    Owned::spawn(&spec)
}
