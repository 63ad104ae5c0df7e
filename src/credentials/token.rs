//! HTCondor's IDTOKENs are JSON Web Tokens: when one ends can be read without knowing the key that signed it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The tokens, as HTCondor reads them: one a line. HTCondor takes the first that is signed with a key which the server has. The message quotes
/// nothing of them.
pub(super) fn check(bytes: &[u8]) -> Result<String, String> {
    const NONE: &str = "is no IDTOKEN: write what condor_token_create or condor_token_fetch prints, as it is";
    let text = std::str::from_utf8(bytes).map_err(|_| NONE.to_owned())?.trim();
    let are_tokens = !text.is_empty() && text.lines().all(|token| claims(token).is_some());
    if are_tokens { Ok(text.to_owned()) } else { Err(NONE.to_owned()) }
}

/// When the first of them ends, unix seconds; none if none of them ever does.
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
    fn a_token_says_when_it_ends() {
        let forever = token(r#"{"sub":"alice@test","iat":1}"#);
        assert_eq!(check(format!("{forever}\n").as_bytes()), Ok(forever.clone()));
        assert_eq!(ends(&forever), None);
        let one = token(r#"{"exp":1700000000}"#);
        assert_eq!(ends(&one), Some(1_700_000_000));
        let two = format!("{}\n{one}", token(r#"{"exp":1700000001}"#));
        assert_eq!((check(two.as_bytes()), ends(&two)), (Ok(two.clone()), Some(1_700_000_000)));
    }

    #[test]
    fn what_is_no_token_is_refused() {
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
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(check(&[0xff, 0xfe]).is_err());
    }
}
