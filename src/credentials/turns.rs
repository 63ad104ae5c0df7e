//! How many identities of Secrets are introduced at once: `kinit`, and the question to the schedd who they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::Identity;

/// Of all namespaces.
const ALL: usize = 8;
/// Of one namespace, whose KDC may answer none of them.
const OF_A_NAMESPACE: usize = 2;

/// The turns that there are.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    namespaces: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// One turn, until it is dropped.
pub(super) struct Turn {
    _of_the_namespace: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(ALL)), namespaces: Mutex::default() }
    }
}

impl Turns {
    /// Waits for a turn. The operator's own identity needs none.
    pub(super) async fn next(&self, identity: &Identity) -> Option<Turn> {
        let (Identity::Secret { namespace, .. } | Identity::Namespace(namespace)) = identity else { return None };
        // They are never closed.
        let of_the_namespace = self.of(namespace).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Turn { _of_the_namespace: of_the_namespace, _of_all: of_all })
    }

    fn of(&self, namespace: &str) -> Arc<Semaphore> {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever has a turn of a namespace, or waits for one, has its semaphore.
        namespaces.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        let made = || Arc::new(Semaphore::new(OF_A_NAMESPACE));
        Arc::clone(namespaces.entry(namespace.to_owned()).or_insert_with(made))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A turn, if there is one now.
    async fn now(turns: &Turns, namespace: &str) -> Option<Turn> {
        let identity = Identity::Secret { namespace: namespace.to_owned(), name: "secret".to_owned() };
        tokio::time::timeout(Duration::from_millis(50), turns.next(&identity)).await.ok().flatten()
    }

    #[tokio::test]
    async fn a_namespace_has_its_share_and_all_have_a_limit() {
        let turns = Turns::default();
        let mut taken = Vec::new();
        for namespace in ["a", "b", "c", "d"] {
            for _ in 0..OF_A_NAMESPACE {
                taken.push(now(&turns, namespace).await.unwrap());
            }
            assert!(now(&turns, namespace).await.is_none(), "{namespace}");
        }
        assert_eq!(taken.len(), ALL);
        assert!(now(&turns, "e").await.is_none());
        taken.pop();
        let other = now(&turns, "e").await;
        assert!(other.is_some());
        drop((taken, other));
        assert!(now(&turns, "a").await.is_some());
        assert_eq!(turns.namespaces.lock().unwrap().len(), 1);
    }
}
