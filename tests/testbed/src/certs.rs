//! Certificates and kubeconfigs of a throw-away control plane.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::account::Account;
use crate::error::{Error, Result};
use crate::upstream::Credentials;

/// Names under which the API server is reached, besides 127.0.0.1.
const SERVER_NAMES: [&str; 6] =
    ["localhost", "127.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1"];

/// Name of the API server to API servers beside it.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// A certificate authority and the files made by it.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// Makes the authority, the server's certificate and the key that signs service account tokens, all in `folder`.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let account = Account::unprivileged();
        let authority = Self::bare(folder, "testbed-ca")?;
        let signer = self::key("service-account")?;
        account.write(&authority.service_account_key(), signer.serialize_pem(), 0o600)?;
        account.write(&authority.service_account_public_key(), signer.public_key_pem(), 0o644)?;
        let (certificate, key) =
            authority.issue("kube-apiserver", None, &SERVER_NAMES, ExtendedKeyUsagePurpose::ServerAuth)?;
        account.write(&authority.server_certificate(), certificate, 0o644)?;
        account.write(&authority.server_key(), key, 0o600)?;
        Ok(authority)
    }

    /// Makes the authority alone.
    fn bare(folder: &Path, name: &str) -> Result<Self> {
        let account = Account::unprivileged();
        account.make_dir(folder, 0o755)?;
        let key = key("ca")?;
        let mut params = params("ca", name, None, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).map_err(failed("ca"))?;
        let pem = certificate.pem();
        let authority = Self { folder: folder.to_owned(), issuer: Issuer::new(params, key), pem };
        account.write(&authority.ca(), &authority.pem, 0o644)?;
        Ok(authority)
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    pub(crate) fn server_certificate(&self) -> PathBuf {
        self.folder.join("server.crt")
    }

    pub(crate) fn server_key(&self) -> PathBuf {
        self.folder.join("server.key")
    }

    pub(crate) fn service_account_public_key(&self) -> PathBuf {
        self.folder.join("service-account.pub")
    }

    pub(crate) fn service_account_key(&self) -> PathBuf {
        self.folder.join("service-account.key")
    }

    /// Writes a kubeconfig with which `user`, a member of `group`, reaches the API server on `port`.
    pub(crate) fn kubeconfig(&self, path: &Path, user: &str, group: Option<&str>, port: u16) -> Result<()> {
        let (certificate, key) = self.issue(user, group, &[], ExtendedKeyUsagePurpose::ClientAuth)?;
        let text = format!(
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "testbed",
"contexts": [{{"name": "testbed", "context": {{"cluster": "testbed", "user": "user"}}}}],
"clusters": [{{"name": "testbed", "cluster": {{"server": "https://127.0.0.1:{port}", "certificate-authority-data": "{}"}}}}],
"users": [{{"name": "user", "user": {{"client-certificate-data": "{}", "client-key-data": "{}"}}}}]}}
"#,
            BASE64.encode(&self.pem),
            BASE64.encode(certificate),
            BASE64.encode(key),
        );
        Account::unprivileged().write(path, text, 0o600)
    }

    /// What a client that is no program with a kubeconfig needs to be `user`.
    pub(crate) fn credentials(&self, user: &str, group: Option<&str>) -> Result<Credentials> {
        let (certificate, key) = self.issue(user, group, &[], ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(Credentials { authority: self.pem.clone(), certificate, key })
    }

    /// The authority by which the API server shows itself to API servers beside it: one of their own, or any user could speak for
    /// all.
    pub(crate) fn of_front_proxy(folder: &Path) -> Result<Self> {
        Self::bare(folder, FRONT_PROXY)
    }

    /// Files with certificate and key of a client.
    pub(crate) fn client_files(&self, user: &str, group: Option<&str>) -> Result<(PathBuf, PathBuf)> {
        let (certificate, key) = self.issue(user, group, &[], ExtendedKeyUsagePurpose::ClientAuth)?;
        let paths = ["crt", "key"].map(|end| self.folder.join(format!("{user}.{end}")));
        for (path, pem) in paths.iter().zip([certificate, key]) {
            Account::unprivileged().write(path, pem, 0o600)?;
        }
        Ok(paths.into())
    }

    fn issue(
        &self,
        user: &str,
        group: Option<&str>,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<(String, String)> {
        let key = key(user)?;
        let mut params = params(user, user, group, names)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed(user))?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

fn params(name: &str, user: &str, group: Option<&str>, names: &[&str]) -> Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).map_err(failed(name))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    Ok(params)
}

fn key(name: &str) -> Result<KeyPair> {
    KeyPair::generate().map_err(failed(name))
}

fn failed(name: &str) -> impl FnOnce(rcgen::Error) -> Error + use<> {
    let name = name.to_owned();
    |source| Error::Certificate { name, source }
}
