//! HTTP by hand: nothing that a test wants to send is corrected on the way.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// Longer than any limit of the receiver.
const LIMIT: Duration = Duration::from_secs(60);

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// The reason of a refusal.
    pub fn reason(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap_or_default();
        body["reason"].as_str().unwrap_or_default().to_owned()
    }
}

/// A request of `POST /cloudevents`.
pub fn request(headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let mut text = "POST /cloudevents HTTP/1.1\r\nHost: x\r\n".to_owned();
    for (name, value) in headers {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    write!(text, "Content-Length: {}\r\n\r\n", body.len()).unwrap();
    [text.into_bytes(), body.to_vec()].concat()
}

/// A connection that is kept.
pub struct Connection(TcpStream);

impl Connection {
    pub fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Reads one answer; an error if the connection is closed before it.
    pub fn answer(&mut self) -> std::io::Result<Answer> {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            self.more(&mut bytes)?;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head
            .to_ascii_lowercase()
            .split("content-length: ")
            .nth(1)
            .map_or(0, |rest| rest.split("\r\n").next().unwrap().trim().parse().unwrap());
        while bytes.len() < end + length {
            self.more(&mut bytes)?;
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok(Answer { status, head, body: String::from_utf8_lossy(&bytes[end..]).into_owned() })
    }

    /// Sends `bytes` a few times each second until the connection is ended at the other side; how long that took.
    pub fn drip(mut self, bytes: &[u8]) -> Duration {
        let socket = self.0.try_clone().unwrap();
        drip(&mut self.0, &socket, bytes)
    }

    /// Whether the other side ends the connection within this time, whatever it sends before.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        let began = Instant::now();
        let sip = limit.clamp(Duration::from_millis(1), Duration::from_millis(250));
        self.0.set_read_timeout(Some(sip)).unwrap();
        let ended = loop {
            match self.0.read(&mut [0; 4096]) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => (),
                Ok(0) | Err(_) => break true,
                Ok(_) => (),
            }
            if began.elapsed() > limit {
                break false;
            }
        };
        self.0.set_read_timeout(Some(LIMIT)).unwrap();
        ended
    }

    fn more(&mut self, bytes: &mut Vec<u8>) -> std::io::Result<()> {
        let mut part = [0; 4096];
        match self.0.read(&mut part)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => {
                bytes.extend(&part[..count]);
                Ok(())
            }
        }
    }
}

/// The same over any `stream` on this `socket`.
pub fn drip(stream: &mut (impl Read + Write), socket: &TcpStream, bytes: &[u8]) -> Duration {
    let began = Instant::now();
    // The pause between two sips is the time that reading may take.
    socket.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
    loop {
        assert!(began.elapsed() < PATIENCE, "the connection is kept");
        let sent = stream.write_all(bytes).and_then(|()| stream.flush());
        let ended = match stream.read(&mut [0; 4096]) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        };
        if ended || sent.is_err() {
            return began.elapsed();
        }
    }
}

/// One request on a connection of its own.
pub fn post(address: SocketAddr, headers: &[(String, String)], body: &[u8]) -> std::io::Result<Answer> {
    let mut connection = Connection::open(address)?;
    connection.send(&request(headers, body))?;
    connection.answer()
}

pub fn get(address: SocketAddr, path: &str) -> std::io::Result<Answer> {
    let mut connection = Connection::open(address)?;
    connection.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
    connection.answer()
}

/// Headers as the functions above take them.
pub fn headers(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Those of a report that a job of this HTCJob has started.
pub fn headers_of_start(token: &str, uid: &str, id: &str) -> Vec<(String, String)> {
    headers(&[
        ("Authorization", &format!("Bearer {token}")),
        ("Content-Type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-type", "htcjob.cloudevent.started"),
        ("ce-source", "cern.ch"),
        ("ce-subject", uid),
        ("ce-id", id),
    ])
}
