//! The signing key of a managed pool, and the IDTOKENs that are made with it.
//!
//! A token is a JSON Web Token with HS256. Its key is HKDF-SHA256 of the signing key; HTCondor keeps that in a file, each byte XORed with
//! one of `DE AD BE EF` (HTCondor's `condor_auth_passwd.cpp`, `store_cred.cpp`, `secure_file.cpp`). The signing key called `POOL` is
//! doubled before that; all others, such as [`KEY_NAME`], are taken as they are.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::api::{Identity, Isolation, ObjectName, is_name};
use crate::key::hex;

/// Name of the first signing key: of its file in `SEC_PASSWORD_DIRECTORY`, and in the header of each token. Those of later ones begin so.
pub const KEY_NAME: &str = "htcpool";
/// Tokens are made anew after so many seconds.
const PERIOD: i64 = 10 * 24 * 3600;
/// They are good for so many seconds: who has one has had the next one for long when it ends.
const LIFE: i64 = 3 * PERIOD;
/// Random bytes in a signing key.
const LENGTH: usize = 64;
/// What the user of a namespace's HTCJobs begins with; its name follows, and `@` and the pool's domain.
pub const OF_NAMESPACE: &str = "ns-";
/// What HTCondor hides the bytes of a key file with.
const VEIL: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// Name of the signing key of this generation, from 1.
#[must_use]
pub fn key_name(generation: u32) -> String {
    if generation <= 1 { KEY_NAME.to_owned() } else { format!("{KEY_NAME}-{generation}") }
}

/// Generation of the signing key of this name; none if no key is called so.
#[must_use]
pub fn generation_of(name: &str) -> Option<u32> {
    let generation = match name.strip_prefix(KEY_NAME)? {
        "" => 1,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (key_name(generation) == name).then_some(generation)
}

/// A signing key: who has it can make tokens of everybody in its pool.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey {
    generation: u32,
    bytes: Vec<u8>,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({} {})", self.name(), self.fingerprint())
    }
}

/// A pool whose signing keys the operator has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    /// The Secret with the keys that the schedd accepts.
    pub keys: ObjectName,
    /// `TRUST_DOMAIN`: where tokens are good.
    pub trust_domain: String,
    /// `UID_DOMAIN`: that of all identities.
    pub domain: String,
    /// Whose jobs one of its workers runs.
    pub isolation: Isolation,
}

/// What is in the Secret is no signing key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoKey {
    /// The Secret has no such entry.
    #[error("there is none")]
    Missing,
    /// It has so many bytes.
    #[error("it has {0} bytes, and a signing key has {LENGTH}")]
    Length(usize),
}

/// HTCondor's levels of authorization, as far as tokens of managed pools are limited to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum Right {
    /// To ask.
    Read,
    /// To submit jobs, and to change one's own.
    Write,
    /// To tell daemons what to do.
    Administrator,
    /// To negotiate.
    Negotiator,
    /// What daemons do among themselves.
    Daemon,
    /// To tell the collector of a master.
    AdvertiseMaster,
    /// To tell the collector of a schedd.
    AdvertiseSchedd,
    /// To tell the collector of a startd.
    AdvertiseStartd,
}

/// When a token is good, in unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Good {
    /// When it was made.
    pub from: i64,
    /// Its end. None: it has none.
    pub until: Option<i64>,
}

impl Good {
    /// The validity of a token that is renewed regularly. Tokens made within one period have the same.
    #[must_use]
    pub const fn renewed(now: i64) -> Self {
        let from = now - now.rem_euclid(PERIOD);
        Self { from, until: Some(from + LIFE) }
    }
}

impl Signer {
    /// Whose name this is: that of the HTCJobs of a namespace. Nobody else can have it.
    #[must_use]
    pub fn whose(&self, user: &str) -> Option<Identity> {
        let (name, domain) = user.split_once('@')?;
        let namespace = name.strip_prefix(OF_NAMESPACE).filter(|name| domain == self.domain && is_name(name))?;
        Some(Identity::Namespace(namespace.to_owned()))
    }
}

impl SigningKey {
    /// A new one of this generation.
    pub fn random(generation: u32) -> Result<Self, getrandom::Error> {
        let mut bytes = vec![0; LENGTH];
        getrandom::fill(&mut bytes)?;
        Ok(Self { generation, bytes })
    }

    /// The one of this generation in a Secret.
    pub fn of_secret(secret: &Secret, generation: u32) -> Result<Self, NoKey> {
        let data = secret.data.as_ref();
        let entry = data.and_then(|data| data.get(&key_name(generation))).ok_or(NoKey::Missing)?;
        Self::from_file(generation, &entry.0)
    }

    /// All in a Secret, the newest first.
    pub fn all_of_secret(secret: &Secret) -> Result<Vec<Self>, NoKey> {
        let names = secret.data.iter().flat_map(|data| data.keys());
        let mut generations: Vec<u32> = names.filter_map(|name| generation_of(name)).collect();
        generations.sort_unstable_by(|a, b| b.cmp(a));
        generations.into_iter().map(|generation| Self::of_secret(secret, generation)).collect()
    }

    /// From the contents of HTCondor's file.
    pub fn from_file(generation: u32, contents: &[u8]) -> Result<Self, NoKey> {
        if contents.len() == LENGTH {
            Ok(Self { generation, bytes: veil(contents) })
        } else {
            Err(NoKey::Length(contents.len()))
        }
    }

    /// The contents of HTCondor's file.
    #[must_use]
    pub fn file(&self) -> Vec<u8> {
        veil(&self.bytes)
    }

    /// Which of the pool's keys it is, from 1.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Name of its file, and in the header of each token that it has signed.
    #[must_use]
    pub fn name(&self) -> String {
        key_name(self.generation)
    }

    /// Tells keys apart, and says nothing about them: 16 hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        hex(&Sha256::digest(&self.bytes)[..8])
    }

    /// A token for the HTCJobs of `namespace`: to see the queue, to submit jobs and to change these. It is the same whenever it is made within
    /// one period. `now`: unix seconds.
    #[must_use]
    pub fn namespace_token(&self, signer: &Signer, namespace: &str, now: i64) -> String {
        let (identity, good) = (format!("{OF_NAMESPACE}{namespace}@{}", signer.domain), Good::renewed(now));
        let id = mac(&self.derived(), &[b"jti", identity.as_bytes(), &good.from.to_be_bytes()]);
        self.sign(&signer.trust_domain, &identity, &[Right::Read, Right::Write], (good, &id[..16]))
    }

    /// A token for `identity` (`name@domain`), good where `trust_domain` is, for no more than these rights; without any: for all that the
    /// identity has.
    pub fn token(
        &self,
        trust_domain: &str,
        identity: &str,
        rights: &[Right],
        good: Good,
    ) -> Result<String, getrandom::Error> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)?;
        Ok(self.sign(trust_domain, identity, rights, (good, &id)))
    }

    fn sign(&self, trust_domain: &str, identity: &str, rights: &[Right], (good, id): (Good, &[u8])) -> String {
        let scope: Vec<String> = rights.iter().map(|right| format!("condor:/{}", <&str>::from(right))).collect();
        let header = json!({ "alg": "HS256", "kid": self.name() });
        let mut claims = json!({ "iss": trust_domain, "sub": identity, "iat": good.from, "jti": hex(id) });
        if let Some(until) = good.until {
            claims["exp"] = until.into();
        }
        if !scope.is_empty() {
            claims["scope"] = scope.join(" ").into();
        }
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let signed = format!("{}.{}", encode(header.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
        let signature = mac(&self.derived(), &[signed.as_bytes()]);
        format!("{signed}.{}", encode(&signature))
    }

    /// HKDF-SHA256 (RFC 5869) with one block of output.
    fn derived(&self) -> Vec<u8> {
        let extracted = mac(b"htcondor", &[&self.bytes]);
        mac(&extracted, &[b"master jwt", &[1]])
    }
}

/// A token of each of these keys, one a line. HTCondor's clients take the first whose key the server has (`findToken` of its
/// `condor_auth_passwd.cpp`).
pub fn tokens(
    keys: &[SigningKey],
    trust_domain: &str,
    identity: &str,
    rights: &[Right],
    good: Good,
) -> Result<String, getrandom::Error> {
    let each = keys.iter().map(|key| key.token(trust_domain, identity, rights, good));
    Ok(each.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Names of the keys that have signed these tokens, one a line.
#[must_use]
pub fn signed_with(tokens: &str) -> Vec<String> {
    let name = |token: &str| -> Option<String> {
        let header = URL_SAFE_NO_PAD.decode(token.split('.').next()?).ok()?;
        let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
        header["kid"].as_str().map(str::to_owned)
    };
    tokens.lines().filter_map(name).collect()
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

fn veil(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().zip(VEIL.iter().cycle()).map(|(byte, veil)| byte ^ veil).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_derived_as_htcondor_does() {
        let key = SigningKey { generation: 1, bytes: (0..64).collect() };
        // By Python's hmac and hashlib.
        assert_eq!(hex(&key.derived()), "ce74508bac81a421cf56451aa6ea08dbb123aef386724b005d789171406172b5");
    }

    #[test]
    fn a_key_survives_its_file_and_is_never_shown() {
        let key = SigningKey::random(2).unwrap();
        assert_eq!(SigningKey::from_file(2, &key.file()).as_ref(), Ok(&key));
        assert_ne!(key.file(), key.bytes);
        assert_eq!(SigningKey::from_file(1, b"short"), Err(NoKey::Length(5)));
        assert_ne!(key, SigningKey::random(2).unwrap());
        assert_eq!(format!("{key:?}"), format!("SigningKey(htcpool-2 {})", key.fingerprint()));
    }

    #[test]
    fn keys_are_named_by_their_generation() {
        for generation in [1, 2, 10, 1000] {
            assert_eq!(generation_of(&key_name(generation)), Some(generation));
        }
        for other in ["token", "htcpool-", "htcpool-1", "htcpool-02", "htcpool-x", "htcpool2"] {
            assert_eq!(generation_of(other), None, "{other}");
        }
    }

    #[test]
    fn holders_have_a_token_of_each_key_and_the_newest_first() {
        let keys = [2, 1].map(|generation| SigningKey::random(generation).unwrap());
        let tokens = tokens(&keys, "trust", "a@b", &[], Good { from: 1, until: None }).unwrap();
        assert_eq!(
            (tokens.lines().count(), signed_with(&tokens)),
            (2, vec!["htcpool-2".to_owned(), KEY_NAME.to_owned()])
        );
        let data = keys.iter().map(|key| (key.name(), k8s_openapi::ByteString(key.file())));
        let secret = Secret { data: Some(data.collect()), ..Secret::default() };
        assert_eq!(SigningKey::all_of_secret(&secret), Ok(keys.to_vec()));
        assert_eq!(SigningKey::of_secret(&secret, 3), Err(NoKey::Missing));
    }

    #[test]
    fn a_token_says_whose_it_is_and_what_it_is_for() {
        let key = SigningKey::random(1).unwrap();
        let good = Good { from: 7, until: Some(9) };
        let token = key.token("trust", "worker@pool", &[Right::Read, Right::AdvertiseStartd], good).unwrap();
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(
            (&claims["iss"], &claims["sub"], &claims["iat"]),
            (&"trust".into(), &"worker@pool".into(), &7.into())
        );
        assert_eq!(claims["scope"], "condor:/READ condor:/ADVERTISE_STARTD");
        assert_ne!(token, key.token("trust", "worker@pool", &[Right::Read, Right::AdvertiseStartd], good).unwrap());
        assert_eq!(claims["exp"], 9);
    }

    #[test]
    fn the_token_of_a_namespace_is_the_same_each_time() {
        let key = SigningKey::random(1).unwrap();
        let secret = ObjectName { namespace: "site".to_owned(), name: "own-signing-key".to_owned() };
        let signer = Signer {
            keys: secret,
            trust_domain: "trust".to_owned(),
            domain: "pool".to_owned(),
            isolation: Isolation::None,
        };
        let token = key.namespace_token(&signer, "physics", 7);
        assert_eq!(token, key.namespace_token(&signer, "physics", PERIOD - 1));
        assert_ne!(token, key.namespace_token(&signer, "physics", PERIOD));
        assert_ne!(token, key.namespace_token(&signer, "chemistry", 7));
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(
            (&claims["sub"], &claims["scope"]),
            (&"ns-physics@pool".into(), &"condor:/READ condor:/WRITE".into())
        );
        assert_eq!((&claims["iat"], &claims["exp"]), (&0.into(), &LIFE.into()));
        assert_eq!(signer.whose("ns-physics@pool"), Some(Identity::Namespace("physics".to_owned())));
        for nobody in ["ns-physics@other", "ns-physics", "operator@pool", "ns-@pool", "ns-../x@pool"] {
            assert_eq!(signer.whose(nobody), None, "{nobody}");
        }
    }
}
