//! Which queue an `HTCJob` is in.

use std::collections::BTreeMap;

use super::admit::Terms;
use crate::api::{Condition, HTCQueueSpec, QUEUE_NAME, Reason, StopPolicy};
use crate::machine::facts::QueueWait;

/// An `HTCQueue`.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) uid: String,
    pub(super) generation: Option<i64>,
    pub(super) spec: HTCQueueSpec,
    pub(super) terms: Terms,
    /// What its status says about `Active`.
    pub(super) told: Option<Condition>,
}

impl Named {
    /// Whether it is the same queue with the same spec. What is written of it is no news.
    pub(super) fn is_as(&self, before: &Self) -> bool {
        (&self.uid, self.generation, &self.spec) == (&before.uid, before.generation, &before.spec)
    }
}

/// All `HTCQueue`s and namespaces, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) queues: BTreeMap<String, Named>,
    /// Whether the `HTCQueue`s are known; why not.
    pub(super) listed: Option<Result<(), String>>,
    /// Labels of the namespaces.
    pub(super) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether they are known; why not.
    pub(super) namespaces_listed: Option<Result<(), String>>,
}

/// Where an `HTCJob` stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    /// In no queue: all of its jobs are submitted at once.
    Free,
    /// In this one.
    In {
        queue: String,
        /// Its jobs are held.
        drained: bool,
    },
    /// In this one, which gives it nothing.
    Out { queue: String, wait: QueueWait },
    /// In this one, if it is there: that is not known yet. Without a name it may be in any.
    NotYet { queue: String },
}

/// What an `HTCJob` says, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asks<'a> {
    pub(super) namespace: &'a str,
    /// Its label.
    pub(super) label: Option<&'a str>,
    /// The queue that gave it room before.
    pub(super) bound: Option<&'a str>,
}

impl World {
    pub(super) fn line(&self, asks: Asks<'_>) -> Line {
        let known = match (&self.listed, &self.namespaces_listed) {
            (Some(Ok(())), Some(Ok(()))) => Ok(()),
            (Some(Err(why)), _) => {
                Err(Some(format!("the operator cannot list HTCQueues: {why}; ask its administrator")))
            }
            (_, Some(Err(why))) => {
                Err(Some(format!("the operator cannot list namespaces: {why}; ask its administrator")))
            }
            (None, _) | (_, None) => Err(None),
        };
        let there = |name: &&str| self.queues.contains_key(*name);
        let named = asks.bound.filter(there).or(asks.label);
        if let Err(why) = known {
            let queue = named.unwrap_or_default().to_owned();
            return match why {
                None => Line::NotYet { queue },
                Some(message) => out(queue, message),
            };
        }
        let Some(name) = named.map(str::to_owned).or_else(|| self.default_of(asks.namespace)) else {
            return Line::Free;
        };
        let Some(queue) = self.queues.get(&name) else {
            let message = format!(
                "there is no HTCQueue {name}: create it, or change the label {QUEUE_NAME} of the HTCJob (kubectl get htcqueues)"
            );
            return out(name, message);
        };
        if !self.is_for(queue, asks.namespace) {
            let message = format!(
                "HTCQueue {name} is not for namespace {}: ask its administrator to change its spec.namespaceSelector, or name another queue in the label {QUEUE_NAME}",
                asks.namespace
            );
            return out(name, message);
        }
        Line::In { queue: name, drained: queue.spec.stop() == StopPolicy::HoldAndDrain }
    }

    fn is_for(&self, queue: &Named, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|labels| queue.spec.is_for(labels))
    }

    /// The first in the alphabet of those that are for HTCJobs of this namespace without a label.
    fn default_of(&self, namespace: &str) -> Option<String> {
        let default = |(_, queue): &(&String, &Named)| queue.spec.default && self.is_for(queue, namespace);
        self.queues.iter().find(default).map(|(name, _)| name.clone())
    }

    /// How many namespaces a queue is for.
    pub(super) fn namespaces_of(&self, queue: &Named) -> usize {
        self.namespaces.values().filter(|labels| queue.spec.is_for(labels)).count()
    }
}

fn out(queue: String, message: String) -> Line {
    Line::Out { queue, wait: QueueWait { reason: Reason::Misconfigured, message, place: None } }
}

impl Line {
    /// The queue in which its jobs count: the one that it is in, or else the one that gave it room before. Only to name a queue is not
    /// enough: anybody can name one that is not for the namespace.
    pub(super) fn counts_in(&self, bound: Option<&str>) -> Option<&str> {
        match self {
            Self::In { queue, .. } => Some(queue),
            Self::Out { queue, .. } => Some(queue.as_str()).filter(|queue| bound == Some(queue)),
            Self::Free | Self::NotYet { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn queue(spec: serde_json::Value) -> Named {
        let spec: HTCQueueSpec = serde_json::from_value(spec).unwrap();
        Named { uid: "u".to_owned(), generation: Some(1), terms: Terms::of(&spec), spec, told: None }
    }

    fn world() -> World {
        let atlas = json!({ "namespaceSelector": { "matchLabels": { "team": "atlas" } } });
        let default = json!({ "namespaceSelector": { "matchLabels": { "team": "cms" } }, "default": true });
        let drained = json!({ "namespaceSelector": {}, "stopPolicy": "HoldAndDrain" });
        let labels = |team: &str| BTreeMap::from([("team".to_owned(), team.to_owned())]);
        World {
            queues: [("atlas", atlas), ("default", default), ("drained", drained), ("nobody", json!({}))]
                .into_iter()
                .map(|(name, spec)| (name.to_owned(), queue(spec)))
                .collect(),
            listed: Some(Ok(())),
            namespaces: [("a", labels("atlas")), ("c", labels("cms"))]
                .into_iter()
                .map(|(name, labels)| (name.to_owned(), labels))
                .collect(),
            namespaces_listed: Some(Ok(())),
        }
    }

    #[rstest]
    #[case("a", None, None, "free")]
    #[case("a", Some("atlas"), None, "in atlas")]
    #[case("c", Some("atlas"), None, "out of atlas: not for namespace c")]
    #[case("c", None, None, "in default")]
    #[case("a", Some("nobody"), None, "out of nobody: not for namespace a")]
    #[case("a", Some("gone"), None, "out of gone: no HTCQueue gone")]
    #[case("a", Some("drained"), None, "in drained, drained")]
    // Where it got room it stays, as long as that is there.
    #[case("a", Some("drained"), Some("atlas"), "in atlas")]
    #[case("a", Some("atlas"), Some("gone"), "in atlas")]
    #[case("a", None, Some("gone"), "free")]
    fn the_queue_is_that_which_gave_room_or_is_named_or_is_the_default(
        #[case] namespace: &str,
        #[case] label: Option<&str>,
        #[case] bound: Option<&str>,
        #[case] wanted: &str,
    ) {
        let said = match world().line(Asks { namespace, label, bound }) {
            Line::Free => "free".to_owned(),
            Line::In { queue, drained } => format!("in {queue}{}", if drained { ", drained" } else { "" }),
            Line::Out { queue, wait } => {
                assert_eq!(wait.reason, Reason::Misconfigured);
                let end = wait.message.find(':').unwrap();
                let said = wait.message[..end].replace(&format!("HTCQueue {queue} is "), "").replace("there is ", "");
                format!("out of {queue}: {said}")
            }
            Line::NotYet { queue } => format!("not yet {queue}"),
        };
        assert_eq!(said, wanted);
    }

    /// Unknown is not absent: whether there is a default queue is not known before all are listed.
    #[test]
    fn nobody_is_free_before_the_queues_are_known() {
        let mut world = world();
        let asks = Asks { namespace: "a", label: None, bound: None };
        world.namespaces_listed = None;
        assert!(matches!(world.line(asks), Line::NotYet { .. }));
        (world.namespaces_listed, world.listed) = (Some(Ok(())), Some(Err("forbidden".to_owned())));
        let Line::Out { wait, .. } = world.line(asks) else { panic!() };
        assert!(wait.message.contains("forbidden"), "{}", wait.message);
    }
}
