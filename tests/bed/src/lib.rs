//! A real API server, a real HTCondor pool and the operator between them, for one test or for several.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::format_collect,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    reason = "for tests: what goes wrong here fails the test that asked for it"
)]

pub mod api;
mod beside;
pub mod carrier;
pub mod census;
pub mod desk;
pub mod dice;
pub mod direct;
pub mod front;
pub mod gates;
pub mod http;
pub mod looks;
pub mod manifests;
pub mod mortal;
pub mod names;
pub mod namespace;
pub mod pages;
pub mod person;
pub mod power;
mod processor;
mod promise;
mod rights;
mod servers;
pub mod signals;
pub mod site;
pub mod terminal;
pub mod turns;
pub mod volume;
pub mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testbed::{
    Assets, Client, EXAMPLES_IMAGE, Kube, KubeOptions, Owned, Pool, PoolOptions, Port, Scratch, Spec, Version, wait_for,
};

pub use beside::beside;
pub use namespace::*;
pub use promise::Promise;
pub use servers::ControlPlane;
pub use turns::Weight;

/// Where `job.sh` has the payload run, in the scratch directory.
const PAYLOADS: &str = ".htc_work/run";

/// How long anything may take that normally takes seconds: machines are noisy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The operator's own account, which each operator of a bed is.
pub const ACCOUNT: &str = testbed::OPERATOR;

/// A constraint for all jobs of one `HTCJob`.
pub fn of(uid: &str) -> String {
    format!("HTCJobUID == \"{uid}\"")
}

/// The operator's program, with its fail points.
pub fn program() -> PathBuf {
    built("htc-operator")
}

/// A program of this workspace, as `cargo build --bins` has left it beside the tests.
pub fn built(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(Path::parent).expect("target/PROFILE/deps").join(name);
    assert!(program.exists(), "{} is not there: run cargo build --workspace --bins first", program.display());
    program
}

/// The top of the checkout.
pub fn checkout() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Times of the operator in tests: short, so that what waits is seen to end. `soon` is longer than usual: two of three
/// calls of condor_q are such questions, and many operators ask at once.
const SHORT: &[&str] = &[
    "--poll-interval=8s",
    "--poll-min-interval=2s",
    "--tool-timeout=20s",
    "--submit-timeout=10s",
    "--submit-timeout-max=20s",
    "--late-margin=5s",
    "--dead-margin=5s",
    "--staging-timeout=5s",
    "--retry-backoff=1s",
    "--retry-backoff-max=10s",
    "--fetch-every=2s",
    "--min-free-space=0",
    "--node-fault-retries=0",
    "--cleanup-interval=2s",
];

/// Where no submission fails, and a second attempt would be wrong: a machine that stands still for a while does not end one.
pub const LONG_SUBMISSIONS: &[&str] = &["--submit-timeout=60s", "--submit-timeout-max=60s", "--staging-timeout=60s"];

/// Where many tests, or one test again and again, wait for the next look at all jobs.
pub const OFTEN: &str = "--poll-interval=3s";

/// Where time or work is measured: the operator's default. With a longer pause what is easy costs less, and what fails as much.
pub const SOON: &str = "--poll-min-interval=1s";

/// The usual arguments whose place none of `own` takes.
pub fn usual_beside(own: &[&str]) -> impl Iterator<Item = &'static str> {
    let flag = |argument: &str| argument.split('=').next().unwrap().to_owned();
    SHORT.iter().copied().filter(move |usual| own.iter().all(|own| flag(own) != flag(usual)))
}

/// One set of servers.
pub struct Bed {
    pub kube: ControlPlane,
    reader: api::Reader,
    pub pool: Pool,
    /// HTCondor as the operator's own identity.
    pub condor: Client,
    pub assets: Assets,
    scratch: Scratch,
    /// The operator's data folder.
    pub data: PathBuf,
    kubeconfig: PathBuf,
    operator: Mutex<Option<Owned>>,
    arguments: Vec<String>,
    volume: Option<volume::Volume>,
    disk: Option<power::Disk>,
    runs: AtomicU32,
    environment: Mutex<Vec<(String, String)>>,
    /// Where the operator's fronts reach it.
    leader: Option<Port>,
    front: OnceLock<front::Front>,
}

impl Bed {
    /// Servers without the operator; `arguments` are added to its command line when it is started.
    pub fn new(version: Version, options: &PoolOptions, arguments: &[&str]) -> Self {
        Self::on(ControlPlane::get, version, options, arguments)
    }

    /// The same, with an API server that is different.
    pub fn with_kube(version: Version, kube: &KubeOptions, options: &PoolOptions, arguments: &[&str]) -> Self {
        Self::on(|assets| ControlPlane::different(assets, kube), version, options, arguments)
    }

    /// The same, with these controllers of kube-controller-manager beside its API server.
    pub fn with_controllers(version: Version, which: &'static [&'static str], arguments: &[&str]) -> Self {
        Self::on(|assets| ControlPlane::with_controllers(assets, which), version, &PoolOptions::default(), arguments)
    }

    fn on(
        kube: impl FnOnce(&Assets) -> ControlPlane + Send,
        version: Version,
        options: &PoolOptions,
        arguments: &[&str],
    ) -> Self {
        turns::take(Weight::Servers);
        let assets = Assets::locate().unwrap();
        // Both start at the same time: a test bed is ready in about 3 s.
        let (kube, pool) = thread::scope(|scope| {
            let kube = scope.spawn(|| kube(&assets));
            let pool = Pool::start(&assets, version, options).unwrap();
            (kube.join().unwrap(), pool)
        });
        let scratch = Scratch::new().unwrap();
        let data = scratch.dir("data").unwrap();
        let kubeconfig = scratch.path().join("kubeconfig");
        let condor = pool.client("operator").unwrap();
        let bed = Self {
            reader: api::Reader::new(kube.kubeconfig()),
            kube,
            pool,
            condor,
            assets,
            scratch,
            data,
            kubeconfig,
            operator: Mutex::new(None),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            volume: None,
            disk: None,
            runs: AtomicU32::new(0),
            environment: Mutex::default(),
            leader: None,
            front: OnceLock::new(),
        };
        bed.become_user(ACCOUNT);
        bed.grant_components();
        bed
    }

    /// Servers with the operator running.
    pub fn start(version: Version) -> Self {
        let bed = Self::with_jobs_api(version, &[LONG_SUBMISSIONS, &[OFTEN]].concat());
        bed.start_operator();
        bed
    }

    /// The servers that all tests of this program share, which do no harm to them: one set for each version.
    pub fn shared(version: Version) -> &'static Self {
        static TRIXIE: OnceLock<Bed> = OnceLock::new();
        static SID: OnceLock<Bed> = OnceLock::new();
        turns::take(Weight::Light);
        match version {
            Version::Trixie => TRIXIE.get_or_init(|| Self::start(version)),
            Version::Sid => SID.get_or_init(|| Self::start(version)),
        }
    }

    /// Starts the operator, unprivileged.
    pub fn start_operator(&self) {
        let own: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.run_operator(&own, None);
    }

    /// `own` arguments take the place of the usual ones; with `place`, the name of a fail point, it dies there.
    fn run_operator(&self, own: &[&str], place: Option<&str>) {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let log = self.scratch.path().join(format!("operator-{run}.log"));
        // Like a container that is started again in its pod.
        let spec = self.operator_spec("run", &log).arg("--identity=bed").args(usual_beside(own)).args(own);
        let mut spec = self.beside_stand_ins(spec, own);
        if let Some(place) = place {
            spec = spec.env("HTC_KILL_AT", place);
        }
        *self.operator.lock().unwrap() = Some(Owned::spawn(&spec).unwrap());
    }

    /// Another operator for the same cluster and schedd, with a ledger in `data`; `arguments` take the place of the usual
    /// ones.
    pub fn start_another(&self, identity: &str, data: &Path, arguments: &[&str]) -> Owned {
        let log = self.scratch.path().join(format!("operator-{identity}.log"));
        let identity = format!("--identity={identity}");
        let name = arguments.iter().find_map(|argument| argument.strip_prefix("--operator-name="));
        if let Some(name) = name {
            self.let_lead(name);
        }
        let spec = self.spec_in(data, "run", &log).args(usual_beside(arguments)).arg(identity).args(arguments);
        Owned::spawn(&self.beside_stand_ins(spec, arguments)).unwrap()
    }

    /// With these arguments something may stand in the place of tools, which writes into its own folder and then becomes the tool. The
    /// operator's fail points let it, and only it.
    fn beside_stand_ins(&self, spec: Spec, arguments: &[&str]) -> Spec {
        let folder = arguments.iter().find_map(|argument| argument.strip_prefix("--condor-bin="));
        folder
            .into_iter()
            .fold(spec, |spec, folder| spec.env("HTC_STAND_INS", folder).env("HTC_STAND_IN_FOR", self.condor.bin_dir()))
    }

    /// The operator's program with one command and the settings that all its commands have.
    pub fn operator_spec(&self, command: &str, log: &Path) -> Spec {
        self.spec_in(self.volume.as_ref().map_or(&*self.data, |volume| volume.at()), command, log)
    }

    fn spec_in(&self, data: &Path, command: &str, log: &Path) -> Spec {
        let program = self.scratch.share(&program()).unwrap();
        let spec = match &self.volume {
            None => Spec::new(program, log),
            Some(volume) => volume.spec(&program, log),
        };
        let spec = spec
            .args([command, "--log-level", "info,kube_runtime=warn,htc=debug"])
            .args(["--data-dir".as_ref(), data.as_os_str()])
            .arg("--image")
            .arg(format!("centos={0},{EXAMPLES_IMAGE}={0}", self.assets.image().display()))
            .arg("--allow-attribute=RunNumber,Dataset");
        self.as_operator(spec)
    }

    /// A program that finds the servers as the operator does.
    pub fn as_operator(&self, spec: Spec) -> Spec {
        let spec = spec
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HTC_SCHEDD", self.pool.schedd_name())
            .env("CONDOR_CONFIG", self.condor.config())
            .env("HOME", self.condor.home())
            // Of its own: the machine's may be closed to who runs the operator.
            .env("TMPDIR", self.scratch.dir("tmp").unwrap())
            .env("PATH", format!("{}:/usr/bin:/bin", self.condor.bin_dir().display()))
            .env("RUST_BACKTRACE", "1");
        let more = self.environment.lock().unwrap();
        more.iter().fold(spec, |spec, (name, value)| spec.env(name, value))
    }

    /// From its next start on the operator finds this variable, too.
    pub fn set_env(&self, name: &str, value: &str) {
        self.environment.lock().unwrap().push((name.to_owned(), value.to_owned()));
    }

    /// The run folder, for a test's own files.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// From its next start on the operator's data folder is a small volume of its own, mounted with these options.
    pub fn mount_volume(&mut self, options: &str) {
        let folder = self.volume.as_ref().map_or(&self.data, volume::Volume::at).clone();
        let volume = volume::Volume::mount(&folder, options, &self.scratch);
        self.data = volume.outside();
        self.volume = Some(volume);
    }

    /// The operator's small volume.
    pub fn volume(&self) -> &volume::Volume {
        self.volume.as_ref().expect("a volume is mounted")
    }

    /// What the operator of this run has logged so far.
    pub fn log(&self) -> String {
        self.operator.lock().unwrap().as_ref().map(Owned::log_text).unwrap_or_default()
    }

    /// The process id of the operator that runs.
    pub fn operator_pid(&self) -> u32 {
        self.operator.lock().unwrap().as_ref().expect("the operator runs").pid()
    }

    /// What the operator has logged in all its runs.
    pub fn logs(&self) -> String {
        let runs = 0..self.runs.load(Ordering::Relaxed);
        let read = |run| std::fs::read(self.scratch.path().join(format!("operator-{run}.log"))).unwrap_or_default();
        runs.map(|run| format!("--- run {run}\n{}", String::from_utf8_lossy(&read(run)))).collect()
    }

    /// Ends the operator with SIGKILL.
    pub fn kill_operator(&self) {
        if let Some(operator) = self.operator.lock().unwrap().take() {
            operator.kill9().unwrap();
            operator.wait(PATIENCE).unwrap();
        }
    }

    /// Ends the operator with SIGTERM, which it must handle by then; how long that took, without the time in which its threads had to
    /// wait for a processor.
    pub fn stop_operator(&self) -> Duration {
        let operator = self.operator.lock().unwrap().take().expect("the operator runs");
        wait_for("the operator to handle SIGTERM", PATIENCE, || {
            operator.wait_timeout(Duration::ZERO).unwrap().is_some() || signals::handles(operator.pid(), Signal::TERM)
        })
        .unwrap();
        let mut waits = processor::Waits::of(operator.pid());
        let began = Instant::now();
        operator.terminate().unwrap();
        let status = loop {
            waits.look();
            if let Some(status) = operator.wait_timeout(Duration::from_millis(20)).unwrap() {
                break status;
            }
            assert!(began.elapsed() < PATIENCE, "the operator has not ended:\n{}", operator.log_text());
        };
        let took = began.elapsed().saturating_sub(waits.total());
        assert!(status.success(), "the operator ended with {status}:\n{}", operator.log_text());
        took
    }

    /// Waits until the operator has ended by itself.
    pub fn wait_operator(&self) -> std::process::ExitStatus {
        self.operator.lock().unwrap().as_ref().expect("the operator runs").wait(PATIENCE).unwrap()
    }

    /// `htc-operator check`: whether it found all well, and what it said.
    pub fn check(&self) -> (bool, String) {
        self.says("check", &[])
    }

    /// `htc-operator orphans`: whether it did all, and what it said.
    pub fn orphans(&self, arguments: &[&str]) -> (bool, String) {
        self.says("orphans", arguments)
    }

    /// `htc-operator adopt`: whether it adopted all, and what it said.
    pub fn adopt(&self) -> (bool, String) {
        let (status, output) = self.adopt_until(None);
        (status.success(), output)
    }

    /// The same; with `place`, the name of a fail point, so that it dies there.
    pub fn adopt_until(&self, place: Option<&str>) -> (std::process::ExitStatus, String) {
        let log = self.scratch.path().join("adopt.log");
        let _ = std::fs::remove_file(&log);
        let own: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let spec = self.operator_spec("adopt", &log).arg("--identity=bed").args(usual_beside(&own)).args(&own);
        let mut spec = self.beside_stand_ins(spec, &own);
        if let Some(place) = place {
            spec = spec.env("HTC_KILL_AT", place);
        }
        let ended = Owned::spawn(&spec).unwrap();
        let status = ended.wait(PATIENCE).unwrap();
        (status, ended.log_text())
    }

    fn says(&self, command: &str, arguments: &[&str]) -> (bool, String) {
        let log = self.scratch.path().join(format!("{command}.log"));
        // The log is appended to: only what this one says is wanted.
        let _ = std::fs::remove_file(&log);
        let spec = self.operator_spec(command, &log).args(arguments);
        let ended = Owned::spawn(&self.beside_stand_ins(spec, arguments)).unwrap();
        let status = ended.wait(PATIENCE).unwrap();
        (status.success(), ended.log_text())
    }

    /// A namespace of its own for one test, in which the operator may do what its arguments are for.
    pub fn namespace(&self) -> Namespace<'_> {
        let here = self.closed_namespace();
        self.grant_folders(&here.name);
        here
    }

    /// The same where no Role lets the operator do anything.
    pub fn closed_namespace(&self) -> Namespace<'_> {
        static NAMESPACES: AtomicU32 = AtomicU32::new(0);
        let name = format!("test-{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
        let object = serde_json::json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.reader.create("/api/v1/namespaces", &object).unwrap();
        Namespace { bed: self, name }
    }

    /// Attributes of jobs in the queue, of everybody: one row a job, one column an attribute; as `condor_q -af` prints it.
    pub fn queue(&self, constraint: &str, attributes: &[&str]) -> Vec<Vec<String>> {
        let mut arguments = vec!["-allusers", "-constraint", constraint, "-af"];
        arguments.extend(attributes);
        table(&self.pool.tool("condor_q", &arguments).unwrap())
    }

    /// How long one question to the schedd takes here and now: some 20 ms on a machine with nothing else to do. What a limit in
    /// a test allows for the machine is said in these.
    pub fn question_time(&self) -> Duration {
        let began = Instant::now();
        self.queue("false", &["ClusterId"]);
        began.elapsed()
    }

    /// The same of jobs in history.
    pub fn history(&self, constraint: &str, attributes: &[&str]) -> Vec<Vec<String>> {
        let mut arguments = vec!["-constraint", constraint, "-af"];
        arguments.extend(attributes);
        table(&self.pool.tool("condor_history", &arguments).unwrap())
    }

    /// The same, once HTCondor's history has so many of them: an HTCJob ends before its jobs leave the queue.
    pub fn wait_history(&self, constraint: &str, attributes: &[&str], count: usize) -> Vec<Vec<String>> {
        wait_for(&format!("{count} jobs in history"), PATIENCE, || {
            let found = self.history(constraint, attributes);
            if found.len() == count { Ok(found) } else { Err(format!("{found:?}")) }
        })
        .unwrap()
    }

    /// The folders that the payloads of one object run in now.
    pub fn payload_folders(&self, uid: &str) -> Vec<PathBuf> {
        self.folders_of(uid).into_iter().filter(|folder| folder.ends_with(PAYLOADS)).collect()
    }

    /// Scratch directories of the running jobs of one object, and the payloads' folders in them, by the ad that lies in each.
    fn folders_of(&self, uid: &str) -> Vec<PathBuf> {
        let wanted = format!("HTCJobUID = \"{uid}\"");
        let is_its = |ad: &PathBuf| std::fs::read_to_string(ad).is_ok_and(|text| text.contains(&wanted));
        let ads = files_below(&self.pool.spool_dir().with_file_name("execute"), &|name| name == ".job.ad");
        ads.into_iter().filter(is_its).map(|ad| ad.parent().unwrap().to_owned()).collect()
    }

    /// Puts a file `go` into the folder of each payload of one object that runs now: a sign that tests give to their payloads.
    pub fn open_gate(&self, uid: &str) {
        // HTCondor says that a job runs before its payload has begun.
        wait_for("all payloads to begin", PATIENCE, || {
            let (payloads, jobs): (Vec<_>, Vec<_>) =
                self.folders_of(uid).into_iter().partition(|folder| folder.ends_with(PAYLOADS));
            jobs.iter().all(|job| payloads.contains(&job.join(PAYLOADS)))
        })
        .unwrap();
        for folder in self.payload_folders(uid) {
            // The job may end in this moment.
            let _ = std::fs::write(folder.join("go"), "");
        }
    }

    /// SIGKILL to the process that HTCondor has started for the only job of an object, once its payload has made `file`.
    pub fn kill_job(&self, uid: &str, file: &str) {
        let called = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let found = wait_for("the job's process", PATIENCE, || {
            let folder = self.payload_folders(uid).into_iter().find(|folder| folder.join(file).exists())?;
            let pids = testbed::processes::that_name(folder.ancestors().nth(2).unwrap());
            pids.into_iter().find(|pid| ["condor_exec.exe", "job.sh"].contains(&called(pid).trim()))
        });
        let pid = rustix::process::Pid::from_raw(found.unwrap().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    /// Folders in the schedd's spool folder that belong to one job, such as `1.0`.
    pub fn spooled(&self, id: &str) -> Vec<PathBuf> {
        let (cluster, proc) = id.split_once('.').unwrap();
        let prefix = format!("cluster{cluster}.proc{proc}.");
        files_below(&self.pool.spool_dir(), &|name| name.starts_with(&prefix))
    }

    /// Waits until the schedd's spool folder has nothing of these jobs.
    pub fn wait_spool_free(&self, ids: &[String]) {
        for id in ids {
            wait_for(&format!("the spool folder to have nothing of job {id}"), PATIENCE, || {
                let found = self.spooled(id);
                if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .unwrap();
        }
    }

    /// What a query of the ledger gives. The operator has the file for itself: a copy is asked, which may be torn.
    pub fn ledger(&self, query: &str) -> rusqlite::Result<Vec<Vec<String>>> {
        let copy = Scratch::new().unwrap();
        for end in ["", "-wal"] {
            let name = |folder: &Path| folder.join(format!("htcjobs.db{end}"));
            let _ = std::fs::copy(name(&self.data.join("sqlite")), name(copy.path()));
        }
        rows_of(&copy.path().join("htcjobs.db"), query)
    }

    /// Takes the ledger away from an operator that does not run.
    pub fn lose_ledger(&self) {
        let file = self.data.join("sqlite/htcjobs.db");
        for end in ["", "-wal", "-shm"] {
            // Whether the last two are there is SQLite's own business.
            let _ = std::fs::remove_file(format!("{}{end}", file.display()));
        }
        assert!(!file.exists());
    }

    /// From some moment on the API server takes an HTCJob whatever its spec is.
    pub fn take_any_spec(&self) {
        let loose = r#"[{"op": "remove", "path": "/spec/versions/0/selectableFields"}, {"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema",
            "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}]"#;
        self.kube.kubectl_ok(&["patch", "crd", "htcjobs.htc.cern.ch", "--type=json", "-p", loose]).unwrap();
    }

    /// Waits until a query of the ledger gives these rows.
    pub fn wait_ledger(&self, query: &str, rows: &[&[&str]]) {
        wait_for(&format!("{rows:?} from the ledger: {query}"), PATIENCE, || {
            let found = self.ledger(query).map_err(|error| error.to_string())?;
            if found == rows { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .unwrap();
    }
}

/// A kubeconfig for who shows this token.
pub fn kubeconfig_with(kube: &Kube, token: &str) -> String {
    let own = std::fs::read_to_string(kube.kubeconfig()).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&own).unwrap();
    config["users"][0]["user"] = serde_json::json!({ "token": token });
    config.to_string()
}

/// Files and folders below `folder` whose names are `wanted`.
pub fn files_below(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    // What is there now may be gone in the next moment.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| {
            let own = wanted(&entry.file_name().to_string_lossy()).then(|| entry.path());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            own.into_iter().chain(if is_folder { files_below(&entry.path(), wanted) } else { Vec::new() })
        })
        .collect()
}

fn rows_of(file: &Path, query: &str) -> rusqlite::Result<Vec<Vec<String>>> {
    use rusqlite::types::ValueRef;
    let connection = rusqlite::Connection::open(file)?;
    let mut statement = connection.prepare(query)?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let text = |column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Integer(number) => number.to_string(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                other => format!("{other:?}"),
            })
        };
        (0..columns).map(text).collect()
    })?;
    rows.collect()
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Before its servers serve another test.
        drop(self.operator.lock().unwrap_or_else(PoisonError::into_inner).take());
        if thread::panicking() {
            eprintln!("--- the operator's log\n{}", self.logs());
        }
    }
}

fn table(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}
