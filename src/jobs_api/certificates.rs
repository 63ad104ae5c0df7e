//! The jobs API's own authority and certificates. The leader keeps them: the authority in a Secret that nobody else reads, what a
//! front needs in another one, its own in memory. All are renewed long before they end, and a new authority is known everywhere
//! before anything is signed by it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::kubernetes::{ApiError, MANAGER, limited};
use crate::mtls::{Accepted, MtlsError, Shown};
use crate::procs::{GROUP, VERSION};

/// Name of the fronts in their certificate: whom the leader answers.
pub const FRONT: &str = "htc-operator-jobs-api-front";
/// So many lives of a certificate are one of the authority.
const AUTHORITY_LIVES: u32 = 12;
/// After this part of a certificate's life, an authority that was made known signs.
const OVERLAP: u32 = 24;
/// How often it is seen to that the APIService has the authority: who registers the API waits for that.
const REGISTERED: Duration = Duration::from_secs(3);
/// Longest pause between two looks at all of it.
const EVERY: Duration = Duration::from_secs(60);

/// Why the certificates cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// What is in a Secret.
    #[error(
        "the Secret {name} has something else in it than the operator wrote: {why}; delete it, and the operator makes a new one"
    )]
    Unreadable {
        /// Which.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// It cannot be used.
    #[error(transparent)]
    Tls(#[from] MtlsError),
}

/// One authority, as it stands in the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Authority {
    certificate: String,
    key: String,
    /// When it was made, unix seconds.
    since: i64,
}

/// What was signed.
struct Signed {
    certificate: String,
    key: String,
}

/// How long things are good for.
#[derive(Clone, Copy, Debug)]
pub struct Lives {
    /// A certificate.
    pub certificate: Duration,
}

impl Lives {
    fn authority(self) -> i64 {
        seconds(self.certificate * AUTHORITY_LIVES)
    }

    fn overlap(self) -> i64 {
        seconds(self.certificate / OVERLAP)
    }

    fn every(self) -> Duration {
        EVERY.min(self.certificate / OVERLAP)
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// The authorities that are to be known now: those that have not ended, and a new one once the newest has lived half of its life.
fn known(authorities: &[Authority], lives: Lives, now: i64) -> (Vec<Authority>, bool) {
    let alive: Vec<Authority> =
        authorities.iter().filter(|one| now < one.since.saturating_add(lives.authority())).cloned().collect();
    let newest = alive.last().map(|one| one.since);
    let wanted = newest.is_none_or(|since| now >= since.saturating_add(lives.authority() / 2));
    (alive, wanted)
}

/// The one that signs: the newest that everybody has had the time to hear of.
fn signer(authorities: &[Authority], lives: Lives, now: i64) -> Option<&Authority> {
    let heard_of = |one: &&Authority| now >= one.since.saturating_add(lives.overlap());
    authorities.iter().rfind(heard_of).or_else(|| authorities.first())
}

fn date(at: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Clocks differ.
const SKEW: i64 = 300;

fn make_authority(lives: Lives, now: i64) -> Result<Authority, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = authority_params(lives, now)?.self_signed(&key)?;
    Ok(Authority { certificate: certificate.pem(), key: key.serialize_pem(), since: now })
}

fn authority_params(lives: Lives, since: i64) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = date(since.saturating_sub(SKEW));
    params.not_after = date(since.saturating_add(lives.authority()));
    params.distinguished_name = named(&format!("htc-operator-jobs-api-{since}"));
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn sign(authority: &Authority, lives: Lives, name: &str, hosts: &[String], now: i64) -> Result<Signed, rcgen::Error> {
    let issuer = Issuer::new(authority_params(lives, authority.since)?, KeyPair::from_pem(&authority.key)?);
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = named(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = date(now.saturating_sub(SKEW));
    params.not_after = date(now.saturating_add(seconds(lives.certificate)));
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(Signed { certificate, key: key.serialize_pem() })
}

/// Where things are.
#[derive(Clone, Debug)]
pub struct Places {
    /// The operator's namespace.
    pub namespace: String,
    /// The operator's name: those of the Secrets and of the Services begin with it.
    pub operator: String,
}

impl Places {
    /// The Secret with the authorities.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}-jobs-api-authority", self.operator)
    }

    /// The Secret with what fronts need.
    #[must_use]
    pub fn front(&self) -> String {
        format!("{}-jobs-api-front", self.operator)
    }

    /// Names of the fronts' Service.
    fn front_hosts(&self) -> Vec<String> {
        let service = format!("{}-jobs-api", self.operator);
        vec![format!("{service}.{}.svc", self.namespace), format!("{service}.{}", self.namespace)]
    }

    /// Name of the leader's Service.
    #[must_use]
    pub fn leader_host(&self) -> String {
        format!("{}-jobs-api-leader.{}.svc", self.operator, self.namespace)
    }
}

/// Keeps the certificates for as long as it runs.
pub struct CertificateKeeper {
    client: Client,
    places: Places,
    lives: Lives,
    shown: Shown,
    accepted: Accepted,
    /// Until when the leader's own is good, and who has signed it.
    own: Option<(i64, i64)>,
    /// The authorities that everybody is to know.
    bundle: Option<String>,
}

impl CertificateKeeper {
    /// Gives the leader's port its certificate and whom it accepts.
    #[must_use]
    pub fn new(client: Client, places: Places, lives: Lives, shown: Shown, accepted: Accepted) -> Self {
        Self { client, places, lives, shown, accepted, own: None, bundle: None }
    }

    /// Runs for as long as the operator does.
    pub async fn run(mut self) {
        let mut told = String::new();
        let mut next = Instant::now();
        loop {
            match self.look(&mut next).await {
                Ok(()) => told.clear(),
                Err(CertificateError::Api(error)) if error.is_fence_closed() => {}
                Err(error) => {
                    let words = error.to_string();
                    if words != told {
                        tracing::warn!(%error, "the certificates of the jobs API cannot be kept; it is tried again");
                        told = words;
                    }
                }
            }
            tokio::time::sleep(REGISTERED.min(self.lives.every())).await;
        }
    }

    /// All of it when that is due, which it stays if it fails. Else what may be registered anew at any time.
    async fn look(&mut self, next: &mut Instant) -> Result<(), CertificateError> {
        match &self.bundle {
            Some(bundle) if Instant::now() < *next => self.publish(bundle).await,
            _ => {
                self.keep(jiff::Timestamp::now().as_second()).await?;
                *next = Instant::now() + self.lives.every();
                Ok(())
            }
        }
    }

    async fn keep(&mut self, now: i64) -> Result<(), CertificateError> {
        let authorities = self.authorities(now).await?;
        let bundle: String = authorities.iter().map(|one| one.certificate.as_str()).collect();
        self.bundle = Some(bundle.clone());
        // Known to all before it signs anything.
        self.publish(&bundle).await?;
        let Some(signer) = signer(&authorities, self.lives, now) else { return Ok(()) };
        self.front(signer, &bundle, now).await?;
        self.accepted.replace(&bundle, BTreeSet::from([FRONT.to_owned()]))?;
        if self.own.is_none_or(|(until, by)| self.is_old(until, now) || by != signer.since) {
            let host = self.places.leader_host();
            let own = sign(signer, self.lives, &host, std::slice::from_ref(&host), now)?;
            self.shown.replace(&own.certificate, &own.key)?;
            self.own = Some((now.saturating_add(seconds(self.lives.certificate)), signer.since));
        }
        Ok(())
    }

    fn is_old(&self, until: i64, now: i64) -> bool {
        now >= until.saturating_sub(seconds(self.lives.certificate) / 2)
    }

    /// Those that the Secret has, with a new one if it is time.
    async fn authorities(&self, now: i64) -> Result<Vec<Authority>, CertificateError> {
        let name = self.places.authority();
        let found = self.read(&name).await?;
        let entry = found.as_ref().and_then(|secret| secret.data.as_ref()?.get("authorities"));
        let stored: Vec<Authority> = match entry {
            None => Vec::new(),
            Some(text) => serde_json::from_slice(&text.0)
                .map_err(|error| CertificateError::Unreadable { name: self.full(&name), why: error.to_string() })?,
        };
        let (mut authorities, wanted) = known(&stored, self.lives, now);
        if wanted {
            authorities.push(make_authority(self.lives, now)?);
            tracing::info!(secret = self.full(&name), "made an authority for the jobs API");
        }
        if authorities != stored {
            let text = serde_json::json!(authorities).to_string();
            self.write(&name, found, BTreeMap::from([("authorities".to_owned(), text)])).await?;
        }
        Ok(authorities)
    }

    /// Brings the Secret for the fronts up to date.
    async fn front(&self, signer: &Authority, bundle: &str, now: i64) -> Result<(), CertificateError> {
        let name = self.places.front();
        let found = self.read(&name).await?;
        let entry = |key: &str| {
            let data = found.as_ref()?.data.as_ref()?;
            String::from_utf8(data.get(key)?.0.clone()).ok()
        };
        let number = |key: &str| entry(key).and_then(|text| text.parse::<i64>().ok());
        let good = entry("tls.key").is_some()
            && number("signer") == Some(signer.since)
            && number("until").is_some_and(|until| !self.is_old(until, now));
        if good && entry("ca.crt").as_deref() == Some(bundle) {
            return Ok(());
        }
        let made = sign(signer, self.lives, FRONT, &self.places.front_hosts(), now)?;
        let until = now.saturating_add(seconds(self.lives.certificate));
        let data = BTreeMap::from([
            ("ca.crt".to_owned(), bundle.to_owned()),
            ("tls.crt".to_owned(), made.certificate),
            ("tls.key".to_owned(), made.key),
            ("signer".to_owned(), signer.since.to_string()),
            ("until".to_owned(), until.to_string()),
        ]);
        self.write(&name, found, data).await
    }

    /// Tells the API server whose certificates the fronts show.
    async fn publish(&self, bundle: &str) -> Result<(), CertificateError> {
        let name = format!("{VERSION}.{GROUP}");
        let api: Api<APIService> = Api::all(self.client.clone());
        let Some(found) = limited("read the APIService", &name, api.get_opt(&name)).await? else {
            tracing::debug!(name, "there is no APIService: the jobs API is not switched on");
            return Ok(());
        };
        let current = found.spec.and_then(|spec| spec.ca_bundle).map(|bundle| bundle.0).unwrap_or_default();
        if current == bundle.as_bytes() {
            return Ok(());
        }
        let patch = serde_json::json!({ "spec": { "caBundle": ByteString(bundle.as_bytes().to_vec()) } });
        let parameters = PatchParams { field_manager: Some(format!("{MANAGER}-jobs-api")), ..PatchParams::default() };
        limited("write the caBundle of the APIService", &name, api.patch(&name, &parameters, &Patch::Merge(patch)))
            .await?;
        Ok(())
    }

    fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.places.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.places.namespace)
    }

    async fn read(&self, name: &str) -> Result<Option<Secret>, CertificateError> {
        Ok(limited("read the Secret", &self.full(name), self.secrets().get_opt(name)).await?)
    }

    /// Writes it unless somebody else has done so since it was read.
    async fn write(
        &self,
        name: &str,
        found: Option<Secret>,
        data: BTreeMap<String, String>,
    ) -> Result<(), CertificateError> {
        let data = data.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes()))).collect();
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let (secrets, full) = (self.secrets(), self.full(name));
        if let Some(found) = found {
            let secret = Secret { data: Some(data), ..found };
            limited("write the Secret", &full, secrets.replace(name, &parameters, &secret)).await?;
        } else {
            let labels = BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned())]);
            let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
            let secret = Secret { metadata, data: Some(data), type_: Some("Opaque".to_owned()), ..Secret::default() };
            limited("make the Secret", &full, secrets.create(&parameters, &secret)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: Lives = Lives { certificate: Duration::from_secs(240) };

    /// At every moment of three lives of an authority: what is signed is signed by one that everybody has had the time to hear
    /// of, and what was signed before is still believed for as long as it is good.
    #[test]
    fn authorities_overlap() {
        let (mut authorities, mut signed): (Vec<Authority>, Vec<(i64, i64)>) = (Vec::new(), Vec::new());
        for now in 0..3 * LIVES.authority() {
            let (alive, wanted) = known(&authorities, LIVES, now);
            authorities = alive;
            if wanted {
                let (certificate, key) = (String::new(), String::new());
                authorities.push(Authority { certificate, key, since: now });
            }
            let by = signer(&authorities, LIVES, now).unwrap().since;
            assert!(by == 0 || now >= by + LIVES.overlap(), "{now}: not everybody knows {by}");
            signed.push((now, by));
            signed.retain(|(at, _)| now < at + seconds(LIVES.certificate));
            for (at, by) in &signed {
                assert!(
                    authorities.iter().any(|one| one.since == *by),
                    "{now}: what was signed at {at} is not believed"
                );
            }
            assert!(authorities.len() <= 3);
        }
    }

    #[test]
    fn what_is_signed_is_believed_by_who_knows_the_authority() {
        let now = jiff::Timestamp::now().as_second();
        let authority = make_authority(LIVES, now).unwrap();
        let places = Places { namespace: "n".to_owned(), operator: "o".to_owned() };
        let signed = sign(&authority, LIVES, FRONT, &places.front_hosts(), now).unwrap();
        let shown = Shown::default();
        assert!(!shown.is_there());
        shown.replace(&signed.certificate, &signed.key).unwrap();
        assert!(shown.is_there());
        let accepted = Accepted::default();
        accepted.replace(&authority.certificate, BTreeSet::from([FRONT.to_owned()])).unwrap();
    }
}
