//! Takes in what jobs report of themselves: `POST /cloudevents` on a port of its own, and on a second one what Kubernetes
//! and Prometheus ask ([`monitor`]).
//!
//! An event is answered with 2xx only when it is durable in the ledger; with 4xx and a reason when it can never be right;
//! with 503 when it cannot be stored now; with 429 when its HTCJob reports too often. Whoever hears nothing, 503 or 429 sends it
//! again: a second one has no effect.

pub(crate) mod door;
pub mod event;
mod idle;
pub mod monitor;
pub(crate) mod port;
mod rate;
pub mod report;
mod tls;
mod wakes;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::http::header::{AUTHORIZATION, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, web};

use crate::api::Wake;
use crate::clock::Clock;
use crate::key::KeyRing;
use crate::ledger::{Ledger, Receipt};
use crate::metrics::Metrics;
use crate::mtls::MtlsError;
use door::Limits;
pub use port::Port;
use port::{Clients, serve};
pub use rate::Rate;
use rate::Rates;
use report::Refusal;
pub use tls::{Certificate, TlsError};
pub(crate) use wakes::Wakes;

/// Most bytes of a body.
pub const BODY: usize = 64 * 1024;
/// Longest time that a body may take.
pub const BODY_TIME: Duration = Duration::from_secs(10);
/// Longest time that the headers may take.
pub(crate) const HEADER_TIME: Duration = Duration::from_secs(5);
/// How long a connection may be idle between two requests.
pub(crate) const IDLE: Duration = Duration::from_secs(15);
/// Longest time that the ledger may take.
const LEDGER_TIME: Duration = Duration::from_secs(10);
/// Jobs report from everywhere; those of a whole site may come from one address.
const LIMITS: Limits = Limits { waiting: 2048, each: 512, known: 0 };
/// Threads of the receiver: TLS is what costs.
const THREADS: usize = 2;
/// What a job waits, in seconds, before it sends again what could not be stored.
const AGAIN: &str = "2";

/// Why a port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The port.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The system's words.
        source: std::io::Error,
    },
    /// The certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The certificates of both sides.
    #[error(transparent)]
    Mtls(#[from] MtlsError),
}

/// What an operator that leads takes events in with.
struct Intake {
    ledger: Ledger,
    clock: Clock,
    wakes: Wakes,
}

/// The receiver. It listens from the start, and refuses with 503 until this operator leads.
#[derive(Clone)]
pub struct Receiver {
    keys: KeyRing,
    intake: Arc<OnceLock<Intake>>,
    rates: Arc<Rates>,
    metrics: Metrics,
}

impl Receiver {
    /// Accepts tokens made with these keys, and counts what comes.
    #[must_use]
    pub fn new(keys: KeyRing, metrics: Metrics) -> Self {
        Self { keys, intake: Arc::default(), rates: Arc::new(Rates::new(Rate::default())), metrics }
    }

    /// Takes in reports of each HTCJob at this rate.
    #[must_use]
    pub fn at_rate(self, rate: Rate) -> Self {
        Self { rates: Arc::new(Rates::new(rate)), ..self }
    }

    /// From now on events are taken in.
    pub fn open(&self, ledger: Ledger, clock: Clock, wake: Wake) {
        let _ = self.intake.set(Intake { ledger, clock, wakes: Wakes::start(wake) });
    }

    /// Serves `POST /cloudevents`.
    pub fn listen(&self, address: SocketAddr, certificate: Option<Certificate>) -> Result<Port, ListenError> {
        let receiver = self.clone();
        let clients = match certificate {
            Some(certificate) => Clients::Encrypted(certificate.config()?),
            None => Clients::Plain,
        };
        serve(address, THREADS, LIMITS, clients, move |app| {
            app.app_data(web::Data::new(receiver.clone()))
                .service(
                    web::resource("/cloudevents")
                        .route(web::post().to(take_in))
                        .default_service(web::to(|| nothing_here(StatusCode::METHOD_NOT_ALLOWED))),
                )
                .default_service(web::to(|| nothing_here(StatusCode::NOT_FOUND)));
        })
    }

    async fn store(&self, request: &HttpRequest, body: web::Payload) -> Result<&'static str, Refusal> {
        let body = match tokio::time::timeout(BODY_TIME, body.to_bytes_limited(BODY)).await {
            Err(_) => return Err(Refusal::TooSlow),
            Ok(Err(_)) => return Err(Refusal::TooLarge),
            Ok(Ok(Err(error))) => {
                tracing::debug!(%error, "the body of an event cannot be read");
                return Err(Refusal::Unreadable);
            }
            Ok(Ok(Ok(body))) => body,
        };
        let header = |name: &str| request.headers().get(name).map(actix_web::http::header::HeaderValue::as_bytes);
        let event = event::parse(header, &body)?;
        let callback = report::read(event, header(AUTHORIZATION.as_str()), &self.keys.current())?;
        let Some(intake) = self.intake.get() else { return Err(Refusal::Unavailable) };
        let uid = callback.uid.clone();
        if !self.rates.admit(&uid, Instant::now()) {
            return Err(Refusal::TooFast);
        }
        let stored = intake.ledger.receive(callback, intake.clock.now());
        match tokio::time::timeout(LEDGER_TIME, stored).await {
            Ok(Ok(Receipt::Stored(name))) => {
                intake.wakes.wake(&uid, name);
                Ok("Stored")
            }
            Ok(Ok(Receipt::Again)) => Ok("Again"),
            Ok(Ok(Receipt::Unknown)) => Err(Refusal::UnknownJob),
            Ok(Ok(Receipt::TooMany)) => Err(Refusal::TooMany),
            Ok(Err(error)) => {
                tracing::warn!(%uid, %error, "what a job reports cannot be stored; it is told to send it again");
                Err(Refusal::Unavailable)
            }
            Err(_) => Err(Refusal::Unavailable),
        }
    }
}

async fn take_in(request: HttpRequest, body: web::Payload, receiver: web::Data<Receiver>) -> HttpResponse {
    match receiver.store(&request, body).await {
        Ok(outcome) => {
            receiver.metrics.callback(outcome);
            HttpResponse::NoContent().finish()
        }
        Err(refusal) => {
            let reason: &'static str = (&refusal).into();
            receiver.metrics.callback(reason);
            tracing::debug!(reason, message = %refusal, peer = ?request.peer_addr(), "an event was refused");
            let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST);
            let mut answer = HttpResponse::build(status);
            if refusal.may_pass() {
                answer.insert_header((RETRY_AFTER, AGAIN));
            }
            answer.json(serde_json::json!({ "reason": reason, "message": refusal.to_string() }))
        }
    }
}

/// An answer with a body: actix-http stops reading the requests of a client that does not read its answers only once it waits
/// with a body.
async fn nothing_here(status: StatusCode) -> HttpResponse {
    HttpResponse::build(status).body("nothing is served here\n")
}

#[cfg(test)]
mod tests {
    use actix_web::rt::net::TcpStream;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::health::Health;
    use crate::key::Keys;

    /// Sends the report of a job of this HTCJob; the whole answer.
    async fn report(address: SocketAddr, keys: &Keys, uid: &str, event: usize) -> String {
        let body = r#"{"name":"zero","jobid":"12.0"}"#;
        let request = format!(
            "POST /cloudevents HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nce-specversion: 1.0\r\nce-type: {}\r\nce-source: x\r\nce-subject: {uid}\r\n\
             ce-id: {event}\r\nContent-Length: {}\r\n\r\n{body}",
            keys.token(&uid.into()),
            report::STARTED,
            body.len()
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_reports_too_often_is_told_to_wait_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("x.db"), &Metrics::default(), &Health::default()).unwrap();
        let keys = Keys::parse("0123456789abcdef0123456789abcdef").unwrap();
        let receiver = Receiver::new(KeyRing::new(keys.clone()), Metrics::default());
        let receiver = receiver.at_rate(Rate { per_second: 1, burst: 2 });
        let (wake, _wakes) = tokio::sync::mpsc::channel(1);
        receiver.open(ledger, Clock::default(), wake);
        let port = receiver.listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
        // Nothing of it is refilled while the test runs.
        assert!(receiver.rates.admit(&"a".into(), Instant::now() + Duration::from_secs(600)));
        let refused = report(port.address, &keys, "a", 1).await;
        assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
        assert!(refused.to_ascii_lowercase().contains("\r\nretry-after: 2\r\n"), "{refused}");
        assert!(refused.contains("\"TooFast\""), "{refused}");
        let others = report(port.address, &keys, "b", 1).await;
        assert!(others.starts_with("HTTP/1.1 404 "), "{others}");
    }
}
