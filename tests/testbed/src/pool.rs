//! An HTCondor pool of one machine: central manager, schedd and a startd with 512 pretended cores.

use std::fmt::{self, Write as _};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::account::Account;
use crate::assets::Assets;
use crate::client::Client;
use crate::error::{Doing, Error, Result};
use crate::owned::{Owned, Spec};
use crate::ports::Port;
use crate::processes::{children, descendants, parent};
use crate::scratch::Scratch;
use crate::tool::run_ok;
use crate::wait::wait_for;

/// About 2 s on a quiet machine.
const READY: Duration = Duration::from_secs(90);
/// For one tool: those of HTCondor have no time limit of their own.
const TOOL: Duration = Duration::from_mins(1);
/// From the end of stdin to the end of all daemons, jobs included.
const STOP: Duration = Duration::from_secs(20);

/// In the pool's mount namespace its accounts are the machine's.
const ACCOUNTS: &str = "mount --bind passwd /etc/passwd && mount --bind group /etc/group";

const CONFIG: &str = include_str!("pool.conf");

/// Where daemons write their addresses, as CONFIG says.
const ADDRESSES: [&str; 3] = ["master_address", "collector_address", "schedd_address"];

/// Process 1 of the pool. The end of its stdin, however it comes about, is the end of the pool: first an orderly one,
/// and after 8 s any.
const INIT: &str =
    "condor_master -f & master=$!; cat >/dev/null; kill -QUIT $master; (sleep 8; kill -KILL $master) & wait $master";

/// Which HTCondor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// Debian trixie's: 23.9, fixed.
    Trixie,
    /// Debian sid's: the latest, moving. Never expect a number.
    Sid,
}

impl Version {
    /// Both, the older first.
    pub const ALL: [Self; 2] = [Self::Trixie, Self::Sid];
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        })
    }
}

/// What a test may want different.
#[derive(Debug, Clone, Default)]
pub struct PoolOptions {
    /// Identities that may do anything to anyone's jobs (`QUEUE_SUPER_USERS`), such as `admin@test`. HTCondor 23.9 keeps
    /// that right in its record of the user, which comes into being with the user's first job: until then it is refused.
    pub superuser: Vec<String>,
    /// The schedd's name, if it is another one than usual.
    pub schedd: Option<String>,
    /// Lines at the end of the pool's configuration.
    pub extra_config: String,
    /// Where the daemons listen, instead of on loopback: an address of a private network namespace.
    pub address: Option<Ipv4Addr>,
    /// Accounts of the machine that jobs run under, each those of the user of that name: the daemons are root, as at a site. Without any, all
    /// is one unprivileged account's.
    pub accounts: Vec<&'static str>,
}

/// User id of the first of [`PoolOptions::accounts`].
pub(crate) const FIRST_ACCOUNT: u32 = 20001;

impl PoolOptions {
    /// In a private network namespace, at this address of it.
    pub(crate) fn at(address: Ipv4Addr) -> Self {
        Self { address: Some(address), ..Self::default() }
    }
}

/// A running pool; ends with this value. Any number may run side by side.
#[derive(Debug)]
pub struct Pool {
    // Fields drop in this order: the daemons before their folder.
    daemons: Mutex<Option<Owned>>,
    version: Version,
    release: PathBuf,
    home: PathBuf,
    address: Ipv4Addr,
    /// Whether the daemons are root.
    is_root: bool,
    _port: Port,
    /// Where it listens: at its own port, unless addresses were exchanged.
    port: AtomicU16,
    /// Whether slots take jobs.
    starts: AtomicBool,
    schedd: String,
    scratch: Scratch,
}

impl Pool {
    /// Starts a pool with an empty queue; returns when a slot and the schedd can be seen.
    pub fn start(assets: &Assets, version: Version, options: &PoolOptions) -> Result<Self> {
        assets.must_be_reachable()?;
        let is_root = !options.accounts.is_empty();
        let account = Account::unprivileged();
        let scratch = Scratch::new()?;
        let home = scratch.dir("pool")?;
        for (name, mode) in [
            ("log", 0o755),
            ("spool", 0o755),
            ("execute", 0o755),
            ("run", 0o755),
            ("lock", 0o755),
            ("cred", 0o700),
            ("passwords.d", 0o700),
            ("tokens.d", 0o700),
            ("home", 0o755),
        ] {
            account.make_dir(&home.join(name), mode)?;
        }
        let release = assets.condor(version).join("usr");
        let port = Port::reserve()?;
        let mut config = String::new();
        let job_bin = assets.job_bin();
        let _ = writeln!(config, "RELEASE_DIR = {}\nLOCAL_DIR = {}", release.display(), home.display());
        let schedd = options.schedd.clone().unwrap_or_else(|| SCHEDD.to_owned());
        let _ = writeln!(config, "SCHEDD_NAME = {schedd}\n{CONFIG}");
        let _ = writeln!(config, "SINGULARITY = {}", job_bin.join("apptainer").display());
        // A registry of the test bed has no TLS, and Apptainer makes no exception for loopback.
        let environment = format!("PATH={}:/usr/bin:/bin APPTAINER_NOHTTPS=true", job_bin.display());
        let _ = writeln!(config, "STARTER_JOB_ENVIRONMENT = \"{environment}\"");
        if !options.superuser.is_empty() {
            let _ = writeln!(config, "QUEUE_SUPER_USERS = $(QUEUE_SUPER_USERS), {}", options.superuser.join(", "));
        }
        let address = options.address.unwrap_or(Ipv4Addr::LOCALHOST);
        let _ = writeln!(config, "NETWORK_INTERFACE = {address}\nCONDOR_HOST = {address}");
        if is_root {
            // No cgroups: they would outlive the pool's namespaces.
            let _ = writeln!(
                config,
                "CONDOR_IDS = {}.{}\nTRUST_UID_DOMAIN = true\nBASE_CGROUP =",
                account.uid, account.gid
            );
            write_accounts(&home, &options.accounts)?;
        }
        config.push_str(&options.extra_config);
        config.push('\n');
        account.write(&home.join("condor_config"), config, 0o644)?;
        // HTCondor takes secrets of its own account only.
        let account = if is_root { Account::caller() } else { account };
        for secrets in ["cred", "passwords.d", "tokens.d"] {
            account.own(&home.join(secrets))?;
        }
        account.write(&home.join("passwords.d/POOL"), random_bytes()?, 0o600)?;
        let (at, starts) = (AtomicU16::new(port.number), AtomicBool::new(true));
        let daemons = Mutex::new(None);
        let pool =
            Self { daemons, version, release, home, address, is_root, _port: port, port: at, starts, schedd, scratch };
        pool.write_local()?;
        pool.start_again()?;
        Ok(pool)
    }

    /// Starts the daemons after [`Pool::stop`]: same address, same queue.
    pub fn start_again(&self) -> Result<()> {
        let account = self.account();
        let init = if self.is_root { format!("{ACCOUNTS} && {INIT}") } else { INIT.to_owned() };
        let script = Spec::new("unshare", self.scratch.path().join("pool.log"))
            .privileged()
            .args(if account.drops || self.is_root { None } else { Some("--map-current-user") })
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "setpriv"])
            .args(account.setpriv())
            .args(["--pdeathsig", "KILL", "sh", "-c", &init])
            .current_dir(&self.home)
            .env("PATH", self.path())
            .env("HOME", self.home.join("home"))
            .env("CONDOR_CONFIG", self.config());
        // Addresses of a former run would be taken for this one's.
        for file in ADDRESSES {
            let _ = fs::remove_file(self.home.join("run").join(file));
        }
        *self.daemons() = Some(Owned::spawn(&script)?);
        wait_for(&format!("the HTCondor pool ({})", self.version), READY, || self.look())
            .map_err(|error| self.explained(&error))
    }

    /// The account of the daemons, and of the tools beside them.
    fn account(&self) -> Account {
        if self.is_root { Account::caller() } else { Account::unprivileged() }
    }

    /// `Err` says what cannot be seen yet.
    fn look(&self) -> std::result::Result<(), String> {
        // Before a daemon has its address, tools can only fail, and most of a start is over by then.
        if let Some(file) = ADDRESSES.into_iter().find(|file| !self.home.join("run").join(file).exists()) {
            return Err(format!("no {file}"));
        }
        let slots: &[&str] = &["-af", "Name"];
        for (what, args) in [("no slot", slots), ("no schedd", &["-schedd", "-af", "Name"])] {
            let seen = self.tool("condor_status", args).map_err(|e| e.to_string())?;
            if seen.trim().is_empty() {
                return Err(what.to_owned());
            }
        }
        // The schedd's ad may be older than the schedd.
        self.tool("condor_q", &["-allusers", "-totals"]).map(drop).map_err(|e| e.to_string())
    }

    fn explained(&self, error: &Error) -> Error {
        let log = fs::read_to_string(self.home.join("log/MasterLog")).unwrap_or_default();
        let own = self.daemons().as_ref().map(Owned::log_text).unwrap_or_default();
        Error::Tool {
            doing: "starting an HTCondor pool".to_owned(),
            command: "condor_master".to_owned(),
            outcome: error.to_string(),
            output: crate::tool::tail(&(own + &log)),
        }
    }

    /// Stops the daemons in order (jobs that run are stopped and will run again), or after 20 s by force.
    pub fn stop(&self) -> Result<()> {
        let Some(mut daemons) = self.daemons().take() else {
            return Ok(());
        };
        daemons.close_stdin();
        let stopped = daemons.wait_timeout(STOP)?.is_some();
        if stopped { Ok(()) } else { kill_all(&daemons) }
    }

    /// Kills everything at once, like a power failure.
    pub fn kill(&self) -> Result<()> {
        self.daemons().take().map_or(Ok(()), |daemons| kill_all(&daemons))
    }

    /// Loses the queue, as a schedd with a new disk: stops the pool, deletes the queue, starts it again. Ids begin at 1.0
    /// again, `JobQueueBirthdate` is new, and the history stays.
    pub fn reset_queue(&self) -> Result<()> {
        self.stop()?;
        let spool = self.spool_dir();
        for entry in fs::read_dir(&spool).doing("listing", &spool)? {
            let path = entry.doing("listing", &spool)?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("job_queue.log")) {
                fs::remove_file(&path).doing("removing", &path)?;
            }
        }
        self.start_again()
    }

    /// The schedd's process id, as this process sees it.
    pub fn schedd_pid(&self) -> Result<u32> {
        // Its forks for spooling and for queries bear its name; the schedd is the one that the master has started.
        self.schedds().0.into_iter().next().ok_or_else(|| Error::Machine {
            problem: "the pool has no schedd at the moment".to_owned(),
            remedy: "wait until condor_master has started one (restart_schedd_kill9 does)".to_owned(),
        })
    }

    /// The schedd's own children of the same name: they take in files and answer queries.
    #[must_use]
    pub fn schedd_children(&self) -> Vec<u32> {
        self.schedds().1
    }

    /// Processes called condor_schedd: the master's children, and theirs.
    fn schedds(&self) -> (Vec<u32>, Vec<u32>) {
        let daemons = self.daemons();
        let owner = daemons.as_ref().map_or(0, Owned::pid);
        let masters = descendants(owner, "condor_master");
        let of_a_master = |pid: &u32| parent(*pid).is_some_and(|parent| masters.contains(&parent));
        descendants(owner, "condor_schedd").into_iter().partition(of_a_master)
    }

    /// SIGKILL to the schedd; gives its process id. The master starts another one after 1 to 5 s.
    pub fn kill_schedd(&self) -> Result<u32> {
        self.signal_schedd(Signal::KILL)
    }

    /// SIGKILL to the schedd, and waits for the next one to answer.
    pub fn restart_schedd_kill9(&self) -> Result<()> {
        let old = self.kill_schedd()?;
        wait_for("the next schedd", READY, || {
            let new = self.schedd_pid().map_err(|e| e.to_string())?;
            if new == old { Err("the old one is still there".to_owned()) } else { self.look() }
        })
    }

    /// SIGSTOP: the schedd accepts connections and answers nothing.
    pub fn pause_schedd(&self) -> Result<()> {
        self.signal_schedd(Signal::STOP).map(drop)
    }

    /// SIGCONT.
    pub fn resume_schedd(&self) -> Result<()> {
        self.signal_schedd(Signal::CONT).map(drop)
    }

    fn signal_schedd(&self, signal: Signal) -> Result<u32> {
        let number = self.schedd_pid()?;
        if let Some(pid) = i32::try_from(number).ok().and_then(Pid::from_raw) {
            kill_process(pid, signal).map_err(|e| Error::Machine {
                problem: format!("sending a signal to the schedd {number}: {e}"),
                remedy: "look whether it still runs".to_owned(),
            })?;
        }
        Ok(number)
    }

    /// Lets slots take jobs, or not: with false, jobs stay idle and those that run go on. Returns when the slot says so.
    pub fn set_start(&self, start: bool) -> Result<()> {
        self.starts.store(start, Ordering::Relaxed);
        self.write_local()?;
        self.tool("condor_reconfig", &["-startd"])?;
        wait_for("the slot's new START", READY, || {
            // Without -startd, which asks for the daemon's ad and not for slots.
            let args = ["-constraint", "PartitionableSlot", "-af", "Start"];
            let seen = self.tool("condor_status", &args).map_err(|e| e.to_string())?;
            if seen.trim() == start.to_string() { Ok(()) } else { Err(seen) }
        })
    }

    /// What changes in the pool's life.
    fn write_local(&self) -> Result<()> {
        let (start, port) = (self.starts.load(Ordering::Relaxed), self.port.load(Ordering::Relaxed));
        let lines =
            format!("TESTBED_START = {start}\nCOLLECTOR_HOST = $(CONDOR_HOST):{port}\nSHARED_PORT_PORT = {port}\n");
        Account::unprivileged().write(&self.home.join("local.conf"), lines, 0o644)
    }

    /// From now on each has the other's address, and the key that signs tokens for it: who asks the one is answered by the other.
    pub fn exchange_addresses(&self, other: &Self) -> Result<()> {
        self.stop()?;
        other.stop()?;
        let port = self.port.load(Ordering::Relaxed);
        self.port.store(other.port.swap(port, Ordering::Relaxed), Ordering::Relaxed);
        let [ours, theirs] = [self, other].map(|pool| pool.home.join("passwords.d/POOL"));
        let aside = ours.with_extension("aside");
        for (from, to) in [(&ours, &aside), (&theirs, &ours), (&aside, &theirs)] {
            fs::rename(from, to).doing("renaming", from)?;
        }
        for pool in [self, other] {
            pool.write_local()?;
            pool.start_again()?;
        }
        Ok(())
    }

    /// A remote client with a token of its own, in a folder of its own. `identity` is a name, as in `alice`, or a full
    /// identity, as in `alice@test`. The pool runs all jobs under one account, but owners and rights follow the identity.
    pub fn client(&self, identity: &str) -> Result<Client> {
        Client::new(self, &full(identity), Account::unprivileged())
    }

    /// Like [`Pool::client`], but for the user who runs this process, be it root: HTCondor accepts a token only from
    /// its owner.
    pub fn client_for_caller(&self, identity: &str) -> Result<Client> {
        Client::new(self, &full(identity), Account::caller())
    }

    /// Runs one of HTCondor's tools beside the daemons, with all rights; gives its standard output.
    pub fn tool(&self, name: &str, args: &[&str]) -> Result<String> {
        run_ok("asking the test bed's pool", self.command(name).args(args), "", TOOL)
    }

    /// One of HTCondor's tools beside the daemons, with all rights.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let mut command = self.account().command(&self.tool_path(name));
        command
            .env_clear()
            .env("PATH", self.path())
            .env("HOME", self.home.join("home"))
            .env("CONDOR_CONFIG", self.config())
            .current_dir(&self.home);
        command
    }

    /// Administrators' tools lie in sbin.
    fn tool_path(&self, name: &str) -> PathBuf {
        let tool = self.bin_dir().join(name);
        if tool.exists() { tool } else { self.release.join("sbin").join(name) }
    }

    fn path(&self) -> String {
        format!("{0}/bin:{0}/sbin:/usr/bin:/bin", self.release.display())
    }

    /// The schedd's name, for `-name` and `SCHEDD_HOST`.
    #[must_use]
    pub fn schedd_name(&self) -> &str {
        &self.schedd
    }

    /// Which HTCondor it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The collector's address, the same for the pool's life unless it is exchanged.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", self.address, self.port.load(Ordering::Relaxed))
    }

    /// The folder of the tools.
    #[must_use]
    pub fn bin_dir(&self) -> PathBuf {
        self.release.join("bin")
    }

    /// HTCondor's release folder.
    #[must_use]
    pub fn release_dir(&self) -> &Path {
        &self.release
    }

    /// The daemons' configuration file. Clients have their own.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.home.join("condor_config")
    }

    /// The schedd's spool folder.
    #[must_use]
    pub fn spool_dir(&self) -> PathBuf {
        self.home.join("spool")
    }

    /// The daemons' logs, and the event log `EventLog`.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.home.join("log")
    }

    /// The run folder, for a test's own files.
    #[must_use]
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    fn daemons(&self) -> MutexGuard<'_, Option<Owned>> {
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

const DOMAIN: &str = "test";
const SCHEDD: &str = "schedd@test";

fn full(identity: &str) -> String {
    if identity.contains('@') { identity.to_owned() } else { format!("{identity}@{DOMAIN}") }
}

/// Kills `unshare`, with it process 1 of the pool, and so the kernel kills the rest; waits until all are gone.
fn kill_all(daemons: &Owned) -> Result<()> {
    let inner = children(daemons.pid());
    daemons.kill9()?;
    wait_for("the end of the pool's processes", STOP, || {
        inner
            .iter()
            .find(|pid| Path::new(&format!("/proc/{pid}")).exists())
            .map_or(Ok(()), |pid| Err(format!("{pid} is still there")))
    })
}

/// The files that [`ACCOUNTS`] puts in place, and a home for each account.
fn write_accounts(home: &Path, accounts: &[&str]) -> Result<()> {
    let (mut passwd, mut group) = (String::from("root:x:0:0::/root:/bin/sh\n"), String::from("root:x:0:\n"));
    let mut add = |name: &str, id: u32, home: &Path| {
        let _ = writeln!(passwd, "{name}:x:{id}:{id}::{}:/bin/sh", home.display());
        let _ = writeln!(group, "{name}:x:{id}:");
    };
    add("nobody", Account::unprivileged().uid, home);
    for (name, id) in accounts.iter().zip(FIRST_ACCOUNT..) {
        let folder = home.join(format!("home-{name}"));
        Account { uid: id, gid: id, drops: true }.make_dir(&folder, 0o755)?;
        add(name, id, &folder);
    }
    Account::caller().write(&home.join("passwd"), passwd, 0o644)?;
    Account::caller().write(&home.join("group"), group, 0o644)
}

/// A signing key for tokens.
fn random_bytes() -> Result<[u8; 64]> {
    use std::io::Read;
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; 64];
    fs::File::open(source).and_then(|mut file| file.read_exact(&mut bytes)).doing("reading", source)?;
    Ok(bytes)
}
