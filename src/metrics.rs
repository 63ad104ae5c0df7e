//! What an operator counts and measures, for Prometheus. Every label has few values, none of which anybody but this program
//! chooses, apart from the names of `HTCPool`s; `docs/metrics.md` names them all.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::reflector::Store;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use strum::IntoEnumIterator as _;

use crate::api::{HTCJobStatus, ObjectName, Observed, Phase};
use crate::fence::Fence;

/// Requests that wait or run, by kind.
type Queues = Box<dyn Fn() -> BTreeMap<&'static str, usize> + Send + Sync>;

/// The metrics of one operator, in the hands of what works for one pool. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
    pool: Arc<str>,
}

/// The pool of the operator's flags. An `HTCPool` is `namespace/name`.
const DEFAULT_POOL: &str = "default";

impl Default for Metrics {
    fn default() -> Self {
        Self { inner: Arc::default(), pool: DEFAULT_POOL.into() }
    }
}

struct Inner {
    registry: Registry,
    reconciles: Counter,
    failures: Family<Failure, Counter>,
    durations: Histogram,
    submissions: Counter,
    attempts: Family<Verdict, Counter>,
    removals: Counter,
    tools: Family<Call, Histogram>,
    callbacks: Family<Answered, Counter>,
    commits: Histogram,
    batches: Histogram,
    waiting: Gauge,
    orphans: Family<PoolLabel, Gauge>,
    unreadable: Family<Ads, Gauge>,
    events_given_up: Counter,
    confined: Gauge,
    credentials: Family<Whose, Gauge>,
    granted: Counter,
    waits_for_grants: Histogram,
    queue_decisions: Histogram,
    at_scrape: Arc<AtScrape>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    step: &'static str,
    reason: &'static str,
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
struct Ads {
    pool: Arc<str>,
    place: &'static str,
    whose: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabel {
    pool: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Whose {
    pool: Arc<str>,
    whose: &'static str,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Inner {
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

impl Inner {
    fn register(&mut self) {
        let registry = &mut self.registry;
        let features = if cfg!(feature = "fail-points") { "fail-points" } else { "" };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("features", features)]);
        registry.register("build", "The program that runs", build);
        registry.register("reconciles", "Passes over one HTCJob", self.reconciles.clone());
        registry.register(
            "reconcile_failures",
            "Passes over one HTCJob that failed, by step and reason",
            self.failures.clone(),
        );
        registry.register_with_unit(
            "reconcile_duration",
            "Passes over one HTCJob, from their begin to their end",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register(
            "submissions",
            "HTCJobs that were part of a condor_submit that ran",
            self.submissions.clone(),
        );
        registry.register("attempts", "Attempts to submit that were judged, by verdict", self.attempts.clone());
        registry.register("removals", "HTCJobs that were part of a condor_rm that ran", self.removals.clone());
        registry.register_with_unit(
            "tool_duration",
            "Calls of HTCondor's tools, by tool and outcome",
            Unit::Seconds,
            self.tools.clone(),
        );
        registry.register("callbacks", "Events that jobs sent, by what became of them", self.callbacks.clone());
        registry.register_with_unit(
            "ledger_commit_duration",
            "Transactions of the ledger, from their begin to their commit",
            Unit::Seconds,
            self.commits.clone(),
        );
        registry.register("ledger_batch_size", "Writes and reads that shared a transaction", self.batches.clone());
        registry.register("ledger_queue", "Writes and reads that wait for the ledger", self.waiting.clone());
        registry.register("orphans", "Jobs in HTCondor without an HTCJob, at the last look", self.orphans.clone());
        registry.register(
            "unreadable_ads",
            "Job ads that cannot be read, at the last answer about all jobs or of history",
            self.unreadable.clone(),
        );
        registry.register(
            "events_given_up",
            "Events that the API server has not taken, and that are not written any more",
            self.events_given_up.clone(),
        );
        registry.register(
            "credentials_failing",
            "Identities without credentials that are good",
            self.credentials.clone(),
        );
        registry.register(
            "confined",
            "1 if HTCondor's tools are confined to the files that each call needs, else 0",
            self.confined.clone(),
        );
        registry.register("queue_granted_jobs", "Jobs that were given room in an HTCQueue", self.granted.clone());
        registry.register_with_unit(
            "queue_time_to_grant",
            "How long an HTCJob has waited for room when it gets some",
            Unit::Seconds,
            self.waits_for_grants.clone(),
        );
        registry.register_with_unit(
            "queue_decision",
            "How long it takes to decide who gets room, over all queues",
            Unit::Seconds,
            self.queue_decisions.clone(),
        );
        registry.register_collector(Box::new(Scrape(Arc::clone(&self.at_scrape))));
    }
}

/// What is looked up when somebody asks.
#[derive(Default)]
struct AtScrape {
    fence: OnceLock<Fence>,
    objects: OnceLock<Store<Observed>>,
    queues: OnceLock<Queues>,
    last_looks: Mutex<BTreeMap<Arc<str>, Instant>>,
    htcqueues: Mutex<Option<QueuesMeasured>>,
}

/// What is measured of all queues.
#[derive(Clone, Debug, Default)]
pub struct QueuesMeasured {
    /// Each `HTCQueue`; or all LocalQueues of Kueue together.
    pub queues: Vec<QueueMeasured>,
    /// How many `HTCJob`s are in each state.
    pub htcjobs: Vec<(&'static str, i64)>,
}

/// What is measured of an `HTCQueue`.
#[derive(Clone, Debug)]
pub struct QueueMeasured {
    /// Its name.
    pub name: Arc<str>,
    /// Jobs that wait.
    pub waiting: i64,
    /// What is in use, by resource.
    pub used: Vec<(&'static str, i64)>,
    /// What may be, by resource.
    pub quota: Vec<(&'static str, i64)>,
}

impl fmt::Debug for AtScrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtScrape")
    }
}

/// Sees it from the registry.
#[derive(Debug)]
struct Scrape(Arc<AtScrape>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let AtScrape { fence, objects, queues, last_looks, htcqueues } = &*self.0;
        let leads = fence.get().is_some_and(|fence| fence.check().is_ok());
        let leader = ConstGauge::new(i64::from(leads));
        let help = "Whether this operator leads: 1 or 0";
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
            gauge("objects", "HTCJobs, by phase", "phase", &phases)?;
            gauge("jobs", "Jobs of all HTCJobs, by state", "state", &states)?;
        }
        if let Some(queues) = queues.get() {
            let depths = queues().into_iter().map(|(kind, depth)| (kind, i64::try_from(depth).unwrap_or(i64::MAX)));
            gauge("requests", "Requests that wait for a worker or run, by kind", "kind", &depths.collect())?;
        }
        let htcqueues = htcqueues.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(measured) = htcqueues {
            encode_queues(&mut encoder, &measured)?;
        }
        let last_looks = last_looks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !last_looks.is_empty() {
            let age = |last: &Instant| ConstGauge::new(last.elapsed().as_secs_f64());
            let help = "Time since HTCondor last answered about all jobs; it is asked only while there are any";
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
    let mut family = encoder.encode_descriptor("queue_htcjobs", "HTCJobs that are in a queue, by state", None, kind)?;
    for (state, count) in htcjobs {
        ConstGauge::new(*count).encode(family.encode_family(&[("state", *state)])?)?;
    }
    let mut family = encoder.encode_descriptor("queue_waiting_jobs", "Jobs that wait for room", None, kind)?;
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
    amounts("queue_used", "What is in use in an HTCQueue", |queue| &queue.used)?;
    amounts("queue_quota", "What may be in use in an HTCQueue", |queue| &queue.quota)
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

impl Metrics {
    /// The same in the hands of what works for this `HTCPool`.
    #[must_use]
    pub fn of_pool(&self, pool: &ObjectName) -> Self {
        Self { pool: pool.to_string().into(), ..self.clone() }
    }

    /// The pool is gone.
    pub fn forget_pool(&self) {
        let Self { inner, pool } = self;
        inner.orphans.remove(&PoolLabel { pool: Arc::clone(pool) });
        for whose in ["operator", "secrets"] {
            inner.credentials.remove(&Whose { pool: Arc::clone(pool), whose });
        }
        for place in ["queue", "history"] {
            for whose in ["htcjob", "nobody"] {
                inner.unreadable.remove(&Ads { pool: Arc::clone(pool), place, whose });
            }
        }
        inner.at_scrape.last_looks.lock().unwrap_or_else(PoisonError::into_inner).remove(pool);
    }

    /// From now on the objects in `store` are counted.
    pub fn count_objects(&self, store: Store<Observed>) {
        let _ = self.inner.at_scrape.objects.set(store);
    }

    /// From now on this operator leads for as long as `fence` is open.
    pub fn leads_within(&self, fence: Fence) {
        let _ = self.inner.at_scrape.fence.set(fence);
    }

    /// From now on `queues` says how many requests of each kind wait or run.
    pub fn count_requests(&self, queues: impl Fn() -> BTreeMap<&'static str, usize> + Send + Sync + 'static) {
        let _ = self.inner.at_scrape.queues.set(Box::new(queues));
    }

    /// A pass over one HTCJob has ended; if it failed, in which step and why.
    pub fn reconciled(&self, took: Duration, failure: Option<(&'static str, &'static str)>) {
        self.inner.reconciles.inc();
        self.inner.durations.observe(took.as_secs_f64());
        if let Some((step, reason)) = failure {
            self.inner.failures.get_or_create(&Failure { step, reason }).inc();
        }
    }

    /// So many HTCJobs were part of a condor_submit.
    pub fn submitted(&self, objects: usize) {
        self.inner.submissions.inc_by(objects as u64);
    }

    /// An attempt was judged: `accepted`, `late`, `stillborn`, `absent`, or `not_run`.
    pub fn attempt(&self, verdict: &'static str) {
        self.inner.attempts.get_or_create(&Verdict { verdict }).inc();
    }

    /// So many HTCJobs were part of a condor_rm.
    pub fn removed(&self, objects: usize) {
        self.inner.removals.inc_by(objects as u64);
    }

    /// A call of one of HTCondor's tools ended: `ok`, `failed` by its exit status, or `error` without one.
    pub fn tool(&self, tool: &'static str, outcome: &'static str, elapsed: Duration) {
        self.inner.tools.get_or_create(&Call { tool, outcome }).observe(elapsed.as_secs_f64());
    }

    /// An event of a job was answered: `Stored`, `Again`, or the reason of the refusal.
    pub fn callback(&self, outcome: &'static str) {
        self.inner.callbacks.get_or_create(&Answered { outcome }).inc();
    }

    /// A transaction of the ledger has ended.
    pub fn transaction(&self, tasks: usize, took: Duration) {
        self.inner.commits.observe(took.as_secs_f64());
        self.inner.batches.observe(f64::from(u32::try_from(tasks).unwrap_or(u32::MAX)));
    }

    /// So many more (or fewer) wait for the ledger.
    pub fn ledger_queue(&self, change: i64) {
        self.inner.waiting.inc_by(change);
    }

    /// HTCondor has answered about all jobs.
    pub fn looked(&self) {
        let mut last_looks = self.inner.at_scrape.last_looks.lock().unwrap_or_else(PoisonError::into_inner);
        last_looks.insert(Arc::clone(&self.pool), Instant::now());
    }

    /// So many jobs in HTCondor belong to no HTCJob.
    pub fn orphans(&self, count: usize) {
        let pool = Arc::clone(&self.pool);
        self.inner.orphans.get_or_create(&PoolLabel { pool }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// An answer about jobs in `place` (queue or history) showed so many ads that cannot be read: of HTCJobs that wait for
    /// them, and of nobody.
    pub fn unreadable(&self, place: &'static str, of_htcjobs: usize, of_nobody: usize) {
        for (whose, count) in [("htcjob", of_htcjobs), ("nobody", of_nobody)] {
            let ads = Ads { pool: Arc::clone(&self.pool), place, whose };
            self.inner.unreadable.get_or_create(&ads).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// So many Events will not be written.
    pub fn events_given_up(&self, count: usize) {
        self.inner.events_given_up.inc_by(count as u64);
    }

    /// Whether HTCondor's tools are confined.
    pub fn confined(&self, confined: bool) {
        self.inner.confined.set(confined.into());
    }

    /// So many identities have no credentials that are good: the operator's own, and those of Secrets.
    pub fn credentials(&self, (own, secrets): (i64, i64)) {
        for (whose, count) in [("operator", own), ("secrets", secrets)] {
            self.inner.credentials.get_or_create(&Whose { pool: Arc::clone(&self.pool), whose }).set(count);
        }
    }

    /// So many jobs were given room in queues; so long had the HTCJobs waited.
    pub fn granted(&self, jobs: usize, waits: &[Duration]) {
        self.inner.granted.inc_by(jobs as u64);
        for wait in waits {
            self.inner.waits_for_grants.observe(wait.as_secs_f64());
        }
    }

    /// It was decided who gets room.
    pub fn queues_decided(&self, took: Duration) {
        self.inner.queue_decisions.observe(took.as_secs_f64());
    }

    /// That is how all queues are.
    pub fn queues(&self, measured: QueuesMeasured) {
        *self.inner.at_scrape.htcqueues.lock().unwrap_or_else(PoisonError::into_inner) = Some(measured);
    }

    /// All of it in OpenMetrics' text format.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.inner.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::machine::Kind;

    #[test]
    fn what_one_operator_counts_another_does_not() {
        let (one, other) = (Metrics::default(), Metrics::default());
        one.clone().submitted(2);
        assert!(one.text().unwrap().contains("htc_submissions_total 2"));
        assert!(other.text().unwrap().contains("htc_submissions_total 0"));
    }

    #[test]
    fn it_leads_only_while_its_fence_is_open() {
        let (metrics, clock) = (Metrics::default(), crate::clock::Clock::default());
        let leader = |value: u8| {
            let text = metrics.text().unwrap();
            assert!(text.contains(&format!("htc_leader {value}\n")), "{text}");
        };
        leader(0);
        let fence = Fence::new(clock);
        metrics.leads_within(fence.clone());
        leader(0);
        fence.extend(clock.reading(), Duration::from_secs(60));
        leader(1);
        fence.close();
        leader(0);
    }

    fn names(text: &str) -> BTreeSet<String> {
        let helped = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        helped.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_metric_is_documented_and_nothing_else_is() {
        let metrics = Metrics::default();
        let (store, _) = kube::runtime::reflector::store();
        metrics.count_objects(store);
        metrics.count_requests(|| Kind::iter().map(|kind| (kind.into(), 1)).collect());
        metrics.leads_within(Fence::new(crate::clock::Clock::default()));
        metrics.reconciled(Duration::from_millis(3), Some(("publish", "Silent")));
        metrics.submitted(1);
        metrics.attempt("accepted");
        metrics.removed(1);
        metrics.tool("condor_q", "ok", Duration::from_millis(20));
        metrics.callback("Stored");
        metrics.transaction(3, Duration::from_millis(1));
        metrics.ledger_queue(0);
        metrics.looked();
        metrics.orphans(0);
        metrics.unreadable("queue", 0, 0);
        metrics.credentials((0, 0));
        metrics.granted(3, &[Duration::from_secs(2)]);
        metrics.queues_decided(Duration::from_millis(1));
        let queue = QueueMeasured { name: "q".into(), waiting: 7, used: vec![("jobs", 3)], quota: vec![("jobs", 3)] };
        metrics.queues(QueuesMeasured { queues: vec![queue], htcjobs: vec![("Pending", 2)] });
        let text = metrics.text().unwrap();
        for phase in Phase::iter().map(<&str>::from).chain(["none"]) {
            assert!(text.contains(&format!("htc_objects{{phase=\"{phase}\"}} 0")), "{text}");
        }
        assert!(text.contains("htc_jobs{state=\"running\"} 0"), "{text}");
        assert!(text.contains("htc_queue_used{queue=\"q\",resource=\"jobs\"} 3"), "{text}");
        let page = include_str!("../docs/metrics.md");
        let documented: BTreeSet<String> =
            page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned())).collect();
        assert_eq!(documented, names(&text), "{text}");
    }
}
