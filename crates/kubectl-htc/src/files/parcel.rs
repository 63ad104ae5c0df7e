//! Output of one job during its transfer: fetched and unpacked beside its final folder, and moved there when it is
//! complete. A call that was interrupted at any point can be repeated, and continues.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::super::CommandFailure;

/// Hidden folder with everything that is being fetched of one job.
pub(super) struct Parcel(PathBuf);

impl Parcel {
    /// Returns the parcel of the job of this name, whose output goes somewhere in `folder`.
    pub(super) fn of(job: &str, folder: &Path) -> Self {
        Self(folder.join(format!(".{job}.part")))
    }

    pub(super) fn make(&self) -> Result<(), CommandFailure> {
        make(&self.0)
    }

    /// Returns the path of the archive, as far as it has arrived.
    pub(super) fn archive(&self) -> PathBuf {
        self.0.join("archive.tar")
    }

    /// Returns the path of the file with the archive's tag.
    pub(super) fn tag(&self) -> PathBuf {
        self.0.join("etag")
    }

    fn unpacked(&self) -> PathBuf {
        self.0.join("unpacked")
    }

    /// Returns whether everything was unpacked, and not everything was moved to its final folder.
    pub(super) fn is_whole(&self) -> bool {
        self.unpacked().exists()
    }

    /// Removes unpacked files, which are of another archive.
    pub(super) fn forget_unpacked(&self) -> io::Result<()> {
        remove(&self.unpacked())
    }

    /// Unpacks the whole archive, unless an earlier call has.
    pub(super) fn unpack(&self) -> Result<(), CommandFailure> {
        let (archive, whole, part) = (self.archive(), self.unpacked(), self.0.join("unpacking"));
        let doing = format!("unpack {}", archive.display());
        if whole.exists() {
            return Ok(());
        }
        remove(&part).map_err(|error| CommandFailure::new(&doing, error))?;
        make(&part)?;
        unpack(&archive, &part)?;
        fs::rename(&part, &whole).map_err(|error| CommandFailure::new(&doing, error))
    }

    /// Moves the unpacked files to their final folder; then nothing is left here.
    pub(super) fn deliver(&self, place: &Path, overwrite: bool) -> Result<(), CommandFailure> {
        let (unpacked, doing) = (self.unpacked(), format!("move files to {}", place.display()));
        if !overwrite {
            let taken = taken(&unpacked, place).map_err(|error| CommandFailure::new(&doing, error))?;
            if let Some(first) = taken.first() {
                let more = if taken.len() > 1 { format!(", and {} others", taken.len() - 1) } else { String::new() };
                let why = format!("{} exists{more}: --overwrite replaces what is there", first.display());
                return Err(CommandFailure::new(&doing, why));
            }
        }
        movement(&unpacked, place).map_err(|error| CommandFailure::new(&doing, error))?;
        self.discard()
    }

    /// Removes the whole parcel.
    pub(super) fn discard(&self) -> Result<(), CommandFailure> {
        remove(&self.0).map_err(|error| CommandFailure::new(&format!("remove {}", self.0.display()), error))
    }
}

pub(super) fn make(folder: &Path) -> Result<(), CommandFailure> {
    fs::create_dir_all(folder).map_err(|error| CommandFailure::new(&format!("make {}", folder.display()), error))
}

/// Returns whether something exists at this place already, other than an empty folder.
pub(super) fn is_taken(place: &Path) -> bool {
    fs::symlink_metadata(place).is_ok() && !fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the entries of a folder, and whether each is a folder itself.
fn entries(folder: &Path) -> io::Result<Vec<(fs::DirEntry, bool)>> {
    let kind = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        Ok((entry, is_folder))
    };
    fs::read_dir(folder)?.map(kind).collect()
}

/// Returns whether files may be moved into this folder. A link to a folder does not count: it may lead anywhere.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Returns what would be replaced in `place`.
fn taken(unpacked: &Path, place: &Path) -> io::Result<Vec<PathBuf>> {
    let mut taken = Vec::new();
    for (entry, folder) in entries(unpacked)? {
        let to = place.join(entry.file_name());
        if folder && is_folder(&to) {
            taken.extend(self::taken(&entry.path(), &to)?);
        } else if fs::symlink_metadata(&to).is_ok() {
            taken.push(to);
        }
    }
    Ok(taken)
}

/// Moves the contents of one folder into another one, and replaces files. Moved files are gone from the first, so
/// that the move can be continued.
fn movement(from: &Path, to: &Path) -> io::Result<()> {
    if !is_taken(to) {
        // The whole folder is moved at once, or not at all.
        match fs::remove_dir(to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => return fs::rename(from, to),
        }
    }
    for (entry, folder) in entries(from)? {
        let place = to.join(entry.file_name());
        if folder && is_folder(&place) {
            movement(&entry.path(), &place)?;
        } else {
            let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", place.display()));
            fs::rename(entry.path(), &place).map_err(failed)?;
        }
    }
    fs::remove_dir(from)
}

/// Unpacks folders and regular files, and nothing outside of `place`.
fn unpack(archive: &Path, place: &Path) -> Result<(), CommandFailure> {
    let doing = format!("unpack {}", archive.display());
    // The error names the file, and its causes the reason.
    let failed = |error: io::Error| {
        let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        let words = causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"));
        CommandFailure::new(&doing, words)
    };
    let mut unpacked = tar::Archive::new(File::open(archive).map_err(failed)?);
    unpacked.set_preserve_permissions(false);
    for entry in unpacked.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let path = entry.path().map_err(failed)?.into_owned();
        let kind = entry.header().entry_type();
        if !kind.is_file() && !kind.is_dir() {
            return Err(CommandFailure::new(&doing, format!("{} is neither a file nor a folder", path.display())));
        }
        if !entry.unpack_in(place).map_err(failed)? {
            return Err(CommandFailure::new(&doing, format!("{} leads out of the folder", path.display())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a parcel whose archive has arrived. `folder`: where its files go.
    fn fetched(folder: &Path) -> Parcel {
        let parcel = Parcel::of("sums-3", folder);
        parcel.make().unwrap();
        let mut archive = tar::Builder::new(File::create(parcel.archive()).unwrap());
        for (path, text) in [("out", "1"), ("d/number", "22"), ("d/deep/er", "333")] {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(text.len() as u64);
            archive.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        archive.finish().unwrap();
        parcel
    }

    /// Returns all files, hidden folders too.
    fn all(folder: &Path) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (entry, is_folder) in entries(folder).unwrap() {
            let name = entry.file_name().into_string().unwrap();
            if is_folder {
                found.extend(all(&entry.path()).into_iter().map(|(path, text)| (format!("{name}/{path}"), text)));
            } else {
                found.push((name, fs::read_to_string(entry.path()).unwrap()));
            }
        }
        found.sort();
        found
    }

    fn whole() -> Vec<(String, String)> {
        [("d/deep/er", "333"), ("d/number", "22"), ("out", "1")].map(|(a, b)| (a.to_owned(), b.to_owned())).into()
    }

    #[test]
    fn interrupted_unpacking_starts_over() {
        let folder = tempfile::tempdir().unwrap();
        let parcel = fetched(folder.path());
        let cut = parcel.0.join("unpacking/d");
        fs::create_dir_all(&cut).unwrap();
        fs::write(cut.join("number"), "2").unwrap();
        fs::write(cut.join("of another archive"), "?").unwrap();
        let place = folder.path().join("3");
        assert!(!is_taken(&place), "nothing of it is in its place before it is whole");
        parcel.unpack().unwrap();
        parcel.deliver(&place, false).unwrap();
        assert_eq!(all(&place), whole());
        assert_eq!(all(folder.path()).len(), 3, "nothing else is left");
    }

    #[test]
    fn interrupted_move_is_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let parcel = fetched(folder.path());
        assert!(!parcel.is_whole());
        parcel.unpack().unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::rename(parcel.unpacked().join("d/number"), folder.path().join("d/number")).unwrap();
        assert!(parcel.is_whole(), "it is not taken for done");
        // It is not unpacked again: the other files would exist already.
        parcel.unpack().unwrap();
        parcel.deliver(folder.path(), false).unwrap();
        assert_eq!(all(folder.path()), whole());
        assert!(!parcel.is_whole());
    }

    #[test]
    fn existing_files_are_replaced_only_with_overwrite() {
        let folder = tempfile::tempdir().unwrap();
        let mine = folder.path().join("d/mine");
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::write(&mine, "mine").unwrap();
        fs::write(folder.path().join("d/number"), "mine").unwrap();
        let before = all(folder.path());
        let parcel = fetched(folder.path());
        parcel.unpack().unwrap();
        let error = parcel.deliver(folder.path(), false).unwrap_err().0;
        assert!(error.contains("d/number exists: --overwrite"), "{error}");
        let unhidden = |files: Vec<(String, String)>| -> Vec<(String, String)> {
            files.into_iter().filter(|(path, _)| !path.starts_with('.')).collect()
        };
        assert_eq!(unhidden(all(folder.path())), before, "all is as it was");
        parcel.deliver(folder.path(), true).unwrap();
        assert_eq!(fs::read_to_string(mine).unwrap(), "mine");
        assert_eq!(all(folder.path()).iter().filter(|file| whole().contains(file)).count(), 3);
    }

    #[test]
    fn symbolic_link_is_not_a_destination_folder() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(other.path(), folder.path().join("d")).unwrap();
        let parcel = fetched(folder.path());
        parcel.unpack().unwrap();
        assert!(parcel.deliver(folder.path(), false).unwrap_err().0.contains("/d exists"));
        assert!(parcel.deliver(folder.path(), true).is_err());
        assert_eq!(all(other.path()), []);
    }
}
