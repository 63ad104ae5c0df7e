//! Which queue an `HTCJob` is in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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

/// A watch that has not failed for so long works: it is begun again every 30 s at the latest.
const LASTS: Duration = Duration::from_secs(90);

/// All `HTCQueue`s and namespaces, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) queues: BTreeMap<String, Named>,
    /// `HTCQueue`s that cannot be decoded, and why. None of them is in `queues`.
    pub(super) unreadable: BTreeMap<String, String>,
    /// Whether the `HTCQueue`s are known; why not, in words for users.
    pub(super) listed: Option<Result<(), String>>,
    /// Labels of the namespaces.
    pub(super) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether they are known; why not, in words for users.
    pub(super) namespaces_listed: Option<Result<(), String>>,
    /// When the watch of namespaces failed last, and with which error. Namespaces that were made since may be missing.
    pub(super) namespaces_trouble: Option<(Instant, String)>,
}

/// Where an `HTCJob` stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    /// In no queue: all of its jobs are submitted at once.
    Free(NoQueue),
    /// In this one.
    In {
        queue: String,
        /// Its jobs are held.
        drained: bool,
    },
    /// In this one, which is not there or not for its namespace: nothing begins.
    Out { queue: String, wait: QueueWait },
    /// In this one, as far as is known: nothing begins. Without a name it may be in any. `wait`: what the knowledge waits for, unless it
    /// comes by itself.
    NotYet { queue: String, wait: Option<QueueWait> },
}

/// The proof that no queue applies to an `HTCJob`: all `HTCQueue`s are listed and decoded, and the labels of its namespace are known. With
/// Kueue, a missing label is the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoQueue(());

impl NoQueue {
    /// With Kueue only a label puts an `HTCJob` into a queue: the queue, or the proof that there is none.
    pub(super) const fn with_kueue(queue: Option<&str>) -> Result<&str, Self> {
        match queue {
            Some(queue) => Ok(queue),
            None => Err(Self(())),
        }
    }
}

/// What an `HTCJob` says, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asks<'a> {
    pub(super) namespace: &'a str,
    /// Its label.
    pub(super) label: Option<&'a str>,
    /// The queue that gave it room before.
    pub(super) bound: Option<&'a str>,
    /// The queue that it was in last, whether or not that gave it room.
    pub(super) seen_in: Option<&'a str>,
}

/// All that decides in which queue the `HTCJob`s of one namespace are.
#[derive(Clone, Copy)]
struct Known<'a> {
    world: &'a World,
    namespace: &'a str,
    labels: &'a BTreeMap<String, String>,
}

impl World {
    pub(super) fn line(&self, asks: Asks<'_>) -> Line {
        let known = match self.known(asks.namespace) {
            Ok(known) => known,
            Err(wait) => {
                let queue = asks.bound.or(asks.label).or(asks.seen_in).unwrap_or_default();
                return Line::NotYet { queue: queue.to_owned(), wait };
            }
        };
        let is_there = |name: &&str| self.queues.contains_key(*name) || self.unreadable.contains_key(*name);
        let was_in = asks.seen_in.or(asks.bound);
        // Where it got room it stays. Before that it goes where its label says.
        let named = asks.bound.filter(is_there).or(asks.label).or(asks.seen_in.filter(is_there));
        if let Some(name) = named {
            return known.in_queue(name, was_in == Some(name));
        }
        match (known.default(), was_in) {
            (Ok(name), _) | (Err(_), Some(name)) => known.in_queue(name, true),
            (Err(proof), None) => Line::Free(proof),
        }
    }

    /// What is known for one namespace; else why it is not, unless that comes by itself.
    fn known<'a>(&'a self, namespace: &'a str) -> Result<Known<'a>, Option<QueueWait>> {
        for listed in [&self.listed, &self.namespaces_listed] {
            match listed {
                Some(Ok(())) => {}
                Some(Err(why)) => return Err(Some(waits(Reason::Misconfigured, why.clone()))),
                None => return Err(None),
            }
        }
        match self.namespaces.get(namespace) {
            Some(labels) => Ok(Known { world: self, namespace, labels }),
            None => Err(self.namespaces_trouble.as_ref().filter(|(at, _)| at.elapsed() < LASTS).map(|(_, why)| {
                let message = format!(
                    "the operator does not know yet whether a queue applies: it has not seen namespace {namespace}, as it cannot watch namespaces: {why}; ask its administrator"
                );
                waits(Reason::PendingEvaluation, message)
            })),
        }
    }

    /// These are all queues.
    pub(super) fn list(&mut self, all: impl IntoIterator<Item = (String, Result<Named, String>)>) {
        (self.queues, self.unreadable) = (BTreeMap::new(), BTreeMap::new());
        for (name, queue) in all {
            self.see(name, queue);
        }
        self.listed = Some(Ok(()));
    }

    /// One queue is this now. Whether that is news.
    pub(super) fn see(&mut self, name: String, queue: Result<Named, String>) -> bool {
        match queue {
            Ok(queue) => {
                let was_unreadable = self.unreadable.remove(&name).is_some();
                let before = self.queues.get(&name);
                let news = was_unreadable || before.is_none_or(|before| !queue.is_as(before));
                self.queues.insert(name, queue);
                news
            }
            Err(why) => {
                let was_readable = self.queues.remove(&name).is_some();
                self.unreadable.insert(name, why.clone()) != Some(why) || was_readable
            }
        }
    }

    /// One queue is gone.
    pub(super) fn gone(&mut self, name: &str) {
        self.queues.remove(name);
        self.unreadable.remove(name);
    }

    /// How many namespaces a queue is for.
    pub(super) fn namespaces_of(&self, queue: &Named) -> usize {
        self.namespaces.values().filter(|labels| queue.spec.is_for(labels)).count()
    }
}

impl<'a> Known<'a> {
    /// In the queue of this name. `was_in`: the `HTCJob` was in it before.
    fn in_queue(&self, name: &str, was_in: bool) -> Line {
        let queue = name.to_owned();
        if let Some(why) = self.world.unreadable.get(name) {
            let message = format!(
                "HTCQueue {name} cannot be read, so that it is not known whether it has room: {why}; its administrator has to change it, or to update the operator"
            );
            return Line::NotYet { queue, wait: Some(waits(Reason::PendingEvaluation, message)) };
        }
        let namespace = self.namespace;
        let message = match self.world.queues.get(name) {
            Some(there) if there.spec.is_for(self.labels) => {
                return Line::In { queue, drained: there.spec.stop() == StopPolicy::HoldAndDrain };
            }
            Some(_) => format!(
                "HTCQueue {name} is not for namespace {namespace}: ask its administrator to change its spec.namespaceSelector, or name another queue in the label {QUEUE_NAME}"
            ),
            None if was_in => format!(
                "HTCQueue {name}, which this HTCJob is in, is gone: nothing of it begins until an administrator creates the HTCQueue again or makes another one the default of namespace {namespace}, or the label {QUEUE_NAME} of the HTCJob names another one"
            ),
            None => format!(
                "there is no HTCQueue {name}: create it, or change the label {QUEUE_NAME} of the HTCJob (kubectl get htcqueues)"
            ),
        };
        Line::Out { queue, wait: waits(Reason::Misconfigured, message) }
    }

    /// The first in the alphabet of those that are, or may be, for HTCJobs of this namespace without a label; else the proof that there is
    /// none. One that cannot be decoded may be.
    fn default(&self) -> Result<&'a str, NoQueue> {
        let is_default = |(_, queue): &(&String, &Named)| queue.spec.default && queue.spec.is_for(self.labels);
        let readable = self.world.queues.iter().find(is_default).map(|(name, _)| name);
        let first = readable.into_iter().chain(self.world.unreadable.keys().next()).min();
        first.map(String::as_str).ok_or(NoQueue(()))
    }
}

fn waits(reason: Reason, message: String) -> QueueWait {
    QueueWait { reason, message, place: None }
}

impl Line {
    /// The queue in which its jobs count: the one that it is in, or else the one that gave it room before. Only to name a queue is not
    /// enough: anybody can name one that is not for the namespace.
    pub(super) fn counts_in(&self, bound: Option<&str>) -> Option<&str> {
        match self {
            Self::In { queue, .. } => Some(queue),
            Self::Out { queue, .. } | Self::NotYet { queue, .. } => {
                Some(queue.as_str()).filter(|queue| bound == Some(queue))
            }
            Self::Free(_) => None,
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
            namespaces_trouble: None,
            unreadable: BTreeMap::new(),
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

    fn asks<'a>(namespace: &'a str, label: Option<&'a str>, bound: Option<&'a str>) -> Asks<'a> {
        Asks { namespace, label, bound, seen_in: None }
    }

    /// A line in few words.
    fn said(line: &Line) -> String {
        let first = |message: &str| message.split([':', ',']).next().unwrap_or_default().to_owned();
        match line {
            Line::Free(_) => "free".to_owned(),
            Line::In { queue, drained } => format!("in {queue}{}", if *drained { ", drained" } else { "" }),
            Line::Out { queue, wait } => {
                assert_eq!(wait.reason, Reason::Misconfigured);
                format!("out of {queue}: {}", first(&wait.message))
            }
            Line::NotYet { queue, wait } => {
                format!("not yet {queue}: {}", wait.as_ref().map(|wait| first(&wait.message)).unwrap_or_default())
            }
        }
    }

    #[rstest]
    #[case("a", None, None, "free")]
    #[case("a", Some("atlas"), None, "in atlas")]
    #[case("c", Some("atlas"), None, "out of atlas: HTCQueue atlas is not for namespace c")]
    #[case("c", None, None, "in default")]
    #[case("a", Some("nobody"), None, "out of nobody: HTCQueue nobody is not for namespace a")]
    #[case("a", Some("gone"), None, "out of gone: there is no HTCQueue gone")]
    #[case("a", Some("drained"), None, "in drained, drained")]
    // Where it got room it stays, as long as that is there.
    #[case("a", Some("drained"), Some("atlas"), "in atlas")]
    #[case("a", Some("atlas"), Some("gone"), "in atlas")]
    #[case("c", None, Some("gone"), "in default")]
    #[case("a", None, Some("gone"), "out of gone: HTCQueue gone")]
    #[case("a", Some("gone"), Some("gone"), "out of gone: HTCQueue gone")]
    #[case("a", Some("other"), Some("gone"), "out of other: there is no HTCQueue other")]
    fn the_queue_is_that_which_gave_room_or_is_named_or_is_the_default(
        #[case] namespace: &str,
        #[case] label: Option<&str>,
        #[case] bound: Option<&str>,
        #[case] wanted: &str,
    ) {
        assert_eq!(said(&world().line(asks(namespace, label, bound))), wanted);
    }

    /// Without room it may go to another queue, and to none only if it never was in one.
    #[rstest]
    #[case("c", None, "atlas", "out of atlas: HTCQueue atlas is not for namespace c")]
    #[case("a", None, "atlas", "in atlas")]
    #[case("c", None, "drained", "in drained, drained")]
    #[case("a", Some("drained"), "atlas", "in drained, drained")]
    #[case("a", Some("other"), "atlas", "out of other: there is no HTCQueue other")]
    #[case("a", None, "gone", "out of gone: HTCQueue gone")]
    #[case("a", Some("gone"), "gone", "out of gone: HTCQueue gone")]
    #[case("a", Some("atlas"), "gone", "in atlas")]
    #[case("c", None, "gone", "in default")]
    fn what_was_in_a_queue_is_never_free(
        #[case] namespace: &str,
        #[case] label: Option<&str>,
        #[case] seen_in: &str,
        #[case] wanted: &str,
    ) {
        let asks = Asks { seen_in: Some(seen_in), ..asks(namespace, label, None) };
        assert_eq!(said(&world().line(asks)), wanted);
    }

    /// Whether there is a default queue is not known before all queues are listed and decoded, and the namespace's labels are known.
    #[rstest]
    #[case(|world: &mut World| world.listed = None, "not yet : ")]
    #[case(|world: &mut World| world.namespaces_listed = None, "not yet : ")]
    #[case(|world: &mut World| world.listed = Some(Err("forbidden".to_owned())), "not yet : forbidden")]
    #[case(|world: &mut World| world.namespaces_listed = Some(Err("forbidden".to_owned())), "not yet : forbidden")]
    #[case(|world: &mut World| drop(world.namespaces.remove("a")), "not yet : ")]
    #[case(
        |world: &mut World| {
            world.namespaces.remove("a");
            world.namespaces_trouble = Some((Instant::now(), "forbidden".to_owned()));
        },
        "not yet : the operator does not know yet whether a queue applies"
    )]
    #[case(|world: &mut World| assert!(world.see("later".to_owned(), Err("a word".to_owned()))), "not yet later: HTCQueue later cannot be read")]
    fn no_queue_is_a_conclusion_from_full_knowledge(#[case] lacks: fn(&mut World), #[case] wanted: &str) {
        let mut world = world();
        assert_eq!(said(&world.line(asks("a", None, None))), "free");
        lacks(&mut world);
        assert_eq!(said(&world.line(asks("a", None, None))), wanted);
    }

    /// A label is not refused before the labels of the namespace are known.
    #[test]
    fn a_label_in_an_unknown_namespace_is_not_refused() {
        let mut world = world();
        world.namespaces.clear();
        assert_eq!(said(&world.line(asks("a", Some("atlas"), None))), "not yet atlas: ");
    }

    /// It may be the default of those that come behind it in the alphabet, and of nobody who is in another queue or names one.
    #[test]
    fn a_queue_that_cannot_be_read_holds_up_those_that_may_be_in_it() {
        let mut world = world();
        assert!(world.see("behind".to_owned(), Err("a word".to_owned())));
        assert!(!world.see("behind".to_owned(), Err("a word".to_owned())), "that is no news");
        let cannot = "not yet behind: HTCQueue behind cannot be read";
        assert_eq!(said(&world.line(asks("c", None, None))), cannot);
        assert_eq!(said(&world.line(asks("a", Some("behind"), None))), cannot);
        assert_eq!(said(&world.line(asks("a", None, Some("behind")))), cannot);
        assert_eq!(said(&world.line(asks("a", Some("atlas"), None))), "in atlas");
        assert_eq!(said(&world.line(Asks { seen_in: Some("atlas"), ..asks("a", None, None) })), "in atlas");
        world.gone("behind");
        world.see("z".to_owned(), Err("a word".to_owned()));
        assert_eq!(said(&world.line(asks("c", None, None))), "in default");
        // One that could be read before is not taken for what it was.
        assert!(world.see("default".to_owned(), Err("a word".to_owned())));
        assert_eq!(said(&world.line(asks("c", None, None))), "not yet default: HTCQueue default cannot be read");
    }
}
