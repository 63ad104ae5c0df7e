//! The output of one job as a tar archive. The same files give the same bytes, so that a client whose connection ends goes on from the
//! byte where it was: the API server cuts every answer after a minute.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use actix_web::HttpResponse;
use actix_web::http::header::ETAG;
use actix_web::web::Bytes;
use sha2::{Digest as _, Sha256};

use super::volume::Volume;
use super::{Found, Jobs};
use crate::procs::answer::Failure;
use crate::procs::list::parameters;

/// Bytes that are read at once.
const PART: usize = 256 * 1024;
/// Size of a block of an archive.
const BLOCK: u64 = 512;
/// What ends an archive.
const END: u64 = 2 * BLOCK;
/// Most files in one archive: more than output may have.
const MOST: usize = 1_000_000;

/// What is wanted of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FilesQuery {
    /// From this byte on.
    offset: u64,
    /// Of this archive, which was begun.
    tag: Option<String>,
}

impl FilesQuery {
    /// From a query.
    pub(super) fn parse(query: &str) -> Result<Self, Failure> {
        let mut wanted = Self::default();
        for (name, value) in parameters(query)? {
            match name.as_str() {
                "offset" => {
                    let wrong = || Failure::bad_request(format!("the parameter offset cannot be {value:?}"));
                    wanted.offset = value.parse().map_err(|_| wrong())?;
                }
                "etag" => wanted.tag = Some(value),
                "pretty" | "timeout" => {}
                _ => return Err(Failure::bad_request(format!("the parameter {name:?} is not known"))),
            }
        }
        Ok(wanted)
    }
}

/// One entry of an archive.
#[derive(Clone, Debug)]
struct Entry {
    /// Where it is; none for a folder.
    file: Option<PathBuf>,
    /// Its header, with that of a long name before it.
    header: Vec<u8>,
    size: u64,
}

impl Entry {
    /// All its bytes in the archive.
    const fn whole(&self) -> u64 {
        self.header.len() as u64 + self.size.div_ceil(BLOCK) * BLOCK
    }
}

/// Answers with an archive.
pub(super) async fn files(jobs: &Jobs, found: Found, wanted: FilesQuery) -> Result<HttpResponse, Failure> {
    if !found.proc.status.output_fetched {
        let name = found.proc.name.name();
        let state = found.proc.status.state;
        return Err(Failure::not_found(format!("{name} is {state}: its output is not stored (yet)")));
    }
    let folder = jobs.planner.job_output(&found.htcjob(), &found.parent.uid, found.index);
    let entries = jobs.volume.step(move || entries(&folder)).await?;
    let length = entries.iter().map(Entry::whole).sum::<u64>() + END;
    let tag = tag(&entries);
    if wanted.tag.as_ref().is_some_and(|begun| *begun != tag) {
        return Err(Failure::conflict("the files have changed since the archive was begun: begin again"));
    }
    if wanted.offset > length {
        return Err(Failure::bad_request(format!("the archive has {length} bytes")));
    }
    let archive = Archive { entries: entries.into(), at: wanted.offset, end: END };
    let begun = Some((archive, jobs.volume.clone()));
    let parts = futures::stream::unfold(begun, |archive| async {
        let (archive, volume) = archive?;
        match archive.next(&volume).await {
            Ok(Some((part, archive))) => Some((Ok(part), Some((archive, volume)))),
            Ok(None) => None,
            Err(failure) => {
                tracing::warn!(why = failure.message, "an archive ends in the middle");
                Some((Err(io::Error::other(failure.message)), None))
            }
        }
    });
    Ok(HttpResponse::Ok()
        .content_type("application/x-tar")
        .insert_header((ETAG, format!("\"{tag}\"")))
        .insert_header(("x-htc-length", length.to_string()))
        .streaming(parts))
}

/// Names an archive by all that it is made of.
fn tag(entries: &[Entry]) -> String {
    let mut hash = Sha256::new();
    for entry in entries {
        hash.update(&entry.header);
    }
    hash.finalize().iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// What is in a folder, by name: regular files and folders, nothing else.
fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inside) = folders.pop() {
        let mut names: Vec<fs::DirEntry> = fs::read_dir(folder.join(&inside))?.collect::<Result<_, _>>()?;
        names.sort_by_key(fs::DirEntry::file_name);
        for name in names {
            let (path, metadata) = (inside.join(name.file_name()), name.metadata()?);
            let kind = metadata.file_type();
            if !kind.is_file() && !kind.is_dir() || found.len() >= MOST {
                continue;
            }
            found.push(entry(folder, &path, &metadata)?);
            if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(found)
}

fn entry(folder: &Path, path: &Path, metadata: &fs::Metadata) -> io::Result<Entry> {
    use std::os::unix::fs::MetadataExt as _;
    let mut header = tar::Header::new_gnu();
    let size = if metadata.is_dir() { 0 } else { metadata.len() };
    header.set_entry_type(if metadata.is_dir() { tar::EntryType::Directory } else { tar::EntryType::Regular });
    header.set_mode(metadata.mode() & 0o777);
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or_default());
    header.set_size(size);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_data(&mut header, path, io::empty())?;
    let mut bytes = builder.into_inner()?;
    bytes.truncate(bytes.len().saturating_sub(usize::try_from(END).unwrap_or_default()));
    Ok(Entry { file: metadata.is_file().then(|| folder.join(path)), header: bytes, size })
}

struct Archive {
    entries: std::collections::VecDeque<Entry>,
    /// The next byte, counted from the first entry.
    at: u64,
    /// Bytes behind the last entry.
    end: u64,
}

impl Archive {
    async fn next(mut self, volume: &Volume) -> Result<Option<(Bytes, Self)>, Failure> {
        while self.entries.front().is_some_and(|first| self.at >= first.whole()) {
            self.at -= self.entries.pop_front().map_or(0, |first| first.whole());
        }
        let Some(entry) = self.entries.front() else {
            let left = self.end.saturating_sub(self.at);
            self.at += left;
            let zeros = vec![0; usize::try_from(left).unwrap_or_default()];
            return Ok((left > 0).then(|| (Bytes::from(zeros), self)));
        };
        let header = entry.header.len() as u64;
        let part = if self.at < header {
            entry.header[usize::try_from(self.at).unwrap_or_default()..].to_vec()
        } else if let Some(path) = entry.file.clone().filter(|_| self.at < header + entry.size) {
            let (file, length) = volume.opened(path).await?;
            if length != entry.size {
                return Err(Failure::internal("a file has changed while it was read"));
            }
            volume.read(&file, self.at - header, PART).await?
        } else {
            vec![0; usize::try_from(entry.whole() - self.at).unwrap_or_default()]
        };
        if part.is_empty() {
            return Err(Failure::internal("a file has become shorter while it was read"));
        }
        self.at += part.len() as u64;
        Ok(Some((Bytes::from(part), self)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    async fn archive(folder: &Path, offset: u64) -> Vec<u8> {
        let entries = entries(folder).unwrap();
        let volume = Volume::default();
        let mut archive = Archive { entries: entries.into(), at: offset, end: END };
        let mut all = Vec::new();
        while let Some((part, rest)) = archive.next(&volume).await.unwrap() {
            all.extend_from_slice(&part);
            archive = rest;
        }
        all
    }

    #[tokio::test]
    async fn from_wherever_it_goes_on_the_archive_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let long = "long/".repeat(40);
        fs::create_dir_all(folder.path().join(&long)).unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        fs::write(folder.path().join(&long).join("file"), "deep").unwrap();
        fs::write(folder.path().join("out"), vec![b'x'; 700_000]).unwrap();
        fs::write(folder.path().join("err"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let whole = archive(folder.path(), 0).await;
        for offset in [1, 511, 512, 513, 1024, 5000, 300_000, 700_000, whole.len() - 1, whole.len()] {
            assert!(archive(folder.path(), offset as u64).await == whole[offset..], "{offset}");
        }
        let mut found = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(&whole[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            let path = entry.path().unwrap().display().to_string();
            entry.read_to_string(&mut text).unwrap();
            found.insert(path, text.len());
        }
        assert_eq!(found.get("out"), Some(&700_000));
        assert_eq!(found.get(&format!("{long}file")), Some(&4));
        assert!(found.contains_key("empty") || found.contains_key("empty/"), "{found:?}");
        assert!(!found.contains_key("link"), "{found:?}");
    }
}
