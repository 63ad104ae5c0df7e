//! Reports of jobs: an event of a type of its own, with the token of its HTCJob.

use htc_ledger::{JobReport, ReportKind};
use htc_machine::{JobId, Uid};
use htc_submit::job_token::TokenKeys;
use serde_json::Value;

use super::event::{CloudEvent, NoEvent};

/// `type` of the event that a payload has ended; the same as in the Go operator.
pub const ENDED: &str = "htcjob.cloudevent";
/// `type` of the event that a payload begins.
pub const STARTED: &str = "htcjob.cloudevent.started";

/// Maximum bytes of an event's id.
const ID: usize = 128;
/// Maximum bytes of a uid.
const UID: usize = 64;

/// Reason why an event was refused. Its name, one word, is in the answer and in metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum ReportRefusal {
    /// More bytes than an event of a job has.
    #[error("the body is longer than {} KiB", super::BODY / 1024)]
    TooLarge,
    /// The body did not arrive in time.
    #[error("the body did not arrive within {} s", crate::http::BODY_TIME.as_secs())]
    TooSlow,
    /// The connection broke while the body was read, or the body does not match its headers.
    #[error("the body cannot be read")]
    Unreadable,
    /// Not a CloudEvent.
    #[error("this is not a CloudEvent 1.0: {0}")]
    NotACloudEvent(#[from] NoEvent),
    /// An event, but not of a job.
    #[error("the type must be {ENDED} or {STARTED}")]
    UnknownType,
    /// No token.
    #[error("there is no header `Authorization: Bearer TOKEN`")]
    NoToken,
    /// The token of another HTCJob, or an unknown one.
    #[error("the token does not belong to the HTCJob whose uid is the subject")]
    WrongToken,
    /// The data of the event cannot be understood.
    #[error("{0}")]
    BadData(&'static str),
    /// The HTCJob has no such job.
    #[error("the HTCJob has no such job")]
    UnknownJob,
    /// Too many reports of jobs that are not recorded.
    #[error(
        "too many jobs of this HTCJob have reported that the operator does not know; it still asks HTCondor about them"
    )]
    TooMany,
    /// The HTCJob's jobs report too often.
    #[error("the jobs of this HTCJob report too often; send it again later")]
    TooFast,
    /// It cannot be stored now.
    #[error("the report cannot be stored now; send it again")]
    Unavailable,
}

impl ReportRefusal {
    /// Returns the HTTP status of the answer. Only refusals that may pass are 5xx or 429.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::TooLarge => 413,
            Self::TooSlow => 408,
            Self::Unreadable | Self::NotACloudEvent(_) | Self::UnknownType | Self::BadData(_) => 400,
            Self::NoToken => 401,
            Self::WrongToken => 403,
            Self::UnknownJob => 404,
            Self::TooMany => 409,
            Self::TooFast => 429,
            Self::Unavailable => 503,
        }
    }

    /// Returns whether the same event may be stored later, so that it is worth sending again.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::TooFast | Self::Unavailable)
    }
}

/// Reads the report of a job from an event and its header `Authorization`.
pub fn read(event: CloudEvent, authorization: Option<&[u8]>, keys: &TokenKeys) -> Result<JobReport, ReportRefusal> {
    if event.kind != ENDED && event.kind != STARTED {
        return Err(ReportRefusal::UnknownType);
    }
    let subject = event.subject.ok_or(ReportRefusal::BadData("the subject must be the uid of the HTCJob"))?;
    let uid = uid(&subject).ok_or(ReportRefusal::BadData("the subject must be the uid of the HTCJob"))?;
    let token = authorization.and_then(bearer).ok_or(ReportRefusal::NoToken)?;
    if !keys.verify(&uid, token) {
        return Err(ReportRefusal::WrongToken);
    }
    if event.id.len() > ID {
        return Err(ReportRefusal::BadData("the id is longer than 128 bytes"));
    }
    let text = |name: &str| event.data.get(name).and_then(Value::as_str);
    let name = text("name").ok_or(ReportRefusal::BadData("data.name must be the name of the HTCJob"))?;
    let id: JobId = text("jobid")
        .and_then(|id| id.parse().ok())
        .ok_or(ReportRefusal::BadData("data.jobid must be the job's id in HTCondor, cluster.proc"))?;
    let told = if event.kind == STARTED {
        ReportKind::Started
    } else {
        let code = text("retcode").filter(|code| code.len() <= 3 && code.bytes().all(|b| b.is_ascii_digit()));
        let code = code.and_then(|code| code.parse::<u8>().ok());
        ReportKind::Ended(
            code.ok_or(ReportRefusal::BadData("data.retcode must be a text with a number from 0 to 255"))?.into(),
        )
    };
    Ok(JobReport { uid, name: name.to_owned(), id, event: event.id, kind: told })
}

/// Returns the uid, if the text can be one.
pub(super) fn uid(text: &str) -> Option<Uid> {
    let fits = text.len() <= UID && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    fits.then(|| Uid::from(text))
}

pub(super) fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UID_: &str = "0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001";

    fn keys() -> TokenKeys {
        TokenKeys::parse("0123456789abcdef0123456789abcdef").unwrap()
    }

    fn ended() -> CloudEvent {
        CloudEvent {
            id: "1".to_owned(),
            source: "cern.ch".to_owned(),
            kind: ENDED.to_owned(),
            subject: Some(UID_.to_owned()),
            data: json!({ "name": "zero", "jobid": "12.3", "retcode": "0" }),
        }
    }

    fn try_it(event: CloudEvent) -> Result<JobReport, ReportRefusal> {
        read(event, Some(format!("Bearer {}", keys().token(&UID_.into())).as_bytes()), &keys())
    }

    #[test]
    fn start_and_end_reports_are_parsed() {
        let end = try_it(ended()).unwrap();
        assert_eq!((end.uid.as_str(), end.name.as_str(), end.id.to_string().as_str()), (UID_, "zero", "12.3"));
        assert_eq!(end.kind, ReportKind::Ended(0));
        let start =
            CloudEvent { kind: STARTED.to_owned(), data: json!({ "name": "zero", "jobid": "12.3" }), ..ended() };
        assert_eq!(try_it(start).unwrap().kind, ReportKind::Started);
    }

    #[test]
    fn missing_and_wrong_tokens_are_distinguished() {
        let other = format!("Bearer {}", keys().token(&"another".into()));
        assert_eq!(read(ended(), Some(other.as_bytes()), &keys()), Err(ReportRefusal::WrongToken));
        for none in [None, Some(&b""[..]), Some(b"Bearer"), Some(b"Basic eDp5"), Some(b"\xff\xfe x")] {
            assert_eq!(read(ended(), none, &keys()), Err(ReportRefusal::NoToken), "{none:?}");
        }
        assert_eq!(read(ended(), Some(b"Bearer "), &keys()), Err(ReportRefusal::WrongToken));
    }

    #[test]
    fn invalid_report_is_refused_permanently() {
        let bad_data = |data: Value| {
            let result = try_it(CloudEvent { data: data.clone(), ..ended() });
            assert!(matches!(result, Err(ReportRefusal::BadData(_))), "{data}: {result:?}");
        };
        for code in ["", "-1", "256", "1.0", "abc", "0x1", " 1", "+1", "1e1", "0000"] {
            bad_data(json!({ "name": "zero", "jobid": "12.3", "retcode": code }));
        }
        bad_data(json!({ "name": "zero", "jobid": "12.3", "retcode": 0 }));
        bad_data(json!({ "name": "zero", "jobid": "12.3" }));
        bad_data(json!({ "name": "zero", "jobid": "ERROR", "retcode": "0" }));
        bad_data(json!({ "jobid": "12.3", "retcode": "0" }));
        bad_data(Value::Null);
        bad_data(json!([1]));
        assert_eq!(try_it(CloudEvent { kind: "x".to_owned(), ..ended() }), Err(ReportRefusal::UnknownType));
        for subject in [None, Some("a b".to_owned()), Some("x".repeat(65))] {
            assert!(matches!(try_it(CloudEvent { subject, ..ended() }), Err(ReportRefusal::BadData(_))));
        }
        assert!(matches!(try_it(CloudEvent { id: "x".repeat(129), ..ended() }), Err(ReportRefusal::BadData(_))));
    }
}
