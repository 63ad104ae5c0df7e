//! Reads Secrets and ConfigMaps that HTCJobs name, if their label allows it.

use htc_api::{NoConsent, Use};
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use crate::kubernetes::{ApiError, with_timeout};

/// Reason why an object cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The operator has no permission.
    #[error(
        "the operator may not read the {kind} {name}: ask an administrator of the namespace for a Role and a RoleBinding for `get` on it, as in docs/using.md"
    )]
    Forbidden {
        /// Kind of the object.
        kind: &'static str,
        /// `namespace/name`
        name: String,
    },
    /// The object does not exist.
    #[error("there is no {kind} {name}: create it")]
    Missing {
        /// Kind of the object.
        kind: &'static str,
        /// `namespace/name`
        name: String,
    },
    /// The label of the object does not allow its use.
    #[error(transparent)]
    NoConsent(#[from] NoConsent),
    /// The API server did not answer as expected.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Reads an object, if its label allows this use.
///
/// # Errors
/// It is missing, its label has another value, or the operator may not read it.
pub async fn read<K>(client: &Client, wanted: Use, namespace: &str, name: &str) -> Result<K, SourceError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let (kind, full) = (wanted.kind(), format!("{namespace}/{name}"));
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let found = match with_timeout("read", &format!("the {kind} {full}"), api.get_opt(name)).await {
        Err(error) if error.code() == Some(403) => {
            return Err(SourceError::Forbidden { kind, name: full });
        }
        found => found?.ok_or(SourceError::Missing { kind, name: full })?,
    };
    wanted.is_allowed_by(&found)?;
    Ok(found)
}
