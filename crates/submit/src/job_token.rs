//! Keys for the jobs' tokens. Each HTCJob has a token of its own, the HMAC-SHA256 of its uid. Its jobs send it with
//! their reports, and it is valid for that HTCJob only.

use std::fmt::Write as _;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use htc_machine::Uid;
use parking_lot::RwLock;
use sha2::Sha256;

/// Minimum characters of a key. 32 cannot be guessed, even if they are only digits and letters a to f.
const SHORTEST: usize = 32;
/// Maximum number of keys, which are all tried for a token.
const MOST: usize = 16;
/// Random bytes in a key that the operator creates.
const RANDOM: usize = 32;

/// One key or several. The first one signs, each is accepted. So a new key is added at the top, and the old one is
/// removed when the jobs that were submitted with it have ended.
#[derive(Clone)]
pub struct TokenKeys {
    macs: Vec<Hmac<Sha256>>,
    /// Each key's HMAC of an empty message. It allows comparing keys without storing them.
    marks: Vec<Vec<u8>>,
}

impl PartialEq for TokenKeys {
    fn eq(&self, other: &Self) -> bool {
        self.marks == other.marks
    }
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.macs.len())
    }
}

/// Reason why a text has no usable keys. Its message never quotes them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No line contains a key.
    #[error("there is no key; write one of at least {SHORTEST} characters on a line of its own")]
    None,
    /// A key short enough to be guessed.
    #[error("the key on line {0} has fewer than {SHORTEST} characters")]
    TooShort(usize),
    /// More keys than are supported.
    #[error("there are more than {MOST} keys; remove the oldest")]
    TooMany,
}

impl TokenKeys {
    /// Parses one key per line. Skips blank lines and lines that begin with `#`.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let key = line.trim();
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            if key.len() < SHORTEST {
                return Err(KeyError::TooShort(number));
            }
            keys.push(Hmac::new_from_slice(key.as_bytes()).map_err(|_| KeyError::TooShort(number))?);
        }
        match keys.len() {
            0 => Err(KeyError::None),
            1..=MOST => {
                let marks = keys.iter().map(|key| key.clone().finalize().into_bytes().to_vec()).collect();
                Ok(Self { macs: keys, marks })
            }
            _ => Err(KeyError::TooMany),
        }
    }

    /// Creates a new key in the form that [`Self::parse`] reads.
    pub fn random() -> Result<String, getrandom::Error> {
        let mut bytes = [0; RANDOM];
        getrandom::fill(&mut bytes)?;
        Ok(hex(&bytes))
    }

    /// Returns the token of an object: 64 hexadecimal digits.
    #[must_use]
    pub fn token(&self, uid: &Uid) -> String {
        self.macs.first().map(|key| hex(&signed(key, uid).finalize().into_bytes())).unwrap_or_default()
    }

    /// Returns a checksum of content of an object. Without the keys it cannot be compared with guesses of the content.
    #[must_use]
    pub fn seal(&self, uid: &Uid, content: &[u8]) -> String {
        self.macs.first().map(|key| hex(&sealed(key, uid, content).finalize().into_bytes())).unwrap_or_default()
    }

    /// Returns whether the content is what was sealed by any of the keys.
    #[must_use]
    pub fn is_sealed(&self, uid: &Uid, content: &[u8], seal: &str) -> bool {
        let Some(bytes) = unhex(seal) else { return false };
        self.macs.iter().any(|key| sealed(key, uid, content).verify_slice(&bytes).is_ok())
    }

    /// Returns whether `token` is that of the object by any of the keys. The duration reveals nothing about the right
    /// token.
    #[must_use]
    pub fn verify(&self, uid: &Uid, token: &str) -> bool {
        let Some(bytes) = unhex(token) else { return false };
        self.macs.iter().any(|key| signed(key, uid).verify_slice(&bytes).is_ok())
    }
}

/// The current keys, which may be replaced while others sign and verify with them.
#[derive(Clone, Debug)]
pub struct KeyRing(Arc<RwLock<Arc<TokenKeys>>>);

impl KeyRing {
    #[must_use]
    pub fn new(keys: TokenKeys) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(keys))))
    }

    #[must_use]
    pub fn current(&self) -> Arc<TokenKeys> {
        Arc::clone(&self.0.read())
    }

    /// Replaces the current keys. Returns whether they have changed.
    #[must_use]
    pub fn replace(&self, keys: TokenKeys) -> bool {
        if *self.current() == keys {
            return false;
        }
        *self.0.write() = Arc::new(keys);
        true
    }
}

fn signed(key: &Hmac<Sha256>, uid: &Uid) -> Hmac<Sha256> {
    let mut mac = key.clone();
    mac.update(uid.as_str().as_bytes());
    mac
}

/// A uid has no NUL, so that no seal is a token.
fn sealed(key: &Hmac<Sha256>, uid: &Uid, content: &[u8]) -> Hmac<Sha256> {
    let mut mac = signed(key, uid);
    mac.update(b"\0");
    mac.update(content);
    mac
}

/// Encodes bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect::<Option<_>>()?;
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "0123456789abcdef0123456789abcdef";
    const NEW: &str = "fedcba9876543210fedcba9876543210";

    #[test]
    fn job_token_is_hmac_sha256_of_the_uid() {
        // RFC 4231 has no key of 32 characters. This is the result of `openssl dgst -sha256 -hmac`.
        let keys = TokenKeys::parse(OLD).unwrap();
        let token = keys.token(&"0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001".into());
        assert_eq!(token, "c9e62d46c8dc81139e6a82dfb196783bcb4d4170c988cb2952973bc8fd718d45");
    }

    #[test]
    fn job_token_is_valid_for_one_object_only() {
        let keys = TokenKeys::parse(OLD).unwrap();
        let (own, other) = (Uid::from("a"), Uid::from("b"));
        let token = keys.token(&own);
        assert!(keys.verify(&own, &token) && keys.verify(&own, &token.to_uppercase()));
        assert!(!keys.verify(&other, &token));
        for bad in
            ["", "0", &token[1..], &token[2..], &format!("{token}0"), &format!("{token}00"), "ä", &"0".repeat(64)]
        {
            assert!(!keys.verify(&own, bad), "{bad}");
        }
    }

    #[test]
    fn seal_is_of_one_content_and_is_no_token() {
        let (keys, others) = (TokenKeys::parse(OLD).unwrap(), TokenKeys::parse(NEW).unwrap());
        let uid = Uid::from("a");
        let seal = keys.seal(&uid, b"content");
        assert!(keys.is_sealed(&uid, b"content", &seal) && !keys.is_sealed(&uid, b"Content", &seal));
        assert!(!keys.is_sealed(&Uid::from("b"), b"content", &seal) && !others.is_sealed(&uid, b"content", &seal));
        assert!(!keys.verify(&uid, &keys.seal(&uid, b"")) && !keys.is_sealed(&uid, b"", &keys.token(&uid)));
        assert!(TokenKeys::parse(&format!("{NEW}\n{OLD}")).unwrap().is_sealed(&uid, b"content", &seal));
    }

    #[test]
    fn first_key_signs_and_all_keys_verify() {
        let (old, both) =
            (TokenKeys::parse(OLD).unwrap(), TokenKeys::parse(&format!("# new\n{NEW}\n\n{OLD}\n")).unwrap());
        let uid = Uid::from("a");
        assert!(both.verify(&uid, &old.token(&uid)) && both.verify(&uid, &both.token(&uid)));
        assert!(!old.verify(&uid, &both.token(&uid)));
        assert_eq!(both.token(&uid), TokenKeys::parse(NEW).unwrap().token(&uid));
    }

    #[test]
    fn replaced_keys_apply_to_all_holders_of_the_ring() {
        let ring = KeyRing::new(TokenKeys::parse(OLD).unwrap());
        let (another, uid) = (ring.clone(), Uid::from("a"));
        assert!(!ring.replace(TokenKeys::parse(&format!("# the same\n{OLD}\n")).unwrap()));
        assert!(ring.replace(TokenKeys::parse(&format!("{NEW}\n{OLD}")).unwrap()));
        assert_eq!(another.current().token(&uid), TokenKeys::parse(NEW).unwrap().token(&uid));
        // The same keys in another order: now another one signs.
        assert!(ring.replace(TokenKeys::parse(&format!("{OLD}\n{NEW}")).unwrap()));
    }

    #[test]
    fn weak_keys_are_refused_and_keys_are_never_printed() {
        assert_eq!(TokenKeys::parse("").err(), Some(KeyError::None));
        assert_eq!(TokenKeys::parse("# only this\n").err(), Some(KeyError::None));
        assert_eq!(TokenKeys::parse(&format!("{OLD}\nshort")).err(), Some(KeyError::TooShort(2)));
        assert_eq!(TokenKeys::parse(&format!("{OLD}\n").repeat(17)).err(), Some(KeyError::TooMany));
        let random = TokenKeys::random().unwrap();
        assert_ne!(random, TokenKeys::random().unwrap());
        assert!(TokenKeys::parse(&random).is_ok());
        assert_eq!(format!("{:?}", TokenKeys::parse(OLD).unwrap()), "Keys(1)");
    }
}
