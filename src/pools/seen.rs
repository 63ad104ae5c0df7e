//! What is said of an `HTCPool`, from what its schedd has answered.

use super::states::{ANOTHER_POOL, ANSWERING, ASKING, IN_USE, SAME_SCHEDD, State};
use crate::api::{Condition, ConditionStatus, ObjectName};
use crate::machine::Birthdate;
use crate::machine::facts::Unknown;

/// Reasons that are explained in this program's words, or the API server's: other words are news. What HTCondor's tools say may differ each
/// time.
pub(super) const OWN_WORDS: [&str; 11] = [
    ASKING,
    IN_USE,
    ANSWERING,
    SAME_SCHEDD,
    ANOTHER_POOL,
    "InvalidSpec",
    "InvalidName",
    "NameTaken",
    "NotPermitted",
    "SigningKeyMissing",
    "NotMade",
];

/// Which schedd it is, by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedd {
    /// `Name`
    pub(super) name: String,
    /// `JobQueueBirthdate`
    pub(super) birthdate: Birthdate,
}

/// What is known of a pool's schedd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The latest that it has said of itself.
    pub(super) schedd: Option<Schedd>,
    /// Why it has not answered the last time.
    pub(super) silent: Option<Unknown>,
}

/// What is known of an `HTCPool`.
#[derive(Clone, Debug)]
pub(super) struct Facts<'a> {
    /// It is being deleted, and so many `HTCJob`s are in it.
    pub(super) leaving: Option<usize>,
    /// Why it is not at work: reason and message.
    pub(super) refused: Option<(&'static str, String)>,
    /// Its schedd.
    pub(super) seen: &'a Seen,
    /// The pools at work that were there before it; none for that of the operator's flags.
    pub(super) before: &'a [(Option<ObjectName>, Seen)],
    /// The condition `Ready`, as it is.
    pub(super) told: Option<&'a Condition>,
    /// Its `HTCJob`s are submitted.
    pub(super) open: bool,
}

/// The condition `Ready` of an `HTCPool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) status: ConditionStatus,
    pub(super) reason: String,
    pub(super) message: String,
    /// Why nothing is submitted, for its `HTCJob`s.
    pub(super) trouble: Option<String>,
}

impl Ready {
    fn no(reason: &impl ToString, message: String) -> Self {
        let trouble = Some(message.clone());
        Self { status: ConditionStatus::False, reason: reason.to_string(), message, trouble }
    }
}

/// What is to be said of a pool; none if it stays as it is.
pub(super) fn ready(facts: &Facts<'_>) -> Option<Ready> {
    let Facts { seen, before, .. } = facts;
    if let Some((reason, message)) = &facts.refused {
        return Some(Ready::no(reason, message.clone()));
    }
    if let Some(using) = facts.leaving {
        let jobs = if using == 1 { "1 HTCJob uses".to_owned() } else { format!("{using} HTCJobs use") };
        let message = format!("{jobs} this pool; it is deleted once they are deleted");
        return Some(Ready { trouble: Some("it is being deleted".to_owned()), ..Ready::no(&IN_USE, message) });
    }
    let asking = || {
        // It was told before this operator was started, and is known anew soon.
        let stays = facts.told.is_some_and(|told| State::of(&told.reason).is_told_by_schedds());
        (!stays).then(|| Ready::no(&ASKING, "its schedd has not answered yet".to_owned()))
    };
    let Some(schedd) = &seen.schedd else {
        let Some(Unknown { why, message }) = &seen.silent else { return asking() };
        let silent = Ready::no(why, message.clone());
        // It was ready before this operator was started, and each of its HTCJobs finds out that it is silent.
        return Some(Ready { trouble: silent.trouble.filter(|_| !facts.open), ..silent });
    };
    if let Some((other, _)) = before.iter().find(|(_, other)| other.schedd.as_ref() == Some(schedd)) {
        let other = match other {
            Some(name) => format!("HTCPool {name} is"),
            None => "the operator's own pool, that of HTCJobs without spec.pool, is".to_owned(),
        };
        let message = format!("{other} the same schedd {}: use that one, and delete this HTCPool", schedd.name);
        return Some(Ready::no(&SAME_SCHEDD, message));
    }
    if !facts.open && before.iter().any(|(_, other)| *other == Seen::default()) {
        // That one may be the same.
        return asking();
    }
    Some(match &seen.silent {
        // Each HTCJob says so for itself, and goes on when it answers again.
        Some(Unknown { why, message }) => Ready { trouble: None, ..Ready::no(why, message.clone()) },
        None => Ready {
            status: ConditionStatus::True,
            reason: ANSWERING.to_owned(),
            message: format!("schedd {} answers", schedd.name),
            trouble: None,
        },
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::machine::facts::Why;

    fn schedd(name: &str, birthdate: i64) -> Schedd {
        Schedd { name: name.to_owned(), birthdate: Birthdate(birthdate) }
    }

    fn silent() -> Unknown {
        Unknown { why: Why::ScheddUnreachable, message: "it does not answer".to_owned() }
    }

    #[rstest]
    #[case(Seen::default(), ConditionStatus::False, "Asking", true)]
    #[case(Seen { schedd: None, silent: Some(silent()) }, ConditionStatus::False, "ScheddUnreachable", true)]
    #[case(Seen { schedd: Some(schedd("b", 2)), silent: None }, ConditionStatus::True, "Answering", false)]
    // What waits there is not told that nothing is submitted: each HTCJob finds out.
    #[case(Seen { schedd: Some(schedd("b", 2)), silent: Some(silent()) }, ConditionStatus::False, "ScheddUnreachable", false)]
    #[case(Seen { schedd: Some(schedd("a", 1)), silent: None }, ConditionStatus::False, "SameSchedd", true)]
    #[case(Seen { schedd: Some(schedd("a", 1)), silent: Some(silent()) }, ConditionStatus::False, "SameSchedd", true)]
    // Of two clusters, with the same names.
    #[case(Seen { schedd: Some(schedd("a", 2)), silent: None }, ConditionStatus::True, "Answering", false)]
    #[case(Seen { schedd: Some(schedd("b", 1)), silent: None }, ConditionStatus::True, "Answering", false)]
    fn a_pool_is_ready_if_its_schedd_answers_and_is_no_other_pools(
        #[case] seen: Seen,
        #[case] status: ConditionStatus,
        #[case] reason: &str,
        #[case] trouble: bool,
    ) {
        let other = Seen { schedd: Some(schedd("a", 1)), silent: Some(silent()) };
        let unknown = Seen { schedd: None, silent: Some(silent()) };
        for name in [None, Some("ns/other".parse().unwrap())] {
            let before = [(Some("ns/unknown".parse().unwrap()), unknown.clone()), (name, other.clone())];
            let facts = Facts { leaving: None, refused: None, seen: &seen, before: &before, told: None, open: false };
            let said = ready(&facts).unwrap();
            assert_eq!((said.status, said.reason.as_str(), said.trouble.is_some()), (status, reason, trouble));
        }
    }

    /// It may be the schedd of an older pool that has not been asked yet: a pool whose HTCJobs are submitted goes on, and another one
    /// waits and says what it said.
    #[test]
    fn a_pool_is_not_ready_before_the_older_ones_were_asked() {
        let seen = Seen { schedd: Some(schedd("a", 1)), silent: None };
        let before = [(None, Seen::default())];
        let facts = Facts { leaving: None, refused: None, seen: &seen, before: &before, told: None, open: false };
        let said = ready(&facts).unwrap();
        assert_eq!((said.reason.as_str(), said.trouble.is_some()), ("Asking", true));
        let told = serde_json::json!({
            "type": "Ready", "status": "False", "reason": "SameSchedd", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let told: Condition = serde_json::from_value(told).unwrap();
        assert_eq!(ready(&Facts { told: Some(&told), ..facts.clone() }), None);
        assert_eq!(ready(&Facts { open: true, ..facts }).unwrap().reason, "Answering");
    }

    #[test]
    fn a_pool_that_was_ready_stays_open_while_its_schedd_is_silent() {
        let seen = Seen { schedd: None, silent: Some(silent()) };
        let facts = Facts { leaving: None, refused: None, seen: &seen, before: &[], told: None, open: true };
        assert_eq!(ready(&facts).unwrap().trouble, None);
        assert!(ready(&Facts { open: false, ..facts }).unwrap().trouble.is_some());
    }
}
