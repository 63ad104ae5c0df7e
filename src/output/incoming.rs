//! Receives output, and moves it to its final folder.
//!
//! `condor_transfer_data` writes to a folder that the job's ad names, and the owner of the job may change that ad. So
//! jobs are submitted with a folder of their own in `.incoming`, beside the final folder of their output. It is
//! emptied before each call, and what has arrived is checked before anything is moved.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use htc_api::{ObjectName, Reason};
use htc_machine::facts::RequestFailure;
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_machine::{Index, Indices, Uid};
use htcondor::fetch::INCOMING;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat, syncfs};

use super::error::VolumeError;
use super::layout::{OutputLayout, make_folder};
use super::unpack::{OMITTED, unpack};
use crate::output::disk_budget::DiskAmount;
use crate::output::unpack_limits::{DEEPEST, MOST_FILES, OutputError, TOO_LARGE, UnpackLimits};

/// HTCondor's own tolerance when it counts the bytes of a job's output.
const SLACK: u64 = 64 * 1024;
const MIB: u64 = 1 << 20;
/// Maximum bytes read of the file [`OMITTED`].
const OMITTED_BYTES: u64 = 4096;

/// Result of storing the output of one object's jobs.
#[derive(Debug, Default)]
pub struct ReceivedOutput {
    /// Jobs whose output is in its final folder now.
    pub fetched: Indices,
    /// Size of each job's output, in bytes.
    pub sizes: BTreeMap<Index, u64>,
    /// Files of the fetched jobs that did not come back, in the words of `job.sh`.
    pub omitted: BTreeMap<Index, String>,
    /// Jobs whose output was removed because it is not allowed, with the reason.
    pub refused: Vec<(Index, String)>,
    /// Why the output of other jobs was not stored although it arrived.
    pub failure: Option<RequestFailure>,
    /// Total size of what has arrived.
    pub size: DiskAmount,
}

/// Returns the file with a job's `out` or `err`, if it exists. For jobs of the Go operator its name contains cluster
/// and proc.
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

impl OutputLayout {
    /// Returns the folder in which the output of an object's jobs arrives.
    #[must_use]
    pub fn incoming(&self, name: &ObjectName, uid: &Uid) -> PathBuf {
        self.output(name, uid).join(INCOMING)
    }

    /// Returns the folder in which the output of one job arrives: its `Iwd` when it is submitted.
    #[must_use]
    pub fn job_incoming(&self, name: &ObjectName, uid: &Uid, index: Index) -> PathBuf {
        self.incoming(name, uid).join(index.to_string())
    }

    /// Returns the maximum bytes of one job's output.
    #[must_use]
    pub fn largest_output(&self) -> Option<u64> {
        self.output_limit.map(|limit| limit.saturating_mul(MIB).saturating_add(SLACK))
    }

    /// Empties the folders in which the output of these jobs is to arrive, and checks that the final folder is
    /// writable.
    pub fn empty_incoming(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> Result<(), VolumeError> {
        self.make_output(name, uid, indices)?;
        for index in indices.iter() {
            let folder = self.job_incoming(name, uid, index);
            let empty = fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_none());
            if !empty {
                let made = remove(&folder).and_then(|()| make_folder(&folder));
                made.map_err(VolumeError::failed("write into the output folder", &folder))?;
            }
        }
        let probe = self.output(name, uid).join(".htc_probe");
        // Created anew, so that a link of this name is not followed.
        let _ = fs::remove_file(&probe);
        let tried = fs::File::create_new(&probe).and_then(|_| fs::remove_file(&probe));
        tried.map_err(VolumeError::failed("write into the output folder", &self.output(name, uid)))
    }

    /// Removes what a failed transfer has left of these jobs, as far as possible.
    pub fn clear_incoming(&self, name: &ObjectName, uid: &Uid, indices: &Indices) {
        for index in indices.iter() {
            let _ = remove(&self.job_incoming(name, uid, index));
        }
    }

    /// Syncs the stored output to the disk, with everything else on that volume: HTCondor may forget the output once
    /// the ledger says that it is stored.
    pub fn sync_output(&self) -> io::Result<()> {
        let folder = fs::File::open(self.output_dir.join("htc_out"))?;
        Ok(syncfs(folder)?)
    }

    /// Checks what has arrived of these jobs, and moves it to its final folder. What is not allowed there is removed.
    ///
    /// Only for use after a successful call: the output of a killed transfer is incomplete.
    #[must_use]
    pub fn store_output(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> ReceivedOutput {
        let (mut fetched, mut came) = (Vec::new(), ReceivedOutput::default());
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
                // An earlier call moved the output, and did not get to record that in the ledger. Or the job writes
                // to its final folder: an older version submitted it, or its owner changed the ad.
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
        // Once no more output is expected, the empty folder is not left beside the output.
        let _ = fs::remove_dir(self.incoming(name, uid));
        ReceivedOutput { fetched: fetched.into_iter().collect(), ..came }
    }

    /// Returns which output of a failed transfer is too large already, and removes it.
    #[must_use]
    pub fn oversized_output(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> ReceivedOutput {
        let mut arrived = ReceivedOutput::default();
        for index in indices.iter() {
            let folder = self.job_incoming(name, uid, index);
            if let Err(stop @ OutputError::Refused(_)) = self.look(&folder) {
                arrived.without(&folder, index, stop);
            }
        }
        if let [(index, why), ..] = &arrived.refused[..] {
            let message =
                format!("the transfer ended at the output of job {index}: {why}. The other output is fetched again");
            arrived.failure = Some(RequestFailure::new(Reason::OutputRefused, message));
        }
        arrived
    }

    /// Moves one job's output to its final folder. Returns its size, and which files did not come back.
    fn take_in_job(&self, folder: &Path, place: &Path) -> Result<(DiskAmount, Option<String>), OutputError> {
        let bounds = UnpackLimits { bytes: self.largest_output(), keep_free: self.keep_free };
        self.look(folder)?;
        let omitted = take_omitted(folder).map_err(OutputError::Io)?;
        unpack(folder, bounds)?;
        let size = self.look(folder)?;
        move_in(folder, place).map_err(OutputError::Io)?;
        Ok((size, omitted))
    }

    /// Returns how much is in a folder.
    fn look(&self, folder: &Path) -> Result<DiskAmount, OutputError> {
        let mut count = DiskAmount::default();
        count.add(&open_folder(CWD, folder)?, 0)?;
        if self.largest_output().is_some_and(|most| count.bytes > most) {
            return Err(OutputError::Refused(TOO_LARGE.to_owned()));
        }
        Ok(count)
    }
}

/// Reads the list of files that did not come back, one sentence a line as `job.sh` wrote it, and removes the list.
/// [`OutputLayout::look`] has checked that the folder contains no links.
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
    Ok(Some(sanitize(&sentences.join("; "), MAX_MESSAGE)).filter(|words| !words.is_empty()))
}

impl DiskAmount {
    /// Adds what is in a folder. Follows no link.
    fn add(&mut self, folder: &OwnedFd, depth: usize) -> Result<(), OutputError> {
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
                return Err(OutputError::Refused(words));
            }
            match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile if found.st_mode & 0o6000 != 0 => {
                    let words =
                        format!("{:?} has a setuid or setgid bit; let the job clear it", name.to_string_lossy());
                    return Err(OutputError::Refused(words));
                }
                FileType::RegularFile => {
                    self.bytes = self.bytes.saturating_add(u64::try_from(found.st_size).unwrap_or_default());
                }
                FileType::Directory if depth < DEEPEST => self.add(&open_folder(folder, name)?, depth + 1)?,
                FileType::Directory => {
                    let words = format!(
                        "its folders are nested more than {DEEPEST} deep; let the job put them into an archive"
                    );
                    return Err(OutputError::Refused(words));
                }
                _ => {
                    let words = format!("{:?} is not a regular file; let the job remove it", name.to_string_lossy());
                    return Err(OutputError::Refused(words));
                }
            }
        }
        Ok(())
    }
}

fn open_folder(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Moves a whole folder to where nothing is yet. Files that an earlier call has stored are overwritten one by one.
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

impl ReceivedOutput {
    /// Removes output that is not kept, and records why. What cannot be removed now is removed before the next call.
    fn without(&mut self, folder: &Path, index: Index, stop: OutputError) {
        match stop {
            OutputError::Io(error) => {
                let message = VolumeError::failed("write into the output folder", folder)(error).to_string();
                self.failure = Some(RequestFailure::new(Reason::FetchFailed, message));
            }
            OutputError::NoSpace(why) => {
                let _ = remove(folder);
                let message = format!("the output of job {index} was fetched and is not kept: {why}");
                self.failure = Some(RequestFailure::new(Reason::OutputVolumeFull, message));
            }
            OutputError::Refused(why) => {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const UID: &str = "11111111-3b8c-4a51-9d1f-6f1a3a5f0001";

    struct Site {
        folder: tempfile::TempDir,
        layout: OutputLayout,
    }

    impl Site {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let layout = OutputLayout {
                data: folder.path().join("data"),
                output_dir: folder.path().join("data"),
                output_limit: Some(1),
                keep_free: 0,
            };
            let site = Self { folder, layout };
            site.empty();
            site
        }

        fn empty(&self) {
            self.layout.empty_incoming(&name(), &Uid::from(UID), &Indices::first(2)).unwrap();
        }

        fn incoming(&self, path: &str) -> PathBuf {
            self.layout.incoming(&name(), &Uid::from(UID)).join(path)
        }

        fn output(&self, path: &str) -> PathBuf {
            self.layout.output(&name(), &Uid::from(UID)).join(path)
        }

        fn write(&self, path: &str, contents: impl AsRef<[u8]>) {
            fs::write(self.incoming(path), contents).unwrap();
        }

        fn take_in(&self) -> ReceivedOutput {
            self.layout.store_output(&name(), &Uid::from(UID), &Indices::first(2))
        }

        /// Asserts that the first job's output is refused with this message, and the second's is stored.
        fn assert_refused(&self, words: &str) {
            self.write("0/out", "0");
            self.write("1/out", "1");
            let ReceivedOutput { fetched, refused, failure, .. } = self.take_in();
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
    fn output_is_moved_to_its_place_as_a_whole() {
        let site = Site::new();
        site.write("0/out", "0");
        site.write("0/data", "d");
        site.write("1/data", "no `out`: this job was not fetched");
        let ReceivedOutput { fetched, sizes, failure, .. } = site.take_in();
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
    fn special_files_are_refused_and_links_not_followed() {
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
        let ReceivedOutput { fetched, failure, .. } = site.take_in();
        assert!(fetched.is_empty() && failure.is_some(), "{failure:?}");
        site.empty();
        assert!(outside.join("out").exists() && site.incoming("0").is_dir());
    }

    #[test]
    fn output_over_the_limits_is_refused() {
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
        let mut count = DiskAmount { inodes: MOST_FILES - 1, bytes: 0 };
        assert!(count.add(&open_folder(CWD, folder.path()).unwrap(), 0).is_ok());
        assert!(matches!(count.add(&open_folder(CWD, folder.path()).unwrap(), 0), Err(OutputError::Refused(_))));
    }

    #[test]
    fn leftovers_of_a_failed_transfer_are_removed() {
        let site = Site::new();
        site.write("0/large", "half");
        site.layout.clear_incoming(&name(), &Uid::from(UID), &Indices::first(1));
        assert!(!site.incoming("0").exists() && site.incoming("1").exists());
        site.layout.sync_output().unwrap();
    }

    #[test]
    fn oversized_leftovers_of_a_failed_transfer_are_refused() {
        let site = Site::new();
        site.write("0/large", vec![0; 2 << 20]);
        site.write("1/large", "half");
        let ReceivedOutput { fetched, refused, failure, .. } =
            site.layout.oversized_output(&name(), &Uid::from(UID), &Indices::first(3));
        assert!(matches!(&refused[..], [(Index(0), why)] if why.contains("--output-limit")), "{refused:?}");
        // This is retried alone until the others have arrived.
        assert_eq!(failure.unwrap().known_reason(), Some(Reason::OutputRefused));
        assert!(fetched.is_empty() && !site.incoming("0").exists());
    }

    #[test]
    fn unwritable_output_folder_is_reported() {
        let site = Site::new();
        site.write("0/out", "0");
        fs::write(site.output("0"), "a file where the folder should be").unwrap();
        let ReceivedOutput { fetched, failure, .. } = site.take_in();
        let failure = failure.unwrap();
        assert!(fetched.is_empty() && failure.known_reason() == Some(Reason::FetchFailed), "{failure:?}");
        assert!(failure.message.contains("cannot write into the output folder"), "{failure:?}");
    }
}
