//! Front proxy of the API server: the only client that may name the user, identified by an authority and by name.

use std::collections::{BTreeMap, BTreeSet};

use actix_web::HttpRequest;
use actix_web::http::header::{HeaderMap, HeaderValue};
use htc_support::kubernetes::with_timeout;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use percent_encoding::percent_decode_str;

use super::Front;
use crate::http::port::PeerCertificates;

/// ConfigMap in which each API server publishes how it can be identified.
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// Headers that name the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    authority: String,
    names: BTreeSet<String>,
    users: Vec<String>,
    groups: Vec<String>,
    extra: Vec<String>,
    uids: Vec<String>,
}

/// User who makes a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// Reason why the ConfigMap does not identify the front proxy. The text continues after the name of the ConfigMap.
#[derive(Debug, thiserror::Error)]
enum HeadersError {
    #[error("its entry {key} is not a list: {source}")]
    NotAList { key: &'static str, source: serde_json::Error },
    #[error("it has no requestheader-client-ca-file: start kube-apiserver with --requestheader-client-ca-file")]
    NoAuthority,
    #[error("it names no front proxy: start kube-apiserver with --requestheader-allowed-names")]
    NoNames,
    #[error("it names no header with the user: start kube-apiserver with --requestheader-username-headers")]
    NoUserHeader,
}

impl Headers {
    fn parse(data: &BTreeMap<String, String>) -> Result<Self, HeadersError> {
        let list = |key: &'static str| -> Result<Vec<String>, HeadersError> {
            let text = data.get(key).map_or("[]", String::as_str);
            serde_json::from_str(text).map_err(|source| HeadersError::NotAList { key, source })
        };
        let authority = data.get("requestheader-client-ca-file").filter(|pem| !pem.trim().is_empty());
        let authority = authority.ok_or(HeadersError::NoAuthority)?;
        let names: BTreeSet<String> = list("requestheader-allowed-names")?.into_iter().collect();
        // Without a name, anybody with any certificate of that authority could act as any user.
        if names.is_empty() {
            return Err(HeadersError::NoNames);
        }
        let lower = |names: Vec<String>| names.into_iter().map(|name| name.to_ascii_lowercase()).collect::<Vec<_>>();
        let users = lower(list("requestheader-username-headers")?);
        if users.is_empty() {
            return Err(HeadersError::NoUserHeader);
        }
        Ok(Self {
            authority: authority.clone(),
            names,
            users,
            groups: lower(list("requestheader-group-headers")?),
            extra: lower(list("requestheader-extra-headers-prefix")?),
            uids: lower(list("requestheader-uid-headers")?),
        })
    }

    /// Returns the user, by the headers of a request from the front proxy.
    pub(super) fn user(&self, headers: &HeaderMap) -> Option<User> {
        let all = |names: &[String]| -> Option<Vec<String>> {
            let values = names.iter().flat_map(|name| headers.get_all(name.as_str()));
            values.map(|value| text(value).map(str::to_owned)).collect()
        };
        let name = all(&self.users)?.into_iter().find(|name| !name.is_empty())?;
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers {
            let key = self.extra.iter().find_map(|prefix| header.as_str().strip_prefix(prefix.as_str()));
            if let Some(key) = key {
                let key = percent_decode_str(key).decode_utf8().ok()?.into_owned();
                extra.entry(key).or_default().push(text(value)?.to_owned());
            }
        }
        Some(User { name, uid: all(&self.uids)?.into_iter().next(), groups: all(&self.groups)?, extra })
    }
}

/// Returns a header as text. The API server writes names as they are, in UTF-8; `to_str` accepts ASCII alone.
fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

/// Returns whether the client of a request would be let in now, too: connections last, and the API server may have
/// come to trust another front proxy meanwhile.
pub(super) fn is_still_trusted(front: &Front, request: &HttpRequest) -> bool {
    request.conn_data::<PeerCertificates>().is_some_and(|peer| front.trusted_clients.trusts(&peer.0))
}

/// Reads the ConfigMap again. If it cannot be read, nothing changes.
pub(super) async fn refresh(front: &Front) {
    let api: Api<ConfigMap> = Api::namespaced(front.client.clone(), "kube-system");
    let found = with_timeout("read the ConfigMap", &format!("kube-system/{CONFIG_MAP}"), api.get(CONFIG_MAP)).await;
    let headers = match found.map(|map| Headers::parse(&map.data.unwrap_or_default())) {
        Ok(Ok(headers)) => headers,
        Ok(Err(why)) => {
            tracing::warn!(config_map = CONFIG_MAP, %why, "front-proxy CA unusable, all requests refused");
            front.trusted_clients.trust_nobody();
            *front.headers.write() = None;
            return;
        }
        Err(error) => {
            tracing::warn!(%error, "front-proxy CA not reloaded");
            return;
        }
    };
    if front.headers().as_ref() == Some(&headers) {
        return;
    }
    match front.trusted_clients.replace(&headers.authority, headers.names.clone()) {
        Ok(()) => {
            tracing::info!(names = ?headers.names, "front-proxy CA loaded");
            *front.headers.write() = Some(headers);
        }
        Err(error) => tracing::warn!(%error, "front-proxy CA unusable"),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderName;

    use super::*;

    fn data(names: &str) -> BTreeMap<String, String> {
        [
            ("requestheader-client-ca-file", "PEM"),
            ("requestheader-allowed-names", names),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
    }

    #[test]
    fn user_comes_from_the_front_proxy_headers() {
        let headers = Headers::parse(&data(r#"["front-proxy-client"]"#)).unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in [
            ("x-remote-user", "ann"),
            ("x-remote-group", "physics"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-example.org%2fscope", "a"),
            ("x-remote-uid", "7"),
        ] {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let user = headers.user(&map).unwrap();
        assert_eq!((user.name.as_str(), user.groups.len()), ("ann", 2));
        assert_eq!(user.extra["example.org/scope"], ["a"]);
        assert_eq!(user.uid, None, "an API server that does not name this header does not remove it either");
        assert_eq!(headers.user(&HeaderMap::new()), None);
    }

    #[test]
    fn user_names_are_utf_8() {
        let headers = Headers::parse(&data(r#"["front-proxy-client"]"#)).unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in
            [("x-remote-user", "Zoë"), ("x-remote-group", "Physikalität"), ("x-remote-extra-scope", "größer")]
        {
            map.append(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let user = headers.user(&map).unwrap();
        assert_eq!((user.name.as_str(), user.groups.as_slice()), ("Zoë", &["Physikalität".to_owned()][..]));
        assert_eq!(user.extra["scope"], ["größer"]);
        map.insert(HeaderName::from_static("x-remote-user"), HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(headers.user(&map), None, "an undecodable name is no user");
    }

    #[test]
    fn configuration_needs_client_names_and_an_authority() {
        assert!(Headers::parse(&data("[]")).is_err());
        let mut none = data(r#"["front-proxy-client"]"#);
        none.remove("requestheader-client-ca-file");
        assert!(Headers::parse(&none).is_err());
        assert!(Headers::parse(&data("front-proxy-client")).is_err());
    }
}
