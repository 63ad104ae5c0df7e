//! The Secret with the keys that sign the jobs' tokens.

use std::collections::BTreeMap;

use htc_submit::job_token::TokenKeys;
use htc_support::kubernetes::{ApiError, FIELD_MANAGER, with_timeout};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, PostParams};

/// Entry of the Secret that holds the keys, one per line.
pub const ENTRY: &str = "keys";

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The API server refused or did not answer.
    #[error("{0}; let the operator get and create it, or give --callback-key-file")]
    Api(#[from] ApiError),
    /// The Secret was deleted.
    #[error("the Secret {name} is gone; the next operator that is started makes one with a new key")]
    Gone {
        /// `namespace/name`
        name: String,
    },
    /// The content of the entry is invalid.
    #[error("the entry `{ENTRY}` of the Secret {name}: {source}")]
    Keys {
        /// `namespace/name`
        name: String,
        source: htc_submit::job_token::KeyError,
    },
    /// The system provides no random numbers.
    #[error("cannot make a key: {0}")]
    Random(#[from] getrandom::Error),
}

/// Reads the keys. If the Secret does not exist and `make` is true, creates it with a random key. An existing Secret is
/// never changed: edits of it are intentional.
pub async fn callback_keys(client: &Client, namespace: &str, name: &str, make: bool) -> Result<TokenKeys, SecretError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let full = || format!("{namespace}/{name}");
    let read = || async { with_timeout("read the Secret", &full(), api.get_opt(name)).await };
    let mut found = read().await?;
    if found.is_none() {
        if !make {
            return Err(SecretError::Gone { name: full() });
        }
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), FIELD_MANAGER.to_owned())])),
                ..ObjectMeta::default()
            },
            string_data: Some(BTreeMap::from([(ENTRY.to_owned(), TokenKeys::random()?)])),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        let parameters = PostParams::default();
        match with_timeout("make the Secret", &full(), api.create(&parameters, &secret)).await {
            Ok(_) => {}
            // Another operator with the same Secret has just created it.
            Err(error) if error.code() == Some(409) => {}
            Err(error) => return Err(error.into()),
        }
        tracing::info!(secret = full(), "callback keys created");
        found = read().await?;
    }
    let data = found.and_then(|secret| secret.data).and_then(|mut data| data.remove(ENTRY)).unwrap_or_default();
    TokenKeys::parse(&String::from_utf8_lossy(&data.0)).map_err(|source| SecretError::Keys { name: full(), source })
}
