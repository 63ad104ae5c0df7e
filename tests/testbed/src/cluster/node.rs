//! A node: containerd, kubelet and kube-proxy.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::dns::DOMAIN;
use super::private_registry::{HOST, LOGIN};
use super::{ADDRESS, cgroups};
use crate::assets::{Assets, ClusterAssets};
use crate::error::{Doing, Result};
use crate::kube::Kube;
use crate::node_recipe::ContainerRuntime;
use crate::oci;
use crate::owned::{Owned, Spec};
use crate::scratch::Scratch;
use crate::tool::run_ok;
use crate::wait::wait_for;

/// The addresses of pods.
const PODS: &str = "10.244.0.0/16";
const PAUSE: &str = "registry.k8s.io/pause:3.10";

const LIMIT: Duration = Duration::from_mins(3);

/// What nodes write outside their own folders goes to the first one's, and the machine's settings stay as they are.
const MOUNTS: &str = r#"
cd "$1"
mkdir -p settings var-lib var-lib-work
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/log
mkdir -p /run/netns
mount -t overlay -o "lowerdir=/var/lib,upperdir=$1/var-lib,workdir=$1/var-lib-work" overlay /var/lib
# What kubelet insists on: vm.overcommit_memory 1, vm.panic_on_oom 0, kernel.panic 10, kernel.panic_on_oops 1.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1; do
    file=settings/$(basename "${setting%=*}")
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done
printf '127.0.0.1 localhost\n%s %s\n' "$2" "$3" >hosts
mount --bind hosts /etc/hosts
hostname node
"#;

/// What tells nodes from one another. They share a network namespace, and with it the bridge of their pods.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    /// Its name, and that of its folder.
    pub(super) name: &'static str,
    /// Where kubelet listens.
    pub(super) address: Ipv4Addr,
    /// Below the cluster's, if it has one of its own.
    pub(super) cgroup: Option<&'static str>,
}

/// The one that is always there.
pub(super) const FIRST: Identity = Identity { name: "node", address: ADDRESS, cgroup: None };
/// One that can be lost.
pub(super) const SECOND: Identity =
    Identity { name: "node-2", address: Ipv4Addr::new(172, 30, 255, 2), cgroup: Some(cgroups::BESIDE) };

/// What all nodes are made of.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    /// The cluster's cgroup.
    pub(super) cgroup: &'a str,
    pub(super) programs: &'a ClusterAssets,
    pub(super) kube: &'a Kube,
    pub(super) assets: &'a Assets,
    pub(super) scratch: &'a Scratch,
}

impl Parts<'_> {
    fn folder(&self, identity: Identity) -> Result<PathBuf> {
        let folder = self.scratch.path().join(identity.name);
        fs::create_dir(&folder).doing("making the folder", &folder)?;
        Ok(folder)
    }
}

/// A running node; ends with this value.
pub(super) struct Node {
    name: &'static str,
    servers: Vec<Owned>,
    runtime: PathBuf,
    folder: PathBuf,
}

impl Node {
    /// The first one, with what the cluster has once: mounts, and kube-proxy.
    pub(super) fn first(parts: Parts<'_>) -> Result<Self> {
        let folder = parts.folder(FIRST)?;
        run_ok(
            "mounting the node's folders",
            Command::new("sh").args(["-euc", MOUNTS, "sh"]).arg(&folder).args([&ADDRESS.to_string(), HOST]),
            "",
            LIMIT,
        )?;
        let mut node = Self::start(parts, FIRST, folder)?;
        let kubeconfig = parts.kube.kubeconfig_for("system:kube-proxy", None)?;
        let proxy = node
            .server(&parts.programs.kubernetes.join("kube-proxy"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args([format!("--hostname-override={}", FIRST.name), format!("--cluster-cidr={PODS}")])
            .args(["--proxy-mode=nftables", "--conntrack-max-per-core=0", "--oom-score-adj=0"])
            .arg(format!("--bind-address={ADDRESS}"));
        node.servers.push(Owned::spawn(&proxy)?);
        Ok(node)
    }

    /// Another one, with a container runtime of its own, and without images.
    pub(super) fn beside(parts: Parts<'_>, identity: Identity) -> Result<Self> {
        let address = format!("ip address add {}/24 dev testbed0", identity.address);
        run_ok("giving a node its address", Command::new("sh").args(["-euc", &address]), "", LIMIT)?;
        Self::start(parts, identity, parts.folder(identity)?)
    }

    fn start(parts: Parts<'_>, identity: Identity, folder: PathBuf) -> Result<Self> {
        let name = identity.name;
        let runtime = parts.programs.runtime.clone();
        let mut node = Self { name, servers: Vec::new(), runtime, folder };
        let folder = node.folder.clone();
        for own in ["containerd", "kubelet", "pki", "cni", &format!("registries/{HOST}"), "plugins", "logs"] {
            let path = folder.join(own);
            fs::create_dir_all(&path).doing("making the folder", &path)?;
        }
        let mut cgroup = Path::new("/").join(parts.cgroup);
        cgroup.extend(identity.cgroup);
        // Both hand out addresses from one list.
        let addresses = parts.scratch.path().join("addresses");
        let files = [
            ("containerd.toml", node.containerd()),
            ("kubelet.yaml", node.kubelet_config(identity.address, &cgroup, &parts.kube.authority().ca())),
            ("resolv.conf", "nameserver 127.0.0.1\n".to_owned()),
            ("cni/10-pods.conflist", network(&addresses)),
            (&*format!("registries/{HOST}/hosts.toml"), format!("server = 'http://{HOST}'\n")),
        ];
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text).doing("writing", &path)?;
        }
        let containerd = ContainerRuntime::bin(&node.runtime).join("containerd");
        let containerd = node.server(&containerd).arg("--config").arg(folder.join("containerd.toml"));
        node.servers.push(Owned::spawn(&containerd)?);
        wait_for("containerd", LIMIT, || {
            node.must_run().map_err(|error| error.to_string())?;
            node.ctr(&["version"]).map_err(|error| error.to_string())
        })?;
        let pause = folder.join("pause.tar");
        let command = r#"{"Entrypoint": ["/bin/sleep", "1000000"]}"#;
        oci::archive(PAUSE, &[parts.assets.image()], command, &folder.join("pause"), &pause)?;
        node.import(&pause)?;
        let kubeconfig = parts.kube.kubeconfig_for(&format!("system:node:{name}"), Some("system:nodes"))?;
        let kubelet = node
            .server(&parts.programs.kubernetes.join("kubelet"))
            .arg(format!("--config={}", folder.join("kubelet.yaml").display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--cert-dir={}", folder.join("pki").display()))
            .arg(format!("--root-dir={}", folder.join("kubelet").display()))
            .args([format!("--hostname-override={name}"), format!("--node-ip={}", identity.address)]);
        node.servers.push(Owned::spawn(&kubelet)?);
        Ok(node)
    }

    fn server(&self, program: &Path) -> Spec {
        let log = self.folder.join(program.file_name().unwrap_or_default()).with_extension("log");
        let path = format!(
            "{}:{}:/usr/sbin:/usr/bin:/sbin:/bin",
            ContainerRuntime::bin(&self.runtime).display(),
            ContainerRuntime::sbin(&self.runtime).display()
        );
        Spec::new(program, log).privileged().env("PATH", path)
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn must_run(&self) -> Result<()> {
        self.servers.iter().try_for_each(Owned::must_run)
    }

    pub(super) fn servers(&self) -> &[Owned] {
        &self.servers
    }

    pub(super) fn import(&self, archive: &Path) -> Result<()> {
        self.ctr(&["--namespace", "k8s.io", "image", "import", &archive.display().to_string()])
    }

    /// kubelet neither does nor says anything until it is resumed; what runs goes on.
    pub(super) fn pause(&self) -> Result<()> {
        self.kubelet().try_for_each(Owned::pause)
    }

    pub(super) fn resume(&self) -> Result<()> {
        self.kubelet().try_for_each(Owned::resume)
    }

    fn kubelet(&self) -> impl Iterator<Item = &Owned> {
        self.servers.iter().filter(|server| server.log().ends_with("kubelet.log"))
    }

    /// Puts an image from an OCI archive into the registry that wants a login; the node itself does not have it then.
    pub(super) fn publish(&self, archive: &Path, image: &str) -> Result<()> {
        let elsewhere = |command: &[&str]| self.ctr(&[&["--namespace", "publisher", "image"], command].concat());
        elsewhere(&["import", &archive.display().to_string()])?;
        elsewhere(&["push", "--plain-http", "--user", LOGIN, image])?;
        elsewhere(&["rm", "--sync", image])
    }

    /// Takes over an image that another node has.
    pub(super) fn import_from(&self, other: &Self, image: &str) -> Result<()> {
        let archive = self.folder.join("image.tar");
        let path = archive.display().to_string();
        other.ctr(&["--namespace", "k8s.io", "image", "export", &path, image])?;
        self.import(&archive)?;
        fs::remove_file(&archive).doing("removing", &archive)
    }

    fn socket(&self) -> PathBuf {
        self.state().join("containerd.sock")
    }

    /// What containerd forgets when the machine is started again.
    fn state(&self) -> PathBuf {
        Path::new("/run/containerd").join(self.name)
    }

    fn ctr(&self, arguments: &[&str]) -> Result<()> {
        let mut ctr = Command::new(ContainerRuntime::bin(&self.runtime).join("ctr"));
        run_ok("asking containerd", ctr.arg("--address").arg(self.socket()).args(arguments), "", LIMIT).map(drop)
    }

    fn containerd(&self) -> String {
        format!(
            r"version = 3
root = '{0}/containerd'
state = '{3}'
disabled_plugins = ['io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.erofs', 'io.containerd.tracing.processor.v1.otlp', 'io.containerd.internal.v1.tracing']
[grpc]
  address = '{3}/containerd.sock'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{PAUSE}'
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '{0}/registries'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{1}/runc'
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{2}']
    conf_dir = '{0}/cni'
",
            self.folder.display(),
            ContainerRuntime::sbin(&self.runtime).display(),
            ContainerRuntime::plugins(&self.runtime).display(),
            self.state().display(),
        )
    }

    fn kubelet_config(&self, address: Ipv4Addr, cgroup: &Path, authority: &Path) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://{3}
address: {address}
healthzPort: 0
podLogsDir: {0}/logs
cgroupDriver: cgroupfs
cgroupRoot: {2}
failCgroupV1: false
failSwapOn: false
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {1}}}}}
authorization: {{mode: Webhook}}
clusterDomain: {DOMAIN}
clusterDNS: [{ADDRESS}]
resolvConf: {0}/resolv.conf
volumePluginDir: {0}/plugins
enforceNodeAllocatable: [pods]
evictionHard: {{memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}}
imageGCHighThresholdPercent: 100
oomScoreAdj: 0
rotateCertificates: false
# Containers that end begin again at once: tests end many.
crashLoopBackOff: {{maxContainerRestartPeriod: 1s}}
",
            self.folder.display(),
            authority.display(),
            cgroup.display(),
            self.socket().display()
        )
    }
}

impl Drop for Node {
    /// Lets go of what is mounted in the node's folder, so that it can be removed.
    fn drop(&mut self) {
        self.servers.clear();
        let unmount = "if [ $2 = node ]; then umount --lazy /var/lib; fi
            cut -d' ' -f2 /proc/self/mounts | grep \"^$1/\" | sort --reverse | xargs --no-run-if-empty umount --lazy";
        let mut sh = Command::new("sh");
        sh.args(["-c", unmount, "sh"]).arg(&self.folder).arg(self.name);
        if let Err(error) = run_ok("unmounting the node's folders", &mut sh, "", LIMIT) {
            crate::progress::say(&error.to_string());
        }
    }
}

fn network(addresses: &Path) -> String {
    format!(
        r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{"type": "bridge", "bridge": "cni0", "isGateway": true,
"ipMasq": false, "hairpinMode": true, "ipam": {{"type": "host-local", "dataDir": "{}",
"ranges": [[{{"subnet": "10.244.1.0/24"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}}]}}
"#,
        addresses.display()
    )
}
