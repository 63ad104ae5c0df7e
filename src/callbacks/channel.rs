//! What a job fetches with the token of its HTCJob: `GET /cloudevents/UID/…`, while the HTCJob is there.
//!
//! A request that may succeed later is refused with 429 or 503, any other with 4xx.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::header::{AUTHORIZATION, CACHE_CONTROL};
use actix_web::{HttpRequest, HttpResponse, web};
use htc_api::{KeyRef, ObjectName, PullLogin, Use};
use htc_machine::Uid;
use htc_support::consent::{self, SourceError};
use htc_support::fair_limiter::FairLimiter;
use htc_support::registry_login::{Login, LoginError};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use parking_lot::Mutex;

use super::rate::Rate;
use super::report::{bearer, uid};
use super::{Receiver, refuse};
use crate::http::LEDGER_TIME;

/// Pattern of the paths.
pub(super) const PATH: &str = "/cloudevents/{uid}/{wanted:.*}";
/// Requests of the jobs of one HTCJob.
pub(super) const RATE: Rate = Rate { per_second: 200, burst: 2_000 };
/// Time that a Secret is not read again: many jobs begin at once.
const FRESH: Duration = Duration::from_secs(10);
/// Maximum number of Secrets in memory.
const SHELF: usize = 64;
/// The same for one namespace.
const SHELF_OF_A_NAMESPACE: usize = 16;
/// Maximum number of Secrets that are read from the API server at a time.
const READERS: usize = 8;
/// The same for one namespace.
const READERS_OF_A_NAMESPACE: usize = 4;

/// What a job may fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    /// Content of a key of a Secret that `spec.files` or `spec.env` names: `secrets/NAME/KEY`.
    SecretKey(KeyRef),
    /// Name and password for the registry of the image, one on each line: `login`.
    Login,
}

/// Reason why a job gets nothing. Its name, one word, is in the answer.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
enum FetchRefusal {
    /// No path that this operator serves.
    #[error("nothing is served here")]
    UnknownPath,
    /// No token.
    #[error("there is no header `Authorization: Bearer TOKEN`")]
    NoToken,
    /// The token of another HTCJob, or an unknown one.
    #[error("the token does not belong to the HTCJob")]
    WrongToken,
    /// The HTCJob is gone, or does not name it.
    #[error("the HTCJob is gone, or does not use this")]
    NotOfHTCJob,
    /// The jobs of the HTCJob fetch too often.
    #[error("the jobs of this HTCJob fetch too often; try again later")]
    TooFast,
    /// The content is another one than when the HTCJob was submitted.
    #[error("the key {:?} of the Secret {} has changed since the HTCJob was submitted: create a new HTCJob", .0.key, .0.name)]
    Changed(KeyRef),
    /// The Secret cannot be used any more.
    #[error(transparent)]
    Source(#[from] Arc<SourceError>),
    /// The Secrets have no login for the image any more.
    #[error("no Secret of spec.imagePullSecrets has a login for the image any more")]
    NoLogin,
    /// A Secret has no login that can be used.
    #[error("a Secret of spec.imagePullSecrets {0}")]
    Login(#[from] LoginError),
    /// It is not known now.
    #[error("it cannot be read now; try again")]
    Unavailable,
}

impl Wanted {
    fn parse(path: &str) -> Option<Self> {
        if path == "login" {
            return Some(Self::Login);
        }
        let (name, key) = path.strip_prefix("secrets/")?.split_once('/')?;
        Some(Self::SecretKey(KeyRef { name: name.to_owned(), key: key.to_owned() }))
    }
}

impl FetchRefusal {
    fn status(&self) -> u16 {
        match self {
            Self::NoToken => 401,
            Self::WrongToken => 403,
            Self::UnknownPath | Self::NotOfHTCJob => 404,
            Self::Changed(_) => 409,
            Self::NoLogin | Self::Login(_) => 410,
            Self::Unavailable => 503,
            Self::Source(error) => match **error {
                SourceError::Api(_) => 503,
                SourceError::Forbidden { .. } | SourceError::Missing { .. } | SourceError::NoConsent(_) => 410,
            },
            Self::TooFast => 429,
        }
    }
}

/// Answers the request of a job.
pub(super) async fn give(request: HttpRequest, receiver: web::Data<Receiver>) -> HttpResponse {
    match receiver.fetch(&request).await {
        Ok(content) => HttpResponse::Ok()
            .insert_header((CACHE_CONTROL, "no-store"))
            .content_type("application/octet-stream")
            .body(content),
        Err(refusal) => {
            let (status, reason): (u16, &'static str) = (refusal.status(), (&refusal).into());
            tracing::debug!(reason, message = %refusal, peer = ?request.peer_addr(), "fetch refused");
            refuse(status, matches!(status, 429 | 503), reason, &refusal)
        }
    }
}

impl Receiver {
    async fn fetch(&self, request: &HttpRequest) -> Result<Vec<u8>, FetchRefusal> {
        let part = |name| request.match_info().get(name).ok_or(FetchRefusal::UnknownPath);
        let uid = uid(part("uid")?).ok_or(FetchRefusal::UnknownPath)?;
        let wanted = Wanted::parse(part("wanted")?).ok_or(FetchRefusal::UnknownPath)?;
        let token = request.headers().get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        if !self.keys.current().verify(&uid, token.ok_or(FetchRefusal::NoToken)?) {
            return Err(FetchRefusal::WrongToken);
        }
        if !self.fetch_rates.admit(&uid, Instant::now()) {
            return Err(FetchRefusal::TooFast);
        }
        match wanted {
            Wanted::SecretKey(key) => self.secret_key(&uid, key).await,
            Wanted::Login => self.login(&uid).await,
        }
    }

    async fn login(&self, uid: &Uid) -> Result<Vec<u8>, FetchRefusal> {
        let intake = self.intake.get().ok_or(FetchRefusal::Unavailable)?;
        let pull = tokio::time::timeout(LEDGER_TIME, intake.ledger.pull_login(uid)).await;
        let Ok(Ok(pull)) = pull else { return Err(FetchRefusal::Unavailable) };
        let (namespace, PullLogin { repository, secrets }) = pull.ok_or(FetchRefusal::NotOfHTCJob)?;
        for name in secrets {
            let name = ObjectName { namespace: namespace.clone(), name };
            let secret = intake.secrets.read(Use::ImagePull, name).await?;
            if let Some(login) = Login::in_secret(&secret, &repository)? {
                return Ok(login.lines().into_bytes());
            }
        }
        Err(FetchRefusal::NoLogin)
    }

    async fn secret_key(&self, uid: &Uid, key: KeyRef) -> Result<Vec<u8>, FetchRefusal> {
        let intake = self.intake.get().ok_or(FetchRefusal::Unavailable)?;
        let seal = tokio::time::timeout(LEDGER_TIME, intake.ledger.seal(uid, &key)).await;
        let Ok(Ok(seal)) = seal else { return Err(FetchRefusal::Unavailable) };
        let (namespace, seal) = seal.ok_or(FetchRefusal::NotOfHTCJob)?;
        let secret = intake.secrets.read(Use::SecretFiles, ObjectName { namespace, name: key.name.clone() }).await?;
        match secret.data.as_ref().and_then(|data| data.get(&key.key)) {
            Some(ByteString(content)) if self.keys.current().is_sealed(uid, content, &seal) => Ok(content.clone()),
            Some(_) | None => Err(FetchRefusal::Changed(key)),
        }
    }
}

/// Content of a Secret, or why it cannot be read.
type Read = Result<Arc<Secret>, Arc<SourceError>>;

/// Reads Secrets, and has those that were read a moment ago.
pub(super) struct Secrets {
    client: Client,
    shelf: Mutex<HashMap<(Use, ObjectName), (Instant, Read)>>,
    readers: FairLimiter,
}

impl Secrets {
    pub(super) fn new(client: Client) -> Self {
        Self { client, shelf: Mutex::default(), readers: FairLimiter::never_slow(READERS, READERS_OF_A_NAMESPACE) }
    }

    async fn read(&self, wanted: Use, name: ObjectName) -> Result<Arc<Secret>, FetchRefusal> {
        let key = (wanted, name);
        if let Some(fresh) = self.fresh(&key) {
            return Ok(fresh?);
        }
        let name = &key.1;
        let _permit = self.readers.acquire(name.namespace.as_str()).await.ok_or(FetchRefusal::Unavailable)?;
        // Another request may have read it meanwhile.
        if let Some(fresh) = self.fresh(&key) {
            return Ok(fresh?);
        }
        let read = consent::read::<Secret>(&self.client, wanted, &name.namespace, &name.name).await;
        let read = read.map(Arc::new).map_err(Arc::new);
        let mut kept = self.shelf.lock();
        kept.retain(|_, (at, _)| at.elapsed() < FRESH);
        let of_namespace = |(_, other): &(Use, ObjectName)| other.namespace == name.namespace;
        let is_full = kept.len() >= SHELF;
        if is_full || kept.keys().filter(|other| of_namespace(other)).count() >= SHELF_OF_A_NAMESPACE {
            let others = kept.iter().filter(|(other, _)| is_full || of_namespace(other));
            if let Some(oldest) = others.min_by_key(|(_, (at, _))| *at).map(|(other, _)| other.clone()) {
                kept.remove(&oldest);
            }
        }
        kept.insert(key, (Instant::now(), read.clone()));
        Ok(read?)
    }

    fn fresh(&self, key: &(Use, ObjectName)) -> Option<Read> {
        let kept = self.shelf.lock();
        kept.get(key).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, read)| read.clone())
    }
}
