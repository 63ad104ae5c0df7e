//! The output of one job on its way: fetched and unpacked beside its place, and moved there when it is whole. A call that ends anywhere
//! on that way can be repeated, and goes on.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::super::Failure;

/// A hidden folder with all that is on its way of one job.
pub(super) struct Parcel(PathBuf);

impl Parcel {
    /// Of the job of this name, whose output goes somewhere in `folder`.
    pub(super) fn of(job: &str, folder: &Path) -> Self {
        Self(folder.join(format!(".{job}.part")))
    }

    pub(super) fn make(&self) -> Result<(), Failure> {
        make(&self.0)
    }

    /// The archive, as far as it has come.
    pub(super) fn archive(&self) -> PathBuf {
        self.0.join("archive.tar")
    }

    /// Which archive it is.
    pub(super) fn tag(&self) -> PathBuf {
        self.0.join("etag")
    }

    fn unpacked(&self) -> PathBuf {
        self.0.join("unpacked")
    }

    /// Whether all was unpacked, and not all was moved to its place.
    pub(super) fn is_whole(&self) -> bool {
        self.unpacked().exists()
    }

    /// What was unpacked is of another archive.
    pub(super) fn forget_unpacked(&self) -> io::Result<()> {
        remove(&self.unpacked())
    }

    /// Unpacks the whole archive, unless an earlier call has.
    pub(super) fn unpack(&self) -> Result<(), Failure> {
        let (archive, whole, part) = (self.archive(), self.unpacked(), self.0.join("unpacking"));
        let doing = format!("unpack {}", archive.display());
        if whole.exists() {
            return Ok(());
        }
        remove(&part).map_err(|error| Failure::new(&doing, error))?;
        make(&part)?;
        unpack(&archive, &part)?;
        fs::rename(&part, &whole).map_err(|error| Failure::new(&doing, error))
    }

    /// Moves what is unpacked to its place; then nothing is left here.
    pub(super) fn deliver(&self, place: &Path, overwrite: bool) -> Result<(), Failure> {
        let (unpacked, doing) = (self.unpacked(), format!("move files to {}", place.display()));
        if !overwrite {
            let taken = taken(&unpacked, place).map_err(|error| Failure::new(&doing, error))?;
            if let Some(first) = taken.first() {
                let more = if taken.len() > 1 { format!(", and {} others", taken.len() - 1) } else { String::new() };
                let why = format!("{} exists{more}: --overwrite replaces what is there", first.display());
                return Err(Failure::new(&doing, why));
            }
        }
        movement(&unpacked, place).map_err(|error| Failure::new(&doing, error))?;
        self.discard()
    }

    /// Removes all that is here of it.
    pub(super) fn discard(&self) -> Result<(), Failure> {
        remove(&self.0).map_err(|error| Failure::new(&format!("remove {}", self.0.display()), error))
    }
}

pub(super) fn make(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| Failure::new(&format!("make {}", folder.display()), error))
}

/// Whether there is something at this place already, other than an empty folder.
pub(super) fn is_taken(place: &Path) -> bool {
    fs::symlink_metadata(place).is_ok() && !fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// What is in a folder: paths, and whether each is a folder itself.
fn entries(folder: &Path) -> io::Result<Vec<(fs::DirEntry, bool)>> {
    let kind = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        Ok((entry, is_folder))
    };
    fs::read_dir(folder)?.map(kind).collect()
}

/// A folder into which others may be moved. A link to one is none: it may lead anywhere.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// What in `place` would be replaced.
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

/// Moves what is in one folder into another one, and replaces files. What has been moved is gone from the first, so that it can be gone
/// on with.
fn movement(from: &Path, to: &Path) -> io::Result<()> {
    if !is_taken(to) {
        // Whole, or not at all.
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
fn unpack(archive: &Path, place: &Path) -> Result<(), Failure> {
    let doing = format!("unpack {}", archive.display());
    // Which file it is stands in the error, and why in what caused it.
    let failed = |error: io::Error| {
        let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        let words = causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"));
        Failure::new(&doing, words)
    };
    let mut unpacked = tar::Archive::new(File::open(archive).map_err(failed)?);
    unpacked.set_preserve_permissions(false);
    for entry in unpacked.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let path = entry.path().map_err(failed)?.into_owned();
        let kind = entry.header().entry_type();
        if !kind.is_file() && !kind.is_dir() {
            return Err(Failure::new(&doing, format!("{} is neither a file nor a folder", path.display())));
        }
        if !entry.unpack_in(place).map_err(failed)? {
            return Err(Failure::new(&doing, format!("{} leads out of the folder", path.display())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parcel whose archive has come, and the folder that it goes to.
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

    /// All that is there, hidden folders too.
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
    fn what_a_cut_call_has_half_unpacked_is_unpacked_anew() {
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
    fn what_a_cut_call_has_half_moved_is_moved_on() {
        let folder = tempfile::tempdir().unwrap();
        let parcel = fetched(folder.path());
        assert!(!parcel.is_whole());
        parcel.unpack().unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::rename(parcel.unpacked().join("d/number"), folder.path().join("d/number")).unwrap();
        assert!(parcel.is_whole(), "it is not taken for done");
        // Which is not unpacked again: the rest would be found to exist.
        parcel.unpack().unwrap();
        parcel.deliver(folder.path(), false).unwrap();
        assert_eq!(all(folder.path()), whole());
        assert!(!parcel.is_whole());
    }

    #[test]
    fn nothing_is_replaced_unasked_and_then_only_what_has_the_same_name() {
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
    fn a_link_is_no_folder_to_move_into() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(other.path(), folder.path().join("d")).unwrap();
        let parcel = fetched(folder.path());
        parcel.unpack().unwrap();
        assert!(parcel.deliver(folder.path(), false).unwrap_err().0.contains("/d exists"));
        assert!(parcel.deliver(folder.path(), true).is_err());
        assert_eq!(all(other.path()), []);
    }
}
