//! What is said of an `HTCPool`, from what its schedd has answered.

use crate::api::{ConditionStatus, ObjectName};
use crate::machine::Birthdate;
use crate::machine::facts::Unknown;

/// Reason of a pool whose schedd has not been heard yet.
pub(super) const ASKING: &str = "Asking";
/// Reason of one that is deleted while `HTCJob`s are in it.
pub(super) const IN_USE: &str = "InUse";
/// Reasons that are explained in this program's words, or the API server's: other words are news. What HTCondor's tools say may differ each
/// time.
pub(super) const OWN_WORDS: [&str; 11] = [
    ASKING,
    IN_USE,
    "Answering",
    "SameSchedd",
    "AnotherPool",
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

/// What is to be said of a pool. `before`: the pools that were there before it, and what is known of them; none for that of the
/// operator's flags.
pub(super) fn ready(seen: &Seen, before: &[(Option<ObjectName>, Seen)]) -> Ready {
    let Some(schedd) = &seen.schedd else {
        return match &seen.silent {
            Some(Unknown { why, message }) => Ready::no(why, message.clone()),
            None => Ready::no(&ASKING, "its schedd has not answered yet".to_owned()),
        };
    };
    if let Some((other, _)) = before.iter().find(|(_, other)| other.schedd.as_ref() == Some(schedd)) {
        let other = match other {
            Some(name) => format!("HTCPool {name} is"),
            None => "the operator's own pool, that of HTCJobs without spec.pool, is".to_owned(),
        };
        let message = format!("{other} the same schedd {}: use that one, and delete this HTCPool", schedd.name);
        return Ready::no(&"SameSchedd", message);
    }
    match &seen.silent {
        // Each HTCJob says so for itself, and goes on when it answers again.
        Some(Unknown { why, message }) => {
            Ready { status: ConditionStatus::False, reason: why.to_string(), message: message.clone(), trouble: None }
        }
        None => Ready {
            status: ConditionStatus::True,
            reason: "Answering".to_owned(),
            message: format!("schedd {} answers", schedd.name),
            trouble: None,
        },
    }
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
        let unknown = Seen { schedd: None, silent: None };
        for name in [None, Some("ns/other".parse().unwrap())] {
            let said = ready(&seen, &[(Some("ns/unknown".parse().unwrap()), unknown.clone()), (name, other.clone())]);
            assert_eq!((said.status, said.reason.as_str(), said.trouble.is_some()), (status, reason, trouble));
        }
    }
}
