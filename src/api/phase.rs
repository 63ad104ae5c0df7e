use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// How far the HTCJob has come; a phase never goes back.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumIter,
    EnumString,
    IntoStaticStr,
)]
pub enum Phase {
    /// Known and guarded by the finalizer; HTCondor has accepted no job yet.
    Pending,
    /// Accepted by HTCondor; no job has started.
    Submitted,
    /// At least one job has started and not all have ended.
    Running,
    /// Every job has an outcome.
    Completed,
    /// Being deleted: the jobs are removed from HTCondor before the object goes.
    Terminating,
}
