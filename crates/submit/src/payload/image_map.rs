//! The site's table of image names: complete names for a path, and prefixes for another place.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::image::{self, Image, ImageScheme};

/// Registry that docker uses for a name without one.
const DOCKER: &str = "docker.io/";
/// Folder in that registry for names with one component.
const LIBRARY: &str = "library/";

/// The site's table of image names. A complete name takes precedence over prefixes, and a longer prefix over a shorter
/// one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageMap {
    names: BTreeMap<String, String>,
    /// Prefixes, the longest first.
    prefixes: Vec<ImagePrefix>,
    /// Folders of the nodes that jobs see, without a trailing slash.
    shown: Vec<String>,
    /// Schemes that users may write.
    schemes: Vec<ImageScheme>,
}

/// A prefix of names and its replacement. It matches complete components only: `docker.io/team` is no prefix of
/// `docker.io/teams/x`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePrefix {
    /// Prefix as [`full_name`] writes it, with a trailing slash.
    prefix: String,
    target: ImageTarget,
}

/// Replacement of a prefix, without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ImageTarget {
    /// An absolute folder that holds one unpacked image for each tag, as `name:tag`.
    Folder(String),
    /// A registry, or a part of one.
    Registry(String),
}

/// Reason why an entry of the table cannot be used, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImagePrefixError {
    /// The entry has no `=`.
    #[error("write PREFIX=TARGET, for example `docker.io/=registry.example.org/proxy/`")]
    NoPair,
    /// The text before the `=` is no prefix of image names.
    #[error(
        "{0:?} is not a valid prefix of an image name: write a registry, or more of the name up to a slash, in lower case and without a scheme, for example `registry.example.org/team/`"
    )]
    Prefix(String),
    /// An absolute path that cannot be used.
    #[error(
        "{0:?} is not a valid folder for images: write an absolute path of letters, digits and `-._/:@+=`, without `.` and `..`"
    )]
    Folder(String),
    /// Neither a path nor a registry.
    #[error(
        "{0:?} is neither a folder nor a registry: write an absolute path, or a registry with a dot or a port in its name, such as `registry.example.org/proxy/`, without a scheme"
    )]
    Registry(String),
    /// Two entries for one prefix.
    #[error("there are two entries for {0:?}: leave one out")]
    Twice(String),
}

impl ImageMap {
    /// Creates an empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self { names: BTreeMap::new(), prefixes: Vec::new(), shown: Vec::new(), schemes: Vec::new() }
    }

    /// Creates a table of complete names with their folders or files, and of prefixes.
    ///
    /// # Errors
    /// Two entries for the same prefix.
    pub fn with(
        names: impl IntoIterator<Item = (String, String)>,
        prefixes: impl IntoIterator<Item = ImagePrefix>,
    ) -> Result<Self, ImagePrefixError> {
        let mut prefixes: Vec<_> = prefixes.into_iter().collect();
        prefixes.sort_by(|a, b| (b.prefix.len(), &a.prefix).cmp(&(a.prefix.len(), &b.prefix)));
        if let Some(twice) = prefixes.windows(2).find(|two| two[0].prefix == two[1].prefix) {
            return Err(ImagePrefixError::Twice(twice[0].prefix.clone()));
        }
        Ok(Self { names: names.into_iter().collect(), prefixes, ..Self::new() })
    }

    /// Adds the folders that are bound into containers. Users may name images in them by path, since a payload sees
    /// nothing more of the node by such an image.
    #[must_use]
    pub fn with_bound_folders(self, folders: impl IntoIterator<Item = String>) -> Self {
        let whole = |folder: String| folder.strip_suffix('/').map_or_else(|| folder.clone(), str::to_owned);
        Self { shown: folders.into_iter().map(whole).collect(), ..self }
    }

    /// Adds the schemes that users may write before a name.
    #[must_use]
    pub fn with_schemes(self, schemes: Vec<ImageScheme>) -> Self {
        Self { schemes, ..self }
    }

    /// Returns the schemes that users may write before a name.
    pub(super) fn schemes(&self) -> &[ImageScheme] {
        &self.schemes
    }

    /// Returns the folders in which users may name images by path.
    pub(crate) fn bound_folders(&self) -> &[String] {
        &self.shown
    }

    /// Returns whether this path is in a folder that jobs see.
    pub(super) fn is_bound(&self, path: &str) -> bool {
        let inside = |folder: &String| path.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'));
        self.shown.iter().any(inside)
    }

    /// Returns the path for a complete name.
    pub(super) fn path_of(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }

    /// Replaces the prefix of a reference by the table. Returns the reference itself if no prefix matches. A target is
    /// not replaced again.
    pub(super) fn substitute(&self, reference: &str) -> Image {
        let full = full_name(reference);
        let found = self.prefixes.iter().find_map(|entry| Some((&entry.target, full.strip_prefix(&entry.prefix)?)));
        match found {
            None => Image::Registry(reference.to_owned()),
            Some((ImageTarget::Registry(registry), rest)) => Image::Registry(format!("{registry}/{rest}")),
            Some((ImageTarget::Folder(folder), rest)) => {
                let tag = if rest.contains([':', '@']) { "" } else { ":latest" };
                Image::Folder(format!("{folder}/{rest}{tag}"))
            }
        }
    }
}

impl FromStr for ImagePrefix {
    type Err = ImagePrefixError;

    fn from_str(text: &str) -> Result<Self, ImagePrefixError> {
        let (prefix, target) = text.split_once('=').ok_or(ImagePrefixError::NoPair)?;
        let (prefix, target) = (prefix.trim(), target.trim());
        let whole = |text: &str| text.strip_suffix('/').unwrap_or(text).to_owned();
        // A text is a valid prefix if a name can follow it.
        let begins_name = |text: &str| !text.is_empty() && image::is_reference(&format!("{text}/x"));
        let beginning = whole(prefix);
        if !begins_name(&beginning) {
            return Err(ImagePrefixError::Prefix(prefix.to_owned()));
        }
        let place = whole(target);
        let target = if target.starts_with('/') {
            if !image::is_path(&place) {
                return Err(ImagePrefixError::Folder(target.to_owned()));
            }
            ImageTarget::Folder(place)
        } else {
            if !begins_name(&place) || domain_of(&format!("{place}/x")).is_none() {
                return Err(ImagePrefixError::Registry(target.to_owned()));
            }
            ImageTarget::Registry(place)
        };
        Ok(Self { prefix: full_name(&format!("{beginning}/")), target })
    }
}

/// Returns a reference with its registry: `python` is `docker.io/library/python`. Names of registries are
/// case-insensitive.
pub(super) fn full_name(reference: &str) -> String {
    match domain_of(reference) {
        Some(domain) => domain.to_ascii_lowercase() + &reference[domain.len()..],
        None if reference.contains('/') => format!("{DOCKER}{reference}"),
        None => format!("{DOCKER}{LIBRARY}{reference}"),
    }
}

/// Returns the registry in a reference, if it has one.
fn domain_of(reference: &str) -> Option<&str> {
    reference.split_once('/').map(|(first, _)| first).filter(|first| image::looks_like_domain(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(prefixes: &[&str]) -> ImageMap {
        let names =
            [("centos".to_owned(), "/images/c".to_owned()), ("docker.io/a/b:1".to_owned(), "/b.sif".to_owned())];
        ImageMap::with(names, prefixes.iter().map(|text| text.parse().unwrap())).unwrap()
    }

    #[test]
    fn longest_prefix_of_whole_components_wins() {
        let map = map(&[
            "docker.io/=mirror.example.org/proxy/",
            "registry.cern.ch=/cvmfs/unpacked.cern.ch/registry.cern.ch",
            "registry.cern.ch/private/=registry.cern.ch/private",
            "team/=/images/team/",
            "docker.io/library/r-base/=/never/",
        ]);
        let resolve = |name: &str| Image::resolve(name, &map).unwrap().argument();
        for (name, means) in [
            ("centos", "/images/c"),
            ("a/b:1", "docker://mirror.example.org/proxy/a/b:1"),
            ("docker.io/a/b:1", "/b.sif"),
            ("docker://docker.io/a/b:1", "/b.sif"),
            ("docker.io/a/b:2", "docker://mirror.example.org/proxy/a/b:2"),
            ("python:3.12", "docker://mirror.example.org/proxy/library/python:3.12"),
            ("docker://r-base", "docker://mirror.example.org/proxy/library/r-base"),
            ("team/x:1", "/images/team/x:1"),
            ("docker.io/team/x", "/images/team/x:latest"),
            ("teams/x", "docker://mirror.example.org/proxy/teams/x"),
            ("registry.cern.ch/a/b", "/cvmfs/unpacked.cern.ch/registry.cern.ch/a/b:latest"),
            ("Registry.CERN.ch/a/b:V2", "/cvmfs/unpacked.cern.ch/registry.cern.ch/a/b:V2"),
            ("registry.cern.ch/private/b", "docker://registry.cern.ch/private/b"),
            ("registry.cern.ch.example.org/a", "docker://registry.cern.ch.example.org/a"),
            ("registry.cern.ch:5000/a", "docker://registry.cern.ch:5000/a"),
        ] {
            assert_eq!(resolve(name), means, "{name}");
        }
        let digest = format!("registry.cern.ch/a@sha256:{}", "0".repeat(64));
        assert_eq!(resolve(&digest), format!("/cvmfs/unpacked.cern.ch/{digest}"));
    }

    #[test]
    fn invalid_entry_is_refused_with_a_remedy() {
        for (entry, words) in [
            ("registry.cern.ch", "write PREFIX=TARGET"),
            ("=/images", "\"\" is not a valid prefix"),
            ("/=/images", "\"/\" is not a valid prefix"),
            ("docker://a.b/=/images", "without a scheme"),
            ("a.b/C/=/images", "is not a valid prefix"),
            ("a.b/c:1=/images", "is not a valid prefix"),
            ("a.b//=/images", "is not a valid prefix"),
            ("a.b/=", "neither a folder nor a registry"),
            ("a.b/=proxy/", "neither a folder nor a registry"),
            ("a.b/=https://c.d/", "without a scheme"),
            ("a.b/=c.d//", "neither a folder nor a registry"),
            ("a.b/=/", "is not a valid folder for images"),
            ("a.b/=/images/../x", "is not a valid folder for images"),
            ("a.b/=/my images", "is not a valid folder for images"),
        ] {
            let error = entry.parse::<ImagePrefix>().unwrap_err().to_string();
            assert!(error.contains(words), "{entry}: {error}");
        }
        let twice = ["team=/a", "docker.io/team/=/b"].map(|text| text.parse().unwrap());
        assert_eq!(ImageMap::with([], twice), Err(ImagePrefixError::Twice("docker.io/team/".to_owned())));
    }
}
