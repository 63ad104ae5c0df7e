use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use tokio::sync::watch::channel;

use super::*;
use crate::api::{HTCJob, HTCJobSpec, Observed};
use crate::health::Health;
use crate::ledger::Ledger;
use crate::metrics::Metrics;

fn htcjob(queue: u32) -> Observed {
    let mut htcjob = HTCJob::new("large", HTCJobSpec { queue: Some(queue.into()), ..HTCJobSpec::default() });
    (htcjob.metadata.namespace, htcjob.metadata.uid) = (Some("here".to_owned()), Some("u".to_owned()));
    crate::api::Guarded(Ok(htcjob))
}

/// All that one look finds, step by step: kinds and indexes.
async fn steps(watching: &mut Watching) -> Vec<Vec<(String, u64)>> {
    let mut steps = Vec::new();
    loop {
        let text = watching.step().await.unwrap();
        if text.is_empty() {
            return steps;
        }
        let frame = |line: &str| {
            let frame: Value = serde_json::from_str(line).unwrap();
            (frame["type"].as_str().unwrap().to_owned(), frame["object"]["spec"]["index"].as_u64().unwrap())
        };
        steps.push(text.lines().map(frame).collect());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_large_htcjob_a_part_is_told_at_a_step() {
    const JOBS: u32 = 3500;
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&folder.path().join("x.db"), &Metrics::default(), &Health::default()).unwrap();
    let (objects, mut writer) = reflector::store();
    let records = Records { objects, changed: channel(true).1, ledger, operator: String::new() };
    // The second one keeps in mind which jobs are in its selection.
    for words in ["watch=1&resourceVersion=0", "watch=1&resourceVersion=0&fieldSelector=status.state%3DWaiting"] {
        let query = Query::parse(words, None).unwrap();
        let watch = query.watch.unwrap();
        let mut watching = Watching::begin(records.clone(), None, &query, watch).await.unwrap();
        assert!(steps(&mut watching).await.is_empty());
        let events = [(Event::Apply(htcjob(JOBS)), "ADDED"), (Event::Delete(htcjob(JOBS)), "DELETED")];
        for (event, kind) in events {
            writer.apply_watcher_event(&event);
            let steps = steps(&mut watching).await;
            let most = steps.iter().map(Vec::len).max();
            assert!(most <= Some(PART), "{kind}: {most:?} jobs at a step");
            let all: Vec<(String, u64)> = steps.concat();
            let expected: Vec<(String, u64)> = (0..JOBS).map(|index| (kind.to_owned(), index.into())).collect();
            assert!(all == expected, "{words}, {kind}: {} of {JOBS}", all.len());
        }
        assert!(watching.inside.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_looked_at_while_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&folder.path().join("x.db"), &Metrics::default(), &Health::default()).unwrap();
    let (objects, mut writer) = reflector::store();
    let (sender, changed) = channel(true);
    let records = Records { objects, changed, ledger, operator: String::new() };
    let query = Query::parse("watch=1&resourceVersion=0", None).unwrap();
    let mut watching = Watching::begin(records, None, &query, query.watch.unwrap()).await.unwrap();
    assert!(steps(&mut watching).await.is_empty());
    writer.apply_watcher_event(&Event::Apply(htcjob(2)));
    assert!(steps(&mut watching).await.is_empty(), "nobody has said that there is something to look at");
    sender.send_replace(true);
    assert_eq!(steps(&mut watching).await.concat().len(), 2);
}
