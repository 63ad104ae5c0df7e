//! What the output of a job may be, packed or not, and why it is not kept.

use std::io;

/// Most files, and folders, of the output of one job: each costs the volume an inode, however small it is.
pub(super) const MOST_FILES: u64 = 100_000;
/// Deepest folder of a job's output.
pub(super) const DEEPEST: usize = 32;
/// Why more bytes are refused.
pub(super) const TOO_LARGE: &str = "it has more bytes than --output-limit; let the job leave less";

/// How much may be unpacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most bytes.
    pub(super) bytes: Option<u64>,
    /// Bytes of the volume that are to stay free.
    pub(super) keep_free: u64,
}

/// Why output does not go to its place.
#[derive(Debug)]
pub(super) enum Stop {
    /// It is not what a job may leave.
    Refused(String),
    /// There is no room for it.
    NoSpace(String),
    /// The volume has trouble.
    Io(io::Error),
}

impl From<rustix::io::Errno> for Stop {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
