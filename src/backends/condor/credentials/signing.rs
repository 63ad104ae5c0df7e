//! Signing keys of a managed pool, and the IDTOKENs that they sign.
//!
//! A token is a JSON Web Token with HS256. Its key is HKDF-SHA256 of the signing key. HTCondor stores the signing key
//! in a file, with each byte XORed with one of `DE AD BE EF` (HTCondor's `condor_auth_passwd.cpp`, `store_cred.cpp`,
//! `secure_file.cpp`). HTCondor doubles the signing key called `POOL` before that; all others, such as [`KEY_NAME`],
//! are used as they are.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use htc_api::{Identity, Isolation, ObjectName, is_name};
use htc_submit::job_token::hex;
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// Name of the first signing key: of its file in `SEC_PASSWORD_DIRECTORY`, and in the header of each token. It is also
/// the prefix of the names of later keys.
pub const KEY_NAME: &str = "htcpool";
/// Interval between two renewals of a token, in seconds.
const PERIOD: i64 = 10 * 24 * 3600;
/// Lifetime of a token, in seconds. A holder gets the next token long before the old one ends.
const LIFE: i64 = 3 * PERIOD;
/// Length of a signing key, in bytes.
const LENGTH: usize = 64;
/// Prefix of the HTCondor user of a namespace's HTCJobs; the namespace, `@` and the pool's domain follow.
pub const NAMESPACE_USER_PREFIX: &str = "ns-";
/// Bytes that HTCondor XORs the content of a key file with.
const VEIL: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// Returns the name of the signing key of this generation, which counts from 1.
#[must_use]
pub fn key_name(generation: u32) -> String {
    if generation <= 1 { KEY_NAME.to_owned() } else { format!("{KEY_NAME}-{generation}") }
}

/// Returns the generation of the signing key of this name, or `None` if it is not the name of a key.
#[must_use]
pub fn generation_of(name: &str) -> Option<u32> {
    let generation = match name.strip_prefix(KEY_NAME)? {
        "" => 1,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (key_name(generation) == name).then_some(generation)
}

/// A signing key. Its holder can make tokens for every user of the pool.
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

/// A pool whose signing keys the operator holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    /// Secret with the keys that the schedd accepts.
    pub keys: ObjectName,
    /// `TRUST_DOMAIN`: where the tokens are valid.
    pub trust_domain: String,
    /// `UID_DOMAIN`: domain of all users.
    pub domain: String,
    /// Whether a worker runs the jobs of all namespaces, of one namespace or of one HTCJob.
    pub isolation: Isolation,
}

/// The Secret holds no valid signing key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoKey {
    /// The Secret has no such entry.
    #[error("there is none")]
    Missing,
    /// The key has this length, in bytes.
    #[error("it has {0} bytes, and a signing key has {LENGTH}")]
    Length(usize),
}

/// HTCondor's authorization levels, as far as tokens of managed pools are limited to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum AuthorizationLevel {
    /// Queries.
    Read,
    /// Submits jobs, and changes the user's own jobs.
    Write,
    /// Controls daemons.
    Administrator,
    /// Negotiates.
    Negotiator,
    /// Communication between daemons.
    Daemon,
    /// Sends the ad of a master to the collector.
    AdvertiseMaster,
    /// Sends the ad of a schedd to the collector.
    AdvertiseSchedd,
    /// Sends the ad of a startd to the collector.
    AdvertiseStartd,
}

/// Validity of a token, in Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenValidity {
    /// Time of issue.
    pub from: i64,
    /// Expiry, if any.
    pub until: Option<i64>,
}

impl TokenValidity {
    /// Returns the validity of a token that is renewed regularly. All tokens made within one period have the same
    /// validity.
    #[must_use]
    pub const fn renewed(now: i64) -> Self {
        let from = now - now.rem_euclid(PERIOD);
        Self { from, until: Some(from + LIFE) }
    }
}

impl Signer {
    /// Returns the identity of this user, if it is the user of a namespace's HTCJobs. No other credentials can have
    /// that user.
    #[must_use]
    pub fn identity_of(&self, user: &str) -> Option<Identity> {
        let (name, domain) = user.split_once('@')?;
        let namespace =
            name.strip_prefix(NAMESPACE_USER_PREFIX).filter(|name| domain == self.domain && is_name(name))?;
        Some(Identity::Namespace(namespace.to_owned()))
    }
}

impl SigningKey {
    /// Creates a random key of this generation.
    pub fn random(generation: u32) -> Result<Self, getrandom::Error> {
        let mut bytes = vec![0; LENGTH];
        getrandom::fill(&mut bytes)?;
        Ok(Self { generation, bytes })
    }

    /// Reads the key of this generation from a Secret.
    pub fn of_secret(secret: &Secret, generation: u32) -> Result<Self, NoKey> {
        let data = secret.data.as_ref();
        let entry = data.and_then(|data| data.get(&key_name(generation))).ok_or(NoKey::Missing)?;
        Self::from_file(generation, &entry.0)
    }

    /// Reads all keys from a Secret, the newest first.
    pub fn all_of_secret(secret: &Secret) -> Result<Vec<Self>, NoKey> {
        let names = secret.data.iter().flat_map(|data| data.keys());
        let mut generations: Vec<u32> = names.filter_map(|name| generation_of(name)).collect();
        generations.sort_unstable_by(|a, b| b.cmp(a));
        generations.into_iter().map(|generation| Self::of_secret(secret, generation)).collect()
    }

    /// Decodes the content of HTCondor's key file.
    pub fn from_file(generation: u32, contents: &[u8]) -> Result<Self, NoKey> {
        if contents.len() == LENGTH {
            Ok(Self { generation, bytes: veil(contents) })
        } else {
            Err(NoKey::Length(contents.len()))
        }
    }

    /// Encodes the key as HTCondor's key file.
    #[must_use]
    pub fn file(&self) -> Vec<u8> {
        veil(&self.bytes)
    }

    /// Returns the generation of the key, which counts from 1.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the name of its file, which is also in the header of each token that it signs.
    #[must_use]
    pub fn name(&self) -> String {
        key_name(self.generation)
    }

    /// Returns 16 hexadecimal digits that distinguish keys without revealing them.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        hex(&Sha256::digest(&self.bytes)[..8])
    }

    /// Creates a token for the HTCJobs of `namespace`: it may query the queue, submit jobs and change its own jobs. All
    /// tokens made within one period are equal. `now`: Unix seconds.
    #[must_use]
    pub fn namespace_token(&self, signer: &Signer, namespace: &str, now: i64) -> String {
        let (identity, good) =
            (format!("{NAMESPACE_USER_PREFIX}{namespace}@{}", signer.domain), TokenValidity::renewed(now));
        let id = mac(&self.derived(), &[b"jti", identity.as_bytes(), &good.from.to_be_bytes()]);
        self.sign(
            &signer.trust_domain,
            &identity,
            &[AuthorizationLevel::Read, AuthorizationLevel::Write],
            (good, &id[..16]),
        )
    }

    /// Creates a token for `identity` (`name@domain`) that is valid in `trust_domain`. It is limited to these
    /// `rights`; an empty list means all rights of the identity.
    pub fn token(
        &self,
        trust_domain: &str,
        identity: &str,
        rights: &[AuthorizationLevel],
        good: TokenValidity,
    ) -> Result<String, getrandom::Error> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)?;
        Ok(self.sign(trust_domain, identity, rights, (good, &id)))
    }

    fn sign(
        &self,
        trust_domain: &str,
        identity: &str,
        rights: &[AuthorizationLevel],
        (good, id): (TokenValidity, &[u8]),
    ) -> String {
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

    /// Derives the key of the signature: HKDF-SHA256 (RFC 5869) with one block of output.
    fn derived(&self) -> Vec<u8> {
        let extracted = mac(b"htcondor", &[&self.bytes]);
        mac(&extracted, &[b"master jwt", &[1]])
    }
}

/// Creates a token for each of these keys, one per line. HTCondor's clients use the first whose key the server has
/// (`findToken` in `condor_auth_passwd.cpp`).
pub fn tokens(
    keys: &[SigningKey],
    trust_domain: &str,
    identity: &str,
    rights: &[AuthorizationLevel],
    good: TokenValidity,
) -> Result<String, getrandom::Error> {
    let each = keys.iter().map(|key| key.token(trust_domain, identity, rights, good));
    Ok(each.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Returns the names of the keys that signed these tokens, which are given one per line.
#[must_use]
pub fn signing_key_names(tokens: &str) -> Vec<String> {
    let name = |token: &str| -> Option<String> {
        let header = URL_SAFE_NO_PAD.decode(token.split('.').next()?).ok()?;
        let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
        header["kid"].as_str().map(str::to_owned)
    };
    tokens.lines().filter_map(name).collect()
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    // HMAC accepts keys of any length.
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
    fn signing_key_is_derived_as_in_htcondor() {
        let key = SigningKey { generation: 1, bytes: (0..64).collect() };
        // Computed with Python's hmac and hashlib.
        assert_eq!(hex(&key.derived()), "ce74508bac81a421cf56451aa6ea08dbb123aef386724b005d789171406172b5");
    }

    #[test]
    fn signing_key_round_trips_as_file_and_is_never_printed() {
        let key = SigningKey::random(2).unwrap();
        assert_eq!(SigningKey::from_file(2, &key.file()).as_ref(), Ok(&key));
        assert_ne!(key.file(), key.bytes);
        assert_eq!(SigningKey::from_file(1, b"short"), Err(NoKey::Length(5)));
        assert_ne!(key, SigningKey::random(2).unwrap());
        assert_eq!(format!("{key:?}"), format!("SigningKey(htcpool-2 {})", key.fingerprint()));
    }

    #[test]
    fn signing_keys_are_named_by_their_generation() {
        for generation in [1, 2, 10, 1000] {
            assert_eq!(generation_of(&key_name(generation)), Some(generation));
        }
        for other in ["token", "htcpool-", "htcpool-1", "htcpool-02", "htcpool-x", "htcpool2"] {
            assert_eq!(generation_of(other), None, "{other}");
        }
    }

    #[test]
    fn tokens_are_made_for_each_key_newest_first() {
        let keys = [2, 1].map(|generation| SigningKey::random(generation).unwrap());
        let tokens = tokens(&keys, "trust", "a@b", &[], TokenValidity { from: 1, until: None }).unwrap();
        assert_eq!(
            (tokens.lines().count(), signing_key_names(&tokens)),
            (2, vec!["htcpool-2".to_owned(), KEY_NAME.to_owned()])
        );
        let data = keys.iter().map(|key| (key.name(), k8s_openapi::ByteString(key.file())));
        let secret = Secret { data: Some(data.collect()), ..Secret::default() };
        assert_eq!(SigningKey::all_of_secret(&secret), Ok(keys.to_vec()));
        assert_eq!(SigningKey::of_secret(&secret, 3), Err(NoKey::Missing));
    }

    #[test]
    fn token_has_subject_scope_and_validity() {
        let key = SigningKey::random(1).unwrap();
        let good = TokenValidity { from: 7, until: Some(9) };
        let token = key
            .token("trust", "worker@pool", &[AuthorizationLevel::Read, AuthorizationLevel::AdvertiseStartd], good)
            .unwrap();
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(
            (&claims["iss"], &claims["sub"], &claims["iat"]),
            (&"trust".into(), &"worker@pool".into(), &7.into())
        );
        assert_eq!(claims["scope"], "condor:/READ condor:/ADVERTISE_STARTD");
        assert_ne!(
            token,
            key.token("trust", "worker@pool", &[AuthorizationLevel::Read, AuthorizationLevel::AdvertiseStartd], good)
                .unwrap()
        );
        assert_eq!(claims["exp"], 9);
    }

    #[test]
    fn namespace_token_is_deterministic_and_names_its_namespace() {
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
        assert_eq!(signer.identity_of("ns-physics@pool"), Some(Identity::Namespace("physics".to_owned())));
        for nobody in ["ns-physics@other", "ns-physics", "operator@pool", "ns-@pool", "ns-../x@pool"] {
            assert_eq!(signer.identity_of(nobody), None, "{nobody}");
        }
    }
}
