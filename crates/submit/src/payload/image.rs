//! `spec.script.image`: a name in a registry, or a path that every node has.

use super::ImageMap;
use super::image_map::full_name;

/// Maximum length of the text in bytes.
const MAX_BYTES: usize = 512;

/// Source of a container's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// An absolute path on the node from the site's settings: an unpacked image, or a file in Apptainer's format.
    Folder(String),
    /// A path from the user, in a folder that is bound into the container anyway. The node checks whether links lead
    /// out of that folder.
    UsersFolder(String),
    /// A reference as docker writes it, without a scheme: `[registry/]name[:tag][@digest]`.
    Registry(String),
    /// A file in Apptainer's format that Apptainer downloads, with its scheme.
    Remote(String),
}

/// Scheme of an image besides `docker`, if the site allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum ImageScheme {
    /// `oras://registry/name[:tag][@digest]`: a file in Apptainer's format in a registry.
    Oras,
    /// `https://host/path/name.sif`: such a file on a web server.
    Https,
}

impl ImageScheme {
    /// Returns whether the rest of the text names an image. A URL has no credentials, and no query, where they may be too.
    fn fits(self, rest: &str) -> bool {
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        match self {
            Self::Oras => looks_like_domain(host) && is_reference(rest),
            Self::Https => {
                is_domain(host) && is_path(&format!("/{path}")) && !path.contains(['@', ':', '=']) && is_file_name(path)
            }
        }
    }
}

/// Reason why an image is refused, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum ImageError {
    /// The text is empty.
    #[error("the image is empty; write a name such as `python:3.12` or the path of an unpacked image")]
    Empty,
    /// The text is too long.
    #[error("the image is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// `library://`, `http://` …, or a scheme that the site does not allow.
    #[error(
        "the image has a scheme other than `docker://`{allowed}; write a name such as `registry.example.org/team/image:tag`, without a scheme"
    )]
    Scheme {
        /// Other schemes that the site allows, each with a comma before it.
        allowed: String,
    },
    /// A URL of an allowed scheme that names no image.
    #[error(
        "{0:?} is not the address of an image; write `oras://registry.example.org/team/image:tag`, or `https://host/path/image.sif` without a user, a password and a query"
    )]
    Remote(String),
    /// A path with characters or parts that are not allowed.
    #[error(
        "the image's path {0:?} is not allowed; write an absolute path of letters, digits and `-._/:@+=`, without `.` and `..`"
    )]
    Path(String),
    /// A path that would let the payload see more of the node than it sees anyway. `/proc/self/root`, for example, is
    /// all of it.
    #[error(
        "the image's path {path:?} is not allowed: it must be in a folder that jobs see, {folders}; move the image there, or ask the operator's administrator to give it a name"
    )]
    Outside {
        path: String,
        /// Folders where images may be.
        folders: String,
    },
    /// A file in Apptainer's format without its folder.
    #[error(
        "{0:?} looks like a file: write its absolute path, such as `/eos/project/images/{0}`, where every node sees it"
    )]
    RelativeFile(String),
    /// Neither a path nor a registry reference.
    #[error(
        "{0:?} is not a valid image name; write `[registry/]name[:tag]` in lower case, for example `gitlab-registry.cern.ch/team/image:1.0`, or an absolute path"
    )]
    Reference(String),
}

/// Removes the scheme `docker://`, with which an image's name may be written.
#[must_use]
pub fn without_scheme(text: &str) -> &str {
    text.strip_prefix("docker://").unwrap_or(text)
}

impl Image {
    /// Resolves a user's text: a complete name of the site's, an absolute path, a name with a prefix of the site's, or
    /// else a name in a registry.
    ///
    /// # Errors
    /// The text is neither a name of the site's, nor an absolute path, nor a reference to a registry.
    pub fn resolve(text: &str, map: &ImageMap) -> Result<Self, ImageError> {
        if text.len() > MAX_BYTES {
            return Err(ImageError::TooLong);
        }
        if text.is_empty() {
            return Err(ImageError::Empty);
        }
        let name = without_scheme(text);
        match map.path_of(text).or_else(|| map.path_of(name)) {
            Some(path) => Self::of_the_site(path),
            None if text.starts_with('/') => Self::of_a_user(text, map),
            None if name.contains("://") => Self::of_scheme(name, map),
            None if is_file_name(text) => Err(ImageError::RelativeFile(text.to_owned())),
            None if is_reference(name) => Ok(map.substitute(name)),
            None => Err(ImageError::Reference(text.to_owned())),
        }
    }

    /// Returns Apptainer's argument for the image.
    #[must_use]
    pub fn argument(&self) -> String {
        match self {
            Self::Folder(path) | Self::UsersFolder(path) => path.clone(),
            Self::Registry(reference) => format!("docker://{reference}"),
            Self::Remote(url) => url.clone(),
        }
    }

    /// Returns where a registry keeps what the tag now means; `None` for an image with a digest, and for other images.
    #[must_use]
    pub fn manifest(&self) -> Option<Manifest> {
        let Self::Registry(reference) = self else { return None };
        Manifest::of(&full_name(reference))
    }

    /// Returns registry and repository of an image that is pulled from a registry, without its tag or digest.
    #[must_use]
    pub fn repository(&self) -> Option<String> {
        let full = match self {
            Self::Registry(reference) => full_name(reference),
            Self::Remote(url) => url.strip_prefix("oras://")?.to_owned(),
            Self::Folder(_) | Self::UsersFolder(_) => return None,
        };
        let named = full.split_once('@').map_or(full.as_str(), |(named, _)| named);
        let tag = named.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
        Some(tag.map_or(named, |(named, _)| named).to_owned())
    }

    /// Returns the image with a digest in the place of its tag. Other images stay as they are.
    #[must_use]
    pub fn with_digest(self, digest: &str) -> Self {
        match self.manifest() {
            Some(Manifest { registry, repository, tag: _ }) => {
                Self::Registry(format!("{registry}/{repository}@{digest}"))
            }
            None => self,
        }
    }

    /// Returns the digest in a reference, as in `sha256:0123…`.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        match self {
            Self::Registry(reference) | Self::Remote(reference) => reference.split_once('@').map(|(_, digest)| digest),
            Self::Folder(_) | Self::UsersFolder(_) => None,
        }
    }

    /// Returns the image for an absolute path from the site's settings.
    ///
    /// # Errors
    /// The path is not absolute, or has characters that paths of images must not have.
    pub fn of_the_site(path: &str) -> Result<Self, ImageError> {
        if is_path(path.strip_suffix('/').unwrap_or(path)) {
            Ok(Self::Folder(path.to_owned()))
        } else {
            Err(ImageError::Path(path.to_owned()))
        }
    }

    fn of_scheme(text: &str, map: &ImageMap) -> Result<Self, ImageError> {
        let (scheme, rest) = text.split_once("://").unwrap_or((text, ""));
        let allowed = map.schemes();
        match allowed.iter().find(|allowed| allowed.to_string() == scheme) {
            Some(allowed) if allowed.fits(rest) => Ok(Self::Remote(text.to_owned())),
            Some(_) => Err(ImageError::Remote(text.to_owned())),
            None => Err(ImageError::Scheme {
                allowed: allowed.iter().fold(String::new(), |text, scheme| text + ", `" + &scheme.to_string() + "://`"),
            }),
        }
    }

    fn of_a_user(path: &str, map: &ImageMap) -> Result<Self, ImageError> {
        if !is_path(path.strip_suffix('/').unwrap_or(path)) {
            return Err(ImageError::Path(path.to_owned()));
        }
        if !map.is_bound(path) {
            let folders = match map.bound_folders().join(", ") {
                none if none.is_empty() => "of which there is none here".to_owned(),
                folders => folders,
            };
            return Err(ImageError::Outside { path: path.to_owned(), folders });
        }
        Ok(Self::UsersFolder(path.to_owned()))
    }
}

/// A tag in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Manifest {
    /// Host, in lower case, and port, as in `docker.io`.
    pub registry: String,
    /// Path in the registry, as in `library/python`.
    pub repository: String,
    pub tag: String,
}

impl Manifest {
    /// Parses a reference that begins with a registry.
    fn of(full: &str) -> Option<Self> {
        let (registry, rest) = full.split_once('/').filter(|_| !full.contains('@'))?;
        let (repository, tag) = rest.split_once(':').unwrap_or((rest, "latest"));
        let [registry, repository, tag] = [registry, repository, tag].map(str::to_owned);
        Some(Self { registry, repository, tag })
    }
}

/// Returns whether this is an absolute path without a trailing slash and without characters that have a meaning for
/// Apptainer or a shell.
pub(super) fn is_path(path: &str) -> bool {
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "-._/:@+=".contains(c));
    let whole = path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")));
    plain && whole
}

fn is_file_name(text: &str) -> bool {
    std::path::Path::new(text).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("sif"))
}

/// Returns whether the text follows the grammar of `distribution/reference`, which docker and Apptainer share.
pub(super) fn is_reference(text: &str) -> bool {
    let (text, digest) = text.split_once('@').map_or((text, None), |(text, digest)| (text, Some(digest)));
    let (path, last) = text.rsplit_once('/').map_or((None, text), |(path, last)| (Some(path), last));
    let (last, tag) = last.split_once(':').map_or((last, None), |(last, tag)| (last, Some(tag)));
    let mut parts = path.into_iter().flat_map(|path| path.split('/')).peekable();
    if parts.peek().is_some_and(|first| looks_like_domain(first)) && !parts.next().is_some_and(is_domain) {
        return false;
    }
    parts.all(is_component) && is_component(last) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest)
}

/// Returns whether docker takes the first part of a name for a registry.
pub(super) fn looks_like_domain(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.contains(char::is_uppercase)
}

fn is_domain(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label = |label: &str| {
        label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && label.starts_with(|c: char| c.is_ascii_alphanumeric())
            && label.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    host.split('.').all(label) && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Returns whether the text is lower-case letters and digits, joined by one dot, one or two underscores, or any number
/// of hyphens.
fn is_component(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let joins = || text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).filter(|join| !join.is_empty());
    text.bytes().next().is_some_and(word)
        && text.bytes().next_back().is_some_and(word)
        && joins().all(|join| matches!(join, "." | "_" | "__") || join.bytes().all(|b| b == b'-'))
}

fn is_tag(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Returns whether the text is the digest of an image.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_image_file_needs_a_scheme_of_the_site() {
        let map = ImageMap::new().with_schemes(vec![ImageScheme::Oras, ImageScheme::Https]);
        let digest = format!("oras://localhost:5000/a/b@sha256:{}", "0".repeat(64));
        for text in [
            "oras://r.example.org/team/fit:1",
            &digest,
            "https://www.example.org:8443/a/b_c/fit.sif",
            "https://h/x.SIF",
        ] {
            let resolve = |map| Image::resolve(text, map);
            match resolve(&map) {
                Ok(image @ Image::Remote(_)) => assert_eq!((image.argument().as_str(), image.manifest()), (text, None)),
                other => panic!("{text}: {other:?}"),
            }
            assert!(matches!(resolve(&ImageMap::new()), Err(ImageError::Scheme { .. })), "{text}");
        }
        for bad in [
            "oras://team/fit:1",
            "oras://r.example.org/Team",
            "oras://",
            "https://h/x",
            "https://h/.sif/",
            "https://alice:secret@h/x.sif",
            "https://h/x.sif?token=1",
            "https://h/../x.sif",
            "https://h//x.sif",
            "https://h/a b.sif",
            "https:///x.sif",
            "https://h/$x.sif",
            "https://h/x,y.sif",
        ] {
            assert_eq!(Image::resolve(bad, &map), Err(ImageError::Remote(bad.to_owned())));
        }
        let other = Image::resolve("http://h/x.sif", &map).unwrap_err().to_string();
        assert!(other.contains("other than `docker://`, `oras://`, `https://`;"), "{other}");
    }

    #[test]
    fn digest_takes_the_place_of_a_tag() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (name, registry, repository, tag) in [
            ("python", "docker.io", "library/python", "latest"),
            ("team/x:1", "docker.io", "team/x", "1"),
            ("Localhost:5000/a/b:V1", "localhost:5000", "a/b", "V1"),
        ] {
            let image = Image::Registry(name.to_owned());
            let [registry, repository, tag] = [registry, repository, tag].map(str::to_owned);
            assert_eq!(image.manifest(), Some(Manifest { registry, repository, tag }));
            let pinned = image.with_digest(&digest);
            assert_eq!(pinned.digest(), Some(digest.as_str()));
            assert!(Image::resolve(&pinned.argument(), &ImageMap::new()).is_ok());
            assert_eq!(pinned.clone().with_digest("sha256:1"), pinned);
        }
        let folder = Image::Folder("/x".to_owned());
        assert_eq!((folder.manifest(), folder.digest()), (None, None));
        assert_eq!(folder.clone().with_digest(&digest), folder);
    }

    #[test]
    fn image_is_a_registry_name_a_path_or_a_site_folder() {
        let map = [("centos", "/cvmfs/images/centos:7"), ("bad", "/a b"), ("r.sif", "/images/r.sif")];
        let map = ImageMap::with(map.map(|(name, path)| (name.to_owned(), path.to_owned())), []).unwrap();
        let map = map.with_bound_folders(["/cvmfs".to_owned(), "/eos/".to_owned()]);
        let folder = |path: &str| Ok(Image::Folder(path.to_owned()));
        let users = |path: &str| Ok(Image::UsersFolder(path.to_owned()));
        assert_eq!(Image::resolve("centos", &map), folder("/cvmfs/images/centos:7"));
        assert_eq!(Image::resolve("docker://centos", &map), folder("/cvmfs/images/centos:7"));
        assert_eq!(Image::resolve("/cvmfs/x/y:latest/", &map), users("/cvmfs/x/y:latest/"));
        assert_eq!(
            Image::resolve("/eos/project/images/root-6.32.sif", &map),
            users("/eos/project/images/root-6.32.sif")
        );
        assert_eq!(Image::resolve("r.sif", &map), folder("/images/r.sif"));
        for path in ["/proc/self/root", "/proc/1/root/usr", "/usr", "/images/c", "/cvmfsx/a", "/var/lib/condor/execute"]
        {
            assert!(matches!(Image::resolve(path, &map), Err(ImageError::Outside { .. })), "{path}");
        }
        let said = Image::resolve("/proc/self/root", &map).unwrap_err().to_string();
        assert!(said.contains("it must be in a folder that jobs see, /cvmfs, /eos; move the image there"), "{said}");
        assert!(Image::resolve("/cvmfs/x", &ImageMap::new()).is_err());
        for file in ["my.sif", "team/my.SIF", "./my.sif"] {
            assert_eq!(Image::resolve(file, &map), Err(ImageError::RelativeFile(file.to_owned())));
        }
        assert!(matches!(Image::resolve("bad", &map), Err(ImageError::Path(_))));
        for name in [
            "python",
            "python:3.12-slim",
            "gitlab-registry.cern.ch/clange/cc7-cms:latest",
            "r-base",
            "localhost:5000/a/b_c__d--e.f:V1",
            "Example.org/a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(Image::resolve(name, &map), Ok(Image::Registry(name.to_owned())));
            assert_eq!(Image::resolve(&format!("docker://{name}"), &map), Ok(Image::Registry(name.to_owned())));
        }
        for text in [
            "",
            " ",
            "a b",
            "Python",
            "a//b",
            "/a/../b",
            "//a",
            "/",
            "/a//b",
            "/a b",
            "/a$b",
            "/a,b",
            "a:",
            "a:b:c",
            "a@b",
            "a@sha256:12",
            "-a",
            "a-",
            ".a",
            "a..b",
            "a___b",
            "oras://a/b",
            "http://a/b",
            "docker://docker://a",
            "a.b:0/c",
            "a.b:99999/c",
            "-a.b/c",
            "a\n",
            "$(X)",
            "ä",
            "a;b",
        ] {
            assert!(Image::resolve(text, &map).is_err(), "{text:?}");
        }
    }
}
