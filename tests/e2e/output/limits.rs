//! How much output there may be.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use testbed::{Version, wait_for};

use bed::site::Site;
use bed::{Bed, PATIENCE, UNTIL_LET_GO, htcjob, is_true, of};

on_versions! {
    trixie: transfer_stops_before_the_volume_is_full;
    long:
        full_volume_stops_all_fetches,
        job_over_the_output_limit_is_held,
        output_beyond_the_namespace_limit_is_not_fetched,
        output_over_a_lowered_limit_is_refused;
}

/// HTCondor holds a job that leaves more than `--output-limit`, and its HTCJob says which limit that is.
fn job_over_the_output_limit_is_held(version: Version) {
    let site = Site::with(version, "", &["--output-limit=1M"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let uid = here.create(&htcjob("large", "head -c 3000000 /dev/zero > large; echo ran"));
    here.create(&htcjob("small", "head -c 900000 /dev/zero > small; echo ran"));
    let message = here.wait_says("large", "Held", "True", "JobsHeld");
    println!("{version}: {message}");
    let held = site.bed.queue(&of(&uid), &["JobStatus", "HoldReasonCode", "NumJobStarts"]);
    assert_eq!(held, [["5", "33", "1"]], "HTCondor's code for too much output");
    assert!(message.contains("--output-limit") && message.contains("delete the HTCJob"), "{message}");
    assert_eq!(here.wait_event("large", "JobsHeld").iter().filter(|reason| *reason == "JobsHeld").count(), 1);
    let ended = here.wait_ended("small");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.wait_output("small");
    assert_eq!(std::fs::metadata(here.output("small", 0).join("small")).unwrap().len(), 900_000);
    assert_eq!(here.get("large")["status"]["phase"], "Running", "held jobs complete no HTCJob");
    here.delete("large");
    here.wait_nothing_left(&uid);
}

/// Output that came within a limit which has been lowered since is not kept, and not fetched again, while what fails by something
/// else is tried again and again. Other output comes: that of the same HTCJob, and that of the same transfer, which the kernel ends
/// at a file of more than twice the limit. With another limit it is fetched, if HTCondor still has it: 23.9 has.
///
/// It fails if what has arrived is not looked at (`look` in `incoming.rs`), also after a failure (`too_much`), and if `Record::to_fetch`
/// has what was refused.
fn output_over_a_lowered_limit_is_refused(version: Version) {
    let bed = Bed::start(version);
    let here = bed.namespace();
    let large = format!("[ $HTCPROCID = 1 ] || head -c 900000 /dev/zero | tee more >result; {UNTIL_LET_GO}");
    let mut large = htcjob("large", &large);
    large["spec"]["queue"] = 2.into();
    here.create(&large);
    here.create(&htcjob("huge", &format!("head -c 4000000 /dev/zero >result; {UNTIL_LET_GO}")));
    let names = ["large", "huge", "small", "blocked"];
    for name in &names[2..] {
        here.create(&htcjob(name, UNTIL_LET_GO));
    }
    for name in names {
        here.wait_phase(name, "Running");
    }
    here.wait_running("large", 2);
    let folder = here.output("blocked", 0).parent().unwrap().to_owned();
    bed.stop_operator();
    for name in names {
        let of = format!("HTCJobUID == \"{}\" && JobStatus =!= 4", here.uid(name));
        bed.open_gate(&here.uid(name));
        wait_for("the jobs to end", PATIENCE, || bed.queue(&of, &["JobStatus"]).is_empty()).unwrap();
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let with_limit = |limit: &str| {
        bed.start_another("bed", &bed.data, &[&format!("--output-limit={limit}"), "--retry-backoff-max=1s"])
    };
    let operator = with_limit("1M");
    for name in ["large", "huge"] {
        let message = here.wait_says(name, "OutputFetched", "False", "OutputRefused");
        println!("{version}: {message}");
        assert!(is_true(&here.wait_ended(name), "Complete"));
    }
    for (name, index) in [("small", 0), ("large", 1)] {
        wait_for("other output", PATIENCE, || here.output(name, index).join("out").exists()).unwrap();
    }
    let message = |name: &str| here.wait_says(name, "OutputFetched", "False", "OutputRefused");
    for name in ["large", "huge"] {
        wait_for("the word that it is final", PATIENCE, || message(name).contains("not fetched again")).unwrap();
        let message = message(name);
        println!("{version}: {message}");
        assert!(message.contains("output of 1 job was") && message.contains("Job 0: it has more bytes"), "{message}");
        assert!(message.contains("--output-limit") && !here.output(name, 0).exists(), "{message}");
    }
    let left = || bed::files_below(&bed.data.join("htc_out"), &|name| name == "result");
    wait_for("what was refused to be removed", PATIENCE, || left().is_empty()).unwrap();
    assert!(here.events("small").iter().all(|(reason, _)| reason != "ScheddUnreachable"), "{:?}", here.events("small"));

    let tries = |name: &str| {
        let of = format!("select step from requests where kind = 'Fetch' and uid = '{}'", here.uid(name));
        bed.ledger(&of).ok().and_then(|rows| rows.first()?.first()?.parse::<u32>().ok()).unwrap_or_default()
    };
    let before = ["large", "huge", "blocked"].map(tries);
    wait_for("more tries of what failed", PATIENCE, || tries("blocked") >= before[2] + 4).unwrap();
    assert_eq!(["large", "huge"].map(tries), before[..2]);

    operator.terminate().unwrap();
    operator.wait(PATIENCE).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let _operator = with_limit("8M");
    here.wait_says("blocked", "OutputFetched", "True", "Fetched");
    if version == Version::Trixie {
        for name in ["large", "huge"] {
            here.wait_says(name, "OutputFetched", "True", "Fetched");
            assert!(here.output(name, 0).join("result").exists());
        }
    }
    for name in ["large", "huge"] {
        let uid = here.uid(name);
        here.delete(name);
        here.wait_nothing_left(&uid);
    }
}

/// Nothing is fetched while the volume lacks space for one more output beside `--min-free-space`, and everything afterwards.
fn full_volume_stops_all_fetches(version: Version) {
    let mut site = Site::with(version, "", &["--min-free-space=32M", "--output-limit=8M"]);
    site.bed.mount_volume("size=64m");
    site.bed.start_operator();
    let here = site.bed.namespace();
    let names = ["one", "two"];
    site.start_lasting(&here, &names);
    site.bed.volume().fill(20_000);
    for name in names {
        site.finish(name);
    }
    for name in names {
        let message = here.wait_says(name, "OutputFetched", "False", "OutputVolumeFull");
        println!("{version}: {message}");
        assert!(message.contains("--min-free-space") && message.contains(" free"), "{message}");
    }
    let tries = || {
        let query = "select coalesce(min(failures), 0) from requests where kind = 'Fetch'";
        site.bed.ledger(query).ok()?.first()?.first()?.parse::<u32>().ok()
    };
    wait_for("some more tries", PATIENCE, || tries().is_some_and(|tries| tries >= 3)).unwrap();
    assert_eq!(site.gates.calls("condor_transfer_data"), 0, "none was begun");
    site.bed.volume().empty();
    for name in names {
        here.wait_says(name, "OutputFetched", "True", "Fetched");
        site.assert_complete_once(&here, name, 1);
        assert_eq!(here.count_events(name, "OutputVolumeFull"), 1, "{:?}", here.events(name));
    }
}

/// A transfer that would fill the volume is ended, and leaves nothing behind.
fn transfer_stops_before_the_volume_is_full(version: Version) {
    let mut site = Site::with(version, "", &["--min-free-space=16M", "--output-limit=8M"]);
    site.bed.mount_volume("size=64m");
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.start_lasting(&here, &["one"]);
    site.gates.shut("condor_transfer_data");
    site.finish("one");
    site.gates.wait_at("condor_transfer_data");
    // Somebody else takes the room meanwhile.
    site.bed.volume().fill(4_000);
    let message = here.wait_says("one", "OutputFetched", "False", "OutputVolumeFull");
    assert!(message.contains("the transfer was stopped") && message.contains("--min-free-space"), "{message}");
    site.gates.open("condor_transfer_data");
    site.bed.volume().empty();
    here.wait_says("one", "OutputFetched", "True", "Fetched");
    site.assert_complete_once(&here, "one", 1);
}

/// A namespace at its limit gets no more output until some is deleted; another namespace does.
fn output_beyond_the_namespace_limit_is_not_fetched(version: Version) {
    let site = Site::with(version, "", &["--namespace-output-limit=1M", "--retry-backoff-max=5s"]);
    site.bed.start_operator();
    let (here, there) = (site.bed.namespace(), site.bed.namespace());
    let large = |name: &str| htcjob(name, "head -c 2000000 /dev/zero > large");
    here.create(&large("first"));
    here.wait_says("first", "OutputFetched", "True", "Fetched");
    here.create(&large("second"));
    let message = here.wait_says("second", "OutputFetched", "False", "NamespaceLimitReached");
    println!("{version}: {message}");
    assert!(message.contains("--namespace-output-limit") && message.contains("Delete HTCJobs"), "{message}");
    there.create(&large("others"));
    there.wait_says("others", "OutputFetched", "True", "Fetched");
    std::fs::remove_dir_all(here.output("first", 0)).unwrap();
    // It is measured again a minute later.
    wait_for("the second output", PATIENCE * 2, || here.output("second", 0).join("large").exists()).unwrap();
    assert_eq!(here.count_events("second", "NamespaceLimitReached"), 1, "{:?}", here.events("second"));
}
