//! Limits of a job's output, packed or not, and the reasons why it is not kept.

use std::io;

/// Maximum number of files and folders in one job's output: each costs the volume an inode, however small it is.
pub(super) const MOST_FILES: u64 = 100_000;
/// Maximum depth of folders in a job's output.
pub(super) const DEEPEST: usize = 32;
/// Message when there are too many bytes.
pub(super) const TOO_LARGE: &str = "it has more bytes than --output-limit; let the job leave less";

/// Limits for unpacking.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnpackLimits {
    /// Maximum number of bytes.
    pub(super) bytes: Option<u64>,
    /// Bytes of the volume that are kept free.
    pub(super) keep_free: u64,
}

/// Reason why output is not stored.
#[derive(Debug)]
pub(super) enum OutputError {
    /// The output breaks a rule.
    Refused(String),
    /// The volume has no space for it.
    NoSpace(String),
    /// The volume has failed.
    Io(io::Error),
}

impl From<rustix::io::Errno> for OutputError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
