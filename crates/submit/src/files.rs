//! `spec.files`: the files that a job brings.

pub mod url;

use std::collections::{BTreeMap, BTreeSet};

use htc_api::{FileConfigMap, FileSource, FrozenFile, KeyRef, is_name};
use sha2::{Digest as _, Sha256};

use crate::job_token::hex;
use url::{FileUrl, UrlError, UrlScheme};

/// Maximum number of entries of `spec.files`.
const MOST_SOURCES: usize = 64;
/// Maximum number of files of one HTCJob. Each key of a whole ConfigMap is a file.
pub const MOST_FILES: usize = 64;
/// Maximum bytes of all files of one HTCJob together.
pub const MOST_BYTES: usize = 1 << 20;
/// Permissions of a file without `mode`.
const DEFAULT_MODE: u32 = 0o644;
/// Permissions of a file from a Secret without `mode`.
const SECRET_MODE: u32 = 0o400;
/// Names in the job's working directory that are not the user's.
const RESERVED: [&str; 7] =
    ["script.sh", "out", "err", ".job.ad", ".machine.ad", "htc_output.tar", "htc_output.omitted"];

/// Where the content of a file comes from that the operator reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Key of a ConfigMap; without a key, each key is a file in the folder of this path.
    ConfigMap {
        /// Name of the ConfigMap.
        name: String,
        /// Key of the ConfigMap; none for all keys.
        key: Option<String>,
    },
    /// Text in the spec.
    Inline(String),
}

/// The entries of `spec.files`, which were validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Those that the operator reads once and keeps.
    pub kept: Vec<File>,
    /// Those that each job fetches itself.
    pub fetched: Vec<FetchedFile>,
    /// Those from Secrets.
    pub secret: Vec<SecretFile>,
}

/// File from a Secret. Each job gets it from the operator, which keeps no copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    /// Path below the working directory.
    pub path: String,
    /// Unix permissions.
    pub mode: u32,
    /// Where the content comes from.
    pub key: KeyRef,
}

/// File that each job fetches from a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedFile {
    /// Path below the working directory.
    pub path: String,
    /// Unix permissions.
    pub mode: u32,
    /// Where the content comes from.
    pub url: FileUrl,
    /// SHA-256 of the content in hexadecimal digits; none if any content is right.
    pub sha256: Option<String>,
}

/// File that the operator reads once and keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path below the working directory.
    pub path: String,
    /// Unix permissions.
    pub mode: u32,
    /// Where the content comes from.
    pub source: Source,
}

/// Reason why `spec.files` cannot be used. The message follows `spec.files: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesError {
    /// Too many entries.
    #[error("there are {0} entries: write at most {MOST_SOURCES}, or pack the files into an archive")]
    TooManySources(usize),
    /// A path that leads out of the working directory, or has a character with a meaning for tools.
    #[error(
        "{0:?} is not a path below the job's working directory: write one such as conf/cuts.yaml, without .., line feeds and the characters \\ * ? [ ]"
    )]
    Path(String),
    /// A path that has another meaning in the working directory.
    #[error(
        "{0:?} cannot be the name of a file: the operator or HTCondor has a file of that name in the working directory"
    )]
    Reserved(String),
    /// Two files with one path, or a file that another needs as a folder.
    #[error("{0:?} is there twice, or is the folder of another file: choose other paths")]
    Twice(String),
    /// An entry without exactly one source.
    #[error("{0:?} needs one source: write one of configMap, inline, url and secret")]
    Source(String),
    /// A URL that jobs may not fetch.
    #[error("{path:?}: {problem}")]
    Url {
        /// Path of the file.
        path: String,
        /// What is wrong, and what to write instead.
        problem: UrlError,
    },
    /// A checksum that is none, or of a file without a URL.
    #[error("the sha256 of {0:?} must have 64 digits from 0 to 9 and a to f, and is for files with a url only")]
    Sha256(String),
    /// Neither the name of a ConfigMap nor one of its keys.
    #[error("{0:?} is not the name of a ConfigMap, or its key cannot be one")]
    ConfigMap(String),
    /// Neither the name of a Secret nor one of its keys.
    #[error("{0:?} is not the name of a Secret, or its key cannot be one")]
    Secret(String),
    /// Permissions that the operator does not set.
    #[error("the mode of {0:?} is {1:o}: write one from 0400 to 0777")]
    Mode(String, i32),
    /// More files than the operator keeps.
    #[error("there are {0} files: at most {MOST_FILES} are possible; pack them into an archive")]
    TooManyFiles(usize),
    /// More bytes than the operator keeps.
    #[error(
        "they have {0} bytes together: at most {MOST_BYTES} are possible; put large files where the nodes can read them (/cvmfs, a web server) and fetch them in the script"
    )]
    TooLarge(usize),
}

/// Parses `spec.files`. URLs may have the `schemes`, which the site allows.
///
/// # Errors
/// An entry is invalid, or two of them collide.
pub fn parse(entries: &[FileSource], schemes: &[UrlScheme]) -> Result<Files, FilesError> {
    if entries.len() > MOST_SOURCES {
        return Err(FilesError::TooManySources(entries.len()));
    }
    let mut files = Files::default();
    for entry in entries {
        files.add(entry, schemes)?;
    }
    check_paths(entries.iter().map(|entry| entry.path.as_str()))?;
    Ok(files)
}

impl Files {
    /// Checks that URLs have placeholders only for what the jobs have.
    ///
    /// # Errors
    /// A URL has the item of jobs without items.
    pub fn check_items(&self, has_items: bool) -> Result<(), FilesError> {
        match self.fetched.iter().find(|file| file.url.has_item()) {
            Some(file) if !has_items => Err(FilesError::Url { path: file.path.clone(), problem: UrlError::NoItems }),
            Some(_) | None => Ok(()),
        }
    }

    fn add(&mut self, entry: &FileSource, schemes: &[UrlScheme]) -> Result<(), FilesError> {
        let FileSource { path, config_map, inline, url, secret, sha256, mode } = entry;
        check_path(path)?;
        let mode = match mode {
            None if secret.is_some() => SECRET_MODE,
            None => DEFAULT_MODE,
            Some(mode) => u32::try_from(*mode)
                .ok()
                .filter(|mode| (0o400..=0o777).contains(mode))
                .ok_or_else(|| FilesError::Mode(path.clone(), *mode))?,
        };
        if sha256.as_ref().is_some_and(|sum| url.is_none() || !is_sha256(sum)) {
            return Err(FilesError::Sha256(path.clone()));
        }
        let path = path.clone();
        match (config_map, inline, url, secret) {
            (Some(FileConfigMap { name, key }), None, None, None) => {
                if !is_name(name) || key.as_ref().is_some_and(|key| !is_key(key)) {
                    return Err(FilesError::ConfigMap(name.clone()));
                }
                let source = Source::ConfigMap { name: name.clone(), key: key.clone() };
                self.kept.push(File { path, mode, source });
            }
            (None, Some(text), None, None) => self.kept.push(File { path, mode, source: Source::Inline(text.clone()) }),
            (None, None, Some(url), None) => {
                let wrong = |problem| FilesError::Url { path: path.clone(), problem };
                let url = FileUrl::parse(url, schemes).map_err(wrong)?;
                if url.is_unprotected() && sha256.is_none() {
                    return Err(wrong(UrlError::Unprotected));
                }
                self.fetched.push(FetchedFile { path, mode, url, sha256: sha256.clone() });
            }
            (None, None, None, Some(key)) if is_name(&key.name) && is_key(&key.key) => {
                self.secret.push(SecretFile { path, mode, key: key.clone() });
            }
            (None, None, None, Some(key)) => return Err(FilesError::Secret(key.name.clone())),
            (_, _, _, _) => return Err(FilesError::Source(path)),
        }
        Ok(())
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a text can be the key of a ConfigMap or a Secret.
pub(crate) fn is_key(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && !matches!(text, "." | "..")
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

fn check_path(path: &str) -> Result<(), FilesError> {
    let part_fits = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255 && part.trim() == part;
    let fits = path.len() <= 512
        && path.split('/').all(part_fits)
        && !path.starts_with('-')
        && !path.chars().any(|c| c.is_control() || r"\*?[]".contains(c));
    if !fits {
        return Err(FilesError::Path(path.to_owned()));
    }
    let first = path.split('/').next().unwrap_or(path);
    if RESERVED.contains(&first) || first.starts_with("_condor") {
        return Err(FilesError::Reserved(path.to_owned()));
    }
    Ok(())
}

/// Checks that no path is there twice, and that none is the folder of another.
fn check_paths<'a>(paths: impl Iterator<Item = &'a str>) -> Result<(), FilesError> {
    let mut all = BTreeSet::new();
    for path in paths {
        if !all.insert(path) {
            return Err(FilesError::Twice(path.to_owned()));
        }
    }
    let folders = all.iter().flat_map(|path| path.match_indices('/').map(|(end, _)| &path[..end]));
    match folders.into_iter().find(|folder| all.contains(folder)) {
        Some(folder) => Err(FilesError::Twice(folder.to_owned())),
        None => Ok(()),
    }
}

/// Returns the files with their content. `config_maps`: keys and contents of each ConfigMap that is named.
///
/// # Errors
/// The first item says which key of which ConfigMap is missing; or there are too many files, or they are too large.
pub fn freeze(
    files: &[File],
    config_maps: &BTreeMap<String, BTreeMap<String, Vec<u8>>>,
) -> Result<Vec<FrozenFile>, FreezeError> {
    let mut frozen = Vec::new();
    let sizes = files.iter().flat_map(|file| match &file.source {
        Source::Inline(text) => vec![text.len()],
        Source::ConfigMap { name, key } => {
            let keys = config_maps.get(name).into_iter().flatten();
            keys.filter(|(other, _)| key.as_ref().is_none_or(|key| key == *other)).map(|(_, text)| text.len()).collect()
        }
    });
    // Before anything is copied.
    let (count, bytes) = sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size));
    if count > MOST_FILES {
        return Err(FilesError::TooManyFiles(count).into());
    }
    if bytes > MOST_BYTES {
        return Err(FilesError::TooLarge(bytes).into());
    }
    for File { path, mode, source } in files {
        let mut add = |path: String, content: Vec<u8>| {
            frozen.push(FrozenFile { path, mode: *mode, sha256: sha256(&content), content });
        };
        match source {
            Source::Inline(text) => add(path.clone(), text.clone().into_bytes()),
            Source::ConfigMap { name, key } => {
                let missing = |key: &str| FreezeError::NoKey { name: name.clone(), key: key.to_owned() };
                let keys = config_maps.get(name).ok_or_else(|| missing(key.as_deref().unwrap_or("*")))?;
                match key {
                    Some(key) => add(path.clone(), keys.get(key).ok_or_else(|| missing(key))?.clone()),
                    None if keys.is_empty() => return Err(FreezeError::Empty(name.clone())),
                    None => keys.iter().for_each(|(key, content)| add(format!("{path}/{key}"), content.clone())),
                }
            }
        }
    }
    frozen.iter().try_for_each(|file| check_path(&file.path))?;
    check_paths(frozen.iter().map(|file| file.path.as_str()))?;
    Ok(frozen)
}

/// Returns keys and contents of the ConfigMaps that the frozen files of the same entries came from.
#[must_use]
pub fn config_maps(files: &[File], frozen: &[FrozenFile]) -> BTreeMap<String, BTreeMap<String, Vec<u8>>> {
    let mut config_maps: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for File { path, source, mode: _ } in files {
        let Source::ConfigMap { name, key } = source else { continue };
        let keys = config_maps.entry(name.clone()).or_default();
        for file in frozen {
            let found = match key {
                Some(key) => (file.path == *path).then_some(key.as_str()),
                None => file.path.strip_prefix(path).and_then(|rest| rest.strip_prefix('/')),
            };
            keys.extend(found.map(|key| (key.to_owned(), file.content.clone())));
        }
    }
    config_maps
}

/// Reason why the files of an HTCJob cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreezeError {
    /// The ConfigMap does not have the key.
    #[error("the ConfigMap {name} has no key {key:?}: add it, or correct spec.files")]
    NoKey {
        /// Name of the ConfigMap.
        name: String,
        /// The missing key.
        key: String,
    },
    /// A ConfigMap whose keys are all to be files has none.
    #[error("the ConfigMap {0} has no keys: add some, or take it out of spec.files")]
    Empty(String),
    /// The files collide or are too large.
    #[error("spec.files: {0}")]
    Files(#[from] FilesError),
}

/// Returns the SHA-256 of the content, in hexadecimal digits.
fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

/// Packs the files into a tar archive. Equal files give equal bytes.
///
/// # Errors
/// A path does not fit into an archive.
pub fn archive(files: &[FrozenFile]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.content.len() as u64);
        header.set_mode(file.mode);
        header.set_mtime(0);
        archive.append_data(&mut header, &file.path, file.content.as_slice())?;
    }
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(files: &[FileSource]) -> Result<Vec<File>, FilesError> {
        super::parse(files, &[UrlScheme::Https]).map(|files| files.kept)
    }

    fn inline(path: &str) -> FileSource {
        FileSource { path: path.to_owned(), inline: Some("x".to_owned()), ..FileSource::default() }
    }

    fn map(path: &str, name: &str, key: Option<&str>) -> FileSource {
        let config_map = FileConfigMap { name: name.to_owned(), key: key.map(str::to_owned) };
        FileSource { path: path.to_owned(), config_map: Some(config_map), ..FileSource::default() }
    }

    #[test]
    fn paths_stay_below_the_working_directory() {
        for path in ["a", "conf/cuts.yaml", "a b/c", "données.csv", ".netrc", "x..y"] {
            assert!(parse(&[inline(path)]).is_ok(), "{path:?}");
        }
        for path in
            ["", "/a", "a/", "../a", "a/../b", "a//b", "./a", "a/.", "a\nb", "a*", "a?", "[a", "a\\b", " a", "-rf"]
        {
            assert_eq!(parse(&[inline(path)]), Err(FilesError::Path(path.to_owned())), "{path:?}");
        }
        for path in ["script.sh", "out", "err/x", "_condor_stdout", ".job.ad", "htc_output.tar"] {
            assert_eq!(parse(&[inline(path)]), Err(FilesError::Reserved(path.to_owned())), "{path:?}");
        }
    }

    #[test]
    fn paths_do_not_collide() {
        let twice = |paths: &[&str]| parse(&paths.iter().map(|path| inline(path)).collect::<Vec<_>>()).is_err();
        assert!(
            !twice(&["a/b", "a/c", "ab"]) && twice(&["a", "a"]) && twice(&["a", "a/b"]) && twice(&["x/y/z", "x/y"])
        );
    }

    #[test]
    fn each_file_has_one_source_and_a_mode_that_its_owner_can_read() {
        assert_eq!(parse(&[FileSource { inline: None, ..inline("a") }]), Err(FilesError::Source("a".to_owned())));
        let both = FileSource { inline: Some(String::new()), ..map("a", "m", None) };
        assert_eq!(parse(&[both]), Err(FilesError::Source("a".to_owned())));
        let mode = |mode| parse(&[FileSource { mode: Some(mode), ..inline("a") }]).map(|files| files[0].mode);
        assert_eq!((mode(0o755), mode(0o400)), (Ok(0o755), Ok(0o400)));
        assert_eq!((mode(0o200).is_err(), mode(0o4755).is_err(), mode(-1).is_err()), (true, true, true));
        assert_eq!(parse(&[map("a", "M", None)]), Err(FilesError::ConfigMap("M".to_owned())));
        assert_eq!(parse(&[map("a", "m", Some(".."))]), Err(FilesError::ConfigMap("m".to_owned())));
    }

    #[test]
    fn fetched_files_have_a_url_and_perhaps_a_checksum() {
        let file = |url: &str, sha256: Option<String>| FileSource {
            path: "a".to_owned(),
            url: Some(url.to_owned()),
            sha256,
            ..FileSource::default()
        };
        let schemes = &[UrlScheme::Https, UrlScheme::Http];
        let parse = |file: FileSource| super::parse(&[file], schemes).map(|files| files.fetched);
        let sum = "0f".repeat(32);
        assert_eq!(parse(file("https://h/a", Some(sum.clone()))).unwrap()[0].sha256.as_deref(), Some(sum.as_str()));
        assert_eq!(parse(file("https://h/a", None)).unwrap()[0].mode, DEFAULT_MODE);
        assert!(parse(file("http://h/a", Some(sum.clone()))).is_ok());
        let problem = |problem| Err(FilesError::Url { path: "a".to_owned(), problem });
        assert_eq!(parse(file("http://h/a", None)), problem(UrlError::Unprotected));
        assert_eq!(parse(file("https://u:p@h/a", None)), problem(UrlError::Credentials));
        for wrong in ["", "0", &sum.to_uppercase(), &sum.replace('f', "g")] {
            let refused = parse(file("https://h/a", Some(wrong.to_owned())));
            assert_eq!(refused, Err(FilesError::Sha256("a".to_owned())), "{wrong:?}");
        }
        assert_eq!(parse(FileSource { sha256: Some(sum), ..inline("a") }), Err(FilesError::Sha256("a".to_owned())));
        let both = FileSource { inline: Some(String::new()), ..file("https://h/a", None) };
        assert_eq!(parse(both), Err(FilesError::Source("a".to_owned())));
        let of_items = super::parse(&[file("https://h/${item}", None)], schemes).unwrap();
        assert!(of_items.check_items(true).is_ok());
        assert_eq!(of_items.check_items(false), problem(UrlError::NoItems).map(|_: Vec<FetchedFile>| ()));
    }

    #[test]
    fn content_comes_from_keys_of_config_maps() {
        let files = parse(&[map("one", "m", Some("k")), map("all", "m", None), inline("text")]).unwrap();
        let keys = BTreeMap::from([("k".to_owned(), vec![0, 255]), ("l".to_owned(), vec![1])]);
        let frozen = freeze(&files, &BTreeMap::from([("m".to_owned(), keys)])).unwrap();
        let paths: Vec<&str> = frozen.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["one", "all/k", "all/l", "text"]);
        assert_eq!(frozen[0].content, [0, 255]);
        assert_eq!(frozen[3].sha256, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
        let empty =
            freeze(&parse(&[map("all", "m", None)]).unwrap(), &BTreeMap::from([("m".to_owned(), BTreeMap::new())]));
        assert_eq!(empty, Err(FreezeError::Empty("m".to_owned())));
        let missing = freeze(&files, &BTreeMap::new()).unwrap_err();
        assert_eq!(missing.to_string(), "the ConfigMap m has no key \"k\": add it, or correct spec.files");
    }

    #[test]
    fn frozen_files_give_back_their_config_maps() {
        let files = parse(&[map("one", "m", Some("k")), map("all", "n", None), inline("text")]).unwrap();
        let keys = |keys: &[(&str, u8)]| keys.iter().map(|(key, byte)| ((*key).to_owned(), vec![*byte])).collect();
        let maps = BTreeMap::from([("m".to_owned(), keys(&[("k", 1)])), ("n".to_owned(), keys(&[("k", 2), ("l", 3)]))]);
        let frozen = freeze(&files, &maps).unwrap();
        assert_eq!(config_maps(&files, &frozen), maps);
        let others = parse(&[map("other", "m", Some("k"))]).unwrap();
        assert!(freeze(&others, &config_maps(&others, &frozen)).is_err());
    }

    #[test]
    fn total_size_is_limited() {
        let file = FileSource { inline: Some("x".repeat(MOST_BYTES / 64)), ..inline("a") };
        let sources: Vec<FileSource> =
            (0..64).map(|number| FileSource { path: format!("f{number}"), ..file.clone() }).collect();
        assert!(freeze(&parse(&sources).unwrap(), &BTreeMap::new()).is_ok());
        let keys = (0..65).map(|number| (format!("k{number}"), Vec::new())).collect();
        let files = parse(&[map("all", "m", None)]).unwrap();
        let many = freeze(&files, &BTreeMap::from([("m".to_owned(), keys)]));
        assert_eq!(many, Err(FreezeError::Files(FilesError::TooManyFiles(65))));
        let keys = BTreeMap::from([("k".to_owned(), vec![0; MOST_BYTES + 1])]);
        let large = freeze(&files, &BTreeMap::from([("m".to_owned(), keys)]));
        assert_eq!(large, Err(FreezeError::Files(FilesError::TooLarge(MOST_BYTES + 1))));
    }

    #[test]
    fn archive_has_contents_and_modes() {
        let file = |path: &str, mode| FrozenFile {
            path: path.to_owned(),
            mode,
            sha256: String::new(),
            content: path.as_bytes().to_vec(),
        };
        let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
        let files = [file("bin/run", 0o755), file(&long, 0o600)];
        let packed = archive(&files).unwrap();
        assert_eq!(packed, archive(&files).unwrap());
        let mut unpacked = tar::Archive::new(packed.as_slice());
        let entries: Vec<(String, u32)> = unpacked
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap())
            })
            .collect();
        assert_eq!(entries, [("bin/run".to_owned(), 0o755), (long, 0o600)]);
    }
}
