//! A file in the home of the operator's account that HTCondor's tools would take for their configuration, and obey.

use std::fs;

use testbed::{Account, Owned, Version};

use crate::credentials::site::{Site, put_secret, with_secret};
use bed::{PATIENCE, Promise, UNTIL_LET_GO, condition, ids, is_true};

on_versions! {
    trixie: tools_ignore_user_config_in_the_home_directory;
}

/// `~/.condor/user_config` is not brought there by a job's output; and if it is there, no tool of the operator's reads it, in
/// whosever name.
///
/// HTCondor takes the home from passwd and not from `HOME`: here both name a folder that the operator may write to. In the image
/// it is one that does not exist.
///
/// It fails with `--confinement=off`: then the tools read the file, and the marker is there. Were they only able to read the home,
/// they could not make the marker, would fail for that, and no HTCJob would come to its end. Without the folder in the fetch's
/// constraint the first HTCJob does not say `OutputRedirected`.
///
/// Against b8ba2a8: succeeds. The transfer of `writes` puts `user_config` into the home, and the next tools run what it says: the
/// marker is there.
fn tools_ignore_user_config_in_the_home_directory(version: Version) {
    let mut site = Site::new(version, &[]);
    site.bed.mount_volume("size=64m");
    let (home, folder) = (site.bed.scratch().dir("home").unwrap(), site.bed.scratch().dir("home/.condor").unwrap());
    let marker = site.bed.scratch().path().join("marker");
    let planted = format!("include command : /usr/bin/touch {}\n", marker.display());
    let uid = Account::unprivileged().uid;
    // Seen by the operator and its tools, and by nobody else.
    site.bed.volume().run(&format!(
        "awk -F: -v OFS=: '$3 == {uid} {{ $6 = \"{}\" }} 1' /etc/passwd >passwd && mount --bind passwd /etc/passwd",
        home.display()
    ));
    site.bed.set_env("HOME", home.to_str().unwrap());
    site.bed.start_operator();
    let here = site.bed.namespace();
    put_secret(&here, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    here.let_read_secret("mine");
    let alice = site.bed.pool.client("alice@test").unwrap();

    let source = format!("echo '{}' >user_config; {UNTIL_LET_GO}", planted.trim());
    here.create(&with_secret("writes", "mine", &source));
    let id = ids(&here.wait_phase("writes", "Running")).remove(0);
    alice.ok("condor_qedit", &[&id, "SUBMIT_Iwd", &format!("\"{}\"", folder.display())]).unwrap();
    here.let_go("writes");
    here.wait("writes", "OutputRedirected", |object| {
        condition(object, "OutputFetched").is_some_and(|condition| condition["reason"] == "OutputRedirected")
    });
    assert!(!folder.join("user_config").exists());

    Account::unprivileged().write(&folder.join("user_config"), &planted, 0o644).unwrap();
    // A tool as it is does what stands there.
    let log = site.bed.scratch().path().join("bait.log");
    let tool = site.bed.volume().spec(&alice.bin_dir().join("condor_q"), &log).args(["-allusers", "-totals"]);
    let bait = Owned::spawn(&site.bed.as_operator(tool)).unwrap();
    bait.wait(PATIENCE).unwrap();
    assert!(marker.exists(), "nothing reads it at all: {}", bait.log_text());
    fs::remove_file(&marker).unwrap();

    for name in ["own", "own-doomed"] {
        here.create(&bed::htcjob(name, UNTIL_LET_GO));
    }
    for name in ["hers", "hers-doomed"] {
        here.create(&with_secret(name, "mine", UNTIL_LET_GO));
    }
    for name in ["own", "hers"] {
        here.wait_phase(name, "Running");
        here.suspend(name, true);
        here.wait(name, "held", |object| object["status"]["held"] == 1);
        here.suspend(name, false);
        let ended = here.let_go(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        here.wait_output(name);
    }
    for name in ["own-doomed", "hers-doomed", "own", "hers", "writes"] {
        here.delete(name);
    }
    let (well, output) = site.bed.check();
    let _promise = Promise;
    assert!(well, "{output}");
    assert!(!marker.exists());
}
