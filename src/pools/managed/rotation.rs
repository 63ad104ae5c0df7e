//! How the signing key of a managed pool is replaced: which keys its daemons accept, and what is next, by what is seen.
//!
//! The generation of the `HTCPool` is raised by one. A key of that generation is made, in a Secret of its own. The daemons get both keys, and
//! everybody a token of each; clients of HTCondor take the first token whose key the server names. Workers that have a token of the old key
//! alone are replaced. When there is none of them left, the daemons get the new key alone; and when they say that they have no other, the
//! Secret of the old one is deleted. Nothing is remembered: each step follows from what the Secrets, the pods and the daemons show.

use std::collections::BTreeSet;

use super::names::{Names, Role};
use super::objects::InUse;
use super::said::{SIGNING_KEY_ROTATED, Said};
use crate::api::text::{WORDS, harmless};
use crate::api::{ConditionStatus, HTCPoolStatus, ManagedPool};
use crate::credentials::signing::{SigningKey, key_name};

/// Most holders of old tokens that a message names.
const NAMED: usize = 5;

/// What the `HTCPool` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Of the key that is to sign.
    pub generation: u32,
    /// Keys of lower generations are refused at once.
    pub oldest: u32,
}

/// The newest key that the status of the `HTCPool` names: it has been given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its generation.
    pub generation: u32,
    /// Its fingerprint.
    pub fingerprint: String,
}

/// What the daemons and the holders of tokens show, while there are two keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Of the newest key when this was asked.
    pub newest: u32,
    /// Names of the keys that the daemons of each role accept; or why that is not known.
    pub accepted: Result<Vec<(Role, BTreeSet<String>)>, String>,
    /// Who has tokens of older keys alone.
    pub old: Vec<String>,
}

/// All that the next step follows from.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What the `HTCPool` says.
    pub wish: Wish,
    /// What its status says. None: nothing was given out yet.
    pub known: Option<&'a Known>,
    /// The keys whose Secrets there are, the newest first.
    pub keys: &'a [SigningKey],
    /// Generations of the keys in the Secret of each daemon; those without a Secret are left out.
    pub given: &'a [BTreeSet<u32>],
    /// None: nothing was asked.
    pub evidence: Option<&'a Evidence>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The key of this generation is made.
    Make(u32),
    /// The daemons accept these keys, and tokens are signed with them.
    Accept(Accept),
    /// The Secret of the key of this generation is deleted: nobody accepts it any more.
    Delete(u32),
}

/// Which keys are in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Generation of the newest.
    pub newest: u32,
    /// The one before is accepted, too.
    pub previous: bool,
    /// What a rotation waits for. None: none is under way.
    pub waits: Option<Wait>,
}

/// What a rotation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The status of the `HTCPool` does not name the new key yet.
    NotNoted,
    /// The daemons have not been asked yet which keys they accept.
    NotAsked,
    /// It is not known which keys the daemons accept; why.
    Unknown(String),
    /// The daemons of these roles do not accept the new key yet.
    NotAccepted(Vec<Role>),
    /// These have tokens of the old key alone.
    OldTokens(Vec<String>),
    /// The daemons of these roles accept the old key still.
    StillAccepted(Vec<Role>),
}

/// A key that was given out is not there, or is another one. Nothing is written: who has a token of it must be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The Secret of this generation is gone.
    Gone(u32),
    /// It has another key than the one that was given out.
    Other(u32),
}

impl Wish {
    /// What the `HTCPool` says.
    #[must_use]
    pub fn of(spec: &ManagedPool) -> Self {
        let number = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok()).unwrap_or(1).max(1);
        let key = spec.signing_key.as_ref();
        let generation = number(key.map(|key| key.generation));
        Self { generation, oldest: number(key.and_then(|key| key.oldest_accepted)).min(generation) }
    }
}

impl Known {
    /// What the status of the `HTCPool` says. Earlier versions named no generation: theirs is the first.
    #[must_use]
    pub fn of(status: Option<&HTCPoolStatus>) -> Option<Self> {
        let status = status?;
        let generation = status.signing_key_generation.and_then(|number| u32::try_from(number).ok()).unwrap_or(1);
        Some(Self { generation, fingerprint: status.signing_key.clone()? })
    }
}

impl Accept {
    const fn of(newest: u32, previous: bool, waits: Option<Wait>) -> Next {
        Next::Accept(Self { newest, previous, waits })
    }

    /// What pods are made for.
    #[must_use]
    pub const fn in_use(&self) -> InUse {
        InUse { newest: self.newest, oldest: if self.previous { self.newest - 1 } else { self.newest } }
    }

    /// Generations of the keys, the newest first.
    #[must_use]
    pub fn generations(&self) -> Vec<u32> {
        let previous = self.previous.then(|| self.newest - 1);
        [self.newest].into_iter().chain(previous).collect()
    }
}

/// What is next. A step whose condition is not seen is not taken, and none is taken back.
pub fn next(seen: &Seen<'_>) -> Result<Next, Lost> {
    let Wish { generation: wanted, oldest } = seen.wish;
    let newest = match (seen.known, seen.keys.first()) {
        (None, None) => return Ok(Next::Make(wanted)),
        (None, Some(newest)) => newest.generation(),
        (Some(known), first) => {
            let its = seen.keys.iter().find(|key| key.generation() == known.generation);
            // One that the HTCPool has given up may be missing: that is how a pool is helped that has lost its key.
            let needed = known.generation >= oldest;
            match its {
                None if needed => return Err(Lost::Gone(known.generation)),
                Some(key) if needed && key.fingerprint() != known.fingerprint => {
                    return Err(Lost::Other(known.generation));
                }
                None | Some(_) => {}
            }
            match first.map(SigningKey::generation) {
                // Who has lost it before it was noted would not know that somebody has a token of it.
                Some(newest) if newest > known.generation && needed => {
                    return Ok(Accept::of(known.generation, false, Some(Wait::NotNoted)));
                }
                Some(newest) => newest,
                None => return Ok(Next::Make(known.generation + 1)),
            }
        }
    };
    let previous = newest.saturating_sub(1);
    let revoked = previous < oldest;
    if !seen.keys.iter().any(|key| key.generation() == previous) {
        if !revoked && seen.given.iter().any(|given| given.contains(&previous)) {
            return Err(Lost::Gone(previous));
        }
        if seen.given.iter().any(|given| given.contains(&previous)) {
            return Ok(Accept::of(newest, false, Some(Wait::NotAsked)));
        }
        return Ok(if newest < wanted { Next::Make(newest + 1) } else { Accept::of(newest, false, None) });
    }
    let evidence = seen.evidence.filter(|evidence| evidence.newest == newest);
    let has = |given: &BTreeSet<u32>| (given.contains(&newest), given.contains(&previous));
    let withdrawn = seen.given.iter().any(|given| has(given) == (true, false));
    if !withdrawn && !revoked {
        if let Some(wait) = overlaps(newest, evidence) {
            return Ok(Accept::of(newest, true, Some(wait)));
        }
        return Ok(Accept::of(newest, false, Some(Wait::NotAsked)));
    }
    let all_withdrawn = seen.given.iter().all(|given| has(given) == (true, false));
    match still_accepted(newest, previous, evidence) {
        None if all_withdrawn && !seen.given.is_empty() => Ok(Next::Delete(previous)),
        wait => Ok(Accept::of(newest, false, Some(wait.unwrap_or(Wait::NotAsked)))),
    }
}

/// Which keys the daemons of each role accept: at least the newest one.
fn accepted(newest: u32, evidence: Option<&Evidence>) -> Result<&[(Role, BTreeSet<String>)], Wait> {
    let accepted = match evidence.map(|evidence| &evidence.accepted) {
        None => return Err(Wait::NotAsked),
        Some(Err(why)) => return Err(Wait::Unknown(why.clone())),
        Some(Ok(accepted)) => accepted,
    };
    let lacking = roles(accepted, |names| !names.contains(&key_name(newest)));
    if lacking.is_empty() { Ok(accepted) } else { Err(Wait::NotAccepted(lacking)) }
}

/// Why the old key is needed still. None: nobody needs it.
fn overlaps(newest: u32, evidence: Option<&Evidence>) -> Option<Wait> {
    if let Err(wait) = accepted(newest, evidence) {
        return Some(wait);
    }
    let old = evidence.map(|evidence| &evidence.old).filter(|old| !old.is_empty())?;
    Some(Wait::OldTokens(old.clone()))
}

/// Who accepts the old key still. None: nobody does, by their own word.
fn still_accepted(newest: u32, previous: u32, evidence: Option<&Evidence>) -> Option<Wait> {
    let accepted = match accepted(newest, evidence) {
        Err(wait) => return Some(wait),
        Ok(accepted) => accepted,
    };
    let still = roles(accepted, |names| names.contains(&key_name(previous)));
    (!still.is_empty()).then_some(Wait::StillAccepted(still))
}

fn roles(accepted: &[(Role, BTreeSet<String>)], which: impl Fn(&BTreeSet<String>) -> bool) -> Vec<Role> {
    accepted.iter().filter(|(_, names)| which(names)).map(|(role, _)| *role).collect()
}

/// What is to be said where a rotation has not begun, or cannot go on.
pub(super) fn not_rotated(reason: &'static str, message: String) -> Said {
    Said { kind: SIGNING_KEY_ROTATED, status: ConditionStatus::False, reason, message }
}

/// What is to be said of the keys in use.
pub(super) fn rotation_said(accept: &Accept, names: &Names) -> Said {
    let (new, old) = (accept.newest, accept.newest.saturating_sub(1));
    let said = |status, reason, message| Said { kind: SIGNING_KEY_ROTATED, status, reason, message };
    let no = |reason, message| said(ConditionStatus::False, reason, message);
    let list = |roles: &[Role]| roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    match &accept.waits {
        None => {
            let secret = names.signing_key(new);
            let message = format!("all tokens are of the signing key of generation {new}, in the Secret {secret}");
            said(ConditionStatus::True, "OneKey", message)
        }
        Some(Wait::NotNoted) => {
            no("NewKeyNotAccepted", format!("the signing key of generation {} is made", accept.newest + 1))
        }
        Some(Wait::NotAsked) if accept.previous => no(
            "NewKeyNotAccepted",
            format!("whether the daemons accept the signing key of generation {new} is being asked"),
        ),
        Some(Wait::NotAsked) => no(
            "OldKeyAccepted",
            format!("whether the daemons refuse the signing key of generation {old} is being asked"),
        ),
        Some(Wait::Unknown(why)) => {
            let message = format!("it is not known which signing keys the daemons accept: {}", harmless(why, WORDS));
            said(ConditionStatus::Unknown, "DaemonsSilent", message)
        }
        Some(Wait::NotAccepted(roles)) => {
            let message = format!("{} must start again with the signing key of generation {new}, too", list(roles));
            no("NewKeyNotAccepted", message)
        }
        Some(Wait::OldTokens(holders)) => {
            let first = holders.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = holders.len().saturating_sub(NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let message = format!(
                "{} with tokens of generation {old}: {first}{more}; workers end after their jobs, and one that is being deleted on a lost node when the Node is deleted. To wait no longer: set spec.managed.signingKey.oldestAccepted to {new}",
                holders.len()
            );
            no("OldTokensInUse", message)
        }
        Some(Wait::StillAccepted(roles)) => {
            let message = format!("{} must start again without the signing key of generation {old}", list(roles));
            no("OldKeyAccepted", message)
        }
    }
}

#[cfg(test)]
mod tests;
