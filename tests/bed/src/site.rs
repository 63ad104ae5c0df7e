//! A bed with gates before HTCondor's tools, and a folder into which each payload notes that it ran.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::Value;
use testbed::{KubeOptions, PoolOptions, Scratch, Version, wait_for};

use crate::gates::Gates;
use crate::{Bed, Namespace, PATIENCE, condition, htcjob, ids};

/// How long SIGTERM may take, but for what the machine withholds: the 4 s that the operator gives to what runs, the 3 s for its Lease,
/// and one. Less than any call of a tool but `condor_submit`, or of the API server, may last.
pub const PROMPT: std::time::Duration = std::time::Duration::from_secs(8);

pub struct Site {
    // Fields drop in this order: the servers before their folders.
    pub bed: Bed,
    pub gates: Gates,
    /// Bound into each payload's container.
    runs: PathBuf,
    _scratch: Scratch,
}

impl Site {
    /// Servers without the operator.
    pub fn new(version: Version) -> Self {
        Self::with(version, "", &[])
    }

    /// The same with lines for the pool's configuration and arguments for the operator.
    pub fn with(version: Version, extra_config: &str, arguments: &[&str]) -> Self {
        Self::on(Bed::new, version, extra_config, arguments)
    }

    /// Servers without the operator, and an API server of its own.
    pub fn alone(version: Version, kube: &KubeOptions, arguments: &[&str]) -> Self {
        let bed =
            |version, options: &PoolOptions, arguments: &[&str]| Bed::with_kube(version, kube, options, arguments);
        Self::on(bed, version, "", arguments)
    }

    fn on(
        bed: impl FnOnce(Version, &PoolOptions, &[&str]) -> Bed,
        version: Version,
        extra_config: &str,
        arguments: &[&str],
    ) -> Self {
        let scratch = Scratch::new().unwrap();
        let runs = scratch.dir("runs").unwrap();
        let gates = Gates::new(version);
        let gate = gates.argument();
        let bind = format!("--bind={}", runs.display());
        let options = PoolOptions { extra_config: extra_config.to_owned(), ..PoolOptions::default() };
        let bed = bed(version, &options, &[&[gate.as_str(), bind.as_str()][..], arguments].concat());
        // A schedd that finds its jobs' nodes gone with it begins the jobs again after this time: 40 minutes otherwise.
        let mut config = fs::OpenOptions::new().append(true).open(bed.condor.config()).unwrap();
        writeln!(config, "JOB_DEFAULT_LEASE_DURATION = 20").unwrap();
        Self { bed, gates, runs, _scratch: scratch }
    }

    /// Servers with the operator running.
    pub fn start(version: Version) -> Self {
        let site = Self::new(version);
        site.bed.start_operator();
        site
    }

    /// What binds the folder into the payloads of another operator.
    pub fn bind(&self) -> String {
        format!("--bind={}", self.runs.display())
    }

    /// An `HTCJob` that notes that it ran, and then runs `script`.
    pub fn noted(&self, name: &str, queue: u32, script: &str) -> Value {
        let runs = self.runs.display();
        let mut object = htcjob(name, &format!("echo $JOB_NAME.$HTCPROCID >>{runs}/ran\n{script}\n"));
        object["spec"]["queue"] = queue.into();
        object
    }

    /// One that notes that it ran, and then runs until [`Self::finish`].
    pub fn lasting(&self, name: &str, queue: u32) -> Value {
        let runs = self.runs.display();
        self.noted(name, queue, &format!("while [ ! -e {runs}/finish-$JOB_NAME ]; do sleep 0.3; done; echo finished"))
    }

    /// Creates one such `HTCJob` of one job for each name, and waits until all run.
    pub fn start_lasting(&self, here: &Namespace<'_>, names: &[&str]) {
        for name in names {
            here.create(&self.lasting(name, 1));
        }
        for name in names {
            here.wait_phase(name, "Running");
        }
    }

    pub fn finish(&self, name: &str) {
        fs::write(self.runs.join(format!("finish-{name}")), "").unwrap();
    }

    /// The file in which payloads note that they ran, a line each: `name.index`.
    pub fn ran(&self) -> PathBuf {
        self.runs.join("ran")
    }

    /// How often a payload ran.
    pub fn runs(&self, name: &str, index: u32) -> usize {
        let wanted = format!("{name}.{index}");
        fs::read_to_string(self.ran()).unwrap_or_default().lines().filter(|line| *line == wanted).count()
    }

    /// How often each payload ran.
    pub fn all_runs(&self) -> BTreeMap<String, usize> {
        let mut runs = BTreeMap::new();
        for line in std::fs::read_to_string(self.ran()).unwrap_or_default().lines() {
            *runs.entry(line.to_owned()).or_default() += 1;
        }
        runs
    }

    /// The same, which is then forgotten: the names may be used again.
    pub fn forget_runs(&self) -> BTreeMap<String, usize> {
        let runs = self.all_runs();
        std::fs::remove_file(self.ran()).unwrap();
        runs
    }

    /// The `HTCJob` has succeeded with the output of each job here, by the ads each job ran once and by its own word
    /// each payload did.
    pub fn assert_complete_once(&self, here: &Namespace<'_>, name: &str, jobs: u32) -> Value {
        let ended = here.wait_ended(name);
        assert!(crate::is_true(&ended, "Complete"), "{ended:#}\n{}", self.bed.logs());
        assert_eq!(ended["status"]["phase"], "Completed");
        for (count, expected) in [("succeeded", jobs), ("failed", 0), ("active", 0)] {
            assert_eq!(ended["status"][count], expected, "{ended:#}");
        }
        let uid = ended["metadata"]["uid"].as_str().unwrap();
        here.wait_nothing_left(uid);
        let seen = self.bed.assert_once(uid, name, jobs);
        let mut ran: Vec<&str> = seen.iter().map(|job| job.id.as_str()).collect();
        let mut reported = ids(&ended);
        ran.sort_unstable();
        reported.sort_unstable();
        assert_eq!(reported, ran, "the status names the jobs that ran");
        for job in &seen {
            assert_eq!(self.runs(name, job.index), 1, "{name}.{}: {seen:#?}\n{}", job.index, self.bed.logs());
            assert!(here.output(name, job.index).join("out").exists());
        }
        ended
    }

    /// Every row of the journal is an Event. Ends the operator and starts it again. Gives what stands in the journal.
    pub fn assert_all_events_written(&self, here: &Namespace<'_>) -> Vec<(String, String)> {
        self.bed.stop_operator();
        let rows = journal(&self.bed, &here.name);
        self.bed.start_operator();
        wait_for("every row of the journal to be an Event", PATIENCE, || {
            let reported = events(here);
            rows.iter().find(|row| !reported.contains(row)).map_or(Ok(()), |row| Err(format!("{row:?} is not told")))
        })
        .unwrap();
        rows
    }

    /// The same, once, and no Event is anything else.
    pub fn assert_events_match_journal(&self, here: &Namespace<'_>) {
        let rows = self.assert_all_events_written(here);
        let mut reported = events(here);
        for row in &rows {
            reported.remove(reported.iter().position(|event| event == row).unwrap());
        }
        reported.retain(|event| !is_pruned(event, &rows));
        assert!(reported.is_empty(), "Events that are not in the journal, or there twice: {reported:?}");
    }
}

/// So many of the last rows of an object are all there; of those before them only what is not told.
const KEPT: u32 = 200;

/// Whether the row that this was is no longer kept.
fn is_pruned(event: &(String, String), rows: &[(String, String)]) -> bool {
    let parts =
        |name: &str| name.rsplit_once('.').map(|(object, seq)| (object.to_owned(), seq.parse::<u32>().unwrap()));
    let (object, seq) = parts(&event.0).unwrap();
    rows.iter().filter_map(|row| parts(&row.0)).any(|(other, last)| other == object && last >= seq + KEPT)
}

/// Name and reason of the Event that each row of the journal should be.
fn journal(bed: &Bed, namespace: &str) -> Vec<(String, String)> {
    let query = format!(
        "select o.name || '.' || substr(t.uid, 1, 8) || '.' || printf('%04d', t.seq), t.reason,
            max(t.seq) over of_one - t.seq, row_number() over (of_one order by t.seq desc) - 1
         from transitions t join objects o using (uid) where o.namespace = '{namespace}' window of_one as (partition by t.uid)
         order by t.uid, t.seq"
    );
    let rows = bed.ledger(&query).unwrap();
    let is_kept = |row: &&Vec<String>| row[2].parse::<u32>().unwrap() < KEPT;
    assert!(rows.iter().filter(is_kept).all(|row| row[2] == row[3]), "the journal has gaps: {rows:?}");
    rows.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect()
}

/// Names without the id of the ledger, which only some have, and reasons.
fn events(here: &Namespace<'_>) -> Vec<(String, String)> {
    let name = |event: &Value| match event["metadata"]["name"].as_str().unwrap().split('.').collect::<Vec<_>>()[..] {
        [object, uid, seq] | [object, uid, _, seq] => format!("{object}.{uid}.{seq}"),
        ref other => panic!("an Event is called {other:?}"),
    };
    let of = |event: &Value| (name(event), event["reason"].as_str().unwrap().to_owned());
    here.all_events().iter().map(of).collect()
}

/// Whether a condition of the object has this status and this reason.
pub fn says(object: &Value, kind: &str, status: &str, reason: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == status && condition["reason"] == reason)
}

impl Namespace<'_> {
    /// Waits until a condition has this status and this reason; its message.
    pub fn wait_says(&self, name: &str, kind: &str, status: &str, reason: &str) -> String {
        let object = self.wait(name, &format!("{kind} {status} {reason}"), |object| says(object, kind, status, reason));
        condition(&object, kind).unwrap()["message"].as_str().unwrap().to_owned()
    }

    /// How many Events the object has with this reason.
    pub fn count_events(&self, name: &str, reason: &str) -> usize {
        self.events(name).iter().filter(|(other, _)| other == reason).count()
    }
}
