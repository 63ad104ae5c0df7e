//! One identity's credentials on this machine.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::material::{Kerberos, Material};
use super::source::{Source, SourceError};
use super::turns::Turns;
use super::{AtHand, SHORTEST, private, ticket, token};
use crate::api::Identity;
use crate::condor::{Schedd, Tools};
use crate::credentials::signing::signed_with;
use crate::machine::Timestamp;
use crate::machine::facts::{Unknown, Why};

/// The folder of the token, in the identity's folder.
pub(super) const TOKENS: &str = "tokens";

/// One identity's ticket and token, and the tools that find them.
#[derive(Debug)]
pub(super) struct Holder {
    schedd: Arc<Schedd>,
    folder: PathBuf,
    /// The tools find nothing but these.
    only: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the ticket and the token are from.
    material: Material,
    ticket: Option<Ticket>,
    /// When the token ends, if it does.
    token_ends: Option<Timestamp>,
    /// What was found last, and when; none before the first look is over.
    found: Option<(Result<(), Unknown>, Timestamp)>,
    /// When to look again.
    next: Timestamp,
    /// Failed looks in a row.
    failures: u32,
    /// A look is under way.
    looking: bool,
    used: Timestamp,
    /// The schedd has said who this is, since the material was brought.
    introduced: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ticket {
    got: Timestamp,
    ends: Timestamp,
}

impl Ticket {
    /// When it is to be renewed: after half of its life.
    fn due(self) -> Timestamp {
        self.got.plus(self.ends.since(self.got) / 2)
    }

    /// When to try that, or to try it again.
    fn next_try(self, now: Timestamp) -> Timestamp {
        self.due().max(now.plus((self.ends.since(now) / 4).max(RETRY)))
    }
}

impl Holder {
    /// `only`: whoever this is must find no credentials but these.
    pub(super) fn new(own: &Arc<Schedd>, identity: &Identity, folder: PathBuf, only: bool) -> Self {
        let schedd = match identity {
            Identity::Operator => Arc::clone(own),
            Identity::Secret { .. } | Identity::Namespace(_) => {
                Arc::new(own.acting_as(identity.clone(), own.tools.for_another()))
            }
        };
        if only {
            schedd.tools.set_credentials(only_these(&folder, &Material::default()), folder.clone());
        }
        Self { schedd, folder, only, state: Mutex::default() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) const fn schedd(&self) -> &Arc<Schedd> {
        &self.schedd
    }

    /// What is at hand, and whether it is time for another look.
    pub(super) fn shown(&self, now: Timestamp, refresh: Duration) -> (AtHand, bool) {
        self.with(|state| {
            state.used = now;
            let due = state.next <= now;
            let old = |at: Timestamp| now.since(at) > refresh.max(SHORTEST) * 2;
            let shown = match &state.found {
                Some((Ok(()), at)) if !old(*at) && self.is_good(state) && self.is_known(state) => {
                    AtHand::Good(Arc::clone(&self.schedd))
                }
                Some((Err(why), _)) if !due => AtHand::Bad(why.clone()),
                Some(_) | None => AtHand::NotYet,
            };
            let look = due || matches!(shown, AtHand::NotYet);
            (shown, look)
        })
    }

    /// It has tokens, and none that is signed with the key of this name.
    pub(super) fn lacks_token_of(&self, key: &str) -> bool {
        let tokens = self.with(|state| state.material.token.clone());
        tokens.is_some_and(|tokens| !signed_with(&tokens).iter().any(|name| name == key))
    }

    /// What was found last, in words.
    pub(super) fn describe(&self) -> Result<String, String> {
        self.with(|state| match &state.found {
            Some((Ok(()), _)) => Ok(state.in_words()),
            Some((Err(why), _)) => Err(why.message.clone()),
            None => Ok("not looked for yet".to_owned()),
        })
    }

    pub(super) fn next(&self) -> Timestamp {
        self.with(|state| state.next)
    }

    pub(super) fn unused_since(&self, now: Timestamp) -> Duration {
        self.with(|state| now.since(state.used))
    }

    /// Whether nobody but the list of all has it or its schedd.
    pub(super) fn is_free(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && Arc::strong_count(&self.schedd) == 1
    }

    /// Whether whoever asks is to look; whoever else asks meanwhile is not.
    pub(super) fn begin(&self) -> bool {
        self.with(|state| !std::mem::replace(&mut state.looking, true))
    }

    /// Looks for the credentials, after [`Self::begin`] has said so.
    pub(super) async fn refresh(&self, source: Source, refresh: Duration, turns: &Turns) {
        let ended = Looking(self);
        let result = match source.read().await {
            Ok(material) => self.bring(material, turns).await,
            Err(SourceError::Gone(why)) => {
                self.take_away();
                Err(why)
            }
            // The operator's own may be empty; a Secret that was never read is not what was read before.
            Err(SourceError::Silent(why)) if self.with(|state| state.found.is_some() && self.is_good(state)) => {
                tracing::warn!(
                    identity = self.schedd.identity.logged(),
                    "{why}; what was read before is used meanwhile"
                );
                Ok(())
            }
            Err(SourceError::Silent(why)) => Err(why),
        };
        let result = match result {
            Ok(()) => self.introduce(turns).await,
            Err(message) => Err(Unknown { why: Why::CredentialsFailed, message }),
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
            self.schedd.lacks_credentials(result.err().map(|unknown| unknown.message));
        }
        drop(ended);
    }

    /// Makes ticket and token of what was read, where that has changed or it is time.
    async fn bring(&self, material: Material, turns: &Turns) -> Result<(), String> {
        let now = self.schedd.clock.now();
        let (same, ticket) = self.with(|state| (state.material == material, state.ticket));
        let token_ends = material.token.as_deref().and_then(token::ends).map(from_seconds);
        if let Some(ends) = token_ends.filter(|ends| *ends <= now) {
            self.take_away();
            return Err(format!("the token ended {} s ago: put a new one there", now.since(ends).as_secs()));
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
                        tracing::warn!(
                            identity = self.schedd.identity.logged(),
                            "no new ticket: {why}; the old one is used until it ends"
                        );
                        Some(ticket)
                    }
                    None if material.token.is_some() => {
                        tracing::warn!(
                            identity = self.schedd.identity.logged(),
                            "no Kerberos ticket can be had: {why}; the token is used alone"
                        );
                        None
                    }
                    None => return Err(format!("no Kerberos ticket can be had: {why}")),
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

    /// When the new ticket ends, in unix seconds.
    async fn get_ticket(&self, kerberos: &Kerberos, turns: &Turns) -> Result<i64, String> {
        let turn = turns.next(&self.schedd.identity).await;
        let ends = ticket::get(&self.kinit_tools(), &self.folder, kerberos).await;
        if let Some(turn) = turn {
            turn.ended();
        }
        ends
    }

    /// Asks the schedd who this is, once for what was brought. Its jobs cannot be found before, and a KDC that never answers
    /// holds up nobody here: no request of it is with a worker yet.
    async fn introduce(&self, turns: &Turns) -> Result<(), Unknown> {
        if self.with(|state| self.is_known(state)) {
            return Ok(());
        }
        let turn = turns.next(&self.schedd.identity).await;
        let identity = self.schedd.identity().await;
        if let Some(turn) = turn {
            turn.ended();
        }
        identity?;
        self.with(|state| state.introduced = true);
        Ok(())
    }

    /// Whether all that there is has not ended. The operator may have none of its own: then `CONDOR_CONFIG` says where they are.
    fn is_good(&self, state: &State) -> bool {
        let now = self.schedd.clock.now();
        let ended =
            state.ticket.is_some_and(|ticket| ticket.ends <= now) || state.token_ends.is_some_and(|at| at <= now);
        let has = state.ticket.is_some() || state.material.token.is_some();
        (has || (!self.only && state.material.is_empty())) && !ended
    }

    /// The operator's own is asked for by whoever needs it.
    fn is_known(&self, state: &State) -> bool {
        state.introduced || self.schedd.identity == Identity::Operator
    }

    /// For `kinit` itself it does not matter whose the other credentials are.
    fn kinit_tools(&self) -> Tools {
        self.schedd.tools.for_another()
    }

    fn write_token(&self, material: &Material) -> Result<(), String> {
        let Some(token) = &material.token else { return Ok(()) };
        let path = self.folder.join(TOKENS).join("token");
        let written = private::write(&path, format!("{token}\n").as_bytes());
        written.map_err(|error| format!("cannot write the token's copy: {error}; check --run-dir"))
    }

    /// Nothing of what was had before is left.
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

impl Drop for Holder {
    fn drop(&mut self) {
        if self.schedd.identity != Identity::Operator {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Shortest time between two tries to renew a ticket.
const RETRY: Duration = Duration::from_secs(1);

/// A look that ends, however it does.
struct Looking<'a>(&'a Holder);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.with(|state| state.looking = false);
    }
}

impl State {
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

fn tell(identity: &Identity, result: &Result<(), Unknown>, has: &str) {
    let whose = match identity {
        Identity::Operator => "the operator itself".to_owned(),
        secret @ Identity::Secret { .. } => format!("the Secret {secret}"),
        Identity::Namespace(namespace) => format!("namespace {namespace}"),
    };
    match result {
        Ok(()) => tracing::info!("credentials of {whose}: {has}"),
        Err(why) => tracing::warn!("no credentials of {whose}: {}", why.message),
    }
}

fn from_seconds(seconds: i64) -> Timestamp {
    Timestamp(seconds.saturating_mul(1000))
}

/// Where the tools find these, beside what `CONDOR_CONFIG` says.
fn these(folder: &std::path::Path, material: &Material) -> Vec<(&'static str, String)> {
    let ticket =
        material.kerberos.as_ref().map(|_| ("KRB5CCNAME", format!("FILE:{}", folder.join("ccache").display())));
    let token =
        material.token.as_ref().map(|_| ("_CONDOR_SEC_TOKEN_DIRECTORY", folder.join(TOKENS).display().to_string()));
    ticket.into_iter().chain(token).collect()
}

/// The same, and that they find nothing else: neither the operator's own, nor who it is by its Unix account (`FS`).
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
