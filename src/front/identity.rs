//! Who the front is: the certificate that it shows to the API server and to the leader, from the Secret that the leader keeps.

use std::sync::PoisonError;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::Front;
use crate::kubernetes::limited;

/// How long the leader may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the leader may be silent in the middle of an answer. A watch without news brings a newline now and then.
const SILENCE: Duration = Duration::from_secs(90);

/// How long a log may be silent. Who follows it asks again from where it ended.
const LOG_SILENCE: Duration = Duration::from_secs(15 * 60);

/// Reads it again. What cannot be read leaves it as it was.
pub(super) async fn follow(front: &Front) {
    let name = front.places.front();
    let api: Api<Secret> = Api::namespaced(front.client.clone(), &front.places.namespace);
    let full = format!("{}/{name}", front.places.namespace);
    let secret = match limited("read the Secret", &full, api.get(&name)).await {
        Ok(secret) => secret,
        Err(error) => {
            tracing::warn!(%error, "the front's certificate is not known anew; does the operator run with --jobs-api-listen?");
            return;
        }
    };
    let data = secret.data.unwrap_or_default();
    let entry = |key: &str| data.get(key).and_then(|text| String::from_utf8(text.0.clone()).ok()).unwrap_or_default();
    let (authority, chain, key) = (entry("ca.crt"), entry("tls.crt"), entry("tls.key"));
    let version = secret.metadata.resource_version.unwrap_or_default();
    {
        let mut seen = front.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == version {
            return;
        }
        seen.clone_from(&version);
    }
    let make = |silence| client(front, &authority, &chain, &key, silence);
    match make(SILENCE).and_then(|usual| Ok([usual, make(LOG_SILENCE)?])) {
        Ok(clients) => {
            if let Err(error) = front.shown.replace(&chain, &key) {
                tracing::warn!(%error, "the front's certificate cannot be used");
                return;
            }
            tracing::info!(secret = full, version, "the front has a new certificate");
            *front.leader.write().unwrap_or_else(PoisonError::into_inner) = Some(clients);
        }
        Err(why) => tracing::warn!("the Secret {full} cannot be used: {why}"),
    }
}

/// A client of the leader.
fn client(front: &Front, authority: &str, chain: &str, key: &str, silence: Duration) -> Result<Client, String> {
    let roots = CertificateDer::pem_slice_iter(authority.as_bytes())
        .map(|certificate| certificate.map(|certificate| certificate.to_vec()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    let mut config = Config::new(front.leader_url.clone());
    config.root_cert = Some(roots);
    config.tls_server_name = Some(front.places.leader_host());
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(silence);
    config.auth_info = serde_json::from_value(serde_json::json!({
        "client-certificate-data": BASE64.encode(chain),
        "client-key-data": BASE64.encode(key),
    }))
    .map_err(|error| error.to_string())?;
    Client::try_from(config).map_err(|error| error.to_string())
}
