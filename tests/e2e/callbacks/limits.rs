//! Limits of one client of the receiver: headers, connections, and time.

use std::collections::HashSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bed::PATIENCE;
use bed::desk::{Desk, ended};
use bed::http::{self, Connection, drip};
use htc_operator::callbacks::monitor;
use htc_support::health::Health;
use htc_support::metrics::Metrics;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use testbed::wait_for;

use crate::callbacks::tls;

/// Connections of one address that the receiver keeps.
const EACH: usize = 512;
/// How many more are opened.
const MORE: usize = 50;
/// A request that needs no token.
const REFUSED: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
/// The beginning of one.
const BEGUN: &str = "POST /cloudevents HTTP/1.1\r\nX: ";
/// Body, pause, headers and the ledger's time, by the words of the receiver; and what a busy machine adds.
const LONGEST: Duration = Duration::from_secs(40 + 30);

#[test]
fn request_has_at_most_96_headers_of_128_kib() {
    let desk = Desk::new();
    let more = |count: usize| {
        let mut headers = desk.headers("a");
        // Host and Content-Length are added to these.
        headers.extend((headers.len() + 2..count).map(|number| (format!("X-{number}"), "y".to_owned())));
        desk.post(&headers, &ended("12.0", "0")).status
    };
    assert_eq!((more(96), more(97)), (204, 431));
    let endless = [BEGUN.as_bytes(), &vec![b'x'; 128 * 1024 - BEGUN.len()]].concat();
    let mut connection = Connection::open(desk.address).unwrap();
    connection.send(&endless).unwrap();
    assert_eq!(connection.answer().unwrap().status, 431);
    assert_eq!(desk.rows().len(), 1);
}

/// A connection with TLS, and its socket.
fn with_tls(address: SocketAddr, trusted: &Path) -> (StreamOwned<ClientConnection, TcpStream>, TcpStream) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let client = ClientConnection::new(Arc::new(config), ServerName::from(address.ip())).unwrap();
    let socket = TcpStream::connect(address).unwrap();
    (StreamOwned::new(client, socket.try_clone().unwrap()), socket)
}

#[test]
fn incomplete_request_is_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    tls::write(folder.path(), "tls.crt", "tls.key");
    let (plain, secure) = (Desk::new(), Desk::standing_by(Some((&path("tls.crt"), &path("tls.key")))));
    let after = |sent: &str, drops: &str| {
        let mut connection = Connection::open(plain.address).unwrap();
        connection.send(sent.as_bytes()).unwrap();
        connection.drip(drops.as_bytes())
    };
    let (body, chunks) = ("Host: x\r\nContent-Length: 1000\r\n\r\n", "Host: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    let (whole, elsewhere) = (format!("{BEGUN}y\r\n"), "POST /elsewhere HTTP/1.1\r\n");
    let cases = [
        ("nothing", String::new(), ""),
        ("headers", BEGUN.to_owned(), "x"),
        ("headers after a request", format!("{REFUSED}{BEGUN}"), "x"),
        ("no more headers after a request", format!("{REFUSED}{BEGUN}"), ""),
        ("a body", format!("{whole}{body}"), "x"),
        ("a body in chunks", format!("{whole}{chunks}"), "1\r\nx\r\n"),
        ("a body that nobody reads", format!("{elsewhere}{body}"), "x"),
        ("a body in chunks that nobody reads", format!("{elsewhere}{chunks}"), "1\r\nx\r\n"),
        ("no more chunks that nobody reads", format!("{elsewhere}{chunks}"), ""),
    ];
    let check = |what: &str, took: Duration| {
        println!("{what}: {took:.1?}");
        assert!(took < LONGEST, "{what}: {took:?}");
    };
    std::thread::scope(|scope| {
        for (what, sent, drops) in &cases {
            scope.spawn(move || check(what, after(sent, drops)));
        }
        scope.spawn(|| check("no TLS", Connection::open(secure.address).unwrap().drip(b"")));
        scope.spawn(|| {
            let (mut stream, socket) = with_tls(secure.address, &path("tls.crt"));
            stream.write_all(format!("{REFUSED}{BEGUN}").as_bytes()).unwrap();
            check("headers after a request, with TLS", drip(&mut stream, &socket, b"x"));
        });
        scope.spawn(|| {
            let mut connection = Connection::open(plain.address).unwrap();
            let mut report = |event: &str| {
                connection.send(&http::request(&plain.headers(event), &ended("12.0", "0"))).unwrap();
                connection.answer().unwrap().status
            };
            assert_eq!(report("a"), 204);
            // No condition to wait for: a pause that is within the limits.
            std::thread::sleep(Duration::from_secs(8));
            assert_eq!(report("b"), 204);
        });
    });
    assert_eq!(plain.rows(), [("12.0".to_owned(), "b".to_owned(), 0)], "the second came over the same connection");
}

/// Sends requests and reads no answer; how many bytes were taken until no more were.
fn taken(address: SocketAddr, request: &str) -> usize {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let many = request.repeat(1_000);
    let mut taken = 0;
    while taken < 64 << 20 && stream.write_all(many.as_bytes()).is_ok() {
        taken += many.len();
    }
    taken
}

#[test]
fn client_that_reads_no_answers_is_not_read_from() {
    let desk = Desk::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let port = {
        let _inside = runtime.enter();
        monitor::listen("127.0.0.1:0".parse().unwrap(), Health::default(), Metrics::default()).unwrap()
    };
    std::thread::scope(|scope| {
        for (address, line) in [
            (desk.address, "GET /"),
            (desk.address, "HEAD /"),
            (desk.address, "GET /cloudevents"),
            (desk.address, "POST /cloudevents"),
            (port.address, "GET /"),
            (port.address, "GET /readyz"),
            (port.address, "POST /healthz"),
        ] {
            scope.spawn(move || {
                let taken = taken(address, &format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n"));
                println!("{line}: {taken} bytes");
                // The buffers of both sockets, and a few requests.
                assert!(taken < 32 << 20, "{line}: {taken} bytes");
            });
        }
    });
    // On a machine that has much else to do, reading this one may take its time, too.
    let others = || match desk.post(&desk.headers("a"), &ended("12.0", "0")).status {
        204 => Ok(()),
        status => Err(format!("{status}")),
    };
    wait_for("others to be listened to", PATIENCE, others).unwrap();
}

/// Connections to this port that a thread of the receiver has taken: what still waits for one has no inode. Each counts once: the
/// table shows some twice if others come while it is read.
fn accepted(address: SocketAddr) -> usize {
    let own = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let taken = rows.filter(|row| row[1].ends_with(&own) && row[3] == "01" && row[9] != "0");
    taken.map(|row| row[2].to_owned()).collect::<HashSet<_>>().len()
}

#[test]
fn new_connections_of_an_address_close_its_oldest() {
    let desk = Desk::new();
    let open = |_| {
        let mut connection = Connection::open(desk.address).unwrap();
        connection.send(format!("{REFUSED}{BEGUN}").as_bytes()).unwrap();
        connection
    };
    let mut kept: Vec<Connection> = (0..EACH + MORE).map(open).collect();
    assert_eq!(desk.post(&desk.headers("a"), &ended("12.0", "0")).status, 204, "a new one is listened to");
    wait_for("the oldest to end", PATIENCE, || {
        let ended = kept[..MORE].iter_mut().filter_map(|one| one.ends_within(Duration::ZERO).then_some(())).count();
        let left = accepted(desk.address);
        if ended == MORE && left <= EACH { Ok(()) } else { Err(format!("{ended} have ended, {left} are left")) }
    })
    .unwrap();
    assert!(!kept[EACH + MORE - 1].ends_within(Duration::ZERO), "the newest has not");
}
