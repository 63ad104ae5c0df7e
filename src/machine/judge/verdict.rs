//! What becomes of what is never accepted.

use strum::IntoStaticStr;

use super::sightings::{Acceptance, Sightings};
use crate::machine::indices::Indices;

/// What became of jobs that HTCondor never accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Verdict {
    /// There are none.
    Absent,
    /// They were removed before their files had come.
    Stillborn,
    /// Their files came too late.
    Late,
}

impl Verdict {
    /// On all of `indices`, none of which is accepted; the last that there is in the order above.
    pub(super) fn on(indices: &Indices, sightings: &Sightings<'_>) -> Self {
        let all = indices.iter().flat_map(|index| sightings.of(index)).map(|sighting| match sighting.acceptance {
            Acceptance::Late => Self::Late,
            Acceptance::Stillborn => Self::Stillborn,
            Acceptance::Accepted | Acceptance::RemovedByOthers | Acceptance::Staging => Self::Absent,
        });
        all.max().unwrap_or(Self::Absent)
    }
}
