//! Signals to processes, and to the operator so that it stays in the bed's hands.

use std::fs;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Bed, PATIENCE};

/// The process may be gone already.
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, signal);
}

/// The parent of a process.
pub fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether the process has a handler for it. One that has just begun has none yet, and is ended by it.
pub(crate) fn handles(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map_or("0", str::trim);
    u64::from_str_radix(caught, 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

/// A `condor_submit` whose time limit does not run: the `timeout` above it stands still. Both are gone with this value,
/// whatever becomes of the test.
pub struct Unlimited {
    submitter: u32,
    timeout: u32,
}

impl Unlimited {
    /// SIGSTOP to what limits its time. Its operator must be dead or stand still, too: the kernel hangs up on stopped
    /// processes that lose their parent.
    pub fn new(submitter: i32) -> Self {
        let submitter = submitter.unsigned_abs();
        let timeout = parent(submitter);
        signal(timeout, Signal::STOP);
        Self { submitter, timeout }
    }

    /// The submitter itself falls asleep.
    pub fn stop(&self) {
        signal(self.submitter, Signal::STOP);
    }

    /// It goes on as if no time had passed.
    pub fn wake_up(&self) {
        signal(self.submitter, Signal::CONT);
    }
}

impl Drop for Unlimited {
    fn drop(&mut self) {
        // While its parent stands still, the submitter's number can be no other process's.
        let name = fs::read_to_string(format!("/proc/{}/comm", self.timeout)).unwrap_or_default();
        if name.trim() == "timeout" {
            signal(self.submitter, Signal::KILL);
            signal(self.timeout, Signal::KILL);
        }
    }
}

impl Bed {
    /// SIGSTOP to the operator: it hangs until [`Bed::kill_operator`].
    pub fn pause_operator(&self) {
        if let Some(operator) = self.operator.lock().unwrap().as_ref() {
            operator.pause().unwrap();
        }
    }

    /// SIGTERM to the operator, which may not have come to handling it yet; how it ended.
    pub fn terminate_operator(&self) -> ExitStatus {
        let operator = self.operator.lock().unwrap().take().expect("the operator was started");
        operator.terminate().unwrap();
        operator.wait(PATIENCE).unwrap()
    }

    /// Whether an operator was started and nobody has ended it.
    pub fn has_operator(&self) -> bool {
        self.operator.lock().unwrap().is_some()
    }

    /// How the operator ended if it did so by itself, and what it said.
    pub fn operator_ended(&self) -> Option<(ExitStatus, String)> {
        let operator = self.operator.lock().unwrap();
        let operator = operator.as_ref()?;
        Some((operator.wait_timeout(Duration::ZERO).unwrap()?, operator.log_text()))
    }
}
