//! What a job reports: an event of its own kind, with the token of its HTCJob.

use serde_json::Value;

use super::event::{CloudEvent, NoEvent};
use crate::key::Keys;
use crate::ledger::{Callback, Told};
use crate::machine::{JobId, Uid};

/// `type` of the event that a payload has ended; the original's.
pub const ENDED: &str = "htcjob.cloudevent";
/// `type` of the event that a payload begins.
pub const STARTED: &str = "htcjob.cloudevent.started";

/// Most bytes of an event's id.
const ID: usize = 128;
/// Most bytes of a uid.
const UID: usize = 64;

/// Why an event was not taken. The reason is one word, for the answer and for metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum Refusal {
    /// More bytes than an event of a job has.
    #[error("the body is longer than {} KiB", super::BODY / 1024)]
    TooLarge,
    /// The body did not come in time.
    #[error("the body did not arrive within {} s", super::BODY_TIME.as_secs())]
    TooSlow,
    /// The connection broke while the body was read, or it is not what its headers say.
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
    /// The token of another HTCJob, or of nobody.
    #[error("the token does not belong to the HTCJob whose uid is the subject")]
    WrongToken,
    /// What the event says cannot be understood.
    #[error("{0}")]
    BadData(&'static str),
    /// The HTCJob has no such job.
    #[error("the HTCJob has no such job")]
    UnknownJob,
    /// There were reports of too many jobs that are not recorded.
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

impl Refusal {
    /// The status of the answer. Only what may be right later is a 5xx, or 429.
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

    /// Whether the same event may be stored later, so that it is worth sending again.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::TooFast | Self::Unavailable)
    }
}

/// What an event with this `Authorization` reports, if it comes from a job.
pub fn read(event: CloudEvent, authorization: Option<&[u8]>, keys: &Keys) -> Result<Callback, Refusal> {
    if event.kind != ENDED && event.kind != STARTED {
        return Err(Refusal::UnknownType);
    }
    let subject = event.subject.ok_or(Refusal::BadData("the subject must be the uid of the HTCJob"))?;
    if subject.len() > UID || !subject.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(Refusal::BadData("the subject must be the uid of the HTCJob"));
    }
    let uid = Uid::from(subject.as_str());
    let token = authorization.and_then(bearer).ok_or(Refusal::NoToken)?;
    if !keys.accept(&uid, token) {
        return Err(Refusal::WrongToken);
    }
    if event.id.len() > ID {
        return Err(Refusal::BadData("the id is longer than 128 bytes"));
    }
    let text = |name: &str| event.data.get(name).and_then(Value::as_str);
    let name = text("name").ok_or(Refusal::BadData("data.name must be the name of the HTCJob"))?;
    let id: JobId = text("jobid")
        .and_then(|id| id.parse().ok())
        .ok_or(Refusal::BadData("data.jobid must be the job's id in HTCondor, cluster.proc"))?;
    let told = if event.kind == STARTED {
        Told::Started
    } else {
        let code = text("retcode").filter(|code| code.len() <= 3 && code.bytes().all(|b| b.is_ascii_digit()));
        let code = code.and_then(|code| code.parse::<u8>().ok());
        Told::Ended(code.ok_or(Refusal::BadData("data.retcode must be a text with a number from 0 to 255"))?.into())
    };
    Ok(Callback { uid, name: name.to_owned(), id, event: event.id, told })
}

fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UID_: &str = "0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001";

    fn keys() -> Keys {
        Keys::parse("0123456789abcdef0123456789abcdef").unwrap()
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

    fn try_it(event: CloudEvent) -> Result<Callback, Refusal> {
        read(event, Some(format!("Bearer {}", keys().token(&UID_.into())).as_bytes()), &keys())
    }

    #[test]
    fn ends_and_starts_are_read() {
        let end = try_it(ended()).unwrap();
        assert_eq!((end.uid.as_str(), end.name.as_str(), end.id.to_string().as_str()), (UID_, "zero", "12.3"));
        assert_eq!(end.told, Told::Ended(0));
        let start =
            CloudEvent { kind: STARTED.to_owned(), data: json!({ "name": "zero", "jobid": "12.3" }), ..ended() };
        assert_eq!(try_it(start).unwrap().told, Told::Started);
    }

    #[test]
    fn no_token_and_another_jobs_token_are_told_apart() {
        let other = format!("Bearer {}", keys().token(&"another".into()));
        assert_eq!(read(ended(), Some(other.as_bytes()), &keys()), Err(Refusal::WrongToken));
        for none in [None, Some(&b""[..]), Some(b"Bearer"), Some(b"Basic eDp5"), Some(b"\xff\xfe x")] {
            assert_eq!(read(ended(), none, &keys()), Err(Refusal::NoToken), "{none:?}");
        }
        assert_eq!(read(ended(), Some(b"Bearer "), &keys()), Err(Refusal::WrongToken));
    }

    #[test]
    fn what_is_wrong_is_refused_for_good() {
        let bad_data = |data: Value| {
            let result = try_it(CloudEvent { data: data.clone(), ..ended() });
            assert!(matches!(result, Err(Refusal::BadData(_))), "{data}: {result:?}");
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
        assert_eq!(try_it(CloudEvent { kind: "x".to_owned(), ..ended() }), Err(Refusal::UnknownType));
        for subject in [None, Some("a b".to_owned()), Some("x".repeat(65))] {
            assert!(matches!(try_it(CloudEvent { subject, ..ended() }), Err(Refusal::BadData(_))));
        }
        assert!(matches!(try_it(CloudEvent { id: "x".repeat(129), ..ended() }), Err(Refusal::BadData(_))));
    }
}
