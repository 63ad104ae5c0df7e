//! Sources of credentials.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_api::{ObjectName, Use};
use htc_support::kubernetes::with_timeout;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;

use super::error::CredentialError;
use super::material::Material;
use super::realms::Realms;
use super::signing::{Signer, SigningKey};

/// Names of the operator's own Secrets, which are also the folders that they are mounted into.
const KEYTAB_SECRET: &str = "kerberos-keytab-secret";
const PASSWORD_SECRET: &str = "kinit-secret";
const TOKEN_SECRET: &str = "htcondor-idtoken";

/// Source of one identity's credentials.
pub(super) enum Source {
    /// Subfolders of this folder.
    Mounted(PathBuf),
    /// A Secret next to an HTCJob or an HTCPool.
    Secret { client: Client, secret: ObjectName, of: SecretOf, realms: Arc<Realms> },
    /// Tokens for the HTCJobs of this namespace, made by the operator.
    Signer { client: Client, signer: Signer, namespace: String },
    /// The credentials cannot be read.
    Nothing,
}

/// Kind of object that refers to a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretOf {
    /// HTCJobs. The Secret must have the label that permits this use.
    HTCJobs,
    /// An HTCPool, or this operator for a managed pool. No label is needed.
    Pool,
}

impl Source {
    /// Reads the credentials.
    pub(super) async fn read(&self) -> Result<Material, CredentialError> {
        match self {
            Self::Mounted(folder) => {
                let folder = folder.clone();
                tokio::task::spawn_blocking(move || mounted(&folder)).await?
            }
            Self::Secret { client, secret, of, realms } => read_secret(client, secret, *of, realms).await,
            Self::Signer { client, signer, namespace } => signed(client, signer, namespace).await,
            Self::Nothing => Err(CredentialError::NoSource),
        }
    }
}

/// Reads the mounted Secrets. Each may be missing: an optional volume is an empty folder then.
fn mounted(folder: &Path) -> Result<Material, CredentialError> {
    let file = |secret: &str, entry: &str| {
        let path = folder.join(secret).join(entry);
        match std::fs::read(&path) {
            Ok(contents) => Ok(Some(contents)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CredentialError::UnreadableMount { path, source }),
        }
    };
    let mut all = Material::default();
    for (secret, entries) in [
        (KEYTAB_SECRET, &["user", "keytab"][..]),
        (PASSWORD_SECRET, &["username", "password"]),
        (TOKEN_SECRET, &["token"]),
    ] {
        // A keytab has priority; the password is then not read.
        if secret == PASSWORD_SECRET && all.kerberos.is_some() {
            continue;
        }
        let mut found = Vec::new();
        for entry in entries {
            found.push((*entry, file(secret, entry)?));
        }
        let get = |wanted: &str| found.iter().find(|(name, _)| *name == wanted).and_then(|(_, value)| value.clone());
        let invalid = |source| CredentialError::InvalidMount { secret, folder: folder.join(secret), source };
        let read = Material::from_entries(get).map_err(invalid)?;
        all = Material { kerberos: all.kerberos.or(read.kerberos), token: all.token.or(read.token) };
    }
    Ok(all)
}

async fn read_secret(
    client: &Client,
    secret: &ObjectName,
    of: SecretOf,
    realms: &Realms,
) -> Result<Material, CredentialError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &secret.namespace);
    let found = match with_timeout("read the Secret", secret, api.get_opt(&secret.name)).await {
        Err(error) if matches!(error.code(), Some(401 | 403)) => {
            return Err(CredentialError::SecretForbidden(secret.clone()));
        }
        answer => answer?.ok_or_else(|| CredentialError::NoSecret(secret.clone()))?,
    };
    if of == SecretOf::HTCJobs {
        Use::Credentials.is_allowed_by(&found)?;
    }
    let data = found.data.unwrap_or_default();
    let read = Material::from_entries(|entry| data.get(entry).map(|value| value.0.clone()));
    let allowed = read.and_then(|read| match &read.kerberos {
        Some(kerberos) => realms.check(kerberos).map(|()| read),
        None => Ok(read),
    });
    let read = allowed.map_err(|source| CredentialError::InvalidSecret { secret: secret.clone(), source })?;
    if read.is_empty() { Err(CredentialError::EmptySecret(secret.clone())) } else { Ok(read) }
}

async fn signed(client: &Client, signer: &Signer, namespace: &str) -> Result<Material, CredentialError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &signer.keys.namespace);
    let found = with_timeout("read the Secret", &signer.keys.to_string(), api.get_opt(&signer.keys.name)).await?;
    let keys = found.and_then(|secret| SigningKey::all_of_secret(&secret).ok()).filter(|keys| !keys.is_empty());
    // Daemons that run still hold the keys, so an earlier token remains valid.
    let keys = keys.ok_or_else(|| CredentialError::NoSigningKey(signer.keys.clone()))?;
    let now = jiff::Timestamp::now().as_second();
    let tokens: Vec<String> = keys.iter().map(|key| key.namespace_token(signer, namespace, now)).collect();
    Ok(Material { kerberos: None, token: Some(tokens.join("\n")) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::backends::condor::credentials::material::Kerberos;

    #[test]
    fn mounted_secrets_are_optional_and_a_keytab_takes_precedence() {
        let folder = tempfile::tempdir().unwrap();
        let put = |secret: &str, entry: &str, text: &str| {
            fs::create_dir_all(folder.path().join(secret)).unwrap();
            fs::write(folder.path().join(secret).join(entry), text).unwrap();
        };
        assert!(mounted(folder.path()).unwrap().is_empty());
        put(PASSWORD_SECRET, "username", "alice");
        let said = mounted(folder.path()).unwrap_err().to_string();
        assert!(said.contains(PASSWORD_SECRET) && said.contains("no `password`"), "{said}");
        put(PASSWORD_SECRET, "password", "secret");
        assert!(matches!(mounted(folder.path()).unwrap().kerberos, Some(Kerberos::Password { .. })));
        put(KEYTAB_SECRET, "user", "alice");
        put(KEYTAB_SECRET, "keytab", "k");
        assert!(matches!(mounted(folder.path()).unwrap().kerberos, Some(Kerberos::Keytab { .. })));
        put(TOKEN_SECRET, "token", "no token");
        assert!(mounted(folder.path()).unwrap_err().to_string().contains(TOKEN_SECRET));
    }
}
