//! Who cannot be told about for now: objects, and whole namespaces. It holds up nobody else.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::ledger::Except;
use crate::machine::Uid;
use crate::retry::Backoff;

/// First and longest pause before the next try.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// So many failures in a row in one namespace are the namespace's.
const IN_A_ROW: u32 = 3;

/// One that fails.
#[derive(Debug)]
struct Trouble {
    /// Since when the API server says so: that it says nothing may be its own trouble.
    since: Option<Instant>,
    again: Instant,
    backoff: Backoff,
}

impl Trouble {
    fn begin(now: Instant) -> Self {
        Self { since: None, again: now, backoff: Backoff::new(PAUSES.0, PAUSES.1) }
    }

    fn go_on(&mut self, answered: bool, now: Instant) {
        if answered {
            self.since.get_or_insert(now);
        }
        self.again = now + self.backoff.pause();
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

    /// A row of this object is an Event.
    pub(super) fn told(&mut self, namespace: &str, uid: &Uid) {
        self.objects.remove(uid);
        self.namespaces.remove(namespace);
        self.in_a_row.remove(namespace);
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
    pub(super) fn refused(&mut self, namespace: &str, uid: &Uid, answered: bool, now: Instant) {
        let (_, trouble) =
            self.objects.entry(uid.clone()).or_insert_with(|| (namespace.to_owned(), Trouble::begin(now)));
        trouble.go_on(answered, now);
        let in_a_row = self.in_a_row.entry(namespace.to_owned()).or_default();
        *in_a_row += 1;
        if *in_a_row >= IN_A_ROW {
            self.namespaces.entry(namespace.to_owned()).or_insert_with(|| Trouble::begin(now)).go_on(answered, now);
        }
    }

    /// What is due; and when the next is, if nothing is.
    pub(super) fn due(&self, now: Instant) -> Result<Vec<Probe>, Option<Instant>> {
        let objects = self.objects.iter().map(|(uid, (_, trouble))| (trouble.again, Probe::Object(uid.clone())));
        let namespaces = self.namespaces.iter().map(|(name, trouble)| (trouble.again, Probe::Namespace(name.clone())));
        let (due, later): (Vec<_>, Vec<_>) = objects.chain(namespaces).partition(|(again, _)| *again <= now);
        if due.is_empty() {
            return Err(later.into_iter().map(|(again, _)| again).min());
        }
        Ok(due.into_iter().map(|(_, probe)| probe).collect())
    }

    /// Those that have been in trouble for so long that what is old of them is given up.
    pub(super) fn hopeless(&self, after: Duration, now: Instant) -> Except {
        let old = |trouble: &Trouble| trouble.since.is_some_and(|since| now.duration_since(since) >= after);
        Except {
            objects: self.objects.iter().filter(|(_, (_, trouble))| old(trouble)).map(|(uid, _)| uid.clone()).collect(),
            namespaces: self
                .namespaces
                .iter()
                .filter(|(_, trouble)| old(trouble))
                .map(|(name, _)| name.clone())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_object_in_trouble_blocks_itself_alone() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
        troubles.refused("a", &"1".into(), true, now);
        assert!(troubles.blocks("a", &"1".into()) && !troubles.blocks("a", &"2".into()));
        assert!(troubles.due(now).is_err());
        assert_eq!(troubles.due(now + PAUSES.1 * 2), Ok(vec![Probe::Object("1".into())]));
        troubles.told("a", &"2".into());
        assert!(troubles.blocks("a", &"1".into()), "that another one goes well is no news of this one");
        troubles.told("a", &"1".into());
        assert_eq!(troubles.due(now + PAUSES.1 * 2), Err(None));
    }

    #[test]
    fn failures_in_a_row_are_the_namespaces() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
        for uid in ["1", "2"] {
            troubles.refused("a", &uid.into(), true, now);
        }
        troubles.told("a", &"3".into());
        troubles.refused("a", &"4".into(), true, now);
        assert!(!troubles.blocks("a", &"5".into()), "not in a row");
        for uid in ["5", "6"] {
            troubles.refused("a", &uid.into(), true, now);
        }
        assert!(troubles.blocks("a", &"7".into()) && !troubles.blocks("b", &"8".into()));
        assert!(troubles.due(now + PAUSES.1 * 2).unwrap().contains(&Probe::Namespace("a".to_owned())));
        troubles.told("a", &"7".into());
        assert!(!troubles.blocks("a", &"9".into()));
        assert!(troubles.blocks("a", &"6".into()));
    }

    #[test]
    fn pauses_grow_and_hope_ends() {
        let (mut troubles, mut now) = (Troubles::default(), Instant::now());
        let hour = Duration::from_secs(3600);
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            troubles.refused("a", &"1".into(), true, now);
            let again = troubles.objects[&Uid::from("1")].1.again;
            last = again - now;
            now = again;
        }
        assert!(last > PAUSES.1 / 2, "{last:?}");
        assert_eq!(troubles.hopeless(hour, now), Except::default());
        let hopeless = troubles.hopeless(hour, now + hour);
        assert_eq!((hopeless.objects, hopeless.namespaces), (vec!["1".into()], vec!["a".to_owned()]));
        let mut silent = Troubles::default();
        silent.refused("a", &"1".into(), false, now);
        assert_eq!(silent.hopeless(hour, now + hour), Except::default(), "nobody has refused anything");
    }
}
