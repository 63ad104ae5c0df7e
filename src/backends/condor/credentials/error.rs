//! Errors of obtaining credentials.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use htc_api::{NoConsent, ObjectName};
use htc_support::kubernetes::ApiError;
use tokio::task::JoinError;

use super::material::MaterialError;
use super::ticket::TicketError;

/// Reason why an identity has no credentials. No text quotes a password, a keytab or a token.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialError {
    /// The API server refuses to show the Secret.
    #[error(
        "the operator may not read the Secret {0}: ask an administrator of the namespace for a Role and a RoleBinding for `get` on this Secret, as in docs/credentials.md"
    )]
    SecretForbidden(ObjectName),
    #[error(
        "there is no Secret {0}: create it with the entry `token`, or `user` and `keytab`, or `username` and `password`"
    )]
    NoSecret(ObjectName),
    /// The Secret does not have the label that permits this use.
    #[error(transparent)]
    NoConsent(#[from] NoConsent),
    #[error("the Secret {secret} contains no usable credentials: {source}")]
    InvalidSecret { secret: ObjectName, source: MaterialError },
    #[error(
        "the Secret {0} contains no usable credentials: expected the entries `token`, or `user` and `keytab`, or `username` and `password`"
    )]
    EmptySecret(ObjectName),
    #[error("the Secret {secret}, mounted at {}: {source}", folder.display())]
    InvalidMount { secret: &'static str, folder: PathBuf, source: MaterialError },
    #[error("cannot read {}: {source}", path.display())]
    UnreadableMount { path: PathBuf, source: io::Error },
    /// The task that reads the mounted Secrets has panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
    /// The Secret was not read: the API server did not answer, or failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The operator has no client, or the pool has no signer.
    #[error("the API server cannot be asked for Secrets")]
    NoSource,
    /// The daemons that run still accept the tokens that were made before.
    #[error("the Secret {0} has no signing key: the operator writes it again within minutes")]
    NoSigningKey(ObjectName),
    #[error("the token ended {} s ago: put a new one there", .0.as_secs())]
    TokenEnded(Duration),
    #[error("cannot write the token's copy: {0}; check --run-dir")]
    WriteToken(#[source] io::Error),
    #[error("no Kerberos ticket can be had: {0}")]
    NoTicket(#[source] TicketError),
}

impl CredentialError {
    /// Whether the source did not answer, so that what was read before may still be used. Otherwise the credentials do
    /// not exist or are invalid, and earlier ones must not be used any longer.
    pub(super) const fn is_temporary(&self) -> bool {
        matches!(self, Self::Api(_) | Self::NoSource | Self::NoSigningKey(_))
    }
}
