//! Signals to processes, and to the operator so that it stays in the bed's hands.

use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Bed, PATIENCE};

/// The process may be gone already.
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, signal);
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
