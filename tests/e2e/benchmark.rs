//! Each row of `make bench`, measured with a few HTCJobs. `make test-long` runs them.

use std::collections::BTreeSet;
use std::time::Duration;

use bench::{Options, Report};
use htc_api::{crd_yaml, pool_crd_yaml, queue_crd_yaml};

fn options() -> Options {
    Options::new(bed::program(), crd_yaml().unwrap(), queue_crd_yaml().unwrap(), pool_crd_yaml().unwrap())
}

/// The rows of a report, with so little in each that they only show that they can be measured.
struct Measured(Report);

impl Measured {
    fn new<const N: usize>(rows: [u8; N]) -> Self {
        bed::turns::take(bed::Weight::Servers);
        let rows = BTreeSet::from(rows);
        let mut reported = 0;
        let options = Options {
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
        };
        let report = bench::measure(&options, |so_far| {
            reported = so_far.lines.len();
            Ok(())
        })
        .unwrap();
        println!("{}", report.markdown());
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        assert_eq!(reported, report.lines.len());
        let measured: BTreeSet<u8> = report.lines.iter().map(|line| line.row).collect();
        assert_eq!(measured, rows);
        for (name, chart) in &report.charts {
            assert!(chart.svg().contains("<polyline"), "{name}");
        }
        Self(report)
    }

    fn number(&self, row: u8, name: &str) -> f64 {
        let mut lines = self.0.lines.iter().rev().filter(|line| line.row == row);
        lines.find_map(|line| line.numbers.get(name).copied()).unwrap()
    }

    fn assert_number(&self, row: u8, name: &str, expected: f64) {
        let number = self.number(row, name);
        assert!((number - expected).abs() < 0.1, "row {row}, {name}: {number}");
    }
}

#[test]
#[ignore = "make test-long: a minute for what make bench does"]
fn quick_benchmark_rows_can_be_measured() {
    let rows = Measured::new([1, 2, 3, 10, 12]);
    let number = |row, name| rows.number(row, name);
    rows.assert_number(1, "htcjobs", 5.0);
    assert!(number(1, "condorSubmit") >= 1.0 && number(1, "idsSeconds") > 0.0);
    assert!(number(1, "bareRatio") > 0.0 && number(1, "sharedSubmitSeconds") > 0.0);
    assert!(number(2, "idsSeconds") >= 0.0 && number(2, "condorSubmitAfterSeconds") > 0.0);
    assert!(number(10, "perSecond") > 1.0);
    rows.assert_number(12, "htcjobs", 5.0);
    assert!(number(12, "podsSeconds") > 0.0 && number(12, "bareRatio") > 0.0);
}

#[test]
#[ignore = "make test-long: most of their minutes they wait for rest"]
fn slow_benchmark_rows_can_be_measured() {
    // All but Kueue's.
    let rows = Measured::new([4, 5, 6, 7, 8, 9, 11, 13, 15]);
    let number = |row, name| rows.number(row, name);
    // A difference of two short measurements, which may be below 0.
    assert!(number(4, "p50Seconds") > 0.0 && number(4, "scheddCpuPercent").is_finite());
    assert!(number(5, "rssMiB") > 1.0);
    assert!(number(6, "caughtUpSeconds") > 0.0);
    assert!(number(7, "statusBytes") > 100.0);
    rows.assert_number(8, "liveJobs", 5.0);
    assert!(number(9, "p50Seconds") < 20.0);
    rows.assert_number(11, "jobs", 20.0);
    assert!(number(11, "listSeconds") > 0.0);
    assert!(number(11, "watchedSeconds") > 0.0 && number(11, "frontPeakMiB") > 1.0);
    assert!(number(11, "running") > 0.0 && number(11, "starts") > 0.0 && number(11, "othersAloneSeconds") > 0.0);
    assert!(number(11, "succeeded") > 0.0 && number(11, "ends") > 0.0 && number(11, "endP50Seconds") > 0.0);
    rows.assert_number(13, "waiting", 15.0);
    assert!(
        number(13, "lateSeconds") > 0.0 && number(13, "grantedPerSecond") > 0.0 && number(13, "decisionSeconds") > 0.0
    );
    assert!(number(15, "readySeconds") > 0.0);
    rows.assert_number(15, "pools", 2.0);
}

#[test]
#[ignore = "make test-long: Kueue is built from source for it"]
fn kueue_benchmark_row_can_be_measured() {
    bed::turns::take(bed::Weight::Servers);
    let report = bench::measure(&Options { rows: [14].into(), workloads: 5, ..options() }, |_| Ok(())).unwrap();
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    let number = |name: &str| report.lines[0].numbers[name];
    assert!((number("htcjobs") - 5.0).abs() < 0.1 && number("bareSeconds") > 0.0);
    assert!(number("admittedSeconds") > 0.0 && number("idsSeconds") >= number("admittedSeconds"));
}
