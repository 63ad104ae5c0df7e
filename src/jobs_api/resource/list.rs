//! Parameters of lists and watches, and the token to continue a list.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use super::selection::Selection;
use crate::jobs_api::resource::status_error::StatusError;

/// Maximum `timeoutSeconds` of a watch. Clients begin a new one then.
const LONGEST_WATCH: u64 = 3600;

/// Representation of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Objects as they are.
    #[default]
    Objects,
    /// A table for people.
    Table(Include),
}

/// Part of each object that goes into a table's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// Metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// Last job of a page. The next page begins after it, whatever was added or deleted meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Namespace of the job.
    pub namespace: String,
    /// Name of its `HTCJob`.
    pub htcjob: String,
    /// Index of the job.
    pub index: u32,
    /// The ledger's version when the first page was made: no page is older.
    pub version: i64,
}

impl Cursor {
    /// Returns a token for clients.
    #[must_use]
    pub fn token(&self) -> String {
        BASE64.encode(serde_json::json!(self).to_string())
    }

    fn parse(token: &str) -> Result<Self, StatusError> {
        let read = || serde_json::from_slice(&BASE64.decode(token).ok()?).ok();
        read().ok_or_else(|| StatusError::bad_request("continue key is not valid: list again from the start"))
    }
}

/// Query of a request for one or several jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Maximum number of jobs; `None` for all.
    pub limit: Option<usize>,
    /// Where the list continues.
    pub from: Option<Cursor>,
    /// Selected jobs.
    pub selection: Selection,
    /// Changes are requested, from now on or from a version on.
    pub watch: Option<Watch>,
    /// Representation of the answer.
    pub form: Form,
}

/// Request for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Only changes after this version; `None` for all existing jobs first.
    pub since: Option<i64>,
    /// Duration in seconds.
    pub seconds: Option<u64>,
    /// The client wants bookmarks: versions up to which it has missed nothing.
    pub bookmarks: bool,
}

/// Parses the parameters of a query. A parameter that comes twice is refused: the API server would read another one
/// than this operator.
pub fn parameters(query: &str) -> Result<Vec<(String, String)>, StatusError> {
    let mut found: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8().map(std::borrow::Cow::into_owned)
        };
        let (Ok(name), Ok(value)) = (decode(name), decode(value)) else {
            return Err(StatusError::bad_request("the query is not UTF-8"));
        };
        if found.iter().any(|(other, _)| *other == name) {
            return Err(StatusError::bad_request(format!("the parameter {name:?} comes more than once")));
        }
        found.push((name, value));
    }
    Ok(found)
}

impl Query {
    /// Parses a query and the header `Accept`.
    pub fn parse(query: &str, accept: Option<&str>) -> Result<Self, StatusError> {
        let (mut labels, mut fields, mut include) = (None, None, Include::default());
        let (mut wanted, mut watch, mut parsed) = (false, Watch::default(), Self::default());
        for (name, value) in parameters(query)? {
            let wrong = || StatusError::wrong_parameter(&name, &value);
            match name.as_str() {
                "limit" => {
                    let limit: usize = value.parse().map_err(|_| wrong())?;
                    parsed.limit = (limit > 0).then_some(limit);
                }
                "continue" => parsed.from = (!value.is_empty()).then(|| Cursor::parse(&value)).transpose()?,
                "labelSelector" => labels = Some(value),
                "fieldSelector" => fields = Some(value),
                "watch" => wanted = flag(&value).ok_or_else(wrong)?,
                "timeoutSeconds" => {
                    let seconds: u64 = value.parse().map_err(|_| wrong())?;
                    watch.seconds = (seconds > 0).then_some(seconds.min(LONGEST_WATCH));
                }
                "resourceVersion" => {
                    let since: Option<i64> =
                        if value.is_empty() { None } else { Some(value.parse().map_err(|_| wrong())?) };
                    watch.since = since.filter(|since| *since > 0);
                }
                "includeObject" => {
                    include = match value.as_str() {
                        "None" => Include::None,
                        "Metadata" => Include::Metadata,
                        "Object" => Include::Object,
                        _ => return Err(wrong()),
                    }
                }
                "sendInitialEvents" if flag(&value) == Some(true) => {
                    return Err(StatusError::invalid(
                        "sendInitialEvents is not supported: list, and watch from its resourceVersion",
                    ));
                }
                "allowWatchBookmarks" => watch.bookmarks = flag(&value).ok_or_else(wrong)?,
                // Lists always return the newest state.
                "resourceVersionMatch" | "sendInitialEvents" | "pretty" | "timeout" => {}
                _ => return Err(StatusError::unknown_parameter(&name)),
            }
        }
        parsed.selection = Selection::parse(labels.as_deref(), fields.as_deref())?;
        parsed.watch = wanted.then_some(watch);
        parsed.form = form(accept, include)?;
        Ok(parsed)
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "" | "1" | "true" | "True" => Some(true),
        "0" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Returns the first accepted form that is served.
fn form(accept: Option<&str>, include: Include) -> Result<Form, StatusError> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else { return Ok(Form::Objects) };
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        if !["application/json", "application/*", "*/*"].contains(&kind) {
            continue;
        }
        let parts: Vec<&str> = parts.collect();
        let has = |wanted: &str| parts.contains(&wanted);
        if has("as=Table") && has("g=meta.k8s.io") && (has("v=v1") || has("v=v1beta1")) {
            return Ok(Form::Table(include));
        }
        if !parts.iter().any(|part| part.starts_with("as=")) {
            return Ok(Form::Objects);
        }
    }
    Err(StatusError::not_acceptable())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECTL: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

    #[test]
    fn queries_of_kubectl_are_parsed() {
        let query = Query::parse("fieldSelector=status.state%3DFailed&limit=500", Some(KUBECTL)).unwrap();
        assert_eq!((query.limit, query.form, query.watch), (Some(500), Form::Table(Include::Metadata), None));
        assert_eq!(query.selection, Selection::parse(None, Some("status.state=Failed")).unwrap());
        let query = Query::parse("includeObject=Object&watch=true&resourceVersion=77", Some(KUBECTL)).unwrap();
        assert_eq!(query.form, Form::Table(Include::Object));
        assert_eq!(query.watch, Some(Watch { since: Some(77), ..Watch::default() }));
        let plain = Query::parse("", Some("application/vnd.kubernetes.protobuf,application/json")).unwrap();
        assert_eq!(plain, Query::default());
        let cursor = Cursor { namespace: "n".to_owned(), htcjob: "fit".to_owned(), index: 7, version: 12 };
        let next = Query::parse(&format!("limit=1&continue={}", cursor.token()), None).unwrap();
        assert_eq!(next.from, Some(cursor));
    }

    #[test]
    fn unsupported_list_parameters_are_refused() {
        let refused = |query: &str, accept| Query::parse(query, accept).map_err(|failure| failure.code);
        for query in [
            "limit=1&limit=2",
            "limit=x",
            "continue=abc",
            "fieldselector=a=b",
            "watch=maybe",
            "resourceVersion=x",
            "limit=-1",
            "%ff=1",
        ] {
            assert_eq!(refused(query, None), Err(400), "{query}");
        }
        assert_eq!(refused("watch=1&sendInitialEvents=true", None), Err(422));
        assert_eq!(refused("", Some("application/vnd.kubernetes.protobuf")), Err(406));
        assert_eq!(refused("", Some("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")), Err(406));
    }
}
