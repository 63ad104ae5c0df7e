//! Output that is to be written where it does not belong: the ad of a job says where, and who owns the job may edit its ad.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testbed::{Account, Version, wait_for};

use crate::credentials::site::{Site, put_secret, with_secret};
use bed::{Namespace, PATIENCE, Promise, UNTIL_LET_GO, condition, ids, is_true, of};

on_versions! {
    sid: redirected_output_reaches_no_other_folder;
    long: redirected_output_reaches_no_other_folder_without_confinement;
}

const BEFORE: &str = "as it was";
const ATTACK: &str = "attack";
/// In a file that only the operator can read.
const SECRET: &str = "nobody else knows this";

/// From the `SUBMIT_Iwd` of a job to the attribute that is edited, and its new value.
type Edit<'a> = &'a dyn Fn(&str) -> (&'static str, String);

/// Files that no job may write to: beside the ledger, in the sandbox and in the output of somebody else's HTCJob.
struct Marked {
    folders: [PathBuf; 3],
}

impl Marked {
    fn new(data: &Path, victim: &Namespace<'_>, name: &str) -> Self {
        let output = fs::canonicalize(victim.output(name, 0)).unwrap();
        let folders = [data.join("sqlite"), data.join("sandbox").join(victim.uid(name)), output];
        for folder in &folders {
            Account::unprivileged().write(&folder.join("marker"), BEFORE, 0o644).unwrap();
        }
        Self { folders }
    }

    fn assert_untouched(&self, attack: &str) {
        let _promise = Promise;
        for folder in &self.folders {
            let marker = folder.join("marker");
            assert_eq!(fs::read_to_string(&marker).unwrap(), BEFORE, "{attack}: {}", marker.display());
            let out = fs::read_to_string(folder.join("out")).unwrap_or_default();
            assert!(!out.contains(ATTACK), "{attack}: {}/out", folder.display());
        }
    }
}

/// A user edits jobs with `condor_qedit`, in each way that could redirect `condor_transfer_data`. Nothing is written
/// elsewhere, these HTCJobs report it, and another HTCJob of the same user has its output.
///
/// Against b8ba2a8: succeeds. The first HTCJob, `iwd-ledger`, writes over the marker beside the ledger.
fn redirected_output_reaches_no_other_folder(version: Version) {
    attack(version, &[]);
}

/// The same where the kernel confines nothing.
///
/// Against b8ba2a8: succeeds in the same way.
fn redirected_output_reaches_no_other_folder_without_confinement(version: Version) {
    attack(version, &["--confinement=off"]);
}

fn attack(version: Version, arguments: &[&str]) {
    // As HTCondor has it by itself; the test bed's pool has it off.
    let site = Site::with(version, "ENABLE_URL_TRANSFERS = true", arguments);
    site.bed.start_operator();
    let (victim, attacker) = (site.bed.namespace(), site.bed.namespace());
    victim.create(&bed::htcjob("victim", UNTIL_LET_GO));
    victim.let_go("victim");
    victim.wait_output("victim");
    let marked = Marked::new(&site.bed.data, &victim, "victim");
    let [ledger, sandbox, output] = marked.folders.each_ref().map(|folder| folder.display().to_string());

    put_secret(&attacker, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    attacker.let_read_secret("mine");
    let alice = site.bed.pool.client("alice@test").unwrap();
    let quoted = |text: &str| format!("\"{text}\"");
    // The schedd sees the name of the file in its spool folder, and the tool the path that it was submitted with.
    let by_place = |place: &str, own: &str| format!("ifThenElse(substr(Cmd, 0, 1) == \"/\", \"{place}\", {own})");
    let attacks: [(&str, Edit<'_>); 7] = [
        ("iwd-ledger", &|_| ("SUBMIT_Iwd", quoted(&ledger))),
        ("iwd-output", &|_| ("SUBMIT_Iwd", quoted(&output))),
        ("iwd-expression", &|own| ("SUBMIT_Iwd", by_place(&ledger, own))),
        ("remaps-ledger", &|_| ("SUBMIT_TransferOutputRemaps", quoted(&format!("marker={ledger}/marker")))),
        ("remaps-sandbox", &|_| ("SUBMIT_TransferOutputRemaps", quoted(&format!("marker={sandbox}/marker")))),
        ("remaps-output", &|_| ("SUBMIT_TransferOutputRemaps", quoted(&format!("out={output}/out")))),
        ("log-ledger", &|_| ("SUBMIT_UserLog", quoted(&format!("{ledger}/marker")))),
    ];
    let source = format!("echo {ATTACK} | tee marker; {UNTIL_LET_GO}");
    for (name, _) in attacks.iter().chain([&("good", attacks[0].1)]) {
        attacker.create(&with_secret(name, "mine", &source));
    }
    let mut own = Vec::new();
    for (name, edit) in attacks {
        let id = ids(&attacker.wait_phase(name, "Running"))[0].clone();
        let before = alice.ok("condor_q", &[&id, "-af", "unparse(SUBMIT_Iwd)"]).unwrap().trim().to_owned();
        let (attribute, value) = edit(&before);
        alice.ok("condor_qedit", &[&id, attribute, &value]).unwrap();
        own.push((id, before));
    }
    attacker.wait_phase("good", "Running");
    let decided = |object: &Value| {
        condition(object, "OutputFetched")
            .is_some_and(|condition| condition["status"] == "True" || condition["reason"] == "OutputRedirected")
    };
    for (name, _) in attacks {
        attacker.let_go(name);
        let object = attacker.wait(name, "OutputFetched to be decided", |object| {
            marked.assert_untouched(name);
            decided(object)
        });
        let reported = condition(&object, "OutputFetched").unwrap();
        assert_eq!(
            (reported["status"].as_str(), reported["reason"].as_str()),
            (Some("False"), Some("OutputRedirected")),
            "{name}"
        );
        assert!(!attacker.output(name, 0).join("out").exists(), "{name}");
    }
    attacker.let_go("good");
    attacker.wait_output("good");
    assert_eq!(fs::read_to_string(attacker.output("good", 0).join("marker")).unwrap(), format!("{ATTACK}\n"));

    // Who puts it back has the output.
    let (id, before) = &own[0];
    alice.ok("condor_qedit", &[id, "SUBMIT_Iwd", before]).unwrap();
    let object = attacker.wait(attacks[0].0, "its output", |object| is_true(object, "OutputFetched"));
    assert!(is_true(&object, "Complete"), "{object:#}");
    assert!(attacker.output(attacks[0].0, 0).join("out").exists());
    marked.assert_untouched("at the end");

    // A plugin of HTCondor's would read this file as the operator. The job's end writes over what was edited before.
    let secret = site.bed.scratch().path().join("secret");
    Account::unprivileged().write(&secret, SECRET, 0o600).unwrap();
    let uid = attacker.create(&with_secret("url", "mine", &source));
    let id = ids(&attacker.wait_phase("url", "Running"))[0].clone();
    site.bed.stop_operator();
    let status = || site.bed.queue(&of(&uid), &["JobStatus"]).concat();
    wait_for("the job to end", PATIENCE, || {
        site.bed.open_gate(&uid);
        status() == ["4"]
    })
    .unwrap();
    let url = quoted(&format!("file://{}", secret.display()));
    alice.ok("condor_qedit", &[&id, "SpooledOutputFiles", &url, "TransferOutput", &url]).unwrap();
    site.bed.start_operator();
    let object = attacker.wait("url", "OutputFetched to be decided", decided);
    site.assert_secret(&attacker, &[SECRET]);
    assert_eq!(condition(&object, "OutputFetched").unwrap()["reason"], "OutputRedirected");
}
