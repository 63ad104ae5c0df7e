//! The API server as this program reaches it: a kubectl for each request would take more of the machine than what is tested.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::{Error, Result};

/// For one request: machines are noisy.
const LIMIT: Duration = Duration::from_secs(30);

/// Who somebody is: certificate and key, and the authority that has signed it. All PEM.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The authority's certificate.
    pub authority: String,
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// One connection to the API server for each request: it may have been started anew since the last one.
#[derive(Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
}

impl Upstream {
    pub(crate) fn new(port: u16, credentials: &Credentials) -> Result<Self> {
        let tls = tls(credentials).map_err(|problem| Error::Machine {
            problem: format!("a client of the API server: {problem}"),
            remedy: "look at the certificates in its run folder".to_owned(),
        })?;
        Ok(Self { address: (Ipv4Addr::LOCALHOST, port).into(), tls })
    }

    /// Sends a request as it is.
    pub(crate) async fn send<B>(&self, request: Request<B>) -> io::Result<Response<Incoming>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::from(self.address.ip());
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(io::Error::other)
    }

    /// One request with this header, and its answer; `Err` says what came instead of success. What is no JSON, as from `/readyz`, is a
    /// [`Value::String`].
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        (name, value): (&str, &str),
        body: &str,
    ) -> std::result::Result<Value, String> {
        let request = Request::builder().method(method).uri(path).header("host", "localhost").header(name, value);
        let request = request.body(Full::<Bytes>::from(body.to_owned())).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        let answer = async {
            let (head, body) = self.send(request).await.map_err(|error| error.to_string())?.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            let text = || String::from_utf8_lossy(&body).into_owned();
            if !head.status.is_success() {
                return Err(format!("{}: {}", head.status, text()));
            }
            Ok(serde_json::from_slice(&body).unwrap_or_else(|_| text().into()))
        };
        let answered = runtime.block_on(async { tokio::time::timeout(LIMIT, answer).await });
        answered.unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}")))
    }
}

fn tls(credentials: &Credentials) -> std::result::Result<Arc<rustls::ClientConfig>, Box<dyn std::error::Error>> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(credentials.authority.as_bytes()) {
        roots.add(certificate?)?;
    }
    let chain: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(credentials.certificate.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes())?;
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain?, key)?;
    Ok(Arc::new(config))
}
