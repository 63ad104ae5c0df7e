//! Reads HTCondor's IDTOKENs. They are JSON Web Tokens, so their expiry can be read without the signing key.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Returns the tokens, one per line as HTCondor reads them, or `None` if a line is no token. HTCondor uses the first
/// whose signing key the server has.
pub(super) fn parse(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.trim();
    let are_tokens = !text.is_empty() && text.lines().all(|token| claims(token).is_some());
    are_tokens.then(|| text.to_owned())
}

/// Returns the earliest expiry, in Unix seconds, or `None` if no token expires.
pub(super) fn ends(tokens: &str) -> Option<i64> {
    tokens.lines().filter_map(|token| claims(token)?.get("exp")?.as_i64()).min()
}

fn claims(token: &str) -> Option<serde_json::Value> {
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let claims: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    claims.is_object().then_some(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("eyJhbGciOiJIUzI1NiJ9.{}.c2lnbmF0dXJl", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn token_expiry_is_read() {
        let forever = token(r#"{"sub":"alice@test","iat":1}"#);
        assert_eq!(parse(format!("{forever}\n").as_bytes()), Some(forever.clone()));
        assert_eq!(ends(&forever), None);
        let one = token(r#"{"exp":1700000000}"#);
        assert_eq!(ends(&one), Some(1_700_000_000));
        let two = format!("{}\n{one}", token(r#"{"exp":1700000001}"#));
        assert_eq!((parse(two.as_bytes()), ends(&two)), (Some(two.clone()), Some(1_700_000_000)));
    }

    #[test]
    fn malformed_token_is_refused() {
        let good = token("{}");
        for bad in [
            "",
            "a.b.c",
            "a.b",
            &format!("{good}\nx"),
            &format!("{good}\n\n{good}"),
            &format!("{good}.x"),
            &token("[]"),
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse(&[0xff, 0xfe]), None);
    }
}
