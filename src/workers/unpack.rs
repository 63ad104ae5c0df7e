//! What comes back packed: folders, files whose names HTCondor cannot keep, and files that are too many for it. `job.sh` packs
//! them on the node, where a payload's other processes may still write; so nothing in an archive is believed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Seek as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::fstatvfs;
use tar::{Archive, Entry, EntryType};

use super::incoming::{DEEPEST, MOST_FILES, Stop};
use super::room::{Amount, Volume};

/// File name of the archive, as in `job.sh`.
pub(super) const ARCHIVE: &str = "htc_output.tar";
/// What is the job's own.
const TAKEN: [&str; 3] = ["out", "err", ARCHIVE];
/// Most bytes of an extension (a long name, pax records), which is held in memory.
const LONGEST_EXTENSION: u64 = 64 * 1024;

/// An archive is made of blocks of so many bytes, and ends with two that are empty.
const BLOCK: u64 = 512;

/// What may be unpacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most bytes.
    pub(super) bytes: Option<u64>,
    /// Bytes of the volume that are to stay free.
    pub(super) keep_free: u64,
}

/// Unpacks the archive in `folder`, if there is one, beside it, and removes it. All of it is looked at before anything is
/// written: files and folders only, none of which is there already.
pub(super) fn unpack(folder: &Path, bounds: Bounds) -> Result<(), Stop> {
    let path = folder.join(ARCHIVE);
    let mut file = match fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Stop::Io(error)),
    };
    check_extensions(&mut file).map_err(broken)??;
    file.rewind().map_err(Stop::Io)?;
    let needs = check(&mut file, bounds).map_err(broken)??;
    if !Volume::of(&fstatvfs(&file)?, bounds.keep_free).has_room_for(needs) {
        let (mib, files) = (needs.bytes.div_ceil(1 << 20), needs.inodes);
        let words =
            format!("there is no room on the volume for the {mib} MiB and {files} files in it beside --keep-free");
        return Err(Stop::NoSpace(words));
    }
    file.rewind().map_err(Stop::Io)?;
    for entry in Archive::new(file).entries().map_err(Stop::Io)? {
        write(folder, entry.map_err(Stop::Io)?)?;
    }
    fs::remove_file(&path).map_err(Stop::Io)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn broken(error: io::Error) -> Stop {
    Stop::Refused(format!("what the job has packed cannot be read: {error}"))
}

fn refused(what: &str, path: &Path) -> Stop {
    Stop::Refused(format!("it has {what}: {:?}", path.to_string_lossy()))
}

/// Before anything reads them: how large extensions are; and that it is whole, which the library does not ask. `Err` is an archive
/// that cannot be read.
fn check_extensions(file: &mut fs::File) -> io::Result<Result<(), Stop>> {
    let length = file.metadata()?.len();
    let mut end = 0;
    let mut archive = Archive::new(file);
    for entry in archive.entries_with_seek()?.raw(true) {
        let entry = entry?;
        let kind = entry.header().entry_type();
        let extends = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        if extends && entry.header().entry_size()? > LONGEST_EXTENSION {
            return Ok(Err(Stop::Refused("a file packed by the job has a name that is too long".to_owned())));
        }
        end = entry.raw_file_position().saturating_add(entry.header().entry_size()?.next_multiple_of(BLOCK));
    }
    if length < end.saturating_add(2 * BLOCK) {
        return Err(io::Error::other("it is not whole"));
    }
    Ok(Ok(()))
}

/// What is in it, and how much that is.
fn check(file: &mut fs::File, bounds: Bounds) -> io::Result<Result<Amount, Stop>> {
    let mut needs = Amount::default();
    let mut files: HashMap<PathBuf, u64> = HashMap::new();
    let mut archive = Archive::new(file);
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let Some(path) = place(&entry)? else { continue };
        let first = path.iter().next();
        if TAKEN.iter().any(|taken| first == Some(OsStr::new(taken))) {
            return Ok(Err(refused("a name that is the job's own", &path)));
        }
        let depth = path.iter().count();
        if depth > DEEPEST {
            return Ok(Err(refused(&format!("folders nested more than {DEEPEST} deep"), &path)));
        }
        let bytes = match entry.header().entry_type() {
            EntryType::Directory => 0,
            EntryType::Regular => entry.size(),
            EntryType::Link => match linked(&entry)?.and_then(|first| files.get(&first)) {
                Some(bytes) => *bytes,
                None => return Ok(Err(refused("a name of a file that is not in it", &path))),
            },
            _ => return Ok(Err(refused("something that is no file and no folder", &path))),
        };
        needs = needs.plus(Amount { bytes, inodes: 1 });
        if entry.header().entry_type() != EntryType::Directory {
            files.insert(path, bytes);
        }
        if needs.inodes > MOST_FILES {
            return Ok(Err(Stop::Refused(format!("it has more than {MOST_FILES} files"))));
        }
        if bounds.bytes.is_some_and(|most| needs.bytes > most) {
            return Ok(Err(Stop::Refused("it has more bytes than --output-limit; let the job leave less".to_owned())));
        }
    }
    Ok(Ok(needs))
}

/// Where it goes, below the folder; none for the folder itself.
fn place<R: Read>(entry: &Entry<'_, R>) -> io::Result<Option<PathBuf>> {
    below(&entry.path()?)
}

/// The first of the names of a file, of which this entry is another.
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

fn write<R: Read>(folder: &Path, mut entry: Entry<'_, R>) -> Result<(), Stop> {
    let Some(place) = place(&entry).map_err(broken)? else { return Ok(()) };
    let path = folder.join(&place);
    if entry.header().entry_type() == EntryType::Directory {
        return fs::create_dir_all(&path).map_err(Stop::Io);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Stop::Io)?;
    }
    let mode = entry.header().mode().unwrap_or(0o644) & 0o777 | 0o600;
    // Links are none in there: only this writes into the folder, and it makes none.
    let mut file = match fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(refused("a file twice", &place));
        }
        Err(error) => return Err(Stop::Io(error)),
    };
    match linked(&entry).map_err(broken)?.filter(|_| entry.header().entry_type() == EntryType::Link) {
        // It has been written before: the first of its names comes first.
        Some(first) => io::copy(&mut fs::File::open(folder.join(first)).map_err(Stop::Io)?, &mut file),
        None => io::copy(&mut entry, &mut file),
    }
    .map(drop)
    .map_err(Stop::Io)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tar::{Builder, Header};

    use super::*;

    const BOUNDS: Bounds = Bounds { bytes: Some(1 << 20), keep_free: 0 };

    /// Entries by their raw names, which the library's own ways refuse.
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

    fn message(stop: Stop) -> String {
        match stop {
            Stop::Refused(message) | Stop::NoSpace(message) => message,
            Stop::Io(error) => panic!("{error}"),
        }
    }

    #[test]
    fn files_and_folders_come_out_and_the_archive_goes() {
        let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
        let folder = packed(&[
            (EntryType::Directory, "./", ""),
            (EntryType::Directory, "./empty/", ""),
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

        // A long name is an entry of its own before the one that it is of.
        let mut archive = Builder::new(fs::File::create(folder.path().join(ARCHIVE)).unwrap());
        let mut header = Header::new_gnu();
        header.set_size(1);
        archive.append_data(&mut header, &long, &b"x"[..]).unwrap();
        archive.finish().unwrap();
        unpack(folder.path(), BOUNDS).unwrap();
        assert_eq!(read(&long), "x");
    }

    #[test]
    fn nothing_is_written_of_what_is_refused() {
        let deep = "d/".repeat(DEEPEST + 1);
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
            (EntryType::Directory, &deep, "", "nested more than"),
        ] {
            let folder = packed(&[(EntryType::Regular, "first", "1"), (kind, name, contents)]);
            let said = message(unpack(folder.path(), BOUNDS).unwrap_err());
            assert!(said.contains(words), "{name}: {said}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{name}: nothing beside the archive");
        }
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let large = "x".repeat(700_000);
        let folder = packed(&[(EntryType::Regular, "a", &large), (EntryType::Regular, "b", &large)]);
        assert!(message(unpack(folder.path(), BOUNDS).unwrap_err()).contains("more bytes than --output-limit"));
        let twin = packed(&[(EntryType::Regular, "a", &large), (EntryType::Link, "b", "a")]);
        assert!(message(unpack(twin.path(), BOUNDS).unwrap_err()).contains("more bytes than --output-limit"));
        let full = Bounds { bytes: None, keep_free: u64::MAX };
        assert!(message(unpack(folder.path(), full).unwrap_err()).contains("for the 2 MiB and 2 files in it"));
        assert!(unpack(folder.path(), Bounds { bytes: None, keep_free: 0 }).is_ok());

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
    fn an_archive_that_is_none_or_was_cut_short_is_refused() {
        for cut in [1, 511, 700, 1024, 1536, 2048, 2560, 3583] {
            let folder = packed(&[(EntryType::Regular, "a", &"x".repeat(600)), (EntryType::Regular, "b", "y")]);
            let path = folder.path().join(ARCHIVE);
            let whole = fs::read(&path).unwrap();
            assert_eq!(whole.len(), 3584);
            fs::write(&path, &whole[..cut]).unwrap();
            let stop = unpack(folder.path(), BOUNDS);
            assert!(matches!(stop, Err(Stop::Refused(_))), "{cut}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{cut}: nothing beside the archive");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(ARCHIVE), vec![0xff; 4096]).unwrap();
        assert!(message(unpack(folder.path(), BOUNDS).unwrap_err()).contains("cannot be read"));
        let twice = packed(&[(EntryType::Regular, "a", "1"), (EntryType::Regular, "a", "2")]);
        assert!(message(unpack(twice.path(), BOUNDS).unwrap_err()).contains("a file twice"));
    }
}
