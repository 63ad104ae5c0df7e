//! What the ads of one object prove about its jobs.

use std::collections::BTreeMap;

use crate::facts::{Ad, Answer, Evidence, Exit, History, JobStatus, QueueAnswer};
use crate::ids::Index;
use crate::outcome::Outcome;
use crate::rules::Rules;

/// What an ad proves about the acceptance of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Acceptance {
    /// HTCondor has the job's files: it counts.
    Accepted,
    /// Removed before it was accepted, but neither by us nor by the schedd: an outcome.
    RemovedByOthers,
    /// The job's files are on their way, or will never arrive.
    Staging,
    /// The job's files arrived too late. It does not run its payload and does not count.
    Late,
    /// Removed before it was accepted, by the schedd or by us. It never counted as a job.
    Stillborn,
}

/// `RemoveReason` of jobs whose files never arrived, as the schedd writes it (23.9 and 25.14).
const STAGING_FAILED: &str = "Staging of job files failed";

/// Reason that the operator passes to `condor_rm`; the schedd adds ` (by user …)`.
pub const REMOVED_BY_US: &str = "removed by htc-operator";

/// Returns what `ad` proves about acceptance.
#[must_use]
pub fn acceptance(ad: &Ad, rules: &Rules) -> Acceptance {
    match (ad.staged_in, ad.not_after) {
        (Some(finish), Some(limit)) if finish > limit && rules.late_is_no_job => Acceptance::Late,
        (Some(_), _) => Acceptance::Accepted,
        (None, _) if ad.started => Acceptance::Accepted,
        (None, _) => match ad.status {
            JobStatus::Removed
                if rules.stillborn_is_no_job && (removed_by_us(ad) || ad.remove_reason.contains(STAGING_FAILED)) =>
            {
                Acceptance::Stillborn
            }
            JobStatus::Removed => Acceptance::RemovedByOthers,
            JobStatus::Held | JobStatus::Idle | JobStatus::Blocked | JobStatus::Preparing
                if rules.staged_is_accepted =>
            {
                Acceptance::Staging
            }
            JobStatus::Held
            | JobStatus::Idle
            | JobStatus::Running
            | JobStatus::Completed
            | JobStatus::TransferringOutput
            | JobStatus::Suspended
            | JobStatus::Failed
            | JobStatus::Blocked
            | JobStatus::Preparing => Acceptance::Accepted,
        },
    }
}

fn removed_by_us(ad: &Ad) -> bool {
    ad.status == JobStatus::Removed && ad.remove_reason.starts_with(REMOVED_BY_US)
}

/// Returns the outcome of a removed job. The reason is left out if it is the operator's own: it means nothing to a
/// user.
#[must_use]
pub fn removed(ad: &Ad) -> Outcome {
    let own = ad.remove_reason.starts_with(REMOVED_BY_US);
    Outcome::Removed(if own { String::new() } else { ad.remove_reason.clone() })
}

/// Reason for a job that HTCondor calls failed although its exit code says otherwise.
const FAILED: &str = "HTCondor says that the job failed (JobStatus 8)";

/// Returns the outcome that `ad` shows, if its job has ended.
#[must_use]
pub fn outcome(ad: &Ad) -> Option<Outcome> {
    let by_exit = match ad.exit {
        Some(Exit::Code(0)) => Outcome::Succeeded,
        Some(Exit::Code(code)) => Outcome::Failed(code),
        Some(Exit::Signal(signal)) => Outcome::Killed(signal),
        None => removed(ad),
    };
    match ad.status {
        JobStatus::Failed if ad.exit.is_none() || by_exit == Outcome::Succeeded => {
            Some(Outcome::Removed(FAILED.to_owned()))
        }
        JobStatus::Completed | JobStatus::Failed => Some(by_exit),
        // condor_rm of a job that had ended keeps its end. A job removed between two tries keeps a stale ExitCode but
        // had not completed.
        JobStatus::Removed if ad.completed => Some(by_exit),
        JobStatus::Removed => Some(removed(ad)),
        JobStatus::Idle
        | JobStatus::Running
        | JobStatus::Held
        | JobStatus::TransferringOutput
        | JobStatus::Suspended
        | JobStatus::Blocked
        | JobStatus::Preparing => None,
    }
}

/// Where an ad was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdSource {
    /// In the queue.
    Queue,
    /// In history.
    History,
}

/// One ad, and where it was seen.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// The ad.
    pub ad: &'a Ad,
    /// Where the ad was seen.
    pub source: AdSource,
    /// What the ad proves about acceptance.
    pub acceptance: Acceptance,
}

/// All ads of one object, by index.
/// A job that is in both answers counts as in history: history was asked later, and no job comes back from it.
/// The same id in two attempts is two jobs: ids begin anew when a schedd has lost its queue.
#[derive(Debug, Default)]
pub struct Sightings<'a> {
    by_index: BTreeMap<Index, Vec<Sighting<'a>>>,
}

impl<'a> Sightings<'a> {
    /// Groups the ads of `evidence` by index.
    #[must_use]
    pub fn new(evidence: &'a Evidence, rules: &Rules) -> Self {
        let mut by_index: BTreeMap<Index, Vec<Sighting<'a>>> = BTreeMap::new();
        let mut add = |ads: &'a [Ad], place| {
            for ad in ads {
                let seen = by_index.entry(ad.index).or_default();
                if !seen.iter().any(|other| other.ad.id == ad.id && other.ad.attempt == ad.attempt) {
                    seen.push(Sighting { ad, source: place, acceptance: acceptance(ad, rules) });
                }
            }
        };
        if let Answer::Known(History { ads, .. }) = &evidence.history {
            add(ads, AdSource::History);
        }
        if let Answer::Known(QueueAnswer { ads, .. }) = &evidence.queue {
            add(ads, AdSource::Queue);
        }
        for seen in by_index.values_mut() {
            seen.sort_by_key(|sighting| (sighting.acceptance, removed_by_us(sighting.ad), sighting.ad.id));
        }
        Self { by_index }
    }

    /// Returns the ads of `index`: those that count first, then by id. Of those that count, surplus ones that we
    /// removed come last.
    #[must_use]
    pub fn of(&self, index: Index) -> &[Sighting<'a>] {
        self.by_index.get(&index).map_or(&[], Vec::as_slice)
    }

    /// Returns all ads with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (Index, &Sighting<'a>)> {
        self.by_index.iter().flat_map(|(index, seen)| seen.iter().map(move |sighting| (*index, sighting)))
    }
}

/// Whether an ad of this kind counts as a job of its object.
#[must_use]
pub const fn counts(acceptance: Acceptance) -> bool {
    match acceptance {
        Acceptance::Accepted | Acceptance::RemovedByOthers => true,
        Acceptance::Staging | Acceptance::Late | Acceptance::Stillborn => false,
    }
}
