//! How many identities of Secrets are introduced at once: `kinit`, and the question to the schedd who they are.

use crate::api::Identity;
use crate::turns::{Shares, Turn};

/// A namespace's KDC may answer none of its own.
const SHARES: Shares = Shares { all: 8, each: 2, slow: 6, each_slow: 2 };

/// The turns that there are.
#[derive(Debug)]
pub(super) struct Turns(crate::turns::Turns);

impl Default for Turns {
    fn default() -> Self {
        Self(crate::turns::Turns::new("credentials took long: check the KDC and the schedd", SHARES))
    }
}

impl Turns {
    /// Waits for a turn. The operator's own identity needs none.
    pub(super) async fn next(&self, identity: &Identity) -> Option<Turn> {
        let (Identity::Secret { namespace, .. } | Identity::Namespace(namespace)) = identity else { return None };
        self.0.next(namespace).await
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
            for _ in 0..SHARES.each {
                taken.push(now(&turns, namespace).await.unwrap());
            }
            assert!(now(&turns, namespace).await.is_none(), "{namespace}");
        }
        assert_eq!(taken.len(), SHARES.all);
        assert!(now(&turns, "e").await.is_none());
        taken.pop();
        let other = now(&turns, "e").await;
        assert!(other.is_some());
        drop((taken, other));
        assert!(now(&turns, "a").await.is_some());
    }
}
