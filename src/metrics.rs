//! What the operator counts and measures, for Prometheus. One registry for the process, as there is one log: who counts
//! needs nothing handed to it. Every label has few values, none of which anybody but this program chooses;
//! `docs/metrics.md` names them all.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::reflector::Store;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use strum::IntoEnumIterator as _;

use crate::api::{HTCJobStatus, Observed, Phase};

/// Requests that wait or run, by kind.
type Queues = Box<dyn Fn() -> BTreeMap<&'static str, usize> + Send + Sync>;

struct Metrics {
    registry: Registry,
    submissions: Counter,
    attempts: Family<Verdict, Counter>,
    removals: Counter,
    tools: Family<Call, Histogram>,
    callbacks: Family<Answered, Counter>,
    commits: Histogram,
    batches: Histogram,
    waiting: Gauge,
    orphans: Gauge,
    credentials: Family<Whose, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verdict {
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    tool: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Whose {
    whose: &'static str,
}

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);
static OBJECTS: OnceLock<Store<Observed>> = OnceLock::new();
static QUEUES: OnceLock<Queues> = OnceLock::new();
static LAST_LOOK: Mutex<Option<Instant>> = Mutex::new(None);

impl Metrics {
    fn new() -> Self {
        let mut registry = Registry::with_prefix("htc");
        let metrics = Self {
            submissions: Counter::default(),
            attempts: Family::default(),
            removals: Counter::default(),
            // 10 ms to 5 minutes.
            tools: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 2.0, 15))),
            callbacks: Family::default(),
            commits: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            batches: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            waiting: Gauge::default(),
            orphans: Gauge::default(),
            credentials: Family::default(),
            registry: Registry::default(),
        };
        registry.register(
            "submissions",
            "HTCJobs that were part of a condor_submit that ran",
            metrics.submissions.clone(),
        );
        registry.register("attempts", "Attempts to submit that were judged, by verdict", metrics.attempts.clone());
        registry.register("removals", "HTCJobs that were part of a condor_rm that ran", metrics.removals.clone());
        registry.register_with_unit(
            "tool_duration",
            "Calls of HTCondor's tools, by tool and outcome",
            Unit::Seconds,
            metrics.tools.clone(),
        );
        registry.register("callbacks", "Events that jobs sent, by what became of them", metrics.callbacks.clone());
        registry.register_with_unit(
            "ledger_commit_duration",
            "Transactions of the ledger, from their begin to their commit",
            Unit::Seconds,
            metrics.commits.clone(),
        );
        registry.register("ledger_batch_size", "Writes and reads that shared a transaction", metrics.batches.clone());
        registry.register("ledger_queue", "Writes and reads that wait for the ledger", metrics.waiting.clone());
        registry.register("orphans", "Jobs in HTCondor without an HTCJob, at the last look", metrics.orphans.clone());
        registry.register(
            "credentials_failing",
            "Identities without credentials that are good",
            metrics.credentials.clone(),
        );
        registry.register_collector(Box::new(AtScrape));
        Self { registry, ..metrics }
    }
}

/// What is looked up when somebody asks.
#[derive(Debug)]
struct AtScrape;

impl Collector for AtScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut gauge = |name: &str, help: &str, label: &'static str, values: &BTreeMap<&'static str, i64>| {
            let mut family = encoder.encode_descriptor(name, help, None, ConstGauge::new(0_i64).metric_type())?;
            for (value, count) in values {
                ConstGauge::new(*count).encode(family.encode_family(&[(label, *value)])?)?;
            }
            Ok(())
        };
        if let Some(store) = OBJECTS.get() {
            let (phases, states) = count(store);
            gauge("objects", "HTCJobs, by phase", "phase", &phases)?;
            gauge("jobs", "Jobs of all HTCJobs, by state", "state", &states)?;
        }
        if let Some(queues) = QUEUES.get() {
            let depths = queues().into_iter().map(|(kind, depth)| (kind, i64::try_from(depth).unwrap_or(i64::MAX)));
            gauge("requests", "Requests that wait for a worker or run, by kind", "kind", &depths.collect())?;
        }
        let last = *LAST_LOOK.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last {
            let age = ConstGauge::new(last.elapsed().as_secs_f64());
            let help = "Time since HTCondor last answered about all jobs; it is asked only while there are any";
            let encoder = encoder.encode_descriptor("tracker_age", help, Some(&Unit::Seconds), age.metric_type())?;
            age.encode(encoder)?;
        }
        Ok(())
    }
}

fn count(store: &Store<Observed>) -> (BTreeMap<&'static str, i64>, BTreeMap<&'static str, i64>) {
    // Each stands there from the start: nothing can be compared with what is missing.
    let mut phases: BTreeMap<&'static str, i64> = Phase::iter().map(|phase| (phase.into(), 0)).collect();
    phases.insert("none", 0);
    let mut jobs = BTreeMap::from(states(&HTCJobStatus::default()));
    for object in store.state() {
        let told = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
        let phase = told.and_then(|told| told.phase).map_or("none", <&str>::from);
        *phases.entry(phase).or_default() += 1;
        let Some(told) = told else { continue };
        for (state, count) in states(told) {
            *jobs.entry(state).or_default() += count;
        }
    }
    (phases, jobs)
}

const fn states(told: &HTCJobStatus) -> [(&'static str, i64); 5] {
    [
        ("idle", told.idle),
        ("running", told.running),
        ("held", told.held),
        ("succeeded", told.succeeded),
        ("failed", told.failed),
    ]
}

/// From now on the objects in `store` are counted.
pub fn count_objects(store: Store<Observed>) {
    let _ = OBJECTS.set(store);
}

/// From now on `queues` says how many requests of each kind wait or run.
pub fn count_requests(queues: impl Fn() -> BTreeMap<&'static str, usize> + Send + Sync + 'static) {
    let _ = QUEUES.set(Box::new(queues));
}

/// So many HTCJobs were part of a condor_submit.
pub fn submitted(objects: usize) {
    METRICS.submissions.inc_by(objects as u64);
}

/// An attempt was judged: `accepted`, `late`, `stillborn`, `absent`, or `not_run`.
pub fn attempt(verdict: &'static str) {
    METRICS.attempts.get_or_create(&Verdict { verdict }).inc();
}

/// So many HTCJobs were part of a condor_rm.
pub fn removed(objects: usize) {
    METRICS.removals.inc_by(objects as u64);
}

/// A call of one of HTCondor's tools ended: `ok`, `failed` by its exit status, or `error` without one.
pub fn tool(tool: &'static str, outcome: &'static str, elapsed: Duration) {
    METRICS.tools.get_or_create(&Call { tool, outcome }).observe(elapsed.as_secs_f64());
}

/// An event of a job was answered: `Stored`, `Again`, or the reason of the refusal.
pub fn callback(outcome: &'static str) {
    METRICS.callbacks.get_or_create(&Answered { outcome }).inc();
}

/// A transaction of the ledger has ended.
pub fn transaction(tasks: usize, took: Duration) {
    METRICS.commits.observe(took.as_secs_f64());
    METRICS.batches.observe(f64::from(u32::try_from(tasks).unwrap_or(u32::MAX)));
}

/// So many more (or fewer) wait for the ledger.
pub fn ledger_queue(change: i64) {
    METRICS.waiting.inc_by(change);
}

/// HTCondor has answered about all jobs.
pub fn looked() {
    *LAST_LOOK.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
}

/// So many jobs in HTCondor belong to no HTCJob.
pub fn orphans(count: usize) {
    METRICS.orphans.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// So many identities have no credentials that are good: the operator's own, and those of Secrets.
pub fn credentials((own, secrets): (i64, i64)) {
    METRICS.credentials.get_or_create(&Whose { whose: "operator" }).set(own);
    METRICS.credentials.get_or_create(&Whose { whose: "secrets" }).set(secrets);
}

/// All of it in OpenMetrics' text format.
pub fn text() -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &METRICS.registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::machine::Kind;

    fn names(text: &str) -> BTreeSet<String> {
        let helped = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        helped.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_metric_is_documented_and_nothing_else_is() {
        let (store, _) = kube::runtime::reflector::store();
        count_objects(store);
        count_requests(|| Kind::iter().map(|kind| (kind.into(), 1)).collect());
        submitted(1);
        attempt("accepted");
        removed(1);
        tool("condor_q", "ok", Duration::from_millis(20));
        callback("Stored");
        transaction(3, Duration::from_millis(1));
        ledger_queue(0);
        looked();
        orphans(0);
        credentials((0, 0));
        let text = text().unwrap();
        for phase in Phase::iter().map(<&str>::from).chain(["none"]) {
            assert!(text.contains(&format!("htc_objects{{phase=\"{phase}\"}} 0")), "{text}");
        }
        assert!(text.contains("htc_jobs{state=\"running\"} 0"), "{text}");
        let page = include_str!("../docs/metrics.md");
        let documented: BTreeSet<String> =
            page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned())).collect();
        assert_eq!(documented, names(&text), "{text}");
    }
}
