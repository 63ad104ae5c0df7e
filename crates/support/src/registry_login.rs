//! Logins of registries, as Secrets of the type `kubernetes.io/dockerconfigjson` have them.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;

/// Key of such a Secret.
const KEY: &str = ".dockerconfigjson";

/// Name and password for a registry. Neither has a line feed.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    name: String,
    password: String,
}

/// Reason why a Secret cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// It has no key [`KEY`].
    #[error("has no key {KEY}: it needs the type kubernetes.io/dockerconfigjson")]
    NoKey,
    /// The key has something else.
    #[error("has something else than the configuration of docker under {KEY}")]
    NoConfig,
    /// The registry is there without a name and a password that can be sent.
    #[error("has no name and password for the registry, in `username` and `password`, or in `auth`")]
    NoPassword,
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
}

impl Login {
    /// Returns the login for a repository such as `registry.example.org/team/fit`, if the Secret has one. Entries may be registries, as in `https://index.docker.io/v1/`, or the first folders of repositories; the
    /// longest one counts.
    ///
    /// # Errors
    /// The content of the Secret's key is missing or is something else.
    pub fn in_secret(secret: &Secret, repository: &str) -> Result<Option<Self>, LoginError> {
        let content = secret.data.as_ref().and_then(|data| data.get(KEY));
        Self::find(content.map(|content| content.0.as_slice()), repository)
    }

    fn find(content: Option<&[u8]>, repository: &str) -> Result<Option<Self>, LoginError> {
        let config: DockerConfig =
            serde_json::from_slice(content.ok_or(LoginError::NoKey)?).map_err(|_| LoginError::NoConfig)?;
        let fits =
            |place: &str| repository.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let places = config.auths.iter().map(|(place, entry)| (normalized(place), entry));
        let found = places.filter(|(place, _)| fits(place)).max_by_key(|(place, _)| place.len());
        found.map(|(_, entry)| entry.login().ok_or(LoginError::NoPassword)).transpose()
    }

    /// Returns two lines, the name and the password.
    #[must_use]
    pub fn lines(&self) -> String {
        format!("{}\n{}\n", self.name, self.password)
    }

    /// Returns the value of a header `Authorization`.
    #[must_use]
    pub fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.name, self.password)))
    }
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login")
    }
}

impl Entry {
    fn login(&self) -> Option<Login> {
        let (name, password) = if self.username.is_empty() {
            let text = String::from_utf8(STANDARD.decode(&self.auth).ok()?).ok()?;
            text.split_once(':').map(|(name, password)| (name.to_owned(), password.to_owned()))?
        } else {
            (self.username.clone(), self.password.clone())
        };
        let is_sendable = |text: &str| !text.is_empty() && !text.contains(['\n', '\r', '\0']);
        (is_sendable(&name) && is_sendable(&password)).then_some(Login { name, password })
    }
}

/// Returns an entry's registry and folders as image names begin.
fn normalized(place: &str) -> String {
    let host = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://")).unwrap_or(place);
    let host = host.trim_end_matches('/');
    let host = host.strip_suffix("/v1").or_else(|| host.strip_suffix("/v2")).unwrap_or(host);
    match host.strip_prefix("index.docker.io").or_else(|| host.strip_prefix("registry-1.docker.io")) {
        Some(rest) => format!("docker.io{rest}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn find(auths: &serde_json::Value, repository: &str) -> Result<Option<String>, LoginError> {
        let content = json!({ "auths": auths }).to_string();
        Login::find(Some(content.as_bytes()), repository).map(|login| login.map(|login| login.lines()))
    }

    #[test]
    fn longest_entry_of_the_repository_counts() {
        let login = |name: &str| json!({ "username": name, "password": "p:1" });
        let auths = json!({
            "https://index.docker.io/v1/": { "auth": STANDARD.encode("hub:p:1") },
            "r.example.org:5000": login("all"),
            "r.example.org:5000/team": login("team"),
        });
        for (repository, name) in [
            ("docker.io/library/python", Some("hub")),
            ("r.example.org:5000/team/fit", Some("team")),
            ("r.example.org:5000/teams/fit", Some("all")),
            ("r.example.org/team/fit", None),
            ("r.example.org:5000.evil.example/fit", None),
        ] {
            assert_eq!(find(&auths, repository), Ok(name.map(|name| format!("{name}\np:1\n"))), "{repository}");
        }
    }

    #[test]
    fn secret_without_a_login_says_what_it_lacks() {
        assert_eq!(Login::find(None, "h/x"), Err(LoginError::NoKey));
        assert_eq!(Login::find(Some(b"{}"), "h/x"), Err(LoginError::NoConfig));
        for entry in [
            json!({}),
            json!({ "username": "u" }),
            json!({ "username": "u", "password": "a\nb" }),
            json!({ "auth": "x" }),
            json!({ "auth": STANDARD.encode("u") }),
        ] {
            assert_eq!(find(&json!({ "h": entry }), "h/x"), Err(LoginError::NoPassword), "{entry}");
        }
    }

    #[test]
    fn password_is_not_in_debug_output() {
        let login = Login { name: "u".to_owned(), password: "p".to_owned() };
        assert_eq!(format!("{login:?}"), "Login");
        assert_eq!(login.basic(), "Basic dTpw");
    }
}
