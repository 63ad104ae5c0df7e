//! One schedd: its identity, its clock, and the names under which it knows this operator.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_api::{Identity, ObjectName};
use htc_machine::facts::{QueryError, QueryErrorKind};
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_machine::{Birthdate, SchedDate, ScheddName, Timestamp, Uid};
use htc_support::clock::Clock;
use htc_support::health::Health;
use parking_lot::Mutex;

use super::ads::{AdReader, IncompleteAnswer};
use super::known_users::KnownUsers;
use super::row::{Row, Rows};
use super::tools::{Listener, QueryCost, ToolError, ToolOutput, Tools};
use crate::identity_backoff::IdentityBackoff;
use crate::quarantine::Quarantine;

/// Tool that queries the queue.
pub(super) const QUEUE_TOOL: &str = "condor_q";

/// Tool that fetches output.
pub(super) const FETCH_TOOL: &str = "condor_transfer_data";

/// Attribute of a schedd's ad: how the shadows of a managed pool are confined, as one word.
pub const SHADOWS_ATTRIBUTE: &str = "HTCShadows";

/// Maximum bytes of a list in a constraint.
const LIST: usize = 32 * 1024;

/// Maximum bytes of an answer beyond [`LARGE_AD`](super::ads::LARGE_AD) bytes for each ad. No ad of this operator is
/// that large.
pub(super) const EXCESS: usize = 4 * 1024 * 1024;

/// A schedd, and the means by which this operator talks to it.
#[derive(Debug)]
pub struct Schedd {
    /// Name of the schedd in the collector.
    pub name: ScheddName,
    /// Value of `HTCOperator` in the ads of this operator's jobs.
    pub operator: String,
    pub tools: Tools,
    pub clock: Clock,
    /// Identity whose credentials the tools use.
    pub identity: Identity,
    /// Names under which the schedd knows this operator, now and earlier.
    pub users: Arc<KnownUsers>,
    /// Identities for which no tool may be started now.
    pub backoff: Arc<IdentityBackoff>,
    pub(super) quarantine: Arc<Quarantine>,
    /// Secret with the operator's own credentials, if they are those of an `HTCPool`.
    secret: Option<ObjectName>,
    lacking: Arc<Mutex<Option<String>>>,
    latest: Mutex<Option<ScheddReading>>,
    spent: Mutex<QueryCost>,
    shadows: Mutex<Option<String>>,
    health: Health,
}

/// How long a reading is reused. Adding the time passed since gives the schedd's time as exactly as a new reading.
const RECENT: Duration = Duration::from_secs(2);
/// Duration from which a failed authentication counts as unanswered instead of refused. HTCondor's own limit is 20 s
/// (`SEC_DEFAULT_AUTHENTICATION_TIMEOUT`).
const BUSY: Duration = Duration::from_secs(8);
/// Maximum bytes of an answer that consists of numbers and names.
pub(super) const NUMBERS: usize = 4 * 1024;
/// Maximum bytes of the user name that a schedd reports for this operator. It becomes part of the arguments of tools.
const IDENTITY: usize = 256;

/// A reading of a schedd's clock, together with the birthdate of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheddReading {
    /// `JobQueueBirthdate`
    pub birthdate: Birthdate,
    /// `MyCurrentTime`
    pub date: SchedDate,
    /// Time of the reading on the operator's clock.
    pub at: Timestamp,
}

impl Schedd {
    /// Creates a schedd without querying it. `users` are the names under which this operator has submitted before.
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
            backoff: Arc::default(),
            quarantine: Arc::default(),
            secret: None,
            lacking: Arc::default(),
            latest: Mutex::default(),
            spent: Mutex::default(),
            shadows: Mutex::default(),
            health,
        }
    }

    /// Sets the Secret of an `HTCPool` that holds the operator's own credentials.
    #[must_use]
    pub fn with_secret(self, secret: ObjectName) -> Self {
        Self { secret: Some(secret), ..self }
    }

    /// Returns the same schedd for another identity, whose credentials `tools` have.
    #[must_use]
    pub fn acting_as(&self, identity: Identity, tools: Tools) -> Self {
        let (name, operator, health) = (self.name.clone(), self.operator.clone(), self.health.clone());
        Self {
            identity,
            backoff: Arc::clone(&self.backoff),
            quarantine: Arc::clone(&self.quarantine),
            secret: self.secret.clone(),
            ..Self::with_users(name, operator, tools, self.clock, Arc::clone(&self.users), health)
        }
    }

    /// Sets why the tools lack usable credentials although they should have some, or clears it. While it is set, every
    /// failure of a tool is reported with this reason.
    pub fn set_missing_credentials(&self, why: Option<String>) {
        *self.lacking.lock() = why;
    }

    /// Reads the schedd's clock and the birthdate of its queue.
    pub async fn reading(&self) -> Result<ScheddReading, QueryError> {
        const TOOL: &str = "condor_status";
        let arguments = ["-schedd", "-direct", self.name.as_str(), "-af", "JobQueueBirthdate", "MyCurrentTime"];
        let output = self.ask(TOOL, &arguments, self.tools.limit, NUMBERS).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut numbers = text.split_whitespace().map(str::parse::<i64>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(birthdate)), Some(Ok(date)), None) => {
                let reading =
                    ScheddReading { birthdate: Birthdate(birthdate), date: SchedDate(date), at: self.clock.now() };
                *self.latest.lock() = Some(reading);
                Ok(reading)
            }
            _ => Err(unknown(
                QueryErrorKind::Incomplete,
                format!(
                    "{TOOL} says {:?} where the birthdate and the time of schedd {} should be",
                    sanitize(text.trim(), MAX_MESSAGE),
                    self.name
                ),
            )),
        }
    }

    /// Returns the name that the schedd itself reports, and its birthdate. No two schedds have both in common.
    pub async fn who(&self) -> Result<(String, Birthdate), QueryError> {
        const TOOL: &str = "condor_status";
        let arguments =
            ["-schedd", "-direct", self.name.as_str(), "-af", "Name", "JobQueueBirthdate", SHADOWS_ATTRIBUTE];
        let output = self.ask(TOOL, &arguments, self.tools.limit, NUMBERS).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let words: Vec<&str> = text.split_whitespace().collect();
        // The schedd of an external pool lacks this attribute, or has one of its own with this name.
        if let [name, birthdate, shadows @ ..] = words.as_slice()
            && let Ok(birthdate) = birthdate.parse()
        {
            *self.shadows.lock() = shadows.first().map(|word| sanitize(word, MAX_MESSAGE));
            return Ok((sanitize(name, MAX_MESSAGE), Birthdate(birthdate)));
        }
        let said = sanitize(text.trim(), MAX_MESSAGE);
        let message = format!("{TOOL} says {said:?} where name and birthdate of schedd {} should be", self.name);
        Err(unknown(QueryErrorKind::Incomplete, message))
    }

    /// Returns the attribute [`SHADOWS_ATTRIBUTE`] of the schedd's ad in the latest answer of [`Schedd::who`].
    #[must_use]
    pub fn shadows(&self) -> Option<String> {
        self.shadows.lock().clone()
    }

    /// Returns the latest reading if it is recent, else takes a new one. For dating what comes after it.
    pub async fn recent_reading(&self) -> Result<ScheddReading, QueryError> {
        let latest = *self.latest.lock();
        match latest {
            Some(reading) if self.clock.now().since(reading.at) < RECENT => Ok(reading),
            Some(_) | None => self.reading().await,
        }
    }

    /// Converts an operator time to the schedd's clock by the latest reading. The schedd's true time may be one second
    /// later.
    #[must_use]
    pub fn date(&self, at: Timestamp) -> Option<SchedDate> {
        let reading = (*self.latest.lock())?;
        Some(SchedDate(reading.date.0 + (at.0 - reading.at.0).div_euclid(1000)))
    }

    /// Returns the total cost of all queries about the queue, its birthdate and the schedd's clock so far.
    #[must_use]
    pub fn spent(&self) -> QueryCost {
        *self.spent.lock()
    }

    pub(super) fn spend(&self, cost: QueryCost) {
        let mut spent = self.spent.lock();
        *spent = *spent + cost;
    }

    /// Runs a query tool, which changes nothing.
    pub(super) async fn ask(
        &self,
        tool: &'static str,
        arguments: &[&str],
        limit: Duration,
        most_bytes: usize,
    ) -> Result<ToolOutput, QueryError> {
        let began = Instant::now();
        let result = self.tools.ask(tool, arguments, limit, most_bytes).await;
        self.spend(
            result.as_ref().map_or_else(
                |_| QueryCost { remote_wait: began.elapsed(), ..QueryCost::default() },
                |output| output.cost,
            ),
        );
        self.check_output(tool, result)
    }

    /// Queries the collector. Its answers say nothing about the schedd, so they do not count for [`Self::backoff`] or
    /// health.
    pub(super) async fn ask_collector(
        &self,
        tool: &'static str,
        arguments: &[&str],
        most_bytes: usize,
    ) -> Result<ToolOutput, QueryError> {
        let result = self.tools.ask(tool, arguments, self.tools.limit, most_bytes).await;
        self.interpret(tool, result)
    }

    /// Runs a query tool that prints ads, and passes each ad to `each`. Fails if the answer is truncated. Fails also if
    /// it has more than `excess` bytes beyond what ads of this operator have.
    pub(super) async fn ask_for_ads(
        &self,
        tool: &'static str,
        arguments: &[&str],
        limit: Duration,
        excess: Option<usize>,
        each: impl FnMut(&Row) + Send,
    ) -> Result<(), QueryError> {
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
        let result = self.tools.ask_streaming(tool, arguments, limit, Listener::Each(&mut listener)).await;
        if tool == QUEUE_TOOL {
            self.spend(result.as_ref().map_or_else(
                |_| QueryCost { local_cpu: reading, remote_wait: began.elapsed().saturating_sub(reading) },
                |ToolOutput { cost, .. }| QueryCost {
                    local_cpu: cost.local_cpu + reading,
                    remote_wait: cost.remote_wait.saturating_sub(reading),
                },
            ));
        }
        self.check_output(tool, result)?;
        match reader.end() {
            Ok(_) => Ok(()),
            // condor_q prints nothing if there is no job at all.
            Err(IncompleteAnswer::Empty) if tool == QUEUE_TOOL => Ok(()),
            Err(why @ (IncompleteAnswer::Empty | IncompleteAnswer::CutShort | IncompleteAnswer::Broken)) => {
                let why: &str = why.into();
                Err(unknown(QueryErrorKind::Incomplete, format!("the answer of {tool} is not complete: {why}")))
            }
        }
    }

    /// Asks the schedd for the user name of this operator: attribute `User` of the jobs that are submitted now.
    pub async fn ask_user(&self) -> Result<String, QueryError> {
        const TOOL: &str = "condor_ping";
        let arguments = ["-type", "schedd", "-name", self.name.as_str(), "WRITE", "-af", "MyRemoteUserName"];
        let output = self.check_output(TOOL, self.tools.ask(TOOL, &arguments, self.tools.limit, NUMBERS).await)?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let plain = text.len() <= IDENTITY
            && text.contains('@')
            && !text.contains(char::is_whitespace)
            && !text.contains(['"', '\\']);
        if !plain {
            let message = format!(
                "schedd {} does not say which user the operator is: {}",
                self.name,
                sanitize(&text, MAX_MESSAGE)
            );
            return Err(unknown(QueryErrorKind::CredentialsRefused, message));
        }
        self.users.learn(&self.identity, &text, self.clock.now());
        Ok(text)
    }

    /// Returns a ClassAd expression for the jobs of this operator. Anyone can write `HTCOperator` into an ad, but
    /// `User` cannot be forged. With very many names, jobs of others may match: [`crate::listing::AdListing`] drops
    /// those.
    pub(super) async fn our_jobs(&self) -> Result<String, QueryError> {
        self.own_users().await?;
        let names: Vec<String> = self.users.all().into_iter().collect();
        Ok(self.jobs_of_users(&names))
    }

    /// Returns a ClassAd expression for the jobs of this operator in the name of this identity only.
    pub(super) async fn my_jobs(&self) -> Result<String, QueryError> {
        Ok(format!("{} && {}", of_users(&self.own_users().await?), self.operator_constraint()))
    }

    /// Returns a ClassAd expression for the jobs of this operator in these names. It names no users if the list is
    /// empty or too long. Names come first: what others wrote into their ads may take long to evaluate.
    pub(super) fn jobs_of_users(&self, names: &[String]) -> String {
        match chunk_by_length(names).as_slice() {
            [names] => format!("{} && {}", of_users(names), self.operator_constraint()),
            _ => self.operator_constraint(),
        }
    }

    pub(super) fn operator_constraint(&self) -> String {
        format!("HTCOperator =?= {}", quoted(&self.operator))
    }

    /// Returns all names that the schedd has, or had, for this identity.
    pub(super) async fn own_users(&self) -> Result<Vec<String>, QueryError> {
        if self.users.of(&self.identity).is_empty() {
            self.ask_user().await?;
        }
        Ok(self.users.of(&self.identity))
    }

    /// Returns a ClassAd expression for all jobs of these objects.
    pub(super) async fn jobs_of(&self, uids: &[Uid]) -> Result<String, QueryError> {
        Ok(format!("{} && {}", self.our_jobs().await?, uid_constraint(uids)))
    }

    /// Returns a ClassAd expression for the jobs of these objects in the name of this identity.
    pub(super) async fn my_jobs_of(&self, uids: &[Uid]) -> Result<String, QueryError> {
        Ok(format!("{} && {}", self.my_jobs().await?, uid_constraint(uids)))
    }

    /// Returns the output of a tool that queried the schedd, or why it failed. Records whether the schedd has answered.
    pub(super) fn check_output(
        &self,
        tool: &str,
        result: Result<ToolOutput, ToolError>,
    ) -> Result<ToolOutput, QueryError> {
        let timed_out = matches!(result, Err(ToolError::TimedOut { .. }));
        let ended = result.is_ok();
        let answer = self.interpret(tool, result);
        match &answer {
            Ok(_) => {
                self.health.schedd_seen();
                self.backoff.record_answer(self.clock.now());
            }
            Err(unknown) if timed_out || (ended && unknown.kind == QueryErrorKind::ScheddUnreachable) => {
                self.backoff.record_timeout(tool, self.clock.now());
            }
            Err(_) => {}
        }
        answer
    }

    /// Returns the output of a tool, or why it failed.
    fn interpret(&self, tool: &str, result: Result<ToolOutput, ToolError>) -> Result<ToolOutput, QueryError> {
        match result {
            Ok(output) if output.status == Some(0) => Ok(output),
            Ok(output) => Err(self.unknown_from_output(tool, &output)),
            // Neither error says anything about the schedd.
            Err(error @ (ToolError::NotStarted { .. } | ToolError::Killed { .. })) => {
                Err(unknown(QueryErrorKind::ToolFailed, error.to_string()))
            }
            Err(error @ ToolError::TooMuch { .. }) => {
                let hint = match tool {
                    QUEUE_TOOL => {
                        ": somebody may have written too much into the ClassAd of a job; look for it with condor_q"
                    }
                    _ => "",
                };
                Err(unknown(QueryErrorKind::Incomplete, format!("{error}{hint}")))
            }
            Err(error) => Err(self.silent(&error)),
        }
    }

    /// Returns the error for a tool that did not end by itself, or whose output could not be read.
    fn silent(&self, error: &ToolError) -> QueryError {
        self.backoff.failed(&self.identity, error, self.clock.now());
        let message = format!("schedd {} does not answer ({error}); check that it runs and can be reached", self.name);
        unknown(QueryErrorKind::ScheddUnreachable, message)
    }

    /// Returns the error for a tool that ended with a failure.
    pub(super) fn unknown_from_output(&self, tool: &str, output: &ToolOutput) -> QueryError {
        let words = if output.stderr.is_empty() {
            String::from_utf8_lossy(&output.stdout)
        } else {
            output.stderr.as_str().into()
        };
        let words: Vec<&str> = words.lines().map(str::trim).filter(|line| !line.is_empty()).take(4).collect();
        let words = sanitize(&words.join(" "), MAX_MESSAGE);
        let lacking = self.lacking.lock().clone();
        if let Some(why) = lacking {
            return unknown(QueryErrorKind::CredentialsFailed, why);
        }
        let why = meaning(tool, &words, output.cost.remote_wait);
        if why == QueryErrorKind::NotWritten {
            let message = format!("{tool} cannot write the output ({words}); check the operator's data volume");
            unknown(why, message)
        } else if why == QueryErrorKind::NotRead {
            let message = format!(
                "schedd {} cannot read the output in its spool ({tool}: {words}); check that nobody has removed or changed it, and the \
                 volume of the spool",
                self.name
            );
            unknown(why, message)
        } else if why == QueryErrorKind::CredentialsRefused {
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
            unknown(QueryErrorKind::ToolFailed, message)
        } else {
            let message = format!(
                "schedd {} does not answer ({tool}: {words}); check that it runs and can be reached",
                self.name
            );
            unknown(QueryErrorKind::ScheddUnreachable, message)
        }
    }
}

/// Classifies the message of a failing tool. "Permission denied" has two meanings: the system prints it for a file, and
/// the schedd for a user without rights. `Error: N total failures: first failure: reading from file` is how 25.14
/// reports several files.
fn meaning(tool: &str, words: &str, after: Duration) -> QueryErrorKind {
    let refused = ["DENIED", "Permission denied", "not authorized"];
    // A schedd too busy to answer in time gives the same message as one that refuses, which answers at once.
    let not_authenticated = words.contains("AUTHENTICATE:") && after < BUSY;
    if tool == FETCH_TOOL && words.contains("Error: writing to file") {
        QueryErrorKind::NotWritten
    } else if tool == FETCH_TOOL && words.contains("reading from file") && words.contains("(errno ") {
        QueryErrorKind::NotRead
    } else if not_authenticated || refused.iter().any(|sign| words.contains(sign)) {
        QueryErrorKind::CredentialsRefused
    } else {
        QueryErrorKind::ScheddUnreachable
    }
}

pub(super) fn unknown(why: QueryErrorKind, message: String) -> QueryError {
    QueryError { kind: why, message }
}

pub(super) fn of_users(names: &[String]) -> String {
    let list: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    format!("member(User, {{{}}})", list.join(","))
}

/// Returns a ClassAd expression for the jobs of these objects. It uses `member` instead of `||`: from 400 alternatives
/// on, 25.14 silently matches nothing.
pub(super) fn uid_constraint(uids: &[Uid]) -> String {
    let list: Vec<String> = uids.iter().map(|uid| quoted(uid.as_str())).collect();
    format!("member(HTCJobUID, {{{}}})", list.join(","))
}

/// Splits texts into chunks that fit into one argument beside other lists. An argument has at most 128 KiB. A long list
/// also costs the schedd much time, as it is searched for each job.
pub(super) fn chunk_by_length(texts: &[String]) -> Vec<&[String]> {
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

/// Returns a ClassAd string literal.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of `DoUpload` in HTCondor's `file_transfer.cpp`, the same in 23.9 and 25.14: a job's file is missing
    /// from the spool, or unreadable.
    #[test]
    fn unreadable_spool_file_is_its_own_error_kind() {
        for errno in ["(errno 2) No such file or directory", "(errno 13) Permission denied"] {
            for first in ["", "1 total failures: first failure: "] {
                let words = format!(
                    "DCSchedd::receiveJobSandbox:7003:File transfer failed for target job 1.0: SCHEDD at 127.0.0.1 failed to send \
                     file(s) to <127.0.0.1:4>|Error: {first}reading from file /spool/1/0/cluster1.proc0.subproc0/result: {errno}"
                );
                assert_eq!(meaning(FETCH_TOOL, &words, Duration::ZERO), QueryErrorKind::NotRead, "{words}");
                assert_ne!(
                    meaning("condor_submit", &words, Duration::ZERO),
                    QueryErrorKind::NotRead,
                    "it is the operator that reads then"
                );
            }
        }
    }

    /// Messages of HTCondor 23.9 and 25.14 where Landlock or a folder's mode stops the tool, and where the volume is
    /// full.
    #[test]
    fn local_write_failure_is_not_blamed_on_the_schedd() {
        let cannot = |errno: &str| {
            format!(
                "DCSchedd::receiveJobSandbox:7003:File transfer failed for target job 1.0: TOOL at 127.0.0.1 - |Error: writing to \
                 file /elsewhere/marker: {errno} ERROR: Failed to spool job files."
            )
        };
        let at_once = Duration::from_millis(50);
        for errno in ["(errno 13) Permission denied", "(errno 28) No space left on device"] {
            assert_eq!(meaning(FETCH_TOOL, &cannot(errno), at_once), QueryErrorKind::NotWritten);
        }
        // In condor_submit, it is the schedd that cannot write.
        assert_ne!(
            meaning("condor_submit", &cannot("(errno 28) No space left on device"), at_once),
            QueryErrorKind::NotWritten
        );
        for words in [
            "AUTHENTICATE:1003:Failed to authenticate with any method",
            "SECMAN:2010:Received \"DENIED\" from server for user alice@test using method IDTOKENS.",
            "Permission denied",
        ] {
            assert_eq!(meaning(FETCH_TOOL, words, at_once), QueryErrorKind::CredentialsRefused, "{words}");
        }
        let cannot_find = "ERROR: Can't find address of schedd";
        assert_eq!(meaning(FETCH_TOOL, cannot_find, at_once), QueryErrorKind::ScheddUnreachable);
        // After 20 s the schedd was too busy to answer.
        let not_answered = "AUTHENTICATE:1003:Failed to authenticate with any method";
        assert_eq!(meaning("condor_rm", not_answered, Duration::from_secs(20)), QueryErrorKind::ScheddUnreachable);
        let denied = "SECMAN:2010:Received \"DENIED\" from server for user alice@test using method IDTOKENS.";
        assert_eq!(meaning("condor_rm", denied, Duration::from_secs(20)), QueryErrorKind::CredentialsRefused);
    }

    #[test]
    fn user_list_is_split_to_fit_one_argument() {
        let names = |count: usize| (0..count).map(|n| format!("user{n}@some.example.org")).collect::<Vec<_>>();
        assert!(chunk_by_length(&[]).is_empty());
        assert_eq!(chunk_by_length(&names(1000)).len(), 1);
        let many = names(10_000);
        let parts = chunk_by_length(&many);
        assert_eq!(parts.concat(), many);
        assert!(parts.iter().all(|part| of_users(part).len() < LIST + 20));
        assert_eq!(
            chunk_by_length(&["x".repeat(2 * LIST), "y".to_owned()]).len(),
            2,
            "one that is too long is by itself"
        );
    }
}
