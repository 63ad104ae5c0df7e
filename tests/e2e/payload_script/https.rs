//! Reports over TLS: the node decides whom its jobs trust.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::SHELLS;
use super::reports::{BOUND, Ear};

/// A certificate authority, and the file that says so to whoever should trust it.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// One who listens on 127.0.0.1 with a certificate for `name`.
    fn ear(&self, name: &str) -> Ear {
        let config = self.server(name);
        Ear::over("https", &[204], move |stream| {
            StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream)
        })
    }

    /// TLS of a server with a certificate for `name`.
    pub fn server(&self, name: &str) -> Arc<ServerConfig> {
        let (certificate, key) = self.issue(name);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }

    /// A certificate for `name`, and its key, as the files of a server have them.
    pub fn pem(&self, name: &str) -> [String; 2] {
        let (certificate, key) = self.issue(name);
        [certificate.pem(), key.serialize_pem()]
    }

    fn issue(&self, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // Otherwise it has its issuer's name, and is taken for its own.
        params.distinguished_name.push(DnType::CommonName, "receiver");
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}

#[test]
fn job_reports_to_a_trusted_server() {
    let authority = Authority::new();
    for (variable, shell) in ["CURL_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"].into_iter().zip(SHELLS) {
        let ear = authority.ear("127.0.0.1");
        let mut scratch = ear.job("bash", "sleep 3; echo x; exit 5");
        scratch.environment.push((variable, authority.file()));
        assert_eq!(scratch.run(shell), (5, "x\n".to_owned(), String::new()), "{shell}");
        let kinds: Vec<String> = ear.heard().into_iter().map(|request| request.kind).collect();
        assert_eq!(kinds, ["htcjob.cloudevent.started", "htcjob.cloudevent"], "{shell}: {variable}");
        assert_eq!(ear.ends(), ["5"], "{shell}: {variable}");
    }
}

#[test]
fn job_reports_nothing_to_an_untrusted_server_and_ends_normally() {
    let (authority, other) = (Authority::new(), Authority::new());
    for shell in SHELLS {
        for (what, ear, trusted) in [
            ("an unknown authority", authority.ear("127.0.0.1"), None),
            ("another authority", authority.ear("127.0.0.1"), Some(other.file())),
            ("another name", authority.ear("127.0.0.2"), Some(authority.file())),
        ] {
            let mut scratch = ear.job("bash", "echo x; exit 5");
            scratch.environment.extend(trusted.map(|file| ("CURL_CA_BUNDLE", file)));
            let began = Instant::now();
            assert_eq!(scratch.run(shell), (5, "x\n".to_owned(), String::new()), "{shell}: {what}");
            assert!(began.elapsed() < BOUND, "{shell}: {what}: {:?}", began.elapsed());
            assert!(ear.heard().is_empty(), "{shell}: {what}: {:?}", ear.heard());
        }
    }
}
