//! HTCondor pools, both versions. Needs `testbed setup`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use testbed::{Account, Assets, Client, Pool, PoolOptions, Version, wait_for};

const LIMIT: Duration = Duration::from_secs(90);

/// A job that says where Apptainer is and who it is inside the image, and ends with 7.
fn description(assets: &Assets, client: &Client) -> String {
    format!(
        r#"
executable = /bin/sh
transfer_executable = false
should_transfer_files = YES
arguments = "-c 'command -v apptainer; exec apptainer exec --contain --ipc --pid --bind $PWD:/htc_run {image} bash -c ""id -u; touch /htc_run/made; exit 7""'"
output = out
error = err
initialdir = {dir}
queue
"#,
        image = assets.image().display(),
        dir = client.home().display(),
    )
}

fn wait_for_status(client: &Client, id: &str, wanted: &str) {
    wait_for(&format!("JobStatus {wanted} of {id}"), LIMIT, || {
        let seen =
            client.ok("condor_q", &["-allusers", id, "-af", "JobStatus", "HoldReason"]).map_err(|e| e.to_string())?;
        if seen.starts_with(wanted) { Ok(()) } else { Err(seen) }
    })
    .unwrap();
}

fn runs_jobs_for_identities_and_keeps_its_queue(version: Version) {
    let assets = Assets::locate().unwrap();
    let pool = Pool::start(&assets, version, &PoolOptions::default()).unwrap();
    let (alice, bob) = (pool.client("alice").unwrap(), pool.client("bob").unwrap());

    let id = alice.submit(&description(&assets, &alice)).unwrap();
    let refused = bob.run("condor_rm", &[&id], "").unwrap();
    assert!(!refused.status.success() && refused.stderr.contains("Permission denied"), "{refused:?}");
    wait_for_status(&alice, &id, "4");
    let seen = alice.ok("condor_q", &[&id, "-af", "ExitCode", "Owner", "User"]).unwrap();
    assert_eq!(seen.trim(), "7 alice alice@test");
    alice.ok("condor_transfer_data", &[&id]).unwrap();
    let out = fs::read_to_string(alice.home().join("out")).unwrap();
    let wanted = format!("{}\n{}\n", assets.job_bin().join("apptainer").display(), Account::unprivileged().uid);
    assert_eq!(out, wanted, "{}", fs::read_to_string(alice.home().join("err")).unwrap_or_default());
    assert!(alice.home().join("made").exists());

    // A second job stays in the queue, whatever the version does with one whose output was fetched.
    pool.set_start(false).unwrap();
    let id = alice.submit(&description(&assets, &alice)).unwrap();
    wait_for_status(&alice, &id, "1");
    let birthdate =
        || pool.tool("condor_status", &["-schedd", "-direct", pool.schedd_name(), "-af", "JobQueueBirthdate"]).unwrap();
    let (address, birth) = (pool.address(), birthdate());
    pool.restart_schedd_kill9().unwrap();
    wait_for_status(&alice, &id, "1");
    pool.stop().unwrap();
    assert!(!alice.run("condor_q", &[], "").unwrap().status.success());
    pool.start_again().unwrap();
    assert_eq!((pool.address(), birthdate()), (address, birth.clone()));
    wait_for_status(&alice, &id, "1");
    pool.set_start(true).unwrap();
    wait_for_status(&alice, &id, "4");

    pool.reset_queue().unwrap();
    assert_eq!(alice.ok("condor_q", &["-allusers", "-af", "ClusterId"]).unwrap(), "");
    assert_ne!(birthdate(), birth);
}

#[test]
fn pool_runs_jobs_for_identities_and_keeps_its_queue_on_trixie() {
    runs_jobs_for_identities_and_keeps_its_queue(Version::Trixie);
}

#[test]
fn pool_runs_jobs_for_identities_and_keeps_its_queue_on_sid() {
    runs_jobs_for_identities_and_keeps_its_queue(Version::Sid);
}

#[test]
fn paused_schedd_resumes_and_superuser_removes_jobs() {
    let assets = Assets::locate().unwrap();
    let options = PoolOptions { superuser: vec!["boss@test".to_owned()], ..PoolOptions::default() };
    let pool = Pool::start(&assets, Version::Trixie, &options).unwrap();
    let (alice, boss) = (pool.client("alice").unwrap(), pool.client("boss").unwrap());
    pool.set_start(false).unwrap();
    let id = alice.submit(&description(&assets, &alice)).unwrap();
    wait_for_status(&alice, &id, "1");

    pool.pause_schedd().unwrap();
    let mut hung = alice.command("condor_q").stdout(Stdio::null()).spawn().unwrap();
    let pid = pool.schedd_pid().unwrap();
    wait_for("the schedd to stand still", LIMIT, || {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        state.contains(") T ").then_some(())
    })
    .unwrap();
    assert!(hung.try_wait().unwrap().is_none());
    pool.resume_schedd().unwrap();
    assert!(hung.wait().unwrap().success());

    // A job of its own makes it known, and only then it has its rights.
    let own = boss.submit(&description(&assets, &boss)).unwrap();
    boss.ok("condor_rm", &[&own, &id]).unwrap();
    wait_for("the queue to be empty", LIMIT, || {
        boss.ok("condor_q", &["-allusers", "-af", "ClusterId"]).is_ok_and(|q| q.is_empty())
    })
    .unwrap();
}
