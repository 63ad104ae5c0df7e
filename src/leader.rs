//! Leader election: a Lease in the cluster, by the rules of client-go's leader election.
//!
//! No two clocks are compared. A Lease counts as expired once its record has not changed for its duration, *as
//! measured by the observer*. Its holder acts only until `renew_deadline` after the begin of its last successful
//! renewal, which is earlier. The lock on the ledger's file is needed as well. The Lease also carries the ledger's id
//! and sequence number, so that a ledger that was swapped or restored from an old copy is noticed. A new and empty
//! ledger is noticed at each HTCJob: another ledger has claimed it.

use std::collections::BTreeMap;
use std::time::Duration;

use htc_api::ObjectName;
use htc_ledger::{Ledger, LedgerError};
use htc_machine::Timestamp;
use htc_support::clock::Clock;
use htc_support::failpoint::{Point, around};
use htc_support::fence::{Fence, FenceClosed};
use htc_support::health::Health;
use htc_support::kubernetes::{ApiError, FIELD_MANAGER, with_timeout_of};
use htc_support::retry::Backoff;
use jiff::Timestamp as Moment;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};

/// Annotation of the Lease: id of the ledger that leads, or led last.
pub const LEDGER: &str = "htc.cern.ch/ledger";
/// Annotation of the Lease: that ledger's sequence number at the last renewal.
pub const SEQUENCE: &str = "htc.cern.ch/ledger-sequence";

/// client-go's three times.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    /// How long others leave an unchanged Lease alone.
    pub duration: Duration,
    /// How long its holder acts after the begin of a successful renewal; shorter than `duration`.
    pub renew_deadline: Duration,
    /// Pause between two attempts.
    pub retry: Duration,
}

/// Reason why a leader no longer leads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeadershipLost {
    /// Another operator leads.
    #[error(
        "{} has taken over the Lease; this operator exits, and stands by when it is restarted",
        if .holder.is_empty() { "somebody else" } else { .holder.as_str() }
    )]
    TakenOver {
        /// Its identity; empty if it has released the Lease already.
        holder: String,
    },
    /// The API server's data are older than before.
    #[error(
        "the resourceVersion of the Lease fell from {before} to {now}: the API server's data were restored from an older copy, and its watches do not show what changes; this operator exits, and lists everything when it is restarted"
    )]
    Restored {
        /// Highest `resourceVersion` that was seen.
        before: u64,
        /// Last `resourceVersion` that was seen.
        now: u64,
    },
}

/// Relation of the ledger's file to the ledger named in the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continuity {
    /// It led last, and has everything it had then. Or it is new, and treats everything as unknown.
    Continuous,
    /// Another file led last.
    AnotherLedger,
    /// It led last, but has had more transactions than it has now.
    OldCopy,
    /// There is no Lease, but the file has a past.
    NoLease,
}

/// Reason why this operator does not lead yet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Another operator holds the Lease.
    Held(String),
    /// A request to the API server failed.
    Api(String),
}

/// Versions of the Lease that the API server has returned. etcd's revision only rises, unless etcd is restored from a
/// copy.
#[derive(Debug, Default)]
struct Versions {
    /// 0 before the first one.
    highest: u64,
    /// A version was not a number.
    opaque: bool,
}

/// Reason why the Lease was not read or written.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    /// Its namespace does not exist.
    #[error("{0}; create the operator's namespace, or name another one with --operator-namespace")]
    NoNamespace(#[source] ApiError),
    #[error(transparent)]
    Api(ApiError),
}

/// Reason why the Lease was not renewed.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    /// It must not be renewed any more.
    #[error(transparent)]
    Lost(#[from] LeadershipLost),
    /// A request to the API server failed.
    #[error(transparent)]
    Api(#[from] LeaseError),
}

/// A candidate for leadership.
pub struct Candidate {
    api: Api<Lease>,
    name: ObjectName,
    identity: String,
    times: LeaseTimes,
    clock: Clock,
    health: Health,
    /// Record that was seen last, and when it was first seen like this.
    seen: Option<(LeaseSpec, Timestamp)>,
}

/// The leader, as long as it renews.
pub struct Leader {
    candidate: Candidate,
    /// The Lease as it was last written.
    lease: Lease,
    holder: LeaseHolder,
    versions: Versions,
}

/// Identity that a holder writes into the Lease. The time distinguishes it from another process of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeaseHolder {
    identity: String,
    duration: Duration,
    acquired: Option<MicroTime>,
}

impl Candidate {
    /// Returns a candidate that has not seen any Lease yet.
    #[must_use]
    pub fn new(
        client: Client,
        name: ObjectName,
        identity: String,
        times: LeaseTimes,
        clock: Clock,
        health: Health,
    ) -> Self {
        Self { api: Api::namespaced(client, &name.namespace), name, identity, times, clock, health, seen: None }
    }

    /// Waits until this operator leads, and opens the fence. Before that, a ledger that lacks something its Lease
    /// knows of takes a new id.
    pub async fn lead(mut self, ledger: &mut Ledger, fence: &Fence) -> Result<Leader, LedgerError> {
        let mut backoff = Backoff::new(self.times.retry, self.times.duration.max(self.times.retry));
        let mut told = None;
        loop {
            let pause = match self.try_to_lead(ledger, fence).await? {
                Ok((lease, holder)) => {
                    self.health.leading();
                    tracing::info!(identity = %self.identity, lease = %self.name(), ledger = ledger.id(), "lease acquired");
                    return Ok(Leader::new(self, lease, holder));
                }
                Err(obstacle) => {
                    if told.as_ref() != Some(&obstacle) {
                        self.tell(&obstacle);
                    }
                    let pause = match &obstacle {
                        Obstacle::Held(_) => {
                            backoff.reset();
                            self.times.retry
                        }
                        Obstacle::Api(_) => backoff.pause(),
                    };
                    told = Some(obstacle);
                    pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn tell(&self, obstacle: &Obstacle) {
        match obstacle {
            Obstacle::Held(holder) => {
                self.health.standing_by();
                tracing::info!(lease = %self.name(), %holder, "standing by");
            }
            Obstacle::Api(message) => tracing::warn!(lease = %self.name(), %message, "lease not acquired, retrying"),
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.name.namespace, self.name.name)
    }

    async fn try_to_lead(
        &mut self,
        ledger: &mut Ledger,
        fence: &Fence,
    ) -> Result<Result<(Lease, LeaseHolder), Obstacle>, LedgerError> {
        let began = self.clock.reading();
        let found = match self.get().await {
            Ok(found) => found,
            Err(error) => return Ok(Err(Obstacle::Api(error.to_string()))),
        };
        if let Some(lease) = &found {
            let spec = lease.spec.clone().unwrap_or_default();
            if let Some(holder) = self.held_by_another(spec) {
                return Ok(Err(Obstacle::Held(holder)));
            }
        }
        let past = past(found.as_ref(), ledger);
        if past != Continuity::Continuous {
            tracing::warn!(?past, ledger = ledger.id(), "ledger incomplete, it gets a new id");
            ledger.begin_anew().await?;
        }
        let holder =
            LeaseHolder { identity: self.identity.clone(), duration: self.times.duration, acquired: Some(now()) };
        let written = self.write(found.unwrap_or_default(), ledger, &holder);
        let written = around(Point::BeforeLeaseTaken, written, Point::AfterLeaseTaken).await;
        Ok(match written {
            Ok(lease) => {
                fence.extend(began, self.times.renew_deadline);
                Ok((lease, holder))
            }
            Err(error) => Err(Obstacle::Api(error.to_string())),
        })
    }

    /// Returns who holds the Lease, if it is another operator's and has not expired by this operator's clock.
    fn held_by_another(&mut self, spec: LeaseSpec) -> Option<String> {
        let now = self.clock.now();
        let since = match &self.seen {
            Some((seen, since)) if *seen == spec => *since,
            _ => now,
        };
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(self.times.duration, Duration::from_secs);
        self.seen = Some((spec, since));
        (!holder.is_empty() && holder != self.identity && now.since(since) < duration).then_some(holder)
    }

    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        self.limited("read", self.api.get_opt(&self.name.name)).await
    }

    /// Writes the Lease, only if it is still the version that was read.
    async fn write(&self, found: Lease, ledger: &Ledger, holder: &LeaseHolder) -> Result<Lease, LeaseError> {
        let before = found.spec.unwrap_or_default();
        let new = found.metadata.resource_version.is_none();
        let taken_over = !new && before.acquire_time != holder.acquired;
        let mut annotations = found.metadata.annotations.unwrap_or_default();
        annotations.insert(LEDGER.to_owned(), ledger.id().to_owned());
        annotations.insert(SEQUENCE.to_owned(), ledger.sequence().to_string());
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.name.clone()),
                annotations: Some(annotations),
                managed_fields: None,
                ..found.metadata
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.identity.clone()),
                lease_duration_seconds: Some(i32::try_from(holder.duration.as_secs()).unwrap_or(i32::MAX)),
                acquire_time: holder.acquired.clone(),
                renew_time: Some(now()),
                lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(taken_over)),
                ..before
            }),
        };
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        if new {
            self.limited("make", self.api.create(&parameters, &lease)).await
        } else {
            self.limited("write", self.api.replace(&self.name.name, &parameters, &lease)).await
        }
    }

    /// Limits the time of one attempt, so that others fit in before the deadline.
    async fn limited<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, LeaseError> {
        let lease = format!("the Lease {}/{}", self.name.namespace, self.name.name);
        let answer = with_timeout_of(self.times.renew_deadline / 3, what, &lease, request).await;
        answer.map_err(|error| match error.code() {
            Some(404) => LeaseError::NoNamespace(error),
            Some(_) | None => LeaseError::Api(error),
        })
    }
}

impl Versions {
    /// Records the version of a returned Lease. Returns an error if it is lower than an earlier one. A version that
    /// is not a number is ignored.
    fn see(&mut self, lease: &Lease) -> Result<(), LeadershipLost> {
        let Some(version) = &lease.metadata.resource_version else { return Ok(()) };
        match version.parse() {
            Ok(now) if now < self.highest => Err(LeadershipLost::Restored { before: self.highest, now }),
            Ok(now) => {
                self.highest = now;
                Ok(())
            }
            Err(_) => {
                if !std::mem::replace(&mut self.opaque, true) {
                    tracing::warn!(%version, "resourceVersion of the lease not a number; restart the operator after a restore of etcd");
                }
                Ok(())
            }
        }
    }
}

impl Leader {
    fn new(candidate: Candidate, lease: Lease, holder: LeaseHolder) -> Self {
        let mut versions = Versions::default();
        // This cannot fail: there is no earlier version.
        let _ = versions.see(&lease);
        Self { candidate, lease, holder, versions }
    }

    /// Renews until another operator leads, or the API server's data are restored from a copy: caches, and watches
    /// that continue from a later version, are useless then. While the API server is away the fence closes; it opens
    /// again if no other operator has led meanwhile. The same holds while the ledger hangs: its leader can do
    /// nothing, and must not keep others from leading.
    pub async fn keep(&mut self, ledger: &Ledger, fence: &Fence) -> LeadershipLost {
        let patience = self.candidate.times.renew_deadline;
        let (mut failing, mut hangs) = (false, false);
        loop {
            tokio::time::sleep(self.candidate.times.retry).await;
            if ledger.silent_for() > patience {
                if !hangs {
                    tracing::error!(lease = %self.candidate.name(), ?patience, "ledger does not answer, lease not renewed; check its volume");
                }
                hangs = true;
                continue;
            }
            if hangs {
                tracing::info!("ledger answers again");
            }
            hangs = false;
            match self.renew(ledger, fence).await {
                Ok(()) => {
                    if failing {
                        tracing::info!("lease renewed again");
                    }
                    failing = false;
                }
                Err(RenewError::Lost(lost)) => return lost,
                Err(RenewError::Api(error)) => {
                    if !failing {
                        tracing::warn!(message = %error, ?patience, "lease not renewed, retrying");
                    }
                    failing = true;
                }
            }
        }
    }

    async fn renew(&mut self, ledger: &Ledger, fence: &Fence) -> Result<(), RenewError> {
        let began = self.candidate.clock.reading();
        let holder = self.holder.clone();
        let renewed = self.rewrite(ledger, &holder, fence);
        self.lease = around(Point::BeforeLeaseRenewed, renewed, Point::AfterLeaseRenewed).await?;
        fence.extend(began, self.candidate.times.renew_deadline);
        Ok(())
    }

    async fn rewrite(&mut self, ledger: &Ledger, holder: &LeaseHolder, fence: &Fence) -> Result<Lease, RenewError> {
        if let Ok(lease) = self.candidate.write(self.lease.clone(), ledger, holder).await {
            self.versions.see(&lease)?;
            return Ok(lease);
        }
        // The Lease has changed since, perhaps by a renewal of this operator whose answer was lost.
        let found = self.candidate.get().await?.unwrap_or_default();
        self.versions.see(&found)?;
        self.still_ours(&found, fence)?;
        let lease = self.candidate.write(found, ledger, holder).await?;
        self.versions.see(&lease)?;
        Ok(lease)
    }

    /// Checks that the Lease is still this operator's. A deleted Lease is created again, but not once the fence has
    /// closed: another operator may have led since, and gone.
    fn still_ours(&self, found: &Lease, fence: &Fence) -> Result<(), LeadershipLost> {
        let spec = found.spec.clone().unwrap_or_default();
        let deleted = found.metadata.resource_version.is_none();
        let holder = spec.holder_identity.unwrap_or_default();
        let ours = holder == self.holder.identity && spec.acquire_time == self.holder.acquired;
        if ours || (deleted && fence.check() != Err(FenceClosed::NotLeading)) {
            Ok(())
        } else {
            Err(LeadershipLost::TakenOver { holder })
        }
    }

    /// Releases the Lease, so that the next operator leads at once. Only when nothing that this one began is running
    /// any more.
    pub async fn release(mut self, ledger: &Ledger, fence: &Fence) {
        let nobody = LeaseHolder {
            identity: String::new(),
            duration: Duration::from_secs(1),
            acquired: self.holder.acquired.clone(),
        };
        let released = Box::pin(self.rewrite(ledger, &nobody, fence));
        if let Err(failed) = around(Point::BeforeLeaseReleased, released, Point::AfterLeaseReleased).await {
            tracing::info!(%failed, "lease not released, it expires by itself");
        }
    }
}

/// Compares the Lease's annotations with the ledger.
fn past(lease: Option<&Lease>, ledger: &Ledger) -> Continuity {
    let none = BTreeMap::new();
    let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref()).unwrap_or(&none);
    let sequence = annotations.get(SEQUENCE).and_then(|text| text.parse::<i64>().ok());
    match annotations.get(LEDGER) {
        _ if ledger.is_fresh() => Continuity::Continuous,
        None => Continuity::NoLease,
        Some(id) if id != ledger.id() => Continuity::AnotherLedger,
        Some(_) if sequence.is_none_or(|sequence| sequence > ledger.sequence()) => Continuity::OldCopy,
        Some(_) => Continuity::Continuous,
    }
}

/// Returns the current time in the precision of a Lease.
fn now() -> MicroTime {
    let now = Moment::now();
    MicroTime(Moment::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use htc_support::metrics::Metrics;

    use super::*;

    fn candidate() -> Candidate {
        let times = LeaseTimes {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        };
        let name = ObjectName { namespace: "ns".to_owned(), name: "lease".to_owned() };
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(config).unwrap();
        Candidate::new(client, name, "us".to_owned(), times, Clock::default(), Health::default())
    }

    /// Its volume hangs: another operator that can open the ledger must be able to lead.
    #[tokio::test]
    async fn leader_with_an_unresponsive_ledger_does_not_renew() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let deadline = Duration::from_millis(100);
        let mut candidate = candidate();
        candidate.api = Api::namespaced(client, "ns");
        candidate.times = LeaseTimes { renew_deadline: deadline, retry: Duration::from_millis(1), ..candidate.times };
        let holder = LeaseHolder { identity: "us".to_owned(), duration: candidate.times.duration, acquired: None };
        let (clock, health) = (candidate.clock, Health::default());
        let mut leader = Leader::new(candidate, Lease::default(), holder);
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("ledger.db"), &htc_support::metrics::Metrics::default(), &health);
        let (ledger, fence) = (ledger.unwrap(), Fence::new(clock));
        health.ledger_busy();
        tokio::time::sleep(deadline).await;
        assert!(tokio::time::timeout(deadline, leader.keep(&ledger, &fence)).await.is_err());
        assert!(server.accept().is_err(), "the API server was asked");
        health.ledger_idle();
        while server.accept().is_err() {
            assert!(tokio::time::timeout(deadline, leader.keep(&ledger, &fence)).await.is_err());
        }
    }

    #[test]
    fn decreasing_resource_version_means_a_restore() {
        let versioned = |version: Option<&str>| {
            let resource_version = version.map(ToOwned::to_owned);
            Lease { metadata: ObjectMeta { resource_version, ..ObjectMeta::default() }, spec: None }
        };
        let mut versions = Versions::default();
        for version in [None, Some("9"), Some("9"), Some("10"), Some("opaque"), None, Some("100")] {
            assert_eq!(versions.see(&versioned(version)), Ok(()), "{version:?}");
        }
        let restored = LeadershipLost::Restored { before: 100, now: 11 };
        assert_eq!(versions.see(&versioned(Some("11"))), Err(restored));
    }

    fn record(holder: &str, seconds: i32, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(MicroTime(Moment::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[tokio::test]
    async fn lease_expires_only_after_it_is_observed_for_its_duration() {
        let mut candidate = candidate();
        // However old its times are: they are another clock's.
        assert_eq!(candidate.held_by_another(record("them", 60, 0)), Some("them".to_owned()));
        let long_ago = Timestamp(candidate.clock.now().0 - 61_000);
        candidate.seen = Some((record("them", 60, 0), long_ago));
        assert_eq!(candidate.held_by_another(record("them", 60, 0)), None, "unchanged for its duration");
        candidate.seen = Some((record("them", 60, 0), long_ago));
        assert_eq!(candidate.held_by_another(record("them", 60, 1)), Some("them".to_owned()), "renewed meanwhile");
        assert_eq!(candidate.held_by_another(record("", 60, 2)), None, "released");
        assert_eq!(candidate.held_by_another(record("us", 60, 3)), None, "an earlier life of ours");
    }

    fn lease(ledger: &str, sequence: Option<i64>) -> Lease {
        let mut annotations = BTreeMap::from([(LEDGER.to_owned(), ledger.to_owned())]);
        annotations.extend(sequence.map(|sequence| (SEQUENCE.to_owned(), sequence.to_string())));
        Lease { metadata: ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }, spec: None }
    }

    fn open(folder: &Path) -> Ledger {
        Ledger::open(&folder.join("ledger.db"), &Metrics::default(), &Health::default()).unwrap()
    }

    #[tokio::test]
    async fn ledger_is_trusted_only_if_it_has_the_sequence_of_the_lease() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = open(folder.path());
        assert_eq!(past(None, &ledger), Continuity::Continuous, "it has just been made");
        assert_eq!(
            past(Some(&lease("other", Some(7))), &ledger),
            Continuity::Continuous,
            "it knows that it knows nothing"
        );
        ledger.begin_anew().await.unwrap();
        ledger.close().await;

        let ledger = open(folder.path());
        let (id, sequence) = (ledger.id().to_owned(), ledger.sequence());
        assert!(sequence > 0);
        assert_eq!(past(None, &ledger), Continuity::NoLease);
        assert_eq!(past(Some(&Lease::default()), &ledger), Continuity::NoLease);
        assert_eq!(past(Some(&lease("other", Some(0))), &ledger), Continuity::AnotherLedger);
        assert_eq!(past(Some(&lease(&id, None)), &ledger), Continuity::OldCopy);
        assert_eq!(past(Some(&lease(&id, Some(sequence + 1))), &ledger), Continuity::OldCopy);
        assert_eq!(past(Some(&lease(&id, Some(sequence))), &ledger), Continuity::Continuous);
        assert_eq!(past(Some(&lease(&id, Some(sequence - 1))), &ledger), Continuity::Continuous);
    }
}
