//! Writes to the API server about `HTCJob`s. Each keeps a reconcile waiting. Where they take long, because a webhook hangs for example,
//! a namespace has only a share of the reconciles.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::WriteError;
use crate::api::ObjectName;
use crate::kubernetes::{limited, unless_changed};

/// A write that takes so long makes its namespace a slow one, until one takes less.
const SLOW: Duration = Duration::from_secs(5);
/// So long after the last of them it is a slow one no more.
const REMEMBERED: Duration = Duration::from_secs(300);

/// The writes under way, by namespace.
#[derive(Debug)]
pub struct Writes {
    /// Most of them in slow namespaces.
    most: usize,
    /// Most of them in one slow namespace.
    most_of_one: usize,
    namespaces: Mutex<HashMap<String, Namespace>>,
}

#[derive(Debug, Default)]
struct Namespace {
    under_way: usize,
    /// When a write ended that took long, if the last one did.
    slow: Option<Instant>,
}

impl Namespace {
    fn is_slow(&self, now: Instant) -> bool {
        self.slow.is_some_and(|at| now.duration_since(at) < REMEMBERED)
    }
}

/// Too many writes are under way in namespaces where they take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("other writes about HTCJobs of this namespace take long; check the webhooks and policies for HTCJobs")]
pub struct PutOff;

/// Stands for one write as long as it lasts.
#[derive(Debug)]
struct Turn<'a> {
    writes: &'a Writes,
    namespace: &'a str,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(namespace) = self.writes.namespaces().get_mut(self.namespace) {
            namespace.under_way -= 1;
        }
    }
}

impl Writes {
    /// Three quarters of so many reconciles are for namespaces that are not slow.
    #[must_use]
    pub fn new(reconciles: u16) -> Self {
        let most = usize::from(reconciles / 4).max(1);
        Self { most, most_of_one: (most / 2).max(1), namespaces: Mutex::default() }
    }

    /// Does `what` to an `HTCJob`; false if it is no longer the one that was seen.
    pub(super) async fn write<T>(
        &self,
        what: &'static str,
        name: &ObjectName,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<bool, WriteError> {
        match self.ask(what, name, request).await {
            Ok(_) => Ok(true),
            Err(WriteError::Api(error)) => Ok(unless_changed::<T>(Err(error))?),
            Err(error) => Err(error),
        }
    }

    /// The same where the answer itself is wanted.
    pub(super) async fn ask<T>(
        &self,
        what: &'static str,
        name: &ObjectName,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, WriteError> {
        let began = Instant::now();
        let turn = self.begin(&name.namespace, began)?;
        let result = limited(what, name, request).await;
        turn.ended(began, Instant::now());
        Ok(result?)
    }

    fn namespaces(&self) -> MutexGuard<'_, HashMap<String, Namespace>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin<'a>(&'a self, name: &'a str, now: Instant) -> Result<Turn<'a>, PutOff> {
        let mut namespaces = self.namespaces();
        namespaces.retain(|_, namespace| namespace.under_way > 0 || namespace.is_slow(now));
        let slow = namespaces.values().filter(|namespace| namespace.is_slow(now));
        let all: usize = slow.map(|namespace| namespace.under_way).sum();
        let namespace = namespaces.entry(name.to_owned()).or_default();
        if namespace.is_slow(now) && (all >= self.most || namespace.under_way >= self.most_of_one) {
            return Err(PutOff);
        }
        namespace.under_way += 1;
        Ok(Turn { writes: self, namespace: name })
    }
}

impl Turn<'_> {
    /// The write is over.
    fn ended(self, began: Instant, now: Instant) {
        let took = now.duration_since(began);
        if let Some(namespace) = self.writes.namespaces().get_mut(self.namespace) {
            if took >= SLOW && !namespace.is_slow(now) {
                tracing::warn!(
                    namespace = self.namespace,
                    ?took,
                    "a write about an HTCJob took long: until one takes less, its namespace has only a share of the reconciles; check the webhooks and policies for HTCJobs"
                );
            }
            namespace.slow = (took >= SLOW).then_some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin_all<'a>(writes: &'a Writes, name: &'a str, now: Instant) -> Vec<Turn<'a>> {
        std::iter::from_fn(|| writes.begin(name, now).ok()).take(32).collect()
    }

    fn end_all(turns: Vec<Turn<'_>>, began: Instant, now: Instant) {
        for turn in turns {
            turn.ended(began, now);
        }
    }

    #[test]
    fn where_writes_take_long_a_namespace_has_a_share() {
        let (writes, now) = (Writes::new(32), Instant::now());
        let first = begin_all(&writes, "hangs", now);
        assert_eq!(first.len(), 32, "nothing is known of it yet");
        let later = now + SLOW;
        end_all(first, now, later);
        let [one, other, third] = ["hangs", "other", "third"].map(|name| {
            if name != "hangs" {
                writes.begin(name, now).unwrap().ended(now, later);
            }
            begin_all(&writes, name, later)
        });
        assert_eq!((one.len(), other.len(), third.len()), (4, 4, 0), "of one, and of all that are slow");
        assert_eq!(begin_all(&writes, "well", later).len(), 32);

        drop(other);
        assert_eq!(begin_all(&writes, "third", later).len(), 4, "others are through, or were given up");
        end_all(one, later, later);
        assert_eq!(begin_all(&writes, "hangs", later).len(), 32, "it hangs no more");
    }

    #[test]
    fn it_is_not_remembered_for_ever() {
        let (writes, now) = (Writes::new(1), Instant::now());
        let later = now + SLOW;
        writes.begin("hangs", now).unwrap().ended(now, later);
        let turn = writes.begin("hangs", later);
        assert!(turn.is_ok() && writes.begin("hangs", later).is_err(), "one at a time at least");
        drop(turn);
        let turns = begin_all(&writes, "hangs", later + REMEMBERED);
        assert_eq!(turns.len(), 32);
        drop(turns);
        assert!(writes.begin("well", later + REMEMBERED).is_ok());
        assert_eq!(writes.namespaces().len(), 1);
    }
}
