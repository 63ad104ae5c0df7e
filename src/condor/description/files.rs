//! The attributes of a job's ad by which HTCondor finds files and programs, as lines that come after everything else.
//!
//! What users may set is an allow-list. This is the second lock: were one of these names ever allowed, it would have no effect.
//! The names are those that HTCondor's file transfer, schedd, shadow, starter and tools (23.9 and 25.14) look up as a string or a
//! truth value, so that `undefined` means to them what no attribute means. Not here are names whose mere presence has an
//! effect: `condor_submit` adds terms to Requirements for `EncryptInputFiles`, `EncryptOutputFiles`, `RequestedChroot` and
//! `ToolDaemonCmd`, refuses `OutputDirectory` beside `OutputDestination`, and the schedd takes `SUBMIT_Iwd`,
//! `CommonInputFiles` and `JobMaterializeDigestFile` for a sign.

use std::fmt::Write as _;

use crate::condor::payload::WORK_FOLDER;
use crate::confine::job_wrapper::WORK;

/// Attributes that name files, programs or what else HTCondor's processes open for a job. This operator has no use for them.
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

/// A folder that is not there, so that none is added to the job's own.
pub const NOWHERE: &str = "/nonexistent";

/// What the job runs, reads and writes; `input` as in `transfer_input_files`. `condor_submit` writes the same from the commands
/// before, but an attribute `MY.X = …` anywhere in the text would count for more than its command.
///
/// Without `WantDelayedUpdates` and the two after it a payload can change its own job's ad by HTCondor's Chirp, or have files of the
/// access point. By `LimitDirectoryAccess` the job's shadow sends and takes files of the job's spool folder alone, which it adds
/// itself. The variable is for the wrapper on workers of managed pools: by it, what the job was submitted with decides where it may make links,
/// and not a file that an earlier run of the payload may have changed. A schedd with a `LIMIT_DIRECTORY_ACCESS` of its own uses that instead. The check follows symbolic links, also those that a
/// starter creates. It does not see hard links within the spool (tried with 23.9 and 25.14).
pub(super) fn lines(executable: &str, folder: &str, input: &str) -> String {
    let mut text = format!(
        r#"MY.JobUniverse = 5
MY.Cmd = "{executable}"
MY.Iwd = "{folder}"
MY.In = "/dev/null"
MY.Out = "out"
MY.Err = "err"
MY.TransferInput = "{input}"
MY.Environment = "{WORK}={WORK_FOLDER}"
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
