//! The second port: `/healthz`, `/readyz` and `/metrics`. It has no secrets, and no effect.

use std::net::SocketAddr;

use actix_web::http::header::ContentType;
use actix_web::{App, HttpResponse, HttpServer, web};

use super::{ListenError, Port, bind, start};
use crate::{health, metrics};

/// Content type of Prometheus' text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves them.
pub fn listen(address: SocketAddr) -> Result<Port, ListenError> {
    let server = HttpServer::new(|| {
        App::new()
            .route("/healthz", web::get().to(|| async { HttpResponse::Ok().body("ok\n") }))
            .route("/readyz", web::get().to(|| async { readyz() }))
            .route("/metrics", web::get().to(|| async { scrape() }))
    });
    let (address, listener) = bind(address)?;
    let server = limited!(server).workers(1).listen(listener);
    let server = server.map_err(|source| ListenError::Bind { address, source })?;
    Ok(start(address, server.run()))
}

fn readyz() -> HttpResponse {
    let (ready, text) = health::ready();
    let mut answer = if ready { HttpResponse::Ok() } else { HttpResponse::ServiceUnavailable() };
    answer.content_type(ContentType::plaintext()).body(text)
}

fn scrape() -> HttpResponse {
    match metrics::text() {
        Ok(text) => HttpResponse::Ok().content_type(OPEN_METRICS).body(text),
        Err(error) => HttpResponse::InternalServerError().body(error.to_string()),
    }
}
