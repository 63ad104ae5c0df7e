//! Removes the files of an object that is gone: only its own folders below the data folder, never the target of a
//! link.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use htc_api::ObjectName;
use htc_machine::Uid;

use super::layout::OutputLayout;
use super::layout::short;

impl OutputLayout {
    /// Removes the folder that an object's jobs were submitted from. `go_on` is asked between two files.
    pub fn discard_sandbox(&self, uid: &Uid, go_on: &dyn Fn() -> bool) -> Result<()> {
        plain(uid.as_str())?;
        if let Some(parent) = own_folder(&self.data, &["sandbox"])? {
            remove(&parent.join(uid.as_str()), go_on)?;
            sync(&parent);
        }
        Ok(())
    }

    /// Removes an object's output, the link `latest` if it points there, and the parent folders that are empty then.
    pub fn discard_output(&self, name: &ObjectName, uid: &Uid, go_on: &dyn Fn() -> bool) -> Result<()> {
        for part in [&name.namespace, &name.name, short(uid)] {
            plain(part)?;
        }
        let Some(named) = own_folder(&self.output_dir, &["htc_out", &name.namespace, &name.name])? else {
            return Ok(());
        };
        remove(&named.join(short(uid)), go_on)?;
        sync(&named);
        let _ = fs::remove_file(named.join(format!(".latest-{}", short(uid))));
        let latest = named.join("latest");
        // If another object of the same name has just made the link, it is made again before that object's output is
        // fetched.
        if fs::read_link(&latest).is_ok_and(|target| target == Path::new(short(uid))) {
            fs::remove_file(&latest)?;
        }
        // These fail while there is output of another object of this name, or of this namespace.
        if fs::remove_dir(&named).is_ok()
            && let Some(namespace) = named.parent()
        {
            let _ = fs::remove_dir(namespace);
        }
        Ok(())
    }
}

/// Syncs a folder after a removal: once the removal is in the ledger, it is not repeated. Not every file system can
/// sync a folder; errors are ignored.
fn sync(folder: &Path) {
    let _ = fs::File::open(folder).and_then(|folder| folder.sync_all());
}

/// Checks that a name from the ledger is one plain path component. Any other could lead to another folder.
fn plain(part: &str) -> Result<()> {
    let fits = !part.is_empty()
        && !part.starts_with('.')
        && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    if fits {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::InvalidInput, format!("`{part}` is not the name of a folder")))
    }
}

/// Returns a folder below the data folder. Each of its parts must be a folder and no link; only the first may be a
/// link, which an administrator has made. Returns `None` if it does not exist.
fn own_folder(data: &Path, parts: &[&str]) -> Result<Option<PathBuf>> {
    let mut path = data.to_owned();
    for (depth, part) in parts.iter().enumerate() {
        path.push(part);
        let found = if depth == 0 { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        match found {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let message = format!("{} is no folder, or a link to one", path.display());
                return Err(Error::new(ErrorKind::NotADirectory, message));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(path))
}

/// Removes what is at `path`. Links are removed, never followed; `remove_dir_all` ensures that against races, too.
fn remove(path: &Path, go_on: &dyn Fn() -> bool) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !go_on() {
            return Err(Error::new(ErrorKind::Interrupted, "the operator may not act now"));
        }
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use htc_machine::indices::Indices;

    use super::*;

    const FIRST: &str = "11111111-3b8c-4a51-9d1f-6f1a3a5f0001";
    const SECOND: &str = "22222222-3b8c-4a51-9d1f-6f1a3a5f0001";

    fn layout(data: &Path) -> OutputLayout {
        OutputLayout { data: data.to_owned(), output_dir: data.to_owned(), output_limit: None, keep_free: 0 }
    }

    fn name() -> ObjectName {
        ObjectName { namespace: "physics".to_owned(), name: "zero".to_owned() }
    }

    #[test]
    fn only_one_of_two_objects_with_one_name_is_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(folder.path());
        let (first, second) = (Uid::from(FIRST), Uid::from(SECOND));
        let out = |path: &str| folder.path().join("htc_out/physics").join(path);
        for uid in [&first, &second] {
            layout.make_output(&name(), uid, &Indices::first(2)).unwrap();
            let output = layout.job_output(&name(), uid, htc_machine::Index(0));
            fs::create_dir(&output).unwrap();
            fs::write(output.join("out"), "o").unwrap();
        }
        layout.discard_output(&name(), &first, &|| true).unwrap();
        assert!(!out("zero/11111111").exists() && out("zero/22222222/0/out").exists());
        assert!(out("zero/latest/0/out").exists(), "the link is the second's");
        layout.discard_output(&name(), &first, &|| true).unwrap();
        layout.discard_output(&name(), &second, &|| true).unwrap();
        assert!(!out("").exists(), "nothing is left, not even the link");
        assert!(folder.path().join("htc_out").exists());
    }

    #[test]
    fn files_outside_the_folder_are_not_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(&folder.path().join("data"));
        let uid = Uid::from(FIRST);
        let outside = folder.path().join("outside");
        fs::create_dir_all(outside.join("11111111")).unwrap();
        fs::write(outside.join("11111111/keep"), "").unwrap();
        fs::write(outside.join("keep"), "").unwrap();
        layout.make_output(&name(), &uid, &Indices::first(1)).unwrap();
        let output = layout.output(&name(), &uid);
        symlink(&outside, output.join(".incoming/0/link")).unwrap();
        symlink(&outside, output.join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, output.join(".incoming/0/pipe"), rustix::fs::Mode::RUSR).unwrap();
        layout.discard_output(&name(), &uid, &|| true).unwrap();
        assert!(!output.exists() && outside.join("keep").exists());
        // A link instead of a folder.
        fs::create_dir_all(folder.path().join("data/htc_out/physics")).unwrap();
        symlink(&outside, folder.path().join("data/htc_out/physics/zero")).unwrap();
        layout.discard_output(&name(), &uid, &|| true).unwrap_err();
        assert!(outside.join("11111111/keep").exists());
        fs::remove_file(folder.path().join("data/htc_out/physics/zero")).unwrap();
        layout.make_output(&name(), &Uid::from(SECOND), &Indices::first(1)).unwrap();
        symlink(outside.join("11111111"), &output).unwrap();
        layout.discard_output(&name(), &uid, &|| true).unwrap();
        assert!(!output.exists() && outside.join("11111111/keep").exists(), "the link goes, not where it leads");
        for bad in ["..", ".", "", "a/b", "../../outside"] {
            let uid = Uid::from(bad);
            layout.discard_sandbox(&uid, &|| true).unwrap_err();
            layout.discard_output(&name(), &uid, &|| true).unwrap_err();
            let name = ObjectName { namespace: bad.to_owned(), name: "zero".to_owned() };
            layout.discard_output(&name, &Uid::from(FIRST), &|| true).unwrap_err();
        }
        assert!(outside.join("keep").exists());
    }

    #[test]
    fn discarding_stops_when_not_permitted() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(folder.path());
        let uid = Uid::from(FIRST);
        layout.make_output(&name(), &uid, &Indices::first(3)).unwrap();
        layout.discard_output(&name(), &uid, &|| false).unwrap_err();
        assert_eq!(fs::read_dir(layout.incoming(&name(), &uid)).unwrap().count(), 3);
    }
}
