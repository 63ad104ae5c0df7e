//! Certificate authority and certificates of the jobs API. The leader renews them. The authority is in a Secret that
//! only the leader reads, the fronts' certificate in another one, and the leader's own in memory. All are renewed
//! long before they expire. A new authority is published everywhere before it signs anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use htc_api::htcproc::{GROUP, VERSION};
use htc_support::kubernetes::{ApiError, FIELD_MANAGER, with_timeout};
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

use crate::http::mtls::{MtlsError, ServerCertificate, TrustedClients};

/// Name of the fronts in their certificate: the only clients that the leader answers.
pub const FRONT: &str = "htc-operator-jobs-api-front";
/// Lifetime of the authority, in lifetimes of a certificate.
const AUTHORITY_LIVES: u32 = 12;
/// A new authority signs once it has been published for a certificate's lifetime divided by this.
const OVERLAP: u32 = 24;
/// Interval between two checks that the APIService has the authority: the registration of the API waits for that.
const REGISTERED: Duration = Duration::from_secs(3);
/// Maximum interval between two checks of everything.
const EVERY: Duration = Duration::from_secs(60);

/// Reason why the certificates cannot be renewed.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A request to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A certificate cannot be created.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A Secret contains something unexpected.
    #[error(
        "the Secret {name} has something else in it than the operator wrote: {why}; delete it, and the operator makes a new one"
    )]
    Unreadable {
        /// Name of the Secret.
        name: String,
        why: String,
    },
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] MtlsError),
}

/// One authority, as stored in the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Authority {
    certificate: String,
    key: String,
    /// Creation time, in Unix seconds.
    since: i64,
}

/// A signed certificate with its key.
struct Signed {
    certificate: String,
    key: String,
}

/// Lifetimes of certificates. The others are derived from one.
#[derive(Clone, Copy, Debug)]
pub struct CertificateLifetimes {
    /// Lifetime of a certificate.
    pub certificate: Duration,
}

impl CertificateLifetimes {
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

/// Returns the authorities that have not expired, and whether a new one is due: the newest has reached half of its
/// lifetime.
fn known(authorities: &[Authority], lives: CertificateLifetimes, now: i64) -> (Vec<Authority>, bool) {
    let alive: Vec<Authority> =
        authorities.iter().filter(|one| now < one.since.saturating_add(lives.authority())).cloned().collect();
    let newest = alive.last().map(|one| one.since);
    let wanted = newest.is_none_or(|since| now >= since.saturating_add(lives.authority() / 2));
    (alive, wanted)
}

/// Returns the authority that signs: the newest that has been published for long enough ([`OVERLAP`]), or else the
/// oldest.
fn signer(authorities: &[Authority], lives: CertificateLifetimes, now: i64) -> Option<&Authority> {
    let heard_of = |one: &&Authority| now >= one.since.saturating_add(lives.overlap());
    authorities.iter().rfind(heard_of).or_else(|| authorities.first())
}

fn date(at: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Tolerated difference between clocks, in seconds.
const SKEW: i64 = 300;

fn make_authority(lives: CertificateLifetimes, now: i64) -> Result<Authority, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = authority_params(lives, now)?.self_signed(&key)?;
    Ok(Authority { certificate: certificate.pem(), key: key.serialize_pem(), since: now })
}

fn authority_params(lives: CertificateLifetimes, since: i64) -> Result<CertificateParams, rcgen::Error> {
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

fn sign(
    authority: &Authority,
    lives: CertificateLifetimes,
    name: &str,
    hosts: &[String],
    now: i64,
) -> Result<Signed, rcgen::Error> {
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

/// Names of the jobs API's objects.
#[derive(Clone, Debug)]
pub struct JobsApiNames {
    /// The operator's namespace.
    pub namespace: String,
    /// The operator's name: prefix of the names of the Secrets and Services.
    pub operator: String,
}

impl JobsApiNames {
    /// Returns the name of the Secret with the authorities.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}-jobs-api-authority", self.operator)
    }

    /// Returns the name of the Secret for the fronts.
    #[must_use]
    pub fn front(&self) -> String {
        format!("{}-jobs-api-front", self.operator)
    }

    /// Returns the DNS names of the fronts' Service.
    fn front_hosts(&self) -> Vec<String> {
        let service = format!("{}-jobs-api", self.operator);
        vec![format!("{service}.{}.svc", self.namespace), format!("{service}.{}", self.namespace)]
    }

    /// Returns the DNS name of the leader's Service.
    #[must_use]
    pub fn leader_host(&self) -> String {
        format!("{}-jobs-api-leader.{}.svc", self.operator, self.namespace)
    }
}

/// Renews the certificates.
pub struct CertificateKeeper {
    client: Client,
    places: JobsApiNames,
    lives: CertificateLifetimes,
    certificate: ServerCertificate,
    trusted_clients: TrustedClients,
    /// Expiry of the leader's own certificate, and the authority that has signed it.
    own: Option<(i64, i64)>,
    /// All current authorities, as PEM.
    bundle: Option<String>,
}

impl CertificateKeeper {
    /// Returns a keeper that sets the certificate of the leader's port, and the clients that it trusts.
    #[must_use]
    pub fn new(
        client: Client,
        places: JobsApiNames,
        lives: CertificateLifetimes,
        shown: ServerCertificate,
        accepted: TrustedClients,
    ) -> Self {
        Self { client, places, lives, certificate: shown, trusted_clients: accepted, own: None, bundle: None }
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
                        tracing::warn!(%error, "certificates of the jobs API not renewed, retrying");
                        told = words;
                    }
                }
            }
            tokio::time::sleep(REGISTERED.min(self.lives.every())).await;
        }
    }

    /// Checks everything when that is due; a failed check stays due. Otherwise checks only the APIService, which may
    /// be registered anew at any time.
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
        // The authority is published before it signs anything.
        self.publish(&bundle).await?;
        let Some(signer) = signer(&authorities, self.lives, now) else { return Ok(()) };
        self.front(signer, &bundle, now).await?;
        self.trusted_clients.replace(&bundle, BTreeSet::from([FRONT.to_owned()]))?;
        if self.own.is_none_or(|(until, by)| self.is_old(until, now) || by != signer.since) {
            let host = self.places.leader_host();
            let own = sign(signer, self.lives, &host, std::slice::from_ref(&host), now)?;
            self.certificate.replace(&own.certificate, &own.key)?;
            self.own = Some((now.saturating_add(seconds(self.lives.certificate)), signer.since));
        }
        Ok(())
    }

    fn is_old(&self, until: i64, now: i64) -> bool {
        now >= until.saturating_sub(seconds(self.lives.certificate) / 2)
    }

    /// Returns the authorities in the Secret, with a new one if that is due.
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
            tracing::info!(secret = self.full(&name), "CA of the jobs API created");
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

    /// Writes the authorities of the fronts' certificates to the APIService.
    async fn publish(&self, bundle: &str) -> Result<(), CertificateError> {
        let name = format!("{VERSION}.{GROUP}");
        let api: Api<APIService> = Api::all(self.client.clone());
        let Some(found) = with_timeout("read the APIService", &name, api.get_opt(&name)).await? else {
            tracing::debug!(name, "no APIService, jobs API not registered");
            return Ok(());
        };
        let current = found.spec.and_then(|spec| spec.ca_bundle).map(|bundle| bundle.0).unwrap_or_default();
        if current == bundle.as_bytes() {
            return Ok(());
        }
        let patch = serde_json::json!({ "spec": { "caBundle": ByteString(bundle.as_bytes().to_vec()) } });
        let parameters =
            PatchParams { field_manager: Some(format!("{FIELD_MANAGER}-jobs-api")), ..PatchParams::default() };
        with_timeout(
            "write the caBundle of the APIService",
            &name,
            api.patch(&name, &parameters, &Patch::Merge(patch)),
        )
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
        Ok(with_timeout("read the Secret", &self.full(name), self.secrets().get_opt(name)).await?)
    }

    /// Writes the Secret, unless it has changed since it was read.
    async fn write(
        &self,
        name: &str,
        found: Option<Secret>,
        data: BTreeMap<String, String>,
    ) -> Result<(), CertificateError> {
        let data = data.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes()))).collect();
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let (secrets, full) = (self.secrets(), self.full(name));
        if let Some(found) = found {
            let secret = Secret { data: Some(data), ..found };
            with_timeout("write the Secret", &full, secrets.replace(name, &parameters, &secret)).await?;
        } else {
            let labels = BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), FIELD_MANAGER.to_owned())]);
            let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
            let secret = Secret { metadata, data: Some(data), type_: Some("Opaque".to_owned()), ..Secret::default() };
            with_timeout("make the Secret", &full, secrets.create(&parameters, &secret)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: CertificateLifetimes = CertificateLifetimes { certificate: Duration::from_secs(240) };

    /// At every moment of three lifetimes of an authority: a signature is made by an authority that has been
    /// published for long enough, and earlier signatures are trusted until they expire.
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
                    "{now}: the certificate signed at {at} is not trusted"
                );
            }
            assert!(authorities.len() <= 3);
        }
    }

    #[test]
    fn signed_certificate_is_trusted_by_holders_of_the_authority() {
        let now = jiff::Timestamp::now().as_second();
        let authority = make_authority(LIVES, now).unwrap();
        let places = JobsApiNames { namespace: "n".to_owned(), operator: "o".to_owned() };
        let signed = sign(&authority, LIVES, FRONT, &places.front_hosts(), now).unwrap();
        let shown = ServerCertificate::default();
        assert!(!shown.is_there());
        shown.replace(&signed.certificate, &signed.key).unwrap();
        assert!(shown.is_there());
        let accepted = TrustedClients::default();
        accepted.replace(&authority.certificate, BTreeSet::from([FRONT.to_owned()])).unwrap();
    }
}
