//! The receiver alone: what is stored, what is refused, and how.

use std::time::{Duration, Instant};

use serde_json::json;

use bed::desk::{Desk, NAME, UID, ended};
use bed::http::{self, Connection};

/// The headers with one of them changed, or without it.
fn with(headers: &[(String, String)], name: &str, value: Option<&str>) -> Vec<(String, String)> {
    let mut changed: Vec<_> = headers.iter().filter(|(other, _)| other != name).cloned().collect();
    changed.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    changed
}

#[test]
fn events_in_both_modes_are_stored_once() {
    let desk = Desk::new();
    let start = with(&desk.headers("a"), "ce-type", Some("htcjob.cloudevent.started"));
    let answer = desk.post(&start, json!({ "name": NAME, "jobid": "12.0" }).to_string().as_bytes());
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    for _ in 0..3 {
        assert_eq!(desk.post(&desk.headers("b"), &ended("12.0", "7")).status, 204);
    }
    let structured = json!({
        "specversion": "1.0", "type": "htcjob.cloudevent", "source": "cern.ch", "id": "c", "subject": UID,
        "time": "2020-09-01T12:00:00Z", "data": { "name": NAME, "jobid": "12.1", "retcode": "0" },
    });
    let headers = http::headers(&[
        ("Authorization", &format!("bearer {}", desk.token())),
        ("Content-Type", "application/cloudevents+json; charset=UTF-8"),
    ]);
    for _ in 0..2 {
        assert_eq!(desk.post(&headers, structured.to_string().as_bytes()).status, 204);
    }
    let row = |id: &str, event: &str, code| (id.to_owned(), event.to_owned(), code);
    assert_eq!(desk.rows(), [row("12.0", "a", -1), row("12.0", "b", 7), row("12.1", "c", 0)]);
}

#[test]
fn what_can_never_be_right_is_refused_with_a_reason_and_not_stored() {
    let desk = Desk::new();
    let good = desk.headers("a");
    let body = ended("12.0", "0");
    let other = format!("Bearer {}", desk.keys.token(&"another".into()));
    let stray = with(&good, "Authorization", Some(&other));
    let cases = [
        (with(&good, "Authorization", None), body.clone(), 401, "NoToken"),
        (with(&good, "Authorization", Some("Basic abc")), body.clone(), 401, "NoToken"),
        (with(&good, "Authorization", Some("Bearer 00")), body.clone(), 403, "WrongToken"),
        // Another HTCJob's token for this one's job; and its own token for a job that is not its own.
        (stray.clone(), body.clone(), 403, "WrongToken"),
        (with(&stray, "ce-subject", Some("another")), body.clone(), 404, "UnknownJob"),
        (good.clone(), ended("13.0", "0"), 404, "UnknownJob"),
        (
            good.clone(),
            json!({ "name": "one", "jobid": "12.0", "retcode": "0" }).to_string().into_bytes(),
            404,
            "UnknownJob",
        ),
        (good.clone(), ended("12.0", "zero"), 400, "BadData"),
        (good.clone(), ended("12.0", "256"), 400, "BadData"),
        (good.clone(), ended("ERROR", "0"), 400, "BadData"),
        (good.clone(), b"{}".to_vec(), 400, "BadData"),
        (good.clone(), Vec::new(), 400, "BadData"),
        (good.clone(), b"{".to_vec(), 400, "NotACloudEvent"),
        (with(&good, "ce-specversion", None), body.clone(), 400, "NotACloudEvent"),
        (with(&good, "ce-id", None), body.clone(), 400, "NotACloudEvent"),
        (with(&good, "ce-type", Some("com.example.someevent")), body.clone(), 400, "UnknownType"),
        (with(&good, "ce-subject", None), body.clone(), 400, "BadData"),
        (with(&good, "Content-Type", Some("application/cloudevents-batch+json")), body.clone(), 400, "NotACloudEvent"),
        (good.clone(), vec![b' '; 64 * 1024 + 1], 413, "TooLarge"),
    ];
    for (headers, body, status, reason) in cases {
        let answer = desk.post(&headers, &body);
        assert_eq!((answer.status, answer.reason().as_str()), (status, reason), "{headers:?}\n{answer:?}");
        assert!(!answer.body.contains(&desk.token()), "{answer:?}");
    }
    let get = http::get(desk.address, "/cloudevents").unwrap();
    assert_eq!((get.status, http::get(desk.address, "/").unwrap().status), (405, 404));
    let whole = [ended("12.0", "0"), vec![b' '; 64 * 1024 - ended("12.0", "0").len()]].concat();
    assert_eq!(desk.post(&good, &whole).status, 204, "64 KiB are not too large");
    assert_eq!(desk.rows().len(), 1);
}

#[test]
fn who_does_not_lead_asks_to_be_told_again() {
    let desk = Desk::standing_by(None);
    let answer = desk.post(&desk.headers("a"), &ended("12.0", "0"));
    assert_eq!((answer.status, answer.reason().as_str()), (503, "Unavailable"));
    assert!(answer.head.to_ascii_lowercase().contains("\r\nretry-after: 2\r\n"), "{}", answer.head);
    // Nobody learns without a token that this one does not lead.
    assert_eq!(desk.post(&with(&desk.headers("a"), "Authorization", None), &ended("12.0", "0")).status, 401);
    desk.open();
    assert_eq!(desk.post(&desk.headers("a"), &ended("12.0", "0")).status, 204);
}

#[test]
fn who_is_too_slow_is_let_go() {
    let desk = Desk::new();
    let whole = http::request(&desk.headers("a"), &ended("12.0", "0"));
    let began = Instant::now();
    let mut headers = Connection::open(desk.address).unwrap();
    headers.send(&whole[..40]).unwrap();
    let mut body = Connection::open(desk.address).unwrap();
    body.send(&whole[..whole.len() - 1]).unwrap();
    assert_eq!(headers.answer().map_or(408, |answer| answer.status), 408);
    assert_eq!(body.answer().unwrap().reason(), "TooSlow");
    assert!(began.elapsed() < Duration::from_secs(50));
    assert!(desk.rows().is_empty());
}
