//! Folders in the pods of a managed pool.

/// Folder of HTCondor, in its own image and in the images that it is copied into.
pub const RELEASE: &str = "/htcondor";
/// Folder of the configuration.
pub const CONFIG: &str = "/htcpool/config";
/// Folder of files that are lost with the pod.
pub const LOCAL: &str = "/htcpool/local";
/// Folder of files that outlive the pod.
pub const SPOOL: &str = "/htcpool/spool";
/// Folder of what the schedd's init container has found out about the node. Read-only for the schedd and its shadows.
pub const NODE: &str = "/htcpool/node";
/// Folder of the Secret, in the init container.
pub const SECRET: &str = "/htcpool/secret";
