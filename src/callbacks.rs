//! Receives what jobs report of themselves, `POST /cloudevents`, and gives them what they may fetch ([`channel`]), on a
//! port of its own. A second port answers Kubernetes and Prometheus ([`monitor`]).
//!
//! The answer is 2xx only when the event is durable in the ledger; 4xx and a reason when it can never be right; 503
//! when it cannot be stored now; 429 when its HTCJob reports too often. After no answer, 503 or 429 the sender sends
//! it again: a second copy has no effect.

mod channel;
pub mod event;
pub mod monitor;
mod rate;
pub mod report;
mod wakes;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use actix_web::http::StatusCode;
use actix_web::http::header::{AUTHORIZATION, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, web};
use htc_ledger::{Ledger, Receipt};
use htc_submit::job_token::KeyRing;
use htc_support::clock::Clock;
use htc_support::kubernetes::Wake;
use htc_support::metrics::Metrics;
use kube::Client;

use crate::http::connection_limiter::ConnectionLimits;
use crate::http::port::{Clients, Port, serve};
use crate::http::tls::Certificate;
use crate::http::{BODY_TIME, LEDGER_TIME, ListenError};
use channel::Secrets;
pub use rate::Rate;
use rate::Rates;
use report::ReportRefusal;
pub(crate) use wakes::Wakes;

/// Maximum bytes of a body.
pub const BODY: usize = 64 * 1024;
/// Jobs report from everywhere; those of a whole site may come from one address.
const LIMITS: ConnectionLimits = ConnectionLimits { waiting: 2048, per_address: 512, known: 0 };
/// Number of threads of the receiver: TLS needs most of the time.
const THREADS: usize = 2;
/// `Retry-After` in seconds when an event could not be stored.
const AGAIN: &str = "2";

/// What the leader needs to store events.
struct Intake {
    ledger: Ledger,
    clock: Clock,
    wakes: Wakes,
    secrets: Secrets,
}

/// The receiver. It listens from the start, and answers 503 until this operator leads.
#[derive(Clone)]
pub struct Receiver {
    keys: KeyRing,
    intake: Arc<OnceLock<Intake>>,
    rates: Arc<Rates>,
    /// Limits what the jobs of an HTCJob fetch.
    fetch_rates: Arc<Rates>,
    metrics: Metrics,
}

impl Receiver {
    /// Returns a receiver that accepts tokens made with these keys, and counts events.
    #[must_use]
    pub fn new(keys: KeyRing, metrics: Metrics) -> Self {
        let rates = |rate| Arc::new(Rates::new(rate));
        Self { keys, intake: Arc::default(), rates: rates(Rate::default()), fetch_rates: rates(channel::RATE), metrics }
    }

    /// Limits the reports of each HTCJob to this rate.
    #[must_use]
    pub fn at_rate(self, rate: Rate) -> Self {
        Self { rates: Arc::new(Rates::new(rate)), ..self }
    }

    /// Starts to accept events, and to give jobs what they may fetch.
    pub fn open(&self, ledger: Ledger, clock: Clock, wake: Wake, client: Client) {
        let _ = self.intake.set(Intake { ledger, clock, wakes: Wakes::start(wake), secrets: Secrets::new(client) });
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
                .service(
                    web::resource(channel::PATH)
                        .route(web::get().to(channel::give))
                        .default_service(web::to(|| nothing_here(StatusCode::METHOD_NOT_ALLOWED))),
                )
                .default_service(web::to(|| nothing_here(StatusCode::NOT_FOUND)));
        })
    }

    async fn store(&self, request: &HttpRequest, body: web::Payload) -> Result<&'static str, ReportRefusal> {
        let body = match tokio::time::timeout(BODY_TIME, body.to_bytes_limited(BODY)).await {
            Err(_) => return Err(ReportRefusal::TooSlow),
            Ok(Err(_)) => return Err(ReportRefusal::TooLarge),
            Ok(Ok(Err(error))) => {
                tracing::debug!(%error, "callback body unreadable");
                return Err(ReportRefusal::Unreadable);
            }
            Ok(Ok(Ok(body))) => body,
        };
        let header = |name: &str| request.headers().get(name).map(actix_web::http::header::HeaderValue::as_bytes);
        let event = event::parse(header, &body)?;
        let callback = report::read(event, header(AUTHORIZATION.as_str()), &self.keys.current())?;
        let Some(intake) = self.intake.get() else { return Err(ReportRefusal::Unavailable) };
        let uid = callback.uid.clone();
        if !self.rates.admit(&uid, Instant::now()) {
            return Err(ReportRefusal::TooFast);
        }
        let stored = intake.ledger.receive(callback, intake.clock.now());
        match tokio::time::timeout(LEDGER_TIME, stored).await {
            Ok(Ok(Receipt::Stored(name))) => {
                intake.wakes.wake(&uid, name);
                Ok("Stored")
            }
            Ok(Ok(Receipt::Duplicate)) => Ok("Again"),
            Ok(Ok(Receipt::Unknown)) => Err(ReportRefusal::UnknownJob),
            Ok(Ok(Receipt::TooMany)) => Err(ReportRefusal::TooMany),
            Ok(Err(error)) => {
                tracing::warn!(%uid, %error, "callback not stored, the job sends it again");
                Err(ReportRefusal::Unavailable)
            }
            Err(_) => Err(ReportRefusal::Unavailable),
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
            tracing::debug!(reason, message = %refusal, peer = ?request.peer_addr(), "callback refused");
            refuse(refusal.status(), refusal.may_pass(), reason, &refusal)
        }
    }
}

/// Returns the answer to a refused request. `may_pass`: the same request may succeed later.
fn refuse(status: u16, may_pass: bool, reason: &'static str, message: &impl std::fmt::Display) -> HttpResponse {
    let mut answer = HttpResponse::build(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST));
    if may_pass {
        answer.insert_header((RETRY_AFTER, AGAIN));
    }
    answer.json(serde_json::json!({ "reason": reason, "message": message.to_string() }))
}

/// Returns an answer with a body: actix-http stops reading the requests of a client that does not read its answers
/// only once an answer with a body is pending.
async fn nothing_here(status: StatusCode) -> HttpResponse {
    HttpResponse::build(status).body("nothing is served here\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actix_web::rt::net::TcpStream;
    use htc_submit::job_token::TokenKeys;
    use htc_support::health::Health;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Sends the report of a job of this HTCJob. Returns the whole answer.
    async fn report(address: SocketAddr, keys: &TokenKeys, uid: &str, event: usize) -> String {
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
    async fn reports_over_the_rate_get_429_and_others_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("x.db"), &Metrics::default(), &Health::default()).unwrap();
        let keys = TokenKeys::parse("0123456789abcdef0123456789abcdef").unwrap();
        let receiver = Receiver::new(KeyRing::new(keys.clone()), Metrics::default());
        let receiver = receiver.at_rate(Rate { per_second: 1, burst: 2 });
        let (wake, _wakes) = tokio::sync::mpsc::channel(1);
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        receiver.open(ledger, Clock::default(), wake, client);
        let port = receiver.listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
        // The bucket is not refilled while the test runs.
        assert!(receiver.rates.admit(&"a".into(), Instant::now() + Duration::from_secs(600)));
        let refused = report(port.address, &keys, "a", 1).await;
        assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
        assert!(refused.to_ascii_lowercase().contains("\r\nretry-after: 2\r\n"), "{refused}");
        assert!(refused.contains("\"TooFast\""), "{refused}");
        let others = report(port.address, &keys, "b", 1).await;
        assert!(others.starts_with("HTTP/1.1 404 "), "{others}");
    }
}
