//! What the operator says of itself on its port for probes and metrics.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use crate::error::{Asking as _, Result};

/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// The value of a metric, with its labels as they are written; 0 if there is none yet.
pub(crate) fn value(port: u16, metric: &str) -> Result<f64> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).asking("ask for metrics")?;
    stream.set_read_timeout(Some(LIMIT)).asking("ask for metrics")?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").asking("ask for metrics")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).asking("read metrics")?;
    let line = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    Ok(line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0))
}
