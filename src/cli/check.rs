//! `htc-operator check`: reports in one line each whether the cluster, the schedd and the database can be used.

mod access;
pub mod adopt;
mod consent;
mod environment;
pub mod error;
mod kueue;
mod managed;
pub mod orphans;
mod pods;
mod pools;
mod queues;

use std::path::Path;
use std::sync::Arc;

use htc_api::ObservedHTCJob;
use htc_confine::{Confinement, NO_LANDLOCK};
use htc_ledger::LedgerSnapshot;
use htc_support::kubernetes::{scoped_api, with_timeout};
use htcondor::Schedd;
use kube::Client;
use kube::api::ListParams;
use rustix::fs::{Access, access, statvfs};

use crate::backends::condor::credentials::Credentials;
use crate::cli::config;
use crate::cli::config::Config;
use crate::cli::run::StartError;
use crate::htcqueue::Queueing;
use environment::CheckEnvironment;
use error::CheckError;

pub use managed::RIGHTS as MANAGED_POOL_RIGHTS;

/// One line of the report.
#[derive(Debug)]
pub struct CheckResult {
    /// Subject of the check.
    pub subject: String,
    /// Result; or what is wrong and what to do about it.
    pub result: Result<String, CheckError>,
}

impl CheckResult {
    fn new(what: impl Into<String>, found: Result<String, CheckError>) -> Self {
        Self { subject: what.into(), result: found }
    }
}

/// Checks everything that the operator needs, and changes nothing.
pub async fn check(config: &Config) -> Vec<CheckResult> {
    let ground = CheckEnvironment::of(config).await;
    let CheckEnvironment { client, operator, ledger, schedd, .. } = &ground;
    let namespace = config.kubernetes.watch_namespace.as_deref();
    let cluster = match client {
        Ok(client) => htcjobs(client, namespace).await,
        Err(error) => Err(Arc::clone(error).into()),
    };
    let mut lines = vec![CheckResult::new("cluster", cluster)];
    lines.extend(own_pool(config, &ground).await);
    lines.extend([
        CheckResult::new("confinement", confinement(config, schedd)),
        CheckResult::new("database", database(&config.ledger(), ledger)),
    ]);
    if let Some(found) = callbacks(config) {
        lines.push(CheckResult::new("callbacks", Ok(found)));
    }
    if let Some(found) = other_schedds(config.condor.schedd.as_str(), ledger) {
        lines.push(CheckResult::new("other schedds", Err(found)));
    }
    if let (Ok(client), Ok(_)) = (client, operator) {
        lines.extend(pools::lines(config, client, &ground).await);
        if config.pods.kubernetes_backend {
            lines.push(CheckResult::new("kubernetes backend", pods::rights(client, namespace).await));
        }
        match config.queueing.queueing {
            Queueing::None => {}
            Queueing::Embedded => lines.push(CheckResult::new("queues", queues::rights(client).await)),
            Queueing::Kueue => lines.push(CheckResult::new("kueue", kueue::rights(client, namespace).await)),
        }
        if let Some(found) = consent::labels(client, namespace).await {
            lines.push(CheckResult::new("labels", found));
        }
        if !config.condor.schedd.is_empty() {
            let found = orphans::in_words(client, schedd, &ground.credentials, namespace).await;
            let found = match &ground.unknown {
                Some(why) => add(found, why),
                None => found,
            };
            lines.push(CheckResult::new("orphans", found));
        }
    }
    lines
}

/// Checks that the API server serves `HTCJob`s.
async fn htcjobs(client: &Client, namespace: Option<&str>) -> Result<String, CheckError> {
    let api = scoped_api::<ObservedHTCJob>(client, namespace);
    match with_timeout("list", &"HTCJobs", api.list(&ListParams::default().limit(1))).await {
        Err(error) if error.code() == Some(404) => Err(CheckError::NoHTCJobs),
        answer => Ok(answer.map(|_| "serves HTCJobs".to_owned())?),
    }
}

/// Checks the pool of the operator's flags, if they name one.
async fn own_pool(config: &Config, ground: &CheckEnvironment) -> Vec<CheckResult> {
    if config.condor.schedd.is_empty() {
        let none = "none (--schedd): HTCJobs need an HTCPool or the Kubernetes backend";
        return vec![CheckResult::new("schedd", config.validate().map(|()| none.to_owned()).map_err(CheckError::from))];
    }
    let found = own_credentials(config, &ground.credentials).await;
    vec![CheckResult::new("credentials", found), CheckResult::new("schedd", ask_schedd(&ground.schedd).await)]
}

/// Returns an error about other schedds at which the ledger has jobs that are not known to be gone.
fn other_schedds(ours: &str, ledger: &Result<Option<LedgerSnapshot>, Arc<StartError>>) -> Option<CheckError> {
    let schedds = &ledger.as_ref().ok()?.as_ref()?.schedds;
    let others: Vec<String> = schedds
        .iter()
        .filter(|(schedd, _)| !schedd.eq_ignore_ascii_case(ours))
        .map(|(schedd, htcjobs)| format!("{htcjobs} at {schedd}"))
        .collect();
    if others.is_empty() {
        return None;
    }
    let ours = if ours.is_empty() { "that of HTCPools" } else { ours };
    Some(CheckError::OtherSchedds { ours: ours.to_owned(), others: others.join(", ") })
}

/// Appends a remark to a result or an error.
fn add(found: Result<String, CheckError>, more: &str) -> Result<String, CheckError> {
    found
        .map(|text| format!("{text}; {more}"))
        .map_err(|error| CheckError::WithRemark { error: Box::new(error), remark: more.to_owned() })
}

/// Checks the operator's own credentials.
async fn own_credentials(config: &Config, credentials: &Credentials) -> Result<String, CheckError> {
    config.validate()?;
    Ok(credentials.refresh_operator().await.unwrap_or_else(|| Ok("from CONDOR_CONFIG".to_owned()))?)
}

/// Checks the confinement of HTCondor's tools. Whether a kernel without Landlock is an error depends on the
/// operator's setting.
fn confinement(config: &Config, schedd: &Schedd) -> Result<String, CheckError> {
    let found = match (schedd.tools.is_confined(), config.condor.confinement) {
        (true, _) => Ok("HTCondor's tools are confined by Landlock to the files that each call needs".to_owned()),
        (false, Confinement::Off) => Ok("HTCondor's tools are not confined: --confinement=off".to_owned()),
        (false, Confinement::Auto) => {
            Ok(format!("HTCondor's tools are not confined: {NO_LANDLOCK}; use Linux 5.13 or newer if you can"))
        }
        (false, Confinement::Required) => Err(CheckError::NoLandlock),
    };
    match config::excluded_paths_message(&schedd.tools) {
        Some(why) => add(found, &why),
        None => found,
    }
}

/// Returns where jobs report, if they do.
fn callbacks(config: &Config) -> Option<String> {
    let url = config.callbacks.callback_url.as_ref()?;
    let warning = config.callbacks_in_clear().map(|why| format!("warning: {why}"));
    Some(warning.unwrap_or_else(|| format!("jobs report to {url}")))
}

async fn ask_schedd(schedd: &Schedd) -> Result<String, CheckError> {
    let reading = schedd.reading().await?;
    let identity = schedd.ask_user().await?;
    let skew = reading.date.0 - reading.at.0 / 1000;
    let created = jiff::Timestamp::from_second(reading.birthdate.0).unwrap_or_default();
    Ok(format!(
        "{} answers; authenticated as {identity}; clock skew {skew} s; job queue created {created}",
        schedd.name
    ))
}

fn database(path: &Path, ledger: &Result<Option<LedgerSnapshot>, Arc<StartError>>) -> Result<String, CheckError> {
    let shown = path.display();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(".".as_ref());
    match ledger {
        Err(error) => Err(Arc::clone(error).into()),
        Ok(None) => match can_be_made(folder) {
            Ok(()) => Ok(format!("{shown} does not exist yet; the operator creates it at its first start")),
            Err(source) => Err(CheckError::CreateLedger { folder: folder.to_owned(), source }),
        },
        Ok(Some(LedgerSnapshot { in_use: true, .. })) => Ok(format!("{shown} is in use by a running operator")),
        Ok(Some(seen)) => match can_be_written(path, folder) {
            Ok(()) => Ok(match &seen.id {
                Some(id) => format!("{shown} is writable; ledger {id}"),
                None => format!("{shown} is writable; it becomes a ledger at the first start"),
            }),
            Err(source) => Err(CheckError::WriteLedger { path: path.to_owned(), source }),
        },
    }
}

/// Checks that this folder exists, or can be created.
fn can_be_made(folder: &Path) -> std::io::Result<()> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(".".as_ref());
    if there.is_dir() {
        Ok(access(there, Access::WRITE_OK | Access::EXEC_OK)?)
    } else {
        Err(std::io::ErrorKind::NotADirectory.into())
    }
}

/// Checks that the ledger can be written, as far as possible without writing.
fn can_be_written(path: &Path, folder: &Path) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?;
    // The write-ahead log is in the same folder.
    access(folder, Access::WRITE_OK | Access::EXEC_OK)?;
    let volume = statvfs(folder)?;
    // A volume that does not count blocks does not report its free space.
    if volume.f_blocks > 0 && volume.f_bavail == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}
