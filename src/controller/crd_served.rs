//! Whether the API server serves HTCJobs. A watch that is begun again after a break says so only with the next change of an
//! HTCJob, which may be days away.

use std::convert::Infallible;
use std::time::Duration;

use kube::api::{Api, ListParams};
use kube::runtime::watcher;
use tokio::sync::Notify;

use crate::api::Observed;
use crate::health::Health;
use crate::kubernetes::limited;
use crate::retry::Backoff;

/// What the watch says, and what is asked when it breaks.
pub(super) struct CrdServed {
    broken: Notify,
    health: Health,
}

impl CrdServed {
    pub(super) fn new(health: Health) -> Self {
        Self { broken: Notify::default(), health }
    }

    /// The watch has said something.
    pub(super) fn seen<T>(&self, event: &Result<watcher::Event<T>, watcher::Error>) {
        match event {
            // Said before anything is asked.
            Ok(watcher::Event::Init) => {}
            Ok(_) => self.health.crd_served(true),
            Err(_) => {
                self.health.crd_served(false);
                self.broken.notify_one();
            }
        }
    }

    /// Asks for one HTCJob after each break of the watch, until there is an answer.
    pub(super) async fn ask(&self, api: Api<Observed>) -> Infallible {
        let one = ListParams::default().limit(1);
        loop {
            self.broken.notified().await;
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
            loop {
                tokio::time::sleep(backoff.pause()).await;
                if limited("list", &"HTCJobs", api.list(&one)).await.is_ok() {
                    self.health.crd_served(true);
                    break;
                }
            }
        }
    }
}
