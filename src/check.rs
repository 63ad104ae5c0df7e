//! `htc-operator check`: can the cluster, the schedd and the database be used? One line each.

mod access;
mod kueue;
mod pods;
mod pools;

use std::path::Path;
use std::sync::Arc;

use kube::Client;
use rustix::fs::{Access, access, statvfs};

use crate::clock::Clock;
use crate::condor::{KnownUsers, Schedd};
use crate::config::{self, Config};
use crate::confine::{Confinement, NO_LANDLOCK};
use crate::controller;
use crate::credentials::Credentials;
use crate::health::Health;
use crate::kubernetes;
use crate::ledger::{Ledger, LedgerError, LedgerSnapshot, Users};
use crate::machine::ids::id_ranges;
use crate::metrics::Metrics;
use crate::operator;
use crate::orphans::OrphanReport;
use crate::queue::Queueing;

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
    let clock = Clock::default();
    let client = kubernetes::client().await.map_err(|error| error.to_string());
    let namespace = config.kubernetes.watch_namespace.as_deref();
    let cluster = match &client {
        Ok(client) => controller::served(client, namespace).await.map(|()| "serves HTCJobs".to_owned()),
        Err(message) => Err(message.clone()),
    };
    let operator = match &client {
        Ok(client) => operator::operator_id(client, config).await.map_err(|error| error.to_string()),
        Err(message) => Err(message.clone()),
    };
    let ledger = Ledger::snapshot(&config.ledger()).and_then(|seen| of_operator(seen, operator.as_deref().ok()));
    let (known, unknown) = users(&ledger);
    let users = KnownUsers::new(known);
    let schedd = Arc::new(operator::schedd(
        config,
        operator.clone().unwrap_or_default(),
        clock,
        users,
        &Metrics::default(),
        Health::default(),
    ));
    // They last until all is asked.
    let (own_pool, _credentials) = own_pool(config, &schedd).await;
    let mut lines = vec![Line::new("cluster", cluster)];
    lines.extend(own_pool);
    lines.extend([
        Line::new("confinement", confinement(config, &schedd)),
        Line::new("database", database(&config.ledger(), &ledger)),
    ]);
    if let Some(found) = callbacks(config) {
        lines.push(Line::new("callbacks", Ok(found)));
    }
    if let Some(found) = other_schedds(config.condor.schedd.as_str(), &ledger) {
        lines.push(Line::new("other schedds", Err(found)));
    }
    if let (Ok(client), Ok(_)) = (&client, &operator) {
        lines.extend(pools::lines(config, client, &schedd, &ledger).await);
        if config.pods.kubernetes_backend {
            lines.push(Line::new("kubernetes backend", pods::rights(client, namespace).await));
        }
        if config.queueing.queueing == Queueing::Kueue {
            lines.push(Line::new("kueue", kueue::rights(client, namespace).await));
        }
        if !config.condor.schedd.is_empty() {
            let found = orphans(client, &schedd, namespace).await;
            let found = match unknown {
                Some(why) => add(found, &why),
                None => found,
            };
            lines.push(Line::new("orphans", found));
        }
    }
    lines
}

/// The pool of the operator's flags, if they name one.
async fn own_pool(config: &Config, schedd: &Arc<Schedd>) -> (Vec<Line>, Option<Arc<Credentials>>) {
    if config.condor.schedd.is_empty() {
        let none = "--schedd names none: only HTCJobs run that name an HTCPool, or run as Pods";
        return (vec![Line::new("schedd", config.validate().map(|()| none.to_owned()))], None);
    }
    let (credentials, found) = match own_credentials(config, schedd).await {
        Ok((credentials, found)) => (Some(credentials), Ok(found)),
        Err(why) => (None, Err(why)),
    };
    (vec![Line::new("credentials", found), Line::new("schedd", ask_schedd(schedd).await)], credentials)
}

/// A ledger of another operator says nothing about the jobs of this one.
fn of_operator(seen: Option<LedgerSnapshot>, ours: Option<&str>) -> Result<Option<LedgerSnapshot>, LedgerError> {
    match (seen.as_ref().and_then(|seen| seen.operator.as_ref()), ours) {
        (Some(stored), Some(ours)) if stored != ours => {
            Err(LedgerError::AnotherOperator { stored: stored.clone(), ours: ours.to_owned() })
        }
        (_, _) => Ok(seen),
    }
}

/// The names under which there may be jobs beside the operator's own, or why they are not known.
fn users(ledger: &Result<Option<LedgerSnapshot>, LedgerError>) -> (Users, Option<String>) {
    let only = |why: &str| Some(format!("only the operator's own jobs were checked: {why}"));
    match ledger {
        Ok(Some(seen)) => (seen.users.clone(), None),
        Ok(None) => (Users::new(), only("no ledger knows other users")),
        Err(error) => (Users::new(), only(&error.to_string())),
    }
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

/// The operator's own; they last as long as the first part of what is found.
async fn own_credentials(config: &Config, schedd: &Arc<Schedd>) -> Result<(Arc<Credentials>, String), String> {
    config.validate()?;
    let credentials = Credentials::new(config.credentials_setup(), Arc::clone(schedd), None, Metrics::default());
    match credentials.look_for_own().await {
        None => Ok((credentials, "from CONDOR_CONFIG".to_owned())),
        Some(found) => found.map(|found| (credentials, found)),
    }
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

/// Jobs of this operator whose HTCJob is gone. They are named, and never removed.
async fn orphans(client: &Client, schedd: &Schedd, namespace: Option<&str>) -> Result<String, String> {
    let OrphanReport { orphans, elsewhere, unreadable } = crate::orphans::find(client, schedd, namespace).await?;
    let found = match (orphans.is_empty(), namespace) {
        (true, None) => Ok("none: every job of this operator in HTCondor belongs to an HTCJob".to_owned()),
        (true, Some(namespace)) => Ok(format!(
            "none: every job of this operator in HTCondor that is of namespace {namespace} belongs to an HTCJob"
        )),
        (false, _) => Err(format!(
            "{} jobs{} in HTCondor belong to no HTCJob: {}; remove them with condor_rm if nobody needs them",
            orphans.len(),
            namespace.map(|namespace| format!(" of namespace {namespace}")).unwrap_or_default(),
            id_ranges(&orphans, usize::MAX)
        )),
    };
    let found = match unreadable {
        0 => found,
        count => add(
            found,
            &format!(
                "{count} more have ads that cannot be read or do not say whose they are: somebody has changed their attributes"
            ),
        ),
    };
    let Some(namespace) = namespace.filter(|_| !elsewhere.is_empty()) else { return found };
    let more = format!(
        "{} more ({}) are not of the watched namespace {namespace}: they may belong to HTCJobs in namespaces that were watched \
         before, and do not count as orphans",
        elsewhere.len(),
        id_ranges(&elsewhere, usize::MAX)
    );
    add(found, &more)
}
