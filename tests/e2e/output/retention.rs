//! Files and rows of deleted HTCJobs.

use std::path::{Path, PathBuf};

use serde_json::json;
use testbed::{Version, wait_for};

use bed::site::Site;
use bed::{Bed, Namespace, PATIENCE, htcjob};

on_versions! {
    trixie: htcjob_restored_after_retention_is_not_submitted;
    sid: files_and_rows_are_deleted_after_their_retention;
}

const TIMES: &[&str] = &["--output-retention=4s", "--history-retention=8s", "--cleanup-interval=500ms"];

/// What is left of an object.
trait Left {
    fn sandbox(&self, uid: &str) -> PathBuf;
    /// How many rows each table has of an object.
    fn rows_of(&self, uid: &str) -> Option<[u32; 5]>;
    fn wait_no_rows(&self, uid: &str);
}

impl Left for Bed {
    fn sandbox(&self, uid: &str) -> PathBuf {
        self.data.join("sandbox").join(uid)
    }

    fn rows_of(&self, uid: &str) -> Option<[u32; 5]> {
        let tables = ["objects", "htcjobs", "submissions", "requests", "transitions"];
        let counts = tables.map(|table| format!("(select count(*) from {table} where uid = '{uid}')")).join(", ");
        let rows = self.ledger(&format!("select {counts}")).ok()?;
        let counts: Vec<u32> = rows.first()?.iter().filter_map(|count| count.parse().ok()).collect();
        counts.try_into().ok()
    }

    fn wait_no_rows(&self, uid: &str) {
        wait_for("the rows to be gone", PATIENCE, || match self.rows_of(uid) {
            Some([0, 0, 0, 0, 0]) => Ok(()),
            rows => Err(format!("{rows:?}")),
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
    }
}

fn wait_gone(path: &Path) {
    wait_for(&format!("{} to be gone", path.display()), PATIENCE, || std::fs::symlink_metadata(path).is_err()).unwrap();
}

/// The folder of all output of one name, and that of one object's.
fn folders(here: &Namespace<'_>, name: &str, uid: &str) -> [PathBuf; 2] {
    let named = here.bed.data.join("htc_out").join(&here.name).join(name);
    [named.clone(), named.join(&uid[..8])]
}

/// Creates one, waits until its output is here, and lets it go in order.
fn come_and_go(here: &Namespace<'_>, name: &str) -> String {
    let uid = here.create(&htcjob(name, "echo ran; echo failed >&2; exit 1"));
    here.wait_says(name, "OutputFetched", "True", "Fetched");
    assert!(here.output(name, 0).join("out").exists());
    here.delete(name);
    uid
}

fn files_and_rows_are_deleted_after_their_retention(version: Version) {
    let site = Site::with(version, "", TIMES);
    let bed = &site.bed;
    let file = bed.data.join("sqlite/htcjobs.db");
    let original = testbed::Scratch::new().unwrap();
    let made = original.path().join("htcjobs.db");
    rusqlite::Connection::open(&made)
        .unwrap()
        .execute_batch(
            "create table htcjobs(htcjobName varchar, jobId char(10), status integer, tempDir varchar, uniqid integer);
             insert into htcjobs values ('old', '884426.0', 24, '/tmp/a', 5)",
        )
        .unwrap();
    testbed::Account::unprivileged().make_dir(file.parent().unwrap(), 0o755).unwrap();
    testbed::Account::unprivileged().write(&file, std::fs::read(&made).unwrap(), 0o644).unwrap();
    bed.start_operator();
    let here = bed.namespace();

    // One whose finalizer somebody takes away: nobody has seen that its jobs are gone.
    let by_hand = here.create(&htcjob("by-hand", "echo ran"));
    here.wait_says("by-hand", "OutputFetched", "True", "Fetched");
    bed.stop_operator();
    here.force_away("by-hand");
    bed.start_operator();

    // One that is let go, but stays for somebody else's sake.
    let mut other = htcjob("kept", "echo ran");
    other["metadata"]["finalizers"] = json!(["example.com/archive"]);
    let kept = here.create(&other);
    here.wait_says("kept", "OutputFetched", "True", "Fetched");
    here.begin_delete("kept");
    here.wait("kept", "let go by the operator", |object| {
        object["metadata"]["finalizers"] == json!(["example.com/archive"])
    });

    let first = come_and_go(&here, "again");
    let [_, first_folder] = folders(&here, "again", &first);
    assert!(bed.rows_of(&first).is_some_and(|rows| rows.iter().all(|rows| *rows > 0)), "{:?}", bed.rows_of(&first));
    wait_gone(&bed.sandbox(&first));
    let second = here.create(&htcjob("again", "echo second"));
    here.wait_says("again", "OutputFetched", "True", "Fetched");
    let [named, second_folder] = folders(&here, "again", &second);
    wait_gone(&first_folder);
    bed.wait_no_rows(&first);
    // Longer gone than the first, and older than it.
    for (uid, name) in [(&by_hand, "by-hand"), (&kept, "kept"), (&second, "again")] {
        assert!(bed.sandbox(uid).join("job.sh").exists(), "{name}");
        assert!(folders(&here, name, uid)[1].join("0/out").exists(), "{name}");
        assert!(here.output(name, 0).join("out").exists(), "{name}: latest");
        assert!(
            bed.rows_of(uid).is_some_and(|rows| rows.iter().all(|rows| *rows > 0)),
            "{name}: {:?}",
            bed.rows_of(uid)
        );
    }
    assert_eq!(std::fs::read_link(named.join("latest")).unwrap(), Path::new(&second[..8]));

    here.delete("again");
    for gone in [&bed.sandbox(&second), &second_folder, &named.join("latest"), &named] {
        wait_gone(gone);
    }
    here.merge("kept", &json!({ "metadata": { "finalizers": null } }));
    here.wait_gone("kept");
    wait_gone(&folders(&here, "kept", &kept)[0]);
    for uid in [&second, &kept] {
        bed.wait_no_rows(uid);
        assert!(!bed.sandbox(uid).exists());
    }
    assert!(here.output("by-hand", 0).join("out").exists() && bed.sandbox(&by_hand).exists());
    assert!(bed.rows_of(&by_hand).is_some_and(|rows| rows.iter().all(|rows| *rows > 0)));
    bed.wait_ledger(
        "select htcjobName, jobId, status, tempDir, uniqid from htcjobs where uid is null",
        &[&["old", "884426.0", "24", "/tmp/a", "5"]],
    );
    println!("{version}: {}", bed.log().lines().filter(|line| line.contains("removed")).count());
}

/// A restored etcd brings back an HTCJob with the operator's finalizer and claim, so old that its rows are deleted: its
/// jobs have run.
fn htcjob_restored_after_retention_is_not_submitted(version: Version) {
    let site =
        Site::with(version, "", &["--output-retention=0s", "--history-retention=0s", "--cleanup-interval=500ms"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    site.start_lasting(&here, &["lasting"]);
    let annotations = here.get("lasting")["metadata"]["annotations"].clone();
    let finalizers = here.get("lasting")["metadata"]["finalizers"].clone();
    let name = wait_for("one that is as old as what is forgotten", PATIENCE, || {
        let gone = come_and_go(&here, "gone");
        site.bed.wait_no_rows(&gone);
        let name = format!("back-{}", &gone[..8]);
        let mut back = site.noted(&name, 1, "");
        back["metadata"]["annotations"] = annotations.clone();
        back["metadata"]["finalizers"] = finalizers.clone();
        here.create(&back);
        here.wait(&name, "looked at", |object| bed::condition(object, "Submitted").is_some());
        // The clock of the API server has a minute.
        let new = site.bed.ledger(&format!("select isNew from objects where name = '{name}'")).ok()?;
        (new == [["0"]]).then_some(name)
    })
    .unwrap();
    here.wait_says(&name, "Submitted", "False", "HistoryTooShort");
    assert_eq!(site.runs(&name, 0), 0);
    here.annotate(&name, "htc.cern.ch/submit-again");
    site.assert_complete_once(&here, &name, 1);
    // What this operator claims itself is new, whatever it has forgotten.
    here.create(&site.noted("new", 1, ""));
    site.assert_complete_once(&here, "new", 1);
    site.finish("lasting");
    site.assert_complete_once(&here, "lasting", 1);
}
