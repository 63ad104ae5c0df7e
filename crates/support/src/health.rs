//! Readiness of the operator: a few named gates, each opened by the part of the program that knows its state.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strum::{EnumIter, IntoEnumIterator as _, IntoStaticStr};

/// Condition that must hold before the operator is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Gate {
    /// The API server serves HTCJobs.
    CrdServed,
    /// All HTCJobs have been listed.
    CacheSynced,
    /// The last write to the ledger was stored.
    LedgerWritable,
    /// The ledger has answered and has not been stuck in one step since.
    LedgerAnswers,
    /// The schedd has answered since the operator started.
    ScheddSeen,
    /// The leader is known: this operator, or another one that it can replace.
    Leading,
}

/// State of the leader election as this operator sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Leadership {
    /// The leader is not known yet.
    #[default]
    Unknown,
    /// Another operator leads. A standby needs no other gate to be ready.
    Standby,
    /// This operator leads.
    Leader,
}

/// Maximum duration of one step of the ledger: client-go's renew deadline.
const LEDGER_PATIENCE: Duration = Duration::from_secs(10);

/// State of all gates.
#[derive(Debug, Default)]
struct GateState {
    leadership: Leadership,
    open: BTreeSet<Gate>,
    /// Start of the ledger's current step; `None` while no caller waits for it.
    ledger_at_work: Option<Instant>,
}

impl GateState {
    fn ledger_silent_for(&self) -> Duration {
        self.ledger_at_work.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Gates of one operator. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<GateState>>);

impl Health {
    fn with<T>(&self, work: impl FnOnce(&mut GateState) -> T) -> T {
        work(&mut self.0.lock())
    }

    fn set(&self, gate: Gate, open: bool) {
        self.with(|state| if open { state.open.insert(gate) } else { state.open.remove(&gate) });
    }

    /// Sets whether the API server serves HTCJobs.
    pub fn crd_served(&self, served: bool) {
        self.set(Gate::CrdServed, served);
    }

    /// Records that all HTCJobs have been listed.
    pub fn cache_synced(&self) {
        self.set(Gate::CacheSynced, true);
    }

    /// Sets whether the last write to the ledger was stored.
    pub fn ledger_writable(&self, writable: bool) {
        self.set(Gate::LedgerWritable, writable);
    }

    /// Records that the ledger begins a step for a waiting caller.
    pub fn ledger_busy(&self) {
        self.with(|state| state.ledger_at_work = Some(Instant::now()));
    }

    /// Records that the ledger has answered everything it had accepted.
    pub fn ledger_idle(&self) {
        self.with(|state| {
            state.ledger_at_work = None;
            state.open.insert(Gate::LedgerAnswers)
        });
    }

    /// Returns how long the ledger's current step has taken while a caller waits for its answer.
    #[must_use]
    pub fn ledger_silent_for(&self) -> Duration {
        self.with(|state| state.ledger_silent_for())
    }

    /// Records that the schedd has answered.
    pub fn schedd_seen(&self) {
        self.set(Gate::ScheddSeen, true);
    }

    /// Records that another operator leads.
    pub fn standing_by(&self) {
        self.with(|state| state.leadership = Leadership::Standby);
    }

    /// Records that this operator leads.
    pub fn leading(&self) {
        self.with(|state| state.leadership = Leadership::Leader);
    }

    /// Returns whether the operator is ready, and one line for each gate.
    #[must_use]
    pub fn ready(&self) -> (bool, String) {
        self.with(|state| describe(state))
    }
}

fn describe(state: &GateState) -> (bool, String) {
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
    fn leader_needs_every_gate_and_a_standby_none() {
        let but = |shut: Option<Gate>| {
            let leadership = if shut == Some(Gate::Leading) { Leadership::Unknown } else { Leadership::Leader };
            let open = Gate::iter().filter(|gate| Some(*gate) != shut).collect();
            GateState { leadership, open, ledger_at_work: None }
        };
        assert!(describe(&but(None)).0);
        for gate in Gate::iter() {
            let (ready, text) = describe(&but(Some(gate)));
            assert!(!ready && text.matches("NOT YET").count() == 1, "{text}");
        }
        assert!(!describe(&GateState::default()).0);
        let at_work = |time| GateState { ledger_at_work: Instant::now().checked_sub(time), ..but(None) };
        assert!(describe(&at_work(Duration::ZERO)).0);
        let (ready, text) = describe(&at_work(LEDGER_PATIENCE));
        assert!(!ready && text.contains("ledger-answers: NOT YET"), "{text}");
        assert!(describe(&GateState { leadership: Leadership::Standby, ..GateState::default() }).0);
    }
}
