//! Mutual TLS. Clients are identified by their certificate: its authority *and* its name. Both sides' certificates
//! can be replaced while a port is served.

use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Reason why something cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum MtlsError {
    /// Not PEM.
    #[error("{what} cannot be read as PEM: {source}")]
    Pem {
        /// Name of the part in messages.
        what: &'static str,
        source: rustls::pki_types::pem::Error,
    },
    /// Not a certificate or key.
    #[error("{what} cannot be used: {why}")]
    Unusable {
        /// Name of the part in messages.
        what: &'static str,
        why: String,
    },
}

fn unusable(what: &'static str) -> impl FnOnce(&dyn std::fmt::Display) -> MtlsError {
    move |why| MtlsError::Unusable { what, why: why.to_string() }
}

/// Parses the certificates in a PEM text.
fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, MtlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|source| MtlsError::Pem { what, source })
}

/// Authorities and names of the clients whose certificates are accepted.
#[derive(Clone, Debug)]
pub struct TrustedClients(Arc<RwLock<Option<Current>>>, Arc<CryptoProvider>);

#[derive(Clone, Debug)]
struct Current {
    chain: Arc<dyn ClientCertVerifier>,
    names: BTreeSet<String>,
}

impl Default for TrustedClients {
    /// Trusts no client.
    fn default() -> Self {
        Self(Arc::default(), Arc::new(ring::default_provider()))
    }
}

impl TrustedClients {
    /// Replaces the trusted clients: certificates of these authorities (PEM) with one of these common names.
    pub fn replace(&self, authorities: &str, names: BTreeSet<String>) -> Result<(), MtlsError> {
        let what = "the authority of the clients";
        let mut roots = RootCertStore::empty();
        for certificate in certificates(what, authorities)? {
            roots.add(certificate).map_err(|error| unusable(what)(&error))?;
        }
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.1))
            .build()
            .map_err(|error| unusable(what)(&error))?;
        *self.0.write() = Some(Current { chain, names });
        Ok(())
    }

    /// Trusts no client from now on.
    pub fn trust_nobody(&self) {
        *self.0.write() = None;
    }

    /// Returns whether these certificates are accepted now: the client's own first, then the intermediate ones. They
    /// were presented when the connection began; the trusted clients may have changed since, and certificates expire.
    #[must_use]
    pub fn trusts(&self, shown: &[CertificateDer<'_>]) -> bool {
        shown.split_first().is_some_and(|(own, others)| self.verify_client_cert(own, others, UnixTime::now()).is_ok())
    }

    fn current(&self) -> Option<Current> {
        self.0.read().clone()
    }
}

/// Returns the only common name of a certificate; `None` if it has several, or none.
fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let (name, None) = (names.next()?, names.next()) else { return None };
    name.as_str().ok().map(str::to_owned)
}

impl ClientCertVerifier for TrustedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let current = self.current().ok_or(CertificateError::UnknownIssuer)?;
        let verified = current.chain.verify_client_cert(end_entity, intermediates, now)?;
        match common_name(end_entity) {
            Some(name) if current.names.contains(&name) => Ok(verified),
            name => {
                tracing::warn!(name = name.as_deref().unwrap_or_default(), "client certificate has no accepted name");
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.1.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.1.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.signature_verification_algorithms.supported_schemes()
    }
}

/// Certificate that a port presents. Without one, every handshake fails.
#[derive(Clone, Debug, Default)]
pub struct ServerCertificate(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl ServerCertificate {
    /// Replaces the certificate: a chain and its key, PEM.
    pub fn replace(&self, chain: &str, key: &str) -> Result<(), MtlsError> {
        let what = "the certificate";
        let chain = certificates(what, chain)?;
        let source = |source| MtlsError::Pem { what: "the key", source };
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(source)?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let certified = certified.map_err(|error| unusable(what)(&error))?;
        *self.0.write() = Some(Arc::new(certified));
        Ok(())
    }

    /// Returns whether there is one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.read().is_some()
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

/// Returns the configuration of a port that presents `shown` and lets in `accepted`. Sessions are not resumed without
/// a new check of the client.
pub fn server_config(shown: ServerCertificate, accepted: TrustedClients) -> Result<ServerConfig, MtlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS")(&error))?
        .with_client_cert_verifier(Arc::new(accepted))
        .with_cert_resolver(Arc::new(shown));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use super::*;

    fn authority() -> (String, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.self_signed(&key).unwrap().pem(), Issuer::new(params, key))
    }

    fn certificate(issuer: &Issuer<'static, KeyPair>, names: &[&str]) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(&key, issuer).unwrap().der().clone()
    }

    #[test]
    fn client_certificate_needs_both_authority_and_name() {
        let ((pem, issuer), (_, other)) = (authority(), authority());
        let accepted = TrustedClients::default();
        let lets_in =
            |certificate: &CertificateDer<'_>| accepted.verify_client_cert(certificate, &[], UnixTime::now()).is_ok();
        let right = certificate(&issuer, &["front-proxy-client"]);
        assert!(!lets_in(&right), "no client is trusted before the names are known");
        accepted.replace(&pem, BTreeSet::from(["front-proxy-client".to_owned()])).unwrap();
        assert!(lets_in(&right));
        assert!(!lets_in(&certificate(&issuer, &["somebody"])), "another name");
        assert!(!lets_in(&certificate(&issuer, &[])), "no name");
        assert!(!lets_in(&certificate(&other, &["front-proxy-client"])), "another authority");
        accepted.trust_nobody();
        assert!(!lets_in(&right));
        assert!(accepted.replace("no certificate", BTreeSet::new()).is_err());
    }
}
