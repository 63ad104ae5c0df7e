//! Nothing outlives its owner. Needs `testbed setup`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use testbed::{Account, Owned, Scratch, Spec, processes, wait_for};

const LIMIT: Duration = Duration::from_mins(1);

/// Starts everything; gives the process and what all its run folders' paths begin with.
fn up() -> (Child, PathBuf) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_testbed"))
        .args(["up", "--pool", "trixie", "--pool", "sid"])
        .env_remove("HTC_TESTBED_KEEP")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<String> = lines.take_while(|line| !line.starts_with("export PATH=")).collect();
    let kubeconfig = lines.iter().find_map(|line| line.strip_prefix("export KUBECONFIG=")).expect("no KUBECONFIG");
    let folder = Path::new(kubeconfig).parent().unwrap().to_str().unwrap();
    let prefix = PathBuf::from(folder.strip_suffix('0').unwrap());
    assert!(processes::that_name(&prefix).len() > 10);
    (child, prefix)
}

fn wait_until_all_are_gone(prefix: &Path) {
    wait_for("the end of every process", LIMIT, || match processes::that_name(prefix) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("still there: {left:?}")),
    })
    .unwrap();
}

fn folders(prefix: &Path) -> Vec<PathBuf> {
    let (parent, name) = (prefix.parent().unwrap(), prefix.file_name().unwrap().to_str().unwrap());
    let entries = fs::read_dir(parent).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    entries.filter(|path| path.file_name().is_some_and(|n| n.to_str().is_some_and(|n| n.starts_with(name)))).collect()
}

#[test]
fn owner_killed_with_sigkill_leaves_no_process() {
    let (mut owner, prefix) = up();
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until_all_are_gone(&prefix);
    // A killed owner cannot clean up, but whoever comes next does.
    wait_for("the end of its folders", LIMIT, || {
        let _next = Scratch::new().unwrap();
        folders(&prefix).is_empty()
    })
    .unwrap();
}

#[test]
fn end_of_stdin_stops_all_servers() {
    let (mut owner, prefix) = up();
    drop(owner.stdin.take());
    assert!(owner.wait().unwrap().success());
    wait_until_all_are_gone(&prefix);
    assert!(folders(&prefix).is_empty());
}

#[test]
fn signals_reach_the_program() {
    let scratch = Scratch::new().unwrap();
    let log = scratch.path().join("log");
    let spec = Spec::new("sh", &log)
        .args(["-c", "trap 'echo asked; exit 3' TERM; id -u; echo ready $$; while :; do sleep 0.05; done"]);
    // Started by a thread that ends at once: the program goes on.
    let starting = spec.clone();
    let owned = thread::spawn(move || Owned::spawn(&starting).unwrap()).join().unwrap();
    wait_for("the program", LIMIT, || owned.log_text().contains("ready")).unwrap();
    assert_eq!(owned.log_text(), format!("{}\nready {}\n", Account::unprivileged().uid, owned.pid()));
    owned.terminate().unwrap();
    assert_eq!(owned.wait(LIMIT).unwrap().code(), Some(3));
    assert!(!owned.is_running());
    assert!(owned.log_text().ends_with("asked\n"));

    let owned = Owned::spawn(&spec).unwrap();
    owned.kill9().unwrap();
    assert_eq!(owned.wait(LIMIT).unwrap().signal(), Some(9));
}
