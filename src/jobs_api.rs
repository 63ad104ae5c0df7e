//! The jobs API as the leader serves it: reads the ledger, and notes there what users want of single jobs; for the fronts
//! ([`crate::front`]) and for nobody else. They have asked whether the user may.

mod backend_log;
pub mod certificates;
mod files;
mod log;
mod log_query;
mod serve;
mod turns;
mod volume;
mod walk;
mod watch;
mod wish;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::Stream;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt as _};
use tokio::sync::broadcast;
use tokio::sync::watch::Receiver;

use crate::api::{ObjectName, Observed, is_for};
use crate::backends::{self, Asked, Recorded};
use crate::clock::Clock;
use crate::condor::Schedd;
use crate::credentials::AtHand;
use crate::ledger::{Ledger, LedgerError};
use crate::machine::ids::{Index, SchedDate, Uid};
use crate::pools::{Place, Pools};
use crate::procs::answer::Failure;
use crate::procs::selection::Selection;
use crate::procs::{HTCProc, Parent, ProcName};
use crate::receiver::Wakes;
use crate::workers::Planner;

/// What is known here of all jobs, without asking anybody.
#[derive(Clone)]
pub struct Records {
    /// The `HTCJob`s.
    pub objects: Store<Observed>,
    /// Whether all of them were listed once.
    pub listed: Receiver<bool>,
    /// Told the name of each that has come, changed or gone; none if it may be any of them.
    pub touched: broadcast::Sender<Option<ObjectName>>,
    /// What is recorded of their jobs.
    pub ledger: Ledger,
    /// How many of them are read at once, and for whom.
    pub steps: Steps,
    /// Namespace and name of this operator: others' `HTCJob`s are theirs to show.
    pub operator: String,
}

/// What jobs are read from.
#[derive(Clone)]
pub struct Jobs {
    /// What is known of them.
    pub records: Records,
    /// Where a backend may have logs.
    pub client: Client,
    /// Where output is.
    pub planner: Planner,
    /// How it is read.
    pub volume: Volume,
    /// What is done at once.
    pub turns: Turns,
    /// Where HTCondor is asked about jobs that run.
    pub pools: Arc<Pools>,
    /// Wakes an `HTCJob` of which a user wants something.
    pub(crate) wakes: Arc<Wakes>,
    /// When a user wants it.
    pub clock: Clock,
}

impl Records {
    /// Refuses a version of another ledger, as Kubernetes does with one that is too old: what has changed since is not known.
    fn must_have_had(&self, version: i64) -> Result<(), Failure> {
        if self.ledger.has_had(version) {
            Ok(())
        } else {
            Err(Failure::expired("the version is not of this operator's ledger: list again"))
        }
    }

    /// Refuses to say anything before all `HTCJob`s were listed once: those that were not yet would look as if they were gone.
    fn must_be_complete(&self) -> Result<(), Failure> {
        let listed = *self.listed.borrow();
        listed.then_some(()).ok_or_else(|| {
            Failure::unavailable("the operator was started a moment ago and has not listed all HTCJobs yet: try again")
        })
    }

    fn ours(&self, object: &Observed) -> bool {
        is_for(&self.operator, object)
    }

    fn may_have(&self, object: &Observed, namespace: Option<&str>, selection: &Selection) -> bool {
        let (its, name) = (object.namespace().unwrap_or_default(), object.name_any());
        namespace.is_none_or(|namespace| *namespace == *its) && self.ours(object) && selection.may_have(&its, &name)
    }

    /// The `HTCJob`s whose jobs may be wanted, in the order of lists.
    async fn parents(&self, namespace: Option<&str>, selection: &Selection) -> Result<Vec<Parent>, LedgerError> {
        let state = self.objects.state();
        let wanted = state.iter().filter(|object| self.may_have(object, namespace, selection));
        let mut parents = self.with_the_ledger(wanted.map(Parent::of).collect()).await?;
        parents.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        Ok(parents)
    }

    /// The same of those among these.
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

    /// None that the ledger says was let go: so it is known from which transaction on its jobs are shown no more. And how many items
    /// the others have.
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

    /// Notes in the ledger which are gone without having been let go: so it is known from which transaction on their jobs are shown no
    /// more.
    async fn note_missing(&self) -> Result<(), LedgerError> {
        // What is recorded was in the store before that.
        let mut missing = self.ledger.expected().await?;
        for object in self.objects.state() {
            missing.remove(&Uid::from(object.uid().unwrap_or_default().as_str()));
        }
        if missing.is_empty() { Ok(()) } else { self.ledger.note_missing(missing).await }
    }

    /// The `HTCJob` of this name.
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

    /// Gives jobs of one `HTCJob` the items that it took from a ConfigMap.
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

/// One job, and where things of it are.
struct Found {
    parent: Parent,
    index: Index,
    /// As it is now.
    proc: HTCProc,
}

impl Found {
    /// Refuses what its backend does not have.
    fn must_have(&self, asked: Asked) -> Result<(), Failure> {
        match backends::lacks(self.parent.backend(), asked, self.proc.status.id.as_deref()) {
            Some(why) => Err(Failure::bad_request(format!("{} {why}", self.proc.name.name()))),
            None => Ok(()),
        }
    }
}

impl Jobs {
    /// The job of this name.
    async fn find(&self, namespace: &str, name: &str) -> Result<Found, Failure> {
        let none = || Failure::no_such_proc(name);
        let (htcjob, index) = ProcName::parse(name).ok_or_else(none)?;
        let parent = self.records.parent(namespace, htcjob).await?.ok_or_else(none)?;
        let index = Index(index);
        let mut found = Recorded::read(&self.records.ledger, &parent, index, 1, now()).await?;
        let mut proc = match found.procs.pop().filter(|proc| proc.spec.index == index.0) {
            Some(proc) => proc,
            None if parent.asked_for.contains(index) => found.missing(&parent, index),
            None => return Err(none()),
        };
        self.records.add_items(&parent, std::slice::from_mut(&mut proc)).await?;
        Ok(Found { parent, index, proc })
    }

    /// HTCondor, in the name that this job has there.
    fn schedd(&self, parent: &Parent) -> Result<Arc<Schedd>, Failure> {
        let object = parent.object.as_ref().ok_or_else(|| Failure::unavailable("the HTCJob is gone"))?;
        let spec = object.0.as_ref().ok().map(|htcjob| &htcjob.spec);
        let Place { pool, trouble, .. } = self.pools.place(&parent.uid, &parent.namespace, object);
        let Some(pool) = pool else {
            return Err(Failure::unavailable(trouble.map_or_else(String::new, |trouble| trouble.message)));
        };
        let identity = pool.identity(&parent.uid, &parent.namespace, spec).unwrap_or_default();
        match pool.credentials.at_hand(&identity) {
            AtHand::Good(schedd) => Ok(schedd),
            AtHand::Bad(unknown) => Err(Failure::unavailable(unknown.message)),
            AtHand::NotYet => Err(Failure::unavailable("the credentials are being looked for: try again")),
        }
    }
}

/// The parts of an answer, which are asked for after it has begun: their log lines name what the request is about, too.
fn in_span<S: Stream>(parts: S) -> impl Stream<Item = S::Item> {
    let (span, mut parts) = (tracing::Span::current(), Box::pin(parts));
    futures::stream::poll_fn(move |context| span.in_scope(|| parts.as_mut().poll_next(context)))
}

/// The time now, on the clock that people look at.
fn now() -> SchedDate {
    SchedDate(jiff::Timestamp::now().as_second())
}

pub(crate) use serve::refuse;
pub use serve::{LeaderPort, listen};
pub use turns::{Steps, Turns};
pub use volume::Volume;

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use kube::runtime::reflector;
    use tracing::{Metadata, Span};

    use super::*;
    use crate::health::Health;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn nothing_is_said_before_all_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("x.db"), &Metrics::default(), &Health::default()).unwrap();
        let (sender, listed) = tokio::sync::watch::channel(false);
        let (objects, touched) = (reflector::store().0, broadcast::Sender::new(1));
        let records = Records { objects, listed, touched, ledger, steps: Steps::default(), operator: String::new() };
        let refused = records.must_be_complete().unwrap_err();
        assert_eq!((refused.code, refused.retry_after.is_some()), (503, true));
        sender.send_replace(true);
        assert_eq!(records.must_be_complete(), Ok(()));
    }

    #[tokio::test]
    async fn what_comes_after_the_beginning_of_an_answer_is_of_its_request() {
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry());
        let of = async { Span::current().metadata().map(Metadata::name) };
        let parts = tracing::error_span!("request").in_scope(|| in_span(futures::stream::once(of)));
        assert_eq!(parts.collect::<Vec<_>>().await, [Some("request")]);
    }
}
