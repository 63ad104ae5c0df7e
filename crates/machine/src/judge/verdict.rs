//! What became of jobs that were never accepted.

use strum::IntoStaticStr;

use super::sightings::{Acceptance, Sightings};
use crate::indices::Indices;

/// What became of jobs that HTCondor never accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Verdict {
    /// HTCondor has no ads of them.
    Absent,
    /// They were removed before their files had arrived.
    Stillborn,
    /// Their files arrived too late.
    Late,
}

impl Verdict {
    /// Returns the verdict on `indices`, none of which is accepted. If they differ, the last in the order above.
    pub(super) fn on(indices: &Indices, sightings: &Sightings<'_>) -> Self {
        let all = indices.iter().flat_map(|index| sightings.of(index)).map(|sighting| match sighting.acceptance {
            Acceptance::Late => Self::Late,
            Acceptance::Stillborn => Self::Stillborn,
            Acceptance::Accepted | Acceptance::RemovedByOthers | Acceptance::Staging => Self::Absent,
        });
        all.max().unwrap_or(Self::Absent)
    }
}
