//! Workers of a pool as its collector lists them, and draining one of them.

use std::collections::HashMap;

use htc_confine::job_wrapper::PayloadConfinement;
use htc_machine::facts::{QueryError, QueryErrorKind};
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_support::fence::{Fence, FenceClosed};

use super::schedd::{NUMBERS, Schedd, quoted, unknown};

/// Maximum bytes of an answer about all slots: 200 for each, and four slots for each of 20,000 startds.
const SLOTS: usize = 200 * 4 * 20_000;
const STATUS: &str = "condor_status";
/// Attribute of slots: how the worker's jobs are confined, a word of [`PayloadConfinement`].
pub const PAYLOADS_ATTRIBUTE: &str = "HTCPayloads";
const DRAIN: &str = "condor_drain";
/// Error of condor_drain: the startd is already draining.
const DRAINS_ALREADY: &str = "error code 10001";
/// Error of condor_drain: the expression of `-check` was false for a slot.
const CHECK_FAILED: &str = "error code 10003";

/// The collector's answer about workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Startds {
    /// Seconds for which the collector has run, as it reports itself.
    pub collector_age: i64,
    pub startds: HashMap<StartdId, Startd>,
}

/// Identifies the worker of an ad. Anyone who may advertise one may write anything into it, so an ad counts only for
/// the worker with this id and this name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StartdId {
    /// Value of the attribute that distinguishes workers.
    pub id: String,
    /// Name of its startd, as in the name of each slot: `slot1@NAME`.
    pub name: String,
}

/// State of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Startd {
    /// Whether jobs occupy parts of it.
    pub busy: bool,
    /// Whether it accepts no more jobs.
    pub draining: bool,
    /// How its jobs are confined, if it advertises that.
    pub payloads: Option<PayloadConfinement>,
}

/// Result of a drain request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainResult {
    /// The worker drains now, or did so already.
    Accepted,
    /// The worker has jobs, and was to drain only without any.
    Busy,
    /// The result is unknown, for this reason.
    Unknown(String),
}

impl Schedd {
    /// Returns all startds of the schedd's pool that have the attribute `id`.
    pub async fn startds(&self, id: &str) -> Result<Startds, QueryError> {
        let slots = [
            "-constraint",
            &plain(id),
            "-af",
            id,
            "Name",
            "PartitionableSlot",
            "DynamicSlot",
            "State",
            PAYLOADS_ATTRIBUTE,
        ];
        let slots = self.ask_collector(STATUS, &slots, SLOTS).await?;
        // Queried after the slots: a collector that has restarted in between is then a young one. In an answer about
        // all kinds of ads this number would be as old as the collector's last update about itself.
        let age = self.ask_collector(STATUS, &["-collector", "-af", "StatsLifetime"], NUMBERS).await?;
        let collector_age = String::from_utf8_lossy(&age.stdout).trim().parse().map_err(|_| {
            let message = format!("{STATUS} does not say how long the collector of schedd {} has run", self.name);
            unknown(QueryErrorKind::Incomplete, message)
        })?;
        Ok(Startds { collector_age, startds: read(&String::from_utf8_lossy(&slots.stdout)) })
    }

    /// Returns whether the schedd has a job on this startd, including a job whose shadow has lost contact.
    ///
    /// # Errors
    /// The reason why that is unknown.
    pub async fn has_job_on(&self, startd: &str) -> Result<bool, QueryError> {
        self.has_queued(&runs_on(startd)).await
    }

    /// Lets the startd of a slot accept no more jobs, finish its present ones, and end. With `if_idle` it does so only
    /// if it has no jobs: the startd itself checks that, in the same step. Fails without starting a tool while the
    /// fence is closed.
    pub async fn drain(&self, fence: &Fence, slot: &str, if_idle: bool) -> Result<DrainResult, FenceClosed> {
        let mut arguments = vec!["-graceful", "-exit-on-completion", "-reason", "it is not needed any more"];
        if if_idle {
            arguments.extend(["-check", "DynamicSlot =!= true"]);
        }
        arguments.push(slot);
        fence.check()?;
        Ok(match self.tools.run(DRAIN, &arguments).await {
            Ok(output) if output.status == Some(0) => DrainResult::Accepted,
            Ok(output) if output.stderr.contains(DRAINS_ALREADY) => DrainResult::Accepted,
            Ok(output) if if_idle && output.stderr.contains(CHECK_FAILED) => DrainResult::Busy,
            Ok(output) => DrainResult::Unknown(format!("{DRAIN}: {}", sanitize(&output.stderr, MAX_MESSAGE))),
            Err(error) => DrainResult::Unknown(error.to_string()),
        })
    }
}

/// Returns a `ClassAd` expression for slots with short attributes. Payloads may advertise slots with long ones.
fn plain(id: &str) -> String {
    let words = [(id, 64), ("Name", 512), ("State", 32)];
    let words = words.map(|(name, most)| format!("isString({name}) && size({name}) <= {most}"));
    let flags = ["PartitionableSlot", "DynamicSlot"];
    let flags = flags.map(|name| format!("(isUndefined({name}) || isBoolean({name}))"));
    let payloads = format!(
        "(isUndefined({PAYLOADS_ATTRIBUTE}) || (isString({PAYLOADS_ATTRIBUTE}) && size({PAYLOADS_ATTRIBUTE}) <= 32))"
    );
    [&words[..], &flags[..], &[payloads]].concat().join(" && ")
}

/// Returns a `ClassAd` expression for jobs on a slot of this startd: `slot1_1@NAME`.
fn runs_on(startd: &str) -> String {
    format!("substr(RemoteHost ?: \"\", -{}) == {}", startd.len() + 1, quoted(&format!("@{startd}")))
}

fn read(text: &str) -> HashMap<StartdId, Startd> {
    let mut startds: HashMap<StartdId, Startd> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, slot, rest @ ..] = words.as_slice() else { continue };
        let Some((_, name)) = slot.split_once('@') else { continue };
        let who = StartdId { id: (*id).to_owned(), name: name.to_owned() };
        match rest {
            ["true", _, state, payloads] => {
                let startd = startds.entry(who).or_default();
                startd.draining |= *state == "Drained";
                startd.payloads = payloads.parse().ok();
            }
            // Dynamic slots may be listed before their partitionable slot.
            [_, "true", _, _] => startds.entry(who).or_default().busy = true,
            _ => {}
        }
    }
    startds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startd_is_busy_while_any_slot_is_claimed() {
        let text = "u-1 slot1_1@w-1@p undefined true Claimed Confined\n\
                    u-1 slot1@w-1@p true undefined Unclaimed Confined\n\
                    u-2 slot1@w-2@p true undefined Drained NoLandlock\n\
                    u-3 slot1@w-3@p undefined undefined undefined undefined\n\
                    u-4 slot1@w-4@p true undefined Unclaimed undefined\n\
                    u-4 slot1@w-9@p true undefined Drained x\n\
                    u-4 w-4 true undefined Drained x\n";
        let startds = read(text);
        let of = |id: &str, name: &str| startds.get(&StartdId { id: id.to_owned(), name: name.to_owned() }).copied();
        assert_eq!(
            of("u-1", "w-1@p"),
            Some(Startd { busy: true, draining: false, payloads: Some(PayloadConfinement::Confined) })
        );
        assert_eq!(
            of("u-2", "w-2@p"),
            Some(Startd { busy: false, draining: true, payloads: Some(PayloadConfinement::NoLandlock) })
        );
        assert_eq!((of("u-3", "w-3@p"), of("u-4", "w-4@p")), (None, Some(Startd::default())));
    }
}
