//! State that the Go operator leaves: its jobs, its database, its finalizer and its status.

use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::{Value, json};
use testbed::{Account, Client, wait_for};

use bed::{Bed, Namespace, PATIENCE, condition, files_below, htcjob};

pub const FINALIZER: &str = "finalizer.htc.cern.ch";
const TABLE: &str =
    "create table htcjobs(htcjobName varchar, jobId char(10), status integer, tempDir varchar, uniqid integer)";
/// The first job of each script waits to be let go; all scripts end with 0, as the Go operator's do.
const JOB: &str =
    "#!/bin/sh\nif [ \"$1\" = 0 ]; then until [ -e go ]; do sleep 0.2; done; fi\necho ran $1\necho made >made.$1\n";

/// A row of its database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub name: String,
    pub id: String,
    pub status: i64,
    pub folder: String,
    pub uniqid: i64,
}

/// The Go operator, as far as it leaves something.
pub struct Old<'a> {
    bed: &'a Bed,
    rows: Mutex<Vec<Row>>,
}

/// One submission of its.
pub struct Submitted {
    pub ids: Vec<String>,
    pub folder: PathBuf,
    pub uniqid: i64,
}

impl<'a> Old<'a> {
    pub fn new(bed: &'a Bed) -> Self {
        Self { bed, rows: Mutex::default() }
    }

    /// Submits as it does, in a folder of its own which is gone afterwards, as with its container.
    pub fn submit(&self, client: &Client, name: &str, queue: u32, options: &str) -> Submitted {
        let uniqid = i64::MAX - i64::try_from(self.rows.lock().unwrap().len()).unwrap();
        let folder = client.home().join(format!("tmp{name}{}", self.bed.queue("true", &["ClusterId"]).len()));
        let account = Account::unprivileged();
        account.make_dir(&folder, 0o755).unwrap();
        for (file, text) in [("job.sh", JOB), ("script.sh", "true\n"), ("sender", "x")] {
            account.write(&folder.join(file), text, 0o755).unwrap();
        }
        let here = folder.display();
        let text = format!(
            "universe = vanilla\nexecutable = job.sh\n+MaxRuntime = 1200\n+AccountingGroup = \"group_u_CMST3.all\"\n\
             arguments = $(ProcId)\nshould_transfer_files = Yes\nwhen_to_transfer_output = ON_EXIT\n\
             output = out.$(ClusterId).$(ProcId)\nerror = err.$(ClusterId).$(ProcId)\nlog = log.$(ClusterId).$(ProcId)\n\
             transfer_input_files = script.sh, sender\non_exit_remove = (ExitBySignal == False) && (ExitCode == 0)\n\
             max_retries = 3\nrequirements = Machine =!= LastRemoteHost\n\
             environment = \"JOB_NAME={name} TEMP_DIR={here}\"\n{options}\nqueue {queue}\n"
        );
        account.write(&folder.join("job.sub"), text, 0o644).unwrap();
        let output = client
            .command("condor_submit")
            .current_dir(&folder)
            .args(["-verbose", "-spool", "job.sub"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let column = |word: &str| -> Vec<String> {
            let start = format!("{word} = ");
            printed.lines().filter_map(|line| Some(line.strip_prefix(&start)?.to_owned())).collect()
        };
        let ids: Vec<String> = column("ClusterId")
            .iter()
            .zip(column("ProcId"))
            .map(|(cluster, proc)| format!("{cluster}.{proc}"))
            .collect();
        assert_eq!(ids.len(), queue as usize, "{printed}");
        std::fs::remove_dir_all(&folder).unwrap();
        Submitted { ids, folder, uniqid }
    }

    /// Writes rows with these codes.
    pub fn note(&self, name: &str, submitted: &Submitted, codes: &[i64]) {
        let mut rows = self.rows.lock().unwrap();
        for (id, status) in submitted.ids.iter().zip(codes) {
            let folder = submitted.folder.display().to_string();
            rows.push(Row { name: name.to_owned(), id: id.clone(), status: *status, folder, uniqid: submitted.uniqid });
        }
    }

    /// Makes the object as it leaves it, with what its codes say in the status; its uid.
    pub fn object(here: &Namespace<'_>, mut object: Value, submitted: &Submitted, codes: &[i64]) -> String {
        object["metadata"]["finalizers"] = json!([FINALIZER]);
        let uid = here.create(&object);
        let count = |code: i64| codes.iter().filter(|other| **other % 10 == code).count();
        let status = json!({ "status": {
            "uniqid": submitted.uniqid, "clusterid": "", "jobids": submitted.ids,
            "active": count(1), "succeeded": count(4), "failed": count(7),
        } });
        let name = object["metadata"]["name"].as_str().unwrap();
        here.patch_status("htcjob", name, &status);
        uid
    }

    /// Submits, writes the rows and makes the object.
    pub fn run(&self, here: &Namespace<'_>, name: &str, codes: &[i64], options: &str) -> (String, Submitted) {
        let queue = u32::try_from(codes.len()).unwrap();
        let submitted = self.submit(&self.bed.condor, name, queue, options);
        self.note(name, &submitted, codes);
        let mut object = htcjob(name, "true");
        object["spec"]["queue"] = queue.into();
        let uid = Self::object(here, object, &submitted, codes);
        (uid, submitted)
    }

    /// Writes the database file where the operator looks for it.
    pub fn leave_database(&self) {
        let made = testbed::Scratch::new().unwrap();
        let file = made.path().join("made.db");
        let database = rusqlite::Connection::open(&file).unwrap();
        database.execute_batch(TABLE).unwrap();
        for row in self.rows.lock().unwrap().iter() {
            let values = rusqlite::params![row.name, row.id, row.status, row.folder, row.uniqid];
            database.execute("insert into htcjobs values (?1, ?2, ?3, ?4, ?5)", values).unwrap();
        }
        drop(database);
        let account = Account::unprivileged();
        let place = self.bed.data.join("sqlite");
        account.make_dir(&place, 0o755).unwrap();
        account.write(&place.join("htcjobs.db"), std::fs::read(&file).unwrap(), 0o644).unwrap();
    }

    /// No row of it is lost, and nothing in it is changed but `status`.
    pub fn assert_rows_kept(&self) {
        let columns =
            "select htcjobName, jobId, tempDir, uniqid from htcjobs where coalesce(attempt, 0) = 0 order by 1, 2, 3";
        let kept = self.bed.ledger(columns).unwrap();
        let rows = self.rows.lock().unwrap();
        let mut left: Vec<Vec<String>> = rows
            .iter()
            .map(|row| vec![row.name.clone(), row.id.clone(), row.folder.clone(), row.uniqid.to_string()])
            .collect();
        left.sort();
        assert_eq!(kept, left);
    }
}

impl Submitted {
    /// Lets its first job go, wherever it runs, until none waits any more.
    pub fn let_go(&self, bed: &Bed) {
        let wanted = format!("TEMP_DIR={}", self.folder.display());
        let is_its = |ad: &PathBuf| std::fs::read_to_string(ad).is_ok_and(|text| text.contains(&wanted));
        let first = self.ids.first().unwrap();
        let (cluster, proc) = first.split_once('.').unwrap();
        let constraint = format!("ClusterId == {cluster} && ProcId == {proc} && JobStatus =!= 4");
        wait_for(&format!("job {first} to end"), PATIENCE, || {
            let ads = files_below(&bed.pool.spool_dir().with_file_name("execute"), &|name| name == ".job.ad");
            for ad in ads.into_iter().filter(is_its) {
                let _ = std::fs::write(ad.with_file_name("go"), "");
            }
            bed.queue(&constraint, &["ClusterId"]).is_empty()
        })
        .unwrap();
    }

    /// Waits until these of its jobs have this `JobStatus`.
    pub fn wait_status(&self, bed: &Bed, procs: std::ops::Range<u32>, status: &str) {
        let cluster = self.ids.first().unwrap().split_once('.').unwrap().0;
        let constraint = format!("ClusterId == {cluster} && ProcId >= {} && ProcId < {}", procs.start, procs.end);
        wait_for(&format!("jobs {constraint} to have status {status}"), PATIENCE, || {
            let found = bed.queue(&constraint, &["JobStatus"]);
            if found.len() == procs.len() && found.iter().all(|row| row[0] == status) {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .unwrap();
    }

    /// Waits until none of its jobs is in the queue.
    pub fn wait_gone(&self, bed: &Bed) {
        wait_for(&format!("{:?} to have left the queue", self.ids), PATIENCE, || self.queued(bed) == 0).unwrap();
    }

    /// How many of its jobs are in the queue.
    pub fn queued(&self, bed: &Bed) -> usize {
        let cluster = self.ids.first().unwrap().split_once('.').unwrap().0;
        bed.queue(&format!("ClusterId == {cluster}"), &["ProcId"]).len()
    }
}

/// Waits until a condition of the object has this status and reason.
pub fn wait_says(here: &Namespace<'_>, name: &str, kind: &str, status: &str, reason: &str) {
    here.wait(name, &format!("{kind} {status} {reason}"), |object| {
        condition(object, kind).is_some_and(|message| message["status"] == status && message["reason"] == reason)
    });
}
