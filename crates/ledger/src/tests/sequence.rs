//! Sequence numbers of different ledgers.

use htc_support::clock::Clock;

use super::*;

/// Waits until new sequence numbers are higher than `sequence`. No ledger has a thousand transactions per second for
/// long.
async fn wait_past(sequence: i64) {
    while Clock::default().now().0 <= sequence {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// A client with a resource version of another ledger, or of the ledger that this file is a copy of, has to list again.
#[tokio::test]
async fn ledgers_share_no_sequence_number() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let store = async |ledger: &Ledger| {
        for phase in [Phase::Pending, Phase::Submitted, Phase::Running] {
            ledger.save(save(known(phase), Vec::new(), Vec::new())).await.unwrap();
        }
        ledger.sequence()
    };
    let ledger = Ledger::open_alone(&first).unwrap();
    let copied = ledger.sequence();
    assert!(ledger.has_had(copied) && !ledger.has_had(copied + 1));
    ledger.close().await;
    std::fs::copy(&first, &second).unwrap();
    let ledger = Ledger::open_alone(&first).unwrap();
    let latest = store(&ledger).await;
    assert!(ledger.has_had(copied) && ledger.has_had(latest));
    // The copy replaces the file.
    let mut copy = Ledger::open_alone(&second).unwrap();
    assert_eq!((copy.id(), copy.sequence()), (ledger.id(), copied));
    wait_past(latest).await;
    copy.begin_anew().await.unwrap();
    store(&copy).await;
    assert!(![copied, latest].into_iter().any(|version| copy.has_had(version)));
    // The file is lost.
    wait_past(copy.sequence()).await;
    let other = Ledger::open_alone(&folder.path().join("third")).unwrap();
    let begun = other.sequence();
    store(&other).await;
    assert!(![copied, latest, copy.sequence()].into_iter().any(|version| other.has_had(version)));
    let rows = other.recorded_until(begun).await.unwrap();
    assert!(rows.is_empty() && other.has_had(begun), "a client without a version gets all rows");
}

/// An older version does not record where its numbers begin.
#[tokio::test]
async fn sequence_of_an_older_version_continues() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    Ledger::open_alone(&path).unwrap().close().await;
    let older = "delete from ledger where key = 'begun'; update ledger set value = '7' where key = 'sequence'";
    Connection::open(&path).unwrap().execute_batch(older).unwrap();
    let ledger = Ledger::open_alone(&path).unwrap();
    assert_eq!(ledger.sequence(), 7);
    assert!(ledger.has_had(1) && ledger.has_had(7) && !ledger.has_had(8));
    ledger.save(save(known(Phase::Pending), Vec::new(), Vec::new())).await.unwrap();
    assert_eq!(ledger.sequence(), 8);
}
