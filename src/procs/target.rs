//! Which jobs a path names. It is read as the API server reads it, or not at all: what it has allowed must be what is done.

use super::{GROUP, RESOURCE, VERSION};

/// Longest name of a namespace.
const NAMESPACE: usize = 63;
/// Longest name of an object.
const NAME: usize = 253;

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
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
                Some(Self { namespace: owned(namespace), name, subresource })
            }
            _ => None,
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
    fn paths_are_read_strictly() {
        let target = |namespace: &str, name: &str, sub: &str| Some((namespace.into(), name.into(), sub.into()));
        assert_eq!(parse("/htcprocs"), target("", "", ""));
        assert_eq!(parse("/namespaces/a/htcprocs"), target("a", "", ""));
        assert_eq!(parse("/namespaces/a/htcprocs/fit-2-7"), target("a", "fit-2-7", ""));
        assert_eq!(parse("/namespaces/a/htcprocs/fit-7/log"), target("a", "fit-7", "log"));
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
