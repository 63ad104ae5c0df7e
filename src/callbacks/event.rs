//! CloudEvents 1.0 over HTTP, in binary and in structured mode (JSON): as much of the specification as one event
//! needs.
//!
//! Pure, and total: any bytes give an event or the reason why they are none.

use base64::Engine as _;
use percent_encoding::percent_decode;
use serde_json::{Map, Value};

/// Maximum bytes of one attribute's value.
const LONGEST: usize = 1024;
/// Content type of structured mode, without its format.
const STRUCTURED: &str = "application/cloudevents";

/// One event: the attributes that this operator knows, and its data.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudEvent {
    /// `id`: unique for its source.
    pub id: String,
    /// `source`: the sender, a URI reference.
    pub source: String,
    /// `type`: the kind of event.
    pub kind: String,
    /// `subject`: the object that the event is about.
    pub subject: Option<String>,
    /// Data, if they are JSON; null if there are none, or in another format.
    pub data: Value,
}

/// Reason why a request is not a CloudEvent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEvent {
    /// Neither binary nor structured mode.
    #[error("there is no header ce-specversion, and the content type is not application/cloudevents+json")]
    NoMode,
    /// Structured, but in another format than JSON, or a batch.
    #[error("expected one event in JSON (application/cloudevents+json), not {0}")]
    Format(String),
    /// Another version of the specification.
    #[error("specversion must be 1.0")]
    Version,
    /// An attribute that is missing, empty, too long or not text.
    #[error("the attribute {0} must have 1 to {LONGEST} bytes and no control characters")]
    Attribute(&'static str),
    /// The body is not JSON though it should be.
    #[error("the body is not JSON: {0}")]
    Json(String),
    /// The body is JSON, but not an event.
    #[error("{0}")]
    Shape(&'static str),
}

/// Parses a request. `header` returns the value of a header by its name in lower case.
pub fn parse<'a>(header: impl Fn(&str) -> Option<&'a [u8]>, body: &[u8]) -> Result<CloudEvent, NoEvent> {
    let content_type = header("content-type").map(String::from_utf8_lossy).unwrap_or_default();
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media.strip_prefix(STRUCTURED) {
        Some("+json") => structured(body),
        Some(_) => Err(NoEvent::Format(media.chars().take(80).collect())),
        None => binary(header, &media, body),
    }
}

fn binary<'a>(header: impl Fn(&str) -> Option<&'a [u8]>, media: &str, body: &[u8]) -> Result<CloudEvent, NoEvent> {
    let attribute = |name: &'static str| -> Result<Option<String>, NoEvent> {
        let Some(value) = header(&format!("ce-{name}")) else { return Ok(None) };
        let text = percent_decode(value).decode_utf8().map_err(|_| NoEvent::Attribute(name))?;
        checked(name, &text).map(Some)
    };
    let version = attribute("specversion")?.ok_or(NoEvent::NoMode)?;
    if version != "1.0" {
        return Err(NoEvent::Version);
    }
    let required = |name| attribute(name)?.ok_or(NoEvent::Attribute(name));
    Ok(CloudEvent {
        id: required("id")?,
        source: required("source")?,
        kind: required("type")?,
        subject: attribute("subject")?,
        data: if is_json(media) && !body.is_empty() { json(body)? } else { Value::Null },
    })
}

fn structured(body: &[u8]) -> Result<CloudEvent, NoEvent> {
    let Value::Object(mut event) = json(body)? else {
        return Err(NoEvent::Shape("the body must be one JSON object"));
    };
    let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if event.keys().any(|name| !plain(name) && name != "data_base64") {
        return Err(NoEvent::Shape("names of attributes have lower-case letters and digits only"));
    }
    if event.values().any(Value::is_object) && event.iter().any(|(name, value)| name != "data" && value.is_object()) {
        return Err(NoEvent::Shape("only data may be a JSON object"));
    }
    if required(&event, "specversion")? != "1.0" {
        return Err(NoEvent::Version);
    }
    let media = attribute(&event, "datacontenttype")?.unwrap_or_else(|| "application/json".to_owned());
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let data = match (event.remove("data"), event.remove("data_base64")) {
        (Some(_), Some(_)) => return Err(NoEvent::Shape("data and data_base64 exclude each other")),
        (Some(data), None) if is_json(&media) => data,
        (Some(_) | None, None) => Value::Null,
        (None, Some(Value::String(text))) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(text);
            let bytes = bytes.map_err(|_| NoEvent::Shape("data_base64 is not base64"))?;
            if is_json(&media) { json(&bytes)? } else { Value::Null }
        }
        (None, Some(_)) => return Err(NoEvent::Shape("data_base64 must be a text")),
    };
    Ok(CloudEvent {
        id: required(&event, "id")?,
        source: required(&event, "source")?,
        kind: required(&event, "type")?,
        subject: attribute(&event, "subject")?,
        data,
    })
}

fn attribute(event: &Map<String, Value>, name: &'static str) -> Result<Option<String>, NoEvent> {
    match event.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => checked(name, text).map(Some),
        Some(_) => Err(NoEvent::Attribute(name)),
    }
}

fn required(event: &Map<String, Value>, name: &'static str) -> Result<String, NoEvent> {
    attribute(event, name)?.ok_or(NoEvent::Attribute(name))
}

fn checked(name: &'static str, text: &str) -> Result<String, NoEvent> {
    let fits = (1..=LONGEST).contains(&text.len()) && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err(NoEvent::Attribute(name)) }
}

/// Accepts `application/json`, `text/json`, `…/…+json`; and no type, which the Go operator's sender may have sent.
fn is_json(media: &str) -> bool {
    media.is_empty() || media.ends_with("/json") || media.ends_with("+json")
}

fn json(bytes: &[u8]) -> Result<Value, NoEvent> {
    serde_json::from_slice(bytes).map_err(|error| NoEvent::Json(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&str, &str)], body: &str) -> Result<CloudEvent, NoEvent> {
        let find = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_bytes());
        parse(find, body.as_bytes())
    }

    const STRUCTURED: (&str, &str) = ("content-type", "application/cloudevents+json; charset=UTF-8");

    /// The examples of the specification: its section "Example", the HTTP binding's 3.1.4 and 3.2.4, the JSON
    /// format's 3.2.
    #[test]
    fn examples_of_the_specification_are_accepted() {
        let xml = r#"<much wow=\"xml\"/>"#;
        let event = of(
            &[STRUCTURED],
            &format!(
                r#"{{"specversion":"1.0","type":"com.github.pull_request.opened","source":"https://github.com/cloudevents/spec/pull",
                    "subject":"123","id":"A234-1234-1234","time":"2018-04-05T17:31:00Z","comexampleextension1":"value",
                    "comexampleothervalue":5,"datacontenttype":"text/xml","data":"{xml}"}}"#
            ),
        );
        let event = event.unwrap();
        assert_eq!((event.id.as_str(), event.subject.as_deref()), ("A234-1234-1234", Some("123")));
        assert_eq!(event.data, Value::Null);
        let headers = [
            ("ce-specversion", "1.0"),
            ("ce-type", "com.example.someevent"),
            ("ce-time", "2018-04-05T03:56:24Z"),
            ("ce-id", "1234-1234-1234"),
            ("ce-source", "/mycontext/subcontext"),
            ("content-type", "application/json; charset=utf-8"),
        ];
        let event = of(&headers, r#"{"a": [1]}"#).unwrap();
        assert_eq!((event.kind.as_str(), event.source.as_str()), ("com.example.someevent", "/mycontext/subcontext"));
        assert_eq!(event.data, serde_json::json!({ "a": [1] }));
        let event = of(
            &[STRUCTURED],
            r#"{"specversion":"1.0","type":"com.example.someevent","time":"2018-04-05T03:56:24Z","id":"1234-1234-1234",
                "source":"/mycontext/subcontext","datacontenttype":"application/json; charset=utf-8","data":{"n":1}}"#,
        );
        assert_eq!(event.unwrap().data, serde_json::json!({ "n": 1 }));
        for data in [
            r#""datacontenttype":"application/vnd.apache.thrift.binary","data_base64":"AAECAw==""#,
            r#""unsetextension":null,"data":{"appinfoA":"abc","appinfoB":123,"appinfoC":true}"#,
            r#""datacontenttype":"application/json","data":1.5"#,
            r#""data_base64":"e30=""#,
            r#""comexamplebool":true"#,
        ] {
            let text = format!(
                r#"{{"specversion":"1.0","type":"t","source":"/s","id":"C","time":"2018-04-05T17:31:00Z",{data}}}"#
            );
            assert!(of(&[STRUCTURED], &text).is_ok(), "{text}");
        }
    }

    #[test]
    fn header_values_are_percent_decoded() {
        let headers = [
            ("ce-specversion", "1.0"),
            ("ce-type", "t"),
            ("ce-id", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("ce-source", "/s"),
        ];
        assert_eq!(of(&headers, "").unwrap().id, "Euro € 😀");
    }

    #[test]
    fn invalid_event_is_refused() {
        let whole = [("ce-specversion", "1.0"), ("ce-type", "t"), ("ce-id", "i"), ("ce-source", "/s")];
        assert!(of(&whole, "").is_ok());
        for missing in 0..whole.len() {
            let mut headers = whole.to_vec();
            headers.remove(missing);
            assert!(of(&headers, "").is_err(), "{headers:?}");
            for bad in ["", "%00", "%ff", "a\tb", &"x".repeat(1025)] {
                let mut headers = whole.to_vec();
                headers[missing].1 = bad;
                assert!(of(&headers, "").is_err(), "{headers:?}");
            }
        }
        assert_eq!(of(&[], "{}"), Err(NoEvent::NoMode));
        assert_eq!(of(&[("ce-specversion", "0.3")], ""), Err(NoEvent::Version));
        let batch = [("content-type", "application/cloudevents-batch+json")];
        assert!(matches!(of(&batch, "[]"), Err(NoEvent::Format(_))));
        for body in [
            "",
            "[]",
            "1",
            "{",
            r#"{"specversion":"1.0"}"#,
            r#"{"specversion":1.0,"id":"i","source":"s","type":"t"}"#,
            r#"{"specversion":"1.0","id":"","source":"s","type":"t"}"#,
            r#"{"specversion":"1.0","id":"i","source":"s","type":"t","Upper":"x"}"#,
            r#"{"specversion":"1.0","id":"i","source":"s","type":"t","x":{}}"#,
            r#"{"specversion":"1.0","id":"i","source":"s","type":"t","data":1,"data_base64":""}"#,
            r#"{"specversion":"1.0","id":"i","source":"s","type":"t","data_base64":"%"}"#,
            r#"{"specversion":"1.0","id":"i","source":"s","type":"t","data_base64":1}"#,
            r#"{"specversion":"1.0","id":"i","source":"s","type":"t","data_base64":"fQ=="}"#,
        ] {
            assert!(of(&[STRUCTURED], body).is_err(), "{body}");
        }
        let deep = "[".repeat(60_000);
        assert!(of(&[STRUCTURED], &deep).is_err(), "nested deeper than any stack");
    }
}
