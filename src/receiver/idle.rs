//! Ends connections that no longer bring requests.
//!
//! actix-web's own limits of time have gaps, through which a client without a token could keep a connection for ever
//! (actix-http 3.20, `h1/dispatcher.rs`): the time for headers holds only for the first request of a connection, and the
//! rest of a body in chunks that nobody reads any more is waited for without end; so is a client that does not read.

use std::cell::Cell;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix_web::dev::{Extensions, Service, ServiceRequest};
use actix_web::rt;

use super::{BODY_TIME, HEADER_TIME, IDLE, LEDGER_TIME};

/// How long a connection may bring no request: what the last one, the pause after it and the next one's headers may take.
const SILENCE: Duration = BODY_TIME.saturating_add(LEDGER_TIME).saturating_add(IDLE).saturating_add(HEADER_TIME);

/// What is known of a connection, for as long as it lasts.
struct Line {
    /// When the last headers were complete.
    heard: Rc<Cell<Instant>>,
    /// Ends it.
    watch: rt::task::JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Ends the connection of this socket when it brings no requests. For `HttpServiceBuilder::on_connect_ext`.
pub(super) fn watch(socket: &rt::net::TcpStream, data: &mut Extensions) {
    match socket.as_fd().try_clone_to_owned() {
        Ok(socket) => watch_socket(socket.into(), data),
        Err(error) => tracing::warn!(%error, "a connection has no limit of time"),
    }
}

fn watch_socket(socket: TcpStream, data: &mut Extensions) {
    let heard = Rc::new(Cell::new(Instant::now()));
    let watched = Rc::clone(&heard);
    let watch = rt::spawn(async move {
        loop {
            let left = SILENCE.saturating_sub(watched.get().elapsed());
            if left.is_zero() {
                break;
            }
            rt::time::sleep(left).await;
        }
        tracing::debug!(peer = ?socket.peer_addr(), "a connection brings no requests, and is ended");
        // An error means that it has just ended by itself.
        let _ = socket.shutdown(Shutdown::Both);
    });
    data.insert(Line { heard, watch });
}

/// For `App::wrap_fn`: a request has come.
pub(super) fn request_arrived<S: Service<ServiceRequest>>(request: ServiceRequest, rest: &S) -> S::Future {
    if let Some(line) = request.conn_data::<Line>() {
        line.heard.set(Instant::now());
    }
    rest.call(request)
}
