//! Which jobs a path names. It is read as the API server reads it, or not at all: what it has allowed must be what is done.

use super::answer::Failure;
use super::story::STORIES;
use super::{GROUP, RESOURCE, VERSION};
use crate::machine::wishes::Wanted;

/// Longest name of a namespace.
const NAMESPACE: usize = 63;
/// Longest name of an object.
const NAME: usize = 253;

/// Of what kind the objects are that a request is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectKind {
    /// Jobs.
    #[default]
    Procs,
    /// What has happened to an `HTCJob`.
    Stories,
}

impl ObjectKind {
    /// The resource, as RBAC names it.
    #[must_use]
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Procs => RESOURCE,
            Self::Stories => STORIES,
        }
    }
}

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Whether it is jobs. What follows is of a story in the same way, which is got by its name only, and has no subresource but `files`.
    pub kind: ObjectKind,
    /// Jobs of this namespace; none for all.
    pub namespace: Option<String>,
    /// The job of this name; none for a list.
    pub name: Option<String>,
    /// Something of that job.
    pub subresource: Option<String>,
}

impl Target {
    /// From a path as it arrives. Only what Kubernetes lets names be made of is taken: no escapes, no empty parts, no dots alone.
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

    /// What a request of this method wants of the job; none if it only reads.
    ///
    /// # Errors
    ///
    /// Nothing is done by this method here.
    pub fn action(&self, method: &str) -> Result<Option<Wanted>, Failure> {
        let wanted = match self.subresource.as_deref() {
            Some("hold") => Some(Wanted::Hold),
            Some("release") => Some(Wanted::Release),
            Some("remove") => Some(Wanted::Remove),
            Some(_) | None => None,
        };
        match (method, wanted) {
            ("GET", None) => Ok(None),
            ("POST", Some(wanted)) => Ok(Some(wanted)),
            (_, Some(_)) => Err(Failure::not_allowed("a job is held, released or removed by POST")),
            (_, None) => Err(Failure::not_allowed("HTCProcs and HTCStories can only be read: change their HTCJob")),
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
        let target = Target::parse(&format!("/apis/procs.htc.cern.ch/v1alpha1{rest}"))?;
        let text = |part: Option<String>| part.unwrap_or_default();
        Some((text(target.namespace), text(target.name), text(target.subresource)))
    }

    #[test]
    fn what_changes_a_job_is_posted() {
        let action = |subresource: &str, method| {
            let subresource = (!subresource.is_empty()).then(|| subresource.to_owned());
            let (namespace, name) = (Some("a".to_owned()), Some("fit-7".to_owned()));
            let target = Target { namespace, name, subresource, ..Target::default() };
            target.action(method).map_err(|failure| failure.code)
        };
        assert_eq!(action("", "GET"), Ok(None));
        assert_eq!(action("log", "GET"), Ok(None));
        assert_eq!(action("hold", "POST"), Ok(Some(Wanted::Hold)));
        assert_eq!(action("release", "POST"), Ok(Some(Wanted::Release)));
        assert_eq!(action("remove", "POST"), Ok(Some(Wanted::Remove)));
        for (subresource, method) in
            [("hold", "GET"), ("remove", "DELETE"), ("log", "POST"), ("", "POST"), ("", "DELETE")]
        {
            assert_eq!(action(subresource, method), Err(405), "{method} {subresource}");
        }
    }

    #[test]
    fn paths_are_read_strictly() {
        let target = |namespace: &str, name: &str, sub: &str| Some((namespace.into(), name.into(), sub.into()));
        assert_eq!(parse("/htcprocs"), target("", "", ""));
        assert_eq!(parse("/namespaces/a/htcprocs"), target("a", "", ""));
        assert_eq!(parse("/namespaces/a/htcprocs/fit-2-7"), target("a", "fit-2-7", ""));
        assert_eq!(parse("/namespaces/a/htcprocs/fit-7/log"), target("a", "fit-7", "log"));
        assert_eq!(parse("/namespaces/a/htcstories/fit"), target("a", "fit", ""));
        assert_eq!(parse("/namespaces/a/htcstories/fit/files"), target("a", "fit", "files"));
        let kind =
            |rest: &str| Target::parse(&format!("/apis/procs.htc.cern.ch/v1alpha1{rest}")).map(|target| target.kind);
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
        assert_eq!(Target::parse("/apis/procs.htc.cern.ch/v1/htcprocs"), None);
        assert_eq!(Target::parse("/api/v1/namespaces"), None);
    }
}
