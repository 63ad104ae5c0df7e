//! The node's cgroups: the one thing of a cluster that is the machine's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Doing, Result};
use crate::wait::wait_for;

/// One below it, for a node beside the first one.
pub(super) const BESIDE: &str = "beside";

const ROOT: &str = "/sys/fs/cgroup";
/// For the kernel to be done with killed processes.
const DYING: Duration = Duration::from_secs(20);

/// A cgroup below the root of each hierarchy; removed with all below when this value is dropped.
pub(super) struct Cgroups {
    name: String,
    folders: Vec<PathBuf>,
}

impl Cgroups {
    pub(super) fn new() -> Result<Self> {
        let name = format!("htb-node-{}", std::process::id());
        let root = Path::new(ROOT);
        // Version 2 has one hierarchy, version 1 one for each controller.
        let mut hierarchies = vec![root.to_owned()];
        if !root.join("cgroup.controllers").exists() {
            let entries = fs::read_dir(root).doing("listing", root)?;
            // cpu and cpuacct may be links to the same hierarchy.
            hierarchies = entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path())
                .collect();
        }
        let mut cgroups = Self { name, folders: Vec::new() };
        for hierarchy in hierarchies {
            let folder = hierarchy.join(&cgroups.name);
            make(&folder)?;
            cgroups.folders.push(folder.clone());
            make(&folder.join(BESIDE))?;
        }
        Ok(cgroups)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for folder in &self.folders {
            if let Err(error) = wait_for("the node's cgroup to be empty", DYING, || remove(folder)) {
                crate::progress::say(&format!("removing {}: {error}", folder.display()));
            }
        }
    }
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir(folder).doing("making the cgroup", folder)?;
    // A new cpuset is empty, and nothing can run in it.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Some(Ok(all)) = folder.parent().map(|above| fs::read(above.join(file))) {
            let path = folder.join(file);
            fs::write(&path, all).doing("writing", &path)?;
        }
    }
    Ok(())
}

/// A cgroup's files need not, and cannot, be removed.
fn remove(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}
