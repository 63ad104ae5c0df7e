//! The table beside what is said: an `HTCPool` and an older one live at random.

use super::super::seen::{Facts, Ready, Schedd, Seen, ready};
use super::{ANOTHER_POOL, State, TABLE, Trigger};
use crate::api::{Condition, ObjectName};
use crate::machine::Birthdate;
use crate::machine::facts::{Unknown, Why};
use crate::machine::states::lives::{Changes, Dice, assert_is_the_table};

struct World {
    /// What comes of it when what it needs is made.
    refused: Option<&'static str>,
    at_work: bool,
    /// Why its `HTCJob`s are not submitted.
    trouble: Option<String>,
    mine: Seen,
    /// What is known of the older pool, if there is one.
    older: Option<Seen>,
    deleting: bool,
    using: usize,
    told: Option<Condition>,
    state: Option<State>,
    seen: Changes<State, Trigger>,
}

fn condition(ready: &Ready) -> Condition {
    let told = serde_json::json!({
        "type": "Ready", "status": ready.status, "reason": ready.reason, "message": ready.message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    serde_json::from_value(told).unwrap()
}

/// The schedd answers, as the one or as the other; or it does not.
fn asked(before: &Seen, dice: &mut Dice) -> Seen {
    let silent = Unknown { why: Why::ScheddUnreachable, message: "it does not answer".to_owned() };
    match dice.below(3) {
        0 => Seen { silent: Some(silent), ..before.clone() },
        other => {
            let schedd = Schedd { name: "s".to_owned(), birthdate: Birthdate(i64::try_from(other).unwrap()) };
            Seen { schedd: Some(schedd), silent: None }
        }
    }
}

/// What comes of it when what it needs is made.
fn refusals(dice: &mut Dice) -> Option<&'static str> {
    [None, Some("NotMade"), Some(ANOTHER_POOL)][usize::try_from(dice.below(3)).unwrap()]
}

impl World {
    fn new() -> Self {
        Self {
            refused: None,
            at_work: false,
            trouble: None,
            mine: Seen::default(),
            older: None,
            deleting: false,
            using: 0,
            told: None,
            state: None,
            seen: Changes::new(),
        }
    }

    /// As the keeper looks at it; whether it is still there.
    fn look(&mut self, trigger: Trigger) -> bool {
        if self.deleting && self.using == 0 {
            self.seen.insert((self.state, None, if trigger == Trigger::Deleted { trigger } else { Trigger::LetGo }));
            return false;
        }
        if !self.at_work && self.refused.is_none() {
            self.at_work = true;
            let was_ready = self.state == Some(State::Answering);
            self.trouble = (!was_ready).then(|| "its schedd has not answered yet".to_owned());
        }
        let refused = self.refused.filter(|_| !self.at_work).map(|reason| (reason, String::new()));
        let name: ObjectName = "ns/older".parse().unwrap();
        let before: Vec<_> = self.older.iter().map(|older| (Some(name.clone()), older.clone())).collect();
        let facts = Facts {
            leaving: self.deleting.then_some(self.using),
            refused,
            seen: &self.mine,
            before: &before,
            told: self.told.as_ref(),
            open: self.trouble.is_none(),
        };
        let Some(ready) = ready(&facts) else {
            assert!(self.state.is_some(), "it says nothing of a pool that has said nothing yet");
            return true;
        };
        let now = State::of(&ready.reason);
        if self.state != Some(now) {
            self.seen.insert((self.state, Some(now), trigger));
        }
        let accepts = ready.trouble.is_none();
        assert!(!accepts || matches!(now, State::Answering | State::Silent), "{now}");
        // Whoever gets HTCJobs has been told from each older pool that may be the same.
        let unheard = self.older.as_ref().is_some_and(|older| *older == Seen::default());
        assert!(!accepts || !unheard || self.trouble.is_none(), "an older pool may be the same");
        (self.state, self.told, self.trouble) = (Some(now), Some(condition(&ready)), ready.trouble);
        true
    }

    /// Something happens.
    fn happens(&mut self, dice: &mut Dice) -> Option<Trigger> {
        match dice.below(12) {
            0..=2 if self.at_work => {
                self.mine = asked(&self.mine, dice);
                Some(Trigger::Asked)
            }
            3 | 4 => {
                let older = self.older.as_ref()?;
                // It goes for good: pools that are made later are not older.
                self.older = (dice.below(5) > 0).then(|| asked(older, dice));
                Some(Trigger::OlderPool)
            }
            5..=7 => {
                self.refused = refusals(dice);
                // What goes is tried again by the next operator.
                (!self.at_work).then_some(Trigger::TriedAgain)
            }
            8 => {
                (self.at_work, self.mine) = (false, Seen::default());
                self.older = self.older.take().map(|_| Seen::default());
                Some(Trigger::BegunAnew)
            }
            9 if !self.deleting => {
                (self.deleting, self.using) = (true, usize::try_from(dice.below(3)).unwrap());
                Some(Trigger::Deleted)
            }
            10 if self.using > 0 => {
                self.using -= 1;
                Some(Trigger::LetGo)
            }
            _ => None,
        }
    }
}

#[test]
fn the_table_is_what_is_said() {
    let mut seen = Changes::new();
    for walk in 0..20_000 {
        let (mut world, mut dice) = (World::new(), Dice(walk));
        world.older = [None, Some(Seen::default())][usize::try_from(dice.below(2)).unwrap()].clone();
        world.refused = refusals(&mut dice);
        world.look(Trigger::Guarded);
        for _ in 0..40 {
            let Some(trigger) = world.happens(&mut dice) else { continue };
            if !world.look(trigger) {
                break;
            }
        }
        seen.append(&mut world.seen);
    }
    assert_is_the_table(&seen, &TABLE);
}

#[test]
fn each_reason_is_of_a_state() {
    for (reason, state) in [
        ("Asking", State::Asking),
        ("Answering", State::Answering),
        ("SameSchedd", State::SameSchedd),
        ("AnotherPool", State::AnotherPool),
        ("InUse", State::InUse),
        ("CredentialsRefused", State::Silent),
        ("Incomplete", State::Silent),
        ("NameTaken", State::NotMade),
        ("InvalidName", State::NotMade),
    ] {
        assert_eq!(State::of(reason), state, "{reason}");
    }
}
