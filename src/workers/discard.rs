//! Removes the files of an object that is gone: its own folders, below the data folder, and nothing that a link leads to.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use super::Planner;
use super::plan::short;
use crate::api::ObjectName;
use crate::machine::Uid;

impl Planner {
    /// Removes the folder that an object's jobs were submitted from. Between two files it asks whether it may go on.
    pub fn discard_sandbox(&self, uid: &Uid, go_on: &dyn Fn() -> bool) -> Result<()> {
        plain(uid.as_str())?;
        if let Some(parent) = own_folder(&self.data, &["sandbox"])? {
            remove(&parent.join(uid.as_str()), go_on)?;
            sync(&parent);
        }
        Ok(())
    }

    /// Removes an object's output, the link `latest` if it leads there, and the folders above that are empty then.
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
        // A link that another object of this name has made in this moment is made again before its output is fetched.
        if fs::read_link(&latest).is_ok_and(|target| target == Path::new(short(uid))) {
            fs::remove_file(&latest)?;
        }
        // Not while there is output of another object of this name, or of this namespace.
        if fs::remove_dir(&named).is_ok()
            && let Some(namespace) = named.parent()
        {
            let _ = fs::remove_dir(namespace);
        }
        Ok(())
    }
}

/// Brings to the disk that something is no longer in this folder: once the ledger says so, nobody removes it again. Not every file
/// system can do that to a folder.
fn sync(folder: &Path) {
    let _ = fs::File::open(folder).and_then(|folder| folder.sync_all());
}

/// The names come from the ledger: one that is no name leads somewhere else.
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

/// A folder below the data folder, each part of which is a folder and no link; but the first may be one that an admin has
/// made. None if it is not there.
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

/// Removes what is at `path`. Links are removed, never followed; `remove_dir_all` sees to that against races, too.
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

    use super::*;
    use crate::condor::htcopts::{HtcOpts, Policy};
    use crate::machine::indices::Indices;

    const FIRST: &str = "11111111-3b8c-4a51-9d1f-6f1a3a5f0001";
    const SECOND: &str = "22222222-3b8c-4a51-9d1f-6f1a3a5f0001";

    fn planner(data: &Path) -> Planner {
        Planner {
            data: data.to_owned(),
            output_dir: data.to_owned(),
            images: crate::condor::payload::ImageMap::new(),
            callback: None,
            binds: Vec::new(),
            site_defaults: HtcOpts::default(),
            policy: Policy::default(),
            output_limit: None,
            keep_free: 0,
        }
    }

    fn name() -> ObjectName {
        ObjectName { namespace: "physics".to_owned(), name: "zero".to_owned() }
    }

    #[test]
    fn of_two_objects_of_one_name_only_one_goes() {
        let folder = tempfile::tempdir().unwrap();
        let planner = planner(folder.path());
        let (first, second) = (Uid::from(FIRST), Uid::from(SECOND));
        let out = |path: &str| folder.path().join("htc_out/physics").join(path);
        for uid in [&first, &second] {
            planner.make_output(&name(), uid, &Indices::first(2)).unwrap();
            let output = planner.job_output(&name(), uid, crate::machine::Index(0));
            fs::create_dir(&output).unwrap();
            fs::write(output.join("out"), "o").unwrap();
        }
        planner.discard_output(&name(), &first, &|| true).unwrap();
        assert!(!out("zero/11111111").exists() && out("zero/22222222/0/out").exists());
        assert!(out("zero/latest/0/out").exists(), "the link is the second's");
        planner.discard_output(&name(), &first, &|| true).unwrap();
        planner.discard_output(&name(), &second, &|| true).unwrap();
        assert!(!out("").exists(), "nothing is left, not even the link");
        assert!(folder.path().join("htc_out").exists());
    }

    #[test]
    fn nothing_outside_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let planner = planner(&folder.path().join("data"));
        let uid = Uid::from(FIRST);
        let outside = folder.path().join("outside");
        fs::create_dir_all(outside.join("11111111")).unwrap();
        fs::write(outside.join("11111111/keep"), "").unwrap();
        fs::write(outside.join("keep"), "").unwrap();
        planner.make_output(&name(), &uid, &Indices::first(1)).unwrap();
        let output = planner.output(&name(), &uid);
        symlink(&outside, output.join(".incoming/0/link")).unwrap();
        symlink(&outside, output.join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, output.join(".incoming/0/pipe"), rustix::fs::Mode::RUSR).unwrap();
        planner.discard_output(&name(), &uid, &|| true).unwrap();
        assert!(!output.exists() && outside.join("keep").exists());
        // A link where a folder should be.
        fs::create_dir_all(folder.path().join("data/htc_out/physics")).unwrap();
        symlink(&outside, folder.path().join("data/htc_out/physics/zero")).unwrap();
        planner.discard_output(&name(), &uid, &|| true).unwrap_err();
        assert!(outside.join("11111111/keep").exists());
        fs::remove_file(folder.path().join("data/htc_out/physics/zero")).unwrap();
        planner.make_output(&name(), &Uid::from(SECOND), &Indices::first(1)).unwrap();
        symlink(outside.join("11111111"), &output).unwrap();
        planner.discard_output(&name(), &uid, &|| true).unwrap();
        assert!(!output.exists() && outside.join("11111111/keep").exists(), "the link goes, not where it leads");
        for bad in ["..", ".", "", "a/b", "../../outside"] {
            let uid = Uid::from(bad);
            planner.discard_sandbox(&uid, &|| true).unwrap_err();
            planner.discard_output(&name(), &uid, &|| true).unwrap_err();
            let name = ObjectName { namespace: bad.to_owned(), name: "zero".to_owned() };
            planner.discard_output(&name, &Uid::from(FIRST), &|| true).unwrap_err();
        }
        assert!(outside.join("keep").exists());
    }

    #[test]
    fn it_stops_when_it_may_not_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let planner = planner(folder.path());
        let uid = Uid::from(FIRST);
        planner.make_output(&name(), &uid, &Indices::first(3)).unwrap();
        planner.discard_output(&name(), &uid, &|| false).unwrap_err();
        assert_eq!(fs::read_dir(planner.incoming(&name(), &uid)).unwrap().count(), 3);
    }
}
