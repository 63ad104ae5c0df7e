//! Limits how many identities of Secrets are set up concurrently: `kinit`, and the query to the schedd for their user.

use htc_api::Identity;
use htc_support::fair_limiter::{FairPermit, Shares};

/// Limits for all namespaces and for each: the KDC of one namespace may answer none of its requests.
const SHARES: Shares = Shares { all: 8, each: 2, slow: 6, each_slow: 2 };

/// Limiter by namespace.
#[derive(Debug)]
pub(super) struct IntroductionLimiter(htc_support::fair_limiter::FairLimiter);

impl Default for IntroductionLimiter {
    fn default() -> Self {
        Self(htc_support::fair_limiter::FairLimiter::new("credentials took long: check the KDC and the schedd", SHARES))
    }
}

impl IntroductionLimiter {
    /// Waits for a permit. The operator's own identity needs none.
    pub(super) async fn acquire(&self, identity: &Identity) -> Option<FairPermit> {
        let (Identity::Secret { namespace, .. } | Identity::Namespace(namespace)) = identity else { return None };
        self.0.acquire(namespace).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns a permit if one is available now.
    async fn now(turns: &IntroductionLimiter, namespace: &str) -> Option<FairPermit> {
        let identity = Identity::Secret { namespace: namespace.to_owned(), name: "secret".to_owned() };
        tokio::time::timeout(Duration::from_millis(50), turns.acquire(&identity)).await.ok().flatten()
    }

    #[tokio::test]
    async fn introductions_are_limited_per_namespace_and_in_total() {
        let turns = IntroductionLimiter::default();
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
