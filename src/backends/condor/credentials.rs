//! Credentials for HTCondor: the operator's own, and those in Secrets next to users' HTCJobs. In a managed pool, the
//! operator makes tokens for each namespace instead. Each identity has its own folder for its ticket and its token,
//! and its own tools, which find only these.
//!
//! The operator's own credentials are renewed all the time. Those of a Secret are read when a request needs them, read
//! again every [`CredentialsConfig::refresh`] while they are in use, and then removed from this machine.

mod error;
mod holder;
mod introduction_limiter;
mod material;
mod private_folder;
mod realms;
pub mod signing;
mod source;
mod tenant;
#[cfg(test)]
mod tests;
mod ticket;
mod token;

pub use tenant::Tenant;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use htc_api::{Identity, ObjectName};
use htc_machine::Timestamp;
use htc_machine::facts::{QueryError, QueryErrorKind};
use htc_support::metrics::Metrics;
use htcondor::Schedd;
use kube::Client;
use parking_lot::Mutex;
use rustix::io::Errno;

use holder::IdentityCredentials;
use introduction_limiter::IntroductionLimiter;
use private_folder::Private;
use realms::Realms;
use signing::Signer;
use source::{SecretOf, Source};

/// Minimum interval between two refreshes of credentials. It is longer than the pause of a request that waits for the
/// first refresh.
const SHORTEST: Duration = Duration::from_secs(3);
/// Idle time after which a Secret may be replaced by another one of its namespace.
const IDLE: Duration = Duration::from_secs(30);

/// Configuration of credentials.
#[derive(Clone, Debug)]
pub struct CredentialsConfig {
    /// Source of the operator's own credentials.
    pub own: OperatorCredentials,
    /// Signer of the tokens for the HTCJobs of each namespace. `None` if HTCJobs without a Secret use the operator's
    /// own credentials.
    pub signer: Option<Signer>,
    /// Folder in which the private folder for tickets and tokens is created; it must be local to this machine.
    pub run_dir: PathBuf,
    /// Interval between two reads of credentials in use.
    pub refresh: Duration,
    /// Maximum number of Secrets of one namespace that are in use at the same time.
    pub namespace_identities: usize,
    /// Kerberos realms that users of Secrets may belong to. If empty: the default realm of `krb5.conf`.
    pub allowed_realms: Vec<String>,
}

/// Source of the operator's own credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorCredentials {
    /// Configured by `CONDOR_CONFIG`.
    Configured,
    /// Mounted into this folder.
    Mounted(PathBuf),
    /// The Secret of an `HTCPool`. The tools find no other credentials.
    Secret(ObjectName),
}

/// Credentials of all identities in use.
pub struct Credentials {
    setup: CredentialsConfig,
    /// Schedd with the operator's own identity.
    schedd: Arc<Schedd>,
    client: Option<Client>,
    metrics: Metrics,
    /// Created at the first use.
    folder: Mutex<Option<Private>>,
    holders: Mutex<HashMap<Identity, Arc<IdentityCredentials>>>,
    realms: Arc<Realms>,
    introductions: IntroductionLimiter,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?})", self.setup)
    }
}

/// State of the credentials of an identity.
#[derive(Clone, Debug)]
pub enum CredentialStatus {
    /// They are valid, and their HTCondor user is known. Contains the schedd with these credentials.
    Ready(Arc<Schedd>),
    /// There are none, for this reason.
    Failed(QueryError),
    /// They are being obtained.
    Pending,
}

impl Credentials {
    /// Creates it without reading any credentials.
    #[must_use]
    pub fn new(setup: CredentialsConfig, schedd: Arc<Schedd>, client: Option<Client>, metrics: Metrics) -> Arc<Self> {
        let (folder, holders, turns) = (Mutex::default(), Mutex::default(), IntroductionLimiter::default());
        let realms = Arc::new(Realms::new(&setup.allowed_realms));
        Arc::new(Self { setup, schedd, client, metrics, folder, holders, realms, introductions: turns })
    }

    /// Returns the credentials of an identity. Starts a refresh in the background if there are none or they end soon.
    #[must_use]
    pub fn status(self: &Arc<Self>, identity: &Identity) -> CredentialStatus {
        if *identity == Identity::Operator && self.setup.own == OperatorCredentials::Configured {
            return CredentialStatus::Ready(Arc::clone(&self.schedd));
        }
        let now = self.schedd.clock.now();
        if let Some(unknown) = self.schedd.backoff.active_backoff(identity, now) {
            return CredentialStatus::Failed(unknown);
        }
        let holder = match self.holder(identity) {
            Ok(holder) => holder,
            Err(unknown) => return CredentialStatus::Failed(unknown),
        };
        let (shown, due) = holder.status(now, self.setup.refresh);
        if due && holder.try_begin_refresh() {
            let own = Arc::clone(self);
            tokio::spawn(async move { own.refresh(&holder).await });
        }
        shown
    }

    /// Returns the identity of all HTCJobs of a namespace if it does not depend on their specs, which is so in a
    /// managed pool.
    #[must_use]
    pub fn of_namespace(&self, namespace: &str) -> Option<Identity> {
        self.is_managed().then(|| Identity::Namespace(namespace.to_owned()))
    }

    /// Returns whether they are those of a managed pool.
    #[must_use]
    pub const fn is_managed(&self) -> bool {
        self.setup.signer.is_some()
    }

    /// Makes sure that the schedd is queried for the user of this identity; its jobs cannot be found before. Returns
    /// the error if that has failed.
    pub fn ensure_user_known(self: &Arc<Self>, identity: &Identity) -> Option<QueryError> {
        match self.status(identity) {
            CredentialStatus::Failed(unknown) => Some(unknown),
            CredentialStatus::Ready(_) | CredentialStatus::Pending => None,
        }
    }

    /// Refreshes the operator's own credentials and describes the result. Returns `None` if they are configured by
    /// `CONDOR_CONFIG`.
    pub async fn refresh_operator(&self) -> Option<Result<String, QueryError>> {
        if self.setup.own == OperatorCredentials::Configured {
            return None;
        }
        Some(self.look(&Identity::Operator).await.map(|(_, found)| found))
    }

    /// Refreshes the credentials of an identity, and returns the schedd with them.
    pub async fn refresh_and_wait(&self, identity: &Identity) -> Result<Arc<Schedd>, QueryError> {
        if *identity == Identity::Operator && self.setup.own == OperatorCredentials::Configured {
            return Ok(Arc::clone(&self.schedd));
        }
        self.look(identity).await.map(|(schedd, _)| schedd)
    }

    async fn look(&self, identity: &Identity) -> Result<(Arc<Schedd>, String), QueryError> {
        let holder = self.holder(identity)?;
        if holder.try_begin_refresh() {
            self.refresh(&holder).await;
        }
        holder.describe().map(|found| (Arc::clone(holder.schedd()), found))
    }

    /// Whether each identity with tokens has one that is signed with this key. Refreshes the identities without one.
    pub async fn have_tokens_of(&self, key: &str) -> bool {
        let holders: Vec<Arc<IdentityCredentials>> = self.holders.lock().values().map(Arc::clone).collect();
        let mut all = true;
        for holder in holders {
            if holder.lacks_token_of(key) && holder.try_begin_refresh() {
                self.refresh(&holder).await;
            }
            all &= !holder.lacks_token_of(key);
        }
        all
    }

    /// In a managed pool, finds the users of all namespaces in the schedd's queue, so that their jobs are found. A
    /// ledger need not know these users.
    pub async fn learn_users(&self) -> Result<(), QueryError> {
        match &self.setup.signer {
            Some(signer) => self.schedd.learn_users(|user| signer.identity_of(user)).await,
            None => Ok(()),
        }
    }

    /// Keeps the operator's own credentials valid and removes unused ones of others, until dropped.
    pub async fn run(self: Arc<Self>) {
        tracing::info!(allowed = %self.realms.in_words(), "Kerberos realms configured");
        loop {
            let now = self.schedd.clock.now();
            let mut wait = self.setup.refresh;
            if self.setup.own != OperatorCredentials::Configured
                && let Ok(own) = self.holder(&Identity::Operator)
            {
                if own.next() <= now && own.try_begin_refresh() {
                    self.refresh(&own).await;
                }
                wait = wait.min(own.next().since(self.schedd.clock.now()));
            }
            self.forget_unused(now);
            tokio::time::sleep(wait.max(Duration::from_millis(500))).await;
        }
    }

    /// Returns the signer of the tokens for each namespace, in a managed pool.
    #[must_use]
    pub const fn signer(&self) -> Option<&Signer> {
        self.setup.signer.as_ref()
    }

    /// Removes all credentials from this machine.
    pub fn close(&self) {
        self.holders.lock().clear();
        self.folder.lock().take();
    }

    async fn refresh(&self, holder: &IdentityCredentials) {
        let source = match (&holder.schedd().identity, &self.setup.own, &self.client) {
            (Identity::Operator, OperatorCredentials::Mounted(folder), _) => Source::Mounted(folder.clone()),
            (Identity::Secret { namespace, name }, _, Some(client)) => {
                let secret = ObjectName { namespace: namespace.clone(), name: name.clone() };
                let (client, realms) = (client.clone(), Arc::clone(&self.realms));
                Source::Secret { client, secret, of: SecretOf::HTCJobs, realms }
            }
            (Identity::Operator, OperatorCredentials::Secret(secret), Some(client)) => {
                let (client, realms) = (client.clone(), Arc::clone(&self.realms));
                Source::Secret { client, secret: secret.clone(), of: SecretOf::Pool, realms }
            }
            (Identity::Namespace(namespace), _, Some(client)) => match &self.setup.signer {
                Some(signer) => {
                    let (client, signer) = (client.clone(), signer.clone());
                    Source::Signer { client, signer, namespace: namespace.clone() }
                }
                None => Source::Nothing,
            },
            (Identity::Operator, OperatorCredentials::Configured | OperatorCredentials::Secret(_), _)
            | (Identity::Secret { .. } | Identity::Namespace(_), _, None) => Source::Nothing,
        };
        holder.refresh(source, self.setup.refresh, &self.introductions).await;
        self.metrics.credentials(self.failing());
    }

    /// Counts the identities without valid credentials: the operator's own, and all others.
    fn failing(&self) -> (i64, i64) {
        let holders = self.holders.lock();
        holders.iter().filter(|(_, holder)| holder.describe().is_err()).fold((0, 0), |(own, others), (identity, _)| {
            if *identity == Identity::Operator { (own + 1, others) } else { (own, others + 1) }
        })
    }

    /// Removes credentials that no request has needed for a while. A call in progress keeps its own.
    fn forget_unused(&self, now: Timestamp) {
        let unused = self.setup.refresh.max(SHORTEST) * 2;
        let forgotten = {
            let mut holders = self.holders.lock();
            let before = holders.len();
            // The folder is removed under the lock, because the next holder of the same identity uses the same folder.
            holders.retain(|identity, holder| {
                *identity == Identity::Operator || holder.unused_since(now) <= unused || !holder.is_free()
            });
            holders.len() < before
        };
        if forgotten {
            self.metrics.credentials(self.failing());
        }
    }

    fn holder(&self, identity: &Identity) -> Result<Arc<IdentityCredentials>, QueryError> {
        let mut holders = self.holders.lock();
        if let Some(holder) = holders.get(identity) {
            return Ok(Arc::clone(holder));
        }
        if let Identity::Secret { namespace, .. } = identity {
            self.make_room(&mut holders, namespace, self.schedd.clock.now())?;
        }
        let folder = self.folder_of(identity).map_err(|error| {
            let base = self.setup.run_dir.display();
            let message = format!("cannot make a folder for tickets and tokens in {base}: {error}; check --run-dir");
            QueryError { kind: QueryErrorKind::CredentialsFailed, message }
        })?;
        let only = *identity != Identity::Operator || matches!(self.setup.own, OperatorCredentials::Secret(_));
        let holder = Arc::new(IdentityCredentials::new(&self.schedd, identity, folder, only));
        holders.insert(identity.clone(), Arc::clone(&holder));
        Ok(holder)
    }

    /// Drops the least recently used Secret of a namespace that has reached its maximum. Fails if all of them are in
    /// use, so that the new one waits.
    fn make_room(
        &self,
        holders: &mut HashMap<Identity, Arc<IdentityCredentials>>,
        namespace: &str,
        now: Timestamp,
    ) -> Result<(), QueryError> {
        let most = self.setup.namespace_identities;
        let its = |identity: &Identity| matches!(identity, Identity::Secret { namespace: own, .. } if own == namespace);
        if holders.keys().filter(|identity| its(identity)).count() < most {
            return Ok(());
        }
        let idle = |holder: &Arc<IdentityCredentials>| holder.unused_since(now) >= IDLE && holder.is_free();
        let unused = holders.iter().filter(|(identity, holder)| its(identity) && idle(holder));
        let longest = unused.max_by_key(|(_, holder)| holder.unused_since(now)).map(|(identity, _)| identity.clone());
        if longest.and_then(|identity| holders.remove(&identity)).is_some() {
            return Ok(());
        }
        let message = format!(
            "{most} other Secrets of namespace {namespace} are in use, and no more may be at once (--namespace-identities); this one \
             waits for its turn. Use fewer Secrets, or ask the operator's administrator for a higher limit"
        );
        Err(QueryError { kind: QueryErrorKind::CredentialsFailed, message })
    }

    fn folder_of(&self, identity: &Identity) -> std::io::Result<PathBuf> {
        let mut made = self.folder.lock();
        let base = match &*made {
            Some(folder) => folder,
            None => made.insert(Private::make(&self.setup.run_dir)?),
        };
        let folder = match identity {
            Identity::Operator => base.path().join("own"),
            Identity::Secret { namespace, name } => base.path().join("secrets").join(namespace).join(name),
            Identity::Namespace(namespace) => base.path().join("namespaces").join(namespace),
        };
        private_folder::make_folder(&folder.join(holder::TOKENS))?;
        Ok(folder)
    }
}

/// Returns the default base folder of the operator's private folder, on this machine.
#[must_use]
pub fn usual_run_dir() -> PathBuf {
    std::env::temp_dir()
}

/// Reason why a folder is not used for tickets and tokens.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error("--run-dir {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: Errno },
    #[error(
        "--run-dir {}: tickets and tokens must not lie where other machines see them; give a folder of this one, best in memory",
        .0.display()
    )]
    Shared(PathBuf),
}

/// Checks that the folder is not on a file system that other machines share.
pub fn check_run_dir(path: &Path) -> Result<(), RunDirError> {
    // statfs(2): NFS, SMB, CIFS, AFS (two kinds), Ceph.
    const SHARED: [u32; 6] = [0x6969, 0x517B, 0xFF53_4D42, 0x5346_414F, 0x6B41_4653, 0x00C3_6400];
    let found = rustix::fs::statfs(path).map_err(|source| RunDirError::Unreadable { path: path.to_owned(), source })?;
    let kind = u32::try_from(found.f_type & 0xFFFF_FFFF).unwrap_or_default();
    if SHARED.contains(&kind) {
        return Err(RunDirError::Shared(path.to_owned()));
    }
    Ok(())
}
