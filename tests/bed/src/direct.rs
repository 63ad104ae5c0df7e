//! Calls of a port with TLS by whoever has some certificate, or none: nothing stands between the caller and the port.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::json;
use testbed::Credentials;
use tokio::runtime::Runtime;

use crate::PATIENCE;

/// A caller of one port of this machine.
pub struct Direct {
    runtime: Runtime,
    client: Client,
}

impl Direct {
    /// Shows this certificate, and takes any from the port.
    pub fn new(port: u16, shown: Option<&Credentials>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut config = Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
        config.accept_invalid_certs = true;
        config.default_retry = false;
        if let Some(Credentials { certificate, key, .. }) = shown {
            let auth = json!({
                "client-certificate-data": BASE64.encode(certificate), "client-key-data": BASE64.encode(key),
            });
            config.auth_info = serde_json::from_value(auth).unwrap();
        }
        let client = runtime.block_on(async { Client::try_from(config) }).unwrap();
        Self { runtime, client }
    }

    /// Status and body of the answer; an error if there is none.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<(u16, String), String> {
        self.within(PATIENCE, method, path, async {
            let answer = self.send(method, path, headers).await?;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect_bytes().await.map_err(|error| format!("{error:?}"))?;
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
        })
    }

    /// Status of the answer, which may have no end; an error if none begins within `limit`.
    pub fn status(&self, limit: Duration, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<u16, String> {
        self.within(limit, method, path, async { Ok(self.send(method, path, headers).await?.status().as_u16()) })
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<http::Response<Body>, String> {
        let request = http::Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        self.client.send(request.body(Body::empty()).unwrap()).await.map_err(|error| format!("{error:?}"))
    }

    /// hyper's client waits for ever, now and then, for a connection that was shut at once.
    fn within<T>(
        &self,
        limit: Duration,
        method: &str,
        path: &str,
        answer: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let limited = self.runtime.block_on(async { tokio::time::timeout(limit, answer).await });
        limited.unwrap_or_else(|_| Err(format!("{method} {path}: no answer within {} s", limit.as_secs())))
    }

    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<(u16, String), String> {
        self.ask("GET", path, headers)
    }
}
