//! Budget of disk space on the volume of the output. Each transfer first reserves what its jobs are expected to
//! bring. The volume is watched during the transfer, because the size of a job's output is known only once it has
//! arrived.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{StatVfs, statvfs};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Bytes reserved for a job whose output has no limit.
const WITHOUT_LIMIT: u64 = 1 << 30;
/// Inodes reserved for a job whose output may have the full size. It may have many more files and folders; few jobs
/// do.
const INODES_OF_A_JOB: u64 = 1000;
/// Expected output of a job in a namespace without any transfer so far.
const EXPECTED: DiskAmount = DiskAmount { bytes: 64 << 20, inodes: 100 };
/// Lower bound of the expected output of a job.
const LEAST: DiskAmount = DiskAmount { bytes: 1 << 20, inodes: 10 };
/// Maximum number of inodes that are kept free.
const MOST_INODES_KEPT: u64 = 10_000;
/// On a small volume, one inode in this many is kept free.
const SHARE_OF_INODES_KEPT: u64 = 50;
/// Minimum number of jobs in a transfer for their average to be trusted.
const TRUSTED_SAMPLES: u64 = 100;
/// Growth of the estimate after a transfer exceeded it.
const OVERFLOW_FACTOR: usize = 4;
/// Interval between two checks of the volume during a transfer.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskAmount {
    pub bytes: u64,
    pub inodes: u64,
}

/// Free space on a volume, and how much of it is kept free.
#[derive(Clone, Copy, Debug)]
pub(super) struct VolumeSpace {
    free: DiskAmount,
    keep: DiskAmount,
}

/// Volume of the output, and what running transfers have reserved of it.
#[derive(Debug)]
pub struct DiskBudget {
    folder: PathBuf,
    keep_free: u64,
    of_a_job: DiskAmount,
    reserved: Mutex<DiskAmount>,
    /// Expected output of one job, by namespace.
    expected: Mutex<HashMap<String, DiskAmount>>,
    released: Notify,
}

/// Space reserved for the output of some jobs. It is released when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    room: Arc<DiskBudget>,
    amount: DiskAmount,
    jobs: usize,
}

/// Reason why nothing can be reserved.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetExceeded {
    /// The volume is full. Message for users.
    #[error("{0}")]
    Volume(String),
    /// Running transfers have reserved the remaining space. Message for users.
    #[error("{0}")]
    Reserved(String),
}

impl DiskBudget {
    /// Returns the budget of the volume of `folder`, of which `keep_free` bytes are kept free (0: no limit).
    /// `largest`: maximum bytes of one job's output.
    #[must_use]
    pub fn new(folder: PathBuf, keep_free: u64, largest: Option<u64>) -> Self {
        let of_a_job = DiskAmount { bytes: largest.unwrap_or(WITHOUT_LIMIT).max(1), inodes: INODES_OF_A_JOB };
        Self {
            folder,
            keep_free,
            of_a_job,
            reserved: Mutex::default(),
            expected: Mutex::default(),
            released: Notify::new(),
        }
    }

    fn reserved(&self) -> MutexGuard<'_, DiskAmount> {
        self.reserved.lock()
    }

    /// Resolves when a transfer that ends after this call releases its reservation.
    pub fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    /// Reads the free space of the volume; `None` if there is no limit, or the file system does not report it.
    fn look(&self) -> Option<VolumeSpace> {
        if self.keep_free == 0 {
            return None;
        }
        let found = statvfs(self.folder.join("htc_out")).or_else(|_| statvfs(&self.folder)).ok()?;
        Some(VolumeSpace::of(&found, self.keep_free))
    }

    /// Records how much output so many jobs of the namespace had. The new estimate for a job is twice the average. It
    /// applies at once if it is higher than before or comes from many jobs (`TRUSTED_SAMPLES`), else gradually.
    pub fn record_transfer(&self, namespace: &str, jobs: usize, came: DiskAmount) {
        let Some(jobs) = u64::try_from(jobs).ok().filter(|jobs| *jobs > 0) else { return };
        let mut expected = self.expected.lock();
        let known = expected.entry(namespace.to_owned()).or_insert(EXPECTED);
        let next = |known: u64, came: u64| {
            let twice = came.div_ceil(jobs).saturating_mul(2);
            if jobs >= TRUSTED_SAMPLES { twice } else { twice.max(known / 4 * 3 + twice / 4) }
        };
        *known = DiskAmount { bytes: next(known.bytes, came.bytes), inodes: next(known.inodes, came.inodes) };
    }

    /// Records that a transfer of the namespace exceeded its reservation. The estimate for its jobs grows by
    /// `OVERFLOW_FACTOR`.
    pub fn record_overflow(&self, namespace: &str) {
        let DiskAmount { bytes, inodes } = self.expected(namespace).times(OVERFLOW_FACTOR);
        self.record_transfer(namespace, 1, DiskAmount { bytes: bytes / 2, inodes: inodes / 2 });
    }

    /// Returns the bytes that a job of the namespace is expected to bring.
    pub fn bytes_of_a_job(&self, namespace: &str) -> u64 {
        self.expected(namespace).bytes
    }

    /// Returns the expected output of a job of the namespace, at most the maximum.
    fn expected(&self, namespace: &str) -> DiskAmount {
        let expected = self.expected.lock();
        let DiskAmount { bytes, inodes } = expected.get(namespace).copied().unwrap_or(EXPECTED);
        DiskAmount {
            bytes: bytes.max(LEAST.bytes).min(self.of_a_job.bytes),
            inodes: inodes.clamp(LEAST.inodes, self.of_a_job.inodes),
        }
    }

    /// Reserves space for the output of up to `wanted` jobs of a namespace. That is at most half of what is left, so
    /// that one transfer does not keep all others waiting, and at least the maximum of one job. Blocks on the file
    /// system: not for an asynchronous thread.
    pub fn reserve(self: &Arc<Self>, namespace: &str, wanted: usize) -> Result<Reservation, BudgetExceeded> {
        let (jobs, amount) = match self.look() {
            Some(volume) => self.take(volume, self.expected(namespace), wanted)?,
            None => (wanted, DiskAmount::default()),
        };
        Ok(Reservation { room: Arc::clone(self), amount, jobs })
    }

    /// Returns how many jobs fit, and the space reserved for them.
    fn take(
        &self,
        volume: VolumeSpace,
        expected: DiskAmount,
        wanted: usize,
    ) -> Result<(usize, DiskAmount), BudgetExceeded> {
        let mut reserved = self.reserved();
        if volume.fitting(*reserved, self.of_a_job) == 0 {
            let alone = volume.fitting(DiskAmount::default(), self.of_a_job);
            return Err(if alone == 0 {
                BudgetExceeded::Volume(self.full(volume))
            } else {
                BudgetExceeded::Reserved(self.waits(volume))
            });
        }
        let fit = volume.fitting(*reserved, expected);
        let jobs = usize::try_from(fit.div_ceil(2)).unwrap_or(usize::MAX).min(wanted);
        let more = expected.times(jobs).max_of(self.of_a_job);
        *reserved = reserved.plus(more);
        Ok((jobs, more))
    }

    /// Resolves once half of the space that should stay free is used. Returns the message for users.
    pub async fn wait_until_exhausted(self: Arc<Self>) -> String {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let room = Arc::clone(&self);
            let look = move || room.look().filter(VolumeSpace::is_short).map(|volume| room.short(volume));
            if let Ok(Some(message)) = tokio::task::spawn_blocking(look).await {
                return message;
            }
        }
    }

    fn full(&self, volume: VolumeSpace) -> String {
        format!(
            "no output is fetched: {}. The output of one job may need {} MiB (--output-limit), and {} MiB and {} files stay free (--min-free-space). Delete output that nobody needs, or enlarge the volume",
            volume.says(&self.folder),
            self.of_a_job.bytes.div_ceil(1 << 20),
            mib(volume.keep.bytes),
            volume.keep.inodes
        )
    }

    fn waits(&self, volume: VolumeSpace) -> String {
        format!(
            "the output waits for other transfers, which have reserved the free disk space: {}, and --min-free-space is {} MiB. It is tried again",
            volume.says(&self.folder),
            mib(volume.keep.bytes)
        )
    }

    fn short(&self, volume: VolumeSpace) -> String {
        format!(
            "the transfer was stopped: {}, less than half of what stays free (--min-free-space, {} MiB, and {} files). Delete output that nobody needs, or enlarge the volume",
            volume.says(&self.folder),
            mib(volume.keep.bytes),
            volume.keep.inodes
        )
    }
}

impl Reservation {
    /// Returns the number of jobs that it is for.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.room.reserved();
        *reserved = DiskAmount {
            bytes: reserved.bytes.saturating_sub(self.amount.bytes),
            inodes: reserved.inodes.saturating_sub(self.amount.inodes),
        };
        drop(reserved);
        self.room.released.notify_waiters();
    }
}

impl DiskAmount {
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

impl VolumeSpace {
    pub(super) fn of(found: &StatVfs, keep_free: u64) -> Self {
        // A file system that does not count inodes reports 0.
        let (inodes, keep) = match found.f_files {
            0 => (u64::MAX, 0),
            all => (found.f_favail, (all / SHARE_OF_INODES_KEPT).min(MOST_INODES_KEPT)),
        };
        Self {
            free: DiskAmount { bytes: found.f_bavail.saturating_mul(found.f_frsize), inodes },
            keep: DiskAmount { bytes: keep_free, inodes: keep },
        }
    }

    /// Returns the number of jobs whose output fits.
    fn fitting(&self, reserved: DiskAmount, of_a_job: DiskAmount) -> u64 {
        let left = |free: u64, keep: u64, reserved: u64| free.saturating_sub(keep).saturating_sub(reserved);
        let bytes = left(self.free.bytes, self.keep.bytes, reserved.bytes) / of_a_job.bytes.max(1);
        let inodes = left(self.free.inodes, self.keep.inodes, reserved.inodes) / of_a_job.inodes.max(1);
        bytes.min(inodes)
    }

    /// Returns whether so much more can arrive before the volume is short of space.
    pub(super) fn has_room_for(&self, more: DiskAmount) -> bool {
        let left = |free: u64, more: u64| free.checked_sub(more);
        let left = left(self.free.bytes, more.bytes).zip(left(self.free.inodes, more.inodes));
        left.is_some_and(|(bytes, inodes)| !Self { free: DiskAmount { bytes, inodes }, ..*self }.is_short())
    }

    fn is_short(&self) -> bool {
        self.free.bytes < self.keep.bytes / 2 || self.free.inodes < self.keep.inodes / 2
    }

    fn says(&self, folder: &Path) -> String {
        let inodes = match self.free.inodes {
            u64::MAX => String::new(),
            inodes => format!(" and {inodes} inodes"),
        };
        format!("the data volume {} has {} MiB{inodes} free", folder.display(), mib(self.free.bytes))
    }
}

const fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room() -> Arc<DiskBudget> {
        Arc::new(DiskBudget::new(PathBuf::from("/data"), 100 * MIB, Some(10 * MIB)))
    }

    fn volume(mib: u64, inodes: u64) -> VolumeSpace {
        VolumeSpace {
            free: DiskAmount { bytes: mib * MIB, inodes },
            keep: DiskAmount { bytes: 100 * MIB, inodes: MOST_INODES_KEPT },
        }
    }

    fn reserve(room: &Arc<DiskBudget>, volume: VolumeSpace, wanted: usize) -> Result<Reservation, BudgetExceeded> {
        let (jobs, amount) = room.take(volume, room.expected("physics"), wanted)?;
        Ok(Reservation { room: Arc::clone(room), amount, jobs })
    }

    #[test]
    fn expected_size_follows_earlier_transfers() {
        let room = Arc::new(DiskBudget::new(PathBuf::from("/data"), 100 * MIB, Some(1024 * MIB)));
        let jobs = |of_volume| reserve(&room, volume(of_volume, u64::MAX), 10_000).unwrap().jobs();
        assert_eq!(jobs(100 + 12_800), 100, "64 MiB each of half of the remaining space");
        room.record_transfer("physics", 1, DiskAmount { bytes: 1000, inodes: 2 });
        assert_eq!(jobs(100 + 12_800), 133, "bit by bit");
        room.record_transfer("physics", 100, DiskAmount { bytes: 100 * 1000, inodes: 200 });
        assert_eq!(jobs(100 + 12_800), 6400, "at least 1 MiB each");
        room.record_transfer("physics", 1, DiskAmount { bytes: 50 * MIB, inodes: 2 });
        assert_eq!(jobs(100 + 12_800), 64, "at once");
        room.record_overflow("physics");
        assert_eq!(jobs(100 + 12_800), 16, "a quarter of the jobs");
        room.record_transfer("physics", 1, DiskAmount { bytes: 5000 * MIB, inodes: 2 });
        assert_eq!(jobs(100 + 12_800), 6, "no more than it may have");
        assert_eq!(room.expected("chemistry").bytes, 64 * MIB, "another namespace's are its own");
        // Space for one job of the maximum size, and for nothing more.
        assert_eq!(jobs(100 + 1024), 1);
        assert!(reserve(&room, volume(100 + 1023, u64::MAX), 1).is_err(), "it may not fit");
    }

    #[test]
    fn reservations_share_the_volume_without_overlap() {
        let (room, volume) = (room(), volume(140, u64::MAX));
        let mut taken: Vec<Reservation> = Vec::new();
        while let Ok(more) = reserve(&room, volume, 100) {
            taken.push(more);
        }
        assert_eq!(taken.iter().map(Reservation::jobs).collect::<Vec<_>>(), [2, 1, 1], "four fit");
        let Err(full @ BudgetExceeded::Reserved(_)) = reserve(&room, volume, 1) else { panic!("others have it") };
        assert!(full.to_string().contains("waits for other transfers"));
        taken.pop();
        assert_eq!(reserve(&room, volume, 5).unwrap().jobs(), 1, "it is free again");
        drop(taken);
        assert_eq!(*room.reserved(), DiskAmount::default());
        assert_eq!(reserve(&room, volume, 1).unwrap().jobs(), 1, "no more than is wanted");
    }

    #[test]
    fn volume_is_full_by_bytes_or_inodes() {
        for volume in [volume(109, u64::MAX), volume(1000, MOST_INODES_KEPT + INODES_OF_A_JOB - 1)] {
            let Err(full @ BudgetExceeded::Volume(_)) = reserve(&room(), volume, 1) else { panic!("{volume:?}") };
            let message = full.to_string();
            assert!(message.contains("--min-free-space") && message.contains(" free"), "{message}");
        }
        assert_eq!(reserve(&room(), volume(110, MOST_INODES_KEPT + INODES_OF_A_JOB), 9).unwrap().jobs(), 1);
    }

    #[test]
    fn transfer_stops_below_half_of_the_free_reserve() {
        assert!(!volume(50, MOST_INODES_KEPT).is_short());
        assert!(volume(49, MOST_INODES_KEPT).is_short());
        assert!(volume(200, MOST_INODES_KEPT / 2 - 1).is_short());
    }

    #[test]
    fn without_a_limit_every_reservation_fits() {
        let folder = tempfile::tempdir().unwrap();
        let room = Arc::new(DiskBudget::new(folder.path().to_owned(), 0, None));
        assert_eq!(room.reserve("physics", 5000).unwrap().jobs(), 5000);
        let all = Arc::new(DiskBudget::new(folder.path().to_owned(), u64::MAX, None));
        assert!(matches!(all.reserve("physics", 1), Err(BudgetExceeded::Volume(_))), "a real volume");
    }

    #[tokio::test]
    async fn full_volume_stops_the_transfer() {
        let folder = tempfile::tempdir().unwrap();
        let room = Arc::new(DiskBudget::new(folder.path().to_owned(), u64::MAX, None));
        let message = tokio::time::timeout(LOOK_EVERY * 10, room.wait_until_exhausted()).await.unwrap();
        assert!(message.contains("the transfer was stopped"), "{message}");
    }

    #[tokio::test]
    async fn released_reservation_wakes_waiters() {
        let room = room();
        let first = reserve(&room, volume(110, u64::MAX), 1).unwrap();
        let released = room.released();
        assert!(reserve(&room, volume(110, u64::MAX), 1).is_err());
        drop(first);
        tokio::time::timeout(Duration::from_secs(10), released).await.unwrap();
        assert!(reserve(&room, volume(110, u64::MAX), 1).is_ok());
    }
}
