//! Runs one tool: cleared environment, time limit, output cap, and the whole process group killed when it is over.

use std::io;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, mpsc};

use super::confined::{Confine, Confining, Touches, With};
pub use super::cost::Cost;
use super::submitter_lock::HeldLock;
use crate::api::text::{WORDS, harmless, harmless_lines};
use crate::failpoint::{self, Point};
use crate::metrics::Metrics;

#[cfg(test)]
mod tests;

/// How HTCondor's tools are started.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Their whole environment: `PATH`, `CONDOR_CONFIG` and what the operator's own environment has of the variables
    /// that they need.
    pub environment: Vec<(String, String)>,
    /// Where the credentials are, for those who have some.
    credentials: Arc<RwLock<Credentials>>,
    /// They are the operator's own tools, which find the credentials of `CONDOR_CONFIG`.
    own: bool,
    confine: Arc<Confine>,
    /// Path of coreutils' `timeout`.
    timeout: String,
    /// Path of util-linux's `setpriv`.
    setpriv: String,
    /// Time limit of one call, unless the call has its own.
    pub limit: Duration,
    /// Time limit of one question to history, which reads all of it.
    pub history_limit: Duration,
    /// Time limit of one transfer of output.
    pub transfer_limit: Duration,
    metrics: Metrics,
    /// Bytes that all tools, of all pools, may still say.
    kept: Arc<Semaphore>,
}

/// Variables that take the place of others, and the folder with what they name.
#[derive(Debug, Default)]
struct Credentials {
    variables: Vec<(&'static str, String)>,
    folder: Option<PathBuf>,
}

/// Variables that the tools inherit from the operator.
const INHERITED: &[&str] = &["CONDOR_CONFIG", "KRB5CCNAME", "KRB5_CONFIG", "TMPDIR", "TZ"];
/// Variables that they have besides. The ad of a job decides what `condor_transfer_data` does: it would have plugins fetch what the
/// ad names by URL, `file:///…` among them, and sign such URLs with keys from files that the ad names.
/// There is nothing in their home.
const SET: &[(&str, &str)] =
    &[("HOME", "/nonexistent"), ("_CONDOR_ENABLE_URL_TRANSFERS", "false"), ("_CONDOR_SIGN_S3_URLS", "false")];
/// What tools have that must find no credentials of the operator's own, until they have others.
const NONE: &[(&str, &str)] = &[
    ("KRB5CCNAME", "FILE:/nonexistent/ccache"),
    ("_CONDOR_SEC_TOKEN_DIRECTORY", "/nonexistent"),
    ("_CONDOR_SEC_TOKEN_SYSTEM_DIRECTORY", "/nonexistent"),
    ("_CONDOR_SEC_CLIENT_AUTHENTICATION_METHODS", "IDTOKENS"),
];
/// Most bytes kept of what a tool says on standard error.
const STDERR_CAP: usize = 64 * 1024;
/// Most bytes that a tool says of what it has done, or the lines of a thousand jobs.
pub const DONE: usize = 1024 * 1024;
/// Most bytes that all running tools may say and that are kept. It is far below the memory limit of the operator's pod
/// (`deploy/base/deployment.yaml`). A call that exceeds it waits.
const KEPT: usize = 256 * 1024 * 1024;
/// Bytes for which one permit stands: semaphores count in 32 bits.
const UNIT: usize = 1024;
/// How much later than the limit of `timeout` the operator itself gives up.
const GRACE: Duration = Duration::from_secs(2);
/// How long a killed process group may take to be gone.
const BURIAL: Duration = Duration::from_secs(5);

/// One call of a tool.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The tool, e.g. `condor_q`.
    pub tool: &'static str,
    /// Its arguments.
    pub arguments: Vec<&'a str>,
    /// What it reads from standard input.
    pub input: Vec<u8>,
    /// When it is killed.
    pub limit: Duration,
    /// Most bytes of its standard output; it is killed if it says more.
    pub most_bytes: usize,
    /// It goes on when the operator dies, until its limit. All others die with it: two transfers of one job's output spoil
    /// each other.
    pub outlives_us: bool,
    /// What it, and all that it starts, hold for as long as they live.
    pub holds: Option<&'a HeldLock>,
    /// What it reads and writes.
    pub touches: Touches<'a>,
}

/// What takes in a tool's standard output as it comes, until it has had enough.
pub enum Listener<'a> {
    /// Is told of each part.
    Each(&'a mut (dyn FnMut(&[u8]) -> ControlFlow<()> + Send)),
    /// Takes each part away; the tool waits until it has.
    Channel(&'a mpsc::Sender<Vec<u8>>),
}

/// What a tool said.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit status; none if it was killed by a signal.
    pub status: Option<i32>,
    /// Standard output, whole.
    pub stdout: Vec<u8>,
    /// The first part of standard error, trimmed.
    pub stderr: String,
    /// Its whole process group was seen to be gone.
    pub dead: bool,
    /// What the call cost; of a tool below `timeout` nothing is known but how long it took.
    pub cost: Cost,
}

/// Why a tool gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ToolError {
    /// It is not there, or cannot be started.
    #[error("cannot start {tool}: {message}{}", if *.missing { "; check that HTCondor's tools are in the operator's PATH" } else { "" })]
    NotStarted {
        /// The tool.
        tool: &'static str,
        /// The system's words.
        message: String,
        /// There is no such program.
        missing: bool,
    },
    /// It was killed after its time limit.
    #[error("{tool} did not end within {} s and was killed", .limit.as_secs())]
    TimedOut {
        /// The tool.
        tool: &'static str,
        /// Its limit.
        limit: Duration,
        /// Its whole process group was seen to be gone.
        dead: bool,
    },
    /// It was ended by a signal that is not the one of its time limit.
    #[error("{tool} was ended by {}", signal_in_words(*.signal))]
    Killed {
        /// The tool.
        tool: &'static str,
        /// The signal's number.
        signal: i32,
        /// Its whole process group was seen to be gone.
        dead: bool,
    },
    /// It said more than can be an answer.
    #[error("{tool} printed more than the {most} bytes that an answer can have and was killed")]
    TooMuch {
        /// The tool.
        tool: &'static str,
        /// What it may say.
        most: usize,
        /// Its whole process group was seen to be gone.
        dead: bool,
    },
    /// Reading from it failed.
    #[error("cannot read the answer of {tool}: {message}")]
    Unreadable {
        /// The tool.
        tool: &'static str,
        /// The system's words.
        message: String,
        /// Its whole process group was seen to be gone.
        dead: bool,
    },
}

impl ToolError {
    /// Whether no process of the call is left.
    #[must_use]
    pub const fn dead(&self) -> bool {
        match self {
            Self::NotStarted { .. } => true,
            Self::TimedOut { dead, .. }
            | Self::Killed { dead, .. }
            | Self::TooMuch { dead, .. }
            | Self::Unreadable { dead, .. } => *dead,
        }
    }
}

/// A signal and what is likely to be behind it.
fn signal_in_words(signal: i32) -> String {
    let named = Signal::from_named_raw(signal);
    let cause = match named {
        Some(Signal::XFSZ) => " (SIGXFSZ): it wrote a file larger than it may",
        Some(Signal::ABORT) => " (SIGABRT): it may have needed more memory than it may have",
        Some(Signal::SEGV) => " (SIGSEGV): it may have needed more memory than it may have",
        _ => "",
    };
    format!("signal {signal}{cause}")
}

/// Kills the process group of a call that is dropped half way.
struct Group(Option<Pid>);

impl Group {
    fn kill(&self) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// Whether every process of the group is gone, after a short wait.
    async fn is_gone(&self) -> bool {
        let Some(pid) = self.0 else { return true };
        let deadline = tokio::time::Instant::now() + BURIAL;
        while test_kill_process_group(pid).is_ok() {
            if tokio::time::Instant::now() > deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Tools {
    /// Tools found in `bin` (if given) and then in the operator's own `PATH`; their calls are measured.
    #[must_use]
    pub fn new(
        bin: Option<&PathBuf>,
        confining: Confining<'_>,
        limit: Duration,
        history_limit: Duration,
        transfer_limit: Duration,
        metrics: Metrics,
    ) -> Self {
        let own = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned());
        let path = bin.map_or(own.clone(), |bin| format!("{}:{own}", bin.display()));
        let mut environment = vec![("PATH".to_owned(), path.clone()), ("LC_ALL".to_owned(), "C.UTF-8".to_owned())];
        environment.extend(SET.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        environment.extend(
            INHERITED.iter().filter_map(|name| std::env::var(name).ok().map(|value| ((*name).to_owned(), value))),
        );
        let (timeout, setpriv) = (locate(&path, "timeout"), locate(&path, "setpriv"));
        let tools = ["condor_submit", "kinit"].map(|tool| PathBuf::from(locate(&path, tool)));
        let confine = Arc::new(Confine::new(confining, &tools, &environment));
        let credentials = Arc::default();
        let own = true;
        let kept = Arc::new(Semaphore::new(KEPT / UNIT));
        Self {
            environment,
            credentials,
            own,
            confine,
            timeout,
            setpriv,
            limit,
            history_limit,
            transfer_limit,
            metrics,
            kept,
        }
    }

    /// The same tools for somebody with other credentials, or none so far.
    #[must_use]
    pub fn for_another(&self) -> Self {
        Self { credentials: Arc::default(), own: false, ..self.clone() }
    }

    /// The same tools for another pool: they find its collector, and no credentials so far.
    #[must_use]
    pub fn for_pool(&self, collector: &str, metrics: Metrics) -> Self {
        let mut tools = Self { metrics, ..self.for_another() };
        let set: Vec<(&str, &str)> =
            [("_CONDOR_COLLECTOR_HOST", collector)].into_iter().chain(NONE.iter().copied()).collect();
        tools.environment.retain(|(name, _)| set.iter().all(|(other, _)| other != name));
        tools.environment.extend(set.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        tools
    }

    /// From now on the tools, and all clones of this, find their credentials by these variables, in this folder.
    pub fn set_credentials(&self, variables: Vec<(&'static str, String)>, folder: PathBuf) {
        *self.credentials.write().unwrap_or_else(PoisonError::into_inner) =
            Credentials { variables, folder: Some(folder) };
    }

    /// Whether the kernel confines them to the files that they need.
    #[must_use]
    pub fn confined(&self) -> bool {
        self.confine.by_landlock()
    }

    /// What they should be able to touch and may not, because it has a folder in it that they must not see.
    #[must_use]
    pub fn left_out(&self) -> &[PathBuf] {
        self.confine.left_out()
    }

    /// Runs `tool` with `arguments`, nothing to read, and the usual limit.
    pub async fn run(&self, tool: &'static str, arguments: &[&str]) -> Result<Output, ToolError> {
        self.call(Call {
            tool,
            arguments: arguments.to_vec(),
            input: Vec::new(),
            limit: self.limit,
            most_bytes: DONE,
            outlives_us: false,
            holds: None,
            touches: Touches::default(),
        })
        .await
    }

    /// Asks a question, and finds out what it cost. There is no `timeout` above the tool: it changes nothing, and dies with us.
    /// An answer of more than `most_bytes` is none.
    pub async fn ask(
        &self,
        tool: &'static str,
        arguments: &[&str],
        limit: Duration,
        most_bytes: usize,
    ) -> Result<Output, ToolError> {
        let (arguments, touches) = (arguments.to_vec(), Touches::default());
        let call =
            Call { tool, arguments, input: Vec::new(), limit, most_bytes, outlives_us: false, holds: None, touches };
        self.measure(call, false, None).await
    }

    /// The same, but what the tool says is passed on as it comes: nothing of it is kept, and it may be as much as the listener
    /// likes.
    pub async fn ask_at_length(
        &self,
        tool: &'static str,
        arguments: &[&str],
        limit: Duration,
        listener: Listener<'_>,
    ) -> Result<Output, ToolError> {
        let (arguments, touches) = (arguments.to_vec(), Touches::default());
        let (input, most_bytes) = (Vec::new(), 0);
        let call = Call { tool, arguments, input, limit, most_bytes, outlives_us: false, holds: None, touches };
        self.measure(call, false, Some(listener)).await
    }

    /// Runs one call to its end, and measures it.
    pub async fn call(&self, call: Call<'_>) -> Result<Output, ToolError> {
        self.measure(call, true, None).await
    }

    async fn measure(
        &self,
        call: Call<'_>,
        below_timeout: bool,
        listener: Option<Listener<'_>>,
    ) -> Result<Output, ToolError> {
        // A call without kept output takes no permit. The semaphore is never closed.
        let _kept = self.kept.acquire_many(units(call.most_bytes)).await;
        let (tool, began) = (call.tool, Instant::now());
        let result = Box::pin(self.run_to_end(call, below_timeout, listener)).await;
        let outcome = match &result {
            Ok(Output { status: Some(0), .. }) => "ok",
            Ok(_) => "failed",
            Err(_) => "error",
        };
        let duration = began.elapsed();
        self.metrics.tool(tool, outcome, duration);
        tracing::debug!(tool, outcome, milliseconds = duration.as_millis(), "a tool has ended");
        result
    }

    /// What has an effect stands below coreutils' `timeout`, so that it ends in time even when the operator has died.
    async fn run_to_end(
        &self,
        call: Call<'_>,
        below_timeout: bool,
        listener: Option<Listener<'_>>,
    ) -> Result<Output, ToolError> {
        let Call { tool, arguments, input, limit, most_bytes, outlives_us, holds, touches } = call;
        // Neither `timeout` nor its child is told when its parent dies, unless it asks for it.
        let dies_with_parent: &[&str] = if outlives_us { &[] } else { &[&self.setpriv, "--pdeathsig", "KILL"] };
        let seconds = format!("{:.3}", limit.as_secs_f64());
        let limited = [&self.timeout, "-s", "KILL", &seconds];
        let (credentials, confined) = {
            let credentials = self.credentials.read().unwrap_or_else(PoisonError::into_inner);
            let cache = credentials.variables.iter().find(|(name, _)| *name == "KRB5CCNAME");
            let (folder, cache) = (credentials.folder.as_deref(), cache.map(|(_, value)| value.as_str()));
            let with = With { own: self.own, folder, cache, dies_with_parent: !outlives_us };
            (credentials.variables.clone(), self.confine.words(touches, with))
        };
        let confined: Vec<&str> = confined.iter().map(String::as_str).collect();
        // The step that confines it asks for it itself.
        let tool_dies: &[&str] = if confined.is_empty() { dies_with_parent } else { &[] };
        let above: &[&[&str]] = if below_timeout { &[dies_with_parent, &limited, tool_dies] } else { &[tool_dies] };
        let words: Vec<&str> = [&above.concat()[..], &confined[..], &[tool]].concat();
        let patience = if below_timeout { limit + GRACE } else { limit };
        failpoint::before_tool(tool);
        let not_started = |error: io::Error| {
            let missing = error.kind() == io::ErrorKind::NotFound;
            ToolError::NotStarted { tool, message: error.to_string(), missing }
        };
        let inherited = holds.map(HeldLock::inheritable).transpose().map_err(not_started)?;
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(&arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(credentials)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(not_started)?;
        drop(inherited);
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let mut group = Group(pid);
        if outlives_us {
            failpoint::at(Point::CondorSubmitStarted);
        }
        let result =
            tokio::time::timeout(patience, converse(&mut child, input, most_bytes, outlives_us, listener)).await;
        let whole = matches!(result, Ok(Ok(_)));
        if !whole {
            group.kill();
            let _ = child.wait().await;
        }
        let dead = group.is_gone().await;
        group.kill();
        group.0 = None;
        failpoint::after_tool(tool);
        match result {
            Err(_) => Err(ToolError::TimedOut { tool, limit, dead }),
            Ok(Err(ReadError::TooMuch)) => Err(ToolError::TooMuch { tool, most: most_bytes, dead }),
            Ok(Err(ReadError::Io(error))) => Err(ToolError::Unreadable { tool, message: error.to_string(), dead }),
            Ok(Ok((status, output))) => judge(tool, limit, status, Output { dead, ..output }),
        }
    }
}

/// Whether what a tool said is an answer, by how it ended.
fn judge(tool: &'static str, limit: Duration, status: ExitStatus, output: Output) -> Result<Output, ToolError> {
    let dead = output.dead;
    match (signal_of(status), output.status) {
        // `timeout -s KILL` ends by its own signal, or with 137, when it had to kill.
        (Some(signal), _) if signal == Signal::KILL.as_raw() => Err(ToolError::TimedOut { tool, limit, dead }),
        (Some(signal), _) => Err(ToolError::Killed { tool, signal, dead }),
        (None, Some(code @ (126 | 127))) => {
            Err(ToolError::NotStarted { tool, message: harmless(&output.stderr, WORDS), missing: code == 127 })
        }
        (None, _) => Ok(output),
    }
}

/// The signal that ended a tool: who stands above it ends by the same, or says 128 and its number, as a shell does.
fn signal_of(status: ExitStatus) -> Option<i32> {
    let told = || status.code().map(|code| code - 128).filter(|signal| Signal::from_named_raw(*signal).is_some());
    status.signal().or_else(told)
}

/// The path of a program. With a path std starts it by posix_spawn; with a name and another environment it would fork,
/// which copies the page tables of the whole operator at each call.
fn locate(path: &str, program: &str) -> String {
    let found = path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.is_file());
    found.and_then(|file| file.into_os_string().into_string().ok()).unwrap_or_else(|| program.to_owned())
}

/// Permits for so many bytes: all of them for an answer that may have more.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.min(KEPT).div_ceil(UNIT)).unwrap_or(u32::MAX)
}

enum ReadError {
    TooMuch,
    Io(std::io::Error),
}

impl From<std::io::Error> for ReadError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

async fn converse(
    child: &mut Child,
    input: Vec<u8>,
    most_bytes: usize,
    outlives_us: bool,
    listener: Option<Listener<'_>>,
) -> Result<(ExitStatus, Output), ReadError> {
    let (began, pid) = (Instant::now(), child.id());
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A tool that ends before it has read everything says why in other ways.
            let _ = stdin.write_all(&input).await;
        }
        if outlives_us {
            failpoint::at(Point::CondorSubmitFed);
        }
        Ok(())
    };
    let listen = async {
        match listener {
            Some(listener) => pass_on(stdout, listener).await,
            None => read(stdout, most_bytes, true).await,
        }
    };
    let (said, complained, ()) = tokio::try_join!(listen, read(stderr, STDERR_CAP, false), feed)?;
    // It has closed its standard output, so it has done what it had to; and it is there until it is waited for.
    let schedstat = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok());
    let cost = Cost::of(schedstat.as_deref(), began.elapsed());
    let status = child.wait().await?;
    let stderr = harmless_lines(String::from_utf8_lossy(&complained).trim());
    Ok((status, Output { status: status.code(), stdout: said, stderr, dead: false, cost }))
}

/// Reads to the end and keeps at most `cap` bytes; more is an error if `strict`.
async fn read(from: Option<impl AsyncRead + Unpin>, cap: usize, strict: bool) -> Result<Vec<u8>, ReadError> {
    let mut kept = Vec::new();
    let Some(mut from) = from else { return Ok(kept) };
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(kept);
        }
        let room = cap - kept.len();
        if count > room && strict {
            return Err(ReadError::TooMuch);
        }
        kept.extend_from_slice(&buffer[..count.min(room)]);
    }
}

/// Passes on all of it, as long as it is wanted; what is kept is nothing.
async fn pass_on(from: Option<impl AsyncRead + Unpin>, mut listener: Listener<'_>) -> Result<Vec<u8>, ReadError> {
    let Some(mut from) = from else { return Ok(Vec::new()) };
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(Vec::new()),
            count => {
                let part = &buffer[..count];
                let enough = match &mut listener {
                    Listener::Each(listener) => listener(part).is_break(),
                    Listener::Channel(channel) => channel.send(part.to_vec()).await.is_err(),
                };
                if enough {
                    return Err(ReadError::TooMuch);
                }
            }
        }
    }
}
