//! A small file system for the operator's data: a real one, which is really full. No rights are needed: it is mounted in a
//! mount namespace of its own, in which the operator runs.

use std::path::{Path, PathBuf};

use testbed::{Account, Owned, Scratch, Spec, wait_for};

use super::PATIENCE;

/// A mounted tmpfs. It is gone with this value.
pub struct Volume {
    /// Keeps the namespace.
    holder: Owned,
    at: PathBuf,
}

impl Volume {
    /// Mounts one at `at`, seen by nobody else, with mount's `options`.
    pub fn mount(at: &Path, options: &str, scratch: &Scratch) -> Self {
        let script = "mount -t tmpfs -o \"$1,mode=0755\" tmpfs \"$2\" && echo mounted && exec cat";
        let log = scratch.path().join("volume.log");
        // Of the volume before.
        let _ = std::fs::remove_file(&log);
        let spec =
            Spec::new("unshare", log).args(["--map-root-user", "--mount", "sh", "-c", script, "sh", options]).arg(at);
        let holder = Owned::spawn(&spec).unwrap();
        let mounted = wait_for("a tmpfs in a mount namespace of its own", PATIENCE, || {
            holder.must_run().map_err(|error| error.to_string())?;
            if holder.log_text().contains("mounted") { Ok(()) } else { Err("not yet".to_owned()) }
        });
        mounted.unwrap_or_else(|error| panic!("{error}: this machine allows no user namespaces to this account"));
        Self { holder, at: at.to_owned() }
    }

    /// Where it is mounted, to those inside.
    pub fn at(&self) -> &PathBuf {
        &self.at
    }

    /// The same folder as everybody else can reach it.
    pub fn outside(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.holder.pid(), self.at.display()))
    }

    fn enter(&self) -> [String; 5] {
        let pid = self.holder.pid().to_string();
        ["--preserve-credentials", "--user", "--mount", "--target", &pid].map(str::to_owned)
    }

    /// `program` inside, under the unprivileged account's own number.
    pub fn spec(&self, program: &Path, log: &Path) -> Spec {
        let Account { uid, gid, .. } = Account::unprivileged();
        Spec::new("nsenter", log)
            .args(self.enter())
            .args(["unshare", "--user", &format!("--map-user={uid}"), &format!("--map-group={gid}")])
            // A change of credentials has cleared it.
            .args(["setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program)
    }

    /// Runs a shell script inside, in the volume.
    pub fn run(&self, script: &str) {
        let at = self.at.display();
        let mut command = Account::unprivileged().command(Path::new("nsenter"));
        let output = command.args(self.enter()).args(["sh", "-c", &format!("cd {at} && {script}")]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// Leaves this much room in it.
    pub fn fill(&self, kilobytes: u32) {
        let room = format!("$(( $(df -k --output=avail . | tail -n 1) - {kilobytes} ))");
        self.run(&format!("dd if=/dev/zero bs=1k count={room} 2>/dev/null >>filler"));
    }

    /// Makes room again.
    pub fn empty(&self) {
        self.run("rm filler");
    }
}
