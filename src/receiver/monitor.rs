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
    let server = limited!(server).workers(1).listen(listener);
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
