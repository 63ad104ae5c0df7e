//! The second port: `/healthz`, `/readyz` and `/metrics`. It has no secrets, and no effect.

use std::net::SocketAddr;

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::{App, HttpResponse, HttpServer, guard, web};

use super::{ListenError, Port, bind, nothing_here, silence, start};
use crate::{health, metrics};

/// Content type of Prometheus' text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves them.
pub fn listen(address: SocketAddr) -> Result<Port, ListenError> {
    let server = HttpServer::new(|| {
        App::new()
            .wrap_fn(silence::broken)
            .service(get("/healthz").to(|| async { HttpResponse::Ok().body("ok\n") }))
            .service(get("/readyz").to(|| async { readyz() }))
            .service(get("/metrics").to(|| async { scrape() }))
            .default_service(web::to(|| nothing_here(StatusCode::NOT_FOUND)))
    });
    let (address, listener) = bind(address)?;
    let server = limited!(server).workers(1).listen(listener);
    let server = server.map_err(|source| ListenError::Bind { address, source })?;
    Ok(start(address, server.run()))
}

fn get(path: &str) -> actix_web::Resource {
    web::resource(path).guard(guard::Get())
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
