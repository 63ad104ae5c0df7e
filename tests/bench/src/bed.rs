//! Real servers, the operator as a process of its own, and somebody who does the same by hand.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use testbed::{Account, Assets, Client, Controllers, Kube, Owned, Pool, PoolOptions, Scratch, Spec, Version, wait_for};

use crate::cluster::{Cluster, PATIENCE, htcjob};
use crate::error::{Error, Result};
use crate::raw::Raw;
use crate::say;
use crate::tools::{Mould, Tools};
use crate::usage::Usage;

/// What the operator logs once it has reconciled everything that was there when it started.
const CAUGHT_UP: &str = "initial list of HTCJobs reconciled";
/// So that 100,000 jobs and some more fit.
const POOL: &str = "MAX_JOBS_PER_OWNER = 1000000";
/// The HTCJob whose submission is the mould of those by hand.
const MOULD: &str = "mould";

pub(crate) struct Bed {
    // Fields drop in this order: the operator before its servers.
    operator: Option<Owned>,
    pub(crate) cluster: Cluster,
    pub(crate) pool: Pool,
    pub(crate) tools: Tools,
    /// HTCondor as the operator.
    condor: Client,
    pub(crate) data: PathBuf,
    program: PathBuf,
    kubeconfig: PathBuf,
    image: PathBuf,
    runs: u32,
    namespaces: u32,
    kube: Kube,
    pub(crate) scratch: Scratch,
}

impl Bed {
    /// Starts the servers, and the operator at `program` with the CRD in the file `crd`.
    pub(crate) fn start(program: &Path, crd: &str, version: Version) -> Result<Self> {
        let assets = Assets::locate()?;
        let options = PoolOptions { extra_config: POOL.to_owned(), ..PoolOptions::default() };
        let (kube, pool) = (Kube::start(&assets)?, Pool::start(&assets, version, &options)?);
        kube.apply_crd(crd, "htcjobs.htc.cern.ch")?;
        kube.kubectl_ok(&["create", "namespace", "htc-operator"])?;
        let scratch = Scratch::new()?;
        let data = scratch.dir("data")?;
        let kubeconfig = scratch.path().join("kubeconfig");
        let contents = std::fs::read(kube.kubeconfig()).map_err(|source| Error::File {
            doing: "read",
            path: kube.kubeconfig().to_owned(),
            source,
        })?;
        Account::unprivileged().write(&kubeconfig, contents, 0o600)?;
        let condor = pool.client("operator")?;
        let mut bed = Self {
            operator: None,
            cluster: Cluster::new(kube.kubeconfig())?,
            tools: Tools::new(&scratch, condor.bin_dir())?,
            condor,
            data,
            program: scratch.share(program)?,
            kubeconfig,
            image: assets.image().to_owned(),
            runs: 0,
            namespaces: 0,
            pool,
            kube,
            scratch,
        };
        bed.start_operator()?;
        Ok(bed)
    }

    /// Starts the operator, with the settings that it has by itself.
    pub(crate) fn start_operator(&mut self) -> Result<()> {
        self.start_with(&[])
    }

    /// The same with further settings.
    pub(crate) fn start_with(&mut self, settings: &[String]) -> Result<()> {
        self.runs += 1;
        let log = self.scratch.path().join(format!("operator-{}.log", self.runs));
        let spec = Spec::new(&self.program, log)
            .args(["run", "--schedd", self.pool.schedd_name(), "--identity=bench"])
            .args(["--data-dir".as_ref(), self.data.as_os_str()])
            .arg("--image")
            .arg(format!("centos={}", self.image.display()))
            .arg(self.tools.argument())
            // The stand-ins write, which no tool may.
            .arg("--confinement=off")
            .args(settings)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("CONDOR_CONFIG", self.condor.config())
            .env("HOME", self.condor.home())
            .env("PATH", format!("{}:/usr/bin:/bin", self.condor.bin_dir().display()));
        self.operator = Some(Owned::spawn(&spec)?);
        Ok(())
    }

    fn operator(&self) -> Result<&Owned> {
        let operator = self.operator.as_ref();
        let operator = operator.ok_or_else(|| Error::Unexpected("the operator does not run".to_owned()))?;
        operator.must_run()?;
        Ok(operator)
    }

    /// Ends the operator, and starts it again with other settings.
    pub(crate) fn restart_with(&mut self, settings: &[String]) -> Result<()> {
        self.stop_operator()?;
        let began = Instant::now();
        self.start_with(settings)?;
        self.wait_caught_up(began).map(drop)
    }

    /// Ends the operator with SIGTERM.
    pub(crate) fn stop_operator(&mut self) -> Result<()> {
        let Some(operator) = self.operator.take() else { return Ok(()) };
        operator.terminate()?;
        operator.wait(PATIENCE).map(drop)?;
        Ok(())
    }

    /// Waits until the operator has caught up with what was there when it started, which was at `began`; how long after
    /// that it was.
    pub(crate) fn wait_caught_up(&self, began: Instant) -> Result<Duration> {
        let operator = self.operator()?;
        while began.elapsed() < PATIENCE {
            if operator.log_text().contains(CAUGHT_UP) {
                return Ok(began.elapsed());
            }
            operator.must_run()?;
            thread::sleep(Duration::from_millis(10));
        }
        let seen = operator.log_text().lines().last().unwrap_or("nothing in its log").to_owned();
        Err(Error::Waited { what: format!("the operator to log `{CAUGHT_UP}`"), limit: began.elapsed(), seen })
    }

    /// The operator's process.
    pub(crate) fn operator_pid(&self) -> Result<u32> {
        Ok(self.operator()?.pid())
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn kube(&self) -> &Kube {
        &self.kube
    }

    /// Starts these controllers of kube-controller-manager; they end with the value.
    pub(crate) fn controllers(&self, which: &[&str]) -> Result<Controllers> {
        Ok(Controllers::start(&Assets::locate()?, &self.kube, which)?)
    }

    /// A program that reaches the API server as the operator does.
    pub(crate) fn with_kubeconfig(&self, spec: Spec) -> Spec {
        spec.env("KUBECONFIG", &self.kubeconfig)
    }

    /// What the operator takes of the machine.
    pub(crate) fn usage(&self) -> Result<Usage> {
        Usage::of(self.operator()?.pid())
    }

    /// What the schedd takes of the machine, and the processes to which it leaves answers.
    pub(crate) fn schedd(&self) -> Result<Usage> {
        Usage::of(self.pool.schedd_pid()?)
    }

    /// The end of the operator's log.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.operator.as_ref().map(Owned::log_text).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// A new namespace.
    pub(crate) fn namespace(&mut self) -> Result<String> {
        self.namespaces += 1;
        let name = format!("bench-{}", self.namespaces);
        self.kube.kubectl_ok(&["create", "namespace", &name])?;
        Ok(name)
    }

    /// Who does the same by hand: with what the operator gives to condor_submit for one HTCJob.
    pub(crate) fn by_hand(&mut self) -> Result<Raw> {
        let namespace = self.namespace()?;
        self.tools.record()?;
        self.cluster.create(&namespace, [htcjob(MOULD, 1, "true")])?;
        self.cluster.seen.wait("the ids of the first HTCJob", &namespace, PATIENCE, |tally| tally.with_ids == 1)?;
        let mould = Mould::of(&self.tools.recorded()?, &self.data)?;
        let raw = Raw::new(self.pool.client("by-hand")?, mould, &self.scratch)?;
        self.clear(&namespace)?;
        Ok(raw)
    }

    /// Deletes all HTCJobs of a namespace, and waits until they are gone.
    pub(crate) fn clear(&self, namespace: &str) -> Result<()> {
        self.cluster.delete_all(namespace)?;
        let limit = Duration::from_mins(10);
        self.cluster.seen.wait("HTCJobs to go", namespace, limit, |tally| tally.objects == 0).map(drop)
    }

    /// How many of the operator's jobs the queue has.
    pub(crate) fn queued(&self) -> Result<usize> {
        let arguments =
            ["-allusers", "-constraint", &format!("User == \"{}\"", self.condor.identity()), "-af", "ClusterId"];
        Ok(self.pool.tool("condor_q", &arguments)?.lines().count())
    }

    /// Waits until the API server has had nothing to write for HTCJobs for 5 s, and no tool was called.
    pub(crate) fn wait_quiet(&self) -> Result<()> {
        self.wait_rest(true)
    }

    /// The same with live jobs, which the operator goes on looking at: only writes are waited for.
    pub(crate) fn wait_written(&self) -> Result<()> {
        self.wait_rest(false)
    }

    fn wait_rest(&self, of_tools: bool) -> Result<()> {
        let mut last = (self.cluster.requests()?, self.tools.calls());
        let mut since = Instant::now();
        wait_for("the operator to come to rest", Duration::from_mins(5), || {
            let now = (self.cluster.requests().map_err(|error| error.to_string())?, self.tools.calls());
            let (writes, calls) = (now.0.since(&last.0).writes(), now.1.since(&last.1).words());
            if writes > 0 || of_tools && calls != "none" {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() >= Duration::from_secs(5) { Ok(()) } else { Err(format!("{writes} writes, {calls}")) }
        })?;
        say("at rest");
        Ok(())
    }
}
