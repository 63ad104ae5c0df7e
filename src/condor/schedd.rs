//! One schedd: who it is, what time it has, and who we are to it.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ads::{AdReader, NotComplete};
use super::known_users::KnownUsers;
use super::pauses::Pauses;
use super::row::{Row, Rows};
use super::suspects::Suspects;
use super::tools::{Cost, Listener, Output, ToolError, Tools};
use crate::api::text::{WORDS, harmless};
use crate::api::{Identity, ObjectName};
use crate::clock::Clock;
use crate::health::Health;
use crate::machine::facts::{Unknown, Why};
use crate::machine::{Birthdate, SchedDate, ScheddName, Timestamp, Uid};

/// What the queue is asked by.
pub(super) const QUEUE_TOOL: &str = "condor_q";

/// What output is fetched by.
pub(super) const FETCH_TOOL: &str = "condor_transfer_data";

/// ClassAd expression for jobs of no operator of this kind.
pub(super) const NOT_ADOPTED: &str = "HTCOperator =?= undefined && HTCJobUID =?= undefined";

/// Attribute of a schedd's ad: how the shadows of a managed pool are confined, in one word.
pub const SHADOWS: &str = "HTCShadows";

/// Most bytes of a list in a constraint.
const LIST: usize = 32 * 1024;

/// An answer may have so many bytes that no ad of ours has.
pub(super) const EXCESS: usize = 4 * 1024 * 1024;

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
    /// Whose credentials the tools have.
    pub identity: Identity,
    /// Who we are, and have been, to the schedd.
    pub users: Arc<KnownUsers>,
    /// For whom no tool may be started now.
    pub pauses: Arc<Pauses>,
    pub(super) suspects: Arc<Suspects>,
    /// Where the operator's own credentials are, if they are those of an `HTCPool`.
    secret: Option<ObjectName>,
    lacking: Arc<Mutex<Option<String>>>,
    latest: Mutex<Option<Reading>>,
    spent: Mutex<Cost>,
    shadows: Mutex<Option<String>>,
    health: Health,
}

/// A reading is used so long; with the time that has passed since, it says the schedd's time as well as a new one.
const RECENT: Duration = Duration::from_secs(2);
/// From this time on an authentication that failed is one that was not answered. HTCondor's own limit is 20 s
/// (`SEC_DEFAULT_AUTHENTICATION_TIMEOUT`).
const BUSY: Duration = Duration::from_secs(8);
/// Most bytes of an answer that is numbers and names.
pub(super) const NUMBERS: usize = 4 * 1024;
/// Most bytes of who a schedd says that we are: it becomes part of the arguments of tools.
const IDENTITY: usize = 256;

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
    /// A schedd by name; nothing is asked yet. `users`: the names under which this operator has submitted before.
    #[must_use]
    pub fn new(
        name: ScheddName,
        operator: String,
        tools: Tools,
        clock: Clock,
        users: KnownUsers,
        health: Health,
    ) -> Self {
        Self::with_users(name, operator, tools, clock, Arc::new(users), health)
    }

    fn with_users(
        name: ScheddName,
        operator: String,
        tools: Tools,
        clock: Clock,
        users: Arc<KnownUsers>,
        health: Health,
    ) -> Self {
        Self {
            name,
            operator,
            tools,
            clock,
            identity: Identity::Operator,
            users,
            pauses: Arc::default(),
            suspects: Arc::default(),
            secret: None,
            lacking: Arc::default(),
            latest: Mutex::default(),
            spent: Mutex::default(),
            shadows: Mutex::default(),
            health,
        }
    }

    /// The same with the operator's own credentials in the Secret of an `HTCPool`.
    #[must_use]
    pub fn with_secret(self, secret: ObjectName) -> Self {
        Self { secret: Some(secret), ..self }
    }

    /// The same schedd for another identity, whose tools these are.
    #[must_use]
    pub fn acting_as(&self, identity: Identity, tools: Tools) -> Self {
        let (name, operator, health) = (self.name.clone(), self.operator.clone(), self.health.clone());
        Self {
            identity,
            pauses: Arc::clone(&self.pauses),
            suspects: Arc::clone(&self.suspects),
            secret: self.secret.clone(),
            ..Self::with_users(name, operator, tools, self.clock, Arc::clone(&self.users), health)
        }
    }

    /// Why the tools have no credentials that are good for anything, if they should have some: what fails then fails for that.
    pub fn lacks_credentials(&self, why: Option<String>) {
        *self.lacking.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Reads its clock and its birthdate.
    pub async fn reading(&self) -> Result<Reading, Unknown> {
        const TOOL: &str = "condor_status";
        let arguments = ["-schedd", "-direct", self.name.as_str(), "-af", "JobQueueBirthdate", "MyCurrentTime"];
        let output = self.question(TOOL, &arguments, self.tools.limit, NUMBERS).await?;
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
                    harmless(text.trim(), WORDS),
                    self.name
                ),
            )),
        }
    }

    /// Its name as it says it itself, and its birthdate: no two schedds have both in common.
    pub async fn who(&self) -> Result<(String, Birthdate), Unknown> {
        const TOOL: &str = "condor_status";
        let arguments = ["-schedd", "-direct", self.name.as_str(), "-af", "Name", "JobQueueBirthdate", SHADOWS];
        let output = self.question(TOOL, &arguments, self.tools.limit, NUMBERS).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let words: Vec<&str> = text.split_whitespace().collect();
        // The schedd of an external pool has no such attribute, or one of its own.
        if let [name, birthdate, shadows @ ..] = words.as_slice()
            && let Ok(birthdate) = birthdate.parse()
        {
            *self.shadows.lock().unwrap_or_else(PoisonError::into_inner) =
                shadows.first().map(|word| harmless(word, WORDS));
            return Ok((harmless(name, WORDS), Birthdate(birthdate)));
        }
        let said = harmless(text.trim(), WORDS);
        let message = format!("{TOOL} says {said:?} where name and birthdate of schedd {} should be", self.name);
        Err(unknown(Why::Incomplete, message))
    }

    /// The attribute [`SHADOWS`] of the schedd's ad in the latest answer of [`Schedd::who`].
    #[must_use]
    pub fn shadows(&self) -> Option<String> {
        self.shadows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The latest reading if it is recent, else a new one: for what comes after it.
    pub async fn recent_reading(&self) -> Result<Reading, Unknown> {
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match latest {
            Some(reading) if self.clock.now().since(reading.at) < RECENT => Ok(reading),
            Some(_) | None => self.reading().await,
        }
    }

    /// What the schedd's clock says at this time, by the latest reading; it may be later than that by a second.
    #[must_use]
    pub fn date(&self, at: Timestamp) -> Option<SchedDate> {
        let reading = (*self.latest.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(SchedDate(reading.date.0 + (at.0 - reading.at.0).div_euclid(1000)))
    }

    /// What all questions about the queue, its birthdate and the schedd's clock have cost so far.
    #[must_use]
    pub fn spent(&self) -> Cost {
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn spend(&self, cost: Cost) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        *spent = *spent + cost;
    }

    /// Asks by a tool that changes nothing.
    pub(super) async fn question(
        &self,
        tool: &'static str,
        arguments: &[&str],
        limit: Duration,
        most_bytes: usize,
    ) -> Result<Output, Unknown> {
        let began = Instant::now();
        let result = self.tools.ask(tool, arguments, limit, most_bytes).await;
        self.spend(
            result.as_ref().map_or_else(|_| Cost { there: began.elapsed(), ..Cost::default() }, |output| output.cost),
        );
        self.answer(tool, result)
    }

    /// Asks the collector. Its answers say nothing about the schedd.
    pub(super) async fn question_to_collector(
        &self,
        tool: &'static str,
        arguments: &[&str],
        most_bytes: usize,
    ) -> Result<Output, Unknown> {
        let result = self.tools.ask(tool, arguments, self.tools.limit, most_bytes).await;
        self.interpret(tool, result)
    }

    /// Asks by a tool that answers with ads, and shows each of them. An answer that is cut short is none, and so is one with
    /// more than `excess` bytes that no ad of ours has.
    pub(super) async fn ask_for_ads(
        &self,
        tool: &'static str,
        arguments: &[&str],
        limit: Duration,
        excess: Option<usize>,
        each: impl FnMut(&Row) + Send,
    ) -> Result<(), Unknown> {
        let (began, mut reading) = (Instant::now(), Duration::ZERO);
        let mut reader = AdReader::new(Rows::new(each));
        let mut listener = |bytes: &[u8]| {
            let began = Instant::now();
            reader.take(bytes);
            reading += began.elapsed();
            if excess.is_some_and(|most| reader.excess() > most) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let result = self.tools.ask_at_length(tool, arguments, limit, Listener::Each(&mut listener)).await;
        if tool == QUEUE_TOOL {
            self.spend(result.as_ref().map_or_else(
                |_| Cost { here: reading, there: began.elapsed().saturating_sub(reading) },
                |Output { cost, .. }| Cost { here: cost.here + reading, there: cost.there.saturating_sub(reading) },
            ));
        }
        self.answer(tool, result)?;
        match reader.end() {
            Ok(_) => Ok(()),
            // condor_q, if there is no job at all.
            Err(NotComplete::Empty) if tool == QUEUE_TOOL => Ok(()),
            Err(why @ (NotComplete::Empty | NotComplete::CutShort | NotComplete::Broken)) => {
                let why: &str = why.into();
                Err(unknown(Why::Incomplete, format!("the answer of {tool} is not complete: {why}")))
            }
        }
    }

    /// Asks the schedd who we are to it: attribute `User` of the jobs that we submit now.
    pub async fn identity(&self) -> Result<String, Unknown> {
        const TOOL: &str = "condor_ping";
        let arguments = ["-type", "schedd", "-name", self.name.as_str(), "WRITE", "-af", "MyRemoteUserName"];
        let output = self.answer(TOOL, self.tools.ask(TOOL, &arguments, self.tools.limit, NUMBERS).await)?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let plain = text.len() <= IDENTITY
            && text.contains('@')
            && !text.contains(char::is_whitespace)
            && !text.contains(['"', '\\']);
        if !plain {
            let message = format!("schedd {} does not say who we are: {}", self.name, harmless(&text, WORDS));
            return Err(unknown(Why::CredentialsRefused, message));
        }
        self.users.learn(&self.identity, &text, self.clock.now());
        Ok(text)
    }

    /// ClassAd expression for the jobs of this operator. Anybody can write `HTCOperator` into an ad, nobody else our `User`.
    /// If we have very many names, jobs of others may be among them: [`super::shown::Shown`] leaves those out.
    pub(super) async fn ours(&self) -> Result<String, Unknown> {
        self.own_users().await?;
        let names: Vec<String> = self.users.all().into_iter().collect();
        Ok(self.ours_of(&names))
    }

    /// The same for those in the name of this identity, and no others.
    pub(super) async fn mine(&self) -> Result<String, Unknown> {
        Ok(format!("{} && {}", of_users(&self.own_users().await?), self.of_operator()))
    }

    /// The same for those in these names, if they are not too many to be named; in any name if there is none. Names come first: what
    /// others wrote into their ads may take long to evaluate.
    pub(super) fn ours_of(&self, names: &[String]) -> String {
        match by_length(names).as_slice() {
            [names] => format!("{} && {}", of_users(names), self.of_operator()),
            _ => self.of_operator(),
        }
    }

    pub(super) fn of_operator(&self) -> String {
        format!("HTCOperator =?= {}", quoted(&self.operator))
    }

    /// Who this identity is, or has been, to the schedd.
    pub(super) async fn own_users(&self) -> Result<Vec<String>, Unknown> {
        if self.users.of(&self.identity).is_empty() {
            self.identity().await?;
        }
        Ok(self.users.of(&self.identity))
    }

    /// ClassAd expression for all jobs of these objects.
    pub(super) async fn jobs_of(&self, uids: &[Uid]) -> Result<String, Unknown> {
        Ok(format!("{} && {}", self.ours().await?, among(uids)))
    }

    /// The same for those in the name of this identity.
    pub(super) async fn my_jobs_of(&self, uids: &[Uid]) -> Result<String, Unknown> {
        Ok(format!("{} && {}", self.mine().await?, among(uids)))
    }

    /// ClassAd expression for jobs that are ours by their user alone: those of the Go operator are among them.
    pub(super) async fn not_adopted(&self) -> Result<String, Unknown> {
        Ok(format!("{NOT_ADOPTED} && {}", of_users(&self.own_users().await?)))
    }

    /// What a tool that asked the schedd said, unless it failed. Notes whether the schedd has answered.
    pub(super) fn answer(&self, tool: &str, result: Result<Output, ToolError>) -> Result<Output, Unknown> {
        let timed_out = matches!(result, Err(ToolError::TimedOut { .. }));
        let ended = result.is_ok();
        let answer = self.interpret(tool, result);
        match &answer {
            Ok(_) => {
                self.health.schedd_seen();
                self.pauses.answered(self.clock.now());
            }
            Err(unknown) if timed_out || (ended && unknown.why == Why::ScheddUnreachable) => {
                self.pauses.unanswered(tool, self.clock.now());
            }
            Err(_) => {}
        }
        answer
    }

    /// What a tool said, unless it failed.
    fn interpret(&self, tool: &str, result: Result<Output, ToolError>) -> Result<Output, Unknown> {
        match result {
            Ok(output) if output.status == Some(0) => Ok(output),
            Ok(output) => Err(self.trouble(tool, &output)),
            // Neither says anything about the schedd.
            Err(error @ (ToolError::NotStarted { .. } | ToolError::Killed { .. })) => {
                Err(unknown(Why::ToolFailed, error.to_string()))
            }
            Err(error @ ToolError::TooMuch { .. }) => {
                let hint = match tool {
                    QUEUE_TOOL => {
                        ": somebody may have written too much into the ClassAd of a job; look for it with condor_q"
                    }
                    _ => "",
                };
                Err(unknown(Why::Incomplete, format!("{error}{hint}")))
            }
            Err(error) => Err(self.silent(&error)),
        }
    }

    /// What a tool that came to no end means.
    fn silent(&self, error: &ToolError) -> Unknown {
        self.pauses.failed(&self.identity, error, self.clock.now());
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
        let words = harmless(&words.join(" "), WORDS);
        let lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(why) = lacking {
            return unknown(Why::CredentialsFailed, why);
        }
        let why = meaning(tool, &words, output.cost.there);
        if why == Why::NotWritten {
            let message = format!("{tool} cannot write the output ({words}); check the operator's data volume");
            unknown(why, message)
        } else if why == Why::NotRead {
            let message = format!(
                "schedd {} cannot read the output in its spool ({tool}: {words}); check that nobody has removed or changed it, and the \
                 volume of the spool",
                self.name
            );
            unknown(why, message)
        } else if why == Why::CredentialsRefused {
            let of_secret =
                |secret: String| (format!("the credentials in the Secret {secret}"), "the token or the user there");
            let (whose, which) = match (&self.identity, &self.secret) {
                (Identity::Operator, None) => ("the operator's credentials".to_owned(), "its token or ticket"),
                (Identity::Operator, Some(secret)) => of_secret(secret.to_string()),
                (secret @ Identity::Secret { .. }, _) => of_secret(secret.to_string()),
                (Identity::Namespace(namespace), _) => {
                    let whose = format!("the token that the operator made for namespace {namespace}");
                    (whose, "that its pods have the signing key of the HTCPool's Secret")
                }
            };
            let message = format!("schedd {} refuses {whose} ({tool}: {words}); check {which}", self.name);
            unknown(why, message)
        } else if words.contains("in the password file") {
            let message = format!(
                "{tool} cannot run here ({words}); run the operator as an ordinary user, for which HTCondor's tools need no \
                 account `condor`"
            );
            unknown(Why::ToolFailed, message)
        } else {
            let message = format!(
                "schedd {} does not answer ({tool}: {words}); check that it runs and can be reached",
                self.name
            );
            unknown(Why::ScheddUnreachable, message)
        }
    }
}

/// What the words of a failing tool mean. The system's words for a file that may not be written or read are those of the schedd for who may
/// do nothing. `Error: N total failures: first failure: reading from file` is how 25.14 reports several files.
fn meaning(tool: &str, words: &str, after: Duration) -> Why {
    let refused = ["DENIED", "Permission denied", "not authorized"];
    // A schedd that is too busy to answer in time is reported in the words of one that refuses, which answers at once.
    let not_authenticated = words.contains("AUTHENTICATE:") && after < BUSY;
    if tool == FETCH_TOOL && words.contains("Error: writing to file") {
        Why::NotWritten
    } else if tool == FETCH_TOOL && words.contains("reading from file") && words.contains("(errno ") {
        Why::NotRead
    } else if not_authenticated || refused.iter().any(|sign| words.contains(sign)) {
        Why::CredentialsRefused
    } else {
        Why::ScheddUnreachable
    }
}

pub(super) fn unknown(why: Why, message: String) -> Unknown {
    Unknown { why, message }
}

fn of_users(names: &[String]) -> String {
    let list: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    format!("member(User, {{{}}})", list.join(","))
}

/// `member` instead of `||`: 25.14 matches nothing, and says nothing, from 400 alternatives on.
pub(super) fn among(uids: &[Uid]) -> String {
    let list: Vec<String> = uids.iter().map(|uid| quoted(uid.as_str())).collect();
    format!("member(HTCJobUID, {{{}}})", list.join(","))
}

/// The texts in parts that fit into one argument beside other lists. An argument has at most 128 KiB; and to go through a long list
/// for each job takes the schedd long.
pub(super) fn by_length(texts: &[String]) -> Vec<&[String]> {
    let (mut parts, mut rest) = (Vec::new(), texts);
    while !rest.is_empty() {
        let mut length = 0;
        let fit = rest.iter().take_while(|text| {
            // With quotes and comma.
            length += text.len() + 3;
            length <= LIST
        });
        let (part, others) = rest.split_at(fit.count().max(1));
        parts.push(part);
        rest = others;
    }
    parts
}

/// A ClassAd string.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the words of `DoUpload` in HTCondor's `file_transfer.cpp`, the same in 23.9 and 25.14: a job's file has gone from the spool, or may not
    /// be read.
    #[test]
    fn what_the_schedd_cannot_read_is_not_called_unreachable_or_refused() {
        for errno in ["(errno 2) No such file or directory", "(errno 13) Permission denied"] {
            for first in ["", "1 total failures: first failure: "] {
                let words = format!(
                    "DCSchedd::receiveJobSandbox:7003:File transfer failed for target job 1.0: SCHEDD at 127.0.0.1 failed to send \
                     file(s) to <127.0.0.1:4>|Error: {first}reading from file /spool/1/0/cluster1.proc0.subproc0/result: {errno}"
                );
                assert_eq!(meaning(FETCH_TOOL, &words, Duration::ZERO), Why::NotRead, "{words}");
                assert_ne!(
                    meaning("condor_submit", &words, Duration::ZERO),
                    Why::NotRead,
                    "it is the operator that reads then"
                );
            }
        }
    }

    /// As HTCondor 23.9 and 25.14 say it where Landlock, or the mode of a folder, stops the tool, and where the volume is full.
    #[test]
    fn what_cannot_be_written_here_is_not_the_schedds_word() {
        let cannot = |errno: &str| {
            format!(
                "DCSchedd::receiveJobSandbox:7003:File transfer failed for target job 1.0: TOOL at 127.0.0.1 - |Error: writing to \
                 file /elsewhere/marker: {errno} ERROR: Failed to spool job files."
            )
        };
        let at_once = Duration::from_millis(50);
        for errno in ["(errno 13) Permission denied", "(errno 28) No space left on device"] {
            assert_eq!(meaning(FETCH_TOOL, &cannot(errno), at_once), Why::NotWritten);
        }
        // Then it is the schedd that cannot write.
        assert_ne!(meaning("condor_submit", &cannot("(errno 28) No space left on device"), at_once), Why::NotWritten);
        for words in [
            "AUTHENTICATE:1003:Failed to authenticate with any method",
            "SECMAN:2010:Received \"DENIED\" from server for user alice@test using method IDTOKENS.",
            "Permission denied",
        ] {
            assert_eq!(meaning(FETCH_TOOL, words, at_once), Why::CredentialsRefused, "{words}");
        }
        let cannot_find = "ERROR: Can't find address of schedd";
        assert_eq!(meaning(FETCH_TOOL, cannot_find, at_once), Why::ScheddUnreachable);
        // After 20 s it is a schedd that was too busy to answer.
        let not_answered = "AUTHENTICATE:1003:Failed to authenticate with any method";
        assert_eq!(meaning("condor_rm", not_answered, Duration::from_secs(20)), Why::ScheddUnreachable);
        let denied = "SECMAN:2010:Received \"DENIED\" from server for user alice@test using method IDTOKENS.";
        assert_eq!(meaning("condor_rm", denied, Duration::from_secs(20)), Why::CredentialsRefused);
    }

    #[test]
    fn no_list_is_too_long_for_an_argument() {
        let names = |count: usize| (0..count).map(|n| format!("user{n}@some.example.org")).collect::<Vec<_>>();
        assert!(by_length(&[]).is_empty());
        assert_eq!(by_length(&names(1000)).len(), 1);
        let many = names(10_000);
        let parts = by_length(&many);
        assert_eq!(parts.concat(), many);
        assert!(parts.iter().all(|part| of_users(part).len() < LIST + 20));
        assert_eq!(by_length(&["x".repeat(2 * LIST), "y".to_owned()]).len(), 2, "one that is too long is by itself");
    }
}
