//! Whether the operator is ready: a few named gates, each opened by the part of the program that knows.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strum::{EnumIter, IntoEnumIterator as _, IntoStaticStr};

/// What must be so before the operator is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Gate {
    /// The API server serves HTCJobs.
    CrdServed,
    /// All HTCJobs have been listed.
    CacheSynced,
    /// What was last written to the ledger was stored.
    LedgerWritable,
    /// The ledger has answered, and is not stuck in one call since.
    LedgerAnswers,
    /// The schedd has answered since the operator started.
    ScheddSeen,
    /// It is known who leads: this operator, or another one whose place it can take.
    Leading,
}

/// Where the operator stands among those that want to lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Leadership {
    /// It is not known yet.
    #[default]
    Unknown,
    /// Another one leads. It needs nothing else to be ready.
    Standby,
    /// This one leads.
    Leader,
}

/// Longest time that one step of the ledger may take: client-go's renew deadline.
const LEDGER_PATIENCE: Duration = Duration::from_secs(10);

/// What is known.
#[derive(Debug, Default)]
struct State {
    leadership: Leadership,
    open: BTreeSet<Gate>,
    /// When the ledger began the step that it is at; none while nobody waits for it.
    ledger_at_work: Option<Instant>,
}

impl State {
    fn ledger_silent_for(&self) -> Duration {
        self.ledger_at_work.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The gates of one operator. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<State>>);

impl Health {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, gate: Gate, open: bool) {
        self.with(|state| if open { state.open.insert(gate) } else { state.open.remove(&gate) });
    }

    /// The API server serves HTCJobs, or not.
    pub fn crd_served(&self, served: bool) {
        self.set(Gate::CrdServed, served);
    }

    /// All HTCJobs have been listed.
    pub fn cache_synced(&self) {
        self.set(Gate::CacheSynced, true);
    }

    /// What was last written to the ledger was stored, or not.
    pub fn ledger_writable(&self, writable: bool) {
        self.set(Gate::LedgerWritable, writable);
    }

    /// The ledger begins a step for somebody who waits.
    pub fn ledger_at_work(&self) {
        self.with(|state| state.ledger_at_work = Some(Instant::now()));
    }

    /// The ledger has answered all that it had taken up.
    pub fn ledger_at_rest(&self) {
        self.with(|state| {
            state.ledger_at_work = None;
            state.open.insert(Gate::LedgerAnswers)
        });
    }

    /// How long the ledger has been at one step while somebody waits for its answer.
    #[must_use]
    pub fn ledger_silent_for(&self) -> Duration {
        self.with(|state| state.ledger_silent_for())
    }

    /// The schedd has answered.
    pub fn schedd_seen(&self) {
        self.set(Gate::ScheddSeen, true);
    }

    /// Another operator leads.
    pub fn standing_by(&self) {
        self.with(|state| state.leadership = Leadership::Standby);
    }

    /// This operator leads.
    pub fn leading(&self) {
        self.with(|state| state.leadership = Leadership::Leader);
    }

    /// Whether the operator is ready, and one line for each gate.
    #[must_use]
    pub fn ready(&self) -> (bool, String) {
        self.with(|state| describe(state))
    }
}

fn describe(state: &State) -> (bool, String) {
    let (mut ready, mut text) = (true, String::new());
    for gate in Gate::iter() {
        let open = match gate {
            Gate::Leading => state.leadership != Leadership::Unknown,
            Gate::LedgerAnswers => state.open.contains(&gate) && state.ledger_silent_for() < LEDGER_PATIENCE,
            Gate::CrdServed | Gate::CacheSynced | Gate::LedgerWritable | Gate::ScheddSeen => state.open.contains(&gate),
        };
        let (word, needed) = match (gate, open, state.leadership) {
            (Gate::Leading, _, Leadership::Standby) => ("ok (standby)", true),
            (_, true, _) => ("ok", true),
            (_, false, Leadership::Standby) => ("not asked on standby", true),
            (_, false, Leadership::Unknown | Leadership::Leader) => ("NOT YET", false),
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
        let but = |shut: Option<Gate>| {
            let leadership = if shut == Some(Gate::Leading) { Leadership::Unknown } else { Leadership::Leader };
            let open = Gate::iter().filter(|gate| Some(*gate) != shut).collect();
            State { leadership, open, ledger_at_work: None }
        };
        assert!(describe(&but(None)).0);
        for gate in Gate::iter() {
            let (ready, text) = describe(&but(Some(gate)));
            assert!(!ready && text.matches("NOT YET").count() == 1, "{text}");
        }
        assert!(!describe(&State::default()).0);
        let at_work = |time| State { ledger_at_work: Instant::now().checked_sub(time), ..but(None) };
        assert!(describe(&at_work(Duration::ZERO)).0);
        let (ready, text) = describe(&at_work(LEDGER_PATIENCE));
        assert!(!ready && text.contains("ledger-answers: NOT YET"), "{text}");
        assert!(describe(&State { leadership: Leadership::Standby, ..State::default() }).0);
    }
}
