//! The cluster's DNS: the names of Services that have an address.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;

use super::ADDRESS;
use crate::assets::Assets;
use crate::error::{Doing as _, Result};
use crate::kube::Kube;
use crate::owned::{Owned, Spec};
use crate::scratch::Scratch;

/// Behind the names of all Services.
pub(super) const DOMAIN: &str = "cluster.local";

/// Writes each Service as it comes or changes: its name and its address. A watch ends by itself after half an hour or more.
const TABLE: &str = r#"while :; do
    "$1" --kubeconfig "$2" get services --all-namespaces --watch \
        --output 'jsonpath={.metadata.name}.{.metadata.namespace}.svc {.spec.clusterIP}{"\n"}'
    sleep 1
done"#;

/// Type A, class IN.
const ADDRESS_WANTED: [u8; 4] = [0, 1, 0, 1];
const NO_SUCH_NAME: u8 = 3;

/// A running server; ends with this process.
pub(super) struct Dns {
    /// Its log is the table.
    services: Arc<Owned>,
}

impl Dns {
    pub(super) fn start(kube: &Kube, assets: &Assets, scratch: &Scratch) -> Result<Self> {
        let table = Spec::new("/bin/sh", scratch.path().join("services"))
            .args(["-c", TABLE, "sh"])
            .args([assets.kubectl(), kube.kubeconfig()])
            .privileged()
            .env("HOME", scratch.path());
        let services = Arc::new(Owned::spawn(&table)?);
        let address = SocketAddr::from((ADDRESS, 53));
        let socket = UdpSocket::bind(address).doing("listening for questions to DNS at", "172.30.255.1:53".as_ref())?;
        let known = Arc::clone(&services);
        thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((size, from)) = socket.recv_from(&mut question) {
                let answer = answer(&question[..size], |name| address_in(&known.log_text(), name));
                // Who has asked will ask again.
                let _ = answer.map(|answer| socket.send_to(&answer, from));
            }
        });
        Ok(Self { services })
    }

    pub(super) fn server(&self) -> &Owned {
        &self.services
    }
}

/// What the table says last of a name.
fn address_in(table: &str, name: &str) -> Option<Ipv4Addr> {
    let service = name.strip_suffix(DOMAIN)?.strip_suffix('.')?;
    let address = |line: &str| line.split_once(' ').filter(|(name, _)| *name == service)?.1.parse().ok();
    table.lines().rev().find_map(address)
}

/// The answer to a question; none to what is no question.
fn answer(question: &[u8], address: impl Fn(&str) -> Option<Ipv4Addr>) -> Option<Vec<u8>> {
    let header = question.get(..12)?;
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*question.get(at)?);
        let label = question.get(at + 1..at + 1 + length)?;
        at += 1 + length;
        if length == 0 {
            break;
        }
        labels.push(std::str::from_utf8(label).ok()?.to_ascii_lowercase());
    }
    let wanted = question.get(at..at + 4)?;
    let found = address(&labels.join("."));
    let given = found.filter(|_| wanted == ADDRESS_WANTED);
    let is_missing = if found.is_some() { 0 } else { NO_SUCH_NAME };
    // An authoritative answer, without recursion beyond it.
    let mut answer = vec![header[0], header[1], 0x84 | header[2] & 1, 0x80 | is_missing];
    answer.extend([0, 1, 0, u8::from(given.is_some()), 0, 0, 0, 0]);
    answer.extend(&question[12..at + 4]);
    if let Some(given) = given {
        // The name that was asked for, for five seconds.
        answer.extend([0xc0, 12]);
        answer.extend(ADDRESS_WANTED);
        answer.extend([0, 0, 0, 5, 0, 4]);
        answer.extend(given.octets());
    }
    Some(answer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// `small-central-manager.pools.svc.cluster.local`, and what is wanted of it.
    fn question(kind: u8) -> Vec<u8> {
        let mut question = vec![7, 9, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in ["small-central-manager", "Pools", "svc", "cluster", "local"] {
            question.push(label.len().try_into().unwrap());
            question.extend(label.as_bytes());
        }
        question.extend([0, 0, kind, 0, 1]);
        question
    }

    #[test]
    fn dns_resolves_only_services() {
        let table = "small-central-manager.pools.svc 10.96.0.1\nheadless.pools.svc None\nsmall-central-manager.pools.svc 10.96.7.8\n";
        let ask = |kind| answer(&question(kind), |name| address_in(table, name)).unwrap();
        let a = ask(1);
        assert_eq!(a[..8], [7, 9, 0x85, 0x80, 0, 1, 0, 1]);
        assert_eq!(a[a.len() - 4..], [10, 96, 7, 8]);
        // There is such a name, and it has no IPv6 address.
        assert_eq!(ask(28)[..8], [7, 9, 0x85, 0x80, 0, 1, 0, 0]);
        assert_eq!(answer(&question(1), |_| None).unwrap()[2..8], [0x85, 0x83, 0, 1, 0, 0]);
        for (name, known) in [("headless.pools.svc.cluster.local", false), ("small-central-manager.pools.svc", false)] {
            assert_eq!(address_in(table, name).is_some(), known, "{name}");
        }
        let whole = question(1);
        assert!((0..whole.len()).all(|size| answer(&whole[..size], |_| None).is_none()));
    }
}
