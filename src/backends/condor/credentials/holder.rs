//! Holds the credentials of one identity on this machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use htc_api::Identity;
use htc_machine::Timestamp;
use htc_machine::facts::{QueryError, QueryErrorKind};
use htcondor::{Schedd, Tools};
use parking_lot::Mutex;

use super::error::CredentialError;
use super::material::{Kerberos, Material};
use super::source::Source;
use super::ticket::TicketError;
use super::{CredentialStatus, SHORTEST, ticket, token};
use crate::backends::condor::credentials::introduction_limiter::IntroductionLimiter;
use crate::backends::condor::credentials::private_folder as private;
use crate::backends::condor::credentials::signing::signing_key_names;

/// Folder of the token, in the identity's folder.
pub(super) const TOKENS: &str = "tokens";

/// Ticket and token of one identity, and tools that use them.
#[derive(Debug)]
pub(super) struct IdentityCredentials {
    schedd: Arc<Schedd>,
    folder: PathBuf,
    /// Whether the tools must find no other credentials.
    only: bool,
    state: Mutex<RefreshState>,
}

#[derive(Debug, Default)]
struct RefreshState {
    /// Source data of the ticket and the token.
    material: Material,
    ticket: Option<Ticket>,
    /// Expiry of the token, if any.
    token_ends: Option<Timestamp>,
    /// Result and time of the last refresh; `None` before the first one has finished.
    found: Option<(Result<(), QueryError>, Timestamp)>,
    /// Time of the next refresh.
    next: Timestamp,
    /// Number of failed refreshes in a row.
    failures: u32,
    /// Whether a refresh is in progress.
    looking: bool,
    used: Timestamp,
    /// Whether the schedd has answered who this user is since the material was changed.
    introduced: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ticket {
    got: Timestamp,
    ends: Timestamp,
}

impl Ticket {
    /// Returns the time when the ticket is to be renewed: half of its lifetime.
    fn due(self) -> Timestamp {
        self.got.plus(self.ends.since(self.got) / 2)
    }

    /// Returns the time of the next attempt to renew it.
    fn next_try(self, now: Timestamp) -> Timestamp {
        self.due().max(now.plus((self.ends.since(now) / 4).max(RETRY)))
    }
}

impl IdentityCredentials {
    /// `only`: the tools must find no credentials except these.
    pub(super) fn new(own: &Arc<Schedd>, identity: &Identity, folder: PathBuf, only: bool) -> Self {
        let schedd = match identity {
            Identity::Operator => Arc::clone(own),
            Identity::Secret { .. } | Identity::Namespace(_) => {
                Arc::new(own.acting_as(identity.clone(), own.tools.for_other_credentials()))
            }
        };
        if only {
            schedd.tools.set_credentials(only_these(&folder, &Material::default()), folder.clone());
        }
        Self { schedd, folder, only, state: Mutex::default() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut RefreshState) -> T) -> T {
        work(&mut self.state.lock())
    }

    pub(super) const fn schedd(&self) -> &Arc<Schedd> {
        &self.schedd
    }

    /// Returns the state of the credentials, and whether a refresh is due.
    pub(super) fn status(&self, now: Timestamp, refresh: Duration) -> (CredentialStatus, bool) {
        self.with(|state| {
            state.used = now;
            let due = state.next <= now;
            let old = |at: Timestamp| now.since(at) > refresh.max(SHORTEST) * 2;
            let shown = match &state.found {
                Some((Ok(()), at)) if !old(*at) && self.is_good(state) && self.is_known(state) => {
                    CredentialStatus::Ready(Arc::clone(&self.schedd))
                }
                Some((Err(why), _)) if !due => CredentialStatus::Failed(why.clone()),
                Some(_) | None => CredentialStatus::Pending,
            };
            let look = due || matches!(shown, CredentialStatus::Pending);
            (shown, look)
        })
    }

    /// Whether it has tokens, but none that is signed with this key.
    pub(super) fn lacks_token_of(&self, key: &str) -> bool {
        let tokens = self.with(|state| state.material.token.clone());
        tokens.is_some_and(|tokens| !signing_key_names(&tokens).iter().any(|name| name == key))
    }

    /// Describes the result of the last refresh.
    pub(super) fn describe(&self) -> Result<String, QueryError> {
        self.with(|state| match &state.found {
            Some((Ok(()), _)) => Ok(state.in_words()),
            Some((Err(why), _)) => Err(why.clone()),
            None => Ok("not looked for yet".to_owned()),
        })
    }

    pub(super) fn next(&self) -> Timestamp {
        self.with(|state| state.next)
    }

    pub(super) fn unused_since(&self, now: Timestamp) -> Duration {
        self.with(|state| now.since(state.used))
    }

    /// Whether nothing except the list of all identities refers to it or to its schedd.
    pub(super) fn is_free(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && Arc::strong_count(&self.schedd) == 1
    }

    /// Reserves the refresh for the caller. Returns false if one is already in progress.
    pub(super) fn try_begin_refresh(&self) -> bool {
        self.with(|state| !std::mem::replace(&mut state.looking, true))
    }

    /// Refreshes the credentials. The caller must have reserved the refresh with [`Self::try_begin_refresh`].
    pub(super) async fn refresh(&self, source: Source, refresh: Duration, turns: &IntroductionLimiter) {
        let ended = RefreshGuard(self);
        let result = match source.read().await {
            Ok(material) => self.bring(material, turns).await,
            Err(error) if !error.is_temporary() => {
                self.take_away();
                Err(error)
            }
            // Empty material can be valid for the operator itself, so `found` has whether anything was read before.
            Err(error) if self.with(|state| state.found.is_some() && self.is_good(state)) => {
                tracing::warn!(
                    identity = self.schedd.identity.logged(),
                    why = %error,
                    "credentials not read again, earlier ones used"
                );
                Ok(())
            }
            Err(error) => Err(error),
        };
        let result = match result {
            Ok(()) => self.introduce(turns).await,
            Err(error) => Err(QueryError { kind: QueryErrorKind::CredentialsFailed, message: error.to_string() }),
        };
        let now = self.schedd.clock.now();
        self.with(|state| {
            let before = state.found.as_ref().map(|(found, _)| found.clone());
            if before.as_ref() != Some(&result) {
                tell(&self.schedd.identity, &result, &state.in_words());
            }
            state.failures = if result.is_ok() { 0 } else { state.failures.saturating_add(1) };
            let pause = match &result {
                Ok(()) => refresh,
                Err(_) => SHORTEST.saturating_mul(1 << state.failures.min(5)).min(refresh.max(SHORTEST)),
            };
            let due = state.ticket.filter(|_| result.is_ok()).map(|ticket| ticket.next_try(now));
            state.next = due.into_iter().chain([now.plus(pause)]).min().unwrap_or(now);
            state.found = Some((result.clone(), now));
        });
        if self.schedd.identity == Identity::Operator {
            self.schedd.set_missing_credentials(result.err().map(|unknown| unknown.message));
        }
        drop(ended);
    }

    /// Creates the ticket and the token file from the material, if it has changed or the ticket is due for renewal.
    async fn bring(&self, material: Material, turns: &IntroductionLimiter) -> Result<(), CredentialError> {
        let now = self.schedd.clock.now();
        let (same, ticket) = self.with(|state| (state.material == material, state.ticket));
        let token_ends = material.token.as_deref().and_then(token::ends).map(from_seconds);
        if let Some(ends) = token_ends.filter(|ends| *ends <= now) {
            self.take_away();
            return Err(CredentialError::TokenEnded(now.since(ends)));
        }
        if !same {
            self.take_away();
            self.write_token(&material)?;
        }
        let held = ticket.filter(|ticket| same && ticket.ends > now);
        let ticket = match (&material.kerberos, held) {
            (None, _) => None,
            (Some(_), Some(ticket)) if ticket.due() > now => Some(ticket),
            (Some(kerberos), held) => match self.get_ticket(kerberos, turns).await {
                Ok(ends) => Some(Ticket { got: now, ends: from_seconds(ends) }),
                Err(why) => match held {
                    Some(ticket) => {
                        tracing::warn!(identity = self.schedd.identity.logged(), %why, "Kerberos ticket not renewed, old one used until it ends");
                        Some(ticket)
                    }
                    None if material.token.is_some() => {
                        tracing::warn!(identity = self.schedd.identity.logged(), %why, "no Kerberos ticket, token used alone");
                        None
                    }
                    None => return Err(CredentialError::NoTicket(why)),
                },
            },
        };
        let variables = if self.only { only_these(&self.folder, &material) } else { these(&self.folder, &material) };
        self.schedd.tools.set_credentials(variables, self.folder.clone());
        self.with(|state| {
            state.material = material;
            state.ticket = ticket;
            state.token_ends = token_ends;
        });
        Ok(())
    }

    /// Gets a new ticket. Returns its end, in Unix seconds.
    async fn get_ticket(&self, kerberos: &Kerberos, turns: &IntroductionLimiter) -> Result<i64, TicketError> {
        let turn = turns.acquire(&self.schedd.identity).await;
        let ends = ticket::get(&self.kinit_tools(), &self.folder, kerberos).await;
        if let Some(turn) = turn {
            turn.finish();
        }
        ends
    }

    /// Asks the schedd for the HTCondor user, once for each material. The user's jobs cannot be found before. A KDC
    /// that never answers delays no other identity here, because no worker has a request of this one yet.
    async fn introduce(&self, turns: &IntroductionLimiter) -> Result<(), QueryError> {
        if self.with(|state| self.is_known(state)) {
            return Ok(());
        }
        let turn = turns.acquire(&self.schedd.identity).await;
        let identity = self.schedd.ask_user().await;
        if let Some(turn) = turn {
            turn.finish();
        }
        identity?;
        self.with(|state| state.introduced = true);
        Ok(())
    }

    /// Whether the ticket and the token are still valid. The operator itself may have neither: then `CONDOR_CONFIG`
    /// configures its credentials.
    fn is_good(&self, state: &RefreshState) -> bool {
        let now = self.schedd.clock.now();
        let ended =
            state.ticket.is_some_and(|ticket| ticket.ends <= now) || state.token_ends.is_some_and(|at| at <= now);
        let has = state.ticket.is_some() || state.material.token.is_some();
        (has || (!self.only && state.material.is_empty())) && !ended
    }

    /// The operator's own user is queried where it is needed.
    fn is_known(&self, state: &RefreshState) -> bool {
        state.introduced || self.schedd.identity == Identity::Operator
    }

    /// `kinit` does not use the other credentials of the tools, of any owner.
    fn kinit_tools(&self) -> Tools {
        self.schedd.tools.for_other_credentials()
    }

    fn write_token(&self, material: &Material) -> Result<(), CredentialError> {
        let Some(token) = &material.token else { return Ok(()) };
        let path = self.folder.join(TOKENS).join("token");
        let written = private::write(&path, format!("{token}\n").as_bytes());
        written.map_err(CredentialError::WriteToken)
    }

    /// Removes the ticket and the token.
    fn take_away(&self) {
        for file in ["ccache", "tokens/token"] {
            let _ = std::fs::remove_file(self.folder.join(file));
        }
        self.with(|state| {
            state.material = Material::default();
            (state.ticket, state.token_ends, state.introduced) = (None, None, false);
        });
    }
}

impl Drop for IdentityCredentials {
    fn drop(&mut self) {
        if self.schedd.identity != Identity::Operator {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Minimum interval between two attempts to renew a ticket.
const RETRY: Duration = Duration::from_secs(1);

/// Marks the refresh as finished when dropped.
struct RefreshGuard<'a>(&'a IdentityCredentials);

impl Drop for RefreshGuard<'_> {
    fn drop(&mut self) {
        self.0.with(|state| state.looking = false);
    }
}

impl RefreshState {
    fn in_words(&self) -> String {
        let at = |moment: Timestamp| {
            jiff::Timestamp::from_millisecond(moment.0)
                .map(|moment| moment.strftime("%FT%TZ").to_string())
                .unwrap_or_default()
        };
        let ticket = self.ticket.map(|ticket| format!("a Kerberos ticket until {}", at(ticket.ends)));
        let token = self.material.token.as_ref().map(|_| match self.token_ends {
            Some(ends) => format!("a token until {}", at(ends)),
            None => "a token without an end".to_owned(),
        });
        let all: Vec<String> = ticket.into_iter().chain(token).collect();
        if all.is_empty() { "none are mounted: those of CONDOR_CONFIG are used".to_owned() } else { all.join(" and ") }
    }
}

fn tell(identity: &Identity, result: &Result<(), QueryError>, has: &str) {
    match result {
        Ok(()) => tracing::info!(identity = identity.logged(), has, "credentials ready"),
        Err(why) => tracing::warn!(identity = identity.logged(), why = %why.message, "credentials not usable"),
    }
}

fn from_seconds(seconds: i64) -> Timestamp {
    Timestamp(seconds.saturating_mul(1000))
}

/// Returns the environment in which the tools find these credentials, in addition to those of `CONDOR_CONFIG`.
fn these(folder: &std::path::Path, material: &Material) -> Vec<(&'static str, String)> {
    let ticket =
        material.kerberos.as_ref().map(|_| ("KRB5CCNAME", format!("FILE:{}", folder.join("ccache").display())));
    let token =
        material.token.as_ref().map(|_| ("_CONDOR_SEC_TOKEN_DIRECTORY", folder.join(TOKENS).display().to_string()));
    ticket.into_iter().chain(token).collect()
}

/// Like [`these`], but the tools find no other credentials: neither the operator's own nor its Unix account (`FS`).
fn only_these(folder: &std::path::Path, material: &Material) -> Vec<(&'static str, String)> {
    let tokens = folder.join(TOKENS).display().to_string();
    let methods = match (&material.token, &material.kerberos) {
        (Some(_), Some(_)) => "IDTOKENS, KERBEROS",
        (None, Some(_)) => "KERBEROS",
        (Some(_) | None, None) => "IDTOKENS",
    };
    vec![
        ("KRB5CCNAME", format!("FILE:{}", folder.join("ccache").display())),
        ("_CONDOR_SEC_TOKEN_DIRECTORY", tokens.clone()),
        ("_CONDOR_SEC_TOKEN_SYSTEM_DIRECTORY", tokens),
        ("_CONDOR_SEC_CLIENT_AUTHENTICATION_METHODS", methods.to_owned()),
    ]
}
