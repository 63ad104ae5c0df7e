//! The tools' JSON: an array of ads, read one ad at a time.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::schedd::unknown;
use crate::api::text::{WORDS, harmless};
use crate::machine::facts::{Ad, Exit, Hold, JobStatus, Unknown, Why};
use crate::machine::{Attempt, ClusterId, Index, JobId, SchedDate};

/// A value of an attribute. One of another type than expected (an expression, say) is as good as none.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Scalar<'a> {
    Number(i64),
    Flag(bool),
    #[serde(borrow)]
    Text(Cow<'a, str>),
    Other(IgnoredAny),
}

macro_rules! row {
    ($($field:ident: $name:literal),* $(,)?; $($more:ident: $other:literal),* $(,)?) => {
        /// One ad, as far as it was asked for.
        #[derive(serde::Deserialize)]
        pub(super) struct Row<'a> {
            $(#[serde(rename = $name, borrow, default)] $field: Option<Scalar<'a>>,)*
            $(#[serde(rename = $other, borrow, default)] $more: Option<Scalar<'a>>,)*
        }

        /// The attributes that are asked for.
        pub(super) const ATTRIBUTES: &str = {
            const ALL: &str = concat!($($name, ","),*);
            ALL.split_at(ALL.len() - 1).0
        };

        /// Those, and what tells a job of the Go operator.
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
    hold_code: "HoldReasonCode",
    hold_subcode: "HoldReasonSubCode",
    hold_reason: "HoldReason",
    staged_in: "StageInFinish",
    staged_out: "StageOutFinish",
    exit_code: "ExitCode",
    by_signal: "ExitBySignal",
    exit_signal: "ExitSignal",
    completed: "CompletionDate",
    started: "JobStartDate",
    remove_reason: "RemoveReason",
    global_id: "GlobalJobId",
    user: "User";
    iwd: "Iwd",
    submit_iwd: "SUBMIT_Iwd",
}

fn number(value: Option<&Scalar<'_>>) -> Option<i64> {
    match value? {
        Scalar::Number(number) => Some(*number),
        Scalar::Flag(_) | Scalar::Text(_) | Scalar::Other(_) => None,
    }
}

fn small(value: Option<&Scalar<'_>>) -> Option<u32> {
    number(value).and_then(|number| u32::try_from(number).ok())
}

fn date(value: Option<&Scalar<'_>>) -> Option<SchedDate> {
    number(value).filter(|date| *date > 0).map(SchedDate)
}

fn text<'a>(value: Option<&'a Scalar<'_>>) -> Option<&'a str> {
    match value? {
        Scalar::Text(text) => Some(text),
        Scalar::Flag(_) | Scalar::Number(_) | Scalar::Other(_) => None,
    }
}

/// A reason, as far as it is kept: users and jobs have a say in what is in it.
fn words(value: Option<&Scalar<'_>>) -> String {
    harmless(text(value).unwrap_or_default(), WORDS)
}

impl Row<'_> {
    pub(super) fn uid(&self) -> Option<&str> {
        text(self.uid.as_ref())
    }

    pub(super) fn operator(&self) -> Option<&str> {
        text(self.operator.as_ref())
    }

    pub(super) fn user(&self) -> Option<&str> {
        text(self.user.as_ref())
    }

    pub(super) fn global_id(&self) -> Option<&str> {
        text(self.global_id.as_ref())
    }

    /// `ClusterId.ProcId`, for messages.
    pub(super) fn id(&self) -> String {
        let part = |value: &Option<Scalar<'_>>| number(value.as_ref()).unwrap_or(-1);
        format!("{}.{}", part(&self.cluster), part(&self.proc))
    }

    /// The folder that the job was submitted from: of a spooled one, `Iwd` is where its files are spooled.
    pub(super) fn folder(&self) -> Option<&str> {
        text(self.submit_iwd.as_ref()).or_else(|| text(self.iwd.as_ref()))
    }

    /// `ClusterId.ProcId`
    pub(super) fn job_id(&self) -> Option<JobId> {
        let cluster = u64::try_from(number(self.cluster.as_ref())?).ok()?;
        Some(JobId { cluster: ClusterId(cluster), proc: small(self.proc.as_ref())? })
    }

    /// The ad, if it has what every job of ours has.
    pub(super) fn ad(&self) -> Option<Ad> {
        let attempt = Attempt(small(self.attempt.as_ref())?);
        // In the ad of an adopted job it is the expression `ProcId`, which is shown as such.
        let index = small(self.index.as_ref());
        let index = if attempt == Attempt::INHERITED { index.or(small(self.proc.as_ref())) } else { index };
        self.shown(attempt, Index(index?), true)
    }

    /// The ad of a job of the Go operator.
    pub(super) fn inherited_ad(&self, index: Index) -> Option<Ad> {
        self.shown(Attempt::INHERITED, index, false)
    }

    fn shown(&self, attempt: Attempt, index: Index, marked: bool) -> Option<Ad> {
        let code = |value: &Option<Scalar<'_>>| number(value.as_ref()).and_then(|number| i32::try_from(number).ok());
        let by_signal = matches!(self.by_signal, Some(Scalar::Flag(true)));
        let exit =
            if by_signal { code(&self.exit_signal).map(Exit::Signal) } else { code(&self.exit_code).map(Exit::Code) };
        Some(Ad {
            id: self.job_id()?,
            attempt,
            index,
            not_after: number(self.not_after.as_ref()).map(SchedDate),
            status: JobStatus::from_code(number(self.status.as_ref())?)?,
            hold: Hold {
                code: number(self.hold_code.as_ref()).unwrap_or_default(),
                subcode: number(self.hold_subcode.as_ref()).unwrap_or_default(),
                reason: words(self.hold_reason.as_ref()),
            },
            staged_in: date(self.staged_in.as_ref()),
            staged_out: date(self.staged_out.as_ref()),
            exit,
            completed: date(self.completed.as_ref()).is_some(),
            started: date(self.started.as_ref()).is_some(),
            remove_reason: words(self.remove_reason.as_ref()),
            marked,
        })
    }
}

/// Shows `each` every ad of an answer, in its order; no more than one of them is in memory. An answer that is cut short, or
/// of which `each` says that it is broken, is no answer at all.
pub(super) fn each_row(
    tool: &str,
    stdout: &[u8],
    each: impl FnMut(&Row<'_>) -> Result<(), Unknown>,
) -> Result<(), Unknown> {
    // Ads may hold bytes that are no UTF-8.
    let text = String::from_utf8_lossy(stdout);
    let mut refused = None;
    let mut json = serde_json::Deserializer::from_str(&text);
    let read = json.deserialize_seq(Rows { each, refused: &mut refused }).and_then(|()| json.end());
    match (refused, read) {
        (Some(unknown), _) => Err(unknown),
        (None, Err(error)) => Err(unknown(Why::Incomplete, format!("the answer of {tool} is not complete: {error}"))),
        (None, Ok(())) => Ok(()),
    }
}

struct Rows<'a, F> {
    each: F,
    refused: &'a mut Option<Unknown>,
}

impl<'de, F: FnMut(&Row<'_>) -> Result<(), Unknown>> Visitor<'de> for Rows<'_, F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of ads")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut rows: A) -> Result<(), A::Error> {
        while let Some(row) = rows.next_element::<Row<'de>>()? {
            if let Err(unknown) = (self.each)(&row) {
                *self.refused = Some(unknown);
                return Err(serde::de::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &[u8]) -> Result<Vec<(String, Option<Ad>)>, Unknown> {
        let mut rows = Vec::new();
        each_row("condor_q", json, |row| {
            rows.push((row.id(), row.ad()));
            Ok(())
        })
        .map(|()| rows)
    }

    #[test]
    fn an_ad_is_read_as_the_tools_write_it() {
        let json = br#"[
{ "ClusterId": 7, "ProcId": 3, "HTCJobUID": "u", "HTCJobAttempt": 2, "HTCJobIndex": 5, "JobStatus": 5, "HoldReasonCode": 1,
  "HoldReason": "a \"reason\" with \\ and \u00e9 and ~", "HoldReasonSubCode": null, "ExitBySignal": false,
  "ExitCode": "\/Expr(undefined)\/", "CompletionDate": 0, "StageInFinish": 17, "ServerTime": 1.5, "Other": {"a": [1]} }
,
{ "ClusterId": 7, "ProcId": 4 }
]
"#;
        let no_text = json.map(|byte| if byte == b'~' { 0xff } else { byte });
        let rows = read(&no_text).unwrap();
        assert_eq!(rows[1], ("7.4".to_owned(), None), "it lacks what ours have");
        let ad = rows[0].1.clone().unwrap();
        assert_eq!((ad.id.to_string().as_str(), ad.attempt.0, ad.index.0, ad.status), ("7.3", 2, 5, JobStatus::Held));
        assert_eq!((ad.hold.code, ad.hold.subcode), (1, 0));
        assert_eq!(ad.hold.reason, "a \"reason\" with \\ and é and \u{fffd}");
        assert_eq!((ad.exit, ad.completed, ad.staged_in, ad.not_after), (None, false, Some(SchedDate(17)), None));
    }

    #[test]
    fn an_answer_cut_short_is_none() {
        let whole = br#"[{"ClusterId":1,"ProcId":0},{"ClusterId":1,"ProcId":1}]"#;
        assert_eq!(read(whole).unwrap().len(), 2);
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]).unwrap_err().why, Why::Incomplete, "{end}");
        }
        assert_eq!(read(b"[\n]\n").unwrap().len(), 0);
        for bad in [&b"{}"[..], b"[1]", b"[] x"] {
            assert_eq!(read(bad).unwrap_err().why, Why::Incomplete);
        }
        let refusal = || Err(unknown(Why::CredentialsRefused, "no".to_owned()));
        assert_eq!(each_row("condor_q", whole, |_| refusal()), refusal());
    }

    #[test]
    fn what_is_asked_for_is_what_is_read() {
        assert!(ATTRIBUTES.starts_with("ClusterId,ProcId,HTCJobUID,") && ATTRIBUTES.ends_with(",GlobalJobId,User"));
    }
}
