//! Runs one tool with a cleared environment, a time limit and an output limit. Kills its whole process group at the
//! end.

use parking_lot::RwLock;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, mpsc};

use crate::confinement::{CallCredentials, ConfinementSettings, FileAccess, ToolConfinement};
pub use crate::query_cost::QueryCost;
use htc_machine::text::{MAX_MESSAGE, sanitize, sanitize_lines};
use htc_support::failpoint;
use htc_support::failpoint::Point;
use htc_support::metrics::Metrics;

use super::submitter_lock::HeldLock;

#[cfg(test)]
mod tests;

/// Settings for starting HTCondor's tools.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The tools' complete environment: `PATH`, `CONDOR_CONFIG` and those variables of the operator's own environment
    /// that they need.
    pub environment: Vec<(String, String)>,
    /// Variables that point to the credentials, for identities other than the operator.
    credentials: Arc<RwLock<CredentialVariables>>,
    /// Whether these are the operator's own tools, which use the credentials of `CONDOR_CONFIG`.
    own: bool,
    confine: Arc<ToolConfinement>,
    /// Path of coreutils' `timeout`.
    timeout: String,
    /// Path of util-linux's `setpriv`.
    setpriv: String,
    /// Time limit of one call without a limit of its own.
    pub limit: Duration,
    /// Time limit of one history query, which reads all of history.
    pub history_limit: Duration,
    /// Time limit of one transfer of output.
    pub transfer_limit: Duration,
    metrics: Metrics,
    /// Budget for the output kept in memory, shared by the tools of all pools.
    kept: Arc<Semaphore>,
}

/// Variables that override others, and the folder with the files that they name.
#[derive(Debug, Default)]
struct CredentialVariables {
    variables: Vec<(&'static str, String)>,
    folder: Option<PathBuf>,
}

/// Variables that the tools inherit from the operator.
const INHERITED: &[&str] = &["CONDOR_CONFIG", "KRB5CCNAME", "KRB5_CONFIG", "TMPDIR", "TZ"];
/// Variables that all tools get in addition. The ad of a job decides what `condor_transfer_data` does. Without these,
/// the tool would let plugins fetch URLs that the ad names, `file:///…` among them, and sign such URLs with keys from
/// files that the ad names. Their home directory does not exist.
const SET: &[(&str, &str)] =
    &[("HOME", "/nonexistent"), ("_CONDOR_ENABLE_URL_TRANSFERS", "false"), ("_CONDOR_SIGN_S3_URLS", "false")];
/// Variables that keep tools from the operator's own credentials until they have others.
const NONE: &[(&str, &str)] = &[
    ("KRB5CCNAME", "FILE:/nonexistent/ccache"),
    ("_CONDOR_SEC_TOKEN_DIRECTORY", "/nonexistent"),
    ("_CONDOR_SEC_TOKEN_SYSTEM_DIRECTORY", "/nonexistent"),
    ("_CONDOR_SEC_CLIENT_AUTHENTICATION_METHODS", "IDTOKENS"),
];
/// Maximum bytes kept of a tool's standard error.
const STDERR_CAP: usize = 64 * 1024;
/// Maximum output of a tool that acts on jobs. It has room for the lines of a thousand jobs.
pub const MAX_ACTION_OUTPUT: usize = 1024 * 1024;
/// Maximum output, in bytes, that all running tools together may keep in memory. It is far below the memory limit of
/// the operator's pod (`deploy/base/deployment.yaml`). A call that would exceed it waits.
const KEPT: usize = 256 * 1024 * 1024;
/// Bytes for each permit. Semaphores count in 32 bits.
const UNIT: usize = 1024;
/// Time after the limit of `timeout` at which the operator itself gives up.
const GRACE: Duration = Duration::from_secs(2);
/// Longest wait for a killed process group to disappear.
const BURIAL: Duration = Duration::from_secs(5);

/// One call of a tool.
#[derive(Clone, Debug)]
pub struct ToolInvocation<'a> {
    /// Name of the tool, e.g. `condor_q`.
    pub tool: &'static str,
    pub arguments: Vec<&'a str>,
    /// Bytes for its standard input.
    pub input: Vec<u8>,
    /// Time limit, after which it is killed.
    pub limit: Duration,
    /// Maximum bytes of its standard output. A tool that writes more is killed.
    pub max_output: usize,
    /// Whether it continues until its limit when the operator dies. All other calls die with the operator: two
    /// transfers of one job's output corrupt each other.
    pub outlives_operator: bool,
    /// Lock that the tool and all its child processes hold while they live.
    pub inherited_lock: Option<&'a HeldLock>,
    /// Files that it may read and write.
    pub access: FileAccess<'a>,
}

/// Consumer of a tool's standard output while the tool runs. It may stop early.
pub enum Listener<'a> {
    /// Calls a function with each part.
    Each(&'a mut (dyn FnMut(&[u8]) -> ControlFlow<()> + Send)),
    /// Sends each part to a channel; the tool is blocked while the channel is full.
    Channel(&'a mpsc::Sender<Vec<u8>>),
}

/// Result of a tool that ended by itself.
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// Exit status, or none if a signal killed it.
    pub status: Option<i32>,
    /// Complete standard output.
    pub stdout: Vec<u8>,
    /// Beginning of standard error, trimmed.
    pub stderr: String,
    /// Whether its whole process group is confirmed to be gone.
    pub dead: bool,
    /// Cost of the call. For a tool started under `timeout` only the duration is known.
    pub cost: QueryCost,
}

/// Reason why a tool gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ToolError {
    /// The tool is missing or cannot be started.
    #[error("cannot start {tool}: {message}{}", if *.missing { "; check that HTCondor's tools are in the operator's PATH" } else { "" })]
    NotStarted {
        tool: &'static str,
        /// Error message of the system.
        message: String,
        /// Whether the program does not exist.
        missing: bool,
    },
    /// The tool was killed after its time limit.
    #[error("{tool} did not end within {} s and was killed", .limit.as_secs())]
    TimedOut {
        tool: &'static str,
        limit: Duration,
        /// Whether its whole process group is confirmed to be gone.
        dead: bool,
    },
    /// The tool was ended by a signal other than that of its time limit.
    #[error("{tool} was ended by {}", signal_in_words(*.signal))]
    Killed {
        tool: &'static str,
        signal: i32,
        /// Whether its whole process group is confirmed to be gone.
        dead: bool,
    },
    /// The tool wrote more than an answer may have.
    #[error("{tool} printed more than the {most} bytes that an answer can have and was killed")]
    TooMuch {
        tool: &'static str,
        /// Maximum bytes that it may write.
        most: usize,
        /// Whether its whole process group is confirmed to be gone.
        dead: bool,
    },
    /// Reading the tool's output failed.
    #[error("cannot read the answer of {tool}: {message}")]
    Unreadable {
        tool: &'static str,
        /// Error message of the system.
        message: String,
        /// Whether its whole process group is confirmed to be gone.
        dead: bool,
    },
}

impl ToolError {
    /// Returns whether all processes of the call are confirmed to be gone.
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

/// Describes a signal and its likely cause.
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

/// Kills the process group of a call that is dropped before its end.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn kill(&self) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// Waits up to [`BURIAL`] for all processes of the group to be gone. Returns whether they are.
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

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Tools {
    /// Creates tools that are found in `bin` (if given) and then in the operator's own `PATH`. `metrics` measure their
    /// calls.
    #[must_use]
    pub fn new(
        bin: Option<&PathBuf>,
        confining: ConfinementSettings<'_>,
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
        let confine = Arc::new(ToolConfinement::new(confining, &tools, &environment));
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

    /// Returns the same tools for another identity, without credentials until [`Self::set_credentials`].
    #[must_use]
    pub fn for_other_credentials(&self) -> Self {
        Self { credentials: Arc::default(), own: false, ..self.clone() }
    }

    /// Returns the same tools for another pool: with the address of its collector, and without credentials.
    #[must_use]
    pub fn for_pool(&self, collector: &str, metrics: Metrics) -> Self {
        let mut tools = Self { metrics, ..self.for_other_credentials() };
        let set: Vec<(&str, &str)> =
            [("_CONDOR_COLLECTOR_HOST", collector)].into_iter().chain(NONE.iter().copied()).collect();
        tools.environment.retain(|(name, _)| set.iter().all(|(other, _)| other != name));
        tools.environment.extend(set.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        tools
    }

    /// Sets the variables and the folder of the credentials, for these tools and all clones of them.
    pub fn set_credentials(&self, variables: Vec<(&'static str, String)>, folder: PathBuf) {
        *self.credentials.write() = CredentialVariables { variables, folder: Some(folder) };
    }

    /// Returns whether Landlock confines the tools to the files that they need.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.confine.by_landlock()
    }

    /// Returns the paths that tools need but may not access, because each contains a protected folder.
    #[must_use]
    pub fn excluded_paths(&self) -> &[PathBuf] {
        self.confine.excluded_paths()
    }

    /// Runs `tool` with `arguments`, empty standard input and the default limit.
    pub async fn run(&self, tool: &'static str, arguments: &[&str]) -> Result<ToolOutput, ToolError> {
        self.call(ToolInvocation {
            tool,
            arguments: arguments.to_vec(),
            input: Vec::new(),
            limit: self.limit,
            max_output: MAX_ACTION_OUTPUT,
            outlives_operator: false,
            inherited_lock: None,
            access: FileAccess::default(),
        })
        .await
    }

    /// Runs a query tool and measures its cost. It runs without `timeout`: it changes nothing, and dies with the
    /// operator. An answer of more than `most_bytes` is an error.
    pub async fn ask(
        &self,
        tool: &'static str,
        arguments: &[&str],
        limit: Duration,
        most_bytes: usize,
    ) -> Result<ToolOutput, ToolError> {
        let (arguments, touches) = (arguments.to_vec(), FileAccess::default());
        let call = ToolInvocation {
            tool,
            arguments,
            input: Vec::new(),
            limit,
            max_output: most_bytes,
            outlives_operator: false,
            inherited_lock: None,
            access: touches,
        };
        self.measure(call, false, None).await
    }

    /// Runs a query tool and passes its output to the listener as it comes. Nothing of it is kept. Only the listener
    /// limits its size.
    pub async fn ask_streaming(
        &self,
        tool: &'static str,
        arguments: &[&str],
        limit: Duration,
        listener: Listener<'_>,
    ) -> Result<ToolOutput, ToolError> {
        let (arguments, touches) = (arguments.to_vec(), FileAccess::default());
        let (input, most_bytes) = (Vec::new(), 0);
        let call = ToolInvocation {
            tool,
            arguments,
            input,
            limit,
            max_output: most_bytes,
            outlives_operator: false,
            inherited_lock: None,
            access: touches,
        };
        self.measure(call, false, Some(listener)).await
    }

    /// Runs one call under `timeout` to its end, and measures it.
    pub async fn call(&self, call: ToolInvocation<'_>) -> Result<ToolOutput, ToolError> {
        self.measure(call, true, None).await
    }

    async fn measure(
        &self,
        call: ToolInvocation<'_>,
        below_timeout: bool,
        listener: Option<Listener<'_>>,
    ) -> Result<ToolOutput, ToolError> {
        // A call that keeps no output takes no permit. The semaphore is never closed.
        let _kept = self.kept.acquire_many(units(call.max_output)).await;
        let (tool, began) = (call.tool, Instant::now());
        let result = Box::pin(self.run_to_end(call, below_timeout, listener)).await;
        let outcome = match &result {
            Ok(ToolOutput { status: Some(0), .. }) => "ok",
            Ok(_) => "failed",
            Err(_) => "error",
        };
        let duration = began.elapsed();
        self.metrics.tool(tool, outcome, duration);
        tracing::debug!(tool, outcome, milliseconds = duration.as_millis(), "tool ended");
        result
    }

    /// Runs a call. Tools that have an effect run under coreutils' `timeout`, so that they end in time even when the
    /// operator has died.
    async fn run_to_end(
        &self,
        call: ToolInvocation<'_>,
        below_timeout: bool,
        listener: Option<Listener<'_>>,
    ) -> Result<ToolOutput, ToolError> {
        let ToolInvocation {
            tool,
            arguments,
            input,
            limit,
            max_output: most_bytes,
            outlives_operator: outlives_us,
            inherited_lock: holds,
            access: touches,
        } = call;
        // Neither `timeout` nor its child gets a signal when its parent dies, unless it requests one.
        let dies_with_parent: &[&str] = if outlives_us { &[] } else { &[&self.setpriv, "--pdeathsig", "KILL"] };
        let seconds = format!("{:.3}", limit.as_secs_f64());
        let limited = [&self.timeout, "-s", "KILL", &seconds];
        let (credentials, confined) = {
            let credentials = self.credentials.read();
            let cache = credentials.variables.iter().find(|(name, _)| *name == "KRB5CCNAME");
            let (folder, cache) = (credentials.folder.as_deref(), cache.map(|(_, value)| value.as_str()));
            let with = CallCredentials { own: self.own, folder, cache, dies_with_parent: !outlives_us };
            (credentials.variables.clone(), self.confine.command_prefix(touches, with))
        };
        let confined: Vec<&str> = confined.iter().map(String::as_str).collect();
        // The confinement step requests this signal by itself.
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
        let mut group = ProcessGroup(pid);
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
            Ok(Ok((status, output))) => judge(tool, limit, status, ToolOutput { dead, ..output }),
        }
    }
}

/// Decides by the exit status whether a tool's output is an answer.
fn judge(tool: &'static str, limit: Duration, status: ExitStatus, output: ToolOutput) -> Result<ToolOutput, ToolError> {
    let dead = output.dead;
    match (signal_of(status), output.status) {
        // `timeout -s KILL` ends by the same signal, or with status 137, when it had to kill.
        (Some(signal), _) if signal == Signal::KILL.as_raw() => Err(ToolError::TimedOut { tool, limit, dead }),
        (Some(signal), _) => Err(ToolError::Killed { tool, signal, dead }),
        (None, Some(code @ (126 | 127))) => {
            Err(ToolError::NotStarted { tool, message: sanitize(&output.stderr, MAX_MESSAGE), missing: code == 127 })
        }
        (None, _) => Ok(output),
    }
}

/// Returns the signal that ended a tool. A wrapper process ends by the same signal, or exits with 128 plus its number,
/// as a shell does.
fn signal_of(status: ExitStatus) -> Option<i32> {
    let told = || status.code().map(|code| code - 128).filter(|signal| Signal::from_named_raw(*signal).is_some());
    status.signal().or_else(told)
}

/// Returns the path of a program. With a path, std starts it by posix_spawn. With a bare name and another environment
/// it would fork, which copies the page tables of the whole operator at each call.
fn locate(path: &str, program: &str) -> String {
    let found = path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.is_file());
    found.and_then(|file| file.into_os_string().into_string().ok()).unwrap_or_else(|| program.to_owned())
}

/// Returns the number of permits for that many bytes. An answer larger than the budget takes all of it.
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
) -> Result<(ExitStatus, ToolOutput), ReadError> {
    let (began, pid) = (Instant::now(), child.id());
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A tool that ends before it has read its whole input reports the reason otherwise.
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
    // The tool has closed standard output, so its work is done. The process still exists until it is waited for.
    let schedstat = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok());
    let cost = QueryCost::of(schedstat.as_deref(), began.elapsed());
    let status = child.wait().await?;
    let stderr = sanitize_lines(String::from_utf8_lossy(&complained).trim());
    Ok((status, ToolOutput { status: status.code(), stdout: said, stderr, dead: false, cost }))
}

/// Reads to the end and keeps at most `cap` bytes. More is an error if `strict`.
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

/// Passes all output to the listener until it has enough. Returns an empty vector.
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
