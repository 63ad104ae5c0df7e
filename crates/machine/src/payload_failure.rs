//! Failures of a job before, instead of or after its payload.

use strum::{EnumIter, FromRepr};

/// Failure of a job before, instead of or after its payload. Each has its exit code of `job.sh`.
/// If a payload itself exits with one of these codes, only the missing line on standard error makes the difference.
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
    /// A file of `spec.files` cannot be fetched, or is another one than the spec says.
    InputUnavailable = 246,
    /// The node does not have a folder that the site has named for a volume.
    FolderMissing = 247,
}

impl PayloadFailure {
    /// Returns the failure for an exit code.
    #[must_use]
    pub fn from_exit_code(code: i32) -> Option<Self> {
        Self::from_repr(code)
    }

    /// Returns the exit code.
    #[must_use]
    pub const fn exit_code(self) -> i32 {
        self as i32
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
            Self::InputUnavailable => "the node could not fetch a file of spec.files; see the file err",
            Self::FolderMissing => {
                "the node does not have a folder that the site has named for a volume in spec.volumes; see the file err"
            }
        }
    }
}
