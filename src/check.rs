//! `htc-operator check`: can the cluster, the schedd and the database be used? One line each.

mod access;
mod consent;
mod ground;
mod kueue;
mod managed;
pub mod orphans;
mod pods;
mod pools;
mod queues;

use std::path::Path;

use rustix::fs::{Access, access, statvfs};

use crate::condor::Schedd;
use crate::config::{self, Config};
use crate::confine::{Confinement, NO_LANDLOCK};
use crate::controller;
use crate::credentials::Credentials;
use crate::ledger::{LedgerError, LedgerSnapshot};
use crate::queue::Queueing;
use ground::Ground;

pub use managed::RIGHTS as MANAGED_POOL_RIGHTS;

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What was looked at.
    pub what: String,
    /// What was found, or what is wrong and what to do about it.
    pub found: Result<String, String>,
}

impl Line {
    fn new(what: impl Into<String>, found: Result<String, String>) -> Self {
        Self { what: what.into(), found }
    }
}

/// Looks at everything that the operator needs, and changes nothing.
pub async fn check(config: &Config) -> Vec<Line> {
    let ground = Ground::of(config).await;
    let Ground { client, operator, ledger, schedd, .. } = &ground;
    let namespace = config.kubernetes.watch_namespace.as_deref();
    let cluster = match client {
        Ok(client) => controller::served(client, namespace).await.map(|()| "serves HTCJobs".to_owned()),
        Err(message) => Err(message.clone()),
    };
    let mut lines = vec![Line::new("cluster", cluster)];
    lines.extend(own_pool(config, &ground).await);
    lines.extend([
        Line::new("confinement", confinement(config, schedd)),
        Line::new("database", database(&config.ledger(), ledger)),
    ]);
    if let Some(found) = callbacks(config) {
        lines.push(Line::new("callbacks", Ok(found)));
    }
    if let Some(found) = other_schedds(config.condor.schedd.as_str(), ledger) {
        lines.push(Line::new("other schedds", Err(found)));
    }
    if let (Ok(client), Ok(_)) = (client, operator) {
        lines.extend(pools::lines(config, client, &ground).await);
        if config.pods.kubernetes_backend {
            lines.push(Line::new("kubernetes backend", pods::rights(client, namespace).await));
        }
        match config.queueing.queueing {
            Queueing::None => {}
            Queueing::Embedded => lines.push(Line::new("queues", queues::rights(client).await)),
            Queueing::Kueue => lines.push(Line::new("kueue", kueue::rights(client, namespace).await)),
        }
        if let Some(found) = consent::labels(client, namespace).await {
            lines.push(Line::new("labels", found));
        }
        if !config.condor.schedd.is_empty() {
            let found = orphans::in_words(client, schedd, &ground.credentials, namespace).await;
            let found = match &ground.unknown {
                Some(why) => add(found, why),
                None => found,
            };
            lines.push(Line::new("orphans", found));
        }
    }
    lines
}

/// The pool of the operator's flags, if they name one.
async fn own_pool(config: &Config, ground: &Ground) -> Vec<Line> {
    if config.condor.schedd.is_empty() {
        let none = "--schedd names none: only HTCJobs run that name an HTCPool, or run as Pods";
        return vec![Line::new("schedd", config.validate().map(|()| none.to_owned()))];
    }
    let found = own_credentials(config, &ground.credentials).await;
    vec![Line::new("credentials", found), Line::new("schedd", ask_schedd(&ground.schedd).await)]
}

/// At which other schedds the ledger has jobs that are not known to be gone.
fn other_schedds(ours: &str, ledger: &Result<Option<LedgerSnapshot>, LedgerError>) -> Option<String> {
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
    Some(format!(
        "HTCJobs have jobs at other schedds than {ours}: {}; run the operator with --schedd of each until those have ended",
        others.join(", ")
    ))
}

/// Says more, whether it is well or not.
fn add(found: Result<String, String>, more: &str) -> Result<String, String> {
    let both = |text: String| format!("{text}; {more}");
    found.map(both).map_err(both)
}

/// The operator's own.
async fn own_credentials(config: &Config, credentials: &Credentials) -> Result<String, String> {
    config.validate()?;
    credentials.look_for_own().await.unwrap_or_else(|| Ok("from CONDOR_CONFIG".to_owned()))
}

/// What the operator does about it decides whether a kernel without Landlock is wrong.
fn confinement(config: &Config, schedd: &Schedd) -> Result<String, String> {
    let found = match (schedd.tools.confined(), config.condor.confinement) {
        (true, _) => Ok("HTCondor's tools are confined by Landlock to the files that each call needs".to_owned()),
        (false, Confinement::Off) => Ok("HTCondor's tools are not confined: --confinement=off".to_owned()),
        (false, Confinement::Auto) => {
            Ok(format!("HTCondor's tools are not confined: {NO_LANDLOCK}; use Linux 5.13 or newer if you can"))
        }
        (false, Confinement::Required) => Err(format!("{NO_LANDLOCK}; use Linux 5.13 or newer, or --confinement=auto")),
    };
    match config::left_out(&schedd.tools) {
        Some(why) => add(found, &why),
        None => found,
    }
}

/// Where jobs report, if they do.
fn callbacks(config: &Config) -> Option<String> {
    let url = config.callbacks.callback_url.as_ref()?;
    let warning = config.callbacks_in_clear().map(|why| format!("warning: {why}"));
    Some(warning.unwrap_or_else(|| format!("jobs report to {url}")))
}

async fn ask_schedd(schedd: &Schedd) -> Result<String, String> {
    let ask = async {
        let reading = schedd.reading().await?;
        let identity = schedd.identity().await?;
        let skew = reading.date.0 - reading.at.0 / 1000;
        Ok(format!(
            "{} answers; we are {identity}; its queue was born at {}, its clock differs by {skew} s",
            schedd.name, reading.birthdate
        ))
    };
    ask.await.map_err(|unknown: crate::machine::facts::Unknown| unknown.message)
}

fn database(path: &Path, ledger: &Result<Option<LedgerSnapshot>, LedgerError>) -> Result<String, String> {
    let shown = path.display();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(".".as_ref());
    match ledger {
        Err(error) => Err(error.to_string()),
        Ok(None) => match can_be_made(folder) {
            Ok(()) => Ok(format!("{shown} does not exist yet; the operator creates it at its first start")),
            Err(error) => Err(format!("cannot create {}: {error}; check --data-dir", folder.display())),
        },
        Ok(Some(LedgerSnapshot { in_use: true, .. })) => Ok(format!("{shown} is in use by a running operator")),
        Ok(Some(seen)) => match can_be_written(path, folder) {
            Ok(()) => Ok(match &seen.id {
                Some(id) => format!("{shown} is writable; ledger {id}"),
                None => format!("{shown} is writable; it becomes a ledger at the first start"),
            }),
            Err(error) => {
                Err(format!("cannot write {shown}: {error}; check its owner, and the volume's space and health"))
            }
        },
    }
}

/// Whether there is such a folder, or one may be made.
fn can_be_made(folder: &Path) -> std::io::Result<()> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(".".as_ref());
    if there.is_dir() {
        Ok(access(there, Access::WRITE_OK | Access::EXEC_OK)?)
    } else {
        Err(std::io::ErrorKind::NotADirectory.into())
    }
}

/// As far as that can be said without writing.
fn can_be_written(path: &Path, folder: &Path) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?;
    // The log lies beside it.
    access(folder, Access::WRITE_OK | Access::EXEC_OK)?;
    let volume = statvfs(folder)?;
    // A volume that counts no blocks does not say how full it is.
    if volume.f_blocks > 0 && volume.f_bavail == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}
