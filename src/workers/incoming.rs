//! Where output arrives, and how it goes from there to its place.
//!
//! A job's ad says where `condor_transfer_data` writes, and who owns the job may change that ad. So the jobs are submitted with
//! a folder of their own in `.incoming`, beside the place of their output; it is empty before each call, and what has come is
//! looked at before anything is moved.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat, syncfs};

use super::Planner;
use super::bounds::{Bounds, DEEPEST, MOST_FILES, Stop, TOO_LARGE};
use super::plan::make_folder;
use super::room::Amount;
use super::unpack::{OMITTED, unpack};
use crate::api::text::{WORDS, harmless};
use crate::api::{ObjectName, Reason};
use crate::condor::fetch::INCOMING;
use crate::machine::facts::Failure;
use crate::machine::{Index, Indices, Uid};

/// HTCondor's own slack when it counts the bytes of a job's output.
const SLACK: u64 = 64 * 1024;
const MIB: u64 = 1 << 20;
/// Most bytes of it that are read.
const OMITTED_BYTES: u64 = 4096;

/// What came of the output of one object's jobs.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// The jobs whose output is in its place now.
    pub(super) fetched: Indices,
    /// How many bytes each of them has there.
    pub(super) sizes: BTreeMap<Index, u64>,
    /// What of the output of each of the fetched jobs did not come back, in the words of `job.sh`.
    pub(super) omitted: BTreeMap<Index, String>,
    /// Those whose output is not what a job may leave, and why: it is removed.
    pub(super) refused: Vec<(Index, String)>,
    /// Why that of another is not, although it came.
    pub(super) failure: Option<Failure>,
    /// How much has come.
    pub(super) size: Amount,
}

/// What a job wrote to its `out` or `err`, if that is here. Jobs of the Go operator have its cluster and proc in the name.
pub(crate) fn written(folder: &Path, what: &str, index: Index) -> Option<PathBuf> {
    let own = folder.join(what);
    if own.exists() {
        return Some(own);
    }
    let inherited = |name: &str| {
        let cluster =
            name.strip_prefix(what).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(&format!(".{index}")));
        cluster.is_some_and(|cluster| cluster.parse::<u64>().is_ok())
    };
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.find(|entry| inherited(&entry.file_name().to_string_lossy())).map(|entry| entry.path())
}

impl Planner {
    /// Folder that the output of an object's jobs arrives in.
    #[must_use]
    pub fn incoming(&self, name: &ObjectName, uid: &Uid) -> PathBuf {
        self.output(name, uid).join(INCOMING)
    }

    /// Folder that the output of one job arrives in: its `Iwd` when it is submitted.
    #[must_use]
    pub fn job_incoming(&self, name: &ObjectName, uid: &Uid, index: Index) -> PathBuf {
        self.incoming(name, uid).join(index.to_string())
    }

    /// Most bytes of the output of one job.
    #[must_use]
    pub fn largest_output(&self) -> Option<u64> {
        self.output_limit.map(|limit| limit.saturating_mul(MIB).saturating_add(SLACK))
    }

    /// Empties the folders that the output of these jobs is to arrive in, and tries the place that it is to go to.
    pub(super) fn empty_incoming(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> Result<(), String> {
        self.make_output(name, uid, indices)?;
        for index in indices.iter() {
            let folder = self.job_incoming(name, uid, index);
            let empty = fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_none());
            if !empty {
                let made = remove(&folder).and_then(|()| make_folder(&folder));
                made.map_err(|error| cannot_write(&folder, &error))?;
            }
        }
        let probe = self.output(name, uid).join(".htc_probe");
        // New, so that nothing is opened that a link of this name leads to.
        let _ = fs::remove_file(&probe);
        let tried = fs::File::create_new(&probe).and_then(|_| fs::remove_file(&probe));
        tried.map_err(|error| cannot_write(&self.output(name, uid), &error))
    }

    /// Removes what a transfer that failed has left of these jobs, as far as that can be done now.
    pub(super) fn clear_incoming(&self, name: &ObjectName, uid: &Uid, indices: &Indices) {
        for index in indices.iter() {
            let _ = remove(&self.job_incoming(name, uid, index));
        }
    }

    /// Brings what is in its place to the disk, with all else on that volume: HTCondor may forget it once the ledger says that it
    /// is here.
    pub(super) fn sync_output(&self) -> io::Result<()> {
        let folder = fs::File::open(self.output_dir.join("htc_out"))?;
        Ok(syncfs(folder)?)
    }

    /// Looks at what has arrived of these jobs, and moves it to its place. What may not go there is removed.
    ///
    /// Only for use after a call that went well: what a killed one has left is not whole.
    pub(super) fn take_in(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> Arrived {
        let (mut fetched, mut came) = (Vec::new(), Arrived::default());
        for index in indices.iter() {
            let (folder, place) = (self.job_incoming(name, uid, index), self.job_output(name, uid, index));
            if written(&folder, "out", index).is_some() {
                match self.take_in_job(&folder, &place) {
                    Ok((more, omitted)) => {
                        fetched.push(index);
                        came.omitted.extend(omitted.map(|words| (index, words)));
                        came.sizes.insert(index, more.bytes);
                        came.size = came.size.plus(more);
                    }
                    Err(stop) => came.without(&folder, index, stop),
                }
            } else if written(&place, "out", index).is_some() {
                // It was moved by a call whose end is not in the ledger, or the job's folder is its place: a version before this
                // one submitted it, or who owns it says so.
                match self.look(&place) {
                    Ok(there) => {
                        fetched.push(index);
                        came.sizes.insert(index, there.bytes);
                    }
                    Err(stop) => came.without(&place, index, stop),
                }
                let _ = fs::remove_dir(&folder);
            }
        }
        // Once nothing is expected any more, nothing of it shows beside the output.
        let _ = fs::remove_dir(self.incoming(name, uid));
        Arrived { fetched: fetched.into_iter().collect(), ..came }
    }

    /// What a transfer that failed has brought of these jobs, as far as that is too much already.
    pub(super) fn too_much(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> Arrived {
        let mut arrived = Arrived::default();
        for index in indices.iter() {
            let folder = self.job_incoming(name, uid, index);
            if let Err(stop @ Stop::Refused(_)) = self.look(&folder) {
                arrived.without(&folder, index, stop);
            }
        }
        if let [(index, why), ..] = &arrived.refused[..] {
            let message =
                format!("the transfer ended at the output of job {index}: {why}. The other output is fetched again");
            arrived.failure = Some(Failure::new(Reason::OutputRefused, message));
        }
        arrived
    }

    /// Moves one job's output to its place. Returns its size, and what of it did not come back.
    fn take_in_job(&self, folder: &Path, place: &Path) -> Result<(Amount, Option<String>), Stop> {
        let bounds = Bounds { bytes: self.largest_output(), keep_free: self.keep_free };
        self.look(folder)?;
        let omitted = take_omitted(folder).map_err(Stop::Io)?;
        unpack(folder, bounds)?;
        let size = self.look(folder)?;
        move_in(folder, place).map_err(Stop::Io)?;
        Ok((size, omitted))
    }

    /// How much is in a folder.
    fn look(&self, folder: &Path) -> Result<Amount, Stop> {
        let mut count = Amount::default();
        count.add(&open_folder(CWD, folder)?, 0)?;
        if self.largest_output().is_some_and(|most| count.bytes > most) {
            return Err(Stop::Refused(TOO_LARGE.to_owned()));
        }
        Ok(count)
    }
}

/// Reads what `job.sh` says did not come back, one sentence a line, and removes the file. [`Planner::look`] has seen that no link is
/// in the folder.
fn take_omitted(folder: &Path) -> io::Result<Option<String>> {
    let path = folder.join(OMITTED);
    let mut text = Vec::new();
    match fs::File::open(&path) {
        Ok(file) => file.take(OMITTED_BYTES).read_to_end(&mut text)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    fs::remove_file(&path)?;
    let text = String::from_utf8_lossy(&text);
    let sentences: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    Ok(Some(harmless(&sentences.join("; "), WORDS)).filter(|words| !words.is_empty()))
}

impl Amount {
    /// Adds what is in a folder, and follows no link.
    fn add(&mut self, folder: &OwnedFd, depth: usize) -> Result<(), Stop> {
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.inodes += 1;
            if self.inodes > MOST_FILES {
                let words = format!("it has more than {MOST_FILES} files; let the job put them into an archive");
                return Err(Stop::Refused(words));
            }
            match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile if found.st_mode & 0o6000 != 0 => {
                    let words =
                        format!("{:?} has a setuid or setgid bit; let the job clear it", name.to_string_lossy());
                    return Err(Stop::Refused(words));
                }
                FileType::RegularFile => {
                    self.bytes = self.bytes.saturating_add(u64::try_from(found.st_size).unwrap_or_default());
                }
                FileType::Directory if depth < DEEPEST => self.add(&open_folder(folder, name)?, depth + 1)?,
                FileType::Directory => {
                    let words = format!(
                        "its folders are nested more than {DEEPEST} deep; let the job put them into an archive"
                    );
                    return Err(Stop::Refused(words));
                }
                _ => {
                    let words = format!("{:?} is not a regular file; let the job remove it", name.to_string_lossy());
                    return Err(Stop::Refused(words));
                }
            }
        }
        Ok(())
    }
}

fn open_folder(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Moves a whole folder where nothing is yet. What an earlier call has brought is written over, file by file.
fn move_in(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
            merge(from, to)
        }
        result => result,
    }
}

fn merge(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            move_in(&entry.path(), &place)?;
        } else {
            fs::rename(entry.path(), &place)?;
        }
    }
    fs::remove_dir(from)
}

impl Arrived {
    /// Removes what is not kept, and notes why. What cannot be removed now is removed before the next call.
    fn without(&mut self, folder: &Path, index: Index, stop: Stop) {
        match stop {
            Stop::Io(error) => self.failure = Some(Failure::new(Reason::FetchFailed, cannot_write(folder, &error))),
            Stop::NoSpace(why) => {
                let _ = remove(folder);
                let message = format!("the output of job {index} was fetched and is not kept: {why}");
                self.failure = Some(Failure::new(Reason::NoSpace, message));
            }
            Stop::Refused(why) => {
                let _ = remove(folder);
                self.refused.push((index, why));
            }
        }
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn cannot_write(folder: &Path, error: &io::Error) -> String {
    format!("cannot write into the output folder {}: {error}; check the operator's data volume", folder.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::condor::htcopts::{HtcOpts, Policy};

    const UID: &str = "11111111-3b8c-4a51-9d1f-6f1a3a5f0001";

    struct Site {
        folder: tempfile::TempDir,
        planner: Planner,
    }

    impl Site {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let planner = Planner {
                data: folder.path().join("data"),
                output_dir: folder.path().join("data"),
                images: crate::condor::payload::ImageMap::new(),
                callback: None,
                binds: Vec::new(),
                site_defaults: HtcOpts::default(),
                policy: Policy::default(),
                output_limit: Some(1),
                keep_free: 0,
            };
            let site = Self { folder, planner };
            site.empty();
            site
        }

        fn empty(&self) {
            self.planner.empty_incoming(&name(), &Uid::from(UID), &Indices::first(2)).unwrap();
        }

        fn incoming(&self, path: &str) -> PathBuf {
            self.planner.incoming(&name(), &Uid::from(UID)).join(path)
        }

        fn output(&self, path: &str) -> PathBuf {
            self.planner.output(&name(), &Uid::from(UID)).join(path)
        }

        fn write(&self, path: &str, contents: impl AsRef<[u8]>) {
            fs::write(self.incoming(path), contents).unwrap();
        }

        fn take_in(&self) -> Arrived {
            self.planner.take_in(&name(), &Uid::from(UID), &Indices::first(2))
        }

        /// The first job's output is refused in these words, and the second's is taken in.
        fn assert_refused(&self, words: &str) {
            self.write("0/out", "0");
            self.write("1/out", "1");
            let Arrived { fetched, refused, failure, .. } = self.take_in();
            assert!(matches!(&refused[..], [(Index(0), why)] if why.contains(words)), "{refused:?}");
            assert_eq!(failure, None, "nothing is to be tried again");
            assert_eq!(fetched, [Index(1)].into_iter().collect());
            assert!(!self.output("0").exists() && !self.incoming("0").exists());
            assert_eq!(fs::read_to_string(self.output("1/out")).unwrap(), "1");
        }
    }

    fn name() -> ObjectName {
        ObjectName { namespace: "physics".to_owned(), name: "zero".to_owned() }
    }

    #[test]
    fn output_goes_to_its_place_whole() {
        let site = Site::new();
        site.write("0/out", "0");
        site.write("0/data", "d");
        site.write("1/data", "no `out`: this job was not fetched");
        let Arrived { fetched, sizes, failure, .. } = site.take_in();
        assert_eq!((fetched, failure), (Indices::first(1), None));
        assert_eq!(sizes, BTreeMap::from([(Index(0), 2)]));
        assert_eq!(fs::read_to_string(site.output("0/data")).unwrap(), "d");
        assert!(!site.incoming("0").exists() && !site.output("1").exists());

        // A second call brings the same job again, and one file that it had not.
        site.empty();
        assert!(!site.incoming("1/data").exists(), "left by the call before");
        fs::create_dir(site.incoming("0/folder")).unwrap();
        site.write("0/folder/a", "a");
        site.write("0/out", "again");
        assert_eq!(site.take_in().fetched, Indices::first(1));
        for (file, text) in [("0/out", "again"), ("0/data", "d"), ("0/folder/a", "a")] {
            assert_eq!(fs::read_to_string(site.output(file)).unwrap(), text, "{file}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_and_no_link_is_followed() {
        let site = Site::new();
        let outside = site.folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("keep"), "").unwrap();
        symlink(&outside, site.incoming("0/link")).unwrap();
        site.assert_refused("\"link\" is not a regular file");
        assert!(outside.join("keep").exists());

        let site = Site::new();
        rustix::fs::mkfifoat(CWD, site.incoming("0/pipe"), Mode::RUSR).unwrap();
        site.assert_refused("\"pipe\" is not a regular file");

        for bit in [0o4644, 0o2644] {
            let site = Site::new();
            site.write("0/tool", "");
            fs::set_permissions(site.incoming("0/tool"), fs::Permissions::from_mode(bit)).unwrap();
            site.assert_refused("\"tool\" has a setuid or setgid bit");
        }

        // The folder itself.
        let site = Site::new();
        fs::remove_dir(site.incoming("0")).unwrap();
        fs::write(outside.join("out"), "").unwrap();
        symlink(&outside, site.incoming("0")).unwrap();
        let Arrived { fetched, failure, .. } = site.take_in();
        assert!(fetched.is_empty() && failure.is_some(), "{failure:?}");
        site.empty();
        assert!(outside.join("out").exists() && site.incoming("0").is_dir());
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let site = Site::new();
        site.write("0/large", vec![0; 1 << 20]);
        site.write("0/more", vec![0; 65 << 10]);
        site.assert_refused("more bytes than --output-limit");

        let site = Site::new();
        let deep: PathBuf = std::iter::repeat_n("d", DEEPEST + 1).collect();
        fs::create_dir_all(site.incoming("0").join(deep)).unwrap();
        site.assert_refused("are nested more than");

        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("one"), "").unwrap();
        let mut count = Amount { inodes: MOST_FILES - 1, bytes: 0 };
        assert!(count.add(&open_folder(CWD, folder.path()).unwrap(), 0).is_ok());
        assert!(matches!(count.add(&open_folder(CWD, folder.path()).unwrap(), 0), Err(Stop::Refused(_))));
    }

    #[test]
    fn what_a_failed_transfer_has_left_gives_its_room_back() {
        let site = Site::new();
        site.write("0/large", "half");
        site.planner.clear_incoming(&name(), &Uid::from(UID), &Indices::first(1));
        assert!(!site.incoming("0").exists() && site.incoming("1").exists());
        site.planner.sync_output().unwrap();
    }

    #[test]
    fn what_a_failed_transfer_has_left_is_refused_where_it_is_too_much_already() {
        let site = Site::new();
        site.write("0/large", vec![0; 2 << 20]);
        site.write("1/large", "half");
        let Arrived { fetched, refused, failure, .. } =
            site.planner.too_much(&name(), &Uid::from(UID), &Indices::first(3));
        assert!(matches!(&refused[..], [(Index(0), why)] if why.contains("--output-limit")), "{refused:?}");
        // Until the others are here, that goes on alone.
        assert_eq!(failure.unwrap().known_reason(), Some(Reason::OutputRefused));
        assert!(fetched.is_empty() && !site.incoming("0").exists());
    }

    #[test]
    fn a_place_that_cannot_be_written_is_said() {
        let site = Site::new();
        site.write("0/out", "0");
        fs::write(site.output("0"), "a file where the folder should be").unwrap();
        let Arrived { fetched, failure, .. } = site.take_in();
        let failure = failure.unwrap();
        assert!(fetched.is_empty() && failure.known_reason() == Some(Reason::FetchFailed), "{failure:?}");
        assert!(failure.message.contains("cannot write into the output folder"), "{failure:?}");
    }
}
