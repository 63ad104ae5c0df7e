use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use kube::core::response::{StatusCause, StatusDetails};
use serde_json::{Value, json};

use super::*;
use crate::api::{ObjectName, Phase};
use crate::ledger::Save;
use crate::machine::ScheddName;
use crate::machine::facts::Known;
use crate::machine::transitions::{Transition, Trigger};

/// An API server that says what it is told to.
struct Server {
    url: String,
    /// Names of Events that were to be written.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// `answer` gets namespace and name of an Event, and how often it was asked for before; none writes it.
    fn start(answer: impl Fn(&str, &str, usize) -> Option<Status> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, seen) = (Arc::new(answer), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                std::thread::spawn(move || {
                    let (namespace, event) = request(&stream);
                    let name = event["metadata"]["name"].as_str().unwrap().to_owned();
                    let before = lock(&seen).iter().filter(|seen| **seen == name).count();
                    lock(&seen).push(name.clone());
                    reply(&stream, answer(&namespace, &name, before), &event);
                });
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        lock(&self.asked).clone()
    }
}

fn request(stream: &TcpStream) -> (String, Value) {
    let mut reader = BufReader::new(stream);
    let lines: Vec<String> = reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    let namespace = lines[0].split('/').nth(4).unwrap().to_owned();
    let length = lines.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap()];
    reader.read_exact(&mut body).unwrap();
    (namespace, serde_json::from_slice(&body).unwrap())
}

fn reply(mut stream: &TcpStream, refusal: Option<Status>, event: &Value) {
    let (code, body) = refusal.map_or_else(|| (201, event.clone()), |status| (status.code, json!(status)));
    let body = body.to_string();
    // Whoever asked may be gone.
    let _ = write!(stream, "HTTP/1.1 {code} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
}

fn status(code: u16, reason: &str) -> Status {
    Status::failure("no", reason).with_code(code)
}

fn wait(code: u16, seconds: u32) -> Status {
    status(code, "").with_details(StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: seconds,
    })
}

fn terminating() -> Status {
    let mut status = wait(403, 0);
    status.reason = "Forbidden".to_owned();
    let cause = StatusCause {
        reason: "NamespaceTerminating".to_owned(),
        message: "namespace a is being terminated".to_owned(),
        field: "metadata.namespace".to_owned(),
    };
    status.details.as_mut().unwrap().causes.push(cause);
    status
}

fn teller(folder: &Path, url: &str) -> Teller {
    let mut config = kube::Config::new(url.parse().unwrap());
    config.default_retry = false;
    let clock = Clock::default();
    Teller {
        notifies: Arc::default(),
        client: Client::try_from(config).unwrap(),
        ledger: Ledger::open_alone(&folder.join("ledger.db")).unwrap(),
        clock,
        metrics: Metrics::default(),
        troubles: Mutex::default(),
    }
}

/// So many rows of an object, the uid of which is its name.
async fn journal(teller: &Teller, namespace: &str, name: &str, rows: usize) {
    let transition = Transition {
        from: None,
        to: Some(Phase::Pending),
        trigger: Trigger::Guarded,
        reason: "R".to_owned(),
        detail: String::new(),
        warning: false,
        active: 0,
        succeeded: 0,
        failed: 0,
    };
    let known = Known {
        phase: Phase::Pending,
        new: true,
        started: None,
        completed: None,
        cut_short: None,
        given_up: 0,
        released: false,
        queue: None,
        conditions: Vec::new(),
    };
    let save = Save {
        absent: None,
        gives_back: crate::machine::Indices::default(),
        uid: name.into(),
        name: ObjectName { namespace: namespace.to_owned(), name: name.to_owned() },
        pool: None,
        known,
        jobs: Vec::new(),
        settled: None,
        wishes: Vec::new(),
        schedd: ScheddName::from("s"),
        sandbox: String::new(),
        transitions: vec![transition; rows],
        inherited: Arc::default(),
        refuted: Vec::new(),
        now: teller.clock.now(),
    };
    teller.ledger.save(save).await.unwrap();
}

async fn tell(teller: &Teller) -> Result<usize, TellError> {
    teller.tell(teller.untold().await.unwrap()).await
}

/// What is not told yet, as `object.row`.
async fn left(teller: &Teller) -> Vec<String> {
    let rows = teller.ledger.untold(1000, Except::default()).await.unwrap();
    let mut left: Vec<String> = rows.iter().map(|row| format!("{}.{}", row.uid, row.seq)).collect();
    left.sort();
    left
}

fn given_up(teller: &Teller) -> String {
    let text = teller.metrics.text().unwrap();
    let line = text.lines().find(|line| line.starts_with("htc_events_given_up_total")).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn what_another_ledger_may_have_told_has_names_of_its_own() {
    let row = |told_before| Journaled {
        uid: "0123456789ab".into(),
        name: ObjectName { namespace: "n".to_owned(), name: "zero".to_owned() },
        seq: 7,
        time: Timestamp(0),
        reason: "Running".to_owned(),
        detail: String::new(),
        warning: false,
        told_before,
    };
    assert_eq!(name(&row(false), "fedcba9876543210"), "zero.01234567.0007");
    assert_eq!(name(&row(true), "fedcba9876543210"), "zero.01234567.fedcba98.0007");
}

#[test]
fn each_answer_has_its_meaning() {
    let failed = |status: Status| {
        let source = Box::new(kube::Error::Api(status.boxed()));
        what_it_means(&ApiError::Failed { what: "", object: String::new(), source })
    };
    let refused = |limited, seconds| Told::Refused(Refusal { limited, wait: Duration::from_secs(seconds) });
    let meanings = [
        (status(409, "AlreadyExists"), Told::Done),
        (status(409, "Conflict"), refused(false, 0)),
        (status(404, "NotFound"), Told::Never { missed: false }),
        (terminating(), Told::Never { missed: false }),
        (status(403, "Forbidden"), refused(false, 0)),
        (status(400, "BadRequest"), Told::Never { missed: true }),
        (status(422, "Invalid"), Told::Never { missed: true }),
        (wait(500, 2), refused(false, 2)),
        (status(504, "Timeout"), refused(false, 0)),
        (wait(429, 7), refused(true, 7)),
        (wait(503, 0), refused(true, 0)),
    ];
    for (status, meaning) in meanings {
        let text = status.to_string();
        assert_eq!(failed(status).unwrap(), meaning, "{text}");
    }
    assert_eq!(failed(status(401, "Unauthorized")).unwrap_err().wait, Duration::ZERO);
    let silent = ApiError::Silent { what: "", object: String::new(), limit: Duration::ZERO };
    assert_eq!(what_it_means(&silent).unwrap(), refused(false, 0));
}

#[tokio::test]
async fn only_what_somebody_misses_counts_as_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|namespace, _, _| match namespace {
        "deleted" => Some(status(404, "NotFound")),
        "deleting" => Some(terminating()),
        _ => Some(status(422, "Invalid")),
    });
    let teller = teller(folder.path(), &server.url);
    for namespace in ["deleted", "deleting", "wrong"] {
        journal(&teller, namespace, namespace, 2).await;
    }
    tell(&teller).await.unwrap();
    assert_eq!((left(&teller).await, given_up(&teller)), (Vec::new(), "2".to_owned()));
}

#[tokio::test]
async fn a_limit_of_one_namespace_stops_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|namespace, _, _| (namespace == "a").then(|| wait(429, 30)));
    let teller = teller(folder.path(), &server.url);
    for (namespace, name) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")] {
        journal(&teller, namespace, name, 3).await;
    }
    assert_eq!(tell(&teller).await.unwrap(), 12);
    assert_eq!(left(&teller).await, ["a1.1", "a1.2", "a1.3", "a2.1", "a2.2", "a2.3"]);
    assert_eq!(tell(&teller).await.unwrap(), 0, "the namespace waits by itself");
    let (due, next) = teller.troubles().take_due(10, Instant::now());
    assert!(due.is_empty() && next.is_some_and(|next| next > Instant::now() + Duration::from_secs(25)), "{next:?}");
}

#[tokio::test]
async fn an_api_server_that_limits_all_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|namespace, _, _| Some(wait(503, if namespace == "b" { 1 } else { 30 })));
    let teller = teller(folder.path(), &server.url);
    journal(&teller, "a", "a", 3).await;
    assert_eq!(tell(&teller).await.unwrap(), 3, "it may be the namespace's own limit");
    for name in ["b", "c"] {
        journal(&teller, name, name, 3).await;
    }
    assert_eq!(tell(&teller).await.unwrap_err().wait, Duration::from_secs(30));
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn one_failure_loses_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|_, name, _| name.starts_with("bad").then(|| status(401, "Unauthorized")));
    let teller = teller(folder.path(), &server.url);
    for name in ["bad", "b", "c", "d"] {
        journal(&teller, name, name, 2).await;
    }
    assert_eq!(tell(&teller).await.unwrap(), 8);
    assert_eq!(left(&teller).await, ["bad.1", "bad.2"]);
    assert!(tell(&teller).await.is_err(), "nothing else was told this time");
}

#[tokio::test]
async fn no_row_is_told_before_an_earlier_one_of_its_object() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|_, name, before| {
        (name.ends_with("0002") && before == 0).then(|| {
            std::thread::sleep(Duration::from_millis(100));
            status(500, "InternalError")
        })
    });
    let teller = teller(folder.path(), &server.url);
    journal(&teller, "a", "one", 5).await;
    tell(&teller).await.unwrap();
    assert_eq!(left(&teller).await, ["one.2", "one.3", "one.4", "one.5"]);
    teller.probe(Probe::Object("one".into())).await;
    tell(&teller).await.unwrap();
    let asked: Vec<String> = server.asked().iter().map(|name| name.rsplit('.').next().unwrap().to_owned()).collect();
    assert_eq!(asked, ["0001", "0002", "0002", "0003", "0004", "0005"]);
    assert_eq!(left(&teller).await, Vec::<String>::new());
}

#[tokio::test]
async fn pauses_grow_while_the_api_server_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let teller = teller(folder.path(), "http://127.0.0.1:1");
    journal(&teller, "a", "one", 1).await;
    let began = Instant::now();
    teller.troubles().refused("a", &"one".into(), Refusal::default(), began);
    let probe = Probe::Object("one".into());
    for _ in 0..5 {
        teller.probe(probe.clone()).await;
    }
    let (due, next) = teller.troubles().take_due(10, Instant::now() + Duration::from_secs(4));
    assert!(due.is_empty() && next.is_some(), "{due:?} {next:?}");
    assert!(!teller.troubles().blocks("a", &"two".into()), "it is no refusal");
    assert_eq!(left(&teller).await, ["one.1"]);
}

/// A webhook that hangs keeps requests for as long as they may take; the others' are tried again meanwhile.
#[tokio::test]
async fn what_hangs_holds_up_no_other_trouble() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|namespace, _, before| {
        if namespace == "hangs" {
            std::thread::sleep(Duration::from_secs(8));
        }
        (before < 1).then(|| status(500, "InternalError"))
    });
    let teller = teller(folder.path(), &server.url);
    let now = Instant::now();
    for (namespace, name) in [("hangs", "h"), ("fails", "f")] {
        journal(&teller, namespace, name, 1).await;
        teller.troubles().refused(namespace, &name.into(), Refusal::default(), now);
    }
    let told = async {
        while left(&teller).await.contains(&"f.1".to_owned()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = teller.tell_again() => {}
        result = tokio::time::timeout(Duration::from_secs(7), told) => result.unwrap(),
    }
    assert_eq!(left(&teller).await, ["h.1"]);
}
