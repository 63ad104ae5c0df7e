//! Tracks whether the API server serves HTCJobs. After a break, a restarted watch reports success only with the next
//! change of an HTCJob, which may be days away.

use std::convert::Infallible;
use std::time::Duration;

use htc_api::ObservedHTCJob;
use htc_support::health::Health;
use htc_support::kubernetes::with_timeout;
use htc_support::retry::Backoff;
use kube::api::{Api, ListParams};
use kube::runtime::watcher;
use tokio::sync::Notify;

/// Reports the state of the watch as health, and probes the API server when the watch breaks.
pub(super) struct CrdServed {
    broken: Notify,
    health: Health,
}

impl CrdServed {
    pub(super) fn new(health: Health) -> Self {
        Self { broken: Notify::default(), health }
    }

    /// Handles an event of the watch.
    pub(super) fn seen<T>(&self, event: &Result<watcher::Event<T>, watcher::Error>) {
        match event {
            // Emitted before any request is sent, so it proves nothing.
            Ok(watcher::Event::Init) => {}
            Ok(_) => self.health.crd_served(true),
            Err(_) => {
                self.health.crd_served(false);
                self.broken.notify_one();
            }
        }
    }

    /// Lists one HTCJob after each break of the watch, and repeats that until the API server answers.
    pub(super) async fn ask(&self, api: Api<ObservedHTCJob>) -> Infallible {
        let one = ListParams::default().limit(1);
        loop {
            self.broken.notified().await;
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
            loop {
                tokio::time::sleep(backoff.pause()).await;
                if with_timeout("list", &"HTCJobs", api.list(&one)).await.is_ok() {
                    self.health.crd_served(true);
                    break;
                }
            }
        }
    }
}
