//! What docs/install.md tells a person at a site to do, done on a real node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{ADDRESS, Cluster};
use crate::demo::{failed, run, say};
use crate::error::{Doing as _, Result};
use crate::pool::{Pool, PoolOptions, Version};
use crate::tool::run_ok;
use crate::wait::wait_for;
use crate::{Client, EXAMPLES_IMAGE, oci};

/// What takes seconds on a quiet machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// Two volumes of the node, for the claims that ask.
const VOLUME: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: node
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata:
  name: node
spec:
  capacity: {storage: 50Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: node
  local: {path: FOLDER}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node]}]
---
apiVersion: v1
kind: PersistentVolume
metadata:
  name: node-state
spec:
  capacity: {storage: 50Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: node
  local: {path: FOLDER-state}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node]}]
"#;

/// Where the page begins to take everything away again.
const REMOVAL: &str = "## Removing it";

struct Proof<'a> {
    cluster: &'a Cluster,
    /// docs/install.md
    page: String,
    pool: Pool,
    condor: Client,
    /// The site's copy of the checkout's folders.
    site: PathBuf,
    began: Instant,
}

/// Installs the operator at `program` and runs HTCJobs with it.
pub(super) fn run_proof(cluster: &Cluster, program: &Path, checkout: &Path) -> Result<()> {
    let pool = Pool::start(&cluster.assets, Version::Trixie, &PoolOptions::at(ADDRESS))?;
    let condor = pool.client("operator")?;
    let site = cluster.scratch.path().join("site");
    fs::create_dir(&site).doing("making the folder", &site)?;
    let mut copy = Command::new("cp");
    copy.arg("-r").args(["crd", "deploy", "docs", "examples"].map(|folder| checkout.join(folder))).arg(&site);
    run_ok("copying the checkout", &mut copy, "", PATIENCE)?;
    image(cluster, program, checkout)?;
    let folder = cluster.scratch.path().join("node/volume");
    cluster.kube.apply_stdin(&VOLUME.replace("FOLDER", &folder.display().to_string()))?;
    let page = checkout.join("docs/install.md");
    let page = fs::read_to_string(&page).doing("reading", &page)?;
    let proof = Proof { cluster, page, pool, condor, site, began: Instant::now() };
    proof.install().and_then(|()| proof.use_it()).and_then(|()| proof.uninstall()).inspect_err(|_| proof.tell())
}

/// The Dockerfile's last stage, without a container engine.
fn image(cluster: &Cluster, program: &Path, checkout: &Path) -> Result<()> {
    let dockerfile = checkout.join("Dockerfile");
    let text = fs::read_to_string(&dockerfile).doing("reading", &dockerfile)?;
    let of = |instruction: &str| {
        let line = text.lines().rev().find_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
        line.ok_or_else(|| failed("make the image", format!("the Dockerfile has no {instruction}")))
    };
    let config = format!(
        r#"{{"Entrypoint": {}, "Cmd": {}, "User": "{}", "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}}"#,
        of("ENTRYPOINT")?,
        of("CMD")?,
        of("USER")?
    );
    let work = cluster.scratch.path();
    let layer = work.join("layer");
    let bin = layer.join("usr/local/bin");
    fs::create_dir_all(&bin).doing("making the folder", &bin)?;
    fs::copy(program, bin.join("htc-operator")).doing("copying", program)?;
    let archive = work.join("operator.tar");
    let layers = [cluster.assets.operator_image(), &layer];
    oci::archive("docker.io/library/htc-operator:dev", &layers, &config, &work.join("image"), &archive)?;
    cluster.import(&archive)
}

impl Proof<'_> {
    /// From an empty cluster to an operator that is ready.
    fn install(&self) -> Result<()> {
        let overlay = self.site.join("deploy/overlays/mine");
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(self.site.join("deploy/overlays/local")).arg(&overlay);
        run_ok("copying the overlay", &mut copy, "", PATIENCE)?;
        change(&overlay.join("condor_config"), |line| match line.split_once(" = ") {
            Some(("COLLECTOR_HOST", _)) => format!("COLLECTOR_HOST = {}", self.pool.address()),
            Some(("SCHEDD_HOST", _)) => format!("SCHEDD_HOST = {}", self.pool.schedd_name()),
            _ => line.to_owned(),
        })?;
        let images = format!("\nHTC_IMAGES={EXAMPLES_IMAGE}={}", self.cluster.assets.image().display());
        change(&overlay.join("settings.env"), |line| match line.split_once('=') {
            Some(("HTC_SCHEDD", _)) => format!("HTC_SCHEDD={}{images}", self.pool.schedd_name()),
            _ => line.to_owned(),
        })?;
        let token = self.site.join("token");
        fs::copy(self.condor.token(), &token).doing("copying", &token)?;
        let (install, _) = self.page.split_once(REMOVAL).unwrap_or((&self.page, ""));
        for line in commands(install) {
            self.kubectl(&line)?;
        }
        say(&format!(
            "installed, and the first HTCJob has run and is deleted, after {:.0} s",
            self.began.elapsed().as_secs_f64()
        ));
        // Jobs reach the Service by its address in the cluster's network; a site has an ingress or a load balancer there.
        let address = self.ask("-n htc-operator get service cloudevents-service -o=jsonpath={.spec.clusterIP}")?;
        change(&overlay.join("settings.env"), |line| match line.strip_prefix("# HTC_CALLBACK_URL=") {
            Some(_) => format!("HTC_CALLBACK_URL=http://{}/cloudevents", address.trim()),
            None => line.to_owned(),
        })?;
        self.kubectl("apply -k deploy/overlays/mine")?;
        self.kubectl("-n htc-operator rollout status deployment/htc-operator --timeout=180s")
    }

    /// The first examples, a pod that is killed while a job runs, and what jobs report through the Service.
    fn use_it(&self) -> Result<()> {
        let before = self.reports()?;
        for (example, condition) in [("retcode/zero", "Complete"), ("retcode/notzero", "Failed"), ("queue", "Complete")]
        {
            let name = example.rsplit('/').next().unwrap_or(example);
            let began = Instant::now();
            self.kubectl(&format!("apply -f examples/{example}.yaml"))?;
            self.kubectl(&format!("wait --for=condition={condition} htcjob/{name} --timeout=180s"))?;
            say(&format!("{name} took {:.1} s", began.elapsed().as_secs_f64()));
        }
        // Two reports of each of five jobs, and none of them spoke to anything but the Service.
        wait_for("the jobs' reports", PATIENCE, || {
            let reports = self.reports().map_err(|error| error.to_string())? - before;
            if reports >= 10 { Ok(()) } else { Err(format!("{reports} of 10")) }
        })?;
        say("all jobs have reported through the Service");
        self.kubectl("describe htcjob zero")?;
        self.kubectl("-n htc-operator exec deploy/htc-operator -- cat /data/htc_out/default/queue/latest/2/out")?;
        self.copy_out()?;
        self.kubectl("apply -f examples/deadline.yaml")?;
        self.kubectl("wait --for=jsonpath={.status.phase}=Running htcjob/deadline --timeout=180s")?;
        self.kubectl(
            "-n htc-operator delete pod --selector=app.kubernetes.io/name=htc-operator --grace-period=0 --force",
        )?;
        self.kubectl("wait --for=condition=Complete htcjob/deadline --timeout=180s")?;
        let constraint = "JobBatchName == \"default/deadline\"";
        let ran = self.pool.tool("condor_history", &["-constraint", constraint, "-af", "ClusterId"])?;
        let queued = self.pool.tool("condor_q", &["-allusers", "-constraint", constraint, "-af", "ClusterId"])?;
        let jobs = ran.lines().chain(queued.lines()).count();
        if jobs == 1 {
            Ok(())
        } else {
            Err(failed("run a job once although the pod was killed", format!("{jobs} jobs")))
        }
    }

    /// The command of docs/operating.md that copies the output of the failed HTCJob out of the pod.
    fn copy_out(&self) -> Result<()> {
        let page = self.site.join("docs/operating.md");
        let page = fs::read_to_string(&page).doing("reading", &page)?;
        let line = page.lines().find(|line| line.starts_with("$ kubectl ") && line.contains(" tar -C "));
        let line = line.ok_or_else(|| failed("copy output", "docs/operating.md does not say how".to_owned()))?;
        self.kubectl("wait --for=condition=OutputFetched htcjob/notzero --timeout=180s")?;
        let (program, folder) = (self.cluster.kube.kubectl(&[]), self.cluster.scratch.path().join("copied"));
        fs::create_dir(&folder).doing("making the folder", &folder)?;
        let mut shell = Command::new("sh");
        shell.args(["-euc", &format!("kubectl() {{ \"$KUBECTL\" \"$@\"; }}; {}", line.trim_start_matches("$ "))]);
        shell.env("KUBECTL", program.get_program()).env("KUBECONFIG", self.cluster.kube.kubeconfig());
        run(line, shell.current_dir(&folder))?;
        let err = folder.join("0/err");
        let err = fs::read_to_string(&err).doing("reading", &err)?;
        if err.contains("command-that-does-not-exist") {
            Ok(())
        } else {
            Err(failed("copy the output of notzero", err))
        }
    }

    /// Nothing is left, in the cluster or in HTCondor.
    fn uninstall(&self) -> Result<()> {
        let (_, removal) = self.page.split_once(REMOVAL).unwrap_or((&self.page, ""));
        for line in commands(removal) {
            self.kubectl(&line)?;
        }
        let left = self.pool.tool("condor_q", &["-allusers", "-af", "ClusterId"])?;
        if !left.trim().is_empty() {
            return Err(failed("leave nothing in HTCondor's queue", left));
        }
        say(&format!("installed, used and removed in {:.0} s", self.began.elapsed().as_secs_f64()));
        Ok(())
    }

    /// How many reports of jobs the operator has stored since it started.
    fn reports(&self) -> Result<u32> {
        let path = "/api/v1/namespaces/htc-operator/services/htc-operator-metrics:metrics/proxy/metrics";
        let metrics = self.ask(&format!("get --raw {path}"))?;
        let stored = metrics.lines().find_map(|line| line.strip_prefix(r#"htc_callbacks_total{outcome="Stored"} "#));
        Ok(stored.and_then(|number| number.trim().parse().ok()).unwrap_or(0))
    }

    fn kubectl(&self, line: &str) -> Result<()> {
        let arguments: Vec<&str> = line.split(' ').collect();
        run(&format!("kubectl {line}"), self.cluster.kube.kubectl(&arguments).current_dir(&self.site))
    }

    fn ask(&self, line: &str) -> Result<String> {
        self.cluster.kube.kubectl_ok(&line.split(' ').collect::<Vec<_>>())
    }

    /// Shows why nothing goes on.
    fn tell(&self) {
        for line in [
            "get pods,pvc,htcjobs --all-namespaces -o wide",
            "-n htc-operator describe pods",
            "-n htc-operator logs deployment/htc-operator --tail=60",
        ] {
            let _ = self.kubectl(line);
        }
    }
}

/// What the page's `sh` blocks say to run, without the word kubectl.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    blocks.flat_map(str::lines).map(|line| line.trim_start_matches("kubectl ").to_owned()).collect()
}

/// Changes a file line by line.
fn change(path: &Path, line: impl Fn(&str) -> String) -> Result<()> {
    let text = fs::read_to_string(path).doing("reading", path)?;
    let text: String = text.lines().map(|old| line(old) + "\n").collect();
    fs::write(path, text).doing("writing", path)
}
