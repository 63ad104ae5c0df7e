//! What docs/install.md tells a person at a site to do, done on a real node.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::site::Site;
use super::{ADDRESS, Cluster, Part};
use super::{accounts, idle, kills, lost_node, mini_cluster, pods_page, pool_from_none, pool_page};
use crate::demo::{failed, run, say};
use crate::error::{Doing as _, Result};
use crate::pool::{Pool, PoolOptions, Version};
use crate::tool::run_ok;
use crate::wait::wait_for;
use crate::{Client, EXAMPLES_IMAGE};

/// What takes seconds on a quiet machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// Where the page begins to take everything away again.
const REMOVAL: &str = "## Removing it";

struct Proof<'a> {
    site: &'a Site<'a>,
    /// docs/install.md
    page: String,
    pool: Pool,
    condor: Client,
    began: Instant,
}

/// Installs the operator at `program` and runs HTCJobs with it.
pub(super) fn run_proof(cluster: &Cluster, program: &Path, checkout: &Path, only: Option<Part>) -> Result<()> {
    let pool = Pool::start(&cluster.assets, Version::Trixie, &PoolOptions::at(ADDRESS))?;
    let condor = pool.client("operator")?;
    let site = &Site::new(cluster, program, checkout)?;
    let page = site.page("install.md")?;
    let proof = Proof { site, page, pool, condor, began: Instant::now() };
    proof.run(only).inspect_err(|_| proof.tell())
}

impl Proof<'_> {
    fn run(&self, only: Option<Part>) -> Result<()> {
        let is_wanted = |part| only.is_none_or(|only| only == part);
        self.install()?;
        if is_wanted(Part::Operator) {
            self.use_it()?;
        }
        if is_wanted(Part::Accounts) {
            accounts::run(self.site)?;
        }
        if is_wanted(Part::Pool) {
            pool_page::run_page(self.site)?;
        }
        if is_wanted(Part::Autoscaling) {
            pool_from_none::run(self.site)?;
        }
        if is_wanted(Part::MiniCluster) {
            mini_cluster::run(self.site)?;
        }
        if is_wanted(Part::Kills) {
            kills::run(self.site)?;
        }
        if is_wanted(Part::LostNode) {
            lost_node::run(self.site)?;
        }
        if only == Some(Part::Idle) {
            idle::run(self.site)?;
        }
        if is_wanted(Part::Pods) {
            pods_page::run_page(self.site)?;
        }
        self.uninstall()
    }

    /// From an empty cluster to an operator that is ready.
    fn install(&self) -> Result<()> {
        let overlay = self.site.folder.join("deploy/overlays/mine");
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(self.site.folder.join("deploy/overlays/local")).arg(&overlay);
        run_ok("copying the overlay", &mut copy, "", PATIENCE)?;
        change(&overlay.join("condor_config"), |line| match line.split_once(" = ") {
            Some(("COLLECTOR_HOST", _)) => format!("COLLECTOR_HOST = {}", self.pool.address()),
            Some(("SCHEDD_HOST", _)) => format!("SCHEDD_HOST = {}", self.pool.schedd_name()),
            _ => line.to_owned(),
        })?;
        let images = format!("\nHTC_IMAGES={EXAMPLES_IMAGE}={}", self.site.cluster.assets.image().display());
        change(&overlay.join("settings.env"), |line| match line.split_once('=') {
            Some(("HTC_SCHEDD", _)) => format!("HTC_SCHEDD={}{images}", self.pool.schedd_name()),
            _ => line.to_owned(),
        })?;
        let token = self.site.folder.join("token");
        fs::copy(self.condor.token(), &token).doing("copying", &token)?;
        let (install, _) = self.page.split_once(REMOVAL).unwrap_or((&self.page, ""));
        for line in commands(install) {
            self.site.kubectl(&line)?;
        }
        say(&format!(
            "installed, and the first HTCJob has run and is deleted, after {:.0} s",
            self.began.elapsed().as_secs_f64()
        ));
        // Jobs reach the Service by its address in the cluster's network; a site has an ingress or a load balancer there.
        let address = self.site.ask("-n htc-operator get service cloudevents-service -o=jsonpath={.spec.clusterIP}")?;
        change(&overlay.join("settings.env"), |line| match line.strip_prefix("# HTC_CALLBACK_URL=") {
            Some(_) => format!("HTC_CALLBACK_URL=http://{}/cloudevents", address.trim()),
            None => line.to_owned(),
        })?;
        self.site.kubectl("apply -k deploy/overlays/mine")?;
        self.site.kubectl("-n htc-operator rollout status deployment/htc-operator --timeout=180s")
    }

    /// The first examples, a pod that is killed while a job runs, and what jobs report through the Service.
    fn use_it(&self) -> Result<()> {
        let before = self.reports()?;
        for (example, condition) in [("retcode/zero", "Complete"), ("retcode/notzero", "Failed"), ("queue", "Complete")]
        {
            let name = example.rsplit('/').next().unwrap_or(example);
            let began = Instant::now();
            self.site.kubectl(&format!("apply -f examples/{example}.yaml"))?;
            self.site.kubectl(&format!("wait --for=condition={condition} htcjob/{name} --timeout=180s"))?;
            say(&format!("{name} took {:.1} s", began.elapsed().as_secs_f64()));
        }
        // Two reports of each of five jobs, and none of them spoke to anything but the Service.
        wait_for("the jobs' reports", PATIENCE, || {
            let reports = self.reports().map_err(|error| error.to_string())? - before;
            if reports >= 10 { Ok(()) } else { Err(format!("{reports} of 10")) }
        })?;
        say("all jobs have reported through the Service");
        self.site.kubectl("describe htcjob zero")?;
        self.site
            .kubectl("-n htc-operator exec deploy/htc-operator -- cat /data/htc_out/default/queue/latest/2/out")?;
        self.copy_out()?;
        // Its job is to be seen while it runs, also on a machine that stands still for a while.
        change(&self.site.folder.join("examples/deadline.yaml"), |line| line.replace("sleep 5", "sleep 45"))?;
        self.site.kubectl("apply -f examples/deadline.yaml")?;
        self.site.kubectl("wait --for=jsonpath={.status.phase}=Running htcjob/deadline --timeout=180s")?;
        self.site.kubectl(
            "-n htc-operator delete pod --selector=app.kubernetes.io/name=htc-operator --grace-period=0 --force",
        )?;
        self.site.kubectl("wait --for=condition=Complete htcjob/deadline --timeout=180s")?;
        let constraint = "JobBatchName == \"default/deadline\"";
        // What leaves the queue between the two answers is in both.
        let queued = self.pool.tool("condor_q", &["-allusers", "-constraint", constraint, "-af", "ClusterId"])?;
        let ran = self.pool.tool("condor_history", &["-constraint", constraint, "-af", "ClusterId"])?;
        let jobs: BTreeSet<&str> = queued.lines().chain(ran.lines()).collect();
        if jobs.len() == 1 {
            Ok(())
        } else {
            Err(failed("run a job once although the pod was killed", format!("the jobs {jobs:?}")))
        }
    }

    /// The command of docs/operating.md that copies the output of the failed HTCJob out of the pod.
    fn copy_out(&self) -> Result<()> {
        let page = self.site.page("operating.md")?;
        let line = page.lines().find(|line| line.starts_with("$ kubectl ") && line.contains(" tar -C "));
        let line = line.ok_or_else(|| failed("copy output", "docs/operating.md does not say how".to_owned()))?;
        self.site.kubectl("wait --for=condition=OutputFetched htcjob/notzero --timeout=180s")?;
        let folder = self.site.cluster.scratch.path().join("copied");
        fs::create_dir(&folder).doing("making the folder", &folder)?;
        run(line, self.site.shell(line.trim_start_matches("$ ")).current_dir(&folder))?;
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
            self.site.kubectl(&line)?;
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
        let metrics = self.site.ask(&format!("get --raw {path}"))?;
        let stored = metrics.lines().find_map(|line| line.strip_prefix(r#"htc_callbacks_total{outcome="Stored"} "#));
        Ok(stored.and_then(|number| number.trim().parse().ok()).unwrap_or(0))
    }

    /// Shows why nothing goes on.
    fn tell(&self) {
        for line in [
            "get pods,pvc,htcjobs,htcpools --all-namespaces -o wide",
            "-n htc-operator describe pods",
            "-n analysis get jobs,pods,events",
            "-n analysis describe htcjobs",
            "-n alice describe htcjobs",
            "-n accounts get htcpools -o yaml",
            "-n pools get htcpools -o yaml",
            "-n pools describe pods",
            "-n pools logs -l htc.cern.ch/htcpool --all-containers --prefix --tail=40",
            "-n htc-operator logs deployment/htc-operator --tail=60",
        ] {
            let _ = self.site.kubectl(line);
        }
    }
}

/// What the page's `sh` blocks say to run, without the word kubectl.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    blocks.flat_map(str::lines).map(|line| line.trim_start_matches("kubectl ").to_owned()).collect()
}

/// Changes a file line by line.
pub(super) fn change(path: &Path, line: impl Fn(&str) -> String) -> Result<()> {
    let text = fs::read_to_string(path).doing("reading", path)?;
    let text: String = text.lines().map(|old| line(old) + "\n").collect();
    fs::write(path, text).doing("writing", path)
}
