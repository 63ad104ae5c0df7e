//! Keys of the jobs' tokens. They are read at the start and again from time to time, so that a new key needs no
//! restart.

use std::path::PathBuf;
use std::time::Duration;

use htc_submit::job_token::{KeyError, KeyRing, TokenKeys};
use htc_support::retry::Backoff;
use kube::Client;
use tokio::task::AbortHandle;

use super::StartError;
use crate::cli::config::Config;
use crate::htcjob::secret;
use crate::htcjob::secret::SecretError;

/// Source of the keys.
#[derive(Clone)]
enum Origin {
    File(PathBuf),
    Secret { client: Client, namespace: String, name: String },
}

/// Reason why the keys cannot be read now.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    #[error("--callback-key-file {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("--callback-key-file {}: {source}", path.display())]
    InFile { path: PathBuf, source: KeyError },
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// The keys in use. They follow their source until this is dropped.
pub(super) struct KeyFollower {
    pub(super) ring: KeyRing,
    task: AbortHandle,
}

impl Drop for KeyFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl KeyFollower {
    /// Reads the keys: from the file, or from the Secret as soon as the API server lets it be read.
    pub(super) async fn begin(client: &Client, config: &Config) -> Result<Self, StartError> {
        let origin = match &config.callbacks.callback_key_file {
            Some(path) => Origin::File(path.clone()),
            None => Origin::Secret {
                client: client.clone(),
                namespace: config.kubernetes.operator_namespace.clone(),
                name: format!("{}-callback-keys", config.kubernetes.operator_name),
            },
        };
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        let keys = loop {
            match origin.read(true).await {
                Ok(keys) => break keys,
                Err(error @ Unread::Secret(_)) => tracing::warn!(%error, "waiting for callback keys"),
                Err(error) => return Err(StartError::CallbackKeys(error)),
            }
            tokio::time::sleep(backoff.pause()).await;
        };
        let ring = KeyRing::new(keys);
        let task = tokio::spawn(follow(origin, ring.clone(), config.data.cleanup_interval)).abort_handle();
        Ok(Self { ring, task })
    }
}

impl Origin {
    /// Reads the keys. `make`: creates the Secret if it does not exist.
    async fn read(&self, make: bool) -> Result<TokenKeys, Unread> {
        match self {
            Self::File(path) => {
                let failed = |source| Unread::File { path: path.clone(), source };
                let text = std::fs::read_to_string(path).map_err(failed)?;
                TokenKeys::parse(&text).map_err(|source| Unread::InFile { path: path.clone(), source })
            }
            Self::Secret { client, namespace, name } => Ok(secret::callback_keys(client, namespace, name, make).await?),
        }
    }
}

/// Reads the keys at this interval. If they cannot be read, or none is usable, the keys stay and the error is logged
/// once.
async fn follow(origin: Origin, ring: KeyRing, every: Duration) {
    let mut told = String::new();
    loop {
        tokio::time::sleep(every).await;
        match origin.read(false).await {
            Ok(keys) => {
                told.clear();
                if ring.replace(keys) {
                    tracing::info!("callback keys reloaded");
                }
            }
            Err(error) => {
                let words = error.to_string();
                if words != told {
                    tracing::warn!(%error, "callback keys not reloaded");
                    told = words;
                }
            }
        }
    }
}
