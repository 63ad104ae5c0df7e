//! Metrics of the operator, for Prometheus. Every label has few values. They come from this program alone, except for
//! the names of HTCPools and queues. `docs/metrics.md` lists them all.

mod labels;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use htc_api::{HTCJobStatus, ObjectName, ObservedHTCJob, Phase};
use kube::runtime::reflector::Store;
use labels::{AdLabels, CallbackLabels, CredentialLabels, FailureLabels, PoolLabel, ToolLabels, VerdictLabels};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use strum::IntoEnumIterator as _;

use crate::fence::Fence;

/// Function that returns the number of requests that wait or run, by kind.
type RequestCounts = Box<dyn Fn() -> BTreeMap<&'static str, usize> + Send + Sync>;

/// Metrics of one operator, labelled for one pool. Clones share the counters.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<MetricFamilies>,
    pool: Arc<str>,
}

/// Label of the pool of the operator's flags. That of an HTCPool is `namespace/name`.
const DEFAULT_POOL: &str = "default";

impl Default for Metrics {
    fn default() -> Self {
        Self { inner: Arc::default(), pool: DEFAULT_POOL.into() }
    }
}

struct MetricFamilies {
    registry: Registry,
    reconciles: Counter,
    failures: Family<FailureLabels, Counter>,
    durations: Histogram,
    submissions: Counter,
    attempts: Family<VerdictLabels, Counter>,
    removals: Counter,
    tools: Family<ToolLabels, Histogram>,
    callbacks: Family<CallbackLabels, Counter>,
    commits: Histogram,
    batches: Histogram,
    waiting: Gauge,
    orphans: Family<PoolLabel, Gauge>,
    unreadable: Family<AdLabels, Gauge>,
    events_given_up: Counter,
    confined: Gauge,
    credentials: Family<CredentialLabels, Gauge>,
    granted: Counter,
    waits_for_grants: Histogram,
    queue_decisions: Histogram,
    at_scrape: Arc<AtScrape>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for MetricFamilies {
    fn default() -> Self {
        let mut metrics = Self {
            reconciles: Counter::default(),
            failures: Family::default(),
            // 0.1 ms to 13 s.
            durations: Histogram::new(exponential_buckets(0.0001, 2.0, 18)),
            submissions: Counter::default(),
            attempts: Family::default(),
            removals: Counter::default(),
            // 10 ms to 5 minutes.
            tools: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 2.0, 15))),
            callbacks: Family::default(),
            commits: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            batches: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            waiting: Gauge::default(),
            orphans: Family::default(),
            unreadable: Family::default(),
            events_given_up: Counter::default(),
            confined: Gauge::default(),
            credentials: Family::default(),
            granted: Counter::default(),
            // 10 ms to 5 days.
            waits_for_grants: Histogram::new(exponential_buckets(0.01, 4.0, 14)),
            // 0.1 ms to 3 s.
            queue_decisions: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            at_scrape: Arc::default(),
            registry: Registry::with_prefix("htc"),
        };
        metrics.register();
        metrics
    }
}

impl MetricFamilies {
    fn register(&mut self) {
        let registry = &mut self.registry;
        let features = if cfg!(feature = "fail-points") { "fail-points" } else { "" };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("features", features)]);
        registry.register("build", "Version of the operator", build);
        registry.register("reconciles", "Reconciles of HTCJobs", self.reconciles.clone());
        registry.register("reconcile_failures", "Failed reconciles, by step and reason", self.failures.clone());
        registry.register_with_unit(
            "reconcile_duration",
            "Duration of reconciles",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register("submissions", "HTCJobs submitted by condor_submit", self.submissions.clone());
        registry.register("attempts", "Submission attempts, by verdict", self.attempts.clone());
        registry.register("removals", "HTCJobs removed by condor_rm", self.removals.clone());
        registry.register_with_unit(
            "tool_duration",
            "Duration of HTCondor's tools, by tool and outcome",
            Unit::Seconds,
            self.tools.clone(),
        );
        registry.register("callbacks", "Callbacks from jobs, by outcome", self.callbacks.clone());
        registry.register_with_unit(
            "ledger_commit_duration",
            "Duration of ledger transactions",
            Unit::Seconds,
            self.commits.clone(),
        );
        registry.register("ledger_batch_size", "Reads and writes in one ledger transaction", self.batches.clone());
        registry.register("ledger_pending", "Reads and writes that wait for the ledger", self.waiting.clone());
        registry.register("ledger_queue", "Deprecated: use htc_ledger_pending", self.waiting.clone());
        registry.register("orphans", "Jobs in HTCondor without an HTCJob, at the last count", self.orphans.clone());
        registry.register(
            "unreadable_ads",
            "Unreadable job ads in the last answer, by place and owner",
            self.unreadable.clone(),
        );
        registry.register(
            "events_given_up",
            "Events that will not be written, because the API server refused them",
            self.events_given_up.clone(),
        );
        registry.register("credentials_failing", "Identities whose credentials do not work", self.credentials.clone());
        registry.register("confined", "1 if HTCondor's tools are confined by Landlock, else 0", self.confined.clone());
        registry.register("queue_granted_jobs", "Jobs that were granted quota", self.granted.clone());
        registry.register_with_unit(
            "queue_time_to_grant",
            "Time that HTCJobs waited for quota",
            Unit::Seconds,
            self.waits_for_grants.clone(),
        );
        registry.register_with_unit(
            "queue_decision_duration",
            "Duration of decisions about the quota of all queues",
            Unit::Seconds,
            self.queue_decisions.clone(),
        );
        registry.register_with_unit(
            "queue_decision",
            "Deprecated: use htc_queue_decision_duration_seconds",
            Unit::Seconds,
            self.queue_decisions.clone(),
        );
        registry.register_collector(Box::new(Scrape(Arc::clone(&self.at_scrape))));
    }
}

/// Sources that are read at each scrape.
#[derive(Default)]
struct AtScrape {
    fence: OnceLock<Fence>,
    objects: OnceLock<Store<ObservedHTCJob>>,
    queues: OnceLock<RequestCounts>,
    last_looks: Mutex<BTreeMap<Arc<str>, Instant>>,
    htcqueues: Mutex<Option<QueuesMeasured>>,
}

/// State of all queues.
#[derive(Clone, Debug, Default)]
pub struct QueuesMeasured {
    /// Each HTCQueue, or all LocalQueues of Kueue together.
    pub queues: Vec<QueueMeasured>,
    /// Number of HTCJobs in each state.
    pub htcjobs: Vec<(&'static str, i64)>,
}

/// State of an HTCQueue.
#[derive(Clone, Debug)]
pub struct QueueMeasured {
    /// Name of the queue.
    pub name: Arc<str>,
    /// Number of waiting jobs.
    pub waiting: i64,
    /// Quota in use, by resource.
    pub used: Vec<(&'static str, i64)>,
    /// Quota, by resource.
    pub quota: Vec<(&'static str, i64)>,
}

impl fmt::Debug for AtScrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtScrape")
    }
}

/// Collector that encodes the sources in the registry.
#[derive(Debug)]
struct Scrape(Arc<AtScrape>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let AtScrape { fence, objects, queues, last_looks, htcqueues } = &*self.0;
        let leads = fence.get().is_some_and(|fence| fence.check().is_ok());
        let leader = ConstGauge::new(i64::from(leads));
        let help = "1 while this operator leads, else 0";
        leader.encode(encoder.encode_descriptor("leader", help, None, leader.metric_type())?)?;
        let mut gauge = |name: &str, help: &str, label: &'static str, values: &BTreeMap<&'static str, i64>| {
            let mut family = encoder.encode_descriptor(name, help, None, ConstGauge::new(0_i64).metric_type())?;
            for (value, count) in values {
                ConstGauge::new(*count).encode(family.encode_family(&[(label, *value)])?)?;
            }
            Ok(())
        };
        if let Some(store) = objects.get() {
            let (phases, states) = count(store);
            gauge("htcjobs", "HTCJobs, by phase", "phase", &phases)?;
            gauge("objects", "Deprecated: use htc_htcjobs", "phase", &phases)?;
            gauge("jobs", "Jobs of all HTCJobs, by state", "state", &states)?;
        }
        if let Some(queues) = queues.get() {
            let depths = queues().into_iter().map(|(kind, depth)| (kind, i64::try_from(depth).unwrap_or(i64::MAX)));
            let depths = depths.collect();
            gauge("worker_requests", "Requests that wait for a worker or run, by kind", "kind", &depths)?;
            gauge("requests", "Deprecated: use htc_worker_requests", "kind", &depths)?;
        }
        let htcqueues = htcqueues.lock().clone();
        if let Some(measured) = htcqueues {
            encode_queues(&mut encoder, &measured)?;
        }
        let last_looks = last_looks.lock().clone();
        if !last_looks.is_empty() {
            let age = |last: &Instant| ConstGauge::new(last.elapsed().as_secs_f64());
            let help =
                "Time since the last answer of HTCondor about all jobs; it grows while there are no jobs to ask about";
            let kind = ConstGauge::new(0.0).metric_type();
            let mut family = encoder.encode_descriptor("tracker_age", help, Some(&Unit::Seconds), kind)?;
            for (pool, last) in &last_looks {
                age(last).encode(family.encode_family(&[("pool", &**pool)])?)?;
            }
        }
        Ok(())
    }
}

fn encode_queues(encoder: &mut DescriptorEncoder<'_>, measured: &QueuesMeasured) -> Result<(), fmt::Error> {
    let QueuesMeasured { queues, htcjobs } = measured;
    let kind = ConstGauge::new(0_i64).metric_type();
    let mut family = encoder.encode_descriptor("queue_htcjobs", "HTCJobs in a queue, by state", None, kind)?;
    for (state, count) in htcjobs {
        ConstGauge::new(*count).encode(family.encode_family(&[("state", *state)])?)?;
    }
    let mut family = encoder.encode_descriptor("queue_waiting_jobs", "Jobs that wait for quota", None, kind)?;
    for queue in queues {
        ConstGauge::new(queue.waiting).encode(family.encode_family(&[("queue", &*queue.name)])?)?;
    }
    let mut amounts = |name: &str, help: &str, of: fn(&QueueMeasured) -> &[(&'static str, i64)]| {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for queue in queues {
            for (resource, amount) in of(queue) {
                let labels = [("queue", &*queue.name), ("resource", *resource)];
                ConstGauge::new(*amount).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    };
    amounts("queue_used", "Quota in use, by resource; memory in bytes", |queue| &queue.used)?;
    amounts("queue_quota", "Quota, by resource; memory in bytes", |queue| &queue.quota)
}

fn count(store: &Store<ObservedHTCJob>) -> (BTreeMap<&'static str, i64>, BTreeMap<&'static str, i64>) {
    // Every label exists from the start, because queries cannot compare with a missing value.
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

impl Metrics {
    /// Returns the same metrics labelled for this HTCPool.
    #[must_use]
    pub fn of_pool(&self, pool: &ObjectName) -> Self {
        Self { pool: pool.to_string().into(), ..self.clone() }
    }

    /// Removes the metrics of a deleted pool.
    pub fn forget_pool(&self) {
        let Self { inner, pool } = self;
        inner.orphans.remove(&PoolLabel { pool: Arc::clone(pool) });
        for owner in ["operator", "secrets"] {
            inner.credentials.remove(&CredentialLabels::new(pool, owner));
        }
        for place in ["queue", "history"] {
            for owner in ["htcjob", "none"] {
                inner.unreadable.remove(&AdLabels::new(pool, place, owner));
            }
        }
        inner.at_scrape.last_looks.lock().remove(pool);
    }

    /// Counts the objects in `store` from now on.
    pub fn count_objects(&self, store: Store<ObservedHTCJob>) {
        let _ = self.inner.at_scrape.objects.set(store);
    }

    /// Reports this operator as the leader while `fence` is open.
    pub fn set_fence(&self, fence: Fence) {
        let _ = self.inner.at_scrape.fence.set(fence);
    }

    /// Reports the numbers that `queues` returns: requests of each kind that wait or run.
    pub fn count_requests(&self, queues: impl Fn() -> BTreeMap<&'static str, usize> + Send + Sync + 'static) {
        let _ = self.inner.at_scrape.queues.set(Box::new(queues));
    }

    /// Counts a reconcile of one HTCJob, with the step and reason of a failure.
    pub fn reconciled(&self, took: Duration, failure: Option<(&'static str, &'static str)>) {
        self.inner.reconciles.inc();
        self.inner.durations.observe(took.as_secs_f64());
        if let Some((step, reason)) = failure {
            self.inner.failures.get_or_create(&FailureLabels { step, reason }).inc();
        }
    }

    /// Counts the HTCJobs of a condor_submit.
    pub fn submitted(&self, objects: usize) {
        self.inner.submissions.inc_by(objects as u64);
    }

    /// Counts an attempt by its verdict: `accepted`, `late`, `stillborn`, `absent`, or `not_run`.
    pub fn attempt(&self, verdict: &'static str) {
        self.inner.attempts.get_or_create(&VerdictLabels { verdict }).inc();
    }

    /// Counts the HTCJobs of a condor_rm.
    pub fn removed(&self, objects: usize) {
        self.inner.removals.inc_by(objects as u64);
    }

    /// Counts a call of one of HTCondor's tools: `ok`, `failed` by its exit status, or `error` without one.
    pub fn tool(&self, tool: &'static str, outcome: &'static str, elapsed: Duration) {
        self.inner.tools.get_or_create(&ToolLabels { tool, outcome }).observe(elapsed.as_secs_f64());
    }

    /// Counts the answer to an event of a job: `Stored`, `Again`, or the reason of the refusal.
    pub fn callback(&self, outcome: &'static str) {
        self.inner.callbacks.get_or_create(&CallbackLabels { outcome }).inc();
    }

    /// Records a finished transaction of the ledger.
    pub fn transaction(&self, tasks: usize, took: Duration) {
        self.inner.commits.observe(took.as_secs_f64());
        self.inner.batches.observe(f64::from(u32::try_from(tasks).unwrap_or(u32::MAX)));
    }

    /// Changes the number of statements that wait for the ledger.
    pub fn ledger_queue(&self, change: i64) {
        self.inner.waiting.inc_by(change);
    }

    /// Records that HTCondor has answered about all jobs.
    pub fn record_poll(&self) {
        let mut last_looks = self.inner.at_scrape.last_looks.lock();
        last_looks.insert(Arc::clone(&self.pool), Instant::now());
    }

    /// Sets the number of jobs in HTCondor that belong to no HTCJob.
    pub fn orphans(&self, count: usize) {
        let pool = Arc::clone(&self.pool);
        self.inner.orphans.get_or_create(&PoolLabel { pool }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets the number of unreadable ads in an answer about jobs in `place` (queue or history): ads that HTCJobs wait
    /// for, and ads that belong to none.
    pub fn unreadable(&self, place: &'static str, of_htcjobs: usize, of_none: usize) {
        for (owner, count) in [("htcjob", of_htcjobs), ("none", of_none)] {
            let ads = AdLabels::new(&self.pool, place, owner);
            self.inner.unreadable.get_or_create(&ads).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts Events that will not be written.
    pub fn events_given_up(&self, count: usize) {
        self.inner.events_given_up.inc_by(count as u64);
    }

    /// Sets whether HTCondor's tools are confined.
    pub fn confined(&self, confined: bool) {
        self.inner.confined.set(confined.into());
    }

    /// Sets the number of identities without valid credentials: of the operator itself, and of Secrets.
    pub fn credentials(&self, (own, secrets): (i64, i64)) {
        for (owner, count) in [("operator", own), ("secrets", secrets)] {
            self.inner.credentials.get_or_create(&CredentialLabels::new(&self.pool, owner)).set(count);
        }
    }

    /// Counts jobs that got queue quota, and records how long their HTCJobs had waited.
    pub fn granted(&self, jobs: usize, waits: &[Duration]) {
        self.inner.granted.inc_by(jobs as u64);
        for wait in waits {
            self.inner.waits_for_grants.observe(wait.as_secs_f64());
        }
    }

    /// Records the duration of a decision about queue quota.
    pub fn queues_decided(&self, took: Duration) {
        self.inner.queue_decisions.observe(took.as_secs_f64());
    }

    /// Replaces the state of all queues.
    pub fn queues(&self, measured: QueuesMeasured) {
        *self.inner.at_scrape.htcqueues.lock() = Some(measured);
    }

    /// Returns all metrics in OpenMetrics' text format.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.inner.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use htc_machine::RequestKind;

    use super::*;

    #[test]
    fn each_operator_has_its_own_metrics() {
        let (one, other) = (Metrics::default(), Metrics::default());
        one.clone().submitted(2);
        assert!(one.text().unwrap().contains("htc_submissions_total 2"));
        assert!(other.text().unwrap().contains("htc_submissions_total 0"));
    }

    #[test]
    fn leader_metric_is_one_only_while_the_fence_is_open() {
        let (metrics, clock) = (Metrics::default(), crate::clock::Clock::default());
        let leader = |value: u8| {
            let text = metrics.text().unwrap();
            assert!(text.contains(&format!("htc_leader {value}\n")), "{text}");
        };
        leader(0);
        let fence = Fence::new(clock);
        metrics.set_fence(fence.clone());
        leader(0);
        fence.extend(clock.reading(), Duration::from_secs(60));
        leader(1);
        fence.close();
        leader(0);
    }

    fn names(text: &str) -> BTreeSet<String> {
        let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        typed
            .map(|(name, kind)| match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            })
            .collect()
    }

    #[test]
    fn documentation_lists_exactly_the_metrics() {
        let metrics = Metrics::default();
        let (store, _) = kube::runtime::reflector::store();
        metrics.count_objects(store);
        metrics.count_requests(|| RequestKind::iter().map(|kind| (kind.into(), 1)).collect());
        metrics.set_fence(Fence::new(crate::clock::Clock::default()));
        metrics.reconciled(Duration::from_millis(3), Some(("publish", "TimedOut")));
        metrics.submitted(1);
        metrics.attempt("accepted");
        metrics.removed(1);
        metrics.tool("condor_q", "ok", Duration::from_millis(20));
        metrics.callback("Stored");
        metrics.transaction(3, Duration::from_millis(1));
        metrics.ledger_queue(0);
        metrics.record_poll();
        metrics.orphans(0);
        metrics.unreadable("queue", 0, 0);
        metrics.credentials((0, 0));
        metrics.granted(3, &[Duration::from_secs(2)]);
        metrics.queues_decided(Duration::from_millis(1));
        let queue = QueueMeasured { name: "q".into(), waiting: 7, used: vec![("jobs", 3)], quota: vec![("jobs", 3)] };
        metrics.queues(QueuesMeasured { queues: vec![queue], htcjobs: vec![("Pending", 2)] });
        let text = metrics.text().unwrap();
        for phase in Phase::iter().map(<&str>::from).chain(["none"]) {
            assert!(text.contains(&format!("htc_htcjobs{{phase=\"{phase}\"}} 0")), "{text}");
        }
        assert!(text.contains("htc_objects{phase=\"Running\"} 0"), "the old name: {text}");
        assert!(text.contains("htc_jobs{state=\"running\"} 0"), "{text}");
        assert!(text.contains("htc_queue_used{queue=\"q\",resource=\"jobs\"} 3"), "{text}");
        let page = include_str!("../../../docs/metrics.md");
        let documented: BTreeSet<String> =
            page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned())).collect();
        assert_eq!(documented, names(&text), "{text}");
    }
}
