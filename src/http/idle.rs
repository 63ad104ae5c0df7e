//! Closes connections that no longer bring requests.
//!
//! The timeouts of actix-web have gaps, through which a client without a token could keep a connection for ever
//! (actix-http 3.20, `h1/dispatcher.rs`). The timeout for headers holds only for the first request of a connection.
//! There is none for the rest of a chunked body that is no longer read, and none for a client that does not read.

use std::cell::Cell;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix_web::dev::{Extensions, Service, ServiceRequest};
use actix_web::rt;

use super::{BODY_TIME, HEADER_TIME, IDLE, LEDGER_TIME};

/// Maximum time without a request: for the last one, the pause after it and the next one's headers.
const SILENCE: Duration = BODY_TIME.saturating_add(LEDGER_TIME).saturating_add(IDLE).saturating_add(HEADER_TIME);

/// Watch of one connection.
struct IdleWatch {
    /// When the last headers were complete.
    heard: Rc<Cell<Instant>>,
    /// Task that closes the connection.
    watch: rt::task::JoinHandle<()>,
}

impl Drop for IdleWatch {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Closes the connection of this socket when it brings no requests. For `HttpServiceBuilder::on_connect_ext`.
pub(super) fn watch(socket: &rt::net::TcpStream, data: &mut Extensions) {
    match socket.as_fd().try_clone_to_owned() {
        Ok(socket) => watch_socket(socket.into(), data),
        Err(error) => tracing::warn!(%error, "connection without a time limit"),
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
        tracing::debug!(peer = ?socket.peer_addr(), "idle connection closed");
        // An error means that it has just ended by itself.
        let _ = socket.shutdown(Shutdown::Both);
    });
    data.insert(IdleWatch { heard, watch });
}

/// Records that a request has arrived. For `App::wrap_fn`.
pub(super) fn request_arrived<S: Service<ServiceRequest>>(request: ServiceRequest, rest: &S) -> S::Future {
    if let Some(line) = request.conn_data::<IdleWatch>() {
        line.heard.set(Instant::now());
    }
    rest.call(request)
}
