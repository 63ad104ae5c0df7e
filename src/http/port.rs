//! The only way to listen: every port of every program is served by [`serve`], so that each has the same limits
//! (`src/order.rs` checks that).
//!
//! actix-web's own `listen_rustls` allows 256 handshakes at once for each thread, and accepts no connection while
//! these are silent. So connections are accepted by actix-server, pass the `ConnectionLimiter`, make their
//! handshake, and only then reach actix-http.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;

use actix_http::{HttpService, Protocol};
use actix_server::{Server, ServerHandle};
use actix_service::{IntoServiceFactory as _, Service as _, ServiceFactory, ServiceFactoryExt as _};
use actix_service::{fn_factory, fn_service, map_config};
use actix_web::App;
use actix_web::dev::{AppConfig, Extensions};
use actix_web::web::ServiceConfig;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{HEADER_TIME, IDLE, ListenError, idle};
use crate::http::connection_limiter::{ConnectionLimiter, ConnectionLimits};

/// Connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 1024;

/// Kinds of clients of a port.
pub(crate) enum Clients {
    /// With a certificate that this configuration accepts: identified after the handshake.
    Certified(ServerConfig),
    /// Anybody, with TLS. Clients are never identified.
    Encrypted(ServerConfig),
    /// Anybody, without TLS.
    Plain,
}

/// Certificates that a client has presented, its own first.
pub(crate) struct PeerCertificates(pub(crate) Vec<CertificateDer<'static>>);

/// A port that is served until this is dropped.
pub struct Port {
    /// Address that it listens on.
    pub address: SocketAddr,
    handle: ServerHandle,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Port {
    /// Resolves when it is no longer served, which is a failure.
    pub async fn ended(&mut self) {
        let _ = (&mut self.task).await;
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        drop(self.handle.stop(false));
        self.task.abort();
    }
}

/// Serves `app` with so many threads. Port 0 becomes a free one.
pub(crate) fn serve(
    address: SocketAddr,
    threads: usize,
    limits: ConnectionLimits,
    clients: Clients,
    app: impl Fn(&mut ServiceConfig) + Clone + Send + 'static,
) -> Result<Port, ListenError> {
    let failed = |source| ListenError::Bind { address, source };
    let listener = bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let door = ConnectionLimiter::new(limits);
    let server = Server::build()
        .workers(threads)
        .disable_signals()
        .shutdown_timeout(1)
        // The limiter allows fewer: a thread with this many connections would accept none at all.
        .max_concurrent_connections(2 * (limits.waiting + limits.known));
    let name = "port";
    let server = match clients {
        Clients::Plain => server.listen(name, listener, move || {
            connections(door.clone(), false, app.clone(), idle::watch, |socket| async { Ok(socket) })
        }),
        Clients::Encrypted(config) => {
            let acceptor = acceptor(config);
            server.listen(name, listener, move || {
                let acceptor = acceptor.clone();
                let watch =
                    |stream: &TlsStream<TcpStream>, data: &mut Extensions| idle::watch(stream.get_ref().0, data);
                connections(door.clone(), false, app.clone(), watch, move |socket| acceptor.accept(socket))
            })
        }
        Clients::Certified(config) => {
            let acceptor = acceptor(config);
            server.listen(name, listener, move || {
                let acceptor = acceptor.clone();
                connections(door.clone(), true, app.clone(), keep_certificates, move |socket| acceptor.accept(socket))
            })
        }
    };
    let server = server.map_err(failed)?.run();
    let handle = server.handle();
    Ok(Port { address, handle, task: tokio::spawn(server) })
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}

fn acceptor(mut config: ServerConfig) -> TlsAcceptor {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config).into()
}

fn keep_certificates(stream: &TlsStream<TcpStream>, data: &mut Extensions) {
    if let Some(shown) = stream.get_ref().1.peer_certificates() {
        data.insert(PeerCertificates(shown.to_vec()));
    }
}

/// Returns a factory of each thread's handler of connections. `known`: whether the client is identified after the
/// `handshake`.
fn connections<T, H, F>(
    door: ConnectionLimiter,
    known: bool,
    app: impl Fn(&mut ServiceConfig) + 'static,
    on_connect: impl Fn(&T, &mut Extensions) + Clone + 'static,
    handshake: H,
) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = (), InitError = ()>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
    H: Fn(TcpStream) -> F + Clone + 'static,
    F: Future<Output = std::io::Result<T>> + 'static,
{
    fn_factory(move || {
        let app = App::new().wrap_fn(idle::request_arrived).configure(&app);
        let app = app.into_factory().map_err(|error| error.error_response());
        let http = HttpService::build()
            .keep_alive(IDLE)
            .client_request_timeout(HEADER_TIME)
            .client_disconnect_timeout(HEADER_TIME)
            // Notices a client that disconnects, also while nothing is written to it, so that its work ends.
            .h1_allow_half_closed(!known)
            .on_connect_ext(on_connect.clone())
            .finish(map_config(app, |()| AppConfig::default()));
        let (door, handshake) = (door.clone(), handshake.clone());
        async move {
            let http = Rc::new(http.new_service(()).await?);
            Ok(fn_service(move |socket: TcpStream| {
                let (door, handshake, http) = (door.clone(), handshake.clone(), Rc::clone(&http));
                async move {
                    // Without an address it has ended already.
                    let Ok(peer) = socket.peer_addr() else { return Ok(()) };
                    let mut place = door.admit(peer.ip());
                    let end = place.end();
                    let served = async {
                        // Answers are sent at once, without waiting for more data (Nagle).
                        socket.set_nodelay(true).ok()?;
                        let stream = tokio::time::timeout(HEADER_TIME, handshake(socket)).await.ok()?;
                        let stream =
                            stream.inspect_err(|error| tracing::debug!(%peer, %error, "TLS handshake failed")).ok()?;
                        if known && !place.promote() {
                            return None;
                        }
                        http.call((stream, Protocol::Http1, Some(peer))).await.ok()
                    };
                    tokio::select! {
                        () = end.notified() => {}
                        _ = served => {}
                    }
                    Ok(())
                }
            }))
        }
    })
}
