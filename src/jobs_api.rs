//! The leader's side of the jobs API: reads the ledger, and records there what users request for single jobs. It
//! serves only the fronts ([`crate::jobs_api::front`]), which have checked that the user may.

mod actions;
mod backend_log;
mod files;
pub mod front;
mod limits;
mod log;
mod log_query;
mod output_volume;
mod pager;
pub mod resource;
mod serve;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::Stream;
use htc_api::htcproc::{HTCProc, ProcName};
use htc_api::{ObjectName, ObservedHTCJob, is_for_operator};
use htc_ledger::{Ledger, LedgerError};
use htc_machine::ids::{Index, SchedDate, Uid};
use htc_support::clock::Clock;
use htcondor::Schedd;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt as _};
use tokio::sync::broadcast;
use tokio::sync::watch::Receiver;

use crate::backends::condor::credentials::CredentialStatus;
use crate::backends::procs::Parent;
use crate::backends::{self, JobFeature, RecordedProcs};
use crate::callbacks::Wakes;
use crate::htcpool::{PoolPlacement, Pools};
use crate::jobs_api::resource::selection::Selection;
use crate::jobs_api::resource::status_error::StatusError;
use crate::output::layout::OutputLayout;

/// Records of all jobs in the operator's memory and ledger.
#[derive(Clone)]
pub struct Records {
    /// The `HTCJob`s.
    pub objects: Store<ObservedHTCJob>,
    /// Whether all of them were listed once.
    pub listed: Receiver<bool>,
    /// Broadcasts the name of each `HTCJob` that was added, changed or deleted; `None` if it may be any of them.
    pub changes: broadcast::Sender<Option<ObjectName>>,
    /// Records of their jobs.
    pub ledger: Ledger,
    /// Limits how many jobs are read at once, in all and for each user.
    pub ledger_steps: LedgerSteps,
    /// Namespace and name of this operator: `HTCJob`s of other operators are not served.
    pub operator: String,
}

/// State and clients that the requests need.
#[derive(Clone)]
pub struct JobsService {
    pub records: Records,
    /// Client for the logs of backends in the cluster.
    pub client: Client,
    /// Folders of the output.
    pub layout: OutputLayout,
    /// Volume of the output.
    pub volume: OutputVolume,
    /// Limits on concurrent requests.
    pub limits: JobsApiLimits,
    /// Pools that HTCondor is asked in about running jobs.
    pub pools: Arc<Pools>,
    /// Wakes an `HTCJob` for which a user requests something.
    pub(crate) wakes: Arc<Wakes>,
    pub clock: Clock,
}

impl Records {
    /// Refuses a version of another ledger, as Kubernetes does with one that is too old: the changes since then are
    /// not known.
    fn must_have_had(&self, version: i64) -> Result<(), StatusError> {
        if self.ledger.has_had(version) {
            Ok(())
        } else {
            Err(StatusError::expired("the version is not of this operator's ledger: list again"))
        }
    }

    /// Refuses to answer before all `HTCJob`s were listed once: those not listed yet would look as if they were gone.
    fn must_be_complete(&self) -> Result<(), StatusError> {
        let listed = *self.listed.borrow();
        listed.then_some(()).ok_or_else(|| {
            StatusError::unavailable(
                "the operator was started a moment ago and has not listed all HTCJobs yet: try again",
            )
        })
    }

    fn ours(&self, object: &ObservedHTCJob) -> bool {
        is_for_operator(&self.operator, object)
    }

    fn may_have(&self, object: &ObservedHTCJob, namespace: Option<&str>, selection: &Selection) -> bool {
        let (its, name) = (object.namespace().unwrap_or_default(), object.name_any());
        namespace.is_none_or(|namespace| *namespace == *its) && self.ours(object) && selection.may_have(&its, &name)
    }

    /// Returns the `HTCJob`s whose jobs may be selected, in the order of lists.
    async fn parents(&self, namespace: Option<&str>, selection: &Selection) -> Result<Vec<Parent>, LedgerError> {
        let state = self.objects.state();
        let wanted = state.iter().filter(|object| self.may_have(object, namespace, selection));
        let mut parents = self.with_the_ledger(wanted.map(Parent::of).collect()).await?;
        parents.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        Ok(parents)
    }

    /// As [`Self::parents`], among these names.
    async fn parents_among(
        &self,
        names: &BTreeSet<ObjectName>,
        namespace: Option<&str>,
        selection: &Selection,
    ) -> Result<Vec<Parent>, LedgerError> {
        let objects = names
            .iter()
            .filter_map(|ObjectName { namespace, name }| self.objects.get(&ObjectRef::new(name).within(namespace)));
        let wanted = objects.filter(|object| self.may_have(object, namespace, selection));
        self.with_the_ledger(wanted.map(|object| Parent::of(&object)).collect()).await
    }

    /// Removes the `HTCJob`s that the ledger records as released, so that their jobs disappear from a known
    /// transaction on. Fills in how many items the others have.
    async fn with_the_ledger(&self, mut parents: Vec<Parent>) -> Result<Vec<Parent>, LedgerError> {
        let uids = |parents: &[Parent], which: fn(&Parent) -> bool| -> Vec<Uid> {
            parents.iter().filter(|parent| which(parent)).map(|parent| parent.uid.clone()).collect()
        };
        let deleted = uids(&parents, |parent| parent.deleted);
        if !deleted.is_empty() {
            let let_go = self.ledger.let_go(deleted).await?;
            parents.retain(|parent| !let_go.contains(&parent.uid));
        }
        let with_items = uids(&parents, Parent::counts_items);
        if !with_items.is_empty() {
            let counted = self.ledger.items_counted(with_items).await?;
            for parent in &mut parents {
                counted.get(&parent.uid).into_iter().for_each(|items| parent.has_items(*items));
            }
        }
        Ok(parents)
    }

    /// Records in the ledger which `HTCJob`s are gone without having been released, so that their jobs disappear from
    /// a known transaction on.
    async fn note_missing(&self) -> Result<(), LedgerError> {
        // Every recorded `HTCJob` was in the store before it was recorded.
        let mut missing = self.ledger.expected().await?;
        for object in self.objects.state() {
            missing.remove(&Uid::from(object.uid().unwrap_or_default().as_str()));
        }
        if missing.is_empty() { Ok(()) } else { self.ledger.note_missing(missing).await }
    }

    /// Returns the `HTCJob` of this name.
    async fn parent(&self, namespace: &str, name: &str) -> Result<Option<Parent>, LedgerError> {
        let Some(object) = self.objects.get(&ObjectRef::new(name).within(namespace)) else { return Ok(None) };
        if !self.ours(&object) {
            return Ok(None);
        }
        let mut parent = Parent::of(&object);
        if parent.counts_items()
            && let Some(items) = self.ledger.count_items(&parent.uid).await?
        {
            parent.has_items(items);
        }
        Ok(Some(parent))
    }

    /// Fills in the items that jobs of one `HTCJob` took from a ConfigMap.
    async fn add_items(&self, parent: &Parent, procs: &mut [HTCProc]) -> Result<(), LedgerError> {
        if !parent.takes_items() || procs.is_empty() {
            return Ok(());
        }
        let wanted = procs.iter().map(|proc| Index(proc.spec.index)).collect();
        let items = self.ledger.items_kept(&parent.uid, wanted).await?;
        for (proc, item) in procs.iter_mut().zip(items) {
            proc.spec.item = item;
        }
        Ok(())
    }
}

/// One job with its `HTCJob`.
struct FoundJob {
    parent: Parent,
    index: Index,
    /// State of the job now.
    proc: HTCProc,
}

impl FoundJob {
    /// Refuses a request that the job's backend does not support.
    fn require_feature(&self, asked: JobFeature) -> Result<(), StatusError> {
        match backends::why_unsupported(self.parent.backend(), asked, self.proc.status.id.as_deref()) {
            Some(why) => Err(StatusError::bad_request(format!("{} {why}", self.proc.name.name()))),
            None => Ok(()),
        }
    }
}

impl JobsService {
    /// Finds the job of this name.
    async fn find(&self, namespace: &str, name: &str) -> Result<FoundJob, StatusError> {
        let none = || StatusError::no_such_proc(name);
        let (htcjob, index) = ProcName::parse(name).ok_or_else(none)?;
        let parent = self.records.parent(namespace, htcjob).await?.ok_or_else(none)?;
        let index = Index(index);
        let mut found = RecordedProcs::read(&self.records.ledger, &parent, index, 1, now()).await?;
        let mut proc = match found.procs.pop().filter(|proc| proc.spec.index == index.0) {
            Some(proc) => proc,
            None if parent.asked_for.contains(index) => found.missing(&parent, index),
            None => return Err(none()),
        };
        self.records.add_items(&parent, std::slice::from_mut(&mut proc)).await?;
        Ok(FoundJob { parent, index, proc })
    }

    /// Returns the schedd, used as the HTCondor user that owns this job.
    fn schedd(&self, parent: &Parent) -> Result<Arc<Schedd>, StatusError> {
        let object = parent.object.as_ref().ok_or_else(|| StatusError::unavailable("the HTCJob is gone"))?;
        let spec = object.0.as_ref().ok().map(|htcjob| &htcjob.spec);
        let PoolPlacement { pool, refusal: trouble, .. } = self.pools.placement(&parent.uid, &parent.namespace, object);
        let Some(pool) = pool else {
            return Err(StatusError::unavailable(trouble.map_or_else(String::new, |trouble| trouble.message)));
        };
        let identity = pool.identity(&parent.uid, &parent.namespace, spec).unwrap_or_default();
        match pool.credentials.status(&identity) {
            CredentialStatus::Ready(schedd) => Ok(schedd),
            CredentialStatus::Failed(unknown) => Err(StatusError::unavailable(unknown.message)),
            CredentialStatus::Pending => {
                Err(StatusError::unavailable("the credentials are being looked for: try again"))
            }
        }
    }
}

/// Runs the parts of an answer in the current span. They are produced after the answer has begun, and their log lines
/// name the request's object, too.
fn in_span<S: Stream>(parts: S) -> impl Stream<Item = S::Item> {
    let (span, mut parts) = (tracing::Span::current(), Box::pin(parts));
    futures::stream::poll_fn(move |context| span.in_scope(|| parts.as_mut().poll_next(context)))
}

/// Returns the current time by the wall clock.
fn now() -> SchedDate {
    SchedDate(jiff::Timestamp::now().as_second())
}

pub use limits::{JobsApiLimits, LedgerSteps};
pub use output_volume::OutputVolume;
pub(crate) use serve::refuse;
pub use serve::{LeaderPort, listen};

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use htc_support::health::Health;
    use htc_support::metrics::Metrics;
    use kube::runtime::reflector;
    use tracing::{Metadata, Span};

    use super::*;

    #[tokio::test]
    async fn requests_get_503_before_the_initial_list() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("x.db"), &Metrics::default(), &Health::default()).unwrap();
        let (sender, listed) = tokio::sync::watch::channel(false);
        let (objects, touched) = (reflector::store().0, broadcast::Sender::new(1));
        let records = Records {
            objects,
            listed,
            changes: touched,
            ledger,
            ledger_steps: LedgerSteps::default(),
            operator: String::new(),
        };
        let refused = records.must_be_complete().unwrap_err();
        assert_eq!((refused.code, refused.retry_after.is_some()), (503, true));
        sender.send_replace(true);
        assert_eq!(records.must_be_complete(), Ok(()));
    }

    #[tokio::test]
    async fn streamed_body_stays_in_the_span_of_its_request() {
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry());
        let of = async { Span::current().metadata().map(Metadata::name) };
        let parts = tracing::error_span!("request").in_scope(|| in_span(futures::stream::once(of)));
        assert_eq!(parts.collect::<Vec<_>>().await, [Some("request")]);
    }
}
