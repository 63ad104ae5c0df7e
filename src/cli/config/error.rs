//! Settings that are not accepted.

use std::fmt::Display;

use htc_confine::NO_LANDLOCK;
use htc_submit::payload::{ImageError, ImagePrefixError};
use htc_submit::volumes::ClaimFolderError;

use crate::backends::condor::credentials::RunDirError;

/// A setting that cannot work. Each text names the flag, and says what to write.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A path or a URL.
    #[error("{flag} {value}: {rule}")]
    Value { flag: &'static str, value: String, rule: &'static str },
    /// Numbers or times that are out of range, or do not fit together.
    #[error("{flags} must {rule}")]
    Rule { flags: &'static str, rule: &'static str },
    #[error("--batch-objects may be 300 at most and --batch-jobs 10000: HTCondor's expressions have limits")]
    LargeBatch,
    #[error(
        "--confinement=required: {NO_LANDLOCK}; use Linux 5.13 or newer with `landlock` among /sys/kernel/security/lsm, or \
         write --confinement=auto"
    )]
    NoLandlock,
    /// HTCondor's tools need what no tool may see.
    #[error("--confinement=required: {0}")]
    ExcludedPaths(String),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error("--image-prefix: {0}")]
    ImagePrefix(#[from] ImagePrefixError),
    #[error("--claim: {0}")]
    Claim(#[from] ClaimFolderError),
}

impl ConfigError {
    pub(super) fn value(flag: &'static str, value: impl Display, rule: &'static str) -> Self {
        Self::Value { flag, value: value.to_string(), rule }
    }
}

/// A word of the command line that is not a value of its flag. clap puts the flag before the text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("write NAME=/absolute/path")]
    ImagePair,
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("write a whole number with ms, s, m, h or d")]
    Duration,
    #[error("write the name of a Kerberos realm, such as EXAMPLE.ORG")]
    Realm,
    #[error("write a whole number of bytes, or one with Ki, Mi, Gi or Ti (K, M, G and T mean the same)")]
    Size,
}
