//! The Secret with the keys of the jobs' tokens.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, PostParams};

use crate::key::Keys;
use crate::kubernetes::{ApiError, MANAGER, limited};

/// The entry that has the keys, one a line.
pub const ENTRY: &str = "keys";

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The API server.
    #[error("{0}; let the operator get and create it, or give --callback-key-file")]
    Api(#[from] ApiError),
    /// Somebody has deleted it.
    #[error("the Secret {name} is gone; the next operator that is started makes one with a new key")]
    Gone {
        /// `namespace/name`
        name: String,
    },
    /// What is in it.
    #[error("the entry `{ENTRY}` of the Secret {name}: {source}")]
    Keys {
        /// `namespace/name`
        name: String,
        /// What is wrong.
        source: crate::key::KeyError,
    },
    /// The system has no random numbers.
    #[error("cannot make a key: {0}")]
    Random(#[from] getrandom::Error),
}

/// Reads the keys. Where there are none they are made, if `make`. The Secret is never written again: who changes it wants that.
pub async fn callback_keys(client: &Client, namespace: &str, name: &str, make: bool) -> Result<Keys, SecretError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let full = || format!("{namespace}/{name}");
    let read = || async { limited("read the Secret", &full(), api.get_opt(name)).await };
    let mut found = read().await?;
    if found.is_none() {
        if !make {
            return Err(SecretError::Gone { name: full() });
        }
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned())])),
                ..ObjectMeta::default()
            },
            string_data: Some(BTreeMap::from([(ENTRY.to_owned(), Keys::random()?)])),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        let parameters = PostParams::default();
        match limited("make the Secret", &full(), api.create(&parameters, &secret)).await {
            Ok(_) => {}
            // Another operator of this name was faster.
            Err(error) if error.code() == Some(409) => {}
            Err(error) => return Err(error.into()),
        }
        tracing::info!(secret = full(), "made the keys of the jobs' tokens");
        found = read().await?;
    }
    let data = found.and_then(|secret| secret.data).and_then(|mut data| data.remove(ENTRY)).unwrap_or_default();
    Keys::parse(&String::from_utf8_lossy(&data.0)).map_err(|source| SecretError::Keys { name: full(), source })
}
