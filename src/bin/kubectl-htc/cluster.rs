//! Which cluster, which namespace, which HTCJob: by kubectl's own flags and files.

use std::path::PathBuf;
use std::time::Duration;

use htc_operator::api::HTCJob;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::Failure;
use super::patience::Patience;

/// How long the jobs API may say in a row that it is to be asked again.
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

/// The HTCJobs of one namespace.
pub(super) struct Jobs {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) api: Api<HTCJob>,
    /// For the jobs API, which is asked again by [`Patience`] and nothing else: kube's own way takes minutes without a word.
    pub(super) procs: Client,
    pub(super) patience: Patience,
}

impl Cluster {
    pub(super) async fn jobs(&self) -> Result<Jobs, Failure> {
        let mut config = self.config().await.map_err(|why| Failure::new("find the cluster", why))?;
        if let Some(user) = &self.impersonate {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups =
                Some(self.impersonate_groups.clone()).filter(|groups| !groups.is_empty());
        }
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = |config| Client::try_from(config).map_err(|error| Failure::new("connect to the cluster", error));
        let mut once = config.clone();
        once.default_retry = false;
        let (procs, client) = (client(once)?, client(config)?);
        let api = Api::namespaced(client.clone(), &namespace);
        Ok(Jobs { client, namespace, api, procs, patience: Patience::new(PATIENCE) })
    }

    async fn config(&self) -> Result<Config, String> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match &self.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| error.to_string())?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| error.to_string())
            }
            None if self.context.is_some() => {
                Config::from_kubeconfig(&options).await.map_err(|error| error.to_string())
            }
            None => Config::infer().await.map_err(|error| error.to_string()),
        }
    }
}

impl Jobs {
    pub(super) async fn get(&self, name: &str) -> Result<HTCJob, Failure> {
        self.api.get(name).await.map_err(|error| Failure::new(&format!("get HTCJob {}/{name}", self.namespace), error))
    }
}

/// A name as kubectl takes it: `zero` or `htcjob/zero`.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => Ok(text.to_owned()),
        Some(("htcjob" | "htcjobs" | "htcj" | "htcjob.htc.cern.ch" | "htcjobs.htc.cern.ch", name)) => {
            Ok(name.to_owned())
        }
        Some((kind, _)) => Err(format!("{kind} is not htcjob: write the name of an HTCJob")),
    }
}
