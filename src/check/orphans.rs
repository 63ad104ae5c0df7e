//! Jobs of this operator whose `HTCJob` is gone: in a line of `check`, and `htc-operator orphans`, which names each of them and removes
//! them if it is told to.

use std::collections::BTreeSet;
use std::str::FromStr;

use futures::{StreamExt as _, stream};
use kube::Client;

use super::ground::{self, Ground};
use super::{add, own_credentials};
use crate::api::ObjectName;
use crate::condor::Schedd;
use crate::condor::left::Left;
use crate::config::Config;
use crate::credentials::Credentials;
use crate::machine::Uid;
use crate::machine::ids::id_ranges;
use crate::orphans::{OrphanReport, Stays, find, remove};

/// How the pool of the operator's flags is called, here and in metrics.
const DEFAULT: &str = "default";

/// Which pool is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// That of the operator's flags.
    Default,
    /// That of an `HTCPool`.
    Named(ObjectName),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == DEFAULT {
            return Ok(Self::Default);
        }
        let wrong = |_| format!("write NAMESPACE/NAME of an HTCPool, or {DEFAULT} for the pool of --schedd");
        text.parse().map(Self::Named).map_err(wrong)
    }
}

/// What was found in one pool.
#[derive(Clone, Debug)]
pub struct InPool {
    /// Its name.
    pub pool: String,
    /// Each orphan, and why it is still there after it should have been removed.
    pub jobs: Vec<(Left, Option<String>)>,
    /// What else there is to say.
    pub notes: Vec<String>,
    /// Why it is not known what is there, or was not done what should be.
    pub trouble: Option<String>,
}

/// Looks for orphans in all pools or in one, and removes them if that is wanted.
///
/// # Errors
/// Nothing can be looked at.
pub async fn orphans(config: &Config, which: Option<&Which>, removes: bool) -> Result<Vec<InPool>, String> {
    let ground = Ground::of(config).await;
    let client = ground.client.clone()?;
    ground.operator.as_ref().map_err(Clone::clone)?;
    let mut found = Vec::new();
    let has_default = !config.condor.schedd.is_empty();
    if which.is_none_or(|which| *which == Which::Default) && has_default {
        let looked = match own_credentials(config, &ground.credentials).await {
            Ok(_) => look(config, &client, &ground.schedd, &ground.credentials, removes).await,
            Err(why) => Err(why),
        };
        found.push(of_pool(DEFAULT.to_owned(), looked, ground.unknown.clone()));
    }
    let mut named = Vec::new();
    if which != Some(&Which::Default) {
        match ground::list(config, &client).await {
            Ok(list) => named = list,
            Err(error) => found.push(of_pool("of HTCPools".to_owned(), Err(error.to_string()), None)),
        }
    }
    if let Some(Which::Named(only)) = which {
        named.retain(|pool| ObjectName::of(pool) == *only);
    }
    let asked = named.iter().map(|pool| async {
        let name = ObjectName::of(pool);
        let looked = async {
            let pool = pool.0.as_ref().map_err(|error| error.error.clone())?;
            let (schedd, credentials) = ground::open(config, &client, &ground, &name, pool).await?;
            look(config, &client, &schedd, &credentials, removes).await
        };
        let note = pool.0.as_ref().ok().and_then(|pool| ground.unknown_in(pool));
        of_pool(name.to_string(), looked.await, note.map(str::to_owned))
    });
    let asked: Vec<InPool> = stream::iter(asked.collect::<Vec<_>>()).buffered(ground::AT_ONCE).collect().await;
    found.extend(asked);
    match which {
        Some(Which::Default) if found.is_empty() => Err("--schedd names no schedd".to_owned()),
        Some(Which::Named(name)) if found.is_empty() => Err(format!("this operator has no HTCPool {name}")),
        Some(_) | None => Ok(found),
    }
}

type Looked = (Vec<(Left, Option<String>)>, Vec<String>, Option<String>);

fn of_pool(pool: String, looked: Result<Looked, String>, note: Option<String>) -> InPool {
    match looked {
        Ok((jobs, notes, trouble)) => InPool { pool, jobs, notes: notes.into_iter().chain(note).collect(), trouble },
        Err(why) => InPool { pool, jobs: Vec::new(), notes: Vec::new(), trouble: Some(why) },
    }
}

async fn look(
    config: &Config,
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    removes: bool,
) -> Result<Looked, String> {
    let namespace = config.kubernetes.watch_namespace.as_deref();
    let report = find(client, schedd, credentials, namespace).await?;
    let uids: BTreeSet<Uid> = report.orphans.values().cloned().collect();
    let mut jobs = schedd.left(&uids.into_iter().collect::<Vec<_>>()).await.map_err(|unknown| unknown.message)?;
    jobs.retain(|job| report.orphans.get(&job.id) == Some(&job.uid));
    schedd.name(&mut jobs).await;
    let (mut stays, mut trouble) = (Stays::new(), None);
    if removes && !jobs.is_empty() {
        match remove(client, schedd, credentials, namespace, &jobs).await {
            Ok(there) => stays = there,
            Err(why) => trouble = Some(why),
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

/// They are named in a line.
pub(super) async fn in_words(
    client: &Client,
    schedd: &Schedd,
    credentials: &Credentials,
    namespace: Option<&str>,
) -> Result<String, String> {
    let report = find(client, schedd, credentials, namespace).await?;
    let orphans = report.ids();
    let found = match (orphans.is_empty(), namespace) {
        (true, None) => Ok("none: every job of this operator in HTCondor belongs to an HTCJob".to_owned()),
        (true, Some(namespace)) => Ok(format!(
            "none: every job of this operator in HTCondor that is of namespace {namespace} belongs to an HTCJob"
        )),
        (false, _) => Err(format!(
            "{} jobs{} in HTCondor belong to no HTCJob: {}; remove them with `htc-operator orphans --remove` if nobody needs them",
            orphans.len(),
            namespace.map(|namespace| format!(" of namespace {namespace}")).unwrap_or_default(),
            id_ranges(&orphans, usize::MAX)
        )),
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
