//! The jobs API as the API server sees it, `htc-operator jobs-api`. It keeps no state. Discovery is answered from
//! constants, also while no operator leads: an API that does not answer keeps every namespace of the cluster from
//! being deleted. All other requests are passed on to the leader, if the user may make them.

mod access;
mod authentication;
mod identity;
mod serve;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use htc_support::fair_limiter::FairLimiter;
use htc_support::kubernetes;
use htc_support::kubernetes::NoKubeconfig;
use kube::Client;
use parking_lot::{Mutex, RwLock};

use crate::http::ListenError;
use crate::http::certificates::JobsApiNames;
use crate::http::mtls::{ServerCertificate, TrustedClients};
use crate::jobs_api::resource::flow::Flow;
use access::Reviews;
use authentication::Headers;

/// Interval between two reads of the certificates, and of the front proxies that the API server trusts.
const EVERY: Duration = Duration::from_secs(5);
/// Maximum number of concurrent requests of one user, or of the service accounts of a namespace: lists and watches
/// may last.
const EACH: usize = 32;
/// Maximum number of concurrent requests.
const ALL: usize = 512;

/// How the front of the jobs API is set up.
#[derive(Args, Clone, Debug)]
pub struct FrontConfig {
    /// Namespace of the operator, and of the front.
    #[arg(long, env = "HTC_OPERATOR_NAMESPACE", default_value = "htc-operator")]
    pub operator_namespace: String,

    /// Name of the operator.
    #[arg(long, env = "HTC_OPERATOR_NAME", default_value = "htc-operator")]
    pub operator_name: String,

    /// Address and port that the API server connects to.
    #[arg(long, env = "HTC_JOBS_API_FRONT_LISTEN", default_value = "0.0.0.0:8443")]
    pub front_listen: SocketAddr,

    /// URL of the leader's port. Default: port 8444 of the Service `<operator name>-jobs-api-leader`.
    #[arg(long, env = "HTC_JOBS_API_LEADER_URL")]
    pub leader_url: Option<String>,

    /// Address and port of `/healthz` and `/readyz`. Default: they are not served.
    #[arg(long, env = "HTC_HEALTH_PROBE_BIND_ADDRESS")]
    pub health_probe_bind_address: Option<SocketAddr>,
}

/// Reason why a front cannot run.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The configuration of the Kubernetes client is missing or invalid.
    #[error(transparent)]
    Kubeconfig(#[from] NoKubeconfig),
    /// A port cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The URL of the leader is invalid.
    #[error("--leader-url {0}: write https:// and a host")]
    Leader(String),
}

/// State shared by all requests.
struct Front {
    client: Client,
    places: JobsApiNames,
    leader_url: http::Uri,
    certificate: ServerCertificate,
    trusted_clients: TrustedClients,
    headers: RwLock<Option<Headers>>,
    leader: RwLock<Option<[Client; 2]>>,
    /// `resourceVersion` of the Secret that was read last.
    seen: Mutex<String>,
    reviews: Reviews,
    requests: FairLimiter<Flow>,
}

impl Front {
    fn headers(&self) -> Option<Headers> {
        self.headers.read().clone()
    }

    /// Returns a client of the leader. `lasts`: for an answer with long pauses.
    fn leader(&self, lasts: bool) -> Option<Client> {
        let leader = self.leader.read().clone();
        leader.map(|[usual, patient]| if lasts { patient } else { usual })
    }

    /// Returns whether it can answer the API server.
    fn is_ready(&self) -> bool {
        self.certificate.is_there() && self.headers().is_some()
    }
}

/// Runs a front until `stop` resolves.
pub async fn run(config: FrontConfig, stop: impl Future<Output = ()>) -> Result<(), FrontError> {
    let places = JobsApiNames { namespace: config.operator_namespace, operator: config.operator_name };
    let url = config.leader_url.unwrap_or_else(|| format!("https://{}:8444", places.leader_host()));
    let leader_url =
        url.parse::<http::Uri>().ok().filter(|url| url.scheme_str() == Some("https") && url.host().is_some());
    let front = Arc::new(Front {
        client: kubernetes::client().await?,
        places,
        leader_url: leader_url.ok_or(FrontError::Leader(url))?,
        certificate: ServerCertificate::default(),
        trusted_clients: TrustedClients::default(),
        headers: RwLock::default(),
        leader: RwLock::default(),
        seen: Mutex::default(),
        reviews: Reviews::default(),
        requests: FairLimiter::never_slow(ALL, EACH),
    });
    let _port = serve::listen(config.front_listen, &front)?;
    let _health = config.health_probe_bind_address.map(|address| serve::listen_health(address, &front)).transpose()?;
    let follow = async {
        loop {
            tokio::join!(authentication::refresh(&front), identity::refresh(&front));
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = follow => {}
        () = stop => {}
    }
    Ok(())
}
