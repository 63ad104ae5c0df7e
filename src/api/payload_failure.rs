use strum::{EnumIter, FromRepr};

/// How a job can fail before, instead of or after its payload, by the exit code that `job.sh` ends with. A payload that ends with
/// one of these codes itself cannot be told apart, but for the missing line on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, FromRepr)]
#[repr(i32)]
pub enum PayloadFailure {
    /// The job could not read in its own ad whether it may still run.
    AdUnreadable = 240,
    /// `StageInFinish` after `HTCNotAfter`: another submission may have taken its place.
    Late = 241,
    /// The node has neither apptainer nor singularity.
    NoContainerRuntime = 242,
    /// The image cannot be had, or no container can be started from it.
    ImageUnavailable = 243,
    /// The command is not in the image.
    CommandNotFound = 244,
    /// A file of the sandbox is missing, or not what it should be.
    SandboxBroken = 245,
}

impl PayloadFailure {
    /// The failure that an exit code stands for.
    #[must_use]
    pub fn from_exit_code(code: i32) -> Option<Self> {
        Self::from_repr(code)
    }

    /// The exit code.
    #[must_use]
    pub const fn exit_code(self) -> i32 {
        self as i32
    }

    /// A sentence for a condition's message.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::AdUnreadable => "the job did not run its script: it could not read its own ClassAd on the node",
            Self::Late => "the job did not run its script: its files reached HTCondor too late",
            Self::NoContainerRuntime => "the node has neither Apptainer nor Singularity in its PATH",
            Self::ImageUnavailable => {
                "the node cannot pull or open the image in spec.script.image, or cannot start a container from it; see the file err"
            }
            Self::CommandNotFound => "the image does not contain the command in spec.script.command",
            Self::SandboxBroken => "the job's files were missing or damaged on the node; see the file err",
        }
    }
}
