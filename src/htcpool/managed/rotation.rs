//! Rotation of a managed pool's signing key: decides from what is observed which keys the daemons accept, and what is
//! next.
//!
//! 1. The generation in the `HTCPool` is raised by one.
//! 2. A key of that generation is created, in a Secret of its own.
//! 3. The daemons get both keys, and all clients a token of each. HTCondor's clients take the first token whose key the
//!    server names.
//! 4. Workers that have only a token of the old key are replaced.
//! 5. When none of them is left, the daemons get the new key alone.
//! 6. When the daemons report that they have no other key, the Secret of the old one is deleted.
//!
//! No state is kept: each step follows from the Secrets, the pods and the daemons.

use std::collections::BTreeSet;

use htc_api::{ConditionStatus, HTCPoolStatus, ManagedPool};
use htc_machine::facts::QueryError;
use htc_machine::text::{MAX_MESSAGE, sanitize};

use super::names::{PoolNames, Role};
use super::objects::KeyGenerations;
use crate::backends::condor::credentials::signing::{SigningKey, key_name};
use crate::htcpool::managed::conditions::{PoolCondition, SIGNING_KEY_ROTATED};

/// Maximum number of holders of old tokens that a message names.
const NAMED: usize = 5;

/// The keys that the `HTCPool` requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedKeys {
    /// Generation of the key that signs tokens.
    pub generation: u32,
    /// Oldest accepted generation. Older keys are refused at once.
    pub oldest: u32,
}

/// The newest key in the status of the `HTCPool`: tokens may have been signed with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedKey {
    /// Generation of the key.
    pub generation: u32,
    /// Fingerprint of the key.
    pub fingerprint: String,
}

/// Observations of the daemons and of the holders of tokens, while there are two keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationEvidence {
    /// Generation of the newest key at the time of the queries.
    pub newest: u32,
    /// Names of the keys that the daemons of each role accept, or why they are not known.
    pub accepted: Result<Vec<(Role, BTreeSet<String>)>, QueryError>,
    /// Names of the holders that have tokens of older keys only.
    pub old_tokens: Vec<String>,
}

/// Input of the decision on the next step.
#[derive(Clone, Copy, Debug)]
pub struct RotationInput<'a> {
    /// The keys that the `HTCPool` requests.
    pub wish: RequestedKeys,
    /// The key in the status. `None`: no key has been used yet.
    pub known: Option<&'a PublishedKey>,
    /// The keys that have a Secret, the newest first.
    pub keys: &'a [SigningKey],
    /// Generations of the keys in the Secret of each daemon. Daemons without a Secret are left out.
    pub given: &'a [BTreeSet<u32>],
    /// Result of the queries; `None` if there were none.
    pub evidence: Option<&'a RotationEvidence>,
}

/// The next step of a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Create the key of this generation.
    Make(u32),
    /// Let the daemons accept these keys, and sign tokens with them.
    Accept(AcceptedKeys),
    /// Delete the Secret with the key of this generation: no daemon accepts it any more.
    Delete(u32),
}

/// The keys in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedKeys {
    /// Generation of the newest key.
    pub newest: u32,
    /// Whether the key before it is accepted, too.
    pub previous: bool,
    /// Condition that the rotation waits for; `None` if no rotation is under way.
    pub waits_for: Option<RotationWait>,
}

/// Condition that a rotation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationWait {
    /// The new key to be recorded in the status of the `HTCPool`.
    NotNoted,
    /// The first query of the keys that the daemons accept.
    NotAsked,
    /// An answer of the daemons. The query of their keys has failed, for this reason.
    Unknown(String),
    /// The daemons of these roles to accept the new key.
    NotAccepted(Vec<Role>),
    /// The end of these holders, who have tokens of the old key only.
    OldTokens(Vec<String>),
    /// The daemons of these roles to refuse the old key.
    StillAccepted(Vec<Role>),
}

/// A key that tokens were signed with is missing, or was replaced. Nothing is written, as these tokens must stay valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLoss {
    /// The Secret of the key of this generation is gone.
    Missing(u32),
    /// The Secret of this generation has another key than before.
    Replaced(u32),
}

impl RequestedKeys {
    /// Reads the spec of the `HTCPool`.
    #[must_use]
    pub fn of(spec: &ManagedPool) -> Self {
        let number = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok()).unwrap_or(1).max(1);
        let key = spec.signing_key.as_ref();
        let generation = number(key.map(|key| key.generation));
        Self { generation, oldest: number(key.and_then(|key| key.oldest_accepted)).min(generation) }
    }
}

impl PublishedKey {
    /// Reads the status of the `HTCPool`. Earlier versions wrote no generation: theirs is the first.
    #[must_use]
    pub fn of(status: Option<&HTCPoolStatus>) -> Option<Self> {
        let status = status?;
        let generation = status.signing_key_generation.and_then(|number| u32::try_from(number).ok()).unwrap_or(1);
        Some(Self { generation, fingerprint: status.signing_key.clone()? })
    }
}

impl AcceptedKeys {
    const fn of(newest: u32, previous: bool, waits: Option<RotationWait>) -> RotationStep {
        RotationStep::Accept(Self { newest, previous, waits_for: waits })
    }

    /// Returns the generations that pods are created for.
    #[must_use]
    pub const fn in_use(&self) -> KeyGenerations {
        KeyGenerations { newest: self.newest, oldest: if self.previous { self.newest - 1 } else { self.newest } }
    }

    /// Returns the generations of the keys, the newest first.
    #[must_use]
    pub fn generations(&self) -> Vec<u32> {
        let previous = self.previous.then(|| self.newest - 1);
        [self.newest].into_iter().chain(previous).collect()
    }
}

/// Decides on the next step. No step is taken before its precondition is observed, and none is undone.
///
/// # Errors
/// A key that tokens were signed with is missing, or was replaced.
pub fn next_step(seen: &RotationInput<'_>) -> Result<RotationStep, KeyLoss> {
    let RequestedKeys { generation: wanted, oldest } = seen.wish;
    let newest = match (seen.known, seen.keys.first()) {
        (None, None) => return Ok(RotationStep::Make(wanted)),
        (None, Some(newest)) => newest.generation(),
        (Some(known), first) => {
            let its = seen.keys.iter().find(|key| key.generation() == known.generation);
            // A key that the HTCPool has given up may be missing: this is how a pool recovers from the loss of its key.
            let needed = known.generation >= oldest;
            match its {
                None if needed => return Err(KeyLoss::Missing(known.generation)),
                Some(key) if needed && key.fingerprint() != known.fingerprint => {
                    return Err(KeyLoss::Replaced(known.generation));
                }
                None | Some(_) => {}
            }
            match first.map(SigningKey::generation) {
                // Until it is in the status the key is not used: if it were lost, its tokens would be in use without a
                // trace of it.
                Some(newest) if newest > known.generation && needed => {
                    return Ok(AcceptedKeys::of(known.generation, false, Some(RotationWait::NotNoted)));
                }
                Some(newest) => newest,
                None => return Ok(RotationStep::Make(known.generation + 1)),
            }
        }
    };
    let previous = newest.saturating_sub(1);
    let revoked = previous < oldest;
    if !seen.keys.iter().any(|key| key.generation() == previous) {
        if !revoked && seen.given.iter().any(|given| given.contains(&previous)) {
            return Err(KeyLoss::Missing(previous));
        }
        if seen.given.iter().any(|given| given.contains(&previous)) {
            return Ok(AcceptedKeys::of(newest, false, Some(RotationWait::NotAsked)));
        }
        return Ok(if newest < wanted {
            RotationStep::Make(newest + 1)
        } else {
            AcceptedKeys::of(newest, false, None)
        });
    }
    let evidence = seen.evidence.filter(|evidence| evidence.newest == newest);
    let has = |given: &BTreeSet<u32>| (given.contains(&newest), given.contains(&previous));
    let withdrawn = seen.given.iter().any(|given| has(given) == (true, false));
    if !withdrawn && !revoked {
        if let Some(wait) = overlaps(newest, evidence) {
            return Ok(AcceptedKeys::of(newest, true, Some(wait)));
        }
        return Ok(AcceptedKeys::of(newest, false, Some(RotationWait::NotAsked)));
    }
    let all_withdrawn = seen.given.iter().all(|given| has(given) == (true, false));
    match still_accepted(newest, previous, evidence) {
        None if all_withdrawn && !seen.given.is_empty() => Ok(RotationStep::Delete(previous)),
        wait => Ok(AcceptedKeys::of(newest, false, Some(wait.unwrap_or(RotationWait::NotAsked)))),
    }
}

/// Returns the keys that the daemons of each role accept, if all accept at least the newest one.
fn accepted(newest: u32, evidence: Option<&RotationEvidence>) -> Result<&[(Role, BTreeSet<String>)], RotationWait> {
    let accepted = match evidence.map(|evidence| &evidence.accepted) {
        None => return Err(RotationWait::NotAsked),
        Some(Err(unknown)) => return Err(RotationWait::Unknown(unknown.message.clone())),
        Some(Ok(accepted)) => accepted,
    };
    let lacking = roles(accepted, |names| !names.contains(&key_name(newest)));
    if lacking.is_empty() { Ok(accepted) } else { Err(RotationWait::NotAccepted(lacking)) }
}

/// Returns why the old key is still needed; `None` if it is not.
fn overlaps(newest: u32, evidence: Option<&RotationEvidence>) -> Option<RotationWait> {
    if let Err(wait) = accepted(newest, evidence) {
        return Some(wait);
    }
    let old = evidence.map(|evidence| &evidence.old_tokens).filter(|old| !old.is_empty())?;
    Some(RotationWait::OldTokens(old.clone()))
}

/// Returns the daemons that still accept the old key, or why they are not known; `None` if all report that they do not.
fn still_accepted(newest: u32, previous: u32, evidence: Option<&RotationEvidence>) -> Option<RotationWait> {
    let accepted = match accepted(newest, evidence) {
        Err(wait) => return Some(wait),
        Ok(accepted) => accepted,
    };
    let still = roles(accepted, |names| names.contains(&key_name(previous)));
    (!still.is_empty()).then_some(RotationWait::StillAccepted(still))
}

fn roles(accepted: &[(Role, BTreeSet<String>)], which: impl Fn(&BTreeSet<String>) -> bool) -> Vec<Role> {
    accepted.iter().filter(|(_, names)| which(names)).map(|(role, _)| *role).collect()
}

/// Returns the condition of a rotation that has not begun, or cannot go on.
pub(super) fn not_rotated_condition(reason: &'static str, message: String) -> PoolCondition {
    PoolCondition { kind: SIGNING_KEY_ROTATED, status: ConditionStatus::False, reason, message }
}

/// Returns the condition about the keys in use.
pub(super) fn rotation_condition(accept: &AcceptedKeys, names: &PoolNames) -> PoolCondition {
    let (new, old) = (accept.newest, accept.newest.saturating_sub(1));
    let said = |status, reason, message| PoolCondition { kind: SIGNING_KEY_ROTATED, status, reason, message };
    let no = |reason, message| said(ConditionStatus::False, reason, message);
    let list = |roles: &[Role]| roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    match &accept.waits_for {
        None => {
            let secret = names.signing_key(new);
            let message = format!("all tokens are of the signing key of generation {new}, in the Secret {secret}");
            said(ConditionStatus::True, "OneKey", message)
        }
        Some(RotationWait::NotNoted) => {
            no("NewKeyNotAccepted", format!("the signing key of generation {} is made", accept.newest + 1))
        }
        Some(RotationWait::NotAsked) if accept.previous => no(
            "NewKeyNotAccepted",
            format!("whether the daemons accept the signing key of generation {new} is being asked"),
        ),
        Some(RotationWait::NotAsked) => no(
            "OldKeyAccepted",
            format!("whether the daemons refuse the signing key of generation {old} is being asked"),
        ),
        Some(RotationWait::Unknown(why)) => {
            let message =
                format!("it is not known which signing keys the daemons accept: {}", sanitize(why, MAX_MESSAGE));
            said(ConditionStatus::Unknown, "DaemonsSilent", message)
        }
        Some(RotationWait::NotAccepted(roles)) => {
            let message = format!("{} must start again with the signing key of generation {new}, too", list(roles));
            no("NewKeyNotAccepted", message)
        }
        Some(RotationWait::OldTokens(holders)) => {
            let first = holders.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = holders.len().saturating_sub(NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let message = format!(
                "{} with tokens of generation {old}: {first}{more}; workers end after their jobs, and one that is being deleted on a lost node when the Node is deleted. To wait no longer: set spec.managed.signingKey.oldestAccepted to {new}",
                holders.len()
            );
            no("OldTokensInUse", message)
        }
        Some(RotationWait::StillAccepted(roles)) => {
            let message = format!("{} must start again without the signing key of generation {old}", list(roles));
            no("OldKeyAccepted", message)
        }
    }
}

#[cfg(test)]
mod tests;
