//! What `make bench` measures can be measured: every row, with a few HTCJobs, so that it does not rot.

use std::collections::BTreeSet;
use std::time::Duration;

use bench::Options;
use htc_operator::api::{crd_yaml, pool_crd_yaml, queue_crd_yaml};

fn options() -> Options {
    Options::new(bed::program(), crd_yaml().unwrap(), queue_crd_yaml().unwrap(), pool_crd_yaml().unwrap())
}

#[test]
fn rows_can_be_measured() {
    bed::turns::take(bed::Weight::Servers);
    // The one between is Kueue's.
    let rows: BTreeSet<u8> = (1..=15).filter(|row| *row != 14).collect();
    let report = bench::measure(&Options {
        rows: rows.clone(),
        at_once: vec![2, 5],
        queue: 10,
        finished: vec![5],
        window: Duration::from_secs(1),
        huge: 20,
        ends: 5,
        spread: 2,
        callbacks: 100,
        pods: 5,
        // The two namespaces have equal shares, and those that come last need theirs.
        waiting: 15,
        room: 20,
        pools: 2,
        ..options()
    })
    .unwrap();
    println!("{}", report.markdown());
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    let measured: BTreeSet<u8> = report.lines.iter().map(|line| line.row).collect();
    assert_eq!(measured, rows);
    let number = |row: u8, name: &str| {
        let mut lines = report.lines.iter().rev().filter(|line| line.row == row);
        lines.find_map(|line| line.numbers.get(name).copied()).unwrap()
    };
    let five = |row: u8, name: &str| assert!((number(row, name) - 5.0).abs() < 0.1, "{name}: {}", number(row, name));
    five(1, "htcjobs");
    // A difference of two short measurements, which may be below 0.
    assert!(number(4, "p50Seconds") > 0.0 && number(4, "scheddCpuPercent").is_finite());
    assert!(number(1, "condorSubmit") >= 1.0 && number(1, "idsSeconds") > 0.0);
    assert!(number(1, "bareRatio") > 0.0 && number(1, "sharedSubmitSeconds") > 0.0);
    assert!(number(2, "idsSeconds") >= 0.0 && number(2, "condorSubmitAfterSeconds") > 0.0);
    assert!(number(5, "rssMiB") > 1.0);
    assert!(number(6, "caughtUpSeconds") > 0.0);
    assert!(number(7, "statusBytes") > 100.0);
    five(8, "liveJobs");
    assert!(number(9, "p50Seconds") < 20.0);
    assert!(number(10, "perSecond") > 1.0);
    assert!((number(11, "jobs") - 20.0).abs() < 0.1 && number(11, "listSeconds") > 0.0);
    assert!(number(11, "watchedSeconds") > 0.0 && number(11, "frontPeakMiB") > 1.0);
    assert!(number(11, "running") > 0.0 && number(11, "starts") > 0.0 && number(11, "othersAloneSeconds") > 0.0);
    five(12, "htcjobs");
    assert!(number(12, "podsSeconds") > 0.0 && number(12, "bareRatio") > 0.0);
    assert!((number(13, "waiting") - 15.0).abs() < 0.1);
    assert!(
        number(13, "lateSeconds") > 0.0 && number(13, "grantedPerSecond") > 0.0 && number(13, "decisionSeconds") > 0.0
    );
    assert!(number(15, "readySeconds") > 0.0 && (number(15, "pools") - 2.0).abs() < 0.1);
    for (name, chart) in &report.charts {
        assert!(chart.svg().contains("<polyline"), "{name}");
    }
}

#[test]
#[ignore = "make test-long: Kueue is built from source for it"]
fn kueues_row_can_be_measured() {
    bed::turns::take(bed::Weight::Servers);
    let report = bench::measure(&Options { rows: [14].into(), workloads: 5, ..options() }).unwrap();
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    let number = |name: &str| report.lines[0].numbers[name];
    assert!((number("htcjobs") - 5.0).abs() < 0.1 && number("bareSeconds") > 0.0);
    assert!(number("admittedSeconds") > 0.0 && number("idsSeconds") >= number("admittedSeconds"));
}
