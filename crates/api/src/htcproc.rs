//! Jobs of an HTCJob as objects of the API. The operator creates them for each answer and stores them nowhere.

use htc_machine::actions::JobAction;
use htc_machine::facts::Exit;
use htc_machine::outcome::{Loss, Outcome};
use htc_machine::payload_failure::JobShEnd;
use htc_machine::text::{MAX_MESSAGE, sanitize};
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use super::NodeFaultsStatus;

/// API group. It differs from that of the HTCJob, because an APIService takes over the whole version of its group from
/// the CRDs.
pub const GROUP: &str = "procs.htc.cern.ch";
/// Version of the API group.
pub const VERSION: &str = "v1alpha1";
/// Value of `apiVersion` in all objects.
pub const API_VERSION: &str = "procs.htc.cern.ch/v1alpha1";
/// Name of the resource in URLs.
pub const RESOURCE: &str = "htcprocs";
/// Label, and field, with the name of the HTCJob.
pub const HTCJOB_LABEL: &str = "htc.cern.ch/htcjob";
/// Label with the job's index.
pub const INDEX_LABEL: &str = "htc.cern.ch/index";
/// Maximum length of a label's value.
pub const LABEL: usize = 63;

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

/// Metadata of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcName {
    /// Namespace of the HTCJob.
    pub namespace: String,
    /// Name of the HTCJob.
    pub htcjob: String,
    /// Uid of the HTCJob.
    pub htcjob_uid: String,
    /// Creation time of the HTCJob, in RFC 3339.
    pub created: Option<String>,
    /// Index of the job in the HTCJob.
    pub index: u32,
    /// Number of the ledger's transaction that last changed the job.
    pub version: i64,
    /// Number of the transaction that last changed its state, or a later one if that is unknown.
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
    /// Whether the job has ended.
    #[must_use]
    pub const fn is_over(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Removed | Self::Lost => true,
            Self::Waiting | Self::Idle | Self::Running | Self::Held => false,
        }
    }

    /// Whether the job has failed, as counted in `status.failed` and `status.failedIndexes` of an HTCJob.
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
    /// Runs of the job that ended by faults of their nodes. They are no failures of the job, and do not count as retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_faults: Option<NodeFaultsStatus>,
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
    /// Why the job is in this state, one word: RemovedByUser, or NodeFault for a job that did not fail by itself.
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

/// Returns a stable uid, derived from the HTCJob's uid and, for an HTCProc, the index. `kubectl describe` finds Events
/// by the uid.
#[must_use]
pub fn uid(parent: &str, which: &str) -> String {
    let hash = Sha256::digest(format!("{parent}/{which}"));
    let first = hash.iter().take(16).fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    // Version 8 (custom), variant 10.
    let number = first & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let hex = format!("{number:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

impl ProcName {
    /// Returns the name `<htcjob>-<index>`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}-{}", self.htcjob, self.index)
    }

    /// Splits a name into HTCJob and index. The index follows the last hyphen.
    #[must_use]
    pub fn parse(name: &str) -> Option<(&str, u32)> {
        let (htcjob, index) = name.rsplit_once('-')?;
        let plain = index == "0" || !index.starts_with('0');
        let digits = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        (plain && digits && !htcjob.is_empty()).then_some((htcjob, index.parse().ok()?))
    }

    /// Returns the object's metadata. If the HTCJob's name is too long for a label, the label is absent; the field
    /// `spec.htcJob` selects it.
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
    /// Returns the object as JSON.
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
    /// Creates the status of a job of which only the state is known.
    #[must_use]
    pub const fn new(state: State) -> Self {
        Self {
            state,
            id: None,
            schedd: None,
            exit_code: None,
            exit_signal: None,
            host: None,
            attempts: 0,
            earlier_exits: Vec::new(),
            node_faults: None,
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

    /// Sets the requested action while the job has not ended. After a removal that a user requested, sets the reason.
    pub fn request(&mut self, wanted: Option<JobAction>) {
        if !self.state.is_over() {
            self.requested = wanted.map(<&'static str>::from);
        } else if self.state == State::Removed && wanted == Some(JobAction::Remove) {
            self.reason = Some("RemovedByUser");
        }
    }

    /// Sets a message with HTCondor's refusal, if the requested action is still open.
    pub fn refuse(&mut self, wanted: Option<JobAction>, why: Option<&str>) {
        let (Some(wanted), Some(why)) = (wanted, why) else { return };
        let (open, done) = match wanted {
            JobAction::Hold => (!self.state.is_over() && self.state != State::Held, "held"),
            JobAction::Release => (self.state == State::Held, "released"),
            JobAction::Remove => (!self.state.is_over(), "removed"),
        };
        if open {
            let why = sanitize(why, MAX_MESSAGE);
            self.message =
                Some(format!("HTCondor has not {done} the job: {why}; the operator tries again with growing pauses"));
        }
    }

    /// Adds to the message which parts of the output did not come back.
    pub fn omit(&mut self, what: Option<&str>) {
        let Some(what) = what else { return };
        let what = format!("not all of the output came back: {what}");
        self.message = Some(match self.message.take() {
            Some(message) => format!("{message}; {what}"),
            None => what,
        });
    }

    /// Sets how the job ended. Returns its state.
    pub fn ended(&mut self, outcome: &Outcome) -> State {
        match outcome {
            Outcome::Succeeded => {
                self.exit_code = Some(0);
                State::Succeeded
            }
            Outcome::Failed(code) => {
                self.exit_code = Some(*code);
                State::Failed
            }
            Outcome::Killed(signal) => {
                match JobShEnd::from_signal(*signal) {
                    Some(end) => {
                        self.reason = end.is_node_fault().then_some("NodeFault");
                        self.message = Some(end.failure.sentence().to_owned());
                    }
                    None => self.exit_signal = Some(*signal),
                }
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
    fn proc_name_is_split_at_the_last_hyphen() {
        assert_eq!(ProcName::parse("fit-2-17"), Some(("fit-2", 17)));
        assert_eq!(ProcName::parse("fit-0"), Some(("fit", 0)));
        for name in ["fit", "-3", "fit-", "fit-07", "fit-+7", "fit-7x", "fit-99999999999", ""] {
            assert_eq!(ProcName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn proc_uid_is_unique_and_a_version_8_uuid() {
        let (one, other) = (uid("a", "1"), uid("a", "2"));
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        assert_eq!((&one[14..15], &one[8..9]), ("8", "-"));
        assert!("89ab".contains(&one[19..20]), "{one}");
    }
}
