//! The operator's ports: limits on connections and time, TLS, certificates.

pub mod certificates;
pub mod connection_limiter;
mod idle;
pub mod mtls;
pub mod port;
pub mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use mtls::MtlsError;
use tls::TlsError;

/// Maximum time for a body to arrive.
pub const BODY_TIME: Duration = Duration::from_secs(10);
/// Maximum time for the headers to arrive.
pub const HEADER_TIME: Duration = Duration::from_secs(5);
/// Maximum time that a connection may be idle between two requests.
pub const IDLE: Duration = Duration::from_secs(15);
/// Maximum time for the ledger to answer.
pub const LEDGER_TIME: Duration = Duration::from_secs(10);
/// Reason why a port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Address of the port.
        address: SocketAddr,
        source: std::io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The certificates of mutual TLS cannot be used.
    #[error(transparent)]
    Mtls(#[from] MtlsError),
}
