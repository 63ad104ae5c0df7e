//! A node: containerd, kubelet and kube-proxy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::ADDRESS;
use super::dns::DOMAIN;
use super::private_registry::{HOST, LOGIN};
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
/// The node's name.
const NAME: &str = "node";
const PAUSE: &str = "registry.k8s.io/pause:3.10";
const SOCKET: &str = "/run/containerd/containerd.sock";

/// Folders for the volumes of pools.
pub(super) const POOL_VOLUMES: [&str; 3] = ["volume-pool-1", "volume-pool-2", "volume-pool-3"];

const LIMIT: Duration = Duration::from_mins(3);

/// What a node writes outside its own folders goes to FOLDER, and the machine's settings stay as they are.
const MOUNTS: &str = r#"
cd "$1"
mkdir -p containerd kubelet pki cni "registries/$3" plugins settings var-lib var-lib-work volume volume-state volume-pool-1 volume-pool-2 volume-pool-3
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/log
mkdir -p /run/containerd /run/netns
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

/// A running node; ends with this value.
pub(super) struct Node {
    servers: Vec<Owned>,
    runtime: PathBuf,
    folder: PathBuf,
}

impl Node {
    pub(super) fn start(
        cgroup: &str,
        programs: &ClusterAssets,
        kube: &Kube,
        assets: &Assets,
        scratch: &Scratch,
    ) -> Result<Self> {
        let folder = scratch.path().join("node");
        fs::create_dir(&folder).doing("making the folder", &folder)?;
        run_ok(
            "mounting the node's folders",
            Command::new("sh").args(["-euc", MOUNTS, "sh"]).arg(&folder).args([&ADDRESS.to_string(), HOST]),
            "",
            LIMIT,
        )?;
        let runtime = programs.runtime.clone();
        let files = [
            ("containerd.toml", containerd(&folder, &runtime)),
            ("kubelet.yaml", kubelet(&folder, cgroup, &kube.authority().ca())),
            ("resolv.conf", "nameserver 127.0.0.1\n".to_owned()),
            ("cni/10-pods.conflist", network(&folder)),
            (&*format!("registries/{HOST}/hosts.toml"), format!("server = 'http://{HOST}'\n")),
        ];
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text).doing("writing", &path)?;
        }
        let path = format!(
            "{}:{}:/usr/sbin:/usr/bin:/sbin:/bin",
            ContainerRuntime::bin(&runtime).display(),
            ContainerRuntime::sbin(&runtime).display()
        );
        let server = |program: PathBuf| {
            let log = folder.join(program.file_name().unwrap_or_default()).with_extension("log");
            Spec::new(program, log).privileged().env("PATH", &path)
        };
        let containerd = ContainerRuntime::bin(&runtime).join("containerd");
        let containerd = Owned::spawn(&server(containerd).arg("--config").arg(folder.join("containerd.toml")))?;
        let mut node = Self { servers: vec![containerd], runtime, folder: folder.clone() };
        wait_for("containerd", LIMIT, || {
            node.must_run().map_err(|error| error.to_string())?;
            node.ctr(&["version"]).map_err(|error| error.to_string())
        })?;
        let pause = folder.join("pause.tar");
        let command = r#"{"Entrypoint": ["/bin/sleep", "1000000"]}"#;
        oci::archive(PAUSE, &[assets.image()], command, &folder.join("pause"), &pause)?;
        node.import(&pause)?;
        let kubeconfig = kube.kubeconfig_for(&format!("system:node:{NAME}"), Some("system:nodes"))?;
        let kubelet = server(programs.kubernetes.join("kubelet"))
            .arg(format!("--config={}", folder.join("kubelet.yaml").display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--cert-dir={}", folder.join("pki").display()))
            .arg(format!("--root-dir={}", folder.join("kubelet").display()))
            .args([format!("--hostname-override={NAME}"), format!("--node-ip={ADDRESS}")]);
        node.servers.push(Owned::spawn(&kubelet)?);
        let kubeconfig = kube.kubeconfig_for("system:kube-proxy", None)?;
        let proxy = server(programs.kubernetes.join("kube-proxy"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args([format!("--hostname-override={NAME}"), format!("--cluster-cidr={PODS}")])
            .args(["--proxy-mode=nftables", "--conntrack-max-per-core=0", "--oom-score-adj=0"])
            .arg(format!("--bind-address={ADDRESS}"));
        node.servers.push(Owned::spawn(&proxy)?);
        Ok(node)
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

    fn ctr(&self, arguments: &[&str]) -> Result<()> {
        let mut ctr = Command::new(ContainerRuntime::bin(&self.runtime).join("ctr"));
        run_ok("asking containerd", ctr.args(["--address", SOCKET]).args(arguments), "", LIMIT).map(drop)
    }
}

impl Drop for Node {
    /// Lets go of what is mounted in the node's folder, so that it can be removed.
    fn drop(&mut self) {
        self.servers.clear();
        let unmount = "umount --lazy /var/lib; \
            cut -d' ' -f2 /proc/self/mounts | grep \"^$1/\" | sort --reverse | xargs --no-run-if-empty umount --lazy";
        let mut sh = Command::new("sh");
        if let Err(error) =
            run_ok("unmounting the node's folders", sh.args(["-c", unmount, "sh"]).arg(&self.folder), "", LIMIT)
        {
            crate::progress::say(&error.to_string());
        }
    }
}

fn containerd(folder: &Path, runtime: &Path) -> String {
    format!(
        r"version = 3
root = '{0}/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.erofs', 'io.containerd.tracing.processor.v1.otlp', 'io.containerd.internal.v1.tracing']
[grpc]
  address = '{SOCKET}'
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
        folder.display(),
        ContainerRuntime::sbin(runtime).display(),
        ContainerRuntime::plugins(runtime).display(),
    )
}

fn kubelet(folder: &Path, cgroup: &str, authority: &Path) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://{SOCKET}
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
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
",
        folder.display(),
        authority.display()
    )
}

fn network(folder: &Path) -> String {
    format!(
        r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{"type": "bridge", "bridge": "cni0", "isGateway": true,
"ipMasq": false, "hairpinMode": true, "ipam": {{"type": "host-local", "dataDir": "{}/ipam",
"ranges": [[{{"subnet": "10.244.1.0/24"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}}]}}
"#,
        folder.display()
    )
}
