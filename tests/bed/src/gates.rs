//! Stand-ins for HTCondor's tools that count the calls and can be made to wait: each becomes the real tool when its gate
//! opens. With them a test stops the operator at a known point.
//!
//! The question which jobs have changed is none of the calls: it comes each second or so. Nothing has, as long as condor_q's
//! gate is shut, or something else runs instead.

use std::fs;
use std::path::PathBuf;

use testbed::{Account, Assets, Scratch, Version, wait_for};

use super::PATIENCE;

const TOOLS: &[&str] = &[
    "condor_submit",
    "condor_history",
    "condor_rm",
    "condor_hold",
    "condor_release",
    "condor_ping",
    "condor_q",
    "condor_status",
    "condor_transfer_data",
    "condor_qedit",
];

pub struct Gates {
    _scratch: Scratch,
    folder: PathBuf,
}

impl Gates {
    pub fn new(version: Version) -> Self {
        let real = Assets::locate().unwrap().condor_bin(version);
        let scratch = Scratch::new().unwrap();
        let folder = scratch.dir("tools").unwrap();
        for tool in TOOLS {
            let (gate, real) = (folder.join(tool), real.join(tool));
            let (gate_, real_) = (gate.display(), real.display());
            let script = format!(
                "#!/bin/sh\ncase \"$*\" in *'EnteredCurrentStatus >= '*)\n    \
                 [ ! -e {gate_}.shut ] && [ ! -e {gate_}.instead ] && [ ! -e {gate_}.still ] || exit 0\n    \
                 exec {real_} \"$@\"\nesac\nread up rest </proc/uptime\necho $$ $up >>{gate_}.calls\nif [ -e {gate_}.shut ]; then\n    echo $$ >>{gate_}.waiting\n    \
                 while [ -e {gate_}.shut ]; do sleep 0.2; done\nfi\n\
                 [ ! -e {gate_}.instead ] || exec sh {gate_}.instead {real_} \"$@\"\nexec {real_} \"$@\"\n"
            );
            Account::unprivileged().write(&gate, script, 0o755).unwrap();
        }
        Self { _scratch: scratch, folder }
    }

    /// The operator's argument.
    pub fn argument(&self) -> String {
        format!("--condor-bin={}", self.folder.display())
    }

    /// A folder for what scripts of [`Self::replace`] write: elsewhere they may not.
    pub fn place(&self, name: &str) -> PathBuf {
        let place = self.folder.join(name);
        Account::unprivileged().make_dir(&place, 0o755).unwrap();
        place
    }

    /// From now on `tool` waits before it does anything.
    pub fn shut(&self, tool: &str) {
        let _ = fs::remove_file(self.file(tool, "waiting"));
        fs::write(self.file(tool, "shut"), "").unwrap();
    }

    pub fn open(&self, tool: &str) {
        fs::remove_file(self.file(tool, "shut")).unwrap();
    }

    /// From now on a shell script runs instead of `tool`; its arguments are the real tool and the call's arguments.
    pub fn replace(&self, tool: &str, script: &str) {
        let new = self.file(tool, "new");
        Account::unprivileged().write(&new, script, 0o755).unwrap();
        fs::rename(new, self.file(tool, "instead")).unwrap();
    }

    /// From now on no job has changed, until HTCondor is asked about all jobs or about those of one object.
    pub fn tell_no_changes(&self) {
        fs::write(self.file("condor_q", "still"), "").unwrap();
    }

    /// The real tool again.
    pub fn restore(&self, tool: &str) {
        fs::remove_file(self.file(tool, "instead")).unwrap();
    }

    /// Waits until `tool` stands at its gate; its process id.
    pub fn wait_at(&self, tool: &str) -> i32 {
        wait_for(&format!("{tool} to be called"), PATIENCE, || self.lines(tool, "waiting").last().copied()).unwrap()
    }

    /// How often `tool` was called.
    pub fn calls(&self, tool: &str) -> usize {
        self.lines(tool, "calls").len()
    }

    /// When `tool` was called, in seconds since the machine's start.
    pub fn times(&self, tool: &str) -> Vec<f64> {
        let text = fs::read_to_string(self.file(tool, "calls")).unwrap_or_default();
        text.lines().filter_map(|line| line.split_once(' ')?.1.parse().ok()).collect()
    }

    fn lines(&self, tool: &str, kind: &str) -> Vec<i32> {
        let text = fs::read_to_string(self.file(tool, kind)).unwrap_or_default();
        text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
    }

    fn file(&self, tool: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{tool}.{kind}"))
    }
}
