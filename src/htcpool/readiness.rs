//! Decides on the condition `Ready` of an `HTCPool` from the answers of its schedd.

use htc_api::{Condition, ConditionStatus, ObjectName};
use htc_machine::Birthdate;
use htc_machine::facts::{QueryError, QueryErrorKind};
use strum::IntoEnumIterator as _;

/// Reason: the schedd has not answered yet.
pub(super) const ASKING: &str = "QueryingHTCondor";
/// Reason: the `HTCPool` is being deleted while `HTCJob`s use it.
pub(super) const IN_USE: &str = "InUse";
/// Reason: the schedd answers.
const ANSWERING: &str = "Answering";
/// Reason: another pool has the same schedd.
const SAME_SCHEDD: &str = "SameSchedd";
/// Reason: the `HTCJob`s of this `HTCPool` are recorded in another pool.
pub(super) const ANOTHER_POOL: &str = "AnotherPool";

/// Reasons whose message comes from this program or the API server: a changed message is written.
///
/// Messages of HTCondor's tools may differ each time, and are not written again.
pub(super) const EXPLAINED_REASONS: [&str; 11] = [
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

/// Identity of a schedd, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScheddIdentity {
    /// Attribute `Name`.
    pub(super) name: String,
    /// Attribute `JobQueueBirthdate`.
    pub(super) birthdate: Birthdate,
}

/// Observations of a pool's schedd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedSchedd {
    /// Its latest reported identity.
    pub(super) schedd: Option<ScheddIdentity>,
    /// Error of the latest query, if that failed.
    pub(super) failure: Option<QueryError>,
}

/// Input for the condition `Ready` of an `HTCPool`.
#[derive(Clone, Debug)]
pub(super) struct PoolFacts<'a> {
    /// Number of `HTCJob`s that use it, if it is being deleted.
    pub(super) deleting: Option<usize>,
    /// Reason and message, if the pool does not run.
    pub(super) refused: Option<(&'static str, String)>,
    pub(super) seen: &'a ObservedSchedd,
    /// Schedds of the running pools that are older; `None` is the default pool.
    pub(super) older: &'a [(Option<ObjectName>, ObservedSchedd)],
    /// The current condition `Ready`.
    pub(super) current: Option<&'a Condition>,
    /// `HTCJob`s are submitted to it.
    pub(super) open: bool,
}

/// The condition `Ready` of an `HTCPool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadyCondition {
    pub(super) status: ConditionStatus,
    pub(super) reason: String,
    pub(super) message: String,
    /// Message for its `HTCJob`s, if nothing is submitted to it.
    pub(super) trouble: Option<String>,
}

impl ReadyCondition {
    fn no(reason: &impl ToString, message: String) -> Self {
        let trouble = Some(message.clone());
        Self { status: ConditionStatus::False, reason: reason.to_string(), message, trouble }
    }
}

/// Returns whether this reason comes from queries to schedds, or from waiting for them.
fn comes_of_asking(reason: &str) -> bool {
    [ASKING, SAME_SCHEDD, ANSWERING].contains(&reason) || QueryErrorKind::iter().any(|why| <&str>::from(why) == reason)
}

/// Returns the new condition `Ready`; `None` if the current one stays.
pub(super) fn ready_condition(facts: &PoolFacts<'_>) -> Option<ReadyCondition> {
    let PoolFacts { seen, older: before, .. } = facts;
    if let Some((reason, message)) = &facts.refused {
        return Some(ReadyCondition::no(reason, message.clone()));
    }
    if let Some(using) = facts.deleting {
        let jobs = if using == 1 { "1 HTCJob uses".to_owned() } else { format!("{using} HTCJobs use") };
        let message = format!("{jobs} this pool; it is deleted once they are deleted");
        return Some(ReadyCondition {
            trouble: Some("it is being deleted".to_owned()),
            ..ReadyCondition::no(&IN_USE, message)
        });
    }
    let asking = || {
        // The condition is from before this operator started. The first answer will update it soon.
        let stays = facts.current.is_some_and(|told| comes_of_asking(&told.reason));
        (!stays).then(|| ReadyCondition::no(&ASKING, "its schedd has not answered yet".to_owned()))
    };
    let Some(schedd) = &seen.schedd else {
        let Some(QueryError { kind: why, message }) = &seen.failure else { return asking() };
        let silent = ReadyCondition::no(why, message.clone());
        // An open pool was ready before this operator started. Each of its HTCJobs reports the silent schedd itself.
        return Some(ReadyCondition { trouble: silent.trouble.filter(|_| !facts.open), ..silent });
    };
    if let Some((other, _)) = before.iter().find(|(_, other)| other.schedd.as_ref() == Some(schedd)) {
        let other = match other {
            Some(name) => format!("HTCPool {name} is"),
            None => "the operator's own pool, that of HTCJobs without spec.pool, is".to_owned(),
        };
        let message = format!("{other} the same schedd {}: use that one, and delete this HTCPool", schedd.name);
        return Some(ReadyCondition::no(&SAME_SCHEDD, message));
    }
    if !facts.open && before.iter().any(|(_, other)| *other == ObservedSchedd::default()) {
        // The older pool may turn out to have the same schedd.
        return asking();
    }
    Some(match &seen.failure {
        // Each HTCJob reports this itself, and continues when the schedd answers again.
        Some(QueryError { kind: why, message }) => {
            ReadyCondition { trouble: None, ..ReadyCondition::no(why, message.clone()) }
        }
        None => ReadyCondition {
            status: ConditionStatus::True,
            reason: ANSWERING.to_owned(),
            message: format!("schedd {} answers", schedd.name),
            trouble: None,
        },
    })
}

#[cfg(test)]
mod tests {
    use htc_machine::facts::QueryErrorKind;
    use rstest::rstest;

    use super::*;

    fn schedd(name: &str, birthdate: i64) -> ScheddIdentity {
        ScheddIdentity { name: name.to_owned(), birthdate: Birthdate(birthdate) }
    }

    fn silent() -> QueryError {
        QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "it does not answer".to_owned() }
    }

    #[rstest]
    #[case(ObservedSchedd::default(), ConditionStatus::False, "QueryingHTCondor", true)]
    #[case(ObservedSchedd { schedd: None, failure: Some(silent()) }, ConditionStatus::False, "ScheddUnreachable", true)]
    #[case(ObservedSchedd { schedd: Some(schedd("b", 2)), failure: None }, ConditionStatus::True, "Answering", false)]
    // The HTCJobs of this pool get no message from here: each reports the failed query itself.
    #[case(ObservedSchedd { schedd: Some(schedd("b", 2)), failure: Some(silent()) }, ConditionStatus::False, "ScheddUnreachable", false)]
    #[case(ObservedSchedd { schedd: Some(schedd("a", 1)), failure: None }, ConditionStatus::False, "SameSchedd", true)]
    #[case(ObservedSchedd { schedd: Some(schedd("a", 1)), failure: Some(silent()) }, ConditionStatus::False, "SameSchedd", true)]
    // Two clusters whose schedds have the same name.
    #[case(ObservedSchedd { schedd: Some(schedd("a", 2)), failure: None }, ConditionStatus::True, "Answering", false)]
    #[case(ObservedSchedd { schedd: Some(schedd("b", 1)), failure: None }, ConditionStatus::True, "Answering", false)]
    fn pool_is_ready_if_its_schedd_answers_and_is_not_shared(
        #[case] seen: ObservedSchedd,
        #[case] status: ConditionStatus,
        #[case] reason: &str,
        #[case] trouble: bool,
    ) {
        let other = ObservedSchedd { schedd: Some(schedd("a", 1)), failure: Some(silent()) };
        let unknown = ObservedSchedd { schedd: None, failure: Some(silent()) };
        for name in [None, Some("ns/other".parse().unwrap())] {
            let before = [(Some("ns/unknown".parse().unwrap()), unknown.clone()), (name, other.clone())];
            let facts =
                PoolFacts { deleting: None, refused: None, seen: &seen, older: &before, current: None, open: false };
            let said = ready_condition(&facts).unwrap();
            assert_eq!((said.status, said.reason.as_str(), said.trouble.is_some()), (status, reason, trouble));
        }
    }

    /// An older pool that was not queried yet may have the same schedd. A pool that HTCJobs are submitted to stays
    /// open; another one waits, and keeps its condition.
    #[test]
    fn pool_is_not_ready_before_older_pools_are_queried() {
        let seen = ObservedSchedd { schedd: Some(schedd("a", 1)), failure: None };
        let before = [(None, ObservedSchedd::default())];
        let facts =
            PoolFacts { deleting: None, refused: None, seen: &seen, older: &before, current: None, open: false };
        let said = ready_condition(&facts).unwrap();
        assert_eq!((said.reason.as_str(), said.trouble.is_some()), ("QueryingHTCondor", true));
        let told = serde_json::json!({
            "type": "Ready", "status": "False", "reason": "SameSchedd", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let told: Condition = serde_json::from_value(told).unwrap();
        assert_eq!(ready_condition(&PoolFacts { current: Some(&told), ..facts.clone() }), None);
        assert_eq!(ready_condition(&PoolFacts { open: true, ..facts }).unwrap().reason, "Answering");
    }

    /// A new operator has queried no schedd yet.
    #[rstest]
    #[case("QueryingHTCondor", true)]
    #[case("Answering", true)]
    #[case("SameSchedd", true)]
    #[case("CredentialsRefused", true)]
    #[case("AnswerIncomplete", true)]
    #[case("AnotherPool", false)]
    #[case("InUse", false)]
    #[case("NameTaken", false)]
    #[case("InvalidName", false)]
    fn reason_from_a_query_stays_until_the_next_query(#[case] reason: &str, #[case] stays: bool) {
        let told = serde_json::json!({
            "type": "Ready", "status": "False", "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let told: Condition = serde_json::from_value(told).unwrap();
        let seen = ObservedSchedd::default();
        let facts =
            PoolFacts { deleting: None, refused: None, seen: &seen, older: &[], current: Some(&told), open: false };
        let reason = ready_condition(&facts).map(|ready| ready.reason);
        assert_eq!(reason.as_deref(), if stays { None } else { Some(ASKING) });
    }

    #[test]
    fn ready_pool_stays_open_while_its_schedd_is_unresponsive() {
        let seen = ObservedSchedd { schedd: None, failure: Some(silent()) };
        let facts = PoolFacts { deleting: None, refused: None, seen: &seen, older: &[], current: None, open: true };
        assert_eq!(ready_condition(&facts).unwrap().trouble, None);
        assert!(ready_condition(&PoolFacts { open: false, ..facts }).unwrap().trouble.is_some());
    }
}
