//! Parses the paths of requests. A path is read as the API server reads it, or refused: what it has allowed must be
//! what is done.

use htc_api::htcproc::{GROUP, RESOURCE, VERSION};
use htc_machine::actions::JobAction;

use super::story::STORIES;
use crate::jobs_api::resource::status_error::StatusError;

/// Maximum length of a namespace's name.
const NAMESPACE: usize = 63;
/// Maximum length of an object's name.
const NAME: usize = 253;

/// Kind of the requested objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectKind {
    /// Jobs.
    #[default]
    Procs,
    /// Stories of `HTCJob`s.
    Stories,
}

impl ObjectKind {
    /// Returns the resource, as RBAC names it.
    #[must_use]
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Procs => RESOURCE,
            Self::Stories => STORIES,
        }
    }
}

/// Object of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPath {
    /// Kind of the object. A story has the same fields; it is only read by its name, and has no subresource but
    /// `files`.
    pub kind: ObjectKind,
    /// Namespace of the jobs; `None` for all.
    pub namespace: Option<String>,
    /// Name of the job; `None` for a list.
    pub name: Option<String>,
    /// Subresource of that job.
    pub subresource: Option<String>,
}

impl RequestPath {
    /// Parses a path as it arrives. Accepts only characters that Kubernetes allows in names: no escapes, no empty
    /// parts, no dots alone.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/apis/")?.strip_prefix(GROUP)?.strip_prefix('/')?;
        let rest = rest.strip_prefix(VERSION)?.strip_prefix('/')?;
        let parts: Vec<&str> = rest.split('/').collect();
        if !parts.iter().all(|part| is_plain(part, NAME)) {
            return None;
        }
        let owned = |part: &str| Some(part.to_owned());
        match parts.as_slice() {
            [RESOURCE] => Some(Self::default()),
            ["namespaces", namespace, RESOURCE, rest @ ..] if is_plain(namespace, NAMESPACE) => {
                let (name, subresource) = match rest {
                    [] => (None, None),
                    [name] => (owned(name), None),
                    [name, subresource] => (owned(name), owned(subresource)),
                    _ => return None,
                };
                Some(Self { kind: ObjectKind::Procs, namespace: owned(namespace), name, subresource })
            }
            ["namespaces", namespace, STORIES, name, rest @ ..]
                if is_plain(namespace, NAMESPACE) && matches!(rest, [] | ["files"]) =>
            {
                Some(Self {
                    kind: ObjectKind::Stories,
                    namespace: owned(namespace),
                    name: owned(name),
                    subresource: rest.first().and_then(|subresource| owned(subresource)),
                })
            }
            _ => None,
        }
    }

    /// Returns the action that a request of this method asks for; `None` if it only reads.
    ///
    /// # Errors
    ///
    /// This method is not supported here.
    pub fn action(&self, method: &str) -> Result<Option<JobAction>, StatusError> {
        let wanted = match self.subresource.as_deref() {
            Some("hold") => Some(JobAction::Hold),
            Some("release") => Some(JobAction::Release),
            Some("remove") => Some(JobAction::Remove),
            Some(_) | None => None,
        };
        match (method, wanted) {
            ("GET", None) => Ok(None),
            ("POST", Some(wanted)) => Ok(Some(wanted)),
            (_, Some(_)) => Err(StatusError::not_allowed("a job is held, released or removed by POST")),
            (_, None) => Err(StatusError::not_allowed("HTCProcs and HTCStories can only be read: change their HTCJob")),
        }
    }
}

fn is_plain(part: &str, longest: usize) -> bool {
    let letters = part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte));
    letters && !part.is_empty() && part.len() <= longest && part.bytes().any(|byte| byte != b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rest: &str) -> Option<(String, String, String)> {
        let target = RequestPath::parse(&format!("/apis/procs.htc.cern.ch/v1alpha1{rest}"))?;
        let text = |part: Option<String>| part.unwrap_or_default();
        Some((text(target.namespace), text(target.name), text(target.subresource)))
    }

    #[test]
    fn job_actions_require_post() {
        let action = |subresource: &str, method| {
            let subresource = (!subresource.is_empty()).then(|| subresource.to_owned());
            let (namespace, name) = (Some("a".to_owned()), Some("fit-7".to_owned()));
            let target = RequestPath { namespace, name, subresource, ..RequestPath::default() };
            target.action(method).map_err(|failure| failure.code)
        };
        assert_eq!(action("", "GET"), Ok(None));
        assert_eq!(action("log", "GET"), Ok(None));
        assert_eq!(action("hold", "POST"), Ok(Some(JobAction::Hold)));
        assert_eq!(action("release", "POST"), Ok(Some(JobAction::Release)));
        assert_eq!(action("remove", "POST"), Ok(Some(JobAction::Remove)));
        for (subresource, method) in
            [("hold", "GET"), ("remove", "DELETE"), ("log", "POST"), ("", "POST"), ("", "DELETE")]
        {
            assert_eq!(action(subresource, method), Err(405), "{method} {subresource}");
        }
    }

    #[test]
    fn request_path_is_parsed_strictly() {
        let target = |namespace: &str, name: &str, sub: &str| Some((namespace.into(), name.into(), sub.into()));
        assert_eq!(parse("/htcprocs"), target("", "", ""));
        assert_eq!(parse("/namespaces/a/htcprocs"), target("a", "", ""));
        assert_eq!(parse("/namespaces/a/htcprocs/fit-2-7"), target("a", "fit-2-7", ""));
        assert_eq!(parse("/namespaces/a/htcprocs/fit-7/log"), target("a", "fit-7", "log"));
        assert_eq!(parse("/namespaces/a/htcstories/fit"), target("a", "fit", ""));
        assert_eq!(parse("/namespaces/a/htcstories/fit/files"), target("a", "fit", "files"));
        let kind = |rest: &str| {
            RequestPath::parse(&format!("/apis/procs.htc.cern.ch/v1alpha1{rest}")).map(|target| target.kind)
        };
        assert_eq!(kind("/namespaces/a/htcprocs/htcstories"), Some(ObjectKind::Procs));
        assert_eq!(kind("/namespaces/htcprocs/htcstories/fit"), Some(ObjectKind::Stories));
        for rest in [
            "",
            "/",
            "/htcprocs/",
            "/htcprocs/fit-7",
            "//htcprocs",
            "/namespaces/a/htcprocs/",
            "/namespaces/a/htcprocs/fit-7/",
            "/namespaces/a/htcprocs/fit-7/log/x",
            "/namespaces/a/htcprocs/../htcprocs",
            "/namespaces/../htcprocs",
            "/namespaces/./htcprocs",
            "/namespaces//htcprocs/fit-7",
            "/namespaces/a/htcprocs/fit%2d7",
            "/namespaces/A/htcprocs",
            "/namespaces/a/htcjobs/fit",
            "/htcstories",
            "/htcstories/fit",
            "/namespaces/a/htcstories",
            "/namespaces/a/htcstories/fit/log",
            "/namespaces/a/htcstories/fit/hold",
            "/namespaces/a/htcstories/fit/files/x",
            "/namespaces/a/htcstories/..",
            "/watch/namespaces/a/htcprocs",
            "/proxy/namespaces/a/htcprocs",
            "/namespaces/a b/htcprocs",
            "/namespaces/a/htcprocs/fit-7;x",
        ] {
            assert_eq!(parse(rest), None, "{rest}");
        }
        assert_eq!(RequestPath::parse("/apis/procs.htc.cern.ch/v1/htcprocs"), None);
        assert_eq!(RequestPath::parse("/api/v1/namespaces"), None);
    }
}
