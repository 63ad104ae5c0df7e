//! Label and field selectors: applied exactly, or refused.

use htc_api::htcproc::{HTCJOB_LABEL, HTCProc, INDEX_LABEL, LABEL, ProcName};

use crate::jobs_api::resource::status_error::StatusError;

/// Fields that can be selected by.
const FIELDS: [&str; 5] = ["metadata.name", "metadata.namespace", "spec.htcJob", "spec.index", "status.state"];
/// Maximum length of a selector.
const LONGEST: usize = 4096;

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: SelectorOperator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SelectorOperator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
}

impl SelectorOperator {
    /// Returns whether the value passes. As in Kubernetes, a missing value is not among the values.
    fn passes(&self, value: Option<&str>) -> bool {
        let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|other| other == value));
        match self {
            Self::In(values) => among(values),
            Self::NotIn(values) => !among(values),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
        }
    }
}

/// Selection of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

impl Selection {
    /// Parses `labelSelector` and `fieldSelector`.
    pub fn parse(labels: Option<&str>, fields: Option<&str>) -> Result<Self, StatusError> {
        let labels = labels.map(|text| parse_labels(text, "labelSelector")).transpose()?.unwrap_or_default();
        let fields = fields.map(parse_fields).transpose()?.unwrap_or_default();
        Ok(Self { labels, fields })
    }

    /// Returns whether this job is selected.
    #[must_use]
    pub fn matches(&self, proc: &HTCProc) -> bool {
        let labels = self.labels.iter().all(|required| required.test.passes(label(proc, &required.key).as_deref()));
        labels && self.fields.iter().all(|required| required.test.passes(Some(&*field(proc, &required.key))))
    }

    /// Returns whether jobs of this `HTCJob` may be selected.
    #[must_use]
    pub fn may_have(&self, namespace: &str, htcjob: &str) -> bool {
        let labels = self.labels.iter().filter(|required| required.key == HTCJOB_LABEL);
        let label = (htcjob.len() <= LABEL).then_some(htcjob);
        labels.into_iter().all(|required| required.test.passes(label))
            && self.fields.iter().all(|required| match (required.key.as_str(), &required.test) {
                ("metadata.namespace", test) => test.passes(Some(namespace)),
                ("spec.htcJob", test) => test.passes(Some(htcjob)),
                ("metadata.name", SelectorOperator::In(names)) => {
                    names.iter().any(|name| ProcName::parse(name).is_some_and(|(parent, _)| parent == htcjob))
                }
                _ => true,
            })
    }

    /// Returns the only index that may be selected, if there is only one.
    #[must_use]
    pub fn only_index(&self) -> Option<u32> {
        let one = |values: &[String]| (values.len() == 1).then(|| values.first().cloned()).flatten();
        self.fields.iter().chain(&self.labels).find_map(|required| match (required.key.as_str(), &required.test) {
            ("metadata.name", SelectorOperator::In(names)) => ProcName::parse(&one(names)?).map(|(_, index)| index),
            ("spec.index" | INDEX_LABEL, SelectorOperator::In(indexes)) => one(indexes)?.parse().ok(),
            _ => None,
        })
    }

    /// Returns the only name that may be selected, if there is only one.
    #[must_use]
    pub fn only_name(&self) -> Option<String> {
        self.fields.iter().find_map(|required| match (required.key.as_str(), &required.test) {
            ("metadata.name", SelectorOperator::In(names)) if names.len() == 1 => names.first().cloned(),
            _ => None,
        })
    }

    /// Returns whether it selects all jobs of an `HTCJob`, or none.
    #[must_use]
    pub fn takes_whole_htcjobs(&self) -> bool {
        let of_the_htcjob = [HTCJOB_LABEL, "spec.htcJob", "metadata.namespace"];
        self.labels.iter().chain(&self.fields).all(|required| of_the_htcjob.contains(&required.key.as_str()))
    }

    /// Returns whether a job can enter or leave the selection while it exists.
    #[must_use]
    pub fn can_change(&self) -> bool {
        self.fields.iter().any(|required| required.key == "status.state")
    }

    /// Returns the selection without the requirements that can change: jobs that may ever be in it.
    #[must_use]
    pub fn at_any_time(&self) -> Self {
        let fields = self.fields.iter().filter(|required| required.key != "status.state").cloned();
        Self { labels: self.labels.clone(), fields: fields.collect() }
    }
}

fn label(proc: &HTCProc, key: &str) -> Option<String> {
    match key {
        HTCJOB_LABEL => (proc.name.htcjob.len() <= LABEL).then(|| proc.name.htcjob.clone()),
        INDEX_LABEL => Some(proc.name.index.to_string()),
        _ => None,
    }
}

fn field(proc: &HTCProc, key: &str) -> String {
    match key {
        "metadata.name" => proc.name.name(),
        "metadata.namespace" => proc.name.namespace.clone(),
        "spec.htcJob" => proc.spec.htc_job.clone(),
        "spec.index" => proc.spec.index.to_string(),
        _ => proc.status.state.to_string(),
    }
}

fn refuse(what: &str, text: &str, why: &str) -> StatusError {
    StatusError::bad_request(format!("unable to parse {what} {text:?}: {why}"))
}

fn parse_fields(text: &str) -> Result<Vec<Requirement>, StatusError> {
    let requirements = parse_labels(text, "fieldSelector")?;
    for required in &requirements {
        if !FIELDS.contains(&required.key.as_str()) {
            let why = format!("field label not supported: {}; supported are {}", required.key, FIELDS.join(", "));
            return Err(refuse("fieldSelector", text, &why));
        }
        if matches!(required.test, SelectorOperator::Exists | SelectorOperator::Missing) {
            return Err(refuse("fieldSelector", text, "write FIELD=VALUE or FIELD!=VALUE"));
        }
    }
    Ok(requirements)
}

/// Parses Kubernetes' grammar: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`, separated by commas.
fn parse_labels(text: &str, what: &'static str) -> Result<Vec<Requirement>, StatusError> {
    if text.len() > LONGEST {
        return Err(refuse(what, "", &format!("it is longer than {LONGEST} bytes")));
    }
    let wrong = |why: &str| refuse(what, text, why);
    let parts = split(text).ok_or_else(|| wrong("its parentheses do not match"))?;
    parts.into_iter().map(|part| requirement(part.trim()).ok_or_else(|| wrong("use =, ==, !=, in or notin"))).collect()
}

/// Splits at commas outside of parentheses; an empty text has no parts.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut from, mut inside) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        match character {
            '(' if inside => return None,
            '(' => inside = true,
            ')' if !inside => return None,
            ')' => inside = false,
            ',' if !inside => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return None;
    }
    parts.push(&text[from..]);
    Some(if text.trim().is_empty() { Vec::new() } else { parts })
}

fn requirement(part: &str) -> Option<Requirement> {
    let required = |key: &str, test| {
        let key = key.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        (!key.is_empty() && key.chars().all(plain)).then(|| Requirement { key: key.to_owned(), test })
    };
    let plain_value = |value: &str| -> Option<String> {
        let value = value.trim();
        value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)).then(|| value.to_owned())
    };
    if let Some(inside) = part.strip_suffix(')') {
        let (before, values) = inside.split_once('(')?;
        let mut words = before.split_whitespace();
        let (key, operator, None) = (words.next()?, words.next()?, words.next()) else { return None };
        let values: Vec<String> = values.split(',').map(plain_value).collect::<Option<_>>()?;
        return match operator {
            "in" => required(key, SelectorOperator::In(values)),
            "notin" => required(key, SelectorOperator::NotIn(values)),
            _ => None,
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return required(key, SelectorOperator::NotIn(vec![plain_value(value)?]));
    }
    if let Some((key, value)) = part.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return required(key, SelectorOperator::In(vec![plain_value(value)?]));
    }
    match part.strip_prefix('!') {
        Some(key) => required(key, SelectorOperator::Missing),
        None => required(part, SelectorOperator::Exists),
    }
}

#[cfg(test)]
mod tests {
    use htc_api::htcproc::State;
    use htc_machine::ids::Index;
    use strum::VariantArray as _;

    use super::*;
    use crate::backends::procs::Parent;

    fn proc(index: u32) -> HTCProc {
        let parent = Parent { namespace: "physics".to_owned(), name: "fit-2".to_owned(), ..Parent::default() };
        crate::backends::procs::not_recorded(&parent, Index(index), false, None)
    }

    #[test]
    fn selectors_match_labels_and_fields() {
        let cases = [
            (Some("htc.cern.ch/htcjob=fit-2"), None, true),
            (Some("htc.cern.ch/htcjob==fit-2,htc.cern.ch/index in (1, 7)"), None, true),
            (Some("htc.cern.ch/index notin (7)"), None, false),
            (Some("htc.cern.ch/index!=7"), None, false),
            (Some("colour!=red"), None, true),
            (Some("colour notin (red)"), None, true),
            (Some("colour"), None, false),
            (Some("!colour,htc.cern.ch/index"), None, true),
            (Some(""), Some(""), true),
            (None, Some("status.state=Waiting,spec.htcJob=fit-2"), true),
            (None, Some("status.state!=Waiting"), false),
            (None, Some("metadata.name=fit-2-7,metadata.namespace=physics"), true),
            (None, Some("metadata.name=fit-2-8"), false),
            (None, Some("spec.index=7"), true),
        ];
        for (labels, fields, expected) in cases {
            let selection = Selection::parse(labels, fields).unwrap();
            assert_eq!(selection.matches(&proc(7)), expected, "{labels:?} {fields:?}");
            // A shortcut never leaves out a job that matches.
            assert!(!expected || selection.may_have("physics", "fit-2"), "{labels:?} {fields:?}");
            let whole = [6, 7, 8].map(|index| selection.matches(&proc(index))) == [expected; 3];
            assert!(whole || !selection.takes_whole_htcjobs(), "{labels:?} {fields:?}");
            assert!(!expected || selection.only_index().is_none_or(|index| index == 7), "{labels:?} {fields:?}");
        }
    }

    #[test]
    fn unsupported_selectors_are_refused() {
        for labels in
            ["a in (b", "a)", "a in b)", "a = b c", "in (x)", "a=b=c", ",", "a,,b", "a>3", "a like (b)", "!", "é=1"]
        {
            assert_eq!(Selection::parse(Some(labels), None).map_err(|refused| refused.code), Err(400), "{labels}");
        }
        for fields in
            ["status.host=x", "spec.index", "!status.state", "status.phase!=x", "metadata.uid=7", "status.state>7"]
        {
            assert_eq!(Selection::parse(None, Some(fields)).map_err(|refused| refused.code), Err(400), "{fields}");
        }
        assert!(Selection::parse(Some(&"a".repeat(5000)), None).is_err());
    }

    /// The selector of `kubectl htc jobs --failed`.
    #[test]
    fn failed_jobs_can_be_selected() {
        let others = ["Waiting", "Idle", "Running", "Held", "Succeeded"];
        let selector = others.map(|state| format!("status.state!={state}")).join(",");
        let selection = Selection::parse(None, Some(&selector)).unwrap();
        let mut proc = crate::backends::procs::not_recorded(&Parent::default(), Index(7), false, None);
        for state in State::VARIANTS {
            proc.status.state = *state;
            assert_eq!(selection.matches(&proc), state.has_failed(), "{state}");
        }
    }
}
