//! Requests of every kind, made up: never a panic, never a 5xx, always an answer.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use bed::desk::{Desk, NAME, UID, ended};
use bed::http;

const NAMES: &[&str] = &[
    "Authorization",
    "Content-Type",
    "ce-specversion",
    "ce-type",
    "ce-source",
    "ce-subject",
    "ce-id",
    "ce-time",
    "ce-data",
    "Content-Encoding",
    "Expect",
    "X",
];

fn value(token: &str) -> impl Strategy<Value = String> + use<> {
    let known = [
        "1.0",
        "0.3",
        "htcjob.cloudevent",
        "htcjob.cloudevent.started",
        "cern.ch",
        UID,
        "application/json",
        "application/cloudevents+json",
        "application/cloudevents-batch+json",
        "text/xml; charset=\"",
        "Bearer",
        "Bearer ",
        "%",
        "%ff%00",
        "",
        "gzip",
    ];
    let mut known: Vec<String> = known.iter().map(|value| (*value).to_owned()).collect();
    known.push(format!("Bearer {token}"));
    prop_oneof![4 => select(known), 1 => "[ -~\u{80}-\u{2ff}]{0,40}", 1 => "[ -~]{1000,1100}"]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let text = select(vec!["0", "7", "-1", "256", "abc", "", "12.0", "12.1", "99.9", "ERROR", NAME, "é"]);
    let leaf = prop_oneof![
        text.clone().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        Just(serde_json::Value::Null),
    ];
    let key = select(vec!["name", "jobid", "retcode", "data", "specversion", "type", "id", "source", "subject", "x"]);
    let json = leaf.prop_recursive(4, 16, 6, move |inner| {
        prop_oneof![
            prop::collection::vec((key.clone(), inner.clone()), 0..8)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
            prop::collection::vec(inner, 0..4).prop_map(serde_json::Value::from),
        ]
    });
    prop_oneof![
        4 => json.prop_map(|value| value.to_string().into_bytes()),
        3 => (select(vec!["12.0", "12.1", "99.9", "1", ""]), select(vec!["0", "255", "256", "x"]))
            .prop_map(|(id, code)| ended(id, code)),
        2 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (0..60_000_usize).prop_map(|depth| "[".repeat(depth).into_bytes()),
        1 => (64 * 1024 - 2..64 * 1024 + 3_usize).prop_map(|length| vec![b' '; length]),
    ]
}

#[test]
fn every_request_is_answered_and_none_breaks_the_receiver() {
    let desk = Desk::new();
    let request = (
        prop::collection::vec(any::<bool>(), 7),
        prop::collection::vec((select(NAMES.to_vec()), value(&desk.token())), 0..4),
        body(),
    );
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2_000);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let (stored, refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    TestRunner::new(config)
        .run(&request, |(kept, added, body)| {
            // Mostly a whole event, with some of its headers dropped and others added.
            let mut headers: Vec<_> = desk.headers("e").into_iter().zip(kept.iter().cycle()).collect();
            headers.retain(|(_, keep)| **keep || added.len() > 1);
            let mut headers: Vec<(String, String)> = headers.into_iter().map(|(header, _)| header).collect();
            headers.extend(added.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            let answer = http::post(desk.address, &headers, &body);
            let answer = answer.map_err(|error| TestCaseError::fail(format!("no answer: {error}")))?;
            prop_assert!(answer.status == 204 || (400..500).contains(&answer.status), "{answer:?}");
            let count = if answer.status == 204 { &stored } else { &refused };
            count.set(count.get() + 1);
            Ok(())
        })
        .unwrap();
    println!("{} stored, {} refused", stored.get(), refused.get());
    assert!(stored.get() > 0 && refused.get() > 0, "both kinds must come up");
    assert_eq!(desk.post(&desk.headers("last"), &ended("12.1", "0")).status, 204, "it still works");
}
