//! The second port: `/healthz`, `/readyz` and `/metrics`. It has no secrets, and no effect.

use std::net::SocketAddr;

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::{App, HttpResponse, HttpServer, guard, web};

use super::{ListenError, Port, bind, idle, nothing_here, start};
use crate::health::Health;
use crate::metrics::Metrics;

/// Content type of Prometheus' text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Most connections of one address: kubelet opens one for each probe, and Prometheus keeps one.
const EACH: usize = 16;

/// Serves those of one operator.
pub fn listen(address: SocketAddr, health: Health, metrics: Metrics) -> Result<Port, ListenError> {
    let server = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(health.clone()))
            .app_data(web::Data::new(metrics.clone()))
            .wrap_fn(idle::request_arrived)
            .service(get("/healthz").to(|| async { HttpResponse::Ok().body("ok\n") }))
            .service(get("/readyz").to(readyz))
            .service(get("/metrics").to(scrape))
            .default_service(web::to(|| nothing_here(StatusCode::NOT_FOUND)))
    });
    let (address, listener) = bind(address)?;
    let server = limited!(server).on_connect(idle::watch_peers(EACH)).workers(1).listen(listener);
    let server = server.map_err(|source| ListenError::Bind { address, source })?;
    Ok(start(address, server.run()))
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
    use std::time::Duration;

    use actix_web::rt::net::{TcpSocket, TcpStream};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const OK: &str = "HTTP/1.1 200";

    async fn connect(from: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// The beginning of the answer to a probe; none if the connection ends without.
    async fn probe(stream: &mut TcpStream) -> Option<String> {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.ok()?;
        let mut answer = [0; OK.len()];
        stream.read_exact(&mut answer).await.ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_holds_connections_keeps_nobody_else_from_the_probes() {
        let address = "127.0.0.1:0".parse().unwrap();
        let port = listen(address, Health::default(), Metrics::default()).unwrap();
        let mut kept = Vec::new();
        for number in 0..EACH {
            let mut stream = connect("127.0.0.1", port.address).await;
            assert_eq!(probe(&mut stream).await.as_deref(), Some(OK), "{number}");
            kept.push(stream);
        }
        assert_eq!(probe(&mut connect("127.0.0.1", port.address).await).await, None, "one too many");
        assert_eq!(probe(&mut connect("127.0.0.2", port.address).await).await.as_deref(), Some(OK), "somebody else");
        kept.pop();
        let again = async { while probe(&mut connect("127.0.0.1", port.address).await).await.is_none() {} };
        tokio::time::timeout(Duration::from_secs(30), again).await.expect("a place that was given back");
    }
}
