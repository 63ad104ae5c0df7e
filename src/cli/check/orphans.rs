//! Orphans: jobs of this operator whose `HTCJob` is gone. `check` has a line about them; `htc-operator orphans` lists
//! them, and removes them on request.

use std::collections::BTreeSet;
use std::str::FromStr;

use futures::{StreamExt as _, stream};
use htc_api::ObjectName;
use htc_machine::Uid;
use htc_machine::ids::id_ranges;
use htcondor::Schedd;
use htcondor::orphans::Orphan;
use kube::Client;

use super::error::CheckError;
use super::{add, own_credentials};
use crate::backends::condor::credentials::Credentials;
use crate::backends::condor::orphans::{NotRemoved, OrphanReport, find, remove};
use crate::cli::check::environment as ground;
use crate::cli::check::environment::CheckEnvironment;
use crate::cli::config::Config;

/// Name of the pool of the operator's flags, here and in metrics.
const DEFAULT: &str = "default";

/// Pool to be searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolSelector {
    /// Pool of the operator's flags.
    Default,
    /// Pool of an `HTCPool`.
    Named(ObjectName),
}

impl FromStr for PoolSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == DEFAULT {
            return Ok(Self::Default);
        }
        let wrong = |_| format!("write NAMESPACE/NAME of an HTCPool, or {DEFAULT} for the pool of --schedd");
        text.parse().map(Self::Named).map_err(wrong)
    }
}

/// Orphans in one pool.
#[derive(Debug)]
pub struct PoolOrphans {
    /// Name of the pool.
    pub pool: String,
    /// Each orphan, and why it is still there after it should have been removed.
    pub jobs: Vec<(Orphan, Option<String>)>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Why the orphans are not known, or were not removed.
    pub failure: Option<CheckError>,
}

/// Searches for orphans in all pools or in one, and removes them if `removes`.
///
/// # Errors
/// No pool can be searched.
pub async fn orphans(
    config: &Config,
    which: Option<&PoolSelector>,
    removes: bool,
) -> Result<Vec<PoolOrphans>, CheckError> {
    let ground = CheckEnvironment::of(config).await;
    let client = ground.client.clone()?;
    ground.operator.as_ref().map_err(Clone::clone)?;
    let mut found = Vec::new();
    let has_default = !config.condor.schedd.is_empty();
    if which.is_none_or(|which| *which == PoolSelector::Default) && has_default {
        let looked = match own_credentials(config, &ground.credentials).await {
            Ok(_) => look(config, &client, &ground.schedd, &ground.credentials, removes).await,
            Err(why) => Err(why),
        };
        found.push(of_pool(DEFAULT.to_owned(), looked, ground.unknown.clone()));
    }
    let mut named = Vec::new();
    if which != Some(&PoolSelector::Default) {
        match ground::list(config, &client).await {
            Ok(list) => named = list,
            Err(error) => found.push(of_pool("of HTCPools".to_owned(), Err(error.into()), None)),
        }
    }
    if let Some(PoolSelector::Named(only)) = which {
        named.retain(|pool| ObjectName::of(pool) == *only);
    }
    let asked = named.iter().map(|pool| async {
        let name = ObjectName::of(pool);
        let looked = async {
            let pool = pool.0.as_ref().map_err(|error| CheckError::UnreadableObject(error.error.clone()))?;
            let (schedd, credentials) = ground::open(config, &client, &ground, &name, pool).await?;
            look(config, &client, &schedd, &credentials, removes).await
        };
        let note = pool.0.as_ref().ok().and_then(|pool| ground.unknown_in(pool));
        of_pool(name.to_string(), looked.await, note.map(str::to_owned))
    });
    let asked: Vec<PoolOrphans> = stream::iter(asked.collect::<Vec<_>>()).buffered(ground::AT_ONCE).collect().await;
    found.extend(asked);
    match which {
        Some(PoolSelector::Default) if found.is_empty() => Err(CheckError::NoSchedd),
        Some(PoolSelector::Named(name)) if found.is_empty() => Err(CheckError::NoPool(name.clone())),
        Some(_) | None => Ok(found),
    }
}

type OrphanSearch = (Vec<(Orphan, Option<String>)>, Vec<String>, Option<CheckError>);

fn of_pool(pool: String, looked: Result<OrphanSearch, CheckError>, note: Option<String>) -> PoolOrphans {
    match looked {
        Ok((jobs, notes, trouble)) => {
            PoolOrphans { pool, jobs, notes: notes.into_iter().chain(note).collect(), failure: trouble }
        }
        Err(why) => PoolOrphans { pool, jobs: Vec::new(), notes: Vec::new(), failure: Some(why) },
    }
}

async fn look(
    config: &Config,
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    removes: bool,
) -> Result<OrphanSearch, CheckError> {
    let namespace = config.kubernetes.watch_namespace.as_deref();
    let report = find(client, schedd, credentials, namespace).await?;
    let uids: BTreeSet<Uid> = report.orphans.values().cloned().collect();
    let mut jobs = schedd.orphans_of(&uids.into_iter().collect::<Vec<_>>()).await?;
    jobs.retain(|job| report.orphans.get(&job.id) == Some(&job.uid));
    schedd.name(&mut jobs).await;
    let (mut stays, mut trouble) = (NotRemoved::new(), None);
    if removes && !jobs.is_empty() {
        match remove(client, schedd, credentials, namespace, &jobs).await {
            Ok(there) => stays = there,
            Err(error) => trouble = Some(error.into()),
        }
    }
    let notes = unreadable(&report).into_iter().chain(elsewhere(&report, namespace)).collect();
    let jobs = jobs
        .into_iter()
        .map(|job| {
            let why = stays.remove(&job.id);
            (job, why)
        })
        .collect();
    Ok((jobs, notes, trouble))
}

/// Returns the line about orphans in one pool.
pub(super) async fn in_words(
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    namespace: Option<&str>,
) -> Result<String, CheckError> {
    let report = find(client, schedd, credentials, namespace).await?;
    let orphans = report.ids();
    let found = match (orphans.is_empty(), namespace) {
        (true, None) => Ok("none: every job of this operator in HTCondor belongs to an HTCJob".to_owned()),
        (true, Some(namespace)) => Ok(format!(
            "none: every job of this operator in HTCondor that is of namespace {namespace} belongs to an HTCJob"
        )),
        (false, _) => Err(CheckError::Orphans { jobs: orphans, namespace: namespace.map(str::to_owned) }),
    };
    let more = unreadable(&report).into_iter().chain(elsewhere(&report, namespace));
    more.fold(found, |found, more| add(found, &more))
}

fn unreadable(report: &OrphanReport) -> Option<String> {
    (report.unreadable > 0).then(|| {
        format!(
            "{} more have ads that cannot be read or do not say whose they are: somebody has changed their attributes",
            report.unreadable
        )
    })
}

fn elsewhere(report: &OrphanReport, namespace: Option<&str>) -> Option<String> {
    let namespace = namespace.filter(|_| !report.elsewhere.is_empty())?;
    Some(format!(
        "{} more ({}) are not of the watched namespace {namespace}: they may belong to HTCJobs in namespaces that were watched \
         before, and do not count as orphans",
        report.elsewhere.len(),
        id_ranges(&report.elsewhere, usize::MAX)
    ))
}
