//! Proves that a submitter has ended whose end was not seen.
//!
//! The operator locks a file (`flock`) before the intent is durable, and each process of the submitter inherits it
//! open.
//! The kernel releases the lock when the last process that has the file open is gone: the operator that made the
//! intent, the submitter, and all processes that it has started.

use std::fmt;
use std::str::FromStr;

use super::Rules;
use crate::ids::Timestamp;

/// Lock of one submitter, as recorded in its intent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubmitterLock {
    /// Boot id of the machine: identifies which run of which kernel holds the lock.
    pub boot: String,
    /// Device of the file.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Name of the file.
    pub file: String,
}

/// Error for a text that is not that of a lock.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not name a submitter's lock")]
pub struct NotALock(String);

impl fmt::Display for SubmitterLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { boot, device, inode, file } = self;
        write!(f, "{boot}:{device}:{inode}:{file}")
    }
}

impl FromStr for SubmitterLock {
    type Err = NotALock;

    fn from_str(text: &str) -> Result<Self, NotALock> {
        let mut parts = text.splitn(4, ':');
        let mut part = || parts.next().filter(|part| !part.is_empty()).ok_or_else(|| NotALock(text.to_owned()));
        let (boot, device, inode, file) = (part()?, part()?, part()?, part()?);
        let number = |text: &str| text.parse().map_err(|_| NotALock(text.to_owned()));
        Ok(Self { boot: boot.to_owned(), device: number(device)?, inode: number(inode)?, file: file.to_owned() })
    }
}

/// State of the file that has the name of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockObservation {
    /// When the check was complete.
    pub at: Timestamp,
    /// Boot id of the machine that checked.
    pub boot: String,
    /// Device of the file.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Whether no process held the lock.
    pub free: bool,
}

/// Proof that no process of a submitter is left, nor the operator that would have started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitterGone {
    lock: SubmitterLock,
    seen_at: Timestamp,
}

impl SubmitterGone {
    /// Lock of the submitter.
    #[must_use]
    pub const fn lock(&self) -> &SubmitterLock {
        &self.lock
    }

    /// When this was seen. Answers to queries that are sent later cannot be changed by this submitter any more.
    #[must_use]
    pub const fn seen_at(&self) -> Timestamp {
        self.seen_at
    }
}

/// Returns the proof if `seen` shows that the submitter has ended; otherwise nothing is known.
/// Another kernel, or another file of the same name, proves nothing.
#[must_use]
pub fn submitter_gone(lock: &SubmitterLock, seen: &LockObservation, rules: &Rules) -> Option<SubmitterGone> {
    let same_kernel = seen.boot == lock.boot;
    let same_file = (seen.device, seen.inode) == (lock.device, lock.inode);
    let free = seen.free || !rules.lock_is_free;
    (same_kernel && same_file && free).then(|| SubmitterGone { lock: lock.clone(), seen_at: seen.at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock() -> SubmitterLock {
        SubmitterLock { boot: "b-1".to_owned(), device: 8, inode: u64::MAX, file: "f.lock".to_owned() }
    }

    fn seen() -> LockObservation {
        LockObservation { at: Timestamp(7), boot: "b-1".to_owned(), device: 8, inode: u64::MAX, free: true }
    }

    #[test]
    fn only_the_same_unlocked_file_on_the_same_boot_proves_submitter_gone() {
        let proof = submitter_gone(&lock(), &seen(), &Rules::ALL).unwrap();
        assert_eq!((proof.lock(), proof.seen_at()), (&lock(), Timestamp(7)));
        let unknown = [
            LockObservation { free: false, ..seen() },
            LockObservation { boot: "b-2".to_owned(), ..seen() },
            LockObservation { device: 9, ..seen() },
            LockObservation { inode: 1, ..seen() },
        ];
        for seen in unknown {
            assert_eq!(submitter_gone(&lock(), &seen, &Rules::ALL), None, "{seen:?}");
        }
    }

    #[test]
    fn submitter_lock_round_trips_as_text() {
        assert_eq!(lock().to_string().parse(), Ok(lock()));
        for wrong in ["", "b:1:2", "b:x:2:f", "b:1:-2:f", ":1:2:f", "b:1:2:"] {
            assert!(wrong.parse::<SubmitterLock>().is_err(), "{wrong}");
        }
    }
}
