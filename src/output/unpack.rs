//! Unpacks output that comes back as an archive: folders, files whose names HTCondor cannot keep, and more files than
//! it can handle. `job.sh` packs them on the node, where other processes of the payload may still write. So nothing
//! in an archive is trusted.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::fstatvfs;
use tar::{Archive, Entry, EntryType, PaxExtensions};

use crate::output::disk_budget::{DiskAmount, VolumeSpace};
use crate::output::unpack_limits::{DEEPEST, MOST_FILES, OutputError, TOO_LARGE, UnpackLimits};

/// File name of the archive, as in `job.sh`.
pub(super) const ARCHIVE: &str = "htc_output.tar";
/// File name of the list of files that do not come back, as in `job.sh`.
pub(super) const OMITTED: &str = "htc_output.omitted";
/// File names reserved for the job itself.
const TAKEN: [&str; 4] = ["out", "err", ARCHIVE, OMITTED];
/// Maximum bytes of an extension (a long name, pax records), which is held in memory.
const LONGEST_EXTENSION: u64 = 8 * 1024;
/// Maximum bytes of a path, and of a name in it ([`LONGEST_NAME`]), as file systems have it.
const LONGEST_PATH: usize = 3 * 1024;
const LONGEST_NAME: usize = 255;
/// Maximum bytes of all paths, which are held in memory.
const ALL_PATHS: usize = 32 << 20;
/// Maximum number of headers: one for each file or folder, and those of its extensions.
const MOST_HEADERS: u64 = 4 * MOST_FILES;
/// Size of an archive's blocks in bytes. An archive ends with two empty blocks.
const BLOCK: u64 = 512;

/// Unpacks the archive in `folder`, if there is one, and removes it. All of it is checked before anything is written.
/// A regular file of the same name comes from an earlier run, and HTCondor has kept it: it is overwritten.
pub(super) fn unpack(folder: &Path, bounds: UnpackLimits) -> Result<(), OutputError> {
    let path = folder.join(ARCHIVE);
    let mut file = match fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OutputError::Io(error)),
    };
    check_headers(&mut file)?;
    file.rewind().map_err(OutputError::Io)?;
    let needs = Contents::check(&mut file, bounds)?.needs;
    if !VolumeSpace::of(&fstatvfs(&file)?, bounds.keep_free).has_room_for(needs) {
        let (mib, files) = (needs.bytes.div_ceil(1 << 20), needs.inodes);
        let words = format!("the volume has no space for its {mib} MiB and {files} files beside --min-free-space");
        return Err(OutputError::NoSpace(words));
    }
    file.rewind().map_err(OutputError::Io)?;
    for entry in Archive::new(file).entries().map_err(OutputError::Io)? {
        write(folder, entry.map_err(OutputError::Io)?)?;
    }
    fs::remove_file(&path).map_err(OutputError::Io)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn broken(error: io::Error) -> OutputError {
    // Errors of the operating system are the volume's, and pass. `InvalidInput` comes from a seek to a position that
    // the archive named.
    if error.raw_os_error().is_some() && error.kind() != io::ErrorKind::InvalidInput {
        return OutputError::Io(error);
    }
    OutputError::Refused(format!("what the job has packed cannot be read: {error}"))
}

fn refused(what: &str, path: &Path) -> OutputError {
    OutputError::Refused(format!("it has {what}: {:?}", path.to_string_lossy()))
}

/// Checks the headers before the library reads extensions: their size, and that none changes the size of what
/// follows, which would uncover other headers. Also checks that the archive is complete, which the library does not.
fn check_headers(file: &mut fs::File) -> Result<(), OutputError> {
    let length = file.metadata().map_err(OutputError::Io)?.len();
    let (mut end, mut headers) = (0, 0);
    let mut archive = Archive::new(file);
    for entry in archive.entries_with_seek().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        let size = entry.header().entry_size().map_err(broken)?;
        let records = kind.is_pax_local_extensions() || kind.is_pax_global_extensions();
        if (records || kind.is_gnu_longname() || kind.is_gnu_longlink()) && size > LONGEST_EXTENSION {
            return Err(OutputError::Refused("a file packed by the job has a name that is too long".to_owned()));
        }
        if records && changes_sizes(&mut entry).map_err(broken)? {
            return Err(OutputError::Refused(
                "a file packed by the job has a size that its header does not have".to_owned(),
            ));
        }
        headers += 1;
        if headers > MOST_HEADERS {
            return Err(OutputError::Refused(format!("it has more than {MOST_FILES} files")));
        }
        end = entry.raw_file_position().saturating_add(size.next_multiple_of(BLOCK));
    }
    if length < end.saturating_add(2 * BLOCK) {
        return Err(broken(io::Error::other("it is not whole")));
    }
    Ok(())
}

fn changes_sizes(records: &mut impl Read) -> io::Result<bool> {
    let mut text = Vec::new();
    records.read_to_end(&mut text)?;
    for record in PaxExtensions::new(&text) {
        let key = record?.key_bytes().to_owned();
        if key == b"size" || key.starts_with(b"GNU.sparse") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Contents of an archive.
#[derive(Default)]
struct Contents {
    needs: DiskAmount,
    /// Files, with their sizes.
    files: HashMap<PathBuf, u64>,
    folders: HashSet<PathBuf>,
    bytes_of_paths: usize,
}

impl Contents {
    fn check(file: &mut fs::File, bounds: UnpackLimits) -> Result<Self, OutputError> {
        let mut contents = Self::default();
        let mut archive = Archive::new(file);
        for entry in archive.entries_with_seek().map_err(broken)? {
            contents.add(&entry.map_err(broken)?)?;
            if contents.needs.inodes > MOST_FILES || contents.bytes_of_paths > ALL_PATHS {
                return Err(OutputError::Refused(format!("it has more than {MOST_FILES} files, or too long names")));
            }
            if bounds.bytes.is_some_and(|most| contents.needs.bytes > most) {
                return Err(OutputError::Refused(TOO_LARGE.to_owned()));
            }
        }
        Ok(contents)
    }

    fn add<R: Read>(&mut self, entry: &Entry<'_, R>) -> Result<(), OutputError> {
        let Some(path) = place(entry).map_err(broken)? else { return Ok(()) };
        let kind = entry.header().entry_type();
        let first = path.iter().next();
        if TAKEN.iter().any(|taken| first == Some(OsStr::new(taken))) {
            return Err(refused("a name that is the job's own", &path));
        }
        if path.as_os_str().len() > LONGEST_PATH || path.iter().any(|name| !is_a_name(name)) {
            return Err(refused("a name that no file can have", &path));
        }
        let parents = path.iter().count() - 1;
        if parents + usize::from(kind == EntryType::Directory) > DEEPEST {
            return Err(refused(&format!("folders nested more than {DEEPEST} deep"), &path));
        }
        // tar packs a folder before its contents.
        if parents > 0 && path.parent().is_none_or(|parent| !self.folders.contains(parent)) {
            return Err(refused("a file in a folder that is not in it", &path));
        }
        if self.files.contains_key(&path) || self.folders.contains(&path) {
            return Err(refused("a name twice", &path));
        }
        let bytes = match kind {
            EntryType::Directory => 0,
            EntryType::Regular => entry.size(),
            EntryType::Link => match linked(entry).map_err(broken)?.and_then(|first| self.files.get(&first)) {
                Some(bytes) => *bytes,
                None => return Err(refused("a name of a file that is not in it", &path)),
            },
            _ => return Err(refused("something that is no file and no folder", &path)),
        };
        self.needs = self.needs.plus(DiskAmount { bytes, inodes: 1 });
        self.bytes_of_paths += path.as_os_str().len();
        if kind == EntryType::Directory {
            self.folders.insert(path);
        } else {
            self.files.insert(path, bytes);
        }
        Ok(())
    }
}

fn is_a_name(name: &OsStr) -> bool {
    name.len() <= LONGEST_NAME && !name.as_bytes().contains(&0)
}

/// Returns the entry's path below the folder; `None` for the folder itself.
fn place<R: Read>(entry: &Entry<'_, R>) -> io::Result<Option<PathBuf>> {
    below(&entry.path()?)
}

/// Returns the first name of a file with several names (hard links), of which this entry is another.
fn linked<R: Read>(entry: &Entry<'_, R>) -> io::Result<Option<PathBuf>> {
    entry.link_name()?.map_or(Ok(None), |name| below(&name))
}

fn below(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut place = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => place.push(name),
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::other(format!("{:?} leads out of it", path.to_string_lossy())));
            }
        }
    }
    Ok((!place.as_os_str().is_empty()).then_some(place))
}

/// Writes an entry. The folder contains no links: only this function writes into it, and it makes none.
fn write<R: Read>(folder: &Path, mut entry: Entry<'_, R>) -> Result<(), OutputError> {
    let Some(place) = place(&entry).map_err(broken)? else { return Ok(()) };
    let path = folder.join(&place);
    if place.iter().count() == 1 && path.is_file() {
        fs::remove_file(&path).map_err(OutputError::Io)?;
    }
    if entry.header().entry_type() == EntryType::Directory {
        return fs::create_dir(&path).map_err(OutputError::Io);
    }
    let mode = entry.header().mode().unwrap_or(0o644) & 0o777 | 0o600;
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).map_err(OutputError::Io)?;
    match linked(&entry).map_err(broken)?.filter(|_| entry.header().entry_type() == EntryType::Link) {
        // The first name of the file comes first in the archive, so it has been written.
        Some(first) => io::copy(&mut fs::File::open(folder.join(first)).map_err(OutputError::Io)?, &mut file),
        None => io::copy(&mut entry, &mut file),
    }
    .map(drop)
    .map_err(OutputError::Io)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tar::{Builder, Header};

    use super::*;

    const BOUNDS: UnpackLimits = UnpackLimits { bytes: Some(1 << 20), keep_free: 0 };

    /// Packs entries by their raw names, which the library's own functions refuse.
    fn packed(entries: &[(EntryType, &str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Builder::new(fs::File::create(folder.path().join(ARCHIVE)).unwrap());
        for (kind, name, contents) in entries {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o6751);
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.as_old_mut().linkname[..contents.len()].copy_from_slice(contents.as_bytes());
            }
            let contents = if kind.is_file() { contents.as_bytes() } else { &[] };
            header.set_size(contents.len() as u64);
            header.set_cksum();
            archive.append(&header, contents).unwrap();
        }
        archive.finish().unwrap();
        folder
    }

    fn message(stop: OutputError) -> String {
        match stop {
            OutputError::Refused(message) | OutputError::NoSpace(message) => message,
            OutputError::Io(error) => panic!("{error}"),
        }
    }

    #[test]
    fn files_and_folders_are_unpacked_and_the_archive_removed() {
        let long = "f".repeat(200);
        let folder = packed(&[
            (EntryType::Directory, "./", ""),
            (EntryType::Directory, "./empty/", ""),
            (EntryType::Directory, "./a/", ""),
            (EntryType::Directory, "./a/b", ""),
            (EntryType::Regular, "./a/b/c", "deep"),
            (EntryType::Regular, "./a,b ", "odd"),
            (EntryType::Link, "./twin", "./a/b/c"),
        ]);
        unpack(folder.path(), BOUNDS).unwrap();
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(["a/b/c", "a,b ", "twin"].map(read), ["deep", "odd", "deep"]);
        assert!(folder.path().join("empty").is_dir() && !folder.path().join(ARCHIVE).exists());
        let mode = fs::metadata(folder.path().join("a/b/c")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7000, 0, "{mode:o}");
        unpack(folder.path(), BOUNDS).unwrap();

        // A long name is an entry of its own before the entry that it belongs to.
        let mut archive = Builder::new(fs::File::create(folder.path().join(ARCHIVE)).unwrap());
        let mut header = Header::new_gnu();
        header.set_size(1);
        archive.append_data(&mut header, &long, &b"x"[..]).unwrap();
        archive.finish().unwrap();
        // A file that an earlier run has left in its place is overwritten.
        fs::write(folder.path().join(&long), "earlier").unwrap();
        unpack(folder.path(), BOUNDS).unwrap();
        assert_eq!(read(&long), "x");
    }

    #[test]
    fn refused_archive_writes_no_file() {
        for (kind, name, contents, words) in [
            (EntryType::Regular, "../outside", "", "leads out of it"),
            (EntryType::Regular, "a/../../outside", "", "leads out of it"),
            (EntryType::Regular, "/etc/outside", "", "leads out of it"),
            (EntryType::Symlink, "link", "/etc", "no file and no folder: \"link\""),
            (EntryType::Link, "hard", "missing", "a name of a file that is not in it: \"hard\""),
            (EntryType::Link, "hard", "./", "a name of a file that is not in it"),
            (EntryType::Link, "hard", "/etc/passwd", "leads out of it"),
            (EntryType::Link, "hard", "hard", "a name of a file that is not in it"),
            (EntryType::Fifo, "pipe", "", "no file and no folder"),
            (EntryType::Char, "device", "", "no file and no folder"),
            (EntryType::GNUSparse, "sparse", "", "cannot be read"),
            (EntryType::Regular, "./out", "mine", "the job's own: \"out\""),
            (EntryType::Directory, "err/", "", "the job's own: \"err\""),
            (EntryType::Regular, "htc_output.tar", "", "the job's own"),
            (EntryType::Regular, "a/b", "", "a file in a folder that is not in it: \"a/b\""),
            (EntryType::Directory, "first/", "", "a name twice"),
            (EntryType::Regular, "first", "2", "a name twice"),
            (EntryType::Regular, "first/below", "", "a file in a folder that is not in it"),
        ] {
            let folder = packed(&[(EntryType::Regular, "first", "1"), (kind, name, contents)]);
            let said = message(unpack(folder.path(), BOUNDS).unwrap_err());
            assert!(said.contains(words), "{name}: {said}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{name}: nothing beside the archive");
        }
    }

    #[test]
    fn archive_over_the_limits_is_refused() {
        let large = "x".repeat(700_000);
        let folder = packed(&[(EntryType::Regular, "a", &large), (EntryType::Regular, "b", &large)]);
        assert!(message(unpack(folder.path(), BOUNDS).unwrap_err()).contains("more bytes than --output-limit"));
        let twin = packed(&[(EntryType::Regular, "a", &large), (EntryType::Link, "b", "a")]);
        assert!(message(unpack(twin.path(), BOUNDS).unwrap_err()).contains("more bytes than --output-limit"));
        let full = UnpackLimits { bytes: None, keep_free: u64::MAX };
        assert!(message(unpack(folder.path(), full).unwrap_err()).contains("no space for its 2 MiB and 2 files"));
        assert!(unpack(folder.path(), UnpackLimits { bytes: None, keep_free: 0 }).is_ok());

        let folder = packed(&[(EntryType::GNULongName, "././@LongLink", "")]);
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(LONGEST_EXTENSION + 1);
        header.set_cksum();
        let mut archive = Builder::new(fs::File::create(folder.path().join(ARCHIVE)).unwrap());
        archive.append(&header, io::repeat(b'n').take(LONGEST_EXTENSION + 1)).unwrap();
        archive.finish().unwrap();
        assert!(message(unpack(folder.path(), BOUNDS).unwrap_err()).contains("a name that is too long"));
    }

    #[test]
    fn invalid_or_truncated_archive_is_refused() {
        for cut in [1, 511, 700, 1024, 1536, 2048, 2560, 3583] {
            let folder = packed(&[(EntryType::Regular, "a", &"x".repeat(600)), (EntryType::Regular, "b", "y")]);
            let path = folder.path().join(ARCHIVE);
            let whole = fs::read(&path).unwrap();
            assert_eq!(whole.len(), 3584);
            fs::write(&path, &whole[..cut]).unwrap();
            let stop = unpack(folder.path(), BOUNDS);
            assert!(matches!(stop, Err(OutputError::Refused(_))), "{cut}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{cut}: nothing beside the archive");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(ARCHIVE), vec![0xff; 4096]).unwrap();
        assert!(message(unpack(folder.path(), BOUNDS).unwrap_err()).contains("cannot be read"));
    }

    #[test]
    fn read_error_of_the_volume_is_not_a_refusal() {
        struct Bad;
        impl Read for Bad {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::from_raw_os_error(5))
            }
        }
        let error = Archive::new(Bad).entries().unwrap().next().unwrap().err().unwrap();
        assert!(matches!(broken(error), OutputError::Io(_)));
        let einval = io::Error::from_raw_os_error(22);
        assert!(matches!(broken(einval), OutputError::Refused(_)), "a size exceeds the largest file");
    }

    #[test]
    fn folders_have_the_same_depth_limit_as_files() {
        let nested = |depth: usize, last: EntryType| {
            let names: Vec<String> = (1..=depth).map(|count| "d/".repeat(count)).collect();
            let file = "d/".repeat(depth) + "f";
            let folders = names.iter().map(|name| (EntryType::Directory, name.as_str(), ""));
            packed(&folders.chain([(last, file.as_str(), "")]).collect::<Vec<_>>())
        };
        assert!(unpack(nested(DEEPEST, EntryType::Regular).path(), BOUNDS).is_ok());
        for folder in [nested(DEEPEST, EntryType::Directory), nested(DEEPEST + 1, EntryType::Regular)] {
            assert!(message(unpack(folder.path(), BOUNDS).unwrap_err()).contains("nested more than"));
        }
    }

    /// The library obeys a `size` of pax, which its raw view does not return: bytes that count as a file's contents
    /// there are headers then.
    #[test]
    fn pax_size_records_are_refused() {
        for (record, words) in [("size=0", "a size that its header does not have"), ("path=other", "")] {
            let folder = tempfile::tempdir().unwrap();
            let mut archive = Builder::new(fs::File::create(folder.path().join(ARCHIVE)).unwrap());
            let (key, value) = record.split_once('=').unwrap();
            archive.append_pax_extensions([(key, value.as_bytes())]).unwrap();
            let mut hidden = Header::new_gnu();
            hidden.set_entry_type(EntryType::GNULongName);
            hidden.set_size(1 << 30);
            hidden.set_cksum();
            let mut header = Header::new_gnu();
            header.set_size(512);
            header.set_mode(0o644);
            archive.append_data(&mut header, "a", &hidden.as_bytes()[..]).unwrap();
            archive.finish().unwrap();
            match unpack(folder.path(), BOUNDS) {
                Ok(()) => assert!(words.is_empty() && folder.path().join("other").exists()),
                Err(stop) => {
                    let said = message(stop);
                    assert!(!words.is_empty() && said.contains(words), "{said}");
                }
            }
        }
    }

    #[test]
    fn impossible_file_names_are_refused() {
        for (record, name) in [("path", "n".repeat(256)), ("path", "a\0b".to_owned())] {
            let folder = tempfile::tempdir().unwrap();
            let mut archive = Builder::new(fs::File::create(folder.path().join(ARCHIVE)).unwrap());
            archive.append_pax_extensions([(record, name.as_bytes())]).unwrap();
            let mut header = Header::new_gnu();
            header.set_size(0);
            archive.append_data(&mut header, "a", io::empty()).unwrap();
            archive.finish().unwrap();
            let said = message(unpack(folder.path(), BOUNDS).unwrap_err());
            assert!(said.contains("a name that no file can have"), "{said}");
        }
    }
}
