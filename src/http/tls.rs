//! The receiver's certificate. It is read again when its files change, as certificates are renewed while the operator
//! runs.

use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Interval between two checks of the files.
const EVERY: Duration = Duration::from_secs(2);

/// Reason why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path} as PEM: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key cannot be used.
    #[error("cannot serve TLS with {path}: {source}")]
    Unusable {
        /// Path of the certificate.
        path: PathBuf,
        source: rustls::Error,
    },
}

/// A certificate and its key, in files.
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

    /// Returns the configuration of a server. Checks the files from now on, until it is dropped.
    pub fn config(self) -> Result<ServerConfig, TlsError> {
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
    /// Uses the new contents of the files, if they have changed and match each other.
    fn look(&self) {
        let found = contents(&self.chain, &self.key);
        if self.current.lock().1 == found {
            return;
        }
        match read(&self.chain, &self.key) {
            Ok(key) => {
                tracing::info!(file = %self.chain.display(), "callback certificate reloaded");
                *self.current.lock() = (Arc::new(key), found);
            }
            // The two files are written one after the other: they may match in a moment.
            Err(error) => tracing::warn!(%error, "callback certificate not reloaded, old one kept"),
        }
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.lock().0))
    }
}

/// Returns the contents of both files. When a Secret changes, neither their names nor, to the second, their times
/// need to change.
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
