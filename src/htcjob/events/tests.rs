use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use htc_api::{ObjectName, Phase};
use htc_ledger::Save;
use htc_machine::ScheddName;
use htc_machine::facts::ObjectRow;
use htc_machine::transitions::{Transition, Trigger};
use htc_support::health::Health;
use htc_support::metrics::Metrics;
use kube::core::response::{StatusCause, StatusDetails};
use serde_json::{Value, json};

use super::*;

/// A fake API server with scripted answers.
struct Server {
    url: String,
    /// Names of the Events in the requests.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Status code for namespace and name of an Event and the number of earlier requests for it; `None` sends no
    /// answer.
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
    // The client may have closed the connection.
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

fn teller(folder: &Path, url: &str) -> EventWriter {
    let mut config = kube::Config::new(url.parse().unwrap());
    config.default_retry = false;
    let clock = Clock::default();
    EventWriter {
        notifies: Arc::default(),
        client: Client::try_from(config).unwrap(),
        ledger: Ledger::open(&folder.join("ledger.db"), &Metrics::default(), &Health::default()).unwrap(),
        clock,
        metrics: Metrics::default(),
        backoffs: Mutex::default(),
    }
}

/// Creates this many rows of an object; its uid is also its name.
async fn journal(teller: &EventWriter, namespace: &str, name: &str, rows: usize) {
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
    let known = ObjectRow {
        phase: Phase::Pending,
        new: true,
        started: None,
        completed: None,
        cut_short: None,
        given_up: 0,
        released: false,
        last_queue: None,
        conditions: Vec::new(),
    };
    let save = Save {
        absent: None,
        returned_quota: htc_machine::Indices::default(),
        uid: name.into(),
        name: ObjectName { namespace: namespace.to_owned(), name: name.to_owned() },
        pool: None,
        row: known,
        jobs: Vec::new(),
        settled: None,
        action_updates: Vec::new(),
        schedd: ScheddName::from("s"),
        sandbox: String::new(),
        transitions: vec![transition; rows],
        refuted: Vec::new(),
        now: teller.clock.now(),
    };
    teller.ledger.save(save).await.unwrap();
}

async fn tell(teller: &EventWriter) -> Result<usize, EventError> {
    teller.write_rows(teller.untold().await.unwrap()).await
}

/// Rows that are not written yet, as `object.row`.
async fn left(teller: &EventWriter) -> Vec<String> {
    let rows = teller.ledger.unwritten_events(1000, EventFilter::default()).await.unwrap();
    let mut left: Vec<String> = rows.iter().map(|row| format!("{}.{}", row.uid, row.seq)).collect();
    left.sort();
    left
}

fn given_up(teller: &EventWriter) -> String {
    let text = teller.metrics.text().unwrap();
    let line = text.lines().find(|line| line.starts_with("htc_events_given_up_total")).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn maybe_written_events_have_distinct_names() {
    let row = |told_before| JournalRow {
        uid: "0123456789ab".into(),
        name: ObjectName { namespace: "n".to_owned(), name: "zero".to_owned() },
        seq: 7,
        time: Timestamp(0),
        reason: "Running".to_owned(),
        detail: String::new(),
        warning: false,
        maybe_written: told_before,
    };
    assert_eq!(name(&row(false), "fedcba9876543210"), "zero.01234567.0007");
    assert_eq!(name(&row(true), "fedcba9876543210"), "zero.01234567.fedcba98.0007");
}

#[test]
fn each_api_error_is_classified() {
    let failed = |status: Status| {
        let source = Box::new(kube::Error::Api(status.boxed()));
        classify_error(&ApiError::Failed { what: "", object: String::new(), source })
    };
    let refused =
        |limited, seconds| EventOutcome::Refused(EventRefusal { limited, wait: Duration::from_secs(seconds) });
    let meanings = [
        (status(409, "AlreadyExists"), EventOutcome::Written),
        (status(409, "Conflict"), refused(false, 0)),
        (status(404, "NotFound"), EventOutcome::Never { missed: false }),
        (terminating(), EventOutcome::Never { missed: false }),
        (status(403, "Forbidden"), refused(false, 0)),
        (status(400, "BadRequest"), EventOutcome::Never { missed: true }),
        (status(422, "Invalid"), EventOutcome::Never { missed: true }),
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
    let silent = ApiError::TimedOut { what: "", object: String::new(), limit: Duration::ZERO };
    assert_eq!(classify_error(&silent).unwrap(), refused(false, 0));
}

#[tokio::test]
async fn only_events_of_existing_namespaces_count_as_given_up() {
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
async fn rate_limit_of_one_namespace_stops_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|namespace, _, _| (namespace == "a").then(|| wait(429, 30)));
    let teller = teller(folder.path(), &server.url);
    for (namespace, name) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")] {
        journal(&teller, namespace, name, 3).await;
    }
    assert_eq!(tell(&teller).await.unwrap(), 12);
    assert_eq!(left(&teller).await, ["a1.1", "a1.2", "a1.3", "a2.1", "a2.2", "a2.3"]);
    assert_eq!(tell(&teller).await.unwrap(), 0, "the namespace waits by itself");
    let (due, next) = teller.backoffs().take_due(10, Instant::now());
    assert!(due.is_empty() && next.is_some_and(|next| next > Instant::now() + Duration::from_secs(25)), "{next:?}");
}

#[tokio::test]
async fn rate_limit_of_several_namespaces_stops_all_events() {
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
async fn failed_write_loses_no_other_result() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|_, name, _| name.starts_with("bad").then(|| status(401, "Unauthorized")));
    let teller = teller(folder.path(), &server.url);
    for name in ["bad", "b", "c", "d"] {
        journal(&teller, name, name, 2).await;
    }
    assert_eq!(tell(&teller).await.unwrap(), 8);
    assert_eq!(left(&teller).await, ["bad.1", "bad.2"]);
    assert!(tell(&teller).await.is_err(), "no other Event was written this time");
}

#[tokio::test]
async fn events_of_an_object_are_written_in_order() {
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
async fn probe_backoff_grows_while_the_api_server_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let teller = teller(folder.path(), "http://127.0.0.1:1");
    journal(&teller, "a", "one", 1).await;
    let began = Instant::now();
    teller.backoffs().refused("a", &"one".into(), EventRefusal::default(), began);
    let probe = Probe::Object("one".into());
    for _ in 0..5 {
        teller.probe(probe.clone()).await;
    }
    let (due, next) = teller.backoffs().take_due(10, Instant::now() + Duration::from_secs(4));
    assert!(due.is_empty() && next.is_some(), "{due:?} {next:?}");
    assert!(!teller.backoffs().blocks("a", &"two".into()), "it is no refusal");
    assert_eq!(left(&teller).await, ["one.1"]);
}

/// A webhook that hangs blocks each request until its timeout; meanwhile the rows of other objects are retried.
#[tokio::test]
async fn hanging_webhook_does_not_delay_other_retries() {
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
        teller.backoffs().refused(namespace, &name.into(), EventRefusal::default(), now);
    }
    let told = async {
        while left(&teller).await.contains(&"f.1".to_owned()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = teller.retry_refused() => {}
        result = tokio::time::timeout(Duration::from_secs(7), told) => result.unwrap(),
    }
    assert_eq!(left(&teller).await, ["h.1"]);
}
