//! URLs of `spec.files`, which `job.sh` fetches on the worker node.

use strum::{EnumString, IntoStaticStr, VariantNames};

/// Maximum bytes of a URL.
const LONGEST: usize = 1024;
/// Placeholder for the index of the job.
const INDEX: &str = "${index}";
/// Placeholder for the item of the job.
const ITEM: &str = "${item}";

/// Scheme of a URL that `job.sh` can fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum UrlScheme {
    /// Fetched by `curl`.
    Https,
    /// Fetched by `curl`. Anybody on the way can change the file, so its SHA-256 must be known.
    Http,
    /// Fetched by `xrdcp`.
    Root,
    /// Fetched by `pelican`.
    Osdf,
    /// Fetched by `pelican`.
    Pelican,
}

/// A validated URL. Its placeholders are in its path or its query, so that no job's item changes the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUrl {
    text: String,
    scheme: UrlScheme,
}

/// Reason why a text is no URL that jobs may fetch. The message follows the path of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme than those of the site.
    #[error(
        "its url must begin with one of {0}, which are the schemes that this operator's administrator allows (--url-schemes)"
    )]
    Scheme(String),
    /// User and password in the URL: everybody who may read the HTCJob would see them.
    #[error("its url has a user or a password before the host: leave them out")]
    Credentials,
    /// No host, or one with a placeholder or a character that no host has.
    #[error(
        "its url needs a host of letters, digits, . and -, and a path: write one such as https://host.example.org/data/${{item}}"
    )]
    Host,
    /// A character that must be percent-encoded, or another placeholder.
    #[error(
        "its url may have the characters of URLs only, without # and brackets, and the placeholders ${{index}} and ${{item}}: write others as %20"
    )]
    Characters,
    /// More than [`LONGEST`] bytes.
    #[error("its url is longer than {LONGEST} bytes")]
    TooLong,
    /// A URL whose file could be replaced on its way.
    #[error("anybody on the network can change what comes from http://: write https://, or add the sha256 of the file")]
    Unprotected,
    /// A placeholder for items that the HTCJob does not have.
    #[error("its url has ${{item}}, and the HTCJob has no items: write spec.items or spec.itemsFrom")]
    NoItems,
}

impl FileUrl {
    /// Parses a URL with one of the site's schemes.
    ///
    /// # Errors
    /// It has another scheme, or a part that could lead elsewhere.
    pub fn parse(text: &str, schemes: &[UrlScheme]) -> Result<Self, UrlError> {
        if text.len() > LONGEST {
            return Err(UrlError::TooLong);
        }
        let allowed =
            || schemes.iter().map(|scheme| format!("{}://", <&str>::from(scheme))).collect::<Vec<_>>().join(", ");
        let split = text.split_once("://").and_then(|(scheme, rest)| Some((scheme.parse().ok()?, rest)));
        let (scheme, rest) =
            split.filter(|(scheme, _)| schemes.contains(scheme)).ok_or_else(|| UrlError::Scheme(allowed()))?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(UrlError::Credentials);
        }
        let may_lack_host = scheme == UrlScheme::Osdf;
        let is_host = |host: &str| {
            host.starts_with(|c: char| c.is_ascii_alphanumeric())
                && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:".contains(c))
        };
        if !path.starts_with('/') || !(is_host(authority) || (may_lack_host && authority.is_empty())) {
            return Err(UrlError::Host);
        }
        let plain = path.replace(INDEX, "").replace(ITEM, "");
        if !plain.chars().all(|c| c.is_ascii_alphanumeric() || "-._~:/?@!&()*+,;=%".contains(c)) {
            return Err(UrlError::Characters);
        }
        Ok(Self { text: text.to_owned(), scheme })
    }

    /// Returns the URL with its placeholders.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the content can be changed on its way.
    #[must_use]
    pub fn is_unprotected(&self) -> bool {
        self.scheme == UrlScheme::Http
    }

    /// Whether the job's item is a part of it.
    #[must_use]
    pub fn has_item(&self) -> bool {
        self.text.contains(ITEM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [UrlScheme; 5] =
        [UrlScheme::Https, UrlScheme::Http, UrlScheme::Root, UrlScheme::Osdf, UrlScheme::Pelican];

    fn parse(text: &str) -> Result<(), UrlError> {
        FileUrl::parse(text, &ALL).map(drop)
    }

    #[test]
    fn urls_of_the_sites_schemes_are_accepted() {
        for text in [
            "https://host.example.org/a",
            "https://127.0.0.1:8443/a/${index}/x?v=${item}&w=1",
            "root://eos.example.org//eos/a/${item}",
            "osdf:///ospool/a.root",
            "pelican://federation.example.org/a",
            "https://s3.example.org/b/k?X-Amz-Signature=0f%2F",
        ] {
            assert_eq!(parse(text), Ok(()), "{text}");
        }
        let https = FileUrl::parse("http://h/a", &[UrlScheme::Https, UrlScheme::Root]);
        assert_eq!(https, Err(UrlError::Scheme("https://, root://".to_owned())));
        for text in ["file:///etc/passwd", "FILE:///etc/passwd", "HTTPS://h/a", "h/a", "ftp://h/a", "", "://h/a", "-x"]
        {
            assert!(matches!(parse(text), Err(UrlError::Scheme(_))), "{text}");
        }
    }

    #[test]
    fn no_placeholder_or_character_leads_to_another_host() {
        for text in [
            "https://${item}/a",
            "https://h${item}/a",
            "https://h:${index}/a",
            "https://h",
            "https://h?${item}",
            "https://h#/a",
            "https:///a",
            "https://h\\x/a",
            "https://[::1]/a",
            "https://-h/a",
            "root:///a",
        ] {
            assert_eq!(parse(text), Err(UrlError::Host), "{text}");
        }
        for text in ["https://user:secret@h/a", "https://user@h/a", "https://${item}@h/a", "root://u@h//a"] {
            assert_eq!(parse(text), Err(UrlError::Credentials), "{text}");
        }
        for text in [
            "https://h/a b",
            "https://h/\"",
            "https://h/a\nurl = x",
            "https://h/$HOME",
            "https://h/${other}",
            "https://h/ä",
            "https://h/{a,b}",
            "https://h/[1-9]",
            "https://h/a#b",
            "https://h/`x`",
            "https://h/a\\",
        ] {
            assert_eq!(parse(text), Err(UrlError::Characters), "{text}");
        }
        assert_eq!(parse(&format!("https://h/{}", "a".repeat(LONGEST))), Err(UrlError::TooLong));
    }
}
