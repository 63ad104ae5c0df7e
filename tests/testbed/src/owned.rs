//! Processes that die with their owner, however it dies.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::account::{Account, setpriv};
use crate::error::{Doing, Error, Result};
use crate::tool::{tail, wait_timeout};

/// After SIGKILL, for the kernel.
const DYING: Duration = Duration::from_secs(20);

/// What to run and how. The environment begins empty but for a plain PATH.
#[derive(Debug, Clone)]
pub struct Spec {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    log: PathBuf,
    unprivileged: bool,
}

impl Spec {
    /// Runs `program` as the unprivileged account; its stdout and stderr are appended to `log`.
    pub fn new(program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            dir: None,
            log: log.into(),
            unprivileged: true,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working directory; without it, it is `/`.
    #[must_use]
    pub fn current_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Runs it as the caller, even when that is root.
    #[must_use]
    pub fn privileged(mut self) -> Self {
        self.unprivileged = false;
        self
    }

    fn command(&self) -> Result<Command> {
        let log = File::options().create(true).append(true).open(&self.log).doing("opening the log", &self.log)?;
        let errors = log.try_clone().doing("opening the log", &self.log)?;
        let mut command = Command::new(setpriv());
        if self.unprivileged {
            command.args(Account::unprivileged().setpriv());
        }
        // setpriv sets this after it changed user (which would clear it), and then becomes the program: same process id.
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program).args(&self.args);
        command.env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.dir.as_deref().unwrap_or(Path::new("/")));
        // A group of its own: Ctrl-C in the owner's terminal is for the owner, which then stops it in order.
        command.stdin(Stdio::piped()).stdout(log).stderr(errors).process_group(0);
        Ok(command)
    }
}

/// A running program that is killed when this value is dropped or its owner's process ends, SIGKILL included.
///
/// The kernel's parent-death signal does this. It is bound to the *thread* that started the program, and tests run in
/// threads of their own; so all are started from one thread that lives as long as this process.
#[derive(Debug)]
pub struct Owned {
    what: String,
    pid: Pid,
    child: Mutex<Child>,
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Owned {
    /// Starts the program.
    pub fn spawn(spec: &Spec) -> Result<Self> {
        let what = spec.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let failed = |source| Error::Tool {
            doing: "starting a server".to_owned(),
            command: spec.program.display().to_string(),
            outcome: format!("could not be started ({source}); tests/testbed/prerequisites.sh names what is missing"),
            output: String::new(),
        };
        let mut child = spawn_from_lasting_thread(spec.command()?).map_err(failed)?;
        let stdin = child.stdin.take();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed(io::Error::other("process id out of range")))?;
        Ok(Self { what, pid, child: Mutex::new(child), stdin, log: spec.log.clone() })
    }

    /// The program's own process id, as everyone outside sees it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// What the log holds so far.
    #[must_use]
    pub fn log_text(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// True until the program has ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.wait_timeout(Duration::ZERO), Ok(None))
    }

    /// SIGTERM.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// SIGSTOP: the program hangs until [`Owned::resume`].
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGKILL, and waits for the end.
    pub fn kill9(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait(DYING).map(drop)
    }

    /// Closes the program's standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Its exit status, or `None` when it still runs after `limit`. Other threads may signal it meanwhile.
    pub fn wait_timeout(&self, limit: Duration) -> Result<Option<ExitStatus>> {
        let try_wait = || self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        wait_timeout(limit, try_wait).map_err(|e| self.failed("waiting for a server", e.to_string()))
    }

    /// Its exit status; an error when it still runs after `limit`.
    pub fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        self.wait_timeout(limit)?
            .ok_or_else(|| self.failed("waiting for its end", format!("still runs after {limit:?}")))
    }

    /// An error with the end of its log, when it has ended.
    pub fn must_run(&self) -> Result<()> {
        match self.wait_timeout(Duration::ZERO)? {
            None => Ok(()),
            Some(status) => Err(self.failed("running a server", format!("ended ({status})"))),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // Until it is waited for, which only this value does, the process id cannot be given to another process.
        if self.is_running() {
            kill_process(self.pid, signal).map_err(|e| self.failed("sending a signal", e.to_string()))?;
        }
        Ok(())
    }

    fn failed(&self, doing: &str, outcome: String) -> Error {
        Error::Tool { doing: doing.to_owned(), command: self.what.clone(), outcome, output: tail(&self.log_text()) }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.kill9();
    }
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts `command` from the one thread that never ends.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Option<mpsc::Sender<Order>>> = OnceLock::new();
    let gone = || io::Error::other("the thread that starts programs is not there");
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        let serve = move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        };
        thread::Builder::new().name("spawner".to_owned()).spawn(serve).ok().map(|_| sender)
    });
    let (answer, child) = mpsc::channel();
    spawner.as_ref().ok_or_else(gone)?.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}
