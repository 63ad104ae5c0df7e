//! Ends connections that no longer bring requests.
//!
//! actix-web's own limits of time have gaps, through which a client without a token could keep a connection for ever
//! (actix-http 3.20, `h1/dispatcher.rs`): the time for headers holds only for the first request of a connection, and the
//! rest of a body in chunks that nobody reads any more is waited for without end; so is a client that does not read.
//!
//! On the monitor's port, connections beyond a number for each address end at once, so that one pod cannot hold all.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_tls::accept::rustls_0_23::TlsStream;
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

/// How many connections each address has.
#[derive(Clone, Default)]
struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One of a peer's connections, for as long as it lasts.
struct PeerSlot {
    peers: Peers,
    address: IpAddr,
}

impl Peers {
    /// None if this address has `most` connections already.
    fn slot(&self, address: IpAddr, most: usize) -> Option<PeerSlot> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = peers.entry(address).or_default();
        if *connections >= most {
            return None;
        }
        *connections += 1;
        Some(PeerSlot { peers: self.clone(), address })
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let mut peers = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = peers.get(&self.address).map_or(0, |connections| connections.saturating_sub(1));
        if left > 0 {
            peers.insert(self.address, left);
        } else {
            peers.remove(&self.address);
        }
    }
}

/// For `HttpServer::on_connect`.
pub(super) fn watch(io: &dyn Any, data: &mut Extensions) {
    match socket(io) {
        Ok(socket) => watch_socket(socket, data),
        Err(error) => tracing::warn!(%error, "a connection has no limit of time"),
    }
}

/// The same, for at most `most` connections of each address.
pub(super) fn watch_peers(most: usize) -> impl Fn(&dyn Any, &mut Extensions) + Clone + Send + Sync + 'static {
    let peers = Peers::default();
    move |io, data| {
        let socket = match socket(io) {
            Ok(socket) => socket,
            Err(error) => return tracing::warn!(%error, "a connection has no limits"),
        };
        // Without an address it has ended already.
        let slot = socket.peer_addr().ok().and_then(|peer| peers.slot(peer.ip().to_canonical(), most));
        let Some(slot) = slot else {
            tracing::debug!(peer = ?socket.peer_addr(), most, "one connection too many of an address is ended");
            let _ = socket.shutdown(Shutdown::Both);
            return;
        };
        data.insert(slot);
        watch_socket(socket, data);
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

/// A second handle of the connection's socket.
fn socket(io: &dyn Any) -> std::io::Result<TcpStream> {
    let plain = io.downcast_ref::<rt::net::TcpStream>();
    let stream = plain.or_else(|| io.downcast_ref::<TlsStream<rt::net::TcpStream>>().map(|stream| stream.get_ref().0));
    let stream = stream.ok_or(std::io::ErrorKind::Unsupported)?;
    Ok(stream.as_fd().try_clone_to_owned()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_so_many_places_and_gets_them_back() {
        let peers = Peers::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse::<IpAddr>().unwrap());
        let mut taken: Vec<PeerSlot> = (0..3).filter_map(|_| peers.slot(one, 2)).collect();
        assert_eq!(taken.len(), 2);
        let others = peers.slot(other, 2);
        assert!(others.is_some() && peers.slot(one, 2).is_none());
        taken.pop();
        taken.extend(peers.slot(one, 2));
        assert!(taken.len() == 2 && peers.slot(one, 2).is_none());
        drop((taken, others));
        assert!(peers.0.lock().unwrap().is_empty(), "nothing is kept of who is gone");
    }
}
