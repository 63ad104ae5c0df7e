//! Whether the operator is ready: a few named gates, each opened by the part of the program that knows.

use std::sync::Mutex;
use std::sync::PoisonError;

use strum::{EnumIter, IntoEnumIterator as _, IntoStaticStr};

/// What must be so before the operator is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Gate {
    /// The API server serves HTCJobs.
    CrdServed,
    /// All HTCJobs have been listed.
    CacheSynced,
    /// The last transaction of the ledger was stored.
    LedgerWritable,
    /// The schedd has answered since the operator started.
    ScheddSeen,
    /// It is known who leads: this operator, or another one whose place it can take.
    Leading,
}

/// Where the operator stands among those that want to lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// It is not known yet.
    #[default]
    Unknown,
    /// Another one leads. It needs nothing else to be ready.
    Standby,
    /// This one leads.
    Leader,
}

/// What is known.
#[derive(Debug, Default)]
struct State {
    place: Place,
    crd: bool,
    cache: bool,
    ledger: bool,
    schedd: bool,
}

static STATE: Mutex<State> =
    Mutex::new(State { place: Place::Unknown, crd: false, cache: false, ledger: false, schedd: false });

fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The API server serves HTCJobs, or not.
pub fn crd_served(served: bool) {
    with(|state| state.crd = served);
}

/// All HTCJobs have been listed.
pub fn cache_synced() {
    with(|state| state.cache = true);
}

/// A transaction of the ledger was stored, or not.
pub fn ledger_writable(writable: bool) {
    with(|state| state.ledger = writable);
}

/// The schedd has answered.
pub fn schedd_seen() {
    with(|state| state.schedd = true);
}

/// Another operator leads.
pub fn standing_by() {
    with(|state| state.place = Place::Standby);
}

/// This operator leads.
pub fn leading() {
    with(|state| state.place = Place::Leader);
}

/// Whether the operator is ready, and one line for each gate.
#[must_use]
pub fn ready() -> (bool, String) {
    with(|state| describe(state))
}

fn describe(state: &State) -> (bool, String) {
    let (mut ready, mut text) = (true, String::new());
    for gate in Gate::iter() {
        let open = match gate {
            Gate::CrdServed => state.crd,
            Gate::CacheSynced => state.cache,
            Gate::LedgerWritable => state.ledger,
            Gate::ScheddSeen => state.schedd,
            Gate::Leading => state.place != Place::Unknown,
        };
        let (word, needed) = match (gate, open, state.place) {
            (Gate::Leading, _, Place::Standby) => ("ok (standby)", true),
            (_, true, _) => ("ok", true),
            (_, false, Place::Standby) => ("not asked on standby", true),
            (_, false, Place::Unknown | Place::Leader) => ("NOT YET", false),
        };
        ready &= needed;
        text = text + <&str>::from(gate) + ": " + word + "\n";
    }
    (ready, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_needs_every_gate_and_a_standby_only_its_place() {
        let all = || State { place: Place::Leader, crd: true, cache: true, ledger: true, schedd: true };
        assert!(describe(&all()).0);
        for shut in [
            State { place: Place::Unknown, ..all() },
            State { crd: false, ..all() },
            State { cache: false, ..all() },
            State { ledger: false, ..all() },
            State { schedd: false, ..all() },
        ] {
            let (ready, text) = describe(&shut);
            assert!(!ready && text.matches("NOT YET").count() == 1, "{text}");
        }
        assert!(!describe(&State::default()).0);
        assert!(describe(&State { place: Place::Standby, ..State::default() }).0);
    }
}
