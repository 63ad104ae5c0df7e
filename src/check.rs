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
use crate::orphans::Strays;

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
    let namespace = config.watch_namespace.as_deref();
    let cluster = match &client {
        Ok(client) => controller::served(client, namespace).await.map(|()| "serves HTCJobs".to_owned()),
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
        lines.push(Line { what: "orphans", found: orphans(client, &schedd, namespace).await });
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

fn add(text: &str, more: &str) -> String {
    format!("{text}; {more}")
}

/// Jobs of this operator whose HTCJob is gone. They are named, and never removed.
async fn orphans(client: &Client, schedd: &Schedd, namespace: Option<&str>) -> Result<String, String> {
    let Strays { orphans, elsewhere } = crate::orphans::strays(client, schedd, namespace).await?;
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
    let Some(namespace) = namespace.filter(|_| !elsewhere.is_empty()) else { return found };
    let more = format!(
        "{} more ({}) do not say that they are of namespace {namespace}, which alone is watched: they may be those of \
         HTCJobs in other namespaces from before --watch-namespace was set or changed, and are no orphans for all that is known",
        elsewhere.len(),
        id_ranges(&elsewhere, usize::MAX)
    );
    found.map(|text| add(&text, &more)).map_err(|text| add(&text, &more))
}
