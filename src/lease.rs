//! Which operator leads: a Lease in the cluster, by the rules of client-go's leader election.
//!
//! No two clocks are compared: a Lease counts as expired once its record has not changed for its duration *as measured by
//! who looks*, and its holder acts only until `renew_deadline` after the begin of its last good renewal, which is earlier.
//! Beside it stands the lock on the ledger's file; both are needed. The Lease also carries the ledger's id and sequence
//! number, so that a ledger that was lost, swapped or put back from an old copy is noticed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp as Moment;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};

use crate::api::ObjectName;
use crate::clock::Clock;
use crate::failpoint::{Point, around};
use crate::fence::{Fence, Refused};
use crate::health::Health;
use crate::kubernetes::{MANAGER, limited_to};
use crate::ledger::{Ledger, LedgerError};
use crate::machine::Timestamp;
use crate::retry::Backoff;

/// Annotation of the Lease: id of the ledger that leads, or led last.
pub const LEDGER: &str = "htc.cern.ch/ledger";
/// Annotation of the Lease: that ledger's sequence number at the last renewal.
pub const SEQUENCE: &str = "htc.cern.ch/ledger-sequence";

/// client-go's three times.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    /// How long others leave an unchanged Lease alone.
    pub duration: Duration,
    /// How long after the begin of a good renewal its holder acts; shorter than `duration`.
    pub renew_deadline: Duration,
    /// Pause between two tries.
    pub retry: Duration,
}

/// Why a leader leads no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
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
        /// The highest `resourceVersion` that was seen.
        before: u64,
        /// The one that was seen last.
        now: u64,
    },
}

/// How well the ledger's file fits what the Lease says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continuity {
    /// It led last, and has all that it had then; or it is new and knows that it knows nothing.
    Known,
    /// Another file led last.
    AnotherLedger,
    /// It led last, but has had more transactions than it has now.
    OldCopy,
    /// There is no Lease, but the file has a past.
    NoLease,
}

/// What stands in the way of leading.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Somebody else holds the Lease.
    Held(String),
    /// The API server did not do as it was asked.
    Api(String),
}

/// Versions of the Lease that the API server has given. etcd's revision only rises, unless etcd is restored from a copy.
#[derive(Debug, Default)]
struct Versions {
    /// 0 before the first one.
    highest: u64,
    /// A version was seen that is not a number.
    opaque: bool,
}

/// Why the Lease was not renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failed {
    /// It is not to be renewed any more.
    Lost(Lost),
    /// The API server did not do as it was asked.
    Api(String),
}

impl From<Lost> for Failed {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// One candidate.
pub struct Candidate {
    api: Api<Lease>,
    name: ObjectName,
    identity: String,
    times: LeaseTimes,
    clock: Clock,
    health: Health,
    /// The record that was seen last, and when it was first seen like this.
    seen: Option<(LeaseSpec, Timestamp)>,
}

/// The leader, as long as it renews.
pub struct Leader {
    candidate: Candidate,
    /// As it was last written.
    lease: Lease,
    holder: Holder,
    versions: Versions,
}

/// What a holder writes into the Lease. The time tells it from another process of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    identity: String,
    duration: Duration,
    acquired: Option<MicroTime>,
}

impl Candidate {
    /// Nobody yet.
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

    /// Waits until this operator leads, and opens the fence. A ledger that does not know all that its Lease knows takes a
    /// new id before that.
    pub async fn lead(mut self, ledger: &mut Ledger, fence: &Fence) -> Result<Leader, LedgerError> {
        let mut backoff = Backoff::new(self.times.retry, self.times.duration.max(self.times.retry));
        let mut told = None;
        loop {
            let pause = match self.try_to_lead(ledger, fence).await? {
                Ok((lease, holder)) => {
                    self.health.leading();
                    tracing::info!(identity = %self.identity, lease = %self.name(), ledger = ledger.id(), "this operator leads");
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
                tracing::info!(lease = %self.name(), %holder, "standing by: another operator leads");
            }
            Obstacle::Api(message) => tracing::warn!(lease = %self.name(), %message, "cannot take the Lease yet"),
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.name.namespace, self.name.name)
    }

    async fn try_to_lead(
        &mut self,
        ledger: &mut Ledger,
        fence: &Fence,
    ) -> Result<Result<(Lease, Holder), Obstacle>, LedgerError> {
        let began = self.clock.reading();
        let found = match self.get().await {
            Ok(found) => found,
            Err(message) => return Ok(Err(Obstacle::Api(message))),
        };
        if let Some(lease) = &found {
            let spec = lease.spec.clone().unwrap_or_default();
            if let Some(holder) = self.held_by_another(spec) {
                return Ok(Err(Obstacle::Held(holder)));
            }
        }
        let past = past(found.as_ref(), ledger);
        if past != Continuity::Known {
            tracing::warn!(
                ?past,
                ledger = ledger.id(),
                "this ledger does not know all that happened: it takes a new id, and every HTCJob that was handled before is judged by what HTCondor has"
            );
            ledger.begin_anew().await?;
        }
        let holder = Holder { identity: self.identity.clone(), duration: self.times.duration, acquired: Some(now()) };
        let written = self.write(found.unwrap_or_default(), ledger, &holder);
        let written = around(Point::BeforeLeaseTaken, written, Point::AfterLeaseTaken).await;
        Ok(match written {
            Ok(lease) => {
                fence.extend(began, self.times.renew_deadline);
                Ok((lease, holder))
            }
            Err(message) => Err(Obstacle::Api(message)),
        })
    }

    /// Who holds the Lease, if it is somebody else and has not expired by our own clock.
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

    async fn get(&self) -> Result<Option<Lease>, String> {
        self.limited("read", self.api.get_opt(&self.name.name)).await
    }

    /// Writes the Lease, only if it is still the one that was read.
    async fn write(&self, found: Lease, ledger: &Ledger, holder: &Holder) -> Result<Lease, String> {
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
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        if new {
            self.limited("make", self.api.create(&parameters, &lease)).await
        } else {
            self.limited("write", self.api.replace(&self.name.name, &parameters, &lease)).await
        }
    }

    /// One try must leave time for others before the deadline.
    async fn limited<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, String> {
        let lease = format!("the Lease {}/{}", self.name.namespace, self.name.name);
        limited_to(self.times.renew_deadline / 3, what, &lease, request).await.map_err(|error| match error.code() {
            Some(404) => {
                format!("{error}; create the operator's namespace, or name another one with --operator-namespace")
            }
            Some(_) | None => error.to_string(),
        })
    }
}

impl Versions {
    /// Takes in the Lease of an answer, and tells if its version is lower than an earlier one. Nothing follows from a version
    /// that is not a number.
    fn see(&mut self, lease: &Lease) -> Result<(), Lost> {
        let Some(version) = &lease.metadata.resource_version else { return Ok(()) };
        match version.parse() {
            Ok(now) if now < self.highest => Err(Lost::Restored { before: self.highest, now }),
            Ok(now) => {
                self.highest = now;
                Ok(())
            }
            Err(_) => {
                if !std::mem::replace(&mut self.opaque, true) {
                    tracing::warn!(
                        %version,
                        "the resourceVersion of the Lease is not a number: the operator cannot notice that the API server's data are restored; restart it after a restore"
                    );
                }
                Ok(())
            }
        }
    }
}

impl Leader {
    fn new(candidate: Candidate, lease: Lease, holder: Holder) -> Self {
        let mut versions = Versions::default();
        // The first one is higher than none.
        let _ = versions.see(&lease);
        Self { candidate, lease, holder, versions }
    }

    /// Renews until another operator leads, or the API server's data are restored from a copy: what is cached, and the
    /// watches that go on from a later version, are of no use then. While the API server is away the fence closes; it opens again if nobody else
    /// has led meanwhile. So it is while the ledger hangs: its leader can do nothing, and must not keep others from leading.
    pub async fn keep(&mut self, ledger: &Ledger, fence: &Fence) -> Lost {
        let patience = self.candidate.times.renew_deadline;
        let (mut failing, mut hangs) = (false, false);
        loop {
            tokio::time::sleep(self.candidate.times.retry).await;
            if ledger.silent_for() > patience {
                if !hangs {
                    tracing::error!(
                        lease = %self.candidate.name(),
                        "the ledger has not answered for {patience:?}: the Lease is not renewed until it does, so that another operator can lead; check the volume of the ledger"
                    );
                }
                hangs = true;
                continue;
            }
            if hangs {
                tracing::info!("the ledger answers again");
            }
            hangs = false;
            match self.renew(ledger, fence).await {
                Ok(()) => {
                    if failing {
                        tracing::info!("the Lease is renewed again");
                    }
                    failing = false;
                }
                Err(Failed::Lost(lost)) => return lost,
                Err(Failed::Api(message)) => {
                    if !failing {
                        tracing::warn!(%message, "the Lease could not be renewed; after {patience:?} without it nothing is begun");
                    }
                    failing = true;
                }
            }
        }
    }

    async fn renew(&mut self, ledger: &Ledger, fence: &Fence) -> Result<(), Failed> {
        let began = self.candidate.clock.reading();
        let holder = self.holder.clone();
        let renewed = self.rewrite(ledger, &holder, fence);
        self.lease = around(Point::BeforeLeaseRenewed, renewed, Point::AfterLeaseRenewed).await?;
        fence.extend(began, self.candidate.times.renew_deadline);
        Ok(())
    }

    async fn rewrite(&mut self, ledger: &Ledger, holder: &Holder, fence: &Fence) -> Result<Lease, Failed> {
        if let Ok(lease) = self.candidate.write(self.lease.clone(), ledger, holder).await {
            self.versions.see(&lease)?;
            return Ok(lease);
        }
        // It has changed since, perhaps by a renewal of ours whose answer was lost.
        let found = self.candidate.get().await.map_err(Failed::Api)?.unwrap_or_default();
        self.versions.see(&found)?;
        self.still_ours(&found, fence)?;
        let lease = self.candidate.write(found, ledger, holder).await.map_err(Failed::Api)?;
        self.versions.see(&lease)?;
        Ok(lease)
    }

    /// A Lease that was deleted is made again, but not once the fence has closed: somebody may have led since, and gone.
    fn still_ours(&self, found: &Lease, fence: &Fence) -> Result<(), Lost> {
        let spec = found.spec.clone().unwrap_or_default();
        let deleted = found.metadata.resource_version.is_none();
        let holder = spec.holder_identity.unwrap_or_default();
        let ours = holder == self.holder.identity && spec.acquire_time == self.holder.acquired;
        if ours || (deleted && fence.check() != Err(Refused::NotLeading)) {
            Ok(())
        } else {
            Err(Lost::TakenOver { holder })
        }
    }

    /// Lets the next operator lead at once. Only when nothing that this one began is under way any more.
    pub async fn release(mut self, ledger: &Ledger, fence: &Fence) {
        let nobody = Holder {
            identity: String::new(),
            duration: Duration::from_secs(1),
            acquired: self.holder.acquired.clone(),
        };
        let released = Box::pin(self.rewrite(ledger, &nobody, fence));
        if let Err(failed) = around(Point::BeforeLeaseReleased, released, Point::AfterLeaseReleased).await {
            tracing::info!(?failed, "the Lease is not released; it expires by itself");
        }
    }
}

/// What the Lease says of the ledger's past.
fn past(lease: Option<&Lease>, ledger: &Ledger) -> Continuity {
    let none = BTreeMap::new();
    let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref()).unwrap_or(&none);
    let sequence = annotations.get(SEQUENCE).and_then(|text| text.parse::<i64>().ok());
    match annotations.get(LEDGER) {
        _ if ledger.is_fresh() => Continuity::Known,
        None => Continuity::NoLease,
        Some(id) if id != ledger.id() => Continuity::AnotherLedger,
        Some(_) if sequence.is_none_or(|sequence| sequence > ledger.sequence()) => Continuity::OldCopy,
        Some(_) => Continuity::Known,
    }
}

/// As precise as a Lease keeps it.
fn now() -> MicroTime {
    let now = Moment::now();
    MicroTime(Moment::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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

    /// Its volume hangs: whoever else can have the ledger must be able to lead.
    #[tokio::test]
    async fn a_leader_whose_ledger_does_not_answer_does_not_renew() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let deadline = Duration::from_millis(100);
        let mut candidate = candidate();
        candidate.api = Api::namespaced(client, "ns");
        candidate.times = LeaseTimes { renew_deadline: deadline, retry: Duration::from_millis(1), ..candidate.times };
        let holder = Holder { identity: "us".to_owned(), duration: candidate.times.duration, acquired: None };
        let (clock, health) = (candidate.clock, Health::default());
        let mut leader = Leader::new(candidate, Lease::default(), holder);
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("ledger.db"), &crate::metrics::Metrics::default(), &health);
        let (ledger, fence) = (ledger.unwrap(), Fence::new(clock));
        health.ledger_at_work();
        tokio::time::sleep(deadline).await;
        assert!(tokio::time::timeout(deadline, leader.keep(&ledger, &fence)).await.is_err());
        assert!(server.accept().is_err(), "the API server was asked");
        health.ledger_at_rest();
        while server.accept().is_err() {
            assert!(tokio::time::timeout(deadline, leader.keep(&ledger, &fence)).await.is_err());
        }
    }

    #[test]
    fn a_version_that_falls_means_a_restore() {
        let versioned = |version: Option<&str>| {
            let resource_version = version.map(ToOwned::to_owned);
            Lease { metadata: ObjectMeta { resource_version, ..ObjectMeta::default() }, spec: None }
        };
        let mut versions = Versions::default();
        for version in [None, Some("9"), Some("9"), Some("10"), Some("opaque"), None, Some("100")] {
            assert_eq!(versions.see(&versioned(version)), Ok(()), "{version:?}");
        }
        let restored = Lost::Restored { before: 100, now: 11 };
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
    async fn a_record_expires_only_after_it_was_watched_for_its_duration() {
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
        Ledger::open_alone(&folder.join("ledger.db")).unwrap()
    }

    #[tokio::test]
    async fn a_ledger_is_trusted_only_if_it_has_all_that_its_lease_says() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = open(folder.path());
        assert_eq!(past(None, &ledger), Continuity::Known, "it has just been made");
        assert_eq!(past(Some(&lease("other", Some(7))), &ledger), Continuity::Known, "it knows that it knows nothing");
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
        assert_eq!(past(Some(&lease(&id, Some(sequence))), &ledger), Continuity::Known);
        assert_eq!(past(Some(&lease(&id, Some(sequence - 1))), &ledger), Continuity::Known);
    }
}
