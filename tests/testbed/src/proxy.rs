//! A proxy before the API server that spoils single requests: plain HTTP on a loopback port for the client under test,
//! TLS with a client certificate towards the API server.
//!
//! Faults that a real API server has under load or while it restarts cannot be had from it on request: 409, 429, 500, an
//! expired watch, an answer that is lost after the write was carried out. Everything else is passed on as it is.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Channel, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::upstream::{Credentials, Upstream};

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status and never reaches the API server; for 429 and 503 with `Retry-After`, if given.
    Status(u16, Option<Duration>),
    /// The API server carries it out, and the connection is closed instead of an answer.
    LoseAnswer,
    /// The API server carries it out, and the connection is closed in the middle of the answer.
    CutAnswer,
    /// It is not passed on and not answered until it is let go, or the rules are cleared; then it is passed on.
    Hang,
    /// It is answered later than it could be.
    Delay(Duration),
    /// A watch that ends with an event ERROR, code 410, after this many events, as when its resource version has expired.
    Expire(usize),
}

/// Which requests a fault hits.
#[derive(Debug, Clone)]
pub struct Rule {
    method: &'static str,
    path: String,
    times: usize,
    fault: Fault,
}

impl Rule {
    /// Requests of `method` (`*`: any; `WATCH`: any GET with `watch=`) whose path and query contain `path`.
    #[must_use]
    pub fn new(method: &'static str, path: &str, fault: Fault) -> Self {
        Self { method, path: path.to_owned(), times: usize::MAX, fault }
    }

    /// Only so many; the next ones are passed on.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    fn fits(&self, method: &str, path: &str) -> bool {
        let watch = method == "GET" && path.contains("watch=");
        let method = match self.method {
            "*" => true,
            "WATCH" => watch,
            "GET" => method == "GET" && !watch,
            other => other == method,
        };
        method && path.contains(&self.path)
    }
}

/// One request that came by.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its method.
    pub method: String,
    /// Its path and query.
    pub path: String,
    /// When it came.
    pub at: Instant,
    /// What was done to it.
    pub fault: Option<Fault>,
}

#[derive(Debug)]
struct State {
    rules: Mutex<VecDeque<Rule>>,
    seen: Mutex<Vec<Seen>>,
    /// Counts how often what hangs was passed on.
    cleared: watch::Sender<u64>,
    upstream: Upstream,
}

/// A running proxy; ends with this value.
#[derive(Debug)]
pub struct Proxy {
    state: Arc<State>,
    address: SocketAddr,
    // Its tasks end with it.
    _runtime: tokio::runtime::Runtime,
}

type AnswerBody = BoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

fn broken(problem: impl std::fmt::Display) -> Error {
    Error::Machine {
        problem: format!("the proxy before the API server: {problem}"),
        remedy: "look for what is odd about this machine's loopback interface".to_owned(),
    }
}

impl Proxy {
    pub(crate) fn start(port: u16, credentials: &Credentials) -> Result<Self> {
        let upstream = Upstream::new(port, credentials)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(broken)?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).map_err(broken)?;
        let address = listener.local_addr().map_err(broken)?;
        let state = Arc::new(State {
            rules: Mutex::default(),
            seen: Mutex::default(),
            cleared: watch::Sender::new(0),
            upstream,
        });
        runtime.spawn(serve(listener, Arc::clone(&state)));
        Ok(Self { state, address, _runtime: runtime })
    }

    /// What a kubeconfig names as its server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on; of several rules that fit, the first counts.
    pub fn add(&self, rule: Rule) {
        lock(&self.state.rules).push_back(rule);
    }

    /// Everything is passed on again, what hangs too.
    pub fn clear(&self) {
        lock(&self.state.rules).clear();
        self.let_go();
    }

    /// What hangs is passed on. The rules stay.
    pub fn let_go(&self) {
        self.state.cleared.send_modify(|count| *count += 1);
    }

    /// How many more requests the rules are waiting for.
    #[must_use]
    pub fn left(&self) -> usize {
        lock(&self.state.rules).iter().map(|rule| rule.times).sum()
    }

    /// All requests so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state.seen).clone()
    }

    /// How many requests were spoiled in this way so far.
    #[must_use]
    pub fn spoiled(&self, fault: &Fault) -> usize {
        lock(&self.state.seen).iter().filter(|seen| seen.fault.as_ref() == Some(fault)).count()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Which fault hits a request; notes both.
    fn judge(&self, method: &str, path: &str) -> Option<Fault> {
        let mut rules = lock(&self.rules);
        let hit = rules.iter().position(|rule| rule.fits(method, path));
        let fault = hit.and_then(|at| rules.get(at)).map(|rule| rule.fault.clone());
        if let Some(at) = hit
            && let Some(rule) = rules.get_mut(at)
            && rule.times != usize::MAX
        {
            rule.times -= 1;
            if rule.times == 0 {
                rules.remove(at);
            }
        }
        let (method, path) = (method.to_owned(), path.to_owned());
        lock(&self.seen).push(Seen { method, path, at: Instant::now(), fault: fault.clone() });
        fault
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            // A spoiled request ends its connection with an error, which is what it is for.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// An error here closes the connection without an answer.
async fn answer(state: Arc<State>, request: Request<Incoming>) -> std::io::Result<Response<AnswerBody>> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let fault = state.judge(request.method().as_str(), &path);
    let lost = || std::io::Error::other("lost");
    match fault {
        Some(Fault::Status(code, retry_after)) => Ok(refusal(code, retry_after)),
        Some(Fault::LoseAnswer) => {
            let response = state.upstream.send(request).await?;
            let _ = response.into_body().collect().await;
            Err(lost())
        }
        Some(Fault::CutAnswer) => {
            let (parts, body) = state.upstream.send(request).await?.into_parts();
            let whole = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
            Ok(Response::from_parts(parts, half(whole).await))
        }
        Some(Fault::Hang) => {
            let mut cleared = state.cleared.subscribe();
            let _ = cleared.changed().await;
            state.upstream.send(request).await.map(|response| response.map(plain))
        }
        Some(Fault::Delay(time)) => {
            tokio::time::sleep(time).await;
            state.upstream.send(request).await.map(|response| response.map(plain))
        }
        Some(Fault::Expire(events)) => {
            let response = state.upstream.send(request).await?;
            Ok(response.map(|body| expiring(body, events)))
        }
        None => state.upstream.send(request).await.map(|response| response.map(plain)),
    }
}

fn plain(body: Incoming) -> AnswerBody {
    body.map_err(Into::into).boxed()
}

/// What the API server says when it refuses.
fn status_object(code: u16, retry_after: Option<Duration>) -> String {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let details =
        retry_after.map_or(String::new(), |time| format!(r#","details":{{"retryAfterSeconds":{}}}"#, time.as_secs()));
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"made up by the test bed","reason":"{reason}","code":{code}{details}}}"#
    )
}

fn refusal(code: u16, retry_after: Option<Duration>) -> Response<AnswerBody> {
    let body = Full::new(Bytes::from(status_object(code, retry_after))).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    if let Some(time) = retry_after {
        headers.insert("retry-after", time.as_secs().into());
    }
    response
}

/// The first half of `whole`, and then the end of the connection.
async fn half(whole: Bytes) -> AnswerBody {
    let (mut sender, body) = Channel::new(1);
    let _ = sender.send_data(whole.slice(..whole.len() / 2)).await;
    sender.abort("cut".into());
    body.boxed()
}

/// The first `events` lines of a watch, and then its ERROR.
fn expiring(mut watch: Incoming, events: usize) -> AnswerBody {
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        let mut left = events;
        while left > 0
            && let Some(Ok(frame)) = watch.frame().await
            && let Ok(data) = frame.into_data()
        {
            let ends = data.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
            let ends: Vec<usize> = ends.take(left).collect();
            left -= ends.len();
            let end = if left == 0 { ends.last().copied().unwrap_or(data.len()) } else { data.len() };
            if sender.send_data(data.slice(..end)).await.is_err() {
                return;
            }
        }
        let event = format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status_object(410, None));
        let _ = sender.send_data(Bytes::from(event)).await;
    });
    body.boxed()
}
