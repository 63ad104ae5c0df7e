//! The operator in the root file system of its image, as its pod has it: as uid 10001, with nothing to write to but its
//! volumes, without any privilege.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use testbed::{IMAGE_ACCOUNT, KubeOptions, Owned, PoolOptions, Port, Scratch, Spec, Version, wait_for};

use crate::deploy::manifests::{config_map, container, each, path, render};
use crate::deploy::rbac::token;
use bed::{Bed, PATIENCE, htcjob, is_true, kubeconfig_with};

/// A folder for the image's account.
struct Folders {
    scratch: Scratch,
    /// The kernel's number of the image's account: another one for callers who cannot change it.
    owner: Option<u32>,
}

impl Folders {
    fn new() -> Self {
        let root = rustix::process::geteuid().is_root();
        Self { scratch: Scratch::new().unwrap(), owner: root.then_some(IMAGE_ACCOUNT) }
    }

    fn give(&self, path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        if let Some(owner) = self.owner {
            chown(path, Some(owner), Some(owner)).unwrap();
        }
    }

    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.scratch.path().join(name);
        fs::create_dir(&dir).unwrap();
        self.give(&dir, 0o755);
        dir
    }

    fn write(&self, path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        self.give(path, mode);
    }

    /// `bwrap` as the image's account.
    fn contained(&self, log: &str) -> Spec {
        let log = self.scratch.path().join(log);
        let spec = if let Some(owner) = self.owner {
            let account = [format!("--reuid={owner}"), format!("--regid={owner}")];
            let spec = Spec::new("setpriv", log).privileged().args(account);
            spec.args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "bwrap"])
        } else {
            Spec::new("bwrap", log)
        };
        let id = IMAGE_ACCOUNT.to_string();
        spec.args(["--unshare-user", "--uid", &id, "--gid", &id, "--cap-drop", "ALL", "--die-with-parent"]).args([
            "--unshare-ipc",
            "--unshare-uts",
            "--new-session",
            "--clearenv",
        ])
    }
}

/// The pool's client configuration as a site writes it: the overlay's file with other addresses.
fn condor_config(bed: &Bed, template: &str) -> String {
    let line = |line: &str| match line.split_once(" = ") {
        Some(("COLLECTOR_HOST", _)) => format!("COLLECTOR_HOST = {}\n", bed.pool.address()),
        Some(("SCHEDD_HOST", _)) => format!("SCHEDD_HOST = {}\n", bed.pool.schedd_name()),
        _ => format!("{line}\n"),
    };
    template.lines().map(line).collect()
}

#[test]
fn operator_runs_in_its_image() {
    let bed = Bed::with_kube(Version::Trixie, &KubeOptions::default(), &PoolOptions::default(), &[]);
    bed.kube.kubectl_ok(&["apply", "-k", path("deploy/overlays/local").to_str().unwrap()]).unwrap();
    let objects = render("overlays/local");
    let folders = Folders::new();
    let (data, state, config) = (folders.dir("data"), folders.dir("state"), folders.dir("config"));
    let template = config_map(&objects, "htcondor-client")["data"]["condor_config"].as_str().unwrap();
    folders.write(&config.join("condor_config"), &condor_config(&bed, template), 0o444);
    folders.write(&config.join("kubeconfig"), &kubeconfig_with(&bed.kube, &token(&bed)), 0o400);
    // With `fsGroup` a Secret's files are root's, and the group may read them: HTCondor itself refuses such a token.
    let credentials = folders.dir("credentials");
    let secret = credentials.join("htcondor-idtoken");
    fs::create_dir(&secret).unwrap();
    folders.give(&secret, 0o750);
    folders.write(&secret.join("token"), &fs::read_to_string(bed.condor.token()).unwrap(), 0o440);
    let program = folders.scratch.share(&bed::program()).unwrap();
    let (callbacks, monitor) = (Port::reserve().unwrap(), Port::reserve().unwrap());
    let url = format!("http://127.0.0.1:{}/cloudevents", callbacks.number);

    // kubelet gives a pod its own name there, which HTCondor's tools look up.
    let hosts = folders.scratch.path().join("hosts");
    folders.write(&hosts, "127.0.0.1 localhost\n127.0.0.1 pod-0\n", 0o444);
    let mut spec = folders.contained("operator.log").args(["--unshare-pid", "--as-pid-1", "--hostname", "pod-0"]);
    let bind = |how: &str, from: &Path, to: &str| [how.into(), from.as_os_str().to_owned(), to.into()];
    spec = spec
        .args(bind("--ro-bind", bed.assets.operator_image(), "/"))
        .args(bind("--ro-bind", &program, "/usr/local/bin/htc-operator"))
        .args(bind("--ro-bind", &config, "/etc/htc-operator"))
        .args(bind("--ro-bind", &credentials, "/credentials"))
        .args(bind("--ro-bind", &hosts, "/etc/hosts"))
        .args(bind("--bind", &data, "/data"))
        .args(bind("--bind", &state, "/state"))
        .args(["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]);
    let centos = format!("centos={}", bed.assets.image().display());
    let own = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("KUBECONFIG", "/etc/htc-operator/kubeconfig".to_owned()),
        ("HTC_OPERATOR_NAMESPACE", "htc-operator".to_owned()),
        ("HTC_IDENTITY", "pod-0".to_owned()),
        ("HTC_SCHEDD", bed.pool.schedd_name().to_owned()),
        ("HTC_IMAGES", centos),
        ("HTC_CALLBACK_URL", url),
        ("HTC_CALLBACK_LISTEN", format!("127.0.0.1:{}", callbacks.number)),
        ("HTC_METRICS_BIND_ADDRESS", format!("127.0.0.1:{}", monitor.number)),
        ("HTC_POLL_INTERVAL", "2s".to_owned()),
        ("HTC_TOOL_TIMEOUT", "5s".to_owned()),
        ("HTC_MIN_FREE_SPACE", "0".to_owned()),
    ];
    let deployed = each(&container(&objects)["env"])
        .filter_map(|variable| Some((variable["name"].as_str()?, variable["value"].as_str()?.to_owned())))
        .filter(|(name, _)| own.iter().all(|(own, _)| own != name));
    for (name, value) in deployed.chain(own.iter().map(|(name, value)| (*name, value.clone()))) {
        spec = spec.args(["--setenv", name, &value]);
    }
    // The image's entry point with the Deployment's arguments.
    let arguments: Vec<&str> = each(&container(&objects)["args"]).map(|argument| argument.as_str().unwrap()).collect();
    let operator = Owned::spawn(&spec.args(["--", "tini", "--", "htc-operator"]).args(arguments)).unwrap();

    let leads = || {
        operator.must_run().map_err(|error| error.to_string())?;
        operator.log_text().contains("lease acquired").then_some(()).ok_or_else(|| operator.log_text())
    };
    wait_for("the operator in its image to lead", PATIENCE, leads).unwrap();
    let ns = bed.namespace();
    let shown = |result: testbed::Result<()>| result.unwrap_or_else(|error| panic!("{error}\n{}", operator.log_text()));
    ns.create(&htcjob("zero", "id -u; echo made >made"));
    shown(wait_for("the HTCJob in the image's operator to be Complete", PATIENCE, || {
        is_true(&ns.get("zero"), "Complete")
    }));
    let output = data.join("htc_out").join(&ns.name).join("zero/latest/0");
    assert_eq!(fs::read_to_string(output.join("made")).unwrap(), "made\n");
    ns.delete("zero");

    // A tool that is killed at its time limit leaves a process without a parent: it is seen to be gone.
    bed.pool.pause_schedd().unwrap();
    ns.create(&htcjob("late", "true"));
    let unreachable = || {
        let object = ns.get("late");
        bed::condition(&object, "Submitted").is_some_and(|submitted| submitted["reason"] == "ScheddUnreachable")
    };
    shown(wait_for("the schedd to be away", PATIENCE, unreachable));
    bed.pool.resume_schedd().unwrap();
    shown(wait_for("the second HTCJob to be Complete", PATIENCE, || is_true(&ns.get("late"), "Complete")));
    wait_for("every tool's end to be taken in", PATIENCE, || {
        let left = testbed::processes::unburied(operator.pid());
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .unwrap();

    // What kubelet does: SIGTERM to the container's first process.
    let first = testbed::processes::descendants(operator.pid(), "tini")[0];
    let first = rustix::process::Pid::from_raw(first.try_into().unwrap()).unwrap();
    rustix::process::kill_process(first, rustix::process::Signal::TERM).unwrap();
    let ended = operator.wait(PATIENCE).unwrap();
    assert!(ended.success(), "{ended}\n{}", operator.log_text());
}

/// Each program is in the image's own search path, and no library of it is missing.
#[test]
fn image_has_all_programs_of_the_operator() {
    let assets = testbed::Assets::locate().unwrap();
    let folders = Folders::new();
    let script = "id -un; touch /x /data/x /etc/x 2>/dev/null && exit 1; \
                  for tool in condor_submit condor_q condor_history condor_rm condor_hold condor_release condor_qedit \
                  condor_transfer_data condor_ping condor_status timeout setpriv kinit klist tini; do \
                  command -v $tool >/dev/null || { echo no $tool; exit 2; }; \
                  ! ldd $(command -v $tool) | grep 'not found' || exit 3; done; \
                  CONDOR_CONFIG=/dev/null condor_version; grep -c BEGIN /etc/ssl/certs/ca-certificates.crt";
    let image = assets.operator_image().as_os_str();
    let root = ["--ro-bind".as_ref(), image, "/".as_ref(), "--dev".as_ref(), "/dev".as_ref()];
    let spec = folders.contained("programs.log").args(root).args(["--setenv", "PATH", "/usr/bin:/usr/sbin"]);
    let shell = Owned::spawn(&spec.args(["--", "sh", "-c", script])).unwrap();
    let status = shell.wait(PATIENCE).unwrap();
    let output = shell.log_text();
    assert!(
        status.success() && output.starts_with("htc-operator\n") && output.contains("$CondorVersion: "),
        "{output}"
    );
}
