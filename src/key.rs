//! The keys that tokens are made with. Each HTCJob has a token of its own, HMAC-SHA256 of its uid: its jobs show it when
//! they report, and it is good for that HTCJob only.

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::machine::Uid;

/// Fewest characters of a key: 32 of them are a guess nobody makes even where they are only digits and letters a to f.
const SHORTEST: usize = 32;
/// Most keys that are tried for one token.
const MOST: usize = 16;
/// Random bytes in a key that the operator makes.
const RANDOM: usize = 32;

/// One key or several: the first signs, each is accepted. So a new key is put first, and the old one taken away when the
/// jobs that were submitted with it have ended.
#[derive(Clone)]
pub struct Keys {
    macs: Vec<Hmac<Sha256>>,
    /// What each of them makes of nothing: tells keys apart without keeping them.
    marks: Vec<Vec<u8>>,
}

impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        self.marks == other.marks
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.macs.len())
    }
}

/// Why a text has no usable keys. It never quotes them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No line has a key.
    #[error("there is no key; write one of at least {SHORTEST} characters on a line of its own")]
    None,
    /// A key that could be guessed.
    #[error("the key on line {0} has fewer than {SHORTEST} characters")]
    TooShort(usize),
    /// More keys than anybody needs.
    #[error("there are more than {MOST} keys; remove the oldest")]
    TooMany,
}

impl Keys {
    /// Reads one key a line; blank lines and lines that begin with `#` are skipped.
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

    /// A new key, as [`Self::parse`] reads it.
    pub fn random() -> Result<String, getrandom::Error> {
        let mut bytes = [0; RANDOM];
        getrandom::fill(&mut bytes)?;
        Ok(hex(&bytes))
    }

    /// The token of an object: 64 hexadecimal digits.
    #[must_use]
    pub fn token(&self, uid: &Uid) -> String {
        self.macs.first().map(|key| hex(&signed(key, uid).finalize().into_bytes())).unwrap_or_default()
    }

    /// Whether `token` is that of the object, by any of the keys. How long that takes says nothing about the right one.
    #[must_use]
    pub fn accept(&self, uid: &Uid, token: &str) -> bool {
        let Some(bytes) = unhex(token) else { return false };
        self.macs.iter().any(|key| signed(key, uid).verify_slice(&bytes).is_ok())
    }
}

/// The keys in force, which may be replaced while others sign and check with them.
#[derive(Clone, Debug)]
pub struct KeyRing(Arc<RwLock<Arc<Keys>>>);

impl KeyRing {
    /// With these keys, for the time being.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(keys))))
    }

    /// The keys in force now.
    #[must_use]
    pub fn current(&self) -> Arc<Keys> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on these are in force; whether they are others than before.
    pub fn replace(&self, keys: Keys) -> bool {
        if *self.current() == keys {
            return false;
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        true
    }
}

fn signed(key: &Hmac<Sha256>, uid: &Uid) -> Hmac<Sha256> {
    let mut mac = key.clone();
    mac.update(uid.as_str().as_bytes());
    mac
}

/// In hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
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
    fn a_token_is_hmac_sha256_of_the_uid() {
        // RFC 4231 has no key of 32 characters; this is what `openssl dgst -sha256 -hmac` says.
        let keys = Keys::parse(OLD).unwrap();
        let token = keys.token(&"0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001".into());
        assert_eq!(token, "c9e62d46c8dc81139e6a82dfb196783bcb4d4170c988cb2952973bc8fd718d45");
    }

    #[test]
    fn a_token_is_good_for_one_object_only() {
        let keys = Keys::parse(OLD).unwrap();
        let (own, other) = (Uid::from("a"), Uid::from("b"));
        let token = keys.token(&own);
        assert!(keys.accept(&own, &token) && keys.accept(&own, &token.to_uppercase()));
        assert!(!keys.accept(&other, &token));
        for bad in
            ["", "0", &token[1..], &token[2..], &format!("{token}0"), &format!("{token}00"), "ä", &"0".repeat(64)]
        {
            assert!(!keys.accept(&own, bad), "{bad}");
        }
    }

    #[test]
    fn the_first_key_signs_and_all_are_accepted() {
        let (old, both) = (Keys::parse(OLD).unwrap(), Keys::parse(&format!("# new\n{NEW}\n\n{OLD}\n")).unwrap());
        let uid = Uid::from("a");
        assert!(both.accept(&uid, &old.token(&uid)) && both.accept(&uid, &both.token(&uid)));
        assert!(!old.accept(&uid, &both.token(&uid)));
        assert_eq!(both.token(&uid), Keys::parse(NEW).unwrap().token(&uid));
    }

    #[test]
    fn keys_are_replaced_for_all_who_have_the_ring() {
        let ring = KeyRing::new(Keys::parse(OLD).unwrap());
        let (another, uid) = (ring.clone(), Uid::from("a"));
        assert!(!ring.replace(Keys::parse(&format!("# the same\n{OLD}\n")).unwrap()));
        assert!(ring.replace(Keys::parse(&format!("{NEW}\n{OLD}")).unwrap()));
        assert_eq!(another.current().token(&uid), Keys::parse(NEW).unwrap().token(&uid));
        // The same keys in another order: another one signs.
        assert!(ring.replace(Keys::parse(&format!("{OLD}\n{NEW}")).unwrap()));
    }

    #[test]
    fn keys_that_could_be_guessed_are_refused_and_never_shown() {
        assert_eq!(Keys::parse("").err(), Some(KeyError::None));
        assert_eq!(Keys::parse("# only this\n").err(), Some(KeyError::None));
        assert_eq!(Keys::parse(&format!("{OLD}\nshort")).err(), Some(KeyError::TooShort(2)));
        assert_eq!(Keys::parse(&format!("{OLD}\n").repeat(17)).err(), Some(KeyError::TooMany));
        let random = Keys::random().unwrap();
        assert_ne!(random, Keys::random().unwrap());
        assert!(Keys::parse(&random).is_ok());
        assert_eq!(format!("{:?}", Keys::parse(OLD).unwrap()), "Keys(1)");
    }
}
