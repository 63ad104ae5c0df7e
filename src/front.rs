//! The jobs API as the API server sees it, `htc-operator jobs-api`. It holds nothing: discovery is answered from constants, also
//! while no operator leads, because an API that does not answer keeps every namespace of the cluster from being deleted. Whatever
//! else is asked is handed on to the leader, if the user may ask it.

mod access;
mod authentication;
mod identity;
mod serve;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use clap::Args;
use kube::Client;

use crate::jobs_api::certificates::Places;
use crate::kubernetes::{self, NoKubeconfig};
use crate::mtls::{Accepted, Shown};
use crate::procs::share::Sharer;
use crate::receiver::ListenError;

use access::Reviews;
use authentication::Headers;

/// How often certificates, and whom the API server trusts, are read again.
const EVERY: Duration = Duration::from_secs(5);
/// Most requests of one user that are answered at once, or of the service accounts of a namespace: lists and watches may last.
const EACH: usize = 32;
/// Most requests that are answered at once.
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
    #[arg(long, env = "HTC_HTTP_LISTEN")]
    pub http_listen: Option<SocketAddr>,
}

/// Why a front cannot run.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The configuration of the Kubernetes client.
    #[error(transparent)]
    Kubeconfig(#[from] NoKubeconfig),
    /// A port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The URL of the leader.
    #[error("--leader-url {0}: write https:// and a host")]
    Leader(String),
}

/// What every request needs.
struct Front {
    client: Client,
    places: Places,
    leader_url: http::Uri,
    shown: Shown,
    accepted: Accepted,
    headers: RwLock<Option<Headers>>,
    leader: RwLock<Option<[Client; 2]>>,
    /// `resourceVersion` of the Secret that was read last.
    seen: Mutex<String>,
    reviews: Reviews,
    at_work: Mutex<HashMap<Sharer, usize>>,
}

/// A request at work: counted until it is dropped.
struct RequestSlot {
    front: Arc<Front>,
    sharer: Sharer,
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let mut at_work = self.front.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = at_work.get_mut(&self.sharer) {
            *number -= 1;
            if *number == 0 {
                at_work.remove(&self.sharer);
            }
        }
    }
}

impl Front {
    /// A slot for a request of this user, if there is one.
    fn slot(self: &Arc<Self>, user: &str) -> Option<RequestSlot> {
        let sharer = Sharer::of(user);
        let mut at_work = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = at_work.values().sum();
        let its = at_work.get(&sharer).copied().unwrap_or_default();
        if all >= ALL || its >= EACH {
            return None;
        }
        at_work.insert(sharer.clone(), its + 1);
        Some(RequestSlot { front: Arc::clone(self), sharer })
    }

    fn headers(&self) -> Option<Headers> {
        self.headers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A client of the leader; `lasts`: for an answer that may be silent for long.
    fn leader(&self, lasts: bool) -> Option<Client> {
        let leader = self.leader.read().unwrap_or_else(PoisonError::into_inner).clone();
        leader.map(|[usual, patient]| if lasts { patient } else { usual })
    }

    /// It can answer the API server.
    fn is_ready(&self) -> bool {
        self.shown.is_there() && self.headers().is_some()
    }
}

/// Runs a front until `stop` resolves.
pub async fn run(config: FrontConfig, stop: impl Future<Output = ()>) -> Result<(), FrontError> {
    let places = Places { namespace: config.operator_namespace, operator: config.operator_name };
    let url = config.leader_url.unwrap_or_else(|| format!("https://{}:8444", places.leader_host()));
    let leader_url =
        url.parse::<http::Uri>().ok().filter(|url| url.scheme_str() == Some("https") && url.host().is_some());
    let front = Arc::new(Front {
        client: kubernetes::client().await?,
        places,
        leader_url: leader_url.ok_or(FrontError::Leader(url))?,
        shown: Shown::default(),
        accepted: Accepted::default(),
        headers: RwLock::default(),
        leader: RwLock::default(),
        seen: Mutex::default(),
        reviews: Reviews::default(),
        at_work: Mutex::default(),
    });
    let _port = serve::listen(config.front_listen, &front)?;
    let _health = config.http_listen.map(|address| serve::listen_health(address, &front)).transpose()?;
    let follow = async {
        loop {
            tokio::join!(authentication::follow(&front), identity::follow(&front));
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = follow => {}
        () = stop => {}
    }
    Ok(())
}
