//! What is there to be seen after a round: HTCondor's ads, the API server's objects, what the payloads noted, the folders.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::soak::Soak;
use crate::soak::driver::Life;
use crate::soak::plan::QUEUE;
use bed::watch::{Watch, Watched};
use bed::{Namespace, files_below};

/// All of it, as it was found.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    pub lives: Vec<Life>,
    /// The `HTCJob`s that are still there.
    pub objects: Vec<Value>,
    pub watched: Watched,
    pub events: Vec<Value>,
    pub queue: Vec<Ad>,
    pub history: Vec<Ad>,
    pub records: Vec<Record>,
    /// By uid and index.
    pub outputs: BTreeMap<(String, u32), Output>,
    /// Names of what the schedd's spool folder has of jobs.
    pub spool: Vec<String>,
    /// The status of the queue.
    pub htcqueue: Value,
    /// When an operator was there, from its start to its end, in seconds since 1970.
    pub awake: Vec<(i64, i64)>,
}

/// What the operator says to `condor_rm`.
const OURS: &str = "removed by htc-operator";

/// One job, as its ad has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ad {
    /// `ClusterId.ProcId`
    pub id: String,
    /// `HTCJobUID`; empty if it has none.
    pub uid: String,
    pub index: u32,
    pub attempt: i64,
    /// `JobStatus`
    pub status: i64,
    /// `StageInFinish`
    pub staged: Option<i64>,
    /// `JobCurrentStartDate`: when it was started last.
    pub began: Option<i64>,
    /// `CompletionDate`; or when its output had come, if it was removed after its end.
    pub completed: Option<i64>,
    /// `EnteredCurrentStatus`, if it is removed.
    pub removed: Option<i64>,
    /// `HTCNotAfter`
    pub not_after: Option<i64>,
    /// `NumShadowStarts` or `NumJobStarts`, whichever is larger: the latter is written late.
    pub starts: i64,
    pub exit_code: Option<i64>,
    /// `RemoveReason`; empty if there is none.
    pub remove_reason: String,
}

impl Ad {
    /// HTCondor got its files in time.
    pub fn counts(&self) -> bool {
        matches!((self.staged, self.not_after), (Some(staged), Some(limit)) if staged <= limit)
    }

    /// It is removed, and no tool of the operator's has done it: each of them gives its reason.
    pub fn is_removed_by_others(&self) -> bool {
        self.status == 3 && !self.remove_reason.starts_with(OURS)
    }

    /// It was begun and is removed, and no tool has done that: each of them gives a reason.
    pub fn is_removed_without_reason(&self) -> bool {
        self.status == 3 && self.began.is_some() && self.remove_reason.is_empty()
    }

    /// HTCondor got its files too late.
    pub fn is_late(&self) -> bool {
        self.staged.is_some() && !self.counts()
    }

    pub fn read(ad: &Value) -> Self {
        let number = |name: &str| ad[name].as_i64();
        let all = |name: &str| number(name).unwrap_or_default();
        Self {
            id: format!("{}.{}", all("ClusterId"), all("ProcId")),
            uid: ad["HTCJobUID"].as_str().unwrap_or_default().to_owned(),
            index: number("HTCJobIndex").and_then(|index| u32::try_from(index).ok()).unwrap_or(u32::MAX),
            attempt: all("HTCJobAttempt"),
            status: all("JobStatus"),
            staged: number("StageInFinish"),
            began: number("JobCurrentStartDate"),
            completed: number("CompletionDate").filter(|date| *date > 0).or_else(|| {
                // The schedd writes the date some seconds after JobStatus 4, and never if the job is removed in between.
                number("TransferOutFinished").filter(|_| all("JobStatus") == 3 && all("LastJobStatus") == 4)
            }),
            removed: number("EnteredCurrentStatus").filter(|_| all("JobStatus") == 3),
            not_after: number("HTCNotAfter"),
            starts: all("NumShadowStarts").max(all("NumJobStarts")),
            exit_code: number("ExitCode"),
            remove_reason: ad["RemoveReason"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

const ATTRIBUTES: &str = "ClusterId,ProcId,HTCJobUID,HTCJobIndex,HTCJobAttempt,JobStatus,StageInFinish,CompletionDate,HTCNotAfter,\
                          JobCurrentStartDate,EnteredCurrentStatus,NumShadowStarts,NumJobStarts,ExitCode,RemoveReason,\
                          LastJobStatus,TransferOutFinished";

/// One line that a payload wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub uid: String,
    pub index: u32,
    /// The job that it ran in.
    pub id: String,
    /// Tells runs apart.
    pub token: String,
    pub end: bool,
}

impl Record {
    fn read(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        let [uid, index, id, token, what] = words[..] else { panic!("not a payload's line: {line:?}") };
        let index = index.parse().unwrap();
        Self { uid: uid.to_owned(), index, id: id.to_owned(), token: token.to_owned(), end: what == "end" }
    }
}

/// Files of one job's output folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Its standard output.
    pub out: Option<String>,
    /// A file that it made.
    pub result: Option<String>,
}

impl Soak {
    /// Looks at everything once. Jobs of former rounds are left out, those that nobody knows are not.
    pub fn collect(&self, here: &Namespace<'_>, watch: &Watch, lives: &[Life], former: &[String]) -> Collected {
        // In this order: a job that leaves the queue meanwhile is seen in history.
        let queue = self.ads("condor_q", &["-allusers"]);
        let history = self.ads("condor_history", &[]);
        let mut outputs = BTreeMap::new();
        for life in lives {
            for index in (0..).take(life.plan.codes.len()) {
                outputs.insert((life.uid.clone(), index), output(here, life, index));
            }
        }
        let htcqueue = self.bed.kube.kubectl_ok(&["get", "htcqueue", QUEUE, "-o", "json"]).unwrap();
        let htcqueue: Value = serde_json::from_str(&htcqueue).unwrap();
        let ours = |uid: &String| !former.contains(uid);
        let records = fs::read_to_string(&self.records).unwrap_or_default();
        // The last line may be under way.
        let records = records.rfind('\n').map_or("", |end| &records[..end]);
        let events = here.all_events();
        let spool = files_below(&self.bed.pool.spool_dir(), &|name| name.starts_with("cluster"));
        // What jobs of former rounds left there has been judged with them.
        let swept = |name: &String| spooled(&history, name).is_some_and(|ad| ad.staged.is_none() && !ours(&ad.uid));
        Collected {
            lives: lives.to_vec(),
            objects: here.all(),
            watched: watch.watched(),
            events,
            queue,
            spool: spool
                .iter()
                .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .filter(|name| !swept(name))
                .collect(),
            history: history.into_iter().filter(|ad| ours(&ad.uid)).collect(),
            records: records.lines().map(Record::read).filter(|record| ours(&record.uid)).collect(),
            outputs,
            htcqueue: htcqueue["status"].clone(),
            awake: self.awake(),
        }
    }

    fn ads(&self, tool: &str, arguments: &[&str]) -> Vec<Ad> {
        let arguments = [arguments, &["-json", "-attributes", ATTRIBUTES]].concat();
        let text = self.bed.pool.tool(tool, &arguments).unwrap();
        // Where there is no job, condor_q prints nothing.
        let list: Vec<Value> = if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() };
        list.iter().map(Ad::read).collect()
    }
}

/// The job that something in the spool folder is of, such as `cluster7.proc0.subproc0`.
pub fn spooled<'a>(ads: &'a [Ad], name: &str) -> Option<&'a Ad> {
    let mut parts = name.split('.');
    let cluster = parts.next()?.strip_prefix("cluster")?;
    let id = format!("{cluster}.{}", parts.next()?.strip_prefix("proc")?);
    ads.iter().find(|ad| ad.id == id)
}

fn output(here: &Namespace<'_>, life: &Life, index: u32) -> Output {
    let folder = here.output(&life.plan.name, index);
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    Output { out: read("out"), result: read("result") }
}
