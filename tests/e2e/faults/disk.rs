//! The operator's volume is read-only, and really full: a tmpfs of a few megabytes; or it does not answer.

use std::fs;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use testbed::{Account, Owned, Version, wait_for};

use bed::site::Site;
use bed::{PATIENCE, condition};

on_versions! {
    trixie: read_only_or_full_disk_loses_nothing;
    long: hanging_volume_delays_no_other_htcjob;
}

/// Bytes of the file that one job makes beside its `out`, which may arrive alone.
const OUTPUT: usize = 2_000_000;

/// How often the operator has met a full disk: its own files, the ledger's, and what condor_transfer_data writes.
fn met_full_disk(site: &Site) -> usize {
    let signs = ["No space left on device", "database or disk is full", "disk I/O error", "condor_transfer_data: "];
    site.bed.log().lines().filter(|line| signs.iter().any(|sign| line.contains(sign))).count()
}

fn read_only_or_full_disk_loses_nothing(version: Version) {
    let mut site = Site::with(version, "", &[]);
    site.bed.mount_volume("ro,size=6m");
    let log = site.bed.pool.scratch().path().join("read-only.log");
    let refused = Owned::spawn(&site.bed.operator_spec("run", &log)).unwrap();
    assert!(!refused.wait(PATIENCE).unwrap().success());
    let text = refused.log_text();
    assert!(text.contains("cannot open the ledger") && text.contains("writable"), "{text}");

    site.bed.mount_volume("size=6m");
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut large = site.lasting("large", 1);
    let source = large["spec"]["script"]["source"].as_str().unwrap().to_owned();
    large["spec"]["script"]["source"] = format!("{source}\nhead -c {OUTPUT} /dev/zero | tr '\\0' x >large\n").into();
    here.create(&large);
    here.create(&site.lasting("deleted", 1));
    for name in ["large", "deleted"] {
        here.wait_phase(name, "Running");
    }
    let deleted = here.uid("deleted");
    let submitted = site.gates.calls("condor_submit");

    // Room for the ledger, not for the output.
    site.bed.volume().fill(700);
    site.finish("large");
    let object = here.wait("large", "output not fetched", |object| {
        assert!(!bed::is_true(object, "OutputFetched"), "half of the output was taken for all of it: {object:#}");
        object["status"]["succeeded"] == 1
            && condition(object, "OutputFetched").is_some_and(|condition| condition["status"] == "False")
    });
    println!("{version}: {}", condition(&object, "OutputFetched").unwrap());

    // No try to fetch has half of the output there while the disk is filled.
    site.gates.shut("condor_transfer_data");
    site.gates.wait_at("condor_transfer_data");
    site.bed.volume().fill(0);
    site.gates.open("condor_transfer_data");
    here.create(&site.noted("new", 1, ""));
    here.begin_delete("deleted");
    wait_for("the operator to meet a full disk", PATIENCE, || met_full_disk(&site) >= 4).unwrap();
    assert_eq!(site.gates.calls("condor_submit"), submitted, "what cannot be written down is not submitted");
    let object = here.get("large");
    assert_ne!(object["status"]["phase"], "Terminating", "{object:#}");
    assert!(!bed::is_true(&object, "OutputFetched"), "{object:#}");
    println!("{version}: while the disk is full:\n{}", here.kubectl(&["get", "htcjobs", "-o", "wide"]));
    assert!(site.bed.stop_operator() < bed::site::PROMPT, "it can still be stopped");
    site.bed.start_operator();
    wait_for("the next operator to meet it", PATIENCE, || met_full_disk(&site) > 0).unwrap();

    site.bed.volume().empty();
    if site.bed.log().contains("htc-operator: the ledger could not") {
        // It ends, and is started again by whoever runs it.
        site.bed.kill_operator();
        site.bed.start_operator();
    }
    here.wait_gone("deleted");
    site.bed.assert_removed(&deleted, "deleted");
    let ended = site.assert_complete_once(&here, "new", 1);
    assert_eq!(ended["status"]["attempt"], 1);
    here.wait_says("large", "OutputFetched", "True", "Fetched");
    site.assert_complete_once(&here, "large", 1);
    let [out, large] = ["out", "large"].map(|file| std::fs::read(here.output("large", 0).join(file)).unwrap());
    assert_eq!((out.as_slice(), large.len()), (&b"finished\n"[..], OUTPUT), "the output is whole");
    for name in ["new", "large"] {
        here.wait_event(name, "Fetched");
        for reason in ["Pending", "Submitted", "Running", "Completed", "Fetched"] {
            assert_eq!(here.count_events(name, reason), 1, "{name}: {:?}", here.events(name));
        }
    }
}

/// A pipe without a writer stands in for a file on a hanging volume: reading it blocks.
fn hanging_volume_delays_no_other_htcjob(version: Version) {
    let site = Site::new(version);
    let here = site.bed.namespace();
    let uid = here.create(&site.noted("stuck", 1, ""));
    let account = Account::unprivileged();
    let sandbox = site.bed.data.join("sandbox").join(uid);
    for folder in [sandbox.parent().unwrap(), &sandbox] {
        account.make_dir(folder, 0o755).unwrap();
    }
    let pipe = sandbox.join("job.sh");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    account.own(&pipe).unwrap();
    site.bed.start_operator();

    let message = here.wait_says("stuck", "Submitted", "False", "CannotWriteFiles");
    assert!(message.contains("has not answered") && message.contains("check the operator's data volume"), "{message}");
    here.create(&site.noted("other", 1, ""));
    site.assert_complete_once(&here, "other", 1);
    assert_eq!(here.get("stuck")["status"]["active"], 0, "nothing is submitted without its files");

    // The volume answers.
    drop(fs::OpenOptions::new().write(true).open(&pipe).unwrap());
    let ended = site.assert_complete_once(&here, "stuck", 1);
    assert_eq!(ended["status"]["attempt"], 1);
}
