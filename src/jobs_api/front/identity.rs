//! Identity of the front: its certificate for the API server and for the leader, from the Secret that the leader
//! renews.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use htc_support::kubernetes::with_timeout;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};

use super::Front;

/// Maximum time for the leader to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum pause in the leader's answer. A watch without changes sends a newline now and then.
const SILENCE: Duration = Duration::from_secs(90);

/// Maximum pause in a log. A client that follows it asks again from where it ended.
const LOG_SILENCE: Duration = Duration::from_secs(15 * 60);

/// Reads the Secret again. If it cannot be read, nothing changes.
pub(super) async fn refresh(front: &Front) {
    let name = front.places.front();
    let api: Api<Secret> = Api::namespaced(front.client.clone(), &front.places.namespace);
    let full = format!("{}/{name}", front.places.namespace);
    let secret = match with_timeout("read the Secret", &full, api.get(&name)).await {
        Ok(secret) => secret,
        Err(error) => {
            tracing::warn!(%error, "serving certificate not reloaded; check that the operator runs with --jobs-api-listen");
            return;
        }
    };
    let data = secret.data.unwrap_or_default();
    let entry = |key: &str| data.get(key).and_then(|text| String::from_utf8(text.0.clone()).ok()).unwrap_or_default();
    let (authority, chain, key) = (entry("ca.crt"), entry("tls.crt"), entry("tls.key"));
    let version = secret.metadata.resource_version.unwrap_or_default();
    {
        let mut seen = front.seen.lock();
        if *seen == version {
            return;
        }
        seen.clone_from(&version);
    }
    let make = |silence| client(front, &authority, &chain, &key, silence);
    match make(SILENCE).and_then(|usual| Ok([usual, make(LOG_SILENCE)?])) {
        Ok(clients) => {
            if let Err(error) = front.certificate.replace(&chain, &key) {
                tracing::warn!(%error, "serving certificate unusable");
                return;
            }
            tracing::info!(secret = full, version, "serving certificate loaded");
            *front.leader.write() = Some(clients);
        }
        Err(why) => tracing::warn!(secret = full, %why, "Secret of the serving certificate unusable"),
    }
}

/// Reason why the entries of the Secret make no client.
#[derive(Debug, thiserror::Error)]
enum IdentityError {
    /// `ca.crt` is not PEM.
    #[error(transparent)]
    Authority(#[from] pem::Error),
    #[error(transparent)]
    Credentials(#[from] serde_json::Error),
    /// The certificate or its key is not valid.
    #[error(transparent)]
    Client(#[from] kube::Error),
}

/// Returns a client of the leader.
fn client(front: &Front, authority: &str, chain: &str, key: &str, silence: Duration) -> Result<Client, IdentityError> {
    let roots = CertificateDer::pem_slice_iter(authority.as_bytes())
        .map(|certificate| certificate.map(|certificate| certificate.to_vec()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut config = Config::new(front.leader_url.clone());
    config.root_cert = Some(roots);
    config.tls_server_name = Some(front.places.leader_host());
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(silence);
    config.auth_info = serde_json::from_value(serde_json::json!({
        "client-certificate-data": BASE64.encode(chain),
        "client-key-data": BASE64.encode(key),
    }))?;
    Ok(Client::try_from(config)?)
}
