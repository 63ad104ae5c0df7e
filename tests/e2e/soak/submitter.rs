//! HTCondor's tools with a `condor_submit` that records its calls and can be delayed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::process::Signal;
use testbed::{Account, Assets, Scratch, Version};

use bed::signals::signal;

const TOOL: &str = "condor_submit";

pub struct Submitter {
    _scratch: Scratch,
    folder: PathBuf,
}

/// One call of it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    submitter: u32,
    /// The `timeout` that it runs under.
    timeout: u32,
}

impl Submitter {
    pub fn new(version: Version) -> Self {
        let real = Assets::locate().unwrap().condor_bin(version);
        let scratch = Scratch::new().unwrap();
        let folder = scratch.dir("tools").unwrap();
        for tool in fs::read_dir(&real).unwrap().flatten().map(|entry| entry.file_name()) {
            if tool != TOOL {
                symlink(real.join(&tool), folder.join(&tool)).unwrap();
            }
        }
        let (folder_, real_) = (folder.display(), real.display());
        let script = format!(
            "#!/bin/sh\necho $$ $PPID >>{folder_}/calls\nread -r pause <{folder_}/pause\nsleep \"$pause\"\nexec {real_}/{TOOL} \"$@\"\n"
        );
        Account::unprivileged().write(&folder.join(TOOL), script, 0o755).unwrap();
        let submitter = Self { _scratch: scratch, folder };
        submitter.set_pause(0);
        submitter
    }

    /// The operator's argument.
    pub fn argument(&self) -> String {
        format!("--condor-bin={}", self.folder.display())
    }

    /// From now on each call waits this long, in tenths of a second, before it submits.
    pub fn set_pause(&self, tenths: u64) {
        let next = self.folder.join("pause.new");
        fs::write(&next, format!("{}.{}\n", tenths / 10, tenths % 10)).unwrap();
        fs::rename(next, self.folder.join("pause")).unwrap();
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        let text = fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let call = |line: &str| {
            let (submitter, timeout) = line.split_once(' ').unwrap();
            Call { submitter: submitter.parse().unwrap(), timeout: timeout.parse().unwrap() }
        };
        whole.lines().map(call).collect()
    }
}

impl Call {
    /// Whether it still runs, under the `timeout` that started it.
    pub fn runs(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.submitter)).unwrap_or_default();
        let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = words.next().unwrap_or("Z");
        state != "Z" && words.next() == Some(&self.timeout.to_string())
    }

    /// Its machine falls asleep: neither it nor what limits its time goes on. Its operator must be dead, else the kernel
    /// hangs up on both when that dies.
    pub fn fall_asleep(self) {
        if !self.runs() {
            return;
        }
        signal(self.timeout, Signal::STOP);
        signal(self.submitter, Signal::STOP);
    }

    /// It goes on as if no time had passed.
    pub fn wake_up(self) {
        if self.runs() {
            signal(self.submitter, Signal::CONT);
        }
    }

    /// Ends it, and what limits its time.
    pub fn end(self) {
        // While its parent stands still, neither number can be another process's.
        let parent = fs::read_to_string(format!("/proc/{}/comm", self.timeout)).unwrap_or_default();
        if parent.trim() == "timeout" {
            signal(self.submitter, Signal::KILL);
            signal(self.timeout, Signal::KILL);
        }
    }
}
