//! `htc-operator adopt`: makes the jobs of the Go operator of 2020 this operator's, before this one runs.
//!
//! For each `HTCJob`, `condor_qedit` writes this operator's attributes into the ads of its jobs in the queue. The
//! state of all its jobs is written into the ledger. Then the claim, and the finalizer in the place of the Go
//! operator's, mark it as done. A command that was interrupted can be repeated: each step detects what is done.
//! Nothing is submitted or removed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use htc_api::{Identity, ObjectName, ObservedHTCJob, is_for_operator};
use htc_ledger::{Ledger, Save};
use htc_machine::decide::{adopted_job, adoption};
use htc_machine::facts::{Ad, QueryError, QueryErrorKind};
use htc_machine::ids::id_ranges;
use htc_machine::indices::Indices;
use htc_machine::inherited::{Inherited, InheritedJob, inherited};
use htc_machine::judge::AdSource;
use htc_machine::status::jobs_text;
use htc_machine::{Birthdate, JobId, SchedDate, Timestamp, Uid};
use htc_support::clock::Clock;
use htc_support::failpoint::{Point, around};
use htc_support::fence::Fence;
use htc_support::health::Health;
use htc_support::kubernetes::{ApiError, scoped_api, with_timeout};
use htc_support::metrics::Metrics;
use htcondor::Schedd;
use htcondor::adopt::WantedInherited;
use htcondor::listing::AdListing;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::json;

use super::error::CheckError;
use super::{CheckResult, own_credentials};
use crate::cli::check::environment::CheckEnvironment;
use crate::cli::config::Config;
use crate::cli::run::operator_name;
use crate::htcjob::claimed;
use crate::htcjob::is_unadopted;
use crate::leader::Candidate;
use crate::leader::Leader;
use crate::output::layout::OutputLayout;

/// Pause between two queries of the queue: HTCondor may return less than there is, but hardly twice.
const PAUSE: Duration = Duration::from_secs(2);

/// Clients and state that an adoption needs.
struct Adopter<'a> {
    config: &'a Config,
    api: Api<ObservedHTCJob>,
    client: Client,
    /// Name of the operator, as recorded on objects.
    operator: String,
    ledger: Ledger,
    fence: Fence,
    schedd: Arc<Schedd>,
    clock: Clock,
}

/// One `HTCJob` of the Go operator, with the jobs that its status and the database agree on.
struct Adoptee {
    object: ObservedHTCJob,
    name: ObjectName,
    uid: Uid,
    jobs: Arc<[InheritedJob]>,
}

/// Result of one query of the queue.
struct Look {
    /// Jobs that carry this operator's attributes.
    ours: AdListing,
    /// Jobs of the Go operator that do not.
    theirs: AdListing,
}

/// All answers of HTCondor.
struct Seen {
    birthdate: Birthdate,
    looks: [Look; 2],
    /// Results of history, asked after the queries of the queue: jobs with this operator's attributes, and others.
    history: [AdListing; 2],
}

/// Adopts the jobs of all `HTCJob`s of the Go operator. Returns one line for each of them: the number of jobs, or why
/// it was not adopted.
///
/// # Errors
/// Nothing was adopted, or it is not known what was: the command has to be repeated.
pub async fn adopt(config: &Config) -> Result<Vec<CheckResult>, CheckError> {
    if config.condor.schedd.is_empty() {
        return Err(CheckError::NothingToAdoptFrom);
    }
    let ground = CheckEnvironment::of(config).await;
    let (client, operator) = (ground.client.clone()?, ground.operator.clone()?);
    own_credentials(config, &ground.credentials).await?;
    let (clock, schedd) = (Clock::default(), Arc::clone(&ground.schedd));
    let ledger = Ledger::open(&config.ledger(), &Metrics::default(), &Health::default());
    let mut ledger = ledger.map_err(CheckError::LedgerInUse)?;
    ledger.belong_to(&operator).await?;
    let fence = Fence::new(clock);
    let mut leader = lead(config, &client, &mut ledger, &fence).await?;
    let client = fence.client(&client);
    let api = scoped_api(&client, config.kubernetes.watch_namespace.as_deref());
    let adopter = Adopter {
        config,
        api,
        client,
        operator: operator_name(config),
        ledger: ledger.clone(),
        fence: fence.clone(),
        schedd,
        clock,
    };
    let lines = tokio::select! {
        lines = adopter.all() => lines,
        lost = leader.keep(&ledger, &fence) => Err(lost.into()),
    };
    leader.release(&ledger, &fence).await;
    ledger.close().await;
    lines
}

/// Acquires the Lease. So no operator runs meanwhile, and the next one learns from the Lease that this ledger is to
/// be continued.
async fn lead(config: &Config, client: &Client, ledger: &mut Ledger, fence: &Fence) -> Result<Leader, CheckError> {
    let name = ObjectName {
        namespace: config.kubernetes.operator_namespace.clone(),
        name: config.kubernetes.operator_name.clone(),
    };
    let times = config.lease_times();
    let identity = config.identity();
    let candidate = Candidate::new(client.clone(), name, identity, times, Clock::default(), Health::default());
    // An operator that ended without releasing the Lease: waits until it expires.
    match tokio::time::timeout(times.duration * 3, candidate.lead(ledger, fence)).await {
        Ok(leader) => Ok(leader?),
        Err(_) => Err(CheckError::AnotherLeads),
    }
}

impl Adopter<'_> {
    async fn all(&self) -> Result<Vec<CheckResult>, CheckError> {
        let list = with_timeout("list", &"HTCJobs", self.api.list(&ListParams::default())).await?;
        let (mut lines, mut adoptees) = (Vec::new(), Vec::new());
        let is_ours = |object: &ObservedHTCJob| is_for_operator(&self.operator, object) && is_unadopted(object);
        for object in list.items.into_iter().filter(is_ours) {
            let name = ObjectName::of(&object);
            match self.adoptee(object).await {
                Ok(adoptee) => adoptees.push(adoptee),
                Err(why) => lines.push(CheckResult::new(name.to_string(), Err(why))),
            }
        }
        if adoptees.is_empty() {
            return Ok(lines);
        }
        let mut failed = self.mark(&adoptees).await?;
        let seen = self.look(&adoptees).await?;
        for adoptee in &adoptees {
            let judged = match failed.remove(&adoptee.uid) {
                Some(unknown) => Err(unknown.into()),
                None => judge(adoptee, &seen, &self.schedd),
            };
            let adopted = match judged {
                Ok(ads) => self.record(adoptee, &ads, seen.birthdate).await,
                Err(why) => Err(why),
            };
            lines.push(CheckResult::new(adoptee.name.to_string(), adopted));
        }
        lines.sort_by(|one, other| one.subject.cmp(&other.subject));
        Ok(lines)
    }

    /// Returns the jobs of an object according to its status and the Go operator's database.
    async fn adoptee(&self, object: ObservedHTCJob) -> Result<Adoptee, CheckError> {
        let name = ObjectName::of(&object);
        let uid = Uid::from(object.uid().ok_or(CheckError::NoUid)?.as_str());
        let rows = self.ledger.inherited(&name.name, &uid).await?;
        let job = object.0.as_ref().map_err(|error| CheckError::UnreadableObject(error.error.clone()))?;
        let status = job.status.as_ref();
        let ids = status.map(|status| status.jobids.as_slice()).unwrap_or_default();
        let uniqid = status.and_then(|status| status.uniqid).filter(|uniqid| *uniqid != 0);
        match inherited(ids, uniqid, &rows) {
            Inherited::Jobs(jobs) => Ok(Adoptee { object, name, uid, jobs }),
            Inherited::Unclear(why) => Err(CheckError::UnclearJobs(why)),
        }
    }

    /// Writes this operator's attributes into the ads of jobs in the queue that lack them. Returns the objects for
    /// which that failed.
    async fn mark(&self, adoptees: &[Adoptee]) -> Result<HashMap<Uid, QueryError>, QueryError> {
        self.schedd.ask_user().await?;
        for adoptee in adoptees {
            self.schedd.users.assign(&adoptee.uid, &Identity::Operator, Timestamp(0));
        }
        let found = self.schedd.queue_of_inherited(&wanted(adoptees)).await?;
        let mut failed = HashMap::new();
        for Adoptee { name, uid, jobs, .. } in adoptees {
            let there: HashSet<JobId> = found.ads.get(uid).into_iter().flatten().map(|ad| ad.id).collect();
            let theirs: Vec<InheritedJob> = jobs.iter().filter(|job| there.contains(&job.id)).cloned().collect();
            if theirs.is_empty() {
                continue;
            }
            if let Err(refused) = self.fence.check() {
                return Err(QueryError { kind: QueryErrorKind::ToolFailed, message: refused.to_string() });
            }
            let output = OutputLayout::output_below(&self.config.output_dir(), name, uid).display().to_string();
            if let Err(unknown) = self.schedd.adopt(uid, &theirs, &output).await {
                failed.insert(uid.clone(), unknown);
            }
        }
        Ok(failed)
    }

    async fn look(&self, adoptees: &[Adoptee]) -> Result<Seen, QueryError> {
        let wanted = wanted(adoptees);
        let uids: Vec<Uid> = adoptees.iter().map(|adoptee| adoptee.uid.clone()).collect();
        let birthdate = self.schedd.reading().await?.birthdate;
        let first = self.look_once(&wanted).await?;
        tokio::time::sleep(PAUSE).await;
        let second = self.look_once(&wanted).await?;
        let theirs = self.schedd.history_of_inherited(&wanted).await?;
        let ours = self.schedd.history(&uids, &BTreeSet::new()).await?.listing;
        let after = self.schedd.reading().await?.birthdate;
        if after != birthdate {
            let message = format!("the JobQueueBirthdate of schedd {} changed while it was asked", self.schedd.name);
            return Err(QueryError { kind: QueryErrorKind::AnotherSchedd, message });
        }
        Ok(Seen { birthdate, looks: [first, second], history: [ours, theirs] })
    }

    /// Queries the queue once. A job that is marked between the two queries is returned twice, not missed.
    async fn look_once(&self, wanted: &WantedInherited) -> Result<Look, QueryError> {
        let theirs = self.schedd.queue_of_inherited(wanted).await?;
        Ok(Look { theirs, ours: self.schedd.queue().await? })
    }

    /// Records the state of the jobs in the ledger, then in the object.
    async fn record(
        &self,
        adoptee: &Adoptee,
        seen: &[Option<(&Ad, AdSource)>],
        birthdate: Birthdate,
    ) -> Result<String, CheckError> {
        let Adoptee { object, name, uid, jobs: theirs } = adoptee;
        let now = self.clock.now();
        let created = SchedDate(object.creation_timestamp().map_or(0, |time| time.0.as_second()));
        let mut record = self.ledger.load(uid).await?;
        let before = record.jobs.len();
        for (inherited, seen) in theirs.iter().zip(seen) {
            record.jobs.insert(inherited.index, adopted_job(inherited, *seen, birthdate, created, now));
        }
        let (known, transitions) = adoption(&record, record.jobs.len() - before);
        let save = Save {
            uid: uid.clone(),
            name: name.clone(),
            pool: None,
            row: known,
            jobs: record.jobs.into_iter().collect(),
            settled: None,
            absent: None,
            action_updates: Vec::new(),
            schedd: self.schedd.name.clone(),
            sandbox: theirs.first().map(|job| job.folder.to_string()).unwrap_or_default(),
            transitions,
            refuted: Vec::new(),
            returned_quota: Indices::default(),
            now,
        };
        self.ledger.adopt(save, Arc::clone(theirs)).await?;
        self.show(object, name).await?;
        let ids: Vec<JobId> = theirs.iter().map(|job| job.id).collect();
        Ok(format!("{}: {}", jobs_text(ids.len()), id_ranges(&ids, usize::MAX)))
    }

    /// Claims the object, only if it is still the version that was read.
    async fn show(&self, object: &ObservedHTCJob, name: &ObjectName) -> Result<(), ApiError> {
        let mut metadata = claimed(object, self.ledger.id(), &self.operator);
        metadata["uid"] = json!(object.uid());
        metadata["resourceVersion"] = json!(object.meta().resource_version);
        let api: Api<ObservedHTCJob> = Api::namespaced(self.client.clone(), &name.namespace);
        let (patch, parameters) = (Patch::Merge(json!({ "metadata": metadata })), PatchParams::default());
        let patched = with_timeout("claim HTCJob", name, api.patch(&name.name, &parameters, &patch));
        let patched = around(Point::BeforeFinalizerAttached, patched, Point::AfterFinalizerAttached).await;
        patched.map(drop)
    }
}

fn wanted(adoptees: &[Adoptee]) -> WantedInherited {
    adoptees.iter().map(|adoptee| (adoptee.uid.clone(), Arc::clone(&adoptee.jobs))).collect()
}

/// Returns each job's ad, in the order of indexes, and whether it comes from the queue or from history. A job that is
/// in neither place has no ad: the operator decides what that means.
fn judge<'a>(
    adoptee: &Adoptee,
    seen: &'a Seen,
    schedd: &Schedd,
) -> Result<Vec<Option<(&'a Ad, AdSource)>>, CheckError> {
    let uid = &adoptee.uid;
    let mut all = seen.looks.iter().flat_map(|look| [&look.ours, &look.theirs]).chain(&seen.history);
    if let Some(doubt) = all.find_map(|shown| shown.doubt(uid, &schedd.users)) {
        return Err(doubt.into());
    }
    let find = |shown: &'a AdListing, id: JobId| shown.ads.get(uid)?.iter().find(|ad| ad.id == id);
    let mut ads = Vec::new();
    for InheritedJob { id, .. } in adoptee.jobs.iter() {
        let ours = seen.looks.iter().rev().find_map(|look| find(&look.ours, *id));
        let theirs = seen.looks.iter().any(|look| find(&look.theirs, *id).is_some());
        if theirs && ours.is_none() {
            return Err(CheckError::NotMarked(*id));
        }
        let former = seen.history.iter().find_map(|shown| find(shown, *id));
        let queued = || ours.map(|ad| (ad, AdSource::Queue));
        ads.push(former.map(|ad| (ad, AdSource::History)).or_else(queued));
    }
    Ok(ads)
}
