//! The workers of a pool, as its collector knows them, and how one of them is sent away.

use std::collections::HashMap;

use super::schedd::{NUMBERS, Schedd, quoted, unknown};
use crate::api::text::{WORDS, harmless};
use crate::confine::job_wrapper::Payloads;
use crate::fence::{Fence, Refused};
use crate::machine::facts::{Unknown, Why};

/// Most bytes of an answer about all slots: 200 of each, and four slots of each of 20,000 startds.
const SLOTS: usize = 200 * 4 * 20_000;
const STATUS: &str = "condor_status";
/// Attribute of slots: what the jobs of the worker are confined by, a word of [`Payloads`].
pub const PAYLOADS: &str = "HTCPayloads";
const DRAIN: &str = "condor_drain";
/// The startd drains already.
const DRAINS_ALREADY: &str = "error code 10001";
/// The expression of `-check` was false for a slot.
const CHECK_FAILED: &str = "error code 10003";

/// What the collector says of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Startds {
    /// How long the collector has run, in seconds, by itself.
    pub collector_age: i64,
    /// What there is to know of each.
    pub startds: HashMap<Who, Startd>,
}

/// Which worker an ad is about. Whoever may advertise one may write anything into it, so it counts for whom both are true.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// The value of the attribute that tells workers apart.
    pub id: String,
    /// Name of its startd, as it stands in the name of each slot: `slot1@NAME`.
    pub name: String,
}

/// A worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Startd {
    /// Jobs have parts of it.
    pub busy: bool,
    /// It takes no more jobs.
    pub draining: bool,
    /// What its jobs are confined by, if it says so.
    pub payloads: Option<Payloads>,
}

/// What became of a wish to drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    /// It drains, be it since before.
    Accepted,
    /// It has jobs, which was not to be.
    Busy,
    /// It is not known; why.
    Unknown(String),
}

impl Schedd {
    /// All startds of the schedd's pool with the attribute `id`.
    pub async fn startds(&self, id: &str) -> Result<Startds, Unknown> {
        let slots =
            ["-constraint", &plain(id), "-af", id, "Name", "PartitionableSlot", "DynamicSlot", "State", PAYLOADS];
        let slots = self.question_to_collector(STATUS, &slots, SLOTS).await?;
        // Asked afterwards: a collector that has begun anew in between is a young one. In the answer to a question about all kinds of
        // ads this number is as old as the collector's last word about itself.
        let age = self.question_to_collector(STATUS, &["-collector", "-af", "StatsLifetime"], NUMBERS).await?;
        let collector_age = String::from_utf8_lossy(&age.stdout).trim().parse().map_err(|_| {
            let message = format!("{STATUS} does not say how long the collector of schedd {} has run", self.name);
            unknown(Why::Incomplete, message)
        })?;
        Ok(Startds { collector_age, startds: read(&String::from_utf8_lossy(&slots.stdout)) })
    }

    /// Whether the schedd has a job on this startd, be it one whose shadow has lost it.
    ///
    /// # Errors
    /// Why that is not known.
    pub async fn has_job_on(&self, startd: &str) -> Result<bool, Unknown> {
        self.has_queued(&runs_on(startd)).await
    }

    /// Has the startd of a slot take no more jobs, finish those that it has, and end. With `if_idle` it does so only if it has none:
    /// it looks itself, in the same step. Fails, and starts no tool, while the fence is closed.
    pub async fn drain(&self, fence: &Fence, slot: &str, if_idle: bool) -> Result<Drained, Refused> {
        let mut arguments = vec!["-graceful", "-exit-on-completion", "-reason", "it is not needed any more"];
        if if_idle {
            arguments.extend(["-check", "DynamicSlot =!= true"]);
        }
        arguments.push(slot);
        fence.check()?;
        Ok(match self.tools.run(DRAIN, &arguments).await {
            Ok(output) if output.status == Some(0) => Drained::Accepted,
            Ok(output) if output.stderr.contains(DRAINS_ALREADY) => Drained::Accepted,
            Ok(output) if if_idle && output.stderr.contains(CHECK_FAILED) => Drained::Busy,
            Ok(output) => Drained::Unknown(format!("{DRAIN}: {}", harmless(&output.stderr, WORDS))),
            Err(error) => Drained::Unknown(error.to_string()),
        })
    }
}

/// Selects slots with short attributes, by a `ClassAd` expression. Payloads may advertise slots with long ones.
fn plain(id: &str) -> String {
    let words = [(id, 64), ("Name", 512), ("State", 32)];
    let words = words.map(|(name, most)| format!("isString({name}) && size({name}) <= {most}"));
    let flags = ["PartitionableSlot", "DynamicSlot"];
    let flags = flags.map(|name| format!("(isUndefined({name}) || isBoolean({name}))"));
    let payloads = format!("(isUndefined({PAYLOADS}) || (isString({PAYLOADS}) && size({PAYLOADS}) <= 32))");
    [&words[..], &flags[..], &[payloads]].concat().join(" && ")
}

/// Selects jobs that have a slot of this startd: `slot1_1@NAME`.
fn runs_on(startd: &str) -> String {
    format!("substr(RemoteHost ?: \"\", -{}) == {}", startd.len() + 1, quoted(&format!("@{startd}")))
}

fn read(text: &str) -> HashMap<Who, Startd> {
    let mut startds: HashMap<Who, Startd> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, slot, rest @ ..] = words.as_slice() else { continue };
        let Some((_, name)) = slot.split_once('@') else { continue };
        let who = Who { id: (*id).to_owned(), name: name.to_owned() };
        match rest {
            ["true", _, state, payloads] => {
                let startd = startds.entry(who).or_default();
                startd.draining |= *state == "Drained";
                startd.payloads = payloads.parse().ok();
            }
            // Its slots for jobs may be told before itself.
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
    fn a_worker_is_busy_while_a_part_of_it_is_taken() {
        let text = "u-1 slot1_1@w-1@p undefined true Claimed Confined\n\
                    u-1 slot1@w-1@p true undefined Unclaimed Confined\n\
                    u-2 slot1@w-2@p true undefined Drained NoLandlock\n\
                    u-3 slot1@w-3@p undefined undefined undefined undefined\n\
                    u-4 slot1@w-4@p true undefined Unclaimed undefined\n\
                    u-4 slot1@w-9@p true undefined Drained x\n\
                    u-4 w-4 true undefined Drained x\n";
        let startds = read(text);
        let of = |id: &str, name: &str| startds.get(&Who { id: id.to_owned(), name: name.to_owned() }).copied();
        assert_eq!(
            of("u-1", "w-1@p"),
            Some(Startd { busy: true, draining: false, payloads: Some(Payloads::Confined) })
        );
        assert_eq!(
            of("u-2", "w-2@p"),
            Some(Startd { busy: false, draining: true, payloads: Some(Payloads::NoLandlock) })
        );
        assert_eq!((of("u-3", "w-3@p"), of("u-4", "w-4@p")), (None, Some(Startd::default())));
    }
}
