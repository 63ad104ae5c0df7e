//! The cache of artefacts outside the checkout: each is made once, complete or not there at all.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions, TryLockError};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, io};

use crate::account::Account;
use crate::error::{Doing, Error, Result};
use crate::progress;

/// The file inside an artefact that lists what belongs to it; written last.
const MANIFEST: &str = ".complete";

/// How to make one artefact.
pub trait Recipe {
    /// Folder name: what it is, its version, architecture and, where something else decides the result, [`digest`] of that.
    fn key(&self) -> String;
    /// The progress line: what it waits for and how long that usually takes.
    fn waits_for(&self) -> String;
    /// Makes everything below `staging`, which becomes `home` afterwards: absolute paths written into files name `home`.
    fn make(&self, staging: &Path, home: &Path) -> Result<()>;
    /// Tries the result once, in its place.
    fn check(&self, _home: &Path) -> Result<()> {
        Ok(())
    }
}

/// A folder of artefacts. Any number of processes may use it at once.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `HTC_TESTBED_CACHE`, else the system's cache folder for root and the user's for anyone else.
    pub fn locate() -> Result<Self> {
        let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = if let Some(root) = set("HTC_TESTBED_CACHE") {
            root
        } else if Account::unprivileged().drops {
            PathBuf::from("/var/cache/htc-operator")
        } else if let Some(base) = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache"))) {
            base.join("htc-operator")
        } else {
            return Err(Error::Machine {
                problem: "no place for the test bed's cache: HOME is not set".to_owned(),
                remedy: "set HTC_TESTBED_CACHE to a folder".to_owned(),
            });
        };
        Ok(Self::at(&std::path::absolute(&root).doing("resolving", &root)?))
    }

    /// The cache in this folder, which need not exist yet.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Its folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The artefact's folder, which need not be there.
    #[must_use]
    pub fn place(&self, recipe: &dyn Recipe) -> PathBuf {
        self.root.join(recipe.key())
    }

    /// The artefact's folder when it is there and whole.
    #[must_use]
    pub fn find(&self, recipe: &dyn Recipe) -> Option<PathBuf> {
        let home = self.place(recipe);
        whole(&home).then_some(home)
    }

    /// Like [`Cache::find`], but with an error that says how to make it.
    pub fn require(&self, recipe: &dyn Recipe) -> Result<PathBuf> {
        self.find(recipe).ok_or_else(|| Error::NotSetUp { what: recipe.key(), cache: self.root.clone() })
    }

    /// The artefact's folder; makes it when it is not there, is broken, or `anew` is set.
    pub fn ensure(&self, recipe: &dyn Recipe, anew: bool) -> Result<PathBuf> {
        if !anew && let Some(home) = self.find(recipe) {
            return Ok(home);
        }
        fs::create_dir_all(&self.root).doing("making the cache", &self.root)?;
        open_to_all(&self.root)?;
        Account::unprivileged().must_reach(&self.root.join("x"))?;
        let key = recipe.key();
        let _lock = self.lock(&key)?;
        // Another process may have made it while this one waited for the lock.
        if !anew && let Some(home) = self.find(recipe) {
            return Ok(home);
        }
        progress::step(&recipe.waits_for(), || self.make(recipe, &key))
    }

    fn make(&self, recipe: &dyn Recipe, key: &str) -> Result<PathBuf> {
        let staging = self.root.join(format!(".{key}.partial"));
        let old = self.root.join(format!(".{key}.old"));
        let home = self.root.join(key);
        remove(&staging)?;
        remove(&old)?;
        fs::create_dir(&staging).doing("making the folder", &staging)?;
        recipe.make(&staging, &home)?;
        let mut manifest = String::new();
        seal(&staging, &staging, &mut manifest)?;
        let list = staging.join(MANIFEST);
        fs::write(&list, manifest).doing("writing", &list)?;
        open_to_all(&list)?;
        if fs::symlink_metadata(&home).is_ok() {
            fs::rename(&home, &old).doing("moving away", &home)?;
        }
        fs::rename(&staging, &home).doing("moving into place", &home)?;
        remove(&old)?;
        recipe.check(&home).inspect_err(|_| {
            let _ = fs::remove_file(home.join(MANIFEST));
        })?;
        Ok(home)
    }

    fn lock(&self, key: &str) -> Result<File> {
        let path = self.root.join(format!(".{key}.lock"));
        let file = File::options().create(true).append(true).open(&path).doing("opening the lock", &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress::say(&format!("another process is making {key}: waiting for it"));
                file.lock().doing("locking", &path)?;
            }
            Err(TryLockError::Error(e)) => return Err(e).doing("locking", &path),
        }
        Ok(file)
    }
}

/// A short fingerprint of everything that decides what a recipe makes (FNV-1a, the same on every machine).
#[must_use]
pub fn digest(parts: &[&str]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|part| part.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{:08x}", hash >> 32)
}

/// True when every listed file is there with its size.
fn whole(home: &Path) -> bool {
    let Ok(manifest) = fs::read_to_string(home.join(MANIFEST)) else {
        return false;
    };
    manifest.lines().all(|line| {
        line.split_once(' ').is_some_and(|(size, name)| {
            fs::symlink_metadata(home.join(name)).is_ok_and(|m| m.is_symlink() || size == m.len().to_string())
        })
    })
}

/// Lists the files below `dir` with their sizes and makes everything readable by every account.
fn seal(top: &Path, dir: &Path, manifest: &mut String) -> Result<()> {
    open_to_all(dir)?;
    for entry in fs::read_dir(dir).doing("listing", dir)? {
        let path = entry.doing("listing", dir)?.path();
        let meta = fs::symlink_metadata(&path).doing("looking at", &path)?;
        if meta.is_dir() {
            seal(top, &path, manifest)?;
            continue;
        }
        if !meta.is_symlink() {
            open_to_all(&path)?;
        }
        let name = path.strip_prefix(top).unwrap_or(&path);
        let _ = writeln!(manifest, "{} {}", meta.len(), name.display());
    }
    Ok(())
}

/// `chmod a+rX`, leaving the rest as it is.
fn open_to_all(path: &Path) -> Result<()> {
    let mode = fs::metadata(path).doing("looking at", path)?.permissions().mode();
    let wanted = if path.is_dir() || mode & 0o100 != 0 { mode | 0o555 } else { mode | 0o444 };
    if wanted != mode {
        fs::set_permissions(path, Permissions::from_mode(wanted)).doing("setting the mode of", path)?;
    }
    Ok(())
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).doing("removing", path),
        _ => Ok(()),
    }
}
