//! Attributes of a job's ad by which HTCondor finds files and programs, as lines that come after everything else.
//!
//! Users may set only attributes of an allow-list. This is a second protection: if one of these names were ever
//! allowed, it would have no effect. The names are those that HTCondor's file transfer, schedd, shadow, starter and
//! tools (23.9 and 25.14) look up as a string or a boolean, so that `undefined` has the same effect as a missing
//! attribute.
//!
//! The list lacks names whose mere presence has an effect. `condor_submit` adds terms to Requirements for
//! `EncryptInputFiles`, `EncryptOutputFiles`, `RequestedChroot` and `ToolDaemonCmd`, and refuses `OutputDirectory`
//! beside `OutputDestination`. The schedd checks for the presence of `SUBMIT_Iwd`, `CommonInputFiles` and
//! `JobMaterializeDigestFile`.

use std::fmt::Write as _;

use crate::payload::WORK_FOLDER;
use crate::payload::WORK_VARIABLE;

/// Attributes that name files, programs or other things that HTCondor's processes open for a job. This operator does
/// not use them.
pub const UNDEFINED: [&str; 45] = [
    "BufferFiles",
    "CheckpointDestination",
    "CommonInputCatalogs",
    "ContainerImage",
    "ContainerServiceNames",
    "ContainerTargetDir",
    "DAGManNodesLog",
    "DataReuseManifestSHA256",
    "DockerImage",
    "FailureFiles",
    "FileRemaps",
    "HookKeyword",
    "JarFiles",
    "JobKeyword",
    "LocalCredd",
    "ManifestDesired",
    "ManifestDir",
    "MountUnderScratch",
    "NamedChroot",
    "OAuthServicesNeeded",
    "OrigCmd",
    "OriginalErr",
    "OriginalOut",
    "OutputDestination",
    "PostCmd",
    "PreCmd",
    "PublicInputFiles",
    "RemoteIwd",
    "RemoteSpoolDir",
    "SUBMIT_TransferOutputRemaps",
    "SUBMIT_UserLog",
    "ScitokensFile",
    "SendCredential",
    "SingularityImage",
    "SpooledOutputFiles",
    "StagingDir",
    "StarterUserLog",
    "TransferCheckpoint",
    "TransferInputRemaps",
    "TransferIntermediate",
    "TransferOutput",
    "TransferOutputRemaps",
    "TransferPlugins",
    "UserLog",
    "x509userproxy",
];

/// A folder that does not exist, so that none is added to the job's own.
pub const NOWHERE: &str = "/nonexistent";

/// Returns the lines for the job's program, input and output. `input` is as in `transfer_input_files`. `condor_submit`
/// derives the same attributes from the commands before, but an attribute `MY.X = …` anywhere in the text overrides its
/// command.
///
/// Without `WantDelayedUpdates` and the two after it, a payload could change its own job's ad by HTCondor's Chirp, or
/// get files of the access point.
///
/// `LimitDirectoryAccess` restricts the job's shadow to sending and taking files of the job's spool folder, which the
/// shadow adds itself. A schedd with a `LIMIT_DIRECTORY_ACCESS` of its own uses that instead. The check follows
/// symbolic links, also those that a starter creates. It does not detect hard links within the spool (tried with 23.9
/// and 25.14).
///
/// The variable in `Environment` is for the wrapper on workers of managed pools. It makes the submitted ad decide where
/// the job may create links, and not a file that an earlier run of the payload may have changed.
pub(super) fn lines(executable: &str, folder: &str, input: &str) -> String {
    let mut text = format!(
        r#"MY.JobUniverse = 5
MY.Cmd = "{executable}"
MY.Iwd = "{folder}"
MY.In = "/dev/null"
MY.Out = "out"
MY.Err = "err"
MY.TransferInput = "{input}"
MY.Environment = "{WORK_VARIABLE}={WORK_FOLDER}"
MY.WantDelayedUpdates = false
MY.WantIOProxy = false
MY.WantRemoteUpdates = false
MY.LimitDirectoryAccess = "{NOWHERE}"
"#
    );
    for name in UNDEFINED {
        let _ = writeln!(text, "MY.{name} = undefined");
    }
    text
}
