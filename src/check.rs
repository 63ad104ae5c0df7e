//! `htc-operator check`: can the cluster, the schedd and the database be used? One line each.

use std::sync::Arc;

use kube::Client;

use crate::clock::Clock;
use crate::condor::{Names, Schedd};
use crate::config::Config;
use crate::controller;
use crate::credentials::Credentials;
use crate::ledger::{Ledger, LedgerError};
use crate::machine::ids::id_ranges;
use crate::operator;

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What was looked at.
    pub what: &'static str,
    /// What was found, or what is wrong and what to do about it.
    pub found: Result<String, String>,
}

/// Looks at everything that the operator needs.
pub async fn check(config: &Config) -> Vec<Line> {
    let clock = Clock::default();
    let client = operator::client().await.map_err(|error| error.to_string());
    let cluster = match &client {
        Ok(client) => controller::served(client).await.map(|()| "serves HTCJobs".to_owned()),
        Err(message) => Err(message.clone()),
    };
    let operator = match &client {
        Ok(client) => operator::operator_id(client, config).await.map_err(|error| error.to_string()),
        Err(message) => Err(message.clone()),
    };
    let schedd = Arc::new(operator::schedd(config, operator.clone().unwrap_or_default(), clock, Names::default()));
    let credentials = own_credentials(config, &schedd).await;
    let mut lines = vec![
        Line { what: "cluster", found: cluster },
        Line { what: "credentials", found: credentials.clone().map(|(_, found)| found) },
        Line { what: "schedd", found: ask_schedd(&schedd).await },
        Line { what: "database", found: open(config) },
    ];
    if let (Ok(client), Ok(_)) = (&client, &operator) {
        lines.push(Line { what: "orphans", found: orphans(client, &schedd).await });
    }
    lines
}

/// The operator's own; they last as long as the first part of what is found.
async fn own_credentials(config: &Config, schedd: &Arc<Schedd>) -> Result<(Arc<Credentials>, String), String> {
    config.validate()?;
    let credentials = Credentials::new(config.credentials_setup(), Arc::clone(schedd), None);
    match credentials.look_for_own().await {
        None => Ok((credentials, "those of CONDOR_CONFIG are used".to_owned())),
        Some(found) => found.map(|found| (credentials, found)),
    }
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

fn open(config: &Config) -> Result<String, String> {
    let path = config.ledger();
    if !path.exists() {
        let folder = path.parent().unwrap_or(&path);
        return match std::fs::create_dir_all(folder) {
            Ok(()) => Ok(format!("{} is not there yet: it is made at the first start", path.display())),
            Err(error) => Err(format!("cannot make {}: {error}; check --data-dir", folder.display())),
        };
    }
    match Ledger::open(&path) {
        Ok(ledger) => Ok(format!("{} can be written; ledger {}", path.display(), ledger.id())),
        Err(LedgerError::Locked { .. }) => Ok(format!("{} is in use by a running operator", path.display())),
        Err(error) => Err(error.to_string()),
    }
}

/// Jobs of this operator whose HTCJob is gone. They are named, and never removed.
async fn orphans(client: &Client, schedd: &Schedd) -> Result<String, String> {
    let left = crate::orphans::orphans(client, schedd).await?;
    if left.is_empty() {
        Ok("none: every job of this operator in HTCondor belongs to an HTCJob".to_owned())
    } else {
        Err(format!(
            "{} jobs in HTCondor belong to no HTCJob: {}; remove them with condor_rm if nobody needs them",
            left.len(),
            id_ranges(&left, usize::MAX)
        ))
    }
}
