//! A whole cluster: the control plane with its controllers and its scheduler, and a node that runs pods.
//!
//! It has a network namespace of its own, in which nothing but it and its pool can be reached, and namespaces for mounts,
//! processes, names and messages: whatever a node leaves behind there is gone with it. Only its cgroups are the machine's.
//! It needs root.

mod accounts;
mod cgroups;
mod dns;
mod idle;
mod kills;
mod lost_node;
mod managed;
mod mini_cluster;
mod node;
mod page;
mod pods_page;
mod pool_demo;
mod pool_from_none;
mod pool_page;
mod private_registry;
mod proof;
mod site;

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use clap::ValueEnum;

use crate::assets::{Assets, ClusterAssets};
use crate::controllers;
use crate::error::{Doing as _, Error, Result};
use crate::kube::{Kube, KubeOptions};
use crate::owned::{Owned, Spec};
use crate::scratch::Scratch;
use crate::tool::{run_ok, wait_timeout};
use crate::wait::wait_for;

use cgroups::Cgroups;
use dns::Dns;
use node::{Node, Parts};

/// The address of everything in the cluster's network namespace that is no pod.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 30, 255, 1);

const LIMIT: Duration = Duration::from_mins(1);
/// From the start of kubelet to a node that is ready: about 5 s on a quiet machine.
const READY: Duration = Duration::from_mins(3);

/// File in the folder for temporary files of who is in there: the process by which others get in.
const OUTSIDE: &str = "outside";

/// What is run on the node once the operator is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// `HTCJob`s in a pool outside the cluster, and the operator's pod killed.
    Operator,
    /// Pools whose daemons are root, with accounts of their users.
    Accounts,
    /// docs/pools.md, step by step.
    Pool,
    /// A pool without workers: some come for jobs and go after them, and images that cannot be workers are named.
    Autoscaling,
    /// `HTCJob`s with workers of their own.
    MiniCluster,
    /// The operator is killed at each step of making a pool, of taking its workers away and of letting it go.
    Kills,
    /// A second node is lost while jobs run there.
    LostNode,
    /// What ten pools cost that nobody uses. It is measured only if this part is asked for.
    Idle,
    /// The submission helper's commands of docs/kubernetes-backend.md.
    Pods,
}

/// What a cluster is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// `deploy/` and the pages of the documentation are run on a real node.
    Proof {
        /// Not all of them.
        only: Option<Part>,
    },
    /// A pool and an `HTCJob` in it, to watch.
    Demo {
        /// It stays up afterwards, until it is stopped.
        stay: bool,
    },
}

/// Runs the proof, or the demo, in a cluster of its own, with the operator at `program`. Ends early when `stop` gets a message.
pub fn cluster(program: &Path, checkout: &Path, purpose: Purpose, stop: &Receiver<()>) -> Result<()> {
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
        .args(match purpose {
            Purpose::Proof { .. } => &[][..],
            Purpose::Demo { stay: false } => &["--demo"],
            Purpose::Demo { stay: true } => &["--demo", "--stay"],
        })
        .args(only(purpose).iter().flat_map(|name| ["--only", name.get_name()]))
        .arg(program)
        .current_dir(checkout)
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::null());
    let line = "unshare … testbed cluster";
    let mut child = command.spawn().doing("starting", Path::new(line))?;
    let outside = scratch.path().join(OUTSIDE);
    fs::write(&outside, child.id().to_string()).doing("writing", &outside)?;
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
            doing: "run deploy/ on a real node".to_owned(),
            outcome: "see what is said above".to_owned(),
        }),
        None if purpose == (Purpose::Demo { stay: true }) => Ok(()),
        None => Err(Error::Demo { doing: "go on".to_owned(), outcome: "it was stopped".to_owned() }),
    }
}

/// As the command line has it.
fn only(purpose: Purpose) -> Option<clap::builder::PossibleValue> {
    let Purpose::Proof { only } = purpose else { return None };
    only?.to_possible_value()
}

/// The same, in the namespaces that [`cluster`] has made. `name` is its cgroup's.
pub fn cluster_inside(name: &str, program: &Path, purpose: Purpose) -> Result<()> {
    let cluster = Cluster::start(name)?;
    let checkout = Path::new(".");
    let done = match purpose {
        Purpose::Proof { only } => proof::run_proof(&cluster, program, checkout, only),
        Purpose::Demo { stay } => pool_demo::show(&cluster, program, checkout, stay),
    };
    done.inspect_err(|_| cluster.tell())
}

/// A running cluster; ends with this value.
pub(crate) struct Cluster {
    // Fields drop in this order.
    node: Node,
    dns: Dns,
    controllers: [Owned; 2],
    pub(crate) kube: Kube,
    pub(crate) assets: Assets,
    programs: ClusterAssets,
    /// The name of its cgroup.
    cgroup: String,
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
        let dns = Dns::start(&kube, &assets, &scratch)?;
        let parts = Parts { cgroup: name, programs: &programs, kube: &kube, assets: &assets, scratch: &scratch };
        let node = Node::first(parts)?;
        let cgroup = name.to_owned();
        let cluster = Self { node, dns, controllers, kube, assets, programs, cgroup, scratch };
        cluster.wait_ready(&cluster.node).inspect_err(|_| cluster.tell())?;
        Ok(cluster)
    }

    /// A node beside the first one, which has these images. It ends with the value.
    fn another_node(&self, images: &[&str]) -> Result<Node> {
        let Self { programs, kube, assets, scratch, .. } = self;
        let node = Node::beside(Parts { cgroup: &self.cgroup, programs, kube, assets, scratch }, node::SECOND)?;
        images.iter().try_for_each(|image| node.import_from(&self.node, image))?;
        self.wait_ready(&node)?;
        Ok(node)
    }

    fn wait_ready(&self, node: &Node) -> Result<()> {
        wait_for(&format!("{} to be Ready", node.name()), READY, || {
            self.must_run().and_then(|()| node.must_run()).map_err(|error| error.to_string())?;
            let ready = "-o=jsonpath={.status.conditions[?(@.type=='Ready')].status}";
            let output =
                self.kube.kubectl_ok(&["get", "node", node.name(), ready]).map_err(|error| error.to_string())?;
            if output == "True" { Ok(()) } else { Err(format!("Ready is {output:?}")) }
        })
    }

    /// The root folder of the image `htcondor`.
    pub(crate) fn htcondor_image(&self) -> &Path {
        &self.programs.htcondor_image
    }

    fn must_run(&self) -> Result<()> {
        self.controllers.iter().chain([self.dns.server()]).try_for_each(Owned::must_run)?;
        self.node.must_run()
    }

    /// Takes in an image of the node's architecture from an OCI archive.
    pub(crate) fn import(&self, archive: &Path) -> Result<()> {
        self.node.import(archive)
    }

    /// Runs this while the node does not answer.
    pub(crate) fn with_silent_node<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.node.pause()?;
        let ran = run();
        self.node.resume()?;
        ran
    }

    /// Puts an image into the registry that wants a login.
    pub(crate) fn publish(&self, archive: &Path, image: &str) -> Result<()> {
        self.node.publish(archive, image)
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
