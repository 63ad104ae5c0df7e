//! Back-offs of objects and whole namespaces whose Events the API server refuses. They delay no other object.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use htc_ledger::EventFilter;
use htc_machine::Uid;
use htc_support::retry::Backoff;

/// Rows of this age are dropped if their object has been refused for as long: Kubernetes keeps Events no longer. It is
/// also the longest pause.
pub(super) const TOO_LATE: Duration = Duration::from_secs(3600);
/// First and longest pause before a retry, unless the API server asks for a longer one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Number of failures in a row, in one namespace, after which the whole namespace is in back-off.
const IN_A_ROW: u32 = 3;

/// A temporary refusal of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EventRefusal {
    /// Whether the namespace's writes are rate-limited, or nothing may be written at all. Then the whole namespace is
    /// in back-off at once.
    pub(super) limited: bool,
    /// `Retry-After` of the API server.
    pub(super) wait: Duration,
}

/// Back-off of one object or namespace.
#[derive(Debug)]
struct EventBackoff {
    since: Instant,
    /// Time of the next retry; `None` while one is in progress.
    retry_at: Option<Instant>,
    backoff: Backoff,
    /// Whether it failed again after an Event of another object was written, at least [`TOO_LATE`] after the first
    /// failure here.
    hopeless: bool,
}

impl EventBackoff {
    fn begin(now: Instant) -> Self {
        Self { since: now, retry_at: None, backoff: Backoff::new(PAUSES.0, PAUSES.1), hopeless: false }
    }

    /// Counts a failure. `told`: time when any Event was last written.
    fn go_on(&mut self, wait: Duration, told: Option<Instant>, now: Instant) {
        self.hopeless |= told.is_some_and(|told| told.saturating_duration_since(self.since) >= TOO_LATE);
        match self.retry_at {
            // Concurrent requests fail together; they count as one failure.
            Some(until) if until > now => {
                self.retry_at = Some(until.max(now + wait.min(TOO_LATE)));
            }
            _ => self.put_off(wait, now),
        }
    }

    fn put_off(&mut self, wait: Duration, now: Instant) {
        self.retry_at = Some(now + self.backoff.pause().max(wait.min(TOO_LATE)));
    }
}

/// A retry of a refused row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// The first row of an object.
    Object(Uid),
    /// The first row of a namespace whose object is not in back-off itself.
    Namespace(String),
}

/// Back-offs of all objects and namespaces.
#[derive(Debug, Default)]
pub(super) struct EventBackoffs {
    objects: HashMap<Uid, (String, EventBackoff)>,
    namespaces: BTreeMap<String, EventBackoff>,
    in_a_row: HashMap<String, u32>,
    last_told: Option<Instant>,
}

impl EventBackoffs {
    /// Returns the objects and namespaces that regular writes skip.
    pub(super) fn except(&self) -> EventFilter {
        EventFilter {
            objects: self.objects.keys().cloned().collect(),
            namespaces: self.namespaces.keys().cloned().collect(),
        }
    }

    pub(super) fn blocks(&self, namespace: &str, uid: &Uid) -> bool {
        self.objects.contains_key(uid) || self.namespaces.contains_key(namespace)
    }

    /// Records that a row of this object was written as an Event. Returns whether its namespace was in back-off.
    pub(super) fn told(&mut self, namespace: &str, uid: &Uid, now: Instant) -> bool {
        self.last_told = Some(now);
        self.over(namespace, uid)
    }

    /// Records that a row of this object is finished. Returns whether its namespace was in back-off.
    pub(super) fn over(&mut self, namespace: &str, uid: &Uid) -> bool {
        self.objects.remove(uid);
        self.in_a_row.remove(namespace);
        self.namespaces.remove(namespace).is_some()
    }

    /// Removes the back-off, because no row is left to write.
    pub(super) fn nothing_left(&mut self, probe: &Probe) {
        match probe {
            Probe::Object(uid) => drop(self.objects.remove(uid)),
            Probe::Namespace(namespace) => {
                self.namespaces.remove(namespace);
                self.in_a_row.remove(namespace);
            }
        }
    }

    /// Records that a row of this object was refused or got no answer.
    pub(super) fn refused(&mut self, namespace: &str, uid: &Uid, refusal: EventRefusal, now: Instant) {
        let told = self.last_told;
        let (_, trouble) =
            self.objects.entry(uid.clone()).or_insert_with(|| (namespace.to_owned(), EventBackoff::begin(now)));
        trouble.go_on(refusal.wait, told, now);
        let in_a_row = self.in_a_row.entry(namespace.to_owned()).or_default();
        *in_a_row += 1;
        if refusal.limited || *in_a_row >= IN_A_ROW || self.namespaces.contains_key(namespace) {
            let trouble = self.namespaces.entry(namespace.to_owned()).or_insert_with(|| EventBackoff::begin(now));
            trouble.go_on(refusal.wait, told, now);
        }
    }

    /// Delays a retry that failed for a reason that does not concern its row.
    pub(super) fn put_off(&mut self, probe: &Probe, wait: Duration, now: Instant) {
        if let Some(trouble) = self.of(probe) {
            trouble.put_off(wait, now);
        }
    }

    fn of(&mut self, probe: &Probe) -> Option<&mut EventBackoff> {
        match probe {
            Probe::Object(uid) => self.objects.get_mut(uid).map(|(_, trouble)| trouble),
            Probe::Namespace(namespace) => self.namespaces.get_mut(namespace),
        }
    }

    /// Returns the retries that are due, the one that has waited longest first and at most `limit`, and the time when
    /// the next one will be due. Objects wait for the back-off of their namespace.
    pub(super) fn take_due(&mut self, limit: usize, now: Instant) -> (Vec<Probe>, Option<Instant>) {
        let (mut due, later): (Vec<_>, Vec<_>) = self.waiting().partition(|(until, _)| *until <= now);
        due.sort_by_key(|(until, _)| *until);
        due.truncate(limit);
        let probes: Vec<Probe> = due.into_iter().map(|(_, probe)| probe).collect();
        let next = later.into_iter().map(|(until, _)| until).min();
        for probe in &probes {
            if let Some(trouble) = self.of(probe) {
                trouble.retry_at = None;
            }
        }
        (probes, next)
    }

    fn waiting(&self) -> impl Iterator<Item = (Instant, Probe)> {
        let objects = self.objects.iter().filter(move |(_, (namespace, _))| !self.namespaces.contains_key(namespace));
        let objects = objects.filter_map(|(uid, (_, trouble))| Some((trouble.retry_at?, Probe::Object(uid.clone()))));
        let namespaces = self.namespaces.iter();
        objects
            .chain(namespaces.filter_map(|(name, trouble)| Some((trouble.retry_at?, Probe::Namespace(name.clone())))))
    }

    /// Returns the objects and namespaces that have failed for so long, while others did not, that their old rows are
    /// dropped.
    pub(super) fn hopeless(&self) -> EventFilter {
        let objects = self.objects.iter().filter(|(_, (_, trouble))| trouble.hopeless);
        let namespaces = self.namespaces.iter().filter(|(_, trouble)| trouble.hopeless);
        EventFilter {
            objects: objects.map(|(uid, _)| uid.clone()).collect(),
            namespaces: namespaces.map(|(name, _)| name.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: EventRefusal = EventRefusal { limited: false, wait: Duration::ZERO };
    const LATER: Duration = Duration::from_secs(120);

    fn due(troubles: &mut EventBackoffs, now: Instant) -> Vec<Probe> {
        troubles.take_due(100, now).0
    }

    #[test]
    fn refused_object_blocks_only_itself() {
        let (mut troubles, now) = (EventBackoffs::default(), Instant::now());
        troubles.refused("a", &"1".into(), REFUSED, now);
        assert!(troubles.blocks("a", &"1".into()) && !troubles.blocks("a", &"2".into()));
        let (none, next) = troubles.take_due(100, now);
        assert!(none.is_empty() && next.is_some_and(|next| next > now));
        assert_eq!(due(&mut troubles, now + LATER), [Probe::Object("1".into())]);
        assert_eq!(troubles.take_due(100, now + LATER), (Vec::new(), None), "it is being tried");
        troubles.told("a", &"2".into(), now);
        assert!(troubles.blocks("a", &"1".into()), "that another one goes well is no news of this one");
        troubles.told("a", &"1".into(), now);
        assert_eq!(troubles.except(), EventFilter::default());
    }

    #[test]
    fn consecutive_failures_block_the_namespace() {
        let (mut troubles, now) = (EventBackoffs::default(), Instant::now());
        for uid in ["1", "2"] {
            troubles.refused("a", &uid.into(), REFUSED, now);
        }
        troubles.told("a", &"3".into(), now);
        troubles.refused("a", &"4".into(), REFUSED, now);
        assert!(!troubles.blocks("a", &"5".into()), "not in a row");
        for uid in ["5", "6"] {
            troubles.refused("a", &uid.into(), REFUSED, now);
        }
        assert!(troubles.blocks("a", &"7".into()) && !troubles.blocks("b", &"8".into()));
        assert_eq!(due(&mut troubles, now + LATER), [Probe::Namespace("a".to_owned())], "its objects wait for it");
        troubles.refused("a", &"7".into(), REFUSED, now + LATER);
        assert_eq!(due(&mut troubles, now + LATER * 2), [Probe::Namespace("a".to_owned())]);
        assert!(troubles.told("a", &"8".into(), now));
        assert!(!troubles.blocks("a", &"9".into()));
        assert!(troubles.blocks("a", &"6".into()));
        assert_eq!(due(&mut troubles, now + LATER * 2).len(), 6);
    }

    #[test]
    fn due_probes_are_limited() {
        let (mut troubles, now) = (EventBackoffs::default(), Instant::now());
        for (nth, uid) in ["1", "2", "3"].into_iter().enumerate() {
            troubles.refused(uid, &uid.into(), REFUSED, now + LATER * u32::try_from(nth).unwrap());
        }
        let (first, next) = troubles.take_due(2, now + LATER * 4);
        assert_eq!((first, next), (vec![Probe::Object("1".into()), Probe::Object("2".into())], None));
        assert_eq!(due(&mut troubles, now + LATER * 4), [Probe::Object("3".into())]);
    }

    #[test]
    fn rate_limit_blocks_the_namespace_until_its_end() {
        let (mut troubles, now) = (EventBackoffs::default(), Instant::now());
        let limited = EventRefusal { limited: true, wait: LATER };
        for uid in ["1", "2", "3", "4", "5", "6", "7", "8"] {
            troubles.refused("a", &uid.into(), limited, now);
        }
        assert!(troubles.blocks("a", &"9".into()));
        assert_eq!(troubles.take_due(100, now + LATER / 2), (Vec::new(), Some(now + LATER)));
        assert_eq!(due(&mut troubles, now + LATER), [Probe::Namespace("a".to_owned())]);
        // Eight concurrent failures count as one.
        troubles.refused("a", &"1".into(), REFUSED, now + LATER);
        assert_eq!(due(&mut troubles, now + LATER + PAUSES.0 * 4), [Probe::Namespace("a".to_owned())]);
    }

    #[test]
    fn postponed_probe_is_not_counted_as_failure() {
        let (mut troubles, now) = (EventBackoffs::default(), Instant::now());
        troubles.refused("a", &"1".into(), REFUSED, now);
        let (probe, mut at) = (Probe::Object("1".into()), now);
        for _ in 0..20 {
            at += LATER;
            assert_eq!(due(&mut troubles, at), std::slice::from_ref(&probe));
            troubles.put_off(&probe, Duration::ZERO, at);
            assert_eq!(due(&mut troubles, at), []);
        }
        assert_eq!(due(&mut troubles, at + PAUSES.1 / 2), [], "its pauses grow");
        assert!(!troubles.blocks("a", &"2".into()));
        troubles.put_off(&probe, LATER, at);
        assert_eq!(troubles.take_due(100, at), (Vec::new(), Some(at + LATER)));
    }

    #[test]
    fn events_are_given_up_only_while_others_succeed() {
        let (mut troubles, began) = (EventBackoffs::default(), Instant::now());
        let refuse = |troubles: &mut EventBackoffs, now| {
            for uid in ["1", "2", "3"] {
                troubles.refused("a", &uid.into(), REFUSED, now);
            }
        };
        refuse(&mut troubles, began);
        troubles.told("b", &"9".into(), began + LATER);
        refuse(&mut troubles, began + TOO_LATE * 2);
        assert_eq!(troubles.hopeless(), EventFilter::default(), "no Event was written for an hour");
        troubles.told("b", &"9".into(), began + TOO_LATE * 3);
        assert_eq!(troubles.hopeless(), EventFilter::default(), "it has not been tried since");
        refuse(&mut troubles, began + TOO_LATE * 3 + LATER);
        let mut hopeless = troubles.hopeless();
        hopeless.objects.sort();
        assert_eq!(hopeless.objects, ["1", "2", "3"].map(Uid::from));
        assert_eq!(hopeless.namespaces, ["a"]);
    }
}
