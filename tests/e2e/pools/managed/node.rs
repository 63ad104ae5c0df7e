//! A node without a kernel of its own: runs the containers of pods with bubblewrap, as the account and with the files, the environment
//! and the addresses that their specs say. It plays kubelet, the scheduler and kube-proxy; the controllers are real.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use bed::{Bed, Namespace, PATIENCE};
use serde_json::{Value, json};
use testbed::{Account, Assets, Owned, Port, Scratch, Spec, Version, processes, wait_for};

/// Labels of the objects.
const ROLE: &str = "htc.cern.ch/role";
/// `nobody`
const ACCOUNT: &str = "65534";

pub struct Node<'a> {
    bed: &'a Bed,
    namespace: String,
    scratch: Scratch,
    /// HTCondor as its image has it.
    tree: PathBuf,
    /// Bound into each worker as `/runs`, beside what its pod says.
    pub runs: PathBuf,
    running: Mutex<HashMap<String, Running>>,
    /// Tells the addresses of this node's pods from those of others.
    net: Port,
    pods: AtomicU32,
    stop: AtomicBool,
    /// Takes the place of what confines jobs.
    no_wrapper: Option<PathBuf>,
    /// How many of the next workers do not find the collector.
    deaf: AtomicU32,
}

struct Running {
    name: String,
    daemons: Owned,
    told_to_end: Option<Instant>,
}

/// Where an API server may take addresses of Services from that are on loopback and nobody else's.
pub fn services(net: &Port) -> String {
    format!("127.{}.{}.0/24", net.number >> 8, net.number & 255)
}

/// Where it is in its folder.
const TREE: &str = "htcondor";
/// What confines jobs.
const WRAPPER: &str = "htc-job-wrapper";
/// The same on a node whose kernel has no Landlock; it ends nothing that jobs leave behind.
const NO_WRAPPER: &str = "#!/bin/sh\nif [ \"$1\" = --landlock ]; then echo NoLandlock; exit; fi\nexec \"$@\"\n";

/// As the image of an earlier version: without the program that confines shadows.
pub const OLD_IMAGE: &str = "htcondor:old";
/// That program.
const CONFINE: &str = "htc-confine";

/// HTCondor as its image has it, made once for all tests of this program: nothing of it is changed.
fn tree(assets: &Assets, version: Version) -> PathBuf {
    static TRIXIE: OnceLock<Scratch> = OnceLock::new();
    static SID: OnceLock<Scratch> = OnceLock::new();
    let make = || {
        let scratch = Scratch::new().unwrap();
        let done = Command::new("cp").arg("-a").arg(assets.condor(version)).arg(scratch.path().join(TREE)).status();
        assert!(done.unwrap().success());
        let programs = scratch.path().join(TREE).join("usr/libexec/condor");
        // As in the Dockerfile.
        for (program, name) in [(bed::built("htc-confine"), CONFINE), (bed::built("htc-job-wrapper"), WRAPPER)] {
            fs::copy(program, programs.join(name)).unwrap();
            // Each worker gets a copy.
            assert!(Command::new("strip").arg(programs.join(name)).status().unwrap().success());
        }
        let script = bed::checkout().join("deploy/image/relocate.sh");
        let relocated =
            Command::new("sh").arg(script).arg(scratch.path().join(TREE)).arg("/htcondor").output().unwrap();
        assert!(relocated.status.success(), "{relocated:?}");
        scratch
    };
    let scratch = match version {
        Version::Trixie => TRIXIE.get_or_init(make),
        Version::Sid => SID.get_or_init(make),
    };
    scratch.path().join(TREE)
}

impl<'a> Node<'a> {
    /// Runs the pods of a namespace for as long as `test` runs.
    pub fn run(bed: &'a Bed, namespace: &str, version: Version, test: impl FnOnce(&Self)) {
        Self::run_as(bed, namespace, version, true, test);
    }

    /// The same on a node that confines no jobs.
    pub fn run_unconfined(bed: &'a Bed, namespace: &str, version: Version, test: impl FnOnce(&Self)) {
        Self::run_as(bed, namespace, version, false, test);
    }

    fn run_as(bed: &'a Bed, namespace: &str, version: Version, confines: bool, test: impl FnOnce(&Self)) {
        let scratch = Scratch::new().unwrap();
        let no_wrapper = (!confines).then(|| {
            let file = scratch.path().join("no-wrapper");
            Account::unprivileged().write(&file, NO_WRAPPER, 0o755).unwrap();
            file
        });
        let runs = scratch.dir("runs").unwrap();
        let node = Node {
            bed,
            namespace: namespace.to_owned(),
            scratch,
            tree: tree(&bed.assets, version),
            runs,
            running: Mutex::default(),
            net: Port::reserve().unwrap(),
            pods: AtomicU32::new(1),
            stop: AtomicBool::new(false),
            no_wrapper,
            deaf: AtomicU32::new(0),
        };
        thread::scope(|scope| {
            let kubelet = scope.spawn(|| node.serve());
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&node)));
            node.stop.store(true, Ordering::Relaxed);
            let served = kubelet.join();
            if let Err(panic) = result {
                eprintln!("{}", node.logs());
                std::panic::resume_unwind(panic);
            }
            served.unwrap();
        });
    }

    /// How many lines the payloads have noted that begin so.
    pub fn noted(&self, what: &str) -> usize {
        fs::read_to_string(self.runs.join("ran")).unwrap_or_default().lines().filter(|line| *line == what).count()
    }

    pub fn finish(&self, name: &str) {
        fs::write(self.runs.join(format!("finish-{name}")), "").unwrap();
    }

    /// The pods of a role.
    pub fn pods(&self, role: &str) -> Vec<Value> {
        let mut pods = self.bed.objects(&format!("/api/v1/namespaces/{}/pods", self.namespace));
        pods.retain(|pod| pod["metadata"]["labels"][ROLE] == role);
        pods
    }

    /// SIGKILL to all of a pod at once, as when its node dies; its pod is gone, too.
    pub fn lose(&self, pod: &str) {
        let mut running = self.running.lock().unwrap();
        let uid = running.iter().find(|(_, pod_)| pod_.name == pod).map(|(uid, _)| uid.clone()).unwrap();
        running.remove(&uid).unwrap().daemons.kill9().unwrap();
        drop(running);
        self.kill_pod(pod);
    }

    /// So many of the workers that begin from now on do not find the collector.
    pub fn deafen(&self, workers: u32) {
        self.deaf.store(workers, Ordering::Relaxed);
    }

    /// Ids of a pod's processes of this name.
    pub fn processes(&self, pod: &str, name: &str) -> Vec<u32> {
        let running = self.running.lock().unwrap();
        let its = running.values().filter(|running| running.name == pod);
        its.flat_map(|running| processes::descendants(running.daemons.pid(), name)).collect()
    }

    fn here(&self) -> Namespace<'_> {
        Namespace { bed: self.bed, name: self.namespace.clone() }
    }

    fn kill_pod(&self, name: &str) {
        // It may be gone.
        let _ = self.here().try_kill_pod(name);
    }

    fn serve(&self) {
        let mut refreshed = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let pods = self.bed.objects(&format!("/api/v1/namespaces/{}/pods", self.namespace));
            for pod in &pods {
                self.see_to(pod);
            }
            self.end_those_not_in(&pods);
            if refreshed.elapsed() > Duration::from_secs(5) {
                for pod in &pods {
                    self.refresh_secrets(pod);
                }
                refreshed = Instant::now();
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn see_to(&self, pod: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]));
        let phase = text(&pod["status"]["phase"]);
        let deleted = !pod["metadata"]["deletionTimestamp"].is_null();
        let mut running = self.running.lock().unwrap();
        match running.get_mut(&uid) {
            None if deleted => self.kill_pod(&name),
            // It has ended since it was listed.
            None if self.scratch.path().join(format!("pod-{uid}")).exists() => {}
            None if ["Succeeded", "Failed"].contains(&phase.as_str()) => {}
            // As kubelet: it begins when they are there.
            None if !self.has_secrets(pod) => {}
            None => {
                let daemons = self.begin(pod, &name, &uid);
                running.insert(uid, Running { name, daemons, told_to_end: None });
            }
            Some(own) => {
                if let Some(status) = own.daemons.wait_timeout(Duration::ZERO).unwrap() {
                    running.remove(&uid);
                    let code = status.code().unwrap_or(137);
                    if deleted {
                        self.kill_pod(&name);
                    } else if pod["spec"]["restartPolicy"] == "Never" {
                        let phase = if code == 0 { "Succeeded" } else { "Failed" };
                        let ended = json!({ "terminated": { "exitCode": code, "finishedAt": now(), "startedAt": pod["status"]["startTime"] } });
                        self.tell(&name, phase, &ended, &text(&pod["status"]["podIP"]));
                    }
                } else if deleted {
                    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
                    match own.told_to_end {
                        None => {
                            own.told_to_end = Some(Instant::now());
                            for master in processes::descendants(own.daemons.pid(), "condor_master") {
                                let pid = rustix::process::Pid::from_raw(master.try_into().unwrap()).unwrap();
                                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                            }
                        }
                        Some(since) if since.elapsed() > Duration::from_secs(grace) => own.daemons.kill9().unwrap(),
                        Some(_) => {}
                    }
                }
            }
        }
    }

    /// As kubelet: Secrets that have changed come to pods that run.
    fn refresh_secrets(&self, pod: &Value) {
        let folder = self.folder(pod);
        for volume in pod["spec"]["volumes"].as_array().unwrap() {
            let place = folder.join(volume["name"].as_str().unwrap());
            let Some(name) = volume["secret"]["secretName"].as_str().filter(|_| place.exists()) else { continue };
            let path = format!("/api/v1/namespaces/{}/secrets", self.namespace);
            if let Some(secret) = self.bed.object(&path, name) {
                put_secret(&place, &secret);
            }
        }
    }

    /// What a pod has on this node.
    pub fn folder(&self, pod: &Value) -> PathBuf {
        self.scratch.path().join(format!("pod-{}", pod["metadata"]["uid"].as_str().unwrap()))
    }

    /// What the claims of pods have: the schedd's queue and spool.
    pub fn claims(&self) -> PathBuf {
        self.scratch.path().join("claims")
    }

    fn has_secrets(&self, pod: &Value) -> bool {
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        volumes
            .iter()
            .filter_map(|volume| volume["secret"]["secretName"].as_str())
            .all(|name| self.bed.object(&format!("/api/v1/namespaces/{}/secrets", self.namespace), name).is_some())
    }

    /// An address of this node that no pod of it gets.
    pub fn address(&self) -> String {
        format!("127.{}.{}.250", self.net.number >> 8, self.net.number & 255)
    }

    fn end_those_not_in(&self, pods: &[Value]) {
        let there: Vec<&str> = pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
        self.running.lock().unwrap().retain(|uid, own| {
            let stays = there.contains(&uid.as_str());
            if !stays {
                own.daemons.kill9().unwrap();
            }
            stays
        });
    }

    /// Binds the pod to the node, and starts its containers.
    fn begin(&self, pod: &Value, name: &str, uid: &str) -> Owned {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name, "namespace": self.namespace },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "node" },
        });
        let role = pod["metadata"]["labels"][ROLE].as_str().unwrap().to_owned();
        // It may be gone.
        let _ = self.bed.create(&format!("/api/v1/namespaces/{}/pods/{name}/binding", self.namespace), &binding);
        let services = self.bed.objects(&format!("/api/v1/namespaces/{}/services", self.namespace));
        let address = |service: &Value| service["spec"]["clusterIP"].as_str().unwrap().to_owned();
        let collector = services.iter().find(|service| address(service) != "None").unwrap();
        // Whoever asks for the Service finds its pod.
        let ip = if role == "central-manager" {
            address(collector)
        } else {
            let number = self.pods.fetch_add(1, Ordering::Relaxed);
            format!("127.{}.{}.{number}", self.net.number >> 8, self.net.number & 255)
        };
        let folder = self.scratch.dir(&format!("pod-{uid}")).unwrap();
        let service = collector["metadata"]["name"].as_str().unwrap();
        let is_worker = role == "worker";
        let fewer = |deaf: u32| deaf.checked_sub(1);
        let is_deaf = is_worker && self.deaf.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok();
        let found = if is_deaf { self.address() } else { address(collector) };
        let hosts = format!("127.0.0.1 localhost\n{ip} {name}\n{found} {service}.{}.svc\n", self.namespace);
        fs::write(folder.join("hosts"), hosts).unwrap();
        let volumes = self.volumes(&pod["spec"], &folder);
        for container in pod["spec"]["initContainers"].as_array().unwrap() {
            let prepared = self.contain(pod, container, &ip, &folder, &volumes, false);
            let prepared = Owned::spawn(&prepared).unwrap();
            let status = prepared.wait(PATIENCE).unwrap();
            assert!(status.success(), "{}", prepared.log_text());
        }
        let container = &pod["spec"]["containers"][0];
        let daemons = Owned::spawn(&self.contain(pod, container, &ip, &folder, &volumes, is_worker)).unwrap();
        self.tell(name, "Running", &json!({ "running": { "startedAt": now() } }), &ip);
        daemons
    }

    fn tell(&self, name: &str, phase: &str, state: &Value, ip: &str) {
        let ready = phase == "Running";
        let status = json!({ "status": {
            "phase": phase, "podIP": ip, "podIPs": [{ "ip": ip }], "startTime": now(),
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            "containerStatuses": [{
                "name": "condor", "image": "i", "imageID": "i", "ready": ready, "restartCount": 0, "state": state,
            }],
        }});
        // It may be gone.
        let _ = self.here().try_patch_status("pod", name, &status);
    }

    /// What each volume is on the node.
    fn volumes(&self, spec: &Value, folder: &Path) -> HashMap<String, PathBuf> {
        let account = Account::unprivileged();
        let get = |kind: &str, name: &Value| {
            self.bed.object(&format!("/api/v1/namespaces/{}/{kind}", self.namespace), name.as_str().unwrap()).unwrap()
        };
        let mut volumes = HashMap::new();
        for volume in spec["volumes"].as_array().unwrap() {
            let name = volume["name"].as_str().unwrap().to_owned();
            let mut place = folder.join(&name);
            if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
                place = self.claims().join(claim);
            }
            if !place.exists() {
                fs::create_dir_all(place.parent().unwrap()).unwrap();
                if volume["emptyDir"].is_object() {
                    // As kubelet's: root's, if this is root, and everybody may write there.
                    fs::create_dir(&place).unwrap();
                    fs::set_permissions(&place, Permissions::from_mode(0o2777)).unwrap();
                } else {
                    account.make_dir(&place, 0o770).unwrap();
                }
            }
            if volume["configMap"].is_object() {
                let map = get("configmaps", &volume["configMap"]["name"]);
                for item in volume["configMap"]["items"].as_array().unwrap() {
                    let text = map["data"][item["key"].as_str().unwrap()].as_str().unwrap();
                    let mode = item["mode"].as_u64().unwrap_or(0o644);
                    let mode = u32::try_from(mode).unwrap();
                    account.write(&place.join(item["path"].as_str().unwrap()), text, mode).unwrap();
                }
            }
            if volume["secret"].is_object() {
                put_secret(&place, &get("secrets", &volume["secret"]["secretName"]));
            }
            volumes.insert(name, place);
        }
        volumes
    }

    /// A container of the pod.
    fn contain(
        &self,
        pod: &Value,
        container: &Value,
        ip: &str,
        folder: &Path,
        volumes: &HashMap<String, PathBuf>,
        is_worker: bool,
    ) -> Spec {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (name, image) = (text(&pod["metadata"]["name"]), text(&container["image"]));
        let account = &pod["spec"]["securityContext"];
        assert_eq!((&account["runAsUser"], &account["runAsNonRoot"]), (&65534.into(), &true.into()));
        let log = folder.join(format!("{}.log", text(&container["name"])));
        let mut spec = Spec::new("bwrap", log)
            .args(["--unshare-user", "--uid", ACCOUNT, "--gid", ACCOUNT, "--cap-drop", "ALL", "--die-with-parent"])
            .args(["--unshare-ipc", "--unshare-pid", "--as-pid-1", "--unshare-uts", "--hostname", &name])
            .args(["--new-session", "--clearenv", "--tmpfs", "/"]);
        let root = self.bed.assets.image();
        for entry in fs::read_dir(root).unwrap() {
            let entry = entry.unwrap();
            let at = Path::new("/").join(entry.file_name());
            if let Ok(target) = fs::read_link(entry.path()) {
                spec = spec.arg("--symlink").arg(target).arg(at);
            } else {
                spec = spec.arg("--ro-bind").arg(entry.path()).arg(at);
            }
        }
        spec = spec.args(["--proc", "/proc", "--dev", "/dev", "--ro-bind"]).arg(folder.join("hosts")).arg("/etc/hosts");
        if image.starts_with("htcondor") {
            spec = spec.arg("--ro-bind").arg(&self.tree).arg("/htcondor");
            if image == OLD_IMAGE {
                let nothing = folder.join("nothing");
                fs::write(&nothing, "").unwrap();
                for program in [CONFINE, WRAPPER] {
                    spec = spec.arg("--ro-bind").arg(&nothing).arg(format!("/{TREE}/usr/libexec/condor/{program}"));
                }
            } else if let Some(file) = &self.no_wrapper {
                spec = spec.arg("--ro-bind").arg(file).arg(format!("/{TREE}/usr/libexec/condor/{WRAPPER}"));
            }
        }
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            let how = if mount["readOnly"] == true { "--ro-bind" } else { "--bind" };
            let volume = pod["spec"]["volumes"].as_array().unwrap().iter().find(|one| one["name"] == mount["name"]);
            spec = match volume.and_then(|volume| volume["emptyDir"]["sizeLimit"].as_str()) {
                Some(limit) => spec.args(["--size", &bytes(limit).to_string(), "--tmpfs"]),
                None => spec.arg(how).arg(&volumes[mount["name"].as_str().unwrap()]),
            };
            spec = spec.arg(text(&mount["mountPath"]));
        }
        if is_worker {
            spec = spec.arg("--bind").arg(&self.runs).arg("/runs");
        }
        let field = |path: &str| match path {
            "metadata.name" => name.clone(),
            "metadata.uid" => text(&pod["metadata"]["uid"]),
            "status.podIP" => ip.to_owned(),
            other => panic!("{other}"),
        };
        let mut environment = vec![("PATH".to_owned(), "/bin".to_owned()), ("IMAGE_SAYS".to_owned(), image.clone())];
        for variable in container["env"].as_array().into_iter().flatten() {
            let source = &variable["valueFrom"];
            let value = if let Some(path) = source["fieldRef"]["fieldPath"].as_str() {
                field(path)
            } else if let Some(resource) = source["resourceFieldRef"]["resource"].as_str() {
                let (kind, resource) = resource.split_once('.').unwrap();
                let amount = text(&container["resources"][kind][resource]);
                amount.strip_suffix("Mi").unwrap_or(&amount).to_owned()
            } else {
                text(&variable["value"])
            };
            environment.push((text(&variable["name"]), value));
        }
        for (name, value) in &environment {
            spec = spec.args(["--setenv", name, value]);
        }
        spec.arg("--").args(container["command"].as_array().unwrap().iter().map(text))
    }

    /// What HTCondor has logged in the pods, for who looks for the cause of a failure.
    fn logs(&self) -> String {
        let mut text = String::new();
        for file in bed::files_below(self.scratch.path(), &|name| name.ends_with("Log") || name.ends_with("log")) {
            let bytes = fs::read(&file).unwrap_or_default();
            let all = String::from_utf8_lossy(&bytes);
            let last: Vec<&str> = all.lines().rev().take(25).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            let _ = writeln!(text, "--- {}\n{}", file.display(), last.join("\n"));
        }
        text
    }

    /// Waits for something about the pods of a role.
    pub fn wait_pods(&self, role: &str, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        wait_for(&format!("pods of role {role}: {what}"), PATIENCE, || {
            let pods = self.pods(role);
            if wanted(&pods) { Ok(pods) } else { Err(names(&pods)) }
        })
        .unwrap()
    }
}

/// Bytes of a quantity in MiB.
fn bytes(quantity: &str) -> u64 {
    quantity.strip_suffix("Mi").unwrap().parse::<u64>().unwrap() << 20
}

/// As kubelet: all entries are of one version of the Secret, which `..data` leads to.
fn put_secret(place: &Path, secret: &Value) {
    let entries = secret["data"].as_object().unwrap().iter();
    let entries: BTreeMap<String, Vec<u8>> =
        entries.map(|(entry, value)| (entry.clone(), decoded(value.as_str().unwrap()))).collect();
    let (account, current) = (Account::unprivileged(), place.join("..data"));
    let listed = fs::read_dir(&current).into_iter().flatten().map(|entry| entry.unwrap());
    let before: BTreeMap<String, Vec<u8>> =
        listed.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect();
    if before == entries {
        return;
    }
    let version = (1..1000).map(|number| format!("..{number}")).find(|version| !place.join(version).exists()).unwrap();
    account.make_dir(&place.join(&version), 0o770).unwrap();
    for (entry, bytes) in &entries {
        account.write(&place.join(&version).join(entry), bytes, 0o440).unwrap();
    }
    let (old, new) = (fs::read_link(&current), place.join("..new"));
    symlink(&version, &new).unwrap();
    fs::rename(new, current).unwrap();
    for entry in entries.keys().filter(|entry| !before.contains_key(*entry)) {
        symlink(Path::new("..data").join(entry), place.join(entry)).unwrap();
    }
    for entry in before.keys().filter(|entry| !entries.contains_key(*entry)) {
        fs::remove_file(place.join(entry)).unwrap();
    }
    if let Ok(old) = old {
        fs::remove_dir_all(place.join(old)).unwrap();
    }
}

pub fn names(pods: &[Value]) -> String {
    let words = pods.iter().map(|pod| format!("{} {}", pod["metadata"]["name"], pod["status"]["phase"]));
    words.collect::<Vec<_>>().join(", ")
}

fn now() -> String {
    jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap().to_string()
}

pub fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}
