//! Folders in the pods of a managed pool.

/// Where HTCondor is in its own image, and in those that it is brought into.
pub const RELEASE: &str = "/htcondor";
/// Folder of the configuration.
pub const CONFIG: &str = "/htcpool/config";
/// Folder of all that is written and need not outlive the pod.
pub const LOCAL: &str = "/htcpool/local";
/// Folder of what outlives it.
pub const SPOOL: &str = "/htcpool/spool";
/// Folder of what the container that prepares a schedd's has found out about the node. The schedd and its shadows have it read-only.
pub const NODE: &str = "/htcpool/node";
/// Folder of the Secret, for the container that prepares the others.
pub const SECRET: &str = "/htcpool/secret";
