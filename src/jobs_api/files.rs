//! Output of one job as a tar archive. The same files give the same bytes, so that a client can continue at the byte
//! where its connection ended: the API server cuts every answer after a minute.

pub(super) mod htcjob_archive;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use actix_web::HttpResponse;
use actix_web::http::header::ETAG;
use actix_web::web::Bytes;
use futures::future::try_join_all;
use futures::{Stream, StreamExt as _};
use htc_support::fair_limiter::FairPermit;
use rustix::fs::{AtFlags, Dir, FileType, statat};
use sha2::{Digest as _, Sha256};

use super::{FoundJob, JobsService};
use crate::jobs_api::output_volume::OutputVolume;
use crate::jobs_api::resource::list::parameters;
use crate::jobs_api::resource::status_error::StatusError;

const MEDIA_TYPE: &str = "application/x-tar";
/// Bytes read at once.
const PART: usize = 256 * 1024;
/// Size of a block of an archive.
const BLOCK: u64 = 512;
/// Bytes that end an archive: two empty blocks.
const END: u64 = 2 * BLOCK;
/// Maximum number of names read, or files checked, in one step on the volume.
const STEP: usize = 500;
/// Number of steps in which files are checked concurrently: a remote volume answers several in the time of one.
const AT_ONCE: usize = 4;
/// Maximum number of files in one archive: more than output may have.
const MOST: usize = if cfg!(test) { 10_000 } else { 1_000_000 };

/// Query of a request for an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FilesQuery {
    /// First byte to send.
    offset: u64,
    /// Tag of an archive that was begun before: only that one is continued.
    tag: Option<String>,
}

impl FilesQuery {
    /// Parses a query.
    pub(super) fn parse(query: &str) -> Result<Self, StatusError> {
        let mut wanted = Self::default();
        for (name, value) in parameters(query)? {
            match name.as_str() {
                "offset" => {
                    let wrong = || StatusError::wrong_parameter(&name, &value);
                    wanted.offset = value.parse().map_err(|_| wrong())?;
                }
                "etag" => wanted.tag = Some(value),
                "pretty" | "timeout" => {}
                _ => return Err(StatusError::unknown_parameter(&name)),
            }
        }
        Ok(wanted)
    }
}

/// One entry of an archive. There may be a million: everything else is derived from these few bytes when the entry is
/// sent.
#[derive(Clone, Copy, Debug)]
struct ArchiveEntry {
    /// End of its path in [`ArchiveEntries::paths`]; it begins at the end of the path before.
    end: usize,
    /// Size of a file; `None` for a folder.
    size: Option<u64>,
    mtime: u64,
    mode: u32,
    /// Number of blocks of its header, including the header of a long name.
    header: u32,
}

impl ArchiveEntry {
    const fn header(&self) -> u64 {
        self.header as u64 * BLOCK
    }

    fn size(&self) -> u64 {
        self.size.unwrap_or_default()
    }

    /// Returns its size in the archive, in bytes.
    fn whole(&self) -> u64 {
        self.header() + self.size().div_ceil(BLOCK) * BLOCK
    }

    /// Returns its header in the archive.
    fn bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut header = tar::Header::new_gnu();
        let kind = if self.size.is_none() { tar::EntryType::Directory } else { tar::EntryType::Regular };
        header.set_entry_type(kind);
        header.set_mode(self.mode);
        header.set_mtime(self.mtime);
        header.set_size(self.size());
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_data(&mut header, path, io::empty())?;
        let mut bytes = builder.into_inner()?;
        bytes.truncate(bytes.len().saturating_sub(usize::try_from(END).unwrap_or_default()));
        Ok(bytes)
    }
}

/// All entries of one job's output, in the order of the archive.
struct ArchiveEntries {
    folder: PathBuf,
    /// All paths, concatenated.
    paths: Vec<u8>,
    all: Vec<ArchiveEntry>,
    /// Size of the archive in bytes, without its end.
    length: u64,
    /// Hash of all headers.
    hash: Sha256,
}

/// A file or folder before its position in the archive is known.
struct ScannedFile {
    path: PathBuf,
    entry: ArchiveEntry,
    header: Vec<u8>,
}

impl ScannedFile {
    /// Looks up the last name of this path in the open `folder`; `None` if it is neither a file nor a folder.
    fn at(folder: &OwnedFd, path: PathBuf) -> io::Result<Option<Self>> {
        let found = statat(folder, path.file_name().unwrap_or_default(), AtFlags::SYMLINK_NOFOLLOW)?;
        let size = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Some(u64::try_from(found.st_size).unwrap_or_default()),
            FileType::Directory => None,
            _ => return Ok(None),
        };
        let mtime = u64::try_from(found.st_mtime).unwrap_or_default();
        let mut entry = ArchiveEntry { end: 0, size, mtime, mode: found.st_mode & 0o777, header: 0 };
        let header = entry.bytes(&path)?;
        entry.header = u32::try_from(header.len() as u64 / BLOCK).unwrap_or(u32::MAX);
        Ok(Some(Self { path, entry, header }))
    }
}

/// Returns the names in a folder, sorted.
async fn names(volume: &OutputVolume, folder: PathBuf) -> Result<Vec<OsString>, StatusError> {
    let on_it = volume.clone();
    let mut open = volume.step(move || Ok(Dir::new(on_it.folder(&folder)?)?)).await?;
    let mut names = Vec::new();
    loop {
        let (rest, part) = volume
            .step(move || {
                let part = open
                    .by_ref()
                    .take(STEP)
                    .map(|entry| entry.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()));
                let part = part.collect::<rustix::io::Result<Vec<_>>>()?;
                Ok((open, part))
            })
            .await?;
        open = rest;
        let over = part.len() < STEP;
        names.extend(part.into_iter().filter(|name| name != "." && name != ".."));
        if over {
            names.sort_unstable();
            return Ok(names);
        }
    }
}

impl ArchiveEntries {
    /// Returns the contents of a folder, by name: regular files and folders, nothing else.
    async fn of(volume: &OutputVolume, folder: PathBuf) -> Result<Self, StatusError> {
        Self::begin(folder).read(volume, PathBuf::new()).await
    }

    /// Returns a folder inside another folder, with its contents in the same way.
    async fn under(volume: &OutputVolume, folder: PathBuf, inside: PathBuf) -> Result<Self, StatusError> {
        let mut entries = Self::begin(folder.clone());
        let (on_it, path) = (volume.clone(), inside.clone());
        if let Some(seen) = volume.step(move || ScannedFile::at(&on_it.folder(&folder)?, path)).await? {
            entries.add(seen);
        }
        entries.read(volume, inside).await
    }

    fn begin(folder: PathBuf) -> Self {
        Self { folder, paths: Vec::new(), all: Vec::new(), length: 0, hash: Sha256::new() }
    }

    fn add(&mut self, ScannedFile { path, mut entry, header }: ScannedFile) {
        self.paths.extend_from_slice(path.as_os_str().as_bytes());
        entry.end = self.paths.len();
        self.hash.update(&header);
        self.length += entry.whole();
        self.all.push(entry);
    }

    async fn read(mut self, volume: &OutputVolume, inside: PathBuf) -> Result<Self, StatusError> {
        let mut folders = vec![inside];
        while let Some(inside) = folders.pop() {
            let names = names(volume, self.folder.join(&inside)).await?;
            for part in names.chunks(STEP * AT_ONCE) {
                let looks = part.chunks(STEP).map(|names| {
                    let (on_it, folder) = (volume.clone(), self.folder.join(&inside));
                    let paths: Vec<PathBuf> = names.iter().map(|name| inside.join(name)).collect();
                    volume.step(move || {
                        let folder = on_it.folder(&folder)?;
                        let seen = paths.into_iter().map(|path| ScannedFile::at(&folder, path));
                        seen.filter_map(Result::transpose).collect::<io::Result<Vec<_>>>()
                    })
                });
                for seen in try_join_all(looks).await?.into_iter().flatten() {
                    if self.all.len() >= MOST {
                        return Err(StatusError::internal(format!("there are more than {MOST} files and folders")));
                    }
                    if seen.entry.size.is_none() {
                        folders.push(seen.path.clone());
                    }
                    self.add(seen);
                }
            }
        }
        self.paths.shrink_to_fit();
        self.all.shrink_to_fit();
        Ok(self)
    }

    /// Returns a tag that identifies the archive by everything that it consists of.
    fn tag(&self) -> String {
        let hash = self.hash.clone().finalize();
        hash.iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    fn path(&self, number: usize) -> &Path {
        let begin = number.checked_sub(1).map_or(0, |before| self.all[before].end);
        Path::new(OsStr::from_bytes(&self.paths[begin..self.all[number].end]))
    }
}

/// Answers with an archive.
pub(super) async fn files(
    jobs: &JobsService,
    user: &str,
    found: FoundJob,
    wanted: FilesQuery,
) -> Result<HttpResponse, StatusError> {
    if !found.proc.status.output_fetched {
        let name = found.proc.name.name();
        let state = found.proc.status.state;
        return Err(StatusError::not_found(format!("{name} is {state}: its output is not stored (yet)")));
    }
    let folder = jobs.layout.job_output(&found.parent.htcjob(), &found.parent.uid, found.index);
    let turn = jobs.limits.archive(user).await?;
    let entries = ArchiveEntries::of(&jobs.volume, folder).await?;
    let (length, tag) = (entries.length + END, entries.tag());
    if wanted.tag.as_ref().is_some_and(|begun| *begun != tag) {
        return Err(StatusError::conflict("the files have changed since the archive was begun: begin again"));
    }
    if wanted.offset > length {
        return Err(StatusError::bad_request(format!("the archive has {length} bytes")));
    }
    let archive = Archive { entries, volume: jobs.volume.clone(), number: 0, at: wanted.offset, end: END };
    Ok(HttpResponse::Ok()
        .content_type(MEDIA_TYPE)
        .insert_header((ETAG, format!("\"{tag}\"")))
        .insert_header(("x-htc-length", length.to_string()))
        .streaming(super::in_span(sent(archive, turn, Archive::next))))
}

/// Streams an archive part by part. An error ends it in the middle.
fn sent<A, N>(archive: A, turn: FairPermit, next: impl Fn(A) -> N) -> impl Stream<Item = io::Result<Bytes>>
where
    N: Future<Output = Result<Option<(Bytes, A)>, StatusError>>,
{
    futures::stream::try_unfold(archive, next).map(move |part| {
        let _until_it_ends = &turn;
        part.map_err(|failure| {
            tracing::warn!(why = failure.message, "archive cut short");
            io::Error::other(failure.message)
        })
    })
}

fn zeros(count: u64) -> Vec<u8> {
    vec![0; usize::try_from(count).unwrap_or_default()]
}

/// One job's output while it is sent.
struct Archive {
    entries: ArchiveEntries,
    volume: OutputVolume,
    /// Index of the entry that is sent.
    number: usize,
    /// Next byte, counted from the start of that entry.
    at: u64,
    /// Bytes to send after the last entry.
    end: u64,
}

impl Archive {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, StatusError> {
        while let Some(before) =
            self.entries.all.get(self.number).map(ArchiveEntry::whole).filter(|whole| self.at >= *whole)
        {
            self.at -= before;
            self.number += 1;
        }
        let Some(entry) = self.entries.all.get(self.number).copied() else {
            let left = self.end.saturating_sub(self.at);
            self.at += left;
            return Ok((left > 0).then(|| (Bytes::from(zeros(left)), self)));
        };
        let (header, path) = (entry.header(), self.entries.path(self.number));
        let part = if self.at < header {
            let bytes = entry.bytes(path).map_err(|error| StatusError::internal(error.to_string()))?;
            bytes[usize::try_from(self.at).unwrap_or_default()..].to_vec()
        } else if self.at < header + entry.size() {
            let (file, length) = self.volume.opened(self.entries.folder.join(path)).await?;
            if length != entry.size() {
                return Err(StatusError::internal("a file has changed while it was read"));
            }
            // The file may have grown since.
            let left = usize::try_from(header + entry.size() - self.at).unwrap_or(PART);
            self.volume.read(&file, self.at - header, left.min(PART)).await?
        } else {
            zeros(entry.whole() - self.at)
        };
        if part.is_empty() {
            return Err(StatusError::internal("a file has become shorter while it was read"));
        }
        self.at += part.len() as u64;
        Ok(Some((Bytes::from(part), self)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn on(folder: &Path) -> OutputVolume {
        OutputVolume::new(folder.to_owned())
    }

    async fn begun(volume: OutputVolume, folder: &Path, offset: u64) -> Result<Archive, StatusError> {
        let entries = ArchiveEntries::of(&volume, folder.to_owned()).await?;
        Ok(Archive { entries, volume, number: 0, at: offset, end: END })
    }

    async fn rest(mut archive: Archive) -> Result<Vec<u8>, StatusError> {
        let mut all = Vec::new();
        while let Some((part, rest)) = archive.next().await? {
            all.extend_from_slice(&part);
            archive = rest;
        }
        Ok(all)
    }

    async fn archive(folder: &Path, offset: u64) -> Vec<u8> {
        rest(begun(on(folder), folder, offset).await.unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn archive_resumed_at_any_offset_is_identical() {
        let folder = tempfile::tempdir().unwrap();
        let long = "long/".repeat(40);
        fs::create_dir_all(folder.path().join(&long)).unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        fs::write(folder.path().join(&long).join("file"), "deep").unwrap();
        fs::write(folder.path().join("out"), vec![b'x'; 700_000]).unwrap();
        fs::write(folder.path().join("err"), "").unwrap();
        symlink("/etc/passwd", folder.path().join("link")).unwrap();
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

    /// A user who may write to the volume replaces any folder of the path by a link to a folder with the same
    /// contents, before and after the archive is begun.
    #[tokio::test]
    async fn symbolic_links_in_the_path_are_not_followed() {
        let site = tempfile::tempdir().unwrap();
        let (root, theirs) = (site.path().join("htc_out"), site.path().join("theirs"));
        let job = root.join("ns/fit/0");
        for (folder, text) in
            [(&job, "ours"), (&theirs, "else"), (&theirs.join("fit/0"), "else"), (&theirs.join("0"), "else")]
        {
            fs::create_dir_all(folder.join("deep")).unwrap();
            fs::write(folder.join("deep/file"), text).unwrap();
        }
        fs::write(theirs.join("file"), "else").unwrap();
        for place in ["ns", "ns/fit", "ns/fit/0", "ns/fit/0/deep"] {
            let (place, away) = (root.join(place), site.path().join("away"));
            let before = begun(on(&root), &job, 0).await.unwrap();
            fs::rename(&place, &away).unwrap();
            symlink(&theirs, &place).unwrap();
            let failure = rest(before).await.unwrap_err();
            assert_eq!(failure.code, 500, "{place:?}: {}", failure.message);
            match begun(on(&root), &job, 0).await {
                // A link in the job's folder is left out, as ever.
                Ok(without) => assert!(place.ends_with("deep") && without.entries.all.is_empty(), "{place:?}"),
                Err(failure) => assert_eq!(failure.code, 500, "{place:?}: {}", failure.message),
            }
            fs::remove_file(&place).unwrap();
            fs::rename(&away, &place).unwrap();
        }
        // A link to the volume itself is an administrator's.
        let link = site.path().join("link");
        symlink(&root, &link).unwrap();
        assert!(begun(on(&link), &link.join("ns/fit/0"), 0).await.is_ok_and(|archive| archive.entries.all.len() == 2));
    }

    /// The bytes after the end of a file in an archive are the header of the next one.
    #[tokio::test]
    async fn growth_of_a_file_during_reading_is_not_archived() {
        const TRIES: usize = 500;
        let folder = tempfile::tempdir().unwrap();
        let grows = folder.path().join("a");
        fs::write(&grows, "x").unwrap();
        fs::write(folder.path().join("b"), "y").unwrap();
        let file = fs::OpenOptions::new().write(true).open(&grows).unwrap();
        let archives = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                let archive = async || rest(begun(on(folder.path()), folder.path(), 0).await?).await;
                (0..TRIES).filter_map(|_| runtime.block_on(archive()).ok()).collect::<Vec<_>>()
            });
            while !reader.is_finished() {
                file.set_len(5000).unwrap();
                file.set_len(1).unwrap();
            }
            reader.join().unwrap()
        });
        assert!(!archives.is_empty());
        for archive in archives {
            let mut archive = tar::Archive::new(&archive[..]);
            let paths = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned());
            assert_eq!(paths.collect::<Vec<_>>(), [Path::new("a"), Path::new("b")]);
        }
    }

    #[tokio::test]
    async fn too_many_files_are_an_error_not_a_partial_archive() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..MOST {
            fs::write(folder.path().join(number.to_string()), "").unwrap();
        }
        let volume = on(folder.path());
        assert_eq!(ArchiveEntries::of(&volume, folder.path().to_owned()).await.unwrap().all.len(), MOST);
        fs::create_dir(folder.path().join("one-more")).unwrap();
        let failure = ArchiveEntries::of(&volume, folder.path().to_owned()).await.map(drop).unwrap_err();
        assert!(failure.message.contains("more than"), "{}", failure.message);
    }

    #[tokio::test]
    async fn many_files_are_listed_in_small_steps() {
        const FILES: usize = 3 * STEP * AT_ONCE;
        let folder = tempfile::tempdir().unwrap();
        for number in 0..FILES {
            fs::write(folder.path().join(format!("{number:05}")), "").unwrap();
        }
        let volume = on(folder.path());
        let entries = ArchiveEntries::of(&volume, folder.path().to_owned()).await.unwrap();
        assert_eq!((entries.all.len(), entries.path(FILES - 1)), (FILES, Path::new("05999")));
        let steps = volume.steps.load(std::sync::atomic::Ordering::Relaxed);
        assert!(steps >= 2 * FILES / STEP, "{steps} steps for {FILES} names and as many files");
    }

    #[tokio::test]
    async fn list_of_a_million_files_fits_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..200 {
            fs::write(folder.path().join(format!("{number:03}")), "x").unwrap();
        }
        let entries = ArchiveEntries::of(&on(folder.path()), folder.path().to_owned()).await.unwrap();
        assert_eq!((entries.all.len(), entries.length), (200, 200 * 2 * BLOCK));
        assert_eq!((entries.path(0), entries.path(199)), (Path::new("000"), Path::new("199")));
        let bytes = entries.paths.capacity() + entries.all.capacity() * size_of::<ArchiveEntry>();
        assert!(bytes / 200 < 64, "{} bytes for each", bytes / 200);
    }
}
