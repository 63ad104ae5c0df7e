//! Who cannot be told about for now: objects, and whole namespaces. It holds up nobody else.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::ledger::Except;
use crate::machine::Uid;
use crate::retry::Backoff;

/// What has been refused for so long is not told any more once it is as old: Kubernetes keeps Events no longer. No pause is longer.
pub(super) const TOO_LATE: Duration = Duration::from_secs(3600);
/// First and longest pause before the next try, unless the API server asks for a longer one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// So many failures in a row in one namespace are the namespace's.
const IN_A_ROW: u32 = 3;

/// How a row was refused, for now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What the namespace may write is limited, or nothing may be written at all: the namespace is in trouble at once.
    pub(super) limited: bool,
    /// How long the API server asks to be left alone.
    pub(super) wait: Duration,
}

/// One that fails.
#[derive(Debug)]
struct Trouble {
    since: Instant,
    /// None while that is being done.
    again: Option<Instant>,
    backoff: Backoff,
    /// It failed once more after others, that long after its beginning, did not.
    hopeless: bool,
}

impl Trouble {
    fn begin(now: Instant) -> Self {
        Self { since: now, again: None, backoff: Backoff::new(PAUSES.0, PAUSES.1), hopeless: false }
    }

    /// `told`: when anything was an Event last.
    fn go_on(&mut self, wait: Duration, told: Option<Instant>, now: Instant) {
        self.hopeless |= told.is_some_and(|told| told.saturating_duration_since(self.since) >= TOO_LATE);
        match self.again {
            // Requests that were under way together fail together: that is one failure.
            Some(again) if again > now => self.again = Some(again.max(now + wait.min(TOO_LATE))),
            _ => self.put_off(wait, now),
        }
    }

    fn put_off(&mut self, wait: Duration, now: Instant) {
        self.again = Some(now + self.backoff.pause().max(wait.min(TOO_LATE)));
    }
}

/// What is to be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// The first row of an object.
    Object(Uid),
    /// The first row of any object of a namespace that is not in trouble itself.
    Namespace(String),
}

/// All that fail.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    objects: HashMap<Uid, (String, Trouble)>,
    namespaces: BTreeMap<String, Trouble>,
    in_a_row: HashMap<String, u32>,
    last_told: Option<Instant>,
}

impl Troubles {
    /// Whom everything that goes well is to leave alone.
    pub(super) fn except(&self) -> Except {
        Except {
            objects: self.objects.keys().cloned().collect(),
            namespaces: self.namespaces.keys().cloned().collect(),
        }
    }

    pub(super) fn blocks(&self, namespace: &str, uid: &Uid) -> bool {
        self.objects.contains_key(uid) || self.namespaces.contains_key(namespace)
    }

    /// A row of this object is an Event; whether its namespace was in trouble.
    pub(super) fn told(&mut self, namespace: &str, uid: &Uid, now: Instant) -> bool {
        self.last_told = Some(now);
        self.over(namespace, uid)
    }

    /// A row of this object is done with; whether its namespace was in trouble.
    pub(super) fn over(&mut self, namespace: &str, uid: &Uid) -> bool {
        self.objects.remove(uid);
        self.in_a_row.remove(namespace);
        self.namespaces.remove(namespace).is_some()
    }

    /// There is nothing to tell about it.
    pub(super) fn nothing_left(&mut self, probe: &Probe) {
        match probe {
            Probe::Object(uid) => drop(self.objects.remove(uid)),
            Probe::Namespace(namespace) => {
                self.namespaces.remove(namespace);
                self.in_a_row.remove(namespace);
            }
        }
    }

    /// A row of this object was refused, or there was no answer.
    pub(super) fn refused(&mut self, namespace: &str, uid: &Uid, refusal: Refusal, now: Instant) {
        let told = self.last_told;
        let (_, trouble) =
            self.objects.entry(uid.clone()).or_insert_with(|| (namespace.to_owned(), Trouble::begin(now)));
        trouble.go_on(refusal.wait, told, now);
        let in_a_row = self.in_a_row.entry(namespace.to_owned()).or_default();
        *in_a_row += 1;
        if refusal.limited || *in_a_row >= IN_A_ROW || self.namespaces.contains_key(namespace) {
            let trouble = self.namespaces.entry(namespace.to_owned()).or_insert_with(|| Trouble::begin(now));
            trouble.go_on(refusal.wait, told, now);
        }
    }

    /// It could not be tried, which is no fault of its own.
    pub(super) fn put_off(&mut self, probe: &Probe, wait: Duration, now: Instant) {
        if let Some(trouble) = self.of(probe) {
            trouble.put_off(wait, now);
        }
    }

    fn of(&mut self, probe: &Probe) -> Option<&mut Trouble> {
        match probe {
            Probe::Object(uid) => self.objects.get_mut(uid).map(|(_, trouble)| trouble),
            Probe::Namespace(namespace) => self.namespaces.get_mut(namespace),
        }
    }

    /// What is due, the longest first and at most `limit`; and when the next will be, of those that are not. An object waits for its
    /// namespace.
    pub(super) fn take_due(&mut self, limit: usize, now: Instant) -> (Vec<Probe>, Option<Instant>) {
        let (mut due, later): (Vec<_>, Vec<_>) = self.waiting().partition(|(again, _)| *again <= now);
        due.sort_by_key(|(again, _)| *again);
        due.truncate(limit);
        let probes: Vec<Probe> = due.into_iter().map(|(_, probe)| probe).collect();
        let next = later.into_iter().map(|(again, _)| again).min();
        for probe in &probes {
            if let Some(trouble) = self.of(probe) {
                trouble.again = None;
            }
        }
        (probes, next)
    }

    fn waiting(&self) -> impl Iterator<Item = (Instant, Probe)> {
        let objects = self.objects.iter().filter(move |(_, (namespace, _))| !self.namespaces.contains_key(namespace));
        let objects = objects.filter_map(|(uid, (_, trouble))| Some((trouble.again?, Probe::Object(uid.clone()))));
        let namespaces = self.namespaces.iter();
        objects.chain(namespaces.filter_map(|(name, trouble)| Some((trouble.again?, Probe::Namespace(name.clone())))))
    }

    /// Those that have been in trouble for so long, and others not, that what is old of them is given up.
    pub(super) fn hopeless(&self) -> Except {
        let objects = self.objects.iter().filter(|(_, (_, trouble))| trouble.hopeless);
        let namespaces = self.namespaces.iter().filter(|(_, trouble)| trouble.hopeless);
        Except {
            objects: objects.map(|(uid, _)| uid.clone()).collect(),
            namespaces: namespaces.map(|(name, _)| name.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Refusal = Refusal { limited: false, wait: Duration::ZERO };
    const LATER: Duration = Duration::from_secs(120);

    fn due(troubles: &mut Troubles, now: Instant) -> Vec<Probe> {
        troubles.take_due(100, now).0
    }

    #[test]
    fn one_object_in_trouble_blocks_itself_alone() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
        troubles.refused("a", &"1".into(), REFUSED, now);
        assert!(troubles.blocks("a", &"1".into()) && !troubles.blocks("a", &"2".into()));
        let (none, next) = troubles.take_due(100, now);
        assert!(none.is_empty() && next.is_some_and(|next| next > now));
        assert_eq!(due(&mut troubles, now + LATER), [Probe::Object("1".into())]);
        assert_eq!(troubles.take_due(100, now + LATER), (Vec::new(), None), "it is being tried");
        troubles.told("a", &"2".into(), now);
        assert!(troubles.blocks("a", &"1".into()), "that another one goes well is no news of this one");
        troubles.told("a", &"1".into(), now);
        assert_eq!(troubles.except(), Except::default());
    }

    #[test]
    fn failures_in_a_row_are_the_namespaces() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
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
    fn no_more_are_tried_at_once_than_there_is_room_for() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
        for (nth, uid) in ["1", "2", "3"].into_iter().enumerate() {
            troubles.refused(uid, &uid.into(), REFUSED, now + LATER * u32::try_from(nth).unwrap());
        }
        let (first, next) = troubles.take_due(2, now + LATER * 4);
        assert_eq!((first, next), (vec![Probe::Object("1".into()), Probe::Object("2".into())], None));
        assert_eq!(due(&mut troubles, now + LATER * 4), [Probe::Object("3".into())]);
    }

    #[test]
    fn a_limit_is_the_namespaces_and_is_waited_for() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
        let limited = Refusal { limited: true, wait: LATER };
        for uid in ["1", "2", "3", "4", "5", "6", "7", "8"] {
            troubles.refused("a", &uid.into(), limited, now);
        }
        assert!(troubles.blocks("a", &"9".into()));
        assert_eq!(troubles.take_due(100, now + LATER / 2), (Vec::new(), Some(now + LATER)));
        assert_eq!(due(&mut troubles, now + LATER), [Probe::Namespace("a".to_owned())]);
        // Eight at once were one failure.
        troubles.refused("a", &"1".into(), REFUSED, now + LATER);
        assert_eq!(due(&mut troubles, now + LATER + PAUSES.0 * 4), [Probe::Namespace("a".to_owned())]);
    }

    #[test]
    fn what_cannot_be_tried_is_put_off_and_not_counted() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
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
    fn hope_ends_only_while_others_are_told() {
        let (mut troubles, began) = (Troubles::default(), Instant::now());
        let refuse = |troubles: &mut Troubles, now| {
            for uid in ["1", "2", "3"] {
                troubles.refused("a", &uid.into(), REFUSED, now);
            }
        };
        refuse(&mut troubles, began);
        troubles.told("b", &"9".into(), began + LATER);
        refuse(&mut troubles, began + TOO_LATE * 2);
        assert_eq!(troubles.hopeless(), Except::default(), "nobody has been told anything for an hour");
        troubles.told("b", &"9".into(), began + TOO_LATE * 3);
        assert_eq!(troubles.hopeless(), Except::default(), "it has not been tried since");
        refuse(&mut troubles, began + TOO_LATE * 3 + LATER);
        let mut hopeless = troubles.hopeless();
        hopeless.objects.sort();
        assert_eq!(hopeless.objects, ["1", "2", "3"].map(Uid::from));
        assert_eq!(hopeless.namespaces, ["a"]);
    }
}
