//! Jobs that are not those that the ledger knows.

use std::fs;
use std::path::{Path, PathBuf};

use testbed::{Account, Scratch, Version, wait_for};

use bed::site::Site;
use bed::{LONG_SUBMISSIONS, PATIENCE, ids, of};

on_versions! {
    trixie: another_schedd_of_the_same_name_proves_no_absence, second_job_of_an_index_is_removed;
}

/// `remove_extra`: of two jobs of one index the recorded one stays.
fn second_job_of_an_index_is_removed(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let uid = here.create(&site.lasting("one", 1));
    let running = here.wait("one", "it runs", |object| object["status"]["running"] == 1);
    let of = of(&uid);
    let row = site.bed.queue(&of, &["HTCOperator", "HTCNotAfter"]).remove(0);
    let second = site
        .bed
        .condor
        .submit(&format!(
            "executable = /bin/sleep\narguments = 1000\ntransfer_executable = false\nshould_transfer_files = YES\n\
             MY.HTCOperator = \"{}\"\nMY.HTCJobUID = \"{uid}\"\nMY.HTCJobAttempt = 1\nMY.HTCJobIndex = 0\n\
             MY.HTCNotAfter = {}\nqueue\n",
            row[0], row[1]
        ))
        .unwrap();
    wait_for("the second job to go", PATIENCE, || {
        let left = site.bed.queue(&of, &["ClusterId", "ProcId"]);
        if left.iter().all(|row| row.join(".") != second) { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .unwrap();
    let cluster = second.split_once('.').unwrap().0;
    let why = site.bed.pool.tool("condor_history", &[cluster, "-af", "RemoveReason"]).unwrap();
    assert!(why.starts_with("removed by htc-operator"), "{why}");
    assert_eq!(site.bed.queue(&of, &["JobStatus", "NumShadowStarts"]), [["2", "1"]]);
    site.finish("one");
    let ended = here.wait_ended("one");
    assert_eq!((&ended["status"]["succeeded"], ids(&ended)), (&1.into(), ids(&running)), "{ended:#}");
    assert_eq!(site.runs("one", 0), 1);
}

/// The schedd's queue, while it has an empty one instead.
struct Away(Scratch);

impl Away {
    /// The schedd begins anew with an empty queue, as another one would.
    fn take(site: &Site) -> Self {
        let away = Self(Scratch::new().unwrap());
        site.bed.pool.stop().unwrap();
        let files = queue_files(&site.bed.pool.spool_dir());
        assert!(!files.is_empty());
        for file in files {
            let to = away.0.path().join(file.file_name().unwrap());
            fs::copy(&file, &to).unwrap();
            fs::remove_file(&file).unwrap();
        }
        site.bed.pool.start_again().unwrap();
        away
    }

    fn bring_back(self, site: &Site) {
        site.bed.pool.stop().unwrap();
        let spool = site.bed.pool.spool_dir();
        for file in queue_files(&spool) {
            fs::remove_file(file).unwrap();
        }
        for file in queue_files(self.0.path()) {
            let to = spool.join(file.file_name().unwrap());
            Account::unprivileged().write(&to, fs::read(&file).unwrap(), 0o600).unwrap();
        }
        site.bed.pool.start_again().unwrap();
    }
}

fn queue_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("job_queue.log"))
        .map(|entry| entry.path())
        .collect()
}

/// `same_birthdate`: for a while another schedd answers to the name. That it has no job of an object proves nothing.
fn another_schedd_of_the_same_name_proves_no_absence(version: Version) {
    let site = Site::with(version, "", LONG_SUBMISSIONS);
    site.bed.pool.set_start(false).unwrap();
    site.bed.start_operator();
    let here = site.bed.namespace();
    let doomed = here.create(&site.noted("doomed", 1, ""));
    here.wait("doomed", "it is idle", |object| object["status"]["idle"] == 1);
    site.gates.shut("condor_q");
    let handed = here.create(&site.noted("handed", 1, ""));
    let idle = format!("HTCJobUID == \"{handed}\" && JobStatus == 1");
    wait_for("the job that nobody has seen", PATIENCE, || !site.bed.queue(&idle, &["ClusterId"]).is_empty()).unwrap();
    site.bed.kill_operator();
    site.gates.open("condor_q");
    let submitted = site.gates.calls("condor_submit");

    let queue = Away::take(&site);
    here.begin_delete("doomed");
    site.bed.start_operator();
    let message = here.wait_says("doomed", "JobsRemoved", "False", "AnotherSchedd");
    assert!(message.contains("Check which schedd has the name"), "what to do: {message}");
    here.wait_says("handed", "Submitted", "False", "AnotherSchedd");
    assert_eq!(site.gates.calls("condor_submit"), submitted);

    queue.bring_back(&site);
    here.wait_gone("doomed");
    site.bed.assert_removed(&doomed, "doomed");
    site.bed.pool.set_start(true).unwrap();
    let ended = site.assert_complete_once(&here, "handed", 1);
    assert_eq!(ended["status"]["attempt"], 1);
}
