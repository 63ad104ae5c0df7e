//! Each job of an `HTCJob` as an object of the API: [`HTCProc`]. It is made when somebody asks, from the `HTCJob` and the ledger,
//! and stored nowhere.

pub mod answer;
pub mod discovery;
pub mod list;
pub mod selection;
pub mod share;
pub mod story;
pub mod table;
pub mod target;

use std::sync::Arc;

use kube::Resource as _;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use crate::api::text::{WORDS, harmless};
use crate::api::{Backend, HTCJobSpec, MAX_QUEUE, ObjectName, Observed, PayloadFailure};
use crate::ledger::{ProcRow, ProcWish, RunRow};
use crate::machine::facts::{Exit, JobState};
use crate::machine::ids::{Index, SchedDate, Uid};
use crate::machine::indices::Indices;
use crate::machine::outcome::{Loss, Outcome};
use crate::machine::runs::{KeptLog, RunEnd, RunState};
use crate::machine::wishes::Wanted;

/// The API group. Not the `HTCJob`'s own: an APIService takes its group's whole version from the CRDs.
pub const GROUP: &str = "procs.htc.cern.ch";
/// The version.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of all objects.
pub const API_VERSION: &str = "procs.htc.cern.ch/v1alpha1";
/// The resource.
pub const RESOURCE: &str = "htcprocs";
/// The label, and the field, that name the `HTCJob`.
pub const HTCJOB_LABEL: &str = "htc.cern.ch/htcjob";
/// The label with the job's index.
pub const INDEX_LABEL: &str = "htc.cern.ch/index";
/// Longest value of a label.
const LABEL: usize = 63;

/// One job of an HTCJob. It cannot be created or changed: the HTCJob says what runs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HTCProc {
    /// What names it.
    #[serde(skip)]
    #[schemars(skip)]
    pub name: ProcName,
    /// Which job of which HTCJob it is.
    pub spec: HTCProcSpec,
    /// How the job is doing.
    pub status: HTCProcStatus,
}

/// What names a job: its metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcName {
    /// Namespace of the `HTCJob`.
    pub namespace: String,
    /// Name of the `HTCJob`.
    pub htcjob: String,
    /// Its uid.
    pub htcjob_uid: String,
    /// When that was created, in RFC 3339.
    pub created: Option<String>,
    /// Its index in the `HTCJob`.
    pub index: u32,
    /// Number of the ledger's transaction that last changed it.
    pub version: i64,
    /// The same of its state, or a later one if that is not known.
    pub stated: i64,
}

/// Which job of which HTCJob it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HTCProcSpec {
    /// Name of the HTCJob, in the same namespace.
    pub htc_job: String,
    /// The job's index in the HTCJob, from 0.
    pub index: u32,
    /// The job's item, if the HTCJob has items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

/// What a job is doing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema, Display, EnumString, IntoStaticStr, VariantArray,
)]
pub enum State {
    /// Not in HTCondor yet.
    Waiting,
    /// In HTCondor, not running.
    Idle,
    /// Running.
    Running,
    /// Held in HTCondor: holdReason says why.
    Held,
    /// Ended with exit code 0.
    Succeeded,
    /// Ended with another exit code, or killed by a signal.
    Failed,
    /// Removed before it ended, or never submitted because the HTCJob was cut short.
    Removed,
    /// HTCondor does not know the job any more.
    Lost,
}

impl State {
    /// Whether the job is over.
    #[must_use]
    pub const fn is_over(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Removed | Self::Lost => true,
            Self::Waiting | Self::Idle | Self::Running | Self::Held => false,
        }
    }

    /// Whether the job has failed, as `status.failed` and `status.failedIndexes` of an `HTCJob` count.
    #[must_use]
    pub const fn has_failed(self) -> bool {
        match self {
            Self::Failed | Self::Removed | Self::Lost => true,
            Self::Waiting | Self::Idle | Self::Running | Self::Held | Self::Succeeded => false,
        }
    }
}

/// How an attempt ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EarlierExit {
    /// Which of the attempts that ended by themselves it was, from 1.
    pub number: u32,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that killed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<i32>,
}

impl From<(u32, Exit)> for EarlierExit {
    fn from((number, exit): (u32, Exit)) -> Self {
        match exit {
            Exit::Code(code) => Self { number, exit_code: Some(code), exit_signal: None },
            Exit::Signal(signal) => Self { number, exit_code: None, exit_signal: Some(signal) },
        }
    }
}

/// How a job is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HTCProcStatus {
    /// Waiting, Idle, Running, Held, Succeeded, Failed, Removed or Lost.
    pub state: State,
    /// The job's id in HTCondor, ClusterId.ProcId; with backend Kubernetes the name of its newest Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The schedd that has, or had, the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedd: Option<String>,
    /// Exit code of the job's last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that killed the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<i32>,
    /// The slot that the job runs on, or ran on last; with backend Kubernetes the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How often HTCondor has started the job.
    pub attempts: u32,
    /// How the attempts ended that HTCondor ran again (maxRetries), the last ten of them. Those that HTCondor interrupted, and those
    /// that ended between two looks of the operator, are not among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier_exits: Vec<EarlierExit>,
    /// When HTCondor had the job and its files. Before that it was waiting, after that idle or running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submit_time: Option<String>,
    /// When the job was started last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// When the job ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// How long the last run took, or has taken so far, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<i64>,
    /// HTCondor's HoldReasonCode of a held job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_code: Option<i64>,
    /// Why the job is held, in HTCondor's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_reason: Option<String>,
    /// Since when the job is held in HTCondor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_since: Option<String>,
    /// What a user has asked for: Hold, Release or Remove. It is done as soon as HTCondor takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested: Option<&'static str>,
    /// Why the job is in this state, one word: RemovedByUser.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// What the state means, where that is known better; or why HTCondor has not done what is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the job's output is stored.
    pub output_fetched: bool,
    /// Size of the stored output in bytes. Absent if an older version of the operator stored it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<i64>,
}

/// As much of an `HTCJob` as its jobs need.
#[derive(Clone, Debug, Default)]
pub struct Parent {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// When it was created, in RFC 3339.
    pub created: Option<String>,
    /// Somebody has deleted it.
    pub deleted: bool,
    /// The jobs that it asks for; none if that cannot be read.
    pub asked_for: Indices,
    /// The object itself, for its items.
    pub(crate) object: Option<Arc<Observed>>,
}

impl Parent {
    /// From what the watch shows.
    #[must_use]
    pub fn of(object: &Arc<Observed>) -> Self {
        let meta = object.meta();
        let spec = object.0.as_ref().ok().map(|htcjob| &htcjob.spec);
        // Of items in a ConfigMap the status says how many of them run, once they are read.
        let total = || object.0.as_ref().ok().and_then(|htcjob| htcjob.status.as_ref()?.total);
        let read = || total().map(|total| spec.and_then(|spec| spec.indexes.as_ref()).map_or(total, |_| MAX_QUEUE));
        let queue = spec.and_then(|spec| spec.jobs().or_else(read)).and_then(|queue| u32::try_from(queue).ok());
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: Uid::from(meta.uid.as_deref().unwrap_or_default()),
            created: meta.creation_timestamp.as_ref().map(|time| time.0.to_string()),
            deleted: meta.deletion_timestamp.is_some(),
            asked_for: spec.map(|spec| asked_for(spec, queue.unwrap_or_default())).unwrap_or_default(),
            object: Some(Arc::clone(object)),
        }
    }

    /// What names it.
    #[must_use]
    pub fn htcjob(&self) -> ObjectName {
        ObjectName { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Whether only the ledger knows how many jobs it may have.
    #[must_use]
    pub fn counts_items(&self) -> bool {
        self.spec().is_some_and(|spec| spec.items_from.is_some() && spec.jobs().is_none())
    }

    /// That it has so many items.
    pub fn has_items(&mut self, items: u32) {
        if let Some(spec) = self.spec() {
            self.asked_for = asked_for(spec, items);
        }
    }

    fn spec(&self) -> Option<&HTCJobSpec> {
        Some(&self.object.as_ref()?.0.as_ref().ok()?.spec)
    }

    /// Whether its jobs have items that only the ledger knows.
    #[must_use]
    pub fn takes_items(&self) -> bool {
        self.spec().is_some_and(|spec| spec.items_from.is_some())
    }

    /// What runs its jobs.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.object.as_ref().map(|object| Backend::of(object)).unwrap_or_default()
    }

    /// What its spec says.
    fn item(&self, index: Index) -> Option<&String> {
        self.spec()?.items.get(usize::try_from(index.0).ok()?)
    }
}

/// The jobs that run of so many. Which do is the operator's to say; what it would refuse has none.
fn asked_for(spec: &HTCJobSpec, queue: u32) -> Indices {
    let Some(text) = &spec.indexes else { return Indices::first(queue) };
    let indexes = Indices::in_any_order(text);
    indexes.filter(|indexes| indexes.last().is_some_and(|last| last.0 < queue)).unwrap_or_default()
}

/// An object's uid follows from its HTCJob's and, of an HTCProc, the index: `kubectl describe` looks for Events by it.
fn uid(parent: &str, which: &str) -> String {
    let hash = Sha256::digest(format!("{parent}/{which}"));
    let first = hash.iter().take(16).fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    // Version 8 (one's own), variant 10.
    let number = first & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let hex = format!("{number:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn time(date: SchedDate) -> Option<String> {
    jiff::Timestamp::from_second(date.0).ok().map(|time| time.to_string())
}

impl ProcName {
    /// `<htcjob>-<index>`
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}-{}", self.htcjob, self.index)
    }

    /// `HTCJob` and index of a name: what follows the last hyphen is the index.
    #[must_use]
    pub fn parse(name: &str) -> Option<(&str, u32)> {
        let (htcjob, index) = name.rsplit_once('-')?;
        let plain = index == "0" || !index.starts_with('0');
        let digits = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        (plain && digits && !htcjob.is_empty()).then_some((htcjob, index.parse().ok()?))
    }

    /// The object's metadata. A name that is too long for a label has none; the field `spec.htcJob` selects it.
    #[must_use]
    pub fn metadata(&self) -> serde_json::Value {
        let mut labels = serde_json::json!({ INDEX_LABEL: self.index.to_string() });
        if self.htcjob.len() <= LABEL {
            labels[HTCJOB_LABEL] = self.htcjob.clone().into();
        }
        let mut metadata = serde_json::json!({
            "name": self.name(),
            "namespace": self.namespace,
            "uid": uid(&self.htcjob_uid, &self.index.to_string()),
            "resourceVersion": self.version.to_string(),
            "labels": labels,
        });
        if let Some(created) = &self.created {
            metadata["creationTimestamp"] = created.clone().into();
        }
        metadata
    }
}

impl HTCProc {
    /// A job that is recorded.
    #[must_use]
    pub fn recorded(parent: &Parent, row: &ProcRow, now: SchedDate) -> Self {
        let job = &row.job;
        let reported = || row.reported.map(|end| end.outcome());
        let outcome = job.outcome().cloned().or_else(reported);
        let mut status = HTCProcStatus {
            id: Some(job.id.to_string()),
            schedd: row.schedd.as_ref().map(|name| name.as_str().to_owned()),
            host: job.runs.host.as_deref().map(str::to_owned),
            // HTCondor counts a start a moment after the job runs.
            attempts: job.runs.count.max(u32::from(job.started)),
            submit_time: Some(job.staged_in).filter(|date| date.0 > 0).and_then(time),
            start_time: job.runs.start.and_then(time),
            completion_time: job.runs.end.and_then(time),
            output_fetched: job.fetched,
            output_bytes: row.output_bytes.filter(|_| job.fetched),
            ..HTCProcStatus::new(State::Idle)
        };
        status.state = match (&outcome, &job.state) {
            (Some(outcome), _) => status.ended(outcome),
            (None, JobState::Running) => State::Running,
            (None, JobState::Held(hold)) => {
                (status.hold_code, status.hold_reason) = (Some(hold.code), Some(hold.reason.clone()));
                status.held_since = hold.since.and_then(time);
                State::Held
            }
            (None, JobState::Idle | JobState::Ended(_)) => {
                status.message = job.runs.waits_for.map(|waits| waits.sentence().to_owned());
                State::Idle
            }
        };
        let end = match status.state {
            State::Running => Some(now),
            state if state.is_over() => job.runs.end,
            _ => None,
        };
        // The last one is how the job ended.
        let ended = matches!(status.state, State::Succeeded | State::Failed);
        let earlier = row.exits.iter().filter(|(number, _)| !ended || *number < job.runs.exits);
        status.earlier_exits = earlier.copied().map(EarlierExit::from).collect();
        status.request(row.wish);
        status.refuse(row.wish, row.refusal.as_deref());
        status.omit(row.omitted.as_deref());
        status.duration_seconds = job.runs.start.zip(end).map(|(start, end)| (end.0 - start.0).max(0));
        Self::of(parent, row.index, (row.changed, row.stated), status)
    }

    /// A job of which its backend says itself how it is doing.
    #[must_use]
    pub fn of_run(parent: &Parent, row: &RunRow, now: SchedDate) -> Self {
        let run = &row.run;
        let state = match run.state {
            RunState::Waiting => State::Waiting,
            RunState::Pending | RunState::Exited => State::Idle,
            RunState::Running => State::Running,
            RunState::Ended(RunEnd::Succeeded) => State::Succeeded,
            RunState::Ended(RunEnd::Failed) => State::Failed,
            RunState::Ended(RunEnd::Removed) => State::Removed,
        };
        let end = if state == State::Running { Some(now) } else { run.end };
        let kept = match &run.log {
            KeptLog::Kept { id, bytes } if run.id.as_ref() == Some(id) => Some(*bytes),
            KeptLog::Kept { .. } | KeptLog::NotYet | KeptLog::Failed { .. } | KeptLog::Gone => None,
        };
        let status = HTCProcStatus {
            output_fetched: kept.is_some(),
            output_bytes: kept.and_then(|bytes| i64::try_from(bytes).ok()),
            id: run.id.as_deref().map(str::to_owned),
            host: run.host.as_deref().map(str::to_owned),
            attempts: run.starts,
            exit_code: run.exit,
            start_time: run.start.and_then(time),
            completion_time: run.end.and_then(time),
            duration_seconds: run.start.zip(end).map(|(start, end)| (end.0 - start.0).max(0)),
            message: run.message.as_deref().filter(|_| state != State::Succeeded).map(str::to_owned),
            ..HTCProcStatus::new(state)
        };
        Self::of(parent, row.index, (row.changed, row.stated), status)
    }

    /// A job that HTCondor has not accepted; `given_up`: and never will.
    #[must_use]
    pub fn not_recorded(parent: &Parent, index: Index, given_up: bool, wish: Option<&ProcWish>) -> Self {
        let withdrawn = wish.is_some_and(|wish| wish.withdrawn);
        let wanted = wish.and_then(|wish| wish.wanted);
        let mut status = match wanted {
            _ if given_up || withdrawn => HTCProcStatus::new(State::Removed),
            Some(Wanted::Hold) => HTCProcStatus::new(State::Held),
            Some(Wanted::Release | Wanted::Remove) | None => HTCProcStatus::new(State::Waiting),
        };
        status.request(wanted);
        if status.state == State::Held {
            status.hold_reason = Some("held by a user before it was submitted".to_owned());
        } else if withdrawn {
            status.message = Some("a user removed the job before it was submitted".to_owned());
        } else if given_up {
            status.message = Some("the HTCJob was cut short before this job was submitted".to_owned());
        }
        let version = wish.map_or(0, |wish| wish.changed);
        Self::of(parent, index, (version, version), status)
    }

    fn of(parent: &Parent, index: Index, (version, stated): (i64, i64), status: HTCProcStatus) -> Self {
        Self {
            name: ProcName {
                namespace: parent.namespace.clone(),
                htcjob: parent.name.clone(),
                htcjob_uid: parent.uid.to_string(),
                created: parent.created.clone(),
                index: index.0,
                version,
                stated,
            },
            spec: HTCProcSpec { htc_job: parent.name.clone(), index: index.0, item: parent.item(index).cloned() },
            status,
        }
    }

    /// The object as JSON.
    #[must_use]
    pub fn object(&self) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": API_VERSION,
            "kind": "HTCProc",
            "metadata": self.name.metadata(),
            "spec": self.spec,
            "status": self.status,
        })
    }
}

impl HTCProcStatus {
    const fn new(state: State) -> Self {
        Self {
            state,
            id: None,
            schedd: None,
            exit_code: None,
            exit_signal: None,
            host: None,
            attempts: 0,
            earlier_exits: Vec::new(),
            submit_time: None,
            start_time: None,
            completion_time: None,
            duration_seconds: None,
            hold_code: None,
            hold_reason: None,
            held_since: None,
            requested: None,
            reason: None,
            message: None,
            output_fetched: false,
            output_bytes: None,
        }
    }

    /// Says what a user wants, as long as it can come about; then what came of it.
    fn request(&mut self, wanted: Option<Wanted>) {
        if !self.state.is_over() {
            self.requested = wanted.map(<&'static str>::from);
        } else if self.state == State::Removed && wanted == Some(Wanted::Remove) {
            self.reason = Some("RemovedByUser");
        }
    }

    /// Says why what a user wants has not come about, if HTCondor has refused it.
    fn refuse(&mut self, wanted: Option<Wanted>, why: Option<&str>) {
        let (Some(wanted), Some(why)) = (wanted, why) else { return };
        let (open, done) = match wanted {
            Wanted::Hold => (!self.state.is_over() && self.state != State::Held, "held"),
            Wanted::Release => (self.state == State::Held, "released"),
            Wanted::Remove => (!self.state.is_over(), "removed"),
        };
        if open {
            let why = harmless(why, WORDS);
            self.message =
                Some(format!("HTCondor has not {done} the job: {why}; the operator tries again with growing pauses"));
        }
    }

    /// Says what of the output did not come back.
    fn omit(&mut self, what: Option<&str>) {
        let Some(what) = what else { return };
        let what = format!("not all of the output came back: {what}");
        self.message = Some(match self.message.take() {
            Some(message) => format!("{message}; {what}"),
            None => what,
        });
    }

    fn ended(&mut self, outcome: &Outcome) -> State {
        match outcome {
            Outcome::Succeeded => {
                self.exit_code = Some(0);
                State::Succeeded
            }
            Outcome::Failed(code) => {
                self.exit_code = Some(*code);
                self.message = PayloadFailure::from_exit_code(*code).map(|failure| failure.sentence().to_owned());
                State::Failed
            }
            Outcome::Killed(signal) => {
                self.exit_signal = Some(*signal);
                State::Failed
            }
            Outcome::FailedBefore => {
                self.message = Some("failed before the upgrade from the first htc-operator".to_owned());
                State::Failed
            }
            Outcome::Removed(reason) => {
                self.message = Some(reason).filter(|reason| !reason.is_empty()).cloned();
                State::Removed
            }
            Outcome::Lost(Loss::Vanished) => {
                self.message = Some("the job is in neither HTCondor's queue nor its history".to_owned());
                State::Lost
            }
            Outcome::Lost(Loss::QueueReset) => {
                self.message = Some("the job was lost with the schedd's queue".to_owned());
                State::Lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_at_the_last_hyphen() {
        assert_eq!(ProcName::parse("fit-2-17"), Some(("fit-2", 17)));
        assert_eq!(ProcName::parse("fit-0"), Some(("fit", 0)));
        for name in ["fit", "-3", "fit-", "fit-07", "fit-+7", "fit-7x", "fit-99999999999", ""] {
            assert_eq!(ProcName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn of_the_items_of_a_config_map_only_some_may_run() {
        let mut htcjob = crate::api::HTCJob::new("fit", HTCJobSpec::default());
        htcjob.spec.items_from = Some(crate::api::ItemsFrom::default());
        htcjob.spec.indexes = Some("3,7".to_owned());
        let of = |htcjob: &crate::api::HTCJob| Parent::of(&Arc::new(crate::api::Guarded(Ok(htcjob.clone()))));
        let (some, none): (Indices, Indices) = ("3,7".parse().unwrap(), Indices::default());
        assert_eq!(of(&htcjob).asked_for, none, "they are not read yet");
        // How many run does not tell how many items there are.
        htcjob.status = Some(crate::api::HTCJobStatus { total: Some(2), ..Default::default() });
        let mut parent = of(&htcjob);
        assert!(parent.counts_items() && parent.asked_for == some, "{:?}", parent.asked_for);
        for (items, expected) in [(8, &some), (7, &none)] {
            parent.has_items(items);
            assert_eq!(&parent.asked_for, expected);
        }
    }

    #[test]
    fn a_uid_is_one() {
        let (one, other) = (uid("a", "1"), uid("a", "2"));
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        assert_eq!((&one[14..15], &one[8..9]), ("8", "-"));
        assert!("89ab".contains(&one[19..20]), "{one}");
    }
}
