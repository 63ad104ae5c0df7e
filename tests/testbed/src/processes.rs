//! Finds processes in /proc.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// All descendants of `ancestor` called `name` (as in /proc/PID/comm, at most 15 bytes), smallest process id first.
#[must_use]
pub fn descendants(ancestor: u32, name: &str) -> Vec<u32> {
    let all: HashMap<u32, (String, u32)> =
        all().into_iter().filter_map(|pid| Some((pid, name_and_parent(pid)?))).collect();
    let mut found: Vec<u32> = all
        .iter()
        .filter(|(_, (comm, _))| comm == name)
        .map(|(&pid, _)| pid)
        .filter(|&pid| {
            std::iter::successors(all.get(&pid).map(|p| p.1), |parent| all.get(parent).map(|p| p.1))
                .any(|parent| parent == ancestor)
        })
        .collect();
    found.sort_unstable();
    found
}

/// The parent of a process, while it runs.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    name_and_parent(pid).map(|(_, parent)| parent)
}

/// The children of `parent`.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    all().into_iter().filter(|&pid| name_and_parent(pid).is_some_and(|(_, p)| p == parent)).collect()
}

/// All processes whose command line or environment names `path`, this one excepted. Tests use it to show that nothing is
/// left behind.
#[must_use]
pub fn that_name(path: &Path) -> Vec<u32> {
    let wanted = path.as_os_str().as_encoded_bytes();
    let names = |pid: u32, file: &str| {
        fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|text| text.windows(wanted.len()).any(|part| part == wanted))
    };
    all()
        .into_iter()
        .filter(|&pid| pid != std::process::id() && (names(pid, "cmdline") || names(pid, "environ")))
        .collect()
}

fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// /proc/PID/stat is `PID (NAME) STATE PPID …`, and a name may hold blanks and parentheses.
fn name_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    Some((name, rest.split_whitespace().nth(1)?.parse().ok()?))
}

/// Descendants of `ancestor` that have ended and that nobody has waited for, by name.
#[must_use]
pub fn unburied(ancestor: u32) -> Vec<String> {
    let mut found = Vec::new();
    let mut of = vec![ancestor];
    while let Some(parent) = of.pop() {
        for child in children(parent) {
            of.push(child);
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            if stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')) {
                found.extend(name_and_parent(child).map(|(name, _)| name));
            }
        }
    }
    found
}
