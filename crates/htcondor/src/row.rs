//! One ad, with the queried attributes.

use htc_machine::facts::{Ad, Exit, Hold, JobStatus, NodeFaults, RunHistory, WaitsFor};
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_machine::{Attempt, ClusterId, Index, JobId, SchedDate};

use super::ads::{AdSink, Scalar};

/// Maximum bytes kept of a slot's name.
const HOST: usize = 256;

/// Prefix by which the tools mark an unevaluated expression. Such a value may change at each evaluation.
const EXPRESSION: &str = "/Expr(";

macro_rules! row {
    ($($field:ident: $name:literal),* $(,)?; $($more:ident: $other:literal),* $(,)?; $($rest:ident: $last:literal),*) => {
        /// One ad, with the queried attributes. A value of an unexpected type, such as an expression, counts as
        /// missing.
        #[derive(Debug, Default)]
        pub(super) struct Row {
            $($field: Option<Scalar>,)*
            $($more: Option<Scalar>,)*
            $($rest: Option<Scalar>,)*
        }

        impl Row {
            /// Sets an attribute by its name. Names are case-insensitive, and anyone who may edit an ad chooses their
            /// case.
            fn set(&mut self, name: &str, value: Scalar) {
                $(if name.eq_ignore_ascii_case($name) {
                    self.$field = Some(value);
                } else)* $(if name.eq_ignore_ascii_case($other) {
                    self.$more = Some(value);
                } else)* $(if name.eq_ignore_ascii_case($last) {
                    self.$rest = Some(value);
                } else)* {}
            }
        }

        /// Names of the queried attributes.
        pub(super) const NAMES: &[&str] = &[$($name),*];

        /// Names of the queried attributes, separated by commas.
        pub(super) const ATTRIBUTES: &str = {
            const ALL: &str = concat!($($name, ","),*);
            ALL.split_at(ALL.len() - 1).0
        };

        /// Names of the queried attributes and of those that identify a job of the Go operator, separated by commas.
        pub(super) const INHERITED_ATTRIBUTES: &str = {
            const ALL: &str = concat!($($name, ",",)* $($other, ","),*);
            ALL.split_at(ALL.len() - 1).0
        };
    };
}

row! {
    cluster: "ClusterId",
    proc: "ProcId",
    uid: "HTCJobUID",
    attempt: "HTCJobAttempt",
    index: "HTCJobIndex",
    not_after: "HTCNotAfter",
    operator: "HTCOperator",
    status: "JobStatus",
    last_status: "LastJobStatus",
    entered: "EnteredCurrentStatus",
    hold_code: "HoldReasonCode",
    hold_subcode: "HoldReasonSubCode",
    hold_reason: "HoldReason",
    last_hold_reason: "LastHoldReason",
    staged_in: "StageInFinish",
    staged_out: "StageOutFinish",
    exit_code: "ExitCode",
    by_signal: "ExitBySignal",
    exit_signal: "ExitSignal",
    completed: "CompletionDate",
    started: "JobStartDate",
    run_start: "JobCurrentStartDate",
    starts: "NumJobStarts",
    exits: "NumJobCompletions",
    vacated: "LastVacateTime",
    host: "RemoteHost",
    last_host: "LastRemoteHost",
    remove_reason: "RemoveReason",
    global_id: "GlobalJobId",
    user: "User";
    iwd: "Iwd",
    submit_iwd: "SUBMIT_Iwd";
    batch: "JobBatchName"
}

fn number(value: Option<&Scalar>) -> Option<i64> {
    match value? {
        Scalar::Number(number) => Some(*number),
        Scalar::Flag(_) | Scalar::Text(_) => None,
    }
}

fn small(value: Option<&Scalar>) -> Option<u32> {
    number(value).and_then(|number| u32::try_from(number).ok())
}

fn date(value: Option<&Scalar>) -> Option<SchedDate> {
    number(value).filter(|date| *date > 0).map(SchedDate)
}

fn text(value: Option<&Scalar>) -> Option<&str> {
    match value? {
        Scalar::Text(text) => Some(text).filter(|text| !text.starts_with(EXPRESSION)).map(String::as_str),
        Scalar::Flag(_) | Scalar::Number(_) => None,
    }
}

/// Returns a sanitized and shortened reason. Users and jobs can influence its text.
fn words(value: Option<&Scalar>) -> String {
    sanitize(text(value).unwrap_or_default(), MAX_MESSAGE)
}

impl Row {
    pub(super) fn uid(&self) -> Option<&str> {
        text(self.uid.as_ref())
    }

    pub(super) fn operator(&self) -> Option<&str> {
        text(self.operator.as_ref())
    }

    pub(super) fn user(&self) -> Option<&str> {
        text(self.user.as_ref())
    }

    /// Returns `GlobalJobId`, which identifies the job for ever. Returns none if it names another job: the job's owner
    /// may write one there.
    pub(super) fn global_id(&self) -> Option<&str> {
        text(self.global_id.as_ref()).filter(|id| id.contains(&format!("#{}#", self.id())))
    }

    /// Returns `ClusterId.ProcId`, for messages.
    pub(super) fn id(&self) -> String {
        let part = |value: &Option<Scalar>| number(value.as_ref()).unwrap_or(-1);
        format!("{}.{}", part(&self.cluster), part(&self.proc))
    }

    /// Returns the folder that the job was submitted from. `Iwd` of a spooled job is the folder of its spooled files.
    pub(super) fn folder(&self) -> Option<&str> {
        text(self.submit_iwd.as_ref()).or_else(|| text(self.iwd.as_ref()))
    }

    /// Returns `ClusterId.ProcId`.
    pub(super) fn job_id(&self) -> Option<JobId> {
        let cluster = u64::try_from(number(self.cluster.as_ref())?).ok()?;
        Some(JobId { cluster: ClusterId(cluster), proc: small(self.proc.as_ref())? })
    }

    /// Returns `JobStatus`.
    pub(super) fn status(&self) -> Option<JobStatus> {
        JobStatus::from_code(number(self.status.as_ref())?)
    }

    /// Returns `JobBatchName`: namespace and name of the `HTCJob`, as the ad says. The job's owner may write anything
    /// there.
    pub(super) fn batch(&self) -> String {
        words(self.batch.as_ref())
    }

    /// Returns `JobCurrentStartDate`.
    pub(super) fn run_start(&self) -> Option<SchedDate> {
        date(self.run_start.as_ref())
    }

    /// Returns the ad if it has what every job of this operator has.
    pub(super) fn ad(&self) -> Option<Ad> {
        let attempt = Attempt(small(self.attempt.as_ref())?);
        // In the ad of an adopted job the index is the expression `ProcId`, which the tools print unevaluated.
        let index = small(self.index.as_ref());
        let index = if attempt == Attempt::INHERITED { index.or(small(self.proc.as_ref())) } else { index };
        self.shown(attempt, Index(index?))
    }

    /// Returns the ad of a job of the Go operator.
    pub(super) fn inherited_ad(&self, index: Index) -> Option<Ad> {
        self.shown(Attempt::INHERITED, index)
    }

    /// Returns whether the job has ended, whatever happened to it afterwards. The schedd writes `CompletionDate` later
    /// than `JobStatus` 4, and never if the job is removed in between (23.9.6 and 25.14.1).
    fn has_completed(&self, status: JobStatus) -> bool {
        let last = number(self.last_status.as_ref()).and_then(JobStatus::from_code);
        date(self.completed.as_ref()).is_some() || (status == JobStatus::Removed && last == Some(JobStatus::Completed))
    }

    fn shown(&self, attempt: Attempt, index: Index) -> Option<Ad> {
        let code = |value: &Option<Scalar>| number(value.as_ref()).and_then(|number| i32::try_from(number).ok());
        let by_signal = matches!(self.by_signal, Some(Scalar::Flag(true)));
        let exit =
            if by_signal { code(&self.exit_signal).map(Exit::Signal) } else { code(&self.exit_code).map(Exit::Code) };
        let status = JobStatus::from_code(number(self.status.as_ref())?)?;
        let hold = Hold {
            code: number(self.hold_code.as_ref()).unwrap_or_default(),
            subcode: number(self.hold_subcode.as_ref()).unwrap_or_default(),
            reason: words(self.hold_reason.as_ref()),
            since: date(self.entered.as_ref()).filter(|_| status == JobStatus::Held),
        };
        let faults = |reason: &Option<Scalar>| text(reason.as_ref()).and_then(NodeFaults::from_hold);
        let by_policy = status == JobStatus::Held && hold.code == Hold::BY_POLICY;
        let held_for = if by_policy { faults(&self.hold_reason) } else { None };
        let waits_for = WaitsFor::of(status).or_else(|| held_for.as_ref().map(|_| WaitsFor::OtherNode));
        let faults = held_for.or_else(|| faults(&self.last_hold_reason));
        Some(Ad {
            id: self.job_id()?,
            attempt,
            index,
            not_after: number(self.not_after.as_ref()).map(SchedDate),
            status,
            hold,
            staged_in: date(self.staged_in.as_ref()),
            staged_out: date(self.staged_out.as_ref()),
            exit,
            completed: self.has_completed(status),
            started: date(self.started.as_ref()).is_some(),
            remove_reason: words(self.remove_reason.as_ref()),
            runs: RunHistory {
                count: small(self.starts.as_ref()).unwrap_or_default(),
                exits: small(self.exits.as_ref()).unwrap_or_default(),
                last_exit: exit.filter(Exit::is_real),
                vacated: date(self.vacated.as_ref()),
                start: self.run_start(),
                end: date(self.completed.as_ref()),
                host: text(self.host.as_ref())
                    .or_else(|| text(self.last_host.as_ref()))
                    .map(|host| sanitize(host, HOST).into()),
                faults: faults.map(Box::new),
                waits_for,
            },
        })
    }
}

/// Passes each ad to a function, in order.
pub(super) struct Rows<F> {
    row: Row,
    each: F,
}

impl<F: FnMut(&Row)> Rows<F> {
    pub(super) fn new(each: F) -> Self {
        Self { row: Row::default(), each }
    }
}

impl<F: FnMut(&Row)> AdSink for Rows<F> {
    fn attribute(&mut self, name: &str, value: Scalar) {
        self.row.set(name, value);
    }

    fn end(&mut self) {
        (self.each)(&self.row);
        self.row = Row::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ads::AdReader;

    fn read(json: &[u8]) -> Vec<(String, Option<Ad>)> {
        let mut rows = Vec::new();
        let mut reader = AdReader::new(Rows::new(|row: &Row| rows.push((row.id(), row.ad()))));
        reader.take(json);
        assert!(reader.end().is_ok());
        rows
    }

    #[test]
    fn row_is_parsed_as_the_tools_write_it() {
        let json = br#"[
{ "ClusterId": 7, "ProcId": 3, "HTCJobUID": "u", "HTCJobAttempt": 2, "HTCJobIndex": 5, "JobStatus": 5, "HoldReasonCode": 1, "EnteredCurrentStatus": 99,
  "HoldReason": "a \"reason\" with \\ and \u00e9 and ~", "HoldReasonSubCode": null, "ExitBySignal": false,
  "ExitCode": "\/Expr(undefined)\/", "CompletionDate": 0, "StageInFinish": 17, "ServerTime": 1.5, "Other": {"a": [1]} }
,
{ "ClusterId": 7, "ProcId": 4 }
]
"#;
        let no_text = json.map(|byte| if byte == b'~' { 0xff } else { byte });
        let rows = read(&no_text);
        assert_eq!(rows[1], ("7.4".to_owned(), None), "it lacks the attributes of the operator's jobs");
        let ad = rows[0].1.clone().unwrap();
        assert_eq!((ad.id.to_string().as_str(), ad.attempt.0, ad.index.0, ad.status), ("7.3", 2, 5, JobStatus::Held));
        assert_eq!((ad.hold.code, ad.hold.subcode, ad.hold.since), (1, 0, Some(SchedDate(99))));
        assert_eq!(ad.hold.reason, "a \"reason\" with \\ and é and \u{fffd}");
        assert_eq!((ad.exit, ad.completed, ad.staged_in, ad.not_after), (None, false, Some(SchedDate(17)), None));
    }

    #[test]
    fn faults_of_nodes_are_read_from_this_hold_or_the_last() {
        let of = |more: &str| {
            let ours = r#""ClusterId": 7, "ProcId": 3, "HTCJobUID": "u", "HTCJobAttempt": 2, "HTCJobIndex": 5"#;
            let rows = read(format!("[{{ {ours}, {more} }}]").as_bytes());
            let runs = rows[0].1.as_ref().unwrap().runs.clone();
            (runs.waits_for, runs.faults.map(|faults| faults.to_string()))
        };
        let text = "Node fault 2 of 6 at 99 on a,b with 243";
        let reason = format!("\"{text}; it runs again\"");
        let paused = of(&format!(r#""JobStatus": 5, "HoldReasonCode": 3, "HoldReason": {reason}"#));
        assert_eq!(paused, (Some(WaitsFor::OtherNode), Some(text.to_owned())));
        assert_eq!(of(&format!(r#""JobStatus": 2, "LastHoldReason": {reason}"#)), (None, Some(text.to_owned())));
        let by_hand = of(&format!(r#""JobStatus": 5, "HoldReasonCode": 1, "HoldReason": {reason}"#));
        assert_eq!(by_hand, (None, None), "a person may give any reason");
    }

    #[test]
    fn job_removed_right_after_its_end_is_completed() {
        let completed = |more: &str| {
            let ours =
                r#""ClusterId": 7, "ProcId": 3, "HTCJobUID": "u", "HTCJobAttempt": 2, "HTCJobIndex": 5, "ExitCode": 0"#;
            let rows = read(format!("[{{ {ours}, {more} }}]").as_bytes());
            rows[0].1.as_ref().unwrap().completed
        };
        assert!(completed(r#""JobStatus": 3, "LastJobStatus": 4"#));
        assert!(completed(r#""JobStatus": 3, "LastJobStatus": 2, "CompletionDate": 99"#));
        assert!(!completed(r#""JobStatus": 3, "LastJobStatus": 2, "CompletionDate": 0"#), "removed while it ran again");
        assert!(!completed(r#""JobStatus": 3, "LastJobStatus": 5"#), "held at its end by its own policy");
        assert!(!completed(r#""JobStatus": 1, "LastJobStatus": 4"#));
    }

    #[test]
    fn unevaluated_expression_is_not_a_value() {
        let uid = |json: &str| {
            let mut uid = None;
            let mut reader = AdReader::new(Rows::new(|row: &Row| uid = row.uid().map(str::to_owned)));
            reader.take(format!("[{{{json}}}]").as_bytes());
            assert!(reader.end().is_ok());
            uid
        };
        assert_eq!(uid(r#""HTCJobUID": "u""#).as_deref(), Some("u"));
        assert_eq!(uid(r#""htcjobuid": "u""#).as_deref(), Some("u"));
        assert_eq!(uid(r#""HTCJobUID": "\/Expr(strcat(\"u\",\"\"))\/""#), None);
        assert_eq!(uid(r#""HTCJobUID": 7"#), None);
    }

    #[test]
    fn projection_lists_the_parsed_attributes() {
        assert!(ATTRIBUTES.starts_with("ClusterId,ProcId,HTCJobUID,") && ATTRIBUTES.ends_with(",GlobalJobId,User"));
    }
}
