//! A Kubernetes control plane: etcd and kube-apiserver as plain processes on loopback.
//!
//! That is enough for CRDs, CEL, RBAC, Secrets, Leases, Events, finalizers and server-side apply. Without
//! [`Controllers`](crate::Controllers) nothing collects the objects of a deleted owner, and a deleted namespace stays Terminating.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::account::Account;
use crate::assets::Assets;
use crate::certs::{Authority, FRONT_PROXY};
use crate::error::{Error, Result};
use crate::owned::{Owned, Spec};
use crate::ports::Port;
use crate::proxy::Proxy;
use crate::scratch::Scratch;
use crate::storage::{Storage, Stored};
use crate::tool::{Finished, run, run_ok};
use crate::upstream::{Credentials, Upstream};
use crate::wait::wait_for;

/// About 3 s on a quiet machine.
const READY: Duration = Duration::from_mins(2);
/// For one kubectl.
const KUBECTL: Duration = Duration::from_mins(1);
/// For SIGTERM; the API server lingers for open watches.
const STOP: Duration = Duration::from_secs(15);
/// For a copy of etcd's folder: some 100 MB.
const COPY: Duration = Duration::from_mins(1);
/// How the API server answers by itself.
const ANY: (&str, &str) = ("accept", "application/json");
/// What kubectl asks for to learn which kinds there are.
const DISCOVERY: (&str, &str) = ("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
/// Other ports are tried when something else took one in the moment between choice and use.
const ATTEMPTS: u32 = 3;

/// `GOGC`: by how many per cent the servers' memory may grow before garbage is collected. More than the usual 100 saves a fifth of
/// the processor time of servers that live for a minute.
const GARBAGE: &str = "400";

/// In ms. etcd works at each of its heartbeats, and there is no other member to hear them: half as many as usual. It takes one to five of
/// them at its start until it has elected itself, so they are not fewer.
const HEARTBEAT: [&str; 2] = ["--heartbeat-interval=200", "--election-timeout=1000"];

/// Kinds that neither the operator nor a test watches, where there are no nodes. A watch cache for each of them takes half of what an API
/// server takes that nobody asks anything, and a quarter of its start.
const UNCACHED: &str = "endpoints limitranges persistentvolumes podtemplates replicationcontrollers resourcequotas \
    mutatingadmissionpolicies.admissionregistration.k8s.io \
    mutatingadmissionpolicybindings.admissionregistration.k8s.io \
    mutatingwebhookconfigurations.admissionregistration.k8s.io \
    validatingadmissionpolicies.admissionregistration.k8s.io \
    validatingadmissionpolicybindings.admissionregistration.k8s.io \
    validatingwebhookconfigurations.admissionregistration.k8s.io controllerrevisions.apps daemonsets.apps \
    horizontalpodautoscalers.autoscaling cronjobs.batch certificatesigningrequests.certificates.k8s.io \
    flowschemas.flowcontrol.apiserver.k8s.io prioritylevelconfigurations.flowcontrol.apiserver.k8s.io \
    ingressclasses.networking.k8s.io ingresses.networking.k8s.io ipaddresses.networking.k8s.io \
    networkpolicies.networking.k8s.io servicecidrs.networking.k8s.io runtimeclasses.node.k8s.io \
    poddisruptionbudgets.policy clusterrolebindings.rbac.authorization.k8s.io \
    clusterroles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io roles.rbac.authorization.k8s.io \
    deviceclasses.resource.k8s.io resourceclaims.resource.k8s.io resourceclaimtemplates.resource.k8s.io \
    resourceslices.resource.k8s.io priorityclasses.scheduling.k8s.io csidrivers.storage.k8s.io \
    csinodes.storage.k8s.io csistoragecapacities.storage.k8s.io storageclasses.storage.k8s.io \
    volumeattachments.storage.k8s.io volumeattributesclasses.storage.k8s.io";

/// The operator's ServiceAccount in deploy/.
pub const OPERATOR: &str = "system:serviceaccount:htc-operator:htc-operator";
/// A group that all ServiceAccounts are in.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// What is written down of each request of a service account: who asked for what, and what came of it. No bodies.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
"rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}"#;

/// What a test may want different.
#[derive(Debug, Clone)]
pub struct KubeOptions {
    /// Write down what service accounts ask for: [`Kube::audit_log`].
    pub audit: bool,
    /// Listen on all addresses of this network namespace, which must be a private one, and be known to the cluster under
    /// this one.
    pub address: Option<Ipv4Addr>,
    /// Where the addresses of Services come from.
    pub services: String,
    /// After how many seconds it ends an answer (`--request-timeout`), but for watches and logs.
    pub request_timeout: u32,
    /// How many processors the API server and etcd use at a time (`GOMAXPROCS`); all if it is not said. Where many of them run beside each
    /// other, one saves what they take to share their work out.
    pub processors: Option<u32>,
}

impl Default for KubeOptions {
    fn default() -> Self {
        let services = "10.96.0.0/16".to_owned();
        Self { audit: false, address: None, services, request_timeout: 60, processors: None }
    }
}

/// A running control plane; ends with this value. Any number may run side by side.
pub struct Kube {
    // Fields drop in this order: the servers before their folder.
    apiserver: Mutex<Option<Owned>>,
    etcd: Mutex<Owned>,
    etcd_spec: Spec,
    authority: Authority,
    /// Of the API server towards API servers beside it.
    front_proxy: Authority,
    kubeconfig: PathBuf,
    admin: Upstream,
    kubectl: PathBuf,
    server: PathBuf,
    ports: [Port; 3],
    options: KubeOptions,
    /// What was stored when it was [`Kube::remember`]ed.
    remembered: Mutex<Option<Storage>>,
    /// It was stopped, killed or paused.
    harmed: AtomicBool,
    scratch: Scratch,
}

impl fmt::Debug for Kube {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kube({})", self.scratch.path().display())
    }
}

/// etcd's folder as it was: [`Kube::restore_etcd`].
#[derive(Debug)]
pub struct EtcdCopy(PathBuf);

/// `to` becomes what `from` is, with its owner.
fn copy_folder(from: &Path, to: &Path) -> Result<PathBuf> {
    run_ok("removing a folder", Command::new("rm").arg("-rf").arg(to), "", COPY)?;
    run_ok("copying etcd's folder", Command::new("cp").arg("-a").arg(from).arg(to), "", COPY)?;
    Ok(to.to_owned())
}

impl KubeOptions {
    /// In a private network namespace, at this address of it.
    pub(crate) fn at(address: Ipv4Addr) -> Self {
        Self { address: Some(address), ..Self::default() }
    }

    /// How the servers' Go runtime is set.
    fn runtime(&self) -> impl Iterator<Item = (&'static str, String)> {
        let processors = self.processors.map(|processors| ("GOMAXPROCS", processors.to_string()));
        processors.into_iter().chain([("GOGC", GARBAGE.to_owned())])
    }

    /// The API server's arguments about addresses.
    fn arguments(&self) -> Vec<String> {
        match self.address {
            // An address for documentation: without one it asks for a default route, and nothing here uses it.
            None => vec![
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=192.0.2.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
                // The numbers of objects are for its metrics.
                "--etcd-count-metric-poll-period=0".to_owned(),
                format!("--watch-cache-sizes={}", uncached()),
            ],
            Some(address) => vec!["--bind-address=0.0.0.0".to_owned(), format!("--advertise-address={address}")],
        }
    }
}

impl Kube {
    /// Starts a control plane with empty storage; returns when it is ready.
    pub fn start(assets: &Assets) -> Result<Self> {
        Self::start_with(assets, &KubeOptions::default())
    }

    /// Like [`Kube::start`], with something different.
    pub fn start_with(assets: &Assets, options: &KubeOptions) -> Result<Self> {
        let mut attempt = 1;
        loop {
            match Self::try_start(assets, options) {
                Err(Error::Tool { output, .. }) if attempt < ATTEMPTS && output.contains("address already in use") => {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn try_start(assets: &Assets, options: &KubeOptions) -> Result<Self> {
        assets.must_be_reachable()?;
        let scratch = Scratch::new()?;
        let ports = [Port::reserve()?, Port::reserve()?, Port::reserve()?];
        let authority = Authority::new(&scratch.dir("certs")?)?;
        let front_proxy = Authority::of_front_proxy(&scratch.path().join("front-proxy"))?;
        let kubeconfig = scratch.path().join("kubeconfig");
        authority.kubeconfig(&kubeconfig, "testbed-admin", Some("system:masters"), ports[0].number)?;
        scratch.dir("home")?;
        Account::unprivileged().make_dir(&scratch.path().join("etcd"), 0o700)?;
        let (client, peer) = (url(&ports[1]), url(&ports[2]));
        let etcd = Spec::new(assets.etcd(), scratch.path().join("etcd.log"))
            .args(["--name=testbed", "--unsafe-no-fsync", "--log-level=warn"])
            .args(HEARTBEAT)
            .arg(format!("--data-dir={}", scratch.path().join("etcd").display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=testbed={peer}"));
        let etcd = options.runtime().fold(etcd, |etcd, (name, value)| etcd.env(name, value));
        let kube = Self {
            apiserver: Mutex::new(None),
            etcd: Mutex::new(Owned::spawn(&etcd)?),
            etcd_spec: etcd,
            admin: Upstream::new(ports[0].number, &authority.credentials("testbed-admin", Some("system:masters"))?)?,
            authority,
            front_proxy,
            kubeconfig,
            kubectl: assets.kubectl().to_owned(),
            server: assets.kube_apiserver().to_owned(),
            ports,
            options: options.clone(),
            remembered: Mutex::new(None),
            harmed: AtomicBool::new(false),
            scratch,
        };
        if options.audit {
            Account::unprivileged().write(&kube.audit_policy(), AUDIT_POLICY, 0o644)?;
        }
        kube.start_apiserver()?;
        Ok(kube)
    }

    /// Starts the API server, on the same port and storage as before; returns when it is ready.
    pub fn start_apiserver(&self) -> Result<()> {
        let certs = &self.authority;
        let issuer = "https://kubernetes.default.svc.cluster.local";
        let spec = Spec::new(&self.server, self.scratch.path().join("kube-apiserver.log"))
            .current_dir(self.scratch.path().join("home"))
            .env("HOME", self.scratch.path().join("home"))
            .arg(format!("--etcd-servers={}", url(&self.ports[1])))
            .arg(format!("--secure-port={}", self.ports[0].number))
            .args(self.options.arguments())
            .arg(format!("--service-cluster-ip-range={}", self.options.services))
            .arg(format!("--request-timeout={}s", self.options.request_timeout))
            .args(["--authorization-mode=Node,RBAC", "--allow-privileged=true"])
            .arg(format!("--client-ca-file={}", certs.ca().display()))
            .arg(format!("--tls-cert-file={}", certs.server_certificate().display()))
            .arg(format!("--tls-private-key-file={}", certs.server_key().display()))
            .arg(format!("--service-account-issuer={issuer}"))
            .arg(format!("--api-audiences={issuer}"))
            .arg(format!("--service-account-key-file={}", certs.service_account_public_key().display()))
            .arg(format!("--service-account-signing-key-file={}", certs.service_account_key().display()));
        let spec = self.options.runtime().fold(spec, |spec, (name, value)| spec.env(name, value));
        let (certificate, key) = self.front_proxy.client_files(FRONT_PROXY, None)?;
        let spec = spec
            .arg(format!("--requestheader-client-ca-file={}", self.front_proxy.ca().display()))
            .arg(format!("--proxy-client-cert-file={}", certificate.display()))
            .arg(format!("--proxy-client-key-file={}", key.display()))
            .arg(format!("--requestheader-allowed-names={FRONT_PROXY}"))
            .args([
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                "--requestheader-uid-headers=X-Remote-Uid",
            ]);
        let spec = if self.options.audit {
            spec.arg(format!("--audit-policy-file={}", self.audit_policy().display()))
                .arg(format!("--audit-log-path={}", self.audit_log().display()))
        } else {
            spec
        };
        // Where there is an address there are nodes: kubelets are asked for logs, and to run commands.
        let spec = if self.options.address.is_some() {
            let (certificate, key) = certs.client_files("kubelet-client", Some("system:masters"))?;
            spec.arg(format!("--kubelet-client-certificate={}", certificate.display()))
                .arg(format!("--kubelet-client-key={}", key.display()))
                .arg("--kubelet-preferred-address-types=InternalIP")
        } else {
            spec
        };
        *self.apiserver() = Some(Owned::spawn(&spec)?);
        let dead = std::cell::Cell::new(None);
        let ready = wait_for("the API server and the namespace default", READY, || {
            if let Err(error) = self.must_run() {
                dead.set(Some(error));
                return Ok(());
            }
            self.look()
        });
        dead.take().map_or(ready, Err)
    }

    fn must_run(&self) -> Result<()> {
        self.etcd().must_run()?;
        self.apiserver().as_ref().map_or(Ok(()), Owned::must_run)
    }

    /// `Err` says what is missing.
    fn look(&self) -> std::result::Result<(), String> {
        for path in ["/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"] {
            self.admin.ask("GET", path, ANY, "")?;
        }
        Ok(())
    }

    /// True when the API server answers and says that it is ready.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.look().is_ok()
    }

    /// From now on this is what [`Kube::restore`] goes back to.
    pub fn remember(&self) -> Result<()> {
        *self.remembered.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.storage()?);
        Ok(())
    }

    pub(crate) fn storage(&self) -> Result<Storage> {
        Storage::look(&url(&self.ports[1]))
    }

    /// Deletes all objects that were made since [`Kube::remember`], at once and whatever their finalizers say. True if the
    /// servers are as they were then: nothing else has changed, and they have run all the time.
    pub fn restore(&self) -> Result<bool> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(remembered) = &*remembered else { return Ok(false) };
        Ok(!self.harmed.load(Ordering::Relaxed)
            && self.must_run().is_ok()
            && remembered.restore(&url(&self.ports[1]))?)
    }

    /// What is stored of all objects of one kind, such as `htc.cern.ch/htcjobs`, in a namespace.
    pub fn copy_stored(&self, kind: &str, namespace: &str) -> Result<Stored> {
        Stored::copy(&url(&self.ports[1]), &format!("/registry/{kind}/{namespace}/"))
    }

    /// These objects are again what they were, as with a restored etcd; what is gone lives again, with its uid.
    pub fn put_back(&self, stored: &Stored) -> Result<()> {
        stored.put(&url(&self.ports[1]))
    }

    /// Copies etcd's folder as it is at this moment. etcd is stopped with SIGSTOP meanwhile.
    pub fn copy_etcd(&self) -> Result<EtcdCopy> {
        let etcd = self.etcd();
        etcd.pause()?;
        let copied = copy_folder(&self.etcd_folder(), &self.scratch.path().join("etcd-copy"));
        etcd.resume()?;
        copied.map(EtcdCopy)
    }

    /// Puts a copy in the place of etcd's folder, as when a backup is restored: revisions fall. The API server and etcd are stopped for it,
    /// and started again.
    pub fn restore_etcd(&self, copy: &EtcdCopy) -> Result<()> {
        self.stop_apiserver()?;
        let mut etcd = self.etcd();
        etcd.kill9()?;
        copy_folder(&copy.0, &self.etcd_folder())?;
        *etcd = Owned::spawn(&self.etcd_spec)?;
        drop(etcd);
        self.start_apiserver()
    }

    fn etcd_folder(&self) -> PathBuf {
        self.scratch.path().join("etcd")
    }

    fn etcd(&self) -> MutexGuard<'_, Owned> {
        self.etcd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn harm(&self) {
        self.harmed.store(true, Ordering::Relaxed);
    }

    /// Stops the API server with SIGTERM, or after 15 s with SIGKILL; etcd stays.
    pub fn stop_apiserver(&self) -> Result<()> {
        self.harm();
        if let Some(server) = self.apiserver().take() {
            server.terminate()?;
            server.wait_timeout(STOP)?;
        }
        Ok(())
    }

    /// Kills the API server with SIGKILL; etcd stays.
    pub fn kill_apiserver(&self) -> Result<()> {
        self.harm();
        self.apiserver().take().map_or(Ok(()), |server| server.kill9())
    }

    /// SIGSTOP to the API server: connections are accepted and nothing is answered.
    pub fn pause_apiserver(&self) -> Result<()> {
        self.harm();
        self.apiserver().as_ref().map_or(Ok(()), Owned::pause)
    }

    /// SIGCONT to the API server.
    pub fn resume_apiserver(&self) -> Result<()> {
        self.apiserver().as_ref().map_or(Ok(()), Owned::resume)
    }

    /// The kubeconfig of a cluster admin (mode 0600, owned by the unprivileged account).
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Makes a kubeconfig for `user`, a member of `group` besides system:authenticated, with the rights that RBAC gives
    /// them. A service account is called `system:serviceaccount:NAMESPACE:NAME`.
    pub fn kubeconfig_for(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let name: String = user.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = self.scratch.path().join(format!("kubeconfig-{name}"));
        self.authority.kubeconfig(&path, user, group, self.ports[0].number)?;
        Ok(path)
    }

    /// A proxy before the API server, which spoils requests on demand; to the API server it is the operator of deploy/.
    pub fn proxy(&self) -> Result<Proxy> {
        Proxy::start(self.ports[0].number, &self.authority.credentials(OPERATOR, Some(SERVICE_ACCOUNTS))?)
    }

    /// What who is `user` to the API server, a member of `group`, can show to others.
    pub fn credentials(&self, user: &str, group: Option<&str>) -> Result<Credentials> {
        self.authority.credentials(user, group)
    }

    /// A certificate of the authority by which the API server shows itself to API servers beside it. Its own name there is
    /// [`FRONT_PROXY`].
    pub fn front_proxy_credentials(&self, name: &str) -> Result<Credentials> {
        self.front_proxy.credentials(name, None)
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports[0].number
    }

    /// One JSON object (`audit.k8s.io/v1`, Event) a line for each request of a service account, written before the request is
    /// answered; with [`KubeOptions::audit`].
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.scratch.path().join("home/audit.log")
    }

    /// Who signs the certificates.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    fn audit_policy(&self) -> PathBuf {
        self.scratch.path().join("audit-policy.json")
    }

    /// The run folder, for a test's own files.
    #[must_use]
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// `kubectl` as cluster admin, with these arguments.
    #[must_use]
    pub fn kubectl(&self, args: &[&str]) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        kubectl
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.scratch.path().join("home"))
            .env("KUBECONFIG", &self.kubeconfig)
            // A third of what a call costs is the collection of garbage. It lives for a moment.
            .env("GOGC", "off")
            .args(args);
        kubectl
    }

    /// Runs kubectl, which must succeed within a minute; gives its standard output.
    pub fn kubectl_ok(&self, args: &[&str]) -> Result<String> {
        run_ok("asking the test bed's API server", &mut self.kubectl(args), "", KUBECTL)
    }

    /// Runs kubectl to its end, however it ends, within a minute.
    pub fn kubectl_any(&self, args: &[&str]) -> Result<Finished> {
        run("asking the test bed's API server", &mut self.kubectl(args), "", KUBECTL)
    }

    /// `kubectl apply -f -`; gives its standard output.
    pub fn apply_stdin(&self, yaml: &str) -> Result<String> {
        run_ok("applying objects", &mut self.kubectl(&["apply", "-f", "-"]), yaml, KUBECTL)
    }

    /// `kubectl apply -f -` of one object; what this JSONPath shows of it then.
    pub fn apply_and_show(&self, yaml: &str, path: &str) -> Result<String> {
        let output = format!("jsonpath={path}");
        run_ok("applying an object", &mut self.kubectl(&["apply", "-f", "-", "-o", &output]), yaml, KUBECTL)
    }

    /// Applies a CRD, like `kubectl apply --server-side`, and waits until kubectl can ask for its objects, some time after it says
    /// Established. `resource` is its full name, as in `htcjobs.htc.cern.ch`.
    pub fn apply_crd(&self, yaml: &str, resource: &str) -> Result<()> {
        let path = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{resource}?fieldManager=kubectl&force=true&fieldValidation=Strict"
        );
        let applied = self.admin.ask("PATCH", &path, ("content-type", "application/apply-patch+yaml"), yaml);
        let crd = applied.map_err(|outcome| Error::Demo { doing: format!("apply the CRD {resource}"), outcome })?;
        let (plural, group) = resource.split_once('.').unwrap_or_default();
        let version = crd["spec"]["versions"][0]["name"].as_str().unwrap_or_default();
        wait_for(&format!("objects of the new kind {resource}"), KUBECTL, || self.has_kind(group, version, plural))
    }

    /// Whether objects of a kind can be asked for, and kubectl knows the kind; `Err` says why not.
    pub fn has_kind(&self, group: &str, version: &str, plural: &str) -> std::result::Result<(), String> {
        self.admin.ask("GET", &format!("/apis/{group}/{version}/{plural}?limit=1"), ANY, "")?;
        let groups = self.admin.ask("GET", "/apis", DISCOVERY, "")?;
        let of_it = groups["items"].as_array().into_iter().flatten().find(|item| item["metadata"]["name"] == group);
        let shown = of_it.map(Value::to_string).unwrap_or_default();
        let known = shown.contains(&format!(r#""resource":"{plural}""#)) && !shown.contains(r#""freshness":"Stale""#);
        if known { Ok(()) } else { Err(format!("kubectl finds of {group}: {shown}")) }
    }

    fn apiserver(&self) -> MutexGuard<'_, Option<Owned>> {
        self.apiserver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number)
}

/// [`UNCACHED`] as the API server takes it.
fn uncached() -> String {
    let sizes: Vec<String> = UNCACHED.split(' ').map(|kind| format!("{kind}#0")).collect();
    sizes.join(",")
}
