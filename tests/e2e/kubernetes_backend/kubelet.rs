//! What stands for a node's kubelet, as far as kube-apiserver asks it for logs: a Node object, and a server on loopback behind it.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use bed::{Bed, Namespace, PATIENCE};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::stage::Owned as _;

pub const NODE: &str = "node-1";

#[derive(Default)]
struct Log {
    text: Vec<u8>,
    ended: bool,
    /// How often its oldest lines have gone.
    rotated: u32,
}

#[derive(Default)]
struct State {
    /// By the Pods' names.
    logs: Mutex<HashMap<String, Log>>,
    news: Condvar,
    broken: AtomicBool,
    over: AtomicBool,
    asked: Mutex<Vec<String>>,
}

/// One node's.
pub struct Kubelet {
    state: Arc<State>,
    port: u16,
    serving: Option<JoinHandle<()>>,
}

impl Kubelet {
    /// With a Node of this bed.
    pub fn start(bed: &Bed) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap().der().clone();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let serving = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.over.load(Ordering::SeqCst) {
                    return;
                }
                let (state, config) = (Arc::clone(&shared), Arc::clone(&config));
                // Who hangs up is no matter.
                std::thread::spawn(move || stream.and_then(|stream| answer(&state, config, stream)));
            }
        });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
        bed.apply(&node);
        let status = json!({ "status": {
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": port } } } });
        bed.merge_status("/api/v1/nodes", NODE, &status);
        Self { state, port, serving: Some(serving) }
    }

    /// Puts the Pod of this completion index on the node; its name.
    pub fn take(&self, here: &Namespace<'_>, index: u32) -> String {
        let pod = here.wait_index(index)["metadata"]["name"].as_str().unwrap().to_owned();
        self.take_named(here, &pod);
        pod
    }

    /// Puts this Pod on the node.
    pub fn take_named(&self, here: &Namespace<'_>, pod: &str) {
        let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod, "namespace": here.name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": NODE } });
        here.bed.create(&format!("{}/{pod}/binding", here.collection("pod")), &binding).unwrap();
        self.state.logs.lock().unwrap().insert(pod.to_owned(), Log::default());
    }

    pub fn writes(&self, pod: &str, text: &[u8]) {
        self.state.logs.lock().unwrap().get_mut(pod).unwrap().text.extend(text);
        self.state.news.notify_all();
    }

    /// The container has written all that it will.
    pub fn ends(&self, pod: &str) {
        self.state.logs.lock().unwrap().get_mut(pod).unwrap().ended = true;
        self.state.news.notify_all();
    }

    /// Its oldest lines go, as of a log that has become long, and who reads it is cut off.
    pub fn rotates(&self, pod: &str, left: &[u8]) {
        let mut logs = self.state.logs.lock().unwrap();
        let log = logs.get_mut(pod).unwrap();
        (log.text, log.rotated) = (left.to_vec(), log.rotated + 1);
        drop(logs);
        self.state.news.notify_all();
    }

    /// It answers with nothing but errors.
    pub fn is_broken(&self, broken: bool) {
        self.state.broken.store(broken, Ordering::SeqCst);
    }

    /// The paths and queries that it was asked for.
    pub fn asked(&self) -> Vec<String> {
        self.state.asked.lock().unwrap().clone()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        self.state.news.notify_all();
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

fn answer(state: &State, config: Arc<ServerConfig>, stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(ServerConnection::new(config).map_err(std::io::Error::other)?, stream);
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let came = stream.read(&mut part)?;
        if came == 0 {
            return Ok(());
        }
        head.extend(&part[..came]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let asked = head.split(' ').nth(1).unwrap_or_default().to_owned();
    state.asked.lock().unwrap().push(asked.clone());
    let (path, query) = asked.split_once('?').unwrap_or((&asked, ""));
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| value(name).map(|number| number.parse::<usize>().unwrap());
    let pod = path.split('/').nth(3).unwrap_or_default().to_owned();
    let known = state.logs.lock().unwrap().contains_key(&pod);
    let status = match (state.broken.load(Ordering::SeqCst), known) {
        (true, _) => "500 Internal Server Error",
        (false, false) => "404 Not Found",
        (false, true) => "200 OK",
    };
    stream
        .write_all(format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n").as_bytes())?;
    stream.flush()?;
    if status != "200 OK" {
        stream.conn.send_close_notify();
        return stream.flush();
    }
    let (mut at, mut opened) = (0, None);
    loop {
        let mut logs = state.logs.lock().unwrap();
        let log = logs.get(&pod).unwrap();
        if *opened.get_or_insert(log.rotated) != log.rotated {
            break;
        }
        if value("timestamps") == Some("true") {
            let mut line = format!("2026-01-01T00:00:{:02}.000000000Z ", log.rotated).into_bytes();
            line.extend(&log.text);
            line.truncate(number("limitBytes").unwrap_or(usize::MAX));
            let line = if log.text.is_empty() { Vec::new() } else { line };
            drop(logs);
            stream.write_all(&line)?;
            break;
        }
        if at == 0
            && let Some(lines) = number("tailLines")
        {
            let begins =
                log.text.split_inclusive(|byte| *byte == b'\n').rev().take(lines).map(<[u8]>::len).sum::<usize>();
            at = log.text.len() - begins;
        }
        let most = number("limitBytes").unwrap_or(usize::MAX).min(log.text.len());
        let (new, over) = (log.text[at.min(most)..most].to_vec(), log.ended || value("follow") != Some("true"));
        at = most;
        if new.is_empty() {
            if over || state.over.load(Ordering::SeqCst) {
                break;
            }
            logs = state.news.wait(logs).unwrap();
        }
        drop(logs);
        stream.write_all(&new)?;
        stream.flush()?;
    }
    stream.conn.send_close_notify();
    stream.flush()
}

/// An HTCProc's log by the jobs API, or why there is none.
pub fn log(here: &Namespace<'_>, proc: &str, query: &str) -> Result<String, String> {
    let path = format!("{}/{proc}/log?{query}", here.procs());
    here.bed.raw(&path).map_err(|error| error.to_string())
}

/// Where a kept log lies.
pub fn kept(here: &Namespace<'_>, name: &str, index: u32) -> std::path::PathBuf {
    here.output(name, index).join("out")
}

pub fn is_fetched(proc: &Value) -> bool {
    proc["status"]["outputFetched"] == true
}
