//! Whom the API server trusts to say who a user is: its own front proxy, by an authority and by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use actix_web::HttpRequest;
use actix_web::http::header::{HeaderMap, HeaderValue};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use percent_encoding::percent_decode_str;

use super::Front;
use crate::kubernetes::limited;
use crate::receiver::port::PeerCertificates;

/// Where each API server writes down how it can be recognized.
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// The headers that say who a user is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    authority: String,
    names: BTreeSet<String>,
    users: Vec<String>,
    groups: Vec<String>,
    extra: Vec<String>,
    uids: Vec<String>,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl Headers {
    fn parse(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let list = |key: &str| -> Result<Vec<String>, String> {
            let text = data.get(key).map_or("[]", String::as_str);
            serde_json::from_str(text).map_err(|error| format!("its entry {key} is not a list: {error}"))
        };
        let authority = data.get("requestheader-client-ca-file").filter(|pem| !pem.trim().is_empty()).ok_or(
            "it has no requestheader-client-ca-file: start kube-apiserver with --requestheader-client-ca-file",
        )?;
        let names: BTreeSet<String> = list("requestheader-allowed-names")?.into_iter().collect();
        // Without a name, whoever has any certificate of that authority could speak for everybody.
        if names.is_empty() {
            return Err("it names no front proxy: start kube-apiserver with --requestheader-allowed-names".to_owned());
        }
        let lower = |names: Vec<String>| names.into_iter().map(|name| name.to_ascii_lowercase()).collect::<Vec<_>>();
        let users = lower(list("requestheader-username-headers")?);
        if users.is_empty() {
            return Err("it names no header with the user: start kube-apiserver with --requestheader-username-headers"
                .to_owned());
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

    /// Who asks, by the headers of a request that came from the front proxy.
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

/// The API server writes names as they are, in UTF-8; `to_str` knows ASCII alone.
fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

/// Whether who makes a request would be let in now, too: connections last, and meanwhile the API server may have come to trust another
/// front proxy.
pub(super) fn is_let_in(front: &Front, request: &HttpRequest) -> bool {
    request.conn_data::<PeerCertificates>().is_some_and(|peer| front.accepted.accepts(&peer.0))
}

/// Reads it again. What cannot be read leaves it as it was.
pub(super) async fn follow(front: &Front) {
    let api: Api<ConfigMap> = Api::namespaced(front.client.clone(), "kube-system");
    let found = limited("read the ConfigMap", &format!("kube-system/{CONFIG_MAP}"), api.get(CONFIG_MAP)).await;
    let headers = match found.map(|map| Headers::parse(&map.data.unwrap_or_default())) {
        Ok(Ok(headers)) => headers,
        Ok(Err(why)) => {
            tracing::warn!("the ConfigMap kube-system/{CONFIG_MAP} cannot be used: {why}; nobody is let in");
            front.accepted.nobody();
            *front.headers.write().unwrap_or_else(PoisonError::into_inner) = None;
            return;
        }
        Err(error) => {
            tracing::warn!(%error, "whom the API server trusts is not known anew");
            return;
        }
    };
    if front.headers().as_ref() == Some(&headers) {
        return;
    }
    match front.accepted.replace(&headers.authority, headers.names.clone()) {
        Ok(()) => {
            tracing::info!(names = ?headers.names, "let in is the API server's front proxy");
            *front.headers.write().unwrap_or_else(PoisonError::into_inner) = Some(headers);
        }
        Err(error) => tracing::warn!(%error, "the API server's front proxy has an authority that cannot be used"),
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
    fn a_user_is_who_the_front_proxy_says() {
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
    fn names_are_utf_8() {
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
        assert_eq!(headers.user(&map), None, "what cannot be read is nobody");
    }

    #[test]
    fn without_a_name_or_an_authority_nobody_is_let_in() {
        assert!(Headers::parse(&data("[]")).is_err());
        let mut none = data(r#"["front-proxy-client"]"#);
        none.remove("requestheader-client-ca-file");
        assert!(Headers::parse(&none).is_err());
        assert!(Headers::parse(&data("front-proxy-client")).is_err());
    }
}
