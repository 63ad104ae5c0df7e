//! Where credentials come from.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;

use super::material::Material;
use super::realms::Realms;
use super::signing::{Signer, SigningKey};
use crate::api::{ObjectName, Use};
use crate::kubernetes::limited;

/// The operator's own Secrets, by the folders that they are mounted into.
const KEYTAB_SECRET: &str = "kerberos-keytab-secret";
const PASSWORD_SECRET: &str = "kinit-secret";
const TOKEN_SECRET: &str = "htcondor-idtoken";

/// Where one identity's come from.
pub(super) enum Source {
    /// Folders in this one.
    Mounted(PathBuf),
    /// A Secret beside an HTCJob or an HTCPool.
    Secret { client: Client, secret: ObjectName, of: SecretOf, realms: Arc<Realms> },
    /// A token for the HTCJobs of this namespace.
    Signer { client: Client, signer: Signer, namespace: String },
    /// There is no way to read them.
    Nothing,
}

/// The kind of object that names a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretOf {
    /// An HTCJob. The Secret must have the label that allows it.
    HTCJobs,
    /// An HTCPool, or this operator for a managed pool. No label is needed.
    Pool,
}

/// Why there are none.
pub(super) enum SourceError {
    /// They are not there, or not in order: what was had before counts no longer.
    Gone(String),
    /// Nobody could say: what was had before may still do.
    Silent(String),
}

impl Source {
    /// Reads them, whole.
    pub(super) async fn read(&self) -> Result<Material, SourceError> {
        match self {
            Self::Mounted(folder) => {
                let folder = folder.clone();
                let read = tokio::task::spawn_blocking(move || mounted(&folder)).await;
                read.unwrap_or_else(|error| Err(error.to_string())).map_err(SourceError::Gone)
            }
            Self::Secret { client, secret, of, realms } => read_secret(client, secret, *of, realms).await,
            Self::Signer { client, signer, namespace } => signed(client, signer, namespace).await,
            Self::Nothing => Err(SourceError::Silent("the API server cannot be asked for Secrets".to_owned())),
        }
    }
}

/// Each of the Secrets may be missing: an optional volume is then an empty folder.
fn mounted(folder: &Path) -> Result<Material, String> {
    let file = |secret: &str, entry: &str| {
        let path = folder.join(secret).join(entry);
        match std::fs::read(&path) {
            Ok(contents) => Ok(Some(contents)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    };
    let mut all = Material::default();
    for (secret, entries) in [
        (KEYTAB_SECRET, &["user", "keytab"][..]),
        (PASSWORD_SECRET, &["username", "password"]),
        (TOKEN_SECRET, &["token"]),
    ] {
        // A keytab is taken before a password, which is then not looked at.
        if secret == PASSWORD_SECRET && all.kerberos.is_some() {
            continue;
        }
        let mut found = Vec::new();
        for entry in entries {
            found.push((*entry, file(secret, entry)?));
        }
        let get = |wanted: &str| found.iter().find(|(name, _)| *name == wanted).and_then(|(_, value)| value.clone());
        let read = Material::from_entries(get)
            .map_err(|error| format!("the Secret {secret}, mounted at {}: {error}", folder.join(secret).display()))?;
        all = Material { kerberos: all.kerberos.or(read.kerberos), token: all.token.or(read.token) };
    }
    Ok(all)
}

async fn read_secret(
    client: &Client,
    ObjectName { namespace, name }: &ObjectName,
    of: SecretOf,
    realms: &Realms,
) -> Result<Material, SourceError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = match limited("read the Secret", &format!("{namespace}/{name}"), api.get_opt(name)).await {
        Ok(found) => found,
        Err(error) if matches!(error.code(), Some(401 | 403)) => {
            return Err(SourceError::Gone(format!(
                "the operator may not read the Secret {namespace}/{name}: ask an administrator of the namespace for a Role and a RoleBinding for `get` on this Secret, as in docs/credentials.md"
            )));
        }
        Err(error) => return Err(SourceError::Silent(error.to_string())),
    };
    let Some(found) = found else {
        return Err(SourceError::Gone(format!(
            "there is no Secret {namespace}/{name}: create it with the entry `token`, or `user` and `keytab`, or `username` and `password`"
        )));
    };
    if of == SecretOf::HTCJobs {
        Use::Credentials.is_allowed_by(&found).map_err(|error| SourceError::Gone(error.to_string()))?;
    }
    let data = found.data.unwrap_or_default();
    let read = Material::from_entries(|entry| data.get(entry).map(|value| value.0.clone()));
    let allowed = read.and_then(|read| match &read.kerberos {
        Some(kerberos) => realms.check(kerberos).map(|()| read),
        None => Ok(read),
    });
    let read = allowed.map_err(|error| {
        SourceError::Gone(format!("the Secret {namespace}/{name} contains no usable credentials: {error}"))
    })?;
    if read.is_empty() {
        return Err(SourceError::Gone(format!(
            "the Secret {namespace}/{name} contains no usable credentials: expected the entries `token`, or `user` and `keytab`, or `username` and `password`"
        )));
    }
    Ok(read)
}

async fn signed(client: &Client, signer: &Signer, namespace: &str) -> Result<Material, SourceError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &signer.keys.namespace);
    let found = limited("read the Secret", &signer.keys.to_string(), api.get_opt(&signer.keys.name)).await;
    let found = found.map_err(|error| SourceError::Silent(error.to_string()))?;
    let keys = found.and_then(|secret| SigningKey::all_of_secret(&secret).ok()).filter(|keys| !keys.is_empty());
    // Daemons that run have them still: a token that was made before does.
    let keys = keys.ok_or_else(|| {
        SourceError::Silent(format!(
            "the Secret {} has no signing key: the operator writes it again within minutes",
            signer.keys
        ))
    })?;
    let now = jiff::Timestamp::now().as_second();
    let tokens: Vec<String> = keys.iter().map(|key| key.namespace_token(signer, namespace, now)).collect();
    Ok(Material { kerberos: None, token: Some(tokens.join("\n")) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::credentials::material::Kerberos;

    #[test]
    fn each_mounted_secret_may_be_missing_and_a_keytab_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let put = |secret: &str, entry: &str, text: &str| {
            fs::create_dir_all(folder.path().join(secret)).unwrap();
            fs::write(folder.path().join(secret).join(entry), text).unwrap();
        };
        assert!(mounted(folder.path()).unwrap().is_empty());
        put(PASSWORD_SECRET, "username", "alice");
        let said = mounted(folder.path()).unwrap_err();
        assert!(said.contains(PASSWORD_SECRET) && said.contains("no `password`"), "{said}");
        put(PASSWORD_SECRET, "password", "secret");
        assert!(matches!(mounted(folder.path()).unwrap().kerberos, Some(Kerberos::Password { .. })));
        put(KEYTAB_SECRET, "user", "alice");
        put(KEYTAB_SECRET, "keytab", "k");
        assert!(matches!(mounted(folder.path()).unwrap().kerberos, Some(Kerberos::Keytab { .. })));
        put(TOKEN_SECRET, "token", "no token");
        assert!(mounted(folder.path()).unwrap_err().contains(TOKEN_SECRET));
    }
}
