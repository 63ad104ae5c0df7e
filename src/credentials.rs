//! In whose name HTCondor is spoken to: the operator's own credentials, and those that people put into Secrets beside their
//! HTCJobs; in a pool that the operator runs, those that it makes for each namespace. Each identity has a folder of its own, for its ticket and its token, and its own tools, which find only these.
//!
//! The operator's own are kept good all the time. Those of a Secret are read when a request needs them, read again every
//! [`Setup::refresh`] while that goes on, and removed from this machine when it no longer does.

mod holder;
mod material;
mod private;
mod realms;
pub mod signing;
mod source;
mod tenant;
#[cfg(test)]
mod tests;
mod ticket;
mod token;
mod turns;

pub use tenant::Tenant;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;

use crate::api::{Identity, ObjectName};
use crate::condor::Schedd;
use crate::machine::Timestamp;
use crate::machine::facts::{Unknown, Why};
use crate::metrics::Metrics;
use holder::Holder;
use private::Private;
use realms::Realms;
use signing::Signer;
use source::{SecretOf, Source};
use turns::Turns;

/// Shortest time between two looks at credentials. Longer than the pause of a request that waits for the first look.
const SHORTEST: Duration = Duration::from_secs(3);
/// After this time without use, a Secret makes room for another one of its namespace.
const IDLE: Duration = Duration::from_secs(30);

/// What the operator is told about credentials.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where the operator's own are.
    pub own: Own,
    /// Who makes tokens for the HTCJobs of each namespace; none where all that have no Secret are in the operator's name.
    pub signer: Option<Signer>,
    /// Where the folder for tickets and tokens is made: on this machine.
    pub run_dir: PathBuf,
    /// After what time credentials are read again.
    pub refresh: Duration,
    /// Most Secrets of one namespace that are in use at once.
    pub namespace_identities: usize,
    /// Kerberos realms that users of Secrets may be in. If it is empty: the default realm of `krb5.conf`.
    pub allowed_realms: Vec<String>,
}

/// Where the operator's own credentials are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// Where `CONDOR_CONFIG` says.
    Configured,
    /// In this folder.
    Mounted(PathBuf),
    /// In the Secret of an `HTCPool`. The tools find no others.
    Secret(ObjectName),
}

/// All identities that are in use.
pub struct Credentials {
    setup: Setup,
    /// For the operator's own identity.
    schedd: Arc<Schedd>,
    client: Option<Client>,
    metrics: Metrics,
    /// Made when it is first needed.
    folder: Mutex<Option<Private>>,
    holders: Mutex<HashMap<Identity, Arc<Holder>>>,
    realms: Arc<Realms>,
    turns: Turns,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?})", self.setup)
    }
}

/// Those of an identity, as far as they are at hand.
#[derive(Clone, Debug)]
pub enum AtHand {
    /// They are good, and it is known whose they are: HTCondor in this name.
    Good(Arc<Schedd>),
    /// There are none, for this reason.
    Bad(Unknown),
    /// They are being looked for.
    NotYet,
}

impl Credentials {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(setup: Setup, schedd: Arc<Schedd>, client: Option<Client>, metrics: Metrics) -> Arc<Self> {
        let (folder, holders, turns) = (Mutex::default(), Mutex::default(), Turns::default());
        let realms = Arc::new(Realms::new(&setup.allowed_realms));
        Arc::new(Self { setup, schedd, client, metrics, folder, holders, realms, turns })
    }

    /// What is at hand for an identity; what is not, or not for much longer, is looked for meanwhile.
    #[must_use]
    pub fn at_hand(self: &Arc<Self>, identity: &Identity) -> AtHand {
        if *identity == Identity::Operator && self.setup.own == Own::Configured {
            return AtHand::Good(Arc::clone(&self.schedd));
        }
        let now = self.schedd.clock.now();
        if let Some(unknown) = self.schedd.pauses.paused(identity, now) {
            return AtHand::Bad(unknown);
        }
        let holder = match self.holder(identity) {
            Ok(holder) => holder,
            Err(unknown) => return AtHand::Bad(unknown),
        };
        let (shown, due) = holder.shown(now, self.setup.refresh);
        if due && holder.begin() {
            let own = Arc::clone(self);
            tokio::spawn(async move { own.refresh(&holder).await });
        }
        shown
    }

    /// In whose name all HTCJobs of a namespace are, whatever their specs say; none where that is for their specs to say.
    #[must_use]
    pub fn of_namespace(&self, namespace: &str) -> Option<Identity> {
        self.setup.signer.as_ref().map(|_| Identity::Namespace(namespace.to_owned()))
    }

    /// Sees to it that the schedd is asked who this identity is: its jobs cannot be found before. Why that fails, as far as it
    /// has.
    pub fn introduce(self: &Arc<Self>, identity: &Identity) -> Option<Unknown> {
        match self.at_hand(identity) {
            AtHand::Bad(unknown) => Some(unknown),
            AtHand::Good(_) | AtHand::NotYet => None,
        }
    }

    /// Looks for the operator's own, waits for the end of that, and says what was found; none if it has none of its own.
    pub async fn look_for_own(&self) -> Option<Result<String, String>> {
        if self.setup.own == Own::Configured {
            return None;
        }
        Some(self.look(&Identity::Operator).await.map(|(_, found)| found))
    }

    /// Looks for those of an identity, waits for the end of that, and gives the schedd in its name.
    pub async fn look_for(&self, identity: &Identity) -> Result<Arc<Schedd>, String> {
        if *identity == Identity::Operator && self.setup.own == Own::Configured {
            return Ok(Arc::clone(&self.schedd));
        }
        self.look(identity).await.map(|(schedd, _)| schedd)
    }

    async fn look(&self, identity: &Identity) -> Result<(Arc<Schedd>, String), String> {
        let holder = self.holder(identity).map_err(|unknown| unknown.message)?;
        if holder.begin() {
            self.refresh(&holder).await;
        }
        holder.describe().map(|found| (Arc::clone(holder.schedd()), found))
    }

    /// Whether all tokens that are at hand have one beside them that is signed with the key of this name. Those that have none are read again.
    pub async fn have_tokens_of(&self, key: &str) -> bool {
        let holders: Vec<Arc<Holder>> =
            self.holders.lock().unwrap_or_else(PoisonError::into_inner).values().map(Arc::clone).collect();
        let mut all = true;
        for holder in holders {
            if holder.lacks_token_of(key) && holder.begin() {
                self.refresh(&holder).await;
            }
            all &= !holder.lacks_token_of(key);
        }
        all
    }

    /// Sees to it that jobs in all names are found of which nobody else makes the tokens: a ledger need not know them.
    pub async fn learn_users(&self) -> Result<(), Unknown> {
        match &self.setup.signer {
            Some(signer) => self.schedd.learn_users(|user| signer.whose(user)).await,
            None => Ok(()),
        }
    }

    /// Keeps the operator's own good, and tidies up after the others, until it is dropped.
    pub async fn keep(self: Arc<Self>) {
        tracing::info!("Kerberos realms that users of Secrets may be in: {}", self.realms.in_words());
        loop {
            let now = self.schedd.clock.now();
            let mut wait = self.setup.refresh;
            if self.setup.own != Own::Configured
                && let Ok(own) = self.holder(&Identity::Operator)
            {
                if own.next() <= now && own.begin() {
                    self.refresh(&own).await;
                }
                wait = wait.min(own.next().since(self.schedd.clock.now()));
            }
            self.forget_unused(now);
            tokio::time::sleep(wait.max(Duration::from_millis(500))).await;
        }
    }

    /// Who makes tokens for the HTCJobs of each namespace, in a managed pool.
    #[must_use]
    pub const fn signer(&self) -> Option<&Signer> {
        self.setup.signer.as_ref()
    }

    /// Removes everything from this machine.
    pub fn close(&self) {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.folder.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    async fn refresh(&self, holder: &Holder) {
        let source = match (&holder.schedd().identity, &self.setup.own, &self.client) {
            (Identity::Operator, Own::Mounted(folder), _) => Source::Mounted(folder.clone()),
            (Identity::Secret { namespace, name }, _, Some(client)) => {
                let secret = ObjectName { namespace: namespace.clone(), name: name.clone() };
                let (client, realms) = (client.clone(), Arc::clone(&self.realms));
                Source::Secret { client, secret, of: SecretOf::HTCJobs, realms }
            }
            (Identity::Operator, Own::Secret(secret), Some(client)) => {
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
            (Identity::Operator, Own::Configured | Own::Secret(_), _)
            | (Identity::Secret { .. } | Identity::Namespace(_), _, None) => Source::Nothing,
        };
        holder.refresh(source, self.setup.refresh, &self.turns).await;
        self.metrics.credentials(self.failing());
    }

    /// How many identities have no credentials that are good: the operator's own, and all others.
    fn failing(&self) -> (i64, i64) {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.iter().filter(|(_, holder)| holder.describe().is_err()).fold((0, 0), |(own, others), (identity, _)| {
            if *identity == Identity::Operator { (own + 1, others) } else { (own, others + 1) }
        })
    }

    /// Removes what no request has needed for a while. A call that still runs keeps its own.
    fn forget_unused(&self, now: Timestamp) {
        let unused = self.setup.refresh.max(SHORTEST) * 2;
        let forgotten = {
            let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
            let before = holders.len();
            // Its folder goes with it, under the lock: the next holder of that identity uses the same one.
            holders.retain(|identity, holder| {
                *identity == Identity::Operator || holder.unused_since(now) <= unused || !holder.is_free()
            });
            holders.len() < before
        };
        if forgotten {
            self.metrics.credentials(self.failing());
        }
    }

    fn holder(&self, identity: &Identity) -> Result<Arc<Holder>, Unknown> {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = holders.get(identity) {
            return Ok(Arc::clone(holder));
        }
        if let Identity::Secret { namespace, .. } = identity {
            self.make_room(&mut holders, namespace, self.schedd.clock.now())?;
        }
        let folder = self.folder_of(identity).map_err(|error| {
            let base = self.setup.run_dir.display();
            let message = format!("cannot make a folder for tickets and tokens in {base}: {error}; check --run-dir");
            Unknown { why: Why::CredentialsFailed, message }
        })?;
        let only = *identity != Identity::Operator || matches!(self.setup.own, Own::Secret(_));
        let holder = Arc::new(Holder::new(&self.schedd, identity, folder, only));
        holders.insert(identity.clone(), Arc::clone(&holder));
        Ok(holder)
    }

    /// A namespace that has all that it may have gives up what it has not used for the longest time. If all are in use, the next
    /// one waits.
    fn make_room(
        &self,
        holders: &mut HashMap<Identity, Arc<Holder>>,
        namespace: &str,
        now: Timestamp,
    ) -> Result<(), Unknown> {
        let most = self.setup.namespace_identities;
        let its = |identity: &Identity| matches!(identity, Identity::Secret { namespace: own, .. } if own == namespace);
        if holders.keys().filter(|identity| its(identity)).count() < most {
            return Ok(());
        }
        let idle = |holder: &Arc<Holder>| holder.unused_since(now) >= IDLE && holder.is_free();
        let unused = holders.iter().filter(|(identity, holder)| its(identity) && idle(holder));
        let longest = unused.max_by_key(|(_, holder)| holder.unused_since(now)).map(|(identity, _)| identity.clone());
        if longest.and_then(|identity| holders.remove(&identity)).is_some() {
            return Ok(());
        }
        let message = format!(
            "{most} other Secrets of namespace {namespace} are in use, and no more may be at once (--namespace-identities); this one \
             waits for its turn. Use fewer Secrets, or ask the operator's administrator for a higher limit"
        );
        Err(Unknown { why: Why::CredentialsFailed, message })
    }

    fn folder_of(&self, identity: &Identity) -> std::io::Result<PathBuf> {
        let mut made = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        let base = match &*made {
            Some(folder) => folder,
            None => made.insert(Private::make(&self.setup.run_dir)?),
        };
        let folder = match identity {
            Identity::Operator => base.path().join("own"),
            Identity::Secret { namespace, name } => base.path().join("secrets").join(namespace).join(name),
            Identity::Namespace(namespace) => base.path().join("namespaces").join(namespace),
        };
        private::make_folder(&folder.join(holder::TOKENS))?;
        Ok(folder)
    }
}

/// Where the operator's private folder is made unless it is told: a folder of this machine.
#[must_use]
pub fn usual_run_dir() -> PathBuf {
    std::env::temp_dir()
}

/// Whether tickets and tokens may lie there: not on a file system that other machines see, too.
pub fn check_run_dir(path: &Path) -> Result<(), String> {
    // statfs(2): NFS, SMB, CIFS, AFS (two kinds), Ceph.
    const SHARED: [u32; 6] = [0x6969, 0x517B, 0xFF53_4D42, 0x5346_414F, 0x6B41_4653, 0x00C3_6400];
    let found = rustix::fs::statfs(path).map_err(|error| format!("--run-dir {}: {error}", path.display()))?;
    let kind = u32::try_from(found.f_type & 0xFFFF_FFFF).unwrap_or_default();
    if SHARED.contains(&kind) {
        return Err(format!(
            "--run-dir {}: tickets and tokens must not lie where other machines see them; give a folder of this one, best in memory",
            path.display()
        ));
    }
    Ok(())
}
