//! Ends of a job by `job.sh` itself, before, instead of or after its payload.

use strum::{EnumIter, FromRepr};

/// Failure for which `job.sh` ends a job. Each has its code there.
///
/// `job.sh` ends itself with a signal then, so that each exit code is the payload's own: a payload that is killed makes
/// `job.sh` exit with a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, FromRepr)]
#[repr(i32)]
pub enum PayloadFailure {
    /// The job could not read from its own ad whether it may still run.
    AdUnreadable = 240,
    /// `StageInFinish` is after `HTCNotAfter`: another submission may have replaced the job.
    Late = 241,
    /// The node has neither Apptainer nor Singularity.
    NoContainerRuntime = 242,
    /// The image is not available, or no container can be started from it.
    ImageUnavailable = 243,
    /// The image does not contain the command.
    CommandNotFound = 244,
    /// A file of the sandbox is missing or damaged.
    SandboxBroken = 245,
    /// A file or a Secret cannot be fetched for now.
    InputUnavailable = 246,
    /// The node does not have a folder that the site has named for a volume.
    FolderMissing = 247,
    /// The registry refuses more requests for now.
    RegistryBusy = 248,
    /// The registry has no such image, or does not let the job have it.
    ImageRefused = 249,
    /// A file or a Secret that the job fetches does not exist, is refused, or is another one than the spec says.
    InputRefused = 250,
}

impl PayloadFailure {
    /// Returns the failure with a code of `job.sh`.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        Self::from_repr(code)
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// Whether the node or a service that it uses is at fault: the job may run elsewhere, or later.
    #[must_use]
    pub const fn is_node_fault(self) -> bool {
        match self {
            Self::AdUnreadable
            | Self::NoContainerRuntime
            | Self::ImageUnavailable
            | Self::SandboxBroken
            | Self::InputUnavailable
            | Self::FolderMissing
            | Self::RegistryBusy => true,
            Self::Late | Self::CommandNotFound | Self::ImageRefused | Self::InputRefused => false,
        }
    }

    /// Returns a sentence for a condition's message.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::AdUnreadable => "the job did not run its script: it could not read its own ClassAd on the node",
            Self::Late => "the job did not run its script: its files reached HTCondor too late",
            Self::NoContainerRuntime => "the node has neither Apptainer nor Singularity in its PATH",
            Self::ImageUnavailable => {
                "the node cannot pull or open the image in spec.script.image or spec.container.image, or cannot start a container from it; see the file err"
            }
            Self::CommandNotFound => {
                "the image does not contain the command in spec.script.command or spec.container.command, or has no entrypoint; see the file err"
            }
            Self::SandboxBroken => "the job's files were missing or damaged on the node; see the file err",
            Self::InputUnavailable => "the node could not fetch a file of spec.files or a Secret; see the file err",
            Self::FolderMissing => {
                "the node does not have a folder that the site has named for a volume in spec.volumes; see the file err"
            }
            Self::RegistryBusy => "the registry of the image refuses more requests for now; see the file err",
            Self::ImageRefused => {
                "the registry does not have the image, or does not let the job have it; see the file err"
            }
            Self::InputRefused => {
                "a file of spec.files or a Secret does not exist, is refused to the job, or is another one than it was; see the file err"
            }
        }
    }
}

/// End of a job by `job.sh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobShEnd {
    /// Why it ended.
    pub failure: PayloadFailure,
    /// Whether the payload had run before.
    pub after_payload: bool,
}

impl JobShEnd {
    /// Difference between a failure's code and the signal with which `job.sh` ends before the payload has run.
    const BEFORE: i32 = 200;
    /// The same after the payload has run. A job that ends so is not run again: its payload may be the cause.
    const AFTER: i32 = 188;
    /// First and last of these signals. The system's own have smaller numbers.
    pub const SIGNALS: std::ops::RangeInclusive<i32> = 40..=63;

    /// Returns the end that a signal stands for.
    #[must_use]
    pub fn from_signal(signal: i32) -> Option<Self> {
        let of = |code, after_payload| Some(Self { failure: PayloadFailure::from_code(code)?, after_payload });
        of(signal + Self::BEFORE, false).or_else(|| of(signal + Self::AFTER, true))
    }

    /// Returns the signal.
    #[must_use]
    pub const fn signal(self) -> i32 {
        self.failure.code() - if self.after_payload { Self::AFTER } else { Self::BEFORE }
    }

    /// Whether HTCondor may run the job again.
    #[must_use]
    pub const fn is_node_fault(self) -> bool {
        !self.after_payload && self.failure.is_node_fault()
    }
}
