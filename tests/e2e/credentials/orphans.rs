//! Jobs in users' names that belong to no HTCJob.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;

use testbed::{Account, Client, Version, wait_for};

use crate::credentials::site::{Site, put_secret, with_secret};
use bed::gates::Gates;
use bed::{Bed, Namespace, PATIENCE, UNTIL_LET_GO, ids};

on_versions! {
    trixie: check_names_orphans_with_and_without_an_operator, orphans_command_removes_only_orphans;
}

/// The ledger's folder, byte by byte.
fn ledger_files(bed: &Bed) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(bed.data.join("sqlite")).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// `check` finds them by the names that the ledger knows, whether an operator has it or not, and leaves it as it is.
fn check_names_orphans_with_and_without_an_operator(version: Version) {
    let site = Site::start(version);
    let bed = &site.bed;
    let here = bed.namespace();
    put_secret(&here, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    here.let_read_secret("mine");
    let uid = here.create(&with_secret("left", "mine", UNTIL_LET_GO));
    here.create(&with_secret("stays", "mine", UNTIL_LET_GO));
    let left = ids(&here.wait_phase("left", "Running")).remove(0);
    here.wait_phase("stays", "Running");
    let (well, output) = bed.check();
    assert!(well && output.contains("ok    orphans: none") && !output.contains("own name"), "{output}");

    // It dies with all that it wrote in the log, and somebody takes the finalizer away.
    bed.kill_operator();
    here.force_away("left");
    let named = format!("WRONG orphans: 1 jobs in HTCondor belong to no HTCJob: {left};");
    let before = ledger_files(bed);
    assert!(before.keys().any(|path| path.ends_with("htcjobs.db-wal")), "{:?}", before.keys());
    let (well, output) = bed.check();
    assert!(!well && output.contains(&named) && output.contains("is writable; ledger "), "{output}");
    assert!(ledger_files(bed) == before, "check has changed the ledger");

    bed.start_operator();
    wait_for("the orphan to be counted", PATIENCE, || bed.log().contains("orphans=1")).unwrap();
    let (well, output) = bed.check();
    assert!(!well && output.contains(&named) && output.contains("is in use by a running operator"), "{output}");
    // Nobody but that user may remove it, and the Secret is there.
    let (well, output) = bed.orphans(&["--pool", "default", "--remove"]);
    assert!(
        well && output.contains(&format!("{left}   ")) && output.contains("left   Running   alice@test   yes"),
        "{output}"
    );
    here.wait_nothing_left(&uid);
    assert_eq!(here.get("stays")["status"]["phase"], "Running");

    // Without what the ledger knows it says what it cannot see.
    bed.stop_operator();
    here.force_away("stays");
    // And it does not act for who gives it no credentials any more.
    here.remove("secret", "mine");
    let (well, output) = bed.orphans(&["--remove"]);
    assert!(!well && output.contains("alice@test   no") && output.contains("there is no Secret"), "{output}");
    for path in ledger_files(bed).into_keys() {
        std::fs::remove_file(path).unwrap();
    }
    let (_, output) = bed.check();
    assert!(output.contains("ok    orphans: none") && output.contains("own jobs were checked: no ledger"), "{output}");
    let file = bed.data.join("sqlite/htcjobs.db");
    Account::unprivileged().write(&file, "no database ".repeat(1000), 0o644).unwrap();
    let (well, output) = bed.check();
    let why = format!("only the operator's own jobs were checked: cannot open the ledger {}", file.display());
    assert!(!well && output.contains("WRONG database: ") && output.contains(&why), "{output}");
    assert_eq!(ledger_files(bed).len(), 1);
}

/// What somebody submits by hand as if it were a job of an HTCJob, and waits for ever; the first one's id.
fn forge(who: &Client, operator: &str, uid: &str, more: &str) -> String {
    let description = format!(
        "executable = /bin/true\ntransfer_executable = false\nMy.HTCOperator = \"{operator}\"\nMy.HTCJobUID = \"{uid}\"\n\
         My.HTCJobAttempt = 1\nMy.HTCJobIndex = 0\nrequirements = false\n{more}\nqueue\n"
    );
    who.submit(&description).unwrap()
}

/// An HTCJob whose job waits for ever, with a Secret or without; its uid and its job's id.
fn waiting(here: &Namespace<'_>, name: &str, secret: Option<&str>) -> (String, String) {
    let mut object = match secret {
        Some(secret) => with_secret(name, secret, "true"),
        None => bed::htcjob(name, "true"),
    };
    object["spec"]["htcopts"] = "requirements = false".into();
    let uid = here.create(&object);
    (uid, ids(&here.wait(name, "it is idle", |object| object["status"]["idle"] == 1)).remove(0))
}

/// Forged ads, and changes while the command runs, make it remove no job whose HTCJob exists and none of a user that
/// the operator has not submitted as. They do not protect orphans of others either.
fn orphans_command_removes_only_orphans(version: Version) {
    let (site, gates) = (Site::start(version), Gates::new(version));
    let bed = &site.bed;
    let (hers, also_hers, ours) = (bed.namespace(), bed.namespace(), bed.namespace());
    for here in [&hers, &also_hers] {
        put_secret(here, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
        here.let_read_secret("mine");
    }
    let (left, left_job) = waiting(&hers, "left", Some("mine"));
    let (_, back_job) = waiting(&also_hers, "back", Some("mine"));
    let (_, later_job) = waiting(&ours, "later", None);
    let (stays, stays_job) = waiting(&ours, "stays", None);
    let operator = bed.queue("true", &["HTCOperator"])[0][0].clone();
    bed.kill_operator();
    let copies = [&also_hers, &ours].map(|here| bed.kube.copy_stored("htc.cern.ch/htcjobs", &here.name).unwrap());
    hers.force_away("left");
    also_hers.force_away("back");
    ours.force_away("later");

    let [alice, eve] = ["alice@test", "eve@test"].map(|name| bed.pool.client(name).unwrap());
    // Nobody has submitted as eve; and what says that it is of an HTCJob that is there is none.
    let kept = [stays_job, forge(&eve, &operator, &left, ""), forge(&alice, &operator, &stays, "")];
    // This one says so later.
    let moved = forge(&alice, &operator, &left, "");
    // What this one says of itself is more than can be shown.
    let flood = forge(&alice, &operator, &left, &format!("batch_name = {}", "x".repeat(10_000)));
    // Her other Secret is as good.
    hers.remove("secret", "mine");

    let more = ["--pool=default".to_owned(), gates.argument()];
    let orphans = |words: &[&str]| {
        let words: Vec<&str> = words.iter().copied().chain(more.iter().map(String::as_str)).collect();
        bed.orphans(&words)
    };
    let row = |said: &str, id: &str| {
        let line = said.lines().find(|line| line.split_whitespace().nth(1) == Some(id));
        line.map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" "))
    };
    let there = |ids: &[&str]| {
        let mut queue: Vec<String> =
            bed.queue("JobStatus =!= 3", &["ClusterId", "ProcId"]).iter().map(|id| id.join(".")).collect();
        let mut expected: Vec<&str> = kept.iter().map(String::as_str).chain(ids.iter().copied()).collect();
        queue.sort_unstable();
        expected.sort_unstable();
        assert_eq!(queue, expected);
    };
    let (well, said) = orphans(&[]);
    assert!(well && said.lines().filter(|line| line.starts_with("default ")).count() == 5, "{said}");
    for (id, expected) in [
        (&left_job, format!("{} left Idle alice@test", hers.name)),
        (&back_job, format!("{} back Idle alice@test", also_hers.name)),
        (&later_job, format!("{} later Idle operator@test", ours.name)),
    ] {
        assert_eq!(row(&said, id), Some(expected), "{said}");
    }
    assert!(row(&said, &flood).is_some_and(|row| row.starts_with("? ") && row.ends_with(" alice@test")), "{said}");
    there(&[&left_job, &back_job, &later_job, &flood, &moved]);

    // One HTCJob is there again when it is seen to whose the jobs are, and another when the first of them are removed.
    let removed = |said: &str, id: &str| row(said, id).unwrap_or_default().ends_with(" yes");
    let [back, later] = copies;
    gates.shut("condor_ping");
    gates.shut("condor_rm");
    let (well, said) = thread::scope(|scope| {
        let run = scope.spawn(|| orphans(&["--remove"]));
        gates.wait_at("condor_ping");
        bed.kube.put_back(&back).unwrap();
        gates.open("condor_ping");
        gates.wait_at("condor_rm");
        bed.kube.put_back(&later).unwrap();
        bed.pool.tool("condor_qedit", &[&moved, "HTCJobUID", &format!("\"{stays}\"")]).unwrap();
        gates.open("condor_rm");
        run.join().unwrap()
    });
    assert!(!well && removed(&said, &left_job) && removed(&said, &flood), "{said}");
    for id in [&back_job, &later_job] {
        assert!(said.contains(&format!("pool default: job {id} stays: its HTCJob is there again")), "{said}");
    }
    there(&[&back_job, &later_job, &moved]);

    // It is not known any more whether it is, when the first of them are removed.
    also_hers.force_away("back");
    ours.force_away("later");
    gates.shut("condor_rm");
    let (well, said) = thread::scope(|scope| {
        let run = scope.spawn(|| orphans(&["--remove"]));
        gates.wait_at("condor_rm");
        bed.may_list(false);
        gates.open("condor_rm");
        run.join().unwrap()
    });
    assert!(!well && removed(&said, &back_job) && !removed(&said, &later_job), "{said}");
    assert!(said.contains(&format!("job {later_job} stays: ")) && said.contains("cannot list HTCJobs"), "{said}");
    there(&[&later_job, &moved]);
    bed.may_list(true);

    // A tool that did nothing has removed nothing, whatever it says.
    gates.replace("condor_rm", "echo All jobs marked for removal");
    let (well, said) = orphans(&["--remove"]);
    assert!(!well && said.contains(&format!("job {later_job} stays: HTCondor did not remove it")), "{said}");
    gates.restore("condor_rm");
    // An answer that is cut short is none.
    gates.replace("condor_q", r#""$@" | head -c 200"#);
    let (well, said) = orphans(&["--remove"]);
    assert!(!well && !said.contains("No orphans in: default") && said.contains("not complete"), "{said}");
    gates.restore("condor_q");
    there(&[&later_job, &moved]);
    // Many jobs with long names are more than can be shown in time: only the names are missing then.
    gates.replace("condor_q", r#"case "$*" in *JobBatchName*) exit 1 ;; esac; exec "$@""#);
    let (well, said) = orphans(&["--remove"]);
    assert!(well && row(&said, &later_job).as_deref() == Some("? Idle operator@test yes"), "{said}");
    gates.restore("condor_q");
    there(&[&moved]);
}
