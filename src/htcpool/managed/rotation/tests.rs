use htc_api::ObjectName;
use htc_machine::facts::QueryErrorKind;

use super::*;

fn key(generation: u32) -> SigningKey {
    SigningKey::from_file(generation, &[u8::try_from(generation).unwrap(); 64]).unwrap()
}

fn known(generation: u32) -> PublishedKey {
    PublishedKey { generation, fingerprint: key(generation).fingerprint() }
}

fn set(generations: &[u32]) -> BTreeSet<u32> {
    generations.iter().copied().collect()
}

/// A pool whose key is to be replaced. Everything is observed at the end of the first step.
struct RotationCase {
    wish: RequestedKeys,
    known: Option<PublishedKey>,
    keys: Vec<SigningKey>,
    given: Vec<BTreeSet<u32>>,
    evidence: Option<RotationEvidence>,
}

impl RotationCase {
    /// Both keys are created, used and accepted, and there is no old token.
    fn overlap() -> Self {
        Self {
            wish: RequestedKeys { generation: 2, oldest: 1 },
            known: Some(known(2)),
            keys: vec![key(2), key(1)],
            given: vec![set(&[1, 2]), set(&[1, 2])],
            evidence: Some(evidence(&[&[1, 2], &[1, 2]], &[])),
        }
    }

    fn next(&self) -> Result<RotationStep, KeyLoss> {
        let Self { wish, known, keys, given, evidence } = self;
        next_step(&RotationInput { wish: *wish, known: known.as_ref(), keys, given, evidence: evidence.as_ref() })
    }

    fn waits(&self) -> (Vec<u32>, Option<RotationWait>) {
        match self.next() {
            Ok(RotationStep::Accept(accept)) => (accept.generations(), accept.waits_for),
            other => panic!("{other:?}"),
        }
    }
}

fn evidence(accepted: &[&[u32]; 2], old: &[&str]) -> RotationEvidence {
    let names = |generations: &[u32]| generations.iter().map(|generation| key_name(*generation)).collect();
    let accepted = vec![(Role::CentralManager, names(accepted[0])), (Role::Schedd, names(accepted[1]))];
    RotationEvidence {
        newest: 2,
        accepted: Ok(accepted),
        old_tokens: old.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[test]
fn first_key_is_made_once() {
    let mut case = RotationCase {
        wish: RequestedKeys { generation: 1, oldest: 1 },
        known: None,
        keys: vec![],
        given: vec![],
        evidence: None,
    };
    assert_eq!(case.next(), Ok(RotationStep::Make(1)));
    case.keys.push(key(1));
    assert_eq!(case.waits(), (vec![1], None));
    case.known = Some(known(1));
    assert_eq!(case.waits(), (vec![1], None));
    case.keys.clear();
    assert_eq!(case.next(), Err(KeyLoss::Missing(1)), "all tokens would be worth nothing");
    case.keys = vec![SigningKey::from_file(1, &[9; 64]).unwrap()];
    assert_eq!(case.next(), Err(KeyLoss::Replaced(1)));
    // A pool that is created again from an HTCPool whose key was replaced.
    case = RotationCase { wish: RequestedKeys { generation: 7, oldest: 3 }, known: None, keys: vec![], ..case };
    assert_eq!(case.next(), Ok(RotationStep::Make(7)));
}

#[test]
fn rotation_takes_one_step_at_a_time() {
    let mut case = RotationCase {
        wish: RequestedKeys { generation: 2, oldest: 1 },
        known: Some(known(1)),
        keys: vec![key(1)],
        given: vec![set(&[1]), set(&[1])],
        evidence: None,
    };
    assert_eq!(case.next(), Ok(RotationStep::Make(2)));
    case.keys.insert(0, key(2));
    assert_eq!(
        case.waits(),
        (vec![1], Some(RotationWait::NotNoted)),
        "no token exists of a key that the status does not name"
    );
    case.known = Some(known(2));
    assert_eq!(case.waits(), (vec![2, 1], Some(RotationWait::NotAsked)));
    case.given = vec![set(&[1, 2]), set(&[1, 2])];
    case.evidence = Some(evidence(&[&[1, 2], &[1]], &[]));
    assert_eq!(case.waits(), (vec![2, 1], Some(RotationWait::NotAccepted(vec![Role::Schedd]))));
    case.evidence = Some(evidence(&[&[1, 2], &[1, 2]], &["w-1"]));
    assert_eq!(case.waits(), (vec![2, 1], Some(RotationWait::OldTokens(vec!["w-1".to_owned()]))));
    case.evidence = Some(evidence(&[&[1, 2], &[1, 2]], &[]));
    assert_eq!(case.waits().0, [2]);
    // The operator dies between the writes of the two Secrets.
    case.given = vec![set(&[2]), set(&[1, 2])];
    assert_eq!(case.waits(), (vec![2], Some(RotationWait::StillAccepted(vec![Role::CentralManager, Role::Schedd]))));
    case.given = vec![set(&[2]), set(&[2])];
    case.evidence = Some(evidence(&[&[2], &[1, 2]], &[]));
    assert_eq!(case.waits(), (vec![2], Some(RotationWait::StillAccepted(vec![Role::Schedd]))));
    case.evidence = Some(evidence(&[&[2], &[2]], &[]));
    assert_eq!(case.next(), Ok(RotationStep::Delete(1)));
    case.keys = vec![key(2)];
    assert_eq!(case.waits(), (vec![2], None));
}

#[test]
fn old_key_stays_while_anything_is_unknown() {
    let silent = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "silent".to_owned() };
    for unknown_because in [
        None,
        Some(RotationEvidence { accepted: Err(silent), ..evidence(&[&[1, 2], &[1, 2]], &[]) }),
        // The query was before the new key existed.
        Some(RotationEvidence { newest: 1, ..evidence(&[&[1, 2], &[1, 2]], &[]) }),
    ] {
        let case = RotationCase { evidence: unknown_because, ..RotationCase::overlap() };
        let (generations, waits) = case.waits();
        assert_eq!(generations, [2, 1], "{waits:?}");
        assert!(matches!(waits, Some(RotationWait::NotAsked | RotationWait::Unknown(_))), "{waits:?}");
        // No step is undone.
        let withdrawn = RotationCase { given: vec![set(&[2]), set(&[2])], ..case };
        let (generations, waits) = withdrawn.waits();
        assert_eq!(generations, [2], "{waits:?}");
        assert!(matches!(waits, Some(RotationWait::NotAsked | RotationWait::Unknown(_))), "{waits:?}");
    }
    assert_eq!(RotationCase::overlap().waits().0, [2]);
}

#[test]
fn deleted_key_is_reported() {
    let mut case = RotationCase::overlap();
    case.keys = vec![key(2)];
    assert_eq!(case.next(), Err(KeyLoss::Missing(1)), "workers have tokens of it");
    case.keys = vec![key(1)];
    assert_eq!(case.next(), Err(KeyLoss::Missing(2)), "another key of its name would reject all tokens");
    case.keys = vec![SigningKey::from_file(2, &[9; 64]).unwrap(), key(1)];
    assert_eq!(case.next(), Err(KeyLoss::Replaced(2)));
}

#[test]
fn revoked_key_is_not_waited_for() {
    let mut case = RotationCase::overlap();
    case.wish.oldest = 2;
    case.evidence = Some(evidence(&[&[1, 2], &[1, 2]], &["w-1"]));
    assert_eq!(case.waits(), (vec![2], Some(RotationWait::StillAccepted(vec![Role::CentralManager, Role::Schedd]))));
    // The key that was given up may be missing.
    case.keys = vec![key(2)];
    assert_eq!(case.waits().0, [2]);
    case.given = vec![set(&[2]), set(&[2])];
    assert_eq!(case.waits(), (vec![2], None));
    // A pool that has lost its key gets a new one.
    let mut lost = RotationCase { known: Some(known(1)), keys: vec![], given: vec![set(&[1]), set(&[1])], ..case };
    assert_eq!(lost.next(), Ok(RotationStep::Make(2)));
    lost.keys = vec![key(2)];
    assert_eq!(lost.waits().0, [2]);
}

#[test]
fn keys_are_replaced_one_at_a_time() {
    let mut case = RotationCase::overlap();
    case.wish.generation = 3;
    case.evidence = Some(evidence(&[&[1, 2], &[1, 2]], &["w-1"]));
    assert_eq!(case.waits(), (vec![2, 1], Some(RotationWait::OldTokens(vec!["w-1".to_owned()]))));
    case.keys = vec![key(2)];
    case.given = vec![set(&[2]), set(&[2])];
    assert_eq!(case.next(), Ok(RotationStep::Make(3)));
}

#[test]
fn rotation_condition_names_its_wait() {
    let pool = ObjectName { namespace: "n".to_owned(), name: "p".to_owned() };
    let names = PoolNames::new(&pool, "u").unwrap();
    let said = |waits| rotation_condition(&AcceptedKeys { newest: 2, previous: true, waits_for: waits }, &names);
    let old = said(Some(RotationWait::OldTokens((0..7).map(|number| format!("w-{number}")).collect())));
    assert_eq!((old.status, old.reason), (ConditionStatus::False, "OldTokensInUse"));
    assert!(
        old.message.starts_with("7 with tokens of generation 1: w-0, w-1, w-2, w-3, w-4 and 2 more"),
        "{}",
        old.message
    );
    let done = said(None);
    assert_eq!((done.status, done.reason), (ConditionStatus::True, "OneKey"));
    assert!(done.message.contains("p-signing-key-2"), "{}", done.message);
    let silent = said(Some(RotationWait::Unknown("no answer".to_owned())));
    assert_eq!((silent.status, silent.reason), (ConditionStatus::Unknown, "DaemonsSilent"));
}

#[test]
fn requested_key_defaults_to_the_first() {
    let wish = |key: Option<(i32, Option<i32>)>| {
        let signing_key =
            key.map(|(generation, oldest_accepted)| htc_api::SigningKeySpec { generation, oldest_accepted });
        let RequestedKeys { generation, oldest } =
            RequestedKeys::of(&ManagedPool { signing_key, ..ManagedPool::default() });
        (generation, oldest)
    };
    assert_eq!([wish(None), wish(Some((3, None))), wish(Some((3, Some(2))))], [(1, 1), (3, 1), (3, 2)]);
    let status = |generation| HTCPoolStatus {
        signing_key: Some("f".to_owned()),
        signing_key_generation: generation,
        ..HTCPoolStatus::default()
    };
    assert_eq!(PublishedKey::of(Some(&status(None))).unwrap().generation, 1, "as earlier versions wrote it");
    assert_eq!(PublishedKey::of(Some(&status(Some(4)))).unwrap().generation, 4);
    assert_eq!(PublishedKey::of(Some(&HTCPoolStatus::default())), None);
}
