//! Room on the volume of the output. Each transfer reserves what its jobs are expected to bring before it begins, and the volume is
//! watched while it runs: how much a job brings is known only once it is here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{StatVfs, statvfs};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// What is reserved for a job whose output has no limit, in bytes.
const WITHOUT_LIMIT: u64 = 1 << 30;
/// Files and folders that are reserved for a job of a limit's size. It may leave many more; few do.
const INODES_OF_A_JOB: u64 = 1000;
/// What a job of a namespace is expected to bring that has brought nothing yet.
const EXPECTED: Amount = Amount { bytes: 64 << 20, inodes: 100 };
/// What each is expected to bring at least.
const LEAST: Amount = Amount { bytes: 1 << 20, inodes: 10 };
/// Most inodes that stay free.
const MOST_INODES_KEPT: u64 = 10_000;
/// Of a small volume's inodes one in so many stays free.
const SHARE_OF_INODES_KEPT: u64 = 50;
/// What so many jobs have brought is no chance.
const MANY: u64 = 100;
/// So many times as much as was expected is expected after a transfer that brought too much.
const TOO_MUCH: usize = 4;
/// How often the volume is looked at during a transfer.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
}

/// What is free on a volume, and what is to stay free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volume {
    free: Amount,
    keep: Amount,
}

/// The volume of the output, and what transfers under way have reserved of it.
#[derive(Debug)]
pub struct Room {
    folder: PathBuf,
    keep_free: u64,
    of_a_job: Amount,
    reserved: Mutex<Amount>,
    /// What a job of each namespace is expected to bring.
    expected: Mutex<HashMap<String, Amount>>,
    released: Notify,
}

/// Room for the output of some jobs. It is free again once this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    room: Arc<Room>,
    amount: Amount,
    jobs: usize,
}

/// Why there is no room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The volume is full; in words.
    Volume(String),
    /// There would be room without the transfers under way; in words.
    Reserved(String),
}

impl Full {
    pub(super) fn message(self) -> String {
        match self {
            Self::Volume(message) | Self::Reserved(message) => message,
        }
    }
}

impl Room {
    /// The room below `folder` but for `keep_free` bytes (0: no limit). `largest`: most bytes of the output of one job.
    #[must_use]
    pub fn new(folder: PathBuf, keep_free: u64, largest: Option<u64>) -> Self {
        let of_a_job = Amount { bytes: largest.unwrap_or(WITHOUT_LIMIT).max(1), inodes: INODES_OF_A_JOB };
        Self {
            folder,
            keep_free,
            of_a_job,
            reserved: Mutex::default(),
            expected: Mutex::default(),
            released: Notify::new(),
        }
    }

    fn reserved(&self) -> MutexGuard<'_, Amount> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when a transfer that ends after this call gives its room back.
    pub(super) fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    /// None if there is no limit, or the volume does not say how full it is.
    fn look(&self) -> Option<Volume> {
        if self.keep_free == 0 {
            return None;
        }
        let found = statvfs(self.folder.join("htc_out")).or_else(|_| statvfs(&self.folder)).ok()?;
        Some(Volume::of(&found, self.keep_free))
    }

    /// What came of so many jobs of the namespace. Twice that is expected of its next ones: at once if it is more than before or came
    /// of many jobs, else bit by bit.
    pub(super) fn learn(&self, namespace: &str, jobs: usize, came: Amount) {
        let Some(jobs) = u64::try_from(jobs).ok().filter(|jobs| *jobs > 0) else { return };
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let known = expected.entry(namespace.to_owned()).or_insert(EXPECTED);
        let next = |known: u64, came: u64| {
            let twice = came.div_ceil(jobs).saturating_mul(2);
            if jobs >= MANY { twice } else { twice.max(known / 4 * 3 + twice / 4) }
        };
        *known = Amount { bytes: next(known.bytes, came.bytes), inodes: next(known.inodes, came.inodes) };
    }

    /// A transfer of the namespace brought more than there was room for: its jobs are expected to bring much more.
    pub(super) fn was_too_much(&self, namespace: &str) {
        let Amount { bytes, inodes } = self.expected(namespace).times(TOO_MUCH);
        self.learn(namespace, 1, Amount { bytes: bytes / 2, inodes: inodes / 2 });
    }

    /// Bytes that a job of the namespace is expected to bring.
    pub(super) fn bytes_of_a_job(&self, namespace: &str) -> u64 {
        self.expected(namespace).bytes
    }

    /// What a job of the namespace is expected to bring: no more than it may.
    fn expected(&self, namespace: &str) -> Amount {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let Amount { bytes, inodes } = expected.get(namespace).copied().unwrap_or(EXPECTED);
        Amount {
            bytes: bytes.max(LEAST.bytes).min(self.of_a_job.bytes),
            inodes: inodes.clamp(LEAST.inodes, self.of_a_job.inodes),
        }
    }

    /// Reserves room for the output of as many of `wanted` jobs of a namespace as may have it. That is at most half of what is left,
    /// so that one transfer does not keep all others waiting, and at least what one job may bring. Asks the volume: not for an
    /// asynchronous thread.
    pub(super) fn reserve(self: &Arc<Self>, namespace: &str, wanted: usize) -> Result<Reservation, Full> {
        let (jobs, amount) = match self.look() {
            Some(volume) => self.take(volume, self.expected(namespace), wanted)?,
            None => (wanted, Amount::default()),
        };
        Ok(Reservation { room: Arc::clone(self), amount, jobs })
    }

    /// For how many jobs there is room, and how much that is.
    fn take(&self, volume: Volume, expected: Amount, wanted: usize) -> Result<(usize, Amount), Full> {
        let mut reserved = self.reserved();
        if volume.fitting(*reserved, self.of_a_job) == 0 {
            let alone = volume.fitting(Amount::default(), self.of_a_job);
            return Err(if alone == 0 { Full::Volume(self.full(volume)) } else { Full::Reserved(self.waits(volume)) });
        }
        let fit = volume.fitting(*reserved, expected);
        let jobs = usize::try_from(fit.div_ceil(2)).unwrap_or(usize::MAX).min(wanted);
        let more = expected.times(jobs).max_of(self.of_a_job);
        *reserved = reserved.plus(more);
        Ok((jobs, more))
    }

    /// Resolves, in words, once a transfer has brought so much that half of what should stay free is gone.
    pub(super) async fn runs_out(self: Arc<Self>) -> String {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let room = Arc::clone(&self);
            let look = move || room.look().filter(Volume::is_short).map(|volume| room.short(volume));
            if let Ok(Some(message)) = tokio::task::spawn_blocking(look).await {
                return message;
            }
        }
    }

    fn full(&self, volume: Volume) -> String {
        format!(
            "no output is fetched: {}. The output of one job may need {} MiB (--output-limit), and {} MiB and {} files stay free (--keep-free). Delete output that nobody needs, or enlarge the volume",
            volume.says(&self.folder),
            self.of_a_job.bytes.div_ceil(1 << 20),
            mib(volume.keep.bytes),
            volume.keep.inodes
        )
    }

    fn waits(&self, volume: Volume) -> String {
        format!(
            "the output waits for other transfers, for which the room that is left is reserved: {}, and --keep-free is {} MiB. It is tried again",
            volume.says(&self.folder),
            mib(volume.keep.bytes)
        )
    }

    fn short(&self, volume: Volume) -> String {
        format!(
            "the transfer was stopped: {}, less than half of what stays free (--keep-free, {} MiB, and {} files). Delete output that nobody needs, or enlarge the volume",
            volume.says(&self.folder),
            mib(volume.keep.bytes),
            volume.keep.inodes
        )
    }
}

impl Reservation {
    /// For how many jobs it is.
    pub(super) fn jobs(&self) -> usize {
        self.jobs
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.room.reserved();
        *reserved = Amount {
            bytes: reserved.bytes.saturating_sub(self.amount.bytes),
            inodes: reserved.inodes.saturating_sub(self.amount.inodes),
        };
        drop(reserved);
        self.room.released.notify_waiters();
    }
}

impl Amount {
    fn times(self, jobs: usize) -> Self {
        let jobs = u64::try_from(jobs).unwrap_or(u64::MAX);
        Self { bytes: self.bytes.saturating_mul(jobs), inodes: self.inodes.saturating_mul(jobs) }
    }

    pub(super) fn plus(self, more: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(more.bytes), inodes: self.inodes.saturating_add(more.inodes) }
    }

    fn max_of(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), inodes: self.inodes.max(other.inodes) }
    }
}

impl Volume {
    pub(super) fn of(found: &StatVfs, keep_free: u64) -> Self {
        // A file system that counts no inodes says 0.
        let (inodes, keep) = match found.f_files {
            0 => (u64::MAX, 0),
            all => (found.f_favail, (all / SHARE_OF_INODES_KEPT).min(MOST_INODES_KEPT)),
        };
        Self {
            free: Amount { bytes: found.f_bavail.saturating_mul(found.f_frsize), inodes },
            keep: Amount { bytes: keep_free, inodes: keep },
        }
    }

    /// The output of how many jobs fits.
    fn fitting(&self, reserved: Amount, of_a_job: Amount) -> u64 {
        let left = |free: u64, keep: u64, reserved: u64| free.saturating_sub(keep).saturating_sub(reserved);
        let bytes = left(self.free.bytes, self.keep.bytes, reserved.bytes) / of_a_job.bytes.max(1);
        let inodes = left(self.free.inodes, self.keep.inodes, reserved.inodes) / of_a_job.inodes.max(1);
        bytes.min(inodes)
    }

    /// Whether so much can still come before it is short.
    pub(super) fn has_room_for(&self, more: Amount) -> bool {
        let left = |free: u64, more: u64| free.checked_sub(more);
        let left = left(self.free.bytes, more.bytes).zip(left(self.free.inodes, more.inodes));
        left.is_some_and(|(bytes, inodes)| !Self { free: Amount { bytes, inodes }, ..*self }.is_short())
    }

    fn is_short(&self) -> bool {
        self.free.bytes < self.keep.bytes / 2 || self.free.inodes < self.keep.inodes / 2
    }

    fn says(&self, folder: &Path) -> String {
        let inodes = match self.free.inodes {
            u64::MAX => String::new(),
            inodes => format!(" and room for {inodes} files"),
        };
        format!("the data volume {} has {} MiB free{inodes}", folder.display(), mib(self.free.bytes))
    }
}

const fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room() -> Arc<Room> {
        Arc::new(Room::new(PathBuf::from("/data"), 100 * MIB, Some(10 * MIB)))
    }

    fn volume(mib: u64, inodes: u64) -> Volume {
        Volume {
            free: Amount { bytes: mib * MIB, inodes },
            keep: Amount { bytes: 100 * MIB, inodes: MOST_INODES_KEPT },
        }
    }

    fn reserve(room: &Arc<Room>, volume: Volume, wanted: usize) -> Result<Reservation, Full> {
        let (jobs, amount) = room.take(volume, room.expected("physics"), wanted)?;
        Ok(Reservation { room: Arc::clone(room), amount, jobs })
    }

    #[test]
    fn what_came_before_is_expected_again() {
        let room = Arc::new(Room::new(PathBuf::from("/data"), 100 * MIB, Some(1024 * MIB)));
        let jobs = |of_volume| reserve(&room, volume(of_volume, u64::MAX), 10_000).unwrap().jobs();
        assert_eq!(jobs(100 + 12_800), 100, "64 MiB each of half of what is left");
        room.learn("physics", 1, Amount { bytes: 1000, inodes: 2 });
        assert_eq!(jobs(100 + 12_800), 133, "bit by bit");
        room.learn("physics", 100, Amount { bytes: 100 * 1000, inodes: 200 });
        assert_eq!(jobs(100 + 12_800), 6400, "at least 1 MiB each");
        room.learn("physics", 1, Amount { bytes: 50 * MIB, inodes: 2 });
        assert_eq!(jobs(100 + 12_800), 64, "at once");
        room.was_too_much("physics");
        assert_eq!(jobs(100 + 12_800), 16, "a quarter of the jobs");
        room.learn("physics", 1, Amount { bytes: 5000 * MIB, inodes: 2 });
        assert_eq!(jobs(100 + 12_800), 6, "no more than it may have");
        assert_eq!(room.expected("chemistry").bytes, 64 * MIB, "another namespace's are its own");
        // Room for one that is as large as it may be, and for nothing more.
        assert_eq!(jobs(100 + 1024), 1);
        assert!(reserve(&room, volume(100 + 1023, u64::MAX), 1).is_err(), "it may not fit");
    }

    #[test]
    fn calls_share_the_room_and_none_gets_what_another_has() {
        let (room, volume) = (room(), volume(140, u64::MAX));
        let mut taken: Vec<Reservation> = Vec::new();
        while let Ok(more) = reserve(&room, volume, 100) {
            taken.push(more);
        }
        assert_eq!(taken.iter().map(Reservation::jobs).collect::<Vec<_>>(), [2, 1, 1], "four fit");
        let Err(full @ Full::Reserved(_)) = reserve(&room, volume, 1) else { panic!("others have it") };
        assert!(full.message().contains("waits for other transfers"));
        taken.pop();
        assert_eq!(reserve(&room, volume, 5).unwrap().jobs(), 1, "it is free again");
        drop(taken);
        assert_eq!(*room.reserved(), Amount::default());
        assert_eq!(reserve(&room, volume, 1).unwrap().jobs(), 1, "no more than is wanted");
    }

    #[test]
    fn a_volume_is_full_by_bytes_or_by_inodes() {
        for volume in [volume(109, u64::MAX), volume(1000, MOST_INODES_KEPT + INODES_OF_A_JOB - 1)] {
            let Err(full @ Full::Volume(_)) = reserve(&room(), volume, 1) else { panic!("{volume:?}") };
            let message = full.message();
            assert!(message.contains("--keep-free") && message.contains("MiB free"), "{message}");
        }
        assert_eq!(reserve(&room(), volume(110, MOST_INODES_KEPT + INODES_OF_A_JOB), 9).unwrap().jobs(), 1);
    }

    #[test]
    fn a_transfer_is_stopped_below_half_of_what_stays_free() {
        assert!(!volume(50, MOST_INODES_KEPT).is_short());
        assert!(volume(49, MOST_INODES_KEPT).is_short());
        assert!(volume(200, MOST_INODES_KEPT / 2 - 1).is_short());
    }

    #[test]
    fn without_a_limit_everything_fits() {
        let folder = tempfile::tempdir().unwrap();
        let room = Arc::new(Room::new(folder.path().to_owned(), 0, None));
        assert_eq!(room.reserve("physics", 5000).unwrap().jobs(), 5000);
        let all = Arc::new(Room::new(folder.path().to_owned(), u64::MAX, None));
        assert!(matches!(all.reserve("physics", 1), Err(Full::Volume(_))), "a real volume");
    }

    #[tokio::test]
    async fn a_real_volume_is_watched() {
        let folder = tempfile::tempdir().unwrap();
        let room = Arc::new(Room::new(folder.path().to_owned(), u64::MAX, None));
        let message = tokio::time::timeout(LOOK_EVERY * 10, room.runs_out()).await.unwrap();
        assert!(message.contains("the transfer was stopped"), "{message}");
    }

    #[tokio::test]
    async fn who_waits_is_told_of_room_that_is_given_back() {
        let room = room();
        let first = reserve(&room, volume(110, u64::MAX), 1).unwrap();
        let released = room.released();
        assert!(reserve(&room, volume(110, u64::MAX), 1).is_err());
        drop(first);
        tokio::time::timeout(Duration::from_secs(10), released).await.unwrap();
        assert!(reserve(&room, volume(110, u64::MAX), 1).is_ok());
    }
}
