//! One schedd: who it is, what time it has, and who we are to it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::tools::{Output, ToolError, Tools};
use crate::clock::Clock;
use crate::machine::facts::{Unknown, Why};
use crate::machine::{Birthdate, SchedDate, ScheddName, Timestamp, Uid};

/// ClassAd expression for jobs of no operator of this kind.
pub(super) const NOT_ADOPTED: &str = "HTCOperator =?= undefined && HTCJobUID =?= undefined";

/// A schedd and how this operator speaks to it.
#[derive(Debug)]
pub struct Schedd {
    /// Its name, as the collector knows it.
    pub name: ScheddName,
    /// Value of `HTCOperator` in the ads of this operator's jobs.
    pub operator: String,
    /// HTCondor's tools.
    pub tools: Tools,
    /// The operator's clock.
    pub clock: Clock,
    identities: Mutex<BTreeSet<String>>,
    latest: Mutex<Option<Reading>>,
}

/// A reading is used so long; with the time that has passed since, it says the schedd's time as well as a new one.
const RECENT: Duration = Duration::from_secs(2);

/// A reading of a schedd's clock, together with the birthdate of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// `JobQueueBirthdate`
    pub birthdate: Birthdate,
    /// `MyCurrentTime`
    pub date: SchedDate,
    /// When it was read, on the operator's clock.
    pub at: Timestamp,
}

impl Schedd {
    /// A schedd by name; nothing is asked yet. `identities`: under which names this operator has submitted before.
    #[must_use]
    pub fn new(name: ScheddName, operator: String, tools: Tools, clock: Clock, identities: BTreeSet<String>) -> Self {
        Self { name, operator, tools, clock, identities: Mutex::new(identities), latest: Mutex::default() }
    }

    /// Reads its clock and its birthdate.
    pub async fn reading(&self) -> Result<Reading, Unknown> {
        const TOOL: &str = "condor_status";
        let arguments = ["-schedd", "-direct", self.name.as_str(), "-af", "JobQueueBirthdate", "MyCurrentTime"];
        let output = self.answer(TOOL, self.tools.run(TOOL, &arguments).await)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut numbers = text.split_whitespace().map(str::parse::<i64>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(birthdate)), Some(Ok(date)), None) => {
                let reading = Reading { birthdate: Birthdate(birthdate), date: SchedDate(date), at: self.clock.now() };
                *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
                Ok(reading)
            }
            _ => Err(unknown(
                Why::Incomplete,
                format!(
                    "{TOOL} says {:?} where the birthdate and the time of schedd {} should be",
                    text.trim(),
                    self.name
                ),
            )),
        }
    }

    /// The latest reading if it is recent, else a new one: for what comes after it.
    pub async fn recent_reading(&self) -> Result<Reading, Unknown> {
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match latest {
            Some(reading) if self.clock.now().since(reading.at) < RECENT => Ok(reading),
            Some(_) | None => self.reading().await,
        }
    }

    /// Asks the schedd who we are to it: attribute `User` of the jobs that we submit now.
    pub async fn identity(&self) -> Result<String, Unknown> {
        const TOOL: &str = "condor_ping";
        let arguments = ["-type", "schedd", "-name", self.name.as_str(), "WRITE", "-af", "MyRemoteUserName"];
        let output = self.answer(TOOL, self.tools.run(TOOL, &arguments).await)?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let plain = text.contains('@') && !text.contains(char::is_whitespace) && !text.contains(['"', '\\']);
        if !plain {
            let message = format!("schedd {} does not say who we are: {text}", self.name);
            return Err(unknown(Why::CredentialsRefused, message));
        }
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone());
        Ok(text)
    }

    /// Whether `User` of an ad is, or was, us.
    pub(super) fn is_us(&self, user: &str) -> bool {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).contains(user)
    }

    /// Everybody that we are, or have been, to the schedd.
    async fn identities(&self) -> Result<Vec<String>, Unknown> {
        let known = || -> Vec<String> {
            self.identities.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|name| quoted(name)).collect()
        };
        if known().is_empty() {
            self.identity().await?;
        }
        Ok(known())
    }

    /// ClassAd expression for the jobs of this operator. Anybody can write `HTCOperator` into an ad, nobody else our `User`.
    pub async fn ours(&self) -> Result<String, Unknown> {
        let identities = self.identities().await?.join(",");
        Ok(format!("HTCOperator =?= {} && member(User, {{{identities}}})", quoted(&self.operator)))
    }

    /// ClassAd expression for the jobs of these objects. `member` instead of `||`: 25.14 matches nothing, and says
    /// nothing, from 400 alternatives on.
    pub async fn jobs_of<'a>(&self, uids: impl IntoIterator<Item = &'a Uid>) -> Result<String, Unknown> {
        let list: Vec<String> = uids.into_iter().map(|uid| quoted(uid.as_str())).collect();
        Ok(format!("{} && member(HTCJobUID, {{{}}})", self.ours().await?, list.join(",")))
    }

    /// ClassAd expression for jobs that are ours by their user alone: those of the Go operator are among them.
    pub(super) async fn not_adopted(&self) -> Result<String, Unknown> {
        Ok(format!("{NOT_ADOPTED} && member(User, {{{}}})", self.identities().await?.join(",")))
    }

    /// What a tool said, unless it failed.
    pub(super) fn answer(&self, tool: &str, result: Result<Output, ToolError>) -> Result<Output, Unknown> {
        match result {
            Ok(output) if output.status == Some(0) => {
                crate::health::schedd_seen();
                Ok(output)
            }
            Ok(output) => Err(self.trouble(tool, &output)),
            Err(error @ ToolError::NotStarted { .. }) => Err(unknown(Why::ScheddUnreachable, error.to_string())),
            Err(error) => Err(self.silent(&error)),
        }
    }

    /// What a tool that came to no end means.
    fn silent(&self, error: &ToolError) -> Unknown {
        let message = format!("schedd {} does not answer ({error}); check that it runs and can be reached", self.name);
        unknown(Why::ScheddUnreachable, message)
    }

    /// What a failing tool means.
    pub(super) fn trouble(&self, tool: &str, output: &Output) -> Unknown {
        let words = if output.stderr.is_empty() {
            String::from_utf8_lossy(&output.stdout)
        } else {
            output.stderr.as_str().into()
        };
        let words: Vec<&str> = words.lines().map(str::trim).filter(|line| !line.is_empty()).take(4).collect();
        let words = words.join(" ");
        let refused = ["AUTHENTICATE:", "DENIED", "Permission denied", "not authorized"];
        if refused.iter().any(|sign| words.contains(sign)) {
            let message = format!(
                "schedd {} refuses the operator's credentials ({tool}: {words}); check its token or ticket",
                self.name
            );
            unknown(Why::CredentialsRefused, message)
        } else {
            let message = format!(
                "schedd {} does not answer ({tool}: {words}); check that it runs and can be reached",
                self.name
            );
            unknown(Why::ScheddUnreachable, message)
        }
    }
}

pub(super) fn unknown(why: Why, message: String) -> Unknown {
    Unknown { why, message }
}

/// A ClassAd string.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
