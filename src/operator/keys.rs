//! The keys of the jobs' tokens: read at the start, and again every now and then, so that nothing is restarted for a new one.

use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use tokio::task::AbortHandle;

use super::StartError;
use crate::config::Config;
use crate::controller::secret::{self, SecretError};
use crate::key::{KeyError, KeyRing, Keys};
use crate::retry::Backoff;

/// Where the keys are.
#[derive(Clone)]
enum Origin {
    File(PathBuf),
    Secret { client: Client, namespace: String, name: String },
}

/// Why they cannot be read now.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("--callback-key-file {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("--callback-key-file {}: {source}", path.display())]
    InFile { path: PathBuf, source: KeyError },
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// The keys in force. They follow what is written for as long as this lives.
pub(super) struct Followed {
    pub(super) ring: KeyRing,
    task: AbortHandle,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Followed {
    /// Reads them: from the file, or from the Secret as soon as the API server lets it be read.
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
                Err(error @ Unread::Secret(_)) => tracing::warn!(%error, "waiting for the keys of the jobs' tokens"),
                Err(error) => return Err(StartError::Setting(error.to_string())),
            }
            tokio::time::sleep(backoff.pause()).await;
        };
        let ring = KeyRing::new(keys);
        let task = tokio::spawn(follow(origin, ring.clone(), config.data.housekeeping)).abort_handle();
        Ok(Self { ring, task })
    }
}

impl Origin {
    /// `make`: a Secret that is not there is made.
    async fn read(&self, make: bool) -> Result<Keys, Unread> {
        match self {
            Self::File(path) => {
                let failed = |source| Unread::File { path: path.clone(), source };
                let text = std::fs::read_to_string(path).map_err(failed)?;
                Keys::parse(&text).map_err(|source| Unread::InFile { path: path.clone(), source })
            }
            Self::Secret { client, namespace, name } => Ok(secret::callback_keys(client, namespace, name, make).await?),
        }
    }
}

/// What cannot be read, or has no usable key, leaves the keys as they are, and is told once.
async fn follow(origin: Origin, ring: KeyRing, every: Duration) {
    let mut told = String::new();
    loop {
        tokio::time::sleep(every).await;
        match origin.read(false).await {
            Ok(keys) => {
                told.clear();
                if ring.replace(keys) {
                    tracing::info!("the keys of the jobs' tokens are others now");
                }
            }
            Err(error) => {
                let words = error.to_string();
                if words != told {
                    tracing::warn!(%error, "the keys of the jobs' tokens cannot be read again; they stay as they were");
                    told = words;
                }
            }
        }
    }
}
