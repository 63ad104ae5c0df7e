//! Labels, annotations and node selectors of Pods: those that all have, and those that users may set.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Labels of all Pods. Istio injects no proxy into a Pod with this one. A proxy runs on after the payload, so that the
/// Pod would never end.
pub const DEFAULT_LABELS: [(&str, &str); 1] = [("sidecar.istio.io/inject", "false")];
/// Annotations of all Pods: Linkerd injects no proxy, and neither the cluster autoscaler nor Karpenter removes the node
/// to save it.
pub const DEFAULT_ANNOTATIONS: [(&str, &str); 3] =
    [("linkerd.io/inject", "disabled"), (SAFE_TO_EVICT, "false"), (DO_NOT_DISRUPT, "true")];
/// Node selector of all Pods: what they run needs Linux.
pub const DEFAULT_NODE_SELECTOR: [(&str, &str); 1] = [("kubernetes.io/os", "linux")];
/// Keys that users may set unless the site lists others. Their values concern only how long the Pod stays on its node.
///
/// The keys of service meshes are not among them: a proxy gives a Pod the mesh identity of its ServiceAccount.
pub const DEFAULT_ALLOWED: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict,karpenter.sh/do-not-disrupt";

const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Domains whose keys give rights, place Pods or select them: no site can allow them. [`SAFE_TO_EVICT`] is the
/// exception.
const RESERVED_DOMAINS: [&str; 4] = ["htc.cern.ch", "kubernetes.io", "k8s.io", "x-k8s.io"];
/// Older labels by which the Job controller finds its Pods.
const RESERVED_KEYS: [&str; 2] = ["controller-uid", "job-name"];
const LONGEST_NAME: usize = 63;
const LONGEST_DOMAIN: usize = 253;

/// Keys of labels and annotations that a site allows: one key, or with `/*` at its end all keys of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataKey(String);

/// Reason why a site cannot allow a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataKeyError {
    #[error(
        "{0:?} is neither a key such as example.org/team nor all keys of a domain such as example.org/*: write one of them"
    )]
    NoKey(String),
    #[error(
        "{0:?} is reserved: its keys give rights, place Pods or select them. Leave it out; keys of the domains htc.cern.ch, kubernetes.io, k8s.io and x-k8s.io cannot be allowed"
    )]
    Reserved(String),
}

impl FromStr for MetadataKey {
    type Err = MetadataKeyError;

    fn from_str(text: &str) -> Result<Self, MetadataKeyError> {
        let is_key = match text.strip_suffix("/*") {
            Some(domain) => is_domain(domain),
            None => is_key(text),
        };
        if !is_key {
            return Err(MetadataKeyError::NoKey(text.to_owned()));
        }
        if is_reserved(text) {
            return Err(MetadataKeyError::Reserved(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for MetadataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl MetadataKey {
    fn covers(&self, key: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(domain) => key.starts_with(domain),
            None => key == self.0,
        }
    }
}

/// Checks a user's labels and annotations.
///
/// # Errors
/// The field, and what is wrong with it.
pub fn check(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    allowed: &[MetadataKey],
) -> Result<(), (&'static str, String)> {
    let all = labels.keys().map(|key| ("podLabels", key)).chain(annotations.keys().map(|key| ("podAnnotations", key)));
    for (field, key) in all {
        if !is_key(key) {
            return Err((field, format!("{key:?} is no key: write one such as example.org/team")));
        }
        if is_reserved(key) || !allowed.iter().any(|one| one.covers(key)) {
            let names = allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let names = if names.is_empty() { "none".to_owned() } else { names };
            let problem = format!(
                "{key:?} is not among the keys that this operator's administrator allows (--allow-pod-metadata: {names}): leave it out, or ask for it"
            );
            return Err((field, problem));
        }
    }
    match labels.iter().find(|(_, value)| !is_label_value(value)) {
        Some((key, value)) => Err((
            "podLabels",
            format!(
                "{value:?} of {key:?} is no value of a label: write at most 63 letters, digits, -, _ and ., with a letter or a digit at both ends"
            ),
        )),
        None => Ok(()),
    }
}

/// Returns the labels, annotations or node selector of a Pod: the defaults, and the user's, which replace them.
#[must_use]
pub fn with_defaults(defaults: &[(&str, &str)], given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        defaults.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    all.extend(given.clone());
    all
}

fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return RESERVED_KEYS.contains(&key) };
    let is_in =
        |reserved: &str| domain.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    key != SAFE_TO_EVICT && RESERVED_DOMAINS.iter().any(|reserved| is_in(reserved))
}

/// Whether Kubernetes takes this as the key of a label: a name, with or without a domain before it.
fn is_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    domain.is_none_or(is_domain) && !name.is_empty() && is_label_value(name)
}

fn is_domain(text: &str) -> bool {
    let is_part = |part: &str| {
        let ends = part.starts_with(|c: char| c.is_ascii_alphanumeric()) && !part.ends_with('-');
        ends && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    text.len() <= LONGEST_DOMAIN && text.split('.').all(is_part)
}

fn is_label_value(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LONGEST_NAME
        && (text.is_empty() || (text.starts_with(is_end) && text.ends_with(is_end)))
        && text.chars().all(|c| is_end(c) || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str) -> Vec<MetadataKey> {
        text.split(',').filter(|key| !key.is_empty()).map(|key| key.parse().unwrap()).collect()
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        with_defaults(pairs, &BTreeMap::new())
    }

    #[test]
    fn a_site_can_allow_keys_and_domains_but_not_reserved_ones() {
        for good in ["team", "example.org/team", "example.org/*", SAFE_TO_EVICT, "kubernetes.io.example.org/x", "k8s"] {
            assert_eq!(good.parse::<MetadataKey>().map(|key| key.to_string()), Ok(good.to_owned()));
        }
        for bad in
            ["", "*", "te*m", "a/b/c", "/x", "x/", "Example.org/*", "example.org*", "-a", "a..b/x", "example.org/te*"]
        {
            assert_eq!(bad.parse::<MetadataKey>(), Err(MetadataKeyError::NoKey(bad.to_owned())), "{bad}");
        }
        let reserved = [
            "htc.cern.ch/*",
            "htc.cern.ch/htcjob",
            "x.htc.cern.ch/y",
            "kubernetes.io/*",
            "app.kubernetes.io/name",
            "cluster-autoscaler.kubernetes.io/*",
            "kueue.x-k8s.io/queue-name",
            "x-k8s.io/a",
            "pod-security.kubernetes.io/enforce",
            "node.k8s.io/x",
            "job-name",
            "controller-uid",
        ];
        for bad in reserved {
            assert_eq!(bad.parse::<MetadataKey>(), Err(MetadataKeyError::Reserved(bad.to_owned())), "{bad}");
        }
        assert_eq!(allowed(DEFAULT_ALLOWED).len(), 2);
    }

    #[test]
    fn users_set_only_what_is_allowed() {
        let is_allowed = |key: &str, keys: &str| {
            let (given, none) = (map(&[(key, "x")]), BTreeMap::new());
            let (label, annotation) = (check(&given, &none, &allowed(keys)), check(&none, &given, &allowed(keys)));
            assert_eq!(label.is_ok(), annotation.is_ok(), "{key}");
            assert_eq!(annotation.as_ref().err().map_or("podAnnotations", |(field, _)| field), "podAnnotations");
            label.map_err(|(field, problem)| {
                assert_eq!(field, "podLabels");
                problem
            })
        };
        assert_eq!(is_allowed(DO_NOT_DISRUPT, DEFAULT_ALLOWED), Ok(()));
        assert_eq!(is_allowed("example.org/team", "example.org/*"), Ok(()));
        assert_eq!(is_allowed("team", "team"), Ok(()));
        for (key, keys) in [
            ("sidecar.istio.io/inject", DEFAULT_ALLOWED),
            ("example.org/team", DEFAULT_ALLOWED),
            ("example.org.evil/team", "example.org/*"),
            ("teams", "team"),
            ("htc.cern.ch/htcjob-uid", "example.org/*"),
            ("app", ""),
        ] {
            assert!(is_allowed(key, keys).unwrap_err().contains("--allow-pod-metadata"), "{key} {keys}");
        }
        assert!(is_allowed("a b", "team").unwrap_err().contains("is no key"));
        assert!(is_allowed("app", "").unwrap_err().contains(": none"));
    }

    #[test]
    fn values_of_labels_are_short_and_plain_and_those_of_annotations_are_not() {
        let (keys, none) = (allowed("a"), BTreeMap::new());
        for bad in ["x y", "-x", "x.", &"x".repeat(64)] {
            let given = map(&[("a", bad)]);
            assert!(check(&given, &none, &keys).unwrap_err().1.contains("no value of a label"), "{bad}");
            assert_eq!(check(&none, &given, &keys), Ok(()));
        }
        assert_eq!(check(&map(&[("a", "")]), &none, &keys), Ok(()));
    }

    #[test]
    fn a_users_value_replaces_the_default() {
        let given = map(&[(DO_NOT_DISRUPT, "false")]);
        let all = with_defaults(&DEFAULT_ANNOTATIONS, &given);
        assert_eq!((all[DO_NOT_DISRUPT].as_str(), all[SAFE_TO_EVICT].as_str(), all.len()), ("false", "false", 3));
    }
}
