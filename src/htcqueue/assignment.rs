//! Assignment of an `HTCJob` to a queue.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use htc_api::{Condition, HTCQueueSpec, QUEUE_NAME_LABEL, Reason, StopPolicy};
use htc_machine::admission::QueuePolicy;
use htc_machine::facts::QueueWait;

/// An `HTCQueue` as the watch last returned it.
#[derive(Clone, Debug)]
pub(super) struct QueueInfo {
    pub(super) uid: String,
    pub(super) generation: Option<i64>,
    pub(super) spec: HTCQueueSpec,
    pub(super) policy: QueuePolicy,
    /// Condition `Active` of its status.
    pub(super) active_condition: Option<Condition>,
}

impl QueueInfo {
    /// Returns whether it is the same queue with the same spec. Changes of the status are ignored.
    pub(super) fn is_same(&self, before: &Self) -> bool {
        (&self.uid, self.generation, &self.spec) == (&before.uid, before.generation, &before.spec)
    }
}

/// Time without a failure after which a watch counts as working. A watch starts again at the latest every 30 s.
const LASTS: Duration = Duration::from_secs(90);

/// Reason why the objects that decide about queues are not known. Each text is for users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListingError {
    /// The API server does not know the kind.
    #[error(
        "this operator gives quota in HTCQueues (--queueing=embedded), and the API server does not serve HTCQueues: ask its administrator to apply deploy/crd, or to start the operator with --queueing=none"
    )]
    NoHTCQueues,
    /// The objects of this kind were never listed; the error of the watch.
    #[error(
        "the operator cannot list {kind}, so that it does not know whether a queue applies: {why}; ask its administrator"
    )]
    Unlisted { kind: &'static str, why: String },
    /// The same for Kueue's Workloads.
    #[error("the operator cannot watch Workloads of Kueue: {0}; ask its administrator (deploy/components/kueue)")]
    Workloads(String),
}

/// An `HTCQueue` as it is decoded.
#[derive(Debug)]
pub(super) enum DecodedQueue {
    Readable(Box<QueueInfo>),
    /// It cannot be decoded; the decoding error, shortened for users.
    Unreadable(String),
}

/// All `HTCQueue`s and namespaces, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) queues: BTreeMap<String, QueueInfo>,
    /// `HTCQueue`s that cannot be decoded, with the error. None of them is in `queues`.
    pub(super) unreadable: BTreeMap<String, String>,
    /// Whether the `HTCQueue`s have been listed.
    pub(super) listed: Option<Result<(), ListingError>>,
    /// Labels of the namespaces, by name.
    pub(super) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether the namespaces have been listed.
    pub(super) namespaces_listed: Option<Result<(), ListingError>>,
    /// Time and message of the namespace watch's last failure. Namespaces created since then may be missing.
    pub(super) namespaces_trouble: Option<(Instant, String)>,
}

/// Queue of an `HTCJob`, and whether it may start jobs there.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Assignment {
    /// No queue applies: all of its jobs are submitted at once.
    Unqueued(NoQueue),
    /// In this queue, which admits its namespace.
    Queued {
        queue: String,
        /// The queue drains: the `HTCJob`'s jobs are held.
        drained: bool,
    },
    /// Assigned to this queue, which does not exist or does not admit its namespace. No job starts.
    Inadmissible { queue: String, wait: QueueWait },
    /// The queue is not known for certain. No job starts. An empty `queue` means that it may be any. `wait`: what the
    /// operator waits for, unless the missing knowledge arrives without anybody's help.
    Unknown { queue: String, wait: Option<QueueWait> },
}

/// Proof that no queue applies to an `HTCJob`: all `HTCQueue`s are listed and decoded, and the labels of its
/// namespace are known. With Kueue, a missing label is the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoQueue(());

impl NoQueue {
    /// With Kueue only a label puts an `HTCJob` into a queue. Returns the queue, or the proof that there is none.
    pub(super) const fn with_kueue(queue: Option<&str>) -> Result<&str, Self> {
        match queue {
            Some(queue) => Ok(queue),
            None => Err(Self(())),
        }
    }
}

/// What an `HTCJob`'s queue is derived from, besides the [`Snapshot`].
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueRequest<'a> {
    pub(super) namespace: &'a str,
    /// Value of its label [`QUEUE_NAME_LABEL`].
    pub(super) label: Option<&'a str>,
    /// Queue that granted it quota before.
    pub(super) granting_queue: Option<&'a str>,
    /// Queue that it was in last, whether or not that queue granted it quota.
    pub(super) last_queue: Option<&'a str>,
}

/// Everything that decides about the queues of one namespace's `HTCJob`s.
#[derive(Clone, Copy)]
struct NamespaceQueues<'a> {
    world: &'a Snapshot,
    namespace: &'a str,
    labels: &'a BTreeMap<String, String>,
}

impl Snapshot {
    pub(super) fn assign(&self, asks: QueueRequest<'_>) -> Assignment {
        let known = match self.known(asks.namespace) {
            Ok(known) => known,
            Err(wait) => {
                let queue = asks.granting_queue.or(asks.label).or(asks.last_queue).unwrap_or_default();
                return Assignment::Unknown { queue: queue.to_owned(), wait };
            }
        };
        let is_there = |name: &&str| self.queues.contains_key(*name) || self.unreadable.contains_key(*name);
        let was_in = asks.last_queue.or(asks.granting_queue);
        // It stays in the queue that granted it quota. Before any grant, its label decides.
        let named = asks.granting_queue.filter(is_there).or(asks.label).or(asks.last_queue.filter(is_there));
        if let Some(name) = named {
            return known.in_queue(name, was_in == Some(name));
        }
        match (known.default(), was_in) {
            (Ok(name), _) | (Err(_), Some(name)) => known.in_queue(name, true),
            (Err(proof), None) => Assignment::Unqueued(proof),
        }
    }

    /// Returns the queues and labels of one namespace. The error says why they are not known yet; `None` if they
    /// arrive without anybody's help.
    fn known<'a>(&'a self, namespace: &'a str) -> Result<NamespaceQueues<'a>, Option<QueueWait>> {
        for listed in [&self.listed, &self.namespaces_listed] {
            match listed {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(Some(waits(Reason::Misconfigured, error.to_string()))),
                None => return Err(None),
            }
        }
        match self.namespaces.get(namespace) {
            Some(labels) => Ok(NamespaceQueues { world: self, namespace, labels }),
            None => Err(self.namespaces_trouble.as_ref().filter(|(at, _)| at.elapsed() < LASTS).map(|(_, why)| {
                let message = format!(
                    "the operator does not know yet whether a queue applies: it has not seen namespace {namespace}, as it cannot watch namespaces: {why}; ask its administrator"
                );
                waits(Reason::PendingEvaluation, message)
            })),
        }
    }

    /// Replaces all queues by a complete list.
    pub(super) fn replace_queues(&mut self, all: impl IntoIterator<Item = (String, DecodedQueue)>) {
        (self.queues, self.unreadable) = (BTreeMap::new(), BTreeMap::new());
        for (name, queue) in all {
            self.update_queue(name, queue);
        }
        self.listed = Some(Ok(()));
    }

    /// Updates one queue. Returns whether anything changed that matters to the assignment.
    pub(super) fn update_queue(&mut self, name: String, queue: DecodedQueue) -> bool {
        match queue {
            DecodedQueue::Readable(queue) => {
                let was_unreadable = self.unreadable.remove(&name).is_some();
                let before = self.queues.get(&name);
                let news = was_unreadable || before.is_none_or(|before| !queue.is_same(before));
                self.queues.insert(name, *queue);
                news
            }
            DecodedQueue::Unreadable(why) => {
                let was_readable = self.queues.remove(&name).is_some();
                self.unreadable.insert(name, why.clone()) != Some(why) || was_readable
            }
        }
    }

    /// Removes a queue that was deleted.
    pub(super) fn remove_queue(&mut self, name: &str) {
        self.queues.remove(name);
        self.unreadable.remove(name);
    }

    /// Returns the number of namespaces that a queue admits.
    pub(super) fn namespaces_of(&self, queue: &QueueInfo) -> usize {
        self.namespaces.values().filter(|labels| queue.spec.admits(labels)).count()
    }
}

impl<'a> NamespaceQueues<'a> {
    /// Returns the assignment to the queue of this name. `was_in`: the `HTCJob` was in it before.
    fn in_queue(&self, name: &str, was_in: bool) -> Assignment {
        let queue = name.to_owned();
        if let Some(why) = self.world.unreadable.get(name) {
            let message = format!(
                "HTCQueue {name} cannot be read, and its quota is unknown: {why}; its administrator has to change it, or to update the operator"
            );
            return Assignment::Unknown { queue, wait: Some(waits(Reason::PendingEvaluation, message)) };
        }
        let namespace = self.namespace;
        let (reason, message) = match self.world.queues.get(name) {
            Some(there) if there.spec.admits(self.labels) => {
                return Assignment::Queued { queue, drained: there.spec.stop() == StopPolicy::HoldAndDrain };
            }
            Some(_) => {
                let message = format!(
                    "HTCQueue {name} is not for namespace {namespace}: ask its administrator to change its spec.namespaceSelector, or name another queue in the label {QUEUE_NAME_LABEL}"
                );
                (Reason::QueueNotAllowed, message)
            }
            None if was_in => {
                let message = format!(
                    "HTCQueue {name}, which this HTCJob is in, is gone: no further job starts until an administrator creates the HTCQueue again or makes another one the default of namespace {namespace}, or the label {QUEUE_NAME_LABEL} of the HTCJob names another one"
                );
                (Reason::QueueNotFound, message)
            }
            None => {
                let message = format!(
                    "there is no HTCQueue {name}: create it, or change the label {QUEUE_NAME_LABEL} of the HTCJob (kubectl get htcqueues)"
                );
                (Reason::QueueNotFound, message)
            }
        };
        Assignment::Inadmissible { queue, wait: waits(reason, message) }
    }

    /// Returns the default queue of the namespace: of those for HTCJobs without a label, the first in alphabetical
    /// order. A queue that cannot be decoded may be a default, so it counts as one. Otherwise returns the proof that
    /// there is none.
    fn default(&self) -> Result<&'a str, NoQueue> {
        let is_default = |(_, queue): &(&String, &QueueInfo)| queue.spec.default && queue.spec.admits(self.labels);
        let readable = self.world.queues.iter().find(is_default).map(|(name, _)| name);
        let first = readable.into_iter().chain(self.world.unreadable.keys().next()).min();
        first.map(String::as_str).ok_or(NoQueue(()))
    }
}

fn waits(reason: Reason, message: String) -> QueueWait {
    QueueWait { reason, message, position: None }
}

impl Assignment {
    /// Returns the queue in which its jobs count: the queue that it is in, or else the one that granted it quota
    /// before. A label alone is not enough: anybody can name a queue that does not admit the namespace.
    pub(super) fn usage_queue(&self, bound: Option<&str>) -> Option<&str> {
        match self {
            Self::Queued { queue, .. } => Some(queue),
            Self::Inadmissible { queue, .. } | Self::Unknown { queue, .. } => {
                Some(queue.as_str()).filter(|queue| bound == Some(queue))
            }
            Self::Unqueued(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::htcqueue::policy::terms_of;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn queue(spec: serde_json::Value) -> QueueInfo {
        let spec: HTCQueueSpec = serde_json::from_value(spec).unwrap();
        QueueInfo { uid: "u".to_owned(), generation: Some(1), policy: terms_of(&spec), spec, active_condition: None }
    }

    fn world() -> Snapshot {
        let atlas = json!({ "namespaceSelector": { "matchLabels": { "team": "atlas" } } });
        let default = json!({ "namespaceSelector": { "matchLabels": { "team": "cms" } }, "default": true });
        let drained = json!({ "namespaceSelector": {}, "stopPolicy": "HoldAndDrain" });
        let labels = |team: &str| BTreeMap::from([("team".to_owned(), team.to_owned())]);
        Snapshot {
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

    fn asks<'a>(namespace: &'a str, label: Option<&'a str>, bound: Option<&'a str>) -> QueueRequest<'a> {
        QueueRequest { namespace, label, granting_queue: bound, last_queue: None }
    }

    /// Formats an assignment in few words.
    fn said(line: &Assignment) -> String {
        let first = |message: &str| message.split([':', ',']).next().unwrap_or_default().to_owned();
        match line {
            Assignment::Unqueued(_) => "free".to_owned(),
            Assignment::Queued { queue, drained } => format!("in {queue}{}", if *drained { ", drained" } else { "" }),
            Assignment::Inadmissible { queue, wait } => {
                assert!(matches!(wait.reason, Reason::QueueNotFound | Reason::QueueNotAllowed), "{wait:?}");
                format!("out of {queue}: {}", first(&wait.message))
            }
            Assignment::Unknown { queue, wait } => {
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
    // It stays in the queue that granted it quota, as long as that exists.
    #[case("a", Some("drained"), Some("atlas"), "in atlas")]
    #[case("a", Some("atlas"), Some("gone"), "in atlas")]
    #[case("c", None, Some("gone"), "in default")]
    #[case("a", None, Some("gone"), "out of gone: HTCQueue gone")]
    #[case("a", Some("gone"), Some("gone"), "out of gone: HTCQueue gone")]
    #[case("a", Some("other"), Some("gone"), "out of other: there is no HTCQueue other")]
    fn queue_is_the_granting_the_labelled_or_the_default_one(
        #[case] namespace: &str,
        #[case] label: Option<&str>,
        #[case] bound: Option<&str>,
        #[case] wanted: &str,
    ) {
        assert_eq!(said(&world().assign(asks(namespace, label, bound))), wanted);
    }

    /// Without quota it may change to another queue. It may change to none only if it never was in one.
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
    fn queued_htcjob_never_becomes_unqueued(
        #[case] namespace: &str,
        #[case] label: Option<&str>,
        #[case] seen_in: &str,
        #[case] wanted: &str,
    ) {
        let asks = QueueRequest { last_queue: Some(seen_in), ..asks(namespace, label, None) };
        assert_eq!(said(&world().assign(asks)), wanted);
    }

    fn unlisted(kind: &'static str) -> ListingError {
        ListingError::Unlisted { kind, why: "forbidden".to_owned() }
    }

    /// Whether there is a default queue is not known before all queues are listed and decoded, and the namespace's
    /// labels are known.
    #[rstest]
    #[case(|world: &mut Snapshot| world.listed = None, "not yet : ")]
    #[case(|world: &mut Snapshot| world.namespaces_listed = None, "not yet : ")]
    #[case(|world: &mut Snapshot| world.listed = Some(Err(unlisted("HTCQueues"))), "not yet : the operator cannot list HTCQueues")]
    #[case(|world: &mut Snapshot| world.namespaces_listed = Some(Err(unlisted("namespaces"))), "not yet : the operator cannot list namespaces")]
    #[case(|world: &mut Snapshot| drop(world.namespaces.remove("a")), "not yet : ")]
    #[case(
        |world: &mut Snapshot| {
            world.namespaces.remove("a");
            world.namespaces_trouble = Some((Instant::now(), "forbidden".to_owned()));
        },
        "not yet : the operator does not know yet whether a queue applies"
    )]
    #[case(|world: &mut Snapshot| assert!(world.update_queue("later".to_owned(), DecodedQueue::Unreadable("a word".to_owned()))), "not yet later: HTCQueue later cannot be read")]
    fn unqueued_is_concluded_only_from_complete_lists(#[case] lacks: fn(&mut Snapshot), #[case] wanted: &str) {
        let mut world = world();
        assert_eq!(said(&world.assign(asks("a", None, None))), "free");
        lacks(&mut world);
        assert_eq!(said(&world.assign(asks("a", None, None))), wanted);
    }

    /// A label is not refused before the labels of the namespace are known.
    #[test]
    fn queue_label_in_an_unknown_namespace_is_not_refused() {
        let mut world = world();
        world.namespaces.clear();
        assert_eq!(said(&world.assign(asks("a", Some("atlas"), None))), "not yet atlas: ");
    }

    /// It may be the default queue of those `HTCJob`s whose default would come later in alphabetical order. It is not
    /// the default of those that are in another queue or name one.
    #[test]
    fn unreadable_queue_holds_only_htcjobs_that_may_be_in_it() {
        let mut world = world();
        assert!(world.update_queue("behind".to_owned(), DecodedQueue::Unreadable("a word".to_owned())));
        assert!(
            !world.update_queue("behind".to_owned(), DecodedQueue::Unreadable("a word".to_owned())),
            "that is no news"
        );
        let cannot = "not yet behind: HTCQueue behind cannot be read";
        assert_eq!(said(&world.assign(asks("c", None, None))), cannot);
        assert_eq!(said(&world.assign(asks("a", Some("behind"), None))), cannot);
        assert_eq!(said(&world.assign(asks("a", None, Some("behind")))), cannot);
        assert_eq!(said(&world.assign(asks("a", Some("atlas"), None))), "in atlas");
        assert_eq!(
            said(&world.assign(QueueRequest { last_queue: Some("atlas"), ..asks("a", None, None) })),
            "in atlas"
        );
        world.remove_queue("behind");
        world.update_queue("z".to_owned(), DecodedQueue::Unreadable("a word".to_owned()));
        assert_eq!(said(&world.assign(asks("c", None, None))), "in default");
        // A queue that could be read before does not keep its old spec.
        assert!(world.update_queue("default".to_owned(), DecodedQueue::Unreadable("a word".to_owned())));
        assert_eq!(said(&world.assign(asks("c", None, None))), "not yet default: HTCQueue default cannot be read");
    }
}
