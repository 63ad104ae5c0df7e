//! Selection of cluster, namespace and HTCJob by kubectl's own flags and files.

use std::path::PathBuf;
use std::time::Duration;

use htc_api::HTCJob;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};

use super::CommandFailure;
use crate::retry_budget::RetryBudget;

/// Maximum time in which the jobs API may ask for a retry again and again.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default, clap::Args)]
pub(super) struct Cluster {
    /// Namespace of the HTCJob. Default: the namespace of the kubeconfig's context.
    #[arg(short, long, global = true)]
    pub(super) namespace: Option<String>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long, global = true)]
    pub(super) context: Option<String>,
    /// Path of the kubeconfig. Default: as for kubectl.
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// User to act as.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(super) impersonate: Option<String>,
    /// Group to act as. Can be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "impersonate")]
    pub(super) impersonate_groups: Vec<String>,
}

/// Client for the HTCJobs of one namespace.
pub(super) struct JobsClient {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) api: Api<HTCJob>,
    /// Client for the jobs API. Only [`RetryBudget`] repeats its requests: kube's own retries take minutes without a
    /// message.
    pub(super) procs: Client,
    pub(super) patience: RetryBudget,
}

impl Cluster {
    pub(super) async fn jobs(&self) -> Result<JobsClient, CommandFailure> {
        let mut config = self.config().await?;
        if let Some(user) = &self.impersonate {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups =
                Some(self.impersonate_groups.clone()).filter(|groups| !groups.is_empty());
        }
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client =
            |config| Client::try_from(config).map_err(|error| CommandFailure::new("connect to the cluster", error));
        let mut once = config.clone();
        once.default_retry = false;
        let (procs, client) = (client(once)?, client(config)?);
        let api = Api::namespaced(client.clone(), &namespace);
        Ok(JobsClient { client, namespace, api, procs, patience: RetryBudget::new(PATIENCE) })
    }

    async fn config(&self) -> Result<Config, CommandFailure> {
        let failed = |error: KubeconfigError| CommandFailure::new("find the cluster", error);
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match &self.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(failed)?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await.map_err(failed),
            None => Config::infer().await.map_err(|error| CommandFailure::new("find the cluster", error)),
        }
    }
}

impl JobsClient {
    pub(super) async fn get(&self, name: &str) -> Result<HTCJob, CommandFailure> {
        self.api
            .get(name)
            .await
            .map_err(|error| CommandFailure::new(&format!("get HTCJob {}/{name}", self.namespace), error))
    }
}

/// Parses a name as kubectl does: `zero` or `htcjob/zero`.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => Ok(text.to_owned()),
        Some(("htcjob" | "htcjobs" | "htcj" | "htcjob.htc.cern.ch" | "htcjobs.htc.cern.ch", name)) => {
            Ok(name.to_owned())
        }
        Some((kind, _)) => Err(format!("{kind} is not htcjob: write the name of an HTCJob")),
    }
}
