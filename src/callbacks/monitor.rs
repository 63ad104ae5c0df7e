//! The second port: `/healthz`, `/readyz` and `/metrics`. It serves no secrets, and changes nothing.

use std::net::SocketAddr;

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, guard, web};
use htc_support::health::Health;
use htc_support::metrics::Metrics;

use super::nothing_here;
use crate::http::ListenError;
use crate::http::connection_limiter::ConnectionLimits;
use crate::http::port::Port;
use crate::http::port::{Clients, serve};

/// Content type of Prometheus' text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Kubelet opens one connection for each probe, and Prometheus keeps one.
pub(crate) const LIMITS: ConnectionLimits = ConnectionLimits { waiting: 1024, per_address: 16, known: 0 };

/// Serves health and metrics of one operator.
pub fn listen(address: SocketAddr, health: Health, metrics: Metrics) -> Result<Port, ListenError> {
    serve(address, 1, LIMITS, Clients::Plain, move |app| {
        app.app_data(web::Data::new(health.clone()))
            .app_data(web::Data::new(metrics.clone()))
            .service(get("/healthz").to(|| async { HttpResponse::Ok().body("ok\n") }))
            .service(get("/readyz").to(readyz))
            .service(get("/metrics").to(scrape))
            .default_service(web::to(|| nothing_here(StatusCode::NOT_FOUND)));
    })
}

fn get(path: &str) -> actix_web::Resource {
    web::resource(path).guard(guard::Get())
}

async fn readyz(health: web::Data<Health>) -> HttpResponse {
    let (ready, text) = health.ready();
    let mut answer = if ready { HttpResponse::Ok() } else { HttpResponse::ServiceUnavailable() };
    answer.content_type(ContentType::plaintext()).body(text)
}

async fn scrape(metrics: web::Data<Metrics>) -> HttpResponse {
    match metrics.text() {
        Ok(text) => HttpResponse::Ok().content_type(OPEN_METRICS).body(text),
        Err(error) => HttpResponse::InternalServerError().body(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::rt::net::{TcpSocket, TcpStream};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const OK: &str = "HTTP/1.1 200";

    async fn connect(from: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Returns the beginning of the answer to a probe; `None` if the connection ends without.
    async fn probe(stream: &mut TcpStream) -> Option<String> {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        while !answer.ends_with("\nok\n") {
            answer.push(stream.read_u8().await.ok()?.into());
        }
        Some(answer[..OK.len()].to_owned())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn held_connections_do_not_block_probes_of_other_addresses() {
        let address = "127.0.0.1:0".parse().unwrap();
        let port = listen(address, Health::default(), Metrics::default()).unwrap();
        let mut kept = Vec::new();
        for number in 0..LIMITS.per_address {
            let mut stream = connect("127.0.0.1", port.address).await;
            assert_eq!(probe(&mut stream).await.as_deref(), Some(OK), "{number}");
            kept.push(stream);
        }
        assert_eq!(probe(&mut connect("127.0.0.2", port.address).await).await.as_deref(), Some(OK), "another address");
        let mut newest = connect("127.0.0.1", port.address).await;
        assert_eq!(probe(&mut newest).await.as_deref(), Some(OK), "one too many");
        assert_eq!(probe(&mut kept[0]).await, None, "the oldest has ended for it");
        assert_eq!(probe(&mut kept[1]).await.as_deref(), Some(OK), "no other has");
    }
}
