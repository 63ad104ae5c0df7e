//! Asks registries of images which digest a tag means now, as `docker pull` does before it downloads anything.
//!
//! The protocol is that of the OCI distribution specification, with the tokens that registries give for public images, and
//! for private ones with a login.

use std::str::FromStr;
use std::time::Duration;

use htc_api::client::chain;
use http::header::{ACCEPT, AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, StatusCode, Uri};
use kube::client::Body;
use kube::{Client, Config};

use crate::registry_login::Login;

/// Time limit of one question, with its token.
const LIMIT: Duration = Duration::from_secs(5);
/// Kinds of manifests. An index has one image for each architecture, and a digest as well.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";
/// Registry of docker's names, and the host that serves it.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// A registry that may be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryAddress {
    /// Host and port, as image names begin.
    name: String,
    /// Whether it speaks TLS.
    tls: bool,
}

/// The text is no registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "write the registry of image names, such as `registry.example.org` or `docker.io`; with `http://` before it if it has no TLS"
)]
pub struct InvalidRegistry;

/// Reason why a digest is not known.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The image does not exist, or is private.
    #[error("the registry answers {0} without credentials")]
    Refused(StatusCode),
    /// The image does not exist, or the login is wrong or for another one.
    #[error("the registry answers {0} with the login of spec.imagePullSecrets")]
    LoginRefused(StatusCode),
    #[error("the registry refuses further requests for now (429)")]
    Busy,
    #[error("the registry does not say the image's digest")]
    NoDigest,
    /// A challenge that no anonymous token answers.
    #[error("the registry asks for credentials of another kind than anonymous tokens")]
    Challenge,
    #[error("the registry does not answer within {} s", LIMIT.as_secs())]
    Silent,
    /// The message has all causes.
    #[error("{0}")]
    Unreachable(String),
}

impl From<kube::Error> for RegistryError {
    fn from(error: kube::Error) -> Self {
        Self::Unreachable(chain("the registry cannot be asked", &error))
    }
}

impl RegistryError {
    /// Returns whether the registry would answer other questions no better.
    #[must_use]
    pub const fn is_of_registry(&self) -> bool {
        matches!(self, Self::Busy | Self::Silent | Self::Unreachable(_))
    }
}

impl FromStr for RegistryAddress {
    type Err = InvalidRegistry;

    fn from_str(text: &str) -> Result<Self, InvalidRegistry> {
        let (name, tls) = text.strip_prefix("http://").map_or((text, true), |name| (name, false));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
        if name.is_empty() || !name.chars().all(plain) || name.parse::<http::uri::Authority>().is_err() {
            return Err(InvalidRegistry);
        }
        Ok(Self { name: name.to_owned(), tls })
    }
}

impl RegistryAddress {
    /// Returns the registry as image names begin.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the digest that a tag of this registry means now. It downloads nothing.
    ///
    /// # Errors
    /// The registry does not answer in time, or not with a digest.
    pub async fn digest(&self, repository: &str, tag: &str, login: Option<&Login>) -> Result<String, RegistryError> {
        tokio::time::timeout(LIMIT, self.ask(repository, tag, login)).await.map_err(|_| RegistryError::Silent)?
    }

    async fn ask(&self, repository: &str, tag: &str, login: Option<&Login>) -> Result<String, RegistryError> {
        let host = if self.name == DOCKER.0 { DOCKER.1 } else { &self.name };
        let client = client(if self.tls { "https" } else { "http" }, host)?;
        let path = format!("/v2/{repository}/manifests/{tag}");
        let (mut status, mut headers) = head(&client, &path, None).await?;
        if status == StatusCode::UNAUTHORIZED {
            let challenge = headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let authorization = match login {
                Some(login) if challenge.starts_with("Basic ") => login.basic(),
                _ => format!("Bearer {}", self.token(challenge, login).await?),
            };
            (status, headers) = head(&client, &path, Some(&authorization)).await?;
        }
        match status {
            StatusCode::OK => {}
            StatusCode::TOO_MANY_REQUESTS => return Err(RegistryError::Busy),
            status if login.is_some() => return Err(RegistryError::LoginRefused(status)),
            status => return Err(RegistryError::Refused(status)),
        }
        let digest = headers.get("docker-content-digest").and_then(|value| value.to_str().ok());
        digest.map(str::to_owned).ok_or(RegistryError::NoDigest)
    }

    /// Fetches the token that the registry asks for in its challenge; anonymously, if there is no login.
    async fn token(&self, challenge: &str, login: Option<&Login>) -> Result<String, RegistryError> {
        let realm: Uri =
            parameter(challenge, "realm").and_then(|realm| realm.parse().ok()).ok_or(RegistryError::Challenge)?;
        let scheme =
            realm.scheme_str().filter(|scheme| *scheme == "https" || !self.tls).ok_or(RegistryError::Challenge)?;
        let host = realm.authority().ok_or(RegistryError::Challenge)?;
        let plain = |text: &&str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-._~:/,".contains(c));
        let query = ["service", "scope"]
            .into_iter()
            .filter_map(|name| Some(format!("{name}={}", parameter(challenge, name).filter(plain)?)));
        let query = query.collect::<Vec<_>>().join("&");
        let mut request = http::Request::get(format!("{}?{query}", realm.path()));
        if let Some(login) = login {
            request = request.header(AUTHORIZATION, login.basic());
        }
        let request = request.body(Vec::new());
        let request = request.map_err(|_| RegistryError::Challenge)?;
        let answer: serde_json::Value = client(scheme, host.as_str())?.request(request).await?;
        let token = ["token", "access_token"].into_iter().find_map(|field| answer.get(field)?.as_str());
        token.map(str::to_owned).ok_or(RegistryError::Challenge)
    }
}

/// Returns the value of a parameter of a `Bearer` challenge.
fn parameter<'a>(challenge: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = challenge.strip_prefix("Bearer ")?.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

fn client(scheme: &str, host: &str) -> Result<Client, RegistryError> {
    let address = Uri::builder().scheme(scheme).authority(host).path_and_query("/").build();
    let mut config = Config::new(address.map_err(|_| RegistryError::Challenge)?);
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Sends a HEAD request. Docker Hub does not count it as a pull.
async fn head(
    client: &Client,
    path: &str,
    authorization: Option<&str>,
) -> Result<(StatusCode, HeaderMap), RegistryError> {
    let mut request = http::Request::builder().method(Method::HEAD).uri(path).header(ACCEPT, MANIFESTS);
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    let request = request.body(Body::empty()).map_err(|_| RegistryError::Challenge)?;
    let answer = client.send(request).await?;
    Ok((answer.status(), answer.headers().clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_is_a_host_of_image_names() {
        let registry = |name: &str, tls| Ok(RegistryAddress { name: name.to_owned(), tls });
        assert_eq!("docker.io".parse(), registry("docker.io", true));
        assert_eq!("http://127.0.0.1:5000".parse(), registry("127.0.0.1:5000", false));
        for bad in ["", "https://a.b", "a.b/c", "A.b", "a b", "http://"] {
            assert_eq!(bad.parse::<RegistryAddress>(), Err(InvalidRegistry), "{bad}");
        }
    }

    #[test]
    fn parameters_of_a_challenge_are_in_quotation_marks() {
        let challenge = r#"Bearer realm="https://auth.example.org/token",service="registry.example.org",scope="repository:a/b:pull""#;
        assert_eq!(parameter(challenge, "realm"), Some("https://auth.example.org/token"));
        assert_eq!(parameter(challenge, "scope"), Some("repository:a/b:pull"));
        assert_eq!(parameter("Basic realm=\"x\"", "realm"), None);
        assert_eq!(parameter("Bearer realm=x", "realm"), None);
    }
}
