use super::*;
use crate::api::ObjectName;

fn key(generation: u32) -> SigningKey {
    SigningKey::from_file(generation, &[u8::try_from(generation).unwrap(); 64]).unwrap()
}

fn known(generation: u32) -> Known {
    Known { generation, fingerprint: key(generation).fingerprint() }
}

fn set(generations: &[u32]) -> BTreeSet<u32> {
    generations.iter().copied().collect()
}

/// What is seen of a pool whose key is to be replaced: all of it at the end of its first step.
struct Case {
    wish: Wish,
    known: Option<Known>,
    keys: Vec<SigningKey>,
    given: Vec<BTreeSet<u32>>,
    evidence: Option<Evidence>,
}

impl Case {
    /// Both keys are made, given out, and accepted, and nobody has an old token.
    fn overlap() -> Self {
        Self {
            wish: Wish { generation: 2, oldest: 1 },
            known: Some(known(2)),
            keys: vec![key(2), key(1)],
            given: vec![set(&[1, 2]), set(&[1, 2])],
            evidence: Some(evidence(&[&[1, 2], &[1, 2]], &[])),
        }
    }

    fn next(&self) -> Result<Next, Lost> {
        let Self { wish, known, keys, given, evidence } = self;
        next(&Seen { wish: *wish, known: known.as_ref(), keys, given, evidence: evidence.as_ref() })
    }

    fn waits(&self) -> (Vec<u32>, Option<Wait>) {
        match self.next() {
            Ok(Next::Accept(accept)) => (accept.generations(), accept.waits),
            other => panic!("{other:?}"),
        }
    }
}

fn evidence(accepted: &[&[u32]; 2], old: &[&str]) -> Evidence {
    let names = |generations: &[u32]| generations.iter().map(|generation| key_name(*generation)).collect();
    let accepted = vec![(Role::CentralManager, names(accepted[0])), (Role::Schedd, names(accepted[1]))];
    Evidence { newest: 2, accepted: Ok(accepted), old: old.iter().map(|name| (*name).to_owned()).collect() }
}

#[test]
fn first_key_is_made_once() {
    let mut case =
        Case { wish: Wish { generation: 1, oldest: 1 }, known: None, keys: vec![], given: vec![], evidence: None };
    assert_eq!(case.next(), Ok(Next::Make(1)));
    case.keys.push(key(1));
    assert_eq!(case.waits(), (vec![1], None));
    case.known = Some(known(1));
    assert_eq!(case.waits(), (vec![1], None));
    case.keys.clear();
    assert_eq!(case.next(), Err(Lost::Gone(1)), "all tokens would be worth nothing");
    case.keys = vec![SigningKey::from_file(1, &[9; 64]).unwrap()];
    assert_eq!(case.next(), Err(Lost::Other(1)));
    // A pool that is created again with the HTCPool of one whose key was replaced.
    case = Case { wish: Wish { generation: 7, oldest: 3 }, known: None, keys: vec![], ..case };
    assert_eq!(case.next(), Ok(Next::Make(7)));
}

#[test]
fn rotation_takes_one_step_after_the_other() {
    let mut case = Case {
        wish: Wish { generation: 2, oldest: 1 },
        known: Some(known(1)),
        keys: vec![key(1)],
        given: vec![set(&[1]), set(&[1])],
        evidence: None,
    };
    assert_eq!(case.next(), Ok(Next::Make(2)));
    case.keys.insert(0, key(2));
    assert_eq!(
        case.waits(),
        (vec![1], Some(Wait::NotNoted)),
        "nobody has a token of a key that the status does not name"
    );
    case.known = Some(known(2));
    assert_eq!(case.waits(), (vec![2, 1], Some(Wait::NotAsked)));
    case.given = vec![set(&[1, 2]), set(&[1, 2])];
    case.evidence = Some(evidence(&[&[1, 2], &[1]], &[]));
    assert_eq!(case.waits(), (vec![2, 1], Some(Wait::NotAccepted(vec![Role::Schedd]))));
    case.evidence = Some(evidence(&[&[1, 2], &[1, 2]], &["w-1"]));
    assert_eq!(case.waits(), (vec![2, 1], Some(Wait::OldTokens(vec!["w-1".to_owned()]))));
    case.evidence = Some(evidence(&[&[1, 2], &[1, 2]], &[]));
    assert_eq!(case.waits().0, [2]);
    // The operator dies between the two Secrets.
    case.given = vec![set(&[2]), set(&[1, 2])];
    assert_eq!(case.waits(), (vec![2], Some(Wait::StillAccepted(vec![Role::CentralManager, Role::Schedd]))));
    case.given = vec![set(&[2]), set(&[2])];
    case.evidence = Some(evidence(&[&[2], &[1, 2]], &[]));
    assert_eq!(case.waits(), (vec![2], Some(Wait::StillAccepted(vec![Role::Schedd]))));
    case.evidence = Some(evidence(&[&[2], &[2]], &[]));
    assert_eq!(case.next(), Ok(Next::Delete(1)));
    case.keys = vec![key(2)];
    assert_eq!(case.waits(), (vec![2], None));
}

#[test]
fn old_key_stays_while_anything_is_unknown() {
    for unknown_because in [
        None,
        Some(Evidence { accepted: Err("silent".to_owned()), ..evidence(&[&[1, 2], &[1, 2]], &[]) }),
        // Asked before there was the new key.
        Some(Evidence { newest: 1, ..evidence(&[&[1, 2], &[1, 2]], &[]) }),
    ] {
        let case = Case { evidence: unknown_because, ..Case::overlap() };
        let (generations, waits) = case.waits();
        assert_eq!(generations, [2, 1], "{waits:?}");
        assert!(matches!(waits, Some(Wait::NotAsked | Wait::Unknown(_))), "{waits:?}");
        // No step is taken back.
        let withdrawn = Case { given: vec![set(&[2]), set(&[2])], ..case };
        let (generations, waits) = withdrawn.waits();
        assert_eq!(generations, [2], "{waits:?}");
        assert!(matches!(waits, Some(Wait::NotAsked | Wait::Unknown(_))), "{waits:?}");
    }
    assert_eq!(Case::overlap().waits().0, [2]);
}

#[test]
fn key_that_was_taken_away_by_hand_is_said() {
    let mut case = Case::overlap();
    case.keys = vec![key(2)];
    assert_eq!(case.next(), Err(Lost::Gone(1)), "workers have tokens of it");
    case.keys = vec![key(1)];
    assert_eq!(case.next(), Err(Lost::Gone(2)), "another one of its name would let in nobody who has a token");
    case.keys = vec![SigningKey::from_file(2, &[9; 64]).unwrap(), key(1)];
    assert_eq!(case.next(), Err(Lost::Other(2)));
}

#[test]
fn key_that_was_given_up_is_not_waited_for() {
    let mut case = Case::overlap();
    case.wish.oldest = 2;
    case.evidence = Some(evidence(&[&[1, 2], &[1, 2]], &["w-1"]));
    assert_eq!(case.waits(), (vec![2], Some(Wait::StillAccepted(vec![Role::CentralManager, Role::Schedd]))));
    // It need not be there.
    case.keys = vec![key(2)];
    assert_eq!(case.waits().0, [2]);
    case.given = vec![set(&[2]), set(&[2])];
    assert_eq!(case.waits(), (vec![2], None));
    // A pool that has lost its key gets another one.
    let mut lost = Case { known: Some(known(1)), keys: vec![], given: vec![set(&[1]), set(&[1])], ..case };
    assert_eq!(lost.next(), Ok(Next::Make(2)));
    lost.keys = vec![key(2)];
    assert_eq!(lost.waits().0, [2]);
}

#[test]
fn keys_are_replaced_one_at_a_time() {
    let mut case = Case::overlap();
    case.wish.generation = 3;
    case.evidence = Some(evidence(&[&[1, 2], &[1, 2]], &["w-1"]));
    assert_eq!(case.waits(), (vec![2, 1], Some(Wait::OldTokens(vec!["w-1".to_owned()]))));
    case.keys = vec![key(2)];
    case.given = vec![set(&[2]), set(&[2])];
    assert_eq!(case.next(), Ok(Next::Make(3)));
}

#[test]
fn condition_names_what_is_waited_for() {
    let pool = ObjectName { namespace: "n".to_owned(), name: "p".to_owned() };
    let names = Names::new(&pool, "u").unwrap();
    let said = |waits| rotation_said(&Accept { newest: 2, previous: true, waits }, &names);
    let old = said(Some(Wait::OldTokens((0..7).map(|number| format!("w-{number}")).collect())));
    assert_eq!((old.status, old.reason), (ConditionStatus::False, "OldTokensInUse"));
    assert!(
        old.message.starts_with("7 with tokens of generation 1: w-0, w-1, w-2, w-3, w-4 and 2 more"),
        "{}",
        old.message
    );
    let done = said(None);
    assert_eq!((done.status, done.reason), (ConditionStatus::True, "OneKey"));
    assert!(done.message.contains("p-signing-key-2"), "{}", done.message);
    let silent = said(Some(Wait::Unknown("no answer".to_owned())));
    assert_eq!((silent.status, silent.reason), (ConditionStatus::Unknown, "DaemonsSilent"));
}

#[test]
fn wish_is_the_first_key_unless_the_pool_says_otherwise() {
    let wish = |key: Option<(i32, Option<i32>)>| {
        let signing_key =
            key.map(|(generation, oldest_accepted)| crate::api::SigningKeySpec { generation, oldest_accepted });
        let Wish { generation, oldest } = Wish::of(&ManagedPool { signing_key, ..ManagedPool::default() });
        (generation, oldest)
    };
    assert_eq!([wish(None), wish(Some((3, None))), wish(Some((3, Some(2))))], [(1, 1), (3, 1), (3, 2)]);
    let status = |generation| HTCPoolStatus {
        signing_key: Some("f".to_owned()),
        signing_key_generation: generation,
        ..HTCPoolStatus::default()
    };
    assert_eq!(Known::of(Some(&status(None))).unwrap().generation, 1, "as earlier versions wrote it");
    assert_eq!(Known::of(Some(&status(Some(4)))).unwrap().generation, 4);
    assert_eq!(Known::of(Some(&HTCPoolStatus::default())), None);
}
