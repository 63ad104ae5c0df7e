//! The receiver's certificate, read again when its files change: certificates are renewed while the operator runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(2);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file.
    #[error("cannot read {path} as PEM: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key.
    #[error("cannot serve TLS with {path}: {source}")]
    Unusable {
        /// The certificate.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Certificate(Arc<Files>);

#[derive(Debug)]
struct Files {
    chain: PathBuf,
    key: PathBuf,
    current: Mutex<(Arc<CertifiedKey>, Vec<u8>)>,
}

impl Certificate {
    /// Reads both files.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        let current = Mutex::new((Arc::new(read(chain, key)?), contents(chain, key)));
        Ok(Self(Arc::new(Files { chain: chain.to_owned(), key: key.to_owned(), current })))
    }

    /// What a server needs; from now on the files are looked at until it is gone.
    pub(super) fn config(self) -> Result<ServerConfig, TlsError> {
        let failed = |source| TlsError::Unusable { path: self.0.chain.clone(), source };
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth();
        let watched = Arc::downgrade(&self.0);
        let config = config.with_cert_resolver(self.0);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                let Some(files) = watched.upgrade() else { return };
                files.look();
            }
        });
        Ok(config)
    }
}

impl Files {
    /// Takes what the files have now, if they are other than before and fit each other.
    fn look(&self) {
        let found = contents(&self.chain, &self.key);
        if self.current.lock().unwrap_or_else(PoisonError::into_inner).1 == found {
            return;
        }
        match read(&self.chain, &self.key) {
            Ok(key) => {
                tracing::info!(file = %self.chain.display(), "the receiver has a new certificate");
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = (Arc::new(key), found);
            }
            // The two files are written one after the other: what does not fit now may do so in a moment.
            Err(error) => tracing::warn!(%error, "the new certificate cannot be used; the old one is kept"),
        }
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner).0))
    }
}

/// Both files as they are: a Secret's change neither their names nor, to the second, their times.
fn contents(chain: &Path, key: &Path) -> Vec<u8> {
    [chain, key].into_iter().flat_map(|path| std::fs::read(path).unwrap_or_default()).collect()
}

fn read(chain: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    let certificates =
        CertificateDer::pem_file_iter(chain).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(file(chain))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(file(key))?;
    let unusable = |source| TlsError::Unusable { path: chain.to_owned(), source };
    let certified = CertifiedKey::from_der(certificates, secret, &ring::default_provider()).map_err(unusable)?;
    certified.keys_match().map_err(unusable)?;
    Ok(certified)
}
